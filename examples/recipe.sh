#!/bin/sh
# Quantization recipes: which matrices get how many bits, compared by perplexity on held-out text.
#
#     sh examples/recipe.sh [checkpoint [text [directory]]]
#
# More bits cost memory bandwidth, and fewer bits cost quality. The program of each recipe evaluates the text, and the
# script prints perplexity and weight size. FORGE is the path of a built forge.
set -eu
cd "$(dirname "$0")/.."
forge() {
    if [ -n "${FORGE:-}" ]; then "$FORGE" "$@"; else cargo run --quiet --release -- "$@"; fi
}
model=${1:-examples/fable}
text=${2:-examples/fable/held-out.txt}
out=${3:-target/recipes}
mkdir -p "$out"

measure() {
    name=$1
    shift
    forge compile "$model" -o "$out/$name" --name "$name" --force --certify none "$@" 2> "$out/$name.log" ||
        { cat "$out/$name.log" >&2; exit 1; }
    program="cargo run --release --quiet --no-default-features --manifest-path $out/$name/Cargo.toml --"
    found=$($program perplexity "$text" --separator "* * *" --append-eos --json)
    perplexity=$(echo "$found" | sed 's/.*"perplexity":\([0-9.]*\).*/\1/')
    bytes=$(wc -c < "$out/$name/weights.safetensors")
    printf '%-8s %10s bytes   perplexity %.7s   %s\n' "$name" "$bytes" "$perplexity" "$*"
}

# Four bits for everything: the smallest, and the worst.
measure small --quant q4_0
# The embedding in eight bits: the head is tied to it, so every token uses it twice.
measure mixed --quant q4_0 --quant-override model.embed_tokens=q8_0
# About as many bits, distributed by forge to minimize the quantization error.
measure spent --quant auto:5

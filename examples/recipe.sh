#!/bin/sh
# A recipe of one's own: which matrices get how many bits, judged by text that the model was not trained on.
#
#     sh examples/recipe.sh [checkpoint [text [directory]]]
#
# Formats cost bytes, and bytes are time; what they cost otherwise only the model can tell. The text is read by the program
# of each recipe, and how well it is foretold stands beside the size of the weights. FORGE names a forge that is already
# built.
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
    forge compile "$model" -o "$out/$name" --name "$name" --force --no-reference-logits "$@" 2> "$out/$name.log" ||
        { cat "$out/$name.log" >&2; exit 1; }
    program="cargo run --release --quiet --no-default-features --manifest-path $out/$name/Cargo.toml --"
    found=$($program perplexity "$text" --separator "* * *" --append-eos --json)
    perplexity=$(echo "$found" | sed 's/.*"perplexity":\([0-9.]*\).*/\1/')
    bytes=$(wc -c < "$out/$name/weights.safetensors")
    printf '%-8s %10s bytes   perplexity %.7s   %s\n' "$name" "$bytes" "$perplexity" "$*"
}

# Four bits for everything: the least, and the worst.
measure small --quant q4_0
# The table in eight: it is the head as well, so every word passes through it twice.
measure mixed --quant q4_0 --quant-override model.embed_tokens=q8_0
# As many bits as that, spent by forge where they change the numbers of the weights least.
measure spent --quant auto:5

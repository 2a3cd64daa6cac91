#!/bin/sh
# A checkpoint becomes a program, step by step: sh examples/first-steps.sh [model [directory]]
#
# The tests run this script unchanged. FORGE is the path of a built forge.
set -eu
cd "$(dirname "$0")/.."
forge() {
    if [ -n "${FORGE:-}" ]; then "$FORGE" "$@"; else cargo run --quiet --release -- "$@"; fi
}
model=${1:-tests/models/llama}
out=${2:-target/first-steps}

# What is in the checkpoint, what it computes, and what will run.
forge inspect "$model" --stage graph
forge inspect "$model" --stage plan --quant q8_0 | head -n 12

# Write the crate.
forge compile "$model" -o "$out" --quant q8_0 --force

# The crate needs only Rust. CARGO_TARGET_DIR, if set, is the build directory.
cd "$out"
cargo build --release --quiet
cargo run --release --quiet -- info
cargo run --release --quiet -- generate -p "Hello" -n 16 --temperature 0
cargo run --release --quiet -- verify

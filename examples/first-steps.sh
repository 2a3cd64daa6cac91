#!/bin/sh
# A checkpoint becomes a program, step by step: sh examples/first-steps.sh [model [directory]]
#
# The tests run this too, so it works as it stands. FORGE names a forge that is already built.
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

# It needs nothing but Rust. CARGO_TARGET_DIR, where it is set, says where it is built.
cd "$out"
cargo build --release --quiet
cargo run --release --quiet -- info
cargo run --release --quiet -- generate -p "Hello" -n 16 --temperature 0
cargo run --release --quiet -- verify

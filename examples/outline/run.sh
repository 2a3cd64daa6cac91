#!/bin/sh
# Structured output: compiles a model, builds its program, and requests an answer that follows a schema.
#
#     sh examples/outline/run.sh [checkpoint]
#
# FORGE is the path of a built forge.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
model=$(cd "${1:-$here/../fable}" && pwd)
if [ -n "${FORGE:-}" ]; then
    "$FORGE" compile "$model" -o "$here/fable" --name fable --force
else
    (cd "$here/../.." && cargo run --quiet --release -- compile "$model" -o "$here/fable" --name fable --force)
fi
cd "$here"
cargo build --release --quiet --manifest-path fable/Cargo.toml
cargo run --release --quiet -- "${CARGO_TARGET_DIR:-fable/target}/release/fable"

#!/bin/sh
# A model as a library: compiles it into a crate next to this program, and runs the program.
#
#     sh examples/embedding/run.sh [checkpoint]
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
cargo run --release --quiet

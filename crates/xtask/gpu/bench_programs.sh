#!/bin/sh
# Measures each program in this folder on an NVIDIA GPU. Arguments of `sh bench_programs.sh` are those of `bench`, by default
#   -p 512,4096 -n 128 -d 0,4096,32768 -r 3
# ONLY selects programs by a pattern of names. FOLDER holds the weights of the running program, best in memory (/dev/shm).
# With LLAMA_BENCH (the llama-bench program) and GGUF (a folder of files with the same names), llama-bench runs after each
# program. ROUNDS is the number of rounds. JSON results go to OUT, by default the current directory.
cd "$(dirname "$0")" || exit 2
[ $# != 0 ] || set -- -p 512,4096 -n 128 -d 0,4096,32768 -r 3
out=${OUT:-.}
status=0
for folder in ${ONLY:-*}/; do
    name=${folder%/}
    [ -f "$name/weights.header" ] || continue
    place=${FOLDER:-/dev/shm}/$name
    mkdir -p "$place" && cp "$name/weights.header" "$place" && ./programs fill "$place" || exit 1
    round=0
    while [ "$round" -lt "${ROUNDS:-1}" ]; do
        ./programs "$name" --model-dir "$place" --device cuda bench --json "$@" >"$out/$name.$round.forge.json" || status=1
        if [ -n "$LLAMA_BENCH" ] && [ -f "$GGUF/$name.gguf" ]; then
            "$LLAMA_BENCH" -m "$GGUF/$name.gguf" -ngl 99 -fa 1 -o jsonl "$@" >"$out/$name.$round.llama.jsonl" 2>/dev/null || status=1
        fi
        round=$((round + 1))
    done
    rm -r "$place"
done
exit $status

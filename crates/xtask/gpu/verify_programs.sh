#!/bin/sh
# Verifies every program in this folder on an NVIDIA GPU: its logits against golden.json, and its greedy output against
# the CPU's. Runs the kernel tests first. Arguments are a command that runs each program, without the kernel tests:
# `sh verify_programs.sh compute-sanitizer --tool memcheck --error-exitcode 9`. JOBS is the number of programs at once (8).
# Exit code: 0 if everything passes.
cd "$(dirname "$0")" || exit 2
if [ $# = 0 ] && [ -d kernels ]; then
    sh kernels/test_kernels.sh || exit 1
    [ -f programs ] || exit 0
fi
results=$(mktemp -d) || exit 2
trap 'rm -rf "$results"' EXIT

verify() {
    name=$1
    shift
    if ! report=$("$@" ./programs "$name" --model-dir "$name" --device cuda verify 2>&1); then
        echo "WRONG $name: verify"
        echo "$report"
        return
    fi
    worst=$(echo "$report" | awk '$NF == "matches" || $NF == "differs" { if ($(NF - 2) > most) most = $(NF - 2) } END { print most }')
    text="--model-dir $name generate --token-ids 1,2,3,4,5 --temperature 0 -n 24"
    # Lines of compute-sanitizer are not output of the program.
    on_gpu=$("$@" ./programs "$name" --device cuda $text 2>/dev/null | sed '/^=========/d')
    on_cpu=$(./programs "$name" --device cpu --f32-activations $text 2>/dev/null)
    if [ "$on_gpu" = "$on_cpu" ]; then same="the CPU's text"; else same="ANOTHER TEXT than the CPU's"; fi
    echo "right $name: $worst, $same"
}

started=0
for folder in */; do
    name=${folder%/}
    [ -f "$name/weights.safetensors" ] || continue
    verify "$name" "$@" > "$results/$name" &
    started=$((started + 1))
    [ $((started % ${JOBS:-8})) != 0 ] || wait
done
wait
cat "$results"/*
right=$(cat "$results"/* | grep -c '^right ')
echo "$right right, $((started - right)) wrong"
[ "$right" = "$started" ] && [ "$started" != 0 ]

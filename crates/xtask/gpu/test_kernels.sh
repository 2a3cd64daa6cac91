#!/bin/sh
# Compares kernels on an NVIDIA GPU with f64 arithmetic. The tests in this folder dispatch kernels of all kinds, at sizes
# that fill no tile, from the PTX of each compute capability: `sh test_kernels.sh`, or some capabilities: `sh test_kernels.sh 90`.
# All run at once, because the driver's PTX compiler dominates the time. Output is in NAME.CAPABILITY.log. Exit code: 0
# if every test passes.
cd "$(dirname "$0")" || exit 2
tests=
for file in *; do
    [ -f "$file" ] && [ -x "$file" ] && tests="$tests $file"
done
for capability in ${*:-90 80 70}; do
    for test in $tests; do
        FORGE_GPU_PTX=ptx FORGE_GPU=$capability "./$test" > "$test.$capability.log" 2>&1 &
    done
done
wait
status=0
for capability in ${*:-90 80 70}; do
    for test in $tests; do
        log=$test.$capability.log
        grep -q '^test result: ok' "$log" || status=1
        echo "$capability $test: $(grep '^test result' "$log" || tail -n 3 "$log")"
        sed -n '/^test .* FAILED$/p;/ panicked at /,/^note/p' "$log"
    done
done
exit $status

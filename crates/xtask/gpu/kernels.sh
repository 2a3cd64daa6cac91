#!/bin/sh
# Does an NVIDIA GPU compute what plain arithmetic in f64 gives? The tests in this folder dispatch kernels of all kinds there, at sizes that
# fit nothing, from the PTX of each compute capability. `sh kernels.sh`, or only some: `sh kernels.sh 90`. All are run at once, since it is the
# driver's translation that takes time; what they print is in NAME.CAPABILITY.log. Exit code: whether every test passed.
cd "$(dirname "$0")" || exit 2
tests=
for file in *; do
    [ -f "$file" ] && [ -x "$file" ] && tests="$tests $file"
done
for capability in ${*:-90 80 70}; do
    for test in $tests; do
        FORGE_CARD_TEXTS=texts FORGE_CARD=$capability "./$test" > "$test.$capability.log" 2>&1 &
    done
done
wait
trouble=0
for capability in ${*:-90 80 70}; do
    for test in $tests; do
        said=$test.$capability.log
        grep -q '^test result: ok' "$said" || trouble=1
        echo "$capability $test: $(grep '^test result' "$said" || tail -n 3 "$said")"
        sed -n '/^test .* FAILED$/p;/ panicked at /,/^note/p' "$said"
    done
done
exit $trouble

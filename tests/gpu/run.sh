#!/bin/sh
# Every GPU test: values and gradients of attention and of whole models, then a lighter selection under compute-sanitizer; a tool counts as one test.
if ! command -v "$NVCC" >/dev/null 2>&1; then
    echo "  skipped: no nvcc"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1 && ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "  skipped: no GPU"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
programs=$(for f in tests/gpu/*.c; do name=$(basename "$f" .c); case $name in bench_*) ;; *) echo "$name" ;; esac; done)
mkdir -p build/tests/gpu
log=build/tests/gpu/log
passed=0; failed=0; skipped=0
for name in $programs; do
    $MAKE -s --no-print-directory "build/tests/gpu/$name" || { failed=$((failed + 1)); continue; }
    "build/tests/gpu/$name" >$log 2>&1
    sed '$d' $log
    line=$(tail -n 1 $log)
    p=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p'); f=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
    s=$(echo "$line" | sed -n 's/.* \([0-9]*\) skipped.*/\1/p')
    passed=$((passed + ${p:-0})); failed=$((failed + ${f:-1})); skipped=$((skipped + ${s:-0}))
done
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$(command -v "$NVCC")")/compute-sanitizer")
checked() {                                             # tool, program, arguments
    tool=$1; name=$2; shift 2
    if [ "$skipped" -gt 0 ] || ! command -v "$sanitizer" >/dev/null 2>&1; then
        echo "  skipped: $tool of $name"; skipped=$((skipped + 1)); return
    fi
    $MAKE -s --no-print-directory "build/tests/gpu/$name" >/dev/null
    calls=; [ "$name" = ranks ] && calls="--report-api-errors no"      # NCCL asks for kernels that it has not got, and goes on
    if "$sanitizer" --tool "$tool" $calls --error-exitcode 9 "build/tests/gpu/$name" "$@" >$log 2>&1; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED $tool of $name"; grep '=========' $log | head -n 20; fi
}
checked memcheck attention --light
checked initcheck attention --light
checked racecheck attention_every_lane --light all_of_one_kind
for name in $programs; do
    case $name in attention) ;; *) checked memcheck "$name" --light ;; esac
done
sh tests/gpu/ranks.sh >$log 2>&1                        # two GPUs and NCCL, or skipped
sed '$d' $log
line=$(tail -n 1 $log)
passed=$((passed + $(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p'))); failed=$((failed + $(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')))
case $line in *skipped) skipped=$((skipped + 1)) ;; esac
printf '%s passed, %s failed' "$passed" "$failed"
[ "$skipped" -gt 0 ] && printf ', %s skipped' "$skipped"
echo
[ "$failed" -eq 0 ]

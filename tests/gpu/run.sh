#!/bin/sh
# Every GPU test: values and gradients, then a lighter selection under compute-sanitizer; a tool counts as one test.
if ! command -v "$NVCC" >/dev/null 2>&1; then
    echo "  skipped: no nvcc"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1 && ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "  skipped: no GPU"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
$MAKE -s --no-print-directory build/tests/gpu/attention || { echo "0 passed, 1 failed"; exit 1; }
log=build/tests/gpu/log
build/tests/gpu/attention >$log 2>&1
sed '$d' $log
line=$(tail -n 1 $log)
passed=$(echo "$line" | sed -n 's/^\([0-9]*\) passed.*/\1/p'); failed=$(echo "$line" | sed -n 's/.* \([0-9]*\) failed.*/\1/p')
skipped=$(echo "$line" | sed -n 's/.* \([0-9]*\) skipped.*/\1/p')
passed=${passed:-0}; failed=${failed:-1}; skipped=${skipped:-0}
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$(command -v "$NVCC")")/compute-sanitizer")
for tool in memcheck initcheck racecheck; do
    if [ "$skipped" -gt 0 ] || ! command -v "$sanitizer" >/dev/null 2>&1; then
        echo "  skipped: $tool"; skipped=$((skipped + 1)); continue
    fi
    case $tool in racecheck) what="--light all_of_one_kind"; build=attention_every_lane ;; *) what="--light"; build=attention ;; esac
    $MAKE --no-print-directory build/tests/gpu/$build >/dev/null
    if "$sanitizer" --tool $tool --error-exitcode 9 build/tests/gpu/$build $what >$log 2>&1; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED $tool"; grep '=========' $log | head -n 20; fi
done
printf '%s passed, %s failed' "$passed" "$failed"
[ "$skipped" -gt 0 ] && printf ', %s skipped' "$skipped"
echo
[ "$failed" -eq 0 ]

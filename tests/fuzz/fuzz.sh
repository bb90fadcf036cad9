#!/bin/sh
# fuzz.sh: each target for TIME seconds, with libFuzzer where clang has it, else with the
# stand-alone mutator.  Inputs that broke something are left in build/fuzz.
TIME=${TIME:-60}
out=build/fuzz; mkdir -p $out/seeds build/tests
targets="safetensors model config map llmc checkpoint approximator tokens tokenizer text"
[ -z "$1" ] || targets=$*
flags="-std=c99 -g -O1 -I. -Wno-unused-function"
CC=${CC:-cc}
$CC $flags -DSTANDALONE -o $out/standalone tests/fuzz/fuzz.c -lm || exit 1
$out/standalone --seeds $out/seeds || exit 1
fuzzer=
printf '#include <stdint.h>\n#include <stddef.h>\nint LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return d && n ? 0 : 0; }\n' >$out/try.c
if clang -fsanitize=fuzzer $out/try.c -o $out/try >/dev/null 2>&1; then fuzzer=1; else echo "clang with libFuzzer is not here: the stand-alone mutator runs instead"; fi
[ -z "$fuzzer" ] || clang $flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $out/fuzz tests/fuzz/fuzz.c -lm || exit 1
passed=0 failed=0
for t in $targets; do
    TARGET=$t; export TARGET
    if [ -n "$fuzzer" ]; then
        mkdir -p $out/corpus_$t
        longest=8192; [ $t != text ] || longest=1024              # a tokenizer is trained on each text
        $out/fuzz -max_total_time=$TIME -timeout=20 -rss_limit_mb=1024 -max_len=$longest -dict=tests/fuzz/words.dict -artifact_prefix=$out/broke_${t}_ \
            $out/corpus_$t $out/seeds >$out/log_$t 2>&1
    else
        $out/standalone --time $TIME $out/seeds >$out/log_$t 2>&1
    fi
    if [ $? = 0 ]; then passed=$((passed + 1)); echo "ok     $t: $(grep -E 'DONE|inputs' $out/log_$t | tail -n 1)"
    else failed=$((failed + 1)); echo "FAILED $t"; tail -n 25 $out/log_$t; fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

#!/bin/sh
# sanitize.sh: every test under ASan and UBSan (with clang's integer and float-cast checks),
# the threads' tests under TSan, all under MSan, and the quick ones under valgrind.
# Ends with `N passed, N failed`; a program is one.  KINDS="asan msan" and SUITES="io model"
# pick some.
out=build/sanitize; mkdir -p $out build/tests
data=../shared/data
passed=0 failed=0 skipped=0
suites=${SUITES:-$(ls tests/*.c | sed 's#tests/##; s#\.c$##')}
skip() { skipped=$((skipped + 1)); echo "  skipped: $1"; }

run() {                                       # run TITLE PROGRAM SUITE WRAPPER...
    title=$1 program=$2 suite=$3; shift 3
    case $suite in
    golden) set -- "$@" $program tests/golden/*.safetensors ;;
    tokens) [ -f $data/gpt2-vocab.bpe ] || { skip "$title: no vocabulary"; return; }
            set -- "$@" $program --tokenizer $data/gpt2-vocab.bpe $data/gpt2-token-vectors.jsonl ;;
    safetensors) file=$data/safetensors-cases.jsonl; [ -f tests/safetensors-cases.jsonl ] && file=tests/safetensors-cases.jsonl
            [ -f $file ] || { skip "$title: no cases"; return; }
            set -- "$@" $program $file ;;
    *)      set -- "$@" $program ;;
    esac
    if "$@" >$out/log.$$ 2>&1 && ! grep -qE 'runtime error|ERROR: |WARNING: ' $out/log.$$; then passed=$((passed + 1)); echo "ok     $title"
    else failed=$((failed + 1)); echo "FAILED $title"; grep -E 'runtime error|ERROR|WARNING|FAILED| in gptsi?_|#[0-4] ' $out/log.$$ | head -n 20; fi
}
works() { printf 'int main(void) { return 0; }\n' >$out/try.$$.c; "$@" -o $out/try.$$ $out/try.$$.c >/dev/null 2>&1 && $out/try.$$; }
build() { to=$1 suite=$2; shift 2; "$@" -std=c99 -gdwarf-4 -I. -Wno-unused-function -o $to tests/$suite.c -lm -pthread; }

cc=${CC:-cc} extra=
if command -v clang >/dev/null 2>&1; then
    cc=clang extra="-fsanitize=float-cast-overflow,float-divide-by-zero,integer -fsanitize-ignorelist=tests/sanitize.ignore"
fi
kinds=${KINDS:-"asan tsan msan valgrind"} level=${LEVEL:--O1}
for kind in $kinds; do
    case $kind in
    asan) flags="$level -fsanitize=address,undefined"
          if works $cc $flags $extra; then flags="$flags $extra"; fi
          list=$suites ;;                             # goes on after an error; run() looks for the words
    tsan) flags="$level -fsanitize=thread" list="threads" ;;
    msan) flags="$level -fsanitize=memory -fno-omit-frame-pointer" list=$suites ;;
    valgrind) if ! command -v valgrind >/dev/null 2>&1; then skip "valgrind is not here"; continue; fi
          flags="$level" list="static layers threads" ;;
    esac
    if [ $kind != valgrind ] && ! works $cc $flags; then skip "$cc has no $kind"; continue; fi
    for suite in $list; do
        [ -f tests/$suite.c ] || continue
        for real in float double; do
            [ $real = float ] && [ $suite = gradients ] && continue
            if [ $real = double ]; then case $suite in tokenizer|tokens|safetensors|kill|hostile|oom|threads) continue ;; esac; fi
            [ $kind != asan ] && [ $real = double ] && [ $suite != gradients ] && continue
            p=$out/${suite}_${kind}_$real
            build $p $suite $cc $flags -DGPTS_REAL=$real || { failed=$((failed + 1)); echo "FAILED $kind $suite does not build"; continue; }
            case $kind in
            valgrind) run "E46 $kind $suite $real" $p $suite valgrind -q --error-exitcode=9 --leak-check=full ;;
            *) run "E45 E46 $kind $suite $real" $p $suite env ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 ;;
            esac
        done
    done
done
printf '%d passed, %d failed' $passed $failed
[ $skipped = 0 ] || printf ', %d skipped' $skipped
echo
rm -f $out/log.$$ $out/try.$$ $out/try.$$.c
[ $failed = 0 ]

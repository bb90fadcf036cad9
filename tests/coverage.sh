#!/bin/sh
# coverage.sh: which lines of the header the tests run (gcc and gcov, without optimisation,
# float and double).  Lists what no test reaches; tests/COVERAGE.md has the reasons.
# Ends with `N passed, N failed`: below 95 % is a failure.  SUITES="io model" runs only those,
# `again` none: it adds up what is there.
CC=${CC:-gcc}
out=build/coverage; mkdir -p $out build/tests
data=../shared/data
root=$PWD
if ! command -v gcov >/dev/null 2>&1; then echo "gcov is not here"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
LOCPATH=$PWD/build/locale; export LOCPATH
if [ ! -d build/locale ] && command -v localedef >/dev/null 2>&1; then mkdir -p build/locale; localedef -i de_DE -f UTF-8 build/locale/de_DE.UTF-8 >/dev/null 2>&1; fi
suites=${SUITES:-$(ls tests/*.c | sed 's#tests/##; s#\.c$##')}
[ "$1" = again ] || for suite in $suites; do
    file=tests/$suite.c
    for real in float double; do
        dir=$out/${suite}_$real
        rm -rf $dir; mkdir -p $dir
        $CC -std=c99 -O0 --coverage -w -I. -DGPTS_REAL=$real -o $dir/test $file -lm -pthread || { echo "$suite does not build"; exit 1; }
        case $suite in
        golden) $dir/test tests/golden/*.safetensors ;;
        safetensors) $dir/test tests/safetensors-cases.jsonl ;;
        tokens) for v in gpt2-vocab.bpe simplestories-tokenizer.json; do
                    [ -f $data/$v ] && $dir/test --tokenizer $data/$v $data/$(case $v in gpt2*) echo gpt2;; *) echo simplestories;; esac)-token-vectors.jsonl
                done ;;
        *) $dir/test ;;
        esac >$dir/log 2>&1 || echo "  $suite $real: $(tail -n 1 $dir/log)"
        (cd $dir && ln -sf $root/gptstatic.h . && ln -sfn $root/tests tests && gcov -o . ./*.gcno >/dev/null 2>&1; find . -type f -name '*.gcov' ! -name 'gptstatic.h.gcov' -exec rm -f {} +)
    done
done
# a line counts when any program can run it, and is covered when any did
cat $out/*/gptstatic.h.gcov | awk -F: '
    $1 ~ /^-+$/ && $2 ~ /^ *[0-9]+$/ { next }
    { count = $1; gsub(/[ *]/, "", count); line = $2 + 0 }
    count == "-" || !line { next }
    count ~ /^#+$/ || count ~ /^=+$/ { if (!(line in seen)) seen[line] = 0; next }
    count ~ /^[0-9]/ { seen[line] = 1 }
    END { for (line in seen) print line, seen[line] }' | sort -n >$out/lines
awk '$2 == 0 { print $1 }' $out/lines >$out/missed
awk 'NR == FNR { missed[$1] = 1; next } FNR in missed { printf "%6d  %s\n", FNR, $0 }' $out/missed gptstatic.h >$out/uncovered.txt
all=$(wc -l <$out/lines) missed=$(wc -l <$out/missed)
percent=$(awk -v a=$all -v m=$missed 'BEGIN { printf "%.2f", 100 * (a - m) / a }')
cat $out/uncovered.txt
echo "$percent % of $all lines are run; $missed are not (build/coverage/uncovered.txt)"
if awk -v p=$percent 'BEGIN { exit !(p >= 95) }'; then echo "1 passed, 0 failed"; else echo "0 passed, 1 failed"; exit 1; fi

#!/bin/sh
# audit.sh [gradients|mutants [NAME]|equations]: the mathematics, checked from three sides.
#   gradients   worst error of every kind of parameter against differences, in double
#   mutants     each line of tests/mutants.txt plants one error in a copy of the header; the
#               named test must turn red (E64).  A line that changes nothing fails too.
#   equations   every number in the header, like (P1), is named in a test, and the reverse
# Ends with `N passed, N failed`.
part=${1:-all}
CC=${CC:-cc}
out=build/audit; mkdir -p $out build/tests
passed=0 failed=0
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAILED $1"; }

if [ $part = all ] || [ $part = gradients ]; then
    if $CC -std=c99 -O2 -I. -DGPTS_REAL=double -o $out/gradients tests/gradients.c -lm && $out/gradients --table; then pass; else fail gradients; fi
fi

if [ $part = all ] || [ $part = mutants ]; then
    # name | test program | part of a test's name | sed script
    rm -f $out/*_double $out/*_float
    grep -vE '^ *(#|$)' tests/mutants.txt | grep -E "^${2:-.}" >$out/list
    while IFS='|' read -r name program test script; do
        name=$(echo $name) program=$(echo $program) test=$(echo $test)
        dir=$out/$name; mkdir -p $dir
        sed -e "${script# }" gptstatic.h >$dir/gptstatic.h
        real=float; suite=$program
        case $program in *_double) real=double suite=${program%_double} ;; esac
        if cmp -s gptstatic.h $dir/gptstatic.h; then fail "$name: the line it changes is gone"; continue; fi
        if [ ! -f $out/$program ]; then $CC -std=c99 -O0 -w -I. -DGPTS_REAL=$real -o $out/$program tests/$suite.c -lm 2>$dir/log || { fail "$program does not compile"; continue; }; fi
        changed=$(diff gptstatic.h $dir/gptstatic.h | grep -c '^>')
        if ! $CC -std=c99 -O0 -w -I$dir -Itests -DGPTS_REAL=$real -o $dir/test tests/$suite.c -lm 2>$dir/log; then fail "$name: does not compile"; head -n 3 $dir/log; continue; fi
        case $suite in golden) argument=tests/golden/$test.safetensors ;; *) argument=$test ;; esac
        if ! $out/$program $argument >$dir/log 2>&1 || grep -q '^0 passed' $dir/log; then fail "$program $test is not green without the error"; continue; fi
        timeout 120 $dir/test $argument >$dir/log 2>&1
        by=$(grep -E "^FAILED .*$test" $dir/log | head -n 1 | awk '{ print $2 }')
        if [ -n "$by" ]; then pass; printf '  %-36s %d line  caught by %s: %s\n' "$name" "$changed" "$program" "$by"
        else fail "$name survives $program $test"; tail -n 2 $dir/log; fi
        rm -rf $dir
    done <$out/list
fi

if [ $part = all ] || [ $part = equations ]; then
    numbers='\([ENLGDRAXOCSPFMQ][0-9][0-9]?\)'
    grep -oE "$numbers" gptstatic.h | grep -vE 'F16|F32|F64' | sort -u >$out/header
    : >$out/tests
    for f in tests/*.c tests/gpu/*; do
        if [ -f "$f" ]; then grep -ohE "$numbers" "$f" | grep -vE 'F16|F32|F64' | sort -u | sed "s#\$# ${f#tests/}#" >>$out/tests; fi
    done
    cut -d' ' -f1 $out/tests | sort -u >$out/named
    while read -r n; do
        where=$(awk -v n="$n" '$1 == n { printf "%s ", $2 }' $out/tests)
        line=$(grep -nF "$n" gptstatic.h | tail -n +2 | head -n 1 | cut -d: -f1)
        [ -n "$line" ] || line=$(grep -nF "$n" gptstatic.h | head -n 1 | cut -d: -f1)
        if [ -n "$where" ]; then pass; printf '  %-6s gptstatic.h:%-6s %s\n' "$n" "$line" "$where"
        else fail "$n at gptstatic.h:$line is named in no test"; fi
    done <$out/header
    # a card names its test: tests/layers.c: norm_N1_N2
    grep -ohE 'tests/[a-z_]+\.c:? [A-Za-z0-9_]+' gptstatic.h | tr -d : | sort -u >$out/cards
    while read -r file test; do
        if [ ! -f "$file" ]; then fail "a card names $file, which is not there"
        elif grep -q "$test" "$file"; then pass
        else fail "a card names $test in $file, which is not there"; fi
    done <$out/cards
    for n in $(comm -13 $out/header $out/named); do fail "$n is named in $(awk -v n="$n" '$1 == n { printf "%s ", $2 }' $out/tests), but not in the header"; done
fi

echo "$passed passed, $failed failed"
[ $failed = 0 ]

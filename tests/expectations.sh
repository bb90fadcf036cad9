#!/bin/sh
# expectations.sh: each of E1 to E73 is the number of a test's name, of a check's title in a
# script here, or stands in EXPECTATIONS.md with the reason why it is neither; and every test
# that EXPECTATIONS.md names is there.  Ends with `N passed, N failed`.
list=tests/EXPECTATIONS.md
passed=0 failed=0 reasons=0
fail() { failed=$((failed + 1)); echo "FAILED $1"; }
names=$(cat tests/*.c tests/gpu/*.c 2>/dev/null | grep -oE '\bT\([A-Za-z0-9_]+\)' | sed 's/^T(//; s/)$//' | grep -v '^embedding_E1_E2$')
titles=$(cat $(ls tests/*.sh tests/compile/*.sh tests/gpu/*.sh 2>/dev/null | grep -v expectations) | grep -v '^ *#' | grep -oE '"[^"]*\bE[0-9]+\b[^"]*"')
n=1
while [ $n -le 73 ]; do
    two=$(printf '%02d' $n)
    row=$(grep -E "^\|[^|]*\bE$n\b" $list | head -n 1)
    if [ -z "$row" ]; then fail "E$n is not in $list"
    elif printf '%s\n' "$names" | grep -qE "(^|_)E($n|$two)(_|\$)"; then passed=$((passed + 1))
    elif printf '%s\n' "$titles" | grep -qE "\bE$n\b"; then passed=$((passed + 1))
    elif printf '%s\n' "$row" | grep -qE '\| (not |by ).*\|$'; then passed=$((passed + 1)) reasons=$((reasons + 1))
    else fail "E$n is no test's number, no check's title, and has no reason in $list"; fi
    n=$((n + 1))
done
# `E06_...`, `file.c`, `file.sh`: what the list names must be there
for word in $(grep -oE '`[A-Za-z0-9_./]+`' $list | tr -d '`' | sort -u); do
    case $word in
    *.c | *.h | *.sh | *.md | */) [ -e tests/$word ] || [ -e tests/compile/$word ] || [ -e $word ] || fail "$list names $word, which is not there" ;;
    *_*) printf '%s\n' "$names" | grep -q "$word" || grep -q "$word" tests/mutants.txt gptstatic.h || fail "$list names $word, which is not there" ;;
    esac
done
echo "$reasons of them by reason"
echo "$passed passed, $failed failed"
[ $failed = 0 ]

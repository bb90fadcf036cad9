#!/bin/sh
# run.sh PROGRAM...: runs the tests' programs and sums up; ends with `N passed, N failed`.
# Programs that take files (golden, tokens, safetensors) get every file there is.
passed=0 failed=0 skipped=0
data=../shared/data
log=build/tests/log; mkdir -p build/tests
OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY      # tiny loops on a busy machine: sleep, do not spin

# a locale with decimal commas for tests/threads.c, where one can be made
if [ ! -d build/locale ] && command -v localedef >/dev/null 2>&1; then
    mkdir -p build/locale; localedef -i de_DE -f UTF-8 build/locale/de_DE.UTF-8 >/dev/null 2>&1
fi
if [ -d build/locale/de_DE.UTF-8 ]; then LOCPATH=$PWD/build/locale; export LOCPATH; fi

one() {                                     # one TITLE COMMAND...: runs it, adds its closing line
    title=$1; shift
    began=$(date +%s); "$@" >"$log" 2>&1; status=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    set -- $(printf '%s' "$line" | tr -c '0-9\n' ' ')
    if [ -z "$line" ]; then
        failed=$((failed + 1)); echo "FAILED $title: no closing line, status $status"; tail -n 20 "$log"; return
    fi
    passed=$((passed + $1)); failed=$((failed + $2)); skipped=$((skipped + ${3:-0}))
    printf "%-28s %-24s %3d s\n" "$title" "$line" $(($(date +%s) - began))
    if [ "$2" != 0 ]; then cat "$log"
    elif [ "$status" != 0 ]; then failed=$((failed + 1)); echo "FAILED $title: status $status"; cat "$log"
    else grep -E 'skipped:' "$log" | sort | uniq -c | sed 's/^ *1 /  /' | head -n 8
    fi
}
missing() { skipped=$((skipped + 1)); echo "  skipped: $1"; }

for program in "$@"; do
    name=${program##*/}
    case $name in
    golden|golden_double)
        one "$name" "$program" tests/golden/*.safetensors ;;
    tokens)
        for vectors in "gpt2 $data/gpt2-vocab.bpe $data/gpt2-token-vectors.jsonl" \
                       "simplestories $data/simplestories-tokenizer.json $data/simplestories-token-vectors.jsonl" \
                       "simplestories-4096 $data/simplestories-4096.json $data/simplestories-token-vectors.jsonl"; do
            set -- $vectors
            if [ -f "$2" ] && [ -f "$3" ]; then one "$name $1" "$program" --tokenizer "$2" "$3"
            else missing "tokens $1: $2 is not there"; fi
        done ;;
    safetensors)
        found=
        for file in tests/safetensors-cases.jsonl $data/safetensors-cases.jsonl; do
            if [ -z "$found" ] && [ -f "$file" ]; then one "$name" "$program" "$file"; found=1; fi
        done
        [ -n "$found" ] || missing "safetensors: no cases" ;;
    *)  one "$name" "$program" ;;
    esac
done
if [ -f tests/examples.sh ]; then one "examples" sh tests/examples.sh; fi
if [ -f tests/compile/matrix.sh ]; then one "compile (quick)" sh tests/compile/matrix.sh quick; fi

printf '%d passed, %d failed' "$passed" "$failed"
[ "$skipped" = 0 ] || printf ', %d skipped' "$skipped"
echo
[ "$failed" = 0 ]

#!/bin/sh
# sanitize.sh: every test under ASan and UBSan (with clang's integer and float-cast checks),
# under MSan and under valgrind, and those with threads under TSan.  Ends with `N passed,
# N failed`; a program is one.  KINDS="asan msan" and SUITES="io model" pick some.  Sanitizers
# go with -O0, which compiles ten times as fast as -O1 and removes no bug; LEVEL=-O1 changes it.
#
# What counts is what a tool reports, from whatever process: each writes its findings into
# files of its own, so that a child's are seen although its parent hides its output and its
# exit status.  A tool's remarks about itself ("failed to allocate", unknown debug information)
# are shown and count for nothing.  First every tool has to find planted bugs.
out=build/sanitize; mkdir -p $out build/tests
data=../shared/data
passed=0 failed=0 skipped=0
LOCPATH=$PWD/build/locale; export LOCPATH            # one with decimal commas, for tests/threads.c
if [ ! -d $LOCPATH ] && command -v localedef >/dev/null 2>&1; then mkdir -p $LOCPATH; localedef -i de_DE -f UTF-8 $LOCPATH/de_DE.UTF-8 >/dev/null 2>&1; fi
suites=${SUITES:-$(ls tests/*.c | sed 's#tests/##; s#\.c$##')}
skip() { skipped=$((skipped + 1)); echo "  skipped: $1"; }
pass() { passed=$((passed + 1)); echo "ok     $1"; }
fail() { failed=$((failed + 1)); echo "FAILED $1"; }

# A sanitizer's findings say `Sanitizer: what` (a failed allocation has no colon) or `runtime
# error: what`; valgrind puts its errors between the marks that it is given.
finding='runtime error: |Sanitizer: |DEADLYSIGNAL|FINDING'

cat >$out/valgrind.supp <<'END'
{
   the environment: libc keeps marked pointers, and pointers behind a name
   Memcheck:Leak
   match-leak-kinds: possible
   fun:malloc
   ...
   fun:__add_to_environ
}
END
watched() {                                   # watched KIND COMMAND...: 0 if it passes and no tool found anything
    tool=$1; shift
    rm -rf $out/log; mkdir -p $out/log
    logs=$PWD/$out/log
    common=log_path=$logs/found:allocator_may_return_null=1
    case $tool in
    valgrind) set -- valgrind -q --error-exitcode=9 --leak-check=full --trace-children=yes --suppressions=$out/valgrind.supp --error-markers=FINDING,END --log-file=$logs/found.%p "$@" ;;
    *)        set -- env ASAN_OPTIONS=$common:detect_leaks=1 MSAN_OPTIONS=$common TSAN_OPTIONS=$common UBSAN_OPTIONS=print_stacktrace=1 "$@" ;;
    esac
    "$@" >$logs/output 2>&1
    status=$?
    found=$(cat $logs/* | grep -cE "$finding")
    [ $status = 0 ] && [ "$found" = 0 ]
}
run() {                                       # run TITLE KIND PROGRAM SUITE
    title=$1 kind_=$2 program=$3
    set -- $program
    case $suite in
    golden) set -- $program tests/golden/*.safetensors ;;
    tokens) [ -f $data/gpt2-vocab.bpe ] || { skip "$title: no vocabulary"; return; }
            set -- $program --tokenizer $data/gpt2-vocab.bpe $data/gpt2-token-vectors.jsonl ;;
    safetensors) set -- $program tests/safetensors-cases.jsonl ;;
    esac
    if watched $kind_ "$@"; then pass "$title: $(grep -E '^[0-9]+ passed' $out/log/output | tail -n 1)"
    else
        fail "$title: status $status, $found findings"
        cat $out/log/* | grep -E "$finding|FAILED|^ +[^ ]+\.c:[0-9]+: | in gptsi?_|Invalid|uninitialised|lost in| (at|by) 0x|#[0-4] " | head -n 30
    fi
    cat $out/log/found.* 2>/dev/null | grep -E 'WARNING|unhandled|DWARF|failed to allocate' | grep -vE "$finding" | sort -u | head -n 3 | sed 's/^/  the tool says: /'
}
works() { printf 'int main(void) { return 0; }\n' >$out/try.$$.c; "$@" -o $out/try.$$ $out/try.$$.c >/dev/null 2>&1 && $out/try.$$; }
build() { to=$1 file=$2; shift 2; "$@" -std=c99 -gdwarf-4 -I. -Wno-unused-function -o $to $file -lm -pthread; }

# One bug each, as NAME:KINDS that must find it; in the program itself and, hidden, in a child.
planted="overflow:asan,valgrind leak:asan,valgrind shift:asan cast:integer wrap:integer null:asan uninitialised:msan,valgrind race:tsan"
cat >$out/planted.c <<'END'
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int shared_cell, sink;
static void *add(void *p) { int i; (void)p; for (i = 0; i < 1000; i++) shared_cell++; return NULL; }
static int is(const char *bug, const char *name) { return !strcmp(bug, name); }
static void plant(const char *bug)
{
    int *volatile p = (int *)malloc(4 * sizeof(int));
    volatile int n = 40;
    volatile double x = 1e20;
    volatile uint32_t u = 3;
    pthread_t t;
    if (is(bug, "overflow")) sink = p[n / 10];
    if (is(bug, "uninitialised") && p[2]) sink = 1;
    if (is(bug, "shift")) sink = 1 << n;
    if (is(bug, "cast")) sink = (int)x;
    if (is(bug, "wrap")) u = u - 4;
    if (is(bug, "null")) { int *volatile q = NULL; sink = (q + n / 10) != NULL; }
    if (is(bug, "race")) { pthread_create(&t, NULL, add, NULL); add(NULL); pthread_join(t, NULL); }
    if (!is(bug, "leak")) free(p);
    p = NULL;
}
int main(int argc, char **argv)
{
    if (argc > 2) {
        pid_t child = fork();
        if (!child) { int null = open("/dev/null", O_WRONLY); dup2(null, 1); dup2(null, 2); plant(argv[1]); exit(0); }
        waitpid(child, NULL, 0);
    } else plant(argv[1]);
    puts("1 passed, 0 failed");
    return 0;
}
END
prove() {                                     # prove KIND: it finds the bugs, and nothing where there is none
    build $out/planted $out/planted.c $cc $flags || { fail "$1: the planted bugs do not build"; return; }
    kinds_here=$1; case $flags in *integer*) kinds_here="$1 integer" ;; esac
    watched $1 $out/planted none || fail "$1 finds something where nothing is"
    for bug in $planted; do
        for k in $kinds_here; do
            case ,${bug#*:}, in *,$k,*) ;; *) continue ;; esac
            for child in "" child; do
                if watched $1 $out/planted ${bug%:*} $child; then fail "$1 misses a planted bug: ${bug%:*} ${child:+in a child}"
                else pass "$1 finds a planted bug: ${bug%:*} ${child:+in a child}"; fi
            done
        done
    done
}

cc=${CC:-cc} extra=
if command -v clang >/dev/null 2>&1; then
    cc=clang extra="-fsanitize=float-cast-overflow,float-divide-by-zero,integer -fsanitize-ignorelist=tests/sanitize.ignore"
fi
kinds=${KINDS:-"asan tsan msan valgrind"}
for kind in $kinds; do
    list=$suites level=${LEVEL:--O0}
    case $kind in
    asan) flags="$level -fsanitize=address,undefined"
          if works $cc $flags $extra; then flags="$flags $extra"; fi ;;    # goes on after an error of UBSan
    tsan) flags="$level -fsanitize=thread"
          list=$(for suite in $suites; do case $suite in threads|ranks|rendezvous) echo $suite ;; esac; done) ;;
    msan) flags="$level -fsanitize=memory -fno-omit-frame-pointer" ;;
    valgrind) if ! command -v valgrind >/dev/null 2>&1; then skip "valgrind is not here"; continue; fi
          flags=${LEVEL:--O1} ;;
    esac
    if ! works $cc $flags; then skip "$cc has no $kind"; continue; fi
    prove $kind
    for suite in $list; do
        [ -f tests/$suite.c ] || continue
        for real in float double; do
            [ $real = float ] && [ $suite = gradients ] && continue
            if [ $real = double ]; then case $suite in tokenizer|tokens|safetensors|kill|hostile|oom|threads|rendezvous) continue ;; esac; fi
            [ $kind != asan ] && [ $real = double ] && [ $suite != gradients ] && continue
            p=$out/${suite}_${kind}_$real
            build $p tests/$suite.c $cc $flags -DGPTS_REAL=$real || { fail "$kind $suite does not build"; continue; }
            run "E45 E46 $kind $suite $real" $kind $p
        done
    done
done
printf '%d passed, %d failed' $passed $failed
[ $skipped = 0 ] || printf ', %d skipped' $skipped
echo
rm -rf $out/log $out/try.$$ $out/try.$$.c
[ $failed = 0 ]

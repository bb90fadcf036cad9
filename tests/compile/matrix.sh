#!/bin/sh
# matrix.sh [quick]: compiles the header under each language, compiler and macro, without a
# warning; links several units; checks symbols and stack frames; then runs the tests as other
# compilers, optimisers and machines make them (big-endian, 32 bits, ARM, Windows).  One line
# per failure, `N passed, N failed` at the end.  What a machine lacks is skipped with a
# sentence.  RUNS="s390x m32" does those runs and nothing else, RUNS=none leaves them out.
quick=$1
here=tests/compile
out=build/compile; mkdir -p $out
warn="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Werror"
warn_c="$warn -Wmissing-prototypes -Wstrict-prototypes"
warn_cxx="-Wall -Wextra -Wpedantic -Werror"
passed=0 failed=0 skipped=0

check() {                                     # check TITLE COMMAND...
    title=$1; shift
    if "$@" >$out/log 2>&1; then
        passed=$((passed + 1)); [ -n "$quick" ] || echo "ok     $title"
    else
        failed=$((failed + 1)); echo "FAILED $title"; head -n 20 $out/log
    fi
}
skip() { skipped=$((skipped + 1)); echo "  skipped: $1"; }
have() { command -v "$1" >/dev/null 2>&1; }
works() { printf '#include <errno.h>\nint main(void) { return 0; }\n' >$out/try.c; "$@" -o $out/try $out/try.c >/dev/null 2>&1; }
# gcc-multilib is not installed beside cross compilers: then its one link is missing
m32="-m32 -idirafter /usr/include/x86_64-linux-gnu"

# E48: plain C99; E14: the user's strictest flags
languages() {                                 # languages C_COMPILER CXX_COMPILER
    if ! have "$1"; then skip "$1 is not here"; return; fi
    for std in $c_standards; do
        works $1 -std=$std || { skip "$1 has no -std=$std"; continue; }
        for real in $reals; do
            check "E12 E14 E48 $1 -std=$std GPTS_REAL=$real" $1 -std=$std $level $warn_c -I. -DGPTS_REAL=$real -c $here/header.c -o $out/header.o
        done
    done
    if ! have "$2"; then skip "$2 is not here"; return; fi
    for std in $cxx_standards; do
        works $2 -x c++ -std=$std || { skip "$2 has no -std=$std"; continue; }
        check "E13 $2 -std=$std" $2 -x c++ -std=$std $level $warn_cxx -I. -c $here/header.c -o $out/header_cxx.o
    done
}

macros() {                                    # macros COMPILER FLAGS...: E4, E5
    cc=$1; shift
    check "E5 $cc GPTS_NO_STDIO" $cc "$@" $warn_c -I. -DGPTS_NO_STDIO -c $here/header.c -o $out/no_stdio.o
    check "E30 no stdio is really none" no_stdio $out/no_stdio.o
    check "E1 E2 E8 $cc declarations and implementation in two units" link_and_run two $cc "$@" $warn -I. $here/declarations.c $here/implementation.c
    check "E3 E29 $cc GPTSTATIC_STATIC, float and double in one program" link_and_run static $cc "$@" $warn -I. $here/static_float.c $here/static_double.c
    check "E5 $cc GPTS_PARALLEL_FOR" link_and_run parallel $cc "$@" $warn -I. $here/parallel.c
}
refuses() { ! "$@"; }
switches() {                                  # E4
    grep -ohE '^ *# *(if|ifdef|ifndef|elif).*' gptstatic.h | grep -oE 'GPTS(TATIC)?_[A-Z_]+' | sort -u >$out/switches
    ! grep -vxE 'GPTSTATIC_(IMPLEMENTATION|STATIC|H|IMPLEMENTED)|GPTS_(REAL|API|PARALLEL_FOR|NO_STDIO)' $out/switches
}
once() { [ "$(grep -cE '(^|[^_a-z])(malloc|calloc|realloc|strdup) *\(' gptstatic.h)" = 1 ] && [ "$(grep -cE '(^|[^_a-z>.])free *\(' gptstatic.h)" = 1 ]; }
link_and_run() { name=$1; shift; "$@" -o $out/$name -lm && $out/$name; }
no_stdio() { ! nm "$1" | grep -E ' U (fopen|fread|fwrite|fclose|fseeko?|rename|remove|stderr|stdout|fflush)(64)?$'; }

# E10: gpts_ outside, E24: no printing, E20: no exit, E25: no writable data
symbols() {
    nm "$1" | awk '
        $2 ~ /^[TDBRVWC]$/ && $3 !~ /^gpts_/ { print "external symbol without prefix: " $3; bad = 1 }
        $2 ~ /^[dDbBC]$/ { print "writable data: " $3; bad = 1 }
        $1 == "U" && $2 ~ /^(exit|_exit|abort|printf|puts|putchar|fprintf|vprintf|__printf_chk|__fprintf_chk|__assert_fail|stdout|stderr|rand|srand|setlocale|getenv|signal|longjmp|alloca|strtok)$/ { print "calls " $2; bad = 1 }
        END { exit bad }'
}
# E31: frames of 4 KB or less, without optimisation
frames() { awk -F'\t' '$2 > 4096 { print $1 ": " $2 " bytes of stack"; bad = 1 } $3 ~ /dynamic/ && $3 !~ /bounded/ { print $1 ": a frame without bound"; bad = 1 } END { exit bad }' "$1"; }

if [ -n "$RUNS" ] && [ "$RUNS" != none ]; then :
elif [ -n "$quick" ]; then
    level=-O0 c_standards=c99 cxx_standards=c++17 reals=float
    languages ${CC:-cc} c++
    macros ${CC:-cc} -std=c99 -O0
else
    level=-O2 c_standards="c99 c11 c17 c2x" cxx_standards="c++11 c++14 c++17 c++20 c++2b" reals="float double"
    languages gcc g++
    languages clang clang++
    for cc in gcc clang; do
        if have $cc; then
            macros $cc -std=c99 -O1
            for o in -O0 -O1 -O3 -Os "-O2 -DNDEBUG" "-O2 -march=native"; do check "E50 $cc $o" $cc -std=c99 $o $warn_c -I. -c $here/header.c -o $out/level.o; done
            if works $cc -fopenmp; then check "E49 $cc -fopenmp" $cc -std=c99 -O2 -fopenmp $warn_c -I. -c $here/header.c -o $out/openmp.o; fi
            check "E50 $cc -ffast-math is refused" refuses $cc -std=c99 -ffast-math -I. -fsyntax-only $here/header.c
            if works $cc $m32; then check "E28 $cc -m32" $cc -std=c99 $m32 -O2 $warn_c -I. -c $here/header.c -o $out/m32.o
            else skip "$cc -m32 needs 32-bit libraries (Debian: gcc-multilib)"; fi
        fi
    done
    for cross in x86_64-w64-mingw32-gcc aarch64-linux-gnu-gcc s390x-linux-gnu-gcc; do
        for real in $reals; do
            if have $cross; then check "E28 E43 $cross GPTS_REAL=$real" $cross -std=c99 -O2 $warn_c -I. -DGPTS_REAL=$real -c $here/header.c -o $out/cross.o
            else skip "$cross is not here (Debian: gcc-mingw-w64-x86-64, gcc-aarch64-linux-gnu, gcc-s390x-linux-gnu)"; fi
        done
    done
fi

if [ -z "$RUNS" ] || [ "$RUNS" = none ]; then
check "compiled with -fstack-usage" ${CC:-cc} -std=c99 -O0 -fstack-usage -I. -c $here/header.c -o $out/symbols.o
check "E10 E11 E20 E24 E25 symbols" symbols $out/symbols.o
printf '#include "../../tests/test.h"\nstatic void wrong(void) { t_ok(0); }\nint main(int c, char **v) { t_begin(c, v); T(wrong); return t_end(); }\n' >$out/failing.c
${CC:-cc} -w -o $out/failing $out/failing.c -lm
check "E4 no more switches than part A names" switches
check "E9 the licence stands in the header" grep -q "Permission is hereby granted, free of charge" gptstatic.h
check "E16 malloc and free stand once each" once
check "E21 no assert" refuses grep -nE "(^|[^_a-z])assert *\(" gptstatic.h
check "E47 what files may be fed is said on top" sh -c 'head -n 12 gptstatic.h | grep -q "Files are never trusted"'
check "E63 a failing test fails its program" sh -c '! $0/failing' $out
check "every expectation has its test" sh tests/expectations.sh
if [ -f $out/symbols.su ]; then check "E31 stack frames of 4 KB or less" frames $out/symbols.su; else skip "no -fstack-usage here"; fi
fi

# The tests themselves: runs NAME RUNNER SUITES COMPILER FLAGS...
every="layers attention static golden gradients model fit approximator io safetensors tokenizer hostile oom kill threads"
few="layers static golden model io safetensors tokenizer"          # under an emulator
runs() {
    name=$1 runner=$2 suites=$3; shift 3
    case " ${RUNS:-$name} " in *" $name "*) ;; *) return ;; esac
    have "$1" || { skip "$name: $1 is not here"; return; }
    [ -z "$runner" ] || have "${runner%% *}" || { skip "$name: ${runner%% *} is not here"; return; }
    works "$@" || { skip "$name: $* makes no program"; return; }
    mkdir -p $out/$name build/tests
    for suite in $suites; do
        real=float arguments=
        case $suite in
        gradients) real=double ;;
        golden) arguments=$(echo tests/golden/*.safetensors) ;;
        safetensors) arguments=tests/safetensors-cases.jsonl ;;
        esac
        program=$out/$name/$suite; case $1 in *mingw*) program=$program.exe ;; esac
        check "$name: $suite compiles" "$@" -std=c99 $warn -Wno-unused-function -Wno-conversion -Wno-sign-conversion -Wno-double-promotion -Wno-format-truncation -Wno-pedantic -Wno-unknown-warning-option -I. -DGPTS_REAL=$real -o $program tests/$suite.c -lm -pthread
        check "$name: $suite" $runner $program $arguments
    done
}
if [ -z "$quick" ]; then
    runs O0 "" "$every" gcc -O0
    runs O3 "" "$every" gcc -O3
    runs Os "" "$every" gcc -Os
    runs NDEBUG "" "$every" gcc -O2 -DNDEBUG
    runs clang "" "$every" clang -O2
    runs clang-O3 "" "$few" clang -O3 -DNDEBUG
    runs stack64 "sh tests/compile/stack64.sh" "$every" gcc -O1          # E31: all of it on 64 KB
    runs m32 "" "$every" gcc $m32 -O2
    runs s390x "qemu-s390x" "$few" s390x-linux-gnu-gcc -static -O2
    runs aarch64 "qemu-aarch64" "$few" aarch64-linux-gnu-gcc -static -O2
    wine=wine; have wine || [ ! -x /usr/lib/wine/wine64 ] || wine=/usr/lib/wine/wine64
    WINEDEBUG=-all; export WINEDEBUG
    runs mingw $wine "$few" x86_64-w64-mingw32-gcc -static -O2
fi

printf '%d passed, %d failed' $passed $failed
[ $skipped = 0 ] || printf ', %d skipped' $skipped
echo
[ $failed = 0 ]

#!/bin/sh
# soak.sh: TIME seconds of train, freeze, save, load and generate under random kills;
# no checkpoint is lost and no memory grows.  Ends with `N passed, N failed`.
out=build/soak; mkdir -p $out
${CC:-cc} -std=c99 -O2 -I. -Wno-unused-function -o $out/soak tests/soak/soak.c -lm || exit 1
exec $out/soak ${TIME:-60} $out/files

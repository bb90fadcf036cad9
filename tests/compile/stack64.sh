#!/bin/sh
# stack64.sh PROGRAM...: runs it on a stack of 64 KB (E31)
ulimit -s 64 && exec "$@"

# gptstatic: make lists the targets
CC      ?= gcc
STRICT   = -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Wmissing-prototypes
CFLAGS  ?= -O2
OPENMP  ?= $(shell printf 'int main(void){return 0;}' | $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)
ALL      = -std=c99 -I. $(CFLAGS) $(OPENMP)

.DEFAULT_GOAL := help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build/tests/%_double: tests/%.c tests/test.h gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -DGPTS_REAL=double -o $@ $< -lm
build/tests/%: tests/%.c tests/test.h gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -o $@ $< -lm
build/%: examples/%.c gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) $(STRICT) -o $@ $< -lm

.PHONY: help

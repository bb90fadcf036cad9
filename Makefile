# gptstatic: make lists the targets
CC      ?= cc
STRICT   = -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wdouble-promotion -Wundef -Wmissing-prototypes
CFLAGS  ?= -O2
OPENMP  ?= $(shell printf 'int main(void){return 0;}' | $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)
ALL      = -std=c99 -I. $(CFLAGS) $(OPENMP)
JOBS    ?= $(shell nproc 2>/dev/null || echo 1)
TIME    ?= 60

.DEFAULT_GOAL := help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- tests: each tests/NAME.c is one program, built with float and with double reals ----------

# Parts without real numbers need no double build, gradients no float one.
FLOAT_ONLY  = tokenizer tokens safetensors kill
DOUBLE_ONLY = gradients
SUITES      = $(patsubst tests/%.c,%,$(wildcard tests/*.c))
PROGRAMS    = $(patsubst %,build/tests/%,$(filter-out $(DOUBLE_ONLY),$(SUITES))) \
              $(patsubst %,build/tests/%_double,$(filter-out $(FLOAT_ONLY),$(SUITES)))

test: ## every CPU test, float and double; ends with `N passed, N failed`
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs
	@CC="$(CC)" sh tests/run.sh $(sort $(PROGRAMS))
test-programs: $(sort $(PROGRAMS))

audit: ## gradient table in double, planted mutants, equation index
	@CC="$(CC)" sh tests/audit.sh

matrix: ## the header under every supported language, compiler and macro; symbols; stack frames
	@sh tests/compile/matrix.sh

sanitize: ## every test under ASan and UBSan, TSan, and the quick ones under valgrind
	@sh tests/sanitize.sh

fuzz: ## fuzzers for everything that reads bytes, TIME=60 seconds each
	@TIME=$(TIME) sh tests/fuzz/fuzz.sh

build/tests/%_double: tests/%.c $(wildcard tests/*.h) gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -DGPTS_REAL=double -o $@ $< -lm -pthread
build/tests/%: tests/%.c $(wildcard tests/*.h) gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -o $@ $< -lm -pthread

# ---- examples ----------------------------------------------------------------------------------

build/%: examples/%.c gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) $(STRICT) -o $@ $< -lm

.PHONY: help test test-programs audit matrix sanitize fuzz

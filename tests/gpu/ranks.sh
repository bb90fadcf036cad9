#!/bin/sh
# ranks.sh: training on two GPUs, one process each: the losses of one GPU, resuming, replacing heads, and every way to go wrong.
# Needs programs of `make gpu NCCL=1` and two GPUs (or GPTS_SHARE_GPU=1: one that both use, without NCCL); skips itself elsewhere.
skip() { echo "  skipped: several GPUs: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "${gpus:-0}" -ge 2 ] || [ "$GPTS_SHARE_GPU" = 1 ] || skip "${gpus:-0} here"
for program in train_base_model freeze_heads tests/gpu/bench_ranks; do
    [ -x build/$program ] && ldd build/$program | grep -q nccl || skip "build/$program is not of make gpu NCCL=1"
done
passed=0; failed=0
work=build/tests/gpu/ranks; rm -rf $work; mkdir -p $work
port=29700
# two ranks of a program, both told of by $0, $1 in the arguments: results in $work/log.RANK and $work/status.RANK
start() {                                        # rank, local rank, command...
    rank=$1; local=$2; shift 2
    { RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$local MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" >$work/log.$rank 2>&1; echo $? >$work/status.$rank; } &
}
both() { port=$((port + 1)); start 0 0 "$@"; start 1 1 "$@"; wait; }
status() { cat $work/status.$1; }
check() {                                        # name, condition...
    name=$1; shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; for r in 0 1; do sed "s/^/  rank $r: /" $work/log.$r | tail -n 5; done; fi
}
ended() { [ "$(status 0)" = "$1" ] && [ "$(status 1)" = "$2" ]; }
says() { grep -q "$2" $work/log.$1; }
loss() { sed -n 's/.*"val_loss": \([0-9.]*\).*/\1/p' "$1"; }
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && b > 0 && d <= t) }'; }
train="build/train_base_model --gpu --layers 4 --heads 4 --width 256 --context 256 --batch 8 --eval-windows 8 --eval-every 1000"

shape="--layers=6 --heads=6 --width=384"; [ "$GPTS_SHARE_GPU" = 1 ] && shape="--layers=4 --heads=4 --width=128"
both build/tests/gpu/bench_ranks --parity $shape --T=512 --B=2 --accum=2
check "50 updates as on one GPU, before and after replacement" ended 0 0
cat $work/log.0
if [ "$GPTS_SHARE_GPU" != 1 ]; then
    both build/tests/gpu/bench_ranks --parity --bf16 $shape --T=512 --B=2 --accum=2
    check "the same with gradients in bf16" ended 0 0
    tail -n 1 $work/log.0
fi

# the examples: two ranks, resumed by two (to the bit) and by one
both $train --updates 40 --out $work/whole --json $work/whole.json
check "train_base_model on two GPUs" ended 0 0
both $train --updates 40 --stop-after 20 --out $work/half
check "stops with a checkpoint" ended 0 0
both $train --updates 40 --resume $work/half/checkpoint.safetensors --out $work/two
check "two GPUs go on to the same bits" cmp -s $work/whole/base_model.safetensors $work/two/base_model.safetensors
$train --updates 40 --batch 16 --resume $work/half/checkpoint.safetensors --out $work/one --json $work/one.json --quiet
check "one GPU goes on to the same loss" near "$(loss $work/one.json)" "$(loss $work/whole.json)" 0.01
both build/freeze_heads --gpu --layers 4 --heads 4 --width 256 --context 256 --batch 8 --updates 40 --eval-windows 8 --arms ordinary,linear25,prune25 --out $work/heads
check "freeze_heads on two GPUs" ended 0 0
if command -v torchrun >/dev/null 2>&1; then
    torchrun --nproc-per-node=2 --no-python $train --updates 20 --out $work/torchrun >$work/log.0 2>&1; echo $? >$work/status.0
    check "under torchrun" [ "$(status 0)" = 0 ]
fi

# what goes wrong: one sentence each, status 1, soon
if [ "$GPTS_SHARE_GPU" != 1 ]; then
    port=$((port + 1)); start 0 0 $train --updates 20 --out $work/x; start 1 7 $train --updates 20 --out $work/x; wait
    check "a GPU that is missing" ended 1 1
    check "  its sentence" says 0 'rank 1: there is no GPU 7'
fi
port=$((port + 1)); start 0 0 $train --updates 20 --out $work/x; start 1 1 $train --updates 20 --lr 2e-3 --out $work/x; wait
check "different settings" ended 1 1
check "  their sentence" says 0 'learning_rate is'
port=$((port + 1)); start 0 0 $train --updates 20 --out $work/x; start 1 1 $train --updates 20 --data gpu.cu --out $work/x; wait
check "different data" ended 1 1
check "  their sentence" says 1 'the ranks do not agree'
port=$((port + 1)); began=$(date +%s)
{ RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port $train --updates 100000 --checkpoint-every 20 --out $work/killed >$work/log.0 2>&1; echo $? >$work/status.0; } &
RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port $train --updates 100000 --checkpoint-every 20 --out $work/killed >$work/log.1 2>&1 &
victim=$!
sleep 8; kill -9 $victim; killed=$(date +%s)
wait; echo 137 >$work/status.1
took=$(($(date +%s) - killed))
check "a rank that is killed ends the other" ended 1 137
check "  within a minute (it took $took s)" [ $took -le 60 ]
check "  with a sentence" says 0 'rank 1 is gone'
grep 'rank 1 is gone' $work/log.0
$train --updates 100000 --stop-after 1 --resume $work/killed/checkpoint.safetensors --out $work/after --quiet >$work/log.0 2>&1; echo $? >$work/status.0
check "  and the last checkpoint is good" [ "$(status 0)" = 0 ]
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]

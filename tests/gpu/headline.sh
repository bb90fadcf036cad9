#!/bin/sh
# The long runs of the README's GPU results, in one stretch on one card.  Usage: tests/gpu/headline.sh PART VOCAB.bpe [OUT]
#   corpus   the Python sources and texts of this machine in sorted order of their paths, 160 MB, by the GPT-2 encoding
#   large    124M parameters, 4096 tokens of context: one first half, then ordinary, 25 % exact, 25 % and 50 % linear, matched tokens
#   recall   associative recall on what large left: adapted on 8 pairs, tested on up to 64
#   long     update and prefill at 16,384 tokens of context with what large left; linear forms run past the length they were fitted at
#            (exact ones cannot: TOLERANCE=1 for large)
#   small    30M parameters, 1024 tokens of context, three seeds, every control and selector
#   approximators  the whole pipeline at the published scale: Tiny Shakespeare (data/tinyshakespeare.txt, or TEXT=) by GPT-2's encoding, 4 layers,
#            width 256, 256 tokens of context, the last two layers' attention by MLPs; three seeds with all controls, then prefill and decode
# Before it: make gpu.
set -e
part=$1 vocab=$2 out=${3:-out/headline}
# GATE=-1: heads by their variance alone, however far their fit is from the mean pattern.  TOLERANCE=1: linear forms, however far from the exact ones.
text="--gate ${GATE:-0.2} --tolerance ${TOLERANCE:-0.05} --data $out/corpus.txt --tokenizer $vocab --validation 0.02"
case $part in
corpus)
    mkdir -p "$out"
    for folder in $(python3 -c 'import sys, sysconfig; print(sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))') /usr/share/doc; do
        find -L "$folder" -type f \( -name '*.py' -o -name '*.rst' -o -name '*.txt' -o -name '*.md' \) 2>/dev/null
    done | LC_ALL=C sort -u | tr '\n' '\0' | xargs -0 cat 2>/dev/null | head -c 160000000 > "$out/corpus.txt"
    sha256sum "$out/corpus.txt"; wc -c "$out/corpus.txt" ;;
large)
    build/freeze_heads --gpu $text --out "$out/large" --json "$out/large.json" --layers 12 --heads 12 --width 768 --position rope --activation gelu \
        --context 4096 --batch 16 --updates "${UPDATES:-600}" --lr 6e-4 --min-lr 6e-5 --beta2 0.95 --sequences 32 --eval-windows 128 \
        --arms "${ARMS:-ordinary,exact25,linear25,linear50}" ;;
recall)
    build/recall --gpu --out "$out/large" --json "$out/recall.json" --arms "${ARMS:-ordinary,exact25,linear25}" --length 512 --pairs 8 --sweep 8,16,24,32,48,64 \
        --mqar-vocabulary 8192 --updates "${UPDATES:-1500}" --batch 16 --examples 512 --lr 1e-4 ;;
long)
    models=$(for a in $(echo "${ARMS:-ordinary,linear25,linear50}" | tr , ' '); do echo "--model=$out/large/${a}_1337.safetensors"; done)
    build/tests/gpu/bench_train --vocabulary=50257 --T=16384 --B=2 --accum=4 --rounds=3 $models
    build/tests/gpu/bench_infer --T=16384 --B=16 $models
    build/tests/gpu/bench_infer --T=16384 --B=1 $models ;;
small)
    build/freeze_heads --gpu $text --out "$out/small" --json "$out/small.json" --layers 6 --heads 6 --width 384 --position rope --activation gelu \
        --context 1024 --batch 64 --updates "${UPDATES:-400}" --lr 1e-3 --min-lr 1e-4 --beta2 0.95 --sequences 32 --eval-windows 256 --seeds "${SEEDS:-1337,1338,1339}" \
        --arms "${ARMS:-ordinary,order,linear25,exact25,prune25,taylor25,uniform25,random25,loss25,linear50}" ;;
approximators)
    fit="--gpu --out $out/approximators"
    build/train_base_model $fit --json "$out/base.json" --data "${TEXT:-data/tinyshakespeare.txt}" --tokenizer "$vocab" --layers 4 --heads 4 --width 256 \
        --context 256 --batch 12 --updates "${UPDATES:-1000}" --dropout 0.1
    build/train_approximators $fit --json "$out/fits.json" --layers-replaced 2,3
    build/train_end_to_end $fit --json "$out/end.json" --updates "${UPDATES:-1000}" --dropout 0.1 --eval-windows 0 --seeds 1337,1338,1339
    build/benchmark --gpu --out "$out/approximators" --json "$out/benchmark.json" --width 256 --hidden 256 --contexts 256,1024 --vocabularies 50257 ;;
*)  sed -n '2,11p' "$0"; exit 1 ;;
esac

#!/bin/sh
# examples.sh: the example programs from outside: wrong input, the pipeline in small, the README
passed=0 failed=0
OMP_NUM_THREADS=1; export OMP_NUM_THREADS          # small work, and tests may share the machine
bin=$PWD/build
work=$(mktemp -d "${TMPDIR:-/tmp}/gptstatic.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
readme=$PWD/README.md header=$PWD
cd "$work" || exit 1

limit=; command -v timeout >/dev/null 2>&1 && limit="timeout 120"
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAILED $1"; [ -n "$2" ] && echo "  $2"; }
check() { title=$1; shift; if $limit "$@" >log 2>&1; then pass; else fail "$title" "$(tail -n 3 log)"; fi; }

# refuses TITLE PART COMMAND...: status 1, one sentence on stderr that holds PART, nothing half written
refuses() {
    title=$1 part=$2; shift 2
    if [ "$1" = full ]; then "$@" >stdout.log 2>stderr.log; else $limit "$@" >stdout.log 2>stderr.log; fi; status=$?
    lines=$(grep -c '' stderr.log)
    if [ "$status" != 1 ]; then fail "$title" "status $status: $(head -n 2 stderr.log)"
    elif [ "$lines" != 1 ]; then fail "$title" "$lines lines on stderr: $(head -n 3 stderr.log)"
    elif ! grep -qF -- "$part" stderr.log; then fail "$title" "\"$(cat stderr.log)\" does not say \"$part\""
    elif [ -n "$(find . -name '*.part' -o -name '*.tmp*')" ]; then fail "$title" "left behind: $(find . -name '*.part' -o -name '*.tmp*')"; find . -name '*.part' -o -name '*.tmp*' | xargs rm -f
    else pass; fi
}
# full COMMAND...: on a disk that takes 2 KB of a file and no more
full() { ( trap '' XFSZ; ulimit -f 4; exec $limit "$@" ); }

tiny="--layers 2 --heads 2 --width 16 --context 16 --batch 4 --eval-windows 8 --quiet"

# ---- flags ------------------------------------------------------------------------------------
for source in "$header"/examples/*.c; do
    name=${source##*/}; name=${name%.c}; program=$bin/$name
    check "$name --help" sh -c '"$1" --help | grep -q "keys of --json"' sh "$program"
    for flag in help seed threads out quiet json; do
        check "$name --help lists --$flag" sh -c '"$1" --help | grep -q -- "--$2"' sh "$program" "$flag"
    done
    refuses "$name: unknown flag" "there is no flag --xyzzy" "$program" --xyzzy
    refuses "$name: near miss" "did you mean --quiet?" "$program" --queit
    refuses "$name: no flag" "is not a flag" "$program" words
done
base=$bin/train_base_model
refuses "number with a tail" "--updates takes a number" $base --updates 12x
refuses "no number" "--updates takes a number" $base --updates ""
refuses "not whole" "--updates takes a whole number" $base --updates 1.5
refuses "too large" "--updates must be between" $base --updates 1e99
refuses "hexadecimal" "--updates takes a number" $base --updates 0x10
refuses "leading space" "--updates takes a number" $base --updates " 5"
refuses "nan" "--lr takes a number" $base --lr nan
refuses "negative" "--lr must be between" $base --lr -1
refuses "value missing" "--lr needs a value" $base --lr
refuses "value where none belongs" "--quiet takes no value" $base --quiet=yes
refuses "a name that is none" "--position knows learned, rope, none" $base --position sinus
refuses "heads that do not divide" "does not divide" $base --heads 3 --width 128
refuses "an arm twice" "names base twice" $bin/train_end_to_end --arms base,base
# `make gpu` puts programs that know --gpu in the place of the plain ones
if ! grep -q "no NVIDIA GPU can be used" $bin/train_base_model; then refuses "no CUDA here" "no CUDA" $base --gpu
elif [ ! -e /dev/nvidia0 ]; then refuses "no GPU here" "no NVIDIA GPU can be used" $base --gpu; fi

# ---- texts ------------------------------------------------------------------------------------
mkdir folder; : >empty.txt; printf 'too short' >short.txt
refuses "text: missing" "nowhere.txt" $base --data nowhere.txt
refuses "text: a folder" "folder" $base --data folder
refuses "text: empty" "empty" $base --data empty.txt
refuses "text: shorter than a window" "too short" $base --data short.txt --tokenizer bytes
refuses "prepare: missing" "nowhere.txt" $bin/prepare_data --data nowhere.txt
refuses "tokenizer: missing" "nowhere.json" $base --tokenizer nowhere.json
refuses "tokenizer: gpt2 without its file" "make data" $bin/prepare_data --tokenizer gpt2
refuses "tokenizer: a text" "short.txt" $bin/prepare_data --tokenizer short.txt

# ---- folders and disks ----------------------------------------------------------------------------
refuses "out: a file" "short.txt" $bin/prepare_data --out short.txt
refuses "out: below a file" "short.txt" $bin/prepare_data --out short.txt/deeper
refuses "out: no folder can be made" "/proc/none" $bin/prepare_data --out /proc/none
refuses "json: no such folder" "nowhere/x.json" $bin/prepare_data --json nowhere/x.json
mkdir full
refuses "disk full: prepare" "full/" full $bin/prepare_data --out full --quiet
refuses "disk full: train" "full/" full $base --out full $tiny --updates 1
[ -c /dev/full ] && refuses "disk full: stdout" "cannot write to the standard output" sh -c '"$1" --out out >/dev/full' sh $bin/prepare_data

# ---- the pipeline, in small -----------------------------------------------------------------------
check "prepare_data" $bin/prepare_data --out a --quiet --json a.json
check "the same seed gives the same stories" sh -c '"$1" --out b --quiet && cmp a/stories.txt b/stories.txt && cmp a/train.bin b/train.bin' sh $bin/prepare_data
check "another seed gives others" sh -c '"$1" --out b --seed 7 --quiet && ! cmp -s a/stories.txt b/stories.txt' sh $bin/prepare_data
check "train_base_model" $base --out a $tiny --updates 8 --json base.json
check "train_base_model --precision bf16" $base --out bf16 $tiny --updates 8 --precision bf16
check "one thread, three threads: the same model" sh -c '"$1" --out c --threads 1 $2 --updates 3 && cp c/base_model.safetensors one && "$1" --out c --threads 3 $2 --updates 3 && cmp one c/base_model.safetensors' sh $base "$tiny"
check "6 updates are 3 and, resumed, 3 more" sh -c '"$1" --out c $2 --updates 6 --dropout 0.1 && cp c/base_model.safetensors six &&
  "$1" --out c $2 --updates 6 --dropout 0.1 --stop-after 3 && "$1" --out c $2 --updates 6 --dropout 0.1 --resume c/checkpoint.safetensors && cmp six c/base_model.safetensors' sh $base "$tiny"
refuses "resume: another shape" "the flags ask for" $base --out c --layers 3 --heads 2 --width 16 --context 16 --resume c/checkpoint.safetensors
refuses "resume: a model is no checkpoint" "base_model" $base --out c $tiny --resume c/base_model.safetensors
check "train_approximators" $bin/train_approximators --out a --fit-updates 10 --record-windows 4 --held-out-windows 2 --eval-windows 4 --quiet --json approximators.json
check "train_approximators --chained --form window" $bin/train_approximators --out b2 --model a/base_model.safetensors --chained --form window --window 3 \
    --fit-updates 5 --record-windows 4 --held-out-windows 2 --eval-windows 4 --layers-replaced 0,1 --quiet
check "train_end_to_end, every arm, two seeds" $bin/train_end_to_end --out a --updates 4 --batch 2 --eval-windows 4 --seeds 1,2 \
    --arms base,hybrid,removed,mean,random,shallow,tuned --quiet --json hybrid.json
check "benchmark" $bin/benchmark --out a --layers 2 --heads 2 --width 16 --contexts 16,32 --vocabularies 64,300 --rounds 2 --turn-ms 1 --quiet --json speed.json
check "freeze_heads" $bin/freeze_heads --out a --layers 2 --heads 2 --width 16 --context 16 --batch 4 --updates 6 --sequences 2 --eval-windows 8 \
    --arms ordinary,order,linear50,prune50 --quiet --json heads.json
check "freeze_heads --again" $bin/freeze_heads --out a --layers 2 --heads 2 --width 16 --context 16 --batch 4 --updates 6 --sequences 2 --eval-windows 8 \
    --again --arms ordinary,trained50,exact50 --quiet
refuses "freeze_heads --again: other settings" "another run" $bin/freeze_heads --out a --layers 2 --heads 2 --width 16 --context 16 --batch 4 --updates 8 --again --arms ordinary
check "freeze_heads --for-recall, then recall" sh -c '"$1" --for-recall --out r --updates 4 --sequences 2 --eval-windows 4 --quiet &&
  "$2" --out r --pairs 2 --sweep 2,4 --length 16 --updates 2 --batch 2 --examples 4 --quiet --json recall.json' sh $bin/freeze_heads $bin/recall
refuses "recall: no models" "--for-recall" $bin/recall --out nothing
check "generate" sh -c '"$1" --model a/base_model.safetensors --out a --report --tokens 40 --json text.json >text' sh $bin/generate
check "generate: what it writes is UTF-8" sh -c '"$1" --out u --tokenizer bytes $2 --updates 1 && "$3" --model u/base_model.safetensors --temperature 3 --tokens 400 --quiet >u.txt && iconv -f UTF-8 -t UTF-8 u.txt >/dev/null' sh $base "$tiny" $bin/generate
check "generate: a seed gives one text" sh -c '"$1" --model a/base_model.safetensors --quiet >x && "$1" --model a/base_model.safetensors --quiet >y && cmp x y' sh $bin/generate
check "generate: the hybrid too" sh -c '"$1" --model a/hybrid_model.safetensors --quiet --temperature 0 --tokens 60 >x' sh $bin/generate
refuses "hello: a model without its tokenizer" "--tokenizer" $bin/hello --model a/base_model.safetensors
check "hello" sh -c '"$1" | grep -q "^One grey goose"' sh $bin/hello
for key in val_loss train_loss parameters updates_per_second seed; do check "base.json has $key" grep -q "\"$key\": [0-9]" base.json; done
for key in r2_mlp_L0 r2_window_L1 val_loss_mean val_loss_nothing_L1; do check "approximators.json has $key" grep -q "\"$key\": " approximators.json; done
for key in val_loss_hybrid val_loss_shallow_spread val_loss_base_2 trained_parameters_removed; do check "hybrid.json has $key" grep -q "\"$key\": [0-9]" hybrid.json; done
for key in accuracy_ordinary_4 accuracy_taylor25_2_spread accuracy_prune25_4_1337; do check "recall.json has $key" grep -q "\"$key\": [0-9]" recall.json; done
for key in prefill_64_16_hybrid_gain decode_300_32_static_bound_bytes state_64_32_static_bytes; do check "speed.json has $key" grep -q "\"$key\": [0-9]" speed.json; done
check "the report has every section" sh -c 'for s in data base approximators hybrid heads speed text; do grep -q "<section id=\"$s\">" a/report.html || exit 1; done'
check "the report needs nobody else" sh -c '! grep -qiE "<script|https?://|<link|@import" a/report.html'

# ---- models ---------------------------------------------------------------------------------------
generate=$bin/generate
printf 'not a model at all, only a few words' >magic.safetensors
head -c 3000 a/base_model.safetensors >cut.safetensors
refuses "model: missing" "nowhere.safetensors" $generate --model nowhere.safetensors
refuses "model: a folder" "folder" $generate --model folder
refuses "model: empty" "empty.txt" $generate --model empty.txt
refuses "model: wrong magic" "magic.safetensors" $generate --model magic.safetensors
refuses "model: truncated" "cut.safetensors" $generate --model cut.safetensors
refuses "model: no tokenizer beside it" "tokenizer" sh -c 'mkdir -p lone && cp a/base_model.safetensors lone/ && "$1" --model lone/base_model.safetensors' sh $generate
refuses "model: another vocabulary" "do not belong together" $bin/train_approximators --out u --model a/base_model.safetensors
refuses "approximators: none yet" "train_approximators" $bin/train_end_to_end --out b --model a/base_model.safetensors --layers-replaced 1
refuses "layers: out of range" "must be between 0 and 1" $bin/train_approximators --out a --layers-replaced 2
refuses "layers: twice" "each once" $bin/train_approximators --out a --layers-replaced 1,1
refuses "prompt: empty" "prompt" $generate --model a/base_model.safetensors --prompt @empty.txt
refuses "prompt: missing" "nowhere" $generate --model a/base_model.safetensors --prompt @nowhere

# ---- the README's programs ------------------------------------------------------------------------
if [ -f "$readme" ]; then
    awk '/^```c$/{n++; f="readme" n ".c"; on=1; next} /^```$/{on=0} on{print > f}' "$readme"
    for file in readme*.c; do
        [ -f "$file" ] || continue
        check "E62 README, program $file compiles" ${CC:-cc} -std=c99 -Wall -Wextra -O1 -I"$header" -o "${file%.c}" "$file" -lm
        check "E62 README, program $file runs" sh -c 'cd a && ../"$1" >/dev/null' sh "${file%.c}"
    done
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

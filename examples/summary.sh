# summary.sh OUT: the demo's closing table, from the programs' JSON files
get() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},*\$/\1/p" "$out/$1.json" 2>/dev/null; }
out=$1
row() { printf '  %-58s %s\n' "$1" "$2"; }
num() { [ -n "$2" ] && [ "$2" != null ] && printf "$1" "$2"; }
echo
echo "What was done"
row "text" "$(get data tokens_train) tokens, vocabulary $(get data vocabulary)"
row "base model, validation loss (a blind guess: $(num %.2f "$(get data entropy_uniform)"))" "$(num %.3f "$(get base val_loss)")"
for layer in 0 1 2 3; do
    r2=$(get approximators "r2_mlp_L$layer")
    [ -n "$r2" ] && row "attention of layer $layer explained by an MLP / a windowed MLP" "$(num %.2f "$r2") / $(num %.2f "$(get approximators "r2_window_L$layer")")"
done
base=$(get hybrid val_loss_base)
for arm in base hybrid removed mean random shallow; do
    loss=$(get hybrid "val_loss_$arm")
    [ -n "$loss" ] && row "trained end to end ($(get hybrid updates) updates): $arm" "$(num %.3f "$loss")  ($(echo "$loss $base" | awk '{printf "%+.3f", $1 - $2}'))"
done
for arm in linear25 prune25; do
    change=$(get heads "ppl_change_$arm")
    [ -n "$change" ] && row "a quarter of the heads $([ $arm = linear25 ] && echo static || echo removed) half-way: perplexity" "$(num %+.2f "$change") %"
done
for model in hybrid static; do
    for what in prefill decode; do
        gain=$(get speed "${what}_512_1024_${model}_gain")
        [ -n "$gain" ] && row "$model model, 1024 tokens, $what: times as fast" "$(num %.2f "$gain")  (bound $(num %.2f "$(get speed "${what}_512_1024_${model}_bound_$([ $what = prefill ] && echo flops || echo bytes)")"))"
    done
done
echo
echo "The whole report: $out/report.html"

/* recall.c - does a model with static heads still look things up?

   Multi-query associative recall (MQAR; Arora et al., Zoology, arXiv 2312.04927): a window
   begins with D pairs, key value key value ..., and later some keys come again; where one
   does, the model must name its value.  Only attention that depends on the input can.

     k1 v1 k2 v2 ... kD vD . . k2 . . . k1 . . . . .        . = a random token

   Models that freeze_heads left in OUT (ARM_SEED.safetensors) are adapted on windows of few
   pairs and then tested on more pairs, in windows of the same length:

     build/freeze_heads --for-recall && build/recall          three minutes on two cores

   The lookup is two heads' work: one looks at the token before, a later one for a token whose
   predecessor is the query (an induction head).  The parents of --for-recall have them and adapt
   in a few hundred updates; a parent trained on text alone learns in that time which values
   occur, at best, and guesses among them: a quarter right with 4 pairs.
   --updates 0 tests without adapting.                                                        */
#include "corpus.h"
#include "plot.h"

static const char *arms = "ordinary,linear25,prune25,taylor25", *seeds = NULL, *sweep = "4,8,12,16,24";
static int64_t pairs = 4, length = 128, updates = 400, batch = 32, examples = 256, vocabulary = 0;
static double lr = 1e-3, decay = 0.01, clip = 1.0, power = 0.01;

static const cli_flag flags[] = {
    CLI_TEXT("arms", arms, "models of freeze_heads, by the names of its arms"),
    CLI_TEXT("seeds", seeds, "several seeds of freeze_heads (default: --seed)"),
    CLI_INT("pairs", pairs, 1, 65536, "pairs of a window while adapting"),
    CLI_TEXT("sweep", sweep, "pairs of a window in the tests"),
    CLI_INT("length", length, 4, 1048576, "tokens of a window; four times the pairs or more"),
    CLI_INT("mqar-vocabulary", vocabulary, 0, 65536, "ids in use, keys the lower half; 0: the model's"),
    CLI_INT("updates", updates, 0, 1000000000, "updates of the adaptation"),
    CLI_INT("batch", batch, 1, 65536, "windows of an update"),
    CLI_INT("examples", examples, 1, 1000000, "windows of a test"),
    CLI_REAL("lr", lr, 0, 10, "learning rate, constant"),
    CLI_REAL("decay", decay, 0, 10, "weight decay"),
    CLI_REAL("clip", clip, 0, 1e9, "largest norm of the gradient; 0: any"),
    CLI_REAL("power", power, 0, 10, "slot g of a repeated key has weight (g+1)^(power-1)"),
    CLI_END };

/* `count` of low .. high-1 in random order, all different */
static void distinct(gpts_rng *rng, int32_t low, int32_t high, size_t count, int32_t *ids)
{
    size_t i, j;
    for (i = 0; i < count; i++)
        do {
            ids[i] = low + (int32_t)gpts_rng_below(rng, (uint64_t)(high - low));
            for (j = 0; j < i && ids[j] != ids[i]; j++) {}
        } while (j < i);
}

/* One window of D pairs: tokens, targets [length]; -1 where nothing is asked. */
static void make_window(gpts_rng *rng, int32_t V, size_t D, size_t L, int32_t *tokens, int32_t *targets)
{
    size_t slots = (L - 2 * D) / 2, m, g;
    int32_t *keys = CLI_NEW(int32_t, D), *values = CLI_NEW(int32_t, D);
    double *order = CLI_NEW(double, slots);
    distinct(rng, 1, V / 2, D, keys);
    distinct(rng, V / 2, V, D, values);
    for (g = 0; g < L; g++) { tokens[g] = (int32_t)gpts_rng_below(rng, (uint64_t)V); targets[g] = -1; }
    for (m = 0; m < D; m++) { tokens[2 * m] = keys[m]; tokens[2 * m + 1] = values[m]; }
    /* D slots without replacement, near ones likelier: the least of exponentials with rate w
       comes first as often as a draw with weights w says (Efraimidis and Spirakis 2006) */
    for (g = 0; g < slots; g++) order[g] = -log(1 - gpts_rng_uniform(rng)) / pow((double)(g + 1), power - 1);
    for (m = 0; m < D; m++) {
        size_t first = 0;
        for (g = 1; g < slots; g++) if (order[g] < order[first]) first = g;
        order[first] = HUGE_VAL;
        tokens[2 * D + 2 * first] = keys[m];
        targets[2 * D + 2 * first] = values[m];
    }
    free(keys); free(values); free(order);
}

static void adapt(gpts_model *model, int32_t V, const char *what)
{
    gpts_trainer trainer = {0};
    gpts_train_options o = gpts_train_options_default();
    size_t L = (size_t)length, b;
    int32_t *tokens = CLI_NEW(int32_t, (size_t)batch * L), *targets = CLI_NEW(int32_t, (size_t)batch * L);
    int64_t step;
    double loss;
    o.learning_rate = o.min_learning_rate = lr; o.beta2 = 0.999; o.weight_decay = decay; o.clip = clip;
    CLI_TRY(gpts_trainer_init(&trainer, model, &o), trainer.error);
    for (step = 0; step < updates; step++) {
        gpts_rng rng = { 1000000, 0 };        /* the same windows for every model */
        rng.seed += (uint64_t)step;
        for (b = 0; b < (size_t)batch; b++) make_window(&rng, V, (size_t)pairs, L, tokens + b * L, targets + b * L);
        CLI_TRY(gpts_trainer_update(&trainer, tokens, targets, (size_t)batch, L, &loss), trainer.error);
        cli_progress(what, (uint64_t)step + 1, (uint64_t)updates, "loss %.3f", loss);
    }
    gpts_trainer_free(&trainer);
    free(tokens);
    free(targets);
}

/* Share of the questions answered by the largest logit of all. */
static double accuracy(gpts_model *model, int32_t V, size_t D)
{
    size_t L = (size_t)length, done, n, i, right = 0, asked = 0;
    int32_t *tokens = CLI_NEW(int32_t, (size_t)batch * L), *targets = CLI_NEW(int32_t, (size_t)batch * L),
        *answers = CLI_NEW(int32_t, (size_t)batch * L);
    gpts_rng rng = { 800001, 0 };
    rng.seed += (uint64_t)L + D;
    for (done = 0; done < (size_t)examples; done += n) {
        gpts_batch b = {0};
        n = (size_t)examples - done < (size_t)batch ? (size_t)examples - done : (size_t)batch;
        for (i = 0; i < n; i++) make_window(&rng, V, D, L, tokens + i * L, targets + i * L);
        b.tokens = tokens; b.B = n; b.T = L;
        CLI_TRY(gpts_model_likeliest(model, &b, answers), model->error);
        for (i = 0; i < n * L; i++) {
            right += targets[i] >= 0 && answers[i] == targets[i];
            asked += targets[i] >= 0;
        }
    }
    free(tokens); free(targets); free(answers);
    return (double)right / (double)asked;
}

int main(int argc, char **argv)
{
    char path[CLI_PATH], what[64], names[16][32];
    int64_t seed[CLI_LIST], counts[CLI_LIST];
    size_t n_seeds = 1, n_counts, n = 0, a, s, d;
    const char *word;
    double *scores, x[CLI_LIST], mean[16][CLI_LIST], spread, column[CLI_LIST];
    plot_series curves[16];
    cli_begin(argc, argv, "recall", "Adapts models of freeze_heads to associative recall and sweeps the number of pairs.", CLI_GPU, flags,
              "pairs length updates seeds\n  per arm and number of pairs D: accuracy_ARM_D accuracy_ARM_D_spread accuracy_ARM_D_SEED");
    seed[0] = cli.seed;
    if (seeds) n_seeds = cli_list("--seeds", seeds, 0, 9007199254740992.0, seed);
    n_counts = cli_list("--sweep", sweep, 1, 65536, counts);
    for (d = 0; d < n_counts; d++)
        if (4 * counts[d] > length)
            cli_fail("%lld pairs need a --length of %lld or more", (long long)counts[d], (long long)(4 * counts[d]));
    if (4 * pairs > length) cli_fail("%lld pairs need a --length of %lld or more", (long long)pairs, (long long)(4 * pairs));
    for (word = arms; *word;) {
        size_t letters = strcspn(word, ",");
        if (n == 16 || letters >= sizeof names[0] || !letters) cli_fail("--arms takes up to 16 names of up to 31 letters");
        memcpy(names[n], word, letters);
        names[n++][letters] = 0;
        word += letters + (word[letters] == ',');
    }
    cli_make_out();
    cli_results();
    scores = CLI_NEW(double, n * n_seeds * n_counts);
    for (s = 0; s < n_seeds; s++)
        for (a = 0; a < n; a++) {
            gpts_model model = {0};
            int32_t V;
            if (!cli_exists(cli_path(path, "%s_%lld.safetensors", names[a], (long long)seed[s])))
                cli_fail("%s is not there: build/freeze_heads --for-recall makes such models", path);
            CLI_TRY(gpts_model_load(&model, cli_path(path, "%s_%lld.safetensors", names[a], (long long)seed[s]), &cli.hooks), model.error);
            cli_place(&model);
            V = (int32_t)(vocabulary ? vocabulary : model.config.vocab_size);
            if (V > model.config.vocab_size)
                cli_fail("--mqar-vocabulary %d is more than the model's %lld", (int)V, (long long)model.config.vocab_size);
            for (d = 0; d < n_counts; d++) if (counts[d] > V / 2 - 1) cli_fail("%lld pairs need more than %d ids", (long long)counts[d], (int)V);
            if (pairs > V / 2 - 1) cli_fail("%lld pairs need more than %d ids", (long long)pairs, (int)V);
            snprintf(what, sizeof what, "%.40s, seed %lld", names[a], (long long)seed[s]);
            adapt(&model, V, what);
            cli_say("%-28s", what);
            for (d = 0; d < n_counts; d++) {
                scores[(a * n_counts + d) * n_seeds + s] = accuracy(&model, V, (size_t)counts[d]);
                cli_say("  %lld pairs %.1f %%", (long long)counts[d], 100 * scores[(a * n_counts + d) * n_seeds + s]);
            }
            cli_say("\n");
            gpts_model_free(&model);
        }

    cli_json_real("pairs", (double)pairs); cli_json_real("length", (double)length); cli_json_real("updates", (double)updates);
    cli_json_real("seeds", (double)n_seeds);
    plot_begin("recall", "Associative recall");
    plot_say("Adapted for %lld updates on windows of %lld tokens with %lld pairs, then asked with more pairs. A model that cannot look up guesses; accuracy is over the whole vocabulary.",
             (long long)updates, (long long)length, (long long)pairs);
    cli_say("\naccuracy, mean of %llu seed%s\npairs         ", (unsigned long long)n_seeds, n_seeds > 1 ? "s" : "");
    for (d = 0; d < n_counts; d++) cli_say("%16lld", (long long)counts[d]);
    for (a = 0; a < n; a++) {
        cli_say("\n%-14s", names[a]);
        for (d = 0; d < n_counts; d++) {
            for (s = 0; s < n_seeds; s++) {
                column[s] = scores[(a * n_counts + d) * n_seeds + s];
                cli_json_named(column[s], "accuracy_%s_%lld_%lld", names[a], (long long)counts[d], (long long)seed[s]);
            }
            mean[a][d] = cli_mean(column, n_seeds);
            spread = cli_deviation(column, n_seeds);
            cli_json_named(mean[a][d], "accuracy_%s_%lld", names[a], (long long)counts[d]);
            cli_json_named(spread, "accuracy_%s_%lld_spread", names[a], (long long)counts[d]);
            cli_say(" %7.1f %% +-%4.1f", 100 * mean[a][d], 100 * spread);
            x[d] = (double)counts[d];
            mean[a][d] *= 100;
        }
        curves[a].name = names[a]; curves[a].x = x; curves[a].y = mean[a]; curves[a].n = n_counts; curves[a].dots = 1;
    }
    cli_say("\n");
    plot_row_begin();
    plot_lines("Right answers by number of pairs", "pairs", "%", curves, n);
    plot_row_end();
    plot_end();
    free(scores);
    return cli_end();
}

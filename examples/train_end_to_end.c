/* train_end_to_end.c - a hybrid model, trained around frozen approximators

   Takes OUT/approximator_L2.safetensors ... as they are, freezes them in a new model, and
   trains everything else from the start.  If the hybrid ends near the base model, static
   functions were enough for those layers.  Or those layers' attention was not needed: only
   the other arms can tell, all trained on the same windows in the same order.

     base      attention everywhere
     hybrid    the fitted approximators, frozen
     removed   no attention in those layers
     mean      its mean output, a constant
     random    frozen MLPs of random weights, of the same size
     shallow   a plain model with that many layers fewer
     tuned     the trained base model with the approximators in it, trained on (not by default)

   Several --seeds give a mean and a spread (a sample's standard deviation): a difference
   smaller than the spread says nothing.                                                   */
#include "corpus.h"
#include "plot.h"

enum { BASE, HYBRID, REMOVED, MEAN, RANDOM, SHALLOW, TUNED, ARMS };
static const char *const arm_names[ARMS] = { "base", "hybrid", "removed", "mean", "random", "shallow", "tuned" };

static const char *arms = "base,hybrid,removed,mean,random,shallow", *seeds = NULL, *layers_replaced = NULL;

static const cli_flag flags[] = {
    CLI_TEXT("arms", arms, "which to train"),
    CLI_TEXT("seeds", seeds, "several seeds, as 1337,1338,1339 (default: --seed)"),
    CLI_TEXT("layers-replaced", layers_replaced, "layers from 0, as 2,3 (default: those that OUT has approximators for)"),
    CLI_END };

static corpus_tokens data;
static const char *model_path;
static int64_t replaced[CLI_LIST];
static size_t n_replaced, T, batch;

/* Puts into `layer` what the arm has there instead of attention, frozen. */
static void replace(gpts_model *model, gpts_trainer *trainer, int arm, size_t layer, int64_t seed)
{
    gpts_approximator a = {0};
    char path[CLI_PATH];
    cli_path(path, "approximator_L%d.safetensors", (int)layer);
    CLI_TRY(gpts_approximator_load(&a, path, &cli.hooks), a.error);
    if (arm != HYBRID && arm != TUNED) {      /* a control of the same size, from the same recording */
        gpts_approximator control = {0};
        gpts_recording seen = {0};
        gpts_approximator_options options = {0};
        options.kind = arm == REMOVED ? GPTS_APPROX_NOTHING : arm == MEAN ? GPTS_APPROX_MEAN : GPTS_APPROX_RANDOM;
        options.window = a.window;
        options.hidden = a.hidden;
        options.seed = (uint64_t)seed + layer;
        CLI_TRY(gpts_recording_load(&seen, (int32_t)layer, cli_path(path, "approximator_data.safetensors"), &cli.hooks), seen.error);
        CLI_TRY(gpts_approximator_fit(&control, model, &seen, NULL, &options, NULL), control.error);
        CLI_TRY(gpts_approximator_install(model, trainer, &control, 0), model->error);
        gpts_recording_free(&seen);
        gpts_approximator_free(&control);
    } else CLI_TRY(gpts_approximator_install(model, trainer, &a, 0), model->error);
    gpts_approximator_free(&a);
}

typedef struct outcome { double loss, seconds, at[10]; size_t trained, all; } outcome;

/* Trains one arm with one seed. */
static outcome run_arm(int arm, int64_t seed, const gpts_config *base_config)
{
    gpts_model model = {0};
    gpts_trainer trainer = {0};
    gpts_train_options options = cli_options(seed);
    gpts_config config = *base_config;
    gpts_windows windows = {0};
    outcome result = {0};
    char what[48], path[CLI_PATH];
    int32_t *tokens = CLI_NEW(int32_t, batch * T), *targets = CLI_NEW(int32_t, batch * T);
    double loss, began, paused;
    size_t i;
    int64_t step, updates = cli_train.updates, windows_drawn = 0;
    int tenth = 0;

    if (arm == SHALLOW) config.n_layer -= (int64_t)n_replaced;
    if (arm == TUNED) CLI_TRY(gpts_model_load(&model, model_path, &cli.hooks), model.error);
    else CLI_TRY(gpts_model_init(&model, &config, (uint64_t)seed, &cli.hooks), model.error);
    for (i = 0; i < n_replaced && arm != BASE && arm != SHALLOW; i++) replace(&model, NULL, arm, (size_t)replaced[i], seed);
    cli_place(&model);
    CLI_TRY(gpts_trainer_init(&trainer, &model, &options), trainer.error);

    windows.tokens = data.train;
    windows.n = data.n_train;
    windows.T = T;
    windows.seed = (uint64_t)seed;            /* the same windows for every arm */
    snprintf(what, sizeof what, "%s, seed %lld", arm_names[arm], (long long)seed);
    began = cli_now();
    for (step = 0; step < updates; step++) {
        CLI_TRY(gpts_windows_batch(&windows, (uint64_t)windows_drawn, batch, tokens, targets), "a window does not fit the data");
        windows_drawn += (int64_t)batch;
        CLI_TRY(gpts_trainer_update(&trainer, tokens, targets, batch, T, &loss), trainer.error);
        for (paused = cli_now(); tenth < 10 && (step + 1) * 10 >= updates * (tenth + 1); tenth++)
            result.at[tenth] = corpus_loss(&model, &data, T, cli_train.eval_windows ? (size_t)(cli_train.eval_windows + 3) / 4 : 32, batch);
        began += cli_now() - paused;          /* the seconds are those of training */
        cli_progress(what, (uint64_t)step + 1, (uint64_t)updates, "loss %.3f", loss);
    }
    result.seconds = cli_now() - began;
    result.loss = corpus_loss(&model, &data, T, (size_t)cli_train.eval_windows, batch);
    result.trained = trainer.n_trainable;
    result.all = model.n_parameters;
    if (arm == HYBRID) CLI_TRY(gpts_model_save(&model, cli_path(path, "hybrid_model.safetensors")), model.error);
    free(tokens);
    free(targets);
    gpts_trainer_free(&trainer);
    gpts_model_free(&model);
    return result;
}

int main(int argc, char **argv)
{
    char path[CLI_PATH], base_path[CLI_PATH], label[64] = "";
    size_t chosen[CLI_LIST], n_arms, n_seeds = 1, s, a, i;
    int64_t seed[CLI_LIST];
    double mean[ARMS] = {0}, spread[ARMS] = {0}, losses[CLI_LIST], x[10];
    outcome *runs, last[ARMS];
    gpts_model base = {0};
    int has_base = 0;
    cli_train.context = 0;
    cli_begin(argc, argv, "train_end_to_end", "Trains a hybrid around frozen approximators, beside the base model and controls.",
              CLI_TRAIN | CLI_DATA | CLI_MODEL | CLI_GPU, flags,
              "layers_replaced updates seeds\n"
              "  per arm: val_loss_ARM val_loss_ARM_spread val_loss_ARM_SEED trained_parameters_ARM parameters_ARM seconds_ARM");
    n_arms = cli_words("--arms", arms, arm_names, ARMS, chosen);
    seed[0] = cli.seed;
    if (seeds) n_seeds = cli_list("--seeds", seeds, 0, 9007199254740992.0, seed);
    cli_make_out();
    cli_results();

    /* The base model gives the shape; its approximators say which layers. */
    model_path = cli.model ? cli.model : cli_path(base_path, "base_model.safetensors");
    CLI_TRY(gpts_model_load(&base, model_path, &cli.hooks), base.error);
    corpus_open(&data);
    corpus_match(&data, &base, model_path);
    if (cli_train.context > base.config.n_positions) cli_fail("--context %lld is more than the %lld positions of %s", (long long)cli_train.context,
                                                    (long long)base.config.n_positions, model_path);
    T = (size_t)(cli_train.context ? cli_train.context : base.config.n_positions);
    batch = (size_t)cli_train.batch;
    corpus_need(&data, (int64_t)T);
    if (layers_replaced) n_replaced = cli_list("--layers-replaced", layers_replaced, 0, (double)base.config.n_layer - 1, replaced);
    else
        for (i = 0; i < (size_t)base.config.n_layer && n_replaced < CLI_LIST; i++)
            if (cli_exists(cli_path(path, "approximator_L%d.safetensors", (int)i))) replaced[n_replaced++] = (int64_t)i;
    if (!n_replaced) cli_fail("%s has no approximators: run train_approximators first", cli.out);
    for (i = 0; i < n_replaced; i++)
        if (!cli_exists(cli_path(path, "approximator_L%d.safetensors", (int)replaced[i])))
            cli_fail("there is no %s: run train_approximators --layers-replaced first", path);

    runs = CLI_NEW(outcome, n_arms * n_seeds);
    for (s = 0; s < n_seeds; s++)
        for (a = 0; a < n_arms; a++) runs[a * n_seeds + s] = run_arm((int)chosen[a], seed[s], &base.config);

    for (i = 0; i < n_replaced && strlen(label) < 50; i++)
        snprintf(label + strlen(label), sizeof label - strlen(label), "%s%d", i ? "," : "", (int)replaced[i]);
    cli_json_text("layers_replaced", label);
    cli_json_real("updates", (double)cli_train.updates);
    cli_json_real("seeds", (double)n_seeds);
    for (a = 0; a < n_arms; a++) {
        const char *arm = arm_names[chosen[a]];
        for (s = 0; s < n_seeds; s++) {
            losses[s] = runs[a * n_seeds + s].loss;
            cli_json_named(losses[s], "val_loss_%s_%lld", arm, (long long)seed[s]);
        }
        last[a] = runs[a * n_seeds];
        mean[a] = cli_mean(losses, n_seeds);
        spread[a] = cli_deviation(losses, n_seeds);
        cli_json_named(mean[a], "val_loss_%s", arm);
        cli_json_named(spread[a], "val_loss_%s_spread", arm);
        cli_json_named((double)last[a].trained, "trained_parameters_%s", arm);
        cli_json_named((double)last[a].all, "parameters_%s", arm);
        cli_json_named(last[a].seconds, "seconds_%s", arm);
    }
    for (a = 0; a < n_arms; a++) if (chosen[a] == BASE) has_base = (int)a + 1;

    cli_say("\nattention replaced in layers %s; %lld updates, %llu seed%s\n", label, (long long)cli_train.updates,
            (unsigned long long)n_seeds, n_seeds > 1 ? "s" : "");
    cli_say("arm        val loss  spread  against base  trained parameters\n");
    for (a = 0; a < n_arms; a++) {
        cli_say("%-9s %9.4f", arm_names[chosen[a]], mean[a]);
        if (n_seeds > 1) cli_say(" %7.4f", spread[a]); else cli_say("       -");
        if (has_base) cli_say("       %+.4f", mean[a] - mean[has_base - 1]); else cli_say("             -");
        cli_say("  %18llu\n", (unsigned long long)last[a].trained);
    }

    plot_begin("hybrid", "Trained end to end");
    plot_say("New models, trained for %lld updates on the same windows, with attention in layers %s replaced in different ways. Only the "
             "fitted approximators know anything; the other replacements are controls.%s", (long long)cli_train.updates, label,
             n_seeds > 1 ? "" : " One seed: differences of a few hundredths may be chance.");
    {
        plot_series curves[ARMS];
        const char *names[ARMS];
        int colours[ARMS];
        double low = HUGE_VAL;
        char title[80];
        for (i = 0; i < 10; i++) x[i] = (double)cli_train.updates * (double)(i + 1) / 10;
        for (a = 0; a < n_arms && a < ARMS; a++) {
            curves[a].name = names[a] = arm_names[chosen[a]];
            curves[a].x = x + 1; curves[a].y = last[a].at + 1; curves[a].n = 9; curves[a].dots = 0;
            colours[a] = (int)(a % PLOT_COLOURS);
            if (mean[a] < low) low = mean[a];
        }
        plot_row_begin();
        plot_lines("Validation loss while learning", "update", "nats a token", curves, n_arms < ARMS ? n_arms : ARMS);
        snprintf(title, sizeof title, "Validation loss at the end (bars begin at %.1f)", floor(low * 10 - 1) / 10);
        plot_bars(title, "", names, mean, n_seeds > 1 ? spread : NULL, colours, n_arms < ARMS ? n_arms : ARMS, floor(low * 10 - 1) / 10);
        plot_row_end();
    }
    plot_table(has_base ? "arm|loss|spread|against base|trained parameters" : "arm|loss|spread||trained parameters");
    for (a = 0; a < n_arms; a++) {
        char difference[32] = "", width[32] = "-";
        if (has_base) snprintf(difference, sizeof difference, "%+.4f", mean[a] - mean[has_base - 1]);
        if (n_seeds > 1) snprintf(width, sizeof width, "%.4f", spread[a]);
        plot_row("%s|%.4f|%s|%s|%llu", arm_names[chosen[a]], mean[a], width, difference, (unsigned long long)last[a].trained);
    }
    plot_table_end();
    plot_end();
    free(runs);
    gpts_model_free(&base);
    corpus_close(&data);
    return cli_end();
}

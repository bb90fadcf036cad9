/* train_approximators.c - an MLP learns what a layer's attention does

   A layer's attention takes x (after the norm) and gives y (before it is added to the
   residual).  Here both are recorded on the training text for every layer, and small static
   functions are fitted to imitate x -> y by least squares:
     mlp      one token at a time: x[t] -> y[t].  It cannot move anything between positions.
     window   the last --window tokens: x[t-k+1] ... x[t] -> y[t]
   beside controls that know nothing:
     mean     always the mean output          random   an MLP of random weights
     nothing  attention is removed
   R2 on recordings of validation text says how much of y's variance is explained: 1 is all,
   0 is what `mean` does.  Then the loss of the model in which the function stands in for
   attention, without any training: one layer at a time, and all of --layers-replaced.

   Writes OUT/approximator_data.safetensors (the recordings of the replaced layers) and
   OUT/approximator_L2.safetensors ... (--form, for train_end_to_end).                     */
#include "corpus.h"
#include "plot.h"

enum { MLP, WINDOW, MEAN, RANDOM, NOTHING, FORMS };
static const char *const form_names[FORMS] = { "mlp", "window", "mean", "random", "nothing" };

static const char *layers_replaced = NULL, *form = "mlp";
static int64_t hidden = 0, window = 8, context = 0, record_windows = 48, held_out_windows = 16, eval_windows = 96;
static int64_t fit_updates = 500, fit_batch = 256;
static double fit_lr = 3e-3, fit_decay = 0;
static int chained = 0;

static const cli_flag flags[] = {
    CLI_TEXT("layers-replaced", layers_replaced, "layers from 0, as 2,3 (default: the second half)"),
    CLI_TEXT("form", form, "what is saved for them: mlp or window"),
    CLI_INT("hidden", hidden, 0, 1048576, "inner width h of the approximators; 0: the model's width"),
    CLI_INT("window", window, 1, 4096, "tokens that the form `window` sees"),
    CLI_INT("context", context, 0, 1048576, "tokens of a recorded window; 0: the model's context"),
    CLI_INT("record-windows", record_windows, 1, 1000000, "windows recorded for fitting"),
    CLI_INT("held-out-windows", held_out_windows, 1, 1000000, "windows recorded for R2"),
    CLI_INT("eval-windows", eval_windows, 0, 1000000, "windows of an evaluation; 0: the whole validation text"),
    CLI_INT("fit-updates", fit_updates, 1, 10000000, "updates of a fit"),
    CLI_INT("fit-batch", fit_batch, 1, 1000000, "rows of an update"),
    CLI_REAL("fit-lr", fit_lr, 1e-9, 10, "learning rate of a fit"),
    CLI_REAL("fit-decay", fit_decay, 0, 10, "weight decay of a fit"),
    CLI_SWITCH("chained", chained, "fit each replaced layer on what the layers replaced below it produce"),
    CLI_END };

static corpus_tokens data;
static const char *model_path;
static size_t T;

static void load(gpts_model *model)
{
    memset(model, 0, sizeof *model);
    CLI_TRY(gpts_model_load(model, model_path, &cli.hooks), model->error);
    cli_place(model);
}

static void record(gpts_recording *r, gpts_model *model, size_t layer, const uint16_t *ids, size_t n, size_t windows)
{
    int32_t *tokens = CLI_NEW(int32_t, windows * T), *targets = CLI_NEW(int32_t, windows * T);
    corpus_windows(ids, n, T, windows, tokens, targets);
    memset(r, 0, sizeof *r);
    CLI_TRY(gpts_recording_make(r, model, layer, tokens, windows, T), r->error[0] ? r->error : model->error);
    free(tokens);
    free(targets);
}

static void fit_progress(void *context_of_fit, size_t done, size_t of, double mse)
{
    cli_progress((const char *)context_of_fit, done, of, "mean squared error %.5f", mse);
}

/* One approximator of one form for one layer; its R2 on the held-out recording. */
static double fit(gpts_approximator *a, const gpts_model *model, size_t layer, int which, const gpts_recording *seen, const gpts_recording *held_out)
{
    static const gpts_approximator_kind kinds[FORMS] = {
        GPTS_APPROX_MLP, GPTS_APPROX_MLP, GPTS_APPROX_MEAN, GPTS_APPROX_RANDOM, GPTS_APPROX_NOTHING };
    gpts_approximator_options options = {0};
    char what[40];
    double r2 = 0;
    memset(a, 0, sizeof *a);
    snprintf(what, sizeof what, "layer %d, %s", (int)layer, form_names[which]);
    options.kind = kinds[which];
    options.window = which == WINDOW ? (size_t)window : 1;
    options.hidden = hidden ? (size_t)hidden : (size_t)model->config.n_embd;
    options.updates = (size_t)fit_updates;
    options.batch = (size_t)fit_batch;
    options.learning_rate = fit_lr;
    options.weight_decay = fit_decay;
    options.seed = (uint64_t)cli.seed + layer;
    options.progress = which <= WINDOW ? fit_progress : NULL;
    options.context = what;
    CLI_TRY(gpts_approximator_fit(a, model, seen, held_out, &options, &r2), a->error);
    return r2;
}

/* The model's loss with approximators standing in, untrained. */
static double loss_with(gpts_approximator *const *list, size_t n)
{
    gpts_model model;
    double loss;
    size_t i;
    load(&model);
    for (i = 0; i < n; i++) CLI_TRY(gpts_approximator_install(&model, NULL, list[i], 0), model.error);
    loss = corpus_loss(&model, &data, T, (size_t)eval_windows, 16);
    gpts_model_free(&model);
    return loss;
}

int main(int argc, char **argv)
{
    static const char *const saved_forms[] = { "mlp", "window" };
    char path[CLI_PATH], base_path[CLI_PATH], label[64];
    gpts_model model;
    gpts_approximator *approximators, *stand_in[CLI_LIST];
    gpts_recording *seen, *held_out, kept[CLI_LIST];
    int64_t replaced[CLI_LIST];
    double *r2, *loss, base, together[FORMS];
    size_t L, n_replaced, layer, i, width;
    int which, saved;
    cli_begin(argc, argv, "train_approximators", "Fits MLPs to what attention layers do; R2 on held-out text, loss after the swap.",
              CLI_DATA | CLI_MODEL | CLI_GPU, flags,
              "layers_replaced hidden window chained val_loss_base\n"
              "  per layer l: r2_mlp_Ll r2_window_Ll r2_mean_Ll r2_random_Ll r2_nothing_Ll val_loss_mlp_Ll ... val_loss_nothing_Ll\n"
              "  all replaced: val_loss_mlp val_loss_window val_loss_mean val_loss_random val_loss_nothing");
    saved = cli_choice("--form", form, saved_forms, 2);
    cli_make_out();
    cli_results();
    model_path = cli.model ? cli.model : cli_path(base_path, "base_model.safetensors");
    load(&model);
    corpus_open(&data);
    corpus_match(&data, &model, model_path);
    if (context > model.config.n_positions) cli_fail("--context %lld is more than the %lld positions of %s", (long long)context,
                                                     (long long)model.config.n_positions, model_path);
    T = (size_t)(context ? context : model.config.n_positions);
    corpus_need(&data, (int64_t)T);
    L = (size_t)model.config.n_layer;
    width = (size_t)model.config.n_embd;
    if (!L) cli_fail("%s has no layers whose attention could be replaced", model_path);
    if (layers_replaced) n_replaced = cli_list("--layers-replaced", layers_replaced, 0, (double)L - 1, replaced);
    else for (n_replaced = 0; n_replaced < L - L / 2 && n_replaced < CLI_LIST; n_replaced++) replaced[n_replaced] = (int64_t)(L / 2 + n_replaced);
    for (i = 1; i < n_replaced; i++)
        if (replaced[i] <= replaced[i - 1]) cli_fail("--layers-replaced takes ascending layers, each once, not \"%s\"", layers_replaced);

    /* Record, fit, measure: every layer, every form. */
    approximators = CLI_NEW(gpts_approximator, L * FORMS);
    seen = CLI_NEW(gpts_recording, L);
    held_out = CLI_NEW(gpts_recording, L);
    r2 = CLI_NEW(double, L * FORMS);
    loss = CLI_NEW(double, L * FORMS);
    base = corpus_loss(&model, &data, T, (size_t)eval_windows, 16);
    for (layer = 0; layer < L; layer++) {
        record(&seen[layer], &model, layer, data.train, data.n_train, (size_t)record_windows);
        record(&held_out[layer], &model, layer, data.val, data.n_val, (size_t)held_out_windows);
        for (which = 0; which < FORMS; which++)
            r2[layer * FORMS + (size_t)which] = fit(&approximators[layer * FORMS + (size_t)which], &model, layer, which,
                                                    &seen[layer], &held_out[layer]);
    }
    if (chained) {                            /* again, each on the inputs that the hybrid below makes */
        gpts_model hybrid;
        for (which = MLP; which <= WINDOW; which++) {
            load(&hybrid);
            for (i = 0; i < n_replaced; i++) {
                size_t at = (size_t)replaced[i] * FORMS + (size_t)which;
                gpts_recording below, below_held_out;
                record(&below, &hybrid, (size_t)replaced[i], data.train, data.n_train, (size_t)record_windows);
                record(&below_held_out, &hybrid, (size_t)replaced[i], data.val, data.n_val, (size_t)held_out_windows);
                gpts_approximator_free(&approximators[at]);
                r2[at] = fit(&approximators[at], &hybrid, (size_t)replaced[i], which, &below, &below_held_out);
                CLI_TRY(gpts_approximator_install(&hybrid, NULL, &approximators[at], 0), hybrid.error);
                gpts_recording_free(&below);
                gpts_recording_free(&below_held_out);
            }
            gpts_model_free(&hybrid);
        }
    }

    /* What the stand-ins cost: one layer at a time, then together. */
    for (layer = 0; layer < L; layer++)
        for (which = 0; which < FORMS; which++) {
            stand_in[0] = &approximators[layer * FORMS + (size_t)which];
            loss[layer * FORMS + (size_t)which] = loss_with(stand_in, 1);
            cli_progress("swapping", layer * FORMS + (size_t)which + 1, L * FORMS, "layer %d", (int)layer);
        }
    for (which = 0; which < FORMS; which++) {
        for (i = 0; i < n_replaced; i++) stand_in[i] = &approximators[(size_t)replaced[i] * FORMS + (size_t)which];
        together[which] = loss_with(stand_in, n_replaced);
    }

    for (i = 0; i < n_replaced; i++) {
        kept[i] = seen[replaced[i]];
        stand_in[i] = &approximators[(size_t)replaced[i] * FORMS + (size_t)(saved ? WINDOW : MLP)];
        CLI_TRY(gpts_approximator_save(stand_in[i], cli_path(path, "approximator_L%d.safetensors", (int)replaced[i])), stand_in[i]->error);
    }
    CLI_TRY(gpts_recording_save(kept, n_replaced, cli_path(path, "approximator_data.safetensors")), kept[0].error);

    /* Say it. */
    if (!hidden) hidden = (int64_t)width;
    cli_say("\nR2 on held-out text (h = %lld, window of %lld)%s          loss when it stands in (attention: %.4f)\n",
            (long long)hidden, (long long)window, chained ? ", chained" : "", base);
    cli_say("layer      mlp  window    mean  random           mlp  window    mean  random nothing\n");
    for (layer = 0; layer < L; layer++) {
        cli_say("%-6d", (int)layer);
        for (which = MLP; which <= RANDOM; which++) cli_say(" %7.3f", r2[layer * FORMS + (size_t)which]);
        cli_say("      ");
        for (which = MLP; which < FORMS; which++) cli_say(" %7.3f", loss[layer * FORMS + (size_t)which]);
        cli_say("\n");
    }
    cli_say("replaced together                            ");
    for (which = MLP; which < FORMS; which++) cli_say(" %7.3f", together[which]);
    cli_say("\n");

    plot_begin("approximators", "Can a fixed function stand in for attention?");
    plot_say("Each layer's attention was recorded on %lld windows, and small networks of inner width %lld were fitted to imitate it: "
             "one that sees a single token, and one that sees the last %lld.", (long long)record_windows, (long long)hidden, (long long)window);
    plot_row_begin();
    for (i = 0; i < 2; i++) {
        const char *names[2 * CLI_LIST];
        char text[2 * CLI_LIST][24];
        double values[2 * CLI_LIST];
        int colours[2 * CLI_LIST];
        size_t n = 0;
        for (layer = 0; layer < L && n < 2 * CLI_LIST; layer++)
            for (which = MLP; which <= WINDOW; which++, n++) {
                snprintf(text[n], sizeof text[n], "layer %d, %s", (int)layer, form_names[which]);
                names[n] = text[n];
                values[n] = i ? loss[layer * FORMS + (size_t)which] - base : r2[layer * FORMS + (size_t)which];
                colours[n] = which;
            }
        plot_bars(i ? "Loss added when that layer alone is replaced" : "R2 on held-out text", "", names, values, NULL, colours, n, 0);
    }
    plot_row_end();
    plot_table("replaced together, untrained|loss|added");
    plot_row("attention (the base model)|%.3f|", base);
    for (which = 0; which < FORMS; which++) plot_row("%s|%.3f|%+.3f", form_names[which], together[which], together[which] - base);
    plot_table_end();
    plot_end();

    label[0] = 0;
    for (i = 0; i < n_replaced && strlen(label) < 50; i++)
        snprintf(label + strlen(label), sizeof label - strlen(label), "%s%d", i ? "," : "", (int)replaced[i]);
    cli_json_text("layers_replaced", label);
    cli_json_real("hidden", (double)hidden);
    cli_json_real("window", (double)window);
    cli_json_real("chained", chained);
    cli_json_real("val_loss_base", base);
    for (layer = 0; layer < L; layer++)
        for (which = 0; which < FORMS; which++) {
            cli_json_named(r2[layer * FORMS + (size_t)which], "r2_%s_L%d", form_names[which], (int)layer);
            cli_json_named(loss[layer * FORMS + (size_t)which], "val_loss_%s_L%d", form_names[which], (int)layer);
        }
    for (which = 0; which < FORMS; which++) cli_json_named(together[which], "val_loss_%s", form_names[which]);

    for (layer = 0; layer < L; layer++) {
        gpts_recording_free(&seen[layer]);
        gpts_recording_free(&held_out[layer]);
        for (which = 0; which < FORMS; which++) gpts_approximator_free(&approximators[layer * FORMS + (size_t)which]);
    }
    free(approximators); free(seen); free(held_out); free(r2); free(loss);
    gpts_model_free(&model);
    corpus_close(&data);
    return cli_end();
}

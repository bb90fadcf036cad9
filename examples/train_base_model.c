/* train_base_model.c - tokens -> OUT/base_model.safetensors

   The ordinary case: a GPT, its loss going down.  nanoGPT's setting for a CPU is
     train_base_model --data tinyshakespeare.txt --tokenizer chars --layers 4 --heads 4
                      --width 128 --context 64 --batch 12 --updates 2000
   and gives a validation loss near 1.88.

   One update: draw --batch windows of --context tokens, predict each next token, take the
   gradient, clip it, let AdamW move the weights.  The rate warms up, then follows a cosine
   from --lr to --min-lr.  Every --eval-every updates the loss on fixed windows of the
   validation text is measured; these windows are the same in every run.

   --checkpoint-every N keeps OUT/checkpoint.safetensors, and --resume FILE goes on from
   one, to the same bits that an uninterrupted run would have reached.                     */
#include "corpus.h"
#include "plot.h"

static int64_t layers = 4, heads = 4, width = 128, inner = -1, context = 128, batch = 12, accumulate = 1, updates = 400;
static int64_t warmup = -1, eval_every = 0, eval_windows = 128, checkpoint_every = 0, stop_after = 0;
static double lr = 1e-3, min_lr = 1e-4, beta2 = 0.99, decay = 0.1, clip = 1.0, dropout = 0;
static const char *position = "learned", *activation = "gelu", *norm = "layer", *resume = NULL, *name = "base_model.safetensors";
static int bias = 0, untied = 0, shuffled = 0;

static const cli_flag flags[] = {
    CLI_INT("layers", layers, 0, 1000, "layers"),
    CLI_INT("heads", heads, 1, 1024, "heads a layer; divides the width"),
    CLI_INT("width", width, 1, 65536, "channels"),
    CLI_INT("inner", inner, -1, 262144, "inner width of the MLP; -1: four times the width, 0: no MLP"),
    CLI_INT("context", context, 1, 1048576, "tokens of a window"),
    CLI_INT("batch", batch, 1, 65536, "windows of a batch"),
    CLI_INT("accumulate", accumulate, 1, 65536, "batches of an update"),
    CLI_INT("updates", updates, 0, 1000000000, "updates"),
    CLI_REAL("lr", lr, 0, 10, "peak learning rate"),
    CLI_REAL("min-lr", min_lr, 0, 10, "learning rate at the end"),
    CLI_INT("warmup", warmup, -1, 1000000000, "updates of warm-up; -1: a twentieth of all"),
    CLI_REAL("beta2", beta2, 0, 0.999999, "AdamW's second decay"),
    CLI_REAL("decay", decay, 0, 10, "weight decay"),
    CLI_REAL("clip", clip, 0, 1e9, "largest norm of the gradient; 0: any"),
    CLI_REAL("dropout", dropout, 0, 0.99, "dropout"),
    CLI_TEXT("position", position, "learned, rope or none"),
    CLI_TEXT("activation", activation, "gelu, gelu_new or relu"),
    CLI_TEXT("norm", norm, "layer or none"),
    CLI_SWITCH("bias", bias, "biases in linear layers and norms"),
    CLI_SWITCH("untied", untied, "output matrix of its own"),
    CLI_SWITCH("shuffled", shuffled, "disjoint windows, each once a pass, instead of random starts"),
    CLI_INT("eval-every", eval_every, 0, 1000000000, "updates between evaluations; 0: an eighth of all"),
    CLI_INT("eval-windows", eval_windows, 0, 1000000, "windows of an evaluation; 0: the whole validation text"),
    CLI_INT("checkpoint-every", checkpoint_every, 0, 1000000000, "updates between checkpoints; 0: none"),
    CLI_INT("stop-after", stop_after, 0, 1000000000, "stop early at this update, with a checkpoint; 0: at the end"),
    CLI_TEXT("resume", resume, "a checkpoint to go on from"),
    CLI_TEXT("name", name, "file of the model, in OUT"),
    CLI_END };

static gpts_config config_of_flags(int32_t vocabulary)
{
    static const char *const positions[] = { "learned", "rope", "none" }, *const activations[] = { "gelu_new", "gelu", "relu" },
                      *const norms[] = { "layer", "none" };
    gpts_config config = gpts_config_default();
    config.vocab_size = vocabulary;
    config.n_positions = context;
    config.n_layer = layers;
    config.n_head = heads;
    config.n_embd = width;
    config.n_inner = inner;
    config.position = (gpts_position)cli_choice("--position", position, positions, 3);
    config.activation = (gpts_activation)cli_choice("--activation", activation, activations, 3);
    config.approx_activation = config.activation;
    config.norm = (gpts_norm)cli_choice("--norm", norm, norms, 2);
    config.bias = bias;
    config.tie_word_embeddings = !untied;
    return config;
}

static gpts_train_options options_of_flags(void)
{
    gpts_train_options options = gpts_train_options_default();
    options.learning_rate = lr;
    options.min_learning_rate = min_lr < lr ? min_lr : lr;
    options.warmup = (uint64_t)(warmup < 0 ? updates / 20 : warmup);
    options.total = (uint64_t)updates;
    options.beta2 = beta2;
    options.weight_decay = decay;
    options.clip = clip;
    options.dropout = dropout;
    options.seed = (uint64_t)cli.seed;
    return options;
}

/* A checkpoint knows its own shape; flags that ask for another are a mistake. */
static void check_shape(const gpts_model *model, const corpus_tokens *data)
{
    const gpts_config *c = &model->config;
    corpus_match(data, model, resume);
    if (c->n_layer != layers || c->n_head != heads || c->n_embd != width || c->n_positions != context)
        cli_fail("%s holds %lld layers, %lld heads, width %lld, context %lld; the flags ask for %lld, %lld, %lld, %lld", resume,
                 (long long)c->n_layer, (long long)c->n_head, (long long)c->n_embd, (long long)c->n_positions,
                 (long long)layers, (long long)heads, (long long)width, (long long)context);
}

int main(int argc, char **argv)
{
    corpus_tokens data;
    gpts_model model = {0};
    gpts_trainer trainer = {0};
    gpts_windows windows = {0};
    char path[CLI_PATH];
    int32_t *tokens, *targets;
    double loss = 0, recent = 0, val = 0, best = HUGE_VAL, began, spent, *train_x, *train_y, *val_x, *val_y;
    size_t n_train = 0, n_val = 0, T, B;
    uint64_t step, last;
    int64_t part;
    cli_begin(argc, argv, "train_base_model", "Trains a GPT.", CLI_DATA | CLI_GPU, flags,
              "data vocabulary layers heads width context batch updates parameters train_loss val_loss val_loss_best\n"
              "  val_windows seconds updates_per_second tokens_per_second");
    if (width % heads) cli_fail("--heads %lld does not divide --width %lld", (long long)heads, (long long)width);
    if (stop_after > updates) cli_fail("--stop-after %lld is past --updates %lld", (long long)stop_after, (long long)updates);
    cli_make_out();
    cli_results();
    corpus_open(&data);
    corpus_need(&data, context);
    T = (size_t)context;
    B = (size_t)batch;
    if (!eval_every) eval_every = updates < 8 ? 1 : updates / 8;

    /* A model of random weights, or one that was interrupted. */
    if (resume) {
        CLI_TRY(gpts_checkpoint_load(&trainer, &model, resume, &cli.hooks), trainer.error[0] ? trainer.error : model.error);
        check_shape(&model, &data);
        cli_place(&model);
    } else {
        gpts_config config = config_of_flags(data.tokenizer.vocab_size);
        gpts_train_options options = options_of_flags();
        CLI_TRY(gpts_model_init(&model, &config, (uint64_t)cli.seed, &cli.hooks), model.error);
        cli_place(&model);
        CLI_TRY(gpts_trainer_init(&trainer, &model, &options), trainer.error);
    }
    cli_say("data   %s: %llu tokens, vocabulary %d\n", data.source, (unsigned long long)data.n_train, (int)data.tokenizer.vocab_size);
    cli_say("model  %lld layers, %lld heads, width %lld, context %lld: %llu parameters\n", (long long)layers, (long long)heads,
            (long long)width, (long long)context, (unsigned long long)model.n_parameters);

    windows.tokens = data.train;
    windows.n = data.n_train;
    windows.T = T;
    windows.seed = (uint64_t)cli.seed;
    windows.shuffled = shuffled;
    tokens = CLI_NEW(int32_t, B * T);
    targets = CLI_NEW(int32_t, B * T);
    train_x = CLI_NEW(double, updates + 1);
    train_y = CLI_NEW(double, updates + 1);
    val_x = CLI_NEW(double, updates + 2);
    val_y = CLI_NEW(double, updates + 2);

    last = (uint64_t)(stop_after ? stop_after : updates);
    began = cli_now();
    for (step = trainer.step; ; step++) {
        if (step % (uint64_t)eval_every == 0 || step == last) {
            val = corpus_loss(&model, &data, T, (size_t)eval_windows, B);
            if (val < best) best = val;
            val_x[n_val] = (double)step;
            val_y[n_val++] = val;
        }
        if (step >= last) break;
        for (part = 0; part < accumulate; part++) {
            gpts_batch one = {0};
            one.tokens = tokens;
            one.targets = targets;
            one.B = B;
            one.T = T;
            CLI_TRY(gpts_windows_batch(&windows, trainer.data_position, B, tokens, targets), "a window does not fit the data");
            trainer.data_position += B;
            CLI_TRY(gpts_trainer_accumulate(&trainer, &one, NULL), trainer.error);
        }
        CLI_TRY(gpts_trainer_apply(&trainer, &loss), trainer.error);
        recent = n_train ? 0.95 * recent + 0.05 * loss : loss;               /* smoothed, for the eye */
        train_x[n_train] = (double)(step + 1);
        train_y[n_train++] = recent;
        if (checkpoint_every && (step + 1) % (uint64_t)checkpoint_every == 0)
            CLI_TRY(gpts_checkpoint_save(&trainer, cli_path(path, "checkpoint.safetensors")), trainer.error);
        cli_progress("training", step + 1, last, "loss %.3f, validation %.3f", recent, val);
    }
    spent = cli_now() - began;
    if (stop_after) CLI_TRY(gpts_checkpoint_save(&trainer, cli_path(path, "checkpoint.safetensors")), trainer.error);
    CLI_TRY(gpts_model_save(&model, cli_path(path, "%s", name)), model.error);
    cli_say("loss   %.4f in training, %.4f on validation (%.0f s); saved as %s\n", recent, val, spent, path);

    {
        plot_series curves[2] = { { "training", NULL, NULL, 0, 0 }, { "validation", NULL, NULL, 0, 1 } };
        curves[0].x = train_x; curves[0].y = train_y; curves[0].n = n_train;
        curves[1].x = val_x; curves[1].y = val_y; curves[1].n = n_val;
        plot_begin("base", "The base model");
        plot_say("%lld layers of %lld heads, width %lld, %llu parameters; %lld updates of %lld windows of %lld tokens, %.0f seconds. "
                 "Validation loss %.3f.", (long long)layers, (long long)heads, (long long)width, (unsigned long long)model.n_parameters,
                 (long long)updates, (long long)(batch * accumulate), (long long)context, spent, val);
        plot_lines("Loss while learning", "update", "nats a token", curves, 2);
        plot_end();
    }
    cli_json_text("data", data.source);
    cli_json_real("vocabulary", (double)data.tokenizer.vocab_size);
    cli_json_real("layers", (double)layers);
    cli_json_real("heads", (double)heads);
    cli_json_real("width", (double)width);
    cli_json_real("context", (double)context);
    cli_json_real("batch", (double)(batch * accumulate));
    cli_json_real("updates", (double)last);
    cli_json_real("parameters", (double)model.n_parameters);
    cli_json_real("train_loss", recent);
    cli_json_real("val_loss", val);
    cli_json_real("val_loss_best", best);
    cli_json_real("val_windows", (double)eval_windows);
    cli_json_real("seconds", spent);
    cli_json_real("updates_per_second", spent > 0 ? (double)n_train / spent : 0);
    cli_json_real("tokens_per_second", spent > 0 ? (double)n_train * (double)(batch * accumulate * context) / spent : 0);
    free(tokens); free(targets); free(train_x); free(train_y); free(val_x); free(val_y);
    gpts_trainer_free(&trainer);
    gpts_model_free(&model);
    corpus_close(&data);
    return cli_end();
}

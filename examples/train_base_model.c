/* train_base_model.c - tokens -> OUT/base_model.safetensors

   The ordinary case: a GPT, its loss going down.  nanoGPT's setting for a CPU is
     train_base_model --data tinyshakespeare.txt --tokenizer chars --layers 4 --heads 4
                      --width 128 --context 64 --batch 12 --updates 2000
   and gives a validation loss near 1.88.

   One update: draw --batch windows of --context tokens, predict each next token, take the
   gradient, clip it, let AdamW move the weights.  The rate warms up, then follows a cosine
   from --lr to --min-lr.  Every --eval-every updates the loss on fixed windows of the
   validation text is measured; these windows are the same in every run.

   On several GPUs (programs of `make gpu NCCL=1`) every process draws --batch windows of its own:
     torchrun --nproc-per-node=2 --no-python build/train_base_model --gpu ...
   and likewise under mpirun and srun.  Any number of them resumes a checkpoint.

   --checkpoint-every N keeps OUT/checkpoint.safetensors, and --resume FILE goes on from
   one, to the same bits that an uninterrupted run would have reached.                     */
#include "corpus.h"
#include "plot.h"

static int64_t accumulate = 1, eval_every = 0, checkpoint_every = 0, stop_after = 0;
static const char *resume = NULL, *name = "base_model.safetensors";
static int shuffled = 0;

static const cli_flag flags[] = {
    CLI_INT("accumulate", accumulate, 1, 65536, "batches of an update"),
    CLI_SWITCH("shuffled", shuffled, "disjoint windows, each once a pass, instead of random starts"),
    CLI_INT("eval-every", eval_every, 0, 1000000000, "updates between evaluations; 0: an eighth of all"),
    CLI_INT("checkpoint-every", checkpoint_every, 0, 1000000000, "updates between checkpoints; 0: none"),
    CLI_INT("stop-after", stop_after, 0, 1000000000, "stop early at this update, with a checkpoint; 0: at the end"),
    CLI_TEXT("resume", resume, "a checkpoint to go on from"),
    CLI_TEXT("name", name, "file of the model, in OUT"),
    CLI_END };

/* A checkpoint knows its own shape; flags that ask for another are a mistake. */
static void check_shape(const gpts_model *model, const corpus_tokens *data)
{
    const gpts_config *c = &model->config;
    corpus_match(data, model, resume);
    if (c->n_layer != cli_shape.layers || c->n_head != cli_shape.heads || c->n_embd != cli_shape.width || c->n_positions != cli_train.context)
        cli_fail("%s holds %lld layers, %lld heads, width %lld, context %lld; the flags ask for %lld, %lld, %lld, %lld", resume,
                 (long long)c->n_layer, (long long)c->n_head, (long long)c->n_embd, (long long)c->n_positions,
                 (long long)cli_shape.layers, (long long)cli_shape.heads, (long long)cli_shape.width, (long long)cli_train.context);
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
    int64_t part, updates;
    cli_begin(argc, argv, "train_base_model", "Trains a GPT.", CLI_SHAPE | CLI_TRAIN | CLI_DATA | CLI_GPU | CLI_RANKS, flags,
              "data vocabulary layers heads width context batch updates parameters train_loss val_loss val_loss_best\n"
              "  val_windows seconds updates_per_second tokens_per_second");
    if (!cli_train.context) cli_fail("--context must be at least 1");
    cli_config(1, 1);                        /* says what is wrong before anything is made */
    updates = cli_train.updates;
    if (stop_after > cli_train.updates) cli_fail("--stop-after %lld is past --updates %lld", (long long)stop_after, (long long)cli_train.updates);
    cli_make_out();
    cli_results();
    corpus_open(&data);
    corpus_need(&data, cli_train.context);
    T = (size_t)cli_train.context;
    B = (size_t)cli_train.batch;
    if (!eval_every) eval_every = updates < 8 ? 1 : updates / 8;

    /* A model of random weights, or one that was interrupted. */
    if (resume) {
        CLI_TRY(gpts_checkpoint_load(&trainer, &model, resume, &cli.hooks), trainer.error[0] ? trainer.error : model.error);
        check_shape(&model, &data);
        cli_place(&model);
    } else {
        gpts_config config = cli_config(data.tokenizer.vocab_size, cli_train.context);
        gpts_train_options options = cli_options(cli.seed);
        CLI_TRY(gpts_model_init(&model, &config, (uint64_t)cli.seed, &cli.hooks), model.error);
        cli_place(&model);
        CLI_TRY(gpts_trainer_init(&trainer, &model, &options), trainer.error);
    }
    cli_same("the tokens", data.train, data.n_train * sizeof *data.train);
    cli_join(&trainer, accumulate);
    cli_say("data   %s: %llu tokens, vocabulary %d\n", data.source, (unsigned long long)data.n_train, (int)data.tokenizer.vocab_size);
    cli_say("model  %lld layers, %lld heads, width %lld, context %lld: %llu parameters\n", (long long)cli_shape.layers, (long long)cli_shape.heads,
            (long long)cli_shape.width, (long long)cli_train.context, (unsigned long long)model.n_parameters);

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
            val = corpus_loss(&model, &data, T, (size_t)cli_train.eval_windows, B);
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
            CLI_TRY(gpts_windows_batch(&windows, gpts_trainer_windows(&trainer, B), B, tokens, targets), "a window does not fit the data");
            CLI_TRY(gpts_trainer_accumulate(&trainer, &one, NULL), trainer.error);
        }
        CLI_TRY(gpts_trainer_apply(&trainer, &loss), trainer.error);
        recent = n_train ? 0.95 * recent + 0.05 * loss : loss;               /* smoothed, for the eye */
        train_x[n_train] = (double)(step + 1);
        train_y[n_train++] = recent;
        if (checkpoint_every && (step + 1) % (uint64_t)checkpoint_every == 0)
            CLI_TRY(gpts_checkpoint_save(&trainer, cli_path(path, "checkpoint.safetensors")), trainer.error);
        cli_progress("training", step + 1, last, "loss %.3f, val %.3f", recent, val);
    }
    spent = cli_now() - began;
    if (stop_after) CLI_TRY(gpts_checkpoint_save(&trainer, cli_path(path, "checkpoint.safetensors")), trainer.error);
    cli_save(&model, cli_path(path, "%s", name));
    cli_say("loss   %.4f in training, %.4f on validation (%.0f s); saved as %s\n", recent, val, spent, path);

    {
        plot_series curves[2] = { { "training", NULL, NULL, 0, 0 }, { "validation", NULL, NULL, 0, 1 } };
        curves[0].x = train_x; curves[0].y = train_y; curves[0].n = n_train;
        curves[1].x = val_x; curves[1].y = val_y; curves[1].n = n_val;
        plot_begin("base", "The base model");
        plot_say("%lld layers of %lld heads, width %lld, %llu parameters; %lld updates of %lld windows of %lld tokens, %.0f seconds. "
                 "Validation loss %.3f.", (long long)cli_shape.layers, (long long)cli_shape.heads, (long long)cli_shape.width,
                 (unsigned long long)model.n_parameters,
                 (long long)updates, (long long)cli_together(cli_train.batch * accumulate), (long long)cli_train.context, spent, val);
        plot_lines("Loss while learning", "update", "nats a token", curves, 2);
        plot_end();
    }
    cli_json_text("data", data.source);
    cli_json_real("vocabulary", (double)data.tokenizer.vocab_size);
    cli_json_real("layers", (double)cli_shape.layers);
    cli_json_real("heads", (double)cli_shape.heads);
    cli_json_real("width", (double)cli_shape.width);
    cli_json_real("context", (double)cli_train.context);
    cli_json_real("batch", (double)cli_together(cli_train.batch * accumulate));
    cli_json_real("updates", (double)last);
    cli_json_real("parameters", (double)model.n_parameters);
    cli_json_real("train_loss", recent);
    cli_json_real("val_loss", val);
    cli_json_real("val_loss_best", best);
    cli_json_real("val_windows", (double)cli_train.eval_windows);
    cli_json_real("seconds", spent);
    cli_json_real("updates_per_second", spent > 0 ? (double)n_train / spent : 0);
    cli_json_real("tokens_per_second",
                  spent > 0 ? (double)n_train * (double)cli_together(cli_train.batch * accumulate * cli_train.context) / spent : 0);
    free(tokens); free(targets); free(train_x); free(train_y); free(val_x); free(val_y);
    gpts_trainer_free(&trainer);
    gpts_model_free(&model);
    corpus_close(&data);
    return cli_end();
}

/* freeze_heads.c - the whole recipe of static heads, beside the controls that make it honest

   An ordinary model trains to half of its updates.  From that one checkpoint every arm goes
   on to the end on the same windows in the same order, each with its own change made at
   half-way (Selective Attention Freezing, arXiv 2609.34650, section 3):

     ordinary       no change
     order          no change, but other windows from here on: how much a result moves by chance
     linear25       25 % of the heads, those whose pattern varies least, get a fitted pattern
                    in linear form; any percentage
     exact25        the same heads, exact form
     trained25      linear, and the patterns go on training
     uniform25      the same heads, the running mean instead of a pattern
     prune25        the same heads, removed with their values
     taylor25       removed: those whose gate has the least gradient
     random25       linear, but random heads, as many a layer as by variance
     divergence25, output25, loss25      linear, chosen by another score

   The table says what each costs in perplexity against `ordinary` at matched tokens.

   --for-recall makes the models that `recall` goes on from: attention alone, which learns in
   half a minute to look for what followed the same token before (as in circuits).           */
#include "corpus.h"
#include "plot.h"

typedef struct recipe { const char *name; gpts_selector selector; gpts_replacement replacement; int train; } recipe;
static const recipe recipes[] = {
    { "linear", GPTS_SELECT_VARIANCE, GPTS_REPLACE_LINEAR, 0 }, { "exact", GPTS_SELECT_VARIANCE, GPTS_REPLACE_EXACT, 0 },
    { "trained", GPTS_SELECT_VARIANCE, GPTS_REPLACE_LINEAR, 1 }, { "uniform", GPTS_SELECT_VARIANCE, GPTS_REPLACE_UNIFORM, 0 },
    { "prune", GPTS_SELECT_VARIANCE, GPTS_REPLACE_PRUNE, 0 }, { "taylor", GPTS_SELECT_GATE_TAYLOR, GPTS_REPLACE_PRUNE, 0 },
    { "random", GPTS_SELECT_RANDOM, GPTS_REPLACE_LINEAR, 0 }, { "divergence", GPTS_SELECT_DIVERGENCE, GPTS_REPLACE_LINEAR, 0 },
    { "output", GPTS_SELECT_OUTPUT, GPTS_REPLACE_LINEAR, 0 }, { "loss", GPTS_SELECT_LOSS, GPTS_REPLACE_LINEAR, 0 } };
enum { RECIPES = sizeof recipes / sizeof *recipes, NAME = 24 };

static const char *arms = "ordinary,order,linear25,exact25,prune25,uniform25,random25", *seeds = NULL;
static int64_t sequences = 16;
static double gate = 0.2, tolerance = 0.001, at = 0.5, scrambled = 0;
static int again = 0, larger = 0, for_recall = 0;

static const cli_flag flags[] = {
    CLI_TEXT("arms", arms, "what to do at half-way, each word NAME or NAME and a percentage"),
    CLI_TEXT("seeds", seeds, "several seeds, as 1337,1338,1339 (default: --seed)"),
    CLI_REAL("at", at, 0, 1, "where the change is made, as a part of the updates"),
    CLI_SWITCH("for-recall", for_recall, "other defaults: small models of attention alone that learn to look things up"),
    CLI_SWITCH("start-larger", larger, "first weights that a model without norms can learn from, as in circuits"),
    CLI_SWITCH("again", again, "other arms of an earlier run with the same settings: its half-way checkpoints in OUT serve again"),
    CLI_REAL("scrambled", scrambled, 0, 1, "share of the windows that are random tokens of the text, said again and again"),
    CLI_INT("sequences", sequences, 2, 65536, "windows of the training text to calibrate on"),
    CLI_REAL("gate", gate, -1, 1e9, "nats a row that a fit may be from its mean pattern; below 0: any"),
    CLI_REAL("tolerance", tolerance, 0, 10, "nats a row that the linear form may be from the exact one"),
    CLI_END };

typedef struct arm { char name[NAME]; const recipe *how; double share; int order; } arm;
typedef struct outcome {
    double loss, swapped, before, seconds;    /* at the end; right after and before the change; an update's */
    size_t parameters, n, linear, exact, refused, state;
} outcome;

static corpus_tokens data;
static size_t T;

static uint64_t halfway(void) { return (uint64_t)(at * (double)cli_train.updates); }

/* "linear25" -> its recipe and 0.25 */
static arm read_arm(const char *word, size_t length)
{
    arm a;
    size_t letters = 0, i;
    memset(&a, 0, sizeof a);
    if (length >= NAME) cli_fail("--arms does not know \"%.*s\"", (int)length, word);
    memcpy(a.name, word, length);
    if (!strcmp(a.name, "ordinary")) return a;
    if (!strcmp(a.name, "order")) { a.order = 1; return a; }
    while (letters < length && (a.name[letters] < '0' || a.name[letters] > '9')) letters++;
    for (i = 0; i < RECIPES; i++) if (strlen(recipes[i].name) == letters && !strncmp(recipes[i].name, a.name, letters)) a.how = &recipes[i];
    if (!a.how || letters == length)
        cli_fail("--arms takes ordinary, order, or one of linear exact trained uniform prune taylor random divergence output loss with a percentage, as linear25, not \"%s\"", a.name);
    a.share = cli_number("a percentage in --arms", a.name + letters, 1, 1, 100) / 100;
    return a;
}

static void train(gpts_trainer *trainer, const char *what, int64_t until, int64_t seed, double *seconds)
{
    gpts_windows windows = {0};
    int32_t *tokens = CLI_NEW(int32_t, (size_t)cli_train.batch * T), *targets = CLI_NEW(int32_t, (size_t)cli_train.batch * T);
    double loss, began = cli_now();
    int64_t first = (int64_t)trainer->step, step;
    size_t row;
    windows.tokens = data.train; windows.n = data.n_train; windows.T = T; windows.seed = (uint64_t)seed;
    for (step = first; step < until; step++) {
        uint64_t first_window = gpts_trainer_windows(trainer, (size_t)cli_train.batch);
        CLI_TRY(gpts_windows_batch(&windows, first_window, (size_t)cli_train.batch, tokens, targets), "a window does not fit the data");
        for (row = 0; row < (size_t)(scrambled * (double)cli_train.batch + 0.5); row++)
            corpus_scramble(tokens + row * T, targets + row * T, T, &data, (uint64_t)seed, first_window + row);
        CLI_TRY(gpts_trainer_update(trainer, tokens, targets, (size_t)cli_train.batch, T, &loss), trainer->error);
        cli_progress(what, (uint64_t)(step - first) + 1, (uint64_t)(until - first), "loss %.3f", loss);
    }
    if (seconds) *seconds = until > first ? (cli_now() - began) / (double)(until - first) : 0;
    free(tokens);
    free(targets);
}

/* Windows of the training text that training draws by another seed. */
static void calibrate(gpts_calibration *c, gpts_model *model, int64_t seed)
{
    gpts_windows windows = {0};
    int32_t *tokens = CLI_NEW(int32_t, (size_t)sequences * T), *targets = CLI_NEW(int32_t, (size_t)sequences * T);
    c->ranks = &cli_ranks;
    windows.tokens = data.train; windows.n = data.n_train; windows.T = T; windows.seed = (uint64_t)seed + 100003;
    CLI_TRY(gpts_windows_batch(&windows, 0, (size_t)sequences, tokens, targets), "a window does not fit the data");
    CLI_TRY(gpts_calibrate(c, model, tokens, (size_t)sequences, T), c->error);
    free(tokens);
    free(targets);
}

/* The pattern beside its fit, for the report: the head of the report's place `which`. */
static void draw_pattern(const gpts_calibration *c, const gpts_model *model, const gpts_frozen_head *head)
{
    enum { CELLS = 48 };
    const gpts_heads *h = &model->layers[head->layer].heads;
    const gpts_real *mean = c->mean + ((size_t)head->layer * c->H + (size_t)head->head) * c->T * c->T;
    size_t n = T < CELLS ? T : CELLS, i, j, s, slot = 0;
    double cells[2][CELLS * CELLS] = {{0}}, z;
    gpts_real alpha[CELLS], rho[CELLS];
    char title[96];
    for (s = 0; s < h->K; s++) if (h->kept[s] == head->head) slot = (size_t)h->static_slot[s];
    model->ops->download(model->device, alpha, h->alpha + slot * h->S, n * sizeof *alpha);
    model->ops->download(model->device, rho, h->rho + slot * h->S, n * sizeof *rho);
    for (i = 0; i < n; i++) {                 /* (P1) on the first rows: exp(alpha[j] + rho[i-j] - z[i]) */
        for (j = 0, z = 0; j <= i; j++) z += cells[1][i * n + j] = exp((double)alpha[j] + (double)rho[i - j] - (double)alpha[0] - (double)rho[0]);
        for (j = 0; j <= i; j++) { cells[1][i * n + j] /= z; cells[0][i * n + j] = (double)mean[i * c->T + j]; }
    }
    for (s = 0; s < 2; s++) {
        for (i = 0; i < n * n; i++) cells[s][i] = sqrt(cells[s][i]);
        snprintf(title, sizeof title, s ? "... its static pattern" : "Layer %d, head %d: mean attention", (int)head->layer, (int)head->head);
        plot_heat(title, "query", "key", cells[s], NULL, n, n, 0, 0.7);
    }
}

/* One arm of one seed, from the half-way checkpoint; c is the seed's calibration, made when the first arm needs it. */
static outcome run_arm(const arm *a, int64_t seed, gpts_calibration *c, int report)
{
    gpts_model model = {0};
    gpts_trainer trainer = {0};
    gpts_freeze_report frozen = {0};
    outcome r = {0};
    char path[CLI_PATH], what[64];
    CLI_TRY(gpts_checkpoint_load(&trainer, &model, cli_path(path, "halfway_%lld.safetensors", (long long)seed), &cli.hooks), trainer.error);
    if (trainer.step != halfway() || model.config.n_layer != cli_shape.layers || model.config.n_head != cli_shape.heads ||
        model.config.n_embd != cli_shape.width)
        cli_fail("%s is the half-way checkpoint of another run", path);
    cli_place(&model);
    cli_join(&trainer, 1);
    r.before = r.swapped = corpus_loss(&model, &data, T, (size_t)cli_train.eval_windows, (size_t)cli_train.batch);
    if (a->how) {
        gpts_freeze_options o = gpts_freeze_options_default();
        o.share = a->share; o.selector = a->how->selector; o.replacement = a->how->replacement; o.train_patterns = a->how->train;
        o.gate = gate; o.tolerance = tolerance; o.seed = (uint64_t)seed;
        if (!c->column) calibrate(c, &model, seed);
        if (report) {
            double *score = CLI_NEW(double, c->L * c->H), high = 0;
            size_t i;
            memcpy(score, c->variance, c->L * c->H * sizeof *score);
            CLI_TRY(gpts_freeze(&model, &trainer, c, &o, &frozen), model.error);
            {
                int *marked = CLI_NEW(int, c->L * c->H);
                for (i = 0; i < frozen.n; i++) marked[(size_t)frozen.heads[i].layer * c->H + (size_t)frozen.heads[i].head] = 1;
                for (i = 0; i < c->L * c->H; i++) if (score[i] > high) high = score[i];
                plot_row_begin();
                plot_heat("Variance of each head's attention; framed: replaced", "layer", "head", score, marked, c->L, c->H, 0, high);
                plot_row_end();
                plot_row_begin();
                if (frozen.n && c->mean) draw_pattern(c, &model, &frozen.heads[0]);
                plot_row_end();
                free(marked);
            }
            plot_table("head|variance|W|R|nats from the mean|nats from exact|worst row");
            for (i = 0; i < frozen.n; i++) {
                const gpts_frozen_head *h = &frozen.heads[i];
                plot_row("layer %d, head %d|%.3g|%llu|%llu|%.4f|%.5f|%.4f", (int)h->layer, (int)h->head,
                         score[(size_t)h->layer * c->H + (size_t)h->head],
                         (unsigned long long)h->W, (unsigned long long)h->R, h->divergence, h->gap, h->worst_gap);
            }
            plot_table_end();
            free(score);
        } else CLI_TRY(gpts_freeze(&model, &trainer, c, &o, &frozen), model.error);
        r.n = frozen.n; r.linear = frozen.linear; r.exact = frozen.exact; r.refused = frozen.refused;
        gpts_freeze_report_free(&frozen);
        r.swapped = corpus_loss(&model, &data, T, (size_t)cli_train.eval_windows, (size_t)cli_train.batch);
    }
    snprintf(what, sizeof what, "%.23s, seed %lld", a->name, (long long)seed);
    train(&trainer, what, cli_train.updates, a->order ? seed + 7000003 : seed, &r.seconds);
    r.loss = corpus_loss(&model, &data, T, (size_t)cli_train.eval_windows, (size_t)cli_train.batch);
    r.parameters = trainer.n_trainable;
    cli_save(&model, cli_path(path, "%s_%lld.safetensors", a->name, (long long)seed));        /* recall goes on from here */
    if (report) cli_save(&model, cli_path(path, "static_model.safetensors"));
    gpts_trainer_free(&trainer);
    gpts_model_free(&model);
    return r;
}

/* The ordinary model up to the change, saved as a checkpoint. */
static void first_half(int64_t seed)
{
    gpts_model model = {0};
    gpts_trainer trainer = {0};
    gpts_train_options o = cli_options(seed);
    gpts_config config = cli_config(data.tokenizer.vocab_size, cli_train.context);
    char path[CLI_PATH], what[64];
    CLI_TRY(gpts_model_init(&model, &config, (uint64_t)seed, &cli.hooks), model.error);
    if (larger) corpus_start_larger(&model);
    cli_place(&model);
    CLI_TRY(gpts_trainer_init(&trainer, &model, &o), trainer.error);
    cli_join(&trainer, 1);
    snprintf(what, sizeof what, "first part, seed %lld", (long long)seed);
    train(&trainer, what, (int64_t)halfway(), seed, NULL);
    CLI_TRY(gpts_checkpoint_save(&trainer, cli_path(path, "halfway_%lld.safetensors", (long long)seed)), trainer.error);
    gpts_trainer_free(&trainer);
    gpts_model_free(&model);
}

/* The defaults of --for-recall. */
static void prefer_recall(void)
{
    arms = "ordinary,linear25,prune25,taylor25";
    cli_shape.layers = cli_shape.heads = 2; cli_shape.width = 64; cli_shape.inner = 0; cli_shape.norm = "none"; cli_shape.untied = 1;
    cli_train.context = 128; cli_train.batch = 12; cli_train.updates = 1500; cli_train.lr = 1e-2; cli_train.min_lr = 5e-4;
    cli_train.beta2 = 0.98; cli_train.decay = 0.01; cli_train.eval_windows = 64;
    scrambled = 0.5; tolerance = 0.02; larger = 1;
}

int main(int argc, char **argv)
{
    arm list[CLI_LIST];
    size_t n = 0, n_seeds = 1, s, a, pictured = SIZE_MAX;
    int64_t seed[CLI_LIST];
    double change[CLI_LIST], losses[CLI_LIST], mean[CLI_LIST], spread[CLI_LIST], loss[CLI_LIST];
    const char *names[CLI_LIST], *word;
    outcome *runs;
    int i;
    cli_shape.heads = 8;
    cli_shape.position = "rope";
    cli_shape.activation = "gelu_new";
    cli_train.context = 256;
    cli_train.batch = 8;
    cli_train.updates = 800;
    cli_train.eval_windows = 0;
    for (i = 1; i < argc; i++) if (!strcmp(argv[i], "--for-recall")) prefer_recall();
    cli_begin(argc, argv, "freeze_heads", "Replaces attention heads by static patterns half-way through training, beside the controls.",
              CLI_SHAPE | CLI_TRAIN | CLI_DATA | CLI_GPU | CLI_RANKS, flags,
              "layers heads width context batch updates seeds\n"
              "  per arm: val_loss_ARM ppl_change_ARM ppl_change_ARM_spread ppl_change_ARM_SEED val_loss_swap_ARM heads_ARM linear_ARM exact_ARM\n"
              "    trained_parameters_ARM seconds_per_update_ARM");
    seed[0] = cli.seed;
    if (seeds) n_seeds = cli_list("--seeds", seeds, 0, 9007199254740992.0, seed);
    for (word = arms; *word;) {
        size_t length = strcspn(word, ",");
        if (n == CLI_LIST) cli_fail("--arms takes at most %d words", (int)CLI_LIST);
        list[n++] = read_arm(word, length);
        word += length + (word[length] == ',');
    }
    if (!n || strcmp(list[0].name, "ordinary")) cli_fail("--arms must begin with ordinary: the others are measured against it");
    if (!cli_shape.layers) cli_fail("a model of --layers 0 has no heads to replace");
    if (!cli_train.context) cli_fail("--context must be at least 1");
    cli_config(1, 1);                         /* says what is wrong before anything is made */
    cli_make_out();
    cli_results();
    corpus_open(&data);
    corpus_need(&data, cli_train.context);
    cli_same("the tokens", data.train, data.n_train * sizeof *data.train);
    T = (size_t)cli_train.context;
    for (a = n; a-- > 0;) if (list[a].how && list[a].how->replacement <= GPTS_REPLACE_EXACT) pictured = a;

    runs = CLI_NEW(outcome, n * n_seeds);
    plot_begin("heads", "Static heads");
    plot_say("%lld layers of %lld heads, width %lld, %lld tokens of context; %lld updates of %lld tokens, the change after %.0f %% of them. "
             "Patterns are fitted to the mean attention of %lld windows.", (long long)cli_shape.layers, (long long)cli_shape.heads,
             (long long)cli_shape.width, (long long)cli_train.context,
             (long long)cli_train.updates, (long long)cli_together(cli_train.batch * cli_train.context), 100 * at, (long long)sequences);
    for (s = 0; s < n_seeds; s++) {
        gpts_calibration c = {0};
        c.keep_mean = s == 0 && T <= 512;         /* for the pictures: T x T for each head */
        if (!again) first_half(seed[s]);
        for (a = 0; a < n; a++) {
            runs[a * n_seeds + s] = run_arm(&list[a], seed[s], &c, s == 0 && a == pictured);
            cli_say("seed %lld  %-14s loss %.4f (%+.2f %% perplexity), right after the change %.4f, %.3f s an update\n",
                    (long long)seed[s], list[a].name,
                    runs[a * n_seeds + s].loss, 100 * (exp(runs[a * n_seeds + s].loss - runs[s].loss) - 1),
                    runs[a * n_seeds + s].swapped, runs[a * n_seeds + s].seconds);
        }
        gpts_calibration_free(&c);
    }

    cli_json_real("layers", (double)cli_shape.layers);
    cli_json_real("heads", (double)cli_shape.heads);
    cli_json_real("width", (double)cli_shape.width);
    cli_json_real("context", (double)cli_train.context);
    cli_json_real("batch", (double)cli_together(cli_train.batch));
    cli_json_real("updates", (double)cli_train.updates);
    cli_json_real("seeds", (double)n_seeds);
    for (a = 0; a < n; a++) {
        const char *name = names[a] = list[a].name;
        const outcome *r = &runs[a * n_seeds];
        for (s = 0; s < n_seeds; s++) {
            losses[s] = r[s].loss;
            change[s] = 100 * (exp(r[s].loss - runs[s].loss) - 1);
            cli_json_named(change[s], "ppl_change_%s_%lld", name, (long long)seed[s]);
        }
        loss[a] = cli_mean(losses, n_seeds);
        mean[a] = cli_mean(change, n_seeds);
        spread[a] = cli_deviation(change, n_seeds);
        cli_json_named(loss[a], "val_loss_%s", name);
        cli_json_named(mean[a], "ppl_change_%s", name);
        cli_json_named(spread[a], "ppl_change_%s_spread", name);
        for (s = 0; s < n_seeds; s++) losses[s] = r[s].swapped;
        cli_json_named(cli_mean(losses, n_seeds), "val_loss_swap_%s", name);
        cli_json_named((double)r->n, "heads_%s", name);
        cli_json_named((double)r->linear, "linear_%s", name);
        cli_json_named((double)r->exact, "exact_%s", name);
        cli_json_named((double)r->parameters, "trained_parameters_%s", name);
        cli_json_named(r->seconds, "seconds_per_update_%s", name);
    }
    cli_say("\narm            heads linear exact  val loss  perplexity  spread  after the change  trained parameters\n");
    plot_table("arm|heads|linear|exact|loss|perplexity|spread|after the change|trained parameters");
    for (a = 0; a < n; a++) {
        const outcome *r = &runs[a * n_seeds];
        cli_say("%-14s %5llu %6llu %5llu %9.4f   %+7.2f %% %6.2f %17.4f %19llu\n", names[a], (unsigned long long)r->n, (unsigned long long)r->linear,
                (unsigned long long)r->exact, loss[a], mean[a], spread[a], r->swapped, (unsigned long long)r->parameters);
        plot_row("%s|%llu|%llu|%llu|%.4f|%+.2f %%|%.2f|%.4f|%llu", names[a], (unsigned long long)r->n,
                 (unsigned long long)r->linear, (unsigned long long)r->exact,
                 loss[a], mean[a], spread[a], r->swapped, (unsigned long long)r->parameters);
    }
    plot_table_end();
    plot_row_begin();
    plot_bars("Perplexity against ordinary attention, matched tokens", " %", names, mean, n_seeds > 1 ? spread : NULL, NULL, n, 0);
    plot_row_end();
    plot_end();
    free(runs);
    corpus_close(&data);
    return cli_end();
}

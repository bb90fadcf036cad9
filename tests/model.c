/* model.c - the whole model's promises: same bits whatever the threads, accumulation,
   resume, cached against uncached, errors in place of reads past the end, sampling's edge
   values, extreme numbers.  Names with E and a number answer the list in EXPECTATIONS.md.  */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"

static const int is_double = sizeof(gpts_real) == 8;

static const model_case gpt2 =
    { "m_gpt2",         29, 24, 2, 2, 16, -1, LEARNED, LAYER, TANH, 1, 1,   3, 13, NONE, 4, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 };
static const model_case cases[] = {
    { "m_gpt2",         29, 24, 2, 2, 16, -1, LEARNED, LAYER, TANH, 1, 1,   3, 13, NONE, 4, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "m_rope",         31, 24, 3, 3, 18, 40, ROPE,    LAYER, ERF,  0, 0,   2, 21, NONE, 0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "m_attention",    13, 24, 2, 4, 8,  0,  NOPOS,   NONORM,TANH, 0, 0,   2, 24, NONE, 0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "m_approx",       13, 24, 2, 2, 8,  12, LEARNED, LAYER, TANH, 1, 1,   2, 11, NONE, 0, 1,1,10,1,RELU,{0,0,0},{0,0,0}, 0,0,0 },
    { "m_window",       13, 24, 2, 2, 8,  12, ROPE,    LAYER, TANH, 1, 1,   2, 11, NONE, 0, 0,4,10,1,ERF, {0,0,0},{0,0,0}, 0,0,0 },
    { "m_static",       13, 24, 2, 4, 16, 12, ROPE,    LAYER, ERF,  0, 1,   2, 23, NONE, 0, 0,0,0,0,RELU, {5,2,0},{0,0,0}, 24,0,0 },
    { "m_static_all",   13, 24, 2, 2, 8,  12, LEARNED, LAYER, TANH, 1, 1,   2, 24, NONE, 3, 0,0,0,0,RELU, {3,3,0},{0,0,0}, 24,0,0 },
    { "m_linear",       13, 64, 2, 4, 16, 12, ROPE,    LAYER, ERF,  0, 1,   2, 40, NONE, 0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 24,4,0 },
    { "m_pruned",       13, 24, 2, 4, 16, 12, LEARNED, LAYER, TANH, 1, 1,   2, 12, NONE, 0, 0,0,0,0,RELU, {8,0,0},{2,5,0}, 24,0,0 },
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };

/* ---- same bits ----------------------------------------------------------------- */

/* A parallel loop that runs its tasks last to first: nothing may hang on their order. */
static void backwards(void *context, size_t n, gpts_task task, void *arg)
{
    size_t i;
    (void)context;
    for (i = n; i-- > 0; ) task(arg, i);
}

static gpts_train_options quick_options(double dropout)
{
    gpts_train_options o = gpts_train_options_default();
    o.learning_rate = 1e-2; o.min_learning_rate = 1e-3; o.warmup = 2; o.total = 20;
    o.dropout = dropout; o.seed = 9;
    return o;
}

/* Updates from the trainer's step on, each with its own batch. */
static void train(gpts_trainer *t, const model_case *c, int updates)
{
    case_batch b;
    while (updates--) {
        case_batch_make(&b, c, 100 + t->step);
        t_status(gpts_trainer_update(t, b.tokens, b.targets, c->B, c->T, NULL), GPTS_OK);
    }
}

static void compare_threads(const model_case *c, double dropout)
{
    static const int threads[] = { 1, 2, 3, 7 };
    gpts_real *first = NULL;
    int i, order;
    for (order = 0; order < 2; order++) for (i = 0; i < 4; i++) {
        gpts_train_options options = quick_options(dropout);
        gpts_trainer t;
        gpts_model m;
        gpts_hooks hooks;
        memset(&hooks, 0, sizeof hooks);
        memset(&t, 0, sizeof t);
        hooks.threads = threads[i];
        if (order) hooks.parallel_for = backwards;
        t_status(case_model(&m, c, &hooks), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        if (t_state.bad) return;
        train(&t, c, 3);
        if (!first) first = weights_of(&m);
        else { gpts_real *now = weights_of(&m); t_bits(first, now, m.n_parameters * sizeof *first); free(now); }
        gpts_trainer_free(&t);
        gpts_model_free(&m);
    }
    free(first);
}
static void E51_threads_do_not_change_bits(void)
{
    int k;
    for (k = 0; k < CASES; k++) compare_threads(&cases[k], 0);
}
static void E51_threads_do_not_change_bits_with_dropout(void)        /* (D1) (D2) */
{
    int k;
    for (k = 0; k < CASES; k++) compare_threads(&cases[k], 0.2);
}

static void dropout_changes_training_but_not_inference(void)
{
    double with, without;
    gpts_train_options options = quick_options(0.5);
    gpts_trainer t;
    gpts_model m;
    case_batch b;
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_status(gpts_model_forward(&m, &b.batch, NULL, &without), GPTS_OK);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    with = t.loss_sum / (double)t.loss_count;
    t_ok(fabs(with - without) > 1e-4);
    t_status(gpts_model_forward(&m, &b.batch, NULL, &with), GPTS_OK);
    t_ok(with == without);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

/* ---- training ------------------------------------------------------------------ */

static double relative(const gpts_real *a, const gpts_real *b, size_t n)
{
    double d = 0, s = 0;
    size_t i;
    for (i = 0; i < n; i++) { double e = (double)a[i] - (double)b[i]; d += e * e; s += (double)b[i] * (double)b[i]; }
    return d == 0 ? 0 : sqrt(d / s);
}

static double gradient_size(const gpts_trainer *t)
{
    gpts_real *g = trained_of(t, t->gradients);
    double s = 0;
    size_t i;
    for (i = 0; i < t->n_trainable; i++) s += (double)g[i] * (double)g[i];
    free(g);
    return sqrt(s);
}

static void E53_accumulation_equals_one_big_batch(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer whole, parts;
    gpts_model m;
    gpts_batch row;
    case_batch b;
    double loss_whole = 0, loss_parts = 0;
    gpts_real *a, *c;
    size_t i;
    memset(&whole, 0, sizeof whole); memset(&parts, 0, sizeof parts);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&whole, &m, &options), GPTS_OK);
    t_status(gpts_trainer_init(&parts, &m, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&whole, &b.batch, NULL), GPTS_OK);
    row = b.batch; row.B = 1;
    for (i = 0; i < b.batch.B; i++) {
        row.tokens = b.tokens + i * row.T; row.targets = b.targets + i * row.T;
        t_status(gpts_trainer_accumulate(&parts, &row, NULL), GPTS_OK);
    }
    t_equal(whole.loss_count, parts.loss_count);
    a = trained_of(&parts, parts.gradients); c = trained_of(&whole, whole.gradients);
    t_ok(relative(a, c, whole.n_trainable) < (is_double ? 1e-13 : 1e-5));
    free(a); free(c);
    t_status(gpts_trainer_apply(&parts, &loss_parts), GPTS_OK);
    t_status(gpts_trainer_apply(&whole, &loss_whole), GPTS_OK);
    t_close(loss_parts, loss_whole, is_double ? 1e-13 : 1e-5);
    gpts_trainer_free(&whole); gpts_trainer_free(&parts);
    gpts_model_free(&m);
}

static void backward_adds_to_the_gradient(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    case_batch b;
    gpts_real *once, *twice;
    size_t i;
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    once = trained_of(&t, t.gradients);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    for (i = 0; i < t.n_trainable; i++) once[i] *= 2;
    twice = trained_of(&t, t.gradients);
    t_ok(relative(twice, once, t.n_trainable) < (is_double ? 1e-14 : 1e-6));
    free(twice);
    t_status(gpts_trainer_apply(&t, NULL), GPTS_OK);
    twice = trained_of(&t, t.gradients);
    for (i = 0; i < t.n_trainable; i++) t_ok((double)twice[i] == 0);
    free(once); free(twice);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E54_every_tensor_trains(void)
{
    int k;
    for (k = 0; k < CASES; k++) {
        gpts_train_options options = quick_options(0);
        gpts_trainer t;
        gpts_model m;
        gpts_real *before;
        size_t i, at = 0;
        memset(&t, 0, sizeof t);
        t_status(case_model(&m, &cases[k], NULL), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        if (t_state.bad) return;
        before = weights_of(&m);
        train(&t, &cases[k], 2);
        for (i = 0; i < m.n_tensors; i++) {
            const gpts_tensor *x = &m.tensors[i];
            int moved = memcmp(before + at, x->data, x->size * sizeof *before) != 0;
            at += x->size;
            if (moved != (x->trainable != 0)) t_fail(__FILE__, __LINE__, x->name);
        }
        free(before);
        gpts_trainer_free(&t);
        gpts_model_free(&m);
    }
}

/* (P3) wants coefficients of 0 or more and decays in 0 .. 1, whatever the updates do; the file
   of such a model loads. */
static void trained_patterns_stay_patterns(void)
{
    model_case c = cases[7];
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m, back;
    char path[100];
    size_t k, i;
    int moved = 0;
    memset(&t, 0, sizeof t); memset(&back, 0, sizeof back);
    c.patterns_train = 1;
    options.learning_rate = options.min_learning_rate = 0.3;
    t_status(case_model(&m, &c, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    if (t_state.bad) return;
    train(&t, &c, 12);
    for (k = 0; k < m.n_tensors; k++) for (i = 0; i < m.tensors[k].size; i++) {
        double x = (double)m.tensors[k].data[i];
        if (m.tensors[k].kind == GPTS_P_TAIL_COEF) { t_ok(x >= 0); moved += x < 1e-30; }
        if (m.tensors[k].kind == GPTS_P_TAIL_DECAY) { t_ok(x > 0 && x <= 1); moved += x == 1 || x < 1e-30; }
    }
    t_ok(moved > 0);                                             /* some did reach a bound */
    scratch_path(path, sizeof path, "trained_patterns");
    t_status(gpts_model_save(&m, path), GPTS_OK);
    t_status(gpts_model_load(&back, path, NULL), GPTS_OK);
    t_text(back.error, "");
    remove(path);
    gpts_model_free(&back);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E68_tied_weights_get_both_gradients(void)
{
    /* the tied gradient = that of wte + that of lm_head of an untied model with equal matrices */
    model_case untied_case = gpt2;
    gpts_train_options options = quick_options(0);
    gpts_trainer tied, untied;
    gpts_model a, b;
    case_batch batch;
    gpts_tensor *wte, *head;
    gpts_real *sum;
    size_t i, k;
    memset(&tied, 0, sizeof tied); memset(&untied, 0, sizeof untied);
    untied_case.tied = 0;
    case_batch_make(&batch, &gpt2, 1);
    t_status(case_model(&a, &gpt2, NULL), GPTS_OK);
    t_status(case_model(&b, &untied_case, NULL), GPTS_OK);
    if (t_state.bad) return;
    for (k = 0; k < b.n_tensors; k++) {
        const gpts_tensor *from = gpts_model_tensor(&a, b.tensors[k].kind == GPTS_P_LM_HEAD ? "wte.weight" : b.tensors[k].name);
        memcpy(b.tensors[k].data, from->data, from->size * sizeof(gpts_real));
    }
    t_ok(gpts_model_tensor(&a, "lm_head.weight") == NULL);
    t_status(gpts_trainer_init(&tied, &a, &options), GPTS_OK);
    t_status(gpts_trainer_init(&untied, &b, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&tied, &batch.batch, NULL), GPTS_OK);
    t_status(gpts_trainer_accumulate(&untied, &batch.batch, NULL), GPTS_OK);
    wte = gpts_model_tensor(&b, "wte.weight"); head = gpts_model_tensor(&b, "lm_head.weight");
    sum = (gpts_real *)malloc(wte->size * sizeof *sum);
    for (i = 0; i < wte->size; i++) sum[i] = gpts_trainer_gradient(&untied, wte)[i] + gpts_trainer_gradient(&untied, head)[i];
    t_ok(relative(gpts_trainer_gradient(&tied, gpts_model_tensor(&a, "wte.weight")), sum, wte->size) < (is_double ? 1e-13 : 1e-5));
    free(sum);
    gpts_trainer_free(&tied); gpts_trainer_free(&untied);
    gpts_model_free(&a); gpts_model_free(&b);
}

static void one_batch_is_learnt_by_heart(void)
{
    int k;
    for (k = 0; k < CASES; k++) {
        const model_case *c = &cases[k];
        gpts_config config = case_config(c);
        gpts_train_options options = gpts_train_options_default();
        gpts_trainer t;
        gpts_model m;
        case_batch b;
        double first = 0, last = 0;
        int i;
        memset(&t, 0, sizeof t); memset(&m, 0, sizeof m);
        if (c->S || c->approx_hidden || c->F == 0) continue;
        options.learning_rate = options.min_learning_rate = 1e-2; options.weight_decay = 0;
        case_batch_make(&b, c, 1);
        t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        for (i = 0; i < 150; i++) {
            t_status(gpts_trainer_update(&t, b.tokens, b.targets, c->B, c->T, &last), GPTS_OK);
            if (!i) first = last;
        }
        t_close(first, log((double)c->V), 0.3);                   /* starts at chance */
        t_ok(last < 0.05);
        gpts_trainer_free(&t);
        gpts_model_free(&m);
    }
}

static void frozen_tensors_stay_and_are_outside_the_norm(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    gpts_tensor *x;
    gpts_real *before, *g;
    double s = 0, count;
    case_batch b;
    size_t i;
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    x = gpts_model_tensor(&m, "h.1.mlp.c_fc.weight");
    x->trainable = 0;
    before = (gpts_real *)malloc(x->size * sizeof *before);
    memcpy(before, x->data, x->size * sizeof *before);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_equal(t.n_trainable, m.n_parameters - x->size);
    t_ok(gpts_trainer_gradient(&t, x) == NULL);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    count = (double)t.loss_count;
    g = trained_of(&t, t.gradients);
    for (i = 0; i < t.n_trainable; i++) s += (double)g[i] * (double)g[i];
    free(g);
    t_status(gpts_trainer_apply(&t, NULL), GPTS_OK);
    t_close(t.gradient_norm, sqrt(s) / count, 1e-6 * sqrt(s));   /* (O1) */
    t_bits(before, x->data, x->size * sizeof *before);
    free(before);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void schedule_warms_up_and_follows_the_cosine(void)         /* (O3) */
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    memset(&t, 0, sizeof t);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    options.warmup = 10; options.total = 110;
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_ok(gpts_trainer_rate(&t, 0) > 0 && gpts_trainer_rate(&t, 0) < gpts_trainer_rate(&t, 5));
    t_close(gpts_trainer_rate(&t, 10), 1e-2, 1e-4);
    t_close(gpts_trainer_rate(&t, 60), (1e-2 + 1e-3) / 2, 2e-4);
    t_close(gpts_trainer_rate(&t, 110), 1e-3, 1e-5);
    t_close(gpts_trainer_rate(&t, 100000), 1e-3, 1e-9);
    gpts_trainer_free(&t);
    options.total = options.warmup = 0;
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_close(gpts_trainer_rate(&t, 100000), 1e-2, 1e-12);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E60_ten_updates_equal_five_and_a_resume_of_five(void)
{
    int k;
    for (k = 0; k < CASES; k++) {
        gpts_train_options options = quick_options(0.1);
        gpts_trainer straight, half, resumed;
        gpts_model a, b, c;
        char path[100];
        memset(&straight, 0, sizeof straight); memset(&half, 0, sizeof half); memset(&resumed, 0, sizeof resumed);
        memset(&c, 0, sizeof c);
        scratch_path(path, sizeof path, "resume");
        t_status(case_model(&a, &cases[k], NULL), GPTS_OK);
        t_status(case_model(&b, &cases[k], NULL), GPTS_OK);
        t_status(gpts_trainer_init(&straight, &a, &options), GPTS_OK);
        t_status(gpts_trainer_init(&half, &b, &options), GPTS_OK);
        if (t_state.bad) return;
        train(&straight, &cases[k], 10);
        train(&half, &cases[k], 5);
        half.data_position = 1234567890123u;
        t_status(gpts_checkpoint_save(&half, path), GPTS_OK);
        t_status(gpts_checkpoint_load(&resumed, &c, path, NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s: %s %s\n", cases[k].name, half.error, resumed.error); return; }
        t_equal(resumed.step, 5);
        t_ok(resumed.data_position == 1234567890123u);
        train(&resumed, &cases[k], 5);
        t_ok(same_weights(&a, &c));
        t_equal(straight.n_trainable, resumed.n_trainable);
        {
            gpts_real *v = trained_of(&straight, straight.moment2), *w = trained_of(&resumed, resumed.moment2);
            t_bits(v, w, straight.n_trainable * sizeof(gpts_real));
            free(v); free(w);
        }
        remove(path);
        gpts_trainer_free(&straight); gpts_trainer_free(&half); gpts_trainer_free(&resumed);
        gpts_model_free(&a); gpts_model_free(&b); gpts_model_free(&c);
    }
}

static void E55_a_NaN_names_step_and_tensor(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    case_batch b;
    gpts_real *before, *after;
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    train(&t, &gpt2, 2);
    gpts_model_tensor(&m, "h.1.mlp.c_proj.weight")->data[5] = (gpts_real)NAN;
    before = weights_of(&m);
    t_status(gpts_trainer_update(&t, b.tokens, b.targets, gpt2.B, gpt2.T, NULL), GPTS_NOT_FINITE);
    t_says(t.error, "update 2");                                 /* counted from 0 */
    t_says(t.error, "h.1.mlp.c_proj.weight");
    after = weights_of(&m);
    t_bits(before, after, m.n_parameters * sizeof *before);
    t_equal(t.step, 2);
    free(before); free(after);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E55_a_learning_rate_of_1000_is_survived(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    case_batch b;
    int i, seen = 0;
    double loss = 0;
    memset(&t, 0, sizeof t);
    options.learning_rate = options.min_learning_rate = 1e3; options.warmup = options.total = 0;
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    for (i = 0; i < 30; i++) {
        gpts_status s = gpts_trainer_update(&t, b.tokens, b.targets, gpt2.B, gpt2.T, &loss);
        if (s == GPTS_OK) t_ok(loss - loss == 0);                /* finite */
        else { t_status(s, GPTS_NOT_FINITE); t_ok(t.error[0] != 0); seen = 1; break; }
    }
    (void)seen;
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E56_a_text_shorter_than_a_window_is_an_error(void)
{
    static const uint16_t text[9] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
    int32_t tokens[64], targets[64];
    gpts_windows w;
    uint64_t i;
    int seen[3] = { 0, 0, 0 };
    memset(&w, 0, sizeof w);
    w.tokens = text; w.n = 4; w.T = 4; w.seed = 1;
    t_status(gpts_windows_batch(&w, 0, 1, tokens, targets), GPTS_BAD_ARGUMENT);
    w.n = 0;
    t_status(gpts_windows_batch(&w, 0, 1, tokens, targets), GPTS_BAD_ARGUMENT);
    w.n = 5;                                                     /* one window, exactly */
    t_status(gpts_windows_batch(&w, 7, 2, tokens, targets), GPTS_OK);
    for (i = 0; i < 8; i++) { t_equal(tokens[i], i % 4); t_equal(targets[i], i % 4 + 1); }
    w.n = 9; w.T = 3;
    for (i = 0; i < 40; i++) {
        t_status(gpts_windows_batch(&w, i, 1, tokens, targets), GPTS_OK);
        t_ok(tokens[0] >= 0 && tokens[0] <= 5);
        t_equal(targets[2], tokens[0] + 3);
    }
    w.shuffled = 1; w.T = 4;                                     /* two disjoint windows, each once per pass */
    for (i = 0; i < 20; i += 2) {
        t_status(gpts_windows_batch(&w, i, 2, tokens, targets), GPTS_OK);
        t_equal(tokens[0] + tokens[4], 4);
        seen[tokens[0] / 4]++;
    }
    t_ok(seen[0] > 0 && seen[1] > 0);
}

/* ---- forward ------------------------------------------------------------------- */

static void later_tokens_do_not_reach_earlier_logits(void)
{
    int k;
    for (k = 0; k < CASES; k++) {
        const model_case *c = &cases[k];
        size_t V = (size_t)c->V, n = c->B * c->T * V, i, row;
        gpts_real *before = (gpts_real *)malloc(n * sizeof *before), *after = (gpts_real *)malloc(n * sizeof *after);
        gpts_model m;
        case_batch b;
        size_t at = c->T / 2;
        case_batch_make(&b, c, 1);
        t_status(case_model(&m, c, NULL), GPTS_OK);
        if (t_state.bad) return;
        t_status(gpts_model_forward(&m, &b.batch, before, NULL), GPTS_OK);
        for (i = at; i < c->T; i++) b.tokens[i] = (b.tokens[i] + 1) % (int32_t)c->V;      /* row 0 only */
        t_status(gpts_model_forward(&m, &b.batch, after, NULL), GPTS_OK);
        t_bits(before, after, at * V * sizeof *before);
        t_ok(memcmp(before + at * V, after + at * V, V * sizeof *before) != 0);
        for (row = 1; row < c->B; row++) t_bits(before + row * c->T * V, after + row * c->T * V, c->T * V * sizeof *before);
        free(before); free(after);
        gpts_model_free(&m);
    }
}

static void padding_does_not_change_a_row(void)
{
    static const int sides[] = { LEFT, RIGHT };
    int k, side;
    for (k = 0; k < CASES; k++) for (side = 0; side < 2; side++) {
        model_case c = cases[k];
        size_t V = (size_t)c.V, i, row;
        gpts_real *padded, *alone;
        gpts_model m;
        case_batch b;
        c.padding = sides[side]; c.B = 4; c.T = c.T < 12 ? c.T : 12;
        padded = (gpts_real *)malloc(c.B * c.T * V * sizeof *padded);
        alone = (gpts_real *)malloc(c.T * V * sizeof *alone);
        case_batch_make(&b, &c, 1);
        t_status(case_model(&m, &c, NULL), GPTS_OK);
        if (t_state.bad) return;
        t_status(gpts_model_forward(&m, &b.batch, padded, NULL), GPTS_OK);
        for (row = 0; row < c.B; row++) {
            gpts_batch one;
            memset(&one, 0, sizeof one);
            one.B = 1; one.T = (size_t)b.length[row];
            one.tokens = b.tokens + row * c.T + b.first[row];
            t_status(gpts_model_forward(&m, &one, alone, NULL), GPTS_OK);
            for (i = 0; i < one.T; i++)
                t_ok(relative(padded + (row * c.T + (size_t)b.first[row] + i) * V, alone + i * V, V) < (is_double ? 1e-12 : 1e-5));
        }
        free(padded); free(alone);
        gpts_model_free(&m);
    }
}

static void E52_rows_without_a_token_give_zero_loss_and_gradient(void)
{
    gpts_train_options options = quick_options(0);
    gpts_trainer t;
    gpts_model m;
    case_batch b;
    gpts_real *logits = (gpts_real *)malloc(gpt2.B * gpt2.T * (size_t)gpt2.V * sizeof *logits);
    double loss = 1;
    size_t i;
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    for (i = 0; i < gpt2.B * gpt2.T; i++) b.targets[i] = -1;
    for (i = 0; i < gpt2.B; i++) { b.first[i] = 0; b.length[i] = 0; }
    b.batch.first = b.first; b.batch.length = b.length;
    t_status(gpts_model_forward(&m, &b.batch, logits, &loss), GPTS_OK);
    t_ok(loss == 0);
    for (i = 0; i < gpt2.B * gpt2.T * (size_t)gpt2.V; i++) t_ok((double)logits[i] - (double)logits[i] == 0);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    t_ok(gradient_size(&t) == 0);
    t_status(gpts_trainer_apply(&t, &loss), GPTS_OK);
    t_ok(loss == 0);
    free(logits);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void scale_tensor(gpts_model *m, const char *name, double by)
{
    gpts_tensor *t = gpts_model_tensor(m, name);
    size_t i;
    for (i = 0; i < t->size; i++) t->data[i] = (gpts_real)((double)t->data[i] * by);
}

static void E52_huge_logits_and_scores_stay_finite(void)
{
    int k;
    for (k = 0; k < 2; k++) {
        const model_case *c = &cases[k];
        gpts_train_options options = quick_options(0);
        gpts_trainer t;
        gpts_model m;
        case_batch b;
        double loss = 0;
        memset(&t, 0, sizeof t);
        case_batch_make(&b, c, 1);
        t_status(case_model(&m, c, NULL), GPTS_OK);
        scale_tensor(&m, "h.0.attn.c_attn.weight", 120.0);      /* scores near +-3e4 */
        scale_tensor(&m, c->tied ? "ln_f.weight" : "lm_head.weight", 1e4);  /* logits apart by 1e4 */
        t_status(gpts_model_forward(&m, &b.batch, NULL, &loss), GPTS_OK);
        t_ok(loss > 1e3 && loss < 1e6);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
        t_ok(gradient_size(&t) < INFINITY);
        gpts_trainer_free(&t);
        gpts_model_free(&m);
    }
}

static void E36_a_row_of_zero_variance_is_normalised_to_the_bias(void)
{
    gpts_model m;
    case_batch b;
    double loss = 0;
    gpts_trainer t;
    gpts_train_options options = quick_options(0);
    memset(&t, 0, sizeof t);
    case_batch_make(&b, &gpt2, 1);
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    scale_tensor(&m, "wte.weight", 0); scale_tensor(&m, "wpe.weight", 0);
    t_status(gpts_model_forward(&m, &b.batch, NULL, &loss), GPTS_OK);
    t_close(loss, log((double)gpt2.V), 1e-6);                    /* all logits are 0 */
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    t_ok(gradient_size(&t) < INFINITY);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void E69_too_long_is_an_error(void)
{
    gpts_model m;
    gpts_session s;
    gpts_batch batch;
    int32_t ids[64];
    double loss = 7;
    int i;
    memset(&s, 0, sizeof s); memset(&batch, 0, sizeof batch);
    for (i = 0; i < 64; i++) ids[i] = i % 13;
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);             /* 24 learned positions */
    batch.tokens = ids; batch.targets = ids; batch.B = 1; batch.T = 24;
    t_status(gpts_model_forward(&m, &batch, NULL, &loss), GPTS_OK);
    batch.T = 25;
    t_status(gpts_model_forward(&m, &batch, NULL, &loss), GPTS_TOO_LONG);
    t_says(m.error, "24"); t_says(m.error, "25");
    /* the session's capacity */
    t_status(gpts_session_init(&s, &m, 1, 10, NULL), GPTS_OK);
    t_status(gpts_session_prefill(&s, ids, 11, NULL), GPTS_TOO_LONG);
    t_says(s.error, "10");
    t_status(gpts_session_prefill(&s, ids, 10, NULL), GPTS_OK);
    t_status(gpts_session_decode(&s, ids), GPTS_TOO_LONG);
    t_equal(s.position[0], 10);
    gpts_session_reset(&s);
    t_status(gpts_session_prefill(&s, ids, 9, NULL), GPTS_OK);
    t_status(gpts_session_decode(&s, ids), GPTS_OK);
    gpts_session_free(&s);
    /* learned positions, where the capacity would do */
    if (gpts_session_init(&s, &m, 1, 64, NULL) == GPTS_OK) {
        t_status(gpts_session_prefill(&s, ids, 24, NULL), GPTS_OK);
        t_status(gpts_session_decode(&s, ids), GPTS_TOO_LONG);
    } else t_ok(s.error[0] != 0);
    gpts_session_free(&s);
    gpts_model_free(&m);
    /* an exact static head past the length of its pattern */
    t_status(case_model(&m, &cases[5], NULL), GPTS_OK);
    batch.T = 25; batch.targets = NULL;
    if (!t_state.bad) { t_status(gpts_model_forward(&m, &batch, NULL, NULL), GPTS_TOO_LONG); t_says(m.error, "24"); }
    gpts_model_free(&m);
    /* rotary and a linear pattern run on */
    t_status(case_model(&m, &cases[7], NULL), GPTS_OK);
    batch.T = 64;
    if (!t_state.bad) t_status(gpts_model_forward(&m, &batch, NULL, NULL), GPTS_OK);
    gpts_model_free(&m);
}

static void E20_wrong_arguments_get_a_sentence(void)
{
    gpts_model m;
    gpts_config config = case_config(&gpt2);
    case_batch b;
    case_batch_make(&b, &gpt2, 1);
    memset(&m, 0, sizeof m);
#define WRONG(field, value) do { gpts_config w = config; w.field = value; \
        t_status(gpts_model_init(&m, &w, 1, NULL), GPTS_BAD_ARGUMENT); t_ok(m.error[0] != 0); gpts_model_free(&m); memset(&m, 0, sizeof m); } while (0)
    WRONG(vocab_size, 0); WRONG(vocab_size, -5); WRONG(n_positions, 0); WRONG(n_layer, -1); WRONG(n_head, 0);
    WRONG(n_head, 3); WRONG(n_embd, 0); WRONG(n_inner, -2); WRONG(layer_norm_epsilon, -1.0); WRONG(layer_norm_epsilon, NAN);
    WRONG(activation, (gpts_activation)9); WRONG(position, (gpts_position)9); WRONG(norm, (gpts_norm)9);
#undef WRONG
    { gpts_config odd = config; odd.position = GPTS_POSITION_ROPE; odd.n_embd = 6; odd.n_head = 2;
      t_status(gpts_model_init(&m, &odd, 1, NULL), GPTS_BAD_ARGUMENT); t_says(m.error, "even"); gpts_model_free(&m); memset(&m, 0, sizeof m); }
    { gpts_config vast = config; vast.vocab_size = INT64_MAX / 2; vast.n_embd = 1 << 20; vast.n_head = 1;            /* E34 */
      t_ok(gpts_model_init(&m, &vast, 1, NULL) != GPTS_OK); t_ok(m.error[0] != 0); gpts_model_free(&m); memset(&m, 0, sizeof m); }
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    b.tokens[3] = (int32_t)gpt2.V;
    t_status(gpts_model_forward(&m, &b.batch, NULL, NULL), GPTS_BAD_ARGUMENT);
    t_says(m.error, "29");
    b.tokens[3] = -1;
    t_status(gpts_model_forward(&m, &b.batch, NULL, NULL), GPTS_BAD_ARGUMENT);
    b.tokens[3] = 0; b.targets[2] = (int32_t)gpt2.V;
    { double loss; t_status(gpts_model_forward(&m, &b.batch, NULL, &loss), GPTS_BAD_ARGUMENT); }
    gpts_model_free(&m);
}

static void E06_a_header_of_another_build_is_refused(void)
{
    gpts_model m;
    gpts_config config = case_config(&gpt2);
    memset(&m, 0, sizeof m);
    t_status(gpts_model_init_checked(&m, &config, 1, NULL, GPTS_ABI ^ 12u), GPTS_MISMATCH);
    t_ok(m.error[0] != 0);
    gpts_model_free(&m);
}

static void E15_zeroed_objects_can_be_freed_twice(void)
{
    gpts_model m; gpts_trainer t; gpts_session s; gpts_file f; gpts_tokenizer k; gpts_approximator a; gpts_recording r; gpts_tokens ids;
    int i;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&s, 0, sizeof s); memset(&f, 0, sizeof f);
    memset(&k, 0, sizeof k); memset(&a, 0, sizeof a); memset(&r, 0, sizeof r); memset(&ids, 0, sizeof ids);
    for (i = 0; i < 2; i++) {
        gpts_trainer_free(&t); gpts_session_free(&s); gpts_model_free(&m); gpts_file_close(&f);
        gpts_tokenizer_free(&k); gpts_approximator_free(&a); gpts_recording_free(&r); gpts_tokens_free(&ids);
    }
    t_status(case_model(&m, &gpt2, NULL), GPTS_OK);
    gpts_model_free(&m); gpts_model_free(&m);
    t_ok(m.parameters == NULL);
}

/* ---- cached and uncached -------------------------------------------------------- */

static void compare_cached(const model_case *c, size_t prefix)
{
    size_t V = (size_t)c->V, B = c->B, T = c->T, row, i;
    gpts_real *full = (gpts_real *)malloc(B * T * V * sizeof *full);
    int32_t *ids = (int32_t *)malloc(B * T * sizeof *ids);
    double worst = 0;
    gpts_model m;
    gpts_session s;
    case_batch b;
    memset(&s, 0, sizeof s);
    case_batch_make(&b, c, 1);
    t_status(case_model(&m, c, NULL), GPTS_OK);
    if (t_state.bad) return;
    t_status(gpts_model_forward(&m, &b.batch, full, NULL), GPTS_OK);
    t_status(gpts_session_init(&s, &m, B, T, NULL), GPTS_OK);
    for (row = 0; row < B; row++) memcpy(ids + row * prefix, b.tokens + row * T, prefix * sizeof *ids);
    t_status(gpts_session_prefill(&s, ids, prefix, NULL), GPTS_OK);
    for (i = prefix; i <= T && !t_state.bad; i++) {
        for (row = 0; row < B; row++) {
            double e = relative(gpts_session_logits(&s, row), full + (row * T + i - 1) * V, V);
            worst = t_most(worst, e);
            t_equal(s.position[row], i);
        }
        if (i == T) break;
        for (row = 0; row < B; row++) ids[row] = b.tokens[row * T + i];
        t_status(gpts_session_decode(&s, ids), GPTS_OK);
    }
    if (!(worst < (is_double ? 1e-12 : 1e-5))) { printf("  %s, prefix %d: off by %.1e\n", c->name, (int)prefix, worst); t_ok(!"cached logits differ"); }
    gpts_session_free(&s);
    gpts_model_free(&m);
    free(full); free(ids);
}

/* Greedy decoding is sampling at temperature 0, token by token. */
static void greedy_decoding_takes_the_likeliest(void)
{
    enum { B = 2, N = 9 };
    model_case c;
    gpts_model m;
    gpts_session s, r;
    gpts_sampling greedy = { 0, 0, 0 };
    gpts_rng rng = { 1, 0 };
    int32_t ids[B * 4] = { 1, 2, 3, 4, 5, 6, 7, 8 }, many[N * B], one[B];
    size_t i, b, V;
    memset(&c, 0, sizeof c);
    c.name = "greedy"; c.V = 37; c.positions = 16; c.L = 2; c.H = 2; c.C = 16; c.F = -1; c.bias = c.tied = 1;
    V = (size_t)c.V;
    t_status(case_model(&m, &c, NULL), GPTS_OK);
    t_status(gpts_session_init(&s, &m, B, 14, NULL), GPTS_OK); t_status(gpts_session_init(&r, &m, B, 14, NULL), GPTS_OK);
    t_status(gpts_session_prefill(&s, ids, 4, NULL), GPTS_OK); t_status(gpts_session_prefill(&r, ids, 4, NULL), GPTS_OK);
    t_status(gpts_session_greedy(&s, many, N), GPTS_OK);
    for (i = 0; i < N; i++) {
        for (b = 0; b < B; b++) { one[b] = gpts_sample(gpts_session_logits(&r, b), V, &greedy, &rng); t_equal(one[b], many[i * B + b]); }
        t_status(gpts_session_decode(&r, one), GPTS_OK);
    }
    t_ok(!memcmp(s.logits, r.logits, B * V * sizeof *s.logits));
    t_status(gpts_session_greedy(&s, many, 2), GPTS_TOO_LONG);
    t_status(gpts_session_decode(&s, (one[0] = 37, one)), GPTS_BAD_ARGUMENT);
    gpts_session_free(&s); gpts_session_free(&r); gpts_model_free(&m);
}

static void likeliest_is_the_largest_logit_of_each_position(void)
{
    enum { B = 3, T = 11, V = 41 };
    model_case c;
    gpts_model m;
    gpts_batch batch;
    int32_t ids[B * T], best[B * T];
    gpts_real logits[B * T * V];
    gpts_rng rng = { 8, 0 };
    size_t i;
    memset(&c, 0, sizeof c);
    memset(&batch, 0, sizeof batch);
    c.name = "likeliest"; c.V = V; c.positions = 16; c.L = 1; c.H = 2; c.C = 16; c.F = -1; c.bias = c.tied = 1;
    t_status(case_model(&m, &c, NULL), GPTS_OK);
    for (i = 0; i < B * T; i++) ids[i] = (int32_t)gpts_rng_below(&rng, V);
    batch.tokens = ids; batch.B = B; batch.T = T;
    t_status(gpts_model_forward(&m, &batch, logits, NULL), GPTS_OK);
    t_status(gpts_model_likeliest(&m, &batch, best), GPTS_OK);
    for (i = 0; i < B * T; i++) t_equal(best[i], gpts_sample(logits + i * V, V, NULL, NULL));
    ids[4] = V;
    t_status(gpts_model_likeliest(&m, &batch, best), GPTS_BAD_ARGUMENT);
    gpts_model_free(&m);
}

static void cached_logits_equal_uncached(void)                  /* (A3) (M3) */
{
    int k;
    for (k = 0; k < CASES; k++) {
        compare_cached(&cases[k], 1);
        compare_cached(&cases[k], cases[k].T / 2);
        compare_cached(&cases[k], cases[k].T);
    }
}

/* In bfloat16 a model learns as it does in floats, and its session, which reads a bfloat16 copy of the
   weights, says what the uncached model says; the copy follows the weights.                       */
static void bfloat16_learns_and_decodes(void)
{
    gpts_config config = gpts_config_default();
    int32_t tokens[64], targets[64], id;
    double loss[2] = { 0, 0 };
    gpts_real *logits = (gpts_real *)malloc(64 * 61 * sizeof *logits);
    int bf16, step, after;
    size_t i;
    config.vocab_size = 61; config.n_positions = 64; config.n_layer = 2; config.n_head = 2; config.n_embd = 48;
    for (i = 0; i < 64; i++) { tokens[i] = (int32_t)(i * i % 61); targets[i] = (int32_t)((i + 1) * (i + 1) % 61); }
    for (bf16 = 0; bf16 < 2; bf16++) {
        gpts_model m = {0};
        gpts_trainer t = {0};
        gpts_session s = {0};
        gpts_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.tokens = tokens; batch.B = 1; batch.T = 64;
        t_status(gpts_model_init(&m, &config, 5, NULL), GPTS_OK);
        if (bf16 && sizeof(gpts_real) != 4) { t_status(gpts_model_precision(&m, GPTS_PRECISION_BF16), GPTS_UNSUPPORTED); gpts_model_free(&m); continue; }
        t_status(gpts_model_precision(&m, bf16 ? GPTS_PRECISION_BF16 : GPTS_PRECISION_FULL), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, NULL), GPTS_OK);
        for (step = 0; step < 60; step++) t_status(gpts_trainer_update(&t, tokens, targets, 1, 64, &loss[bf16]), GPTS_OK);
        t_status(gpts_session_init(&s, &m, 1, 64, NULL), GPTS_OK);
        for (after = 0; after < 2; after++) {
            t_status(gpts_model_forward(&m, &batch, logits, NULL), GPTS_OK);
            gpts_session_reset(&s);
            t_status(gpts_session_prefill(&s, tokens, 20, NULL), GPTS_OK);
            for (i = 20; i < 64; i++) {
                id = tokens[i];
                t_status(gpts_session_decode(&s, &id), GPTS_OK);
                for (step = 0; step < 61; step++) t_close(gpts_session_logits(&s, 0)[step], (double)logits[i * 61 + (size_t)step], bf16 ? 3e-2 : 1e-4);
            }
            t_status(gpts_trainer_update(&t, tokens, targets, 1, 64, NULL), GPTS_OK);
            if (bf16) t_ok(!((gptsi_cpu *)m.device)->kept);
        }
        gpts_session_free(&s); gpts_trainer_free(&t); gpts_model_free(&m);
    }
    t_ok(loss[0] < 3.5);
    if (sizeof(gpts_real) == 4) { t_close(loss[1], loss[0], 0.02); t_ok(loss[1] != loss[0]); }
    free(logits);
}

static void rows_of_different_length_decode_as_alone(void)
{
    int k;
    for (k = 0; k < CASES; k++) {
        const model_case *c = &cases[k];
        size_t V = (size_t)c->V, i, T = 8;
        int32_t length[2] = { 3, 8 }, next[2], ids[16];
        gpts_real *alone = (gpts_real *)malloc(16 * V * sizeof *alone);
        gpts_model m;
        gpts_session s;
        gpts_batch one;
        case_batch b;
        memset(&s, 0, sizeof s); memset(&one, 0, sizeof one);
        case_batch_make(&b, c, 1);
        t_status(case_model(&m, c, NULL), GPTS_OK);
        if (t_state.bad) return;
        t_status(gpts_session_init(&s, &m, 2, 12, NULL), GPTS_OK);
        for (i = 0; i < T; i++) { ids[i] = b.tokens[i]; ids[T + i] = b.tokens[c->T + i]; }
        for (i = 3; i < T; i++) ids[i] = 0;                      /* whatever follows the real tokens */
        t_status(gpts_session_prefill(&s, ids, T, length), GPTS_OK);
        next[0] = b.tokens[3]; next[1] = -1;                     /* row 1 rests */
        t_status(gpts_session_decode(&s, next), GPTS_OK);
        next[0] = b.tokens[4]; next[1] = b.tokens[c->T + 8];
        t_status(gpts_session_decode(&s, next), GPTS_OK);
        t_equal(s.position[0], 5); t_equal(s.position[1], 9);
        one.B = 1; one.T = 5; one.tokens = b.tokens;
        t_status(gpts_model_forward(&m, &one, alone, NULL), GPTS_OK);
        t_ok(relative(gpts_session_logits(&s, 0), alone + 4 * V, V) < (is_double ? 1e-12 : 1e-5));
        one.T = 9; one.tokens = b.tokens + c->T;
        t_status(gpts_model_forward(&m, &one, alone, NULL), GPTS_OK);
        t_ok(relative(gpts_session_logits(&s, 1), alone + 8 * V, V) < (is_double ? 1e-12 : 1e-5));
        free(alone);
        gpts_session_free(&s);
        gpts_model_free(&m);
    }
}

/* ---- sampling -------------------------------------------------------------------- */

static gpts_sampling sampling(double temperature, size_t top_k, double top_p)
{
    gpts_sampling s;
    s.temperature = temperature; s.top_k = top_k; s.top_p = top_p;
    return s;
}

static void sampling_is_defined_at_every_edge_E70(void)
{
    gpts_real logits[5], broken[5];
    gpts_sampling s;
    gpts_rng rng;
    int i, k, count[5];
    static const double temperature[] = { 0, 1e-9, 0.7, 1, 1e9 }, top_p[] = { 0, 1e-12, 0.5, 0.9999999, 1, 2 };
    static const size_t top_k[] = { 0, 1, 3, 5, 1000 };
    rng.seed = 3; rng.counter = 0;
    for (i = 0; i < 5; i++) logits[i] = (gpts_real)(i == 2 ? 3 : i == 4 ? 2 : 1);
    for (i = 0; i < 5; i++) for (k = 0; k < 5 * 6; k++) {
        int n;
        s = sampling(temperature[i], top_k[k % 5], top_p[k / 5]);
        for (n = 0; n < 50; n++) {
            int32_t id = gpts_sample(logits, 5, &s, &rng);
            t_ok(id >= 0 && id < 5);
            if (s.temperature == 0 || s.top_k == 1 || s.top_p == 1e-12) t_equal(id, 2);
            if (s.top_k == 3 && s.temperature > 0) t_ok(id != 3 || (double)logits[3] >= (double)logits[0]);
        }
    }
    s = sampling(1, 0, 0);                                       /* frequencies follow the softmax */
    memset(count, 0, sizeof count);
    for (i = 0; i < 20000; i++) count[gpts_sample(logits, 5, &s, &rng)]++;
    t_close(count[2] / 20000.0, exp(2.0) / (exp(2.0) + exp(1.0) + 3), 0.02);
    s = sampling(1, 0, 0.5);                                     /* 0.56 of the mass is on id 2 */
    for (i = 0; i < 200; i++) t_equal(gpts_sample(logits, 5, &s, &rng), 2);
    s = sampling(0, 0, 0);                                       /* ties: the lowest id */
    logits[0] = logits[2];
    t_equal(gpts_sample(logits, 5, &s, &rng), 0);
    s = sampling(1, 2, 0);
    for (i = 0; i < 200; i++) { int32_t id = gpts_sample(logits, 5, &s, &rng); t_ok(id == 0 || id == 2); }
    t_equal(gpts_sample(logits, 1, &s, &rng), 0);                /* V = 1 */

    for (k = 0; k < 4; k++) {                                    /* not a number, infinities */
        for (i = 0; i < 5; i++) broken[i] = (gpts_real)1;
        if (k == 0) { broken[1] = (gpts_real)NAN; broken[3] = (gpts_real)NAN; }
        if (k == 1) for (i = 0; i < 5; i++) broken[i] = (gpts_real)NAN;
        if (k == 2) broken[4] = (gpts_real)INFINITY;
        if (k == 3) for (i = 0; i < 5; i++) broken[i] = (gpts_real)-INFINITY;
        for (i = 0; i < 5; i++) {
            int n;
            s = sampling(temperature[i], i == 2 ? 2 : 0, i == 3 ? 0.5 : 0);
            for (n = 0; n < 50; n++) {
                int32_t id = gpts_sample(broken, 5, &s, &rng);
                t_ok(id >= 0 && id < 5);
                if (k == 0) t_ok(id != 1 && id != 3);
                if (k == 1) t_equal(id, 0);
                if (k == 2) t_equal(id, 4);
            }
        }
    }
    for (i = 0; i < 5; i++) logits[i] = (gpts_real)(i * 1e4);    /* gaps of 1e4 */
    s = sampling(1, 0, 0.9);
    t_equal(gpts_sample(logits, 5, &s, &rng), 4);
}

/* ---- random numbers --------------------------------------------------------------- */

static void E25_random_numbers_are_a_function_of_seed_and_counter(void)
{
    gpts_rng a, b;
    double mean = 0, square = 0;
    int i;
    a.seed = b.seed = 5; a.counter = 0; b.counter = 1;
    gpts_rng_bits(&a);
    for (i = 0; i < 10; i++) t_ok(gpts_rng_bits(&a) == gpts_rng_bits(&b));
    for (i = 0; i < 20000; i++) { double x = gpts_rng_normal(&a); mean += x; square += x * x; }
    t_close(mean / 20000, 0, 0.03); t_close(square / 20000, 1, 0.05);
    for (i = 0; i < 1000; i++) { double u = gpts_rng_uniform(&a); t_ok(u >= 0 && u < 1); t_ok(gpts_rng_below(&a, 7) < 7); }
    t_equal(gpts_rng_below(&a, 0), 0); t_equal(gpts_rng_below(&a, 1), 0);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(E51_threads_do_not_change_bits);
    T(E51_threads_do_not_change_bits_with_dropout);
    T(dropout_changes_training_but_not_inference);
    T(E53_accumulation_equals_one_big_batch);
    T(backward_adds_to_the_gradient);
    T(E54_every_tensor_trains);
    T(trained_patterns_stay_patterns);
    T(E68_tied_weights_get_both_gradients);
    T(one_batch_is_learnt_by_heart);
    T(frozen_tensors_stay_and_are_outside_the_norm);
    T(schedule_warms_up_and_follows_the_cosine);
    T(E60_ten_updates_equal_five_and_a_resume_of_five);
    T(E55_a_NaN_names_step_and_tensor);
    T(E55_a_learning_rate_of_1000_is_survived);
    T(E56_a_text_shorter_than_a_window_is_an_error);
    T(later_tokens_do_not_reach_earlier_logits);
    T(padding_does_not_change_a_row);
    T(E52_rows_without_a_token_give_zero_loss_and_gradient);
    T(E52_huge_logits_and_scores_stay_finite);
    T(E36_a_row_of_zero_variance_is_normalised_to_the_bias);
    T(E69_too_long_is_an_error);
    T(E20_wrong_arguments_get_a_sentence);
    T(E06_a_header_of_another_build_is_refused);
    T(E15_zeroed_objects_can_be_freed_twice);
    T(cached_logits_equal_uncached);
    T(bfloat16_learns_and_decodes);
    T(greedy_decoding_takes_the_likeliest);
    T(likeliest_is_the_largest_logit_of_each_position);
    T(rows_of_different_length_decode_as_alone);
    T(sampling_is_defined_at_every_edge_E70);
    T(E25_random_numbers_are_a_function_of_seed_and_counter);
    return t_end();
}

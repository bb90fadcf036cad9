/* gradients.c - every parameter's gradient of the whole model, in double, against
   fourth-order central differences of the loss: weights of standard deviation 0.25,
   |difference| / max(|g|, 1e-3 of the whole gradient's norm) below 1e-7.
   Each case is a test; `gradients --table` adds the worst error of each kind of parameter.

   (E1) (E2) (N1) (N2) (L1) (L2) (G1) (G2) (D1) (D2) (R1) (R2) (A1) (A2) (X1) (X2) (X3)
   (Q1) (Q2), and with static heads (P1) (P2) (P10) (P11) (M1) (M2).                             */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"

static const double limit = 1e-7;
static struct { double error; size_t checked; const char *in; } worst[GPTS_P_COUNT];

static const model_case cases[] = {
    /*                  V  Tp L  H  C   F   position norm    MLP  bias tied B T  padding ignored */
    { "gpt2",           17, 9, 2, 2, 8, -1, LEARNED, LAYER,  TANH, 1, 1,    2, 7, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "nanogpt",        19, 8, 2, 3, 12,-1, LEARNED, LAYER,  ERF,  0, 0,    2, 8, NONE,  3, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "rope_no_bias",   13, 9, 2, 2, 8, 20, ROPE,    LAYER,  ERF,  0, 1,    2, 9, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "rope_untied",    11, 6, 1, 1, 6, 10, ROPE,    LAYER,  TANH, 1, 0,    3, 5, NONE,  2, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "attention_only", 11, 9, 2, 4, 8, 0,  NOPOS,   NONORM, TANH, 0, 0,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "no_norm_bias",   11, 9, 1, 2, 6, 9,  LEARNED, NONORM, TANH, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "zero_layer",     11, 9, 0, 1, 5, 0,  NOPOS,   NONORM, TANH, 0, 0,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "zero_layer_norm",11, 9, 0, 1, 5, 0,  LEARNED, LAYER,  TANH, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "norm_no_mlp",    11, 9, 2, 1, 5, 0,  LEARNED, LAYER,  TANH, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "one_token",      11, 9, 2, 3, 9, 7,  LEARNED, LAYER,  TANH, 1, 1,    3, 1, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "head_of_one",    11, 9, 1, 5, 5, 7,  LEARNED, LAYER,  ERF,  1, 1,    2, 5, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "width_one",       7, 9, 1, 1, 1, 3,  LEARNED, NONORM, ERF,  1, 0,    2, 5, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "odd_sizes",      23,21, 3, 3, 15,11, LEARNED, LAYER,  TANH, 1, 1,    3,19, NONE,  5, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "mlp_relu",       13, 9, 1, 2, 8, 12, LEARNED, LAYER,  RELU, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "padded_left",    13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    3, 8, LEFT,  4, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "padded_right",   13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    3, 8, RIGHT, 0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "rope_padded",    13, 9, 2, 2, 8, 12, ROPE,    LAYER,  ERF,  0, 0,    3, 8, LEFT,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "approximator",   13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 7, NONE,  0, 1,1,10,1,RELU,{0,0,0},{0,0,0}, 0,0,0 },
    { "approx_frozen",  13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 7, NONE,  0, 0,1,10,0,RELU,{0,0,0},{0,0,0}, 0,0,0 },
    { "approx_window",  13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 7, NONE,  0, 0,3,9,1,TANH, {0,0,0},{0,0,0}, 0,0,0 },
    { "window_past_T",  13, 9, 2, 2, 8, 12, ROPE,    LAYER,  ERF,  0, 0,    2, 4, NONE,  0, 1,6,5,1,ERF,  {0,0,0},{0,0,0}, 0,0,0 },
    { "window_padded",  13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    3, 7, LEFT,  0, 0,3,9,1,TANH, {0,0,0},{0,0,0}, 0,0,0 },
    { "static_mixed",   13, 9, 2, 4, 8, 12, ROPE,    LAYER,  ERF,  0, 1,    2, 8, NONE,  0, 0,0,0,0,RELU, {5,2,0},{0,0,0}, 9,0,0 },
    { "static_all",     13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 8, NONE,  3, 0,0,0,0,RELU, {3,1,0},{0,0,0}, 9,0,0 },
    { "static_linear",  13,40, 2, 4, 8, 12, ROPE,    LAYER,  ERF,  0, 1,    2,30, NONE,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 16,3,0 },
    { "static_padded",  13,12, 2, 4, 8, 12, ROPE,    LAYER,  ERF,  0, 1,    3,11, LEFT,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 12,3,0 },
    { "static_right",   13,12, 2, 4, 8, 12, LEARNED, LAYER,  ERF,  1, 1,    3,11, RIGHT, 0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 12,0,0 },
    { "trained_exact",  13, 9, 2, 4, 8, 12, ROPE,    LAYER,  ERF,  0, 1,    2, 9, NONE,  3, 0,0,0,0,RELU, {5,2,0},{0,0,0}, 9,0,1 },
    { "trained_linear", 13,90, 2, 4, 8, 12, ROPE,    LAYER,  ERF,  0, 1,    1,83, LEFT,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 16,3,1 },
    { "pruned",         13, 9, 2, 4, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 8, NONE,  0, 0,0,0,0,RELU, {8,0,0},{2,5,0}, 9,0,0 },
    { "all_pruned",     13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 8, NONE,  0, 0,0,0,0,RELU, {0,0,0},{3,0,0}, 9,0,0 },
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };

static double loss_at(gpts_model *m, const gpts_batch *batch, gpts_tensor *t, size_t i, double value)
{
    int pattern = t->kind == GPTS_P_ALPHA || t->kind == GPTS_P_RHO || t->kind == GPTS_P_TAIL_COEF || t->kind == GPTS_P_TAIL_DECAY;
    gpts_real kept = t->data[i];
    double loss = NAN;
    t->data[i] = (gpts_real)value;
    if (pattern) gptsi_static_discard(&m->layers[t->layer].heads, &m->hooks);     /* derived anew */
    if (gpts_model_forward(m, batch, NULL, &loss) != GPTS_OK) loss = NAN;
    t->data[i] = kept;
    if (pattern) gptsi_static_discard(&m->layers[t->layer].heads, &m->hooks);
    return loss;
}

/* The difference's error falls with h^4, rounding grows with 1/h, and a kink of relu inside
   the stencil is outside a narrower one: a wrong gradient is wrong at each h. */
static double error_at(gpts_model *m, const gpts_batch *batch, gpts_tensor *t, size_t i, double g, double scale)
{
    static const double steps[] = { 1e-3, 3e-4, 1e-4, 3e-5 };
    double best = INFINITY, x = (double)t->data[i];
    size_t s;
    for (s = 0; s < sizeof steps / sizeof steps[0] && !(best < limit * 0.1); s++) {
        double h = steps[s], d, e;
        d = (8 * (loss_at(m, batch, t, i, x + h) - loss_at(m, batch, t, i, x - h))
             - (loss_at(m, batch, t, i, x + 2 * h) - loss_at(m, batch, t, i, x - 2 * h))) / (12 * h);
        e = fabs(d - g) / fmax(fabs(g), 1e-3 * scale);
        if (e < best) best = e;
    }
    return best;
}

static void check(const model_case *c)
{
    enum { EACH = 24 };                             /* values checked of each tensor */
    gpts_train_options options = gpts_train_options_default();
    gpts_trainer trainer;
    gpts_model m;
    case_batch b;
    const gpts_batch *batch = case_batch_make(&b, c, 3);
    double whole = 0, count = 0;
    size_t k, i, checked = 0;
    memset(&trainer, 0, sizeof trainer);
    if (sizeof(gpts_real) != 8) { t_skip("gradients need double reals"); return; }
    t_status(case_model(&m, c, NULL), GPTS_OK);
    if (!m.n_tensors) { t_fail(__FILE__, __LINE__, m.error); return; }
    t_status(gpts_trainer_init(&trainer, &m, &options), GPTS_OK);
    t_status(gpts_trainer_accumulate(&trainer, batch, NULL), GPTS_OK);
    for (i = 0; i < c->B * c->T; i++) count += b.targets[i] >= 0;
    for (k = 0; k < m.n_tensors; k++) {
        gpts_real *g = gpts_trainer_gradient(&trainer, &m.tensors[k]);
        t_ok((g != NULL) == (m.tensors[k].trainable != 0));
        for (i = 0; g && i < m.tensors[k].size; i++) { g[i] = (gpts_real)((double)g[i] / count); whole += (double)g[i] * (double)g[i]; }
    }
    whole = sqrt(whole);
    t_ok(whole > 1e-3);                             /* a gradient that vanishes checks nothing */
    for (k = 0; k < m.n_tensors; k++) {
        gpts_tensor *t = &m.tensors[k];
        const gpts_real *g = gpts_trainer_gradient(&trainer, t);
        size_t stride = t->size / EACH + 1, from = k % stride;
        for (i = from; g && i < t->size; i += stride) {
            double e = error_at(&m, batch, t, i, (double)g[i], whole);
            checked++;
            worst[t->kind].checked++;
            if (!(e <= worst[t->kind].error)) { worst[t->kind].error = e; worst[t->kind].in = c->name; }
            if (!(e < limit)) {
                char text[200];
                snprintf(text, sizeof text, "%s[%d]: gradient %.12g is off by %.2e", t->name, (int)i, (double)g[i], e);
                t_fail(__FILE__, __LINE__, text);
            }
        }
    }
    t_ok(checked > 0);
    gpts_trainer_free(&trainer);
    gpts_model_free(&m);
}

static const model_case *present;
static void check_present(void) { check(present); }

int main(int argc, char **argv)
{
    static const char *kind[] = {
#define ROW(kind, name, rows, columns, when, decay, start) name,
        GPTS_PARAMETER_TABLE(ROW)
#undef ROW
    };
    int table = argc > 1 && !strcmp(argv[1], "--table"), i;
    char name[100];
    t_begin(argc - table, argv + table);
    for (i = 0; i < CASES; i++) {
        present = &cases[i];
        snprintf(name, sizeof name, "gradient_%s", present->name);
        t_run(name, check_present);
    }
    if (table) {
        printf("\n%-32s %8s  %-9s %s\n", "parameter", "checked", "worst", "in");
        for (i = 0; i < GPTS_P_COUNT; i++) {
            printf("%-32s %8d  ", kind[i], (int)worst[i].checked);
            if (worst[i].checked) printf("%.1e   %s\n", worst[i].error, worst[i].in ? worst[i].in : "-");
            else printf("not trained in any case\n");
        }
        printf("\n");
    }
    return t_end();
}

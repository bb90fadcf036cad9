/* model.c - a model on the GPU against the same model on the CPU: every operation, whole models, training, replacement, files.

   In the fp32 mode both compute the same up to the order of sums; in bf16 the inputs of an operation are rounded first, so that
   only its own roundings remain.  Errors are |a - b| / |b|, Frobenius.  `model --light` runs small cases for compute-sanitizer. */
#include "../../examples/corpus.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include "../test.h"
#include "../models.h"

static int light;

/* ---- two sides: one set of calls on the CPU's table and on the GPU's ---- */
typedef struct side { gpts_model model; const gpts_ops *op; void *device; int half; } side;
enum { CPU = -1 };
static int side_open(side *s, int type)
{
    gpts_config c = gpts_config_default();
    memset(s, 0, sizeof *s);
    c.vocab_size = c.n_positions = c.n_layer = c.n_head = 1; c.n_embd = 1;
    t_status(gpts_model_init(&s->model, &c, 1, NULL), GPTS_OK);
    if (type != CPU) {
        gpts_status status = gpts_gpu_attach_precision(&s->model, 0, type);
        if (status != GPTS_OK) { t_fail(__FILE__, __LINE__, s->model.error); return 0; }
    }
    s->op = s->model.ops; s->device = s->model.device; s->half = s->op->activation_bytes == 2;
    return 1;
}
static void side_close(side *s) { gpts_model_free(&s->model); }

static uint16_t to_half(float x) { uint32_t u; memcpy(&u, &x, 4); u += 0x7FFF + (u >> 16 & 1); return (uint16_t)(u >> 16); }
static float of_half(uint16_t h) { uint32_t u = (uint32_t)h << 16; float x; memcpy(&x, &u, 4); return x; }

/* memory of a side with the values x: reals, or activations */
static void *reals(side *s, const float *x, size_t n)
{
    void *p = NULL;
    t_status(s->op->allocate(s->device, n * 4 + 64, &p), GPTS_OK);
    s->op->zero(s->device, p, n * 4 + 64);
    if (x) s->op->upload(s->device, p, x, n * 4);
    return p;
}
static void *integers(side *s, const int32_t *x, size_t n) { return x ? reals(s, (const float *)(const void *)x, n) : NULL; }
static void *acts(side *s, const float *x, size_t n)
{
    uint16_t *h;
    void *p = NULL;
    size_t i;
    if (!s->half) return reals(s, x, n);
    t_status(s->op->allocate(s->device, n * 2 + 64, &p), GPTS_OK);
    h = (uint16_t *)calloc(n + 1, 2);
    for (i = 0; x && i < n; i++) h[i] = to_half(x[i]);
    s->op->upload(s->device, p, h, n * 2);
    free(h);
    return p;
}
static float *fetch(side *s, const void *p, size_t n, int activations)
{
    float *x = (float *)calloc(n + 1, 4);
    size_t i;
    if (activations && s->half) {
        uint16_t *h = (uint16_t *)calloc(n + 1, 2);
        s->op->download(s->device, h, p, n * 2);
        for (i = 0; i < n; i++) x[i] = of_half(h[i]);
        free(h);
    } else s->op->download(s->device, x, p, n * 4);
    return x;
}
static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    size_t i;
    for (i = 0; i < n; i++) { double x = (double)a[i] - (double)b[i]; d += x * x; s += (double)b[i] * (double)b[i]; }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}
static gpts_rng rng = { 7, 0 };
static float *noise(size_t n, double deviation, int half)            /* fresh values, those of bf16 if asked */
{
    float *x = (float *)calloc(n + 1, 4);
    size_t i;
    for (i = 0; i < n; i++) { x[i] = (float)(deviation * gpts_rng_normal(&rng)); if (half) x[i] = of_half(to_half(x[i])); }
    return x;
}
static int32_t *some_ids(size_t n, int64_t below, int ignored)
{
    int32_t *x = (int32_t *)calloc(n + 1, 4);
    size_t i;
    for (i = 0; i < n; i++) x[i] = ignored && gpts_rng_below(&rng, 5) == 0 ? -1 : (int32_t)gpts_rng_below(&rng, (uint64_t)below);
    return x;
}

static struct { double worst[2]; char name[2][64]; } tally;          /* fp32, bf16 */
static void near_to(side *a, side *b, const void *pa, const void *pb, size_t n, int activations, double single, double half, const char *what)
{
    float *x = fetch(a, pa, n, activations), *y = fetch(b, pb, n, activations);
    double e = distance(y, x, n), limit = b->half ? half : single;
    char text[200];
    if (!(e <= tally.worst[b->half])) { tally.worst[b->half] = e; snprintf(tally.name[b->half], sizeof tally.name[0], "%s", what); }
    snprintf(text, sizeof text, "%s (%s): error %.2e, limit %.0e, n %llu", what, b->half ? "bf16" : "fp32", e, limit, (unsigned long long)n);
    if (!(e <= limit)) t_fail(__FILE__, __LINE__, text);
    free(x); free(y);
}
#define SINGLE 2e-5
#define HALF   8e-3

/* every operation at one shape: B T C, F the other width, V */
static void operations_at(int type, size_t B, size_t T, size_t C, size_t F, size_t V)
{
    side c, g;
    size_t N = B * T, i;
    int half = type == GPTS_GPU_BF16, pass;
    char error[GPTS_ERROR_BYTES];
    if (!side_open(&c, CPU) || !side_open(&g, type)) return;
    {
#define BOTH(name, make, ...) void *name##c = make(&c, __VA_ARGS__), *name##g = make(&g, __VA_ARGS__)
#define DO(call, ...) do { c.op->call(c.device, __VA_ARGS__); } while (0)
        float *x = noise(N * C, 1, half), *x2 = noise(N * C, 1, half), *dx0 = noise(N * C, 1, half), *w = noise(C * F, 0.1, half), *b = noise(F + C, 1, half),
              *wf = noise(N * F, 2, half), *wte = noise(V * C, 0.3, half), *wpe = noise(T * C, 1, half), *gain = noise(C, 1, 0), *dw0 = noise(C * F + V * C, 1, 0);
        int32_t *tokens = some_ids(N, (int64_t)V, 0), *targets = some_ids(N, (int64_t)V, 1), *first = some_ids(B, (int64_t)T, 0);
        void *xc = acts(&c, x, N * C), *xg = acts(&g, x, N * C), *bc = acts(&c, x2, N * C), *bg = acts(&g, x2, N * C);
        void *yc = acts(&c, NULL, N * C), *yg = acts(&g, NULL, N * C), *zc = acts(&c, NULL, N * F), *zg = acts(&g, NULL, N * F);
        void *uc = acts(&c, NULL, N * C), *ug = acts(&g, NULL, N * C), *sc = reals(&c, NULL, 2 * N), *sg = reals(&g, NULL, 2 * N);
        void *fc = acts(&c, wf, N * F), *fg = acts(&g, wf, N * F), *wc = reals(&c, w, C * F), *wg = reals(&g, w, C * F);
        void *biasc = reals(&c, b, F + C), *biasg = reals(&g, b, F + C), *gainc = reals(&c, gain, C), *gaing = reals(&g, gain, C);
        void *wtec = reals(&c, wte, V * C), *wteg = reals(&g, wte, V * C), *wpec = reals(&c, wpe, T * C), *wpeg = reals(&g, wpe, T * C);
        void *tc = integers(&c, tokens, N), *tg = integers(&g, tokens, N), *rc = integers(&c, targets, N), *rg = integers(&g, targets, N), *firstc = integers(&c, first, B), *firstg = integers(&g, first, B);
        void *dwc = reals(&c, dw0, C * F + V * C), *dwg = reals(&g, dw0, C * F + V * C), *dbc = reals(&c, b, F + C), *dbg = reals(&g, b, F + C);
        void *dxc = acts(&c, dx0, N * C), *dxg = acts(&g, dx0, N * C), *sumc = reals(&c, NULL, 2), *sumg = reals(&g, NULL, 2);
        float *statistics;
        double sa, sb;
        gpts_dropout drop;
#define RUN(call, ca, ga) do { c.op->call ca; g.op->call ga; } while (0)
        for (pass = 0; pass < 2; pass++) {                                   /* (E1) (E2), with and without padding and positions */
            const int32_t *fa = pass ? (const int32_t *)firstc : NULL, *fb = pass ? (const int32_t *)firstg : NULL;
            RUN(embed_forward, (c.device, yc, (int32_t *)tc, fa, (float *)wtec, pass ? (float *)wpec : NULL, B, T, C), (g.device, yg, (int32_t *)tg, fb, (float *)wteg, pass ? (float *)wpeg : NULL, B, T, C));
            near_to(&c, &g, yc, yg, N * C, 1, SINGLE, HALF, "embed_forward");
            RUN(embed_backward, (c.device, (float *)dwc, pass ? (float *)wpec : NULL, (int32_t *)tc, fa, xc, B, T, C, V), (g.device, (float *)dwg, pass ? (float *)wpeg : NULL, (int32_t *)tg, fb, xg, B, T, C, V));
            near_to(&c, &g, dwc, dwg, V * C, 0, SINGLE, SINGLE, "embed_backward wte");
            near_to(&c, &g, wpec, wpeg, T * C, 0, SINGLE, SINGLE, "embed_backward wpe");
        }
        RUN(norm_forward, (c.device, yc, (float *)sc, xc, (float *)gainc, (float *)biasc, N, C, 1e-5), (g.device, yg, (float *)sg, xg, (float *)gaing, (float *)biasg, N, C, 1e-5));   /* (N1) */
        near_to(&c, &g, yc, yg, N * C, 1, SINGLE, HALF, "norm_forward");
        near_to(&c, &g, sc, sg, 2 * N, 0, C > 1 ? SINGLE : 1, C > 1 ? SINGLE : 1, "norm_forward statistics");
        RUN(norm_backward, (c.device, dxc, (float *)dwc, (float *)dbc, bc, xc, (float *)gainc, (float *)sc, N, C), (g.device, dxg, (float *)dwg, (float *)dbg, bg, xg, (float *)gaing, (float *)sg, N, C));   /* (N2) */
        near_to(&c, &g, dxc, dxg, N * C, 1, 5e-5, HALF, "norm_backward dx");
        near_to(&c, &g, dwc, dwg, C, 0, 5e-5, 5e-5, "norm_backward dw");
        near_to(&c, &g, dbc, dbg, C, 0, 5e-5, 5e-5, "norm_backward dbias");
        RUN(norm_backward, (c.device, dxc, (float *)dwc, NULL, bc, xc, (float *)gainc, (float *)sc, N, C), (g.device, dxg, (float *)dwg, NULL, bg, xg, (float *)gaing, (float *)sg, N, C));
        near_to(&c, &g, dwc, dwg, C, 0, 5e-5, 5e-5, "norm_backward dw without bias");
        /* (D1) (N1) at once, against the two in turn */
        memset(&drop, 0, sizeof drop);
        c.op->add_forward(c.device, uc, xc, bc, N * C, &drop);
        if (half) { float *r = fetch(&c, uc, N * C, 1); for (i = 0; i < N * C; i++) r[i] = of_half(to_half(r[i])); c.op->upload(c.device, uc, r, N * C * 4); free(r); }
        c.op->norm_forward(c.device, yc, (float *)sc, uc, (float *)gainc, NULL, N, C, 1e-5);
        g.op->add_norm_forward(g.device, ug, yg, (float *)sg, xg, bg, (float *)gaing, NULL, N, C, 1e-5);
        near_to(&c, &g, uc, ug, N * C, 1, SINGLE, HALF, "add_norm_forward sum");
        near_to(&c, &g, yc, yg, N * C, 1, C > 1 ? SINGLE : 1, C > 1 ? HALF : 1, "add_norm_forward");
        statistics = fetch(&g, sg, 2 * N, 0); t_ok(statistics[0] == statistics[0]); free(statistics);
        drop.rate = 0.3; drop.seed = 5; drop.step = 9; drop.layer = 2; drop.site = 1;                 /* (D1) (D2) */
        RUN(add_forward, (c.device, yc, xc, bc, N * C, &drop), (g.device, yg, xg, bg, N * C, &drop));
        near_to(&c, &g, yc, yg, N * C, 1, SINGLE, HALF, "add_forward");
        RUN(add_backward, (c.device, yc, bc, N * C, &drop), (g.device, yg, bg, N * C, &drop));
        near_to(&c, &g, yc, yg, N * C, 1, SINGLE, HALF, "add_backward");
        for (pass = 0; pass < 2; pass++) {                                                             /* (L1) */
            RUN(linear_forward, (c.device, zc, xc, (float *)wc, pass ? (float *)biasc : NULL, N, C, F), (g.device, zg, xg, (float *)wg, pass ? (float *)biasg : NULL, N, C, F));
            near_to(&c, &g, zc, zg, N * F, 1, SINGLE, HALF, "linear_forward");
        }
        RUN(linear_backward, (c.device, yc, (float *)dwc, (float *)dbc, fc, xc, (float *)wc, N, C, F), (g.device, yg, (float *)dwg, (float *)dbg, fg, xg, (float *)wg, N, C, F));       /* (L2) */
        near_to(&c, &g, yc, yg, N * C, 1, SINGLE, HALF, "linear_backward dx");
        near_to(&c, &g, dwc, dwg, C * F, 0, SINGLE, 5e-5, "linear_backward dw");
        near_to(&c, &g, dbc, dbg, F, 0, SINGLE, 5e-5, "linear_backward dbias");
        for (pass = 0; pass < 3; pass++) {                                                             /* (G1) (G2) */
            gpts_activation kind = pass == 0 ? GPTS_GELU_TANH : pass == 1 ? GPTS_GELU_ERF : GPTS_RELU;
            void *dc = acts(&c, wf, N * F), *dg = acts(&g, wf, N * F), *ic = acts(&c, wf, N * F), *ig = acts(&g, wf, N * F);
            RUN(activation_forward, (c.device, zc, fc, N * F, kind), (g.device, zg, fg, N * F, kind));
            near_to(&c, &g, zc, zg, N * F, 1, SINGLE, HALF, "activation_forward");
            c.op->activation_backward(c.device, dc, dc, fc, N * F, kind);
            g.op->activation_exchange(g.device, dg, dg, ig, N * F, kind);
            near_to(&c, &g, dc, dg, N * F, 1, SINGLE, HALF, "activation_exchange dx");
            near_to(&c, &g, zc, ig, N * F, 1, SINGLE, HALF, "activation_exchange y");
            g.op->upload(g.device, dg, NULL, 0);
            c.op->release(c.device, dc); c.op->release(c.device, ic); g.op->release(g.device, dg); g.op->release(g.device, ig);
        }
        {                                                                                              /* (Q1) (Q2) */
            size_t k = 3;
            void *kc = acts(&c, NULL, N * C * k), *kg = acts(&g, NULL, N * C * k);
            RUN(window_forward, (c.device, kc, xc, (int32_t *)firstc, B, T, C, k), (g.device, kg, xg, (int32_t *)firstg, B, T, C, k));
            near_to(&c, &g, kc, kg, N * C * k, 1, 0, 0, "window_forward");
            RUN(window_backward, (c.device, dxc, kc, (int32_t *)firstc, B, T, C, k), (g.device, dxg, kg, (int32_t *)firstg, B, T, C, k));
            near_to(&c, &g, dxc, dxg, N * C, 1, SINGLE, 2 * HALF, "window_backward");
            c.op->release(c.device, kc); g.op->release(g.device, kg);
        }
        {                                                                                              /* (X1) (X2) (X3) */
            void *lc = reals(&c, NULL, N * V), *lg = reals(&g, NULL, N * V);
            double one, two;
            RUN(logits, (c.device, (float *)lc, xc, (float *)wtec, N, C, V), (g.device, (float *)lg, xg, (float *)wteg, N, C, V));
            near_to(&c, &g, lc, lg, N * V, 0, SINGLE, SINGLE, "logits");
            RUN(loss, (c.device, (double *)sumc, yc, (float *)dwc, xc, (float *)wtec, (int32_t *)rc, N, C, V), (g.device, (double *)sumg, yg, (float *)dwg, xg, (float *)wteg, (int32_t *)rg, N, C, V));
            c.op->download(c.device, &one, sumc, 8); g.op->download(g.device, &two, sumg, 8);
            t_close(two / one, 1, half ? 2e-3 : 1e-5);
            near_to(&c, &g, yc, yg, N * C, 1, 5e-5, 2 * HALF, "loss dx");
            near_to(&c, &g, dwc, dwg, V * C, 0, 5e-5, 2 * HALF, "loss dw");
            g.op->loss(g.device, (double *)sumg, NULL, NULL, xg, (float *)wteg, (int32_t *)rg, N, C, V);
            g.op->download(g.device, &sb, sumg, 8);
            t_close(sb / two, 1, 1e-7);
            c.op->release(c.device, lc); g.op->release(g.device, lg);
        }
        sa = sb = -1;
        RUN(sum_squares, (c.device, &sa, (float *)dwc, C * F), (g.device, &sb, (float *)dwg, C * F));  /* (O1) */
        t_close(sb / sa, 1, half ? 1e-2 : 1e-4);
        {                                                                                              /* (O2) */
            void *pc = reals(&c, w, C * F), *pg = reals(&g, w, C * F), *m1c = reals(&c, NULL, C * F), *m1g = reals(&g, NULL, C * F), *m2c = reals(&c, NULL, C * F), *m2g = reals(&g, NULL, C * F);
            for (i = 1; i < 3; i++) {
                c.op->upload(c.device, dwc, dw0, C * F * 4); g.op->upload(g.device, dwg, dw0, C * F * 4);
                RUN(adamw, (c.device, (float *)pc, (float *)dwc, (float *)m1c, (float *)m2c, C * F, 0.1, 1e-2, 0.1, 0.9, 0.95, 1e-8, i), (g.device, (float *)pg, (float *)dwg, (float *)m1g, (float *)m2g, C * F, 0.1, 1e-2, 0.1, 0.9, 0.95, 1e-8, i));
            }
            near_to(&c, &g, pc, pg, C * F, 0, 1e-5, 1e-5, "adamw");
            near_to(&c, &g, m2c, m2g, C * F, 0, 1e-5, 1e-5, "adamw second moment");
            g.op->linear_forward(g.device, zg, xg, (float *)pg, NULL, N, C, F);                        /* products see the new weights */
            c.op->linear_forward(c.device, zc, xc, (float *)pc, NULL, N, C, F);
            near_to(&c, &g, zc, zg, N * F, 1, SINGLE, HALF, "linear_forward after adamw");
            c.op->release(c.device, pc); g.op->release(g.device, pg); c.op->release(c.device, m1c); g.op->release(g.device, m1g); c.op->release(c.device, m2c); g.op->release(g.device, m2g);
        }
        t_status(g.op->status(g.device, error), GPTS_OK);
        {
            void *of_c[] = { xc, bc, yc, zc, uc, sc, fc, wc, biasc, gainc, wtec, wpec, tc, rc, firstc, dwc, dbc, dxc, sumc };
            for (i = 0; i < sizeof of_c / sizeof *of_c; i++) c.op->release(c.device, of_c[i]);      /* the GPU frees what is left by itself */
        }
        free(x); free(x2); free(dx0); free(w); free(b); free(wf); free(wte); free(wpe); free(gain); free(dw0); free(tokens); free(targets); free(first);
    }
    side_close(&c); side_close(&g);
}
static void operations(int type)
{
    static const size_t shape[][5] = { { 2, 7, 8, 24, 40 }, { 3, 5, 15, 11, 23 }, { 1, 1, 1, 3, 7 }, { 2, 70, 64, 48, 128 }, { 4, 33, 256, 520, 77 }, { 2, 100, 768, 3072, 1000 },
                                       { 1, 257, 1032, 40, 65 }, { 3, 40, 2056, 24, 31 } };
    size_t i;
    for (i = 0; i < (light ? 4 : sizeof shape / sizeof *shape); i++) operations_at(type, shape[i][0], shape[i][1], shape[i][2], shape[i][3], shape[i][4]);
    printf("  worst error of an operation: %.1e (%s)\n", tally.worst[type == GPTS_GPU_BF16], tally.name[type == GPTS_GPU_BF16]);
}
static void operations_fp32_E1_to_O2(void) { operations(GPTS_GPU_F32); }
static void operations_bf16_E1_to_O2(void) { operations(GPTS_GPU_BF16); }

/* ---- whole models ---- */
static const model_case cases[] = {
    /*                  V  Tp L  H  C   F   position norm    MLP  bias tied B T  padding ignored */
    { "gpt2",          117,70, 2, 2, 128,-1, LEARNED, LAYER,  TANH, 1, 1,    2,70, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "rope_no_bias",  113,90, 2, 2, 128,200,ROPE,    LAYER,  ERF,  0, 1,    2,90, NONE,  3, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "attention_only", 11, 9, 2, 4, 8, 0,  NOPOS,   NONORM, TANH, 0, 0,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "zero_layer",     11, 9, 0, 1, 5, 0,  LEARNED, LAYER,  TANH, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "norm_no_mlp",    11, 9, 2, 1, 5, 0,  LEARNED, LAYER,  TANH, 1, 1,    2, 6, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "width_one",       7, 9, 1, 1, 1, 3,  LEARNED, NONORM, ERF,  1, 0,    2, 5, NONE,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "odd_sizes",      23,21, 3, 3, 15,11, LEARNED, LAYER,  TANH, 1, 1,    3,19, NONE,  5, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "padded_left",    13,40, 2, 2, 32,12, LEARNED, LAYER,  TANH, 1, 1,    3,38, LEFT,  4, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "padded_right",   13,40, 2, 2, 32,12, ROPE,    LAYER,  TANH, 1, 1,    3,38, RIGHT, 0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "rope_padded",    13,40, 2, 2, 32,12, ROPE,    LAYER,  ERF,  0, 0,    3,38, LEFT,  0, 0,0,0,0,RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "approximator",   13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 7, NONE,  0, 1,1,10,1,RELU,{0,0,0},{0,0,0}, 0,0,0 },
    { "approx_window",  13,40, 2, 2, 32,12, LEARNED, LAYER,  TANH, 1, 1,    2,33, NONE,  0, 0,3,9,1,TANH, {0,0,0},{0,0,0}, 0,0,0 },
    { "window_padded",  13,40, 2, 2, 32,12, LEARNED, LAYER,  TANH, 1, 1,    3,37, LEFT,  0, 0,3,9,1,ERF,  {0,0,0},{0,0,0}, 0,0,0 },
    { "static_mixed",   13,90, 2, 4, 256,120,ROPE,   LAYER,  ERF,  0, 1,    2,85, NONE,  0, 0,0,0,0,RELU, {5,2,0},{0,0,0}, 90,0,0 },
    { "static_linear",  13,200,2, 4, 256,120,ROPE,   LAYER,  ERF,  0, 1,    2,190,NONE,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 160,13,0 },
    { "static_padded",  13,62, 2, 4, 32,12, ROPE,    LAYER,  ERF,  0, 1,    3,61, LEFT,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 62,3,0 },
    { "static_right",   13,62, 2, 4, 32,12, LEARNED, LAYER,  ERF,  1, 1,    3,61, RIGHT, 0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 62,0,0 },
    { "pruned",         13,69, 2, 4, 64,12, LEARNED, LAYER,  TANH, 1, 1,    2,68, NONE,  0, 0,0,0,0,RELU, {8,0,0},{2,5,0}, 69,0,0 },
    { "all_pruned",     13, 9, 2, 2, 8, 12, LEARNED, LAYER,  TANH, 1, 1,    2, 8, NONE,  0, 0,0,0,0,RELU, {0,0,0},{3,0,0}, 9,0,0 },
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };

/* a trainer's block from wherever it is */
static float *block_of(const gpts_trainer *t, const gpts_real *block)
{
    float *x = (float *)calloc(t->n_block + 1, 4);
    t->ops->download(t->device, x, block, t->n_block * 4);
    return x;
}
/* the case's model with weights that bf16 holds, so that only the computation differs; wide ones get smaller weights: scores of order 1 */
static void rounded_model(gpts_model *m, const model_case *c, int half)
{
    size_t i, j;
    t_status(case_model(m, c, NULL), GPTS_OK);
    for (i = 0; i < m->n_tensors; i++) {
        gpts_tensor *x = &m->tensors[i];
        const float less = x->rank == 2 && c->C > 16 ? sqrtf(16.f / (float)c->C) : 1;
        if (x->kind < GPTS_P_ALPHA || x->kind > GPTS_P_TAIL_DECAY) for (j = 0; j < x->size; j++) x->data[j] = half ? of_half(to_half(less * x->data[j])) : less * x->data[j];
    }
}
static void one_model(const model_case *c, int type)
{
    gpts_train_options options = gpts_train_options_default();
    gpts_model m[2];
    gpts_trainer t[2];
    case_batch b;
    const gpts_batch *batch = case_batch_make(&b, c, 3);
    double loss[2], sum[2], e;
    float *logits[2], *g[2], *record[2];
    size_t V = (size_t)c->V, N = c->B * c->T, k, i;
    int half = type == GPTS_GPU_BF16;
    char text[300];
    options.dropout = c->L ? 0.1 : 0;
    for (k = 0; k < 2; k++) {
        rounded_model(&m[k], c, half);
        if (k && gpts_gpu_attach_precision(&m[k], 0, type) != GPTS_OK) { t_fail(__FILE__, __LINE__, m[k].error); return; }
        logits[k] = (float *)calloc(N * V, 4); record[k] = (float *)calloc(2 * N * (size_t)c->C, 4);
        if (gpts_model_forward(&m[k], batch, logits[k], &loss[k]) != GPTS_OK) { t_fail(__FILE__, __LINE__, m[k].error); loss[k] = NAN; }
        if (c->L) t_status(gpts_model_record(&m[k], batch, 0, record[k], record[k] + N * (size_t)c->C), GPTS_OK);
        t_status(gpts_trainer_init(&t[k], &m[k], &options), GPTS_OK);
        if (gpts_trainer_accumulate(&t[k], batch, &sum[k]) != GPTS_OK) t_fail(__FILE__, __LINE__, t[k].error);
        g[k] = block_of(&t[k], t[k].gradients);
    }
    for (i = 0; i < N; i++)                                                   /* padding's logits are nobody's business */
        if (batch->first && ((int32_t)(i % c->T) < b.first[i / c->T] || (int32_t)(i % c->T) >= b.first[i / c->T] + b.length[i / c->T])) {
            memset(logits[0] + i * V, 0, V * 4); memset(logits[1] + i * V, 0, V * 4);
            memset(record[0] + i * (size_t)c->C, 0, (size_t)c->C * 4); memset(record[1] + i * (size_t)c->C, 0, (size_t)c->C * 4);
            memset(record[0] + (N + i) * (size_t)c->C, 0, (size_t)c->C * 4); memset(record[1] + (N + i) * (size_t)c->C, 0, (size_t)c->C * 4);
        }
    e = distance(g[1], g[0], t[0].n_block);
    snprintf(text, sizeof text, "%s (%s): logits %.1e loss %.1e trained %.1e record %.1e gradient %.1e", c->name, half ? "bf16" : "fp32", distance(logits[1], logits[0], N * V), fabs(loss[1] / loss[0] - 1),
             fabs(sum[1] / sum[0] - 1), distance(record[1], record[0], 2 * N * (size_t)c->C), e);
    if (!(distance(logits[1], logits[0], N * V) <= (half ? 3e-2 : 2e-5)) || !(fabs(loss[1] / loss[0] - 1) <= (half ? 1e-2 : 1e-5)) || !(fabs(sum[1] / sum[0] - 1) <= (half ? 1e-2 : 1e-5)) ||
        !(distance(record[1], record[0], 2 * N * (size_t)c->C) <= (half ? 3e-2 : 2e-5)) || !(e <= (half ? 6e-2 : 1e-4))) t_fail(__FILE__, __LINE__, text);
    else if (t_state.filters && !light) printf("  %s\n", text);
    for (k = 0; k < 2; k++) { free(logits[k]); free(g[k]); free(record[k]); gpts_trainer_free(&t[k]); gpts_model_free(&m[k]); }
}
static void models_fp32(void) { int i; for (i = 0; i < CASES; i++) if (!light || i % 4 == 3) one_model(&cases[i], GPTS_GPU_F32); }
static void models_bf16(void) { int i; for (i = 0; i < CASES; i++) if (!light || i % 4 == 1) one_model(&cases[i], GPTS_GPU_BF16); }

/* patterns that go on training (P10) (P11): the gradient of every kind of parameter, and where three updates lead */
static void patterns_at(const model_case *c, int type)
{
    static const char *const name[] = { "alpha", "rho", "tail_coef", "tail_decay" };
    gpts_train_options options = gpts_train_options_default();
    gpts_model m[2];
    gpts_trainer t[2];
    case_batch b;
    const gpts_batch *batch = case_batch_make(&b, c, 3);
    float *g[2];
    double loss[2];
    size_t k, i, n, kind, step;
    const int half = type == GPTS_GPU_BF16;
    options.learning_rate = options.min_learning_rate = 1e-3; options.warmup = 0; options.dropout = 0;
    for (k = 0; k < 2; k++) {
        rounded_model(&m[k], c, half);
        if (k && gpts_gpu_attach_precision(&m[k], 0, type) != GPTS_OK) { t_fail(__FILE__, __LINE__, m[k].error); return; }
        t_status(gpts_trainer_init(&t[k], &m[k], &options), GPTS_OK);
        if (gpts_trainer_accumulate(&t[k], batch, &loss[k]) != GPTS_OK) { t_fail(__FILE__, __LINE__, t[k].error); return; }
        g[k] = block_of(&t[k], t[k].gradients);
    }
    for (kind = 0; kind < 4; kind++) {
        double off = 0, size = 0;
        for (i = n = 0; i < m[0].n_tensors; i++) {
            size_t j, at = t[0].offset[i];
            if ((size_t)m[0].tensors[i].kind != (size_t)GPTS_P_ALPHA + kind || at == SIZE_MAX) continue;
            t_equal(t[1].offset[i], at);
            for (j = 0; j < m[0].tensors[i].size; j++, n++) { double a = (double)g[0][at + j], d = (double)g[1][at + j] - a; off += d * d; size += a * a; }
        }
        if (!n) { t_ok(kind >= 2 && !c->near); continue; }
        t_ok(size > 0);
        if (t_state.filters && !light) printf("  %s (%s): gradient of %s %.1e\n", c->name, half ? "bf16" : "fp32", name[kind], sqrt(off / size));
        if (!(sqrt(off / size) <= (half ? 6e-2 : 1e-4))) { char text[200]; snprintf(text, sizeof text, "%s (%s): gradient of %s off by %.1e", c->name, half ? "bf16" : "fp32", name[kind], sqrt(off / size)); t_fail(__FILE__, __LINE__, text); }
    }
    for (k = 0; k < 2; k++) {
        t_status(gpts_trainer_apply(&t[k], NULL), GPTS_OK);
        for (step = 0; step < 2; step++) { t_status(gpts_trainer_accumulate(&t[k], batch, NULL), GPTS_OK); t_status(gpts_trainer_apply(&t[k], &loss[k]), GPTS_OK); }
        t_status(gpts_model_forward(&m[k], batch, NULL, &loss[k]), GPTS_OK);
    }
    t_close(loss[1], loss[0], half ? 2e-2 * loss[0] : 1e-3 * loss[0]);
    for (k = 0; k < 2; k++) { free(g[k]); gpts_trainer_free(&t[k]); gpts_model_free(&m[k]); }
}
static void patterns_train_as_on_the_cpu(void)
{
    static const model_case trained[] = {
        { "trained_exact",  13,90, 2, 4, 256,120,ROPE,    LAYER, ERF,  0, 1, 2,85, NONE,  3, 0,0,0,0,RELU, {5,2,0},{0,0,0},  90,0,1 },
        { "trained_linear", 13,200,2, 4, 256,120,ROPE,    LAYER, ERF,  0, 1, 2,190,NONE,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 160,13,1 },
        { "trained_left",   13,90, 2, 4, 8, 12,  ROPE,    LAYER, ERF,  0, 1, 3,83, LEFT,  0, 0,0,0,0,RELU, {5,14,0},{0,0,0}, 16,3,1 },
        { "trained_right",  13,62, 2, 3, 15,12,  LEARNED, LAYER, TANH, 1, 1, 3,61, RIGHT, 4, 0,0,0,0,RELU, {5,6,0},{0,0,0},  62,0,1 },
        { "trained_short",  13,9,  1, 2, 8, 12,  LEARNED, LAYER, TANH, 1, 1, 2,3,  NONE,  0, 0,0,0,0,RELU, {3,0,0},{0,0,0},  9,1,1 } };
    size_t i;
    for (i = light ? 2 : 0; i < sizeof trained / sizeof *trained; i++) {
        patterns_at(&trained[i], GPTS_GPU_F32);
        if (trained[i].C > 16) patterns_at(&trained[i], GPTS_GPU_BF16);       /* in heads of few channels y's roundings are of the size of the sums */
    }
}

/* ---- training ---- */
enum { RUN_B = 8, RUN_T = 64, RUN_V = 128 };
static uint16_t *story_tokens(size_t *n)
{
    char *text = corpus_stories(3, 200000, n);
    uint16_t *ids = (uint16_t *)calloc(*n + 1, 2);
    size_t i;
    for (i = 0; i < *n; i++) ids[i] = (uint16_t)((unsigned char)text[i] & 127);
    free(text);
    return ids;
}
static void run_model(gpts_model *m, int64_t C)
{
    gpts_config c = gpts_config_default();
    c.vocab_size = RUN_V; c.n_positions = RUN_T; c.n_layer = 2; c.n_head = 2; c.n_embd = C; c.position = ROPE; c.bias = 0; c.activation = ERF;
    t_status(gpts_model_init(m, &c, 4, NULL), GPTS_OK);
}
static void run_trainer(gpts_trainer *t, gpts_model *m)
{
    gpts_train_options o = gpts_train_options_default();
    o.learning_rate = 3e-3; o.warmup = 20;
    t_status(gpts_trainer_init(t, m, &o), GPTS_OK);
}
static double run_updates(gpts_trainer *t, const uint16_t *ids, size_t n, size_t updates, double *losses)
{
    gpts_windows w;
    int32_t tokens[RUN_B * RUN_T], targets[RUN_B * RUN_T];
    double loss = NAN;
    size_t i;
    memset(&w, 0, sizeof w);
    w.tokens = ids; w.n = n; w.T = RUN_T; w.seed = 6;
    for (i = 0; i < updates; i++) {
        gpts_windows_batch(&w, t->data_position, RUN_B, tokens, targets);
        t->data_position += RUN_B;
        if (gpts_trainer_update(t, tokens, targets, RUN_B, RUN_T, &loss) != GPTS_OK) { t_fail(__FILE__, __LINE__, t->error); return NAN; }
        if (losses) losses[i] = loss;
    }
    return loss;
}
static void training_tracks_the_cpu(void)
{
    enum { UPDATES = 200 };
    static double losses[3][UPDATES];
    size_t n, k, i, updates = light ? 3 : UPDATES;
    uint16_t *ids = story_tokens(&n);
    double worst[3] = { 0, 0, 0 }, mean[3] = { 0, 0, 0 }, apart[3] = { 0, 0, 0 };
    for (k = 0; k < 3; k++) {
        gpts_model m;
        gpts_trainer t;
        run_model(&m, 64);
        if (k) t_status(gpts_gpu_attach_precision(&m, 0, k == 1 ? GPTS_GPU_F32 : GPTS_GPU_BF16), GPTS_OK);
        run_trainer(&t, &m);
        run_updates(&t, ids, n, updates, losses[k]);
        for (i = 0; i < updates; i++) { worst[k] = fmax(worst[k], fabs(losses[k][i] - losses[0][i])); apart[k] += fabs(losses[k][i] - losses[0][i]) / (double)updates; if (i >= updates - updates / 10) mean[k] += losses[k][i] / (double)(updates / 10); }
        gpts_trainer_free(&t); gpts_model_free(&m);
    }
    printf("  losses of updates 1, 10 and %d: CPU %.4f %.4f %.4f, fp32 %.4f %.4f %.4f, bf16 %.4f %.4f %.4f; differences up to %.1e and %.1e, of size %.1e and %.1e\n", (int)updates,
           losses[0][0], losses[0][light ? 1 : 9], losses[0][updates - 1], losses[1][0], losses[1][light ? 1 : 9], losses[1][updates - 1], losses[2][0], losses[2][light ? 1 : 9], losses[2][updates - 1], worst[1], worst[2], apart[1], apart[2]);
    t_close(worst[1], 0, 5e-3);
    t_close(worst[2], 0, 0.1);                              /* of one update: rounding makes two runs of one of them */
    t_close(apart[2], 0, 2e-2);
    if (!light) { t_ok(losses[0][UPDATES - 1] < losses[0][0] - 1); t_close(mean[2], mean[0], 2e-2); }
    free(ids);
}

/* freeze in mid-run: the same heads, and both go on alike; files made on either side are read on the other */
static void freezing_in_mid_run_equals_the_cpu(void)
{
    size_t n, k, i;
    uint16_t *ids = story_tokens(&n);
    int32_t sequences[8 * RUN_T];
    double after[2] = { 0, 0 }, before[2] = { 0, 0 };
    gpts_model m[2];
    gpts_trainer t[2];
    gpts_freeze_report report[2];
    for (i = 0; i < 8 * RUN_T; i++) sequences[i] = ids[1000 + i];
    for (k = 0; k < 2; k++) {
        gpts_calibration c;
        gpts_freeze_options o = gpts_freeze_options_default();
        memset(&c, 0, sizeof c);
        run_model(&m[k], 64);
        if (k) t_status(gpts_gpu_attach_precision(&m[k], 0, GPTS_GPU_F32), GPTS_OK);
        run_trainer(&t[k], &m[k]);
        before[k] = run_updates(&t[k], ids, n, light ? 2 : 20, NULL);
        t_status(gpts_calibrate(&c, &m[k], sequences, 8, RUN_T), GPTS_OK);
        o.heads = 2; o.gate = -1; o.selector = GPTS_SELECT_LOSS;
        if (gpts_freeze(&m[k], &t[k], &c, &o, &report[k]) != GPTS_OK) t_fail(__FILE__, __LINE__, m[k].error);
        after[k] = run_updates(&t[k], ids, n, light ? 2 : 20, NULL);
        gpts_calibration_free(&c);
    }
    t_equal(report[0].n, 2); t_equal(report[1].n, 2);
    for (i = 0; i < 2 && report[0].n == 2 && report[1].n == 2; i++) { t_equal(report[0].heads[i].layer, report[1].heads[i].layer); t_equal(report[0].heads[i].head, report[1].heads[i].head); }
    printf("  loss before and after freezing: CPU %.5f %.5f, GPU %.5f %.5f\n", before[0], after[0], before[1], after[1]);
    t_close(before[1], before[0], 2e-3); t_close(after[1], after[0], 5e-3);
    for (k = 0; k < 2; k++) { gpts_freeze_report_free(&report[k]); gpts_trainer_free(&t[k]); gpts_model_free(&m[k]); }
    free(ids);
}

/* every selector, replacement and a fitted approximator, on models that never leave the GPU: host code that looked into them would crash */
static void every_replacement_equals_the_cpu(void)
{
    size_t n, k, i;
    uint16_t *ids = story_tokens(&n);
    int32_t sequences[8 * RUN_T];
    int selector, replacement;
    for (i = 0; i < 8 * RUN_T; i++) sequences[i] = ids[1000 + i];
    for (selector = GPTS_SELECT_VARIANCE, replacement = 0; selector <= GPTS_SELECT_RANDOM; selector++, replacement = (replacement + 1) % 4) {
        double loss[2] = { 0, 0 };
        int32_t chosen[2][2] = { { -1, -1 }, { -2, -2 } };
        for (k = 0; k < 2; k++) {
            gpts_model m;
            gpts_trainer t;
            gpts_calibration c;
            gpts_recording r;
            gpts_approximator a;
            gpts_approximator_options ao;
            gpts_freeze_options o = gpts_freeze_options_default();
            gpts_freeze_report report;
            gpts_batch batch;
            double r2 = 0;
            memset(&c, 0, sizeof c); memset(&ao, 0, sizeof ao); memset(&batch, 0, sizeof batch); memset(&report, 0, sizeof report);
            batch.tokens = sequences; batch.targets = sequences + 1; batch.B = 4; batch.T = RUN_T;
            run_model(&m, 64);
            if (k) t_status(gpts_gpu_attach_precision(&m, 0, GPTS_GPU_F32), GPTS_OK);
            run_trainer(&t, &m);
            run_updates(&t, ids, n, 3, NULL);
            if (gpts_calibrate(&c, &m, sequences, 4, RUN_T) != GPTS_OK) t_fail(__FILE__, __LINE__, c.error);
            o.heads = 2; o.gate = -1; o.selector = (gpts_selector)selector; o.replacement = (gpts_replacement)replacement;
            if (gpts_freeze(&m, &t, &c, &o, &report) != GPTS_OK) t_fail(__FILE__, __LINE__, m.error);
            for (i = 0; i < report.n && i < 2; i++) chosen[k][i] = report.heads[i].layer * 2 + report.heads[i].head;
            if (selector == GPTS_SELECT_VARIANCE) {
                ao.updates = 30; ao.hidden = 16;
                t_status(gpts_recording_make(&r, &m, 1, sequences, 8, RUN_T), GPTS_OK);
                t_status(gpts_approximator_fit(&a, &m, &r, NULL, &ao, &r2), GPTS_OK);
                if (gpts_approximator_install(&m, &t, &a, 1) != GPTS_OK) t_fail(__FILE__, __LINE__, m.error);
                gpts_approximator_free(&a); gpts_recording_free(&r);
            }
            run_updates(&t, ids, n, 2, NULL);
            t_status(gpts_model_forward(&m, &batch, NULL, &loss[k]), GPTS_OK);
            gpts_freeze_report_free(&report); gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
        }
        for (i = 0; i < 2; i++) t_equal(chosen[0][i], chosen[1][i]);
        t_close(loss[1] / loss[0], 1, 2e-4);
    }
    free(ids);
}

static void a_resumed_run_is_the_same_run(void)
{
    const char *path = "build/tests/gpu_resume.safetensors";
    size_t n, k;
    uint16_t *ids = story_tokens(&n);
    float *end[3];
    size_t size = 0;
    for (k = 0; k < 3; k++) {                              /* straight on; by a file; by a file, twice for the same bits */
        gpts_model m;
        gpts_trainer t;
        run_model(&m, 64);
        t_status(gpts_gpu_attach(&m, 0), GPTS_OK);
        run_trainer(&t, &m);
        run_updates(&t, ids, n, 5, NULL);
        if (k) {
            t_status(gpts_checkpoint_save(&t, path), GPTS_OK);
            gpts_trainer_free(&t); gpts_model_free(&m);
            t_status(gpts_checkpoint_load(&t, &m, path, NULL), GPTS_OK);
            t_status(gpts_gpu_attach(&m, 0), GPTS_OK);         /* the trainer follows */
        }
        run_updates(&t, ids, n, 5, NULL);
        size = t.n_block;
        end[k] = block_of(&t, t.moment2);
        {
            float *p = (float *)calloc(m.n_parameters + 1, 4), *both = (float *)calloc(size + m.n_parameters, 4);
            m.ops->download(m.device, p, m.tensors[0].data, m.n_parameters * 4);
            memcpy(both, end[k], size * 4); memcpy(both + size, p, m.n_parameters * 4);
            free(end[k]); free(p); end[k] = both; size += m.n_parameters;
        }
        gpts_trainer_free(&t); gpts_model_free(&m);
    }
    t_bits(end[0], end[1], size * 4); t_bits(end[1], end[2], size * 4);
    for (k = 0; k < 3; k++) free(end[k]);
    remove(path); free(ids);
}

static void files_go_from_one_side_to_the_other(void)
{
    const char *path = "build/tests/gpu_file.safetensors";
    model_case c = cases[14];
    gpts_model a, b;
    case_batch batch;
    double loss[3];
    case_batch_make(&batch, &c, 3);
    t_status(case_model(&a, &c, NULL), GPTS_OK);
    t_status(gpts_gpu_attach_precision(&a, 0, GPTS_GPU_F32), GPTS_OK);
    t_status(gpts_model_forward(&a, &batch.batch, NULL, &loss[0]), GPTS_OK);
    t_status(gpts_model_save(&a, path), GPTS_OK);
    t_status(gpts_model_load(&b, path, NULL), GPTS_OK);
    t_status(gpts_model_forward(&b, &batch.batch, NULL, &loss[1]), GPTS_OK);
    t_status(gpts_gpu_attach_precision(&b, 0, GPTS_GPU_F32), GPTS_OK);
    t_status(gpts_model_forward(&b, &batch.batch, NULL, &loss[2]), GPTS_OK);
    t_close(loss[1] / loss[0], 1, 1e-5); t_ok(loss[2] == loss[0]);
    gpts_model_free(&a); gpts_model_free(&b);
    remove(path);
}

static void likeliest_is_the_largest_logit_of_each_position(void)
{
    int type;
    for (type = GPTS_GPU_F32; type <= GPTS_GPU_BF16; type += GPTS_GPU_BF16 - GPTS_GPU_F32) {
        gpts_model m;
        gpts_batch batch;
        gpts_rng rng = { 8, 0 };
        size_t V, n = 3 * 64, i;
        int32_t ids[3 * 64], best[3 * 64];
        float *logits;
        run_model(&m, 64);
        V = (size_t)m.config.vocab_size;
        logits = (float *)malloc(n * V * sizeof *logits);
        for (i = 0; i < n; i++) ids[i] = (int32_t)gpts_rng_below(&rng, V);
        memset(&batch, 0, sizeof batch);
        batch.tokens = ids; batch.B = 3; batch.T = 64;
        t_status(gpts_gpu_attach_precision(&m, 0, type), GPTS_OK);
        t_status(gpts_model_forward(&m, &batch, logits, NULL), GPTS_OK);
        t_status(gpts_model_likeliest(&m, &batch, best), GPTS_OK);
        for (i = 0; i < n; i++) t_equal(best[i], gpts_sample(logits + i * V, V, NULL, NULL));
        gpts_model_free(&m);
        free(logits);
    }
}

static void refusals_say_why_and_the_cpu_goes_on(void)
{
    gpts_model m;
    gpts_trainer t;
    size_t n;
    uint16_t *ids = story_tokens(&n);
    run_model(&m, 64);
    t_status(gpts_gpu_attach(&m, 99), GPTS_DEVICE); t_says(m.error, "no GPU 99");
    t_status(gpts_gpu_attach(&m, -1), GPTS_DEVICE);
    t_status(gpts_gpu_attach_precision(&m, 0, 77), GPTS_BAD_ARGUMENT);
    m.abi++; t_status(gpts_gpu_attach(&m, 0), GPTS_MISMATCH); m.abi--;
    run_trainer(&t, &m);
    t_ok(run_updates(&t, ids, n, 1, NULL) > 0);
    t_status(gpts_gpu_attach(&m, 0), GPTS_OK);
    {                                                       /* a batch that no memory holds: the model says so and goes on */
        gpts_batch huge;
        gpts_status status;
        int32_t *tokens = (int32_t *)calloc((size_t)1 << 24, 4);
        void *hog = NULL;
        size_t room = (size_t)200 << 30, taken = 0;
        void *held[64];
        memset(&huge, 0, sizeof huge);
        huge.tokens = tokens; huge.B = 1 << 18; huge.T = 64;
        for (; room > (size_t)1 << 26 && taken < 64; room /= 2)
            while (taken < 64 && m.ops->allocate(m.device, room, &hog) == GPTS_OK) held[taken++] = hog;
        status = gpts_model_forward(&m, &huge, NULL, NULL);
        t_status(status, GPTS_NO_MEMORY); t_says(m.error, "out of memory");
        while (taken) m.ops->release(m.device, held[--taken]);
        free(tokens);
    }
    t_ok(run_updates(&t, ids, n, 1, NULL) > 0);
    t_equal(t.step, 2);
    gpts_trainer_free(&t); gpts_model_free(&m);
    free(ids);
}

int main(int argc, char **argv)
{
    gpts_model m;
    int usable;
    if (argc > 1 && !strcmp(argv[1], "--light")) { light = 1; argc--; argv++; }
    t_begin(argc, argv);
    run_model(&m, 64);
    usable = gpts_gpu_attach(&m, 0) == GPTS_OK;
    if (!usable) printf("  skipped: %s\n", m.error);
    gpts_model_free(&m);
    if (!usable) { printf("0 passed, 0 failed, 1 skipped\n"); return 0; }
    T(operations_fp32_E1_to_O2);
    T(operations_bf16_E1_to_O2);
    T(models_fp32);
    T(models_bf16);
    T(patterns_train_as_on_the_cpu);
    T(training_tracks_the_cpu);
    T(freezing_in_mid_run_equals_the_cpu);
    T(every_replacement_equals_the_cpu);
    T(a_resumed_run_is_the_same_run);
    T(files_go_from_one_side_to_the_other);
    T(likeliest_is_the_largest_logit_of_each_position);
    if (!light) T(refusals_say_why_and_the_cpu_goes_on);
    return t_end();
}

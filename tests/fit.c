/* fit.c - calibration, selection, the fit of patterns, and freezing in the middle of a run.

   (F1) masses           (F2) objective        (F3) gradient, curvature     (F4) bound
   (C1) statistics       (S1) variance         (S2) divergence   (S3) output   (S4) swap   (S5) gate   */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

static gpts_rng rng = { 11, 0 };
static double *doubles(size_t n) { return (double *)calloc(n ? n : 1, sizeof(double)); }
static gpts_real *reals(size_t n) { return (gpts_real *)calloc(n ? n : 1, sizeof(gpts_real)); }

/* ---- patterns as dense matrices --------------------------------------------------------------- */

typedef struct dense { size_t S; double *M, *column, *diagonal, information; } dense;

static void dense_new(dense *m, size_t S) { m->S = S; m->M = doubles(S * S); m->column = doubles(S); m->diagonal = doubles(S); m->information = 0; }
static void dense_free(dense *m) { free(m->M); free(m->column); free(m->diagonal); }
static void dense_masses(dense *m)                        /* floor, rows to 1, (F1) by definition */
{
    size_t i, j, S = m->S;
    memset(m->column, 0, S * sizeof(double)); memset(m->diagonal, 0, S * sizeof(double)); m->information = 0;
    for (i = 0; i < S; i++) {
        double sum = 0;
        for (j = 0; j <= i; j++) { if (m->M[i * S + j] < 1e-9) m->M[i * S + j] = 1e-9; sum += m->M[i * S + j]; }
        for (j = 0; j <= i; j++) {
            double p = m->M[i * S + j] /= sum;
            m->column[j] += p; m->diagonal[i - j] += p; m->information += p * log(p);
        }
    }
}
/* the mean over `n` sequences of softmax rows; kind says of what */
enum { DECAY, SINK, PREVIOUS, POWER, UNIFORM, PERIODS, KINDS };
static void dense_make(dense *m, size_t S, int kind, size_t n)
{
    size_t i, j, k;
    double *a = doubles(S), *bias = doubles(S);
    dense_new(m, S);
    for (k = 0; k < n; k++) {
        for (j = 0; j < S; j++) bias[j] = gpts_rng_normal(&rng);
        for (i = 0; i < S; i++) {
            double sum = 0;
            for (j = 0; j <= i; j++) {
                double d = (double)(i - j), x = 0.3 * bias[j];
                x += kind == DECAY ? -0.05 * d : kind == SINK ? -0.2 * d + (j == 0 ? 5 : 0) : kind == PREVIOUS ? (i - j == 1 ? 6 : 0)
                   : kind == POWER ? -1.3 * log(1 + d) : kind == UNIFORM ? 0 : 3 * cos(0.7 * d);
                sum += a[j] = exp(x);
            }
            for (j = 0; j <= i; j++) m->M[i * S + j] += a[j] / sum / (double)n;
        }
    }
    dense_masses(m);
    free(a); free(bias);
}
static void dense_noise(dense *m, size_t S)               /* alpha smooth, rho of independent normal numbers */
{
    size_t i, j;
    double *rho = doubles(S);
    dense_new(m, S);
    for (i = 0; i < S; i++) rho[i] = 2 * gpts_rng_normal(&rng);
    for (i = 0; i < S; i++) for (j = 0; j <= i; j++) m->M[i * S + j] = exp(rho[i - j]);
    for (i = 0; i < S; i++) {
        double sum = 0;
        for (j = 0; j <= i; j++) sum += m->M[i * S + j];
        for (j = 0; j <= i; j++) m->M[i * S + j] /= sum;
    }
    dense_masses(m);
    free(rho);
}

/* mean over rows of KL(M || pattern of alpha, rho), the worst row too; P (or NULL) = the pattern */
static double dense_divergence(const double *M, size_t S, const double *alpha, const double *rho, double *worst, double *P)
{
    size_t i, j;
    double sum = 0;
    if (worst) *worst = 0;
    for (i = 0; i < S; i++) {
        double most = -HUGE_VAL, z = 0, row = 0;
        for (j = 0; j <= i; j++) most = fmax(most, alpha[j] + rho[i - j]);
        for (j = 0; j <= i; j++) z += exp(alpha[j] + rho[i - j] - most);
        z = most + log(z);
        for (j = 0; j <= i; j++) {
            double p = M[i * S + j];
            if (P) P[i * S + j] = exp(alpha[j] + rho[i - j] - z);
            if (p > 0) row += p * (log(p) - (alpha[j] + rho[i - j] - z));
        }
        sum += row;
        if (worst) *worst = t_most(*worst, row);
    }
    return sum / (double)S;
}

static void make(gpts_pattern_fit *fit, const dense *m, double tolerance)
{
    t_status(gpts_pattern_fit_make(fit, m->column, m->diagonal, m->information, m->S, tolerance, 0, 0, NULL), GPTS_OK);
}

/* (F1) (F2): two vectors of masses say all of M that the fit needs: its divergence is that of the
   matrix, and no neighbour in alpha, rho, in any direction, is nearer to the matrix.              */
static void fit_by_masses_is_the_fit_of_the_matrix(void)
{
    static const size_t sizes[] = { 1, 2, 3, 17, 64, 100 };
    size_t kind, z, i, trial;
    for (kind = 0; kind < KINDS; kind++) for (z = 0; z < 6; z++) {
        size_t S = sizes[z];
        dense m;
        gpts_pattern_fit fit;
        double here, *alpha = doubles(S), *rho = doubles(S);
        dense_make(&m, S, (int)kind, 6);
        make(&fit, &m, 0);
        here = dense_divergence(m.M, S, fit.alpha, fit.rho, NULL, NULL);
        t_close(here, fit.divergence, 1e-10);
        t_ok(fit.bound <= 1e-6);
        t_ok(fit.mass_error < 1e-4);
        t_ok(fit.W == S && fit.R == 0);
        for (trial = 0; trial < 20; trial++) {
            double size = pow(10, -1 - (double)(trial % 4));
            for (i = 0; i < S; i++) {
                alpha[i] = fit.alpha[i] + size * gpts_rng_normal(&rng);
                rho[i] = fit.rho[i] + size * gpts_rng_normal(&rng);
            }
            t_ok(dense_divergence(m.M, S, alpha, rho, NULL, NULL) >= here - 1e-12);
        }
        gpts_pattern_fit_free(&fit); dense_free(&m); free(alpha); free(rho);
    }
}

/* (F3): the curvature's sums by Fourier's transform against plain products, both forms; a range that a transform
   cannot hold goes by products.                                                                           */
static void curvature_by_transforms_equals_products(void)
{
    static const size_t sizes[] = { 512, 513, 700, 1024, 1025 };
    size_t k, form, i;
    for (k = 0; k < sizeof sizes / sizeof *sizes; k++) for (form = 0; form < 2; form++) {
        size_t S = sizes[k], W = form ? 40 : S, R = form ? 5 : 0;
        double *mass = doubles(S), *t, *fast, *plain, error = 0, norm = 0;
        gptsi_fit f;
        for (i = 0; i < S; i++) mass[i] = 1;
        t_status(gptsi_fit_init(&f, mass, mass, S, W, R, NULL, NULL), GPTS_OK);
        t = doubles(f.n); fast = doubles(f.n); plain = doubles(f.n);
        for (i = 0; i < f.n; i++) { f.x[i] = gpts_rng_normal(&rng) - (i >= S && i < S + W ? log((double)(i - S + 1)) : 0); t[i] = gpts_rng_normal(&rng); }
        for (i = S + W + R; i < f.n; i++) f.x[i] -= 6;       /* tails that reach some hundred keys */
        gptsi_fit_value(&f);
        gptsi_fit_gradient(&f);
        t_ok(f.smooth);
        gptsi_fit_curvature(&f, fast, t);
        f.smooth = 0;
        gptsi_fit_curvature(&f, plain, t);
        for (i = 0; i < f.n; i++) { error += (fast[i] - plain[i]) * (fast[i] - plain[i]); norm += plain[i] * plain[i]; }
        t_close(sqrt(error / norm), 0, 1e-11);
        for (i = 0; i < S; i++) f.x[i] *= 30;
        gptsi_fit_value(&f);
        gptsi_fit_gradient(&f);
        t_ok(!f.smooth);
        free(mass); free(t); free(fast); free(plain); gptsi_fit_free(&f, NULL);
    }
}

/* (F3): gradient and curvature of the solver against central differences of the matrix's divergence,
   for the exact form and through the tail's parameters.                                             */
static void gradient_and_curvature_equal_differences(void)
{
    enum { S = 24 };
    size_t form, i;
    for (form = 0; form < 2; form++) {
        dense m;
        gptsi_fit f;
        double *g, *t, *ht, up, down, h = 1e-5, gt = 0, tht = 0, quadratic;
        dense_make(&m, S, POWER, 5);
        t_status(gptsi_fit_init(&f, m.column, m.diagonal, S, form ? 6 : S, form ? 3 : 0, NULL, NULL), GPTS_OK);
        g = doubles(f.n); t = doubles(f.n); ht = doubles(f.n);
        for (i = 0; i < f.n; i++) f.x[i] = 0.5 * gpts_rng_normal(&rng);
        gptsi_fit_value(&f);
        gptsi_fit_gradient(&f);
        memcpy(g, f.g, f.n * sizeof *g);
        t_close(gptsi_fit_value(&f) + m.information / S, dense_divergence(m.M, S, f.x, f.rho, NULL, NULL), 1e-12);
        for (i = 0; i < f.n; i++) {
            double x = f.x[i];
            f.x[i] = x + h; gptsi_fit_expand(&f); up = dense_divergence(m.M, S, f.x, f.rho, NULL, NULL);
            f.x[i] = x - h; gptsi_fit_expand(&f); down = dense_divergence(m.M, S, f.x, f.rho, NULL, NULL);
            f.x[i] = x;
            t_close(g[i], (up - down) / (2 * h), 1e-9);
        }
        for (i = 0; i < f.n; i++) t[i] = gpts_rng_normal(&rng);
        gptsi_fit_value(&f);
        gptsi_fit_gradient(&f);
        gptsi_fit_curvature(&f, ht, t);
        for (i = 0; i < f.n; i++) { gt += g[i] * t[i]; tht += t[i] * ht[i]; }
        if (!form) {                                      /* exact: second difference along t */
            double *x = doubles(f.n), here = gptsi_fit_value(&f);
            memcpy(x, f.x, f.n * sizeof *x);
            h = 1e-3;
            for (i = 0; i < f.n; i++) f.x[i] = x[i] + h * t[i];
            up = gptsi_fit_value(&f);
            for (i = 0; i < f.n; i++) f.x[i] = x[i] - h * t[i];
            down = gptsi_fit_value(&f);
            quadratic = (up - 2 * here + down) / (h * h);
            t_close(tht, quadratic, 1e-5 * fabs(quadratic));
            t_close(gt, (up - down) / (2 * h), 1e-4);
            free(x);
        }
        t_ok(tht >= 0);
        free(g); free(t); free(ht); gptsi_fit_free(&f, NULL); dense_free(&m);
    }
}

/* (F4): what the solver claims of its distance from the optimum holds at every step on the way. */
static void the_bound_is_never_too_small(void)
{
    size_t kind, most;
    for (kind = 0; kind < KINDS; kind++) {
        enum { S = 60 };
        dense m;
        gpts_pattern_fit best;
        size_t j;
        dense_make(&m, S, (int)kind, 4);
        make(&best, &m, 0);
        for (most = 0; most < 6; most++) {                /* a point on the way, then one undamped direction from it */
            gptsi_fit f;
            size_t steps = 0, products = 0;
            double bound, *p = doubles(S * S), spread;
            t_status(gptsi_fit_init(&f, m.column, m.diagonal, S, S, 0, NULL, NULL), GPTS_OK);
            for (j = 0; j < S; j++) f.x[S + j] = log(m.diagonal[j] / (double)(S - j));
            gptsi_fit_solve(&f, 0, most, &steps, &products);
            gptsi_fit_gradient(&f);
            bound = gptsi_fit_direction(&f, 0, 1e-6, 2000, &products);
            spread = gptsi_fit_spread(f.t, S) + gptsi_fit_spread(f.t + S, S);
            if (spread <= 1) t_ok(f.f + m.information / S - best.exact <= bound + 1e-11);
            free(p); gptsi_fit_free(&f, NULL);
        }
        gpts_pattern_fit_free(&best); dense_free(&m);
    }
}

static void a_pattern_of_the_family_is_found_again(void)
{
    enum { S = 80 };
    size_t i, j, trial;
    for (trial = 0; trial < 5; trial++) {
        double alpha[S], rho[S], *P = doubles(S * S), *Q = doubles(S * S);
        dense m;
        gpts_pattern_fit fit;
        for (i = 0; i < S; i++) { alpha[i] = 0.8 * gpts_rng_normal(&rng); rho[i] = 0.8 * gpts_rng_normal(&rng); }
        dense_new(&m, S);
        dense_divergence(P, S, alpha, rho, NULL, P);
        memcpy(m.M, P, S * S * sizeof *P);
        dense_masses(&m);
        make(&fit, &m, 0);
        t_close(fit.divergence, 0, 1e-8);
        dense_divergence(P, S, fit.alpha, fit.rho, NULL, Q);
        for (i = 0; i < S; i++) for (j = 0; j <= i; j++) t_close(Q[i * S + j], P[i * S + j], 1e-5);
        gpts_pattern_fit_free(&fit); dense_free(&m); free(P); free(Q);
    }
}

static void the_gauge_is_canonical(void)
{
    enum { S = 90 };
    size_t kind, j;
    for (kind = 0; kind < KINDS; kind++) {
        dense m;
        gpts_pattern_fit fit;
        double mean = 0, slope = 0, centre = 0;
        dense_make(&m, S, (int)kind, 4);
        make(&fit, &m, 0);
        for (j = 0; j < S; j++) { mean += m.column[j] * fit.alpha[j]; centre += m.column[j] * (double)j / S; }
        for (j = 0; j < S; j++) slope += m.column[j] * ((double)j - centre) * fit.alpha[j];
        t_close(mean / S, 0, 1e-12);
        t_close(slope / S, 0, 1e-9);
        gpts_pattern_fit_free(&fit); dense_free(&m);
    }
}

/* Smooth patterns get a linear form within the tolerance; what it reports is what the matrix says:
   KL(mean || linear) = KL(mean || exact) + gap, and (P3) gives rho from W on.                        */
static void smooth_patterns_become_linear(void)
{
    static const int kinds[] = { DECAY, SINK, POWER, UNIFORM, PREVIOUS };
    static const size_t sizes[] = { 40, 256, 500 };
    size_t k, z, i, d, r;
    for (k = 0; k < 5; k++) for (z = 0; z < 3; z++) {
        size_t S = sizes[z];
        dense m;
        gpts_pattern_fit fit, exact;
        double *P = doubles(S * S), gap, worst;
        dense_make(&m, S, kinds[k], 4);
        make(&fit, &m, 0.001);
        make(&exact, &m, 0);
        t_ok(fit.R > 0 && fit.R <= 16 && fit.W <= 64);
        t_ok(fit.gap >= -1e-9 && fit.gap <= 0.001);
        t_close(fit.exact, exact.divergence, 0);
        dense_divergence(m.M, S, exact.alpha, exact.rho, NULL, P);
        gap = dense_divergence(P, S, fit.alpha, fit.rho, &worst, NULL);
        t_close(gap, fit.gap, 1e-7);
        t_close(worst, fit.worst_gap, 1e-7);
        t_close(dense_divergence(m.M, S, fit.alpha, fit.rho, NULL, NULL), fit.divergence, 1e-8);
        t_close(fit.divergence, exact.divergence + gap, 1e-7);
        for (d = fit.W; d < S; d++) {
            double sum = 0;
            for (r = 0; r < fit.R; r++) {
                sum += fit.coef[r] * pow(fit.decay[r], (double)(d - fit.W));
                t_ok(fit.coef[r] >= 0 && fit.decay[r] > 0 && fit.decay[r] <= 1);
            }
            t_close(fit.rho[d], log(sum), 1e-6);
        }
        for (i = 0; i < S; i++) t_ok(fabs(fit.alpha[i]) < 100 && fabs(fit.rho[i]) < 200);
        if (t_state.bad) printf("  kind %d, S %d: W %d R %d gap %g\n", kinds[k], (int)S, (int)fit.W, (int)fit.R, fit.gap);
        gpts_pattern_fit_free(&fit); gpts_pattern_fit_free(&exact); dense_free(&m); free(P);
    }
}

static void noise_and_periods_stay_exact(void)
{
    size_t k;
    for (k = 0; k < 2; k++) {
        dense m;
        gpts_pattern_fit fit;
        if (k) dense_noise(&m, 300); else dense_make(&m, 300, PERIODS, 4);
        make(&fit, &m, 0.001);
        t_ok(fit.R == 0 && fit.W == 300 && fit.gap == 0);
        t_close(dense_divergence(m.M, 300, fit.alpha, fit.rho, NULL, NULL), fit.divergence, 1e-9);
        gpts_pattern_fit_free(&fit); dense_free(&m);
    }
}

static void masses_that_are_no_pattern_get_a_sentence(void)
{
    double column[3] = { 2, 0.5, 0.5 }, diagonal[3] = { 1, 1, 1 };
    gpts_pattern_fit fit;
    column[2] = (double)NAN;
    t_status(gpts_pattern_fit_make(&fit, column, diagonal, -1, 3, 0, 0, 0, NULL), GPTS_BAD_ARGUMENT);
    t_says(fit.error, "masses of a pattern of 3 rows");
    column[2] = 0.7;
    t_status(gpts_pattern_fit_make(&fit, column, diagonal, -1, 3, 0, 0, 0, NULL), GPTS_BAD_ARGUMENT);
    t_status(gpts_pattern_fit_make(&fit, column, diagonal, -1, 0, 0, 0, 0, NULL), GPTS_BAD_ARGUMENT);
    column[2] = 0.5;
    t_status(gpts_pattern_fit_make(&fit, column, diagonal, (double)NAN, 3, 0, 0, 0, NULL), GPTS_BAD_ARGUMENT);
    t_says(fit.error, "information is finite");
    gpts_pattern_fit_free(&fit);
}

/* ---- a model to calibrate and to freeze ---------------------------------------------------------- */

enum { V = 23, LAYERS = 3, HEADS = 4, C = 24, LENGTH = 40, BATCH = 4 };

static int threads = 1;                                   /* small models: waking others costs more */
static void model_make(gpts_model *m, gpts_position position, uint64_t seed)
{
    gpts_hooks hooks;
    gpts_config c = gpts_config_default();
    c.vocab_size = V; c.n_positions = LENGTH + 20; c.n_layer = LAYERS; c.n_head = HEADS; c.n_embd = C; c.n_inner = 32; c.position = position;
    memset(&hooks, 0, sizeof hooks);
    hooks.threads = threads;
    t_status(gpts_model_init(m, &c, seed, &hooks), GPTS_OK);
}
static void text_make(uint16_t *text, size_t n)           /* repeats of the past, so that heads have work */
{
    size_t i;
    for (i = 0; i < n; i++) text[i] = (uint16_t)(i > 12 && gpts_rng_uniform(&rng) < 0.7 ? text[i - 1 - gpts_rng_below(&rng, 3) * 5] : gpts_rng_below(&rng, V));
}
static uint16_t text[4000];
static void trainer_make(gpts_trainer *t, gpts_model *m)
{
    gpts_train_options o = gpts_train_options_default();
    o.learning_rate = 1e-2; o.min_learning_rate = 1e-3; o.total = 60;
    t_status(gpts_trainer_init(t, m, &o), GPTS_OK);
}
static void train(gpts_trainer *t, size_t updates)
{
    static int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    gpts_windows w;
    w.tokens = text; w.n = 4000; w.T = LENGTH; w.seed = 3; w.shuffled = 1;
    while (updates--) {
        t_status(gpts_windows_batch(&w, t->data_position, BATCH, tokens, targets), GPTS_OK);
        t->data_position += BATCH;
        t_status(gpts_trainer_update(t, tokens, targets, BATCH, LENGTH, NULL), GPTS_OK);
    }
}
enum { N_CALIBRATION = 6 };
static int32_t calibration_tokens[N_CALIBRATION * LENGTH];
static void calibration_text(void)
{
    size_t i;
    if (!text[0] && !text[1]) text_make(text, 4000);
    for (i = 0; i < N_CALIBRATION * LENGTH; i++) calibration_tokens[i] = text[(i * 7 + 100 * (i / LENGTH)) % 4000];
}
static void setup(gpts_model *m, gpts_trainer *t, gpts_position position, size_t updates)
{
    calibration_text();
    model_make(m, position, 5);
    trainer_make(t, m);
    train(t, updates);
}

/* A[l,h,n,i,j] of the whole model by the definition, in double, from recorded inputs of the sublayer */
static void attention_by_definition(gpts_model *m, size_t l, size_t head, size_t n, double *A, double *O)
{
    static gpts_real x[LENGTH * C], y[LENGTH * C];
    enum { D = C / HEADS, T = LENGTH };
    gpts_batch batch;
    const gpts_tensor *w, *b;
    char name[64];
    size_t i, j, c, d, part;
    static double q[3][T][D];
    memset(&batch, 0, sizeof batch);
    batch.tokens = calibration_tokens + n * LENGTH; batch.B = 1; batch.T = LENGTH;
    t_status(gpts_model_record(m, &batch, l, x, y), GPTS_OK);
    snprintf(name, sizeof name, "h.%d.attn.c_attn.weight", (int)l); w = gpts_model_tensor(m, name);
    snprintf(name, sizeof name, "h.%d.attn.c_attn.bias", (int)l); b = gpts_model_tensor(m, name);
    for (part = 0; part < 3; part++) for (i = 0; i < T; i++) for (d = 0; d < D; d++) {
        size_t column = part * C + head * D + d;
        q[part][i][d] = (double)b->data[column];
        for (c = 0; c < C; c++) q[part][i][d] += (double)x[i * C + c] * (double)w->data[c * w->columns + column];
    }
    if (m->config.position == GPTS_POSITION_ROPE)
        for (part = 0; part < 2; part++) for (i = 0; i < T; i++) for (d = 0; d < D / 2; d++) {
            double angle = (double)i * pow(m->config.rope_theta, -2.0 * (double)d / D), a = q[part][i][d], e = q[part][i][d + D / 2];
            q[part][i][d] = a * cos(angle) - e * sin(angle); q[part][i][d + D / 2] = e * cos(angle) + a * sin(angle);
        }
    for (i = 0; i < T; i++) {
        double sum = 0;
        for (j = 0; j <= i; j++) {
            double s = 0;
            for (d = 0; d < D; d++) s += q[0][i][d] * q[1][j][d];
            sum += A[i * T + j] = exp(s / sqrt(D));
        }
        for (j = 0; j <= i; j++) A[i * T + j] /= sum;
        for (d = 0; d < D; d++) { O[i * D + d] = 0; for (j = 0; j <= i; j++) O[i * D + d] += A[i * T + j] * q[2][j][d]; }
    }
    for (i = 0; i < T; i++) for (d = 0; d < D; d++) O[(T + i) * D + d] = q[2][i][d];         /* the values behind */
}

static void calibration_equals_the_definition(void)      /* (C1) (S1) (S2) (S3) */
{
    enum { D = C / HEADS, T = LENGTH, N = N_CALIBRATION };
    gpts_position position;
    size_t l, h, n, i, j, d, c;
    for (position = GPTS_POSITION_LEARNED; position <= GPTS_POSITION_ROPE; position = (gpts_position)(position + 1)) {
        gpts_model m;
        gpts_trainer t;
        gpts_calibration cal;
        gpts_real *before;
        double tolerance = sizeof(gpts_real) == 4 ? 2e-5 : 1e-9;
        memset(&cal, 0, sizeof cal);
        setup(&m, &t, position, 12);
        before = reals(m.n_parameters);
        memcpy(before, m.parameters, m.n_parameters * sizeof *before);
        cal.keep_mean = 1;
        t_status(gpts_calibrate(&cal, &m, calibration_tokens, N, T), GPTS_OK);
        t_bits(before, m.parameters, m.n_parameters * sizeof *before);
        for (l = 0; l < LAYERS; l++) for (h = 0; h < HEADS; h++) {
            static double A[N][T * T], O[N][2 * T * D];
            dense mean;
            double squares = 0, divergence = 0, change = 0;
            size_t at = l * HEADS + h;
            char name[64];
            const gpts_tensor *proj;
            dense_new(&mean, T);
            for (n = 0; n < N; n++) {
                memset(A[n], 0, sizeof A[n]);
                attention_by_definition(&m, l, h, n, A[n], O[n]);
                for (i = 0; i < T * T; i++) mean.M[i] += A[n][i] / N;
            }
            for (n = 0; n < N; n++) for (i = 0; i < T * T; i++) {
                squares += (A[n][i] - mean.M[i]) * (A[n][i] - mean.M[i]);
                if (A[n][i] > 0) divergence += A[n][i] * log(A[n][i] / mean.M[i]);
            }
            dense_masses(&mean);
            snprintf(name, sizeof name, "h.%d.attn.c_proj.weight", (int)l); proj = gpts_model_tensor(&m, name);
            for (n = 0; n < N; n++) for (i = 0; i < T; i++) {
                double e[D];
                for (d = 0; d < D; d++) {
                    e[d] = -O[n][i * D + d];
                    for (j = 0; j <= i; j++) e[d] += mean.M[i * T + j] * O[n][(T + j) * D + d];
                }
                for (c = 0; c < C; c++) {
                    double y = 0;
                    for (d = 0; d < D; d++) y += e[d] * (double)proj->data[(h * D + d) * C + c];
                    change += y * y;
                }
            }
            t_close(cal.variance[at], squares / (N - 1) / T / T, tolerance * squares);
            t_close(cal.divergence[at], divergence / N / T, tolerance * (1 + divergence / N / T));
            t_close(cal.output[at], change / N / T, tolerance * 10 * change);
            t_close(cal.information[at] / T, mean.information / T, tolerance);
            for (j = 0; j < T; j++) {
                t_close(cal.column[at * T + j], mean.column[j], tolerance * (1 + mean.column[j]));
                t_close(cal.diagonal[at * T + j], mean.diagonal[j], tolerance * (1 + mean.diagonal[j]));
            }
            for (i = 0; i < T * T; i++) t_close(cal.mean[at * T * T + i], mean.M[i], tolerance);
            dense_free(&mean);
        }
        free(before);
        gpts_calibration_free(&cal); gpts_trainer_free(&t); gpts_model_free(&m);
    }
}

/* Whatever the number of threads: the same statistics, choice, patterns, and weights after more updates. */
static void bits_do_not_depend_on_threads(void)
{
    gpts_model m[2];
    gpts_trainer t[2];
    gpts_calibration c[2];
    size_t i, k;
    for (k = 0; k < 2; k++) {
        threads = k ? 3 : 1;
        memset(&c[k], 0, sizeof c[k]);
        setup(&m[k], &t[k], GPTS_POSITION_ROPE, 5);
        t_status(gpts_calibrate(&c[k], &m[k], calibration_tokens, N_CALIBRATION, LENGTH), GPTS_OK);
        t_status(gpts_freeze(&m[k], &t[k], &c[k], NULL, NULL), GPTS_OK);
        train(&t[k], 2);
    }
    threads = 1;
    t_bits(c[0].column, c[1].column, LAYERS * HEADS * (2 * LENGTH + 4) * sizeof(double));
    t_equal(m[0].n_tensors, m[1].n_tensors);
    for (i = 0; i < m[0].n_tensors && i < m[1].n_tensors; i++) {
        t_text(m[0].tensors[i].name, m[1].tensors[i].name);
        t_bits(m[0].tensors[i].data, m[1].tensors[i].data, m[0].tensors[i].size * sizeof(gpts_real));
    }
    for (k = 0; k < 2; k++) { gpts_calibration_free(&c[k]); gpts_trainer_free(&t[k]); gpts_model_free(&m[k]); }
}

/* ---- selection --------------------------------------------------------------------------------------- */

static double loss_of(gpts_model *m, size_t n)
{
    gpts_batch b;
    static int32_t targets[LENGTH];
    double loss = -1;
    size_t i;
    memset(&b, 0, sizeof b);
    for (i = 0; i < LENGTH; i++) targets[i] = i + 1 < LENGTH ? calibration_tokens[n * LENGTH + i + 1] : -1;
    b.tokens = calibration_tokens + n * LENGTH; b.targets = targets; b.B = 1; b.T = LENGTH;
    t_status(gpts_model_forward(m, &b, NULL, &loss), GPTS_OK);
    return loss;
}
static void calibrated(gpts_model *m, gpts_trainer *t, gpts_calibration *c, gpts_position position, size_t updates)
{
    memset(c, 0, sizeof *c);
    setup(m, t, position, updates);
    t_status(gpts_calibrate(c, m, calibration_tokens, N_CALIBRATION, LENGTH), GPTS_OK);
}

static void gate_scores_equal_differences(void)          /* (S5) */
{
    enum { D = C / HEADS };
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    double score[LAYERS * HEADS], expected[LAYERS * HEADS], h = sizeof(gpts_real) == 4 ? 2e-2 : 1e-5;
    size_t l, s, n, i;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 12);
    o.selector = GPTS_SELECT_GATE_TAYLOR;
    t_status(gpts_select(&c, &m, &o, score), GPTS_OK);
    for (l = 0; l < LAYERS; l++) {
        char name[64];
        gpts_tensor *proj;
        double norm = 0;
        snprintf(name, sizeof name, "h.%d.attn.c_proj.weight", (int)l); proj = gpts_model_tensor(&m, name);
        for (s = 0; s < HEADS; s++) {
            expected[l * HEADS + s] = 0;
            for (n = 0; n < N_CALIBRATION; n++) {
                gpts_real kept[D * C];
                double up, down;
                memcpy(kept, proj->data + s * D * C, sizeof kept);
                for (i = 0; i < D * C; i++) proj->data[s * D * C + i] = kept[i] * (gpts_real)(1 + h);
                up = loss_of(&m, n);
                for (i = 0; i < D * C; i++) proj->data[s * D * C + i] = kept[i] * (gpts_real)(1 - h);
                down = loss_of(&m, n);
                memcpy(proj->data + s * D * C, kept, sizeof kept);
                expected[l * HEADS + s] += fabs(up - down) / (2 * h);
            }
            norm += expected[l * HEADS + s] * expected[l * HEADS + s];
        }
        for (s = 0; s < HEADS; s++) t_close(score[l * HEADS + s], expected[l * HEADS + s] / sqrt(norm), sizeof(gpts_real) == 4 ? 2e-2 : 1e-6);
    }
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

static void swap_scores_equal_a_swap(void)               /* (S4) */
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    double score[LAYERS * HEADS], base = 0;
    size_t i, n;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 12);
    o.selector = GPTS_SELECT_LOSS;
    t_status(gpts_select(&c, &m, &o, score), GPTS_OK);
    for (n = 0; n < N_CALIBRATION; n++) base += loss_of(&m, n) / N_CALIBRATION;
    for (i = 0; i < LAYERS * HEADS; i += 5) {
        gpts_model other;
        int32_t list[1];
        double loss = 0;
        memset(&other, 0, sizeof other);
        t_status(gptsi_model_copy(&other, &m), GPTS_OK);
        o = gpts_freeze_options_default();
        list[0] = (int32_t)i;
        o.selector = GPTS_SELECT_LIST; o.list = list; o.n_list = 1; o.heads = 1; o.gate = -1; o.replacement = GPTS_REPLACE_EXACT;
        t_status(gpts_freeze(&other, NULL, &c, &o, NULL), GPTS_OK);
        t_equal(other.layers[i / HEADS].heads.n, 1);
        for (n = 0; n < N_CALIBRATION; n++) loss += loss_of(&other, n) / N_CALIBRATION;
        t_close(score[i], loss - base, 1e-6);
        gpts_model_free(&other);
    }
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

static void selection_is_global_with_ties_by_index(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_freeze_report r;
    double score[LAYERS * HEADS];
    size_t i;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 4);
    for (i = 0; i < LAYERS * HEADS; i++) c.variance[i] = i == 7 ? 0.5 : i == 2 ? 2 : 1;
    o.heads = 4; o.gate = -1;
    t_status(gpts_select(&c, &m, &o, score), GPTS_OK);
    for (i = 0; i < LAYERS * HEADS; i++) t_close(score[i], c.variance[i], 0);
    t_status(gpts_freeze(&m, &t, &c, &o, &r), GPTS_OK);
    t_equal(r.n, 4); t_equal(r.wanted, 4); t_equal(r.refused, 0); t_equal(r.linear + r.exact, 4);
    t_equal(r.heads[0].layer * HEADS + r.heads[0].head, 7);
    t_equal(r.heads[1].layer * HEADS + r.heads[1].head, 0);
    t_equal(r.heads[2].layer * HEADS + r.heads[2].head, 1);
    t_equal(r.heads[3].layer * HEADS + r.heads[3].head, 3);
    gpts_freeze_report_free(&r);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

static void the_gate_tops_up_from_the_next_heads(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_freeze_report r;
    size_t i;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 20);
    for (i = 0; i < LAYERS * HEADS; i++) c.variance[i] = (double)i;
    c.information[0] += 0.5 * LENGTH; c.information[2] += 0.5 * LENGTH;   /* as if half a nat a row stayed unexplained */
    o.heads = 3;
    t_status(gpts_freeze(&m, &t, &c, &o, &r), GPTS_OK);
    t_equal(r.n, 3); t_equal(r.refused, 2);
    t_equal(r.heads[0].head, 1); t_equal(r.heads[1].head, 3); t_equal(r.heads[2].layer, 1); t_equal(r.heads[2].head, 0);
    for (i = 0; i < r.n; i++) t_ok(r.heads[i].divergence <= 0.2 + 0.001);
    gpts_freeze_report_free(&r);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}
static void a_gate_of_nothing_freezes_nothing(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_freeze_report r;
    double before;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 20);
    before = loss_of(&m, 0);
    o.gate = 1e-9;
    t_status(gpts_freeze(&m, &t, &c, &o, &r), GPTS_OK);
    t_equal(r.n, 0); t_equal(r.refused, LAYERS * HEADS); t_equal(r.wanted, 3);
    t_close(loss_of(&m, 0), before, 0);
    gpts_freeze_report_free(&r);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

static void random_heads_keep_the_layers_counts(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    double score[LAYERS * HEADS], again[LAYERS * HEADS];
    size_t order[LAYERS * HEADS], i, seed, same = 0, count[LAYERS];
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 4);
    for (i = 0; i < LAYERS * HEADS; i++) c.variance[i] = (double)(i * 7 % 12);
    memset(count, 0, sizeof count);
    for (i = 0; i < LAYERS * HEADS; i++) if (c.variance[i] < 6) count[i / HEADS]++;
    o.selector = GPTS_SELECT_RANDOM; o.heads = 6;
    for (seed = 0; seed < 20; seed++) {
        size_t got[LAYERS] = { 0, 0, 0 };
        o.seed = seed;
        t_status(gpts_select(&c, &m, &o, score), GPTS_OK);
        t_status(gpts_select(&c, &m, &o, again), GPTS_OK);
        t_bits(score, again, sizeof score);
        t_equal(gptsi_ranking(score, LAYERS * HEADS, order), LAYERS * HEADS);
        for (i = 0; i < 6; i++) got[order[i] / HEADS]++;
        for (i = 0; i < LAYERS; i++) t_equal(got[i], count[i]);
        for (i = 0; i < 6; i++) same += c.variance[order[i]] < 6;
    }
    t_ok(same > 20 && same < 110);                        /* and they are not the variance's heads */
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

/* ---- replacement in the middle of a run ------------------------------------------------------------------ */

/* columns of Q and K of the frozen heads are gone, from weights and moments; all else is the same bits */
static void freezing_leaves_the_rest_of_the_run_alone(void)
{
    enum { D = C / HEADS };
    int replacement;
    for (replacement = GPTS_REPLACE_LINEAR; replacement <= GPTS_REPLACE_PRUNE; replacement++) {
        gpts_model m, twin;
        gpts_trainer t, other;
        gpts_calibration c;
        gpts_freeze_options o = gpts_freeze_options_default();
        gpts_freeze_report r;
        size_t i, l, s, row, part;
        calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 15);
        setup(&twin, &other, GPTS_POSITION_ROPE, 15);
        o.heads = 5; o.gate = -1; o.replacement = (gpts_replacement)replacement;
        t_status(gpts_freeze(&m, &t, &c, &o, &r), GPTS_OK);
        t_equal(r.n, 5);
        t_equal(t.step, 15); t_equal(t.data_position, other.data_position);
        t_ok(m.n_parameters < twin.n_parameters || replacement != GPTS_REPLACE_PRUNE);
        t_ok(t.n_trainable < other.n_trainable);
        t_equal(other.n_trainable - t.n_trainable, (replacement == GPTS_REPLACE_PRUNE ? 5 * (3 * (C + 1) * D + C * D) : 5 * 2 * (C + 1) * D));
        for (i = 0; i < m.n_tensors; i++) {
            const gpts_tensor *a = &m.tensors[i], *b = gpts_model_tensor(&twin, a->name);
            const gpts_heads *h = a->layer < 0 ? NULL : &m.layers[a->layer].heads;
            if (a->kind == GPTS_P_ALPHA || a->kind == GPTS_P_RHO || a->kind == GPTS_P_TAIL_COEF || a->kind == GPTS_P_TAIL_DECAY) { t_ok(!a->trainable); continue; }
            t_ok(b != NULL);
            if (!b) continue;
            if (a->kind == GPTS_P_ATTN_W) {
                for (row = 0; row < C; row++) for (s = 0; s < h->K; s++) for (part = 0; part < 3; part++) {
                    size_t head = (size_t)h->kept[s], at, from = part * C + head * D;
                    const gpts_real *ma = t.moment1 + t.offset[i], *mb = other.moment1 + other.offset[b - twin.tensors];
                    if (part < 2 && h->live_slot[s] < 0) continue;
                    at = part < 2 ? part * h->U * D + (size_t)h->live_slot[s] * D : 2 * h->U * D + s * D;
                    t_bits(a->data + row * a->columns + at, b->data + row * b->columns + from, D * sizeof(gpts_real));
                    t_bits(ma + row * a->columns + at, mb + row * b->columns + from, D * sizeof(gpts_real));
                }
            } else if (a->size == b->size) {
                t_bits(a->data, b->data, a->size * sizeof(gpts_real));
                t_bits(t.moment1 + t.offset[i], other.moment1 + other.offset[b - twin.tensors], a->size * sizeof(gpts_real));
                t_bits(t.moment2 + t.offset[i], other.moment2 + other.offset[b - twin.tensors], a->size * sizeof(gpts_real));
            }
        }
        for (i = 0; i < r.n; i++) {
            const gpts_heads *h = &m.layers[r.heads[i].layer].heads;
            int32_t slot = gptsi_slot_of(h, r.heads[i].head);
            if (replacement == GPTS_REPLACE_PRUNE) { t_equal(slot, -1); continue; }
            t_ok(slot >= 0 && h->static_slot[slot] >= 0);
            if (replacement == GPTS_REPLACE_EXACT) t_equal(r.heads[i].R, 0);
            if (replacement == GPTS_REPLACE_UNIFORM) t_equal(r.heads[i].R, 1);
        }
        {                                                 /* and it trains on: live weights move, patterns do not */
            gpts_real *patterns = reals(2 * LAYERS * HEADS * LENGTH);
            size_t at = 0;
            double loss = 0;
            for (i = 0; i < m.n_tensors; i++) if (m.tensors[i].kind == GPTS_P_ALPHA || m.tensors[i].kind == GPTS_P_RHO) {
                memcpy(patterns + at, m.tensors[i].data, m.tensors[i].size * sizeof *patterns); at += m.tensors[i].size;
            }
            train(&t, 3);
            for (i = 0, at = 0; i < m.n_tensors; i++) if (m.tensors[i].kind == GPTS_P_ALPHA || m.tensors[i].kind == GPTS_P_RHO) {
                t_bits(patterns + at, m.tensors[i].data, m.tensors[i].size * sizeof *patterns); at += m.tensors[i].size;
            }
            for (l = 0; l < N_CALIBRATION; l++) loss += loss_of(&m, l);
            t_ok(loss > 0 && loss < N_CALIBRATION * log(V) * 2);
            free(patterns);
        }
        gpts_freeze_report_free(&r);
        gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m); gpts_trainer_free(&other); gpts_model_free(&twin);
    }
}

/* A head whose rows do not depend on the input loses nothing: with zero queries and keys attention
   is the running mean, the fit finds it, and the logits stay.                                       */
static void a_head_that_was_static_already_changes_nothing(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_freeze_report r;
    gpts_tensor *w, *b;
    double before;
    size_t row, i;
    calibration_text();
    setup(&m, &t, GPTS_POSITION_LEARNED, 10);
    w = gpts_model_tensor(&m, "h.1.attn.c_attn.weight"); b = gpts_model_tensor(&m, "h.1.attn.c_attn.bias");
    for (row = 0; row < C; row++) for (i = 0; i < 2 * C; i++) w->data[row * w->columns + i] = 0;
    for (i = 0; i < 2 * C; i++) b->data[i] = 0;
    before = loss_of(&m, 2);
    memset(&c, 0, sizeof c);
    t_status(gpts_calibrate(&c, &m, calibration_tokens, N_CALIBRATION, LENGTH), GPTS_OK);
    o.heads = HEADS;
    t_status(gpts_freeze(&m, &t, &c, &o, &r), GPTS_OK);
    for (i = 0; i < HEADS; i++) {
        t_equal(r.heads[i].layer, 1);
        t_close(r.heads[i].divergence, 0, 1e-7);
        t_ok(r.heads[i].R > 0);
    }
    t_equal(m.layers[1].heads.U, 0);
    t_close(loss_of(&m, 2), before, 1e-5);
    gpts_freeze_report_free(&r);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

/* Twice in one run: the second time other heads of the same layers, the first keep their patterns. */
static void freezing_again_keeps_what_is_frozen(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    int32_t list[] = { 1, 6, 3, 4 };
    gpts_real alpha[LENGTH], rho[LENGTH];
    const gpts_heads *h;
    double loss[3];
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 15);
    o.selector = GPTS_SELECT_LIST; o.list = list; o.n_list = 2; o.heads = 2; o.gate = -1; o.replacement = GPTS_REPLACE_EXACT;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_OK);
    memcpy(alpha, m.layers[0].heads.alpha, sizeof alpha); memcpy(rho, m.layers[0].heads.rho, sizeof rho);
    loss[0] = loss_of(&m, 0);
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_BAD_ARGUMENT);      /* that calibration has had its day */
    t_says(m.error, "no longer live");
    t_status(gpts_calibrate(&c, &m, calibration_tokens, N_CALIBRATION, LENGTH), GPTS_OK);
    t_ok(c.variance[1] < 0 && c.variance[6] < 0 && c.variance[0] >= 0);
    o.list = list + 2; o.replacement = GPTS_REPLACE_UNIFORM;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_OK);
    h = &m.layers[0].heads;
    t_equal(h->n, 2); t_equal(h->U, HEADS - 2); t_equal(m.layers[1].heads.n, 2);
    t_bits(h->alpha, alpha, sizeof alpha); t_bits(h->rho, rho, sizeof rho);
    t_equal(h->tail_start[0], LENGTH); t_equal(h->tail_start[1], 1);
    t_close(h->tail_decay[0], 1, 0); t_close(h->tail_coef[0], 0, 0);
    loss[1] = loss_of(&m, 0);
    t_ok(loss[1] > 0 && loss[1] != loss[0]);
    t_status(gpts_calibrate(&c, &m, calibration_tokens, N_CALIBRATION, LENGTH - 8), GPTS_OK);
    list[0] = 0;
    o.list = list; o.n_list = o.heads = 1;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_UNSUPPORTED);
    t_says(m.error, "static heads of length 40");
    t_close(loss_of(&m, 0), loss[1], 0);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

static void wrong_options_get_a_sentence(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options o;
    int32_t list[2] = { 3, 3 };
    double before;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 2);
    before = loss_of(&m, 0);
    o = gpts_freeze_options_default(); o.share = 1.5;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_BAD_ARGUMENT); t_says(m.error, "share in [0,1]");
    o = gpts_freeze_options_default(); o.gate = (double)NAN;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_BAD_ARGUMENT);
    o = gpts_freeze_options_default(); o.selector = GPTS_SELECT_LIST; o.list = list; o.n_list = 2;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_BAD_ARGUMENT); t_says(m.error, "head 3 twice");
    list[1] = LAYERS * HEADS;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_BAD_ARGUMENT); t_says(m.error, "names head 12");
    t_status(gpts_calibrate(&c, &m, calibration_tokens, 0, LENGTH), GPTS_BAD_ARGUMENT);
    t_status(gpts_freeze(&m, &t, &c, NULL, NULL), GPTS_BAD_ARGUMENT); t_says(m.error, "calibration");
    t_close(loss_of(&m, 0), before, 0);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

/* the ordinary, the linear, the exact and the pruned model decode to what a whole pass says */
static void frozen_models_decode_to_the_same_logits(void)
{
    int replacement;
    for (replacement = GPTS_REPLACE_LINEAR; replacement <= GPTS_REPLACE_PRUNE; replacement++) {
        gpts_model m;
        gpts_trainer t;
        gpts_calibration c;
        gpts_freeze_options o = gpts_freeze_options_default();
        gpts_session s;
        gpts_batch b;
        gpts_real *logits = reals(LENGTH * V);
        double worst = 0, scale = 0;
        size_t i, v, prefill = 17;
        calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 15);
        o.heads = 6; o.gate = -1; o.replacement = (gpts_replacement)replacement;
        t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_OK);
        memset(&b, 0, sizeof b);
        b.tokens = calibration_tokens; b.B = 1; b.T = LENGTH;
        t_status(gpts_model_forward(&m, &b, logits, NULL), GPTS_OK);
        memset(&s, 0, sizeof s);
        t_status(gpts_session_init(&s, &m, 1, LENGTH, NULL), GPTS_OK);
        t_status(gpts_session_prefill(&s, calibration_tokens, prefill, NULL), GPTS_OK);
        for (i = prefill - 1; i < LENGTH; i++) {
            const gpts_real *got;
            if (i >= prefill) t_status(gpts_session_decode(&s, calibration_tokens + i), GPTS_OK);
            got = gpts_session_logits(&s, 0);
            for (v = 0; v < V; v++) {
                worst = t_most(worst, fabs((double)got[v] - (double)logits[i * V + v]));
                scale = t_most(scale, fabs((double)logits[i * V + v]));
            }
        }
        t_close(worst / scale, 0, sizeof(gpts_real) == 4 ? 1e-5 : 1e-12);
        free(logits);
        gpts_session_free(&s); gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
    }
}

/* saved in the middle, loaded, trained on: the bits of the run that was not interrupted */
static void a_frozen_run_resumes_bit_for_bit(void)
{
    gpts_model m, n;
    gpts_trainer t, u;
    gpts_calibration c;
    gpts_freeze_options o = gpts_freeze_options_default();
    const char *path = "build/tests/fit_resume.safetensors";
    size_t i;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 12);
    o.share = 0.5; o.gate = -1;
    t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_OK);
    train(&t, 2);
    t_status(gpts_checkpoint_save(&t, path), GPTS_OK);
    memset(&n, 0, sizeof n); memset(&u, 0, sizeof u);
    t_status(gpts_checkpoint_load(&u, &n, path, NULL), GPTS_OK);
    train(&t, 3); train(&u, 3);
    t_equal(m.n_tensors, n.n_tensors);
    for (i = 0; i < m.n_tensors && i < n.n_tensors; i++) {
        t_text(m.tensors[i].name, n.tensors[i].name);
        if (sizeof(gpts_real) == 4) t_bits(m.tensors[i].data, n.tensors[i].data, m.tensors[i].size * sizeof(gpts_real));
    }
    remove(path);
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m); gpts_trainer_free(&u); gpts_model_free(&n);
}

/* Any order of freezing, pruning, training and short runs: after each step cached logits equal
   uncached ones, and the gradient is the loss's slope along a random direction (in double).    */
static void decode_matches(gpts_model *m, size_t T)
{
    gpts_session s;
    gpts_batch b;
    gpts_real *logits = reals(T * V);
    double worst = 0, scale = 1e-3;
    size_t i, v, prefill = 1 + gpts_rng_below(&rng, T);
    memset(&b, 0, sizeof b); memset(&s, 0, sizeof s);
    b.tokens = calibration_tokens; b.B = 1; b.T = T;
    t_status(gpts_model_forward(m, &b, logits, NULL), GPTS_OK);
    t_status(gpts_session_init(&s, m, 1, T, NULL), GPTS_OK);
    t_status(gpts_session_prefill(&s, calibration_tokens, prefill, NULL), GPTS_OK);
    for (i = prefill - 1; i < T; i++) {
        if (i >= prefill) t_status(gpts_session_decode(&s, calibration_tokens + i), GPTS_OK);
        for (v = 0; v < V; v++) {
            worst = t_most(worst, fabs((double)gpts_session_logits(&s, 0)[v] - (double)logits[i * V + v]));
            scale = t_most(scale, fabs((double)logits[i * V + v]));
        }
    }
    t_close(worst / scale, 0, sizeof(gpts_real) == 4 ? 2e-5 : 1e-11);
    gpts_session_free(&s);
    free(logits);
}
static void slope_matches(gpts_model *m, gpts_trainer *t, size_t T)
{
    static int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    gpts_real *direction = reals(m->n_parameters + 64 * m->n_tensors);
    gpts_batch b;
    double slope = 0, up, down, h = 1e-5;
    size_t i, k, n = 0, at, sign;
    for (i = 0; i < BATCH * T; i++) { tokens[i] = text[(i * 3) % 4000]; targets[i] = text[(i * 3 + 1) % 4000]; n++; }
    memset(&b, 0, sizeof b);
    b.tokens = tokens; b.targets = targets; b.B = BATCH; b.T = T;
    t_status(gpts_trainer_accumulate(t, &b, NULL), GPTS_OK);
    for (i = 0, at = 0; i < m->n_tensors; i++) {
        gpts_real *g = gpts_trainer_gradient(t, &m->tensors[i]);
        for (k = 0; k < m->tensors[i].size; k++, at++) {
            int tail = m->tensors[i].kind == GPTS_P_TAIL_COEF || m->tensors[i].kind == GPTS_P_TAIL_DECAY;
            direction[at] = (gpts_real)(g ? gpts_rng_normal(&rng) : 0);
            if (tail) direction[at] *= m->tensors[i].data[k] * (gpts_real)0.2;      /* (P10): both stay positive, unused terms unused */
            if (g) { slope += (double)g[k] * (double)direction[at]; g[k] = 0; }
        }
    }
    t->loss_sum = 0; t->loss_count = 0; t->accumulated = 0;
    for (sign = 0; sign < 3; sign++) {
        for (i = 0, at = 0; i < m->n_tensors; i++) for (k = 0; k < m->tensors[i].size; k++, at++)
            m->tensors[i].data[k] += (gpts_real)(sign == 1 ? -2 * h : h) * direction[at];
        for (i = 0; i < LAYERS; i++) gptsi_static_discard(&m->layers[i].heads, &m->hooks);
        if (sign < 2) t_status(gpts_model_forward(m, &b, NULL, sign ? &down : &up), GPTS_OK);
    }
    t_close(slope / (double)n, (up - down) / (2 * h), 1e-6 * (1 + fabs(slope) / (double)n));
    free(direction);
}
static void any_order_of_operations_keeps_the_model_right(void)
{
    size_t run, step;
    for (run = 0; run < 4; run++) {
        gpts_model m;
        gpts_trainer t;
        setup(&m, &t, run % 2 ? GPTS_POSITION_ROPE : GPTS_POSITION_LEARNED, 3);
        for (step = 0; step < 14; step++) {
            size_t T = 1 + gpts_rng_below(&rng, LENGTH), what = gpts_rng_below(&rng, 3);
            if (what < 2) {
                gpts_calibration c;
                gpts_freeze_options o = gpts_freeze_options_default();
                memset(&c, 0, sizeof c);
                t_status(gpts_calibrate(&c, &m, calibration_tokens, 3, LENGTH), GPTS_OK);
                o.heads = 1; o.gate = -1; o.replacement = (gpts_replacement)gpts_rng_below(&rng, 4);
                o.selector = (gpts_selector)gpts_rng_below(&rng, 6); o.seed = step; o.train_patterns = run > 1;
                t_status(gpts_freeze(&m, &t, &c, &o, NULL), GPTS_OK);
                if (t_state.bad) printf("  %s\n", m.error);
                gpts_calibration_free(&c);
            } else train(&t, 2);
            decode_matches(&m, T);
            if (sizeof(gpts_real) == 8) slope_matches(&m, &t, T);
        }
        gpts_trainer_free(&t); gpts_model_free(&m);
    }
}

/* Every allocation that fails: an error, nothing changed, nothing kept. */
static void running_out_of_memory_changes_nothing(void)
{
    long n, done = 0;
    for (n = 0; !done && n < 400; n++) {
        gpts_model m;
        gpts_calibration c;
        gpts_freeze_report r;
        gpts_config config = gpts_config_default();
        gpts_hooks hooks;
        t_budget b;
        gpts_status status;
        double before;
        calibration_text();
        memset(&hooks, 0, sizeof hooks); memset(&c, 0, sizeof c);
        hooks.context = &b; hooks.allocate = t_budget_allocate; hooks.release = t_budget_release; hooks.threads = 1;
        b.left = 1000000; b.live = 0;
        config.vocab_size = V; config.n_positions = LENGTH; config.n_layer = 2; config.n_head = 2; config.n_embd = 8; config.n_inner = 8;
        t_status(gpts_model_init(&m, &config, 1, &hooks), GPTS_OK);
        before = loss_of(&m, 0);
        b.left = n;
        status = gpts_calibrate(&c, &m, calibration_tokens, 2, LENGTH);
        if (status == GPTS_OK) {
            status = gpts_freeze(&m, NULL, &c, NULL, &r);
            if (status == GPTS_OK) { done = n; gpts_freeze_report_free(&r); }
        }
        b.left = 1000000;
        if (!done) {
            t_status(status, GPTS_NO_MEMORY);
            t_ok(m.layers[0].heads.n + m.layers[1].heads.n > 0 || loss_of(&m, 0) == before);
        }
        gpts_calibration_free(&c);
        gpts_model_free(&m);
        t_equal(b.live, 0);
    }
    t_ok(done > 20);
}

/* A weight that is no number stops a calibration, and so do finite ones whose scores overflow; nothing is frozen. */
static void E55_calibration_names_what_is_not_finite(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_real *x, was;
    size_t i;
    calibrated(&m, &t, &c, GPTS_POSITION_ROPE, 4);
    x = gpts_model_tensor(&m, "h.1.attn.c_attn.weight")->data;
    was = x[3];
    for (i = 0; i < 2; i++) {
        x[3] = (gpts_real)(i ? NAN : INFINITY);
        t_status(gpts_calibrate(&c, &m, calibration_tokens, 2, LENGTH), GPTS_NOT_FINITE);
        t_says(c.error, "the weight of h.1.attn.c_attn.weight is not finite");
        t_ok(c.column == NULL && c.tokens == NULL);
    }
    x[3] = was;
    t_status(gpts_calibrate(&c, &m, calibration_tokens, 2, LENGTH), GPTS_OK);
    if (sizeof(gpts_real) == 4) {                          /* in double the squares of such weights overflow too */
        for (i = 0; i < gpts_model_tensor(&m, "h.1.attn.c_attn.weight")->size; i++) x[i] = (gpts_real)(i % 2 ? 1e30 : -1e30);
        t_status(gpts_calibrate(&c, &m, calibration_tokens, 2, LENGTH), GPTS_NOT_FINITE);
        t_says(c.error, "of layer 1 has weights or values that are not finite");
    }
    gpts_calibration_free(&c); gpts_trainer_free(&t); gpts_model_free(&m);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(fit_by_masses_is_the_fit_of_the_matrix);
    T(gradient_and_curvature_equal_differences);
    T(curvature_by_transforms_equals_products);
    T(the_bound_is_never_too_small);
    T(a_pattern_of_the_family_is_found_again);
    T(the_gauge_is_canonical);
    T(smooth_patterns_become_linear);
    T(noise_and_periods_stay_exact);
    T(masses_that_are_no_pattern_get_a_sentence);
    T(calibration_equals_the_definition);
    T(bits_do_not_depend_on_threads);
    T(gate_scores_equal_differences);
    T(swap_scores_equal_a_swap);
    T(selection_is_global_with_ties_by_index);
    T(the_gate_tops_up_from_the_next_heads);
    T(a_gate_of_nothing_freezes_nothing);
    T(random_heads_keep_the_layers_counts);
    T(freezing_leaves_the_rest_of_the_run_alone);
    T(a_head_that_was_static_already_changes_nothing);
    T(freezing_again_keeps_what_is_frozen);
    T(wrong_options_get_a_sentence);
    T(frozen_models_decode_to_the_same_logits);
    T(a_frozen_run_resumes_bit_for_bit);
    T(any_order_of_operations_keeps_the_model_right);
    T(running_out_of_memory_changes_nothing);
    T(E55_calibration_names_what_is_not_finite);
    return t_end();
}

/* layers.c - the CPU's operations: forward against the definition in double, backward
   against central differences of fourth order (double build), bits for 1, 2, 3, 7 threads */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

#define DOUBLE (sizeof(gpts_real) == 8)
#define EPS (DOUBLE ? 2.3e-16 : 1.2e-7)
static gptsi_cpu cpu;

static void cpu_of(int threads)
{
    gpts_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.threads = threads;
    gptsi_cpu_free(&cpu);
    t_status(gptsi_cpu_init(&cpu, &hooks, NULL), GPTS_OK);
}
static gpts_real *fill(size_t n, uint64_t seed)
{
    gpts_rng rng = { 0, 0 };
    gpts_real *x = (gpts_real *)malloc((n + 1) * sizeof *x);
    size_t i;
    rng.seed = seed;
    for (i = 0; i < n; i++) x[i] = (gpts_real)gpts_rng_normal(&rng);
    return x;
}
static double inner(const gpts_real *a, const gpts_real *b, size_t n)
{
    double s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += (double)a[i] * (double)b[i];
    return s;
}

/* d loss / d x[i] for every i by central differences, against grad: max |a - b| <= 1e-7 max(1, |b|) */
typedef double (*loss_fn)(void *state);
static void differences(const char *what, gpts_real *x, size_t n, const gpts_real *grad, loss_fn loss, void *state)
{
    size_t i;
    double worst = 0;
    for (i = 0; i < n; i++) {
        gpts_real keep = x[i];
        double h = 1e-3, f[4], d;
        x[i] = keep + (gpts_real)h; f[0] = loss(state);
        x[i] = keep - (gpts_real)h; f[1] = loss(state);
        x[i] = keep + (gpts_real)(2 * h); f[2] = loss(state);
        x[i] = keep - (gpts_real)(2 * h); f[3] = loss(state);
        x[i] = keep;
        d = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
        d = fabs(d - (double)grad[i]) / fmax(1, fabs(d));
        worst = t_most(worst, d);
    }
    if (!(worst <= 1e-7)) printf("  %s: %g\n", what, worst);
    t_ok(worst <= 1e-7);
}

/* one state for all the losses: loss = <weights, op(x, w, b)> */
typedef struct state { gpts_real *x, *w, *b, *y, *s, *r; size_t N, C, O, V, k, T; const int32_t *ids, *first; int kind; } state;

static double loss_norm(void *p)
{
    state *s = (state *)p;
    gptsi_cpu_norm_forward(&cpu, s->y, s->s, s->x, s->w, s->b, s->N, s->C, 1e-5);
    return inner(s->y, s->r, s->N * s->C);
}
static void norm_N1_N2(void)                                            /* (N1) (N2) */
{
    static const size_t shapes[][2] = { { 1, 1 }, { 3, 5 }, { 7, 67 }, { 5, 130 } };
    size_t i, n, c;
    for (i = 0; i < 4; i++) {
        size_t N = shapes[i][0], C = shapes[i][1];
        state s;
        gpts_real *dx = fill(N * C, 9), *dx0 = fill(N * C, 9), *dw = fill(C, 10), *dw0 = fill(C, 10), *db = fill(C, 11), *db0 = fill(C, 11);
        s.x = fill(N * C, 1); s.w = fill(C, 2); s.b = fill(C, 3); s.y = fill(N * C, 4); s.s = fill(N * 2, 5); s.r = fill(N * C, 6);
        s.N = N; s.C = C;
        loss_norm(&s);
        for (n = 0; n < N; n++) {
            double mean = 0, var = 0;
            for (c = 0; c < C; c++) mean += (double)s.x[n * C + c] / (double)C;
            for (c = 0; c < C; c++) var += pow((double)s.x[n * C + c] - mean, 2) / (double)C;
            t_close(s.s[2 * n], mean, 8 * EPS);
            for (c = 0; c < C; c++) t_close(s.y[n * C + c], ((double)s.x[n * C + c] - mean) / sqrt(var + 1e-5) * (double)s.w[c] + (double)s.b[c], C == 1 ? 1e-3 * !DOUBLE + 1e-12 : 60 * EPS);
        }
        gptsi_cpu_norm_backward(&cpu, dx, dw, db, s.r, s.x, s.w, s.s, N, C);
        for (n = 0; n < N * C; n++) dx[n] -= dx0[n];
        for (n = 0; n < C; n++) { dw[n] -= dw0[n]; db[n] -= db0[n]; }
        if (DOUBLE && C > 1) {
            differences("norm x", s.x, N * C, dx, loss_norm, &s);
            differences("norm w", s.w, C, dw, loss_norm, &s);
            differences("norm b", s.b, C, db, loss_norm, &s);
        }
        free(s.x); free(s.w); free(s.b); free(s.y); free(s.s); free(s.r); free(dx); free(dx0); free(dw); free(dw0); free(db); free(db0);
    }
    {                                                                   /* a constant row: y = bias, finite gradient */
        gpts_real x[4] = { 3, 3, 3, 3 }, w[4] = { 1, 2, 3, 4 }, b[4] = { 5, 6, 7, 8 }, y[4], st[2], dx[4] = { 0, 0, 0, 0 };
        gptsi_cpu_norm_forward(&cpu, y, st, x, w, b, 1, 4, 1e-5);
        for (c = 0; c < 4; c++) t_ok(y[c] == b[c]);
        gptsi_cpu_norm_backward(&cpu, dx, NULL, NULL, w, x, w, st, 1, 4);
        for (c = 0; c < 4; c++) t_ok(fabs((double)dx[c]) < 1e5);
        gptsi_cpu_norm_forward(&cpu, y, st, x, w, NULL, 1, 4, 1e-5);
        for (c = 0; c < 4; c++) t_ok(y[c] == 0);
    }
}

static double loss_linear(void *p)
{
    state *s = (state *)p;
    gptsi_cpu_linear_forward(&cpu, s->y, s->x, s->w, s->b, s->N, s->C, s->O);
    return inner(s->y, s->r, s->N * s->O);
}
static void linear_L1_L2(void)                                          /* (L1) (L2) */
{
    static const size_t shapes[][3] = { { 1, 1, 1 }, { 2, 7, 5 }, { 9, 13, 50 }, { 33, 5, 3 } };
    size_t i, j;
    for (i = 0; i < 4; i++) {
        size_t N = shapes[i][0], C = shapes[i][1], O = shapes[i][2];
        state s;
        gpts_real *dx = fill(N * C, 7), *dw = fill(C * O, 8), *dw0 = fill(C * O, 8), *db = fill(O, 9), *db0 = fill(O, 9);
        double y0;
        s.x = fill(N * C, 1); s.w = fill(C * O, 2); s.b = fill(O, 3); s.y = fill(N * O, 4); s.r = fill(N * O, 5);
        s.N = N; s.C = C; s.O = O;
        loss_linear(&s);
        y0 = (double)s.b[O - 1];
        for (j = 0; j < C; j++) y0 += (double)s.x[(N - 1) * C + j] * (double)s.w[j * O + O - 1];
        t_close(s.y[N * O - 1], y0, 40 * EPS);
        gptsi_cpu_linear_backward(&cpu, dx, dw, db, s.r, s.x, s.w, N, C, O);
        for (j = 0; j < C * O; j++) dw[j] -= dw0[j];
        for (j = 0; j < O; j++) db[j] -= db0[j];
        if (DOUBLE) {
            differences("linear x", s.x, N * C, dx, loss_linear, &s);
            differences("linear w", s.w, C * O, dw, loss_linear, &s);
            differences("linear b", s.b, O, db, loss_linear, &s);
        }
        /* adjoint: <dy, x w> = <dx, x> = <dw, w> */
        s.b = (free(s.b), NULL);
        t_close(inner(dx, s.x, N * C) - loss_linear(&s), 0, 200 * EPS * (double)(N * O));
        t_close(inner(dw, s.w, C * O) - loss_linear(&s), 0, 200 * EPS * (double)(N * O));
        free(s.x); free(s.w); free(s.y); free(s.r); free(dx); free(dw); free(dw0); free(db); free(db0);
    }
}

static double gelu(double x, int kind)
{
    if (kind == GPTS_RELU) return x > 0 ? x : 0;
    if (kind == GPTS_GELU_ERF) return 0.5 * x * erfc(-x / sqrt(2.0));
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
static double loss_activation(void *p)
{
    state *s = (state *)p;
    gptsi_cpu_activation_forward(&cpu, s->y, s->x, s->N, (gpts_activation)s->kind);
    return inner(s->y, s->r, s->N);
}
static void activations_G1_G2(void)                                     /* (G1) (G2) */
{
    size_t i, n = 9001;
    for (int kind = 0; kind < 3; kind++) {
        state s;
        gpts_real *dx = fill(n, 5), *other;
        double worst = 0;
        s.x = fill(n, 1); s.y = fill(n, 2); s.r = fill(n, 3); s.N = n; s.kind = kind;
        for (i = 0; i < n; i++) s.x[i] = (gpts_real)(-12 + 24.0 * (double)i / (double)n + 1e-3);
        loss_activation(&s);
        for (i = 0; i < n; i++) {
            double y = gelu((double)s.x[i], kind), e = fabs((double)s.y[i] - y) / (1 + fabs(y));
            worst = t_most(worst, e);
        }
        if (!(worst <= 8 * EPS)) printf("  kind %d: %g\n", kind, worst);
        t_ok(worst <= 8 * EPS);
        gptsi_cpu_activation_backward(&cpu, dx, s.r, s.x, n, (gpts_activation)kind);
        for (i = 0; i < n; i += DOUBLE ? 1 : 7) {
            double x = (double)s.x[i], h = 1e-3, d;
            if (kind == GPTS_RELU && fabs(x) < 3e-3) continue;
            d = (8 * (gelu(x + h, kind) - gelu(x - h, kind)) - (gelu(x + 2 * h, kind) - gelu(x - 2 * h, kind))) / (12 * h) * (double)s.r[i];
            t_close(dx[i], d, DOUBLE ? 1e-7 : 4e-6);
        }
        other = fill(n, 3);                                             /* in place */
        gptsi_cpu_activation_backward(&cpu, other, other, s.x, n, (gpts_activation)kind);
        t_bits(other, dx, n * sizeof *dx);
        s.x[0] = -30000; s.x[1] = 30000;
        gptsi_cpu_activation_forward(&cpu, s.y, s.x, 2, (gpts_activation)kind);
        t_ok(s.y[0] == 0 && s.y[1] == 30000);
        gptsi_cpu_activation_backward(&cpu, dx, s.r, s.x, 2, (gpts_activation)kind);
        t_ok(dx[0] == 0 && dx[1] == s.r[1]);
        free(s.x); free(s.y); free(s.r); free(dx); free(other);
    }
}

static void embedding_E1_E2(void)                                       /* (E1) (E2) */
{
    enum { B = 3, T = 5, C = 70, V = 4 };
    int32_t tokens[B * T], first[B] = { 0, 2, 5 };
    gpts_real *wte = fill(V * C, 1), *wpe = fill(T * C, 2), *x = fill(B * T * C, 3), *r = fill(B * T * C, 4);
    gpts_real *dwte = (gpts_real *)calloc(V * C, sizeof *dwte), *dwpe = (gpts_real *)calloc(T * C, sizeof *dwpe);
    size_t n, c;
    for (n = 0; n < B * T; n++) tokens[n] = (int32_t)(gptsi_hash(1, n, 0) % V);
    gptsi_cpu_embed_forward(&cpu, x, tokens, first, wte, wpe, B, T, C);
    for (n = 0; n < B * T; n++)
        for (c = 0; c < C; c++) {
            size_t t = n % T, f = (size_t)first[n / T];
            t_ok(x[n * C + c] == (gpts_real)(wte[(size_t)tokens[n] * C + c] + (t >= f ? wpe[(t - f) * C + c] : 0)));
        }
    gptsi_cpu_embed_backward(&cpu, dwte, dwpe, tokens, first, r, B, T, C, V);
    t_close(inner(dwte, wte, V * C) + inner(dwpe, wpe, T * C), inner(x, r, B * T * C), 1e4 * EPS);
    gptsi_cpu_embed_forward(&cpu, x, tokens, NULL, wte, NULL, B, T, C);
    for (n = 0; n < B * T; n++) t_bits(x + n * C, wte + (size_t)tokens[n] * C, C * sizeof *x);
    gptsi_cpu_embed_backward(&cpu, NULL, NULL, tokens, first, r, B, T, C, V);
    free(wte); free(wpe); free(x); free(r); free(dwte); free(dwpe);
}

static void dropout_D1_D2(void)                                         /* (D1) (D2) */
{
    size_t n = 30000, i, zeros = 0;
    gpts_real *a = fill(n, 1), *b = fill(n, 2), *y = fill(n, 3), *db = fill(n, 4), *y2 = fill(n, 5);
    gpts_dropout drop;
    memset(&drop, 0, sizeof drop);
    gptsi_cpu_add_forward(&cpu, y, a, b, n, &drop);
    for (i = 0; i < n; i++) t_ok(y[i] == (gpts_real)(a[i] + b[i]));
    gptsi_cpu_add_backward(&cpu, db, a, n, &drop);
    t_bits(db, a, n * sizeof *a);
    drop.rate = 0.3; drop.seed = 5; drop.step = 2; drop.layer = 1; drop.site = 1;
    gptsi_cpu_add_forward(&cpu, y, a, b, n, &drop);
    gptsi_cpu_add_backward(&cpu, db, a, n, &drop);
    for (i = 0; i < n; i++) {
        double mask = (double)db[i] / (double)a[i];
        zeros += mask == 0;
        t_ok(mask == 0 || fabs(mask - 1 / 0.7) < 4 * EPS);
        t_close(y[i], (double)a[i] + mask * (double)b[i], 16 * EPS);
    }
    t_close((double)zeros / (double)n, 0.3, 5 * sqrt(0.21 / (double)n));
    drop.site = 2;                                                      /* another site, another mask */
    gptsi_cpu_add_forward(&cpu, y2, a, b, n, &drop);
    t_ok(memcmp(y, y2, n * sizeof *y) != 0);
    gptsi_cpu_add_forward(&cpu, b, a, b, n, &drop);                     /* in place */
    t_bits(b, y2, n * sizeof *b);
    free(a); free(b); free(y); free(db); free(y2);
}

static void window_Q1_Q2(void)                                          /* (Q1) (Q2) */
{
    enum { B = 2, T = 6, C = 3, K = 4 };
    int32_t first[B] = { 0, 2 };
    gpts_real *x = fill(B * T * C, 1), *z = fill(B * T * K * C, 2), *r = fill(B * T * K * C, 3), *dx = (gpts_real *)calloc(B * T * C, sizeof *dx);
    int b, t, s, c;
    gptsi_cpu_window_forward(&cpu, z, x, first, B, T, C, K);
    for (b = 0; b < B; b++) for (t = 0; t < T; t++) for (s = 0; s < K; s++) for (c = 0; c < C; c++) {
        int p = t - K + 1 + s;
        t_ok(z[((b * T + t) * K + s) * C + c] == (p >= first[b] ? x[(b * T + p) * C + c] : 0));
    }
    gptsi_cpu_window_backward(&cpu, dx, r, first, B, T, C, K);
    t_close(inner(dx, x, B * T * C), inner(z, r, B * T * K * C), 100 * EPS);
    free(x); free(z); free(r); free(dx);
}

static double loss_loss(void *p)
{
    state *s = (state *)p;
    double sum;
    gptsi_cpu_loss(&cpu, &sum, NULL, NULL, s->x, s->w, s->ids, s->N, s->C, s->V);
    return sum;
}
static void loss_X1_X2_X3(void)                                         /* (X1) (X2) (X3) */
{
    static const size_t shapes[][3] = { { 1, 3, 1 }, { 1, 1, 7 }, { 13, 6, 1 }, { 21, 9, 33 }, { 6, 5, 1500 } };
    size_t i, n, v, c;
    for (i = 0; i < 5; i++) {
        size_t N = shapes[i][0], C = shapes[i][1], V = shapes[i][2];
        state s;
        int32_t *ids = (int32_t *)malloc(N * sizeof *ids);
        gpts_real *logits = fill(N * V, 3), *dx = fill(N * C, 4), *dw = fill(V * C, 5), *dw0 = fill(V * C, 5);
        double sum, expected = 0;
        s.x = fill(N * C, 1); s.w = fill(V * C, 2); s.N = N; s.C = C; s.V = V; s.ids = ids;
        for (n = 0; n < N; n++) ids[n] = n % 4 == 1 ? -1 : (int32_t)(gptsi_hash(3, n, 0) % V);
        gptsi_cpu_logits(&cpu, logits, s.x, s.w, N, C, V);
        for (n = 0; n < N; n++) {
            double total = 0, hit = 0;
            for (v = 0; v < V; v++) {
                double l = 0;
                for (c = 0; c < C; c++) l += (double)s.x[n * C + c] * (double)s.w[v * C + c];
                t_close(logits[n * V + v], l, 30 * EPS);
                total += exp(l);
                if ((int32_t)v == ids[n]) hit = l;
            }
            if (ids[n] >= 0) expected += log(total) - hit;
        }
        gptsi_cpu_loss(&cpu, &sum, dx, dw, s.x, s.w, ids, N, C, V);
        t_close(sum, expected, 100 * EPS * (double)N);
        t_ok(sum == loss_loss(&s));
        for (n = 0; n < V * C; n++) dw[n] -= dw0[n];
        if (DOUBLE && V < 1000) {
            differences("loss x", s.x, N * C, dx, loss_loss, &s);
            differences("loss w", s.w, V * C, dw, loss_loss, &s);
        }
        for (n = 0; n < N; n++) if (ids[n] < 0) for (c = 0; c < C; c++) t_ok(dx[n * C + c] == 0);
        free(ids); free(logits); free(dx); free(dw); free(dw0); free(s.x); free(s.w);
    }
}
static void loss_goes_by_blocks_X2(void)                                /* (X2): more rows than one block holds */
{
    size_t N = 140, C = 2, V = (size_t)1 << 17, i, n, v;
    gpts_real *x = fill(N * C, 1), *w = fill(V * C, 2), *dx = fill(N * C, 3);
    int32_t ids[140];
    double sum, expected = 0;
    for (i = 0; i < N; i++) ids[i] = (int32_t)(i * 900);
    ids[3] = -1;
    gptsi_cpu_loss(&cpu, &sum, dx, NULL, x, w, ids, N, C, V);
    t_ok(cpu.block_bytes < N * V * sizeof(gpts_real));
    for (n = 0; n < N; n++) {
        double total = 0, d0 = 0, d1 = 0;
        const gpts_real *hit = w + (size_t)(ids[n] < 0 ? 0 : ids[n]) * C;
        if (ids[n] < 0) continue;
        for (v = 0; v < V; v++) {
            double e = exp(inner(x + n * C, w + v * C, C));
            total += e; d0 += e * (double)w[v * C]; d1 += e * (double)w[v * C + 1];
        }
        expected += log(total) - inner(x + n * C, hit, C);
        t_close(dx[n * C], d0 / total - (double)hit[0], DOUBLE ? 1e-12 : 40 * EPS);   /* the sums here round, too */
        t_close(dx[n * C + 1], d1 / total - (double)hit[1], DOUBLE ? 1e-12 : 40 * EPS);   /* the sums here round, too */
    }
    t_close(sum, expected, 20 * EPS * (double)N);
    free(x); free(w); free(dx);
}
static void loss_extremes_X2(void)                                      /* (X2) (X3) with gaps of 1e4 */
{
    gpts_real x[2] = { 1, 1 }, w[3] = { 0, 10000, -20000 }, dx[2], dw[3] = { 0, 0, 0 };
    int32_t ids[2] = { 0, 1 };
    double sum;
    gptsi_cpu_loss(&cpu, &sum, dx, dw, x, w, ids, 2, 1, 3);
    t_close(sum, 10000, 1e-9);
    t_close(dx[0], 10000, 1e-9); t_ok(dx[1] == 0);
    t_ok(dw[0] == -1 && dw[1] == 1 && dw[2] == 0);
    ids[0] = ids[1] = -1;
    gptsi_cpu_loss(&cpu, &sum, dx, dw, x, w, ids, 2, 1, 3);
    t_ok(sum == 0 && dx[0] == 0 && dx[1] == 0 && dw[0] == -1);
}

static void sum_of_squares_O1(void)                                     /* (O1) */
{
    static const size_t sizes[] = { 0, 1, 7, 4096, 4097, 100001 };
    size_t i, j;
    for (i = 0; i < 6; i++) {
        gpts_real *g = fill(sizes[i], 1);
        double s = 0, sum;
        for (j = 0; j < sizes[i]; j++) s += (double)g[j] * (double)g[j];
        gptsi_cpu_sum_squares(&cpu, &sum, g, sizes[i]);
        t_close(sum, s, 1e-13 * (1 + s));
        free(g);
    }
}
static void adamw_O2(void)                                              /* (O2), six steps in double beside it */
{
    static const double decays[2] = { 0, 0.1 };
    size_t n = 5003, i;
    for (int d = 0; d < 2; d++) {
        gpts_real *p = fill(n, 1), *g = fill(n, 2), *m = (gpts_real *)calloc(n, sizeof *m), *v = (gpts_real *)calloc(n, sizeof *v);
        double *P = (double *)malloc(n * sizeof *P), *M = (double *)calloc(n, sizeof *M), *S = (double *)calloc(n, sizeof *S);
        for (i = 0; i < n; i++) P[i] = (double)p[i];
        for (uint64_t step = 1; step <= 6; step++) {
            for (i = 0; i < n; i++) {
                double e = 0.5 * (double)(g[i] = (gpts_real)((double)(i % 17 == 0 ? 0 : 1) * (gptsi_unit(gptsi_hash(step, i, 0)) - 0.5) * pow(10, (double)(i % 9) - 6)));
                P[i] -= 1e-2 * decays[d] * P[i];
                M[i] = 0.9 * M[i] + 0.1 * e;
                S[i] = 0.999 * S[i] + 0.001 * e * e;
                P[i] -= 1e-2 * (M[i] / (1 - pow(0.9, (double)step))) / (sqrt(S[i] / (1 - pow(0.999, (double)step))) + 1e-8);
            }
            gptsi_cpu_adamw(&cpu, p, g, m, v, n, 0.5, 1e-2, decays[d], 0.9, 0.999, 1e-8, step);
            for (i = 0; i < n; i++) { t_ok(g[i] == 0); t_close(p[i], P[i], 6 * EPS * (1 + fabs(P[i]))); t_close(v[i], S[i], 8 * EPS * S[i]); }
        }
        free(p); free(g); free(m); free(v); free(P); free(M); free(S);
    }
}

/* every operation with a reduction or a cut, hashed */
static uint64_t everything(void)
{
    enum { B = 3, T = 37, C = 150, V = 300, SIZE = C * V };            /* the largest tensor */
    size_t N = B * T, i;
    uint64_t hash = 1;
    double sum, squares;
    int32_t *ids = (int32_t *)malloc(N * sizeof *ids);
    gpts_dropout drop;
    gpts_real *all[12];
    memset(&drop, 0, sizeof drop);
    drop.rate = 0.1;
    for (i = 0; i < 12; i++) all[i] = fill(SIZE, i);
    for (i = 0; i < N; i++) ids[i] = (int32_t)(gptsi_hash(1, i, 0) % V) - (i % 5 == 0) * V;
    gptsi_cpu_loss(&cpu, &sum, all[0], all[1], all[2], all[3], ids, N, C, V);
    for (i = 0; i < N; i++) ids[i] = (int32_t)(gptsi_hash(1, i, 0) % V);
    gptsi_cpu_norm_forward(&cpu, all[4], all[5], all[0], all[6], all[7], N, C, 1e-5);
    gptsi_cpu_norm_backward(&cpu, all[2], all[6], all[7], all[4], all[0], all[3], all[5], N, C);
    gptsi_cpu_linear_forward(&cpu, all[8], all[4], all[1], all[7], N, C, V);
    gptsi_cpu_linear_backward(&cpu, all[9], all[1], all[7], all[8], all[4], all[3], N, C, V);
    gptsi_cpu_add_forward(&cpu, all[9], all[9], all[4], N * C, &drop);
    gptsi_cpu_activation_forward(&cpu, all[10], all[9], N * C, GPTS_GELU_TANH);
    gptsi_cpu_embed_backward(&cpu, all[3], all[11], ids, NULL, all[10], B, T, C, V);
    gptsi_cpu_sum_squares(&cpu, &squares, all[3], N * V);
    gptsi_cpu_adamw(&cpu, all[0], all[1], all[2], all[4], N * C, 0.3, 1e-3, 0.1, 0.9, 0.95, 1e-8, 3);
    for (i = 0; i < 12 * SIZE; i++) { uint64_t bits = 0; memcpy(&bits, all[i / SIZE] + i % SIZE, sizeof(gpts_real)); hash = gptsi_mix(hash ^ bits); }
    { uint64_t bits[2]; memcpy(bits, &sum, 8); memcpy(bits + 1, &squares, 8); hash = gptsi_hash(hash, bits[0], bits[1]); }
    for (i = 0; i < 12; i++) free(all[i]);
    free(ids);
    return hash;
}
static void bits_for_any_number_of_threads(void)
{
    uint64_t one;
    cpu_of(1); one = everything();
    cpu_of(2); t_ok(everything() == one);
    cpu_of(3); t_ok(everything() == one);
    cpu_of(7); t_ok(everything() == one);
    cpu_of(2);
}
static void *refuse(void *context, size_t bytes) { (void)context; return bytes > 100000000 ? NULL : malloc(bytes); }
static void release(void *context, void *memory, size_t bytes) { (void)context; (void)bytes; free(memory); }
static void no_memory_for_the_loss_is_reported(void)
{
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
    double sum;
    int32_t id = 0;
    gpts_real x = 1, *w = fill((size_t)1 << 25, 1);
    memset(&hooks, 0, sizeof hooks);
    hooks.allocate = refuse; hooks.release = release;
    gptsi_cpu_free(&cpu);
    t_status(gptsi_cpu_init(&cpu, &hooks, error), GPTS_OK);
    gptsi_cpu_loss(&cpu, &sum, NULL, NULL, &x, w, &id, 1, 1, (size_t)1 << 25);
    t_status(gptsi_cpu_status(&cpu, error), GPTS_NO_MEMORY);
    t_says(error, "block of logits");
    cpu_of(2);
    free(w);
}
int main(int argc, char **argv)
{
    t_begin(argc, argv);
    cpu_of(2);
    T(embedding_E1_E2);
    T(norm_N1_N2);
    T(linear_L1_L2);
    T(activations_G1_G2);
    T(dropout_D1_D2);
    T(window_Q1_Q2);
    T(loss_X1_X2_X3);
    T(loss_goes_by_blocks_X2);
    T(loss_extremes_X2);
    T(sum_of_squares_O1);
    T(adamw_O2);
    T(bits_for_any_number_of_threads);
    T(no_memory_for_the_loss_is_reported);
    gptsi_cpu_free(&cpu);
    return t_end();
}

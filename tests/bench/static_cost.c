/* static_cost.c - what a static head in the linear form costs beside a live one: training, decoding,
   prefill.  Prints tables, asserts nothing.  All arms take turns in one run; the least time counts.

     cc -O2 -fopenmp -I. -o static_cost tests/bench/static_cost.c -lm && ./static_cost [longest T]      */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 199309L
#endif
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include <time.h>

enum { D = 64, W = 256, R = 16 };

static double now(void)
{
#if defined(_WIN32)
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

/* counts what the header allocates */
static size_t held, peak;
static void *count_allocate(void *context, size_t bytes)
{
    (void)context;
    held += bytes;
    if (held > peak) peak = held;
    return malloc(bytes);
}
static void count_release(void *context, void *memory, size_t bytes) { (void)context; held -= bytes; free(memory); }
static gpts_hooks hooks_for(int threads)
{
    gpts_hooks h;
    memset(&h, 0, sizeof h);
    h.allocate = count_allocate; h.release = count_release; h.threads = threads;
    return h;
}

/* one head: live, static exact, static linear */
enum { LIVE, EXACT, LINEAR, FORMS };
static const char *const form_name[] = { "live", "exact", "linear" };
typedef struct one {
    gpts_heads heads;
    int32_t kept[1], live[1], fixed[1], start[1];
    gpts_real *alpha, *rho, coef[R], decay[R];
} one;
static void one_make(one *h, int form, size_t S)
{
    size_t i, near_rows = S / 4 < W ? S / 4 : W;
    memset(h, 0, sizeof *h);
    h->alpha = (gpts_real *)calloc(S, sizeof *h->alpha); h->rho = (gpts_real *)calloc(S, sizeof *h->rho);
    for (i = 0; i < R; i++) { h->coef[i] = (gpts_real)(0.1 / (double)(i + 1)); h->decay[i] = (gpts_real)(1 - pow(2, -0.5 * (double)(i + 1))); }
    for (i = 0; i < S; i++) {
        double sum = 0;
        size_t r;
        h->alpha[i] = (gpts_real)sin((double)i);
        for (r = 0; r < R; r++) sum += (double)h->coef[r] * pow((double)h->decay[r], (double)i - (double)near_rows);
        h->rho[i] = (gpts_real)(i < near_rows ? -0.01 * (double)i : log(sum));
    }
    h->start[0] = (int32_t)near_rows;
    h->heads.H = h->heads.K = 1; h->heads.D = D; h->heads.S = S; h->heads.R = R;
    h->heads.kept = h->kept; h->heads.live_slot = h->live; h->heads.static_slot = h->fixed;
    h->heads.alpha = h->alpha; h->heads.rho = h->rho;
    if (form == LIVE) { h->heads.U = 1; h->fixed[0] = -1; }
    else {
        h->heads.n = 1; h->live[0] = -1;
        if (form == LINEAR) { h->heads.tail_start = h->start; h->heads.tail_coef = h->coef; h->heads.tail_decay = h->decay; }
    }
}
static void one_free(one *h, const gpts_hooks *hooks)
{
    gptsi_static_discard(&h->heads, hooks);
    free(h->alpha); free(h->rho);
}
static void *filled(size_t n)
{
    gpts_real *x = (gpts_real *)count_allocate(NULL, n * sizeof *x);
    size_t i;
    for (i = 0; i < n; i++) x[i] = (gpts_real)((double)(i * 2654435761u % 1000) / 500 - 1);
    return x;
}

static void training(size_t longest)
{
    size_t T;
    printf("forward + backward of one head, D = %d, W = %d (T/4 at most), R = %d, one thread; memory: inputs, outputs,\n"
           "gradients, tables and scratch\n"
           "      T      live      exact     linear   exact/live  linear/live   linear, T/2 -> T    live MB  linear MB\n", D, W, R);
    for (T = 256; T <= longest; T *= 2) {
        static double before;
        double best[FORMS] = { 1e30, 1e30, 1e30 };
        size_t memory[FORMS];
        int form, round;
        for (round = 0; round < (T <= 1024 ? 12 : T <= 4096 ? 4 : 2); round++) for (form = 0; form < FORMS; form++) {
            gpts_hooks hooks = hooks_for(1);
            gptsi_cpu cpu;
            one h;
            size_t width = form == LIVE ? 3 * D : D;
            gpts_real *qkv, *dqkv, *y, *dy, *lse;
            double t;
            held = peak = 0;
            gptsi_cpu_init(&cpu, &hooks, NULL);
            one_make(&h, form, T);
            gptsi_static_prepare(&h.heads, T, &hooks, NULL);
            qkv = (gpts_real *)filled(T * width); dqkv = (gpts_real *)filled(T * width); y = (gpts_real *)filled(T * D); dy = (gpts_real *)filled(T * D);
            lse = (gpts_real *)filled(T);
            t = now();
            gptsi_cpu_attention_forward(&cpu, &h.heads, y, lse, qkv, NULL, NULL, 1, T, 0.125, 0);
            gptsi_cpu_attention_backward(&cpu, &h.heads, dqkv, dy, y, lse, qkv, NULL, NULL, 1, T, 0.125, 0, NULL, NULL, NULL, NULL);
            t = now() - t;
            memory[form] = peak;
            if (t < best[form]) best[form] = t;
            free(qkv); free(dqkv); free(y); free(dy); free(lse);
            one_free(&h, &hooks);
            gptsi_cpu_free(&cpu);
        }
        printf("%7d %7.2fms  %7.2fms  %7.2fms     %7.3f      %7.3f  %17.2f  %9.2f  %9.2f\n", (int)T, best[LIVE] * 1e3, best[EXACT] * 1e3, best[LINEAR] * 1e3,
               best[EXACT] / best[LIVE], best[LINEAR] / best[LIVE], T > 256 ? best[LINEAR] / before : 0, (double)memory[LIVE] / 1e6, (double)memory[LINEAR] / 1e6);
        before = best[LINEAR];
    }
}

static void decoding(void)
{
    enum { T = 4096, STEPS = 64 };
    int form, round;
    double best[FORMS] = { 1e30, 1e30, 1e30 };
    size_t bytes[FORMS];
    printf("\ndecoding one head at position %d: time a token, bytes kept\n", T);
    for (round = 0; round < 5; round++) for (form = 0; form < FORMS; form++) {
        gpts_hooks hooks = hooks_for(1);
        gptsi_cpu cpu;
        gpts_cache cache;
        one h;
        size_t width = form == LIVE ? 3 * D : D, i, capacity = T + STEPS, kept;
        gpts_real *qkv = (gpts_real *)filled(T * width), y[D], row[3 * D];
        int32_t length = T, position;
        double t;
        gptsi_cpu_init(&cpu, &hooks, NULL);
        one_make(&h, form, capacity);
        gptsi_static_prepare(&h.heads, capacity, &hooks, NULL);
        memset(&cache, 0, sizeof cache);
        cache.B = 1; cache.capacity = capacity;
        gptsi_static_cache_size(&h.heads, capacity, &cache.ring_rows, &cache.state_size);
        kept = form == LIVE ? 2 * capacity * D : cache.ring_rows * D + cache.state_size;
        cache.keys = (gpts_real *)calloc(capacity * D, sizeof(gpts_real)); cache.values = (gpts_real *)calloc(capacity * D, sizeof(gpts_real));
        cache.ring = (gpts_real *)calloc(capacity * D, sizeof(gpts_real)); cache.state = (gpts_real *)calloc(R * D, sizeof(gpts_real));
        gptsi_cpu_cache_fill(&cpu, &h.heads, &cache, qkv, &length, T);
        memset(row, 0, sizeof row);
        t = now();
        for (i = 0; i < STEPS; i++) {
            position = (int32_t)(T + i);
            gptsi_cpu_attention_decode(&cpu, &h.heads, &cache, y, row, &position, 0.125, 0);
        }
        t = (now() - t) / STEPS;
        if (t < best[form]) best[form] = t;
        bytes[form] = kept * sizeof(gpts_real);
        free(cache.keys); free(cache.values); free(cache.ring); free(cache.state); free(qkv);
        one_free(&h, &hooks);
        gptsi_cpu_free(&cpu);
    }
    for (form = 0; form < FORMS; form++)
        printf("  %-6s  %8.2f us  %9d bytes   (%.3f and %.3f of live)\n", form_name[form], best[form] * 1e6, (int)bytes[form], best[form] / best[LIVE],
               (double)bytes[form] / (double)bytes[LIVE]);
}

/* the first `frozen` heads of each layer get the linear pattern of one_make */
static void freeze_heads(gpts_model *m, size_t T, size_t frozen)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, l, i;
    gptsi_layer_shape *shapes = gptsi_shapes_of(m);
    int32_t start[64];
    gpts_pattern_fit fit;
    one h;
    one_make(&h, LINEAR, T);
    memset(&fit, 0, sizeof fit);
    fit.S = T; fit.W = W; fit.R = R;
    fit.alpha = (double *)calloc(2 * T + 2 * R, sizeof(double)); fit.rho = fit.alpha + T; fit.coef = fit.rho + T; fit.decay = fit.coef + R;
    for (i = 0; i < T; i++) { fit.alpha[i] = (double)h.alpha[i]; fit.rho[i] = (double)h.rho[i]; }
    for (i = 0; i < R; i++) { fit.coef[i] = (double)h.coef[i]; fit.decay[i] = (double)h.decay[i]; }
    for (i = 0; i < H; i++) start[i] = W;
    for (l = 0; l < L; l++) {
        for (i = 0; i < frozen; i++) shapes[l].kind[i] = GPTSI_STATIC;
        shapes[l].S = T; shapes[l].R = R; shapes[l].tails = 1; shapes[l].tail_start = start;
    }
    if (frozen) {
        gptsi_model_reshape(m, NULL, shapes);
        for (l = 0; l < L; l++) for (i = 0; i < frozen; i++) gptsi_static_place(m, l, i, &fit);
    }
    gptsi_delete(&m->hooks, shapes);
    free(fit.alpha);
    one_free(&h, NULL);
}
/* floating-point operations of a prefill: 2 a weight and token, 4 D a live head's cell, 2 D (W + 2 R)
   a static head's row */
static double prefill_flops(const gpts_config *c, double T, double frozen)
{
    double C = (double)c->n_embd, weights = 12 * C * C - frozen * 2 * C * D;
    return (double)c->n_layer * T * (2 * weights + ((double)c->n_head - frozen) * 2 * D * T + frozen * 2 * D * (W + 2 * R));
}
static void prefill(int threads)
{
    enum { T = 4096, ARMS = 4, ROUNDS = 2 };
    static const size_t share[ARMS] = { 0, 2, 4, 8 };
    static int32_t ids[T];
    gpts_model m[ARMS];
    double best[ARMS] = { 1e30, 1e30, 1e30, 1e30 };
    gpts_config c = gpts_config_default();
    size_t i, k, round, state[ARMS];
    gpts_hooks hooks = hooks_for(threads);
    c.vocab_size = 256; c.n_positions = T; c.n_layer = 4; c.n_head = 8; c.n_embd = 8 * D; c.position = GPTS_POSITION_ROPE;
    printf("\nprefill of %d tokens, %d layers of %d heads, width %d, %d threads\n", T, (int)c.n_layer, (int)c.n_head, (int)c.n_embd, threads);
    for (i = 0; i < T; i++) ids[i] = (int32_t)(i * 7919 % 256);
    for (k = 0; k < ARMS; k++) { gpts_model_init(&m[k], &c, 1, &hooks); freeze_heads(&m[k], T, share[k]); }
    for (round = 0; round < ROUNDS; round++) for (k = 0; k < ARMS; k++) {
        gpts_session s;
        double t;
        memset(&s, 0, sizeof s);
        gpts_session_init(&s, &m[k], 1, T, &hooks);
        t = now();
        if (gpts_session_prefill(&s, ids, T, NULL) != GPTS_OK) printf("%s\n", s.error);
        t = now() - t;
        if (t < best[k]) best[k] = t;
        state[k] = s.state_bytes;
        gpts_session_free(&s);
    }
    for (k = 0; k < ARMS; k++) {
        printf("  %3d %% static  %8.1f ms   %.2f times as fast (by operations %.2f)   %6.2f MB kept\n", (int)(share[k] * 100 / 8), best[k] * 1e3, best[0] / best[k],
               prefill_flops(&c, T, 0) / prefill_flops(&c, T, (double)share[k]), (double)state[k] / 1e6);
        gpts_model_free(&m[k]);
    }
}

int main(int argc, char **argv)
{
    size_t longest = argc > 1 ? (size_t)atoi(argv[1]) : 16384;
    training(longest);
    decoding();
    prefill(1);
    prefill(2);
    return 0;
}

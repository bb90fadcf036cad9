/* attention.c - live heads, rotary and the mixed layer: forward against the definition in
   double, backward against central differences (double build), decoding against forward */
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
static gpts_real *fill(size_t n, uint64_t seed, double scale)
{
    gpts_rng rng = { 0, 0 };
    gpts_real *x = (gpts_real *)malloc((n + 1) * sizeof *x);
    size_t i;
    rng.seed = seed;
    for (i = 0; i < n; i++) x[i] = (gpts_real)(scale * gpts_rng_normal(&rng));
    return x;
}
/* U live heads and n static ones, alternating while both last */
static int32_t kept[64], live_slot[64], static_slot[64];
static gpts_real alpha[64 * 64], rho[64 * 64];
static gpts_heads heads_of(size_t U, size_t n, size_t D, size_t S)
{
    gpts_heads h;
    size_t s, u = 0, c = 0;
    memset(&h, 0, sizeof h);
    h.H = h.K = U + n; h.D = D; h.U = U; h.n = n; h.S = S;
    h.kept = kept; h.live_slot = live_slot; h.static_slot = static_slot; h.alpha = alpha; h.rho = rho;
    for (s = 0; s < h.K; s++) {
        int live = u < U && (s % 2 == 0 || c == n);
        kept[s] = (int32_t)s; live_slot[s] = live ? (int32_t)u++ : -1; static_slot[s] = live ? -1 : (int32_t)c++;
    }
    for (s = 0; s < n * S; s++) { alpha[s] = (gpts_real)sin((double)s); rho[s] = (gpts_real)cos(1.7 * (double)s); }
    if (n) t_status(gptsi_static_prepare(&h, S, NULL, NULL), GPTS_OK);
    return h;
}

/* the definitions in double: rotation, (A1), (P1); qkv is not changed */
static void reference(const gpts_heads *h, double *y, double *lse, const gpts_real *qkv, const int32_t *first, const int32_t *length,
                      size_t B, size_t T, double scale, double theta)
{
    size_t D = h->D, ld = (2 * h->U + h->K) * D, b, s, i, j, d;
    double *x = (double *)malloc(B * T * ld * sizeof *x), *p = (double *)malloc(T * sizeof *p);
    for (i = 0; i < B * T * ld; i++) x[i] = (double)qkv[i];
    for (b = 0; b < B; b++) {
        size_t f = first ? (size_t)first[b] : 0, e = length ? f + (size_t)length[b] : T;
        for (i = f; i < e && theta > 0; i++)
            for (s = 0; s < 2 * h->U; s++)
                for (d = 0; d < D / 2; d++) {
                    double a = (double)(i - f) * pow(theta, -2.0 * (double)d / (double)D), *r = x + (b * T + i) * ld + s * D + d, t = r[0];
                    r[0] = t * cos(a) - r[D / 2] * sin(a);
                    r[D / 2] = r[D / 2] * cos(a) + t * sin(a);
                }
        for (s = 0; s < h->K; s++)
            for (i = 0; i < T; i++) {
                double *o = y + ((b * T + i) * h->K + s) * D, top = -HUGE_VAL, sum = 0;
                for (d = 0; d < D; d++) o[d] = 0;
                if (h->live_slot[s] >= 0) lse[(b * h->U + (size_t)h->live_slot[s]) * T + i] = -HUGE_VAL;
                if (i < f || i >= e) continue;
                for (j = f; j <= i; j++) {
                    if (h->live_slot[s] >= 0) {
                        const double *q = x + (b * T + i) * ld + (size_t)h->live_slot[s] * D, *k = x + (b * T + j) * ld + (h->U + (size_t)h->live_slot[s]) * D;
                        for (p[j] = 0, d = 0; d < D; d++) p[j] += scale * q[d] * k[d];
                    } else p[j] = (double)h->alpha[(size_t)h->static_slot[s] * h->S + j - f] + (double)h->rho[(size_t)h->static_slot[s] * h->S + i - j];
                    if (p[j] > top) top = p[j];
                }
                for (j = f; j <= i; j++) sum += p[j] = exp(p[j] - top);
                for (j = f; j <= i; j++) for (d = 0; d < D; d++) o[d] += p[j] / sum * x[(b * T + j) * ld + (2 * h->U + s) * D + d];
                if (h->live_slot[s] >= 0) lse[(b * h->U + (size_t)h->live_slot[s]) * T + i] = top + log(sum);
            }
    }
    free(x); free(p);
}
/* forward of one shape; the largest difference to the definition, relative to 1 + |lse| and 1 + |y| */
static void compare(size_t U, size_t n, size_t D, size_t B, size_t T, const int32_t *first, const int32_t *length, double theta, double size)
{
    gpts_heads h = heads_of(U, n, D, 64);
    size_t ld = (2 * U + h.K) * D, ny = B * T * h.K * D, i;
    gpts_real *qkv = fill(B * T * ld, 1, size), *y = fill(ny, 2, 1), *lse = fill(B * U * T, 3, 1);
    double *Y = (double *)malloc(ny * sizeof *Y), *LSE = (double *)malloc((B * U * T + 1) * sizeof *LSE), scale = 1 / sqrt((double)D), worst = 0;
    reference(&h, Y, LSE, qkv, first, length, B, T, scale, theta);
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, qkv, first, length, B, T, scale, theta);
    for (i = 0; i < ny; i++) { double e = fabs((double)y[i] - Y[i]) / (1 + fabs(Y[i])); worst = t_most(worst, e); }
    for (i = 0; i < B * U * T; i++) {
        double e = LSE[i] > -1e300 ? fabs((double)lse[i] - LSE[i]) / (1 + fabs(LSE[i])) : (double)lse[i] < -1e300 ? 0 : 1;
        worst = t_most(worst, e);
    }
    if (!(worst <= 60 * EPS * (1 + size * size))) printf("  U %d n %d D %d B %d T %d theta %g: %g\n", (int)U, (int)n, (int)D, (int)B, (int)T, theta, worst);
    t_ok(worst <= 60 * EPS * (1 + size * size));
    gptsi_static_discard(&h, NULL);
    free(qkv); free(y); free(lse); free(Y); free(LSE);
}
static void forward_A1(void)                                            /* (A1) (R1) */
{
    static const size_t shapes[][4] = { { 1, 1, 1, 1 }, { 1, 1, 2, 1 }, { 2, 64, 1, 7 }, { 3, 5, 2, 50 }, { 1, 16, 1, 95 }, { 1, 33, 1, 96 }, { 2, 80, 1, 97 }, { 1, 7, 3, 300 }, { 2, 64, 1, 193 }, { 1, 130, 1, 120 } };
    size_t i;
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        compare(shapes[i][0], 0, shapes[i][1], shapes[i][2], shapes[i][3], NULL, NULL, 0, 1);
        if (shapes[i][1] % 2 == 0) compare(shapes[i][0], 0, shapes[i][1], shapes[i][2], shapes[i][3], NULL, NULL, 10000, 1);
    }
}
static void every_head_size_A1(void)                                    /* (A1): D from 1 to 70 */
{
    size_t D;
    for (D = 1; D <= 70; D++) compare(1, 0, D, 1, 11, NULL, NULL, 0, 1);
}
static void huge_head_A1(void)                                          /* the scratch grows */
{
    compare(1, 0, 3000, 1, 5, NULL, NULL, 0, 0.3);
}
static void mixed_layer_M1_M2(void)                                     /* (M1) */
{
    int32_t first[3] = { 0, 5, 2 }, length[3] = { 30, 0, 3 };
    compare(2, 2, 6, 3, 30, first, length, 0, 1);
    compare(2, 3, 6, 3, 30, first, length, 10000, 1);
    compare(0, 3, 8, 2, 60, NULL, NULL, 10000, 1);
    first[1] = 1; length[1] = 29;
    compare(3, 1, 8, 3, 30, first, length, 100, 1);
    compare(1, 0, 8, 3, 30, first, length, 100, 1);
}
static void masked_rows_are_zero_A1_A2(void)                            /* (A1) (A2): outside the interval nothing is read */
{
    enum { T = 130, D = 4 };
    gpts_heads h = heads_of(1, 0, D, 1);
    int32_t first[2] = { 7, 100 }, length[2] = { 110, 0 };
    gpts_real *qkv = fill(2 * T * 3 * D, 1, 1), *y = fill(2 * T * D, 2, 1), *lse = fill(2 * T, 3, 1), *dy = fill(2 * T * D, 4, 1), *dqkv = fill(2 * T * 3 * D, 5, 1);
    int b, t, d;
    for (b = 0; b < 2; b++) for (t = 0; t < T; t++) if (t < first[b] || t >= first[b] + length[b])
        for (d = 0; d < 3 * D; d++) { qkv[(b * T + t) * 3 * D + d] = (gpts_real)NAN; dy[(b * T + t) * D + d % D] = (gpts_real)NAN; }
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, qkv, first, length, 2, T, 0.5, 10000);
    gptsi_cpu_attention_backward(&cpu, &h, dqkv, dy, y, lse, qkv, first, length, 2, T, 0.5, 10000, NULL, NULL, NULL, NULL);
    for (b = 0; b < 2; b++) for (t = 0; t < T; t++) {
        int out = t < first[b] || t >= first[b] + length[b];
        for (d = 0; d < D; d++) t_ok(out ? y[(b * T + t) * D + d] == 0 : fabs((double)y[(b * T + t) * D + d]) < 10);
        for (d = 0; d < 3 * D; d++) t_ok(out ? dqkv[(b * T + t) * 3 * D + d] == 0 : fabs((double)dqkv[(b * T + t) * 3 * D + d]) < 100);
        t_ok(out ? (double)lse[b * T + t] == -HUGE_VAL : fabs((double)lse[b * T + t]) < 20);
    }
    free(qkv); free(y); free(lse); free(dy); free(dqkv);
}
static void extreme_scores_A1(void)                                     /* (A1) (A2): scores of +-3e4, gaps of 1e4 */
{
    enum { T = 200 };
    gpts_heads h = heads_of(1, 0, 1, 1);
    gpts_real qkv[3 * T], y[T], lse[T], dy[T], dqkv[3 * T];
    int t;
    for (t = 0; t < T; t++) { qkv[3 * t] = 1; qkv[3 * t + 1] = (gpts_real)(t % 3 == 0 ? -30000 : t % 3 == 1 ? 30000 : 20000); qkv[3 * t + 2] = (gpts_real)t; dy[t] = 1; }
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, qkv, NULL, NULL, 1, T, 1, 0);
    gptsi_cpu_attention_backward(&cpu, &h, dqkv, dy, y, lse, qkv, NULL, NULL, 1, T, 1, 0, NULL, NULL, NULL, NULL);
    t_ok(y[0] == 0 && y[1] == 1 && y[2] == 1);
    for (t = 1; t < T; t++) {                                           /* the mean of t = 1, 4, 7 ... so far */
        int n = (t + 2) / 3;
        t_close(y[t], 1 + 1.5 * (n - 1), 1e-4);
        t_close(lse[t], 30000 + log((double)n), 4e-3 * !DOUBLE + 1e-9);
    }
    for (t = 0; t < 3 * T; t++) t_ok(fabs((double)dqkv[t]) < 1e8);
    for (t = 0; t < T; t++) if (t && t % 3 != 1) t_ok(dqkv[3 * t + 2] == 0);
}

/* d <r, y> / d qkv by central differences of fourth order against (A2) */
static void gradient(size_t U, size_t n, size_t D, size_t B, size_t T, const int32_t *first, const int32_t *length, double theta)
{
    gpts_heads h = heads_of(U, n, D, 64);
    size_t ld = (2 * U + h.K) * D, ny = B * T * h.K * D, i, j;
    gpts_real *qkv = fill(B * T * ld, 1, 1), *turned = fill(B * T * ld, 1, 1), *y = fill(ny, 2, 1), *lse = fill(B * U * T, 3, 1), *r = fill(ny, 4, 1), *dqkv = fill(B * T * ld, 5, 1);
    double *Y = (double *)malloc(ny * sizeof *Y), *LSE = (double *)malloc((B * U * T + 1) * sizeof *LSE), scale = 1 / sqrt((double)D), worst = 0, step = DOUBLE ? 1e-3 : 0.0625;
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, turned, first, length, B, T, scale, theta);
    gptsi_cpu_attention_backward(&cpu, &h, dqkv, r, y, lse, turned, first, length, B, T, scale, theta, NULL, NULL, NULL, NULL);
    for (i = 0; i < B * T * ld; i += 1 + B * T * ld / 300) {
        double f[4], e;
        gpts_real keep = qkv[i];
        int k;
        for (k = 0; k < 4; k++) {
            qkv[i] = keep + (gpts_real)(step * (k < 2 ? 1 - 2 * k : 2 * (5 - 2 * k)));
            reference(&h, Y, LSE, qkv, first, length, B, T, scale, theta);
            for (f[k] = 0, j = 0; j < ny; j++) f[k] += (double)r[j] * Y[j];
        }
        qkv[i] = keep;
        e = fabs((8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * step) - (double)dqkv[i]);
        worst = t_most(worst, e);
    }
    if (!(worst <= (DOUBLE ? 1e-7 : 1e-4))) printf("  U %d n %d D %d B %d T %d: %g\n", (int)U, (int)n, (int)D, (int)B, (int)T, worst);
    t_ok(worst <= (DOUBLE ? 1e-7 : 1e-4));
    gptsi_static_discard(&h, NULL);
    free(qkv); free(turned); free(y); free(lse); free(r); free(dqkv); free(Y); free(LSE);
}
static void backward_A2(void)                                           /* (A2) (R2) (M2) */
{
    int32_t first[2] = { 0, 3 }, length[2] = { 12, 9 };
    gradient(1, 0, 1, 1, 1, NULL, NULL, 0);
    gradient(1, 0, 5, 1, 9, NULL, NULL, 0);
    gradient(2, 0, 4, 2, 13, first, length, 0);
    gradient(2, 0, 6, 2, 12, first, length, 10000);
    gradient(2, 1, 6, 2, 12, first, length, 10000);
    gradient(1, 2, 18, 1, 20, NULL, NULL, 10000);
    gradient(1, 0, 2, 1, 210, NULL, NULL, 0);
}
static void rotary_R1_R2(void)                                          /* (R1) (R2): a rotation and its inverse; scores depend on i - j */
{
    enum { T = 40, D = 10 };
    gpts_heads h = heads_of(1, 0, D, 1);
    gpts_real *x = fill(T * 3 * D, 1, 1), *was = fill(T * 3 * D, 1, 1);
    size_t t, d;
    for (t = 1; t < T; t++) memcpy(x + t * 3 * D, x, 2 * D * sizeof *x);
    memcpy(was, x, T * 3 * D * sizeof *x);
    gptsi_rotate(&cpu, &h, x, NULL, NULL, NULL, 1, T, 10000, 1);
    for (t = 0; t + 7 < T; t++) {
        double a = 0, b = 0;
        for (d = 0; d < D; d++) { a += (double)x[(t + 7) * 3 * D + d] * (double)x[t * 3 * D + D + d]; b += (double)x[7 * 3 * D + d] * (double)x[D + d]; }
        t_close(a, b, 100 * EPS);
    }
    for (d = 0; d < D; d++) t_ok(x[d] == was[d] && x[T * 3 * D - 1 - d] == was[T * 3 * D - 1 - d]);
    gptsi_rotate(&cpu, &h, x, NULL, NULL, NULL, 1, T, 10000, -1);
    for (t = 0; t < T * 3 * D; t++) t_close(x[t], was[t], 4 * EPS * (1 + fabs((double)was[t])));
    free(x); free(was);
}
static void decoding_equals_forward_A3(void)                            /* (A3) (M3) */
{
    enum { B = 3, T = 40, D = 6, U = 2, N = 2, K = U + N, LD = (2 * U + K) * D };
    gpts_heads h = heads_of(U, N, D, 64);
    int32_t length[B] = { 20, 0, 7 }, position[B];
    gpts_real *qkv = fill(B * T * LD, 1, 1), *raw = fill(B * T * LD, 1, 1), *y = fill(B * T * K * D, 2, 1), *lse = fill(B * U * T, 3, 1), row[B * LD], out[B * K * D];
    gpts_cache cache;
    size_t b, t, i;
    memset(&cache, 0, sizeof cache);
    cache.B = B; cache.capacity = T;
    gptsi_static_cache_size(&h, T, &cache.ring_rows, &cache.state_size);
    cache.keys = fill(B * U * T * D, 4, 1); cache.values = fill(B * U * T * D, 5, 1);
    cache.ring = fill(B * N * cache.ring_rows * D, 6, 1); cache.state = fill(B * N * cache.state_size, 7, 1);
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, qkv, NULL, NULL, B, T, 0.4, 10000);
    gptsi_cpu_cache_fill(&cpu, &h, &cache, qkv, length, T);
    for (t = 0; t < T; t++) {
        for (b = 0; b < B; b++) {
            position[b] = length[b] + (int32_t)t < T ? length[b] + (int32_t)t : -1;
            memcpy(row + b * LD, raw + (b * T + (position[b] < 0 ? 0 : (size_t)position[b])) * LD, LD * sizeof *row);
        }
        gptsi_cpu_attention_decode(&cpu, &h, &cache, out, row, position, 0.4, 10000);
        for (b = 0; b < B; b++)
            for (i = 0; i < K * D; i++)
                if (position[b] < 0) t_ok(out[b * K * D + i] == 0);
                else t_close(out[b * K * D + i], y[(b * T + (size_t)position[b]) * K * D + i], 50 * EPS);
    }
    gptsi_static_discard(&h, NULL);
    free(qkv); free(raw); free(y); free(lse); free(cache.keys); free(cache.values); free(cache.ring); free(cache.state);
}
static uint64_t hash_of(size_t B, size_t U, size_t T, size_t D)
{
    gpts_heads h = heads_of(U, 0, D, 1);
    size_t ld = 3 * U * D, i;
    uint64_t hash = 1;
    gpts_real *qkv = fill(B * T * ld, 1, 1), *y = fill(B * T * U * D, 2, 1), *lse = fill(B * U * T, 3, 1), *r = fill(B * T * U * D, 4, 1), *dqkv = fill(B * T * ld, 5, 1);
    gptsi_cpu_attention_forward(&cpu, &h, y, lse, qkv, NULL, NULL, B, T, 0.3, 10000);
    gptsi_cpu_attention_backward(&cpu, &h, dqkv, r, y, lse, qkv, NULL, NULL, B, T, 0.3, 10000, NULL, NULL, NULL, NULL);
    for (i = 0; i < B * T * ld; i++) { uint64_t bits = 0; memcpy(&bits, dqkv + i, sizeof *dqkv); hash = gptsi_mix(hash ^ bits); }
    for (i = 0; i < B * T * U * D; i++) { uint64_t bits = 0; memcpy(&bits, y + i, sizeof *y); hash = gptsi_mix(hash ^ bits); }
    for (i = 0; i < B * T * U; i++) { uint64_t bits = 0; memcpy(&bits, lse + i, sizeof *y); hash = gptsi_mix(hash ^ bits); }
    free(qkv); free(y); free(lse); free(r); free(dqkv);
    return hash;
}
static void bits_for_any_number_of_threads(void)                        /* (A1) (A2): also when heads are split */
{
    static const size_t shapes[][4] = { { 1, 1, 333, 18 }, { 2, 1, 150, 64 }, { 1, 3, 290, 16 }, { 2, 3, 70, 7 } };
    static const int threads[] = { 2, 3, 7 };
    size_t i, t;
    for (i = 0; i < 4; i++) {
        uint64_t one;
        cpu_of(1);
        one = hash_of(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
        for (t = 0; t < 3; t++) { cpu_of(threads[t]); t_ok(hash_of(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]) == one); }
    }
    cpu_of(2);
}
int main(int argc, char **argv)
{
    t_begin(argc, argv);
    cpu_of(2);
    T(forward_A1);
    T(every_head_size_A1);
    T(huge_head_A1);
    T(mixed_layer_M1_M2);
    T(masked_rows_are_zero_A1_A2);
    T(extreme_scores_A1);
    T(backward_A2);
    T(rotary_R1_R2);
    T(decoding_equals_forward_A3);
    T(bits_for_any_number_of_threads);
    gptsi_cpu_free(&cpu);
    return t_end();
}

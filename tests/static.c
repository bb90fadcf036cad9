/* static.c - static patterns against a dense matrix in double that is built from the definition.

   (P1) the pattern       (P2) factors        (P3) decaying tail     (P4) states     (P5) rows from both
   (P6) past the fit      (P7) adjoint        (P8) (P9) decoding       (M1) (M2) shares of work          */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

/* ---- a head made for a test, and its dense pattern --------------------------------------------- */

typedef struct head {
    gpts_heads heads;
    gpts_real *alpha, *rho, coef[16], decay[16];
    int32_t start;
    size_t T;                                             /* positions of P               */
    double *P;                                            /* [T,T] by (P1)                */
    unsigned char *scratch;
} head;

static gpts_rng rng = { 7, 0 };

static double *doubles(size_t n) { return (double *)calloc(n ? n : 1, sizeof(double)); }
static gpts_real *reals(size_t n) { return (gpts_real *)calloc(n ? n : 1, sizeof(gpts_real)); }
static gpts_real *normal_reals(size_t n)
{
    gpts_real *x = reals(n);
    size_t i;
    for (i = 0; i < n; i++) x[i] = (gpts_real)gpts_rng_normal(&rng);
    return x;
}

static double rho_of(const head *h, size_t d)             /* (P3), term by term           */
{
    size_t r, W = (size_t)h->start;
    double sum = 0;
    if (d < W) return (double)h->rho[d];
    for (r = 0; r < h->heads.R; r++) sum += (double)h->coef[r] * pow((double)h->decay[r], (double)(d - W));
    return log(sum);
}
static double alpha_of(const head *h, size_t j)           /* (P6)                         */
{
    size_t S = h->heads.S, first = S - (S / 4 ? S / 4 : 1), k;
    double sum = 0;
    if (j < S) return (double)h->alpha[j];
    for (k = first; k < S; k++) sum += (double)h->alpha[k];
    return sum / (double)(S - first);
}
static void head_dense(head *h)                           /* (P1) by log-sum-exp          */
{
    size_t i, j, T = h->T;
    double *a = doubles(T), *r = doubles(T);
    h->P = doubles(T * T);
    for (i = 0; i < T; i++) { a[i] = alpha_of(h, i); r[i] = rho_of(h, i); }
    for (i = 0; i < T; i++) {
        double most = -HUGE_VAL, sum = 0;
        for (j = 0; j <= i; j++) most = fmax(most, a[j] + r[i - j]);
        for (j = 0; j <= i; j++) sum += exp(a[j] + r[i - j] - most);
        for (j = 0; j <= i; j++) h->P[i * T + j] = exp(a[j] + r[i - j] - most) / sum;
    }
    free(a); free(r);
}
/* terms 0: exact form; W is where the tail starts */
static void head_make(head *h, size_t S, size_t T, size_t D, double deviation, size_t W, size_t terms)
{
    size_t i;
    memset(h, 0, sizeof *h);
    h->alpha = normal_reals(S); h->rho = normal_reals(S); h->T = T;
    for (i = 0; i < S; i++) { h->alpha[i] *= (gpts_real)deviation; h->rho[i] *= (gpts_real)deviation; }
    h->start = (int32_t)(terms ? W : S);
    for (i = 0; i < terms; i++) {
        h->coef[i] = (gpts_real)(0.1 + gpts_rng_uniform(&rng));
        h->decay[i] = (gpts_real)(i == 0 ? 1 : i == 1 ? 0.5 : 1 - 0.2 * gpts_rng_uniform(&rng));
    }
    h->heads.H = h->heads.K = h->heads.n = 1; h->heads.D = D; h->heads.S = S; h->heads.R = terms;
    h->heads.alpha = h->alpha; h->heads.rho = h->rho;
    if (terms) { h->heads.tail_start = &h->start; h->heads.tail_coef = h->coef; h->heads.tail_decay = h->decay; }
    for (i = W; terms && i < S; i++) h->rho[i] = (gpts_real)rho_of(h, i);
    h->scratch = (unsigned char *)malloc(gptsi_static_scratch(&h->heads));
    head_dense(h);
}
static void head_free(head *h)
{
    gptsi_static_discard(&h->heads, NULL);
    free(h->alpha); free(h->rho); free(h->P); free(h->scratch);
}

/* Largest difference from P v (or P^T v), relative to the largest value. */
static double worst(const head *h, const gpts_real *y, const gpts_real *v, int transposed)
{
    size_t T = h->T, D = h->heads.D, i, j, d;
    double most = 0, scale = 1e-30, *row = doubles(D);
    for (i = 0; i < T; i++) {
        memset(row, 0, D * sizeof *row);
        for (j = transposed ? i : 0; transposed ? j < T : j <= i; j++) {
            double p = transposed ? h->P[j * T + i] : h->P[i * T + j];
            for (d = 0; d < D; d++) row[d] += p * (double)v[j * D + d];
        }
        for (d = 0; d < D; d++) {
            double e = fabs(row[d] - (double)y[i * D + d]);
            most = e <= most ? most : e;                  /* NaN stays                    */
            if (fabs(row[d]) > scale) scale = fabs(row[d]);
        }
    }
    free(row);
    return most / scale;
}

static void check_shape(size_t S, size_t T, size_t D, double deviation, size_t W, size_t terms, double tolerance)
{
    head h;
    gpts_real *v = normal_reals(T * D), *y = normal_reals(T * D), *dv = normal_reals(T * D);
    double a = 0, b = 0, n = 0;
    size_t i;
    head_make(&h, S, T, D, deviation, W, terms);
    t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
    gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
    t_close(worst(&h, y, v, 0), 0, tolerance);
    gptsi_static_backward(&h.heads, 0, T, v, D, dv, D, h.scratch, gptsi_static_scratch(&h.heads));
    t_close(worst(&h, dv, v, 1), 0, tolerance);
    for (i = 0; i < T * D; i++) {                         /* <P v, v> = <v, P^T v>        */
        a += (double)y[i] * (double)v[i]; b += (double)v[i] * (double)dv[i];
        n += fabs((double)y[i] * (double)v[i]);
    }
    t_close(a / n, b / n, sizeof(gpts_real) == 4 ? 2e-6 : 1e-13);
    if (t_state.bad) printf("  at S %d, T %d, D %d, deviation %g, W %d, R %d\n", (int)S, (int)T, (int)D, deviation, (int)W, (int)terms);
    free(v); free(y); free(dv); head_free(&h);
}

static const size_t sizes[] = { 1, 7, 64, 96 };
static const double tight = sizeof(gpts_real) == 4 ? 1e-5 : 1e-12;

/* (P2) (P5) and the adjoint (P7) */
static void exact_form_equals_the_dense_pattern_at_every_length(void)
{
    size_t T;
    for (T = 1; T <= 130; T++) check_shape(T % 3 ? T : T + 37, T, sizes[T % 4], 0.8, 0, 0, tight);
    for (T = 0; T < 4; T++) check_shape(1000 + 24 * T, 1000, sizes[T], 0.8, 0, 0, tight);
}
static void linear_form_equals_the_dense_pattern_at_every_length(void)
{
    size_t T, i;
    for (T = 1; T <= 130; T++) {
        size_t S = T % 3 == 0 ? T : T % 3 == 1 ? T + 37 : T / 2 + 1;      /* past the fit too (P6) */
        if (S < 2) S = 2;
        check_shape(S, T, sizes[T % 4], 0.8, 1 + T * 7 % (S - 1), 1 + T % 16, tight);
    }
    for (i = 0; i < 4; i++) {
        check_shape(1000, 1000, sizes[i], 0.8, 1, 3, tight);
        check_shape(1024, 1000, sizes[i], 0.8, 64, 16, tight);
        check_shape(300, 1000, sizes[i], 0.8, 65, 8, tight);
        check_shape(700, 1000, sizes[i], 0.8, 256, 1, tight);
    }
}
static void wide_exponents_stay_right(void)
{
    size_t i;
    for (i = 0; i < 4; i++) {
        check_shape(1000, 1000, sizes[i], 40, 0, 0, 1e-4);
        check_shape(130, 117, sizes[i], 40, 0, 0, 1e-4);
        check_shape(1000, 1000, sizes[i], 40, 100, 5, 1e-4);
        check_shape(90, 400, sizes[i], 40, 33, 16, 1e-4);
        check_shape(300, 300, sizes[i], 400, 0, 0, 1e-4);                /* beyond the factors: (P1) cell by cell */
        check_shape(300, 500, sizes[i], 400, 20, 4, 1e-4);
    }
}

/* P 1 = 1 in both directions of use: by (P5) with all values 1, at every range of exponents. */
static void rows_sum_to_one(void)
{
    static const size_t start[] = { 0, 1, 50, 64, 65, 200 };
    size_t c, i, deviation;
    for (deviation = 0; deviation < 4; deviation++) for (c = 0; c < 6; c++) {
        enum { T = 1000 };
        static const double deviations[] = { 0.8, 5, 40, 300 };
        head h;
        gpts_real *one = reals(T), *y = reals(T);
        head_make(&h, 400 + (c ? 0 : 600), T, 1, deviations[deviation], start[c], c ? 6 : 0);
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        for (i = 0; i < T; i++) one[i] = 1;
        gptsi_static_forward(&h.heads, 0, T, one, 1, y, 1, h.scratch, gptsi_static_scratch(&h.heads));
        for (i = 0; i < T; i++) t_close(y[i], 1, sizeof(gpts_real) == 4 ? 3e-6 : 2e-12);      /* exponents near 1000 carry 1e-13 each */
        head_free(&h); free(one); free(y);
    }
}

static void later_values_change_no_bit_of_earlier_rows(void)
{
    size_t c, cut, i;
    for (c = 0; c < 2; c++) {
        enum { T = 300, D = 7 };
        head h;
        gpts_real *v = normal_reals(T * D), *y = reals(T * D), *other = reals(T * D);
        head_make(&h, T, T, D, 0.8, 40, c ? 5 : 0);
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
        for (cut = T; cut > 0; cut -= 23 < cut ? 23 : cut) {
            for (i = cut * D; i < T * D; i++) v[i] = (gpts_real)(1e6 * gpts_rng_normal(&rng));
            gptsi_static_forward(&h.heads, 0, T, v, D, other, D, h.scratch, gptsi_static_scratch(&h.heads));
            t_bits(y, other, cut * D * sizeof *y);
            gptsi_static_forward(&h.heads, 0, cut, v, D, other, D, h.scratch, gptsi_static_scratch(&h.heads));
            t_bits(y, other, cut * D * sizeof *y);
        }
        free(v); free(y); free(other); head_free(&h);
    }
}

/* alpha + c, rho + c, and the tilt (alpha + t j, rho + t d): all absorbed by z inside S. */
static void gauge_shifts_change_nothing(void)
{
    enum { T = 200, D = 3 };
    size_t form, c, i;
    for (form = 0; form < 2; form++) for (c = 0; c < 3; c++) {
        head h;
        gpts_real *v = normal_reals(T * D), *y = reals(T * D), *other = reals(T * D);
        double most = 0;
        head_make(&h, T, T, D, 0.8, 30, form ? 4 : 0);
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
        gptsi_static_discard(&h.heads, NULL);
        for (i = 0; i < T; i++) {
            if (c != 1) h.alpha[i] += (gpts_real)(c ? 0.03125 * (double)i : 5);
            if (c != 0) h.rho[i] += (gpts_real)(c == 2 ? 0.03125 * (double)i : -3);
        }
        for (i = 0; form && c && i < h.heads.R; i++) {                   /* the tail moves with rho */
            h.coef[i] *= (gpts_real)(c == 2 ? exp(0.03125 * 30) : exp(-3.0));
            if (c == 2) h.decay[i] *= (gpts_real)exp(0.03125);
        }
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        gptsi_static_forward(&h.heads, 0, T, v, D, other, D, h.scratch, gptsi_static_scratch(&h.heads));
        for (i = 0; i < T * D; i++) most = t_most(most, fabs((double)y[i] - (double)other[i]));
        t_close(most, 0, sizeof(gpts_real) == 4 ? 2e-5 : 1e-12);
        free(v); free(y); free(other); head_free(&h);
    }
}

/* (P8) (P9): from every prefilled length, one position at a time, across ring and tile ends. */
static void decoding_equals_prefill(void)
{
    static const size_t start[] = { 0, 1, 64, 65, 100 }, prefilled[] = { 0, 1, 63, 64, 65, 130, 200 };
    size_t c, f, i, d;
    for (c = 0; c < 5; c++) for (f = 0; f < 7; f++) {
        enum { T = 420, D = 5, B = 2 };
        head h;
        gpts_cache cache;
        gpts_real *v = normal_reals(T * D), *y = reals(T * D), row[D];
        double most = 0;
        head_make(&h, c ? 300 : T, T, D, f % 2 ? 0.8 : 10, start[c], c ? 6 : 0);
        memset(&cache, 0, sizeof cache);
        cache.B = B; cache.capacity = T;
        gptsi_static_cache_size(&h.heads, T, &cache.ring_rows, &cache.state_size);
        t_equal(cache.ring_rows, c ? (start[c] + 62) / 64 * 64 + 64 : T);
        t_equal(cache.state_size, c ? 6 * (D + 2) : 0);
        cache.ring = reals(B * cache.ring_rows * D); cache.state = reals(B * cache.state_size);
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
        gptsi_static_fill(&h.heads, 0, prefilled[f], v, D, &cache, 1);
        for (i = prefilled[f]; i < T; i++) {
            gptsi_static_step(&h.heads, 0, i, v + i * D, row, &cache, 1);
            for (d = 0; d < D; d++) most = t_most(most, fabs((double)row[d] - (double)y[i * D + d]));
        }
        t_close(most, 0, sizeof(gpts_real) == 4 ? 5e-6 : 1e-13);
        free(v); free(y); free(cache.ring); free(cache.state); head_free(&h);
    }
}

/* Several heads of both forms in one layer share the cache without meeting. */
static void heads_of_both_forms_share_a_cache(void)
{
    enum { N = 3, S = 200, T = 200, D = 4, R = 2, B = 2 };
    gpts_heads heads;
    int32_t starts[N] = { 20, S, 70 };
    gpts_real *alpha = normal_reals(N * S), *rho = normal_reals(N * S), *v = normal_reals(B * N * T * D), *y = reals(T * D), row[D];
    gpts_real coef[N * R] = { 1, (gpts_real)0.5, 0, 0, 2, 0 }, decay[N * R] = { (gpts_real)0.9, 1, 1, 1, (gpts_real)0.99, 1 };
    unsigned char *scratch;
    gpts_cache cache;
    size_t b, s, i, d;
    double most = 0;
    memset(&heads, 0, sizeof heads); memset(&cache, 0, sizeof cache);
    heads.H = heads.K = heads.n = N; heads.D = D; heads.S = S; heads.R = R; heads.alpha = alpha; heads.rho = rho;
    heads.tail_start = starts; heads.tail_coef = coef; heads.tail_decay = decay;
    scratch = (unsigned char *)malloc(gptsi_static_scratch(&heads));
    t_status(gptsi_static_prepare(&heads, T, NULL, NULL), GPTS_OK);
    cache.B = B; cache.capacity = T;
    gptsi_static_cache_size(&heads, T, &cache.ring_rows, &cache.state_size);
    t_equal(cache.ring_rows, (128 + 200 + 192 + 2) / 3);
    cache.ring = reals(B * N * cache.ring_rows * D); cache.state = reals(B * N * cache.state_size);
    for (b = 0; b < B; b++) for (s = 0; s < N; s++)
        gptsi_static_fill(&heads, s, 150, v + (b * N + s) * T * D, D, &cache, b);
    for (i = 150; i < T; i++) for (b = 0; b < B; b++) for (s = 0; s < N; s++) {
        const gpts_real *x = v + (b * N + s) * T * D;
        gptsi_static_forward(&heads, s, T, x, D, y, D, scratch, gptsi_static_scratch(&heads));
        gptsi_static_step(&heads, s, i, x + i * D, row, &cache, b);
        for (d = 0; d < D; d++) most = t_most(most, fabs((double)row[d] - (double)y[i * D + d]));
    }
    t_close(most, 0, sizeof(gpts_real) == 4 ? 5e-6 : 1e-13);
    gptsi_static_discard(&heads, NULL);
    free(alpha); free(rho); free(v); free(y); free(scratch); free(cache.ring); free(cache.state);
}

static void strides_leave_the_other_columns_alone(void)
{
    enum { T = 150, D = 7, WIDE = 19 };
    head h;
    gpts_real *v = normal_reals(T * WIDE), *y = reals(T * WIDE), *dense = reals(T * D), *out = reals(T * D);
    size_t i, d;
    head_make(&h, T, T, D, 0.8, 9, 3);
    t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
    for (i = 0; i < T; i++) for (d = 0; d < WIDE; d++) y[i * WIDE + d] = (gpts_real)9;
    for (i = 0; i < T; i++) memcpy(dense + i * D, v + i * WIDE + 4, D * sizeof *v);
    gptsi_static_forward(&h.heads, 0, T, v + 4, WIDE, y + 6, WIDE, h.scratch, gptsi_static_scratch(&h.heads));
    gptsi_static_forward(&h.heads, 0, T, dense, D, out, D, h.scratch, gptsi_static_scratch(&h.heads));
    for (i = 0; i < T; i++) {
        t_bits(y + i * WIDE + 6, out + i * D, D * sizeof *y);
        for (d = 0; d < WIDE; d++) if (d < 6 || d >= 6 + D) t_ok(y[i * WIDE + d] == (gpts_real)9);
    }
    free(v); free(y); free(dense); free(out); head_free(&h);
}

/* alpha = rho = 0 in linear form: the running mean, and its adjoint, the reversed sum of dy[i] / (i+1) */
static void the_uniform_pattern_is_the_running_mean(void)
{
    static const size_t lengths[] = { 1, 7, 129, 1000 };
    size_t k, i, d;
    for (k = 0; k < 4; k++) {
        enum { D = 3 };
        size_t T = lengths[k], S = 5;
        head h;
        gpts_real *v = normal_reals(T * D), *y = reals(T * D), *dv = reals(T * D);
        double sum[D] = { 0, 0, 0 };
        head_make(&h, S, T, D, 0, 1, 1);
        h.coef[0] = h.decay[0] = 1;
        t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
        gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
        gptsi_static_backward(&h.heads, 0, T, v, D, dv, D, h.scratch, gptsi_static_scratch(&h.heads));
        for (i = 0; i < T; i++) for (d = 0; d < D; d++) {
            sum[d] += (double)v[i * D + d];
            t_close(y[i * D + d], sum[d] / (double)(i + 1), 1e-6 * (1 + fabs(sum[d] / (double)(i + 1))));
        }
        memset(sum, 0, sizeof sum);
        for (i = T; i-- > 0;) for (d = 0; d < D; d++) {
            sum[d] += (double)v[i * D + d] / (double)(i + 1);
            t_close(dv[i * D + d], sum[d], 2e-6 * (1 + fabs(sum[d])));
        }
        free(v); free(y); free(dv); head_free(&h);
    }
}

/* Far past the fit, where any index of 16 bits and any sum that drifts would show: against (P4) row by
   row in double.                                                                                      */
static void a_hundred_thousand_rows_stay_right(void)
{
    enum { S = 50, T = 100000, W = 3 };
    gpts_heads heads;
    gpts_real *alpha = normal_reals(S), *rho = normal_reals(S), *v = normal_reals(T), *y = reals(T), coef[2], decay[2];
    int32_t start = W;
    unsigned char *scratch;
    double x[2] = { 0, 0 }, n[2] = { 0, 0 }, past = 0, worst = 0, *a = doubles(T);
    size_t i, j, r;
    memset(&heads, 0, sizeof heads);
    coef[0] = (gpts_real)0.5; coef[1] = (gpts_real)0.01; decay[0] = (gpts_real)0.99; decay[1] = 1;
    heads.H = heads.K = heads.n = 1; heads.D = 1; heads.S = S; heads.R = 2; heads.alpha = alpha; heads.rho = rho;
    heads.tail_start = &start; heads.tail_coef = coef; heads.tail_decay = decay;
    for (i = S - S / 4; i < S; i++) past += (double)alpha[i] / (double)(S / 4);
    for (i = 0; i < T; i++) a[i] = exp(i < S ? (double)alpha[i] : past);
    scratch = (unsigned char *)malloc(gptsi_static_scratch(&heads));
    t_status(gptsi_static_prepare(&heads, T, NULL, NULL), GPTS_OK);
    gptsi_static_forward(&heads, 0, T, v, 1, y, 1, scratch, gptsi_static_scratch(&heads));
    for (i = 0; i < T; i++) {
        double top = 0, bottom = 0;
        for (r = 0; r < 2; r++) {
            x[r] = x[r] * (double)decay[r] + (i >= W ? a[i - W] * (double)v[i - W] : 0);
            n[r] = n[r] * (double)decay[r] + (i >= W ? a[i - W] : 0);
            top += (double)coef[r] * x[r]; bottom += (double)coef[r] * n[r];
        }
        for (j = i < W ? 0 : i - W + 1; j <= i; j++) {
            top += exp((double)rho[i - j]) * a[j] * (double)v[j];
            bottom += exp((double)rho[i - j]) * a[j];
        }
        worst = t_most(worst, fabs(top / bottom - (double)y[i]));
    }
    t_close(worst, 0, sizeof(gpts_real) == 4 ? 1e-5 : 1e-12);
    gptsi_static_discard(&heads, NULL);
    free(alpha); free(rho); free(v); free(y); free(a); free(scratch);
}

static void an_exact_head_past_its_length_is_an_error(void)
{
    head h;
    char error[GPTS_ERROR_BYTES] = "";
    head_make(&h, 40, 40, 2, 1, 0, 0);
    t_status(gptsi_static_prepare(&h.heads, 41, NULL, error), GPTS_TOO_LONG);
    t_says(error, "41 positions"); t_says(error, "up to 40");
    t_status(gptsi_static_prepare(&h.heads, 40, NULL, error), GPTS_OK);
    head_free(&h);
}

/* A tail whose coefficients are all 0 is a window: rows see the last W keys. */
static void a_tail_of_zeros_is_a_window(void)
{
    enum { T = 200, W = 5 };
    head h;
    gpts_real *v = reals(T), *y = reals(T);
    size_t i;
    head_make(&h, T, T, 1, 0.8, W, 1);
    h.coef[0] = 0;
    t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
    for (i = 0; i < T; i++) v[i] = i < 90;
    gptsi_static_forward(&h.heads, 0, T, v, 1, y, 1, h.scratch, gptsi_static_scratch(&h.heads));
    for (i = 0; i < T; i++) t_close(y[i] > 0, i < 89 + W, 0);
    t_close(y[80], 1, 1e-6);
    free(v); free(y); head_free(&h);
}

/* The plan survives growing: the rows it had keep their values. */
static void growing_past_the_fit_keeps_earlier_rows(void)
{
    enum { S = 100, T = 90, D = 4 };
    head h;
    gpts_real *v = normal_reals(T * D), *y = reals(T * D), *other = reals(T * D);
    double most = 0;
    size_t i;
    head_make(&h, S, T, D, 0.8, 20, 4);
    t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
    gptsi_static_forward(&h.heads, 0, T, v, D, y, D, h.scratch, gptsi_static_scratch(&h.heads));
    t_status(gptsi_static_prepare(&h.heads, 1000, NULL, NULL), GPTS_OK);
    t_ok(h.heads.plan->T >= 1000);
    gptsi_static_forward(&h.heads, 0, T, v, D, other, D, h.scratch, gptsi_static_scratch(&h.heads));
    for (i = 0; i < T * D; i++) most = t_most(most, fabs((double)y[i] - (double)other[i]));
    t_close(most, 0, sizeof(gpts_real) == 4 ? 1e-6 : 1e-14);
    free(v); free(y); free(other); head_free(&h);
}

/* Every allocation that fails ends in NO_MEMORY, with nothing kept. */
static void running_out_of_memory_is_an_error(void)
{
    int n;
    for (n = 0; n < 5; n++) {
        head h;
        t_budget b;
        gpts_hooks hooks;
        char error[GPTS_ERROR_BYTES] = "";
        memset(&hooks, 0, sizeof hooks);
        b.left = n; b.live = 0;
        hooks.context = &b; hooks.allocate = t_budget_allocate; hooks.release = t_budget_release;
        head_make(&h, 50, 50, 2, 1, 5, 2);
        t_status(gptsi_static_prepare(&h.heads, 50, &hooks, error), n < 4 ? GPTS_NO_MEMORY : GPTS_OK);
        if (n < 4) { t_says(error, "out of memory"); t_ok(h.heads.plan == NULL); }
        gptsi_static_discard(&h.heads, &hooks);
        t_equal(b.live, 0);
        head_free(&h);
    }
}

/* (M1) (M2): six live heads after two static ones, which cost little: every item is done once, and no worker has more than its part */
typedef struct tally { gptsi_mixed m; int *taken; double load[7]; } tally;
static void tally_item(void *arg, size_t begin, size_t end, size_t worker)
{
    tally *t = (tally *)arg;                              /* m is its first member */
    for (; begin < end; begin++) { t->taken[begin]++; t->load[worker] += gptsi_mixed_cost(&t->m, begin); }
}
static void shares_are_even(void)
{
    enum { T = 4096, K = 8 };
    static int32_t live[K] = { -1, -1, 0, 1, 2, 3, 4, 5 }, fixed[K] = { 0, 0, -1, -1, -1, -1, -1, -1 };
    static const size_t workers[] = { 1, 2, 3, 7 };
    size_t b, i, w, n;
    int pass;
    head h;
    head_make(&h, T, 1, 4, 1, 64, 2);
    t_status(gptsi_static_prepare(&h.heads, T, NULL, NULL), GPTS_OK);
    h.heads.H = h.heads.K = K; h.heads.U = 6; h.heads.n = 2; h.heads.live_slot = live; h.heads.static_slot = fixed;
    for (b = 1; b <= 3; b += 2) for (i = 0; i < 4; i++) for (pass = 0; pass < 3; pass++) {
        tally t;
        gptsi_cpu cpu;
        double sum = 0;
        memset(&t, 0, sizeof t); memset(&cpu, 0, sizeof cpu);
        cpu.workers = workers[i];
        t.m.cpu = &cpu; t.m.heads = &h.heads; t.m.B = b; t.m.T = T; t.m.pass = pass; t.m.body = tally_item;
        t.m.blocks = T / 96 + 1;
        t.taken = (int *)calloc(b * K * t.m.blocks, sizeof *t.taken);
        t.m.shares = workers[i];
        for (n = 0; n < b * K * t.m.blocks; n++) t.m.cost += gptsi_mixed_cost(&t.m, n);
        for (w = 0; w < workers[i]; w++) gptsi_mixed_share(&t, w, w + 1, w);
        for (n = 0; n < b * K * t.m.blocks; n++) t_equal(t.taken[n], gptsi_mixed_cost(&t.m, n) > 0);
        for (w = 0; w < workers[i]; w++) sum += t.load[w];
        for (w = 0; w < workers[i]; w++) t_close(t.load[w] * (double)workers[i] / sum, 1, 0.1);          /* a head's last block alone is 5 % of it */
        free(t.taken);
    }
    gptsi_static_discard(&h.heads, NULL);
    head_free(&h);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(exact_form_equals_the_dense_pattern_at_every_length);
    T(linear_form_equals_the_dense_pattern_at_every_length);
    T(wide_exponents_stay_right);
    T(rows_sum_to_one);
    T(later_values_change_no_bit_of_earlier_rows);
    T(gauge_shifts_change_nothing);
    T(decoding_equals_prefill);
    T(heads_of_both_forms_share_a_cache);
    T(strides_leave_the_other_columns_alone);
    T(the_uniform_pattern_is_the_running_mean);
    T(a_hundred_thousand_rows_stay_right);
    T(an_exact_head_past_its_length_is_an_error);
    T(a_tail_of_zeros_is_a_window);
    T(growing_past_the_fit_keeps_earlier_rows);
    T(running_out_of_memory_is_an_error);
    T(shares_are_even);
    return t_end();
}

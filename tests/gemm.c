/* gemm.c - the matrix product and the inner loops under it, against plain sums in double */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

#define EPS (sizeof(gpts_real) == 4 ? 1.2e-7 : 2.3e-16)
static gptsi_kernels table[3];
static const gptsi_kernels *kernels[3] = { &table[0], &table[1], &table[2] };
static int n_kernels;

static void find_kernels(void)
{
    gptsi_kernels_base(&table[n_kernels++]);
#if defined(GPTSI_VECTORS) && defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) gptsi_kernels_avx2(&table[n_kernels++]);
    if (gptsi_kernels_best(&table[n_kernels])->lanes > table[n_kernels - 1].lanes) n_kernels++;
#endif
}
static gpts_real *fill(size_t n, uint64_t seed)
{
    gpts_rng rng = { 0, 0 };
    gpts_real *x = (gpts_real *)malloc((n + 1) * sizeof *x);
    size_t i;
    rng.seed = seed;
    for (i = 0; i < n; i++) x[i] = (gpts_real)(2 * gpts_rng_uniform(&rng) - 1);
    return x;
}
static void cpu_of(gptsi_cpu *cpu, int threads)
{
    gpts_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.threads = threads;
    t_status(gptsi_cpu_init(cpu, &hooks, NULL), GPTS_OK);
}

/* one product in one orientation, with leading dimensions larger than needed: every cell
   within the bound of a K-term sum in any order, (K + 2) u sum |a b| (Higham, Accuracy and
   Stability of Numerical Algorithms, 3.1); nothing written between the rows */
static void one(gptsi_cpu *cpu, int ta, int tb, size_t M, size_t N, size_t K, int accumulate, int with_bias)
{
    size_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 2, ldc = N + 1, i, k, na = (ta ? K : M) * lda, nb = (tb ? N : K) * ldb;
    gpts_real *A = fill(na, 1), *B = fill(nb, 2), *C = fill(M * ldc, 3), *D = fill(M * ldc, 3), *S = fill(M * ldc, 3), *bias = fill(N, 4);
    gptsi_gemm(cpu, ta, tb, M, N, K, A, lda, B, ldb, C, ldc, accumulate, with_bias ? bias : NULL);
    gptsi_gemm_plain(ta, tb, M, N, K, A, lda, B, ldb, D, ldc, accumulate, with_bias ? bias : NULL);
    for (k = 0; k < na; k++) A[k] = (gpts_real)fabs((double)A[k]);
    for (k = 0; k < nb; k++) B[k] = (gpts_real)fabs((double)B[k]);
    gptsi_gemm_plain(ta, tb, M, N, K, A, lda, B, ldb, S, ldc, 0, NULL);
    for (i = 0; i < M * ldc; i++) {
        double bound = i % ldc == N ? 0 : 0.5 * EPS * ((double)K + 3) * ((double)S[i] + 2);
        if (!(fabs((double)(C[i] - D[i])) <= bound)) {
            printf("  %s: ta %d tb %d M %d N %d K %d accumulate %d bias %d: cell %d,%d is %g, expected %g\n", cpu->kernels->name,
                   ta, tb, (int)M, (int)N, (int)K, accumulate, with_bias, (int)(i / ldc), (int)(i % ldc), (double)C[i], (double)D[i]);
            t_ok(!"equal");
            break;
        }
    }
    free(S);
    free(A); free(B); free(C); free(D); free(bias);
}
static void every_shape_and_orientation(void)
{
    static const size_t large[][3] = { { 100, 150, 400 }, { 1, 500, 769 }, { 3, 177, 385 }, { 5, 97, 800 }, { 1100, 9, 389 }, { 129, 257, 1 }, { 40, 50, 0 } };
    int v, o;
    size_t i;
    for (v = 0; v < n_kernels; v++) {
        gptsi_cpu cpu;
        cpu_of(&cpu, 2);
        cpu.kernels = kernels[v];
        for (i = 0; i < 150; i++) {
            size_t M = 1 + gptsi_hash(7, i, 0) % 70, N = 1 + gptsi_hash(7, i, 1) % 70, K = 1 + gptsi_hash(7, i, 2) % 70;
            for (o = 0; o < 4; o++) one(&cpu, o & 1, o >> 1, M, N, K, (int)(i % 3 == 0), (int)(i % 3 == 1));
        }
        for (i = 0; i < sizeof large / sizeof large[0]; i++)
            for (o = 0; o < 12; o++) one(&cpu, o & 1, o >> 1 & 1, large[i][0], large[i][1], large[i][2], o >> 2 == 0, o >> 2 == 1);
        gptsi_cpu_free(&cpu);
    }
}
static void bits_do_not_depend_on_threads(void)
{
    static const int threads[] = { 1, 2, 3, 7 };
    int v, o, t;
    size_t i;
    for (v = 0; v < n_kernels; v++)
        for (i = 0; i < 30; i++) {
            size_t M = 1 + gptsi_hash(9, i, 0) % (i % 4 ? 300 : 6), N = 1 + gptsi_hash(9, i, 1) % 300, K = 1 + gptsi_hash(9, i, 2) % 500;
            gpts_real *A = fill(M * K, 1), *B = fill(K * N, 2);
            for (o = 0; o < 4; o++) {
                gpts_real *first = NULL;
                for (t = 0; t < 4; t++) {
                    gpts_real *C = fill(M * N, 3);
                    gptsi_cpu cpu;
                    cpu_of(&cpu, threads[t]);
                    cpu.kernels = kernels[v];
                    gptsi_gemm(&cpu, o & 1, o >> 1, M, N, K, A, o & 1 ? M : K, B, o >> 1 ? K : N, C, N, (int)(i & 1), NULL);
                    gptsi_cpu_free(&cpu);
                    if (first) { t_bits(first, C, M * N * sizeof *C); free(C); } else first = C;
                }
                free(first);
            }
            free(A); free(B);
        }
}
/* products in bfloat16 are products of the rounded operands: on pairs (where the processor can), on
   rounded floats, and with few rows from weights that are kept in bfloat16                       */
static void products_in_bfloat16(void)
{
    static const size_t shapes[][3] = { { 1, 150, 400 }, { 3, 70, 769 }, { 5, 97, 801 }, { 64, 130, 33 }, { 129, 257, 1 }, { 40, 50, 0 }, { 100, 49, 1540 } };
    int how, o, threads;
    size_t s, i;
    if (!GPTSI_FLOAT) return;
    t_ok(gptsi_round_half(0x3f808000u) == 0x3f800000u && gptsi_round_half(0x3f818000u) == 0x3f820000u);      /* ties to even */
    t_ok(gptsi_round_half(0x3f808001u) == 0x3f810000u && gptsi_round_half(0x7f7fffffu) == 0x7f800000u);
    t_ok(gptsi_round_half(0x7f800001u) == 0x7fc00000u && gptsi_round_half(0xff800000u) == 0xff800000u);
    for (how = 0; how < 3; how++) for (s = 0; s < sizeof shapes / sizeof shapes[0]; s++) for (o = 0; o < 4; o++) {
        size_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
        int ta = o & 1, tb = o >> 1;
        gpts_real *A = fill(M * K, 1), *B = fill(K * N, 2), *D = fill(M * N, 3), *bias = fill(N, 4), *first = NULL;
        gpts_real *a = fill(M * K, 1), *b = fill(K * N, 2);
        gptsi_halve_base(a, M * K, 1); gptsi_halve_base(b, K * N, 1);
        gptsi_gemm_plain(ta, tb, M, N, K, a, ta ? M : K, b, tb ? K : N, D, N, 0, bias);
        for (threads = 1; threads <= 3; threads += 2) {
            gpts_real *C = fill(M * N, 3);
            gptsi_cpu cpu;
            cpu_of(&cpu, threads);
            t_status(gptsi_cpu_precision(&cpu, GPTS_PRECISION_BF16), GPTS_OK);
            if (how == 1) { gptsi_kernels_best(&cpu.narrow); cpu.narrow.halve = gptsi_halve_base; }
            if (how == 2) t_status(gptsi_cpu_keep(&cpu, B, K * N), GPTS_OK);
            gptsi_gemm(&cpu, ta, tb, M, N, K, A, ta ? M : K, B, tb ? K : N, C, N, 0, bias);
            for (i = 0; i < M * N; i++) if (!(fabs((double)(C[i] - D[i])) <= 0.5 * EPS * ((double)K + 3) * ((double)K / 2 + 2))) { t_close(C[i], (double)D[i], 0); break; }
            gptsi_cpu_free(&cpu);
            if (first) { t_bits(first, C, M * N * sizeof *C); free(C); } else first = C;
        }
        free(first); free(A); free(B); free(D); free(bias); free(a); free(b);
    }
}
static void exponentials_are_good_to_two_units(void)
{
    int v;
    for (v = 0; v < n_kernels; v++) {
        double low = (double)GPTSI_EXP_LOW, high = (double)GPTSI_EXP_HIGH, worst = 0, x;
        gpts_real special[6], y[6];
        for (x = low; x < high; x += (high - low) / 50021) {
            gpts_real in = (gpts_real)x, out, sum;
            double e = exp((double)in), error;
            if (in >= GPTSI_EXP_HIGH) break;
            sum = kernels[v]->exp_row(&out, &in, 1, 0);
            t_ok(sum == out);
            error = fabs((double)out - e) / e;
            worst = t_most(worst, error);
        }
        if (!(worst <= 2 * EPS)) printf("  %s: %g\n", kernels[v]->name, worst);
        t_ok(worst <= 2 * EPS);
        special[0] = (gpts_real)-HUGE_VAL; special[1] = (gpts_real)HUGE_VAL; special[2] = (gpts_real)NAN;
        special[3] = 0; special[4] = -30000; special[5] = 30000;
        kernels[v]->exp_row(y, special, 6, 0);
        t_ok(y[0] == 0 && y[1] > 1e30f && y[1] == y[5] && y[2] != y[2] && y[3] == 1 && y[4] == 0);
    }
}
static void sums_maxima_and_dots_of_every_length(void)
{
    int v;
    size_t n, i;
    gpts_real *x = fill(600, 5), *y = fill(600, 6), *e = fill(600, 7);
    for (v = 0; v < n_kernels; v++)
        for (n = 0; n < 600; n += 1 + n / 40) {
            double sum = 0, dot = 0, top = -HUGE_VAL, exps = 0;
            for (i = 0; i < n; i++) {
                sum += (double)x[i]; dot += (double)x[i] * (double)y[i]; exps += exp((double)x[i] - 0.25);
                if ((double)x[i] > top) top = (double)x[i];
            }
            t_close(kernels[v]->sum(x, n), sum, EPS * (1 + 2 * (double)n));
            t_close(kernels[v]->dot(x, y, n), dot, EPS * (1 + 2 * (double)n));
            t_ok((double)kernels[v]->maximum(x, n) == top);
            e[n] = 42;
            t_close(kernels[v]->exp_row(e, x, n, (gpts_real)0.25), exps, 8 * EPS * (1 + exps));
            for (i = 0; i < n; i++) t_close(e[i], exp((double)x[i] - 0.25), 4 * EPS);
            t_ok(e[n] == 42);
        }
    free(x); free(y); free(e);
}
int main(int argc, char **argv)
{
    t_begin(argc, argv);
    find_kernels();
    T(every_shape_and_orientation);
    T(bits_do_not_depend_on_threads);
    T(products_in_bfloat16);
    T(exponentials_are_good_to_two_units);
    T(sums_maxima_and_dots_of_every_length);
    return t_end();
}

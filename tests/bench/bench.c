/* bench.c - one table: ours, the machine's ceilings in the same run, and peers where installed.

     build/bench/bench [--list] [--seconds N] [--tolerate PERCENT] [row ...]      rows by name or the start of one

   Contenders of a row take turns, A B C A B C, each turn one repetition (or 20 ms of them);
   medians count.  PyTorch runs in tests/bench/peer.py (PYTHON=... names an interpreter that has
   it) and measures itself; OpenBLAS is opened with dlopen.  Work that other processes do on the
   machine while a row runs is counted (/proc/stat without us and the peer): above a twentieth of
   the cores the row is tried again, and in the end not quoted (--tolerate: quoted with a mark).  Prints a table, asserts nothing.                                */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 9, MOST = 256 };
static double budget = 12;                    /* seconds a row may take, roughly */
static int refused, quoted;
static double tolerance = 5;                  /* percent of the machine that others may have */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void rest(int ms)                      /* spinning threads of the last turn go to sleep */
{
    struct timespec t;
    t.tv_sec = 0; t.tv_nsec = ms * 1000000L;
    nanosleep(&t, NULL);
}
static int by_value(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double median(double *x, int n) { qsort(x, (size_t)n, sizeof *x, by_value); return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]); }
static void need(gpts_status status, const char *error) { if (status) { fprintf(stderr, "bench: %s\n", error); exit(1); } }
static void *some(size_t count, size_t size)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, count * size)) { fprintf(stderr, "bench: out of memory\n"); exit(1); }
    memset(p, 0, count * size);
    return p;
}
static gpts_real *noise(size_t n)
{
    gpts_real *x = (gpts_real *)some(n, sizeof *x);
    size_t i;
    for (i = 0; i < n; i++) x[i] = (gpts_real)(gptsi_unit(gptsi_hash(n, i, 3)) - 0.5);
    return x;
}

/* ---- other processes' work ---------------------------------------------------------------- */

static pid_t peer_pid;
static double busy(void)                      /* seconds of all processes but us and the peer */
{
    double all = 0, x, ours = 0;
    char text[1024], *p;
    FILE *f = fopen("/proc/stat", "r");
    struct rusage u;
    int i, tick = (int)sysconf(_SC_CLK_TCK);
    if (!f) return 0;
    if (fgets(text, sizeof text, f)) for (p = text + 3, i = 0; i < 8; i++) { x = strtod(p, &p); if (i != 3 && i != 4) all += x / tick; }
    fclose(f);
    getrusage(RUSAGE_SELF, &u);
    ours += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    getrusage(RUSAGE_CHILDREN, &u);
    ours += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    if (peer_pid) {
        snprintf(text, sizeof text, "/proc/%ld/stat", (long)peer_pid);
        if ((f = fopen(text, "r")) != NULL) {
            if (fgets(text, sizeof text, f) && (p = strrchr(text, ')')) != NULL) {
                for (p++, i = 0; i < 11; i++) { while (*p == ' ') p++; while (*p && *p != ' ') p++; }
                ours += strtod(p, &p) / tick;
                ours += strtod(p, &p) / tick;
            }
            fclose(f);
        }
    }
    return all - ours;
}
/* Only turns count, not the rests between them. */
static double turn_began, turn_busy, row_seconds, row_foreign;
static int row_tries;
static void turn_begin(void) { turn_busy = busy(); turn_began = now(); }
static void turn_end(void) { row_foreign += busy() - turn_busy; row_seconds += now() - turn_began; }
static double foreign(void)                   /* part of the machine that others had; ticks round */
{
    return (row_foreign - 0.02) / row_seconds / (double)sysconf(_SC_NPROCESSORS_ONLN);
}
static void row_begin(void) { row_foreign = row_seconds = 0; row_tries++; }
/* 1: the row may be quoted; 0: says why not; -1: once more, after a while */
static int row_end(const char *name)
{
    double share = 100 * foreign();
    if (share > tolerance && row_tries < 3) { rest(900); return -1; }
    row_tries = 0;
    if (share > tolerance) { printf("%-34s not quoted: other processes took %.0f %% of the machine\n", name, share); refused++; return 0; }
    if (share > 5) printf("~%.0f %% ", share);
    quoted++;
    return 1;
}

/* ---- the peers ------------------------------------------------------------------------------ */

static FILE *to_peer, *from_peer;
static char peer_name[128] = "";
static void peer_start(void)
{
    const char *python = getenv("PYTHON");
    int in[2], out[2];
    signal(SIGPIPE, SIG_IGN);
    if (pipe(in) || pipe(out)) return;
    peer_pid = fork();
    if (peer_pid == 0) {
        dup2(in[0], 0); dup2(out[1], 1);
        close(in[1]); close(out[0]);
        if (!python) python = "python3";
        execlp(python, python, "tests/bench/peer.py", (char *)NULL);
        _exit(127);
    }
    close(in[0]); close(out[1]);
    to_peer = fdopen(in[1], "w"); from_peer = fdopen(out[0], "r");
    if (!to_peer || !from_peer || !fgets(peer_name, sizeof peer_name, from_peer)) {
        peer_name[0] = 0;
        to_peer = NULL;
        waitpid(peer_pid, NULL, 0);
        peer_pid = 0;
    }
    peer_name[strcspn(peer_name, "\n")] = 0;
}
/* One repetition of `what`, prepared and warmed when it first comes; seconds, or below 0. */
static double peer(const char *what)
{
    char line[128];
    if (!to_peer) return -1;
    fprintf(to_peer, "%s\n", what);
    fflush(to_peer);
    if (!fgets(line, sizeof line, from_peer)) { to_peer = NULL; return -1; }
    return strtod(line, NULL);
}
typedef void (*sgemm_call)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
static sgemm_call sgemm;
static void (*blas_threads)(int);
static char blas_name[128] = "";
static void blas_open(void)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW), *p;
    char *(*text)(void);
    if (!lib || sizeof(gpts_real) != 4) return;
    p = dlsym(lib, "cblas_sgemm"); memcpy(&sgemm, &p, sizeof p);
    p = dlsym(lib, "openblas_set_num_threads"); memcpy(&blas_threads, &p, sizeof p);
    p = dlsym(lib, "openblas_get_config"); memcpy(&text, &p, sizeof p);
    if (p) snprintf(blas_name, sizeof blas_name, "%s", text());
    if (!blas_threads) sgemm = NULL;
}

/* ---- turns ------------------------------------------------------------------------------------ */

typedef struct contender { const char *name; double (*once)(void *); void *arg; double times[MOST], t; } contender;

/* Takes turns until the rounds or the row's seconds are over (three rounds at least). */
static void turns(contender *c, int n, int rounds)
{
    double began = now();
    int i, r, done;
    for (i = 0; i < n; i++) { rest(20); c[i].times[0] = c[i].once(c[i].arg); }          /* warm */
    for (r = 0; r < rounds && (r < 3 || now() - began < budget); r++)
        for (i = 0; i < n; i++) { rest(20); turn_begin(); c[i].times[r] = c[i].once(c[i].arg); turn_end(); }
    for (done = r, i = 0; i < n; i++) c[i].t = median(c[i].times, done);
}
static int measured(const char *name, contender *c, int n, int rounds)
{
    int good;
    do { row_begin(); turns(c, n, rounds); } while ((good = row_end(name)) < 0);
    return good;
}
static double peer_turn(void *what) { return peer((const char *)what); }

/* ---- ceilings ----------------------------------------------------------------------------------- */

/* 24 accumulators; `loads`: every multiply-add reads one operand from a block in L1 */
#define CEILING(isa)                                                                          \
    gptsi_v_##isa r[3][8], y;                                                                 \
    long n;                                                                                   \
    int i, j;                                                                                 \
    GPTSI_CONTRACT                                                                            \
    GPTSI_UNROLL for (i = 0; i < 3; i++) GPTSI_UNROLL for (j = 0; j < 8; j++) r[i][j] = *(const gptsi_u_##isa *)x; \
    y = r[0][0];                                                                              \
    for (n = 0; n < count; n++) {                                                             \
        const gpts_real *p = x + (n & 7) * 384;                                               \
        if (loads) { GPTSI_UNROLL for (i = 0; i < 3; i++) GPTSI_UNROLL for (j = 0; j < 8; j++) r[i][j] += y * *(const gptsi_u_##isa *)(p + 16 * (8 * i + j)); } \
        else { GPTSI_UNROLL for (i = 0; i < 3; i++) GPTSI_UNROLL for (j = 0; j < 8; j++) r[i][j] += y * y; } \
        __asm__ volatile("" : "+x"(y));                                                       \
    }                                                                                         \
    y = r[0][0];                                                                              \
    GPTSI_UNROLL for (i = 0; i < 3; i++) GPTSI_UNROLL for (j = 0; j < 8; j++) y += r[i][j];   \
    return y[0];
#if defined(GPTSI_VECTORS) && defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), noinline)) GPTSI_OPTIMIZE
static gpts_real ceiling_avx512(long count, int loads, const gpts_real *x) { CEILING(avx512) }
__attribute__((target("avx2,fma"), noinline)) GPTSI_OPTIMIZE
static gpts_real ceiling_avx2(long count, int loads, const gpts_real *x) { CEILING(avx2) }
#endif
static volatile double sink;
static double fma_rate(int threads, int loads)          /* GFLOP/s */
{
    gptsi_kernels table;
    const gptsi_kernels *k = gptsi_kernels_best(&table);
    long count = 400000;
    double best = 0;
    int r;
    for (r = 0; r < 5; r++) {
        double began = now(), sum = 0, rate;
        int t;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+:sum)
        for (t = 0; t < threads; t++) {
            static const gpts_real zero[8 * 384 + 400] = { 0 };
            gpts_real x[8 * 384 + 400] __attribute__((aligned(64)));
            memcpy(x, zero, sizeof x);
#if defined(GPTSI_VECTORS) && defined(__x86_64__)
            if (k->lanes * sizeof(gpts_real) == 64) sum += (double)ceiling_avx512(count, loads, x);
            else if (!strcmp(k->name, "avx2")) sum += (double)ceiling_avx2(count, loads, x);
#endif
        }
        sink = sum;
        rate = (double)count * 48 * (double)k->lanes * threads / (now() - began) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}
static double read_some(int threads, int times)         /* GB/s of 512 MB in four streams a thread */
{
    enum { WORDS = 1 << 26 };
    static uint64_t *x;
    double best = 0;
    int r;
    if (!x) x = (uint64_t *)some(WORDS, sizeof *x);
    for (r = 0; r < times; r++) {
        double began = now(), rate;
        uint64_t sum = 0;
        int t;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+:sum)
        for (t = 0; t < threads; t++) {
            size_t n = WORDS / (size_t)threads / 4, i, j;
            const uint64_t *p = x + 4 * n * (size_t)t;
            uint64_t s[4][8] = { { 0 } };
            for (i = 0; i + 8 <= n; i += 8)
                for (j = 0; j < 8; j++) { s[0][j] += p[i + j]; s[1][j] += p[n + i + j]; s[2][j] += p[2 * n + i + j]; s[3][j] += p[3 * n + i + j]; }
            for (j = 0; j < 8; j++) sum += s[0][j] + s[1][j] + s[2][j] + s[3][j];
        }
        sink = (double)sum;
        rate = 8e-9 * WORDS / (now() - began);
        if (rate > best) best = rate;
    }
    return best;
}
static double read_once(void *arg)                      /* seconds to read *arg bytes on two threads */
{
    const double *bytes = (const double *)arg;
    return *bytes * 1e-9 / read_some(2, 1);
}
static double ceiling_fma[3], ceiling_load[3], ceiling_read[3];
static void row_ceilings(void)
{
    int t, good;
    do {
        row_begin();
        turn_begin();
        for (t = 1; t <= 2; t++) { ceiling_fma[t] = fma_rate(t, 0); ceiling_load[t] = fma_rate(t, 1); ceiling_read[t] = read_some(t, 5); }
        turn_end();
    } while ((good = row_end("ceilings")) < 0);
    if (!good) memset(ceiling_load, 0, sizeof ceiling_load), memset(ceiling_read, 0, sizeof ceiling_read);
    for (t = 1; t <= 2 && good; t++)
        printf("ceilings, %d thread%s: multiply-add %.0f GFLOP/s from registers, %.0f with a load each; DRAM read %.1f GB/s\n",
               t, t > 1 ? "s" : " ", ceiling_fma[t], ceiling_load[t], ceiling_read[t]);
}

/* ---- products -------------------------------------------------------------------------------------- */

typedef struct product { int o, threads; size_t M, K, N; const gpts_real *A, *B; gpts_real *C; gptsi_cpu cpu; char what[96]; } product;
static const char *const orientation[] = { "NT", "NN", "TN" };      /* y = x W^T (or logits), y = x W, dW += x^T dy */
static double product_time;
static gpts_status product_act(void *arg)
{
    product *p = (product *)arg;
    double began = now();
    int n = 0;
    do {
        if (p->o == 0) gptsi_gemm(&p->cpu, 0, 1, p->M, p->N, p->K, p->A, p->K, p->B, p->K, p->C, p->N, 0, NULL);
        if (p->o == 1) gptsi_gemm(&p->cpu, 0, 0, p->M, p->N, p->K, p->A, p->K, p->B, p->N, p->C, p->N, 0, NULL);
        if (p->o == 2) gptsi_gemm(&p->cpu, 1, 0, p->K, p->N, p->M, p->A, p->K, p->B, p->N, p->C, p->N, 1, NULL);
        n++;
    } while (now() - began < 0.02);
    product_time = (now() - began) / n;
    return GPTS_OK;
}
static double product_ours(void *arg) { gptsi_cpu_together(&((product *)arg)->cpu, product_act, arg); return product_time; }      /* as a model does */
static double product_blas(void *arg)
{
    product *p = (product *)arg;
    int M = (int)p->M, N = (int)p->N, K = (int)p->K, n = 0;
    double began;
    blas_threads(p->threads);
    began = now();
    do {
        if (p->o == 0) sgemm(101, 111, 112, M, N, K, 1, (const float *)p->A, K, (const float *)p->B, K, 0, (float *)p->C, N);
        if (p->o == 1) sgemm(101, 111, 111, M, N, K, 1, (const float *)p->A, K, (const float *)p->B, N, 0, (float *)p->C, N);
        if (p->o == 2) sgemm(101, 112, 111, K, N, M, 1, (const float *)p->A, K, (const float *)p->B, N, 1, (float *)p->C, N);
        n++;
    } while (now() - began < 0.02);
    return (now() - began) / n;
}
static const struct { size_t M, K, N; } shapes[] = {
    { 256, 768, 768 }, { 256, 768, 2304 }, { 256, 768, 3072 }, { 256, 3072, 768 }, { 256, 768, 50304 },
    { 1024, 768, 768 }, { 1024, 768, 3072 }, { 1024, 3072, 768 }, { 1024, 384, 1536 }, { 1024, 384, 256 }, { 768, 128, 512 }
};
static void products(int bf16)
{
    double log_blas[3] = { 0, 0, 0 }, log_torch[3] = { 0, 0, 0 }, worst_blas[3] = { 9, 9, 9 }, worst_torch[3] = { 9, 9, 9 }, share[3] = { 0, 0, 0 };
    int count[3] = { 0, 0, 0 }, t, o;
    size_t s;
    printf("\nproducts%s, GFLOP/s, ours%s | PyTorch (M x K x N of y = x W)\n", bf16 ? " in bfloat16" : "", bf16 ? "" : " | OpenBLAS");
    for (t = 1; t <= 2; t++) for (s = 0; s < sizeof shapes / sizeof shapes[0]; s++) for (o = 0; o < 3; o++) {
        product p;
        gpts_hooks hooks;
        contender c[3];
        double work = 2e-9 * (double)shapes[s].M * (double)shapes[s].N * (double)shapes[s].K;
        char name[64];
        int n = 0, i;
        memset(&p, 0, sizeof p);
        memset(&hooks, 0, sizeof hooks);
        hooks.threads = t;
        need(gptsi_cpu_init(&p.cpu, &hooks, NULL), "no memory");
        p.cpu.bf16 = bf16;
        p.o = o; p.threads = t; p.M = shapes[s].M; p.K = shapes[s].K; p.N = shapes[s].N;
        p.A = noise(p.M * p.K);
        p.B = noise(o == 2 ? p.M * p.N : p.K * p.N);
        p.C = (gpts_real *)some(o == 2 ? p.K * p.N : p.M * p.N, sizeof *p.C);
        snprintf(name, sizeof name, "  %d x %d x %d %s, %d thr", (int)p.M, (int)p.K, (int)p.N, orientation[o], t);
        snprintf(p.what, sizeof p.what, "product %s %d %d %d %d%s", orientation[o], (int)p.M, (int)p.K, (int)p.N, t, bf16 ? " bf16" : "");
        c[n].name = "ours"; c[n].once = product_ours; c[n++].arg = &p;
        if (sgemm && !bf16) { c[n].name = "OpenBLAS"; c[n].once = product_blas; c[n++].arg = &p; }
        if (to_peer) { c[n].name = "PyTorch"; c[n].once = peer_turn; c[n++].arg = p.what; }
        if (measured(name, c, n, work > 4 ? 3 : 5)) {
            printf("%-34s %6.0f", name, work / c[0].t);
            for (i = 1; i < n; i++) printf(" | %6.0f", work / c[i].t);
            printf("\n");
            count[t]++;
            if (ceiling_load[t] > 0) share[t] += log(work / c[0].t / ceiling_load[t]);
            for (i = 1; i < n; i++) {
                double r = c[i].t / c[0].t, *sum = c[i].once == product_blas ? log_blas : log_torch, *worst = c[i].once == product_blas ? worst_blas : worst_torch;
                sum[t] += log(r);
                if (r < worst[t]) worst[t] = r;
            }
        }
        fflush(stdout);
        gptsi_cpu_free(&p.cpu);
        free((void *)(uintptr_t)p.A); free((void *)(uintptr_t)p.B); free(p.C);
    }
    for (t = 1; t <= 2; t++) if (count[t]) {
        printf("products%s, %d thr, %d rows: %.0f %% of the load-fed ceiling of floats", bf16 ? " in bfloat16" : "", t, count[t], 100 * exp(share[t] / count[t]));
        if (sgemm && !bf16) printf("; OpenBLAS: geometric mean %.2fx, least %.2fx", exp(log_blas[t] / count[t]), worst_blas[t]);
        if (to_peer) printf("; PyTorch: %.2fx, least %.2fx", exp(log_torch[t] / count[t]), worst_torch[t]);
        printf("\n");
    }
}

static void row_products(void) { products(0); }
static void row_products_bf16(void) { products(1); }

/* ---- models ------------------------------------------------------------------------------------------ */

typedef struct shape { const char *name; int64_t L, H, C, V; size_t B, T; } shape;
static const shape steps[] = {
    { "step 124M B4 T64", 12, 12, 768, 50257, 4, 64 },   { "step 124M B1 T1024", 12, 12, 768, 50257, 1, 1024 },
    { "step 6L 384 V256 B4 T256", 6, 6, 384, 256, 4, 256 }, { "step 4L 128 V65 B12 T64", 4, 4, 128, 65, 12, 64 }
};
typedef struct job {
    shape s;
    int threads, bf16, static_heads, hybrid;                     /* every second head static; half of the layers' attention approximated */
    gpts_model model; gpts_trainer trainer; gpts_session session;
    int32_t *tokens, *targets;
    int ready, decoding;
} job;
/* Any pattern does: speed does not depend on it.  Linear form, 64 near distances, 8 terms. */
static void make_static(gpts_model *m, size_t S)
{
    gptsi_layer_shape *shapes_of = gptsi_shapes_of(m);
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, l, h, i, r;
    int32_t *start = (int32_t *)some(H, sizeof *start);
    for (h = 0; h < H; h++) start[h] = 64;
    for (l = 0; l < L; l++) {
        for (h = 0; h < H; h += 2) shapes_of[l].kind[h] = GPTSI_STATIC;
        shapes_of[l].S = S; shapes_of[l].R = 8; shapes_of[l].tails = 1; shapes_of[l].tail_start = start;
    }
    need(gptsi_model_reshape(m, NULL, shapes_of), m->error);
    gptsi_delete(&m->hooks, shapes_of);
    free(start);
    for (l = 0; l < L; l++) {
        const gpts_heads *y = &m->layers[l].heads;
        gpts_real *rho = gptsi_weight(m, l, GPTS_P_RHO), *coef = gptsi_weight(m, l, GPTS_P_TAIL_COEF), *decay = gptsi_weight(m, l, GPTS_P_TAIL_DECAY);
        for (h = 0; h < y->n; h++) {
            for (r = 0; r < 8; r++) { coef[h * 8 + r] = (gpts_real)(0.01 / (double)(r + 1)); decay[h * 8 + r] = (gpts_real)(1 - pow(2, -0.75 * (double)(r + 1))); }
            for (i = 0; i < S; i++) {
                double sum = 0;
                for (r = 0; r < 8 && i >= 64; r++) sum += (double)coef[h * 8 + r] * pow((double)decay[h * 8 + r], (double)i - 64);
                rho[h * S + i] = (gpts_real)(i < 64 ? -log(1 + (double)i) : log(sum));
            }
        }
    }
}
static void make_hybrid(gpts_model *m)
{
    int64_t l;
    for (l = m->config.n_layer / 2; l < m->config.n_layer; l++) {
        gpts_approximator a = {0};
        gpts_recording none = {0};
        gpts_approximator_options o = {0};
        int32_t token[2] = { 0, 1 };
        o.kind = GPTS_APPROX_RANDOM; o.window = 1; o.hidden = (size_t)m->config.n_embd;
        need(gpts_recording_make(&none, m, (size_t)l, token, 1, 2), m->error);
        need(gpts_approximator_fit(&a, m, &none, NULL, &o, NULL), a.error);
        need(gpts_approximator_install(m, NULL, &a, 0), m->error);
        gpts_recording_free(&none); gpts_approximator_free(&a);
    }
}
static void job_open(job *j, int train)
{
    gpts_config c = gpts_config_default();
    gpts_hooks hooks;
    size_t i, n = j->s.B * j->s.T;
    if (j->ready) return;
    memset(&hooks, 0, sizeof hooks);
    hooks.threads = j->threads;
    c.vocab_size = j->s.V; c.n_layer = j->s.L; c.n_head = j->s.H; c.n_embd = j->s.C; c.n_positions = j->s.T + 16 > 1024 ? (int64_t)j->s.T + 16 : 1024;      /* decoding goes on behind T */
    need(gpts_model_init(&j->model, &c, 1, &hooks), j->model.error);
    need(gpts_model_precision(&j->model, j->bf16 ? GPTS_PRECISION_BF16 : GPTS_PRECISION_FULL), j->model.error);
    if (j->static_heads) make_static(&j->model, (size_t)c.n_positions);
    if (j->hybrid) make_hybrid(&j->model);
    j->tokens = (int32_t *)some(n, sizeof *j->tokens); j->targets = (int32_t *)some(n, sizeof *j->targets);
    for (i = 0; i < n; i++) { j->tokens[i] = (int32_t)(gptsi_hash(5, i, 0) % (uint64_t)j->s.V); j->targets[i] = (int32_t)(gptsi_hash(5, i, 1) % (uint64_t)j->s.V); }
    if (train) need(gpts_trainer_init(&j->trainer, &j->model, NULL), j->trainer.error);
    else need(gpts_session_init(&j->session, &j->model, 1, (size_t)c.n_positions, NULL), j->session.error);
    j->ready = 1;
}
static void job_close(job *j)
{
    if (!j->ready) return;
    gpts_session_free(&j->session); gpts_trainer_free(&j->trainer); gpts_model_free(&j->model);
    free(j->tokens); free(j->targets);
    j->ready = 0;
}
static double step_ours(void *arg)
{
    job *j = (job *)arg;
    double began;
    int n = 0;
    job_open(j, 1);
    began = now();
    do { need(gpts_trainer_update(&j->trainer, j->tokens, j->targets, j->s.B, j->s.T, NULL), j->trainer.error); n++; } while (now() - began < 0.2);
    return (now() - began) / n;
}
static double prefill_ours(void *arg)
{
    job *j = (job *)arg;
    double began;
    job_open(j, 0);
    gpts_session_reset(&j->session);
    began = now();
    need(gpts_session_prefill(&j->session, j->tokens, j->s.T, NULL), j->session.error);
    return now() - began;
}
static double decode_ours(void *arg)                       /* the mean of 16 tokens after T */
{
    job *j = (job *)arg;
    double began;
    int n;
    job_open(j, 0);
    gpts_session_reset(&j->session);
    need(gpts_session_prefill(&j->session, j->tokens, j->s.T, NULL), j->session.error);
    began = now();
    for (n = 0; n < 16; n++) need(gpts_session_decode(&j->session, j->tokens + n), j->session.error);
    return (now() - began) / 16;
}
/* multiply-adds' floating-point operations of one token behind `past` others */
static double token_work(const shape *s, double past)
{
    double C = (double)s->C;
    return 2 * ((double)s->L * 12 * C * C + (double)s->V * C) + 4 * (double)s->L * C * past;
}
static double weight_bytes(const shape *s) { return 4.0 * ((double)s->L * 12 * (double)s->C * (double)s->C + (double)s->V * (double)s->C); }

/* ours beside the peer; `floor` in seconds (0: none), `unit` ms or tok/s */
static void line(const char *name, contender *c, int n, double floor, int per_second)
{
    int i;
    double scale = per_second ? 1 : 1e3;
    printf("%-34s", name);
    for (i = 0; i < n; i++) printf(" %s %.4g%s", c[i].name, per_second ? 1 / c[i].t : scale * c[i].t, per_second ? " tok/s" : " ms");
    for (i = 1; i < n; i++) {                              /* ours against a peer, or a variant against the ordinary model */
        if (strcmp(c[0].name, "ours")) printf("; %s %.2fx as fast", c[i].name, c[0].t / c[i].t);
        else printf("; %.2fx %s", c[i].t / c[0].t, c[i].name);
    }
    if (floor > 0) printf("; floor %.4g%s, %.0f %% of it", per_second ? 1 / floor : scale * floor, per_second ? " tok/s" : " ms", 100 * floor / c[0].t);
    printf("\n");
    fflush(stdout);
}
static void model_row(const char *name, const char *what, const shape *s, double (*ours)(void *), double work, double bytes, const char *elsewhere)
{
    int t, bf16;
    for (bf16 = 0; bf16 < 2; bf16++) for (t = 2; t >= 1 + bf16; t--) {
        static job j;
        contender c[3];
        char text[128], title[80];
        double floor = 0, half_bytes;
        int n = 0;
        if (t == 1 && work > 4e11) continue;               /* the longest only once */
        memset(&j, 0, sizeof j);
        j.s = *s; j.threads = t; j.bf16 = bf16;
        snprintf(title, sizeof title, "%s, %d thr%s", name, t, bf16 ? ", bfloat16" : "");
        snprintf(text, sizeof text, "%s %d %d %d %d %d %d %d%s", what, (int)s->L, (int)s->H, (int)s->C, (int)s->V, (int)s->B, (int)s->T, t, bf16 ? " bf16" : "");
        c[n].name = "ours"; c[n].once = ours; c[n++].arg = &j;
        if (to_peer) { c[n].name = "PyTorch"; c[n].once = peer_turn; c[n++].arg = text; }
        job_open(&j, ours == step_ours);
        if (to_peer) peer(text);
        half_bytes = bf16 ? bytes / 2 : bytes;
        if (ours == decode_ours && t == 2) { c[n].name = "reading the weights"; c[n].once = read_once; c[n++].arg = &half_bytes; }
        if (ceiling_load[t] > 0) floor = work / (ceiling_load[t] * 1e9);
        if (ceiling_read[t] > 0) floor += bytes / (ceiling_read[t] * 1e9);
        if (measured(title, c, n, ROUNDS)) {
            line(title, c, n, bf16 ? 0 : floor, ours == decode_ours);
            if (t == 2 && !bf16) printf("%-34s not run here; measured elsewhere, two cores, beside PyTorch 1.13: %s\n", "", elsewhere);
        }
        job_close(&j);
    }
}
static void row_step(int which)
{
    const shape *s = &steps[which];
    static const char *const elsewhere[] = { "llm.c 5.3x its time", "llm.c 10.3x its time", "llm.c 6.3x its time", "llm.c 2.8x its time" };
    double N = (double)(s->B * s->T), parameters = weight_bytes(s) / 4;
    model_row(s->name, "step", s, step_ours, 3 * N * token_work(s, 0.5 * (double)s->T), 28 * parameters, elsewhere[which]);     /* AdamW reads 4 and writes 4, less what the backward left */
}
static void row_prefill(void)
{
    shape s = { "", 12, 12, 768, 50257, 1, 256 };
    double work = 256 * (token_work(&s, 128) - 2.0 * 50257 * 768) + 2.0 * 50257 * 768;
    model_row("prefill 256, 124M", "prefill", &s, prefill_ours, work, 0, "ggml 3.4x its time");
}
static void row_decode(void)
{
    shape s = { "", 12, 12, 768, 50257, 1, 64 };
    model_row("decode, 124M", "decode", &s, decode_ours, 0, weight_bytes(&s), "ggml 2.6x its tokens");
}

/* ---- attention --------------------------------------------------------------------------------------- */

enum { ATTENTION_T = 4096, ATTENTION_H = 2 };
typedef struct attention { gptsi_cpu cpu; gpts_heads heads; int32_t kept[ATTENTION_H], live[ATTENTION_H], fixed[ATTENTION_H]; gpts_real *qkv, *dqkv, *y, *dy, *lse; } attention;
static double attention_time;
static gpts_status attention_act(void *arg)
{
    attention *a = (attention *)arg;
    double began = now();
    gptsi_cpu_attention_forward(&a->cpu, &a->heads, a->y, a->lse, a->qkv, NULL, NULL, 1, ATTENTION_T, 0.125, 0);
    gptsi_cpu_attention_backward(&a->cpu, &a->heads, a->dqkv, a->dy, a->y, a->lse, a->qkv, NULL, NULL, 1, ATTENTION_T, 0.125, 0, NULL, NULL, NULL, NULL);
    attention_time = now() - began;
    return GPTS_OK;
}
static double attention_ours(void *arg) { gptsi_cpu_together(&((attention *)arg)->cpu, attention_act, arg); return attention_time; }
static void row_attention(void)
{
    int t, h;
    for (t = 2; t >= 1; t--) {
        static attention a;
        contender c[2];
        gpts_hooks hooks;
        char text[64], title[64];
        double work = 7.0 * ATTENTION_H * ATTENTION_T * (double)ATTENTION_T * 64;      /* 2 products forward, 5 backward, half of each */
        int n = 0;
        size_t N = ATTENTION_T * (size_t)ATTENTION_H * 64;
        memset(&a, 0, sizeof a);
        memset(&hooks, 0, sizeof hooks);
        hooks.threads = t;
        need(gptsi_cpu_init(&a.cpu, &hooks, NULL), "no memory");
        a.heads.H = a.heads.K = a.heads.U = ATTENTION_H; a.heads.D = 64;
        a.heads.kept = a.kept; a.heads.live_slot = a.live; a.heads.static_slot = a.fixed;
        for (h = 0; h < ATTENTION_H; h++) { a.kept[h] = a.live[h] = h; a.fixed[h] = -1; }
        a.qkv = noise(3 * N); a.dqkv = noise(3 * N); a.y = noise(N); a.dy = noise(N); a.lse = noise(ATTENTION_T * (size_t)ATTENTION_H);
        snprintf(title, sizeof title, "attention T4096 D64, fwd+bwd, %d thr", t);
        snprintf(text, sizeof text, "attention %d %d %d", ATTENTION_H, ATTENTION_T, t);
        c[n].name = "ours"; c[n].once = attention_ours; c[n++].arg = &a;
        if (to_peer) { c[n].name = "PyTorch"; c[n].once = peer_turn; c[n++].arg = text; }
        if (measured(title, c, n, ROUNDS)) line(title, c, n, ceiling_load[t] > 0 ? work / (ceiling_load[t] * 1e9) : 0, 0);
        gptsi_cpu_free(&a.cpu);
        free(a.qkv); free(a.dqkv); free(a.y); free(a.dy); free(a.lse);
    }
}

/* ---- peak memory --------------------------------------------------------------------------------------- */

static double peak(char *const argv[])                     /* GiB of a child, or 0 */
{
    struct rusage u;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) { if (!freopen("/dev/null", "w", stdout)) _exit(127); execvp(argv[0], argv); _exit(127); }
    if (pid < 0 || wait4(pid, &status, 0, &u) != pid || status) return 0;
    return (double)u.ru_maxrss / (1 << 20);
}
static char self[] = "/proc/self/exe";
static void row_memory(void)
{
    char *ours[3], *torch[4], memory[] = "--memory", script[] = "tests/bench/peer.py", python[] = "python3";
    double a, b = 0;
    ours[0] = self; ours[1] = memory; ours[2] = NULL;
    torch[0] = getenv("PYTHON") ? getenv("PYTHON") : python; torch[1] = script; torch[2] = memory; torch[3] = NULL;
    a = peak(ours);
    if (to_peer) b = peak(torch);
    printf("%-34s ours %.2f GiB", "peak memory, step 124M B1 T1024", a);
    if (b > 0) printf(" PyTorch %.2f GiB; %.2fx", b, b / a);
    printf("; weights, gradients, moments %.2f GiB\n", 4 * weight_bytes(&steps[1]) / (1 << 30));
}

/* ---- ordinary, hybrid, static ---------------------------------------------------------------------------- */

static void row_static(void)
{
    static const char *const names[] = { "ordinary", "hybrid", "static" };
    static const char *const work[] = { "step", "prefill", "decode" };
    size_t T;
    int w, k;
    for (T = 256; T <= 2048; T *= 8) for (w = 0; w < 3; w++) {
        static job j[3];
        contender c[3];
        char title[96];
        memset(j, 0, sizeof j);
        for (k = 0; k < 3; k++) {
            shape s = { "", 6, 6, 384, 256, 1, 0 };
            s.T = T;
            j[k].s = s; j[k].threads = 2; j[k].hybrid = k == 1; j[k].static_heads = k == 2;
            c[k].name = names[k]; c[k].arg = &j[k];
            c[k].once = w == 0 ? step_ours : w == 1 ? prefill_ours : decode_ours;
        }
        snprintf(title, sizeof title, "%s 6L 384 T%d, 2 thr", work[w], (int)T);
        if (measured(title, c, 3, ROUNDS)) line(title, c, 3, 0, w == 2);
        for (k = 0; k < 3; k++) job_close(&j[k]);
    }
}

/* ---- the table -------------------------------------------------------------------------------------------- */

static void row_steps0(void) { row_step(0); }
static void row_steps1(void) { row_step(1); }
static void row_steps2(void) { row_step(2); }
static void row_steps3(void) { row_step(3); }
static const struct { const char *name; void (*run)(void); } rows[] = {
    { "ceilings", row_ceilings }, { "products", row_products }, { "bf16-products", row_products_bf16 },
    { "step-124M-64", row_steps0 }, { "step-124M-1024", row_steps1 }, { "step-6L384", row_steps2 }, { "step-4L128", row_steps3 },
    { "prefill", row_prefill }, { "decode", row_decode }, { "attention", row_attention }, { "memory", row_memory }, { "static", row_static }
};
enum { ROWS = sizeof rows / sizeof rows[0] };

int main(int argc, char **argv)
{
    int i, r, any = 0;
    char wanted[ROWS];
    memset(wanted, 0, sizeof wanted);
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--memory")) { static job j; j.s = steps[1]; j.threads = 2; step_ours(&j); step_ours(&j); return 0; }
        if (!strcmp(argv[i], "--list")) { for (r = 0; r < ROWS; r++) puts(rows[r].name); return 0; }
        if (!strcmp(argv[i], "--tolerate") && i + 1 < argc) { tolerance = strtod(argv[++i], NULL); continue; }
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc) { budget = strtod(argv[++i], NULL); continue; }
        for (r = 0; r < ROWS; r++) if (!strncmp(argv[i], rows[r].name, strlen(argv[i]))) wanted[r] = 1, any = 1;
        if (!any) { fprintf(stderr, "bench: no row `%s'; --list names them\n", argv[i]); return 2; }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    peer_start();
    blas_open();
    printf("peers: %s; %s\n", to_peer ? peer_name : "no PyTorch (PYTHON=...)", sgemm ? blas_name : "no OpenBLAS");
    row_ceilings();
    for (r = 1; r < ROWS; r++) if (!any || wanted[r]) rows[r].run();
    printf("%d rows, %d not quoted\n", quoted + refused, refused);
    if (to_peer) { fclose(to_peer); waitpid(peer_pid, NULL, 0); }
    return 0;
}

/* bench_ranks.c - training on several GPUs: an update alone and together, what communication costs, and whether the losses are those of one.

     torchrun --nproc-per-node=2 --no-python build/tests/gpu/bench_ranks [--layers=12 --heads=12 --width=768 --T=4096 --B=8 --accum=8]
                                                       [--rounds=5] [--arms=ordinary,linear25,linear50] [--bf16] [--parity]

   Every process trains alone, on its own GPU and all at the same time, and together, with as many windows each, by turns.  `efficiency` is
   the one time over the other; `gradients` and `weights` are the two exchanges with nothing beside them; `hidden` is the part of both
   that the update does not show.  `after backward`: the exchange does not begin before the last layer is done.
   --parity: 50 updates of one global batch, replacing a quarter of the heads after 25: by one process, by one with other rounding (half
   as many, larger micro-batches), and by all together.  Random tokens in the first kind of run, the bytes of gpu.cu in the second.      */
#define GPTSTATIC_IMPLEMENTATION
#include "../../gptstatic.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include <cuda_runtime_api.h>
#include <time.h>

enum { MOST = 64, V = 50304 };
static int L = 12, H = 12, C = 768, accum = 8, rounds = 5, type = GPTS_GPU_F32, parity = 0;
static size_t T = 4096, B = 8;
static gpts_ranks ranks;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }
static void need(int ok, const char *why) { if (!ok) { fprintf(stderr, "bench_ranks, rank %d: %s\n", ranks.rank, why); exit(1); } }
static int first(void) { return ranks.rank == 0; }
static int ascending(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double slowest(double x)               /* of all ranks */
{
    double all[MOST], most = x;
    char error[GPTS_ERROR_BYTES];
    int r;
    if (ranks.size <= 1) return x;
    need(ranks.gather(ranks.context, &x, sizeof x, all, error) == GPTS_OK, error);
    for (r = 0; r < ranks.size; r++) if (all[r] > most) most = all[r];
    return most;
}

/* random weights; static heads (linear: W = T/16, 256 at most, 8 terms) more of them in the first layers, as in bench_train */
static size_t model_make(gpts_model *m, int percent)
{
    static const int heads25[12] = { 9, 9, 6, 6, 3, 3, 0, 0, 0, 0, 0, 0 }, heads50[12] = { 12, 12, 9, 9, 9, 6, 6, 3, 3, 3, 0, 0 };
    static int8_t kind[256][256];
    static int32_t start[256];
    static gptsi_layer_shape shapes[256];
    gpts_config c = gpts_config_default();
    gpts_rng rng = { 9, 0 };
    size_t i, k, frozen = 0;
    int l, h;
    c.vocab_size = V; c.n_positions = (int64_t)T; c.position = GPTS_POSITION_ROPE; c.bias = 0; c.activation = GPTS_GELU_ERF;
    c.n_layer = L; c.n_head = H; c.n_embd = C;
    memset(shapes, 0, sizeof shapes);
    for (h = 0; h < H; h++) start[h] = (int32_t)(T > 4096 ? 256 : T / 16);
    for (l = 0; l < L; l++) {
        int n = (percent == 25 ? heads25 : heads50)[l * 12 / L] * H / 12;
        if (!percent) n = 0;
        for (h = 0; h < H; h++) kind[l][h] = h >= H - n ? GPTSI_STATIC : GPTSI_LIVE;
        shapes[l].kind = kind[l];
        if (n) { shapes[l].S = T; shapes[l].R = 8; shapes[l].tails = 1; shapes[l].tail_start = start; }
        frozen += (size_t)n;
    }
    need(gptsi_model_build(m, &c, percent ? shapes : NULL, NULL) == GPTS_OK, m->error);
    for (i = 0; i < m->n_tensors; i++) {
        gpts_tensor *t = &m->tensors[i];
        gptsi_fill fill;
        fill.x = t->data; fill.seed = i; fill.std = 0.02;
        if (t->kind == GPTS_P_TAIL_COEF) for (k = 0; k < t->size; k++) t->data[k] = 0.01f;
        else if (t->kind == GPTS_P_TAIL_DECAY) for (k = 0; k < t->size; k++) t->data[k] = (float)(1 - pow(0.5, 4 + (double)(k % t->columns)));
        else if (t->kind == GPTS_P_ALPHA) for (k = 0; k < t->size; k++) t->data[k] = (float)(0.5 * gpts_rng_normal(&rng));
        else if (t->kind == GPTS_P_RHO) for (k = 0; k < t->size; k++) {
            size_t d = k % t->columns;
            double w = 0;
            int r;
            for (r = 0; r < 8; r++) w += 0.01 * pow(1 - pow(0.5, 4 + r), (double)d - (double)start[0]);
            t->data[k] = (float)(d >= (size_t)start[0] ? log(w) : -0.7 * log(1.0 + (double)d));
        } else if (t->rank == 1) for (k = 0; k < t->size; k++) t->data[k] = 1;
        else gptsi_parallel(NULL, gptsi_workers(NULL), t->size, gptsi_fill_normal, &fill);
    }
    return frozen;
}

static double update(gpts_trainer *t, const int32_t *tokens, int batches)
{
    gpts_batch batch;
    double loss = 0;
    int i;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.targets = tokens + 1; batch.B = B; batch.T = T;
    for (i = 0; i < batches; i++) need(gpts_trainer_accumulate(t, &batch, NULL) == GPTS_OK, t->error);
    need(gpts_trainer_apply(t, &loss) == GPTS_OK, t->error);
    return loss;
}
/* milliseconds of one update, of the slowest rank */
static double timed(gpts_trainer *t, const int32_t *tokens)
{
    double from;
    cudaDeviceSynchronize();
    slowest(0);
    from = now();
    update(t, tokens, accum);
    cudaDeviceSynchronize();
    return slowest(1e3 * (now() - from));
}
static double median(double *x, int n) { qsort(x, (size_t)n, sizeof *x, ascending); return x[n / 2]; }

/* One trainer stays alone, one trains with the others; they take turns, since the cards slow down as they warm up. */
static void bench(int percent)
{
    enum { ALONE, TOGETHER, AFTER, WAYS };                        /* AFTER: the exchange waits for the whole backward */
    gpts_model m[2];
    gpts_trainer t[2];
    gpts_train_options o = gpts_train_options_default();
    gpts_rng rng = { 3, (uint64_t)ranks.rank << 32 };
    int32_t *tokens = (int32_t *)malloc((B * T + 1) * sizeof *tokens), l;
    size_t i, frozen = 0, free_before[3], total, begin, end;
    double ms[WAYS][MOST], reduce[5], publish[5], at[WAYS], gib[2];
    char error[GPTS_ERROR_BYTES], name[32];
    int k, r, models = ranks.size > 1 ? 2 : 1, ways = ranks.size > 1 ? WAYS : 1;
    for (i = 0; i <= B * T; i++) tokens[i] = (int32_t)gpts_rng_below(&rng, V);
    memset(m, 0, sizeof m); memset(t, 0, sizeof t);
    cudaSetDevice(ranks.device);
    for (k = 0; k < models; k++) {
        cudaMemGetInfo(&free_before[k], &total);
        frozen = model_make(&m[k], percent);
        need(gpts_gpu_attach(&m[k], ranks.device) == GPTS_OK, m[k].error);
        need(gpts_trainer_init(&t[k], &m[k], &o) == GPTS_OK, t[k].error);
        if (k) { t[k].options.batches = (uint64_t)accum; need(gpts_trainer_ranks(&t[k], &ranks) == GPTS_OK, t[k].error); }
        timed(&t[k], tokens); timed(&t[k], tokens);
        cudaMemGetInfo(&free_before[k + 1], &total);
        gib[k] = (double)(free_before[k] - free_before[k + 1]) / 1073741824.0;
    }
    for (r = 0; r < rounds; r++) for (k = 0; k < ways; k++) {
        if (k) t[1].options.batches = k == TOGETHER ? (uint64_t)accum : 0;
        ms[k][r] = timed(&t[k > 0], tokens);
    }
    for (k = 0; k < ways; k++) at[k] = median(ms[k], rounds);
    snprintf(name, sizeof name, percent ? "linear%d" : "ordinary", percent);
    if (first()) printf("  %-9s %d of %d heads static; alone %.1f ms an update, %.0f tokens/s, %.2f GiB\n", name, (int)frozen, L * H, at[ALONE],
                        (double)(B * T) * accum / at[ALONE] * 1e3, gib[0]);
    if (models > 1) {
        gptsi_trainer_stretch(&t[1], ranks.rank, &begin, &end);
        for (i = 0; i < 5; i++) {
            double from;
            cudaDeviceSynchronize(); slowest(0);
            from = now();
            for (l = (int32_t)L; l >= -1; l--) gptsi_trainer_hand_over(&t[1], l);
            need(ranks.wait(ranks.context, error) == GPTS_OK, error);
            reduce[i] = slowest(1e3 * (now() - from));
            cudaDeviceSynchronize(); slowest(0);
            from = now();
            need(gptsi_trainer_publish(&t[1], begin, end) == GPTS_OK, t[1].error);
            publish[i] = slowest(1e3 * (now() - from));
        }
        if (first()) printf("  %-9s together %.1f ms, %.0f tokens/s of %d GPUs, efficiency %.4f, %.2f GiB; after backward %.1f ms; gradients %.2f ms + weights %.2f ms alone, hidden %.0f %%\n", name,
                            at[TOGETHER], (double)(B * T) * accum * ranks.size / at[TOGETHER] * 1e3, ranks.size, at[ALONE] / at[TOGETHER], gib[1], at[AFTER],
                            median(reduce, 5), median(publish, 5), 100 * (1 - (at[TOGETHER] - at[ALONE]) / (reduce[2] + publish[2])));
    }
    for (k = 0; k < models; k++) { gpts_trainer_free(&t[k]); gpts_model_free(&m[k]); }
    free(tokens);
}

/* 50 updates of 2 * accum * size windows of T; `larger`: micro-batches of twice the size */
static void run(double *losses, int together, int larger, const uint16_t *text, size_t n)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_options f = gpts_freeze_options_default();
    gpts_freeze_report report;
    gpts_train_options o = gpts_train_options_default();
    gpts_windows windows;
    size_t each = larger ? 2 * B : B;
    int32_t *tokens = (int32_t *)malloc(16 * each * T * sizeof *tokens), *targets = (int32_t *)malloc(16 * each * T * sizeof *targets);
    int u, k, batches = (together ? accum : accum * ranks.size) / (larger ? 2 : 1);
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&c, 0, sizeof c); memset(&windows, 0, sizeof windows);
    windows.tokens = text; windows.n = n; windows.T = T; windows.seed = 4;
    o.warmup = 10;
    model_make(&m, 0);
    need(gpts_gpu_attach(&m, ranks.device) == GPTS_OK, m.error);
    need(gpts_trainer_init(&t, &m, &o) == GPTS_OK, t.error);
    t.options.batches = (uint64_t)batches;
    if (together) { need(gpts_trainer_ranks(&t, &ranks) == GPTS_OK, t.error); c.ranks = &ranks; }
    for (u = 0; u < 50; u++) {
        if (u == 25) {
            windows.seed = 5;
            need(gpts_windows_batch(&windows, 0, 8, tokens, targets) == GPTS_OK, "windows");
            windows.seed = 4;
            need(gpts_calibrate(&c, &m, tokens, 8, T) == GPTS_OK, c.error);
            f.gate = -1;
            need(gpts_freeze(&m, &t, &c, &f, &report) == GPTS_OK, m.error);
            if (first()) printf("    %d heads replaced, %d linear, first layer %d head %d\n", (int)report.n, (int)report.linear, (int)report.heads[0].layer, (int)report.heads[0].head);
            gpts_freeze_report_free(&report);
            gpts_calibration_free(&c);
        }
        for (k = 0; k < batches; k++) {
            gpts_batch batch;
            memset(&batch, 0, sizeof batch);
            need(gpts_windows_batch(&windows, gpts_trainer_windows(&t, each), each, tokens, targets) == GPTS_OK, "windows");
            batch.tokens = tokens; batch.targets = targets; batch.B = each; batch.T = T;
            need(gpts_trainer_accumulate(&t, &batch, NULL) == GPTS_OK, t.error);
        }
        need(gpts_trainer_apply(&t, &losses[u]) == GPTS_OK, t.error);
    }
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    free(tokens); free(targets);
}
static void compare(void)
{
    double one[50], other[50], all[50], noise[2] = { 0, 0 }, change[2] = { 0, 0 };
    char *bytes, error[GPTS_ERROR_BYTES];
    size_t n, i;
    uint16_t *text;
    int u;
    need(gpts_read_file("gpu.cu", &bytes, &n, NULL, error) == GPTS_OK, error);
    text = (uint16_t *)malloc(n * sizeof *text);
    for (i = 0; i < n; i++) text[i] = (unsigned char)bytes[i];
    run(one, 0, 0, text, n);
    run(other, 0, 1, text, n);
    run(all, 1, 0, text, n);
    for (u = 0; u < 50; u++) {
        double a = fabs(other[u] - one[u]), b = fabs(all[u] - one[u]);
        if (a > noise[u >= 25]) noise[u >= 25] = a;
        if (b > change[u >= 25]) change[u >= 25] = b;
        if (first() && (u % 10 == 9 || u == 25)) printf("    update %2d: one GPU %.5f, other rounding %.5f, %d GPUs %.5f\n", u + 1, one[u], other[u], ranks.size, all[u]);
    }
    if (first()) printf("  largest difference to one GPU: before replacement %.2g (rounding alone %.2g), after %.2g (%.2g)\n", change[0], noise[0], change[1], noise[1]);
    need(change[0] < 3 * noise[0] + 2e-3 && change[1] < 3 * noise[1] + 5e-3, "the losses are not those of one GPU");
    free(text); gpts_release(NULL, bytes);
}

int main(int argc, char **argv)
{
    char error[GPTS_ERROR_BYTES] = "";
    const char *arms = "ordinary,linear25,linear50";
    int k;
    for (k = 1; k < argc; k++) {
        if (!strncmp(argv[k], "--B=", 4)) B = (size_t)atoi(argv[k] + 4);
        else if (!strncmp(argv[k], "--T=", 4)) T = (size_t)atoi(argv[k] + 4);
        else if (!strncmp(argv[k], "--layers=", 9)) L = atoi(argv[k] + 9);
        else if (!strncmp(argv[k], "--heads=", 8)) H = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--width=", 8)) C = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--accum=", 8)) accum = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--rounds=", 9)) rounds = atoi(argv[k] + 9);
        else if (!strncmp(argv[k], "--arms=", 7)) arms = argv[k] + 7;
        else if (!strcmp(argv[k], "--bf16")) type = GPTS_GPU_BF16;
        else if (!strcmp(argv[k], "--parity")) parity = 1;
        else need(0, "unknown argument");
    }
    if (rounds > MOST) rounds = MOST;
    setvbuf(stdout, NULL, _IOLBF, 0);
    need(gpts_gpu_ranks_init(&ranks, type, error) == GPTS_OK, error);
    if (first()) printf("%d GPUs; %d layers, %d heads, width %d; T %d, B %d, %d micro-batches each; gradients in %s\n", ranks.size, L, H, C, (int)T, (int)B, accum, type == GPTS_GPU_BF16 ? "bf16" : "fp32");
    if (parity) compare();
    else {
        if (strstr(arms, "ordinary")) bench(0);
        if (strstr(arms, "linear25")) bench(25);
        if (strstr(arms, "linear50")) bench(50);
    }
    gpts_gpu_ranks_free(&ranks);
    return 0;
}

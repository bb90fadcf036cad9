/* bench_train.c - one optimiser update of GPT-2 124M on the GPU: ordinary, with static heads, and with static heads that cost nothing.

     build/tests/gpu/bench_train [--B=8] [--T=4096] [--accum=15] [--rounds=3] [--only=ordinary,linear25,...] [--profile]

   12 layers, 12 heads, 768, vocabulary 50304, rotary positions, no biases, exact GELU, tied output, clipping, AdamW; random tokens.
   Static heads lie as in the measurements of PyTorch beside which this stands: 25 % in layers as 9 9 6 6 3 3 0 ..., 50 % as
   12 12 9 9 9 6 6 3 3 3 0 0; linear: W = T/16, 256 at most, 8 terms.  "free" is an oracle: y = v is copied, there is no Q and K.  Arms take
   turns, a whole update each; the median is printed.  Memory is what the arm's own model, trainer and activations take.
   --no-replay queues every operation of every micro-batch instead of replaying a CUDA graph.  --layers= --width= --heads= --vocabulary=: another
   model; the first three: ordinary arm only.  --model=FILE, up to 7 times: these models instead, the first as the measure.           */
#define GPTSTATIC_IMPLEMENTATION
#include "../../gptstatic.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include <cuda_runtime_api.h>
#include <time.h>

enum { ARMS = 7, MOST_ROUNDS = 64 };
static const char *const names[ARMS] = { "ordinary", "linear25", "exact25", "linear50", "exact50", "free25", "free50" };
static const int share[ARMS] = { 0, 25, 25, 50, 50, 25, 50 };
static const int heads25[12] = { 9, 9, 6, 6, 3, 3, 0, 0, 0, 0, 0, 0 }, heads50[12] = { 12, 12, 9, 9, 9, 6, 6, 3, 3, 3, 0, 0 };

static int64_t layers = 12, width = 768, n_heads = 12, vocabulary = 50304;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }
static void need(int ok, const char *why) { if (!ok) { fprintf(stderr, "bench_train: %s\n", why); exit(1); } }

/* ---- the oracle: live heads by gpu.cu, y = v and dv = dy for the others, which come last ---- */
static void *prepared, *workspace;
static size_t prepared_bytes, workspace_bytes;
static void free_run(void *device, const gpts_heads *h, void *y, gpts_real *lse, void *qkv, void *dy, void *dqkv, size_t B, size_t T, double scale, double theta)
{
    unsigned char kind[12], wide[12];
    gpts_gpu_attention a;
    int64_t D = (int64_t)h->D, U = (int64_t)h->U, K = (int64_t)h->K, row = (2 * U + K) * D, i;
    cudaStream_t stream = *(cudaStream_t *)device;                     /* the device's first member */
    size_t need_bytes, fixed = (size_t)(K - U) * (size_t)D * 2;
    for (i = 0; i < 12; i++) kind[i] = i < U ? GPTS_GPU_LIVE : GPTS_GPU_PRUNED;
    memset(&a, 0, sizeof a);
    a.type = GPTS_GPU_BF16; a.D = (int)D; a.B = (int64_t)B; a.T = (int64_t)T; a.H = 12; a.kind = kind; a.wide = wide; a.theta = theta; a.rotated = 1; a.scale = (float)scale;
    a.lse = lse; a.stream = stream;
    a.q.data = qkv; a.q.h = D; a.q.t = row; a.q.b = (int64_t)T * row;
    a.k = a.v = a.q; a.k.data = (char *)qkv + U * D * 2; a.v.data = (char *)qkv + 2 * U * D * 2;
    a.y.data = y; a.y.h = D; a.y.t = K * D; a.y.b = (int64_t)T * K * D;
    if (dqkv) {
        a.dq = a.q; a.dk = a.k; a.dv = a.v; a.dy = a.y;
        a.dq.data = dqkv; a.dk.data = (char *)dqkv + U * D * 2; a.dv.data = (char *)dqkv + 2 * U * D * 2; a.dy.data = dy;
    }
    if (U) {
        need_bytes = gpts_gpu_attention_prepared_size(&a);
        a.prepared = prepared; a.prepared_bytes = prepared_bytes;
        if (need_bytes > prepared_bytes) {
            cudaFree(prepared); cudaMalloc(&prepared, need_bytes); prepared_bytes = need_bytes;
            a.prepared = prepared; a.prepared_bytes = prepared_bytes;
            need(gpts_gpu_attention_prepare(&a) == GPTS_GPU_OK, a.error);
        }
        need_bytes = gpts_gpu_attention_workspace_size(&a, dqkv != NULL);
        if (need_bytes > workspace_bytes) { cudaDeviceSynchronize(); cudaFree(workspace); cudaMalloc(&workspace, need_bytes); workspace_bytes = need_bytes; }
        a.workspace = workspace; a.workspace_bytes = workspace_bytes;
        if (dqkv) need(gpts_gpu_attention_backward(&a) == GPTS_GPU_OK, a.error);
        else need(gpts_gpu_attention_rotate(&a, NULL) == GPTS_GPU_OK && gpts_gpu_attention_forward(&a) == GPTS_GPU_OK, a.error);
    }
    if (!fixed) return;
    if (dqkv) cudaMemcpy2DAsync((char *)dqkv + 3 * U * D * 2, (size_t)row * 2, (char *)dy + U * D * 2, (size_t)(K * D) * 2, fixed, B * T, cudaMemcpyDeviceToDevice, stream);
    else cudaMemcpy2DAsync((char *)y + U * D * 2, (size_t)(K * D) * 2, (char *)qkv + 3 * U * D * 2, (size_t)row * 2, fixed, B * T, cudaMemcpyDeviceToDevice, stream);
}
static void free_forward(void *device, const gpts_heads *h, void *y, gpts_real *lse, void *qkv, const int32_t *first, const int32_t *length, size_t B, size_t T, double scale, double theta)
{
    (void)first; (void)length;
    free_run(device, h, y, lse, qkv, NULL, NULL, B, T, scale, theta);
}
static void free_backward(void *device, const gpts_heads *h, void *dqkv, const void *dy, const void *y, const gpts_real *lse, const void *qkv, const int32_t *first, const int32_t *length,
                          size_t B, size_t T, double scale, double theta, gpts_real *a, gpts_real *b, gpts_real *c, gpts_real *d)
{
    (void)first; (void)length; (void)a; (void)b; (void)c; (void)d;
    free_run(device, h, (void *)(uintptr_t)y, (gpts_real *)(uintptr_t)lse, (void *)(uintptr_t)qkv, (void *)(uintptr_t)dy, dqkv, B, T, scale, theta);
}

/* ---- where the time goes: events around every operation of one micro-batch ---- */
enum { MOST_EVENTS = 4096 };
static struct { const char *what; size_t size; cudaEvent_t from, to; } events[MOST_EVENTS];
static int n_events;
static gpts_ops real;
static void mark(void *device, const char *what, size_t size)
{
    if (n_events == MOST_EVENTS) return;
    events[n_events].what = what; events[n_events].size = size;
    cudaEventCreate(&events[n_events].from); cudaEventCreate(&events[n_events].to);
    cudaEventRecord(events[n_events].from, *(cudaStream_t *)device);
}
static void done(void *device) { if (n_events < MOST_EVENTS) cudaEventRecord(events[n_events++].to, *(cudaStream_t *)device); }
#define TIMED(name, size, parameters, arguments) static void timed_##name parameters { mark(device, #name, size); real.name arguments; done(device); }
TIMED(embed_forward, 0, (void *device, void *x, const int32_t *t, const int32_t *f, const gpts_real *w, const gpts_real *p, size_t B, size_t T, size_t C), (device, x, t, f, w, p, B, T, C))
TIMED(embed_backward, 0, (void *device, gpts_real *w, gpts_real *p, const int32_t *t, const int32_t *f, const void *x, size_t B, size_t T, size_t C, size_t V), (device, w, p, t, f, x, B, T, C, V))
TIMED(norm_forward, 0, (void *device, void *y, gpts_real *s, const void *x, const gpts_real *w, const gpts_real *b, size_t N, size_t C, double e), (device, y, s, x, w, b, N, C, e))
TIMED(add_norm_forward, 0, (void *device, void *z, void *y, gpts_real *s, const void *a, const void *x, const gpts_real *w, const gpts_real *b, size_t N, size_t C, double e), (device, z, y, s, a, x, w, b, N, C, e))
TIMED(norm_backward, 0, (void *device, void *dx, gpts_real *dw, gpts_real *db, const void *dy, const void *x, const gpts_real *w, const gpts_real *s, size_t N, size_t C), (device, dx, dw, db, dy, x, w, s, N, C))
TIMED(linear_forward, in * 100000 + out, (void *device, void *y, const void *x, const gpts_real *w, const gpts_real *b, size_t N, size_t in, size_t out), (device, y, x, w, b, N, in, out))
static void timed_linear_backward(void *device, void *dx, gpts_real *dw, gpts_real *db, const void *dy, const void *x, const gpts_real *w, size_t N, size_t in, size_t out)
{
    if (dw || db) { mark(device, "linear_backward dw", in * 100000 + out); real.linear_backward(device, NULL, dw, db, dy, x, w, N, in, out); done(device); }
    if (dx) { mark(device, "linear_backward dx", in * 100000 + out); real.linear_backward(device, dx, NULL, NULL, dy, x, w, N, in, out); done(device); }
}
TIMED(activation_forward, 0, (void *device, void *y, const void *x, size_t n, gpts_activation k), (device, y, x, n, k))
TIMED(activation_exchange, 0, (void *device, void *dx, const void *dy, void *x, size_t n, gpts_activation k), (device, dx, dy, x, n, k))
TIMED(attention_forward, h->U, (void *device, const gpts_heads *h, void *y, gpts_real *l, void *q, const int32_t *f, const int32_t *n, size_t B, size_t T, double s, double t), (device, h, y, l, q, f, n, B, T, s, t))
TIMED(attention_backward, h->U, (void *device, const gpts_heads *h, void *dq, const void *dy, const void *y, const gpts_real *l, const void *q, const int32_t *f, const int32_t *n, size_t B, size_t T,
      double s, double t, gpts_real *a, gpts_real *b, gpts_real *c, gpts_real *d), (device, h, dq, dy, y, l, q, f, n, B, T, s, t, a, b, c, d))
static void timed_loss(void *device, double *sum, void *dx, gpts_real *dw, const void *x, const gpts_real *w, const int32_t *t, size_t N, size_t C, size_t V)
{
    mark(device, "(loss alone)", 0); real.loss(device, sum, NULL, NULL, x, w, t, N, C, V); done(device);
    mark(device, "(loss and dx)", 0); real.loss(device, sum, dx, NULL, x, w, t, N, C, V); done(device);
    mark(device, "loss", 0); real.loss(device, sum, dx, dw, x, w, t, N, C, V); done(device);
}
TIMED(zero, 0, (void *device, void *memory, size_t bytes), (device, memory, bytes))
TIMED(adamw_all, 0, (void *device, const gpts_update *u, size_t n, double g, double r, double b1, double b2, double e, uint64_t s), (device, u, n, g, r, b1, b2, e, s))
static void timed_sum_squares(void *device, double *sum, const gpts_real *g, size_t n) { mark(device, "sum_squares", 0); real.sum_squares(device, sum, g, n); done(device); }
static void profile_on(gpts_ops *o)
{
    real = *o;
    o->embed_forward = timed_embed_forward; o->embed_backward = timed_embed_backward; o->norm_forward = timed_norm_forward; o->add_norm_forward = timed_add_norm_forward;
    o->norm_backward = timed_norm_backward; o->linear_forward = timed_linear_forward; o->linear_backward = timed_linear_backward; o->activation_forward = timed_activation_forward;
    o->activation_exchange = timed_activation_exchange; o->attention_forward = timed_attention_forward; o->attention_backward = timed_attention_backward; o->loss = timed_loss;
    o->replay_begin = NULL; o->zero = timed_zero; o->adamw_all = timed_adamw_all; o->sum_squares = timed_sum_squares;
}
static void profile_off(gpts_ops *o)
{
    double all = 0;
    int i, j;
    *o = real;
    cudaDeviceSynchronize();
    for (i = 0; i < n_events; i++) {
        double ms = 0;
        int count = 0;
        for (j = 0; j < i; j++) if (!strcmp(events[j].what, events[i].what) && events[j].size == events[i].size) break;
        if (j < i) continue;
        for (j = i; j < n_events; j++) if (!strcmp(events[j].what, events[i].what) && events[j].size == events[i].size) {
            float one = 0;
            cudaEventElapsedTime(&one, events[j].from, events[j].to); ms += (double)one; count++;
        }
        if (*events[i].what != '(') all += ms;
        if (events[i].size >= 100000) printf("    %-22s %5llu -> %-5llu %3d calls  %8.3f ms\n", events[i].what, (unsigned long long)(events[i].size / 100000), (unsigned long long)(events[i].size % 100000), count, ms);
        else printf("    %-22s %-14llu %3d calls  %8.3f ms\n", events[i].what, (unsigned long long)events[i].size, count, ms);
    }
    printf("    sum %.3f ms\n", all);
    for (i = 0; i < n_events; i++) { cudaEventDestroy(events[i].from); cudaEventDestroy(events[i].to); }
    n_events = 0;
}

/* ---- the arms ---- */
typedef struct arm { int which; const char *name; gpts_model m; gpts_trainer t; double ms[MOST_ROUNDS], memory; } arm;

static void arm_make(arm *a, int which, size_t T)
{
    gpts_config c = gpts_config_default();
    gptsi_layer_shape shapes[12];
    int8_t kind[12][12];
    int32_t start[12];
    gpts_model plain;
    gpts_rng rng = { 9, 0 };
    int l, h, linear = !strncmp(names[which], "linear", 6);
    size_t i, k, free_now, total;
    gpts_train_options o = gpts_train_options_default();
    a->which = which; a->name = names[which];
    c.vocab_size = vocabulary; c.n_positions = (int64_t)T; c.position = GPTS_POSITION_ROPE; c.bias = 0; c.activation = GPTS_GELU_ERF;
    c.n_layer = layers; c.n_embd = width; c.n_head = n_heads;
    memset(shapes, 0, sizeof shapes);
    for (h = 0; h < 12; h++) start[h] = (int32_t)(T > 4096 ? 256 : T / 16);
    for (l = 0; l < 12; l++) {
        int n = share[which] == 25 ? heads25[l] : share[which] == 50 ? heads50[l] : 0;
        for (h = 0; h < 12; h++) kind[l][h] = h >= 12 - n ? GPTSI_STATIC : GPTSI_LIVE;
        shapes[l].kind = kind[l];
        if (n) { shapes[l].S = T; if (linear) { shapes[l].R = 8; shapes[l].tails = 1; shapes[l].tail_start = start; } }
    }
    need(gpts_model_init(&plain, &c, 1, NULL) == GPTS_OK, plain.error);
    need(gptsi_model_build(&a->m, &c, which ? shapes : NULL, NULL) == GPTS_OK, a->m.error);
    for (i = 0; i < a->m.n_tensors; i++) {
        gpts_tensor *t = &a->m.tensors[i];
        const gpts_tensor *p = gpts_model_tensor(&plain, t->name);
        size_t columns = t->columns;
        if (p && p->size == t->size) memcpy(t->data, p->data, t->size * sizeof *t->data);
        else if (p) for (k = 0; k < t->size; k++) t->data[k] = p->data[k % p->size];
        if (t->kind == GPTS_P_ALPHA || t->kind == GPTS_P_RHO)
            for (k = 0; k < t->size; k++) {
                size_t d = k % columns;
                t->data[k] = t->kind == GPTS_P_ALPHA ? (float)(0.5 * gpts_rng_normal(&rng)) : (float)(-0.7 * log(1.0 + (double)d));
                if (linear && t->kind == GPTS_P_RHO && d >= (size_t)start[0]) { double w = 0; int r; for (r = 0; r < 8; r++) w += 0.01 * pow(1 - pow(0.5, 4 + r), (double)(d - (size_t)start[0])); t->data[k] = (float)log(w); }
            }
        if (t->kind == GPTS_P_TAIL_COEF) for (k = 0; k < t->size; k++) t->data[k] = 0.01f;
        if (t->kind == GPTS_P_TAIL_DECAY) for (k = 0; k < t->size; k++) t->data[k] = (float)(1 - pow(0.5, 4 + (double)(k % columns)));
    }
    gpts_model_free(&plain);
    cudaMemGetInfo(&free_now, &total); a->memory = (double)free_now;
    need(gpts_gpu_attach(&a->m, 0) == GPTS_OK, a->m.error);
    if (which >= 5) { gpts_ops *ops = (gpts_ops *)(uintptr_t)a->m.ops; ops->attention_forward = free_forward; ops->attention_backward = free_backward; }
    need(gpts_trainer_init(&a->t, &a->m, &o) == GPTS_OK, a->t.error);
}

static void arm_load(arm *a, const char *path)
{
    size_t free_now, total;
    gpts_train_options o = gpts_train_options_default();
    a->name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    need(gpts_model_load(&a->m, path, NULL) == GPTS_OK, a->m.error);
    cudaMemGetInfo(&free_now, &total); a->memory = (double)free_now;
    need(gpts_gpu_attach(&a->m, 0) == GPTS_OK, a->m.error);
    need(gpts_trainer_init(&a->t, &a->m, &o) == GPTS_OK, a->t.error);
}

static void update(arm *a, const int32_t *tokens, size_t B, size_t T, int accum, double *loss)
{
    gpts_batch batch;
    int i;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.targets = tokens + 1; batch.B = B; batch.T = T;
    for (i = 0; i < accum; i++) need(gpts_trainer_accumulate(&a->t, &batch, NULL) == GPTS_OK, a->t.error);
    need(gpts_trainer_apply(&a->t, loss) == GPTS_OK, a->t.error);
    cudaDeviceSynchronize();
}
static int ascending(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }

int main(int argc, char **argv)
{
    size_t B = 8, T = 4096, i;
    int accum = 15, rounds = 3, profile = 0, replay = 1, r, k, n = 0;
    const char *only = NULL, *files[ARMS];
    int n_files = 0;
    static arm arms[ARMS];
    int32_t *tokens;
    gpts_rng rng = { 3, 0 };
    double loss = 0, base = 0;
    for (k = 1; k < argc; k++) {
        if (!strncmp(argv[k], "--B=", 4)) B = (size_t)atoi(argv[k] + 4);
        else if (!strncmp(argv[k], "--T=", 4)) T = (size_t)atoi(argv[k] + 4);
        else if (!strncmp(argv[k], "--accum=", 8)) accum = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--rounds=", 9)) rounds = atoi(argv[k] + 9);
        else if (!strncmp(argv[k], "--only=", 7)) only = argv[k] + 7;
        else if (!strncmp(argv[k], "--layers=", 9)) layers = atoi(argv[k] + 9);
        else if (!strncmp(argv[k], "--width=", 8)) width = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--heads=", 8)) n_heads = atoi(argv[k] + 8);
        else if (!strncmp(argv[k], "--vocabulary=", 13)) vocabulary = atoi(argv[k] + 13);
        else if (!strncmp(argv[k], "--model=", 8) && n_files < ARMS) files[n_files++] = argv[k] + 8;
        else if (!strcmp(argv[k], "--profile")) profile = 1;
        else if (!strcmp(argv[k], "--no-replay")) replay = 0;
        else need(0, "unknown argument");
    }
    if (rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
    setvbuf(stdout, NULL, _IOLBF, 0);
    tokens = (int32_t *)malloc((B * T + 1) * sizeof *tokens);
    for (i = 0; i <= B * T; i++) tokens[i] = (int32_t)gpts_rng_below(&rng, (uint64_t)vocabulary);
    for (k = 0; k < ARMS; k++) {
        size_t free_now, total;
        if (n_files ? k >= n_files : only && !strstr(only, names[k])) continue;
        if (n_files) arm_load(&arms[n], files[k]); else arm_make(&arms[n], k, T);
        if (!replay) ((gpts_ops *)(uintptr_t)arms[n].m.ops)->replay_begin = NULL;
        update(&arms[n], tokens, B, T, 3, &loss);
        cudaMemGetInfo(&free_now, &total); arms[n].memory -= (double)free_now;
        n++;
    }
    for (r = 0; r < rounds; r++)
        for (k = 0; k < n; k++) {
            double from = now();
            update(&arms[k], tokens, B, T, accum, &loss);
            arms[k].ms[r] = 1e3 * (now() - from);
        }
    printf("B %d, T %d, %d micro-batches, %d tokens an update; %d rounds\n", (int)B, (int)T, accum, (int)(B * T) * accum, rounds);
    for (k = 0; k < n; k++) {
        double lowest, median;
        qsort(arms[k].ms, (size_t)rounds, sizeof(double), ascending);
        lowest = arms[k].ms[0]; median = arms[k].ms[rounds / 2];
        if (k == 0) base = median;
        printf("  %-9s update %8.1f ms (lowest %8.1f)  micro-batch %7.2f ms  %8.0f tokens/s  x%.3f  %5.2f GiB\n", arms[k].name, median, lowest, median / accum,
               (double)(B * T) * accum / median * 1e3, base / median, arms[k].memory / 1073741824.0);
    }
    printf("  last loss %.4f\n", loss);
    for (k = 0; profile && k < n; k++) {
        gpts_ops *ops = (gpts_ops *)(uintptr_t)arms[k].m.ops;
        double from;
        update(&arms[k], tokens, B, T, accum, &loss);                 /* as warm as in the rounds */
        printf("  %s, one micro-batch and a step:\n", arms[k].name);
        profile_on(ops); update(&arms[k], tokens, B, T, 1, &loss); profile_off(ops);
        from = now();
        {
            gpts_batch batch;
            memset(&batch, 0, sizeof batch);
            batch.tokens = tokens; batch.targets = tokens + 1; batch.B = B; batch.T = T;
            need(gpts_trainer_accumulate(&arms[k].t, &batch, NULL) == GPTS_OK, arms[k].t.error);
            printf("    the host queues a micro-batch in %.2f ms\n", 1e3 * (now() - from));
        }
    }
    return 0;
}

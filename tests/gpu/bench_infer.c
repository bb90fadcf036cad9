/* bench_infer.c - inference on the GPU: decoding and prefill of GPT-2 124M, decoding of small hybrids, beside their bounds.

     build/tests/gpu/bench_infer [--decode] [--prefill] [--small] [--calibrate] [--tokens=128] [--quick]            (all without a choice)
     build/tests/gpu/bench_infer --model=FILE... [--B=1] [--T=4096]                                            prefill of these models

   124M: 12 layers, 12 heads, 768, vocabulary 50304, rotary positions, no biases, exact GELU, tied output, random weights.  Static heads
   lie as 9 9 6 6 3 3 0 ... (25 %) and 12 12 9 9 9 6 6 3 3 3 0 0 (50 %); linear: W = 256, 8 terms.  "free" is an oracle: y = v, no Q and K.
   Decoding: greedy, wall clock, tokens stay on the device; "host" samples each token on the host.  The bound is bytes: weights once, and what
   the heads keep, over the bandwidth of a large copy measured first (bytes read and written).  Prefill: last position's logits.  Calibration: all heads.  */
#define GPTSTATIC_IMPLEMENTATION
#include "../../gptstatic.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include <cuda_runtime_api.h>
#include <time.h>

static const int heads25[12] = { 9, 9, 6, 6, 3, 3, 0, 0, 0, 0, 0, 0 }, heads50[12] = { 12, 12, 9, 9, 9, 6, 6, 3, 3, 3, 0, 0 };
static double bandwidth = 4.3e12;
static size_t tokens = 128;
static int quick;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }
static void need(int ok, const char *why) { if (!ok) { fprintf(stderr, "bench_infer: %s\n", why); exit(1); } }

/* ---- the oracle: live heads by gpu.cu, y = v for the others, which come last ---- */
static void *prepared, *workspace;
static size_t prepared_bytes, workspace_bytes;
static int64_t prepared_T;
static void free_forward(void *device, const gpts_heads *h, void *y, gpts_real *lse, void *qkv, const int32_t *first, const int32_t *length, size_t B, size_t T, double scale, double theta)
{
    unsigned char kind[12], wide[12];
    gpts_gpu_attention a;
    int64_t D = (int64_t)h->D, U = (int64_t)h->U, K = (int64_t)h->K, row = (2 * U + K) * D, i;
    cudaStream_t stream = *(cudaStream_t *)device;                     /* the device's first member */
    size_t bytes, fixed = (size_t)(K - U) * (size_t)D * 2;
    (void)first; (void)length;
    for (i = 0; i < 12; i++) kind[i] = i < U ? GPTS_GPU_LIVE : GPTS_GPU_PRUNED;
    memset(&a, 0, sizeof a);
    a.type = GPTS_GPU_BF16; a.D = (int)D; a.B = (int64_t)B; a.T = (int64_t)T; a.H = 12; a.kind = kind; a.wide = wide; a.theta = theta; a.rotated = 1; a.scale = (float)scale;
    a.lse = lse; a.stream = stream;
    a.q.data = qkv; a.q.h = D; a.q.t = row; a.q.b = (int64_t)T * row;
    a.k = a.v = a.q; a.k.data = (char *)qkv + U * D * 2; a.v.data = (char *)qkv + 2 * U * D * 2;
    a.y.data = y; a.y.h = D; a.y.t = K * D; a.y.b = (int64_t)T * K * D;
    if (U) {
        bytes = gpts_gpu_attention_prepared_size(&a);
        if (bytes > prepared_bytes || prepared_T != a.T) {
            cudaDeviceSynchronize(); cudaFree(prepared); cudaMalloc(&prepared, bytes); prepared_bytes = bytes; prepared_T = a.T;
            a.prepared = prepared; a.prepared_bytes = bytes;
            need(gpts_gpu_attention_prepare(&a) == GPTS_GPU_OK, a.error);
        }
        a.prepared = prepared; a.prepared_bytes = prepared_bytes;
        bytes = gpts_gpu_attention_workspace_size(&a, 0);
        if (bytes > workspace_bytes) { cudaDeviceSynchronize(); cudaFree(workspace); cudaMalloc(&workspace, bytes); workspace_bytes = bytes; }
        a.workspace = workspace; a.workspace_bytes = workspace_bytes;
        need(gpts_gpu_attention_rotate(&a, NULL) == GPTS_GPU_OK && gpts_gpu_attention_forward(&a) == GPTS_GPU_OK, a.error);
    }
    if (fixed) cudaMemcpy2DAsync((char *)y + U * D * 2, (size_t)(K * D) * 2, (char *)qkv + 3 * U * D * 2, (size_t)row * 2, fixed, B * T, cudaMemcpyDeviceToDevice, stream);
}
static void no_fill(void *device, const gpts_heads *heads, gpts_cache *cache, const void *qkv, const int32_t *length, size_t T)
{
    (void)device; (void)heads; (void)cache; (void)qkv; (void)length; (void)T;
}

/* ---- models ---- */
static void make(gpts_model *m, const gpts_config *config, int share, size_t S, int oracle, int type)
{
    gptsi_layer_shape *shapes;
    size_t L = (size_t)config->n_layer, H = (size_t)config->n_head, l, h, i, R = 8;
    static int32_t start[12];
    gpts_rng rng = { 5, 0 };
    need(gpts_model_init(m, config, 1, NULL) == GPTS_OK, m->error);
    if (share) {
        need((shapes = gptsi_shapes_of(m)) != NULL, "memory");
        for (h = 0; h < 12; h++) start[h] = (int32_t)(oracle ? S : 256);
        for (l = 0; l < L; l++) {
            int n = share == 25 ? heads25[l] : share == 50 ? heads50[l] : (int)H;
            for (h = 0; h < H; h++) shapes[l].kind[h] = (int8_t)((int)h >= (int)H - n ? GPTSI_STATIC : GPTSI_LIVE);
            if (n) { shapes[l].S = S; shapes[l].R = R; shapes[l].tails = 1; shapes[l].tail_start = start; }
        }
        need(gptsi_model_reshape(m, NULL, shapes) == GPTS_OK, m->error);
        gptsi_delete(&m->hooks, shapes);
        for (i = 0; i < m->n_tensors; i++) {
            gpts_tensor *t = &m->tensors[i];
            size_t e;
            if (t->kind == GPTS_P_ALPHA) for (e = 0; e < t->size; e++) t->data[e] = (float)(0.5 * gpts_rng_normal(&rng));
            if (t->kind == GPTS_P_RHO) for (e = 0; e < t->size; e++) t->data[e] = (float)(-0.7 * log(1.0 + (double)(e % S)) + 0.1 * gpts_rng_normal(&rng));
            if (t->kind == GPTS_P_TAIL_COEF) for (e = 0; e < t->size; e++) t->data[e] = 0.01f * (float)(1 + e % R);
            if (t->kind == GPTS_P_TAIL_DECAY) for (e = 0; e < t->size; e++) t->data[e] = (float)(1 - 0.02 / (1 + (double)(e % R)));
        }
    }
    need(gpts_gpu_attach_precision(m, 0, type) == GPTS_OK, m->error);
}
static gpts_config gpt2(size_t positions)
{
    gpts_config c = gpts_config_default();
    c.vocab_size = 50304; c.n_positions = (int64_t)positions; c.position = GPTS_POSITION_ROPE; c.bias = 0; c.activation = GPTS_GELU_ERF;
    return c;
}
static int32_t *random_ids(size_t n, int64_t V)
{
    int32_t *ids = (int32_t *)malloc(n * 4); gpts_rng rng = { 11, 0 }; size_t i;
    for (i = 0; i < n; i++) ids[i] = (int32_t)gpts_rng_below(&rng, (uint64_t)V);
    return ids;
}
/* bytes of one step: weights once, keys and values of live heads, near values and states of linear ones */
static double step_bytes(const gpts_model *m, size_t B, size_t position)
{
    double bytes = 0, a = (double)m->ops->activation_bytes; size_t i, l, s;
    for (i = 0; i < m->n_tensors; i++) if (m->tensors[i].rank == 2 && m->tensors[i].kind != GPTS_P_WPE && (m->tensors[i].kind < GPTS_P_ALPHA || m->tensors[i].kind > GPTS_P_TAIL_DECAY)) bytes += a * (double)m->tensors[i].size;
    if (!m->config.tie_word_embeddings) bytes -= a * (double)m->tensors[0].size;
    for (l = 0; l < (size_t)m->config.n_layer; l++) {
        const gpts_heads *h = &m->layers[l].heads;
        bytes += a * (double)B * (double)h->U * 2 * (double)h->D * (double)position;
        for (s = 0; s < h->n; s++) bytes += (double)B * (double)h->D * (a * (double)gptsi_min(position, (size_t)h->tail_start[s] + 64) + 4.0 * (double)h->R);
    }
    return bytes;
}

/* ---- decoding: tokens a second after `position` ---- */
typedef struct result { double greedy, host, operations; } result;
static result decode(gpts_model *m, size_t B, size_t position, int with_operations)
{
    gpts_session s; size_t V = (size_t)m->config.vocab_size, i, b, round, n = tokens, room = position + 6 * n + 64;
    int32_t *ids = random_ids(B * position, (int64_t)V), *out = (int32_t *)malloc(n * B * 4), *one = (int32_t *)malloc(B * 4);
    double best = 0, t; result r = { 0, 0, 0 }; gpts_ops table; const gpts_ops *old = m->ops;
    need(gpts_session_init(&s, m, B, room, NULL) == GPTS_OK, s.error);
    /* a cache at `position` without the activations of a whole prefill: rows one by one would do as well */
    if (position > 1) {
        size_t T = B * position > (size_t)1 << 19 ? ((size_t)1 << 19) / B : position;
        need(gpts_session_prefill(&s, ids, T, NULL) == GPTS_OK, s.error);
        for (b = 0; b < B; b++) s.position[b] = (int32_t)position;    /* what is beyond T is zeros: as good as any for timing */
    }
    for (round = 0; round < 3; round++) {
        t = now();
        need(gpts_session_greedy(&s, out, n) == GPTS_OK, s.error);
        t = now() - t;
        if (round && (double)n / t > best) best = (double)n / t;
    }
    r.greedy = best * (double)B;
    t = now();
    for (i = 0; i < n / 2; i++) {
        for (b = 0; b < B; b++) one[b] = gpts_sample(s.logits + b * V, V, NULL, NULL);
        need(gpts_session_decode(&s, one) == GPTS_OK, s.error);
    }
    r.host = (double)(B * (n / 2)) / (now() - t);
    if (with_operations && old->step) {
        table = *old; table.step = NULL; m->ops = &table;
        need(gpts_session_greedy(&s, out, gptsi_min(n, 8)) == GPTS_OK, s.error);
        t = now();
        for (i = 0; i < n / 4; i++) need(gpts_session_decode(&s, out) == GPTS_OK, s.error);
        r.operations = (double)(B * (n / 4)) / (now() - t);
        m->ops = old;
    }
    gpts_session_free(&s); free(ids); free(out); free(one);
    return r;
}
static void decode_all(void)
{
    static const int shares[4] = { 0, 25, 50, 100 };
    static const size_t batch[3] = { 1, 8, 64 }, at[2] = { 256, 4096 };
    size_t k, p, i; double base[3][2] = { { 0 } };
    printf("decode, GPT-2 124M, bf16: tokens/s      greedy   us/step   bound us  share   gain | sampled on the host   by operations\n");
    for (i = 0; i < (quick ? 1 : 4); i++) {
        gpts_model m; gpts_config c = gpt2(8192);
        make(&m, &c, shares[i], 4096, 0, GPTS_GPU_BF16);
        for (k = 0; k < (quick ? 1 : 3); k++) for (p = 0; p < 2; p++) {
            result r = decode(&m, batch[k], at[p], i == 0);
            double bound = step_bytes(&m, batch[k], at[p]) / bandwidth;
            if (i == 0) base[k][p] = r.greedy;
            printf("  %3d %% linear  B %2d  at %4d       %9.0f  %8.1f  %8.1f  %4.0f %%  %.3f | %9.0f %9.0f\n", shares[i], (int)batch[k], (int)at[p], r.greedy, 1e6 * (double)batch[k] / r.greedy, 1e6 * bound,
                   100 * bound * r.greedy / (double)batch[k], r.greedy / base[k][p], r.host, r.operations);
        }
        gpts_model_free(&m);
    }
}

/* ---- the small hybrids: the last two layers' attention replaced by C -> 4 C -> C, GELU ---- */
static void small_all(void)
{
    static const int layers[2] = { 4, 6 }, width[2] = { 256, 384 };
    int k, hybrid, type;
    printf("decode, small models, V 50257, 128 tokens after 128: tokens/s   greedy   us/step  bound us | on the host | bound ratio\n");
    for (k = quick; k < 2; k++) for (type = 0; type < 2; type++) {
        double plain = 0, first = 0;
        for (hybrid = 0; hybrid < 2; hybrid++) {
            gpts_config c = gpts_config_default(); gpts_model m; int l; result r; double bound; int precision = type ? GPTS_GPU_BF16 : GPTS_GPU_F32;
            c.n_layer = layers[k]; c.n_head = layers[k]; c.n_embd = width[k]; c.n_positions = 1024; c.activation = GPTS_GELU_ERF; c.approx_activation = GPTS_GELU_ERF; c.bias = 0;
            c.n_positions = 2048;
            need(gpts_model_init(&m, &c, 1, NULL) == GPTS_OK, m.error);
            for (l = layers[k] - 2; hybrid && l < layers[k]; l++) {
                gpts_approximator a; size_t C = (size_t)width[k], all = 8 * C * C + 5 * C, i; gpts_rng rng = { 3, 0 };
                memset(&a, 0, sizeof a);
                a.layer = l; a.C = C; a.window = 1; a.hidden = 4 * C; a.activation = GPTS_GELU_ERF;
                a.fc_w = (float *)malloc(all * 4); a.fc_b = a.fc_w + 4 * C * C; a.proj_w = a.fc_b + 4 * C; a.proj_b = a.proj_w + 4 * C * C;
                for (i = 0; i < all; i++) a.fc_w[i] = (float)(0.02 * gpts_rng_normal(&rng));
                need(gpts_approximator_install(&m, NULL, &a, 0) == GPTS_OK, m.error);
                free(a.fc_w);
            }
            need(gpts_gpu_attach_precision(&m, 0, precision) == GPTS_OK, m.error);
            r = decode(&m, 1, 128, 1); bound = step_bytes(&m, 1, 192) / bandwidth;
            if (!hybrid) { plain = r.greedy; first = bound; }
            printf("  %d layers, %d heads, %d, %s, %s    %8.0f  %7.1f  %6.1f | %8.0f  (operations %.0f)", layers[k], layers[k], width[k], type ? "bf16" : "fp32", hybrid ? "hybrid  " : "ordinary", r.greedy, 1e6 / r.greedy, 1e6 * bound, r.host, r.operations);
            if (hybrid) printf(" | gain %.3f, of bytes %.3f", r.greedy / plain, first / bound);
            printf("\n");
            gpts_model_free(&m);
        }
    }
}

/* ---- prefill ---- */
static double prefill(gpts_model *m, size_t B, size_t T, int oracle, size_t rounds)
{
    gpts_session s; gpts_ops table; const gpts_ops *old = m->ops; int32_t *ids = random_ids(B * T, m->config.vocab_size); double best = 1e9, t; size_t i;
    if (oracle) { table = *old; table.attention_forward = free_forward; table.cache_fill = no_fill; m->ops = &table; }
    if (oracle == 2) table.attention_forward = old->attention_forward;
    need(gpts_session_init(&s, m, B, T, NULL) == GPTS_OK, s.error);
    for (i = 0; i <= rounds; i++) {
        gpts_session_reset(&s);
        cudaDeviceSynchronize();
        t = now();
        need(gpts_session_prefill(&s, ids, T, NULL) == GPTS_OK, s.error);
        t = now() - t;
        if (i && t < best) best = t;
    }
    gpts_session_free(&s); free(ids);
    m->ops = old;
    return best;
}
static void prefill_all(void)
{
    static const int shares[4] = { 0, 25, 50, 100 };
    static const size_t batch[2] = { 1, 64 };
    size_t k, i; double base[2] = { 0, 0 };
    printf("prefill, GPT-2 124M, T = 4096, bf16: ms, lowest        session   gain | no cache kept | free oracle (no cache)  gain  share of it\n");
    for (i = 0; i < 4; i++) {
        gpts_model m, o; gpts_config c = gpt2(4096);
        if (quick && i == 3) break;
        make(&m, &c, shares[i], 4096, 0, GPTS_GPU_BF16);
        if (i) make(&o, &c, shares[i], 4096, 1, GPTS_GPU_BF16);
        for (k = 0; k < 2; k++) {
            static double plain[2];
            size_t rounds = batch[k] == 1 ? 20 : 4;       /* the second records a graph, or the third where tables were made first */
            double t = prefill(&m, batch[k], 4096, 0, rounds), bare = prefill(&m, batch[k], 4096, 2, rounds), oracle = i ? prefill(&o, batch[k], 4096, 1, rounds) : 0;
            if (!i) { base[k] = t; plain[k] = bare; }
            printf("  %3d %% linear  B %2d      %8.3f  %.3f | %8.3f", shares[i], (int)batch[k], 1e3 * t, base[k] / t, 1e3 * bare);
            if (i) printf("  %.3f | %8.3f  %.3f  %3.0f %%", plain[k] / bare, 1e3 * oracle, plain[k] / oracle, 100 * (plain[k] / bare - 1) / (plain[k] / oracle - 1));
            printf("\n");
        }
        gpts_model_free(&m);
        if (i) gpts_model_free(&o);
    }
}

/* models of files instead, the first as the measure */
static void prefill_files(const char **files, size_t n, size_t B, size_t T)
{
    size_t i; double base = 0;
    printf("prefill, B %d, T %d, bf16: ms, lowest        session   gain\n", (int)B, (int)T);
    for (i = 0; i < n; i++) {
        gpts_model m; double t;
        need(gpts_model_load(&m, files[i], NULL) == GPTS_OK, m.error);
        need(gpts_gpu_attach(&m, 0) == GPTS_OK, m.error);
        t = prefill(&m, B, T, 0, B == 1 ? 20 : 4);
        if (!i) base = t;
        printf("  %-40s  %8.3f  %.3f\n", strrchr(files[i], '/') ? strrchr(files[i], '/') + 1 : files[i], 1e3 * t, base / t);
        gpts_model_free(&m);
    }
}

/* ---- calibration ---- */
static void calibrate_all(void)
{
    gpts_model m; gpts_config c = gpt2(4096); gpts_calibration k; int32_t *ids = random_ids((size_t)64 * 4096, 50304); double t;
    make(&m, &c, 0, 4096, 0, GPTS_GPU_BF16);
    memset(&k, 0, sizeof k);
    t = now();
    need(gpts_calibrate(&k, &m, ids, 64, 4096) == GPTS_OK, k.error);
    printf("calibration, GPT-2 124M, 144 heads, T = 4096, 64 sequences: %.2f s (variance of head 0: %.3e)\n", now() - t, k.variance[0]);
    gpts_calibration_free(&k); gpts_model_free(&m); free(ids);
}

int main(int argc, char **argv)
{
    const char *files[8]; size_t n_files = 0, B = 1, T = 4096; int i, what = 0; void *a = NULL, *b = NULL; size_t bytes = (size_t)1 << 31; double t;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--decode")) what |= 1;
        else if (!strcmp(argv[i], "--prefill")) what |= 2;
        else if (!strcmp(argv[i], "--small")) what |= 4;
        else if (!strcmp(argv[i], "--calibrate")) what |= 8;
        else if (!strcmp(argv[i], "--quick")) quick = 1;
        else if (!strncmp(argv[i], "--tokens=", 9)) tokens = (size_t)atoi(argv[i] + 9);
        else if (!strncmp(argv[i], "--model=", 8) && n_files < 8) files[n_files++] = argv[i] + 8;
        else if (!strncmp(argv[i], "--B=", 4)) B = (size_t)atoi(argv[i] + 4);
        else if (!strncmp(argv[i], "--T=", 4)) T = (size_t)atoi(argv[i] + 4);
        else need(0, "unknown argument");
    }
    if (cudaMalloc(&a, bytes) == cudaSuccess && cudaMalloc(&b, bytes) == cudaSuccess) {
        for (i = 0; i < 2; i++) cudaMemcpy(a, b, bytes, cudaMemcpyDeviceToDevice);
        cudaDeviceSynchronize(); t = now();
        for (i = 0; i < 4; i++) cudaMemcpyAsync(a, b, bytes, cudaMemcpyDeviceToDevice, 0);
        cudaDeviceSynchronize(); bandwidth = 8.0 * (double)bytes / (now() - t);
        printf("a large copy moves %.2f TB/s, read and written\n", 1e-12 * bandwidth);
    }
    cudaFree(a); cudaFree(b);
    if (n_files) { prefill_files(files, n_files, B, T); return 0; }
    if (!what || what & 4) small_all();
    if (!what || what & 1) decode_all();
    if (!what || what & 2) prefill_all();
    if (!what || what & 8) calibrate_all();
    return 0;
}

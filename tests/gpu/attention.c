/* attention.c - gpu.cu's attention against dense attention in double on the CPU: values, gradients, every kind of head.

   Each case draws fresh random data, rounds it to the element type, poisons the outputs, runs forward and backward and
   compares every head of y, lse, dq, dk and dv by |a - b| / |b| over all sequences.                                     */
#define GPTS_REAL double
#define GPTSTATIC_STATIC
#define GPTSTATIC_IMPLEMENTATION
#include "../../gptstatic.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include "../test.h"
#include <cuda_runtime_api.h>

typedef struct { const char *kinds; int type, D; int64_t B, T, S; int W, R; double theta, spread; int pad, plain; float scale; double steep; } Case;

/* ---- element types ---- */
static uint64_t seed = 1;
static double uniform(void) { seed += 0x9E3779B97F4A7C15u; uint64_t x = seed; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u; x = (x ^ x >> 27) * 0x94D049BB133111EBu; return (double)((x ^ x >> 31) >> 11) / 9007199254740992.; }
static double normal(void) { double u = uniform() + 1e-300; return sqrt(-2 * log(u)) * cos(6.283185307179586 * uniform()); }
static size_t size_of(int type) { return type == GPTS_GPU_F32 ? 4 : 2; }
static double get(const void *p, int type, size_t i)
{
    if (type == GPTS_GPU_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    if (type == GPTS_GPU_BF16) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
    int e = h >> 10 & 31, m = h & 1023; double x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -x : x;
}
static void put(void *p, int type, size_t i, double x)
{
    if (type == GPTS_GPU_F32) { ((float *)p)[i] = (float)x; return; }
    float f = (float)x; uint32_t u; memcpy(&u, &f, 4);
    if (type == GPTS_GPU_BF16) { ((uint16_t *)p)[i] = (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16); return; }
    double a = fabs(x); int e = 0; frexp(a, &e); if (e < -13) e = -13;             /* fp16, normal range and below */
    double q = nearbyint(ldexp(a, 11 - e)); if (q >= 2048) { q /= 2; e++; }
    uint16_t h = q < 1024 ? (uint16_t)q : (uint16_t)((e + 14) << 10 | ((int)q & 1023));
    ((uint16_t *)p)[i] = (uint16_t)(h | (x < 0 ? 0x8000 : 0));
}

/* ---- one case ---- */
typedef struct { int U, n, kept, H; size_t row, rows; double *alpha, *rho; float *falpha, *frho, *coef, *decay; int tail[64]; unsigned char kind[64], wide[64]; } Side;

static double rho_of(const Case *c, const Side *s, int p, int kind, int64_t d)
{
    if (d < c->S && (kind != GPTS_GPU_LINEAR || d < s->tail[p])) return s->frho[p * c->S + d];
    double x = 0;
    for (int r = 0; r < c->R; r++) x += s->coef[p * c->R + r] * pow(s->decay[p * c->R + r], (double)(d - s->tail[p]));
    return log(x);
}
static void rotate(double *x, int D, double theta, int64_t t, int sign)
{
    for (int c = 0; c < D / 2; c++) {
        double a = (double)t * pow(theta, -2. * c / D), u = x[c], v = x[c + D / 2];
        x[c] = u * cos(a) - sign * v * sin(a); x[c + D / 2] = v * cos(a) + sign * u * sin(a);
    }
}
/* Dense attention of one head in double: q k v dy [T,D] -> y lse dq dk dv; mass: the squared size of what cancels in dq and dk */
static void dense(const Case *c, const Side *s, int live, int kind, int p, double scale, double *q, double *k, const double *v, const double *dy,
                  double *y, double *lse, double *dq, double *dk, double *dv, double mass[2])
{
    const int D = c->D; const int64_t T = c->T;
    double *P = malloc(sizeof *P * (size_t)T), *rho = NULL, *alpha = NULL;
    memset(y, 0, sizeof *y * (size_t)(T * D)); memset(dq, 0, sizeof *y * (size_t)(T * D)); memset(dk, 0, sizeof *y * (size_t)(T * D)); memset(dv, 0, sizeof *y * (size_t)(T * D));
    if (live && c->theta > 0) for (int64_t t = 0; t < T; t++) { rotate(q + t * D, D, c->theta, t, 1); rotate(k + t * D, D, c->theta, t, 1); }
    if (!live) {
        rho = malloc(sizeof *rho * (size_t)T); alpha = malloc(sizeof *alpha * (size_t)T);
        double mean = 0; for (int64_t t = c->S - c->S / 4; t < c->S; t++) mean += s->falpha[p * c->S + t];
        for (int64_t t = 0; t < T; t++) { rho[t] = rho_of(c, s, p, kind, t); alpha[t] = t < c->S ? s->falpha[p * c->S + t] : c->S / 4 ? mean / (double)(c->S / 4) : s->falpha[p * c->S + c->S - 1]; }
    }
    for (int64_t i = 0; i < T; i++) {
        double m = -INFINITY, l = 0, delta = 0;
        for (int64_t j = 0; j <= i; j++) {
            double x = 0;
            if (live) { for (int d = 0; d < D; d++) x += q[i * D + d] * k[j * D + d]; x *= scale; } else x = alpha[j] + rho[i - j];
            P[j] = x; if (x > m) m = x;
        }
        for (int64_t j = 0; j <= i; j++) l += P[j] = exp(P[j] - m);
        lse[i] = m + log(l);
        for (int64_t j = 0; j <= i; j++) { P[j] /= l; for (int d = 0; d < D; d++) y[i * D + d] += P[j] * v[j * D + d]; }
        if (live) for (int d = 0; d < D; d++) delta += dy[i * D + d] * y[i * D + d];
        for (int64_t j = 0; j <= i; j++) {
            for (int d = 0; d < D; d++) dv[j * D + d] += P[j] * dy[i * D + d];
            if (!live) continue;
            double g = 0; for (int d = 0; d < D; d++) g += dy[i * D + d] * v[j * D + d];
            double size = P[j] * (fabs(g) + fabs(delta)) * scale, k2 = 0, q2 = 0;
            for (int d = 0; d < D; d++) { k2 += k[j * D + d] * k[j * D + d]; q2 += q[i * D + d] * q[i * D + d]; }
            mass[0] += size * size * k2; mass[1] += size * size * q2;
            g = P[j] * (g - delta) * scale;
            for (int d = 0; d < D; d++) { dq[i * D + d] += g * k[j * D + d]; dk[j * D + d] += g * q[i * D + d]; }
        }
    }
    if (live && c->theta > 0) for (int64_t t = 0; t < T; t++) { rotate(dq + t * D, D, c->theta, t, -1); rotate(dk + t * D, D, c->theta, t, -1); }
    free(P); free(rho); free(alpha);
}

static void side_init(const Case *c, Side *s);
static void side_free(Side *s);

/* The reference's static heads are the header's, built with double reals. */
static void reference_is_the_headers(void)
{
    for (int linear = 0; linear < 2; linear++)
        for (int T = 1; T <= 700; T += 233) {
            Case c = { .kinds = linear ? "N" : "X", .D = 5, .B = 1, .T = T, .S = linear ? 300 : 700, .W = 40, .R = linear ? 6 : 0 };
            Side s; side_init(&c, &s);
            const size_t n = (size_t)T * 5, S = (size_t)c.S;
            double *x = calloc(8 * n + (size_t)T + 2 * S, sizeof *x), *y = x + n, *dy = x + 2 * n, *dv = x + 3 * n, *z = x + 4 * n, *zq = x + 5 * n, *zk = x + 6 * n, *zv = x + 7 * n;
            double *lse = x + 8 * n, *alpha = lse + T, *rho = alpha + S, coef[16], decay[16], mass[2] = { 0 };
            for (size_t i = 0; i < n; i++) { x[i] = normal(); dy[i] = normal(); }
            for (size_t i = 0; i < S; i++) { alpha[i] = s.falpha[i]; rho[i] = s.frho[i]; }
            for (int r = 0; r < c.R; r++) { coef[r] = s.coef[r]; decay[r] = s.decay[r]; }
            int32_t start = linear ? c.W : (int32_t)c.S;
            gpts_heads heads; memset(&heads, 0, sizeof heads);
            heads.H = heads.K = heads.n = 1; heads.D = 5; heads.S = S; heads.R = (size_t)c.R; heads.alpha = alpha; heads.rho = rho;
            if (linear) { heads.tail_start = &start; heads.tail_coef = coef; heads.tail_decay = decay; }
            t_status(gptsi_static_prepare(&heads, (size_t)T, NULL, NULL), GPTS_OK);
            unsigned char *scratch = malloc(gptsi_static_scratch(&heads));
            gptsi_static_forward(&heads, 0, (size_t)T, x, 5, y, 5, scratch, gptsi_static_scratch(&heads));
            gptsi_static_backward(&heads, 0, (size_t)T, dy, 5, dv, 5, scratch, gptsi_static_scratch(&heads));
            dense(&c, &s, 0, s.kind[0], 0, 1, NULL, NULL, x, dy, z, lse, zq, zk, zv, mass);
            for (size_t i = 0; i < n; i++) { t_close(y[i], z[i], 1e-9); t_close(dv[i], zv[i], 1e-9); }
            gptsi_static_discard(&heads, NULL); free(scratch); free(x); side_free(&s);
        }
}

static void *device(size_t bytes) { void *p = NULL; if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) { t_fail(__FILE__, __LINE__, "no device memory"); exit(1); } return p; }
static void *copied(const void *from, size_t bytes) { void *p = device(bytes); cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice); return p; }

static double worst[3][5];                                                          /* per type: y lse dq dk dv */

static void side_init(const Case *c, Side *s)
{
    memset(s, 0, sizeof *s); s->H = (int)strlen(c->kinds);
    for (int h = 0; h < s->H; h++) {
        char x = c->kinds[h]; s->kind[h] = x == 'L' ? GPTS_GPU_LIVE : x == 'X' ? GPTS_GPU_EXACT : x == 'N' ? GPTS_GPU_LINEAR : GPTS_GPU_PRUNED;
        if (x == 'L') s->U++; else if (x != 'P') { s->tail[s->n] = c->R ? c->W : (int)c->S; s->n++; }
    }
    s->kept = s->U + s->n; s->row = (size_t)((2 * s->U + s->kept) * c->D + c->pad); s->rows = (size_t)(c->B * c->T);
    size_t n = (size_t)(s->n * c->S) + 1, m = (size_t)(s->n * c->R) + 1;
    s->falpha = malloc(n * 4); s->frho = malloc(n * 4); s->coef = malloc(m * 4); s->decay = malloc(m * 4);
    for (int p = 0; p < s->n; p++) {
        for (int64_t t = 0; t < c->S; t++) {
            s->falpha[p * c->S + t] = (float)((c->spread > 0 ? c->spread : 0.5) * normal());
            s->frho[p * c->S + t] = (float)((c->spread > 0 ? c->spread : 0.3) * normal() - log(1. + (double)t) - c->steep * (double)t);
        }
        for (int r = 0; r < c->R; r++) {
            s->coef[p * c->R + r] = r == 3 ? 0.f : (float)(exp(normal()) * .1 / (1 + r)); s->decay[p * c->R + r] = r == c->R - 1 ? 1.f : (float)(1 - pow(2, -1 - r * .7));
        }
    }
}
static void side_free(Side *s) { free(s->falpha); free(s->frho); free(s->coef); free(s->decay); }

static void describe(const Case *c, char *text, size_t n)
{
    snprintf(text, n, "%s type %d D %d B %lld T %lld S %lld W %d R %d theta %g spread %g pad %d plain %d", c->kinds, c->type, c->D, (long long)c->B, (long long)c->T, (long long)c->S, c->W, c->R, c->theta, c->spread, c->pad, c->plain);
}

/* everything a call needs, on the device */
static void call_init(const Case *c, Side *s, gpts_gpu_attention *a, const void *x, const void *g, void **gradient, void **y)
{
    const size_t e = size_of(c->type), bytes = s->rows * s->row * e, ybytes = s->rows * (size_t)(s->kept * c->D) * e;
    memset(a, 0, sizeof *a);
    a->type = c->type; a->D = c->D; a->B = c->B; a->T = c->T; a->H = s->H; a->R = c->R; a->kind = s->kind; a->theta = c->theta; a->scale = c->scale; a->plain = c->plain;
    a->S = c->S; a->tail_start = s->tail; a->wide = s->wide;
    a->alpha = copied(s->falpha, (size_t)(s->n * c->S) * 4); a->rho = copied(s->frho, (size_t)(s->n * c->S) * 4);
    a->coef = copied(s->coef, (size_t)(s->n * c->R) * 4); a->decay = copied(s->decay, (size_t)(s->n * c->R) * 4);
    char *in = copied(x, bytes), *out = device(bytes);
    *gradient = out; *y = device(ybytes);
    cudaMemset(out, 0xFF, bytes); cudaMemset(*y, 0xFF, ybytes);
    gpts_gpu_tensor t = { in, (int64_t)s->row * c->T, (int64_t)s->row, c->D };
    a->q = t; a->k = t; a->v = t; a->dq = t; a->dk = t; a->dv = t;
    a->k.data = in + e * (size_t)(s->U * c->D); a->v.data = in + e * (size_t)(2 * s->U * c->D);
    a->dq.data = out; a->dk.data = out + e * (size_t)(s->U * c->D); a->dv.data = out + e * (size_t)(2 * s->U * c->D);
    gpts_gpu_tensor w = { *y, (int64_t)(s->kept * c->D) * c->T, s->kept * c->D, c->D };
    a->y = w; a->dy = w; a->dy.data = copied(g, ybytes);
    a->lse = device(s->rows * (size_t)s->U * 4); cudaMemset(a->lse, 0xFF, s->rows * (size_t)s->U * 4);
    a->prepared_bytes = gpts_gpu_attention_prepared_size(a); a->prepared = device(a->prepared_bytes); cudaMemset(a->prepared, 0xFF, a->prepared_bytes);
}
static void call_workspace(gpts_gpu_attention *a)
{
    size_t f = gpts_gpu_attention_workspace_size(a, 0), b = gpts_gpu_attention_workspace_size(a, 1);
    cudaFree(a->workspace); a->workspace_bytes = f > b ? f : b; a->workspace = device(a->workspace_bytes); cudaMemset(a->workspace, 0xFF, a->workspace_bytes);
}
static void call_free(gpts_gpu_attention *a)
{
    void *all[] = { (void *)a->alpha, (void *)a->rho, (void *)a->coef, (void *)a->decay, a->q.data, a->dq.data, a->y.data, a->dy.data, a->lse, a->prepared, a->workspace };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cudaFree(all[i]);
}
static void fill(void *p, int type, size_t n) { for (size_t i = 0; i < n; i++) put(p, type, i, normal()); }

static void run_case(Case c)
{
    Side s; char text[200]; side_init(&c, &s); describe(&c, text, sizeof text);
    const size_t e = size_of(c.type), D = (size_t)c.D, yrow = (size_t)s.kept * D;
    void *x = malloc(s.rows * s.row * e + 1), *g = malloc(s.rows * yrow * e + 1), *dev_grad, *dev_y;
    fill(x, c.type, s.rows * s.row); fill(g, c.type, s.rows * yrow);
    gpts_gpu_attention a; call_init(&c, &s, &a, x, g, &dev_grad, &dev_y);
    int bad = gpts_gpu_attention_prepare(&a) != GPTS_GPU_OK;
    if (!bad) { call_workspace(&a); bad = gpts_gpu_attention_forward(&a) != GPTS_GPU_OK || gpts_gpu_attention_backward(&a) != GPTS_GPU_OK; }
    cudaError_t ce = cudaDeviceSynchronize();
    if (bad || ce != cudaSuccess) { char m[400]; snprintf(m, sizeof m, "%s: %s %s", text, a.error, cudaGetErrorString(ce)); t_fail(__FILE__, __LINE__, m); if (ce != cudaSuccess) { printf("0 passed, 1 failed\n"); exit(1); } }
    void *y = malloc(s.rows * yrow * e + 1), *dx = malloc(s.rows * s.row * e + 1); float *lse = malloc(s.rows * (size_t)s.U * 4 + 1);
    cudaMemcpy(y, dev_y, s.rows * yrow * e, cudaMemcpyDeviceToHost); cudaMemcpy(dx, dev_grad, s.rows * s.row * e, cudaMemcpyDeviceToHost);
    cudaMemcpy(lse, a.lse, s.rows * (size_t)s.U * 4, cudaMemcpyDeviceToHost);
    const double scale = c.scale != 0 ? (double)c.scale : 1 / sqrt((double)c.D);
    double err[5] = { 0 }, (*sums)[5][2] = calloc((size_t)s.H, sizeof *sums);
    int64_t u = 0, p = 0, kept = 0, *ui = malloc(sizeof *ui * (size_t)s.H * 3);
    for (int h = 0; h < s.H; h++) { int k = s.kind[h]; ui[3 * h] = u; ui[3 * h + 1] = p; ui[3 * h + 2] = kept; u += k == GPTS_GPU_LIVE; p += k == GPTS_GPU_EXACT || k == GPTS_GPU_LINEAR; kept += k != GPTS_GPU_PRUNED; }
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t b = 0; b < c.B; b++)
        for (int h = 0; h < s.H; h++) {
            if (s.kind[h] == GPTS_GPU_PRUNED) continue;
            const int live = s.kind[h] == GPTS_GPU_LIVE; const size_t T = (size_t)c.T, n = T * D, base = (size_t)b * T;
            double *m = malloc(sizeof *m * (8 * n + T)), *q = m, *k = m + n, *v = m + 2 * n, *dy = m + 3 * n, *ry = m + 4 * n, *rq = m + 5 * n, *rk = m + 6 * n, *rv = m + 7 * n, *rl = m + 8 * n;
            const size_t oq = (size_t)ui[3 * h] * D, ok = oq + (size_t)s.U * D, ov = (size_t)(2 * s.U) * D + (size_t)ui[3 * h + 2] * D, oy = (size_t)ui[3 * h + 2] * D;
            for (size_t t = 0; t < T; t++)
                for (size_t d = 0; d < D; d++) {
                    size_t r = (base + t) * s.row;
                    if (live) { q[t * D + d] = get(x, c.type, r + oq + d); k[t * D + d] = get(x, c.type, r + ok + d); }
                    v[t * D + d] = get(x, c.type, r + ov + d); dy[t * D + d] = get(g, c.type, (base + t) * yrow + oy + d);
                }
            double mass[2] = { 0 };
            dense(&c, &s, live, s.kind[h], (int)ui[3 * h + 1], scale, q, k, v, dy, ry, rl, rq, rk, rv, mass);
            double d2[5] = { 0 }, n2[5] = { 0 };
            if (T < 16 || D < 16) { n2[2] = mass[0]; n2[3] = mass[1]; }                            /* so few terms that dq and dk mostly cancel */
            for (size_t t = 0; t < T; t++) {
                for (size_t d = 0; d < D; d++) {
                    size_t r = (base + t) * s.row, i = t * D + d;
                    double w[5] = { get(y, c.type, (base + t) * yrow + oy + d), 0, live ? get(dx, c.type, r + oq + d) : 0, live ? get(dx, c.type, r + ok + d) : 0, get(dx, c.type, r + ov + d) };
                    double z[5] = { ry[i], 0, rq[i], rk[i], rv[i] };
                    for (int f = 0; f < 5; f++) { d2[f] += (w[f] - z[f]) * (w[f] - z[f]); n2[f] += z[f] * z[f] + 1e-6; }
                }
                if (live) { double w = lse[((size_t)b * (size_t)s.U + (size_t)ui[3 * h]) * T + t]; d2[1] += (w - rl[t]) * (w - rl[t]); n2[1] += rl[t] * rl[t] + 1e-2; }
            }
#pragma omp critical
            for (int f = 0; f < 5; f++) { sums[h][f][0] += d2[f]; sums[h][f][1] += n2[f]; }
            free(m);
        }
    for (int h = 0; h < s.H; h++)
        for (int f = 0; f < 5; f++) { double r = sums[h][f][1] > 0 ? sqrt(sums[h][f][0] / sums[h][f][1]) : 0; if (!(r <= err[f])) err[f] = r; }
    const double limit = c.type == GPTS_GPU_F32 ? 1e-5 : c.type == GPTS_GPU_F16 ? 1e-3 : 6e-3;
    for (int f = 0; f < 5; f++) {
        if (!(err[f] <= worst[c.type][f])) worst[c.type][f] = err[f];
        if (!(err[f] <= (f == 1 && c.type ? 2e-3 : limit))) { char m[400]; static const char *names[] = { "y", "lse", "dq", "dk", "dv" }; snprintf(m, sizeof m, "%s: %s off by %.3g", text, names[f], err[f]); t_fail(__FILE__, __LINE__, m); }
    }
    call_free(&a); side_free(&s); free(x); free(g); free(y); free(dx); free(lse); free(ui); free(sums);
}

static const int SIZES[] = { 1, 7, 40, 64, 72, 80, 96, 128, 192, 256 };
static int light;                                                                   /* fewer shapes, for compute-sanitizer */
static int have(void) { int n = 0; if (cudaGetDeviceCount(&n) != cudaSuccess || !n) { t_skip("no GPU"); return 0; } return 1; }
#define NEED_GPU if (!have()) return

static void every_length(void)
{
    NEED_GPU;
    for (int T = 1; T <= 130; T += light ? 43 : 1)
        for (int type = 0; type < 3; type++)
            run_case((Case){ .kinds = "LXNPL", .type = type, .D = T % 3 == 0 ? 128 : T % 3 == 1 ? 64 : 96, .B = 1 + T % 5, .T = T, .S = 200, .W = 1 + T % 70, .R = 1 + T % 16 });
}
static void every_head_size(void)
{
    NEED_GPU;
    for (int i = 0; i < 10; i += light ? 3 : 1)
        for (int type = 0; type < 3; type++)
            for (int T = 1; T <= 257; T += 64)
                run_case((Case){ .kinds = "NLXL", .type = type, .D = SIZES[i], .B = 3, .T = T, .S = 300, .W = 64, .R = 8, .theta = SIZES[i] % 2 ? 0 : 10000 });
}
static void long_sequences(void)
{
    NEED_GPU;
    static const int D[] = { 64, 96, 128 };
    for (int i = 0; i < (light ? 1 : 3); i++)
        for (int type = light ? 2 : 0; type < 3; type++) {
            run_case((Case){ .kinds = "LNXN", .type = type, .D = D[i], .B = 2, .T = 1000, .S = 1024, .W = 64, .R = 16, .theta = i == 1 ? 10000 : 0 });
            run_case((Case){ .kinds = "NXL", .type = type, .D = D[i], .B = 5, .T = 257, .S = 300, .W = 256, .R = 3 });
        }
    for (int T = 513; T < 1100; T += light ? 293 : 37)                                  /* the linear form's states, at every W */
        run_case((Case){ .kinds = "NN", .type = 1 + T % 2, .D = T % 3 == 0 ? 128 : T % 3 == 1 ? 64 : 96, .B = 1 + T % 5, .T = T, .S = 1100, .W = 1 + (T * 7) % 256, .R = 1 + T % 16 });
    if (light) return;
    for (int type = 0; type < 3; type++) run_case((Case){ .kinds = "LXN", .type = type, .D = 64, .B = 1, .T = 4096, .S = 4096, .W = 200, .R = 12 });
    run_case((Case){ .kinds = "XLN", .type = 2, .D = 128, .B = 1, .T = 4096, .S = 5000, .W = 64, .R = 8, .theta = 10000 });
}
static void all_of_one_kind(void)
{
    NEED_GPU;
    static const char *kinds[] = { "LLL", "XX" "X", "NNN", "XN", "P", "PLP", "L", "X", "N" };
    for (int i = 0; i < 9; i++)
        for (int type = 0; type < 3; type++) run_case((Case){ .kinds = kinds[i], .type = type, .D = 64, .B = 2, .T = 333, .S = 512, .W = 32, .R = 4 });
}
static void past_the_pattern(void)
{
    NEED_GPU;
    for (int type = 0; type < 3; type++)
        for (int S = 40; S <= 280; S += 120) run_case((Case){ .kinds = "XLN", .type = type, .D = 64, .B = 2, .T = 700, .S = S, .W = 32, .R = 6 });
    run_case((Case){ .kinds = "XN", .type = 2, .D = 96, .B = 4, .T = 300, .S = 3, .W = 2, .R = 6 });
}
static void wide_patterns(void)                                                     /* alpha and rho of deviation 40 */
{
    NEED_GPU;
    for (int type = 0; type < 3; type++)
        for (int T = 1; T <= 515; T += 257) run_case((Case){ .kinds = "XNLX", .type = type, .D = 64, .B = 2, .T = T, .S = 600, .W = 64, .R = 8, .spread = 40 });
    for (int type = 0; type < 3; type++) run_case((Case){ .kinds = "XN", .type = type, .D = 64, .B = 2, .T = 300, .S = 600, .W = 64, .R = 8, .spread = 4 });
    for (int type = 0; type < 3; type++) run_case((Case){ .kinds = "XX", .type = type, .D = 64, .B = 2, .T = 1000, .S = 1000, .steep = .5 });
}
static void long_tables_and_many_terms(void)                                        /* W > 256, R > 16: computed by all tiles */
{
    NEED_GPU;
    run_case((Case){ .kinds = "NLN", .type = 2, .D = 64, .B = 2, .T = 900, .S = 700, .W = 300, .R = 4 });
    run_case((Case){ .kinds = "NLN", .type = 2, .D = 64, .B = 2, .T = 900, .S = 700, .W = 30, .R = 40 });
    run_case((Case){ .kinds = "NLN", .type = 0, .D = 64, .B = 1, .T = 300, .S = 200, .W = 30, .R = 40 });
}
static void linear_heads_in_chains(void)                                           /* heads and sequences enough for blocks that take some from end to end */
{
    NEED_GPU;
    run_case((Case){ .kinds = "NNNNNNLNNNNNN", .type = 2, .D = 64, .B = 15, .T = light ? 600 : 1100, .S = 1100, .W = 256, .R = 8 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 1, .D = 64, .B = 7, .T = 700, .S = 512, .W = 100, .R = 16 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNNNNNNL", .type = 2, .D = 64, .B = 11, .T = 150, .S = 96, .W = 30, .R = 3 });
    if (light) return;
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 2, .D = 64, .B = 7, .T = 1100, .S = 1100, .W = 256, .R = 9 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 1, .D = 48, .B = 13, .T = 1217, .S = 1100, .W = 65, .R = 8 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNXL", .type = 2, .D = 96, .B = 7, .T = 1664, .S = 1000, .W = 64, .R = 8 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 2, .D = 128, .B = 4, .T = 1025, .S = 1025, .W = 1, .R = 12 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 1, .D = 88, .B = 8, .T = 897, .S = 900, .W = 250, .R = 3, .pad = 8 });
    run_case((Case){ .kinds = "NNNNNNNNNNNNL", .type = 2, .D = 128, .B = 7, .T = 769, .S = 900, .W = 200, .R = 8 });
}
static void any_stride_and_scale(void)
{
    NEED_GPU;
    for (int type = 0; type < 3; type++) {
        run_case((Case){ .kinds = "LXN", .type = type, .D = 64, .B = 2, .T = 150, .S = 150, .W = 16, .R = 4, .pad = 8 });
        run_case((Case){ .kinds = "LXN", .type = type, .D = 64, .B = 2, .T = 150, .S = 150, .W = 16, .R = 4, .pad = 3, .scale = -.05f });
        run_case((Case){ .kinds = "LXN", .type = type, .D = 64, .B = 2, .T = 150, .S = 150, .W = 16, .R = 4, .plain = 1, .scale = .3f, .theta = 500 });
    }
}
static void more_than_65535_heads(void)
{
    NEED_GPU;
    run_case((Case){ .kinds = "LXLNLLLXN", .type = 2, .D = 8, .B = light ? 20 : 8192, .T = 3, .S = 8, .W = 2, .R = 2 });
    run_case((Case){ .kinds = "LXLNLLLXN", .type = 0, .D = 3, .B = light ? 20 : 8192, .T = 3, .S = 8, .W = 2, .R = 2 });
}
/* T = 131072 with offsets past 2^31 elements: the last sequence's last rows against sums over all keys; dk and dv of the last keys
   need those rows only.  Memory holds one random block again and again, so that the host knows every element. */
static void repeat(char *to, size_t bytes, const void *block, size_t block_bytes)
{
    cudaMemcpy(to, block, block_bytes < bytes ? block_bytes : bytes, cudaMemcpyHostToDevice);
    for (size_t n = block_bytes; n < bytes; n *= 2) cudaMemcpy(to + n, to, n < bytes - n ? n : bytes - n, cudaMemcpyDeviceToDevice);
}
static void longest_sequences_and_offsets(void)
{
    NEED_GPU;
    if (light) { t_skip("too long here"); return; }
    enum { D = 128, LAST = 8, BLOCK = 1048583 };
    Case c = { .kinds = "LXNXLXN", .type = 2, .D = D, .B = 12, .T = 131072, .S = 131072, .W = 64, .R = 8 };
    Side s; side_init(&c, &s);
    const size_t rows = s.rows, yrow = (size_t)(s.kept * D), bytes = rows * s.row * 2, ybytes = rows * yrow * 2, T = (size_t)c.T;
    uint16_t *block = malloc(BLOCK * 2), *y = malloc(LAST * yrow * 2), *dx = malloc(LAST * s.row * 2); float *lse = malloc(T * (size_t)s.U * 4);
    fill(block, 2, BLOCK);
    gpts_gpu_attention a; memset(&a, 0, sizeof a);
    a.type = 2; a.D = D; a.B = c.B; a.T = c.T; a.H = s.H; a.R = c.R; a.kind = s.kind; a.S = c.S; a.tail_start = s.tail; a.wide = s.wide;
    a.alpha = copied(s.falpha, (size_t)(s.n * c.S) * 4); a.rho = copied(s.frho, (size_t)(s.n * c.S) * 4); a.coef = copied(s.coef, (size_t)(s.n * c.R) * 4); a.decay = copied(s.decay, (size_t)(s.n * c.R) * 4);
    char *in = device(bytes), *out = device(bytes), *dy = device(ybytes), *dev_y = device(ybytes);
    repeat(in, bytes, block, BLOCK * 2); repeat(dy, ybytes, block, BLOCK * 2); cudaMemset(out, 0xFF, bytes); cudaMemset(dev_y, 0xFF, ybytes);
    gpts_gpu_tensor t = { in, (int64_t)s.row * c.T, (int64_t)s.row, D }, w = { dev_y, (int64_t)yrow * c.T, (int64_t)yrow, D };
    a.q = a.k = a.v = a.dq = a.dk = a.dv = t; a.y = a.dy = w; a.dy.data = dy;
    a.k.data = in + 2 * (size_t)(s.U * D); a.v.data = in + 4 * (size_t)(s.U * D); a.dq.data = out; a.dk.data = out + 2 * (size_t)(s.U * D); a.dv.data = out + 4 * (size_t)(s.U * D);
    a.lse = device(rows * (size_t)s.U * 4); a.prepared_bytes = gpts_gpu_attention_prepared_size(&a); a.prepared = device(a.prepared_bytes);
    t_status(gpts_gpu_attention_prepare(&a), GPTS_GPU_OK); call_workspace(&a);
    t_status(gpts_gpu_attention_forward(&a), GPTS_GPU_OK); t_status(gpts_gpu_attention_backward(&a), GPTS_GPU_OK);
    t_ok(cudaDeviceSynchronize() == cudaSuccess);
    cudaMemcpy(y, dev_y + (rows - LAST) * yrow * 2, LAST * yrow * 2, cudaMemcpyDeviceToHost); cudaMemcpy(dx, out + (rows - LAST) * s.row * 2, LAST * s.row * 2, cudaMemcpyDeviceToHost);
    for (int h = 0, u = 0, p = 0, kept = 0; h < s.H; h++, kept++) {
        const int live = s.kind[h] == GPTS_GPU_LIVE;
        const size_t first = rows - T, oq = (size_t)u * D, ok = oq + (size_t)s.U * D, ov = (size_t)(2 * s.U) * D + (size_t)kept * D, oy = (size_t)kept * D;
        double *P = malloc(sizeof *P * T), *rho = malloc(sizeof *rho * T), e2[4] = { 0 }, n2[4] = { 0 }, ry[D], rq[D], (*rk)[D] = calloc(LAST, sizeof *rk), (*rv)[D] = calloc(LAST, sizeof *rv);
        if (!live) for (size_t d = 0; d < T; d++) rho[d] = rho_of(&c, &s, p, s.kind[h], (int64_t)d);
#define X(t, o) get(block, 2, ((first + (t)) * s.row + (o)) % BLOCK)
#define G(t, o) get(block, 2, ((first + (t)) * yrow + (o)) % BLOCK)
        for (size_t i = T - LAST; i < T; i++) {
            double m = -INFINITY, l = 0, delta = 0;
#pragma omp parallel for reduction(max:m)
            for (size_t j = 0; j <= i; j++) {
                double x = 0;
                if (live) { for (size_t d = 0; d < D; d++) x += X(i, oq + d) * X(j, ok + d); x /= sqrt(D); } else x = (double)s.falpha[(size_t)p * T + j] + rho[i - j];
                P[j] = x; if (x > m) m = x;
            }
            for (size_t j = 0; j <= i; j++) l += P[j] = exp(P[j] - m);
            for (size_t d = 0; d < D; d++) {
                double x = 0;
#pragma omp parallel for reduction(+:x)
                for (size_t j = 0; j <= i; j++) x += P[j] / l * X(j, ov + d);
                ry[d] = x; delta += x * G(i, oy + d); rq[d] = 0;
            }
            for (size_t j = live ? 0 : T - LAST; j <= i; j++) {
                double g = 0;
                if (live) for (size_t d = 0; d < D; d++) g += G(i, oy + d) * X(j, ov + d);
                for (size_t d = 0; d < D && live; d++) rq[d] += P[j] / l * (g - delta) * X(j, ok + d) / sqrt(D);
                if (j >= T - LAST) for (size_t d = 0; d < D; d++) {
                    rv[j - (T - LAST)][d] += P[j] / l * G(i, oy + d);
                    if (live) rk[j - (T - LAST)][d] += P[j] / l * (g - delta) * X(i, oq + d) / sqrt(D);
                }
            }
            for (size_t d = 0; d < D; d++) {
                const size_t r = i - (T - LAST); double z = get(y, 2, r * yrow + oy + d) - ry[d]; e2[0] += z * z; n2[0] += ry[d] * ry[d];
                if (live) { z = get(dx, 2, r * s.row + oq + d) - rq[d]; e2[1] += z * z; n2[1] += rq[d] * rq[d]; }
            }
        }
        for (size_t r = 0; r < LAST; r++)
            for (size_t d = 0; d < D; d++) {
                double z = get(dx, 2, r * s.row + ov + d) - rv[r][d]; e2[3] += z * z; n2[3] += rv[r][d] * rv[r][d];
                if (live) { z = get(dx, 2, r * s.row + ok + d) - rk[r][d]; e2[2] += z * z; n2[2] += rk[r][d] * rk[r][d]; }
            }
        for (int f = 0; f < 4; f++) if (!(sqrt(e2[f]) <= 1e-2 * sqrt(n2[f]))) { char text[100]; snprintf(text, sizeof text, "head %d, part %d: off by %.3g", h, f, sqrt(e2[f] / n2[f])); t_fail(__FILE__, __LINE__, text); }
        free(P); free(rho); free(rk); free(rv);
        if (live) u++; else p++;
    }
    call_free(&a); side_free(&s); free(block); free(y); free(dx); free(lse);
}
static void same_bits_again(void)
{
    NEED_GPU;
    for (int D = 64; D <= 128; D += 32) {
        Case c = { .kinds = "LNXLN", .type = 2, .D = D, .B = 5, .T = light ? 300 : 1900, .S = 2048, .W = 64, .R = 16 };
        Side s; side_init(&c, &s);
        const size_t n = s.rows * s.row, m = s.rows * (size_t)(s.kept * D);
        uint16_t *x = malloc(n * 2), *g = malloc(m * 2), *first = malloc((n + m) * 2), *again = malloc((n + m) * 2); void *dg, *y;
        for (size_t i = 0; i < n; i++) put(x, 2, i, uniform() - .5);
        for (size_t i = 0; i < m; i++) put(g, 2, i, uniform() - .5);
        gpts_gpu_attention a; call_init(&c, &s, &a, x, g, &dg, &y);
        t_status(gpts_gpu_attention_prepare(&a), GPTS_GPU_OK); call_workspace(&a);
        for (int r = 0; r < (light ? 2 : 100); r++) {
            cudaMemset(a.workspace, r, a.workspace_bytes); cudaMemset(dg, 0xFF, n * 2); cudaMemset(y, 0xFF, m * 2);
            t_status(gpts_gpu_attention_forward(&a), GPTS_GPU_OK); t_status(gpts_gpu_attention_backward(&a), GPTS_GPU_OK);
            cudaMemcpy(r ? again : first, dg, n * 2, cudaMemcpyDeviceToHost); cudaMemcpy((r ? again : first) + n, y, m * 2, cudaMemcpyDeviceToHost);
            if (r) t_ok(!memcmp(first, again, (n + m) * 2));
        }
        call_free(&a); side_free(&s); free(x); free(g); free(first); free(again);
    }
}
static void refusals_leave_outputs_untouched(void)
{
    NEED_GPU;
    Case c = { .kinds = "LX", .type = 2, .D = 64, .B = 1, .T = 100, .S = 100, .W = 32, .R = 0 };
    Side s; side_init(&c, &s);
    uint16_t x[100 * 64 * 4] = { 0 }, g[100 * 128] = { 0 }, y[100 * 128]; void *dg, *dy;
    gpts_gpu_attention a, b; call_init(&c, &s, &a, x, g, &dg, &dy);
    t_status(gpts_gpu_attention_prepare(&a), GPTS_GPU_OK); call_workspace(&a);
    b = a; b.T = 101; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_UNSUPPORTED); t_ok(b.error[0]);
    b = a; b.D = 257; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_UNSUPPORTED);
    b = a; b.T = 131073; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_UNSUPPORTED);
    b = a; b.D = 63; b.theta = 10000; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_BAD_ARGUMENT);
    b = a; b.workspace_bytes = 0; t_status(gpts_gpu_attention_backward(&b), GPTS_GPU_BAD_ARGUMENT);
    b = a; b.prepared_bytes = 5; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_BAD_ARGUMENT);
    b = a; b.type = 7; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_BAD_ARGUMENT);
    b = a; b.lse = NULL; t_status(gpts_gpu_attention_forward(&b), GPTS_GPU_BAD_ARGUMENT);
    s.kind[1] = GPTS_GPU_LINEAR; t_status(gpts_gpu_attention_forward(&a), GPTS_GPU_BAD_ARGUMENT);
    cudaDeviceSynchronize(); cudaMemcpy(y, dy, sizeof y, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 100 * 128; i++) if (y[i] != 0xFFFF) { t_fail(__FILE__, __LINE__, "an output was touched"); break; }
    call_free(&a); side_free(&s);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--light")) { light = 1; argv++; argc--; }
    t_begin(argc, argv);
    T(reference_is_the_headers); T(every_length); T(every_head_size); T(long_sequences); T(all_of_one_kind); T(past_the_pattern); T(wide_patterns); T(long_tables_and_many_terms); T(any_stride_and_scale); T(linear_heads_in_chains);
    T(more_than_65535_heads); T(longest_sequences_and_offsets); T(same_bits_again); T(refusals_leave_outputs_untouched);
    static const char *types[] = { "fp32", "fp16", "bf16" };
    for (int i = 0; i < 3; i++) printf("  largest error of a head, %s: y %.2e  lse %.2e  dq %.2e  dk %.2e  dv %.2e\n", types[i], worst[i][0], worst[i][1], worst[i][2], worst[i][3], worst[i][4]);
    return t_end();
}

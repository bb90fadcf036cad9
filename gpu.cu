/* gpu.cu - gptstatic's attention on NVIDIA GPUs: live, static and pruned heads of one layer.

   What.  One call runs a layer's heads, whatever their kind, forward or backward:

       live     y[i] = sum_{j<=i} softmax_j(scale q[i].k[j]) v[j]                             (A1)
       exact    y[i] = sum_{j<=i} P[i,j] v[j],  P[i,j] = exp(alpha[j] + rho[i-j] - z[i])      (P1)
       linear   the same with rho[d] = ln sum_r coef[r] decay[r]^(d - W) for d >= W           (P3)
       pruned   nothing: it has no columns in q, k, v or y

   How.  In C or C++, `#include "gpu.cu"` gives the declarations; nvcc compiles the rest:

       gpts_gpu_attention a = {0};                       fill in the sizes, kinds, patterns and tensors
       a.prepared = ...;                                 gpts_gpu_attention_prepared_size(&a) device bytes
       gpts_gpu_attention_prepare(&a);                   once for every T and set of patterns (it waits for the device)
       gpts_gpu_attention_forward(&a);                   as often as wanted; these only queue work on a.stream
       gpts_gpu_attention_backward(&a);

   Promised.  Every output element is written or the call returns a status, with one sentence in a.error, before anything is
   queued.  The same input gives the same bits again.  Any T up to 2^17, any head size up to 256, any strides with
   contiguous head vectors, any number of sequences.  bf16 and fp16 accumulate in fp32.

   Fast.  On Hopper (H100, H200; code for sm_90a): bf16 and fp16, head sizes up to 128 that are multiples of 8, strides and
   pointers to 16 bytes, positive scale; rotation at 64, 96 and 128.  Anything else runs on plain kernels, for sm_80 and up.

   Contents, in the order of gptstatic.h:
       @@BASE       sizes, element types, tensor-core and copy instructions, the prepared tables
       @@ATTENTION  live heads: plain kernels, rotation, then forward, dQ, dK dV on tensor cores
       @@STATIC     fixed heads: Toeplitz tiles, far states
       @@CALL       what runs where; the public functions                                                                */
#ifndef GPTS_GPU_H
#define GPTS_GPU_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

enum { GPTS_GPU_F32, GPTS_GPU_F16, GPTS_GPU_BF16 };                                  /* element types  */
enum { GPTS_GPU_LIVE, GPTS_GPU_EXACT, GPTS_GPU_LINEAR, GPTS_GPU_PRUNED };            /* kinds of heads */
typedef enum gpts_gpu_status {
    GPTS_GPU_OK, GPTS_GPU_BAD_ARGUMENT, GPTS_GPU_UNSUPPORTED, GPTS_GPU_FAILED
} gpts_gpu_status;

/* Element (b,t,h,d) is at data + b*this.b + t*this.t + h*this.h + d, counted in elements. */
typedef struct gpts_gpu_tensor { void *data; int64_t b, t, h; } gpts_gpu_tensor;

/* One layer's attention.  All zero is a valid start.  U live heads, n static ones, H = U + n + pruned. */
typedef struct gpts_gpu_attention {
    int type, D;                        /* element type of all tensors; head size                                       */
    int64_t B, T;
    int H, R;                           /* heads by original index; terms of the tails (fast up to 16; 0 without tails) */
    const unsigned char *kind;          /* host [H]                                                                     */
    double theta;                       /* base of the rotation of live q and k (half-split); 0: none                   */
    float scale;                        /* of the scores; 0: 1/sqrt(D)                                                  */
    int plain;                          /* 1: only the plain kernels (the reference on the device)                      */
    int64_t S;                          /* length of the stored patterns                                                */
    const float *alpha, *rho;           /* device [n,S], static heads in ascending order                                */
    const int *tail_start;              /* host [n]: W (fast up to 256); S for a head without tail; NULL: all without   */
    const float *coef, *decay;          /* device [n,R]; unused terms 0 and 1                                           */
    gpts_gpu_tensor q, k, v, y;         /* q, k: live heads only; v, y: kept heads; natural order                       */
    gpts_gpu_tensor dy, dq, dk, dv;     /* backward: reads q k v y lse dy, writes dq dk dv (dv of static heads too)     */
    float *lse;                         /* device [B,U,T]: forward writes, backward reads (natural log)                 */
    void *prepared;  size_t prepared_bytes;     /* device; filled by _prepare                                           */
    void *workspace; size_t workspace_bytes;    /* device; contents do not matter between calls                         */
    void *stream;                       /* cudaStream_t                                                                 */
    unsigned char *wide;                /* host [H]: _prepare writes 1 where a pattern's range needs log space          */
    char error[160];
} gpts_gpu_attention;

size_t gpts_gpu_attention_prepared_size(const gpts_gpu_attention *a);
size_t gpts_gpu_attention_workspace_size(const gpts_gpu_attention *a, int backward);
gpts_gpu_status gpts_gpu_attention_prepare(gpts_gpu_attention *a);
gpts_gpu_status gpts_gpu_attention_forward(gpts_gpu_attention *a);
gpts_gpu_status gpts_gpu_attention_backward(gpts_gpu_attention *a);
const char *gpts_gpu_status_text(gpts_gpu_status status);

#ifdef __cplusplus
}
#endif
#endif /* GPTS_GPU_H */

#if defined(__CUDACC__) && !defined(GPTS_GPU_DECLARATIONS)
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <type_traits>

namespace {
/* ==== @@BASE ============================================================================================================= */

typedef __nv_bfloat16 bf16;
typedef __half fp16;
typedef gpts_gpu_tensor Tensor;

/* wgmma, TMA and register reallocation exist in code for sm_90a alone; elsewhere these kernels are empty and never launched */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif
enum { MAX_HEADS = 256, MAX_D = 256, MAX_R = 16, MAX_W = 256 };
constexpr double LOG2E = 1.4426950408889634;

/* The heads that a launch works on: position in v and y, position in q and k (live) or among the patterns (static). */
struct Heads { int n; uint16_t kept[MAX_HEADS], slot[MAX_HEADS]; unsigned char live[MAX_HEADS]; };

template <class E> __device__ __forceinline__ float to_float(E x) { return float(x); }
template <class E> __device__ __forceinline__ E from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

template <class E> __device__ __forceinline__ E *at(const Tensor &x, int64_t b, int64_t t, int64_t h)
{
    return (E *)x.data + b * x.b + t * x.t + h * x.h;
}

/* ---- prepared tables ------------------------------------------------------------------------------------------------------
   Everything about a pattern that does not depend on v, in one allocation, per static head p:
     z[t] in double; alpha, rho with their continuations past S; the factors of (P2), P[i,j] = w[i-j] col[j] row[i], with
     col = exp(alpha - max alpha), w = exp(rho - max rho), row = exp(max alpha + max rho - z); w starts with 128 zeros (d < 0).
     lam[r][n] = decay^n and far[r][n] = coef decay^(n + Wc - W + 1) / exp(max rho) for the states; Wc = W rounded up to 64.
   A head is wide when the factors span more than floats hold: it is computed in log space, from z, alpha and rho.  Not wide: factors
   within e^80, or alpha so even that every cell under e^-40 of its row's first one may vanish (2 range(alpha) + max rho - rho[0] <= 45). */
struct Info { double alpha_max, rho_max; int wide, W, Wc, linear; };
struct Prepared {
    int64_t T, Tp, Tw;                       /* Tp: padded length of t-tables, Tw: of w */
    Info *info; double *z; float *alpha, *rho, *col, *row, *w, *lam, *far; float2 *rotation;
    size_t bytes;
};
enum { LAM = 132 };

Prepared prepared_layout(const gpts_gpu_attention *a, int n)
{
    Prepared p; size_t o = 0; char *base = (char *)a->prepared;
    auto take = [&](size_t bytes) { size_t x = o; o += (bytes + 255) / 256 * 256; return base + x; };
    p.T = a->T; p.Tp = (a->T + 127) / 128 * 128 + 512; p.Tw = p.Tp + 512;
    size_t rows = (size_t)n * (size_t)p.Tp;
    p.info = (Info *)take((size_t)n * sizeof(Info));
    p.z = (double *)take(rows * 8);
    p.alpha = (float *)take(rows * 4); p.rho = (float *)take(rows * 4);
    p.col = (float *)take(rows * 4);   p.row = (float *)take(rows * 4);
    p.w = (float *)take((size_t)n * (size_t)p.Tw * 4);
    p.lam = (float *)take((size_t)n * MAX_R * LAM * 4); p.far = (float *)take((size_t)n * MAX_R * LAM * 4);
    p.rotation = (float2 *)take(a->theta > 0 ? (size_t)a->T * (size_t)(a->D / 2) * 8 : 0);
    p.bytes = o;
    return p;
}

template <class F> __device__ double block_reduce(double x, F f)
{
    __shared__ double part[32];
    for (int m = 16; m; m >>= 1) x = f(x, __shfl_xor_sync(~0u, x, m));
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) x = f(x, part[w]);
    return x;
}
__device__ double largest(double a, double b) { return a > b ? a : b; }
__device__ double total(double a, double b) { return a + b; }

struct Pattern { const float *alpha, *rho, *coef, *decay; int64_t S; int R; };

/* (P6) Continuations past S (alpha: mean of its last quarter; rho: the tail), their extremes, and the tables of powers.  One block a head. */
__global__ void prepare_extend(Prepared P, Pattern a)
{
    const int p = blockIdx.x; Info &info = P.info[p];
    const float *alpha = a.alpha + p * a.S, *rho = a.rho + p * a.S;
    double sum = 0;
    for (int64_t t = a.S - a.S / 4 + threadIdx.x; t < a.S; t += blockDim.x) sum += alpha[t];
    sum = block_reduce(sum, total);
    const float beyond = a.S / 4 ? float(sum / double(a.S / 4)) : alpha[a.S - 1];
    const int W = info.W, linear = info.linear;
    double amax = -INFINITY, amin = INFINITY, rmax = -INFINITY, rmin = INFINITY;
    for (int64_t t = threadIdx.x; t < P.Tp; t += blockDim.x) {
        float x = t < a.S ? alpha[t] : beyond, r;
        if (t < a.S && (!linear || t < W)) r = rho[t];
        else {
            double s = 0;
            for (int i = 0; i < a.R; i++) s += a.coef[p * a.R + i] * pow((double)a.decay[p * a.R + i], double(t - W));
            r = float(log(s));
        }
        P.alpha[p * P.Tp + t] = x; P.rho[p * P.Tp + t] = r;
        if (t < P.T) {
            amax = fmax(amax, (double)x); amin = fmin(amin, (double)x);
            if (!linear || t < W) { rmax = fmax(rmax, (double)r); rmin = fmin(rmin, (double)r); }
        }
    }
    if (linear && threadIdx.x < a.R && P.T > W) {
        double c = log((double)a.coef[p * a.R + threadIdx.x]);
        if (c > -1e30) { rmax = fmax(rmax, c); rmin = fmin(rmin, c); }
    }
    amax = block_reduce(amax, largest); amin = -block_reduce(-amin, largest);
    rmax = block_reduce(rmax, largest); rmin = -block_reduce(-rmin, largest);
    if (threadIdx.x == 0) {
        info.alpha_max = amax; info.rho_max = rmax;
        const double a = amax - amin, first = P.rho[p * P.Tp];                   /* z[i] >= alpha[i] + rho[0] bounds the rows' factors */
        info.wide = !(a + (rmax - rmin) <= 80 || 2 * a + (rmax - first) <= 45);
    }
    for (int i = threadIdx.x; i < MAX_R * LAM; i += blockDim.x) {
        int r = i / LAM, n = i % LAM; double c = 0, l = 1;
        if (r < a.R) { c = a.coef[p * a.R + r]; l = a.decay[p * a.R + r]; }
        P.lam[p * MAX_R * LAM + i] = r < a.R ? float(pow(l, (double)n)) : 0;
        P.far[p * MAX_R * LAM + i] = float(c * pow(l, double(n + info.Wc - W + 1)) * exp(-rmax));
    }
}

/* z[i] = log sum_{k<=i} exp(alpha[k] + rho[i-k]) in double, one warp a row: the maximum, then the sum. */
__global__ void prepare_normaliser(Prepared P, int n)
{
    int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; const int lane = threadIdx.x % 32;
    if (row >= n * P.T) return;
    const int64_t p = row / P.T, i = row % P.T;
    const float *alpha = P.alpha + p * P.Tp, *rho = P.rho + p * P.Tp;
    double m = -INFINITY, s = 0;
    for (int64_t k = lane; k <= i; k += 32) m = fmax(m, (double)alpha[k] + (double)rho[i - k]);
    for (int x = 16; x; x >>= 1) m = fmax(m, __shfl_xor_sync(~0u, m, x));
    for (int64_t k = lane; k <= i; k += 32) s += exp((double)alpha[k] + (double)rho[i - k] - m);
    for (int x = 16; x; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
    if (lane == 0) P.z[p * P.Tp + i] = m + log(s);
}

__global__ void prepare_factors(Prepared P, int n)
{
    const int64_t p = blockIdx.y, t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const Info &info = P.info[p];
    if (t < P.Tp) {
        P.col[p * P.Tp + t] = t < P.T ? (float)exp(P.alpha[p * P.Tp + t] - info.alpha_max) : 0;
        P.row[p * P.Tp + t] = t < P.T ? (float)exp(info.alpha_max + info.rho_max - P.z[p * P.Tp + t]) : 0;
    }
    if (t < P.Tw) P.w[p * P.Tw + t] = t >= 128 && t - 128 < P.T ? (float)exp(P.rho[p * P.Tp + t - 128] - info.rho_max) : 0;
}

/* cos and sin of t theta^(-2c/D): angles in double, as on the CPU */
__global__ void prepare_rotation(float2 *rotation, int64_t T, int half, double theta)
{
    int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= T * half) return;
    double s, c;
    sincos(double(x / half) * pow(theta, -2.0 * double(x % half) / double(2 * half)), &s, &c);
    rotation[x] = make_float2((float)c, (float)s);
}

/* ---- Hopper's instructions: each wrapper is one instruction or a fixed small group ---------------------------------------- */
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint64_t *bar, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count)); }
__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory"); }
__device__ __forceinline__ void barrier_arrive(uint64_t *bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(bar)) : "memory"); }
__device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
}
/* A warp is done with a slot: one arrival a warp, after all its lanes' reads (barrier_done: no lane passes a wgmma alone, and one lies
   between).  racecheck does not follow a read through the warp to the lane that arrives, so a build with GPTS_GPU_EVERY_LANE lets all
   of them do so. */
#ifdef GPTS_GPU_EVERY_LANE
enum { ARRIVALS = 32 };
#else
enum { ARRIVALS = 1 };
#endif
__device__ __forceinline__ void barrier_done(uint64_t *bar) { if (ARRIVALS == 32 || threadIdx.x % 32 == 0) barrier_arrive(bar); }
__device__ __forceinline__ void barrier_release(uint64_t *bar) { __syncwarp(); if (ARRIVALS == 32 || threadIdx.x % 32 == 0) barrier_arrive(bar); }
__device__ __forceinline__ void barrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void group_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

__device__ __forceinline__ void copy_tile(void *to, const CUtensorMap *map, uint64_t *bar, int d, int t, int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(shared_address(to)), "l"(map), "r"(shared_address(bar)), "r"(d), "r"(t), "r"(h), "r"(b) : "memory");
}
__device__ __forceinline__ void copy_line(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void group_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
/* Programmatic dependent launch: a kernel lets the next one's blocks start as its own ones end; one that reads what the kernel before it
   wrote waits for all of it first, and every kernel waits at the latest before it ends, so that ends keep the stream's order. */
__device__ __forceinline__ void let_next_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <int N> __device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> __device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

__device__ __forceinline__ float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
template <class E> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16>(float low, float high) { uint32_t x; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }
template <> __device__ __forceinline__ uint32_t pack<fp16>(float low, float high) { uint32_t x; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }

/* wgmma: one warpgroup multiplies A [64,16] by B [16,N] into fp32 accumulators d[N/2] of each thread: register i holds row
   16 warp + lane/4 + 8 ((i/2) % 2) and column 8 (i/4) + 2 (lane % 4) + i % 2; A from registers has the same layout, packed.
   A tile of R rows lies in shared memory as panels of R rows of SW = 128 or 64 bytes, swizzled over SW bytes.            */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

/* keeps the compiler from moving uses of accumulators across a wait */
template <int N> __device__ __forceinline__ void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
template <int N> __device__ __forceinline__ void wgmma_hold(uint32_t (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i]) :: "memory");
}
/* the warpgroup's number, in a form that the compiler sees to be uniform: wgmma must not sit in a divergent branch */
__device__ __forceinline__ int warpgroup() { return __shfl_sync(~0u, threadIdx.x / 128, 0); }

/* A tile's descriptor: its low word moves along with the address, in steps of 16 bytes; the high word only knows the swizzle.
   panel_bytes: from one panel of columns to the next, where a product's columns span several; 16 where they do not matter. */
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address, uint32_t panel_bytes) { return (address & 0x3FFFF) >> 4 | panel_bytes >> 4 << 16; }
template <int SW> __device__ __forceinline__ uint64_t descriptor(uint32_t low) { return (uint64_t)((8 * SW >> 4) | (SW == 128 ? 1u << 30 : 2u << 30)) << 32 | low; }

#define WG_R32  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_R48  WG_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_R64  WG_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_R96  WG_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WG_R128  WG_R96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WG_O8(d, i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define WG_O16(d, i)  WG_O8(d, i), WG_O8(d, i + 8)
#define WG_O32(d, i)  WG_O16(d, i), WG_O16(d, i + 16)
#define WG_O48(d, i)  WG_O32(d, i), WG_O16(d, i + 32)
#define WG_O64(d, i)  WG_O32(d, i), WG_O32(d, i + 32)
#define WG_O96(d, i)  WG_O64(d, i), WG_O32(d, i + 64)
#define WG_O128(d, i) WG_O64(d, i), WG_O64(d, i + 64)
/* SS: A and B in shared memory, both with the product's inner index contiguous; keep = 0 starts the sum anew */
#define WG_SS(N, NR, T, a, b, p) asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T \
    " {" WG_R##NR "}, %" a ", %" b ", p, 1, 1, 0, 0;\n}" : WG_O##NR(d, 0) : "l"(A), "l"(B), "r"(keep))
/* RS: A in registers; B in shared memory, TB = 1 when its columns are contiguous, 0 when the inner index is */
#define WG_RS(N, NR, T, a, b, c, e, f, p, t) asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T \
    " {" WG_R##NR "}, {%" a ", %" b ", %" c ", %" e "}, %" f ", p, 1, 1, %" t ";\n}" : WG_O##NR(d, 0) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"(keep), "n"(TB))

template <class E> struct is_bf16 { static constexpr bool value = false; };
template <> struct is_bf16<bf16> { static constexpr bool value = true; };

template <class E, int N> __device__ __forceinline__ void wgmma_ss(float (&d)[N / 2], uint64_t A, uint64_t B, int keep)
{
    if constexpr (is_bf16<E>::value) {
        if constexpr (N == 64) WG_SS(64, 32, "bf16", "32", "33", "34");
        else WG_SS(128, 64, "bf16", "64", "65", "66");
    } else {
        if constexpr (N == 64) WG_SS(64, 32, "f16", "32", "33", "34");
        else WG_SS(128, 64, "f16", "64", "65", "66");
    }
}
template <class E, int N, int TB = 1> __device__ __forceinline__ void wgmma_rs(float (&d)[N / 2], const uint32_t *A, uint64_t B, int keep)
{
    if constexpr (is_bf16<E>::value) {
        if constexpr (N == 64) WG_RS(64, 32, "bf16", "32", "33", "34", "35", "36", "37", "38");
        else if constexpr (N == 96) WG_RS(96, 48, "bf16", "48", "49", "50", "51", "52", "53", "54");
        else if constexpr (N == 128) WG_RS(128, 64, "bf16", "64", "65", "66", "67", "68", "69", "70");
        else if constexpr (N == 192) WG_RS(192, 96, "bf16", "96", "97", "98", "99", "100", "101", "102");
        else WG_RS(256, 128, "bf16", "128", "129", "130", "131", "132", "133", "134");
    } else {
        if constexpr (N == 64) WG_RS(64, 32, "f16", "32", "33", "34", "35", "36", "37", "38");
        else if constexpr (N == 96) WG_RS(96, 48, "f16", "48", "49", "50", "51", "52", "53", "54");
        else if constexpr (N == 128) WG_RS(128, 64, "f16", "64", "65", "66", "67", "68", "69", "70");
        else if constexpr (N == 192) WG_RS(192, 96, "f16", "96", "97", "98", "99", "100", "101", "102");
        else WG_RS(256, 128, "f16", "128", "129", "130", "131", "132", "133", "134");
    }
}

/* How a head of DP columns (64, 96 or 128) lies in shared memory */
template <int DP> struct Panels {
    static constexpr int SW = DP % 64 ? 64 : 128, COLUMNS = SW / 2, COUNT = DP / COLUMNS;
    /* where columns [16 kk, 16 kk + 16) of a tile of R rows begin, in descriptor steps */
    static __device__ __forceinline__ constexpr uint32_t along(int kk, int R) { return ((kk * 16 / COLUMNS) * R * SW + (kk * 16 % COLUMNS) * 2) >> 4; }
};
template <int DP> __device__ __forceinline__ void copy_head(char *to, const CUtensorMap *map, uint64_t *bar, int rows, int t, int h, int b)
{
    for (int p = 0; p < Panels<DP>::COUNT; p++)
        copy_tile(to + p * rows * Panels<DP>::SW, map, bar, p * Panels<DP>::COLUMNS, t, h, b);
}
/* d [64,NK] = A [64,DP] B^T [NK,DP]: scores and their like; A: 64 rows of a tile of A_ROWS rows; both as descriptor words */
template <class E, int DP, int NK, int A_ROWS> __device__ __forceinline__ void product_scores(float (&d)[NK / 2], uint32_t A, uint32_t B)
{
    typedef Panels<DP> P;
#pragma unroll
    for (int kk = 0; kk < DP / 16; kk++)
        wgmma_ss<E, NK>(d, descriptor<P::SW>(A + P::along(kk, A_ROWS)), descriptor<P::SW>(B + P::along(kk, NK)), kk > 0);
}
/* the same with A already in registers, as load_rows_of leaves it */
template <class E, int DP, int NK> __device__ __forceinline__ void product_scores(float (&d)[NK / 2], const uint32_t (&A)[DP / 4], uint32_t B)
{
    typedef Panels<DP> P;
#pragma unroll
    for (int kk = 0; kk < DP / 16; kk++) wgmma_rs<E, NK, 0>(d, A + 4 * kk, descriptor<P::SW>(B + P::along(kk, NK)), kk > 0);
}
/* 64 rows of a tile in shared memory as the register operand of a warpgroup */
template <int DP> __device__ __forceinline__ void load_rows_of(uint32_t (&A)[DP / 4], uint32_t tile, int rows, int first)
{
    typedef Panels<DP> P;
    const int r = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16, half = threadIdx.x % 32 / 16;
#pragma unroll
    for (int kk = 0; kk < DP / 16; kk++) {
        const int panel = kk * 16 / P::COLUMNS, piece = kk * 16 % P::COLUMNS / 8 + half;
        const uint32_t address = tile + panel * rows * P::SW + r * P::SW + ((P::SW == 128 ? piece ^ (r & 7) : piece ^ (r >> 1 & 3)) << 4);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(A[4 * kk]), "=r"(A[4 * kk + 1]), "=r"(A[4 * kk + 2]), "=r"(A[4 * kk + 3]) : "r"(address) : "memory");
    }
}
/* d [64,N] (+)= A [64,K] B [K,N], A packed in registers, B the descriptor word of K rows in panels of SW bytes a row */
template <class E, int N, int K, int SW> __device__ __forceinline__ void product_values(float (&d)[N / 2], const uint32_t *A, uint32_t B, int keep)
{
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++) wgmma_rs<E, N>(d, A + 4 * kk, descriptor<SW>(B + kk * SW), keep || kk > 0);
}

/* Rows of accumulators to memory in 16-byte pieces: four lanes hold two columns each of every group of 8; after a transposition among
   them each lane holds 8 columns.  d: first of DP columns; to: the row's start, or NULL to skip; low = 1 for the second row of the thread. */
template <class E, int COLUMNS> __device__ __forceinline__ void store_row(const float *d, int half, float factor, E *to, int first, int D)
{
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int g = 0; g < COLUMNS / 32; g++) {
        uint32_t x[4];
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] = pack<E>(d[16 * g + 4 * c + 2 * half] * factor, d[16 * g + 4 * c + 2 * half + 1] * factor);
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
            uint32_t y = __shfl_xor_sync(~0u, q & 1 ? x[c] : x[c + 1], 1);
            if (q & 1) x[c] = y; else x[c + 1] = y;
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t y = __shfl_xor_sync(~0u, q & 2 ? x[c] : x[c + 2], 2);
            if (q & 2) x[c] = y; else x[c + 2] = y;
        }
        const int column = first + 32 * g + 8 * q;
        if (to && column < D) *(uint4 *)(to + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* ==== @@ATTENTION ========================================================================================================
   Plain kernels first: fp32 arithmetic on shared-memory tiles, any head size, any stride, all element types, wide patterns.
   They are what the fast ones are read against.

   card  forward (A1), (P1)   q,k,v [B,T,.,D] -> y = , lse =      O(T^2 D) a head       tests/gpu: every shape in fp32
         m[i] = max_j s[i,j], l[i] = sum_j exp(s[i,j] - m[i]), y[i] = sum_j exp(s[i,j] - m[i]) v[j] / l[i], lse = m + ln l      */
struct Plain {
    Tensor q, k, v, y, dy, dq, dk, dv; float *lse, *delta;
    int64_t B, T, U; int D; float scale; const float2 *rotation; Prepared pre; Heads heads;
};
enum { PQ = 64, PK = 32, PLAIN_THREADS = 256 };

/* A tile of rows [t0, t0 + rows) of one head as floats, zeros past T, rotated if wished: (x, x') -> (x c - x' s, x' c + x s)  (R1) */
template <class E>
__device__ void plain_load(float *tile, int stride, const E *from, int64_t step, int64_t t0, int rows, int64_t T, int D, const float2 *rotation)
{
    const int half = D / 2;
    if (rotation) {
        for (int x = threadIdx.x; x < rows * half; x += PLAIN_THREADS) {
            int r = x / half, c = x % half; float u = 0, w = 0;
            if (t0 + r < T) {
                float2 cs = rotation[(t0 + r) * half + c];
                float p = to_float(from[(t0 + r) * step + c]), q = to_float(from[(t0 + r) * step + c + half]);
                u = p * cs.x - q * cs.y; w = q * cs.x + p * cs.y;
            }
            tile[r * stride + c] = u; tile[r * stride + c + half] = w;
        }
    } else {
        for (int x = threadIdx.x; x < rows * D; x += PLAIN_THREADS) {
            int r = x / D, c = x % D;
            tile[r * stride + c] = t0 + r < T ? to_float(from[(t0 + r) * step + c]) : 0.f;
        }
    }
}
/* The same back to memory; rotated the other way, since the backward of a rotation is its inverse. */
template <class E>
__device__ void plain_store(const float *tile, int stride, E *to, int64_t step, int64_t t0, int rows, int64_t T, int D, const float2 *rotation)
{
    const int half = D / 2;
    for (int x = threadIdx.x; x < rows * D; x += PLAIN_THREADS) {
        int r = x / D, c = x % D; float u = tile[r * stride + c];
        if (t0 + r >= T) continue;
        if (rotation) {
            float2 cs = rotation[(t0 + r) * half + c % half];
            u = c < half ? u * cs.x + tile[r * stride + c + half] * cs.y : u * cs.x - tile[r * stride + c - half] * cs.y;
        }
        to[(t0 + r) * step + c] = from_float<E>(u);
    }
}
/* P[i,j] of (P1) in log space: the differences in double, so that alpha and rho in the hundreds keep their digits */
__device__ __forceinline__ float plain_weight(const Prepared &pre, int64_t p, int64_t i, int64_t j)
{
    if (j > i || i >= pre.T) return 0;
    return expf(float((double)pre.alpha[p * pre.Tp + j] + (double)pre.rho[p * pre.Tp + i - j] - pre.z[p * pre.Tp + i]));
}

template <class E, int NE>
__global__ __launch_bounds__(PLAIN_THREADS) void plain_forward(const __grid_constant__ Plain a)
{
    extern __shared__ float shared[];
    const int D = a.D, DS = D | 1, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float *Q = shared, *K = Q + PQ * DS, *V = K + PK * DS, *S = V + PK * DS;
    const int64_t blocks = (a.T + PQ - 1) / PQ, m = blocks - 1 - blockIdx.x % blocks, bh = blockIdx.x / blocks;
    const int64_t b = bh / a.heads.n; const int h = int(bh % a.heads.n);
    const int64_t kept = a.heads.kept[h], slot = a.heads.slot[h], i0 = m * PQ; const bool live = a.heads.live[h];
    float o[4][NE] = {}, mx[4], l[4] = {};
    for (int r = 0; r < 4; r++) mx[r] = -INFINITY;
    if (live) plain_load(Q, DS, at<E>(a.q, b, 0, slot), a.q.t, i0, PQ, a.T, D, a.rotation);
    for (int64_t j0 = 0; j0 < a.T && j0 < i0 + PQ; j0 += PK) {
        __syncthreads();
        if (live) plain_load(K, DS, at<E>(a.k, b, 0, slot), a.k.t, j0, PK, a.T, D, a.rotation);
        plain_load(V, DS, at<E>(a.v, b, 0, kept), a.v.t, j0, PK, a.T, D, (const float2 *)0);
        __syncthreads();
        float s[4][2] = {};
        if (live) {
            for (int d = 0; d < D; d++)
                for (int r = 0; r < 4; r++)
                    for (int c = 0; c < 2; c++) s[r][c] += Q[(ty * 4 + r) * DS + d] * K[(tx + 16 * c) * DS + d];
            for (int r = 0; r < 4; r++) {
                float top = mx[r];
                for (int c = 0; c < 2; c++) {
                    int64_t j = j0 + tx + 16 * c;
                    s[r][c] = j <= i0 + ty * 4 + r && j < a.T ? s[r][c] * a.scale : -INFINITY;
                    top = fmaxf(top, s[r][c]);
                }
                for (int x = 8; x; x >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, x));
                float factor = mx[r] == -INFINITY ? 0.f : expf(mx[r] - top), sum = 0;
                for (int c = 0; c < 2; c++) { s[r][c] = s[r][c] == -INFINITY ? 0.f : expf(s[r][c] - top); sum += s[r][c]; }
                for (int x = 8; x; x >>= 1) sum += __shfl_xor_sync(~0u, sum, x);
                l[r] = l[r] * factor + sum; mx[r] = top;
                for (int e = 0; e < NE; e++) o[r][e] *= factor;
            }
        } else {
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 2; c++) s[r][c] = plain_weight(a.pre, slot, i0 + ty * 4 + r, j0 + tx + 16 * c);
        }
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 2; c++) S[(ty * 4 + r) * (PK + 1) + tx + 16 * c] = s[r][c];
        __syncthreads();
        for (int j = 0; j < PK; j++)
            for (int e = 0; e < NE; e++) {
                float v = tx + 16 * e < D ? V[j * DS + tx + 16 * e] : 0.f;
                for (int r = 0; r < 4; r++) o[r][e] += S[(ty * 4 + r) * (PK + 1) + j] * v;
            }
    }
    for (int r = 0; r < 4; r++) {
        int64_t i = i0 + ty * 4 + r;
        if (i >= a.T) continue;
        float factor = live ? 1 / l[r] : 1.f;
        for (int e = 0; e < NE; e++)
            if (tx + 16 * e < D) at<E>(a.y, b, i, kept)[tx + 16 * e] = from_float<E>(o[r][e] * factor);
        if (live && tx == 0) a.lse[(b * a.U + slot) * a.T + i] = mx[r] + logf(l[r]);
    }
}

/* card  delta[i] = sum_d dy[i,d] y[i,d]  (A2), live heads; [B,U,T]; one warp a row */
template <class E> __global__ void plain_delta(const __grid_constant__ Plain a)
{
    int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; const int lane = threadIdx.x % 32;
    if (row >= a.B * a.heads.n * a.T) return;
    const int64_t i = row % a.T, bh = row / a.T, b = bh / a.heads.n; const int h = int(bh % a.heads.n);
    if (!a.heads.live[h]) return;
    const E *y = at<E>(a.y, b, i, a.heads.kept[h]), *dy = at<E>(a.dy, b, i, a.heads.kept[h]);
    float s = 0;
    for (int d = lane; d < a.D; d += 32) s += to_float(y[d]) * to_float(dy[d]);
    for (int x = 16; x; x >>= 1) s += __shfl_xor_sync(~0u, s, x);
    if (lane == 0) a.delta[(b * a.U + a.heads.slot[h]) * a.T + i] = s;
}

/* card  backward of (A1), (A2), by rows: p = exp(scale q.k - lse), ds = p (dy.v - delta), dq[i] = scale sum_j ds[i,j] k[j]
         by keys: dv[j] = sum_i p[i,j] dy[i], dk[j] = scale sum_i ds[i,j] q[i];  static heads: dv[j] = sum_i P[i,j] dy[i]  (P7)
         one template: ROWS owns 32 queries and walks the keys, otherwise it owns 32 keys and walks the queries          */
template <class E, int NE, bool ROWS>
__global__ __launch_bounds__(PLAIN_THREADS) void plain_backward(const __grid_constant__ Plain a)
{
    extern __shared__ float shared[];
    const int D = a.D, DS = D | 1, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float *Q = shared, *K = Q + PK * DS, *V = K + PK * DS, *G = V + PK * DS, *P = G + PK * DS, *dS = P + PK * (PK + 1);
    const int64_t blocks = (a.T + PK - 1) / PK, m = blockIdx.x % blocks, bh = blockIdx.x / blocks;
    const int64_t b = bh / a.heads.n; const int h = int(bh % a.heads.n);
    const int64_t kept = a.heads.kept[h], slot = a.heads.slot[h], own = m * PK; const bool live = a.heads.live[h];
    if (ROWS && !live) return;
    const float *lse = a.lse + (b * a.U + slot) * a.T, *delta = a.delta + (b * a.U + slot) * a.T;
    float first[2][NE] = {}, second[2][NE] = {};                           /* dq, or dk and dv */
    auto load_rows = [&](int64_t i0) {
        if (live) plain_load(Q, DS, at<E>(a.q, b, 0, slot), a.q.t, i0, PK, a.T, D, a.rotation);
        plain_load(G, DS, at<E>(a.dy, b, 0, kept), a.dy.t, i0, PK, a.T, D, (const float2 *)0);
    };
    auto load_keys = [&](int64_t j0) {
        if (!live) return;
        plain_load(K, DS, at<E>(a.k, b, 0, slot), a.k.t, j0, PK, a.T, D, a.rotation);
        plain_load(V, DS, at<E>(a.v, b, 0, kept), a.v.t, j0, PK, a.T, D, (const float2 *)0);
    };
    if (ROWS) load_rows(own); else load_keys(own);
    for (int64_t walk = ROWS ? 0 : own; ROWS ? walk <= own : walk < a.T; walk += PK) {
        const int64_t i0 = ROWS ? own : walk, j0 = ROWS ? walk : own;
        __syncthreads();
        if (ROWS) load_keys(walk); else load_rows(walk);
        __syncthreads();
        float s[2][2] = {}, g[2][2] = {};
        if (live)
            for (int d = 0; d < D; d++)
                for (int r = 0; r < 2; r++)
                    for (int c = 0; c < 2; c++) {
                        s[r][c] += Q[(ty * 2 + r) * DS + d] * K[(tx + 16 * c) * DS + d];
                        g[r][c] += G[(ty * 2 + r) * DS + d] * V[(tx + 16 * c) * DS + d];
                    }
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 2; c++) {
                int64_t i = i0 + ty * 2 + r, j = j0 + tx + 16 * c; float p, ds = 0;
                if (!live) p = plain_weight(a.pre, slot, i, j);
                else {
                    p = i < a.T && j <= i ? expf(s[r][c] * a.scale - lse[i]) : 0.f;
                    ds = i < a.T && j <= i ? p * (g[r][c] - delta[i]) : 0.f;
                }
                P[(ty * 2 + r) * (PK + 1) + tx + 16 * c] = p; dS[(ty * 2 + r) * (PK + 1) + tx + 16 * c] = ds;
            }
        __syncthreads();
        for (int x = 0; x < PK; x++)
            for (int e = 0; e < NE; e++) {
                int d = tx + 16 * e;
                if (ROWS) {
                    float k = d < D ? K[x * DS + d] : 0.f;
                    for (int r = 0; r < 2; r++) first[r][e] += dS[(ty * 2 + r) * (PK + 1) + x] * k;
                } else {
                    float q = live && d < D ? Q[x * DS + d] : 0.f, dy = d < D ? G[x * DS + d] : 0.f;
                    for (int r = 0; r < 2; r++) {
                        first[r][e] += dS[x * (PK + 1) + ty * 2 + r] * q;
                        second[r][e] += P[x * (PK + 1) + ty * 2 + r] * dy;
                    }
                }
            }
    }
    __syncthreads();
    for (int r = 0; r < 2; r++)
        for (int e = 0; e < NE; e++)
            if (tx + 16 * e < D) {
                Q[(ty * 2 + r) * DS + tx + 16 * e] = first[r][e] * a.scale; V[(ty * 2 + r) * DS + tx + 16 * e] = second[r][e];
            }
    __syncthreads();
    if (ROWS) plain_store(Q, DS, at<E>(a.dq, b, 0, slot), a.dq.t, own, PK, a.T, D, a.rotation);
    else {
        if (live) plain_store(Q, DS, at<E>(a.dk, b, 0, slot), a.dk.t, own, PK, a.T, D, a.rotation);
        plain_store(V, DS, at<E>(a.dv, b, 0, kept), a.dv.t, own, PK, a.T, D, (const float2 *)0);
    }
}

int plain_bytes(int D, bool backward)
{
    int DS = D | 1;
    return 4 * (backward ? 4 * PK * DS + 2 * PK * (PK + 1) : (PQ + 2 * PK) * DS + PQ * (PK + 1));
}

template <class E, int NE> cudaError_t plain_launch(const Plain &a, bool backward, cudaStream_t stream)
{
    const int64_t heads = a.B * a.heads.n;
    const int bytes = plain_bytes(a.D, backward);
    if (!backward) {
        cudaFuncSetAttribute(plain_forward<E, NE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        plain_forward<E, NE><<<(unsigned)(heads * ((a.T + PQ - 1) / PQ)), PLAIN_THREADS, bytes, stream>>>(a);
        return cudaGetLastError();
    }
    const unsigned grid = (unsigned)(heads * ((a.T + PK - 1) / PK));
    bool live = false;
    for (int h = 0; h < a.heads.n; h++) live |= a.heads.live[h] != 0;
    cudaFuncSetAttribute(plain_backward<E, NE, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(plain_backward<E, NE, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (live) {
        plain_delta<E><<<(unsigned)((heads * a.T + 7) / 8), 256, 0, stream>>>(a);
        plain_backward<E, NE, true><<<grid, PLAIN_THREADS, bytes, stream>>>(a);
    }
    plain_backward<E, NE, false><<<grid, PLAIN_THREADS, bytes, stream>>>(a);
    return cudaGetLastError();
}
template <class E> cudaError_t plain_run(const Plain &a, bool backward, cudaStream_t stream)
{
    if (!a.heads.n) return cudaSuccess;
    return a.D <= 64 ? plain_launch<E, 4>(a, backward, stream) : a.D <= 128 ? plain_launch<E, 8>(a, backward, stream) : plain_launch<E, 16>(a, backward, stream);
}

/* ---- rotation before the fast kernels: q and k of the live heads, rotated (R1), into packed [B,T,U,D] ------------------------- */
template <class E> __global__ void rotate_heads(Tensor from, E *to, const float2 *rotation, int64_t T, int U, int D, int64_t pairs)
{
    int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;             /* one piece of 8 columns and its partner */
    if (x >= pairs) return;
    const int eighths = D / 16, half = D / 2, c = int(x % eighths) * 8; x /= eighths;
    const int u = int(x % U); x /= U;
    const int64_t t = x % T, b = x / T;
    const E *in = at<E>(from, b, t, u); E *out = to + ((b * T + t) * U + u) * D;
    union Piece { uint4 raw; E e[8]; } p, q;
    p.raw = *(const uint4 *)(in + c); q.raw = *(const uint4 *)(in + c + half);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 cs = rotation[t * half + c + i]; float f = to_float(p.e[i]), g = to_float(q.e[i]);
        p.e[i] = from_float<E>(f * cs.x - g * cs.y); q.e[i] = from_float<E>(g * cs.x + f * cs.y);
    }
    *(uint4 *)(out + c) = p.raw; *(uint4 *)(out + c + half) = q.raw;
}
/* (R2) The inverse on accumulators of one thread: columns c and c + D/2 lie in registers i and i + D/4. */
template <int DP> __device__ __forceinline__ void unrotate(float *d, int half, int64_t t, const float2 *rotation)
{
#pragma unroll
    for (int i = 0; i < DP / 4; i++)
        if ((i / 2) % 2 == half) {
            float2 cs = rotation[t * (DP / 2) + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2];
            float f = d[i], g = d[i + DP / 4];
            d[i] = f * cs.x + g * cs.y; d[i + DP / 4] = g * cs.x - f * cs.y;
        }
}

struct Live {
    Tensor y, dy, dq, dk, dv; float *lse, *lse2, *delta; const float2 *rotation;
    int64_t B, T, T64; int U, D, group, blocks, shift, *counter; float scale; Heads heads;
};
/* Blocks of rows end at the last row: a block that is not full is the first one, with the fewest keys.
   Items run in groups of heads whose keys and values fit the L2 cache; within a group, longest blocks first. */
struct Item { int block, u, b; };
__device__ __forceinline__ bool live_item(const Live &a, int x, bool descending, Item &item)
{
    if (x < 0) return false;
    const int heads = int(a.B * a.U), per = a.group * a.blocks, g = x / per, r = x % per;
    const int width = heads - g * a.group < a.group ? heads - g * a.group : a.group, bh = g * a.group + r % width;
    item.block = r / width; if (descending) item.block = a.blocks - 1 - item.block;
    item.b = bh / a.U; item.u = bh % a.U;
    return true;
}
/* Blocks of threads draw items from a counter; the copying warp draws ahead and hands the number to the others through two slots. */
template <int WG> struct Draw {
    int item[2]; uint64_t full[2], empty[2];
    __device__ __forceinline__ void init() { for (int s = 0; s < 2; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 4 * WG * ARRIVALS); } }
    __device__ __forceinline__ int put(const Live &a, int *counter, int turn)               /* the turn-th item, or -1 when there is none left */
    {
        int x = turn ? gridDim.x + atomicAdd(counter, 1) : blockIdx.x;
        if (x >= int(a.B * a.U) * a.blocks) x = -1;
        barrier_wait(&empty[turn % 2], turn / 2 % 2 ^ 1);
        item[turn % 2] = x; barrier_arrive(&full[turn % 2]);
        return x;
    }
    __device__ __forceinline__ int get(int turn)
    {
        barrier_wait(&full[turn % 2], turn / 2 % 2);
        const int x = *(volatile int *)&item[turn % 2];
        barrier_release(&empty[turn % 2]);
        return __shfl_sync(~0u, x, 0);
    }
};
/* Warpgroups take turns at queueing products, so that one's exponentials run under another's products (ping-pong). */
template <int WG> struct Turns {
    int group;
    __device__ Turns(int group) : group(group) { if (group == WG - 1) group_arrive(1, 256); }
    __device__ __forceinline__ void begin() const { group_sync(1 + group, 256); }
    __device__ __forceinline__ void end() const { group_arrive(1 + (group + 1) % WG, 256); }
};
template <class T> __device__ __forceinline__ T *aligned_shared(T *p) { return (T *)(((uintptr_t)p + 1023) / 1024 * 1024); }

/* The 64 rows of every warpgroup, from one 64-row box after another, so that one map serves any number of warpgroups */
template <int DP, int WG> __device__ __forceinline__ void copy_rows(char *to, const CUtensorMap *map, uint64_t *bar, int t, int h, int b)
{
    for (int w = 0; w < WG; w++)
        for (int p = 0; p < Panels<DP>::COUNT; p++)
            copy_tile(to + p * 64 * WG * Panels<DP>::SW + w * 64 * Panels<DP>::SW, map, bar, p * Panels<DP>::COLUMNS, t + 64 * w, h, b);
}
/* Position in a ring of shared-memory slots: which one, and the parity of its barrier in this lap */
template <int STAGES> struct Ring {
    int slot = 0; uint32_t parity = 0;
    __device__ __forceinline__ void next() { if (++slot == STAGES) { slot = 0; parity ^= 1; } }
};

/* card  forward (A1) on tensor cores: a block owns 64 WG rows; one warp copies keys and values ahead of WG warpgroups, each of which
         keeps its scores, weights and sums in registers.  The scores of tile n are computed while tile n + 1's weights multiply
         its values.  Tiles run from the diagonal to key 0: only the first one is masked, and every row sees a key in it.      */
template <class E, int DP, int WG>
__global__ __launch_bounds__(128 * (WG + 1), 1) void live_forward(const __grid_constant__ Live a, const __grid_constant__ CUtensorMap mq,
                                                                 const __grid_constant__ CUtensorMap mk, const __grid_constant__ CUtensorMap mv)
{
#if HOPPER
    enum { M = 64 * WG, N = 128, STAGES = 2, TILE = N * DP * 2, SW = Panels<DP>::SW };
    extern __shared__ char raw[];
    __shared__ Draw<WG> draw;
    __shared__ uint64_t full_q, empty_q, full_k[STAGES], full_v[STAGES], empty_k[STAGES], empty_v[STAGES];
    char *Q = aligned_shared(raw), *K = Q + M * DP * 2, *V = K + STAGES * TILE;
    const int group = warpgroup() - 1, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        draw.init(); barrier_init(&full_q, 1); barrier_init(&empty_q, 4 * WG * ARRIVALS);
        for (int s = 0; s < STAGES; s++) { barrier_init(&full_k[s], 1); barrier_init(&full_v[s], 1); barrier_init(&empty_k[s], 4 * WG * ARRIVALS); barrier_init(&empty_v[s], 4 * WG * ARRIVALS); }
        barrier_fence();
    }
    __syncthreads();
    let_next_start();
    Item item; Ring<STAGES> ring; uint32_t odd = 0;
    if (group < 0) {
        registers_down<WG == 3 ? 32 : 24>();
        if (threadIdx.x == 0)
            for (int turn = 0; live_item(a, draw.put(a, a.counter, turn), true, item); turn++, odd ^= 1) {
                const int kept = a.heads.kept[item.u], m0 = item.block * M - a.shift, end = m0 + M < a.T ? m0 + M : (int)a.T;
                barrier_wait(&empty_q, odd ^ 1); barrier_expect(&full_q, M * DP * 2);
                copy_rows<DP, WG>(Q, &mq, &full_q, m0, item.u, item.b);
                for (int n = (end - 1) / N * N; n >= 0; n -= N, ring.next()) {
                    barrier_wait(&empty_k[ring.slot], ring.parity ^ 1); barrier_expect(&full_k[ring.slot], TILE);
                    copy_head<DP>(K + ring.slot * TILE, &mk, &full_k[ring.slot], N, n, item.u, item.b);
                    barrier_wait(&empty_v[ring.slot], ring.parity ^ 1); barrier_expect(&full_v[ring.slot], TILE);
                    copy_head<DP>(V + ring.slot * TILE, &mv, &full_v[ring.slot], N, n, kept, item.b);
                }
            }
        return;
    }
    registers_up<WG == 3 ? 160 : 240>();
    const Turns<WG> turns(group);
    const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const uint32_t q = descriptor_low(shared_address(Q) + 64 * group * SW, 16), k = descriptor_low(shared_address(K), 16), v = descriptor_low(shared_address(V), N * SW);
    const float c = a.scale * (float)LOG2E;
    float o[DP / 2], s[N / 2], top[2], sum[2]; uint32_t p[N / 4];
    for (int turn = 0; live_item(a, draw.get(turn), true, item); turn++, odd ^= 1) {
        const int kept = a.heads.kept[item.u], m0 = item.block * M - a.shift, r0 = m0 + 64 * group, end = m0 + M < a.T ? m0 + M : (int)a.T;
        int n = (end - 1) / N * N, keep = 0;
        bool first = true;
        auto softmax = [&] {                                                     /* s -> exp2(c s - c top); sum, top; the factor for what came before */
            float factor[2];
            if (first) {
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    if (n + 8 * (i / 4) + 2 * (lane % 4) + i % 2 > r0 + row + 8 * ((i / 2) % 2)) s[i] = -INFINITY;
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float t = first ? -INFINITY : top[h];
#pragma unroll
                for (int i = 0; i < N / 4; i++) t = fmaxf(t, s[i / 2 * 4 + 2 * h + i % 2]);
                t = fmaxf(t, __shfl_xor_sync(~0u, t, 1)); t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
                factor[h] = first ? 0.f : exp2_fast((top[h] - t) * c);
                top[h] = t;
                const float shift = t * c; float add = 0;
#pragma unroll
                for (int i = 0; i < N / 4; i++) {
                    float &e = s[i / 2 * 4 + 2 * h + i % 2];
                    e = exp2_fast(e * c - shift); add += e;
                }
                sum[h] = first ? add : sum[h] * factor[h] + add;
            }
            return make_float2(factor[0], factor[1]);
        };
        auto round_weights = [&] {
#pragma unroll
            for (int i = 0; i < N / 4; i++) p[i] = pack<E>(s[2 * i], s[2 * i + 1]);
        };
        const bool none = r0 < 0;                                                /* no rows: nothing to do but to keep step */
        for (; n >= 0 && (none || n > r0 + 63); n -= N, ring.next()) {           /* tiles that only later warpgroups see */
            turns.begin(); turns.end();
            barrier_wait(&full_k[ring.slot], ring.parity); barrier_done(&empty_k[ring.slot]);
            barrier_wait(&full_v[ring.slot], ring.parity); barrier_done(&empty_v[ring.slot]);
        }
        barrier_wait(&full_q, odd);
        if (none) { barrier_done(&empty_q); continue; }
        barrier_wait(&full_k[ring.slot], ring.parity);
        turns.begin();
        wgmma_hold(s); wgmma_fence();
        product_scores<E, DP, N, M>(s, q, k + ring.slot * (TILE >> 4));
        wgmma_commit(); turns.end(); wgmma_wait<0>(); wgmma_hold(s);
        barrier_done(&empty_k[ring.slot]);
        softmax(); round_weights();
        first = false;
        Ring<STAGES> before = ring;
        for (ring.next(), n -= N; n >= 0; n -= N, before = ring, ring.next()) {
            barrier_wait(&full_k[ring.slot], ring.parity);
            turns.begin();
            wgmma_hold(p); wgmma_hold(o); wgmma_hold(s); wgmma_fence();
            product_scores<E, DP, N, M>(s, q, k + ring.slot * (TILE >> 4));
            wgmma_commit();
            barrier_wait(&full_v[before.slot], before.parity);
            wgmma_fence();
            product_values<E, DP, N, SW>(o, p, v + before.slot * (TILE >> 4), keep);
            wgmma_commit(); turns.end();
            wgmma_wait<1>(); wgmma_hold(s);
            barrier_done(&empty_k[ring.slot]);
            const float2 factor = softmax();
            wgmma_wait<0>(); wgmma_hold(o);
            barrier_done(&empty_v[before.slot]);
            keep = 1;
#pragma unroll
            for (int i = 0; i < DP / 2; i++) o[i] *= (i / 2) % 2 ? factor.y : factor.x;
            round_weights();
        }
        barrier_done(&empty_q);
        barrier_wait(&full_v[before.slot], before.parity);
        wgmma_hold(p); wgmma_hold(o); wgmma_fence();
        product_values<E, DP, N, SW>(o, p, v + before.slot * (TILE >> 4), keep);
        wgmma_commit(); wgmma_wait<0>(); wgmma_hold(o);
        barrier_done(&empty_v[before.slot]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], 1); sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
            const int64_t t = r0 + row + 8 * h;
            if (t < a.T && lane % 4 == 0) a.lse[((int64_t)item.b * a.U + item.u) * a.T + t] = top[h] * a.scale + logf(sum[h]);
            store_row<E, DP>(o, h, 1 / sum[h], t < a.T ? at<E>(a.y, item.b, t, kept) : (E *)0, 0, a.D);
        }
    }
    wait_for_previous();
#endif
}

/* Where a row's lse and delta lie among those of its 64 rows: the columns that one thread of the transposed kernel holds, side by side */
__device__ __forceinline__ int stat_place(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2; }

/* card  dq and delta of (A2) on tensor cores: a block owns 64 WG rows and walks the keys in tiles of 64:
         s = q k^T, g = dy v^T, p = exp(scale s - lse), dq += (p (g - delta)) k.  Writes lse in base 2 and delta, padded to 64 rows
         with +inf and 0, for the kernel after it.                                                                            */
template <class E, int DP, int WG>
__global__ __launch_bounds__(128 * (WG + 1), 1) void live_backward_rows(const __grid_constant__ Live a, const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                                                                       const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap mg)
{
#if HOPPER
    enum { M = 64 * WG, N = 64, STAGES = DP == 64 ? 4 : 3, TILE = N * DP * 2, SW = Panels<DP>::SW };
    extern __shared__ char raw[];
    __shared__ Draw<WG> draw;
    __shared__ uint64_t full_q, empty_q, full[STAGES], empty[STAGES];
    __shared__ float2 stat[M];
    char *Q = aligned_shared(raw), *G = Q + M * DP * 2, *K = G + M * DP * 2, *V = K + STAGES * TILE;
    const int group = warpgroup() - 1, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        draw.init(); barrier_init(&full_q, 1); barrier_init(&empty_q, 4 * WG * ARRIVALS);
        for (int s = 0; s < STAGES; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 4 * WG * ARRIVALS); }
        barrier_fence();
    }
    __syncthreads();
    let_next_start();
    Item item; Ring<STAGES> ring; uint32_t odd = 0;
    if (group < 0) {
        registers_down<WG == 3 ? 32 : 24>();
        if (threadIdx.x == 0)
            for (int turn = 0; live_item(a, draw.put(a, a.counter, turn), true, item); turn++, odd ^= 1) {
                const int kept = a.heads.kept[item.u], m0 = item.block * M - a.shift, end = m0 + M < a.T ? m0 + M : (int)a.T;
                barrier_wait(&empty_q, odd ^ 1); barrier_expect(&full_q, 2 * M * DP * 2);
                copy_rows<DP, WG>(Q, &mq, &full_q, m0, item.u, item.b);
                copy_rows<DP, WG>(G, &mg, &full_q, m0, kept, item.b);
                for (int n = (end - 1) / N * N; n >= 0; n -= N, ring.next()) {
                    barrier_wait(&empty[ring.slot], ring.parity ^ 1); barrier_expect(&full[ring.slot], 2 * TILE);
                    copy_head<DP>(K + ring.slot * TILE, &mk, &full[ring.slot], N, n, item.u, item.b);
                    copy_head<DP>(V + ring.slot * TILE, &mv, &full[ring.slot], N, n, kept, item.b);
                }
            }
        return;
    }
    registers_up<WG == 3 ? 160 : 240>();
    const Turns<WG> turns(group);
    const int row = threadIdx.x / 32 % 4 * 16 + lane / 4, mine = threadIdx.x % 128 / 2;
    const uint32_t q = descriptor_low(shared_address(Q) + 64 * group * SW, 16), g = descriptor_low(shared_address(G) + 64 * group * SW, 16);
    const uint32_t k = descriptor_low(shared_address(K), 16), kt = descriptor_low(shared_address(K), N * SW), v = descriptor_low(shared_address(V), 16);
    const float c = a.scale * (float)LOG2E;
    float s[N / 2], ds[N / 2], dq[DP / 2]; uint32_t p[N / 4];
    for (int turn = 0; live_item(a, draw.get(turn), true, item); turn++, odd ^= 1) {
        const int kept = a.heads.kept[item.u], m0 = item.block * M - a.shift, r0 = m0 + 64 * group, end = m0 + M < a.T ? m0 + M : (int)a.T;
        const bool none = r0 < 0;
        float lse = INFINITY, delta = 0;                                         /* two threads a row */
        const int64_t t = r0 + mine, bu = (int64_t)item.b * a.U + item.u;
        if (!none && t < a.T) {
            lse = a.lse[bu * a.T + t] * (float)LOG2E;
            const E *y = at<E>(a.y, item.b, t, kept), *dy = at<E>(a.dy, item.b, t, kept);
            for (int e = threadIdx.x % 2; e < a.D / 8; e += 2) {
                union Piece { uint4 raw; E e[8]; } f, h;
                f.raw = *(const uint4 *)(y + 8 * e); h.raw = *(const uint4 *)(dy + 8 * e);
#pragma unroll
                for (int i = 0; i < 8; i++) delta += to_float(f.e[i]) * to_float(h.e[i]);
            }
        }
        delta += __shfl_xor_sync(~0u, delta, 1);
        barrier_wait(&full_q, odd);                                              /* all warps are past the last item's stat */
        if (threadIdx.x % 2 == 0) {
            stat[64 * group + mine] = make_float2(lse, delta);
            if (!none) { a.lse2[bu * a.T64 + r0 + stat_place(mine)] = lse; a.delta[bu * a.T64 + r0 + stat_place(mine)] = delta; }
        }
        group_sync(1 + WG + group, 128);
        const float2 low = stat[64 * group + row], high = stat[64 * group + row + 8];
        int n = (end - 1) / N * N;
        for (; n >= 0 && (none || n > r0 + 63); n -= N, ring.next()) {
            turns.begin(); turns.end();
            barrier_wait(&full[ring.slot], ring.parity);
            barrier_done(&empty[ring.slot]);
        }
        if (none) { turns.begin(); turns.end(); barrier_done(&empty_q); continue; }
        bool first = true; int before = 0;
        turns.begin();
        for (; n >= 0; n -= N, ring.next()) {                                    /* the last tile's dq product runs on under the next scores */
            barrier_wait(&full[ring.slot], ring.parity);
            wgmma_hold(s); wgmma_hold(ds); wgmma_fence();
            product_scores<E, DP, N, M>(s, q, k + ring.slot * (TILE >> 4)); wgmma_commit();
            product_scores<E, DP, N, M>(ds, g, v + ring.slot * (TILE >> 4)); wgmma_commit();
            turns.end();
            wgmma_wait<1>(); wgmma_hold(s);
            if (!first) barrier_done(&empty[before]);
#pragma unroll
            for (int i = 0; i < N / 2; i++) s[i] = exp2_fast(s[i] * c - ((i / 2) % 2 ? high.x : low.x));
            if (first) {
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    if (n + 8 * (i / 4) + 2 * (lane % 4) + i % 2 > r0 + row + 8 * ((i / 2) % 2)) s[i] = 0;
            }
            wgmma_wait<0>(); wgmma_hold(ds);
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                const float d = i % 2 ? high.y : low.y;
                p[i] = pack<E>(s[2 * i] * (ds[2 * i] - d), s[2 * i + 1] * (ds[2 * i + 1] - d));
            }
            turns.begin();
            wgmma_hold(p); wgmma_hold(dq); wgmma_fence();
            product_values<E, DP, N, SW>(dq, p, kt + ring.slot * (TILE >> 4), !first); wgmma_commit();
            first = false; before = ring.slot;
        }
        turns.end();
        barrier_done(&empty_q);
        wgmma_wait<0>(); wgmma_hold(dq);
        barrier_done(&empty[before]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t i = r0 + row + 8 * h;
            if (a.rotation && i < a.T) unrotate<DP>(dq, h, i, a.rotation);
            store_row<E, DP>(dq, h, a.scale, i < a.T ? at<E>(a.dq, item.b, i, item.u) : (E *)0, 0, a.D);
        }
    }
    wait_for_previous();
#endif
}

/* card  dk and dv of (A2) on tensor cores: a block owns 128 keys, 64 a warpgroup, and walks the queries in tiles of 64, everything
         transposed so that the products' results are the next products' register operands:
         s^T = k q^T, g^T = v dy^T, p^T = exp(scale s^T - lse), dv += p^T dy, dk += (p^T (g^T - delta)) q                     */
template <class E, int DP>
__global__ __launch_bounds__(384, 1) void live_backward_keys(const __grid_constant__ Live a, const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                                                             const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap mg)
{
#if HOPPER
    enum { WG = 2, M = 128, N = 64, STAGES = DP == 64 ? 4 : 3, TILE = N * DP * 2, SW = Panels<DP>::SW };
    extern __shared__ char raw[];
    __shared__ Draw<WG> draw;
    __shared__ uint64_t full_k, empty_k, full[STAGES], empty[STAGES];
    char *K = aligned_shared(raw), *V = K + M * DP * 2, *Q = V + M * DP * 2, *G = Q + STAGES * TILE;
    float (*lse)[N] = (float (*)[N])(G + STAGES * TILE), (*delta)[N] = lse + STAGES;
    const int group = warpgroup() - 1, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        draw.init(); barrier_init(&full_k, 1); barrier_init(&empty_k, 4 * WG * ARRIVALS);
        for (int s = 0; s < STAGES; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 4 * WG * ARRIVALS); }
        barrier_fence();
    }
    __syncthreads();
    let_next_start();
    wait_for_previous();
    Item item; Ring<STAGES> ring; uint32_t odd = 0;
    if (group < 0) {
        registers_down<24>();
        if (threadIdx.x == 0)
            for (int turn = 0; live_item(a, draw.put(a, a.counter, turn), false, item); turn++, odd ^= 1) {
                const int kept = a.heads.kept[item.u], n0 = item.block * M;
                barrier_wait(&empty_k, odd ^ 1); barrier_expect(&full_k, 2 * M * DP * 2);
                copy_rows<DP, WG>(K, &mk, &full_k, n0, item.u, item.b);
                copy_rows<DP, WG>(V, &mv, &full_k, n0, kept, item.b);
                const int64_t stats = ((int64_t)item.b * a.U + item.u) * a.T64;
                for (int m = n0; m < a.T; m += N, ring.next()) {
                    uint64_t *bar = &full[ring.slot];
                    barrier_wait(&empty[ring.slot], ring.parity ^ 1); barrier_expect(bar, 2 * TILE + 2 * N * 4);
                    copy_head<DP>(Q + ring.slot * TILE, &mq, bar, N, m, item.u, item.b);
                    copy_line(lse[ring.slot], a.lse2 + stats + m, N * 4, bar);
                    copy_line(delta[ring.slot], a.delta + stats + m, N * 4, bar);
                    copy_head<DP>(G + ring.slot * TILE, &mg, bar, N, m, kept, item.b);
                }
            }
        return;
    }
    registers_up<240>();
    const Turns<WG> turns(group);
    const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const uint32_t k = descriptor_low(shared_address(K) + 64 * group * SW, 16), v = descriptor_low(shared_address(V) + 64 * group * SW, 16);
    const uint32_t q = descriptor_low(shared_address(Q), 16), qt = descriptor_low(shared_address(Q), N * SW), g = descriptor_low(shared_address(G), 16), gt = descriptor_low(shared_address(G), N * SW);
    const float c = a.scale * (float)LOG2E;
    const uint32_t zero = uint32_t(a.T64 >> 40);
    float s[N / 2], ds[N / 2], dk[DP / 2], dv[DP / 2]; uint32_t p[N / 4], pd[N / 4], kr[DP / 4], vr[DP / 4];
    for (int turn = 0; live_item(a, draw.get(turn), false, item); turn++, odd ^= 1) {
        const int kept = a.heads.kept[item.u], n0 = item.block * M, r0 = n0 + 64 * group;
        int m = n0;
        if (group == 1) {                                                        /* the first queries come before these keys */
            turns.begin(); turns.end();
            barrier_wait(&full[ring.slot], ring.parity);
            barrier_done(&empty[ring.slot]);
            m += N; ring.next();
        }
        barrier_wait(&full_k, odd);
        if (DP == 64) { load_rows_of<DP>(kr, shared_address(K), M, 64 * group); load_rows_of<DP>(vr, shared_address(V), M, 64 * group); }
        bool first = true; int before = 0;
        turns.begin();
        for (; m < a.T; m += N, ring.next()) {
            barrier_wait(&full[ring.slot], ring.parity);
            wgmma_hold(s); wgmma_hold(ds);
            if (DP == 64) {                                                      /* keys and values stay in registers: half the shared-memory reads */
#pragma unroll
                for (int i = 0; i < DP / 4; i++) { kr[i] ^= zero; vr[i] ^= zero; }  /* unchanged; ptxas 13.0 gives p their registers if the loop does not write them */
                wgmma_hold(kr); wgmma_hold(vr); wgmma_fence();
                product_scores<E, DP, N>(s, kr, q + ring.slot * (TILE >> 4)); wgmma_commit();
                product_scores<E, DP, N>(ds, vr, g + ring.slot * (TILE >> 4)); wgmma_commit();
            } else {
                wgmma_fence();
                product_scores<E, DP, N, M>(s, k, q + ring.slot * (TILE >> 4)); wgmma_commit();
                product_scores<E, DP, N, M>(ds, v, g + ring.slot * (TILE >> 4)); wgmma_commit();
            }
            turns.end();
            wgmma_wait<1>(); wgmma_hold(s);
            if (!first) barrier_done(&empty[before]);
#pragma unroll
            for (int i = 0; i < N / 16; i++) {
                const float4 l = *(const float4 *)&lse[ring.slot][16 * i + 4 * (lane % 4)];
#pragma unroll
                for (int h = 0; h < 4; h += 2) {
                    s[8 * i + h] = exp2_fast(s[8 * i + h] * c - l.x);         s[8 * i + h + 1] = exp2_fast(s[8 * i + h + 1] * c - l.y);
                    s[8 * i + h + 4] = exp2_fast(s[8 * i + h + 4] * c - l.z); s[8 * i + h + 5] = exp2_fast(s[8 * i + h + 5] * c - l.w);
                }
            }
            if (first) {
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    if (8 * (i / 4) + 2 * (lane % 4) + i % 2 < row + 8 * ((i / 2) % 2)) s[i] = 0;
            }
#pragma unroll
            for (int i = 0; i < N / 4; i++) p[i] = pack<E>(s[2 * i], s[2 * i + 1]);
            wgmma_wait<0>(); wgmma_hold(ds);
#pragma unroll
            for (int i = 0; i < N / 16; i++) {
                const float4 d = *(const float4 *)&delta[ring.slot][16 * i + 4 * (lane % 4)];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int e = 8 * i + 2 * h;
                    pd[4 * i + h] = pack<E>(s[e] * (ds[e] - d.x), s[e + 1] * (ds[e + 1] - d.y));
                    pd[4 * i + h + 2] = pack<E>(s[e + 4] * (ds[e + 4] - d.z), s[e + 5] * (ds[e + 5] - d.w));
                }
            }
            turns.begin();
            wgmma_hold(p); wgmma_hold(pd); wgmma_hold(dk); wgmma_hold(dv); wgmma_fence();
            product_values<E, DP, N, SW>(dv, p, gt + ring.slot * (TILE >> 4), !first);
            product_values<E, DP, N, SW>(dk, pd, qt + ring.slot * (TILE >> 4), !first); wgmma_commit();
            if (DP == 128) wgmma_wait<0>();                                      /* no registers left to run on under the next scores */
            first = false; before = ring.slot;
        }
        turns.end();
        barrier_done(&empty_k);
        wgmma_wait<0>(); wgmma_hold(dk); wgmma_hold(dv);
        if (!first) barrier_done(&empty[before]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int64_t t = r0 + row + 8 * h;
            if (a.rotation && t < a.T) unrotate<DP>(dk, h, t, a.rotation);
            store_row<E, DP>(dk, h, a.scale, t < a.T ? at<E>(a.dk, item.b, t, item.u) : (E *)0, 0, a.D);
            store_row<E, DP>(dv, h, 1.f, t < a.T ? at<E>(a.dv, item.b, t, kept) : (E *)0, 0, a.D);
        }
    }
#endif
}

/* ==== @@STATIC ===========================================================================================================
   P[i,j] = w[i-j] col[j] row[i] is built from three tables in registers, one rounding a cell, no exponential, and multiplies the
   values of NB sequences at once, since the pattern is the same for all of them.  In a tile the cell depends on i - j only, so a
   thread that walks along a row of 16-column steps meets every factor w three times and keeps it.

   card  rows (P5): y[b,i,:] = sum_j P[i,j] v[b,j,:], a block owns 128 rows of one head and NB sequences; adjoint (P7):
         dv[b,j,:] = sum_i P[i,j] dy[b,i,:] is the same with row and col exchanged and time reversed.
         exact: all tiles on one side of the diagonal, O(T^2 D / 2) a sequence; linear: W rounded up to 64 + 128 keys, then the far part
         from R states at the block's edge (P4), O(T (W + R) D):
           S_r(k0) = sum_{k<k0} decay_r^(k0-1-k) col[k] v[k],   far y[i] = row[i] sum_r coef_r decay_r^(i-W-k0+1) S_r(k0),  k0 = i0 - Wc
         adjoint: S_r(i1) = sum_{i>=i1} decay_r^(i-i1) row[i] dy[i],  far dv[j] = col[j] sum_r coef_r decay_r^(i1-j-W) S_r(i1),  i1 = j0 + 128 + Wc  */
struct Static {
    Tensor in, out; Prepared pre; Heads heads; float *sums; bf16 *states;
    int64_t B, T; int D, blocks, b_groups, linear, sum_batch; int64_t items;
};
enum { SM = 128, SK = 64, FAR_ROWS = 2 * MAX_R };
enum { SHORT = 512 };                      /* up to here a linear head is cheaper by its tiles alone */

template <class E, int DP, int NB, bool ADJOINT>
__global__ __launch_bounds__(384, 1) void static_apply(const __grid_constant__ Static a, const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap ms)
{
#if HOPPER
    typedef Panels<DP> P;
    enum { N = DP * NB, TILE = SK * N * 2, SLOT = TILE + 1024, STAGES = 196608 / SLOT > 6 ? 6 : 196608 / SLOT, FAR = FAR_ROWS * N * 2 };
    extern __shared__ char raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *ring = aligned_shared(raw);
    const int group = warpgroup() - 1, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 8 * ARRIVALS); }
        barrier_fence();
    }
    __syncthreads();
    let_next_start(); wait_for_previous();
    /* item -> head, block of rows (exact: the longest first), sequences; and the range [t0, t1) that it reads, far: states too */
    int h, block, b0, far; int64_t i0, t0, t1;
    auto locate = [&](int64_t item) {
        const int64_t per = int64_t(a.blocks) * a.b_groups;
        h = int(item / per); const int r = int(item % per);
        block = r / a.b_groups; b0 = r % a.b_groups * NB;
        if (!ADJOINT) block = a.blocks - 1 - block;
        i0 = int64_t(block) * SM;
        const int Wc = a.pre.info[a.heads.slot[h]].Wc;
        if (ADJOINT) { t0 = i0; t1 = a.linear && i0 + SM + Wc < a.T ? i0 + SM + Wc : a.T; far = t1 < a.T; }
        else         { t1 = i0 + SM < a.T ? i0 + SM : a.T; t0 = a.linear && i0 > Wc ? i0 - Wc : 0; far = t0 > 0; }
    };
    int x = 0;                                                                   /* slots used so far: stage and parity of the ring */
    if (group < 0) {
        registers_down<24>();
        if (threadIdx.x == 0)
            for (int64_t item = blockIdx.x; item < a.items; item += gridDim.x) {
                locate(item);
                const int p = a.heads.slot[h];
                const float *w = a.pre.w + p * a.pre.Tw + 128, *c = (ADJOINT ? a.pre.row : a.pre.col) + p * a.pre.Tp;
                for (int64_t t = t0; t < t1; t += SK, x++) {
                    const int s = x % STAGES; char *slot = ring + s * SLOT;
                    barrier_wait(&empty[s], x / STAGES % 2 ^ 1); barrier_expect(&full[s], TILE + 1024);
                    for (int q = 0; q < P::COUNT; q++) copy_tile(slot + q * NB * SK * P::SW, &mv, &full[s], q * P::COLUMNS, (int)t, a.heads.kept[h], b0);
                    copy_line(slot + TILE, w + (ADJOINT ? t - i0 - 128 : i0 - t - 64), 768, &full[s]);
                    copy_line(slot + TILE + 768, c + t, 256, &full[s]);
                }
                if (far) {
                    const int s = x % STAGES;
                    barrier_wait(&empty[s], x / STAGES % 2 ^ 1); barrier_expect(&full[s], FAR);
                    for (int q = 0; q < P::COUNT; q++) copy_tile(ring + s * SLOT + q * NB * FAR_ROWS * P::SW, &ms, &full[s], q * P::COLUMNS, block * FAR_ROWS, h, b0);
                    x++;
                }
            }
        return;
    }
    registers_up<240>();
    const int row = 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int origin = ADJOINT ? 128 - row + 2 * (lane % 4) : 64 + row - 2 * (lane % 4);   /* of the thread's first cell in a segment of w */
    float acc[N / 2]; uint32_t A[2][16];
    for (int64_t item = blockIdx.x; item < a.items; item += gridDim.x) {
        locate(item);
        const int p = a.heads.slot[h];
        const float *factor = (ADJOINT ? a.pre.col : a.pre.row) + p * a.pre.Tp + i0 + row;
        const float f0 = factor[0], f1 = factor[8];
        auto cells = [&](const char *slot, uint32_t (&A)[16]) {
            const float *w = (const float *)(slot + TILE) + origin; const float2 *c = (const float2 *)(slot + TILE + 768) + lane % 4;
            enum { S = ADJOINT ? 1 : -1 };                                       /* w runs along a row by S per column */
            float2 back = make_float2(w[-8 * S], w[-8 * S + S]);
#pragma unroll
            for (int kk = 0; kk < SK / 16; kk++) {
                const float *u = w + 16 * kk * S;
                const float2 here = make_float2(u[0], u[S]), ahead = make_float2(u[8 * S], u[9 * S]), cl = c[8 * kk], ch = c[8 * kk + 4];
                A[4 * kk]     = pack<E>(here.x * cl.x * f0, here.y * cl.y * f0);
                A[4 * kk + 1] = pack<E>(back.x * cl.x * f1, back.y * cl.y * f1);
                A[4 * kk + 2] = pack<E>(ahead.x * ch.x * f0, ahead.y * ch.y * f0);
                A[4 * kk + 3] = pack<E>(here.x * ch.x * f1, here.y * ch.y * f1);
                back = ahead;
            }
        };
        /* the tile on the other side of the diagonal for this warpgroup holds zeros only */
        auto skipped = [&](int64_t t) { return ADJOINT ? t == i0 && group == 1 : t == i0 + SK && group == 0; };
        int keep = 0, pending = -1; bool odd = false;
        auto tile = [&](int64_t t, uint32_t (&A)[16]) {
            const int s = x % STAGES;
            barrier_wait(&full[s], x / STAGES % 2);
            if (skipped(t)) { barrier_done(&empty[s]); x++; return; }
            cells(ring + s * SLOT, A);
            wgmma_wait<0>();
            if (pending >= 0) barrier_done(&empty[pending]);
            wgmma_hold(A); wgmma_hold(acc); wgmma_fence();
            product_values<E, N, SK, P::SW>(acc, A, descriptor_low(shared_address(ring + s * SLOT), SK * P::SW), keep);
            wgmma_commit();
            keep = 1; pending = s; x++;
        };
        for (int64_t t = t0; t < t1; t += SK, odd = !odd)
            if (odd) tile(t, A[1]); else tile(t, A[0]);
        wgmma_wait<0>();
        if (pending >= 0) barrier_done(&empty[pending]);
        if (far) {
            const int s = x % STAGES, n = ADJOINT ? 127 - row : row, step = ADJOINT ? -8 : 8;
            const float *table = a.pre.far + p * MAX_R * LAM + 2 * (lane % 4) * LAM + n;
            uint32_t F[8];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float *u = table + 8 * e * LAM;
                F[2 * e] = F[4 + 2 * e] = pack<bf16>(u[0] * f0, u[LAM] * f0);
                F[2 * e + 1] = F[4 + 2 * e + 1] = pack<bf16>(u[step] * f1, u[LAM + step] * f1);
            }
            barrier_wait(&full[s], x / STAGES % 2);
            wgmma_fence();
            product_values<bf16, N, FAR_ROWS, P::SW>(acc, F, descriptor_low(shared_address(ring + s * SLOT), FAR_ROWS * P::SW), keep);
            wgmma_commit(); wgmma_wait<0>();
            barrier_done(&empty[s]);
            x++;
        }
        wgmma_hold(acc);
#pragma unroll
        for (int hh = 0; hh < 2; hh++) {
            const int64_t t = i0 + row + 8 * hh;
#pragma unroll
            for (int q = 0; q < P::COUNT; q++)
#pragma unroll
                for (int b = 0; b < NB; b++)
                    store_row<E, P::COLUMNS>(acc + (q * NB + b) * (P::COLUMNS / 2), hh, 1.f,
                                             t < a.T && b0 + b < a.B ? at<E>(a.out, b0 + b, t, a.heads.kept[h]) : (E *)0, q * P::COLUMNS, a.D);
        }
    }
#endif
}

/* card  the states' inputs (P4): sums[h,b,block,r,:] = sum over the block's 128 keys k of decay_r^(127-k) col[k] v[k], block shifted by Wc
         (adjoint: decay_r^i row[i] dy[i]); mma m16n8k16, 16 terms by D columns; a block takes one head, one block of keys, some sequences   */
template <class E, int DP, bool ADJOINT>
__global__ __launch_bounds__(128) void static_sums(const __grid_constant__ Static a)
{
    enum { STRIDE = DP * 2 + 16, TILE = SM * STRIDE, NT = DP / 32, PIECES = DP / 8 };
    extern __shared__ char raw[];
    const int groups = int((a.B + a.sum_batch - 1) / a.sum_batch), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int bg = blockIdx.x % groups, block = blockIdx.x / groups % a.blocks, h = blockIdx.x / groups / a.blocks, p = a.heads.slot[h];
    const int Wc = a.pre.info[p].Wc;
    const int64_t k0 = int64_t(block) * SM + (ADJOINT ? Wc : -Wc), b0 = int64_t(bg) * a.sum_batch, b1 = b0 + a.sum_batch < a.B ? b0 + a.sum_batch : a.B;
    let_next_start();
    auto fetch = [&](int64_t b, int buffer) {
        for (int x = threadIdx.x; x < SM * PIECES; x += 128) {
            const int r = x / PIECES, c = x % PIECES; const int64_t t = k0 + r; const bool in = t >= 0 && t < a.T && 8 * c < a.D;
            const void *from = in ? (const void *)(at<E>(a.in, b, t, a.heads.kept[h]) + 8 * c) : a.in.data;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(raw + buffer * TILE + r * STRIDE + 16 * c)), "l"(from), "r"(in ? 16 : 0) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(b0, 0);
    uint32_t A[SM / 16][4];
    {
        const float *lam = a.pre.lam + p * MAX_R * LAM + lane / 4 * LAM, *c = (ADJOINT ? a.pre.row : a.pre.col) + p * a.pre.Tp;
#pragma unroll
        for (int kk = 0; kk < SM / 16; kk++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int k = 16 * kk + 8 * e + 2 * (lane % 4), n = ADJOINT ? k : 127 - k, m = ADJOINT ? k + 1 : 126 - k;
                const float u = k0 + k >= 0 && k0 + k < a.T ? c[k0 + k] : 0.f, w = k0 + k + 1 >= 0 && k0 + k + 1 < a.T ? c[k0 + k + 1] : 0.f;
                A[kk][2 * e] = pack<bf16>(lam[n] * u, lam[m] * w);
                A[kk][2 * e + 1] = pack<bf16>(lam[8 * LAM + n] * u, lam[8 * LAM + m] * w);
            }
    }
    auto mma = [](float (&d)[4], const uint32_t (&A)[4], uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(b0), "r"(b1));
    };
    for (int64_t b = b0; b < b1; b++) {
        const int buffer = int(b - b0) % 2;
        if (b + 1 < b1) { fetch(b + 1, buffer ^ 1); asm volatile("cp.async.wait_group 1;" ::: "memory"); }
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        float d[NT][4] = {};
#pragma unroll
        for (int kk = 0; kk < SM / 16; kk++)
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint32_t u, w;
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(u), "=r"(w)
                             : "r"(shared_address(raw + buffer * TILE + (16 * kk + lane % 16) * STRIDE + (warp * NT + n) * 16)) : "memory");
                if constexpr (is_bf16<E>::value) mma(d[n], A[kk], u, w);
                else {                                                           /* an fp16 value is the sum of two bf16 ones */
                    float2 f = __half22float2(*(const __half2 *)&u), g = __half22float2(*(const __half2 *)&w);
                    uint32_t fh = pack<bf16>(f.x, f.y), gh = pack<bf16>(g.x, g.y);
                    float2 r = __bfloat1622float2(*(const __nv_bfloat162 *)&fh), t = __bfloat1622float2(*(const __nv_bfloat162 *)&gh);
                    mma(d[n], A[kk], fh, gh);
                    mma(d[n], A[kk], pack<bf16>(f.x - r.x, f.y - r.y), pack<bf16>(g.x - t.x, g.y - t.y));
                }
            }
        float *to = a.sums + ((int64_t(h) * a.B + b) * a.blocks + block) * MAX_R * DP;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int column = (warp * NT + n) * 8 + 2 * (lane % 4);
            *(float2 *)(to + lane / 4 * DP + column) = make_float2(d[n][0], d[n][1]);
            *(float2 *)(to + (lane / 4 + 8) * DP + column) = make_float2(d[n][2], d[n][3]);
        }
        __syncthreads();
    }
    wait_for_previous();
}

/* card  the states (P4): S(block + 1) = decay^128 S(block) + sums(block) in fp32, one thread a term and column (adjoint: from the end);
         written as bf16 pairs, high part and rest, ready to be multiplied                                                     */
template <int DP, bool ADJOINT> __global__ void static_carry(const __grid_constant__ Static a)
{
    let_next_start(); wait_for_previous();
    int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int c = int(x % DP), r = int(x / DP % MAX_R); x /= DP * MAX_R;
    const int h = int(x / a.B);
    if (h >= a.heads.n) return;
    const float *lam = a.pre.lam + (a.heads.slot[h] * MAX_R + r) * LAM;
    const float decay = lam[128], *sum = a.sums + x * a.blocks * MAX_R * DP + r * DP + c;
    bf16 *to = a.states + x * a.blocks * FAR_ROWS * DP + r * DP + c;
    float s = 0;
    for (int n = 0; n < a.blocks; n += 32) {
        float u[32];
#pragma unroll
        for (int e = 0; e < 32; e++) { int k = ADJOINT ? a.blocks - 1 - n - e : n + e; u[e] = n + e < a.blocks ? sum[int64_t(k) * MAX_R * DP] : 0.f; }
#pragma unroll
        for (int e = 0; e < 32; e++)
            if (n + e < a.blocks) {
                const int64_t k = ADJOINT ? a.blocks - 1 - n - e : n + e; const bf16 high = from_float<bf16>(s);
                to[k * FAR_ROWS * DP] = high; to[(k * FAR_ROWS + MAX_R) * DP] = from_float<bf16>(s - to_float(high));
                s = s * decay + u[e];
            }
    }
}

/* ==== @@CALL ============================================================================================================= */

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
EncodeTiled find_encode_tiled()
{
    void *f = 0; cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess) return 0;
    return (EncodeTiled)f;
}
EncodeTiled encode_tiled() { static const EncodeTiled f = find_encode_tiled(); return f; }
/* A tensor [B,T,H,D] seen in boxes of `rows` positions of `batch` sequences of one head, one panel of columns at a time; zeros outside */
bool make_map(CUtensorMap *map, int type, const Tensor &x, int64_t B, int64_t T, int64_t H, int D, int DP, int rows, int batch)
{
    EncodeTiled encode = encode_tiled();
    if (!encode) return false;
    const bool wide = DP % 64 == 0;
    auto step = [](int64_t s) { return (cuuint64_t)(s > 0 ? s * 2 : 16); };     /* a dimension of one element may have any stride */
    cuuint64_t size[4] = { (cuuint64_t)D, (cuuint64_t)T, (cuuint64_t)H, (cuuint64_t)B }, stride[3] = { step(x.t), step(x.h), step(x.b) };
    cuuint32_t box[4] = { wide ? 64u : 32u, (cuuint32_t)rows, 1, (cuuint32_t)batch }, one[4] = { 1, 1, 1, 1 };
    return encode(map, type == GPTS_GPU_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data, size, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* What runs where.  Heads go to the tensor-core kernels when type, head size, strides and alignment allow, else to the plain ones. */
struct Plan {
    int U, n, kept, DP; bool fast_live;
    Heads live, exact, linear, plain;
    size_t counters, rotated, stats, delta, sums, states, bytes;                          /* offsets into the workspace */
};
bool aligned(const Tensor &x, int64_t B, int64_t T, int64_t H)
{
    return (uintptr_t)x.data % 16 == 0 && (x.b % 8 == 0 || B == 1) && (x.t % 8 == 0 || T == 1) && (x.h % 8 == 0 || H == 1) &&
           (x.t > 0 || T == 1) && (x.h > 0 || H == 1) && (x.b > 0 || B == 1);
}
int processor_count()
{
    int device = 0, n = 1;
    cudaGetDevice(&device); cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
}
/* A Hopper device, and code for sm_90a in this build: without it the kernels are empty and own no shared memory. */
bool hopper()
{
    int device = 0, major = 0; cudaFuncAttributes f;
    return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9 &&
           cudaFuncGetAttributes(&f, live_forward<bf16, 64, 3>) == cudaSuccess && f.sharedSizeBytes > 0;
}
void add_head(Heads &list, int kept, int slot, bool live)
{
    list.kept[list.n] = (uint16_t)kept; list.slot[list.n] = (uint16_t)slot; list.live[list.n++] = live;
}
/* whether static head s of the linear form runs by near tiles and states; else by all its tiles, which any tail allows */
bool runs_linear(const gpts_gpu_attention *a, int s)
{
    return a->T > SHORT && a->R <= MAX_R && a->tail_start && a->tail_start[s] >= 1 && a->tail_start[s] <= MAX_W;
}
Plan make_plan(const gpts_gpu_attention *a, bool backward)
{
    Plan p; memset(&p, 0, sizeof p);
    for (int h = 0; h < a->H; h++) {
        p.U += a->kind[h] == GPTS_GPU_LIVE; p.n += a->kind[h] == GPTS_GPU_EXACT || a->kind[h] == GPTS_GPU_LINEAR; p.kept += a->kind[h] != GPTS_GPU_PRUNED;
    }
    p.DP = a->D <= 64 ? 64 : a->D <= 96 ? 96 : 128;
    const bool fast = !a->plain && a->type != GPTS_GPU_F32 && a->D % 8 == 0 && a->D <= 128 && a->B < (1 << 30) && hopper() &&
        aligned(a->v, a->B, a->T, p.kept) && (backward ? aligned(a->dy, a->B, a->T, p.kept) && aligned(a->dv, a->B, a->T, p.kept) : true) && aligned(a->y, a->B, a->T, p.kept);
    p.fast_live = fast && (a->scale > 0 || a->scale == 0) && (a->theta <= 0 || a->D == p.DP) && aligned(a->q, a->B, a->T, p.U) && aligned(a->k, a->B, a->T, p.U) &&
        (!backward || (aligned(a->dq, a->B, a->T, p.U) && aligned(a->dk, a->B, a->T, p.U)));
    int kept = 0, u = 0, s = 0;
    for (int h = 0; h < a->H; h++) {
        const int kind = a->kind[h];
        if (kind == GPTS_GPU_PRUNED) continue;
        if (kind == GPTS_GPU_LIVE) { add_head(p.fast_live ? p.live : p.plain, kept, u, true); u++; }
        else {
            const bool wide = a->wide && a->wide[h];
            add_head(!fast || wide ? p.plain : kind == GPTS_GPU_LINEAR && runs_linear(a, s) ? p.linear : p.exact, kept, s, false); s++;
        }
        kept++;
    }
    const size_t rows = (size_t)a->B * (size_t)a->T, blocks = (size_t)((a->T + SM - 1) / SM), T64 = (size_t)((a->T + 63) / 64 * 64);
    auto take = [&](size_t bytes) { size_t o = p.bytes; p.bytes += (bytes + 1023) / 1024 * 1024; return o; };
    /* by kinds and type alone: pointers, strides and wide patterns may change what runs, never how much memory a call needs */
    const bool could = !a->plain && a->type != GPTS_GPU_F32 && a->D % 8 == 0 && a->D <= 128; size_t linear = 0;
    for (int h = 0; h < a->H; h++) linear += could && a->kind[h] == GPTS_GPU_LINEAR;
    p.counters = take(could && p.U ? 2 * sizeof(int) : 0);
    p.rotated = take(could && a->theta > 0 ? 2 * rows * p.U * a->D * 2 : 0);
    p.stats = take(could && backward ? 2 * (size_t)a->B * p.U * T64 * 4 : 0);
    p.delta = take(backward ? rows * p.U * 4 : 0);
    p.sums = take(linear * a->B * blocks * MAX_R * p.DP * 4);
    p.states = take(linear * a->B * blocks * FAR_ROWS * p.DP * 2);
    return p;
}

gpts_gpu_status checked(gpts_gpu_attention *a, cudaError_t e)
{
    if (e == cudaSuccess) return GPTS_GPU_OK;
    snprintf(a->error, sizeof a->error, "the device reports: %s", cudaGetErrorString(e)); return GPTS_GPU_FAILED;
}
#define REFUSE(condition, status, ...) do { if (condition) { snprintf(a->error, sizeof a->error, __VA_ARGS__); return status; } } while (0)

/* Everything that can be refused is refused here, before any work is queued. */
gpts_gpu_status validate(gpts_gpu_attention *a, int stage)                       /* 0 prepare, 1 forward, 2 backward */
{
    a->error[0] = 0;
    REFUSE(a->H < 1 || a->H > MAX_HEADS || !a->kind, GPTS_GPU_BAD_ARGUMENT, "a layer has 1 to %d heads with a kind each, not %d", MAX_HEADS, a->H);
    REFUSE(a->D < 1 || a->D > MAX_D, GPTS_GPU_UNSUPPORTED, "head size %d is not between 1 and %d", a->D, MAX_D);
    REFUSE(a->T < 1 || a->T > 131072, GPTS_GPU_UNSUPPORTED, "length %lld is not between 1 and 131072", (long long)a->T);
    REFUSE(a->B < 1 || a->B > (1 << 28), GPTS_GPU_BAD_ARGUMENT, "%lld sequences are not between 1 and 2^28", (long long)a->B);
    REFUSE(a->type < GPTS_GPU_F32 || a->type > GPTS_GPU_BF16, GPTS_GPU_BAD_ARGUMENT, "element type %d is not known", a->type);
    REFUSE(a->theta > 0 && a->D % 2, GPTS_GPU_BAD_ARGUMENT, "rotation needs an even head size, not %d", a->D);
    REFUSE((double)a->B * a->H * ceil((double)a->T / PK) > 2147483647., GPTS_GPU_UNSUPPORTED, "%lld sequences of %d heads and %lld positions are more than one launch takes", (long long)a->B, a->H, (long long)a->T);
    int n = 0, U = 0;
    for (int h = 0; h < a->H; h++) {
        const int kind = a->kind[h];
        REFUSE(kind > GPTS_GPU_PRUNED, GPTS_GPU_BAD_ARGUMENT, "head %d has the unknown kind %d", h, kind);
        U += kind == GPTS_GPU_LIVE;
        if (kind != GPTS_GPU_EXACT && kind != GPTS_GPU_LINEAR) continue;
        REFUSE(a->S < 1 || !a->alpha || !a->rho, GPTS_GPU_BAD_ARGUMENT, "head %d is static but there is no pattern", h);
        REFUSE(a->R < 0 || a->R > 256, GPTS_GPU_UNSUPPORTED, "%d terms are not between 0 and 256", a->R);
        const int64_t W = a->tail_start ? a->tail_start[n] : a->S; const bool tail = a->R > 0 && a->coef && a->decay && W < a->S;
        REFUSE(kind == GPTS_GPU_LINEAR && (!tail || W < 0), GPTS_GPU_BAD_ARGUMENT, "linear head %d needs a tail that starts before S = %lld", h, (long long)a->S);
        REFUSE(a->T > a->S && !tail, GPTS_GPU_UNSUPPORTED, "head %d has no tail, so it ends at %lld positions, not %lld", h, (long long)a->S, (long long)a->T);
        n++;
    }
    if (n || a->theta > 0) {
        const size_t need = prepared_layout(a, n).bytes;
        REFUSE(!a->prepared || a->prepared_bytes < need, GPTS_GPU_BAD_ARGUMENT, "the prepared tables need %zu bytes, not %zu", need, a->prepared ? a->prepared_bytes : 0);
        REFUSE(n && !a->wide, GPTS_GPU_BAD_ARGUMENT, "static heads need the array wide, one byte a head");
    }
    if (!stage) return GPTS_GPU_OK;
    const bool kept = n + U > 0, back = stage == 2;
    REFUSE(kept && (!a->v.data || !a->y.data || (U && (!a->q.data || !a->k.data || !a->lse))), GPTS_GPU_BAD_ARGUMENT, "q, k, v, y or lse is missing");
    REFUSE(back && kept && (!a->dy.data || !a->dv.data || (U && (!a->dq.data || !a->dk.data))), GPTS_GPU_BAD_ARGUMENT, "dy, dq, dk or dv is missing");
    const size_t need = make_plan(a, back).bytes;
    REFUSE(need && (!a->workspace || a->workspace_bytes < need), GPTS_GPU_BAD_ARGUMENT, "the workspace needs %zu bytes, not %zu", need, a->workspace ? a->workspace_bytes : 0);
    return GPTS_GPU_OK;
}

/* ---- launches of the fast kernels ------------------------------------------------------------------------------------------- */
enum { MAP_FAILED = cudaErrorInvalidValue };

/* follows: the kernel before this one in the stream is one of ours that lets it start early */
template <class K, class... A> cudaError_t launch(K kernel, int64_t grid, int threads, int bytes, cudaStream_t stream, bool follows, const A &...args)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    cudaLaunchAttribute early; memset(&early, 0, sizeof early);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization; early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config; memset(&config, 0, sizeof config);
    config.gridDim = dim3((unsigned)grid); config.blockDim = dim3((unsigned)threads); config.dynamicSmemBytes = (size_t)bytes; config.stream = stream;
    config.attrs = &early; config.numAttrs = follows ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <class E> cudaError_t rotate_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, cudaStream_t stream)
{
    const int64_t pairs = a->B * a->T * p.U * (a->D / 16);
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        E *to = (E *)((char *)a->workspace + p.rotated) + i * a->B * a->T * p.U * a->D;
        rotate_heads<E><<<(unsigned)((pairs + 255) / 256), 256, 0, stream>>>(i ? a->k : a->q, to, pre.rotation, a->T, p.U, a->D, pairs);
        e = cudaGetLastError();
    }
    return e;
}
template <class E, int DP> cudaError_t live_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, bool backward, bool follows, cudaStream_t stream)
{
    char *work = (char *)a->workspace; cudaError_t e = cudaSuccess;
    Tensor q = a->q, k = a->k;
    if (a->theta > 0)
        for (int i = 0; i < 2; i++) {
            Tensor &x = i ? k : q;
            x.data = (E *)(work + p.rotated) + i * a->B * a->T * p.U * a->D; x.h = a->D; x.t = (int64_t)p.U * a->D; x.b = a->T * x.t;
        }
    Live l; memset(&l, 0, sizeof l);
    l.y = a->y; l.dy = a->dy; l.dq = a->dq; l.dk = a->dk; l.dv = a->dv; l.lse = a->lse; l.rotation = a->theta > 0 ? pre.rotation : 0;
    l.B = a->B; l.T = a->T; l.T64 = (a->T + 63) / 64 * 64; l.U = p.U; l.D = a->D; l.heads = p.live;
    l.scale = a->scale > 0 ? a->scale : 1 / sqrtf((float)a->D);
    l.counter = (int *)(work + p.counters);
    l.lse2 = (float *)(work + p.stats); l.delta = l.lse2 + a->B * p.U * l.T64;
    const int64_t heads = a->B * p.U, processors = processor_count();
    auto blocks = [&](int M, int tensors) {
        const int64_t fit = (32 << 20) / (a->T * DP * 2 * tensors);
        l.blocks = (int)((a->T + M - 1) / M); l.shift = (int)(l.blocks * M - l.T64); 
        const int64_t groups = (heads + (fit < 1 ? 1 : fit) - 1) / (fit < 1 ? 1 : fit); l.group = (int)((heads + groups - 1) / groups);
        return heads * l.blocks < processors ? heads * l.blocks : processors;
    };
    CUtensorMap mq, mk, mv, mg;
    auto map = [&](CUtensorMap &m, const Tensor &x, int H, int rows) { return make_map(&m, a->type, x, a->B, a->T, H, a->D, DP, rows, 1); };
    constexpr int WG = DP == 64 ? 3 : 2;
    if (!backward) {
        if (!map(mq, q, p.U, 64) || !map(mk, k, p.U, 128) || !map(mv, a->v, p.kept, 128)) return (cudaError_t)MAP_FAILED;
        const int64_t grid = blocks(64 * WG, 2);
        return launch(live_forward<E, DP, WG>, grid, 128 * (WG + 1), (64 * WG + 4 * 128) * DP * 2 + 1024, stream, follows, l, mq, mk, mv);
    }
    if (!map(mq, q, p.U, 64) || !map(mk, k, p.U, 64) || !map(mv, a->v, p.kept, 64) || !map(mg, a->dy, p.kept, 64)) return (cudaError_t)MAP_FAILED;
    constexpr int STAGES = DP == 64 ? 4 : 3;
    int64_t grid = blocks(64 * WG, 2);
    e = launch(live_backward_rows<E, DP, WG>, grid, 128 * (WG + 1), (2 * 64 * WG + 2 * STAGES * 64) * DP * 2 + 1024, stream, follows, l, mq, mk, mv, mg);
    if (e != cudaSuccess) return e;
    grid = blocks(128, 2); l.counter++;
    return launch(live_backward_keys<E, DP>, grid, 384, (2 * 128 + 2 * STAGES * 64) * DP * 2 + STAGES * 512 + 1024, stream, true, l, mq, mk, mv, mg);
}

template <class E, int DP, int NB, bool ADJOINT>
cudaError_t static_launch(const gpts_gpu_attention *a, const Plan &p, Static s, const Heads &heads, bool linear, bool &follows, cudaStream_t stream)
{
    if (!heads.n) return cudaSuccess;
    const int processors = processor_count(); cudaError_t e;
    s.heads = heads; s.linear = linear; s.b_groups = (int)((a->B + NB - 1) / NB);
    s.items = (int64_t)heads.n * s.blocks * s.b_groups;
    CUtensorMap mv, ms;
    if (!make_map(&mv, a->type, s.in, a->B, a->T, p.kept, a->D, DP, SK, NB)) return (cudaError_t)MAP_FAILED;
    ms = mv;
    const bool far = linear && a->T > SM;
    if (far) {
        const int bytes = 2 * SM * (DP * 2 + 16);
        const int64_t tiles = (int64_t)heads.n * s.blocks, threads = (int64_t)heads.n * a->B * MAX_R * DP;
        s.sum_batch = tiles * a->B <= 6 * processors ? 1 : 4;
        if ((e = launch(static_sums<E, DP, ADJOINT>, tiles * ((a->B + s.sum_batch - 1) / s.sum_batch), 128, bytes, stream, follows, s)) != cudaSuccess) return e;
        if ((e = launch(static_carry<DP, ADJOINT>, (threads + 127) / 128, 128, 0, stream, true, s)) != cudaSuccess) return e;
        follows = true;
        Tensor states; states.data = s.states; states.t = DP; states.b = (int64_t)s.blocks * FAR_ROWS * DP; states.h = a->B * states.b;
        if (!make_map(&ms, GPTS_GPU_BF16, states, a->B, (int64_t)s.blocks * FAR_ROWS, heads.n, DP, DP, FAR_ROWS, NB)) return (cudaError_t)MAP_FAILED;
    }
    constexpr int SLOT = SK * DP * NB * 2 + 1024, STAGES = 196608 / SLOT > 6 ? 6 : 196608 / SLOT;
    e = launch(static_apply<E, DP, NB, ADJOINT>, linear && s.items > processors ? processors : s.items, 384, STAGES * SLOT + 1024, stream, follows, s, mv, ms);
    follows = true;
    return e;
}
template <class E, int DP, bool ADJOINT> cudaError_t static_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, bool &follows, cudaStream_t stream)
{
    Static s; memset(&s, 0, sizeof s);
    s.in = ADJOINT ? a->dy : a->v; s.out = ADJOINT ? a->dv : a->y; s.pre = pre; s.B = a->B; s.T = a->T; s.D = a->D; s.blocks = (int)((a->T + SM - 1) / SM);
    s.sums = (float *)((char *)a->workspace + p.sums); s.states = (bf16 *)((char *)a->workspace + p.states);
    cudaError_t e;
    for (int linear = 1; linear >= 0; linear--) {
        const Heads &heads = linear ? p.linear : p.exact;
        if constexpr (DP == 64)
            e = a->B > 2 ? static_launch<E, DP, 4, ADJOINT>(a, p, s, heads, linear, follows, stream)
              : a->B > 1 ? static_launch<E, DP, 2, ADJOINT>(a, p, s, heads, linear, follows, stream) : static_launch<E, DP, 1, ADJOINT>(a, p, s, heads, linear, follows, stream);
        else
            e = a->B > 1 ? static_launch<E, DP, 2, ADJOINT>(a, p, s, heads, linear, follows, stream) : static_launch<E, DP, 1, ADJOINT>(a, p, s, heads, linear, follows, stream);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
template <class E, int DP> cudaError_t fast_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, bool backward, cudaStream_t stream)
{
    cudaError_t e = cudaSuccess; bool follows = false;
    if (p.live.n) e = cudaMemsetAsync((char *)a->workspace + p.counters, 0, 2 * sizeof(int), stream);
    if (e == cudaSuccess && p.live.n && a->theta > 0) e = rotate_run<E>(a, p, pre, stream);
    if (e == cudaSuccess) e = backward ? static_run<E, DP, true>(a, p, pre, follows, stream) : static_run<E, DP, false>(a, p, pre, follows, stream);
    if (e != cudaSuccess || !p.live.n) return e;
    return live_run<E, DP>(a, p, pre, backward, follows, stream);
}

gpts_gpu_status run(gpts_gpu_attention *a, bool backward)
{
    gpts_gpu_status status = validate(a, backward ? 2 : 1);
    if (status != GPTS_GPU_OK) return status;
    const Plan p = make_plan(a, backward);
    const Prepared pre = prepared_layout(a, p.n);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    cudaError_t e = cudaSuccess;
    if (a->type != GPTS_GPU_F32 && p.live.n + p.exact.n + p.linear.n) {
        const bool half = a->type == GPTS_GPU_F16;
        e = p.DP == 64 ? (half ? fast_run<fp16, 64>(a, p, pre, backward, stream) : fast_run<bf16, 64>(a, p, pre, backward, stream))
          : p.DP == 96 ? (half ? fast_run<fp16, 96>(a, p, pre, backward, stream) : fast_run<bf16, 96>(a, p, pre, backward, stream))
                       : (half ? fast_run<fp16, 128>(a, p, pre, backward, stream) : fast_run<bf16, 128>(a, p, pre, backward, stream));
        if (e != cudaSuccess) return checked(a, e);
    }
    Plain f; memset(&f, 0, sizeof f);
    f.q = a->q; f.k = a->k; f.v = a->v; f.y = a->y; f.dy = a->dy; f.dq = a->dq; f.dk = a->dk; f.dv = a->dv;
    f.lse = a->lse; f.delta = (float *)((char *)a->workspace + p.delta); f.B = a->B; f.T = a->T; f.U = p.U; f.D = a->D;
    f.scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->D); f.rotation = a->theta > 0 ? pre.rotation : 0; f.pre = pre; f.heads = p.plain;
    e = a->type == GPTS_GPU_F32 ? plain_run<float>(f, backward, stream) : a->type == GPTS_GPU_F16 ? plain_run<fp16>(f, backward, stream) : plain_run<bf16>(f, backward, stream);
    return checked(a, e);
}
} /* namespace */

extern "C" {

size_t gpts_gpu_attention_prepared_size(const gpts_gpu_attention *a)
{
    int n = 0;
    for (int h = 0; h < a->H; h++) n += a->kind[h] == GPTS_GPU_EXACT || a->kind[h] == GPTS_GPU_LINEAR;
    return prepared_layout(a, n).bytes;
}
size_t gpts_gpu_attention_workspace_size(const gpts_gpu_attention *a, int backward) { return make_plan(a, backward != 0).bytes; }

gpts_gpu_status gpts_gpu_attention_prepare(gpts_gpu_attention *a)
{
    gpts_gpu_status status = validate(a, 0);
    if (status != GPTS_GPU_OK) return status;
    Info info[MAX_HEADS]; int n = 0, index[MAX_HEADS];
    memset(info, 0, sizeof info);
    for (int h = 0; h < a->H; h++) {
        if (a->kind[h] != GPTS_GPU_EXACT && a->kind[h] != GPTS_GPU_LINEAR) continue;
        const int64_t W = a->tail_start ? a->tail_start[n] : a->S;
        info[n].linear = a->kind[h] == GPTS_GPU_LINEAR; info[n].W = (int)(W < a->S ? W : a->S); info[n].Wc = info[n].linear ? (info[n].W + 63) / 64 * 64 : 0;
        index[n++] = h;
    }
    const Prepared p = prepared_layout(a, n);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    cudaError_t e = cudaSuccess;
    if (a->theta > 0) {
        const int64_t x = a->T * (a->D / 2);
        prepare_rotation<<<(unsigned)((x + 255) / 256), 256, 0, stream>>>(p.rotation, a->T, a->D / 2, a->theta);
        e = cudaGetLastError();
    }
    if (n && e == cudaSuccess) {
        Pattern f; f.alpha = a->alpha; f.rho = a->rho; f.coef = a->coef; f.decay = a->decay; f.S = a->S; f.R = a->coef && a->decay ? a->R : 0;
        e = cudaMemcpyAsync(p.info, info, n * sizeof(Info), cudaMemcpyHostToDevice, stream);
        if (e == cudaSuccess) { prepare_extend<<<n, 256, 0, stream>>>(p, f); e = cudaGetLastError(); }
        if (e == cudaSuccess) { prepare_normaliser<<<(unsigned)((n * a->T + 7) / 8), 256, 0, stream>>>(p, n); e = cudaGetLastError(); }
        if (e == cudaSuccess) { prepare_factors<<<dim3((unsigned)((p.Tw + 255) / 256), (unsigned)n), 256, 0, stream>>>(p, n); e = cudaGetLastError(); }
        if (e == cudaSuccess) e = cudaMemcpyAsync(info, p.info, n * sizeof(Info), cudaMemcpyDeviceToHost, stream);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    for (int i = 0; i < n && e == cudaSuccess; i++) a->wide[index[i]] = info[i].wide != 0;
    return checked(a, e);
}
gpts_gpu_status gpts_gpu_attention_forward(gpts_gpu_attention *a) { return run(a, false); }
gpts_gpu_status gpts_gpu_attention_backward(gpts_gpu_attention *a) { return run(a, true); }

const char *gpts_gpu_status_text(gpts_gpu_status status)
{
    return status == GPTS_GPU_OK ? "done" : status == GPTS_GPU_BAD_ARGUMENT ? "an argument is wrong" : status == GPTS_GPU_UNSUPPORTED ? "not supported" : "the device failed";
}
} /* extern "C" */
#endif /* __CUDACC__ */

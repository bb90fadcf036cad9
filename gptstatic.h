/* gptstatic.h - v1.0 - a whole GPT in one C header, with attention made static
   MIT licence, text at the end of this file.  No dependency but libc and libm.

   +--------------------------------------------------------------------------------+
   | Files are never trusted: sizes, shapes, names and numbers are checked before   |
   | anything is allocated or read.  Whatever the bytes, a load ends in an object    |
   | that is valid or in one sentence that says why not.                             |
   +--------------------------------------------------------------------------------+

   PART A   what this is, how to use it, what it guarantees

   DO THIS once, in one C or C++ file of your program:

       #define GPTSTATIC_IMPLEMENTATION
       #include "gptstatic.h"

   and include it without the macro wherever you need the declarations.

   WHAT IS IN IT
     A decoder-only transformer (GPT-2, nanoGPT, attention-only toy models: one code,
     every deviation a setting), its tokenizers, its gradient written by hand, AdamW,
     sampling, and files; and the two known ways to make attention static:
       approximator   a small fixed MLP stands in for a layer's attention sublayer;
       static head    one head's attention weights become a fixed causal pattern (P1),
                      only its values still depend on the input.  In the linear form
                      such a head costs O(T) in training, prefill and decoding.

   CONTENTS (search for the tag)
     PART B   declarations: the whole public interface
     PART C   implementation
       @@BASE       sizes, memory, random numbers, status, parallel loop
       @@GEMM       the one matrix product that everything rides on
       @@LAYERS     embedding, norm, linear, activation, loss: forward above backward
       @@ATTENTION  one live head, then many
       @@STATIC     pattern, normaliser, apply, adjoint, mixed layer
       @@MODEL      parameter table, forward, mirrored backward
       @@TRAIN      AdamW, clipping, schedule, data windows
       @@FIT        calibration, selection, fit of patterns; approximators
       @@SAMPLE     sessions with a cache; logits to token
       @@TOKENIZER  bytes, characters, byte-level BPE, GPT-2's encoding, WordPiece
       @@IO         JSON, safetensors, models, checkpoints: last, they face hostile bytes

   CONFIGURATION MACROS (none changes a struct's layout; define before including)
     GPTSTATIC_IMPLEMENTATION  compile the implementation here (one file)
     GPTSTATIC_STATIC          every function static: several copies in one program
     GPTS_REAL                 float (default) or double; the same in every file
     GPTS_API                  decoration of public functions (dllexport ...)
     GPTS_PARALLEL_FOR         GPTS_PARALLEL_FOR(threads, n, task, arg): run
                               task(arg, i) for 0 <= i < n, all done on return;
                               default: OpenMP if the compiler has it on, else a loop
     GPTS_NO_STDIO             no file access by path; memory paths remain

   GUARANTEES
     errors    no exit, abort, print or global state.  A call that can fail returns a
               gpts_status; the object's `error` holds one sentence with the cause.
     memory    every allocation goes through gpts_hooks; running out is an error like
               any other; objects are zero-initialisable, _free may be called twice.
     threads   an object is used by one thread at a time; different objects never meet.
     results   same seed, same bits on one machine and binary, whatever the number of
               threads: no two threads add to the same cell, sums have a fixed order,
               random numbers are functions of (seed, step, layer, site, element).
     files     little-endian safetensors, written beside the target, flushed, renamed.

   LETTERS   B batch  T time  C channels (n_embd)  H heads  D head size  V vocabulary
             L layers  F inner width of the MLP  N = B T rows  S pattern length
             U live heads of a layer  W near distances, R decaying terms of a pattern
             indices b t i j h d c v l; i the query's position, j the key's.
             Shapes are written slowest first, [b,t,c].  Linear weights are [in,out].
   WORDS     live head     attention weights by softmax of scores
             static head   attention weights fixed: P[i,j] of (P1)
             pruned head   removed with its values
             calibration   statistics of attention over a set of sequences
             gauge         the shifts of (alpha, rho) that leave P unchanged
*/
#ifndef GPTSTATIC_H
#define GPTSTATIC_H

#include <stddef.h>
#include <stdint.h>

/* ==============================================================================
   PART B   declarations
   ============================================================================== */

#ifndef GPTS_REAL
#define GPTS_REAL float
#endif
typedef GPTS_REAL gpts_real;

#define GPTS_VERSION 100                                  /* 1.0: major * 100 + minor */
#define GPTS_ABI ((uint32_t)(GPTS_VERSION * 256 + (int)sizeof(gpts_real)))

#ifndef GPTS_API
#  ifdef GPTSTATIC_STATIC
#    if defined(__GNUC__)
#      define GPTS_API __attribute__((unused)) static
#    else
#      define GPTS_API static
#    endif
#  else
#    define GPTS_API extern
#  endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status, hooks, random numbers --------------------------------------------- */

#define GPTS_STATUS_TABLE(X)                                                           \
    X(GPTS_OK,            0, "all is well")                                            \
    X(GPTS_NO_MEMORY,     1, "out of memory")                                          \
    X(GPTS_BAD_ARGUMENT,  2, "an argument is out of its range")                        \
    X(GPTS_BAD_SHAPE,     3, "shapes do not fit together")                             \
    X(GPTS_BAD_FILE,      4, "the file's content is not valid")                        \
    X(GPTS_IO,            5, "reading or writing failed")                              \
    X(GPTS_NOT_FOUND,     6, "something named is not there")                           \
    X(GPTS_TOO_LONG,      7, "longer than the capacity or the positions allow")        \
    X(GPTS_NOT_FINITE,    8, "a value became infinite or not a number")                \
    X(GPTS_UNSUPPORTED,   9, "valid, but not supported here")                          \
    X(GPTS_MISMATCH,     10, "header and implementation, or model and file, differ")   \
    X(GPTS_DEVICE,       11, "the device failed")

typedef enum gpts_status {
#define GPTSI_ROW(name, number, text) name = number,
    GPTS_STATUS_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    GPTS_STATUS_COUNT
} gpts_status;

enum { GPTS_ERROR_BYTES = 320, GPTS_NAME_BYTES = 64 };

/* The general meaning of a status; the cause is in the object's `error`. */
GPTS_API const char *gpts_status_text(gpts_status status);

typedef void (*gpts_task)(void *arg, size_t index);

/* Zero-initialised (or NULL where a pointer is taken): malloc, free, and OpenMP's
   number of threads (1 without OpenMP).  `release` receives the size it was given.  No
   object calls its hooks from two threads at once. */
typedef struct gpts_hooks {
    void *context;
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *memory, size_t bytes);
    void (*parallel_for)(void *context, size_t n, gpts_task task, void *arg);
    int threads;                               /* 0: as many as there are; at most 64 */
} gpts_hooks;

/* Counter-based generator: the n-th number is a pure function of (seed, n). */
typedef struct gpts_rng { uint64_t seed, counter; } gpts_rng;

GPTS_API uint64_t gpts_rng_bits(gpts_rng *rng);                       /* 64 random bits */
GPTS_API double gpts_rng_uniform(gpts_rng *rng);                      /* in [0, 1)      */
GPTS_API double gpts_rng_normal(gpts_rng *rng);                       /* N(0, 1)        */
GPTS_API uint64_t gpts_rng_below(gpts_rng *rng, uint64_t n);          /* in 0 .. n-1    */

/* ---- the model's settings -------------------------------------------------------- */

typedef enum gpts_position {
    GPTS_POSITION_LEARNED = 0, GPTS_POSITION_ROPE = 1, GPTS_POSITION_NONE = 2
} gpts_position;
typedef enum gpts_norm { GPTS_NORM_LAYER = 0, GPTS_NORM_NONE = 1 } gpts_norm;
typedef enum gpts_activation {
    GPTS_GELU_TANH = 0,                       /* "gelu_new", GPT-2's                  */
    GPTS_GELU_ERF = 1,                        /* "gelu", nanoGPT's                    */
    GPTS_RELU = 2                             /* "relu"                               */
} gpts_activation;

typedef struct gpts_config {
    int64_t vocab_size;                       /* V >= 1                               */
    int64_t n_positions;                      /* context the model is made for, >= 1  */
    int64_t n_layer;                          /* L >= 0                               */
    int64_t n_head;                           /* H >= 1, divides n_embd               */
    int64_t n_embd;                           /* C >= 1                               */
    int64_t n_inner;                          /* F; -1: 4 C; 0: no MLP                */
    gpts_activation activation;               /* of the MLP                           */
    gpts_activation approx_activation;        /* of approximators                     */
    gpts_position position;
    gpts_norm norm;
    int bias;                                 /* biases in linear layers and norms    */
    int tie_word_embeddings;                  /* output matrix = wte                  */
    int unscaled_scores;                      /* 1: scores without 1/sqrt(D)          */
    double layer_norm_epsilon;                /* > 0                                  */
    double rope_theta;                        /* > 0                                  */
} gpts_config;

/* GPT-2 124M: V 50257, 1024 positions, 12 layers, 12 heads, 768, gelu_new, tied. */
GPTS_API gpts_config gpts_config_default(void);

/* ---- the parameter table ---------------------------------------------------------
   One row per parameter: kind, name, rows, columns (or `vector`), condition, decay,
   standard deviation at the start (-1: filled with ones).  Drives allocation, init,
   save, load, optimiser and tests.  The expressions see the layer's numbers:
   V C F D, Tp positions, U live, K kept (live + static) heads, n static heads, S, R,
   k window and h width of an approximator; std = 0.02, res = 0.02 / sqrt(2 L).       */

#define GPTS_PARAMETER_TABLE(X)                                                        \
    X(WTE,           "wte.weight",                 V,         C,         1,                   1, std) \
    X(WPE,           "wpe.weight",                 Tp,        C,         learned,             1, std) \
    X(LN_1_W,        "h.%d.ln_1.weight",           C,         vector,    norm,                0, -1)  \
    X(LN_1_B,        "h.%d.ln_1.bias",             C,         vector,    norm && bias,        0, 0)   \
    X(ATTN_W,        "h.%d.attn.c_attn.weight",    C,         (2*U+K)*D, attention,           1, std) \
    X(ATTN_B,        "h.%d.attn.c_attn.bias",      (2*U+K)*D, vector,    attention && bias,   0, 0)   \
    X(ATTN_PROJ_W,   "h.%d.attn.c_proj.weight",    K*D,       C,         attention,           1, res) \
    X(ATTN_PROJ_B,   "h.%d.attn.c_proj.bias",      C,         vector,    attention && bias,   0, 0)   \
    X(ALPHA,         "h.%d.attn.static.alpha",     n,         S,         statics,             0, 0)   \
    X(RHO,           "h.%d.attn.static.rho",       n,         S,         statics,             0, 0)   \
    X(TAIL_COEF,     "h.%d.attn.static.tail_coef", n,         R,         statics && tails,    0, 0)   \
    X(TAIL_DECAY,    "h.%d.attn.static.tail_decay", n,        R,         statics && tails,    0, 0)   \
    X(APPROX_FC_W,   "h.%d.approx.c_fc.weight",    k*C,       h,         approximator,        1, std) \
    X(APPROX_FC_B,   "h.%d.approx.c_fc.bias",      h,         vector,    approximator,        0, 0)   \
    X(APPROX_PROJ_W, "h.%d.approx.c_proj.weight",  h,         C,         approximator,        1, std) \
    X(APPROX_PROJ_B, "h.%d.approx.c_proj.bias",    C,         vector,    approximator,        0, 0)   \
    X(LN_2_W,        "h.%d.ln_2.weight",           C,         vector,    norm && mlp,         0, -1)  \
    X(LN_2_B,        "h.%d.ln_2.bias",             C,         vector,    norm && mlp && bias, 0, 0)   \
    X(MLP_FC_W,      "h.%d.mlp.c_fc.weight",       C,         F,         mlp,                 1, std) \
    X(MLP_FC_B,      "h.%d.mlp.c_fc.bias",         F,         vector,    mlp && bias,         0, 0)   \
    X(MLP_PROJ_W,    "h.%d.mlp.c_proj.weight",     F,         C,         mlp,                 1, res) \
    X(MLP_PROJ_B,    "h.%d.mlp.c_proj.bias",       C,         vector,    mlp && bias,         0, 0)   \
    X(LN_F_W,        "ln_f.weight",                C,         vector,    norm,                0, -1)  \
    X(LN_F_B,        "ln_f.bias",                  C,         vector,    norm && bias,        0, 0)   \
    X(LM_HEAD,       "lm_head.weight",             V,         C,         untied,              1, std)

typedef enum gpts_parameter {
#define GPTSI_ROW(kind, name, rows, columns, when, decay, start) GPTS_P_##kind,
    GPTS_PARAMETER_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    GPTS_P_COUNT
} gpts_parameter;

typedef struct gpts_tensor {
    char name[GPTS_NAME_BYTES];               /* as in files, "h.3.mlp.c_fc.weight"   */
    gpts_parameter kind;
    int32_t layer;                            /* -1: not in a layer                   */
    size_t rank;                              /* 2: [rows,columns]; 1: [rows]         */
    size_t rows, columns;                     /* columns is 1 for a vector            */
    size_t size;                              /* number of values                     */
    gpts_real *data;
    int decay;                                /* AdamW's weight decay applies         */
    int trainable;                            /* 0: no gradient, moments or update    */
} gpts_tensor;

/* The heads of one layer as the attention operation sees them.  A kept head is live
   or static; "slot" counts kept heads in ascending order of their original index.
   One row of the packed projection c_attn is
       [ queries of U live heads | keys of U live heads | values of K kept heads ].   */
typedef struct gpts_heads {
    size_t H, D, U, K, n;                     /* K = U + n; H - K are pruned          */
    int32_t *kept;                            /* [K] original index of slot s         */
    int32_t *live_slot;                       /* [K] index among the live, or -1      */
    int32_t *static_slot;                     /* [K] index among the static, or -1    */
    size_t S, R;                              /* pattern length, decaying terms       */
    const gpts_real *alpha, *rho;             /* [n,S]                                */
    const int32_t *tail_start;                /* [n] W, or S: no tail; NULL: no tails */
    const gpts_real *tail_coef, *tail_decay;  /* [n,R]                                */
    struct gpts_pattern_plan *plan;           /* what @@STATIC derives from the above */
} gpts_heads;

typedef struct gpts_layer {
    gpts_heads heads;                         /* K = 0 under an approximator          */
    int32_t *tail_start;                      /* [n], owned; heads points at it       */
    size_t window, hidden;                    /* k, h of the approximator; 0: none    */
    int32_t tensor[GPTS_P_COUNT];             /* index in the model's table, or -1    */
} gpts_layer;

/* ---- where the work runs -----------------------------------------------------------
   The operations a model is made of.  gptsi_cpu_ops (@@MODEL) is the CPU's table;
   gpu.cu brings another.  `x`, `y` ... are activations: gpts_real on the CPU, the
   device's own type elsewhere (activation_bytes each).  Parameters and gradients are
   gpts_real.  "=" outputs are overwritten, "+=" outputs are added to.
   first, length [B] (or NULL: 0 and T) are each row's interval of real tokens.
   All memory that an operation is given lies on the device, but for the two ends of
   upload and download.  A table may leave out (NULL) what is marked optional: the model
   then composes it of the others.                                                     */

typedef enum gpts_precision { GPTS_PRECISION_FULL = 0, GPTS_PRECISION_BF16 = 1 } gpts_precision;

typedef struct gpts_dropout { double rate; uint64_t seed, step; uint32_t layer, site; } gpts_dropout;

typedef struct gpts_cache {                   /* one layer of a session; all but `state` are activations */
    size_t B, capacity;
    gpts_real *keys, *values;                 /* [B,U,capacity,D] live heads           */
    gpts_real *ring;                          /* static heads: values still needed     */
    gpts_real *state;                         /* static heads: R states [D] and two reals a term for their scale */
    size_t ring_rows, state_size;             /* rows of D, values; per (b, static)    */
    gpts_real *window;                        /* [B,k,C] last inputs of a windowed approximator */
} gpts_cache;

typedef struct gpts_update { gpts_real *p, *g, *m, *v; size_t n; double decay; } gpts_update;  /* one tensor of (O2) */

struct gpts_session; struct gpts_calibration;
typedef struct gpts_ops {
    const char *name;                         /* "cpu", "cuda"                         */
    size_t activation_bytes;
    int queued;                               /* operations run later; download waits for them */
    /* a model moves in (+1) or is freed (-1); the last one takes the device along; optional */
    void (*hold)(void *device, int change);
    gpts_status (*allocate)(void *device, size_t bytes, void **memory);
    void (*release)(void *device, void *memory);
    void (*upload)(void *device, void *to, const void *from, size_t bytes);
    void (*download)(void *device, void *to, const void *from, size_t bytes);
    void (*copy)(void *device, void *to, const void *from, size_t bytes);      /* may overlap  */
    void (*zero)(void *device, void *memory, size_t bytes);
    gpts_status (*status)(void *device, char *error);         /* first failure since the last call */
    /* optional: see gpts_model_precision; keep: a session is about to read these weights      */
    gpts_status (*precision)(void *device, gpts_precision precision);
    gpts_status (*keep)(void *device, const gpts_real *parameters, size_t n);
    /* optional: act(arg), with the device's workers gathered once for all its operations */
    gpts_status (*together)(void *device, gpts_status (*act)(void *arg), void *arg);
    /* optional, where every operation is queued: what follows up to replay_end is the same work as ever under this key.  1: it
       was replayed, nothing is to be queued.  replay_end's 1: it has to be queued once more, replay_begin first               */
    int (*replay_begin)(void *device, const void *key, size_t bytes);
    int (*replay_end)(void *device);
    /* a layer's heads are about to meet T positions: derive heads->plan, the device's own, where it
       is not good for that; TOO_LONG where a pattern ends before.  forget: the patterns changed      */
    gpts_status (*prepare)(void *device, gpts_heads *heads, size_t T, char *error);
    void (*forget)(void *device, gpts_heads *heads);

    /* (E1) x[b,t,c] = wte[token,c] + wpe[t - first,c];  wpe may be NULL               */
    void (*embed_forward)(void *device, void *x, const int32_t *tokens, const int32_t *first,
                          const gpts_real *wte, const gpts_real *wpe, size_t B, size_t T, size_t C);
    /* (E2) dwte, dwpe +=; either may be NULL                                           */
    void (*embed_backward)(void *device, gpts_real *dwte, gpts_real *dwpe, const int32_t *tokens,
                           const int32_t *first, const void *dx, size_t B, size_t T, size_t C, size_t V);
    /* (N1) y =; statistics [N,2] (mean, 1/deviation) =; bias may be NULL               */
    void (*norm_forward)(void *device, void *y, gpts_real *statistics, const void *x, const gpts_real *w,
                         const gpts_real *bias, size_t N, size_t C, double epsilon);
    /* optional: (D1) sum = a + b without dropout, then (N1) of it; sum may be a or b   */
    void (*add_norm_forward)(void *device, void *sum, void *y, gpts_real *statistics, const void *a, const void *b,
                             const gpts_real *w, const gpts_real *bias, size_t N, size_t C, double epsilon);
    /* (N2) dx +=, dw +=, dbias += (dw, dbias may be NULL)                              */
    void (*norm_backward)(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy,
                          const void *x, const gpts_real *w, const gpts_real *statistics, size_t N, size_t C);
    /* (L1) y[n,o] = sum_i x[n,i] w[i,o] + bias[o]; bias may be NULL                     */
    void (*linear_forward)(void *device, void *y, const void *x, const gpts_real *w, const gpts_real *bias,
                           size_t N, size_t in, size_t out);
    /* (L2) dx = (or NULL), dw += (or NULL), dbias += (or NULL)                          */
    void (*linear_backward)(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy,
                            const void *x, const gpts_real *w, size_t N, size_t in, size_t out);
    /* (G1) (G2) y = g(x);  dx = dy g'(x), dx may be dy                                  */
    void (*activation_forward)(void *device, void *y, const void *x, size_t n, gpts_activation kind);
    void (*activation_backward)(void *device, void *dx, const void *dy, const void *x, size_t n, gpts_activation kind);
    /* optional, both at once: dx = dy g'(x), then x = g(x)                              */
    void (*activation_exchange)(void *device, void *dx, const void *dy, void *x, size_t n, gpts_activation kind);
    /* (D1) y = a + mask b / (1 - rate), mask from the counter;  y may be a or b; a NULL: 0 */
    void (*add_forward)(void *device, void *y, const void *a, const void *b, size_t n, const gpts_dropout *drop);
    /* (D2) db = mask dy / (1 - rate); db may be dy                                      */
    void (*add_backward)(void *device, void *db, const void *dy, size_t n, const gpts_dropout *drop);
    /* (Q1) z[b,t] = [ x[b,t-k+1] ... x[b,t] ], zeros before the row's start; (Q2) dx +=  */
    void (*window_forward)(void *device, void *z, const void *x, const int32_t *first, size_t B, size_t T, size_t C, size_t k);
    void (*window_backward)(void *device, void *dx, const void *dz, const int32_t *first, size_t B, size_t T, size_t C, size_t k);
    /* (R1) (A1) (M1) qkv [B,T,(2U+K)D] (rotated in place where theta > 0), y [B,T,K D] =,
       lse [B,U,T] = ln sum_j exp(score) of each live row, -infinity for a masked row    */
    void (*attention_forward)(void *device, const gpts_heads *heads, void *y, gpts_real *lse, void *qkv,
                              const int32_t *first, const int32_t *length, size_t B, size_t T, double scale, double theta);
    /* (A2) (M2) (R2) dqkv =; dheads (or NULL): += gradients of trainable patterns        */
    void (*attention_backward)(void *device, const gpts_heads *heads, void *dqkv, const void *dy, const void *y,
                               const gpts_real *lse, const void *qkv, const int32_t *first, const int32_t *length,
                               size_t B, size_t T, double scale, double theta, gpts_real *dalpha, gpts_real *drho,
                               gpts_real *dcoef, gpts_real *ddecay);
    /* keep what decoding needs of a prefill: rows 0 .. length[b]-1 of qkv (rotated)      */
    void (*cache_fill)(void *device, const gpts_heads *heads, gpts_cache *cache, const void *qkv,
                       const int32_t *length, size_t T);
    /* (A3) (M3) one more token a row at position[b] (below 0: this row rests, y = 0):
       qkv [B,(2U+K)D] rotated in place, y [B,K D] =                                      */
    void (*attention_decode)(void *device, const gpts_heads *heads, gpts_cache *cache, void *y, void *qkv,
                             const int32_t *position, double scale, double theta);
    /* optional: n tokens more a row of a session in one go, logits of the last into session->logits: ids [B], then each row's
       likeliest, which go to more [n-1,B].  UNSUPPORTED: operation by operation, please.  step_end: drops session->plan */
    gpts_status (*step)(void *device, struct gpts_session *session, const int32_t *ids, size_t n, int32_t *more);
    void (*step_end)(void *device, struct gpts_session *session);
    /* (X1) logits[n,v] = sum_c x[n,c] w[v,c]                                             */
    void (*logits)(void *device, gpts_real *logits, const void *x, const gpts_real *w, size_t N, size_t C, size_t V);
    /* optional: (C1) (S1) (S2) (S3) of a layer's live heads from N sequences' qkv [N,T,(2U+K)D] and y [N,T,K D], as
       attention_forward left them, lse [N,U,T] and c_proj [K D,C]; else the CPU does it                                */
    gpts_status (*calibrate)(void *device, const gpts_heads *heads, size_t N, size_t T, size_t C, const void *qkv, const void *y,
                             const gpts_real *lse, const gpts_real *proj, double scale, struct gpts_calibration *calibration,
                             size_t layer, char *error);
    /* ids[n] = the first of the largest logits of row n; optional where logits lie in the host's memory */
    void (*likeliest)(void *device, int32_t *ids, const gpts_real *logits, size_t N, size_t V);
    /* (X2) *sum = sum over targets >= 0 of lse_n - logits[n,target]; (X3) dx = (or NULL), dw += (or NULL),
       gradients of the SUM; logits are made block by block and never kept whole          */
    void (*loss)(void *device, double *sum, void *dx, gpts_real *dw, const void *x, const gpts_real *w,
                 const int32_t *targets, size_t N, size_t C, size_t V);
    /* (O1) *sum = sum of squares, in double                                              */
    void (*sum_squares)(void *device, double *sum, const gpts_real *g, size_t n);
    /* (O2) AdamW on one tensor with gradient gscale * g, then g = 0                       */
    void (*adamw)(void *device, gpts_real *p, gpts_real *g, gpts_real *m, gpts_real *v, size_t n,
                  double gscale, double rate, double decay, double beta1, double beta2, double epsilon, uint64_t step);
    /* optional: (O2) on n tensors at once                                                 */
    void (*adamw_all)(void *device, const gpts_update *tensors, size_t n, double gscale, double rate,
                      double beta1, double beta2, double epsilon, uint64_t step);
} gpts_ops;

/* ---- the model ---------------------------------------------------------------------- */

typedef struct gpts_model {
    gpts_config config;
    gpts_layer *layers;                       /* [L]                                    */
    gpts_tensor *tensors;                     /* every parameter, in file order         */
    size_t n_tensors;
    size_t n_parameters;                      /* values in all tensors                  */
    gpts_real *parameters;                    /* one block; tensors point into it       */
    gpts_hooks hooks;
    const gpts_ops *ops;
    void *device;                             /* the ops' first argument                */
    void *cpu;                                /* the CPU as a device; `device` at first */
    struct gpts_work *work;                   /* activations; grows with the batch      */
    uint32_t abi;
    char error[GPTS_ERROR_BYTES];
} gpts_model;

typedef struct gpts_batch {
    const int32_t *tokens;                    /* [B,T], 0 .. V-1                        */
    const int32_t *targets;                   /* [B,T], below 0: ignored; NULL: none    */
    size_t B, T;
    const int32_t *first, *length;            /* [B] interval of real tokens, or NULL   */
} gpts_batch;

/* New weights: normal 0.02 (0.02/sqrt(2L) for the two residual projections).
   Errors: BAD_ARGUMENT (a setting), NO_MEMORY, MISMATCH.                                */
#define gpts_model_init(model, config, seed, hooks) \
    gpts_model_init_checked((model), (config), (seed), (hooks), GPTS_ABI)
GPTS_API gpts_status gpts_model_init_checked(gpts_model *model, const gpts_config *config, uint64_t seed,
                                             const gpts_hooks *hooks, uint32_t abi);
GPTS_API void gpts_model_free(gpts_model *model);

/* The model's tensors go to another table of operations, and its work is done there from now on.
   Its trainer follows at its next call; sessions are made afterwards.  Nothing changes on failure. */
GPTS_API gpts_status gpts_model_move(gpts_model *model, const gpts_ops *ops, void *device);

/* BF16: products of matrices (linear layers, logits, their gradients) round their operands to
   bfloat16, to nearest, and add up in floats; weights, gradients, moments and everything else
   stay floats.  A session then reads a copy of the weights in bfloat16, made anew after an
   update; weights that you change yourself afterwards: set the precision again.  For floats
   on the CPU; elsewhere UNSUPPORTED.                                                     */
GPTS_API gpts_status gpts_model_precision(gpts_model *model, gpts_precision precision);

/* A named parameter, NULL if there is none. */
GPTS_API gpts_tensor *gpts_model_tensor(const gpts_model *model, const char *name);

/* logits [B,T,V] = (may be NULL); *loss = mean over valid targets (may be NULL, or
   0 without targets).  No dropout.  Errors: BAD_ARGUMENT (a token outside 0 .. V-1),
   TOO_LONG (learned positions, exact patterns), NO_MEMORY.                              */
GPTS_API gpts_status gpts_model_forward(gpts_model *model, const gpts_batch *batch, gpts_real *logits, double *loss);

/* ids [B,T] = the token with the largest logit at each position (ties: lowest id); logits are made
   block by block and never kept whole.  Errors: as gpts_model_forward.                   */
GPTS_API gpts_status gpts_model_likeliest(gpts_model *model, const gpts_batch *batch, int32_t *ids);

/* Inputs (after the norm) and outputs (before the residual) of a layer's attention
   sublayer: x, y [B,T,C] =.                                                              */
GPTS_API gpts_status gpts_model_record(gpts_model *model, const gpts_batch *batch, size_t layer,
                                       gpts_real *x, gpts_real *y);

/* ---- training ----------------------------------------------------------------------- */

/* Several processes, data parallel.  Every rank holds the whole model and draws windows of
   its own; gradients, losses and counts are sums over all ranks, so that an update is that of
   one process which accumulates every rank's batches.  A rank owns one stretch of the
   gradients: it alone keeps the moments there and makes the update, then gives it to all, and
   every rank ends with the same bits.  All ranks make the same calls in the same order.
   gpu.cu fills this in for NCCL; `size` 0 or 1 is a process alone.                         */
typedef struct gpts_ranks {
    int rank, size;                           /* 0 .. size-1                             */
    int device;                               /* the GPU that is this rank's             */
    const char *name;                         /* of the operations whose memory it reaches: "cpu", "cuda" */
    void *context;
    /* On device memory: a group, from begin to end, comes after all that the device was given so
       far and runs beside what it is given next; wait returns when all groups are done.     */
    void (*begin)(void *context, void *device);
    void (*reduce)(void *context, gpts_real *x, size_t n, int owner);    /* owner: x = sum over ranks; else x is lost */
    void (*broadcast)(void *context, gpts_real *x, size_t n, int owner); /* x = the owner's  */
    void (*end)(void *context);
    gpts_status (*wait)(void *context, char *error);
    /* On the host: all [size,bytes] = every rank's `mine`.  Fails in a finite time when a rank is gone. */
    gpts_status (*gather)(void *context, const void *mine, size_t bytes, void *all, char *error);
} gpts_ranks;

/* MISMATCH on every rank, with a sentence, unless all of them hold the same bytes (`what`
   names them); `ranks` of one: OK.  error [GPTS_ERROR_BYTES].                              */
GPTS_API gpts_status gpts_ranks_same(const gpts_ranks *ranks, const char *what, const void *data, size_t bytes,
                                     const gpts_hooks *hooks, char *error);

typedef struct gpts_train_options {
    double learning_rate, min_learning_rate;  /* peak, and the end of the cosine         */
    uint64_t warmup, total;                   /* updates; total 0: constant rate         */
    double beta1, beta2, epsilon, weight_decay;
    double clip;                              /* 0: none                                 */
    double dropout;                           /* embedding, attention and MLP outputs    */
    uint64_t seed;                            /* of dropout                              */
    uint64_t batches;                         /* accumulated for an update, where known (else 0):
                                                 ranks exchange gradients during the last backward pass */
} gpts_train_options;
/* 6e-4 -> 6e-5, 0.9, 0.95, 1e-8, 0.1, clip 1, no dropout, constant. */
GPTS_API gpts_train_options gpts_train_options_default(void);

typedef struct gpts_trainer {
    gpts_model *model;
    gpts_train_options options;
    gpts_real *gradients, *moment1, *moment2; /* one block each, trainable tensors only  */
    size_t n_trainable, n_block;              /* values in each, and with padding        */
    size_t first_moment, n_moments;           /* the stretch of the block whose moments are here: all of it, alone */
    gpts_ranks ranks;
    double *all;                              /* [size,3] every rank's sums of an update */
    int reduced;                              /* the gradients went to their owners      */
    size_t *offset;                           /* [n_tensors] into the blocks; SIZE_MAX   */
    const gpts_ops *ops; void *device;        /* where the blocks are                    */
    double *pending; size_t n_pending;        /* on the device: loss sums to be fetched  */
    gpts_update *updates;                     /* [n_tensors] the trainable ones, for (O2) */
    uint64_t step;                            /* updates done                            */
    uint64_t data_position;                   /* windows drawn: kept for the caller      */
    double loss_sum; uint64_t loss_count;     /* of what is accumulated                  */
    uint64_t accumulated;                     /* batches since the last update           */
    double gradient_norm;                     /* of the last update, before clipping     */
    char error[GPTS_ERROR_BYTES];
} gpts_trainer;

GPTS_API gpts_status gpts_trainer_init(gpts_trainer *trainer, gpts_model *model, const gpts_train_options *options);
GPTS_API void gpts_trainer_free(gpts_trainer *trainer);
/* Forward and backward: gradients of the SUM of losses are added (the mean is taken
   over the whole accumulation, in apply).  *loss_sum may be NULL.                         */
GPTS_API gpts_status gpts_trainer_accumulate(gpts_trainer *trainer, const gpts_batch *batch, double *loss_sum);
/* Mean, clip, AdamW at the schedule's rate, gradients to zero. *loss = mean loss.
   Errors: NOT_FINITE (names step and tensor; nothing is changed but the gradients).       */
GPTS_API gpts_status gpts_trainer_apply(gpts_trainer *trainer, double *loss);
/* Both of the above for one batch. */
GPTS_API gpts_status gpts_trainer_update(gpts_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                         size_t B, size_t T, double *loss);
GPTS_API double gpts_trainer_rate(const gpts_trainer *trainer, uint64_t step);        /* (O3) */
/* Joins other ranks, after init or load (and gpts_gpu_attach); NULL or one rank: leaves them.
   MISMATCH on every rank, with a sentence, if settings, weights or state differ between them.
   From then on apply, checkpoint_save, freeze and approximator_install are done by all together
   (rank 0 writes the file; any number of ranks resumes it).                                */
GPTS_API gpts_status gpts_trainer_ranks(gpts_trainer *trainer, const gpts_ranks *ranks);
/* First window of this rank's next batch of B; the ranks' batches follow each other, and
   data_position moves past all of them.                                                    */
GPTS_API uint64_t gpts_trainer_windows(gpts_trainer *trainer, size_t B);
/* Gradient of a tensor (sum form), or NULL if it is not trained. */
GPTS_API gpts_real *gpts_trainer_gradient(const gpts_trainer *trainer, const gpts_tensor *tensor);

/* Training windows over a token stream: window w starts where (seed, w) says.
   shuffled = 0: uniform starts with replacement (nanoGPT); 1: disjoint windows, each
   once per pass, in an order that a pass's own permutation gives.                          */
typedef struct gpts_windows { const uint16_t *tokens; size_t n, T; uint64_t seed; int shuffled; } gpts_windows;
/* Windows first .. first+B-1 into tokens, targets [B,T].  BAD_ARGUMENT if n < T + 1.       */
GPTS_API gpts_status gpts_windows_batch(const gpts_windows *windows, uint64_t first, size_t B,
                                        int32_t *tokens, int32_t *targets);

/* ---- approximators -------------------------------------------------------------------- */

typedef enum gpts_approximator_kind {
    GPTS_APPROX_MLP = 0,                      /* fitted; window 1 or more                 */
    GPTS_APPROX_MEAN = 1,                     /* control: the mean output                 */
    GPTS_APPROX_RANDOM = 2,                   /* control: a random MLP of the fitted size  */
    GPTS_APPROX_NOTHING = 3                   /* control: attention removed               */
} gpts_approximator_kind;

typedef struct gpts_approximator {
    gpts_approximator_kind kind;
    int32_t layer;
    size_t C, window, hidden;                 /* c_fc [k C,h], c_proj [h,C]               */
    gpts_activation activation;
    gpts_real *fc_w, *fc_b, *proj_w, *proj_b; /* one block, starts at fc_w                */
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
} gpts_approximator;

/* Recorded inputs and outputs of one layer: x, y [n_sequences,T,C]. */
typedef struct gpts_recording {
    int32_t layer; size_t n_sequences, T, C; gpts_real *x, *y;
    gpts_hooks hooks; char error[GPTS_ERROR_BYTES];
} gpts_recording;

typedef struct gpts_approximator_options {
    gpts_approximator_kind kind;
    size_t window, hidden;                    /* 0: 1 and C                               */
    size_t updates, batch;                    /* 0: 1000 updates of 256 rows              */
    double learning_rate, weight_decay;       /* 0: 3e-3 with a cosine to 0; 0            */
    uint64_t seed;
    void (*progress)(void *context, size_t done, size_t of, double mse); void *context;
} gpts_approximator_options;

GPTS_API gpts_status gpts_recording_make(gpts_recording *recording, gpts_model *model, size_t layer,
                                         const int32_t *tokens, size_t n_sequences, size_t T);
GPTS_API void gpts_recording_free(gpts_recording *recording);
/* (Q3) least squares on the recorded pairs by AdamW; *r2 on `held_out` (may be NULL). */
GPTS_API gpts_status gpts_approximator_fit(gpts_approximator *approximator, const gpts_model *model,
                                           const gpts_recording *data, const gpts_recording *held_out,
                                           const gpts_approximator_options *options, double *r2);
/* (Q4) 1 - sum (y - f(x))^2 / sum (y - mean)^2, mean per channel. */
GPTS_API gpts_status gpts_approximator_r2(gpts_approximator *approximator, const gpts_recording *data, double *r2);
GPTS_API void gpts_approximator_free(gpts_approximator *approximator);
/* The layer's attention goes, the approximator stands in, frozen unless `train`.  A
   trainer of this model follows (its moments of the attention go); may be NULL.        */
GPTS_API gpts_status gpts_approximator_install(gpts_model *model, gpts_trainer *trainer,
                                               const gpts_approximator *approximator, int train);

/* ---- static heads: calibrate, select, fit, replace ------------------------------------------ */

/* What N sequences say of every live head, O(T) numbers a head.  A row that is not there
   (a static, pruned or approximated head) has variance below 0.  Set before: keep_mean for
   pictures, the mean patterns themselves, T x T a head; ranks, to share the layers with them. */
typedef struct gpts_calibration {
    size_t L, H, T, n_sequences;
    int keep_mean;
    const gpts_ranks *ranks;                  /* or NULL: alone                              */
    double *column, *diagonal;                /* [L,H,T] masses of the mean pattern by key and by distance (C1) */
    double *information;                      /* [L,H] sum over i, j of M ln M, M the mean pattern (C1) */
    double *variance, *divergence, *output;   /* [L,H] (S1) (S2) (S3)                      */
    gpts_real *mean;                          /* [L,H,T,T], or NULL                        */
    int32_t *tokens;                          /* [n_sequences,T] a copy, for (S4) and (S5) */
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
} gpts_calibration;

/* Runs the model without dropout; weights, trainer and random numbers stay as they are.
   Errors: NO_MEMORY, BAD_ARGUMENT, NOT_FINITE (a weight, or a head's scores or values).   */
GPTS_API gpts_status gpts_calibrate(gpts_calibration *calibration, gpts_model *model, const int32_t *tokens,
                                    size_t n_sequences, size_t T);
GPTS_API void gpts_calibration_free(gpts_calibration *calibration);

/* The pattern (P1) nearest to a mean pattern, by its masses alone. */
typedef struct gpts_pattern_fit {
    size_t S, W, R;                           /* exact form: W = S, R = 0                  */
    double *alpha, *rho;                      /* [S]                                       */
    double *coef, *decay;                     /* [R] (P3)                                  */
    double divergence;                        /* nats a row of the mean pattern from this  */
    double exact;                             /* the same, of the exact form               */
    double bound;                             /* `exact` is so near its least value (F4)   */
    double gap, worst_gap;                    /* rows of the linear form from the exact form: mean and worst */
    double mass_error;                        /* largest relative error of a mass, exact form */
    size_t steps;                             /* Newton steps, both forms                  */
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
} gpts_pattern_fit;
/* tolerance: the largest gap (0: exact form only); near_limit, terms_limit: the most W and R
   to try (0: max(64, S/16) and 16).  Errors: NO_MEMORY, BAD_ARGUMENT (masses that are no pattern's). */
GPTS_API gpts_status gpts_pattern_fit_make(gpts_pattern_fit *fit, const double *column, const double *diagonal, double information,
                                           size_t S, double tolerance, size_t near_limit, size_t terms_limit,
                                           const gpts_hooks *hooks);
GPTS_API void gpts_pattern_fit_free(gpts_pattern_fit *fit);

typedef enum gpts_selector {                  /* which heads: those of the least ...       */
    GPTS_SELECT_VARIANCE = 0,                 /* variance of the pattern, the authors' way (S1) */
    GPTS_SELECT_DIVERGENCE = 1,               /* divergence of the pattern from its mean (S2) */
    GPTS_SELECT_OUTPUT = 2,                   /* squared change of the sublayer's output (S3) */
    GPTS_SELECT_LOSS = 3,                     /* loss on the calibration's tokens with that one head swapped (S4) */
    GPTS_SELECT_GATE_TAYLOR = 4,              /* |d loss / d gate|, layers normalised (S5)  */
    GPTS_SELECT_RANDOM = 5,                   /* any, as many of each layer as by variance  */
    GPTS_SELECT_LIST = 6                      /* the first that fit, of a given order       */
} gpts_selector;

typedef enum gpts_replacement {               /* what takes their place                     */
    GPTS_REPLACE_LINEAR = 0,                  /* the fitted pattern, in linear form where the gap allows */
    GPTS_REPLACE_EXACT = 1,                   /* the fitted pattern in exact form           */
    GPTS_REPLACE_UNIFORM = 2,                 /* control: the running mean                  */
    GPTS_REPLACE_PRUNE = 3                    /* control: nothing; values go too            */
} gpts_replacement;

typedef struct gpts_freeze_options {
    double share;                             /* of all heads of the model; heads = round(share L H) */
    size_t heads;                             /* or this many, if not 0                     */
    gpts_selector selector;
    gpts_replacement replacement;
    double gate;                              /* nats a row between mean and fit that a head may have; below 0: any */
    double tolerance;                         /* gap of the linear form, nats a row          */
    size_t near_limit, terms_limit;           /* of W and R; 0: max(64, S/16), 16            */
    const int32_t *list; size_t n_list;       /* l * n_head + h, best first                  */
    uint64_t seed;                            /* of GPTS_SELECT_RANDOM                       */
    int train_patterns;                       /* alpha and rho (coefficients, decays) go on training */
} gpts_freeze_options;
/* 25 %, variance, linear, gate 0.2, tolerance 0.001. */
GPTS_API gpts_freeze_options gpts_freeze_options_default(void);

typedef struct gpts_frozen_head {
    int32_t layer, head;
    double score;                             /* the selector's                              */
    size_t W, R;                              /* R = 0: exact form                           */
    double divergence, gap, worst_gap, mass_error;            /* as in gpts_pattern_fit      */
} gpts_frozen_head;
typedef struct gpts_freeze_report {
    size_t wanted, n, linear, exact, refused; /* frozen (or pruned): n; beyond the gate: refused */
    gpts_frozen_head *heads;                  /* [n] in the order of selection               */
    gpts_hooks hooks;
} gpts_freeze_report;
GPTS_API void gpts_freeze_report_free(gpts_freeze_report *report);

/* The selector's score of every head, [L,H] =; below in score is earlier in order; NaN: not a
   candidate.  RANDOM and LIST give their order as the score.                                  */
GPTS_API gpts_status gpts_select(gpts_calibration *calibration, gpts_model *model, const gpts_freeze_options *options, double *score);

/* Select, fit, replace.  Columns of Q and K leave the model, and with them their moments in
   `trainer` (may be NULL); everything else of the run goes on untouched.  `report` may be
   NULL.  Fewer heads than wanted is not an error: the report says how many.  On an error
   nothing has changed; the sentence is in model->error.                                       */
GPTS_API gpts_status gpts_freeze(gpts_model *model, gpts_trainer *trainer, gpts_calibration *calibration,
                                 const gpts_freeze_options *options, gpts_freeze_report *report);

/* ---- inference -------------------------------------------------------------------------- */

typedef struct gpts_session {
    gpts_model *model;
    size_t B, capacity;
    int32_t *position;                        /* [B] tokens seen so far                    */
    gpts_cache *caches;                       /* [L]                                       */
    gpts_real *logits;                        /* [B,V] of each row's last token            */
    size_t state_bytes;                       /* of the caches                             */
    void *plan;                               /* the device's own                          */
    gpts_hooks hooks;                         /* for what is not on the device; NULL given: the model's */
    char error[GPTS_ERROR_BYTES];
} gpts_session;

GPTS_API gpts_status gpts_session_init(gpts_session *session, gpts_model *model, size_t B, size_t capacity,
                                       const gpts_hooks *hooks);
GPTS_API void gpts_session_free(gpts_session *session);
GPTS_API void gpts_session_reset(gpts_session *session);
/* ids [B,T]; length [B] tokens are real in each row (NULL: T), 1 or more; from an empty
   session.  Errors: TOO_LONG (capacity, learned positions, exact patterns).                */
GPTS_API gpts_status gpts_session_prefill(gpts_session *session, const int32_t *ids, size_t T, const int32_t *length);
/* One more token a row; ids [B]; below 0: this row rests. */
GPTS_API gpts_status gpts_session_decode(gpts_session *session, const int32_t *ids);
/* n more tokens a row, each the likeliest after those before it (ties: lowest id): ids [n,B] =.  On a GPU that can, nothing
   waits for the host in between. */
GPTS_API gpts_status gpts_session_greedy(gpts_session *session, int32_t *ids, size_t n);
GPTS_API const gpts_real *gpts_session_logits(const gpts_session *session, size_t b);     /* [V] */

typedef struct gpts_sampling {
    double temperature;                       /* 0: greedy (ties: lowest id); else > 0      */
    size_t top_k;                             /* 0: all                                     */
    double top_p;                             /* 0 or >= 1: all                             */
} gpts_sampling;
/* A token in 0 .. V-1.  A logit that is not a number is never drawn (0 if all are). */
GPTS_API int32_t gpts_sample(const gpts_real *logits, size_t V, const gpts_sampling *sampling, gpts_rng *rng);

/* ---- tokenizers --------------------------------------------------------------------------- */

typedef enum gpts_tokenizer_kind {
    GPTS_TOKENIZER_BYTES = 0,                 /* 256 ids                                     */
    GPTS_TOKENIZER_CHARS = 1,                 /* the code points of a text, ascending        */
    GPTS_TOKENIZER_BPE = 2,                   /* byte-level pairs, GPT-2's split             */
    GPTS_TOKENIZER_WORDPIECE = 3              /* SimpleStories' tokenizer.json               */
} gpts_tokenizer_kind;

typedef struct gpts_tokenizer {
    gpts_tokenizer_kind kind;
    int32_t vocab_size;
    int32_t end_of_text;                      /* id, or -1                                   */
    struct gpts_vocabulary *vocabulary;       /* tables of @@TOKENIZER                       */
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
} gpts_tokenizer;

GPTS_API gpts_status gpts_tokenizer_bytes(gpts_tokenizer *tokenizer, const gpts_hooks *hooks);
/* The distinct code points of `text`; invalid bytes count as characters of their own. */
GPTS_API gpts_status gpts_tokenizer_chars(gpts_tokenizer *tokenizer, const char *text, size_t bytes, const gpts_hooks *hooks);
/* Byte-level BPE of vocab_size >= 256 ids (fewer if the text runs out of pairs). */
GPTS_API gpts_status gpts_tokenizer_train(gpts_tokenizer *tokenizer, const char *text, size_t bytes,
                                          int32_t vocab_size, const gpts_hooks *hooks);
/* vocab.bpe / merges.txt, .tiktoken, tokenizer.json, or a file of gpts_tokenizer_save:
   told apart by content.  vocab.bpe alone gives GPT-2's 50257 ids, <|endoftext|> the last.  */
GPTS_API gpts_status gpts_tokenizer_load(gpts_tokenizer *tokenizer, const char *path, const gpts_hooks *hooks);
GPTS_API gpts_status gpts_tokenizer_load_memory(gpts_tokenizer *tokenizer, const void *data, size_t bytes, const gpts_hooks *hooks);
/* encoder.json / vocab.json beside merges: ids are taken from it, and checked; on failure
   the tokenizer is unchanged. */
GPTS_API gpts_status gpts_tokenizer_load_ids(gpts_tokenizer *tokenizer, const void *json, size_t bytes);
GPTS_API gpts_status gpts_tokenizer_save(gpts_tokenizer *tokenizer, const char *path);
GPTS_API void gpts_tokenizer_free(gpts_tokenizer *tokenizer);
/* *n in: room in ids; out: ids written.  ids NULL: *n = how many there would be; the same
   with TOO_LONG when the room does not do; never more than bytes + 8.  Special-looking text is plain text (but a
   WordPiece file's added tokens are known in any text, as its authors' tools do).  Bytes
   that the tokenizer cannot name: NOT_FOUND (chars) or the unknown id (WordPiece).          */
GPTS_API gpts_status gpts_tokenizer_encode(gpts_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *ids, size_t *n);
/* Bytes of the ids, not terminated; same rule for *bytes. A token may end inside a character.
   WordPiece leaves out special tokens.                                                      */
GPTS_API gpts_status gpts_tokenizer_decode(gpts_tokenizer *tokenizer, const int32_t *ids, size_t n, char *text, size_t *bytes);

/* ---- files: safetensors --------------------------------------------------------------------- */

typedef enum gpts_dtype {
    GPTS_BOOL, GPTS_U8, GPTS_I8, GPTS_I16, GPTS_U16, GPTS_F16, GPTS_BF16, GPTS_I32, GPTS_U32,
    GPTS_F32, GPTS_C64, GPTS_F64, GPTS_I64, GPTS_U64, GPTS_DTYPE_OTHER    /* 4- to 8-bit floats: bytes only */
} gpts_dtype;

enum { GPTS_MAX_RANK = 8 };
typedef struct gpts_file_tensor {
    const char *name; size_t name_bytes;      /* unescaped; may hold any byte but is also 0-terminated */
    gpts_dtype dtype;
    size_t rank; uint64_t shape[GPTS_MAX_RANK];   /* sizes beyond the eighth are only in count */
    uint64_t count;                           /* product of the shape                     */
    uint64_t begin, end;                      /* bytes in the data buffer                 */
} gpts_file_tensor;

typedef struct gpts_file_pair { const char *key, *value; } gpts_file_pair;

/* A safetensors file (or bytes in memory, which must outlive it), header checked by
   every rule of the format; data is read on demand. */
typedef struct gpts_file {
    gpts_file_tensor *tensors; size_t n_tensors;
    gpts_file_pair *metadata; size_t n_metadata;
    uint64_t data_offset, bytes;              /* of the buffer in the file; of the file   */
    struct gpts_source *source;
    gpts_hooks hooks;
    char error[GPTS_ERROR_BYTES];
} gpts_file;

GPTS_API gpts_status gpts_file_open(gpts_file *file, const char *path, const gpts_hooks *hooks);
GPTS_API gpts_status gpts_file_open_memory(gpts_file *file, const void *data, size_t bytes, const gpts_hooks *hooks);
GPTS_API void gpts_file_close(gpts_file *file);
GPTS_API const gpts_file_tensor *gpts_file_find(const gpts_file *file, const char *name);
GPTS_API const char *gpts_file_metadata(const gpts_file *file, const char *key);     /* or NULL */
/* values first .. first+count-1 as reals (F32 F16 BF16 F64), or as int32 (I32, I64 in range) */
GPTS_API gpts_status gpts_file_read(gpts_file *file, const gpts_file_tensor *tensor, uint64_t first, size_t count, gpts_real *values);
GPTS_API gpts_status gpts_file_read_i32(gpts_file *file, const gpts_file_tensor *tensor, uint64_t first, size_t count, int32_t *values);

/* One tensor to write: reals (stored F32, or F16 / BF16 when asked) or int32 (I32), or,
   for training state, raw 64-bit integers (I64) and doubles (F64). */
typedef struct gpts_file_entry {
    const char *name; gpts_dtype dtype; size_t rank; uint64_t shape[GPTS_MAX_RANK];
    const void *data;                         /* gpts_real for F32 F16 BF16; int32_t, int64_t, double */
} gpts_file_entry;
/* Atomic: beside the target, flushed, renamed.  error [GPTS_ERROR_BYTES] or NULL. */
GPTS_API gpts_status gpts_file_write(const char *path, const gpts_file_entry *entries, size_t n,
                                     const gpts_file_pair *metadata, size_t n_metadata,
                                     const gpts_hooks *hooks, char *error);

/* ---- attention-only models and masks --------------------------------------------------------
   Models without MLP, norm or positions, made to study attention alone: they come under
   Llama-style names with a Llama-style config.json, and are used through a padding mask and
   labels that are shifted inside.                                                          */

/* V 4096, context 512; no MLP, norm, position or bias; untied. */
GPTS_API gpts_config gpts_config_attention_only(int64_t n_layer, int64_t n_head, int64_t n_embd);

/* mask [B,T]: 1 a real token, 0 padding -> first, length [B] =; a row of zeros has length 0.
   BAD_ARGUMENT: another value, or a hole; `error` (or NULL) names the row and position.     */
GPTS_API gpts_status gpts_mask_intervals(const int32_t *mask, size_t B, size_t T, int32_t *first, int32_t *length, char *error);
/* (X4) targets[b,t] = labels[b,t+1] where that is 0 or more and, under a mask (or NULL), both
   t and t+1 are real; else -1.                                                              */
GPTS_API void gpts_labels_to_targets(const int32_t *labels, const int32_t *mask, size_t B, size_t T, int32_t *targets);

/* An array with its shape, as it arrives from elsewhere; data NULL: not given. */
typedef struct gpts_ids_array { const int32_t *data; size_t rank, shape[4]; } gpts_ids_array;
typedef struct gpts_real_array { gpts_real *data; size_t rank, shape[4]; } gpts_real_array;
typedef struct gpts_masked_call {
    gpts_ids_array input_ids;                 /* [B,T]                                       */
    gpts_ids_array attention_mask;            /* [B,T] of 0/1; not given: all 1              */
    gpts_ids_array labels;                    /* [B,T], ignored below 0; or not given        */
    gpts_real_array hidden_states;            /* [B,T,C] what the output matrix reads, =     */
    gpts_real_array logits;                   /* [B,T,V] =                                   */
    double loss;                              /* = mean over the labels that count; 0: none  */
} gpts_masked_call;
/* BAD_SHAPE names the array, the expected and the found shape. */
GPTS_API gpts_status gpts_model_forward_masked(gpts_model *model, gpts_masked_call *call);

/* Any safetensors file of a model whose tensors have other names.  What is known without a
   map: embed_tokens, embed_positions, lm_head, and under layers.<i>. q_proj, k_proj, v_proj,
   a packed in_proj_weight [3C,C] behind or instead of them, out_proj, o_proj, all [out,in].
   Chains of linear maps are folded.  A map is a JSON object from names there to names here,
   tried first; {i} stands for a layer's number, {*} for anything, null for "ignore":
     { "blocks.{i}.attn.W_Q": "h.{i}.attn.q.weight [in,out]",  "blocks.{i}.mask": null,
       "@config": { "num_attention_heads": 8 },
       "@probe": { "tokens": [5,7], "ids": [0,3], "logits": [0.25,-1.5] } }
   Names here are those of the parameter table ([in,out] unless it says [out,in]) and
   h.{i}.attn. q, k, v, in_proj, out_proj, o with .weight ([out,in] unless it says [in,out]) or
   .bias.  A probe (in the map, or left in the file's metadata by gpts_model_save_mapped) holds
   logits of the last token: weights read the wrong way round do not pass it.               */
typedef struct gpts_mapping {
    const char *map;                          /* path of a map, or NULL                      */
    const char *config;                       /* path of settings; NULL: config.json beside the file, if there */
    int64_t n_head;                           /* 0: as the settings say                      */
    int unscaled_scores;                      /* 1: without 1/sqrt(D); 0: as the settings say */
    const int32_t *tokens; size_t n;          /* text at hand (or NULL): refuse a reading of square weights or of
                                                 the scaling that another one beats on it     */
    gpts_dtype dtype;                         /* saving: GPTS_F16, GPTS_BF16; else F32       */
    char *table;                              /* out: what became of each tensor, as lines; gpts_release it */
} gpts_mapping;
#define gpts_model_load_mapped(model, path, mapping, hooks) \
    gpts_model_load_mapped_checked((model), (path), (mapping), (hooks), GPTS_ABI)
GPTS_API gpts_status gpts_model_load_mapped_checked(gpts_model *model, const char *path, gpts_mapping *mapping,
                                                    const gpts_hooks *hooks, uint32_t abi);
/* Back under the names of the file `like` (NULL: Llama's), with config.json beside it.
   UNSUPPORTED: a static or pruned head, an approximator (gpts_model_save keeps those).     */
GPTS_API gpts_status gpts_model_save_mapped(gpts_model *model, const char *path, const char *like, gpts_mapping *mapping);

/* ---- files: models, checkpoints, approximators, tokens ----------------------------------------- */

/* Our own files, GPT-2 (Hugging Face names, `transformer.` or not, stored masks ignored),
   nanoGPT exports ([out,in] matrices, told by c_attn or c_fc; `_orig_mod.`), in one file or
   by model.safetensors.index.json in shards, and llm.c's .bin.  What the file does not say
   of the model is read from config.json in its folder.
   The model is untouched (zero) on failure.                                              */
#define gpts_model_load(model, path, hooks) gpts_model_load_checked((model), (path), (hooks), GPTS_ABI)
GPTS_API gpts_status gpts_model_load_checked(gpts_model *model, const char *path, const gpts_hooks *hooks, uint32_t abi);
#define gpts_model_load_memory(model, data, bytes, hooks) \
    gpts_model_load_memory_checked((model), (data), (bytes), (hooks), GPTS_ABI)
GPTS_API gpts_status gpts_model_load_memory_checked(gpts_model *model, const void *data, size_t bytes,
                                                    const gpts_hooks *hooks, uint32_t abi);
GPTS_API gpts_status gpts_model_save(gpts_model *model, const char *path);
/* The same in `dtype`: F32, or F16 or BF16, rounded to nearest. */
GPTS_API gpts_status gpts_model_save_as(gpts_model *model, const char *path, gpts_dtype dtype);
/* For Python's transformers (GPT2LMHeadModel): its names, and config.json in the same folder.
   UNSUPPORTED unless the model is GPT-2's: learned positions, norms, MLP, every head live. */
GPTS_API gpts_status gpts_model_export(gpts_model *model, const char *path, gpts_dtype dtype);

/* The model plus train.* tensors (moments, step, RNG, data position) in one file.
   Load makes both; the trainer's options are those stored.                                */
GPTS_API gpts_status gpts_checkpoint_save(gpts_trainer *trainer, const char *path);
GPTS_API gpts_status gpts_checkpoint_load(gpts_trainer *trainer, gpts_model *model, const char *path, const gpts_hooks *hooks);

/* approximator_L2.safetensors: approx.c_fc.*, approx.c_proj.*, metadata layer, activation, kind.
   approximator_data.safetensors: <l>.x, <l>.y F32 [n_sequences,T,C] of several layers.     */
GPTS_API gpts_status gpts_approximator_save(gpts_approximator *approximator, const char *path);
GPTS_API gpts_status gpts_approximator_load(gpts_approximator *approximator, const char *path, const gpts_hooks *hooks);
GPTS_API gpts_status gpts_recording_save(gpts_recording *recordings, size_t n, const char *path);
GPTS_API gpts_status gpts_recording_load(gpts_recording *recording, int32_t layer, const char *path, const gpts_hooks *hooks);

/* nanoGPT's token files: u16 little-endian, no header; `<path>` with `.json` for `.bin`
   beside it holds {"vocab_size": V, "tokenizer": "..."} (tokenizer: a file's name or kind). */
typedef struct gpts_tokens {
    uint16_t *ids; size_t n; int32_t vocab_size; char tokenizer[GPTS_ERROR_BYTES];
    gpts_hooks hooks; char error[GPTS_ERROR_BYTES];
} gpts_tokens;
GPTS_API gpts_status gpts_tokens_load(gpts_tokens *tokens, const char *path, const gpts_hooks *hooks);
GPTS_API gpts_status gpts_tokens_save(gpts_tokens *tokens, const char *path);
GPTS_API void gpts_tokens_free(gpts_tokens *tokens);

/* A whole file's bytes, 0-terminated for convenience (not counted). */
GPTS_API gpts_status gpts_read_file(const char *path, char **data, size_t *bytes, const gpts_hooks *hooks, char *error);
GPTS_API void gpts_release(const gpts_hooks *hooks, void *memory);

#ifdef __cplusplus
}
#endif
#endif /* GPTSTATIC_H */

/* ==============================================================================
   PART C   implementation
   ============================================================================== */
#ifdef GPTSTATIC_IMPLEMENTATION
#ifndef GPTSTATIC_IMPLEMENTED
#define GPTSTATIC_IMPLEMENTED

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "gptstatic.h needs infinities and NaN: compile without -ffast-math / -ffinite-math-only"
#endif

/* ==============================================================================
   @@BASE  sizes, memory, random numbers, status, parallel loop
   ============================================================================== */

GPTS_API const char *gpts_status_text(gpts_status status)
{
    switch (status) {
#define GPTSI_ROW(name, number, text) case name: return text;
    GPTS_STATUS_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    case GPTS_STATUS_COUNT: break;
    }
    return "unknown status";
}

#if defined(__GNUC__)
#define GPTSI_PRINTF(at) __attribute__((format(printf, at, at + 1)))
#define GPTSI_UNUSED __attribute__((unused))
#else
#define GPTSI_PRINTF(at)
#define GPTSI_UNUSED
#endif

/* Writes the sentence, returns the status: `return gptsi_fail(m->error, GPTS_..., "...")`. */
static gpts_status gptsi_fail(char *error, gpts_status status, const char *format, ...) GPTSI_PRINTF(3);
static gpts_status gptsi_fail(char *error, gpts_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (error) vsnprintf(error, GPTS_ERROR_BYTES, format, list);
    va_end(list);
    return status;
}

/* Returns a failure to the caller of the enclosing function. */
#define GPTSI_TRY(call) do { gpts_status gptsi_s_ = (call); if (gptsi_s_ != GPTS_OK) return gptsi_s_; } while (0)

/* a * b and a + b, SIZE_MAX when they do not fit: such a size is never allocated. */
static size_t gptsi_mul(size_t a, size_t b) { return b && a > SIZE_MAX / b ? SIZE_MAX : a * b; }
static size_t gptsi_add(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }
static size_t gptsi_min(size_t a, size_t b) { return a < b ? a : b; }
static size_t gptsi_max(size_t a, size_t b) { return a > b ? a : b; }

/* Memory: 64-byte aligned and zeroed; the size is kept in front, for `release`. */
enum { GPTSI_ALIGN = 64 };
static void *gptsi_new(const gpts_hooks *hooks, size_t count, size_t size)
{
    size_t n = gptsi_mul(count, size), total = gptsi_add(n, 2 * GPTSI_ALIGN);
    unsigned char *raw, *p;
    if (total == SIZE_MAX || total > SIZE_MAX / 2) return NULL;
    raw = (unsigned char *)(hooks && hooks->allocate ? hooks->allocate(hooks->context, total) : malloc(total));
    if (!raw) return NULL;
    p = raw + 2 * GPTSI_ALIGN - (size_t)((uintptr_t)raw % GPTSI_ALIGN);
    memcpy(p - sizeof raw, &raw, sizeof raw);
    memcpy(p - sizeof raw - sizeof total, &total, sizeof total);
    memset(p, 0, n);
    return p;
}
#define GPTSI_NEW(hooks, type, count) ((type *)gptsi_new((hooks), (count), sizeof(type)))

static void gptsi_delete(const gpts_hooks *hooks, void *memory)
{
    unsigned char *p = (unsigned char *)memory, *raw;
    size_t total;
    if (!p) return;
    memcpy(&raw, p - sizeof raw, sizeof raw);
    memcpy(&total, p - sizeof raw - sizeof total, sizeof total);
    if (hooks && hooks->release) hooks->release(hooks->context, raw, total);
    else free(raw);
}

static gpts_status gptsi_no_memory(char *error, const char *what, size_t count, size_t size)
{
    size_t n = gptsi_mul(count, size);
    if (n == SIZE_MAX) return gptsi_fail(error, GPTS_NO_MEMORY, "out of memory: %s is larger than any memory", what);
    return gptsi_fail(error, GPTS_NO_MEMORY, "out of memory: %s needs %llu bytes", what, (unsigned long long)n);
}

/* Random numbers: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) over
   a running mix of the coordinates. */
static uint64_t gptsi_mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static uint64_t gptsi_hash(uint64_t seed, uint64_t a, uint64_t b) { return gptsi_mix(gptsi_mix(gptsi_mix(seed) ^ a) ^ b); }
static double gptsi_unit(uint64_t bits) { return (double)(bits >> 11) * (1.0 / 9007199254740992.0); }   /* [0,1) */

GPTS_API uint64_t gpts_rng_bits(gpts_rng *rng) { return gptsi_hash(rng->seed, rng->counter++, 0); }
GPTS_API double gpts_rng_uniform(gpts_rng *rng) { return gptsi_unit(gpts_rng_bits(rng)); }
GPTS_API double gpts_rng_normal(gpts_rng *rng)                /* Box-Muller, one of the pair */
{
    double u = 1.0 - gpts_rng_uniform(rng), v = gpts_rng_uniform(rng);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
GPTS_API uint64_t gpts_rng_below(gpts_rng *rng, uint64_t n)
{
    uint64_t limit, x;
    if (n < 2) return 0;
    limit = UINT64_MAX - UINT64_MAX % n;                      /* reject the uneven rest */
    do x = gpts_rng_bits(rng); while (x >= limit);
    return x % n;
}

/* The parallel loop.  `body` gets a range of items and the worker's number, which picks
   its scratch.  Which worker does which item never changes a result: items share no
   output, and an item's own sums run in one order.                                       */
typedef void (*gptsi_body)(void *arg, size_t begin, size_t end, size_t worker);
enum { GPTSI_MAX_WORKERS = 64 };

#ifndef GPTS_PARALLEL_FOR
#  ifdef _OPENMP
#    if _OPENMP >= 201307
#      define GPTSI_CREW 1                                   /* below */
#    endif
static void gptsi_parallel_openmp(int threads, size_t n, gpts_task task, void *arg)
{
    long long i;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (i = 0; i < (long long)n; i++) task(arg, (size_t)i);
}
#    define GPTS_PARALLEL_FOR(threads, n, task, arg) gptsi_parallel_openmp((threads), (n), (task), (arg))
#  else
#    define GPTS_PARALLEL_FOR(threads, n, task, arg) \
        do { size_t gptsi_i_; (void)(threads); for (gptsi_i_ = 0; gptsi_i_ < (n); gptsi_i_++) task((arg), gptsi_i_); } while (0)
#  endif
#endif

static size_t gptsi_workers(const gpts_hooks *hooks)
{
    int threads = hooks ? hooks->threads : 0;
#ifdef _OPENMP
    if (threads <= 0) threads = omp_get_max_threads();
#endif
    if (threads <= 0) threads = 1;
    return threads > GPTSI_MAX_WORKERS ? (size_t)GPTSI_MAX_WORKERS : (size_t)threads;
}

typedef struct gptsi_loop { gptsi_body body; void *arg; size_t n, workers; } gptsi_loop;
static void gptsi_loop_task(void *arg, size_t worker)
{
    const gptsi_loop *loop = (const gptsi_loop *)arg;
    size_t begin = loop->n * worker / loop->workers, end = loop->n * (worker + 1) / loop->workers;
    if (begin < end) loop->body(loop->arg, begin, end, worker);
}

/* body over items 0 .. n-1 in at most `workers` contiguous ranges */
static void gptsi_parallel(const gpts_hooks *hooks, size_t workers, size_t n, gptsi_body body, void *arg)
{
    gptsi_loop loop;
    loop.body = body; loop.arg = arg; loop.n = n; loop.workers = gptsi_max(1, gptsi_min(workers, n));
    if (loop.workers == 1) { if (n) body(arg, 0, n, 0); return; }
    if (hooks && hooks->parallel_for) hooks->parallel_for(hooks->context, loop.workers, gptsi_loop_task, &loop);
    else GPTS_PARALLEL_FOR((int)loop.workers, loop.workers, gptsi_loop_task, &loop);
}

/* The crew.  OpenMP's fork and join wait, spinning, for every thread of the team: beside one
   busy process an update of a small model took 54 ms on one thread and 1250 on two.  So a whole
   update, prefill or token is one parallel region, in which thread 0 runs the program and the
   others serve its loops.  A worker takes chunks of its own part of a loop (the same part each
   time: its caches know it), then of the others'; thread 0 waits for chunks that someone has
   begun, never for a thread that the system has taken away.                                 */
typedef struct gptsi_crew {
    gptsi_body body;
    void *arg;
    size_t n, workers;
    int chunks;                                               /* of each worker's part */
    int members;                                              /* threads in the region; 0: there is none */
    struct { int value, apart[31]; } round, done, next[GPTSI_MAX_WORKERS];      /* apart: a line of cache each */
} gptsi_crew;
enum { GPTSI_CREW_NONE = 1 << 30, GPTSI_CREW_OVER = -1, GPTSI_CREW_CHUNKS = 4 };
typedef gpts_status (*gptsi_act)(void *arg);

#ifdef GPTSI_CREW
#  if defined(__unix__) || defined(__APPLE__)
#    include <sched.h>
#    define GPTSI_YIELD() sched_yield()
#  else
#    define GPTSI_YIELD() ((void)0)
#  endif
#  if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#    define GPTSI_PAUSE() __builtin_ia32_pause()
#  else
#    define GPTSI_PAUSE() ((void)0)
#  endif
/* waits a little; from about 20 microseconds on, others may have the core */
static void gptsi_crew_wait(unsigned *times) { if (++*times < 2000) GPTSI_PAUSE(); else GPTSI_YIELD(); }
static int gptsi_crew_read(int *value)
{
    int v;
#pragma omp atomic read seq_cst
    v = *value;
    return v;
}
static void gptsi_crew_write(int *value, int v)
{
    (void)v;
#pragma omp atomic write seq_cst
    *value = v;
}
static int gptsi_crew_add(int *value)                         /* returns what was there */
{
    int v;
#pragma omp atomic capture seq_cst
    v = (*value)++;
    return v;
}
/* next[p] counts from NONE - chunks; a number below NONE is a chunk, and while it is not done
   the loop's fields stand still.                                                          */
static void gptsi_crew_take(gptsi_crew *crew, size_t worker)
{
    size_t members = (size_t)crew->members, v;
    for (v = 0; v < members; v++) {
        size_t p = (worker + v) % members;
        while (gptsi_crew_read(&crew->next[p].value) < GPTSI_CREW_NONE) {
            int at = gptsi_crew_add(&crew->next[p].value);
            size_t chunk, all, begin, end;
            if (at >= GPTSI_CREW_NONE) break;
            chunk = p * (size_t)crew->chunks + (size_t)(at - (GPTSI_CREW_NONE - crew->chunks));
            all = crew->workers * (size_t)crew->chunks;
            begin = crew->n * chunk / all; end = crew->n * (chunk + 1) / all;
            if (begin < end) crew->body(crew->arg, begin, end, worker);
            gptsi_crew_add(&crew->done.value);
        }
    }
}
static void gptsi_crew_loop(gptsi_crew *crew, size_t workers, size_t n, gptsi_body body, void *arg)
{
    size_t p;
    unsigned times = 0;
    crew->body = body; crew->arg = arg; crew->n = n;
    crew->workers = gptsi_min(gptsi_min(workers, n), (size_t)crew->members);
    crew->chunks = (int)gptsi_max(1, gptsi_min(GPTSI_CREW_CHUNKS, n / crew->workers));
    crew->done.value = 0;
    for (p = 0; p < crew->workers; p++) gptsi_crew_write(&crew->next[p].value, GPTSI_CREW_NONE - crew->chunks);
    gptsi_crew_write(&crew->round.value, (crew->round.value + 1) & 0xffff);
    gptsi_crew_take(crew, 0);
    while (gptsi_crew_read(&crew->done.value) < (int)crew->workers * crew->chunks) gptsi_crew_wait(&times);
}
static gpts_status gptsi_crew_gather(gptsi_crew *crew, int threads, gptsi_act act, void *arg)
{
    gpts_status status = GPTS_OK;
    size_t p;
    for (p = 0; p < GPTSI_MAX_WORKERS; p++) crew->next[p].value = GPTSI_CREW_NONE;
    crew->round.value = 0;
#pragma omp parallel num_threads(threads)
    {
        int me = omp_get_thread_num();
        if (me == 0) {
            crew->members = omp_get_num_threads();
            status = act(arg);
            gptsi_crew_write(&crew->round.value, GPTSI_CREW_OVER);
        } else {
            int seen = 0, round;
            unsigned times = 0;
            while ((round = gptsi_crew_read(&crew->round.value)) != GPTSI_CREW_OVER) {
                if (round == seen) { gptsi_crew_wait(&times); continue; }
                seen = round;
                times = 0;
                gptsi_crew_take(crew, (size_t)me);
            }
        }
    }
    crew->members = 0;
    return status;
}
#endif

/* ==============================================================================
   @@GEMM  the one matrix product that everything rides on
   ============================================================================== */

/* The inner loops are written once, on GCC's vector extensions, and compiled for three
   widths of vector: what the compiler targets anyway, AVX2 with FMA, and AVX-512; the
   processor picks at run time.  `attribute` also turns contraction on (a * b + c in one
   rounding), which -std=c99 turns off.  Other compilers get the same loops in plain C.

   tile      c[i,j] = add[i,j] + sum_k a[k,i] b[k,j]   a tile of `rows` x (1, 2 or 3) `lanes`;
             as, bs, cs, ds are row strides; ds = 0 adds one row (a bias) to all.  Each cell
             is one chain of multiply-adds in the order of k, whatever the tile's width: how
             a product is cut into tiles does not show in its bits.
   rows_mul  y[j] += sum_k a[k] b[k,j]                 in the order of k
   exp_row   y = exp(x - shift), returns the sum of y   error: see gptsi_exp below
   maximum   -infinity for n = 0; NaN is not seen
   softmax   one step of a running softmax down the columns of s [n, columns], columns in
             whole vectors: m' = max(m, s), s = exp(s - m'), f = exp(m - m'), l = f l + sum s
   cells     p = exp(p - lse), ds = p (ds - delta)
   gelu      y = g(x), or y = dy g'(x) if dy; the form with tanh
   gelu_erf  the same with the normal distribution, in float only; NULL: by libm
   halve     a packed operand [K,width] rounded to bfloat16, in place: NULL: not at all; with
             pair = 2 two values of k share a cell, the lower one below (odd K: zeros)
   rows_half, dot_half   rows_mul, dot with b, y in bfloat16
   adamw     (O2); f = { gscale, 1 - rate decay, beta1, 1 - beta1, beta2, 1 - beta2,
             rate / (1 - beta1^step), 1 / sqrt(1 - beta2^step), epsilon }                 */
typedef struct gptsi_kernels {
    const char *name;
    size_t rows, lanes, pair;                             /* pair: values of k in one cell of a packed operand */
    void (*tile[3])(size_t K, const gpts_real *a, size_t as, const gpts_real *b, size_t bs,
                    gpts_real *c, size_t cs, const gpts_real *add, size_t ds);
    void (*rows_mul)(gpts_real *y, size_t n, const gpts_real *b, size_t bs, const gpts_real *a, size_t K);
    gpts_real (*dot)(const gpts_real *x, const gpts_real *y, size_t n);
    void (*halve)(gpts_real *x, size_t width, size_t K);
    void (*rows_half)(gpts_real *y, size_t n, const uint16_t *b, size_t bs, const gpts_real *a, size_t K);
    gpts_real (*dot_half)(const gpts_real *x, const uint16_t *y, size_t n);
    double (*dot_double)(const double *x, const double *y, size_t n);
    gpts_real (*sum)(const gpts_real *x, size_t n);
    gpts_real (*maximum)(const gpts_real *x, size_t n);
    gpts_real (*exp_row)(gpts_real *y, const gpts_real *x, size_t n, gpts_real shift);
    void (*softmax)(gpts_real *s, size_t ld, size_t n, size_t columns, gpts_real *m, gpts_real *l, gpts_real *f);
    void (*cells)(gpts_real *p, gpts_real *ds, size_t n, gpts_real lse, gpts_real delta);
    void (*gelu)(gpts_real *y, const gpts_real *x, const gpts_real *dy, size_t n);
    void (*gelu_erf)(gpts_real *y, const gpts_real *x, const gpts_real *dy, size_t n);
    void (*adamw)(gpts_real *p, gpts_real *g, gpts_real *m, gpts_real *v, size_t n, const gpts_real *f);
} gptsi_kernels;

/* The CPU as a device: its hooks, its workers and each worker's scratch. */
typedef struct gptsi_cpu {
    gpts_hooks hooks;
    size_t workers;
    gptsi_crew *crew;                                     /* beside the structure: it is too large for a stack */
    unsigned char *scratch[GPTSI_MAX_WORKERS];            /* scratch_bytes each, 64-byte aligned */
    size_t scratch_bytes;
    const gptsi_kernels *kernels;                         /* inner loops for this processor: `table` */
    gptsi_kernels table, narrow;                          /* narrow: the same, products in bfloat16 */
    int bf16;                                             /* gpts_model_precision */
    const gpts_real *wide; uint16_t *kept; size_t n_kept; /* a session's weights: wide[i] rounded is kept[i] */
    gpts_ops ops;                                         /* the model's operations (@@MODEL) */
    gpts_real *block;                                     /* the loss's block of logits */
    size_t block_bytes;
    gpts_status status;                                   /* first failure of an operation */
    char error[GPTS_ERROR_BYTES];
} gptsi_cpu;

enum { GPTSI_TILE_ROWS = 8, GPTSI_TILE_CELLS = 8 * 48 };      /* no tile is larger */
static const gpts_real gptsi_zeros[GPTSI_TILE_CELLS] = { 0 };

/* GELU by tanh is x s with s = 1 / (1 + exp(-2 u)), u = K0 (x + K1 x^3), K0 = sqrt(2/pi). */
#define GPTSI_GELU_K0 0.7978845608028654
#define GPTSI_GELU_K1 0.044715

/* The normal distribution's upper tail: for z >= 0, 1 - Phi(z) = exp(-z^2 / 2) t Q(t) with
   t = 1 / (1 + 0.2316419 z); Q of order 9, fitted over 0 <= z <= 14 for the least largest
   relative error, 4e-9.  (The form is that of Abramowitz, Stegun 26.2.17.)                */
#define GPTSI_TAIL_T ((gpts_real)0.2316419)
static const gpts_real gptsi_tail[10] = {
    (gpts_real)0.028425005023222590, (gpts_real)-0.15904686336054968, (gpts_real)0.31484318314519530,
    (gpts_real)-0.28163211697174140, (gpts_real)0.25207221173501654, (gpts_real)-0.025967705822344225,
    (gpts_real)0.10325780788853971, (gpts_real)0.082754008818744880, (gpts_real)0.092905398023418380,
    (gpts_real)0.092389069508683650
};

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2; Taylor's series of exp(r), whose rest is below half
   a unit in the last place (order 7 in float, 13 in double); n goes to the exponent.
   Error <= 2 units in the last place; 0 below the smallest normal number, infinity from
   2^127 (2^1023) on, NaN for NaN.                                                        */
#define GPTSI_FLOAT (sizeof(gpts_real) == sizeof(float))
#define GPTSI_EXP_MAGIC ((gpts_real)(GPTSI_FLOAT ? 12582912.0 : 6755399441055744.0))      /* 1.5 * 2^23, 2^52 */
#define GPTSI_EXP_LN2_HI ((gpts_real)(GPTSI_FLOAT ? 0.693359375 : 0.6931471803691238))
#define GPTSI_EXP_LN2_LO ((gpts_real)(GPTSI_FLOAT ? -2.1219444005469058e-4 : 1.9082149292705877e-10))
#define GPTSI_EXP_LOW ((gpts_real)(GPTSI_FLOAT ? -87.33654 : -708.396418532264))
#define GPTSI_EXP_HIGH ((gpts_real)(GPTSI_FLOAT ? 88.02969 : 709.0895657128241))

#if defined(__i386__) || FLT_EVAL_METHOD != 0                 /* vectors need flags there, or are of another type than a product */
#elif defined(__clang__)
#  define GPTSI_VECTORS 1
#  define GPTSI_OPTIMIZE
#  define GPTSI_CONTRACT _Pragma("clang fp contract(fast)")
#  define GPTSI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__) && __GNUC__ >= 9
#  define GPTSI_VECTORS 1
#  define GPTSI_OPTIMIZE __attribute__((optimize("O2", "fp-contract=fast")))
#  define GPTSI_CONTRACT
#  define GPTSI_UNROLL _Pragma("GCC unroll 16")
#endif

/* The nearest bfloat16 (ties to even) of a float's bits, in the upper half; NaN stays NaN. */
static uint32_t gptsi_round_half(uint32_t bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits | 0x400000u) & 0xffff0000u;
    return (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
}
static void gptsi_halve_base(gpts_real *x, size_t width, size_t K)
{
    size_t i;
    for (i = 0; i < width * K; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof f);
        bits = gptsi_round_half(bits);
        memcpy(&f, &bits, sizeof f);
        x[i] = (gpts_real)f;
    }
}

#ifdef GPTSI_VECTORS
#if defined(__clang__) || __GNUC__ >= 12
#  define GPTSI_SHUFFLE 1                                     /* __builtin_shufflevector */
#endif
#define GPTSI_INLINE static inline __attribute__((always_inline))
#define GPTSI_WORD_float uint32_t                             /* an integer as wide as a real */
#define GPTSI_WORD_double uint64_t
#define GPTSI_WORD_OF(real) GPTSI_WORD_##real
#define GPTSI_WORD(real) GPTSI_WORD_OF(real)
typedef GPTSI_WORD(GPTS_REAL) gptsi_bits;
#define GPTSI_ROOT_GUESS ((gptsi_bits)(GPTSI_FLOAT ? 0x5F3759DFu : 0x5FE6EB50C7B537A9u))

#define GPTSI_TILE(isa, ROWS, W, attribute)                                                  \
attribute static void gptsi_tile##W##_##isa(size_t K, const gpts_real *a, size_t as,         \
    const gpts_real *b, size_t bs, gpts_real *c, size_t cs, const gpts_real *add, size_t ds) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    enum { L = sizeof(gptsi_v_##isa) / sizeof(gpts_real) };                                  \
    const gptsi_v_##isa zero = { 0 };                                                        \
    gptsi_v_##isa r[ROWS][W], v[W];                                                          \
    size_t k;                                                                                \
    int i, j;                                                                                \
    GPTSI_UNROLL for (i = 0; i < ROWS; i++) {                                                \
        __builtin_prefetch(add + (size_t)i * ds);                                            \
        GPTSI_UNROLL for (j = 0; j < W; j++) r[i][j] = zero;                                 \
    }                                                                                        \
    for (k = 0; k < K; k++, a += as, b += bs) {                                              \
        GPTSI_UNROLL for (j = 0; j < W; j++) v[j] = *(const gptsi_u_##isa *)(b + j * L);     \
        GPTSI_UNROLL for (i = 0; i < ROWS; i++)                                              \
            GPTSI_UNROLL for (j = 0; j < W; j++) r[i][j] += a[i] * v[j];                     \
    }                                                                                        \
    GPTSI_UNROLL for (i = 0; i < ROWS; i++)                                                  \
        GPTSI_UNROLL for (j = 0; j < W; j++)                                                 \
            *(gptsi_u_##isa *)(c + (size_t)i * cs + j * L) = r[i][j] + *(const gptsi_u_##isa *)(add + (size_t)i * ds + j * L); \
}

/* rows_mul and dot with b, y of a type that gptsi_<load>_<isa> reads as reals */
#define GPTSI_ROWS_DOT(isa, ROWS, DOT, type, load, attribute)                                \
attribute static void gptsi_##ROWS##_##isa(gpts_real *y, size_t n, const type *b, size_t bs, const gpts_real *a, size_t K) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    size_t j, k, i;                                                                          \
    for (k = 0; k < K; k += 8)                                                               \
        for (j = 0; j < n; j += GPTSI_L_##isa) {                                             \
            const type *p = b + k * bs + j;                                                  \
            gptsi_v_##isa r = gptsi_load_##isa(y + j, n - j);                                \
            if (K - k >= 8) {                                                                \
                GPTSI_UNROLL for (i = 0; i < 8; i++) r += a[k + i] * gptsi_##load##_##isa(p + i * bs, n - j); \
            } else for (i = 0; i < K - k; i++) r += a[k + i] * gptsi_##load##_##isa(p + i * bs, n - j); \
            gptsi_store_##isa(y + j, n - j, r);                                              \
        }                                                                                    \
}                                                                                            \
attribute static gpts_real gptsi_##DOT##_##isa(const gpts_real *x, const type *y, size_t n)  \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    enum { L = GPTSI_L_##isa };                                                              \
    gptsi_v_##isa r[4] = { { 0 }, { 0 }, { 0 }, { 0 } };                                     \
    size_t i;                                                                                \
    int j;                                                                                   \
    for (i = 0; i + 4 * L <= n; i += 4 * L)                                                  \
        GPTSI_UNROLL for (j = 0; j < 4; j++)                                                 \
            r[j] += *(const gptsi_u_##isa *)(x + i + j * L) * gptsi_##load##_##isa(y + i + j * L, L); \
    for (; i < n; i += L) r[0] += gptsi_load_##isa(x + i, n - i) * gptsi_##load##_##isa(y + i, n - i); \
    return gptsi_lanes_##isa((r[0] + r[1]) + (r[2] + r[3]));                                 \
}

#define GPTSI_KERNELS(isa, BYTES, ROWS, attribute)                                           \
typedef gpts_real gptsi_v_##isa __attribute__((vector_size(BYTES)));                         \
typedef gpts_real gptsi_u_##isa __attribute__((vector_size(BYTES), aligned(sizeof(gpts_real)), may_alias)); \
typedef __typeof__(*(gptsi_v_##isa *)0 == *(gptsi_v_##isa *)0) gptsi_i_##isa;                \
typedef gptsi_bits gptsi_w_##isa __attribute__((vector_size(BYTES)));                        \
typedef uint16_t gptsi_h_##isa __attribute__((vector_size(2 * BYTES / sizeof(gpts_real))));  \
typedef uint16_t gptsi_g_##isa __attribute__((vector_size(2 * BYTES / sizeof(gpts_real)), aligned(2), may_alias)); \
enum { GPTSI_L_##isa = BYTES / (int)sizeof(gpts_real) };                                     \
GPTSI_TILE(isa, ROWS, 1, attribute)                                                          \
GPTSI_TILE(isa, ROWS, 2, attribute)                                                          \
GPTSI_TILE(isa, ROWS, 3, attribute)                                                          \
/* the vector at p, of which `left` values exist, and back */                                \
attribute GPTSI_INLINE gptsi_v_##isa gptsi_load_##isa(const gpts_real *p, size_t left)      \
{                                                                                            \
    gptsi_v_##isa x = { 0 };                                                                 \
    if (left >= GPTSI_L_##isa) return *(const gptsi_u_##isa *)p;                             \
    memcpy(&x, p, left * sizeof *p);                                                         \
    return x;                                                                                \
}                                                                                            \
attribute GPTSI_INLINE void gptsi_store_##isa(gpts_real *p, size_t left, gptsi_v_##isa x)   \
{                                                                                            \
    if (left >= GPTSI_L_##isa) *(gptsi_u_##isa *)p = x;                                      \
    else memcpy(p, &x, left * sizeof *p);                                                    \
}                                                                                            \
attribute GPTSI_INLINE gpts_real gptsi_lanes_##isa(gptsi_v_##isa x)                         \
{                                                                                            \
    gpts_real s = 0;                                                                         \
    int l;                                                                                   \
    for (l = 0; l < GPTSI_L_##isa; l++) s += x[l];                                           \
    return s;                                                                                \
}                                                                                            \
attribute GPTSI_INLINE gptsi_v_##isa gptsi_exp_##isa(gptsi_v_##isa x)                       \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    gptsi_v_##isa t = x * (gpts_real)1.4426950408889634 + GPTSI_EXP_MAGIC, n = t - GPTSI_EXP_MAGIC; \
    gptsi_v_##isa r = x - n * GPTSI_EXP_LN2_HI, y, huge = { 0 };                             \
    gptsi_i_##isa good = (x >= GPTSI_EXP_LOW) & (x < GPTSI_EXP_HIGH);                        \
    huge += (gpts_real)HUGE_VAL;                                                             \
    r -= n * GPTSI_EXP_LN2_LO;                                                               \
    if (GPTSI_FLOAT) y = r * (gpts_real)(1.0 / 5040) + (gpts_real)(1.0 / 720);               \
    else {                                                                                   \
        y = r * (gpts_real)(1.0 / 6227020800.0) + (gpts_real)(1.0 / 479001600.0);            \
        y = y * r + (gpts_real)(1.0 / 39916800.0);                                           \
        y = y * r + (gpts_real)(1.0 / 3628800.0);                                            \
        y = y * r + (gpts_real)(1.0 / 362880.0);                                             \
        y = y * r + (gpts_real)(1.0 / 40320.0);                                              \
        y = y * r + (gpts_real)(1.0 / 5040.0);                                               \
        y = y * r + (gpts_real)(1.0 / 720.0);                                                \
    }                                                                                        \
    y = y * r + (gpts_real)(1.0 / 120);                                                      \
    y = y * r + (gpts_real)(1.0 / 24);                                                       \
    y = y * r + (gpts_real)(1.0 / 6);                                                        \
    y = y * r + (gpts_real)0.5;                                                              \
    y = y * r + (gpts_real)1;                                                                \
    y = y * r + (gpts_real)1;                                                                \
    y = (gptsi_v_##isa)((gptsi_w_##isa)y + ((gptsi_w_##isa)t << (GPTSI_FLOAT ? 23 : 52)));   \
    return (gptsi_v_##isa)(((gptsi_i_##isa)y & good) | ((gptsi_i_##isa)huge & (x >= GPTSI_EXP_HIGH)) \
                           | ((gptsi_i_##isa)x & (x != x)));                                 \
}                                                                                            \
/* bfloat16 at p, as reals; floats only */                                                   \
attribute GPTSI_INLINE gptsi_v_##isa gptsi_widen_##isa(const uint16_t *p, size_t left)      \
{                                                                                            \
    gptsi_h_##isa h = { 0 };                                                                 \
    if (left >= GPTSI_L_##isa) h = *(const gptsi_g_##isa *)p;                                \
    else memcpy(&h, p, left * sizeof *p);                                                    \
    return (gptsi_v_##isa)(__builtin_convertvector(h, gptsi_w_##isa) << (GPTSI_FLOAT ? 16 : 48)); \
}                                                                                            \
GPTSI_ROWS_DOT(isa, rows_mul, dot, gpts_real, load, attribute)                               \
GPTSI_ROWS_DOT(isa, rows_half, dot_half, uint16_t, widen, attribute)                         \
attribute static double gptsi_dot_double_##isa(const double *x, const double *y, size_t n)   \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    typedef double gptsi_d __attribute__((vector_size(BYTES), aligned(8), may_alias));       \
    enum { L = BYTES / 8 };                                                                  \
    gptsi_d r[4] = { { 0 }, { 0 }, { 0 }, { 0 } };                                           \
    double s = 0;                                                                            \
    size_t i;                                                                                \
    int j;                                                                                   \
    for (i = 0; i + 4 * L <= n; i += 4 * L)                                                  \
        GPTSI_UNROLL for (j = 0; j < 4; j++) r[j] += *(const gptsi_d *)(x + i + j * L) * *(const gptsi_d *)(y + i + j * L); \
    for (; i < n; i++) s += x[i] * y[i];                                                     \
    r[0] = (r[0] + r[1]) + (r[2] + r[3]);                                                    \
    for (j = 0; j < L; j++) s += r[0][j];                                                    \
    return s;                                                                                \
}                                                                                            \
attribute static gpts_real gptsi_sum_##isa(const gpts_real *x, size_t n)                     \
{                                                                                            \
    gptsi_v_##isa r = { 0 };                                                                 \
    size_t i;                                                                                \
    for (i = 0; i < n; i += GPTSI_L_##isa) r += gptsi_load_##isa(x + i, n - i);              \
    return gptsi_lanes_##isa(r);                                                             \
}                                                                                            \
attribute static gpts_real gptsi_maximum_##isa(const gpts_real *x, size_t n)                 \
{                                                                                            \
    gptsi_v_##isa r = { 0 };                                                                 \
    gpts_real top = (gpts_real)-HUGE_VAL;                                                    \
    size_t i, l;                                                                             \
    r += top;                                                                                \
    for (i = 0; i + GPTSI_L_##isa <= n; i += GPTSI_L_##isa) {                                \
        gptsi_v_##isa v = *(const gptsi_u_##isa *)(x + i);                                   \
        gptsi_i_##isa above = v > r;                                                         \
        r = (gptsi_v_##isa)(((gptsi_i_##isa)v & above) | ((gptsi_i_##isa)r & ~above));       \
    }                                                                                        \
    for (l = 0; l < GPTSI_L_##isa; l++) if (r[l] > top) top = r[l];                          \
    for (; i < n; i++) if (x[i] > top) top = x[i];                                           \
    return top;                                                                              \
}                                                                                            \
attribute static gpts_real gptsi_exp_row_##isa(gpts_real *y, const gpts_real *x, size_t n, gpts_real shift) \
{                                                                                            \
    gptsi_v_##isa r = { 0 };                                                                 \
    gpts_real rest = 0;                                                                      \
    size_t i;                                                                                \
    for (i = 0; i + GPTSI_L_##isa <= n; i += GPTSI_L_##isa) {                                \
        gptsi_v_##isa e = gptsi_exp_##isa(*(const gptsi_u_##isa *)(x + i) - shift);          \
        *(gptsi_u_##isa *)(y + i) = e;                                                       \
        r += e;                                                                              \
    }                                                                                        \
    if (i < n) {                                                                             \
        gptsi_store_##isa(y + i, n - i, gptsi_exp_##isa(gptsi_load_##isa(x + i, n - i) - shift)); \
        for (; i < n; i++) rest += y[i];                                                     \
    }                                                                                        \
    return gptsi_lanes_##isa(r) + rest;                                                      \
}                                                                                            \
attribute static void gptsi_softmax_##isa(gpts_real *s, size_t ld, size_t n, size_t columns, gpts_real *m, gpts_real *l, gpts_real *f) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    size_t c, i;                                                                             \
    for (c = 0; c < columns; c += GPTSI_L_##isa) {                                           \
        gptsi_v_##isa was = *(gptsi_u_##isa *)(m + c), top = was, sum = { 0 }, v;            \
        for (i = 0; i < n; i++) {                                                            \
            gptsi_i_##isa above;                                                             \
            v = *(gptsi_u_##isa *)(s + i * ld + c);                                          \
            above = v > top;                                                                 \
            top = (gptsi_v_##isa)(((gptsi_i_##isa)v & above) | ((gptsi_i_##isa)top & ~above)); \
        }                                                                                    \
        for (i = 0; i < n; i++) {                                                            \
            v = gptsi_exp_##isa(*(gptsi_u_##isa *)(s + i * ld + c) - top);                   \
            *(gptsi_u_##isa *)(s + i * ld + c) = v;                                          \
            sum += v;                                                                        \
        }                                                                                    \
        was = gptsi_exp_##isa(was - top);                                                    \
        *(gptsi_u_##isa *)(f + c) = was;                                                     \
        *(gptsi_u_##isa *)(m + c) = top;                                                     \
        *(gptsi_u_##isa *)(l + c) = *(gptsi_u_##isa *)(l + c) * was + sum;                   \
    }                                                                                        \
}                                                                                            \
attribute static void gptsi_cells_##isa(gpts_real *p, gpts_real *ds, size_t n, gpts_real lse, gpts_real delta) \
{                                                                                            \
    size_t i;                                                                                \
    for (i = 0; i < n; i += GPTSI_L_##isa) {                                                 \
        gptsi_v_##isa e = gptsi_exp_##isa(gptsi_load_##isa(p + i, n - i) - lse);             \
        gptsi_store_##isa(p + i, n - i, e);                                                  \
        gptsi_store_##isa(ds + i, n - i, e * (gptsi_load_##isa(ds + i, n - i) - delta));     \
    }                                                                                        \
}                                                                                            \
attribute static void gptsi_gelu_##isa(gpts_real *y, const gpts_real *x, const gpts_real *dy, size_t n) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    const gpts_real k0 = (gpts_real)(2 * GPTSI_GELU_K0), k1 = (gpts_real)GPTSI_GELU_K1;      \
    size_t i;                                                                                \
    for (i = 0; i < n; i += GPTSI_L_##isa) {                                                 \
        gptsi_v_##isa v = gptsi_load_##isa(x + i, n - i), vv = v * v;                        \
        gptsi_v_##isa s = (gpts_real)1 / ((gpts_real)1 + gptsi_exp_##isa(-k0 * v * (k1 * vv + (gpts_real)1))); \
        if (!dy) s = v * s;                                                                  \
        else s = gptsi_load_##isa(dy + i, n - i) *                                           \
                 (s + v * s * ((gpts_real)1 - s) * k0 * ((gpts_real)3 * k1 * vv + (gpts_real)1)); \
        gptsi_store_##isa(y + i, n - i, s);                                                  \
    }                                                                                        \
}                                                                                            \
attribute static void gptsi_gelu_erf_##isa(gpts_real *y, const gpts_real *x, const gpts_real *dy, size_t n) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    size_t i, k;                                                                             \
    for (i = 0; i < n; i += GPTSI_L_##isa) {                                                 \
        gptsi_v_##isa v = gptsi_load_##isa(x + i, n - i), z, t, q = { 0 }, e, phi;           \
        gptsi_i_##isa right = v > 0;                                                         \
        z = (gptsi_v_##isa)(((gptsi_i_##isa)v & right) | ((gptsi_i_##isa)-v & ~right));      \
        t = (gpts_real)1 / (GPTSI_TAIL_T * z + (gpts_real)1);                                \
        GPTSI_UNROLL for (k = 0; k < 10; k++) q = q * t + gptsi_tail[k];                     \
        e = gptsi_exp_##isa((gpts_real)-0.5 * v * v);                                        \
        q *= e * t;                                                                          \
        phi = (gpts_real)1 - q;                                                              \
        phi = (gptsi_v_##isa)(((gptsi_i_##isa)phi & right) | ((gptsi_i_##isa)q & ~right));   \
        if (!dy) phi *= v;                                                                   \
        else phi = gptsi_load_##isa(dy + i, n - i) * (phi + v * e * (gpts_real)0.3989422804014327); \
        gptsi_store_##isa(y + i, n - i, phi);                                                \
    }                                                                                        \
}                                                                                            \
/* the root is v y, y = 1 / sqrt(v) by Newton's steps from the usual guess on the bits */    \
attribute static void gptsi_adamw_##isa(gpts_real *p, gpts_real *g, gpts_real *m, gpts_real *v, size_t n, const gpts_real *f) \
{                                                                                            \
    GPTSI_CONTRACT                                                                           \
    const gptsi_v_##isa zero = { 0 };                                                        \
    size_t i;                                                                                \
    int k;                                                                                   \
    for (i = 0; i < n; i += GPTSI_L_##isa) {                                                 \
        size_t left = n - i;                                                                 \
        gptsi_v_##isa d = f[0] * gptsi_load_##isa(g + i, left), y, s;                        \
        gptsi_v_##isa a = gptsi_load_##isa(m + i, left), b = gptsi_load_##isa(v + i, left);  \
        a = f[2] * a + f[3] * d;                                                             \
        b = f[4] * b + f[5] * d * d;                                                         \
        y = (gptsi_v_##isa)(GPTSI_ROOT_GUESS - ((gptsi_w_##isa)b >> 1));                     \
        for (k = 0; k < (GPTSI_FLOAT ? 3 : 4); k++) y = y * ((gpts_real)1.5 - (gpts_real)0.5 * b * y * y); \
        s = b * y;                                                                           \
        s = s + (gpts_real)0.5 * y * (b - s * s);                                            \
        gptsi_store_##isa(m + i, left, a);                                                   \
        gptsi_store_##isa(v + i, left, b);                                                   \
        gptsi_store_##isa(g + i, left, zero);                                                \
        gptsi_store_##isa(p + i, left, f[1] * gptsi_load_##isa(p + i, left) - f[6] * a / (f[7] * s + f[8])); \
    }                                                                                        \
}                                                                                            \
static void gptsi_kernels_##isa(gptsi_kernels *q)                                            \
{                                                                                            \
    q->name = #isa; q->rows = ROWS; q->lanes = GPTSI_L_##isa; q->pair = 1; q->halve = NULL;  \
    q->rows_half = gptsi_rows_half_##isa; q->dot_half = gptsi_dot_half_##isa;                \
    q->tile[0] = gptsi_tile1_##isa; q->tile[1] = gptsi_tile2_##isa; q->tile[2] = gptsi_tile3_##isa; \
    q->rows_mul = gptsi_rows_mul_##isa; q->dot = gptsi_dot_##isa; q->sum = gptsi_sum_##isa;  \
    q->dot_double = gptsi_dot_double_##isa;                                                  \
    q->maximum = gptsi_maximum_##isa; q->exp_row = gptsi_exp_row_##isa;                      \
    q->softmax = gptsi_softmax_##isa; q->cells = gptsi_cells_##isa;                          \
    q->gelu = gptsi_gelu_##isa; q->gelu_erf = GPTSI_FLOAT ? gptsi_gelu_erf_##isa : NULL; q->adamw = gptsi_adamw_##isa; \
}

GPTSI_KERNELS(base, 16, 4, GPTSI_OPTIMIZE)
#if defined(__x86_64__)
GPTSI_KERNELS(avx2, 32, 4, __attribute__((target("avx2,fma"))) GPTSI_OPTIMIZE)
GPTSI_KERNELS(avx512, 64, 8, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) GPTSI_OPTIMIZE)

#if defined(__clang__) || __GNUC__ >= 11
/* bfloat16: AVX512-BF16 multiplies pairs, r += a0 b0 + a1 b1 in each lane: twice the rate of
   floats.  Said in assembler, so that any compiler of the above will do.                    */
#define GPTSI_BF16 1
#define GPTSI_TARGET_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) GPTSI_OPTIMIZE
typedef gptsi_bits gptsi_x_avx512 __attribute__((vector_size(64), aligned(4), may_alias));
typedef gptsi_bits gptsi_cell __attribute__((may_alias));
#define GPTSI_TILE_BF16(W)                                                                   \
GPTSI_TARGET_BF16 static void gptsi_tile##W##_bf16(size_t K, const gpts_real *a, size_t as,  \
    const gpts_real *b, size_t bs, gpts_real *c, size_t cs, const gpts_real *add, size_t ds) \
{                                                                                            \
    enum { L = GPTSI_L_avx512 };                                                             \
    const gptsi_v_avx512 zero = { 0 };                                                       \
    const gptsi_w_avx512 none = { 0 };                                                       \
    gptsi_v_avx512 r[8][W];                                                                  \
    gptsi_w_avx512 v[W];                                                                     \
    size_t k;                                                                                \
    int i, j;                                                                                \
    GPTSI_UNROLL for (i = 0; i < 8; i++) {                                                   \
        __builtin_prefetch(add + (size_t)i * ds);                                            \
        GPTSI_UNROLL for (j = 0; j < W; j++) r[i][j] = zero;                                 \
    }                                                                                        \
    for (k = 0; k < K; k++, a += as, b += bs) {                                              \
        GPTSI_UNROLL for (j = 0; j < W; j++) v[j] = *(const gptsi_x_avx512 *)(const void *)(b + j * L); \
        GPTSI_UNROLL for (i = 0; i < 8; i++) {                                               \
            gptsi_w_avx512 x = none + ((const gptsi_cell *)(const void *)a)[i]; \
            GPTSI_UNROLL for (j = 0; j < W; j++)                                             \
                __asm__("vdpbf16ps {%1, %2, %0|%0, %2, %1}" : "+v"(r[i][j]) : "v"(v[j]), "v"(x)); \
        }                                                                                    \
    }                                                                                        \
    GPTSI_UNROLL for (i = 0; i < 8; i++)                                                     \
        GPTSI_UNROLL for (j = 0; j < W; j++)                                                 \
            *(gptsi_u_avx512 *)(c + (size_t)i * cs + j * L) = r[i][j] + *(const gptsi_u_avx512 *)(add + (size_t)i * ds + j * L); \
}
GPTSI_TILE_BF16(1)
GPTSI_TILE_BF16(2)
GPTSI_TILE_BF16(3)
/* rows 2 k and 2 k + 1 of the panel become row k of pairs; what is read is not yet written */
GPTSI_TARGET_BF16 static void gptsi_halve_avx512(gpts_real *x, size_t width, size_t K)
{
    gptsi_cell *p = (gptsi_cell *)(void *)x;
    size_t k, i;
    if (K % 2) memset(x + K * width, 0, width * sizeof *x);
    for (k = 0; k < K; k += 2) {
        const gptsi_cell *low = p + k * width, *high = low + width;
        gptsi_cell *out = p + k / 2 * width;
        for (i = 0; i + 16 <= width; i += 16) {
            gptsi_w_avx512 a = *(const gptsi_x_avx512 *)(low + i), b = *(const gptsi_x_avx512 *)(high + i);
            gptsi_w_avx512 nan_a = (gptsi_w_avx512)((a & 0x7fffffffu) > 0x7f800000u), nan_b = (gptsi_w_avx512)((b & 0x7fffffffu) > 0x7f800000u);
            a = ((a + 0x7fffu + (a >> 16 & 1)) & ~nan_a) | ((a | 0x400000u) & nan_a);
            b = ((b + 0x7fffu + (b >> 16 & 1)) & ~nan_b) | ((b | 0x400000u) & nan_b);
            *(gptsi_x_avx512 *)(out + i) = a >> 16 | (b & 0xffff0000u);
        }
        for (; i < width; i++) out[i] = (gptsi_cell)(gptsi_round_half((uint32_t)low[i]) >> 16 | gptsi_round_half((uint32_t)high[i]));
    }
}
static void gptsi_kernels_bf16(gptsi_kernels *q)
{
    q->pair = 2; q->halve = gptsi_halve_avx512;
    q->tile[0] = gptsi_tile1_bf16; q->tile[1] = gptsi_tile2_bf16; q->tile[2] = gptsi_tile3_bf16;
}
#endif
#endif

#else                                                         /* plain C */

enum { GPTSI_PLAIN_ROWS = 4, GPTSI_PLAIN_LANES = 4 };
static void gptsi_tile_plain(size_t columns, size_t K, const gpts_real *a, size_t as, const gpts_real *b, size_t bs,
                             gpts_real *c, size_t cs, const gpts_real *add, size_t ds)
{
    gpts_real r[GPTSI_PLAIN_ROWS][3 * GPTSI_PLAIN_LANES];
    size_t i, j, k;
    memset(r, 0, sizeof r);
    for (k = 0; k < K; k++)
        for (i = 0; i < GPTSI_PLAIN_ROWS; i++)
            for (j = 0; j < columns; j++) r[i][j] += a[k * as + i] * b[k * bs + j];
    for (i = 0; i < GPTSI_PLAIN_ROWS; i++)
        for (j = 0; j < columns; j++) c[i * cs + j] = r[i][j] + add[i * ds + j];
}
#define GPTSI_TILE(W)                                                                        \
static void gptsi_tile##W##_base(size_t K, const gpts_real *a, size_t as, const gpts_real *b, size_t bs, \
                                 gpts_real *c, size_t cs, const gpts_real *add, size_t ds)   \
{ gptsi_tile_plain(W * GPTSI_PLAIN_LANES, K, a, as, b, bs, c, cs, add, ds); }
GPTSI_TILE(1)
GPTSI_TILE(2)
GPTSI_TILE(3)
static void gptsi_rows_mul_base(gpts_real *y, size_t n, const gpts_real *b, size_t bs, const gpts_real *a, size_t K)
{
    size_t j, k;
    for (k = 0; k < K; k++) for (j = 0; j < n; j++) y[j] += a[k] * b[k * bs + j];
}
static gpts_real gptsi_dot_base(const gpts_real *x, const gpts_real *y, size_t n)
{
    gpts_real s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += x[i] * y[i];
    return s;
}
static double gptsi_dot_double_base(const double *x, const double *y, size_t n)
{
    double s[4] = { 0, 0, 0, 0 };
    size_t i = 0, l;
    for (; i + 4 <= n; i += 4) for (l = 0; l < 4; l++) s[l] += x[i + l] * y[i + l];
    for (; i < n; i++) s[0] += x[i] * y[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}
static gpts_real gptsi_widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (gpts_real)f;
}
static void gptsi_rows_half_base(gpts_real *y, size_t n, const uint16_t *b, size_t bs, const gpts_real *a, size_t K)
{
    size_t j, k;
    for (k = 0; k < K; k++) for (j = 0; j < n; j++) y[j] += a[k] * gptsi_widen(b[k * bs + j]);
}
static gpts_real gptsi_dot_half_base(const gpts_real *x, const uint16_t *y, size_t n)
{
    gpts_real s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += x[i] * gptsi_widen(y[i]);
    return s;
}
static gpts_real gptsi_sum_base(const gpts_real *x, size_t n)
{
    gpts_real s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += x[i];
    return s;
}
static gpts_real gptsi_maximum_base(const gpts_real *x, size_t n)
{
    gpts_real top = (gpts_real)-HUGE_VAL;
    size_t i;
    for (i = 0; i < n; i++) if (x[i] > top) top = x[i];
    return top;
}
static gpts_real gptsi_exp_row_base(gpts_real *y, const gpts_real *x, size_t n, gpts_real shift)
{
    gpts_real s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += y[i] = (gpts_real)exp((double)(x[i] - shift));
    return s;
}
static void gptsi_softmax_base(gpts_real *s, size_t ld, size_t n, size_t columns, gpts_real *m, gpts_real *l, gpts_real *f)
{
    size_t c, i;
    for (c = 0; c < columns; c++) {
        gpts_real top = m[c], sum = 0;
        for (i = 0; i < n; i++) if (s[i * ld + c] > top) top = s[i * ld + c];
        for (i = 0; i < n; i++) sum += s[i * ld + c] = (gpts_real)exp((double)(s[i * ld + c] - top));
        f[c] = (gpts_real)exp((double)(m[c] - top));
        m[c] = top;
        l[c] = l[c] * f[c] + sum;
    }
}
static void gptsi_cells_base(gpts_real *p, gpts_real *ds, size_t n, gpts_real lse, gpts_real delta)
{
    size_t i;
    for (i = 0; i < n; i++) { p[i] = (gpts_real)exp((double)(p[i] - lse)); ds[i] = p[i] * (ds[i] - delta); }
}
static void gptsi_gelu_base(gpts_real *y, const gpts_real *x, const gpts_real *dy, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) {
        double v = (double)x[i], s = 1 / (1 + exp(-2 * GPTSI_GELU_K0 * v * (1 + GPTSI_GELU_K1 * v * v)));
        y[i] = (gpts_real)(dy ? (double)dy[i] * (s + v * s * (1 - s) * 2 * GPTSI_GELU_K0 * (1 + 3 * GPTSI_GELU_K1 * v * v)) : v * s);
    }
}
static void gptsi_adamw_base(gpts_real *p, gpts_real *g, gpts_real *m, gpts_real *v, size_t n, const gpts_real *f)
{
    size_t i;
    for (i = 0; i < n; i++) {
        gpts_real d = f[0] * g[i];
        m[i] = f[2] * m[i] + f[3] * d;
        v[i] = f[4] * v[i] + f[5] * d * d;
        p[i] = f[1] * p[i] - f[6] * m[i] / (f[7] * (gpts_real)sqrt((double)v[i]) + f[8]);
        g[i] = 0;
    }
}
static void gptsi_kernels_base(gptsi_kernels *q)
{
    q->name = "plain"; q->rows = GPTSI_PLAIN_ROWS; q->lanes = GPTSI_PLAIN_LANES; q->pair = 1; q->halve = NULL;
    q->rows_half = gptsi_rows_half_base; q->dot_half = gptsi_dot_half_base;
    q->tile[0] = gptsi_tile1_base; q->tile[1] = gptsi_tile2_base; q->tile[2] = gptsi_tile3_base;
    q->rows_mul = gptsi_rows_mul_base; q->dot = gptsi_dot_base; q->sum = gptsi_sum_base;
    q->dot_double = gptsi_dot_double_base;
    q->maximum = gptsi_maximum_base; q->exp_row = gptsi_exp_row_base;
    q->softmax = gptsi_softmax_base; q->cells = gptsi_cells_base;
    q->gelu = gptsi_gelu_base; q->gelu_erf = NULL; q->adamw = gptsi_adamw_base;
}
#endif

/* Fills the table for this processor and returns it.  (A constant table of functions would
   be data that the loader relocates, which a library in many programs does better without.) */
static const gptsi_kernels *gptsi_kernels_best(gptsi_kernels *q)
{
#if defined(GPTSI_VECTORS) && defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma")) gptsi_kernels_avx512(q);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) gptsi_kernels_avx2(q);
    else
#endif
    gptsi_kernels_base(q);
    return q;
}

/* The table for products in bfloat16: on pairs where the processor can, else on rounded floats. */
static const gptsi_kernels *gptsi_kernels_narrow(gptsi_kernels *q)
{
    gptsi_kernels_best(q);
    q->halve = gptsi_halve_base;
#ifdef GPTSI_BF16
    if (GPTSI_FLOAT && q->lanes == 16 && __builtin_cpu_supports("avx512bf16")) gptsi_kernels_bf16(q);
#endif
    return q;
}

/* A worker's scratch: a packed block of A, one packed panel of B; attention uses it too. */
enum { GPTSI_GEMM_DEPTH = 384, GPTSI_SCRATCH = 5 << 18 };     /* K in steps of 384; 1.25 MB */

static void gptsi_cpu_free(gptsi_cpu *cpu)
{
    size_t w;
    for (w = 0; w < GPTSI_MAX_WORKERS; w++) gptsi_delete(&cpu->hooks, cpu->scratch[w]);
    gptsi_delete(&cpu->hooks, cpu->block); gptsi_delete(&cpu->hooks, cpu->kept); gptsi_delete(&cpu->hooks, cpu->crew);
    memset(cpu, 0, sizeof *cpu);
}
static gpts_status gptsi_cpu_init(gptsi_cpu *cpu, const gpts_hooks *hooks, char *error)
{
    size_t w;
    memset(cpu, 0, sizeof *cpu);
    if (hooks) cpu->hooks = *hooks;
    cpu->workers = gptsi_workers(hooks);
    cpu->scratch_bytes = GPTSI_SCRATCH;
    cpu->kernels = gptsi_kernels_best(&cpu->table);
    gptsi_kernels_narrow(&cpu->narrow);
    if (!(cpu->crew = GPTSI_NEW(&cpu->hooks, gptsi_crew, 1))) return gptsi_no_memory(error, "the workers", 1, sizeof *cpu->crew);
    for (w = 0; w < cpu->workers; w++)
        if (!(cpu->scratch[w] = GPTSI_NEW(&cpu->hooks, unsigned char, cpu->scratch_bytes))) {
            gptsi_cpu_free(cpu);
            return gptsi_no_memory(error, "a worker's scratch", GPTSI_SCRATCH, 1);
        }
    return GPTS_OK;
}

/* body over items 0 .. n-1, by the crew where there is one */
static void gptsi_cpu_parallel(gptsi_cpu *cpu, size_t workers, size_t n, gptsi_body body, void *arg)
{
#ifdef GPTSI_CREW
    if (cpu->crew->members > 1 && workers > 1 && n > 1) { gptsi_crew_loop(cpu->crew, workers, n, body, arg); return; }
#endif
    gptsi_parallel(&cpu->hooks, workers, n, body, arg);
}
/* act(arg), its loops served by one crew */
static gpts_status gptsi_cpu_together(void *device, gptsi_act act, void *arg)
{
#ifdef GPTSI_CREW
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    if (cpu->workers > 1 && !cpu->crew->members && !cpu->hooks.parallel_for && !omp_in_parallel())
        return gptsi_crew_gather(cpu->crew, (int)cpu->workers, act, arg);
#endif
    (void)device;
    return act(arg);
}

/* C[M,N] = (or +=) op(A)[M,K] op(B)[K,N] + bias[N], by definition.  The tests' reference. */
GPTSI_UNUSED static void gptsi_gemm_plain(int ta, int tb, size_t M, size_t N, size_t K, const gpts_real *A, size_t lda,
                                          const gpts_real *B, size_t ldb, gpts_real *C, size_t ldc, int accumulate,
                                          const gpts_real *bias)
{
    size_t m, n, k;
    for (m = 0; m < M; m++)
        for (n = 0; n < N; n++) {
            double s = accumulate ? (double)C[m * ldc + n] : 0.0;
            if (bias) s += (double)bias[n];
            for (k = 0; k < K; k++)
                s += (double)(ta ? A[k * lda + m] : A[m * lda + k]) * (double)(tb ? B[n * ldb + k] : B[k * ldb + n]);
            C[m * ldc + n] = (gpts_real)s;
        }
}

/* out[i,j] = in[j,i], four by four */
#ifdef GPTSI_SHUFFLE
typedef gpts_real gptsi_four __attribute__((vector_size(4 * sizeof(gpts_real)), aligned(sizeof(gpts_real)), may_alias));
static inline void gptsi_transpose4(gpts_real *out, size_t width, const gpts_real *in, size_t ld)
{
    const gptsi_four a = *(const gptsi_four *)in, b = *(const gptsi_four *)(in + ld);
    const gptsi_four c = *(const gptsi_four *)(in + 2 * ld), d = *(const gptsi_four *)(in + 3 * ld);
    const gptsi_four e = __builtin_shufflevector(a, b, 0, 4, 1, 5), f = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const gptsi_four g = __builtin_shufflevector(c, d, 0, 4, 1, 5), h = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(gptsi_four *)out = __builtin_shufflevector(e, g, 0, 1, 4, 5);
    *(gptsi_four *)(out + width) = __builtin_shufflevector(e, g, 2, 3, 6, 7);
    *(gptsi_four *)(out + 2 * width) = __builtin_shufflevector(f, h, 0, 1, 4, 5);
    *(gptsi_four *)(out + 3 * width) = __builtin_shufflevector(f, h, 2, 3, 6, 7);
}
#else
static void gptsi_transpose4(gpts_real *out, size_t width, const gpts_real *in, size_t ld)
{
    size_t i, j;
    for (j = 0; j < 4; j++) for (i = 0; i < 4; i++) out[i * width + j] = in[j * ld + i];
}
#endif

#if defined(__GNUC__)
#define GPTSI_PREFETCH(p) __builtin_prefetch(p)
#else
#define GPTSI_PREFETCH(p) ((void)0)
#endif

/* out[k,i] = in[i,k] (transposed) or in[k,i], i < n padded with zeros to `width`: the
   order in which a tile reads its operands.  Transposing goes by 16 k, a line of memory,
   and asks for the line after the next: y = x W^T gained a tenth.                        */
static void gptsi_pack(gpts_real *out, size_t width, const gpts_real *in, size_t ld, size_t n, size_t K, int transposed)
{
    size_t i, k, k0, k1;
    if (!transposed) {
        for (k = 0; k < K; k++) {
            memcpy(out + k * width, in + k * ld, n * sizeof *out);
            if (n < width) memset(out + k * width + n, 0, (width - n) * sizeof *out);
        }
        return;
    }
    for (k0 = 0; k0 < K; k0 = k1) {
        k1 = gptsi_min(k0 + 16, K);
        for (i = 0; i + 4 <= n; i += 4) {
            const gpts_real *next = in + i * ld + gptsi_min(k1 + 16, K - 1);
            GPTSI_PREFETCH(next); GPTSI_PREFETCH(next + ld); GPTSI_PREFETCH(next + 2 * ld); GPTSI_PREFETCH(next + 3 * ld);
            for (k = k0; k + 4 <= k1; k += 4) gptsi_transpose4(out + k * width + i, width, in + i * ld + k, ld);
            for (; k < k1; k++) {
                out[k * width + i] = in[i * ld + k]; out[k * width + i + 1] = in[(i + 1) * ld + k];
                out[k * width + i + 2] = in[(i + 2) * ld + k]; out[k * width + i + 3] = in[(i + 3) * ld + k];
            }
        }
        for (; i < width; i++) for (k = k0; k < k1; k++) out[k * width + i] = i < n ? in[i * ld + k] : 0;
    }
}

/* c[rows,columns] = add + packed a times packed b; a tile that sticks out goes by way of a
   whole one on the stack.                                                               */
static void gptsi_tile_edge(const gptsi_kernels *q, size_t W, size_t K, const gpts_real *a, size_t as, const gpts_real *b,
                            size_t bs, size_t rows, size_t columns, gpts_real *c, size_t cs, const gpts_real *add, size_t ds)
{
    gpts_real t[GPTSI_TILE_CELLS];
    size_t i, width = W * q->lanes;
    if (rows == q->rows && columns == width) { q->tile[W - 1](K, a, as, b, bs, c, cs, add, ds); return; }
    memset(t, 0, sizeof t);
    for (i = 0; i < rows; i++) memcpy(t + i * width, add + i * ds, columns * sizeof *t);
    q->tile[W - 1](K, a, as, b, bs, t, width, t, width);
    for (i = 0; i < rows; i++) memcpy(c + i * cs, t + i * width, columns * sizeof *t);
}

/* how many vectors wide the next panel is, with `left` columns to go */
static size_t gptsi_panel(const gptsi_kernels *q, size_t left)
{
    size_t v = (left + q->lanes - 1) / q->lanes;
    return v == 4 ? 2 : gptsi_min(v, 3);
}

/* The product.  C is cut into a grid of rows x columns, one part a worker; K is never cut
   between workers.  In a part: for each step of K, pack a block of rows of A, then panel by
   panel of B let the tiles run down the block.  (Goto, van de Geijn, ACM TOMS 34(3), 2008) */
typedef struct gptsi_product {
    gptsi_cpu *cpu;
    const gptsi_kernels *q;
    const uint16_t *half;                                     /* few rows: B kept in bfloat16, or NULL */
    int ta, tb, accumulate;
    size_t M, N, K, lda, ldb, ldc, grid_rows, grid_columns, depth;
    const gpts_real *A, *B, *bias;
    gpts_real *C, *sums;
} gptsi_product;

static void gptsi_gemm_pack(const gptsi_kernels *q, gpts_real *out, size_t width, const gpts_real *in, size_t ld, size_t n,
                            size_t K, int transposed)
{
    gptsi_pack(out, width, in, ld, n, K, transposed);
    if (q->halve) q->halve(out, width, K);
}
static void gptsi_gemm_part(const gptsi_product *p, size_t m0, size_t m1, size_t n0, size_t n1, unsigned char *scratch)
{
    const gptsi_kernels *q = p->q;
    size_t deepest = GPTSI_GEMM_DEPTH * q->pair, k, kn, deep, m, mn, n, nn, i, W;
    gpts_real *b = (gpts_real *)(void *)scratch, *a = b + deepest * 3 * q->lanes;
    size_t room = p->cpu->scratch_bytes / sizeof *a - deepest * 3 * q->lanes;
    for (k = 0; k == 0 || k < p->K; k += deepest) {
        kn = gptsi_min(deepest, p->K - k);
        deep = (kn + q->pair - 1) / q->pair;                  /* cells of a packed column */
        mn = room / (deep ? deep : 1) / q->rows * q->rows - (q->pair - 1) * q->rows;      /* a panel is packed before it is halved */
        for (m = m0; m < m1; m += mn) {
            size_t end = gptsi_min(m + mn, m1);
            for (i = m; i < end; i += q->rows)
                gptsi_gemm_pack(q, a + (i - m) * deep, q->rows, p->ta ? p->A + k * p->lda + i : p->A + i * p->lda + k, p->lda,
                                gptsi_min(q->rows, end - i), kn, !p->ta);
            for (n = n0; n < n1; n += nn) {
                W = gptsi_panel(q, n1 - n);
                nn = gptsi_min(W * q->lanes, n1 - n);
                gptsi_gemm_pack(q, b, W * q->lanes, p->tb ? p->B + n * p->ldb + k : p->B + k * p->ldb + n, p->ldb, nn, kn, p->tb);
                for (i = m; i < end; i += q->rows) {
                    gpts_real *c = p->C + i * p->ldc + n;
                    const gpts_real *add = k || p->accumulate ? c : p->bias ? p->bias + n : gptsi_zeros;
                    gptsi_tile_edge(q, W, deep, a + (i - m) * deep, q->rows, b, W * q->lanes, gptsi_min(q->rows, end - i), nn,
                                    c, p->ldc, add, add == c ? p->ldc : 0);
                }
            }
        }
    }
}
static void gptsi_gemm_body(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_product *p = (const gptsi_product *)arg;
    size_t rows = p->cpu->kernels->rows, wide = 3 * p->cpu->kernels->lanes;
    size_t tr = (p->M + rows - 1) / rows, tc = (p->N + wide - 1) / wide;
    for (; begin < end; begin++) {
        size_t r = begin / p->grid_columns, c = begin % p->grid_columns;
        gptsi_gemm_part(p, tr * r / p->grid_rows * rows, gptsi_min(p->M, tr * (r + 1) / p->grid_rows * rows),
                        tc * c / p->grid_columns * wide, gptsi_min(p->N, tc * (c + 1) / p->grid_columns * wide),
                        p->cpu->scratch[worker]);
    }
}

/* Few rows: reading B bounds the time, so B is read once, in place and in the order of memory:
   a B stored [N,K] by strips of rows, a B stored [K,N] by blocks of k, whose sums are added in
   their order.  (By columns, as products of many rows go, reading is a third slower.)      */
enum { GPTSI_GEMM_FEW = 4, GPTSI_STRIP = 64 };
static void gptsi_gemm_few_columns(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_product *p = (const gptsi_product *)arg;
    size_t n0 = begin * GPTSI_STRIP, n1 = gptsi_min(p->N, end * GPTSI_STRIP), m, n;
    (void)worker;
    for (n = n0; n < n1; n++)
        for (m = 0; m < p->M; m++) {
            gpts_real *c = p->C + m * p->ldc + n, add = p->accumulate ? *c : p->bias ? p->bias[n] : 0;
            *c = add + (p->half ? p->q->dot_half(p->A + m * p->lda, p->half + n * p->ldb, p->K)
                                : p->q->dot(p->A + m * p->lda, p->B + n * p->ldb, p->K));
        }
}
static void gptsi_gemm_few_depths(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_product *p = (const gptsi_product *)arg;
    size_t MN = p->M * p->N, k, m, deep;
    (void)worker;
    for (; begin < end; begin++) {
        gpts_real *sum = p->sums + begin * MN;
        memset(sum, 0, MN * sizeof *sum);
        for (k = begin * p->depth; k < gptsi_min(p->K, (begin + 1) * p->depth); k += deep) {
            deep = gptsi_min(8, p->K - k);
            for (m = 0; m < p->M; m++)
                if (p->half) p->q->rows_half(sum + m * p->N, p->N, p->half + k * p->ldb, p->ldb, p->A + m * p->lda + k, deep);
                else p->q->rows_mul(sum + m * p->N, p->N, p->B + k * p->ldb, p->ldb, p->A + m * p->lda + k, deep);
        }
    }
}
static void gptsi_gemm_few(gptsi_cpu *cpu, gptsi_product *p)
{
    static const gpts_real one[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    gpts_real *sum = (gpts_real *)(void *)cpu->scratch[0];
    size_t workers = p->N * p->K < 16384 ? 1 : cpu->workers, room = cpu->scratch_bytes / sizeof *sum, blocks, m, i;
    if (p->half) {                                            /* A rounded, as packing does */
        for (m = 0; m < p->M; m++) memcpy(sum + m * p->K, p->A + m * p->lda, p->K * sizeof *sum);
        gptsi_halve_base(sum, p->K, p->M);
        p->A = sum; p->lda = p->K;
        sum += p->M * p->K; room -= p->M * p->K;
    }
    p->sums = sum;
    if (p->tb) { gptsi_cpu_parallel(cpu, workers, (p->N + GPTSI_STRIP - 1) / GPTSI_STRIP, gptsi_gemm_few_columns, p); return; }
    blocks = gptsi_max(1, gptsi_min((p->K + 63) / 64, room / (p->M * p->N)));
    p->depth = gptsi_max(8, ((p->K + blocks - 1) / blocks + 7) / 8 * 8);
    blocks = (p->K + p->depth - 1) / p->depth;
    gptsi_cpu_parallel(cpu, workers, blocks, gptsi_gemm_few_depths, p);
    for (m = 0; m < p->M; m++) {
        gpts_real *c = p->C + m * p->ldc;
        if (!p->accumulate && p->bias) memcpy(c, p->bias, p->N * sizeof *c);
        else if (!p->accumulate) memset(c, 0, p->N * sizeof *c);
        for (i = 0; i < blocks; i += 8) p->q->rows_mul(c, p->N, sum + (i * p->M + m) * p->N, p->M * p->N, one, gptsi_min(8, blocks - i));
    }
}

/* C[M,N] = (or +=, `accumulate`, without bias) op(A)[M,K] op(B)[K,N] + bias[N] or NULL.
   ta: A is stored [K,M]; tb: B is stored [N,K].  Cost 2 M N K.
   Checked by tests/gemm.c: every_shape_and_orientation, bits_do_not_depend_on_threads.   */
static void gptsi_gemm(gptsi_cpu *cpu, int ta, int tb, size_t M, size_t N, size_t K, const gpts_real *A, size_t lda,
                       const gpts_real *B, size_t ldb, gpts_real *C, size_t ldc, int accumulate, const gpts_real *bias)
{
    gptsi_product p;
    size_t rows = cpu->kernels->rows, wide = 3 * cpu->kernels->lanes, workers = cpu->workers, g, best = SIZE_MAX;
    size_t tr = (M + rows - 1) / rows, tc = (N + wide - 1) / wide;
    if (M == 0 || N == 0) return;
    p.cpu = cpu; p.q = cpu->bf16 ? &cpu->narrow : cpu->kernels; p.ta = ta; p.tb = tb; p.accumulate = accumulate; p.M = M; p.N = N; p.K = K;
    p.A = A; p.B = B; p.C = C; p.bias = bias; p.lda = lda; p.ldb = ldb; p.ldc = ldc;
    p.grid_rows = p.grid_columns = 1;
    p.half = cpu->bf16 && cpu->kept && B >= cpu->wide && B < cpu->wide + cpu->n_kept ? cpu->kept + (B - cpu->wide) : NULL;
    if (M <= GPTSI_GEMM_FEW && !ta && !cpu->bf16 == !p.half && M * ((tb ? 0 : N) + K) <= cpu->scratch_bytes / sizeof *C) {
        gptsi_gemm_few(cpu, &p);
        return;
    }
    if (M * N < 65536 / (K + 1)) workers = 1;                 /* not worth waking anyone */
    for (g = 1; g <= workers; g++) {                          /* the grid with the least in its largest part */
        size_t h = workers / g, r = (tr + g - 1) / g, c = (tc + h - 1) / h, cost = r * c * 16 + r + 6 * c;
        if (cost < best) { best = cost; p.grid_rows = g; p.grid_columns = h; }
    }
    p.grid_rows = gptsi_min(p.grid_rows, tr);
    p.grid_columns = gptsi_min(p.grid_columns, tc);
    gptsi_cpu_parallel(cpu, workers, p.grid_rows * p.grid_columns, gptsi_gemm_body, &p);
}

/* ==============================================================================
   @@LAYERS  embedding, norm, linear, activation, loss: forward above backward
   ============================================================================== */

/* The CPU's operations, first argument `device` = gptsi_cpu.  Loops are cut into items of
   fixed size whose outputs are disjoint; a sum over rows runs within one item, in the order
   of the rows, so that results do not depend on the number of workers.                    */

#if defined(__GNUC__) && !defined(__clang__)
#  define GPTSI_HOT __attribute__((optimize("O3", "fp-contract=fast")))      /* vectorised under a plain -O2, too */
#else
#  define GPTSI_HOT
#endif
enum { GPTSI_ITEM = 4096, GPTSI_COLUMNS = 64 };               /* elements, columns of an item */

static gpts_status gptsi_cpu_allocate(void *device, size_t bytes, void **memory)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    *memory = gptsi_new(&cpu->hooks, bytes, 1);
    return *memory ? GPTS_OK : GPTS_NO_MEMORY;
}
static void gptsi_cpu_release(void *device, void *memory)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    if (cpu->kept && memory == (const void *)cpu->wide) { gptsi_delete(&cpu->hooks, cpu->kept); cpu->kept = NULL; }
    gptsi_delete(&cpu->hooks, memory);
}
static void gptsi_cpu_upload(void *device, void *to, const void *from, size_t bytes) { (void)device; if (bytes) memcpy(to, from, bytes); }
static void gptsi_cpu_download(void *device, void *to, const void *from, size_t bytes) { (void)device; if (bytes) memcpy(to, from, bytes); }
static void gptsi_cpu_copy(void *device, void *to, const void *from, size_t bytes) { (void)device; if (bytes) memmove(to, from, bytes); }
static void gptsi_cpu_zero(void *device, void *memory, size_t bytes) { (void)device; if (bytes) memset(memory, 0, bytes); }
static gpts_status gptsi_cpu_precision(void *device, gpts_precision precision)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    if (precision == GPTS_PRECISION_BF16 && !GPTSI_FLOAT) return GPTS_UNSUPPORTED;
    cpu->bf16 = precision == GPTS_PRECISION_BF16;
    gptsi_delete(&cpu->hooks, cpu->kept);
    cpu->kept = NULL;
    return GPTS_OK;
}
static void gptsi_keep_items(void *arg, size_t begin, size_t end, size_t worker)
{
    gptsi_cpu *cpu = (gptsi_cpu *)arg;
    size_t i;
    (void)worker;
    for (i = begin; i < end; i++) {
        float x = (float)cpu->wide[i];
        uint32_t bits;
        memcpy(&bits, &x, sizeof x);
        cpu->kept[i] = (uint16_t)(gptsi_round_half(bits) >> 16);
    }
}
static gpts_status gptsi_cpu_keep(void *device, const gpts_real *parameters, size_t n)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    if (!cpu->bf16 || (cpu->kept && cpu->wide == parameters && cpu->n_kept == n)) return GPTS_OK;
    gptsi_delete(&cpu->hooks, cpu->kept);
    if (!(cpu->kept = GPTSI_NEW(&cpu->hooks, uint16_t, n))) return GPTS_NO_MEMORY;
    cpu->wide = parameters; cpu->n_kept = n;
    gptsi_cpu_parallel(cpu, cpu->workers, n, gptsi_keep_items, cpu);
    return GPTS_OK;
}
static gpts_status gptsi_cpu_status(void *device, char *error)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    gpts_status status = cpu->status;
    if (status != GPTS_OK && error) memcpy(error, cpu->error, sizeof cpu->error);
    cpu->status = GPTS_OK;
    return status;
}

/* What the loops' bodies see; each operation fills in what it needs. */
typedef struct gptsi_args {
    gptsi_cpu *cpu;
    gpts_real *y, *y2, *y3, *y4;                              /* written */
    const gpts_real *x, *x2, *x3, *x4;                        /* read */
    const int32_t *tokens, *first;
    double *sums;
    size_t N, T, C, V, n, k;
    double e;
    uint64_t key, threshold;
    int kind;
    gpts_real f[9];
} gptsi_args;

static gptsi_args gptsi_args_of(void *device)
{
    gptsi_args a;
    memset(&a, 0, sizeof a);
    a.cpu = (gptsi_cpu *)device;
    return a;
}
/* `items` in parallel if they touch enough memory to wake the workers */
static void gptsi_for(const gptsi_args *a, size_t items, size_t elements, gptsi_body body)
{
    gptsi_cpu_parallel(a->cpu, gptsi_mul(items, elements) < 8192 ? 1 : a->cpu->workers, items, body, (void *)(uintptr_t)a);
}
static size_t gptsi_items(size_t n, size_t size) { return n / size + (n % size != 0); }

/* (E1) x[b,t,c] = wte[token[b,t],c] + wpe[t - first[b],c]
   tokens [B,T] in 0 .. V-1, wte [V,C], wpe [Tp,C] or NULL; x [B,T,C] =.  Positions before
   first[b] get no wpe.  Cost B T C.  tests/layers.c: embedding_E1_E2.  GPT-2 (Radford 2019). */
static void gptsi_embed_rows(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, c, C = a->C;
    (void)worker;
    for (n = begin; n < end; n++) {
        int64_t position = (int64_t)(n % a->T) - (a->first ? a->first[n / a->T] : 0);      /* below 0 before the row's start */
        const gpts_real *wte = a->x + (size_t)a->tokens[n] * C;
        gpts_real *x = a->y + n * C;
        memcpy(x, wte, C * sizeof *x);
        if (a->x2 && position >= 0) for (c = 0; c < C; c++) x[c] += a->x2[(size_t)position * C + c];
    }
}
static void gptsi_cpu_embed_forward(void *device, void *x, const int32_t *tokens, const int32_t *first,
                                    const gpts_real *wte, const gpts_real *wpe, size_t B, size_t T, size_t C)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)x; a.tokens = tokens; a.first = first; a.x = wte; a.x2 = wpe; a.T = T; a.C = C;
    gptsi_for(&a, B * T, C, gptsi_embed_rows);
}

/* (E2) of (E1): dwte[token[b,t],c] += dx[b,t,c],  dwpe[t - first[b],c] += dx[b,t,c]
   Item: a range of channels, over all rows: a token may come twice.  tests/layers.c: embedding_E1_E2. */
static void gptsi_embed_columns(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, c, C = a->C, c0 = begin * GPTSI_COLUMNS, c1 = gptsi_min(C, end * GPTSI_COLUMNS);
    (void)worker;
    for (n = 0; n < a->N; n++) {
        size_t t = n % a->T, start = a->first ? (size_t)a->first[n / a->T] : 0;
        const gpts_real *dx = a->x + n * C;
        gpts_real *dwte = a->y ? a->y + (size_t)a->tokens[n] * C : NULL;
        gpts_real *dwpe = a->y2 && t >= start ? a->y2 + (t - start) * C : NULL;
        if (dwte) for (c = c0; c < c1; c++) dwte[c] += dx[c];
        if (dwpe) for (c = c0; c < c1; c++) dwpe[c] += dx[c];
    }
}
static void gptsi_cpu_embed_backward(void *device, gpts_real *dwte, gpts_real *dwpe, const int32_t *tokens,
                                     const int32_t *first, const void *dx, size_t B, size_t T, size_t C, size_t V)
{
    gptsi_args a = gptsi_args_of(device);
    (void)V;
    a.y = dwte; a.y2 = dwpe; a.tokens = tokens; a.first = first; a.x = (const gpts_real *)dx; a.N = B * T; a.T = T; a.C = C;
    gptsi_for(&a, gptsi_items(C, GPTSI_COLUMNS), B * T * GPTSI_COLUMNS, gptsi_embed_columns);
}

/* (N1) y[n,c] = xhat[n,c] w[c] + bias[c],  xhat = (x - mean) r,  r = 1 / sqrt(var + epsilon)
   x, y [N,C]; y =; statistics [N,2] (mean, r) =; the variance is of the centred row, divided
   by C.  Cost 7 N C.  tests/layers.c: norm_N1_N2.  Ba, Kiros, Hinton 2016, section 3.      */
GPTSI_HOT static void gptsi_norm_rows(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, c, C = a->C;
    (void)worker;
    for (n = begin; n < end; n++) {
        const gpts_real *x = a->x + n * C;
        gpts_real *y = a->y + n * C, mean = a->cpu->kernels->sum(x, C) / (gpts_real)C, r;
        for (c = 0; c < C; c++) y[c] = x[c] - mean;
        r = (gpts_real)(1 / sqrt((double)a->cpu->kernels->dot(y, y, C) / (double)C + a->e));
        if (a->x3) for (c = 0; c < C; c++) y[c] = y[c] * r * a->x2[c] + a->x3[c];
        else for (c = 0; c < C; c++) y[c] = y[c] * r * a->x2[c];
        a->y2[2 * n] = mean; a->y2[2 * n + 1] = r;
    }
}
static void gptsi_cpu_norm_forward(void *device, void *y, gpts_real *statistics, const void *x, const gpts_real *w,
                                   const gpts_real *bias, size_t N, size_t C, double epsilon)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)y; a.y2 = statistics; a.x = (const gpts_real *)x; a.x2 = w; a.x3 = bias; a.C = C; a.e = epsilon;
    gptsi_for(&a, N, C, gptsi_norm_rows);
}

/* (N2) of (N1), with g[c] = dy[n,c] w[c]:
        dx[n,c] += r (g[c] - mean_c g - xhat[n,c] mean_c (g xhat)),
        dw[c] += sum_n dy[n,c] xhat[n,c],  dbias[c] += sum_n dy[n,c]       (or NULL each)
   Rows for dx, columns for dw and dbias.  Cost 14 N C.  tests/layers.c: norm_N1_N2.       */
GPTSI_HOT static void gptsi_norm_rows_backward(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, c, C = a->C;
    int j;
    (void)worker;
    for (n = begin; n < end; n++) {
        const gpts_real *dy = a->x + n * C, *x = a->x2 + n * C, *w = a->x3;
        gpts_real *dx = a->y + n * C, mean = a->x4[2 * n], r = a->x4[2 * n + 1], mg, mgx;
        double g[4] = { 0, 0, 0, 0 }, gx[4] = { 0, 0, 0, 0 };
        for (c = 0; c + 4 <= C; c += 4)
            for (j = 0; j < 4; j++) {
                gpts_real d = dy[c + (size_t)j] * w[c + (size_t)j];
                g[j] += (double)d; gx[j] += (double)(d * ((x[c + (size_t)j] - mean) * r));
            }
        for (; c < C; c++) { g[0] += (double)(dy[c] * w[c]); gx[0] += (double)(dy[c] * w[c] * ((x[c] - mean) * r)); }
        mg = (gpts_real)(((g[0] + g[1]) + (g[2] + g[3])) / (double)C);
        mgx = (gpts_real)(((gx[0] + gx[1]) + (gx[2] + gx[3])) / (double)C);
        for (c = 0; c < C; c++) dx[c] += r * (dy[c] * w[c] - mg - (x[c] - mean) * r * mgx);
    }
}
GPTSI_HOT static void gptsi_norm_columns_backward(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    double dw[GPTSI_COLUMNS], db[GPTSI_COLUMNS];
    size_t n, c, C = a->C;
    (void)worker;
    for (; begin < end; begin++) {
        size_t c0 = begin * GPTSI_COLUMNS, width = gptsi_min(C - c0, GPTSI_COLUMNS);
        memset(dw, 0, sizeof dw);
        memset(db, 0, sizeof db);
        for (n = 0; n < a->N; n++) {
            const gpts_real *dy = a->x + n * C + c0, *x = a->x2 + n * C + c0;
            gpts_real mean = a->x4[2 * n], r = a->x4[2 * n + 1];
            for (c = 0; c < width; c++) { dw[c] += (double)(dy[c] * ((x[c] - mean) * r)); db[c] += (double)dy[c]; }
        }
        if (a->y2) for (c = 0; c < width; c++) a->y2[c0 + c] += (gpts_real)dw[c];
        if (a->y3) for (c = 0; c < width; c++) a->y3[c0 + c] += (gpts_real)db[c];
    }
}
static void gptsi_cpu_norm_backward(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy,
                                    const void *x, const gpts_real *w, const gpts_real *statistics, size_t N, size_t C)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)dx; a.y2 = dw; a.y3 = dbias; a.x = (const gpts_real *)dy; a.x2 = (const gpts_real *)x;
    a.x3 = w; a.x4 = statistics; a.N = N; a.C = C;
    gptsi_for(&a, N, C, gptsi_norm_rows_backward);
    if (dw || dbias) gptsi_for(&a, gptsi_items(C, GPTSI_COLUMNS), N * GPTSI_COLUMNS, gptsi_norm_columns_backward);
}

/* (L1) y[n,o] = sum_i x[n,i] w[i,o] + bias[o]
   x [N,in], w [in,out], bias [out] or NULL; y [N,out] =.  Cost 2 N in out.
   tests/layers.c: linear_L1_L2.                                                            */
static void gptsi_cpu_linear_forward(void *device, void *y, const void *x, const gpts_real *w, const gpts_real *bias,
                                     size_t N, size_t in, size_t out)
{
    gptsi_gemm((gptsi_cpu *)device, 0, 0, N, out, in, (const gpts_real *)x, in, w, out, (gpts_real *)y, out, 0, bias);
}

/* (L2) of (L1): dx[n,i] = sum_o dy[n,o] w[i,o],  dw[i,o] += sum_n x[n,i] dy[n,o],
   dbias[o] += sum_n dy[n,o]  (or NULL each).  Cost 4 N in out.  tests/layers.c: linear_L1_L2. */
GPTSI_HOT static void gptsi_column_sums(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    double s[GPTSI_COLUMNS];
    size_t n, c;
    (void)worker;
    for (; begin < end; begin++) {
        size_t c0 = begin * GPTSI_COLUMNS, width = gptsi_min(a->C - c0, GPTSI_COLUMNS);
        memset(s, 0, sizeof s);
        for (n = 0; n < a->N; n++) for (c = 0; c < width; c++) s[c] += (double)a->x[n * a->C + c0 + c];
        for (c = 0; c < width; c++) a->y[c0 + c] += (gpts_real)s[c];
    }
}
static void gptsi_cpu_linear_backward(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy,
                                      const void *x, const gpts_real *w, size_t N, size_t in, size_t out)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    const gpts_real *g = (const gpts_real *)dy;
    if (dbias) {
        gptsi_args a = gptsi_args_of(device);
        a.y = dbias; a.x = g; a.N = N; a.C = out;
        gptsi_for(&a, gptsi_items(out, GPTSI_COLUMNS), N * GPTSI_COLUMNS, gptsi_column_sums);
    }
    if (dw) gptsi_gemm(cpu, 1, 0, in, out, N, (const gpts_real *)x, in, g, out, dw, out, 1, NULL);
    if (dx) gptsi_gemm(cpu, 0, 1, N, in, out, g, out, w, out, (gpts_real *)dx, in, 0, NULL);
}

/* (G1) y = g(x)
   GPTS_GELU_TANH  g = x / (1 + exp(-2 u)),  u = sqrt(2/pi) (x + 0.044715 x^3)
   GPTS_GELU_ERF   g = x Phi(x),  Phi = erfc(-x / sqrt 2) / 2
   GPTS_RELU       g = max(x, 0)
   y may be x.  tests/layers.c: activations_G1_G2.  Hendrycks, Gimpel 2016, section 2.      */
static void gptsi_activation(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t i = begin * GPTSI_ITEM, last = gptsi_min(a->n, end * GPTSI_ITEM);
    const gpts_real *x = a->x, *dy = a->x2;
    gpts_real *y = a->y;
    (void)worker;
    if (a->kind == GPTS_GELU_TANH) a->cpu->kernels->gelu(y + i, x + i, dy ? dy + i : NULL, last - i);
    else if (a->kind == GPTS_GELU_ERF && a->cpu->kernels->gelu_erf)
        a->cpu->kernels->gelu_erf(y + i, x + i, dy ? dy + i : NULL, last - i);
    else if (a->kind == GPTS_RELU) for (; i < last; i++) y[i] = !(x[i] <= 0) ? dy ? dy[i] : x[i] : 0;
    else for (; i < last; i++) {
        double v = (double)x[i], phi = 0.5 * erfc(-0.7071067811865476 * v);
        y[i] = (gpts_real)(dy ? (double)dy[i] * (phi + v * 0.3989422804014327 * exp(-0.5 * v * v)) : v * phi);
    }
}
static void gptsi_cpu_activation_forward(void *device, void *y, const void *x, size_t n, gpts_activation kind)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)y; a.x = (const gpts_real *)x; a.n = n; a.kind = (int)kind;
    gptsi_for(&a, gptsi_items(n, GPTSI_ITEM), GPTSI_ITEM, gptsi_activation);
}

/* (G2) of (G1): dx = dy g'(x),  with s = 1 / (1 + exp(-2 u)):
   GPTS_GELU_TANH  g' = s + x s (1 - s) 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
   GPTS_GELU_ERF   g' = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi)
   GPTS_RELU       g' = 1 for x > 0, else 0
   dx may be dy.  tests/layers.c: activations_G1_G2.                                        */
static void gptsi_cpu_activation_backward(void *device, void *dx, const void *dy, const void *x, size_t n, gpts_activation kind)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)dx; a.x = (const gpts_real *)x; a.x2 = (const gpts_real *)dy; a.n = n; a.kind = (int)kind;
    gptsi_for(&a, gptsi_items(n, GPTSI_ITEM), GPTSI_ITEM, gptsi_activation);
}

/* (D1) y[i] = a[i] + mask[i] b[i] / (1 - rate),  mask[i] = 1 with probability 1 - rate, a
   function of (seed, step, layer, site, i).  Rate 0 (or no `drop`): y = a + b.  y may be a or b.
   tests/layers.c: dropout_D1_D2.  Srivastava et al. 2014, section 4.                       */
GPTSI_HOT static void gptsi_add_items(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t i = begin * GPTSI_ITEM, last = gptsi_min(a->n, end * GPTSI_ITEM);
    const gpts_real *x = a->x, *b = a->x2, scale = a->f[0];
    gpts_real *y = a->y;
    (void)worker;
    if (!a->threshold) {
        if (x) for (; i < last; i++) y[i] = x[i] + b[i];
        else if (y != b) memcpy(y + i, b + i, (last - i) * sizeof *y);
    } else
        for (; i < last; i++) {
            gpts_real kept = gptsi_mix(a->key ^ i) >> 11 >= a->threshold ? b[i] * scale : 0;
            y[i] = x ? (gpts_real)(x[i] + kept) : kept;
        }
}
static void gptsi_cpu_add(void *device, void *y, const void *x, const void *b, size_t n, const gpts_dropout *drop)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)y; a.x = (const gpts_real *)x; a.x2 = (const gpts_real *)b; a.n = n;
    if (drop && drop->rate > 0) {
        a.key = gptsi_hash(drop->seed, drop->step, (uint64_t)drop->layer << 32 | drop->site);
        a.threshold = (uint64_t)(drop->rate * 9007199254740992.0);
        a.f[0] = (gpts_real)(1 / (1 - drop->rate));
    }
    gptsi_for(&a, gptsi_items(n, GPTSI_ITEM), GPTSI_ITEM, gptsi_add_items);
}
static void gptsi_cpu_add_forward(void *device, void *y, const void *a, const void *b, size_t n, const gpts_dropout *drop)
{
    gptsi_cpu_add(device, y, a, b, n, drop);
}

/* (D2) of (D1): db[i] = mask[i] dy[i] / (1 - rate); da = dy needs no work.  db may be dy.
   tests/layers.c: dropout_D1_D2.                                                           */
static void gptsi_cpu_add_backward(void *device, void *db, const void *dy, size_t n, const gpts_dropout *drop)
{
    gptsi_cpu_add(device, db, NULL, dy, n, drop);
}

/* (Q1) z[b,t,s,c] = x[b,t-k+1+s,c],  s = 0 .. k-1; 0 where t-k+1+s < first[b]
   x [B,T,C], z [B,T,k C] =.  Cost B T k C.  tests/layers.c: window_Q1_Q2.                  */
static void gptsi_window_rows(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, s, C = a->C, k = a->k;
    (void)worker;
    for (n = begin; n < end; n++) {
        size_t t = n % a->T, start = a->first ? (size_t)a->first[n / a->T] : 0;
        for (s = 0; s < k; s++) {
            gpts_real *z = a->y + (n * k + s) * C;
            if (t + s + 1 >= k + start) memcpy(z, a->x + (n + s + 1 - k) * C, C * sizeof *z);
            else memset(z, 0, C * sizeof *z);
        }
    }
}
static void gptsi_cpu_window_forward(void *device, void *z, const void *x, const int32_t *first, size_t B, size_t T, size_t C, size_t k)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)z; a.x = (const gpts_real *)x; a.first = first; a.T = T; a.C = C; a.k = k;
    gptsi_for(&a, B * T, C * k, gptsi_window_rows);
}

/* (Q2) of (Q1): dx[b,p,c] += sum_{t=p}^{min(p+k-1, T-1)} dz[b,t,p-t+k-1,c],  p >= first[b]
   tests/layers.c: window_Q1_Q2.                                                            */
static void gptsi_window_rows_backward(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t n, t, c, C = a->C, k = a->k;
    (void)worker;
    for (n = begin; n < end; n++) {
        size_t p = n % a->T, start = a->first ? (size_t)a->first[n / a->T] : 0;
        if (p < start) continue;
        for (t = p; t < gptsi_min(p + k, a->T); t++) {
            const gpts_real *dz = a->x + ((n - p + t) * k + (p + k - 1 - t)) * C;
            for (c = 0; c < C; c++) a->y[n * C + c] += dz[c];
        }
    }
}
static void gptsi_cpu_window_backward(void *device, void *dx, const void *dz, const int32_t *first, size_t B, size_t T, size_t C, size_t k)
{
    gptsi_args a = gptsi_args_of(device);
    a.y = (gpts_real *)dx; a.x = (const gpts_real *)dz; a.first = first; a.T = T; a.C = C; a.k = k;
    gptsi_for(&a, B * T, C * k, gptsi_window_rows_backward);
}

/* (X1) logits[n,v] = sum_c x[n,c] w[v,c]
   x [N,C], w [V,C]; logits [N,V] =.  Cost 2 N C V.  tests/layers.c: loss_X1_X2_X3.         */
static void gptsi_cpu_logits(void *device, gpts_real *logits, const void *x, const gpts_real *w, size_t N, size_t C, size_t V)
{
    gptsi_gemm((gptsi_cpu *)device, 0, 1, N, V, C, (const gpts_real *)x, C, w, C, logits, V, 0, NULL);
}

/* (X2) *sum = sum_n ln(sum_v exp logits[n,v]) - logits[n,target[n]],  over targets >= 0
   (X3) with p[n,v] = exp(logits[n,v] - lse[n]) - [v = target[n]], 0 for ignored targets:
        dx[n,c] = sum_v p[n,v] w[v,c],  dw[v,c] += sum_n p[n,v] x[n,c]      (or NULL each)
   x, dx [N,C], w, dw [V,C].  Logits exist for a block of rows at a time, at most 64 MB (8
   rows at least), kept by the CPU's object.  Row maxima are subtracted, sums are in double.
   Cost 2 N C V, with gradients 6 N C V.  tests/layers.c: loss_X1_X2_X3, loss_extremes_X2.   */
static void gptsi_loss_rows(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    const gptsi_kernels *q = a->cpu->kernels;
    size_t n, v, V = a->V;
    (void)worker;
    for (n = begin; n < end; n++) {
        gpts_real *p = a->y + n * V, top, hit, scale;
        double s = 0;
        a->sums[n] = 0;
        if (a->tokens[n] < 0) { if (a->kind) memset(p, 0, V * sizeof *p); continue; }
        top = q->maximum(p, V);
        hit = p[a->tokens[n]];
        for (v = 0; v < V; v += 1024) s += (double)q->exp_row(p + v, p + v, gptsi_min(1024, V - v), top);
        a->sums[n] = log(s) + ((double)top - (double)hit);
        if (!a->kind) continue;
        hit = (gpts_real)(((double)p[a->tokens[n]] - s) / s);
        scale = (gpts_real)(1 / s);
        for (v = 0; v < V; v++) p[v] *= scale;
        p[a->tokens[n]] = hit;
    }
}
static void gptsi_cpu_loss(void *device, double *sum, void *dx, gpts_real *dw, const void *x, const gpts_real *w,
                           const int32_t *targets, size_t N, size_t C, size_t V)
{
    gptsi_cpu *cpu = (gptsi_cpu *)device;
    gptsi_args a = gptsi_args_of(device);
    size_t rows = gptsi_max(8, ((size_t)1 << 26) / sizeof(gpts_real) / V / 8 * 8), bytes, n, i, count;
    *sum = 0;
    if (N == 0) return;
    rows = gptsi_min(rows, N);
    bytes = gptsi_mul(rows, gptsi_add(gptsi_mul(V, sizeof(gpts_real)), sizeof(double)));
    if (bytes > cpu->block_bytes) {
        gptsi_delete(&cpu->hooks, cpu->block);
        cpu->block_bytes = 0;
        cpu->block = (gpts_real *)gptsi_new(&cpu->hooks, bytes, 1);
        if (!cpu->block) {
            if (cpu->status == GPTS_OK) cpu->status = gptsi_no_memory(cpu->error, "a block of logits", bytes, 1);
            if (dx) memset(dx, 0, N * C * sizeof(gpts_real));      /* nothing is added by what follows */
            return;
        }
        cpu->block_bytes = bytes;
    }
    a.sums = (double *)(void *)cpu->block;
    a.y = (gpts_real *)(void *)(a.sums + rows);
    a.V = V; a.kind = dx || dw;
    for (n = 0; n < N; n += count) {
        const gpts_real *xn = (const gpts_real *)x + n * C;
        gpts_real *dxn = dx ? (gpts_real *)dx + n * C : NULL;
        int valid = 0;
        count = gptsi_min(rows, N - n);
        a.tokens = targets + n;
        for (i = 0; i < count; i++) valid |= targets[n + i] >= 0;
        if (!valid) { if (dxn) memset(dxn, 0, count * C * sizeof *dxn); continue; }
        gptsi_gemm(cpu, 0, 1, count, V, C, xn, C, w, C, a.y, V, 0, NULL);
        gptsi_for(&a, count, V, gptsi_loss_rows);
        for (i = 0; i < count; i++) *sum += a.sums[i];
        if (dxn) gptsi_gemm(cpu, 0, 0, count, C, V, a.y, V, w, C, dxn, C, 0, NULL);
        if (dw) gptsi_gemm(cpu, 1, 0, V, C, count, a.y, V, xn, C, dw, C, 1, NULL);
    }
}

/* (O1) *sum = sum_i g[i]^2, in double: sums of fixed ranges, added in their order.
   tests/layers.c: sum_of_squares_O1.                                                       */
GPTSI_HOT static void gptsi_square_items(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    (void)worker;
    for (; begin < end; begin++) {
        double s[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
        size_t i = begin * a->k, last = gptsi_min(a->n, i + a->k);
        int j;
        for (; i + 8 <= last; i += 8) for (j = 0; j < 8; j++) s[j] += (double)a->x[i + (size_t)j] * (double)a->x[i + (size_t)j];
        for (; i < last; i++) s[0] += (double)a->x[i] * (double)a->x[i];
        a->sums[begin] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}
static void gptsi_cpu_sum_squares(void *device, double *sum, const gpts_real *g, size_t n)
{
    gptsi_args a = gptsi_args_of(device);
    size_t i, items;
    a.x = g; a.n = n; a.sums = (double *)(void *)a.cpu->scratch[0];
    a.k = gptsi_max(GPTSI_ITEM, gptsi_items(n, a.cpu->scratch_bytes / sizeof(double)));
    items = gptsi_items(n, a.k);
    gptsi_for(&a, items, a.k, gptsi_square_items);
    *sum = 0;
    for (i = 0; i < items; i++) *sum += a.sums[i];
}

/* (O2) with d = gscale g, t = step >= 1:
        p -= rate decay p;  m = beta1 m + (1 - beta1) d;  v = beta2 v + (1 - beta2) d^2;
        p -= rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon);  g = 0
   Reads and writes each of the four once: bound by memory.  tests/layers.c: adamw_O2.
   Loshchilov, Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2.       */
static void gptsi_adamw_items(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_args *a = (const gptsi_args *)arg;
    size_t i = begin * GPTSI_ITEM, n = gptsi_min(a->n, end * GPTSI_ITEM) - i;
    (void)worker;
    a->cpu->kernels->adamw(a->y + i, a->y2 + i, a->y3 + i, a->y4 + i, n, a->f);
}
static void gptsi_cpu_adamw(void *device, gpts_real *p, gpts_real *g, gpts_real *m, gpts_real *v, size_t n,
                            double gscale, double rate, double decay, double beta1, double beta2, double epsilon, uint64_t step)
{
    gptsi_args a = gptsi_args_of(device);
    if (a.cpu->kept) { gptsi_delete(&a.cpu->hooks, a.cpu->kept); a.cpu->kept = NULL; }      /* the weights change */
    a.y = p; a.y2 = g; a.y3 = m; a.y4 = v; a.n = n;
    a.f[0] = (gpts_real)gscale; a.f[1] = (gpts_real)(1 - rate * decay);
    a.f[2] = (gpts_real)beta1; a.f[3] = (gpts_real)(1 - beta1);
    a.f[4] = (gpts_real)beta2; a.f[5] = (gpts_real)(1 - beta2);
    a.f[6] = (gpts_real)(rate / (1 - pow(beta1, (double)step)));
    a.f[7] = (gpts_real)(1 / sqrt(1 - pow(beta2, (double)step)));
    a.f[8] = (gpts_real)epsilon;
    gptsi_for(&a, gptsi_items(n, GPTSI_ITEM), GPTSI_ITEM, gptsi_adamw_items);
}

/* ==============================================================================
   @@ATTENTION  one live head, then many
   ============================================================================== */

/* (R1) q, k rotated in place: for d < D/2, position p counted from first[b],
        (x[d], x[d + D/2]) -> (x[d] cos a - x[d + D/2] sin a,  x[d + D/2] cos a + x[d] sin a),
        a = p theta^(-2 d / D)                       ("half-split"; angles in double; D even)
   (R2) of (R1): the same with -a on dq, dk: the transpose of a rotation.
   Cost: D/2 sines per position, 3 D per head.  tests/attention.c: rotary_R1_R2.
   Su et al., RoFormer 2021, section 3.2.2 (pairs there are neighbours).                    */
typedef struct gptsi_rotation {
    gptsi_cpu *cpu;
    gpts_real *x;
    const int32_t *first, *length, *position;                 /* position: decoding, T = 1 */
    size_t T, ld, heads, D;
    double theta, sign;
} gptsi_rotation;
static void gptsi_rotate_rows(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_rotation *r = (const gptsi_rotation *)arg;
    size_t half = r->D / 2, n, h, d;
    double *frequency = (double *)(void *)r->cpu->scratch[worker];
    gpts_real *c = (gpts_real *)(void *)(frequency + half), *s = c + half;
    for (d = 0; d < half; d++) frequency[d] = pow(r->theta, -2.0 * (double)d / (double)r->D);
    for (n = begin; n < end; n++) {
        size_t b = n / r->T, t = n % r->T, start = r->first ? (size_t)r->first[b] : 0;
        size_t stop = r->length ? start + (size_t)r->length[b] : r->T;
        gpts_real *x = r->x + n * r->ld;
        if (r->position ? r->position[b] < 0 : t < start || t >= stop) continue;
        for (d = 0; d < half; d++) {
            double a = (r->position ? (double)r->position[b] : (double)(t - start)) * frequency[d];
            c[d] = (gpts_real)cos(a);
            s[d] = (gpts_real)(r->sign * sin(a));
        }
        for (h = 0; h < r->heads; h++, x += r->D)
            for (d = 0; d < half; d++) {
                gpts_real x0 = x[d], x1 = x[d + half];
                x[d] = x0 * c[d] - x1 * s[d];
                x[d + half] = x1 * c[d] + x0 * s[d];
            }
    }
}
static void gptsi_rotate(gptsi_cpu *cpu, const gpts_heads *heads, gpts_real *qkv, const int32_t *first, const int32_t *length,
                         const int32_t *position, size_t B, size_t T, double theta, double sign)
{
    gptsi_rotation r;
    if (!(theta > 0) || heads->U == 0 || heads->D < 2) return;
    r.cpu = cpu; r.x = qkv; r.first = first; r.length = length; r.position = position; r.T = T;
    r.ld = (2 * heads->U + heads->K) * heads->D; r.heads = 2 * heads->U; r.D = heads->D; r.theta = theta; r.sign = sign;
    gptsi_cpu_parallel(cpu, B * T < 4 ? 1 : cpu->workers, B * T, gptsi_rotate_rows, &r);
}

/* One live head of one row of the batch.  Positions 0 .. T-1 are the row's interval. */
typedef struct gptsi_head {
    const gptsi_kernels *kernels;
    const gpts_real *q, *k, *v, *y, *dy, *lse;                /* strides ld; y, dy: ldy */
    gpts_real *dq, *dk, *dv;                                  /* stride ld */
    size_t ld, ldy, T, D, padded;                             /* padded: D in whole vectors */
    gpts_real scale;
} gptsi_head;
enum { GPTSI_QUERIES = 96, GPTSI_KEYS = 192 };                 /* multiples of every tile's sides */

static size_t gptsi_whole(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* out: panels of `rows` rows of x, each [D,rows]; what a tile reads as its first operand */
static void gptsi_pack_rows(const gptsi_head *h, gpts_real *out, const gpts_real *x, size_t ld, size_t n)
{
    size_t i, rows = h->kernels->rows;
    for (i = 0; i < n; i += rows) gptsi_pack(out + i * h->D, rows, x + i * ld, ld, gptsi_min(rows, n - i), h->D, 1);
}
static void gptsi_scale(gpts_real *x, size_t n, gpts_real scale)
{
    size_t i;
    for (i = 0; i < n; i++) x[i] *= scale;
}
/* One row of tiles: c[rows, n0..n1-1] = (or +=) a b, over whole vectors.  Blocks on the
   diagonal take only the part of it, or of K, that a query can see.                        */
static void gptsi_tile_row(const gptsi_kernels *q, size_t n0, size_t n1, size_t K, const gpts_real *a, size_t as,
                           const gpts_real *b, size_t bs, gpts_real *c, size_t cs, int accumulate)
{
    size_t W;
    for (; n0 < n1; n0 += W * q->lanes) {
        W = gptsi_panel(q, n1 - n0);
        q->tile[W - 1](K, a, as, b + n0, bs, c + n0, cs, accumulate ? c + n0 : gptsi_zeros, accumulate ? cs : 0);
    }
}
/* with i the first of a row of tiles: the queries of block i0 before key j0 + i, and the keys
   of block j0 that queries up to i0 + i + rows - 1 see */
static size_t gptsi_unseeing(size_t i0, size_t j0, size_t i) { return j0 + i > i0 ? j0 + i - i0 : 0; }
static size_t gptsi_seen(const gptsi_kernels *q, size_t i0, size_t j0, size_t i, size_t nk)
{
    return i0 + i + q->rows < j0 ? 0 : gptsi_min(nk, i0 + i + q->rows - j0);
}

/* (A1) score[i,j] = scale q[i].k[j], j <= i;  lse[i] = ln sum_j exp score[i,j];
        y[i,d] = sum_j exp(score[i,j] - lse[i]) v[j,d]
   for queries i0 .. i0+n-1, streaming over blocks of keys: with the running maximum m and
   sum l of each query, y's partial sums are rescaled by exp(m - m') as m grows to m'.
   q, k, v [T,D]; y [T,D] =, lse [T] =.  Cost 2 T^2 D for all queries; memory constant.
   Blocks of scores are kept as [key, query]: the maximum and the sum run down the columns,
   and a tile of y reads the weights where they are.
   tests/attention.c: forward_A1, extreme_scores_A1.  Milakov, Gimelshein 2018 (running
   softmax); Dao, FlashAttention-2, 2023, algorithm 1.                                      */
static void gptsi_head_forward(const gptsi_head *h, size_t i0, size_t n, gpts_real *y, gpts_real *lse, unsigned char *scratch)
{
    const gptsi_kernels *q = h->kernels;
    size_t D = h->D, P = h->padded, nq = gptsi_whole(n, gptsi_max(q->lanes, q->rows)), j0, nk, j, i, d;
    gpts_real *qt = (gpts_real *)(void *)scratch, *k = qt + D * GPTSI_QUERIES, *v = k + GPTSI_KEYS * D;
    gpts_real *s = v + GPTSI_KEYS * P, *o = s + GPTSI_KEYS * GPTSI_QUERIES, *m = o + GPTSI_QUERIES * P;
    gpts_real *l = m + GPTSI_QUERIES, *f = l + GPTSI_QUERIES;
    gptsi_pack(qt, GPTSI_QUERIES, h->q + i0 * h->ld, h->ld, n, D, 1);
    gptsi_scale(qt, D * GPTSI_QUERIES, h->scale);
    memset(o, 0, GPTSI_QUERIES * P * sizeof *o);
    for (i = 0; i < nq; i++) { m[i] = (gpts_real)-HUGE_VAL; l[i] = 0; }
    for (j0 = 0; j0 < i0 + n; j0 += nk) {
        nk = gptsi_min(GPTSI_KEYS, i0 + n - j0);
        gptsi_pack_rows(h, k, h->k + j0 * h->ld, h->ld, nk);
        gptsi_pack(v, P, h->v + j0 * h->ld, h->ld, D, nk, 0);
        for (j = 0; j < nk; j += q->rows)
            gptsi_tile_row(q, gptsi_unseeing(i0, j0, j) / q->lanes * q->lanes, nq, D, k + j * D, q->rows,
                           qt, GPTSI_QUERIES, s + j * GPTSI_QUERIES, GPTSI_QUERIES, 0);
        for (j = 0; j < nk; j++)                              /* keys after the query */
            for (i = 0; i < n && i0 + i < j0 + j; i++) s[j * GPTSI_QUERIES + i] = (gpts_real)-HUGE_VAL;
        q->softmax(s, GPTSI_QUERIES, nk, nq, m, l, f);
        for (i = 0; i < n && j0; i++) if (!(f[i] >= 1)) gptsi_scale(o + i * P, P, f[i]);
        for (i = 0; i < n; i += q->rows)
            gptsi_tile_row(q, 0, P, gptsi_seen(q, i0, j0, i, nk), s + i, GPTSI_QUERIES, v, P, o + i * P, P, 1);
    }
    for (i = 0; i < n; i++) {
        gpts_real scale = 1 / l[i];
        for (d = 0; d < D; d++) y[(i0 + i) * h->ldy + d] = o[i * P + d] * scale;
        lse[i0 + i] = (gpts_real)((double)m[i] + log((double)l[i]));
    }
}

/* (A2) of (A1), with p[i,j] = exp(score[i,j] - lse[i]) and delta[i] = sum_d dy[i,d] y[i,d]:
        dv[j] = sum_{i>=j} p[i,j] dy[i],      ds[i,j] = p[i,j] (dy[i].v[j] - delta[i]),
        dk[j] = sum_{i>=j} ds[i,j] scale q[i],  dq[i] = sum_{j<=i} ds[i,j] scale k[j]
   dq, dk, dv [T,D] =.  p and ds are made again block by block, [query, key].  A worker that
   owns the head goes once over the blocks (cost 5 T^2 D); when heads are fewer than workers
   it goes by blocks of keys for dk, dv and again by blocks of queries for dq (7 T^2 D).
   Either way dq[i] receives the blocks of keys in ascending order: the same bits.
   tests/attention.c: backward_A2, bits_for_any_number_of_threads.  Dao 2023, algorithm 2.  */
typedef struct gptsi_blocks {
    gpts_real *qa, *qb, *ga, *gb;                             /* queries, dy: as first and as second operand */
    gpts_real *kt, *vt, *kb;                                  /* keys and values [D,keys]; scale k [keys,P] */
    gpts_real *p, *ds, *dst, *dk, *dv, *delta;
} gptsi_blocks;
static size_t gptsi_blocks_of(const gptsi_head *h, unsigned char *scratch, gptsi_blocks *x)
{
    size_t qp = GPTSI_QUERIES * h->padded, kp = GPTSI_KEYS * h->padded, cells = (size_t)GPTSI_QUERIES * GPTSI_KEYS;
    x->qa = (gpts_real *)(void *)scratch; x->qb = x->qa + qp; x->ga = x->qb + qp; x->gb = x->ga + qp;
    x->kt = x->gb + qp; x->vt = x->kt + kp; x->kb = x->vt + kp;
    x->p = x->kb + kp; x->ds = x->p + cells; x->dst = x->ds + cells;
    x->dk = x->dst + cells; x->dv = x->dk + kp; x->delta = x->dv + kp;
    return (4 * qp + 5 * kp + 3 * cells + GPTSI_QUERIES) * sizeof(gpts_real);
}
static void gptsi_pack_queries(const gptsi_head *h, const gptsi_blocks *x, size_t i0, size_t n)
{
    size_t i, P = h->padded;
    const gpts_real *q = h->q + i0 * h->ld, *dy = h->dy + i0 * h->ldy, *y = h->y + i0 * h->ldy;
    gptsi_pack_rows(h, x->qa, q, h->ld, n);
    gptsi_scale(x->qa, gptsi_whole(n, h->kernels->rows) * h->D, h->scale);
    gptsi_pack(x->qb, P, q, h->ld, h->D, n, 0);
    gptsi_scale(x->qb, n * P, h->scale);
    gptsi_pack_rows(h, x->ga, dy, h->ldy, n);
    gptsi_pack(x->gb, P, dy, h->ldy, h->D, n, 0);
    for (i = 0; i < n; i++) x->delta[i] = h->kernels->dot(dy + i * h->ldy, y + i * h->ldy, h->D);
}
static void gptsi_pack_keys(const gptsi_head *h, const gptsi_blocks *x, size_t j0, size_t n)
{
    gptsi_pack(x->kt, GPTSI_KEYS, h->k + j0 * h->ld, h->ld, n, h->D, 1);
    gptsi_pack(x->vt, GPTSI_KEYS, h->v + j0 * h->ld, h->ld, n, h->D, 1);
    gptsi_pack(x->kb, h->padded, h->k + j0 * h->ld, h->ld, h->D, n, 0);
    gptsi_scale(x->kb, n * h->padded, h->scale);
}
static void gptsi_head_cells(const gptsi_head *h, const gptsi_blocks *x, size_t i0, size_t nq, size_t j0, size_t nk)
{
    const gptsi_kernels *q = h->kernels;
    size_t i, whole = gptsi_whole(nk, gptsi_max(q->lanes, q->rows));
    for (i = 0; i < nq; i += q->rows) {
        size_t n = gptsi_whole(gptsi_seen(q, i0, j0, i, nk), q->lanes);
        gptsi_tile_row(q, 0, n, h->D, x->qa + i * h->D, q->rows, x->kt, GPTSI_KEYS, x->p + i * GPTSI_KEYS, GPTSI_KEYS, 0);
        gptsi_tile_row(q, 0, n, h->D, x->ga + i * h->D, q->rows, x->vt, GPTSI_KEYS, x->ds + i * GPTSI_KEYS, GPTSI_KEYS, 0);
    }
    for (i = 0; i < nq; i++) {
        gpts_real *p = x->p + i * GPTSI_KEYS, *ds = x->ds + i * GPTSI_KEYS;
        size_t seen = i0 + i < j0 ? 0 : gptsi_min(nk, i0 + i - j0 + 1);
        q->cells(p, ds, seen, h->lse[i0 + i], x->delta[i]);
        memset(p + seen, 0, (whole - seen) * sizeof *p);
        memset(ds + seen, 0, (whole - seen) * sizeof *ds);
    }
}
static void gptsi_head_dq(const gptsi_head *h, const gptsi_blocks *x, size_t i0, size_t nq, size_t j0, size_t nk)
{
    const gptsi_kernels *q = h->kernels;
    size_t i, d, W;
    gptsi_pack(x->dst, GPTSI_QUERIES, x->ds, GPTSI_KEYS, nq, nk, 1);
    for (i = 0; i < nq; i += q->rows)
        for (d = 0; d < h->D; d += W * q->lanes) {
            gpts_real *dq = h->dq + (i0 + i) * h->ld + d;
            W = gptsi_panel(q, h->D - d);
            gptsi_tile_edge(q, W, gptsi_seen(q, i0, j0, i, nk), x->dst + i, GPTSI_QUERIES, x->kb + d, h->padded, gptsi_min(q->rows, nq - i),
                            gptsi_min(W * q->lanes, h->D - d), dq, h->ld, j0 ? dq : gptsi_zeros, j0 ? h->ld : 0);
        }
}
/* dk, dv of keys j0 .. (and, `fused`, their share of dq) */
static void gptsi_head_keys_backward(const gptsi_head *h, size_t j0, int fused, unsigned char *scratch)
{
    const gptsi_kernels *q = h->kernels;
    size_t nk = gptsi_min(GPTSI_KEYS, h->T - j0), P = h->padded, i0, nq, j;
    gptsi_blocks x;
    gptsi_blocks_of(h, scratch, &x);
    gptsi_pack_keys(h, &x, j0, nk);
    memset(x.dk, 0, 2 * GPTSI_KEYS * P * sizeof *x.dk);
    for (i0 = j0 / GPTSI_QUERIES * GPTSI_QUERIES; i0 < h->T; i0 += nq) {
        nq = gptsi_min(GPTSI_QUERIES, h->T - i0);
        gptsi_pack_queries(h, &x, i0, nq);
        gptsi_head_cells(h, &x, i0, nq, j0, nk);
        for (j = 0; j < nk; j += q->rows) {
            size_t i = gptsi_min(nq, gptsi_unseeing(i0, j0, j));
            gptsi_tile_row(q, 0, P, nq - i, x.p + i * GPTSI_KEYS + j, GPTSI_KEYS, x.gb + i * P, P, x.dv + j * P, P, 1);
            gptsi_tile_row(q, 0, P, nq - i, x.ds + i * GPTSI_KEYS + j, GPTSI_KEYS, x.qb + i * P, P, x.dk + j * P, P, 1);
        }
        if (fused) gptsi_head_dq(h, &x, i0, nq, j0, nk);
    }
    for (j = 0; j < nk; j++) {
        memcpy(h->dk + (j0 + j) * h->ld, x.dk + j * P, h->D * sizeof *x.dk);
        memcpy(h->dv + (j0 + j) * h->ld, x.dv + j * P, h->D * sizeof *x.dv);
    }
}
static void gptsi_head_queries_backward(const gptsi_head *h, size_t i0, unsigned char *scratch)
{
    size_t nq = gptsi_min(GPTSI_QUERIES, h->T - i0), j0, nk;
    gptsi_blocks x;
    gptsi_blocks_of(h, scratch, &x);
    gptsi_pack_queries(h, &x, i0, nq);
    for (j0 = 0; j0 < i0 + nq; j0 += nk) {
        nk = gptsi_min(GPTSI_KEYS, h->T - j0);
        gptsi_pack_keys(h, &x, j0, nk);
        gptsi_head_cells(h, &x, i0, nq, j0, nk);
        gptsi_head_dq(h, &x, i0, nq, j0, nk);
    }
}

/* (A3) one query q against n cached keys and values: (A1) for one row; y [D] =.
   Cost 4 n D, bound by reading the cache.  tests/attention.c: decoding_equals_forward_A3.  */
static void gptsi_head_step(const gptsi_kernels *k, const gpts_real *q, const gpts_real *keys, const gpts_real *values,
                            size_t n, size_t D, double scale, gpts_real *y, unsigned char *scratch)
{
    gpts_real *s = (gpts_real *)(void *)scratch, m = (gpts_real)-HUGE_VAL;
    size_t block = GPTSI_SCRATCH / 2 / sizeof *s, j0, nj, j, part;
    double l = 0;
    memset(y, 0, D * sizeof *y);
    for (j0 = 0; j0 < n; j0 += nj) {
        gpts_real top, f;
        nj = gptsi_min(block, n - j0);
        for (j = 0; j < nj; j++) s[j] = (gpts_real)scale * k->dot(q, keys + (j0 + j) * D, D);
        top = k->maximum(s, nj);
        if (!(top > m)) top = m;
        f = (gpts_real)exp((double)(m - top));
        if (j0) gptsi_scale(y, D, f);
        l *= (double)f;
        m = top;
        for (j = 0; j < nj; j += part) {
            part = gptsi_min(1024, nj - j);
            l += (double)k->exp_row(s + j, s + j, part, m);
        }
        k->rows_mul(y, D, values + j0 * D, D, s, nj);
    }
    gptsi_scale(y, D, (gpts_real)(1 / l));
}

/* Each worker's scratch made at least `bytes`; 0 and a failed status if there is no memory. */
static int gptsi_cpu_reserve(gptsi_cpu *cpu, size_t bytes)
{
    size_t w;
    if (bytes <= cpu->scratch_bytes) return 1;
    for (w = 0; w < cpu->workers; w++) {
        unsigned char *more = GPTSI_NEW(&cpu->hooks, unsigned char, bytes);
        if (!more) {
            if (cpu->status == GPTS_OK) cpu->status = gptsi_no_memory(cpu->error, "a worker's scratch", bytes, 1);
            return 0;
        }
        gptsi_delete(&cpu->hooks, cpu->scratch[w]);
        cpu->scratch[w] = more;
    }
    cpu->scratch_bytes = bytes;
    return 1;
}

/* ==============================================================================
   @@STATIC  pattern, normaliser, apply, adjoint, mixed layer
   ============================================================================== */

/* A static head's weights are a fixed causal pattern of two vectors, alpha by key and rho
   by distance; only its values depend on the input:

       P[i,j] = exp(alpha[j] + rho[i-j] - z[i]),  j <= i,   z[i] = ln sum_{k<=i} exp(alpha[k] + rho[i-k])     (P1)
       y[i]   = sum_{j<=i} P[i,j] v[j]  =  e[i] sum_{j<=i} w[i-j] (u[j] v[j])                                 (P2)
                u = exp(alpha),  w = exp(rho),  e = exp(-z)

   (P2) is the lever.  Scale the values, scale the rows, and what is left between is a causal
   convolution, whose matrix w[i-j] need not exist: read the vector w at i-j and a tile of it
   stands there, for any product kernel, as a matrix with a row stride of 1.  No exponential,
   no T x T.  And where w decays,

       w[d] = sum_r c[r] lambda[r]^(d-W)   for d >= W,   c >= 0,  0 < lambda <= 1,                             (P3)

   the keys before t act on all rows i >= t + W - 1 through R running sums,

       x[r,t] = sum_{j<t} lambda[r]^(t-1-j) u[j] v[j]                                                         (P4)
       y[i]   = e[i] ( sum_{t<=j<=i} w[i-j] u[j] v[j]  +  sum_r c[r] lambda[r]^(i+1-W-t) x[r,t] )             (P5)

   so that a row costs about W + R products instead of i.  Rows and keys go by tiles of 64.
   Row tile a takes the key tiles a-q .. a by w, where q tiles reach over the distances below
   W, and what lies before t = 64 (a-q) by x.  The exact form is the case q = all, R = 0: both
   forms are one code.

   Range: u, w, e are centred on the middle of their exponents.  As reals they carry a head
   whose ranges of alpha and rho add up to 120 (1300 in double).  A head wider than that runs
   (P1) in log space: the same loops, with u = e = 1 and w, x's shares computed cell by cell,
   each an exponential of a number <= 0, and x a weighted mean: divided by exp(n[r,t]),
   n[r,t] = ln sum_{j<t} lambda[r]^(t-1-j) u[j].  z, n and every table come from doubles.           */

enum { GPTSI_STATIC_TILE = 64, GPTSI_STATIC_SLICE = 256, GPTSI_STATIC_TERMS = 64 };

typedef struct gptsi_pattern {
    size_t reach, terms;              /* q, and R without the unused terms at the end             */
    size_t span;                      /* 64 (q + 1) distances in rho                              */
    size_t shift;                     /* 64 q + 1 - W: row 0 of tile a is so far past t + W - 1   */
    int wide;
    double *alpha, *z, *rho, *weight; /* [T], [T], [span], [span] exp(rho), the last first        */
    double *c, *decay, *n;            /* [R] ln c, [R] ln lambda, [T/64+1,R] n at the tiles' ends */
    gpts_real *u, *e;                 /* [T] (P2)                                                 */
    gpts_real *w, *back;              /* [span+64] w[d] at d + 63, and at span - 1 - d; 0 for d < 0 */
    gpts_real *feed, *gain;           /* [R,64] lambda^k, c lambda^(k + shift), k = 0 .. 63       */
} gptsi_pattern;

struct gpts_pattern_plan {
    size_t T;                         /* positions, a multiple of 64                              */
    gptsi_pattern *pattern;           /* [n]                                                      */
    double *doubles;                  /* one block behind all patterns' doubles                   */
    gpts_real *reals;                 /* and one behind their reals                               */
    gptsi_kernels kernels;            /* of this processor                                        */
};

static void gptsi_static_discard(gpts_heads *heads, const gpts_hooks *hooks)
{
    if (!heads->plan) return;
    gptsi_delete(hooks, heads->plan->pattern);
    gptsi_delete(hooks, heads->plan->doubles);
    gptsi_delete(hooks, heads->plan->reals);
    gptsi_delete(hooks, heads->plan);
    heads->plan = NULL;
}

/* W, or S for a head without a tail */
static size_t gptsi_static_start(const gpts_heads *heads, size_t s)
{
    return heads->tail_start ? (size_t)heads->tail_start[s] : heads->S;
}

/* Past S alpha goes on as the mean of its last quarter, rho by (P3).                         (P6) */
static double gptsi_static_past(const gpts_heads *heads, size_t s)
{
    size_t S = heads->S, first = S - gptsi_max(1, S / 4), j;
    double sum = 0;
    for (j = first; j < S; j++) sum += (double)heads->alpha[s * S + j];
    return sum / (double)(S - first);
}

static double gptsi_log_add(double a, double b)                       /* ln(exp a + exp b) */
{
    double most = a > b ? a : b, least = a > b ? b : a;
    return most == -HUGE_VAL ? most : most + log1p(exp(least - most));
}

/* widens low .. high so that it holds x, unless x is minus infinity: a weight of 0 */
static void gptsi_static_range(double x, double *low, double *high)
{
    if (x > -HUGE_VAL && x < *low) *low = x;
    if (x > *high) *high = x;
}

/* One head's tables from its tensors. */
static void gptsi_static_derive(const gpts_heads *heads, size_t s, gptsi_pattern *h, size_t T)
{
    enum { L = GPTSI_STATIC_TILE };
    size_t S = heads->S, W = gptsi_static_start(heads, s), n = W < S ? T : gptsi_min(T, S), i, j, k, r;
    double low[2] = { HUGE_VAL, HUGE_VAL }, high[2] = { -HUGE_VAL, -HUGE_VAL }, middle[2], wide;
    double past = gptsi_static_past(heads, s);
    gptsi_kernels kernels;
    gptsi_kernels_best(&kernels);
    for (j = 0; j < T; j++) {
        h->alpha[j] = j >= n ? -HUGE_VAL : j < S ? (double)heads->alpha[s * S + j] : past;
        gptsi_static_range(h->alpha[j], &low[0], &high[0]);
    }
    for (r = 0; r < h->terms; r++) {
        h->c[r] = log((double)heads->tail_coef[s * heads->R + r]);
        h->decay[r] = h->c[r] > -HUGE_VAL ? log((double)heads->tail_decay[s * heads->R + r]) : 0;
        gptsi_static_range(h->c[r], &low[1], &high[1]);
    }
    for (k = 0; k < h->span; k++) {
        h->rho[k] = k < gptsi_min(W, S) ? (double)heads->rho[s * S + k] : -HUGE_VAL;
        for (r = 0; k >= W && r < h->terms; r++) h->rho[k] = gptsi_log_add(h->rho[k], h->c[r] + (double)(k - W) * h->decay[r]);
        gptsi_static_range(h->rho[k], &low[1], &high[1]);
    }
    for (r = 0; r < h->terms; r++) {
        double weight = h->n[r] = -HUGE_VAL;
        for (j = 0; j < T; j++) {
            weight = gptsi_log_add(weight + h->decay[r], h->alpha[j]);
            if ((j + 1) % L == 0) h->n[(j + 1) / L * h->terms + r] = weight;
        }
    }
    wide = high[0] - low[0] + high[1] - low[1];
    middle[0] = 0.5 * (low[0] + high[0]); middle[1] = 0.5 * (low[1] + high[1]);
    if (wide <= 1300) {                                  /* z by products; u waits where z[i] comes, from the last row on */
        for (j = 0; j < T; j++) h->z[j] = exp(h->alpha[j] - middle[0]);
        for (k = 0; k < h->span; k++) h->weight[h->span - 1 - k] = exp(h->rho[k] - middle[1]);
    }
    for (i = T; i-- > 0;) {
        size_t a = i / L, t = (a - gptsi_min(a, h->reach)) * L;
        double most = -HUGE_VAL, sum = 0, z;
        if (wide <= 1300) z = middle[0] + middle[1] + log(kernels.dot_double(h->z + t, h->weight + (h->span - 1 + t - i), i - t + 1));
        else {
            for (j = t; j <= i; j++) most = fmax(most, h->alpha[j] + h->rho[i - j]);
            for (j = t; j <= i && most > -HUGE_VAL; j++) sum += exp(h->alpha[j] + h->rho[i - j] - most);
            z = most > -HUGE_VAL ? most + log(sum) : most;
        }
        for (r = 0; t && r < h->terms; r++)
            z = gptsi_log_add(z, h->c[r] + h->n[t / L * h->terms + r] + (double)(i % L + h->shift) * h->decay[r]);
        h->z[i] = i < n ? z : HUGE_VAL;
    }
    h->wide = !(wide <= (GPTSI_FLOAT ? 120 : 1300));
    for (j = 0; j < T; j++) {
        h->u[j] = (gpts_real)(h->wide ? 1 : exp(h->alpha[j] - middle[0]));
        h->e[j] = (gpts_real)(h->wide ? 1 : exp(middle[0] + middle[1] - h->z[j]));
    }
    if (h->wide) return;
    for (k = 0; k < h->span; k++) h->w[L - 1 + k] = h->back[h->span - 1 - k] = (gpts_real)exp(h->rho[k] - middle[1]);
    for (r = 0; r < h->terms; r++)
        for (k = 0; k < L; k++) {
            h->feed[r * L + k] = (gpts_real)exp((double)k * h->decay[r]);
            h->gain[r * L + k] = (gpts_real)exp(h->c[r] - middle[1] + (double)(k + h->shift) * h->decay[r]);
        }
}

static void gptsi_static_derive_body(void *arg, size_t begin, size_t end, size_t worker)
{
    const gpts_heads *heads = (const gpts_heads *)arg;
    (void)worker;
    for (; begin < end; begin++) gptsi_static_derive(heads, begin, &heads->plan->pattern[begin], heads->plan->T);
}

/* Makes heads->plan good for T positions.
   Errors: TOO_LONG for a head without a tail past S, UNSUPPORTED for more than 64 terms.     */
static gpts_status gptsi_static_prepare(gpts_heads *heads, size_t T, const gpts_hooks *hooks, char *error)
{
    enum { L = GPTSI_STATIC_TILE };
    struct gpts_pattern_plan *plan;
    gptsi_pattern *h;
    size_t S = heads->S, rows, s, n = heads->n, doubles = 0, reals = 0, most;
    if (!n || (heads->plan && heads->plan->T >= T)) return GPTS_OK;
    if (heads->tail_start && heads->R > GPTSI_STATIC_TERMS)
        return gptsi_fail(error, GPTS_UNSUPPORTED, "a static head's tail has %llu terms; at most %d are supported",
                          (unsigned long long)heads->R, (int)GPTSI_STATIC_TERMS);
    for (s = 0; s < n && T > S; s++)
        if (gptsi_static_start(heads, s) >= S)
            return gptsi_fail(error, GPTS_TOO_LONG, "%llu positions, but a static head in exact form is defined up to %llu",
                              (unsigned long long)T, (unsigned long long)S);
    rows = T <= S ? S : heads->plan ? gptsi_add(T, T / 2) : T;              /* in a session, grow by steps */
    rows = gptsi_mul(gptsi_add(rows, L - 1) / L, L);
    gptsi_static_discard(heads, hooks);
    most = gptsi_mul(n, gptsi_mul(gptsi_add(rows, L), 4 + GPTSI_STATIC_TERMS));
    if (most == SIZE_MAX || !(plan = GPTSI_NEW(hooks, struct gpts_pattern_plan, 1)))
        return gptsi_no_memory(error, "the tables of static heads", most, sizeof(double));
    heads->plan = plan;
    plan->T = rows;
    gptsi_kernels_best(&plan->kernels);
    plan->pattern = GPTSI_NEW(hooks, gptsi_pattern, n);
    for (s = 0; plan->pattern && s < n; s++) {
        size_t W = gptsi_static_start(heads, s);
        h = &plan->pattern[s];
        h->reach = W < S ? (gptsi_max(W, 1) + L - 2) / L : rows / L - 1;
        h->shift = W < S ? h->reach * L + 1 - W : 0;
        h->reach = gptsi_min(h->reach, rows / L - 1);
        h->span = (h->reach + 1) * L;
        for (h->terms = W < S ? heads->R : 0; h->terms; h->terms--)
            if (heads->tail_coef[s * heads->R + h->terms - 1] > 0) break;
        doubles += 2 * (rows + h->span) + (rows / L + 3) * h->terms;
        reals += 2 * (rows + h->span + L + L * h->terms);
    }
    plan->doubles = GPTSI_NEW(hooks, double, doubles);
    plan->reals = GPTSI_NEW(hooks, gpts_real, reals);
    if (!plan->pattern || !plan->doubles || !plan->reals) {
        gptsi_static_discard(heads, hooks);
        return gptsi_no_memory(error, "the tables of static heads", gptsi_add(doubles, reals), sizeof(double));
    }
    doubles = reals = 0;
    for (s = 0; s < n; s++) {
        h = &plan->pattern[s];
        h->alpha = plan->doubles + doubles; h->z = h->alpha + rows; h->rho = h->z + rows;
        h->weight = h->rho + h->span; h->c = h->weight + h->span; h->decay = h->c + h->terms; h->n = h->decay + h->terms;
        h->u = plan->reals + reals; h->e = h->u + rows; h->w = h->e + rows; h->back = h->w + h->span + L;
        h->feed = h->back + h->span + L; h->gain = h->feed + L * h->terms;
        doubles += 2 * (rows + h->span) + (rows / L + 3) * h->terms;
        reals += 2 * (rows + h->span + L + L * h->terms);
    }
    gptsi_parallel(hooks, gptsi_workers(hooks), n, gptsi_static_derive_body, heads);
    return GPTS_OK;
}

static gpts_status gptsi_cpu_prepare(void *device, gpts_heads *heads, size_t T, char *error)
{
    return gptsi_static_prepare(heads, T, &((gptsi_cpu *)device)->hooks, error);
}
static void gptsi_cpu_forget(void *device, gpts_heads *heads) { gptsi_static_discard(heads, &((gptsi_cpu *)device)->hooks); }

/* The operands of the products below, in the worker's scratch. */
typedef struct gptsi_static_work {
    const gptsi_kernels *kernels;
    gpts_real *cell;                  /* [64,64] of a wide head                                    */
    gpts_real *feed, *gain, *keep;    /* a tile's shares: [64,R] or [R,64], see gptsi_static_far   */
    gpts_real *value;                 /* [64,wide] a tile of v u or dy e, last row first           */
    gpts_real *x;                     /* [R,wide] the states (P4) or their gradients               */
    size_t wide;                      /* a slice of D, rounded up to whole vectors                 */
    size_t ld;                        /* R rounded up to whole tiles of the kernel                 */
} gptsi_static_work;

static void gptsi_static_sizes(gptsi_static_work *w, const gptsi_kernels *kernels, size_t D, size_t terms)
{
    w->kernels = kernels;
    w->wide = (gptsi_min(D, GPTSI_STATIC_SLICE) + w->kernels->lanes - 1) / w->kernels->lanes * w->kernels->lanes;
    w->ld = (terms + GPTSI_TILE_ROWS - 1) / GPTSI_TILE_ROWS * GPTSI_TILE_ROWS;
}

/* What forward and backward need of `scratch`, in bytes: 0.6 MB at most. */
static size_t gptsi_static_scratch(const gpts_heads *heads)
{
    enum { L = GPTSI_STATIC_TILE };
    gptsi_static_work w;
    gptsi_kernels kernels;
    gptsi_static_sizes(&w, gptsi_kernels_best(&kernels), heads->D, heads->tail_start ? heads->R : 0);
    return (L * L + L * w.wide + w.ld * w.wide + 2 * L * w.ld + w.ld) * sizeof(gpts_real);
}

static void gptsi_static_begin(gptsi_static_work *w, const gpts_heads *heads, const gptsi_pattern *h, unsigned char *scratch)
{
    enum { L = GPTSI_STATIC_TILE };
    gptsi_static_sizes(w, &heads->plan->kernels, heads->D, h->terms);
    w->cell = (gpts_real *)(void *)scratch;
    w->value = w->cell + L * L;
    w->x = w->value + L * w->wide;
    w->feed = w->x + w->ld * w->wide;
    w->gain = w->feed + L * w->ld;
    w->keep = w->gain + L * w->ld;
}

/* y[m,n] += sum_k a[k,i] b[k,j], a's rows as apart, b [K,wide] */
static void gptsi_static_product(const gptsi_static_work *w, size_t m, size_t n, size_t K, const gpts_real *a, size_t as,
                                 const gpts_real *b, gpts_real *y, size_t ldy)
{
    const gptsi_kernels *q = w->kernels;
    size_t i, j, W, width;
    for (j = 0; j < n; j += width) {
        W = gptsi_panel(q, n - j);
        width = W * q->lanes;
        for (i = 0; i < m; i += q->rows)
            gptsi_tile_edge(q, W, K, a + i, as, b + j, w->wide, gptsi_min(q->rows, m - i), gptsi_min(width, n - j),
                            y + i * ldy + j, ldy, y + i * ldy + j, ldy);
    }
}

/* value[k] = in[rows-1-k] scale[rows-1-k]: the last row of the tile first, zeros for rows past
   the end.  With it the matrix w[i-j] reads w forwards in k as in i (and its transpose `back`). */
static void gptsi_static_load(gptsi_static_work *w, const gpts_real *in, size_t ld, size_t rows, size_t n, const gpts_real *scale)
{
    enum { L = GPTSI_STATIC_TILE };
    size_t k, j;
    for (k = 0; k < L; k++) {
        gpts_real *to = w->value + k * w->wide;
        const gpts_real *from = in + (L - 1 - k) * ld;
        if (L - 1 - k >= rows) { memset(to, 0, w->wide * sizeof *to); continue; }
        for (j = 0; j < n; j++) to[j] = from[j] * scale[L - 1 - k];
        for (; j < w->wide; j++) to[j] = 0;
    }
}

/* The near operand for row tile a and key tile k: [k',i] -> w[i - (63-k')] forward, or
   [k',j] -> w[(63-k') - j] backward; *ld is its row stride.                                  (P2) */
static const gpts_real *gptsi_static_near(gptsi_static_work *w, const gptsi_pattern *h, size_t a, size_t k, int backward, size_t *ld)
{
    enum { L = GPTSI_STATIC_TILE };
    size_t x, y;
    *ld = 1;
    if (!h->wide) return backward ? h->back + h->span - L - (a - k) * L : h->w + (a - k) * L;
    *ld = L;
    for (x = 0; x < L; x++)
        for (y = 0; y < L; y++) {
            size_t i = a * L + (backward ? L - 1 - x : y), j = k * L + (backward ? y : L - 1 - x);
            w->cell[x * L + y] = i < j ? 0 : (gpts_real)exp(h->alpha[j] + h->rho[i - j] - h->z[i]);
        }
    return w->cell;
}

/* The far operands around key tile k: feed, keep take x over the tile, gain hands x after it
   to row tile k+q+1.  forward: feed [k',r], gain [r,i]; backward: feed [r,j], gain [k',r].    (P5) */
static void gptsi_static_far(gptsi_static_work *w, const gptsi_pattern *h, size_t k, size_t tiles, int backward)
{
    enum { L = GPTSI_STATIC_TILE };
    size_t r, x, a = k + h->reach + 1, ld = w->ld;
    if (!h->wide && w->keep[0] > 0) return;                        /* the same for every tile */
    for (r = 0; r < h->terms; r++) {
        double before = h->n[k * h->terms + r], after = h->n[(k + 1) * h->terms + r];
        w->keep[r] = (gpts_real)(h->wide ? exp(before + (double)L * h->decay[r] - after) : exp((double)L * h->decay[r]));
        for (x = 0; x < L; x++) {                                   /* x positions before the tile's end; row x of a */
            gpts_real feed = !h->wide ? h->feed[r * L + x]
                           : (gpts_real)exp((double)x * h->decay[r] + h->alpha[k * L + L - 1 - x] - after);
            gpts_real gain = !h->wide ? h->gain[r * L + x] : a >= tiles ? 0
                           : (gpts_real)exp(h->c[r] + (double)(x + h->shift) * h->decay[r] + after - h->z[a * L + x]);
            if (backward) { w->feed[r * L + L - 1 - x] = feed; w->gain[(L - 1 - x) * ld + r] = gain; }
            else { w->feed[x * ld + r] = feed; w->gain[r * L + x] = gain; }
        }
    }
}

/* (P5)  y[i] = e[i] ( sum_{t<=j<=i} w[i-j] u[j] v[j] + sum_r c[r] lambda[r]^(i+1-W-t) x[r,t] )
   Static head s of one row of the batch: v, y [T,D], rows ldv, ldy apart; y =; T within the plan.
   Cost: T (W + 64 + 2 R) D products, exact form T (T + 64) D / 2.
   Tests: tests/static.c exact_form_..., linear_form_equals_the_dense_pattern_at_every_length.
   Source: DESIGN (P1)-(P3); running sums by chunks as in linear attention (Katharopoulos et al.,
   ICML 2020, section 3.3).                                                                          */
static void gptsi_static_forward(const gpts_heads *heads, size_t s, size_t T, const gpts_real *v, size_t ldv,
                                 gpts_real *y, size_t ldy, unsigned char *scratch, size_t scratch_bytes)
{
    enum { L = GPTSI_STATIC_TILE };
    const gptsi_pattern *h = &heads->plan->pattern[s];
    gptsi_static_work w;
    size_t tiles = (T + L - 1) / L, d0, n, k, a, i, j, r, ld;
    (void)scratch_bytes;
    gptsi_static_begin(&w, heads, h, scratch);
    for (i = 0; i < T; i++) memset(y + i * ldy, 0, heads->D * sizeof *y);
    for (d0 = 0; d0 < heads->D; d0 += n) {
        n = gptsi_min(GPTSI_STATIC_SLICE, heads->D - d0);
        memset(w.x, 0, (w.ld * w.wide + 2 * L * w.ld + w.ld) * sizeof *w.x);
        for (k = 0; k < tiles; k++) {
            size_t rows = gptsi_min(L, T - k * L);
            gpts_real *yk = y + k * L * ldy + d0;
            gptsi_static_load(&w, v + k * L * ldv + d0, ldv, rows, n, h->u + k * L);
            for (a = k; a < tiles && a <= k + h->reach; a++) {
                const gpts_real *cells = gptsi_static_near(&w, h, a, k, 0, &ld);
                gptsi_static_product(&w, gptsi_min(L, T - a * L), n, L, cells, ld, w.value, y + a * L * ldy + d0, ldy);
            }
            for (i = 0; i < rows; i++) for (j = 0; j < n; j++) yk[i * ldy + j] *= h->e[k * L + i];
            if (!h->terms || a >= tiles) continue;                      /* a = k + q + 1: the first rows past tile k's reach */
            gptsi_static_far(&w, h, k, tiles, 0);
            for (r = 0; r < h->terms; r++) for (j = 0; j < w.wide; j++) w.x[r * w.wide + j] *= w.keep[r];
            gptsi_static_product(&w, h->terms, n, L, w.feed, w.ld, w.value, w.x, w.wide);
            gptsi_static_product(&w, gptsi_min(L, T - a * L), n, h->terms, w.gain, L, w.x, y + a * L * ldy + d0, ldy);
        }
    }
}

/* (P7)  the adjoint dv = P^T dy.  Forward: y[i] = e[i] ( sum w[i-j] u[j] v[j] + sum_r gain[r,i] x[r,t] ),
                                            x[r,t'] = keep[r] x[r,t] + sum_{j in tile} feed[r,j] u[j] v[j]
         dv[j] = u[j] ( sum_{i>=j, near} w[i-j] e[i] dy[i] + sum_r feed[r,j] dx[r,t'] )
         dx[r,t] = keep[r] dx[r,t'] + sum_{i in row tile q after t} gain[r,i] e[i] dy[i]
   dv =; the same tiles from the last to the first, at the same cost.
   Tests: tests/static.c the same, which also check <P v, v> = <v, P^T v>.                            */
static void gptsi_static_backward(const gpts_heads *heads, size_t s, size_t T, const gpts_real *dy, size_t ldy,
                                  gpts_real *dv, size_t ldv, unsigned char *scratch, size_t scratch_bytes)
{
    enum { L = GPTSI_STATIC_TILE };
    const gptsi_pattern *h = &heads->plan->pattern[s];
    gptsi_static_work w;
    size_t tiles = (T + L - 1) / L, d0, n, k, a, i, j, r, ld;
    (void)scratch_bytes;
    gptsi_static_begin(&w, heads, h, scratch);
    for (i = 0; i < T; i++) memset(dv + i * ldv, 0, heads->D * sizeof *dv);
    for (d0 = 0; d0 < heads->D; d0 += n) {
        n = gptsi_min(GPTSI_STATIC_SLICE, heads->D - d0);
        memset(w.x, 0, (w.ld * w.wide + 2 * L * w.ld + w.ld) * sizeof *w.x);
        for (a = tiles; a-- > 0;) {                                     /* dy of row tile a goes to its key tiles */
            gptsi_static_load(&w, dy + a * L * ldy + d0, ldy, gptsi_min(L, T - a * L), n, h->e + a * L);
            for (k = a - gptsi_min(a, h->reach); k <= a; k++) {
                const gpts_real *cells = gptsi_static_near(&w, h, a, k, 1, &ld);
                gptsi_static_product(&w, gptsi_min(L, T - k * L), n, L, cells, ld, w.value, dv + k * L * ldv + d0, ldv);
            }
            if (h->terms && a > h->reach) {                              /* and to x after tile k, which feeds on tile k */
                k = a - h->reach - 1;
                gptsi_static_far(&w, h, k, tiles, 1);
                gptsi_static_product(&w, h->terms, n, L, w.gain, w.ld, w.value, w.x, w.wide);
                gptsi_static_product(&w, L, n, h->terms, w.feed, L, w.x, dv + k * L * ldv + d0, ldv);
                for (r = 0; r < h->terms; r++) for (j = 0; j < w.wide; j++) w.x[r * w.wide + j] *= w.keep[r];
            }
        }
        for (i = 0; i < T; i++) for (j = 0; j < n; j++) dv[i * ldv + d0 + j] *= h->u[i];
    }
}

/* (P10) gradients of a trainable pattern: with s[i,j] = P[i,j] (dy[i].v[j] - dy[i].y[i]), the
   derivative by alpha[j] + rho[i-j] as for any softmax, the sums
         key[j] += sum_{i>=j} s[i,j],   distance[d] += sum_{i>=d} s[i,i-d],  from W on s / w[d]
   of one static head s of one row of the batch; v, y, dy [T,D], T within the plan; tail[d] = w[d] (P3).
   Cost T^2 D, as for a live head.  Test: tests/gradients.c trained_exact, trained_linear.          */
static void gptsi_static_gradient(const gpts_heads *heads, size_t s, size_t T, const gpts_real *v, size_t ldv, const gpts_real *y,
                                  const gpts_real *dy, size_t ldy, const double *tail, double *key, double *distance)
{
    const gptsi_pattern *h = &heads->plan->pattern[s];
    const gptsi_kernels *q = &heads->plan->kernels;
    const gpts_real *rho = heads->rho + s * heads->S;
    size_t D = heads->D, W = gptsi_static_start(heads, s), i, j;
    for (i = 0; i < T; i++) {
        double delta = (double)q->dot(dy + i * ldy, y + i * ldy, D);
        for (j = 0; j <= i; j++) {
            double g = (double)q->dot(dy + i * ldy, v + j * ldv, D) - delta;
            g *= exp(h->alpha[j] + (i - j < W ? (double)rho[i - j] : 0) - h->z[i]);
            key[j] += i - j < W ? g : g * tail[i - j];
            distance[i - j] += g;
        }
    }
}

/* (P11) the sums of (P10) by each parameter: alpha[j] by key[j], its last quarter sharing what is
   past S (P6); rho[d] by distance[d] below W; and beyond it, by (P3),
         dcoef[r]  += sum_{d>=W} distance[d] lambda[r]^(d-W)
         ddecay[r] += sum_{d>=W} distance[d] c[r] (d-W) lambda[r]^(d-W-1)
   All +=.  Test: tests/gradients.c trained_linear.                                                 */
static void gptsi_static_collect(const gpts_heads *heads, size_t s, size_t T, const double *key, const double *distance,
                                 gpts_real *dalpha, gpts_real *drho, gpts_real *dcoef, gpts_real *ddecay)
{
    const gptsi_pattern *h = &heads->plan->pattern[s];
    size_t S = heads->S, W = gptsi_static_start(heads, s), first = S - gptsi_max(1, S / 4), j, d, r;
    double past = 0;
    for (j = S; j < T; j++) past += key[j];
    for (j = 0; j < S; j++)
        dalpha[s * S + j] += (gpts_real)((j < T ? key[j] : 0) + (j >= first ? past / (double)(S - first) : 0));
    for (d = 0; d < gptsi_min(T, W); d++) drho[s * S + d] += (gpts_real)distance[d];
    for (r = 0; r < h->terms && dcoef && ddecay; r++) {
        double by_coef = 0, by_decay = 0, lambda = (double)heads->tail_decay[s * heads->R + r], power = 1, before = 0;
        for (d = W; d < T; d++) {                                        /* before = (d-W) lambda^(d-W-1) */
            by_coef += distance[d] * power;
            by_decay += distance[d] * before;
            before = before * lambda + power;
            power *= lambda;
        }
        dcoef[s * heads->R + r] += (gpts_real)by_coef;
        ddecay[s * heads->R + r] += (gpts_real)(by_decay * (double)heads->tail_coef[s * heads->R + r]);
    }
}

/* w[d] of the tail (P3) for W <= d < T */
static void gptsi_static_tail(const gpts_heads *heads, size_t s, size_t T, double *tail)
{
    const gptsi_pattern *h = &heads->plan->pattern[s];
    size_t W = gptsi_static_start(heads, s), d, r;
    for (d = W; d < T; d++)
        for (r = 0, tail[d] = 0; r < h->terms; r++) tail[d] += exp(h->c[r] + (double)(d - W) * h->decay[r]);
}

/* Decoding keeps, of each (b, static head), the values of its last q + 1 tiles in a ring and the
   states x [R,D]; an exact head keeps every value.  The rings of a layer lie one after the
   other: ring_rows is their mean, rounded up, so that [B,n,ring_rows,D] holds them all.          */
static size_t gptsi_static_ring_rows(const gpts_heads *heads, size_t s, size_t capacity)
{
    enum { L = GPTSI_STATIC_TILE };
    size_t W = gptsi_static_start(heads, s);
    return W < heads->S ? gptsi_min(capacity, ((gptsi_max(W, 1) + L - 2) / L + 1) * L) : capacity;
}
static void gptsi_static_cache_size(const gpts_heads *heads, size_t capacity, size_t *ring_rows, size_t *state_size)
{
    size_t s, sum = 0;
    for (s = 0; s < heads->n; s++) sum = gptsi_add(sum, gptsi_static_ring_rows(heads, s, capacity));
    *ring_rows = heads->n ? gptsi_add(sum, heads->n - 1) / heads->n : 0;
    *state_size = heads->n && heads->tail_start ? heads->R * (heads->D + 2) : 0;
}

typedef struct gptsi_static_kept { gpts_real *ring, *x; size_t rows, D; } gptsi_static_kept;
static gptsi_static_kept gptsi_static_find(const gpts_heads *heads, size_t s, const gpts_cache *cache, size_t b)
{
    gptsi_static_kept kept;
    size_t k, row = b * heads->n * cache->ring_rows;
    for (k = 0; k < s; k++) row += gptsi_static_ring_rows(heads, k, cache->capacity);
    kept.D = heads->D;
    kept.rows = gptsi_static_ring_rows(heads, s, cache->capacity);
    kept.ring = cache->ring + row * heads->D;
    kept.x = cache->state_size ? cache->state + (b * heads->n + s) * cache->state_size : NULL;
    return kept;
}
static gpts_real *gptsi_static_row(const gptsi_static_kept *kept, size_t j) { return kept->ring + j % kept->rows * kept->D; }

/* (P4): x over key tile k, whose values are v [64,D] */
static void gptsi_static_absorb(const gptsi_kernels *q, const gptsi_pattern *h, size_t k, const gpts_real *v, size_t ldv, gpts_real *x, size_t D)
{
    enum { L = GPTSI_STATIC_TILE };
    gpts_real weight[L];
    size_t r, j;
    for (r = 0; r < h->terms; r++) {
        double after = h->wide ? h->n[(k + 1) * h->terms + r] : 0, before = h->wide ? h->n[k * h->terms + r] : 0;
        gpts_real keep = (gpts_real)exp(before + (double)L * h->decay[r] - after);
        for (j = 0; j < L; j++)
            weight[j] = h->wide ? (gpts_real)exp((double)(L - 1 - j) * h->decay[r] + h->alpha[k * L + j] - after)
                                : (gpts_real)(h->feed[r * L + L - 1 - j] * h->u[k * L + j]);
        for (j = 0; j < D; j++) x[r * D + j] *= keep;
        q->rows_mul(x + r * D, D, v, ldv, weight, L);
    }
}

/* (P8)  keep what decoding needs of T values: x over the tiles that the last row no longer takes
   by w, and the values of the others.  ring, state =; test: tests/static.c decoding_equals_prefill. */
static void gptsi_static_fill(const gpts_heads *heads, size_t s, size_t T, const gpts_real *v, size_t ldv,
                              gpts_cache *cache, size_t b)
{
    enum { L = GPTSI_STATIC_TILE };
    const gptsi_pattern *h = &heads->plan->pattern[s];
    gptsi_static_kept kept = gptsi_static_find(heads, s, cache, b);
    size_t last = T ? (T - 1) / L : 0, k, j;
    if (kept.x) memset(kept.x, 0, cache->state_size * sizeof *kept.x);
    for (k = 0; k + h->reach < last; k++) gptsi_static_absorb(&heads->plan->kernels, h, k, v + k * L * ldv, ldv, kept.x, kept.D);
    for (j = k * L; j < T; j++) memcpy(gptsi_static_row(&kept, j), v + j * ldv, kept.D * sizeof *v);
}

/* (P9)  one more position: (P5) for one row, its value from v [D], the others from the ring; y [D] =.
   The first row of a tile lets x take in the tile that falls out of reach.
   Cost: (W + 64 + 2 R) D products, exact form i D.  Test: tests/static.c decoding_equals_prefill.    */
static void gptsi_static_step(const gpts_heads *heads, size_t s, size_t position, const gpts_real *v, gpts_real *y,
                              gpts_cache *cache, size_t b)
{
    enum { L = GPTSI_STATIC_TILE };
    const gptsi_kernels *q = &heads->plan->kernels;
    const gptsi_pattern *h = &heads->plan->pattern[s];
    gptsi_static_kept kept = gptsi_static_find(heads, s, cache, b);
    size_t i = position, a = i / L, k = a - gptsi_min(a, h->reach), t = k * L, D = kept.D, j, r;
    gpts_real weight[L];
    if (t && i % L == 0) gptsi_static_absorb(q, h, k - 1, gptsi_static_row(&kept, t - L), D, kept.x, D);
    memcpy(gptsi_static_row(&kept, i), v, D * sizeof *v);
    memset(y, 0, D * sizeof *y);
    for (; k <= a; k++) {
        for (j = k * L; j < (k + 1) * L && j <= i; j++)
            weight[j - k * L] = h->wide ? (gpts_real)exp(h->alpha[j] + h->rho[i - j] - h->z[i])
                                        : (gpts_real)(h->w[L - 1 + i - j] * h->u[j] * h->e[i]);
        q->rows_mul(y, D, gptsi_static_row(&kept, k * L), D, weight, j - k * L);
    }
    if (!t || !h->terms) return;
    for (r = 0; r < h->terms; r++)
        weight[r] = h->wide ? (gpts_real)exp(h->c[r] + (double)(i % L + h->shift) * h->decay[r] + h->n[t / L * h->terms + r] - h->z[i])
                            : (gpts_real)(h->gain[r * L + i % L] * h->e[i]);
    q->rows_mul(y, D, kept.x, D, weight, h->terms);
}

/* ---- the mixed layer -------------------------------------------------------------- */

/* (M1) y[b,t,s] = (A1) for a live slot s, (P2) for a static one, over positions
        first[b] .. first[b] + length[b] - 1; y = 0 and lse = -infinity outside.
   (M2) of (M1): dqkv = (A2) for a live slot, (P2)'s adjoint for a static one; 0 outside.
   qkv, dqkv [B,T,(2U+K)D], y, dy [B,T,K D], lse [B,U,T].  Items: (b, slot, block); a static head
   is one item.  Workers take runs of items of equal cost, not of equal number: a live head costs
   twenty static ones, and whoever had only live ones would be waited for.
   tests/attention.c: mixed_layer_M1_M2, static.c shares_are_even.                           */
typedef struct gptsi_mixed {
    gptsi_cpu *cpu;
    const gpts_heads *heads;
    gpts_real *y, *lse, *qkv, *dqkv;
    const gpts_real *dy;
    const int32_t *first, *length, *position;
    gpts_cache *cache;
    size_t T, blocks;
    double scale;
    int pass;                                                 /* backward: 0 both, 1 keys, 2 queries */
    gptsi_body body;                                          /* does items begin .. end-1           */
    size_t shares;                                            /* of the whole cost                   */
    double cost;
    size_t B;
    gpts_real *dalpha, *drho, *dcoef, *ddecay;                /* trainable patterns, or NULL */
} gptsi_mixed;

/* the head that item n works on; its block in *block */
static gptsi_head gptsi_mixed_head(const gptsi_mixed *m, size_t n, size_t *slot, size_t *begin, size_t *block)
{
    const gpts_heads *heads = m->heads;
    size_t D = heads->D, U = heads->U, K = heads->K, ld = (2 * U + K) * D, b, at, u;
    gptsi_head h;
    memset(&h, 0, sizeof h);
    *block = n % m->blocks;
    n /= m->blocks;
    b = n / K;
    *slot = n % K;
    *begin = m->first ? (size_t)m->first[b] : 0;
    h.kernels = m->cpu->kernels;
    h.T = m->length ? (size_t)m->length[b] : m->T - *begin;
    h.D = D; h.padded = gptsi_whole(D, h.kernels->lanes); h.ld = ld; h.ldy = K * D; h.scale = (gpts_real)m->scale;
    at = b * m->T + *begin;
    u = heads->live_slot[*slot] < 0 ? 0 : (size_t)heads->live_slot[*slot];
    h.q = m->qkv + at * ld + u * D; h.k = h.q + U * D; h.v = m->qkv + at * ld + (2 * U + *slot) * D;
    if (m->y) h.y = m->y + at * h.ldy + *slot * D;
    if (m->lse) h.lse = m->lse + (b * U + u) * m->T + *begin;
    if (m->dqkv) { h.dq = m->dqkv + at * ld + u * D; h.dk = h.dq + U * D; h.dv = m->dqkv + at * ld + (2 * U + *slot) * D; }
    if (m->dy) h.dy = m->dy + at * h.ldy + *slot * D;
    return h;
}
/* x[t,D] = 0 for the positions of the batch's row outside the interval; x is at its beginning */
static void gptsi_clear_outside(gpts_real *x, size_t ld, size_t D, size_t begin, size_t length, size_t T)
{
    size_t t;
    for (t = 0; t < T; t++) if (t < begin || t >= begin + length) memset(x - begin * ld + t * ld, 0, D * sizeof *x);
}
static void gptsi_mixed_forward_body(void *arg, size_t n, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    const gpts_heads *heads = m->heads;
    unsigned char *scratch = m->cpu->scratch[worker];
    for (; n < end; n++) {
        size_t slot, begin, block, t;
        gptsi_head h = gptsi_mixed_head(m, n, &slot, &begin, &block);
        gpts_real *y = m->y + (h.y - m->y);
        int live = heads->live_slot[slot] >= 0;
        if (block == 0) gptsi_clear_outside(y, h.ldy, h.D, begin, h.T, m->T);
        if (!live) {
            if (block == 0 && h.T)
                gptsi_static_forward(heads, (size_t)heads->static_slot[slot], h.T, h.v, h.ld, y, h.ldy, scratch, m->cpu->scratch_bytes);
            continue;
        }
        for (t = 0; block == 0 && t < m->T; t++)
            if (t < begin || t >= begin + h.T) (m->lse + (h.lse - m->lse) - begin)[t] = (gpts_real)-HUGE_VAL;
        t = block * GPTSI_QUERIES;
        if (t < h.T) gptsi_head_forward(&h, t, gptsi_min(GPTSI_QUERIES, h.T - t), y, m->lse + (h.lse - m->lse), scratch);
    }
}
static void gptsi_mixed_backward_body(void *arg, size_t n, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    const gpts_heads *heads = m->heads;
    unsigned char *scratch = m->cpu->scratch[worker];
    for (; n < end; n++) {
        size_t slot, begin, block, t;
        gptsi_head h = gptsi_mixed_head(m, n, &slot, &begin, &block);
        int live = heads->live_slot[slot] >= 0;
        if (block == 0 && m->pass < 2) {
            gptsi_clear_outside(h.dv, h.ld, h.D, begin, h.T, m->T);
            if (live) {
                gptsi_clear_outside(h.dq, h.ld, h.D, begin, h.T, m->T);
                gptsi_clear_outside(h.dk, h.ld, h.D, begin, h.T, m->T);
            } else if (h.T)
                gptsi_static_backward(heads, (size_t)heads->static_slot[slot], h.T, h.dy, h.ldy, h.dv, h.ld, scratch, m->cpu->scratch_bytes);
        }
        if (!live) continue;
        if (m->pass == 0) for (t = 0; t < h.T; t += GPTSI_KEYS) gptsi_head_keys_backward(&h, t, 1, scratch);
        else if (m->pass == 1 && block * GPTSI_KEYS < h.T) gptsi_head_keys_backward(&h, block * GPTSI_KEYS, 0, scratch);
        else if (m->pass == 2 && block * GPTSI_QUERIES < h.T) gptsi_head_queries_backward(&h, block * GPTSI_QUERIES, scratch);
    }
}
/* What item n costs: the cells of the pattern that it visits, times their products of D; with its
   exponential a live cell counts as 2.5 forward and 6 backward.                                  */
static double gptsi_mixed_cost(const gptsi_mixed *m, size_t n)
{
    const gpts_heads *heads = m->heads;
    size_t b = n / m->blocks / heads->K, slot = n / m->blocks % heads->K, block = n % m->blocks;
    size_t T = m->length ? (size_t)m->length[b] : m->T - (m->first ? (size_t)m->first[b] : 0);
    size_t step = m->blocks == 1 ? T : m->pass == 1 ? (size_t)GPTSI_KEYS : (size_t)GPTSI_QUERIES, t = block * step, rows;
    if (heads->live_slot[slot] < 0) {
        const gptsi_pattern *h = &heads->plan->pattern[heads->static_slot[slot]];
        return block || m->pass == 2 ? 0 : 1 + (double)T * (double)gptsi_min((h->reach + 1) * GPTSI_STATIC_TILE + 2 * h->terms, T / 2 + 32);
    }
    if (t >= T) return !block;
    rows = gptsi_min(step, T - t);
    return 1 + (m->dqkv ? 6 : 2.5) * (double)rows * ((m->pass == 1 ? (double)(T - t - rows) : (double)t) + 0.5 * (double)rows);
}
/* Share i: the items whose middle lies in the i-th of equal parts of the whole cost. */
static void gptsi_mixed_share(void *arg, size_t share, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    size_t items = m->B * m->heads->K * m->blocks, n;
    double before = 0, cost, middle;
    for (n = 0; n < items; n++, before += cost) {
        cost = gptsi_mixed_cost(m, n);
        middle = (before + 0.5 * cost) * (double)m->shares;
        if (middle >= (double)end * m->cost) break;
        if (cost > 0 && middle >= (double)share * m->cost) m->body(arg, n, n + 1, worker);
    }
}
static void gptsi_mixed_run(gptsi_mixed *m, gptsi_body body)
{
    size_t items = m->B * m->heads->K * m->blocks, n;
    m->body = body;
    m->shares = m->cpu->workers * GPTSI_CREW_CHUNKS;
    for (n = 0, m->cost = 0; n < items; n++) m->cost += gptsi_mixed_cost(m, n);
    gptsi_cpu_parallel(m->cpu, m->cpu->workers, m->shares, gptsi_mixed_share, m);
}
static gptsi_mixed gptsi_mixed_of(void *device, const gpts_heads *heads, size_t T, double scale)
{
    gptsi_mixed m;
    gptsi_head h;
    gptsi_blocks x;
    size_t bytes;
    memset(&m, 0, sizeof m);
    memset(&h, 0, sizeof h);
    m.cpu = (gptsi_cpu *)device; m.heads = heads; m.T = T; m.blocks = 1; m.scale = scale;
    h.padded = gptsi_whole(heads->D, m.cpu->kernels->lanes);
    bytes = gptsi_blocks_of(&h, m.cpu->scratch[0], &x);
    if (heads->n) bytes = gptsi_max(bytes, gptsi_static_scratch(heads));
    if (!gptsi_cpu_reserve(m.cpu, bytes)) m.cpu = NULL;
    return m;
}
static void gptsi_cpu_attention_forward(void *device, const gpts_heads *heads, void *y, gpts_real *lse, void *qkv,
                                        const int32_t *first, const int32_t *length, size_t B, size_t T, double scale, double theta)
{
    gptsi_mixed m = gptsi_mixed_of(device, heads, T, scale);
    if (!m.cpu) return;
    m.y = (gpts_real *)y; m.lse = lse; m.qkv = (gpts_real *)qkv; m.first = first; m.length = length;
    m.B = B; m.blocks = (T + GPTSI_QUERIES - 1) / GPTSI_QUERIES;
    gptsi_rotate(m.cpu, heads, m.qkv, first, length, NULL, B, T, theta, 1);
    gptsi_mixed_run(&m, gptsi_mixed_forward_body);
}
/* (P10) (P11) of the static heads, an item each, over the rows of the batch in their order */
static void gptsi_mixed_pattern_body(void *arg, size_t slot, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    double *tail = (double *)(void *)m->cpu->scratch[worker], *key = tail + m->T, *distance = key + m->T;
    for (; slot < end; slot++) {
        size_t b, k, begin, block, s = (size_t)m->heads->static_slot[slot];
        if (m->heads->static_slot[slot] < 0) continue;
        gptsi_static_tail(m->heads, s, m->T, tail);
        memset(key, 0, 2 * m->T * sizeof *key);
        for (b = 0; b < m->B; b++) {
            gptsi_head h = gptsi_mixed_head(m, b * m->heads->K + slot, &k, &begin, &block);
            gptsi_static_gradient(m->heads, s, h.T, h.v, h.ld, h.y, h.dy, h.ldy, tail, key, distance);
        }
        gptsi_static_collect(m->heads, s, m->T, key, distance, m->dalpha, m->drho, m->dcoef, m->ddecay);
    }
}
static void gptsi_cpu_attention_backward(void *device, const gpts_heads *heads, void *dqkv, const void *dy, const void *y,
                                         const gpts_real *lse, const void *qkv, const int32_t *first, const int32_t *length,
                                         size_t B, size_t T, double scale, double theta, gpts_real *dalpha, gpts_real *drho,
                                         gpts_real *dcoef, gpts_real *ddecay)
{
    gptsi_mixed m = gptsi_mixed_of(device, heads, T, scale);
    size_t items = B * heads->U;                            /* live heads */
    if (!m.cpu || (dalpha && !gptsi_cpu_reserve(m.cpu, gptsi_mul(3 * T, sizeof(double))))) return;
    m.dqkv = (gpts_real *)dqkv; m.dy = (const gpts_real *)dy; m.first = first; m.length = length;
    m.y = (gpts_real *)(uintptr_t)y; m.lse = (gpts_real *)(uintptr_t)lse; m.qkv = (gpts_real *)(uintptr_t)qkv;  /* only read */
    m.B = B;
    if (items % m.cpu->workers == 0 || items >= 4 * m.cpu->workers) gptsi_mixed_run(&m, gptsi_mixed_backward_body);
    else
        for (m.pass = 1; m.pass <= 2; m.pass++) {
            m.blocks = (T + gptsi_min(GPTSI_KEYS, GPTSI_QUERIES) - 1) / gptsi_min(GPTSI_KEYS, GPTSI_QUERIES);
            gptsi_mixed_run(&m, gptsi_mixed_backward_body);
        }
    gptsi_rotate(m.cpu, heads, m.dqkv, first, length, NULL, B, T, theta, -1);
    if (!dalpha || !drho) return;
    m.blocks = 1; m.dalpha = dalpha; m.drho = drho; m.dcoef = dcoef; m.ddecay = ddecay;
    gptsi_cpu_parallel(m.cpu, m.cpu->workers, heads->K, gptsi_mixed_pattern_body, &m);
}

/* (M3) decoding with a cache: of a prefill it keeps the rotated keys and the values of live
   heads [B,U,capacity,D] and what a static head's step needs; then one more position a row:
   (A3) for a live slot, the static head's step for the others.  Rows with position < 0 rest.
   tests/attention.c: decoding_equals_forward_A3.                                           */
static void gptsi_mixed_fill_body(void *arg, size_t n, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    const gpts_heads *heads = m->heads;
    (void)worker;
    for (; n < end; n++) {
        size_t slot, begin, block, t;
        gptsi_head h = gptsi_mixed_head(m, n, &slot, &begin, &block);
        size_t b = n / heads->K, at = (b * heads->U + (size_t)(heads->live_slot[slot] < 0 ? 0 : heads->live_slot[slot])) * m->cache->capacity;
        if (heads->live_slot[slot] < 0) { gptsi_static_fill(heads, (size_t)heads->static_slot[slot], h.T, h.v, h.ld, m->cache, b); continue; }
        for (t = 0; t < h.T; t++) {
            memcpy(m->cache->keys + (at + t) * h.D, h.k + t * h.ld, h.D * sizeof *h.k);
            memcpy(m->cache->values + (at + t) * h.D, h.v + t * h.ld, h.D * sizeof *h.v);
        }
    }
}
static void gptsi_cpu_cache_fill(void *device, const gpts_heads *heads, gpts_cache *cache, const void *qkv,
                                 const int32_t *length, size_t T)
{
    gptsi_mixed m = gptsi_mixed_of(device, heads, T, 1);
    if (!m.cpu) return;
    m.cache = cache; m.qkv = (gpts_real *)(uintptr_t)qkv; m.length = length;
    gptsi_cpu_parallel(m.cpu, m.cpu->workers, cache->B * heads->K, gptsi_mixed_fill_body, &m);
}
static void gptsi_mixed_step_body(void *arg, size_t n, size_t end, size_t worker)
{
    const gptsi_mixed *m = (const gptsi_mixed *)arg;
    const gpts_heads *heads = m->heads;
    for (; n < end; n++) {
        size_t slot, begin, block, b = n / heads->K, at, p;
        gptsi_head h = gptsi_mixed_head(m, n, &slot, &begin, &block);
        gpts_real *y = m->y + (h.y - m->y);
        if (m->position[b] < 0) { memset(y, 0, h.D * sizeof *y); continue; }
        p = (size_t)m->position[b];
        if (heads->live_slot[slot] < 0) { gptsi_static_step(heads, (size_t)heads->static_slot[slot], p, h.v, y, m->cache, b); continue; }
        at = (b * heads->U + (size_t)heads->live_slot[slot]) * m->cache->capacity;
        memcpy(m->cache->keys + (at + p) * h.D, h.k, h.D * sizeof *y);
        memcpy(m->cache->values + (at + p) * h.D, h.v, h.D * sizeof *y);
        gptsi_head_step(h.kernels, h.q, m->cache->keys + at * h.D, m->cache->values + at * h.D, p + 1, h.D, m->scale, y, m->cpu->scratch[worker]);
    }
}
static void gptsi_cpu_attention_decode(void *device, const gpts_heads *heads, gpts_cache *cache, void *y, void *qkv,
                                       const int32_t *position, double scale, double theta)
{
    gptsi_mixed m = gptsi_mixed_of(device, heads, 1, scale);
    if (!m.cpu) return;
    m.cache = cache; m.y = (gpts_real *)y; m.qkv = (gpts_real *)qkv; m.position = position;
    gptsi_rotate(m.cpu, heads, m.qkv, NULL, NULL, position, cache->B, 1, theta, 1);
    gptsi_cpu_parallel(m.cpu, m.cpu->workers, cache->B * heads->K, gptsi_mixed_step_body, &m);
}

/* ==============================================================================
   @@MODEL  parameter table, forward, mirrored backward
   ============================================================================== */

/* defined in @@TRAIN and @@SAMPLE */
static gpts_status gptsi_trainer_blocks(gpts_trainer *t, gpts_model *m);
static gpts_status gptsi_trainer_follow(gpts_trainer *t);
static void gptsi_trainer_hand_over(gpts_trainer *t, int32_t layer);
static gpts_status gptsi_trainer_gather(gpts_trainer *t);
static void gptsi_trainer_share(gpts_trainer *t);
static gpts_status gptsi_ranks_agree(const gpts_ranks *ranks, gpts_status status, const gpts_hooks *hooks, char *error);
static void gptsi_trainer_release(gpts_trainer *t);
static void gptsi_session_keep_window(gpts_session *s, size_t l, const unsigned char *windows, const gpts_batch *batch);
static void gptsi_session_shift_window(gpts_session *s, size_t l, unsigned char *windows, const unsigned char *rows, const int32_t *ids);
static void gptsi_step_upload(gpts_session *s, const int32_t *ids);

/* Fills the CPU's table. */
static const gpts_ops *gptsi_cpu_ops(gpts_ops *o)
{
    memset(o, 0, sizeof *o);
    o->name = "cpu"; o->activation_bytes = sizeof(gpts_real);
    o->allocate = gptsi_cpu_allocate; o->release = gptsi_cpu_release;
    o->upload = gptsi_cpu_upload; o->download = gptsi_cpu_download; o->copy = gptsi_cpu_copy;
    o->zero = gptsi_cpu_zero; o->status = gptsi_cpu_status; o->together = gptsi_cpu_together;
    o->precision = gptsi_cpu_precision; o->keep = gptsi_cpu_keep;
    o->prepare = gptsi_cpu_prepare; o->forget = gptsi_cpu_forget;
    o->embed_forward = gptsi_cpu_embed_forward; o->embed_backward = gptsi_cpu_embed_backward;
    o->norm_forward = gptsi_cpu_norm_forward; o->norm_backward = gptsi_cpu_norm_backward;
    o->linear_forward = gptsi_cpu_linear_forward;
    o->linear_backward = gptsi_cpu_linear_backward;
    o->activation_forward = gptsi_cpu_activation_forward;
    o->activation_backward = gptsi_cpu_activation_backward;
    o->add_forward = gptsi_cpu_add_forward; o->add_backward = gptsi_cpu_add_backward;
    o->window_forward = gptsi_cpu_window_forward;
    o->window_backward = gptsi_cpu_window_backward;
    o->attention_forward = gptsi_cpu_attention_forward;
    o->attention_backward = gptsi_cpu_attention_backward; o->cache_fill = gptsi_cpu_cache_fill;
    o->attention_decode = gptsi_cpu_attention_decode; o->logits = gptsi_cpu_logits;
    o->loss = gptsi_cpu_loss; o->sum_squares = gptsi_cpu_sum_squares;
    o->adamw = gptsi_cpu_adamw;
    return o;
}

GPTS_API gpts_config gpts_config_default(void)
{
    gpts_config c;
    memset(&c, 0, sizeof c);
    c.vocab_size = 50257; c.n_positions = 1024; c.n_layer = 12; c.n_head = 12; c.n_embd = 768; c.n_inner = -1;
    c.activation = GPTS_GELU_TANH; c.approx_activation = GPTS_RELU;
    c.position = GPTS_POSITION_LEARNED; c.norm = GPTS_NORM_LAYER;
    c.bias = 1; c.tie_word_embeddings = 1;
    c.layer_norm_epsilon = 1e-5; c.rope_theta = 10000.0;
    return c;
}

static gpts_status gptsi_config_check(const gpts_config *c, char *error)
{
    static const struct { char name[16]; int64_t least, most; } range[] = {
        { "vocab_size", 1, INT32_MAX }, { "n_positions", 1, INT32_MAX }, { "n_layer", 0, 65536 },
        { "n_head", 1, 65536 }, { "n_embd", 1, INT32_MAX }, { "n_inner", -1, INT32_MAX }
    };
    int64_t value[6];
    size_t i;
    value[0] = c->vocab_size; value[1] = c->n_positions; value[2] = c->n_layer;
    value[3] = c->n_head; value[4] = c->n_embd; value[5] = c->n_inner;
    for (i = 0; i < 6; i++)
        if (value[i] < range[i].least || value[i] > range[i].most)
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "%s is %lld, expected %lld to %lld", range[i].name,
                              (long long)value[i], (long long)range[i].least, (long long)range[i].most);
    if (c->n_embd % c->n_head)
        return gptsi_fail(error, GPTS_BAD_ARGUMENT, "n_embd %lld is not a multiple of n_head %lld",
                          (long long)c->n_embd, (long long)c->n_head);
    if (c->position == GPTS_POSITION_ROPE && (c->n_embd / c->n_head) % 2)
        return gptsi_fail(error, GPTS_BAD_ARGUMENT, "rotary positions need an even head size, not %lld",
                          (long long)(c->n_embd / c->n_head));
    if (c->activation < GPTS_GELU_TANH || c->activation > GPTS_RELU || c->approx_activation < GPTS_GELU_TANH ||
        c->approx_activation > GPTS_RELU || c->position < GPTS_POSITION_LEARNED || c->position > GPTS_POSITION_NONE ||
        c->norm < GPTS_NORM_LAYER || c->norm > GPTS_NORM_NONE)
        return gptsi_fail(error, GPTS_BAD_ARGUMENT, "an activation, position or norm setting is none of the known ones");
    if (!(c->layer_norm_epsilon > 0) || !(c->layer_norm_epsilon < 1) || !(c->rope_theta > 0) || !(c->rope_theta < 1e300))
        return gptsi_fail(error, GPTS_BAD_ARGUMENT, "layer_norm_epsilon must be in (0,1) and rope_theta positive");
    return GPTS_OK;
}

static size_t gptsi_inner(const gpts_config *c) { return c->n_inner < 0 ? 4 * (size_t)c->n_embd : (size_t)c->n_inner; }

/* ---- activations ---------------------------------------------------------------------
   One block, laid out anew for each (B, T).  `keep`: every layer has its own buffers,
   as the backward pass needs; otherwise all layers share one set.                       */
typedef struct gptsi_layer_work {
    unsigned char *x;                         /* [N,C] what enters the layer               */
    unsigned char *norm1, *qkv, *heads;       /* [N,C] [N,(2U+K)D] [N,K D]                 */
    unsigned char *window, *hidden;           /* [N,k C] [N,h] of an approximator          */
    unsigned char *middle, *norm2, *inner;    /* [N,C] between the sublayers, [N,C] [N,F]  */
    gpts_real *statistics1, *statistics2;     /* [N,2] mean and 1/deviation                */
    gpts_real *lse;                           /* [B,U,T]                                   */
} gptsi_layer_work;

typedef struct gpts_work {
    gptsi_layer_work *layers;                 /* [L]                                       */
    unsigned char *x, *norm;                  /* [N,C] after the last layer, after ln_f    */
    gpts_real *statistics;                    /* [N,2]                                     */
    unsigned char *branch, *act;              /* [N,C] a sublayer's output, [N,max(F,h)]   */
    unsigned char *dx, *dbranch, *dnorm, *dheads, *dwide;   /* backward's own              */
    int32_t *tokens, *targets, *first, *length;             /* device copies               */
    double *sum;                              /* of a batch's losses, on the device        */
    gpts_real *logits;                        /* a block of rows                           */
    size_t logits_rows;
    void *block;
    size_t bytes, B, T;
    int keep;
    int32_t *host;                            /* [N] targets with masked positions out     */
    size_t host_size;
} gpts_work;

static void gptsi_work_free(gpts_model *m)
{
    if (!m->work) return;
    if (m->work->block) m->ops->release(m->device, m->work->block);
    gptsi_delete(&m->hooks, m->work->layers); gptsi_delete(&m->hooks, m->work->host);
    memset(m->work, 0, sizeof *m->work);
}

/* the next `count` values of the block; base NULL: only measure */
static unsigned char *gptsi_take(unsigned char *base, size_t *at, size_t count, size_t size)
{
    unsigned char *p = base ? base + *at : NULL;
    size_t n = gptsi_mul(count, size);
    *at = gptsi_add(*at, n > SIZE_MAX - 63 ? SIZE_MAX : (n + 63) / 64 * 64);
    return p;
}

static size_t gptsi_work_place(gpts_model *m, size_t B, size_t T, int keep, unsigned char *base)
{
    gpts_work *w = m->work;
    size_t N = gptsi_mul(B, T), C = (size_t)m->config.n_embd, F = gptsi_inner(&m->config), V = (size_t)m->config.vocab_size;
    size_t L = (size_t)m->config.n_layer, l, a = m->ops->activation_bytes, r = sizeof(gpts_real), at = 0, shared, end = 0;
    size_t widest = F, wide = F, heads = 0;                   /* act, dwide, dheads */
    int norm = m->config.norm == GPTS_NORM_LAYER;
    w->tokens = (int32_t *)(void *)gptsi_take(base, &at, N, sizeof(int32_t));
    w->targets = (int32_t *)(void *)gptsi_take(base, &at, N, sizeof(int32_t));
    w->first = (int32_t *)(void *)gptsi_take(base, &at, B, sizeof(int32_t));
    w->length = (int32_t *)(void *)gptsi_take(base, &at, B, sizeof(int32_t));
    w->sum = (double *)(void *)gptsi_take(base, &at, 1, sizeof(double));
    w->x = gptsi_take(base, &at, N, C * a);
    w->norm = norm ? gptsi_take(base, &at, N, C * a) : w->x;
    w->statistics = (gpts_real *)(void *)gptsi_take(base, &at, N, 2 * r);
    w->branch = gptsi_take(base, &at, N, C * a);
    for (l = 0, shared = at; l < L; l++) {
        gptsi_layer_work *y = &w->layers[l];
        const gpts_layer *layer = &m->layers[l];
        size_t qkv = (2 * layer->heads.U + layer->heads.K) * layer->heads.D, kept = layer->heads.K * layer->heads.D, kC = layer->window * C;
        if (!keep) at = shared;
        y->x = keep ? gptsi_take(base, &at, N, C * a) : w->x;
        y->norm1 = norm ? gptsi_take(base, &at, N, C * a) : y->x;
        y->statistics1 = (gpts_real *)(void *)gptsi_take(base, &at, N, 2 * r);
        y->qkv = gptsi_take(base, &at, N, qkv * a);
        y->heads = gptsi_take(base, &at, N, kept * a);
        y->lse = (gpts_real *)(void *)gptsi_take(base, &at, N, layer->heads.U * r);
        y->window = layer->window > 1 ? gptsi_take(base, &at, N, kC * a) : y->norm1;
        y->hidden = gptsi_take(base, &at, N, layer->hidden * a);
        y->middle = keep && F ? gptsi_take(base, &at, N, C * a) : keep ? NULL : y->x;   /* without MLP: the next x */
        y->norm2 = norm && F ? gptsi_take(base, &at, N, C * a) : y->middle;
        y->statistics2 = (gpts_real *)(void *)gptsi_take(base, &at, N, 2 * r);
        y->inner = gptsi_take(base, &at, N, F * a);
        end = gptsi_max(end, at);
        widest = gptsi_max(widest, layer->hidden);
        wide = gptsi_max(wide, gptsi_max(gptsi_max(qkv, layer->hidden), layer->window > 1 ? kC : 0));
        heads = gptsi_max(heads, gptsi_max(kept, layer->hidden));
    }
    if (L) at = end;
    w->act = gptsi_take(base, &at, N, widest * a);
    if (keep) {
        w->dx = gptsi_take(base, &at, N, C * a);
        w->dbranch = gptsi_take(base, &at, N, C * a);
        w->dnorm = gptsi_take(base, &at, N, C * a);
        w->dheads = gptsi_take(base, &at, N, heads * a);
        w->dwide = gptsi_take(base, &at, N, wide * a);
    }
    w->logits_rows = gptsi_max(1, gptsi_min(N, ((size_t)1 << (m->ops->queued ? 22 : 20)) / (V + 1)));
    w->logits = (gpts_real *)(void *)gptsi_take(base, &at, w->logits_rows, gptsi_mul(V, r));
    return at;
}

static gpts_status gptsi_work_ready(gpts_model *m, size_t B, size_t T, int keep)
{
    gpts_work *w = m->work;
    size_t L = (size_t)m->config.n_layer, bytes;
    if (w->block && w->B == B && w->T == T && w->keep == keep) return GPTS_OK;
    if (!w->layers) w->layers = GPTSI_NEW(&m->hooks, gptsi_layer_work, L ? L : 1);
    if (!w->layers) return gptsi_no_memory(m->error, "activations", L, sizeof *w->layers);
    if (w->host_size < gptsi_mul(B, T)) {
        gptsi_delete(&m->hooks, w->host);
        w->host = GPTSI_NEW(&m->hooks, int32_t, gptsi_mul(B, T));
        w->host_size = w->host ? B * T : 0;
        if (!w->host) return gptsi_no_memory(m->error, "activations", gptsi_mul(B, T), sizeof *w->host);
    }
    bytes = gptsi_work_place(m, B, T, keep, NULL);
    if (bytes > w->bytes || !w->block) {
        if (w->block) m->ops->release(m->device, w->block);
        w->block = NULL; w->bytes = 0; w->B = w->T = 0;
        if (bytes == SIZE_MAX || m->ops->allocate(m->device, bytes, &w->block) != GPTS_OK)
            return gptsi_no_memory(m->error, "activations", bytes, 1);
        w->bytes = bytes;
    }
    gptsi_work_place(m, B, T, keep, (unsigned char *)w->block);
    w->B = B; w->T = T; w->keep = keep;
    return GPTS_OK;
}

/* ---- layout: which tensors there are, and where ------------------------------------- */

/* What one layer is to be; all zero: every head live.  kind [H]: see below. */
enum { GPTSI_LIVE = 0, GPTSI_STATIC = 1, GPTSI_PRUNED = 2 };
typedef struct gptsi_layer_shape {
    int8_t *kind;                             /* [H], or NULL: all live                    */
    size_t S, R;                              /* of the static heads' patterns             */
    int tails;                                /* tail tensors exist                        */
    const int32_t *tail_start;                /* [n], or NULL: S (no tail)                 */
    int train_patterns;
    size_t window, hidden;                    /* hidden > 0: an approximator               */
    int train_approximator;
} gptsi_layer_shape;

static gpts_status gptsi_layer_heads(gpts_model *m, gpts_layer *y, const gptsi_layer_shape *shape)
{
    gpts_heads *heads = &y->heads;
    size_t H = (size_t)m->config.n_head, h, live = 0, fixed = 0;
    int32_t *block;
    heads->H = H; heads->D = (size_t)(m->config.n_embd / m->config.n_head);
    y->window = shape ? shape->window : 0; y->hidden = shape ? shape->hidden : 0;
    if (y->hidden) { if (!y->window) y->window = 1; return GPTS_OK; }
    block = GPTSI_NEW(&m->hooks, int32_t, 4 * H);
    if (!block) return gptsi_no_memory(m->error, "a layer's heads", 4 * H, sizeof *block);
    heads->kept = block; heads->live_slot = block + H; heads->static_slot = block + 2 * H; y->tail_start = block + 3 * H;
    for (h = 0; h < H; h++) {
        int kind = shape && shape->kind ? shape->kind[h] : (int)GPTSI_LIVE;
        if (kind == GPTSI_PRUNED) continue;
        heads->kept[heads->K] = (int32_t)h;
        heads->live_slot[heads->K] = kind == GPTSI_LIVE ? (int32_t)live++ : -1;
        heads->static_slot[heads->K++] = kind == GPTSI_STATIC ? (int32_t)fixed++ : -1;
    }
    heads->U = live; heads->n = fixed;
    if (fixed) {
        heads->S = shape->S; heads->R = shape->R;
        for (h = 0; h < fixed; h++) y->tail_start[h] = shape->tails && shape->tail_start ? shape->tail_start[h] : (int32_t)shape->S;
        if (shape->tails) heads->tail_start = y->tail_start;
    }
    return GPTS_OK;
}

/* "h.%d.ln_1.weight", 3 -> "h.3.ln_1.weight" */
static void gptsi_tensor_name(char *name, const char *pattern, int32_t layer)
{
    const char *mark = strstr(pattern, "%d");
    if (mark) snprintf(name, GPTS_NAME_BYTES, "%.*s%ld%s", (int)(mark - pattern), pattern, (long)layer, mark + 2);
    else snprintf(name, GPTS_NAME_BYTES, "%s", pattern);
}

/* The table's rows from..to for layer l (-1: none) are counted in *at, and described in
   m->tensors where that exists; `start` (or NULL) receives the deviation at the start. */
static void gptsi_table_rows(gpts_model *m, int32_t l, gpts_parameter from, gpts_parameter to, size_t *at, double *start)
{
    const gpts_config *c = &m->config;
    gpts_layer *y = l >= 0 ? &m->layers[l] : NULL;
    const size_t vector = SIZE_MAX;
    size_t V = (size_t)c->vocab_size, C = (size_t)c->n_embd, F = gptsi_inner(c), Tp = (size_t)c->n_positions;
    size_t D = C / (size_t)c->n_head, U = y ? y->heads.U : 0, K = y ? y->heads.K : 0, n = y ? y->heads.n : 0;
    size_t S = y ? y->heads.S : 0, R = y ? y->heads.R : 0, k = y ? y->window : 0, h = y ? y->hidden : 0;
    int learned = c->position == GPTS_POSITION_LEARNED, norm = c->norm == GPTS_NORM_LAYER, bias = c->bias != 0;
    int approximator = h > 0, attention = y && !approximator, statics = n > 0, tails = y && y->heads.tail_start != NULL;
    int mlp = F > 0, untied = !c->tie_word_embeddings;
    double std = 0.02, res = 0.02 / sqrt(2.0 * (double)(c->n_layer ? c->n_layer : 1));
#define GPTSI_ROW(kind_, name_, rows_, columns_, when_, decay_, start_)                      \
    if (GPTS_P_##kind_ >= from && GPTS_P_##kind_ <= to && (when_)) {                         \
        if (start) start[*at] = start_;                                                      \
        if (m->tensors) {                                                                    \
            gpts_tensor *t = &m->tensors[*at];                                               \
            gptsi_tensor_name(t->name, name_, l);                                            \
            t->kind = GPTS_P_##kind_; t->layer = l; t->decay = decay_; t->trainable = 1;     \
            t->rank = (columns_) == vector ? 1 : 2;                                          \
            t->rows = (rows_); t->columns = t->rank == 1 ? 1 : (columns_);                   \
            t->size = gptsi_mul(t->rows, t->columns);                                        \
            if (y) y->tensor[t->kind] = (int32_t)*at;                                        \
        }                                                                                    \
        ++*at;                                                                               \
    }
    GPTS_PARAMETER_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
}

static size_t gptsi_table_walk(gpts_model *m, double *start)
{
    size_t at = 0;
    int32_t l;
    gptsi_table_rows(m, -1, GPTS_P_WTE, GPTS_P_WPE, &at, start);
    for (l = 0; l < (int32_t)m->config.n_layer; l++) gptsi_table_rows(m, l, GPTS_P_LN_1_W, GPTS_P_MLP_PROJ_B, &at, start);
    gptsi_table_rows(m, -1, GPTS_P_LN_F_W, GPTS_P_LM_HEAD, &at, start);
    return at;
}

/* Tensors begin at multiples of 16 values, so that vector loads are aligned. */
static size_t gptsi_padded(size_t n) { return n > SIZE_MAX - 15 ? SIZE_MAX : (n + 15) / 16 * 16; }

static gpts_tensor *gptsi_layer_tensor(const gpts_model *m, size_t l, gpts_parameter kind)
{
    int32_t i = m->layers[l].tensor[kind];
    return i < 0 ? NULL : &m->tensors[i];
}
static gpts_real *gptsi_weight(const gpts_model *m, size_t l, gpts_parameter kind)
{
    const gpts_tensor *t = gptsi_layer_tensor(m, l, kind);
    return t ? t->data : NULL;
}

static void gptsi_layout_free(gpts_model *m)
{
    size_t l;
    if (m->layers) for (l = 0; l < (size_t)m->config.n_layer; l++) {
        if (m->layers[l].heads.plan) m->ops->forget(m->device, &m->layers[l].heads);
        gptsi_delete(&m->hooks, m->layers[l].heads.kept);
    }
    gptsi_delete(&m->hooks, m->layers); gptsi_delete(&m->hooks, m->tensors);
    if (m->parameters) m->ops->release(m->device, m->parameters);
    m->layers = NULL; m->tensors = NULL; m->parameters = NULL; m->n_tensors = m->n_parameters = 0;
}

/* layers and tensors of m, without their values (config and hooks are set; the layout of all
   that follows needs ops and device too) */
static gpts_status gptsi_layout_describe(gpts_model *m, const gptsi_layer_shape *shapes)
{
    size_t L = (size_t)m->config.n_layer, l, k;
    m->layers = GPTSI_NEW(&m->hooks, gpts_layer, L ? L : 1);
    if (!m->layers) return gptsi_no_memory(m->error, "the layers", L, sizeof *m->layers);
    for (l = 0; l < L; l++) {
        for (k = 0; k < GPTS_P_COUNT; k++) m->layers[l].tensor[k] = -1;
        GPTSI_TRY(gptsi_layer_heads(m, &m->layers[l], shapes ? &shapes[l] : NULL));
    }
    m->n_tensors = gptsi_table_walk(m, NULL);
    m->tensors = GPTSI_NEW(&m->hooks, gpts_tensor, m->n_tensors);
    if (!m->tensors) return gptsi_no_memory(m->error, "the parameter table", m->n_tensors, sizeof *m->tensors);
    gptsi_table_walk(m, NULL);
    return GPTS_OK;
}

static void gptsi_layout_heads(gpts_model *m)              /* the heads find their patterns */
{
    size_t l;
    for (l = 0; l < (size_t)m->config.n_layer; l++) {
        gpts_heads *heads = &m->layers[l].heads;
        heads->alpha = gptsi_weight(m, l, GPTS_P_ALPHA); heads->rho = gptsi_weight(m, l, GPTS_P_RHO);
        heads->tail_coef = gptsi_weight(m, l, GPTS_P_TAIL_COEF); heads->tail_decay = gptsi_weight(m, l, GPTS_P_TAIL_DECAY);
    }
}

/* layers, tensors and parameters, all zero */
static gpts_status gptsi_layout_make(gpts_model *m, const gptsi_layer_shape *shapes)
{
    size_t i, total = 0;
    void *block = NULL;
    GPTSI_TRY(gptsi_layout_describe(m, shapes));
    for (i = 0; i < m->n_tensors; i++) total = gptsi_add(total, gptsi_padded(m->tensors[i].size));
    if (gptsi_mul(total, sizeof(gpts_real)) == SIZE_MAX || m->ops->allocate(m->device, total * sizeof(gpts_real), &block) != GPTS_OK)
        return gptsi_no_memory(m->error, "the parameters", total, sizeof(gpts_real));
    m->parameters = (gpts_real *)block;
    m->ops->zero(m->device, m->parameters, total * sizeof(gpts_real));
    for (i = total = 0; i < m->n_tensors; i++) {
        gpts_tensor *t = &m->tensors[i];
        t->data = m->parameters + total;
        total += gptsi_padded(t->size);
        m->n_parameters += t->size;
        if (t->kind >= GPTS_P_ALPHA && t->kind <= GPTS_P_TAIL_DECAY) t->trainable = shapes ? shapes[t->layer].train_patterns : 0;
        if (t->kind >= GPTS_P_APPROX_FC_W && t->kind <= GPTS_P_APPROX_PROJ_B) t->trainable = shapes ? shapes[t->layer].train_approximator : 0;
    }
    gptsi_layout_heads(m);
    return GPTS_OK;
}

/* A whole model, all weights zero: what loading and init start from.  shapes [L] or NULL. */
static gpts_status gptsi_model_build(gpts_model *m, const gpts_config *config, const gptsi_layer_shape *shapes, const gpts_hooks *hooks)
{
    gptsi_cpu *cpu;
    gpts_status status;
    char error[GPTS_ERROR_BYTES];
    memset(m, 0, sizeof *m);
    GPTSI_TRY(gptsi_config_check(config, m->error));
    m->config = *config;
    if (hooks) m->hooks = *hooks;
    m->abi = GPTS_ABI;
    cpu = GPTSI_NEW(&m->hooks, gptsi_cpu, 1);
    if (!cpu) return gptsi_no_memory(m->error, "the model", 1, sizeof *cpu);
    m->device = m->cpu = cpu;
    status = gptsi_cpu_init(cpu, &m->hooks, m->error);
    m->ops = gptsi_cpu_ops(&cpu->ops);
    if (status == GPTS_OK) status = gptsi_layout_make(m, shapes);
    if (status == GPTS_OK) {
        m->work = GPTSI_NEW(&m->hooks, gpts_work, 1);
        if (!m->work) status = gptsi_no_memory(m->error, "the model", 1, sizeof *m->work);
    }
    if (status != GPTS_OK) {                              /* leaves a zero model with its sentence */
        memcpy(error, m->error, sizeof error);
        gpts_model_free(m);
        memcpy(m->error, error, sizeof error);
    }
    return status;
}

GPTS_API void gpts_model_free(gpts_model *m)
{
    gpts_hooks hooks;
    if (!m) return;
    hooks = m->hooks;
    if (m->ops) {
        gptsi_work_free(m); gptsi_layout_free(m);
        if (m->ops->hold) m->ops->hold(m->device, -1);
    }
    if (m->cpu) gptsi_cpu_free((gptsi_cpu *)m->cpu);
    gptsi_delete(&hooks, m->cpu); gptsi_delete(&hooks, m->work);
    memset(m, 0, sizeof *m);
}

/* n values from one device's memory to another's, through a few on the host */
static void gptsi_transfer(const gpts_ops *to_ops, void *to_device, gpts_real *to, const gpts_ops *ops, void *device, const gpts_real *from,
                           size_t n, gpts_real *buffer, size_t room)
{
    size_t at, count;
    for (at = 0; at < n; at += count) {
        count = gptsi_min(room, n - at);
        ops->download(device, buffer, from + at, count * sizeof *buffer);
        to_ops->upload(to_device, to + at, buffer, count * sizeof *buffer);
    }
}
enum { GPTSI_TRANSFER = 1 << 20 };

GPTS_API gpts_status gpts_model_move(gpts_model *m, const gpts_ops *ops, void *device)
{
    size_t n = 0, i, l;
    void *memory = NULL;
    gpts_real *buffer, *old = m->parameters;
    gpts_status status;
    if (ops == m->ops && device == m->device) return GPTS_OK;
    for (i = 0; i < m->n_tensors; i++) n = gptsi_add(n, gptsi_padded(m->tensors[i].size));
    if (!(buffer = GPTSI_NEW(&m->hooks, gpts_real, GPTSI_TRANSFER)))
        return gptsi_no_memory(m->error, "moving the model", GPTSI_TRANSFER, sizeof *buffer);
    if (ops->allocate(device, n * sizeof *old, &memory) != GPTS_OK) {
        gptsi_delete(&m->hooks, buffer);
        ops->status(device, NULL);
        return gptsi_no_memory(m->error, "the parameters on the device", n, sizeof *old);
    }
    gptsi_transfer(ops, device, (gpts_real *)memory, m->ops, m->device, old, n, buffer, GPTSI_TRANSFER);
    gptsi_delete(&m->hooks, buffer);
    status = ops->status(device, m->error);
    if (status != GPTS_OK) { ops->release(device, memory); return status; }
    gptsi_work_free(m);
    for (l = 0; l < (size_t)m->config.n_layer; l++) m->ops->forget(m->device, &m->layers[l].heads);
    m->ops->release(m->device, old);
    if (ops->hold) ops->hold(device, 1);
    if (m->ops->hold) m->ops->hold(m->device, -1);
    m->ops = ops; m->device = device; m->parameters = (gpts_real *)memory;
    for (i = 0; i < m->n_tensors; i++) m->tensors[i].data = m->parameters + (m->tensors[i].data - old);
    gptsi_layout_heads(m);
    return GPTS_OK;
}

GPTS_API gpts_status gpts_model_precision(gpts_model *m, gpts_precision precision)
{
    gpts_status status = m->ops->precision ? m->ops->precision(m->device, precision) : precision ? GPTS_UNSUPPORTED : GPTS_OK;
    if (status != GPTS_OK) return gptsi_fail(m->error, status, "precision: products in bfloat16 are for floats on the CPU");
    return GPTS_OK;
}

/* Element e of tensor number i is start * normal(seed, i, e): no order, no state. */
typedef struct gptsi_fill { gpts_real *x; uint64_t seed; double std; } gptsi_fill;
static void gptsi_fill_normal(void *arg, size_t begin, size_t end, size_t worker)
{
    const gptsi_fill *f = (const gptsi_fill *)arg;
    size_t e;
    (void)worker;
    for (e = begin; e < end; e++) {
        double u = 1.0 - gptsi_unit(gptsi_hash(f->seed, e, 1)), v = gptsi_unit(gptsi_hash(f->seed, e, 2));
        f->x[e] = (gpts_real)(f->std * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    }
}

GPTS_API gpts_status gpts_model_init_checked(gpts_model *m, const gpts_config *config, uint64_t seed,
                                             const gpts_hooks *hooks, uint32_t abi)
{
    double *start;
    size_t i;
    if (abi != GPTS_ABI) {
        memset(m->error, 0, sizeof m->error);
        return gptsi_fail(m->error, GPTS_MISMATCH, "the header included here and the implementation differ in version or GPTS_REAL");
    }
    GPTSI_TRY(gptsi_model_build(m, config, NULL, hooks));
    start = GPTSI_NEW(&m->hooks, double, m->n_tensors);
    if (!start) { gpts_model_free(m); return gptsi_no_memory(m->error, "the initial weights", m->n_tensors, sizeof *start); }
    gptsi_table_walk(m, start);
    for (i = 0; i < m->n_tensors; i++) {
        gpts_tensor *t = &m->tensors[i];
        gptsi_fill fill;
        size_t e;
        fill.x = t->data; fill.seed = gptsi_hash(seed, (uint64_t)t->kind, (uint64_t)(t->layer + 1)); fill.std = start[i];
        if (start[i] > 0) gptsi_parallel(&m->hooks, gptsi_workers(&m->hooks), t->size, gptsi_fill_normal, &fill);
        else if (start[i] < 0) for (e = 0; e < t->size; e++) t->data[e] = 1;
    }
    gptsi_delete(&m->hooks, start);
    return GPTS_OK;
}

GPTS_API gpts_tensor *gpts_model_tensor(const gpts_model *m, const char *name)
{
    size_t i;
    for (i = 0; i < m->n_tensors; i++) if (!strcmp(m->tensors[i].name, name)) return &m->tensors[i];
    return NULL;
}

/* ---- another shape for the same model ------------------------------------------------
   Freezing, pruning and installing an approximator are one act: lay the model out anew
   and carry over what both layouts have.  Columns of c_attn and rows of c_proj follow
   their head's original index; so do the optimiser's moments.                           */

/* shapes [L] that describe m as it is, each with its own kind [H]; one block */
static gptsi_layer_shape *gptsi_shapes_of(const gpts_model *m)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, l, s;
    gptsi_layer_shape *shapes = (gptsi_layer_shape *)gptsi_new(&m->hooks, gptsi_add(gptsi_mul(L, sizeof *shapes + H), sizeof *shapes), 1);
    int8_t *kind;
    if (!shapes) return NULL;
    kind = (int8_t *)(shapes + (L ? L : 1));
    for (l = 0; l < L; l++) {
        const gpts_layer *y = &m->layers[l];
        const gpts_tensor *t;
        gptsi_layer_shape *shape = &shapes[l];
        shape->kind = kind + l * H;
        shape->S = y->heads.S; shape->R = y->heads.R; shape->tails = y->heads.tail_start != NULL; shape->tail_start = y->heads.tail_start;
        shape->window = y->window; shape->hidden = y->hidden;
        if ((t = gptsi_layer_tensor(m, l, GPTS_P_ALPHA)) != NULL) shape->train_patterns = t->trainable;
        if ((t = gptsi_layer_tensor(m, l, GPTS_P_APPROX_FC_W)) != NULL) shape->train_approximator = t->trainable;
        if (y->hidden) continue;
        memset(shape->kind, GPTSI_PRUNED, H);
        for (s = 0; s < y->heads.K; s++) shape->kind[y->heads.kept[s]] = y->heads.live_slot[s] >= 0 ? GPTSI_LIVE : GPTSI_STATIC;
    }
    return shapes;
}

static int32_t gptsi_slot_of(const gpts_heads *heads, int32_t h)      /* slot of original head h, or -1 */
{
    size_t s;
    for (s = 0; s < heads->K; s++) if (heads->kept[s] == h) return (int32_t)s;
    return -1;
}

/* first column in c_attn of a head's part: 0 queries, 1 keys, 2 values; SIZE_MAX: none */
static size_t gptsi_attn_column(const gpts_heads *heads, size_t slot, int part)
{
    if (part == 2) return (2 * heads->U + slot) * heads->D;
    if (heads->live_slot[slot] < 0) return SIZE_MAX;
    return ((size_t)part * heads->U + (size_t)heads->live_slot[slot]) * heads->D;
}

/* values of tensor t (in `to`) from the same tensor of another layout (in `from`) */
static void gptsi_carry_over(const gpts_layer *new_layer, const gpts_tensor *t, gpts_real *to,
                             const gpts_layer *old_layer, const gpts_tensor *o, const gpts_real *from)
{
    const gpts_heads *a = new_layer ? &new_layer->heads : NULL, *b = old_layer ? &old_layer->heads : NULL;
    size_t D = a ? a->D : 0, s, r;
    int part;
    if (t->kind == GPTS_P_ATTN_W || t->kind == GPTS_P_ATTN_B) {
        size_t rows = t->rank == 2 ? t->rows : 1, width = t->rank == 2 ? t->columns : t->rows, old_width = o->rank == 2 ? o->columns : o->rows;
        for (s = 0; s < a->K; s++) for (part = 0; part < 3; part++) {
            int32_t other = gptsi_slot_of(b, a->kept[s]);
            size_t x = gptsi_attn_column(a, s, part), z = other < 0 ? SIZE_MAX : gptsi_attn_column(b, (size_t)other, part);
            if (x != SIZE_MAX && z != SIZE_MAX)
                for (r = 0; r < rows; r++) memcpy(to + r * width + x, from + r * old_width + z, D * sizeof *to);
        }
    } else if (t->kind == GPTS_P_ATTN_PROJ_W) {
        for (s = 0; s < a->K; s++) {
            int32_t other = gptsi_slot_of(b, a->kept[s]);
            if (other >= 0) memcpy(to + s * D * t->columns, from + (size_t)other * D * t->columns, D * t->columns * sizeof *to);
        }
    } else if (t->kind >= GPTS_P_ALPHA && t->kind <= GPTS_P_TAIL_DECAY) {
        for (s = 0; s < a->K; s++) {
            int32_t other = gptsi_slot_of(b, a->kept[s]);
            if (other >= 0 && a->static_slot[s] >= 0 && b->static_slot[other] >= 0)
                memcpy(to + (size_t)a->static_slot[s] * t->columns, from + (size_t)b->static_slot[other] * o->columns,
                       gptsi_min(t->columns, o->columns) * sizeof *to);
        }
    } else if (t->rows == o->rows && t->columns == o->columns) memcpy(to, from, t->size * sizeof *to);
}

/* the same where the values lie on m's device: whole tensors are copied there, parts go by way of the host */
static gpts_status gptsi_carry_over_there(gpts_model *m, const gpts_layer *new_layer, const gpts_tensor *t, gpts_real *to,
                                          const gpts_layer *old_layer, const gpts_tensor *o, const gpts_real *from)
{
    gpts_real *host;
    int whole = t->rows == o->rows && t->columns == o->columns && !(t->kind >= GPTS_P_ATTN_W && t->kind <= GPTS_P_TAIL_DECAY);
    if (!m->ops->queued) { gptsi_carry_over(new_layer, t, to, old_layer, o, from); return GPTS_OK; }
    if (whole) { m->ops->copy(m->device, to, from, t->size * sizeof *to); return GPTS_OK; }
    if (!(host = GPTSI_NEW(&m->hooks, gpts_real, gptsi_add(t->size, o->size))))
        return gptsi_no_memory(m->error, t->name, gptsi_add(t->size, o->size), sizeof *host);
    m->ops->download(m->device, host + t->size, from, o->size * sizeof *host);
    gptsi_carry_over(new_layer, t, host, old_layer, o, host + t->size);
    m->ops->upload(m->device, to, host, t->size * sizeof *host);
    gptsi_delete(&m->hooks, host);
    return GPTS_OK;
}

/* The model, and its trainer if given, get the shapes; on failure nothing has changed. */
static gpts_status gptsi_model_reshape(gpts_model *m, gpts_trainer *trainer, const gptsi_layer_shape *shapes)
{
    gpts_model next = *m;
    gpts_trainer moved;
    gpts_status status;
    size_t i;
    next.layers = NULL; next.tensors = NULL; next.parameters = NULL; next.n_tensors = next.n_parameters = 0;
    memset(&moved, 0, sizeof moved);
    if (trainer) {
        GPTSI_TRY(gptsi_trainer_follow(trainer));
        GPTSI_TRY(gptsi_trainer_gather(trainer));
    }
    status = gptsi_layout_make(&next, shapes);
    if (status == GPTS_OK && trainer) {
        moved = *trainer;
        status = gptsi_trainer_blocks(&moved, &next);
    }
    for (i = 0; i < next.n_tensors && status == GPTS_OK; i++) {
        gpts_tensor *t = &next.tensors[i];
        const gpts_tensor *o = gpts_model_tensor(m, t->name);
        const gpts_layer *a = t->layer < 0 ? NULL : &next.layers[t->layer], *b = t->layer < 0 ? NULL : &m->layers[t->layer];
        size_t old = o ? (size_t)(o - m->tensors) : 0;
        if (!o) continue;
        status = gptsi_carry_over_there(&next, a, t, t->data, b, o, o->data);
        if (status == GPTS_OK && trainer && moved.offset[i] != SIZE_MAX && trainer->offset[old] != SIZE_MAX) {
            status = gptsi_carry_over_there(&next, a, t, moved.moment1 + moved.offset[i], b, o, trainer->moment1 + trainer->offset[old]);
            if (status == GPTS_OK)
                status = gptsi_carry_over_there(&next, a, t, moved.moment2 + moved.offset[i], b, o, trainer->moment2 + trainer->offset[old]);
        }
    }
    if (trainer) status = gptsi_ranks_agree(&trainer->ranks, status, &m->hooks, next.error);
    if (status != GPTS_OK) {
        memcpy(m->error, next.error, sizeof m->error);
        if (trainer) { gptsi_trainer_release(&moved); gptsi_trainer_share(trainer); memcpy(trainer->error, m->error, sizeof trainer->error); }
        gptsi_layout_free(&next);
        return status;
    }
    if (trainer) { gptsi_trainer_release(trainer); *trainer = moved; trainer->model = m; gptsi_trainer_share(trainer); }
    gptsi_work_free(m);
    gptsi_layout_free(m);
    m->layers = next.layers; m->tensors = next.tensors; m->parameters = next.parameters;
    m->n_tensors = next.n_tensors; m->n_parameters = next.n_parameters;
    return GPTS_OK;
}

/* ---- forward ---------------------------------------------------------------------------
   x = E1(tokens);  for each layer:
     x = x + D1( c_proj( attention( c_attn( norm(x) ) ) ) )     or the approximator
     x = x + D1( c_proj( g( c_fc( norm(x) ) ) ) )               unless there is no MLP
   logits = norm(x) W^T, W = wte or lm_head                                                */

typedef struct gptsi_run {
    int keep;                                 /* keep what backward needs                   */
    int last;                                 /* of an update: finished gradients go to their owners at once */
    gpts_dropout drop;                        /* rate 0: none                               */
    size_t stop;                              /* end after this layer's attention sublayer; SIZE_MAX: never */
    gpts_session *session;                    /* fill its caches, or NULL                   */
    const int32_t *step;                      /* [B] decode: one token a row after the cache; NULL: prefill */
    int part;                                 /* of GPTSI_RUN_                              */
} gptsi_run;
enum { GPTSI_RUN_WHOLE, GPTSI_RUN_READY, GPTSI_RUN_QUEUE };    /* all; only checks and uploads; only what comes after */

static gpts_dropout gptsi_drop(const gpts_dropout *drop, size_t layer, uint32_t site)
{
    gpts_dropout d = *drop;
    d.layer = (uint32_t)layer; d.site = site;
    return d;
}
enum { GPTSI_SITE_EMBEDDING, GPTSI_SITE_ATTENTION, GPTSI_SITE_MLP };

static double gptsi_score_scale(const gpts_model *m)
{
    return m->config.unscaled_scores ? 1.0 : 1.0 / sqrt((double)(m->config.n_embd / m->config.n_head));
}
static double gptsi_theta(const gpts_model *m) { return m->config.position == GPTS_POSITION_ROPE ? m->config.rope_theta : 0; }

/* ids inside the rows' intervals are checked and put on the device; outside, and in rows
   that rest while others decode, tokens become 0 and targets -1 */
static gpts_status gptsi_batch_upload(gpts_model *m, const gpts_batch *batch, int decode)
{
    gpts_work *w = m->work;
    size_t B = batch->B, T = batch->T, b, t;
    int pass;
    for (pass = 0; pass < 2; pass++) {
        const int32_t *from = pass ? batch->targets : batch->tokens;
        if (!from) continue;
        for (b = 0; b < B; b++) {
            size_t first = batch->first ? (size_t)batch->first[b] : 0, end = batch->length ? first + (size_t)batch->length[b] : T;
            for (t = 0; t < T; t++) {
                int32_t id = from[b * T + t];
                int inside = t >= first && t < end && !(decode && id < 0);
                if (inside && (id >= m->config.vocab_size || (id < 0 && !pass)))
                    return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "%s %ld at row %llu, position %llu is outside 0 .. %lld",
                                      pass ? "target" : "token",
                                      (long)id, (unsigned long long)b, (unsigned long long)t, (long long)m->config.vocab_size - 1);
                w->host[b * T + t] = inside ? id : pass ? -1 : 0;
            }
        }
        m->ops->upload(m->device, pass ? w->targets : w->tokens, w->host, B * T * sizeof *w->host);
    }
    if (batch->first) m->ops->upload(m->device, w->first, batch->first, B * sizeof(int32_t));
    if (batch->length) m->ops->upload(m->device, w->length, batch->length, B * sizeof(int32_t));
    return GPTS_OK;
}

static gpts_status gptsi_batch_check(gpts_model *m, const gpts_batch *batch)
{
    size_t B = batch->B, T = batch->T, b, l, longest = 0, reach = 0;
    if (!batch->tokens || !B || !T || gptsi_mul(B, T) > SIZE_MAX / 4096 || T > INT32_MAX || B > INT32_MAX)
        return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "a batch needs tokens, and B and T of 1 or more (got %llu x %llu)",
                          (unsigned long long)B, (unsigned long long)T);
    for (b = 0; b < B; b++) {
        int32_t first = batch->first ? batch->first[b] : 0, length = batch->length ? batch->length[b] : (int32_t)T - first;
        if (first < 0 || length < 0 || (size_t)first > T || (size_t)length > T - (size_t)first)
            return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "row %llu: %ld tokens from position %ld do not lie in 0 .. %llu",
                              (unsigned long long)b, (long)length, (long)first, (unsigned long long)T);
        longest = gptsi_max(longest, (size_t)length);
        reach = gptsi_max(reach, T - (size_t)first);
    }
    if (m->config.position == GPTS_POSITION_LEARNED && reach > (size_t)m->config.n_positions)
        return gptsi_fail(m->error, GPTS_TOO_LONG, "%llu positions asked for, but the model has %lld learned ones",
                          (unsigned long long)reach, (long long)m->config.n_positions);
    for (l = 0; l < (size_t)m->config.n_layer; l++)
        if (m->layers[l].heads.K) GPTSI_TRY(m->ops->prepare(m->device, &m->layers[l].heads, longest, m->error));
    return GPTS_OK;
}

/* nothing where there is no norm: the buffers are one then */
static void gptsi_norm_or_alias(gpts_model *m, void *y, gpts_real *statistics, const void *x, const gpts_tensor *w, const gpts_tensor *bias, size_t N)
{
    if (w)
        m->ops->norm_forward(m->device, y, statistics, x, w->data, bias ? bias->data : NULL, N, (size_t)m->config.n_embd,
                             m->config.layer_norm_epsilon);
}
static gpts_tensor *gptsi_final_norm(const gpts_model *m, int bias)         /* ln_f.weight or .bias, or NULL */
{
    return gpts_model_tensor(m, bias ? "ln_f.bias" : "ln_f.weight");
}
static gpts_tensor *gptsi_output_matrix(const gpts_model *m)
{
    return m->config.tie_word_embeddings ? &m->tensors[0] : &m->tensors[m->n_tensors - 1];
}

/* A norm to be taken of the residual stream: y =, statistics =; w NULL: none (y is the stream itself). */
typedef struct gptsi_norm { void *y; gpts_real *statistics; const gpts_tensor *w, *bias; } gptsi_norm;
static gptsi_norm gptsi_norm_at(gpts_model *m, size_t l, int second)      /* of layer l: ln_1 or ln_2; past the last one: ln_f */
{
    gpts_work *w = m->work;
    gptsi_norm norm;
    memset(&norm, 0, sizeof norm);
    if (l == (size_t)m->config.n_layer) {
        norm.y = w->norm; norm.statistics = w->statistics;
        norm.w = gptsi_final_norm(m, 0); norm.bias = gptsi_final_norm(m, 1);
        return norm;
    }
    norm.y = second ? w->layers[l].norm2 : w->layers[l].norm1;
    norm.statistics = second ? w->layers[l].statistics2 : w->layers[l].statistics1;
    norm.w = gptsi_layer_tensor(m, l, second ? GPTS_P_LN_2_W : GPTS_P_LN_1_W);
    norm.bias = gptsi_layer_tensor(m, l, second ? GPTS_P_LN_2_B : GPTS_P_LN_1_B);
    return norm;
}
/* sum = x + branch, dropped out; then the norm that follows */
static void gptsi_residual_forward(gpts_model *m, void *sum, const void *x, size_t N, const gpts_dropout *drop, const gptsi_norm *norm)
{
    size_t C = (size_t)m->config.n_embd;
    if (norm->w && m->ops->add_norm_forward && !(drop->rate > 0))
        m->ops->add_norm_forward(m->device, sum, norm->y, norm->statistics, x, m->work->branch, norm->w->data, norm->bias ? norm->bias->data : NULL,
                                 N, C, m->config.layer_norm_epsilon);
    else {
        m->ops->add_forward(m->device, sum, x, m->work->branch, N * C, drop);
        gptsi_norm_or_alias(m, norm->y, norm->statistics, sum, norm->w, norm->bias, N);
    }
}

/* A prefill asks for the last tokens' logits alone: from its last layer's heads on, these rows are all there is.
   x [B,T,row] -> its rows at length[b]-1 come first, one after the other. */
static int gptsi_keeps_last(const gpts_model *m, size_t l, const gptsi_run *run)
{
    return run->session && !run->step && l + 1 == (size_t)m->config.n_layer;
}
static void gptsi_last_rows(gpts_model *m, unsigned char *x, const gpts_batch *batch, size_t row)
{
    size_t b;
    row *= m->ops->activation_bytes;
    for (b = 0; b < batch->B; b++) m->ops->copy(m->device, x + b * row, x + (b * batch->T + (size_t)batch->length[b] - 1) * row, row);
}

/* whether positions past a row's end are there to be masked */
static int gptsi_ends_early(const gpts_batch *batch)
{
    size_t b;
    for (b = 0; batch->length && b < batch->B; b++)
        if ((size_t)batch->length[b] + (batch->first ? (size_t)batch->first[b] : 0) < batch->T) return 1;
    return 0;
}

/* one layer's attention sublayer after its norm: w->branch = what is added to the residual */
static void gptsi_sublayer_forward(gpts_model *m, size_t l, const gpts_batch *batch, const gptsi_run *run)
{
    const gpts_ops *op = m->ops;
    gpts_work *w = m->work;
    gptsi_layer_work *y = &w->layers[l];
    gpts_layer *layer = &m->layers[l];
    size_t N = batch->B * batch->T, C = (size_t)m->config.n_embd, D = layer->heads.D, K = layer->heads.K, U = layer->heads.U;
    const int32_t *first = batch->first ? w->first : NULL, *length = gptsi_ends_early(batch) ? w->length : NULL;
    if (layer->hidden) {                                                                             /* (Q1) */
        if (layer->window > 1 && run->step) gptsi_session_shift_window(run->session, l, y->window, y->norm1, run->step);
        else if (layer->window > 1) op->window_forward(m->device, y->window, y->norm1, first, batch->B, batch->T, C, layer->window);
        if (run->session && !run->step && layer->window > 1) gptsi_session_keep_window(run->session, l, y->window, batch);
        if (gptsi_keeps_last(m, l, run)) {
            gptsi_last_rows(m, y->window, batch, layer->window * C);
            if (y->x != y->window) gptsi_last_rows(m, y->x, batch, C);
            N = batch->B;
        }
        op->linear_forward(m->device, y->hidden, y->window, gptsi_weight(m, l, GPTS_P_APPROX_FC_W),
                           gptsi_weight(m, l, GPTS_P_APPROX_FC_B), N, layer->window * C, layer->hidden);
        op->activation_forward(m->device, w->act, y->hidden, N * layer->hidden, m->config.approx_activation);
        op->linear_forward(m->device, w->branch, w->act, gptsi_weight(m, l, GPTS_P_APPROX_PROJ_W),
                           gptsi_weight(m, l, GPTS_P_APPROX_PROJ_B), N, layer->hidden, C);
        return;
    }
    op->linear_forward(m->device, y->qkv, y->norm1, gptsi_weight(m, l, GPTS_P_ATTN_W), gptsi_weight(m, l, GPTS_P_ATTN_B), N, C, (2 * U + K) * D);
    if (run->step)
        op->attention_decode(m->device, &layer->heads, &run->session->caches[l], y->heads, y->qkv, w->length, gptsi_score_scale(m), gptsi_theta(m));
    else op->attention_forward(m->device, &layer->heads, y->heads, y->lse, y->qkv, first, length, batch->B, batch->T,
                               gptsi_score_scale(m), gptsi_theta(m));
    if (run->session && !run->step) op->cache_fill(m->device, &layer->heads, &run->session->caches[l], y->qkv, w->length, batch->T);
    if (gptsi_keeps_last(m, l, run)) {
        gptsi_last_rows(m, y->heads, batch, K * D);
        gptsi_last_rows(m, y->x, batch, C);
        N = batch->B;
    }
    op->linear_forward(m->device, w->branch, y->heads, gptsi_weight(m, l, GPTS_P_ATTN_PROJ_W), gptsi_weight(m, l, GPTS_P_ATTN_PROJ_B), N, K * D, C);
}

static gpts_status gptsi_together(gpts_model *m, gptsi_act act, void *arg)
{
    return m->ops->together ? m->ops->together(m->device, act, arg) : act(arg);
}

typedef struct gptsi_forwarding { gpts_model *m; const gpts_batch *batch; const gptsi_run *run; } gptsi_forwarding;
static gpts_status gptsi_forward_act(void *arg)
{
    const gptsi_forwarding *k = (const gptsi_forwarding *)arg;
    gpts_model *m = k->m;
    const gpts_batch *batch = k->batch;
    const gptsi_run *run = k->run;
    const gpts_ops *op = m->ops;
    size_t L = (size_t)m->config.n_layer, C = (size_t)m->config.n_embd, F = gptsi_inner(&m->config), N = gptsi_mul(batch->B, batch->T), l;
    gpts_work *w = m->work;
    gptsi_norm norm;
    gpts_dropout drop;
    unsigned char *x;
    if (run->part != GPTSI_RUN_QUEUE) {
        if (!run->step) GPTSI_TRY(gptsi_batch_check(m, batch));
        GPTSI_TRY(gptsi_work_ready(m, batch->B, batch->T, run->keep));
        GPTSI_TRY(gptsi_batch_upload(m, batch, run->step != NULL));
        if (run->step) gptsi_step_upload(run->session, run->step);
        if (run->part == GPTSI_RUN_READY) return GPTS_OK;
    }
    x = L ? w->layers[0].x : w->x;
    op->embed_forward(m->device, x, w->tokens, batch->first || run->step ? w->first : NULL, m->tensors[0].data,
                      m->config.position == GPTS_POSITION_LEARNED ? m->tensors[1].data : NULL, batch->B, batch->T, C);
    drop = gptsi_drop(&run->drop, L, GPTSI_SITE_EMBEDDING);
    if (drop.rate > 0) op->add_forward(m->device, x, NULL, x, N * C, &drop);
    norm = gptsi_norm_at(m, 0, 0);
    gptsi_norm_or_alias(m, norm.y, norm.statistics, x, norm.w, norm.bias, N);
    for (l = 0; l < L; l++) {
        gptsi_layer_work *y = &w->layers[l];
        unsigned char *out = l + 1 < L ? w->layers[l + 1].x : w->x, *middle = F ? y->middle : out;
        gptsi_sublayer_forward(m, l, batch, run);
        if (l == run->stop) return op->status(m->device, m->error);
        if (gptsi_keeps_last(m, l, run)) N = batch->B;
        drop = gptsi_drop(&run->drop, l, GPTSI_SITE_ATTENTION);
        norm = gptsi_norm_at(m, F ? l : l + 1, F > 0);
        gptsi_residual_forward(m, middle, y->x, N, &drop, &norm);
        if (!F) continue;
        op->linear_forward(m->device, y->inner, y->norm2, gptsi_weight(m, l, GPTS_P_MLP_FC_W), gptsi_weight(m, l, GPTS_P_MLP_FC_B), N, C, F);
        op->activation_forward(m->device, w->act, y->inner, N * F, m->config.activation);
        op->linear_forward(m->device, w->branch, w->act, gptsi_weight(m, l, GPTS_P_MLP_PROJ_W), gptsi_weight(m, l, GPTS_P_MLP_PROJ_B), N, F, C);
        drop = gptsi_drop(&run->drop, l, GPTSI_SITE_MLP);
        norm = gptsi_norm_at(m, l + 1, 0);
        gptsi_residual_forward(m, out, middle, N, &drop, &norm);
    }
    return op->status(m->device, m->error);
}
static gpts_status gptsi_forward(gpts_model *m, const gpts_batch *batch, const gptsi_run *run)
{
    gptsi_forwarding k;
    k.m = m; k.batch = batch; k.run = run;
    return gptsi_together(m, gptsi_forward_act, &k);
}

/* how many targets count: inside the row's interval and 0 or more */
static uint64_t gptsi_count_targets(const gpts_batch *batch)
{
    uint64_t n = 0;
    size_t b, t;
    if (batch->targets) for (b = 0; b < batch->B; b++) {
        size_t first = batch->first ? (size_t)batch->first[b] : 0, end = batch->length ? first + (size_t)batch->length[b] : batch->T;
        for (t = first; t < end; t++) n += batch->targets[b * batch->T + t] >= 0;
    }
    return n;
}

typedef struct gptsi_reading { gpts_model *m; const gpts_batch *batch; gpts_real *logits; double *loss; int32_t *likeliest; } gptsi_reading;
static gpts_status gptsi_reading_act(void *arg)
{
    const gptsi_reading *k = (const gptsi_reading *)arg;
    gpts_model *m = k->m;
    const gpts_batch *batch = k->batch;
    gpts_real *logits = k->logits;
    double *loss = k->loss;
    gptsi_run run;
    gpts_work *w = m->work;
    size_t N = gptsi_mul(batch->B, batch->T), C = (size_t)m->config.n_embd, V = (size_t)m->config.vocab_size, n, rows, i;
    const gpts_tensor *out;
    memset(&run, 0, sizeof run);
    run.stop = SIZE_MAX;
    GPTSI_TRY(gptsi_forward(m, batch, &run));
    out = gptsi_output_matrix(m);
    if (logits || k->likeliest) for (n = 0; n < N; n += rows) {
        rows = gptsi_min(N - n, w->logits_rows);
        m->ops->logits(m->device, w->logits, w->norm + n * C * m->ops->activation_bytes, out->data, rows, C, V);       /* (X1) */
        if (logits) m->ops->download(m->device, logits + n * V, w->logits, rows * V * sizeof *logits);
        else if (m->ops->likeliest) m->ops->likeliest(m->device, w->targets + n, w->logits, rows, V);
        else for (i = 0; i < rows; i++) k->likeliest[n + i] = gpts_sample(w->logits + i * V, V, NULL, NULL);
    }
    if (k->likeliest && m->ops->likeliest) m->ops->download(m->device, k->likeliest, w->targets, N * sizeof *k->likeliest);
    if (loss) {
        uint64_t count = gptsi_count_targets(batch);
        double sum = 0;
        if (count) {
            m->ops->loss(m->device, w->sum, NULL, NULL, w->norm, out->data, w->targets, N, C, V);                      /* (X2) */
            m->ops->download(m->device, &sum, w->sum, sizeof sum);
        }
        *loss = count ? sum / (double)count : 0;
    }
    return m->ops->status(m->device, m->error);
}
GPTS_API gpts_status gpts_model_forward(gpts_model *m, const gpts_batch *batch, gpts_real *logits, double *loss)
{
    gptsi_reading k;
    k.m = m; k.batch = batch; k.logits = logits; k.loss = loss; k.likeliest = NULL;
    return gptsi_together(m, gptsi_reading_act, &k);
}
GPTS_API gpts_status gpts_model_likeliest(gpts_model *m, const gpts_batch *batch, int32_t *ids)
{
    gptsi_reading k;
    k.m = m; k.batch = batch; k.logits = NULL; k.loss = NULL; k.likeliest = ids;
    return gptsi_together(m, gptsi_reading_act, &k);
}

/* n activations from wherever they are, in whatever they are: reals, or bfloat16 */
static gpts_status gptsi_activations_read(gpts_model *m, gpts_real *to, const void *from, size_t n)
{
    unsigned char *raw;
    size_t i;
    if (m->ops->activation_bytes == sizeof *to) { m->ops->download(m->device, to, from, n * sizeof *to); return GPTS_OK; }
    if (!(raw = GPTSI_NEW(&m->hooks, unsigned char, gptsi_mul(n, 2)))) return gptsi_no_memory(m->error, "activations", n, 2);
    m->ops->download(m->device, raw, from, n * 2);
    for (i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)raw[2 * i] << 16 | (uint32_t)raw[2 * i + 1] << 24;
        float x;
        memcpy(&x, &bits, sizeof x);
        to[i] = (gpts_real)x;
    }
    gptsi_delete(&m->hooks, raw);
    return GPTS_OK;
}

GPTS_API gpts_status gpts_model_record(gpts_model *m, const gpts_batch *batch, size_t layer, gpts_real *x, gpts_real *y)
{
    gptsi_run run;
    size_t n = gptsi_mul(batch->B, gptsi_mul(batch->T, (size_t)m->config.n_embd));
    memset(&run, 0, sizeof run);
    run.stop = layer;
    if (layer >= (size_t)m->config.n_layer)
        return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "layer %llu of a model with %lld layers (counted from 0)",
                          (unsigned long long)layer, (long long)m->config.n_layer);
    GPTSI_TRY(gptsi_forward(m, batch, &run));
    GPTSI_TRY(gptsi_activations_read(m, x, m->work->layers[layer].norm1, n));
    GPTSI_TRY(gptsi_activations_read(m, y, m->work->branch, n));
    return m->ops->status(m->device, m->error);
}

/* ---- backward: forward's lines, mirrored ------------------------------------------------
   dx is the gradient of the residual stream; every sublayer adds its own to it.            */

typedef struct gptsi_back { gpts_model *m; gpts_trainer *t; const gpts_batch *batch; const gptsi_run *run; } gptsi_back;

static gpts_real *gptsi_layer_gradient(const gptsi_back *k, size_t l, gpts_parameter kind)
{
    const gpts_tensor *t = gptsi_layer_tensor(k->m, l, kind);
    return t ? gpts_trainer_gradient(k->t, t) : NULL;
}

/* dx += through the norm, or dx += dnorm where there is none */
static void gptsi_norm_or_add_backward(const gptsi_back *k, void *dx, const void *dnorm, const void *x, const gpts_tensor *w,
                                       const gpts_tensor *bias, const gpts_real *statistics)
{
    gpts_model *m = k->m;
    size_t N = k->batch->B * k->batch->T, C = (size_t)m->config.n_embd;
    gpts_dropout none;
    memset(&none, 0, sizeof none);
    if (w)
        m->ops->norm_backward(m->device, dx, gpts_trainer_gradient(k->t, w), bias ? gpts_trainer_gradient(k->t, bias) : NULL, dnorm,
                              x, w->data, statistics, N, C);
    else m->ops->add_forward(m->device, dx, dx, dnorm, N * C, &none);
}

/* dbranch = gradient of what a sublayer added: (D2), or dx itself without dropout */
static const void *gptsi_branch_gradient(const gptsi_back *k, size_t l, uint32_t site)
{
    gpts_work *w = k->m->work;
    gpts_dropout drop = gptsi_drop(&k->run->drop, l, site);
    if (!(drop.rate > 0)) return w->dx;
    k->m->ops->add_backward(k->m->device, w->dbranch, w->dx, k->batch->B * k->batch->T * (size_t)k->m->config.n_embd, &drop);
    return w->dbranch;
}

/* forward was: branch = c_proj(g(inner)), [N,in] -> [N,C]; dinner =, the projection's gradients +=.  inner is not needed after this. */
static void gptsi_activated_backward(const gptsi_back *k, size_t l, void *dinner, const void *dbranch, void *inner, size_t in,
                                     gpts_parameter projection, gpts_activation kind)
{
    gpts_model *m = k->m;
    const gpts_ops *op = m->ops;
    size_t N = k->batch->B * k->batch->T, C = (size_t)m->config.n_embd;
    gpts_real *dw = gptsi_layer_gradient(k, l, projection), *dbias = gptsi_layer_gradient(k, l, (gpts_parameter)(projection + 1));
    const gpts_real *weight = gptsi_weight(m, l, projection);
    if (op->activation_exchange) {
        op->linear_backward(m->device, dinner, NULL, NULL, dbranch, inner, weight, N, in, C);
        op->activation_exchange(m->device, dinner, dinner, inner, N * in, kind);
        if (dw || dbias) op->linear_backward(m->device, NULL, dw, dbias, dbranch, inner, weight, N, in, C);
    } else {
        op->activation_forward(m->device, m->work->act, inner, N * in, kind);
        op->linear_backward(m->device, dinner, dw, dbias, dbranch, m->work->act, weight, N, in, C);
        op->activation_backward(m->device, dinner, dinner, inner, N * in, kind);
    }
}

static void gptsi_sublayer_backward(const gptsi_back *k, size_t l)
{
    gpts_model *m = k->m;
    const gpts_ops *op = m->ops;
    const gpts_batch *batch = k->batch;
    gpts_work *w = m->work;
    gptsi_layer_work *y = &w->layers[l];
    gpts_layer *layer = &m->layers[l];
    size_t N = batch->B * batch->T, C = (size_t)m->config.n_embd, D = layer->heads.D, K = layer->heads.K, U = layer->heads.U;
    const int32_t *first = batch->first ? w->first : NULL, *length = batch->length ? w->length : NULL;
    const void *dbranch = gptsi_branch_gradient(k, l, GPTSI_SITE_ATTENTION);
    if (layer->hidden) {
        size_t kC = layer->window * C;
        /* forward was: branch = c_proj(g(c_fc(window(norm1))))                              (Q1) */
        gptsi_activated_backward(k, l, w->dheads, dbranch, y->hidden, layer->hidden, GPTS_P_APPROX_PROJ_W, m->config.approx_activation);
        op->linear_backward(m->device, layer->window > 1 ? w->dwide : w->dnorm, gptsi_layer_gradient(k, l, GPTS_P_APPROX_FC_W),
                            gptsi_layer_gradient(k, l, GPTS_P_APPROX_FC_B), w->dheads, y->window,
                            gptsi_weight(m, l, GPTS_P_APPROX_FC_W), N, kC, layer->hidden);
        if (layer->window > 1) {
            op->zero(m->device, w->dnorm, N * C * op->activation_bytes);
            op->window_backward(m->device, w->dnorm, w->dwide, first, batch->B, batch->T, C, layer->window);
        }
    } else {
        /* forward was: branch = c_proj(attention(c_attn(norm1)))                       (L1) (M1) */
        op->linear_backward(m->device, w->dheads, gptsi_layer_gradient(k, l, GPTS_P_ATTN_PROJ_W), gptsi_layer_gradient(k, l, GPTS_P_ATTN_PROJ_B),
                            dbranch, y->heads, gptsi_weight(m, l, GPTS_P_ATTN_PROJ_W), N, K * D, C);
        op->attention_backward(m->device, &layer->heads, w->dwide, w->dheads, y->heads, y->lse, y->qkv, first, length, batch->B, batch->T,
                               gptsi_score_scale(m), gptsi_theta(m), gptsi_layer_gradient(k, l, GPTS_P_ALPHA), gptsi_layer_gradient(k, l, GPTS_P_RHO),
                               gptsi_layer_gradient(k, l, GPTS_P_TAIL_COEF), gptsi_layer_gradient(k, l, GPTS_P_TAIL_DECAY));
        op->linear_backward(m->device, w->dnorm, gptsi_layer_gradient(k, l, GPTS_P_ATTN_W), gptsi_layer_gradient(k, l, GPTS_P_ATTN_B),
                            w->dwide, y->norm1, gptsi_weight(m, l, GPTS_P_ATTN_W), N, C, (2 * U + K) * D);
    }
    gptsi_norm_or_add_backward(k, w->dx, w->dnorm, y->x, gptsi_layer_tensor(m, l, GPTS_P_LN_1_W),
                               gptsi_layer_tensor(m, l, GPTS_P_LN_1_B), y->statistics1);
}

/* after gptsi_forward with keep: adds the gradients of the sum of losses; the sum itself to *sum, on the device */
static void gptsi_backward(gpts_trainer *t, const gpts_batch *batch, const gptsi_run *run, double *sum)
{
    gpts_model *m = t->model;
    const gpts_ops *op = m->ops;
    gpts_work *w = m->work;
    size_t N = batch->B * batch->T, C = (size_t)m->config.n_embd, F = gptsi_inner(&m->config), V = (size_t)m->config.vocab_size,
        L = (size_t)m->config.n_layer, l;
    const gpts_tensor *out = gptsi_output_matrix(m), *norm = gptsi_final_norm(m, 0);
    gptsi_back k;
    gpts_dropout drop;
    k.m = m; k.t = t; k.batch = batch; k.run = run;
    if (norm) {
        op->loss(m->device, sum, w->dnorm, gpts_trainer_gradient(t, out), w->norm, out->data, w->targets, N, C, V);      /* (X3) */
        op->zero(m->device, w->dx, N * C * op->activation_bytes);
        gptsi_norm_or_add_backward(&k, w->dx, w->dnorm, w->x, norm, gptsi_final_norm(m, 1), w->statistics);
    } else op->loss(m->device, sum, w->dx, gpts_trainer_gradient(t, out), w->norm, out->data, w->targets, N, C, V);
    if (run->last) gptsi_trainer_hand_over(t, (int32_t)L);
    for (l = L; l-- > 0;) {
        gptsi_layer_work *y = &w->layers[l];
        if (F) {
            /* forward was: branch = c_proj(g(c_fc(norm2)))                                   (L1) (G1) */
            const void *dbranch = gptsi_branch_gradient(&k, l, GPTSI_SITE_MLP);
            gptsi_activated_backward(&k, l, w->dwide, dbranch, y->inner, F, GPTS_P_MLP_PROJ_W, m->config.activation);
            op->linear_backward(m->device, w->dnorm, gptsi_layer_gradient(&k, l, GPTS_P_MLP_FC_W), gptsi_layer_gradient(&k, l, GPTS_P_MLP_FC_B),
                                w->dwide, y->norm2, gptsi_weight(m, l, GPTS_P_MLP_FC_W), N, C, F);
            gptsi_norm_or_add_backward(&k, w->dx, w->dnorm, y->middle, gptsi_layer_tensor(m, l, GPTS_P_LN_2_W),
                                       gptsi_layer_tensor(m, l, GPTS_P_LN_2_B), y->statistics2);
        }
        gptsi_sublayer_backward(&k, l);
        if (run->last) gptsi_trainer_hand_over(t, (int32_t)l);
    }
    drop = gptsi_drop(&run->drop, L, GPTSI_SITE_EMBEDDING);
    if (drop.rate > 0) op->add_backward(m->device, w->dx, w->dx, N * C, &drop);
    op->embed_backward(m->device, gpts_trainer_gradient(t, &m->tensors[0]),
                       m->config.position == GPTS_POSITION_LEARNED ? gpts_trainer_gradient(t, &m->tensors[1]) : NULL,
                       w->tokens, batch->first ? w->first : NULL, w->dx, batch->B, batch->T, C, V);
    if (run->last) gptsi_trainer_hand_over(t, -1);
}

/* ==============================================================================
   @@TRAIN  AdamW, clipping, schedule, data windows
   ============================================================================== */

GPTS_API gpts_train_options gpts_train_options_default(void)
{
    gpts_train_options o;
    memset(&o, 0, sizeof o);
    o.learning_rate = 6e-4; o.min_learning_rate = 6e-5;
    o.beta1 = 0.9; o.beta2 = 0.95; o.epsilon = 1e-8; o.weight_decay = 0.1; o.clip = 1.0;
    return o;
}

enum { GPTSI_PENDING = 64 };

static void gptsi_trainer_release(gpts_trainer *t)
{
    if (t->gradients) t->ops->release(t->device, t->gradients);
    if (t->moment1) t->ops->release(t->device, t->moment1);
    if (t->moment2) t->ops->release(t->device, t->moment2);
    if (t->pending) t->ops->release(t->device, t->pending);
    if (t->ops && t->ops->hold) t->ops->hold(t->device, -1);
    if (t->model) gptsi_delete(&t->model->hooks, t->offset);
    t->gradients = t->moment1 = t->moment2 = NULL; t->pending = NULL; t->offset = NULL; t->updates = NULL; t->ops = NULL;
    t->n_trainable = t->n_block = t->first_moment = t->n_moments = 0;
}

/* t gets blocks of its own where m is: gradients and moments, zero, for m's trainable tensors */
static gpts_status gptsi_trainer_blocks(gpts_trainer *t, gpts_model *m)
{
    gpts_real **block[3];
    void *memory = NULL;
    size_t i, total = 0;
    t->gradients = t->moment1 = t->moment2 = NULL; t->pending = NULL; t->updates = NULL; t->n_trainable = 0;
    t->ops = m->ops; t->device = m->device;
    if (t->ops->hold) t->ops->hold(t->device, 1);
    block[0] = &t->gradients; block[1] = &t->moment1; block[2] = &t->moment2;
    t->offset = (size_t *)gptsi_new(&m->hooks, m->n_tensors, sizeof(size_t) + sizeof(gpts_update));
    if (!t->offset) return gptsi_no_memory(m->error, "the trainer", m->n_tensors, sizeof(size_t) + sizeof(gpts_update));
    t->updates = (gpts_update *)(void *)(t->offset + m->n_tensors);
    for (i = 0; i < m->n_tensors; i++) {
        t->offset[i] = m->tensors[i].trainable ? total : SIZE_MAX;
        if (!m->tensors[i].trainable) continue;
        total = gptsi_add(total, gptsi_padded(m->tensors[i].size));
        t->n_trainable += m->tensors[i].size;
    }
    t->n_block = t->n_moments = total;
    t->first_moment = 0;
    for (i = 0; i < 3; i++) {
        if (gptsi_mul(total, sizeof(gpts_real)) == SIZE_MAX || m->ops->allocate(m->device, total * sizeof(gpts_real), &memory) != GPTS_OK)
            return gptsi_no_memory(m->error, "gradients and moments", total, sizeof(gpts_real));
        *block[i] = (gpts_real *)memory;
        m->ops->zero(m->device, memory, total * sizeof(gpts_real));
    }
    if (m->ops->allocate(m->device, GPTSI_PENDING * sizeof(double), &memory) != GPTS_OK)
        return gptsi_no_memory(m->error, "the trainer", GPTSI_PENDING, sizeof(double));
    t->pending = (double *)memory;
    return GPTS_OK;
}

/* the blocks are where the model is, though it moved */
static gpts_status gptsi_trainer_follow(gpts_trainer *t)
{
    gpts_model *m = t->model;
    gpts_trainer moved = *t;
    gpts_real *buffer;
    gpts_status status;
    if (t->ops == m->ops && t->device == m->device) return GPTS_OK;
    if (!(buffer = GPTSI_NEW(&m->hooks, gpts_real, GPTSI_TRANSFER)))
        status = gptsi_no_memory(m->error, "moving the trainer", GPTSI_TRANSFER, sizeof *buffer);
    else status = gptsi_trainer_blocks(&moved, m);
    if (status == GPTS_OK) {
        gptsi_transfer(m->ops, m->device, moved.gradients, t->ops, t->device, t->gradients, t->n_block, buffer, GPTSI_TRANSFER);
        gptsi_transfer(m->ops, m->device, moved.moment1 + t->first_moment, t->ops, t->device, t->moment1, t->n_moments, buffer, GPTSI_TRANSFER);
        gptsi_transfer(m->ops, m->device, moved.moment2 + t->first_moment, t->ops, t->device, t->moment2, t->n_moments, buffer, GPTSI_TRANSFER);
        status = m->ops->status(m->device, m->error);
    }
    if (status != GPTS_OK) { if (buffer) gptsi_trainer_release(&moved); memcpy(t->error, m->error, sizeof t->error); }
    else { gptsi_trainer_release(t); *t = moved; gptsi_trainer_share(t); }
    gptsi_delete(&m->hooks, buffer);
    return status;
}

/* the losses that wait on the device join the sum, in their order */
static void gptsi_trainer_settle(gpts_trainer *t)
{
    double sum[GPTSI_PENDING];
    size_t i;
    if (t->n_pending) t->ops->download(t->device, sum, t->pending, t->n_pending * sizeof *sum);
    for (i = 0; i < t->n_pending; i++) t->loss_sum += sum[i];
    t->n_pending = 0;
}

GPTS_API gpts_status gpts_trainer_init(gpts_trainer *t, gpts_model *m, const gpts_train_options *options)
{
    gpts_train_options o = options ? *options : gpts_train_options_default();
    gpts_status status;
    memset(t, 0, sizeof *t);
    if (!(o.learning_rate >= 0) || !(o.learning_rate < 1e300) || !(o.min_learning_rate >= 0) || !(o.beta1 >= 0 && o.beta1 < 1) ||
        !(o.beta2 >= 0 && o.beta2 < 1) ||
        !(o.epsilon >= 0) || !(o.weight_decay >= 0) || !(o.clip >= 0) || !(o.dropout >= 0 && o.dropout < 1))
        return gptsi_fail(t->error, GPTS_BAD_ARGUMENT, "training options: rates, decay, clip and epsilon are 0 or more, betas and dropout in [0,1)");
    t->model = m;
    t->options = o;
    status = gptsi_trainer_blocks(t, m);
    if (status != GPTS_OK) {
        memcpy(t->error, m->error, sizeof t->error);
        gptsi_trainer_release(t);
        t->model = NULL;
    }
    return status;
}

GPTS_API void gpts_trainer_free(gpts_trainer *t)
{
    if (!t || !t->model) return;
    gptsi_trainer_release(t);
    gptsi_delete(&t->model->hooks, t->all);
    memset(t, 0, sizeof *t);
}

GPTS_API gpts_real *gpts_trainer_gradient(const gpts_trainer *t, const gpts_tensor *tensor)
{
    size_t at = t->offset[tensor - t->model->tensors];
    return at == SIZE_MAX ? NULL : t->gradients + at;
}

static gpts_status gptsi_trainer_said(gpts_trainer *t, gpts_status status)     /* the model's sentence is the trainer's */
{
    if (status != GPTS_OK) memcpy(t->error, t->model->error, sizeof t->error);
    return status;
}

/* ---- several ranks ---------------------------------------------------------------------

   The block of gradients is cut into `size` stretches of whole 16s, one a rank.  An update:
     backward   a layer's gradients, once finished, are reduced to their owners
     sums       losses, counts and squares of the owned stretch, added in the order of ranks
     AdamW      every owner on its stretch, with the moments of that stretch alone
     publish    the owners' weights are broadcast
   Cost: each rank sends and receives its gradients and its weights once an update.
   Tests: ranks.c.                                                                          */

static void gptsi_trainer_stretch(const gpts_trainer *t, int rank, size_t *begin, size_t *end)
{
    size_t size = t->ranks.size > 1 ? (size_t)t->ranks.size : 1, each = gptsi_padded((t->n_block + size - 1) / size);
    *begin = gptsi_min(t->n_block, (size_t)rank * each);
    *end = gptsi_min(t->n_block, ((size_t)rank + 1) * each);
}

/* Gradients that backward finishes together: those of a layer; n_layer: of what follows the
   layers; -1: of the embeddings, which come last.                                          */
static void gptsi_trainer_hand_over(gpts_trainer *t, int32_t layer)
{
    const gpts_model *m = t->model;
    const gpts_ranks *ranks = &t->ranks;
    size_t i, begin = SIZE_MAX, end = 0, from, to;
    int r;
    for (i = 0; i < m->n_tensors; i++) {
        const gpts_tensor *tensor = &m->tensors[i];
        int32_t l = tensor->layer >= 0 ? tensor->layer : tensor->kind <= GPTS_P_WPE ? -1 : (int32_t)m->config.n_layer;
        if (l != layer || t->offset[i] == SIZE_MAX) continue;
        begin = gptsi_min(begin, t->offset[i]);
        end = t->offset[i] + gptsi_padded(tensor->size);
    }
    if (begin >= end) return;
    ranks->begin(ranks->context, t->device);
    for (r = 0; r < ranks->size; r++) {
        gptsi_trainer_stretch(t, r, &from, &to);
        from = gptsi_max(from, begin); to = gptsi_min(to, end);
        if (from < to) ranks->reduce(ranks->context, t->gradients + from, to - from, r);
    }
    ranks->end(ranks->context);
}

/* every rank's stretch of gradients is the sum over ranks */
static gpts_status gptsi_trainer_reduce(gpts_trainer *t)
{
    int32_t l;
    if (t->ranks.size <= 1) return GPTS_OK;
    for (l = (int32_t)t->model->config.n_layer; !t->reduced && l >= -1; l--) gptsi_trainer_hand_over(t, l);
    t->reduced = 1;
    return t->ranks.wait(t->ranks.context, t->error);
}

/* losses, counts and squares of all ranks */
static gpts_status gptsi_trainer_sums(gpts_trainer *t, double *squares)
{
    double mine[3], sum[3] = { 0, 0, 0 };
    int r, i;
    if (t->ranks.size <= 1) return GPTS_OK;
    GPTSI_TRY(gptsi_trainer_said(t, t->ops->status(t->device, t->model->error)));     /* a rank without sums stops here, and the others notice */
    mine[0] = t->loss_sum; mine[1] = (double)t->loss_count; mine[2] = *squares;
    GPTSI_TRY(t->ranks.gather(t->ranks.context, mine, sizeof mine, t->all, t->error));
    for (r = 0; r < t->ranks.size; r++) for (i = 0; i < 3; i++) sum[i] += t->all[3 * r + i];
    t->loss_sum = sum[0]; t->loss_count = (uint64_t)sum[1]; *squares = sum[2];
    return GPTS_OK;
}

/* what (O2) is to do between begin and end of the block; returns how many tensors that touches */
static size_t gptsi_trainer_updates(gpts_trainer *t, size_t begin, size_t end)
{
    const gpts_model *m = t->model;
    size_t i, n = 0;
    for (i = 0; i < m->n_tensors; i++) {
        const gpts_tensor *tensor = &m->tensors[i];
        size_t at = t->offset[i], from, to;
        gpts_update *u = &t->updates[n];
        if (at == SIZE_MAX) continue;
        from = gptsi_max(at, begin); to = gptsi_min(at + tensor->size, end);
        if (from >= to) continue;
        u->p = tensor->data + (from - at); u->g = t->gradients + from;
        u->m = t->moment1 + (from - t->first_moment); u->v = t->moment2 + (from - t->first_moment);
        u->n = to - from; u->decay = tensor->decay ? t->options.weight_decay : 0;
        n++;
    }
    return n;
}

/* The weights that each rank updated go to all; tensors that follow each other go as one. */
static gpts_status gptsi_trainer_publish(gpts_trainer *t, size_t begin, size_t end)
{
    gpts_model *m = t->model;
    const gpts_ranks *ranks = &t->ranks;
    size_t i, k, from, to;
    int r;
    if (ranks->size <= 1) return GPTS_OK;
    m->ops->zero(m->device, t->gradients, begin * sizeof *t->gradients);
    m->ops->zero(m->device, t->gradients + end, (t->n_block - end) * sizeof *t->gradients);
    ranks->begin(ranks->context, t->device);
    for (i = 0; i < m->n_tensors; i = k) {
        const gpts_tensor *first = &m->tensors[i];
        size_t at = t->offset[i], run = gptsi_padded(first->size);
        for (k = i + 1; at != SIZE_MAX && k < m->n_tensors && t->offset[k] == at + run && m->tensors[k].data == first->data + run; k++)
            run += gptsi_padded(m->tensors[k].size);
        for (r = 0; at != SIZE_MAX && r < ranks->size; r++) {
            gptsi_trainer_stretch(t, r, &from, &to);
            from = gptsi_max(from, at); to = gptsi_min(to, at + run);
            if (from < to) ranks->broadcast(ranks->context, first->data + (from - at), to - from, r);
        }
    }
    ranks->end(ranks->context);
    return ranks->wait(ranks->context, t->error);
}

/* The first rank that failed decides for all, and its sentence is everybody's. */
static gpts_status gptsi_ranks_agree(const gpts_ranks *ranks, gpts_status status, const gpts_hooks *hooks, char *error)
{
    typedef struct verdict { int32_t status; char error[GPTS_ERROR_BYTES]; } verdict;
    verdict mine, *all;
    gpts_status met;
    int r;
    if (ranks->size <= 1) return status;
    all = GPTSI_NEW(hooks, verdict, (size_t)ranks->size);
    if (!all) return gptsi_no_memory(error, "the ranks' agreement", (size_t)ranks->size, sizeof *all);
    memset(&mine, 0, sizeof mine);
    mine.status = (int32_t)status;
    if (status != GPTS_OK) memcpy(mine.error, error, sizeof mine.error);
    met = ranks->gather(ranks->context, &mine, sizeof mine, all, error);
    for (r = 0; met == GPTS_OK && r < ranks->size; r++) {
        if (all[r].status == GPTS_OK) continue;
        met = (gpts_status)all[r].status;
        all[r].error[GPTS_ERROR_BYTES - 1] = 0;
        if (r == ranks->rank) memcpy(error, mine.error, sizeof mine.error);
        else gptsi_fail(error, met, "rank %d: %.300s", r, all[r].error);
    }
    gptsi_delete(hooks, all);
    return met;
}

/* a hash of bytes: four lanes of 64-bit words, so that memory is the limit */
static uint64_t gptsi_hash_bytes(uint64_t seed, const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t lane[4], word[4];
    size_t i, k;
    for (k = 0; k < 4; k++) lane[k] = gptsi_hash(seed, k, bytes);
    for (i = 0; i < bytes; i += 32) {
        if (bytes - i < 32) memset(word, 0, sizeof word);
        memcpy(word, p + i, gptsi_min(32, bytes - i));
        for (k = 0; k < 4; k++) { lane[k] = (lane[k] ^ word[k]) * 0x9E3779B97F4A7C15u; lane[k] ^= lane[k] >> 29; }
    }
    return gptsi_hash(gptsi_hash(lane[0], lane[1], lane[2]), lane[3], seed);
}

static gpts_status gptsi_ranks_same(const gpts_ranks *ranks, const char *what, uint64_t hash, const gpts_hooks *hooks, char *error)
{
    uint64_t *all = GPTSI_NEW(hooks, uint64_t, (size_t)ranks->size);
    gpts_status status;
    int r;
    if (!all) return gptsi_no_memory(error, "the ranks' comparison", (size_t)ranks->size, sizeof *all);
    status = ranks->gather(ranks->context, &hash, sizeof hash, all, error);
    for (r = 1; status == GPTS_OK && r < ranks->size; r++)
        if (all[r] != all[0]) status = gptsi_fail(error, GPTS_MISMATCH, "the ranks do not agree: %s of rank %d differ from those of rank 0", what, r);
    gptsi_delete(hooks, all);
    return status;
}
GPTS_API gpts_status gpts_ranks_same(const gpts_ranks *ranks, const char *what, const void *data, size_t bytes, const gpts_hooks *hooks, char *error)
{
    return ranks->size <= 1 ? GPTS_OK : gptsi_ranks_same(ranks, what, gptsi_hash_bytes(1, data, bytes), hooks, error);
}

/* What must be the same on every rank: first the numbers, so that the sentence can name one. */
#define GPTSI_RANKS_TABLE(X)                                                                 \
    X("the number of ranks", ranks->size) X("the bytes of a real", sizeof(gpts_real))        \
    X("vocab_size", c->vocab_size) X("n_positions", c->n_positions) X("n_layer", c->n_layer) \
    X("n_head", c->n_head) X("n_embd", c->n_embd) X("n_inner", gptsi_inner(c))               \
    X("activation", c->activation) X("approx_activation", c->approx_activation)              \
    X("position", c->position) X("norm", c->norm) X("bias", c->bias)                         \
    X("tie_word_embeddings", c->tie_word_embeddings) X("unscaled_scores", c->unscaled_scores) \
    X("layer_norm_epsilon", c->layer_norm_epsilon) X("rope_theta", c->rope_theta)            \
    X("learning_rate", o->learning_rate) X("min_learning_rate", o->min_learning_rate)        \
    X("warmup", o->warmup) X("total", o->total) X("beta1", o->beta1) X("beta2", o->beta2)    \
    X("epsilon", o->epsilon) X("weight_decay", o->weight_decay) X("clip", o->clip)           \
    X("dropout", o->dropout) X("the seed", o->seed) X("batches", o->batches)                 \
    X("the bytes of an activation", m->ops->activation_bytes)                                \
    X("the number of trained values", t->n_trainable) X("the update", t->step) X("data_position", t->data_position)

static gpts_status gptsi_trainer_numbers(const gpts_trainer *t, const gpts_ranks *ranks, char *error)
{
    enum { MOST = 64 };
    const gpts_model *m = t->model;
    const gpts_config *c = &m->config;
    const gpts_train_options *o = &t->options;
    const char *name[MOST];
    double mine[MOST], *all;
    size_t n = 0, i;
    gpts_status status;
    int r;
#define GPTSI_ROW(name_, value_) name[n] = name_; mine[n++] = (double)(value_);
    GPTSI_RANKS_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    if (!(all = GPTSI_NEW(&m->hooks, double, gptsi_mul(n, (size_t)ranks->size))))
        return gptsi_no_memory(error, "the ranks' comparison", n, sizeof *all);
    status = ranks->gather(ranks->context, mine, n * sizeof *mine, all, error);
    for (r = 1; status == GPTS_OK && r < ranks->size; r++)
        for (i = 0; status == GPTS_OK && i < n; i++)
            if (all[(size_t)r * n + i] != all[i])
                status = gptsi_fail(error, GPTS_MISMATCH, "the ranks do not agree: %s is %.15g on rank %d, %.15g on rank 0",
                                    name[i], all[(size_t)r * n + i], r, all[i]);
    gptsi_delete(&m->hooks, all);
    return status;
}

/* a hash of n reals on the device, joined to *hash */
static gpts_status gptsi_trainer_hash(const gpts_trainer *t, const gpts_real *x, size_t n, uint64_t *hash)
{
    gpts_model *m = t->model;
    size_t at, count, room = gptsi_min(n, (size_t)GPTSI_TRANSFER);
    gpts_real *buffer = GPTSI_NEW(&m->hooks, gpts_real, room);
    if (!buffer) return gptsi_no_memory(m->error, "the ranks' comparison", room, sizeof *buffer);
    for (at = 0; at < n; at += count) {
        count = gptsi_min(room, n - at);
        t->ops->download(t->device, buffer, x + at, count * sizeof *x);
        *hash = gptsi_hash_bytes(*hash, buffer, count * sizeof *x);
    }
    gptsi_delete(&m->hooks, buffer);
    return t->ops->status(t->device, m->error);
}

/* Which heads are static and which tensors are trained, then all weights, then all moments:
   these three hashes are the same on every rank.  Moments are compared before they are shared. */
static gpts_status gptsi_trainer_compare(gpts_trainer *t, const gpts_ranks *ranks)
{
    gpts_model *m = t->model;
    uint64_t layout = 0, weights = 0, moments = 0;
    gpts_status status = GPTS_OK;
    size_t i, l;
    for (l = 0; l < (size_t)m->config.n_layer; l++) {
        const gpts_heads *h = &m->layers[l].heads;
        layout = gptsi_hash(layout, h->K * 65536 + h->U, h->S);
        if (h->K) layout = gptsi_hash_bytes(layout, h->kept, (3 * h->H + h->n) * sizeof *h->kept);    /* and tail_start, behind them */
    }
    for (i = 0; i < m->n_tensors && status == GPTS_OK; i++) {
        const gpts_tensor *tensor = &m->tensors[i];
        layout = gptsi_hash(layout, tensor->rows * 2 + (tensor->trainable != 0), tensor->columns);
        status = gptsi_trainer_hash(t, tensor->data, tensor->size, &weights);
    }
    if (status == GPTS_OK && t->step && t->ranks.size <= 1) {
        status = gptsi_trainer_hash(t, t->moment1, t->n_block, &moments);
        if (status == GPTS_OK) status = gptsi_trainer_hash(t, t->moment2, t->n_block, &moments);
    }
    status = gptsi_ranks_agree(ranks, status, &m->hooks, m->error);
    if (status == GPTS_OK) status = gptsi_ranks_same(ranks, "the layers", layout, &m->hooks, m->error);
    if (status == GPTS_OK) status = gptsi_ranks_same(ranks, "the weights", weights, &m->hooks, m->error);
    if (status == GPTS_OK) status = gptsi_ranks_same(ranks, "the moments", moments, &m->hooks, m->error);
    return status;
}

/* Blocks for n moments from position `first` on; what the old ones hold of them is kept. */
static gpts_status gptsi_trainer_moments(gpts_trainer *t, size_t first, size_t n)
{
    void *block[2] = { NULL, NULL };
    size_t i, from = gptsi_max(first, t->first_moment), to = gptsi_min(first + n, t->first_moment + t->n_moments),
        bytes = gptsi_max(n, 16) * sizeof(gpts_real);
    if (first == t->first_moment && n == t->n_moments) return GPTS_OK;
    for (i = 0; i < 2; i++)
        if (t->ops->allocate(t->device, bytes, &block[i]) != GPTS_OK) {
            if (i) t->ops->release(t->device, block[0]);
            t->ops->status(t->device, NULL);
            return gptsi_no_memory(t->error, "the moments", n, 2 * sizeof(gpts_real));
        }
    for (i = 0; i < 2; i++) {
        gpts_real **old = i ? &t->moment2 : &t->moment1;
        t->ops->zero(t->device, block[i], bytes);
        if (from < to)
            t->ops->copy(t->device, (gpts_real *)block[i] + (from - first), *old + (from - t->first_moment), (to - from) * sizeof(gpts_real));
        t->ops->release(t->device, *old);
        *old = (gpts_real *)block[i];
    }
    t->first_moment = first; t->n_moments = n;
    return GPTS_OK;
}

/* All moments to all ranks; then back to each rank's own (should memory lack, they stay: that is right too). */
static gpts_status gptsi_trainer_gather(gpts_trainer *t)
{
    const gpts_ranks *ranks = &t->ranks;
    gpts_status status;
    size_t begin, end;
    int r;
    if (ranks->size <= 1) return GPTS_OK;
    status = gptsi_ranks_agree(ranks, gptsi_trainer_moments(t, 0, t->n_block), &t->model->hooks, t->error);
    if (status == GPTS_OK) {
        ranks->begin(ranks->context, t->device);
        for (r = 0; r < ranks->size; r++) {
            gptsi_trainer_stretch(t, r, &begin, &end);
            if (begin == end) continue;
            ranks->broadcast(ranks->context, t->moment1 + begin, end - begin, r);
            ranks->broadcast(ranks->context, t->moment2 + begin, end - begin, r);
        }
        ranks->end(ranks->context);
        status = ranks->wait(ranks->context, t->error);
    }
    if (status != GPTS_OK) memcpy(t->model->error, t->error, sizeof t->error);
    return status;
}
static void gptsi_trainer_share(gpts_trainer *t)
{
    char error[GPTS_ERROR_BYTES];
    size_t begin, end;
    if (t->ranks.size <= 1) return;
    memcpy(error, t->error, sizeof error);
    gptsi_trainer_stretch(t, t->ranks.rank, &begin, &end);
    if (gptsi_trainer_moments(t, begin, end - begin) != GPTS_OK) memcpy(t->error, error, sizeof error);
}

GPTS_API gpts_status gpts_trainer_ranks(gpts_trainer *t, const gpts_ranks *ranks)
{
    gpts_model *m = t->model;
    gpts_status status = GPTS_OK;
    GPTSI_TRY(gptsi_trainer_follow(t));
    GPTSI_TRY(gptsi_trainer_gather(t));
    gptsi_delete(&m->hooks, t->all);
    t->all = NULL;
    memset(&t->ranks, 0, sizeof t->ranks);
    if (!ranks || ranks->size <= 1) return GPTS_OK;
    if (ranks->rank < 0 || ranks->rank >= ranks->size || !ranks->begin || !ranks->reduce || !ranks->broadcast || !ranks->end ||
        !ranks->wait || !ranks->gather)
        return gptsi_fail(t->error, GPTS_BAD_ARGUMENT, "rank %d of %d, with all of its functions, was expected", ranks->rank, ranks->size);
    if (!ranks->name || strcmp(ranks->name, m->ops->name))
        status = gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "the ranks meet in the memory of \"%.20s\", but the model is on \"%.20s\"",
                            ranks->name ? ranks->name : "", m->ops->name);
    else if (!(t->all = GPTSI_NEW(&m->hooks, double, gptsi_mul(3, (size_t)ranks->size))))
        status = gptsi_no_memory(m->error, "the ranks' sums", (size_t)ranks->size, 24);
    status = gptsi_ranks_agree(ranks, status, &m->hooks, m->error);
    if (status == GPTS_OK) status = gptsi_trainer_numbers(t, ranks, m->error);
    if (status == GPTS_OK) status = gptsi_trainer_compare(t, ranks);
    if (status != GPTS_OK) { memcpy(t->error, m->error, sizeof t->error); return status; }
    t->ranks = *ranks;
    gptsi_trainer_share(t);
    return GPTS_OK;
}

GPTS_API uint64_t gpts_trainer_windows(gpts_trainer *t, size_t B)
{
    uint64_t first = t->data_position;
    if (t->ranks.size > 1) first += (uint64_t)t->ranks.rank * B;
    t->data_position += (t->ranks.size > 1 ? (uint64_t)t->ranks.size : 1) * B;
    return first;
}

/* --------------------------------------------------------------------------
 * The learning rate of update number `step` (from 0)                   (O3)
 *   warm-up   step < w:        lr (step + 1) / w
 *   cosine    w <= step < n:   min + (lr - min) (1 + cos(pi (step - w) / (n - w))) / 2
 *   after     step >= n:       min            (total n = 0: lr after the warm-up)
 *   source    Loshchilov and Hutter, SGDR (arXiv 1608.03983), one cycle
 *   tests     model.c: schedule_warms_up_and_follows_the_cosine
 * ------------------------------------------------------------------------ */
GPTS_API double gpts_trainer_rate(const gpts_trainer *t, uint64_t step)
{
    const gpts_train_options *o = &t->options;
    if (step < o->warmup) return o->learning_rate * (double)(step + 1) / (double)o->warmup;
    if (!o->total) return o->learning_rate;
    if (step >= o->total || o->total <= o->warmup) return o->min_learning_rate;
    return o->min_learning_rate + (o->learning_rate - o->min_learning_rate) * 0.5 *
           (1 + cos(3.141592653589793 * (double)(step - o->warmup) / (double)(o->total - o->warmup)));
}

/* The gradients of a batch, its losses' sum in work->sum.  What is queued for a batch of one shape is the same each time, without
   dropout and padding: a table that can may replay it.                                                                            */
static gpts_status gptsi_forward_backward(gpts_trainer *t, const gpts_batch *batch, gptsi_run *run)
{
    const gpts_ops *op = t->ops;
    gpts_model *m = t->model;
    gpts_status status;
    const void *key[8];
    int replay = op->replay_begin && !(run->drop.rate > 0) && !batch->first && !batch->length && !run->last;
    run->part = GPTSI_RUN_READY;
    GPTSI_TRY(gptsi_forward(m, batch, run));
    memset(key, 0, sizeof key);
    key[0] = m->work->block; key[1] = m->parameters; key[2] = t->gradients; key[3] = t->offset; key[4] = m->layers;
    key[5] = (const void *)(uintptr_t)batch->B; key[6] = (const void *)(uintptr_t)batch->T;
    run->part = GPTSI_RUN_QUEUE;
    do {
        if (replay && op->replay_begin(t->device, key, sizeof key)) return GPTS_OK;
        status = gptsi_forward(m, batch, run);
        if (status == GPTS_OK) gptsi_backward(t, batch, run, m->work->sum);
    } while (replay && op->replay_end(t->device));
    return status;
}

static gpts_status gptsi_trainer_accumulate(gpts_trainer *t, const gpts_batch *batch, double *loss_sum, int last)
{
    uint64_t size = t->ranks.size > 1 ? (uint64_t)t->ranks.size : 1, rank = size > 1 ? (uint64_t)t->ranks.rank : 0;
    gptsi_run run;
    memset(&run, 0, sizeof run);
    if (t->reduced)
        return gptsi_fail(t->error, GPTS_BAD_ARGUMENT, "one batch more than the %llu of options.batches: their gradients are exchanged already",
                          (unsigned long long)t->accumulated);
    GPTSI_TRY(gptsi_trainer_follow(t));
    run.keep = 1;
    run.last = last && size > 1;
    run.stop = SIZE_MAX;
    run.drop.rate = t->options.dropout; run.drop.seed = t->options.seed;
    run.drop.step = gptsi_hash(t->step, t->accumulated * size + rank, 0);  /* every batch of an update has its own masks */
    GPTSI_TRY(gptsi_trainer_said(t, gptsi_forward_backward(t, batch, &run)));
    t->ops->copy(t->device, t->pending + t->n_pending, t->model->work->sum, sizeof(double));
    t->reduced = run.last;
    GPTSI_TRY(gptsi_trainer_said(t, t->ops->status(t->device, t->model->error)));
    if (loss_sum) t->ops->download(t->device, loss_sum, t->pending + t->n_pending, sizeof *loss_sum);
    if (++t->n_pending == GPTSI_PENDING || loss_sum || !t->ops->queued) gptsi_trainer_settle(t);
    t->loss_count += gptsi_count_targets(batch);
    t->accumulated++;
    return gptsi_trainer_said(t, t->ops->status(t->device, t->model->error));
}

/* names the first tensor with a bad weight, else the first with a bad gradient, on any rank */
static gpts_status gptsi_trainer_not_finite(gpts_trainer *t)
{
    gpts_model *m = t->model;
    size_t n = 2 * m->n_tensors, i, begin, end;
    double bad;
    int r;
    gptsi_trainer_stretch(t, t->ranks.rank, &begin, &end);
    for (i = 0; i < n; i++) {
        const gpts_tensor *tensor = &m->tensors[i % m->n_tensors];
        size_t at = t->offset[i % m->n_tensors], from = gptsi_max(at, begin), to = at == SIZE_MAX ? 0 : gptsi_min(at + tensor->size, end);
        double sum = 0;
        if (i < m->n_tensors) m->ops->sum_squares(m->device, &sum, tensor->data, tensor->size);
        else if (from < to) m->ops->sum_squares(m->device, &sum, t->gradients + from, to - from);
        if (!(sum <= DBL_MAX)) break;
    }
    bad = (double)i;
    if (t->ranks.size > 1) {
        GPTSI_TRY(t->ranks.gather(t->ranks.context, &bad, sizeof bad, t->all, t->error));
        for (r = 0; r < t->ranks.size; r++) bad = t->all[r] < bad ? t->all[r] : bad;
    }
    i = (size_t)bad;
    if (i == n) return gptsi_fail(t->error, GPTS_NOT_FINITE, "update %llu: the loss is not finite; the weights are as before",
                                  (unsigned long long)t->step);
    return gptsi_fail(t->error, GPTS_NOT_FINITE, "update %llu: the %s of %s is not finite; the weights are as before",
                      (unsigned long long)t->step, i < m->n_tensors ? "weight" : "gradient", m->tensors[i % m->n_tensors].name);
}

/* What an update of trained patterns must leave (P3): no coefficient below 0, decays above 0 and
   at most 1, and rho from W on as the tail says, for readers that look at rho alone.             */
static void gptsi_trainer_clamp(gpts_model *m, const gpts_tensor *t)
{
    gpts_real x[64], most = t && t->kind == GPTS_P_TAIL_DECAY ? 1 : (gpts_real)HUGE_VAL;
    size_t at, n, i;
    for (at = 0; t && at < t->size; at += n) {
        n = gptsi_min(64, t->size - at);
        m->ops->download(m->device, x, t->data + at, n * sizeof *x);
        for (i = 0; i < n; i++) x[i] = x[i] < 0 ? (gpts_real)FLT_MIN : x[i] > most ? most : x[i];
        m->ops->upload(m->device, t->data + at, x, n * sizeof *x);
    }
}
static void gptsi_trainer_patterns(gpts_model *m, size_t l)
{
    const gpts_heads *heads = &m->layers[l].heads;
    const gpts_tensor *coef = gptsi_layer_tensor(m, l, GPTS_P_TAIL_COEF), *decay = gptsi_layer_tensor(m, l, GPTS_P_TAIL_DECAY);
    const gpts_tensor *rho = gptsi_layer_tensor(m, l, GPTS_P_RHO);
    gpts_real c[GPTSI_STATIC_TERMS], lambda[GPTSI_STATIC_TERMS], x[64];
    size_t s, d, i, n, r, W, R = heads->R;
    m->ops->forget(m->device, &m->layers[l].heads);                       /* derived anew */
    if (!coef || !decay || !rho || !heads->tail_start || R > GPTSI_STATIC_TERMS) return;
    gptsi_trainer_clamp(m, coef);
    gptsi_trainer_clamp(m, decay);
    for (s = 0; s < heads->n; s++) {
        m->ops->download(m->device, c, coef->data + s * R, R * sizeof *c);
        m->ops->download(m->device, lambda, decay->data + s * R, R * sizeof *lambda);
        W = (size_t)heads->tail_start[s];
        for (d = W; d < heads->S; d += n) {
            n = gptsi_min(64, heads->S - d);
            for (i = 0; i < n; i++) {
                double w = -HUGE_VAL;
                for (r = 0; r < R; r++)
                    if (c[r] > 0) w = gptsi_log_add(w, log((double)c[r]) + (double)(d + i - W) * log((double)lambda[r]));
                x[i] = (gpts_real)w;
            }
            m->ops->upload(m->device, rho->data + s * heads->S + d, x, n * sizeof *x);
        }
    }
}

static gpts_status gptsi_trainer_apply(gpts_trainer *t, double *loss)
{
    gpts_model *m = t->model;
    const gpts_train_options *o = &t->options;
    double squares = 0, mean, scale, rate = gpts_trainer_rate(t, t->step);
    gpts_status status = GPTS_OK;
    size_t i, begin, end, n;
    GPTSI_TRY(gptsi_trainer_follow(t));
    gptsi_trainer_settle(t);
    gptsi_trainer_stretch(t, t->ranks.rank, &begin, &end);                /* all of it, alone */
    GPTSI_TRY(gptsi_trainer_reduce(t));
    m->ops->sum_squares(m->device, &squares, t->gradients + begin, end - begin);                     /* (O1) */
    GPTSI_TRY(gptsi_trainer_sums(t, &squares));
    mean = t->loss_count ? 1.0 / (double)t->loss_count : 0;
    t->gradient_norm = sqrt(squares) * mean;
    if (!(t->gradient_norm <= DBL_MAX) || !(fabs(t->loss_sum) <= DBL_MAX)) status = gptsi_trainer_not_finite(t);
    if (loss) *loss = t->loss_sum * mean;
    scale = o->clip > 0 && o->clip / (t->gradient_norm + 1e-6) < 1 ? mean * o->clip / (t->gradient_norm + 1e-6) : mean;
    n = gptsi_trainer_updates(t, begin, end);
    if (status != GPTS_OK) m->ops->zero(m->device, t->gradients, t->n_block * sizeof *t->gradients);
    else if (m->ops->adamw_all) m->ops->adamw_all(m->device, t->updates, n, scale, rate, o->beta1, o->beta2, o->epsilon, t->step + 1);
    else for (i = 0; i < n; i++) {
        const gpts_update *u = &t->updates[i];
        m->ops->adamw(m->device, u->p, u->g, u->m, u->v, u->n, scale, rate, u->decay, o->beta1, o->beta2, o->epsilon, t->step + 1);     /* (O2) */
    }
    t->loss_sum = 0; t->loss_count = 0; t->accumulated = 0; t->reduced = 0;
    if (status != GPTS_OK) return status;
    GPTSI_TRY(gptsi_trainer_publish(t, begin, end));
    t->step++;
    for (i = 0; i < (size_t)m->config.n_layer; i++) {                    /* patterns that moved are derived anew */
        const gpts_tensor *alpha = gptsi_layer_tensor(m, i, GPTS_P_ALPHA);
        if (alpha && alpha->trainable) gptsi_trainer_patterns(m, i);
    }
    return gptsi_trainer_said(t, m->ops->status(m->device, m->error));
}

typedef struct gptsi_updating { gpts_trainer *t; const gpts_batch *batch; int apply; double *loss; } gptsi_updating;
static gpts_status gptsi_updating_act(void *arg)
{
    const gptsi_updating *k = (const gptsi_updating *)arg;
    if (k->batch)
        GPTSI_TRY(gptsi_trainer_accumulate(k->t, k->batch, k->apply ? NULL : k->loss, k->apply || k->t->accumulated + 1 == k->t->options.batches));
    return k->apply ? gptsi_trainer_apply(k->t, k->loss) : GPTS_OK;
}
static gpts_status gptsi_updating_run(gpts_trainer *t, const gpts_batch *batch, int apply, double *loss)
{
    gptsi_updating k;
    k.t = t; k.batch = batch; k.apply = apply; k.loss = loss;
    return gptsi_together(t->model, gptsi_updating_act, &k);
}
GPTS_API gpts_status gpts_trainer_accumulate(gpts_trainer *t, const gpts_batch *batch, double *loss_sum)
{
    return gptsi_updating_run(t, batch, 0, loss_sum);
}
GPTS_API gpts_status gpts_trainer_apply(gpts_trainer *t, double *loss) { return gptsi_updating_run(t, NULL, 1, loss); }
GPTS_API gpts_status gpts_trainer_update(gpts_trainer *t, const int32_t *tokens, const int32_t *targets, size_t B, size_t T, double *loss)
{
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.targets = targets; batch.B = B; batch.T = T;
    return gptsi_updating_run(t, &batch, 1, loss);
}

/* A permutation of 0 .. n-1 that needs no memory: four Feistel rounds on the smallest
   even number of bits that holds n, walked until the value falls inside.  */
static uint64_t gptsi_permuted(uint64_t i, uint64_t n, uint64_t seed)
{
    unsigned half = 1, r;
    uint64_t mask;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < n) half++;
    mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (r = 0; r < 4; r++) { uint64_t next = left ^ (gptsi_hash(seed, r, right) & mask); left = right; right = next; }
        i = (left << half) | right;
    } while (i >= n);
    return i;
}

GPTS_API gpts_status gpts_windows_batch(const gpts_windows *windows, uint64_t first, size_t B, int32_t *tokens, int32_t *targets)
{
    size_t T = windows->T, b, t;
    uint64_t disjoint;
    if (!windows->tokens || !T || windows->n < T + 1) return GPTS_BAD_ARGUMENT;
    disjoint = (windows->n - 1) / T;
    for (b = 0; b < B; b++) {
        uint64_t w = first + b, start;
        if (windows->shuffled) start = gptsi_permuted(w % disjoint, disjoint, gptsi_hash(windows->seed, w / disjoint, 7)) * T;
        else start = gptsi_hash(windows->seed, w, 8) % (windows->n - T);
        for (t = 0; t < T; t++) {
            tokens[b * T + t] = windows->tokens[start + t];
            targets[b * T + t] = windows->tokens[start + t + 1];
        }
    }
    return GPTS_OK;
}

/* ==============================================================================
   @@FIT  calibration, selection, fit of patterns; approximators
   ============================================================================== */

/* ---- approximators -----------------------------------------------------------------------

 * (Q1)  f(x)[t] = c_proj( g( c_fc( [x[t-k+1] ... x[t]] ) ) )       zeros before the start
 * (Q3)  fit: least mean (f(x) - y)^2 over recorded rows, by AdamW with a cosine to 0
 * (Q4)  R2 = 1 - sum (y - f(x))^2 / sum (y - mean y)^2             mean per channel
 *   x [.,T,C] the layer's normed input, y [.,T,C] what its attention adds to the residual
 *   source  Bee 2025 (per-token form); Bozic et al., arXiv 2311.10642
 *   tests   approximator.c
 */

GPTS_API void gpts_recording_free(gpts_recording *r)
{
    gpts_hooks hooks;
    if (!r) return;
    hooks = r->hooks;
    gptsi_delete(&hooks, r->x); gptsi_delete(&hooks, r->y);
    memset(r, 0, sizeof *r);
}

static gpts_status gptsi_recording_new(gpts_recording *r, size_t layer, size_t n, size_t T, size_t C, const gpts_hooks *hooks)
{
    size_t size = gptsi_mul(n, gptsi_mul(T, C));
    memset(r, 0, sizeof *r);
    if (hooks) r->hooks = *hooks;
    r->layer = (int32_t)layer; r->n_sequences = n; r->T = T; r->C = C;
    r->x = GPTSI_NEW(&r->hooks, gpts_real, size);
    r->y = GPTSI_NEW(&r->hooks, gpts_real, size);
    if (r->x && r->y) return GPTS_OK;
    gpts_recording_free(r);
    return gptsi_no_memory(r->error, "a recording", size, sizeof(gpts_real));
}

GPTS_API gpts_status gpts_recording_make(gpts_recording *r, gpts_model *m, size_t layer, const int32_t *tokens, size_t n_sequences, size_t T)
{
    size_t C = (size_t)m->config.n_embd, each = gptsi_max(1, gptsi_min(n_sequences, 4096 / (T ? T : 1))), n, done;
    GPTSI_TRY(gptsi_recording_new(r, layer, n_sequences, T, C, &m->hooks));
    for (done = 0; done < n_sequences; done += n) {
        gpts_batch batch;
        gpts_status status;
        n = gptsi_min(each, n_sequences - done);
        memset(&batch, 0, sizeof batch);
        batch.tokens = tokens + done * T; batch.B = n; batch.T = T;
        status = gpts_model_record(m, &batch, layer, r->x + done * T * C, r->y + done * T * C);
        if (status != GPTS_OK) {
            gpts_recording_free(r);
            memcpy(r->error, m->error, sizeof r->error);
            return status;
        }
    }
    return GPTS_OK;
}

GPTS_API void gpts_approximator_free(gpts_approximator *a)
{
    gpts_hooks hooks;
    if (!a) return;
    hooks = a->hooks;
    gptsi_delete(&hooks, a->fc_w);
    memset(a, 0, sizeof *a);
}

static size_t gptsi_approximator_size(size_t C, size_t k, size_t h)        /* values of its four tensors */
{
    return gptsi_add(gptsi_add(gptsi_mul(gptsi_mul(k, C), h), h), gptsi_add(gptsi_mul(h, C), C));
}

/* all weights zero */
static gpts_status gptsi_approximator_new(gpts_approximator *a, gpts_approximator_kind kind, int32_t layer, size_t C, size_t k, size_t h,
                                          gpts_activation activation, const gpts_hooks *hooks)
{
    size_t size = gptsi_approximator_size(C, k, h);
    memset(a, 0, sizeof *a);
    if (hooks) a->hooks = *hooks;
    a->kind = kind; a->layer = layer; a->C = C; a->window = k; a->hidden = h; a->activation = activation;
    a->fc_w = GPTSI_NEW(&a->hooks, gpts_real, size);
    if (!a->fc_w) return gptsi_no_memory(a->error, "an approximator", size, sizeof(gpts_real));
    a->fc_b = a->fc_w + k * C * h; a->proj_w = a->fc_b + h; a->proj_b = a->proj_w + h * C;
    return GPTS_OK;
}

/* A CPU of its own and the buffers of n rows; used by fit and R2. */
typedef struct gptsi_approx_run { gptsi_cpu cpu; gpts_hooks hooks; size_t n; gpts_real *z, *pre, *act, *out, *g, *dact; } gptsi_approx_run;
static void gptsi_approx_run_free(gptsi_approx_run *run)
{
    gptsi_delete(&run->hooks, run->z);
    gptsi_cpu_free(&run->cpu);
}
static gpts_status gptsi_approx_run_make(gptsi_approx_run *run, gpts_approximator *a, size_t n)
{
    size_t kC = a->window * a->C, h = a->hidden, each = gptsi_add(gptsi_add(kC, gptsi_mul(3, h)), gptsi_mul(2, a->C));
    memset(run, 0, sizeof *run);
    run->hooks = a->hooks;
    run->n = n;
    run->z = GPTSI_NEW(&a->hooks, gpts_real, gptsi_mul(n, each));
    if (!run->z) return gptsi_no_memory(a->error, "the approximator's rows", gptsi_mul(n, each), sizeof(gpts_real));
    run->pre = run->z + n * kC; run->act = run->pre + n * h; run->dact = run->act + n * h; run->out = run->dact + n * h; run->g = run->out + n * a->C;
    if (gptsi_cpu_init(&run->cpu, &a->hooks, a->error) == GPTS_OK) return GPTS_OK;
    gptsi_delete(&a->hooks, run->z);              /* the failed CPU has forgotten its hooks */
    run->z = NULL;
    return GPTS_NO_MEMORY;
}

/* z row i = the window that ends at recorded row `row` */
static void gptsi_approx_gather(const gpts_approximator *a, const gpts_recording *data, size_t row, gpts_real *z)
{
    size_t C = a->C, t = row % data->T, j;
    for (j = 0; j < a->window; j++) {
        size_t back = a->window - 1 - j;
        if (back > t) memset(z + j * C, 0, C * sizeof *z);
        else memcpy(z + j * C, data->x + (row - back) * C, C * sizeof *z);
    }
}
static void gptsi_approx_forward(const gpts_approximator *a, gptsi_approx_run *run, size_t n)               /* (Q1) */
{
    gptsi_cpu_linear_forward(&run->cpu, run->pre, run->z, a->fc_w, a->fc_b, n, a->window * a->C, a->hidden);
    gptsi_cpu_activation_forward(&run->cpu, run->act, run->pre, n * a->hidden, a->activation);
    gptsi_cpu_linear_forward(&run->cpu, run->out, run->act, a->proj_w, a->proj_b, n, a->hidden, a->C);
}

/* mean [C] of the recorded outputs */
static void gptsi_recording_mean(const gpts_recording *data, double *mean)
{
    size_t rows = data->n_sequences * data->T, r, c;
    for (c = 0; c < data->C; c++) mean[c] = 0;
    for (r = 0; r < rows; r++) for (c = 0; c < data->C; c++) mean[c] += (double)data->y[r * data->C + c];
    for (c = 0; c < data->C; c++) mean[c] /= (double)rows;
}

GPTS_API gpts_status gpts_approximator_r2(gpts_approximator *a, const gpts_recording *data, double *r2)      /* (Q4) */
{
    size_t rows = data->n_sequences * data->T, C = a->C, r, i, c, n;
    double error = 0, total = 0, *mean;
    gptsi_approx_run run;
    gpts_status status;
    if (data->C != C || !rows)
        return gptsi_fail(a->error, GPTS_BAD_SHAPE, "a recording of width %llu with %llu rows for an approximator of width %llu",
                                                 (unsigned long long)data->C, (unsigned long long)rows, (unsigned long long)C);
    mean = GPTSI_NEW(&a->hooks, double, C);
    if (!mean) return gptsi_no_memory(a->error, "the mean output", C, sizeof *mean);
    gptsi_recording_mean(data, mean);
    status = gptsi_approx_run_make(&run, a, gptsi_min(rows, 1024));
    for (r = 0; status == GPTS_OK && r < rows; r += n) {
        n = gptsi_min(run.n, rows - r);
        for (i = 0; i < n; i++) gptsi_approx_gather(a, data, r + i, run.z + i * a->window * C);
        gptsi_approx_forward(a, &run, n);
        for (i = 0; i < n; i++) for (c = 0; c < C; c++) {
            double y = (double)data->y[(r + i) * C + c], e = y - (double)run.out[i * C + c];
            error += e * e; total += (y - mean[c]) * (y - mean[c]);
        }
    }
    gptsi_approx_run_free(&run);
    gptsi_delete(&a->hooks, mean);
    if (status == GPTS_OK) *r2 = total > 0 ? 1 - error / total : error > 0 ? -DBL_MAX : 1;
    return status;
}

/* (Q3) one AdamW update on `batch` rows drawn at random; returns their mean squared error */
static double gptsi_approx_update(gpts_approximator *a, gptsi_approx_run *run, const gpts_recording *data, gpts_real *blocks, size_t size,
                                  double rate, double decay, uint64_t step, uint64_t seed)
{
    size_t C = a->C, kC = a->window * C, h = a->hidden, rows = data->n_sequences * data->T, n = run->n, i, c;
    gpts_real *g = blocks, *m = blocks + size, *v = blocks + 2 * size;
    gpts_real *dfc_w = g, *dfc_b = g + kC * h, *dproj_w = dfc_b + h, *dproj_b = dproj_w + h * C;
    double mse = 0;
    for (i = 0; i < n; i++) {
        size_t row = (size_t)(gptsi_hash(seed, step, i) % rows);
        gptsi_approx_gather(a, data, row, run->z + i * kC);
        memcpy(run->g + i * C, data->y + row * C, C * sizeof *run->g);
    }
    gptsi_approx_forward(a, run, n);
    for (i = 0; i < n * C; i++) {
        double e = (double)run->out[i] - (double)run->g[i];
        mse += e * e;
        run->g[i] = (gpts_real)(2 * e / (double)n);                          /* d (sum over channels of the mean square) */
    }
    gptsi_cpu_linear_backward(&run->cpu, run->dact, dproj_w, dproj_b, run->g, run->act, a->proj_w, n, h, C);
    gptsi_cpu_activation_backward(&run->cpu, run->dact, run->dact, run->pre, n * h, a->activation);
    gptsi_cpu_linear_backward(&run->cpu, NULL, dfc_w, dfc_b, run->dact, run->z, a->fc_w, n, kC, h);
    for (c = 0; c < 4; c++) {
        size_t at = c == 0 ? 0 : c == 1 ? kC * h : c == 2 ? kC * h + h : kC * h + h + h * C,
            count = c == 0 ? kC * h : c == 1 ? h : c == 2 ? h * C : C;
        gptsi_cpu_adamw(&run->cpu, a->fc_w + at, g + at, m + at, v + at, count, 1, rate, c % 2 ? 0 : decay, 0.9, 0.999, 1e-8, step + 1);
    }
    return mse / (double)(n * C);
}

typedef struct gptsi_approx_step {
    gpts_approximator *a; gptsi_approx_run *run; const gpts_recording *data; gpts_real *blocks; size_t size;
    double rate, decay, mse; uint64_t step, seed;
} gptsi_approx_step;
static gpts_status gptsi_approx_act(void *arg)
{
    gptsi_approx_step *k = (gptsi_approx_step *)arg;
    k->mse = gptsi_approx_update(k->a, k->run, k->data, k->blocks, k->size, k->rate, k->decay, k->step, k->seed);
    return GPTS_OK;
}

GPTS_API gpts_status gpts_approximator_fit(gpts_approximator *a, const gpts_model *model, const gpts_recording *data, const gpts_recording *held_out,
                                           const gpts_approximator_options *options, double *r2)
{
    gpts_approximator_options o;
    size_t C = data->C, k, h, i, size, rows = data->n_sequences * data->T;
    gptsi_approx_run run;
    gpts_real *blocks = NULL;
    double *mean, spread = 0;
    gpts_status status;
    char error[GPTS_ERROR_BYTES];
    memset(&o, 0, sizeof o);
    memset(a, 0, sizeof *a);
    memset(&run, 0, sizeof run);
    if (options) o = *options;
    k = o.kind == GPTS_APPROX_MEAN || o.kind == GPTS_APPROX_NOTHING || !o.window ? 1 : o.window;
    h = o.kind == GPTS_APPROX_MEAN || o.kind == GPTS_APPROX_NOTHING ? 1 : o.hidden ? o.hidden : C;
    if (!rows || k > 65536 || o.kind < GPTS_APPROX_MLP || o.kind > GPTS_APPROX_NOTHING || !(o.learning_rate >= 0) || !(o.weight_decay >= 0))
        return gptsi_fail(a->error, GPTS_BAD_ARGUMENT,
                          "an approximator's fit needs recorded rows, a known kind, a window up to 65536 and rates of 0 or more");
    if (!o.updates) o.updates = 1000;
    if (!o.batch) o.batch = 256;
    if (!(o.learning_rate > 0)) o.learning_rate = 3e-3;
    GPTSI_TRY(gptsi_approximator_new(a, o.kind, data->layer, C, k, h, model ? model->config.approx_activation : GPTS_RELU, &data->hooks));
    size = gptsi_approximator_size(C, k, h);
    mean = GPTSI_NEW(&a->hooks, double, C);
    status = mean ? GPTS_OK : gptsi_no_memory(a->error, "the mean output", C, sizeof *mean);
    if (status == GPTS_OK) {
        gptsi_recording_mean(data, mean);
        for (i = 0; i < rows * C; i++) { double e = (double)data->y[i] - mean[i % C]; spread += e * e; }
        spread = sqrt(spread / (double)(rows * C));
        if (o.kind != GPTS_APPROX_NOTHING) for (i = 0; i < C; i++) a->proj_b[i] = (gpts_real)mean[i];
    }
    if (status == GPTS_OK && (o.kind == GPTS_APPROX_MLP || o.kind == GPTS_APPROX_RANDOM)) {
        gptsi_fill fill;                                  /* outputs of the spread of y: the control's scale, the fit's start */
        fill.x = a->fc_w; fill.seed = gptsi_hash(o.seed, 31, 0); fill.std = 1 / sqrt((double)(k * C));
        gptsi_fill_normal(&fill, 0, k * C * h, 0);
        fill.x = a->proj_w; fill.seed = gptsi_hash(o.seed, 31, 1); fill.std = (o.kind == GPTS_APPROX_MLP ? 0.1 : 1.4) * spread / sqrt((double)h);
        gptsi_fill_normal(&fill, 0, h * C, 0);
    }
    if (status == GPTS_OK && o.kind == GPTS_APPROX_MLP) {
        blocks = GPTSI_NEW(&a->hooks, gpts_real, gptsi_mul(3, size));
        status = blocks ? gptsi_approx_run_make(&run, a, o.batch)
            : gptsi_no_memory(a->error, "the approximator's moments", gptsi_mul(3, size), sizeof *blocks);
        for (i = 0; status == GPTS_OK && i < o.updates; i++) {
            double warm = (double)(i + 1) < 0.05 * (double)o.updates ? (double)(i + 1) / (0.05 * (double)o.updates) : 1;
            double rate = o.learning_rate * warm * 0.5 * (1 + cos(3.141592653589793 * (double)i / (double)o.updates));
            double mse;
            gptsi_approx_step step;
            step.a = a; step.run = &run; step.data = data; step.blocks = blocks; step.size = size; step.rate = rate; step.decay = o.weight_decay;
            step.step = i; step.seed = gptsi_hash(o.seed, 32, 0);
            gptsi_cpu_together(&run.cpu, gptsi_approx_act, &step);
            mse = step.mse;
            if (o.progress) o.progress(o.context, i + 1, o.updates, mse);
            if (!(mse <= DBL_MAX))
                status = gptsi_fail(a->error, GPTS_NOT_FINITE, "the approximator of layer %ld: error not finite at update %llu",
                                    (long)a->layer, (unsigned long long)i);
        }
        gptsi_approx_run_free(&run);
        gptsi_delete(&a->hooks, blocks);
    }
    gptsi_delete(&a->hooks, mean);
    if (status == GPTS_OK && r2) status = gpts_approximator_r2(a, held_out ? held_out : data, r2);
    if (status != GPTS_OK) {
        memcpy(error, a->error, sizeof error);
        gpts_approximator_free(a);
        memcpy(a->error, error, sizeof error);
    }
    return status;
}

GPTS_API gpts_status gpts_approximator_install(gpts_model *m, gpts_trainer *trainer, const gpts_approximator *a, int train)
{
    static const gpts_parameter kinds[4] = { GPTS_P_APPROX_FC_W, GPTS_P_APPROX_FC_B, GPTS_P_APPROX_PROJ_W, GPTS_P_APPROX_PROJ_B };
    const gpts_real *from[4];
    gptsi_layer_shape *shapes;
    gpts_status status;
    size_t i;
    if (a->layer < 0 || a->layer >= m->config.n_layer || a->C != (size_t)m->config.n_embd || !a->fc_w)
        return gptsi_fail(m->error, GPTS_BAD_SHAPE, "an approximator of layer %ld and width %llu does not fit a model of %lld layers and width %lld",
                          (long)a->layer, (unsigned long long)a->C, (long long)m->config.n_layer, (long long)m->config.n_embd);
    for (i = 0; i < (size_t)m->config.n_layer; i++)
        if (m->layers[i].hidden && (int32_t)i != a->layer && a->activation != m->config.approx_activation)
            return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "the model's approximators all have one activation, and this one's is another");
    shapes = gptsi_shapes_of(m);
    if (!shapes) return gptsi_no_memory(m->error, "the layers' shapes", 1, sizeof *shapes);
    memset(&shapes[a->layer], 0, sizeof *shapes);
    shapes[a->layer].window = a->window; shapes[a->layer].hidden = a->hidden; shapes[a->layer].train_approximator = train;
    status = gptsi_model_reshape(m, trainer, shapes);
    gptsi_delete(&m->hooks, shapes);
    if (status != GPTS_OK) return status;
    m->config.approx_activation = a->activation;
    from[0] = a->fc_w; from[1] = a->fc_b; from[2] = a->proj_w; from[3] = a->proj_b;
    for (i = 0; i < 4; i++) {
        gpts_tensor *t = gptsi_layer_tensor(m, (size_t)a->layer, kinds[i]);
        m->ops->upload(m->device, t->data, from[i], t->size * sizeof *t->data);
    }
    return GPTS_OK;
}

/* ---- static heads: calibration, selection, fit ---- */

/* The fit.  Of a mean pattern M (rows of weights) the best alpha, rho in the sense of the mean
   divergence of rows needs only two vectors, its masses by key and by distance:

       column[j] = sum_i M[i,j],   diagonal[d] = sum_i M[i,i-d]                                                (F1)
       f(alpha, rho) = 1/S ( sum_i z[i] - <column, alpha> - <diagonal, rho> ),
       1/S sum_i KL(M_i || P_i) = f + 1/S sum M ln M                                                           (F2)

   f is convex, with three directions of no change (the gauge).  Its gradient is what the masses of
   P exceed those of M by; the product of its curvature with a direction t[i,j] = a[j] + r[i-j] is
   the masses of P (t - m), m[i] the mean of t in row i:

       S grad = (column(P) - column, diagonal(P) - diagonal),   S H t = (column, diagonal)(P (t - m))          (F3)

   Each is a handful of convolutions of u, w, e of (P2), S^2/2 products each; where their range allows,
   the second line's go through Fourier's transform, O(S log S).  Newton's method, its
   steps by preconditioned conjugate gradients, ends with a proof: if t solves H t = -grad and
   |t - m| <= 1, then P (1 + t - m) is a pattern with exactly the masses of M, so that

       f - min f <= 1/S sum_i KL(P (1 + t - m) || P)_i <= 1/S sum P (t - m)^2 = -<grad, t>                     (F4)

   (the first step by Pythagoras' theorem for divergences: Csiszar, Annals of Probability 3(1), 1975).

   The linear form is the same problem on a smaller set: rho[d] = ln sum_r c[r] lambda[r]^(d-W) from W on,
   in the parameters ln c and ln(-ln lambda).  By the same theorem f(linear) - f(exact) is the mean
   divergence of its rows from the exact fit's, the gap.  The set is not convex; Gauss-Newton steps
   J'HJ with Levenberg's damping serve both forms, and the exact form's damping goes to 0.       */

typedef struct gptsi_fit {
    size_t S, W, R, n;                /* n = S + W + 2 R parameters; exact: W = S, R = 0        */
    const double *column, *diagonal;  /* [S] the masses of M                                    */
    double *block;
    double *x;                        /* [n] alpha [S], rho [W], ln c [R], ln(-ln lambda) [R]    */
    double *rho, *share;              /* [S]; [S-W,R] c lambda^k / w                             */
    double *u, *w, *turned, *e;       /* [S] (P2), turned: w from the last to the first          */
    double *we, *eu;                  /* [S] sum_i w[i-j] e[i], sum_i e[i] u[i-d]: masses / u, / w */
    double *a, *r, *s, *m;            /* [S] of gptsi_fit_curvature                              */
    double *g, *scale, *t, *residual, *p, *hp, *kept;         /* [n] of gptsi_fit_solve          */
    size_t N;                         /* length of the transforms, a power of 2 from 2 S on     */
    double *turn;                     /* [2,N/2] cos, -sin of 2 pi k / N                         */
    double *uw, *eh, *back, *z, *y;   /* [2,N] real, imaginary: transforms of u + i w, of e; work */
    int smooth;                       /* u, w, e span little enough for transforms              */
    double f, bound;
    double (*dot)(const double *x, const double *y, size_t n);
} gptsi_fit;

static double *gptsi_fit_cut(double **at, size_t n) { double *p = *at; *at += n; return p; }

static gpts_status gptsi_fit_init(gptsi_fit *f, const double *column, const double *diagonal, size_t S, size_t W, size_t R,
                                  const gpts_hooks *hooks, char *error)
{
    size_t n = S + W + 2 * R, need, N = 1, k;
    double *at;
    gptsi_kernels kernels;
    memset(f, 0, sizeof *f);
    f->dot = gptsi_kernels_best(&kernels)->dot_double;
    f->S = S; f->W = W; f->R = R; f->n = n; f->column = column; f->diagonal = diagonal;
    while (N < 2 * S) N *= 2;
    f->N = S < 512 ? 0 : N;                                   /* products are faster below */
    need = 12 * S + (S - W) * R + 8 * n + 11 * f->N;
    if (!(f->block = at = GPTSI_NEW(hooks, double, need))) return gptsi_no_memory(error, "the fit of a pattern", need, sizeof *at);
    f->x = gptsi_fit_cut(&at, n); f->rho = gptsi_fit_cut(&at, S); f->share = gptsi_fit_cut(&at, (S - W) * R);
    f->u = gptsi_fit_cut(&at, S); f->w = gptsi_fit_cut(&at, S); f->turned = gptsi_fit_cut(&at, S); f->e = gptsi_fit_cut(&at, S);
    f->we = gptsi_fit_cut(&at, S); f->eu = gptsi_fit_cut(&at, S);
    f->a = gptsi_fit_cut(&at, S); f->r = gptsi_fit_cut(&at, S); f->s = gptsi_fit_cut(&at, S); f->m = gptsi_fit_cut(&at, S);
    f->g = gptsi_fit_cut(&at, n); f->scale = gptsi_fit_cut(&at, n); f->t = gptsi_fit_cut(&at, n); f->residual = gptsi_fit_cut(&at, n);
    f->p = gptsi_fit_cut(&at, n); f->hp = gptsi_fit_cut(&at, n); f->kept = gptsi_fit_cut(&at, n);
    f->turn = gptsi_fit_cut(&at, f->N); f->uw = gptsi_fit_cut(&at, 2 * f->N); f->eh = gptsi_fit_cut(&at, 2 * f->N);
    f->back = gptsi_fit_cut(&at, 2 * f->N); f->z = gptsi_fit_cut(&at, 2 * f->N); f->y = gptsi_fit_cut(&at, 2 * f->N);
    for (k = 0; k < f->N / 2; k++) {
        double angle = 2 * 3.141592653589793 * (double)k / (double)N;
        f->turn[k] = cos(angle); f->turn[N / 2 + k] = -sin(angle);
    }
    return GPTS_OK;
}
static void gptsi_fit_free(gptsi_fit *f, const gpts_hooks *hooks) { gptsi_delete(hooks, f->block); f->block = NULL; }

/* The transform sum_j z[j] exp(-2 pi i j k / N) of z [2,N] (f->z or f->y, the other one is
   work); returns where it is.  (Cooley & Tukey, Mathematics of Computation 19, 1965, in
   Stockham's order.)                                                                         */
GPTSI_HOT static double *gptsi_fit_transform(const gptsi_fit *f, double *z, double *y)
{
    size_t N = f->N, half, s, p, q;
    for (half = N / 2, s = 1; half; half /= 2, s *= 2) {
        double *turned = z;
        for (p = 0; p < half; p++) {
            const double *a = z + p * s, *b = a + half * s;
            double *even = y + 2 * p * s, *odd = even + s, c = f->turn[p * s], d = f->turn[N / 2 + p * s];
            for (q = 0; q < s; q++) {
                double re = a[q] - b[q], im = a[N + q] - b[N + q];
                even[q] = a[q] + b[q];      even[N + q] = a[N + q] + b[N + q];
                odd[q] = c * re - d * im;   odd[N + q] = c * im + d * re;
            }
        }
        z = y; y = turned;
    }
    return z;
}
/* the transform of re + i im, [S] each (im may be NULL), zeros after them; in f->z or f->y */
static double *gptsi_fit_spectrum(const gptsi_fit *f, const double *re, const double *im)
{
    memset(f->z, 0, 2 * f->N * sizeof *f->z);
    memcpy(f->z, re, f->S * sizeof *re);
    if (im) memcpy(f->z + f->N, im, f->S * sizeof *im);
    return gptsi_fit_transform(f, f->z, f->y);
}

/* rho, share from x */
static void gptsi_fit_expand(gptsi_fit *f)
{
    const double *c = f->x + f->S + f->W, *decay = c + f->R;
    size_t d, k, r;
    memcpy(f->rho, f->x + f->S, f->W * sizeof *f->rho);
    for (d = f->W; d < f->S; d++) {
        double *share = f->share + (d - f->W) * f->R, most = -HUGE_VAL, sum = 0;
        k = d - f->W;
        for (r = 0; r < f->R; r++) {
            share[r] = c[r] - (double)k * exp(decay[r]);
            most = fmax(most, share[r]);
        }
        for (r = 0; r < f->R; r++) sum += share[r] = exp(share[r] - most);
        for (r = 0; r < f->R; r++) share[r] /= sum;
        f->rho[d] = most + log(sum);
    }
}

/* u, w, e at x; returns f (F2), infinity where the exponents leave the range of a double */
static double gptsi_fit_value(gptsi_fit *f)
{
    double low[2] = { HUGE_VAL, HUGE_VAL }, high[2] = { -HUGE_VAL, -HUGE_VAL }, alpha0, rho0, sum = 0;
    const double *alpha = f->x;
    size_t S = f->S, i;
    gptsi_fit_expand(f);
    for (i = 0; i < S; i++) {
        gptsi_static_range(alpha[i], &low[0], &high[0]);
        gptsi_static_range(f->rho[i], &low[1], &high[1]);
    }
    if (!(high[0] - low[0] + high[1] - low[1] <= 1300)) return HUGE_VAL;
    alpha0 = 0.5 * (low[0] + high[0]); rho0 = 0.5 * (low[1] + high[1]);
    for (i = 0; i < S; i++) { f->u[i] = exp(alpha[i] - alpha0); f->w[i] = f->turned[S - 1 - i] = exp(f->rho[i] - rho0); }
    for (i = 0; i < S; i++) {
        double z = f->dot(f->u, f->turned + (S - 1 - i), i + 1);
        f->e[i] = 1 / z;
        sum += alpha0 + rho0 + log(z) - f->column[i] * alpha[i] - f->diagonal[i] * f->rho[i];
    }
    return sum / (double)S;
}

/* out [n] = J' (alpha, rho): rho's tail goes to ln c and ln(-ln lambda); J is their derivative */
static void gptsi_fit_gather(const gptsi_fit *f, double *out, const double *alpha, const double *rho)
{
    const double *decay = f->x + f->S + f->W + f->R;
    size_t d, r;
    memcpy(out, alpha, f->S * sizeof *out);
    memcpy(out + f->S, rho, f->W * sizeof *out);
    out += f->S + f->W;
    for (r = 0; r < 2 * f->R; r++) out[r] = 0;
    for (d = f->W; d < f->S; d++) for (r = 0; r < f->R; r++) {
        double x = f->share[(d - f->W) * f->R + r] * rho[d];
        out[r] += x;
        out[f->R + r] -= x * (double)(d - f->W) * exp(decay[r]);
    }
}

/* (F3), first line: g =; the masses' own sums we, eu =; scale = the curvature's diagonal */
static void gptsi_fit_gradient(gptsi_fit *f)
{
    const double *decay = f->x + f->S + f->W + f->R;
    size_t S = f->S, i, d, r;
    double n = 1 / (double)S;
    for (i = 0; i < S; i++) {
        f->we[i] = f->dot(f->w, f->e + i, S - i);
        f->eu[i] = f->dot(f->u, f->e + i, S - i);
        f->a[i] = n * (f->u[i] * f->we[i] - f->column[i]);
        f->r[i] = n * (f->w[i] * f->eu[i] - f->diagonal[i]);
    }
    gptsi_fit_gather(f, f->g, f->a, f->r);
    for (i = 0; i < S; i++) { f->r[i] = f->w[i] * f->w[i]; f->s[i] = f->u[i] * f->u[i]; f->m[i] = f->e[i] * f->e[i]; }
    for (i = 0; i < f->n; i++) f->scale[i] = 0;
    for (i = 0; i < S; i++) {
        double rest = n * fmax(f->w[i] * f->eu[i] - f->r[i] * f->dot(f->s, f->m + i, S - i), 1e-15);
        f->scale[i] = n * fmax(f->u[i] * f->we[i] - f->s[i] * f->dot(f->r, f->m + i, S - i), 1e-15);
        if (i < f->W) { f->scale[S + i] = rest; continue; }
        for (d = i - f->W, r = 0; r < f->R; r++) {
            double share = f->share[d * f->R + r], slope = share * (double)d * exp(decay[r]);
            f->scale[S + f->W + r] += rest * share * share;
            f->scale[S + f->W + f->R + r] += rest * slope * slope;
        }
    }
    for (i = 0; i < f->n; i++) f->scale[i] = fmax(f->scale[i], 1e-15 * n);
    f->smooth = 0;
    if (f->N) {              /* a transform errs by about 1e-16 of the norms' product: 1e-8 of the least sum at most */
        double u = sqrt(f->dot(f->u, f->u, S)), w = sqrt(f->dot(f->w, f->w, S)), e = sqrt(f->dot(f->e, f->e, S)), worst = 0;
        for (i = 0; i < S; i++) worst = fmax(worst, fmax(u * w * f->e[i], fmax(w * e / f->we[i], u * e / f->eu[i])));
        f->smooth = worst <= 1e8;
    }
    if (f->smooth) {
        memcpy(f->uw, gptsi_fit_spectrum(f, f->u, f->w), 2 * f->N * sizeof *f->uw);
        memcpy(f->eh, gptsi_fit_spectrum(f, f->e, NULL), 2 * f->N * sizeof *f->eh);
    }
}

/* The sums of gptsi_fit_curvature by Fourier's transform: with z = a + i r and v = u + i w,
       mean[i] = Im sum_{j<=i} z[j] v[i-j],   back[d] = sum_i e[i] z[i-d] - m[i] v[i-d] = out + i s
   m [S] = e e mean; s, out [S] =.  A fit at S = 4096 takes 1.9 s instead of 5.9.                */
static void gptsi_fit_smooth(gptsi_fit *f, double *out)
{
    size_t N = f->N, i, k;
    double *z = gptsi_fit_spectrum(f, f->a, f->r), *y = z == f->z ? f->y : f->z, *v = f->uw, *e = f->eh, *m, *kept = f->back;
    memcpy(kept, z, 2 * N * sizeof *z);
    for (k = 0; k < N; k++) {                                 /* imaginary part first: the way back */
        double re = z[k] * v[k] - z[N + k] * v[N + k], im = z[k] * v[N + k] + z[N + k] * v[k];
        z[k] = im; z[N + k] = re;
    }
    z = gptsi_fit_transform(f, z, y);
    for (i = 0; i < f->S; i++) f->m[i] = f->e[i] * f->e[i] * (z[i] / (double)N);
    m = gptsi_fit_spectrum(f, f->m, NULL);
    y = m == f->z ? f->y : f->z;
    for (k = 0; k < N; k++) {                                 /* Fourier's of x[-k] is the one of x at -k */
        size_t o = (N - k) & (N - 1);
        y[N + k] = e[k] * kept[o] - e[N + k] * kept[N + o] - (m[k] * v[o] - m[N + k] * v[N + o]);
        y[k] = e[k] * kept[N + o] + e[N + k] * kept[o] - (m[k] * v[N + o] + m[N + k] * v[o]);
    }
    z = gptsi_fit_transform(f, y, m);
    for (i = 0; i < f->S; i++) { f->s[i] = z[i] / (double)N; out[i] = z[N + i] / (double)N; }
}

/* The same by products: S^2/2 each. */
static void gptsi_fit_products(gptsi_fit *f, double *out)
{
    size_t S = f->S, i;
    for (i = 0; i < S; i++) f->s[S - 1 - i] = f->r[i];
    for (i = 0; i < S; i++)
        f->m[i] = f->e[i] * f->e[i] * (f->dot(f->a, f->turned + (S - 1 - i), i + 1) + f->dot(f->u, f->s + (S - 1 - i), i + 1));
    for (i = 0; i < S; i++) {
        f->s[i] = f->dot(f->r, f->e + i, S - i) - f->dot(f->w, f->m + i, S - i);
        out[i] = f->dot(f->a, f->e + i, S - i) - f->dot(f->u, f->m + i, S - i);
    }
}

/* (F3), second line: out [n] = J'HJ t */
static void gptsi_fit_curvature(gptsi_fit *f, double *out, const double *t)
{
    const double *decay = f->x + f->S + f->W + f->R, *c = t + f->S + f->W;
    size_t S = f->S, i, d, r;
    double n = 1 / (double)S;
    for (i = 0; i < S; i++) {
        double rho = i < f->W ? t[S + i] : 0;
        for (d = i - f->W, r = 0; i >= f->W && r < f->R; r++)
            rho += f->share[d * f->R + r] * (c[r] - (double)d * exp(decay[r]) * c[f->R + r]);
        f->a[i] = f->u[i] * t[i];
        f->r[i] = f->w[i] * rho;
    }
    if (f->smooth) gptsi_fit_smooth(f, out);
    else gptsi_fit_products(f, out);
    for (i = 0; i < S; i++) {
        f->s[i] = n * (f->a[i] * f->we[i] + f->u[i] * f->s[i]);
        out[i] = n * (f->r[i] * f->eu[i] + f->w[i] * out[i]);
    }
    memcpy(f->r, out, S * sizeof *out);
    gptsi_fit_gather(f, out, f->s, f->r);
}

/* t solves (J'HJ + damping scale) t = -g to a residual of `exact` times g's, in the norm of
   1/scale; returns -<g, t> */
static double gptsi_fit_direction(gptsi_fit *f, double damping, double exact, size_t most, size_t *products)
{
    size_t n = f->n, i, k;
    double rho = 0, first, next, step, gt = 0;
    for (i = 0; i < n; i++) {
        f->t[i] = 0;
        f->residual[i] = -f->g[i];
        f->p[i] = f->residual[i] / f->scale[i];
        rho += f->residual[i] * f->p[i];
    }
    first = rho;
    for (k = 0; k < most && rho > exact * exact * first; k++) {
        double curve;
        gptsi_fit_curvature(f, f->hp, f->p);
        for (i = 0; i < n; i++) f->hp[i] += damping * f->scale[i] * f->p[i];
        curve = f->dot(f->p, f->hp, n);
        if (!(curve > 0)) break;
        step = rho / curve;
        next = 0;
        for (i = 0; i < n; i++) {
            f->t[i] += step * f->p[i];
            f->residual[i] -= step * f->hp[i];
            next += f->residual[i] * f->residual[i] / f->scale[i];
        }
        for (i = 0; i < n; i++) f->p[i] = f->residual[i] / f->scale[i] + next / rho * f->p[i];
        rho = next;
    }
    *products += k;
    for (i = 0; i < n; i++) gt -= f->g[i] * f->t[i];
    return gt;
}

static double gptsi_fit_spread(const double *t, size_t n)
{
    double low = HUGE_VAL, high = -HUGE_VAL;
    size_t i;
    for (i = 0; i < n; i++) gptsi_static_range(t[i], &low, &high);
    return n ? high - low : 0;
}

/* Newton (R = 0) or Gauss-Newton with damping, from f->x on, until (F4) holds for `tolerance`
   nats a row (R = 0), or no step promises more than that; f->f, f->bound =                  */
static void gptsi_fit_solve(gptsi_fit *f, double tolerance, size_t most, size_t *steps, size_t *products)
{
    double damping = 1e-3, trial, used;
    size_t i, n = f->n;
    f->f = gptsi_fit_value(f);
    f->bound = HUGE_VAL;
    for (; *steps < most; ++*steps) {
        double promise;
        int proved;
        gptsi_fit_gradient(f);
        used = damping;
        promise = gptsi_fit_direction(f, used, 0.01, 300, products);
        proved = used == 0 && gptsi_fit_spread(f->t, f->S) + gptsi_fit_spread(f->t + f->S, f->W) <= 0.01;
        memcpy(f->kept, f->x, n * sizeof *f->x);
        for (i = 0; i < n; i++) f->x[i] += f->t[i];
        trial = gptsi_fit_value(f);
        if (trial <= f->f + 1e-14) {
            f->f = trial;
            damping = used < 1e-7 ? 0 : used * 0.03;
        } else {
            memcpy(f->x, f->kept, n * sizeof *f->x);
            gptsi_fit_value(f);
            damping = used > 0 ? used * 10 : 1e-6;
            if (damping > 1e6) return;
            continue;
        }
        if (promise <= tolerance && (f->R || proved)) { f->bound = promise; ++*steps; return; }
    }
}

/* Where the linear form starts: alpha and near rho of the exact fit `x`; decays spread evenly in
   the logarithm of their reach, from one distance to all; coefficients by multiplicative updates
   that lower the divergence of the tail's masses (Richardson 1972, Lucy 1974).                 */
static void gptsi_fit_tail(gptsi_fit *f, const double *x)
{
    enum { SWEEPS = 60 };
    size_t S = f->S, W = f->W, R = f->R, d, r, sweep;
    double *c = f->x + S + W, *decay = c + R, most = -HUGE_VAL, *up = f->t, *down = f->p;
    memcpy(f->x, x, (S + W) * sizeof *x);
    for (d = W; d < S; d++) most = fmax(most, x[S + d]);
    for (r = 0; r < R; r++) {
        decay[r] = -log((double)(S - W)) * (R > 1 ? (double)r / (double)(R - 1) : 0.5);
        c[r] = most - log((double)R);
    }
    for (sweep = 0; sweep < SWEEPS; sweep++) {
        gptsi_fit_expand(f);
        for (r = 0; r < R; r++) up[r] = down[r] = 0;
        for (d = W; d < S; d++) {
            double ratio = exp(f->rho[d] - x[S + d]);         /* the tail there over the exact fit's */
            for (r = 0; r < R; r++) {
                double share = f->share[(d - W) * R + r] * f->diagonal[d];
                up[r] += share;
                down[r] += share * ratio;
            }
        }
        for (r = 0; r < R; r++) if (down[r] > 0 && up[r] > 0) c[r] += log(up[r] / down[r]);
    }
}

/* Canonical gauge of alpha [S], rho [S]: the column-weighted mean and slope of alpha are 0, and z is 0
   on average, so that rho[d] reads as the logarithm of a usual weight at distance d.                 */
static void gptsi_fit_gauge(gptsi_fit *f)
{
    double mass = 0, centre = 0, mean = 0, slope = 0, square = 0, z = 0, *alpha = f->x, *rho = f->x + f->S;
    size_t S = f->S, j;
    for (j = 0; j < S; j++) { mass += f->column[j]; centre += f->column[j] * (double)j; mean += f->column[j] * alpha[j]; }
    centre /= mass; mean /= mass;
    for (j = 0; j < S; j++) {
        slope += f->column[j] * ((double)j - centre) * (alpha[j] - mean);
        square += f->column[j] * ((double)j - centre) * ((double)j - centre);
    }
    slope = square > 0 ? slope / square : 0;
    for (j = 0; j < S; j++) { alpha[j] -= mean + slope * ((double)j - centre); rho[j] -= slope * (double)j; }
    f->f = gptsi_fit_value(f);
    z = f->f;                                                 /* f is the mean of z less the masses' share */
    for (j = 0; j < S; j++) z += (f->column[j] * alpha[j] + f->diagonal[j] * rho[j]) / (double)S;
    for (j = 0; j < S; j++) rho[j] -= z;
    f->f = gptsi_fit_value(f);
}

/* KL(exact_i || linear_i) of the worst row; a and b hold u, w, e of their values */
static double gptsi_fit_worst(gptsi_fit *exact, const gptsi_fit *linear)
{
    size_t S = exact->S, i;
    double worst = 0, *du = exact->a, *dw = exact->s;
    for (i = 0; i < S; i++) {
        du[i] = exact->u[i] * log(exact->u[i] / linear->u[i]);
        dw[S - 1 - i] = exact->w[i] * log(exact->w[i] / linear->w[i]);
    }
    for (i = 0; i < S; i++) {
        double mean = exact->dot(du, exact->turned + (S - 1 - i), i + 1) + exact->dot(exact->u, dw + (S - 1 - i), i + 1);
        worst = fmax(worst, exact->e[i] * mean + log(exact->e[i] / linear->e[i]));
    }
    return worst;
}

GPTS_API void gpts_pattern_fit_free(gpts_pattern_fit *fit)
{
    if (!fit) return;
    gptsi_delete(&fit->hooks, fit->alpha);
    fit->alpha = fit->rho = fit->coef = fit->decay = NULL;
}

/* The linear form, its useless terms (below 1e-9 of the tail everywhere) left out. */
static void gptsi_fit_read_linear(gpts_pattern_fit *fit, gptsi_fit *f)
{
    const double *c = f->x + f->S + f->W, *decay = c + f->R;
    size_t r, k;
    fit->W = f->W; fit->R = 0;
    for (r = 0; r < f->R; r++) {
        double most = 0;
        for (k = 0; k < f->S - f->W; k++) most = fmax(most, f->share[k * f->R + r]);
        if (most < 1e-9 || c[r] < -80) continue;
        fit->coef[fit->R] = exp(c[r]);
        fit->decay[fit->R++] = exp(-fmin(exp(decay[r]), 80));         /* stays above 0 in float */
    }
    memcpy(fit->alpha, f->x, f->S * sizeof *f->x);
    memcpy(fit->rho, f->rho, f->S * sizeof *f->x);
}

GPTS_API gpts_status gpts_pattern_fit_make(gpts_pattern_fit *fit, const double *column, const double *diagonal, double information,
                                           size_t S, double tolerance, size_t near_limit, size_t terms_limit,
                                           const gpts_hooks *hooks)
{
    enum { STEPS = 100, RUNGS = 5 };
    gptsi_fit exact, linear;
    size_t W, R, j, rung, products = 0;
    double columns = 0, diagonals = 0;
    gpts_status status;
    memset(fit, 0, sizeof *fit);
    if (hooks) fit->hooks = *hooks;
    W = gptsi_min(near_limit ? near_limit : gptsi_max(64, S / 16), S ? S - 1 : 0);
    R = gptsi_min(terms_limit ? terms_limit : 16, GPTSI_STATIC_TERMS);
    for (j = 0; j < S; j++) {
        if (!(column[j] > 0) || !(diagonal[j] > 0)) break;
        columns += column[j]; diagonals += diagonal[j];
    }
    if (!S || j < S || !(fabs(columns - (double)S) <= 1e-6 * (double)S) || !(fabs(diagonals - (double)S) <= 1e-6 * (double)S)
        || !(fabs(information) <= DBL_MAX))
        return gptsi_fail(fit->error, GPTS_BAD_ARGUMENT,
                          "masses of a pattern of %llu rows are positive and add up to that, by key and by distance; information is finite", (unsigned long long)S);
    GPTSI_TRY(gptsi_fit_init(&exact, column, diagonal, S, S, 0, hooks, fit->error));
    if (!(fit->alpha = GPTSI_NEW(hooks, double, 2 * (S + R)))) {
        gptsi_fit_free(&exact, hooks);
        return gptsi_no_memory(fit->error, "a pattern", 2 * (S + R), sizeof(double));
    }
    fit->rho = fit->alpha + S; fit->coef = fit->rho + S; fit->decay = fit->coef + R;
    fit->S = S;
    for (j = 0; j < S; j++) exact.x[S + j] = log(diagonal[j] / (double)(S - j));           /* the mean weight at each distance */
    gptsi_fit_solve(&exact, 1e-9, STEPS, &fit->steps, &products);
    gptsi_fit_gauge(&exact);
    gptsi_fit_gradient(&exact);
    for (j = 0; j < S; j++) {
        fit->mass_error = fmax(fit->mass_error, fabs(exact.u[j] * exact.we[j] / column[j] - 1));
        fit->mass_error = fmax(fit->mass_error, fabs(exact.w[j] * exact.eu[j] / diagonal[j] - 1));
    }
    fit->W = S; fit->bound = exact.bound;
    fit->exact = fit->divergence = fmax(0, exact.f + information / (double)S);
    memcpy(fit->alpha, exact.x, S * sizeof *fit->alpha);
    memcpy(fit->rho, exact.x + S, S * sizeof *fit->rho);
    for (rung = 0, status = GPTS_OK; tolerance > 0 && W && rung < RUNGS; rung++) {       /* W and R double from rung to rung */
        size_t shift = RUNGS - 1 - rung, steps = 0;
        status = gptsi_fit_init(&linear, column, diagonal, S, gptsi_max(1, W >> shift), gptsi_max(1, R >> shift), hooks, fit->error);
        if (status != GPTS_OK) break;
        gptsi_fit_tail(&linear, exact.x);
        gptsi_fit_solve(&linear, 1e-3 * tolerance, STEPS, &steps, &products);
        fit->steps += steps;
        if (linear.f - exact.f <= tolerance) {
            fit->gap = linear.f - exact.f;
            fit->worst_gap = gptsi_fit_worst(&exact, &linear);
            fit->divergence = fit->exact + fit->gap;
            gptsi_fit_read_linear(fit, &linear);
            rung = RUNGS;
        }
        gptsi_fit_free(&linear, hooks);
    }
    gptsi_fit_free(&exact, hooks);
    if (status != GPTS_OK) gpts_pattern_fit_free(fit);
    return status;
}

/* ---- calibration ---------------------------------------------------------------------------
   A[n,i,j]: one head's weights in sequence n.  M = mean over n, cells below 1e-9 raised to it and
   rows scaled to 1.  Per head:

       column[j] = sum_i M[i,j],  diagonal[d] = sum_i M[i,i-d],  information = sum M ln M              (C1)
       variance   = 1/((N-1) T^2) sum_n || A_n - mean A ||^2                                           (S1)
       divergence = 1/(N T) sum_n sum_i KL(A_n[i] || mean A[i])                                        (S2)
       output     = 1/(N T) sum_n || (M - A_n) V_n W_o ||^2,  W_o the head's rows of c_proj            (S3)

   One panel of 64 rows at a time: for each sequence scores, softmax, and into the sums; then M's
   rows are whole and give up their masses.  Memory: Q, K, V of the N sequences for the layers at
   hand, and two panels [64,T] a worker.  Cost: 3 D products a cell and sequence.
   Test: tests/fit.c calibration_equals_the_definition.                                              */

typedef struct gptsi_calibrator {
    gpts_calibration *c;
    gptsi_cpu cpu;
    const gpts_heads *heads;
    size_t layer, N, T, width;                /* width of a row of qkv                       */
    const gpts_real *qkv, *y;                 /* [N,T,width], [N,T,K D] the heads' outputs    */
    const gpts_real *proj;                    /* [K D, C]                                    */
    size_t C;
    double scale;
    gpts_real *panels;                        /* of each worker: see gptsi_calibrate_head    */
    size_t panel_size;
} gptsi_calibrator;

/* the product on one worker alone */
static void gptsi_gemm_alone(gptsi_cpu *cpu, size_t worker, int ta, int tb, size_t M, size_t N, size_t K, const gpts_real *A, size_t lda,
                             const gpts_real *B, size_t ldb, gpts_real *C, size_t ldc)
{
    gptsi_product p;
    memset(&p, 0, sizeof p);
    p.cpu = cpu; p.q = cpu->kernels; p.ta = ta; p.tb = tb; p.M = M; p.N = N; p.K = K;
    p.A = A; p.lda = lda; p.B = B; p.ldb = ldb; p.C = C; p.ldc = ldc;
    gptsi_gemm_part(&p, 0, M, 0, N, cpu->scratch[worker]);
}

/* rows i0 .. i0+rows-1 of the weights of sequence n: a [rows,keys] = */
static void gptsi_calibrate_weights(gptsi_calibrator *k, size_t worker, size_t slot, size_t n, size_t i0, size_t rows, gpts_real *a)
{
    const gpts_heads *h = k->heads;
    size_t D = h->D, live = (size_t)h->live_slot[slot], keys = i0 + rows, T = k->T, i, j;
    const gpts_real *q = k->qkv + n * T * k->width + live * D, *key = q + h->U * D;
    gptsi_gemm_alone(&k->cpu, worker, 0, 1, rows, keys, D, q + i0 * k->width, k->width, key, k->width, a, T);
    for (i = 0; i < rows; i++) {
        gpts_real *row = a + i * T, top, sum;
        for (j = 0; j <= i0 + i; j++) row[j] *= (gpts_real)k->scale;
        top = k->cpu.kernels->maximum(row, i0 + i + 1);
        sum = k->cpu.kernels->exp_row(row, row, i0 + i + 1, top);
        for (j = 0; j <= i0 + i; j++) row[j] /= sum;
        for (; j < keys; j++) row[j] = 0;
    }
}

static void gptsi_calibrate_head(gptsi_calibrator *k, size_t worker, size_t slot)
{
    enum { ROWS = 64 };
    gpts_calibration *c = k->c;
    const gpts_heads *h = k->heads;
    size_t T = k->T, N = k->N, D = h->D, at = k->layer * c->H + (size_t)h->kept[slot], i0, i, j, n, d, e;
    gpts_real *mean = k->panels + worker * k->panel_size, *a = mean + ROWS * T, *gram = a + ROWS * T, *out = gram + D * D, *out2 = out + ROWS * D;
    const gpts_real *proj = k->proj + slot * D * k->C;
    double *column = c->column + at * T, *diagonal = c->diagonal + at * T, squares = 0, of_mean = 0, entropy = 0, cross = 0, change = 0;
    gptsi_gemm_alone(&k->cpu, worker, 0, 1, D, D, k->C, proj, k->C, proj, k->C, gram, D);
    c->information[at] = 0;
    for (i0 = 0; i0 < T; i0 += ROWS) {
        size_t rows = gptsi_min(ROWS, T - i0), keys = i0 + rows;
        memset(mean, 0, ROWS * T * sizeof *mean);
        for (n = 0; n < N; n++) {
            gptsi_calibrate_weights(k, worker, slot, n, i0, rows, a);
            for (i = 0; i < rows; i++) for (j = 0; j <= i0 + i; j++) {
                double p = (double)a[i * T + j];
                mean[i * T + j] += a[i * T + j];
                squares += p * p;
                if (p > 0) entropy += p * log(p);
            }
        }
        for (i = 0; i < rows; i++) {
            gpts_real *row = mean + i * T;
            double sum = 0;
            for (j = 0; j <= i0 + i; j++) {
                double p = (double)row[j] / (double)N;
                of_mean += p * p;
                if (p > 0) cross += p * log(p);
                row[j] = (gpts_real)(p > 1e-9 ? p : 1e-9);
                sum += (double)row[j];
            }
            for (j = 0; j <= i0 + i; j++) {
                double p = (double)row[j] / sum;
                row[j] = (gpts_real)p;
                column[j] += p;
                diagonal[i0 + i - j] += p;
                c->information[at] += p * log(p);
            }
            if (c->mean) memcpy(c->mean + (at * T + i0 + i) * T, row, (i0 + i + 1) * sizeof *row);
        }
        for (n = 0; n < N; n++) {                                /* (S3): (M V - y) G (M V - y), G = W_o W_o^T */
            const gpts_real *v = k->qkv + n * T * k->width + (2 * h->U + slot) * D, *y = k->y + (n * T + i0) * h->K * D + slot * D;
            gptsi_gemm_alone(&k->cpu, worker, 0, 0, rows, D, keys, mean, T, v, k->width, out, D);
            for (i = 0; i < rows; i++) for (d = 0; d < D; d++) out[i * D + d] -= y[i * h->K * D + d];
            gptsi_gemm_alone(&k->cpu, worker, 0, 0, rows, D, D, out, D, gram, D, out2, D);
            for (e = 0; e < rows * D; e++) change += (double)out[e] * (double)out2[e];
        }
    }
    c->variance[at] = N > 1 ? fmax(0, squares - (double)N * of_mean) / ((double)(N - 1) * (double)T * (double)T) : 0;
    c->divergence[at] = fmax(0, (entropy / (double)N - cross) / (double)T);
    c->output[at] = (change < 0 ? 0 : change) / ((double)N * (double)T);          /* NaN stays: see gpts_calibrate */
}
static void gptsi_calibrate_body(void *arg, size_t begin, size_t end, size_t worker)
{
    gptsi_calibrator *k = (gptsi_calibrator *)arg;
    for (; begin < end; begin++) if (k->heads->live_slot[begin] >= 0) gptsi_calibrate_head(k, worker, begin);
}

GPTS_API void gpts_calibration_free(gpts_calibration *c)
{
    if (!c) return;
    gptsi_delete(&c->hooks, c->column); gptsi_delete(&c->hooks, c->mean); gptsi_delete(&c->hooks, c->tokens);
    c->column = c->diagonal = c->information = c->variance = c->divergence = c->output = NULL;
    c->mean = NULL; c->tokens = NULL;
}

/* tensor's values, from wherever they are */
static gpts_status gptsi_download(gpts_model *m, const gpts_tensor *t, gpts_real **values)
{
    *values = GPTSI_NEW(&m->hooks, gpts_real, t->size);
    if (!*values) return gptsi_no_memory(m->error, t->name, t->size, sizeof **values);
    m->ops->download(m->device, *values, t->data, t->size * sizeof **values);
    return GPTS_OK;
}

/* the same where the model is: the sequences' Q, K, V stay on its device */
static gpts_status gptsi_calibrate_there(gptsi_calibrator *k, gpts_model *m, const int32_t *tokens)
{
    const gpts_heads *h = k->heads;
    const gpts_ops *op = m->ops;
    size_t T = k->T, N = k->N, a = op->activation_bytes, wide = (2 * h->U + h->K) * h->D * a, kept = h->K * h->D * a,
        lse = h->U * sizeof(gpts_real), n, b, bytes = 0;
    unsigned char *qkv, *y, *z;
    void *memory = NULL;
    gpts_status status = GPTS_OK;
    gpts_batch batch;
    gptsi_run run;
    memset(&batch, 0, sizeof batch); memset(&run, 0, sizeof run);
    batch.T = T; run.stop = k->layer;
    gptsi_take(NULL, &bytes, gptsi_mul(N, T), wide); gptsi_take(NULL, &bytes, gptsi_mul(N, T), kept); gptsi_take(NULL, &bytes, gptsi_mul(N, T), lse);
    if (bytes == SIZE_MAX || op->allocate(m->device, bytes, &memory) != GPTS_OK)
        return gptsi_no_memory(m->error, "queries, keys and values of the calibration", bytes, 1);
    bytes = 0;
    qkv = gptsi_take((unsigned char *)memory, &bytes, N * T, wide); y = gptsi_take((unsigned char *)memory, &bytes, N * T, kept);
    z = gptsi_take((unsigned char *)memory, &bytes, N * T, lse);
    for (n = 0; status == GPTS_OK && n < N; n += b) {
        b = gptsi_max(1, gptsi_min(N - n, 32768 / T));
        batch.tokens = tokens + n * T; batch.B = b;
        status = gptsi_forward(m, &batch, &run);
        if (status != GPTS_OK) break;
        op->copy(m->device, qkv + n * T * wide, m->work->layers[k->layer].qkv, b * T * wide);
        op->copy(m->device, y + n * T * kept, m->work->layers[k->layer].heads, b * T * kept);
        op->copy(m->device, z + n * T * lse, m->work->layers[k->layer].lse, b * T * lse);
    }
    if (status == GPTS_OK)
        status = op->calibrate(m->device, h, N, T, k->C, qkv, y, (const gpts_real *)(const void *)z,
                               gptsi_weight(m, k->layer, GPTS_P_ATTN_PROJ_W), k->scale, k->c, k->layer, m->error);
    op->release(m->device, memory);
    return status;
}

/* every layer in turn: run the sequences up to it, keep its Q, K, V, and let the heads work */
static gpts_status gptsi_calibrate_layer(gptsi_calibrator *k, gpts_model *m, const int32_t *tokens)
{
    const gpts_heads *h = k->heads;
    size_t T = k->T, n, D = h->D, wide = (2 * h->U + h->K) * D, kept = h->K * D;
    gpts_real *qkv, *y, *proj = NULL;
    gpts_status status;
    gpts_batch batch;
    gptsi_run run;
    memset(&batch, 0, sizeof batch); memset(&run, 0, sizeof run);
    batch.B = 1; batch.T = T; run.stop = k->layer;
    qkv = GPTSI_NEW(&m->hooks, gpts_real, gptsi_mul(k->N, gptsi_mul(T, wide + kept)));
    if (!qkv)
        return gptsi_no_memory(m->error, "queries, keys and values of the calibration", gptsi_mul(k->N, gptsi_mul(T, wide + kept)), sizeof *qkv);
    y = qkv + k->N * T * wide;
    status = gptsi_download(m, gptsi_layer_tensor(m, k->layer, GPTS_P_ATTN_PROJ_W), &proj);
    for (n = 0; status == GPTS_OK && n < k->N; n++) {
        batch.tokens = tokens + n * T;
        status = gptsi_forward(m, &batch, &run);
        if (status == GPTS_OK) status = gptsi_activations_read(m, qkv + n * T * wide, m->work->layers[k->layer].qkv, T * wide);
        if (status == GPTS_OK) status = gptsi_activations_read(m, y + n * T * kept, m->work->layers[k->layer].heads, T * kept);
    }
    k->qkv = qkv; k->y = y; k->proj = proj; k->width = wide;
    if (status == GPTS_OK) gptsi_cpu_parallel(&k->cpu, k->cpu.workers, h->K, gptsi_calibrate_body, k);
    gptsi_delete(&m->hooks, qkv); gptsi_delete(&m->hooks, proj);
    return status;
}

/* layer l's statistics were made by rank l mod size: every rank gets all */
static gpts_status gptsi_calibration_exchange(gpts_calibration *c, gpts_status status)
{
    const gpts_ranks *ranks = c->ranks;
    size_t l, h, i, H = c->H, T = c->T, most = gptsi_max(H * T * sizeof(double), c->mean ? T * T * sizeof(gpts_real) : 0);
    unsigned char *all;
    if (status != GPTS_OK || ranks->size <= 1) return status;
    if (!(all = (unsigned char *)gptsi_new(&c->hooks, (size_t)ranks->size, most)))
        return gptsi_no_memory(c->error, "the ranks' calibrations", (size_t)ranks->size, most);
    for (l = 0; status == GPTS_OK && l < c->L; l++) {
        size_t owner = l % (size_t)ranks->size;
        double *part[6];
        part[0] = c->column + l * H * T; part[1] = c->diagonal + l * H * T;
        part[2] = c->information + l * H; part[3] = c->variance + l * H; part[4] = c->divergence + l * H; part[5] = c->output + l * H;
        for (i = 0; status == GPTS_OK && i < 6; i++) {
            size_t bytes = H * (i < 2 ? T : 1) * sizeof(double);
            status = ranks->gather(ranks->context, part[i], bytes, all, c->error);
            memcpy(part[i], all + owner * bytes, bytes);
        }
        for (h = 0; status == GPTS_OK && c->mean && h < H; h++) {
            gpts_real *mean = c->mean + (l * H + h) * T * T;
            status = ranks->gather(ranks->context, mean, T * T * sizeof *mean, all, c->error);
            memcpy(mean, all + owner * T * T * sizeof *mean, T * T * sizeof *mean);
        }
    }
    gptsi_delete(&c->hooks, all);
    return status;
}

GPTS_API gpts_status gpts_calibrate(gpts_calibration *c, gpts_model *m, const int32_t *tokens, size_t n_sequences, size_t T)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, D = (size_t)(m->config.n_embd / m->config.n_head), l, i;
    int keep_mean = c->keep_mean;
    const gpts_ranks *ranks = c->ranks;
    gptsi_calibrator k;
    gpts_status status;
    gpts_calibration_free(c);
    memset(c, 0, sizeof *c);
    c->hooks = m->hooks; c->keep_mean = keep_mean; c->ranks = ranks;
    if (!tokens || !n_sequences || !T || gptsi_mul(n_sequences, T) > SIZE_MAX / 4096)
        return gptsi_fail(c->error, GPTS_BAD_ARGUMENT, "calibration needs tokens, and sequences and a length of 1 or more");
    c->L = L; c->H = H; c->T = T; c->n_sequences = n_sequences;
    c->column = GPTSI_NEW(&c->hooks, double, gptsi_mul(gptsi_mul(L, H), gptsi_add(gptsi_mul(2, T), 4)));
    c->tokens = GPTSI_NEW(&c->hooks, int32_t, n_sequences * T);
    if (keep_mean) c->mean = GPTSI_NEW(&c->hooks, gpts_real, gptsi_mul(gptsi_mul(L, H), gptsi_mul(T, T)));
    if (!c->column || !c->tokens || (keep_mean && !c->mean)) {
        gpts_calibration_free(c);
        return gptsi_no_memory(c->error, "the calibration", gptsi_mul(gptsi_mul(L, H), keep_mean ? gptsi_mul(T, T) : 2 * T), sizeof(double));
    }
    c->diagonal = c->column + L * H * T; c->information = c->diagonal + L * H * T;
    c->variance = c->information + L * H; c->divergence = c->variance + L * H; c->output = c->divergence + L * H;
    memcpy(c->tokens, tokens, n_sequences * T * sizeof *tokens);
    for (i = 0; i < L * H; i++) c->variance[i] = -1;
    memset(&k, 0, sizeof k);
    k.c = c; k.N = n_sequences; k.T = T; k.C = (size_t)m->config.n_embd; k.scale = gptsi_score_scale(m);
    k.panel_size = gptsi_add(gptsi_mul(128, T), D * D + 128 * D);
    status = gptsi_cpu_init(&k.cpu, &m->hooks, c->error);
    if (status == GPTS_OK) {
        k.panels = GPTSI_NEW(&m->hooks, gpts_real, gptsi_mul(k.cpu.workers, k.panel_size));
        if (!k.panels) status = gptsi_no_memory(c->error, "the calibration's panels", gptsi_mul(k.cpu.workers, k.panel_size), sizeof(gpts_real));
    }
    for (i = 0; status == GPTS_OK && i < m->n_tensors; i++) {
        double sum = 0;
        m->ops->sum_squares(m->device, &sum, m->tensors[i].data, m->tensors[i].size);
        if (!(sum <= DBL_MAX)) status = gptsi_fail(c->error, GPTS_NOT_FINITE, "calibration: the weight of %s is not finite", m->tensors[i].name);
    }
    for (l = 0; status == GPTS_OK && l < L; l++) {
        k.heads = &m->layers[l].heads; k.layer = l;
        if (!k.heads->U || (ranks && ranks->size > 1 && l % (size_t)ranks->size != (size_t)ranks->rank)) continue;
        status = m->ops->calibrate ? gptsi_calibrate_there(&k, m, tokens) : gptsi_calibrate_layer(&k, m, tokens);
        if (status != GPTS_OK) memcpy(c->error, m->error, sizeof c->error);
        for (i = 0; status == GPTS_OK && i < H; i++)
            if (!(c->output[l * H + i] <= DBL_MAX))
                status = gptsi_fail(c->error, GPTS_NOT_FINITE,
                                    "calibration: head %d of layer %d has weights or values that are not finite", (int)i, (int)l);
    }
    gptsi_delete(&m->hooks, k.panels);
    gptsi_cpu_free(&k.cpu);
    if (ranks) status = gptsi_calibration_exchange(c, gptsi_ranks_agree(ranks, status, &m->hooks, c->error));
    if (status != GPTS_OK) gpts_calibration_free(c);
    return status;
}

/* ---- selection ------------------------------------------------------------------------------- */

GPTS_API gpts_freeze_options gpts_freeze_options_default(void)
{
    gpts_freeze_options o;
    memset(&o, 0, sizeof o);
    o.share = 0.25; o.gate = 0.2; o.tolerance = 0.001;
    return o;
}

/* heads to freeze: round(share L H), ties up */
static size_t gptsi_freeze_count(const gpts_freeze_options *o, size_t all)
{
    return gptsi_min(all, o->heads ? o->heads : (size_t)(o->share * (double)all + 0.5));
}

static gpts_status gptsi_calibration_fits(gpts_calibration *c, gpts_model *m, const gpts_freeze_options *o)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, i;
    if (!c->column || c->L != L || c->H != H)
        return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "the calibration is of %llu layers of %llu heads, the model has %llu of %llu",
                          (unsigned long long)c->L, (unsigned long long)c->H, (unsigned long long)L, (unsigned long long)H);
    for (i = 0; i < L * H; i++)
        if (c->variance[i] >= 0) {
            const gpts_heads *h = &m->layers[i / H].heads;
            int32_t slot = gptsi_slot_of(h, (int32_t)(i % H));
            if (slot < 0 || h->live_slot[slot] < 0)
                return gptsi_fail(m->error, GPTS_BAD_ARGUMENT,
                                  "the calibration is of another state of the model: head %llu of layer %llu is no longer live",
                                  (unsigned long long)(i % H), (unsigned long long)(i / H));
        }
    if (!(o->share >= 0 && o->share <= 1) || o->gate != o->gate || !(o->tolerance >= 0) || o->selector < GPTS_SELECT_VARIANCE ||
        o->selector > GPTS_SELECT_LIST ||
        o->replacement < GPTS_REPLACE_LINEAR || o->replacement > GPTS_REPLACE_PRUNE || o->near_limit > INT32_MAX ||
        o->terms_limit > GPTSI_STATIC_TERMS)
        return gptsi_fail(m->error, GPTS_BAD_ARGUMENT,
                          "freezing: share in [0,1], gate a number, tolerance 0 or more, at most %d terms, a known selector and replacement",
                          (int)GPTSI_STATIC_TERMS);
    if (o->selector == GPTS_SELECT_LIST)
        for (i = 0; i < o->n_list; i++) {
            size_t j;
            if (o->list[i] < 0 || (size_t)o->list[i] >= L * H)
                return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "the list names head %ld, but the model has 0 .. %ld",
                                  (long)o->list[i], (long)(L * H) - 1);
            for (j = 0; j < i; j++)
                if (o->list[i] == o->list[j])
                    return gptsi_fail(m->error, GPTS_BAD_ARGUMENT, "the list names head %ld twice", (long)o->list[i]);
        }
    return GPTS_OK;
}

/* order [n] = the heads that have a score, the least first, ties by index; returns n */
static size_t gptsi_ranking(const double *score, size_t all, size_t *order)
{
    size_t n = 0, i, at;
    for (i = 0; i < all; i++) {
        if (score[i] != score[i]) continue;
        for (at = n++; at > 0 && score[order[at - 1]] > score[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

/* As many of each layer as the variance takes, but any of its heads: those first, in random order. */
static gpts_status gptsi_select_random(const gpts_calibration *c, gpts_model *m, const gpts_freeze_options *o, double *score)
{
    size_t all = c->L * c->H, n, i, l, taken, *order = GPTSI_NEW(&m->hooks, size_t, gptsi_mul(2, gptsi_add(all, 1))), *inner;
    double *chance;
    if (!order) return gptsi_no_memory(m->error, "the order of heads", 2 * all, sizeof *order);
    inner = order + all;
    n = gptsi_min(gptsi_ranking(score, all, order), gptsi_freeze_count(o, all));
    chance = GPTSI_NEW(&m->hooks, double, gptsi_add(c->H, 1));
    if (!chance) { gptsi_delete(&m->hooks, order); return gptsi_no_memory(m->error, "the order of heads", c->H, sizeof *chance); }
    for (l = 0; l < c->L; l++) {
        size_t live, quota = 0;
        for (i = 0; i < n; i++) quota += order[i] / c->H == l;
        for (i = 0; i < c->H; i++)
            chance[i] = score[l * c->H + i] == score[l * c->H + i] ? gptsi_unit(gptsi_hash(o->seed, 910003, l * c->H + i)) : score[l * c->H + i];
        live = gptsi_ranking(chance, c->H, inner);
        for (taken = 0; taken < live; taken++)
            score[l * c->H + inner[taken]] = chance[inner[taken]] + (taken < quota ? 0 : 1);
    }
    gptsi_delete(&m->hooks, chance);
    gptsi_delete(&m->hooks, order);
    return GPTS_OK;
}

/* (S5)  a gate z = 1 on a head's output scales its rows of c_proj, so that
       d loss / d z = sum over those rows of W dW;   score = sum_n | d loss_n / d z | / || of the layer ||
   Source: Michel, Levy, Neubig, NeurIPS 2019, section 4.1.  Test: tests/fit.c gate_scores_equal_differences. */
static gpts_status gptsi_select_gate(const gpts_calibration *c, gpts_model *m, double *score, int32_t *targets)
{
    gpts_trainer t;
    gpts_train_options options = gpts_train_options_default();
    size_t C = (size_t)m->config.n_embd, n, l, s, i, T = c->T;
    gpts_status status;
    GPTSI_TRY(gpts_trainer_init(&t, m, &options));
    for (i = 0; i < c->L * c->H; i++) if (score[i] == score[i]) score[i] = 0;
    for (n = 0, status = GPTS_OK; status == GPTS_OK && n < c->n_sequences; n++) {
        gpts_batch batch;
        memset(&batch, 0, sizeof batch);
        batch.B = 1; batch.T = T; batch.tokens = c->tokens + n * T; batch.targets = targets + n * T;
        status = gpts_trainer_accumulate(&t, &batch, NULL);
        for (l = 0; status == GPTS_OK && l < c->L; l++) {
            const gpts_heads *h = &m->layers[l].heads;
            const gpts_tensor *proj = gptsi_layer_tensor(m, l, GPTS_P_ATTN_PROJ_W);
            gpts_real *w = NULL, *g = NULL;
            if (!h->U) continue;
            status = gptsi_download(m, proj, &w);
            if (status == GPTS_OK && !(g = GPTSI_NEW(&m->hooks, gpts_real, proj->size)))
                status = gptsi_no_memory(m->error, "a gradient", proj->size, sizeof *g);
            if (status == GPTS_OK) m->ops->download(m->device, g, gpts_trainer_gradient(&t, proj), proj->size * sizeof *g);
            for (s = 0; status == GPTS_OK && s < h->K; s++) {
                double sum = 0;
                if (h->live_slot[s] < 0) continue;
                for (i = s * h->D * C; i < (s + 1) * h->D * C; i++) sum += (double)w[i] * (double)g[i];
                score[l * c->H + (size_t)h->kept[s]] += fabs(sum) / (double)gptsi_max(1, T - 1);
            }
            gptsi_delete(&m->hooks, w); gptsi_delete(&m->hooks, g);
        }
        for (i = 0; i < m->n_tensors; i++) {
            gpts_real *g = gpts_trainer_gradient(&t, &m->tensors[i]);
            if (g) m->ops->zero(m->device, g, m->tensors[i].size * sizeof *g);
        }
    }
    gpts_trainer_free(&t);
    for (l = 0; l < c->L; l++) {
        double norm = 0, *row = score + l * c->H;
        for (i = 0; i < c->H; i++) if (row[i] == row[i]) norm += row[i] * row[i];
        for (i = 0; i < c->H; i++) if (norm > 0 && row[i] == row[i]) row[i] /= sqrt(norm);
    }
    return status;
}

/* ---- fit of several heads, and their place in a model ------------------------------------------ */

typedef struct gptsi_fits {
    const gpts_calibration *c;
    const gpts_freeze_options *o;
    double tolerance;
    const size_t *order;
    gpts_pattern_fit *fit;                    /* [L H]                                       */
} gptsi_fits;
static void gptsi_fits_body(void *arg, size_t begin, size_t end, size_t worker)
{
    gptsi_fits *k = (gptsi_fits *)arg;
    (void)worker;
    for (; begin < end; begin++) {
        size_t at = k->order[begin], T = k->c->T;
        gpts_pattern_fit_make(&k->fit[at], k->c->column + at * T, k->c->diagonal + at * T, k->c->information[at], T,
                              k->tolerance, k->o->near_limit, k->o->terms_limit, &k->c->hooks);
    }
}
/* fits order[0 .. n-1], in parallel; the first failure's status */
static gpts_status gptsi_fits_make(gptsi_fits *k, size_t n, char *error)
{
    size_t i;
    /* a fit allocates, and a user's allocator is called by one thread at a time */
    gptsi_parallel(&k->c->hooks, k->c->hooks.allocate ? 1 : gptsi_workers(&k->c->hooks), n, gptsi_fits_body, k);
    for (i = 0; i < n; i++)
        if (!k->fit[k->order[i]].alpha) {
            memcpy(error, k->fit[k->order[i]].error, GPTS_ERROR_BYTES);
            return strstr(error, "out of memory") ? GPTS_NO_MEMORY : GPTS_BAD_ARGUMENT;
        }
    return GPTS_OK;
}

/* a row of one of the layer's static tensors, from doubles; the rest of the row is `rest` */
static gpts_status gptsi_static_write(gpts_model *m, size_t l, gpts_parameter kind, size_t row, const double *values, size_t n, double rest)
{
    gpts_tensor *t = gptsi_layer_tensor(m, l, kind);
    gpts_real *x;
    size_t i;
    if (!t) return GPTS_OK;
    if (!(x = GPTSI_NEW(&m->hooks, gpts_real, t->columns))) return gptsi_no_memory(m->error, t->name, t->columns, sizeof *x);
    for (i = 0; i < t->columns; i++) x[i] = (gpts_real)(i < n ? values[i] : rest);
    m->ops->upload(m->device, t->data + row * t->columns, x, t->columns * sizeof *x);
    gptsi_delete(&m->hooks, x);
    return GPTS_OK;
}
static gpts_status gptsi_static_place(gpts_model *m, size_t l, size_t head, const gpts_pattern_fit *fit)
{
    gpts_heads *h = &m->layers[l].heads;
    size_t row = (size_t)h->static_slot[gptsi_slot_of(h, (int32_t)head)];
    GPTSI_TRY(gptsi_static_write(m, l, GPTS_P_ALPHA, row, fit->alpha, fit->S, 0));
    GPTSI_TRY(gptsi_static_write(m, l, GPTS_P_RHO, row, fit->rho, fit->S, 0));
    GPTSI_TRY(gptsi_static_write(m, l, GPTS_P_TAIL_COEF, row, fit->coef, fit->R, 0));
    GPTSI_TRY(gptsi_static_write(m, l, GPTS_P_TAIL_DECAY, row, fit->decay, fit->R, 1));
    m->ops->forget(m->device, h);
    return GPTS_OK;
}

/* The layers' new shapes: accepted heads become static (or pruned), older static heads stay as
   they are.  starts [L,H]: W of each static head, in the order of the heads.                    */
static gpts_status gptsi_freeze_shapes(gpts_model *m, const gpts_calibration *c, const gpts_freeze_options *o, const gpts_pattern_fit *fit,
                                       const unsigned char *accepted, gptsi_layer_shape *shapes, int32_t *starts)
{
    size_t l, h, n;
    for (l = 0; l < c->L; l++) {
        gptsi_layer_shape *shape = &shapes[l];
        const gpts_heads *old = &m->layers[l].heads;
        int change = 0;
        if (!shape->kind) continue;
        for (h = 0; h < c->H; h++) if (accepted[l * c->H + h]) {
            const gpts_pattern_fit *f = &fit[l * c->H + h];
            change = 1;
            if (o->replacement == GPTS_REPLACE_PRUNE) { shape->kind[h] = GPTSI_PRUNED; continue; }
            shape->kind[h] = GPTSI_STATIC;
            if (f->R) { shape->tails = 1; shape->R = gptsi_max(shape->R, f->R); }
        }
        if (!change || o->replacement == GPTS_REPLACE_PRUNE) continue;
        if (old->n && old->S != c->T)
            return gptsi_fail(m->error, GPTS_UNSUPPORTED,
                              "layer %llu has static heads of length %llu; calibrate at that length to add to them, not at %llu",
                              (unsigned long long)l, (unsigned long long)old->S, (unsigned long long)c->T);
        shape->S = c->T; shape->train_patterns = old->n ? shape->train_patterns : o->train_patterns;
        for (h = 0, n = 0; h < c->H; h++) if (shape->kind[h] == GPTSI_STATIC) {
            int32_t slot = gptsi_slot_of(old, (int32_t)h), was = slot < 0 ? -1 : old->static_slot[slot];
            const gpts_pattern_fit *f = &fit[l * c->H + h];
            starts[l * c->H + n++] = was >= 0 ? (int32_t)gptsi_static_start(old, (size_t)was) : f->R ? (int32_t)f->W : (int32_t)c->T;
        }
        shape->tail_start = shape->tails ? starts + l * c->H : NULL;
    }
    return GPTS_OK;
}

/* accepted [L,H] heads get their fit's pattern (or go); on failure of the reshape nothing has changed */
static gpts_status gptsi_freeze_apply(gpts_model *m, gpts_trainer *trainer, const gpts_calibration *c, const gpts_freeze_options *o,
                                      const gpts_pattern_fit *fit, const unsigned char *accepted)
{
    size_t all = c->L * c->H, l, h, s, r, *terms = GPTSI_NEW(&m->hooks, size_t, gptsi_add(c->L, 1));
    int32_t *starts = GPTSI_NEW(&m->hooks, int32_t, gptsi_add(all, 1));
    gptsi_layer_shape *shapes = gptsi_shapes_of(m);
    gpts_status status = terms && starts && shapes ? GPTS_OK : gptsi_no_memory(m->error, "the layers' shapes", all, sizeof *starts);
    for (l = 0; status == GPTS_OK && l < c->L; l++) terms[l] = m->layers[l].heads.tail_start ? m->layers[l].heads.R : 0;
    if (status == GPTS_OK) status = gptsi_freeze_shapes(m, c, o, fit, accepted, shapes, starts);
    if (status == GPTS_OK) status = gptsi_model_reshape(m, trainer, shapes);
    for (l = 0; status == GPTS_OK && o->replacement != GPTS_REPLACE_PRUNE && l < c->L; l++) {
        gpts_tensor *decay = gptsi_layer_tensor(m, l, GPTS_P_TAIL_DECAY);
        const gpts_real one = 1;                              /* unused terms of older heads are 0 and 1 */
        for (s = 0; decay && s < decay->rows; s++)
            for (r = terms[l]; r < decay->columns; r++) m->ops->upload(m->device, decay->data + s * decay->columns + r, &one, sizeof one);
        for (h = 0; status == GPTS_OK && h < c->H; h++)
            if (accepted[l * c->H + h]) status = gptsi_static_place(m, l, h, &fit[l * c->H + h]);
    }
    gptsi_delete(&m->hooks, terms); gptsi_delete(&m->hooks, starts); gptsi_delete(&m->hooks, shapes);
    return status;
}

/* the same model with tensors of its own, in the same place */
static gpts_status gptsi_model_copy(gpts_model *copy, gpts_model *m)
{
    gptsi_layer_shape *shapes = gptsi_shapes_of(m);
    gpts_status status;
    size_t i;
    if (!shapes) return gptsi_no_memory(m->error, "the layers' shapes", 1, sizeof *shapes);
    status = gptsi_model_build(copy, &m->config, shapes, &m->hooks);
    gptsi_delete(&m->hooks, shapes);
    if (status != GPTS_OK) { memcpy(m->error, copy->error, sizeof m->error); return status; }
    for (i = 0; i < m->n_tensors; i++) m->ops->download(m->device, copy->tensors[i].data, m->tensors[i].data, m->tensors[i].size * sizeof(gpts_real));
    if (m->device == m->cpu) return GPTS_OK;
    status = gpts_model_move(copy, m->ops, m->device);
    if (status != GPTS_OK) { memcpy(m->error, copy->error, sizeof m->error); gpts_model_free(copy); }
    return status;
}

/* mean loss on the calibration's tokens */
static gpts_status gptsi_calibration_loss(const gpts_calibration *c, gpts_model *m, const int32_t *targets, double *loss)
{
    size_t n, T = c->T;
    double sum = 0, one;
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    for (n = 0; n < c->n_sequences; n++) {
        batch.B = 1; batch.T = T; batch.tokens = c->tokens + n * T; batch.targets = targets + n * T;
        GPTSI_TRY(gpts_model_forward(m, &batch, NULL, &one));
        sum += one;
    }
    *loss = sum / (double)c->n_sequences;
    return GPTS_OK;
}

/* (S4)  score = loss with this one head's fitted pattern in place, less the loss without.  One
   forward pass over the calibration's tokens a head.  Test: tests/fit.c swap_scores_equal_a_swap. */
static gpts_status gptsi_select_loss(gpts_calibration *c, gpts_model *m, double *score, const int32_t *targets)
{
    size_t all = c->L * c->H, i, n, *order = GPTSI_NEW(&m->hooks, size_t, gptsi_add(all, 1));
    gpts_freeze_options o = gpts_freeze_options_default();
    gptsi_fits fits;
    unsigned char *accepted;
    double base = 0, loss = 0;
    gpts_status status = GPTS_OK;
    memset(&fits, 0, sizeof fits);
    fits.c = c; fits.o = &o; fits.order = order;
    fits.fit = GPTSI_NEW(&m->hooks, gpts_pattern_fit, gptsi_add(all, 1));
    accepted = GPTSI_NEW(&m->hooks, unsigned char, gptsi_add(all, 1));
    o.replacement = GPTS_REPLACE_EXACT;
    if (!order || !fits.fit || !accepted) status = gptsi_no_memory(m->error, "the fits of all heads", all, sizeof *fits.fit);
    else {
        n = gptsi_ranking(score, all, order);
        status = gptsi_fits_make(&fits, n, m->error);
        if (status == GPTS_OK) status = gptsi_calibration_loss(c, m, targets, &base);
        for (i = 0; status == GPTS_OK && i < n; i++) {
            gpts_model copy;
            memset(&copy, 0, sizeof copy);
            memset(accepted, 0, all);
            accepted[order[i]] = 1;
            status = gptsi_model_copy(&copy, m);
            if (status == GPTS_OK) {
                status = gptsi_freeze_apply(&copy, NULL, c, &o, fits.fit, accepted);
                if (status == GPTS_OK) status = gptsi_calibration_loss(c, &copy, targets, &loss);
                if (status != GPTS_OK) memcpy(m->error, copy.error, sizeof m->error);
                score[order[i]] = loss - base;
            }
            gpts_model_free(&copy);
        }
    }
    for (i = 0; fits.fit && i < all; i++) gpts_pattern_fit_free(&fits.fit[i]);
    gptsi_delete(&m->hooks, fits.fit); gptsi_delete(&m->hooks, order); gptsi_delete(&m->hooks, accepted);
    return status;
}

GPTS_API gpts_status gpts_select(gpts_calibration *c, gpts_model *m, const gpts_freeze_options *options, double *score)
{
    gpts_freeze_options o = options ? *options : gpts_freeze_options_default();
    size_t all, i, n;
    const double *from;
    int32_t *targets = NULL;
    gpts_status status = GPTS_OK;
    GPTSI_TRY(gptsi_calibration_fits(c, m, &o));
    all = c->L * c->H;
    from = o.selector == GPTS_SELECT_DIVERGENCE ? c->divergence : o.selector == GPTS_SELECT_OUTPUT ? c->output : c->variance;
    for (i = 0; i < all; i++) score[i] = c->variance[i] < 0 ? (double)NAN : from[i];
    if (o.selector == GPTS_SELECT_RANDOM) return gptsi_select_random(c, m, &o, score);
    if (o.selector == GPTS_SELECT_LIST) {
        for (i = 0; i < all; i++) {
            for (n = 0; n < o.n_list && (size_t)o.list[n] != i; n++) {}
            if (score[i] == score[i]) score[i] = n < o.n_list ? (double)n : (double)NAN;
        }
        return GPTS_OK;
    }
    if (o.selector != GPTS_SELECT_LOSS && o.selector != GPTS_SELECT_GATE_TAYLOR) return GPTS_OK;
    if (!(targets = GPTSI_NEW(&m->hooks, int32_t, c->n_sequences * c->T)))
        return gptsi_no_memory(m->error, "targets", c->n_sequences * c->T, sizeof *targets);
    for (i = 0; i < c->n_sequences * c->T; i++) targets[i] = (i + 1) % c->T ? c->tokens[i + 1] : -1;
    status = o.selector == GPTS_SELECT_LOSS ? gptsi_select_loss(c, m, score, targets) : gptsi_select_gate(c, m, score, targets);
    gptsi_delete(&m->hooks, targets);
    return status;
}

/* ---- replacement --------------------------------------------------------------------------------- */

GPTS_API void gpts_freeze_report_free(gpts_freeze_report *report)
{
    if (!report) return;
    gptsi_delete(&report->hooks, report->heads);
    report->heads = NULL; report->n = 0;
}

/* the running mean: alpha = rho = 0, W = 1, one term that does not decay */
static void gptsi_fit_uniform(gpts_pattern_fit *fit)
{
    memset(fit->alpha, 0, 2 * fit->S * sizeof *fit->alpha);
    fit->W = fit->S > 1; fit->R = fit->S > 1; fit->coef[0] = fit->decay[0] = 1;
    if (fit->S == 1) fit->W = 1;
}

GPTS_API gpts_status gpts_freeze(gpts_model *m, gpts_trainer *trainer, gpts_calibration *c, const gpts_freeze_options *options,
                                 gpts_freeze_report *report)
{
    gpts_freeze_options o = options ? *options : gpts_freeze_options_default();
    size_t all, candidates = 0, wanted, taken = 0, next = 0, i, *order;
    gpts_freeze_report r;
    gptsi_fits fits;
    double *score;
    unsigned char *accepted;
    gpts_status status;
    if (report) memset(report, 0, sizeof *report);
    GPTSI_TRY(gptsi_calibration_fits(c, m, &o));
    all = c->L * c->H;
    memset(&r, 0, sizeof r); memset(&fits, 0, sizeof fits);
    r.hooks = m->hooks; r.wanted = wanted = gptsi_freeze_count(&o, all);
    score = GPTSI_NEW(&m->hooks, double, gptsi_add(all, 1)); order = GPTSI_NEW(&m->hooks, size_t, gptsi_add(all, 1));
    accepted = GPTSI_NEW(&m->hooks, unsigned char, gptsi_add(all, 1)); fits.fit = GPTSI_NEW(&m->hooks, gpts_pattern_fit, gptsi_add(all, 1));
    r.heads = GPTSI_NEW(&m->hooks, gpts_frozen_head, gptsi_add(all, 1));
    status = score && order && accepted && fits.fit && r.heads ? GPTS_OK
           : gptsi_no_memory(m->error, "the choice of heads", all, sizeof *fits.fit);
    if (status == GPTS_OK) status = gpts_select(c, m, &o, score);
    if (status == GPTS_OK) candidates = gptsi_ranking(score, all, order);
    fits.c = c; fits.o = &o; fits.tolerance = o.replacement == GPTS_REPLACE_LINEAR ? o.tolerance : 0;
    while (status == GPTS_OK && taken < wanted && next < candidates) {         /* what the gate refuses, the next make up for */
        size_t n = gptsi_min(wanted - taken, candidates - next);
        fits.order = order + next;
        if (o.replacement != GPTS_REPLACE_PRUNE || o.gate >= 0) status = gptsi_fits_make(&fits, n, m->error);
        for (i = next; status == GPTS_OK && i < next + n; i++) {
            gpts_pattern_fit *fit = &fits.fit[order[i]];
            gpts_frozen_head *head = &r.heads[taken];
            if (o.gate >= 0 && fit->exact > o.gate) { r.refused++; continue; }
            if (o.replacement == GPTS_REPLACE_UNIFORM) gptsi_fit_uniform(fit);
            accepted[order[i]] = 1;
            head->layer = (int32_t)(order[i] / c->H); head->head = (int32_t)(order[i] % c->H); head->score = score[order[i]];
            head->W = fit->W; head->R = fit->R; head->divergence = fit->divergence; head->gap = fit->gap;
            head->worst_gap = fit->worst_gap; head->mass_error = fit->mass_error;
            if (o.replacement != GPTS_REPLACE_PRUNE) { if (fit->R) r.linear++; else r.exact++; }
            taken++;
        }
        next += n;
    }
    r.n = taken;
    if (trainer) status = gptsi_ranks_agree(&trainer->ranks, status, &m->hooks, m->error);
    if (status == GPTS_OK && taken) status = gptsi_freeze_apply(m, trainer, c, &o, fits.fit, accepted);
    if (status == GPTS_OK && trainer && trainer->ranks.size > 1) status = gptsi_trainer_compare(trainer, &trainer->ranks);
    for (i = 0; fits.fit && i < all; i++) gpts_pattern_fit_free(&fits.fit[i]);
    gptsi_delete(&m->hooks, fits.fit); gptsi_delete(&m->hooks, score); gptsi_delete(&m->hooks, order);
    gptsi_delete(&m->hooks, accepted);
    if (status == GPTS_OK && report) *report = r;
    else gpts_freeze_report_free(&r);
    return status;
}

/* ==============================================================================
   @@SAMPLE  sessions with a cache; logits to token
   ============================================================================== */

/* A session keeps, per layer, what the next token needs of the past: keys and values of
   live heads (they grow with the context), W values and R states of linear static heads
   (they do not), the last k inputs of a windowed approximator.                            */

static gpts_status gptsi_session_said(gpts_session *s, gpts_status status)
{
    if (status != GPTS_OK) memcpy(s->error, s->model->error, sizeof s->error);
    return status;
}

static gpts_status gptsi_session_array(gpts_session *s, gpts_real **array, size_t count, size_t each, size_t size)
{
    gpts_model *m = s->model;
    size_t bytes = gptsi_mul(gptsi_mul(s->B, count), gptsi_mul(each, size));
    void *memory = NULL;
    if (!bytes) return GPTS_OK;
    if (bytes == SIZE_MAX || m->ops->allocate(m->device, bytes, &memory) != GPTS_OK)
        return gptsi_no_memory(s->error, "the session's cache", bytes, 1);
    m->ops->zero(m->device, memory, bytes);
    *array = (gpts_real *)memory;
    s->state_bytes += bytes;
    return GPTS_OK;
}

static gpts_status gptsi_session_make(gpts_session *s)
{
    gpts_model *m = s->model;
    size_t L = (size_t)m->config.n_layer, C = (size_t)m->config.n_embd, a = m->ops->activation_bytes, l;
    s->position = GPTSI_NEW(&s->hooks, int32_t, s->B);
    s->caches = GPTSI_NEW(&s->hooks, gpts_cache, L ? L : 1);
    s->logits = GPTSI_NEW(&s->hooks, gpts_real, gptsi_mul(s->B, (size_t)m->config.vocab_size));
    if (!s->position || !s->caches || !s->logits) return gptsi_no_memory(s->error, "the session", s->B, (size_t)m->config.vocab_size);
    for (l = 0; l < L; l++) {
        gpts_heads *heads = &m->layers[l].heads;
        gpts_cache *cache = &s->caches[l];
        cache->B = s->B; cache->capacity = s->capacity;
        GPTSI_TRY(gptsi_session_array(s, &cache->keys, gptsi_mul(heads->U, s->capacity), heads->D, a));
        GPTSI_TRY(gptsi_session_array(s, &cache->values, gptsi_mul(heads->U, s->capacity), heads->D, a));
        if (m->layers[l].window > 1) GPTSI_TRY(gptsi_session_array(s, &cache->window, m->layers[l].window, C, a));
        if (heads->n) {
            gpts_status status = m->ops->prepare(m->device, heads, s->capacity, m->error);
            if (status == GPTS_TOO_LONG) status = m->ops->prepare(m->device, heads, heads->S, m->error);   /* decode says so when it gets there */
            GPTSI_TRY(gptsi_session_said(s, status));
            gptsi_static_cache_size(heads, s->capacity, &cache->ring_rows, &cache->state_size);
            GPTSI_TRY(gptsi_session_array(s, &cache->ring, gptsi_mul(heads->n, cache->ring_rows), heads->D, a));
            GPTSI_TRY(gptsi_session_array(s, &cache->state, heads->n, cache->state_size, sizeof(gpts_real)));
        }
    }
    return GPTS_OK;
}

GPTS_API gpts_status gpts_session_init(gpts_session *s, gpts_model *m, size_t B, size_t capacity, const gpts_hooks *hooks)
{
    gpts_status status;
    char error[GPTS_ERROR_BYTES];
    memset(s, 0, sizeof *s);
    if (!B || !capacity || B > INT32_MAX || capacity > INT32_MAX)
        return gptsi_fail(s->error, GPTS_BAD_ARGUMENT, "a session needs a batch and a capacity of 1 or more");
    s->model = m; s->B = B; s->capacity = capacity; s->hooks = hooks ? *hooks : m->hooks;
    status = gptsi_session_make(s);
    if (status != GPTS_OK) {
        memcpy(error, s->error, sizeof error);
        gpts_session_free(s);
        memcpy(s->error, error, sizeof error);
    }
    return status;
}

GPTS_API void gpts_session_free(gpts_session *s)
{
    gpts_model *m = s ? s->model : NULL;
    gpts_hooks hooks;
    size_t l, i;
    if (!m) return;
    if (s->plan) m->ops->step_end(m->device, s);
    if (s->caches) for (l = 0; l < (size_t)m->config.n_layer; l++) {
        gpts_cache *cache = &s->caches[l];
        gpts_real *array[5];
        array[0] = cache->keys; array[1] = cache->values; array[2] = cache->window; array[3] = cache->ring; array[4] = cache->state;
        for (i = 0; i < 5; i++) if (array[i]) m->ops->release(m->device, array[i]);
    }
    hooks = s->hooks;
    gptsi_delete(&hooks, s->position); gptsi_delete(&hooks, s->caches); gptsi_delete(&hooks, s->logits);
    memset(s, 0, sizeof *s);
}

GPTS_API void gpts_session_reset(gpts_session *s)
{
    gpts_model *m = s->model;
    size_t l, a = m->ops->activation_bytes;
    memset(s->position, 0, s->B * sizeof *s->position);
    for (l = 0; l < (size_t)m->config.n_layer; l++) {              /* keys and values beyond the position are never read */
        gpts_cache *cache = &s->caches[l];
        const gpts_heads *heads = &m->layers[l].heads;
        if (cache->ring) m->ops->zero(m->device, cache->ring, s->B * heads->n * cache->ring_rows * heads->D * a);
        if (cache->state) m->ops->zero(m->device, cache->state, s->B * heads->n * cache->state_size * sizeof(gpts_real));
        if (cache->window) m->ops->zero(m->device, cache->window, s->B * m->layers[l].window * (size_t)m->config.n_embd * a);
    }
}

/* after a prefill: row b's window at its last token, one [k,C] of windows [B,T,k C] */
static void gptsi_session_keep_window(gpts_session *s, size_t l, const unsigned char *windows, const gpts_batch *batch)
{
    gpts_model *m = s->model;
    size_t bytes = m->layers[l].window * (size_t)m->config.n_embd * m->ops->activation_bytes, b;
    for (b = 0; b < batch->B; b++)
        m->ops->copy(m->device, (unsigned char *)(void *)s->caches[l].window + b * bytes,
                     windows + (b * batch->T + (size_t)batch->length[b] - 1) * bytes, bytes);
}

/* one more token: the oldest input leaves, the new one enters; windows [B,k C] = */
static void gptsi_session_shift_window(gpts_session *s, size_t l, unsigned char *windows, const unsigned char *rows, const int32_t *ids)
{
    gpts_model *m = s->model;
    size_t row = (size_t)m->config.n_embd * m->ops->activation_bytes, bytes = m->layers[l].window * row, b;
    for (b = 0; b < s->B; b++) {
        unsigned char *kept = (unsigned char *)(void *)s->caches[l].window + b * bytes;
        if (ids[b] >= 0) {
            m->ops->copy(m->device, kept, kept + row, bytes - row);
            m->ops->copy(m->device, kept + bytes - row, rows + b * row, row);
        }
        m->ops->copy(m->device, windows + b * bytes, kept, bytes);
    }
}

/* w->first = -position, so that embedding's t - first is the position; w->length = position, -1 for a resting row */
static void gptsi_step_upload(gpts_session *s, const int32_t *ids)
{
    gpts_model *m = s->model;
    gpts_work *w = m->work;
    size_t b;
    for (b = 0; b < s->B; b++) w->host[b] = ids[b] < 0 ? 0 : -s->position[b];
    m->ops->upload(m->device, w->first, w->host, s->B * sizeof *w->host);
    for (b = 0; b < s->B; b++) w->host[b] = ids[b] < 0 ? -1 : s->position[b];
    m->ops->upload(m->device, w->length, w->host, s->B * sizeof *w->host);
}

/* s->logits of rows [B,C] of activations; with `likeliest` [B], that token of each row, and where the device finds it itself
   the logits stay there */
static gpts_status gptsi_session_logits(gpts_session *s, const unsigned char *rows, int32_t *likeliest)
{
    gpts_model *m = s->model;
    gpts_work *w = m->work;
    size_t C = (size_t)m->config.n_embd, V = (size_t)m->config.vocab_size, b, n, i;
    int there = likeliest && m->ops->likeliest;
    for (b = 0; b < s->B; b += n) {
        n = gptsi_min(s->B - b, w->logits_rows);
        m->ops->logits(m->device, w->logits, rows + b * C * m->ops->activation_bytes, gptsi_output_matrix(m)->data, n, C, V);
        if (there) m->ops->likeliest(m->device, w->targets + b, w->logits, n, V);
        else m->ops->download(m->device, s->logits + b * V, w->logits, n * V * sizeof *s->logits);
        for (i = b; i < b + n && likeliest && !there; i++) likeliest[i] = gpts_sample(s->logits + i * V, V, NULL, NULL);
    }
    if (there) m->ops->download(m->device, likeliest, w->targets, s->B * sizeof *likeliest);
    return gptsi_session_said(s, m->ops->status(m->device, m->error));
}

static gpts_status gptsi_session_prefill(gpts_session *s, const int32_t *ids, size_t T, const int32_t *length)
{
    gpts_model *m = s->model;
    gpts_batch batch;
    gptsi_run run;
    gpts_status status;
    int32_t *lengths;
    size_t b;
    for (b = 0; b < s->B; b++) {
        if (s->position[b]) return gptsi_fail(s->error, GPTS_BAD_ARGUMENT, "prefill needs an empty session: reset it first");
        if (length && (length[b] < 1 || (size_t)length[b] > T))
            return gptsi_fail(s->error, GPTS_BAD_ARGUMENT, "row %llu has %ld tokens, expected 1 to %llu", (unsigned long long)b,
                              (long)length[b], (unsigned long long)T);
    }
    if (T > s->capacity)
        return gptsi_fail(s->error, GPTS_TOO_LONG, "%llu tokens do not fit a session of capacity %llu", (unsigned long long)T,
                          (unsigned long long)s->capacity);
    lengths = GPTSI_NEW(&m->hooks, int32_t, s->B);
    if (!lengths) return gptsi_no_memory(s->error, "a prefill", s->B, sizeof *lengths);
    for (b = 0; b < s->B; b++) lengths[b] = length ? length[b] : (int32_t)T;
    memset(&batch, 0, sizeof batch);
    batch.tokens = ids; batch.B = s->B; batch.T = T; batch.length = lengths;
    memset(&run, 0, sizeof run);
    run.stop = SIZE_MAX; run.session = s;
    status = gptsi_session_said(s, gptsi_forward(m, &batch, &run));
    if (status == GPTS_OK && !m->config.n_layer) gptsi_last_rows(m, m->work->norm, &batch, (size_t)m->config.n_embd);
    if (status == GPTS_OK) status = gptsi_session_logits(s, m->work->norm, NULL);
    if (status == GPTS_OK) memcpy(s->position, lengths, s->B * sizeof *lengths);
    gptsi_delete(&m->hooks, lengths);
    return status;
}

/* n tokens more: ids [B], then each row's likeliest, to more [n-1,B] */
static gpts_status gptsi_session_steps(gpts_session *s, const int32_t *ids, size_t n, int32_t *more)
{
    gpts_model *m = s->model;
    gpts_batch batch;
    gptsi_run run;
    gpts_status status;
    size_t b, l, longest = 0, room = (size_t)(m->config.position == GPTS_POSITION_LEARNED ? m->config.n_positions : INT32_MAX);
    for (b = 0; b < s->B; b++) {
        size_t position = (size_t)s->position[b];
        if (ids[b] < 0) continue;
        if (ids[b] >= m->config.vocab_size)
            return gptsi_fail(s->error, GPTS_BAD_ARGUMENT, "token %ld at row %llu is outside 0 .. %lld", (long)ids[b],
                              (unsigned long long)b, (long long)m->config.vocab_size - 1);
        longest = gptsi_max(longest, gptsi_add(position, n));
        if (position >= s->capacity || n > s->capacity - position)
            return gptsi_fail(s->error, GPTS_TOO_LONG, "row %llu has filled the session's capacity of %llu tokens",
                              (unsigned long long)b, (unsigned long long)s->capacity);
        if (position >= room || n > room - position)
            return gptsi_fail(s->error, GPTS_TOO_LONG, "row %llu has used all %lld learned positions", (unsigned long long)b,
                              (long long)m->config.n_positions);
    }
    if (!longest) return GPTS_OK;
    for (l = 0; l < (size_t)m->config.n_layer; l++)
        if (m->layers[l].heads.n) GPTSI_TRY(gptsi_session_said(s, m->ops->prepare(m->device, &m->layers[l].heads, longest, m->error)));
    status = m->ops->step ? m->ops->step(m->device, s, ids, n, more) : GPTS_UNSUPPORTED;
    if (status != GPTS_UNSUPPORTED) {
        for (b = 0; b < s->B && status == GPTS_OK; b++) if (ids[b] >= 0) s->position[b] += (int32_t)n;
        return gptsi_session_said(s, status);
    }
    memset(&batch, 0, sizeof batch);
    batch.B = s->B; batch.T = 1;
    memset(&run, 0, sizeof run);
    run.stop = SIZE_MAX; run.session = s;
    for (;; ids = more, more += s->B) {
        batch.tokens = run.step = ids;
        GPTSI_TRY(gptsi_session_said(s, gptsi_forward(m, &batch, &run)));
        GPTSI_TRY(gptsi_session_logits(s, m->work->norm, n > 1 ? more : NULL));
        for (b = 0; b < s->B; b++) s->position[b] += ids[b] >= 0;
        if (--n == 0) return GPTS_OK;
    }
}

typedef struct gptsi_serving { gpts_session *s; const int32_t *ids, *length; int32_t *more; size_t T; int prefill; } gptsi_serving;
static gpts_status gptsi_serving_act(void *arg)
{
    const gptsi_serving *k = (const gptsi_serving *)arg;
    gpts_model *m = k->s->model;
    const gpts_tensor *last = &m->tensors[m->n_tensors - 1];
    size_t n = (size_t)(last->data - m->parameters) + last->size;
    if (m->ops->keep && m->ops->keep(m->device, m->parameters, n) != GPTS_OK) return gptsi_no_memory(k->s->error, "the weights in bfloat16", n, 2);
    return k->prefill ? gptsi_session_prefill(k->s, k->ids, k->T, k->length) : gptsi_session_steps(k->s, k->ids, k->T, k->more);
}
static gpts_status gptsi_serve(gpts_session *s, const int32_t *ids, size_t T, const int32_t *length, int32_t *more, int prefill)
{
    gptsi_serving k;
    k.s = s; k.ids = ids; k.length = length; k.more = more; k.T = T; k.prefill = prefill;
    return gptsi_together(s->model, gptsi_serving_act, &k);
}
GPTS_API gpts_status gpts_session_prefill(gpts_session *s, const int32_t *ids, size_t T, const int32_t *length)
{
    return gptsi_serve(s, ids, T, length, NULL, 1);
}
GPTS_API gpts_status gpts_session_decode(gpts_session *s, const int32_t *ids) { return gptsi_serve(s, ids, 1, NULL, NULL, 0); }
GPTS_API gpts_status gpts_session_greedy(gpts_session *s, int32_t *ids, size_t n)
{
    size_t b, V = (size_t)s->model->config.vocab_size;
    if (!n) return GPTS_OK;
    for (b = 0; b < s->B; b++) ids[b] = gpts_sample(s->logits + b * V, V, NULL, NULL);
    return gptsi_serve(s, ids, n, NULL, ids + s->B, 0);
}

GPTS_API const gpts_real *gpts_session_logits(const gpts_session *s, size_t b)
{
    return b < s->B ? s->logits + b * (size_t)s->model->config.vocab_size : NULL;
}

/* Order of reals as unsigned integers: a < b exactly if key(a) < key(b); NaN is 0. */
static uint64_t gptsi_order_key(gpts_real x)
{
    if (!(x == x)) return 0;
    if (x == 0) x = 0;                                    /* -0 and 0 are one value */
    if (sizeof x == 4) {
        uint32_t bits;
        memcpy(&bits, &x, 4);
        return bits >> 31 ? ~bits : bits | ((uint32_t)1 << 31);
    } else {
        uint64_t bits;
        memcpy(&bits, &x, sizeof x);
        return bits >> 63 ? ~bits : bits | ((uint64_t)1 << 63);
    }
}

/* Sampling needs no memory: the least logit that may be drawn is found by halving the
   ordered keys, once for top_k (a count) and once for top_p (a mass).  Candidates are
   those above `floor`, and the first `ties` in id order of those equal to it.             */
typedef struct gptsi_draw { const gpts_real *logits; size_t V; double top, temperature; uint64_t floor; size_t ties; } gptsi_draw;
static double gptsi_draw_weight(const gptsi_draw *d, size_t v) { return exp(((double)d->logits[v] - d->top) / d->temperature); }

/* how many candidates have at least `key`, and (mass not NULL) their weight */
static size_t gptsi_draw_above(const gptsi_draw *d, uint64_t key, double *mass)
{
    size_t v, ties = 0, count = 0;
    if (mass) *mass = 0;
    for (v = 0; v < d->V; v++) {
        uint64_t k = gptsi_order_key(d->logits[v]);
        if (!k || k < key || k < d->floor || (k == d->floor && ties++ >= d->ties)) continue;
        count++;
        if (mass) *mass += gptsi_draw_weight(d, v);
    }
    return count;
}

/* only the best `count` candidates remain (mass 0), or the fewest whose weights reach `mass` */
static void gptsi_draw_restrict(gptsi_draw *d, size_t count, double mass)
{
    uint64_t low = d->floor, high = gptsi_order_key((gpts_real)d->top), middle;
    size_t n, v, want, limit;
    double p = 0, each = 0;
    while (low < high) {                                  /* largest key that still leaves enough */
        middle = low + (high - low) / 2 + 1;
        n = gptsi_draw_above(d, middle, mass > 0 ? &p : NULL);
        if (mass > 0 ? p >= mass : n >= count) low = middle; else high = middle - 1;
    }
    limit = low == d->floor ? d->ties : d->V;
    n = gptsi_draw_above(d, low + 1, &p);                 /* all of these stay; of the equals to low: */
    for (v = 0; v < d->V; v++) if (gptsi_order_key(d->logits[v]) == low) { each = gptsi_draw_weight(d, v); break; }
    if (mass > 0) for (want = 1, p += each; p < mass && want < limit; want++) p += each;
    else want = count > n ? count - n : 1;
    d->floor = low; d->ties = gptsi_min(want, limit);
}

/* --------------------------------------------------------------------------
 * One token from logits                                                (X4)
 *   p[v] ~ exp(logits[v] / temperature) over the top_k largest logits, of which the
 *   fewest whose p sum to top_p (Holtzman et al., arXiv 1904.09751); temperature 0, or
 *   an infinite logit: the largest.  Equal logits rank by id.
 *   cost    V per halving, at most 32 (float) or 64; no memory
 *   tests   model.c: sampling_*
 * ------------------------------------------------------------------------ */
GPTS_API int32_t gpts_sample(const gpts_real *logits, size_t V, const gpts_sampling *sampling, gpts_rng *rng)
{
    gptsi_draw d;
    size_t v, best = SIZE_MAX, ties = 0;
    double mass, u;
    d.logits = logits; d.V = V; d.floor = 1; d.ties = SIZE_MAX;
    for (v = 0; v < V; v++) if (gptsi_order_key(logits[v]) && (best == SIZE_MAX || logits[v] > logits[best])) best = v;
    if (best == SIZE_MAX) return 0;
    d.top = (double)logits[best]; d.temperature = sampling ? sampling->temperature : 0;
    if (!(d.temperature > 0) || !(fabs(d.top) <= DBL_MAX)) return (int32_t)best;
    if (sampling->top_k && sampling->top_k < V) gptsi_draw_restrict(&d, sampling->top_k, 0);
    gptsi_draw_above(&d, 0, &mass);
    if (sampling->top_p > 0 && sampling->top_p < 1) {
        gptsi_draw_restrict(&d, 0, sampling->top_p * mass);
        gptsi_draw_above(&d, 0, &mass);
    }
    u = gpts_rng_uniform(rng) * mass;
    for (v = 0; v < V; v++) {
        uint64_t k = gptsi_order_key(logits[v]);
        if (!k || k < d.floor || (k == d.floor && ties++ >= d.ties)) continue;
        best = v;                                         /* rounding may leave u over the last one: it is drawn */
        u -= gptsi_draw_weight(&d, v);
        if (u < 0) break;
    }
    return (int32_t)best;
}

/* ==============================================================================
   @@TOKENIZER  bytes, characters, byte-level BPE, GPT-2's encoding, WordPiece
   ============================================================================== */

/* UTF-8.  Reads one code point of 1 to 4 bytes; 0 for bytes that are not UTF-8: overlong
   forms, surrogates and values above U+10FFFF included (Unicode 15.0, table 3-7).        */
static size_t gptsi_utf8_get(const char *at, const char *end, uint32_t *code)
{
    const unsigned char *p = (const unsigned char *)at;
    size_t left = (size_t)(end - at), n, i;
    uint32_t c, least;
    if (!left) return 0;
    if (p[0] < 0x80) { *code = p[0]; return 1; }
    if (p[0] < 0xC2 || p[0] > 0xF4) return 0;
    n = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    least = n == 2 ? 0x80 : n == 3 ? 0x800 : 0x10000;
    if (left < n) return 0;
    c = p[0] & (0xFFu >> (n + 1));
    for (i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (c < least || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    *code = c;
    return n;
}

static size_t gptsi_utf8_put(uint32_t code, char out[4])
{
    static const unsigned char lead[5] = { 0, 0x00, 0xC0, 0xE0, 0xF0 };
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4, i;
    for (i = n; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[n] | code);
    return n;
}

/* JSON (RFC 8259) as a cursor that moves over text it does not own.  Every function
   returns 1, with the cursor behind what it read, or 0: then the text is refused and the
   cursor stands near the fault.  Nothing recurses or allocates.                          */
typedef struct gptsi_json { const char *at, *end; int depth; } gptsi_json;
enum { GPTSI_JSON_DEPTH = 64 };

static void gptsi_json_space(gptsi_json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t')) j->at++;
}
static int gptsi_json_is(gptsi_json *j, char ch)              /* is ch next? */
{
    gptsi_json_space(j);
    return j->at < j->end && *j->at == ch;
}
static int gptsi_json_take(gptsi_json *j, char ch)            /* and steps over it */
{
    if (!gptsi_json_is(j, ch)) return 0;
    j->at++;
    return 1;
}
static int gptsi_json_word(gptsi_json *j, const char *word)
{
    size_t n = strlen(word);
    gptsi_json_space(j);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, word, n)) return 0;
    j->at += n;
    return 1;
}

static int gptsi_json_hex4(gptsi_json *j, uint32_t *value)
{
    int i;
    if (j->end - j->at < 4) return 0;
    for (i = 0, *value = 0; i < 4; i++) {
        uint32_t c = (unsigned char)*j->at++;
        if (c >= '0' && c <= '9') c -= '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') c = (c | 32) - 'a' + 10;
        else return 0;
        *value = *value << 4 | c;
    }
    return 1;
}

/* One character of a string, unescaped.  A \u escape of half a surrogate pair must be
   followed by the other half.                                                            */
static int gptsi_json_character(gptsi_json *j, uint32_t *code)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit;
    uint32_t low;
    if (j->at == j->end || (unsigned char)*j->at < 0x20) return 0;
    if (*j->at != '\\') {
        size_t n = gptsi_utf8_get(j->at, j->end, code);
        j->at += n;
        return n != 0;
    }
    if (++j->at == j->end) return 0;
    if (*j->at != 'u') {
        hit = (const char *)memchr(from, *j->at, sizeof from - 1);
        if (!hit) return 0;
        *code = (unsigned char)to[hit - from];
        j->at++;
        return 1;
    }
    j->at++;
    if (!gptsi_json_hex4(j, code)) return 0;
    if (*code < 0xD800 || *code > 0xDFFF) return 1;
    if (*code > 0xDBFF || j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u') return 0;
    j->at += 2;
    if (!gptsi_json_hex4(j, &low)) return 0;
    if (low < 0xDC00 || low > 0xDFFF) return 0;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return 1;
}

/* A string, unescaped to UTF-8: *length bytes (they may contain 0), and a 0 behind them
   when there is room.  out NULL only measures (use a copy of the cursor); a string longer
   than `room` is refused.                                                                */
static int gptsi_json_string(gptsi_json *j, char *out, size_t room, size_t *length)
{
    size_t n = 0;
    char bytes[4];
    if (!gptsi_json_take(j, '"')) return 0;
    while (j->at < j->end && *j->at != '"') {
        uint32_t code;
        size_t k;
        if (!gptsi_json_character(j, &code)) return 0;
        k = gptsi_utf8_put(code, bytes);
        if (out) {
            if (k > room - n) return 0;
            memcpy(out + n, bytes, k);
        }
        n += k;
    }
    if (j->at == j->end) return 0;
    j->at++;
    if (out && n < room) out[n] = 0;
    *length = n;
    return 1;
}

/* A number's parts: its digits (at most 19 significant ones kept), the power of ten that
   is left, and whether it is written as an integer and exact.                             */
typedef struct gptsi_number { uint64_t digits; int64_t power; int negative, integer, exact; } gptsi_number;

static int gptsi_json_digit(const gptsi_json *j) { return j->at < j->end && *j->at >= '0' && *j->at <= '9'; }

static int gptsi_json_number(gptsi_json *j, gptsi_number *x)
{
    int64_t power = 0;
    int fraction = 0, minus;
    x->digits = 0; x->power = 0; x->integer = x->exact = 1;
    gptsi_json_space(j);
    x->negative = j->at < j->end && *j->at == '-';
    j->at += x->negative;
    if (!gptsi_json_digit(j)) return 0;
    if (*j->at == '0' && j->end - j->at > 1 && j->at[1] >= '0' && j->at[1] <= '9') return 0;
    for (;; j->at++) {
        if (gptsi_json_digit(j)) {
            uint64_t d = (uint64_t)(*j->at - '0');
            if (x->digits <= (UINT64_MAX - d) / 10 && x->exact) { x->digits = x->digits * 10 + d; x->power -= fraction; }
            else { x->exact = 0; x->power += !fraction; }
        } else if (j->at < j->end && *j->at == '.' && !fraction) {
            fraction = 1; x->integer = 0;
            j->at++;
            if (!gptsi_json_digit(j)) return 0;
            j->at--;
        } else break;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        j->at++;
        x->integer = 0;
        minus = j->at < j->end && *j->at == '-';
        if (j->at < j->end && (*j->at == '-' || *j->at == '+')) j->at++;
        if (!gptsi_json_digit(j)) return 0;
        for (; gptsi_json_digit(j); j->at++) if (power < 100000) power = power * 10 + (*j->at - '0');
        x->power += minus ? -power : power;
    }
    return 1;
}

static int gptsi_json_u64(gptsi_json *j, uint64_t *value)
{
    gptsi_number x;
    if (!gptsi_json_number(j, &x) || x.negative || !x.integer || !x.exact) return 0;
    *value = x.digits;
    return 1;
}
static int gptsi_json_i64(gptsi_json *j, int64_t *value)
{
    gptsi_number x;
    if (!gptsi_json_number(j, &x) || !x.integer || !x.exact) return 0;
    if (x.digits > (uint64_t)INT64_MAX + (uint64_t)x.negative) return 0;
    *value = !x.negative ? (int64_t)x.digits : x.digits ? -(int64_t)(x.digits - 1) - 1 : 0;
    return 1;
}

/* Correctly rounded for up to 15 digits and a power of ten up to 22 (both factors are then
   exact, Clinger 1990), a few units in the last place otherwise; too large is refused.     */
static int gptsi_json_double(gptsi_json *j, double *value)
{
    gptsi_number x;
    double d;
    if (!gptsi_json_number(j, &x)) return 0;
    d = (double)x.digits;
    for (; x.power > 0 && d != 0 && d <= 1e308; ) {
        double ten = 1;
        int k;
        for (k = 0; k < 22 && x.power > 0; k++, x.power--) ten *= 10;
        d *= ten;
    }
    for (; x.power < 0 && d != 0; ) {
        double ten = 1;
        int k;
        for (k = 0; k < 22 && x.power < 0; k++, x.power++) ten *= 10;
        d /= ten;
    }
    if (!(d <= 1.7976931348623157e308) || (d != 0 && x.power > 0)) return 0;
    *value = x.negative ? -d : d;
    return 1;
}

static int gptsi_json_bool(gptsi_json *j, int *value)
{
    *value = gptsi_json_word(j, "true");
    return *value || gptsi_json_word(j, "false");
}
static int gptsi_json_null(gptsi_json *j) { return gptsi_json_word(j, "null"); }

/* Any value.  Open containers are bits (1: an object) of one word, so that the nesting is
   limited to GPTSI_JSON_DEPTH, those that the caller counts in j->depth included.         */
static int gptsi_json_skip(gptsi_json *j)
{
    uint64_t objects = 0;
    size_t length;
    int open = 0, flag;
    gptsi_number number;
    for (;;) {
        if (gptsi_json_is(j, '{') || gptsi_json_is(j, '[')) {
            int object = *j->at++ == '{';
            if (j->depth + open >= GPTSI_JSON_DEPTH) return 0;
            objects = objects << 1 | (uint64_t)object;
            open++;
            if (!gptsi_json_is(j, object ? '}' : ']')) {
                if (object && !(gptsi_json_string(j, NULL, 0, &length) && gptsi_json_take(j, ':'))) return 0;
                continue;
            }
        } else if (gptsi_json_is(j, '"')) {
            if (!gptsi_json_string(j, NULL, 0, &length)) return 0;
        } else if (gptsi_json_is(j, '-') || gptsi_json_digit(j)) {
            if (!gptsi_json_number(j, &number)) return 0;
        } else if (!gptsi_json_bool(j, &flag) && !gptsi_json_null(j)) return 0;
        for (;;) {                                            /* behind a value: what does it end? */
            if (!open) return 1;
            if (gptsi_json_take(j, ',')) {
                if ((objects & 1) && !(gptsi_json_string(j, NULL, 0, &length) && gptsi_json_take(j, ':'))) return 0;
                break;
            }
            if (!gptsi_json_take(j, objects & 1 ? '}' : ']')) return 0;
            objects >>= 1;
            open--;
        }
    }
}

/* ---- text: names in sentences, JSON to write; @@IO uses it too ----------------------- */

/* A name for a sentence: at most 80 bytes, what is not printable ASCII as \xNN. */
typedef struct gptsi_quoted { char text[96]; } gptsi_quoted;
static gptsi_quoted gptsi_quote(const char *name, size_t bytes)
{
    static const char hex[] = "0123456789abcdef";
    gptsi_quoted q;
    size_t i, n = 0;
    for (i = 0; i < bytes && n < 80; i++) {
        unsigned char ch = (unsigned char)name[i];
        if (ch >= 32 && ch < 127) { q.text[n++] = (char)ch; continue; }
        q.text[n++] = '\\'; q.text[n++] = 'x'; q.text[n++] = hex[ch >> 4]; q.text[n++] = hex[ch & 15];
    }
    if (i < bytes) { memcpy(q.text + n, "...", 3); n += 3; }
    q.text[n] = 0;
    return q;
}
/* A path for a sentence: its end, which tells most. */
static const char *gptsi_path_end(const char *path)
{
    size_t n = strlen(path);
    return n > 120 ? path + n - 120 : path;
}

/* Makes room for one more of `size` bytes each; the array may move. */
static int gptsi_grow(const gpts_hooks *hooks, void **array, size_t count, size_t *room, size_t size)
{
    void *larger;
    size_t n = *room ? gptsi_mul(*room, 2) : 16;
    if (count < *room) return 1;
    larger = gptsi_new(hooks, n, size);
    if (!larger) return 0;
    if (count) memcpy(larger, *array, count * size);
    gptsi_delete(hooks, *array);
    *array = larger;
    *room = n;
    return 1;
}

/* Text that grows; a failed allocation is remembered until the end. */
typedef struct gptsi_text { char *data; size_t n, room; const gpts_hooks *hooks; int failed; } gptsi_text;

static void gptsi_text_bytes(gptsi_text *text, const char *bytes, size_t n)
{
    if (text->failed) return;
    if (n > text->room - text->n) {
        size_t room = gptsi_max(gptsi_mul(text->room, 2), gptsi_add(gptsi_add(text->n, n), 256));
        char *larger = GPTSI_NEW(text->hooks, char, room);
        if (!larger) { text->failed = 1; return; }
        if (text->n) memcpy(larger, text->data, text->n);
        gptsi_delete(text->hooks, text->data);
        text->data = larger; text->room = room;
    }
    if (n) memcpy(text->data + text->n, bytes, n);
    text->n += n;
}
static void gptsi_text_add(gptsi_text *text, const char *s) { gptsi_text_bytes(text, s, strlen(s)); }
static void gptsi_text_integer(gptsi_text *text, int64_t value)
{
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    gptsi_text_add(text, digits);
}
/* The shortest of 15 to 17 digits that gives x back, with a point in every locale. */
static void gptsi_text_double(gptsi_text *text, double x)
{
    char digits[48];
    size_t i;
    int precision = 15, point = 0;
    do snprintf(digits, sizeof digits, "%.*g", precision, x); while (strtod(digits, NULL) != x && precision++ < 17);
    for (i = 0; digits[i]; i++) {
        if (strchr("+-0123456789e", digits[i])) gptsi_text_bytes(text, digits + i, 1);
        else if (!point++) gptsi_text_add(text, ".");
    }
}
static void gptsi_text_quoted(gptsi_text *text, const char *s, size_t n)     /* a JSON string */
{
    char escape[8];
    size_t i;
    gptsi_text_add(text, "\"");
    for (i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch >= 32 && ch != '"' && ch != '\\') { gptsi_text_bytes(text, s + i, 1); continue; }
        if (ch < 32) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)ch);
        else { escape[0] = '\\'; escape[1] = (char)ch; escape[2] = 0; }
        gptsi_text_add(text, escape);
    }
    gptsi_text_add(text, "\"");
}
GPTSI_UNUSED static int gptsi_utf8_valid(const char *s, size_t n)
{
    const char *end = s + n;
    uint32_t code;
    while (s < end) {
        size_t k = gptsi_utf8_get(s, end, &code);
        if (!k) return 0;
        s += k;
    }
    return 1;
}

/* ---- classes of characters -------------------------------------------------------------
   Unicode 15.0 as distances: (code points to skip, code points that follow) and so on.
   Letters are General_Category L*, numbers N*, punctuation P* and ASCII's symbols, marks
   M* with what else a regular expression's \w takes (circled letters, joiners).  Made from
   the Unicode Character Database 15.0.0, (c) Unicode, Inc., under the Unicode licence.     */
enum { GPTSI_OTHER = 0, GPTSI_LETTER = 1, GPTSI_NUMBER = 2, GPTSI_SPACE = 3,
       GPTSI_MARK = 4, GPTSI_PUNCTUATION = 8,                 /* & 3: other */
       GPTSI_CODES = 0x32400 };                               /* nothing above has a class, */
                                                              /* but marks U+E0100 .. U+E01EF */
static const uint16_t gptsi_letters[] = {
    65,26, 6,26, 47,1, 10,1, 4,1, 5,23, 1,31, 1,458, 4,12, 14,5, 7,1, 1,1, 129,5, 1,2, 2,4, 1,1,
    6,1, 1,3, 1,1, 1,20, 1,83, 1,139, 8,166, 1,38, 2,1, 6,41, 71,27, 4,4, 45,43, 35,2, 1,99, 1,1,
    15,2, 7,2, 10,3, 2,1, 16,1, 1,30, 29,89, 11,1, 24,33, 9,2, 4,1, 5,22, 4,1, 9,1, 3,1, 23,25,
    7,11, 5,24, 1,6, 17,42, 58,54, 3,1, 18,1, 7,10, 15,16, 4,8, 2,2, 2,22, 1,7, 1,1, 3,4, 3,1, 16,1,
    13,2, 1,3, 14,2, 10,1, 8,6, 4,2, 2,22, 1,7, 1,2, 1,2, 1,2, 31,4, 1,1, 19,3, 16,9, 1,3, 1,22,
    1,7, 1,2, 1,5, 3,1, 18,1, 15,2, 23,1, 11,8, 2,2, 2,22, 1,7, 1,2, 1,5, 3,1, 30,2, 1,3, 15,1,
    17,1, 1,6, 3,3, 1,4, 3,2, 1,1, 1,2, 3,2, 3,3, 3,12, 22,1, 52,8, 1,3, 1,23, 1,16, 3,1, 26,3, 2,1,
    2,2, 30,1, 4,8, 1,3, 1,23, 1,10, 1,5, 3,1, 31,2, 1,2, 15,2, 17,9, 1,3, 1,41, 2,1, 16,1, 5,3,
    8,3, 24,6, 5,18, 3,24, 1,9, 1,1, 2,7, 58,48, 1,2, 12,7, 58,2, 1,1, 1,5, 1,24, 1,1, 1,10, 1,2,
    9,1, 2,5, 1,1, 21,4, 32,1, 63,8, 1,36, 27,5, 115,43, 20,1, 16,6, 4,4, 3,1, 3,2, 7,3, 4,13, 12,1,
    17,38, 1,1, 5,1, 2,43, 1,333, 1,4, 2,7, 1,1, 1,4, 2,41, 1,4, 2,33, 1,4, 2,7, 1,1, 1,4, 2,15,
    1,57, 1,4, 2,67, 37,16, 16,86, 2,6, 3,620, 2,17, 1,26, 5,75, 6,8, 7,18, 13,19, 14,18, 14,13,
    1,3, 15,52, 35,1, 4,1, 67,89, 7,5, 2,34, 1,1, 5,70, 10,31, 49,30, 2,5, 11,44, 4,26, 54,23, 9,53,
    82,1, 93,47, 17,8, 54,30, 13,2, 10,44, 26,36, 41,3, 10,36, 2,9, 7,43, 2,3, 41,4, 1,6, 1,2, 3,1,
    5,192, 64,278, 2,6, 2,38, 2,6, 2,8, 1,1, 1,1, 1,1, 1,31, 2,53, 1,7, 1,1, 3,3, 1,7, 3,4, 2,6,
    4,13, 5,3, 1,7, 116,1, 13,1, 16,13, 101,1, 4,1, 2,10, 1,1, 3,5, 6,1, 1,1, 1,1, 1,4, 1,11, 2,4,
    5,5, 4,1, 52,2, 2683,229, 6,4, 3,2, 12,38, 1,1, 5,1, 2,56, 7,1, 16,23, 9,7, 1,7, 1,7, 1,7, 1,7,
    1,7, 1,7, 1,7, 80,1, 469,2, 42,5, 5,2, 4,86, 6,3, 1,90, 1,4, 5,43, 1,94, 17,32, 48,16, 512,6592,
    64,22157, 67,46, 2,269, 3,16, 10,2, 20,47, 16,31, 2,70, 49,9, 2,103, 2,64, 5,2, 1,1, 1,5, 24,16,
    1,3, 1,4, 1,23, 29,52, 14,50, 62,6, 3,1, 1,2, 11,28, 10,23, 25,29, 7,47, 28,1, 16,5, 1,10, 10,5,
    1,41, 23,3, 1,8, 20,23, 3,1, 3,50, 1,1, 3,2, 2,5, 2,1, 1,1, 24,3, 2,11, 7,3, 12,6, 2,6, 2,6,
    9,7, 1,7, 1,43, 1,14, 6,115, 29,11172, 12,23, 4,49, 8452,366, 2,106, 38,7, 12,5, 5,1, 1,10,
    1,13, 1,5, 1,1, 1,2, 1,2, 1,108, 33,363, 18,64, 2,54, 40,12, 116,5, 1,135, 36,26, 6,26, 11,89,
    3,6, 2,6, 2,6, 2,3, 35,12, 1,26, 1,19, 1,2, 1,15, 2,14, 34,123, 389,29, 3,49, 47,32, 13,20, 1,8,
    6,38, 10,30, 2,36, 4,8, 48,158, 18,36, 4,36, 4,40, 8,52, 12,11, 1,15, 1,7, 1,2, 1,11, 1,15, 1,7,
    1,2, 67,311, 9,22, 10,8, 24,6, 1,42, 1,9, 69,6, 2,1, 1,44, 1,2, 3,1, 2,23, 10,23, 9,31, 65,19,
    1,2, 10,22, 10,26, 70,56, 6,2, 64,1, 15,4, 1,3, 1,29, 42,29, 3,29, 35,8, 1,28, 27,54, 10,22,
    10,19, 13,18, 110,73, 55,51, 13,51, 13,36, 348,42, 6,2, 78,29, 10,1, 8,22, 42,18, 46,21, 27,23,
    12,53, 57,2, 2,1, 13,45, 32,25, 26,36, 29,1, 2,1, 8,35, 3,1, 12,48, 14,4, 21,1, 1,1, 35,18,
    1,25, 19,2, 63,7, 1,1, 1,4, 1,15, 1,10, 7,47, 38,8, 2,2, 2,22, 1,7, 1,2, 1,5, 3,1, 18,1, 12,5,
    158,53, 18,4, 20,3, 30,48, 20,2, 1,1, 184,47, 41,4, 36,48, 20,1, 59,43, 13,1, 71,27, 37,7,
    185,44, 116,64, 31,8, 2,1, 2,8, 1,2, 1,24, 15,1, 1,1, 94,8, 2,39, 16,1, 1,1, 28,1, 10,40, 7,1,
    21,1, 11,46, 19,1, 18,73, 263,9, 1,37, 17,1, 49,30, 112,7, 1,2, 1,38, 21,1, 25,6, 1,2, 1,32,
    14,1, 327,19, 15,1, 1,13, 1,34, 124,1, 79,922, 230,196, 2636,97, 15,1072, 17,6, 4025,583,
    8633,569, 7,31, 17,79, 17,30, 18,48, 16,4, 31,21, 5,19, 688,64, 128,75, 5,1, 66,13, 64,2, 1,1,
    28,6136, 8,1238, 42,9, 8935,4, 1,7, 1,2, 1,291, 15,1, 29,3, 2,1, 14,4, 8,396, 2308,107, 5,13,
    3,9, 7,10, 5990,85, 1,71, 1,2, 2,1, 2,2, 2,4, 1,12, 1,1, 1,7, 1,65, 1,4, 2,8, 1,7, 1,28, 1,4,
    1,5, 1,1, 3,7, 1,340, 2,25, 1,25, 1,31, 1,25, 1,31, 1,25, 1,31, 1,25, 1,31, 1,25, 1,8, 1844,31,
    6,6, 261,62, 146,45, 10,7, 16,1, 321,30, 18,44, 484,28, 756,7, 1,4, 1,2, 1,15, 1,197, 59,68,
    7,1, 1204,4, 1,27, 1,2, 1,1, 2,1, 1,10, 1,4, 1,1, 1,1, 6,1, 4,1, 1,1, 1,1, 1,3, 1,2, 1,1, 2,1,
    1,1, 1,1, 1,1, 1,1, 1,2, 1,1, 2,4, 1,7, 1,4, 1,4, 1,1, 1,10, 1,17, 5,3, 1,5, 1,17, 4420,42720,
    32,4154, 6,222, 2,5762, 14,7473, 3103,542, 1506,4939, 5,4192
};
static const uint16_t gptsi_numbers[] = {
    48,10, 120,2, 5,1, 2,3, 1441,10, 134,10, 198,10, 412,10, 118,10, 4,6, 108,10, 118,10, 118,10,
    2,6, 110,13, 115,10, 8,7, 103,10, 104,7, 7,19, 109,10, 96,10, 118,10, 70,20, 268,10, 70,10,
    719,20, 881,3, 239,10, 6,10, 22,10, 300,10, 128,11, 165,10, 6,10, 182,10, 86,10, 134,10, 6,10,
    1046,1, 3,6, 6,10, 198,51, 2,5, 726,60, 78,22, 630,30, 1385,1, 777,1, 25,9, 14,3, 343,4, 138,10,
    30,8, 1,15, 32,10, 39,15, 29536,10, 188,10, 320,6, 154,10, 38,10, 198,10, 22,10, 86,10, 406,10,
    21270,10, 493,45, 12,57, 17,2, 341,27, 36,4, 29,1, 8,1, 134,5, 202,10, 942,8, 25,7, 39,9, 75,5,
    22,6, 160,2, 2,16, 2,46, 64,9, 52,2, 30,3, 75,5, 104,8, 24,8, 41,7, 330,6, 48,10, 294,31,
    158,10, 42,4, 112,7, 134,30, 128,10, 60,10, 144,10, 7,20, 251,10, 342,10, 118,10, 374,10,
    102,10, 102,12, 420,19, 93,10, 758,29, 227,10, 70,10, 422,10, 102,21, 1067,111, 17905,10, 86,10,
    134,10, 1,7, 798,23, 25641,20, 12,20, 108,25, 1109,50, 2368,10, 422,10, 502,10, 973,9, 128,10,
    791,59, 1,3, 1,4, 76,45, 1,15, 962,13, 2787,10
};
static const uint16_t gptsi_marks[] = {
    768,112, 275,7, 263,45, 1,1, 1,2, 1,2, 1,1, 72,11, 48,21, 16,1, 101,7, 2,6, 2,2, 1,4, 35,1,
    30,27, 91,11, 58,9, 9,1, 24,4, 1,9, 1,3, 1,5, 43,3, 60,8, 42,24, 1,33, 54,3, 1,18, 1,7, 10,2,
    29,3, 56,1, 1,7, 2,2, 2,3, 9,1, 10,2, 26,1, 2,3, 56,1, 1,5, 4,2, 2,3, 3,1, 30,2, 3,1, 11,3,
    56,1, 1,8, 1,3, 1,3, 20,2, 22,6, 1,3, 56,1, 1,7, 2,2, 2,3, 7,3, 10,2, 30,1, 59,5, 3,3, 1,4, 9,1,
    40,5, 55,1, 1,7, 1,3, 1,4, 7,2, 11,2, 29,3, 56,1, 1,7, 1,3, 1,4, 7,2, 11,2, 15,1, 12,4, 55,2,
    1,7, 1,3, 1,4, 9,1, 10,2, 29,3, 70,1, 4,6, 1,1, 1,8, 18,2, 61,1, 2,7, 12,8, 98,1, 2,9, 11,7,
    73,2, 27,1, 1,1, 1,1, 4,2, 49,20, 1,2, 5,11, 1,36, 9,1, 100,20, 23,4, 4,3, 1,3, 2,7, 3,4, 13,12,
    1,1, 10,4, 703,3, 946,4, 28,3, 29,2, 30,2, 64,32, 9,1, 45,3, 1,1, 117,2, 34,1, 118,12, 4,12,
    219,5, 57,10, 1,29, 2,1, 48,31, 49,5, 47,17, 38,9, 12,3, 30,13, 56,14, 48,20, 152,3, 1,21, 4,1,
    6,1, 2,3, 198,64, 524,2, 194,33, 965,52, 2053,3, 141,1, 96,32, 554,6, 105,2, 30164,4, 1,10,
    32,2, 80,2, 272,1, 3,1, 4,1, 23,5, 4,1, 83,2, 50,18, 26,18, 13,1, 38,8, 25,13, 44,4, 47,14,
    36,1, 67,14, 12,1, 8,2, 45,3, 50,1, 1,3, 2,2, 5,2, 1,1, 41,5, 5,2, 236,8, 1,2, 20272,1, 737,16,
    16,16, 973,1, 226,1, 149,5, 1670,3, 1,2, 5,4, 40,3, 4,1, 165,2, 573,4, 387,2, 80,3, 70,11, 49,4,
    122,3, 53,15, 41,1, 2,2, 10,4, 45,11, 7,1, 61,3, 36,14, 16,2, 44,1, 12,3, 48,14, 8,4, 1,2,
    92,12, 6,1, 2,1, 157,12, 21,4, 55,2, 1,7, 2,2, 2,3, 9,1, 10,2, 2,7, 3,5, 192,18, 23,1, 81,20,
    235,7, 2,9, 27,2, 82,17, 106,13, 101,15, 256,15, 245,6, 1,2, 2,4, 1,1, 1,2, 141,7, 2,7, 3,1,
    28,10, 40,7, 1,4, 8,1, 9,11, 46,16, 405,8, 1,8, 82,22, 1,14, 122,6, 3,1, 1,2, 1,7, 1,1, 66,5,
    1,2, 1,5, 347,4, 9,2, 1,1, 48,7, 3,5, 5373,1, 6,15, 13978,5, 59,7, 1048,1, 1,55, 7,4, 81,1,
    11,2, 19627,2, 4705,46, 2,23, 542,5, 3,6, 8,8, 2,7, 30,4, 148,3, 1979,55, 4,50, 8,1, 14,1, 22,5,
    1,15, 1360,7, 1,17, 2,7, 1,2, 1,5, 100,1, 160,7, 375,1, 61,4, 508,4, 992,7, 109,7, 2021,26,
    6,26, 6,26
};
static const uint16_t gptsi_punctuation[] = {
    33,15, 10,7, 26,6, 26,4, 34,1, 5,1, 3,1, 10,2, 3,1, 3,1, 702,1, 8,1, 466,6, 41,2, 51,1, 1,1,
    2,1, 2,1, 44,2, 20,2, 1,2, 13,1, 1,3, 74,4, 102,1, 43,14, 233,3, 54,15, 31,1, 261,2, 10,1,
    140,1, 120,1, 121,1, 390,1, 12,1, 367,1, 90,1, 10,2, 168,15, 1,1, 37,4, 71,1, 74,5, 4,2, 111,6,
    171,1, 612,9, 151,1, 621,1, 44,2, 78,3, 71,2, 157,3, 1,3, 37,11, 313,2, 216,2, 128,7, 1,6,
    172,7, 28,2, 125,4, 59,5, 62,2, 64,8, 11,1, 828,24, 8,20, 1,13, 1,12, 30,2, 14,2, 633,4, 29,2,
    1085,14, 79,2, 31,10, 403,22, 63,4, 32,2, 763,4, 1,2, 112,1, 143,47, 1,32, 2,12, 419,3, 4,10,
    2,12, 16,1, 12,1, 98,1, 90,1, 29698,2, 269,3, 99,1, 10,1, 115,6, 380,4, 86,2, 40,3, 1,1, 49,2,
    47,1, 97,13, 16,2, 124,4, 126,2, 16,2, 249,1, 20818,2, 208,10, 22,35, 1,14, 1,1, 4,1, 1,2,
    149,3, 1,6, 1,4, 10,2, 3,2, 26,3, 1,1, 27,1, 1,1, 1,7, 410,3, 668,1, 48,1, 414,1, 743,1, 199,1,
    31,1, 272,9, 38,1, 112,7, 66,7, 89,4, 784,1, 167,5, 44,4, 189,7, 109,2, 1,4, 126,4, 48,2, 79,4,
    4,1, 13,1, 1,3, 88,6, 107,1, 417,5, 10,2, 1,1, 104,1, 250,23, 105,3, 28,13, 76,1, 130,3, 252,1,
    264,3, 155,1, 92,8, 83,3, 1,5, 93,10, 311,5, 42,2, 645,2, 74,13, 175,1, 1136,5, 2940,2, 14971,2,
    133,1, 65,5, 8,1, 850,4, 327,1, 19644,1, 7655,5, 3794,2
};
static const uint16_t gptsi_spaces[] = {                      /* the property White_Space */
    9,5, 18,1, 100,1, 26,1, 5599,1, 2431,11, 29,2, 5,1, 47,1, 4000,1
};

static void gptsi_classes_set(unsigned char *classes, const uint16_t *ranges, size_t n, int kind)
{
    size_t i, at = 0;
    for (i = 0; i + 1 < n; i += 2) {
        at += ranges[i];
        memset(classes + at, kind, ranges[i + 1]);
        at += ranges[i + 1];
    }
}
static void gptsi_classes_fill(unsigned char *classes)        /* [GPTSI_CODES], zeroed */
{
#define GPTSI_SET(ranges, kind) gptsi_classes_set(classes, ranges, sizeof ranges / sizeof *ranges, kind)
    GPTSI_SET(gptsi_letters, GPTSI_LETTER);
    GPTSI_SET(gptsi_numbers, GPTSI_NUMBER);
    GPTSI_SET(gptsi_marks, GPTSI_MARK);
    GPTSI_SET(gptsi_punctuation, GPTSI_PUNCTUATION);
    GPTSI_SET(gptsi_spaces, GPTSI_SPACE);
#undef GPTSI_SET
}

/* ---- the vocabulary ------------------------------------------------------------------------ */

typedef struct gptsi_token { size_t begin; uint32_t length; int32_t special; } gptsi_token;

/* The pair (left, right) becomes `merged`; lower orders go first.  Order 0: a free slot. */
typedef struct gptsi_merge { int32_t left, right, merged; uint32_t order; } gptsi_merge;

/* A short piece and its ids, remembered: its first and last 8 bytes, overlapping. */
enum { GPTSI_PIECE_BYTES = 16, GPTSI_PIECE_IDS = 3, GPTSI_PIECES = 1 << 15 };
typedef struct gptsi_piece {
    uint64_t head, tail;
    int32_t ids[GPTSI_PIECE_IDS];
    int16_t length, n;                                        /* bytes; ids; 32 bytes in all */
} gptsi_piece;

enum { GPTSI_TOKEN_BYTES = 1024,                              /* longest token accepted or made */
       GPTSI_WORD_CHARS = 200,                                /* WordPiece: longest word, */
       GPTSI_AROUND = 4, GPTSI_ADDED = 1024 };                /* ids around a text, added tokens */

struct gpts_vocabulary {
    gptsi_token *tokens; int32_t n, room;                     /* ids 0 .. n-1; length 0: none */
    char *bytes; size_t n_bytes, bytes_room;                  /* of all tokens */
    int32_t *slots; size_t slots_mask;                        /* by bytes: id + 1, 0 free */
    gptsi_merge *pairs; size_t n_pairs, pairs_mask;            /* by (left, right) */
    int32_t byte_id[256];                                     /* tokens of one byte, or -1 */
    unsigned char *classes;                                   /* [GPTSI_CODES] */
    gptsi_piece *pieces;                                      /* [GPTSI_PIECES] */
    int renumbered;                                           /* ids from a file beside the merges */
    char *file; size_t file_bytes;                            /* the file that it came from, or NULL */
    int whole;                                                /* a piece that is a token stays so */
    /* WordPiece */
    int32_t unknown;
    char prefix[16]; size_t n_prefix;                         /* of a word's later tokens, "##" */
    size_t limit, longest;                                    /* a word's characters, a token's bytes */
    int lower, quotes, cleanup;
    int32_t before[GPTSI_AROUND], after[GPTSI_AROUND]; size_t n_before, n_after;
    int32_t *added; size_t n_added;                           /* tokens known in any text */
    unsigned char added_first[256];                           /* 1: one of them starts so */
};

static gpts_status gptsi_tokenizer_no_memory(gpts_tokenizer *t, size_t count, size_t size)
{
    return gptsi_no_memory(t->error, "the tokenizer", count, size);
}
/* pointer = a new array, or the caller returns */
#define GPTSI_ROOM(t, pointer, type, count) do { \
        if (!((pointer) = GPTSI_NEW(&(t)->hooks, type, (count)))) \
            return gptsi_tokenizer_no_memory((t), (count), sizeof(type)); \
    } while (0)

/* Starts an empty tokenizer of a kind, for at most n ids. */
static gpts_status gptsi_vocabulary_new(gpts_tokenizer *t, gpts_tokenizer_kind kind, size_t n)
{
    struct gpts_vocabulary *v;
    size_t slots = 16;
    int i;
    if (n > INT32_MAX / 4)
        return gptsi_fail(t->error, GPTS_TOO_LONG, "%llu tokens are too many for a tokenizer", (unsigned long long)n);
    while (slots < 2 * n) slots *= 2;
    t->kind = kind;
    t->end_of_text = -1;
    GPTSI_ROOM(t, t->vocabulary, struct gpts_vocabulary, 1);
    v = t->vocabulary;
    v->room = (int32_t)n;
    v->slots_mask = slots - 1;
    v->unknown = -1;
    for (i = 0; i < 256; i++) v->byte_id[i] = -1;
    GPTSI_ROOM(t, v->tokens, gptsi_token, n + 1);
    GPTSI_ROOM(t, v->slots, int32_t, slots);
    if (kind != GPTS_TOKENIZER_BPE && kind != GPTS_TOKENIZER_WORDPIECE) return GPTS_OK;
    GPTSI_ROOM(t, v->classes, unsigned char, GPTSI_CODES);
    gptsi_classes_fill(v->classes);
    if (kind == GPTS_TOKENIZER_BPE) GPTSI_ROOM(t, v->pieces, gptsi_piece, GPTSI_PIECES);
    return GPTS_OK;
}
/* Room for at most n pairs, once. */
static gpts_status gptsi_pairs_new(gpts_tokenizer *t, size_t n)
{
    struct gpts_vocabulary *v = t->vocabulary;
    size_t pairs = 16;
    if (n > INT32_MAX / 4)
        return gptsi_fail(t->error, GPTS_TOO_LONG, "%llu pairs are too many for a tokenizer", (unsigned long long)n);
    while (pairs < 2 * n) pairs *= 2;
    v->pairs_mask = pairs - 1;
    GPTSI_ROOM(t, v->pairs, gptsi_merge, pairs);
    return GPTS_OK;
}

static void gptsi_vocabulary_delete(const gpts_hooks *hooks, struct gpts_vocabulary *v)
{
    if (!v) return;
    gptsi_delete(hooks, v->tokens);
    gptsi_delete(hooks, v->bytes);
    gptsi_delete(hooks, v->slots);
    gptsi_delete(hooks, v->pairs);
    gptsi_delete(hooks, v->classes);
    gptsi_delete(hooks, v->pieces);
    gptsi_delete(hooks, v->added);
    gptsi_delete(hooks, v->file);
    gptsi_delete(hooks, v);
}

static uint64_t gptsi_load64(const char *p) { uint64_t x; memcpy(&x, p, sizeof x); return x; }
static uint64_t gptsi_load32(const char *p) { uint32_t x; memcpy(&x, p, sizeof x); return x; }

static uint64_t gptsi_bytes_hash(const char *p, size_t n)     /* for tables in memory only */
{
    uint64_t h = n;
    for (; n >= 8; p += 8, n -= 8) h = gptsi_mix(h ^ gptsi_load64(p));
    if (n >= 4) { h = gptsi_mix(h ^ gptsi_load32(p)); p += 4; n -= 4; }
    for (; n; n--) h = (h ^ (unsigned char)*p++) * 0x100000001B3u;
    return gptsi_mix(h);
}

static size_t gptsi_token_slot(const struct gpts_vocabulary *v, const char *bytes, size_t n)
{
    size_t i = (size_t)gptsi_bytes_hash(bytes, n) & v->slots_mask;
    for (; v->slots[i]; i = (i + 1) & v->slots_mask) {
        const gptsi_token *token = &v->tokens[v->slots[i] - 1];
        if (token->length == n && !memcmp(v->bytes + token->begin, bytes, n)) break;
    }
    return i;
}
/* The id of these bytes, or -1. */
static int32_t gptsi_token_find(const struct gpts_vocabulary *v, const char *bytes, size_t n)
{
    return v->slots[gptsi_token_slot(v, bytes, n)] - 1;
}

/* Gives a free id its bytes (1 or more).  A special token is never found in a text. */
static gpts_status gptsi_token_add(gpts_tokenizer *t, int32_t id, const char *bytes, size_t n, int special)
{
    struct gpts_vocabulary *v = t->vocabulary;
    gptsi_token *token = &v->tokens[id];
    if (n > v->bytes_room - v->n_bytes) {
        size_t room = gptsi_add(gptsi_mul(2, v->bytes_room), gptsi_add(n, 1024));
        char *grown;
        GPTSI_ROOM(t, grown, char, room);
        if (v->n_bytes) memcpy(grown, v->bytes, v->n_bytes);
        gptsi_delete(&t->hooks, v->bytes);
        v->bytes = grown;
        v->bytes_room = room;
    }
    memcpy(v->bytes + v->n_bytes, bytes, n);
    token->begin = v->n_bytes;
    token->length = (uint32_t)n;
    token->special = special;
    v->n_bytes += n;
    v->longest = gptsi_max(v->longest, n);
    if (id >= v->n) v->n = id + 1;
    t->vocab_size = v->n;
    if (special) return GPTS_OK;
    v->slots[gptsi_token_slot(v, bytes, n)] = id + 1;
    if (n == 1) v->byte_id[(unsigned char)*bytes] = id;
    return GPTS_OK;
}

static gptsi_merge *gptsi_pair_slot(const struct gpts_vocabulary *v, int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(key >> 32) & v->pairs_mask;
    for (; v->pairs[i].order; i = (i + 1) & v->pairs_mask)
        if (v->pairs[i].left == left && v->pairs[i].right == right) break;
    return &v->pairs[i];
}
/* A pair that is there already keeps its lower order. */
static void gptsi_pair_add(struct gpts_vocabulary *v, int32_t left, int32_t right, int32_t merged,
                           uint32_t order)
{
    gptsi_merge *pair = gptsi_pair_slot(v, left, right);
    if (pair->order) return;
    pair->left = left; pair->right = right; pair->merged = merged; pair->order = order;
    v->n_pairs++;
}

/* GPT-2 writes each byte as a printable character: 33-126, 161-172, 174-255 as themselves,
   the other 68 in order as U+0100 and on.  Ids of single bytes go: the former, the latter. */
static int gptsi_byte_kept(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}
static uint32_t gptsi_byte_code(uint32_t byte)
{
    if (gptsi_byte_kept(byte)) return byte;
    return 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67);
}
static int gptsi_byte_of(uint32_t code)                       /* or -1 */
{
    if (code < 256) return gptsi_byte_kept(code) ? (int)code : -1;
    if (code < 256 + 33) return (int)code - 256;
    if (code < 256 + 67) return (int)code - 256 - 33 + 127;
    return code == 256 + 67 ? 173 : -1;
}
static gpts_status gptsi_tokens_add_bytes(gpts_tokenizer *t)  /* ids 0 .. 255 in that order */
{
    int32_t id = 0;
    uint32_t code;
    for (code = 0; code < 256 + 68; code++) {
        char byte = (char)gptsi_byte_of(code);
        if (gptsi_byte_of(code) >= 0) GPTSI_TRY(gptsi_token_add(t, id++, &byte, 1, 0));
    }
    return GPTS_OK;
}

/* ---- GPT-2's split ---------------------------------------------------------------------------
   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
   (Radford et al. 2019, encoder.py), alternatives tried from left to right.  Bytes that are
   not UTF-8 are neither space, letter nor number.                                            */

static int gptsi_class_wide(const unsigned char *classes, const char *p, const char *end, size_t *size)
{
    uint32_t code = 0;
    *size = gptsi_utf8_get(p, end, &code);
    if (!*size) { *size = 1; return GPTSI_OTHER; }
    if (code < GPTSI_CODES) return classes[code];
    return code >= 0xE0100 && code <= 0xE01EF ? GPTSI_MARK : GPTSI_OTHER;
}
/* The class of the character at p and its size in bytes. */
static int gptsi_class(const unsigned char *classes, const char *p, const char *end, size_t *size)
{
    if ((unsigned char)*p < 0x80) { *size = 1; return classes[(unsigned char)*p]; }
    return gptsi_class_wide(classes, p, end, size);
}

static const char *gptsi_split(const unsigned char *classes, const char *p, const char *end)
{
    const char *q = p + (*p == ' ' && end - p > 1), *last = p;
    size_t size;
    int kind;
    if (*p == '\'' && end - p > 1) {                          /* 's|'t|'re|'ve|'m|'ll|'d */
        char a = p[1], b = (char)(end - p > 2 ? p[2] : 0);
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return p + 3;
    }
    kind = gptsi_class(classes, q, end, &size) & 3;
    if (kind != GPTSI_SPACE) {                                /*  ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+ */
        do q += size; while (q < end && (gptsi_class(classes, q, end, &size) & 3) == kind);
        return q;
    }
    for (q = p; q < end; last = q, q += size)                 /* \s+(?!\S)|\s+ */
        if ((gptsi_class(classes, q, end, &size) & 3) != GPTSI_SPACE) return last > p ? last : q;
    return q;
}

/* ---- merging one piece -------------------------------------------------------------------------
   The pair of the lowest order is merged, the leftmost of equals, until none is left.         */

typedef struct gptsi_ids { int32_t *ids; size_t n, room; } gptsi_ids;
static void gptsi_ids_put(gptsi_ids *out, int32_t id)         /* counts on when there is no room */
{
    if (out->n < out->room) out->ids[out->n] = id;
    out->n++;
}

enum { GPTSI_SHORT = 64 };

/* At most GPTSI_SHORT bytes: look for the minimum each time. */
static size_t gptsi_merge_short(const struct gpts_vocabulary *v, const char *p, size_t n, int32_t *ids)
{
    uint32_t order[GPTSI_SHORT], low;
    int32_t merged[GPTSI_SHORT];
    size_t i, at;
    for (i = 0; i < n; i++) ids[i] = v->byte_id[(unsigned char)p[i]];
#define GPTSI_LOOK(i) do { \
        const gptsi_merge *pair = gptsi_pair_slot(v, ids[i], ids[(i) + 1]); \
        order[i] = pair->order - 1;                           /* no pair: the largest number */ \
        merged[i] = pair->merged; \
    } while (0)
    for (i = 0; i + 1 < n; i++) GPTSI_LOOK(i);
    while (n > 1) {
        for (i = at = 0, low = UINT32_MAX; i + 1 < n; i++)
            if (order[i] < low) { low = order[i]; at = i; }
        if (low == UINT32_MAX) break;
        ids[at] = merged[at];
        n--;
        for (i = at + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            order[i - 1] = order[i];
            merged[i - 1] = merged[i];
        }
        if (at) GPTSI_LOOK(at - 1);
        if (at + 1 < n) GPTSI_LOOK(at);
    }
#undef GPTSI_LOOK
    return n;
}

/* A binary heap of (first, second), the smallest on top. */
typedef struct gptsi_entry { uint64_t first, second; } gptsi_entry;
static int gptsi_entry_less(const gptsi_entry *a, const gptsi_entry *b)
{
    return a->first < b->first || (a->first == b->first && a->second < b->second);
}
static void gptsi_heap_push(gptsi_entry *heap, size_t *n, uint64_t first, uint64_t second)
{
    gptsi_entry e;
    size_t i = (*n)++;
    e.first = first; e.second = second;
    for (; i && gptsi_entry_less(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}
static gptsi_entry gptsi_heap_pop(gptsi_entry *heap, size_t *n)
{
    gptsi_entry top = heap[0], e = heap[--*n];
    size_t i = 0, k;
    while ((k = 2 * i + 1) < *n) {
        if (k + 1 < *n && gptsi_entry_less(&heap[k + 1], &heap[k])) k++;
        if (!gptsi_entry_less(&heap[k], &e)) break;
        heap[i] = heap[k];
        i = k;
    }
    heap[i] = e;
    return top;
}

/* Any length, O(n log n) and 48 n bytes: symbols in a linked list, pairs in a heap by (order,
   position).  An entry whose pair is gone is dropped when it comes up.  At most n entries at
   first, and each merge takes one out and puts at most two in
   (tests/tokenizer.c: both_ways_of_merging_equal_the_plain_one).                             */
typedef struct gptsi_symbol { int32_t id, next, prev; uint32_t order; } gptsi_symbol;

static void gptsi_merge_look(const struct gpts_vocabulary *v, gptsi_symbol *s, int32_t i,
                             gptsi_entry *heap, size_t *n)
{
    s[i].order = s[i].next < 0 ? 0 : gptsi_pair_slot(v, s[i].id, s[s[i].next].id)->order;
    if (s[i].order) gptsi_heap_push(heap, n, s[i].order, (uint64_t)i);
}
static gpts_status gptsi_merge_long(gpts_tokenizer *t, const char *p, size_t n, gptsi_ids *out)
{
    const struct gpts_vocabulary *v = t->vocabulary;
    gptsi_symbol *s;
    gptsi_entry *heap;
    size_t entries = 0, i;
    int32_t at;
    if (n > INT32_MAX / 2)
        return gptsi_fail(t->error, GPTS_TOO_LONG, "a piece of %llu bytes is too long", (unsigned long long)n);
    s = GPTSI_NEW(&t->hooks, gptsi_symbol, n);
    heap = s ? GPTSI_NEW(&t->hooks, gptsi_entry, 2 * n) : NULL;
    if (!heap) {
        gptsi_delete(&t->hooks, s);
        return gptsi_no_memory(t->error, "a long piece of text", n, sizeof *s + 2 * sizeof *heap);
    }
    for (i = 0; i < n; i++) {
        s[i].id = v->byte_id[(unsigned char)p[i]];
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (i = 0; i < n; i++) gptsi_merge_look(v, s, (int32_t)i, heap, &entries);
    while (entries) {
        gptsi_entry top = gptsi_heap_pop(heap, &entries);
        int32_t next;
        at = (int32_t)top.second;
        if (s[at].order != top.first) continue;
        next = s[at].next;
        s[at].id = gptsi_pair_slot(v, s[at].id, s[next].id)->merged;
        s[at].next = s[next].next;
        s[next].order = 0;
        if (s[at].next >= 0) s[s[at].next].prev = at;
        if (s[at].prev >= 0) gptsi_merge_look(v, s, s[at].prev, heap, &entries);
        gptsi_merge_look(v, s, at, heap, &entries);
    }
    for (at = 0; at >= 0; at = s[at].next) gptsi_ids_put(out, s[at].id);
    gptsi_delete(&t->hooks, heap);
    gptsi_delete(&t->hooks, s);
    return GPTS_OK;
}

static gpts_status gptsi_encode_piece(gpts_tokenizer *t, const char *p, size_t n, gptsi_ids *out)
{
    struct gpts_vocabulary *v = t->vocabulary;
    gptsi_piece *piece = NULL;
    int32_t ids[GPTSI_SHORT];
    uint64_t head = 0, tail = 0;
    size_t i;
    if (n <= GPTSI_PIECE_BYTES) {
        if (n >= 8) { head = gptsi_load64(p); tail = gptsi_load64(p + n - 8); }
        else if (n >= 4) { head = gptsi_load32(p); tail = gptsi_load32(p + n - 4); }
        else {
            head = (unsigned char)p[0];
            tail = (uint64_t)(unsigned char)p[n / 2] << 8 | (unsigned char)p[n - 1];
        }
        i = (size_t)((head ^ (tail * 0x9E3779B97F4A7C15u + n)) * 0xBF58476D1CE4E5B9u >> 40);
        piece = &v->pieces[i % GPTSI_PIECES];
        if (piece->head == head && piece->tail == tail && piece->length == (int16_t)n) {
            for (i = 0; i < (size_t)piece->n; i++) gptsi_ids_put(out, piece->ids[i]);
            return GPTS_OK;
        }
    }
    ids[0] = v->whole && n <= GPTSI_TOKEN_BYTES ? gptsi_token_find(v, p, n) : -1;
    if (ids[0] >= 0) { gptsi_ids_put(out, ids[0]); return GPTS_OK; }
    if (n > GPTSI_SHORT) return gptsi_merge_long(t, p, n, out);
    i = gptsi_merge_short(v, p, n, ids);
    if (piece && i <= GPTSI_PIECE_IDS) {
        piece->head = head; piece->tail = tail;
        piece->length = (int16_t)n; piece->n = (int16_t)i;
        memcpy(piece->ids, ids, i * sizeof *ids);
    }
    for (n = i, i = 0; i < n; i++) gptsi_ids_put(out, ids[i]);
    return GPTS_OK;
}

static gpts_status gptsi_encode_bpe(gpts_tokenizer *t, const char *p, const char *end, gptsi_ids *out)
{
    while (p < end) {
        const char *q = gptsi_split(t->vocabulary->classes, p, end);
        GPTSI_TRY(gptsi_encode_piece(t, p, (size_t)(q - p), out));
        p = q;
    }
    return GPTS_OK;
}

static gpts_status gptsi_encode_chars(gpts_tokenizer *t, const char *text, size_t bytes, gptsi_ids *out)
{
    const struct gpts_vocabulary *v = t->vocabulary;
    const char *p = text, *end = text + bytes;
    while (p < end) {
        uint32_t code = (unsigned char)*p;
        size_t size = gptsi_utf8_get(p, end, &code);
        int32_t id = size < 2 ? v->byte_id[(unsigned char)*p] : gptsi_token_find(v, p, size);
        if (id < 0)
            return gptsi_fail(t->error, GPTS_NOT_FOUND, "byte %llu of the text: the tokenizer has no %s%0*X",
                              (unsigned long long)(p - text), size ? "character U+" : "byte 0x",
                              size ? 4 : 2, (unsigned)code);
        gptsi_ids_put(out, id);
        p += size ? size : 1;
    }
    return GPTS_OK;
}

/* ---- WordPiece -----------------------------------------------------------------------------------
   SimpleStories' tokenizer (Hugging Face's components in parentheses): lower-case, `` and ''
   become " (Lowercase, Replace); words are runs of letters and marks, or runs of the rest
   (Whitespace), but each punctuation character and digit stands alone (Punctuation, Digits);
   a word is cut into the longest tokens from the left, or is unknown as a whole.  A token's
   bytes are UTF-8; a byte that is not counts as U+FFFD.                                        */

typedef struct gptsi_wordpiece {
    const struct gpts_vocabulary *v;
    gptsi_ids *out;
    char bytes[16 + 4 * GPTSI_WORD_CHARS];                    /* the word, from n_prefix on */
    size_t n, chars;
    int other;                                                /* a run that is no word's */
} gptsi_wordpiece;

static void gptsi_wordpiece_flush(gptsi_wordpiece *w)
{
    const struct gpts_vocabulary *v = w->v;
    size_t begin = 0, first = w->out->n, n;
    int32_t id = -1;
    for (; w->chars <= v->limit && begin < w->n; begin += n) {
        char *word = w->bytes + v->n_prefix + begin;
        size_t p = begin ? v->n_prefix : 0;
        word -= p;
        memcpy(word, v->prefix, p);                           /* over what is done already */
        for (n = w->n - begin; n; n--) {
            if (p + n > v->longest || (n < w->n - begin && (word[p + n] & 0xC0) == 0x80)) continue;
            if ((id = gptsi_token_find(v, word, p + n)) >= 0) break;
        }
        if (!n) break;
        gptsi_ids_put(w->out, id);
    }
    if (begin < w->n) { w->out->n = first; gptsi_ids_put(w->out, v->unknown); }
    w->n = w->chars = 0;
}
static void gptsi_wordpiece_add(gptsi_wordpiece *w, uint32_t code)
{
    if (++w->chars <= w->v->limit) w->n += gptsi_utf8_put(code, w->bytes + w->v->n_prefix + w->n);
}

/* Simple lower case of Latin, Greek, Cyrillic, Armenian and full-width letters.  Other
   scripts and a final sigma stay: no ASCII vocabulary has them.                                */
static uint32_t gptsi_lower(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
#define GPTSI_IN(first, last) (c >= (first) && c <= (last))
    if (GPTSI_IN(0xC0, 0xDE)) return c == 0xD7 ? c : c + 32;
    if (GPTSI_IN(0x391, 0x3A9) || GPTSI_IN(0x410, 0x42F) || GPTSI_IN(0xFF21, 0xFF3A)) return c + 32;
    if (GPTSI_IN(0x100, 0x137) || GPTSI_IN(0x14A, 0x177) || GPTSI_IN(0x460, 0x481) ||
        GPTSI_IN(0x1E00, 0x1E95) || GPTSI_IN(0x1EA0, 0x1EFF)) return c | 1;
    if (GPTSI_IN(0x139, 0x148) || GPTSI_IN(0x179, 0x17E)) return c + (c & 1);
#undef GPTSI_IN
    if (c >= 0x400 && c <= 0x40F) return c + 80;
    if (c >= 0x531 && c <= 0x556) return c + 48;
    return c == 0x178 ? 0xFF : c == 0x212A ? 'k' : c == 0x212B ? 0xE5 : c;
}

static void gptsi_wordpiece_text(gptsi_wordpiece *w, const char *p, const char *end)
{
    const struct gpts_vocabulary *v = w->v;
    while (p < end) {
        uint32_t code = 0xFFFD;
        size_t size = gptsi_utf8_get(p, end, &code);
        int kind = gptsi_class(v->classes, p, end, &size);
        if (v->quotes && (*p == '`' || *p == '\'') && end - p > 1 && p[1] == *p) {
            code = '"';
            size = 2;
        }
        p += size;
        if (v->lower && code == 0x130) {                      /* a dotted I becomes i and a dot above */
            if (w->other) gptsi_wordpiece_flush(w);
            w->other = 0;
            gptsi_wordpiece_add(w, 'i');
            code = 0x307;
        } else if (v->lower) code = gptsi_lower(code);
        if (kind == GPTSI_SPACE) gptsi_wordpiece_flush(w);
        else if (kind == GPTSI_NUMBER || kind == GPTSI_PUNCTUATION) {
            gptsi_wordpiece_flush(w);
            gptsi_wordpiece_add(w, code);
            gptsi_wordpiece_flush(w);
        } else {
            if (w->other != (kind == GPTSI_OTHER)) gptsi_wordpiece_flush(w);
            w->other = kind == GPTSI_OTHER;
            gptsi_wordpiece_add(w, code);
        }
    }
    gptsi_wordpiece_flush(w);
}

/* The longest added token that starts at p, or -1. */
static int32_t gptsi_wordpiece_added(const struct gpts_vocabulary *v, const char *p, const char *end)
{
    int32_t best = -1;
    size_t i;
    for (i = 0; v->added_first[(unsigned char)*p] && i < v->n_added; i++) {
        const gptsi_token *token = &v->tokens[v->added[i]];
        if (token->length <= (size_t)(end - p) && !memcmp(p, v->bytes + token->begin, token->length) &&
            (best < 0 || token->length > v->tokens[best].length)) best = v->added[i];
    }
    return best;
}
static void gptsi_encode_wordpiece(const struct gpts_vocabulary *v, const char *text, const char *end,
                                   gptsi_ids *out)
{
    gptsi_wordpiece w;
    const char *p = text;
    size_t i;
    w.v = v; w.out = out; w.n = w.chars = 0; w.other = 0;
    for (i = 0; i < v->n_before; i++) gptsi_ids_put(out, v->before[i]);
    while (p < end) {
        int32_t id = gptsi_wordpiece_added(v, p, end);
        if (id < 0) { p++; continue; }
        gptsi_wordpiece_text(&w, text, p);
        gptsi_ids_put(out, id);
        text = p += v->tokens[id].length;
    }
    gptsi_wordpiece_text(&w, text, end);
    for (i = 0; i < v->n_after; i++) gptsi_ids_put(out, v->after[i]);
}

/* Decoding: a token with the prefix loses it; any other has a space before it, but when
   clean-up is on not the ones that start so.                                                   */
static int gptsi_wordpiece_spaced(const struct gpts_vocabulary *v, const char **bytes, size_t *length)
{
    static const char close[][4] = { ".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re" };
    size_t i;
    if (*length >= v->n_prefix && !memcmp(*bytes, v->prefix, v->n_prefix)) {
        *bytes += v->n_prefix;
        *length -= v->n_prefix;
        return 0;
    }
    for (i = 0; v->cleanup && i < sizeof close / sizeof *close; i++)
        if (*length >= strlen(close[i]) && !memcmp(*bytes, close[i], strlen(close[i]))) return 0;
    return 1;
}

/* ---- encoding and decoding -------------------------------------------------------------------- */

GPTS_API gpts_status gpts_tokenizer_encode(gpts_tokenizer *tokenizer, const char *text, size_t bytes,
                                           int32_t *ids, size_t *n)
{
    const struct gpts_vocabulary *v = tokenizer->vocabulary;
    gptsi_ids out;
    gpts_status status = GPTS_OK;
    size_t i;
    out.ids = ids; out.n = 0; out.room = ids ? *n : 0;
    *n = 0;
    if (!v) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the tokenizer is empty");
    if (!text && bytes) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the text is missing");
    if (!bytes) text = "";
    switch (tokenizer->kind) {
    case GPTS_TOKENIZER_BYTES:
        for (i = 0; i < bytes; i++) gptsi_ids_put(&out, (unsigned char)text[i]);
        break;
    case GPTS_TOKENIZER_CHARS: status = gptsi_encode_chars(tokenizer, text, bytes, &out); break;
    case GPTS_TOKENIZER_BPE: status = gptsi_encode_bpe(tokenizer, text, text + bytes, &out); break;
    case GPTS_TOKENIZER_WORDPIECE: gptsi_encode_wordpiece(v, text, text + bytes, &out); break;
    }
    if (status != GPTS_OK) return status;
    *n = out.n;
    if (ids && out.n > out.room)
        return gptsi_fail(tokenizer->error, GPTS_TOO_LONG,
                          "the text has %llu tokens, but there is room for %llu",
                          (unsigned long long)out.n, (unsigned long long)out.room);
    return GPTS_OK;
}

GPTS_API gpts_status gpts_tokenizer_decode(gpts_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                           char *text, size_t *bytes)
{
    const struct gpts_vocabulary *v = tokenizer->vocabulary;
    size_t i, length, used = 0, room = text ? *bytes : 0;
    const char *bytes_of;
    int any = 0;
    *bytes = 0;
    if (!v) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the tokenizer is empty");
    if (!ids && n) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the ids are missing");
    for (i = 0; i < n; i++) {
        const gptsi_token *token;
        if (ids[i] < 0 || ids[i] >= v->n || !v->tokens[ids[i]].length)
            return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT,
                              "id %ld at position %llu is none of the tokenizer's", (long)ids[i], (unsigned long long)i);
        token = &v->tokens[ids[i]];
        bytes_of = v->bytes + token->begin;
        length = token->length;
        if (tokenizer->kind == GPTS_TOKENIZER_WORDPIECE) {
            if (token->special) continue;
            if (any && gptsi_wordpiece_spaced(v, &bytes_of, &length)) {
                if (used < room) text[used] = ' ';
                used++;
            }
            any = 1;
        }
        if (used <= room && length <= room - used) memcpy(text + used, bytes_of, length);
        used = gptsi_add(used, length);
    }
    *bytes = used;
    if (text && used > room)
        return gptsi_fail(tokenizer->error, GPTS_TOO_LONG,
                          "the ids have %llu bytes, but there is room for %llu",
                          (unsigned long long)used, (unsigned long long)room);
    return GPTS_OK;
}

/* ---- making a tokenizer ------------------------------------------------------------------------ */

static void gptsi_tokenizer_start(gpts_tokenizer *t, const gpts_hooks *hooks)
{
    memset(t, 0, sizeof *t);
    t->end_of_text = -1;
    if (hooks) t->hooks = *hooks;
}
/* Frees a tokenizer that could not be made; its error stays. */
static gpts_status gptsi_tokenizer_end(gpts_tokenizer *t, gpts_status status)
{
    if (status != GPTS_OK) gpts_tokenizer_free(t);
    return status;
}

GPTS_API void gpts_tokenizer_free(gpts_tokenizer *tokenizer)
{
    gptsi_vocabulary_delete(&tokenizer->hooks, tokenizer->vocabulary);
    tokenizer->vocabulary = NULL;
    tokenizer->vocab_size = 0;
    tokenizer->end_of_text = -1;
}

static gpts_status gptsi_make_bytes(gpts_tokenizer *t)
{
    int32_t id;
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_BYTES, 256));
    for (id = 0; id < 256; id++) {
        char byte = (char)id;
        GPTSI_TRY(gptsi_token_add(t, id, &byte, 1, 0));
    }
    return GPTS_OK;
}
GPTS_API gpts_status gpts_tokenizer_bytes(gpts_tokenizer *tokenizer, const gpts_hooks *hooks)
{
    gptsi_tokenizer_start(tokenizer, hooks);
    return gptsi_tokenizer_end(tokenizer, gptsi_make_bytes(tokenizer));
}

/* Characters are numbered in ascending order, first the code points, then invalid bytes:
   `seen` is a bit for each of both.                                                        */
enum { GPTSI_UNICODE = 0x110000, GPTSI_SEEN = GPTSI_UNICODE + 256 };
static gpts_status gptsi_make_chars(gpts_tokenizer *t, const unsigned char *seen)
{
    size_t n = 0, size;
    uint32_t c;
    int32_t id = 0;
    char bytes[4];
    for (c = 0; c < GPTSI_SEEN; c++) n += seen[c / 8] >> (c % 8) & 1;
    if (!n) return gptsi_fail(t->error, GPTS_BAD_ARGUMENT, "a tokenizer of characters needs one at least");
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_CHARS, n));
    for (c = 0; c < GPTSI_SEEN; c++) {
        if (!(seen[c / 8] >> (c % 8) & 1)) continue;
        if (c < GPTSI_UNICODE) size = gptsi_utf8_put(c, bytes);
        else { bytes[0] = (char)(c - GPTSI_UNICODE); size = 1; }
        GPTSI_TRY(gptsi_token_add(t, id++, bytes, size, 0));
    }
    return GPTS_OK;
}
GPTS_API gpts_status gpts_tokenizer_chars(gpts_tokenizer *tokenizer, const char *text, size_t bytes,
                                          const gpts_hooks *hooks)
{
    const char *p = text, *end = text ? text + bytes : NULL;
    unsigned char *seen;
    gpts_status status;
    gptsi_tokenizer_start(tokenizer, hooks);
    GPTSI_ROOM(tokenizer, seen, unsigned char, GPTSI_SEEN / 8);
    while (p < end) {
        uint32_t code = 0;
        size_t size = gptsi_utf8_get(p, end, &code);
        if (!size) code = (uint32_t)GPTSI_UNICODE + (unsigned char)*p;
        seen[code / 8] = (unsigned char)(seen[code / 8] | 1u << code % 8);
        p += size ? size : 1;
    }
    status = gptsi_make_chars(tokenizer, seen);
    gptsi_delete(hooks, seen);
    return gptsi_tokenizer_end(tokenizer, status);
}

/* ---- training byte-level BPE -----------------------------------------------------------------------
   Each step merges the pair that occurs most often in the split text, the one of the smallest
   ids (left, then right) among equals, until no pair occurs twice.  A pair that would spell a
   token that is there already, or one of more than GPTSI_TOKEN_BYTES, is passed over.

   Each distinct piece is kept once, with its count as weight.  All their symbols lie in one
   array, linked; each pair's occurrences are a chain through it, in ascending order, so a
   merge touches only what it changes and every count is always exact
   (tests/tokenizer.c: training_equals_counting_everything_again).                             */

typedef struct gptsi_word { const char *text; size_t length; uint64_t count; } gptsi_word;
typedef struct gptsi_count { uint64_t count; int32_t left, right, first, last; int used; } gptsi_count;
typedef struct gptsi_site { int32_t id, next, prev, after, before; uint32_t word; } gptsi_site;

typedef struct gptsi_training {
    gpts_tokenizer *t;
    gptsi_word *words; size_t n_words, words_mask;            /* by their bytes; count 0: free */
    gptsi_count *counts; size_t n_counts, counts_mask;        /* by (left, right) */
    gptsi_site *sites; size_t n_sites;                        /* after, before: the pair's chain */
    gptsi_entry *heap; size_t n_heap, heap_room;              /* (~count or less, pair) */
} gptsi_training;

static gptsi_word *gptsi_word_slot(const gptsi_training *w, const char *text, size_t length)
{
    size_t i = (size_t)gptsi_bytes_hash(text, length) & w->words_mask;
    for (; w->words[i].count; i = (i + 1) & w->words_mask)
        if (w->words[i].length == length && !memcmp(w->words[i].text, text, length)) break;
    return &w->words[i];
}
static gptsi_count *gptsi_count_slot(const gptsi_training *w, int32_t left, int32_t right)
{
    size_t i = (size_t)gptsi_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) & w->counts_mask;
    for (; w->counts[i].used; i = (i + 1) & w->counts_mask)
        if (w->counts[i].left == left && w->counts[i].right == right) break;
    return &w->counts[i];
}

/* Room for one more word or pair: a table that is half full doubles. */
static gpts_status gptsi_words_grow(gptsi_training *w)
{
    gptsi_word *old = w->words, *grown;
    size_t n = w->words_mask + 1, more = old ? 2 * n : 4096, i;
    if (old && w->n_words < n / 2) return GPTS_OK;
    GPTSI_ROOM(w->t, grown, gptsi_word, more);
    w->words = grown;
    w->words_mask = more - 1;
    for (i = 0; old && i < n; i++)
        if (old[i].count) *gptsi_word_slot(w, old[i].text, old[i].length) = old[i];
    gptsi_delete(&w->t->hooks, old);
    return GPTS_OK;
}
static gpts_status gptsi_counts_grow(gptsi_training *w)
{
    gptsi_count *old = w->counts, *grown;
    size_t n = w->counts_mask + 1, more = old ? 2 * n : 4096, i;
    if (old && w->n_counts < n / 2) return GPTS_OK;
    GPTSI_ROOM(w->t, grown, gptsi_count, more);
    w->counts = grown;
    w->counts_mask = more - 1;
    for (i = 0; old && i < n; i++)
        if (old[i].used) *gptsi_count_slot(w, old[i].left, old[i].right) = old[i];
    gptsi_delete(&w->t->hooks, old);
    return GPTS_OK;
}
static gpts_status gptsi_training_push(gptsi_training *w, uint64_t bound, int32_t left, int32_t right)
{
    if (w->n_heap == w->heap_room) {
        size_t room = gptsi_add(4096, gptsi_mul(2, w->heap_room));
        gptsi_entry *grown;
        GPTSI_ROOM(w->t, grown, gptsi_entry, room);
        if (w->n_heap) memcpy(grown, w->heap, w->n_heap * sizeof *grown);
        gptsi_delete(&w->t->hooks, w->heap);
        w->heap = grown;
        w->heap_room = room;
    }
    gptsi_heap_push(w->heap, &w->n_heap, ~bound, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return GPTS_OK;
}

/* The pair that starts at site i leaves its chain, or enters one at the end.  A pair that is
   new goes on the heap with a bound that its count will not exceed.                            */
static void gptsi_chain_remove(gptsi_training *w, int32_t i)
{
    gptsi_site *s = w->sites;
    gptsi_count *c = gptsi_count_slot(w, s[i].id, s[s[i].next].id);
    c->count -= w->words[s[i].word].count;
    if (s[i].before < 0) c->first = s[i].after; else s[s[i].before].after = s[i].after;
    if (s[i].after < 0) c->last = s[i].before; else s[s[i].after].before = s[i].before;
}
static gpts_status gptsi_chain_append(gptsi_training *w, int32_t i, uint64_t bound)
{
    gptsi_site *s = w->sites;
    gptsi_count *c;
    GPTSI_TRY(gptsi_counts_grow(w));
    c = gptsi_count_slot(w, s[i].id, s[s[i].next].id);
    if (!c->used) {
        c->used = 1;
        c->left = s[i].id; c->right = s[s[i].next].id;
        c->first = c->last = -1;
        w->n_counts++;
        GPTSI_TRY(gptsi_training_push(w, bound, c->left, c->right));
    }
    s[i].after = -1;
    s[i].before = c->last;
    if (c->last < 0) c->first = i; else s[c->last].after = i;
    c->last = i;
    c->count += w->words[s[i].word].count;
    return GPTS_OK;
}

static gpts_status gptsi_training_words(gptsi_training *w, const char *text, size_t bytes)
{
    const char *p = text, *end = text + bytes;
    while (p < end) {
        const char *q = gptsi_split(w->t->vocabulary->classes, p, end);
        gptsi_word *word;
        GPTSI_TRY(gptsi_words_grow(w));
        word = gptsi_word_slot(w, p, (size_t)(q - p));
        if (!word->count++) {
            word->text = p;
            word->length = (size_t)(q - p);
            w->n_words++;
            w->n_sites += word->length;
        }
        p = q;
    }
    return GPTS_OK;
}
static gpts_status gptsi_training_sites(gptsi_training *w, uint64_t bytes)
{
    size_t word, k, n = 0;
    if (w->n_sites > INT32_MAX - 1 || w->words_mask > UINT32_MAX - 1)
        return gptsi_fail(w->t->error, GPTS_TOO_LONG, "%llu bytes of distinct pieces are too many to train on",
                          (unsigned long long)w->n_sites);
    GPTSI_ROOM(w->t, w->sites, gptsi_site, w->n_sites);
    for (word = 0; word <= w->words_mask; word++)
        for (k = 0; w->words[word].count && k < w->words[word].length; k++, n++) {
            gptsi_site *s = &w->sites[n];
            s->id = w->t->vocabulary->byte_id[(unsigned char)w->words[word].text[k]];
            s->word = (uint32_t)word;
            s->prev = k ? (int32_t)n - 1 : -1;
            s->next = k + 1 < w->words[word].length ? (int32_t)n + 1 : -1;
        }
    for (k = 0; k < n; k++)
        if (w->sites[k].next >= 0) GPTSI_TRY(gptsi_chain_append(w, (int32_t)k, bytes));
    return GPTS_OK;
}

static gpts_status gptsi_training_merge(gptsi_training *w, int32_t left, int32_t right, int32_t merged,
                                        uint64_t count)
{
    gptsi_site *s = w->sites;
    int32_t i;
    while ((i = gptsi_count_slot(w, left, right)->first) >= 0) {
        int32_t j = s[i].next, p = s[i].prev, k = s[j].next;
        gptsi_chain_remove(w, i);
        if (p >= 0) gptsi_chain_remove(w, p);
        if (k >= 0) gptsi_chain_remove(w, j);
        s[i].id = merged;
        s[i].next = k;
        if (k >= 0) s[k].prev = i;
        if (p >= 0) GPTSI_TRY(gptsi_chain_append(w, p, 2 * count));
        if (k >= 0) GPTSI_TRY(gptsi_chain_append(w, i, 2 * count));
    }
    return GPTS_OK;
}

static gpts_status gptsi_training_run(gptsi_training *w, const char *text, size_t bytes,
                                      int32_t vocab_size)
{
    gpts_tokenizer *t = w->t;
    char joined[2 * GPTSI_TOKEN_BYTES];
    uint32_t order = 0;
    size_t room = gptsi_min((size_t)vocab_size, gptsi_add(256, bytes));       /* a merge needs a byte */
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_BPE, room));
    GPTSI_TRY(gptsi_pairs_new(t, room - 256));
    GPTSI_TRY(gptsi_tokens_add_bytes(t));
    if (bytes) GPTSI_TRY(gptsi_training_words(w, text, bytes));
    if (w->n_sites) GPTSI_TRY(gptsi_training_sites(w, bytes));
    while ((size_t)t->vocabulary->n < room && w->n_heap) {
        struct gpts_vocabulary *v = t->vocabulary;
        gptsi_entry top = gptsi_heap_pop(w->heap, &w->n_heap);
        int32_t left = (int32_t)(top.second >> 32), right = (int32_t)(top.second & INT32_MAX), merged = v->n;
        const gptsi_token *a = &v->tokens[left], *b = &v->tokens[right];
        uint64_t count = gptsi_count_slot(w, left, right)->count;
        size_t n = (size_t)a->length + b->length;
        if (count < 2 || n > GPTSI_TOKEN_BYTES) continue;
        if (count != ~top.first) { GPTSI_TRY(gptsi_training_push(w, count, left, right)); continue; }
        memcpy(joined, v->bytes + a->begin, a->length);
        memcpy(joined + a->length, v->bytes + b->begin, b->length);
        if (gptsi_token_find(v, joined, n) >= 0) continue;
        GPTSI_TRY(gptsi_token_add(t, merged, joined, n, 0));
        gptsi_pair_add(v, left, right, merged, ++order);
        GPTSI_TRY(gptsi_training_merge(w, left, right, merged, count));
    }
    return GPTS_OK;
}

GPTS_API gpts_status gpts_tokenizer_train(gpts_tokenizer *tokenizer, const char *text, size_t bytes,
                                          int32_t vocab_size, const gpts_hooks *hooks)
{
    gptsi_training w;
    gpts_status status;
    gptsi_tokenizer_start(tokenizer, hooks);
    if (vocab_size < 256)
        return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT,
                          "vocab_size is %ld, but byte-level BPE has 256 at least", (long)vocab_size);
    if (!text && bytes) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the text is missing");
    memset(&w, 0, sizeof w);
    w.t = tokenizer;
    status = gptsi_training_run(&w, text, bytes, vocab_size);
    gptsi_delete(&tokenizer->hooks, w.words);
    gptsi_delete(&tokenizer->hooks, w.counts);
    gptsi_delete(&tokenizer->hooks, w.sites);
    gptsi_delete(&tokenizer->hooks, w.heap);
    return gptsi_tokenizer_end(tokenizer, status);
}

/* ---- files of tokenizers: loading -----------------------------------------------------------------
   Every line, number and size is checked; what is refused is named in one sentence.  Memory
   is bounded by a multiple of the file's size (tests/tokenizer.c: hostile_files_..., damaged_...). */

static gpts_status gptsi_file_bad(gpts_tokenizer *t, const char *where, uint64_t number, const char *what)
{
    return gptsi_fail(t->error, GPTS_BAD_FILE, "%s %llu: %s", where, (unsigned long long)number, what);
}
/* Are these bytes that text? */
static int gptsi_same(const char *bytes, size_t n, const char *text)
{
    return n == strlen(text) && !memcmp(bytes, text, n);
}

typedef struct gptsi_line { const char *at, *end; size_t number; } gptsi_line;
/* The next line of `rest`, without its end (LF or CRLF); 0: there is none. */
static int gptsi_line_next(gptsi_line *line, const char **rest, const char *end)
{
    const char *p = *rest, *stop;
    if (p == end) return 0;
    stop = (const char *)memchr(p, '\n', (size_t)(end - p));
    *rest = stop ? stop + 1 : end;
    line->at = p;
    line->end = stop ? stop : end;
    if (line->end > p && line->end[-1] == '\r') line->end--;
    line->number++;
    return 1;
}
/* The only or first space in it, with something on both sides, or NULL. */
static const char *gptsi_line_space(const gptsi_line *line)
{
    const char *space = line->at == line->end ? NULL
                      : (const char *)memchr(line->at, ' ', (size_t)(line->end - line->at));
    return !space || space == line->at || space + 1 == line->end ? NULL : space;
}

/* Printable characters back to the bytes they stand for; SIZE_MAX: one of them stands for
   none, or there are more than `room`.                                                        */
static size_t gptsi_bytes_unmap(const char *p, const char *end, char *bytes, size_t room)
{
    size_t n = 0;
    while (p < end) {
        uint32_t code = 0;
        size_t size = gptsi_utf8_get(p, end, &code);
        if (!size || gptsi_byte_of(code) < 0 || n == room) return SIZE_MAX;
        bytes[n++] = (char)gptsi_byte_of(code);
        p += size;
    }
    return n;
}

/* vocab.bpe, merges.txt: "A B" a line, in the order of merging, after an optional first line
   "#version ...".  Ids: bytes, then one for each new token, then the end of text, unless the
   first line says that there is none (gptsi_plain, as gpts_tokenizer_save writes it).          */
static const char gptsi_version[] = "#version: 0.2", gptsi_plain[] = " gptstatic, no <|endoftext|>";
static const char gptsi_end_of_text[] = "<|endoftext|>";

static gpts_status gptsi_load_merges(gpts_tokenizer *t, const char *data, size_t bytes)
{
    const char *rest = data, *end = data + bytes, *space;
    char joined[2 * GPTSI_TOKEN_BYTES];
    size_t lines = 0, i;
    uint32_t order = 0;
    int plain = 0;
    gptsi_line line;
    struct gpts_vocabulary *v;
    for (i = 0; i < bytes; i++) lines += data[i] == '\n';
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_BPE, 256 + lines + 2));
    GPTSI_TRY(gptsi_pairs_new(t, lines + 1));
    GPTSI_TRY(gptsi_tokens_add_bytes(t));
    v = t->vocabulary;
    line.number = 0;
    while (gptsi_line_next(&line, &rest, end)) {
        size_t a, b;
        int32_t left, right, merged;
        if (line.number == 1 && line.end - line.at >= 8 && !memcmp(line.at, gptsi_version, 8)) {
            size_t n = strlen(gptsi_plain);
            plain = (size_t)(line.end - line.at) > n && !memcmp(line.end - n, gptsi_plain, n);
            continue;
        }
        if (line.at == line.end && rest == end) break;
        space = gptsi_line_space(&line);
        if (!space) return gptsi_file_bad(t, "line", line.number, "not two tokens with a space between");
        a = gptsi_bytes_unmap(line.at, space, joined, GPTSI_TOKEN_BYTES);
        b = SIZE_MAX;
        if (a != SIZE_MAX) b = gptsi_bytes_unmap(space + 1, line.end, joined + a, GPTSI_TOKEN_BYTES - a);
        if (b == SIZE_MAX)
            return gptsi_file_bad(t, "line", line.number, "a character that stands for no byte, or a token too long");
        left = gptsi_token_find(v, joined, a);
        right = gptsi_token_find(v, joined + a, b);
        if (left < 0) return gptsi_file_bad(t, "line", line.number, "its first part is no token of a line before");
        if (right < 0) return gptsi_file_bad(t, "line", line.number, "its second part is no token of a line before");
        if (gptsi_pair_slot(v, left, right)->order)
            return gptsi_file_bad(t, "line", line.number, "this pair was merged by a line before");
        merged = gptsi_token_find(v, joined, a + b);
        if (merged < 0) {
            merged = v->n;
            GPTSI_TRY(gptsi_token_add(t, merged, joined, a + b, 0));
        }
        gptsi_pair_add(v, left, right, merged, ++order);
    }
    if (plain) return GPTS_OK;
    t->end_of_text = v->n;
    return gptsi_token_add(t, v->n, gptsi_end_of_text, strlen(gptsi_end_of_text), 1);
}

/* {"gptstatic": "bytes"} and {"gptstatic": "chars", "characters": "...", "bytes": [...]} */
static int gptsi_own_key(gptsi_json *j, const char *key)      /* "key": */
{
    char name[16];
    size_t n = 0;
    return gptsi_json_string(j, name, sizeof name, &n) && gptsi_same(name, n, key) && gptsi_json_take(j, ':');
}
static int gptsi_own_chars(gptsi_json *j, unsigned char *seen)
{
    uint64_t code, count = 0;
    uint32_t c = 0;
    if (!gptsi_json_take(j, ',') || !gptsi_own_key(j, "characters") || !gptsi_json_take(j, '"')) return 0;
    for (; j->at < j->end && *j->at != '"'; count++) {
        if (!gptsi_json_character(j, &c)) return 0;
        seen[c / 8] = (unsigned char)(seen[c / 8] | 1u << c % 8);
    }
    if (!gptsi_json_take(j, '"') || !gptsi_json_take(j, ',') || !gptsi_own_key(j, "bytes") || !gptsi_json_take(j, '[')) return 0;
    for (; !gptsi_json_is(j, ']'); count++) {
        if (!gptsi_json_u64(j, &code) || code < 0x80 || code > 0xFF) return 0;
        code += GPTSI_UNICODE;
        seen[code / 8] = (unsigned char)(seen[code / 8] | 1u << code % 8);
        if (!gptsi_json_take(j, ',') && !gptsi_json_is(j, ']')) return 0;
    }
    return count && gptsi_json_take(j, ']') && gptsi_json_take(j, '}');
}
static gpts_status gptsi_load_own(gpts_tokenizer *t, gptsi_json j)
{
    char kind[16];
    size_t n = 0;
    unsigned char *seen;
    gpts_status status;
    if (!gptsi_json_take(&j, '{') || !gptsi_own_key(&j, "gptstatic") || !gptsi_json_string(&j, kind, sizeof kind, &n)) n = 0;
    if (gptsi_same(kind, n, "bytes") && gptsi_json_take(&j, '}')) return gptsi_make_bytes(t);
    if (!gptsi_same(kind, n, "chars")) return gptsi_fail(t->error, GPTS_BAD_FILE, "not a tokenizer of bytes or chars");
    GPTSI_ROOM(t, seen, unsigned char, GPTSI_SEEN / 8);
    if (gptsi_own_chars(&j, seen)) status = gptsi_make_chars(t, seen);
    else status = gptsi_fail(t->error, GPTS_BAD_FILE, "the list of characters is not valid");
    gptsi_delete(&t->hooks, seen);
    return status;
}

/* .tiktoken: "base64(bytes) rank" a line, ranks are ids.  Pairs are merged by the rank of the
   joined bytes, so every way to cut a token into two is a pair; a piece that is a token stays.
   The file does not name its split: GPT-2's is taken (gpt2, r50k_base, p50k_base).             */
static int gptsi_base64_of(char ch)
{
    return ch >= 'A' && ch <= 'Z' ? ch - 'A' : ch >= 'a' && ch <= 'z' ? ch - 'a' + 26 :
           ch >= '0' && ch <= '9' ? ch - '0' + 52 : ch == '+' ? 62 : ch == '/' ? 63 : -1;
}
static size_t gptsi_base64_read(const char *p, const char *end, char *bytes, size_t room)
{
    size_t n = 0;
    if ((end - p) % 4) return SIZE_MAX;                       /* SIZE_MAX: not valid, or too long */
    for (; p < end; p += 4) {
        size_t k = p + 4 < end || p[3] != '=' ? 3 : p[2] != '=' ? 2 : 1, i;
        int bits = 0, digit;
        for (i = 0; i < 4; i++) {
            digit = i <= k ? gptsi_base64_of(p[i]) : 0;
            if (digit < 0) return SIZE_MAX;
            bits = bits << 6 | digit;
        }
        if (k > room - n || (k < 3 && bits & (0xFFFFFF >> 8 * k))) return SIZE_MAX;
        for (i = 0; i < k; i++) bytes[n++] = (char)(bits >> (16 - 8 * i));
    }
    return n;
}

/* One line as bytes and rank. */
static int gptsi_rank_line(const gptsi_line *line, char *bytes, size_t *n, uint64_t *rank)
{
    const char *space = gptsi_line_space(line);
    gptsi_json j;
    if (!space) return 0;
    *n = gptsi_base64_read(line->at, space, bytes, GPTSI_TOKEN_BYTES);
    j.at = space + 1; j.end = line->end; j.depth = 0;
    return *n != SIZE_MAX && gptsi_json_digit(&j) && gptsi_json_u64(&j, rank) && j.at == j.end;
}

/* Counts (add 0) or adds every pair of tokens that spells a token. */
static size_t gptsi_ranks_pairs(struct gpts_vocabulary *v, int add)
{
    size_t count = 0, cut;
    int32_t id;
    for (id = 0; id < v->n; id++) {
        const gptsi_token *token = &v->tokens[id];
        for (cut = 1; cut < token->length && !token->special; cut++) {
            const char *bytes = v->bytes + token->begin;
            int32_t left = gptsi_token_find(v, bytes, cut), right;
            if (left < 0 || (right = gptsi_token_find(v, bytes + cut, token->length - cut)) < 0) continue;
            count++;
            if (add) gptsi_pair_add(v, left, right, id, (uint32_t)id + 1);
        }
    }
    return count;
}

static gpts_status gptsi_bytes_missing(gpts_tokenizer *t)     /* every byte must have a token */
{
    int i;
    for (i = 0; i < 256; i++)
        if (t->vocabulary->byte_id[i] < 0)
            return gptsi_fail(t->error, GPTS_BAD_FILE, "there is no token for the byte 0x%02X", (unsigned)i);
    return GPTS_OK;
}

/* Ids of a file are dense enough to be a table: below twice their number and 1024. */
static size_t gptsi_ids_room(size_t n) { return gptsi_add(gptsi_mul(2, n), 1024); }

/* A token of a file, that stands in its line or entry `number`. */
static gpts_status gptsi_token_file_add(gpts_tokenizer *t, uint64_t id, const char *bytes, size_t n,
                                        int special, const char *where, size_t number)
{
    struct gpts_vocabulary *v = t->vocabulary;
    if (id >= (uint64_t)v->room) return gptsi_file_bad(t, where, number, "its id is too large for the number of tokens");
    if (v->tokens[id].length) return gptsi_file_bad(t, where, number, "the same id occurs twice");
    if (!n) return gptsi_file_bad(t, where, number, "a token of 0 bytes");
    if (n > GPTSI_TOKEN_BYTES) return gptsi_file_bad(t, where, number, "a token too long");
    if (!special && gptsi_token_find(v, bytes, n) >= 0) return gptsi_file_bad(t, where, number, "the same token occurs twice");
    return gptsi_token_add(t, (int32_t)id, bytes, n, special);
}

static gpts_status gptsi_load_ranks(gpts_tokenizer *t, const char *data, size_t bytes)
{
    const char *rest = data, *end = data + bytes;
    char token[GPTSI_TOKEN_BYTES];
    size_t lines = 0, i, n;
    uint64_t rank;
    int32_t id = 0;
    gptsi_line line;
    struct gpts_vocabulary *v;
    for (i = 0; i < bytes; i++) lines += data[i] == '\n';
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_BPE, gptsi_ids_room(lines)));
    v = t->vocabulary;
    v->whole = 1;
    for (line.number = 0; gptsi_line_next(&line, &rest, end); ) {
        if (line.at == line.end) continue;
        if (!gptsi_rank_line(&line, token, &n, &rank))
            return gptsi_file_bad(t, "line", line.number, "not a token in base64 and its rank");
        GPTSI_TRY(gptsi_token_file_add(t, rank, token, n, 0, "line", line.number));
    }
    GPTSI_TRY(gptsi_bytes_missing(t));
    GPTSI_TRY(gptsi_pairs_new(t, gptsi_ranks_pairs(v, 0)));
    gptsi_ranks_pairs(v, 1);
    while (id < v->n && v->tokens[id].length) id++;           /* the rank that was left free, 50256 */
    t->end_of_text = id;
    return gptsi_token_file_add(t, (uint64_t)id, gptsi_end_of_text, strlen(gptsi_end_of_text), 1,
                                "line", line.number);
}

/* ---- tokenizer.json, vocab.json ------------------------------------------------------------------ */

/* Finds a member of the object at j (the text is known to be valid JSON). */
static int gptsi_json_find(gptsi_json j, const char *key, gptsi_json *value)
{
    char name[64];
    size_t n = 0;
    if (!gptsi_json_take(&j, '{')) return 0;
    while (gptsi_json_is(&j, '"')) {
        gptsi_json at = j;
        int same = gptsi_json_string(&at, name, sizeof name, &n) && gptsi_same(name, n, key);
        if (!gptsi_json_skip(&j) || !gptsi_json_take(&j, ':')) return 0;
        if (same) { gptsi_json_space(&j); *value = j; return 1; }
        if (!gptsi_json_skip(&j)) return 0;
        gptsi_json_take(&j, ',');
    }
    return 0;
}
/* Is the member that text; true (`otherwise` if not there); null or not there? */
static int gptsi_json_says(gptsi_json j, const char *key, const char *text)
{
    char value[64];
    size_t n = 0;
    return gptsi_json_find(j, key, &j) && gptsi_json_string(&j, value, sizeof value, &n) && gptsi_same(value, n, text);
}
static int gptsi_json_true(gptsi_json j, const char *key, int otherwise)
{
    int value = otherwise;
    return gptsi_json_find(j, key, &j) && gptsi_json_bool(&j, &value) ? value : otherwise;
}
static int gptsi_json_none(gptsi_json j, const char *key)
{
    return !gptsi_json_find(j, key, &j) || gptsi_json_null(&j);
}

/* The members of the object, or elements of the array, at j. */
static size_t gptsi_json_count(gptsi_json j)
{
    size_t n = 0;
    int object = gptsi_json_take(&j, '{');
    if (!object && !gptsi_json_take(&j, '[')) return 0;
    while (!gptsi_json_is(&j, object ? '}' : ']')) {
        if (object && (!gptsi_json_skip(&j) || !gptsi_json_take(&j, ':'))) break;
        if (!gptsi_json_skip(&j)) break;
        n++;
        gptsi_json_take(&j, ',');
    }
    return n;
}

/* {"token": id, ...}.  With `mapped`, tokens are GPT-2's printable characters; one that is
   not, or that is <|endoftext|>, is special and stands for its own text.                        */
static gpts_status gptsi_load_vocab(gpts_tokenizer *t, gptsi_json j, int mapped)
{
    char text[2 * GPTSI_TOKEN_BYTES], token[GPTSI_TOKEN_BYTES];
    size_t n, k, number = 0;
    uint64_t id;
    if (!gptsi_json_take(&j, '{')) return gptsi_fail(t->error, GPTS_BAD_FILE, "the vocab is not an object of tokens and ids");
    for (; !gptsi_json_is(&j, '}'); gptsi_json_take(&j, ',')) {
        int special = 0;
        number++;
        if (!gptsi_json_string(&j, text, sizeof text, &n) || !gptsi_json_take(&j, ':') || !gptsi_json_u64(&j, &id))
            return gptsi_file_bad(t, "entry", number, "not a token and its id, or a token too long");
        if (mapped) {
            int ends = gptsi_same(text, n, gptsi_end_of_text);
            k = gptsi_bytes_unmap(text, text + n, token, sizeof token);
            special = ends || k == SIZE_MAX;
            if (!special) memcpy(text, token, n = k);
            if (ends && id < INT32_MAX) t->end_of_text = (int32_t)id;
        }
        GPTSI_TRY(gptsi_token_file_add(t, id, text, n, special, "entry", number));
    }
    return GPTS_OK;
}

static gpts_status gptsi_unsupported(gpts_tokenizer *t, const char *what)
{
    return gptsi_fail(t->error, GPTS_UNSUPPORTED, "the file's %s is not one that is known here", what);
}

/* One merge of a tokenizer.json: "A B" or ["A", "B"]. */
static gpts_status gptsi_load_merge(gpts_tokenizer *t, gptsi_json *j, uint32_t order)
{
    struct gpts_vocabulary *v = t->vocabulary;
    char a[2 * GPTSI_TOKEN_BYTES + 1], b[GPTSI_TOKEN_BYTES];
    const char *space = NULL;
    size_t n = 0, m = SIZE_MAX;
    int32_t left = -1, right = -1, merged = -1;
    if (!gptsi_json_take(j, '[')) {
        if (gptsi_json_string(j, a, sizeof a, &n) && n) space = (const char *)memchr(a, ' ', n);
        if (space) {
            m = gptsi_bytes_unmap(space + 1, a + n, b, sizeof b);
            n = gptsi_bytes_unmap(a, space, a, sizeof a);     /* in place: it only shrinks */
        }
    } else if (gptsi_json_string(j, a, sizeof a, &n) && gptsi_json_take(j, ',')) {
        n = gptsi_bytes_unmap(a, a + n, a, sizeof a);
        if (n != SIZE_MAX && gptsi_json_string(j, a + n, sizeof a - n, &m) && gptsi_json_take(j, ']'))
            m = gptsi_bytes_unmap(a + n, a + n + m, b, sizeof b);
        else m = SIZE_MAX;
    }
    if (n != SIZE_MAX && m != SIZE_MAX && n + m <= GPTSI_TOKEN_BYTES) {
        left = gptsi_token_find(v, a, n);
        right = gptsi_token_find(v, b, m);
        memcpy(a + n, b, m);
        merged = gptsi_token_find(v, a, n + m);
    }
    if (left < 0 || right < 0 || merged < 0) return gptsi_file_bad(t, "merge", order, "not two tokens that make a third");
    gptsi_pair_add(v, left, right, merged, order);
    return GPTS_OK;
}

/* Tokens that the file adds to the model's: their text and id.  WordPiece knows them in any
   text, BPE nowhere.                                                                            */
static gpts_status gptsi_load_added(gpts_tokenizer *t, gptsi_json j)
{
    struct gpts_vocabulary *v = t->vocabulary;
    char text[GPTSI_TOKEN_BYTES];
    size_t n = 0, number = 0;
    uint64_t id = 0;
    if (!gptsi_json_take(&j, '[')) return GPTS_OK;
    for (; !gptsi_json_is(&j, ']'); gptsi_json_take(&j, ',')) {
        gptsi_json member;
        int special = gptsi_json_true(j, "special", 0);
        number++;
        if (gptsi_json_true(j, "single_word", 0) || gptsi_json_true(j, "lstrip", 0) || gptsi_json_true(j, "rstrip", 0))
            return gptsi_unsupported(t, "added token");
        if (!gptsi_json_find(j, "id", &member) || !gptsi_json_u64(&member, &id) || !gptsi_json_find(j, "content", &member) ||
            !gptsi_json_string(&member, text, sizeof text, &n) || !n)
            return gptsi_file_bad(t, "added token", number, "it has no id or no content");
        if (id >= (uint64_t)v->room || !v->tokens[id].length)
            GPTSI_TRY(gptsi_token_file_add(t, id, text, n, 1, "added token", number));
        else if (v->tokens[id].length != n || memcmp(v->bytes + v->tokens[id].begin, text, n))
            return gptsi_file_bad(t, "added token", number, "its id is another token's");
        if (gptsi_same(text, n, gptsi_end_of_text)) t->end_of_text = (int32_t)id;
        v->tokens[id].special = special || t->kind == GPTS_TOKENIZER_BPE;
        if (t->kind == GPTS_TOKENIZER_WORDPIECE) {
            v->added[v->n_added++] = (int32_t)id;
            v->added_first[(unsigned char)*text] = 1;
        }
        if (!gptsi_json_skip(&j)) break;
    }
    return GPTS_OK;
}

/* Finds an object whose `type` is this; is the member null, not there or ""? */
static int gptsi_json_type(gptsi_json j, const char *key, const char *type, gptsi_json *value)
{
    return gptsi_json_find(j, key, value) && gptsi_json_says(*value, "type", type);
}
static int gptsi_json_empty(gptsi_json j, const char *key)
{
    return gptsi_json_none(j, key) || gptsi_json_says(j, key, "");
}

/* The vocabulary and the added tokens, of either model. */
static gpts_status gptsi_load_tokens(gpts_tokenizer *t, gpts_tokenizer_kind kind, gptsi_json j, gptsi_json model)
{
    gptsi_json vocab, added;
    size_t n_added = 0;
    int any = gptsi_json_find(j, "added_tokens", &added);
    if (!gptsi_json_find(model, "vocab", &vocab)) return gptsi_fail(t->error, GPTS_BAD_FILE, "the model has no vocab");
    if (any) n_added = gptsi_json_count(added);
    if (n_added > GPTSI_ADDED) return gptsi_fail(t->error, GPTS_UNSUPPORTED, "more than %d added tokens", GPTSI_ADDED);
    GPTSI_TRY(gptsi_vocabulary_new(t, kind, gptsi_ids_room(n_added + gptsi_json_count(vocab))));
    GPTSI_ROOM(t, t->vocabulary->added, int32_t, n_added + 1);
    GPTSI_TRY(gptsi_load_vocab(t, vocab, kind == GPTS_TOKENIZER_BPE));
    return any ? gptsi_load_added(t, added) : GPTS_OK;
}

static gpts_status gptsi_load_bpe(gpts_tokenizer *t, gptsi_json j, gptsi_json model)
{
    gptsi_json merges, part;
    uint32_t order = 0;
    if (!gptsi_json_none(j, "normalizer")) return gptsi_unsupported(t, "normalizer");
    if (!gptsi_json_type(j, "pre_tokenizer", "ByteLevel", &part) || gptsi_json_true(part, "add_prefix_space", 1) ||
        !gptsi_json_true(part, "use_regex", 1)) return gptsi_unsupported(t, "pre_tokenizer");
    if (!gptsi_json_none(j, "post_processor") && !gptsi_json_type(j, "post_processor", "ByteLevel", &part))
        return gptsi_unsupported(t, "post_processor");
    if (!gptsi_json_empty(model, "continuing_subword_prefix") || !gptsi_json_empty(model, "end_of_word_suffix") ||
        !gptsi_json_none(model, "dropout") || gptsi_json_true(model, "byte_fallback", 0)) return gptsi_unsupported(t, "model");
    if (!gptsi_json_find(model, "merges", &merges) || !gptsi_json_is(&merges, '['))
        return gptsi_fail(t->error, GPTS_BAD_FILE, "the model has no merges");
    GPTSI_TRY(gptsi_load_tokens(t, GPTS_TOKENIZER_BPE, j, model));
    GPTSI_TRY(gptsi_bytes_missing(t));
    GPTSI_TRY(gptsi_pairs_new(t, gptsi_json_count(merges)));
    t->vocabulary->whole = gptsi_json_true(model, "ignore_merges", 0);
    for (gptsi_json_take(&merges, '['); !gptsi_json_is(&merges, ']'); gptsi_json_take(&merges, ','))
        GPTSI_TRY(gptsi_load_merge(t, &merges, ++order));
    return GPTS_OK;
}

/* The lower-casing and replacing of SimpleStories, all or some of it. */
static int gptsi_load_normalizer(struct gpts_vocabulary *v, gptsi_json j)
{
    gptsi_json pattern;
    int back = 0, forward = 0;
    if (gptsi_json_says(j, "type", "Lowercase")) { v->lower = 1; return 1; }
    if (!gptsi_json_says(j, "type", "Sequence") || !gptsi_json_find(j, "normalizers", &j) || !gptsi_json_take(&j, '[')) return 0;
    for (; !gptsi_json_is(&j, ']'); gptsi_json_take(&j, ',')) {
        if (gptsi_json_says(j, "type", "Lowercase")) v->lower = 1;
        else {
            if (!gptsi_json_says(j, "type", "Replace") || !gptsi_json_says(j, "content", "\"") ||
                !gptsi_json_find(j, "pattern", &pattern)) return 0;
            if (gptsi_json_says(pattern, "String", "``")) back = 1;
            else if (gptsi_json_says(pattern, "String", "''")) forward = 1;
            else return 0;
        }
        if (!gptsi_json_skip(&j)) return 0;
    }
    v->quotes = back;
    return back == forward;
}
/* Whitespace, Punctuation and Digits, all three. */
static int gptsi_load_pre_tokenizer(gptsi_json j)
{
    int seen = 0;
    if (!gptsi_json_says(j, "type", "Sequence") || !gptsi_json_find(j, "pretokenizers", &j) || !gptsi_json_take(&j, '[')) return 0;
    for (; !gptsi_json_is(&j, ']'); gptsi_json_take(&j, ',')) {
        if (gptsi_json_says(j, "type", "Whitespace")) seen |= 1;
        else if (gptsi_json_says(j, "type", "Punctuation") && gptsi_json_says(j, "behavior", "Isolated")) seen |= 2;
        else if (gptsi_json_says(j, "type", "Digits") && gptsi_json_true(j, "individual_digits", 0)) seen |= 4;
        else return 0;
        if (!gptsi_json_skip(&j)) return 0;
    }
    return seen == 7;
}
/* TemplateProcessing of one text: special tokens before and after it. */
static int gptsi_load_template(struct gpts_vocabulary *v, gptsi_json j)
{
    char text[GPTSI_TOKEN_BYTES];
    gptsi_json part;
    size_t n = 0, texts = 0;
    if (!gptsi_json_find(j, "single", &j) || !gptsi_json_take(&j, '[')) return 0;
    for (; !gptsi_json_is(&j, ']'); gptsi_json_take(&j, ',')) {
        if (gptsi_json_find(j, "Sequence", &part)) texts++;
        else {
            size_t *count = texts ? &v->n_after : &v->n_before;
            int32_t id = -1;
            if (gptsi_json_find(j, "SpecialToken", &part) && gptsi_json_find(part, "id", &part) &&
                gptsi_json_string(&part, text, sizeof text, &n)) id = gptsi_token_find(v, text, n);
            if (id < 0 || *count == GPTSI_AROUND) return 0;
            (texts ? v->after : v->before)[(*count)++] = id;
        }
        if (!gptsi_json_skip(&j)) return 0;
    }
    return texts == 1;
}

static gpts_status gptsi_load_wordpiece(gpts_tokenizer *t, gptsi_json j, gptsi_json model)
{
    gptsi_json part;
    struct gpts_vocabulary *v;
    char unknown[GPTSI_TOKEN_BYTES];
    size_t n = 0;
    uint64_t limit = 100;
    GPTSI_TRY(gptsi_load_tokens(t, GPTS_TOKENIZER_WORDPIECE, j, model));
    v = t->vocabulary;
    if (gptsi_json_find(model, "unk_token", &part) && gptsi_json_string(&part, unknown, sizeof unknown, &n))
        v->unknown = gptsi_token_find(v, unknown, n);
    if (v->unknown < 0) return gptsi_fail(t->error, GPTS_BAD_FILE, "the model's unknown token is not in its vocab");
    if (!gptsi_json_find(model, "continuing_subword_prefix", &part) ||
        !gptsi_json_string(&part, v->prefix, sizeof v->prefix, &v->n_prefix)) return gptsi_unsupported(t, "continuing_subword_prefix");
    if (gptsi_json_find(model, "max_input_chars_per_word", &part) &&
        (!gptsi_json_u64(&part, &limit) || limit < 1 || limit > GPTSI_WORD_CHARS)) return gptsi_unsupported(t, "max_input_chars_per_word");
    v->limit = (size_t)limit;
    if (!gptsi_json_none(j, "normalizer") && gptsi_json_find(j, "normalizer", &part) && !gptsi_load_normalizer(v, part))
        return gptsi_unsupported(t, "normalizer");
    if (!gptsi_json_find(j, "pre_tokenizer", &part) || !gptsi_load_pre_tokenizer(part)) return gptsi_unsupported(t, "pre_tokenizer");
    if (!gptsi_json_none(j, "post_processor") &&
        !(gptsi_json_type(j, "post_processor", "TemplateProcessing", &part) && gptsi_load_template(v, part)))
        return gptsi_unsupported(t, "post_processor");
    if (!gptsi_json_type(j, "decoder", "WordPiece", &part)) return gptsi_unsupported(t, "decoder");
    v->cleanup = gptsi_json_true(part, "cleanup", 0);
    if (v->n_after) t->end_of_text = v->after[v->n_after - 1];
    return GPTS_OK;
}

/* The file as it was, for gpts_tokenizer_save. */
static gpts_status gptsi_keep_file(gpts_tokenizer *t, const char *data, size_t bytes)
{
    struct gpts_vocabulary *v = t->vocabulary;
    GPTSI_ROOM(t, v->file, char, bytes);
    memcpy(v->file, data, bytes);
    v->file_bytes = bytes;
    return GPTS_OK;
}

static gpts_status gptsi_load_json(gpts_tokenizer *t, const char *data, size_t bytes)
{
    gptsi_json j, k, model;
    j.at = data; j.end = data + bytes; j.depth = 0;
    k = j;
    if (!gptsi_json_skip(&k))
        return gptsi_file_bad(t, "byte", (uint64_t)(k.at - data), "the JSON is not valid near here");
    gptsi_json_space(&k);
    if (k.at != k.end)
        return gptsi_file_bad(t, "byte", (uint64_t)(k.at - data), "something follows the JSON");
    if (gptsi_json_find(j, "gptstatic", &k) && gptsi_json_is(&k, '"')) return gptsi_load_own(t, j);
    if (!gptsi_json_find(j, "model", &model) || !gptsi_json_is(&model, '{'))
        return gptsi_fail(t->error, GPTS_BAD_FILE,
                          "JSON without a model: a list of ids goes to gpts_tokenizer_load_ids, beside its merges");
    if (gptsi_json_says(model, "type", "WordPiece")) GPTSI_TRY(gptsi_load_wordpiece(t, j, model));
    else if (gptsi_json_says(model, "type", "BPE")) GPTSI_TRY(gptsi_load_bpe(t, j, model));
    else return gptsi_unsupported(t, "model");
    return gptsi_keep_file(t, data, bytes);
}

static gpts_status gptsi_load_any(gpts_tokenizer *t, const char *data, size_t bytes)
{
    gptsi_json j;
    char token[GPTSI_TOKEN_BYTES];
    const char *rest = data;
    gptsi_line line;
    size_t n = 0;
    uint64_t rank = 0;
    if (!data || !bytes) return gptsi_fail(t->error, GPTS_BAD_FILE, "the file is empty");
    j.at = data; j.end = data + bytes; j.depth = 0;
    if (gptsi_json_is(&j, '{')) return gptsi_load_json(t, data, bytes);
    line.number = 0;
    gptsi_line_next(&line, &rest, data + bytes);
    if (gptsi_rank_line(&line, token, &n, &rank)) {
        GPTSI_TRY(gptsi_load_ranks(t, data, bytes));
        return gptsi_keep_file(t, data, bytes);
    }
    return gptsi_load_merges(t, data, bytes);
}

GPTS_API gpts_status gpts_tokenizer_load_memory(gpts_tokenizer *tokenizer, const void *data, size_t bytes,
                                                const gpts_hooks *hooks)
{
    gptsi_tokenizer_start(tokenizer, hooks);
    return gptsi_tokenizer_end(tokenizer, gptsi_load_any(tokenizer, (const char *)data, bytes));
}

/* A failed load names its file. */
GPTS_API gpts_status gpts_tokenizer_load(gpts_tokenizer *tokenizer, const char *path, const gpts_hooks *hooks)
{
    char *data, sentence[GPTS_ERROR_BYTES];
    size_t bytes;
    gpts_status status;
    gptsi_tokenizer_start(tokenizer, hooks);
    GPTSI_TRY(gpts_read_file(path, &data, &bytes, hooks, tokenizer->error));
    status = gpts_tokenizer_load_memory(tokenizer, data, bytes, hooks);
    gpts_release(hooks, data);
    if (status == GPTS_OK) return GPTS_OK;
    memcpy(sentence, tokenizer->error, sizeof sentence);
    return gptsi_fail(tokenizer->error, status, "'%s': %.190s", gptsi_path_end(path), sentence);
}

/* The pairs as (order, slot) in a heap: popped one by one, they come in the order of merging. */
static gptsi_entry *gptsi_pairs_heap(const gpts_tokenizer *t, size_t *n)
{
    const struct gpts_vocabulary *v = t->vocabulary;
    gptsi_entry *heap = GPTSI_NEW(&t->hooks, gptsi_entry, v->n_pairs + 1);
    size_t i;
    *n = 0;
    for (i = 0; heap && i <= v->pairs_mask; i++)
        if (v->pairs[i].order) gptsi_heap_push(heap, n, v->pairs[i].order, i);
    return heap;
}

/* Ids from a vocab.json: the same tokens and merges, renumbered.  Unchanged if that fails. */
static gpts_status gptsi_load_ids(gpts_tokenizer *t, const struct gpts_vocabulary *o, gptsi_json j)
{
    size_t i;
    GPTSI_TRY(gptsi_vocabulary_new(t, GPTS_TOKENIZER_BPE, gptsi_ids_room(gptsi_json_count(j))));
    t->vocabulary->renumbered = 1;
    t->vocabulary->whole = o->whole;
    GPTSI_TRY(gptsi_load_vocab(t, j, 1));
    GPTSI_TRY(gptsi_bytes_missing(t));
    GPTSI_TRY(gptsi_pairs_new(t, o->n_pairs));
    for (i = 0; i <= o->pairs_mask; i++) {
        const gptsi_merge *pair = &o->pairs[i];
        int32_t id[3];
        int k;
        if (!pair->order) continue;
        id[0] = pair->left; id[1] = pair->right; id[2] = pair->merged;
        for (k = 0; k < 3; k++) {
            const gptsi_token *token = &o->tokens[id[k]];
            id[k] = gptsi_token_find(t->vocabulary, o->bytes + token->begin, token->length);
            if (id[k] < 0) return gptsi_file_bad(t, "merge", pair->order, "one of its tokens has no id");
        }
        gptsi_pair_add(t->vocabulary, id[0], id[1], id[2], pair->order);
    }
    return GPTS_OK;
}
static int gptsi_same_ids(const gpts_tokenizer *a, const gpts_tokenizer *b)
{
    const struct gpts_vocabulary *v = a->vocabulary, *w = b->vocabulary;
    int32_t id;
    for (id = 0; v->n == w->n && id < v->n; id++) {
        const gptsi_token *x = &v->tokens[id], *y = &w->tokens[id];
        if (x->length != y->length || memcmp(v->bytes + x->begin, w->bytes + y->begin, x->length)) return 0;
    }
    return v->n == w->n && a->end_of_text == b->end_of_text;
}
GPTS_API gpts_status gpts_tokenizer_load_ids(gpts_tokenizer *tokenizer, const void *json, size_t bytes)
{
    gpts_tokenizer t;
    gptsi_json j, k;
    gpts_status status;
    int valid;
    if (!tokenizer->vocabulary || tokenizer->kind != GPTS_TOKENIZER_BPE)
        return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "ids are for a BPE tokenizer");
    j.at = (const char *)json; j.end = j.at + (json ? bytes : 0); j.depth = 0;
    k = j;
    valid = json && gptsi_json_skip(&k);
    gptsi_json_space(&k);
    if (!valid || k.at != j.end)
        return gptsi_file_bad(tokenizer, "byte", (uint64_t)(k.at - j.at), "the JSON is not valid near here");
    gptsi_tokenizer_start(&t, &tokenizer->hooks);
    status = gptsi_tokenizer_end(&t, gptsi_load_ids(&t, tokenizer->vocabulary, j));
    if (status != GPTS_OK) memcpy(tokenizer->error, t.error, sizeof t.error);
    else if (gptsi_same_ids(&t, tokenizer)) gpts_tokenizer_free(&t);
    else {
        gpts_tokenizer_free(tokenizer);
        *tokenizer = t;
    }
    return status;
}

/* ---- files of tokenizers: saving ------------------------------------------------------------------
   Merges as vocab.bpe, bytes and characters as a line of JSON; what came from a .tiktoken or a
   tokenizer.json is written back as it was.                                                    */

static void gptsi_save_mapped(gptsi_text *text, const struct gpts_vocabulary *v, int32_t id)
{
    char out[4];
    const char *bytes = v->bytes + v->tokens[id].begin;
    uint32_t i;
    for (i = 0; i < v->tokens[id].length; i++)
        gptsi_text_bytes(text, out, gptsi_utf8_put(gptsi_byte_code((unsigned char)bytes[i]), out));
}
static gpts_status gptsi_save_merges(gptsi_text *text, gpts_tokenizer *t)
{
    const struct gpts_vocabulary *v = t->vocabulary;
    size_t n;
    gptsi_entry *heap = gptsi_pairs_heap(t, &n);
    if (!heap) return gptsi_tokenizer_no_memory(t, v->n_pairs, sizeof *heap);
    gptsi_text_add(text, gptsi_version);
    if (t->end_of_text < 0) gptsi_text_add(text, gptsi_plain);
    gptsi_text_add(text, "\n");
    while (n) {
        const gptsi_merge *pair = &v->pairs[gptsi_heap_pop(heap, &n).second];
        gptsi_save_mapped(text, v, pair->left);
        gptsi_text_add(text, " ");
        gptsi_save_mapped(text, v, pair->right);
        gptsi_text_add(text, "\n");
    }
    gptsi_delete(&t->hooks, heap);
    return GPTS_OK;
}
static void gptsi_save_chars(gptsi_text *text, const struct gpts_vocabulary *v)
{
    size_t end = v->n_bytes, i;                               /* all tokens lie in order, the */
    int32_t id = v->n;                                        /* invalid bytes last           */
    while (id > 0 && v->tokens[id - 1].length == 1 && (v->bytes[v->tokens[id - 1].begin] & 0x80)) { id--; end--; }
    gptsi_text_add(text, "{\"gptstatic\": \"chars\", \"characters\": ");
    gptsi_text_quoted(text, v->bytes, end);
    gptsi_text_add(text, ", \"bytes\": [");
    for (i = end; i < v->n_bytes; i++) {
        if (i > end) gptsi_text_add(text, ", ");
        gptsi_text_integer(text, (unsigned char)v->bytes[i]);
    }
    gptsi_text_add(text, "]}\n");
}

static gpts_status gptsi_replace_file(const char *path, const void *data, size_t bytes,        /* in @@IO */
                                      const gpts_hooks *hooks, char *error);

GPTS_API gpts_status gpts_tokenizer_save(gpts_tokenizer *tokenizer, const char *path)
{
    const struct gpts_vocabulary *v = tokenizer->vocabulary;
    gptsi_text text;
    gpts_status status = GPTS_OK;
    if (!v) return gptsi_fail(tokenizer->error, GPTS_BAD_ARGUMENT, "the tokenizer is empty");
    if (v->renumbered)
        return gptsi_fail(tokenizer->error, GPTS_UNSUPPORTED, "the ids came from a file of their own: keep it beside the merges");
    if (v->file) return gptsi_replace_file(path, v->file, v->file_bytes, &tokenizer->hooks, tokenizer->error);
    memset(&text, 0, sizeof text);
    text.hooks = &tokenizer->hooks;
    if (tokenizer->kind == GPTS_TOKENIZER_BPE) status = gptsi_save_merges(&text, tokenizer);
    else if (tokenizer->kind == GPTS_TOKENIZER_CHARS) gptsi_save_chars(&text, v);
    else gptsi_text_add(&text, "{\"gptstatic\": \"bytes\"}\n");
    if (status == GPTS_OK && text.failed) status = gptsi_tokenizer_no_memory(tokenizer, text.room, 2);
    if (status == GPTS_OK)
        status = gptsi_replace_file(path, text.data, text.n, &tokenizer->hooks, tokenizer->error);
    gptsi_delete(&tokenizer->hooks, text.data);
    return status;
}

/* ==============================================================================
   @@IO  JSON, safetensors, models, checkpoints: last, they face hostile bytes
   ============================================================================== */

#include <errno.h>
#include <time.h>

/* ---- little-endian bytes, and the three formats that reals are stored in ---------- */

static uint32_t gptsi_get32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t gptsi_get64(const unsigned char *p)
{
    return gptsi_get32(p) | (uint64_t)gptsi_get32(p + 4) << 32;
}
static void gptsi_put(unsigned char *p, uint64_t bits, size_t bytes)
{
    size_t i;
    for (i = 0; i < bytes; i++, bits >>= 8) p[i] = (unsigned char)(bits & 0xFF);
}
static int gptsi_little_endian(void)
{
    uint32_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first == 1;
}

static float gptsi_float(uint32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
static double gptsi_double(uint64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }

/* The bits of the nearest float.  With `odd`, an inexact result is the neighbour whose last
   bit is 1: rounding that once more gives what rounding x once would (Boldo, Melquiond 2008). */
static uint32_t gptsi_float_bits(double x, int odd)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (odd && x == x && (double)f != x && !(bits & 1))
        bits += fabs(x) > fabs((double)f) ? 1u : 0xFFFFFFFFu;
    return bits;
}

/* IEEE 754 binary16: 5 bits of exponent, 10 of fraction.  From it exact, to it the nearest,
   ties to even; a NaN stays one. */
static double gptsi_from_f16(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (!exponent) return (sign ? -(double)fraction : (double)fraction) * (1.0 / 16777216.0);
    if (exponent == 31) return (double)gptsi_float(sign | 0x7F800000 | fraction << 13);
    return (double)gptsi_float(sign | (exponent + 112) << 23 | fraction << 13);
}
GPTSI_UNUSED static uint32_t gptsi_to_f16(double x)
{
    uint32_t bits = gptsi_float_bits(x, 1), sign = bits >> 16 & 0x8000, shift, whole, rest, half;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return sign | 0x7E00;
    if (bits >= 0x477FF000) return sign | 0x7C00;             /* 65520 and above          */
    if (bits >= 0x38800000) {                                 /* 2^-14 and above: normal  */
        bits -= 0x38000000;
        return sign | (bits + 0xFFF + (bits >> 13 & 1)) >> 13;
    }
    if (bits < 0x33000000) return sign;                       /* below 2^-25              */
    shift = 126 - (bits >> 23);                               /* in units of 2^-24        */
    whole = ((bits & 0x7FFFFF) | 0x800000) >> shift;
    rest = ((bits & 0x7FFFFF) | 0x800000) & ((1u << shift) - 1);
    half = 1u << (shift - 1);
    return sign | (whole + (rest > half || (rest == half && (whole & 1))));
}
/* bfloat16: the upper half of a float */
GPTSI_UNUSED static uint32_t gptsi_to_bf16(double x)
{
    uint32_t bits = gptsi_float_bits(x, 1);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return bits >> 16 | 0x40;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

/* The format's types in the reference writer's order (ascending), with their bits. */
static const struct { char name[12]; unsigned char bits; gpts_dtype dtype; } gptsi_dtypes[] = {
    { "BOOL", 8, GPTS_BOOL }, { "F4", 4, GPTS_DTYPE_OTHER }, { "F6_E2M3", 6, GPTS_DTYPE_OTHER },
    { "F6_E3M2", 6, GPTS_DTYPE_OTHER }, { "U8", 8, GPTS_U8 }, { "I8", 8, GPTS_I8 },
    { "F8_E5M2", 8, GPTS_DTYPE_OTHER }, { "F8_E4M3", 8, GPTS_DTYPE_OTHER }, { "F8_E8M0", 8, GPTS_DTYPE_OTHER },
    { "F8_E4M3FNUZ", 8, GPTS_DTYPE_OTHER }, { "F8_E5M2FNUZ", 8, GPTS_DTYPE_OTHER }, { "I16", 16, GPTS_I16 },
    { "U16", 16, GPTS_U16 }, { "F16", 16, GPTS_F16 }, { "BF16", 16, GPTS_BF16 }, { "I32", 32, GPTS_I32 },
    { "U32", 32, GPTS_U32 }, { "F32", 32, GPTS_F32 }, { "C64", 64, GPTS_C64 }, { "F64", 64, GPTS_F64 },
    { "I64", 64, GPTS_I64 }, { "U64", 64, GPTS_U64 }
};
enum { GPTSI_DTYPES = (int)(sizeof gptsi_dtypes / sizeof gptsi_dtypes[0]) };

static size_t gptsi_dtype_row(gpts_dtype dtype)
{
    size_t i;
    for (i = 0; i < GPTSI_DTYPES; i++) if (gptsi_dtypes[i].dtype == dtype) break;
    return i;                                                 /* OTHER: a row of its kind */
}
static const char *gptsi_dtype_name(gpts_dtype dtype)
{
    return dtype == GPTS_DTYPE_OTHER ? "a type of 4 to 8 bits" :
        gptsi_dtypes[gptsi_dtype_row(dtype)].name;
}
static size_t gptsi_dtype_bytes(gpts_dtype dtype)
{
    return gptsi_dtypes[gptsi_dtype_row(dtype)].bits / 8u;
}

/* ---- sorting ------------------------------------------------------------------------ */

/* Heap sort of an index: no recursion, no allocation, n log n whatever the input. */
typedef int (*gptsi_before)(const void *context, size_t a, size_t b);
static void gptsi_sort_sift(size_t *index, size_t root, size_t n, gptsi_before before,
                            const void *context)
{
    size_t child, item = index[root];
    for (; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(context, index[child], index[child + 1])) child++;
        if (!before(context, item, index[child])) break;
        index[root] = index[child];
    }
    index[root] = item;
}
static void gptsi_sort(size_t *index, size_t n, gptsi_before before, const void *context)
{
    size_t i, top;
    for (i = 0; i < n; i++) index[i] = i;
    for (i = n / 2; i-- > 0; ) gptsi_sort_sift(index, i, n, before, context);
    for (i = n; i-- > 1; ) {
        top = index[0]; index[0] = index[i]; index[i] = top;
        gptsi_sort_sift(index, 0, i, before, context);
    }
}
static int gptsi_bytes_compare(const char *a, size_t n, const char *b, size_t m)
{
    int order = memcmp(a, b, gptsi_min(n, m));
    return order ? order : n < m ? -1 : n > m;
}

/* ---- where bytes come from ----------------------------------------------------------- */

struct gpts_source {
    const unsigned char *memory;                              /* NULL: a stream            */
#ifndef GPTS_NO_STDIO
    FILE *stream;
    uint64_t position;                                        /* of the stream             */
#endif
    uint64_t bytes;
    size_t *by_name;                                          /* the tensors, sorted       */
    char *names;                                              /* what names point into     */
    struct gptsi_part *parts; size_t n_parts, parts_room;     /* other files one behind another */
    char label[160];                                          /* for sentences             */
};
typedef struct gpts_source gptsi_source;

/* A file whose buffer stands at `begin` of the whole: a shard of a model. */
typedef struct gptsi_part { gpts_file file; uint64_t begin; char *name; } gptsi_part;

#ifndef GPTS_NO_STDIO

/* Files beyond 2 GiB: C's long is enough where it has 64 bits; elsewhere the system's own call. */
#if defined(_WIN32)
static int gptsi_seek(FILE *stream, uint64_t to)
{
    return _fseeki64(stream, (long long)to, SEEK_SET);
}
static int64_t gptsi_tell_end(FILE *stream)
{
    return _fseeki64(stream, 0, SEEK_END) ? -1 : _ftelli64(stream);
}
#elif LONG_MAX <= 0x7FFFFFFF && defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64 && defined(_POSIX_C_SOURCE)
static int gptsi_seek(FILE *stream, uint64_t to) { return fseeko(stream, (off_t)to, SEEK_SET); }
static int64_t gptsi_tell_end(FILE *stream)
{
    return fseeko(stream, 0, SEEK_END) ? -1 : (int64_t)ftello(stream);
}
#else
static int gptsi_seek(FILE *stream, uint64_t to)
{
    return to > LONG_MAX ? -1 : fseek(stream, (long)to, SEEK_SET);
}
static int64_t gptsi_tell_end(FILE *stream)
{
    return fseek(stream, 0, SEEK_END) ? -1 : (int64_t)ftell(stream);
}
#endif

static const char *gptsi_errno_text(int code)
{
#ifdef ENOENT
    if (code == ENOENT) return "there is no such file or folder";
#endif
#ifdef EACCES
    if (code == EACCES) return "permission denied";
#endif
#ifdef EISDIR
    if (code == EISDIR) return "it is a folder";
#endif
#ifdef ENOTDIR
    if (code == ENOTDIR) return "a part of its path is not a folder";
#endif
#ifdef ENOSPC
    if (code == ENOSPC) return "the disk is full";
#endif
#ifdef EFBIG
    if (code == EFBIG) return "it would be larger than allowed";
#endif
#ifdef EROFS
    if (code == EROFS) return "the disk is read-only";
#endif
#ifdef EMFILE
    if (code == EMFILE) return "too many files are open";
#endif
#ifdef ENAMETOOLONG
    if (code == ENAMETOOLONG) return "its name is too long";
#endif
#ifdef EIO
    if (code == EIO) return "the disk reports an error";
#endif
    return "the system refuses";
}

/* Opens for reading and finds the size; what cannot be sought or read (a folder) is refused. */
static gpts_status gptsi_open(FILE **stream, uint64_t *bytes, const char *path, char *error)
{
    int64_t size;
    FILE *f;
    if (!path || !*path) return gptsi_fail(error, GPTS_BAD_ARGUMENT, "no file name was given");
    errno = 0;
    f = fopen(path, "rb");
    if (!f)
        return gptsi_fail(error, GPTS_IO, "cannot open '%s': %s", gptsi_path_end(path),
            gptsi_errno_text(errno));
    if (fgetc(f) == EOF && ferror(f)) {                       /* POSIX opens folders too */
        gptsi_fail(error, GPTS_IO, "cannot read '%s': %s", gptsi_path_end(path),
            gptsi_errno_text(errno));
        fclose(f);
        return GPTS_IO;
    }
    size = gptsi_tell_end(f);
    if (size < 0 || gptsi_seek(f, 0)) {
        fclose(f);
        return gptsi_fail(error, GPTS_IO, "cannot read '%s': its size cannot be told",
            gptsi_path_end(path));
    }
    *stream = f;
    *bytes = (uint64_t)size;
    return GPTS_OK;
}
#endif /* GPTS_NO_STDIO */

/* Bytes offset .. offset+n-1.  A file that has become shorter since it was opened is told. */
static gpts_status gptsi_source_read(gptsi_source *source, uint64_t offset, void *to, size_t n,
                                     char *error)
{
    if (offset > source->bytes || n > source->bytes - offset)
        return gptsi_fail(error, GPTS_BAD_FILE,
            "%s ends at byte %llu, but %llu bytes are wanted from byte %llu on",
            source->label, (unsigned long long)source->bytes, (unsigned long long)n,
            (unsigned long long)offset);
    if (!n) return GPTS_OK;
    if (source->parts) {                                      /* no tensor lies in two parts */
        const gptsi_part *part = source->parts + source->n_parts;
        do part--; while (part->begin > offset);
        return gptsi_source_read(part->file.source, part->file.data_offset + (offset - part->begin),
            to, n, error);
    }
    if (source->memory) { memcpy(to, source->memory + (size_t)offset, n); return GPTS_OK; }
#ifndef GPTS_NO_STDIO
    errno = 0;
    if (offset != source->position && gptsi_seek(source->stream, offset))
        return gptsi_fail(error, GPTS_IO, "cannot read %s: seeking to byte %llu failed",
            source->label, (unsigned long long)offset);
    source->position = offset;
    if (fread(to, 1, n, source->stream) != n) {
        source->position = UINT64_MAX;
        return gptsi_fail(error, GPTS_IO, "cannot read %llu bytes of %s at byte %llu: %s",
            (unsigned long long)n, source->label,
            (unsigned long long)offset, ferror(source->stream) ? gptsi_errno_text(errno) :
            "it was cut while it was read");
    }
    source->position = offset + n;
#endif
    return GPTS_OK;
}

GPTS_API void gpts_release(const gpts_hooks *hooks, void *memory) { gptsi_delete(hooks, memory); }

#ifdef GPTS_NO_STDIO
static gpts_status gptsi_no_files(char *error)
{
    return gptsi_fail(error, GPTS_UNSUPPORTED, "built without files (GPTS_NO_STDIO)");
}
#endif

/* Reads to the end whatever the size said: special files and growing ones have none. */
GPTS_API gpts_status gpts_read_file(const char *path, char **data, size_t *bytes,
                                    const gpts_hooks *hooks, char *error)
{
#ifdef GPTS_NO_STDIO
    (void)path; (void)hooks; *data = NULL; *bytes = 0;
    return gptsi_no_files(error);
#else
    FILE *stream;
    uint64_t size;
    size_t room, n = 0, got;
    char *text, *larger;
    *data = NULL; *bytes = 0;
    GPTSI_TRY(gptsi_open(&stream, &size, path, error));
    room = size >= SIZE_MAX / 4 ? 0 : gptsi_max((size_t)size, 4096) + 2;
    text = room ? GPTSI_NEW(hooks, char, room) : NULL;
    errno = 0;
    while (text && (got = fread(text + n, 1, room - n - 1, stream)) > 0) {
        n += got;
        if (n < room - 1) continue;
        larger = GPTSI_NEW(hooks, char, gptsi_mul(room, 2));
        if (larger) memcpy(larger, text, n);
        gptsi_delete(hooks, text);
        text = larger;
        room = gptsi_mul(room, 2);
    }
    if (text && ferror(stream)) {
        gptsi_fail(error, GPTS_IO, "cannot read '%s': %s", gptsi_path_end(path),
            gptsi_errno_text(errno));
        gptsi_delete(hooks, text);
        fclose(stream);
        return GPTS_IO;
    }
    fclose(stream);
    if (!text)
        return gptsi_fail(error, GPTS_NO_MEMORY, "out of memory: reading '%s' needs %llu bytes",
            gptsi_path_end(path), (unsigned long long)(room ? room : size));
    text[n] = 0;
    *data = text;
    *bytes = n;
    return GPTS_OK;
#endif
}

/* ---- safetensors: reading -------------------------------------------------------------
   8 bytes little-endian N; N bytes of JSON, an object of entries
   "name": {"dtype": "F32", "shape": [2,3], "data_offsets": [begin, end]}; then the buffer.
   The rules are those of the format's page and its reference reader (huggingface/
   safetensors): N at most 100,000,000; the header starts with '{' and may end in spaces;
   no name twice; the ranges, sorted, fill the buffer without a hole, an overlap or a rest;
   each is as long as its shape and type say, in arithmetic that does not wrap.  Where that
   reader is milder than the page (space before '{', equal duplicates, null for a map),
   the page holds.
   Every rule is checked before anything as large as the file says is allocated.
   (tests/safetensors.c)                                                                */

enum { GPTSI_HEADER_LIMIT = 100000000 };

typedef struct gptsi_header {                 /* while a header is read */
    gpts_file *file;
    gptsi_json json;
    const char *start;
    char *pool; size_t used, size;            /* unescaped names and metadata */
    size_t tensors_room, metadata_room;
    int metadata_seen;
} gptsi_header;

static gpts_status gptsi_header_fault(gptsi_header *h, const char *what)
{
    return gptsi_fail(h->file->error, GPTS_BAD_FILE,
        "%s is not a valid safetensors file: %s (near byte %llu)",
        h->file->source->label, what, (unsigned long long)(8 + (h->json.at - h->start)));
}
static gpts_status gptsi_entry_fault(gptsi_header *h, const gpts_file_tensor *t, const char *what)
{
    return gptsi_fail(h->file->error, GPTS_BAD_FILE,
        "%s is not a valid safetensors file: tensor '%s': %s",
        h->file->source->label, gptsi_quote(t->name, t->name_bytes).text, what);
}

/* A string into the pool.  Its unescaped form and the 0 behind it take no more than its
   escaped form and quotes, so the pool, as large as the header, cannot run over.          */
static int gptsi_header_string(gptsi_header *h, const char **string, size_t *length)
{
    char *to = h->pool + h->used;
    if (!gptsi_json_string(&h->json, to, h->size - h->used - 1, length)) return 0;
    to[*length] = 0;
    h->used += *length + 1;
    *string = to;
    return 1;
}

static int gptsi_pair_before(const void *context, size_t a, size_t b)
{
    const gpts_file_pair *pairs = (const gpts_file_pair *)context;
    return strcmp(pairs[a].key, pairs[b].key) < 0;
}
static int gptsi_name_before(const void *context, size_t a, size_t b)
{
    const gpts_file_tensor *t = (const gpts_file_tensor *)context;
    return gptsi_bytes_compare(t[a].name, t[a].name_bytes, t[b].name, t[b].name_bytes) < 0;
}
static int gptsi_range_before(const void *context, size_t a, size_t b)
{
    const gpts_file_tensor *t = (const gpts_file_tensor *)context;
    return t[a].begin != t[b].begin ? t[a].begin < t[b].begin : t[a].end < t[b].end;
}

/* Strings to strings.  Pairs that hold a 0 byte are valid, but no C strings: left out.    */
static gpts_status gptsi_header_metadata(gptsi_header *h)
{
    gpts_file *file = h->file;
    if (h->metadata_seen++) return gptsi_header_fault(h, "__metadata__ is there twice");
    if (!gptsi_json_take(&h->json, '{'))
        return gptsi_header_fault(h, "__metadata__ is not an object");
    if (gptsi_json_take(&h->json, '}')) return GPTS_OK;
    do {
        gpts_file_pair pair;
        size_t n, m;
        void *grown = file->metadata;
        if (!gptsi_header_string(h, &pair.key, &n) || !gptsi_json_take(&h->json, ':'))
            return gptsi_header_fault(h, "no JSON");
        if (!gptsi_json_is(&h->json, '"'))
            return gptsi_header_fault(h, "__metadata__ holds what is not a string");
        if (!gptsi_header_string(h, &pair.value, &m)) return gptsi_header_fault(h, "no JSON");
        if (strlen(pair.key) < n || strlen(pair.value) < m) continue;
        if (!gptsi_grow(&file->hooks, &grown, file->n_metadata, &h->metadata_room, sizeof pair))
            return gptsi_no_memory(file->error, "a file's header", h->metadata_room,
                2 * sizeof pair);
        file->metadata = (gpts_file_pair *)grown;
        file->metadata[file->n_metadata++] = pair;
    } while (gptsi_json_take(&h->json, ','));
    if (!gptsi_json_take(&h->json, '}')) return gptsi_header_fault(h, "no JSON");
    return GPTS_OK;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, other keys ignored */
static gpts_status gptsi_header_entry(gptsi_header *h, gpts_file_tensor *t, unsigned *bits)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    gptsi_json *j = &h->json;
    unsigned seen = 0, key;
    char word[16];
    size_t n, i;
    if (!gptsi_json_take(j, '{')) return gptsi_entry_fault(h, t, "its entry is no object");
    if (!gptsi_json_take(j, '}')) {
        do {
            gptsi_json measure = *j;
            if (!gptsi_json_string(&measure, NULL, 0, &n)) return gptsi_header_fault(h, "no JSON");
            word[0] = 0;
            if (n < sizeof word) gptsi_json_string(j, word, sizeof word, &n);
            else *j = measure;
            if (!gptsi_json_take(j, ':')) return gptsi_header_fault(h, "no JSON");
            key = n == 5 && !memcmp(word, "dtype", 5) ? DTYPE : n == 5 &&
                !memcmp(word, "shape", 5) ? SHAPE :
                  n == 12 && !memcmp(word, "data_offsets", 12) ? OFFSETS : 0;
            if (seen & key) return gptsi_entry_fault(h, t, "a key is there twice");
            seen |= key;
            if (key == DTYPE) {
                if (!gptsi_json_string(j, word, sizeof word, &n))
                    return gptsi_entry_fault(h, t, "its dtype is not known");
                for (i = 0; i < GPTSI_DTYPES; i++)
                    if (strlen(gptsi_dtypes[i].name) == n && !memcmp(word, gptsi_dtypes[i].name, n))
                        break;
                if (i == GPTSI_DTYPES) return gptsi_entry_fault(h, t, "its dtype is not known");
                t->dtype = gptsi_dtypes[i].dtype;
                *bits = gptsi_dtypes[i].bits;
            } else if (key == SHAPE) {
                uint64_t size;
                if (!gptsi_json_take(j, '['))
                    return gptsi_entry_fault(h, t, "its shape is no list");
                t->count = 1;
                if (gptsi_json_take(j, ']')) continue;
                do {
                    if (!gptsi_json_u64(j, &size))
                        return gptsi_entry_fault(h, t, "its shape is no list of sizes");
                    if (size && t->count > UINT64_MAX / size)
                        return gptsi_entry_fault(h, t, "its shape is too large");
                    t->count *= size;
                    if (t->rank < GPTS_MAX_RANK) t->shape[t->rank] = size;
                    t->rank++;
                } while (gptsi_json_take(j, ','));
                if (!gptsi_json_take(j, ']'))
                    return gptsi_entry_fault(h, t, "its shape is no list of sizes");
            } else if (key == OFFSETS) {
                if (!(gptsi_json_take(j, '[') && gptsi_json_u64(j, &t->begin) &&
                    gptsi_json_take(j, ',') &&
                      gptsi_json_u64(j, &t->end) && gptsi_json_take(j, ']')))
                    return gptsi_entry_fault(h, t, "its data_offsets are no pair of offsets");
            } else if (!gptsi_json_skip(j)) return gptsi_header_fault(h, "no JSON");
        } while (gptsi_json_take(j, ','));
        if (!gptsi_json_take(j, '}')) return gptsi_header_fault(h, "no JSON");
    }
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return gptsi_entry_fault(h, t, "dtype, shape or data_offsets is missing");
    return GPTS_OK;
}

static gpts_status gptsi_header_entries(gptsi_header *h)
{
    gpts_file *file = h->file;
    if (!gptsi_json_take(&h->json, '}')) {
        do {
            const char *name;
            size_t n;
            unsigned bits = 8;
            gpts_file_tensor t;
            void *grown = file->tensors;
            memset(&t, 0, sizeof t);
            h->json.depth = 2;
            if (!gptsi_header_string(h, &name, &n) || !gptsi_json_take(&h->json, ':'))
                return gptsi_header_fault(h, "no JSON");
            if (n == 12 && !memcmp(name, "__metadata__", 12)) {
                GPTSI_TRY(gptsi_header_metadata(h));
                continue;
            }
            t.name = name; t.name_bytes = n;
            GPTSI_TRY(gptsi_header_entry(h, &t, &bits));
            if (t.count > UINT64_MAX / bits)
                return gptsi_entry_fault(h, &t, "its shape is too large");
            if (t.count * bits % 8)
                return gptsi_entry_fault(h, &t, "it is no whole number of bytes");
            if (t.end < t.begin || t.end - t.begin != t.count * bits / 8)
                return gptsi_entry_fault(h, &t, "its data is not as long as shape and dtype say");
            if (!gptsi_grow(&file->hooks, &grown, file->n_tensors, &h->tensors_room, sizeof t))
                return gptsi_no_memory(file->error, "a file's header", h->tensors_room,
                    2 * sizeof t);
            file->tensors = (gpts_file_tensor *)grown;
            file->tensors[file->n_tensors++] = t;
        } while (gptsi_json_take(&h->json, ','));
        if (!gptsi_json_take(&h->json, '}')) return gptsi_header_fault(h, "no JSON");
    }
    gptsi_json_space(&h->json);
    if (h->json.at != h->json.end)
        return gptsi_header_fault(h, "something follows the header's object");
    return GPTS_OK;
}

/* No name or key twice; the ranges fill the buffer exactly. */
static gpts_status gptsi_header_check(gptsi_header *h, size_t *index)
{
    gpts_file *file = h->file;
    const gpts_file_tensor *t = file->tensors;
    uint64_t at = 0, left = file->bytes - file->data_offset;
    size_t i;
    gptsi_sort(index, file->n_metadata, gptsi_pair_before, file->metadata);
    for (i = 1; i < file->n_metadata; i++)
        if (!strcmp(file->metadata[index[i - 1]].key, file->metadata[index[i]].key))
            return gptsi_header_fault(h, "a key is there twice in __metadata__");
    gptsi_sort(index, file->n_tensors, gptsi_range_before, t);
    for (i = 0; i < file->n_tensors; i++) {
        if (t[index[i]].begin != at)
            return gptsi_entry_fault(h, &t[index[i]], "a hole or an overlap is before its data");
        at = t[index[i]].end;
    }
    if (at != left)
        return gptsi_fail(file->error, GPTS_BAD_FILE,
            "%s is not a valid safetensors file: its tensors take %llu bytes, but %llu follow the header",
            file->source->label, (unsigned long long)at, (unsigned long long)left);
    gptsi_sort(index, file->n_tensors, gptsi_name_before, t);
    for (i = 1; i < file->n_tensors; i++)
        if (!gptsi_name_before(t, index[i - 1], index[i]))
            return gptsi_entry_fault(h, &t[index[i]], "its name is there twice");
    return GPTS_OK;
}

static gpts_status gptsi_file_header(gpts_file *file)
{
    gptsi_source *source = file->source;
    gptsi_header h;
    unsigned char length[8];
    uint64_t n;
    char *text;
    gpts_status status;
    memset(&h, 0, sizeof h);
    h.file = file;
    file->bytes = source->bytes;
    if (source->bytes < 8)
        return gptsi_fail(file->error, GPTS_BAD_FILE,
            "%s is not a safetensors file: it has %llu bytes, fewer than 8",
            source->label, (unsigned long long)source->bytes);
    GPTSI_TRY(gptsi_source_read(source, 0, length, 8, file->error));
    n = gptsi_get64(length);
    if (n > GPTSI_HEADER_LIMIT || n > source->bytes - 8)
        return gptsi_fail(file->error, GPTS_BAD_FILE,
            "%s is not a safetensors file: a header of %llu bytes %s", source->label,
            (unsigned long long)n, n > GPTSI_HEADER_LIMIT ? "is longer than the format allows" :
            "does not fit into it");
    file->data_offset = 8 + n;
    h.size = (size_t)n + 2;
    text = GPTSI_NEW(&file->hooks, char, (size_t)n + 1);
    h.pool = source->names = GPTSI_NEW(&file->hooks, char, h.size);
    if (!text || !h.pool) {
        gptsi_delete(&file->hooks, text);
        return gptsi_no_memory(file->error, "a file's header", 2, h.size);
    }
    h.start = h.json.at = text;
    h.json.end = text + n;
    status = gptsi_source_read(source, 8, text, (size_t)n, file->error);
    if (status == GPTS_OK && (!n || text[0] != '{'))
        status = gptsi_header_fault(&h, "no '{' starts the header");
    if (status == GPTS_OK) { h.json.at++; status = gptsi_header_entries(&h); }
    if (status == GPTS_OK) {
        size_t count = gptsi_max(1, gptsi_max(file->n_tensors, file->n_metadata));
        source->by_name = GPTSI_NEW(&file->hooks, size_t, count);
        status = source->by_name ? gptsi_header_check(&h, source->by_name) :
                 gptsi_no_memory(file->error, "a file's header", count, sizeof(size_t));
    }
    gptsi_delete(&file->hooks, text);
    return status;
}

GPTS_API void gpts_file_close(gpts_file *file)
{
    char error[GPTS_ERROR_BYTES];
    gpts_hooks hooks;
    size_t i;
    if (!file) return;
    hooks = file->hooks;
    memcpy(error, file->error, sizeof error);
    if (file->source) {
#ifndef GPTS_NO_STDIO
        if (file->source->stream) fclose(file->source->stream);
#endif
        for (i = 0; i < file->source->n_parts; i++) {
            gpts_file_close(&file->source->parts[i].file);
            gptsi_delete(&hooks, file->source->parts[i].name);
        }
        gptsi_delete(&hooks, file->source->parts);
        gptsi_delete(&hooks, file->source->by_name);
        gptsi_delete(&hooks, file->source->names);
    }
    gptsi_delete(&hooks, file->source);
    gptsi_delete(&hooks, file->tensors);
    gptsi_delete(&hooks, file->metadata);
    memset(file, 0, sizeof *file);
    memcpy(file->error, error, sizeof error);
}

static gpts_status gptsi_file_begin(gpts_file *file, const gpts_hooks *hooks)
{
    memset(file, 0, sizeof *file);
    if (hooks) file->hooks = *hooks;
    file->source = GPTSI_NEW(&file->hooks, gptsi_source, 1);
    return file->source ? GPTS_OK : gptsi_no_memory(file->error, "a file", 1, sizeof(gptsi_source));
}

GPTS_API gpts_status gpts_file_open(gpts_file *file, const char *path, const gpts_hooks *hooks)
{
    gpts_status status = gptsi_file_begin(file, hooks);
#ifdef GPTS_NO_STDIO
    (void)path;
    if (status == GPTS_OK) status = gptsi_no_files(file->error);
#else
    if (status == GPTS_OK)
        status = gptsi_open(&file->source->stream, &file->source->bytes, path, file->error);
    if (status == GPTS_OK) {
        snprintf(file->source->label, sizeof file->source->label, "'%s'", gptsi_path_end(path));
        status = gptsi_file_header(file);
    }
#endif
    if (status != GPTS_OK) gpts_file_close(file);
    return status;
}

GPTS_API gpts_status gpts_file_open_memory(gpts_file *file, const void *data, size_t bytes,
                                           const gpts_hooks *hooks)
{
    static const unsigned char nothing[1] = { 0 };
    gpts_status status = gptsi_file_begin(file, hooks);
    if (status == GPTS_OK) {
        file->source->memory = data ? (const unsigned char *)data : nothing;
        file->source->bytes = data ? bytes : 0;
        snprintf(file->source->label, sizeof file->source->label, "the file in memory");
        status = gptsi_file_header(file);
    }
    if (status != GPTS_OK) gpts_file_close(file);
    return status;
}

static const gpts_file_tensor *gptsi_file_find(const gpts_file *file, const char *name,
                                               size_t bytes)
{
    size_t low = 0, high = file->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gpts_file_tensor *t = &file->tensors[file->source->by_name[middle]];
        int order = gptsi_bytes_compare(name, bytes, t->name, t->name_bytes);
        if (!order) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
GPTS_API const gpts_file_tensor *gpts_file_find(const gpts_file *file, const char *name)
{
    return gptsi_file_find(file, name, strlen(name));
}
GPTS_API const char *gpts_file_metadata(const gpts_file *file, const char *key)
{
    size_t i;
    for (i = 0; i < file->n_metadata; i++)
        if (!strcmp(file->metadata[i].key, key)) return file->metadata[i].value;
    return NULL;
}

/* "1", or none at all: other people's files. */
static gpts_status gptsi_file_version(gpts_file *file)
{
    const char *version = gpts_file_metadata(file, "format_version");
    if (!version || !strcmp(version, "1")) return GPTS_OK;
    return gptsi_fail(file->error, GPTS_UNSUPPORTED,
        "%s has format version '%s', expected 1: it is of a newer gptstatic.h",
        file->source->label, gptsi_quote(version, strlen(version)).text);
}

/* Bytes of a tensor's values first .. first+count-1, after the checks that every read needs. */
static gpts_status gptsi_file_range(gpts_file *file, const gpts_file_tensor *t, uint64_t first,
                                    size_t count)
{
    if (!file->source || !t)
        return gptsi_fail(file->error, GPTS_BAD_ARGUMENT, "no open file or no tensor to read from");
    if (first <= t->count && count <= t->count - first) return GPTS_OK;
    return gptsi_fail(file->error, GPTS_BAD_ARGUMENT,
        "%s: %llu values from number %llu on are wanted of tensor '%s', which has %llu",
        file->source->label, (unsigned long long)count, (unsigned long long)first,
        gptsi_quote(t->name, t->name_bytes).text, (unsigned long long)t->count);
}
static gpts_status gptsi_file_type(gpts_file *file, const gpts_file_tensor *t, const char *expected)
{
    return gptsi_fail(file->error, GPTS_UNSUPPORTED, "%s: tensor '%s' is %s, expected %s",
        file->source->label,
        gptsi_quote(t->name, t->name_bytes).text, gptsi_dtype_name(t->dtype), expected);
}

GPTS_API gpts_status gpts_file_read(gpts_file *file, const gpts_file_tensor *tensor, uint64_t first,
                                    size_t count, gpts_real *values)
{
    unsigned char raw[2048];
    size_t size, n, i;
    uint64_t at;
    GPTSI_TRY(gptsi_file_range(file, tensor, first, count));
    if (tensor->dtype != GPTS_F32 && tensor->dtype != GPTS_F16 && tensor->dtype != GPTS_BF16 &&
        tensor->dtype != GPTS_F64)
        return gptsi_file_type(file, tensor, "F32, F16, BF16 or F64");
    size = gptsi_dtype_bytes(tensor->dtype);
    at = file->data_offset + tensor->begin + first * size;
    if (tensor->dtype == (sizeof(gpts_real) == 8 ? GPTS_F64 : GPTS_F32) && gptsi_little_endian())
        return gptsi_source_read(file->source, at, values, count * size, file->error);
    for (; count; count -= n, at += n * size, values += n) {
        n = gptsi_min(count, sizeof raw / size);
        GPTSI_TRY(gptsi_source_read(file->source, at, raw, n * size, file->error));
        for (i = 0; i < n; i++) {
            const unsigned char *p = raw + i * size;
            uint32_t half = p[0] | (uint32_t)p[1] << 8;
            switch (tensor->dtype) {
            case GPTS_F32: values[i] = (gpts_real)gptsi_float(gptsi_get32(p)); break;
            case GPTS_F64: values[i] = (gpts_real)gptsi_double(gptsi_get64(p)); break;
            case GPTS_F16: values[i] = (gpts_real)gptsi_from_f16(half); break;
            default:       values[i] = (gpts_real)gptsi_float(half << 16); break;
            }
        }
    }
    return GPTS_OK;
}

/* One tensor's integers of 1, 4 or 8 bytes, wide. */
static gpts_status gptsi_file_read_i64(gpts_file *file, const gpts_file_tensor *t, uint64_t first,
                                       size_t count, int64_t *values)
{
    unsigned char raw[8];
    size_t size, i;
    GPTSI_TRY(gptsi_file_range(file, t, first, count));
    if (t->dtype != GPTS_I32 && t->dtype != GPTS_I64) return gptsi_file_type(file, t, "I32 or I64");
    size = gptsi_dtype_bytes(t->dtype);
    for (i = 0; i < count; i++) {
        GPTSI_TRY(gptsi_source_read(file->source, file->data_offset + t->begin + (first + i) * size,
            raw, size, file->error));
        values[i] = size == 4 ? (int64_t)(int32_t)gptsi_get32(raw) : (int64_t)gptsi_get64(raw);
    }
    return GPTS_OK;
}
GPTS_API gpts_status gpts_file_read_i32(gpts_file *file, const gpts_file_tensor *tensor,
                                        uint64_t first, size_t count, int32_t *values)
{
    int64_t wide = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        GPTSI_TRY(gptsi_file_read_i64(file, tensor, first + i, 1, &wide));
        if (wide < INT32_MIN || wide > INT32_MAX)
            return gptsi_fail(file->error, GPTS_BAD_FILE,
                "%s: value %llu of tensor '%s' is %lld, too large here", file->source->label,
                (unsigned long long)(first + i), gptsi_quote(tensor->name, tensor->name_bytes).text,
                (long long)wide);
        values[i] = (int32_t)wide;
    }
    return GPTS_OK;
}

/* ---- writing: beside the target, flushed, renamed ---------------------------------------
   The target is either what it was or all of the new file, whenever the program ends.    */

#ifndef GPTS_NO_STDIO
#if defined(_WIN32)
#include <io.h>
#ifdef __cplusplus
extern "C"
#endif
__declspec(dllimport) int __stdcall MoveFileExA(const char *from, const char *to,
    unsigned long flags);
static int gptsi_flush(FILE *stream) { return fflush(stream) || _commit(_fileno(stream)); }
/* replace, write through */
static int gptsi_rename(const char *from, const char *to)
{
    return MoveFileExA(from, to, 1 | 8) ? 0 : -1;
}
static uint64_t gptsi_process(void) { return 0; }
#elif defined(__unix__) || defined(__APPLE__)
#define GPTSI_POSIX
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#ifndef __cplusplus
int (fsync)(int descriptor);                  /* hidden by -std=c99 */
int (fileno)(FILE *stream);
int (flock)(int descriptor, int operation);
#endif
/* A file that cannot be synced (a pipe) has nothing to lose. */
static int gptsi_flush(FILE *stream)
{
    return fflush(stream) || (fsync(fileno(stream)) && errno != EINVAL);
}
static int gptsi_rename(const char *from, const char *to) { return rename(from, to); }
static uint64_t gptsi_process(void) { return (uint64_t)getpid(); }
#else
static int gptsi_flush(FILE *stream) { return fflush(stream); }
static int gptsi_rename(const char *from, const char *to) { return rename(from, to); }
static uint64_t gptsi_process(void) { return 0; }
#endif

typedef struct gptsi_output {
    FILE *stream, *lock;
    const char *path;
    char *temporary;
    const gpts_hooks *hooks;
    char *error;
    int code, failed;                         /* errno of the first failure */
} gptsi_output;

static void gptsi_output_fail(gptsi_output *out)
{
    if (!out->failed) out->code = errno;
    out->failed = 1;
}

/* path.saving, held by a lock that ends with its process, so that what a killed save left is
   taken over by the next one.  After locking the name must still be the file that is locked:
   another save may just have renamed it. */
static void gptsi_output_take_over(gptsi_output *out)
{
#ifdef GPTSI_POSIX
    struct stat held, named;
    int fresh;
    if (stat(out->temporary, &named) == 0 && (named.st_mode & 0170000) != 0100000)
        return;      /* no regular file */
    out->lock = fopen(out->temporary, "ab");
    if (!out->lock) return;
    fresh = flock(fileno(out->lock), 2 | 4) == 0 &&           /* LOCK_EX | LOCK_NB */
            fstat(fileno(out->lock), &held) == 0 && stat(out->temporary, &named) == 0 &&
            held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (fresh) out->stream = fopen(out->temporary, "wb");
    if (out->stream) return;
    fclose(out->lock);
    out->lock = NULL;
#else
    (void)out;
#endif
}

/* Where that cannot be had, a name of its own: a hash of process, time and place, tried until
   no such file is there. */
static gpts_status gptsi_output_begin(gptsi_output *out, const char *path, const gpts_hooks *hooks,
                                      char *error)
{
    size_t room;
    uint64_t n;
    memset(out, 0, sizeof *out);
    out->path = path; out->hooks = hooks; out->error = error;
    if (!path || !*path) return gptsi_fail(error, GPTS_BAD_ARGUMENT, "no file name was given");
    room = strlen(path) + 32;
    out->temporary = GPTSI_NEW(hooks, char, room);
    if (!out->temporary) return gptsi_no_memory(error, "a file's name", room, 1);
    snprintf(out->temporary, room, "%s.saving", path);
    gptsi_output_take_over(out);
    errno = 0;
    for (n = 0; n < 64 && !out->stream; n++) {
        FILE *there;
        uint64_t hash = gptsi_hash(gptsi_process(), (uint64_t)time(NULL) << 20 ^ (uint64_t)clock(),
            (uint64_t)(uintptr_t)out->temporary + n);
        snprintf(out->temporary, room, "%s.%016llx.saving", path, (unsigned long long)hash);
        there = fopen(out->temporary, "rb");
        if (there) { fclose(there); continue; }
        errno = 0;
        out->stream = fopen(out->temporary, "wb");
        if (!out->stream) break;
    }
    if (out->stream) return GPTS_OK;
    gptsi_delete(hooks, out->temporary);
    return gptsi_fail(error, GPTS_IO, "cannot write '%s': %s", gptsi_path_end(path),
        gptsi_errno_text(errno));
}
static void gptsi_output_bytes(gptsi_output *out, const void *data, size_t n)
{
    errno = 0;
    if (!out->failed && n && fwrite(data, 1, n, out->stream) != n) gptsi_output_fail(out);
}
/* `status` is what else went wrong, its sentence already written. */
static gpts_status gptsi_output_end(gptsi_output *out, gpts_status status)
{
    errno = 0;
    if (status == GPTS_OK && !out->failed && gptsi_flush(out->stream)) gptsi_output_fail(out);
    if (fclose(out->stream)) gptsi_output_fail(out);
    if (status == GPTS_OK && !out->failed && gptsi_rename(out->temporary, out->path))
        gptsi_output_fail(out);
    if (status != GPTS_OK || out->failed) remove(out->temporary);
    if (out->lock) fclose(out->lock);
    gptsi_delete(out->hooks, out->temporary);
    if (status == GPTS_OK && out->failed)
        return gptsi_fail(out->error, GPTS_IO, "cannot write '%s': %s", gptsi_path_end(out->path),
            gptsi_errno_text(out->code));
    return status;
}
static gpts_status gptsi_replace_file(const char *path, const void *data, size_t bytes,
                                      const gpts_hooks *hooks, char *error)
{
    gptsi_output out;
    GPTSI_TRY(gptsi_output_begin(&out, path, hooks, error));
    gptsi_output_bytes(&out, data, bytes);
    return gptsi_output_end(&out, GPTS_OK);
}

/* Values of one tensor, in chunks through `raw`; `device` (or NULL) is where the reals are. */
enum { GPTSI_CHUNK = 1 << 18 };
static void gptsi_output_values(gptsi_output *out, const gpts_file_entry *entry, uint64_t count,
                                const gpts_model *device, unsigned char *raw)
{
    size_t size = gptsi_dtype_bytes(entry->dtype), n, i, from;
    int reals = entry->dtype == GPTS_F32 || entry->dtype == GPTS_F16 || entry->dtype == GPTS_BF16;
    const char *data = (const char *)entry->data;
    /* the second half: what a device held */
    unsigned char *host = raw + GPTSI_CHUNK;
    from = reals ? sizeof(gpts_real) : size;
    for (; count; count -= n, data += n * from) {
        const void *values = data;
        n = (size_t)(count < GPTSI_CHUNK / 8 ? count : GPTSI_CHUNK / 8);
        if (device && device->ops) {
            device->ops->download(device->device, host, data, n * from);
            values = host;
        }
        if (size == from && gptsi_little_endian()) {
            gptsi_output_bytes(out, values, n * size);
            continue;
        }
        for (i = 0; i < n; i++) {
            uint64_t bits = 0;
            if (reals) {
                double x = (double)((const gpts_real *)values)[i];
                bits = entry->dtype == GPTS_F16 ? gptsi_to_f16(x) : entry->dtype == GPTS_BF16 ?
                    gptsi_to_bf16(x) : gptsi_float_bits(x, 0);
            } else if (size == 4) bits = ((const uint32_t *)values)[i];
            else bits = ((const uint64_t *)values)[i];
            gptsi_put(raw + i * size, bits, size);
        }
        gptsi_output_bytes(out, raw, n * size);
    }
}

/* the reference writer's order */
static int gptsi_entry_before(const void *context, size_t a, size_t b)
{
    const gpts_file_entry *entries = (const gpts_file_entry *)context;
    if (entries[a].dtype != entries[b].dtype) return entries[a].dtype > entries[b].dtype;
    return strcmp(entries[a].name, entries[b].name) < 0;
}
static int gptsi_entry_name_before(const void *context, size_t a, size_t b)
{
    const gpts_file_entry *entries = (const gpts_file_entry *)context;
    return strcmp(entries[a].name, entries[b].name) < 0;
}

/* The header's text, or the sentence why not; order [n], count [n] = */
static gpts_status gptsi_output_header(gptsi_text *text, const gpts_file_entry *entries, size_t n,
                                       const gpts_file_pair *metadata, size_t n_metadata,
                                       size_t *order, uint64_t *count, char *error)
{
    uint64_t at = 0;
    size_t i, r;
    gptsi_sort(order, n_metadata, gptsi_pair_before, metadata);
    for (i = 0; i < n_metadata; i++) {
        const gpts_file_pair *pair = &metadata[order[i]];
        if (!gptsi_utf8_valid(pair->key, strlen(pair->key)) ||
            !gptsi_utf8_valid(pair->value, strlen(pair->value)))
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "metadata '%s' is not UTF-8",
                gptsi_quote(pair->key, strlen(pair->key)).text);
        if (i && !strcmp(pair->key, metadata[order[i - 1]].key))
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "metadata '%s' is there twice",
                gptsi_quote(pair->key, strlen(pair->key)).text);
    }
    gptsi_text_add(text, "{");
    for (i = 0; i < n_metadata; i++) {
        gptsi_text_add(text, i ? "," : "\"__metadata__\":{");
        gptsi_text_quoted(text, metadata[i].key, strlen(metadata[i].key));
        gptsi_text_add(text, ":");
        gptsi_text_quoted(text, metadata[i].value, strlen(metadata[i].value));
    }
    if (n_metadata) gptsi_text_add(text, n ? "}," : "}");
    gptsi_sort(order, n, gptsi_entry_name_before, entries);
    for (i = 0; i < n; i++) {
        const char *name = entries[order[i]].name;
        if (!gptsi_utf8_valid(name, strlen(name)) || !strcmp(name, "__metadata__"))
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "no tensor can have the name '%s'",
                gptsi_quote(name, strlen(name)).text);
        if (i && !strcmp(name, entries[order[i - 1]].name))
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "tensor '%s' is there twice",
                gptsi_quote(name, strlen(name)).text);
    }
    gptsi_sort(order, n, gptsi_entry_before, entries);
    for (i = 0; i < n; i++) {
        const gpts_file_entry *e = &entries[order[i]];
        uint64_t bytes;
        if (e->rank > GPTS_MAX_RANK || !(e->dtype == GPTS_F16 || e->dtype == GPTS_BF16 ||
            e->dtype == GPTS_I32 ||
            e->dtype == GPTS_F32 || e->dtype == GPTS_F64 || e->dtype == GPTS_I64))
            return gptsi_fail(error, GPTS_UNSUPPORTED,
                "tensor '%s': this type or rank cannot be written",
                gptsi_quote(e->name, strlen(e->name)).text);
        for (r = 0, count[order[i]] = 1; r < e->rank; r++) {
            if (e->shape[r] && count[order[i]] > (UINT64_MAX >> 8) / e->shape[r])
                return gptsi_fail(error, GPTS_BAD_ARGUMENT, "tensor '%s' is too large",
                    gptsi_quote(e->name, strlen(e->name)).text);
            count[order[i]] *= e->shape[r];
        }
        bytes = count[order[i]] * gptsi_dtype_bytes(e->dtype);
        if (i) gptsi_text_add(text, ",");
        gptsi_text_quoted(text, e->name, strlen(e->name));
        gptsi_text_add(text, ":{\"dtype\":\"");
        gptsi_text_add(text, gptsi_dtype_name(e->dtype));
        gptsi_text_add(text, "\",\"shape\":[");
        for (r = 0; r < e->rank; r++) {
            if (r) gptsi_text_add(text, ",");
            gptsi_text_integer(text, (int64_t)e->shape[r]);
        }
        gptsi_text_add(text, "],\"data_offsets\":[");
        gptsi_text_integer(text, (int64_t)at);
        gptsi_text_add(text, ",");
        gptsi_text_integer(text, (int64_t)(at + bytes));
        gptsi_text_add(text, "]}");
        if (at > (uint64_t)INT64_MAX - bytes)
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "the tensors are too large together");
        at += bytes;
    }
    gptsi_text_add(text, "}");
    while (!text->failed && text->n % 8) gptsi_text_add(text, " ");
    if (text->failed) return gptsi_no_memory(error, "a file's header", text->n, 2);
    if (text->n > GPTSI_HEADER_LIMIT)
        return gptsi_fail(error, GPTS_BAD_ARGUMENT,
            "the names of the tensors are too long together");
    return GPTS_OK;
}

/* The reals of the first n_device entries lie where `device` works (NULL: all in memory). */
static gpts_status gptsi_file_write(const char *path, const gpts_file_entry *entries, size_t n,
                                    const gpts_file_pair *metadata, size_t n_metadata,
                                    const gpts_model *device, size_t n_device,
                                    const gpts_hooks *hooks, char *error)
{
    size_t *order = GPTSI_NEW(hooks, size_t, gptsi_max(gptsi_max(n, n_metadata), 1)), i;
    uint64_t *count = GPTSI_NEW(hooks, uint64_t, gptsi_max(n, 1));
    unsigned char *raw = GPTSI_NEW(hooks, unsigned char, 2 * GPTSI_CHUNK), length[8];
    gptsi_text text;
    gptsi_output out;
    gpts_status status;
    memset(&text, 0, sizeof text);
    text.hooks = hooks;
    if (order && count && raw)
        status = gptsi_output_header(&text, entries, n, metadata, n_metadata, order, count, error);
    else status = gptsi_no_memory(error, "writing a file", 2 * GPTSI_CHUNK, 1);
    if (status == GPTS_OK) status = gptsi_output_begin(&out, path, hooks, error);
    if (status == GPTS_OK) {
        gptsi_put(length, text.n, 8);
        gptsi_output_bytes(&out, length, 8);
        gptsi_output_bytes(&out, text.data, text.n);
        for (i = 0; i < n && !out.failed; i++)
            gptsi_output_values(&out, &entries[order[i]], count[order[i]],
                order[i] < n_device ? device : NULL, raw);
        if (device && device->ops && device->ops->status)
            status = device->ops->status(device->device, error);
        status = gptsi_output_end(&out, status);
    }
    gptsi_delete(hooks, text.data);
    gptsi_delete(hooks, raw);
    gptsi_delete(hooks, count);
    gptsi_delete(hooks, order);
    return status;
}
#else
static gpts_status gptsi_file_write(const char *path, const gpts_file_entry *entries, size_t n,
                                    const gpts_file_pair *metadata, size_t n_metadata,
                                    const gpts_model *device, size_t n_device,
                                    const gpts_hooks *hooks, char *error)
{
    (void)path; (void)entries; (void)n; (void)metadata; (void)n_metadata; (void)device; (void)n_device; (void)hooks;
    return gptsi_no_files(error);
}
static gpts_status gptsi_replace_file(const char *path, const void *data, size_t bytes,
                                      const gpts_hooks *hooks, char *error)
{
    (void)path; (void)data; (void)bytes; (void)hooks;
    return gptsi_no_files(error);
}
#endif /* GPTS_NO_STDIO */

GPTS_API gpts_status gpts_file_write(const char *path, const gpts_file_entry *entries, size_t n,
                                     const gpts_file_pair *metadata, size_t n_metadata,
                                     const gpts_hooks *hooks, char *error)
{
    return gptsi_file_write(path, entries, n, metadata, n_metadata, NULL, 0, hooks, error);
}

/* ---- a model's config as JSON ------------------------------------------------------------
   The keys are GPT-2's own (Hugging Face config.json) and ours; unknown ones are ignored.  */

/* tables of words: no pointers, so no data to relocate */
typedef char gptsi_label[20];
static const gptsi_label gptsi_activation_names[] = { "gelu_new", "gelu", "relu",
    "gelu_pytorch_tanh" };
static const gptsi_label gptsi_position_names[] = { "learned", "rope", "none" };
static const gptsi_label gptsi_norm_names[] = { "layer_norm", "none" };

static void gptsi_config_text(gptsi_text *text, const gpts_config *c, const char *start)
{
    const struct { const char *key; int64_t value; } integers[] = {
        { "vocab_size", c->vocab_size }, { "n_positions", c->n_positions }, { "n_layer", c->n_layer },
        { "n_head", c->n_head }, { "n_embd", c->n_embd }, { "n_inner", c->n_inner < 0 ? 4 * c->n_embd : c->n_inner }
    };
    size_t i;
    gptsi_text_add(text, start);
    for (i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        gptsi_text_add(text, ",\"");
        gptsi_text_add(text, integers[i].key);
        gptsi_text_add(text, "\":");
        gptsi_text_integer(text, integers[i].value);
    }
    gptsi_text_add(text, ",\"activation_function\":\"");
    gptsi_text_add(text, gptsi_activation_names[c->activation]);
    gptsi_text_add(text, "\",\"position\":\"");
    gptsi_text_add(text, gptsi_position_names[c->position]);
    gptsi_text_add(text, "\",\"norm\":\"");
    gptsi_text_add(text, gptsi_norm_names[c->norm]);
    gptsi_text_add(text, "\",\"layer_norm_epsilon\":");
    gptsi_text_double(text, c->layer_norm_epsilon);
    gptsi_text_add(text, c->bias ? ",\"bias\":true" : ",\"bias\":false");
    gptsi_text_add(text, c->tie_word_embeddings ? ",\"tie_word_embeddings\":true" :
        ",\"tie_word_embeddings\":false");
    if (c->unscaled_scores) gptsi_text_add(text, ",\"scale_attn_weights\":false");
    gptsi_text_add(text, ",\"rope_theta\":");
    gptsi_text_double(text, c->rope_theta);
    gptsi_text_add(text, ",\"approx_activation\":\"");
    gptsi_text_add(text, gptsi_activation_names[c->approx_activation]);
    gptsi_text_add(text, "\"}");
}

/* A number of JSON, correctly rounded whatever the locale's decimal point. */
static int gptsi_config_double(gptsi_json *j, double *value)
{
    char number[64], point[16];
    const char *start, *middle;
    size_t n, dot;
    gptsi_json_space(j);
    start = j->at;
    if (!gptsi_json_double(j, value)) return 0;
    n = (size_t)(j->at - start);
    snprintf(point, sizeof point, "%.1f", 0.5);               /* "0.5", "0,5" ... */
    dot = strlen(point) - 2;
    if (n + dot >= sizeof number) return 1;                   /* the cursor's own value is close */
    middle = (const char *)memchr(start, '.', n);
    if (!middle) { memcpy(number, start, n); number[n] = 0; }
    else {
        size_t before = (size_t)(middle - start);
        memcpy(number, start, before);
        memcpy(number + before, point + 1, dot);
        memcpy(number + before + dot, middle + 1, n - before - 1);
        number[n - 1 + dot] = 0;
    }
    *value = strtod(number, NULL);
    return 1;
}

enum {                                        /* which keys a config had */
    GPTSI_HAS_HEADS = 1, GPTSI_HAS_BIAS = 2, GPTSI_HAS_TIE = 4, GPTSI_HAS_ACTIVATION = 8,
    GPTSI_HAS_POSITION = 16, GPTSI_HAS_POSITIONS = 32, GPTSI_HAS_NORM = 64
};

static int gptsi_config_name(gptsi_json *j, const gptsi_label *names, size_t n, int *value)
{
    char word[32];
    size_t length, i;
    if (!gptsi_json_string(j, word, sizeof word - 1, &length)) return 0;
    for (i = 0; i < n; i++)
        if (strlen(names[i]) == length && !memcmp(names[i], word, length)) {
            *value = (int)i;
            return 1;
        }
    return 0;
}

/* Overwrites what the text has; `from` names it in sentences. */
static gpts_status gptsi_config_parse(gpts_config *c, unsigned *has, const char *text, size_t bytes,
                                      const char *from, char *error)
{
    const struct { const char *key; int64_t *integer; int *flag; double *real; const gptsi_label *names; int n_names; unsigned mark; } rows[] = {
        { "vocab_size", &c->vocab_size, NULL, NULL, NULL, 0, 0 },
        { "n_positions", &c->n_positions, NULL, NULL, NULL, 0, GPTSI_HAS_POSITIONS },
        { "block_size", &c->n_positions, NULL, NULL, NULL, 0, GPTSI_HAS_POSITIONS },
        { "n_layer", &c->n_layer, NULL, NULL, NULL, 0, 0 },
        { "n_head", &c->n_head, NULL, NULL, NULL, 0, GPTSI_HAS_HEADS },
        { "n_embd", &c->n_embd, NULL, NULL, NULL, 0, 0 },
        { "n_inner", &c->n_inner, NULL, NULL, NULL, 0, 0 },
        { "bias", NULL, &c->bias, NULL, NULL, 0, GPTSI_HAS_BIAS },
        { "tie_word_embeddings", NULL, &c->tie_word_embeddings, NULL, NULL, 0, GPTSI_HAS_TIE },
        { "scale_attn_weights", NULL, &c->unscaled_scores, NULL, NULL, 0, 0 },
        { "scale_attn_by_inverse_layer_idx", NULL, NULL, NULL, NULL, 0, 0 },
        { "add_cross_attention", NULL, NULL, NULL, NULL, 0, 0 },
        { "layer_norm_epsilon", NULL, NULL, &c->layer_norm_epsilon, NULL, 0, 0 },
        { "rope_theta", NULL, NULL, &c->rope_theta, NULL, 0, 0 },
        { "activation_function", NULL, NULL, NULL, gptsi_activation_names, 4, GPTSI_HAS_ACTIVATION },
        { "approx_activation", NULL, NULL, NULL, gptsi_activation_names, 4, 0 },
        { "position", NULL, NULL, NULL, gptsi_position_names, 3, GPTSI_HAS_POSITION },
        { "norm", NULL, NULL, NULL, gptsi_norm_names, 2, GPTSI_HAS_NORM }
    };
    enum { ROWS = (int)(sizeof rows / sizeof rows[0]) };
    gptsi_json j;
    unsigned long seen = 0;
    j.at = text; j.end = text + bytes; j.depth = 1;
    if (!gptsi_json_take(&j, '{'))
        return gptsi_fail(error, GPTS_BAD_FILE, "the config in %s is not a JSON object", from);
    if (!gptsi_json_take(&j, '}')) {
        do {
            gptsi_json measure;
            char key[40];
            size_t n, i;
            int flag = 0, good;
            gptsi_json_space(&j);
            measure = j;
            good = gptsi_json_string(&measure, NULL, 0, &n);
            key[0] = 0;
            if (good && n < sizeof key) gptsi_json_string(&j, key, sizeof key, &n);
            j = good ? measure : j;
            if (!good || !gptsi_json_take(&j, ':'))
                return gptsi_fail(error, GPTS_BAD_FILE, "the config in %s is not valid JSON", from);
            for (i = 0; i < ROWS; i++)
                if (strlen(rows[i].key) == n && !memcmp(rows[i].key, key, n)) break;
            if (i == ROWS || gptsi_json_null(&j)) {
                if (i == ROWS && !gptsi_json_skip(&j))
                    return gptsi_fail(error, GPTS_BAD_FILE, "the config in %s is not valid JSON",
                        from);
                continue;
            }
            if (seen >> i & 1)
                return gptsi_fail(error, GPTS_BAD_FILE, "the config in %s has %s twice", from,
                    rows[i].key);
            seen |= 1ul << i;
            if (rows[i].integer) good = gptsi_json_i64(&j, rows[i].integer);
            else if (rows[i].real) good = gptsi_config_double(&j, rows[i].real);
            else if (rows[i].names)
                good = gptsi_config_name(&j, rows[i].names, (size_t)rows[i].n_names, &flag);
            else good = gptsi_json_bool(&j, &flag);
            if (!good)
                return gptsi_fail(error, GPTS_BAD_FILE,
                    "the config in %s: the value of %s is none that is known here", from,
                    rows[i].key);
            *has |= rows[i].mark;
            if (rows[i].flag) *rows[i].flag = rows[i].flag == &c->unscaled_scores ? !flag : flag;
            else if (rows[i].names == gptsi_activation_names) {
                gpts_activation kind = flag == 3 ? GPTS_GELU_TANH : (gpts_activation)flag;
                if (rows[i].mark) c->activation = kind; else c->approx_activation = kind;
            } else if (rows[i].names == gptsi_position_names) c->position = (gpts_position)flag;
            else if (rows[i].names == gptsi_norm_names) c->norm = (gpts_norm)flag;
            else if (!rows[i].integer && !rows[i].real && flag)
                return gptsi_fail(error, GPTS_UNSUPPORTED,
                    "the config in %s asks for %s, which is not supported", from, rows[i].key);
        } while (gptsi_json_take(&j, ','));
        if (!gptsi_json_take(&j, '}'))
            return gptsi_fail(error, GPTS_BAD_FILE, "the config in %s is not valid JSON", from);
    }
    gptsi_json_space(&j);
    if (j.at != j.end && *j.at)
        return gptsi_fail(error, GPTS_BAD_FILE, "something follows the config in %s", from);
    return GPTS_OK;
}

/* ---- models: reading ---------------------------------------------------------------------
   First the file's tensors are compared with what its config promises, name by name and size
   by size; only then is the model made, so a small file cannot ask for a large one.        */

typedef struct gptsi_reader {
    gpts_file *file;
    char *error;
    char *used;                               /* [n_tensors] of the file                    */
    const char *outer, *inner;                /* names are outer + inner + ours             */
    int transposed;                           /* linear weights are stored [out,in]         */
    gptsi_layer_shape *shapes;                /* [L], with what their pointers point at     */
    size_t n_shapes;
} gptsi_reader;

static const gpts_file_tensor *gptsi_reader_find(gptsi_reader *r, const char *name)
{
    char full[GPTS_NAME_BYTES + 32];
    const gpts_file_tensor *t;
    snprintf(full, sizeof full, "%s%s%s", r->outer, strcmp(name, "lm_head.weight") ? r->inner : "",
        name);
    t = gpts_file_find(r->file, full);
    if (t && r->used) r->used[t - r->file->tensors] = 1;
    return t;
}

/* "[3,4]", for sentences */
typedef struct gptsi_shape_text { char text[64]; } gptsi_shape_text;
static gptsi_shape_text gptsi_shape(size_t rank, const uint64_t *shape)
{
    gptsi_shape_text s;
    size_t n = 1, i;
    s.text[0] = '['; s.text[1] = 0;
    for (i = 0; i < rank && n < sizeof s.text; i++) {
        if (i == GPTS_MAX_RANK) {
            snprintf(s.text + n, sizeof s.text - n, ",...");
            n = strlen(s.text);
            break;
        }
        snprintf(s.text + n, sizeof s.text - n, i ? ",%llu" : "%llu", (unsigned long long)shape[i]);
        n = strlen(s.text);
    }
    if (n + 1 < sizeof s.text) { s.text[n] = ']'; s.text[n + 1] = 0; }
    return s;
}

/* The tensor `name` with this shape, or the sentence that says what was expected and found. */
static gpts_status gptsi_reader_expect(gptsi_reader *r, const char *name, size_t rank, size_t rows,
                                       size_t columns, const gpts_file_tensor **found)
{
    const gpts_file_tensor *t = gptsi_reader_find(r, name);
    uint64_t shape[2];
    shape[0] = rows; shape[1] = columns;
    *found = t;
    if (!t)
        return gptsi_fail(r->error, GPTS_NOT_FOUND, "%s: tensor '%s' of shape %s is missing",
            r->file->source->label, name, gptsi_shape(rank, shape).text);
    if (t->rank != rank || t->shape[0] != rows || (rank == 2 && t->shape[1] != columns))
        return gptsi_fail(r->error, GPTS_BAD_SHAPE, "%s: tensor '%s' has the shape %s, expected %s",
            r->file->source->label, name,
            gptsi_shape(t->rank, t->shape).text, gptsi_shape(rank, shape).text);
    return GPTS_OK;
}
static int gptsi_is_real(gpts_dtype dtype)
{
    return dtype == GPTS_F32 || dtype == GPTS_F16 || dtype == GPTS_BF16 || dtype == GPTS_F64;
}
static int gptsi_is_linear(gpts_parameter kind)
{
    return kind == GPTS_P_ATTN_W || kind == GPTS_P_ATTN_PROJ_W || kind == GPTS_P_MLP_FC_W ||
        kind == GPTS_P_MLP_PROJ_W;
}

/* The model's tensor in the file: there, of the right shape (turned round if need be), of reals. */
static gpts_status gptsi_reader_match(gptsi_reader *r, const gpts_tensor *ours,
                                      const gpts_file_tensor **found)
{
    int turned = r->transposed && gptsi_is_linear(ours->kind);
    GPTSI_TRY(gptsi_reader_expect(r, ours->name, ours->rank, turned ? ours->columns : ours->rows,
        turned ? ours->rows : ours->columns, found));
    if (gptsi_is_real((*found)->dtype)) return GPTS_OK;
    return gptsi_fail(r->error, GPTS_UNSUPPORTED,
        "%s: tensor '%s' is %s, expected F32, F16, BF16 or F64", r->file->source->label,
        ours->name, gptsi_dtype_name((*found)->dtype));
}

static gpts_status gptsi_reader_finite(gptsi_reader *r, const char *name, const gpts_real *x,
                                       size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        if (!(fabs((double)x[i]) <= DBL_MAX))
            return gptsi_fail(r->error, GPTS_NOT_FINITE,
                "%s: value %llu of tensor '%s' is %s, expected a finite number",
                r->file->source->label, (unsigned long long)i, name,
                x[i] == x[i] ? "infinite" : "not a number");
    return GPTS_OK;
}

/* Reads a tensor of the model; what is stored [out,in] by 16 rows at a time. */
static gpts_status gptsi_reader_values(gptsi_reader *r, const gpts_tensor *ours,
                                       const gpts_hooks *hooks)
{
    const gpts_file_tensor *t;
    gpts_real *rows;
    size_t in = ours->rows, out = ours->columns, o, i, k, n;
    gpts_status status = GPTS_OK;
    GPTSI_TRY(gptsi_reader_match(r, ours, &t));
    if (!r->transposed || !gptsi_is_linear(ours->kind))
        status = gpts_file_read(r->file, t, 0, ours->size, ours->data);
    else {
        rows = GPTSI_NEW(hooks, gpts_real, gptsi_mul(16, in));
        if (!rows)
            return gptsi_no_memory(r->error, "turning a matrix round", gptsi_mul(16, in),
                sizeof *rows);
        for (o = 0; o < out && status == GPTS_OK; o += n) {
            n = gptsi_min(16, out - o);
            status = gpts_file_read(r->file, t, (uint64_t)o * in, n * in, rows);
            for (i = 0; i < in; i++)
                for (k = 0; k < n; k++) ours->data[i * out + o + k] = rows[k * in + i];
        }
        gptsi_delete(hooks, rows);
    }
    if (status != GPTS_OK) return gptsi_fail(r->error, status, "%s", r->file->error);
    return gptsi_reader_finite(r, ours->name, ours->data, ours->size);
}

/* Which names and which orientation the file uses. */
static gpts_status gptsi_reader_names(gptsi_reader *r)
{
    static const gptsi_label outer[] = { "", "_orig_mod.", "module." },
        inner[] = { "", "transformer." };
    size_t i, k, found = 0;
    char name[128];
    for (i = 0; i < 3; i++)
        for (k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s%swte.weight", outer[i], inner[k]);
            if (!gpts_file_find(r->file, name)) continue;
            if (found++)
                return gptsi_fail(r->error, GPTS_BAD_FILE,
                    "%s holds wte.weight under two names, '%s' being one", r->file->source->label,
                    name);
            r->outer = outer[i]; r->inner = inner[k];
        }
    if (!found)
        return gptsi_fail(r->error, GPTS_NOT_FOUND,
            "%s: tensor 'wte.weight' is missing: this is no model in GPT-2's names",
            r->file->source->label);
    return GPTS_OK;
}

/* The file's tensor under our name: without prefixes; NULL when it has not got them. */
static const char *gptsi_reader_our_name(const gptsi_reader *r, const gpts_file_tensor *t)
{
    const char *name = t->name;
    if (strncmp(name, r->outer, strlen(r->outer))) return NULL;
    name += strlen(r->outer);
    if (!strcmp(name, "lm_head.weight")) return name;
    return strncmp(name, r->inner, strlen(r->inner)) ? NULL : name + strlen(r->inner);
}

/* "h.12.rest": 12 and the rest; 0 if the name has no such form */
static int gptsi_layer_name(const char *name, uint64_t *layer, const char **rest)
{
    const char *p = name + 2;
    if (strncmp(name, "h.", 2) || *p < '0' || *p > '9') return 0;
    for (*layer = 0; *p >= '0' && *p <= '9'; p++)
        if (*layer < INT64_MAX / 20) *layer = *layer * 10 + (uint64_t)(*p - '0');
    *rest = p + 1;
    return *p == '.';
}

/* What the tensors say of the config. */
static gpts_status gptsi_reader_deduce(gptsi_reader *r, gpts_config *c)
{
    const gpts_file_tensor *wte = gptsi_reader_find(r, "wte.weight"),
        *wpe = gptsi_reader_find(r, "wpe.weight"), *t;
    uint64_t layers = 0, l;
    size_t i;
    *c = gpts_config_default();
    if (wte->rank != 2 || !wte->shape[0] || !wte->shape[1] || wte->shape[0] > INT32_MAX ||
        wte->shape[1] > INT32_MAX)
        return gptsi_fail(r->error, GPTS_BAD_SHAPE,
            "%s: tensor 'wte.weight' has the shape %s, expected [vocab_size,n_embd]",
            r->file->source->label, gptsi_shape(wte->rank, wte->shape).text);
    c->vocab_size = (int64_t)wte->shape[0]; c->n_embd = (int64_t)wte->shape[1];
    if (wpe && wpe->rank == 2 && wpe->shape[0] && wpe->shape[0] <= INT32_MAX)
        c->n_positions = (int64_t)wpe->shape[0];
    c->position = wpe ? GPTS_POSITION_LEARNED : GPTS_POSITION_NONE;
    c->n_head = c->n_embd % 64 ? 0 : c->n_embd / 64;
    c->norm = gptsi_reader_find(r, "ln_f.weight") ? GPTS_NORM_LAYER : GPTS_NORM_NONE;
    c->n_inner = 0;
    c->bias = gptsi_reader_find(r, "ln_f.bias") != NULL;
    c->tie_word_embeddings = !gptsi_reader_find(r, "lm_head.weight");
    for (i = 0; i < r->file->n_tensors; i++) {
        const char *name = gptsi_reader_our_name(r, &r->file->tensors[i]), *rest;
        t = &r->file->tensors[i];
        if (!name || !gptsi_layer_name(name, &l, &rest)) continue;
        layers = l + 1 > layers ? l + 1 : layers;
        if (!strcmp(rest, "attn.c_attn.bias") || !strcmp(rest, "mlp.c_fc.bias")) c->bias = 1;
        if (t->rank != 2) continue;
        if (!strcmp(rest, "attn.c_attn.weight") && t->shape[1] == wte->shape[1] &&
            t->shape[0] == 3 * wte->shape[1])
            r->transposed = 1;
        if (!strcmp(rest, "mlp.c_fc.weight")) {
            int turned = t->shape[1] == wte->shape[1] && t->shape[0] != wte->shape[1];
            uint64_t inner = turned ? t->shape[0] : t->shape[1];
            r->transposed |= turned;
            if (inner <= INT32_MAX) c->n_inner = (int64_t)inner;
        }
    }
    if (layers > r->file->n_tensors)
        return gptsi_fail(r->error, GPTS_BAD_FILE, "%s names a layer %llu, but has %llu tensors",
            r->file->source->label,
            (unsigned long long)(layers - 1), (unsigned long long)r->file->n_tensors);
    c->n_layer = (int64_t)layers;
    c->activation = r->transposed ? GPTS_GELU_ERF : GPTS_GELU_TANH;
    return GPTS_OK;
}

/* lm_head.weight may be stored although it is wte; *same = whether it is, value by value. */
static gpts_status gptsi_reader_head(gptsi_reader *r, int *same)
{
    const gpts_file_tensor *wte = gptsi_reader_find(r, "wte.weight"),
        *head = gptsi_reader_find(r, "lm_head.weight");
    gpts_real a[128], b[128];
    uint64_t at;
    size_t n, i;
    *same = !head;
    if (!head || head->rank != 2 || head->shape[0] != wte->shape[0] ||
        head->shape[1] != wte->shape[1])
        return GPTS_OK;
    for (at = 0; at < wte->count; at += n) {
        n = (size_t)(wte->count - at < 128 ? wte->count - at : 128);
        if (gpts_file_read(r->file, wte, at, n, a) != GPTS_OK ||
            gpts_file_read(r->file, head, at, n, b) != GPTS_OK)
            return gptsi_fail(r->error, GPTS_UNSUPPORTED, "%s", r->file->error);
        for (i = 0; i < n; i++) if (!(a[i] == b[i])) return GPTS_OK;
    }
    *same = 1;
    return GPTS_OK;
}

/* Deduction, then what metadata or the config.json beside the file say. */
static gpts_status gptsi_reader_config(gptsi_reader *r, const char *path, const gpts_hooks *hooks,
                                       gpts_config *c)
{
    const char *text = gpts_file_metadata(r->file, "config");
    char *beside = NULL, *name = NULL;
    size_t bytes = text ? strlen(text) : 0, n;
    unsigned has = 0;
    int same = 1;
    gpts_status status = GPTS_OK;
    GPTSI_TRY(gptsi_reader_deduce(r, c));
#ifdef GPTS_NO_STDIO
    (void)path; (void)n; (void)name; (void)hooks;
#else
    if (!text && path) {
        FILE *there;
        for (n = strlen(path); n > 0 && path[n - 1] != '/' && path[n - 1] != '\\'; n--) { }
        name = GPTSI_NEW(hooks, char, n + 16);
        if (!name) return gptsi_no_memory(r->error, "a file's name", n + 16, 1);
        memcpy(name, path, n);
        memcpy(name + n, "config.json", sizeof "config.json");
        there = fopen(name, "rb");
        if (there) {
            fclose(there);
            status = gpts_read_file(name, &beside, &bytes, hooks, r->error);
            text = beside;
        }
    }
#endif
    if (status == GPTS_OK && text) {
        c->n_inner = -1;
        status = gptsi_config_parse(c, &has, text, bytes,
            beside ? gptsi_path_end(name) : r->file->source->label, r->error);
    }
    gptsi_delete(hooks, beside);
    gptsi_delete(hooks, name);
    if (status != GPTS_OK) return status;
    if (c->n_head <= 0 && !(has & GPTSI_HAS_HEADS))
        return gptsi_fail(r->error, GPTS_BAD_FILE,
            "%s does not say its number of heads, and n_embd %lld is no multiple of 64: "
            "put a config.json beside it", r->file->source->label, (long long)c->n_embd);
    if (!(has & GPTSI_HAS_TIE) || c->tie_word_embeddings) GPTSI_TRY(gptsi_reader_head(r, &same));
    if (!(has & GPTSI_HAS_TIE)) c->tie_word_embeddings = same;
    else if (!same)
        return gptsi_fail(r->error, GPTS_BAD_FILE,
            "%s: the config says tied, but lm_head.weight is not wte.weight",
            r->file->source->label);
    if (gptsi_config_check(c, r->error) != GPTS_OK) {
        char why[GPTS_ERROR_BYTES];
        memcpy(why, r->error, sizeof why);
        return gptsi_fail(r->error, GPTS_BAD_FILE, "the config of %.160s: %.140s",
            r->file->source->label, why);
    }
    if ((uint64_t)c->n_layer > r->file->n_tensors)
        return gptsi_fail(r->error, GPTS_BAD_FILE,
            "%s: the config says %lld layers, but there are %llu tensors", r->file->source->label,
            (long long)c->n_layer, (unsigned long long)r->file->n_tensors);
    return GPTS_OK;
}

/* h.<l>.<what>, I32: `count` (0: at least one) integers least .. most, ascending if so asked. */
static gpts_status gptsi_reader_list(gptsi_reader *r, size_t l, const char *what, size_t count,
                                     int64_t least, int64_t most, int ascending,
                                     const gpts_hooks *hooks, int32_t **list, size_t *n)
{
    char name[GPTS_NAME_BYTES];
    const gpts_file_tensor *t;
    size_t i;
    *list = NULL; *n = 0;
    snprintf(name, sizeof name, "h.%lu.%s", (unsigned long)l, what);
    t = gptsi_reader_find(r, name);
    if (!t) return GPTS_OK;
    if (t->rank != 1 || !t->count || t->count > (uint64_t)INT32_MAX || (count && t->count != count))
        return gptsi_fail(r->error, GPTS_BAD_SHAPE,
            "%s: tensor '%s' has the shape %s, expected %s%llu]", r->file->source->label, name,
            gptsi_shape(t->rank, t->shape).text, count ? "[" : "[n], n up to [",
            (unsigned long long)(count ? count : (size_t)most + 1));
    *list = GPTSI_NEW(hooks, int32_t, (size_t)t->count);
    if (!*list) return gptsi_no_memory(r->error, name, (size_t)t->count, sizeof **list);
    if (gpts_file_read_i32(r->file, t, 0, (size_t)t->count, *list) != GPTS_OK)
        return gptsi_fail(r->error, GPTS_BAD_FILE, "%s", r->file->error);
    for (i = 0; i < (size_t)t->count; i++) {
        if ((*list)[i] < least || (*list)[i] > most)
            return gptsi_fail(r->error, GPTS_BAD_FILE,
                "%s: value %llu of tensor '%s' is %ld, expected %lld to %lld",
                r->file->source->label,
                (unsigned long long)i, name, (long)(*list)[i], (long long)least, (long long)most);
        if (ascending && i && (*list)[i] <= (*list)[i - 1])
            return gptsi_fail(r->error, GPTS_BAD_FILE,
                "%s: tensor '%s' lists %ld after %ld, expected ascending heads, none twice",
                r->file->source->label, name, (long)(*list)[i], (long)(*list)[i - 1]);
    }
    *n = (size_t)t->count;
    return GPTS_OK;
}

/* The size of one dimension of a layer's tensor, where the config does not say it; 0: no such tensor. */
static size_t gptsi_reader_size(gptsi_reader *r, size_t l, const char *what, size_t dimension)
{
    char name[GPTS_NAME_BYTES];
    const gpts_file_tensor *t;
    snprintf(name, sizeof name, "h.%lu.%s", (unsigned long)l, what);
    t = gptsi_reader_find(r, name);
    return t && t->rank > dimension && t->shape[dimension] <= INT32_MAX ?
        (size_t)t->shape[dimension] : 0;
}

/* Static and pruned heads or the approximator of layer l. */
static gpts_status gptsi_reader_layer(gptsi_reader *r, const gpts_config *c, size_t l,
                                      const gpts_hooks *hooks, int32_t **lists)
{
    gptsi_layer_shape *shape = &r->shapes[l];
    size_t H = (size_t)c->n_head, C = (size_t)c->n_embd, n, p, i,
        rows = gptsi_reader_size(r, l, "approx.c_fc.weight", 0);
    int32_t *fixed, *pruned, *start;
    if (rows) {
        shape->hidden = gptsi_reader_size(r, l, "approx.c_fc.weight", 1);
        shape->window = rows / C;
        if (rows % C || !shape->hidden)
            return gptsi_fail(r->error, GPTS_BAD_SHAPE,
                "%s: tensor 'h.%lu.approx.c_fc.weight' has the shape [%llu,%llu], expected a multiple of %llu rows",
                r->file->source->label, (unsigned long)l, (unsigned long long)rows,
                (unsigned long long)shape->hidden, (unsigned long long)C);
        return GPTS_OK;
    }
    GPTSI_TRY(gptsi_reader_list(r, l, "attn.static.heads", 0, 0, (int64_t)H - 1, 1, hooks,
        &lists[0], &n));
    GPTSI_TRY(gptsi_reader_list(r, l, "attn.pruned", 0, 0, (int64_t)H - 1, 1, hooks, &lists[1],
        &p));
    fixed = lists[0]; pruned = lists[1];
    if (!n && !p) return GPTS_OK;
    shape->kind = GPTSI_NEW(hooks, int8_t, H);
    if (!shape->kind) return gptsi_no_memory(r->error, "a layer's heads", H, 1);
    for (i = 0; i < n; i++) shape->kind[fixed[i]] = GPTSI_STATIC;
    for (i = 0; i < p; i++) {
        if (shape->kind[pruned[i]] == GPTSI_STATIC)
            return gptsi_fail(r->error, GPTS_BAD_FILE,
                "%s: head %ld of layer %lu is listed as static and as pruned",
                r->file->source->label, (long)pruned[i], (unsigned long)l);
        shape->kind[pruned[i]] = GPTSI_PRUNED;
    }
    if (!n) return GPTS_OK;
    shape->S = gptsi_reader_size(r, l, "attn.static.alpha", 1);
    shape->R = gptsi_reader_size(r, l, "attn.static.tail_coef", 1);
    if (!shape->S)
        return gptsi_fail(r->error, GPTS_BAD_SHAPE,
            "%s: tensor 'h.%lu.attn.static.alpha' is missing or empty, expected [%llu,S]",
            r->file->source->label, (unsigned long)l, (unsigned long long)n);
    GPTSI_TRY(gptsi_reader_list(r, l, "attn.static.tail_start", n, 1, (int64_t)shape->S, 0, hooks,
        &lists[2], &p));
    start = lists[2];
    if (start && !shape->R)
        return gptsi_fail(r->error, GPTS_NOT_FOUND,
            "%s: layer %lu has tail_start but no tail_coef [%llu,R]", r->file->source->label,
            (unsigned long)l, (unsigned long long)n);
    shape->tails = start != NULL;
    shape->tail_start = start;
    lists[2] = NULL;                                          /* kept until the model is made */
    return GPTS_OK;
}

/* 0 <= coefficients, 0 < decays <= 1, and a tail that is not nothing. */
static gpts_status gptsi_reader_tails(gptsi_reader *r, const gpts_model *m, size_t l)
{
    const gpts_heads *heads = &m->layers[l].heads;
    size_t s, k;
    for (s = 0; heads->tail_start && s < heads->n; s++) {
        double sum = 0;
        for (k = 0; k < heads->R; k++) {
            double coef = (double)heads->tail_coef[s * heads->R + k],
                decay = (double)heads->tail_decay[s * heads->R + k];
            if (!(coef >= 0) || !(decay > 0) || !(decay <= 1))
                return gptsi_fail(r->error, GPTS_BAD_FILE,
                    "%s: 'h.%lu.attn.static.tail_coef' and '.tail_decay' [%lu,%lu] are %g and %g, "
                    "expected at least 0, and above 0 up to 1", r->file->source->label,
                    (unsigned long)l, (unsigned long)s, (unsigned long)k, coef, decay);
            sum += coef;
        }
        if (!(sum > 0) && (size_t)heads->tail_start[s] < heads->S)
            return gptsi_fail(r->error, GPTS_BAD_FILE,
                "%s: row %lu of tensor 'h.%lu.attn.static.tail_coef' is all 0, but its tail starts at %ld",
                r->file->source->label, (unsigned long)s, (unsigned long)l,
                (long)heads->tail_start[s]);
    }
    return GPTS_OK;
}

/* Every tensor that looks like a model's must be one; others (golden.*, train.*) are left alone,
   and so are the causal masks that older GPT-2 files carry. */
static gpts_status gptsi_reader_rest(gptsi_reader *r, const gpts_config *c)
{
    size_t i;
    for (i = 0; i < r->file->n_tensors; i++) {
        const gpts_file_tensor *t = &r->file->tensors[i];
        const char *name = gptsi_reader_our_name(r, t), *rest;
        uint64_t l;
        if (r->used[i] || !name) continue;
        if (gptsi_layer_name(name, &l, &rest)) {
            if (l < (uint64_t)c->n_layer && (!strcmp(rest, "attn.bias") ||
                !strcmp(rest, "attn.masked_bias")))
                continue;
        } else if (strncmp(name, "h.", 2) && strncmp(name, "wte.", 4) && strncmp(name, "wpe.", 4) &&
            strncmp(name, "ln_f.", 5) &&
                   strncmp(name, "lm_head.", 8)) continue;
        return gptsi_fail(r->error, GPTS_BAD_FILE,
            "%s: tensor '%s' %s is no part of the model that the config describes",
            r->file->source->label, gptsi_quote(t->name, t->name_bytes).text,
            gptsi_shape(t->rank, t->shape).text);
    }
    return GPTS_OK;
}

static gpts_status gptsi_reader_model(gptsi_reader *r, gpts_model *m, const char *path,
                                      const gpts_hooks *hooks)
{
    const gpts_file_tensor *t;
    gpts_config config;
    gpts_model plan;
    size_t l, i, L;
    gpts_status status;
    GPTSI_TRY(gptsi_reader_names(r));
    GPTSI_TRY(gptsi_reader_config(r, path, hooks, &config));
    L = (size_t)config.n_layer;
    r->used = GPTSI_NEW(hooks, char, r->file->n_tensors);
    r->shapes = GPTSI_NEW(hooks, gptsi_layer_shape, L ? L : 1);
    if (!r->used || !r->shapes)
        return gptsi_no_memory(r->error, "the layers", L, sizeof *r->shapes);
    r->n_shapes = L;
    gptsi_reader_find(r, "wte.weight");
    if (config.tie_word_embeddings) gptsi_reader_find(r, "lm_head.weight");
    for (l = 0; l < L; l++) {
        int32_t *lists[3] = { NULL, NULL, NULL };
        status = gptsi_reader_layer(r, &config, l, hooks, lists);
        for (i = 0; i < 3; i++) gptsi_delete(hooks, lists[i]);
        if (status != GPTS_OK) return status;
    }
    memset(&plan, 0, sizeof plan);                            /* the tensors without their values */
    plan.config = config;
    if (hooks) plan.hooks = *hooks;
    status = gptsi_layout_describe(&plan, r->shapes);
    if (status != GPTS_OK) gptsi_fail(r->error, status, "%s", plan.error);
    for (i = 0; status == GPTS_OK && i < plan.n_tensors; i++)
        status = gptsi_reader_match(r, &plan.tensors[i], &t);
    gptsi_layout_free(&plan);
    if (status == GPTS_OK) status = gptsi_reader_rest(r, &config);
    if (status != GPTS_OK) return status;
    status = gptsi_model_build(m, &config, r->shapes, hooks);
    if (status != GPTS_OK) return gptsi_fail(r->error, status, "%s", m->error);
    for (i = 0; i < m->n_tensors; i++) GPTSI_TRY(gptsi_reader_values(r, &m->tensors[i], hooks));
    for (l = 0; l < L; l++) GPTSI_TRY(gptsi_reader_tails(r, m, l));
    return GPTS_OK;
}
static void gptsi_reader_free(gptsi_reader *r, const gpts_hooks *hooks)
{
    size_t l;
    for (l = 0; l < r->n_shapes; l++) {
        gptsi_delete(hooks, r->shapes[l].kind);
        gptsi_delete(hooks, (void *)(uintptr_t)r->shapes[l].tail_start);
    }
    gptsi_delete(hooks, r->shapes);
    gptsi_delete(hooks, r->used);
}

/* A model from an open file; zero but for its sentence on failure. */
static gpts_status gptsi_model_read(gpts_model *m, gpts_file *file, const char *path,
                                    const gpts_hooks *hooks)
{
    char error[GPTS_ERROR_BYTES];
    gptsi_reader r;
    gpts_status status;
    memset(&r, 0, sizeof r);
    memset(error, 0, sizeof error);
    r.file = file; r.error = error; r.outer = r.inner = "";
    status = gptsi_file_version(file);
    if (status == GPTS_OK) status = gptsi_reader_model(&r, m, path, hooks);
    else memcpy(error, file->error, sizeof error);
    gptsi_reader_free(&r, hooks);
    if (status != GPTS_OK) {
        gpts_model_free(m);
        memcpy(m->error, error, sizeof error);
    }
    return status;
}

static gpts_status gptsi_abi_check(uint32_t abi, char *error)
{
    if (abi == GPTS_ABI) return GPTS_OK;
    return gptsi_fail(error, GPTS_MISMATCH,
        "the header included here and the implementation differ in version or GPTS_REAL");
}

/* ---- models in other containers: shards, llm.c --------------------------------------------
   They become a gpts_file with GPT-2's names, which is then read like any other.           */

GPTSI_UNUSED static gpts_status gptsi_file_names(gpts_file *file)          /* sorts; a name twice is refused */
{
    size_t i;
    file->source->by_name = GPTSI_NEW(&file->hooks, size_t, gptsi_max(1, file->n_tensors));
    if (!file->source->by_name)
        return gptsi_no_memory(file->error, "a file's names", file->n_tensors, sizeof(size_t));
    gptsi_sort(file->source->by_name, file->n_tensors, gptsi_name_before, file->tensors);
    for (i = 1; i < file->n_tensors; i++) {
        const gpts_file_tensor *t = &file->tensors[file->source->by_name[i]];
        if (!gptsi_name_before(file->tensors, file->source->by_name[i - 1],
            file->source->by_name[i]))
            return gptsi_fail(file->error, GPTS_BAD_FILE, "%s: tensor '%s' is there twice",
                file->source->label, gptsi_quote(t->name, t->name_bytes).text);
    }
    return GPTS_OK;
}

#ifndef GPTS_NO_STDIO
/* The shard of this name, opened when it is first needed. */
static gpts_status gptsi_shard(gpts_file *file, const char *path, size_t folder, const char *name,
                               gptsi_part **part)
{
    gptsi_source *source = file->source;
    void *grown = source->parts;
    gpts_status status;
    size_t i, n = strlen(name);
    for (i = 0; i < source->n_parts; i++)
        if (!strcmp(source->parts[i].name + folder, name)) {
            *part = &source->parts[i];
            return GPTS_OK;
        }
    if (!n || strpbrk(name, "/\\:"))
        return gptsi_fail(file->error, GPTS_BAD_FILE, "%s: '%s' is no file beside it",
            source->label, gptsi_quote(name, n).text);
    if (!gptsi_grow(&file->hooks, &grown, source->n_parts, &source->parts_room, sizeof **part))
        return gptsi_no_memory(file->error, "a model's shards", source->n_parts, sizeof **part);
    source->parts = (gptsi_part *)grown;
    *part = &source->parts[source->n_parts];
    memset(*part, 0, sizeof **part);
    (*part)->name = GPTSI_NEW(&file->hooks, char, folder + n + 1);
    if (!(*part)->name) return gptsi_no_memory(file->error, "a file's name", folder + n + 1, 1);
    memcpy((*part)->name, path, folder);
    memcpy((*part)->name + folder, name, n + 1);
    (*part)->begin = source->bytes;
    source->n_parts++;
    status = gpts_file_open(&(*part)->file, (*part)->name, &file->hooks);
    if (status != GPTS_OK) return gptsi_fail(file->error, status, "%s", (*part)->file.error);
    source->bytes += (*part)->file.bytes - (*part)->file.data_offset;
    return GPTS_OK;
}

/* model.safetensors.index.json: {"weight_map": {tensor: file}}; the rest of it is ignored. */
static gpts_status gptsi_shards_read(gpts_file *file, const char *path, gptsi_json *j, char *name,
                                     size_t room)
{
    size_t folder, n, tensors_room = 0;
    char shard[256];
    for (folder = strlen(path); folder > 0 && path[folder - 1] != '/' &&
        path[folder - 1] != '\\'; folder--) {
    }
    if (!gptsi_json_take(j, '{')) return GPTS_BAD_FILE;
    do {
        const gpts_file_tensor *found;
        gptsi_part *part = NULL;
        void *grown = file->tensors;
        if (!gptsi_json_string(j, name, room, &n) || !gptsi_json_take(j, ':')) return GPTS_BAD_FILE;
        if (n != 10 || memcmp(name, "weight_map", 10)) {
            if (!gptsi_json_skip(j)) return GPTS_BAD_FILE;
            continue;
        }
        if (!gptsi_json_take(j, '{')) return GPTS_BAD_FILE;
        do {
            size_t length;
            if (!gptsi_json_string(j, name, room, &n) || !gptsi_json_take(j, ':'))
                return GPTS_BAD_FILE;
            if (!gptsi_json_string(j, shard, sizeof shard - 1, &length) || strlen(shard) < length)
                return GPTS_BAD_FILE;
            GPTSI_TRY(gptsi_shard(file, path, folder, shard, &part));
            found = gptsi_file_find(&part->file, name, n);
            if (!found)
                return gptsi_fail(file->error, GPTS_NOT_FOUND, "%s: tensor '%s' is not in '%s'",
                    file->source->label, gptsi_quote(name, n).text, shard);
            grown = file->tensors;
            if (!gptsi_grow(&file->hooks, &grown, file->n_tensors, &tensors_room, sizeof *found))
                return gptsi_no_memory(file->error, "a model's tensors", file->n_tensors,
                    sizeof *found);
            file->tensors = (gpts_file_tensor *)grown;
            file->tensors[file->n_tensors] = *found;
            file->tensors[file->n_tensors].begin += part->begin;
            file->tensors[file->n_tensors++].end += part->begin;
        } while (gptsi_json_take(j, ','));
        if (!gptsi_json_take(j, '}')) return GPTS_BAD_FILE;
    } while (gptsi_json_take(j, ','));
    if (!gptsi_json_take(j, '}')) return GPTS_BAD_FILE;
    gptsi_json_space(j);
    return j->at == j->end && file->n_tensors ? GPTS_OK : GPTS_BAD_FILE;
}

static gpts_status gptsi_shards_open(gpts_file *file, const char *path)
{
    char *text, *name;
    size_t bytes;
    gptsi_json j;
    gpts_status status = gpts_read_file(path, &text, &bytes, &file->hooks, file->error);
    if (status != GPTS_OK) return status;
    name = GPTSI_NEW(&file->hooks, char, bytes + 1);
    j.at = text; j.end = text + bytes; j.depth = 1;
    if (!name) status = gptsi_no_memory(file->error, "an index of shards", bytes, 1);
    else {
        status = gptsi_shards_read(file, path, &j, name, bytes);
        if (status == GPTS_BAD_FILE && !file->error[0])
            gptsi_fail(file->error, status,
                "%s is no index of shards, {\"weight_map\": {\"tensor\": \"file\"}}",
                file->source->label);
        if (status == GPTS_OK) status = gptsi_file_names(file);
    }
    gptsi_delete(&file->hooks, name);
    gptsi_delete(&file->hooks, text);
    return status;
}

/* llm.c's weights: 256 int32 (magic 20240326; version 3: F32, 5: BF16; positions, V, L, H, C,
   rows of wte in the file), then each kind of tensor over all layers, Linear ones [out,in].
   (github.com/karpathy/llm.c, train_gpt2.py: write_model)                                    */
enum { GPTSI_LLMC_KINDS = 16 };
static gpts_status gptsi_llmc_open(gpts_file *file)
{
    static const struct { char name[20]; unsigned char out, in; } kinds[GPTSI_LLMC_KINDS] = {
        { "wte.weight", 0, 1 }, { "wpe.weight", 0, 1 },               /* times C; in 0: a vector */
        { "ln_1.weight", 1, 0 }, { "ln_1.bias", 1, 0 }, { "attn.c_attn.weight", 3, 1 },
        { "attn.c_attn.bias", 3, 0 }, { "attn.c_proj.weight", 1, 1 }, { "attn.c_proj.bias", 1, 0 },
        { "ln_2.weight", 1, 0 }, { "ln_2.bias", 1, 0 }, { "mlp.c_fc.weight", 4, 1 },
        { "mlp.c_fc.bias", 4, 0 }, { "mlp.c_proj.weight", 1, 4 }, { "mlp.c_proj.bias", 1, 0 },
        { "ln_f.weight", 1, 0 }, { "ln_f.bias", 1, 0 }
    };
    gptsi_source *source = file->source;
    unsigned char head[32];
    uint64_t h[8], C, rows[GPTSI_LLMC_KINDS], columns[GPTSI_LLMC_KINDS], total = 0, at = 0;
    size_t k, l, L, size;
    gptsi_text config;
    char *name;
    GPTSI_TRY(gptsi_source_read(source, 0, head, sizeof head, file->error));
    for (k = 0; k < 8; k++) h[k] = gptsi_get32(head + 4 * k);
    if (h[1] != 3 && h[1] != 5)
        return gptsi_fail(file->error, GPTS_UNSUPPORTED,
            "%s: version %llu of llm.c's format, expected 3 or 5", source->label,
            (unsigned long long)h[1]);
    for (k = 2; k < 8; k++)
        if (!h[k] || h[k] > (k == 4 ? 65536u : (uint32_t)INT32_MAX) || (k == 7 && h[7] < h[3]))
            return gptsi_fail(file->error, GPTS_BAD_FILE,
                "%s: number %lu of the header is %llu, which is out of range", source->label,
                (unsigned long)k, (unsigned long long)h[k]);
    C = h[6]; L = (size_t)h[4]; size = h[1] == 3 ? 4 : 2;
    for (k = 0; k < GPTSI_LLMC_KINDS; k++) {
        rows[k] = k == 0 ? h[7] : k == 1 ? h[2] : kinds[k].out * C;
        columns[k] = kinds[k].in ? kinds[k].in * C : 1;
        if (rows[k] > ((uint64_t)1 << 40) / columns[k])
            return gptsi_fail(file->error, GPTS_BAD_FILE, "%s: its sizes are too large",
                source->label);
        total += rows[k] * columns[k] * (k < 2 || k > 13 ? 1 : L);
    }
    if (source->bytes != 1024 + total * size)
        return gptsi_fail(file->error, GPTS_BAD_FILE,
            "%s has %llu bytes, but its header asks for %llu", source->label,
            (unsigned long long)source->bytes, (unsigned long long)(1024 + total * size));
    file->bytes = source->bytes;
    file->data_offset = 1024;
    file->tensors = GPTSI_NEW(&file->hooks, gpts_file_tensor, 4 + 12 * L);
    file->metadata = GPTSI_NEW(&file->hooks, gpts_file_pair, 1);
    memset(&config, 0, sizeof config);
    config.hooks = &file->hooks;
    gptsi_text_add(&config,
        "{\"activation_function\":\"gelu_new\",\"tie_word_embeddings\":true,\"n_head\":");
    gptsi_text_integer(&config, (int64_t)h[5]);
    gptsi_text_bytes(&config, "}", 2);
    l = config.n;
    name = GPTSI_NEW(&file->hooks, char, gptsi_add(l, gptsi_mul(4 + 12 * L, 48)));
    if (name && !config.failed) memcpy(name, config.data, l);
    gptsi_delete(&file->hooks, config.data);
    source->names = name;
    if (!file->tensors || !file->metadata || !name || config.failed)
        return gptsi_no_memory(file->error, "a model's tensors", 4 + 12 * L, sizeof *file->tensors);
    file->metadata[0].key = "config"; file->metadata[0].value = name;
    file->n_metadata = 1;
    name += l;
    for (k = 0; k < GPTSI_LLMC_KINDS; k++) {
        int layered = k >= 2 && k <= 13;
        for (l = 0; l < (layered ? L : 1); l++) {
            gpts_file_tensor *t = &file->tensors[file->n_tensors++];
            if (layered) snprintf(name, 48, "h.%lu.%.19s", (unsigned long)l, kinds[k].name);
            else snprintf(name, 48, "%.19s", kinds[k].name);
            t->name = name; t->name_bytes = strlen(name);
            name += t->name_bytes + 1;
            t->dtype = size == 4 ? GPTS_F32 : GPTS_BF16;
            t->rank = kinds[k].in ? 2 : 1;
            /* the padding of wte stays in the file */
            t->shape[0] = k == 0 ? h[3] : rows[k]; t->shape[1] = columns[k];
            t->count = t->shape[0] * columns[k];
            t->begin = at; t->end = at + t->count * size;
            at += rows[k] * columns[k] * size;
        }
    }
    return gptsi_file_names(file);
}

/* Told by content: llm.c's magic, JSON, or else safetensors. */
static gpts_status gptsi_model_open(gpts_file *file, const char *path, const gpts_hooks *hooks)
{
    unsigned char head[8] = { 0 }, magic[4];
    uint64_t bytes;
    FILE *stream;
    gpts_status status;
    memset(file, 0, sizeof *file);
    GPTSI_TRY(gptsi_open(&stream, &bytes, path, file->error));
    if (fread(head, 1, 8, stream) != 8) head[0] = 0;
    memcpy(magic, head, 4);
    fclose(stream);
    if (memchr(head, 0, 8))
        head[0] = 0;                      /* not JSON: every header of safetensors has a 0 here */
    if (gptsi_get32(magic) != 20240326 && head[0] != '{') return gpts_file_open(file, path, hooks);
    status = gptsi_file_begin(file, hooks);
    if (status == GPTS_OK) {
        snprintf(file->source->label, sizeof file->source->label, "'%s'", gptsi_path_end(path));
        if (head[0] == '{') status = gptsi_shards_open(file, path);
        else status = gptsi_open(&file->source->stream, &file->source->bytes, path, file->error);
        if (status == GPTS_OK && head[0] != '{') status = gptsi_llmc_open(file);
    }
    if (status != GPTS_OK) gpts_file_close(file);
    return status;
}
#else
static gpts_status gptsi_model_open(gpts_file *file, const char *path, const gpts_hooks *hooks)
{
    return gpts_file_open(file, path, hooks);
}
#endif

GPTS_API gpts_status gpts_model_load_checked(gpts_model *model, const char *path,
                                             const gpts_hooks *hooks, uint32_t abi)
{
    gpts_file file;
    gpts_status status = gptsi_abi_check(abi, model->error);
    if (status != GPTS_OK) return status;
    memset(model, 0, sizeof *model);
    status = gptsi_model_open(&file, path, hooks);
    if (status == GPTS_OK) status = gptsi_model_read(model, &file, path, hooks);
    else memcpy(model->error, file.error, sizeof file.error);
    gpts_file_close(&file);
    return status;
}

GPTS_API gpts_status gpts_model_load_memory_checked(gpts_model *model, const void *data,
                                                    size_t bytes, const gpts_hooks *hooks,
                                                    uint32_t abi)
{
    gpts_file file;
    gpts_status status = gptsi_abi_check(abi, model->error);
    if (status != GPTS_OK) return status;
    memset(model, 0, sizeof *model);
    status = gpts_file_open_memory(&file, data, bytes, hooks);
    if (status == GPTS_OK) status = gptsi_model_read(model, &file, NULL, hooks);
    else memcpy(model->error, file.error, sizeof file.error);
    gpts_file_close(&file);
    return status;
}

/* ---- models and checkpoints: writing ----------------------------------------------------- */

/* A checkpoint is a model file with the trainer's tensors beside the model's: train.m.<name>
   and train.v.<name> of each trained tensor, and one number each of the table below.  Reals
   are stored as they are (F64 in a double build), so that a resumed run has the same bits.
   Only what is trained has moments, by which a frozen tensor is known again.
   (tests/io.c: a_resumed_run_has_the_same_bits)                                           */
#define GPTSI_TRAIN_TABLE(X)                                                           \
    X(F64, "train.learning_rate",     t->options.learning_rate)                        \
    X(F64, "train.min_learning_rate", t->options.min_learning_rate)                    \
    X(I64, "train.warmup",            t->options.warmup)                               \
    X(I64, "train.total",             t->options.total)                                \
    X(F64, "train.beta1",             t->options.beta1)                                \
    X(F64, "train.beta2",             t->options.beta2)                                \
    X(F64, "train.epsilon",           t->options.epsilon)                              \
    X(F64, "train.weight_decay",      t->options.weight_decay)                         \
    X(F64, "train.clip",              t->options.clip)                                 \
    X(F64, "train.dropout",           t->options.dropout)                              \
    X(I64, "train.seed",              t->options.seed)                                 \
    X(I64, "train.step",              t->step)                                         \
    X(I64, "train.data_position",     t->data_position)

/* What a file is made of: entries, and what some of them point at. */
typedef struct gptsi_writer {
    gpts_file_entry *entries;
    char (*names)[GPTS_NAME_BYTES + 16];
    int32_t *integers;
    int64_t trained;                          /* number of tensors with moments            */
    size_t n, n_device;                       /* entries; those where the model works      */
    gptsi_text config;
} gptsi_writer;

static void gptsi_writer_add(gptsi_writer *w, const char *prefix, const char *name,
                             gpts_dtype dtype, size_t rank, size_t rows, size_t columns,
                             const void *data)
{
    gpts_file_entry *e = &w->entries[w->n];
    snprintf(w->names[w->n], sizeof w->names[0], "%.15s%.63s", prefix, name);
    e->name = w->names[w->n++];
    e->dtype = dtype;
    e->rank = rank;
    e->shape[0] = rows; e->shape[1] = columns;
    e->data = data;
}

/* The model's tensors as `dtype` and, with a trainer, its state. */
static gpts_status gptsi_writer_fill(gptsi_writer *w, gpts_model *m, gpts_trainer *t,
                                     gpts_dtype dtype)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, room, l, i, s;
    int32_t *at;
    char name[GPTS_NAME_BYTES];
    memset(w, 0, sizeof *w);
    room = gptsi_add(gptsi_add(gptsi_mul(m->n_tensors, 3), gptsi_mul(L, 6)), 16);
    w->entries = GPTSI_NEW(&m->hooks, gpts_file_entry, room);
    w->names = (char (*)[GPTS_NAME_BYTES + 16])gptsi_new(&m->hooks, room, sizeof w->names[0]);
    w->integers = at = GPTSI_NEW(&m->hooks, int32_t, gptsi_add(gptsi_mul(L, gptsi_mul(H, 2)), 1));
    w->config.hooks = &m->hooks;
    gptsi_config_text(&w->config, &m->config, "{\"model_type\":\"gptstatic\"");
    gptsi_text_bytes(&w->config, "", 1);
    if (!w->entries || !w->names || !w->integers || w->config.failed)
        return gptsi_no_memory(m->error, "writing a model", room,
            sizeof *w->entries + sizeof w->names[0]);
    for (i = 0; i < m->n_tensors; i++) {
        const gpts_tensor *x = &m->tensors[i];
        gptsi_writer_add(w, "", x->name, dtype, x->rank, x->rows, x->columns, x->data);
        if (!t || t->offset[i] == SIZE_MAX) continue;
        gptsi_writer_add(w, "train.m.", x->name, dtype, x->rank, x->rows, x->columns,
            t->moment1 + t->offset[i]);
        gptsi_writer_add(w, "train.v.", x->name, dtype, x->rank, x->rows, x->columns,
            t->moment2 + t->offset[i]);
        w->trained++;
    }
    w->n_device = w->n;
    for (l = 0; l < L; l++) {
        const gpts_heads *heads = &m->layers[l].heads;
        size_t n = 0, p = 0, h;
        if (m->layers[l].hidden) continue;
        /* statics to at[0..], pruned to at[H..] */
        for (h = s = 0; h < H; h++) {
            if (s == heads->K || (size_t)heads->kept[s] != h) at[H + p++] = (int32_t)h;
            else if (heads->static_slot[s++] >= 0) at[n++] = (int32_t)h;
        }
        snprintf(name, sizeof name, "h.%lu.attn.", (unsigned long)l);
        if (n) gptsi_writer_add(w, name, "static.heads", GPTS_I32, 1, n, 1, at);
        if (n && heads->tail_start)
            gptsi_writer_add(w, name, "static.tail_start", GPTS_I32, 1, n, 1,
                m->layers[l].tail_start);
        if (p) gptsi_writer_add(w, name, "pruned", GPTS_I32, 1, p, 1, at + H);
        at += 2 * H;
    }
    if (!t) return GPTS_OK;
    gptsi_writer_add(w, "", "train.tensors", GPTS_I64, 0, 0, 0, &w->trained);
#define GPTSI_ROW(dtype_, name_, value_) gptsi_writer_add(w, "", name_, GPTS_##dtype_, 0, 0, 0, &value_);
    GPTSI_TRAIN_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    return GPTS_OK;
}

static gpts_status gptsi_writer_save(gptsi_writer *w, gpts_model *m, const char *path)
{
    gpts_file_pair metadata[3];
    metadata[0].key = "config"; metadata[0].value = w->config.data;
    metadata[1].key = "format"; metadata[1].value = "pt";
    metadata[2].key = "format_version"; metadata[2].value = "1";
    return gptsi_file_write(path, w->entries, w->n, metadata, 3, m, w->n_device, &m->hooks,
        m->error);
}
static void gptsi_writer_free(gptsi_writer *w, const gpts_hooks *hooks)
{
    gptsi_delete(hooks, w->entries);
    gptsi_delete(hooks, w->names);
    gptsi_delete(hooks, w->integers);
    gptsi_delete(hooks, w->config.data);
}

GPTS_API gpts_status gpts_model_save_as(gpts_model *model, const char *path, gpts_dtype dtype)
{
    gptsi_writer w;
    gpts_status status;
    if (dtype != GPTS_F32 && dtype != GPTS_F16 && dtype != GPTS_BF16)
        return gptsi_fail(model->error, GPTS_UNSUPPORTED, "models are saved as F32, F16 or BF16");
    status = gptsi_writer_fill(&w, model, NULL, dtype);
    if (status == GPTS_OK) status = gptsi_writer_save(&w, model, path);
    gptsi_writer_free(&w, &model->hooks);
    return status;
}
GPTS_API gpts_status gpts_model_save(gpts_model *model, const char *path)
{
    return gpts_model_save_as(model, path, GPTS_F32);
}

/* transformers' GPT-2 has every bias: those that a model lacks are written as zeros. */
static void gptsi_writer_zero_biases(gptsi_writer *w, const gpts_model *m, const gpts_real *zeros)
{
    static const char layer[][12] = { "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc",
                                      "mlp.c_proj" };
    size_t C = (size_t)m->config.n_embd, l, k;
    char name[GPTS_NAME_BYTES];
    for (l = 0; l < (size_t)m->config.n_layer; l++)
        for (k = 0; k < 6; k++) {
            snprintf(name, sizeof name, "h.%lu.%.11s.bias", (unsigned long)l, layer[k]);
            gptsi_writer_add(w, "", name, w->entries[0].dtype, 1,
                k == 1 ? 3 * C : k == 4 ? gptsi_inner(&m->config) : C, 1, zeros);
        }
    gptsi_writer_add(w, "", "ln_f.bias", w->entries[0].dtype, 1, C, 1, zeros);
}

GPTS_API gpts_status gpts_model_export(gpts_model *model, const char *path, gpts_dtype dtype)
{
    static const char start[] = "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"bos_token_id\":null,\"eos_token_id\":null,"
        "\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,\"attn_pdrop\":0.0";
    const gpts_hooks *hooks = &model->hooks;
    size_t F = gptsi_inner(&model->config), C = (size_t)model->config.n_embd, n, i, k;
    gpts_config config = model->config;
    gpts_real *zeros;
    char *beside;
    gptsi_writer w;
    gpts_status status;
    if (dtype != GPTS_F32 && dtype != GPTS_F16 && dtype != GPTS_BF16)
        return gptsi_fail(model->error, GPTS_UNSUPPORTED,
            "models are exported as F32, F16 or BF16");
    for (i = 0; i < (size_t)config.n_layer &&
        model->layers[i].heads.U == (size_t)config.n_head; i++) {
    }
    if (i < (size_t)config.n_layer || config.position != GPTS_POSITION_LEARNED ||
        config.norm != GPTS_NORM_LAYER || !F)
        return gptsi_fail(model->error, GPTS_UNSUPPORTED,
            "only a model of GPT-2's kind can be exported: learned positions, norms, an MLP, all heads live");
    if (!path || !*path)
        return gptsi_fail(model->error, GPTS_BAD_ARGUMENT, "no file name was given");
    config.bias = 1; config.n_inner = (int64_t)F;
    for (n = strlen(path); n > 0 && path[n - 1] != '/' && path[n - 1] != '\\'; n--) { }
    beside = GPTSI_NEW(hooks, char, n + 16);
    zeros = GPTSI_NEW(hooks, gpts_real, gptsi_max(3 * C, F));
    status = gptsi_writer_fill(&w, model, NULL, dtype);
    if (status == GPTS_OK && (!beside || !zeros))
        status = gptsi_no_memory(model->error, "writing a model", gptsi_max(3 * C, F),
            sizeof *zeros);
    if (status == GPTS_OK) {
        if (!model->config.bias) gptsi_writer_zero_biases(&w, model, zeros);
        for (i = 0; i < w.n; i++) {
            if (!strcmp(w.names[i], "lm_head.weight")) continue;
            k = strlen(w.names[i]);
            memmove(w.names[i] + 12, w.names[i], k + 1);
            memcpy(w.names[i], "transformer.", 12);
        }
        w.config.n = 0;
        gptsi_config_text(&w.config, &config, start);
        gptsi_text_bytes(&w.config, "", 1);
        if (w.config.failed) status = gptsi_no_memory(model->error, "writing a model", 1024, 1);
    }
    if (status == GPTS_OK) status = gptsi_writer_save(&w, model, path);
    if (status == GPTS_OK) {
        memcpy(beside, path, n);
        memcpy(beside + n, "config.json", sizeof "config.json");
        status = gptsi_replace_file(beside, w.config.data, w.config.n - 1, hooks, model->error);
    }
    gptsi_writer_free(&w, hooks);
    gptsi_delete(hooks, zeros);
    gptsi_delete(hooks, beside);
    return status;
}

GPTS_API gpts_status gpts_checkpoint_save(gpts_trainer *trainer, const char *path)
{
    gpts_model *m = trainer->model;
    gptsi_writer w;
    gpts_status status;
    if (!m) return gptsi_fail(trainer->error, GPTS_BAD_ARGUMENT, "the trainer has no model");
    if (trainer->accumulated)
        return gptsi_fail(trainer->error, GPTS_BAD_ARGUMENT,
            "the gradients of %llu batches are accumulated: apply them before saving",
            (unsigned long long)trainer->accumulated);
    GPTSI_TRY(gptsi_trainer_follow(trainer));
    GPTSI_TRY(gptsi_trainer_gather(trainer));
    status = GPTS_OK;
    if (trainer->ranks.rank == 0) {
        status = gptsi_writer_fill(&w, m, trainer, sizeof(gpts_real) == 8 ? GPTS_F64 : GPTS_F32);
        if (status == GPTS_OK) status = gptsi_writer_save(&w, m, path);
        gptsi_writer_free(&w, &m->hooks);
    }
    status = gptsi_ranks_agree(&trainer->ranks, status, &m->hooks, m->error);
    gptsi_trainer_share(trainer);
    if (status != GPTS_OK) memcpy(trainer->error, m->error, sizeof trainer->error);
    return status;
}

/* ---- checkpoints: reading ---------------------------------------------------------------- */

/* train.<name>, one 64-bit number; its bits are *bits */
static gpts_status gptsi_checkpoint_number(gpts_file *file, const char *name, gpts_dtype dtype,
                                           void *number)
{
    const gpts_file_tensor *t = gpts_file_find(file, name);
    unsigned char raw[8];
    uint64_t bits;
    double real;
    if (!t)
        return gptsi_fail(file->error, GPTS_NOT_FOUND,
            "%s is no checkpoint: tensor '%s' is missing", file->source->label, name);
    if (t->dtype != dtype || t->count != 1)
        return gptsi_fail(file->error, GPTS_BAD_FILE,
            "%s: tensor '%s' is %s of %llu values, expected %s of one", file->source->label, name,
            gptsi_dtype_name(t->dtype), (unsigned long long)t->count, gptsi_dtype_name(dtype));
    GPTSI_TRY(gptsi_source_read(file->source, file->data_offset + t->begin, raw, 8, file->error));
    bits = gptsi_get64(raw);
    real = gptsi_double(bits);
    if (dtype == GPTS_F64 && !(fabs(real) <= DBL_MAX))
        return gptsi_fail(file->error, GPTS_NOT_FINITE, "%s: tensor '%s' is no finite number",
            file->source->label, name);
    memcpy(number, &bits, 8);
    return GPTS_OK;
}

static gpts_status gptsi_checkpoint_moments(gptsi_reader *r, const char *prefix,
                                            const gpts_tensor *x, gpts_real *to, int least)
{
    char name[GPTS_NAME_BYTES + 16];
    const gpts_file_tensor *t;
    size_t i;
    snprintf(name, sizeof name, "%s%s", prefix, x->name);
    GPTSI_TRY(gptsi_reader_expect(r, name, x->rank, x->rows, x->columns, &t));
    if (gpts_file_read(r->file, t, 0, x->size, to) != GPTS_OK)
        return gptsi_fail(r->error, GPTS_BAD_FILE, "%s", r->file->error);
    GPTSI_TRY(gptsi_reader_finite(r, name, to, x->size));
    for (i = 0; least == 0 && i < x->size; i++)
        if (to[i] < 0)
            return gptsi_fail(r->error, GPTS_BAD_FILE,
                "%s: value %llu of tensor '%s' is below 0, but squares were averaged",
                r->file->source->label, (unsigned long long)i, name);
    return GPTS_OK;
}

static gpts_status gptsi_checkpoint_read(gpts_trainer *trainer, gpts_model *m, gpts_file *file,
                                         const char *path, const gpts_hooks *hooks, char *error)
{
    gpts_trainer wanted, *t = &wanted;        /* the numbers of the table */
    char name[GPTS_NAME_BYTES + 16];
    gptsi_reader r;
    int64_t trained, found = 0;
    size_t i;
    gpts_status status = GPTS_OK;
    memset(&wanted, 0, sizeof wanted);
    memset(&r, 0, sizeof r);
    r.file = file; r.error = error; r.outer = r.inner = "";
    status = gptsi_checkpoint_number(file, "train.tensors", GPTS_I64, &trained);
#define GPTSI_ROW(dtype_, name_, value_) if (status == GPTS_OK) status = gptsi_checkpoint_number(file, name_, GPTS_##dtype_, &value_);
    GPTSI_TRAIN_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    if (status != GPTS_OK) return gptsi_fail(error, status, "%s", file->error);
    status = gptsi_model_read(m, file, path, hooks);
    if (status != GPTS_OK) return gptsi_fail(error, status, "%s", m->error);
    for (i = 0; i < m->n_tensors; i++) {
        snprintf(name, sizeof name, "train.m.%s", m->tensors[i].name);
        m->tensors[i].trainable = gpts_file_find(file, name) != NULL;
        found += m->tensors[i].trainable;
    }
    if (found != trained)
        return gptsi_fail(error, GPTS_BAD_FILE, "%s: %lld tensors have moments, expected %lld",
            file->source->label, (long long)found, (long long)trained);
    status = gpts_trainer_init(trainer, m, &wanted.options);
    if (status != GPTS_OK) return gptsi_fail(error, status, "%s", trainer->error);
    trainer->step = wanted.step;
    trainer->data_position = wanted.data_position;
    for (i = 0; i < m->n_tensors; i++) {
        if (!m->tensors[i].trainable) continue;
        GPTSI_TRY(gptsi_checkpoint_moments(&r, "train.m.", &m->tensors[i],
            trainer->moment1 + trainer->offset[i], -1));
        GPTSI_TRY(gptsi_checkpoint_moments(&r, "train.v.", &m->tensors[i],
            trainer->moment2 + trainer->offset[i], 0));
    }
    return GPTS_OK;
}

GPTS_API gpts_status gpts_checkpoint_load(gpts_trainer *trainer, gpts_model *model,
                                          const char *path, const gpts_hooks *hooks)
{
    char error[GPTS_ERROR_BYTES];
    gpts_file file;
    gpts_status status;
    memset(trainer, 0, sizeof *trainer);
    memset(model, 0, sizeof *model);
    memset(error, 0, sizeof error);
    status = gpts_file_open(&file, path, hooks);
    if (status != GPTS_OK) memcpy(error, file.error, sizeof error);
    else status = gptsi_checkpoint_read(trainer, model, &file, path, hooks, error);
    gpts_file_close(&file);
    if (status != GPTS_OK) {
        gpts_trainer_free(trainer);
        gpts_model_free(model);
        memcpy(trainer->error, error, sizeof error);
        memcpy(model->error, error, sizeof error);
    }
    return status;
}

/* ---- approximators and recordings ----------------------------------------------------------- */

static const gptsi_label gptsi_approximator_names[] = { "mlp", "mean", "random", "nothing" };

/* Metadata `key` as one of the names; the first where there is none. */
static gpts_status gptsi_file_choice(gpts_file *file, const char *key, const gptsi_label *names,
                                     size_t n, int *choice)
{
    const char *text = gpts_file_metadata(file, key);
    size_t i;
    *choice = 0;
    if (!text) return GPTS_OK;
    for (i = 0; i < n; i++) if (!strcmp(text, names[i])) { *choice = (int)i; return GPTS_OK; }
    return gptsi_fail(file->error, GPTS_BAD_FILE, "%s: metadata %s is '%s', which is not known",
        file->source->label, key, gptsi_quote(text, strlen(text)).text);
}

static void gptsi_entry_set(gpts_file_entry *e, const char *name, gpts_dtype dtype, size_t rank,
                            size_t a, size_t b, size_t c, const void *data)
{
    memset(e, 0, sizeof *e);
    e->name = name; e->dtype = dtype; e->rank = rank; e->data = data;
    e->shape[0] = a; e->shape[1] = b; e->shape[2] = c;
}

GPTS_API gpts_status gpts_approximator_save(gpts_approximator *a, const char *path)
{
    gpts_file_entry e[4];
    gpts_file_pair metadata[5];
    char layer[24];
    if (!a->fc_w || (int)a->activation < 0 || a->activation > GPTS_RELU || (int)a->kind < 0 ||
        a->kind > GPTS_APPROX_NOTHING)
        return gptsi_fail(a->error, GPTS_BAD_ARGUMENT, "the approximator is not made yet");
    gptsi_entry_set(&e[0], "approx.c_fc.weight", GPTS_F32, 2, a->window * a->C, a->hidden, 0,
        a->fc_w);
    gptsi_entry_set(&e[1], "approx.c_fc.bias", GPTS_F32, 1, a->hidden, 0, 0, a->fc_b);
    gptsi_entry_set(&e[2], "approx.c_proj.weight", GPTS_F32, 2, a->hidden, a->C, 0, a->proj_w);
    gptsi_entry_set(&e[3], "approx.c_proj.bias", GPTS_F32, 1, a->C, 0, 0, a->proj_b);
    snprintf(layer, sizeof layer, "%ld", (long)a->layer);
    metadata[0].key = "activation"; metadata[0].value = gptsi_activation_names[a->activation];
    metadata[1].key = "format"; metadata[1].value = "pt";
    metadata[2].key = "format_version"; metadata[2].value = "1";
    metadata[3].key = "kind"; metadata[3].value = gptsi_approximator_names[a->kind];
    metadata[4].key = "layer"; metadata[4].value = layer;
    return gpts_file_write(path, e, 4, metadata, 5, &a->hooks, a->error);
}

/* Shapes from c_fc and c_proj, which must agree; then one block as `fit` makes it. */
static gpts_status gptsi_approximator_read(gpts_approximator *a, gpts_file *file)
{
    const gpts_file_tensor *t[4];
    gptsi_reader r;
    gpts_tensor x;
    size_t i, n;
    int choice;
    gptsi_json number;
    int64_t layer = 0;
    const char *text = gpts_file_metadata(file, "layer");
    memset(&r, 0, sizeof r);
    r.file = file; r.error = file->error; r.outer = r.inner = "";
    GPTSI_TRY(gptsi_file_version(file));
    GPTSI_TRY(gptsi_file_choice(file, "activation", gptsi_activation_names, 4, &choice));
    a->activation = gpts_file_metadata(file,
        "activation") ? (gpts_activation)(choice % 3) : GPTS_RELU;
    GPTSI_TRY(gptsi_file_choice(file, "kind", gptsi_approximator_names, 4, &choice));
    a->kind = (gpts_approximator_kind)choice;
    if (text) {
        number.at = text; number.end = text + strlen(text); number.depth = 0;
        if (!gptsi_json_i64(&number, &layer) || number.at != number.end || layer < 0 ||
            layer > INT32_MAX)
            return gptsi_fail(file->error, GPTS_BAD_FILE,
                "%s: metadata layer is '%s', expected a number", file->source->label,
                gptsi_quote(text, strlen(text)).text);
    }
    a->layer = (int32_t)layer;
    t[0] = gpts_file_find(file, "approx.c_fc.weight"); t[2] = gpts_file_find(file,
        "approx.c_proj.weight");
    if (!t[0] || !t[2])
        return gptsi_fail(file->error, GPTS_NOT_FOUND,
            "%s is no approximator: tensor 'approx.c_%s.weight' is missing", file->source->label,
            t[0] ? "proj" : "fc");
    if (t[0]->rank != 2 || t[2]->rank != 2 || !t[2]->shape[1] || !t[0]->shape[0] ||
        t[0]->shape[0] % t[2]->shape[1] ||
        t[0]->shape[0] > INT32_MAX || t[0]->shape[1] > INT32_MAX)
        return gptsi_fail(file->error, GPTS_BAD_SHAPE,
            "%s: 'approx.c_fc.weight' is %s and 'approx.c_proj.weight' %s, expected [k C,h] and [h,C]",
            file->source->label, gptsi_shape(t[0]->rank, t[0]->shape).text,
            gptsi_shape(t[2]->rank, t[2]->shape).text);
    a->C = (size_t)t[2]->shape[1]; a->hidden = (size_t)t[0]->shape[1]; a->window = (size_t)t[0]->shape[0] / a->C;
    GPTSI_TRY(gptsi_reader_expect(&r, "approx.c_fc.bias", 1, a->hidden, 1, &t[1]));
    GPTSI_TRY(gptsi_reader_expect(&r, "approx.c_proj.weight", 2, a->hidden, a->C, &t[2]));
    GPTSI_TRY(gptsi_reader_expect(&r, "approx.c_proj.bias", 1, a->C, 1, &t[3]));
    n = (size_t)(t[0]->count + t[1]->count + t[2]->count + t[3]->count);
    a->fc_w = GPTSI_NEW(&a->hooks, gpts_real, n);
    if (!a->fc_w) return gptsi_no_memory(file->error, "an approximator", n, sizeof(gpts_real));
    a->fc_b = a->fc_w + t[0]->count; a->proj_w = a->fc_b + t[1]->count; a->proj_b = a->proj_w + t[2]->count;
    memset(&x, 0, sizeof x);
    for (i = 0; i < 4; i++) {
        gpts_real *to = i == 0 ? a->fc_w : i == 1 ? a->fc_b : i == 2 ? a->proj_w : a->proj_b;
        GPTSI_TRY(gpts_file_read(file, t[i], 0, (size_t)t[i]->count, to));
        GPTSI_TRY(gptsi_reader_finite(&r, t[i]->name, to, (size_t)t[i]->count));
    }
    return GPTS_OK;
}

GPTS_API gpts_status gpts_approximator_load(gpts_approximator *approximator, const char *path,
                                            const gpts_hooks *hooks)
{
    char error[GPTS_ERROR_BYTES];
    gpts_file file;
    gpts_status status;
    memset(approximator, 0, sizeof *approximator);
    if (hooks) approximator->hooks = *hooks;
    status = gpts_file_open(&file, path, hooks);
    if (status == GPTS_OK) status = gptsi_approximator_read(approximator, &file);
    memcpy(error, file.error, sizeof error);
    gpts_file_close(&file);
    if (status != GPTS_OK) {
        gpts_approximator_free(approximator);
        memcpy(approximator->error, error, sizeof error);
    }
    return status;
}

GPTS_API gpts_status gpts_recording_save(gpts_recording *recordings, size_t n, const char *path)
{
    char error[GPTS_ERROR_BYTES], (*names)[24];
    gpts_file_pair metadata[2];
    gpts_file_entry *e;
    gpts_status status;
    size_t i;
    if (!n) return GPTS_BAD_ARGUMENT;
    e = GPTSI_NEW(&recordings[0].hooks, gpts_file_entry, gptsi_mul(n, 2));
    names = (char (*)[24])gptsi_new(&recordings[0].hooks, gptsi_mul(n, 2), sizeof names[0]);
    error[0] = 0;
    metadata[0].key = "format"; metadata[0].value = "pt";
    metadata[1].key = "format_version"; metadata[1].value = "1";
    if (!e || !names) status = gptsi_no_memory(error, "writing recordings", n, sizeof *e);
    else {
        for (i = 0; i < 2 * n; i++) {
            const gpts_recording *r = &recordings[i / 2];
            snprintf(names[i], sizeof names[i], "%ld.%s", (long)r->layer, i % 2 ? "y" : "x");
            gptsi_entry_set(&e[i], names[i], GPTS_F32, 3, r->n_sequences, r->T, r->C,
                i % 2 ? r->y : r->x);
        }
        status = gpts_file_write(path, e, 2 * n, metadata, 2, &recordings[0].hooks, error);
    }
    gptsi_delete(&recordings[0].hooks, names);
    gptsi_delete(&recordings[0].hooks, e);
    if (status != GPTS_OK) memcpy(recordings[0].error, error, sizeof error);
    return status;
}

static gpts_status gptsi_recording_read(gpts_recording *recording, int32_t layer, gpts_file *file)
{
    size_t i;
    GPTSI_TRY(gptsi_file_version(file));
    recording->layer = layer;
    for (i = 0; i < 2; i++) {
        char name[32];
        const gpts_file_tensor *t;
        gpts_real *to;
        gptsi_reader r;
        memset(&r, 0, sizeof r);
        r.file = file; r.error = file->error;
        snprintf(name, sizeof name, "%ld.%s", (long)layer, i ? "y" : "x");
        t = gpts_file_find(file, name);
        if (!t)
            return gptsi_fail(file->error, GPTS_NOT_FOUND,
                "%s: tensor '%s' of layer %ld is missing", file->source->label, name, (long)layer);
        if (t->rank != 3 || !t->count || t->count > SIZE_MAX / sizeof *to ||
            (i && (t->shape[0] != recording->n_sequences ||
            t->shape[1] != recording->T || t->shape[2] != recording->C)))
            return gptsi_fail(file->error, GPTS_BAD_SHAPE,
                "%s: tensor '%s' has the shape %s, expected [n_sequences,T,C]%s", file->source->label,
                name, gptsi_shape(t->rank, t->shape).text, i ? " as that of x" : "");
        recording->n_sequences = (size_t)t->shape[0]; recording->T = (size_t)t->shape[1]; recording->C = (size_t)t->shape[2];
        to = GPTSI_NEW(&recording->hooks, gpts_real, (size_t)t->count);
        if (!to) return gptsi_no_memory(file->error, "a recording", (size_t)t->count, sizeof *to);
        if (i) recording->y = to; else recording->x = to;
        GPTSI_TRY(gpts_file_read(file, t, 0, (size_t)t->count, to));
        GPTSI_TRY(gptsi_reader_finite(&r, name, to, (size_t)t->count));
    }
    return GPTS_OK;
}

GPTS_API gpts_status gpts_recording_load(gpts_recording *recording, int32_t layer, const char *path,
                                         const gpts_hooks *hooks)
{
    char error[GPTS_ERROR_BYTES];
    gpts_file file;
    gpts_status status;
    memset(recording, 0, sizeof *recording);
    if (hooks) recording->hooks = *hooks;
    status = gpts_file_open(&file, path, hooks);
    if (status == GPTS_OK) status = gptsi_recording_read(recording, layer, &file);
    memcpy(error, file.error, sizeof error);
    gpts_file_close(&file);
    if (status != GPTS_OK) {
        gpts_recording_free(recording);
        memcpy(recording->error, error, sizeof error);
    }
    return status;
}

/* ---- token files ---------------------------------------------------------------------------- */

/* path with .json for its ending .bin, or added */
static char *gptsi_tokens_json(const char *path, const gpts_hooks *hooks)
{
    size_t n = strlen(path);
    char *json = GPTSI_NEW(hooks, char, n + 8);
    if (!json) return NULL;
    if (n > 4 && !strcmp(path + n - 4, ".bin")) n -= 4;
    memcpy(json, path, n);
    memcpy(json + n, ".json", sizeof ".json");
    return json;
}

/* {"vocab_size": V, "tokenizer": "..."}, other keys ignored */
static int gptsi_tokens_parse(gpts_tokens *tokens, const char *text, size_t bytes)
{
    gptsi_json j;
    j.at = text; j.end = text + bytes; j.depth = 1;
    if (!gptsi_json_take(&j, '{')) return 0;
    if (!gptsi_json_take(&j, '}')) {
        do {
            gptsi_json measure;
            char key[16];
            size_t n;
            int64_t size;
            gptsi_json_space(&j);
            measure = j;
            key[0] = 0;
            if (!gptsi_json_string(&measure, NULL, 0, &n)) return 0;
            if (n < sizeof key) gptsi_json_string(&j, key, sizeof key, &n);
            j = measure;
            if (!gptsi_json_take(&j, ':')) return 0;
            if (!strcmp(key, "vocab_size")) {
                if (!gptsi_json_i64(&j, &size) || size < 1 || size > INT32_MAX) return 0;
                tokens->vocab_size = (int32_t)size;
            } else if (!strcmp(key, "tokenizer")) {
                if (!gptsi_json_string(&j, tokens->tokenizer, sizeof tokens->tokenizer - 1, &n) ||
                    strlen(tokens->tokenizer) < n)
                    return 0;
            } else if (!gptsi_json_skip(&j)) return 0;
        } while (gptsi_json_take(&j, ','));
        if (!gptsi_json_take(&j, '}')) return 0;
    }
    gptsi_json_space(&j);
    return j.at == j.end && tokens->vocab_size > 0;
}

GPTS_API void gpts_tokens_free(gpts_tokens *tokens)
{
    gpts_hooks hooks;
    if (!tokens) return;
    hooks = tokens->hooks;
    gptsi_delete(&hooks, tokens->ids);
    memset(tokens, 0, sizeof *tokens);
}

/* llm.c's files have a header of 256 int32: 20240520, 1, count; then the same u16. */
static gpts_status gptsi_tokens_read(gpts_tokens *tokens, const char *path, const char *json,
                                     char **data, char **beside)
{
    const unsigned char *p;
    size_t bytes, n, i, most = 0, at = 0;
    GPTSI_TRY(gpts_read_file(path, data, &bytes, &tokens->hooks, tokens->error));
    p = (const unsigned char *)*data;
    if (bytes > 1024 && gptsi_get32(p) == 20240520 && gptsi_get32(p + 4) == 1 &&
        gptsi_get32(p + 8) == (bytes - 1024) / 2)
        at = 1024;
    if (bytes == at || bytes % 2)
        return gptsi_fail(tokens->error, GPTS_BAD_FILE,
            "'%s' has %llu bytes, expected u16 token ids", gptsi_path_end(path),
            (unsigned long long)bytes);
    n = (bytes - at) / 2;
    tokens->ids = GPTSI_NEW(&tokens->hooks, uint16_t, n);
    if (!tokens->ids) return gptsi_no_memory(tokens->error, "the tokens", n, sizeof(uint16_t));
    for (i = 0; i < n; i++) {
        tokens->ids[i] = (uint16_t)(p[at + 2 * i] | p[at + 2 * i + 1] << 8);
        if (tokens->ids[i] > tokens->ids[most]) most = i;
    }
    tokens->n = n;
#ifndef GPTS_NO_STDIO
    {
        FILE *there = fopen(json, "rb");
        if (!there) { tokens->vocab_size = tokens->ids[most] + 1; return GPTS_OK; }
        fclose(there);
    }
#endif
    GPTSI_TRY(gpts_read_file(json, beside, &bytes, &tokens->hooks, tokens->error));
    if (!gptsi_tokens_parse(tokens, *beside, bytes))
        return gptsi_fail(tokens->error, GPTS_BAD_FILE,
            "'%s' is not {\"vocab_size\": V, \"tokenizer\": \"...\"}", gptsi_path_end(json));
    if (tokens->ids[most] >= tokens->vocab_size)
        return gptsi_fail(tokens->error, GPTS_BAD_FILE,
            "token %llu of '%s' is %u, but '.json' beside it says vocab_size %ld",
            (unsigned long long)most, gptsi_path_end(path), (unsigned)tokens->ids[most],
            (long)tokens->vocab_size);
    return GPTS_OK;
}

GPTS_API gpts_status gpts_tokens_load(gpts_tokens *tokens, const char *path,
                                      const gpts_hooks *hooks)
{
    char error[GPTS_ERROR_BYTES], *json, *data = NULL, *beside = NULL;
    gpts_status status;
    memset(tokens, 0, sizeof *tokens);
    if (hooks) tokens->hooks = *hooks;
    if (!path || !*path)
        return gptsi_fail(tokens->error, GPTS_BAD_ARGUMENT, "no file name was given");
    json = gptsi_tokens_json(path, hooks);
    if (!json) return gptsi_no_memory(tokens->error, "a file's name", strlen(path) + 8, 1);
    status = gptsi_tokens_read(tokens, path, json, &data, &beside);
    gptsi_delete(hooks, data);
    gptsi_delete(hooks, beside);
    gptsi_delete(hooks, json);
    if (status != GPTS_OK) {
        memcpy(error, tokens->error, sizeof error);
        gpts_tokens_free(tokens);
        memcpy(tokens->error, error, sizeof error);
    }
    return status;
}

/* The ids, then the small file beside them. */
GPTS_API gpts_status gpts_tokens_save(gpts_tokens *tokens, const char *path)
{
    const gpts_hooks *hooks = &tokens->hooks;
    char *json;
    unsigned char *raw;
    gptsi_text text;
    size_t i;
    gpts_status status;
    if (!path || !*path)
        return gptsi_fail(tokens->error, GPTS_BAD_ARGUMENT, "no file name was given");
    for (i = 0; i < tokens->n; i++)
        if (tokens->ids[i] >= tokens->vocab_size)
            return gptsi_fail(tokens->error, GPTS_BAD_ARGUMENT,
                "token %llu is %u, but vocab_size is %ld", (unsigned long long)i,
                (unsigned)tokens->ids[i], (long)tokens->vocab_size);
    memset(&text, 0, sizeof text);
    text.hooks = hooks;
    gptsi_text_add(&text, "{\"vocab_size\": ");
    gptsi_text_integer(&text, tokens->vocab_size);
    gptsi_text_add(&text, ", \"tokenizer\": ");
    gptsi_text_quoted(&text, tokens->tokenizer, strlen(tokens->tokenizer));
    gptsi_text_add(&text, "}\n");
    json = gptsi_tokens_json(path, hooks);
    raw = GPTSI_NEW(hooks, unsigned char, gptsi_mul(gptsi_max(tokens->n, 1), 2));
    if (!json || !raw || text.failed)
        status = gptsi_no_memory(tokens->error, "writing the tokens", tokens->n, 2);
    else {
        for (i = 0; i < tokens->n; i++) gptsi_put(raw + 2 * i, tokens->ids[i], 2);
        status = gptsi_replace_file(path, raw, 2 * tokens->n, hooks, tokens->error);
        if (status == GPTS_OK)
            status = gptsi_replace_file(json, text.data, text.n, hooks, tokens->error);
    }
    gptsi_delete(hooks, raw);
    gptsi_delete(hooks, json);
    gptsi_delete(hooks, text.data);
    return status;
}

/* ---- attention-only models and masks --------------------------------------------------- */

GPTS_API gpts_config gpts_config_attention_only(int64_t n_layer, int64_t n_head, int64_t n_embd)
{
    gpts_config c = gpts_config_default();
    c.vocab_size = 4096; c.n_positions = 512; c.n_layer = n_layer; c.n_head = n_head; c.n_embd = n_embd;
    c.n_inner = 0; c.norm = GPTS_NORM_NONE; c.position = GPTS_POSITION_NONE; c.bias = 0; c.tie_word_embeddings = 0;
    return c;
}

GPTS_API gpts_status gpts_mask_intervals(const int32_t *mask, size_t B, size_t T, int32_t *first, int32_t *length, char *error)
{
    size_t b, t, begin, end;
    for (b = 0; b < B; b++, mask += T) {
        for (begin = 0; begin < T && mask[begin] == 0; begin++) { }
        for (end = begin; end < T && mask[end] == 1; end++) { }
        for (t = end; t < T && mask[t] == 0; t++) { }
        if (t < T && mask[t] == 1)
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "attention_mask row %llu has a hole: 0 at position %llu, 1 again at %llu; "
                "the ones must be one interval", (unsigned long long)b, (unsigned long long)end, (unsigned long long)t);
        if (t < T)
            return gptsi_fail(error, GPTS_BAD_ARGUMENT, "attention_mask row %llu, position %llu is %ld, expected 0 or 1",
                (unsigned long long)b, (unsigned long long)t, (long)mask[t]);
        first[b] = (int32_t)(begin < T ? begin : 0);
        length[b] = (int32_t)(end - begin);
    }
    return GPTS_OK;
}

GPTS_API void gpts_labels_to_targets(const int32_t *labels, const int32_t *mask, size_t B, size_t T, int32_t *targets)
{
    size_t b, t, n;
    for (b = 0; b < B; b++) for (t = 0; t < T; t++) {
        n = b * T + t;
        targets[n] = t + 1 < T && labels[n + 1] >= 0 && (!mask || (mask[n] && mask[n + 1])) ? labels[n + 1] : -1;      /* (X4) */
    }
}

/* "input_ids has shape [2,3,4], expected [2,3]" */
static gpts_status gptsi_shape_check(const char *name, size_t rank, const size_t *shape, size_t n, const size_t *expected, char *error)
{
    char text[2][120];
    size_t side, i;
    int same = rank == n;
    for (i = 0; same && i < n; i++) same = shape[i] == expected[i];
    if (same) return GPTS_OK;
    for (side = 0; side < 2; side++) {
        const size_t *sizes = side ? expected : shape;
        size_t r = side ? n : rank, at = 1;
        text[side][0] = '['; text[side][1] = 0;
        for (i = 0; i < r && i < 4; i++)
            at += (size_t)snprintf(text[side] + at, sizeof text[side] - at, i ? ",%llu" : "%llu", (unsigned long long)sizes[i]);
        snprintf(text[side] + at, sizeof text[side] - at, r > 4 ? ",...]" : "]");
    }
    return gptsi_fail(error, GPTS_BAD_SHAPE, "%s has shape %s, expected %s", name, text[0], text[1]);
}

GPTS_API gpts_status gpts_model_forward_masked(gpts_model *m, gpts_masked_call *call)
{
    size_t shape[3], B, T, n;
    int32_t *block, *targets;
    gpts_batch batch;
    gpts_status status = GPTS_OK;
    if (call->input_ids.rank != 2 || !call->input_ids.data)
        return gptsi_fail(m->error, GPTS_BAD_SHAPE, "input_ids has %llu dimensions, expected 2: [B,T]",
                          (unsigned long long)(call->input_ids.data ? call->input_ids.rank : 0));
    B = shape[0] = call->input_ids.shape[0]; T = shape[1] = call->input_ids.shape[1]; shape[2] = (size_t)m->config.n_embd;
    if (call->attention_mask.data)
        GPTSI_TRY(gptsi_shape_check("attention_mask", call->attention_mask.rank, call->attention_mask.shape, 2, shape, m->error));
    if (call->labels.data) GPTSI_TRY(gptsi_shape_check("labels", call->labels.rank, call->labels.shape, 2, shape, m->error));
    if (call->hidden_states.data)
        GPTSI_TRY(gptsi_shape_check("hidden_states", call->hidden_states.rank, call->hidden_states.shape, 3, shape, m->error));
    shape[2] = (size_t)m->config.vocab_size;
    if (call->logits.data) GPTSI_TRY(gptsi_shape_check("logits", call->logits.rank, call->logits.shape, 3, shape, m->error));
    n = gptsi_mul(B, T);
    memset(&batch, 0, sizeof batch);
    batch.tokens = call->input_ids.data; batch.B = B; batch.T = T;
    block = GPTSI_NEW(&m->hooks, int32_t, gptsi_add(n, gptsi_mul(B, 2)));
    if (!block) return gptsi_no_memory(m->error, "a masked batch", n, sizeof *block);
    targets = block + 2 * B;
    if (call->attention_mask.data) {
        status = gpts_mask_intervals(call->attention_mask.data, B, T, block, block + B, m->error);
        batch.first = block; batch.length = block + B;
    }
    if (call->labels.data) {
        gpts_labels_to_targets(call->labels.data, call->attention_mask.data, B, T, targets);
        batch.targets = targets;
    }
    if (status == GPTS_OK) status = gpts_model_forward(m, &batch, call->logits.data, &call->loss);
    if (status == GPTS_OK && call->hidden_states.data)
        status = gptsi_activations_read(m, call->hidden_states.data, m->work->norm, n * (size_t)m->config.n_embd);
    gptsi_delete(&m->hooks, block);
    return status;
}

/* ---- other people's names: settings ------------------------------------------------------
   The keys of a config.json, ours or Llama's (transformers, LlamaConfig); others are ignored. */

enum { GPTSI_SET_V, GPTSI_SET_C, GPTSI_SET_L, GPTSI_SET_H, GPTSI_SET_KV, GPTSI_SET_T, GPTSI_SET_EPSILON, GPTSI_SET_THETA,
       GPTSI_SET_TIE, GPTSI_SET_UNSCALED, GPTSI_SET_POSITION, GPTSI_SET_ACTIVATION, GPTSI_SETTINGS };
static const struct { char key[28]; int what; } gptsi_setting_keys[] = {
    { "vocab_size", GPTSI_SET_V }, { "hidden_size", GPTSI_SET_C }, { "n_embd", GPTSI_SET_C },
    { "num_hidden_layers", GPTSI_SET_L }, { "n_layer", GPTSI_SET_L }, { "num_attention_heads", GPTSI_SET_H }, { "n_head", GPTSI_SET_H },
    { "num_key_value_heads", GPTSI_SET_KV }, { "max_position_embeddings", GPTSI_SET_T }, { "n_positions", GPTSI_SET_T },
    { "layer_norm_epsilon", GPTSI_SET_EPSILON }, { "rope_theta", GPTSI_SET_THETA }, { "tie_word_embeddings", GPTSI_SET_TIE },
    { "unscaled_scores", GPTSI_SET_UNSCALED }, { "position", GPTSI_SET_POSITION }, { "activation_function", GPTSI_SET_ACTIVATION }
};
typedef struct gptsi_settings {
    int64_t whole[GPTSI_SETTINGS];            /* -1: not there                      */
    double epsilon, theta;                    /* 0: not there                       */
    char position[16], activation[16];
} gptsi_settings;

static gpts_status gptsi_settings_read(gptsi_settings *s, const char *text, size_t bytes, const char *label, char *error)
{
    enum { KEYS = (int)(sizeof gptsi_setting_keys / sizeof gptsi_setting_keys[0]) };
    gptsi_json j;
    char key[64];
    size_t n, k;
    int good, flag, what;
    j.at = text; j.end = text + bytes; j.depth = 0;
    good = gptsi_json_take(&j, '{');
    if (good && !gptsi_json_is(&j, '}')) do {
        n = 0;
        if (!gptsi_json_is(&j, '"')) { good = 0; break; }
        {
            gptsi_json name = j;                              /* a key too long for the buffer is none of ours */
            good = gptsi_json_string(&name, NULL, 0, &n);
            if (good && n < sizeof key) good = gptsi_json_string(&j, key, sizeof key - 1, &n);
            else { j = name; n = 0; }
            key[n] = 0;
        }
        if (!good || !gptsi_json_take(&j, ':')) { good = 0; break; }
        for (k = 0, what = -1; k < KEYS; k++) if (!strcmp(key, gptsi_setting_keys[k].key)) what = gptsi_setting_keys[k].what;
        if (what < 0 || gptsi_json_null(&j)) { if (what < 0) good = gptsi_json_skip(&j); }
        else if (what == GPTSI_SET_EPSILON) good = gptsi_json_double(&j, &s->epsilon);
        else if (what == GPTSI_SET_THETA) good = gptsi_json_double(&j, &s->theta);
        else if (what == GPTSI_SET_POSITION || what == GPTSI_SET_ACTIVATION) {
            char *to = what == GPTSI_SET_POSITION ? s->position : s->activation;
            good = gptsi_json_string(&j, to, sizeof s->position - 1, &n);
            to[good ? n : 0] = 0;
        } else if (what == GPTSI_SET_TIE || what == GPTSI_SET_UNSCALED) { good = gptsi_json_bool(&j, &flag); s->whole[what] = flag; }
        else good = gptsi_json_i64(&j, &s->whole[what]) && s->whole[what] >= 0;
        if (!good && what >= 0) return gptsi_fail(error, GPTS_BAD_FILE, "%s: the value of '%s' is not of its kind", label, key);
    } while (good && gptsi_json_take(&j, ','));
    if (!good || !gptsi_json_take(&j, '}')) return gptsi_fail(error, GPTS_BAD_FILE, "%s is not a JSON object of settings", label);
    return GPTS_OK;
}

/* ---- other people's names: roles and maps -------------------------------------------------
   A role is a parameter of the table, or a matrix that is folded into c_attn or c_proj:
     c_attn = [ in_proj(query) q | in_proj(key) k | in_proj(value) v ],   c_proj = o out_proj
   with whatever is absent being the identity.                                              */

enum { GPTSI_ROLE_Q = GPTS_P_COUNT, GPTSI_ROLE_K = GPTSI_ROLE_Q + 2, GPTSI_ROLE_V = GPTSI_ROLE_Q + 4, GPTSI_ROLE_IN = GPTSI_ROLE_Q + 6,
       GPTSI_ROLE_OUT = GPTSI_ROLE_Q + 8, GPTSI_ROLE_O = GPTSI_ROLE_Q + 10, GPTSI_ROLES = GPTSI_ROLE_Q + 12 };   /* + 1: the bias */
static const char gptsi_role_names[][32] = {
#define GPTSI_ROW(kind, name, rows, columns, when, decay, start) name,
    GPTS_PARAMETER_TABLE(GPTSI_ROW)
#undef GPTSI_ROW
    "h.%d.attn.q.weight", "h.%d.attn.q.bias", "h.%d.attn.k.weight", "h.%d.attn.k.bias", "h.%d.attn.v.weight", "h.%d.attn.v.bias",
    "h.%d.attn.in_proj.weight", "h.%d.attn.in_proj.bias", "h.%d.attn.out_proj.weight", "h.%d.attn.out_proj.bias",
    "h.%d.attn.o.weight", "h.%d.attn.o.bias"
};
static int gptsi_role_in_layer(int role) { return gptsi_role_names[role][1] == '.'; }

/* What is known without a map.  The order matters: the first that fits decides. */
static const struct { char from[40]; int role; } gptsi_known_names[] = {
    { "{*}embed_tokens.weight", GPTS_P_WTE }, { "{*}embed_positions.weight", GPTS_P_WPE }, { "{*}lm_head.weight", GPTS_P_LM_HEAD },
    { "{*}layers.{i}.{*}q_proj.weight", GPTSI_ROLE_Q }, { "{*}layers.{i}.{*}q_proj.bias", GPTSI_ROLE_Q + 1 },
    { "{*}layers.{i}.{*}k_proj.weight", GPTSI_ROLE_K }, { "{*}layers.{i}.{*}k_proj.bias", GPTSI_ROLE_K + 1 },
    { "{*}layers.{i}.{*}v_proj.weight", GPTSI_ROLE_V }, { "{*}layers.{i}.{*}v_proj.bias", GPTSI_ROLE_V + 1 },
    { "{*}layers.{i}.{*}in_proj_weight", GPTSI_ROLE_IN }, { "{*}layers.{i}.{*}in_proj_bias", GPTSI_ROLE_IN + 1 },
    { "{*}layers.{i}.{*}out_proj.weight", GPTSI_ROLE_OUT }, { "{*}layers.{i}.{*}out_proj.bias", GPTSI_ROLE_OUT + 1 },
    { "{*}layers.{i}.{*}o_proj.weight", GPTSI_ROLE_O }, { "{*}layers.{i}.{*}o_proj.bias", GPTSI_ROLE_O + 1 }
};

/* name fits pattern; *layer = the number at {i}, UINT64_MAX when it has more than 18 digits.
   A star gives back characters only to the last one, so the time is at most the product.   */
static int gptsi_pattern_fits(const char *pattern, const char *name, uint64_t *layer)
{
    const char *star = NULL, *again = NULL, *p = pattern, *s = name;
    *layer = 0;
    for (;;) {
        if (!strncmp(p, "{*}", 3)) { star = p += 3; again = s; continue; }
        if (!strncmp(p, "{i}", 3) && *s >= '0' && *s <= '9' && (s == name || s[-1] < '0' || s[-1] > '9')) {
            size_t digits;
            for (digits = 0, *layer = 0; *s >= '0' && *s <= '9'; s++, digits++) if (digits < 18) *layer = *layer * 10 + (uint64_t)(*s - '0');
            if (digits > 18) *layer = UINT64_MAX;
            p += 3;
            continue;
        }
        if (!*p && !*s) return 1;
        if (*p && *p == *s && strncmp(p, "{i}", 3)) { p++; s++; continue; }
        if (!star || !*again) return 0;
        p = star; s = ++again;
    }
}

typedef struct gptsi_rule { const char *from; int role, orientation, used; } gptsi_rule;    /* role -1: ignore; 0 as usual, 1 [in,out], 2 [out,in] */
typedef struct gptsi_span { const char *at; size_t n; } gptsi_span;
typedef struct gptsi_names {                  /* a map, read */
    gptsi_rule *rules; size_t n;
    char *pool;                               /* what the names point into */
    gptsi_span config, probe;                 /* JSON inside the map's text */
    char *text;
    const char *label;
} gptsi_names;

static void gptsi_names_free(gptsi_names *names, const gpts_hooks *hooks)
{
    gptsi_delete(hooks, names->rules); gptsi_delete(hooks, names->pool); gptsi_delete(hooks, names->text);
    memset(names, 0, sizeof *names);
}

/* "h.{i}.attn.q.weight [in,out]" -> role and orientation; 0: there is no such name here */
static int gptsi_role_of(const char *text, int *role, int *orientation)
{
    char name[GPTS_NAME_BYTES];
    const char *bracket = strstr(text, " [");
    size_t n = bracket ? (size_t)(bracket - text) : strlen(text);
    char *hole;
    if (n >= sizeof name) return 0;
    memcpy(name, text, n);
    name[n] = 0;
    if ((hole = strstr(name, "{i}")) != NULL) { hole[0] = '%'; hole[1] = 'd'; memmove(hole + 2, hole + 3, strlen(hole + 3) + 1); }
    *orientation = !bracket ? 0 : !strcmp(bracket, " [in,out]") ? 1 : !strcmp(bracket, " [out,in]") ? 2 : -1;
    for (*role = 0; *role < GPTSI_ROLES; ++*role)
        if (!strcmp(name, gptsi_role_names[*role])) break;
    return *role < GPTSI_ROLES && *orientation >= 0 && !(*role >= GPTS_P_ALPHA && *role <= GPTS_P_APPROX_PROJ_B);
}

static int gptsi_rule_before(const void *context, size_t a, size_t b)
{
    const gptsi_rule *rules = (const gptsi_rule *)context;
    return strcmp(rules[a].from, rules[b].from) < 0;
}

static gpts_status gptsi_names_read(gptsi_names *names, size_t bytes, const gpts_hooks *hooks, char *error)
{
    gptsi_json j;
    size_t used = 0, room = 0, length, i, *order;
    int good;
    names->pool = GPTSI_NEW(hooks, char, gptsi_add(bytes, 1));
    if (!names->pool) return gptsi_no_memory(error, "a map of names", bytes, 1);
    j.at = names->text; j.end = names->text + bytes; j.depth = 0;
    good = gptsi_json_take(&j, '{');
    if (good && !gptsi_json_is(&j, '}')) do {
        const char *from = names->pool + used, *to, *start;
        gptsi_rule rule;
        memset(&rule, 0, sizeof rule);
        good = gptsi_json_string(&j, names->pool + used, bytes - used - 1, &length) && gptsi_json_take(&j, ':');
        if (!good) break;
        names->pool[used + length] = 0;
        used += length + 1;
        gptsi_json_space(&j);
        start = j.at;
        if (!strcmp(from, "@config") || !strcmp(from, "@probe")) {
            gptsi_span *span = from[1] == 'c' ? &names->config : &names->probe;
            good = gptsi_json_is(&j, '{') && gptsi_json_skip(&j);
            if (good && span->at) return gptsi_fail(error, GPTS_BAD_FILE, "%s: '%s' is there twice", names->label, from);
            span->at = start; span->n = (size_t)(j.at - start);
            continue;
        }
        rule.from = from; rule.role = -1;
        if (!gptsi_json_null(&j)) {
            to = names->pool + used;
            good = gptsi_json_string(&j, names->pool + used, bytes - used - 1, &length);
            if (!good) break;
            names->pool[used + length] = 0;
            used += length + 1;
            if (!gptsi_role_of(to, &rule.role, &rule.orientation))
                return gptsi_fail(error, GPTS_BAD_FILE, "%s: '%s' is to become '%s', and no parameter has that name", names->label,
                                  gptsi_quote(from, strlen(from)).text, gptsi_quote(to, strlen(to)).text);
            if (gptsi_role_in_layer(rule.role) != (strstr(from, "{i}") != NULL))
                return gptsi_fail(error, GPTS_BAD_FILE, "%s: '%s' -> '%s': {i} must stand on both sides or on none", names->label,
                                  gptsi_quote(from, strlen(from)).text, gptsi_quote(to, strlen(to)).text);
        }
        if (!gptsi_grow(hooks, (void **)(void *)&names->rules, names->n, &room, sizeof rule))
            return gptsi_no_memory(error, "a map of names", names->n + 1, sizeof rule);
        names->rules[names->n++] = rule;
    } while (good && gptsi_json_take(&j, ','));
    good = good && gptsi_json_take(&j, '}');
    gptsi_json_space(&j);
    if (!good || j.at != j.end)
        return gptsi_fail(error, GPTS_BAD_FILE, "%s is not a map: a JSON object of \"name there\": \"name here\" (near byte %llu)",
                          names->label, (unsigned long long)(j.at - names->text));
    order = GPTSI_NEW(hooks, size_t, names->n + 1);
    if (!order) return gptsi_no_memory(error, "a map of names", names->n, sizeof *order);
    gptsi_sort(order, names->n, gptsi_rule_before, names->rules);
    for (i = 1; i < names->n && strcmp(names->rules[order[i]].from, names->rules[order[i - 1]].from); i++) { }
    if (i < names->n)
        gptsi_fail(error, GPTS_BAD_FILE, "%s: '%s' is mapped twice", names->label,
                   gptsi_quote(names->rules[order[i]].from, strlen(names->rules[order[i]].from)).text);
    gptsi_delete(hooks, order);
    return i < names->n ? GPTS_BAD_FILE : GPTS_OK;
}

/* ---- other people's names: what a file's tensors become --------------------------------- */

typedef struct gptsi_found { int role, orientation; size_t layer; } gptsi_found;     /* role -1: ignored */

typedef struct gptsi_import {
    gpts_file *file;
    gptsi_names names;
    gptsi_settings settings;
    gptsi_found *found;                       /* [n_tensors]                          */
    size_t *slot;                             /* [(L+1) ROLES] tensor + 1; row 0: outside the layers */
    size_t L, C, V;
    gpts_config config;
    const gpts_hooks *hooks;
    char *error;
} gptsi_import;

static const gpts_file_tensor *gptsi_import_tensor(const gptsi_import *in, size_t row, int role)
{
    size_t at = in->slot ? in->slot[row * GPTSI_ROLES + (size_t)role] : 0;        /* no slots: no file */
    return at ? &in->file->tensors[at - 1] : NULL;
}
static int gptsi_import_any(const gptsi_import *in, int role)           /* in some layer, or outside */
{
    size_t row;
    for (row = 0; row <= in->L; row++) if (in->slot[row * GPTSI_ROLES + (size_t)role]) return 1;
    return 0;
}
static gpts_status gptsi_import_fault(const gptsi_import *in, gpts_status status, size_t tensor, const char *what)
{
    const gpts_file_tensor *t = &in->file->tensors[tensor];
    return gptsi_fail(in->error, status, "%s: tensor '%s' %s", in->file->source->label, gptsi_quote(t->name, t->name_bytes).text, what);
}

/* Every tensor gets its role by the map, then by what is known; each role is filled once. */
static gpts_status gptsi_import_match(gptsi_import *in)
{
    enum { KNOWN = (int)(sizeof gptsi_known_names / sizeof gptsi_known_names[0]), MOST_LAYERS = 65536 };
    size_t n = in->file->n_tensors, i, r, rows;
    uint64_t layer;
    in->found = GPTSI_NEW(in->hooks, gptsi_found, n + 1);
    if (!in->found) return gptsi_no_memory(in->error, "the table of names", n, sizeof *in->found);
    for (i = 0; i < n; i++) {
        const gpts_file_tensor *t = &in->file->tensors[i];
        gptsi_found *f = &in->found[i];
        f->role = -2; layer = 0;
        if (t->name_bytes != strlen(t->name)) return gptsi_import_fault(in, GPTS_BAD_FILE, i, "has a name with a zero byte in it");
        for (r = 0; r < in->names.n && f->role == -2; r++)
            if (gptsi_pattern_fits(in->names.rules[r].from, t->name, &layer)) {
                f->role = in->names.rules[r].role; f->orientation = in->names.rules[r].orientation;
                in->names.rules[r].used = 1;
            }
        for (r = 0; r < KNOWN && f->role == -2; r++)
            if (gptsi_pattern_fits(gptsi_known_names[r].from, t->name, &layer)) f->role = gptsi_known_names[r].role;
        if (f->role == -2)
            return gptsi_import_fault(in, GPTS_BAD_FILE, i, "has a name that is not known here: a map must say what it is (null: ignore it)");
        if (f->role >= 0 && layer >= MOST_LAYERS) return gptsi_import_fault(in, GPTS_BAD_FILE, i, "has a layer's number beyond 65535");
        f->layer = f->role >= 0 && gptsi_role_in_layer(f->role) ? (size_t)layer : 0;
        if (f->role >= 0 && gptsi_role_in_layer(f->role) && f->layer + 1 > in->L) in->L = f->layer + 1;
    }
    for (r = 0; r < in->names.n; r++)
        if (!in->names.rules[r].used)
            return gptsi_fail(in->error, GPTS_NOT_FOUND, "%s names '%s', but no tensor of %s fits that", in->names.label,
                              gptsi_quote(in->names.rules[r].from, strlen(in->names.rules[r].from)).text, in->file->source->label);
    if (in->L > n) return gptsi_fail(in->error, GPTS_BAD_FILE, "%s: layers are missing: the last has number %llu, and there are only %llu tensors",
                                     in->file->source->label, (unsigned long long)(in->L - 1), (unsigned long long)n);
    rows = in->L + 1;
    in->slot = GPTSI_NEW(in->hooks, size_t, gptsi_mul(rows, GPTSI_ROLES));
    if (!in->slot) return gptsi_no_memory(in->error, "the table of names", rows * GPTSI_ROLES, sizeof *in->slot);
    for (i = 0; i < n; i++) {
        const gptsi_found *f = &in->found[i];
        size_t *slot;
        if (f->role < 0) continue;
        slot = &in->slot[(gptsi_role_in_layer(f->role) ? f->layer + 1 : 0) * GPTSI_ROLES + (size_t)f->role];
        if (*slot) {
            gptsi_quoted a = gptsi_quote(in->file->tensors[*slot - 1].name, in->file->tensors[*slot - 1].name_bytes);
            char what[200];
            snprintf(what, sizeof what, "and '%s' are mapped to the same parameter", a.text);
            return gptsi_import_fault(in, GPTS_BAD_FILE, i, what);
        }
        *slot = i + 1;
    }
    return GPTS_OK;
}

/* the file's number against the settings' */
static gpts_status gptsi_import_agree(const gptsi_import *in, const char *what, size_t file, int64_t settings)
{
    if (settings < 0 || (uint64_t)settings == (uint64_t)file) return GPTS_OK;
    return gptsi_fail(in->error, GPTS_MISMATCH, "%s has %s %llu, its settings say %lld", in->file->source->label, what,
                      (unsigned long long)file, (long long)settings);
}

/* Layer l has one reading of its attention: whole, or in parts that are all there. */
static gpts_status gptsi_import_complete(const gptsi_import *in, size_t l)
{
    static const char names[][40] = { "queries (q_proj)", "keys (k_proj)", "values (v_proj)", "attention's output matrix (out_proj)" };
    int there[3], parts = 0, k, packed = gptsi_import_tensor(in, l + 1, GPTSI_ROLE_IN) != NULL, lacks = -1, twice = -1;
    int whole = gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_W) || gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_B);
    int out = gptsi_import_tensor(in, l + 1, GPTSI_ROLE_OUT) || gptsi_import_tensor(in, l + 1, GPTSI_ROLE_O);
    int whole_out = gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_PROJ_W) || gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_PROJ_B);
    for (k = 0; k < 3; k++) parts += there[k] = gptsi_import_tensor(in, l + 1, GPTSI_ROLE_Q + 2 * k) != NULL;
    if (out == whole_out) { if (out) twice = 3; else lacks = 3; }
    for (k = 2; k >= 0; k--) {
        if (whole && (there[k] || packed)) twice = k;
        if (!whole && !there[k] && (parts || !packed)) lacks = k;
    }
    if (lacks < 0 && twice < 0) return GPTS_OK;
    return gptsi_fail(in->error, GPTS_NOT_FOUND, "%s: layer %llu %s its %s", in->file->source->label, (unsigned long long)l,
                      lacks >= 0 ? "lacks" : "has more than one of", names[lacks >= 0 ? lacks : twice]);
}

static gpts_status gptsi_import_config(gptsi_import *in, const gpts_mapping *mapping)
{
    const char *label = in->file->source->label;
    const gptsi_settings *s = &in->settings;
    const gpts_file_tensor *wte = gptsi_import_tensor(in, 0, GPTS_P_WTE), *t;
    gpts_config *c = &in->config;
    size_t l;
    int role;
    if (!wte) return gptsi_fail(in->error, GPTS_NOT_FOUND, "%s has no embed_tokens.weight, and no map names one", label);
    if (wte->rank != 2 || !wte->count || wte->shape[0] > INT32_MAX || wte->shape[1] > INT32_MAX)
        return gptsi_import_fault(in, GPTS_BAD_SHAPE, (size_t)(wte - in->file->tensors), "is not a matrix [vocabulary,width]");
    in->V = (size_t)wte->shape[0]; in->C = (size_t)wte->shape[1];
    GPTSI_TRY(gptsi_import_agree(in, "a vocabulary of", in->V, s->whole[GPTSI_SET_V]));
    GPTSI_TRY(gptsi_import_agree(in, "a width of", in->C, s->whole[GPTSI_SET_C]));
    GPTSI_TRY(gptsi_import_agree(in, "a number of layers of", in->L, s->whole[GPTSI_SET_L]));
    for (l = 0; l < in->L; l++) GPTSI_TRY(gptsi_import_complete(in, l));
    *c = gpts_config_attention_only((int64_t)in->L, mapping && mapping->n_head ? mapping->n_head : s->whole[GPTSI_SET_H], (int64_t)in->C);
    c->vocab_size = (int64_t)in->V;
    if (c->n_head < 0 && in->L) return gptsi_fail(in->error, GPTS_NOT_FOUND, "%s: the number of heads is not known: a config.json beside it, "
                                                  "the map's @config or the caller must give it (num_attention_heads)", label);
    if (c->n_head < 0) c->n_head = 1;
    if (s->whole[GPTSI_SET_KV] >= 0 && s->whole[GPTSI_SET_KV] != c->n_head)
        return gptsi_fail(in->error, GPTS_UNSUPPORTED, "%s: %lld heads share %lld key and value heads, which is not supported", label,
                          (long long)c->n_head, (long long)s->whole[GPTSI_SET_KV]);
    if (s->whole[GPTSI_SET_T] > 0) c->n_positions = s->whole[GPTSI_SET_T];
    if ((t = gptsi_import_tensor(in, 0, GPTS_P_WPE)) != NULL) {
        c->position = GPTS_POSITION_LEARNED;
        if (t->rank == 2 && t->shape[0] && t->shape[0] <= INT32_MAX) c->n_positions = (int64_t)t->shape[0];
    } else if (!strcmp(s->position, "rope")) c->position = GPTS_POSITION_ROPE;
    if (s->theta > 0) c->rope_theta = s->theta;
    if (s->epsilon > 0) c->layer_norm_epsilon = s->epsilon;
    if (!strcmp(s->activation, "gelu")) c->activation = GPTS_GELU_ERF;
    if (!strcmp(s->activation, "relu")) c->activation = GPTS_RELU;
    c->unscaled_scores = s->whole[GPTSI_SET_UNSCALED] > 0 || (mapping && mapping->unscaled_scores);
    if (gptsi_import_any(in, GPTS_P_LN_F_W)) c->norm = GPTS_NORM_LAYER;
    for (role = 0; role < GPTSI_ROLES; role++)
        if ((role >= GPTSI_ROLE_Q ? (role - GPTSI_ROLE_Q) % 2 == 1 : strstr(gptsi_role_names[role], ".bias") != NULL) && gptsi_import_any(in, role))
            c->bias = 1;
    for (l = 1; l <= in->L; l++)
        if ((t = gptsi_import_tensor(in, l, GPTS_P_MLP_FC_W)) != NULL && t->rank == 2 && t->count / (in->C ? in->C : 1) <= INT32_MAX)
            c->n_inner = (int64_t)(t->count / in->C);
    c->tie_word_embeddings = !gptsi_import_tensor(in, 0, GPTS_P_LM_HEAD);
    if (c->tie_word_embeddings && !s->whole[GPTSI_SET_TIE])
        return gptsi_fail(in->error, GPTS_NOT_FOUND, "%s has no lm_head.weight, and its settings do not tie it to the embeddings", label);
    return gptsi_config_check(c, in->error);
}

/* ---- other people's names: weights ---------------------------------------------------------- */

enum { GPTSI_FLIP_QKV = 1, GPTSI_FLIP_OUT = 2, GPTSI_FLIP_SCALE = 4, GPTSI_FLIPS = 8 };      /* other readings of the same file */

/* Linear maps in parts and lm_head are [out,in] unless the map says otherwise, all else is [in,out]. */
static int gptsi_found_transposed(const gptsi_found *f)
{
    int usual = f->role >= GPTSI_ROLE_Q || f->role == GPTS_P_LM_HEAD ? 2 : 1;
    return f->orientation && f->orientation != usual;
}

/* to [rows,columns] = the tensor of a role, which the file may hold transposed; flip: read a square one the other way */
static gpts_status gptsi_import_matrix(const gptsi_import *in, size_t row, int role, size_t rows, size_t columns, int flip, gpts_real *to)
{
    size_t at = in->slot[row * GPTSI_ROLES + (size_t)role] - 1, i, j;
    const gpts_file_tensor *t = &in->file->tensors[at];
    int transposed = gptsi_found_transposed(&in->found[at]);
    size_t n = transposed ? columns : rows, m = transposed ? rows : columns;
    gpts_real *x;
    gpts_status status;
    if (t->rank != 2 || t->shape[0] != n || t->shape[1] != m) {
        char what[200];
        snprintf(what, sizeof what, "has %llu dimensions [%llu,%llu..], expected [%llu,%llu]%s", (unsigned long long)t->rank,
                 (unsigned long long)(t->rank > 0 ? t->shape[0] : 0), (unsigned long long)(t->rank > 1 ? t->shape[1] : 0),
                 (unsigned long long)n, (unsigned long long)m,
                 t->rank == 2 && t->shape[0] == m && t->shape[1] == n ? ": a map can say that it is the other way round" : "");
        return gptsi_import_fault(in, GPTS_BAD_SHAPE, at, what);
    }
    x = GPTSI_NEW(in->hooks, gpts_real, gptsi_mul(rows, columns));
    if (!x) return gptsi_no_memory(in->error, "a matrix", gptsi_mul(rows, columns), sizeof *x);
    status = gpts_file_read(in->file, t, 0, rows * columns, x);
    if (status != GPTS_OK) memcpy(in->error, in->file->error, GPTS_ERROR_BYTES);
    else if (transposed != (flip != 0)) { for (i = 0; i < rows; i++) for (j = 0; j < columns; j++) to[i * columns + j] = x[j * rows + i]; }
    else memcpy(to, x, rows * columns * sizeof *x);
    gptsi_delete(in->hooks, x);
    return status;
}
static gpts_status gptsi_import_vector(const gptsi_import *in, size_t row, int role, size_t n, gpts_real *to)
{
    size_t at = in->slot[row * GPTSI_ROLES + (size_t)role] - 1;
    const gpts_file_tensor *t = &in->file->tensors[at];
    gpts_status status;
    if (t->rank != 1 || t->shape[0] != n) {
        char what[120];
        snprintf(what, sizeof what, "has %llu dimensions and %llu values, expected [%llu]", (unsigned long long)t->rank,
                 (unsigned long long)t->count, (unsigned long long)n);
        return gptsi_import_fault(in, GPTS_BAD_SHAPE, at, what);
    }
    status = gpts_file_read(in->file, t, 0, n, to);
    if (status != GPTS_OK) memcpy(in->error, in->file->error, GPTS_ERROR_BYTES);
    return status;
}

/* a [C,C+1] := b a: of two linear maps one after the other one, rows outputs, the last column the bias */
static void gptsi_fold(const gpts_real *b, gpts_real *a, size_t C, double *row, gpts_real *scratch)
{
    size_t i, j, k, w = C + 1;
    for (i = 0; i < C; i++) {
        for (j = 0; j < C; j++) row[j] = 0;
        row[C] = (double)b[i * w + C];
        for (k = 0; k < C; k++) {
            double x = (double)b[i * w + k];
            for (j = 0; j < w; j++) row[j] += x * (double)a[k * w + j];
        }
        for (j = 0; j < w; j++) scratch[i * w + j] = (gpts_real)row[j];
    }
    memcpy(a, scratch, C * w * sizeof *a);
}

/* Matrix and bias of a role, part `part` of `parts` stacked ones, as [C,C+1]; the identity where it is absent. */
static gpts_status gptsi_import_affine(const gptsi_import *in, size_t row, int role, size_t part, size_t parts, int flip,
                                       gpts_real *to, gpts_real *room)
{
    size_t C = in->C, w = C + 1, i;
    for (i = 0; i < C * w; i++) to[i] = (gpts_real)(i / w == i % w);
    if (in->slot[row * GPTSI_ROLES + (size_t)role]) {
        GPTSI_TRY(gptsi_import_matrix(in, row, role, parts * C, C, flip, room));
        for (i = 0; i < C; i++) memcpy(to + i * w, room + (part * C + i) * C, C * sizeof *to);
    }
    if (in->slot[row * GPTSI_ROLES + (size_t)role + 1]) {
        GPTSI_TRY(gptsi_import_vector(in, row, role + 1, parts * C, room));
        for (i = 0; i < C; i++) to[i * w + C] = room[part * C + i];
    }
    return GPTS_OK;
}

/* One layer's c_attn and c_proj where they come in parts.  `room` holds [3C,C] and three [C,C+1]. */
static gpts_status gptsi_import_attention(const gptsi_import *in, gpts_model *m, size_t l, int flips, gpts_real *room, double *row)
{
    size_t C = in->C, w = C + 1, part, i, j;
    gpts_real *a = room + 3 * C * C, *b = a + C * w, *scratch = b + C * w;
    gpts_real *attn = gptsi_weight(m, l, GPTS_P_ATTN_W), *attn_b = gptsi_weight(m, l, GPTS_P_ATTN_B);
    gpts_real *proj = gptsi_weight(m, l, GPTS_P_ATTN_PROJ_W), *proj_b = gptsi_weight(m, l, GPTS_P_ATTN_PROJ_B);
    for (part = 0; part < 3 && !gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_W); part++) {
        GPTSI_TRY(gptsi_import_affine(in, l + 1, GPTSI_ROLE_Q + 2 * (int)part, 0, 1, flips & GPTSI_FLIP_QKV, a, room));
        if (gptsi_import_tensor(in, l + 1, GPTSI_ROLE_IN)) {
            GPTSI_TRY(gptsi_import_affine(in, l + 1, GPTSI_ROLE_IN, part, 3, 0, b, room));
            if (gptsi_import_tensor(in, l + 1, GPTSI_ROLE_Q)) gptsi_fold(b, a, C, row, scratch);
            else memcpy(a, b, C * w * sizeof *a);
        }
        for (i = 0; i < C; i++) for (j = 0; j < C; j++) attn[j * 3 * C + part * C + i] = a[i * w + j];
        for (i = 0; attn_b && i < C; i++) attn_b[part * C + i] = a[i * w + C];
    }
    if (!gptsi_import_tensor(in, l + 1, GPTS_P_ATTN_PROJ_W)) {
        GPTSI_TRY(gptsi_import_affine(in, l + 1, GPTSI_ROLE_OUT, 0, 1, flips & GPTSI_FLIP_OUT, a, room));
        if (gptsi_import_tensor(in, l + 1, GPTSI_ROLE_O)) {
            GPTSI_TRY(gptsi_import_affine(in, l + 1, GPTSI_ROLE_O, 0, 1, flips & GPTSI_FLIP_OUT, b, room));
            if (gptsi_import_tensor(in, l + 1, GPTSI_ROLE_OUT)) gptsi_fold(b, a, C, row, scratch);
            else memcpy(a, b, C * w * sizeof *a);
        }
        for (i = 0; i < C; i++) for (j = 0; j < C; j++) proj[j * C + i] = a[i * w + j];
        for (i = 0; proj_b && i < C; i++) proj_b[i] = a[i * w + C];
    }
    return GPTS_OK;
}

/* All weights of m, read as `flips` says. */
static gpts_status gptsi_import_weights(const gptsi_import *in, gpts_model *m, int flips)
{
    size_t C = in->C, i, l, cells = gptsi_mul(gptsi_mul(6, C), gptsi_add(C, 1));
    gpts_real *room = GPTSI_NEW(in->hooks, gpts_real, cells);
    double *row = GPTSI_NEW(in->hooks, double, C + 1);
    gpts_status status = room && row ? GPTS_OK : gptsi_no_memory(in->error, "the import's matrices", cells, sizeof *room);
    m->config.unscaled_scores = (in->config.unscaled_scores != 0) != ((flips & GPTSI_FLIP_SCALE) != 0);
    for (i = 0; i < m->n_tensors && status == GPTS_OK; i++) {
        const gpts_tensor *t = &m->tensors[i];
        size_t at = t->layer < 0 ? 0 : (size_t)t->layer + 1;
        int flip = t->kind == GPTS_P_ATTN_PROJ_W && (flips & GPTSI_FLIP_OUT);
        if (gptsi_import_tensor(in, at, (int)t->kind))
            status = t->rank == 1 ? gptsi_import_vector(in, at, (int)t->kind, t->size, t->data)
                                  : gptsi_import_matrix(in, at, (int)t->kind, t->rows, t->columns, flip, t->data);
        else if (!(t->kind >= GPTS_P_ATTN_W && t->kind <= GPTS_P_ATTN_PROJ_B) && !strstr(t->name, ".bias"))
            status = gptsi_fail(in->error, GPTS_NOT_FOUND, "%s: nothing is mapped to '%s'", in->file->source->label, t->name);
    }
    for (l = 0; l < in->L && status == GPTS_OK; l++) status = gptsi_import_attention(in, m, l, flips, room, row);
    gptsi_delete(in->hooks, row);
    gptsi_delete(in->hooks, room);
    return status;
}

/* What is mapped to a parameter that the model does not have would be lost without a word. */
static gpts_status gptsi_import_all_used(const gptsi_import *in, const gpts_model *m)
{
    size_t i, k;
    for (i = 0; i < in->file->n_tensors; i++) {
        const gptsi_found *f = &in->found[i];
        char what[120];
        if (f->role < 0 || f->role >= GPTS_P_COUNT) continue;
        for (k = 0; k < m->n_tensors; k++)
            if ((int)m->tensors[k].kind == f->role && m->tensors[k].layer == (gptsi_role_in_layer(f->role) ? (int32_t)f->layer : -1)) break;
        if (k < m->n_tensors) continue;
        snprintf(what, sizeof what, "is mapped to '%s', which a model of these settings does not have", gptsi_role_names[f->role]);
        return gptsi_import_fault(in, GPTS_BAD_FILE, i, what);
    }
    return GPTS_OK;
}

/* ---- other people's names: numbers that tell whether the weights were read right ------------- */

enum { GPTSI_PROBE = 64 };
typedef struct gptsi_probe { int32_t tokens[GPTSI_PROBE], ids[GPTSI_PROBE]; double logits[GPTSI_PROBE]; size_t n, m; } gptsi_probe;

static gpts_status gptsi_probe_read(gptsi_probe *p, gptsi_span text, int64_t V, char *error)
{
    gptsi_json j;
    char key[16];
    size_t length, n_logits = 0, *count;
    int good, part;
    int64_t id = 0;
    memset(p, 0, sizeof *p);
    j.at = text.at; j.end = text.at + text.n; j.depth = 0;
    good = gptsi_json_take(&j, '{');
    do {
        good = good && gptsi_json_string(&j, key, sizeof key - 1, &length) && gptsi_json_take(&j, ':') && gptsi_json_take(&j, '[');
        if (!good) break;
        key[length] = 0;
        part = !strcmp(key, "tokens") ? 0 : !strcmp(key, "ids") ? 1 : !strcmp(key, "logits") ? 2 : 3;
        count = part == 0 ? &p->n : part == 1 ? &p->m : &n_logits;
        good = part < 3 && !*count;
        do {
            good = good && *count < GPTSI_PROBE;
            if (good && part == 2) good = gptsi_json_double(&j, &p->logits[*count]);
            else if (good) {
                good = gptsi_json_i64(&j, &id) && id >= 0 && id < V;
                if (good) (part ? p->ids : p->tokens)[*count] = (int32_t)id;
            }
            if (good) ++*count;
        } while (good && gptsi_json_take(&j, ','));
        good = good && gptsi_json_take(&j, ']');
    } while (good && gptsi_json_take(&j, ','));
    good = good && gptsi_json_take(&j, '}') && p->n && p->m && p->m == n_logits;
    if (good) return GPTS_OK;
    return gptsi_fail(error, GPTS_BAD_FILE, "a probe is {\"tokens\": [...], \"ids\": [...], \"logits\": [...]} of at most %d numbers each, "
                      "ids below %lld, as many logits as ids", (int)GPTSI_PROBE, (long long)V);
}

/* *far = largest difference of the probe's logits from the model's, over their root mean square */
static gpts_status gptsi_probe_measure(gpts_model *m, const gptsi_probe *p, double *far)
{
    size_t V = (size_t)m->config.vocab_size, k;
    gpts_real *logits = GPTSI_NEW(&m->hooks, gpts_real, gptsi_mul(p->n, V));
    gpts_batch batch;
    gpts_status status;
    double worst = 0, square = 0;
    if (!logits) return gptsi_no_memory(m->error, "a probe's logits", p->n * V, sizeof *logits);
    memset(&batch, 0, sizeof batch);
    batch.tokens = p->tokens; batch.B = 1; batch.T = p->n;
    status = gpts_model_forward(m, &batch, logits, NULL);
    for (k = 0; k < p->m && status == GPTS_OK; k++) {
        double x = (double)logits[(p->n - 1) * V + (size_t)p->ids[k]], d = fabs(x - p->logits[k]);
        if (!(d <= worst)) worst = d;
        square += p->logits[k] * p->logits[k];
    }
    *far = worst / (sqrt(square / (double)p->m) + 1e-30);
    gptsi_delete(&m->hooks, logits);
    return status;
}

/* *loss of the text at hand */
static gpts_status gptsi_text_measure(gpts_model *m, const int32_t *tokens, size_t n, double *loss)
{
    size_t T = gptsi_min(gptsi_min(n - 1, 256), (size_t)m->config.n_positions), B = gptsi_min((n - 1) / T, 16), b;
    int32_t *rows = GPTSI_NEW(&m->hooks, int32_t, 2 * B * T);
    gpts_batch batch;
    gpts_status status;
    if (!rows) return gptsi_no_memory(m->error, "a batch of text", B * T, sizeof *rows);
    for (b = 0; b < B; b++) {
        memcpy(rows + b * T, tokens + b * T, T * sizeof *rows);
        memcpy(rows + (B + b) * T, tokens + b * T + 1, T * sizeof *rows);
    }
    memset(&batch, 0, sizeof batch);
    batch.tokens = rows; batch.targets = rows + B * T; batch.B = B; batch.T = T;
    status = gpts_model_forward(m, &batch, NULL, loss);
    gptsi_delete(&m->hooks, rows);
    return status;
}

static const char gptsi_flip_words[GPTSI_FLIPS][60] = {
    "as they are", "q, k and v transposed", "the output matrices transposed", "all square matrices transposed",
    "the scores' scaling switched", "q, k and v transposed and the scaling switched", "the output matrices transposed and the scaling switched",
    "all square matrices transposed and the scaling switched" };

/* The reading as mapped must give the probe's logits, and no other reading may suit the text better. */
static gpts_status gptsi_import_verify(const gptsi_import *in, gpts_model *m, gptsi_span probe_text, const int32_t *tokens, size_t n)
{
    gptsi_probe probe;
    double value, limit = 1e-3, best = HUGE_VAL, mapped = 0;
    int flips, found = 0, pass;
    size_t i;
    for (i = 0; i < in->file->n_tensors; i++) if (in->file->tensors[i].dtype == GPTS_F16 || in->file->tensors[i].dtype == GPTS_BF16) limit = 5e-2;
    if (tokens && n < 2)
        return gptsi_fail(in->error, GPTS_BAD_ARGUMENT, "the text at hand has %llu tokens, at least 2 are needed", (unsigned long long)n);
    if (probe_text.at) GPTSI_TRY(gptsi_probe_read(&probe, probe_text, m->config.vocab_size, in->error));
    for (pass = 0; pass < 2; pass++) {                            /* the probe, then the text */
        if (pass ? !tokens : !probe_text.at) continue;
        for (flips = 0, best = HUGE_VAL, found = 0; flips < GPTSI_FLIPS; flips++) {
            gpts_status status = gptsi_import_weights(in, m, flips);
            if (status != GPTS_OK) return status;
            status = pass ? gptsi_text_measure(m, tokens, n, &value) : gptsi_probe_measure(m, &probe, &value);
            if (status != GPTS_OK) { memcpy(in->error, m->error, GPTS_ERROR_BYTES); return status; }
            if (!flips) mapped = value;
            if (value < best) { best = value; found = flips; }
            if (!pass && !flips && value <= limit) break;
        }
        if (!pass && !(mapped <= limit))
            return gptsi_fail(in->error, GPTS_MISMATCH,
                              "%s: the weights, read as mapped, give logits that differ from the probe's by %.3g of their size; %s%s",
                in->file->source->label, mapped, best <= limit ? "they agree with " : "no transposition makes them agree",
                best <= limit ? gptsi_flip_words[found] : "");
        if (pass && (!(mapped < HUGE_VAL) || best < mapped - 0.01 - 0.002 * fabs(mapped)))
            return gptsi_fail(in->error, GPTS_MISMATCH, "%s: the weights, read as mapped, have a loss of %.4f on the text at hand, but %.4f with %s",
                in->file->source->label, mapped, best, gptsi_flip_words[found]);
    }
    return probe_text.at || tokens ? gptsi_import_weights(in, m, 0) : GPTS_OK;
}

/* ---- other people's names: load ----------------------------------------------------------------- */

/* "name [2,3] -> h.0.attn.q.weight [out,in]", a line for each tensor, and the settings */
static char *gptsi_import_table(const gptsi_import *in)
{
    static const gptsi_label positions[] = { "learned", "rope", "none" };
    gptsi_text text;
    char line[320];
    size_t i, r;
    memset(&text, 0, sizeof text);
    text.hooks = in->hooks;
    for (i = 0; i < in->file->n_tensors; i++) {
        const gpts_file_tensor *t = &in->file->tensors[i];
        const gptsi_found *f = &in->found[i];
        gptsi_text_add(&text, gptsi_quote(t->name, t->name_bytes).text);
        gptsi_text_add(&text, " [");
        for (r = 0; r < t->rank && r < GPTS_MAX_RANK; r++) {
            if (r) gptsi_text_add(&text, ",");
            gptsi_text_integer(&text, (int64_t)t->shape[r]);
        }
        gptsi_text_add(&text, f->role < 0 ? "] ignored\n" : "] -> ");
        if (f->role < 0) continue;
        snprintf(line, sizeof line, "h.%llu.", (unsigned long long)f->layer);
        if (gptsi_role_in_layer(f->role)) gptsi_text_add(&text, line);
        gptsi_text_add(&text, gptsi_role_names[f->role] + (gptsi_role_in_layer(f->role) ? 5 : 0));
        gptsi_text_add(&text, t->rank != 2 ? "\n" : gptsi_found_transposed(f) == (f->role >= GPTSI_ROLE_Q ||
                f->role == GPTS_P_LM_HEAD) ? " [in,out]\n" : " [out,in]\n");
    }
    snprintf(line, sizeof line, "vocab_size %lld, n_embd %lld, n_layer %lld, n_head %lld, position %s, norm %s, bias %s, %s, scores %s\n",
             (long long)in->config.vocab_size, (long long)in->config.n_embd, (long long)in->config.n_layer, (long long)in->config.n_head,
             positions[in->config.position], in->config.norm == GPTS_NORM_LAYER ? "layer" : "none", in->config.bias ? "yes" : "no",
             in->config.tie_word_embeddings ? "tied" : "untied", in->config.unscaled_scores ? "unscaled" : "scaled");
    gptsi_text_add(&text, line);
    gptsi_text_bytes(&text, "", 1);
    if (text.failed) { gptsi_delete(in->hooks, text.data); return NULL; }
    return text.data;
}

/* path of config.json in the folder of `path` */
static char *gptsi_config_beside(const char *path, const gpts_hooks *hooks)
{
    size_t n = strlen(path);
    char *beside = GPTSI_NEW(hooks, char, gptsi_add(n, 16));
    while (n && path[n - 1] != '/' && path[n - 1] != '\\') n--;
    if (!beside) return NULL;
    memcpy(beside, path, n);
    memcpy(beside + n, "config.json", 12);
    return beside;
}
static int gptsi_file_exists(const char *path)
{
#ifdef GPTS_NO_STDIO
    (void)path;
    return 0;
#else
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
#endif
}

static gpts_status gptsi_settings_file(gptsi_import *in, const char *path)
{
    char *text, label[160];
    size_t bytes;
    gpts_status status;
    GPTSI_TRY(gpts_read_file(path, &text, &bytes, in->hooks, in->error));
    snprintf(label, sizeof label, "'%s'", gptsi_path_end(path));
    status = gptsi_settings_read(&in->settings, text, bytes, label, in->error);
    gptsi_delete(in->hooks, text);
    return status;
}

/* Opens the file, reads map and settings, gives every tensor its role; the settings of the model. */
static gpts_status gptsi_import_open(gptsi_import *in, const char *path, const gpts_mapping *mapping)
{
    const char *own;
    char *beside;
    size_t i, bytes;
    gpts_status status = gpts_file_open(in->file, path, in->hooks);
    if (status != GPTS_OK) { memcpy(in->error, in->file->error, GPTS_ERROR_BYTES); return status; }
    for (i = 0; i < GPTSI_SETTINGS; i++) in->settings.whole[i] = -1;
    if ((own = gpts_file_metadata(in->file, "config")) != NULL)
        GPTSI_TRY(gptsi_settings_read(&in->settings, own, strlen(own), "the file's own config", in->error));
    if (mapping && mapping->config) GPTSI_TRY(gptsi_settings_file(in, mapping->config));
    else {
        beside = gptsi_config_beside(path, in->hooks);
        if (!beside) return gptsi_no_memory(in->error, "a file's name", strlen(path), 1);
        if (gptsi_file_exists(beside)) status = gptsi_settings_file(in, beside);
        gptsi_delete(in->hooks, beside);
        if (status != GPTS_OK) return status;
    }
    in->names.label = "the map";
    if (mapping && mapping->map) {
        GPTSI_TRY(gpts_read_file(mapping->map, &in->names.text, &bytes, in->hooks, in->error));
        GPTSI_TRY(gptsi_names_read(&in->names, bytes, in->hooks, in->error));
        if (in->names.config.at)
            GPTSI_TRY(gptsi_settings_read(&in->settings, in->names.config.at, in->names.config.n, "the map's @config", in->error));
    }
    GPTSI_TRY(gptsi_import_match(in));
    return gptsi_import_config(in, mapping);
}
static void gptsi_import_close(gptsi_import *in)
{
    gptsi_names_free(&in->names, in->hooks);
    gptsi_delete(in->hooks, in->found);
    gptsi_delete(in->hooks, in->slot);
    gpts_file_close(in->file);
}

GPTS_API gpts_status gpts_model_load_mapped_checked(gpts_model *m, const char *path, gpts_mapping *mapping, const gpts_hooks *hooks, uint32_t abi)
{
    gptsi_import in;
    gpts_file file;
    gptsi_span probe;
    gpts_status status;
    char error[GPTS_ERROR_BYTES] = "";
    memset(m, 0, sizeof *m);
    if (mapping) mapping->table = NULL;
    if (abi != GPTS_ABI)
        return gptsi_fail(m->error, GPTS_MISMATCH, "the header included here and the implementation differ in version or GPTS_REAL");
    memset(&in, 0, sizeof in);
    memset(&file, 0, sizeof file);
    in.file = &file; in.hooks = hooks; in.error = error;
    status = gptsi_import_open(&in, path, mapping);
    if (status == GPTS_OK && mapping && (mapping->table = gptsi_import_table(&in)) == NULL)
        status = gptsi_no_memory(error, "the table of names", 1, 1);
    if (status == GPTS_OK && (status = gptsi_model_build(m, &in.config, NULL, hooks)) != GPTS_OK) memcpy(error, m->error, sizeof error);
    if (status == GPTS_OK) status = gptsi_import_all_used(&in, m);
    if (status == GPTS_OK) status = gptsi_import_weights(&in, m, 0);
    if (status == GPTS_OK) {
        probe = in.names.probe;
        if (!probe.at && (probe.at = gpts_file_metadata(&file, "probe")) != NULL) probe.n = strlen(probe.at);
        status = gptsi_import_verify(&in, m, probe, mapping ? mapping->tokens : NULL, mapping ? mapping->n : 0);
    }
    gptsi_import_close(&in);
    if (status != GPTS_OK) { gpts_model_free(m); memcpy(m->error, error, sizeof error); }
    return status;
}

/* ---- other people's names: save ------------------------------------------------------------------- */

typedef struct gptsi_export {
    const gpts_model *m;
    gptsi_import like;                        /* L 0 and no file: Llama's names        */
    gpts_file file;
    gpts_file_entry *entries;
    size_t n, room;
    char *error;
} gptsi_export;

/* the model's tensor in memory (it may live on a device) */
static gpts_real *gptsi_export_host(const gpts_model *m, const gpts_tensor *t)
{
    gpts_real *x = GPTSI_NEW(&m->hooks, gpts_real, t->size);
    if (x) m->ops->download(m->device, x, t->data, t->size * sizeof *x);
    return x;
}

/* One tensor [rows,columns] (columns 0: a vector) to write: `name` and `data` become the entry's. */
static gpts_status gptsi_export_add(gptsi_export *out, const char *name, size_t rows, size_t columns, gpts_real *data, gpts_dtype dtype)
{
    const gpts_hooks *hooks = &out->m->hooks;
    size_t bytes = strlen(name) + 1;
    char *copy = GPTSI_NEW(hooks, char, bytes);
    gpts_file_entry *e;
    if (!copy || !data || !gptsi_grow(hooks, (void **)(void *)&out->entries, out->n, &out->room, sizeof *out->entries)) {
        gptsi_delete(hooks, copy);
        gptsi_delete(hooks, data);
        return gptsi_no_memory(out->error, "the tensors to write", rows, sizeof(gpts_real));
    }
    memcpy(copy, name, bytes);
    e = &out->entries[out->n++];
    e->name = copy; e->data = data; e->rank = columns ? 2 : 1; e->shape[0] = rows; e->shape[1] = columns;
    e->dtype = dtype == GPTS_F16 || dtype == GPTS_BF16 ? dtype : GPTS_F32;
    return GPTS_OK;
}

/* Which of a chain's two maps holds the product: the outer one, unless only the inner one has a place for the bias. */
static int gptsi_export_inner(const gptsi_export *out, size_t l, int outer, int inner)
{
    return gptsi_import_tensor(&out->like, l + 1, inner) && (!gptsi_import_tensor(&out->like, l + 1, outer) ||
           (out->m->config.bias && !gptsi_import_tensor(&out->like, l + 1, outer + 1) && gptsi_import_tensor(&out->like, l + 1, inner + 1)));
}

/* Role (matrix or bias) of layer l, [out,in]: `parts` of c_attn from part `part` on, or c_proj, or the identity. */
static gpts_status gptsi_export_part(gptsi_export *out, const char *name, size_t l, int role, int transposed, gpts_dtype dtype)
{
    const gpts_model *m = out->m;
    size_t C = (size_t)m->config.n_embd, i, j, rows;
    int matrix = role - (role - GPTSI_ROLE_Q) % 2, bias = matrix != role, attn = matrix <= GPTSI_ROLE_IN;
    size_t part = matrix < GPTSI_ROLE_IN ? (size_t)(matrix - GPTSI_ROLE_Q) / 2 : 0, parts = matrix == GPTSI_ROLE_IN ? 3 : 1, width = attn ? 3 * C : C;
    int inner = attn ? gptsi_export_inner(out, l, GPTSI_ROLE_IN, GPTSI_ROLE_Q) : gptsi_export_inner(out, l, GPTSI_ROLE_O, GPTSI_ROLE_OUT);
    int alone = !out->like.slot, mine = alone || inner == (attn ? matrix < GPTSI_ROLE_IN : matrix == GPTSI_ROLE_OUT);
    const gpts_tensor *t = gptsi_layer_tensor(m, l, attn ? (bias ? GPTS_P_ATTN_B : GPTS_P_ATTN_W) : (bias ? GPTS_P_ATTN_PROJ_B : GPTS_P_ATTN_PROJ_W));
    gpts_real *x = t ? gptsi_export_host(m, t) : NULL, *y;
    rows = parts * C;
    y = GPTSI_NEW(&m->hooks, gpts_real, bias ? rows : rows * C);
    if (!y || (t && !x)) {
        gptsi_delete(&m->hooks, x);
        gptsi_delete(&m->hooks, y);
        return gptsi_no_memory(out->error, "a matrix to write", rows * C, sizeof *y);
    }
    for (i = 0; i < rows; i++) {
        if (bias) { if (mine && x) y[i] = x[part * C + i]; continue; }
        for (j = 0; j < C; j++) y[transposed ? j * rows + i : i * C + j] = mine ? x[j * width + part * C + i] : (gpts_real)(i % C == j);
    }
    gptsi_delete(&m->hooks, x);
    return gptsi_export_add(out, name, !bias && transposed ? C : rows, bias ? 0 : transposed ? rows : C, y, dtype);
}

static gpts_status gptsi_export_whole(gptsi_export *out, const char *name, const gpts_tensor *t, int transposed, gpts_dtype dtype)
{
    gpts_real *x = gptsi_export_host(out->m, t), *y;
    size_t i, j;
    if (!transposed || !x) return gptsi_export_add(out, name, t->rows, t->rank == 2 ? t->columns : 0, x, dtype);
    y = GPTSI_NEW(&out->m->hooks, gpts_real, t->size);
    for (i = 0; y && i < t->rows; i++) for (j = 0; j < t->columns; j++) y[j * t->rows + i] = x[i * t->columns + j];
    gptsi_delete(&out->m->hooks, x);
    return gptsi_export_add(out, name, t->columns, t->rows, y, dtype);
}

/* The names of `like`, or Llama's. */
static gpts_status gptsi_export_tensors(gptsi_export *out, gpts_dtype dtype)
{
    static const gptsi_label names[] = { "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias",
                                         "o_proj.weight", "o_proj.bias" };
    static const int roles[] = { GPTSI_ROLE_Q, GPTSI_ROLE_Q + 1, GPTSI_ROLE_K, GPTSI_ROLE_K + 1, GPTSI_ROLE_V, GPTSI_ROLE_V + 1,
                                 GPTSI_ROLE_O, GPTSI_ROLE_O + 1 };
    static const struct { char name[28]; int kind; } outside[] = {
        { "embed_tokens.weight", GPTS_P_WTE }, { "embed_positions.weight", GPTS_P_WPE }, { "lm_head.weight", GPTS_P_LM_HEAD } };
    const gpts_model *m = out->m;
    size_t i, k, l, L = (size_t)m->config.n_layer;
    char name[GPTS_NAME_BYTES];
    for (i = 0; i < (out->like.slot ? out->file.n_tensors : 0); i++) {
        const gptsi_found *f = &out->like.found[i];
        const char *there = out->file.tensors[i].name;
        if (f->role < 0) continue;
        if (f->role >= GPTSI_ROLE_Q) { GPTSI_TRY(gptsi_export_part(out, there, f->layer, f->role, gptsi_found_transposed(f), dtype)); continue; }
        for (k = 0; k < m->n_tensors; k++)
            if ((int)m->tensors[k].kind == f->role && m->tensors[k].layer == (gptsi_role_in_layer(f->role) ? (int32_t)f->layer : -1))
                GPTSI_TRY(gptsi_export_whole(out, there, &m->tensors[k], gptsi_found_transposed(f), dtype));
    }
    if (out->like.slot) return GPTS_OK;
    for (k = 0; k < m->n_tensors; k++) for (i = 0; i < 3; i++)
        if ((int)m->tensors[k].kind == outside[i].kind) GPTSI_TRY(gptsi_export_whole(out, outside[i].name, &m->tensors[k], 0, dtype));
    for (l = 0; l < L; l++) for (i = 0; i < 8; i += m->config.bias ? 1 : 2) {
        snprintf(name, sizeof name, "layers.%llu.self_attn.%s", (unsigned long long)l, names[i]);
        GPTSI_TRY(gptsi_export_part(out, name, l, roles[i], 0, dtype));
    }
    return GPTS_OK;
}

/* A few tokens and some of their last logits, for the reader's check. */
static gpts_status gptsi_export_probe(gptsi_export *out, gpts_model *m, gptsi_text *text)
{
    enum { TOKENS = 12, IDS = 16 };
    size_t V = (size_t)m->config.vocab_size, T = gptsi_min(TOKENS, (size_t)m->config.n_positions), k, part;
    int32_t tokens[TOKENS];
    gpts_real *logits = GPTSI_NEW(&m->hooks, gpts_real, gptsi_mul(T, V));
    gpts_batch batch;
    gpts_status status;
    if (!logits) return gptsi_no_memory(out->error, "a probe's logits", T * V, sizeof *logits);
    for (k = 0; k < T; k++) tokens[k] = (int32_t)(gptsi_mix(k) % V);
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.B = 1; batch.T = T;
    status = gpts_model_forward(m, &batch, logits, NULL);
    for (part = 0; part < 3; part++) {
        gptsi_text_add(text, part == 0 ? "{\"tokens\":[" : part == 1 ? "],\"ids\":[" : "],\"logits\":[");
        for (k = 0; k < (part ? (size_t)IDS : T); k++) {
            size_t id = (size_t)(gptsi_mix(1000 + k) % V);
            if (k) gptsi_text_add(text, ",");
            if (part == 2) gptsi_text_double(text, (double)(float)logits[(T - 1) * V + id]);
            else gptsi_text_integer(text, part ? (int64_t)id : tokens[k]);
        }
    }
    gptsi_text_bytes(text, "]}", 3);
    gptsi_delete(&m->hooks, logits);
    return status;
}

/* Llama's keys (transformers reads them), and ours for what Llama does not have. */
static void gptsi_export_settings(const gpts_config *c, gpts_dtype dtype, gptsi_text *text)
{
    static const gptsi_label positions[] = { "learned", "rope", "none" };
    const struct { const char *key; int64_t value; } whole[] = {
        { "vocab_size", c->vocab_size }, { "hidden_size", c->n_embd }, { "intermediate_size", c->n_embd }, { "num_hidden_layers", c->n_layer },
        { "num_attention_heads", c->n_head }, { "num_key_value_heads", c->n_head }, { "max_position_embeddings", c->n_positions } };
    size_t i;
    gptsi_text_add(text, "{\n  \"architectures\": [\"AttentionOnlyTransformer\"],\n  \"model_type\": \"llama\",\n");
    for (i = 0; i < 7; i++) {
        gptsi_text_add(text, "  \"");
        gptsi_text_add(text, whole[i].key);
        gptsi_text_add(text, "\": ");
        gptsi_text_integer(text, whole[i].value);
        gptsi_text_add(text, ",\n");
    }
    gptsi_text_add(text, "  \"rope_theta\": ");
    gptsi_text_double(text, c->rope_theta);
    gptsi_text_add(text, ",\n  \"tie_word_embeddings\": ");
    gptsi_text_add(text, c->tie_word_embeddings ? "true" : "false");
    gptsi_text_add(text, ",\n  \"attention_bias\": ");
    gptsi_text_add(text, c->bias ? "true" : "false");
    gptsi_text_add(text, ",\n  \"unscaled_scores\": ");
    gptsi_text_add(text, c->unscaled_scores ? "true" : "false");
    gptsi_text_add(text, ",\n  \"position\": \"");
    gptsi_text_add(text, positions[c->position]);
    gptsi_text_add(text, "\",\n  \"torch_dtype\": \"");
    gptsi_text_add(text, dtype == GPTS_F16 ? "float16" : dtype == GPTS_BF16 ? "bfloat16" : "float32");
    gptsi_text_add(text, "\"\n}\n");
}

/* Plain attention everywhere; under Llama's names also nothing else. */
static gpts_status gptsi_export_allowed(const gpts_model *m, const char *like, char *error)
{
    size_t l;
    for (l = 0; l < (size_t)m->config.n_layer; l++) {
        const gpts_heads *h = &m->layers[l].heads;
        if (m->layers[l].hidden || h->U != h->H)
            return gptsi_fail(error, GPTS_UNSUPPORTED, "layer %llu has %s: other people's names have no place for that (gpts_model_save keeps it)",
                              (unsigned long long)l, m->layers[l].hidden ? "an approximator" : h->n ? "static heads" : "pruned heads");
    }
    if (!like && (m->config.n_inner || m->config.norm != GPTS_NORM_NONE))
        return gptsi_fail(error, GPTS_UNSUPPORTED,
                          "only attention-only models have names of their own here: name a file like it, or use gpts_model_save");
    return GPTS_OK;
}

static gpts_status gptsi_export_write(gptsi_export *out, gpts_model *m, const char *path, const char *like, gpts_mapping *mapping,
                                      gptsi_text *probe, gptsi_text *settings)
{
    gptsi_import *in = &out->like;
    gpts_dtype dtype = mapping ? mapping->dtype : GPTS_F32;
    gpts_file_pair metadata[2];
    gpts_status status;
    char *beside;
    size_t l;
    if (like) {
        GPTSI_TRY(gptsi_import_open(in, like, mapping));
        if (in->L != (size_t)m->config.n_layer || in->C != (size_t)m->config.n_embd || in->V != (size_t)m->config.vocab_size ||
            in->config.n_inner != m->config.n_inner || in->config.norm != m->config.norm ||
            (in->config.position == GPTS_POSITION_LEARNED) != (m->config.position == GPTS_POSITION_LEARNED) ||
            in->config.tie_word_embeddings != m->config.tie_word_embeddings)
            return gptsi_fail(out->error, GPTS_MISMATCH,
                              "%s is of another shape (%llu layers, width %llu, vocabulary %llu) than the model (%lld, %lld, %lld) or has other parts",
                out->file.source->label, (unsigned long long)in->L, (unsigned long long)in->C, (unsigned long long)in->V,
                (long long)m->config.n_layer,
                (long long)m->config.n_embd, (long long)m->config.vocab_size);
        for (l = 0; l < in->L && m->config.bias && !in->config.bias; l++)
            return gptsi_fail(out->error, GPTS_UNSUPPORTED, "the model has biases, and %s has no place for them", out->file.source->label);
        if (mapping && (mapping->table = gptsi_import_table(in)) == NULL) return gptsi_no_memory(out->error, "the table of names", 1, 1);
    }
    GPTSI_TRY(gptsi_export_tensors(out, dtype));
    status = gptsi_export_probe(out, m, probe);
    if (status != GPTS_OK) return status;
    gptsi_export_settings(&m->config, dtype, settings);
    beside = gptsi_config_beside(path, &m->hooks);
    if (probe->failed || settings->failed || !beside) {
        gptsi_delete(&m->hooks, beside);
        return gptsi_no_memory(out->error, "a file's settings", 1024, 1);
    }
    metadata[0].key = "format"; metadata[0].value = "pt";
    metadata[1].key = "probe"; metadata[1].value = probe->data;
    status = gpts_file_write(path, out->entries, out->n, metadata, 2, &m->hooks, out->error);
    if (status == GPTS_OK) status = gptsi_replace_file(beside, settings->data, settings->n, &m->hooks, out->error);
    gptsi_delete(&m->hooks, beside);
    return status;
}

GPTS_API gpts_status gpts_model_save_mapped(gpts_model *m, const char *path, const char *like, gpts_mapping *mapping)
{
    gptsi_export out;
    gptsi_text probe, settings;
    gpts_status status;
    size_t i;
    memset(&out, 0, sizeof out);
    memset(&probe, 0, sizeof probe);
    memset(&settings, 0, sizeof settings);
    if (mapping) mapping->table = NULL;
    GPTSI_TRY(gptsi_export_allowed(m, like, m->error));
    out.m = m; out.error = m->error; probe.hooks = settings.hooks = &m->hooks;
    out.like.file = &out.file; out.like.hooks = &m->hooks; out.like.error = m->error;
    status = gptsi_export_write(&out, m, path, like, mapping, &probe, &settings);
    for (i = 0; i < out.n; i++) {
        gptsi_delete(&m->hooks, (void *)(uintptr_t)out.entries[i].name);
        gptsi_delete(&m->hooks, (void *)(uintptr_t)out.entries[i].data);
    }
    gptsi_delete(&m->hooks, out.entries);
    gptsi_delete(&m->hooks, probe.data);
    gptsi_delete(&m->hooks, settings.data);
    gptsi_import_close(&out.like);
    return status;
}

#endif /* GPTSTATIC_IMPLEMENTED */
#endif /* GPTSTATIC_IMPLEMENTATION */

/* ------------------------------------------------------------------------------
   MIT License

   Copyright (c) 2026 the gptstatic authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of
   this software and associated documentation files (the "Software"), to deal in the
   Software without restriction, including without limitation the rights to use, copy,
   modify, merge, publish, distribute, sublicense, and/or sell copies of the Software,
   and to permit persons to whom the Software is furnished to do so, subject to the
   following conditions:

   The above copyright notice and this permission notice shall be included in all
   copies or substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
   INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A
   PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT
   HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
   CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE
   OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
   ------------------------------------------------------------------------------ */

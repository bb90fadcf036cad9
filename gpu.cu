/* gpu.cu - gptstatic on NVIDIA GPUs: the attention of live, static and pruned heads, and around it a whole model.

   A model.  After `gpts_gpu_attach(&model, 0)` every call of gptstatic.h goes on, and the work is done on GPU 0: training,
   evaluation, calibration, replacement of heads in mid-run, recording, files.  In C or C++, `#include "gpu.cu"` gives the
   declarations (after gptstatic.h, which it includes); link the object that nvcc makes of this file, and cuBLASLt.

   Attention.  One call runs a layer's heads, whatever their kind, forward or backward:

       live     y[i] = sum_{j<=i} softmax_j(scale q[i].k[j]) v[j]                             (A1)
       exact    y[i] = sum_{j<=i} P[i,j] v[j],  P[i,j] = exp(alpha[j] + rho[i-j] - z[i])      (P1)
       linear   the same with rho[d] = ln sum_r coef[r] decay[r]^(d - W) for d >= W           (P3)
       pruned   nothing: it has no columns in q, k, v or y

   It can be used alone, on tensors of anybody's:

       gpts_gpu_attention a = {0};                       fill in the sizes, kinds, patterns and tensors
       a.prepared = ...;                                 gpts_gpu_attention_prepared_size(&a) device bytes
       gpts_gpu_attention_prepare(&a);                   once for every T and set of patterns (it waits for the device)
       gpts_gpu_attention_forward(&a);                   as often as wanted; these only queue work on a.stream
       gpts_gpu_attention_backward(&a);

   Promised.  Every output element is written or the call returns a status, with one sentence in `error`, before anything is
   queued.  The same input gives the same bits again.  Any T up to 2^17, any head size up to 256, any strides with
   contiguous head vectors, any number of sequences.  bf16 and fp16 accumulate in fp32.  A model's parameters, gradients and
   moments are fp32; patterns are not trained here.

   Fast.  On Hopper (H100, H200; code for sm_90a): bf16 and fp16, head sizes up to 128 that are multiples of 8, strides and
   pointers to 16 bytes, positive scale; rotation at 64, 96 and 128.  Anything else runs on plain kernels, for sm_80 and up.

   Contents, in the order of gptstatic.h.  GPTS_GPU_ATTENTION_ONLY and GPTS_GPU_MODEL_ONLY compile one half of them:
       @@BASE       sizes, element types, tensor-core and copy instructions, the prepared tables
       @@ATTENTION  live heads: plain kernels, rotation, then forward, dQ, dK dV on tensor cores
       @@STATIC     fixed heads: Toeplitz tiles, far states
       @@CALL       what runs where; the public functions of attention
       @@DEVICE     a model's memory, uploads and downloads, failures
       @@GEMM       products on tensor cores by cuBLASLt
       @@LAYERS     embedding, norm, linear, activation, loss
       @@TRAIN      AdamW on all tensors at once
       @@MODEL      a layer's heads in a model; replay of a step; the table; attach
       @@SAMPLE     sessions
       @@RANKS      several GPUs: the line between processes (first in the file), and NCCL                                */
#ifndef GPTS_GPU_H
#define GPTS_GPU_H
#include <stddef.h>
#include <stdint.h>
#if !defined(GPTS_GPU_ATTENTION_ONLY) && !defined(GPTSTATIC_H)
#include "gptstatic.h"
#endif
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
    int rotated;                        /* 1: q and k are rotated already; dq and dk are still of those before          */
    float scale;                        /* of the scores; 0: 1/sqrt(D)                                                  */
    int plain;                          /* 1: only the plain kernels (the reference on the device)                      */
    int64_t S;                          /* length of the stored patterns                                                */
    const float *alpha, *rho;           /* device [n,S], static heads in ascending order                                */
    const int *tail_start;              /* host [n]: W (fast up to 256); S for a head without tail; NULL: all without   */
    const float *coef, *decay;          /* device [n,R]; unused terms 0 and 1                                           */
    gpts_gpu_tensor q, k, v, y;         /* q, k: live heads only; v, y: kept heads; natural order                       */
    gpts_gpu_tensor dy, dq, dk, dv;     /* backward: reads q k v y lse dy, writes dq dk dv (dv of static heads too)     */
    float *lse;                         /* device [B,U,T]: forward writes, backward reads (natural log)                 */
    float *dalpha, *drho;               /* backward, optional: device [n,S], [n,S], [n,R], [n,R]; the patterns' gradients are added.  */
    float *dcoef, *ddecay;              /* Set before _workspace_size; it costs as much as live heads do, and more      */
    void *prepared;  size_t prepared_bytes;     /* device; filled by _prepare                                           */
    void *workspace; size_t workspace_bytes;    /* device; contents do not matter between calls                         */
    void *stream;                       /* cudaStream_t                                                                 */
    void *beside, *events[2];           /* optional: another cudaStream_t and two cudaEvent_t; static heads then run beside live ones that do not fill the GPU */
    unsigned char *wide;                /* host [H]: _prepare writes 1 where a pattern's range needs log space          */
    char error[160];
} gpts_gpu_attention;

size_t gpts_gpu_attention_struct_size(void);        /* of this build, for callers in other languages */
size_t gpts_gpu_attention_prepared_size(const gpts_gpu_attention *a);
size_t gpts_gpu_attention_workspace_size(const gpts_gpu_attention *a, int backward);
gpts_gpu_status gpts_gpu_attention_prepare(gpts_gpu_attention *a);
/* (R1) q and k in place; positions count from first [B] on the device (NULL: 0), rows before it stay as they are. */
gpts_gpu_status gpts_gpu_attention_rotate(gpts_gpu_attention *a, const int32_t *first);
gpts_gpu_status gpts_gpu_attention_forward(gpts_gpu_attention *a);
gpts_gpu_status gpts_gpu_attention_backward(gpts_gpu_attention *a);
const char *gpts_gpu_status_text(gpts_gpu_status status);

#ifndef GPTS_GPU_ATTENTION_ONLY
/* The model's work is done on GPU number `device` from now on, by the same calls: it and its trainer live there until they are
   freed, files are written from there.  Activations and products in bf16 with sums in fp32, parameters in fp32; or all in fp32,
   which is slow and there to compare.  On failure the model stays on the CPU and model->error says why in one sentence.          */
gpts_status gpts_gpu_attach(gpts_model *model, int device);
gpts_status gpts_gpu_attach_precision(gpts_model *model, int device, int type);        /* GPTS_GPU_BF16 or GPTS_GPU_F32 */
/* Several GPUs, one process each, for gpts_trainer_ranks: who this process is comes from torchrun's, Open MPI's, MPICH's or Slurm's
   variables (none: alone, OK), NCCL carries (builds with GPTS_NCCL; gradients rounded to bf16 or as they are, in fp32), and every
   rank gets one sentence in error [GPTS_ERROR_BYTES] where one is missing, has no GPU, or ends.  Attach the model to ranks->device
   afterwards; free when all is done.  Rank 0 listens at MASTER_ADDR:MASTER_PORT (under torchrun the port after it; GPTS_PORT: another). */
gpts_status gpts_gpu_ranks_init(gpts_ranks *ranks, int type, char *error);             /* GPTS_GPU_BF16 or GPTS_GPU_F32 */
void gpts_gpu_ranks_free(gpts_ranks *ranks);
#endif

#ifdef __cplusplus
}
#endif
#endif /* GPTS_GPU_H */

/* ==== @@RANKS  several processes: who they are, and a line between them ====================================================
   Plain C and sockets (tests/rendezvous.c tries them without a GPU): the ranks know themselves by what their launcher puts
   into the environment, meet at a TCP port of rank 0, and keep these connections.  They carry the small numbers of an update,
   and their end tells that a process is gone.                                                                                */
#if defined(GPTS_GPU_RENDEZVOUS) || (defined(__CUDACC__) && defined(GPTS_NCCL) && !defined(GPTS_GPU_ATTENTION_ONLY))
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { LINE_HELLO = 0x47505453, LINE_DATA, LINE_END, LINE_MOST = 65536 };     /* kinds of messages; the most ranks */
typedef struct LineHead { uint32_t kind, turn; uint64_t bytes; } LineHead;
typedef struct Line {
    int rank, size, local;                    /* local: which of this machine's ranks       */
    char address[256]; int port;
    int *fd;                                  /* [size] at rank 0, else fd[0] to rank 0; below 0: none */
    uint32_t turn;                            /* gathers so far                             */
    double patience;                          /* seconds that a gather waits                */
    int broken; char error[GPTS_ERROR_BYTES];
} Line;

static double line_now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }
static gpts_status line_fail(char *error, gpts_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format); vsnprintf(error, GPTS_ERROR_BYTES, format, list); va_end(list);
    return status;
}

/* the number in variable `name`; `none` where there is no such variable; -1: not a number */
static long line_variable(const char *name, long none)
{
    const char *text = getenv(name);
    char *end;
    long x;
    if (!text || !*text) return none;
    x = strtol(text, &end, 10);
    return *end || x < 0 || x > 1000000 ? -1 : x;
}
/* the first machine of Slurm's list, "node[07-12,15],other" -> node07 */
static void line_first_machine(char *to, size_t room, const char *list)
{
    size_t n = 0;
    for (; *list && *list != ',' && *list != '[' && n + 1 < room; list++) to[n++] = *list;
    if (*list == '[') for (list++; *list >= '0' && *list <= '9' && n + 1 < room; list++) to[n++] = *list;
    to[n] = 0;
}
/* rank, size, local, address and port, from torchrun's, Open MPI's, MPICH's or Slurm's variables; none of them: one rank, alone */
static gpts_status line_environment(Line *line, char *error)
{
    static const char *const names[4][3] = { { "RANK", "WORLD_SIZE", "LOCAL_RANK" },
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK" },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID" }, { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID" } };
    const char *const *name = NULL, *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    long rank, size, local, port;
    int i, here = 0;
    memset(line, 0, sizeof *line);
    line->size = 1; line->patience = 3600;
    for (i = 0; i < 4 && !name; i++) if (getenv(names[i][0]) && getenv(names[i][1])) name = names[i];
    if (!name) return GPTS_OK;
    rank = line_variable(name[0], -1); size = line_variable(name[1], -1); local = line_variable(name[2], rank);
    if (size < 1 || size > LINE_MOST || rank < 0 || rank >= size || local < 0)
        return line_fail(error, GPTS_BAD_ARGUMENT, "%s=%s %s=%s %s=%s: a rank is 0 .. size-1", name[0], getenv(name[0]), name[1],
                         getenv(name[1]), name[2], getenv(name[2]) ? getenv(name[2]) : "");
    line->rank = (int)rank; line->size = (int)size; line->local = (int)local;
    if (address && *address) snprintf(line->address, sizeof line->address, "%s", address);
    else if (nodes) line_first_machine(line->address, sizeof line->address, nodes);
    else {
        here = line_variable("LOCAL_WORLD_SIZE", line_variable("OMPI_COMM_WORLD_LOCAL_SIZE", line_variable("MPI_LOCALNRANKS", 0))) == size;
        if (size > 1 && !here)
            return line_fail(error, GPTS_BAD_ARGUMENT, "MASTER_ADDR must name the machine of rank 0 where ranks run on several machines");
        snprintf(line->address, sizeof line->address, "127.0.0.1");
    }
    /* torchrun itself listens at its port: the next one is ours */
    port = line_variable("MASTER_PORT", 29531);
    if (port > 0 && (getenv("TORCHELASTIC_RUN_ID") || getenv("TORCHELASTIC_USE_AGENT_STORE"))) port++;
    port = line_variable("GPTS_PORT", port);
    if (port < 1 || port > 65535) return line_fail(error, GPTS_BAD_ARGUMENT, "MASTER_PORT or GPTS_PORT is no port: 1 .. 65535");
    line->port = (int)port;
    return GPTS_OK;
}

static void line_close(Line *line)
{
    int r;
    if (line->fd) for (r = 0; r < (line->rank ? 1 : line->size); r++) if (line->fd[r] >= 0) close(line->fd[r]);
    free(line->fd);
    line->fd = NULL;
}
/* From now on nothing works but free.  Rank 0 passes the sentence on, so that all say the same. */
static gpts_status line_break(Line *line, const char *format, ...)
{
    LineHead head;
    va_list list;
    int r;
    if (line->broken) return GPTS_DEVICE;
    va_start(list, format); vsnprintf(line->error, sizeof line->error, format, list); va_end(list);
    line->broken = 1;
    memset(&head, 0, sizeof head);
    head.kind = LINE_END; head.bytes = sizeof line->error;
    if (line->rank == 0 && line->fd) for (r = 1; r < line->size; r++) {
        if (line->fd[r] < 0) continue;
        if (send(line->fd[r], &head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof head)
            (void)!send(line->fd[r], line->error, sizeof line->error, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    line_close(line);
    return GPTS_DEVICE;
}
static int line_other(const Line *line, int i) { return line->rank ? 0 : i; }        /* the rank at the other end of fd[i] */

/* Is everybody there?  Looks without waiting. */
static gpts_status line_check(Line *line)
{
    int i;
    for (i = line->rank ? 0 : 1; !line->broken && i < (line->rank ? 1 : line->size); i++) {
        LineHead head;
        ssize_t n = recv(line->fd[i], &head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            line_break(line, "rank %d is gone: rank %d stops; the last checkpoint stays good", line_other(line, i), line->rank);
        } else if (n == (ssize_t)sizeof head && head.kind == LINE_END) {
            char text[GPTS_ERROR_BYTES];
            double until = line_now() + 2;
            recv(line->fd[i], &head, sizeof head, 0);
            memset(text, 0, sizeof text);
            for (n = 0; n < (ssize_t)sizeof text - 1 && line_now() < until;) {
                ssize_t k = recv(line->fd[i], text + n, sizeof text - (size_t)n, MSG_DONTWAIT);
                if (k == 0) break;
                if (k > 0) n += k;
            }
            line_break(line, "%s", text[0] ? text : "rank 0 is gone; the last checkpoint stays good");
        }
    }
    return line->broken ? GPTS_DEVICE : GPTS_OK;
}
/* all of the bytes, or the line breaks; out: send them, else receive */
static gpts_status line_move(Line *line, int i, void *data, size_t bytes, int out, double until)
{
    char *at = (char *)data;
    struct pollfd wait;
    while (bytes && !line->broken) {
        ssize_t n = out ? send(line->fd[i], at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(line->fd[i], at, bytes, MSG_DONTWAIT);
        if (n > 0) { at += n; bytes -= (size_t)n; continue; }
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            if (out) line_check(line);                                              /* a last word, should there be one */
            return line_break(line, "rank %d is gone: rank %d stops; the last checkpoint stays good", line_other(line, i), line->rank);
        }
        wait.fd = line->fd[i]; wait.events = out ? POLLOUT : POLLIN; wait.revents = 0;
        poll(&wait, 1, 200);
        if (line->rank == 0 && !wait.revents) line_check(line);
        if (line_now() > until) line_break(line, "rank %d did not answer for %.0f s: rank %d stops", line_other(line, i), line->patience, line->rank);
    }
    return line->broken ? GPTS_DEVICE : GPTS_OK;
}
static gpts_status line_head(Line *line, int i, size_t bytes, double until)
{
    LineHead head;
    if (line_move(line, i, &head, sizeof head, 0, until) != GPTS_OK) return GPTS_DEVICE;
    if (head.kind == LINE_END) {
        char text[GPTS_ERROR_BYTES];
        memset(text, 0, sizeof text);
        if (line_move(line, i, text, sizeof text, 0, line_now() + 2) == GPTS_OK) { text[sizeof text - 1] = 0; line_break(line, "%s", text); }
        return GPTS_DEVICE;
    }
    if (head.kind != LINE_DATA || head.turn != line->turn || head.bytes != bytes)
        return line_break(line, "rank %d is out of step with rank %d: message %u of %llu bytes, expected %u of %llu",
                          line_other(line, i), line->rank, (unsigned)head.turn,
                          (unsigned long long)head.bytes, (unsigned)line->turn, (unsigned long long)bytes);
    return GPTS_OK;
}
/* all [size,bytes] = every rank's `mine` */
static gpts_status line_gather(Line *line, const void *mine, size_t bytes, void *all, char *error)
{
    LineHead head;
    double until = line_now() + line->patience;
    int r;
    memset(&head, 0, sizeof head);
    head.kind = LINE_DATA; head.turn = line->turn; head.bytes = bytes;
    memcpy((char *)all + (size_t)line->rank * bytes, mine, bytes);
    if (!line->broken) line_check(line);
    if (line->rank == 0) {
        for (r = 1; r < line->size && !line->broken; r++)
            if (line_head(line, r, bytes, until) == GPTS_OK) line_move(line, r, (char *)all + (size_t)r * bytes, bytes, 0, until);
        for (r = 1; r < line->size && !line->broken; r++) {
            head.bytes = bytes * (size_t)line->size;
            if (line_move(line, r, &head, sizeof head, 1, until) == GPTS_OK) line_move(line, r, all, bytes * (size_t)line->size, 1, until);
        }
    } else if (!line->broken && line_move(line, 0, &head, sizeof head, 1, until) == GPTS_OK &&
               line_move(line, 0, (void *)(uintptr_t)mine, bytes, 1, until) == GPTS_OK &&
               line_head(line, 0, bytes * (size_t)line->size, until) == GPTS_OK)
        line_move(line, 0, all, bytes * (size_t)line->size, 0, until);
    line->turn++;
    if (!line->broken) return GPTS_OK;
    memcpy(error, line->error, GPTS_ERROR_BYTES);
    return GPTS_DEVICE;
}

static void line_tune(int fd)                 /* no delay; a machine that fell silent is noticed in half a minute */
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#ifdef TCP_KEEPIDLE
    {
        int idle = 10, every = 5, times = 4;
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    }
#endif
#ifdef TCP_USER_TIMEOUT
    { unsigned silent = 30000; setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent, sizeof silent); }
#endif
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}
static int line_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}
static int line_bytes(int fd, void *data, size_t bytes, double until)       /* received within the time? */
{
    char *at = (char *)data;
    while (bytes && line_now() < until) {
        struct pollfd wait;
        ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n > 0) { at += n; bytes -= (size_t)n; continue; }
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return 0;
        wait.fd = fd; wait.events = POLLIN; wait.revents = 0;
        poll(&wait, 1, 100);
    }
    return bytes == 0;
}
typedef struct LineHello { uint32_t kind; int32_t rank, size, version; } LineHello;

/* rank 0: listens until all are there; refuses strangers */
static gpts_status line_listen(Line *line, const struct addrinfo *found, double until, double seconds, char *error)
{
    const struct addrinfo *a;
    int listener = -1, one = 1, here = 1, r, why = 0;
    for (a = found; a && listener < 0; a = a->ai_next) {
        struct sockaddr_storage any;
        socklen_t length = a->ai_addrlen;
        memset(&any, 0, sizeof any);
        memcpy(&any, a->ai_addr, a->ai_addrlen);
        if (!line_loopback(a->ai_addr)) {     /* not one of the machine's addresses, but all */
            if (a->ai_family == AF_INET) ((struct sockaddr_in *)(void *)&any)->sin_addr.s_addr = htonl(INADDR_ANY);
            else if (a->ai_family == AF_INET6) ((struct sockaddr_in6 *)(void *)&any)->sin6_addr = in6addr_any;
        }
        if ((listener = socket(a->ai_family, SOCK_STREAM, 0)) < 0) { why = errno; continue; }
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        fcntl(listener, F_SETFD, FD_CLOEXEC);
        if (bind(listener, (struct sockaddr *)(void *)&any, length) || listen(listener, 1024)) { why = errno; close(listener); listener = -1; }
    }
    if (listener < 0)
        return line_fail(error, GPTS_DEVICE, "rank 0 cannot listen at %s port %d (GPTS_PORT names another): %s", line->address,
                         line->port, strerror(why));
    while (here < line->size && line_now() < until) {
        struct pollfd wait;
        LineHello hello;
        int fd;
        wait.fd = listener; wait.events = POLLIN; wait.revents = 0;
        if (poll(&wait, 1, 100) <= 0 || (fd = accept(listener, NULL, NULL)) < 0) continue;
        line_tune(fd);
        if (!line_bytes(fd, &hello, sizeof hello, line_now() + 2) || hello.kind != LINE_HELLO) { close(fd); continue; }
        if (hello.version != GPTS_VERSION || hello.size != line->size || hello.rank < 1 || hello.rank >= line->size || line->fd[hello.rank] >= 0) {
            line->fd[0] = -1;
            line_break(line, hello.version != GPTS_VERSION ? "rank %d of %d runs version %d of the program, rank 0 of %d another"
                       : hello.size != line->size ? "rank %d was started as one of %d (version %d), rank 0 as one of %d"
                       : "rank %d of %d (version %d) came twice to rank 0 of %d", (int)hello.rank, (int)hello.size, (int)hello.version, line->size);
            close(fd); close(listener);
            memcpy(error, line->error, GPTS_ERROR_BYTES);
            return GPTS_MISMATCH;
        }
        line->fd[hello.rank] = fd;
        here++;
    }
    close(listener);
    if (here == line->size) return GPTS_OK;
    for (r = 1; line->fd[r] >= 0; r++) {}
    line_break(line, "rank %d%s did not come to %s port %d in %.0f s", r, here < line->size - 1 ? " (and others)" : "", line->address,
               line->port, seconds);
    memcpy(error, line->error, GPTS_ERROR_BYTES);
    return GPTS_DEVICE;
}

/* all ranks meet, or in `seconds` each says who is missing */
static gpts_status line_open(Line *line, double seconds, char *error)
{
    struct addrinfo hints, *found = NULL, *a;
    char port[16];
    double until = line_now() + seconds;
    gpts_status status = GPTS_OK;
    LineHello hello;
    int r, fd = -1, e;
    if (line->size <= 1) return GPTS_OK;
    if (!(line->fd = (int *)malloc((size_t)line->size * sizeof(int))))
        return line_fail(error, GPTS_NO_MEMORY, "out of memory: the ranks' connections");
    for (r = 0; r < line->size; r++) line->fd[r] = -1;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    snprintf(port, sizeof port, "%d", line->port);
    while ((e = getaddrinfo(line->address, port, &hints, &found)) != 0 && line_now() < until) poll(NULL, 0, 200);
    if (e)
        status = line_fail(error, GPTS_DEVICE, "rank %d does not find the machine \"%.100s\" of rank 0: %s", line->rank, line->address,
                           gai_strerror(e));
    else if (line->rank == 0) status = line_listen(line, found, until, seconds, error);
    else {
        while (fd < 0 && line_now() < until) {
            for (a = found; a && fd < 0; a = a->ai_next) {
                if ((fd = socket(a->ai_family, SOCK_STREAM, 0)) < 0) continue;
                line_tune(fd);
                if (connect(fd, a->ai_addr, a->ai_addrlen)) { close(fd); fd = -1; }
            }
            if (fd < 0) poll(NULL, 0, 50);
        }
        if (fd < 0)
            status = line_fail(error, GPTS_DEVICE, "rank %d waited %.0f s for rank 0 at %s port %d", line->rank, seconds, line->address, line->port);
        else {
            line->fd[0] = fd;
            memset(&hello, 0, sizeof hello);
            hello.kind = LINE_HELLO; hello.rank = line->rank; hello.size = line->size; hello.version = GPTS_VERSION;
            if (line_move(line, 0, &hello, sizeof hello, 1, until) != GPTS_OK) { memcpy(error, line->error, GPTS_ERROR_BYTES); status = GPTS_DEVICE; }
        }
    }
    if (found) freeaddrinfo(found);
    if (status != GPTS_OK) line_close(line);
    return status;
}
/* the first rank that failed speaks for all */
static gpts_status line_agree(Line *line, gpts_status status, char *error)
{
    typedef struct Verdict { int32_t status; char error[GPTS_ERROR_BYTES]; } Verdict;
    Verdict mine, *all;
    gpts_status met;
    int r;
    if (line->size <= 1) return status;
    if (!(all = (Verdict *)malloc((size_t)line->size * sizeof *all))) return line_fail(error, GPTS_NO_MEMORY, "out of memory: the ranks' agreement");
    memset(&mine, 0, sizeof mine);
    mine.status = (int32_t)status;
    if (status != GPTS_OK) memcpy(mine.error, error, sizeof mine.error);
    met = line_gather(line, &mine, sizeof mine, all, error);
    for (r = 0; met == GPTS_OK && r < line->size; r++) {
        if (all[r].status == GPTS_OK) continue;
        met = (gpts_status)all[r].status;
        all[r].error[GPTS_ERROR_BYTES - 1] = 0;
        if (r == line->rank) memcpy(error, mine.error, sizeof mine.error);
        else line_fail(error, met, "rank %d: %.300s", r, all[r].error);
    }
    free(all);
    return met;
}
#endif /* the line */

#if defined(__CUDACC__) && !defined(GPTS_GPU_DECLARATIONS)
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
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
[[maybe_unused]] constexpr double LOG2E = 1.4426950408889634;

/* The heads that a launch works on: position in v and y, position in q and k (live) or among the patterns (static). */
struct Heads { int n; uint16_t kept[MAX_HEADS], slot[MAX_HEADS]; unsigned char live[MAX_HEADS]; };

template <class E> __device__ __forceinline__ float to_float(E x) { return float(x); }
template <class E> __device__ __forceinline__ E from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> [[maybe_unused]] __device__ __forceinline__ fp16 from_float<fp16>(float x) { return __float2half_rn(x); }
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

__device__ __forceinline__ void barrier_init(uint64_t *bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(bar)), "r"(count));
}
__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory"); }
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *bar) { barrier_arrive(shared_address(bar)); }
__device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t parity) { barrier_wait(shared_address(bar), parity); }
/* A warp is done with a slot: one arrival a warp, after all its lanes' reads (barrier_done: no lane passes a wgmma alone, and one lies
   between).  racecheck does not follow a read through the warp to the lane that arrives, so a build with GPTS_GPU_EVERY_LANE lets all
   of them do so. */
#ifdef GPTS_GPU_EVERY_LANE
enum { ARRIVALS = 32 };
#else
enum { ARRIVALS = 1 };
#endif
template <class Bar> __device__ __forceinline__ void barrier_done(Bar bar) { if (ARRIVALS == 32 || threadIdx.x % 32 == 0) barrier_arrive(bar); }
template <class Bar> __device__ __forceinline__ void barrier_release(Bar bar) { __syncwarp(); barrier_done(bar); }
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
template <> __device__ __forceinline__ uint32_t pack<bf16>(float low, float high)
{
    uint32_t x; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x;
}
template <> __device__ __forceinline__ uint32_t pack<fp16>(float low, float high)
{
    uint32_t x; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x;
}

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
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address, uint32_t panel_bytes)
{
    return (address & 0x3FFFF) >> 4 | panel_bytes >> 4 << 16;
}
template <int SW> __device__ __forceinline__ uint64_t descriptor(uint32_t low)
{
    return (uint64_t)((8 * SW >> 4) | (SW == 128 ? 1u << 30 : 2u << 30)) << 32 | low;
}

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
    static __device__ __forceinline__ constexpr uint32_t along(int kk, int R)
    {
        return ((kk * 16 / COLUMNS) * R * SW + (kk * 16 % COLUMNS) * 2) >> 4;
    }
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

int processor_count()
{
    int device = 0, n = 1;
    cudaGetDevice(&device); cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
}

} /* namespace */

#ifndef GPTS_GPU_MODEL_ONLY
namespace {
/* ==== @@ATTENTION ========================================================================================================
   Plain kernels first: fp32 arithmetic on shared-memory tiles, any head size, any stride, all element types, wide patterns.
   They are what the fast ones are read against.

   card  forward (A1), (P1)   q,k,v [B,T,.,D] -> y = , lse =      O(T^2 D) a head       tests/gpu: every shape in fp32
         m[i] = max_j s[i,j], l[i] = sum_j exp(s[i,j] - m[i]), y[i] = sum_j exp(s[i,j] - m[i]) v[j] / l[i], lse = m + ln l      */
struct Plain {
    Tensor q, k, v, y, dy, dq, dk, dv; float *lse, *delta;
    int64_t B, T, U; int D; float scale; const float2 *rotation, *turn; Prepared pre; Heads heads;   /* turn: of q and k as they are read */
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
    if (live) plain_load(Q, DS, at<E>(a.q, b, 0, slot), a.q.t, i0, PQ, a.T, D, a.turn);
    for (int64_t j0 = 0; j0 < a.T && j0 < i0 + PQ; j0 += PK) {
        __syncthreads();
        if (live) plain_load(K, DS, at<E>(a.k, b, 0, slot), a.k.t, j0, PK, a.T, D, a.turn);
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
        if (live) plain_load(Q, DS, at<E>(a.q, b, 0, slot), a.q.t, i0, PK, a.T, D, a.turn);
        plain_load(G, DS, at<E>(a.dy, b, 0, kept), a.dy.t, i0, PK, a.T, D, (const float2 *)0);
    };
    auto load_keys = [&](int64_t j0) {
        if (!live) return;
        plain_load(K, DS, at<E>(a.k, b, 0, slot), a.k.t, j0, PK, a.T, D, a.turn);
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
    return a.D <= 64 ? plain_launch<E, 4>(a, backward, stream) : a.D <= 128 ? plain_launch<E, 8>(a, backward, stream)
        : plain_launch<E, 16>(a, backward, stream);
}

/* card  (P10) of static heads whose patterns go on training: over the rows of the batch, with s[i,j] = P[i,j] (dy[i].v[j] - dy[i].y[i]),
           key[j] = sum_{i>=j} s[i,j],   distance[i-j] += s[i,j]
         A block has every `stripes`-th tile of 64 keys of one head and adds to cells of its own in a fixed order, in double.
         O(T^2 D) a head, fp32 products;  tests/gpu/model.c: patterns_train_as_on_the_cpu                                          */
struct Slopes { Tensor v, y, dy; int64_t B, T; int D, stripes; Prepared pre; Heads heads; double *key, *distance; };
enum { SLOPE = 64, STRIPES = 64 };

template <class E> __global__ __launch_bounds__(PLAIN_THREADS) void pattern_slopes(const __grid_constant__ Slopes a)
{
    extern __shared__ float shared[];
    const int D = a.D, DS = D | 1, tx = threadIdx.x % 16, ty = threadIdx.x / 16, h = blockIdx.y;
    float *V = shared, *G = V + SLOPE * DS, *S = G + SLOPE * DS, *delta = S + SLOPE * (SLOPE + 1);
    const int64_t kept = a.heads.kept[h], p = a.heads.slot[h];
    double *key = a.key + p * a.T, *distance = a.distance + (p * a.stripes + blockIdx.x) * a.T;
    for (int64_t j0 = int64_t(blockIdx.x) * SLOPE; j0 < a.T; j0 += int64_t(a.stripes) * SLOPE) {
        double column = 0;
        for (int64_t b = 0; b < a.B; b++)
            for (int64_t i0 = j0; i0 < a.T; i0 += SLOPE) {
                __syncthreads();
                if (i0 == j0) plain_load(V, DS, at<E>(a.v, b, 0, kept), a.v.t, j0, SLOPE, a.T, D, (const float2 *)0);
                plain_load(G, DS, at<E>(a.dy, b, 0, kept), a.dy.t, i0, SLOPE, a.T, D, (const float2 *)0);
                __syncthreads();
                for (int r = threadIdx.x / 32; r < SLOPE; r += PLAIN_THREADS / 32) {
                    float x = 0;
                    for (int d = threadIdx.x % 32; d < D && i0 + r < a.T; d += 32) x += G[r * DS + d] * to_float(at<E>(a.y, b, i0 + r, kept)[d]);
                    for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
                    if (threadIdx.x % 32 == 0) delta[r] = x;
                }
                float g[4][4] = {};
                for (int d = 0; d < D; d++)
                    for (int r = 0; r < 4; r++)
                        for (int c = 0; c < 4; c++) g[r][c] += G[(ty * 4 + r) * DS + d] * V[(tx + 16 * c) * DS + d];
                __syncthreads();
                for (int r = 0; r < 4; r++)
                    for (int c = 0; c < 4; c++)
                        S[(ty * 4 + r) * (SLOPE + 1) + tx + 16 * c] = (g[r][c] - delta[ty * 4 + r]) * plain_weight(a.pre, p, i0 + ty * 4 + r, j0 + tx + 16 * c);
                __syncthreads();
                const int x = threadIdx.x, right = x - SLOPE;
                if (x < 2 * SLOPE) {                                /* the diagonal i - j = i0 - j0 - right: row r, column r + right */
                    const int64_t d = i0 - j0 - right;
                    double sum = 0;
                    for (int r = right < 0 ? -right : 0; r < SLOPE && r + right < SLOPE; r++) sum += S[r * (SLOPE + 1) + r + right];
                    if (d >= 0 && d < a.T) distance[d] += sum;
                } else if (x < 3 * SLOPE)
                    for (int r = 0; r < SLOPE; r++) column += S[r * (SLOPE + 1) + x - 2 * SLOPE];
            }
        const int64_t j = j0 + threadIdx.x - 2 * SLOPE;
        if (threadIdx.x >= 2 * SLOPE && threadIdx.x < 3 * SLOPE && j < a.T) key[j] = column;
    }
}

/* card  (P11) these sums by each parameter, all +=: alpha[j] by key[j], its last quarter sharing what is past S (P6); rho[d] by distance[d] below W;
         beyond, where w[d] = sum_r c[r] lambda[r]^(d-W) is part of s already, dw[d] = distance[d] / w[d]:
           dcoef[r] += sum_{d>=W} dw[d] lambda[r]^(d-W),   ddecay[r] += sum_{d>=W} dw[d] c[r] (d-W) lambda[r]^(d-W-1)
         one block a head, sums in double, O(T R); the same test                                                              */
__global__ __launch_bounds__(256) void pattern_collect(const __grid_constant__ Slopes a, Pattern f, float *dalpha, float *drho, float *dcoef, float *ddecay)
{
    const int64_t p = a.heads.slot[blockIdx.x], S = f.S, W = a.pre.info[p].W, first = S - (S / 4 ? S / 4 : 1);
    const double *key = a.key + p * a.T;
    double *distance = a.distance + p * a.stripes * a.T, past = 0;
    for (int64_t d = threadIdx.x; d < a.T; d += blockDim.x) {
        for (int x = 1; x < a.stripes; x++) distance[d] += distance[x * a.T + d];
        if (d < W) drho[p * S + d] += float(distance[d]);
        if (d >= S) past += key[d];
    }
    past = block_reduce(past, total);
    for (int64_t j = threadIdx.x; j < S; j += blockDim.x)
        dalpha[p * S + j] += float((j < a.T ? key[j] : 0) + (j >= first ? past / double(S - first) : 0));
    int terms = W < S && dcoef && ddecay ? f.R : 0;
    while (terms && !(f.coef[p * f.R + terms - 1] > 0)) terms--;                    /* the unused ones at the end stay so */
    for (int r = 0; r < terms; r++) {
        const double lambda = f.decay[p * f.R + r], power = log(lambda);
        double by_coef = 0, by_decay = 0;
        for (int64_t d = W + threadIdx.x; d < a.T; d += blockDim.x) {
            const double n = double(d - W), w = a.pre.rho[p * a.pre.Tp + d];
            if (!(w > -INFINITY)) continue;
            by_coef += distance[d] * exp((n > 0 ? n * power : 0) - w);
            if (n > 0) by_decay += distance[d] * n * exp((n > 1 ? (n - 1) * power : 0) - w);
        }
        by_coef = block_reduce(by_coef, total); by_decay = block_reduce(by_decay, total);
        if (threadIdx.x == 0) {
            dcoef[p * f.R + r] += float(by_coef);
            ddecay[p * f.R + r] += float(by_decay * double(f.coef[p * f.R + r]));
        }
    }
}
template <class E> cudaError_t slopes_run(const Slopes &s, cudaStream_t stream)
{
    const int bytes = 4 * (2 * SLOPE * (s.D | 1) + SLOPE * (SLOPE + 2));
    cudaError_t e = cudaMemsetAsync(s.distance, 0, (size_t)s.heads.n * (size_t)s.stripes * (size_t)s.T * 8, stream);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(pattern_slopes<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    pattern_slopes<E><<<dim3((unsigned)s.stripes, (unsigned)s.heads.n), PLAIN_THREADS, bytes, stream>>>(s);
    return cudaGetLastError();
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
/* the same in place, for every size and stride: one pair of columns of q or k */
template <class E> __global__ void rotate_in_place(Tensor q, Tensor k, const float2 *rotation, const int32_t *first, int64_t T, int U,
                                                   int half, int64_t pairs)
{
    int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= pairs) return;
    const int c = int(x % half); x /= half;
    const int u = int(x % (2 * U)); x /= 2 * U;
    const int64_t b = x / T, t = x % T, position = t - (first ? first[b] : 0);
    if (position < 0) return;
    E *e = u < U ? at<E>(q, b, t, u) : at<E>(k, b, t, u - U);
    const float2 cs = rotation[position * half + c]; const float f = to_float(e[c]), g = to_float(e[c + half]);
    e[c] = from_float<E>(f * cs.x - g * cs.y); e[c + half] = from_float<E>(g * cs.x + f * cs.y);
}
template <class E> __global__ void rotate_in_place_by_8(Tensor q, Tensor k, const float2 *rotation, const int32_t *first, int64_t T,
                                                        int U, int half, int64_t pieces)
{
    int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= pieces) return;
    const int c = int(x % (half / 8)) * 8; x /= half / 8;
    const int u = int(x % (2 * U)); x /= 2 * U;
    const int64_t b = x / T, t = x % T, position = t - (first ? first[b] : 0);
    if (position < 0) return;
    E *e = u < U ? at<E>(q, b, t, u) : at<E>(k, b, t, u - U);
    union Piece { uint4 raw; E e[8]; } y, z;
    y.raw = *(const uint4 *)(e + c); z.raw = *(const uint4 *)(e + c + half);
    const float4 *table = (const float4 *)(rotation + position * half + c);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float4 cs = table[i / 2];
        float f = to_float(y.e[i]), g = to_float(z.e[i]);
        y.e[i] = from_float<E>(f * cs.x - g * cs.y); z.e[i] = from_float<E>(g * cs.x + f * cs.y);
        f = to_float(y.e[i + 1]); g = to_float(z.e[i + 1]);
        y.e[i + 1] = from_float<E>(f * cs.z - g * cs.w); z.e[i + 1] = from_float<E>(g * cs.z + f * cs.w);
    }
    *(uint4 *)(e + c) = y.raw; *(uint4 *)(e + c + half) = z.raw;
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
    __device__ Turns(int group) : group(group) { if (WG > 1 && group == WG - 1) group_arrive(1, 256); }
    __device__ __forceinline__ void begin() const { if (WG > 1) group_sync(1 + group, 256); }
    __device__ __forceinline__ void end() const { if (WG > 1) group_arrive(1 + (group + 1) % WG, 256); }
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
         its values.  Tiles run from the diagonal to key 0: only the first one is masked, and every row sees a key in it.
         WG = 1: two blocks a processor, one's exponentials under the other's products.                                        */
template <class E, int DP, int WG>
__global__ __launch_bounds__(128 * (WG + 1), WG == 1 ? 2 : 1) void live_forward(const __grid_constant__ Live a,
        const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk, const __grid_constant__ CUtensorMap mv)
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
        for (int s = 0; s < STAGES; s++) {
            barrier_init(&full_k[s], 1);
            barrier_init(&full_v[s], 1);
            barrier_init(&empty_k[s], 4 * WG * ARRIVALS);
            barrier_init(&empty_v[s], 4 * WG * ARRIVALS);
        }
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
    registers_up<WG == 3 ? 160 : WG == 2 ? 240 : 216>();
    const Turns<WG> turns(group);
    const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const uint32_t q = descriptor_low(shared_address(Q) + 64 * group * SW, 16), k = descriptor_low(shared_address(K), 16),
        v = descriptor_low(shared_address(V), N * SW);
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
__global__ __launch_bounds__(128 * (WG + 1), 1) void live_backward_rows(const __grid_constant__ Live a,
        const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
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
    const uint32_t k = descriptor_low(shared_address(K), 16), kt = descriptor_low(shared_address(K), N * SW),
        v = descriptor_low(shared_address(V), 16);
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
__global__ __launch_bounds__(384, 1) void live_backward_keys(const __grid_constant__ Live a, const __grid_constant__ CUtensorMap mq,
                                                             const __grid_constant__ CUtensorMap mk,
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
    const uint32_t q = descriptor_low(shared_address(Q), 16), qt = descriptor_low(shared_address(Q), N * SW),
        g = descriptor_low(shared_address(G), 16), gt = descriptor_low(shared_address(G), N * SW);
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
         adjoint: S_r(i1) = sum_{i>=i1} decay_r^(i-i1) row[i] dy[i],  far dv[j] = col[j] sum_r coef_r decay_r^(i1-j-W) S_r(i1),
         i1 = j0 + 128 + Wc  */
struct Static {
    Tensor in, out; Prepared pre; Heads heads; float *sums; bf16 *states;
    int64_t B, T; int D, blocks, b_groups, linear, terms, sum_batch; int64_t items;     /* terms: 8, or MAX_R */
};
enum { SM = 128, SK = 64, FAR_ROWS = 2 * MAX_R };
enum { SHORT = 512 };                      /* up to here a linear head is cheaper by its tiles alone */

/* addresses in shared memory, kept in a register, and reads by them: the compiler sees neither that a ring is shared memory nor where it begins */
__device__ __forceinline__ uint32_t kept_address(const void *p) { uint32_t x = shared_address(p); asm volatile("" : "+r"(x)); return x; }
__device__ __forceinline__ float shared_one(uint32_t p) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(p) : "memory"); return x; }
__device__ __forceinline__ float2 shared_two(uint32_t p)
{
    float2 x; asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(p) : "memory"); return x;
}
/* (P2) the cells P[i,j] = w[i-j] col[j] row[i] of a warp's 16 rows and a tile's 64 keys (adjoint: the other way round), as the A operands of its four
   products: w and c are the addresses of the lane's first distance and first column, f0 and f1 the factors of its two rows.     */
template <class E, bool ADJOINT> __device__ __forceinline__ void pattern_cells(uint32_t (&A)[16], uint32_t w, uint32_t c, float f0, float f1)
{
    constexpr uint32_t S = ADJOINT ? 4u : 0u - 4u;                               /* bytes, modulo 2^32: w runs along a row by S per column */
    float2 back = make_float2(shared_one(w - 8 * S), shared_one(w - 7 * S));
#pragma unroll
    for (int kk = 0; kk < SK / 16; kk++) {
        const uint32_t u = w + 16 * kk * S;
        const float2 here = make_float2(shared_one(u), shared_one(u + S)), ahead = make_float2(shared_one(u + 8 * S), shared_one(u + 9 * S)),
            cl = shared_two(c + 64 * kk), ch = shared_two(c + 64 * kk + 32);
        A[4 * kk]     = pack<E>(here.x * cl.x * f0, here.y * cl.y * f0);
        A[4 * kk + 1] = pack<E>(back.x * cl.x * f1, back.y * cl.y * f1);
        A[4 * kk + 2] = pack<E>(ahead.x * ch.x * f0, ahead.y * ch.y * f0);
        A[4 * kk + 3] = pack<E>(here.x * ch.x * f1, here.y * ch.y * f1);
        back = ahead;
    }
}
template <class E, int DP, int NB, bool ADJOINT>
__global__ __launch_bounds__(384, 1) void static_apply(const __grid_constant__ Static a, const __grid_constant__ CUtensorMap mv,
                                                       const __grid_constant__ CUtensorMap ms)
{
#if HOPPER
    typedef Panels<DP> P;
    enum { N = DP * NB, TILE = SK * N * 2, SLOT = TILE + 1024, STAGES = 196608 / SLOT > 6 ? 6 : 196608 / SLOT };
    extern __shared__ char raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    char *ring = aligned_shared(raw);
    const int group = warpgroup() - 1, lane = threadIdx.x % 32, far_rows = 2 * a.terms;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 8 * ARRIVALS); }
        barrier_fence();
    }
    __syncthreads();
    let_next_start(); wait_for_previous();
    const uint32_t at_ring = kept_address(ring), at_full = kept_address(full), at_empty = kept_address(empty);
    /* item -> head, block of rows, sequences (linear: neighbours in time, who read the same rows; exact: the longest first); and the
       range [t0, t1) that it reads, far: states too */
    int h, block, b0, far; int64_t i0, t0, t1;
    auto locate = [&](int64_t item) {
        const int64_t per = int64_t(a.blocks) * a.b_groups;
        h = int(item / per); const int r = int(item % per);
        block = a.linear ? r % a.blocks : r / a.b_groups; b0 = (a.linear ? r / a.blocks : r % a.b_groups) * NB;
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
                    for (int q = 0; q < P::COUNT; q++)
                        copy_tile(slot + q * NB * SK * P::SW, &mv, &full[s], q * P::COLUMNS, (int)t, a.heads.kept[h], b0);
                    copy_line(slot + TILE, w + (ADJOINT ? t - i0 - 128 : i0 - t - 64), 768, &full[s]);
                    copy_line(slot + TILE + 768, c + t, 256, &full[s]);
                }
                if (far) {
                    const int s = x % STAGES;
                    barrier_wait(&empty[s], x / STAGES % 2 ^ 1); barrier_expect(&full[s], far_rows * N * 2);
                    for (int q = 0; q < P::COUNT; q++)
                        copy_tile(ring + s * SLOT + q * NB * far_rows * P::SW, &ms, &full[s], q * P::COLUMNS, block * far_rows, h, b0);
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
        /* the tile on the other side of the diagonal for this warpgroup holds zeros only */
        auto skipped = [&](int64_t t) { return ADJOINT ? t == i0 && group == 1 : t == i0 + SK && group == 0; };
        int keep = 0, pending = -1; bool odd = false;
        auto tile = [&](int64_t t, uint32_t (&A)[16]) {
            const int s = x % STAGES;
            barrier_wait(at_full + s * 8, x / STAGES % 2);
            if (skipped(t)) { barrier_done(at_empty + s * 8); x++; return; }
            pattern_cells<E, ADJOINT>(A, at_ring + s * SLOT + TILE + origin * 4, at_ring + s * SLOT + TILE + 768 + lane % 4 * 8, f0, f1);
            wgmma_wait<0>();
            if (pending >= 0) barrier_done(at_empty + pending * 8);
            wgmma_hold(A); wgmma_hold(acc); wgmma_fence();
            product_values<E, N, SK, P::SW>(acc, A, descriptor_low(at_ring + s * SLOT, SK * P::SW), keep);
            wgmma_commit();
            keep = 1; pending = s; x++;
        };
        for (int64_t t = t0; t < t1; t += SK, odd = !odd)
            if (odd) tile(t, A[1]); else tile(t, A[0]);
        wgmma_wait<0>();
        if (pending >= 0) barrier_done(at_empty + pending * 8);
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
            barrier_wait(at_full + s * 8, x / STAGES % 2);
            const uint32_t states = descriptor_low(at_ring + s * SLOT, far_rows * P::SW); const bool few = a.terms == 8;
            if (few) { F[2] = F[0]; F[3] = F[1]; F[4] = F[5] = F[6] = F[7] = 0; }        /* high parts and rests in one step; the other adds zeros */
            wgmma_fence();
            wgmma_rs<bf16, N>(acc, F, descriptor<P::SW>(states), keep);
            wgmma_rs<bf16, N>(acc, F + 4, descriptor<P::SW>(states + (few ? 0 : P::SW)), 1);
            wgmma_commit(); wgmma_wait<0>();
            barrier_done(at_empty + s * 8);
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

/* mma m16n8k16 of bf16 weights and values; a value in fp16 is the sum of two in bf16 */
template <class E> __device__ __forceinline__ void states_product(float (&d)[4], const uint32_t (&A)[4], uint32_t u, uint32_t w)
{
    auto mma = [&](uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(b0), "r"(b1));
    };
    if constexpr (is_bf16<E>::value) mma(u, w);
    else {
        const float2 f = __half22float2(*(const __half2 *)&u), g = __half22float2(*(const __half2 *)&w);
        const uint32_t fh = pack<bf16>(f.x, f.y), gh = pack<bf16>(g.x, g.y);
        const float2 r = __bfloat1622float2(*(const __nv_bfloat162 *)&fh), t = __bfloat1622float2(*(const __nv_bfloat162 *)&gh);
        mma(fh, gh);
        mma(pack<bf16>(f.x - r.x, f.y - r.y), pack<bf16>(g.x - t.x, g.y - t.y));
    }
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
    const int64_t k0 = int64_t(block) * SM + (ADJOINT ? Wc : -Wc), b0 = int64_t(bg) * a.sum_batch,
        b1 = b0 + a.sum_batch < a.B ? b0 + a.sum_batch : a.B;
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
                A[kk][2 * e] = pack<bf16>(lam[n] * u, lam[m] * w); A[kk][2 * e + 1] = 0;
                if (a.terms > 8) A[kk][2 * e + 1] = pack<bf16>(lam[8 * LAM + n] * u, lam[8 * LAM + m] * w);
            }
    }
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
                states_product<E>(d[n], A[kk], u, w);
            }
        float *to = a.sums + ((int64_t(h) * a.B + b) * a.blocks + block) * a.terms * DP;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int column = (warp * NT + n) * 8 + 2 * (lane % 4);
            *(float2 *)(to + lane / 4 * DP + column) = make_float2(d[n][0], d[n][1]);
            if (a.terms > 8) *(float2 *)(to + (lane / 4 + 8) * DP + column) = make_float2(d[n][2], d[n][3]);
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
    const int c = int(x % DP), terms = a.terms, r = int(x / DP % terms); x /= DP * terms;
    const int h = int(x / a.B);
    if (h >= a.heads.n) return;
    const float *lam = a.pre.lam + (a.heads.slot[h] * MAX_R + r) * LAM;
    const float decay = lam[128], *sum = a.sums + x * a.blocks * terms * DP + r * DP + c;
    bf16 *to = a.states + x * a.blocks * 2 * terms * DP + r * DP + c;
    float s = 0;
    for (int n = 0; n < a.blocks; n += 32) {
        float u[32];
#pragma unroll
        for (int e = 0; e < 32; e++) { int k = ADJOINT ? a.blocks - 1 - n - e : n + e; u[e] = n + e < a.blocks ? sum[int64_t(k) * terms * DP] : 0.f; }
#pragma unroll
        for (int e = 0; e < 32; e++)
            if (n + e < a.blocks) {
                const int64_t k = ADJOINT ? a.blocks - 1 - n - e : n + e; const bf16 high = from_float<bf16>(s);
                to[k * 2 * terms * DP] = high; to[(k * 2 + 1) * terms * DP] = from_float<bf16>(s - to_float(high));
                s = s * decay + u[e];
            }
    }
}

/* card  rows in chains (P4) (P5): what static_sums, static_carry and static_apply do for linear heads, in one pass, for batches large enough:
         a block takes a head and NB sequences from the first position to the last.  Values are read once and stay in shared memory as
         long as they are near; as they leave, a warpgroup of its own takes them into the states, in registers.  FEW: up to 8 terms.
         O(T (W + R) D) as before; tests/gpu/attention.c                                                                       */
template <int DP, int NB> struct Chain { enum { N = DP * NB, TILE = SK * N * 2, SLOTS = 196608 / TILE }; };     /* SLOTS: at least MAX_W / SK + 2 */
template <class E, int DP, int NB, bool FEW>
__global__ __launch_bounds__(384, 1) void static_chain(const __grid_constant__ Static a, const __grid_constant__ CUtensorMap mv)
{
#if HOPPER
    typedef Panels<DP> P; typedef Chain<DP, NB> C;
    enum { N = C::N, TILE = C::TILE, SLOTS = C::SLOTS, TERMS = FEW ? 8 : MAX_R, STATES = 2 * TERMS * N * 2, NT = N / 32, HALVES = FEW ? 1 : 2 };
    extern __shared__ char raw[];
    __shared__ uint64_t full[SLOTS], empty[SLOTS], told[2], heard[2], ready;
    __shared__ alignas(16) float w[MAX_W + 256], col[SLOTS][SK];                 /* w: from distance -128 on */
    char *ring = aligned_shared(raw), *states = ring + SLOTS * TILE;
    const int role = warpgroup(), lane = threadIdx.x % 32, h = blockIdx.x % a.heads.n, b0 = blockIdx.x / a.heads.n * NB;
    const int p = a.heads.slot[h], Wc = a.pre.info[p].Wc;
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLOTS; s++) { barrier_init(&full[s], 1); barrier_init(&empty[s], 12 * ARRIVALS); }
        for (int s = 0; s < 2; s++) { barrier_init(&told[s], 4 * ARRIVALS); barrier_init(&heard[s], 8 * ARRIVALS); }
        barrier_init(&ready, 1);
        barrier_fence();
    }
    __syncthreads();
    let_next_start(); wait_for_previous();
    const uint32_t at_full = kept_address(full), at_empty = kept_address(empty), at_ring = kept_address(ring), at_states = kept_address(states),
        at_col = kept_address(col), at_told = kept_address(told), at_heard = kept_address(heard);
    auto swizzled = [](int row, int piece) { return row * P::SW + ((P::SW == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3)) << 4); };
    if (role == 0) {                                                             /* one lane copies; states: rows of d are terms, columns NT groups of 8 a warp */
        registers_down<88>();
        auto load = [&](int x, int s, uint32_t parity) {
            barrier_wait(at_empty + s * 8, parity); barrier_expect(&full[s], TILE + SK * 4);
            for (int q = 0; q < P::COUNT; q++)
                copy_tile(ring + s * TILE + q * NB * SK * P::SW, &mv, &full[s], q * P::COLUMNS, x * SK, a.heads.kept[h], b0);
            copy_line(col[s], a.pre.col + p * a.pre.Tp + x * SK, SK * 4, &full[s]);
        };
        if (threadIdx.x == 0) {
            barrier_expect(&ready, (Wc + 256) * 4); copy_line(w, a.pre.w + p * a.pre.Tw, (Wc + 256) * 4, &ready);
            for (int x = 0; x < SLOTS && x < 2 * a.blocks; x++) load(x, x, 1);
        }
        __syncwarp();
        const int first = threadIdx.x / 32 % 4 * NT * 8, r = lane / 4, c2 = 2 * (lane % 4);
        const float *lam = a.pre.lam + (p * MAX_R + r) * LAM; const float decay[2] = { lam[SK], lam[8 * LAM + SK] };
        float l[HALVES][SK / 16][4], d[NT][4] = {};
#pragma unroll
        for (int e = 0; e < HALVES; e++)
#pragma unroll
            for (int kk = 0; kk < SK / 16; kk++)
#pragma unroll
                for (int i = 0; i < 4; i++) l[e][kk][i] = lam[e * 8 * LAM + 63 - 16 * kk - i / 2 * 8 - c2 - i % 2];
        int turn = 0, s = 0, x = 0; uint32_t parity = 0;                         /* tile x in slot s is the next to leave */
        for (int n = 0; n < a.blocks; n++) {
            const int k0 = n * SM - Wc;
            if (k0 > 0) {
                const uint32_t to = at_states + turn % 2 * STATES + 2 * c2;
                barrier_wait(at_heard + turn % 2 * 8, turn / 2 % 2 ^ 1);
#pragma unroll
                for (int g = 0; g < NT; g++) {
                    const int c = first + 8 * g; const uint32_t panel = to + c / P::COLUMNS * 2 * TERMS * P::SW;
#pragma unroll
                    for (int e = 0; e < HALVES; e++) {
                        const float x = d[g][2 * e], y = d[g][2 * e + 1]; const uint32_t high = pack<bf16>(x, y);
                        const uint32_t rest = pack<bf16>(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xFFFF0000u));
                        asm volatile("st.shared.u32 [%0], %1;" :: "r"(panel + swizzled(r + 8 * e, c % P::COLUMNS / 8)), "r"(high) : "memory");
                        asm volatile("st.shared.u32 [%0], %1;" :: "r"(panel + swizzled(TERMS + r + 8 * e, c % P::COLUMNS / 8)), "r"(rest) : "memory");
                    }
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                barrier_release(at_told + turn % 2 * 8);
                turn++;
            }
            for (; x * SK < k0 + SM && n + 1 < a.blocks; x++) {
                barrier_wait(at_full + s * 8, parity);
#pragma unroll
                for (int g = 0; g < NT; g++)
#pragma unroll
                    for (int e = 0; e < 4; e++) d[g][e] *= decay[e / 2];
#pragma unroll
                for (int kk = 0; kk < SK / 16; kk++) {
                    const uint32_t c = at_col + (s * SK + 16 * kk + c2) * 4; const float2 u = shared_two(c), v = shared_two(c + 32);
                    uint32_t A[4] = { 0, 0, 0, 0 };
#pragma unroll
                    for (int e = 0; e < HALVES; e++) {
                        A[e] = pack<bf16>(l[e][kk][0] * u.x, l[e][kk][1] * u.y);
                        A[2 + e] = pack<bf16>(l[e][kk][2] * v.x, l[e][kk][3] * v.y);
                    }
#pragma unroll
                    for (int g = 0; g < NT; g++) {
                        const int c = first + 8 * g; uint32_t b0, b1;
                        const uint32_t from = at_ring + s * TILE + c / P::COLUMNS * SK * P::SW + swizzled(16 * kk + lane % 16, c % P::COLUMNS / 8);
                        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(from) : "memory");
                        states_product<E>(d[g], A, b0, b1);
                    }
                }
                barrier_release(at_empty + s * 8);
                if (threadIdx.x == 0 && x + SLOTS < 2 * a.blocks) load(x + SLOTS, s, parity);
                __syncwarp();
                if (++s == SLOTS) { s = 0; parity ^= 1; }
            }
        }
        return;
    }
    registers_up<208>();
    const int group = role - 1, row = 64 * group + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const float *factor = a.pre.row + p * a.pre.Tp + row, *table = a.pre.far + (p * MAX_R + 2 * (lane % 4)) * LAM + row;
    const uint32_t at_w = kept_address(w) + (128 + row - 2 * (lane % 4)) * 4, at_c = at_col + lane % 4 * 8;
    float acc[N / 2], next0 = factor[0], next1 = factor[8], far[HALVES][4]; uint32_t A[2][16];
#pragma unroll
    for (int e = 0; e < HALVES; e++) {
        const float *u = table + 8 * e * LAM;
        far[e][0] = u[0]; far[e][1] = u[LAM]; far[e][2] = u[8]; far[e][3] = u[LAM + 8];
    }
    int turn = 0, oldest = 0; uint32_t lap = 0;                                  /* slot and parity of the block's first tile */
    barrier_wait(&ready, 0);
    for (int n = 0; n < a.blocks; n++) {
        const int i0 = n * SM, k0 = i0 - Wc; const float f0 = next0, f1 = next1;
        next0 = factor[i0 + SM]; next1 = factor[i0 + SM + 8];                    /* tables go on beyond T */
        int keep = 0; uint32_t F[4];
        if (k0 > 0) {
#pragma unroll
            for (int e = 0; e < HALVES; e++) {
                F[2 * e] = pack<bf16>(far[e][0] * f0, far[e][1] * f0);
                F[2 * e + 1] = pack<bf16>(far[e][2] * f1, far[e][3] * f1);
            }
            if constexpr (FEW) { F[2] = F[0]; F[3] = F[1]; }                     /* high parts and rests in one step */
            barrier_wait(at_told + turn % 2 * 8, turn / 2 % 2);
            const uint32_t s = descriptor_low(at_states + turn % 2 * STATES, 2 * TERMS * P::SW);
            wgmma_hold(F); wgmma_hold(acc); wgmma_fence();
            wgmma_rs<bf16, N>(acc, F, descriptor<P::SW>(s), 0);
            if constexpr (!FEW) wgmma_rs<bf16, N>(acc, F, descriptor<P::SW>(s + P::SW), 1);
            wgmma_commit();
            keep = 1;
        }
        const int t0 = k0 > 0 ? k0 : 0, t1 = group ? i0 + SM : i0 + SK;          /* beyond, the first rows see nothing */
        int s = oldest, before = 0; uint32_t parity = lap;
        auto tile = [&](int t, uint32_t (&A)[16]) {
            barrier_wait(at_full + s * 8, parity);
            pattern_cells<E, false>(A, at_w + (i0 - t) * 4, at_c + s * SK * 4, f0, f1);
            wgmma_wait<0>();
            if (t > t0 && t - SK < k0 + SM) barrier_done(at_empty + before * 8); /* the tile before this one leaves */
            wgmma_hold(A); wgmma_hold(acc); wgmma_fence();
            product_values<E, N, SK, P::SW>(acc, A, descriptor_low(at_ring + s * TILE, SK * P::SW), keep);
            wgmma_commit();
            keep = 1; before = s;
            if (++s == SLOTS) { s = 0; parity ^= 1; }
        };
        bool odd = false;
        for (int t = t0; t < t1; t += SK, odd = !odd)
            if (odd) tile(t, A[1]); else tile(t, A[0]);
        wgmma_wait<0>(); wgmma_hold(acc);
        if (t1 - SK < k0 + SM) barrier_done(at_empty + before * 8);
        if (k0 > 0) { barrier_done(at_heard + turn % 2 * 8); turn++; }
        for (int t = t0; t < k0 + SM; t += SK) if (++oldest == SLOTS) { oldest = 0; lap ^= 1; }
#pragma unroll
        for (int hh = 0; hh < 2; hh++) {
            const int64_t t = i0 + row + 8 * hh; E *to = at<E>(a.out, b0, t, a.heads.kept[h]);
#pragma unroll
            for (int b = 0; b < NB; b++, to += a.out.b)
#pragma unroll
                for (int q = 0; q < P::COUNT; q++)
                    store_row<E, P::COLUMNS>(acc + (q * NB + b) * (P::COLUMNS / 2), hh, 1.f, t < a.T && b0 + b < a.B ? to : (E *)0,
                                             q * P::COLUMNS, a.D);
        }
    }
#endif
}

/* ==== @@CALL ============================================================================================================= */

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
EncodeTiled find_encode_tiled()
{
    void *f = 0; cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) return 0;
    return (EncodeTiled)f;
}
EncodeTiled encode_tiled() { static const EncodeTiled f = find_encode_tiled(); return f; }
/* A tensor [B,T,H,D] seen in boxes of `rows` positions of `batch` sequences of one head, one panel of columns at a time; zeros outside.
   alone: memory is read in pieces that do not reach into the next head, whose turn comes much later */
bool make_map(CUtensorMap *map, int type, const Tensor &x, int64_t B, int64_t T, int64_t H, int D, int DP, int rows, int batch, bool alone = false)
{
    EncodeTiled encode = encode_tiled();
    if (!encode) return false;
    const bool wide = DP % 64 == 0;
    auto step = [](int64_t s) { return (cuuint64_t)(s > 0 ? s * 2 : 16); };     /* a dimension of one element may have any stride */
    cuuint64_t size[4] = { (cuuint64_t)D, (cuuint64_t)T, (cuuint64_t)H, (cuuint64_t)B }, stride[3] = { step(x.t), step(x.h), step(x.b) };
    cuuint32_t box[4] = { wide ? 64u : 32u, (cuuint32_t)rows, 1, (cuuint32_t)batch }, one[4] = { 1, 1, 1, 1 };
    return encode(map, type == GPTS_GPU_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data, size, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  alone ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* What runs where.  Heads go to the tensor-core kernels when type, head size, strides and alignment allow, else to the plain ones. */
struct Plan {
    int U, n, kept, DP; bool fast_live;
    Heads live, exact, linear, plain, patterns;                                           /* patterns: all static heads, where they go on training */
    size_t counters, rotated, stats, delta, sums, states, slopes, bytes;                          /* offsets into the workspace */
};
bool aligned(const Tensor &x, int64_t B, int64_t T, int64_t H)
{
    return (uintptr_t)x.data % 16 == 0 && (x.b % 8 == 0 || B == 1) && (x.t % 8 == 0 || T == 1) && (x.h % 8 == 0 || H == 1) &&
           (x.t > 0 || T == 1) && (x.h > 0 || H == 1) && (x.b > 0 || B == 1);
}
/* A Hopper device, and code for sm_90a in this build: without it the kernels are empty and own no shared memory. */
bool hopper()
{
    int device = 0, major = 0; cudaFuncAttributes f;
    return cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9 &&
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
size_t stripes_of(int64_t T) { const int64_t tiles = (T + SLOPE - 1) / SLOPE; return (size_t)(tiles < STRIPES ? tiles : STRIPES); }
Plan make_plan(const gpts_gpu_attention *a, bool backward)
{
    Plan p; memset(&p, 0, sizeof p);
    for (int h = 0; h < a->H; h++) {
        p.U += a->kind[h] == GPTS_GPU_LIVE; p.n += a->kind[h] == GPTS_GPU_EXACT || a->kind[h] == GPTS_GPU_LINEAR;
        p.kept += a->kind[h] != GPTS_GPU_PRUNED;
    }
    p.DP = a->D <= 64 ? 64 : a->D <= 96 ? 96 : 128;
    const bool fast = !a->plain && a->type != GPTS_GPU_F32 && a->D % 8 == 0 && a->D <= 128 && a->B < (1 << 30) && hopper() &&
        aligned(a->v, a->B, a->T, p.kept) && (backward ? aligned(a->dy, a->B, a->T, p.kept) &&
                                              aligned(a->dv, a->B, a->T, p.kept) : true) && aligned(a->y, a->B, a->T, p.kept);
    p.fast_live = fast && (a->scale > 0 || a->scale == 0) && (a->theta <= 0 || a->D == p.DP) && aligned(a->q, a->B, a->T, p.U) &&
        aligned(a->k, a->B, a->T, p.U) &&
        (!backward || (aligned(a->dq, a->B, a->T, p.U) && aligned(a->dk, a->B, a->T, p.U)));
    int kept = 0, u = 0, s = 0;
    for (int h = 0; h < a->H; h++) {
        const int kind = a->kind[h];
        if (kind == GPTS_GPU_PRUNED) continue;
        if (kind == GPTS_GPU_LIVE) { add_head(p.fast_live ? p.live : p.plain, kept, u, true); u++; }
        else {
            const bool wide = a->wide && a->wide[h];
            add_head(!fast || wide ? p.plain : kind == GPTS_GPU_LINEAR && runs_linear(a, s) ? p.linear : p.exact, kept, s, false);
            if (backward && a->dalpha && a->drho) add_head(p.patterns, kept, s, false);
            s++;
        }
        kept++;
    }
    const size_t rows = (size_t)a->B * (size_t)a->T, blocks = (size_t)((a->T + SM - 1) / SM), T64 = (size_t)((a->T + 63) / 64 * 64);
    auto take = [&](size_t bytes) { size_t o = p.bytes; p.bytes += (bytes + 1023) / 1024 * 1024; return o; };
    /* by kinds and type alone: pointers, strides and wide patterns may change what runs, never how much memory a call needs */
    const bool could = !a->plain && a->type != GPTS_GPU_F32 && a->D % 8 == 0 && a->D <= 128; size_t linear = 0;
    for (int h = 0; h < a->H; h++) linear += could && a->kind[h] == GPTS_GPU_LINEAR;
    p.counters = take(could && p.U ? 2 * sizeof(int) : 0);
    p.rotated = take(could && a->theta > 0 && !a->rotated ? 2 * rows * p.U * a->D * 2 : 0);
    p.stats = take(could && backward ? 2 * (size_t)a->B * p.U * T64 * 4 : 0);
    p.delta = take(backward ? rows * p.U * 4 : 0);
    p.sums = take(linear * a->B * blocks * MAX_R * p.DP * 4);
    p.states = take(linear * a->B * blocks * FAR_ROWS * p.DP * 2);
    p.slopes = take((size_t)p.patterns.n * (1 + stripes_of(a->T)) * (size_t)a->T * 8);
    return p;
}

Pattern pattern_of(const gpts_gpu_attention *a)
{
    Pattern f; f.alpha = a->alpha; f.rho = a->rho; f.coef = a->coef; f.decay = a->decay; f.S = a->S; f.R = a->coef && a->decay ? a->R : 0;
    return f;
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
    REFUSE((double)a->B * a->H * ceil((double)a->T / PK) > 2147483647., GPTS_GPU_UNSUPPORTED,
           "%lld sequences of %d heads and %lld positions are more than one launch takes", (long long)a->B, a->H, (long long)a->T);
    int n = 0, U = 0;
    for (int h = 0; h < a->H; h++) {
        const int kind = a->kind[h];
        REFUSE(kind > GPTS_GPU_PRUNED, GPTS_GPU_BAD_ARGUMENT, "head %d has the unknown kind %d", h, kind);
        U += kind == GPTS_GPU_LIVE;
        if (kind != GPTS_GPU_EXACT && kind != GPTS_GPU_LINEAR) continue;
        REFUSE(a->S < 1 || !a->alpha || !a->rho, GPTS_GPU_BAD_ARGUMENT, "head %d is static but there is no pattern", h);
        REFUSE(a->R < 0 || a->R > 256, GPTS_GPU_UNSUPPORTED, "%d terms are not between 0 and 256", a->R);
        const int64_t W = a->tail_start ? a->tail_start[n] : a->S; const bool tail = a->R > 0 && a->coef && a->decay && W < a->S;
        REFUSE(kind == GPTS_GPU_LINEAR && (!tail || W < 0), GPTS_GPU_BAD_ARGUMENT,
               "linear head %d needs a tail that starts before S = %lld", h, (long long)a->S);
        REFUSE(a->T > a->S && !tail, GPTS_GPU_UNSUPPORTED, "head %d has no tail, so it ends at %lld positions, not %lld", h,
               (long long)a->S, (long long)a->T);
        n++;
    }
    if (n || a->theta > 0) {
        const size_t need = prepared_layout(a, n).bytes;
        REFUSE(!a->prepared || a->prepared_bytes < need, GPTS_GPU_BAD_ARGUMENT, "the prepared tables need %zu bytes, not %zu", need,
               a->prepared ? a->prepared_bytes : 0);
        REFUSE(n && !a->wide, GPTS_GPU_BAD_ARGUMENT, "static heads need the array wide, one byte a head");
    }
    if (!stage) return GPTS_GPU_OK;
    const bool kept = n + U > 0, back = stage == 2;
    REFUSE(kept && (!a->v.data || !a->y.data || (U && (!a->q.data || !a->k.data || !a->lse))), GPTS_GPU_BAD_ARGUMENT, "q, k, v, y or lse is missing");
    REFUSE(back && kept && (!a->dy.data || !a->dv.data || (U && (!a->dq.data || !a->dk.data))), GPTS_GPU_BAD_ARGUMENT, "dy, dq, dk or dv is missing");
    REFUSE(back && (!a->dalpha != !a->drho || !a->dcoef != !a->ddecay || (a->dcoef && !a->drho)), GPTS_GPU_BAD_ARGUMENT,
           "the gradients of patterns are dalpha and drho, and dcoef and ddecay with them");
    const size_t need = make_plan(a, back).bytes;
    REFUSE(need && (!a->workspace || a->workspace_bytes < need), GPTS_GPU_BAD_ARGUMENT, "the workspace needs %zu bytes, not %zu", need,
           a->workspace ? a->workspace_bytes : 0);
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
template <class E, int DP> cudaError_t live_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, bool backward,
                                                bool follows, cudaStream_t stream)
{
    char *work = (char *)a->workspace; cudaError_t e = cudaSuccess;
    Tensor q = a->q, k = a->k;
    if (a->theta > 0 && !a->rotated)
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
    auto blocks = [&](int M, int tensors, int per = 1) {                         /* per: blocks a processor */
        const int64_t fit = (32 << 20) / (a->T * DP * 2 * tensors);
        l.blocks = (int)((a->T + M - 1) / M); l.shift = (int)(l.blocks * M - l.T64); 
        const int64_t groups = (heads + (fit < 1 ? 1 : fit) - 1) / (fit < 1 ? 1 : fit); l.group = (int)((heads + groups - 1) / groups);
        return heads * l.blocks < per * processors ? heads * l.blocks : per * processors;
    };
    CUtensorMap mq, mk, mv, mg;
    auto map = [&](CUtensorMap &m, const Tensor &x, int H, int rows) { return make_map(&m, a->type, x, a->B, a->T, H, a->D, DP, rows, 1); };
    constexpr int WG = DP == 64 ? 3 : 2;
    if (!backward) {
        if (!map(mq, q, p.U, 64) || !map(mk, k, p.U, 128) || !map(mv, a->v, p.kept, 128)) return (cudaError_t)MAP_FAILED;
        if constexpr (DP == 64)                                                  /* too few items for the GPU: smaller ones, two blocks a processor */
            if (heads * ((a->T + 64 * WG - 1) / (64 * WG)) <= processors) {
                const int64_t grid = blocks(64, 2, 2);
                return launch(live_forward<E, DP, 1>, grid, 256, (64 + 4 * 128) * DP * 2 + 1024, stream, follows, l, mq, mk, mv);
            }
        const int64_t grid = blocks(64 * WG, 2);
        return launch(live_forward<E, DP, WG>, grid, 128 * (WG + 1), (64 * WG + 4 * 128) * DP * 2 + 1024, stream, follows, l, mq, mk, mv);
    }
    if (!map(mq, q, p.U, 64) || !map(mk, k, p.U, 64) || !map(mv, a->v, p.kept, 64) || !map(mg, a->dy, p.kept, 64)) return (cudaError_t)MAP_FAILED;
    constexpr int STAGES = DP == 64 ? 4 : 3;
    int64_t grid = blocks(64 * WG, 2);
    e = launch(live_backward_rows<E, DP, WG>, grid, 128 * (WG + 1), (2 * 64 * WG + 2 * STAGES * 64) * DP * 2 + 1024, stream, follows, l,
               mq, mk, mv, mg);
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
    if (!make_map(&mv, a->type, s.in, a->B, a->T, p.kept, a->D, DP, SK, NB, true)) return (cudaError_t)MAP_FAILED;
    ms = mv;
    const bool far = linear && a->T > SM;
    if (far) {
        const int bytes = 2 * SM * (DP * 2 + 16);
        const int64_t tiles = (int64_t)heads.n * s.blocks, threads = (int64_t)heads.n * a->B * s.terms * DP;
        s.sum_batch = tiles * a->B <= 6 * processors ? 1 : tiles * a->B <= 64 * processors ? 4 : 8;
        if ((e = launch(static_sums<E, DP, ADJOINT>, tiles * ((a->B + s.sum_batch - 1) / s.sum_batch), 128, bytes, stream, follows,
                        s)) != cudaSuccess) return e;
        if ((e = launch(static_carry<DP, ADJOINT>, (threads + 127) / 128, 128, 0, stream, true, s)) != cudaSuccess) return e;
        follows = true;
        Tensor states; states.data = s.states; states.t = DP; states.b = (int64_t)s.blocks * 2 * s.terms * DP; states.h = a->B * states.b;
        if (!make_map(&ms, GPTS_GPU_BF16, states, a->B, (int64_t)s.blocks * 2 * s.terms, heads.n, DP, DP, 2 * s.terms, NB))
            return (cudaError_t)MAP_FAILED;
    }
    constexpr int SLOT = SK * DP * NB * 2 + 1024, STAGES = 196608 / SLOT > 6 ? 6 : 196608 / SLOT;
    e = launch(static_apply<E, DP, NB, ADJOINT>, linear && s.items > processors ? processors : s.items, 384, STAGES * SLOT + 1024,
               stream, follows, s, mv, ms);
    follows = true;
    return e;
}
/* whether a block takes a linear head and NB sequences from end to end: when these are enough for half of the processors, or for a third
   where live heads take the others */
bool in_chains(const gpts_gpu_attention *a, const Plan &p, int NB)
{
    return a->T > SM && (p.live.n ? 3 : 2) * p.linear.n * ((a->B + NB - 1) / NB) >= processor_count();
}
template <class E, int DP, int NB, bool FEW>
cudaError_t chain_launch(const gpts_gpu_attention *a, const Plan &p, Static s, bool &follows, cudaStream_t stream)
{
    typedef Chain<DP, NB> C; CUtensorMap mv;
    s.heads = p.linear;
    if (!make_map(&mv, a->type, s.in, a->B, a->T, p.kept, a->D, DP, SK, NB, true)) return (cudaError_t)MAP_FAILED;
    const cudaError_t e = launch(static_chain<E, DP, NB, FEW>, p.linear.n * ((a->B + NB - 1) / NB), 384,
                                 C::SLOTS * C::TILE + (FEW ? 16 : FAR_ROWS) * C::N * 4 + 1024, stream, follows, s, mv);
    follows = true;
    return e;
}
template <class E, int DP, bool ADJOINT> cudaError_t static_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre,
                                                                bool &follows, cudaStream_t stream)
{
    Static s; memset(&s, 0, sizeof s);
    s.in = ADJOINT ? a->dy : a->v; s.out = ADJOINT ? a->dv : a->y; s.pre = pre; s.B = a->B; s.T = a->T; s.D = a->D;
    s.blocks = (int)((a->T + SM - 1) / SM); s.terms = a->R <= 8 ? 8 : MAX_R;
    s.sums = (float *)((char *)a->workspace + p.sums); s.states = (bf16 *)((char *)a->workspace + p.states);
    cudaError_t e;
    for (int linear = 1; linear >= 0; linear--) {
        const Heads &heads = linear ? p.linear : p.exact;
        if constexpr (!ADJOINT) {
            constexpr int NB = DP == 64 ? 2 : 1; const bool few = s.terms == 8;
            if (linear && in_chains(a, p, few ? 2 * NB : NB)) {
                e = few ? chain_launch<E, DP, 2 * NB, true>(a, p, s, follows, stream) : chain_launch<E, DP, NB, false>(a, p, s, follows, stream);
                if (e != cudaSuccess) return e;
                continue;
            }
        }
        if constexpr (DP == 64)
            e = a->B > 2 ? static_launch<E, DP, 4, ADJOINT>(a, p, s, heads, linear, follows, stream)
              : a->B > 1 ? static_launch<E, DP, 2, ADJOINT>(a, p, s, heads, linear, follows, stream)
              : static_launch<E, DP, 1, ADJOINT>(a, p, s, heads, linear, follows, stream);
        else
            e = a->B > 1 ? static_launch<E, DP, 2, ADJOINT>(a, p, s, heads, linear, follows, stream)
              : static_launch<E, DP, 1, ADJOINT>(a, p, s, heads, linear, follows, stream);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}
enum { BESIDE = 4 };                       /* blocks of live rows a processor */
template <class E, int DP> cudaError_t fast_run(const gpts_gpu_attention *a, const Plan &p, const Prepared &pre, bool backward, cudaStream_t stream)
{
    cudaError_t e = cudaSuccess; bool follows = false;
    if (p.live.n) e = cudaMemsetAsync((char *)a->workspace + p.counters, 0, 2 * sizeof(int), stream);
    if (e == cudaSuccess && p.live.n && a->theta > 0 && !a->rotated) e = rotate_run<E>(a, p, pre, stream);
    /* few live heads: their longest blocks take a while on some processors, and the static ones run on the others */
    if (e == cudaSuccess && a->beside && p.live.n && p.linear.n + p.exact.n &&
        a->B * p.U * ((a->T + 127) / 128) <= BESIDE * (int64_t)processor_count()) {
        const cudaStream_t beside = (cudaStream_t)a->beside;
        if ((e = cudaEventRecord((cudaEvent_t)a->events[0], stream)) == cudaSuccess) e = cudaStreamWaitEvent(beside, (cudaEvent_t)a->events[0], 0);
        if (e == cudaSuccess) e = live_run<E, DP>(a, p, pre, backward, false, stream);
        if (e == cudaSuccess)
            e = backward ? static_run<E, DP, true>(a, p, pre, follows, beside) : static_run<E, DP, false>(a, p, pre, follows, beside);
        if (e == cudaSuccess) e = cudaEventRecord((cudaEvent_t)a->events[1], beside);
        return e == cudaSuccess ? cudaStreamWaitEvent(stream, (cudaEvent_t)a->events[1], 0) : e;
    }
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
    f.scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->D); f.rotation = a->theta > 0 ? pre.rotation : 0;
    f.turn = a->rotated ? 0 : f.rotation; f.pre = pre; f.heads = p.plain;
    e = a->type == GPTS_GPU_F32 ? plain_run<float>(f, backward, stream)
      : a->type == GPTS_GPU_F16 ? plain_run<fp16>(f, backward, stream) : plain_run<bf16>(f, backward, stream);
    if (e != cudaSuccess || !p.patterns.n) return checked(a, e);
    Slopes g; memset(&g, 0, sizeof g);
    g.v = a->v; g.y = a->y; g.dy = a->dy; g.B = a->B; g.T = a->T; g.D = a->D; g.stripes = (int)stripes_of(a->T); g.pre = pre; g.heads = p.patterns;
    g.key = (double *)((char *)a->workspace + p.slopes); g.distance = g.key + p.n * a->T;
    e = a->type == GPTS_GPU_F32 ? slopes_run<float>(g, stream) : a->type == GPTS_GPU_F16 ? slopes_run<fp16>(g, stream) : slopes_run<bf16>(g, stream);
    if (e != cudaSuccess) return checked(a, e);
    pattern_collect<<<(unsigned)p.n, 256, 0, stream>>>(g, pattern_of(a), a->dalpha, a->drho, a->dcoef, a->ddecay);
    return checked(a, cudaGetLastError());
}
} /* namespace */

extern "C" {

size_t gpts_gpu_attention_struct_size(void) { return sizeof(gpts_gpu_attention); }
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
        info[n].linear = a->kind[h] == GPTS_GPU_LINEAR; info[n].W = (int)(W < a->S ? W : a->S);
        info[n].Wc = info[n].linear ? (info[n].W + 63) / 64 * 64 : 0;
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
        const Pattern f = pattern_of(a);
        e = cudaMemcpyAsync(p.info, info, n * sizeof(Info), cudaMemcpyHostToDevice, stream);
        if (e == cudaSuccess) { prepare_extend<<<n, 256, 0, stream>>>(p, f); e = cudaGetLastError(); }
        if (e == cudaSuccess) { prepare_normaliser<<<(unsigned)((n * a->T + 7) / 8), 256, 0, stream>>>(p, n); e = cudaGetLastError(); }
        if (e == cudaSuccess) {
            prepare_factors<<<dim3((unsigned)((p.Tw + 255) / 256), (unsigned)n), 256, 0, stream>>>(p, n);
            e = cudaGetLastError();
        }
        if (e == cudaSuccess) e = cudaMemcpyAsync(info, p.info, n * sizeof(Info), cudaMemcpyDeviceToHost, stream);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    for (int i = 0; i < n && e == cudaSuccess; i++) a->wide[index[i]] = info[i].wide != 0;
    return checked(a, e);
}
gpts_gpu_status gpts_gpu_attention_rotate(gpts_gpu_attention *a, const int32_t *first)
{
    gpts_gpu_status status = validate(a, 0);
    if (status != GPTS_GPU_OK || a->theta <= 0) return status;
    int n = 0, U = 0;
    for (int h = 0; h < a->H; h++) { U += a->kind[h] == GPTS_GPU_LIVE; n += a->kind[h] == GPTS_GPU_EXACT || a->kind[h] == GPTS_GPU_LINEAR; }
    if (!U) return GPTS_GPU_OK;
    const float2 *table = prepared_layout(a, n).rotation;
    const bool by_8 = a->type != GPTS_GPU_F32 && a->D % 16 == 0 && aligned(a->q, a->B, a->T, U) && aligned(a->k, a->B, a->T, U);
    const int64_t items = a->B * a->T * 2 * U * (a->D / 2) / (by_8 ? 8 : 1); const unsigned blocks = (unsigned)((items + 255) / 256);
    REFUSE((items + 255) / 256 > 2147483647, GPTS_GPU_UNSUPPORTED, "more heads and positions than one launch takes");
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->type == GPTS_GPU_F32) rotate_in_place<float><<<blocks, 256, 0, stream>>>(a->q, a->k, table, first, a->T, U, a->D / 2, items);
    else if (a->type == GPTS_GPU_F16 && by_8) rotate_in_place_by_8<fp16><<<blocks, 256, 0, stream>>>(a->q, a->k, table, first, a->T, U,
            a->D / 2, items);
    else if (a->type == GPTS_GPU_F16) rotate_in_place<fp16><<<blocks, 256, 0, stream>>>(a->q, a->k, table, first, a->T, U, a->D / 2, items);
    else if (by_8) rotate_in_place_by_8<bf16><<<blocks, 256, 0, stream>>>(a->q, a->k, table, first, a->T, U, a->D / 2, items);
    else rotate_in_place<bf16><<<blocks, 256, 0, stream>>>(a->q, a->k, table, first, a->T, U, a->D / 2, items);
    return checked(a, cudaGetLastError());
}
gpts_gpu_status gpts_gpu_attention_forward(gpts_gpu_attention *a) { return run(a, false); }
gpts_gpu_status gpts_gpu_attention_backward(gpts_gpu_attention *a) { return run(a, true); }

const char *gpts_gpu_status_text(gpts_gpu_status status)
{
    return status == GPTS_GPU_OK ? "done" : status == GPTS_GPU_BAD_ARGUMENT ? "an argument is wrong"
         : status == GPTS_GPU_UNSUPPORTED ? "not supported" : "the device failed";
}
} /* extern "C" */
#endif /* GPTS_GPU_MODEL_ONLY */

#ifndef GPTS_GPU_ATTENTION_ONLY
/* ==== @@DEVICE  the GPU as a model sees it: memory, failures, tables ======================================================

   A model that gpts_gpu_attach moved here keeps its parameters, gradients and moments in fp32.  Activations, and the factors of
   every product, are bf16 (sums in fp32), or all is fp32 in the mode that is there to be compared with the CPU.  Products read a
   bf16 shadow of the parameters; the optimiser writes it along with them.  All work is queued on one stream; only downloads wait.
   Sums have a fixed order and nothing is added atomically: the same calls give the same bits.                                 */
#include <cub/device/device_radix_sort.cuh>
#include <cublasLt.h>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace {

/* a piece of a tensor, for the optimiser */
struct Chunk { float *p, *g, *m, *v; bf16 *shadow; int32_t n; float decay; };

/* one allocation; the shadow is made when a product first reads from it */
struct Memory { size_t bytes; bf16 *shadow; bool stale; unsigned version; };   /* version: changes so far */

/* what a product is, and how cuBLAS does it */
struct ProductKey {
    int64_t m, n, k, lda, ldb, ldd; int ta, tb, type, out, add, bias, aligned;
    bool operator<(const ProductKey &o) const { return memcmp(this, &o, sizeof o) < 0; }
};
struct ProductPlan { cublasLtMatmulDesc_t desc; cublasLtMatrixLayout_t a, b, d; cublasLtMatmulAlgo_t algo; bool found; };

enum { SCRATCH_PRODUCT, SCRATCH_ATTENTION, SCRATCH_ROWS, SCRATCH_LOGITS, SCRATCH_SUMS, SCRATCH_SORT, SCRATCH_UPDATES, SCRATCH_COUNT };
enum { STAGE_BYTES = 1 << 22 };

/* work that has been recorded: seen once under this key, or ready to be launched again; good as long as no memory it knows has moved */
struct Replay { uint64_t generation; cudaGraphExec_t ready; bool hopeless; };

struct Gpu {
    cudaStream_t stream;                                     /* stays first: benchmarks time on it */
    cudaStream_t beside; cudaEvent_t fork, join;             /* for static heads beside live ones */
    int device, type;                                        /* GPTS_GPU_BF16 or GPTS_GPU_F32 */
    cublasLtHandle_t lt;
    gpts_ops ops; int holds;
    gpts_status status; char error[GPTS_ERROR_BYTES];        /* the first failure */
    std::map<char *, Memory> memory;
    std::map<ProductKey, ProductPlan> products;
    std::map<std::string, Replay> replays; uint64_t generation; Replay *recording;
    void *scratch[SCRATCH_COUNT]; size_t scratch_bytes[SCRATCH_COUNT];
    char *stage; size_t staged; cudaEvent_t stage_free;      /* pinned: uploads do not wait for the stream */
    std::vector<Chunk> updates; size_t chunks;               /* the tensors whose chunks SCRATCH_UPDATES holds, and their number */
    size_t size() const { return type == GPTS_GPU_BF16 ? 2 : 4; }
};

Gpu &gpu_of(void *device) { Gpu &g = *(Gpu *)device; cudaSetDevice(g.device); return g; }

void fail(Gpu &g, gpts_status status, const char *format, const char *what, const char *why)
{
    if (g.status != GPTS_OK) return;
    g.status = status; snprintf(g.error, sizeof g.error, format, what, why);
}
bool fine(Gpu &g, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return true;
    cudaGetLastError();
    fail(g, e == cudaErrorMemoryAllocation ? GPTS_NO_MEMORY : GPTS_DEVICE, "%s: the device reports: %s", what, cudaGetErrorString(e));
    return false;
}
bool launched(Gpu &g, const char *what) { return fine(g, cudaGetLastError(), what); }
unsigned grid(int64_t items, int64_t each) { return (unsigned)((items + each - 1) / each); }

/* memory between operations whose contents do not outlive one; NULL (and the failure noted) if there is none */
template <class P> P *scratch(Gpu &g, int which, size_t bytes)
{
    if (g.scratch_bytes[which] < bytes) {
        if (g.scratch[which]) { cudaStreamSynchronize(g.stream); cudaFree(g.scratch[which]); }
        g.scratch[which] = 0; g.scratch_bytes[which] = 0; g.generation++;
        if (!fine(g, cudaMalloc(&g.scratch[which], bytes), "working memory")) { g.scratch[which] = 0; return 0; }
        g.scratch_bytes[which] = bytes;
    }
    return (P *)g.scratch[which];
}

gpts_status gpu_allocate(void *device, size_t bytes, void **memory)
{
    Gpu &g = gpu_of(device);
    *memory = 0;
    cudaError_t e = cudaMalloc(memory, bytes ? bytes : 1);
    if (e != cudaSuccess) { cudaGetLastError(); *memory = 0; return e == cudaErrorMemoryAllocation ? GPTS_NO_MEMORY : GPTS_DEVICE; }
    Memory m = { bytes, 0, true, 0 };
    g.memory[(char *)*memory] = m;
    return GPTS_OK;
}
void gpu_release(void *device, void *memory)
{
    Gpu &g = gpu_of(device);
    auto at = g.memory.find((char *)memory);
    if (at == g.memory.end()) return;
    cudaStreamSynchronize(g.stream);
    if (at->second.shadow) cudaFree(at->second.shadow);
    cudaFree(memory);
    g.memory.erase(at);
    g.updates.clear(); g.generation++;
}
Memory *memory_of(Gpu &g, const void *p, char **base)
{
    auto at = g.memory.upper_bound((char *)p);
    if (at == g.memory.begin()) return 0;
    --at;
    if ((char *)p >= at->first + at->second.bytes) return 0;
    *base = at->first;
    return &at->second;
}
void changed(Gpu &g, const void *p)                          /* by other hands than the optimiser's: the shadow is made anew */
{
    char *base; Memory *m = memory_of(g, p, &base);
    if (m) { m->stale = true; m->version++; }
}

/* Uploads of some size go through pinned memory, so that the caller's may change at once. */
void gpu_upload(void *device, void *to, const void *from, size_t bytes)
{
    Gpu &g = gpu_of(device);
    if (!bytes) return;
    changed(g, to);
    if (!g.stage || bytes > STAGE_BYTES) {
        fine(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, g.stream), "upload");
        fine(g, cudaStreamSynchronize(g.stream), "upload");
        return;
    }
    if (g.staged + bytes > STAGE_BYTES) {
        fine(g, cudaEventSynchronize(g.stage_free), "upload");
        fine(g, cudaStreamSynchronize(g.stream), "upload");
        g.staged = 0;
    }
    memcpy(g.stage + g.staged, from, bytes);
    fine(g, cudaMemcpyAsync(to, g.stage + g.staged, bytes, cudaMemcpyHostToDevice, g.stream), "upload");
    cudaEventRecord(g.stage_free, g.stream);
    g.staged += (bytes + 255) / 256 * 256;
    if (g.staged > STAGE_BYTES) g.staged = STAGE_BYTES;
}
void gpu_download(void *device, void *to, const void *from, size_t bytes)
{
    Gpu &g = gpu_of(device);
    if (!bytes) return;
    if (!fine(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, g.stream), "download") ||
        !fine(g, cudaStreamSynchronize(g.stream), "download")) memset(to, 0, bytes);
}
void gpu_zero(void *device, void *memory, size_t bytes)
{
    Gpu &g = gpu_of(device);
    if (!bytes) return;
    changed(g, memory);
    fine(g, cudaMemsetAsync(memory, 0, bytes, g.stream), "zero");
}
void gpu_copy(void *device, void *to, const void *from, size_t bytes)
{
    Gpu &g = gpu_of(device);
    if (!bytes || to == from) return;
    changed(g, to);
    const bool overlap = (char *)to < (const char *)from + bytes && (const char *)from < (char *)to + bytes;
    if (!overlap) { fine(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g.stream), "copy"); return; }
    char *between = scratch<char>(g, SCRATCH_SUMS, bytes);
    if (!between) return;
    fine(g, cudaMemcpyAsync(between, from, bytes, cudaMemcpyDeviceToDevice, g.stream), "copy");
    fine(g, cudaMemcpyAsync(to, between, bytes, cudaMemcpyDeviceToDevice, g.stream), "copy");
}
gpts_status gpu_status(void *device, char *error)
{
    Gpu &g = gpu_of(device);
    fine(g, cudaPeekAtLastError(), "the stream");
    const gpts_status status = g.status;
    if (status != GPTS_OK && error) memcpy(error, g.error, sizeof g.error);
    g.status = GPTS_OK;
    return status;
}

/* ---- elements ------------------------------------------------------------------------------------------------------------
   Kernels below move W = 8 neighbouring elements a thread, 16 or 32 bytes, where sizes and addresses allow; else W = 1.       */
template <int W> __device__ __forceinline__ void load(const float *p, float (&x)[W])
{
    if constexpr (W == 8) {
        const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
        x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w; x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
    } else x[0] = *p;
}
template <int W> __device__ __forceinline__ void load(const bf16 *p, float (&x)[W])
{
    if constexpr (W == 8) {
        const uint4 a = *(const uint4 *)p;
        const uint32_t u[4] = { a.x, a.y, a.z, a.w };
#pragma unroll
        for (int i = 0; i < 4; i++) { x[2 * i] = __uint_as_float(u[i] << 16); x[2 * i + 1] = __uint_as_float(u[i] & 0xFFFF0000u); }
    } else x[0] = to_float(*p);
}
template <int W> __device__ __forceinline__ void store(float *p, const float (&x)[W])
{
    if constexpr (W == 8) { ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]); ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]); }
    else *p = x[0];
}
template <int W> __device__ __forceinline__ void store(bf16 *p, const float (&x)[W])
{
    if constexpr (W == 8) {
        union { __nv_bfloat162 h[4]; uint4 raw; } u;
#pragma unroll
        for (int i = 0; i < 4; i++) u.h[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        *(uint4 *)p = u.raw;
    } else *p = from_float<bf16>(x[0]);
}
/* eight elements as they lie in memory, to be unpacked when they are used */
template <class E> struct Piece { uint4 raw[sizeof(E) / 2]; };
template <class E> __device__ __forceinline__ Piece<E> piece(const E *p)
{
    Piece<E> x;
#pragma unroll
    for (int i = 0; i < (int)sizeof(E) / 2; i++) x.raw[i] = ((const uint4 *)p)[i];
    return x;
}
template <class E> __device__ __forceinline__ void unpack(const Piece<E> &p, float (&x)[8]) { load<8>((const E *)p.raw, x); }
template <class E> __device__ __forceinline__ float rounded(float x) { return to_float(from_float<E>(x)); }

bool eights(size_t n) { return n % 8 == 0; }
template <class... P> bool eights(size_t n, const void *p, P... rest) { return (uintptr_t)p % 16 == 0 && eights(n, rest...); }

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int m = 16; m; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
    return x;
}
/* of all threads, in a fixed order; every thread gets it */
template <class F> __device__ __forceinline__ float block_all(float x, F f)
{
    __shared__ float part[32];
#pragma unroll
    for (int m = 16; m; m >>= 1) x = f(x, __shfl_xor_sync(~0u, x, m));
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) x = f(x, part[w]);
    return x;
}
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
struct Most { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };

/* runs `CALL` with E the type of activations and W elements a thread */
#define BY_TYPE(g, wide, ...) do { \
    if ((g).type == GPTS_GPU_BF16) { typedef bf16 E; if (wide) { constexpr int W = 8; __VA_ARGS__; } else { constexpr int W = 1; __VA_ARGS__; } } \
    else { typedef float E; if (wide) { constexpr int W = 8; __VA_ARGS__; } else { constexpr int W = 1; __VA_ARGS__; } } } while (0)

/* ==== @@GEMM  products on tensor cores, by cuBLASLt =========================================================================
   Column-major, as cuBLAS counts: d [m,n] = a b (+ d) (+ bias along m), a [m,k] or its transpose, b [k,n] or its transpose.  A
   row-major matrix is the transpose of a column-major one, so y = x w is y^T = w^T x^T, and w^T is w read column-major.        */
template <class E, class O> __global__ void product_plain(int ta, int tb, int64_t m, int64_t n, int64_t k, const E *a, int64_t lda,
                                                          const E *b, int64_t ldb,
                                                          O *d, int64_t ldd, int add, const E *bias)
{
    const int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= m * n) return;
    const int64_t i = x % m, j = x / m;
    float s = 0;
    for (int64_t l = 0; l < k; l++) s += to_float(ta ? a[i * lda + l] : a[l * lda + i]) * to_float(tb ? b[l * ldb + j] : b[j * ldb + l]);
    if (bias) s += to_float(bias[i]);
    d[j * ldd + i] = from_float<O>(add ? s + to_float(d[j * ldd + i]) : s);
}

int alignment(const void *p) { uintptr_t x = (uintptr_t)p; int a = 1; while (a < 256 && x % (2 * (uintptr_t)a) == 0) a *= 2; return a; }

/* Which of cuBLAS's choices: the first, or for large products whichever is fastest here of those that do not split the sum over k.  These
   differ in how they cut the result into tiles, not in the order of a sum, so that what is chosen does not show in the bits.      */
enum { PRODUCT_CHOICES = 12 };
int product_fastest(Gpu &g, const ProductKey &key, ProductPlan &plan, cublasLtMatmulHeuristicResult_t *choice, int n, const void *a, const void *b)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone; cudaEvent_t from = 0, to = 0; void *d = 0; int best = 0, whole = 0;
    float least = INFINITY;
    const int64_t tiles = ((key.m + 127) / 128) * ((key.n + 127) / 128);
    if (n < 2 || key.type != GPTS_GPU_BF16 || tiles < 100 || (double)key.m * (double)key.n * (double)key.k < 4e9) return 0;
    if (cudaStreamIsCapturing(g.stream, &capturing) != cudaSuccess || capturing != cudaStreamCaptureStatusNone) return 0;
    if (cudaMalloc(&d, (size_t)key.ldd * (size_t)key.n * (key.out == GPTS_GPU_BF16 ? 2 : 4)) != cudaSuccess) { cudaGetLastError(); return 0; }
    const float one = 1, beta = key.add ? 1.f : 0.f;
    if (key.add) cudaMemsetAsync(d, 0, (size_t)key.ldd * (size_t)key.n * (key.out == GPTS_GPU_BF16 ? 2 : 4), g.stream);
    if (cudaEventCreate(&from) == cudaSuccess && cudaEventCreate(&to) == cudaSuccess)
        for (int round = 0; round < 3; round++)                                  /* the first warms up */
            for (int i = 0; i < n; i++) {
                int split = 0; size_t written; float ms = 0;
                if (choice[i].state != CUBLAS_STATUS_SUCCESS ||
                    cublasLtMatmulAlgoConfigGetAttribute(&choice[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                                         &written) != CUBLAS_STATUS_SUCCESS || split > 1) continue;
                cudaEventRecord(from, g.stream);
                for (int k = 0; k < 3; k++)
                    if (cublasLtMatmul(g.lt, plan.desc, &one, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d, &choice[i].algo,
                                       g.scratch[SCRATCH_PRODUCT], g.scratch_bytes[SCRATCH_PRODUCT],
                                       g.stream) != CUBLAS_STATUS_SUCCESS) ms = INFINITY;
                cudaEventRecord(to, g.stream);
                if (ms != 0 || cudaEventSynchronize(to) != cudaSuccess || cudaEventElapsedTime(&ms, from, to) != cudaSuccess) continue;
                if (round && ms < least) { least = ms; best = i; whole = 1; }
            }
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    cudaStreamSynchronize(g.stream); cudaFree(d); cudaGetLastError();
    return whole ? best : 0;
}

bool product_plan(Gpu &g, const ProductKey &key, ProductPlan &plan, const int *aligned, const void *a, const void *b)
{
    const cudaDataType_t type = key.type == GPTS_GPU_BF16 ? CUDA_R_16BF : CUDA_R_32F, out = key.out == GPTS_GPU_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t ta = key.ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = key.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulPreference_t preference = 0; cublasLtMatmulHeuristicResult_t result[PRODUCT_CHOICES]; int n = 0;
    const void *none = g.scratch[SCRATCH_PRODUCT];
    memset(&plan, 0, sizeof plan);
    bool ok = cublasLtMatmulDescCreate(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&plan.a, type, (uint64_t)(key.ta ? key.k : key.m), (uint64_t)(key.ta ? key.m : key.k),
                                   key.lda) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&plan.b, type, (uint64_t)(key.tb ? key.n : key.k), (uint64_t)(key.tb ? key.k : key.n),
                                   key.ldb) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&plan.d, out, (uint64_t)key.m, (uint64_t)key.n, key.ldd) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
    if (ok && key.bias)
        ok = cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &none, sizeof none) == CUBLAS_STATUS_SUCCESS;
    const cublasLtMatmulPreferenceAttributes_t which[4] = { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES };
    for (int i = 0; i < 4 && ok; i++) {
        const uint32_t bytes = (uint32_t)aligned[i < 3 ? i : 2];
        ok = cublasLtMatmulPreferenceSetAttribute(preference, which[i], &bytes, sizeof bytes) == CUBLAS_STATUS_SUCCESS;
    }
    if (ok)
        ok = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &g.scratch_bytes[SCRATCH_PRODUCT], sizeof(size_t)) == CUBLAS_STATUS_SUCCESS;
    if (ok)
        plan.found = cublasLtMatmulAlgoGetHeuristic(g.lt, plan.desc, plan.a, plan.b, plan.d, plan.d, preference, PRODUCT_CHOICES,
                                                    result, &n) == CUBLAS_STATUS_SUCCESS && n >= 1;
    if (plan.found) plan.algo = result[product_fastest(g, key, plan, result, n, a, b)].algo;
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    return plan.found;
}
void product_plan_free(ProductPlan &p)
{
    if (p.a) cublasLtMatrixLayoutDestroy(p.a);
    if (p.b) cublasLtMatrixLayoutDestroy(p.b);
    if (p.d) cublasLtMatrixLayoutDestroy(p.d);
    if (p.desc) cublasLtMatmulDescDestroy(p.desc);
}

/* out: type of d.  Factors and bias have the type of activations. */
void product(Gpu &g, bool ta, bool tb, size_t m, size_t n, size_t k, const void *a, size_t lda, const void *b, size_t ldb,
             void *d, size_t ldd, int out, bool add, const void *bias)
{
    if (!m || !n || !a || !b || !d) return;
    ProductKey key; memset(&key, 0, sizeof key);
    const int aligned[3] = { alignment(a), alignment(b), alignment(d) };
    key.m = (int64_t)m; key.n = (int64_t)n; key.k = (int64_t)k; key.lda = (int64_t)lda; key.ldb = (int64_t)ldb; key.ldd = (int64_t)ldd;
    key.ta = ta; key.tb = tb; key.type = g.type; key.out = out; key.add = add; key.bias = bias != 0;
    key.aligned = aligned[0] | aligned[1] << 10 | aligned[2] << 20;
    auto at = g.products.find(key);
    if (at == g.products.end()) {
        ProductPlan plan; memset(&plan, 0, sizeof plan);
        if (k) product_plan(g, key, plan, aligned, a, b);
        at = g.products.insert(std::make_pair(key, plan)).first;
    }
    ProductPlan &plan = at->second;
    if (plan.found) {
        const float one = 1, beta = add ? 1.f : 0.f;
        if (bias) cublasLtMatmulDescSetAttribute(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
        if (cublasLtMatmul(g.lt, plan.desc, &one, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d, &plan.algo,
                           g.scratch[SCRATCH_PRODUCT], g.scratch_bytes[SCRATCH_PRODUCT], g.stream) == CUBLAS_STATUS_SUCCESS) return;
        fail(g, GPTS_DEVICE, "%s%s", "cuBLAS refused a matrix product", "");
        return;
    }
    const unsigned blocks = grid((int64_t)(m * n), 256);
    if (g.type == GPTS_GPU_F32) product_plain<float, float><<<blocks, 256, 0, g.stream>>>(ta, tb, key.m, key.n, key.k, (const float *)a,
            key.lda, (const float *)b, key.ldb, (float *)d, key.ldd, add, (const float *)bias);
    else if (out == GPTS_GPU_F32) product_plain<bf16, float><<<blocks, 256, 0, g.stream>>>(ta, tb, key.m, key.n, key.k, (const bf16 *)a,
            key.lda, (const bf16 *)b, key.ldb, (float *)d, key.ldd, add, (const bf16 *)bias);
    else product_plain<bf16, bf16><<<blocks, 256, 0, g.stream>>>(ta, tb, key.m, key.n, key.k, (const bf16 *)a, key.lda, (const bf16 *)b,
                                                                 key.ldb, (bf16 *)d, key.ldd, add, (const bf16 *)bias);
    launched(g, "a matrix product");
}

__global__ void shadow_fill(bf16 *to, const float *from, int64_t n)
{
    int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
    if (i + 8 <= n) { float x[8]; load<8>(from + i, x); store<8>(to + i, x); }
    else for (; i < n; i++) to[i] = from_float<bf16>(from[i]);
}
void shadow_renew(Gpu &g, const char *base, Memory &m)
{
    if (!m.shadow || !m.stale) return;
    shadow_fill<<<grid((int64_t)(m.bytes / 4), 8 * 256), 256, 0, g.stream>>>(m.shadow, (const float *)base, (int64_t)(m.bytes / 4));
    m.stale = !launched(g, "the parameters in bf16");
}
/* a parameter as products read it: itself, or its place in the shadow, which ends in some zeros; NULL stays NULL */
enum { SHADOW_SLACK = 1 << 18 };
const void *factor(Gpu &g, const float *w)
{
    if (!w || g.type == GPTS_GPU_F32) return w;
    char *base; Memory *m = memory_of(g, w, &base);
    if (!m) { fail(g, GPTS_BAD_ARGUMENT, "%s%s", "a weight is not in the device's memory", ""); return 0; }
    const size_t n = m->bytes / 4;
    if (!m->shadow) {
        g.generation++;
        if (!fine(g, cudaMalloc((void **)&m->shadow, n * 2 + SHADOW_SLACK), "the parameters in bf16")) { m->shadow = 0; return 0; }
        if (!fine(g, cudaMemsetAsync(m->shadow + n, 0, SHADOW_SLACK, g.stream), "the parameters in bf16")) return 0;
    }
    shadow_renew(g, base, *m);
    return m->shadow + (w - (const float *)base);
}

/* whether `n` numbers from w's place in the shadow on are there and finite: parameters, or zeros behind them */
bool factor_holds(Gpu &g, const float *w, size_t n)
{
    char *base; const Memory *m = memory_of(g, w, &base);
    return m && (size_t)(w - (const float *)base) + n <= m->bytes / 4 + SHADOW_SLACK / 2;
}

/* ==== @@LAYERS ============================================================================================================ */

/* card  (E1) x[b,t,c] = wte[token,c] + wpe[t - first,c] */
template <class E, int W> __global__ void embed_rows(E *x, const int32_t *tokens, const int32_t *first, const float *wte,
                                                     const float *wpe, int64_t items, int64_t T, int64_t C)
{
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * W;
    if (i >= items) return;
    const int64_t n = i / C, c = i % C, position = n % T - (first ? first[n / T] : 0);
    float y[W], p[W];
    load<W>(wte + tokens[n] * C + c, y);
    if (wpe && position >= 0) {
        load<W>(wpe + position * C + c, p);
#pragma unroll
        for (int j = 0; j < W; j++) y[j] += p[j];
    }
    store<W>(x + i, y);
}
void gpu_embed_forward(void *device, void *x, const int32_t *tokens, const int32_t *first, const gpts_real *wte, const gpts_real *wpe,
                       size_t B, size_t T, size_t C)
{
    Gpu &g = gpu_of(device);
    const int64_t items = (int64_t)(B * T * C);
    BY_TYPE(g, eights(C, x, wte, wpe), (embed_rows<E, W><<<grid(items, 256 * W), 256, 0, g.stream>>>((E *)x, tokens, first, wte, wpe,
            items, (int64_t)T, (int64_t)C)));
    launched(g, "embed_forward");
}

/* card  (E2) dwte[token] += dx, dwpe[t - first] += dx.  Rows are sorted by token (stably, so that the order is fixed); a block sums
         a chunk of sorted rows, run by run.  Runs inside the chunk are added to dwte at once; what the chunk has of a run that
         began before it or goes on after it waits in `edge` and is added, chunk by chunk, by the block where the run begins.  */
enum { EMBED_CHUNK = 32 };
template <class E> __global__ void embed_columns(float *dwte, float *edge, const int32_t *token, const int32_t *row, const E *dx,
                                                 int64_t N, int64_t C)
{
    __shared__ int32_t id[EMBED_CHUNK + 2], from[EMBED_CHUNK];
    const int64_t begin = int64_t(blockIdx.x) * EMBED_CHUNK; const int n = int(N - begin < EMBED_CHUNK ? N - begin : EMBED_CHUNK);
    if (threadIdx.x < n + 2) { const int64_t i = begin + threadIdx.x - 1; id[threadIdx.x] = i >= 0 && i < N ? token[i] : -1; }
    if (threadIdx.x < n) from[threadIdx.x] = row[begin + threadIdx.x];
    __syncthreads();
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        for (int i = 0; i < n;) {
            const int start = i; float s = 0;
            do { s += to_float(dx[from[i] * C + c]); i++; } while (i < n && id[i + 1] == id[start + 1]);
            const bool before = start == 0 && id[0] == id[1], after = i == n && id[n + 1] == id[n];
            if (before || after) edge[(2 * int64_t(blockIdx.x) + (before ? 0 : 1)) * C + c] = s;
            else dwte[id[start + 1] * C + c] += s;
        }
}
/* edge[2 chunk] is the part of a run that began before the chunk (all of the chunk, if it also goes on), edge[2 chunk + 1] of one that begins in it */
__global__ void embed_edges(float *dwte, const float *edge, const int32_t *token, int64_t N, int64_t C)
{
    const int64_t end = (int64_t(blockIdx.x) + 1) * EMBED_CHUNK;                 /* does a run begin in this chunk and cross its end? */
    if (end >= N) return;
    const int32_t id = token[end - 1];
    if (token[end] != id) return;
    const int64_t begin = int64_t(blockIdx.x) * EMBED_CHUNK;
    if (begin > 0 && token[begin - 1] == id && token[begin] == id) return;       /* it began earlier */
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        float s = edge[(2 * int64_t(blockIdx.x) + 1) * C + c];
        for (int64_t k = int64_t(blockIdx.x) + 1; k * EMBED_CHUNK < N && token[k * EMBED_CHUNK] == id; k++) s += edge[2 * k * C + c];
        dwte[id * C + c] += s;
    }
}
template <class E> __global__ void embed_positions(float *dwpe, const int32_t *first, const E *dx, int64_t B, int64_t T, int64_t C)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= T * C) return;
    const int64_t position = i / C, c = i % C;
    float s = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t t = position + (first ? first[b] : 0);
        if (t < T) s += to_float(dx[(b * T + t) * C + c]);
    }
    dwpe[i] += s;
}
__global__ void count_up(int32_t *x, int64_t n) { const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; if (i < n) x[i] = (int32_t)i; }

void gpu_embed_backward(void *device, gpts_real *dwte, gpts_real *dwpe, const int32_t *tokens, const int32_t *first, const void *dx,
                        size_t B, size_t T, size_t C, size_t V)
{
    Gpu &g = gpu_of(device);
    const int64_t N = (int64_t)(B * T), chunks = (N + EMBED_CHUNK - 1) / EMBED_CHUNK;
    if (dwpe) {
        BY_TYPE(g, false, (embed_positions<E><<<grid((int64_t)(T * C), 256 * W), 256, 0, g.stream>>>(dwpe, first, (const E *)dx,
                (int64_t)B, (int64_t)T, (int64_t)C)));
        launched(g, "embed_backward");
    }
    if (!dwte) return;
    int bits = 1; size_t sort_bytes = 0;
    while (((size_t)1 << bits) < V) bits++;
    cub::DeviceRadixSort::SortPairs((void *)0, sort_bytes, tokens, (int32_t *)0, (const int32_t *)0, (int32_t *)0, (int)N, 0, bits, g.stream);
    const size_t list = ((size_t)N * 4 + 255) / 256 * 256;
    char *work = scratch<char>(g, SCRATCH_SORT, 3 * list + sort_bytes + 256);
    float *edge = scratch<float>(g, SCRATCH_SUMS, (size_t)chunks * 2 * C * 4);
    if (!work || !edge) return;
    int32_t *order = (int32_t *)work, *id = (int32_t *)(work + list), *row = (int32_t *)(work + 2 * list);
    count_up<<<grid(N, 256), 256, 0, g.stream>>>(order, N);
    fine(g, cub::DeviceRadixSort::SortPairs(work + 3 * list, sort_bytes, tokens, id, order, row, (int)N, 0, bits, g.stream), "embed_backward");
    BY_TYPE(g, false, (embed_columns<E><<<(unsigned)chunks, C > 128 ? 256 : 64 * W, 0,
                       g.stream>>>(dwte, edge, id, row, (const E *)dx, N, (int64_t)C)));
    embed_edges<<<(unsigned)chunks, 256, 0, g.stream>>>(dwte, edge, id, N, (int64_t)C);
    launched(g, "embed_backward");
}

/* card  (N1) y = xhat w + bias, xhat = (x - mean) r, one warp a row held in registers (P pieces of 8 a lane), the variance of the
         centred row; with ADD x = a + b first, (D1), stored as `sum`: the norm is that of the stored, rounded sum.              */
template <class E, int P, bool ADD>
__global__ __launch_bounds__(256) void norm_rows(E *sum, E *y, float *statistics, const E *a, const E *b, const float *w,
                                                 const float *bias, int64_t N, int C, float epsilon)
{
    const int64_t n = int64_t(blockIdx.x) * 8 + threadIdx.x / 32; const int lane = threadIdx.x % 32;
    if (n >= N) return;
    float x[P][8], z[8], s = 0, q = 0;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int c = (32 * p + lane) * 8;
        if (c < C) load<8>(a + n * C + c, x[p]);
        else for (int j = 0; j < 8; j++) x[p][j] = 0;
    }
    if (ADD)
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = (32 * p + lane) * 8;
            if (c >= C) continue;
            load<8>(b + n * C + c, z);
#pragma unroll
            for (int j = 0; j < 8; j++) x[p][j] = rounded<E>(x[p][j] + z[j]);
            store<8>(sum + n * C + c, x[p]);
        }
#pragma unroll
    for (int p = 0; p < P; p++)
#pragma unroll
        for (int j = 0; j < 8; j++) s += x[p][j];
    const float mean = warp_sum(s) / (float)C;
#pragma unroll
    for (int p = 0; p < P; p++) {
        if ((32 * p + lane) * 8 >= C) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) { x[p][j] -= mean; q += x[p][j] * x[p][j]; }
    }
    const float r = 1 / sqrtf(warp_sum(q) / (float)C + epsilon);
    if (lane == 0) { statistics[2 * n] = mean; statistics[2 * n + 1] = r; }
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int c = (32 * p + lane) * 8;
        if (c >= C) continue;
        load<8>(w + c, z);
#pragma unroll
        for (int j = 0; j < 8; j++) x[p][j] = x[p][j] * r * z[j];
        if (bias) {
            load<8>(bias + c, z);
#pragma unroll
            for (int j = 0; j < 8; j++) x[p][j] += z[j];
        }
        store<8>(y + n * C + c, x[p]);
    }
}
/* the same for any C: a block a row, read three times */
template <class E, bool ADD>
__global__ void norm_any(E *sum, E *y, float *statistics, const E *a, const E *b, const float *w, const float *bias, int64_t C, float epsilon)
{
    const int64_t n = blockIdx.x; const E *x = ADD ? sum + n * C : a + n * C;
    float s = 0, q = 0;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        if (ADD) sum[n * C + c] = from_float<E>(to_float(a[n * C + c]) + to_float(b[n * C + c]));
        s += to_float(x[c]);
    }
    const float mean = block_all(s, Sum()) / (float)C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) { const float d = to_float(x[c]) - mean; q += d * d; }
    const float r = 1 / sqrtf(block_all(q, Sum()) / (float)C + epsilon);
    if (threadIdx.x == 0) { statistics[2 * n] = mean; statistics[2 * n + 1] = r; }
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) y[n * C + c] = from_float<E>((to_float(x[c]) - mean) * r * w[c] + (bias ? bias[c] : 0));
}
template <class E, bool ADD> void norm_run(Gpu &g, void *sum, void *y, float *statistics, const void *a, const void *b, const float *w,
                                           const float *bias, int64_t N, int64_t C, float epsilon)
{
    const unsigned blocks = grid(N, 8);
#define NORM(P) norm_rows<E, P, ADD><<<blocks, 256, 0, g.stream>>>((E *)sum, (E *)y, statistics, (const E *)a, (const E *)b, w, bias, N, (int)C, epsilon)
    if (!eights((size_t)C, sum, y, a, b, w, bias) || C > 2048) norm_any<E, ADD><<<(unsigned)N, 256, 0, g.stream>>>((E *)sum, (E *)y,
            statistics, (const E *)a, (const E *)b, w, bias, C, epsilon);
    else if (C <= 256) NORM(1);
    else if (C <= 512) NORM(2);
    else if (C <= 768) NORM(3);
    else if (C <= 1024) NORM(4);
    else if (C <= 1536) NORM(6);
    else NORM(8);
#undef NORM
    launched(g, "norm_forward");
}
void gpu_norm_forward(void *device, void *y, gpts_real *statistics, const void *x, const gpts_real *w, const gpts_real *bias, size_t N,
                      size_t C, double epsilon)
{
    Gpu &g = gpu_of(device);
    if (g.type == GPTS_GPU_BF16) norm_run<bf16, false>(g, 0, y, statistics, x, 0, w, bias, (int64_t)N, (int64_t)C, (float)epsilon);
    else norm_run<float, false>(g, 0, y, statistics, x, 0, w, bias, (int64_t)N, (int64_t)C, (float)epsilon);
}
void gpu_add_norm_forward(void *device, void *sum, void *y, gpts_real *statistics, const void *a, const void *b, const gpts_real *w,
                          const gpts_real *bias, size_t N, size_t C, double epsilon)
{
    Gpu &g = gpu_of(device);
    if (g.type == GPTS_GPU_BF16) norm_run<bf16, true>(g, sum, y, statistics, a, b, w, bias, (int64_t)N, (int64_t)C, (float)epsilon);
    else norm_run<float, true>(g, sum, y, statistics, a, b, w, bias, (int64_t)N, (int64_t)C, (float)epsilon);
}

/* Column sums in two steps of fixed order: part [slices, count, C], then to[i][c] += their sum. */
__global__ __launch_bounds__(1024) void sum_slices(float *to0, float *to1, const float *part, int slices, int count, int64_t C)
{
    __shared__ float s[32][33];
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, i = blockIdx.y;
    const int64_t c = int64_t(blockIdx.x) * 32 + lane;
    float x = 0;
    if (c < C)
#pragma unroll 8
        for (int k = w; k < slices; k += 32) x += part[(int64_t(k) * count + i) * C + c];
    s[w][lane] = x;
    __syncthreads();
    float *to = i ? to1 : to0;
    if (w == 0 && c < C && to) {
        for (int k = 1; k < 32; k++) x += s[k][lane];
        to[c] += x;
    }
}
/* part[slice,0,c] = sum over the slice's rows of g[n,c] xhat[n,c] (x given), part[slice,1,c] (or 0, without x) = sum of g[n,c] */
template <class E, int W, bool X>
__global__ __launch_bounds__(256) void column_sums(float *part, const E *g, const E *x, const float *statistics, int64_t N, int64_t C, int64_t rows)
{
    __shared__ float all[8][32][W + 1];
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
    const int64_t c = (int64_t(blockIdx.x) * 32 + lane) * W, begin = int64_t(blockIdx.y) * rows, end = begin + rows < N ? begin + rows : N;
    float s[W] = {}, sx[W] = {}, a[W], b[W];
    if (c < C)
        for (int64_t n = begin + w; n < end; n += 8) {
            load<W>(g + n * C + c, a);
            if (X) load<W>(x + n * C + c, b);
            const float mean = X ? statistics[2 * n] : 0, r = X ? statistics[2 * n + 1] : 0;
#pragma unroll
            for (int j = 0; j < W; j++) { s[j] += a[j]; if (X) sx[j] += a[j] * ((b[j] - mean) * r); }
        }
    for (int i = 0; i < (X ? 2 : 1); i++) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < W; j++) all[w][lane][j] = X && i == 0 ? sx[j] : s[j];
        __syncthreads();
        for (int e = threadIdx.x; e < 32 * W; e += 256) {
            float t = 0;
            for (int k = 0; k < 8; k++) t += all[k][e / W][e % W];
            const int64_t column = int64_t(blockIdx.x) * 32 * W + e;
            if (column < C) part[(int64_t(blockIdx.y) * (X ? 2 : 1) + i) * C + column] = t;
        }
    }
}
void column_run(Gpu &g, float *with_x, float *plain, const void *dy, const void *x, const float *statistics, int64_t N, int64_t C)
{
    if (!C) return;
    const bool wide = eights((size_t)C, dy, x);
    const int64_t across = (C + (wide ? 256 : 32) - 1) / (wide ? 256 : 32), most = 1024 / across + 1,
        rows = (N + most - 1) / most < 64 ? 64 : (N + most - 1) / most, slices = (N + rows - 1) / rows;
    const int count = x ? 2 : 1;
    float *part = scratch<float>(g, SCRATCH_SUMS, (size_t)(slices * count * C) * 4);
    if (!part) return;
    const dim3 blocks((unsigned)across, (unsigned)slices);
    if (x) BY_TYPE(g, wide, (column_sums<E, W, true><<<blocks, 256, 0, g.stream>>>(part, (const E *)dy, (const E *)x, statistics, N, C, rows)));
    else BY_TYPE(g, wide, (column_sums<E, W, false><<<blocks, 256, 0, g.stream>>>(part, (const E *)dy, (const E *)0, 0, N, C, rows)));
    sum_slices<<<dim3(grid(C, 32), (unsigned)count), 1024, 0, g.stream>>>(x ? with_x : plain, plain, part, (int)slices, count, C);
    launched(g, "column sums");
}

/* card  (N2) dx += r (g - mean g - xhat mean(g xhat)), g = dy w; dw += sum_n dy xhat, dbias += sum_n dy: a warp a row at a time,
         its share of dw and dbias in registers until the end, then over the block's warps, then over the blocks, in order.     */
template <class E, int P, bool BIAS>
__global__ __launch_bounds__(256, P <= 3 && sizeof(E) == 2 && !BIAS ? 3 : 2) void norm_rows_backward(E *dx, float *part, const E *dy,
        const E *x, const float *w, const float *statistics, int64_t N, int C)
{
    extern __shared__ float all[];                                              /* [8][C] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float dw[P][8] = {}, db[BIAS ? P : 1][8] = {};
    for (int64_t n = int64_t(blockIdx.x) * 8 + warp; n < N; n += int64_t(gridDim.x) * 8) {
        Piece<E> pg[P], ph[P], po[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = (32 * p + lane) * 8;
            if (c < C) { pg[p] = piece(dy + n * C + c); ph[p] = piece(x + n * C + c); po[p] = piece(dx + n * C + c); }
        }
        const float2 moments = ((const float2 *)statistics)[n];
        const float mean = moments.x, r = moments.y;
        float g[8], h[8], v[8], s = 0, sx = 0;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = (32 * p + lane) * 8;
            if (c >= C) continue;
            unpack(pg[p], g); unpack(ph[p], h); load<8>(w + c, v);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                h[j] = (h[j] - mean) * r;
                dw[p][j] += g[j] * h[j];
                if (BIAS) db[p][j] += g[j];
                g[j] *= v[j];
                s += g[j]; sx += g[j] * h[j];
            }
        }
        s = warp_sum(s) / (float)C; sx = warp_sum(sx) / (float)C;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = (32 * p + lane) * 8;
            if (c >= C) continue;
            unpack(pg[p], g); unpack(ph[p], h); load<8>(w + c, v);
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = r * (g[j] * v[j] - s - (h[j] - mean) * r * sx);
            unpack(po[p], g);
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] += g[j];
            store<8>(dx + n * C + c, v);
        }
    }
    for (int i = 0; i < (BIAS ? 2 : 1); i++) {
        __syncthreads();
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = (32 * p + lane) * 8;
            if (c < C) store<8>(all + warp * C + c, BIAS && i ? db[BIAS ? p : 0] : dw[p]);
        }
        __syncthreads();
        for (int c = threadIdx.x; c < C; c += 256) {
            float t = 0;
            for (int k = 0; k < 8; k++) t += all[k * C + c];
            part[(int64_t(blockIdx.x) * (BIAS ? 2 : 1) + i) * C + c] = t;
        }
    }
}
template <class E> __global__ void norm_any_backward(E *dx, const E *dy, const E *x, const float *w, const float *statistics, int64_t C)
{
    const int64_t n = blockIdx.x; const float mean = statistics[2 * n], r = statistics[2 * n + 1];
    float s = 0, sx = 0;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        const float g = to_float(dy[n * C + c]) * w[c];
        s += g;
        sx += g * ((to_float(x[n * C + c]) - mean) * r);
    }
    s = block_all(s, Sum()) / (float)C; sx = block_all(sx, Sum()) / (float)C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        dx[n * C + c] = from_float<E>(to_float(dx[n * C + c]) + r * (to_float(dy[n * C + c]) * w[c] - s - (to_float(x[n * C + c]) - mean) * r * sx));
}
template <class E> bool norm_backward_run(Gpu &g, void *dx, float *dw, float *dbias, const void *dy, const void *x, const float *w,
                                          const float *statistics, int64_t N, int64_t C)
{
    if (!eights((size_t)C, dx, dy, x, w) || C > 1024) return false;
    const int64_t blocks = N / 8 + 1 < 396 ? N / 8 + 1 : 396;                       /* three a processor */
    float *part = scratch<float>(g, SCRATCH_SUMS, (size_t)(blocks * 2 * C) * 4);
    if (!part) return true;
    const size_t bytes = (size_t)C * 32;
#define NORM(P) do { \
    if (dbias) norm_rows_backward<E, P, true><<<(unsigned)blocks, 256, bytes, g.stream>>>((E *)dx, part, (const E *)dy, (const E *)x, w, statistics, N, (int)C); \
    else norm_rows_backward<E, P, false><<<(unsigned)blocks, 256, bytes, g.stream>>>((E *)dx, part, (const E *)dy, (const E *)x, w, statistics, N, (int)C); } while (0)
    if (C <= 256) NORM(1);
    else if (C <= 512) NORM(2);
    else if (C <= 768) NORM(3);
    else NORM(4);
#undef NORM
    if (dw || dbias) sum_slices<<<dim3(grid(C, 32), dbias ? 2u : 1u), 1024, 0, g.stream>>>(dw, dbias, part, (int)blocks, dbias ? 2 : 1, C);
    launched(g, "norm_backward");
    return true;
}
void gpu_norm_backward(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy, const void *x, const gpts_real *w,
                       const gpts_real *statistics, size_t N, size_t C)
{
    Gpu &g = gpu_of(device);
    const bool half = g.type == GPTS_GPU_BF16;
    if (half ? norm_backward_run<bf16>(g, dx, dw, dbias, dy, x, w, statistics, (int64_t)N, (int64_t)C)
             : norm_backward_run<float>(g, dx, dw, dbias, dy, x, w, statistics, (int64_t)N, (int64_t)C)) return;
    if (dw || dbias) column_run(g, dw, dbias, dy, x, statistics, (int64_t)N, (int64_t)C);
    if (half) norm_any_backward<<<(unsigned)N, 256, 0, g.stream>>>((bf16 *)dx, (const bf16 *)dy, (const bf16 *)x, w, statistics, (int64_t)C);
    else norm_any_backward<<<(unsigned)N, 256, 0, g.stream>>>((float *)dx, (const float *)dy, (const float *)x, w, statistics, (int64_t)C);
    launched(g, "norm_backward");
}

/* card  (L1) y = x w + bias;  (L2) dx = dy w^T, dw += x^T dy in fp32, dbias += sum of dy */
void gpu_linear_forward(void *device, void *y, const void *x, const gpts_real *w, const gpts_real *bias, size_t N, size_t in, size_t out)
{
    Gpu &g = gpu_of(device);
    product(g, false, false, out, N, in, factor(g, w), out, x, in, y, out, g.type, false, factor(g, bias));
}
void gpu_linear_backward(void *device, void *dx, gpts_real *dw, gpts_real *dbias, const void *dy, const void *x, const gpts_real *w,
                         size_t N, size_t in, size_t out)
{
    Gpu &g = gpu_of(device);
    if (dbias) column_run(g, 0, dbias, dy, 0, 0, (int64_t)N, (int64_t)out);
    if (dw) product(g, false, true, out, in, N, dy, out, x, in, dw, out, GPTS_GPU_F32, true, 0);
    if (dx) product(g, true, false, in, N, out, factor(g, w), out, dy, out, dx, in, g.type, false, 0);
}

/* card  (G1) y = g(x), (G2) dx = dy g'(x).  In bf16 mode the normal distribution is by a rational form of seven digits
         (Abramowitz, Stegun 7.1.26), which gives exp(-x^2/2), needed by the derivative, on the way.                       */
__device__ __forceinline__ float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float exp2_quick(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
template <class E> struct is_float { static constexpr bool value = sizeof(E) == 4; };
struct Value { float y, slope; };
template <class E, int KIND, bool SLOPE> __device__ __forceinline__ Value activation(float x)
{
    Value v; v.slope = 0;
    if (KIND == GPTS_RELU) { v.y = !(x <= 0) ? x : 0; v.slope = !(x <= 0) ? 1.f : 0.f; return v; }
    if (KIND == GPTS_GELU_TANH) {
        const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        const float s = is_float<E>::value ? 1 / (1 + expf(-2 * u)) : __fdividef(1.f, 1 + __expf(-2 * u));
        v.y = x * s;
        if (SLOPE) v.slope = s + x * s * (1 - s) * (2 * 0.7978845608028654f) * (1 + 3 * 0.044715f * x * x);
        return v;
    }
    if (is_float<E>::value) {
        const float phi = 0.5f * erfcf(-0.70710678f * x);
        v.y = x * phi;
        if (SLOPE) v.slope = phi + x * 0.3989422804014327f * expf(-0.5f * x * x);
    } else {
        const float t = reciprocal(fmaf(0.3275911f * 0.70710678f, fabsf(x), 1.f)), e = 0.5f * exp2_quick(x * x * (-0.5f * 1.4426950408889634f));
        const float tail = e * (t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f));
        const float phi = x > 0 ? 1 - tail : tail;
        v.y = x * phi;
        if (SLOPE) v.slope = fmaf(x * (2 * 0.3989422804014327f), e, phi);
    }
    return v;
}
enum { ACT_FORWARD, ACT_BACKWARD, ACT_EXCHANGE };
/* two groups of W a thread, both on their way before the first is used */
template <class E, int W, int KIND, int WHAT> __global__ __launch_bounds__(256) void activation_items(E *y, const E *dy, E *x, int64_t n)
{
    const int64_t first = (int64_t(blockIdx.x) * 512 + threadIdx.x) * W;
    float a[2][W], d[2][W];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int64_t i = first + k * 256 * W;
        if (i >= n) continue;
        load<W>(x + i, a[k]);
        if (WHAT != ACT_FORWARD) load<W>(dy + i, d[k]);
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int64_t i = first + k * 256 * W;
        if (i >= n) continue;
#pragma unroll
        for (int j = 0; j < W; j++) {
            const Value v = activation<E, KIND, WHAT != ACT_FORWARD>(a[k][j]);
            a[k][j] = v.y; d[k][j] = WHAT == ACT_FORWARD ? v.y : d[k][j] * v.slope;
        }
        store<W>(y + i, d[k]);
        if (WHAT == ACT_EXCHANGE) store<W>(x + i, a[k]);
    }
}
template <int WHAT> void activation_run(Gpu &g, void *y, const void *dy, void *x, int64_t n, gpts_activation kind)
{
#define ACTIVATE(KIND) BY_TYPE(g, eights((size_t)n, y, dy, x), (activation_items<E, W, KIND, WHAT><<<grid(n, 512 * W), 256, 0, g.stream>>>((E *)y, (const E *)dy, (E *)x, n)))
    if (!n) return;
    if (kind == GPTS_GELU_TANH) ACTIVATE(GPTS_GELU_TANH);
    else if (kind == GPTS_GELU_ERF) ACTIVATE(GPTS_GELU_ERF);
    else ACTIVATE(GPTS_RELU);
#undef ACTIVATE
    launched(g, "activation");
}
void gpu_activation_forward(void *device, void *y, const void *x, size_t n, gpts_activation kind)
{
    activation_run<ACT_FORWARD>(gpu_of(device), y, 0, (void *)(uintptr_t)x, (int64_t)n, kind);
}
void gpu_activation_backward(void *device, void *dx, const void *dy, const void *x, size_t n, gpts_activation kind)
{
    activation_run<ACT_BACKWARD>(gpu_of(device), dx, dy, (void *)(uintptr_t)x, (int64_t)n, kind);
}
void gpu_activation_exchange(void *device, void *dx, const void *dy, void *x, size_t n, gpts_activation kind)
{
    activation_run<ACT_EXCHANGE>(gpu_of(device), dx, dy, x, (int64_t)n, kind);
}

/* card  (D1) y = a + mask b / (1 - rate), (D2) the same without a: the CPU's counter-based masks, bit for bit */
__host__ __device__ inline uint64_t mixed(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u; z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u; z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
template <class E, int W> __global__ void add_items(E *y, const E *a, const E *b, int64_t n, uint64_t key, uint64_t threshold, float scale)
{
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    float u[W] = {}, v[W];
    load<W>(b + i, v);
    if (a) load<W>(a + i, u);
#pragma unroll
    for (int j = 0; j < W; j++) u[j] += !threshold ? v[j] : mixed(key ^ (uint64_t)(i + j)) >> 11 >= threshold ? v[j] * scale : 0;
    store<W>(y + i, u);
}
void gpu_add_forward(void *device, void *y, const void *a, const void *b, size_t n, const gpts_dropout *drop)
{
    Gpu &g = gpu_of(device);
    uint64_t key = 0, threshold = 0; float scale = 1;
    if (!n) return;
    if (drop && drop->rate > 0) {
        key = mixed(mixed(mixed(drop->seed) ^ drop->step) ^ ((uint64_t)drop->layer << 32 | drop->site));
        threshold = (uint64_t)(drop->rate * 9007199254740992.0); scale = (float)(1 / (1 - drop->rate));
    }
    BY_TYPE(g, eights(n, y, a, b), (add_items<E, W><<<grid((int64_t)n, 256 * W), 256, 0, g.stream>>>((E *)y, (const E *)a, (const E *)b,
            (int64_t)n, key, threshold, scale)));
    launched(g, "add");
}
void gpu_add_backward(void *device, void *db, const void *dy, size_t n, const gpts_dropout *drop) { gpu_add_forward(device, db, 0, dy, n, drop); }

/* card  (Q1) z[b,t,s] = x[b,t-k+1+s], 0 before the row's start;  (Q2) dx[b,p] += sum_t dz[b,t,p-t+k-1] */
template <class E> __global__ void window_items(E *z, const E *x, const int32_t *first, int64_t items, int64_t T, int64_t C, int64_t k)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const int64_t c = i % C, s = i / C % k, n = i / C / k, t = n % T, start = first ? first[n / T] : 0;
    z[i] = t + s + 1 >= k + start ? x[(n + s + 1 - k) * C + c] : from_float<E>(0);
}
template <class E> __global__ void window_items_backward(E *dx, const E *dz, const int32_t *first, int64_t items, int64_t T, int64_t C, int64_t k)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const int64_t c = i % C, n = i / C, p = n % T, start = first ? first[n / T] : 0;
    if (p < start) return;
    float s = to_float(dx[i]);
    for (int64_t t = p; t < p + k && t < T; t++) s += to_float(dz[((n - p + t) * k + (p + k - 1 - t)) * C + c]);
    dx[i] = from_float<E>(s);
}
void gpu_window_forward(void *device, void *z, const void *x, const int32_t *first, size_t B, size_t T, size_t C, size_t k)
{
    Gpu &g = gpu_of(device); const int64_t items = (int64_t)(B * T * C * k);
    BY_TYPE(g, false, (window_items<E><<<grid(items, 256 * W), 256, 0, g.stream>>>((E *)z, (const E *)x, first, items, (int64_t)T,
            (int64_t)C, (int64_t)k)));
    launched(g, "window_forward");
}
void gpu_window_backward(void *device, void *dx, const void *dz, const int32_t *first, size_t B, size_t T, size_t C, size_t k)
{
    Gpu &g = gpu_of(device); const int64_t items = (int64_t)(B * T * C);
    BY_TYPE(g, false, (window_items_backward<E><<<grid(items, 256 * W), 256, 0, g.stream>>>((E *)dx, (const E *)dz, first, items,
            (int64_t)T, (int64_t)C, (int64_t)k)));
    launched(g, "window_backward");
}

/* card  (X1) logits = x w^T in fp32 */
void gpu_logits(void *device, gpts_real *logits, const void *x, const gpts_real *w, size_t N, size_t C, size_t V)
{
    Gpu &g = gpu_of(device);
    product(g, true, false, V, N, C, factor(g, w), C, x, C, logits, V, GPTS_GPU_F32, false, 0);
}

/* the first of the largest logits of each row */
__global__ __launch_bounds__(1024) void likeliest_rows(int32_t *ids, const float *logits, int64_t V)
{
    __shared__ float value[32]; __shared__ int32_t id[32];
    const float *row = logits + blockIdx.x * V; float best = -INFINITY; int32_t at = INT32_MAX;
    auto offer = [&](float x, int32_t v) { if (x > best || (x == best && v < at)) { best = x; at = v; } };
    for (int64_t v = threadIdx.x; v < V; v += 1024) offer(row[v], (int32_t)v);
    for (int pass = 0; pass < 2; pass++) {
        for (int m = 16; m; m >>= 1) { const float x = __shfl_xor_sync(~0u, best, m); const int32_t v = __shfl_xor_sync(~0u, at, m); offer(x, v); }
        if (pass) break;
        if (threadIdx.x % 32 == 0) { value[threadIdx.x / 32] = best; id[threadIdx.x / 32] = at; }
        __syncthreads();
        best = value[threadIdx.x % 32]; at = id[threadIdx.x % 32];
    }
    if (threadIdx.x == 0) ids[blockIdx.x] = at < V ? at : 0;
}
void gpu_likeliest(void *device, int32_t *ids, const gpts_real *logits, size_t N, size_t V)
{
    Gpu &g = gpu_of(device);
    likeliest_rows<<<(unsigned)N, 1024, 0, g.stream>>>(ids, logits, (int64_t)V);
    launched(g, "likeliest");
}

enum { LOSS_THREADS = 1024 };
/* card  (X2) losses[n] = lse_n - logits[n,target], (X3) in place logits = p - [v = target], 0 for ignored targets: one block a row,
         which is read from memory once and kept on the chip where it fits (KEPT), else read three times.  A row is padded to
         ld columns, whose gradients are 0                                                                                      */
template <class E, bool KEPT, bool GRADIENT> __global__ __launch_bounds__(LOSS_THREADS, 2) void loss_rows(E *logits, float *losses,
        const int32_t *targets, int64_t V, int64_t ld)
{
    extern __shared__ uint4 kept[];
    const int64_t n = blockIdx.x; E *row = logits + n * ld, *x = KEPT ? (E *)kept : row;
    const int target = targets[n];
    constexpr int W = 8;
    const int64_t whole = V / W * W;
    float z[W], top = -INFINITY, s = 0;
    if (target < 0) {
        if (threadIdx.x == 0) losses[n] = 0;
        if (GRADIENT) for (int64_t v = threadIdx.x; v < ld / W; v += blockDim.x) { for (int j = 0; j < W; j++) z[j] = 0; store<W>(row + v * W, z); }
        return;
    }
    constexpr float LOG2 = 1.4426950408889634f;
    const auto take = [&](float most, float add) {                             /* a thread's own maximum and sum, in base 2 */
        if (most > top) { s *= exp2_quick(top - most); top = most; }
        s += add;
    };
#pragma unroll 2
    for (int64_t v = threadIdx.x * W; v < whole; v += blockDim.x * W) {
        load<W>(row + v, z);
        if (KEPT) store<W>(x + v, z);
        float most = z[0], add = 0;
#pragma unroll
        for (int j = 1; j < W; j++) most = fmaxf(most, z[j]);
        most = fmaxf(most * LOG2, top);
#pragma unroll
        for (int j = 0; j < W; j++) add += exp2_quick(fmaf(z[j], LOG2, -most));
        take(most, add);
    }
    for (int64_t v = whole + threadIdx.x; v < V; v += blockDim.x) {
        const E y = row[v];
        if (KEPT) x[v] = y;
        const float most = fmaxf(to_float(y) * LOG2, top);
        take(most, exp2_quick(to_float(y) * LOG2 - most));
    }
    const float shift = block_all(top, Most());
    s = block_all(top == -INFINITY ? 0 : s * exp2_quick(top - shift), Sum());
    const float hit = to_float(x[target]);
    __syncthreads();                                                             /* `hit` is read before it is written over */
    if (threadIdx.x == 0) losses[n] = logf(s) + (shift * 0.6931471805599453f - hit);
    if (!GRADIENT) return;
    const float lower = shift + log2f(s);
    for (int64_t v = threadIdx.x * W; v < whole; v += blockDim.x * W) {
        load<W>(x + v, z);
#pragma unroll
        for (int j = 0; j < W; j++) z[j] = exp2_quick(fmaf(z[j], LOG2, -lower));
        if (target >= v && target < v + W)
#pragma unroll
            for (int j = 0; j < W; j++) z[j] -= v + j == target ? 1.f : 0.f;
        store<W>(row + v, z);
    }
    for (int64_t v = whole + threadIdx.x; v < ld; v += blockDim.x)
        row[v] = from_float<E>(v < V ? exp2_quick(fmaf(to_float(x[v]), LOG2, -lower)) - (v == target ? 1.f : 0.f) : 0.f);
}
__global__ void sum_floats(double *sum, const float *x, int64_t n)
{
    __shared__ double part[256];
    double s = 0;
    for (int64_t i = threadIdx.x; i < n; i += 256) s += (double)x[i];
    part[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x == 0) { for (int i = 1; i < 256; i++) s += part[i]; *sum = s; }
}
/* Products are fast when V is a multiple of 8; where it is not, the first two take in the columns up to ld (they multiply the finite
   numbers behind w, and gradients of 0), and the third leaves the last few columns to a product of their own.                    */
enum { LOGITS_BYTES = 420 << 20 };
template <class E> void loss_run(Gpu &g, double *sum, void *dx, float *dw, const void *x, const float *w, const int32_t *targets,
                                 int64_t N, int64_t C, int64_t V)
{
    const int64_t ld = (V + 7) / 8 * 8; int64_t rows = LOGITS_BYTES / (ld * (int64_t)sizeof(E)), smem = ld * (int64_t)sizeof(E);
    rows = rows < 1 ? 1 : rows;
    const int64_t blocks_of = (N + rows - 1) / rows;                             /* of about one size */
    rows = (N + blocks_of - 1) / blocks_of;
    if (blocks_of > 1 && rows > 128) rows = (rows + 127) / 128 * 128;
    E *logits = scratch<E>(g, SCRATCH_LOGITS, (size_t)(rows * ld) * sizeof(E));
    float *losses = scratch<float>(g, SCRATCH_ROWS, (size_t)N * 4);
    const E *weight = (const E *)factor(g, w);
    if (!logits || !losses || !weight) return;
    const bool kept = smem <= 112 * 1024, gradient = dx || dw;
    const size_t wide = (size_t)(g.type == GPTS_GPU_BF16 && factor_holds(g, w, (size_t)(ld * C)) ? ld : V),
        even = (size_t)(wide == (size_t)V ? V : V / 8 * 8), rest = (size_t)V - even;
    if (kept) {
        fine(g, cudaFuncSetAttribute(loss_rows<E, true, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "loss");
        fine(g, cudaFuncSetAttribute(loss_rows<E, true, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem), "loss");
    }
    for (int64_t n = 0; n < N; n += rows) {
        const int64_t count = N - n < rows ? N - n : rows;
        const E *xn = (const E *)x + n * C; E *dxn = dx ? (E *)dx + n * C : 0;
        product(g, true, false, wide, (size_t)count, (size_t)C, weight, (size_t)C, xn, (size_t)C, logits, (size_t)ld, g.type, false, 0);
        const unsigned blocks = (unsigned)count;
        if (kept && gradient) loss_rows<E, true, true><<<blocks, LOSS_THREADS, (size_t)smem, g.stream>>>(logits, losses + n, targets + n, V, ld);
        else if (kept) loss_rows<E, true, false><<<blocks, LOSS_THREADS, (size_t)smem, g.stream>>>(logits, losses + n, targets + n, V, ld);
        else if (gradient) loss_rows<E, false, true><<<blocks, LOSS_THREADS, 0, g.stream>>>(logits, losses + n, targets + n, V, ld);
        else loss_rows<E, false, false><<<blocks, LOSS_THREADS, 0, g.stream>>>(logits, losses + n, targets + n, V, ld);
        launched(g, "loss");
        if (dxn) product(g, false, false, (size_t)C, (size_t)count, wide, weight, (size_t)C, logits, (size_t)ld, dxn, (size_t)C, g.type, false, 0);
        if (dw) product(g, false, true, (size_t)C, even, (size_t)count, xn, (size_t)C, logits, (size_t)ld, dw, (size_t)C, GPTS_GPU_F32, true, 0);
        if (dw)
            product(g, false, true, (size_t)C, rest, (size_t)count, xn, (size_t)C, logits + even, (size_t)ld, dw + even * (size_t)C,
                    (size_t)C, GPTS_GPU_F32, true, 0);
    }
    sum_floats<<<1, 256, 0, g.stream>>>(sum, losses, N);
    launched(g, "loss");
}
void gpu_loss(void *device, double *sum, void *dx, gpts_real *dw, const void *x, const gpts_real *w, const int32_t *targets, size_t N,
              size_t C, size_t V)
{
    Gpu &g = gpu_of(device);
    if (g.type == GPTS_GPU_BF16) loss_run<bf16>(g, sum, dx, dw, x, w, targets, (int64_t)N, (int64_t)C, (int64_t)V);
    else loss_run<float>(g, sum, dx, dw, x, w, targets, (int64_t)N, (int64_t)C, (int64_t)V);
}

/* card  (O1) sum of squares in double: threads, then blocks, in order; the one operation but download that waits */
__global__ void square_items(double *part, const float *x, int64_t n)
{
    __shared__ double all[256];
    double s = 0;
    for (int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x; i < n; i += int64_t(gridDim.x) * 256) s += (double)x[i] * (double)x[i];
    all[threadIdx.x] = s;
    __syncthreads();
    for (int m = 128; m; m >>= 1) { if (threadIdx.x < m) all[threadIdx.x] += all[threadIdx.x + m]; __syncthreads(); }
    if (threadIdx.x == 0) part[blockIdx.x] = all[0];
}
__global__ void square_total(double *part, int n)
{
    if (threadIdx.x == 0) { double s = 0; for (int i = 0; i < n; i++) s += part[i]; part[n] = s; }
}
void gpu_sum_squares(void *device, double *sum, const gpts_real *x, size_t n)
{
    Gpu &g = gpu_of(device);
    const int blocks = n < 1 << 20 ? 64 : 1056;
    double *part = scratch<double>(g, SCRATCH_SUMS, (size_t)(blocks + 1) * 8);
    *sum = 0;
    if (!part || !n) return;
    square_items<<<(unsigned)blocks, 256, 0, g.stream>>>(part, x, (int64_t)n);
    square_total<<<1, 32, 0, g.stream>>>(part, blocks);
    if (launched(g, "sum_squares")) gpu_download(device, sum, part + blocks, 8);
}

/* ==== @@TRAIN ============================================================================================================= */

/* card  (O2) on all tensors in one launch, a block a chunk of one; the shadow in bf16 is written along */
struct Adam { float scale, rate, beta1, rest1, beta2, rest2, step, second, epsilon; };
enum { CHUNK = 8192 };
__device__ __forceinline__ float adam(float p, float g, float &m, float &v, const Adam &a, float keep)
{
    const float d = a.scale * g;
    m = a.beta1 * m + a.rest1 * d; v = a.beta2 * v + a.rest2 * d * d;
    return p * keep - a.step * m / (sqrtf(v) * a.second + a.epsilon);
}
__global__ __launch_bounds__(256) void adamw_chunks(const Chunk *chunks, const Adam a)
{
    const Chunk c = chunks[blockIdx.x];
    const float keep = 1 - a.rate * c.decay;
    const int n4 = c.n / 4 * 4;
    for (int i = threadIdx.x * 4; i < n4; i += 1024) {
        float4 p = *(float4 *)(c.p + i), g = *(float4 *)(c.g + i), m = *(float4 *)(c.m + i), v = *(float4 *)(c.v + i);
        p.x = adam(p.x, g.x, m.x, v.x, a, keep); p.y = adam(p.y, g.y, m.y, v.y, a, keep);
        p.z = adam(p.z, g.z, m.z, v.z, a, keep); p.w = adam(p.w, g.w, m.w, v.w, a, keep);
        *(float4 *)(c.p + i) = p; *(float4 *)(c.m + i) = m; *(float4 *)(c.v + i) = v; *(float4 *)(c.g + i) = make_float4(0, 0, 0, 0);
        if (c.shadow) {
            union { __nv_bfloat162 h[2]; uint2 raw; } u;
            u.h[0] = __floats2bfloat162_rn(p.x, p.y); u.h[1] = __floats2bfloat162_rn(p.z, p.w);
            *(uint2 *)(c.shadow + i) = u.raw;
        }
    }
    for (int i = n4 + threadIdx.x; i < c.n; i += 256) {
        float m = c.m[i], v = c.v[i];
        const float p = adam(c.p[i], c.g[i], m, v, a, keep);
        c.p[i] = p; c.m[i] = m; c.v[i] = v; c.g[i] = 0;
        if (c.shadow) c.shadow[i] = from_float<bf16>(p);
    }
}
void gpu_adamw_all(void *device, const gpts_update *tensors, size_t n, double gscale, double rate, double beta1, double beta2,
                   double epsilon, uint64_t step)
{
    Gpu &g = gpu_of(device);
    std::vector<Chunk> whole, chunks;
    for (size_t i = 0; i < n; i++) {
        char *base; Memory *m = memory_of(g, tensors[i].p, &base);
        if (m) m->version++;
        Chunk c; memset(&c, 0, sizeof c);
        c.p = tensors[i].p; c.g = tensors[i].g; c.m = tensors[i].m; c.v = tensors[i].v; c.decay = (float)tensors[i].decay;
        c.shadow = m && m->shadow && !m->stale ? m->shadow + (tensors[i].p - (float *)base) : 0;
        c.n = (int32_t)(tensors[i].n < INT32_MAX ? tensors[i].n : INT32_MAX);
        whole.push_back(c);
    }
    if (whole.size() != g.updates.size() || memcmp(whole.data(), g.updates.data(), whole.size() * sizeof(Chunk))) {
        for (size_t i = 0; i < n; i++)
            for (size_t at = 0; at < tensors[i].n; at += CHUNK) {
                Chunk c = whole[i];
                c.p += at; c.g += at; c.m += at; c.v += at; if (c.shadow) c.shadow += at;
                c.n = (int32_t)(tensors[i].n - at < CHUNK ? tensors[i].n - at : CHUNK);
                chunks.push_back(c);
            }
        g.updates.clear(); g.chunks = chunks.size();
        Chunk *list = scratch<Chunk>(g, SCRATCH_UPDATES, (chunks.size() + 1) * sizeof(Chunk));
        if (!list) return;
        gpu_upload(device, list, chunks.data(), chunks.size() * sizeof(Chunk));
        g.updates = whole;
    }
    if (!g.chunks) return;
    Adam a;
    a.scale = (float)gscale; a.rate = (float)rate; a.beta1 = (float)beta1; a.rest1 = (float)(1 - beta1); a.beta2 = (float)beta2;
    a.rest2 = (float)(1 - beta2);
    a.step = (float)(rate / (1 - pow(beta1, (double)step))); a.second = (float)(1 / sqrt(1 - pow(beta2, (double)step))); a.epsilon = (float)epsilon;
    adamw_chunks<<<(unsigned)g.chunks, 256, 0, g.stream>>>((const Chunk *)g.scratch[SCRATCH_UPDATES], a);
    launched(g, "adamw");
}
void gpu_adamw(void *device, gpts_real *p, gpts_real *grad, gpts_real *m, gpts_real *v, size_t n, double gscale, double rate, double decay,
               double beta1, double beta2, double epsilon, uint64_t step)
{
    gpts_update one; memset(&one, 0, sizeof one);
    one.p = p; one.g = grad; one.m = m; one.v = v; one.n = n; one.decay = decay;
    gpu_adamw_all(device, &one, 1, gscale, rate, beta1, beta2, epsilon, step);
}

/* ==== @@MODEL  a layer's heads in a model; the table; attach ================================================================ */

/* what the device derives from a layer's heads: gpts_heads' plan */
struct Slot;
struct HeadsPlan {
    int64_t longest, T; double theta; void *prepared; size_t bytes; unsigned char kind[256], wide[256];
    void *decode; int64_t decode_T, capacity; Slot *slots; int splitting;       /* of sessions: tables for decode_T positions; slots at that capacity */
};

HeadsPlan *plan_of(Gpu &g, const gpts_heads *heads)
{
    gpts_heads *h = (gpts_heads *)(uintptr_t)heads;          /* the plan is a cache behind it */
    if (!h->plan) {
        HeadsPlan *plan = new (std::nothrow) HeadsPlan;
        if (!plan) { fail(g, GPTS_NO_MEMORY, "%s%s", "out of memory: a layer's heads", ""); return 0; }
        memset(plan, 0, sizeof *plan);
        memset(plan->kind, GPTS_GPU_PRUNED, sizeof plan->kind);
        for (size_t s = 0; s < h->K && h->H <= 256; s++) {
            const int32_t at = h->static_slot[s];
            plan->kind[h->kept[s]] = at < 0 ? GPTS_GPU_LIVE : h->tail_start && (size_t)h->tail_start[at] < h->S ? GPTS_GPU_LINEAR : GPTS_GPU_EXACT;
        }
        h->plan = (struct gpts_pattern_plan *)plan;
    }
    return (HeadsPlan *)h->plan;
}
gpts_status gpu_prepare(void *device, gpts_heads *heads, size_t T, char *error)
{
    Gpu &g = gpu_of(device);
    for (size_t s = 0; s < heads->n && T > heads->S; s++)
        if (!heads->tail_start || (size_t)heads->tail_start[s] >= heads->S) {
            if (error)
                snprintf(error, GPTS_ERROR_BYTES, "%llu positions, but a static head in exact form is defined up to %llu",
                         (unsigned long long)T, (unsigned long long)heads->S);
            return GPTS_TOO_LONG;
        }
    if (heads->H > 256) {
        if (error) snprintf(error, GPTS_ERROR_BYTES, "%llu heads a layer; on the GPU at most 256 are supported", (unsigned long long)heads->H);
        return GPTS_UNSUPPORTED;
    }
    HeadsPlan *plan = plan_of(g, heads);
    if (plan) plan->longest = (int64_t)T;
    return plan ? GPTS_OK : gpu_status(device, error);
}
void gpu_forget(void *device, gpts_heads *heads)
{
    Gpu &g = gpu_of(device);
    HeadsPlan *plan = (HeadsPlan *)heads->plan;
    if (!plan) return;
    cudaStreamSynchronize(g.stream);
    cudaFree(plan->prepared); cudaFree(plan->decode); cudaFree(plan->slots);
    g.generation++;
    delete plan;
    heads->plan = 0;
}

/* the call of @@CALL for these heads over B rows of T positions; row_bytes apart in qkv and y */
bool attention_of(Gpu &g, gpts_gpu_attention &a, const gpts_heads *heads, HeadsPlan *plan, int64_t B, int64_t T, double scale,
                  double theta, int64_t room,
                  void *y, void *qkv, float *lse)
{
    const int64_t U = (int64_t)heads->U, K = (int64_t)heads->K, D = (int64_t)heads->D, wide = (2 * U + K) * D, size = (int64_t)g.size();
    memset(&a, 0, sizeof a);
    a.type = g.type; a.D = (int)D; a.B = B; a.T = T; a.H = (int)heads->H; a.R = heads->tail_start ? (int)heads->R : 0;
    a.kind = plan->kind; a.wide = plan->wide;
    a.theta = U ? theta : 0; a.rotated = 1; a.scale = (float)scale; a.S = (int64_t)heads->S; a.alpha = heads->alpha; a.rho = heads->rho;
    a.tail_start = heads->tail_start; a.coef = heads->tail_coef; a.decay = heads->tail_decay; a.lse = lse; a.stream = g.stream;
    a.beside = g.beside; a.events[0] = g.fork; a.events[1] = g.join;
    auto at = [&](void *p, int64_t column, int64_t row) {
        Tensor x; x.data = p ? (char *)p + column * size : 0; x.h = D; x.t = row; x.b = room * row; return x;
    };
    a.q = at(qkv, 0, wide); a.k = at(qkv, U * D, wide); a.v = at(qkv, 2 * U * D, wide); a.y = at(y, 0, K * D);
    if (plan->T == T && plan->theta == a.theta) { a.prepared = plan->prepared; a.prepared_bytes = plan->bytes; return true; }
    const size_t need = gpts_gpu_attention_prepared_size(&a);
    if (need > plan->bytes) {
        if (plan->prepared) { cudaStreamSynchronize(g.stream); cudaFree(plan->prepared); }
        plan->prepared = 0; plan->bytes = 0; plan->T = 0;
        if (!fine(g, cudaMalloc(&plan->prepared, need), "the tables of a layer's heads")) { plan->prepared = 0; return false; }
        plan->bytes = need;
    }
    a.prepared = plan->prepared; a.prepared_bytes = plan->bytes; plan->T = 0; g.generation++;
    if ((heads->n || a.theta > 0) && gpts_gpu_attention_prepare(&a) != GPTS_GPU_OK) { fail(g, GPTS_UNSUPPORTED, "%s%s", a.error, ""); return false; }
    plan->T = T; plan->theta = a.theta;
    return true;
}
bool attention_work(Gpu &g, gpts_gpu_attention &a, bool backward)
{
    a.workspace_bytes = gpts_gpu_attention_workspace_size(&a, backward);
    a.workspace = scratch<void>(g, SCRATCH_ATTENTION, a.workspace_bytes ? a.workspace_bytes : 1);
    return a.workspace != 0;
}
void attention_said(Gpu &g, gpts_gpu_attention &a, gpts_gpu_status status)
{
    if (status != GPTS_GPU_OK)
        fail(g, status == GPTS_GPU_FAILED ? GPTS_DEVICE : status == GPTS_GPU_UNSUPPORTED ? GPTS_UNSUPPORTED : GPTS_BAD_ARGUMENT, "%s%s", a.error, "");
}

/* rows of padded batches [B,T,width], moved to the start: to [B,room,width] = row first[b] + t where t < length[b], else 0; and back */
template <class E> __global__ void rows_gather(E *to, const E *from, const int32_t *first, const int32_t *length, int64_t items,
                                               int64_t T, int64_t room, int64_t width)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const int64_t c = i % width, t = i / width % room, b = i / width / room, start = first ? first[b] : 0, n = length ? length[b] : T - start;
    to[i] = t < n ? from[(b * T + start + t) * width + c] : from_float<E>(0);
}
template <class E> __global__ void rows_scatter(E *to, const E *from, const int32_t *first, const int32_t *length, int64_t items,
                                                int64_t T, int64_t room, int64_t width)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const int64_t c = i % width, b = i / width / T, start = first ? first[b] : 0, t = i / width % T - start, n = length ? length[b] : T - start;
    to[i] = t >= 0 && t < n ? from[(b * room + t) * width + c] : from_float<E>(0);
}
/* rows past the end of a sequence are 0 */
template <class E, int W> __global__ void rows_mask(E *x, const int32_t *length, int64_t B, int64_t T, int64_t width)
{
    float zero[W] = {};
    for (int64_t b = blockIdx.y; b < B; b += gridDim.y)
        for (int64_t i = length[b] * width / W + blockIdx.x * blockDim.x + threadIdx.x; i < T * width / W; i += gridDim.x * blockDim.x)
            store<W>(x + b * T * width + i * W, zero);
}
void gather(Gpu &g, void *to, const void *from, const int32_t *first, const int32_t *length, size_t B, size_t T, int64_t room, int64_t width)
{
    const int64_t items = (int64_t)B * room * width;
    BY_TYPE(g, false, (rows_gather<E><<<grid(items, 256 * W), 256, 0, g.stream>>>((E *)to, (const E *)from, first, length, items,
            (int64_t)T, room, width)));
}
void scatter(Gpu &g, void *to, const void *from, const int32_t *first, const int32_t *length, size_t B, size_t T, int64_t room, int64_t width)
{
    const int64_t items = (int64_t)(B * T) * width;
    BY_TYPE(g, false, (rows_scatter<E><<<grid(items, 256 * W), 256, 0, g.stream>>>((E *)to, (const E *)from, first, length, items,
            (int64_t)T, room, width)));
}

/* card  (R1) (A1) (M1).  Rows that start late are moved to the front first; rows that end early run to the end, which no earlier row
         sees, and are 0 afterwards.                                                                                            */
void gpu_attention_forward(void *device, const gpts_heads *heads, void *y, gpts_real *lse, void *qkv, const int32_t *first,
                           const int32_t *length, size_t B, size_t T, double scale, double theta)
{
    Gpu &g = gpu_of(device); gpts_gpu_attention a; HeadsPlan *plan = plan_of(g, heads);
    if (!plan || !heads->K || !B || !T) return;
    const int64_t room = plan->longest && plan->longest < (int64_t)T ? plan->longest : (int64_t)T,
        wide = (int64_t)((2 * heads->U + heads->K) * heads->D), kept = (int64_t)(heads->K * heads->D);
    char *work = 0; void *yr = y, *qkvr = qkv;
    if (first) {
        if (!(work = scratch<char>(g, SCRATCH_ROWS, (size_t)((int64_t)B * room * (wide + kept)) * g.size()))) return;
        qkvr = work; yr = work + (int64_t)B * room * wide * (int64_t)g.size();
        gather(g, qkvr, qkv, first, length, B, T, room, wide);
    }
    if (!attention_of(g, a, heads, plan, (int64_t)B, room, scale, theta, first ? room : (int64_t)T, yr, qkvr, lse) || !attention_work(g, a, false))
        return;
    attention_said(g, a, gpts_gpu_attention_rotate(&a, 0));
    attention_said(g, a, gpts_gpu_attention_forward(&a));
    if (first) scatter(g, y, yr, first, length, B, T, room, kept);
    else if (length) {
        const dim3 blocks(16, (unsigned)(B < 65535 ? B : 65535));
        BY_TYPE(g, kept % 8 == 0, (rows_mask<E, W><<<blocks, 256, 0, g.stream>>>((E *)y, length, (int64_t)B, (int64_t)T, kept)));
    }
    launched(g, "attention_forward");
}
/* card  (A2) (M2) (P10) (P11) (R2) */
void gpu_attention_backward(void *device, const gpts_heads *heads, void *dqkv, const void *dy, const void *y, const gpts_real *lse,
                            const void *qkv, const int32_t *first,
                            const int32_t *length, size_t B, size_t T, double scale, double theta, gpts_real *dalpha, gpts_real *drho,
                            gpts_real *dcoef, gpts_real *ddecay)
{
    Gpu &g = gpu_of(device); gpts_gpu_attention a; HeadsPlan *plan = plan_of(g, heads);
    if (!plan || !heads->K || !B || !T) return;
    const int64_t room = plan->longest && plan->longest < (int64_t)T ? plan->longest : (int64_t)T,
        wide = (int64_t)((2 * heads->U + heads->K) * heads->D), kept = (int64_t)(heads->K * heads->D);
    const int64_t D = (int64_t)heads->D, U = (int64_t)heads->U, size = (int64_t)g.size(), rows = (int64_t)B * room;
    const bool moved = first || length;
    void *yr = (void *)(uintptr_t)y, *qkvr = (void *)(uintptr_t)qkv, *dyr = (void *)(uintptr_t)dy, *dqkvr = dqkv;
    if (moved) {
        char *work = scratch<char>(g, SCRATCH_ROWS, (size_t)(rows * 2 * (wide + kept) * size));
        if (!work) return;
        qkvr = work; dqkvr = work + rows * wide * size; yr = work + 2 * rows * wide * size; dyr = work + rows * (2 * wide + kept) * size;
        gather(g, qkvr, qkv, first, length, B, T, room, wide);
        gather(g, yr, y, first, length, B, T, room, kept);
        gather(g, dyr, dy, first, length, B, T, room, kept);
    }
    if (!attention_of(g, a, heads, plan, (int64_t)B, room, scale, theta, moved ? room : (int64_t)T, yr, qkvr,
                      (float *)(uintptr_t)lse)) return;
    a.dalpha = dalpha; a.drho = drho; a.dcoef = dcoef; a.ddecay = ddecay;
    if (!attention_work(g, a, true)) return;
    if (first) attention_said(g, a, gpts_gpu_attention_rotate(&a, 0));
    a.dq = a.q; a.dk = a.k; a.dv = a.v; a.dy = a.y;
    a.dq.data = dqkvr; a.dk.data = (char *)dqkvr + U * D * size; a.dv.data = (char *)dqkvr + 2 * U * D * size; a.dy.data = dyr;
    attention_said(g, a, gpts_gpu_attention_backward(&a));
    if (moved) scatter(g, dqkv, dqkvr, first, length, B, T, room, wide);
    launched(g, "attention_backward");
}

/* ==== @@SAMPLE ===========================================================================================================
   One more token a row.  Two ways to the same numbers: operation by operation (attention_decode below), and, for a few rows, the
   whole step in one launch.

   card  (A3) (M3) one head, one row of the batch, one part of the positions; the parts are put together by their log-sum-exp:
         live    s[j] = scale q.k[j] over the cached positions and the new one;   y = sum_j softmax(s)[j] v[j]
         static  y = sum_j P[i,j] v[j], P by (P1) from alpha, rho, z; linear heads: j from tile t on, and before it R states
                 x[r] = sum_{j<t} decay_r^(t-1-j) exp(alpha[j] - n_r) v[j], n_r a logarithmic scale kept beside them: the largest
                 decay_r^(t-1-j) exp(alpha[j]) of a prefill, and their sum once a step has taken a tile in                        (P4)
                 y += sum_r coef_r decay_r^(i+1-W-t) exp(n_r - z[i]) x[r]                                                          (P9)
         bound by reading the caches; tests/gpu/session.c                                                                        */
enum { STEP_WARPS = 8, STEP_THREADS = 32 * STEP_WARPS, STEP_ROWS = 8, MAX_SPLITS = 16, TILE_ROWS = 64, MAX_TERMS = 64, WEIGHTS = 1024 };

/* A kept head as decoding sees it; a layer's list has the heads that split first, then the linear ones. */
struct Slot { int slot, live, fixed, linear, ring, rows, reach, shift; };
struct Cached {
    int U, n, K, D, R, splitting; int64_t capacity, ring_rows, state_size;
    void *keys, *values, *ring; float *state;
    const Slot *slots; Prepared pre; const float *coef, *decay; float scale; double theta;
};
struct AttendShared { alignas(16) float part[STEP_WARPS][MAX_D], top[STEP_WARPS], sum[STEP_WARPS], weight[WEIGHTS], far[MAX_D], gain[MAX_TERMS]; };

/* A lane's share of a head vector: eight values in a row (V = 8), or every lanes-th one (V = 1). */
template <class E, int V> struct Share {
    enum { WORDS = 2 * sizeof(E), PER = 4 / sizeof(E) };
    uint32_t w[WORDS];
    static __device__ __forceinline__ int dim(int sub, int lanes, int e) { return V == 8 ? 8 * sub + e : sub + e * lanes; }
    __device__ __forceinline__ float get(int e) const
    {
        if constexpr (is_bf16<E>::value) return __uint_as_float(e % 2 ? w[e / 2] & 0xFFFF0000u : w[e / 2] << 16);
        else return __uint_as_float(w[e]);
    }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++) w[i] = 0;
    }
    __device__ __forceinline__ void set(const float (&x)[8])
    {
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            if constexpr (is_bf16<E>::value) w[i] = pack<bf16>(x[2 * i], x[2 * i + 1]); else w[i] = __float_as_uint(x[i]);
    }
    __device__ __forceinline__ void load(const E *row, int sub, int lanes, int D)
    {
        clear();
        if constexpr (V == 8) {
            if (8 * sub < D)
#pragma unroll
                for (int i = 0; i < WORDS / 4; i++) {
                    const uint4 u = ((const uint4 *)(row + 8 * sub))[i];
                    w[4 * i] = u.x; w[4 * i + 1] = u.y; w[4 * i + 2] = u.z; w[4 * i + 3] = u.w;
                }
        } else {
            float x[8];
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = sub + e * lanes < D ? to_float(row[sub + e * lanes]) : 0.f;
            set(x);
        }
    }
    __device__ __forceinline__ void store(E *row, int sub, int lanes, int D) const
    {
        if constexpr (V == 8) {
            if (8 * sub < D)
#pragma unroll
                for (int i = 0; i < WORDS / 4; i++) ((uint4 *)(row + 8 * sub))[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
        } else
#pragma unroll
            for (int e = 0; e < 8; e++) if (sub + e * lanes < D) row[sub + e * lanes] = from_float<E>(get(e));
    }
};
__device__ __forceinline__ int lanes_of(int D, int V) { return 16 * V < D ? 32 : 8 * V < D ? 16 : 8; }

/* the positions of one split, and for a linear head the tile where its near part begins */
__device__ __forceinline__ void split_range(const Slot &h, int i, int split, int splits, int &t, int &j0, int &j1)
{
    const int a = i / TILE_ROWS;
    t = h.linear ? (a - (a < h.reach ? a : h.reach)) * TILE_ROWS : 0;
    const int per = int(unsigned(i - t + splits - 1) / unsigned(splits));
    j0 = t + split * per; j1 = j0 + per < i ? j0 + per : i;
}

/* (P4) the states of linear head p take in the tile before t, which leaves the ring; a block */
template <class E>
__device__ void absorb(const Cached &c, const Slot &h, float *state, const E *ring, int t, AttendShared &s)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, p = h.fixed, D = c.D;
    float *x = state + 2 * c.R; const float *alpha = c.pre.alpha + p * c.pre.Tp + t - TILE_ROWS;
    for (int r0 = 0; r0 < c.R; r0 += STEP_WARPS) {
        const int r = r0 + warp;
        if (r < c.R) {
            const double ld = log((double)c.decay[p * c.R + r]);
            double a = (63 - lane) * ld + alpha[lane], b = (31 - lane) * ld + alpha[lane + 32], top = fmax(a, b), before = -INFINITY, sum;
            for (int m = 16; m; m >>= 1) top = fmax(top, __shfl_xor_sync(~0u, top, m));
            if (t > TILE_ROWS) before = (double)state[2 * r] + (double)state[2 * r + 1] + 64 * ld;
            top = fmax(top, before);
            sum = exp(a - top) + exp(b - top);
            for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(~0u, sum, m);
            const double after = top + log(sum + exp(before - top));
            s.weight[warp * 65 + lane] = expf(float(a - after)); s.weight[warp * 65 + lane + 32] = expf(float(b - after));
            if (lane == 0) {
                s.weight[warp * 65 + 64] = t > TILE_ROWS ? expf(float(before - after)) : 0;
                state[2 * r] = (float)after;
                state[2 * r + 1] = float(after - (double)(float)after);
            }
        }
        __syncwarp();
        if (r < c.R)
            for (int d = lane; d < D; d += 32) {
                float y = t > TILE_ROWS ? s.weight[warp * 65 + 64] * x[r * D + d] : 0;
                for (int j = 0; j < TILE_ROWS; j++) y += s.weight[warp * 65 + j] * to_float(ring[((t - TILE_ROWS + j) % h.rows) * D + d]);
                x[r * D + d] = y;
            }
        __syncwarp();
    }
}

/* One block's work on head h of row b at position i (below 0: resting), split of splits, in three parts.

   A static head: o takes this lane's dimensions of the sum over this thread's positions; token: the new v.  A function of its own, as it is long. */
template <class E, int V>
__device__ __noinline__ void attend_fixed(const Cached &c, const Slot &h, int64_t b, int i, int split, int splits, const float *token,
                                          AttendShared &s, float (&o)[8])
{
    const int D = c.D, lanes = lanes_of(D, V), bits = 31 - __clz(lanes), sub = threadIdx.x & (lanes - 1), group = threadIdx.x >> bits,
        groups = STEP_THREADS >> bits;
    const bool last = split == splits - 1;
    typedef Share<E, V> S;
    if (i < 0) return;
    int t, j0, j1;
    split_range(h, i, split, splits, t, j0, j1);
    const int64_t p = h.fixed, Tp = c.pre.Tp; const double z = c.pre.z[p * Tp + i];
    const float *alpha = c.pre.alpha + p * Tp, *rho = c.pre.rho + p * Tp;
    E *ring = (E *)c.ring + (b * c.n * c.ring_rows + h.ring) * D; float *state = c.state + (b * c.n + p) * c.state_size;
    float y[8] = {};                                                             /* o itself would be in memory */
    auto weight = [&](int j) { return expf(float((double)alpha[j] + (double)rho[i - j] - z)); };
    if (t > 0 && last) {
        if (i % TILE_ROWS == 0) { absorb<E>(c, h, state, ring, t, s); group_sync(1, STEP_THREADS); }
        if (threadIdx.x < c.R) {
            const int r = threadIdx.x; const double coef = c.coef[p * c.R + r], ld = log((double)c.decay[p * c.R + r]);
            s.gain[r] = coef > 0
                ? expf(float(log(coef) + (double)(i % TILE_ROWS + h.shift) * ld + (double)state[2 * r] + (double)state[2 * r + 1] - z)) : 0.f;
        }
        group_sync(1, STEP_THREADS);
        for (int d = threadIdx.x; d < D; d += STEP_THREADS) {
            float far = 0;
            for (int r = 0; r < c.R; r++) far += s.gain[r] * state[2 * c.R + r * D + d];
            s.far[d] = far;
        }
    }
    for (int base = j0; base < j1; base += WEIGHTS) {
        const int count = j1 - base < WEIGHTS ? j1 - base : WEIGHTS, from = base % h.rows;
        for (int n = threadIdx.x; n < count; n += STEP_THREADS) s.weight[n] = weight(base + n);
        group_sync(1, STEP_THREADS);
        for (int n = group; n < count; n += 4 * groups) {
            S v[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const int at = from + n + u * groups;
                if (n + u * groups < count) v[u].load(ring + (int64_t)(at < h.rows ? at : at - h.rows) * D, sub, lanes, D);
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
                if (n + u * groups < count) {
                    const float w = s.weight[n + u * groups];
#pragma unroll
                    for (int e = 0; e < 8; e++) y[e] += w * v[u].get(e);
                }
            }
        }
        group_sync(1, STEP_THREADS);
    }
    if (last) group_sync(1, STEP_THREADS);
    if (last && group == 0) {
        S v; const float w = weight(i); float x[8];
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = S::dim(sub, lanes, e) < D ? token[S::dim(sub, lanes, e)] : 0.f;
        v.set(x);
#pragma unroll
        for (int e = 0; e < 8; e++) { y[e] += w * v.get(e); if (t > 0 && S::dim(sub, lanes, e) < D) y[e] += s.far[S::dim(sub, lanes, e)]; }
        v.store(ring + (int64_t)(i % h.rows) * D, sub, lanes, D);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) o[e] = y[e];
}
/* A live head: o likewise, in units of 2^m, l the weights' sum.  token(0, 1, 2): the new q, k, v, once ready() has returned to all threads.
   SHORT_WAY: few positions a block, whose time is instructions and latency; otherwise many, whose time is reading. */
template <class E, int V, bool SHORT_WAY, class Ready, class Token>
__device__ __forceinline__ void attend_live(const Cached &c, int head, int64_t b, int i, int split, int splits, const float2 *rotation,
                                            float (&o)[8], float &m, float &l, Ready ready, Token token)
{
    const int D = c.D, lanes = lanes_of(D, V), bits = 31 - __clz(lanes), sub = threadIdx.x & (lanes - 1), group = threadIdx.x >> bits,
        groups = STEP_THREADS >> bits, half = D / 2;
    const int per = int(unsigned(i + splits - 1) / unsigned(splits)), j0 = split * per, j1 = j0 + per < i ? j0 + per : i;
    const bool turn = c.theta > 0;
    typedef Share<E, V> S;
    if (i < 0) return;
    const int64_t at = (b * c.U + head) * c.capacity;
    E *keys = (E *)c.keys + at * D, *values = (E *)c.values + at * D;
    S k[4], v[4];
    auto load = [&](S (&x)[4], const E *from, int base) {
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int j = base + group + u * groups;
            if (j < j1) x[u].load(from + (int64_t)j * D, sub, lanes, D); else x[u].clear();
        }
    };
    load(k, keys, j0); load(v, values, j0);                                      /* while the new token's numbers are on their way */
    ready();
    auto eight = [&](const float *x, float (&y)[8]) {                            /* this lane's dimensions of a vector */
        if constexpr (V == 8) {
            const float4 u = *(const float4 *)(x + 8 * sub), v = *(const float4 *)(x + 8 * sub + 4);
            y[0] = u.x; y[1] = u.y; y[2] = u.z; y[3] = u.w; y[4] = v.x; y[5] = v.y; y[6] = v.z; y[7] = v.w;
        } else {
            for (int e = 0; e < 8; e++) y[e] = S::dim(sub, lanes, e) < D ? x[S::dim(sub, lanes, e)] : 0.f;
        }
    };
    auto turned = [&](const float *x, float (&y)[8]) {
        if (V == 8 && 8 * sub >= D) {
            for (int e = 0; e < 8; e++) y[e] = 0;
            return;
        }
        eight(x, y);
        if (!turn) return;
        if constexpr (V == 8) {                                                  /* all eight in one half */
            const bool low = 8 * sub < half; float z[8]; const float4 *r = (const float4 *)(rotation + (low ? 8 * sub : 8 * sub - half));
            eight(x + (low ? half : -half), z);
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const float4 u = r[e / 2];
                y[e] = y[e] * u.x + (low ? -z[e] : z[e]) * u.y; y[e + 1] = y[e + 1] * u.z + (low ? -z[e + 1] : z[e + 1]) * u.w;
            }
        } else {
            for (int e = 0; e < 8; e++) {
                const int d = S::dim(sub, lanes, e); const bool low = d < half;
                if (d < D)
                    y[e] = low ? y[e] * rotation[d].x - x[d + half] * rotation[d].y
                               : y[e] * rotation[d - half].x + x[d - half] * rotation[d - half].y;
            }
        }
    };
    float q[8];
    turned(token(0), q);
#pragma unroll
    for (int e = 0; e < 8; e++) q[e] = to_float(from_float<E>(q[e])) * (c.scale * (float)LOG2E);
#pragma unroll 1
    for (int base = j0; base < j1; base += 4 * groups) {
        float p[4], top = m;
        auto some = [&](int u) { return !SHORT_WAY || u == 0 || base + u * groups < j1; };
#pragma unroll
        for (int u = 0; u < 4; u++) {
            p[u] = 0;
            if (some(u)) {
#pragma unroll
                for (int e = 0; e < 8; e++) p[u] += q[e] * k[u].get(e);
                if (lanes > 16) p[u] += __shfl_xor_sync(~0u, p[u], 16);
                if (lanes > 8) p[u] += __shfl_xor_sync(~0u, p[u], 8);
                p[u] += __shfl_xor_sync(~0u, p[u], 4); p[u] += __shfl_xor_sync(~0u, p[u], 2); p[u] += __shfl_xor_sync(~0u, p[u], 1);
            }
            if (base + group + u * groups >= j1) p[u] = -INFINITY;
            top = fmaxf(top, p[u]);
        }
        const bool more = base + 4 * groups < j1;
        if (SHORT_WAY && more) load(k, keys, base + 4 * groups);
        const float level = top == -INFINITY ? 0.f : top, f = exp2_fast(m - level);
        l *= f;
#pragma unroll
        for (int e = 0; e < 8; e++) o[e] *= f;
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (some(u)) {
                const float w = exp2_fast(p[u] - level);
                l += w;
#pragma unroll
                for (int e = 0; e < 8; e++) o[e] += w * v[u].get(e);
            }
        m = top;
        if (!SHORT_WAY && more) load(k, keys, base + 4 * groups);
        if (more) load(v, values, base + 4 * groups);
    }
    if (split == splits - 1 && threadIdx.x < 32) {                               /* the new position: into the caches, and into the sum */
        S kn, vn; float p = 0, x[8];
        turned(token(1), x);
        kn.set(x);
#pragma unroll
        for (int e = 0; e < 8; e++) p += q[e] * kn.get(e);
        if (V == 1 || 8 * sub < D) eight(token(2), x);
        vn.set(x);
        for (int n = lanes / 2; n; n >>= 1) p += __shfl_xor_sync(~0u, p, n);
        if (group == 0) {
            kn.store(keys + (int64_t)i * D, sub, lanes, D); vn.store(values + (int64_t)i * D, sub, lanes, D);
            const float top = fmaxf(m, p), f = exp2_fast(m - top), w = exp2_fast(p - top);
            l = l * f + w; m = top;
#pragma unroll
            for (int e = 0; e < 8; e++) o[e] = o[e] * f + w * vn.get(e);
        }
    }
}
/* All threads' sums: put(copy, d, four values, log2 of the weights' sum) receives y, of a live head the mean (scale 0), of a static one the sum by scale. */
template <int V, int COPIES, class Put>
__device__ __forceinline__ void attend_join(int D, float (&o)[8], float m, float l, float scale, AttendShared &s, Put put)
{
    const int lanes = lanes_of(D, V), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float most = m;                                                              /* groups of the warp, then warps, in a fixed order */
    for (int n = 16; n >= 8; n /= 2) if (n >= lanes) most = fmaxf(most, __shfl_xor_sync(~0u, most, n));
    const float f = exp2_fast(m - (most == -INFINITY ? 0.f : most));
    l *= f; m = most;
#pragma unroll
    for (int e = 0; e < 8; e++) o[e] *= f;
#pragma unroll
    for (int n = 16; n >= 8; n /= 2)
        if (n >= lanes) {
            l += __shfl_xor_sync(~0u, l, n);
#pragma unroll
            for (int e = 0; e < 8; e++) o[e] += __shfl_xor_sync(~0u, o[e], n);
        }
    if (lane < lanes) {
        if constexpr (V == 8) {
            if (8 * lane < D) {
                float4 *to = (float4 *)&s.part[warp][8 * lane];
                to[0] = make_float4(o[0], o[1], o[2], o[3]);
                to[1] = make_float4(o[4], o[5], o[6], o[7]);
            }
        } else
            for (int e = 0; e < 8; e++) if (lane + e * lanes < D) s.part[warp][lane + e * lanes] = o[e];
        if (lane == 0) { s.top[warp] = m; s.sum[warp] = l; }
    }
    group_sync(1, STEP_THREADS);
#pragma unroll 1
    for (int x = threadIdx.x; x < (D + 3) / 4 * COPIES; x += STEP_THREADS) {
        const int d = x / COPIES * 4;
        float tops[STEP_WARPS], sums[STEP_WARPS], top = -INFINITY, sum = 0, y[4] = {};
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w += 4) {
            *(float4 *)(tops + w) = *(const float4 *)(s.top + w);
            *(float4 *)(sums + w) = *(const float4 *)(s.sum + w);
        }
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) top = fmaxf(top, tops[w]);
        const float level = top == -INFINITY ? 0.f : top;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            const float f = exp2_fast(tops[w] - level); const float4 x = *(const float4 *)&s.part[w][d];
            sum += f * sums[w];
            y[0] += f * x.x; y[1] += f * x.y; y[2] += f * x.z; y[3] += f * x.w;
        }
        const float factor = scale > 0 ? scale : sum > 0 ? __fdividef(1, sum) : 0.f;
#pragma unroll
        for (int e = 0; e < 4; e++) y[e] *= factor;
        put(x % COPIES, d, y, scale > 0 ? 0.f : sum > 0 ? level + __log2f(sum) : -INFINITY);
    }
    group_sync(1, STEP_THREADS);
}
/* y of the splits' parts: y(s), log2 weight(s) -> their weighted mean */
__device__ __forceinline__ void join(float &top, float &sum, float (&y)[4], float lse, const float (&v)[4])
{
    const float m = fmaxf(top, lse), level = m == -INFINITY ? 0.f : m, f = exp2f(top - level), w = exp2f(lse - level);
    sum = sum * f + w; top = m;

#pragma unroll
    for (int e = 0; e < 4; e++) y[e] = y[e] * f + w * v[e];
}

/* ---- operation by operation ---- */
struct Decode { Cached c; const void *qkv; void *y; const int32_t *position; float *parts; int *arrived; int splits; };

/* A block a row of the batch, head and split; the last one of a head to arrive puts its splits together, in their order. */
template <class E, int V>
__global__ __launch_bounds__(STEP_THREADS) void decode_heads(const __grid_constant__ Decode a)
{
    __shared__ AttendShared s; alignas(16) __shared__ float2 rotation[MAX_D / 2]; alignas(16) __shared__ float token[3][MAX_D]; __shared__ int before;
    const Cached &c = a.c; const int D = c.D;
    const int split = blockIdx.x % a.splits, item = blockIdx.x / a.splits, b = item / c.K;
    const Slot h = c.slots[item % c.K];
    const int i = a.position[b];
    if (h.linear && split) return;
    if (h.live >= 0 && c.theta > 0 && i >= 0)
        for (int d = threadIdx.x; d < D / 2; d += STEP_THREADS) {
            double sine, cosine;
            sincos((double)i * pow(c.theta, -2.0 * d / D), &sine, &cosine);
            rotation[d] = make_float2((float)cosine, (float)sine);
        }
    __syncthreads();
    const int splits = h.linear ? 1 : a.splits;
    const E *row = (const E *)a.qkv + (int64_t)b * (2 * c.U + c.K) * D;
    E *y = (E *)a.y + ((int64_t)b * c.K + h.slot) * D;
    float *parts = a.parts + (int64_t)item * a.splits * (D + 4);
    auto ready = [&] {
        for (int part = h.live < 0 ? 2 : 0; part < 3; part++)
            for (int d = threadIdx.x; d < D; d += STEP_THREADS) token[part][d] = to_float(row[(part * c.U + (part < 2 ? h.live : h.slot)) * D + d]);
        group_sync(1, STEP_THREADS);
    };
    float own[8] = {}, m = h.live < 0 ? 0 : -INFINITY, l = 0;
    if (h.live >= 0) attend_live<E, V, false>(c, h.live, b, i, split, splits, rotation, own, m, l, ready, [&](int part) { return token[part]; });
    else {
        float x[8] = {};
        ready();
        attend_fixed<E, V>(c, h, b, i, split, splits, token[2], s, x);
#pragma unroll
        for (int e = 0; e < 8; e++) own[e] = x[e];
    }
    attend_join<V, 1>(D, own, m, l, h.live < 0 ? (float)splits : 0.f, s, [&](int, int d, const float (&v)[4], float lse) {
        for (int e = 0; e < 4 && d + e < D; e++) {
            if (splits == 1) y[d + e] = from_float<E>(v[e]);
            else { parts[split * (D + 4) + d + e] = v[e]; if (d + e == 0) parts[split * (D + 4) + D] = lse; }
        }
    });
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(a.arrived + item, 1);
    __syncthreads();
    if (before < splits - 1) return;
    __threadfence();
    if (threadIdx.x == 0) a.arrived[item] = 0;
    const int d = 4 * threadIdx.x;
    if (d >= D) return;
    float top = -INFINITY, sum = 0, o[4] = {};
    for (int n = 0; n < splits; n++) {
        const volatile float *part = parts + n * (D + 4); float v[4] = {};
        for (int e = 0; e < 4 && d + e < D; e++) v[e] = part[d + e];
        join(top, sum, o, part[D], v);
    }
    for (int e = 0; e < 4 && d + e < D; e++) y[d + e] = from_float<E>(sum > 0 ? o[e] / sum : 0.f);
}

/* card  (P8) what decoding needs of a prefill: (rotated) keys and values of live heads, the last tiles of static ones, and for the states of
         linear heads sums over pieces of the positions before these, on logarithmic scales of the pieces' own:
         parts [rows,linear heads,pieces,R,D + 2]: a term's sum, its scale and the rest of that.  A block takes a piece of FILL_ROWS
         positions, a head and a row of the batch; bound by reading and writing; tests/gpu/session.c                               */
struct Fill { Cached c; const void *qkv; const int32_t *length; int64_t B, T; float *parts; int pieces; };
enum { FILL_ROWS = 128, FILL_TERMS = STEP_WARPS, FILL_AHEAD = 8 };
/* where the positions end that are in a linear head's states, after n of them */
__device__ __forceinline__ int64_t fill_end(const Slot &h, int64_t n)
{
    const int64_t last = (n - 1) / TILE_ROWS;
    return (last - (last < h.reach ? last : h.reach)) * TILE_ROWS;
}
/* two elements as they lie in memory, and as floats */
template <class E> struct Two { float2 x; __device__ __forceinline__ float2 floats() const { return x; } };
template <> struct Two<bf16> { __nv_bfloat162 x; __device__ __forceinline__ float2 floats() const { return __bfloat1622float2(x); } };

/* positions [from, to) of row b; k and v: of position 0, `step` apart; in pieces of P, four rows a thread on their way */
template <class E, class P> __device__ __forceinline__ void fill_copy(const Cached &c, const Slot &h, int64_t b, int64_t from, int64_t to,
                                                                      const E *k, const E *v, int64_t step)
{
    const int pieces = c.D * (int)sizeof(E) / (int)sizeof(P), groups = STEP_THREADS / pieces, group = threadIdx.x / pieces,
        sub = threadIdx.x % pieces;
    const P *k0 = (const P *)k + sub, *v0 = (const P *)v + sub;
    step = step * (int64_t)sizeof(E) / (int64_t)sizeof(P);
    if (group >= groups || from >= to) return;
    const bool live = h.live >= 0;
    const int64_t at = live ? (b * c.U + h.live) * c.capacity : b * c.n * c.ring_rows + h.ring;
    P *keys = (P *)c.keys + at * pieces + sub, *values = (P *)(live ? c.values : c.ring) + at * pieces + sub, x[4], y[4];
    for (int64_t j = from + group; j < to; j += 4 * groups) {
#pragma unroll
        for (int u = 0; u < 4; u++) {                                            /* past the end: the last row again */
            const int64_t i = j + u * groups < to ? j + u * groups : to - 1;
            y[u] = v0[i * step];
            x[u] = live ? k0[i * step] : y[u];
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int64_t i = j + u * groups;
            if (i >= to) break;
            if (live) keys[i * pieces] = x[u];
            values[(live ? i : int64_t(uint32_t(i) % uint32_t(h.rows))) * pieces] = y[u];
        }
    }
}
/* the part of `rows` positions from j0 on in states that end at t; v: of position j0; eight terms at a time, a warp each, whose weights
   may be there already */
struct FillShared { alignas(16) float weight[FILL_ROWS][FILL_TERMS + 4], sums[STEP_WARPS][FILL_TERMS][64], scale[FILL_TERMS][2]; };
template <class E, int W> __device__ __forceinline__ void fill_sums(const Cached &c, const Slot &h, int64_t j0, int rows, int64_t t, bool there,
                                                                    const E *v, int64_t step, float *part, FillShared &s)
{
    const int D = c.D, R = c.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *alpha = c.pre.alpha + h.fixed * c.pre.Tp + j0;
    for (int r0 = 0; r0 < R; r0 += FILL_TERMS)
        for (int d0 = 0; d0 < D; d0 += 64) {                                     /* two columns a lane at a time */
            Two<E> x[FILL_AHEAD]; float y[FILL_TERMS][2] = {}; const int d = d0 + 2 * lane;
            auto load = [&](int n) {
#pragma unroll
                for (int i = 0; i < FILL_AHEAD; i++) {
                    const int j = STEP_WARPS * (n + i) + warp; const E *from = v + j * step + d;
                    x[i] = Two<E>{};
                    if constexpr (W == 8) { if (j < rows && d < D) x[i] = *(const Two<E> *)from; }
                    else {
                        if (j < rows && d < D) ((E *)&x[i])[0] = from[0];
                        if (j < rows && d + 1 < D) ((E *)&x[i])[1] = from[1];
                    }
                }
            };
            load(0);
            if (d0 == 0 && r0 + warp < R && !(there && R <= FILL_TERMS)) {       /* decay^(t-1-j) exp(alpha[j]) = weight exp(scale) */
                const double ld = log((double)c.decay[h.fixed * R + r0 + warp]); double e[FILL_ROWS / 32], top = -INFINITY;
#pragma unroll
                for (int i = 0; i < FILL_ROWS / 32; i++) {
                    const int j = 32 * i + lane;
                    e[i] = j < rows ? double(alpha[j]) + double(t - 1 - j0 - j) * ld : -INFINITY;
                    top = fmax(top, e[i]);
                }
                for (int m = 16; m; m >>= 1) top = fmax(top, __shfl_xor_sync(~0u, top, m));
#pragma unroll
                for (int i = 0; i < FILL_ROWS / 32; i++) s.weight[32 * i + lane][warp] = expf(float(e[i] - top));
                if (lane == 0) { s.scale[warp][0] = (float)top; s.scale[warp][1] = float(top - (double)(float)top); }
            }
            __syncthreads();
            if (d0 == 0 && threadIdx.x < 2 * FILL_TERMS && r0 + threadIdx.x / 2 < R)
                part[(r0 + threadIdx.x / 2) * (D + 2) + D + threadIdx.x % 2] = s.scale[threadIdx.x / 2][threadIdx.x % 2];
#pragma unroll 1
            for (int n = 0; STEP_WARPS * n < rows; n += FILL_AHEAD) {
                if (n) load(n);
#pragma unroll
                for (int i = 0; i < FILL_AHEAD; i++) {
                    const float4 *w = (const float4 *)s.weight[STEP_WARPS * (n + i) + warp], p = w[0], q = w[1]; const float2 z = x[i].floats();
                    const float u[FILL_TERMS] = { p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w };
#pragma unroll
                    for (int k = 0; k < FILL_TERMS; k++) { y[k][0] += u[k] * z.x; y[k][1] += u[k] * z.y; }
                }
            }
#pragma unroll
            for (int k = 0; k < FILL_TERMS; k++) *(float2 *)&s.sums[warp][k][2 * lane] = make_float2(y[k][0], y[k][1]);
            __syncthreads();
            for (int i = threadIdx.x; i < FILL_TERMS * 64; i += STEP_THREADS) {
                const int k = i / 64, e = d0 + i % 64; float sum = 0;
#pragma unroll
                for (int w = 0; w < STEP_WARPS; w++) sum += s.sums[w][k][i % 64];
                if (r0 + k < R && e < D) part[(r0 + k) * (D + 2) + e] = sum;
            }
        }
}
/* neighbours in time are heads, whose rows lie side by side */
template <class E, int W> __global__ __launch_bounds__(STEP_THREADS, 3) void fill_pieces(const __grid_constant__ Fill a)
{
    __shared__ FillShared s;
    const Cached &c = a.c; const Slot h = c.slots[blockIdx.x];
    const int64_t step = (int64_t)(2 * c.U + c.K) * c.D, j0 = (int64_t)blockIdx.y * FILL_ROWS; int64_t before = -1;
    for (int64_t b = blockIdx.z; b < a.B; b += gridDim.z) {
        const int64_t n = a.length ? a.length[b] : a.T, t = h.linear ? fill_end(h, n) : 0, j1 = n - j0 < FILL_ROWS ? n : j0 + FILL_ROWS;
        const E *row = (const E *)a.qkv + b * a.T * step, *k = row + (c.U + h.live) * c.D, *v = row + (2 * c.U + h.slot) * c.D;
        fill_copy<E, std::conditional_t<W == 8, uint4, E>>(c, h, b, t > j0 ? t : j0, j1, k, v, step);
        if (t > j0) {
            float *part = a.parts + ((b * (c.K - c.splitting) + blockIdx.x - c.splitting) * a.pieces + blockIdx.y) * c.R * (c.D + 2);
            fill_sums<E, W>(c, h, j0, int(t - j0 < FILL_ROWS ? t - j0 : FILL_ROWS), t, t == before, v + j0 * step, step, part, s);
            before = t;
        }
    }
}
/* the pieces' sums, in their order, make the states; a block a linear head and a row of the batch, a warp a term */
__global__ __launch_bounds__(STEP_THREADS) void fill_states(const __grid_constant__ Fill a)
{
    const Cached &c = a.c; const Slot h = c.slots[c.splitting + blockIdx.x];
    const int D = c.D, R = c.R, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t b = blockIdx.y; b < a.B; b += gridDim.y) {
        const int pieces = int((fill_end(h, a.length ? a.length[b] : a.T) + FILL_ROWS - 1) / FILL_ROWS); const int64_t step = (int64_t)R * (D + 2);
        float *state = c.state + (b * c.n + h.fixed) * c.state_size;
        for (int r = warp; r < R && pieces > 0; r += STEP_WARPS) {
            const float *part = a.parts + (b * (c.K - c.splitting) + blockIdx.x) * a.pieces * step + r * (D + 2); double top = -INFINITY;
            auto scale = [&](int n) { return n < pieces ? (double)part[n * step + D] + (double)part[n * step + D + 1] : -INFINITY; };
            for (int n = lane; n < pieces; n += 32) top = fmax(top, scale(n));
            for (int m = 16; m; m >>= 1) top = fmax(top, __shfl_xor_sync(~0u, top, m));
            for (int d0 = 0; d0 < D; d0 += 64) {
                float y[2] = {};
                for (int n0 = 0; n0 < pieces; n0 += 32) {
                    const float factor = expf(float(scale(n0 + lane) - top));
#pragma unroll
                    for (int i = 0; i < 32; i++) {
                        const float f = __shfl_sync(~0u, factor, i), *x = part + (n0 + i) * step + d0 + lane;
                        if (n0 + i < pieces && d0 + lane < D) y[0] += f * x[0];
                        if (n0 + i < pieces && d0 + lane + 32 < D) y[1] += f * x[32];
                    }
                }
                for (int e = 0; e < 2; e++) if (d0 + lane + 32 * e < D) state[2 * R + r * D + d0 + lane + 32 * e] = y[e];
            }
            if (lane == 0) { state[2 * r] = (float)top; state[2 * r + 1] = float(top - (double)(float)top); }
        }
    }
}

/* ---- a whole step in one launch ---------------------------------------------------------------------------------------------
   For up to 8 rows a step is bound by reading the weights once, and by the chain of products between them.  A layer is two sublayers,
   each a product that reads the normed residual stream (A), something in between, and a product that adds to it (B).

   Eight blocks of a cluster are a team.  A team owns heads, or a share of the inner units, from A's columns to B's rows, so what lies
   between stays inside it.  Member r of every team keeps slice r of the residual stream.  It multiplies the slice by A's rows (the norm's
   gain on the input; mean, deviation and shift enter afterwards, by linearity), and the members exchange such sums through each other's
   shared memory; of attention each takes an eighth of the positions.  Then each has all inner values, and makes slice r of the
   team's part of B's output.  These parts are the only values that pass through global memory, once a sublayer: two and the
   sublayer's number in a word, which members r of all teams read until the number is right, and add up in a fixed order.

   One block a processor stays for the whole launch, several steps long.  Its ninth warp streams the block's weights through a ring in
   shared memory, in the order of use and ahead of it, but with few copies on their way at a time, lest words queue behind them; the other
   eight compute.  Between dependent words little happens but instructions, so these are kept few: what is rare stands in functions of
   its own.  There are no barriers between teams, and sums have a fixed order: the same input gives the same bits.                  */
enum { TEAM = 8, TEAMS = 16, STEP_ITEMS = 4 };
enum { SUB_ATTENTION, SUB_INNER, SUB_LOGITS };
struct Best { float value; int id; };
/* a sublayer as one team sees it; a "row" is 16 of A's columns by the slice, or 16 inner units by the slice: tiles of 16 x 16 weights */
struct alignas(16) Sublayer {
    int kind, act, norm, items, rows_a, rows_b;
    const char *a, *b;                                                           /* of member 0; the next member's follow */
    const float *norm_w, *norm_b, *before; const float2 *sums;                   /* before: the bias of the sublayer before, B's part of it */
    Cached cached;
};
struct StepLayout { int x, inner, keep, values, exchange, norm_w, bias, sums, last, shared, bytes, x_stride, inner_stride; };      /* shared memory behind the ring, in bytes */
struct Step {
    const Sublayer *program; int phases, n, teams, B, C, V, D, slice, tiles, log_rows, stages, slot, columns, inner, exchange; StepLayout at;
    float epsilon, over; const double *frequency; const float *wte, *wpe; float *logits; uint64_t *passed, *best; int32_t *chosen; int *failed;
    uint32_t number; int stream;                                                 /* stream: 1 when the weights do not fit the second-level cache */
    int32_t token[STEP_ROWS], position[STEP_ROWS];
};
enum { STEP_STAGES = 32, STEP_FLIGHT = 4, STEP_PIECE = 4096, STEP_PACE = 100 };   /* copies on their way at a time; prefetches of caches: bytes, cycles from one to the next */
constexpr __host__ __device__ int pair_bytes(int NB) { return NB == 1 ? 80 : 64; }        /* of an exchange: two values of each member, and with room for one row against bank conflicts */

__device__ __forceinline__ void look(const uint64_t *p, uint64_t &low, uint64_t &high)
{
    asm volatile("{\n.reg .b128 q;\nld.relaxed.gpu.global.b128 q, [%2];\nmov.b128 {%0, %1}, q;\n}" : "=l"(low), "=l"(high) : "l"(p) : "memory");
}
__device__ __forceinline__ void tell(uint64_t *p, float x, float y, uint32_t number)
{
    asm volatile("{\n.reg .b128 q;\nmov.b128 q, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], q;\n}"
                 :: "l"(p), "l"((uint64_t)__float_as_uint(y) << 32 | __float_as_uint(x)), "l"((uint64_t)number << 32) : "memory");
}
/* Patience ends after about a second: the step then runs to its end with whatever it has, and reports. */
struct Patience {
    int *failed, left;
    __device__ __forceinline__ bool over() { if (left > 0 && --left == 0) *failed = 1; return left <= 0; }
};
/* W words, `step` apart, those that are wanted */
template <int W> __device__ __forceinline__ void await(uint64_t (&low)[W], uint64_t (&high)[W], const uint64_t *p, int step,
                                                       uint32_t wanted, uint32_t number, Patience &patience)
{
    bool ready;
    do {
        ready = true;
#pragma unroll
        for (int i = 0; i < W; i++) if (wanted >> i & 1) look(p + (int64_t)i * step, low[i], high[i]);
#pragma unroll
        for (int i = 0; i < W; i++) if (wanted >> i & 1) ready &= uint32_t(high[i] >> 32) == number;
    } while (!ready && !patience.over());
}
/* the other members' shared memory: a store that counts its bytes at the barrier beside it */
__device__ __forceinline__ uint32_t at_member(uint32_t address, int member)
{
    uint32_t x; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(address), "r"(member)); return x;
}
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float x)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(to), "r"(__float_as_uint(x)),
                 "r"(bar) : "memory");
}
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float x, float y)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" :: "r"(to),
                 "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(bar) : "memory");
}
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float x, float y, float z, float w)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(__float_as_uint(z)), "r"(__float_as_uint(w)), "r"(bar) : "memory");
}
__device__ __forceinline__ void exchange_wait(uint64_t *bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void team_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float activate(float x, int kind)
{
    if (kind == 2) return fmaxf(x, 0.f);
    if (kind == 1) return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    return 0.5f * x * (1 + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* 16 columns of a product by NB rows of the batch, in a warp: lane (g, t) has columns 2 g and 2 g + 1, of rows 2 t and 2 t + 1, or
   of the one row.  A tile [column][k] of 16 x 16 lies in memory as the lanes read it, 16 bytes each: k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
template <class E, int NB> struct Columns {
    enum { HALF = is_bf16<E>::value, TILE = 256 * sizeof(E) };
    float c[HALF ? 4 : 2 * NB];
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < (HALF ? 4 : 2 * NB); i++) c[i] = 0;
    }
    __device__ __forceinline__ void add(const char *tile, const char *x, int stride, int lane)               /* x: [row, 16 k], rows `stride` bytes apart */
    {
        const int g = lane / 4, t = lane % 4;
        if constexpr (HALF) {
            const uint4 w = *(const uint4 *)(tile + 16 * lane); const char *p = x + (NB == 1 ? 0 : g * stride) + 4 * t;
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w),
                         "r"(*(const uint32_t *)p), "r"(*(const uint32_t *)(p + 16)));
        } else {
            const float4 u = *(const float4 *)(tile + 16 * lane), v = *(const float4 *)(tile + 512 + 16 * lane);
#pragma unroll
            for (int b = 0; b < NB; b++) {
                const float2 p = *(const float2 *)(x + b * stride + 8 * t), q = *(const float2 *)(x + b * stride + 8 * t + 32);
                c[b] += u.x * p.x + u.y * p.y + u.z * q.x + u.w * q.y; c[NB + b] += v.x * p.x + v.y * p.y + v.z * q.x + v.w * q.y;
            }
        }
    }
    __device__ __forceinline__ void finish()                                     /* fp32: over the four lanes of a column */
    {
        if constexpr (!HALF)
#pragma unroll
            for (int i = 0; i < 2 * NB; i++) { c[i] += __shfl_xor_sync(~0u, c[i], 1); c[i] += __shfl_xor_sync(~0u, c[i], 2); }
    }
    __device__ __forceinline__ float get(int column, int row, int lane) const   /* 0 or 1 each */
    {
        if constexpr (HALF) return c[2 * column + row];
        else if constexpr (NB == 1) return c[column];
        else {
            float y = 0;
#pragma unroll
            for (int b = 0; b < NB; b++) if (b == lane % 4 * 2 + row) y = c[column * NB + b];
            return y;
        }
    }
};
/* 32 inner indices of eight columns, which lie as rows of K: 8 columns by NB rows; a lane has column lane/4 and eight indices in a row.  bf16: c[0], c[1]
   are row lane/4, columns 2 (lane % 4), + 1; float: c[b] is this lane's share of row b, column lane/4 */
template <class E, int NB> __device__ __forceinline__ void unit_product(float (&c)[NB < 4 ? 4 : NB], const char *w, const char *x,
        int row_bytes, int lane)
{
    if constexpr (is_bf16<E>::value) {
        const uint4 b = *(const uint4 *)w, a = *(const uint4 *)(x + (NB == 1 ? 0 : lane / 4 * row_bytes)); const uint32_t zero = 0;
        /* the one row: eight times */
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(zero), "r"(a.y), "r"(b.x), "r"(b.y));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.z), "r"(zero), "r"(a.w), "r"(b.z), "r"(b.w));
    } else {
        const float4 u = ((const float4 *)w)[0], v = ((const float4 *)w)[1];
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const float4 p = ((const float4 *)(x + b * row_bytes))[0], q = ((const float4 *)(x + b * row_bytes))[1];
            c[b] += u.x * p.x + u.y * p.y + u.z * p.z + u.w * p.w + v.x * q.x + v.y * q.y + v.z * q.z + v.w * q.w;
        }
    }
}

__device__ __forceinline__ void store_two(bf16 *to, float x, float y) { *(uint32_t *)to = pack<bf16>(x, y); }
__device__ __forceinline__ void store_two(float *to, float x, float y) { *(float2 *)to = make_float2(x, y); }

struct StepShared {
    uint64_t full[STEP_STAGES], empty[STEP_STAGES], arrived[2];
    Sublayer sub[4]; alignas(16) Slot slots[2][STEP_ITEMS];
    alignas(16) float2 rotation[STEP_ROWS][MAX_D / 2], norm[STEP_ROWS];
    float pivot[2][STEP_ROWS]; Best best[STEP_WARPS][STEP_ROWS]; int32_t token[STEP_ROWS];
    AttendShared attend;
};

/* where shared memory begins; by an offset, so that the compiler sees that it is shared memory */
__device__ __forceinline__ char *step_memory()
{
    extern __shared__ char raw[];
    return raw + (-shared_address(raw) & 127);
}
/* the ninth warp, its first lane */
template <class E> __device__ __noinline__ void step_stream(const Step &a, int row_bytes)
{
    char *const ring = step_memory(); StepShared &s = *(StepShared *)(ring + a.at.shared);
    const int me = blockIdx.x, member = me % TEAM, team = me / TEAM, G = gridDim.x, stages = a.stages, slot = a.slot,
        per = 1 << a.log_rows, phases = a.phases, B = a.B, C = a.C, V = a.V;
    const Sublayer *const program = a.program + team * phases;
    int stage = 0, turn = 1, flying = 0, landed = 0, landing = 0;
    uint64_t policy;
    if (a.stream) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    auto copy = [&](char *to, const char *from, uint32_t bytes, uint64_t *bar) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                     :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy) : "memory");
    };
    auto begin = [&](uint32_t bytes) {
        if (flying == STEP_FLIGHT) { barrier_wait(&s.full[landed], landing); if (++landed == stages) { landed = 0; landing ^= 1; } }
        else flying++;
        barrier_wait(&s.empty[stage], turn);
        barrier_expect(&s.full[stage], bytes);
    };
    auto next = [&] { if (++stage == stages) { stage = 0; turn ^= 1; } };
    auto rows = [&](const char *w, int count) {
        w += (int64_t)member * count * row_bytes;
        for (int i = 0; i < count; i += per) {
            const uint32_t bytes = uint32_t((count - i < per ? count - i : per) * row_bytes);
            begin(bytes);
            copy(ring + stage * slot, w + (int64_t)i * row_bytes, bytes, &s.full[stage]);
            next();
        }
    };
    auto prefetch = [&](const char *from, int64_t bytes) {
        for (int64_t n = 0; n < bytes; n += STEP_PIECE) {
            const long long t = clock64();
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from + n),
                         "r"(uint32_t(bytes - n < STEP_PIECE ? bytes - n : STEP_PIECE)) : "memory");
            while (clock64() - t < STEP_PACE) {}
        }
    };
    for (int step = 0; step < a.n; step++)
        for (int p = 0; p < phases; p++) {
            const Sublayer &f = program[p];
            if (f.kind != SUB_LOGITS) {
                rows(f.a, f.rows_a);
                if (f.kind == SUB_ATTENTION)
                    for (int item = 0; item < f.items; item++)
                        for (int b = 0; b < B; b++) {
                            const Cached &c = f.cached; const Slot h = c.slots[team + item * a.teams]; int t, j0, j1;
                            if (h.live < 0 || a.position[b] < 0) continue;
                            split_range(h, a.position[b] + step, member, TEAM, t, j0, j1);
                            const int64_t first = ((b * (int64_t)c.U + h.live) * c.capacity + j0) * c.D * (int64_t)sizeof(E),
                                bytes = (int64_t)(j1 - j0) * c.D * (int64_t)sizeof(E);
                            prefetch((const char *)c.keys + first, bytes);
                            prefetch((const char *)c.values + first, bytes);
                        }
                rows(f.b, f.rows_b);
                continue;
            }
            const int most = slot / (8 * (int)sizeof(E)) / 32 * 32, units = (V + 7) / 8;
            for (int u = me; u < units; u += G)
                for (int k0 = 0; k0 < C; k0 += most) {
                    const int k = C - k0 < most ? C - k0 : most, count = V - 8 * u < 8 ? V - 8 * u : 8;
                    const uint32_t bytes = uint32_t(k * (int)sizeof(E));
                    const char *w = f.a + ((int64_t)u * 8 * C + k0) * (int64_t)sizeof(E);
                    begin(count * bytes);
                    char *to = ring + stage * slot;
                    if (k == C) copy(to, w, count * bytes, &s.full[stage]);
                    else for (int r = 0; r < count; r++) copy(to + r * bytes, w + (int64_t)r * C * (int64_t)sizeof(E), bytes, &s.full[stage]);
                    next();
                }
        }
}
/* tokens: given, or the best of the step before; rotations of their positions */
__device__ __noinline__ void step_begin(const Step &a, int step, uint32_t number, Patience &patience)
{
    StepShared &s = *(StepShared *)(step_memory() + a.at.shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, G = gridDim.x;
    if (warp < a.B) {
        int id = a.token[warp];
        if (step) {
            Best best; best.value = -INFINITY; best.id = 0x7FFFFFFF;
            uint64_t low[4], high[4]; uint32_t wanted = 0;
#pragma unroll
            for (int n = 0; n < 4; n++) if (lane + 32 * n < G) wanted |= 1u << n;
            await<4>(low, high, a.best + ((step & 1) * TEAM * TEAMS * STEP_ROWS + lane * STEP_ROWS + warp) * 2, 32 * STEP_ROWS * 2,
                     wanted, number, patience);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const float v = __uint_as_float((uint32_t)low[n]); const int i = (int)(low[n] >> 32);
                if ((wanted >> n & 1) && (v > best.value || (v == best.value && i < best.id))) { best.value = v; best.id = i; }
            }
            for (int m = 16; m; m >>= 1) {
                const float v = __shfl_xor_sync(~0u, best.value, m); const int i = __shfl_xor_sync(~0u, best.id, m);
                if (v > best.value || (v == best.value && i < best.id)) { best.value = v; best.id = i; }
            }
            id = best.id < a.V ? best.id : 0;
            if (blockIdx.x == 0 && lane == 0) a.chosen[(step - 1) * a.B + warp] = id;
            __threadfence();                                                     /* caches that other blocks have written */
        }
        if (lane == 0) s.token[warp] = id < 0 || a.position[warp] < 0 ? 0 : id;
    }
    if (a.frequency)
        for (int x = STEP_THREADS - 1 - (int)threadIdx.x; x < a.B * (a.D / 2); x += STEP_THREADS) {
            const int b = x / (a.D / 2), d = x % (a.D / 2); double sine, cosine;
            sincos((double)(a.position[b] + step) * a.frequency[d], &sine, &cosine);
            s.rotation[b][d] = make_float2((float)cosine, (float)sine);
        }
}
/* logits: units of eight tokens, a warp a unit, and the best of each row on the way, told where another step follows */
template <class E, int NB>
__device__ __noinline__ void step_logits(const Step &a, int &at_stage, int &at_turn, int step, uint32_t number)
{
    int stage = at_stage, turn = at_turn;
    const char *const ring = step_memory(), *const x = ring + a.at.inner; StepShared &s = *(StepShared *)(step_memory() + a.at.shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, me = blockIdx.x, G = gridDim.x, part = lane / 4, quarter = lane % 4;
    const int B = a.B, C = a.C, V = a.V, stages = a.stages, slot = a.slot, stride = a.at.inner_stride, units = (V + 7) / 8;
    float *const logits = a.logits;
    const int most = slot / (8 * (int)sizeof(E)) / 32 * 32, mine = me < units ? (units - me + G - 1) / G : 0; const bool store = step == a.n - 1;
    float best[NB]; int id[NB];
    for (int b = 0; b < NB; b++) { best[b] = -INFINITY; id[b] = 0x7FFFFFFF; }
    /* A slot is one warp's, which alone waits for it and releases it for all; but with few slots every warp passes every slot, lest one meets it a turn too early. */
    const bool every = stages < STEP_WARPS + STEP_FLIGHT;
#pragma unroll 1
    for (int n = 0; n < mine; n++) {
        float acc[NB < 4 ? 4 : NB] = {}, acc2[NB < 4 ? 4 : NB] = {}; const bool own = n % STEP_WARPS == warp;
#pragma unroll 1
        for (int k0 = 0; k0 < C; k0 += most) {
            const int k = C - k0 < most ? C - k0 : most;
            if (own || every) barrier_wait(&s.full[stage], turn);
            if (own) {
                const char *w = ring + stage * slot + (part * k) * (int)sizeof(E) + quarter * 8 * (int)sizeof(E),
                    *v = x + k0 * (int)sizeof(E) + quarter * 8 * (int)sizeof(E);
                int g = 0;
#pragma unroll 4
                for (; g + 2 <= k / 32; g += 2) {
                    unit_product<E, NB>(acc, w + g * 32 * sizeof(E), v + g * 32 * sizeof(E), stride, lane);
                    unit_product<E, NB>(acc2, w + (g + 1) * 32 * sizeof(E), v + (g + 1) * 32 * sizeof(E), stride, lane);
                }
                if (g < k / 32) unit_product<E, NB>(acc, w + g * 32 * sizeof(E), v + g * 32 * sizeof(E), stride, lane);
            }
            __syncwarp();
            if (lane == 0 && (own || every))
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(&s.empty[stage])),
                             "r"(every ? 1 : STEP_WARPS) : "memory");
            if (++stage == stages) { stage = 0; turn ^= 1; }
        }
        if (!own) continue;
        const int v = (me + n * G) * 8;
        auto offer = [&](int b, int column, float y) {
            if (b >= B || v + column >= V) return;
            if (store) logits[(int64_t)b * V + v + column] = y;
#pragma unroll
            for (int k = 0; k < NB; k++) if (k == b && (y > best[k] || (y == best[k] && v + column < id[k]))) { best[k] = y; id[k] = v + column; }
        };
        if constexpr (is_bf16<E>::value) {
            if (part < NB) { offer(part, quarter * 2, acc[0] + acc2[0]); offer(part, quarter * 2 + 1, acc[1] + acc2[1]); }
        } else {
#pragma unroll
            for (int b = 0; b < NB; b++) {
                float y = acc[b] + acc2[b];
                y += __shfl_xor_sync(~0u, y, 1); y += __shfl_xor_sync(~0u, y, 2);
                if (quarter == 0) offer(b, part, y);
            }
        }
    }
    at_stage = stage; at_turn = turn;
    if (store) return;
#pragma unroll
    for (int b = 0; b < NB; b++) {
        for (int m = 16; m; m >>= 1) {
            const float v = __shfl_xor_sync(~0u, best[b], m); const int i = __shfl_xor_sync(~0u, id[b], m);
            if (v > best[b] || (v == best[b] && i < id[b])) { best[b] = v; id[b] = i; }
        }
        if (lane == 0) { s.best[warp][b].value = best[b]; s.best[warp][b].id = id[b]; }
    }
    __threadfence();                                                             /* this step's keys and values, before the word that lets others go on */
    group_sync(1, STEP_THREADS);
    if (threadIdx.x < B) {
        Best x = s.best[0][threadIdx.x];
        for (int w = 1; w < STEP_WARPS; w++) {
            const Best y = s.best[w][threadIdx.x];
            if (y.value > x.value || (y.value == x.value && y.id < x.id))
                x = y;
        }
        __threadfence();
        tell(a.best + ((step + 1 & 1) * TEAM * TEAMS * STEP_ROWS + me * STEP_ROWS + threadIdx.x) * 2, x.value, __int_as_float(x.id), number);
    }
}

template <class E, int NB>
__global__ __launch_bounds__(STEP_THREADS + 32, 1) void step_run(const __grid_constant__ Step a)
{
#if HOPPER
    typedef Columns<E, NB> Tile;
    enum { PAIR = pair_bytes(NB), PAIRS = NB == 1 ? 1 : NB / 2 };
    char *const all = step_memory();
    const int row_bytes = a.tiles * Tile::TILE;
    {
        StepShared &s = *(StepShared *)(all + a.at.shared);
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < a.stages; i++) { barrier_init(&s.full[i], 1); barrier_init(&s.empty[i], STEP_WARPS); }
            barrier_init(&s.arrived[0], 1); barrier_init(&s.arrived[1], 1);
            barrier_fence();
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < (a.at.shared - a.at.norm_w) / 4; i += STEP_THREADS + 32) ((float *)(all + a.at.norm_w))[i] = 0;
        __syncthreads();
        team_sync();
        if (threadIdx.x >= STEP_THREADS) {
            if (threadIdx.x == STEP_THREADS) step_stream<E>(a, row_bytes);
            __syncwarp();
            team_sync();
            return;
        }
    }
    Patience patience; patience.failed = a.failed; patience.left = 1 << 20;
    int stage = 0, turn = 0, swaps = 0, run = -2; uint32_t number = a.number;
#pragma unroll 1
    for (int step = 0; step < a.n; step++)
#pragma unroll 1
        for (int p = step ? 0 : -2; p < a.phases; p++, run++) {                  /* sublayers -2 and -1 only fetch */
            /* what follows from thread and block is cheaper to compute again in each sublayer than to keep: hence the asm */
            int thread = threadIdx.x, block = blockIdx.x, none = 0;
            asm volatile("" : "+r"(thread), "+r"(block), "+r"(none));
            char *const ring = all + none;
            StepShared &s = *(StepShared *)(ring + a.at.shared);
            const int warp = thread / 32, lane = thread % 32, part = lane / 4, quarter = lane % 4, member = block % TEAM,
                team = block / TEAM, slice = a.slice, from = member * slice;
            const int valid = a.C - from < slice ? (a.C > from ? a.C - from : 0) : slice, even = run & 1;
            float *const keep = (float *)(ring + a.at.keep);
            auto sync = [] { group_sync(1, STEP_THREADS); };
            auto fetch = [](void *to, const void *from) {
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from) : "memory");
            };
            auto fetched = [] { asm volatile("cp.async.wait_all;" ::: "memory"); };
            auto row_at = [&](int i) {                                           /* row i from here: slots follow each other, and the ring closes */
                const int at = stage * a.slot + i * row_bytes, end = a.stages * a.slot;
                return (const char *)(ring + (at < end ? at : at - end));
            };
            auto await_row = [&](int i) {
                int n = stage + (i >> a.log_rows), parity = turn;
                if (n >= a.stages) { n -= a.stages; parity ^= 1; }
                barrier_wait(&s.full[n], parity);
            };
            auto advance = [&](int rows) {                                       /* this warp is done with them */
                __syncwarp();
#pragma unroll 1
                for (int i = 0; i < rows; i += 1 << a.log_rows) {
                    if (lane == 0) barrier_arrive(&s.empty[stage]);
                    if (++stage == a.stages) { stage = 0; turn ^= 1; }
                }
            };
            const int pass = a.stages << a.log_rows;                             /* rows that the ring holds */
            auto buffer = [&] { return ring + a.at.exchange + (swaps & 1) * a.exchange; };
            auto barrier = [&] { return shared_address(&s.arrived[swaps & 1]); };
            auto expect = [&](int bytes) { if (thread == 0) barrier_expect(&s.arrived[swaps & 1], TEAM * bytes); };
            auto swapped = [&] { exchange_wait(&s.arrived[swaps & 1], swaps >> 1 & 1); swaps++; };
            const Sublayer &f = s.sub[run & 3]; const float *const pivot = s.pivot[even];
            const int kind = p < 0 ? SUB_LOGITS : f.kind, columns = p < 0 ? 0 : f.rows_a * 16; const bool normed = f.norm;
            const char *const sent = buffer();
            if (p >= 0) {
                if (p == 0 && step) {
                    Patience now = patience;
                    step_begin(a, step, number, now);
                    patience.left = now.left;
                    fetched();
                    sync();
                }
                number++;
                /* this member's slice of the residual stream, and its product with the gain */
                const float *const gain = (const float *)(ring + a.at.norm_w) + even * slice,
                    *const bias = (const float *)(ring + a.at.bias) + even * slice;
                auto keep_slice = [&](int b, int c, float x, float gain, float pivot) {
                    keep[b * slice + c] = x;
                    ((E *)(ring + a.at.x + b * a.at.x_stride))[c] = from_float<E>((x - pivot) * gain);
                };
                if (p == 0) {
#pragma unroll 1
                    for (int b = 0; b < NB; b++) {
                        const bool in = b < a.B; const int token = in ? s.token[b] : 0, position = in ? a.position[b] + step : 0;
                        auto embedded = [&](int c) {
                            const float x = a.wte[(int64_t)token * a.C + c];
                            return a.wpe && in && a.position[b] >= 0 ? x + a.wpe[(int64_t)position * a.C + c] : x;
                        };
                        const float first = normed ? embedded(0) : 0.f;
                        if (thread < slice) keep_slice(b, thread, in && thread < valid ? embedded(from + thread) : 0.f, gain[thread], first);
                        if (thread == 0) s.pivot[even][b] = first;
                    }
                } else {                                                         /* eight pairs of columns a warp, by four times four teams */
                    const int group = lane / 8 * 4, last = a.teams - 1, row = NB * slice;
                    const uint64_t *const words = a.passed + (size_t)((number & 1) * TEAM + member) * TEAMS * row;
#pragma unroll 1
                    for (int u = warp; u < a.tiles * a.B; u += STEP_WARPS) {
                        const int b = NB == 1 ? 0 : u / a.tiles, pair = (NB == 1 ? u : u - b * a.tiles) * 8 + lane % 8;
                        const uint64_t *const w = words + b * slice + 2 * pair; const int c = 2 * pair + lane / 8 % 2;
                        const float old = keep[b * slice + c] + bias[c], factor = gain[c], about = pivot[b];
                        uint64_t low[4], high[4]; bool there;
                        do {
#pragma unroll
                            for (int i = 0; i < 4; i++) look(w + (group + i < last ? group + i : last) * row, low[i], high[i]);
                            there = uint32_t(high[0] >> 32) == number && uint32_t(high[1] >> 32) == number &&
                                uint32_t(high[2] >> 32) == number && uint32_t(high[3] >> 32) == number;
                        } while (!there && !patience.over());
                        float x = 0, y = 0;
#pragma unroll
                        for (int i = 0; i < 4; i++) if (group + i <= last) { x += __uint_as_float((uint32_t)low[i]); y += __uint_as_float(uint32_t(low[i] >> 32)); }
                        x += __shfl_xor_sync(~0u, x, 8); y += __shfl_xor_sync(~0u, y, 8);
                        x += __shfl_xor_sync(~0u, x, 16); y += __shfl_xor_sync(~0u, y, 16);
                        if (lane < 16) keep_slice(b, c, old + (lane < 8 ? x : y), factor, about);
                    }
                }
                sync();
                /* to all members: the sums of the slice about the pivot, and of its squares; and this member's share of every column of the team (A), or the slice */
                const uint32_t to = shared_address(sent), bar = barrier();
                const int sums_at = kind == SUB_LOGITS ? slice * NB * 4 * TEAM : columns * NB / 2 * PAIR;
                if (columns || kind == SUB_LOGITS) {
                    expect((kind == SUB_LOGITS ? slice * a.B * 4 : columns * (NB == 1 ? 4 : (a.B + 1) / 2 * 8)) + a.B * 8);
#pragma unroll 1
                    for (int b = STEP_WARPS - 1 - warp; b < a.B; b += STEP_WARPS) {
                        float sum = 0, squares = 0; const float about = pivot[b];
#pragma unroll 1
                        for (int c = lane; c < valid; c += 32) { const float d = keep[b * slice + c] - about; sum += d; squares += d * d; }
#pragma unroll
                        for (int m = 16; m; m >>= 1) { sum += __shfl_xor_sync(~0u, sum, m); squares += __shfl_xor_sync(~0u, squares, m); }
                        if (lane < TEAM) send(at_member(to + sums_at + (member * NB + b) * 8, lane), at_member(bar, lane), sum, squares);
                    }
                } else if (thread < NB) s.pivot[!even][thread] = pivot[thread];
                if (kind == SUB_LOGITS)
#pragma unroll 1
                    for (int x = thread; x < slice / 4 * a.B * TEAM; x += STEP_THREADS) {
                        const int m = x % TEAM, y = x / TEAM; const float4 v = ((const float4 *)keep)[y];
                        send(at_member(to + member * slice * NB * 4 + y * 16, m), at_member(bar, m), v.x, v.y, v.z, v.w);
                    }
                const int rows = columns / 16;
#pragma unroll 1
                for (int first = 0; first < rows; first += pass) {
                    const int count = rows - first < pass ? rows - first : pass;
#pragma unroll 1
                    for (int i = 2 * warp; i < count; i += 2 * STEP_WARPS) {     /* two rows at a time */
                        const bool two = i + 1 < count;
                        await_row(i);
                        if (two && !a.log_rows) await_row(i + 1);
                        const char *w = row_at(i), *v = two ? row_at(i + 1) : w, *x = ring + a.at.x;
                        Tile c, d; c.clear(); d.clear();
#pragma unroll 6
                        for (int k = 0; k < a.tiles; k++, w += Tile::TILE, v += Tile::TILE, x += 16 * sizeof(E)) {
                            c.add(w, x, a.at.x_stride, lane);
                            d.add(v, x, a.at.x_stride, lane);
                        }
                        c.finish(); d.finish();
                        if constexpr (NB == 1) {
                            const uint32_t place = to + ((first + i) * 8 + part) * PAIR + member * 8;
#pragma unroll
                            for (int e = 0; e < 2; e++) {
                                const uint32_t there = at_member(place, 2 * quarter + e), its = at_member(bar, 2 * quarter + e);
                                send(there, its, c.get(0, 0, lane), c.get(1, 0, lane));
                                if (two) send(there + 8 * PAIR, its, d.get(0, 0, lane), d.get(1, 0, lane));
                            }
                        } else if (2 * quarter < a.B) {
                            const uint32_t place = to + (((first + i) * 16 + 2 * part) * NB / 2 + quarter) * PAIR + member * 8;
                            const float x = c.get(0, 0, lane), y = c.get(0, 1, lane), z = c.get(1, 0, lane), v = c.get(1, 1, lane);
                            const float x2 = d.get(0, 0, lane), y2 = d.get(0, 1, lane), z2 = d.get(1, 0, lane), v2 = d.get(1, 1, lane);
#pragma unroll 1
                            for (int e = 0; e < TEAM; e++) {
                                const int m = (member + e) % TEAM; const uint32_t there = at_member(place, m), its = at_member(bar, m);
                                send(there, its, x, y);
                                send(there + PAIRS * PAIR, its, z, v);
                                if (!two) continue;
                                send(there + 16 * PAIRS * PAIR, its, x2, y2);
                                send(there + 17 * PAIRS * PAIR, its, z2, v2);
                            }
                        }
                    }
                    advance(count);
                    if (first + count < rows) sync();
                }
            }
            /* meanwhile the program, which goes round: sublayer run + 2, and what run + 1 brings along */
            {
                const int later = p + 2 < a.phases ? p + 2 : (p + 2) % a.phases;
                if (thread < (int)sizeof(Sublayer) / 16)
                    fetch((char *)&s.sub[run + 2 & 3] + 16 * thread, (const char *)(a.program + team * a.phases + later) + 16 * thread);
                if (run >= -1) {
                    const Sublayer &f = s.sub[run + 1 & 3]; const int c = 4 * (thread % 128);
                    if (thread >= 128) {                                         /* gain of the norm; bias of the sublayer before */
                        float *to = (float *)(ring + a.at.norm_w) + !even * slice + c;
                        if (f.kind != SUB_LOGITS && c < valid) {
                            if (f.norm_w)
                                fetch(to, f.norm_w + from + c);
                            else *(float4 *)to = make_float4(1, 1, 1, 1);
                        }
                    } else if (c < valid) {
                        float *to = (float *)(ring + a.at.bias) + !even * slice + c;
                        if (f.before) fetch(to, f.before + from + c); else *(float4 *)to = make_float4(0, 0, 0, 0);
                    }
#pragma unroll 1
                    for (int n = thread; n < f.rows_a * 8; n += STEP_THREADS)
                        fetch((float2 *)(ring + a.at.sums) + !even * a.columns + 2 * n, f.sums + 2 * n);
                    if (thread < 2 * f.items)
                        fetch((char *)&s.slots[!even][thread / 2] + thread % 2 * 16,
                              (const char *)(f.cached.slots + team + thread / 2 * a.teams) + thread % 2 * 16);
                    if (f.kind == SUB_LOGITS)
#pragma unroll 1
                        for (int c = 4 * thread; c < a.C; c += 4 * STEP_THREADS) {
                            if (f.norm_w) fetch((float *)(ring + a.at.last) + c, f.norm_w + c);
                            if (f.norm_b) fetch((float *)(ring + a.at.last) + a.C + c, f.norm_b + c);
                        }
                }
                if (p < 0) {
                    if (p == -1) { Patience now = patience; step_begin(a, 0, number, now); }
                    fetched();
                    sync();
                    continue;
                }
            }
            /* mean less pivot, and 1 / deviation, of the rows that this thread sees: the one, or 2 and 3 of a pair of rows */
            enum { TWO = NB == 1 ? 1 : 2 };
            float centre[TWO], deviation[TWO];
            auto arrive = [&] {
                const char *const sums = sent + (kind == SUB_LOGITS ? slice * NB * 4 * TEAM : columns * NB / 2 * PAIR) + thread % PAIRS * 16;
                swapped();
#pragma unroll
                for (int e = 0; e < TWO; e++) {
                    float sum = 0, squares = 0;
#pragma unroll
                    for (int r = 0; r < TEAM; r++) { const float2 x = *(const float2 *)(sums + r * NB * 8 + 8 * e); sum += x.x; squares += x.y; }
                    centre[e] = sum * a.over; deviation[e] = rsqrtf(fmaxf(squares * a.over - centre[e] * centre[e], 0.f) + a.epsilon);
                    if (!normed) { centre[e] = 0; deviation[e] = 1; }
                    if (thread < PAIRS) s.pivot[!even][TWO * thread + e] = pivot[TWO * thread + e] + centre[e];
                }
            };
            if (kind == SUB_LOGITS) {                                            /* all of the residual stream, normed */
                arrive();
                sync();
                if (thread < PAIRS)
                    for (int e = 0; e < TWO; e++)
                        s.norm[TWO * thread + e] = normed ? make_float2(s.pivot[!even][TWO * thread + e], deviation[e]) : make_float2(0.f, 1.f);
                sync();
#pragma unroll 1
                for (int b = 0; b < a.B; b++)
#pragma unroll 1
                    for (int c0 = lane; c0 < slice; c0 += 32) {
                        const int c = warp * slice + c0; const float *last = (const float *)(ring + a.at.last);
                        if (c >= a.C) break;
                        const float x = (*(const float *)(sent + ((warp * NB + b) * slice + c0) * 4) - s.norm[b].x) * s.norm[b].y;
                        ((E *)(ring + a.at.inner + b * a.at.inner_stride))[c] = from_float<E>(normed ? x * last[c] + last[a.C + c] : x);
                    }
                sync();
                int slot = stage, parity = turn;
                step_logits<E, NB>(a, slot, parity, step, number);
                stage = slot; turn = parity;
                patience.left = patience.left > 0 ? 1 << 20 : 0;
                continue;
            }
            /* two values: columns 2 j and 2 j + 1, or column j / 4 of two rows */
            auto values_of = [&](int j, float &x, float &y) {
                const float4 *const p = (const float4 *)(sent + j * PAIR);
                const float2 *const sums = (const float2 *)(ring + a.at.sums) + even * a.columns;
                const float4 q = p[0], r = p[1], v = p[2], w = p[3];
                x = ((q.x + q.z) + (r.x + r.z)) + ((v.x + v.z) + (w.x + w.z)); y = ((q.y + q.w) + (r.y + r.w)) + ((v.y + v.w) + (w.y + w.w));
                const float2 one = sums[NB == 1 ? 2 * j : j / PAIRS], two = NB == 1 ? sums[2 * j + 1] : one;
                x = deviation[0] * (x - centre[0] * one.x) + one.y; y = deviation[TWO - 1] * (y - centre[TWO - 1] * two.x) + two.y;
            };
            if (columns && kind == SUB_INNER) {
                const int act = f.act;
                arrive();
#pragma unroll 1
                for (int j = thread; j < columns * NB / 2; j += STEP_THREADS) {
                    float x, y;
                    values_of(j, x, y);
                    x = activate(x, act); y = activate(y, act);
                    E *to = (E *)(ring + a.at.inner + (NB == 1 ? 0 : j % PAIRS * 2) * a.at.inner_stride) + (NB == 1 ? 2 * j : j / PAIRS);
                    if (NB == 1) store_two(to, x, y);
                    else { to[0] = from_float<E>(x); *(E *)((char *)to + a.at.inner_stride) = from_float<E>(y); }
                }
            } else if (columns) {
                const Cached &c = f.cached; const int D = c.D, items = f.items, wide = a.columns + 4,
                    heads_at = items * NB * (D / 4) * 144; float *const values = (float *)(ring + a.at.values);
                bool there = false;
                auto ready = [&] {
                    if (there) return;
                    there = true;
                    arrive();
#pragma unroll 1
                    for (int j = thread; j < columns * NB / 2; j += STEP_THREADS) {
                        float x, y;
                        values_of(j, x, y);
                        if (NB == 1) *(float2 *)(values + 2 * j) = make_float2(x, y);
                        else { float *to = values + j % PAIRS * 2 * wide + j / PAIRS; to[0] = x; to[wide] = y; }
                    }
                    expect(items * a.B * (D * 4 + 4));
                    sync();
                };
                int base = 0;
#pragma unroll 1
                for (int item = 0; item < items; item++) {
                    const bool live = s.slots[even][item].live >= 0;
#pragma unroll 1
                    for (int b = 0; b < a.B; b++) {
                        const float *const token = values + b * wide + base; const int i = a.position[b] < 0 ? -1 : a.position[b] + step;
                        auto put = [&](int m, int d, const float (&v)[4], float lse) {
                            const uint32_t to = shared_address(buffer()), bar = at_member(barrier(), m); const int head = item * NB + b;
                            send(at_member(to + (head * (D / 4) + d / 4) * 144 + member * 16, m), bar, v[0], v[1], v[2], v[3]);
                            if (d == 0) send(at_member(to + heads_at + head * 32 + member * 4, m), bar, lse);
                        };
                        if (live) {
                            float o[8] = {}, m = -INFINITY, l = 0;
                            attend_live<E, 8, true>(c, s.slots[even][item].live, b, i, member, TEAM, s.rotation[b], o, m, l, ready,
                                                    [&](int q) { return token + q * D; });
                            if (i < 0) ready();
                            attend_join<8, TEAM>(D, o, m, l, 0.f, s.attend, put);
                        } else {
                            float o[8] = {};
                            ready();
                            attend_fixed<E, 8>(c, s.slots[even][item], b, i, member, TEAM, token, s.attend, o);
                            attend_join<8, TEAM>(D, o, 0.f, 0.f, (float)TEAM, s.attend, put);
                        }
                    }
                    base += live ? 3 * D : D;
                }
                ready();
                const char *const parts = buffer();
                swapped();
#pragma unroll 1
                for (int n = thread; n < items * a.B * (D / 4); n += STEP_THREADS) {
                    int head = 0, d = n;
                    if (items * a.B > 1) { head = n / (D / 4); d = n - head * (D / 4); }
                    const int item = a.B == 1 ? head : head / a.B, b = head - item * a.B, at = item * NB + b;
                    const char *const x = parts + (at * (D / 4) + d) * 144;
                    float lse[TEAM]; *(float4 *)lse = *(const float4 *)(parts + heads_at + at * 32);
                    *(float4 *)(lse + 4) = *(const float4 *)(parts + heads_at + at * 32 + 16);
                    float top = lse[0], sum = 0, y[4] = {};
#pragma unroll
                    for (int r = 1; r < TEAM; r++) top = fmaxf(top, lse[r]);
                    const float level = top == -INFINITY ? 0.f : top;
#pragma unroll
                    for (int r = 0; r < TEAM; r++) {
                        const float w = exp2_fast(lse[r] - level); const float4 v = *(const float4 *)(x + 16 * r);
                        sum += w; y[0] += w * v.x; y[1] += w * v.y; y[2] += w * v.z; y[3] += w * v.w;
                    }
                    const float scale = sum > 0 ? __fdividef(1, sum) : 0.f;
                    E *to = (E *)(ring + a.at.inner + b * a.at.inner_stride) + item * D + 4 * d;
                    store_two(to, y[0] * scale, y[1] * scale); store_two(to + 2, y[2] * scale, y[3] * scale);
                }
            }
            const int rows = f.rows_b;
            fetched();
            sync();
            /* B: the team's part of this slice, 16 columns a warp */
            Tile c[2], d[2]; c[0].clear(); c[1].clear(); d[0].clear(); d[1].clear();
#pragma unroll 1
            for (int first = 0; first < rows; first += pass) {
                const int count = rows - first < pass ? rows - first : pass; const char *const end = ring + a.stages * a.slot;
#pragma unroll 1
                for (int i = 0; i < count; i += 1 << a.log_rows) await_row(i);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int tile = warp + k * STEP_WARPS;
                    if (tile >= a.tiles) continue;
                    const char *w = row_at(0) + tile * Tile::TILE, *x = ring + a.at.inner + first * 16 * (int)sizeof(E);
                    auto down = [&] { w += row_bytes; if (w >= end) w -= a.stages * a.slot; };
                    int i = 0;
#pragma unroll 2
                    for (; i + 2 <= count; i += 2, x += 32 * sizeof(E)) {
                        c[k].add(w, x, a.at.inner_stride, lane); down();
                        d[k].add(w, x + 16 * sizeof(E), a.at.inner_stride, lane); down();
                    }
                    if (i < count) c[k].add(w, x, a.at.inner_stride, lane);
                }
                advance(count);
                if (first + count < rows) sync();
            }
            uint64_t *const words = a.passed + ((size_t)((number + 1 & 1) * TEAM + member) * TEAMS + team) * (NB * slice) + 2 * part;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (warp + k * STEP_WARPS >= a.tiles) continue;
#pragma unroll
                for (int e = 0; e < (int)(sizeof c[k].c / 4); e++) c[k].c[e] += d[k].c[e];
                c[k].finish();
#pragma unroll
                for (int e = 0; e < TWO; e++) {
                    const int b = NB == 1 ? quarter : 2 * quarter + e;
                    if (b < a.B)
                        tell(words + (NB == 1 ? 0 : b * slice) + (warp + k * STEP_WARPS) * 16, c[k].get(0, e, lane),
                             c[k].get(1, e, lane), number + 1);
                }
            }
        }
    team_sync();
#endif
}

/* w [K,N] -> tiles in the order in which `Columns` reads them: out [member,row,tile].  A row is 16 of A's columns (B: of its inner units), named by
   index (below 0: none), a tile 16 places of the member's slice. */
template <class E> __global__ void step_pack(E *out, const float *w, int N, const int *index, int tiles, int C, int b)
{
    const int row = blockIdx.x, tile = blockIdx.y, member = blockIdx.z, m = threadIdx.y, k = threadIdx.x, column = m % 8 * 2 + m / 8,
        at = member * tiles * 16 + tile * 16 + (b ? column : k), named = index[row * 16 + (b ? k : column)];
    const float x = at < C && named >= 0 ? w[b ? (int64_t)named * N + at : (int64_t)at * N + named] : 0.f;
    const int lane = m % 8 * 4 + k % 8 / 2, place = is_bf16<E>::value ? lane * 8 + (m / 8 + 2 * (k / 8)) * 2 + k % 2
        : m / 8 * 128 + lane * 4 + k / 8 * 2 + k % 2;
    out[(((int64_t)member * gridDim.x + row) * tiles + tile) * 256 + place] = from_float<E>(x);
}
/* what A's columns get once the sums over the input are known: gain . w, and shift . w + bias */
template <class E> __global__ void step_sums(float2 *out, const float *w, int N, const int *index, int K, const float *gain,
                                             const float *shift, const float *bias)
{
    __shared__ float2 part[32][33];
    const int n = index[blockIdx.x * 32 + threadIdx.x]; float2 y = make_float2(0.f, 0.f);
    if (n >= 0)
        for (int k = threadIdx.y; k < K; k += 32) {
            const float x = to_float(from_float<E>(w[(int64_t)k * N + n]));
            if (gain) y.x += gain[k] * x;
            if (shift) y.y += shift[k] * x;
        }
    part[threadIdx.y][threadIdx.x] = y;
    __syncthreads();
    if (threadIdx.y) return;
    for (int k = 1; k < 32; k++) { y.x += part[k][threadIdx.x].x; y.y += part[k][threadIdx.x].y; }
    if (n >= 0 && bias) y.y += bias[n];
    out[blockIdx.x * 32 + threadIdx.x] = y;
}

/* ---- what decoding derives from a layer's heads: slots, and tables of the patterns as far as a session goes ---- */
int64_t ring_rows_of(const gpts_heads *heads, size_t s, int64_t capacity)
{
    const int64_t S = (int64_t)heads->S, W = heads->tail_start ? heads->tail_start[s] : S,
        rows = (((W > 1 ? W : 1) + TILE_ROWS - 2) / TILE_ROWS + 1) * TILE_ROWS;
    return W < S && rows < capacity ? rows : capacity;
}
bool linear_head(const gpts_heads *heads, int k)
{
    const int fixed = heads->static_slot[k];
    return fixed >= 0 && heads->tail_start && (size_t)heads->tail_start[fixed] < heads->S;
}
/* kept heads as decoding takes them: those that split first, then the linear ones */
std::vector<int> slot_order(const gpts_heads *heads)
{
    std::vector<int> order;
    for (int linear = 0; linear < 2; linear++)
        for (int k = 0; k < (int)heads->K; k++) if (linear_head(heads, k) == (linear == 1)) order.push_back(k);
    return order;
}
bool decode_tables(Gpu &g, HeadsPlan &plan, const gpts_heads *heads, int64_t capacity, Prepared &pre)
{
    int64_t T = capacity; bool exact = false;
    for (size_t s = 0; s < heads->n; s++) exact |= !heads->tail_start || (size_t)heads->tail_start[s] >= heads->S;
    if (exact && T > (int64_t)heads->S) T = (int64_t)heads->S;
    gpts_gpu_attention a; unsigned char wide[256];
    memset(&a, 0, sizeof a);
    a.type = g.type; a.D = (int)heads->D; a.B = 1; a.T = T; a.H = (int)heads->H; a.R = heads->tail_start ? (int)heads->R : 0;
    a.kind = plan.kind; a.wide = wide;
    a.S = (int64_t)heads->S; a.alpha = heads->alpha; a.rho = heads->rho; a.tail_start = heads->tail_start; a.coef = heads->tail_coef;
    a.decay = heads->tail_decay; a.stream = g.stream;
    if (plan.decode_T == T && plan.slots) {
        a.prepared = plan.decode;
        pre = prepared_layout(&a, (int)heads->n);
        if (plan.capacity == capacity)
            return true;
    }
    else if (heads->n) {
        const size_t need = gpts_gpu_attention_prepared_size(&a);
        cudaStreamSynchronize(g.stream);
        if (plan.decode) cudaFree(plan.decode);
        plan.decode = 0; plan.decode_T = 0;
        if (!fine(g, cudaMalloc(&plan.decode, need), "the tables of a session")) { plan.decode = 0; return false; }
        a.prepared = plan.decode; a.prepared_bytes = need;
        if (gpts_gpu_attention_prepare(&a) != GPTS_GPU_OK) { fail(g, GPTS_UNSUPPORTED, "%s%s", a.error, ""); return false; }
        pre = prepared_layout(&a, (int)heads->n);
    }
    plan.decode_T = T; g.generation++;
    std::vector<Slot> list; std::vector<int> ring(heads->n);
    int at = 0;
    for (size_t s = 0; s < heads->n; s++) { ring[s] = at; at += (int)ring_rows_of(heads, s, capacity); }
    plan.splitting = 0;
    for (const int k : slot_order(heads)) {
        Slot h; memset(&h, 0, sizeof h);
        h.slot = k; h.live = heads->live_slot[k]; h.fixed = heads->static_slot[k]; h.linear = linear_head(heads, k);
        if (h.fixed >= 0) {
            const int64_t W = heads->tail_start ? heads->tail_start[h.fixed] : (int64_t)heads->S;
            h.ring = ring[h.fixed]; h.rows = (int)ring_rows_of(heads, (size_t)h.fixed, capacity);
            h.reach = h.linear ? int(((W > 1 ? W : 1) + TILE_ROWS - 2) / TILE_ROWS) : 1 << 30;
            h.shift = h.linear ? int(h.reach * TILE_ROWS + 1 - W) : 0;
        }
        plan.splitting += !h.linear;
        list.push_back(h);
    }
    if (!plan.slots && !fine(g, cudaMalloc((void **)&plan.slots, 256 * sizeof(Slot)), "the heads of a session")) { plan.slots = 0; return false; }
    if (!fine(g, cudaMemcpyAsync(plan.slots, list.data(), list.size() * sizeof(Slot), cudaMemcpyHostToDevice, g.stream), "the heads of a session") ||
        !fine(g, cudaStreamSynchronize(g.stream), "the heads of a session")) return false;
    plan.capacity = capacity;
    return true;
}
bool cached_of(Gpu &g, Cached &c, const gpts_heads *heads, const gpts_cache *cache, double scale, double theta)
{
    HeadsPlan *plan = plan_of(g, heads);
    memset(&c, 0, sizeof c);
    if (!plan || !decode_tables(g, *plan, heads, (int64_t)cache->capacity, c.pre)) return false;
    if (heads->n && heads->R > MAX_TERMS) { fail(g, GPTS_UNSUPPORTED, "%s%s", "a tail of more than 64 terms", ""); return false; }
    c.U = (int)heads->U; c.n = (int)heads->n; c.K = (int)heads->K; c.D = (int)heads->D; c.R = heads->tail_start ? (int)heads->R : 0;
    c.splitting = plan->splitting;
    c.capacity = (int64_t)cache->capacity; c.ring_rows = (int64_t)cache->ring_rows; c.state_size = (int64_t)cache->state_size;
    c.keys = cache->keys; c.values = cache->values; c.ring = cache->ring; c.state = cache->state;
    c.slots = plan->slots; c.coef = heads->tail_coef; c.decay = heads->tail_decay; c.scale = (float)scale; c.theta = heads->U ? theta : 0;
    return true;
}

void gpu_cache_fill(void *device, const gpts_heads *heads, gpts_cache *cache, const void *qkv, const int32_t *length, size_t T)
{
    Gpu &g = gpu_of(device); Fill f;
    if (!heads->K || !cached_of(g, f.c, heads, cache, 1, 0)) return;
    f.qkv = qkv; f.length = length; f.B = (int64_t)cache->B; f.T = (int64_t)T;
    const bool wide = heads->D % 8 == 0;
    const unsigned linear = (unsigned)(f.c.K - f.c.splitting), batch = (unsigned)(f.B < 65535 ? f.B : 65535);
    f.pieces = (int)((f.T + FILL_ROWS - 1) / FILL_ROWS);
    if (linear) {
        f.parts = scratch<float>(g, SCRATCH_ATTENTION, (size_t)(f.B * linear * f.pieces * f.c.R * (f.c.D + 2)) * 4);
        if (!f.parts) return;
    }
    const int64_t fit = 16 * (int64_t)processor_count() / (f.pieces * f.c.K) + 1;    /* rows a block takes one after another share their weights */
    BY_TYPE(g, wide, (fill_pieces<E, W><<<dim3((unsigned)f.c.K, (unsigned)f.pieces, (unsigned)(fit < batch ? fit : batch)), STEP_THREADS, 0,
            g.stream>>>(f)));
    if (linear) fill_states<<<dim3(linear, batch), STEP_THREADS, 0, g.stream>>>(f);
    launched(g, "cache_fill");
}
void gpu_attention_decode(void *device, const gpts_heads *heads, gpts_cache *cache, void *y, void *qkv, const int32_t *position,
                          double scale, double theta)
{
    Gpu &g = gpu_of(device); Decode d; memset(&d, 0, sizeof d);
    if (!heads->K || !cached_of(g, d.c, heads, cache, scale, theta)) return;
    const int64_t items = (int64_t)cache->B * d.c.K; const int splits = (int)(4 * processor_count() / items);
    d.splits = splits < 1 ? 1 : splits > MAX_SPLITS ? MAX_SPLITS : splits;
    const size_t parts = (size_t)(items * d.splits * (d.c.D + 4)) * 4, room = (parts + 255) / 256 * 256;
    char *work = scratch<char>(g, SCRATCH_ATTENTION, room + (size_t)items * 4);
    if (!work) return;
    d.qkv = qkv; d.y = y; d.position = position; d.parts = (float *)work; d.arrived = (int *)(work + room);
    if (d.splits > 1) fine(g, cudaMemsetAsync(d.arrived, 0, (size_t)items * 4, g.stream), "attention_decode");
    const bool wide = heads->D % 8 == 0 && (theta <= 0 || heads->D % 16 == 0);
    BY_TYPE(g, wide, (decode_heads<E, W><<<(unsigned)(items * d.splits), STEP_THREADS, 0, g.stream>>>(d)));
    launched(g, "attention_decode");
}

/* ---- the plan of a session's steps: the program, the words, the weights as the blocks read them ---- */
struct StepSource { int a, b; const float *gain, *shift, *bias; };               /* tensors of a sublayer's products, or -1 */
struct StepPlan {
    std::vector<Sublayer> program; std::vector<StepSource> sources;              /* [team,phase], [phase] */
    std::vector<int> layer, index; std::vector<size_t> index_a, index_b;         /* [phase]; places of columns and inner units in `index`, by [team,phase] */
    Step step; char *memory; size_t passed, program_at, index_at, frequency_at;  /* offsets */
    int *failed; bool registered; uint32_t number; unsigned version; int bytes; bool ready;
};
enum { STEP_STAGE = 12288, STEP_READ = 16384, STEP_C = 2048 };

template <class E> const void *step_kernel(int NB) { return NB == 1 ? (const void *)step_run<E, 1> : (const void *)step_run<E, STEP_ROWS>; }

/* teams that run at once: none but on a Hopper device and with code for sm_90a in this build, for elsewhere step_run is empty */
int step_teams(const void *kernel, int shared)
{
    int device = 0, major = 0, cooperative = 0, teams = 0; cudaFuncAttributes f; cudaLaunchConfig_t launch; cudaLaunchAttribute cluster;
    memset(&launch, 0, sizeof launch); memset(&cluster, 0, sizeof cluster);
    cluster.id = cudaLaunchAttributeClusterDimension; cluster.val.clusterDim.x = TEAM; cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    launch.gridDim = dim3(TEAM); launch.blockDim = dim3(STEP_THREADS + 32); launch.dynamicSmemBytes = (size_t)shared;
    launch.attrs = &cluster; launch.numAttrs = 1;
    const bool possible = cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9 &&
        cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device) == cudaSuccess && cooperative &&
        cudaFuncGetAttributes(&f, kernel) == cudaSuccess && f.ptxVersion >= 90 &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) == cudaSuccess &&
        cudaOccupancyMaxActiveClusters(&teams, kernel, &launch) == cudaSuccess;
    cudaGetLastError();
    return !possible ? 0 : teams < TEAMS ? teams : TEAMS;
}
/* shared memory behind a.stages slots; returns the bytes of all */
int step_layout(Step &a, int NB, int es)
{
    StepLayout &l = a.at; int at = a.stages * a.slot;
    auto take = [&](int bytes) { const int o = at; at += (bytes + 15) / 16 * 16; return o; };
    l.x_stride = a.slice * es + 16; l.inner_stride = (a.inner > a.C ? a.inner : a.C) * es + 16;
    l.x = take(NB * l.x_stride); l.inner = take(NB * l.inner_stride); l.keep = take(NB * a.slice * 4);
    l.values = take(NB * (a.columns + 4) * 4); l.exchange = take(2 * a.exchange);
    l.norm_w = take(2 * a.slice * 4); l.bias = take(2 * a.slice * 4); l.sums = take(2 * a.columns * 8); l.last = take(2 * a.C * 4);
    l.shared = take((int)sizeof(StepShared));
    return l.bytes = at + 128;
}
/* whether the step can run in one launch here; fills the program, but for addresses, which are offsets until the memory is there */
bool step_build(Gpu &g, gpts_session *s, StepPlan &p)
{
    gpts_model *m = s->model; const gpts_config &config = m->config; Step &a = p.step;
    const int64_t C = config.n_embd, D = C / config.n_head, F = config.n_inner < 0 ? 4 * C : config.n_inner, V = config.vocab_size;
    const int es = (int)g.size(), NB = s->B == 1 ? 1 : STEP_ROWS;
    int limit = 0;
    if (s->B > STEP_ROWS || C % 32 || C > STEP_C || D % 16 || D > MAX_D ||
        cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, g.device) != cudaSuccess) return false;
    const size_t teams = (size_t)step_teams(es == 2 ? step_kernel<bf16>(NB) : step_kernel<float>(NB), limit);
    if (!teams) return false;
    a.teams = (int)teams; a.B = (int)s->B; a.C = (int)C; a.V = (int)V; a.D = (int)D; a.epsilon = (float)config.layer_norm_epsilon;
    a.over = 1 / (float)C;
    a.slice = (int)((C + 16 * TEAM - 1) / (16 * TEAM) * 16); a.tiles = a.slice / 16;
    const int row = a.tiles * 256 * es;
    while (row << (a.log_rows + 1) <= STEP_STAGE) a.log_rows++;
    a.slot = row << a.log_rows;
    size_t at = 0, items = 0; std::vector<Sublayer> subs; const float *before = 0;
    auto take = [&](size_t bytes) { size_t o = at; at += (bytes + 127) / 128 * 128; return o; };
    auto data = [&](size_t l, gpts_parameter kind) {
        const int32_t t = m->layers[l].tensor[kind];
        return t < 0 ? (const float *)0 : m->tensors[t].data;
    };
    typedef std::vector<std::vector<int>> Shares;                                /* what each team has: A's columns, B's inner units */
    auto add = [&](int kind, int act, size_t l, const StepSource &from, const Shares &columns, const Shares &units, const Cached *cached) {
        for (size_t team = 0; team < teams; team++) {
            Sublayer f; memset(&f, 0, sizeof f);
            auto list = [&](const std::vector<int> &x, std::vector<size_t> &places) {
                places.push_back(p.index.size());
                p.index.insert(p.index.end(), x.begin(), x.end());
                p.index.resize(places.back() + (x.size() + 31) / 32 * 32, -1);
                return (int)((x.size() + 15) / 16);
            };
            f.kind = kind; f.act = act; f.norm = from.gain != 0; f.norm_w = from.gain; f.norm_b = from.shift; f.before = before;
            f.rows_a = list(columns[team], p.index_a); f.rows_b = list(units[team], p.index_b);
            if (f.rows_a) f.a = (const char *)(take((size_t)f.rows_a * TEAM * row) + 1);
            if (f.rows_b) f.b = (const char *)(take((size_t)f.rows_b * TEAM * row) + 1);
            if (f.rows_a) f.sums = (const float2 *)(take((size_t)(f.rows_a + 1) / 2 * 32 * sizeof(float2)) + 1);
            if (cached) { f.cached = *cached; f.items = (int)(units[team].size() / (size_t)D); }
            if ((size_t)f.items > items) items = (size_t)f.items;
            if (f.rows_a * 16 > a.columns) a.columns = f.rows_a * 16;
            if (f.rows_b * 16 > a.inner) a.inner = f.rows_b * 16;
            subs.push_back(f);
        }
        p.sources.push_back(from); p.layer.push_back((int)l);
    };
    auto inner = [&](size_t l, int64_t units, int act, const StepSource &from) {
        Shares share(teams); const int64_t pieces = (units + 15) / 16;
        for (size_t team = 0; team < teams; team++)
            for (int64_t u = pieces * (int64_t)team / (int64_t)teams * 16; u < pieces * (int64_t)(team + 1) / (int64_t)teams * 16; u++) share[team].push_back(u < units ? (int)u : -1);
        add(SUB_INNER, act, l, from, share, share, 0);
    };
    for (size_t l = 0; l < (size_t)config.n_layer; l++) {
        const gpts_layer &y = m->layers[l]; const gpts_heads &h = y.heads;
        if (y.window > 1 || (!y.hidden && !h.K)) return false;
        if (y.hidden) {
            inner(l, (int64_t)y.hidden, config.approx_activation,
                  { y.tensor[GPTS_P_APPROX_FC_W], y.tensor[GPTS_P_APPROX_PROJ_W], data(l, GPTS_P_LN_1_W), data(l, GPTS_P_LN_1_B),
                    data(l, GPTS_P_APPROX_FC_B) });
            before = data(l, GPTS_P_APPROX_PROJ_B);
        } else {
            Shares columns(teams), units(teams); Cached c; const std::vector<int> order = slot_order(&h);
            for (size_t i = 0; i < order.size(); i++) {
                const int k = order[i], u = h.live_slot[k]; const size_t team = i % teams;
                for (int part = u < 0 ? 2 : 0; part < 3; part++)
                    for (int d = 0; d < (int)D; d++) columns[team].push_back((part * (int)h.U + (part < 2 ? u : k)) * (int)D + d);
                for (int d = 0; d < (int)D; d++) units[team].push_back(k * (int)D + d);
            }
            if (!cached_of(g, c, &h, &s->caches[l], config.unscaled_scores ? 1.0 : 1.0 / sqrt((double)D),
                           config.position == GPTS_POSITION_ROPE ? config.rope_theta : 0)) return false;
            add(SUB_ATTENTION, 0, l, { y.tensor[GPTS_P_ATTN_W], y.tensor[GPTS_P_ATTN_PROJ_W], data(l, GPTS_P_LN_1_W),
                                       data(l, GPTS_P_LN_1_B), data(l, GPTS_P_ATTN_B) }, columns, units, &c);
            before = data(l, GPTS_P_ATTN_PROJ_B);
        }
        if (!F) continue;
        inner(l, F, config.activation, { y.tensor[GPTS_P_MLP_FC_W], y.tensor[GPTS_P_MLP_PROJ_W], data(l, GPTS_P_LN_2_W),
                                         data(l, GPTS_P_LN_2_B), data(l, GPTS_P_MLP_FC_B) });
        before = data(l, GPTS_P_MLP_PROJ_B);
    }
    StepSource last = { -1, -1, 0, 0, 0 };
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].kind == GPTS_P_LN_F_W)
            last.gain = m->tensors[i].data;
        if (m->tensors[i].kind == GPTS_P_LN_F_B)
            last.shift = m->tensors[i].data;
    }
    add(SUB_LOGITS, 0, 0, last, Shares(teams), Shares(teams), 0);
    a.phases = (int)p.sources.size();
    if (items > STEP_ITEMS) return false;
    for (size_t team = 0; team < teams; team++)                                  /* by phase -> by team */
        for (size_t i = 0; i < p.sources.size(); i++) p.program.push_back(subs[i * teams + team]);
    auto most = [](int x, int y) { return x > y ? x : y; };
    a.exchange = most(most(a.columns / 2 * pair_bytes(NB), a.slice * 4 * TEAM) + 8 * TEAM, (int)items * (a.D / 4 * 144 + 32)) * NB;
    const int fixed = step_layout(a, NB, es);
    a.stages = (limit - fixed) / a.slot;
    if (a.stages > STEP_STAGES) a.stages = STEP_STAGES;
    if (fixed > limit || a.stages < 3) return false;
    p.bytes = step_layout(a, NB, es);
    p.program_at = take(p.program.size() * sizeof(Sublayer)); p.index_at = take(p.index.size() * 4);
    if (config.position == GPTS_POSITION_ROPE) p.frequency_at = take((size_t)(D / 2) * 8);
    const size_t logits = take(s->B * V * 4);
    p.passed = at;
    const size_t passed = take((size_t)2 * TEAM * TEAMS * NB * a.slice * 8), best = take((size_t)2 * TEAM * TEAMS * STEP_ROWS * 16);
    void *memory = 0;
    if (cudaMalloc(&memory, at) != cudaSuccess || cudaHostAlloc((void **)&p.failed, sizeof(int), cudaHostAllocMapped) != cudaSuccess) {
        cudaGetLastError();
        if (memory)
            cudaFree(memory);
        return false;
    }
    p.memory = (char *)memory; *p.failed = 0;
    auto place = [&](auto &q) { if (q) q = (std::remove_reference_t<decltype(q)>)(p.memory + ((uintptr_t)q - 1)); };
    for (Sublayer &f : p.program) { place(f.a); place(f.b); place(f.sums); }
    a.program = (const Sublayer *)(p.memory + p.program_at); a.logits = (float *)(p.memory + logits);
    a.passed = (uint64_t *)(p.memory + passed); a.best = (uint64_t *)(p.memory + best); a.failed = p.failed;
    a.frequency = config.position == GPTS_POSITION_ROPE ? (const double *)(p.memory + p.frequency_at) : 0;
    a.wte = m->tensors[0].data; a.wpe = config.position == GPTS_POSITION_LEARNED ? m->tensors[1].data : 0;
    a.stream = p.program_at + (size_t)V * (size_t)C * g.size() > ((size_t)32 << 20);
    p.registered = cudaHostRegister(s->logits, s->B * (size_t)V * 4, cudaHostRegisterDefault) == cudaSuccess;
    cudaGetLastError();
    return fine(g, cudaMemsetAsync(p.memory + p.passed, 0, at - p.passed, g.stream), "the words of a step");
}
/* weights and program follow the model's parameters */
void step_refresh(Gpu &g, gpts_session *s, StepPlan &p)
{
    gpts_model *m = s->model; char *base; Memory *memory = memory_of(g, m->parameters, &base); const Step &a = p.step;
    if (p.number && memory && memory->version == p.version) return;
    std::vector<double> frequency;
    for (int d = 0; a.frequency && d < a.D / 2; d++) frequency.push_back(pow(m->config.rope_theta, -2.0 * d / a.D));
    if (a.frequency)
        fine(g, cudaMemcpyAsync(p.memory + p.frequency_at, frequency.data(), frequency.size() * 8, cudaMemcpyHostToDevice, g.stream),
             "the program of a step");
    fine(g, cudaMemcpyAsync(p.memory + p.index_at, p.index.data(), p.index.size() * 4, cudaMemcpyHostToDevice, g.stream), "the program of a step");
    const void *output = factor(g, m->config.tie_word_embeddings ? m->tensors[0].data : m->tensors[m->n_tensors - 1].data);
    for (int i = 0; i < a.phases; i++)
        for (int team = 0; team < a.teams; team++) {
            Sublayer &f = p.program[(size_t)(team * a.phases + i)]; const StepSource &from = p.sources[(size_t)i];
            if (f.kind == SUB_LOGITS) { f.a = (const char *)output; continue; }
            const int *columns = (const int *)(p.memory + p.index_at) + p.index_a[(size_t)(i * a.teams + team)],
                *units = (const int *)(p.memory + p.index_at) + p.index_b[(size_t)(i * a.teams + team)];
            const gpts_tensor &wa = m->tensors[from.a], &wb = m->tensors[from.b];
            const dim3 threads(16, 16), square(32, 32), to_a((unsigned)f.rows_a, (unsigned)a.tiles, TEAM),
                to_b((unsigned)f.rows_b, (unsigned)a.tiles, TEAM);
            const int N = (int)wa.size / a.C;
            if (f.rows_a) {
                if (g.type == GPTS_GPU_BF16) step_pack<bf16><<<to_a, threads, 0, g.stream>>>((bf16 *)(uintptr_t)f.a, wa.data, N,
                        columns, a.tiles, a.C, 0);
                else step_pack<float><<<to_a, threads, 0, g.stream>>>((float *)(uintptr_t)f.a, wa.data, N, columns, a.tiles, a.C, 0);
                if (g.type == GPTS_GPU_BF16) step_sums<bf16><<<(unsigned)(f.rows_a + 1) / 2, square, 0, g.stream>>>((float2 *)(uintptr_t)f.sums, wa.data, N, columns, a.C, from.gain, from.shift, from.bias);
                else step_sums<float><<<(unsigned)(f.rows_a + 1) / 2, square, 0, g.stream>>>((float2 *)(uintptr_t)f.sums, wa.data, N,
                        columns, a.C, from.gain, from.shift, from.bias);
            }
            if (f.rows_b) {
                if (g.type == GPTS_GPU_BF16) step_pack<bf16><<<to_b, threads, 0, g.stream>>>((bf16 *)(uintptr_t)f.b, wb.data, a.C,
                        units, a.tiles, a.C, 1);
                else step_pack<float><<<to_b, threads, 0, g.stream>>>((float *)(uintptr_t)f.b, wb.data, a.C, units, a.tiles, a.C, 1);
            }
        }
    launched(g, "the weights of a step");
    fine(g, cudaMemcpyAsync(p.memory + p.program_at, p.program.data(), p.program.size() * sizeof(Sublayer), cudaMemcpyHostToDevice,
                            g.stream), "the program of a step");
    fine(g, cudaStreamSynchronize(g.stream), "the program of a step");
    if (memory) p.version = memory->version;
}
void gpu_step_end(void *device, gpts_session *s)
{
    Gpu &g = gpu_of(device); StepPlan *p = (StepPlan *)s->plan;
    if (!p) return;
    cudaStreamSynchronize(g.stream);
    if (p->registered) cudaHostUnregister(s->logits);
    if (p->memory) cudaFree(p->memory);
    if (p->failed) cudaFreeHost(p->failed);
    cudaGetLastError();
    delete p;
    s->plan = 0;
}
/* n tokens more a row: ids [B], then each row's likeliest, which are written to more [n-1,B] */
gpts_status gpu_step(void *device, gpts_session *s, const int32_t *ids, size_t n, int32_t *more)
{
    Gpu &g = gpu_of(device); gpts_model *m = s->model;
    size_t read = 0;                                         /* long contexts are bound by reading them, which many blocks do best */
    for (size_t b = 0; b < s->B; b++) if (ids[b] >= 0) read += (size_t)s->position[b] + n;
    if (s->B > STEP_ROWS || (s->B > 1 && read > STEP_READ)) return GPTS_UNSUPPORTED;
    if (!s->plan) {
        StepPlan *p = new (std::nothrow) StepPlan();
        if (!p) return GPTS_UNSUPPORTED;
        s->plan = p; p->ready = step_build(g, s, *p);
        if (g.status != GPTS_OK) return gpu_status(device, m->error);
    }
    StepPlan &p = *(StepPlan *)s->plan; Step &a = p.step;
    if (!p.ready) return GPTS_UNSUPPORTED;
    for (size_t i = 0; i < (size_t)a.phases; i++)
        if (p.program[i].kind == SUB_ATTENTION) {
            Cached now; const size_t l = (size_t)p.layer[i];
            if (!cached_of(g, now, &m->layers[l].heads, &s->caches[l],
                           m->config.unscaled_scores ? 1.0 : 1.0 / sqrt((double)m->layers[l].heads.D),
                               m->config.position == GPTS_POSITION_ROPE ? m->config.rope_theta : 0)) return gpu_status(device, m->error);
            if (memcmp(&now, &p.program[i].cached, sizeof now)) {
                for (size_t team = 0; team < (size_t)a.teams; team++) p.program[team * (size_t)a.phases + i].cached = now;
                p.version--;
            }
        }
    step_refresh(g, s, p);
    const int64_t V = m->config.vocab_size;
    for (int64_t b = 0; b < STEP_ROWS; b++) {
        const bool rests = b >= (int64_t)s->B || ids[b] < 0;
        a.token[b] = rests ? 0 : ids[b]; a.position[b] = rests ? -1 : s->position[b];
    }
    a.n = (int)n; a.number = p.number + 1; p.number += (uint32_t)n * (uint32_t)a.phases + 2; a.chosen = 0;
    if (n > 1 && !(a.chosen = scratch<int32_t>(g, SCRATCH_ROWS, (n - 1) * s->B * 4))) return gpu_status(device, m->error);
    cudaLaunchConfig_t launch; cudaLaunchAttribute attributes[2]; memset(&launch, 0, sizeof launch); memset(attributes, 0, sizeof attributes);
    attributes[0].id = cudaLaunchAttributeClusterDimension; attributes[0].val.clusterDim.x = TEAM;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeCooperative; attributes[1].val.cooperative = 1;
    launch.gridDim = dim3((unsigned)(TEAM * a.teams)); launch.blockDim = dim3(STEP_THREADS + 32);
    launch.dynamicSmemBytes = (size_t)p.bytes; launch.stream = g.stream; launch.attrs = attributes; launch.numAttrs = 2;
    const int NB = s->B == 1 ? 1 : STEP_ROWS; void *arguments[1] = { &a };
    fine(g, cudaLaunchKernelExC(&launch, g.type == GPTS_GPU_BF16 ? step_kernel<bf16>(NB) : step_kernel<float>(NB), arguments), "a step");
    if (n > 1) fine(g, cudaMemcpyAsync(more, a.chosen, (n - 1) * s->B * 4, cudaMemcpyDeviceToHost, g.stream), "a step");
    gpu_download(device, s->logits, a.logits, s->B * (size_t)V * 4);
    if (*p.failed) { *p.failed = 0; fail(g, GPTS_DEVICE, "%s%s", "a step waited too long for a part of itself", ""); }
    return gpu_status(device, m->error);
}

/* ==== @@FIT =================================================================================================================
   Calibration of one layer: what N sequences say of each live head.  Tiles of 64 by 64 cells, fp32 arithmetic on values in shared
   memory, sums over cells in double; every sum has its order.  Each tile is visited once, for all sequences.

   card  M = mean over n of A_n, A[n,i,j] = exp(scale q[i].k[j] - lse[n,i]); cells raised to 1e-9, rows scaled to 1            (C1)
         column[j] = sum_i M[i,j], diagonal[d] = sum_i M[i,i-d], information = sum M ln M
         variance, divergence, output: (S1) (S2) (S3), from the sums of A^2, A ln A, mean^2, mean ln mean, and of
         (M V_n - y_n) G (M V_n - y_n)^T, G = W_o W_o^T.      O(N T^2 D), T^2 floats at a time; tests/gpu/session.c              */
struct Calibration {
    const void *qkv, *y; const float *lse, *gram; float *mean; double *rows, *tiles, *columns, *diagonals, *information, *changes;
    int64_t N, T; int U, K, D, live, slot, blocks; float scale;
};
enum { CALIBRATE = 64, SEGMENTS = 32 };

/* A tile of rows [t0, t0 + 64) and columns [d0, d0 + 64) of one head to shared memory, turned: to[d][t ^ 4 (d / 8 % 8)], zeros outside */
template <class E> __device__ __forceinline__ void calibration_load(float *to, const E *from, int64_t step, int64_t t0, int64_t T, int d0, int D)
{
    for (int x = threadIdx.x; x < CALIBRATE * CALIBRATE / 8; x += 256) {
        const int r = x / 8, d = x % 8 * 8;
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[(d + e) * CALIBRATE + (r ^ 4 * (d / 8))] = t0 + r < T && d0 + d + e < D ? to_float(from[(t0 + r) * step + d0 + d + e]) : 0.f;
    }
}
__device__ __forceinline__ void calibration_product(float (&s)[4][4], const float *a, const float *b, int ty, int tx)
{
#pragma unroll 8
    for (int d = 0; d < CALIBRATE; d++) {
        const float4 x = *(const float4 *)(a + d * CALIBRATE + (4 * ty ^ 4 * (d / 8))),
            y = *(const float4 *)(b + d * CALIBRATE + (4 * tx ^ 4 * (d / 8)));
        const float u[4] = { x.x, x.y, x.z, x.w }, v[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] += u[i] * v[j];
    }
}
__device__ __forceinline__ double calibration_sum(double x) { return block_reduce(x, total); }

/* the mean of a tile: mean [T,T] =; rows [T,blocks] = sums of its raised cells; tiles [.,4] = sums of A^2, A ln A, mean^2, mean ln mean */
template <class E> __global__ __launch_bounds__(256) void calibrate_tiles(const __grid_constant__ Calibration a)
{
    __shared__ __align__(16) float q[CALIBRATE * CALIBRATE], k[CALIBRATE * CALIBRATE];
    int m = int((sqrt(8. * blockIdx.x + 1) - 1) / 2);
    while ((m + 1) * (m + 2) / 2 <= (int)blockIdx.x) m++;
    while (m * (m + 1) / 2 > (int)blockIdx.x) m--;
    const int n0 = blockIdx.x - m * (m + 1) / 2, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int64_t i0 = int64_t(m) * CALIBRATE, j0 = int64_t(n0) * CALIBRATE, step = (2 * a.U + a.K) * a.D;
    float mean[4][4] = {}; double squares = 0, entropy = 0, of_mean = 0, cross = 0;
    for (int64_t n = 0; n < a.N; n++) {
        const E *from = (const E *)a.qkv + n * a.T * step + a.live * a.D;
        float s[4][4] = {}, some = 0, more = 0;
        for (int d0 = 0; d0 < a.D; d0 += CALIBRATE) {
            __syncthreads();
            calibration_load(q, from, step, i0, a.T, d0, a.D);
            calibration_load(k, from + a.U * a.D, step, j0, a.T, d0, a.D);
            __syncthreads();
            calibration_product(s, q, k, ty, tx);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t t = i0 + 4 * ty + i; const float lse = t < a.T ? a.lse[(n * a.U + a.live) * a.T + t] : 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (t >= a.T || j0 + 4 * tx + j > t) continue;
                const float x = s[i][j] * a.scale - lse, p = expf(x);
                mean[i][j] += p; some += p * p; more += p > 0 ? p * x : 0.f;
            }
        }
        squares += some; entropy += more;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t t = i0 + 4 * ty + i; double row = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (t >= a.T || j0 + 4 * tx + j > t) continue;
            const double p = (double)mean[i][j] / (double)a.N;
            of_mean += p * p;
            if (p > 0) cross += p * log(p);
            const float raised = (float)(p > 1e-9 ? p : 1e-9);
            row += raised; a.mean[t * a.T + j0 + 4 * tx + j] = raised;
        }
        for (int x = 8; x; x >>= 1) row += __shfl_xor_sync(~0u, row, x);
        if (tx == 0 && t < a.T) a.rows[t * a.blocks + n0] = row;
    }
    squares = calibration_sum(squares); entropy = calibration_sum(entropy); of_mean = calibration_sum(of_mean); cross = calibration_sum(cross);
    if (threadIdx.x == 0) { double *to = a.tiles + 4 * blockIdx.x; to[0] = squares; to[1] = entropy; to[2] = of_mean; to[3] = cross; }
}
/* rows scaled to 1; a block a row */
__global__ void calibrate_rows(const __grid_constant__ Calibration a)
{
    const int64_t i = blockIdx.x; double sum = 0, information = 0;
    for (int n = 0; n <= i / CALIBRATE; n++) sum += a.rows[i * a.blocks + n];
    for (int64_t j = threadIdx.x; j <= i; j += blockDim.x) {
        const double p = (double)a.mean[i * a.T + j] / sum;
        a.mean[i * a.T + j] = (float)p; information += p * log(p);
    }
    information = calibration_sum(information);
    if (threadIdx.x == 0) a.information[i] = information;
}
/* sums over a segment of rows, by key and by distance: columns, diagonals [SEGMENTS,T] */
__global__ void calibrate_masses(const __grid_constant__ Calibration a)
{
    const int64_t x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, per = (a.T + SEGMENTS - 1) / SEGMENTS, begin = blockIdx.y * per,
        end = begin + per < a.T ? begin + per : a.T;
    if (x >= a.T) return;
    double column = 0, diagonal = 0;
#pragma unroll 4
    for (int64_t i = begin > x ? begin : x; i < end; i++) { column += a.mean[i * a.T + x]; diagonal += a.mean[i * a.T + i - x]; }
    a.columns[blockIdx.y * a.T + x] = column; a.diagonals[blockIdx.y * a.T + x] = diagonal;
}
/* gram [D,D] = W_o W_o^T of one head */
__global__ void calibrate_gram(float *gram, const float *proj, int D, int64_t C)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x; double s = 0;
    if (x >= D * D) return;
    for (int64_t c = 0; c < C; c++) s += (double)proj[x / D * C + c] * (double)proj[x % D * C + c];
    gram[x] = (float)s;
}
/* (S3): a block 64 rows of one sequence */
template <class E> __global__ __launch_bounds__(256) void calibrate_change(const __grid_constant__ Calibration a)
{
    extern __shared__ __align__(16) float shared[];
    float *p = shared, *v = p + CALIBRATE * CALIBRATE, *r = v + CALIBRATE * CALIBRATE;      /* r [64,D] */
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, D = a.D;
    const int64_t m = blockIdx.x, n = blockIdx.y, i0 = m * CALIBRATE, step = (2 * a.U + a.K) * D;
    const E *from = (const E *)a.qkv + n * a.T * step + (2 * a.U + a.slot) * D, *y = (const E *)a.y + n * a.T * a.K * D + a.slot * D;
    for (int d0 = 0; d0 < D; d0 += CALIBRATE) {
        float s[4][4] = {};
        for (int64_t j0 = 0; j0 <= i0; j0 += CALIBRATE) {
            __syncthreads();
            for (int x = threadIdx.x; x < CALIBRATE * CALIBRATE; x += 256) {
                const int64_t i = i0 + x / CALIBRATE, j = j0 + x % CALIBRATE;
                const int key = x % CALIBRATE, d = d0 + x % CALIBRATE, t = x / CALIBRATE;
                p[key * CALIBRATE + (t ^ 4 * (key / 8))] = i < a.T && j <= i ? a.mean[i * a.T + j] : 0.f;
                v[t * CALIBRATE + (key ^ 4 * (t / 8))] = j0 + t < a.T && d < D ? to_float(from[(j0 + t) * step + d]) : 0.f;
            }
            __syncthreads();
            calibration_product(s, p, v, ty, tx);
        }
        for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {
            const int64_t t = i0 + 4 * ty + i; const int d = d0 + 4 * tx + j;
            if (d < D) r[(4 * ty + i) * D + d] = t < a.T ? s[i][j] - to_float(y[t * a.K * D + d]) : 0.f;
        }
    }
    __syncthreads();
    double change = 0;
    for (int x = threadIdx.x; x < CALIBRATE * D; x += 256) {
        const float *row = r + x / D * D; float t = 0;
        for (int d = 0; d < D; d++) t += row[d] * a.gram[d * D + x % D];
        change += (double)t * (double)row[x % D];
    }
    change = calibration_sum(change);
    if (threadIdx.x == 0) a.changes[n * gridDim.x + m] = change;
}
gpts_status gpu_calibrate(void *device, const gpts_heads *heads, size_t N, size_t T, size_t C, const void *qkv, const void *y,
                          const gpts_real *lse, const gpts_real *proj, double scale,
                          gpts_calibration *c, size_t layer, char *error)
{
    Gpu &g = gpu_of(device);
    const int64_t D = (int64_t)heads->D, blocks = ((int64_t)T + CALIBRATE - 1) / CALIBRATE, tiles = blocks * (blocks + 1) / 2, rows = (int64_t)T;
    Calibration a; memset(&a, 0, sizeof a);
    size_t at = 0;
    auto take = [&](size_t bytes) { size_t o = at; at += (bytes + 255) / 256 * 256; return o; };
    const size_t mean = take((size_t)(rows * rows) * 4), row = take((size_t)(rows * blocks) * 8), tile = take((size_t)tiles * 32),
        information = take((size_t)rows * 8), columns = take((size_t)(SEGMENTS * rows) * 8),
                 diagonals = take((size_t)(SEGMENTS * rows) * 8), changes = take(N * (size_t)blocks * 8), gram = take((size_t)(D * D) * 4);
    char *memory = 0;
    if (!fine(g, cudaMalloc((void **)&memory, at), "the calibration")) return gpu_status(device, error);
    a.qkv = qkv; a.y = y; a.lse = lse; a.mean = (float *)(memory + mean); a.rows = (double *)(memory + row);
    a.tiles = (double *)(memory + tile); a.information = (double *)(memory + information);
    a.columns = (double *)(memory + columns); a.diagonals = (double *)(memory + diagonals); a.changes = (double *)(memory + changes);
    a.gram = (float *)(memory + gram);
    a.N = (int64_t)N; a.T = rows; a.U = (int)heads->U; a.K = (int)heads->K; a.D = (int)D; a.blocks = (int)blocks; a.scale = (float)scale;
    const int shared = (2 * CALIBRATE * CALIBRATE + CALIBRATE * (int)D) * 4;
    std::vector<double> host((at - row) / 8);
    auto sum = [&](size_t from, size_t n, size_t step) {
        double s = 0;
        for (size_t i = 0; i < n; i++) s += host[(from - row) / 8 + i * step];
        return s;
    };
    for (size_t k = 0; k < heads->K && g.status == GPTS_OK; k++) {
        if (heads->live_slot[k] < 0) continue;
        const size_t h = layer * c->H + (size_t)heads->kept[k]; const double n = (double)N, t = (double)T;
        a.live = heads->live_slot[k]; a.slot = (int)k;
        calibrate_gram<<<grid(D * D, 128), 128, 0, g.stream>>>((float *)(memory + gram), proj + k * (size_t)D * C, (int)D, (int64_t)C);
        if (g.type == GPTS_GPU_BF16) {
            calibrate_tiles<bf16><<<(unsigned)tiles, 256, 0, g.stream>>>(a);
            calibrate_rows<<<(unsigned)T, 256, 0, g.stream>>>(a);
            cudaFuncSetAttribute(calibrate_change<bf16>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            calibrate_change<bf16><<<dim3((unsigned)blocks, (unsigned)N), 256, shared, g.stream>>>(a);
        } else {
            calibrate_tiles<float><<<(unsigned)tiles, 256, 0, g.stream>>>(a);
            calibrate_rows<<<(unsigned)T, 256, 0, g.stream>>>(a);
            cudaFuncSetAttribute(calibrate_change<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
            calibrate_change<float><<<dim3((unsigned)blocks, (unsigned)N), 256, shared, g.stream>>>(a);
        }
        calibrate_masses<<<dim3(grid(rows, 128), SEGMENTS), 128, 0, g.stream>>>(a);
        launched(g, "calibration");
        gpu_download(device, host.data(), memory + row, host.size() * 8);
        for (size_t j = 0; j < T; j++) {
            c->column[h * T + j] = sum(columns + j * 8, SEGMENTS, T);
            c->diagonal[h * T + j] = sum(diagonals + j * 8, SEGMENTS, T);
        }
        const double squares = sum(tile, (size_t)tiles, 4), entropy = sum(tile + 8, (size_t)tiles, 4),
            of_mean = sum(tile + 16, (size_t)tiles, 4), cross = sum(tile + 24, (size_t)tiles, 4);
        c->information[h] = sum(information, T, 1);
        c->variance[h] = N > 1 ? fmax(0., squares - n * of_mean) / ((n - 1) * t * t) : 0;
        c->divergence[h] = fmax(0., (entropy / n - cross) / t);
        const double change = sum(changes, N * (size_t)blocks, 1);
        c->output[h] = (change < 0 ? 0 : change) / (n * t);                       /* NaN stays: see gpts_calibrate */
        for (size_t i = 0; c->mean && i < T; i++) gpu_download(device, c->mean + (h * T + i) * T, a.mean + i * T, (i + 1) * 4);
    }
    cudaStreamSynchronize(g.stream);
    cudaFree(memory);
    return gpu_status(device, error);
}

/* ---- replay: a step's work is queued once as it is, once into a graph, and from then on launched as one -------------------------- */
int gpu_replay_begin(void *device, const void *key, size_t bytes)
{
    Gpu &g = gpu_of(device);
    if (g.replays.size() > 32) { for (auto &r : g.replays) if (r.second.ready) cudaGraphExecDestroy(r.second.ready); g.replays.clear(); }
    Replay &r = g.replays[std::string((const char *)key, bytes)];            /* all zero when new */
    for (auto &m : g.memory) shadow_renew(g, m.first, m.second);               /* graphs take shadows as they are */
    if (r.hopeless || g.status != GPTS_OK) return 0;
    if (r.ready && r.generation == g.generation) { fine(g, cudaGraphLaunch(r.ready, g.stream), "a recorded step"); return 1; }
    if (r.ready) { cudaGraphExecDestroy(r.ready); r.ready = 0; r.generation = 0; }
    if (r.generation == g.generation) {
        if (cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess) g.recording = &r;
        else { cudaGetLastError(); r.hopeless = true; }
    }
    r.generation = g.generation;
    return 0;
}
int gpu_replay_end(void *device)
{
    Gpu &g = gpu_of(device); Replay *r = g.recording; cudaGraph_t graph = 0;
    if (!r) return 0;
    g.recording = 0;
    bool ok = cudaStreamEndCapture(g.stream, &graph) == cudaSuccess && graph && g.status == GPTS_OK && r->generation == g.generation &&
        cudaGraphInstantiate(&r->ready, graph, 0) == cudaSuccess && cudaGraphLaunch(r->ready, g.stream) == cudaSuccess;
    if (graph) cudaGraphDestroy(graph);
    if (ok) return 0;
    cudaGetLastError();                                                          /* nothing was run: as if it had not been tried */
    if (r->ready) { cudaGraphExecDestroy(r->ready); r->ready = 0; }
    r->hopeless = true; g.status = GPTS_OK;
    return 1;
}

/* ---- the table, and a model on it ------------------------------------------------------------------------------------------ */

void gpu_close(Gpu *g)
{
    cudaSetDevice(g->device);
    if (g->stream) cudaStreamSynchronize(g->stream);
    for (auto &p : g->products) product_plan_free(p.second);
    for (auto &r : g->replays) if (r.second.ready) cudaGraphExecDestroy(r.second.ready);
    for (auto &m : g->memory) { if (m.second.shadow) cudaFree(m.second.shadow); cudaFree(m.first); }
    for (int i = 0; i < SCRATCH_COUNT; i++) if (g->scratch[i]) cudaFree(g->scratch[i]);
    if (g->stage) cudaFreeHost(g->stage);
    for (cudaEvent_t e : { g->stage_free, g->fork, g->join }) if (e) cudaEventDestroy(e);
    if (g->beside) cudaStreamDestroy(g->beside);
    if (g->lt) cublasLtDestroy(g->lt);
    if (g->stream) cudaStreamDestroy(g->stream);
    cudaGetLastError();
    delete g;
}
void gpu_hold(void *device, int change) { Gpu *g = (Gpu *)device; g->holds += change; if (g->holds <= 0) gpu_close(g); }

void gpu_table(Gpu &g)
{
    gpts_ops &o = g.ops; memset(&o, 0, sizeof o);
    o.name = "cuda"; o.activation_bytes = g.size(); o.queued = 1; o.hold = gpu_hold; o.replay_begin = gpu_replay_begin; o.replay_end = gpu_replay_end;
    o.allocate = gpu_allocate; o.release = gpu_release; o.upload = gpu_upload; o.download = gpu_download; o.copy = gpu_copy;
    o.zero = gpu_zero; o.status = gpu_status;
    o.prepare = gpu_prepare; o.forget = gpu_forget;
    o.embed_forward = gpu_embed_forward; o.embed_backward = gpu_embed_backward;
    o.norm_forward = gpu_norm_forward; o.add_norm_forward = gpu_add_norm_forward; o.norm_backward = gpu_norm_backward;
    o.linear_forward = gpu_linear_forward; o.linear_backward = gpu_linear_backward;
    o.activation_forward = gpu_activation_forward; o.activation_backward = gpu_activation_backward; o.activation_exchange = gpu_activation_exchange;
    o.add_forward = gpu_add_forward; o.add_backward = gpu_add_backward; o.window_forward = gpu_window_forward;
    o.window_backward = gpu_window_backward;
    o.attention_forward = gpu_attention_forward; o.attention_backward = gpu_attention_backward;
    o.cache_fill = gpu_cache_fill; o.attention_decode = gpu_attention_decode; o.step = gpu_step; o.step_end = gpu_step_end;
    o.logits = gpu_logits; o.likeliest = gpu_likeliest; o.calibrate = gpu_calibrate; o.loss = gpu_loss; o.sum_squares = gpu_sum_squares;
    o.adamw = gpu_adamw; o.adamw_all = gpu_adamw_all;
}
gpts_status refuse(gpts_model *m, gpts_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format); vsnprintf(m->error, sizeof m->error, format, list); va_end(list);
    return status;
}
} /* namespace */

extern "C" gpts_status gpts_gpu_attach_precision(gpts_model *m, int device, int type)
{
    int count = 0, major = 0; size_t room = 0, all = 0;
    if (m->abi != GPTS_ABI) return refuse(m, GPTS_MISMATCH, "the GPU's part is of another version, or the model's numbers are not floats");
    if (type != GPTS_GPU_BF16 && type != GPTS_GPU_F32)
        return refuse(m, GPTS_BAD_ARGUMENT, "a model runs in GPTS_GPU_BF16 or GPTS_GPU_F32 on the GPU");
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess) { cudaGetLastError(); return refuse(m, GPTS_DEVICE, "no NVIDIA GPU can be used: %s", cudaGetErrorString(e)); }
    if (device < 0 || device >= count) return refuse(m, GPTS_DEVICE, "there is no GPU %d: this machine has %d, counted from 0", device, count);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (major < 8) return refuse(m, GPTS_DEVICE, "GPU %d is of compute capability %d.x; 8.0 or later is needed", device, major);
    Gpu *g = new (std::nothrow) Gpu();
    if (!g) return refuse(m, GPTS_NO_MEMORY, "out of memory: the GPU's state");
    g->device = device; g->type = type;
    gpu_table(*g);
    if (cudaSetDevice(device) != cudaSuccess || (e = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking)) != cudaSuccess ||
        (e = cudaStreamCreateWithFlags(&g->beside, cudaStreamNonBlocking)) != cudaSuccess ||
        (e = cudaEventCreateWithFlags(&g->fork, cudaEventDisableTiming)) != cudaSuccess ||
        (e = cudaEventCreateWithFlags(&g->join, cudaEventDisableTiming)) != cudaSuccess ||
        (e = cudaEventCreateWithFlags(&g->stage_free, cudaEventDisableTiming)) != cudaSuccess || (e = cudaMemGetInfo(&room, &all)) != cudaSuccess ||
        cublasLtCreate(&g->lt) != CUBLAS_STATUS_SUCCESS || !scratch<char>(*g, SCRATCH_PRODUCT, 32 << 20)) {
        cudaGetLastError();
        gpu_close(g);
        return refuse(m, GPTS_DEVICE, "GPU %d cannot be used: %s", device,
                      e != cudaSuccess ? cudaGetErrorString(e) : "cuBLAS did not start, or the memory is full");
    }
    if (cudaHostAlloc((void **)&g->stage, STAGE_BYTES, cudaHostAllocDefault) != cudaSuccess) { cudaGetLastError(); g->stage = 0; }
    const gpts_status status = gpts_model_move(m, &g->ops, g);
    if (status != GPTS_OK) gpu_close(g);
    return status;
}
extern "C" gpts_status gpts_gpu_attach(gpts_model *model, int device) { return gpts_gpu_attach_precision(model, device, GPTS_GPU_BF16); }

/* ==== @@RANKS  several GPUs: groups of reductions and broadcasts through NCCL, on a stream of their own ===================== */
#ifdef GPTS_NCCL
#include <nccl.h>
#include <sched.h>
namespace {
struct RankPiece { float *x; size_t n; int owner; bool reduce; };
struct Ranks {
    Line line;
    ncclComm_t comm; cudaStream_t stream; cudaEvent_t before, done;
    Gpu *gpu; std::vector<RankPiece> pieces;                 /* of the group at hand */
    int type; bf16 *half; size_t half_size;                  /* GPTS_GPU_BF16: gradients travel rounded */
    double patience;                                         /* seconds without an end before a group is given up */
    bool shared;                                             /* GPTS_SHARE_GPU=1, for tests where GPUs are few: no NCCL, all goes through the line */
};

__global__ void ranks_round(bf16 *to, const float *from, size_t n)
{
    const size_t i = blockIdx.x * (size_t)256 + threadIdx.x;
    if (i < n) to[i] = from_float<bf16>(from[i]);
}
__global__ void ranks_widen(float *to, const bf16 *from, size_t n)
{
    const size_t i = blockIdx.x * (size_t)256 + threadIdx.x;
    if (i < n) to[i] = to_float(from[i]);
}

/* All that was queued is given up; the sentence is the line's where that knows who is gone. */
void ranks_give_up(Ranks *k, const char *why)
{
    const double until = line_now() + 2;
    while (!k->line.broken && line_check(&k->line) == GPTS_OK && line_now() < until) poll(0, 0, 20);
    if (!k->line.broken) line_break(&k->line, "rank %d: NCCL: %.200s; the last checkpoint stays good", k->line.rank, why);
    if (k->comm) ncclCommAbort(k->comm);
    k->comm = 0;
}
/* r, or what became of a call that goes on by itself: polled, so that nothing waits for a rank that is gone */
bool ranks_settle(Ranks *k, ncclResult_t r, double patience)
{
    double now = line_now(), until = now + patience, look = now + 1e-3;
    while (r == ncclInProgress) {
        if (!k->comm || ncclCommGetAsyncError(k->comm, &r) != ncclSuccess) r = ncclInternalError;
        if (r != ncclInProgress) break;
        if ((now = line_now()) > look) {
            look = now + 1e-3;
            if (line_check(&k->line) != GPTS_OK || now > until) { ranks_give_up(k, "a call did not end in time"); return false; }
        }
        sched_yield();
    }
    if (r == ncclSuccess) return true;
    const char *last = k->comm ? ncclGetLastError(k->comm) : 0;
    ranks_give_up(k, last && *last ? last : ncclGetErrorString(r));
    return false;
}
void ranks_begin(void *context, void *device)
{
    Ranks *k = (Ranks *)context;
    k->gpu = &gpu_of(device);
    k->pieces.clear();
    cudaEventRecord(k->before, k->gpu->stream);
    cudaStreamWaitEvent(k->stream, k->before, 0);
}
void ranks_reduce(void *context, gpts_real *x, size_t n, int owner) { ((Ranks *)context)->pieces.push_back({ x, n, owner, true }); }
void ranks_broadcast(void *context, gpts_real *x, size_t n, int owner)
{
    Ranks *k = (Ranks *)context;
    changed(*k->gpu, x);
    k->pieces.push_back({ x, n, owner, false });
}
/* the group at hand through the host and the line */
void ranks_by_line(Ranks *k)
{
    char error[GPTS_ERROR_BYTES];
    cudaStreamSynchronize(k->stream);
    for (auto &p : k->pieces) {
        std::vector<float> mine(p.n), all(p.n * (size_t)k->line.size);
        cudaMemcpyAsync(mine.data(), p.x, p.n * 4, cudaMemcpyDeviceToHost, k->stream);
        cudaStreamSynchronize(k->stream);
        if (line_gather(&k->line, mine.data(), p.n * 4, all.data(), error) != GPTS_OK) return;
        if (!p.reduce) memcpy(mine.data(), all.data() + (size_t)p.owner * p.n, p.n * 4);
        else for (size_t i = 0; i < p.n; i++) { mine[i] = all[i]; for (int r = 1; r < k->line.size; r++) mine[i] += all[(size_t)r * p.n + i]; }
        cudaMemcpyAsync(p.x, mine.data(), p.n * 4, cudaMemcpyHostToDevice, k->stream);
        cudaStreamSynchronize(k->stream);
    }
}
void ranks_end(void *context)
{
    Ranks *k = (Ranks *)context;
    size_t halves = 0;
    if (k->shared && !k->line.broken) { ranks_by_line(k); return; }
    if (k->line.broken || !k->comm || k->pieces.empty()) return;
    if (k->type == GPTS_GPU_BF16) {
        for (auto &p : k->pieces) if (p.reduce) halves += (p.n + 127) / 128 * 128;
        if (halves > k->half_size) {
            cudaStreamSynchronize(k->stream);
            cudaFree(k->half); k->half = 0; k->half_size = 0;
            if (cudaMalloc((void **)&k->half, halves * 2) != cudaSuccess) {
                cudaGetLastError();
                ranks_give_up(k, "out of memory: the rounded gradients");
                return;
            }
            k->half_size = halves;
        }
        bf16 *at = k->half;
        for (auto &p : k->pieces)
            if (p.reduce) { ranks_round<<<grid((int64_t)p.n, 256), 256, 0, k->stream>>>(at, p.x, p.n); at += (p.n + 127) / 128 * 128; }
    }
    ncclResult_t r = ncclGroupStart();
    bf16 *at = k->half;
    for (auto &p : k->pieces) {
        ncclResult_t e;
        if (!p.reduce) e = ncclBroadcast(p.x, p.x, p.n, ncclFloat32, p.owner, k->comm, k->stream);
        else if (k->type == GPTS_GPU_BF16) {
            e = ncclReduce(at, at, p.n, ncclBfloat16, ncclSum, p.owner, k->comm, k->stream);
            at += (p.n + 127) / 128 * 128;
        }
        else e = ncclReduce(p.x, p.x, p.n, ncclFloat32, ncclSum, p.owner, k->comm, k->stream);
        if (r == ncclSuccess && e != ncclInProgress) r = e;
    }
    const ncclResult_t e = ncclGroupEnd();
    if (!ranks_settle(k, r == ncclSuccess ? e : r, k->patience)) return;
    at = k->half;
    if (k->type == GPTS_GPU_BF16)
        for (auto &p : k->pieces) if (p.reduce) {
            if (p.owner == k->line.rank) ranks_widen<<<grid((int64_t)p.n, 256), 256, 0, k->stream>>>(p.x, at, p.n);
            at += (p.n + 127) / 128 * 128;
        }
}
gpts_status ranks_wait(void *context, char *error)
{
    Ranks *k = (Ranks *)context;
    cudaError_t e = cudaSuccess;
    if (!k->line.broken) e = cudaEventRecord(k->done, k->stream);
    for (double now = line_now(), until = now + k->patience, look = now + 1e-3; !k->line.broken && e == cudaSuccess;) {
        if ((e = cudaEventQuery(k->done)) == cudaSuccess) break;
        if (e != cudaErrorNotReady) break;
        e = cudaSuccess;
        if ((now = line_now()) > look) {
            ncclResult_t r = ncclSuccess;
            look = now + 1e-3;
            if (k->comm) ncclCommGetAsyncError(k->comm, &r);
            if (line_check(&k->line) != GPTS_OK || now > until || (r != ncclSuccess && r != ncclInProgress))
                ranks_give_up(k, r != ncclSuccess && r != ncclInProgress ? ncclGetErrorString(r) : "a group did not end in time");
        }
        sched_yield();
    }
    if (e != cudaSuccess) { cudaGetLastError(); ranks_give_up(k, cudaGetErrorString(e)); }
    if (!k->line.broken) {
        if (k->gpu) cudaStreamWaitEvent(k->gpu->stream, k->done, 0);
        return GPTS_OK;
    }
    if (k->comm) ranks_give_up(k, "");
    memcpy(error, k->line.error, GPTS_ERROR_BYTES);
    return GPTS_DEVICE;
}
gpts_status ranks_gather(void *context, const void *mine, size_t bytes, void *all, char *error)
{
    Ranks *k = (Ranks *)context;
    const gpts_status status = line_gather(&k->line, mine, bytes, all, error);
    if (status != GPTS_OK && k->comm) ranks_give_up(k, "");
    return status;
}

/* this rank's GPU and its part of the communicator */
gpts_status ranks_start(Ranks *k, double seconds, char *error)
{
    ncclUniqueId mine, *all;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int count = 0, least = 0, greatest = 0;
    gpts_status status = GPTS_OK;
    float *one = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    memset(&mine, 0, sizeof mine);
    if (e != cudaSuccess) status = line_fail(error, GPTS_DEVICE, "no NVIDIA GPU can be used: %s", cudaGetErrorString(e));
    else if (k->shared) k->line.local %= count;
    if (status == GPTS_OK && k->line.local >= count)
        status = line_fail(error, GPTS_DEVICE, "there is no GPU %d for this rank: this machine has %d, counted from 0", k->line.local, count);
    else if (status == GPTS_OK && ((e = cudaSetDevice(k->line.local)) != cudaSuccess ||
                                   (e = cudaDeviceGetStreamPriorityRange(&least, &greatest)) != cudaSuccess ||
             (e = cudaStreamCreateWithPriority(&k->stream, cudaStreamNonBlocking, greatest)) != cudaSuccess ||
             (e = cudaEventCreateWithFlags(&k->before, cudaEventDisableTiming)) != cudaSuccess ||
             (e = cudaEventCreateWithFlags(&k->done, cudaEventDisableTiming)) != cudaSuccess ||
             (e = cudaMalloc((void **)&one, 256)) != cudaSuccess || (e = cudaMemset(one, 0, 256)) != cudaSuccess ||
             (e = cudaDeviceSynchronize()) != cudaSuccess))
        status = line_fail(error, GPTS_DEVICE, "GPU %d cannot be used: %s", k->line.local, cudaGetErrorString(e));
    if (status == GPTS_OK && k->line.rank == 0 && !k->shared && ncclGetUniqueId(&mine) != ncclSuccess)
        status = line_fail(error, GPTS_DEVICE, "NCCL does not start");
    cudaGetLastError();
    status = line_agree(&k->line, status, error);
    if (status != GPTS_OK || k->shared) { cudaFree(one); return status; }
    if (!(all = (ncclUniqueId *)malloc((size_t)k->line.size * sizeof mine)))
        return line_fail(error, GPTS_NO_MEMORY, "out of memory: the ranks' names");
    status = line_gather(&k->line, &mine, sizeof mine, all, error);
    config.blocking = 0;
    if (status == GPTS_OK && !ranks_settle(k, ncclCommInitRankConfig(&k->comm, k->line.size, all[0], k->line.rank, &config), seconds))
        status = GPTS_DEVICE;
    free(all);
    if (status == GPTS_OK) {                                 /* the first group connects; it must end in time too */
        const double patience = k->patience;
        k->patience = seconds;
        k->pieces.clear();
        for (int r = 0; r < k->line.size; r++) { k->pieces.push_back({ one, 32, r, true }); k->pieces.push_back({ one, 32, r, false }); }
        ranks_end(k);
        status = ranks_wait(k, error);
        k->patience = patience;
    } else if (k->line.broken) memcpy(error, k->line.error, GPTS_ERROR_BYTES);
    cudaFree(one);
    return status;
}
} /* namespace */

extern "C" void gpts_gpu_ranks_free(gpts_ranks *ranks)
{
    Ranks *k = ranks ? (Ranks *)ranks->context : 0;
    if (k) {
        char error[GPTS_ERROR_BYTES], *all = (char *)malloc((size_t)k->line.size);
        k->line.patience = 60;                               /* all are done before one goes */
        if (k->line.fd && !k->line.broken && all) line_gather(&k->line, "", 1, all, error);
        free(all);
        if (k->comm && !k->line.broken && ranks_settle(k, ncclCommFinalize(k->comm), 30)) ncclCommDestroy(k->comm);
        else if (k->comm) ncclCommAbort(k->comm);
        line_close(&k->line);
        if (k->half) cudaFree(k->half);
        if (k->before) cudaEventDestroy(k->before);
        if (k->done) cudaEventDestroy(k->done);
        if (k->stream) cudaStreamDestroy(k->stream);
        cudaGetLastError();
        delete k;
    }
    if (ranks) memset(ranks, 0, sizeof *ranks);
}
extern "C" gpts_status gpts_gpu_ranks_init(gpts_ranks *ranks, int type, char *error)
{
    const double seconds = 60;
    gpts_status status;
    memset(ranks, 0, sizeof *ranks);
    ranks->size = 1; ranks->name = "cuda";
    if (type != GPTS_GPU_BF16 && type != GPTS_GPU_F32)
        return line_fail(error, GPTS_BAD_ARGUMENT, "gradients travel as GPTS_GPU_BF16 or GPTS_GPU_F32");
    Ranks *k = new (std::nothrow) Ranks();
    if (!k) return line_fail(error, GPTS_NO_MEMORY, "out of memory: the ranks");
    k->type = type; k->patience = 600;
    k->shared = line_variable("GPTS_SHARE_GPU", 0) == 1;
    status = line_environment(&k->line, error);
    ranks->device = k->line.local;
    if (status == GPTS_OK && k->line.size == 1 && line_variable("GPTS_ONE_RANK", 0) != 1) { delete k; return GPTS_OK; }     /* 1: a group of one, for tests */
    ranks->context = k;
    if (status == GPTS_OK) status = line_open(&k->line, seconds, error);
    if (status == GPTS_OK) status = ranks_start(k, seconds, error);
    if (status != GPTS_OK) { line_close(&k->line); gpts_gpu_ranks_free(ranks); return status; }
    ranks->rank = k->line.rank; ranks->size = k->line.size; ranks->device = k->line.local;
    ranks->begin = ranks_begin; ranks->reduce = ranks_reduce; ranks->broadcast = ranks_broadcast; ranks->end = ranks_end;
    ranks->wait = ranks_wait; ranks->gather = ranks_gather;
    return GPTS_OK;
}
#else
extern "C" void gpts_gpu_ranks_free(gpts_ranks *ranks) { if (ranks) memset(ranks, 0, sizeof *ranks); }
extern "C" gpts_status gpts_gpu_ranks_init(gpts_ranks *ranks, int type, char *error)
{
    static const char *const names[4] = { "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS" };
    (void)type;
    memset(ranks, 0, sizeof *ranks);
    ranks->size = 1; ranks->name = "cuda";
    for (int i = 0; i < 4; i++)
        if (getenv(names[i]) && atoi(getenv(names[i])) > 1) {
            snprintf(error, GPTS_ERROR_BYTES, "started as one of %d processes (%s), but built without NCCL: make gpu NCCL=1",
                     atoi(getenv(names[i])), names[i]);
            return GPTS_UNSUPPORTED;
        }
    return GPTS_OK;
}
#endif

#endif /* GPTS_GPU_ATTENTION_ONLY */
#endif /* __CUDACC__ */

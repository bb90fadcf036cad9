/* ranks.c - what gpu.cu gives a trainer for several GPUs, as far as one GPU can tell: a group of one rank goes through NCCL and
   keeps its numbers (bf16: rounded), beside work on the model's own stream.  tests/gpu/ranks.sh needs two GPUs.               */
#define GPTSTATIC_IMPLEMENTATION
#include "../../gptstatic.h"
#define GPTS_GPU_DECLARATIONS
#include "../../gpu.cu"
#include "../test.h"

static float rounded(float x)                 /* to bf16, to nearest, ties to even */
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u += 0x7FFFu + (u >> 16 & 1u);
    u &= 0xFFFF0000u;
    memcpy(&x, &u, 4);
    return x;
}
static void group_of_one(int type)
{
    enum { N = 100003 };
    gpts_config config = gpts_config_default();
    gpts_model m;
    gpts_ranks ranks;
    char error[GPTS_ERROR_BYTES] = "", got[4] = "", byte = 'x';
    float *host = (float *)malloc(N * sizeof *host), *back = (float *)malloc(N * sizeof *back);
    void *x, *y;
    size_t i, bad = 0;
    int turn;
    config.vocab_size = 64; config.n_positions = 16; config.n_layer = 1; config.n_head = 2; config.n_embd = 32;
    setenv("GPTS_ONE_RANK", "1", 1);
    t_status(gpts_gpu_ranks_init(&ranks, type, error), GPTS_OK);
    if (!ranks.context) { t_skip(error[0] ? error : "built without NCCL"); free(host); free(back); return; }
    t_equal(ranks.size, 1);
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    t_status(gpts_gpu_attach(&m, ranks.device), GPTS_OK);
    t_status(m.ops->allocate(m.device, N * sizeof *host, &x), GPTS_OK);
    t_status(m.ops->allocate(m.device, N * sizeof *host, &y), GPTS_OK);
    for (i = 0; i < N; i++) host[i] = (float)(sin((double)i) * pow(2, (double)(i % 40) - 20));
    for (turn = 0; turn < 20; turn++) {       /* the upload is queued on the model's stream; the group must come after it */
        m.ops->zero(m.device, x, N * sizeof *host);
        m.ops->upload(m.device, x, host, N * sizeof *host);
        m.ops->copy(m.device, y, x, N * sizeof *host);
        ranks.begin(ranks.context, m.device);
        ranks.reduce(ranks.context, (float *)x, 50000, 0);
        ranks.reduce(ranks.context, (float *)x + 50000, N - 50000, 0);
        ranks.broadcast(ranks.context, (float *)y, N, 0);
        ranks.end(ranks.context);
        t_status(ranks.wait(ranks.context, error), GPTS_OK);
        m.ops->download(m.device, back, x, N * sizeof *back);
        for (i = 0; i < N; i++) bad += back[i] != (type == GPTS_GPU_BF16 ? rounded(host[i]) : host[i]);
        m.ops->download(m.device, back, y, N * sizeof *back);
        for (i = 0; i < N; i++) bad += back[i] != host[i];
    }
    t_equal(bad, 0);
    t_status(ranks.gather(ranks.context, &byte, 1, got, error), GPTS_OK);
    t_ok(got[0] == 'x');
    t_says(error, "");
    m.ops->release(m.device, x); m.ops->release(m.device, y);
    gpts_model_free(&m);
    gpts_gpu_ranks_free(&ranks);
    gpts_gpu_ranks_free(&ranks);
    free(host); free(back);
}
static void a_group_of_one_keeps_its_numbers(void) { group_of_one(GPTS_GPU_F32); }
static void gradients_travel_in_bf16(void) { group_of_one(GPTS_GPU_BF16); }
static void alone_needs_no_nccl(void)
{
    gpts_ranks ranks;
    char error[GPTS_ERROR_BYTES] = "";
    unsetenv("GPTS_ONE_RANK");
    t_status(gpts_gpu_ranks_init(&ranks, GPTS_GPU_F32, error), GPTS_OK);
    t_equal(ranks.size, 1);
    t_ok(!ranks.context);
    gpts_gpu_ranks_free(&ranks);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "--light")) t_state.filters = 0;
    T(alone_needs_no_nccl);
    T(a_group_of_one_keeps_its_numbers);
    T(gradients_travel_in_bf16);
    return t_end();
}

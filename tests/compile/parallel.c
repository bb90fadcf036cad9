/* parallel.c - E5: a user's GPTS_PARALLEL_FOR; it is really called */
#include <stddef.h>
static int calls;
static void my_loop(int threads, size_t n, void (*task)(void *, size_t), void *arg)
{
    size_t i;
    (void)threads;
    calls++;
    for (i = n; i-- > 0; ) task(arg, i);
}
#define GPTS_PARALLEL_FOR(threads, n, task, arg) my_loop((threads), (n), (task), (arg))
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
int main(void)
{
    static const int32_t tokens[64] = { 1 };
    gpts_config config = gpts_config_default();
    gpts_model model;
    gpts_hooks hooks;
    gpts_batch batch;
    gpts_status status;
    memset(&model, 0, sizeof model);
    memset(&hooks, 0, sizeof hooks);
    memset(&batch, 0, sizeof batch);
    hooks.threads = 3;
    config.vocab_size = 11; config.n_positions = 32; config.n_layer = 2; config.n_head = 4; config.n_embd = 64;
    batch.tokens = tokens; batch.B = 2; batch.T = 32;
    status = gpts_model_init(&model, &config, 1, &hooks);
    if (status == GPTS_OK) status = gpts_model_forward(&model, &batch, NULL, NULL);
    gpts_model_free(&model);
    return status == GPTS_OK && calls > 0 ? 0 : 1;
}

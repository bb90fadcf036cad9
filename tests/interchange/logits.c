/* logits FILE EXPORT DTYPE ID...: loads a model, writes its logits for the ids to stdout
   (one row a token) and, unless EXPORT is "-", exports it for transformers.  Used by
   interchange.py.                                                                       */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"

int main(int argc, char **argv)
{
    static int32_t ids[1024];
    gpts_model m;
    gpts_batch batch;
    gpts_real *logits;
    size_t T = (size_t)(argc - 4), V, t, v;
    gpts_dtype dtype;
    if (argc < 5 || T > 1024) { fprintf(stderr, "usage: logits FILE EXPORT DTYPE ID...\n"); return 1; }
    if (gpts_model_load(&m, argv[1], NULL) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
    dtype = !strcmp(argv[3], "F16") ? GPTS_F16 : !strcmp(argv[3], "BF16") ? GPTS_BF16 : GPTS_F32;
    if (strcmp(argv[2], "-") && gpts_model_export(&m, argv[2], dtype) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
    for (t = 0; t < T; t++) ids[t] = (int32_t)strtol(argv[4 + t], NULL, 10);
    V = (size_t)m.config.vocab_size;
    logits = (gpts_real *)malloc(T * V * sizeof *logits);
    memset(&batch, 0, sizeof batch);
    batch.tokens = ids; batch.B = 1; batch.T = T;
    if (!logits || gpts_model_forward(&m, &batch, logits, NULL) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
    for (t = 0; t < T; t++) for (v = 0; v < V; v++) printf("%.9g%c", (double)logits[t * V + v], v + 1 < V ? ' ' : '\n');
    free(logits);
    gpts_model_free(&m);
    return 0;
}

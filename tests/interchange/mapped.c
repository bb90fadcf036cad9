/* mapped.c - for attention_only.py: loads a model of other names, writes it back, answers a masked batch.
   mapped FILE MAP|- OUT|- LIKE|- B T ids.. mask.. labels..   prints the table to stderr, then the loss and B*T lines of logits */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"

int main(int argc, char **argv)
{
    gpts_model m;
    gpts_mapping mapping;
    gpts_masked_call call;
    size_t B, T, V, n, i, part;
    int32_t *numbers;
    if (argc < 7) return 2;
    B = (size_t)atol(argv[5]); T = (size_t)atol(argv[6]); n = B * T;
    if ((size_t)argc != 7 + 3 * n) return 2;
    memset(&m, 0, sizeof m); memset(&mapping, 0, sizeof mapping); memset(&call, 0, sizeof call);
    mapping.map = strcmp(argv[2], "-") ? argv[2] : NULL;
    if (gpts_model_load_mapped(&m, argv[1], &mapping, NULL) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
    fputs(mapping.table, stderr);
    gpts_release(NULL, mapping.table);
    if (strcmp(argv[3], "-")) {
        if (gpts_model_save_mapped(&m, argv[3], strcmp(argv[4], "-") ? argv[4] : NULL, &mapping) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
        gpts_release(NULL, mapping.table);
    }
    V = (size_t)m.config.vocab_size;
    numbers = (int32_t *)malloc(3 * n * sizeof *numbers);
    call.logits.data = (gpts_real *)malloc(n * V * sizeof(gpts_real));
    if (!numbers || !call.logits.data) return 2;
    for (i = 0; i < 3 * n; i++) numbers[i] = (int32_t)atol(argv[7 + i]);
    for (part = 0; part < 3; part++) {
        gpts_ids_array *a = part == 0 ? &call.input_ids : part == 1 ? &call.attention_mask : &call.labels;
        a->data = numbers + part * n; a->rank = 2; a->shape[0] = B; a->shape[1] = T;
    }
    call.logits.rank = 3; call.logits.shape[0] = B; call.logits.shape[1] = T; call.logits.shape[2] = V;
    if (gpts_model_forward_masked(&m, &call) != GPTS_OK) { fprintf(stderr, "%s\n", m.error); return 1; }
    printf("%.9g\n", call.loss);
    for (i = 0; i < n * V; i++) printf("%.9g%c", (double)call.logits.data[i], (i + 1) % V ? ' ' : '\n');
    free(numbers); free(call.logits.data);
    gpts_model_free(&m);
    return 0;
}

/* hostile.c - files that lie: every sample file cut at every byte and with every bit
   flipped, and hand-made lies.  A load ends in a sentence or in an object that works; it
   never crashes, hangs, or allocates out of proportion (E32 E33 E34 E37 E41 E42 E73).     */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"

/* Memory by the counted hooks: more than this many bytes at once is out of proportion for
   files of a few kilobytes. */
enum { LIMIT = 8 << 20 };
static struct { size_t bytes, peak, refused, blocks; } memory;
static void *limited_allocate(void *context, size_t bytes)
{
    void *p;
    (void)context;
    if (bytes > LIMIT || memory.bytes + bytes > LIMIT) { memory.refused++; return NULL; }
    p = malloc(bytes);
    if (p) { memory.bytes += bytes; memory.blocks++; }
    return p;
}
static void limited_release(void *context, void *p, size_t bytes)
{
    (void)context;
    memory.bytes -= bytes; memory.blocks--;
    free(p);
}
static gpts_hooks limited(void)
{
    gpts_hooks h;
    memset(&h, 0, sizeof h);
    memset(&memory, 0, sizeof memory);
    h.allocate = limited_allocate; h.release = limited_release; h.threads = 1;
    return h;
}

/* ---- what is loaded, and then used --------------------------------------------------- */

static char sentence[GPTS_ERROR_BYTES];
typedef gpts_status (*loader)(const unsigned char *data, size_t bytes, const gpts_hooks *hooks);

static gpts_status load_model(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    static const int32_t tokens[4] = { 0, 0, 0, 0 };
    gpts_model m, zero;
    gpts_batch batch;
    gpts_status s;
    memset(&m, 0, sizeof m); memset(&zero, 0, sizeof zero); memset(&batch, 0, sizeof batch);
    s = gpts_model_load_memory(&m, data, bytes, hooks);
    memcpy(sentence, m.error, sizeof sentence);
    if (s == GPTS_OK) {
        batch.tokens = tokens; batch.B = 1; batch.T = 2;
        (void)gpts_model_forward(&m, &batch, NULL, NULL);
    } else t_ok(m.parameters == NULL && m.layers == NULL && m.tensors == NULL);
    gpts_model_free(&m);
    return s;
}
static gpts_status load_file(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_file f;
    gpts_status s;
    gpts_real x[8];
    size_t i;
    memset(&f, 0, sizeof f);
    s = gpts_file_open_memory(&f, data, bytes, hooks);
    memcpy(sentence, f.error, sizeof sentence);
    for (i = 0; s == GPTS_OK && i < f.n_tensors; i++)
        if (f.tensors[i].count) (void)gpts_file_read(&f, &f.tensors[i], f.tensors[i].count - 1, 1, x);
    gpts_file_close(&f);
    return s;
}
static gpts_status load_tokenizer(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    static const char text[] = "the cat\xff 12's \xc3\xa9";
    gpts_tokenizer k;
    gpts_status s;
    int32_t ids[64];
    char back[256];
    size_t n = 64, room = sizeof back;
    memset(&k, 0, sizeof k);
    s = gpts_tokenizer_load_memory(&k, data, bytes, hooks);
    memcpy(sentence, k.error, sizeof sentence);
    if (s == GPTS_OK && gpts_tokenizer_encode(&k, text, sizeof text - 1, ids, &n) == GPTS_OK) {
        size_t i;
        for (i = 0; i < n; i++) t_ok(ids[i] >= 0 && ids[i] < k.vocab_size);
        (void)gpts_tokenizer_decode(&k, ids, n, back, &room);
    }
    gpts_tokenizer_free(&k);
    return s;
}
/* Loads by path go through a file. */
static char scratch[100];
static int to_scratch(const unsigned char *data, size_t bytes)
{
    FILE *f = fopen(scratch, "wb");
    int ok = f && (!bytes || fwrite(data, 1, bytes, f) == bytes);
    if (f) ok = !fclose(f) && ok;
    return ok;
}
static gpts_status load_checkpoint(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_model m;
    gpts_trainer t;
    gpts_status s;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    t_ok(to_scratch(data, bytes));
    s = gpts_checkpoint_load(&t, &m, scratch, hooks);
    memcpy(sentence, t.error, sizeof sentence);
    if (s != GPTS_OK) t_ok(m.parameters == NULL && t.gradients == NULL);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return s;
}
static gpts_status load_approximator(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_approximator a;
    gpts_status s;
    memset(&a, 0, sizeof a);
    t_ok(to_scratch(data, bytes));
    s = gpts_approximator_load(&a, scratch, hooks);
    memcpy(sentence, a.error, sizeof sentence);
    gpts_approximator_free(&a);
    return s;
}

/* ---- every cut, every flip ------------------------------------------------------------- */

static void one(loader load, const unsigned char *data, size_t bytes, const char *what, size_t where)
{
    gpts_hooks h = limited();
    gpts_status s;
    sentence[0] = 0;
    s = load(data, bytes, &h);
    if (s != GPTS_OK && !sentence[0]) { printf("  %s %d: status %d without a sentence\n", what, (int)where, (int)s); t_ok(!"sentence"); }
    if (memory.refused) { printf("  %s %d: an allocation out of proportion (%s)\n", what, (int)where, sentence); t_ok(!"allocation"); }
    if (memory.blocks) { printf("  %s %d: %d blocks leaked (%s)\n", what, (int)where, (int)memory.blocks, sentence); t_ok(!"leak"); }
}

/* `dense` bytes at the start take every flip and cut, the rest one in `sparse`. */
static void torment(loader load, const char *path, size_t dense, size_t sparse, int cuts_fail)
{
    char *data = NULL, error[GPTS_ERROR_BYTES];
    unsigned char *copy;
    size_t bytes = 0, i;
    int bit;
    t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
    if (t_state.bad) return;
    snprintf(scratch, sizeof scratch, "build/tests/hostile_%d.tmp", (int)sizeof(gpts_real));
    one(load, (unsigned char *)data, bytes, "whole", 0);
    if (sentence[0]) { printf("  %s: %s\n", path, sentence); t_ok(!"the file itself loads"); }
    for (i = 0; i < bytes && t_state.bad < 5; i += i < dense ? 1 : sparse) {
        copy = (unsigned char *)malloc(i + 1);                  /* exactly as long: tools see a read past the end */
        memcpy(copy, data, i);
        one(load, copy, i, "cut at", i);
        if (cuts_fail && !sentence[0]) { printf("  cut at %d of %d loads\n", (int)i, (int)bytes); t_ok(!"E33: a cut file is an error"); }
        free(copy);
    }
    copy = (unsigned char *)malloc(bytes + 1);
    memcpy(copy, data, bytes);
    for (i = 0; i < bytes && t_state.bad < 5; i += i < dense ? 1 : sparse)
        for (bit = 0; bit < 8; bit++) {
            copy[i] = (unsigned char)(copy[i] ^ 1u << bit);
            one(load, copy, bytes, "flip in", i);
            copy[i] = (unsigned char)(copy[i] ^ 1u << bit);
        }
    free(copy);
    gpts_release(NULL, data);
    remove(scratch);
}

static const model_case tiny =
    { "hostile", 5, 6, 1, 2, 4, 3, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 0,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
static const model_case tiny_static =
    { "hostile_static", 5, 6, 1, 4, 8, 0, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_TANH, 0, 1,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {6,0,0},{1,0,0}, 6,2,0 };

static char made[100];
static void make_model(const model_case *c)
{
    gpts_model m;
    scratch_path(made, sizeof made, "hostile_made");
    t_status(case_model(&m, c, NULL), GPTS_OK);
    if (t_state.bad) { printf("  %s\n", m.error); return; }
    t_status(gpts_model_save(&m, made), GPTS_OK);
    gpts_model_free(&m);
}

static void E32_safetensors_cut_and_flipped(void) { make_model(&tiny); if (!t_state.bad) torment(load_file, made, 2500, 97, 1); remove(made); }
static void E32_models_cut_and_flipped(void) { make_model(&tiny); if (!t_state.bad) torment(load_model, made, 2500, 97, 1); remove(made); }
static void E32_models_with_static_heads_cut_and_flipped(void) { make_model(&tiny_static); if (!t_state.bad) torment(load_model, made, 100000, 1, 1); remove(made); }

static void E32_checkpoints_cut_and_flipped(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_train_options options = gpts_train_options_default();
    case_batch b;
    memset(&t, 0, sizeof t);
    scratch_path(made, sizeof made, "hostile_made");
    case_batch_make(&b, &tiny, 1);
    t_status(case_model(&m, &tiny, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    t_status(gpts_trainer_update(&t, b.tokens, b.targets, tiny.B, tiny.T, NULL), GPTS_OK);
    t_status(gpts_checkpoint_save(&t, made), GPTS_OK);
    gpts_trainer_free(&t); gpts_model_free(&m);
    if (!t_state.bad) torment(load_checkpoint, made, 100, 29, 1);
    remove(made);
}
static void E32_approximators_cut_and_flipped(void)
{
    gpts_approximator a;
    gpts_real block[2 * 4 * 3 + 3 + 3 * 4 + 4];
    size_t i;
    memset(&a, 0, sizeof a);
    scratch_path(made, sizeof made, "hostile_made");
    for (i = 0; i < sizeof block / sizeof block[0]; i++) block[i] = (gpts_real)i;
    a.layer = 1; a.C = 4; a.window = 2; a.hidden = 3;
    a.fc_w = block; a.fc_b = block + 24; a.proj_w = block + 27; a.proj_b = block + 39;
    t_status(gpts_approximator_save(&a, made), GPTS_OK);
    if (!t_state.bad) torment(load_approximator, made, 500, 7, 1);
    remove(made);
}
static void E32_tokenizers_cut_and_flipped(void)
{
    static const char text[] = "the cat sat on the mat, the cat's hat is the cat's hat; \xc3\xa9\xff 123 1234\n\n  the end";
    gpts_tokenizer k;
    memset(&k, 0, sizeof k);
    snprintf(made, sizeof made, "build/tests/hostile_%d.bpe", (int)sizeof(gpts_real));
    t_status(gpts_tokenizer_train(&k, text, sizeof text - 1, 280, NULL), GPTS_OK);
    t_status(gpts_tokenizer_save(&k, made), GPTS_OK);
    gpts_tokenizer_free(&k);
    if (!t_state.bad) torment(load_tokenizer, made, 1500, 61, 0);
    remove(made);
}

/* ---- hand-made lies ----------------------------------------------------------------------- */

static gpts_status load_json(const char *header, size_t data_bytes)
{
    size_t n = strlen(header), i, bytes = 8 + n + data_bytes;
    unsigned char *file = (unsigned char *)calloc(bytes, 1);
    gpts_hooks h = limited();
    gpts_status s;
    for (i = 0; i < 8; i++) file[i] = (unsigned char)(n >> (8 * i));
    memcpy(file + 8, header, n);
    s = load_model(file, bytes, &h);
    t_equal(memory.blocks, 0); t_equal(memory.refused, 0);
    free(file);
    return s;
}
static void E34_sizes_that_overflow_are_refused(void)
{
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0) != GPTS_OK);
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905,1],\"data_offsets\":[0,4]}}", 4) != GPTS_OK);
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,18446744073709551615]}}", 4) != GPTS_OK);
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[18446744073709551612,18446744073709551616]}}", 4) != GPTS_OK);
}
static void E37_settings_without_the_bytes_to_back_them_allocate_nothing(void)
{
    static const char *const settings[] = {
        "{\\\"vocab_size\\\":1000000000,\\\"n_positions\\\":1000000000,\\\"n_layer\\\":1000000000,\\\"n_head\\\":1,\\\"n_embd\\\":1000000000}",
        "{\\\"vocab_size\\\":2,\\\"n_positions\\\":2,\\\"n_layer\\\":2000000000,\\\"n_head\\\":1,\\\"n_embd\\\":2,\\\"position\\\":\\\"none\\\",\\\"norm\\\":\\\"none\\\",\\\"n_inner\\\":0}",
        "{\\\"vocab_size\\\":2,\\\"n_positions\\\":9223372036854775807,\\\"n_layer\\\":1,\\\"n_head\\\":9223372036854775807,\\\"n_embd\\\":9223372036854775807}",
        "{\\\"vocab_size\\\":1e30,\\\"n_positions\\\":2,\\\"n_layer\\\":1,\\\"n_head\\\":1,\\\"n_embd\\\":2}",
        "{\\\"vocab_size\\\":2,\\\"n_positions\\\":-2,\\\"n_layer\\\":1,\\\"n_head\\\":0,\\\"n_embd\\\":2}",
        "{\\\"vocab_size\\\":\\\"2\\\",\\\"n_positions\\\":2,\\\"n_layer\\\":0.5,\\\"n_head\\\":1,\\\"n_embd\\\":2}",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "" };
    char header[1200];
    size_t i;
    for (i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        snprintf(header, sizeof header, "{\"__metadata__\":{\"config\":\"%s\"},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", settings[i]);
        t_ok(load_json(header, 16) != GPTS_OK);
        t_ok(sentence[0] != 0);
    }
}
static void E42_a_layer_number_is_not_wrapped(void)
{
    t_ok(load_json("{\"h.4294967296.ln_1.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 24) != GPTS_OK);
}
static void E36_empty_files_and_zero_sizes(void)
{
    gpts_hooks h = limited();
    static const unsigned char nothing[1] = { 0 };
    t_ok(load_model(nothing, 0, &h) != GPTS_OK);
    t_ok(load_json("{}", 0) != GPTS_OK);
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[0,8],\"data_offsets\":[0,0]}}", 0) != GPTS_OK);
    t_ok(load_json("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[8,0],\"data_offsets\":[0,0]}}", 0) != GPTS_OK);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(E32_safetensors_cut_and_flipped);
    T(E32_models_cut_and_flipped);
    T(E32_models_with_static_heads_cut_and_flipped);
    T(E32_checkpoints_cut_and_flipped);
    T(E32_approximators_cut_and_flipped);
    T(E32_tokenizers_cut_and_flipped);
    T(E34_sizes_that_overflow_are_refused);
    T(E37_settings_without_the_bytes_to_back_them_allocate_nothing);
    T(E42_a_layer_number_is_not_wrapped);
    T(E36_empty_files_and_zero_sizes);
    return t_end();
}

/* hostile.c - files that lie: every sample file cut at every byte and with every bit
   flipped, and hand-made lies.  A load ends in a sentence or in an object that works; it
   never crashes, hangs, or allocates out of proportion (E32 E33 E34 E37 E41 E42 E73).     */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>
#define folder_make(path) mkdir(path, 0777)
#else
#include <direct.h>
#define folder_make(path) _mkdir(path)
#endif
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"
#include "tokenizer_files.h"

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

static gpts_status load_recording(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_recording r;
    gpts_status s;
    memset(&r, 0, sizeof r);
    t_ok(to_scratch(data, bytes));
    s = gpts_recording_load(&r, 1, scratch, hooks);
    memcpy(sentence, r.error, sizeof sentence);
    gpts_recording_free(&r);
    return s;
}
static gpts_status load_tokens(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_tokens t;
    gpts_status s;
    memset(&t, 0, sizeof t);
    t_ok(to_scratch(data, bytes));
    s = gpts_tokens_load(&t, scratch, hooks);
    memcpy(sentence, t.error, sizeof sentence);
    gpts_tokens_free(&t);
    return s;
}
/* what loads must run */
static gpts_status use(gpts_model *m, gpts_status s)
{
    static const int32_t tokens[2] = { 0, 0 };
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    memcpy(sentence, m->error, sizeof sentence);
    batch.tokens = tokens; batch.B = 1; batch.T = 2;
    if (s == GPTS_OK) (void)gpts_model_forward(m, &batch, NULL, NULL);
    else t_ok(m->parameters == NULL && m->layers == NULL && m->tensors == NULL);
    gpts_model_free(m);
    return s;
}
static gpts_status load_by_path(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_model m;
    memset(&m, 0, sizeof m);
    t_ok(to_scratch(data, bytes));
    return use(&m, gpts_model_load(&m, scratch, hooks));
}
/* the bytes are settings, or a map, for the sound model in `guest` */
static char guest[100];
static gpts_status load_with_settings(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_model m;
    memset(&m, 0, sizeof m);
    t_ok(to_scratch(data, bytes));
    return use(&m, gpts_model_load(&m, guest, hooks));
}
static gpts_status load_with_map(const unsigned char *data, size_t bytes, const gpts_hooks *hooks)
{
    gpts_mapping mapping;
    gpts_model m;
    gpts_status s;
    memset(&m, 0, sizeof m); memset(&mapping, 0, sizeof mapping);
    t_ok(to_scratch(data, bytes));
    mapping.map = scratch; mapping.n_head = 2;
    s = gpts_model_load_mapped(&m, guest, &mapping, hooks);
    gpts_release(hooks, mapping.table);
    return use(&m, s);
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

/* `dense` bytes at the start take every flip and cut, the rest one in `sparse`; with
   GPTSTATIC_EVERY=1 in the environment every byte of every file does. */
static void torment_bytes(loader load, const void *bytes_, size_t bytes, size_t dense, size_t sparse, int cuts_fail)
{
    const unsigned char *data = (const unsigned char *)bytes_;
    unsigned char *copy;
    size_t i;
    int bit;
    if (getenv("GPTSTATIC_EVERY")) dense = bytes;
    one(load, data, bytes, "whole", 0);
    if (sentence[0]) { printf("  %s\n", sentence); t_ok(!"the file itself loads"); }
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
    remove(scratch);
}
static void scratch_is(const char *name) { snprintf(scratch, sizeof scratch, "build/tests/%s", name); }
static void torment(loader load, const char *path, size_t dense, size_t sparse, int cuts_fail)
{
    char *data = NULL, error[GPTS_ERROR_BYTES];
    size_t bytes = 0;
    t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
    if (t_state.bad) return;
    scratch_is("hostile.tmp");
    torment_bytes(load, data, bytes, dense, sparse, cuts_fail);
    gpts_release(NULL, data);
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

static void E32_E33_safetensors_cut_and_flipped(void) { make_model(&tiny); if (!t_state.bad) torment(load_file, made, 2500, 97, 1); remove(made); }
static void E32_E33_models_cut_and_flipped(void) { make_model(&tiny); if (!t_state.bad) torment(load_model, made, 2500, 97, 1); remove(made); }
static void E32_E33_models_with_static_heads_cut_and_flipped(void) { make_model(&tiny_static); if (!t_state.bad) torment(load_model, made, 100000, 1, 1); remove(made); }

static void E32_E33_checkpoints_cut_and_flipped(void)
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
static void E32_E33_approximators_cut_and_flipped(void)
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

static void E32_small_tokenizer_files_cut_and_flipped(void)
{
    static char text[8192];
    gpts_tokenizer k;
    torment_bytes(load_tokenizer, merges_file, sizeof merges_file - 1, 10000, 1, 0);
    torment_bytes(load_tokenizer, wordpiece_file, sizeof wordpiece_file - 1, 10000, 1, 0);
    torment_bytes(load_tokenizer, text, ids_file(text, sizeof text, 1), 300, 19, 0);
    torment_bytes(load_tokenizer, text, ranks_file(text, sizeof text), 40, 37, 0);
    memset(&k, 0, sizeof k);
    scratch_path(made, sizeof made, "hostile_chars");
    t_status(gpts_tokenizer_chars(&k, "the cat's \xc3\xa9\xff", 12, NULL), GPTS_OK);
    t_status(gpts_tokenizer_save(&k, made), GPTS_OK);
    gpts_tokenizer_free(&k);
    if (!t_state.bad) torment(load_tokenizer, made, 10000, 1, 0);
    remove(made);
}
static void E32_E33_recordings_cut_and_flipped(void)
{
    gpts_recording r;
    gpts_real x[12], y[12];
    size_t i;
    memset(&r, 0, sizeof r);
    for (i = 0; i < 12; i++) { x[i] = (gpts_real)i; y[i] = (gpts_real)-(double)i; }
    r.layer = 1; r.n_sequences = 2; r.T = 3; r.C = 2; r.x = x; r.y = y;
    scratch_path(made, sizeof made, "hostile_made");
    t_status(gpts_recording_save(&r, 1, made), GPTS_OK);
    if (!t_state.bad) torment(load_recording, made, 10000, 1, 1);
    remove(made);
}
static void E32_token_files_cut_and_flipped(void)
{
    unsigned char plain[40], llmc[1024 + 40];
    size_t i;
    memset(llmc, 0, sizeof llmc);
    for (i = 0; i < 40; i++) plain[i] = llmc[1024 + i] = (unsigned char)(i % 2 ? 0 : i);
    llmc[0] = 0x88; llmc[1] = 0xD8; llmc[2] = 0x34; llmc[3] = 1; llmc[4] = 1; llmc[8] = 20;      /* 20240520, 1, 20 tokens */
    scratch_is("hostile.bin");
    torment_bytes(load_tokens, plain, sizeof plain, 10000, 1, 0);
    torment_bytes(load_tokens, llmc, sizeof llmc, 12, 41, 0);
}
static void E32_E33_llm_c_files_cut_and_flipped(void)
{
    enum { C = 4, V = 5, P = 6, COUNT = C * (V + P + 2) + C * (12 * C + 13) };
    static const uint32_t head[8] = { 20240326, 3, P, V, 1, 2, C, V };
    static unsigned char file[1024 + 4 * COUNT];
    size_t i;
    for (i = 0; i < 32; i++) file[i] = (unsigned char)(head[i / 4] >> (8 * (i % 4)));
    for (i = 1024; i < sizeof file; i++) file[i] = (unsigned char)(i % 2 ? 0x3D : i * 7);
    scratch_is("hostile.bin");
    torment_bytes(load_by_path, file, sizeof file, 64, 31, 1);
}
static void write_guest(int mapped)
{
    static const model_case c =
        { "hostile_guest", 5, 6, 1, 2, 4, -1, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 1,
          1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
    gpts_config config = gpts_config_attention_only(1, 2, 4);
    gpts_model m;
    folder_make("build/tests/hostile_guest");
    snprintf(guest, sizeof guest, "build/tests/hostile_guest/model.safetensors");
    config.vocab_size = 5; config.n_positions = 6;
    if (mapped) { memset(&m, 0, sizeof m); t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK); t_status(gpts_model_save_mapped(&m, guest, NULL, NULL), GPTS_OK); }
    else { t_status(case_model(&m, &c, NULL), GPTS_OK); t_status(gpts_model_export(&m, guest, GPTS_F32), GPTS_OK); }
    gpts_model_free(&m);
    remove("build/tests/hostile_guest/config.json");
}
static void E32_settings_maps_and_indices_cut_and_flipped(void)
{
    static const char settings[] = "{\"vocab_size\":5,\"n_positions\":6,\"n_layer\":1,\"n_head\":2,\"n_embd\":4,\"n_inner\":null,\"activation_function\":\"gelu_new\","
                                   "\"layer_norm_epsilon\":1e-05,\"tie_word_embeddings\":true,\"scale_attn_weights\":true}";
    static const char map[] = "{\"{*}layers.{i}.{*}q_proj.weight\":\"h.{i}.attn.q.weight [out,in]\",\"lm_head.weight\":\"lm_head.weight\","
                              "\"@config\":{\"num_attention_heads\":2,\"position\":\"none\"}}";
    static const char index[] = "{\"metadata\":{},\"weight_map\":{\"embed_tokens.weight\":\"model.safetensors\"}}";
    write_guest(0);
    scratch_is("hostile_guest/config.json");
    if (!t_state.bad) torment_bytes(load_with_settings, settings, sizeof settings - 1, 10000, 1, 0);
    write_guest(1);
    scratch_is("hostile_guest/map.json");
    if (!t_state.bad) torment_bytes(load_with_map, map, sizeof map - 1, 10000, 1, 0);
    scratch_is("hostile_guest/model.safetensors.index.json");
    if (!t_state.bad) {                                        /* no model comes of this one tensor, but nothing worse either */
        size_t i;
        for (i = 0; i < 8 * (sizeof index - 1); i++) {
            char copy[sizeof index];
            memcpy(copy, index, sizeof copy);
            copy[i / 8] = (char)(copy[i / 8] ^ 1 << i % 8);
            one(load_by_path, (unsigned char *)copy, sizeof index - 1, "flip in", i / 8);
            t_ok(sentence[0] != 0);
        }
        remove(scratch);
    }
    remove(guest);
    remove("build/tests/hostile_guest");
}

/* ---- hand-made lies ----------------------------------------------------------------------- */

static gpts_status load_json(const char *header, size_t data_bytes)
{
    size_t n = strlen(header), i, bytes = 8 + n + data_bytes;
    unsigned char *file = (unsigned char *)calloc(bytes, 1);
    gpts_hooks h = limited();
    gpts_status s;
    for (i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> 8 * i);
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


/* A file of this header, then `data`, opened; the status. */
static gpts_status open_json(gpts_file *f, unsigned char *file, const char *header, const void *data, size_t data_bytes)
{
    size_t n = strlen(header), i;
    for (i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, data, data_bytes);
    memset(f, 0, sizeof *f);
    return gpts_file_open_memory(f, file, 8 + n + data_bytes, NULL);
}
static const unsigned char one_and_two[8] = { 0, 0, 0x80, 0x3F, 0, 0, 0, 0x40 };
static void E35_sizes_just_within_the_bounds_are_accepted(void)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387903,0],\"data_offsets\":[0,0]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2,1],\"data_offsets\":[0,8]}}";
    gpts_file f;
    unsigned char file[400];
    t_ok(gptsi_mul(SIZE_MAX / 3, 3) == SIZE_MAX / 3 * 3 && gptsi_mul(SIZE_MAX / 3 + 1, 3) == SIZE_MAX);
    t_ok(gptsi_mul(0, SIZE_MAX) == 0 && gptsi_mul(SIZE_MAX, 0) == 0 && gptsi_mul(SIZE_MAX, 1) == SIZE_MAX);
    t_ok(gptsi_add(SIZE_MAX - 1, 1) == SIZE_MAX && gptsi_add(SIZE_MAX, 1) == SIZE_MAX && gptsi_add(3, 4) == 7);
    t_status(open_json(&f, file, header, one_and_two, 8), GPTS_OK);
    t_equal(f.tensors[0].count + f.tensors[1].count, 2);
    gpts_file_close(&f);
}
/* One reader: what is refused from memory is refused from a file, in the same words. */
static void E38_E39_memory_and_file_are_judged_alike(void)
{
    char *data = NULL, error[GPTS_ERROR_BYTES];
    size_t bytes = 0, i;
    make_model(&tiny);
    t_status(gpts_read_file(made, &data, &bytes, NULL, error), GPTS_OK);
    if (t_state.bad) return;
    scratch_is("hostile.tmp");
    for (i = 0; i < bytes && i < 2000; i += 7) {
        gpts_file a, b;
        gpts_status s;
        memset(&a, 0, sizeof a); memset(&b, 0, sizeof b);
        data[i] = (char)(data[i] ^ 1 << i % 8);
        to_scratch((unsigned char *)data, bytes);
        s = gpts_file_open_memory(&a, data, bytes, NULL);
        t_status(gpts_file_open(&b, scratch, NULL), s);
        if (t_state.bad) printf("  %d: %s, %s\n", (int)i, a.error, b.error);
        t_equal(a.n_tensors, b.n_tensors);
        t_ok((a.error[0] != 0) == (s != GPTS_OK) && (b.error[0] != 0) == (s != GPTS_OK));
        gpts_file_close(&a); gpts_file_close(&b);
        data[i] = (char)(data[i] ^ 1 << i % 8);
    }
    gpts_release(NULL, data);
    remove(made); remove(scratch);
}
static void E40_overlaps_holes_twins_and_rests_are_refused(void)
{
    static const struct { const char *header, *says; } lies[] = {
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "a" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "a" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "" } };
    gpts_file f;
    unsigned char file[400];
    size_t i;
    for (i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        t_ok(open_json(&f, file, lies[i].header, one_and_two, 8) != GPTS_OK);
        t_says(f.error, lies[i].says);
        t_ok(f.error[0] != 0 && f.tensors == NULL);
        gpts_file_close(&f);
    }
}
static void E43_E45_bytes_are_little_endian_wherever_they_lie(void)
{
    static const char header[] = "{\"i\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[4,8]},\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";
    static const unsigned char data[8] = { 0, 0, 0x80, 0xBF, 0xFE, 0xFF, 0xFF, 0xFF };            /* -1 and -2 */
    unsigned char file[400];
    char error[GPTS_ERROR_BYTES], *back;
    size_t shift, bytes;
    for (shift = 0; shift < 8; shift++) {
        gpts_file f;
        gpts_real x = 0;
        int32_t k = 0;
        t_status(open_json(&f, file + shift, header, data, sizeof data), GPTS_OK);
        t_status(gpts_file_read(&f, gpts_file_find(&f, "x"), 0, 1, &x), GPTS_OK);
        t_status(gpts_file_read_i32(&f, gpts_file_find(&f, "i"), 0, 1, &k), GPTS_OK);
        t_ok(x == -1 && k == -2);
        gpts_file_close(&f);
    }
    {
        gpts_file_entry e;
        gpts_real x = -1;
        memset(&e, 0, sizeof e);
        e.name = "x"; e.dtype = GPTS_F32; e.data = &x;
        scratch_is("hostile.tmp");
        t_status(gpts_file_write(scratch, &e, 1, NULL, 0, NULL, error), GPTS_OK);
        t_status(gpts_read_file(scratch, &back, &bytes, NULL, error), GPTS_OK);
        if (!t_state.bad) t_bits(back + bytes - 4, data, 4);
        gpts_release(NULL, back);
        remove(scratch);
    }
}
static void E26_each_object_keeps_its_own_sentence(void)
{
    gpts_model a, b;
    gpts_file f;
    static const unsigned char junk[20] = { 1 };
    char before[GPTS_ERROR_BYTES];
    memset(&a, 0, sizeof a); memset(&b, 0, sizeof b); memset(&f, 0, sizeof f);
    t_ok(gpts_model_load(&a, "build/tests/not_there_a", NULL) != GPTS_OK);
    memcpy(before, a.error, sizeof before);
    t_says(a.error, "not_there_a");
    t_ok(gpts_model_load(&b, "build/tests/not_there_b", NULL) != GPTS_OK);
    t_ok(gpts_file_open_memory(&f, junk, sizeof junk, NULL) != GPTS_OK);
    t_says(b.error, "not_there_b");
    t_text(a.error, before);
    t_ok(f.error[0] != 0 && strcmp(f.error, b.error));
    gpts_file_close(&f); gpts_model_free(&a); gpts_model_free(&b);
}
static void E44_another_version_is_told(void)
{
    static const char *const versions[] = { "1", "2", "99", "" };
    gpts_real x[12];
    size_t i;
    memset(x, 0, sizeof x);
    scratch_is("hostile.tmp");
    for (i = 0; i < 4; i++) {
        gpts_file_pair pairs[3];
        gpts_file_entry e[4];
        gpts_model m;
        gpts_approximator a;
        gpts_recording r;
        gpts_status expected = i ? GPTS_UNSUPPORTED : GPTS_OK;
        char error[GPTS_ERROR_BYTES] = "";
        memset(e, 0, sizeof e); memset(&m, 0, sizeof m); memset(&a, 0, sizeof a); memset(&r, 0, sizeof r);
        pairs[0].key = "format_version"; pairs[0].value = versions[i];
        pairs[1].key = "config"; pairs[1].value = "{\"vocab_size\":2,\"n_positions\":2,\"n_layer\":0,\"n_head\":1,\"n_embd\":2,\"position\":\"none\",\"norm\":\"none\",\"n_inner\":0,\"tie_word_embeddings\":true}";
        e[0].name = "wte.weight"; e[0].dtype = GPTS_F32; e[0].rank = 2; e[0].shape[0] = e[0].shape[1] = 2; e[0].data = x;
        t_status(gpts_file_write(scratch, e, 1, pairs, 2, NULL, error), GPTS_OK);
        t_status(gpts_model_load(&m, scratch, NULL), expected);
        if (i) { t_says(m.error, "version"); t_says(m.error, versions[i]); }
        gpts_model_free(&m);
        e[0].name = "approx.c_fc.weight"; e[1] = e[2] = e[3] = e[0];
        e[1].name = "approx.c_proj.weight"; e[2].name = "approx.c_fc.bias"; e[3].name = "approx.c_proj.bias";
        e[2].rank = e[3].rank = 1;
        t_status(gpts_file_write(scratch, e, 4, pairs, 1, NULL, error), GPTS_OK);
        t_status(gpts_approximator_load(&a, scratch, NULL), expected);
        if (i) t_says(a.error, "version");
        gpts_approximator_free(&a);
        e[0].name = "0.x"; e[1].name = "0.y"; e[0].rank = e[1].rank = 3; e[0].shape[2] = e[1].shape[2] = 3; e[1].shape[0] = e[1].shape[1] = 2;
        t_status(gpts_file_write(scratch, e, 2, pairs, 1, NULL, error), GPTS_OK);
        t_status(gpts_recording_load(&r, 0, scratch, NULL), expected);
        if (i) t_says(r.error, "version");
        gpts_recording_free(&r);
    }
    remove(scratch);
}
static void E73_legal_oddities_are_accepted(void)
{
    static const char header[] = "{ \"z\" : {\"data_offsets\":[4,8], \"shape\":[ 1 , 1 ],\"dtype\":\"F32\"},\n\"__metadata__\":{},"
                                 "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[8,8]},\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ";
    gpts_file f;
    unsigned char file[600];
    t_status(open_json(&f, file, header, one_and_two, 8), GPTS_OK);
    if (!t_state.bad) t_equal(f.n_tensors, 3);
    gpts_file_close(&f);
    t_status(open_json(&f, file, "{}", one_and_two, 0), GPTS_OK);
    gpts_file_close(&f);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(E26_each_object_keeps_its_own_sentence);
    T(E32_small_tokenizer_files_cut_and_flipped);
    T(E32_E33_recordings_cut_and_flipped);
    T(E32_token_files_cut_and_flipped);
    T(E32_E33_llm_c_files_cut_and_flipped);
    T(E32_settings_maps_and_indices_cut_and_flipped);
    T(E35_sizes_just_within_the_bounds_are_accepted);
    T(E38_E39_memory_and_file_are_judged_alike);
    T(E40_overlaps_holes_twins_and_rests_are_refused);
    T(E43_E45_bytes_are_little_endian_wherever_they_lie);
    T(E44_another_version_is_told);
    T(E73_legal_oddities_are_accepted);
    T(E32_E33_safetensors_cut_and_flipped);
    T(E32_E33_models_cut_and_flipped);
    T(E32_E33_models_with_static_heads_cut_and_flipped);
    T(E32_E33_checkpoints_cut_and_flipped);
    T(E32_E33_approximators_cut_and_flipped);
    T(E32_tokenizers_cut_and_flipped);
    T(E34_sizes_that_overflow_are_refused);
    T(E37_settings_without_the_bytes_to_back_them_allocate_nothing);
    T(E42_a_layer_number_is_not_wrapped);
    T(E36_empty_files_and_zero_sizes);
    return t_end();
}

/* io.c - files: safetensors, models in their several dialects, checkpoints, approximators,
   recordings, tokens.  Kills and full disks are in kill.c, failing memory in oom.c, cut and
   flipped bytes in hostile.c, the format's own cases in safetensors.c.                     */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include <locale.h>
#include "test.h"
#include "models.h"

#define IS_DOUBLE (sizeof(gpts_real) == 8)
static char path_of[2][160];
static const char *scratch(const char *name) { scratch_path(path_of[0], sizeof path_of[0], name); return path_of[0]; }

/* ---- small helpers ------------------------------------------------------------------ */

/* A file in memory from its JSON and its buffer. */
static size_t file_make(unsigned char *to, const char *json, const void *data, size_t bytes)
{
    size_t n = strlen(json), i;
    for (i = 0; i < 8; i++) to[i] = (unsigned char)((uint64_t)n >> 8 * i);
    memcpy(to + 8, json, n);
    if (bytes) memcpy(to + 8 + n, data, bytes);
    return 8 + n + bytes;
}

/* A model file in the making: tensors by name, each with its own memory. */
enum { MOST = 128 };
typedef struct maker {
    gpts_file_entry entries[MOST]; char names[MOST][96]; void *owned[MOST]; size_t n;
    gpts_file_pair metadata[4]; size_t n_metadata;
} maker;
static maker made;

static gpts_real *made_reals(const char *name, size_t rank, size_t rows, size_t columns)
{
    gpts_file_entry *e = &made.entries[made.n];
    size_t count = rows * (rank > 1 ? columns : 1);
    gpts_real *x = (gpts_real *)calloc(count + 1, sizeof *x);
    snprintf(made.names[made.n], sizeof made.names[0], "%s", name);
    memset(e, 0, sizeof *e);
    e->name = made.names[made.n]; e->dtype = GPTS_F32; e->rank = rank;
    e->shape[0] = rows; e->shape[1] = columns;
    e->data = x;
    made.owned[made.n++] = x;
    return x;
}
static void made_integers(const char *name, size_t count, const int32_t *values)
{
    int32_t *x = (int32_t *)(void *)made_reals(name, 1, count * 2, 1);
    memcpy(x, values, count * sizeof *x);
    made.entries[made.n - 1].dtype = GPTS_I32;
    made.entries[made.n - 1].shape[0] = count;
}
static gpts_file_entry *made_entry(const char *name)
{
    size_t i;
    for (i = 0; i < made.n; i++) if (!strcmp(made.names[i], name)) return &made.entries[i];
    t_fail(__FILE__, __LINE__, name);
    return &made.entries[0];
}
static void made_drop(const char *name)
{
    size_t i = (size_t)(made_entry(name) - made.entries);
    free(made.owned[i]);
    made.n--;
    for (; i < made.n; i++) {
        made.entries[i] = made.entries[i + 1]; made.owned[i] = made.owned[i + 1];
        memcpy(made.names[i], made.names[i + 1], sizeof made.names[i]);
        made.entries[i].name = made.names[i];
    }
}
static void made_free(void)
{
    size_t i;
    for (i = 0; i < made.n; i++) free(made.owned[i]);
    memset(&made, 0, sizeof made);
}
static void made_metadata(const char *key, const char *value)
{
    made.metadata[made.n_metadata].key = key;
    made.metadata[made.n_metadata++].value = value;
}
/* Every tensor of m as prefix + name; linear weights turned to [out,in] if so asked. */
static void made_model(const gpts_model *m, const char *prefix, int turned)
{
    size_t k, r, c;
    for (k = 0; k < m->n_tensors; k++) {
        const gpts_tensor *t = &m->tensors[k];
        int turn = turned && strstr(t->name, ".c_") && t->rank == 2;
        char name[96];
        gpts_real *x;
        snprintf(name, sizeof name, "%s%s", prefix, t->name);
        x = made_reals(name, t->rank, turn ? t->columns : t->rows, turn ? t->rows : t->columns);
        for (r = 0; r < t->rows; r++) for (c = 0; c < t->columns; c++)
            x[turn ? c * t->rows + r : r * t->columns + c] = t->data[r * t->columns + c];
    }
}
static gpts_status made_load(gpts_model *m, const char *name)
{
    char error[GPTS_ERROR_BYTES] = "";
    const char *path = scratch(name);
    gpts_status status = gpts_file_write(path, made.entries, made.n, made.metadata, made.n_metadata, NULL, error);
    memset(m, 0, sizeof *m);
    if (status != GPTS_OK) { t_fail(__FILE__, __LINE__, error); return status; }
    status = gpts_model_load(m, path, NULL);
    remove(path);
    return status;
}
/* Loading what was made must fail with this status and say this. */
static void made_refused(gpts_status expected, const char *says)
{
    gpts_model m;
    t_status(made_load(&m, "io_refused"), expected);
    t_says(m.error, says);
    t_says(m.error, "io_refused");                                /* names the file */
    t_ok(m.tensors == NULL && m.parameters == NULL && m.layers == NULL);
    gpts_model_free(&m);
}

static void plain_model(gpts_model *m, int64_t V, int64_t C, int64_t H, int tied)
{
    gpts_config config = gpts_config_default();
    config.vocab_size = V; config.n_positions = 16; config.n_layer = 2; config.n_head = H; config.n_embd = C;
    config.tie_word_embeddings = tied;
    memset(m, 0, sizeof *m);
    t_status(gpts_model_init(m, &config, 3, NULL), GPTS_OK);
    randomise(m, 9);
}
static gpts_real as_float(gpts_real x) { return (gpts_real)(float)x; }
static void round_to_float(gpts_model *m)                         /* what a file of F32 keeps */
{
    size_t k, i;
    for (k = 0; k < m->n_tensors; k++) for (i = 0; i < m->tensors[k].size; i++) m->tensors[k].data[i] = as_float(m->tensors[k].data[i]);
}

static void same_models(const gpts_model *a, const gpts_model *b)
{
    size_t k;
    t_equal(a->n_tensors, b->n_tensors);
    t_bits(&a->config.vocab_size, &b->config.vocab_size, 5 * sizeof(int64_t));
    t_equal(gptsi_inner(&a->config), gptsi_inner(&b->config));
    t_equal(a->config.activation, b->config.activation); t_equal(a->config.approx_activation, b->config.approx_activation);
    t_equal(a->config.position, b->config.position); t_equal(a->config.norm, b->config.norm);
    t_equal(a->config.bias, b->config.bias); t_equal(a->config.tie_word_embeddings, b->config.tie_word_embeddings);
    t_equal(a->config.unscaled_scores, b->config.unscaled_scores);
    t_bits(&a->config.layer_norm_epsilon, &b->config.layer_norm_epsilon, sizeof(double));
    t_bits(&a->config.rope_theta, &b->config.rope_theta, sizeof(double));
    for (k = 0; k < a->n_tensors && k < b->n_tensors; k++) {
        t_text(a->tensors[k].name, b->tensors[k].name);
        t_equal(a->tensors[k].size, b->tensors[k].size);
        if (!t_state.bad) t_bits(a->tensors[k].data, b->tensors[k].data, a->tensors[k].size * sizeof(gpts_real));
    }
}
static void same_logits(gpts_model *a, gpts_model *b, size_t T)
{
    static int32_t tokens[64];
    size_t V = (size_t)a->config.vocab_size, i;
    gpts_real *x = (gpts_real *)calloc(T * V, sizeof *x), *y = (gpts_real *)calloc(T * V, sizeof *y);
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    for (i = 0; i < T; i++) tokens[i] = (int32_t)(7 * i % V);
    batch.tokens = tokens; batch.B = 1; batch.T = T;
    t_status(gpts_model_forward(a, &batch, x, NULL), GPTS_OK);
    t_status(gpts_model_forward(b, &batch, y, NULL), GPTS_OK);
    t_bits(x, y, T * V * sizeof *x);
    free(x);
    free(y);
}

/* ---- numbers --------------------------------------------------------------------------- */

static void halves_keep_every_value(void)
{
    uint32_t h, bad = 0;
    for (h = 0; h < 65536; h++) {
        double x = gptsi_from_f16(h), y = (double)gptsi_float(h << 16);
        bad += x == x ? gptsi_to_f16(x) != h : (h & 0x7C00) != 0x7C00 || gptsi_from_f16(gptsi_to_f16(x)) == 0;
        bad += y == y ? gptsi_to_bf16(y) != h : (gptsi_to_bf16(y) & 0x7F80) != 0x7F80 || !(gptsi_to_bf16(y) & 0x7F);
    }
    t_equal(bad, 0);
    t_close(gptsi_from_f16(0x3C00), 1, 0);
    t_close(gptsi_from_f16(0xC000), -2, 0);
    t_close(gptsi_from_f16(0x7BFF), 65504, 0);
    t_close(gptsi_from_f16(0x0001), ldexp(1, -24), 0);
    t_close(gptsi_from_f16(0x0400), ldexp(1, -14), 0);
}

/* Nearest, ties to even: between each pair of neighbours, the middle and a bit to each side. */
static void halves_round_to_nearest_even(void)
{
    uint32_t h, bad = 0;
    for (h = 0; h < 0x7BFF; h++) {
        double a = gptsi_from_f16(h), b = gptsi_from_f16(h + 1), middle = (a + b) / 2;
        double c = (double)gptsi_float(h << 16), d = (double)gptsi_float((h + 1) << 16), centre = (c + d) / 2;
        uint32_t even = h & 1 ? h + 1 : h;
        bad += gptsi_to_f16(middle) != even || gptsi_to_f16(-middle) != (even | 0x8000);
        bad += gptsi_to_f16(middle * (1 - 1e-15)) != h || gptsi_to_f16(middle * (1 + 1e-15)) != h + 1;   /* as doubles: one rounding */
        if (h >= 0x80 && h < 0x7F7F) {
            bad += gptsi_to_bf16(centre) != even;
            bad += gptsi_to_bf16(centre * (1 - 1e-15)) != h || gptsi_to_bf16(centre * (1 + 1e-15)) != h + 1;
        }
    }
    t_equal(bad, 0);
    t_equal(gptsi_to_f16(65519.996), 0x7BFF);
    t_equal(gptsi_to_f16(65520), 0x7C00);
    t_equal(gptsi_to_f16(1e300), 0x7C00);
    t_equal(gptsi_to_f16(ldexp(1, -25)), 0);
    t_equal(gptsi_to_f16(ldexp(1.0000001, -25)), 1);
    t_equal(gptsi_to_bf16(-1e300), 0xFF80);
}

/* ---- the format -------------------------------------------------------------------------- */

/* The two small files that the reference writer's tests fix. */
static void the_writer_gives_the_reference_bytes(void)
{
    static const char expected[] = "@\0\0\0\0\0\0\0{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}"
        "\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@";
    gpts_real values[6] = { 0, 1, 2, 3, 4, 5 };
    gpts_file_entry e;
    char error[GPTS_ERROR_BYTES] = "", *data;
    const char *path = scratch("io_writer");
    size_t bytes;
    memset(&e, 0, sizeof e);
    e.name = "attn.0"; e.dtype = GPTS_F32; e.rank = 3; e.shape[0] = 1; e.shape[1] = 2; e.shape[2] = 3; e.data = values;
    t_status(gpts_file_write(path, &e, 1, NULL, 0, NULL, error), GPTS_OK);
    t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
    t_equal(bytes, 96);
    if (bytes == 96) t_bits(data, expected, 96);
    gpts_release(NULL, data);
    e.name = "attn0"; e.rank = 4; e.shape[1] = 1; e.shape[2] = 2; e.shape[3] = 3;
    t_status(gpts_file_write(path, &e, 1, NULL, 0, NULL, error), GPTS_OK);
    t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
    t_equal(bytes, 8 + 72 + 24);
    t_equal(data[0], 72);
    if (bytes == 104) t_bits(data + 8 + 65, "       ", 7);
    gpts_release(NULL, data);
    remove(path);
}

static void what_is_written_is_read_back(void)
{
    static const gpts_dtype types[] = { GPTS_F32, GPTS_F16, GPTS_BF16, GPTS_F32 };
    static const char *const names[] = { "b", "a/\"quoted\"\\", "z\xC3\xA9\n", "empty" };
    gpts_real values[3][1000], back[1000];
    int32_t integers[3] = { -5, 0, 2147483647 }, numbers[3];
    int64_t wide = -4000000000;
    double real = 0.1;
    gpts_file_entry e[7];
    gpts_file_pair pairs[2] = { { "format", "pt" }, { "k\"\t", "\xE2\x82\xAC \\ \n" } };
    gpts_file file;
    char error[GPTS_ERROR_BYTES] = "";
    const char *path = scratch("io_round");
    size_t i, k;
    gpts_rng rng = { 4, 0 };
    memset(e, 0, sizeof e);
    for (k = 0; k < 4; k++) {
        e[k].name = names[k]; e[k].dtype = types[k]; e[k].rank = 2; e[k].shape[0] = k == 3 ? 0 : 250; e[k].shape[1] = 4; e[k].data = values[k % 3];
        for (i = 0; i < 1000 && k < 3; i++) {
            double x = gpts_rng_normal(&rng);
            values[k][i] = (gpts_real)(k == 0 ? (double)(float)x : k == 1 ? gptsi_from_f16(gptsi_to_f16(x)) : (double)gptsi_float(gptsi_to_bf16(x) << 16));
        }
    }
    e[4].name = "integers"; e[4].dtype = GPTS_I32; e[4].rank = 1; e[4].shape[0] = 3; e[4].data = integers;
    e[5].name = "wide"; e[5].dtype = GPTS_I64; e[5].data = &wide;
    e[6].name = "real"; e[6].dtype = GPTS_F64; e[6].data = &real;
    t_status(gpts_file_write(path, e, 7, pairs, 2, NULL, error), GPTS_OK);
    t_status(gpts_file_open(&file, path, NULL), GPTS_OK);
    t_equal(file.n_tensors, 7);
    t_equal(file.data_offset % 8, 0);
    for (i = 1; i < file.n_tensors; i++)                          /* the reference's order: type descending, then name */
        t_ok(file.tensors[i - 1].dtype > file.tensors[i].dtype || (file.tensors[i - 1].dtype == file.tensors[i].dtype &&
             strcmp(file.tensors[i - 1].name, file.tensors[i].name) < 0));
    for (k = 0; k < 3; k++) {
        const gpts_file_tensor *t = gpts_file_find(&file, names[k]);
        t_ok(t && t->dtype == types[k] && t->rank == 2 && t->shape[0] == 250 && t->count == 1000);
        if (!t) continue;
        t_status(gpts_file_read(&file, t, 0, 1000, back), GPTS_OK);
        t_bits(back, values[k], sizeof back);
        t_status(gpts_file_read(&file, t, 990, 10, back), GPTS_OK);
        t_bits(back, values[k] + 990, 10 * sizeof(gpts_real));
        t_status(gpts_file_read(&file, t, 990, 11, back), GPTS_BAD_ARGUMENT);
        t_status(gpts_file_read(&file, t, UINT64_MAX, 2, back), GPTS_BAD_ARGUMENT);
        t_status(gpts_file_read_i32(&file, t, 0, 1, numbers), GPTS_UNSUPPORTED);
    }
    t_status(gpts_file_read_i32(&file, gpts_file_find(&file, "integers"), 0, 3, numbers), GPTS_OK);
    t_bits(numbers, integers, sizeof numbers);
    t_status(gpts_file_read_i32(&file, gpts_file_find(&file, "wide"), 0, 1, numbers), GPTS_BAD_FILE);
    t_says(file.error, "-4000000000");
    t_status(gpts_file_read(&file, gpts_file_find(&file, "real"), 0, 1, back), GPTS_OK);
    t_close(back[0], (gpts_real)0.1, 0);
    t_ok(gpts_file_find(&file, "empty") && gpts_file_find(&file, "empty")->count == 0);
    t_ok(!gpts_file_find(&file, "nothing") && !gpts_file_metadata(&file, "nothing"));
    t_text(gpts_file_metadata(&file, "format"), "pt");
    t_text(gpts_file_metadata(&file, "k\"\t"), pairs[1].value);
    gpts_file_close(&file);
    gpts_file_close(&file);
    remove(path);
}

static void the_writer_refuses_what_it_could_not_read(void)
{
    gpts_real x = 1;
    gpts_file_entry e[2];
    gpts_file_pair pairs[2] = { { "a", "b" }, { "a", "c" } };
    char error[GPTS_ERROR_BYTES] = "";
    const char *path = scratch("io_never");
    memset(e, 0, sizeof e);
    e[0].name = e[1].name = "same"; e[0].dtype = e[1].dtype = GPTS_F32; e[0].data = e[1].data = &x;
    t_status(gpts_file_write(path, e, 2, NULL, 0, NULL, error), GPTS_BAD_ARGUMENT);
    t_says(error, "'same' is there twice");
    t_status(gpts_file_write(path, e, 1, pairs, 2, NULL, error), GPTS_BAD_ARGUMENT);
    e[0].name = "\xFF\x1b";
    t_status(gpts_file_write(path, e, 1, NULL, 0, NULL, error), GPTS_BAD_ARGUMENT);
    t_says(error, "\\xff\\x1b");
    e[0].name = "__metadata__";
    t_status(gpts_file_write(path, e, 1, NULL, 0, NULL, error), GPTS_BAD_ARGUMENT);
    e[0].name = "huge"; e[0].rank = 2; e[0].shape[0] = e[0].shape[1] = (uint64_t)1 << 40;
    t_status(gpts_file_write(path, e, 1, NULL, 0, NULL, error), GPTS_BAD_ARGUMENT);
    e[0].rank = 0; e[0].dtype = GPTS_U8;
    t_status(gpts_file_write(path, e, 1, NULL, 0, NULL, error), GPTS_UNSUPPORTED);
    t_status(gpts_file_write(path, e, 1, NULL, 0, NULL, NULL), GPTS_UNSUPPORTED);      /* no sentence wanted */
    t_status(gpts_file_write("build/tests/no/such/folder/x", e, 0, NULL, 0, NULL, error), GPTS_IO);
    t_says(error, "there is no such file or folder");
    t_status(gpts_file_write("", e, 0, NULL, 0, NULL, error), GPTS_BAD_ARGUMENT);
    t_ok(fopen(path, "rb") == NULL);
}

static void E41_names_keep_their_zero_bytes(void)
{
    unsigned char bytes[400];
    static const unsigned char data[8] = { 0, 0, 0x80, 0x3F, 0, 0, 0, 0x40 };       /* 1, 2 */
    gpts_real x;
    gpts_file file;
    size_t n = file_make(bytes, "{\"__metadata__\":{\"config\":\"{}\",\"config\\u0000x\":\"no\",\"z\":\"a\\u0000b\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]},\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", data, 8);
    t_status(gpts_file_open_memory(&file, bytes, n, NULL), GPTS_OK);
    t_equal(file.n_tensors, 2);
    t_equal(file.tensors[1].name_bytes, 3);
    t_bits(file.tensors[1].name, "a\0b", 4);
    t_ok(gpts_file_find(&file, "a") == &file.tensors[0]);
    t_status(gpts_file_read(&file, gpts_file_find(&file, "a"), 0, 1, &x), GPTS_OK);
    t_close(x, 2, 0);
    t_equal(file.n_metadata, 1);                                   /* what is no C string is not offered as one */
    t_text(gpts_file_metadata(&file, "config"), "{}");
    gpts_file_close(&file);
}

static void shapes_whose_products_wrap_are_refused(void)
{
    static const char *const shapes[] = { "4194305,4194305,211106198978564", "9223372036854775807,2", "18446744073709551615,18446744073709551615",
        "4294967296,4294967296", "4611686018427387905", "18446744073709551616", "0.5", "-1", "01", "1e1" };
    unsigned char bytes[400];
    char json[300];
    gpts_file file;
    size_t i, n;
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        snprintf(json, sizeof json, "{\"a\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[0,16]}}", shapes[i]);
        n = file_make(bytes, json, "0123456789abcdef", 16);
        t_status(gpts_file_open_memory(&file, bytes, n, NULL), GPTS_BAD_FILE);
        t_says(file.error, "tensor 'a'");
        t_ok(!file.tensors && !file.source);
    }
    n = file_make(bytes, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}", "0123456789abcdef", 16);
    t_status(gpts_file_open_memory(&file, bytes, n, NULL), GPTS_OK);           /* any rank is valid */
    t_equal(file.tensors[0].rank, 11);
    t_equal(file.tensors[0].count, 4);
    gpts_file_close(&file);
}

static void a_header_of_many_names_is_read_in_short(void)
{
    enum { N = 60000 };
    char *json = (char *)malloc(N * 80 + 16), *at = json;
    unsigned char *bytes = (unsigned char *)malloc(N * 80 + 16);
    gpts_file file;
    size_t n;
    int i;
    *at++ = '{';
    for (i = 0; i < N; i++) at += sprintf(at, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i * 7919 % N);
    sprintf(at, "}");
    n = file_make(bytes, json, NULL, 0);
    t_status(gpts_file_open_memory(&file, bytes, n, NULL), GPTS_OK);
    t_equal(file.n_tensors, N);
    for (i = 0; i < N; i += 997) { char name[16]; sprintf(name, "%d", i); t_ok(gpts_file_find(&file, name) != NULL); }
    gpts_file_close(&file);
    free(json);
    free(bytes);
}

/* 5 GB of which almost nothing is on the disk: offsets need more than 32 bits. */
static void E28_a_sparse_file_of_5_GB_is_read_at_its_end(void)
{
    const char *path = scratch("io_sparse");
    const uint64_t count = 1250000000;
    char json[200];
    unsigned char head[300], last[4] = { 0, 0, 0x60, 0x40 };       /* 3.5 */
    FILE *f = fopen(path, "wb");
    gpts_file file;
    gpts_real x[3] = { 9, 9, 9 };
    size_t n;
    int written;
    snprintf(json, sizeof json, "{\"big\":{\"dtype\":\"F32\",\"shape\":[1250000000],\"data_offsets\":[0,5000000000]}}");
    n = file_make(head, json, NULL, 0);
    written = f && fwrite(head, 1, n, f) == n && sizeof(long) > 4 && fseek(f, (long)(n + 4 * (count - 1)), SEEK_SET) == 0 && fwrite(last, 1, 4, f) == 4;
    if (f && fclose(f)) written = 0;
    if (!written) { remove(path); t_skip("no sparse file of 5 GB can be made here"); return; }
    t_status(gpts_file_open(&file, path, NULL), GPTS_OK);
    t_ok(file.bytes == n + 4 * count);
    if (file.n_tensors == 1) {
        t_status(gpts_file_read(&file, &file.tensors[0], count - 3, 3, x), GPTS_OK);
        t_ok(x[0] == 0 && x[1] == 0 && x[2] == (gpts_real)3.5);
        t_status(gpts_file_read(&file, &file.tensors[0], 600000000, 1, x), GPTS_OK);
        t_ok(x[0] == 0);
    }
    gpts_file_close(&file);
    remove(path);
}

static void a_file_cut_while_it_is_read_is_told(void)
{
    const char *path = scratch("io_cut");
    static gpts_real x[50000];
    gpts_file_entry e;
    gpts_file file;
    char error[GPTS_ERROR_BYTES] = "";
    FILE *f;
    memset(&e, 0, sizeof e);
    e.name = "x"; e.dtype = GPTS_F32; e.rank = 1; e.shape[0] = 50000; e.data = x;
    t_status(gpts_file_write(path, &e, 1, NULL, 0, NULL, error), GPTS_OK);
    t_status(gpts_file_open(&file, path, NULL), GPTS_OK);
    f = fopen(path, "wb");                                          /* the same file, now shorter */
    if (f) { fputs("short", f); fclose(f); }
    t_status(gpts_file_read(&file, &file.tensors[0], 40000, 10000, x), GPTS_IO);
    t_says(file.error, "cut while it was read");
    gpts_file_close(&file);
    remove(path);
}

static void folders_and_missing_files_get_a_sentence(void)
{
    gpts_file file;
    gpts_model m;
    char error[GPTS_ERROR_BYTES] = "", *data;
    size_t n;
    t_status(gpts_file_open(&file, "build/tests", NULL), GPTS_IO);
    t_says(file.error, "'build/tests'");
    t_status(gpts_file_open(&file, "build/tests/nothing here", NULL), GPTS_IO);
    t_says(file.error, "there is no such file");
    t_status(gpts_file_open(&file, "", NULL), GPTS_BAD_ARGUMENT);
    t_status(gpts_file_open(&file, NULL, NULL), GPTS_BAD_ARGUMENT);
    t_status(gpts_model_load(&m, "build/tests", NULL), GPTS_IO);
    t_status(gpts_read_file("build/tests", &data, &n, NULL, error), GPTS_IO);
    t_ok(data == NULL && n == 0);
    t_status(gpts_file_open_memory(&file, NULL, 0, NULL), GPTS_BAD_FILE);
    t_status(gpts_model_load_checked(&m, "x", NULL, GPTS_ABI + 1), GPTS_MISMATCH);
}

/* ---- models -------------------------------------------------------------------------------- */

static const model_case kinds[] = {
    { "io_plain", 37, 16, 2, 3, 24, -1, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 1, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "io_bare", 37, 16, 1, 2, 8, 0, GPTS_POSITION_NONE, GPTS_NORM_NONE, GPTS_RELU, 0, 0, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "io_zero", 37, 16, 0, 2, 8, 0, GPTS_POSITION_NONE, GPTS_NORM_NONE, GPTS_RELU, 0, 0, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "io_window", 37, 16, 2, 2, 8, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 0, 1, 2, 9, NONE, 0, 1,3,5,0,GPTS_GELU_ERF, {0,0,0},{0,0,0}, 0,0,0 },
    { "io_static", 37, 16, 3, 4, 16, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 1, 1, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {5,0,15},{2,9,0}, 16,0,0 },
    { "io_linear", 37, 16, 2, 4, 16, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 0, 1, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {6,1,0},{1,0,0}, 16,3,0 },
    { "io_all_pruned", 37, 16, 1, 2, 8, 12, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_ERF, 1, 1, 2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{3,0,0}, 16,0,0 }
};
enum { KINDS = (int)(sizeof kinds / sizeof kinds[0]) };

static void models_of_every_kind_come_back(void)
{
    int k;
    for (k = 0; k < KINDS && !t_state.bad; k++) {
        gpts_model m, back;
        char *data, error[GPTS_ERROR_BYTES] = "";
        const char *path;
        size_t bytes;
        t_status(case_model(&m, &kinds[k], NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s: %s\n", kinds[k].name, m.error); return; }
        round_to_float(&m);
        m.config.layer_norm_epsilon = 1.2345678901234567e-5; m.config.rope_theta = 12345.678901234567; m.config.unscaled_scores = k & 1;
        path = scratch("io_model");
        t_status(gpts_model_save(&m, path), GPTS_OK);
        t_status(gpts_model_load(&back, path, NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s: %s%s\n", kinds[k].name, m.error, back.error); return; }
        same_models(&m, &back);
        same_logits(&m, &back, 9);
        gpts_model_free(&back);
        t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
        t_status(gpts_model_load_memory(&back, data, bytes, NULL), GPTS_OK);
        same_models(&m, &back);
        gpts_model_free(&back);
        gpts_release(NULL, data);
        gpts_model_free(&m);
        remove(path);
        if (t_state.bad) printf("  that was %s\n", kinds[k].name);
    }
}

static void numbers_in_a_comma_locale_are_the_same(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ps_AF.UTF-8", "de_DE" };
    gpts_model m, back;
    char *plain, *comma, error[GPTS_ERROR_BYTES] = "";
    const char *path;
    size_t n = 0, k = 0, i;
    plain_model(&m, 11, 8, 2, 1);
    round_to_float(&m);
    m.config.layer_norm_epsilon = 1.2345678901234567e-5;
    path = scratch("io_locale");
    t_status(gpts_model_save(&m, path), GPTS_OK);
    t_status(gpts_read_file(path, &plain, &n, NULL, error), GPTS_OK);
    for (i = 0; i < sizeof names / sizeof names[0] && !setlocale(LC_ALL, names[i]); i++) { }
    if (i == sizeof names / sizeof names[0]) t_skip("no locale with a decimal comma is installed");
    else {
        t_status(gpts_model_save(&m, path), GPTS_OK);
        t_status(gpts_read_file(path, &comma, &k, NULL, error), GPTS_OK);
        t_equal(n, k);
        if (n == k) t_bits(plain, comma, n);
        gpts_release(NULL, comma);
        t_status(gpts_model_load(&back, path, NULL), GPTS_OK);
        same_models(&m, &back);
        gpts_model_free(&back);
        setlocale(LC_ALL, "C");
    }
    gpts_release(NULL, plain);
    gpts_model_free(&m);
    remove(path);
}

static void write_bytes(const char *path, const void *data, size_t n)
{
    char error[GPTS_ERROR_BYTES];
    t_status(gptsi_replace_file(path, data, n, NULL, error), GPTS_OK);
}

/* ---- other people's files -------------------------------------------------------------------- */

/* Names, masks and a stored head as in the files of GPT-2; heads of 64 as its own. */
static void gpt2_files_give_the_plain_models_logits(void)
{
    static const char *const prefixes[] = { "", "transformer.", "module.transformer." };
    size_t k, head;
    for (k = 0; k < 3; k++) for (head = 0; head < 2; head++) {
        gpts_model m, loaded;
        char name[96];
        gpts_real *x;
        plain_model(&m, 29, 128, 2, 1);
        round_to_float(&m);
        made_model(&m, prefixes[k], 0);
        for (x = NULL; !x; ) {                                      /* the masks that older files carry */
            snprintf(name, sizeof name, "%sh.0.attn.bias", prefixes[k]);
            x = made_reals(name, 2, 1, 256);
            made.entries[made.n - 1].rank = 4; made.entries[made.n - 1].shape[1] = 1;
            made.entries[made.n - 1].shape[2] = 16; made.entries[made.n - 1].shape[3] = 16;
            snprintf(name, sizeof name, "%sh.1.attn.masked_bias", prefixes[k]);
            made_reals(name, 0, 1, 1)[0] = (gpts_real)-1e4;
        }
        if (head) {
            snprintf(name, sizeof name, "%slm_head.weight", k == 2 ? "module." : "");
            x = made_reals(name, 2, 29, 128);
            memcpy(x, gpts_model_tensor(&m, "wte.weight")->data, 29 * 128 * sizeof *x);
        }
        made_metadata("format", "pt");
        t_status(made_load(&loaded, "io_gpt2"), GPTS_OK);
        if (t_state.bad) { printf("  %s\n", loaded.error); return; }
        same_models(&m, &loaded);
        same_logits(&m, &loaded, 16);
        made_free();
        gpts_model_free(&m);
        gpts_model_free(&loaded);
    }
}

static void an_untied_head_is_seen_in_the_file(void)
{
    gpts_model m, loaded;
    plain_model(&m, 29, 128, 2, 0);
    round_to_float(&m);
    made_model(&m, "", 0);
    t_status(made_load(&loaded, "io_untied"), GPTS_OK);
    same_models(&m, &loaded);
    same_logits(&m, &loaded, 5);
    gpts_model_free(&loaded);
    made_metadata("config", "{\"n_head\":2,\"tie_word_embeddings\":true}");
    made_refused(GPTS_BAD_FILE, "lm_head.weight is not wte.weight");
    made_free();
    gpts_model_free(&m);
}

/* [out,in] matrices, erf GELU, compiled names, with and without biases. */
static void nanogpt_files_give_the_plain_models_logits(void)
{
    int bias, compiled;
    for (bias = 0; bias < 2; bias++) for (compiled = 0; compiled < 2; compiled++) {
        gpts_config config = gpts_config_default();
        gpts_model m, loaded;
        gpts_real *x;
        memset(&m, 0, sizeof m);
        config.vocab_size = 29; config.n_positions = 16; config.n_layer = 2; config.n_head = 2; config.n_embd = 128;
        config.activation = GPTS_GELU_ERF; config.bias = bias;
        t_status(gpts_model_init(&m, &config, 3, NULL), GPTS_OK);
        randomise(&m, 9);
        round_to_float(&m);
        made_model(&m, compiled ? "_orig_mod.transformer." : "transformer.", 1);
        x = made_reals(compiled ? "_orig_mod.lm_head.weight" : "lm_head.weight", 2, 29, 128);
        memcpy(x, gpts_model_tensor(&m, "wte.weight")->data, 29 * 128 * sizeof *x);
        t_status(made_load(&loaded, "io_nano"), GPTS_OK);
        if (t_state.bad) { printf("  %s\n", loaded.error); return; }
        same_models(&m, &loaded);
        same_logits(&m, &loaded, 16);
        made_free();
        gpts_model_free(&m);
        gpts_model_free(&loaded);
    }
}

/* One model in three files under an index. */
static void shards_are_one_model(void)
{
    static const char *const index = "build/tests/io_shards.index.json";
    gpts_model m, loaded;
    gptsi_text text;
    char error[GPTS_ERROR_BYTES], name[64];
    size_t i, k;
    plain_model(&m, 29, 128, 2, 1);
    round_to_float(&m);
    made_model(&m, "transformer.", 0);
    memset(&text, 0, sizeof text);
    gptsi_text_add(&text, "{\"metadata\": {\"total_size\": 5},\n \"weight_map\": {");
    for (k = 0; k < 3; k++) {
        gpts_file_entry part[MOST];
        size_t n = 0;
        for (i = k; i < made.n; i += 3) {
            part[n++] = made.entries[i];
            snprintf(name, sizeof name, "%s\"%.50s\": ", n + k > 1 ? ",\n" : "", made.names[i]);
            gptsi_text_add(&text, name);
            snprintf(name, sizeof name, "\"io_shard%d_%d.safetensors\"", (int)k, (int)sizeof(gpts_real));
            gptsi_text_add(&text, name);
        }
        snprintf(name, sizeof name, "io_shard%d", (int)k);
        t_status(gpts_file_write(scratch(name), part, n, NULL, 0, NULL, error), GPTS_OK);
    }
    gptsi_text_add(&text, "}}\n");
    t_status(gptsi_replace_file(index, text.data, text.n, NULL, error), GPTS_OK);
    t_status(gpts_model_load(&loaded, index, NULL), GPTS_OK);
    if (t_state.bad) printf("  %s\n", loaded.error);
    else { same_models(&m, &loaded); same_logits(&m, &loaded, 16); }
    gpts_model_free(&loaded);
    remove(scratch("io_shard1"));
    t_status(gpts_model_load(&loaded, index, NULL), GPTS_IO);
    t_says(loaded.error, "io_shard1");
    t_status(gptsi_replace_file(index, "{\"weight_map\":{\"a\":\"../secret\"}}", 33, NULL, error), GPTS_OK);
    t_status(gpts_model_load(&loaded, index, NULL), GPTS_BAD_FILE);
    t_says(loaded.error, "'../secret' is no file beside it");
    t_status(gptsi_replace_file(index, text.data, text.n - 3, NULL, error), GPTS_OK);
    t_status(gpts_model_save(&m, scratch("io_shard1")), GPTS_OK);
    t_status(gpts_model_load(&loaded, index, NULL), GPTS_NOT_FOUND);      /* in the wrong names */
    t_says(loaded.error, "is not in 'io_shard1");
    t_status(gptsi_replace_file(index, "{\"a\": [1, 2, 3]}", 16, NULL, error), GPTS_OK);
    t_status(gpts_model_load(&loaded, index, NULL), GPTS_BAD_FILE);
    t_says(loaded.error, "no index of shards");
    for (k = 0; k < 3; k++) { snprintf(name, sizeof name, "io_shard%d", (int)k); remove(scratch(name)); }
    remove(index);
    gpts_release(NULL, text.data);
    made_free();
    gpts_model_free(&m);
}

/* llm.c's weights of both versions: wte padded to 128 rows, every kind over all layers. */
static void llmc_files_give_the_plain_models_logits(void)
{
    static const char *const kinds_in_order[] = { "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
        "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias" };
    int half;
    for (half = 0; half < 2; half++) {
        static unsigned char file[1 << 19];
        static const uint32_t head[8] = { 20240326, 3, 16, 29, 2, 3, 24, 128 };
        gpts_model m, loaded;
        size_t n = 1024, i, k, size = half ? 2 : 4, l, r, c;
        const char *path = scratch("io_llmc");
        plain_model(&m, 29, 24, 3, 1);
        for (i = 0; i < m.n_tensors; i++) for (k = 0; k < m.tensors[i].size; k++) {
            gpts_real *x = &m.tensors[i].data[k];
            *x = half ? (gpts_real)gptsi_float(gptsi_to_bf16((double)*x) << 16) : as_float(*x);
        }
        memset(file, 0, sizeof file);
        for (i = 0; i < 8; i++) gptsi_put(file + 4 * i, i == 1 && half ? 5 : head[i], 4);
#define PUT(x) do { double x_ = (double)(x); gptsi_put(file + n, half ? gptsi_to_bf16(x_) : gptsi_float_bits(x_, 0), size); n += size; } while (0)
#define PUT_ALL(name_) do { const gpts_tensor *t_ = gpts_model_tensor(&m, name_); for (k = 0; k < t_->size; k++) PUT(t_->data[k]); } while (0)
        PUT_ALL("wte.weight");
        n += (128 - 29) * 24 * size;
        PUT_ALL("wpe.weight");
        for (i = 0; i < 12; i++) for (l = 0; l < 2; l++) {
            char name[64];
            const gpts_tensor *t;
            snprintf(name, sizeof name, "h.%d.%s", (int)l, kinds_in_order[i]);
            t = gpts_model_tensor(&m, name);
            if (t->rank == 1) PUT_ALL(name);
            else for (c = 0; c < t->columns; c++) for (r = 0; r < t->rows; r++) PUT(t->data[r * t->columns + c]);
        }
        PUT_ALL("ln_f.weight");
        PUT_ALL("ln_f.bias");
#undef PUT
#undef PUT_ALL
        write_bytes(path, file, n);
        t_status(gpts_model_load(&loaded, path, NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s\n", loaded.error); return; }
        same_models(&m, &loaded);
        same_logits(&m, &loaded, 16);
        gpts_model_free(&loaded);
        gpts_model_free(&m);
        write_bytes(path, file, n - 1);
        t_status(gpts_model_load(&loaded, path, NULL), GPTS_BAD_FILE);
        t_says(loaded.error, "its header asks for");
        gptsi_put(file + 16, 0xFFFFFFFF, 4);
        write_bytes(path, file, n);
        t_status(gpts_model_load(&loaded, path, NULL), GPTS_BAD_FILE);
        gptsi_put(file + 4, 2, 4);
        write_bytes(path, file, n);
        t_status(gpts_model_load(&loaded, path, NULL), GPTS_UNSUPPORTED);
        write_bytes(path, file, 20);
        t_status(gpts_model_load(&loaded, path, NULL), GPTS_BAD_FILE);
        remove(path);
    }
}

static void halves_and_doubles_load(void)
{
    static const gpts_dtype types[] = { GPTS_F16, GPTS_BF16, GPTS_F64 };
    size_t k, i, j;
    for (k = 0; k < 3; k++) {
        gpts_model m, loaded;
        plain_model(&m, 29, 64, 1, 1);
        for (i = 0; i < m.n_tensors; i++) for (j = 0; j < m.tensors[i].size; j++) {
            double x = (double)m.tensors[i].data[j];
            m.tensors[i].data[j] = (gpts_real)(k == 0 ? gptsi_from_f16(gptsi_to_f16(x)) : k == 1 ? (double)gptsi_float(gptsi_to_bf16(x) << 16) : x);
        }
        made_model(&m, "", 0);
        for (i = 0; i < made.n; i++) {
            made.entries[i].dtype = types[k];
            if (k == 2) {                                           /* F64 entries point at doubles */
                size_t count = (size_t)(made.entries[i].shape[0] * (made.entries[i].rank > 1 ? made.entries[i].shape[1] : 1));
                double *wide = (double *)malloc((count + 1) * sizeof *wide);
                for (j = 0; j < count; j++) wide[j] = (double)((const gpts_real *)made.entries[i].data)[j];
                free(made.owned[i]);
                made.owned[i] = wide;
                made.entries[i].data = wide;
            }
        }
        t_status(made_load(&loaded, "io_half"), GPTS_OK);
        same_models(&m, &loaded);
        made_free();
        gpts_model_free(&m);
        gpts_model_free(&loaded);
    }
}

static void a_config_beside_the_file_is_read(void)
{
    static const char gpt2_config[] = "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"n_ctx\": 16, \"n_embd\": 24,"
        " \"n_head\": 3, \"n_inner\": null, \"n_layer\": 2, \"n_positions\": 16, \"layer_norm_epsilon\": 1e-05, \"vocab_size\": 29,"
        "\n  \"task_specific_params\": {\"text-generation\": {\"do_sample\": true, \"max_length\": 50}},\n \"scale_attn_weights\": true\n}\n";
    gpts_model m, loaded;
    char error[GPTS_ERROR_BYTES] = "";
    plain_model(&m, 29, 24, 3, 1);
    round_to_float(&m);
    made_model(&m, "transformer.", 0);
    made_refused(GPTS_BAD_FILE, "put a config.json beside it");
    t_status(gptsi_replace_file("build/tests/config.json", gpt2_config, strlen(gpt2_config), NULL, error), GPTS_OK);
    t_status(made_load(&loaded, "io_beside"), GPTS_OK);
    same_models(&m, &loaded);
    same_logits(&m, &loaded, 16);
    gpts_model_free(&loaded);
    t_status(gptsi_replace_file("build/tests/config.json", "{\"n_head\": 3, \"n_layer\": 3}", 28, NULL, error), GPTS_OK);
    made_refused(GPTS_NOT_FOUND, "'h.2.ln_1.weight' of shape [24] is missing");
    t_status(gptsi_replace_file("build/tests/config.json", "{\"n_head\": ", 11, NULL, error), GPTS_OK);
    {
        gpts_model broken;
        t_status(made_load(&broken, "io_broken"), GPTS_BAD_FILE);
        t_says(broken.error, "config.json");
    }
    remove("build/tests/config.json");
    made_free();
    gpts_model_free(&m);
}

/* What is exported for transformers is read back as the same model; its missing biases are zeros
   (tests/interchange has transformers itself read it). */
static void exported_models_load_with_their_config(void)
{
    gpts_config config = gpts_config_default();
    gpts_model m, back;
    gpts_file file;
    const char *path = scratch("io_export");
    size_t i;
    memset(&m, 0, sizeof m);
    config.vocab_size = 29; config.n_positions = 16; config.n_layer = 2; config.n_head = 3; config.n_embd = 24; config.n_inner = 40;
    config.bias = 0; config.activation = GPTS_RELU; config.unscaled_scores = 1; config.layer_norm_epsilon = 0.00123;
    t_status(gpts_model_init(&m, &config, 3, NULL), GPTS_OK);
    randomise(&m, 9);
    round_to_float(&m);
    t_status(gpts_model_export(&m, path, GPTS_F32), GPTS_OK);
    t_status(gpts_file_open(&file, path, NULL), GPTS_OK);
    t_ok(gpts_file_find(&file, "transformer.h.1.mlp.c_fc.bias") != NULL);
    gpts_file_close(&file);
    t_status(gpts_model_load(&back, path, NULL), GPTS_OK);
    if (t_state.bad) { printf("  %s%s\n", m.error, back.error); return; }
    t_equal(back.config.bias, 1);
    t_ok(back.config.unscaled_scores && back.config.activation == GPTS_RELU && back.config.n_inner == 40);
    for (i = 0; i < 24; i++) t_close(gpts_model_tensor(&back, "ln_f.bias")->data[i], 0, 0);
    same_logits(&m, &back, 16);
    gpts_model_free(&back);
    t_status(gpts_model_save_as(&m, path, GPTS_BF16), GPTS_OK);
    t_status(gpts_model_load(&back, path, NULL), GPTS_OK);
    t_close(back.tensors[0].data[5], gptsi_float(gptsi_to_bf16((double)m.tensors[0].data[5]) << 16), 0);
    gpts_model_free(&back);
    t_status(gpts_model_save_as(&m, path, GPTS_I32), GPTS_UNSUPPORTED);
    gpts_model_free(&m);
    t_status(case_model(&m, &kinds[4], NULL), GPTS_OK);
    t_status(gpts_model_export(&m, path, GPTS_F32), GPTS_UNSUPPORTED);
    t_says(m.error, "GPT-2's kind");
    gpts_model_free(&m);
    remove(path);
    remove("build/tests/config.json");
}

/* ---- files that lie ------------------------------------------------------------------------ */

static const char *config_for(int64_t V, int64_t positions, int64_t L, int64_t H, int64_t C, const char *more)
{
    static char text[400];
    snprintf(text, sizeof text, "{\"vocab_size\":%ld,\"n_positions\":%ld,\"n_layer\":%ld,\"n_head\":%ld,\"n_embd\":%ld,\"position\":\"learned\"%s}",
             (long)V, (long)positions, (long)L, (long)H, (long)C, more);
    return text;
}

static void configs_that_do_not_fit_the_tensors_are_refused(void)
{
    static const struct { int64_t V, positions, L, H, C; const char *more; gpts_status status; const char *says; } cases[] = {
        { 30, 16, 2, 2, 8, "", GPTS_BAD_SHAPE, "tensor 'wte.weight' has the shape [29,8], expected [30,8]" },
        { 29, 17, 2, 2, 8, "", GPTS_BAD_SHAPE, "tensor 'wpe.weight' has the shape [16,8], expected [17,8]" },
        { 29, 16, 1, 2, 8, "", GPTS_BAD_FILE, "no part of the model" },
        { 29, 16, 3, 2, 8, "", GPTS_NOT_FOUND, "'h.2.ln_1.weight' of shape [8] is missing" },
        { 29, 16, 65536, 2, 8, "", GPTS_BAD_FILE, "65536 layers" },
        { 29, 16, 2, 3, 8, "", GPTS_BAD_FILE, "n_head" },
        { 29, 16, 2, 0, 8, "", GPTS_BAD_FILE, "n_head" },
        { 29, 16, 2, -4, 8, "", GPTS_BAD_FILE, "n_head" },
        { 29, 16, 2, 2, 8, ",\"n_inner\":31", GPTS_BAD_SHAPE, "c_fc.weight' has the shape [8,32], expected [8,31]" },
        { 29, 16, 2, 2, 8, ",\"n_inner\":0", GPTS_BAD_FILE, "is no part of the model" },
        { 29, 16, 2, 2, 8, ",\"bias\":false", GPTS_BAD_FILE, "is no part of the model" },
        { 29, 16, 2, 2, 8, ",\"norm\":\"none\"", GPTS_BAD_FILE, "is no part of the model" },
        { 29, 16, 2, 2, 8, ",\"tie_word_embeddings\":false", GPTS_NOT_FOUND, "'lm_head.weight' of shape [29,8] is missing" },
        { 29, 16, 2, 2, 8, ",\"layer_norm_epsilon\":0", GPTS_BAD_FILE, "layer_norm_epsilon" },
        { 29, 16, 2, 2, 8, ",\"layer_norm_epsilon\":1e999", GPTS_BAD_FILE, "layer_norm_epsilon" },
        { 29, 16, 2, 2, 8, ",\"activation_function\":\"swish\"", GPTS_BAD_FILE, "activation_function" },
        { 29, 16, 2, 2, 8, ",\"scale_attn_by_inverse_layer_idx\":true", GPTS_UNSUPPORTED, "scale_attn_by_inverse_layer_idx" },
        { 29, 16, 2, 2, 8, ",\"n_head\":2", GPTS_BAD_FILE, "n_head twice" },
        { 29, 16, 2, 2, 8, ",\"bias\":1", GPTS_BAD_FILE, "the value of bias" },
        { 29, 16, 2, 2, 8, ",", GPTS_BAD_FILE, "not valid JSON" },
        { 29, 16, 2, 2, 8, "}{", GPTS_BAD_FILE, "something follows" },
        { 9223372036854775807, 16, 2, 2, 8, "", GPTS_BAD_FILE, "vocab_size" },
        { 29, 9223372036854775807, 2, 2, 8, "", GPTS_BAD_FILE, "n_positions" }
    };
    gpts_model m, loaded;
    size_t i;
    plain_model(&m, 29, 8, 2, 1);
    made_model(&m, "", 0);
    made_metadata("config", "");
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int before = t_state.bad;
        made.metadata[0].value = config_for(cases[i].V, cases[i].positions, cases[i].L, cases[i].H, cases[i].C, cases[i].more);
        made_refused(cases[i].status, cases[i].says);
        if (t_state.bad > before) printf("  that was case %d: %s\n", (int)i, made.metadata[0].value);
    }
    made.metadata[0].value = config_for(29, 16, 2, 2, 8, ",\"n_inner\":null,\"unknown\":[{\"x\":[]}],\"bias\":true");
    t_status(made_load(&loaded, "io_good"), GPTS_OK);
    gpts_model_free(&loaded);
    made_free();
    gpts_model_free(&m);
}

static void tensors_that_do_not_fit_are_refused(void)
{
    gpts_model m;
    gpts_real *x;
    plain_model(&m, 29, 8, 2, 1);
    made_model(&m, "", 0);
    made_metadata("config", config_for(29, 16, 2, 2, 8, ""));

    x = (gpts_real *)(uintptr_t)made_entry("h.1.mlp.c_fc.bias")->data;
    x[7] = (gpts_real)NAN;
    made_refused(GPTS_NOT_FINITE, "value 7 of tensor 'h.1.mlp.c_fc.bias' is not a number");
    x[7] = (gpts_real)-INFINITY;
    made_refused(GPTS_NOT_FINITE, "is infinite");
    x[7] = 0;

    made_entry("ln_f.weight")->dtype = GPTS_I32;
    made_refused(GPTS_UNSUPPORTED, "tensor 'ln_f.weight' is I32, expected F32, F16, BF16 or F64");
    made_entry("ln_f.weight")->dtype = GPTS_F32;

    made_entry("h.0.attn.c_proj.weight")->shape[0] = 4;
    made_refused(GPTS_BAD_SHAPE, "'h.0.attn.c_proj.weight' has the shape [4,8], expected [8,8]");
    made_entry("h.0.attn.c_proj.weight")->shape[0] = 8;
    made_entry("h.0.ln_1.bias")->rank = 2; made_entry("h.0.ln_1.bias")->shape[1] = 1;
    made_refused(GPTS_BAD_SHAPE, "'h.0.ln_1.bias' has the shape [8,1], expected [8]");
    made_entry("h.0.ln_1.bias")->rank = 1;

    made_reals("h.4294967296.ln_1.weight", 1, 8, 1);
    made_refused(GPTS_BAD_FILE, "4294967296");
    made_drop("h.4294967296.ln_1.weight");
    made_reals("h.99999999999999999999999.x", 1, 8, 1);
    made_refused(GPTS_BAD_FILE, "names a layer");
    made_drop("h.99999999999999999999999.x");
    made_reals("h.1.attn.c_atn.weight", 1, 8, 1);
    made_refused(GPTS_BAD_FILE, "tensor 'h.1.attn.c_atn.weight' [8] is no part of the model");
    made_drop("h.1.attn.c_atn.weight");
    made_reals("transformer.wte.weight", 2, 29, 8);
    made_refused(GPTS_BAD_FILE, "under two names");
    made_drop("transformer.wte.weight");
    made_drop("wte.weight");
    made_refused(GPTS_NOT_FOUND, "'wte.weight' is missing");
    made_free();
    gpts_model_free(&m);
}

/* A model with two static heads of four in layer 1, with tails, and a pruned one. */
static void made_static(void)
{
    static const int32_t heads[] = { 1, 3 }, start[] = { 3, 6 }, gone[] = { 0 };
    static const gpts_real coef[] = { (gpts_real)0.5, (gpts_real)0.25, 0, 0 }, decay[] = { (gpts_real)0.5, 1, 1, 1 };
    gpts_model m;
    gpts_real *x;
    size_t i;
    plain_model(&m, 29, 16, 4, 1);
    made_model(&m, "", 0);
    made_metadata("config", config_for(29, 16, 2, 4, 16, ""));
    made_drop("h.1.attn.c_attn.weight"); made_drop("h.1.attn.c_attn.bias"); made_drop("h.1.attn.c_proj.weight");
    made_reals("h.1.attn.c_attn.weight", 2, 16, (2 * 1 + 3) * 4);
    made_reals("h.1.attn.c_attn.bias", 1, 20, 1);
    made_reals("h.1.attn.c_proj.weight", 2, 12, 16);
    made_integers("h.1.attn.static.heads", 2, heads);
    made_integers("h.1.attn.static.tail_start", 2, start);
    made_integers("h.1.attn.pruned", 1, gone);
    for (i = 0, x = made_reals("h.1.attn.static.alpha", 2, 2, 6); i < 12; i++) x[i] = (gpts_real)(0.1 * (double)i);
    for (i = 0, x = made_reals("h.1.attn.static.rho", 2, 2, 6); i < 12; i++) x[i] = (gpts_real)(-0.1 * (double)i);
    memcpy(made_reals("h.1.attn.static.tail_coef", 2, 2, 2), coef, sizeof coef);
    memcpy(made_reals("h.1.attn.static.tail_decay", 2, 2, 2), decay, sizeof decay);
    gpts_model_free(&m);
}
static int32_t *integers_of(const char *name) { return (int32_t *)(uintptr_t)made_entry(name)->data; }
static gpts_real *reals_of(const char *name) { return (gpts_real *)(uintptr_t)made_entry(name)->data; }

static void static_heads_load_as_the_file_says(void)
{
    gpts_model m;
    const gpts_heads *h;
    made_static();
    t_status(made_load(&m, "io_static_file"), GPTS_OK);
    if (t_state.bad) { printf("  %s\n", m.error); made_free(); return; }
    h = &m.layers[1].heads;
    t_ok(h->H == 4 && h->D == 4 && h->U == 1 && h->K == 3 && h->n == 2 && h->S == 6 && h->R == 2);
    t_ok(h->kept[0] == 1 && h->kept[1] == 2 && h->kept[2] == 3);
    t_ok(h->live_slot[0] == -1 && h->live_slot[1] == 0 && h->static_slot[0] == 0 && h->static_slot[1] == -1 && h->static_slot[2] == 1);
    t_ok(h->tail_start && h->tail_start[0] == 3 && h->tail_start[1] == 6);
    t_close(h->alpha[6 + 5], 1.1, 1e-6);
    t_close(h->tail_coef[1], 0.25, 0);
    t_equal(gpts_model_tensor(&m, "h.1.attn.static.alpha")->trainable, 0);
    t_ok(m.layers[0].heads.U == 4 && m.layers[0].heads.n == 0);
    gpts_model_free(&m);
    made_free();
}

static void static_heads_that_lie_are_refused(void)
{
    int32_t *heads, *start, *gone;
    made_static();
    heads = integers_of("h.1.attn.static.heads"); start = integers_of("h.1.attn.static.tail_start"); gone = integers_of("h.1.attn.pruned");
    heads[1] = 1; made_refused(GPTS_BAD_FILE, "'h.1.attn.static.heads' lists 1 after 1");
    heads[0] = 3; made_refused(GPTS_BAD_FILE, "lists 1 after 3");
    heads[0] = 1; heads[1] = 4; made_refused(GPTS_BAD_FILE, "is 4, expected 0 to 3");
    heads[0] = -1; heads[1] = 3; made_refused(GPTS_BAD_FILE, "is -1, expected 0 to 3");
    heads[0] = 1;
    gone[0] = 1; made_refused(GPTS_BAD_FILE, "head 1 of layer 1 is listed as static and as pruned");
    gone[0] = 0;
    start[0] = 0; made_refused(GPTS_BAD_FILE, "'h.1.attn.static.tail_start' is 0, expected 1 to 6");
    start[0] = 7; made_refused(GPTS_BAD_FILE, "is 7, expected 1 to 6");
    start[0] = 3; start[1] = 4; made_refused(GPTS_BAD_FILE, "is all 0, but its tail starts at 4");
    start[1] = 6;
    start[1] = 5; made_entry("h.1.attn.static.alpha")->shape[1] = 5; made_refused(GPTS_BAD_SHAPE, "'h.1.attn.static.rho' has the shape [2,6], expected [2,5]");
    made_entry("h.1.attn.static.alpha")->shape[1] = 6; start[1] = 6;
    made_entry("h.1.attn.static.alpha")->shape[0] = 1; made_refused(GPTS_BAD_SHAPE, "'h.1.attn.static.alpha' has the shape [1,6], expected [2,6]");
    made_entry("h.1.attn.static.alpha")->shape[0] = 2;
    made_entry("h.1.attn.static.alpha")->rank = 1; made_refused(GPTS_BAD_SHAPE, "h.1.attn.static.alpha");
    made_entry("h.1.attn.static.alpha")->rank = 2;
    reals_of("h.1.attn.static.alpha")[3] = (gpts_real)INFINITY; made_refused(GPTS_NOT_FINITE, "value 3 of tensor 'h.1.attn.static.alpha' is infinite");
    reals_of("h.1.attn.static.alpha")[3] = 0;
    reals_of("h.1.attn.static.tail_decay")[1] = (gpts_real)1.5; made_refused(GPTS_BAD_FILE, "above 0 up to 1");
    reals_of("h.1.attn.static.tail_decay")[1] = 0; made_refused(GPTS_BAD_FILE, "above 0 up to 1");
    reals_of("h.1.attn.static.tail_decay")[1] = 1;
    reals_of("h.1.attn.static.tail_coef")[0] = -1; made_refused(GPTS_BAD_FILE, "expected at least 0");
    reals_of("h.1.attn.static.tail_coef")[0] = 1;
    made_entry("h.1.attn.c_attn.weight")->shape[1] = 16; made_refused(GPTS_BAD_SHAPE, "'h.1.attn.c_attn.weight' has the shape [16,16], expected [16,20]");
    made_entry("h.1.attn.c_attn.weight")->shape[1] = 20;
    made_entry("h.1.attn.static.heads")->dtype = GPTS_F32; made_refused(GPTS_BAD_FILE, "expected I32 or I64");
    made_entry("h.1.attn.static.heads")->dtype = GPTS_I32;
    made_drop("h.1.attn.static.tail_coef"); made_refused(GPTS_NOT_FOUND, "tail_coef");
    made_drop("h.1.attn.static.tail_start"); made_refused(GPTS_BAD_FILE, "'h.1.attn.static.tail_decay' [2,2] is no part of the model");
    made_drop("h.1.attn.static.tail_decay"); made_drop("h.1.attn.static.alpha"); made_refused(GPTS_BAD_SHAPE, "'h.1.attn.static.alpha' is missing");
    made_free();
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static void run_updates(gpts_trainer *t, const model_case *c, uint64_t from, uint64_t to)
{
    for (; from < to; from++) {
        case_batch b;
        double loss;
        case_batch_make(&b, c, 100 + from);
        t_status(gpts_trainer_accumulate(t, &b.batch, NULL), GPTS_OK);
        t_status(gpts_trainer_apply(t, &loss), GPTS_OK);
        t->data_position += c->B;
    }
}

static void a_resumed_run_has_the_same_bits(void)
{
    int k;
    for (k = 0; k < KINDS && !t_state.bad; k++) {
        gpts_train_options options = gpts_train_options_default();
        gpts_model m, resumed;
        gpts_trainer t, again;
        const char *path = scratch("io_checkpoint");
        memset(&t, 0, sizeof t);
        options.warmup = 3; options.total = 12; options.dropout = 0.1; options.seed = 0xFEDCBA9876543210u; options.learning_rate = 0.01;
        t_status(case_model(&m, &kinds[k], NULL), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        if (t_state.bad) return;
        run_updates(&t, &kinds[k], 0, 5);
        t_status(gpts_checkpoint_save(&t, path), GPTS_OK);
        run_updates(&t, &kinds[k], 5, 10);
        t_status(gpts_checkpoint_load(&again, &resumed, path, NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s: %s\n", kinds[k].name, again.error); return; }
        t_equal(again.step, 5);
        t_equal(again.data_position, 5 * kinds[k].B);
        t_ok(again.options.seed == options.seed && again.options.warmup == 3 && again.options.total == 12);
        run_updates(&again, &kinds[k], 5, 10);
        same_models(&m, &resumed);
        t_equal(again.n_trainable, t.n_trainable);
        t_bits(again.moment1, t.moment1, t.n_trainable * sizeof(gpts_real));
        t_bits(again.moment2, t.moment2, t.n_trainable * sizeof(gpts_real));
        t_equal(again.step, t.step);
        if (t_state.bad) printf("  that was %s\n", kinds[k].name);
        gpts_trainer_free(&again); gpts_model_free(&resumed);
        gpts_trainer_free(&t); gpts_model_free(&m);
        {   /* a checkpoint is a model file too */
            gpts_model plain;
            t_status(gpts_model_load(&plain, path, NULL), GPTS_OK);
            gpts_model_free(&plain);
        }
        remove(path);
    }
}

static void checkpoints_know_what_is_trained(void)
{
    gpts_model m, resumed;
    gpts_trainer t, again;
    const char *path = scratch("io_frozen");
    gpts_train_options options = gpts_train_options_default();
    model_case c = kinds[3];
    int train;
    for (train = 0; train < 2; train++) {
        memset(&t, 0, sizeof t);
        c.approx_train = train;
        t_status(case_model(&m, &c, NULL), GPTS_OK);
        gpts_model_tensor(&m, "wte.weight")->trainable = 0;
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        run_updates(&t, &c, 0, 2);
        t_status(gpts_checkpoint_save(&t, path), GPTS_OK);
        t_status(gpts_checkpoint_load(&again, &resumed, path, NULL), GPTS_OK);
        if (t_state.bad) { printf("  %s\n", again.error); return; }
        t_equal(gpts_model_tensor(&resumed, "h.1.approx.c_fc.weight")->trainable, train);
        t_equal(gpts_model_tensor(&resumed, "wte.weight")->trainable, 0);
        t_equal(gpts_model_tensor(&resumed, "ln_f.weight")->trainable, 1);
        gpts_trainer_free(&again); gpts_model_free(&resumed);
        gpts_trainer_free(&t); gpts_model_free(&m);
        remove(path);
    }
}

static void checkpoints_that_lie_are_refused(void)
{
    gpts_model m, resumed;
    gpts_trainer t, again;
    gpts_train_options options = gpts_train_options_default();
    const char *path = scratch("io_bad_checkpoint");
    case_batch b;
    char *data, error[GPTS_ERROR_BYTES] = "";
    size_t bytes, i;
    memset(&t, 0, sizeof t);
    t_status(case_model(&m, &kinds[1], NULL), GPTS_OK);
    t_status(gpts_model_save(&m, path), GPTS_OK);
    t_status(gpts_checkpoint_load(&again, &resumed, path, NULL), GPTS_NOT_FOUND);
    t_says(again.error, "is no checkpoint");
    t_says(resumed.error, "is no checkpoint");
    t_ok(!resumed.tensors && !again.moment1);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    case_batch_make(&b, &kinds[1], 1);
    t_status(gpts_trainer_accumulate(&t, &b.batch, NULL), GPTS_OK);
    t_status(gpts_checkpoint_save(&t, path), GPTS_BAD_ARGUMENT);
    t_says(t.error, "accumulated");
    t_status(gpts_trainer_apply(&t, NULL), GPTS_OK);
    t_status(gpts_checkpoint_save(&t, path), GPTS_OK);
    t_status(gpts_read_file(path, &data, &bytes, NULL, error), GPTS_OK);
    for (i = 0; i + 24 < bytes; i++) if (!memcmp(data + i, "\"train.m.wte.weight\"", 20)) memcpy(data + i, "\"train.q.wte.weight\"", 20);
    t_status(gptsi_replace_file(path, data, bytes, NULL, error), GPTS_OK);
    t_status(gpts_checkpoint_load(&again, &resumed, path, NULL), GPTS_BAD_FILE);
    t_says(again.error, "tensors have moments");
    gpts_release(NULL, data);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    remove(path);
}

/* ---- approximators, recordings, tokens --------------------------------------------------------- */

static void approximators_come_back(void)
{
    enum { C = 4, K = 3, H = 5, N = K * C * H + H + H * C + C };
    gpts_real block[N];
    gpts_approximator a, back;
    const char *path = scratch("io_approximator");
    size_t i;
    for (i = 0; i < N; i++) block[i] = as_float((gpts_real)sin((double)i));
    memset(&a, 0, sizeof a);
    a.kind = GPTS_APPROX_RANDOM; a.layer = 2; a.C = C; a.window = K; a.hidden = H; a.activation = GPTS_GELU_ERF;
    a.fc_w = block; a.fc_b = block + K * C * H; a.proj_w = a.fc_b + H; a.proj_b = a.proj_w + H * C;
    t_status(gpts_approximator_save(&a, path), GPTS_OK);
    t_status(gpts_approximator_load(&back, path, NULL), GPTS_OK);
    t_ok(back.kind == a.kind && back.layer == 2 && back.C == C && back.window == K && back.hidden == H && back.activation == GPTS_GELU_ERF);
    if (!t_state.bad) t_bits(back.fc_w, block, sizeof block);
    t_ok(back.fc_b == back.fc_w + K * C * H && back.proj_b == back.fc_w + N - C);
    gpts_approximator_free(&back);
    t_status(gpts_approximator_load(&back, "build/tests", NULL), GPTS_IO);
    memset(&back, 0, sizeof back);
    t_status(gpts_approximator_save(&back, path), GPTS_BAD_ARGUMENT);
    {
        gpts_model m;
        plain_model(&m, 5, 8, 2, 1);
        t_status(gpts_model_save(&m, path), GPTS_OK);
        t_status(gpts_approximator_load(&back, path, NULL), GPTS_NOT_FOUND);
        t_says(back.error, "is no approximator");
        gpts_model_free(&m);
    }
    made_reals("approx.c_fc.weight", 2, 12, 5); made_reals("approx.c_fc.bias", 1, 5, 1);
    made_reals("approx.c_proj.weight", 2, 5, 5); made_reals("approx.c_proj.bias", 1, 4, 1);
    for (i = 0; i < 3; i++) {
        char error[GPTS_ERROR_BYTES];
        if (i == 1) { made_entry("approx.c_proj.weight")->shape[1] = 4; made_metadata("kind", "table"); }
        if (i == 2) { made.n_metadata = 0; made_metadata("layer", "two"); }
        t_status(gpts_file_write(path, made.entries, made.n, made.metadata, made.n_metadata, NULL, error), GPTS_OK);
        t_status(gpts_approximator_load(&back, path, NULL), i ? GPTS_BAD_FILE : GPTS_BAD_SHAPE);
        t_says(back.error, i == 0 ? "expected [k C,h] and [h,C]" : i == 1 ? "'table'" : "'two'");
    }
    made_free();
    remove(path);
}

static void recordings_come_back(void)
{
    gpts_recording r[2], back;
    gpts_real x[24], y[24];
    const char *path = scratch("io_recording");
    size_t i;
    for (i = 0; i < 24; i++) { x[i] = (gpts_real)i; y[i] = (gpts_real)(100 + i); }
    memset(r, 0, sizeof r);
    for (i = 0; i < 2; i++) {
        r[i].layer = (int32_t)(2 + i); r[i].n_sequences = 2; r[i].T = i ? 4 : 3; r[i].C = i ? 3 : 4;
        r[i].x = i ? y : x; r[i].y = i ? x : y;
    }
    t_status(gpts_recording_save(r, 2, path), GPTS_OK);
    t_status(gpts_recording_load(&back, 3, path, NULL), GPTS_OK);
    t_ok(back.layer == 3 && back.n_sequences == 2 && back.T == 4 && back.C == 3);
    if (!t_state.bad) { t_bits(back.x, y, sizeof y); t_bits(back.y, x, sizeof x); }
    gpts_recording_free(&back);
    t_status(gpts_recording_load(&back, 1, path, NULL), GPTS_NOT_FOUND);
    t_says(back.error, "'1.x'");
    r[1].layer = 2;
    t_status(gpts_recording_save(r, 2, path), GPTS_BAD_ARGUMENT);
    t_says(r[0].error, "twice");
    remove(path);
}

static void tokens_come_back(void)
{
    static uint16_t ids[] = { 0, 1, 513, 65535 };
    static unsigned char llmc[1024 + 6];
    gpts_tokens t, back;
    const char *path = IS_DOUBLE ? "build/tests/io_tokens8.bin" : "build/tests/io_tokens4.bin";
    const char *json = IS_DOUBLE ? "build/tests/io_tokens8.json" : "build/tests/io_tokens4.json";
    memset(&t, 0, sizeof t);
    t.ids = ids; t.n = 4; t.vocab_size = 65536;
    strcpy(t.tokenizer, "a \"b\".json");
    t_status(gpts_tokens_save(&t, path), GPTS_OK);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_OK);
    t_ok(back.n == 4 && back.vocab_size == 65536);
    if (!t_state.bad) t_bits(back.ids, ids, sizeof ids);
    t_text(back.tokenizer, t.tokenizer);
    gpts_tokens_free(&back);
    gpts_tokens_free(&back);
    write_bytes(json, "{\"vocab_size\": 65535}", 21);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_BAD_FILE);
    t_says(back.error, "token 3");
    write_bytes(json, "{\"vocab_size\": 0}", 17);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_BAD_FILE);
    write_bytes(json, "[]", 2);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_BAD_FILE);
    t_ok(!back.ids);
    remove(json);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_OK);         /* nanoGPT's have no JSON */
    t_ok(back.n == 4 && back.vocab_size == 65536 && !back.tokenizer[0]);
    gpts_tokens_free(&back);
    write_bytes(path, "abc", 3);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_BAD_FILE);
    write_bytes(path, "", 0);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_BAD_FILE);
    gptsi_put(llmc, 20240520, 4); gptsi_put(llmc + 4, 1, 4); gptsi_put(llmc + 8, 3, 4); gptsi_put(llmc + 1024, 50256, 2);
    write_bytes(path, llmc, sizeof llmc);
    t_status(gpts_tokens_load(&back, path, NULL), GPTS_OK);
    t_ok(back.n == 3 && back.ids && back.ids[0] == 50256);
    gpts_tokens_free(&back);
    t.vocab_size = 100;
    t_status(gpts_tokens_save(&t, path), GPTS_BAD_ARGUMENT);
    t_says(t.error, "token 2 is 513");
    remove(path);
}

/* ---- memory that runs out -------------------------------------------------------------------- */

/* Each kind of work is done again and again, its k-th allocation failing, until it succeeds;
   nothing may be lost, and the sentence must say what it was. */
static struct { long left, live; } pool;
static void *pool_allocate(void *context, size_t bytes)
{
    void *p;
    (void)context;
    if (pool.left-- == 0) return NULL;
    p = malloc(bytes);
    pool.live += p != NULL;
    return p;
}
static void pool_release(void *context, void *memory, size_t bytes) { (void)context; (void)bytes; pool.live--; free(memory); }

static gpts_hooks pool_hooks(void)
{
    gpts_hooks hooks;
    memset(&hooks, 0, sizeof hooks);
    hooks.allocate = pool_allocate; hooks.release = pool_release; hooks.threads = 1;
    return hooks;
}
/* on failure `error` gets the sentence */
typedef gpts_status (*pool_work)(const gpts_hooks *hooks, const char *path, char *error);
static gpts_status told(gpts_status status, const char *sentence, char *error) { memcpy(error, sentence, GPTS_ERROR_BYTES); return status; }

static gpts_status work_model(const gpts_hooks *hooks, const char *path, char *error)
{
    gpts_model m;
    gpts_status status = told(gpts_model_load(&m, path, hooks), m.error, error);
    if (status == GPTS_OK) status = told(gpts_model_save(&m, scratch("io_pool_out")), m.error, error);
    remove(scratch("io_pool_out"));
    gpts_model_free(&m);
    return status;
}
static gpts_status work_export(const gpts_hooks *hooks, const char *path, char *error)
{
    gpts_model m;
    gpts_status status = told(gpts_model_load(&m, path, hooks), m.error, error);
    if (status == GPTS_OK) status = told(gpts_model_export(&m, scratch("io_pool_out"), GPTS_F16), m.error, error);
    remove(scratch("io_pool_out"));
    remove("build/tests/config.json");
    gpts_model_free(&m);
    return status;
}
static gpts_status work_checkpoint(const gpts_hooks *hooks, const char *path, char *error)
{
    gpts_model m;
    gpts_trainer t;
    gpts_status status = told(gpts_checkpoint_load(&t, &m, path, hooks), t.error, error);
    if (status == GPTS_OK) status = told(gpts_checkpoint_save(&t, scratch("io_pool_out")), t.error, error);
    remove(scratch("io_pool_out"));
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return status;
}
static gpts_status work_recording(const gpts_hooks *hooks, const char *path, char *error)
{
    gpts_recording r;
    gpts_status status = told(gpts_recording_load(&r, 1, path, hooks), r.error, error);
    if (status == GPTS_OK) status = told(gpts_recording_save(&r, 1, scratch("io_pool_out")), r.error, error);
    remove(scratch("io_pool_out"));
    gpts_recording_free(&r);
    return status;
}
static gpts_status work_tokens(const gpts_hooks *hooks, const char *path, char *error)
{
    gpts_tokens t;
    gpts_status status = told(gpts_tokens_load(&t, path, hooks), t.error, error);
    if (status == GPTS_OK) status = told(gpts_tokens_save(&t, "build/tests/io_pool_out.bin"), t.error, error);
    remove("build/tests/io_pool_out.bin");
    remove("build/tests/io_pool_out.json");
    gpts_tokens_free(&t);
    return status;
}

static void fail_in_turn(pool_work work, const char *path)
{
    char name[160], error[GPTS_ERROR_BYTES] = "";
    gpts_hooks hooks = pool_hooks();
    long k, failures = 0;
    gpts_status status = GPTS_NO_MEMORY;
    snprintf(name, sizeof name, "%s", path);                        /* scratch() has one place for a path */
    for (k = 0; k < 2000 && status != GPTS_OK; k++) {
        pool.left = k; pool.live = 0;
        status = work(&hooks, name, error);
        t_equal(pool.live, 0);
        if (status == GPTS_OK) break;
        failures++;
        t_status(status, GPTS_NO_MEMORY);
        t_says(error, "memory");
        if (t_state.bad) { printf("  allocation %ld: %s\n", k, error); return; }
    }
    t_status(status, GPTS_OK);
    t_ok(failures > 2);
    remove(name);
}

static void every_allocation_may_fail(void)
{
    gpts_train_options options = gpts_train_options_default();
    gpts_real x[24] = { 0 };
    gpts_recording r;
    gpts_trainer t;
    gpts_model m;
    int k;
    for (k = 0; k < KINDS; k++) {
        t_status(case_model(&m, &kinds[k], NULL), GPTS_OK);
        t_status(gpts_model_save(&m, scratch("io_pool")), GPTS_OK);
        fail_in_turn(work_model, scratch("io_pool"));
        if (k == 0) {
            t_status(gpts_model_save(&m, scratch("io_pool")), GPTS_OK);
            fail_in_turn(work_export, scratch("io_pool"));
        }
        memset(&t, 0, sizeof t);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        t_status(gpts_checkpoint_save(&t, scratch("io_pool")), GPTS_OK);
        fail_in_turn(work_checkpoint, scratch("io_pool"));
        gpts_trainer_free(&t);
        gpts_model_free(&m);
        if (t_state.bad) { printf("  that was %s\n", kinds[k].name); return; }
    }
    memset(&r, 0, sizeof r);
    r.layer = 1; r.n_sequences = 2; r.T = 3; r.C = 4; r.x = r.y = x;
    t_status(gpts_recording_save(&r, 1, scratch("io_pool")), GPTS_OK);
    fail_in_turn(work_recording, scratch("io_pool"));
    write_bytes("build/tests/io_pool.bin", "\1\0\2\0", 4);
    write_bytes("build/tests/io_pool.json", "{\"vocab_size\": 9}", 17);
    fail_in_turn(work_tokens, "build/tests/io_pool.bin");
    remove("build/tests/io_pool.json");
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(halves_keep_every_value);
    T(halves_round_to_nearest_even);
    T(the_writer_gives_the_reference_bytes);
    T(what_is_written_is_read_back);
    T(the_writer_refuses_what_it_could_not_read);
    T(E41_names_keep_their_zero_bytes);
    T(shapes_whose_products_wrap_are_refused);
    T(a_header_of_many_names_is_read_in_short);
    T(E28_a_sparse_file_of_5_GB_is_read_at_its_end);
    T(a_file_cut_while_it_is_read_is_told);
    T(folders_and_missing_files_get_a_sentence);
    T(models_of_every_kind_come_back);
    T(numbers_in_a_comma_locale_are_the_same);
    T(gpt2_files_give_the_plain_models_logits);
    T(an_untied_head_is_seen_in_the_file);
    T(nanogpt_files_give_the_plain_models_logits);
    T(shards_are_one_model);
    T(llmc_files_give_the_plain_models_logits);
    T(halves_and_doubles_load);
    T(a_config_beside_the_file_is_read);
    T(exported_models_load_with_their_config);
    T(configs_that_do_not_fit_the_tensors_are_refused);
    T(tensors_that_do_not_fit_are_refused);
    T(static_heads_load_as_the_file_says);
    T(static_heads_that_lie_are_refused);
    T(a_resumed_run_has_the_same_bits);
    T(checkpoints_know_what_is_trained);
    T(checkpoints_that_lie_are_refused);
    T(approximators_come_back);
    T(recordings_come_back);
    T(tokens_come_back);
    T(every_allocation_may_fail);
    return t_end();
}

/* fuzz.c - everything that reads bytes, fed with any bytes: never a crash, a leak, an
   allocation out of proportion (4 MB and 64 times the input), or an error without a
   sentence.  The target is named in the environment:

     clang -fsanitize=fuzzer,address,undefined ...; TARGET=model fuzz ...  (make fuzz)
     cc    -DSTANDALONE ...                                                any compiler

   The stand-alone program:  fuzz FILE...         runs files through every target (regressions)
                             fuzz --time S DIR    mutates the files of DIR for S seconds
                             fuzz --seeds DIR     writes small valid files to start from   */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#include <time.h>
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "../models.h"
#include "../tokenizer_files.h"

static struct { size_t bytes, limit, blocks; } memory;
static void *fuzz_allocate(void *context, size_t bytes)
{
    void *p;
    (void)context;
    if (memory.bytes + bytes > memory.limit || memory.bytes + bytes < bytes) {
        fprintf(stderr, "an allocation of %llu bytes is out of proportion\n", (unsigned long long)bytes);
        abort();
    }
    p = malloc(bytes);
    if (p) { memory.bytes += bytes; memory.blocks++; }
    return p;
}
static void fuzz_release(void *context, void *p, size_t bytes)
{
    (void)context;
    memory.bytes -= bytes; memory.blocks--;
    free(p);
}
static gpts_hooks fuzz_hooks(size_t size)
{
    gpts_hooks h;
    memset(&h, 0, sizeof h);
    memset(&memory, 0, sizeof memory);
    memory.limit = (4u << 20) + 64 * size;
    h.allocate = fuzz_allocate; h.release = fuzz_release; h.threads = 1;
    return h;
}
static void must(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Files read by path only: a folder of this process, in memory where there is /dev/shm. */
static const char *in_folder(const char *name)
{
    static char path[4][160], folder[100];
    static int next;
    char *to = path[next++ & 3];
    if (!folder[0]) {
#if defined(__unix__) || defined(__APPLE__)
        snprintf(folder, sizeof folder, "%s/gptstatic_fuzz_%ld", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", (long)getpid());
        mkdir(folder, 0700);
#else
        snprintf(folder, sizeof folder, ".");
#endif
    }
    snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}
static const char *as_file(const char *name, const uint8_t *data, size_t size)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(data, 1, size, f) == size && !fclose(f), "cannot write the scratch file");
    return path;
}

static void fuzz_safetensors(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_file f;
    gpts_real x[4];
    int32_t k[4];
    size_t i;
    memset(&f, 0, sizeof f);
    if (gpts_file_open_memory(&f, data, size, &h) != GPTS_OK) must(f.error[0] != 0, "no sentence");
    for (i = 0; i < f.n_tensors; i++) {
        size_t n = f.tensors[i].count < 4 ? (size_t)f.tensors[i].count : 4;
        (void)gpts_file_read(&f, &f.tensors[i], f.tensors[i].count - n, n, x);
        (void)gpts_file_read_i32(&f, &f.tensors[i], f.tensors[i].count - n, n, k);
        must(gpts_file_find(&f, f.tensors[i].name) != NULL || memchr(f.tensors[i].name, 0, f.tensors[i].name_bytes) != NULL, "a tensor is not found");
    }
    gpts_file_close(&f);
    must(memory.blocks == 0, "leak");
}

/* What loads must also run. */
static void use_model(gpts_model *m, gpts_status status)
{
    static const int32_t tokens[3] = { 0, 0, 0 };
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    if (status != GPTS_OK) {
        must(m->error[0] != 0, "no sentence");
        must(!m->parameters && !m->layers, "a failed load leaves a model");
    } else {
        batch.tokens = tokens; batch.B = 1; batch.T = 3;
        memory.limit = (size_t)1 << 28;
        (void)gpts_model_forward(m, &batch, NULL, NULL);
    }
    gpts_model_free(m);
    must(memory.blocks == 0, "leak");
}

static void fuzz_model(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_model m;
    memset(&m, 0, sizeof m);
    use_model(&m, gpts_model_load_memory(&m, data, size, &h));
}

static void fuzz_checkpoint(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_model m;
    gpts_trainer t;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    if (gpts_checkpoint_load(&t, &m, as_file("input", data, size), &h) != GPTS_OK) must(t.error[0] != 0, "no sentence");
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    must(memory.blocks == 0, "leak");
}

static uint64_t number_at(const uint8_t *p) { return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24; }

/* llm.c's files must be as long as their header says, which mutation alone hardly meets: the
   bytes as they are, and again cut or repeated to the size that the first eight numbers ask for. */
static void fuzz_llmc(const uint8_t *data, size_t size)
{
    enum { MOST = 1 << 16 };
    static uint8_t file[MOST];
    gpts_hooks h = fuzz_hooks(size);
    gpts_model m;
    double V, T, L, C, bytes;
    size_t n = size, i;
    memset(&m, 0, sizeof m);
    use_model(&m, gpts_model_load(&m, as_file("input", data, size), &h));
    if (size < 32) return;
    T = (double)number_at(data + 8); L = (double)number_at(data + 16); C = (double)number_at(data + 24); V = (double)number_at(data + 28);
    bytes = 1024 + (data[4] == 5 ? 2 : 4) * (C * (V + T + 2) + L * C * (12 * C + 13));
    if (bytes > MOST) return;
    n = (size_t)bytes;
    for (i = 0; i < n; i++) file[i] = data[i < size ? i : size / 2 + i % (size - size / 2)];
    file[0] = 0xC6; file[1] = 0xD7; file[2] = 0x34; file[3] = 0x01;                   /* 20240326 */
    for (i = 5; i < 8; i++) file[i] = 0;
    h = fuzz_hooks(n);
    use_model(&m, gpts_model_load(&m, as_file("input", file, n), &h));
}

/* Two sound models under other people's names, and what stands beside them in their folder. */
static const model_case guest =
    { "fuzz_guest", 5, 6, 2, 2, 4, -1, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 1,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
static char gpt2[160], llama[160];
static void write_guests(void)
{
    gpts_config config = gpts_config_attention_only(2, 2, 4);
    gpts_model m;
    if (gpt2[0]) return;
    snprintf(gpt2, sizeof gpt2, "%s", in_folder("model.safetensors"));
    snprintf(llama, sizeof llama, "%s", in_folder("llama.safetensors"));
    must(case_model(&m, &guest, NULL) == GPTS_OK && gpts_model_export(&m, gpt2, GPTS_F32) == GPTS_OK, m.error);
    gpts_model_free(&m);
    config.vocab_size = 5; config.n_positions = 6;
    must(gpts_model_init(&m, &config, 1, NULL) == GPTS_OK && gpts_model_save_mapped(&m, llama, NULL, NULL) == GPTS_OK, m.error);
    gpts_model_free(&m);
}

/* Settings, as config.json and as a map's; and the same bytes as an index of shards. */
static void fuzz_config(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_mapping mapping;
    gpts_model m;
    gpts_status status;
    const char *path;
    write_guests();
    memset(&m, 0, sizeof m); memset(&mapping, 0, sizeof mapping);
    path = as_file("config.json", data, size);
    use_model(&m, gpts_model_load(&m, gpt2, &h));
    mapping.config = path;
    memory.limit = (4u << 20) + 64 * size;
    status = gpts_model_load_mapped(&m, llama, &mapping, &h);
    gpts_release(&h, mapping.table);
    use_model(&m, status);
    path = as_file("model.safetensors.index.json", data, size);
    memory.limit = (4u << 20) + 64 * size;
    use_model(&m, gpts_model_load(&m, path, &h));
}

/* A map of names, for reading and then for writing. */
static void fuzz_map(const uint8_t *data, size_t size)
{
    static const int32_t tokens[4] = { 0, 1, 2, 3 };
    const char *path = as_file("map.json", data, size), *file;
    gpts_mapping mapping;
    gpts_model m;
    gpts_status status;
    int k;
    write_guests();
    remove(in_folder("config.json"));
    for (k = 0; k < 2; k++) {
        gpts_hooks h = fuzz_hooks(size);
        file = k ? gpt2 : llama;
        memset(&m, 0, sizeof m); memset(&mapping, 0, sizeof mapping);
        mapping.map = path;
        mapping.n_head = 2;
        if (size % 2) { mapping.tokens = tokens; mapping.n = 4; }
        status = gpts_model_load_mapped(&m, file, &mapping, &h);
        gpts_release(&h, mapping.table);
        mapping.table = NULL;
        if (status == GPTS_OK && gpts_model_save_mapped(&m, in_folder("back.safetensors"), file, &mapping) != GPTS_OK) must(m.error[0] != 0, "no sentence");
        gpts_release(&h, mapping.table);
        use_model(&m, status);
    }
}

static void fuzz_approximator(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_approximator a;
    gpts_recording r;
    memset(&a, 0, sizeof a); memset(&r, 0, sizeof r);
    if (gpts_approximator_load(&a, as_file("input", data, size), &h) != GPTS_OK) must(a.error[0] != 0, "no sentence");
    gpts_approximator_free(&a);
    if (gpts_recording_load(&r, 0, as_file("input", data, size), &h) != GPTS_OK) must(r.error[0] != 0, "no sentence");
    gpts_recording_free(&r);
    must(memory.blocks == 0, "leak");
}

static void fuzz_tokens(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_tokens t;
    memset(&t, 0, sizeof t);
    if (gpts_tokens_load(&t, as_file("input", data, size), &h) != GPTS_OK) must(t.error[0] != 0, "no sentence");
    gpts_tokens_free(&t);
    must(memory.blocks == 0, "leak");
}

/* Ids within the vocabulary, and the bytes come back where the kind promises it. */
static void use_tokenizer(gpts_tokenizer *k, const char *text, size_t size, int round_trip)
{
    size_t n = 0, room, bytes = 0;
    int32_t *ids;
    char *back;
    size_t i;
    if (gpts_tokenizer_encode(k, text, size, NULL, &n) != GPTS_OK) { must(k->error[0] != 0, "no sentence"); return; }
    ids = (int32_t *)malloc((n + 1) * sizeof *ids);
    room = n;
    must(gpts_tokenizer_encode(k, text, size, ids, &room) == GPTS_OK && room == n, "the count and the ids differ");
    for (i = 0; i < n; i++) must(ids[i] >= 0 && ids[i] < k->vocab_size, "an id is outside the vocabulary");
    if (gpts_tokenizer_decode(k, ids, n, NULL, &bytes) == GPTS_OK) {
        back = (char *)malloc(bytes + 1);
        room = bytes;
        must(gpts_tokenizer_decode(k, ids, n, back, &room) == GPTS_OK && room == bytes, "the count and the bytes differ");
        if (round_trip) must(bytes == size && (!size || !memcmp(back, text, size)), "the text does not come back");
        free(back);
    } else must(!round_trip, "decoding fails");
    free(ids);
}

static void fuzz_tokenizer(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_tokenizer k;
    memset(&k, 0, sizeof k);
    if (gpts_tokenizer_load_memory(&k, data, size, &h) != GPTS_OK) must(k.error[0] != 0, "no sentence");
    else {
        use_tokenizer(&k, "the cat\xff 12's \xc3\xa9", 15, 0);
        (void)gpts_tokenizer_load_ids(&k, data, size);
    }
    gpts_tokenizer_free(&k);
    must(memory.blocks == 0, "leak");
}

static void fuzz_text(const uint8_t *data, size_t size)
{
    static const char corpus[] = "the cat sat on the mat, the cat's hat is the cat's hat; \xc3\xa9\xff 123 1234\n\n  the end";
    gpts_hooks h = fuzz_hooks(size);
    gpts_tokenizer k;
    int kind;
    for (kind = 0; kind < 4; kind++) {
        gpts_status s;
        memset(&k, 0, sizeof k);
        s = kind == 0 ? gpts_tokenizer_bytes(&k, &h)
          : kind == 1 ? gpts_tokenizer_chars(&k, (const char *)data, size, &h)
          : kind == 2 ? gpts_tokenizer_train(&k, corpus, sizeof corpus - 1, 300, &h)
                      : gpts_tokenizer_train(&k, (const char *)data, size, 300, &h);
        if (s == GPTS_OK) use_tokenizer(&k, (const char *)data, size, 1);
        else must(k.error[0] != 0, "no sentence");
        gpts_tokenizer_free(&k);
    }
    must(memory.blocks == 0, "leak");
}

typedef void (*target)(const uint8_t *data, size_t size);
static const struct { const char *name; target run; } targets[] = {
    { "safetensors", fuzz_safetensors }, { "model", fuzz_model }, { "config", fuzz_config }, { "map", fuzz_map }, { "llmc", fuzz_llmc },
    { "checkpoint", fuzz_checkpoint }, { "approximator", fuzz_approximator }, { "tokens", fuzz_tokens }, { "tokenizer", fuzz_tokenizer }, { "text", fuzz_text } };
enum { TARGETS = (int)(sizeof targets / sizeof targets[0]) };
static target chosen(void)
{
    const char *name = getenv("TARGET");
    int i;
    for (i = 0; name && i < TARGETS; i++) if (!strcmp(name, targets[i].name)) return targets[i].run;
    must(0, "TARGET names no target");
    return NULL;
}
static void timed(target run, const uint8_t *data, size_t size)
{
    clock_t before = clock();                     /* the process's time: a busy machine is no hang */
    run(data, size);
    must(clock() - before < CLOCKS_PER_SEC, "more than a second");
}

#ifndef STANDALONE

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static target run;
    if (!run) run = chosen();
    timed(run, data, size);
    return 0;
}

#else

static const model_case plain =
    { "fuzz", 5, 6, 1, 2, 4, 3, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 0,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
static const model_case fixed_heads =
    { "fuzz_static", 5, 6, 1, 4, 8, 0, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_TANH, 0, 1,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {6,0,0},{1,0,0}, 6,2,0 };

static void write_bytes(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[300];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    must(f && fwrite(bytes, 1, n, f) == n && !fclose(f), path);
}
static void write_text(const char *folder, const char *name, const char *text) { write_bytes(folder, name, text, strlen(text)); }
static int write_seeds(const char *folder)
{
    static const char text[] = "the cat sat on the mat, the cat's hat is the cat's hat; \xc3\xa9\xff 123 1234\n\n  the end";
    gpts_train_options options = gpts_train_options_default();
    const model_case *c;
    gpts_tokenizer k;
    gpts_approximator a;
    gpts_real block[43];
    char path[300];
    int i;
    for (i = 0; i < 2; i++) {
        gpts_model m;
        gpts_trainer t;
        c = i ? &fixed_heads : &plain;
        memset(&t, 0, sizeof t);
        must(case_model(&m, c, NULL) == GPTS_OK, m.error);
        snprintf(path, sizeof path, "%s/%s.safetensors", folder, c->name);
        must(gpts_model_save(&m, path) == GPTS_OK, m.error);
        must(gpts_trainer_init(&t, &m, &options) == GPTS_OK, t.error);
        snprintf(path, sizeof path, "%s/%s_checkpoint.safetensors", folder, c->name);
        must(gpts_checkpoint_save(&t, path) == GPTS_OK, t.error);
        gpts_trainer_free(&t); gpts_model_free(&m);
    }
    memset(&a, 0, sizeof a); memset(block, 0, sizeof block); memset(&k, 0, sizeof k);
    a.C = 4; a.window = 2; a.hidden = 3; a.fc_w = block; a.fc_b = block + 24; a.proj_w = block + 27; a.proj_b = block + 39;
    snprintf(path, sizeof path, "%s/approximator.safetensors", folder);
    must(gpts_approximator_save(&a, path) == GPTS_OK, a.error);
    must(gpts_tokenizer_train(&k, text, sizeof text - 1, 280, NULL) == GPTS_OK, k.error);
    snprintf(path, sizeof path, "%s/trained.bpe", folder);
    must(gpts_tokenizer_save(&k, path) == GPTS_OK, k.error);
    gpts_tokenizer_free(&k);
    must(gpts_tokenizer_chars(&k, text, sizeof text - 1, NULL) == GPTS_OK, k.error);
    snprintf(path, sizeof path, "%s/chars.json", folder);
    must(gpts_tokenizer_save(&k, path) == GPTS_OK, k.error);
    gpts_tokenizer_free(&k);
    write_text(folder, "merges.txt", merges_file);
    write_text(folder, "wordpiece.json", wordpiece_file);
    {
        static char file[8192];
        write_bytes(folder, "ranks.tiktoken", file, ranks_file(file, sizeof file));
        write_bytes(folder, "bpe.json", file, ids_file(file, sizeof file, 1));
        write_bytes(folder, "ids.json", file, ids_file(file, sizeof file, 0));
    }
    write_text(folder, "config.json", "{\"vocab_size\":5,\"n_positions\":6,\"n_ctx\":6,\"n_layer\":2,\"n_head\":2,\"n_embd\":4,\"n_inner\":null,\"activation_function\":\"gelu_new\","
               "\"layer_norm_epsilon\":1e-05,\"tie_word_embeddings\":true,\"scale_attn_weights\":true,\"model_type\":\"gpt2\"}");
    write_text(folder, "nanogpt.json", "{\"block_size\":6,\"n_head\":2,\"bias\":true,\"approx_activation\":\"relu\",\"position\":\"rope\",\"norm\":\"none\",\"rope_theta\":10000.0,\"add_cross_attention\":false}");
    write_text(folder, "llama.json", "{\"vocab_size\":5,\"hidden_size\":4,\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":2,\"max_position_embeddings\":6,"
               "\"rope_theta\":1e4,\"unscaled_scores\":true,\"position\":\"none\"}");
    write_text(folder, "map.json", "{\"{*}layers.{i}.{*}q_proj.weight\":\"h.{i}.attn.q.weight [out,in]\",\"lm_head.weight\":\"lm_head.weight\","
               "\"@config\":{\"num_attention_heads\":2,\"position\":\"none\"},\"@probe\":{\"tokens\":[1,2],\"ids\":[0,3],\"logits\":[0.25,-1.5]}}");
    write_text(folder, "map2.json", "{\"model.{*}k_proj.weight\":null,\"{*}out_proj.weight\":null,\"transformer.h.{i}.mlp.c_fc.bias\":\"h.{i}.mlp.c_fc.bias\"}");
    {   /* GPT-2's names as an index of shards that is a config too, and as a map */
        static const char *const kinds[] = { "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj", "ln_f" };
        static char index[8000], map[8000];
        size_t n, o;
        int k, l, w;
        n = (size_t)snprintf(index, sizeof index, "{\"n_head\":2,\"metadata\":{\"total_size\":800},\"weight_map\":{\"transformer.wte.weight\":\"model.safetensors\",\"transformer.wpe.weight\":\"model.safetensors\"");
        o = (size_t)snprintf(map, sizeof map, "{\"transformer.wte.weight\":\"wte.weight\",\"transformer.wpe.weight\":\"wpe.weight\"");
        for (k = 0; k < 7; k++)
            for (w = 0; w < 2; w++) {
                const char *part = w ? "bias" : "weight", *in = k < 6 ? "h.{i}." : "";
                o += (size_t)snprintf(map + o, sizeof map - o, ",\"transformer.%s%s.%s\":\"%s%s.%s%s\"", in, kinds[k], part, in, kinds[k], part,
                                      !w && (k == 1 || k == 2 || k == 4 || k == 5) ? " [in,out]" : "");
                for (l = 0; l < (k < 6 ? 2 : 1); l++) {
                    char layer[8] = "h.0.";
                    layer[2] = (char)('0' + l);
                    n += (size_t)snprintf(index + n, sizeof index - n, ",\"transformer.%s%s.%s\":\"model.safetensors\"", k < 6 ? layer : "", kinds[k], part);
                }
            }
        strcat(index, "}}"); strcat(map, "}");
        write_text(folder, "index.json", index);
        write_text(folder, "gpt2map.json", map);
    }
    {   /* llm.c: 256 numbers, then the weights; and its tokens */
        enum { C = 4, V = 5, T = 6, COUNT = C * (V + T + 2) + C * (12 * C + 13) };
        static uint8_t file[1024 + 4 * COUNT];
        const uint32_t head[8] = { 20240326, 3, T, V, 1, 2, C, V };
        for (i = 0; i < 32; i++) file[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
        for (i = 1024; i < (int)sizeof file; i++) file[i] = (uint8_t)(i % 2 ? 0x3D : i * 7);
        write_bytes(folder, "llmc.bin", file, sizeof file);
        file[4] = 5;
        write_bytes(folder, "llmc_half.bin", file, 1024 + 2 * COUNT);
        memset(file, 0, sizeof file);
        file[0] = 0x88; file[1] = 0xD8; file[2] = 0x34; file[3] = 1; file[4] = 1; file[8] = 6;      /* 20240520, 1, 6 */
        write_bytes(folder, "llmc_tokens.bin", file, 1024 + 12);
    }
    write_text(folder, "text.txt", text);
    write_text(folder, "text2.txt", "It's  we'll\t\n \n x1234 \xe2\x80\x8b\xf0\x9f\x98\x80 ...!!!<|endoftext|>");
    return 0;
}

static uint8_t *read_whole(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t room = 0, got;
    *size = 0;
    if (!f) return NULL;
    do {
        if (*size == room) { room = room * 2 + 4096; data = (uint8_t *)realloc(data, room); if (!data) break; }
        got = fread(data + *size, 1, room - *size, f);
        *size += got;
    } while (got);
    fclose(f);
    return data;
}

/* Flips, cuts, repeats and numbers, a few at a time. */
static size_t mutate(uint8_t *to, size_t room, const uint8_t *from, size_t size, gpts_rng *rng)
{
    static const char *const words[] = { "\"", "0", "9", "18446744073709551615", "-1", "1e308", "[", "{", "}", "]", ",", ":", "null", "\\u0000", "\xff", "\n", " ",
                                         "F32", "I32", "BF16", "shape", "dtype", "data_offsets", "__metadata__", "config", "n_layer", "merges", "vocab" };
    int k, n = 1 + (int)gpts_rng_below(rng, 6);
    if (size > room) size = room;
    memcpy(to, from, size);
    for (k = 0; k < n; k++) {
        size_t at = size ? (size_t)gpts_rng_below(rng, size) : 0, len;
        switch (gpts_rng_below(rng, 6)) {
        case 0: if (size) to[at] = (uint8_t)(to[at] ^ 1u << gpts_rng_below(rng, 8)); break;
        case 1: if (size) to[at] = (uint8_t)gpts_rng_bits(rng); break;
        case 2: size = at; break;
        case 3: len = (size_t)gpts_rng_below(rng, size - at + 1); if (size + len <= room) { memmove(to + at + len, to + at, size - at); size += len; } break;
        case 4: len = (size_t)gpts_rng_below(rng, size - at + 1); memmove(to + at, to + at + len, size - at - len); size -= len; break;
        default: { const char *w = words[gpts_rng_below(rng, sizeof words / sizeof words[0])]; len = strlen(w);
                   if (at + len <= room) { memcpy(to + at, w, len); if (at + len > size) size = at + len; } }
        }
    }
    return size;
}

static int run_for(double seconds, const char *folder)
{
    enum { FILES = 64, ROOM = 1 << 16 };
    uint8_t *seed[FILES], *buffer = (uint8_t *)malloc(ROOM);
    size_t size[FILES], n = 0, runs = 0;
    time_t end = time(NULL) + (time_t)seconds;
    target run = chosen();
    gpts_rng rng;
    rng.seed = (uint64_t)time(NULL); rng.counter = 0;
#if defined(__unix__) || defined(__APPLE__)
    {
        DIR *d = opendir(folder);
        struct dirent *e;
        char path[600];
        while (d && (e = readdir(d)) != NULL && n < FILES) {
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
            seed[n] = read_whole(path, &size[n]);
            if (seed[n]) n++;
        }
        if (d) closedir(d);
    }
#endif
    must(n > 0, "no seeds in the folder");
    printf("seed %llu, %d files\n", (unsigned long long)rng.seed, (int)n);
    while (time(NULL) < end) {
        size_t k = (size_t)gpts_rng_below(&rng, n), len = mutate(buffer, ROOM, seed[k], size[k], &rng);
        FILE *last = fopen("build/fuzz/last-input", "wb");           /* what to look at after a crash */
        if (last) { fwrite(buffer, 1, len, last); fclose(last); }
        timed(run, buffer, len);
        runs++;
    }
    while (n--) free(seed[n]);
    free(buffer);
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}

int main(int argc, char **argv)
{
    int i, k;
    if (argc == 3 && !strcmp(argv[1], "--seeds")) return write_seeds(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "--time")) return run_for(strtod(argv[2], NULL), argv[3]);
    for (i = 1; i < argc; i++) {
        size_t size;
        uint8_t *data = read_whole(argv[i], &size), *exact;
        if (!data) { fprintf(stderr, "cannot read %s\n", argv[i]); return 1; }
        exact = (uint8_t *)malloc(size + 1);
        memcpy(exact, data, size);
        for (k = 0; k < TARGETS; k++) targets[k].run(exact, size);
        free(exact); free(data);
    }
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
#endif

/* fuzz.c - everything that reads bytes, fed with any bytes: never a crash, a leak, an
   allocation out of proportion (4 MB and 64 times the input), or an error without a
   sentence.  One target each, chosen at compile time:

     clang -fsanitize=fuzzer,address,undefined -DTARGET=fuzz_model ...     (make fuzz)
     cc    -DSTANDALONE -DTARGET=fuzz_model ...                            any compiler

   The stand-alone program:  fuzz FILE...         runs files (regressions)
                             fuzz --time S DIR    mutates the files of DIR for S seconds
                             fuzz --seeds DIR     writes small valid files to start from   */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <unistd.h>
#endif
#include <time.h>
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "../models.h"

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

/* Files read by path only. */
static const char *as_file(const uint8_t *data, size_t size)
{
    static char path[100];
    FILE *f;
#if defined(__unix__) || defined(__APPLE__)
    snprintf(path, sizeof path, "/tmp/gptstatic_fuzz_%ld", (long)getpid());
#else
    snprintf(path, sizeof path, "gptstatic_fuzz.tmp");
#endif
    f = fopen(path, "wb");
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

static void fuzz_model(const uint8_t *data, size_t size)
{
    static const int32_t tokens[3] = { 0, 0, 0 };
    gpts_hooks h = fuzz_hooks(size);
    gpts_model m;
    gpts_batch batch;
    memset(&m, 0, sizeof m); memset(&batch, 0, sizeof batch);
    if (gpts_model_load_memory(&m, data, size, &h) != GPTS_OK) {
        must(m.error[0] != 0, "no sentence");
        must(!m.parameters && !m.layers, "a failed load leaves a model");
    } else {
        batch.tokens = tokens; batch.B = 1; batch.T = 3;
        memory.limit = (size_t)1 << 28;
        (void)gpts_model_forward(&m, &batch, NULL, NULL);
    }
    gpts_model_free(&m);
    must(memory.blocks == 0, "leak");
}

static void fuzz_checkpoint(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_model m;
    gpts_trainer t;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    if (gpts_checkpoint_load(&t, &m, as_file(data, size), &h) != GPTS_OK) must(t.error[0] != 0, "no sentence");
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    must(memory.blocks == 0, "leak");
}

static void fuzz_approximator(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_approximator a;
    gpts_recording r;
    memset(&a, 0, sizeof a); memset(&r, 0, sizeof r);
    if (gpts_approximator_load(&a, as_file(data, size), &h) != GPTS_OK) must(a.error[0] != 0, "no sentence");
    gpts_approximator_free(&a);
    if (gpts_recording_load(&r, 0, as_file(data, size), &h) != GPTS_OK) must(r.error[0] != 0, "no sentence");
    gpts_recording_free(&r);
    must(memory.blocks == 0, "leak");
}

static void fuzz_tokens(const uint8_t *data, size_t size)
{
    gpts_hooks h = fuzz_hooks(size);
    gpts_tokens t;
    memset(&t, 0, sizeof t);
    if (gpts_tokens_load(&t, as_file(data, size), &h) != GPTS_OK) must(t.error[0] != 0, "no sentence");
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

#ifndef TARGET
#define TARGET fuzz_model
#endif

#ifndef STANDALONE

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { TARGET(data, size); return 0; }

#else

static void all(const uint8_t *data, size_t size)
{
    fuzz_safetensors(data, size); fuzz_model(data, size); fuzz_checkpoint(data, size);
    fuzz_approximator(data, size); fuzz_tokens(data, size); fuzz_tokenizer(data, size); fuzz_text(data, size);
}

static const model_case plain =
    { "fuzz", 5, 6, 1, 2, 4, 3, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 0,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
static const model_case fixed_heads =
    { "fuzz_static", 5, 6, 1, 4, 8, 0, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_TANH, 0, 1,
      1, 4, NONE, 0, 0,0,0,0,GPTS_RELU, {6,0,0},{1,0,0}, 6,2,0 };

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[300];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    must(f && fwrite(text, 1, strlen(text), f) == strlen(text) && !fclose(f), path);
}
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
    write_text(folder, "merges.txt", "#version: 0.2\n\xc4\xa0 t\nh e\n\xc4\xa0t he\ni n\n");
    write_text(folder, "tiny.tiktoken", "IQ== 0\nIg== 1\nIw== 2\nJA== 3\n");
    write_text(folder, "wordpiece.json", "{\"version\":\"1.0\",\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":\"WordPiece\","
               "\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\"vocab\":{\"[UNK]\":0,\"[EOS]\":1,\"the\":2,\"##s\":3}}}");
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
        clock_t before = clock();
        if (last) { fwrite(buffer, 1, len, last); fclose(last); }
        TARGET(buffer, len);
        must(clock() - before < CLOCKS_PER_SEC, "more than a second");
        runs++;
    }
    while (n--) free(seed[n]);
    free(buffer);
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}

int main(int argc, char **argv)
{
    int i;
    if (argc == 3 && !strcmp(argv[1], "--seeds")) return write_seeds(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "--time")) return run_for(strtod(argv[2], NULL), argv[3]);
    for (i = 1; i < argc; i++) {
        size_t size;
        uint8_t *data = read_whole(argv[i], &size), *exact;
        if (!data) { fprintf(stderr, "cannot read %s\n", argv[i]); return 1; }
        exact = (uint8_t *)malloc(size + 1);
        memcpy(exact, data, size);
        all(exact, size);
        free(exact); free(data);
    }
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
#endif

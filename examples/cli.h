/* cli.h - what the example programs share at the command line

     static int64_t layers = 4;
     static const cli_flag flags[] = {
         CLI_INT("layers", layers, 0, 1000, "layers of the model"),
         CLI_END };

     int main(int argc, char **argv)
     {
         cli_begin(argc, argv, "name", "What it does, in one sentence.", CLI_DATA, flags, "keys of --json");
         ...
         return cli_end();
     }

   A program that meets wrong input says so in one sentence on stderr and ends with
   status 1.  Files are written beside their target and renamed, so none is ever half
   written.  The library itself never prints or exits; programs may.

   Include this file first: it asks the system for POSIX names and brings gptstatic.h.   */
#ifndef CLI_H
#define CLI_H

#if !defined(_POSIX_C_SOURCE) && !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef GPTSTATIC_LINKED               /* make compiles the library once and links it;  */
#define GPTSTATIC_IMPLEMENTATION       /* by hand, one file is a whole program          */
#endif
#include "gptstatic.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#define CLI_MKDIR(path) _mkdir(path)
#define CLI_TERMINAL() _isatty(2)
#else
#include <unistd.h>
#define CLI_MKDIR(path) mkdir((path), 0777)
#define CLI_TERMINAL() isatty(2)
#endif
#ifdef GPTS_CUDA
#ifdef __cplusplus
extern "C" {
#endif
gpts_status gpts_gpu_attach(gpts_model *model, int device);
gpts_status gpts_gpu_ranks_init(gpts_ranks *ranks, int type, char *error);
void gpts_gpu_ranks_free(gpts_ranks *ranks);
#ifdef __cplusplus
}
#endif
#endif

/* ---- the state of a program --------------------------------------------------------- */

enum { CLI_PATH = 1024, CLI_LIST = 64 };

typedef enum cli_kind { CLI_KIND_END, CLI_KIND_INT, CLI_KIND_REAL, CLI_KIND_TEXT, CLI_KIND_SWITCH } cli_kind;

typedef struct cli_flag {
    const char *name;                       /* without the dashes                         */
    cli_kind kind;
    void *value;                            /* int64_t, double, const char * or int       */
    double low, high;                       /* of a number                                */
    const char *help;
} cli_flag;

#define CLI_INT(name, variable, low, high, help) { name, CLI_KIND_INT, &(variable), (double)(low), (double)(high), help }
#define CLI_REAL(name, variable, low, high, help) { name, CLI_KIND_REAL, &(variable), low, high, help }
#define CLI_TEXT(name, variable, help) { name, CLI_KIND_TEXT, &(variable), 0, 0, help }
#define CLI_SWITCH(name, variable, help) { name, CLI_KIND_SWITCH, &(variable), 0, 0, help }
#define CLI_END { NULL, CLI_KIND_END, NULL, 0, 0, NULL }

/* Groups of flags that only some programs have. */
enum { CLI_DATA = 1, CLI_MODEL = 2, CLI_GPU = 4, CLI_SHAPE = 8, CLI_TRAIN = 16, CLI_RANKS = 32 };

/* CLI_SHAPE: a new model; CLI_TRAIN: how it learns.  Programs may change the defaults. */
static struct {
    int64_t layers, heads, width, inner;
    const char *position, *activation, *norm;
    int bias, untied;
} cli_shape = { 4, 4, 128, -1, "learned", "gelu", "layer", 0, 0 };
static struct {
    int64_t context, batch, updates, warmup, eval_windows;
    double lr, min_lr, beta2, decay, clip, dropout;
} cli_train = { 128, 12, 400, -1, 128, 1e-3, 1e-4, 0.99, 0.1, 1.0, 0.0 };

static struct {
    const char *program, *about;
    int64_t seed, threads;
    const char *out, *json, *data, *tokenizer, *model;
    int64_t vocabulary;
    double validation;
    int quiet, gpu, help;
    gpts_hooks hooks;                       /* for every _init and _load: carries --threads */

    char *json_text; size_t json_size, json_room;

    char doing[64];                         /* progress: what, and when it began            */
    double began, shown; uint64_t first; int decile;
    const char *precision;                  /* of products, on the CPU                      */
} cli = { "", "", 1337, 0, "out", NULL, NULL, NULL, NULL, 512, 0.1, 0, 0, 0,
          { NULL, NULL, NULL, NULL, 0 }, NULL, 0, 0, "", 0, 0, 0, 0, "fp32" };

/* With --gpu under torchrun, mpirun or srun (CLI_RANKS): who this process is among them.  Only
   rank 0 prints and writes. */
static gpts_ranks cli_ranks;

/* ---- sentences ----------------------------------------------------------------------- */

#if defined(__GNUC__)
#define CLI_PRINTF(at) __attribute__((format(printf, at, at + 1)))
#define CLI_NORETURN __attribute__((noreturn))
#else
#define CLI_PRINTF(at)
#define CLI_NORETURN
#endif

/* One sentence on stderr, status 1.  Control characters of file names and the like
   are shown as '?', so that a terminal obeys nobody but us. */
static inline void cli_fail(const char *format, ...) CLI_PRINTF(1) CLI_NORETURN;
static inline void cli_fail(const char *format, ...)
{
    char text[2048], *p;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (p = text; *p; p++) if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    if (cli.doing[0] && CLI_TERMINAL()) fputc('\n', stderr);
    fprintf(stderr, "%s: %s\n", cli.program, text);
#ifndef _WIN32
    if (cli_ranks.size > 1) { fflush(NULL); _exit(1); }       /* at once: the others wait for this rank */
#endif
    exit(1);
}

/* CLI_TRY(gpts_model_load(&model, path, &cli.hooks), model.error); */
#define CLI_TRY(call, sentence) do { gpts_status cli_s_ = (call); \
    if (cli_s_ != GPTS_OK) cli_fail("%s", (sentence)[0] ? (sentence) : gpts_status_text(cli_s_)); } while (0)

/* Talk on stdout that --quiet silences. */
static inline void cli_say(const char *format, ...) CLI_PRINTF(1);
static inline void cli_say(const char *format, ...)
{
    va_list list;
    if (cli.quiet) return;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

static inline void *cli_memory(size_t count, size_t size)          /* zeroed; never NULL */
{
    void *p = calloc(count ? count : 1, size);
    if (!p) cli_fail("out of memory: %llu values of %u bytes", (unsigned long long)count, (unsigned)size);
    return p;
}
#define CLI_NEW(type, count) ((type *)cli_memory((size_t)(count), sizeof(type)))

static inline double cli_now(void)                                  /* seconds */
{
#ifdef _WIN32
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

/* ---- numbers and lists, strictly ------------------------------------------------------- */

/* The whole text must be a number in low .. high; `what` names it in the sentence. */
static inline double cli_number(const char *what, const char *text, int whole, double low, double high)
{
    char *end = NULL;
    double x;
    if (strspn(text, "+-.0123456789eE") != strlen(text) || !*text) cli_fail("%s takes a number, not \"%s\"", what, text);
    errno = 0;
    x = strtod(text, &end);
    if (*end || (whole && x != floor(x))) cli_fail("%s takes a %snumber, not \"%s\"", what, whole ? "whole " : "", text);
    if (!(x >= low && x <= high)) cli_fail("%s must be between %.10g and %.10g, not %s", what, low, high, text);
    return x;
}

/* "2,3" -> values[]; returns how many. */
static inline size_t cli_list(const char *what, const char *text, double low, double high, int64_t values[CLI_LIST])
{
    char word[32];
    size_t n = 0;
    while (*text) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof word || n == CLI_LIST) cli_fail("%s takes at most %d numbers with commas between", what, (int)CLI_LIST);
        memcpy(word, text, length);
        word[length] = 0;
        values[n++] = (int64_t)cli_number(what, word, 1, low, high);
        text += length + (text[length] == ',');
    }
    if (!n) cli_fail("%s takes numbers with commas between", what);
    return n;
}

/* Same, for real numbers. */
static inline size_t cli_reals(const char *what, const char *text, double low, double high, double values[CLI_LIST])
{
    char word[32];
    size_t n = 0;
    while (*text) {
        size_t length = strcspn(text, ",");
        if (length >= sizeof word || n == CLI_LIST) cli_fail("%s takes at most %d numbers with commas between", what, (int)CLI_LIST);
        memcpy(word, text, length);
        word[length] = 0;
        values[n++] = cli_number(what, word, 0, low, high);
        text += length + (text[length] == ',');
    }
    if (!n) cli_fail("%s takes numbers with commas between", what);
    return n;
}

/* "base,hybrid" -> indices into names[0..n_names-1], in the order given. */
static inline size_t cli_words(const char *what, const char *text, const char *const *names, size_t n_names, size_t chosen[CLI_LIST])
{
    size_t n = 0, i;
    while (*text) {
        size_t length = strcspn(text, ",");
        for (i = 0; i < n_names; i++) if (strlen(names[i]) == length && !strncmp(names[i], text, length)) break;
        if (i == n_names || n == CLI_LIST) {
            char all[512] = "";
            for (i = 0; i < n_names; i++) {
                size_t used = strlen(all);
                snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
            }
            cli_fail("%s knows %s, not \"%.*s\"", what, all, (int)(length > 60 ? 60 : length), text);
        }
        chosen[n++] = i;
        for (i = 0; i + 1 < n; i++) if (chosen[i] == chosen[n - 1]) cli_fail("%s names %s twice", what, names[chosen[i]]);
        text += length + (text[length] == ',');
    }
    if (!n) cli_fail("%s needs at least one name", what);
    return n;
}

/* One name of several: its index. */
static inline int cli_choice(const char *what, const char *text, const char *const *names, size_t n_names)
{
    size_t chosen[CLI_LIST];
    if (strchr(text, ',')) cli_fail("%s takes one name, not \"%s\"", what, text);
    cli_words(what, text, names, n_names, chosen);
    return (int)chosen[0];
}

/* ---- flags ------------------------------------------------------------------------------ */

static const cli_flag cli_common[] = {
    CLI_INT("seed", cli.seed, 0, 9007199254740992.0, "seed of everything random"),
    CLI_INT("threads", cli.threads, 0, 64, "threads; 0: as many as there are"),
    CLI_TEXT("out", cli.out, "folder for what is written"),
    CLI_SWITCH("quiet", cli.quiet, "no talk, no progress"),
    CLI_TEXT("json", cli.json, "write the results to this file too, as one flat object"),
    CLI_SWITCH("help", cli.help, "this text"),
    CLI_END };
static const cli_flag cli_data_flags[] = {
    CLI_TEXT("data", cli.data, "a text; without it what OUT holds, or the stories made by corpus.h"),
    CLI_TEXT("tokenizer", cli.tokenizer, "bytes, chars, bpe, gpt2, or a tokenizer's file (default bpe)"),
    CLI_INT("vocabulary", cli.vocabulary, 256, 65536, "size of a trained bpe"),
    CLI_REAL("validation", cli.validation, 0.001, 0.9, "last part of the text that is kept for validation"),
    CLI_END };
static const cli_flag cli_shape_flags[] = {
    CLI_INT("layers", cli_shape.layers, 0, 1000, "layers"),
    CLI_INT("heads", cli_shape.heads, 1, 1024, "heads a layer; divides the width"),
    CLI_INT("width", cli_shape.width, 1, 65536, "channels"),
    CLI_INT("inner", cli_shape.inner, -1, 262144, "inner width of the MLP; -1: four times the width, 0: no MLP"),
    CLI_TEXT("position", cli_shape.position, "learned, rope or none"),
    CLI_TEXT("activation", cli_shape.activation, "gelu, gelu_new or relu"),
    CLI_TEXT("norm", cli_shape.norm, "layer or none"),
    CLI_SWITCH("bias", cli_shape.bias, "biases in linear layers and norms"),
    CLI_SWITCH("untied", cli_shape.untied, "output matrix of its own"),
    CLI_END };
static const cli_flag cli_train_flags[] = {
    CLI_INT("context", cli_train.context, 0, 1048576, "tokens of a window; 0: as many as the model has positions"),
    CLI_INT("batch", cli_train.batch, 1, 65536, "windows of a batch"),
    CLI_INT("updates", cli_train.updates, 0, 1000000000, "updates"),
    CLI_REAL("lr", cli_train.lr, 0, 10, "peak learning rate"),
    CLI_REAL("min-lr", cli_train.min_lr, 0, 10, "learning rate at the end of the cosine"),
    CLI_INT("warmup", cli_train.warmup, -1, 1000000000, "updates of warm-up; -1: a twentieth of all"),
    CLI_REAL("beta2", cli_train.beta2, 0, 0.999999, "AdamW's second decay"),
    CLI_REAL("decay", cli_train.decay, 0, 10, "weight decay"),
    CLI_REAL("clip", cli_train.clip, 0, 1e9, "largest norm of the gradient; 0: any"),
    CLI_REAL("dropout", cli_train.dropout, 0, 0.99, "dropout"),
    CLI_INT("eval-windows", cli_train.eval_windows, 0, 1000000, "windows of an evaluation; 0: the whole validation text"),
    CLI_END };
static const cli_flag cli_model_flags[] = { CLI_TEXT("model", cli.model, "a .safetensors model"), CLI_END };
static const cli_flag cli_gpu_flags[] = {
    CLI_SWITCH("gpu", cli.gpu, "run on the first NVIDIA GPU (builds with CUDA only)"),
    CLI_TEXT("precision", cli.precision, "products on the CPU: fp32, or bf16: operands rounded, sums and weights fp32"),
    CLI_END };

/* Edits (insert, delete, replace) between two short words. */
static inline size_t cli_distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b), i, j;
    if (n >= 63) return 99;
    for (j = 0; j <= n; j++) row[j] = j;
    for (i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static inline void cli_help_flags(const cli_flag *flag)
{
    static const char *const value_names[] = { "", " N", " X", " TEXT", "" };
    char head[64], fallback[96];
    for (; flag->kind != CLI_KIND_END; flag++) {
        snprintf(head, sizeof head, "--%s%s", flag->name, value_names[flag->kind]);
        fallback[0] = 0;
        if (flag->kind == CLI_KIND_INT) snprintf(fallback, sizeof fallback, " [%lld]", (long long)*(const int64_t *)flag->value);
        if (flag->kind == CLI_KIND_REAL) snprintf(fallback, sizeof fallback, " [%g]", *(const double *)flag->value);
        if (flag->kind == CLI_KIND_TEXT && *(const char *const *)flag->value)
            snprintf(fallback, sizeof fallback, " [%.80s]", *(const char *const *)flag->value);
        printf("  %-22s %s%s\n", head, flag->help, fallback);
    }
}

/* Reads the command line; flags and groups as described above. `keys`: the keys that
   --json writes, for --help. */
static inline void cli_begin(int argc, char **argv, const char *program, const char *about, int groups,
                             const cli_flag *own, const char *keys)
{
    const cli_flag *sets[8];
    int n_sets = 0, s, i;
    cli.program = program;
    cli.about = about;
    sets[n_sets++] = own;
    if (groups & CLI_SHAPE) sets[n_sets++] = cli_shape_flags;
    if (groups & CLI_TRAIN) sets[n_sets++] = cli_train_flags;
    if (groups & CLI_DATA) sets[n_sets++] = cli_data_flags;
    if (groups & CLI_MODEL) sets[n_sets++] = cli_model_flags;
    if (groups & CLI_GPU) sets[n_sets++] = cli_gpu_flags;
    sets[n_sets++] = cli_common;

    for (i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            printf("%s - %s\n\n", program, about);
            for (s = 0; s < n_sets; s++) {
                cli_help_flags(sets[s]);
                if (sets[s]->kind != CLI_KIND_END) printf("\n");
            }
            printf("keys of --json: program seed%s%s\n", keys[0] ? " " : "", keys);
            exit(fflush(stdout) != 0 || ferror(stdout));
        }
    for (i = 1; i < argc; i++) {
        const char *name = argv[i], *value = strchr(name, '=');
        const cli_flag *found = NULL, *flag, *near_one = NULL;
        char what[64];
        size_t length, best = 4;
        if (strncmp(name, "--", 2) || !name[2])
            cli_fail("\"%s\" is not a flag; %s --help lists them", name, program);
        name += 2;
        length = value ? (size_t)(value - name) : strlen(name);
        for (s = 0; s < n_sets; s++)
            for (flag = sets[s]; flag->kind != CLI_KIND_END; flag++) {
                char word[64];
                size_t distance;
                if (strlen(flag->name) == length && !strncmp(flag->name, name, length)) found = flag;
                snprintf(word, sizeof word, "%.*s", (int)(length > 60 ? 60 : length), name);
                distance = cli_distance(word, flag->name);
                if (distance < best) { best = distance; near_one = flag; }
            }
        if (!found && near_one)
            cli_fail("there is no flag --%.*s; did you mean --%s?", (int)length, name, near_one->name);
        if (!found) cli_fail("there is no flag --%.*s; %s --help lists them", (int)length, name, program);
        snprintf(what, sizeof what, "--%s", found->name);
        if (found->kind == CLI_KIND_SWITCH) {
            if (value) cli_fail("%s takes no value", what);
            *(int *)found->value = 1;
            continue;
        }
        if (value) value++;
        else if (i + 1 < argc) value = argv[++i];
        else cli_fail("%s needs a value", what);
        if (found->kind == CLI_KIND_INT) *(int64_t *)found->value = (int64_t)cli_number(what, value, 1, found->low, found->high);
        else if (found->kind == CLI_KIND_REAL) *(double *)found->value = cli_number(what, value, 0, found->low, found->high);
        else {
            if (!*value) cli_fail("%s needs a value that is not empty", what);
            *(const char **)found->value = value;
        }
    }
    cli.hooks.threads = (int)cli.threads;
#ifndef GPTS_CUDA
    if (cli.gpu) cli_fail("this build has no CUDA: --gpu needs the programs that `make gpu` builds");
#else
    if (cli.gpu) {
        static char error[GPTS_ERROR_BYTES];
        CLI_TRY(gpts_gpu_ranks_init(&cli_ranks, 0, error), error);
        if (cli_ranks.size > 1 && !(groups & CLI_RANKS)) cli_fail("this program is one process, but it was started as one of %d", cli_ranks.size);
        if (cli_ranks.rank) { cli.quiet = 1; cli.json = NULL; }
    }
#endif
}

/* The settings of a new model, and of its training, as the flags say. */
static inline gpts_config cli_config(int32_t vocabulary, int64_t positions)
{
    static const char *const position[] = { "learned", "rope", "none" }, *const activation[] = { "gelu_new", "gelu", "relu" },
                      *const norm[] = { "layer", "none" };
    gpts_config config = gpts_config_default();
    if (cli_shape.width % cli_shape.heads)
        cli_fail("--heads %lld does not divide --width %lld", (long long)cli_shape.heads, (long long)cli_shape.width);
    config.vocab_size = vocabulary;
    config.n_positions = positions;
    config.n_layer = cli_shape.layers;
    config.n_head = cli_shape.heads;
    config.n_embd = cli_shape.width;
    config.n_inner = cli_shape.inner;
    config.position = (gpts_position)cli_choice("--position", cli_shape.position, position, 3);
    config.activation = (gpts_activation)cli_choice("--activation", cli_shape.activation, activation, 3);
    config.approx_activation = config.activation;
    config.norm = (gpts_norm)cli_choice("--norm", cli_shape.norm, norm, 2);
    config.bias = cli_shape.bias;
    config.tie_word_embeddings = !cli_shape.untied;
    return config;
}
static inline gpts_train_options cli_options(int64_t seed)
{
    gpts_train_options options = gpts_train_options_default();
    options.learning_rate = cli_train.lr;
    options.min_learning_rate = cli_train.min_lr < cli_train.lr ? cli_train.min_lr : cli_train.lr;
    options.warmup = (uint64_t)(cli_train.warmup < 0 ? cli_train.updates / 20 : cli_train.warmup);
    options.total = (uint64_t)cli_train.updates;
    options.beta2 = cli_train.beta2;
    options.weight_decay = cli_train.decay;
    options.clip = cli_train.clip;
    options.dropout = cli_train.dropout;
    options.seed = (uint64_t)seed;
    return options;
}

/* After a model is made or loaded: the device of --gpu, or the --precision. */
static inline void cli_place(gpts_model *model)
{
    static const char *const precision[] = { "fp32", "bf16" };
    int bf16 = cli_choice("--precision", cli.precision, precision, 2);
#ifdef GPTS_CUDA
    if (cli.gpu) { CLI_TRY(gpts_gpu_attach(model, cli_ranks.device), model->error); return; }
#endif
    if (bf16) CLI_TRY(gpts_model_precision(model, GPTS_PRECISION_BF16), model->error);
}
/* After its trainer is made or loaded: the ranks train together; `batches` are accumulated in an update. */
static inline void cli_join(gpts_trainer *trainer, int64_t batches)
{
    trainer->options.batches = (uint64_t)batches;
    CLI_TRY(gpts_trainer_ranks(trainer, &cli_ranks), trainer->error);
}
static inline void cli_same(const char *what, const void *data, size_t bytes)     /* on every rank, or none goes on */
{
    char error[GPTS_ERROR_BYTES] = "";
    CLI_TRY(gpts_ranks_same(&cli_ranks, what, data, bytes, &cli.hooks, error), error);
}
static inline int64_t cli_together(int64_t n) { return cli_ranks.size > 1 ? n * cli_ranks.size : n; }      /* n of each rank */
static inline void cli_save(gpts_model *model, const char *path)
{
    if (!cli_ranks.rank) CLI_TRY(gpts_model_save(model, path), model->error);
}

/* ---- files --------------------------------------------------------------------------------- */

/* OUT/name, in a buffer of the caller. */
static inline const char *cli_path(char path[CLI_PATH], const char *format, ...) CLI_PRINTF(2);
static inline const char *cli_path(char path[CLI_PATH], const char *format, ...)
{
    va_list list;
    int n = snprintf(path, CLI_PATH, "%s/", cli.out);
    if (n > 0 && n < CLI_PATH) {
        va_start(list, format);
        n += vsnprintf(path + n, (size_t)(CLI_PATH - n), format, list);
        va_end(list);
    }
    if (n < 0 || n >= CLI_PATH) cli_fail("the path of the output folder is too long");
    return path;
}

static inline int cli_exists(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* A whole file: beside the target, flushed, renamed. */
static inline void cli_write(const char *path, const char *text, size_t bytes)
{
    char part[CLI_PATH + 8];
    FILE *f;
    int bad;
    if (cli_ranks.rank) return;
    snprintf(part, sizeof part, "%s.part", path);
    f = fopen(part, "wb");
    if (!f) cli_fail("cannot write %s: %s", path, strerror(errno));
    bad = bytes && fwrite(text, 1, bytes, f) != bytes;
    bad = bad | (fflush(f) != 0);
    if (fclose(f) != 0 || bad || rename(part, path) != 0) {
        int reason = errno;
        remove(part);
        cli_fail("cannot write %s: %s", path, strerror(reason));
    }
}

/* Makes OUT (and the folders above it) and makes sure that files can be made there, so
   that an hour of work does not end in a sentence.  The same for the file of --json. */
static inline void cli_make_out(void)
{
    char path[CLI_PATH];
    size_t i, n = strlen(cli.out);
    if (n + 80 >= sizeof path) cli_fail("the path of the output folder is too long");
    if (cli_ranks.rank) return;
    memcpy(path, cli.out, n + 1);
    for (i = 1; i <= n; i++)
        if (path[i] == '/' || path[i] == 0) {
            char kept = path[i];
            path[i] = 0;
            if (CLI_MKDIR(path) != 0 && errno != EEXIST) cli_fail("cannot make the output folder %s: %s", path, strerror(errno));
            path[i] = kept;
        }
    cli_path(path, ".can-write");
    cli_write(path, "", 0);
    remove(path);
}
static inline void cli_check_json(void)
{
    char path[CLI_PATH];
    FILE *f;
    if (!cli.json) return;
    if (snprintf(path, sizeof path, "%s.part", cli.json) >= (int)sizeof path) cli_fail("the path of --json is too long");
    f = fopen(path, "wb");
    if (!f) cli_fail("cannot write %s: %s", cli.json, strerror(errno));
    fclose(f);
    remove(path);
}

/* ---- JSON: one flat object -------------------------------------------------------------------- */

static inline void cli_json_put(const char *text, size_t n)
{
    if (cli.json_size + n + 1 > cli.json_room) {
        size_t room = 2 * (cli.json_size + n + 1024);
        char *bigger = (char *)realloc(cli.json_text, room);
        if (!bigger) cli_fail("out of memory: the text of --json");
        cli.json_text = bigger;
        cli.json_room = room;
    }
    memcpy(cli.json_text + cli.json_size, text, n);
    cli.json_size += n;
}
static inline void cli_json_key(const char *key)
{
    char head[160];
    int n = snprintf(head, sizeof head, "%s\n  \"%.120s\": ", cli.json_size > 1 ? "," : "", key);
    cli_json_put(head, (size_t)n);
}
static inline void cli_json_real(const char *key, double x)
{
    char text[40];
    cli_json_key(key);
    if (isfinite(x)) snprintf(text, sizeof text, "%.9g", x);
    else strcpy(text, "null");
    cli_json_put(text, strlen(text));
}
static inline void cli_json_text(const char *key, const char *value)
{
    char escape[8];
    cli_json_key(key);
    cli_json_put("\"", 1);
    for (; *value; value++) {
        unsigned char c = (unsigned char)*value;
        if (c == '"' || c == '\\') snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < 32) snprintf(escape, sizeof escape, "\\u%04x", c);
        else { escape[0] = (char)c; escape[1] = 0; }
        cli_json_put(escape, strlen(escape));
    }
    cli_json_put("\"", 1);
}
/* A key that is made of parts: cli_json_named(loss, "val_loss_%s", arm); */
static inline void cli_json_named(double x, const char *format, ...) CLI_PRINTF(2);
static inline void cli_json_named(double x, const char *format, ...)
{
    char key[128];
    va_list list;
    va_start(list, format);
    vsnprintf(key, sizeof key, format, list);
    va_end(list);
    cli_json_real(key, x);
}

/* Where results begin: checks that they can be written, and notes the common keys. */
static inline void cli_results(void)
{
    cli_check_json();
    cli_json_put("{", 1);
    cli_json_text("program", cli.program);
    cli_json_real("seed", (double)cli.seed);
}
/* The last line of main. */
static inline int cli_end(void)
{
    if (cli.json && cli.json_size) {
        cli_json_put("\n}\n", 3);
        cli_write(cli.json, cli.json_text, cli.json_size);
    }
    free(cli.json_text);
    cli.json_text = NULL;
#ifdef GPTS_CUDA
    gpts_gpu_ranks_free(&cli_ranks);
#endif
    if (fflush(stdout) != 0 || ferror(stdout)) cli_fail("cannot write to the standard output: %s", errno ? strerror(errno) : "it is full or closed");
    return 0;
}

/* ---- progress ------------------------------------------------------------------------------------ */

static inline void cli_duration(char text[32], double seconds)
{
    long s = seconds < 0 ? 0 : seconds > 1e8 ? 100000000L : (long)(seconds + 0.5);
    if (s < 100) snprintf(text, 32, "%ld s", s);
    else if (s < 6000) snprintf(text, 32, "%ld min %02ld s", s / 60, s % 60);
    else snprintf(text, 32, "%ld h %02ld min", s / 3600, s / 60 % 60);
}

/* cli_progress("training", i, n, "loss %.3f", loss) with i = 0 .. n.  On a terminal: one
   line that is drawn again, with a bar, the rate and the time left; elsewhere a plain line
   at every tenth part, at most one in two seconds.                                          */
static inline void cli_progress(const char *what, uint64_t done, uint64_t of, const char *format, ...) CLI_PRINTF(4);
static inline void cli_progress(const char *what, uint64_t done, uint64_t of, const char *format, ...)
{
    enum { BAR = 20, LINE = 79 };
    double now, spent, rate, part;
    char line[256], left[32], note[80], bar[BAR + 1];
    int decile, i, filled;
    va_list list;
    if (cli.quiet) return;
    now = cli_now();
    if (strncmp(cli.doing, what, sizeof cli.doing - 1)) {
        snprintf(cli.doing, sizeof cli.doing, "%s", what);
        cli.began = cli.shown = now;
        cli.first = done;
        cli.decile = (int)(of ? done * 10 / of : 0);
        if (done < of) return;                /* nothing is known yet about the rate */
    }
    part = of ? (double)done / (double)of : 1;
    decile = (int)(part * 10);
    if (CLI_TERMINAL() ? done < of && now - cli.shown < 0.1
                       : done < of && (decile == cli.decile || now - cli.shown < 2)) return;
    cli.shown = now;
    cli.decile = decile;
    spent = now - cli.began;
    rate = spent > 0 ? (double)(done - cli.first) / spent : 0;
    cli_duration(left, done < of ? (rate > 0 ? (double)(of - done) / rate : 0) : spent);
    va_start(list, format);
    vsnprintf(note, sizeof note, format, list);
    va_end(list);
    filled = (int)(part * BAR);
    for (i = 0; i < BAR; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR] = 0;
    if (CLI_TERMINAL()) {
        snprintf(line, sizeof line, "%s [%s] %3d%% %.*f/s  %s%s  %s", what, bar, (int)(part * 100), rate < 10, rate, left,
                 done < of ? " left" : "", note);
        fprintf(stderr, "\r%-*.*s%s", LINE, LINE, line, done < of ? "" : "\n");
    } else
        fprintf(stderr, "%s %3d%%  %llu/%llu  %.*f/s  %s%s  %s\n", what, (int)(part * 100), (unsigned long long)done,
                (unsigned long long)of, rate < 10, rate, left, done < of ? " left" : "", note);
    fflush(stderr);
    if (done >= of) cli.doing[0] = 0;
}

/* ---- small sums ------------------------------------------------------------------------------------- */

static inline int cli_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static inline double cli_median(double *x, size_t n)              /* sorts x */
{
    qsort(x, n, sizeof *x, cli_compare);
    return n ? 0.5 * (x[(n - 1) / 2] + x[n / 2]) : 0;
}
static inline double cli_mean(const double *x, size_t n)
{
    double sum = 0;
    size_t i;
    for (i = 0; i < n; i++) sum += x[i];
    return n ? sum / (double)n : 0;
}
static inline double cli_deviation(const double *x, size_t n)     /* of a sample; 0 for one */
{
    double m = cli_mean(x, n), sum = 0;
    size_t i;
    for (i = 0; i < n; i++) sum += (x[i] - m) * (x[i] - m);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : 0;
}

#endif

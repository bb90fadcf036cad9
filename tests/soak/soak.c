/* soak.c - train, freeze, save, load, generate, over and over, killed at random moments.

     soak SECONDS FOLDER

   A child process goes on from the checkpoint it finds: some updates, now and then a head
   frozen, pruned, or a layer approximated (and a new model when nothing is left to freeze),
   a save, a load that must have the same bits and train on with the same bits, some text
   from a session.  After each save it tells the parent its number.  The parent kills it
   (SIGKILL) and looks at the file: it must load, and be no older than the last save that was
   told.  One child in ten is let alone for a while, to see that its memory does not grow.  */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "../test.h"
#include "../models.h"

enum { B = 4, T = 32, HEADS = 8 };
static char checkpoint[300];
static const char *folder;
static const char corpus[] =
    "The old lamp hums above the door, and rain walks over the tin roof; a cat counts the drops, "
    "one, two, three, until the kettle sings and nobody knows what number came next. ";

typedef struct told { uint64_t save; uint64_t cycles, frozen, models; size_t live, resident; int failed; char why[200]; } told;

static size_t live_bytes;
static void *count_allocate(void *context, size_t bytes) { (void)context; live_bytes += bytes; return malloc(bytes); }
static void count_release(void *context, void *memory, size_t bytes) { (void)context; live_bytes -= bytes; free(memory); }
static gpts_hooks hooks;

static size_t resident_bytes(void)                       /* Linux; 0 elsewhere */
{
    unsigned long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) { if (fscanf(f, "%lu %lu", &all, &resident) != 2) resident = 0; fclose(f); }
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the child --------------------------------------------------------------------------- */

static int child_pipe;
static told child_told;
static void tell(void) { if (write(child_pipe, &child_told, sizeof child_told) != (ssize_t)sizeof child_told) _exit(2); }
static void need(gpts_status status, const char *what, const char *error)
{
    if (status == GPTS_OK) return;
    child_told.failed = 1;
    snprintf(child_told.why, sizeof child_told.why, "%s: %.150s", what, error);
    tell();
    _exit(1);
}
static void batch(int32_t *tokens, int32_t *targets, uint64_t from)
{
    size_t b, t, n = sizeof corpus - 1;
    for (b = 0; b < B; b++)
        for (t = 0; t < T; t++) {
            tokens[b * T + t] = (int32_t)(unsigned char)corpus[(from + b * 41 + t) % n];
            targets[b * T + t] = (int32_t)(unsigned char)corpus[(from + b * 41 + t + 1) % n];
        }
}
static void fresh(gpts_model *m, gpts_trainer *t, uint64_t seed)
{
    gpts_config config = gpts_config_default();
    gpts_train_options options = gpts_train_options_default();
    config.vocab_size = 256; config.n_positions = T; config.n_layer = 2; config.n_head = HEADS / 2; config.n_embd = 32;
    config.position = seed % 2 ? GPTS_POSITION_ROPE : GPTS_POSITION_LEARNED;
    config.bias = seed % 3 != 0;
    options.dropout = 0.1; options.learning_rate = 3e-3; options.seed = seed;
    need(gpts_model_init(m, &config, seed, &hooks), "init", m->error);
    need(gpts_trainer_init(t, m, &options), "trainer", t->error);
}
static size_t live_heads(const gpts_model *m)
{
    size_t n = 0;
    int64_t l;
    for (l = 0; l < m->config.n_layer; l++) n += m->layers[l].heads.U;
    return n;
}
static void freeze_one(gpts_model *m, gpts_trainer *t, uint64_t number)
{
    gpts_calibration c;
    gpts_freeze_report report;
    gpts_freeze_options o = gpts_freeze_options_default();
    int32_t tokens[B * T], targets[B * T];
    batch(tokens, targets, number * 7);
    if (number % 5 == 4) {                               /* a whole layer */
        gpts_recording r;
        gpts_approximator a;
        gpts_approximator_options options;
        memset(&r, 0, sizeof r); memset(&a, 0, sizeof a); memset(&options, 0, sizeof options);
        options.window = 2; options.hidden = 8; options.updates = 5; options.batch = 16;
        need(gpts_recording_make(&r, m, number % 2, tokens, B, T), "record", r.error);
        need(gpts_approximator_fit(&a, m, &r, NULL, &options, NULL), "approximate", a.error);
        need(gpts_approximator_install(m, t, &a, 1), "install", m->error);
        gpts_approximator_free(&a);
        gpts_recording_free(&r);
        return;
    }
    memset(&c, 0, sizeof c); memset(&report, 0, sizeof report);
    o.heads = 1; o.gate = -1; o.seed = number; o.train_patterns = number % 2 != 0;
    o.selector = (gpts_selector)(number % 6);
    o.replacement = (gpts_replacement)(number / 3 % 4);
    need(gpts_calibrate(&c, m, tokens, B, T), "calibrate", c.error);
    need(gpts_freeze(m, t, &c, &o, &report), "freeze", m->error);
    child_told.frozen += report.n;
    gpts_freeze_report_free(&report);
    gpts_calibration_free(&c);
}
static int moments_same(const gpts_trainer *a, const gpts_trainer *b)
{
    gpts_real *x = trained_of(a, a->moment1), *y = trained_of(b, b->moment1);
    int same = a->n_trainable == b->n_trainable && !memcmp(x, y, a->n_trainable * sizeof *x);
    free(x); free(y);
    return same;
}
static void work_for_ever(void)
{
    gpts_model m, again;
    gpts_trainer t, u;
    gpts_session s;
    gpts_rng rng;
    int32_t tokens[B * T], targets[B * T], id;
    uint64_t serial;
    int k;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&again, 0, sizeof again); memset(&u, 0, sizeof u); memset(&s, 0, sizeof s);
    hooks.allocate = count_allocate; hooks.release = count_release; hooks.threads = 1;
    if (access(checkpoint, F_OK)) fresh(&m, &t, 1);
    else need(gpts_checkpoint_load(&t, &m, checkpoint, &hooks), "resume", t.error);
    for (;;) {
        serial = t.data_position + 1;
        rng.seed = serial; rng.counter = 0;
        if (!live_heads(&m)) {
            gpts_trainer_free(&t); gpts_model_free(&m);
            fresh(&m, &t, serial);
            child_told.models++;
        }
        for (k = 2 + (int)gpts_rng_below(&rng, 6); k > 0; k--) {
            batch(tokens, targets, gpts_rng_below(&rng, 1000));
            need(gpts_trainer_update(&t, tokens, targets, B, T, NULL), "update", t.error);
        }
        if (serial % 3 == 0) freeze_one(&m, &t, serial / 3);
        t.data_position = serial;
        need(gpts_checkpoint_save(&t, checkpoint), "save", t.error);
        child_told.save = serial;
        tell();
        need(gpts_checkpoint_load(&u, &again, checkpoint, &hooks), "load", u.error);
        if (!same_weights(&m, &again) || !moments_same(&t, &u)) need(GPTS_MISMATCH, "load", "other bits than were saved");
        need(gpts_trainer_update(&t, tokens, targets, B, T, NULL), "update", t.error);
        need(gpts_trainer_update(&u, tokens, targets, B, T, NULL), "update", u.error);
        if (!same_weights(&m, &again)) need(GPTS_MISMATCH, "load", "training goes on with other bits");
        need(gpts_session_init(&s, &again, 1, T, &hooks), "session", s.error);
        need(gpts_session_prefill(&s, tokens, 8, NULL), "prefill", s.error);
        for (k = 8; k < T; k++) {
            gpts_sampling how;
            how.temperature = 1; how.top_k = 20; how.top_p = 0.9;
            id = gpts_sample(gpts_session_logits(&s, 0), 256, &how, &rng);
            need(gpts_session_decode(&s, &id), "decode", s.error);
        }
        gpts_session_free(&s);
        gpts_trainer_free(&u); gpts_model_free(&again);
        child_told.cycles++;
        if (!live_heads(&m)) {                           /* the end of a model's life: nothing is left of it */
            gpts_trainer_free(&t); gpts_model_free(&m);
            child_told.live = live_bytes;
            child_told.resident = resident_bytes();
            if (live_bytes) need(GPTS_MISMATCH, "memory", "something is left after everything was freed");
            tell();
            fresh(&m, &t, serial);
            t.data_position = serial;
            child_told.models++;
        }
    }
}

/* ---- the parent --------------------------------------------------------------------------- */

static int files_in_folder(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d)) != NULL) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 60, start = now(), shown = start;
    uint64_t saves = 0, cycles = 0, frozen = 0, models = 0, last = 0;
    size_t kills = 0, in_save = 0, first_resident = 0, most_growth = 0, parent_early = 0;
    int failed = 0;
    gpts_rng rng;
    folder = argc > 2 ? argv[2] : "build/soak";
    mkdir(folder, 0777);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint.safetensors", folder);
    remove(checkpoint);
    rng.seed = (uint64_t)time(NULL); rng.counter = 0;
    printf("seed %llu\n", (unsigned long long)rng.seed);
    while (now() - start < seconds && !failed) {
        int ends[2], status;
        told got, newest;
        size_t early = 0, late = 0;
        gpts_model m;
        gpts_trainer t;
        double wait = kills % 10 == 9 ? 20 : 0.02 + 3 * gpts_rng_uniform(&rng) * gpts_rng_uniform(&rng);
        pid_t child;
        memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&newest, 0, sizeof newest);
        if (pipe(ends)) { perror("pipe"); return 1; }
        child = fork();
        if (child < 0) { perror("fork"); return 1; }
        if (!child) { close(ends[0]); child_pipe = ends[1]; work_for_ever(); _exit(0); }
        close(ends[1]);
        /* a second process kills at the moment, while this one reads what the child tells */
        {
            pid_t killer = fork();
            if (killer == 0) {
                struct timespec nap;
                close(ends[0]);
                nap.tv_sec = (time_t)wait; nap.tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9);
                nanosleep(&nap, NULL);
                kill(child, SIGKILL);
                _exit(0);
            }
            while (read(ends[0], &got, sizeof got) == (ssize_t)sizeof got) {
                if (got.resident != newest.resident) {                  /* a model's life has ended */
                    if (got.models > 3 && !early) early = got.resident;
                    late = got.resident;
                }
                newest = got;
                if (got.failed) break;
            }
            if (newest.failed) kill(child, SIGKILL);
            waitpid(child, &status, 0);
            waitpid(killer, NULL, 0);
        }
        close(ends[0]);
        kills++;
        cycles += newest.cycles; frozen += newest.frozen; models += newest.models;
        if (newest.save) { saves += newest.save > last ? newest.save - last : 0; last = newest.save; }
        if (newest.failed || !WIFSIGNALED(status)) { failed = 1; printf("FAILED in the child: %s\n", newest.why); break; }
        if (early) {
            if (!first_resident) first_resident = early;
            if (late > early && late - early > most_growth) most_growth = late - early;
        }
        if (last) {                                      /* the file: there, whole, no older than what was told */
            gpts_status s = gpts_checkpoint_load(&t, &m, checkpoint, NULL);
            if (s != GPTS_OK) { failed = 1; printf("FAILED after kill %lu: %s\n", (unsigned long)kills, t.error); }
            else if (t.data_position < last) { failed = 1; printf("FAILED after kill %lu: save %llu was told, %llu is in the file\n", (unsigned long)kills, (unsigned long long)last, (unsigned long long)t.data_position); }
            else { if (t.data_position > last) in_save++; last = t.data_position; }
            gpts_trainer_free(&t); gpts_model_free(&m);
        }
        if (files_in_folder() > 2) { failed = 1; printf("FAILED: files pile up in %s\n", folder); }
        if (kills == 20) parent_early = resident_bytes();
        if (now() - shown > 300) {
            shown = now();
            printf("%5.0f s: %lu kills, save %llu, %llu cycles, %llu heads frozen, %llu models\n", shown - start, (unsigned long)kills,
                   (unsigned long long)last, (unsigned long long)cycles, (unsigned long long)frozen, (unsigned long long)models);
            fflush(stdout);
        }
    }
    printf("%.0f s: %lu kills (%lu between a save's end and its telling), %llu saves, %llu cycles, %llu heads frozen, %llu models\n", now() - start,
           (unsigned long)kills, (unsigned long)in_save, (unsigned long long)last, (unsigned long long)cycles, (unsigned long long)frozen, (unsigned long long)models);
    printf("memory: a child had %.2f MB after its fourth model, and grew by at most %.2f MB in its life; the parent %.2f MB after 20 kills, %.2f MB at the end\n",
           (double)first_resident / 1e6, (double)most_growth / 1e6, (double)parent_early / 1e6, (double)resident_bytes() / 1e6);
    if (most_growth > 1u << 20) { failed = 1; printf("FAILED: memory grows\n"); }
    printf("%d passed, %d failed\n", !failed, failed);
    return failed;
}

/* oom.c - E22: every allocation fails in turn, over everything that allocates: a status
   that says so, nothing leaked, objects freed without harm; and the same work succeeds
   afterwards.  The hooks count: each release must bring the size that was allocated E18,
   with the context that was given E17.                                                */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"

/* A counting allocator: fails at the n-th call (or 1 in `odds` at random). */
typedef struct counter { size_t calls, fail_at, live, bytes, peak; uint64_t odds; gpts_rng rng; int wrong, failed; } counter;
static void *count_allocate(void *context, size_t bytes)
{
    counter *c = (counter *)context;
    void *p;
    c->calls++;
    if (c->calls == c->fail_at || (c->odds && gpts_rng_below(&c->rng, c->odds) == 0)) { c->failed++; return NULL; }
    p = malloc(bytes + 16);
    if (!p) return NULL;
    memcpy(p, &bytes, sizeof bytes);
    c->live++; c->bytes += bytes;
    if (c->bytes > c->peak) c->peak = c->bytes;
    return (char *)p + 16;
}
static void count_release(void *context, void *memory, size_t bytes)
{
    counter *c = (counter *)context;
    char *p = (char *)memory - 16;
    size_t was;
    memcpy(&was, p, sizeof was);
    if (was != bytes) c->wrong++;
    c->live--; c->bytes -= was;
    free(p);
}
static gpts_hooks count_hooks(counter *c)
{
    gpts_hooks h;
    memset(&h, 0, sizeof h);
    h.context = c; h.allocate = count_allocate; h.release = count_release; h.threads = 2;
    return h;
}

/* A piece of work: with the given hooks, everything freed at its end whatever happened. */
typedef gpts_status (*work)(const gpts_hooks *hooks);

/* n = 1, 2, ... until the work succeeds without a failure */
static void fail_in_turn(work w, const char *name)
{
    counter c;
    gpts_hooks h;
    gpts_status s;
    size_t n, allocations;
    int i;
    memset(&c, 0, sizeof c);
    h = count_hooks(&c);
    s = w(&h);
    t_status(s, GPTS_OK);
    t_equal(c.live, 0); t_equal(c.wrong, 0);
    allocations = c.calls;
    t_ok(allocations > 0);
    for (n = 1; n <= allocations && t_state.bad < 5; n++) {
        memset(&c, 0, sizeof c);
        c.fail_at = n;
        s = w(&h);
        if (c.failed && s != GPTS_NO_MEMORY) { printf("  %s: allocation %d of %d failed, status %d\n", name, (int)n, (int)allocations, (int)s); t_ok(!"status is not GPTS_NO_MEMORY"); }
        if (c.live || c.wrong) { printf("  %s: allocation %d of %d failed, %d blocks leaked, %d of wrong size\n", name, (int)n, (int)allocations, (int)c.live, c.wrong); t_ok(!"leak"); }
    }
    for (i = 0; i < 40 && t_state.bad < 5; i++) {              /* 1 in 20 at random */
        memset(&c, 0, sizeof c);
        c.odds = 20; c.rng.seed = (uint64_t)i;
        s = w(&h);
        t_ok(c.failed ? s == GPTS_NO_MEMORY : s == GPTS_OK);
        t_equal(c.live, 0); t_equal(c.wrong, 0);
    }
}

static const model_case small =
    { "oom", 13, 24, 2, 2, 8, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 1, 0,
      2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };
static const model_case fixed_heads =
    { "oom_static", 13, 64, 2, 4, 16, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 0, 1,
      2, 20, NONE, 0, 0,0,0,0,GPTS_RELU, {5,14,0},{0,0,0}, 24,4,0 };

static const model_case *present;
static char saved[100];                                  /* a model's file, made with plain memory */
static char checkpoint[100];

static gpts_status train_work(const gpts_hooks *hooks)
{
    gpts_config config = case_config(present);
    gpts_train_options options = gpts_train_options_default();
    gpts_model m;
    gpts_trainer t;
    gpts_status s;
    case_batch b;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    options.dropout = 0.1;
    case_batch_make(&b, present, 1);
    s = gpts_model_init(&m, &config, 1, hooks);
    if (s == GPTS_OK) s = gpts_model_forward(&m, &b.batch, NULL, NULL);
    if (s == GPTS_OK) s = gpts_trainer_init(&t, &m, &options);
    if (s == GPTS_OK) s = gpts_trainer_update(&t, b.tokens, b.targets, present->B, present->T, NULL);
    if (s == GPTS_OK) s = gpts_checkpoint_save(&t, checkpoint);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return s;
}
static gpts_status load_work(const gpts_hooks *hooks)
{
    gpts_model m;
    gpts_session session;
    gpts_status s;
    case_batch b;
    double loss;
    int i;
    memset(&m, 0, sizeof m); memset(&session, 0, sizeof session);
    case_batch_make(&b, present, 1);
    s = gpts_model_load(&m, saved, hooks);
    if (s == GPTS_OK) s = gpts_model_forward(&m, &b.batch, NULL, &loss);
    if (s == GPTS_OK) s = gpts_session_init(&session, &m, 2, 12, hooks);
    if (s == GPTS_OK) s = gpts_session_prefill(&session, b.tokens, 3, NULL);
    for (i = 0; i < 3 && s == GPTS_OK; i++) s = gpts_session_decode(&session, b.tokens + 6 + 2 * i);
    gpts_session_free(&session);
    gpts_model_free(&m);
    return s;
}
static gpts_status resume_work(const gpts_hooks *hooks)
{
    gpts_model m;
    gpts_trainer t;
    gpts_status s;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    s = gpts_checkpoint_load(&t, &m, checkpoint, hooks);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return s;
}
static gpts_status approximator_work(const gpts_hooks *hooks)
{
    gpts_model m;
    gpts_trainer t;
    gpts_train_options options = gpts_train_options_default();
    gpts_recording r;
    gpts_approximator a, again;
    gpts_approximator_options o;
    gpts_status s;
    case_batch b;
    double r2;
    char path[100];
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&r, 0, sizeof r); memset(&a, 0, sizeof a); memset(&again, 0, sizeof again); memset(&o, 0, sizeof o);
    case_batch_make(&b, present, 1);
    scratch_path(path, sizeof path, "oom_approximator");
    o.window = 2; o.hidden = 5; o.updates = 3; o.batch = 4;
    s = gpts_model_load(&m, saved, hooks);
    if (s == GPTS_OK) s = gpts_trainer_init(&t, &m, &options);
    if (s == GPTS_OK) s = gpts_recording_make(&r, &m, 1, b.tokens, present->B, present->T);
    if (s == GPTS_OK) s = gpts_approximator_fit(&a, &m, &r, &r, &o, &r2);
    if (s == GPTS_OK) s = gpts_approximator_save(&a, path);
    if (s == GPTS_OK) s = gpts_approximator_load(&again, path, hooks);
    if (s == GPTS_OK) s = gpts_approximator_install(&m, &t, &again, 1);
    if (s == GPTS_OK) s = gpts_trainer_update(&t, b.tokens, b.targets, present->B, present->T, NULL);
    gpts_approximator_free(&a); gpts_approximator_free(&again); gpts_recording_free(&r);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    remove(path);
    return s;
}
/* The scores of every selector, a fit alone, a masked call. */
static gpts_status select_work(const gpts_hooks *hooks)
{
    static const int32_t list[] = { 3, 1, 0, 2 };
    gpts_model m;
    gpts_calibration c;
    gpts_pattern_fit fit;
    gpts_masked_call call;
    gpts_freeze_options o = gpts_freeze_options_default();
    double score[8];
    int32_t mask[512];
    gpts_status s;
    case_batch b;
    size_t i;
    int k;
    memset(&m, 0, sizeof m); memset(&c, 0, sizeof c); memset(&fit, 0, sizeof fit); memset(&call, 0, sizeof call);
    case_batch_make(&b, present, 1);
    c.keep_mean = 1;
    o.list = list; o.n_list = 4;
    s = gpts_model_load(&m, saved, hooks);
    if (s == GPTS_OK) s = gpts_calibrate(&c, &m, b.tokens, present->B, present->T);
    for (k = GPTS_SELECT_VARIANCE; k <= GPTS_SELECT_LIST && s == GPTS_OK; k++) {
        o.selector = (gpts_selector)k;
        s = gpts_select(&c, &m, &o, score);
    }
    if (s == GPTS_OK) s = gpts_pattern_fit_make(&fit, c.column, c.diagonal, c.information[0], c.T, 0.01, 0, 0, hooks);
    for (i = 0; i < present->B * present->T; i++) mask[i] = i % present->T != 0;
    call.input_ids.data = b.tokens; call.attention_mask.data = mask; call.labels.data = b.tokens;
    call.input_ids.rank = call.attention_mask.rank = call.labels.rank = 2;
    call.input_ids.shape[0] = call.attention_mask.shape[0] = call.labels.shape[0] = present->B;
    call.input_ids.shape[1] = call.attention_mask.shape[1] = call.labels.shape[1] = present->T;
    if (s == GPTS_OK) s = gpts_model_forward_masked(&m, &call);
    gpts_pattern_fit_free(&fit);
    gpts_calibration_free(&c);
    gpts_model_free(&m);
    return s;
}
/* Calibrate, select, fit, freeze with a trainer that follows, save. */
static gpts_status freeze_work(const gpts_hooks *hooks)
{
    gpts_model m;
    gpts_trainer t;
    gpts_calibration c;
    gpts_freeze_report report;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_train_options options = gpts_train_options_default();
    gpts_status s;
    case_batch b;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&c, 0, sizeof c); memset(&report, 0, sizeof report);
    case_batch_make(&b, present, 1);
    o.share = 0.5; o.gate = -1; o.train_patterns = 1;
    s = gpts_model_load(&m, saved, hooks);
    if (s == GPTS_OK) s = gpts_trainer_init(&t, &m, &options);
    if (s == GPTS_OK) s = gpts_calibrate(&c, &m, b.tokens, present->B, present->T);
    if (s == GPTS_OK) s = gpts_freeze(&m, &t, &c, &o, &report);
    if (s == GPTS_OK) s = gpts_trainer_update(&t, b.tokens, b.targets, present->B, present->T, NULL);
    if (s == GPTS_OK) s = gpts_checkpoint_save(&t, checkpoint);
    gpts_freeze_report_free(&report);
    gpts_calibration_free(&c);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return s;
}
static gpts_status tokenizer_work(const gpts_hooks *hooks)
{
    static const char text[] = "the cat sat on the mat, the cat's hat is the cat's hat; \xc3\xa9\xff 123 1234\n\n  the end";
    gpts_tokenizer k, again, chars;
    gpts_status s;
    int32_t ids[200];
    char back[300], path[100];
    size_t n = 200, bytes = sizeof back;
    memset(&k, 0, sizeof k); memset(&again, 0, sizeof again); memset(&chars, 0, sizeof chars);
    snprintf(path, sizeof path, "build/tests/oom_%d.bpe", (int)sizeof(gpts_real));
    s = gpts_tokenizer_train(&k, text, sizeof text - 1, 270, hooks);
    if (s == GPTS_OK) s = gpts_tokenizer_encode(&k, text, sizeof text - 1, ids, &n);
    if (s == GPTS_OK) s = gpts_tokenizer_decode(&k, ids, n, back, &bytes);
    if (s == GPTS_OK && (bytes != sizeof text - 1 || memcmp(back, text, bytes))) s = GPTS_MISMATCH;
    if (s == GPTS_OK) s = gpts_tokenizer_save(&k, path);
    if (s == GPTS_OK) s = gpts_tokenizer_load(&again, path, hooks);
    if (s == GPTS_OK) s = gpts_tokenizer_chars(&chars, text, sizeof text - 1, hooks);
    n = 200;
    if (s == GPTS_OK) s = gpts_tokenizer_encode(&chars, text, sizeof text - 1, ids, &n);
    gpts_tokenizer_free(&k); gpts_tokenizer_free(&again); gpts_tokenizer_free(&chars);
    remove(path);
    return s;
}

static void make_files(const model_case *c)
{
    gpts_model m;
    present = c;
    scratch_path(saved, sizeof saved, "oom_model");
    scratch_path(checkpoint, sizeof checkpoint, "oom_checkpoint");
    t_status(case_model(&m, c, NULL), GPTS_OK);
    t_status(gpts_model_save(&m, saved), GPTS_OK);
    gpts_model_free(&m);
}
static void remove_files(void) { remove(saved); remove(checkpoint); }

static void E22_training_and_saving(void) { make_files(&small); if (!t_state.bad) { fail_in_turn(train_work, "train"); fail_in_turn(resume_work, "resume"); } remove_files(); }
static void E22_loading_and_generating(void) { make_files(&small); if (!t_state.bad) fail_in_turn(load_work, "load"); remove_files(); }
static void E22_loading_and_generating_with_static_heads(void) { make_files(&fixed_heads); if (!t_state.bad) fail_in_turn(load_work, "load static"); remove_files(); }
static void E22_approximators(void) { make_files(&small); if (!t_state.bad) fail_in_turn(approximator_work, "approximator"); remove_files(); }
static void E22_calibrating_and_freezing(void) { make_files(&small); if (!t_state.bad) fail_in_turn(freeze_work, "freeze"); remove_files(); }
static void E22_selecting_and_masking(void) { make_files(&small); if (!t_state.bad) fail_in_turn(select_work, "select"); remove_files(); }
static void E22_tokenizers(void) { present = &small; fail_in_turn(tokenizer_work, "tokenizer"); }

/* No block comes from elsewhere: with hooks that give nothing, nothing can be done.  (That each
   goes back with its size and context is counted in every test here.) */
static void E16_E17_E18_all_memory_comes_from_the_hooks(void)
{
    static const work works[] = { train_work, load_work, resume_work, approximator_work, freeze_work, select_work, tokenizer_work };
    size_t i;
    make_files(&small);
    for (i = 0; i < sizeof works / sizeof works[0] && !t_state.bad; i++) {
        counter c;
        gpts_hooks h;
        memset(&c, 0, sizeof c);
        c.odds = 1;
        h = count_hooks(&c);
        t_status(works[i](&h), GPTS_NO_MEMORY);
        t_ok(c.calls > 0 && c.bytes == 0);
        memset(&c, 0, sizeof c);
        if (works[i] == resume_work) continue;             /* what train_work leaves */
        t_status(works[i](&h), GPTS_OK);
        t_ok(c.calls > 1 && c.peak > 0);
        t_equal(c.live, 0); t_equal(c.bytes, 0); t_equal(c.wrong, 0);
    }
    remove_files();
}

/* A failed update leaves a trainer that goes on as if nothing had been. */
static void E22_a_failed_update_can_be_tried_again(void)
{
    counter c;
    gpts_hooks h;
    gpts_config config = case_config(&small);
    gpts_train_options options = gpts_train_options_default();
    gpts_model m, plain;
    gpts_trainer t, u;
    case_batch b;
    double loss = 0, expected = 0;
    size_t n;
    gpts_status s = GPTS_NO_MEMORY;
    memset(&c, 0, sizeof c); memset(&m, 0, sizeof m); memset(&plain, 0, sizeof plain); memset(&t, 0, sizeof t); memset(&u, 0, sizeof u);
    h = count_hooks(&c);
    case_batch_make(&b, &small, 1);
    t_status(gpts_model_init(&plain, &config, 1, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&u, &plain, &options), GPTS_OK);
    t_status(gpts_trainer_update(&u, b.tokens, b.targets, small.B, small.T, &expected), GPTS_OK);
    t_status(gpts_model_init(&m, &config, 1, &h), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    for (n = 1; n < 100 && s == GPTS_NO_MEMORY; n++) {
        c.fail_at = c.calls + n;
        s = gpts_trainer_update(&t, b.tokens, b.targets, small.B, small.T, &loss);
    }
    t_status(s, GPTS_OK);
    t_ok(n > 2 && loss == expected);
    t_ok(same_weights(&m, &plain));
    gpts_trainer_free(&t); gpts_model_free(&m);
    gpts_trainer_free(&u); gpts_model_free(&plain);
    t_equal(c.live, 0);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(E22_training_and_saving);
    T(E22_loading_and_generating);
    T(E22_loading_and_generating_with_static_heads);
    T(E22_approximators);
    T(E22_calibrating_and_freezing);
    T(E22_selecting_and_masking);
    T(E22_tokenizers);
    T(E16_E17_E18_all_memory_comes_from_the_hooks);
    T(E22_a_failed_update_can_be_tried_again);
    return t_end();
}

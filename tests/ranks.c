/* ranks.c - several processes as several threads: whatever their number, training, replacing
   heads and attention, saving and resuming give what one process with the same windows gives,
   the same bits on every rank, and on every rank the same sentence when something is wrong. */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

/* ---- ranks that are threads: they meet, and copy from each other ------------------------ */

enum { MOST = 5, PIECES = 256 };
typedef struct piece { gpts_real *x; size_t n; int owner, reduce; } piece;
typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int size, here, round, gone;              /* gone: a rank left for good               */
    piece pieces[MOST][PIECES];
    size_t n[MOST];
    const void *mine[MOST];
} world;
typedef struct member { world *w; int rank, failed; size_t reduced, groups; } member;

static int meet(world *w)                     /* 0: not all come, a rank is gone */
{
    int round, ok;
    pthread_mutex_lock(&w->lock);
    round = w->round;
    if (!w->gone && ++w->here == w->size) { w->here = 0; w->round++; pthread_cond_broadcast(&w->turn); }
    while (round == w->round && !w->gone) pthread_cond_wait(&w->turn, &w->lock);
    ok = round != w->round;
    pthread_mutex_unlock(&w->lock);
    return ok;
}
static void leave(world *w)
{
    pthread_mutex_lock(&w->lock);
    w->gone = 1;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
}
static void world_begin(void *context, void *device) { member *k = (member *)context; (void)device; k->w->n[k->rank] = 0; k->groups++; }
static void world_piece(member *k, gpts_real *x, size_t n, int owner, int reduce)
{
    piece *p = &k->w->pieces[k->rank][k->w->n[k->rank]++];
    if (k->w->n[k->rank] == PIECES) abort();
    p->x = x; p->n = n; p->owner = owner; p->reduce = reduce;
}
static void world_reduce(void *context, gpts_real *x, size_t n, int owner)
{
    ((member *)context)->reduced += n;
    world_piece((member *)context, x, n, owner, 1);
}
static void world_broadcast(void *context, gpts_real *x, size_t n, int owner) { world_piece((member *)context, x, n, owner, 0); }
static void world_end(void *context)
{
    member *k = (member *)context;
    world *w = k->w;
    size_t i, e;
    int r, ok = meet(w);
    for (i = 0; ok && i < w->n[k->rank]; i++) {
        piece *p = &w->pieces[k->rank][i], *theirs = &w->pieces[p->owner][i];
        if (p->n != theirs->n || p->owner != theirs->owner || p->reduce != theirs->reduce) { k->failed = 1; break; }
        if (!p->reduce && p->owner != k->rank) memcpy(p->x, theirs->x, p->n * sizeof *p->x);
        if (!p->reduce || p->owner != k->rank) continue;
        for (e = 0; e < p->n; e++) {
            gpts_real sum = 0;
            for (r = 0; r < w->size; r++) sum += w->pieces[r][i].x[e];
            p->x[e] = sum;
        }
    }
    ok = ok && meet(w);
    for (i = 0; ok && i < w->n[k->rank]; i++) {               /* what is lost is really lost */
        piece *p = &w->pieces[k->rank][i];
        if (p->reduce && p->owner != k->rank) for (e = 0; e < p->n; e++) p->x[e] = (gpts_real)NAN;
    }
    if (!ok) k->failed = 1;
}
static gpts_status world_wait(void *context, char *error)
{
    member *k = (member *)context;
    return k->failed ? gptsi_fail(error, GPTS_DEVICE, "a rank is gone") : GPTS_OK;
}
static gpts_status world_gather(void *context, const void *mine, size_t bytes, void *all, char *error)
{
    member *k = (member *)context;
    int r, ok;
    k->w->mine[k->rank] = mine;
    ok = meet(k->w);
    for (r = 0; ok && r < k->w->size; r++) memcpy((char *)all + (size_t)r * bytes, k->w->mine[r], bytes);
    ok = ok && meet(k->w);
    return ok ? GPTS_OK : gptsi_fail(error, GPTS_DEVICE, "a rank is gone");
}

/* ---- a run ---------------------------------------------------------------------------- */

enum { TEXT = 4000, WINDOWS = 60, UPDATES = 6, T = 16, VOCABULARY = 29 };
static uint16_t text[TEXT];

typedef struct job {
    int size;
    uint64_t batches;                         /* accumulated by each rank                 */
    int told;                                 /* options.batches says so                  */
    int updates;
    double clip, dropout;
    int freeze_at, install_at;                /* before this update; -1: never            */
    const char *save, *load;                  /* at the end; at the start                 */
    int64_t layers;                           /* of the last rank's model, if not 0       */
    int without;                              /* this rank's targets do not count; -1: none */
    void (*act)(struct job *job, int rank, gpts_trainer *t);       /* instead of training */
    /* what came out of it, rank by rank */
    gpts_status status[MOST];
    char error[MOST][GPTS_ERROR_BYTES];
    double loss[MOST][2 * UPDATES], norm[MOST];
    uint64_t weights[MOST], moments[MOST], position[MOST];
    size_t reduced[MOST], groups[MOST], kept[MOST];
    gpts_real *values[MOST];                  /* weights, then moments                    */
    size_t n_values[MOST], n_block;
} job;
typedef struct rank_job { job *j; world *w; int rank; } rank_job;

static job job_of(int size, uint64_t batches)
{
    job j;
    memset(&j, 0, sizeof j);
    j.size = size; j.batches = batches; j.updates = UPDATES; j.clip = 0.3; j.freeze_at = j.install_at = j.without = -1;
    return j;
}
static void job_free(job *j) { int r; for (r = 0; r < MOST; r++) { free(j->values[r]); j->values[r] = NULL; } }

static gpts_config small_config(void)
{
    gpts_config c = gpts_config_default();
    c.vocab_size = VOCABULARY; c.n_positions = T; c.n_layer = 3; c.n_head = 4; c.n_embd = 16; c.n_inner = 24;
    return c;
}
static gpts_train_options small_options(const job *j)
{
    gpts_train_options o = gpts_train_options_default();
    o.learning_rate = 3e-3; o.warmup = 2; o.clip = j->clip; o.dropout = j->dropout; o.epsilon = 1e-5;
    o.batches = j->told ? j->batches : 0;
    return o;
}

/* calibrates together, and checks that it is what this rank finds alone */
static gpts_status freeze_together(gpts_trainer *t, const gpts_ranks *ranks)
{
    gpts_calibration c, alone;
    gpts_freeze_options o = gpts_freeze_options_default();
    gpts_freeze_report report;
    int32_t tokens[4 * T], targets[4 * T];
    gpts_windows windows = {0};
    gpts_status status;
    size_t n;
    memset(&c, 0, sizeof c); memset(&alone, 0, sizeof alone); memset(&report, 0, sizeof report);
    windows.tokens = text; windows.n = TEXT; windows.T = T; windows.seed = 99;
    gpts_windows_batch(&windows, 0, 4, tokens, targets);
    c.ranks = ranks; c.keep_mean = alone.keep_mean = 1;
    status = gpts_calibrate(&c, t->model, tokens, 4, T);
    if (status != GPTS_OK) { memcpy(t->error, c.error, sizeof t->error); return status; }
    t_status(gpts_calibrate(&alone, t->model, tokens, 4, T), GPTS_OK);
    n = c.L * c.H;
    t_bits(c.column, alone.column, n * (2 * T + 4) * sizeof *c.column);
    t_bits(c.mean, alone.mean, n * T * T * sizeof *c.mean);
    o.share = 0.5; o.gate = -1;
    status = gpts_freeze(t->model, t, &c, &o, &report);
    if (status != GPTS_OK) memcpy(t->error, t->model->error, sizeof t->error);
    t_equal(report.n, 6);
    gpts_freeze_report_free(&report);
    gpts_calibration_free(&c); gpts_calibration_free(&alone);
    return status;
}
static gpts_status install_together(gpts_trainer *t)
{
    gpts_recording data;
    gpts_approximator a;
    gpts_approximator_options o;
    int32_t tokens[4 * T], targets[4 * T];
    gpts_windows windows = {0};
    gpts_status status;
    memset(&a, 0, sizeof a); memset(&o, 0, sizeof o);
    windows.tokens = text; windows.n = TEXT; windows.T = T; windows.seed = 98;
    gpts_windows_batch(&windows, 0, 4, tokens, targets);
    o.updates = 5; o.hidden = 8;
    t_status(gpts_recording_make(&data, t->model, 1, tokens, 4, T), GPTS_OK);
    t_status(gpts_approximator_fit(&a, t->model, &data, NULL, &o, NULL), GPTS_OK);
    status = gpts_approximator_install(t->model, t, &a, 0);
    if (status != GPTS_OK) memcpy(t->error, t->model->error, sizeof t->error);
    gpts_approximator_free(&a);
    gpts_recording_free(&data);
    return status;
}

static gpts_status train(job *j, int rank, gpts_trainer *t, const gpts_ranks *ranks)
{
    size_t B = WINDOWS / (size_t)(j->batches * (uint64_t)j->size), i;
    int32_t *tokens = (int32_t *)malloc(B * T * sizeof *tokens), *targets = (int32_t *)malloc(B * T * sizeof *targets);
    gpts_windows windows = {0};
    gpts_status status = GPTS_OK;
    uint64_t part, first;
    int u;
    windows.tokens = text; windows.n = TEXT; windows.T = T; windows.seed = 5;
    for (u = 0; u < j->updates && status == GPTS_OK; u++) {
        if (u == j->freeze_at) status = freeze_together(t, ranks);
        if (u == j->install_at && status == GPTS_OK) status = install_together(t);
        for (part = 0; part < j->batches && status == GPTS_OK; part++) {
            gpts_batch batch;
            memset(&batch, 0, sizeof batch);
            first = gpts_trainer_windows(t, B);
            gpts_windows_batch(&windows, first, B, tokens, targets);
            for (i = 0; i < B * T; i++) if (rank == j->without || (first * T + i) % 7 == 3) targets[i] = -1;
            batch.tokens = tokens; batch.targets = targets; batch.B = B; batch.T = T;
            if (part + 1 == j->batches && j->batches == 1 && j->told) status = gpts_trainer_update(t, tokens, targets, B, T, &j->loss[rank][u]);
            else {
                status = gpts_trainer_accumulate(t, &batch, NULL);
                if (part + 1 == j->batches && status == GPTS_OK) status = gpts_trainer_apply(t, &j->loss[rank][u]);
            }
        }
    }
    free(tokens); free(targets);
    return status;
}

static void *run_rank(void *arg)
{
    rank_job *a = (rank_job *)arg;
    job *j = a->j;
    int rank = a->rank;
    gpts_model m;
    gpts_trainer t;
    gpts_ranks ranks;
    gpts_hooks hooks;
    gpts_config config = small_config();
    gpts_train_options o = small_options(j);
    gpts_status status;
    member self;
    size_t i, n;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&ranks, 0, sizeof ranks); memset(&hooks, 0, sizeof hooks); memset(&self, 0, sizeof self);
    hooks.threads = 1;
    if (j->layers && rank + 1 == j->size) config.n_layer = j->layers;
    self.w = a->w; self.rank = rank;
    ranks.rank = rank; ranks.size = j->size; ranks.name = "cpu"; ranks.context = &self;
    ranks.begin = world_begin; ranks.reduce = world_reduce; ranks.broadcast = world_broadcast; ranks.end = world_end;
    ranks.wait = world_wait; ranks.gather = world_gather;
    if (j->load) status = gpts_checkpoint_load(&t, &m, j->load, &hooks);
    else {
        t_status(gpts_model_init(&m, &config, 3, &hooks), GPTS_OK);
        status = gpts_trainer_init(&t, &m, &o);
    }
    t.options.batches = o.batches;
    if (j->act) j->act(j, -rank - 1, &t);                     /* a chance to make this rank different */
    if (status == GPTS_OK) status = gpts_trainer_ranks(&t, &ranks);
    if (status == GPTS_OK && j->act) j->act(j, rank, &t);
    if (status == GPTS_OK) {
        status = train(j, rank, &t, &ranks);
        j->reduced[rank] = self.reduced; j->groups[rank] = self.groups; j->kept[rank] = t.n_moments;
        if (rank == 0) j->n_block = t.n_block;
        j->norm[rank] = t.gradient_norm; j->position[rank] = t.data_position;
    }
    if (status == GPTS_OK && j->save) status = gpts_checkpoint_save(&t, j->save);
    memcpy(j->error[rank], t.error, sizeof t.error);
    if (status == GPTS_OK) status = gpts_trainer_ranks(&t, NULL);            /* all moments, for a look */
    if (status == GPTS_OK) {
        j->values[rank] = (gpts_real *)malloc((m.n_parameters + 2 * t.n_block + 1) * sizeof(gpts_real));
        for (i = n = 0; i < m.n_tensors; i++) { memcpy(j->values[rank] + n, m.tensors[i].data, m.tensors[i].size * sizeof(gpts_real)); n += m.tensors[i].size; }
        j->weights[rank] = gptsi_hash_bytes(0, j->values[rank], n * sizeof(gpts_real));
        memcpy(j->values[rank] + n, t.moment1, t.n_block * sizeof(gpts_real)); n += t.n_block;
        memcpy(j->values[rank] + n, t.moment2, t.n_block * sizeof(gpts_real)); n += t.n_block;
        j->moments[rank] = gptsi_hash_bytes(0, t.moment1, t.n_block * sizeof(gpts_real)) ^ gptsi_hash_bytes(1, t.moment2, t.n_block * sizeof(gpts_real));
        j->n_values[rank] = n;
    }
    j->status[rank] = status;
    leave(a->w);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    return NULL;
}

static void run(job *j)
{
    static world w;
    rank_job a[MOST];
    pthread_t thread[MOST];
    int r;
    memset(&w, 0, sizeof w);
    pthread_mutex_init(&w.lock, NULL); pthread_cond_init(&w.turn, NULL);
    w.size = j->size;
    for (r = 0; r < j->size; r++) { a[r].j = j; a[r].w = &w; a[r].rank = r; pthread_create(&thread[r], NULL, run_rank, &a[r]); }
    for (r = 0; r < j->size; r++) pthread_join(thread[r], NULL);
    pthread_mutex_destroy(&w.lock); pthread_cond_destroy(&w.turn);
}

/* double: sums in another order; float: the same, with its own rounding */
static const double near_by = sizeof(gpts_real) == 8 ? 1e-12 : 2e-6;

static void expect_same_bits(const job *j)
{
    int r, u;
    for (r = 0; r < j->size; r++) {
        t_status(j->status[r], GPTS_OK);
        if (j->status[r] != GPTS_OK) printf("  rank %d: %s\n", r, j->error[r]);
        t_ok(j->weights[r] == j->weights[0] && j->moments[r] == j->moments[0] && j->position[r] == j->position[0]);
        for (u = 0; u < j->updates; u++) t_ok(j->loss[r][u] == j->loss[0][u]);
        t_ok(j->norm[r] == j->norm[0]);
    }
}
static void expect_near(const job *a, const job *b)
{
    size_t i, bad = 0;
    int u;
    for (u = 0; u < a->updates; u++) t_close(a->loss[0][u], b->loss[0][u], near_by);
    t_close(a->norm[0], b->norm[0], near_by);
    t_equal(a->n_values[0], b->n_values[0]);
    for (i = 0; i < a->n_values[0] && a->n_values[0] == b->n_values[0]; i++)
        bad += !(fabs((double)a->values[0][i] - (double)b->values[0][i]) <= near_by);
    t_equal(bad, 0);
}
static const int sizes[4] = { 1, 2, 3, 5 };

/* ---- tests ------------------------------------------------------------------------------- */

static void any_number_of_ranks_trains_as_one_process(void)
{
    job one = job_of(1, 2);
    int s;
    run(&one);
    expect_same_bits(&one);
    t_ok(one.loss[0][UPDATES - 1] < one.loss[0][0]);
    for (s = 1; s < 4; s++) {
        job j = job_of(sizes[s], 2);
        run(&j);
        expect_same_bits(&j);
        expect_near(&one, &j);
        t_equal(j.position[0], UPDATES * WINDOWS);
        job_free(&j);
    }
    job_free(&one);
}

static void without_clipping_too(void)
{
    job one = job_of(1, 1), j = job_of(3, 1);
    one.clip = j.clip = 0;
    run(&one); run(&j);
    expect_same_bits(&j);
    expect_near(&one, &j);
    job_free(&one); job_free(&j);
}

/* the ranks' masks are those of one process that accumulates their batches in turn */
static void dropout_is_that_of_one_process(void)
{
    job one = job_of(1, 6), j = job_of(3, 2);
    one.dropout = j.dropout = 0.2;
    run(&one); run(&j);
    expect_same_bits(&j);
    expect_near(&one, &j);
    job_free(&one); job_free(&j);
}

/* each rank keeps its stretch of the moments, and an update moves every gradient once */
static void moments_are_shared_and_accumulation_communicates_once(void)
{
    int s, r;
    for (s = 1; s < 4; s++) {
        job j = job_of(sizes[s], s == 3 ? 4 : 5);
        size_t kept = 0, least = SIZE_MAX, most = 0;
        run(&j);
        for (r = 0; r < j.size; r++) {
            kept += j.kept[r]; least = gptsi_min(least, j.kept[r]); most = gptsi_max(most, j.kept[r]);
            t_equal(j.reduced[r], UPDATES * j.n_block);
        }
        t_equal(kept, j.n_block);
        t_ok(most <= j.n_block / (size_t)j.size + 16 && least > 0);
        job_free(&j);
    }
}

/* told how many batches an update has, ranks exchange during backward: the same bits, as many groups */
static void exchange_during_backward_changes_no_bit(void)
{
    int batches;
    for (batches = 1; batches <= 2; batches++) {
        job later = job_of(3, (uint64_t)batches), at_once = job_of(3, (uint64_t)batches);
        at_once.told = 1;
        run(&later); run(&at_once);
        expect_same_bits(&at_once);
        t_ok(later.weights[0] == at_once.weights[0] && later.moments[0] == at_once.moments[0]);
        t_equal(later.groups[0], at_once.groups[0]);
        job_free(&later); job_free(&at_once);
    }
}

static void heads_freeze_in_mid_run(void)
{
    job one = job_of(1, 2);
    int s;
    one.freeze_at = 3;
    run(&one);
    expect_same_bits(&one);
    for (s = 1; s < 4; s++) {
        job j = job_of(sizes[s], 2);
        j.freeze_at = 3; j.told = 1;
        run(&j);
        expect_same_bits(&j);
        expect_near(&one, &j);
        t_ok(j.kept[0] <= j.n_block / (size_t)j.size + 16);
        job_free(&j);
    }
    job_free(&one);
}

static void approximators_come_in_mid_run(void)
{
    job one = job_of(1, 2), j = job_of(3, 2);
    one.install_at = j.install_at = 3;
    run(&one); run(&j);
    expect_same_bits(&j);
    expect_near(&one, &j);
    job_free(&one); job_free(&j);
}

/* three ranks save; as many go on to the same bits, fewer or one to the same numbers */
static void any_number_of_ranks_resumes(void)
{
    const char *path = sizeof(gpts_real) == 8 ? "build/tests/ranks_double.safetensors" : "build/tests/ranks.safetensors";
    static const int next[4] = { 3, 2, 1, 5 };
    job whole = job_of(3, 2), half = job_of(3, 2);
    int k, u;
    whole.updates = 2 * UPDATES; whole.freeze_at = half.freeze_at = 2;
    half.save = path;
    run(&whole); run(&half);
    expect_same_bits(&whole); expect_same_bits(&half);
    for (k = 0; k < 4; k++) {
        job j = job_of(next[k], 2);
        j.load = path;
        run(&j);
        expect_same_bits(&j);
        for (u = 0; u < UPDATES; u++) t_close(j.loss[0][u], whole.loss[0][UPDATES + u], near_by);
        t_equal(j.position[0], whole.position[0]);
        if (next[k] == 3) t_ok(j.weights[0] == whole.weights[0] && j.moments[0] == whole.moments[0]);
        else {
            memcpy(j.loss[0] + UPDATES, j.loss[0], UPDATES * sizeof(double));
            memcpy(j.loss[0], whole.loss[0], UPDATES * sizeof(double));
            j.updates = 2 * UPDATES;
            expect_near(&whole, &j);
        }
        job_free(&j);
    }
    remove(path);
    job_free(&whole); job_free(&half);
}

static void windows_of_ranks_are_disjoint(void)
{
    gpts_trainer t[3];
    uint64_t seen[36] = {0}, first;
    size_t r, part, i;
    memset(t, 0, sizeof t);
    for (r = 0; r < 3; r++) { t[r].ranks.rank = (int)r; t[r].ranks.size = 3; t[r].data_position = 7; }
    for (part = 0; part < 3; part++) for (r = 0; r < 3; r++)
        for (first = gpts_trainer_windows(&t[r], 4), i = 0; i < 4; i++) seen[first + i - 7]++;
    for (i = 0; i < 36; i++) t_equal(seen[i], 1);
    for (r = 0; r < 3; r++) t_equal(t[r].data_position, 7 + 36);
}

static void a_rank_without_targets_counts_for_nothing(void)
{
    job j = job_of(3, 1), all = job_of(3, 1), none = job_of(1, 1);
    int u;
    j.without = 1;
    run(&j); run(&all);
    expect_same_bits(&j);
    t_ok(j.loss[0][0] > 0 && j.loss[0][0] != all.loss[0][0]);
    none.without = 0;
    run(&none);
    for (u = 0; u < UPDATES; u++) t_ok(none.loss[0][u] == 0);
    job_free(&j); job_free(&all); job_free(&none);
}

/* one rank is different; before joining `rank` is -1 - its number */
static void other_rate(job *j, int rank, gpts_trainer *t) { (void)j; if (rank == -3) t->options.learning_rate *= 2; }
static void other_seed(job *j, int rank, gpts_trainer *t) { (void)j; if (rank == -2) t->options.seed++; }
static void other_weight(job *j, int rank, gpts_trainer *t) { (void)j; if (rank == -3) t->model->tensors[4].data[3] += (gpts_real)1e-6; }
static void other_moment(job *j, int rank, gpts_trainer *t) { (void)j; t->step = 1; if (rank == -2) t->moment2[70] = (gpts_real)1e-9; }
static void other_step(job *j, int rank, gpts_trainer *t) { (void)j; if (rank == -2) t->step = 8; }
static void other_head(job *j, int rank, gpts_trainer *t)
{
    (void)j;
    if (rank == -2) { gptsi_layer_shape *s = gptsi_shapes_of(t->model); s[1].kind[2] = GPTSI_PRUNED; gptsi_model_reshape(t->model, t, s); gptsi_delete(&t->model->hooks, s); }
}
static void on_a_gpu(job *j, int rank, gpts_trainer *t)
{
    static gpts_ops ops[MOST];
    (void)j;
    if (rank == -2) { ops[1] = *t->model->ops; ops[1].name = "cuda"; t->model->ops = &ops[1]; t->ops = &ops[1]; }
}
static void expect_refusal(void (*act)(job *, int, gpts_trainer *), gpts_status status, const char *says)
{
    job j = job_of(3, 1);
    int r;
    j.act = act;
    run(&j);
    for (r = 0; r < 3; r++) { t_status(j.status[r], status); t_says(j.error[r], says); }
    t_text(j.error[0], j.error[2]);
    job_free(&j);
}
static void ranks_that_differ_are_refused(void)
{
    job j = job_of(2, 1);
    j.layers = 2;
    run(&j);
    t_status(j.status[0], GPTS_MISMATCH); t_status(j.status[1], GPTS_MISMATCH);
    t_says(j.error[0], "n_layer is 2 on rank 1, 3 on rank 0"); t_text(j.error[0], j.error[1]);
    expect_refusal(other_rate, GPTS_MISMATCH, "learning_rate is 0.006 on rank 2, 0.003 on rank 0");
    expect_refusal(other_seed, GPTS_MISMATCH, "the seed is 1 on rank 1, 0 on rank 0");
    expect_refusal(other_weight, GPTS_MISMATCH, "the weights of rank 2 differ from those of rank 0");
    expect_refusal(other_moment, GPTS_MISMATCH, "the moments of rank 1 differ");
    expect_refusal(other_step, GPTS_MISMATCH, "the update is 8 on rank 1, 0 on rank 0");
    expect_refusal(other_head, GPTS_MISMATCH, "the number of trained values is");
    expect_refusal(on_a_gpu, GPTS_BAD_ARGUMENT, "the ranks meet in the memory of \"cpu\", but the model is on \"cuda\"");
    job_free(&j);
}

/* a bad gradient on one rank: one sentence on all, weights as before, and training goes on */
static void bad_gradient(job *j, int rank, gpts_trainer *t)
{
    gpts_tensor *tensor = gpts_model_tensor(t->model, "h.1.mlp.c_fc.weight");
    uint64_t before = gptsi_hash_bytes(0, t->model->parameters, t->model->n_parameters * sizeof(gpts_real));
    int32_t tokens[T], targets[T], i;
    gpts_batch batch;
    double loss;
    if (rank < 0) return;
    for (i = 0; i < T; i++) tokens[i] = targets[i] = i;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.targets = targets; batch.B = 1; batch.T = T;
    t_status(gpts_trainer_accumulate(t, &batch, NULL), GPTS_OK);
    if (rank == 1) gpts_trainer_gradient(t, tensor)[5] = (gpts_real)NAN;
    t_status(gpts_trainer_apply(t, &loss), GPTS_NOT_FINITE);
    t_says(t->error, "update 0: the gradient of h.1.mlp.c_fc.weight is not finite");
    t_ok(before == gptsi_hash_bytes(0, t->model->parameters, t->model->n_parameters * sizeof(gpts_real)));
    t_equal(t->step, 0);
    (void)j;
}
static void a_bad_gradient_is_one_sentence_everywhere(void)
{
    job j = job_of(3, 2), plain = job_of(3, 2);
    j.act = bad_gradient;
    run(&j); run(&plain);
    expect_same_bits(&j);
    t_ok(j.weights[0] == plain.weights[0]);
    job_free(&j); job_free(&plain);
}

/* a rank that goes away leaves no one waiting */
static void goes_away(job *j, int rank, gpts_trainer *t) { (void)j; if (rank == 1) t->model->config.n_positions = 1; }
static void a_rank_that_ends_ends_the_others(void)
{
    job j = job_of(3, 1);
    j.act = goes_away;                        /* its first batch is too long for it now */
    run(&j);
    t_status(j.status[1], GPTS_TOO_LONG);
    t_status(j.status[0], GPTS_DEVICE); t_status(j.status[2], GPTS_DEVICE);
    t_says(j.error[0], "a rank is gone");
    job_free(&j);
}

static void a_file_that_cannot_be_written_is_told_to_all(void)
{
    job j = job_of(3, 1);
    j.updates = 1; j.save = "build/tests/there/is/no/such/folder/x.safetensors";
    run(&j);
    t_status(j.status[0], GPTS_IO); t_status(j.status[1], GPTS_IO); t_status(j.status[2], GPTS_IO);
    t_says(j.error[2], "rank 0: "); t_says(j.error[2], "no/such/folder");
    job_free(&j);
}

static void too_many(job *j, int rank, gpts_trainer *t)
{
    int32_t tokens[T] = {0}, targets[T] = {0};
    gpts_batch batch;
    double loss;
    (void)j;
    if (rank < 0) return;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.targets = targets; batch.B = 1; batch.T = T;
    t_status(gpts_trainer_accumulate(t, &batch, NULL), GPTS_OK);
    t_status(gpts_trainer_accumulate(t, &batch, NULL), GPTS_BAD_ARGUMENT);
    t_says(t->error, "one batch more than the 1 of options.batches");
    t_status(gpts_trainer_apply(t, &loss), GPTS_OK);
}
static void more_batches_than_announced_are_refused(void)
{
    job j = job_of(2, 1);
    j.told = 1; j.act = too_many; j.updates = 1;
    run(&j);
    expect_same_bits(&j);
    job_free(&j);
}

static void bytes_are_compared(job *j, int rank, gpts_trainer *t)
{
    unsigned char file[100] = {0};
    char error[GPTS_ERROR_BYTES] = "";
    (void)j;
    if (rank < 0) return;
    t_status(gpts_ranks_same(&t->ranks, "the tokens", file, 100, NULL, error), GPTS_OK);
    file[99] = rank == 2;
    t_status(gpts_ranks_same(&t->ranks, "the tokens", file, 99, NULL, error), GPTS_OK);
    t_status(gpts_ranks_same(&t->ranks, "the tokens", file, 100, NULL, error), GPTS_MISMATCH);
    t_says(error, "the tokens of rank 2 differ from those of rank 0");
    t_status(gpts_ranks_same(&t->ranks, "the tokens", file, rank == 1 ? 98 : 99, NULL, error), GPTS_MISMATCH);
}
static void files_that_differ_are_noticed(void)
{
    job j = job_of(3, 1);
    j.act = bytes_are_compared; j.updates = 1;
    run(&j);
    expect_same_bits(&j);
    job_free(&j);
}

static void a_rank_out_of_range_is_refused(void)
{
    gpts_model m;
    gpts_trainer t;
    gpts_ranks ranks;
    gpts_config config = small_config();
    memset(&ranks, 0, sizeof ranks);
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, NULL), GPTS_OK);
    ranks.size = 2; ranks.rank = 2;
    t_status(gpts_trainer_ranks(&t, &ranks), GPTS_BAD_ARGUMENT);
    t_says(t.error, "rank 2 of 2");
    ranks.size = 1; ranks.rank = 0;
    t_status(gpts_trainer_ranks(&t, &ranks), GPTS_OK);
    t_equal(gpts_trainer_windows(&t, 3), 0);
    t_equal(t.data_position, 3);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

int main(int argc, char **argv)
{
    size_t i;
    t_begin(argc, argv);
    for (i = 0; i < TEXT; i++) text[i] = (uint16_t)((i * i / 3 + gptsi_mix(i / 5) % 4) % VOCABULARY);
    T(any_number_of_ranks_trains_as_one_process);
    T(without_clipping_too);
    T(dropout_is_that_of_one_process);
    T(moments_are_shared_and_accumulation_communicates_once);
    T(exchange_during_backward_changes_no_bit);
    T(heads_freeze_in_mid_run);
    T(approximators_come_in_mid_run);
    T(any_number_of_ranks_resumes);
    T(windows_of_ranks_are_disjoint);
    T(a_rank_without_targets_counts_for_nothing);
    T(ranks_that_differ_are_refused);
    T(a_bad_gradient_is_one_sentence_everywhere);
    T(a_rank_that_ends_ends_the_others);
    T(a_file_that_cannot_be_written_is_told_to_all);
    T(more_batches_than_announced_are_refused);
    T(files_that_differ_are_noticed);
    T(a_rank_out_of_range_is_refused);
    return t_end();
}
#else
int main(void) { return 0; }
#endif

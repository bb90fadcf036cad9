/* threads.c - a user's pool of threads behind hooks.parallel_for gives the same bits: E51;
   two models in two threads never meet: E27; everything runs on a stack of 64 KB: E31;
   numbers in files do not depend on the locale : E72.  Under TSan this file is the one
   that shows races, since libgomp is not instrumented.                                   */
#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#include <locale.h>
#include <pthread.h>
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"

/* ---- the smallest pool: workers wait for a loop, take its tasks one by one ------------- */

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    pthread_t thread[3];
    size_t next, n, busy, loops;
    gpts_task task;
    void *arg;
    int stop;
} pool;

static void *pool_worker(void *context)
{
    pool *p = (pool *)context;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->next >= p->n) pthread_cond_wait(&p->work, &p->lock);
        if (p->stop) break;
        while (p->next < p->n) {
            size_t i = p->next++;
            p->busy++;
            pthread_mutex_unlock(&p->lock);
            p->task(p->arg, i);
            pthread_mutex_lock(&p->lock);
            p->busy--;
        }
        if (!p->busy) pthread_cond_broadcast(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
static void pool_for(void *context, size_t n, gpts_task task, void *arg)
{
    pool *p = (pool *)context;
    pthread_mutex_lock(&p->lock);
    p->task = task; p->arg = arg; p->n = n; p->next = 0; p->loops++;
    pthread_cond_broadcast(&p->work);
    while (p->next < p->n || p->busy) pthread_cond_wait(&p->idle, &p->lock);
    p->n = p->next = 0;
    pthread_mutex_unlock(&p->lock);
}
static void pool_start(pool *p)
{
    int i;
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL); pthread_cond_init(&p->work, NULL); pthread_cond_init(&p->idle, NULL);
    for (i = 0; i < 3; i++) pthread_create(&p->thread[i], NULL, pool_worker, p);
}
static void pool_stop(pool *p)
{
    int i;
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (i = 0; i < 3; i++) pthread_join(p->thread[i], NULL);
}

/* ---- one piece of work: train, save, load, generate -------------------------------------- */

static const model_case kinds[] = {
    { "t_gpt2",   29, 24, 2, 2, 32, -1, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 1,
      3, 13, NONE, 4, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 },
    { "t_static", 13, 64, 2, 4, 32, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_ERF, 0, 1,
      2, 40, NONE, 0, 0,0,0,0,GPTS_RELU, {5,14,0},{0,0,0}, 24,4,0 },
    { "t_window", 13, 24, 2, 2, 32, 12, GPTS_POSITION_ROPE, GPTS_NORM_LAYER, GPTS_GELU_TANH, 1, 0,
      2, 11, NONE, 0, 0,4,10,1,GPTS_GELU_ERF, {0,0,0},{0,0,0}, 0,0,0 },
};
enum { KINDS = 3, KEEP = 40000 };

typedef struct job { const model_case *c; const gpts_hooks *hooks; int number; gpts_status status; gpts_real *result; size_t n; case_batch *batch; } job;

static void *job_run(void *context)
{
    job *j = (job *)context;
    gpts_train_options options = gpts_train_options_default();
    gpts_model m, again;
    gpts_trainer t;
    gpts_session s;
    char path[100];
    int i;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&again, 0, sizeof again); memset(&s, 0, sizeof s);
    options.dropout = 0.1;
    snprintf(path, sizeof path, "build/tests/thread_%d_%d.safetensors", j->number, (int)sizeof(gpts_real));
    case_batch_make(j->batch, j->c, 1);
    j->status = gpts_model_load(&m, path, j->hooks);               /* made beforehand */
    if (j->status == GPTS_OK) j->status = gpts_trainer_init(&t, &m, &options);
    for (i = 0; i < 4 && j->status == GPTS_OK; i++)
        j->status = gpts_trainer_update(&t, j->batch->tokens, j->batch->targets, j->c->B, j->c->T, NULL);
    if (j->status == GPTS_OK) j->status = gpts_model_save(&m, path);
    if (j->status == GPTS_OK) j->status = gpts_model_load(&again, path, j->hooks);
    if (j->status == GPTS_OK) j->status = gpts_session_init(&s, &again, 1, 12, j->hooks);
    if (j->status == GPTS_OK) j->status = gpts_session_prefill(&s, j->batch->tokens, 8, NULL);
    if (j->status == GPTS_OK) j->status = gpts_session_decode(&s, j->batch->tokens + 8);
    if (j->status == GPTS_OK && again.n_parameters + (size_t)j->c->V <= KEEP) {
        gpts_real *x = weights_of(&again);
        j->n = again.n_parameters;
        memcpy(j->result, x, j->n * sizeof(gpts_real));
        free(x);
        memcpy(j->result + j->n, gpts_session_logits(&s, 0), (size_t)j->c->V * sizeof(gpts_real));
        j->n += (size_t)j->c->V;
    }
    gpts_session_free(&s);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
    gpts_model_free(&again);
    return NULL;
}

static void job_prepare(job *j, const model_case *c, const gpts_hooks *hooks, int number)
{
    gpts_model m;
    char path[100];
    memset(j, 0, sizeof *j);
    j->c = c; j->hooks = hooks; j->number = number;
    j->result = (gpts_real *)calloc(KEEP, sizeof(gpts_real));
    j->batch = (case_batch *)calloc(1, sizeof(case_batch));
    snprintf(path, sizeof path, "build/tests/thread_%d_%d.safetensors", number, (int)sizeof(gpts_real));
    t_status(case_model(&m, c, NULL), GPTS_OK);
    t_status(gpts_model_save(&m, path), GPTS_OK);
    gpts_model_free(&m);
}
static void job_end(job *j)
{
    char path[100];
    snprintf(path, sizeof path, "build/tests/thread_%d_%d.safetensors", j->number, (int)sizeof(gpts_real));
    remove(path);
    free(j->result); free(j->batch);
}
static void jobs_agree(const job *a, const job *b)
{
    t_status(a->status, GPTS_OK); t_status(b->status, GPTS_OK);
    t_ok(a->n > 0); t_equal(a->n, b->n);
    if (a->n == b->n) t_bits(a->result, b->result, a->n * sizeof(gpts_real));
}

static void E51_a_pool_of_threads_gives_the_same_bits(void)
{
    int k;
    for (k = 0; k < KINDS && !t_state.bad; k++) {
        job alone, pooled;
        gpts_hooks one, many;
        pool p;
        memset(&one, 0, sizeof one); memset(&many, 0, sizeof many);
        one.threads = 1;
        pool_start(&p);
        many.context = &p; many.parallel_for = pool_for; many.threads = 4;
        job_prepare(&alone, &kinds[k], &one, 0);
        job_prepare(&pooled, &kinds[k], &many, 1);
        if (!t_state.bad) {
            job_run(&alone);
            job_run(&pooled);
            jobs_agree(&alone, &pooled);
            t_ok(p.loops > 0);
        }
        pool_stop(&p);
        job_end(&alone); job_end(&pooled);
    }
}

static void E27_two_models_in_two_threads_never_meet(void)
{
    job j[2 * KINDS];
    pthread_t thread[KINDS];
    gpts_hooks one;
    int k;
    memset(&one, 0, sizeof one);
    one.threads = 1;
    for (k = 0; k < 2 * KINDS; k++) job_prepare(&j[k], &kinds[k % KINDS], &one, k);
    if (!t_state.bad) {
        for (k = 0; k < KINDS; k++) pthread_create(&thread[k], NULL, job_run, &j[k]);
        for (k = 0; k < KINDS; k++) pthread_join(thread[k], NULL);
        for (k = KINDS; k < 2 * KINDS; k++) job_run(&j[k]);
        for (k = 0; k < KINDS; k++) jobs_agree(&j[k], &j[k + KINDS]);
    }
    for (k = 0; k < 2 * KINDS; k++) job_end(&j[k]);
}

static void E31_everything_runs_on_a_stack_of_64_KB(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    t_skip("sanitizers need a larger stack");
#else
    int k;
    for (k = 0; k < KINDS && !t_state.bad; k++) {
        job j, other;
        gpts_hooks one;
        pthread_attr_t attr;
        pthread_t thread;
        memset(&one, 0, sizeof one);
        one.threads = 1;
        pthread_attr_init(&attr);
        t_equal(pthread_attr_setstacksize(&attr, 65536), 0);
        job_prepare(&j, &kinds[k], &one, 0);
        job_prepare(&other, &kinds[k], &one, 1);
        if (!t_state.bad) {
            t_equal(pthread_create(&thread, &attr, job_run, &j), 0);
            pthread_join(thread, NULL);
            job_run(&other);
            jobs_agree(&j, &other);
        }
        pthread_attr_destroy(&attr);
        job_end(&j); job_end(&other);
    }
#endif
}

static void E72_a_locale_with_decimal_commas_changes_nothing(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "nl_NL.UTF-8", "pl_PL.UTF-8" };
    gpts_hooks one;
    job a, b;
    size_t i;
    memset(&one, 0, sizeof one);
    one.threads = 1;
    job_prepare(&a, &kinds[0], &one, 0);
    job_run(&a);
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_ALL, names[i]) && localeconv()->decimal_point[0] == ',') break;
    if (i == sizeof names / sizeof names[0]) t_skip("no locale with decimal commas is installed");
    else {
        gpts_config config = case_config(&kinds[0]);
        gpts_model m, back;
        memset(&m, 0, sizeof m); memset(&back, 0, sizeof back);
        job_prepare(&b, &kinds[0], &one, 1);
        job_run(&b);
        jobs_agree(&a, &b);
        job_end(&b);
        config.layer_norm_epsilon = 0.12345678901234567;
        t_status(gpts_model_init(&m, &config, 1, &one), GPTS_OK);
        t_status(gpts_model_save(&m, "build/tests/locale.safetensors"), GPTS_OK);
        setlocale(LC_ALL, "C");
        t_status(gpts_model_load(&back, "build/tests/locale.safetensors", &one), GPTS_OK);
        t_ok(back.config.layer_norm_epsilon == config.layer_norm_epsilon);
        gpts_model_free(&m); gpts_model_free(&back);
        remove("build/tests/locale.safetensors");
    }
    setlocale(LC_ALL, "C");
    job_end(&a);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(E51_a_pool_of_threads_gives_the_same_bits);
    T(E27_two_models_in_two_threads_never_meet);
    T(E31_everything_runs_on_a_stack_of_64_KB);
    T(E72_a_locale_with_decimal_commas_changes_nothing);
    return t_end();
}
#else
#include <stdio.h>
int main(void) { puts("  skipped: threads need POSIX\n0 passed, 0 failed, 1 skipped"); return 0; }
#endif

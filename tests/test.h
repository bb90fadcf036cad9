/* test.h - the tests' harness: a test is a function whose name says what it checks.

     static void rows_sum_to_one(void) { t_close(sum, 1.0, 1e-6); }
     int main(int argc, char **argv) { t_begin(argc, argv); T(rows_sum_to_one); return t_end(); }

   Arguments filter by part of a name.  The closing line is `N passed, N failed`
   (and `, N skipped`), the exit status 1 if any failed.                              */
#ifndef TEST_H
#define TEST_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { int passed, failed, skipped, bad, skip; char **filter; int filters; } t_state;

static void t_begin(int argc, char **argv) { t_state.filter = argv + 1; t_state.filters = argc - 1; setvbuf(stdout, NULL, _IOLBF, 0); }

static int t_wanted(const char *name)
{
    int i;
    for (i = 0; i < t_state.filters; i++) if (strstr(name, t_state.filter[i])) return 1;
    return t_state.filters == 0;
}
static void t_run(const char *name, void (*test)(void))
{
    if (!t_wanted(name)) return;
    t_state.bad = t_state.skip = 0;
    test();
    if (t_state.bad) t_state.failed++;
    else if (t_state.skip) t_state.skipped++;
    else t_state.passed++;
    if (t_state.bad) printf("FAILED %s\n", name);
}
#define T(test) t_run(#test, test)

static int t_end(void)
{
    printf("%d passed, %d failed", t_state.passed, t_state.failed);
    if (t_state.skipped) printf(", %d skipped", t_state.skipped);
    printf("\n");
    return t_state.failed != 0;
}
static void t_fail(const char *file, int line, const char *what)
{
    if (t_state.bad++ < 5) printf("  %s:%d: %s\n", file, line, what);
}
static void t_skip(const char *why) { t_state.skip = 1; printf("  skipped: %s\n", why); }

#define t_ok(condition) do { if (!(condition)) t_fail(__FILE__, __LINE__, #condition); } while (0)
#define t_status(call, expected) do { int t_s_ = (int)(call); if (t_s_ != (int)(expected)) { char t_b_[200]; \
    snprintf(t_b_, sizeof t_b_, "%s: status %d, expected %d", #call, t_s_, (int)(expected)); t_fail(__FILE__, __LINE__, t_b_); } } while (0)
#define t_equal(a, b) do { long long t_x_ = (long long)(a), t_y_ = (long long)(b); if (t_x_ != t_y_) { char t_b_[200]; \
    snprintf(t_b_, sizeof t_b_, "%s = %lld, expected %s = %lld", #a, t_x_, #b, t_y_); t_fail(__FILE__, __LINE__, t_b_); } } while (0)
/* |a - b| <= tolerance; NaN fails */
#define t_close(a, b, tolerance) do { double t_x_ = (double)(a), t_y_ = (double)(b); if (!(fabs(t_x_ - t_y_) <= (tolerance))) { char t_b_[240]; \
    snprintf(t_b_, sizeof t_b_, "%s = %.17g, expected %.17g within %g", #a, t_x_, t_y_, (double)(tolerance)); t_fail(__FILE__, __LINE__, t_b_); } } while (0)
#define t_text(a, b) do { const char *t_x_ = (a), *t_y_ = (b); if (strcmp(t_x_, t_y_)) { char t_b_[400]; \
    snprintf(t_b_, sizeof t_b_, "\"%.150s\", expected \"%.150s\"", t_x_, t_y_); t_fail(__FILE__, __LINE__, t_b_); } } while (0)
/* the text must contain the part: for sentences of errors */
#define t_says(text, part) do { const char *t_x_ = (text), *t_y_ = (part); if (!strstr(t_x_, t_y_)) { char t_b_[500]; \
    snprintf(t_b_, sizeof t_b_, "\"%.200s\" does not say \"%.100s\"", t_x_, t_y_); t_fail(__FILE__, __LINE__, t_b_); } } while (0)
#define t_bits(a, b, bytes) t_ok(memcmp((a), (b), (bytes)) == 0)

/* the larger one, and NaN for good once it comes (fmax would drop it) */
static inline double t_most(double most, double x) { return most >= x || most != most ? most : x; }

/* A gpts_hooks' allocator that refuses after `left` blocks; `live` are not given back. */
typedef struct t_budget { long left, live; } t_budget;
static inline void *t_budget_allocate(void *context, size_t bytes)
{
    t_budget *b = (t_budget *)context;
    if (b->left-- <= 0) return NULL;
    b->live++;
    return malloc(bytes);
}
static inline void t_budget_release(void *context, void *memory, size_t bytes)
{
    (void)bytes;
    ((t_budget *)context)->live--;
    free(memory);
}

#endif

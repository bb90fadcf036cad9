/* approximator.c - what stands in for a layer's attention: (Q1) form, (Q2) window, (Q3) fit, (Q4) R2 */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

enum { V = 29, C = 12, T = 9, SEQUENCES = 40 };

static gpts_model model;
static int32_t tokens[SEQUENCES * T];

static void make_model(int64_t layers)
{
    gpts_config c = gpts_config_default();
    gpts_rng rng = { 5, 0 };
    size_t i, e;
    c.vocab_size = V; c.n_positions = 16; c.n_layer = layers; c.n_head = 3; c.n_embd = C;
    t_status(gpts_model_init(&model, &c, 3, NULL), GPTS_OK);
    for (i = 0; i < model.n_tensors; i++) for (e = 0; e < model.tensors[i].size; e++)
        model.tensors[i].data[e] += (gpts_real)(0.2 * gpts_rng_normal(&rng));
    for (i = 0; i < SEQUENCES * T; i++) tokens[i] = (int32_t)gpts_rng_below(&rng, V);
}

/* the form (Q1) written out for one row, in double */
static double reference(const gpts_approximator *a, const gpts_recording *r, size_t row, size_t c)
{
    size_t k = a->window, h = a->hidden, o, j, i, t = row % r->T;
    double y = (double)a->proj_b[c];
    for (o = 0; o < h; o++) {
        double pre = (double)a->fc_b[o];
        for (j = 0; j < k; j++) {
            size_t back = k - 1 - j;
            if (back > t) continue;
            for (i = 0; i < C; i++) pre += (double)r->x[(row - back) * C + i] * (double)a->fc_w[(j * C + i) * h + o];
        }
        if (pre > 0) y += pre * (double)a->proj_w[o * C + c];
    }
    return y;
}

static gpts_approximator_options options(gpts_approximator_kind kind, size_t window, size_t hidden, size_t updates)
{
    gpts_approximator_options o;
    memset(&o, 0, sizeof o);
    o.kind = kind; o.window = window; o.hidden = hidden; o.updates = updates; o.batch = 64; o.seed = 11;
    return o;
}

static void Q1_an_installed_approximator_gives_what_its_formula_says(void)
{
    size_t window, row, c;
    for (window = 1; window <= 4; window += 3) {
        gpts_recording r;
        gpts_approximator a;
        gpts_approximator_options o = options(GPTS_APPROX_RANDOM, window, 7, 0);
        gpts_real *x = (gpts_real *)malloc(SEQUENCES * T * C * sizeof *x), *y = (gpts_real *)malloc(SEQUENCES * T * C * sizeof *y);
        gpts_batch batch;
        make_model(2);
        t_status(gpts_recording_make(&r, &model, 1, tokens, SEQUENCES, T), GPTS_OK);
        t_status(gpts_approximator_fit(&a, &model, &r, NULL, &o, NULL), GPTS_OK);
        t_status(gpts_approximator_install(&model, NULL, &a, 0), GPTS_OK);
        memset(&batch, 0, sizeof batch);
        batch.tokens = tokens; batch.B = SEQUENCES; batch.T = T;
        t_status(gpts_model_record(&model, &batch, 1, x, y), GPTS_OK);
        t_bits(x, r.x, SEQUENCES * T * C * sizeof *x);
        for (row = 0; row < SEQUENCES * T; row++) for (c = 0; c < C; c++) t_close(y[row * C + c], reference(&a, &r, row, c), sizeof(gpts_real) == 8 ? 1e-11 : 2e-4);
        free(x); free(y);
        gpts_approximator_free(&a); gpts_recording_free(&r); gpts_model_free(&model);
    }
}

static void Q3_a_function_of_the_token_is_fitted_and_one_of_the_past_needs_the_window(void)
{
    gpts_recording r, held;
    gpts_approximator a;
    gpts_approximator_options o;
    double now = 0, past = 0, windowed = 0;
    size_t row, c, which;
    make_model(1);
    for (which = 0; which < 2; which++) {                  /* y = tanh of this token's input, or of the last one's */
        t_status(gpts_recording_make(&r, &model, 0, tokens, 30, T), GPTS_OK);
        t_status(gpts_recording_make(&held, &model, 0, tokens + 30 * T, 10, T), GPTS_OK);
        for (row = 0; row < 40 * T; row++) {
            gpts_recording *to = row < 30 * T ? &r : &held;
            size_t at = row < 30 * T ? row : row - 30 * T, from = which && at % T ? at - 1 : at;
            for (c = 0; c < C; c++) to->y[at * C + c] = (gpts_real)tanh(0.7 * (double)to->x[from * C + (c * 5 + 1) % C]);
        }
        o = options(GPTS_APPROX_MLP, 1, 48, 600);
        t_status(gpts_approximator_fit(&a, &model, &r, &held, &o, which ? &past : &now), GPTS_OK);
        gpts_approximator_free(&a);
        if (which) {
            o = options(GPTS_APPROX_MLP, 2, 48, 600);
            t_status(gpts_approximator_fit(&a, &model, &r, &held, &o, &windowed), GPTS_OK);
            gpts_approximator_free(&a);
        }
        gpts_recording_free(&r); gpts_recording_free(&held);
    }
    t_ok(now > 0.9);
    t_ok(past < 0.4);
    t_ok(windowed > past + 0.3);
    gpts_model_free(&model);
}

static void Q4_the_mean_has_R2_zero_where_it_was_taken_and_nothing_is_below(void)
{
    gpts_recording r;
    gpts_approximator a;
    gpts_approximator_options o = options(GPTS_APPROX_MEAN, 0, 0, 0);
    double r2 = 1;
    size_t i;
    make_model(2);
    t_status(gpts_recording_make(&r, &model, 0, tokens, SEQUENCES, T), GPTS_OK);
    t_status(gpts_approximator_fit(&a, &model, &r, NULL, &o, &r2), GPTS_OK);
    t_close(r2, 0, 1e-5);
    gpts_approximator_free(&a);
    o.kind = GPTS_APPROX_NOTHING;
    t_status(gpts_approximator_fit(&a, &model, &r, NULL, &o, &r2), GPTS_OK);
    t_ok(r2 < 0);
    r.C++;                                                  /* of another model */
    t_status(gpts_approximator_r2(&a, &r, &r2), GPTS_BAD_SHAPE);
    t_says(a.error, "for an approximator of width");
    r.C--;
    for (i = 0; i < C; i++) t_ok(a.proj_b[i] == 0);
    gpts_approximator_free(&a); gpts_recording_free(&r); gpts_model_free(&model);
}

static void a_trainer_follows_an_install_and_keeps_all_other_moments(void)
{
    gpts_trainer trainer;
    gpts_recording r;
    gpts_approximator a;
    gpts_approximator_options o = options(GPTS_APPROX_RANDOM, 1, 7, 0);
    gpts_real kept[C];
    gpts_tensor *t;
    size_t before;
    double loss;
    make_model(2);
    t_status(gpts_trainer_init(&trainer, &model, NULL), GPTS_OK);
    t_status(gpts_trainer_update(&trainer, tokens, tokens + T, 4, T, &loss), GPTS_OK);
    t = gpts_model_tensor(&model, "h.1.ln_1.weight");
    memcpy(kept, trainer.moment1 + trainer.offset[t - model.tensors], sizeof kept);
    before = trainer.n_trainable;
    t_status(gpts_recording_make(&r, &model, 1, tokens, SEQUENCES, T), GPTS_OK);
    t_status(gpts_approximator_fit(&a, &model, &r, NULL, &o, NULL), GPTS_OK);
    t_status(gpts_approximator_install(&model, &trainer, &a, 0), GPTS_OK);
    t = gpts_model_tensor(&model, "h.1.ln_1.weight");
    t_bits(kept, trainer.moment1 + trainer.offset[t - model.tensors], sizeof kept);
    t_equal(before - trainer.n_trainable, 3 * C * C + 3 * C + C * C + C);
    t_ok(gpts_model_tensor(&model, "h.1.attn.c_attn.weight") == NULL);
    t = gpts_model_tensor(&model, "h.1.approx.c_fc.weight");
    t_status(gpts_trainer_update(&trainer, tokens, tokens + T, 4, T, &loss), GPTS_OK);
    t_bits(t->data, a.fc_w, t->size * sizeof *t->data);    /* frozen: training does not touch it */
    gpts_approximator_free(&a); gpts_recording_free(&r); gpts_trainer_free(&trainer); gpts_model_free(&model);
}

static void Q2_decoding_through_a_windowed_approximator_equals_the_whole_sequence(void)
{
    gpts_recording r;
    gpts_approximator a;
    gpts_approximator_options o = options(GPTS_APPROX_RANDOM, 4, 7, 0);
    gpts_session s;
    gpts_batch batch;
    gpts_real *logits = (gpts_real *)malloc(2 * T * V * sizeof *logits);
    int32_t lengths[2] = { 3, 5 }, prompt[10], next[2];
    size_t b, t, v;
    make_model(2);
    t_status(gpts_recording_make(&r, &model, 1, tokens, SEQUENCES, T), GPTS_OK);
    t_status(gpts_approximator_fit(&a, &model, &r, NULL, &o, NULL), GPTS_OK);
    t_status(gpts_approximator_install(&model, NULL, &a, 0), GPTS_OK);
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.B = 2; batch.T = T;
    t_status(gpts_model_forward(&model, &batch, logits, NULL), GPTS_OK);
    for (b = 0; b < 2; b++) for (t = 0; t < 5; t++) prompt[b * 5 + t] = tokens[b * T + t];
    t_status(gpts_session_init(&s, &model, 2, T, NULL), GPTS_OK);
    t_status(gpts_session_prefill(&s, prompt, 5, lengths), GPTS_OK);
    for (t = 0; t < 6; t++) {
        for (b = 0; b < 2; b++) {
            size_t at = (size_t)lengths[b] + t - 1;
            if (at < T) for (v = 0; v < V; v++) t_close(gpts_session_logits(&s, b)[v], logits[(b * T + at) * V + v], sizeof(gpts_real) == 8 ? 1e-11 : 2e-4);
            next[b] = at + 1 < T ? tokens[b * T + at + 1] : -1;
        }
        t_status(gpts_session_decode(&s, next), GPTS_OK);
    }
    free(logits);
    gpts_session_free(&s); gpts_approximator_free(&a); gpts_recording_free(&r); gpts_model_free(&model);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(Q1_an_installed_approximator_gives_what_its_formula_says);
    T(Q2_decoding_through_a_windowed_approximator_equals_the_whole_sequence);
    T(Q3_a_function_of_the_token_is_fitted_and_one_of_the_past_needs_the_window);
    T(Q4_the_mean_has_R2_zero_where_it_was_taken_and_nothing_is_below);
    T(a_trainer_follows_an_install_and_keeps_all_other_moments);
    return t_end();
}

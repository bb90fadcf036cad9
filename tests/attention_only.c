/* attention_only.c - models without MLP, norm or positions: what must hold for them, padding
   masks, labels, and their files under other people's names.                              */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

#define DOUBLE (sizeof(gpts_real) == 8)
static const double close_enough = DOUBLE ? 1e-12 : 2e-5;

static gpts_model make(int64_t L, int64_t H, int64_t C, int64_t V, gpts_position position)
{
    gpts_model m;
    gpts_config config = gpts_config_attention_only(L, H, C);
    gpts_rng rng;
    size_t k, i;
    config.vocab_size = V; config.position = position; config.n_positions = 64;
    memset(&m, 0, sizeof m);
    t_status(gpts_model_init(&m, &config, 3, NULL), GPTS_OK);
    rng.seed = 11; rng.counter = 0;
    for (k = 0; k < m.n_tensors; k++) for (i = 0; i < m.tensors[k].size; i++) m.tensors[k].data[i] = (gpts_real)(float)(0.4 * gpts_rng_normal(&rng));
    return m;
}
static gpts_real *run(gpts_model *m, const int32_t *tokens, size_t B, size_t T)
{
    gpts_real *logits = (gpts_real *)calloc(B * T * (size_t)m->config.vocab_size, sizeof *logits);
    gpts_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.tokens = tokens; batch.B = B; batch.T = T;
    t_status(gpts_model_forward(m, &batch, logits, NULL), GPTS_OK);
    return logits;
}
static double farthest(const gpts_real *a, const gpts_real *b, size_t n)
{
    double worst = 0;
    size_t i;
    for (i = 0; i < n; i++) { double d = fabs((double)a[i] - (double)b[i]); worst = t_most(worst, d); }
    return worst;
}

/* ---- properties ------------------------------------------------------------------------ */

static void the_family_has_the_published_sizes(void)
{
    gpts_model m;
    gpts_config c = gpts_config_attention_only(0, 4, 128);
    memset(&m, 0, sizeof m);
    t_status(gpts_model_init(&m, &c, 1, NULL), GPTS_OK);
    t_equal(m.n_parameters * 4, 4194304);                         /* bytes of the zero-layer file */
    t_equal(m.n_tensors, 2);
    gpts_model_free(&m);
    c = gpts_config_attention_only(4, 8, 128);
    t_status(gpts_model_init(&m, &c, 1, NULL), GPTS_OK);
    t_equal(m.n_parameters, 2 * 4096 * 128 + 4 * 4 * 128 * 128);  /* 7 C^2 a layer fold to 4 C^2 */
    gpts_model_free(&m);
}

static void zero_layers_are_a_bigram_table_of_rank_at_most_the_width(void)
{
    enum { V = 12, C = 4 };
    gpts_model m = make(0, 1, C, V, GPTS_POSITION_NONE);
    int32_t tokens[2 * V];
    double a[V][V], size = 0, rest = 0;
    gpts_real *x;
    int i, j, k, p, q, used[V] = {0};
    for (i = 0; i < V; i++) { tokens[i] = i; tokens[V + i] = (i * 7 + 3) % V; }
    x = run(&m, tokens, 1, 2 * V);
    for (i = 0; i < V; i++) t_close(farthest(x + (V + i) * V, x + tokens[V + i] * V, V), 0, close_enough);   /* the token alone decides */
    for (i = 0; i < V; i++) for (j = 0; j < V; j++) { a[i][j] = (double)x[i * V + j]; size += a[i][j] * a[i][j]; }
    for (k = 0; k < C; k++) {                                     /* elimination with the largest pivot, C times */
        for (p = q = -1, i = 0; i < V; i++) for (j = 0; j < V && !used[i]; j++) if (p < 0 || fabs(a[i][j]) > fabs(a[p][q])) { p = i; q = j; }
        used[p] = 1;
        t_ok(fabs(a[p][q]) > 1e-3);
        for (i = 0; i < V; i++) {
            double f = a[i][q] / a[p][q];
            if (!used[i]) for (j = 0; j < V; j++) a[i][j] -= f * a[p][j];
        }
    }
    for (i = 0; i < V; i++) for (j = 0; j < V && !used[i]; j++) rest += a[i][j] * a[i][j];
    t_ok(sqrt(rest / size) < (DOUBLE ? 1e-12 : 1e-5));
    free(x);
    gpts_model_free(&m);
}

static void one_layer_without_positions_does_not_see_the_order_of_earlier_tokens(void)
{
    enum { V = 20, T = 9 };
    static const int32_t one[T] = { 3, 1, 4, 1, 5, 9, 2, 6, 7 }, other[T] = { 9, 6, 1, 5, 2, 4, 3, 1, 7 };
    int64_t L;
    for (L = 1; L <= 2; L++) {
        gpts_model m = make(L, 2, 8, V, GPTS_POSITION_NONE);
        gpts_real *a = run(&m, one, 1, T), *b = run(&m, other, 1, T);
        double d = farthest(a + (T - 1) * V, b + (T - 1) * V, V);
        if (L == 1) t_ok(d < close_enough);
        else t_ok(d > 1e-3);                                      /* the prefixes differ */
        free(a); free(b);
        gpts_model_free(&m);
    }
}

static void a_constant_sequence_has_constant_logits(void)
{
    enum { V = 10, T = 7 };
    static const int32_t tokens[T] = { 6, 6, 6, 6, 6, 6, 6 };
    gpts_model m = make(3, 2, 8, V, GPTS_POSITION_NONE);
    gpts_real *x = run(&m, tokens, 1, T);
    int t;
    for (t = 1; t < T; t++) t_ok(farthest(x, x + t * V, V) < close_enough);
    free(x);
    gpts_model_free(&m);
}

/* ---- masks and labels ------------------------------------------------------------------- */

static void a_mask_becomes_intervals_or_a_sentence(void)
{
    static const int32_t mask[] = { 1,1,1,1, 0,0,1,1, 1,0,0,0, 0,0,0,0 }, hole[] = { 1,1,1,1, 1,0,1,0 }, strange[] = { 1,1,2,0 };
    static const int32_t first_true[] = { 0, 2, 0, 0 }, length_true[] = { 4, 2, 1, 0 };
    int32_t first[4], length[4];
    char error[GPTS_ERROR_BYTES] = "";
    t_status(gpts_mask_intervals(mask, 4, 4, first, length, error), GPTS_OK);
    t_bits(first, first_true, sizeof first);
    t_bits(length, length_true, sizeof length);
    t_status(gpts_mask_intervals(hole, 2, 4, first, length, error), GPTS_BAD_ARGUMENT);
    t_says(error, "row 1 has a hole: 0 at position 1, 1 again at 2");
    t_status(gpts_mask_intervals(strange, 1, 4, first, length, error), GPTS_BAD_ARGUMENT);
    t_says(error, "row 0, position 2 is 2, expected 0 or 1");
    t_status(gpts_mask_intervals(strange, 1, 4, first, length, NULL), GPTS_BAD_ARGUMENT);
}

static void labels_are_shifted_and_ignored_below_zero_or_under_the_mask(void)    /* (X4) */
{
    static const int32_t labels[] = { 5, 6, -100, 8, 9,   1, 2, 3, 4, 0 }, mask[] = { 1,1,1,1,1, 0,0,1,1,1 };
    static const int32_t plain[] = { 6, -1, 8, 9, -1,   2, 3, 4, 0, -1 }, masked[] = { 6, -1, 8, 9, -1,   -1, -1, 4, 0, -1 };
    int32_t targets[10];
    gpts_labels_to_targets(labels, NULL, 2, 5, targets);
    t_bits(targets, plain, sizeof targets);
    gpts_labels_to_targets(labels, mask, 2, 5, targets);
    t_bits(targets, masked, sizeof targets);
}

static gpts_masked_call call_of(const int32_t *ids, const int32_t *mask, const int32_t *labels, gpts_real *logits, size_t B, size_t T, size_t V)
{
    gpts_masked_call call;
    memset(&call, 0, sizeof call);
    call.input_ids.data = ids; call.attention_mask.data = mask; call.labels.data = labels; call.logits.data = logits;
    call.input_ids.rank = call.attention_mask.rank = call.labels.rank = 2; call.logits.rank = 3;
    call.input_ids.shape[0] = call.attention_mask.shape[0] = call.labels.shape[0] = call.logits.shape[0] = B;
    call.input_ids.shape[1] = call.attention_mask.shape[1] = call.labels.shape[1] = call.logits.shape[1] = T;
    call.logits.shape[2] = V;
    return call;
}

static void left_right_and_unpadded_rows_agree_on_the_real_tokens(void)
{
    enum { V = 17, N = 5, T = 9, LEFT = 3 };
    static const int32_t real[N] = { 3, 14, 15, 9, 2 };
    int position;
    for (position = 0; position < 3; position++) {
        gpts_model m = make(2, 2, 8, V, (gpts_position)position);
        int32_t ids[3 * T], mask[3 * T];
        gpts_real logits[3 * T * V], *plain = run(&m, real, 1, N);
        gpts_masked_call call;
        double sum = 0;
        int r, t;
        for (r = 0; r < 3; r++) for (t = 0; t < T; t++) {         /* a row with padding left (and right), right, and nothing but padding */
            int at = r == 0 ? t - LEFT : t;
            mask[r * T + t] = r < 2 && at >= 0 && at < N;
            ids[r * T + t] = mask[r * T + t] ? real[at] : (t * 5 + r) % V;
        }
        call = call_of(ids, mask, ids, logits, 3, T, V);
        t_status(gpts_model_forward_masked(&m, &call), GPTS_OK);
        t_ok(farthest(logits + LEFT * V, plain, N * V) < close_enough);
        t_ok(farthest(logits + T * V, plain, N * V) < close_enough);
        for (t = 0; t + 1 < N; t++) {                             /* the loss, from the logits */
            double z = 0;
            for (r = 0; r < V; r++) z += exp((double)plain[t * V + r]);
            sum += log(z) - (double)plain[t * V + real[t + 1]];
        }
        t_close(call.loss, sum / (N - 1), 1e-5);
        for (t = 0; t < 3 * T; t++) if (!mask[t]) ids[t] = -7;    /* what stands under the mask is not even read */
        t_status(gpts_model_forward_masked(&m, &call), GPTS_OK);
        t_ok(farthest(logits + T * V, plain, N * V) < close_enough);
        free(plain);
        gpts_model_free(&m);
    }
}

static void a_fully_masked_row_adds_nothing_to_loss_or_gradient(void)
{
    enum { V = 13, T = 6 };
    static const int32_t tokens[2 * T] = { 1, 2, 3, 4, 5, 6,   7, 8, 9, 10, 11, 12 };
    static const int32_t targets[2 * T] = { 2, 3, 4, 5, 6, 7,   8, 9, 10, 11, 12, 0 };
    int32_t first[2] = { 0, 0 }, length[2] = { T, 0 };
    gpts_model m = make(2, 2, 8, V, GPTS_POSITION_NONE);
    gpts_train_options options = gpts_train_options_default();
    gpts_trainer a, b;
    gpts_batch batch;
    double loss[2];
    memset(&a, 0, sizeof a); memset(&b, 0, sizeof b); memset(&batch, 0, sizeof batch);
    t_status(gpts_trainer_init(&a, &m, &options), GPTS_OK);
    t_status(gpts_trainer_init(&b, &m, &options), GPTS_OK);
    batch.tokens = tokens; batch.targets = targets; batch.B = 1; batch.T = T;
    t_status(gpts_trainer_accumulate(&a, &batch, &loss[0]), GPTS_OK);
    batch.B = 2; batch.first = first; batch.length = length;
    t_status(gpts_trainer_accumulate(&b, &batch, &loss[1]), GPTS_OK);
    t_close(loss[0], loss[1], 1e-5);
    t_ok(loss[0] > 1);
    t_ok(farthest(a.gradients, b.gradients, a.n_trainable) < close_enough);
    gpts_trainer_free(&a); gpts_trainer_free(&b);
    gpts_model_free(&m);
}

static void arrays_of_another_shape_are_refused_with_both_shapes(void)
{
    enum { V = 9, T = 4, C = 8 };
    static const int32_t ids[2 * T] = { 1, 2, 3, 4, 5, 6, 7, 8 }, mask[2 * T] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    gpts_real logits[2 * T * V], hidden[2 * T * C];
    gpts_model m = make(1, 2, C, V, GPTS_POSITION_NONE);
    gpts_masked_call call = call_of(ids, mask, ids, logits, 2, T, V);
    size_t c, v;
    call.hidden_states.data = hidden; call.hidden_states.rank = 3;
    call.hidden_states.shape[0] = 2; call.hidden_states.shape[1] = T; call.hidden_states.shape[2] = C;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_OK);
    for (v = 0; v < V; v++) {                                     /* logits = hidden states times lm_head */
        double sum = 0;
        for (c = 0; c < C; c++) sum += (double)hidden[5 * C + c] * (double)gpts_model_tensor(&m, "lm_head.weight")->data[v * C + c];
        t_close(logits[5 * V + v], sum, 1e-5);
    }
    call.attention_mask.shape[1] = 5;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_BAD_SHAPE);
    t_says(m.error, "attention_mask has shape [2,5], expected [2,4]");
    call.attention_mask.shape[1] = T; call.hidden_states.shape[2] = 4;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_BAD_SHAPE);
    t_says(m.error, "hidden_states has shape [2,4,4], expected [2,4,8]");
    call.hidden_states.shape[2] = C; call.logits.shape[2] = 10;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_BAD_SHAPE);
    t_says(m.error, "logits has shape [2,4,10], expected [2,4,9]");
    call.logits.shape[2] = V; call.labels.rank = 1;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_BAD_SHAPE);
    t_says(m.error, "labels has shape [2], expected [2,4]");
    call.labels.rank = 2; call.input_ids.rank = 3;
    t_status(gpts_model_forward_masked(&m, &call), GPTS_BAD_SHAPE);
    t_says(m.error, "input_ids has 3 dimensions, expected 2");
    gpts_model_free(&m);
}

/* ---- training --------------------------------------------------------------------------- */

static void zero_layers_learn_the_bigram_entropy_and_no_more(void)
{
    enum { V = 8, T = 600, UPDATES = 600 };
    gpts_config config = gpts_config_attention_only(0, 1, V);
    gpts_train_options options = gpts_train_options_default();
    gpts_model m;
    gpts_trainer t;
    gpts_rng rng;
    int32_t text[T + 1];
    double pairs[V][V] = {{0}}, from[V] = {0}, entropy = 0, loss = 0, least = HUGE_VAL;
    int i, j;
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t);
    rng.seed = 5; rng.counter = 0;
    for (text[0] = 0, i = 1; i <= T; i++)                         /* a chain in which some steps are likelier */
        text[i] = (int32_t)(gpts_rng_uniform(&rng) < 0.6 ? (text[i - 1] * 3 + 1) % V : (int)gpts_rng_below(&rng, V));
    for (i = 0; i < T; i++) { pairs[text[i]][text[i + 1]] += 1; from[text[i]] += 1; }
    for (i = 0; i < V; i++) for (j = 0; j < V; j++) if (pairs[i][j] > 0) entropy -= pairs[i][j] / T * log(pairs[i][j] / from[i]);
    config.vocab_size = V; config.n_positions = T;
    options.learning_rate = 0.05; options.min_learning_rate = 1e-4; options.total = UPDATES; options.weight_decay = 0;
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    for (i = 0; i < UPDATES; i++) {
        t_status(gpts_trainer_update(&t, text, text + 1, 1, T, &loss), GPTS_OK);
        if (loss < least) least = loss;
    }
    t_ok(entropy > 0.5 && entropy < log(V) - 0.2);
    t_close(loss, entropy, 1e-3);
    t_ok(least > entropy - 1e-5);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

static void models_of_0_to_4_layers_train_and_keep_their_answers_in_a_file(void)
{
    enum { V = 30, T = 16, B = 4 };
    int64_t L;
    for (L = 0; L <= 4; L++) {
        gpts_config config = gpts_config_attention_only(L, 4, 16);
        gpts_train_options options = gpts_train_options_default();
        gpts_model m, again;
        gpts_trainer t;
        gpts_mapping mapping;
        int32_t tokens[B * T], targets[B * T];
        double begin = 0, end = 0;
        gpts_real *a, *b;
        int i;
        char path[] = "build/tests/attention_only_0.safetensors";
        memset(&m, 0, sizeof m); memset(&again, 0, sizeof again); memset(&t, 0, sizeof t); memset(&mapping, 0, sizeof mapping);
        path[27] = (char)('0' + L);
        config.vocab_size = V;
        options.learning_rate = 1e-2;
        for (i = 0; i < B * T; i++) { tokens[i] = (i * i + i / 7) % V; targets[i] = (tokens[i] * 5 + 2) % V; }
        t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
        t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
        t_status(gpts_trainer_update(&t, tokens, targets, B, T, &begin), GPTS_OK);
        for (i = 0; i < 60; i++) t_status(gpts_trainer_update(&t, tokens, targets, B, T, &end), GPTS_OK);
        t_close(begin, log(V), 0.1);
        t_ok(end < begin - 1);
        t_status(gpts_model_save_mapped(&m, path, NULL, NULL), GPTS_OK);
        t_status(gpts_model_load_mapped(&again, path, &mapping, NULL), GPTS_OK);
        t_text(again.error, "");
        a = run(&m, tokens, B, T); b = run(&again, tokens, B, T);
        t_ok(farthest(a, b, B * T * V) < (DOUBLE ? 1e-5 : 1e-12));    /* files hold F32 */
        free(a); free(b);
        gpts_release(NULL, mapping.table);
        gpts_trainer_free(&t);
        gpts_model_free(&m); gpts_model_free(&again);
    }
}

/* ---- other people's names ------------------------------------------------------------------ */

/* A file in pieces: names, shapes and values of a model's parts, then written. */
enum { LH = 2, LC = 8, LV = 11, LL = 2, MOST = 40 };
typedef struct pieces { gpts_file_entry entry[MOST]; char name[MOST][80]; gpts_real *data[MOST]; size_t n; gpts_file_pair pair[2]; size_t n_pairs; } pieces;

static gpts_real *piece(pieces *p, const char *name, size_t rows, size_t columns)
{
    gpts_file_entry *e = &p->entry[p->n];
    snprintf(p->name[p->n], sizeof p->name[p->n], "%s", name);
    e->name = p->name[p->n]; e->dtype = GPTS_F32; e->rank = columns ? 2 : 1; e->shape[0] = rows; e->shape[1] = columns;
    p->data[p->n] = (gpts_real *)calloc(rows * (columns ? columns : 1), sizeof(gpts_real));
    e->data = p->data[p->n];
    return p->data[p->n++];
}
static void pieces_free(pieces *p) { while (p->n) free(p->data[--p->n]); }
static void drop(pieces *p, const char *name)
{
    size_t i;
    for (i = 0; i < p->n; i++) if (!strcmp(p->name[i], name)) {
        free(p->data[i]);
        for (p->n--; i < p->n; i++) {
            p->entry[i] = p->entry[i + 1]; p->data[i] = p->data[i + 1];
            memcpy(p->name[i], p->name[i + 1], sizeof p->name[i]);
            p->entry[i].name = p->name[i];
        }
        return;
    }
    t_fail(__FILE__, __LINE__, name);
}
static gpts_real *find(pieces *p, const char *name)
{
    size_t i;
    for (i = 0; i < p->n; i++) if (!strcmp(p->name[i], name)) return p->data[i];
    t_fail(__FILE__, __LINE__, name);
    return NULL;
}
static void rename_to(pieces *p, const char *from, const char *to)
{
    size_t i;
    for (i = 0; i < p->n; i++) if (!strcmp(p->name[i], from)) { snprintf(p->name[i], sizeof p->name[i], "%s", to); return; }
    t_fail(__FILE__, __LINE__, from);
}
static void transpose(gpts_real *x, size_t n)
{
    size_t i, j;
    for (i = 0; i < n; i++) for (j = 0; j < i; j++) { gpts_real a = x[i * n + j]; x[i * n + j] = x[j * n + i]; x[j * n + i] = a; }
}

/* m's weights as plain projections [out,in] */
static void pieces_of(pieces *p, const gpts_model *m)
{
    static const char *const part[] = { "q_proj", "k_proj", "v_proj" };
    size_t l, k, i, j, C = LC;
    char name[80];
    memset(p, 0, sizeof *p);
    memcpy(piece(p, "embed_tokens.weight", LV, LC), gpts_model_tensor(m, "wte.weight")->data, LV * LC * sizeof(gpts_real));
    memcpy(piece(p, "lm_head.weight", LV, LC), gpts_model_tensor(m, "lm_head.weight")->data, LV * LC * sizeof(gpts_real));
    for (l = 0; l < LL; l++) {
        const gpts_real *attn, *proj;
        gpts_real *x;
        snprintf(name, sizeof name, "h.%u.attn.c_attn.weight", (unsigned)l); attn = gpts_model_tensor(m, name)->data;
        snprintf(name, sizeof name, "h.%u.attn.c_proj.weight", (unsigned)l); proj = gpts_model_tensor(m, name)->data;
        for (k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "layers.%u.attn.%s.weight", (unsigned)l, part[k]);
            x = piece(p, name, C, C);
            for (i = 0; i < C; i++) for (j = 0; j < C; j++) x[i * C + j] = attn[j * 3 * C + k * C + i];
        }
        snprintf(name, sizeof name, "layers.%u.attn.out_proj.weight", (unsigned)l);
        x = piece(p, name, C, C);
        for (i = 0; i < C; i++) for (j = 0; j < C; j++) x[i * C + j] = proj[j * C + i];
    }
}
static void text_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    if (!f) { t_fail(__FILE__, __LINE__, path); return; }
    fputs(text, f);
    fclose(f);
}
static const char the_file[] = "build/tests/mapped.safetensors", the_map[] = "build/tests/mapped_map.json", the_config[] = "build/tests/mapped_config.json";
static const char plain_config[] = "{\"model_type\": \"llama\", \"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"architectures\": [\"OneLayerTransformer\"], \"tie_word_embeddings\": false}";

/* writes pieces, map (or NULL) and config, loads; the status */
static gpts_status load(gpts_model *m, const pieces *p, const char *map, const char *config, gpts_mapping *mapping)
{
    gpts_mapping own;
    char error[GPTS_ERROR_BYTES] = "";
    gpts_status status;
    if (!mapping) { memset(&own, 0, sizeof own); mapping = &own; }
    t_status(gpts_file_write(the_file, p->entry, p->n, p->pair, p->n_pairs, NULL, error), GPTS_OK);
    if (map) text_file(the_map, map);
    text_file(the_config, config ? config : plain_config);
    mapping->config = the_config; mapping->map = map ? the_map : NULL;
    memset(m, 0, sizeof *m);
    status = gpts_model_load_mapped(m, the_file, mapping, NULL);
    if (mapping == &own) gpts_release(NULL, own.table);
    return status;
}
static void expect_same(gpts_model *a, gpts_model *b, double tolerance)
{
    static const int32_t tokens[12] = { 1, 5, 2, 9, 10, 0, 3, 3, 7, 8, 4, 6 };
    gpts_real *x, *y;
    if (!a->parameters || !b->parameters) { t_fail(__FILE__, __LINE__, b->error); return; }
    x = run(a, tokens, 2, 6); y = run(b, tokens, 2, 6);
    t_ok(farthest(x, y, 12 * LV) < tolerance);
    t_ok(farthest(x, x + LV, LV) > 0.01);
    free(x); free(y);
}

/* P A = W with a chosen A: q_proj A in front of a packed P */
static void hide_behind_packed(pieces *p, const char *prefix)
{
    static const char *const part[] = { "q_proj", "k_proj", "v_proj" };
    size_t l, k, i, j, C = LC;
    char name[80];
    for (l = 0; l < LL; l++) {
        gpts_real *packed;
        snprintf(name, sizeof name, "%slayers.%u.attn.mha.in_proj_weight", prefix, (unsigned)l);
        packed = piece(p, name, 3 * C, C);
        for (k = 0; k < 3; k++) {                                 /* A = 2 on the diagonal, a cycle of 1: P = W A^-1, by solving x A = w */
            gpts_real *w;
            double a[LC][LC], x[LC];
            size_t r, c;
            snprintf(name, sizeof name, "layers.%u.attn.%s.weight", (unsigned)l, part[k]);
            w = find(p, name);
            for (r = 0; r < C; r++) {
                memset(a, 0, sizeof a);
                for (i = 0; i < C; i++) { a[i][i] = 2; a[(i + 1 + k) % C][i] += 1; x[i] = (double)w[r * C + i]; }    /* a = A^T */
                for (c = 0; c < C; c++) for (i = c + 1; i < C; i++) {
                    double f = a[i][c] / a[c][c];
                    for (j = c; j < C; j++) a[i][j] -= f * a[c][j];
                    x[i] -= f * x[c];
                }
                for (c = C; c-- > 0;) {
                    for (j = c + 1; j < C; j++) x[c] -= a[c][j] * x[j];
                    x[c] /= a[c][c];
                }
                for (i = 0; i < C; i++) packed[(k * C + r) * C + i] = (gpts_real)x[i];
            }
            for (i = 0; i < C; i++) for (j = 0; j < C; j++) w[i * C + j] = (gpts_real)(2 * (i == j) + (j == (i + 1 + k) % C));
        }
    }
}

static void importing_finds_plain_packed_and_folded_projections(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE), got;
    gpts_mapping mapping;
    pieces p;
    size_t l, i;
    char name[80], to[100];
    memset(&mapping, 0, sizeof mapping);
    pieces_of(&p, &m);
    t_status(load(&got, &p, NULL, NULL, &mapping), GPTS_OK);
    expect_same(&m, &got, 1e-5);
    t_ok(mapping.table != NULL);
    if (mapping.table) {
        t_says(mapping.table, "layers.1.attn.k_proj.weight [8,8] -> h.1.attn.k.weight [out,in]\n");
        t_says(mapping.table, "lm_head.weight [11,8] -> lm_head.weight [out,in]\n");
        t_says(mapping.table, "vocab_size 11, n_embd 8, n_layer 2, n_head 2, position none, norm none, bias no, untied, scores scaled\n");
    }
    gpts_release(NULL, mapping.table);
    gpts_model_free(&got);

    hide_behind_packed(&p, "");                                   /* q, k, v in front of a packed module */
    t_status(load(&got, &p, NULL, NULL, NULL), GPTS_OK);
    expect_same(&m, &got, 1e-4);
    gpts_model_free(&got);
    pieces_free(&p);

    pieces_of(&p, &m);                                            /* packed alone, names with a prefix */
    for (l = 0; l < LL; l++) {
        static const char *const part[] = { "q_proj", "k_proj", "v_proj" };
        gpts_real *packed;
        snprintf(name, sizeof name, "layers.%u.attn.in_proj_weight", (unsigned)l);
        packed = piece(&p, name, 3 * LC, LC);
        for (i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "layers.%u.attn.%s.weight", (unsigned)l, part[i]);
            memcpy(packed + i * LC * LC, find(&p, name), LC * LC * sizeof *packed);
            drop(&p, name);
        }
    }
    for (i = 0; i < p.n; i++) { snprintf(to, sizeof to, "model.%.70s", p.name[i]); snprintf(p.name[i], sizeof p.name[i], "%.79s", to); }
    t_status(load(&got, &p, NULL, NULL, NULL), GPTS_OK);
    expect_same(&m, &got, 1e-5);
    gpts_model_free(&got);
    pieces_free(&p);
    gpts_model_free(&m);
}

static void importing_adds_biases_through_the_fold(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE), got, again;
    pieces p;
    gpts_real *q, *in, *o, *x;
    const gpts_real *packed;
    size_t i, j;
    pieces_of(&p, &m);
    hide_behind_packed(&p, "");
    q = piece(&p, "layers.0.attn.q_proj.bias", LC, 0);
    in = piece(&p, "layers.0.attn.mha.in_proj_bias", 3 * LC, 0);
    o = piece(&p, "layers.1.attn.out_proj.bias", LC, 0);
    for (i = 0; i < LC; i++) { q[i] = (gpts_real)(0.25 * (double)i - 1); in[i] = (gpts_real)0.5; in[2 * LC + i] = (gpts_real)(0.125 * (double)i); o[i] = (gpts_real)(1 - 0.5 * (double)i); }
    packed = find(&p, "layers.0.attn.mha.in_proj_weight");
    t_status(load(&got, &p, NULL, NULL, NULL), GPTS_OK);
    if (got.parameters) {
        t_equal(got.config.bias, 1);
        x = gpts_model_tensor(&got, "h.0.attn.c_attn.bias")->data;
        for (i = 0; i < LC; i++) {
            double b = 0.5;
            for (j = 0; j < LC; j++) b += (double)packed[i * LC + j] * (double)q[j];
            t_close(x[i], b, 1e-5);
            t_close(x[LC + i], 0, 1e-12);
            t_close(x[2 * LC + i], in[2 * LC + i], 1e-6);
        }
        x = gpts_model_tensor(&got, "h.1.attn.c_proj.bias")->data;
        for (i = 0; i < LC; i++) t_close(x[i], o[i], 1e-6);
        x = gpts_model_tensor(&got, "h.1.attn.c_attn.bias")->data;
        for (i = 0; i < 3 * LC; i++) x[i] = 0;                    /* layer 1 of that file has no place for these */
        {                                                         /* and back, under the same names */
            gpts_mapping mapping;
            static const char back[] = "build/tests/mapped_back.safetensors";
            memset(&mapping, 0, sizeof mapping); memset(&again, 0, sizeof again);
            mapping.config = the_config;
            t_status(gpts_model_save_mapped(&got, back, the_file, &mapping), GPTS_OK);
            gpts_release(NULL, mapping.table);
            t_status(gpts_model_load_mapped(&again, back, &mapping, NULL), GPTS_OK);
            expect_same(&got, &again, 1e-4);
            gpts_release(NULL, mapping.table);
            gpts_model_free(&again);
        }
    }
    gpts_model_free(&got);
    pieces_free(&p);
    gpts_model_free(&m);
}

static void a_map_names_what_is_not_known(void)
{
    static const char map[] = "{\"tok\": \"wte.weight\", \"blocks.{i}.W_{*}\": null, \"blocks.{i}.Q\": \"h.{i}.attn.q.weight [in,out]\","
        " \"blocks.{i}.attn.mask\": null, \"un{*}\": \"lm_head.weight [in,out]\", \"@config\": {\"n_head\": 2, \"unscaled_scores\": true}}";
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE), got;
    pieces p;
    gpts_real *x, *head;
    size_t l, i, j;
    char name[80], to[80];
    m.config.unscaled_scores = 1;
    pieces_of(&p, &m);
    rename_to(&p, "embed_tokens.weight", "tok");
    for (l = 0; l < LL; l++) {
        snprintf(name, sizeof name, "layers.%u.attn.q_proj.weight", (unsigned)l);
        snprintf(to, sizeof to, "blocks.%u.Q", (unsigned)l);
        transpose(find(&p, name), LC);
        rename_to(&p, name, to);
    }
    piece(&p, "blocks.1.attn.mask", 3, 3);
    piece(&p, "blocks.0.W_anything", 2, 0);
    head = find(&p, "lm_head.weight");
    x = piece(&p, "unembed.W_U", LC, LV);
    for (i = 0; i < LV; i++) for (j = 0; j < LC; j++) x[j * LV + i] = head[i * LC + j];
    drop(&p, "lm_head.weight");
    t_status(load(&got, &p, map, "{}", NULL), GPTS_OK);
    t_text(got.error, "");
    t_equal(got.config.unscaled_scores, 1);
    expect_same(&m, &got, 1e-5);
    m.config.unscaled_scores = 0;
    {                                                             /* given back under those names and that orientation */
        gpts_mapping mapping;
        gpts_model again;
        static const char back[] = "build/tests/mapped_back.safetensors";
        memset(&mapping, 0, sizeof mapping); memset(&again, 0, sizeof again);
        mapping.map = the_map; mapping.config = the_config;
        text_file(the_map, map);
        t_status(gpts_model_save_mapped(&got, back, the_file, &mapping), GPTS_OK);
        gpts_release(NULL, mapping.table);
        text_file(the_map, "{\"tok\": \"wte.weight\", \"blocks.{i}.Q\": \"h.{i}.attn.q.weight [in,out]\", \"un{*}\": \"lm_head.weight [in,out]\","
            " \"@config\": {\"n_head\": 2, \"unscaled_scores\": true}}");            /* what was ignored is not there */
        t_status(gpts_model_load_mapped(&again, back, &mapping, NULL), GPTS_OK);
        expect_same(&got, &again, 1e-5);
        gpts_release(NULL, mapping.table);
        gpts_model_free(&again);
    }
    gpts_model_free(&got);
    pieces_free(&p);
    gpts_model_free(&m);
}

static void a_map_reads_a_model_with_norms_and_mlp(void)
{
    gpts_model m, got;
    gpts_config c = gpts_config_default();
    pieces p;
    size_t k, i, j;
    gpts_rng rng;
    char name[80];
    memset(&m, 0, sizeof m);
    c.vocab_size = LV; c.n_positions = 16; c.n_layer = 1; c.n_head = LH; c.n_embd = LC; c.n_inner = 12;
    c.bias = 1; c.tie_word_embeddings = 1;
    t_status(gpts_model_init(&m, &c, 4, NULL), GPTS_OK);
    rng.seed = 2; rng.counter = 0;
    for (k = 0; k < m.n_tensors; k++) for (i = 0; i < m.tensors[k].size; i++) m.tensors[k].data[i] = (gpts_real)(float)(0.3 * gpts_rng_normal(&rng));
    memset(&p, 0, sizeof p);
    for (k = 0; k < m.n_tensors; k++) {                           /* names turned round, c_fc as [out,in] */
        gpts_tensor *t = &m.tensors[k];
        int turned = t->kind == GPTS_P_MLP_FC_W;
        gpts_real *x;
        snprintf(name, sizeof name, "net/%s", t->layer < 0 ? t->name : t->name + 4);
        x = piece(&p, t->layer < 0 ? name : (snprintf(name, sizeof name, "net0/%s", t->name + 4), name), turned ? t->columns : t->rows, t->rank == 1 ? 0 : turned ? t->rows : t->columns);
        for (i = 0; i < t->rows; i++) for (j = 0; j < t->columns; j++) x[turned ? j * t->rows + i : i * t->columns + j] = t->data[i * t->columns + j];
    }
    t_status(load(&got, &p, "{\"net/wte.weight\": \"wte.weight\", \"net/wpe.weight\": \"wpe.weight\", \"net/ln_f.weight\": \"ln_f.weight\", \"net/ln_f.bias\": \"ln_f.bias\","
        "\"net{i}/ln_1.weight\": \"h.{i}.ln_1.weight\", \"net{i}/ln_1.bias\": \"h.{i}.ln_1.bias\", \"net{i}/ln_2.weight\": \"h.{i}.ln_2.weight\", \"net{i}/ln_2.bias\": \"h.{i}.ln_2.bias\","
        "\"net{i}/attn.c_attn.weight\": \"h.{i}.attn.c_attn.weight\", \"net{i}/attn.c_attn.bias\": \"h.{i}.attn.c_attn.bias\","
        "\"net{i}/attn.c_proj.weight\": \"h.{i}.attn.c_proj.weight\", \"net{i}/attn.c_proj.bias\": \"h.{i}.attn.c_proj.bias\","
        "\"net{i}/mlp.c_fc.weight\": \"h.{i}.mlp.c_fc.weight [out,in]\", \"net{i}/mlp.c_fc.bias\": \"h.{i}.mlp.c_fc.bias\","
        "\"net{i}/mlp.c_proj.weight\": \"h.{i}.mlp.c_proj.weight\", \"net{i}/mlp.c_proj.bias\": \"h.{i}.mlp.c_proj.bias\","
        "\"@config\": {\"n_head\": 2, \"tie_word_embeddings\": true}}", "{}", NULL), GPTS_OK);
    t_text(got.error, "");
    expect_same(&m, &got, 1e-5);
    gpts_model_free(&got);
    pieces_free(&p);
    gpts_model_free(&m);
}

/* ---- hostile maps, files and settings: one sentence each ------------------------------------ */

static void refused(const pieces *p, const char *map, const char *config, gpts_mapping *mapping, const char *sentence)
{
    gpts_model got;
    gpts_status status = load(&got, p, map, config, mapping);
    t_ok(status != GPTS_OK);
    t_says(got.error, sentence);
    t_ok(!strchr(got.error, '\n') && !got.parameters && !got.layers);
    if (mapping) { gpts_release(NULL, mapping->table); mapping->table = NULL; }
    gpts_model_free(&got);
}

static void hostile_maps_and_settings_end_in_one_sentence(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE);
    char config[400];
    pieces p;
    pieces_of(&p, &m);
    piece(&p, "blocks.0.strange\n", 2, 0);
    refused(&p, NULL, NULL, NULL, "tensor 'blocks.0.strange\\x0a' has a name that is not known here");
    drop(&p, "blocks.0.strange\n");
    refused(&p, "{\"layers.{i}.attn.q_proj.weight\": \"h.{i}.attn.query\"}", NULL, NULL, "is to become 'h.{i}.attn.query', and no parameter has that name");
    refused(&p, "{\"layers.{i}.attn.q_proj.weight\": \"h.{i}.attn.q.weight [up,down]\"}", NULL, NULL, "no parameter has that name");
    refused(&p, "{\"layers.{i}.attn.q_proj.weight\": \"h.{i}.attn.static.alpha\"}", NULL, NULL, "no parameter has that name");
    refused(&p, "{\"no.such.tensor\": \"wte.weight\"}", NULL, NULL, "names 'no.such.tensor', but no tensor");
    refused(&p, "{\"lm_head.weight\": \"wte.weight\"}", NULL, NULL, "'lm_head.weight' and 'embed_tokens.weight' are mapped to the same parameter");
    refused(&p, "{\"lm_head.weight\": \"lm_head.weight\", \"lm_head.weight\": null}", NULL, NULL, "'lm_head.weight' is mapped twice");
    refused(&p, "{\"lm_head.weight\": \"h.{i}.attn.q.weight\"}", NULL, NULL, "{i} must stand on both sides or on none");
    refused(&p, "{\"lm_head.weight\": 7}", NULL, NULL, "is not a map");
    refused(&p, "[1,2]", NULL, NULL, "is not a map");
    refused(&p, "{\"lm_head.weight\": null} x", NULL, NULL, "is not a map");
    refused(&p, "", NULL, NULL, "is not a map");
    refused(&p, "{\"@config\": {\"n_head\": \"two\"}}", NULL, NULL, "the value of 'n_head' is not of its kind");
    refused(&p, "{\"@config\": {}, \"@config\": {}}", NULL, NULL, "'@config' is there twice");
    refused(&p, "{\"@probe\": {\"tokens\": [1], \"ids\": [11], \"logits\": [0]}}", NULL, NULL, "ids below 11");
    refused(&p, "{\"@probe\": {\"tokens\": [1], \"ids\": [1, 2], \"logits\": [0]}}", NULL, NULL, "as many logits as ids");
    refused(&p, NULL, "{", NULL, "is not a JSON object of settings");
    refused(&p, NULL, "{\"hidden_size\": 8.5}", NULL, "the value of 'hidden_size' is not of its kind");
    refused(&p, NULL, "{\"num_attention_heads\": -2}", NULL, "the value of 'num_attention_heads' is not of its kind");
    refused(&p, NULL, "{}", NULL, "the number of heads is not known");
    refused(&p, NULL, "{\"num_attention_heads\": 3}", NULL, "n_embd 8 is not a multiple of n_head 3");
    refused(&p, NULL, "{\"num_attention_heads\": 2, \"num_key_value_heads\": 1}", NULL, "2 heads share 1 key and value heads");
    refused(&p, NULL, "{\"num_attention_heads\": 2, \"num_hidden_layers\": 4}", NULL, "a number of layers of 2, its settings say 4");
    refused(&p, NULL, "{\"num_attention_heads\": 2, \"vocab_size\": 4096}", NULL, "a vocabulary of 11, its settings say 4096");
    refused(&p, NULL, "{\"num_attention_heads\": 2, \"hidden_size\": 4294967304}", NULL, "a width of 8, its settings say 4294967304");
    snprintf(config, sizeof config, "{\"num_attention_heads\": 2, \"%0200d\": 1, \"num_key_value_heads\": 1}", 0);
    refused(&p, NULL, config, NULL, "share 1 key");
    refused(&p, "{\"lm_head.weight\": null}", NULL, NULL, "no lm_head.weight, and its settings do not tie it");
    refused(&p, "{\"layers.1.attn.v_proj.weight\": null}", NULL, NULL, "layer 1 lacks its values (v_proj)");
    refused(&p, "{\"layers.{i}.attn.out_proj.weight\": null}", NULL, NULL, "layer 0 lacks its attention's output matrix");
    refused(&p, "{\"layers.{i}.attn.out_proj.weight\": \"h.{i}.ln_2.weight\"}", NULL, NULL, "layer 0 lacks its attention's output matrix");
    refused(&p, "{\"embed_tokens.weight\": null}", NULL, NULL, "has no embed_tokens.weight");
    piece(&p, "layers.1.norm", 8, 0);
    refused(&p, "{\"layers.{i}.norm\": \"h.{i}.ln_2.weight\"}", NULL, NULL, "'h.%d.ln_2.weight', which a model of these settings does not have");
    drop(&p, "layers.1.norm");
    rename_to(&p, "layers.1.attn.k_proj.weight", "layers.4294967296.attn.k_proj.weight");
    refused(&p, NULL, NULL, NULL, "'layers.4294967296.attn.k_proj.weight' has a layer's number beyond 65535");
    rename_to(&p, "layers.4294967296.attn.k_proj.weight", "layers.99999999999999999999999.attn.k_proj.weight");
    refused(&p, NULL, NULL, NULL, "has a layer's number beyond 65535");
    rename_to(&p, "layers.99999999999999999999999.attn.k_proj.weight", "layers.60000.attn.k_proj.weight");
    refused(&p, NULL, NULL, NULL, "layers are missing");
    rename_to(&p, "layers.60000.attn.k_proj.weight", "layers.3.attn.k_proj.weight");
    refused(&p, NULL, "{\"num_attention_heads\": 2}", NULL, "layer 1 lacks its keys");
    rename_to(&p, "layers.3.attn.k_proj.weight", "layers.01.attn.k_proj.weight");
    piece(&p, "layers.1.attn.k_proj.weight", LC, LC);
    refused(&p, NULL, NULL, NULL, "are mapped to the same parameter");
    drop(&p, "layers.1.attn.k_proj.weight");
    drop(&p, "layers.01.attn.k_proj.weight");
    piece(&p, "layers.1.attn.k_proj.weight", LC, 6);
    refused(&p, NULL, NULL, NULL, "tensor 'layers.1.attn.k_proj.weight' has 2 dimensions [8,6..], expected [8,8]");
    pieces_free(&p);
    gpts_model_free(&m);
}

static void patterns_with_many_stars_end(void)
{
    char pattern[200] = "", name[400];
    uint64_t layer = 0;
    int i;
    for (i = 0; i < 40; i++) strcat(pattern, "{*}a");
    strcat(pattern, "b");
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    t_ok(!gptsi_pattern_fits(pattern, name, &layer));
    t_ok(gptsi_pattern_fits("{*}layers.{i}.{*}q", "x.layers.12.attn.qq", &layer));
    t_equal(layer, 12);
    t_ok(!gptsi_pattern_fits("layers.{i}", "layers.", &layer) && !gptsi_pattern_fits("layers.{i}", "layers.1x", &layer));
    t_ok(gptsi_pattern_fits("{*}", "", &layer) && gptsi_pattern_fits("a{*}", "a", &layer) && !gptsi_pattern_fits("", "a", &layer));
}

/* Square weights fit both ways: only numbers tell. */
static void transposed_square_weights_do_not_pass_a_probe(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE), got;
    gpts_mapping mapping;
    pieces p;
    size_t l, k;
    char name[80], probe[2000];
    static const char *const part[] = { "q_proj", "k_proj", "v_proj", "out_proj" };
    static const char saved[] = "build/tests/mapped_probe.safetensors";
    gpts_file f;
    memset(&mapping, 0, sizeof mapping); memset(&f, 0, sizeof f);
    t_status(gpts_model_save_mapped(&m, saved, NULL, NULL), GPTS_OK);
    t_status(gpts_file_open(&f, saved, NULL), GPTS_OK);
    t_ok(gpts_file_metadata(&f, "probe") != NULL);
    snprintf(probe, sizeof probe, "%s", gpts_file_metadata(&f, "probe") ? gpts_file_metadata(&f, "probe") : "");
    gpts_file_close(&f);

    pieces_of(&p, &m);
    p.pair[0].key = "probe"; p.pair[0].value = probe; p.n_pairs = 1;
    t_status(load(&got, &p, NULL, NULL, NULL), GPTS_OK);          /* the right way passes */
    expect_same(&m, &got, 1e-5);
    gpts_model_free(&got);
    for (l = 0; l < LL; l++) { snprintf(name, sizeof name, "layers.%u.attn.out_proj.weight", (unsigned)l); transpose(find(&p, name), LC); }
    refused(&p, NULL, NULL, NULL, "they agree with the output matrices transposed");
    for (l = 0; l < LL; l++) for (k = 0; k < 3; k++) { snprintf(name, sizeof name, "layers.%u.attn.%s.weight", (unsigned)l, part[k]); transpose(find(&p, name), LC); }
    refused(&p, NULL, NULL, NULL, "they agree with all square matrices transposed");
    t_status(load(&got, &p, "{\"layers.{i}.attn.q_proj.weight\": \"h.{i}.attn.q.weight [in,out]\", \"layers.{i}.attn.k_proj.weight\": \"h.{i}.attn.k.weight [in,out]\","
        "\"layers.{i}.attn.v_proj.weight\": \"h.{i}.attn.v.weight [in,out]\", \"layers.{i}.attn.out_proj.weight\": \"h.{i}.attn.out_proj.weight [in,out]\"}", NULL, NULL), GPTS_OK);
    expect_same(&m, &got, 1e-5);
    gpts_model_free(&got);
    transpose(find(&p, "layers.1.attn.q_proj.weight"), LC);
    refused(&p, NULL, NULL, NULL, "no transposition makes them agree");
    transpose(find(&p, "layers.1.attn.q_proj.weight"), LC);
    for (l = 0; l < LL; l++) for (k = 0; k < 4; k++) { snprintf(name, sizeof name, "layers.%u.attn.%s.weight", (unsigned)l, part[k]); transpose(find(&p, name), LC); }
    mapping.unscaled_scores = 1;
    refused(&p, NULL, NULL, &mapping, "they agree with the scores' scaling switched");
    mapping.unscaled_scores = 0;
    p.n_pairs = 0;                                                /* without a probe the map can demand one */
    {
        char text[2100];
        snprintf(text, sizeof text, "{\"@probe\": %.2000s}", probe);
        t_status(load(&got, &p, text, NULL, NULL), GPTS_OK);
        gpts_model_free(&got);
        find(&p, "lm_head.weight")[5] += 1;
        find(&p, "lm_head.weight")[50] += 1;
        refused(&p, text, NULL, NULL, "no transposition makes them agree");
    }
    pieces_free(&p);
    gpts_model_free(&m);
}

static void transposed_square_weights_lose_on_a_text(void)
{
    enum { N = 400 };
    gpts_config config = gpts_config_attention_only(LL, LH, LC);
    gpts_train_options options = gpts_train_options_default();
    gpts_model m, got;
    gpts_trainer t;
    gpts_mapping mapping;
    gpts_rng rng;
    int32_t text[N + 1];
    double loss = 0;
    pieces p;
    size_t l, i;
    char name[80];
    memset(&m, 0, sizeof m); memset(&t, 0, sizeof t); memset(&mapping, 0, sizeof mapping);
    config.vocab_size = LV; options.learning_rate = 1e-2;
    rng.seed = 1; rng.counter = 0;
    for (i = 0; i <= N; i++) text[i] = i % 25 < 12 ? (int32_t)gpts_rng_below(&rng, LV) : text[i - 12];     /* stretches that come again */
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_OK);
    for (i = 0; i < 200; i++) t_status(gpts_trainer_update(&t, text, text + 1, 8, 50, &loss), GPTS_OK);
    pieces_of(&p, &m);
    mapping.tokens = text; mapping.n = N;
    t_status(load(&got, &p, NULL, NULL, &mapping), GPTS_OK);
    t_text(got.error, "");
    gpts_release(NULL, mapping.table);
    gpts_model_free(&got);
    for (l = 0; l < LL; l++) { snprintf(name, sizeof name, "layers.%u.attn.out_proj.weight", (unsigned)l); transpose(find(&p, name), LC); }
    refused(&p, NULL, NULL, &mapping, "with the output matrices transposed");
    mapping.n = 1;
    refused(&p, NULL, NULL, &mapping, "at least 2 are needed");
    pieces_free(&p);
    gpts_trainer_free(&t);
    gpts_model_free(&m);
}

/* ---- giving back ------------------------------------------------------------------------------ */

static void a_model_goes_back_under_the_names_it_came_with(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE), got, again;
    gpts_mapping mapping;
    gpts_file a, b;
    pieces p;
    size_t i;
    static const char back[] = "build/tests/mapped_back.safetensors";
    memset(&mapping, 0, sizeof mapping); memset(&a, 0, sizeof a); memset(&b, 0, sizeof b); memset(&again, 0, sizeof again);
    pieces_of(&p, &m);
    hide_behind_packed(&p, "");
    t_status(load(&got, &p, NULL, NULL, NULL), GPTS_OK);
    mapping.config = the_config;
    t_status(gpts_model_save_mapped(&got, back, the_file, &mapping), GPTS_OK);
    gpts_release(NULL, mapping.table);
    t_status(gpts_file_open(&a, the_file, NULL), GPTS_OK);
    t_status(gpts_file_open(&b, back, NULL), GPTS_OK);
    t_equal(a.n_tensors, b.n_tensors);
    for (i = 0; i < a.n_tensors; i++) {
        const gpts_file_tensor *t = gpts_file_find(&b, a.tensors[i].name);
        t_ok(t && t->rank == a.tensors[i].rank && t->shape[0] == a.tensors[i].shape[0] && t->shape[1] == a.tensors[i].shape[1]);
    }
    gpts_file_close(&a); gpts_file_close(&b);
    mapping.config = NULL;                                        /* with the config.json that it wrote beside */
    t_status(gpts_model_load_mapped(&again, back, &mapping, NULL), GPTS_OK);
    t_text(again.error, "");
    expect_same(&m, &again, 1e-4);
    gpts_release(NULL, mapping.table);
    gpts_model_free(&again);
    mapping.dtype = GPTS_F16;
    t_status(gpts_model_save_mapped(&got, back, NULL, &mapping), GPTS_OK);
    t_status(gpts_model_load_mapped(&again, back, &mapping, NULL), GPTS_OK);
    expect_same(&m, &again, 2e-2);
    gpts_release(NULL, mapping.table);
    gpts_model_free(&again);
    drop(&p, "layers.1.attn.out_proj.weight");                    /* a file that is not like it */
    drop(&p, "layers.1.attn.q_proj.weight"); drop(&p, "layers.1.attn.k_proj.weight"); drop(&p, "layers.1.attn.v_proj.weight");
    drop(&p, "layers.1.attn.mha.in_proj_weight");
    t_status(load(&again, &p, NULL, "{\"num_attention_heads\": 2}", NULL), GPTS_OK);
    mapping.config = the_config; mapping.dtype = GPTS_F32;
    t_status(gpts_model_save_mapped(&got, back, the_file, &mapping), GPTS_MISMATCH);
    t_says(got.error, "is of another shape (1 layers");
    gpts_model_free(&got); gpts_model_free(&again);
    pieces_free(&p);
    gpts_model_free(&m);
}

static void what_other_names_cannot_say_is_refused(void)
{
    gpts_model m = make(LL, LH, LC, LV, GPTS_POSITION_NONE);
    gpts_approximator nothing;
    gpts_approximator_options options;
    gpts_config c = gpts_config_default();
    memset(&nothing, 0, sizeof nothing); memset(&options, 0, sizeof options);
    options.kind = GPTS_APPROX_NOTHING;
    {
        gpts_recording r;
        int32_t tokens[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        memset(&r, 0, sizeof r);
        t_status(gpts_recording_make(&r, &m, 1, tokens, 1, 8), GPTS_OK);
        t_status(gpts_approximator_fit(&nothing, &m, &r, NULL, &options, NULL), GPTS_OK);
        t_status(gpts_approximator_install(&m, NULL, &nothing, 0), GPTS_OK);
        gpts_recording_free(&r);
    }
    t_status(gpts_model_save_mapped(&m, "build/tests/mapped_back.safetensors", NULL, NULL), GPTS_UNSUPPORTED);
    t_says(m.error, "layer 1 has an approximator");
    {
        gpts_calibration cal;
        gpts_freeze_options freeze = gpts_freeze_options_default();
        int32_t tokens[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 8, 1, 7, 2, 6, 3, 5, 4 };
        memset(&cal, 0, sizeof cal);
        t_status(gpts_calibrate(&cal, &m, tokens, 2, 8), GPTS_OK);
        freeze.heads = 1; freeze.gate = -1;
        t_status(gpts_freeze(&m, NULL, &cal, &freeze, NULL), GPTS_OK);
        gpts_calibration_free(&cal);
        t_status(gpts_model_save_mapped(&m, "build/tests/mapped_back.safetensors", NULL, NULL), GPTS_UNSUPPORTED);
        t_says(m.error, "layer 0 has static heads");
    }
    gpts_approximator_free(&nothing);
    gpts_model_free(&m);
    c.vocab_size = 9; c.n_layer = 1; c.n_embd = 8; c.n_head = 2; c.n_positions = 8;
    t_status(gpts_model_init(&m, &c, 1, NULL), GPTS_OK);
    t_status(gpts_model_save_mapped(&m, "build/tests/mapped_back.safetensors", NULL, NULL), GPTS_UNSUPPORTED);
    t_says(m.error, "only attention-only models");
    gpts_model_free(&m);
}

static void load_and_save_end_well_when_memory_runs_out(void);

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(the_family_has_the_published_sizes);
    T(zero_layers_are_a_bigram_table_of_rank_at_most_the_width);
    T(one_layer_without_positions_does_not_see_the_order_of_earlier_tokens);
    T(a_constant_sequence_has_constant_logits);
    T(a_mask_becomes_intervals_or_a_sentence);
    T(labels_are_shifted_and_ignored_below_zero_or_under_the_mask);
    T(left_right_and_unpadded_rows_agree_on_the_real_tokens);
    T(a_fully_masked_row_adds_nothing_to_loss_or_gradient);
    T(arrays_of_another_shape_are_refused_with_both_shapes);
    T(zero_layers_learn_the_bigram_entropy_and_no_more);
    T(models_of_0_to_4_layers_train_and_keep_their_answers_in_a_file);
    T(importing_finds_plain_packed_and_folded_projections);
    T(importing_adds_biases_through_the_fold);
    T(a_map_names_what_is_not_known);
    T(a_map_reads_a_model_with_norms_and_mlp);
    T(hostile_maps_and_settings_end_in_one_sentence);
    T(patterns_with_many_stars_end);
    T(transposed_square_weights_do_not_pass_a_probe);
    T(transposed_square_weights_lose_on_a_text);
    T(a_model_goes_back_under_the_names_it_came_with);
    T(what_other_names_cannot_say_is_refused);
    T(load_and_save_end_well_when_memory_runs_out);
    remove("build/tests/config.json");                            /* beside every model of every test */
    return t_end();
}

/* every allocation fails once: an error, nothing lost (valgrind and ASan look for the rest) */
static void load_and_save_end_well_when_memory_runs_out(void)
{
    gpts_model m = make(1, LH, LC, LV, GPTS_POSITION_NONE), got;
    gpts_mapping mapping;
    gpts_hooks hooks;
    t_budget b;
    long n;
    int good = 0;
    static const char path[] = "build/tests/mapped_oom.safetensors";
    memset(&hooks, 0, sizeof hooks);
    hooks.context = &b; hooks.allocate = t_budget_allocate; hooks.release = t_budget_release; hooks.threads = 1;
    t_status(gpts_model_save_mapped(&m, path, NULL, NULL), GPTS_OK);
    text_file(the_map, "{\"embed_tokens.weight\": \"wte.weight\"}");
    for (n = 0; n < 3000 && !good; n++) {
        gpts_status status;
        memset(&mapping, 0, sizeof mapping); memset(&got, 0, sizeof got);
        mapping.map = the_map;
        b.left = n; b.live = 0;
        status = gpts_model_load_mapped(&got, path, &mapping, &hooks);
        if (status == GPTS_OK) {
            long budget_of_save = 0;
            for (good = 0; budget_of_save < 3000 && !good; budget_of_save++) {
                b.left = budget_of_save;
                status = gpts_model_save_mapped(&got, path, NULL, NULL);
                t_ok(status == GPTS_OK || status == GPTS_NO_MEMORY);
                good = status == GPTS_OK;
            }
            t_ok(budget_of_save > 10);
        } else t_ok(status == GPTS_NO_MEMORY && !got.parameters);
        gpts_release(&hooks, mapping.table);
        gpts_model_free(&got);
        t_equal(b.live, 0);
    }
    t_ok(good && n > 20);
    gpts_model_free(&m);
}

/* models.h - small models of every kind for the tests: a row of settings becomes a model
   with random weights, and a batch for it.  Static and pruned heads are made by writing a
   model file and loading it, the way a user gets them.                                   */
#ifndef MODELS_H
#define MODELS_H

enum { NONE = 0, LEFT = 1, RIGHT = 2 };         /* where a row's padding is */

/* short names for tables of cases */
#define LEARNED GPTS_POSITION_LEARNED
#define ROPE    GPTS_POSITION_ROPE
#define NOPOS   GPTS_POSITION_NONE
#define LAYER   GPTS_NORM_LAYER
#define NONORM  GPTS_NORM_NONE
#define TANH    GPTS_GELU_TANH
#define ERF     GPTS_GELU_ERF
#define RELU    GPTS_RELU

typedef struct model_case {
    const char *name;
    int64_t V, positions, L, H, C, F;
    gpts_position position;
    gpts_norm norm;
    gpts_activation activation;
    int bias, tied;
    size_t B, T;
    int padding;
    int ignored;                                /* every n-th target is -1; 0: none */
    /* one layer with an approximator; hidden 0: none */
    int approx_layer, approx_window, approx_hidden, approx_train;
    gpts_activation approx_activation;
    /* heads by bit, layer by layer; S 0: none are static */
    unsigned fixed[3], pruned[3];
    size_t S, near;                             /* near: W of the linear form; 0: exact */
    int patterns_train;
} model_case;

static gpts_config case_config(const model_case *c)
{
    gpts_config config = gpts_config_default();
    config.vocab_size = c->V; config.n_positions = c->positions; config.n_layer = c->L;
    config.n_head = c->H; config.n_embd = c->C; config.n_inner = c->F;
    config.position = c->position; config.norm = c->norm; config.activation = c->activation;
    config.approx_activation = c->approx_activation;
    config.bias = c->bias; config.tie_word_embeddings = c->tied;
    return config;
}

/* Weights of standard deviation 0.25; norms' gains around 1. */
static void randomise(gpts_model *m, uint64_t seed)
{
    gpts_rng rng;
    size_t k, i;
    rng.seed = seed; rng.counter = 0;
    for (k = 0; k < m->n_tensors; k++) {
        gpts_tensor *t = &m->tensors[k];
        double mean = t->kind == GPTS_P_LN_1_W || t->kind == GPTS_P_LN_2_W || t->kind == GPTS_P_LN_F_W;
        if (t->kind == GPTS_P_ALPHA || t->kind == GPTS_P_RHO || t->kind == GPTS_P_TAIL_COEF || t->kind == GPTS_P_TAIL_DECAY) continue;
        for (i = 0; i < t->size; i++) t->data[i] = (gpts_real)(mean + 0.25 * gpts_rng_normal(&rng));
    }
}

static void scratch_path(char *to, size_t room, const char *name)
{
    snprintf(to, room, "build/tests/%s_%d.safetensors", name, (int)sizeof(gpts_real));
}

static int bits(unsigned x) { int n = 0; for (; x; x &= x - 1) n++; return n; }

/* The plain model's file with some heads static or pruned, then loaded. */
enum { CASE_ENTRIES = 128, CASE_TERMS = 3 };
static gpts_status case_load_static(gpts_model *m, const model_case *c, const gpts_hooks *hooks)
{
    static const char *position[] = { "learned", "rope", "none" }, *gelu[] = { "gelu_new", "gelu", "relu" };
    gpts_config config = case_config(c);
    gpts_file_entry entries[CASE_ENTRIES];
    char names[CASE_ENTRIES][GPTS_NAME_BYTES], path[128], json[600], error[GPTS_ERROR_BYTES] = "";
    void *owned[CASE_ENTRIES];
    size_t n = 0, n_owned = 0, k, i, D = (size_t)(c->C / c->H), S = c->S;
    gpts_file_pair meta[3];
    gpts_model plain;
    gpts_status status;
    gpts_rng rng;
    int l;
    memset(&plain, 0, sizeof plain);
    memset(entries, 0, sizeof entries);
    rng.seed = 77; rng.counter = 0;
    status = gpts_model_init(&plain, &config, 5, NULL);
    if (status != GPTS_OK) { memcpy(m->error, plain.error, sizeof m->error); gpts_model_free(&plain); return status; }
#define ENTRY(type_, data_, rank_, rows_, columns_) do { entries[n].name = names[n]; entries[n].dtype = type_; entries[n].data = data_; \
        entries[n].rank = rank_; entries[n].shape[0] = rows_; entries[n].shape[1] = columns_; n++; } while (0)
#define OWN(type_, count_) ((type_ *)(owned[n_owned++] = calloc((count_) + 1, sizeof(type_))))
    for (k = 0; k < plain.n_tensors; k++) {
        const gpts_tensor *t = &plain.tensors[k];
        size_t rows = t->rows, columns = t->columns, U, K;
        gpts_real *x;
        if (t->layer >= 0) {
            int n_static = bits(c->fixed[t->layer]), p = bits(c->pruned[t->layer]);
            K = (size_t)(c->H - p); U = K - (size_t)n_static;
            if (t->kind == GPTS_P_ATTN_W) columns = (2 * U + K) * D;
            if (t->kind == GPTS_P_ATTN_B) rows = (2 * U + K) * D;
            if (t->kind == GPTS_P_ATTN_PROJ_W) rows = K * D;
        }
        x = OWN(gpts_real, rows * columns);
        snprintf(names[n], sizeof names[n], "%s", t->name);
        ENTRY(GPTS_F32, x, t->rank, rows, columns);
    }
    for (l = 0; l < c->L && l < 3; l++) {
        size_t nf = (size_t)bits(c->fixed[l]), np = (size_t)bits(c->pruned[l]);
        int32_t *heads = OWN(int32_t, nf), *gone = OWN(int32_t, np), *start = OWN(int32_t, nf);
        gpts_real *alpha = OWN(gpts_real, nf * S), *rho = OWN(gpts_real, nf * S);
        gpts_real *coef = OWN(gpts_real, nf * CASE_TERMS), *decay = OWN(gpts_real, nf * CASE_TERMS);
        int h, at = 0, gone_at = 0;
        for (h = 0; h < c->H; h++) {
            if (c->fixed[l] >> h & 1u) heads[at++] = h;
            if (c->pruned[l] >> h & 1u) gone[gone_at++] = h;
        }
        for (i = 0; i < nf * S; i++) { alpha[i] = (gpts_real)(0.8 * gpts_rng_normal(&rng)); rho[i] = (gpts_real)(0.8 * gpts_rng_normal(&rng)); }
        for (i = 0; i < nf; i++) {
            size_t r, d;
            start[i] = (int32_t)(c->near + i);                  /* another W for each head */
            for (r = 0; r < CASE_TERMS; r++) {
                coef[i * CASE_TERMS + r] = (gpts_real)(float)(0.1 + gpts_rng_uniform(&rng));
                decay[i * CASE_TERMS + r] = (gpts_real)(float)(0.5 + 0.5 * gpts_rng_uniform(&rng));
            }
            for (d = (size_t)start[i]; c->near && d < S; d++) {
                double w = 0;
                for (r = 0; r < CASE_TERMS; r++) w += (double)coef[i * CASE_TERMS + r] * pow((double)decay[i * CASE_TERMS + r], (double)d - start[i]);
                rho[i * S + d] = (gpts_real)log(w);
            }
        }
#define NAME(part) snprintf(names[n], sizeof names[n], "h.%d.attn." part, l)
        if (np) { NAME("pruned"); ENTRY(GPTS_I32, gone, 1, np, 0); }
        if (nf) {
            NAME("static.heads"); ENTRY(GPTS_I32, heads, 1, nf, 0);
            NAME("static.alpha"); ENTRY(GPTS_F32, alpha, 2, nf, S);
            NAME("static.rho"); ENTRY(GPTS_F32, rho, 2, nf, S);
            if (c->near) {
                NAME("static.tail_start"); ENTRY(GPTS_I32, start, 1, nf, 0);
                NAME("static.tail_coef"); ENTRY(GPTS_F32, coef, 2, nf, CASE_TERMS);
                NAME("static.tail_decay"); ENTRY(GPTS_F32, decay, 2, nf, CASE_TERMS);
            }
        }
#undef NAME
    }
#undef ENTRY
#undef OWN
    snprintf(json, sizeof json, "{\"vocab_size\": %d, \"n_positions\": %d, \"n_layer\": %d, \"n_head\": %d, \"n_embd\": %d, \"n_inner\": %d, "
             "\"activation_function\": \"%s\", \"approx_activation\": \"relu\", \"position\": \"%s\", \"norm\": \"%s\", \"layer_norm_epsilon\": 1e-5, \"bias\": %s, "
             "\"tie_word_embeddings\": %s, \"rope_theta\": 10000.0}",
             (int)c->V, (int)c->positions, (int)c->L, (int)c->H, (int)c->C, (int)(c->F < 0 ? 4 * c->C : c->F), gelu[c->activation],
             position[c->position], c->norm == GPTS_NORM_NONE ? "none" : "layer_norm", c->bias ? "true" : "false", c->tied ? "true" : "false");
    meta[0].key = "format"; meta[0].value = "pt";
    meta[1].key = "format_version"; meta[1].value = "1";
    meta[2].key = "config"; meta[2].value = json;
    scratch_path(path, sizeof path, c->name);
    status = gpts_file_write(path, entries, n, meta, 3, NULL, error);
    if (status == GPTS_OK) status = gpts_model_load(m, path, hooks);
    else memcpy(m->error, error, sizeof m->error);
    remove(path);
    for (i = 0; i < n_owned; i++) free(owned[i]);
    gpts_model_free(&plain);
    return status;
}

static gpts_status case_model(gpts_model *m, const model_case *c, const gpts_hooks *hooks)
{
    gpts_config config = case_config(c);
    gpts_status status;
    size_t k;
    memset(m, 0, sizeof *m);
    status = c->S ? case_load_static(m, c, hooks) : gpts_model_init(m, &config, 5, hooks);
    if (status == GPTS_OK && c->approx_hidden) {
        gpts_approximator a;
        size_t fc, all;
        memset(&a, 0, sizeof a);
        a.layer = c->approx_layer; a.C = (size_t)c->C;
        a.window = (size_t)c->approx_window; a.hidden = (size_t)c->approx_hidden;
        a.activation = c->approx_activation;
        fc = a.window * a.C * a.hidden; all = fc + a.hidden + a.hidden * a.C + a.C;
        a.fc_w = (gpts_real *)calloc(all, sizeof(gpts_real));
        a.fc_b = a.fc_w + fc; a.proj_w = a.fc_b + a.hidden; a.proj_b = a.proj_w + a.hidden * a.C;
        status = gpts_approximator_install(m, NULL, &a, c->approx_train);
        free(a.fc_w);
    }
    if (status == GPTS_OK) randomise(m, 11);
    for (k = 0; status == GPTS_OK && c->patterns_train && k < m->n_tensors; k++) {
        gpts_parameter p = m->tensors[k].kind;
        if (p == GPTS_P_ALPHA || p == GPTS_P_RHO || p == GPTS_P_TAIL_COEF || p == GPTS_P_TAIL_DECAY) m->tensors[k].trainable = 1;
    }
    return status;
}

/* A copy of every weight, tensor after tensor, n_parameters in all. */
static gpts_real *weights_of(const gpts_model *m)
{
    gpts_real *x = (gpts_real *)malloc((m->n_parameters + 1) * sizeof *x);
    size_t k, at = 0;
    for (k = 0; k < m->n_tensors; k++) { memcpy(x + at, m->tensors[k].data, m->tensors[k].size * sizeof *x); at += m->tensors[k].size; }
    return x;
}
/* The same of a trainer's block (gradients, a moment), n_trainable in all. */
static gpts_real *trained_of(const gpts_trainer *t, const gpts_real *block)
{
    gpts_real *x = (gpts_real *)malloc((t->n_trainable + 1) * sizeof *x);
    size_t k, at = 0;
    for (k = 0; k < t->model->n_tensors; k++)
        if (t->offset[k] != SIZE_MAX) { memcpy(x + at, block + t->offset[k], t->model->tensors[k].size * sizeof *x); at += t->model->tensors[k].size; }
    return x;
}
static int same_weights(const gpts_model *a, const gpts_model *b)
{
    gpts_real *x = weights_of(a), *y = weights_of(b);
    int same = a->n_parameters == b->n_parameters && !memcmp(x, y, a->n_parameters * sizeof *x);
    free(x); free(y);
    return same;
}

/* A batch's own memory. */
typedef struct case_batch { gpts_batch batch; int32_t tokens[512], targets[512], first[16], length[16]; } case_batch;

static const gpts_batch *case_batch_make(case_batch *b, const model_case *c, uint64_t seed)
{
    gpts_rng rng;
    size_t i, row, valid = 0;
    rng.seed = seed; rng.counter = 0;
    memset(b, 0, sizeof *b);
    for (i = 0; i < c->B * c->T; i++) {
        b->tokens[i] = (int32_t)gpts_rng_below(&rng, (uint64_t)c->V);
        b->targets[i] = (int32_t)gpts_rng_below(&rng, (uint64_t)c->V);
        if (c->ignored && (i + 1) % (size_t)c->ignored == 0) b->targets[i] = -1;
    }
    for (row = 0; row < c->B; row++) {
        size_t pad = c->padding ? (row * 2) % c->T : 0;          /* row 0 is whole */
        b->first[row] = (int32_t)(c->padding == LEFT ? pad : 0);
        b->length[row] = (int32_t)(c->T - pad);
        for (i = 0; i < c->T; i++)
            if ((int32_t)i < b->first[row] || (int32_t)i >= b->first[row] + b->length[row]) b->targets[row * c->T + i] = -1;
    }
    for (i = 0; i < c->B * c->T; i++) valid += b->targets[i] >= 0;
    if (!valid) b->targets[0] = 0;
    b->batch.tokens = b->tokens; b->batch.targets = b->targets;
    b->batch.B = c->B; b->batch.T = c->T;
    if (c->padding) { b->batch.first = b->first; b->batch.length = b->length; }
    return &b->batch;
}

#endif

/* circuits.c - what the heads of a model do, and what happens when one of them stands still

   Without --model: trains a small model of attention alone (two layers, no MLP, no norm) on
   the corpus, in less than a minute, and finds its induction pair: a head that looks one token
   back, and a later one that uses it to look for what followed the same token before.  Half of
   its windows are tokens of the corpus in random order, said again and again (--scrambled):
   the stories alone can be learnt for a long time without looking back.

   With --model: any model of ours, GPT-2's names, or a file of other names (--map).

   Per head h, with rows x of the residual stream (Elhage et al. 2021, "A Mathematical
   Framework for Transformer Circuits"; the letters are the paper's):
     scores between tokens       E W_Q W_K' E'        factors [V,D], never [V,V]
     what moves, as logits       E W_V W_O U'         likewise
     copying, same-matching      sum(re l) / sum|l| over the D eigenvalues of W_O U'E W_V, W_K' E'E W_Q:
                                 1 when tokens raise themselves, or look for themselves
     composition of h1, then h2  |OV1 QK2| / |OV1||QK2| for Q, |OV1 QK2'| for K, |OV1 OV2| for V,
                                 less what random factors of these shapes give, near 1/sqrt(C)
   and by what they do (Olsson et al. 2022, "In-context Learning and Induction Heads"):
     prefix matching             attention to what followed the same token, in 25 random tokens said 4 times
     previous token              attention from i to i-1, on text
     copying                     share of the head's push that goes to the attended token's logit,
                                 among 25 random tokens; 0 .. 0.5 is shown as -1 .. 1

   With --gpu the model is trained and frozen heads are tried on the GPU; its weights are looked into here.

   Norms: rows of E are normalised, gains go into the matrices; rotations are left out of the
   QK circuit (it is then the score at distance 0).  Static heads have no QK circuit.          */
#include "corpus.h"
#include "plot.h"

static int64_t layers = 2, heads = 2, width = 64, context = 104, batch = 12, updates = 1000, top = 4, examples = 10;
static int64_t n_tokens = 1024, start_token = -1, pictures = 8, n_head = 0;
static double lr = 1e-2, scrambled = 0.5;
static const char *position = "rope", *map = NULL, *config_file = NULL, *save = NULL;
static int unscaled = 0, no_freeze = 0;

static const cli_flag flags[] = {
    CLI_INT("layers", layers, 0, 64, "layers of the model that is trained"),
    CLI_INT("heads", heads, 1, 256, "heads a layer; divides the width"),
    CLI_INT("width", width, 1, 8192, "channels"),
    CLI_INT("context", context, 8, 65536, "tokens of a window"),
    CLI_INT("batch", batch, 1, 65536, "windows of a batch"),
    CLI_INT("updates", updates, 0, 100000000, "updates of training"),
    CLI_REAL("lr", lr, 0, 10, "peak learning rate"),
    CLI_REAL("scrambled", scrambled, 0, 1, "share of the windows that are random tokens of the text, said again and again"),
    CLI_TEXT("position", position, "learned, rope or none"),
    CLI_TEXT("map", map, "JSON from the tensor names of --model's file to ours; see gpts_mapping in gptstatic.h"),
    CLI_TEXT("config", config_file, "settings of --model's file, instead of the config.json beside it"),
    CLI_INT("n-head", n_head, 0, 65536, "heads of --model's file, if nothing says it"),
    CLI_SWITCH("unscaled", unscaled, "--model's scores are not divided by sqrt(D)"),
    CLI_INT("top", top, 1, 100, "token pairs listed of each head"),
    CLI_INT("tokens", n_tokens, 1, 1000000, "tokens among which pairs are looked for (the commonest)"),
    CLI_INT("examples", examples, 1, 1000, "random sequences of the behaviour scores"),
    CLI_INT("start-token", start_token, -1, 2147483647, "id in front of random tokens; -1: the tokenizer's end of text, or 0"),
    CLI_INT("pictures", pictures, 0, 1000, "heads whose attention is drawn"),
    CLI_SWITCH("no-freeze", no_freeze, "leave out the freezing of single heads"),
    CLI_TEXT("save", save, "the model, under the names it came with (or Llama's), to this file"),
    CLI_END };

#define NOTHING ((double)NAN)                 /* a score that a head does not have */

/* ---- eigenvalues of a small real matrix --------------------------------------------------
   To Hessenberg form by reflections, then QR steps with Wilkinson's shift, in complex
   numbers from there on; what has become triangular is cut off (Golub and Van Loan, Matrix
   Computations, chapter 7).                                                                 */

typedef struct complex_number { double re, im; } complex_number;
static complex_number c_mul(complex_number a, complex_number b)
{
    complex_number c;
    c.re = a.re * b.re - a.im * b.im; c.im = a.re * b.im + a.im * b.re;
    return c;
}
static complex_number c_sub(complex_number a, complex_number b) { a.re -= b.re; a.im -= b.im; return a; }
static complex_number c_conjugate(complex_number a) { a.im = -a.im; return a; }
static double c_abs(complex_number a) { return hypot(a.re, a.im); }
static complex_number c_sqrt(complex_number a)
{
    double r = c_abs(a), x = sqrt(0.5 * (r + fabs(a.re)));
    complex_number c;
    if (x == 0) { c.re = c.im = 0; return c; }
    c.re = a.re >= 0 ? x : fabs(a.im) / (2 * x);
    c.im = a.re >= 0 ? a.im / (2 * x) : a.im >= 0 ? x : -x;
    return c;
}
static complex_number c_div(complex_number a, complex_number b)
{
    double s = c_abs(b);
    complex_number c;
    b.re /= s; b.im /= s;
    c = c_mul(a, c_conjugate(b));
    c.re /= s; c.im /= s;
    return c;
}

/* a [n,n] := Q' a Q with zeros below the first subdiagonal */
static void hessenberg(double *a, size_t n)
{
    double *v = CLI_NEW(double, n);
    size_t i, j, k;
    for (k = 0; k + 2 < n; k++) {
        double norm = 0, square = 0, dot;
        for (i = k + 1; i < n; i++) norm += a[i * n + k] * a[i * n + k];
        norm = sqrt(norm);
        if (norm == 0) continue;
        for (i = k + 1; i < n; i++) v[i] = a[i * n + k];
        v[k + 1] += v[k + 1] >= 0 ? norm : -norm;                 /* away from cancellation */
        for (i = k + 1; i < n; i++) square += v[i] * v[i];
        for (j = 0; j < n; j++) {                                 /* rows: a = (1 - 2 v v'/v'v) a */
            for (dot = 0, i = k + 1; i < n; i++) dot += v[i] * a[i * n + j];
            for (i = k + 1; i < n; i++) a[i * n + j] -= 2 * dot / square * v[i];
        }
        for (i = 0; i < n; i++) {                                 /* columns */
            for (dot = 0, j = k + 1; j < n; j++) dot += a[i * n + j] * v[j];
            for (j = k + 1; j < n; j++) a[i * n + j] -= 2 * dot / square * v[j];
        }
    }
    free(v);
}

/* The eigenvalue of the last 2 x 2 block that is nearer to its last entry. */
static complex_number wilkinson(complex_number a, complex_number b, complex_number c, complex_number d)
{
    complex_number half = c_sub(a, d), product = c_mul(b, c), root, sum;
    half.re /= 2; half.im /= 2;
    root = c_mul(half, half);
    root.re += product.re; root.im += product.im;
    root = c_sqrt(root);
    if (root.re * half.re + root.im * half.im < 0) { root.re = -root.re; root.im = -root.im; }
    sum.re = half.re + root.re; sum.im = half.im + root.im;
    return c_abs(sum) == 0 ? d : c_sub(d, c_div(product, sum));
}

/* value [n] = eigenvalues of a [n,n], which is spoilt; 0 if the steps do not converge. */
static int eigenvalues(double *a, size_t n, complex_number *value)
{
    complex_number *h = CLI_NEW(complex_number, n * n), *turn = CLI_NEW(complex_number, n);
    double *cosine = CLI_NEW(double, n), size = 0;
    size_t end, low, i, j, k;
    int steps = 0;
    hessenberg(a, n);
    for (i = 0; i < n * n; i++) { h[i].re = i / n > i % n + 1 ? 0 : a[i]; size += h[i].re * h[i].re; }
    size = sqrt(size);
    for (end = n; end > 0 && steps < 300;) {
        size_t last = end - 1;
        complex_number shift;
        for (low = last; low > 0; low--) {
            double beside = c_abs(h[(low - 1) * n + low - 1]) + c_abs(h[low * n + low]);
            if (c_abs(h[low * n + low - 1]) <= 2.2e-16 * (beside > 0 ? beside : size)) break;
        }
        if (low == last) { value[last] = h[last * n + last]; end--; steps = 0; continue; }
        shift = wilkinson(h[(last - 1) * n + last - 1], h[(last - 1) * n + last], h[last * n + last - 1], h[last * n + last]);
        if (++steps % 10 == 0) {                                  /* a matrix that turns round and round is pushed */
            shift.re = h[last * n + last].re + c_abs(h[last * n + last - 1]);
            shift.im = 0.75 * c_abs(h[last * n + last - 1]);
        }
        for (i = low; i <= last; i++) h[i * n + i] = c_sub(h[i * n + i], shift);
        for (k = low; k < last; k++) {                            /* h = G h, G turns h[k+1,k] to zero */
            complex_number x = h[k * n + k], y = h[(k + 1) * n + k];
            double r = hypot(c_abs(x), c_abs(y));
            complex_number cx, sy;
            if (r == 0) { cosine[k] = 1; turn[k].re = turn[k].im = 0; continue; }
            if (c_abs(x) == 0) { cosine[k] = 0; turn[k].re = y.re / r; turn[k].im = -y.im / r; }       /* turn y to r */
            else {
                complex_number unit = x;
                unit.re /= c_abs(x); unit.im /= c_abs(x);
                cosine[k] = c_abs(x) / r;
                turn[k] = c_mul(unit, c_conjugate(y));
                turn[k].re /= r; turn[k].im /= r;
            }
            for (j = k; j <= last; j++) {
                x = h[k * n + j]; y = h[(k + 1) * n + j];
                cx = c_mul(turn[k], y); sy = c_mul(c_conjugate(turn[k]), x);
                h[k * n + j].re = cosine[k] * x.re + cx.re; h[k * n + j].im = cosine[k] * x.im + cx.im;
                h[(k + 1) * n + j].re = cosine[k] * y.re - sy.re; h[(k + 1) * n + j].im = cosine[k] * y.im - sy.im;
            }
        }
        for (k = low; k < last; k++)                              /* h = h G* */
            for (i = low; i <= (k + 1 < last ? k + 1 : last); i++) {
                complex_number x = h[i * n + k], y = h[i * n + k + 1], s = c_mul(c_conjugate(turn[k]), y), t = c_mul(turn[k], x);
                h[i * n + k].re = cosine[k] * x.re + s.re; h[i * n + k].im = cosine[k] * x.im + s.im;
                h[i * n + k + 1].re = cosine[k] * y.re - t.re; h[i * n + k + 1].im = cosine[k] * y.im - t.im;
            }
        for (i = low; i <= last; i++) { h[i * n + i].re += shift.re; h[i * n + i].im += shift.im; }
    }
    free(h); free(turn); free(cosine);
    return end == 0;
}

/* sum of real parts over sum of absolute values, of the eigenvalues of a [n,n], which is spoilt */
static double eigenvalue_score(double *a, size_t n)
{
    complex_number *value = CLI_NEW(complex_number, n);
    double sum = 0, all = 0;
    size_t i;
    if (!eigenvalues(a, n, value)) sum = NOTHING;
    for (i = 0; i < n; i++) { sum += value[i].re; all += c_abs(value[i]); }
    free(value);
    return all > 0 ? sum / all : 0;
}

/* ---- small dense algebra -------------------------------------------------------------------- */

/* c [n,m] = a [n,k] b [k,m] */
static void product(double *c, const double *a, const double *b, size_t n, size_t k, size_t m)
{
    size_t i, j, l;
    memset(c, 0, n * m * sizeof *c);
    for (i = 0; i < n; i++)
        for (l = 0; l < k; l++) {
            double x = a[i * k + l];
            for (j = 0; j < m; j++) c[i * m + j] += x * b[l * m + j];
        }
}
/* c [n,m] = a [k,n]' b [k,m] */
static void product_transposed(double *c, const double *a, const double *b, size_t k, size_t n, size_t m)
{
    size_t i, j, l;
    memset(c, 0, n * m * sizeof *c);
    for (l = 0; l < k; l++)
        for (i = 0; i < n; i++) {
            double x = a[l * n + i];
            for (j = 0; j < m; j++) c[i * m + j] += x * b[l * m + j];
        }
}
static double *transposed(const double *a, size_t n, size_t m)         /* [m,n], new */
{
    double *t = CLI_NEW(double, n * m);
    size_t i, j;
    for (i = 0; i < n; i++) for (j = 0; j < m; j++) t[j * n + i] = a[i * m + j];
    return t;
}
/* |P Q|^2 of P [n,d], Q [d,m] = trace((P'P)(Q Q')), without P Q */
static double product_norm(const double *p, const double *q, size_t n, size_t d, size_t m)
{
    double *pp = CLI_NEW(double, d * d), sum = 0;
    size_t i, j, k;
    product_transposed(pp, p, p, n, d, d);
    for (i = 0; i < d; i++)
        for (j = 0; j < d; j++) {
            double dot = 0;
            for (k = 0; k < m; k++) dot += q[i * m + k] * q[j * m + k];
            sum += pp[i * d + j] * dot;
        }
    free(pp);
    return sqrt(sum > 0 ? sum : 0);
}

/* ---- heads as matrices ------------------------------------------------------------------------ */

typedef enum head_kind { HEAD_LIVE, HEAD_STATIC, HEAD_GONE } head_kind;
typedef struct head {
    size_t layer, index;                    /* index: the original one                          */
    head_kind kind;
    size_t C, D;
    double *q, *k, *v, *o;                  /* [C,D] [C,D] [C,D] [D,C]; q, k NULL when static   */
    double *kt, *ot;                        /* k' [D,C], o' [C,D]                               */
    double norm_qk, norm_ov;                /* |W_Q W_K'|, |W_V W_O|                            */
} head;

static gpts_tensor *layer_tensor(const gpts_model *m, size_t l, const char *name)
{
    char full[GPTS_NAME_BYTES];
    snprintf(full, sizeof full, "h.%llu.%s", (unsigned long long)l, name);
    return gpts_model_tensor(m, full);
}

/* Columns from .. from+D-1 of w, with the norm's gain and centring in them. */
static double *columns_of(const gpts_tensor *w, const gpts_tensor *gain, size_t from, size_t D)
{
    double *x = CLI_NEW(double, w->rows * D);
    size_t i, j;
    for (i = 0; i < w->rows; i++)
        for (j = 0; j < D; j++) x[i * D + j] = (gain ? (double)gain->data[i] : 1) * (double)w->data[i * w->columns + from + j];
    for (j = 0; gain && j < D; j++) {
        double mean = 0;
        for (i = 0; i < w->rows; i++) mean += x[i * D + j] / (double)w->rows;
        for (i = 0; i < w->rows; i++) x[i * D + j] -= mean;
    }
    return x;
}

/* [L H], in order of layer and index; free with heads_free */
static head *heads_of(const gpts_model *m)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, C = (size_t)m->config.n_embd, D = C / H, l, s, i;
    head *all = CLI_NEW(head, L * H);
    for (l = 0; l < L; l++) {
        const gpts_heads *h = &m->layers[l].heads;
        const gpts_tensor *attn = layer_tensor(m, l, "attn.c_attn.weight"), *proj = layer_tensor(m, l, "attn.c_proj.weight");
        const gpts_tensor *gain = layer_tensor(m, l, "ln_1.weight");
        for (i = 0; i < H; i++) {
            all[l * H + i].layer = l;
            all[l * H + i].index = i;
            all[l * H + i].kind = HEAD_GONE;
            all[l * H + i].C = C;
            all[l * H + i].D = D;
        }
        for (s = 0; s < h->K; s++) {
            head *one = &all[l * H + (size_t)h->kept[s]];
            size_t live = h->live_slot[s] < 0 ? 0 : (size_t)h->live_slot[s];
            one->kind = h->live_slot[s] < 0 ? HEAD_STATIC : HEAD_LIVE;
            one->v = columns_of(attn, gain, (2 * h->U + s) * D, D);
            one->o = CLI_NEW(double, D * C);
            for (i = 0; i < D * C; i++) one->o[i] = (double)proj->data[s * D * C + i];
            one->ot = transposed(one->o, D, C);
            one->norm_ov = product_norm(one->v, one->o, C, D, C);
            if (one->kind == HEAD_STATIC) continue;
            one->q = columns_of(attn, gain, live * D, D);
            one->k = columns_of(attn, gain, (h->U + live) * D, D);
            one->kt = transposed(one->k, C, D);
            one->norm_qk = product_norm(one->q, one->kt, C, D, C);
        }
    }
    return all;
}
static void heads_free(head *all, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) { free(all[i].q); free(all[i].k); free(all[i].v); free(all[i].o); free(all[i].kt); free(all[i].ot); }
    free(all);
}

/* E [V,C], rows normalised if the model does that, and U [V,C] with the last gain and centring. */
static double *embedding_of(const gpts_model *m)
{
    const gpts_tensor *wte = gpts_model_tensor(m, "wte.weight");
    double *e = CLI_NEW(double, wte->size);
    size_t v, c, C = wte->columns;
    for (v = 0; v < wte->size; v++) e[v] = (double)wte->data[v];
    for (v = 0; v < wte->rows && m->config.norm == GPTS_NORM_LAYER; v++) {
        double mean = 0, square = 0, *x = e + v * C;
        for (c = 0; c < C; c++) mean += x[c] / (double)C;
        for (c = 0; c < C; c++) square += (x[c] - mean) * (x[c] - mean) / (double)C;
        for (c = 0; c < C; c++) x[c] = (x[c] - mean) / sqrt(square + m->config.layer_norm_epsilon);
    }
    return e;
}
static double *unembedding_of(const gpts_model *m)
{
    const gpts_tensor *w = gpts_model_tensor(m, m->config.tie_word_embeddings ? "wte.weight" : "lm_head.weight");
    const gpts_tensor *gain = gpts_model_tensor(m, "ln_f.weight");
    double *u = CLI_NEW(double, w->size);
    size_t v, c, C = w->columns;
    for (v = 0; v < w->size; v++) u[v] = (gain ? (double)gain->data[v % C] : 1) * (double)w->data[v];
    for (v = 0; v < w->rows && gain; v++) {
        double mean = 0;
        for (c = 0; c < C; c++) mean += u[v * C + c] / (double)C;
        for (c = 0; c < C; c++) u[v * C + c] -= mean;
    }
    return u;
}

/* ---- scores of matrices ------------------------------------------------------------------------- */

/* the score of the eigenvalues of a [D,C] g [C,C] b [C,D] */
static double cyclic_score(const double *a, const double *g, const double *b, size_t C, size_t D)
{
    double *gb = CLI_NEW(double, C * D), *x = CLI_NEW(double, D * D), score;
    product(gb, g, b, C, C, D);
    product(x, a, gb, D, C, D);
    score = eigenvalue_score(x, D);
    free(gb); free(x);
    return score;
}
/* E W_V W_O U' has the eigenvalues of W_O (U'E) W_V, and zeros */
static double copying_score(const head *h, const double *ue) { return h->v ? cyclic_score(h->o, ue, h->v, h->C, h->D) : NOTHING; }
/* E W_Q W_K' E' has those of W_K' (E'E) W_Q: does a token look for itself? */
static double matching_score(const head *h, const double *ee) { return h->q ? cyclic_score(h->kt, ee, h->q, h->C, h->D) : NOTHING; }
/* E W_Q2 W_K2' (W_V1 W_O1)' E': does a token look for where `earlier` has put the same token? */
static double matching_through(const head *later, const head *earlier, const double *ee)
{
    size_t C = later->C, D = later->D, i, j, k;
    double *kv = CLI_NEW(double, D * C), *inner = CLI_NEW(double, D * D), *vt, score;
    if (!later->q || !earlier->v) { free(kv); free(inner); return NOTHING; }
    product(inner, later->kt, earlier->ot, D, C, D);               /* W_K2' W_O1' */
    vt = transposed(earlier->v, C, D);
    for (i = 0; i < D; i++) for (j = 0; j < C; j++) for (k = 0; k < D; k++) kv[i * C + j] += inner[i * D + k] * vt[k * C + j];
    score = cyclic_score(kv, ee, later->q, C, D);
    free(kv); free(inner); free(vt);
    return score;
}

enum { COMPOSE_Q, COMPOSE_K, COMPOSE_V, COMPOSE_KINDS };
/* |V1 (O1 X) Y| / (|V1 O1| |X Y|), X [C,D], Y [D,C]: the earlier head's output through one side of the later */
static double composition_of(const double *v1, const double *o1, double norm1, const double *x, const double *y, double norm2, size_t C, size_t D)
{
    double *ox = CLI_NEW(double, D * D), *oxy = CLI_NEW(double, D * C), norm;
    product(ox, o1, x, D, C, D);
    product(oxy, ox, y, D, D, C);
    norm = product_norm(v1, oxy, C, D, C);
    free(ox); free(oxy);
    return norm1 > 0 && norm2 > 0 ? norm / (norm1 * norm2) : 0;
}
static double composition(const head *earlier, const head *later, int kind)
{
    size_t C = later->C, D = later->D, i, j;
    double *qt, score;
    if (!earlier->v || !later->v || (kind != COMPOSE_V && !later->q)) return NOTHING;
    if (kind == COMPOSE_V) return composition_of(earlier->v, earlier->o, earlier->norm_ov, later->v, later->o, later->norm_ov, C, D);
    if (kind == COMPOSE_Q) return composition_of(earlier->v, earlier->o, earlier->norm_ov, later->q, later->kt, later->norm_qk, C, D);
    qt = CLI_NEW(double, D * C);
    for (i = 0; i < C; i++) for (j = 0; j < D; j++) qt[j * C + i] = later->q[i * D + j];
    score = composition_of(earlier->v, earlier->o, earlier->norm_ov, later->k, qt, later->norm_qk, C, D);
    free(qt);
    return score;
}
/* Mean and deviation of the same for random factors. */
static double composition_baseline(size_t C, size_t D, uint64_t seed, size_t samples, double *deviation)
{
    double *f = CLI_NEW(double, 4 * C * D), *score = CLI_NEW(double, samples), mean;
    gpts_rng rng;
    size_t s, i;
    rng.seed = seed; rng.counter = 0;
    for (s = 0; s < samples; s++) {
        double *v1 = f, *o1 = f + C * D, *x = f + 2 * C * D, *y = f + 3 * C * D;
        for (i = 0; i < 4 * C * D; i++) f[i] = gpts_rng_normal(&rng);
        score[s] = composition_of(v1, o1, product_norm(v1, o1, C, D, C), x, y, product_norm(x, y, C, D, C), C, D);
    }
    mean = cli_mean(score, samples);
    *deviation = cli_deviation(score, samples);
    free(f); free(score);
    return mean;
}

/* ---- token pairs ------------------------------------------------------------------------------------ */

typedef struct pair { double score; int32_t from, to; } pair;

/* The `n` largest entries of X Y' over the ids listed, X, Y [V,D], each row less its mean; one of each row. */
static void top_pairs(const double *x, const double *y, size_t D, const int32_t *ids, size_t n_ids, pair *best, size_t n)
{
    double *mean = CLI_NEW(double, D);
    size_t a, b, d, i;
    for (b = 0; b < n_ids; b++) for (d = 0; d < D; d++) mean[d] += y[(size_t)ids[b] * D + d] / (double)n_ids;
    for (i = 0; i < n; i++) { best[i].score = -HUGE_VAL; best[i].from = best[i].to = -1; }
    for (a = 0; a < n_ids; a++) {
        const double *xa = x + (size_t)ids[a] * D;
        double base = 0;
        pair row;
        row.score = -HUGE_VAL; row.from = ids[a]; row.to = -1;
        for (d = 0; d < D; d++) base += xa[d] * mean[d];
        for (b = 0; b < n_ids; b++) {
            const double *yb = y + (size_t)ids[b] * D;
            double dot = -base;
            for (d = 0; d < D; d++) dot += xa[d] * yb[d];
            if (dot > row.score) { row.score = dot; row.to = ids[b]; }
        }
        for (i = n; i > 0 && row.score > best[i - 1].score; i--) if (i < n) best[i] = best[i - 1];
        if (i < n) best[i] = row;
    }
    free(mean);
}

/* QK: who looks for whom; OV: who, looked at, raises what. */
static void head_pairs(const head *h, const double *e, const double *u, size_t V, const int32_t *ids, size_t n_ids, pair *qk, pair *ov, size_t n)
{
    double *x = CLI_NEW(double, V * h->D), *y = CLI_NEW(double, V * h->D);
    if (h->q) {
        product(x, e, h->q, V, h->C, h->D);
        product(y, e, h->k, V, h->C, h->D);
        top_pairs(x, y, h->D, ids, n_ids, qk, n);
    }
    product(x, e, h->v, V, h->C, h->D);
    product(y, u, h->ot, V, h->C, h->D);
    top_pairs(x, y, h->D, ids, n_ids, ov, n);
    free(x); free(y);
}

/* ---- what heads do -------------------------------------------------------------------------------------- */

/* weights [T,T] = the attention of one head on x [T,C], what enters its projections */
static void pattern_of(const gpts_model *m, size_t l, size_t slot, const gpts_real *x, size_t T, double *weights)
{
    const gpts_heads *h = &m->layers[l].heads;
    const gpts_tensor *w = layer_tensor(m, l, "attn.c_attn.weight"), *b = layer_tensor(m, l, "attn.c_attn.bias");
    size_t C = (size_t)m->config.n_embd, D = h->D, i, j, d, c;
    double scale = m->config.unscaled_scores ? 1 : 1 / sqrt((double)D);
    double *q = CLI_NEW(double, T * D), *k = CLI_NEW(double, T * D);
    int live = h->live_slot[slot] >= 0;
    for (i = 0; i < T * T; i++) weights[i] = 0;
    for (i = 0; live && i < T; i++) {
        size_t at = (size_t)h->live_slot[slot];
        for (d = 0; d < D; d++) {
            double sum[2];
            size_t part, column;
            for (part = 0; part < 2; part++) {
                column = (part * h->U + at) * D + d;
                sum[part] = b ? (double)b->data[column] : 0;
                for (c = 0; c < C; c++) sum[part] += (double)x[i * C + c] * (double)w->data[c * w->columns + column];
            }
            q[i * D + d] = sum[0]; k[i * D + d] = sum[1];
        }
        for (d = 0; d < D / 2 && m->config.position == GPTS_POSITION_ROPE; d++) {
            double angle = (double)i * pow(m->config.rope_theta, -2.0 * (double)d / (double)D), co = cos(angle), si = sin(angle), a, z;
            a = q[i * D + d]; z = q[i * D + d + D / 2];
            q[i * D + d] = a * co - z * si; q[i * D + d + D / 2] = z * co + a * si;
            a = k[i * D + d]; z = k[i * D + d + D / 2];
            k[i * D + d] = a * co - z * si; k[i * D + d + D / 2] = z * co + a * si;
        }
    }
    for (i = 0; i < T; i++) {
        double most = -HUGE_VAL, sum = 0, *row = weights + i * T;
        for (j = 0; j <= i; j++) {
            if (live) for (d = 0; d < D; d++) row[j] += scale * q[i * D + d] * k[j * D + d];
            else {                                                 /* (P1) */
                size_t s = (size_t)h->static_slot[slot] * h->S;
                row[j] = j < h->S && i - j < h->S ? (double)h->alpha[s + j] + (double)h->rho[s + i - j] : -HUGE_VAL;
            }
            if (row[j] > most) most = row[j];
        }
        for (j = 0; j <= i; j++) sum += row[j] = exp(row[j] - most);
        for (j = 0; j <= i; j++) row[j] /= sum;
    }
    free(q); free(k);
}

/* `period` tokens said again and again after a start token, T = 1 + period * times: attention from
   each token to those that followed the same token before */
static double prefix_score(const double *weights, size_t T, size_t period)
{
    double sum = 0;
    size_t i, j, n = 0;
    for (i = 1 + period; i < T; i++, n++)
        for (j = i; j > period; ) { j -= period; sum += weights[i * T + j + 1]; }
    return n ? sum / (double)n : 0;
}
static double previous_score(const double *weights, size_t T)
{
    double sum = 0;
    size_t i;
    for (i = 1; i < T; i++) sum += weights[i * T + i - 1];
    return T > 1 ? sum / (double)(T - 1) : 0;
}
/* How much of what the head adds to the logits, above their mean, goes to the tokens it attends to, among
   those said: 4 share - 1.  `v` [T,D] are its values, `uo` [V,D] = U W_O'. */
static double copying_behaviour(const double *weights, const int32_t *said, size_t T, const double *v, const double *uo, size_t V, size_t D)
{
    double *mean = CLI_NEW(double, D), *y = CLI_NEW(double, D), *push = CLI_NEW(double, T), share = 0;
    size_t i, j, d, rows = 0;
    for (j = 0; j < V; j++) for (d = 0; d < D; d++) mean[d] += uo[j * D + d] / (double)V;
    for (i = 1; i < T; i++) {
        double all = 0, base = 0, hit = 0;
        memset(y, 0, D * sizeof *y);
        for (j = 0; j <= i; j++) for (d = 0; d < D; d++) y[d] += weights[i * T + j] * v[j * D + d];
        for (d = 0; d < D; d++) base += y[d] * mean[d];
        for (j = 1; j < T; j++) {
            double logit = -base;
            for (d = 0; d < D; d++) logit += y[d] * uo[(size_t)said[j] * D + d];
            push[j] = logit > 0 ? logit : 0;
            all += push[j];
        }
        for (j = 1; j <= i; j++) hit += weights[i * T + j] * push[j];
        if (all > 0) { share += hit / all; rows++; }
    }
    free(mean); free(y); free(push);
    share = rows ? share / (double)rows : 0;
    return share < 0.5 ? 4 * share - 1 : 1;
}

typedef struct behaviour { double prefix, previous, copying; double *picture; } behaviour;

enum { SAID = 25, TIMES = 4 };                /* Olsson et al. */
typedef struct bench {                        /* what the heads are tried on */
    size_t V, period, T, n;                   /* n random sequences of T = 1 + period TIMES */
    int32_t *random, *random_targets;         /* [n,T] repeated; targets in the second and later copies only */
    int32_t *first_targets;                   /* [n,T] in the first copy only */
    int32_t *once;                            /* [n,1+period] not repeated */
    int32_t *text, *text_targets; size_t text_n, text_T;    /* windows of text, or NULL */
    int32_t *ids; size_t n_ids;               /* tokens by how common they are */
    int32_t start;
} bench;

/* Random tokens without the most and the least common. */
static void bench_random(bench *b, uint64_t seed)
{
    gpts_rng rng;
    size_t s, i, k, cut = b->n_ids > 60 ? b->n_ids / 10 : 0, room = b->n_ids - 2 * cut;
    rng.seed = seed; rng.counter = 0;
    for (s = 0; s < b->n; s++) {
        int32_t *row = b->random + s * b->T;
        row[0] = b->once[s * (1 + b->period)] = b->start;
        for (i = 1; i <= b->period; i++) {
            int again = 1;
            while (again) {
                row[i] = b->ids[cut + (size_t)gpts_rng_below(&rng, room)];
                for (again = 0, k = 1; k < i && room > 2 * b->period; k++) if (row[k] == row[i]) again = 1;
            }
            b->once[s * (1 + b->period) + i] = row[i];
        }
        for (i = b->period + 1; i < b->T; i++) row[i] = row[i - b->period];
        for (i = 0; i < b->T; i++) {
            b->random_targets[s * b->T + i] = i + 1 < b->T && i > b->period ? row[i + 1] : -1;
            b->first_targets[s * b->T + i] = i < b->period ? row[i + 1] : -1;
        }
    }
}
static double loss_on(gpts_model *m, const int32_t *tokens, const int32_t *targets, size_t n, size_t T)
{
    double sum = 0, loss;
    size_t s, k, part;
    for (s = 0; s < n; s += k) {
        gpts_batch batch_;
        memset(&batch_, 0, sizeof batch_);
        k = n - s < 16 ? n - s : 16;
        batch_.tokens = tokens + s * T; batch_.targets = targets + s * T; batch_.B = k; batch_.T = T;
        CLI_TRY(gpts_model_forward(m, &batch_, NULL, &loss), m->error);
        for (part = 0; part < k; part++) sum += loss;
    }
    return n ? sum / (double)n : 0;
}

/* Runs every layer once and scores its heads; [L H] */
static behaviour *behaviours_of(gpts_model *m, const head *all, const bench *b, const double *u)
{
    size_t L = (size_t)m->config.n_layer, H = (size_t)m->config.n_head, C = (size_t)m->config.n_embd, D = C / H, l, s, w, i, d, c;
    size_t long_T = b->T > b->text_T ? b->T : b->text_T, one_T = 1 + b->period;
    behaviour *out = CLI_NEW(behaviour, L * H);
    double *weights = CLI_NEW(double, long_T * long_T), *v = CLI_NEW(double, one_T * D), *uo = CLI_NEW(double, b->V * D);
    gpts_real *x = CLI_NEW(gpts_real, long_T * C), *y = CLI_NEW(gpts_real, long_T * C);
    gpts_batch one;
    memset(&one, 0, sizeof one);
    one.B = 1;
    for (l = 0; l < L; l++) {
        const gpts_heads *h = &m->layers[l].heads;
        for (w = 0; w < b->n && h->K; w++) {                       /* repeated random tokens */
            one.tokens = b->random + w * b->T; one.T = b->T;
            CLI_TRY(gpts_model_record(m, &one, l, x, y), m->error);
            for (s = 0; s < h->K; s++) {
                behaviour *to = &out[l * H + (size_t)h->kept[s]];
                pattern_of(m, l, s, x, b->T, weights);
                to->prefix += prefix_score(weights, b->T, b->period) / (double)b->n;
                if (!b->text) to->previous += previous_score(weights, b->T) / (double)b->n;
                if (w) continue;
                to->picture = CLI_NEW(double, (2 * b->period + 1) * (2 * b->period + 1));
                for (i = 0; i < 2 * b->period + 1; i++)
                    memcpy(to->picture + i * (2 * b->period + 1), weights + i * b->T, (2 * b->period + 1) * sizeof *weights);
            }
        }
        for (s = 0; s < h->K; s++) {                               /* random tokens, said once */
            size_t index = l * H + (size_t)h->kept[s];
            const gpts_tensor *attn = layer_tensor(m, l, "attn.c_attn.weight"), *bias = layer_tensor(m, l, "attn.c_attn.bias");
            product(uo, u, all[index].ot, b->V, C, D);
            for (w = 0; w < b->n; w++) {
                one.tokens = b->once + w * one_T; one.T = one_T;
                CLI_TRY(gpts_model_record(m, &one, l, x, y), m->error);
                pattern_of(m, l, s, x, one_T, weights);
                for (i = 0; i < one_T; i++) for (d = 0; d < D; d++) {
                    size_t column = (2 * h->U + s) * D + d;
                    double sum = bias ? (double)bias->data[column] : 0;
                    for (c = 0; c < C; c++) sum += (double)x[i * C + c] * (double)attn->data[c * attn->columns + column];
                    v[i * D + d] = sum;
                }
                out[index].copying += copying_behaviour(weights, one.tokens, one_T, v, uo, b->V, D) / (double)b->n;
            }
        }
        for (w = 0; w < b->text_n && h->K; w++) {                  /* text */
            one.tokens = b->text + w * b->text_T; one.T = b->text_T;
            CLI_TRY(gpts_model_record(m, &one, l, x, y), m->error);
            for (s = 0; s < h->K; s++) {
                pattern_of(m, l, s, x, b->text_T, weights);
                out[l * H + (size_t)h->kept[s]].previous += previous_score(weights, b->text_T) / (double)b->text_n;
            }
        }
        cli_progress("watching the heads", l + 1, L, "layer %llu", (unsigned long long)l);
    }
    free(weights); free(v); free(uo); free(x); free(y);
    return out;
}

/* ---- the model ----------------------------------------------------------------------------------------------- */

static const char *const positions[] = { "learned", "rope", "none" };

static void say_lines(const char *text)                            /* the table of an import */
{
    cli_say("%s", text);
}

static void load_model(gpts_model *m)
{
    gpts_mapping mapping;
    gpts_status status = GPTS_MISMATCH;
    memset(&mapping, 0, sizeof mapping);
    if (!map && !config_file && !n_head && !unscaled) status = gpts_model_load(m, cli.model, &cli.hooks);
    if (status != GPTS_OK) {                                       /* not our names: by names and shapes */
        char first[GPTS_ERROR_BYTES];
        memcpy(first, m->error, sizeof first);
        mapping.map = map; mapping.config = config_file; mapping.n_head = n_head; mapping.unscaled_scores = unscaled;
        status = gpts_model_load_mapped(m, cli.model, &mapping, &cli.hooks);
        if (mapping.table) say_lines(mapping.table);
        gpts_release(&cli.hooks, mapping.table);
        if (status != GPTS_OK) cli_fail("%s%s%s", m->error, first[0] ? "; as one of ours: " : "", first);
    }
}

typedef struct lesson_curve { double *x, *loss, *again; size_t n; } lesson_curve;

static void train(gpts_model *m, const corpus_tokens *data, const bench *b, lesson_curve *curve)
{
    gpts_config config = gpts_config_attention_only(layers, heads, width);
    gpts_train_options options = gpts_train_options_default();
    gpts_trainer trainer;
    gpts_windows windows;
    size_t B = (size_t)batch, T = (size_t)context, row;
    int32_t *tokens = CLI_NEW(int32_t, B * T), *targets = CLI_NEW(int32_t, B * T);
    int64_t step, every = updates < 24 ? 1 : updates / 24;
    double loss = 0, recent = 0, first, again = 0;
    memset(&trainer, 0, sizeof trainer); memset(&windows, 0, sizeof windows);
    config.vocab_size = data->tokenizer.vocab_size; config.n_positions = context;
    config.position = (gpts_position)cli_choice("--position", position, positions, 3);
    options.learning_rate = lr; options.min_learning_rate = lr / 20; options.total = (uint64_t)updates;
    options.warmup = (uint64_t)(updates / 20); options.beta2 = 0.98; options.weight_decay = 0.01;
    if (!cli.threads && width <= 128) cli.hooks.threads = 1;        /* waiting for each other costs more than such matrices */
    CLI_TRY(gpts_model_init(m, &config, (uint64_t)cli.seed, &cli.hooks), m->error);
    corpus_start_larger(m);
    cli_place(m);
    CLI_TRY(gpts_trainer_init(&trainer, m, &options), trainer.error);
    windows.tokens = data->train; windows.n = data->n_train; windows.T = T; windows.seed = (uint64_t)cli.seed;
    curve->x = CLI_NEW(double, updates + 2); curve->loss = CLI_NEW(double, updates + 2); curve->again = CLI_NEW(double, updates + 2);
    for (step = 0; step <= updates; step++) {
        if (step % every == 0 || step == updates) {
            first = loss_on(m, b->random, b->first_targets, b->n, b->T);
            again = loss_on(m, b->random, b->random_targets, b->n, b->T) - first;
            curve->x[curve->n] = (double)step; curve->again[curve->n] = again;
            curve->loss[curve->n++] = loss_on(m, b->text, b->text_targets, b->text_n, b->text_T);
        }
        if (step == updates) break;
        CLI_TRY(gpts_windows_batch(&windows, trainer.data_position, B, tokens, targets), "a window does not fit the data");
        for (row = 0; row < (size_t)(scrambled * (double)B + 0.5); row++)
            corpus_scramble(tokens + row * T, targets + row * T, T, data, (uint64_t)cli.seed, trainer.data_position + row);
        trainer.data_position += B;
        CLI_TRY(gpts_trainer_update(&trainer, tokens, targets, B, T, &loss), trainer.error);
        recent = step ? 0.95 * recent + 0.05 * loss : loss;
        cli_progress("training", (uint64_t)step + 1, (uint64_t)updates, "loss %.3f, copies %+.2f", recent, again);
    }
    gpts_trainer_free(&trainer);
    free(tokens); free(targets);
}

/* ---- one head stands still ------------------------------------------------------------------------------------- */

typedef struct harm { double text, again; } harm;                  /* losses with one head replaced */

static int is_plain(const gpts_model *m)
{
    size_t l;
    for (l = 0; l < (size_t)m->config.n_layer; l++) if (m->layers[l].heads.U != m->layers[l].heads.H) return 0;
    return 1;
}
static harm measure(gpts_model *m, const bench *b)
{
    harm h;
    h.text = b->text ? loss_on(m, b->text, b->text_targets, b->text_n, b->text_T) : NOTHING;
    h.again = loss_on(m, b->random, b->random_targets, b->n, b->T);
    return h;
}
static void copy_of(gpts_model *copy, const gpts_model *m)          /* placed where --gpu says */
{
    size_t i;
    memset(copy, 0, sizeof *copy);
    CLI_TRY(gpts_model_init(copy, &m->config, 0, &cli.hooks), copy->error);
    for (i = 0; i < m->n_tensors; i++) memcpy(copy->tensors[i].data, m->tensors[i].data, m->tensors[i].size * sizeof(gpts_real));
    cli_place(copy);
}
static harm replace_one(const gpts_model *m, gpts_calibration *c, int32_t index, gpts_replacement with, const bench *b)
{
    gpts_model copy;
    gpts_freeze_options options = gpts_freeze_options_default();
    harm h;
    copy_of(&copy, m);
    options.heads = 1; options.selector = GPTS_SELECT_LIST; options.list = &index; options.n_list = 1;
    options.replacement = with; options.gate = -1;
    CLI_TRY(gpts_freeze(&copy, NULL, c, &options, NULL), copy.error);
    h = measure(&copy, b);
    gpts_model_free(&copy);
    return h;
}

/* ---- words -------------------------------------------------------------------------------------------------------- */

/* a token between quotes, what is not printable as an escape, '|' spared for tables */
typedef struct word { char text[64]; } word;
static word word_of(gpts_tokenizer *k, int32_t id)
{
    word w;
    char bytes[24];
    size_t n = sizeof bytes, i, at = 0;
    if (!k->vocabulary || gpts_tokenizer_decode(k, &id, 1, bytes, &n) != GPTS_OK) { snprintf(w.text, sizeof w.text, "#%ld", (long)id); return w; }
    w.text[at++] = '"';
    for (i = 0; i < n && at + 8 < sizeof w.text; i++) {
        unsigned char ch = (unsigned char)bytes[i];
        if (ch == '\n') { memcpy(w.text + at, "\\n", 2); at += 2; }
        else if (ch < 32 || ch == 127 || ch == '|' || ch == '"') at += (size_t)snprintf(w.text + at, 6, "\\x%02x", ch);
        else w.text[at++] = (char)ch;
    }
    w.text[at++] = '"';
    w.text[at] = 0;
    return w;
}

static int by_count_down(const void *a, const void *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    return x[0] != y[0] ? (x[0] < y[0]) - (x[0] > y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}
/* Ids that occur, the commonest first; without text all ids but 0. */
static void bench_ids(bench *b, const corpus_tokens *data)
{
    double *count = CLI_NEW(double, 2 * b->V);
    size_t i, n = 0;
    for (i = 0; i < b->V; i++) count[2 * i + 1] = (double)i;
    for (i = 0; data && i < data->n_train; i++) count[2 * (size_t)data->train[i]] += 1;
    qsort(count, b->V, 2 * sizeof *count, by_count_down);
    b->ids = CLI_NEW(int32_t, b->V);
    for (i = 0; i < b->V; i++)
        if ((data ? count[2 * i] > 0 : count[2 * i + 1] > 0 || b->V == 1) && (int32_t)count[2 * i + 1] != b->start)
            b->ids[n++] = (int32_t)count[2 * i + 1];
    if (!n) b->ids[n++] = 0;
    b->n_ids = n;
    free(count);
}
static void bench_make(bench *b, size_t V, size_t room, const corpus_tokens *data, int32_t start)
{
    enum { WINDOWS = 16 };
    memset(b, 0, sizeof *b);
    b->V = V; b->n = (size_t)examples; b->start = start;
    b->period = (room - 1) / TIMES < SAID ? (room - 1) / TIMES : SAID;
    if (!b->period) cli_fail("the model's context of %llu is too short for repeated tokens", (unsigned long long)room);
    b->T = 1 + b->period * TIMES;
    bench_ids(b, data);
    b->random = CLI_NEW(int32_t, b->n * b->T); b->random_targets = CLI_NEW(int32_t, b->n * b->T); b->first_targets = CLI_NEW(int32_t, b->n * b->T);
    b->once = CLI_NEW(int32_t, b->n * (1 + b->period));
    bench_random(b, (uint64_t)cli.seed);
    b->text_T = room < 256 ? room : 256;
    if (!data || data->n_val < b->text_T + 1) { b->text_T = 0; return; }
    b->text_n = WINDOWS;
    b->text = CLI_NEW(int32_t, b->text_n * b->text_T); b->text_targets = CLI_NEW(int32_t, b->text_n * b->text_T);
    corpus_windows(data->val, data->n_val, b->text_T, b->text_n, b->text, b->text_targets);
}
static void bench_free(bench *b)
{
    free(b->random); free(b->random_targets); free(b->first_targets); free(b->once); free(b->text); free(b->text_targets); free(b->ids);
}

/* ---- results ---------------------------------------------------------------------------------------------------------- */

typedef struct findings {
    gpts_model *m;
    gpts_tokenizer *words;
    const bench *b;
    head *all; size_t n, L, H;
    double *copying, *matching;               /* [n]                                            */
    double *compose;                          /* [n,n,3] earlier, later, kind; NaN: no pair     */
    double baseline, deviation;
    double through;                           /* same-matching through the pair                 */
    behaviour *does;
    pair *qk, *ov;                            /* [n,top]                                        */
    size_t previous, induction;               /* heads of the pair                              */
    int pair_found, is_pair;                  /* there are two layers; the two do what such a pair does */
    harm whole, *frozen, *pruned;             /* [n], or NULL                                   */
    lesson_curve curve;
} findings;

static double excess(const findings *f, size_t earlier, size_t later, int kind)
{
    return f->compose[(earlier * f->n + later) * COMPOSE_KINDS + (size_t)kind] - f->baseline;
}

static void analyse(findings *f)
{
    const gpts_model *m = f->m;
    size_t V = (size_t)m->config.vocab_size, C = (size_t)m->config.n_embd, i, j, t = (size_t)top, ids;
    double *e = embedding_of(m), *u = unembedding_of(m), *ee = CLI_NEW(double, C * C), *ue = CLI_NEW(double, C * C), best = -1;
    int kind;
    f->L = (size_t)m->config.n_layer; f->H = (size_t)m->config.n_head; f->n = f->L * f->H;
    f->all = heads_of(m);
    f->copying = CLI_NEW(double, f->n); f->matching = CLI_NEW(double, f->n);
    f->compose = CLI_NEW(double, f->n * f->n * COMPOSE_KINDS);
    f->qk = CLI_NEW(pair, f->n * t); f->ov = CLI_NEW(pair, f->n * t);
    product_transposed(ee, e, e, V, C, C);
    product_transposed(ue, u, e, V, C, C);
    ids = f->b->n_ids < (size_t)n_tokens ? f->b->n_ids : (size_t)n_tokens;
    f->baseline = f->n ? composition_baseline(C, C / f->H, (uint64_t)cli.seed, 8, &f->deviation) : 0;
    for (i = 0; i < f->n; i++) {
        f->copying[i] = copying_score(&f->all[i], ue);
        f->matching[i] = matching_score(&f->all[i], ee);
        if (f->all[i].kind != HEAD_GONE) head_pairs(&f->all[i], e, u, V, f->b->ids, ids, f->qk + i * t, f->ov + i * t, t);
        for (j = 0; j < f->n; j++) for (kind = 0; kind < COMPOSE_KINDS; kind++)
            f->compose[(j * f->n + i) * COMPOSE_KINDS + (size_t)kind] =
                f->all[j].layer < f->all[i].layer ? composition(&f->all[j], &f->all[i], kind) : NOTHING;
        cli_progress("reading the circuits", i + 1, f->n, "head %llu.%llu", (unsigned long long)f->all[i].layer, (unsigned long long)f->all[i].index);
    }
    f->does = behaviours_of(f->m, f->all, f->b, u);
    for (i = 0; i < f->n; i++) for (j = 0; j < f->n; j++)          /* the pair: looks back one, and a later one that finds what followed */
        if (f->all[j].layer < f->all[i].layer && f->does[i].prefix * f->does[j].previous > best) {
            best = f->does[i].prefix * f->does[j].previous;
            f->induction = i; f->previous = j; f->pair_found = 1;
        }
    f->is_pair = f->pair_found && f->does[f->induction].prefix > 0.3 && f->does[f->previous].previous > 0.3;
    f->through = f->pair_found ? matching_through(&f->all[f->induction], &f->all[f->previous], ee) : NOTHING;
    free(e); free(u); free(ee); free(ue);
}

static void freeze_each(findings *f, const corpus_tokens *data)
{
    enum { WINDOWS = 48 };
    gpts_calibration c;
    gpts_model whole;
    size_t T, n, i;
    int32_t *tokens, *targets;
    gpts_rng rng;
    memset(&c, 0, sizeof c);
    rng.seed = (uint64_t)cli.seed; rng.counter = 0;
    T = f->b->text ? f->b->text_T : f->b->T;
    n = WINDOWS;
    tokens = CLI_NEW(int32_t, n * T); targets = CLI_NEW(int32_t, n * T);
    if (f->b->text) corpus_windows(data->train, data->n_train, T, n, tokens, targets);
    else for (i = 0; i < n; i++) {                                 /* no text: random tokens, repeated at other distances than the bench's */
        size_t t, period = 2 + i % (T / 2);
        for (t = 0; t < T; t++) tokens[i * T + t] = t < period ? f->b->ids[gpts_rng_below(&rng, f->b->n_ids)] : tokens[i * T + t - period];
    }
    copy_of(&whole, f->m);
    CLI_TRY(gpts_calibrate(&c, &whole, tokens, n, T), c.error[0] ? c.error : whole.error);
    f->frozen = CLI_NEW(harm, f->n); f->pruned = CLI_NEW(harm, f->n);
    f->whole = measure(&whole, f->b);
    gpts_model_free(&whole);
    for (i = 0; i < f->n; i++) {
        f->frozen[i] = replace_one(f->m, &c, (int32_t)i, GPTS_REPLACE_LINEAR, f->b);
        f->pruned[i] = replace_one(f->m, &c, (int32_t)i, GPTS_REPLACE_PRUNE, f->b);
        cli_progress("freezing one head at a time", i + 1, f->n, "%llu.%llu", (unsigned long long)f->all[i].layer,
                     (unsigned long long)f->all[i].index);
    }
    gpts_calibration_free(&c);
    free(tokens); free(targets);
}

static void say_results(findings *f)
{
    size_t i, j, t = (size_t)top;
    cli_say("head   copying  matching  prefix  previous  copies |  QK: who looks for whom          OV: who raises what\n");
    for (i = 0; i < f->n; i++) {
        word a, b, c, d;
        if (f->all[i].kind == HEAD_GONE) {
            cli_say("%llu.%-4llu (not there)\n", (unsigned long long)f->all[i].layer, (unsigned long long)f->all[i].index);
            continue;
        }
        a = word_of(f->words, f->qk[i * t].from); b = word_of(f->words, f->qk[i * t].to);
        c = word_of(f->words, f->ov[i * t].from); d = word_of(f->words, f->ov[i * t].to);
        if (f->all[i].kind == HEAD_STATIC) { snprintf(a.text, sizeof a.text, "(static)"); b.text[0] = 0; }
        cli_say("%llu.%-4llu %7.2f %9.2f %7.2f %9.2f %7.2f |  %s %s   %s %s%s%s\n", (unsigned long long)f->all[i].layer,
                (unsigned long long)f->all[i].index,
                f->copying[i], f->matching[i], f->does[i].prefix, f->does[i].previous, f->does[i].copying, a.text, b.text, c.text, d.text,
                f->is_pair && i == f->induction ? "   <- induction" : "", f->is_pair && i == f->previous ? "   <- previous token" : "");
    }
    if (!f->pair_found) return;
    i = f->previous; j = f->induction;
    cli_say("%s %llu.%llu looks back one, %llu.%llu finds what followed; composition over chance (%.3f): Q %+.3f, K %+.3f, V %+.3f; same-matching through it %+.2f\n",
            f->is_pair ? "pair  " : "no induction pair; nearest to one:",
            (unsigned long long)f->all[i].layer, (unsigned long long)f->all[i].index, (unsigned long long)f->all[j].layer,
            (unsigned long long)f->all[j].index,
            f->baseline, excess(f, i, j, COMPOSE_Q), excess(f, i, j, COMPOSE_K), excess(f, i, j, COMPOSE_V), f->through);
    if (!f->frozen) return;
    cli_say("frozen %llu.%llu adds %.3f to the loss on repeated tokens, frozen %llu.%llu adds %.3f; removed: %.3f and %.3f (whole model: %.3f)\n",
            (unsigned long long)f->all[i].layer, (unsigned long long)f->all[i].index, f->frozen[i].again - f->whole.again,
            (unsigned long long)f->all[j].layer, (unsigned long long)f->all[j].index, f->frozen[j].again - f->whole.again,
            f->pruned[i].again - f->whole.again, f->pruned[j].again - f->whole.again, f->whole.again);
    if (f->b->text)
        cli_say("on text:   frozen %.4f and %.4f, removed %.4f and %.4f (whole model: %.3f)\n", f->frozen[i].text - f->whole.text,
                f->frozen[j].text - f->whole.text, f->pruned[i].text - f->whole.text, f->pruned[j].text - f->whole.text, f->whole.text);
}

static void draw(findings *f)
{
    size_t i, k, t = (size_t)top, side = 2 * f->b->period + 1, *order = CLI_NEW(size_t, f->n);
    char title[120];
    plot_begin("circuits", "Circuits: what the heads do");
    plot_say("%llu layers of %llu heads, width %lld, positions: %s%s. A head's QK circuit says who looks for whom, its OV circuit what that raises; "
             "copying and same-matching are read off the weights, prefix matching and previous token off its attention.",
             (unsigned long long)f->L, (unsigned long long)f->H, (long long)f->m->config.n_embd, positions[f->m->config.position],
             f->m->config.n_inner ? "" : ", attention only");
    if (f->curve.n) {
        plot_series s[2] = { { "text", NULL, NULL, 0, 0 }, { "repeated tokens, later copies less the first", NULL, NULL, 0, 0 } };
        s[0].x = s[1].x = f->curve.x; s[0].n = s[1].n = f->curve.n; s[0].y = f->curve.loss; s[1].y = f->curve.again;
        plot_row_begin();
        plot_lines("Loss on text", "update", "nats a token", s, 1);
        plot_lines("Induction appears", "update", "nats: later copies of random tokens less their first", s + 1, 1);
        plot_row_end();
    }
    plot_table("head|copying|same-matching|prefix|previous|copies|top QK pair|top OV pair");
    for (i = 0; i < f->n; i++) {
        word a = word_of(f->words, f->qk[i * t].from), b = word_of(f->words, f->qk[i * t].to),
            c = word_of(f->words, f->ov[i * t].from), d = word_of(f->words, f->ov[i * t].to);
        if (f->all[i].kind == HEAD_GONE) continue;
        if (f->all[i].kind == HEAD_STATIC)
            plot_row("%llu.%llu|%.2f|static|%.2f|%.2f|%.2f||%s raises %s", (unsigned long long)f->all[i].layer, (unsigned long long)f->all[i].index,
            f->copying[i], f->does[i].prefix, f->does[i].previous, f->does[i].copying, c.text, d.text);
        else plot_row("%llu.%llu|%.2f|%.2f|%.2f|%.2f|%.2f|%s sees %s|%s raises %s", (unsigned long long)f->all[i].layer,
                      (unsigned long long)f->all[i].index, f->copying[i],
            f->matching[i], f->does[i].prefix, f->does[i].previous, f->does[i].copying, a.text, b.text, c.text, d.text);
    }
    plot_table_end();
    if (f->is_pair) {
        size_t p = f->previous, q = f->induction;
        plot_say("The induction pair: head %llu.%llu looks one token back (%.0f %% of its attention), head %llu.%llu looks at what followed the same token before (%.0f %%). "
                 "The first writes what the second's keys read: K-composition %.3f, where random matrices give %.3f \xc2\xb1 %.3f.",
                 (unsigned long long)f->all[p].layer, (unsigned long long)f->all[p].index, 100 * f->does[p].previous,
                 (unsigned long long)f->all[q].layer,
                 (unsigned long long)f->all[q].index, 100 * f->does[q].prefix, excess(f, p, q, COMPOSE_K) + f->baseline, f->baseline, f->deviation);
    }
    if (f->frozen) {
        const char **names = CLI_NEW(const char *, 2 * f->n);
        word *text = CLI_NEW(word, 2 * f->n);
        double *v = CLI_NEW(double, 2 * f->n);
        int *colour = CLI_NEW(int, 2 * f->n);
        size_t part, shown = f->n <= 32 ? f->n : 0;
        plot_say("One head at a time stands still: its attention becomes a fixed pattern, and nothing is trained afterwards. A head whose attention depends on place alone "
                 "loses little; one whose attention depends on content loses its work. Below each, the same head removed.");
        plot_row_begin();
        for (part = 0; part < 2 && shown; part++) {
            if (!part && !f->b->text) continue;
            for (i = 0; i < f->n; i++) {
                snprintf(text[2 * i].text, sizeof text[0].text, "%llu.%llu%s", (unsigned long long)f->all[i].layer,
                         (unsigned long long)f->all[i].index,
                         f->is_pair && i == f->induction ? " induction" : f->is_pair && i == f->previous ? " previous" : "");
                snprintf(text[2 * i + 1].text, sizeof text[0].text, "removed");
                names[2 * i] = text[2 * i].text; names[2 * i + 1] = text[2 * i + 1].text;
                v[2 * i] = part ? f->frozen[i].again - f->whole.again : f->frozen[i].text - f->whole.text;
                v[2 * i + 1] = part ? f->pruned[i].again - f->whole.again : f->pruned[i].text - f->whole.text;
                colour[2 * i] = f->is_pair && i == f->induction ? 1 : f->is_pair && i == f->previous ? 2 : 0;
                colour[2 * i + 1] = 5;
            }
            plot_bars(part ? "Loss added on repeated random tokens" : "Loss added on text", "", names, v, NULL, colour, 2 * f->n, 0);
        }
        plot_row_end();
        free(names); free(text); free(v); free(colour);
    }
    if (f->n && f->n <= 32 && f->pair_found) {
        double *cell = CLI_NEW(double, f->n * f->n);
        size_t j;
        for (i = 0; i < f->n; i++) for (j = 0; j < f->n; j++) cell[i * f->n + j] = f->all[j].layer < f->all[i].layer ? excess(f, j, i, COMPOSE_K) : 0;
        plot_heat("K-composition over chance", "later head", "earlier head", cell, NULL, f->n, f->n, 0, 0.3);
        free(cell);
    }
    for (i = 0; i < f->n; i++) order[i] = i;
    for (i = 1; i < f->n; i++)                                     /* the most telling first */
        for (k = i; k > 0; k--) {
            const behaviour *a = &f->does[order[k]], *b = &f->does[order[k - 1]];
            size_t swap = order[k];
            if (!(a->prefix + a->previous > b->prefix + b->previous)) break;
            order[k] = order[k - 1]; order[k - 1] = swap;
        }
    if (f->n)
        plot_say("Attention on %llu random tokens said twice after a start token: rows look, columns are looked at.",
                 (unsigned long long)f->b->period);
    plot_row_begin();
    for (i = k = 0; i < f->n && k < (size_t)pictures; i++) {
        if (!f->does[order[i]].picture) continue;
        k++;
        snprintf(title, sizeof title, "Head %llu.%llu: prefix %.2f, previous %.2f", (unsigned long long)f->all[order[i]].layer,
                 (unsigned long long)f->all[order[i]].index,
                 f->does[order[i]].prefix, f->does[order[i]].previous);
        plot_heat(title, "from", "to", f->does[order[i]].picture, NULL, side, side, 0, 1);
    }
    plot_row_end();
    plot_end();
    free(order);
}

static void write_json(const findings *f)
{
    static const char *const kinds[] = { "q", "k", "v" };
    size_t i, j, k;
    cli_json_real("layers", (double)f->L);
    cli_json_real("heads", (double)f->H);
    cli_json_real("width", (double)f->m->config.n_embd);
    cli_json_real("vocabulary", (double)f->m->config.vocab_size);
    cli_json_text("position", positions[f->m->config.position]);
    cli_json_real("composition_baseline", f->baseline);
    cli_json_real("composition_deviation", f->deviation);
    cli_json_real("loss_text", f->b->text ? loss_on(f->m, f->b->text, f->b->text_targets, f->b->text_n, f->b->text_T) : NOTHING);
    cli_json_real("loss_first_copy", loss_on(f->m, f->b->random, f->b->first_targets, f->b->n, f->b->T));
    cli_json_real("loss_later_copies", loss_on(f->m, f->b->random, f->b->random_targets, f->b->n, f->b->T));
    cli_json_real("induction_pair_found", f->is_pair);
    cli_json_real("induction_head", f->pair_found ? (double)f->induction : NOTHING);
    cli_json_real("previous_head", f->pair_found ? (double)f->previous : NOTHING);
    if (f->pair_found) for (k = 0; k < COMPOSE_KINDS; k++)
        cli_json_named(f->compose[(f->previous * f->n + f->induction) * COMPOSE_KINDS + k], "pair_%s_composition", kinds[k]);
    cli_json_real("pair_matching", f->through);
    if (f->pair_found && f->frozen) {
        cli_json_real("frozen_previous_text", f->frozen[f->previous].text - f->whole.text);
        cli_json_real("frozen_previous_copies", f->frozen[f->previous].again - f->whole.again);
        cli_json_real("frozen_induction_text", f->frozen[f->induction].text - f->whole.text);
        cli_json_real("frozen_induction_copies", f->frozen[f->induction].again - f->whole.again);
    }
    for (i = 0; i < f->n; i++) {
        unsigned l = (unsigned)f->all[i].layer, h = (unsigned)f->all[i].index;
        cli_json_named(f->copying[i], "copying_%u_%u", l, h);
        cli_json_named(f->matching[i], "matching_%u_%u", l, h);
        cli_json_named(f->does[i].prefix, "prefix_%u_%u", l, h);
        cli_json_named(f->does[i].previous, "previous_%u_%u", l, h);
        cli_json_named(f->does[i].copying, "copies_%u_%u", l, h);
        for (k = 0; k < (size_t)top && f->all[i].kind == HEAD_LIVE; k++) {
            const pair *p = &f->qk[i * (size_t)top + k];
            cli_json_named(p->from, "qk_from_%u_%u_%u", l, h, (unsigned)k);
            cli_json_named(p->to, "qk_to_%u_%u_%u", l, h, (unsigned)k);
            cli_json_named(p->score, "qk_score_%u_%u_%u", l, h, (unsigned)k);
        }
        for (k = 0; k < (size_t)top && f->all[i].kind != HEAD_GONE; k++) {
            const pair *p = &f->ov[i * (size_t)top + k];
            cli_json_named(p->from, "ov_from_%u_%u_%u", l, h, (unsigned)k);
            cli_json_named(p->to, "ov_to_%u_%u_%u", l, h, (unsigned)k);
            cli_json_named(p->score, "ov_score_%u_%u_%u", l, h, (unsigned)k);
        }
        if (f->frozen) {
            cli_json_named(f->frozen[i].text - f->whole.text, "frozen_text_%u_%u", l, h);
            cli_json_named(f->frozen[i].again - f->whole.again, "frozen_copies_%u_%u", l, h);
            cli_json_named(f->pruned[i].text - f->whole.text, "pruned_text_%u_%u", l, h);
            cli_json_named(f->pruned[i].again - f->whole.again, "pruned_copies_%u_%u", l, h);
        }
        for (j = 0; j < f->n && f->n <= 64; j++) for (k = 0; k < COMPOSE_KINDS && f->all[j].layer < f->all[i].layer; k++)
            cli_json_named(f->compose[(j * f->n + i) * COMPOSE_KINDS + k], "%s_composition_%u_%u_%u_%u", kinds[k],
                           (unsigned)f->all[j].layer, (unsigned)f->all[j].index, l, h);
    }
}

int main(int argc, char **argv)
{
    corpus_tokens data;
    gpts_model model;
    bench b;
    findings f;
    char path[CLI_PATH];
    int have_text = 1;
    size_t i, room;
    int32_t start;
    cli_begin(argc, argv, "circuits", "Looks inside the heads of a model: circuits, composition, induction, and what freezing one costs.",
              CLI_DATA | CLI_MODEL | CLI_GPU, flags,
              "layers heads width vocabulary position composition_baseline composition_deviation loss_text\n"
              "  loss_first_copy loss_later_copies induction_pair_found induction_head previous_head (layer * heads + index) pair_q_composition ...\n"
              "  pair_matching\n"
              "  frozen_previous_text frozen_previous_copies frozen_induction_text frozen_induction_copies (loss added);\n"
              "  of head <l>_<h>: copying_ matching_ prefix_ previous_ copies_ frozen_text_ frozen_copies_ pruned_text_\n"
              "  pruned_copies_, its k-th pairs qk_from_<l>_<h>_<k> qk_to_ qk_score_ ov_from_ ov_to_ ov_score_, and\n"
              "  q_composition_<l>_<h>_<later l>_<later h>, k_, v_ (models of up to 64 heads)");
    if (width % heads) cli_fail("--heads %lld does not divide --width %lld", (long long)heads, (long long)width);
    cli_make_out();
    cli_results();
    memset(&data, 0, sizeof data); memset(&model, 0, sizeof model); memset(&f, 0, sizeof f);
    if (cli.model) {
        load_model(&model);
        have_text = cli.data || cli.tokenizer || cli_exists(cli_path(path, "train.bin"));
        if (have_text) corpus_open(&data);
        if (have_text && data.tokenizer.vocab_size > model.config.vocab_size) {
            if (cli.data || cli.tokenizer) corpus_match(&data, &model, cli.model);
            have_text = 0;                                         /* what OUT holds is for another model */
            corpus_close(&data);
        }
    } else corpus_open(&data);
    room = (size_t)(cli.model ? model.config.n_positions : context);
    for (i = 0; cli.model && i < (size_t)model.config.n_layer; i++)       /* exact static patterns end at S */
        if (model.layers[i].heads.n && model.layers[i].heads.S < room) room = model.layers[i].heads.S;
    start = start_token >= 0 ? (int32_t)start_token : have_text && data.tokenizer.end_of_text >= 0 ? data.tokenizer.end_of_text : 0;
    if (!cli.model) corpus_need(&data, context);
    if (start >= (cli.model ? model.config.vocab_size : data.tokenizer.vocab_size))
        cli_fail("--start-token %ld is not in the vocabulary", (long)start);
    bench_make(&b, (size_t)(cli.model ? model.config.vocab_size : data.tokenizer.vocab_size), room, have_text ? &data : NULL, start);
    if (!cli.model) {
        train(&model, &data, &b, &f.curve);
        CLI_TRY(gpts_model_save(&model, cli_path(path, "circuits.safetensors")), model.error);
        if (cli.gpu) {                                             /* back, to be looked into */
            gpts_model_free(&model);
            CLI_TRY(gpts_model_load(&model, path, &cli.hooks), model.error);
        }
    }
    cli_say("model  %lld layers, %lld heads, width %lld, vocabulary %lld, positions %s\n", (long long)model.config.n_layer,
            (long long)model.config.n_head,
            (long long)model.config.n_embd, (long long)model.config.vocab_size, positions[model.config.position]);
    f.m = &model; f.words = &data.tokenizer; f.b = &b;
    analyse(&f);
    if (!no_freeze && f.n && f.n <= 64 && is_plain(&model)) freeze_each(&f, &data);
    say_results(&f);
    draw(&f);
    write_json(&f);
    if (save) {
        gpts_mapping mapping;
        memset(&mapping, 0, sizeof mapping);
        mapping.map = map; mapping.config = config_file; mapping.n_head = n_head; mapping.unscaled_scores = unscaled;
        CLI_TRY(gpts_model_save_mapped(&model, save, cli.model && (map || model.config.n_inner == 0) ? cli.model : NULL, &mapping), model.error);
        gpts_release(&cli.hooks, mapping.table);
    }
    for (i = 0; i < f.n; i++) free(f.does[i].picture);
    heads_free(f.all, f.n);
    free(f.copying); free(f.matching); free(f.compose); free(f.qk); free(f.ov); free(f.does); free(f.frozen); free(f.pruned);
    free(f.curve.x); free(f.curve.loss); free(f.curve.again);
    bench_free(&b);
    gpts_model_free(&model);
    corpus_close(&data);
    return cli_end();
}

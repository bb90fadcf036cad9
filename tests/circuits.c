/* circuits.c - what examples/circuits.c reads in heads, against plain computations in double:
   the whole [V,V] and [C,C] matrices, and a model whose induction pair is known.           */
#define main circuits_main
#include "../examples/circuits.c"
#undef main
#include "test.h"

/* ---- eigenvalues -------------------------------------------------------------------------- */

/* numpy.linalg.eigvals (NumPy 2.4.6) of 50 matrices made by element(): for each how many values with
   imaginary part >= 0, then real and imaginary parts, ascending. */
static const double eigen_facts[] = {
    2, -0.4926419379213, 0, 0.01598802092719, 0, 3, -0.7110488501777, 0, 0.08051782268118, 0,
    0.1333399594786, 0, 2, -0.3996430854814, 0.2618266643904, 0.3564695057494, 0.2642145724725, 4,
    -0.7841898604492, 0, -0.0224860699864, 0, 0.05797555987449, 0.4858137949706, 0.6292688195675, 0,
    4, -0.6892817310708, 0.1162909432683, -0.3025035410552, 0, 0.3728074988063, 0.2162287164155,
    0.4176134169014, 0, 5, -0.6717500658066, 0, -0.2973320286854, 0.3679677007455, 0.07444461605455,
    0.7410742977235, 0.3193841542639, 0, 0.4116901013022, 0, 7, -1.010840066816, 0, -0.7159879003314,
    0, -0.3004505861701, 0.5088590897177, -0.2902619567979, 0, -0.07906323022162, 0, 0.2238949187932,
    0, 0.6257231130555, 0, 6, -0.4967807220534, 0.1968728082822, -0.4689944086694, 0.5605808404164,
    -0.3621978119756, 0, 0.216352983887, 0, 0.2383139052494, 0.7594054645362, 0.9508316984782, 0, 7,
    -0.5741494900431, 0, -0.307822406576, 0, -0.2720482989091, 0.5582569455814, 0.1261473600385,
    0.5840750930132, 0.4804549980535, 0, 0.5234246934927, 0.7321689460284, 0.8295212492814, 0, 7,
    -0.8436779264443, 0, -0.5162245920379, 0.2118063522392, -0.274797100514, 0.04556178819711,
    0.04901158530943, 0.702794683401, 0.412525214803, 0.07915606033442, 0.4479535876219, 0,
    0.9472283519759, 0, 7, -0.9316182279401, 0.1382944667144, -0.4773141323412, 0.3722671795351,
    -0.1875500421087, 0, -0.1304971308446, 0.5964721893833, 0.1484993440358, 0, 0.2142648361355,
    1.022291108908, 0.675198016235, 0.4181822431212, 8, -1.055861950126, 0, -0.6663441719942,
    0.9105586162777, -0.599419975627, 0.4001847702466, -0.1922372949118, 0.8110146153748,
    0.2185051216223, 0.1957715614571, 0.4789024903708, 0, 0.6453221843132, 0.7372184261717,
    0.7457334116096, 0, 1, 0.3358099268517, 0.4349280145799, 2, -0.7241073430793, 0, 0.4616301904105,
    0.07547879824547, 3, -0.6611261444425, 0, -0.2622949126547, 0.3573733508559, 0.5335454178111, 0,
    3, -0.8454825094469, 0, -0.501935666197, 0.3138871678509, 0.1055652853612, 0.2795750323255, 5,
    -0.6260977494527, 0, -0.363511728684, 0, -0.01448230516782, 0, 0.4771863938605, 0.2763960413727,
    0.5355002430783, 0, 4, -0.7682781511418, 0.4696903837625, 0.1133088583429, 0.07862455181066,
    0.1454072844618, 0.4643927546607, 0.7469669061674, 0, 7, -1.039853158359, 0, -0.6329508131142, 0,
    -0.3154910937063, 0, -0.05872322648868, 0.4750047004827, 0.1987322592151, 0, 0.5197089945154, 0,
    1.045990490225, 0, 7, -0.8904027039128, 0, -0.4271259986055, 0, -0.2811615163132, 0,
    -0.2487192855094, 0.5198140044329, 0.4790262892604, 0, 0.5377005894275, 0, 0.8534556051813,
    0.4140645483496, 8, -0.8708667920975, 0, -0.7688581760593, 0, -0.4508306488376, 0.6448368986114,
    -0.08382335786744, 0, 0.04049598119362, 0.4993755028287, 0.1946889543804, 0, 0.3238276765877, 0,
    0.566257060692, 0, 7, -0.862820162165, 0.4452342398449, -0.3888986683138, 0.7777497122072,
    -0.3660907017259, 0.4699920846182, -0.3487618967634, 0, 0.1745958300227, 0, 0.2989516530311,
    0.4520223657639, 0.7174496019655, 0, 7, -0.9609956754849, 0.0688391495194, -0.323995063695,
    1.173316809719, -0.2975557159849, 0.3438589506549, 0.02208412096422, 0, 0.1537752996054,
    0.7790901224996, 0.73193272233, 0.4916854009644, 0.7665170753212, 0, 9, -1.382520949428, 0,
    -0.626694469617, 0.581405519217, -0.5622672527231, 0, 0.06897536438938, 0, 0.09111766036926,
    0.2644409735471, 0.294825985239, 0, 0.3064081965731, 0.6267495495798, 0.7262403543439,
    0.3574291322682, 0.8222982125637, 0, 2, 0.1123777517997, 0, 0.4563066114723, 0, 2,
    -0.4821841764134, 0, 0.3785885727667, 0.1967319803653, 4, -0.8809504852944, 0, -0.4727814408871,
    0, -0.09055222087692, 0, 0.4484606640757, 0, 3, -0.4006238546188, 0.127593959091,
    0.08749117440433, 0, 0.3570946926967, 0.449902351107, 4, -0.5962925337545, 0.3217310817428,
    -0.3187930475312, 0, 0.06191976296213, 0.2247693548416, 0.8081721552161, 0, 4, -0.8628292711325,
    0, -0.08711178240342, 0.6258448220867, 0.02675719161037, 0.2966604587428, 0.7383272852498,
    0.2903349351695, 6, -0.6075762195411, 0, -0.5154027482192, 0.2200635063542, -0.2018446358297,
    0.5328086883114, 0.1934909405026, 0, 0.4321684472049, 0, 0.8272853857791, 0, 5, -0.2795147643627,
    0.1722967449646, -0.1068976037244, 0.6044080102994, 0.1227304188705, 0.1952573066968,
    0.5496554027783, 0, 0.5660321421291, 0.8584014067104, 7, -0.5841345261168, 0, -0.4458997460748,
    0.3071291305223, -0.07118702561135, 0.3884745178384, 0.1302013298671, 0.6827024442405,
    0.2179355124021, 0, 0.6712827045178, 0, 0.9395799330157, 0, 6, -0.8679534310868,
    0.06034728716243, -0.3466228773842, 0.6874510219545, -0.1013823902926, 0.305927197702,
    0.1076438478557, 0.992312357013, 0.3244623387401, 0.5051698248613, 0.574294852907, 0, 7,
    -0.385433083549, 0.2808091246316, -0.1769420771996, 0, -0.09657326837185, 0.238344821656,
    -0.0951679964964, 0.7528692392307, 0.3230482968009, 0.4673948060555, 0.465155721912,
    0.1646896252013, 0.8714607807453, 0, 7, -0.8425880467149, 0.5868382510349, -0.6626045285118, 0,
    -0.3616061669168, 0.5755466738586, 0.1685738224301, 0.9538829037153, 0.2719775209583,
    0.2094979418252, 0.3682885283216, 0.5006698834361, 0.934876721924, 0.252914297502, 2,
    -0.4396238820427, 0, 0.5305655728826, 0, 2, 0.05463563161766, 0.2895325034547, 0.5641250268118,
    0, 3, -0.5830115260024, 0, 0.06016687656738, 0.2503920745222, 0.5696582386859, 0, 4,
    -0.5614185661875, 0, -0.1914157017738, 0, 0.07654544268351, 0.2109302282484, 0.9730556198011, 0,
    4, -0.1201349206839, 0.2209089015106, -0.03919776597934, 0.7123717146855, 0.4847815783513, 0,
    0.7330778700027, 0, 4, -0.6508682763638, 0, -0.2745844172408, 0.7934417096964, -0.1730361695439,
    0.2525685228761, 0.318714284047, 0.1107283539038, 5, -0.5189332711594, 0.3836148056743,
    -0.1017284635661, 0.3531906487598, 0.08825166530277, 0, 0.3607935445587, 0.6188475132423,
    0.9644136365458, 0, 5, -0.8864523606123, 0.2176006708719, -0.227368451437, 0.09099265728949,
    0.1377460579573, 0.4436848567694, 0.3861575712881, 0.9856182849184, 0.4269147016998, 0, 6,
    -0.4069665073388, 0.5008755795718, -0.3153483147238, 0, -0.08406838009792, 0.5903981400141,
    0.05538394698273, 0.8719686663489, 0.5343820667629, 0, 0.7059747876733, 0.3886244462707, 7,
    -0.773290628573, 0, -0.576557464439, 0.74940602345, -0.5192689197662, 0.3676493761697,
    -0.2323047361981, 0, -0.002525694616073, 0.8226971498051, 0.676753955443, 0.66849180679,
    0.6874192384142, 0, 7, -0.8860929695577, 0.0515384962871, -0.7182374750037, 0.5718863688587,
    -0.1940848754488, 0.3641193023765, 0.1901219447226, 0.9051971619508, 0.3283062897381, 0,
    0.349239989922, 0.5950892777368, 1.117143537996, 0, 8, -1.101556443103, 0, -0.4373109829374, 0,
    -0.3921259304735, 0.9978172338096, -0.2504763714256, 0.224706558961, -0.01928914589079,
    0.4342794938907, 0.4938126327929, 0.2397388341206, 0.70529299767, 0, 0.91008315023,
    0.3863151756429, 2, -0.3807329041098, 0, 0.1645426283736, 0, 3, -0.5373100480039, 0,
    -0.1218406064355, 0, 0.4503981026249, 0
};
static double element(uint32_t m, uint32_t i, uint32_t j)
{
    uint32_t z = (m * 73856093u) ^ (i * 19349663u) ^ (j * 83492791u);
    z = (z ^ (z >> 13)) * 1274126177u;
    z ^= z >> 16;
    return z / 4294967296.0 - 0.5;
}
static int by_value(const void *a, const void *b)
{
    const complex_number *x = (const complex_number *)a, *y = (const complex_number *)b;
    return fabs(x->re - y->re) > 1e-9 ? (x->re > y->re) - (x->re < y->re) : (x->im > y->im) - (x->im < y->im);
}
static void eigenvalues_of_50_matrices_are_numpys(void)
{
    const double *fact = eigen_facts;
    uint32_t m, i, j;
    for (m = 0; m < 50; m++) {
        uint32_t n = 2 + m % 12;
        double a[13 * 13];
        complex_number value[13];
        size_t count = (size_t)*fact++, k, kept = 0;
        for (i = 0; i < n; i++) for (j = 0; j < n; j++) a[i * n + j] = element(m, i, j);
        t_ok(eigenvalues(a, n, value));
        for (k = 0; k < n; k++) if (value[k].im > -1e-9) value[kept++] = value[k];
        t_equal(kept, count);
        qsort(value, kept, sizeof *value, by_value);
        for (k = 0; k < count; k++, fact += 2) { t_close(value[k].re, fact[0], 1e-10); t_close(fabs(value[k].im), fact[1], 1e-10); }
    }
    t_equal(fact - eigen_facts, sizeof eigen_facts / sizeof *eigen_facts);
}

static void eigenvalues_of_matrices_that_turn_or_do_nothing(void)
{
    enum { N = 7 };
    double a[N * N];
    complex_number value[N];
    size_t i, k, n;
    for (n = 2; n <= N; n++) {                                    /* a cycle: the n-th roots of one, all of size 1 */
        memset(a, 0, sizeof a);
        for (i = 0; i < n; i++) a[i * n + (i + 1) % n] = 1;
        t_ok(eigenvalues(a, n, value));
        for (i = 0; i < n; i++) {
            double nearest = 9;
            for (k = 0; k < n; k++) {
                double angle = 6.283185307179586 * (double)i / (double)n, d = hypot(value[k].re - cos(angle), value[k].im - sin(angle));
                if (d < nearest) nearest = d;
            }
            t_ok(nearest < 1e-12);
        }
    }
    memset(a, 0, sizeof a);
    t_ok(eigenvalues(a, N, value));
    for (i = 0; i < N; i++) t_close(c_abs(value[i]), 0, 0);
    t_close(eigenvalue_score(a, N), 0, 0);
    for (i = 0; i < N; i++) a[i * N + i] = 1;                     /* one chain of the value 1: as good as 1e-16^(1/7) */
    for (i = 0; i + 1 < N; i++) a[i * N + i + 1] = 1;
    t_ok(eigenvalues(a, N, value));
    for (i = 0; i < N; i++) t_close(value[i].re, 1, 0.02);
    a[0] = -3;
    t_ok(eigenvalues(a, 1, value));
    t_close(value[0].re, -3, 0);
}

static void eigenvalues_of_a_large_matrix_have_its_traces(void)
{
    enum { N = 96 };
    double *a = CLI_NEW(double, N * N), *b = CLI_NEW(double, N * N), trace = 0, second = 0, sum = 0, squares = 0;
    complex_number *value = CLI_NEW(complex_number, N);
    size_t i;
    for (i = 0; i < N * N; i++) a[i] = element(77, (uint32_t)(i / N), (uint32_t)(i % N));
    product(b, a, a, N, N, N);
    for (i = 0; i < N; i++) { trace += a[i * N + i]; second += b[i * N + i]; }
    t_ok(eigenvalues(a, N, value));
    for (i = 0; i < N; i++) { sum += value[i].re; squares += value[i].re * value[i].re - value[i].im * value[i].im; }
    t_close(sum, trace, 1e-10);
    t_close(squares, second, 1e-9);
    free(a); free(b); free(value);
}

/* ---- circuits, densely ----------------------------------------------------------------------- */

enum { V = 14, C = 8, H = 2, L = 2, D = C / H };

static gpts_model make(gpts_position where, gpts_norm norm)
{
    gpts_config config = gpts_config_attention_only(L, H, C);
    gpts_model m;
    gpts_rng rng;
    size_t k, i;
    memset(&m, 0, sizeof m);
    config.vocab_size = V; config.n_positions = 40; config.position = where; config.norm = norm; config.bias = norm == GPTS_NORM_LAYER;
    t_status(gpts_model_init(&m, &config, 3, NULL), GPTS_OK);
    rng.seed = 5; rng.counter = 0;
    for (k = 0; k < m.n_tensors; k++) for (i = 0; i < m.tensors[k].size; i++) m.tensors[k].data[i] = (gpts_real)(float)(0.5 * gpts_rng_normal(&rng));
    return m;
}
/* one part (0 q, 1 k, 2 v) of a head as it acts on a row that has been normalised, by acting on it */
static void act(const gpts_model *m, size_t l, size_t h, int part, const double *row, double out[D])
{
    const gpts_tensor *w = layer_tensor(m, l, "attn.c_attn.weight"), *gain = layer_tensor(m, l, "ln_1.weight");
    double mean = 0;
    size_t c, d;
    for (c = 0; c < C; c++) mean += row[c] / C;
    for (d = 0; d < D; d++) {
        out[d] = 0;
        for (c = 0; c < C; c++) out[d] += (gain ? (row[c] - mean) * (double)gain->data[c] : row[c]) * (double)w->data[c * 3 * C + (size_t)part * C + h * D + d];
    }
}
static void dense_rows(const gpts_model *m, double e[V][C], double u[V][C])
{
    double *a = embedding_of(m), *b = unembedding_of(m);
    memcpy(e, a, sizeof(double) * V * C); memcpy(u, b, sizeof(double) * V * C);
    free(a); free(b);
}
static void dense_out(const gpts_model *m, size_t l, size_t h, const double v[D], double out[C])
{
    const gpts_tensor *w = layer_tensor(m, l, "attn.c_proj.weight");
    size_t c, d;
    for (c = 0; c < C; c++) for (out[c] = 0, d = 0; d < D; d++) out[c] += v[d] * (double)w->data[(h * D + d) * C + c];
}
static double trace_share(const double *a)                        /* of a [V,V]: trace / sum of |eigenvalues| */
{
    double *copy = CLI_NEW(double, V * V), trace = 0, all = 0;
    complex_number value[V];
    size_t i;
    memcpy(copy, a, V * V * sizeof *copy);
    for (i = 0; i < V; i++) trace += a[i * V + i];
    t_ok(eigenvalues(copy, V, value));
    for (i = 0; i < V; i++) all += c_abs(value[i]);
    free(copy);
    return trace / all;
}

static void embeddings_are_what_the_layers_see(void)
{
    gpts_model m = make(GPTS_POSITION_NONE, GPTS_NORM_LAYER);
    int32_t token = 9;
    gpts_real x[C], y[C];
    double e[V][C], u[V][C], q[D], row[C];
    gpts_batch one;
    size_t c, d;
    head *all = heads_of(&m);
    memset(&one, 0, sizeof one);
    one.tokens = &token; one.B = one.T = 1;
    t_status(gpts_model_record(&m, &one, 0, x, y), GPTS_OK);      /* x: normalised, with gain and bias */
    dense_rows(&m, e, u);
    for (c = 0; c < C; c++) row[c] = e[token][c];
    act(&m, 0, 1, 0, row, q);
    for (d = 0; d < D; d++) {
        const gpts_tensor *w = layer_tensor(&m, 0, "attn.c_attn.weight"), *b = layer_tensor(&m, 0, "ln_1.bias");
        double live = 0, read = 0;
        for (c = 0; c < C; c++) live += ((double)x[c] - (double)b->data[c]) * (double)w->data[c * 3 * C + H / 2 * D + d];
        for (c = 0; c < C; c++) read += e[token][c] * all[1].q[c * D + d];
        t_close(read, live, 1e-5);
        t_close(read, q[d], 1e-10);
    }
    heads_free(all, L * H);
    gpts_model_free(&m);
}

static void eigenvalue_scores_are_those_of_the_whole_token_matrices(void)
{
    int norm;
    for (norm = 0; norm < 2; norm++) {
        gpts_model m = make(GPTS_POSITION_NONE, (gpts_norm)norm);
        double e[V][C], u[V][C], ov[V * V], qk[V * V], through[V * V], *ee = CLI_NEW(double, C * C), *ue = CLI_NEW(double, C * C);
        head *all = heads_of(&m);
        size_t i, a, b, c, d;
        dense_rows(&m, e, u);
        product_transposed(ee, e[0], e[0], V, C, C);
        product_transposed(ue, u[0], e[0], V, C, C);
        for (i = 0; i < L * H; i++) {
            for (a = 0; a < V; a++) for (b = 0; b < V; b++) {
                double v[D], q[D], k[D], out[C];
                act(&m, i / H, i % H, 2, e[a], v); dense_out(&m, i / H, i % H, v, out);
                for (ov[a * V + b] = 0, c = 0; c < C; c++) ov[a * V + b] += out[c] * u[b][c];
                act(&m, i / H, i % H, 0, e[a], q); act(&m, i / H, i % H, 1, e[b], k);
                for (qk[a * V + b] = 0, d = 0; d < D; d++) qk[a * V + b] += q[d] * k[d];
                if (i < H) continue;                              /* b's token, moved by head 0 of layer 0, is looked for */
                act(&m, 0, 0, 2, e[b], v); dense_out(&m, 0, 0, v, out); act(&m, i / H, i % H, 1, out, k);
                for (through[a * V + b] = 0, d = 0; d < D; d++) through[a * V + b] += q[d] * k[d];
            }
            t_close(copying_score(&all[i], ue), trace_share(ov), 1e-6);
            t_close(matching_score(&all[i], ee), trace_share(qk), 1e-6);
            if (i >= H) t_close(matching_through(&all[i], &all[0], ee), trace_share(through), 1e-6);
        }
        free(ee); free(ue);
        heads_free(all, L * H);
        gpts_model_free(&m);
    }
}

static void compositions_are_those_of_the_whole_matrices(void)
{
    int norm, kind;
    for (norm = 0; norm < 2; norm++) {
        gpts_model m = make(GPTS_POSITION_NONE, (gpts_norm)norm);
        head *all = heads_of(&m);
        size_t i, j, r, c, k;
        for (i = 0; i < H; i++) for (j = H; j < L * H; j++) for (kind = 0; kind < COMPOSE_KINDS; kind++) {
            double ov1[C][C], right[C][C], both[C][C], n1 = 0, n2 = 0, n = 0;
            for (r = 0; r < C; r++) {                             /* row r of each: what the unit vector r becomes */
                double unit[C] = {0}, v[D], w[D];
                unit[r] = 1;
                act(&m, 0, i, 2, unit, v); dense_out(&m, 0, i, v, ov1[r]);
                if (kind == COMPOSE_V) { act(&m, 1, j - H, 2, unit, v); dense_out(&m, 1, j - H, v, right[r]); continue; }
                act(&m, 1, j - H, kind == COMPOSE_Q ? 0 : 1, unit, v);
                for (c = 0; c < C; c++) {
                    double other[C] = {0};
                    other[c] = 1;
                    act(&m, 1, j - H, kind == COMPOSE_Q ? 1 : 0, other, w);
                    for (right[r][c] = 0, k = 0; k < D; k++) right[r][c] += v[k] * w[k];
                }
            }
            for (r = 0; r < C; r++) for (c = 0; c < C; c++) {
                for (both[r][c] = 0, k = 0; k < C; k++) both[r][c] += ov1[r][k] * right[k][c];
                n1 += ov1[r][c] * ov1[r][c]; n2 += right[r][c] * right[r][c]; n += both[r][c] * both[r][c];
            }
            t_close(composition(&all[i], &all[j], kind), sqrt(n / (n1 * n2)), 1e-10);
        }
        t_ok(!(composition(&all[0], &all[H], COMPOSE_Q) == composition(&all[0], &all[H], COMPOSE_K)));
        heads_free(all, L * H);
        gpts_model_free(&m);
    }
}

static void composition_of_random_factors_is_near_one_over_the_root_of_the_width(void)
{
    static const size_t sizes[4][2] = { { 48, 48 }, { 48, 12 }, { 48, 4 }, { 64, 16 } };
    double deviation, mean;
    size_t i;
    for (i = 0; i < 4; i++) {
        mean = composition_baseline(sizes[i][0], sizes[i][1], 3, 24, &deviation);
        t_close(mean * sqrt((double)sizes[i][0]), 1, 0.05);
        t_ok(deviation > 0 && deviation < 0.2 * mean);
    }
}

static void token_pairs_are_the_largest_of_the_whole_matrix(void)
{
    enum { N = 5 };
    gpts_model m = make(GPTS_POSITION_NONE, GPTS_NORM_NONE);
    static const int32_t ids[] = { 3, 1, 8, 0, 13, 6, 7, 2, 11 };
    enum { IDS = 9 };
    double e[V][C], u[V][C];
    head *all = heads_of(&m);
    pair qk[N], ov[N];
    size_t i, a, b, d, c, k;
    int part;
    dense_rows(&m, e, u);
    for (i = 0; i < L * H; i++) {
        head_pairs(&all[i], e[0], u[0], V, ids, IDS, qk, ov, N);
        for (part = 0; part < 2; part++) {
            const pair *got = part ? ov : qk;
            double best[IDS];
            int32_t to[IDS];
            for (a = 0; a < IDS; a++) {
                double row[IDS], mean = 0, v[D], w[D], out[C];
                for (b = 0; b < IDS; b++) {
                    row[b] = 0;
                    act(&m, i / H, i % H, part ? 2 : 0, e[ids[a]], v);
                    if (part) { dense_out(&m, i / H, i % H, v, out); for (c = 0; c < C; c++) row[b] += out[c] * u[ids[b]][c]; }
                    else { act(&m, i / H, i % H, 1, e[ids[b]], w); for (d = 0; d < D; d++) row[b] += v[d] * w[d]; }
                    mean += row[b] / IDS;
                }
                for (best[a] = -1e9, b = 0; b < IDS; b++) if (row[b] - mean > best[a]) { best[a] = row[b] - mean; to[a] = ids[b]; }
            }
            for (k = 0; k < N; k++) {
                size_t most = 0;
                for (a = 1; a < IDS; a++) if (best[a] > best[most]) most = a;
                t_close(got[k].score, best[most], 1e-10);
                t_equal(got[k].from, ids[most]);
                t_equal(got[k].to, to[most]);
                best[most] = -1e9;
            }
        }
    }
    heads_free(all, L * H);
    gpts_model_free(&m);
}

/* ---- attention and behaviour -------------------------------------------------------------------- */

static void patterns_explain_what_the_sublayer_adds(void)
{
    enum { T = 11 };
    int where, norm, fixed;
    for (where = 0; where < 3; where++) for (norm = 0; norm < 2; norm++) for (fixed = 0; fixed < 2; fixed++) {
        gpts_model m = make((gpts_position)where, (gpts_norm)norm);
        int32_t tokens[3 * T];
        gpts_real x[T * C], y[T * C];
        double w[T * T], sum[T][C];
        gpts_batch one;
        size_t l, s, i, j, c, d;
        for (i = 0; i < 3 * T; i++) tokens[i] = (int32_t)(i * i * 5 + i) % V;
        if (fixed) {
            gpts_calibration cal;
            gpts_freeze_options o = gpts_freeze_options_default();
            memset(&cal, 0, sizeof cal);
            t_status(gpts_calibrate(&cal, &m, tokens, 3, T), GPTS_OK);
            o.heads = 2; o.gate = -1;
            t_status(gpts_freeze(&m, NULL, &cal, &o, NULL), GPTS_OK);
            gpts_calibration_free(&cal);
        }
        memset(&one, 0, sizeof one);
        one.tokens = tokens; one.B = 1; one.T = T;
        for (l = 0; l < L; l++) {
            const gpts_heads *h = &m.layers[l].heads;
            const gpts_tensor *attn = layer_tensor(&m, l, "attn.c_attn.weight"), *ab = layer_tensor(&m, l, "attn.c_attn.bias");
            const gpts_tensor *proj = layer_tensor(&m, l, "attn.c_proj.weight"), *pb = layer_tensor(&m, l, "attn.c_proj.bias");
            t_status(gpts_model_record(&m, &one, l, x, y), GPTS_OK);
            for (i = 0; i < T; i++) for (c = 0; c < C; c++) sum[i][c] = pb ? (double)pb->data[c] : 0;
            for (s = 0; s < h->K; s++) {
                pattern_of(&m, l, s, x, T, w);
                for (i = 0; i < T; i++) for (j = 0; j < T; j++) {
                    double v[D];
                    if (j > i) { t_close(w[i * T + j], 0, 0); continue; }
                    for (d = 0; d < D; d++) {
                        size_t column = (2 * h->U + s) * D + d;
                        v[d] = ab ? (double)ab->data[column] : 0;
                        for (c = 0; c < C; c++) v[d] += (double)x[j * C + c] * (double)attn->data[c * attn->columns + column];
                    }
                    for (c = 0; c < C; c++) for (d = 0; d < D; d++) sum[i][c] += w[i * T + j] * v[d] * (double)proj->data[(s * D + d) * C + c];
                }
            }
            for (i = 0; i < T; i++) for (c = 0; c < C; c++) t_close(sum[i][c], y[i * C + c], 2e-4);
        }
        gpts_model_free(&m);
    }
}

static void behaviour_scores_by_their_definitions(void)
{
    enum { P = 5, R = 4, T = 1 + P * R };
    double w[T * T], brute = 0, v[T * D], uo[V * D], share = 0;
    int32_t said[T];
    size_t i, j, k, d, rows = 0;
    gpts_rng rng;
    rng.seed = 8; rng.counter = 0;
    for (said[0] = 13, i = 1; i < T; i++) said[i] = (int32_t)((i - 1) % P * 2 + 1);
    memset(w, 0, sizeof w);
    for (i = 0; i < T; i++) w[i * T + (i > P ? i - P + 1 : 0)] = 1;      /* an induction head */
    t_close(prefix_score(w, T, P), 1, 0);
    memset(w, 0, sizeof w);
    for (i = 0; i < T; i++) w[i * T + (i ? i - 1 : 0)] = 1;              /* a previous-token head */
    t_close(prefix_score(w, T, P), 0, 0);
    t_close(previous_score(w, T), 1, 0);
    for (i = 0; i < T; i++) {                                            /* any pattern, by the definition */
        double all = 0;
        for (j = 0; j <= i; j++) all += w[i * T + j] = gpts_rng_uniform(&rng);
        for (j = 0; j <= i; j++) w[i * T + j] /= all;
        for (j = 0; j + 1 <= i; j++) if (i > P && said[j] == said[i]) brute += w[i * T + j + 1];      /* j + 1 follows the same token */
    }
    t_close(prefix_score(w, T, P), brute / (T - 1 - P), 1e-12);
    for (i = 0; i < T * D; i++) v[i] = gpts_rng_normal(&rng);
    for (i = 0; i < V * D; i++) uo[i] = gpts_rng_normal(&rng);
    for (i = 1; i < T; i++) {                                            /* the push on every logit, in full */
        double logit[V], mean = 0, all = 0, hit = 0;
        for (k = 0; k < V; k++) {
            for (logit[k] = 0, j = 0; j <= i; j++) for (d = 0; d < D; d++) logit[k] += w[i * T + j] * v[j * D + d] * uo[k * D + d];
            mean += logit[k] / V;
        }
        for (k = 0; k < V; k++) logit[k] = logit[k] > mean ? logit[k] - mean : 0;
        for (j = 1; j < T; j++) all += logit[said[j]];
        for (j = 1; j <= i; j++) hit += w[i * T + j] * logit[said[j]];
        if (all > 0) { share += hit / all; rows++; }
    }
    t_close(copying_behaviour(w, said, T, v, uo, V, D), 4 * share / (double)rows - 1, 1e-10);
}

static void random_tokens_are_said_again_and_targets_know_the_copies(void)
{
    bench b;
    size_t s, i, k;
    examples = 3;
    bench_make(&b, 200, 128, NULL, 7);
    t_equal(b.period, SAID);
    t_equal(b.T, 101);
    for (s = 0; s < b.n; s++) {
        const int32_t *row = b.random + s * b.T;
        t_equal(row[0], 7);
        for (i = 1; i < b.T; i++) {
            t_ok(row[i] != 7 && row[i] >= 0 && row[i] < 200);
            t_equal(row[i], row[1 + (i - 1) % SAID]);
            for (k = 1; k < i && i <= SAID; k++) t_ok(row[k] != row[i]);
            t_equal(b.random_targets[s * b.T + i], i > SAID && i + 1 < b.T ? row[i + 1] : -1);
            t_equal(b.first_targets[s * b.T + i], i < SAID ? row[i + 1] : -1);
        }
        t_bits(b.once + s * (SAID + 1), row, (SAID + 1) * sizeof *row);
    }
    bench_free(&b);
}

/* ---- the lesson, in a model made by hand ----------------------------------------------------------- */

/* The stream is [ token | place | token before ].  Layer 0 looks one place back and writes that token into
   the third part; layer 1 looks for its own token there, and raises the token that it finds.              */
static void the_induction_pair_of_a_made_model_is_found_and_only_one_of_it_can_be_frozen(void)
{
    enum { W = 26, PLACES = 49, WIDTH = 2 * W + PLACES };
    gpts_config config = gpts_config_attention_only(2, 1, WIDTH);
    gpts_model m;
    bench b;
    findings f;
    gpts_real *wte, *wpe, *head_w, *attn, *proj;
    double sharp = 40 * sqrt(WIDTH);
    size_t i, w = 3 * WIDTH;
    memset(&m, 0, sizeof m); memset(&f, 0, sizeof f);
    config.vocab_size = W; config.n_positions = PLACES; config.position = GPTS_POSITION_LEARNED;
    t_status(gpts_model_init(&m, &config, 1, NULL), GPTS_OK);
    for (i = 0; i < m.n_tensors; i++) memset(m.tensors[i].data, 0, m.tensors[i].size * sizeof(gpts_real));
    wte = gpts_model_tensor(&m, "wte.weight")->data; wpe = gpts_model_tensor(&m, "wpe.weight")->data; head_w = gpts_model_tensor(&m, "lm_head.weight")->data;
    for (i = 0; i < W; i++) wte[i * WIDTH + i] = head_w[i * WIDTH + i] = 1;
    for (i = 0; i < PLACES; i++) wpe[i * WIDTH + W + i] = 1;
    attn = layer_tensor(&m, 0, "attn.c_attn.weight")->data; proj = layer_tensor(&m, 0, "attn.c_proj.weight")->data;
    for (i = 0; i < PLACES; i++) { attn[(W + i) * w + (i ? i - 1 : 0)] = (gpts_real)sharp; attn[(W + i) * w + WIDTH + i] = 1; }
    for (i = 0; i < W; i++) { attn[i * w + 2 * WIDTH + i] = 1; proj[i * WIDTH + W + PLACES + i] = 1; }
    attn = layer_tensor(&m, 1, "attn.c_attn.weight")->data; proj = layer_tensor(&m, 1, "attn.c_proj.weight")->data;
    for (i = 0; i < W; i++) { attn[i * w + i] = (gpts_real)sharp; attn[(W + PLACES + i) * w + WIDTH + i] = 1; attn[i * w + 2 * WIDTH + i] = 1; proj[i * WIDTH + i] = 12; }

    cli.quiet = 1; examples = 4; top = 2;
    bench_make(&b, W, PLACES, NULL, 0);
    t_equal(b.period, 12);
    f.m = &m; f.b = &b;
    analyse(&f);
    t_ok(f.pair_found && f.is_pair);
    t_equal(f.previous, 0);
    t_equal(f.induction, 1);
    t_ok(f.does[0].previous > 0.99 && f.does[0].prefix < 0.05);
    t_ok(f.does[1].prefix > 0.9 && f.does[1].previous < 0.1);
    t_close(f.copying[1], 1, 1e-9);
    t_close(f.through, 1, 1e-9);
    t_ok(excess(&f, 0, 1, COMPOSE_K) > 0.05 && excess(&f, 0, 1, COMPOSE_Q) < 0);
    freeze_each(&f, NULL);
    t_ok(f.whole.again < 0.3);
    t_close(f.frozen[0].again, f.whole.again, 0.05);              /* where it looks does not depend on what is there */
    t_ok(f.frozen[1].again > f.whole.again + 2);                  /* where this one looks does */
    t_ok(f.pruned[0].again > f.whole.again + 2);                  /* and the first was needed */
    for (i = 0; i < f.n; i++) free(f.does[i].picture);
    heads_free(f.all, f.n);
    free(f.copying); free(f.matching); free(f.compose); free(f.qk); free(f.ov); free(f.does); free(f.frozen); free(f.pruned);
    bench_free(&b);
    gpts_model_free(&m);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(eigenvalues_of_50_matrices_are_numpys);
    T(eigenvalues_of_matrices_that_turn_or_do_nothing);
    T(eigenvalues_of_a_large_matrix_have_its_traces);
    T(embeddings_are_what_the_layers_see);
    T(eigenvalue_scores_are_those_of_the_whole_token_matrices);
    T(compositions_are_those_of_the_whole_matrices);
    T(composition_of_random_factors_is_near_one_over_the_root_of_the_width);
    T(token_pairs_are_the_largest_of_the_whole_matrix);
    T(patterns_explain_what_the_sublayer_adds);
    T(behaviour_scores_by_their_definitions);
    T(random_tokens_are_said_again_and_targets_know_the_copies);
    T(the_induction_pair_of_a_made_model_is_found_and_only_one_of_it_can_be_frozen);
    return t_end();
}

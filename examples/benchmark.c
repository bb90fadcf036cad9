/* benchmark.c - how fast: an ordinary model beside models with static parts

     ordinary  attention in every layer
     hybrid    per-token MLPs of inner width h in --layers-replaced instead of attention
     static    a --share of all heads with fixed patterns, in linear form where they fit
   at several context lengths T, with a small and a large vocabulary:
     prefill   reading T tokens at once.  Without a cache, every new token costs this much.
     decode    one more token behind T others, with a cache.
   The models have random weights: speed does not depend on what they know.  The fixed patterns
   are those of a head that looks back with a weight of 1 / distance and at the first token.

   Every gain stands beside its bound: how many times fewer floating-point operations, and how
   many times fewer bytes (weights and cached keys, values and states, each read once), the model
   needs.  Where the work is arithmetic (prefill), the first limits the gain; where it is reading
   (decode of a model that is larger than the processor's cache), the second.

   The models run in turns, A B C A B C, --rounds times, each turn at least --turn-ms long; shown
   are medians, and the median of the ratios within a round.                               */
#include "cli.h"
#include "plot.h"

enum { ORDINARY, HYBRID, STATIC, MODELS, MAX_T = 16 };
static const char *const names[MODELS] = { "ordinary", "hybrid", "static" };

static int64_t layers = 4, heads = 4, width = 128, hidden = 0, rounds = 7, decode_tokens = 8;
static double turn_ms = 15, share = 0.5;
static const char *contexts = "64,128,256,512,1024", *vocabularies = "512,50257", *layers_replaced = NULL;

static const cli_flag flags[] = {
    CLI_INT("layers", layers, 1, 1000, "layers"),
    CLI_INT("heads", heads, 1, 1024, "heads a layer; divides the width"),
    CLI_INT("width", width, 1, 65536, "channels"),
    CLI_INT("hidden", hidden, 0, 1048576, "inner width h of the approximators; 0: half the width"),
    CLI_TEXT("layers-replaced", layers_replaced, "layers from 0, as 2,3 (default: the second half)"),
    CLI_REAL("share", share, 0, 1, "part of all heads that is static"),
    CLI_TEXT("contexts", contexts, "context lengths"),
    CLI_TEXT("vocabularies", vocabularies, "sizes of the vocabulary"),
    CLI_INT("decode-tokens", decode_tokens, 1, 10000, "tokens decoded at the end of the context, per measurement"),
    CLI_INT("rounds", rounds, 1, 10000, "turns of each model"),
    CLI_REAL("turn-ms", turn_ms, 0, 1e6, "shortest turn in milliseconds"),
    CLI_END };

static int64_t replaced[CLI_LIST];
static size_t n_replaced;

/* ---- what the work should cost ------------------------------------------------------------ */

typedef struct cost { double flops, bytes; } cost;

static gpts_freeze_report frozen;            /* W and R of every static head               */

/* One token behind `past` others: 2 operations for each weight; for a live head 2 per channel
   for each key and each value, for a static one 2 for each near value and 4 for each decaying
   term; each weight, cached number and state is read once. */
static cost token_cost(int which, double past, double V)
{
    double C = (double)width, D = C / (double)heads, L = (double)layers, h = (double)hidden;
    double live = L * (double)heads, mixed = 0, kept = 0, weights = L * 8 * C * C + V * C;
    size_t i;
    cost c;
    if (which == HYBRID) {
        live -= (double)n_replaced * (double)heads;
        weights += (double)n_replaced * 2 * C * h;
    }
    for (i = 0; i < frozen.n && which == STATIC; i++) {
        double W = frozen.heads[i].R ? (double)frozen.heads[i].W : past, R = (double)frozen.heads[i].R;
        if (W > past) W = past;
        live--;
        weights += 2 * C * D;
        mixed += D * (2 * W + 4 * R);
        kept += D * (W + R);
    }
    weights += live * 4 * C * D;
    c.flops = 2 * weights + live * 4 * D * past + mixed;
    c.bytes = (double)sizeof(gpts_real) * (weights + live * 2 * D * past + kept);
    return c;
}
/* T tokens at once; the output matrix is used for the last one only. */
static cost prefill_cost(int which, double T, double V)
{
    cost c = token_cost(which, T / 2, 0), last = token_cost(which, T, V);
    c.flops = c.flops * T + 2 * V * (double)width;
    c.bytes = last.bytes;
    return c;
}

/* ---- what it does cost ------------------------------------------------------------------------ */

/* Attention of a random model knows no distance.  So every head's masses are set to those of a
   pattern that does: P[i,j] in proportion to 1 / (1 + i - j), and five times that at j = 0. */
static void freeze(gpts_model *model, size_t T)
{
    gpts_calibration c = {0};
    gpts_freeze_options options = gpts_freeze_options_default();
    int32_t *tokens = CLI_NEW(int32_t, 2 * T);
    double *column = CLI_NEW(double, T), *diagonal = CLI_NEW(double, T), information = 0;
    size_t i, j, h;
    for (i = 0; i < 2 * T; i++) tokens[i] = (int32_t)(i % (size_t)model->config.vocab_size);
    CLI_TRY(gpts_calibrate(&c, model, tokens, 2, T), c.error);
    for (i = 0; i < T; i++) {
        double z = 0;
        for (j = 0; j <= i; j++) z += (j ? 1.0 : 5.0) / (double)(1 + i - j);
        for (j = 0; j <= i; j++) {
            double p = (j ? 1.0 : 5.0) / (double)(1 + i - j) / z;
            column[j] += p;
            diagonal[i - j] += p;
            information += p * log(p);
        }
    }
    for (h = 0; h < c.L * c.H; h++) {
        memcpy(c.column + h * T, column, T * sizeof *column);
        memcpy(c.diagonal + h * T, diagonal, T * sizeof *diagonal);
        c.information[h] = information;
    }
    options.share = share;
    gpts_freeze_report_free(&frozen);
    CLI_TRY(gpts_freeze(model, NULL, &c, &options, &frozen), model->error);
    gpts_calibration_free(&c);
    free(tokens); free(column); free(diagonal);
}

static void make_model(gpts_model *model, int which, int64_t V, int64_t T)
{
    gpts_config config = gpts_config_default();
    size_t i;
    config.vocab_size = V;
    config.n_positions = T;
    config.n_layer = layers;
    config.n_head = heads;
    config.n_embd = width;
    memset(model, 0, sizeof *model);
    CLI_TRY(gpts_model_init(model, &config, (uint64_t)cli.seed, &cli.hooks), model->error);
    if (which == STATIC) freeze(model, (size_t)T);
    for (i = 0; i < n_replaced && which == HYBRID; i++) {
        gpts_approximator a = {0};
        gpts_recording none = {0};
        gpts_approximator_options options = {0};
        int32_t token[2] = { 0, 1 };
        options.kind = GPTS_APPROX_RANDOM;
        options.window = 1;
        options.hidden = (size_t)hidden;
        CLI_TRY(gpts_recording_make(&none, model, (size_t)replaced[i], token, 1, 2), none.error[0] ? none.error : model->error);
        CLI_TRY(gpts_approximator_fit(&a, model, &none, NULL, &options, NULL), a.error);
        CLI_TRY(gpts_approximator_install(model, NULL, &a, 0), model->error);
        gpts_recording_free(&none);
        gpts_approximator_free(&a);
    }
    cli_place(model);
}

/* Seconds of one prefill of T tokens (decode = 0), or of one of the decode-tokens at its end. */
static double once(gpts_session *session, const int32_t *ids, size_t T, int decode)
{
    double began;
    int64_t i;
    gpts_session_reset(session);
    if (!decode) {
        began = cli_now();
        CLI_TRY(gpts_session_prefill(session, ids, T, NULL), session->error);
        return cli_now() - began;
    }
    CLI_TRY(gpts_session_prefill(session, ids, T - (size_t)decode_tokens, NULL), session->error);
    began = cli_now();
    for (i = 0; i < decode_tokens; i++)
        CLI_TRY(gpts_session_decode(session, ids + T - (size_t)decode_tokens + (size_t)i), session->error);
    return (cli_now() - began) / (double)decode_tokens;
}
static double turn(gpts_session *session, const int32_t *ids, size_t T, int decode)
{
    double sum = 0, began = cli_now();
    size_t n = 0;
    do { sum += once(session, ids, T, decode); n++; } while (cli_now() - began < turn_ms * 1e-3);
    return sum / (double)n;
}

typedef struct result { double seconds[MODELS], ratio[MODELS], flops[MODELS], bytes[MODELS]; } result;

static result measure(gpts_session sessions[MODELS], const int32_t *ids, size_t T, int decode, double V)
{
    double *times[MODELS];
    cost c[MODELS];
    result r;
    int64_t round;
    int m;
    for (m = 0; m < MODELS; m++) {
        times[m] = CLI_NEW(double, rounds);
        once(&sessions[m], ids, T, decode);                              /* warm */
        c[m] = decode ? token_cost(m, (double)T - 0.5 * (double)decode_tokens, V) : prefill_cost(m, (double)T, V);
    }
    for (round = 0; round < rounds; round++)
        for (m = 0; m < MODELS; m++) times[m][round] = turn(&sessions[m], ids, T, decode);
    for (m = MODELS; m-- > 0; ) {                                        /* the ordinary times last: ratios need them */
        double *ratios = CLI_NEW(double, rounds);
        for (round = 0; round < rounds; round++) ratios[round] = times[ORDINARY][round] / times[m][round];
        r.ratio[m] = cli_median(ratios, (size_t)rounds);
        r.seconds[m] = cli_median(times[m], (size_t)rounds);
        r.flops[m] = c[ORDINARY].flops / c[m].flops;
        r.bytes[m] = c[ORDINARY].bytes / c[m].bytes;
        free(ratios);
    }
    for (m = 0; m < MODELS; m++) free(times[m]);
    return r;
}

static void say_frozen(char text[160])
{
    size_t i, W = 0, R = 0;
    for (i = 0; i < frozen.n; i++) {
        if (frozen.heads[i].W > W) W = frozen.heads[i].W;
        if (frozen.heads[i].R > R) R = frozen.heads[i].R;
    }
    snprintf(text, 160, "%d of %d heads static, %d in linear form (W %d, R %d at most)", (int)frozen.n, (int)(layers * heads),
             (int)frozen.linear, (int)W, (int)R);
}

int main(int argc, char **argv)
{
    static const char *const what[2] = { "prefill", "decode" };
    int64_t T[CLI_LIST], V[CLI_LIST], longest = 0;
    size_t n_T, n_V, t, v, done = 0;
    gpts_rng rng = {0};
    char text[160];
    cli_begin(argc, argv, "benchmark", "Prefill and decode: ordinary, hybrid and static models beside their bounds.", CLI_GPU, flags,
              "layers heads width hidden static_heads static_linear threads\n"
              "  per DO (prefill, decode), vocabulary V, context T and MODEL (ordinary, hybrid, static): DO_V_T_MODEL_seconds,\n"
              "  and for the last two DO_V_T_MODEL_gain DO_V_T_MODEL_bound_flops DO_V_T_MODEL_bound_bytes; state_V_T_MODEL_bytes");
    if (width % heads) cli_fail("--heads %lld does not divide --width %lld", (long long)heads, (long long)width);
    n_T = cli_list("--contexts", contexts, 2, 1048576, T);
    n_V = cli_list("--vocabularies", vocabularies, 2, 10000000, V);
    if (n_T > MAX_T) cli_fail("--contexts takes at most %d lengths", (int)MAX_T);
    for (t = 0; t < n_T; t++) {
        if (T[t] <= decode_tokens) cli_fail("--contexts must be longer than --decode-tokens %lld", (long long)decode_tokens);
        if (T[t] > longest) longest = T[t];
    }
    if (layers_replaced) n_replaced = cli_list("--layers-replaced", layers_replaced, 0, (double)layers - 1, replaced);
    else
        for (; (int64_t)n_replaced < layers - layers / 2 && n_replaced < CLI_LIST; n_replaced++)
            replaced[n_replaced] = layers / 2 + (int64_t)n_replaced;
    if (!hidden) hidden = width > 1 ? width / 2 : 1;
    cli_make_out();
    cli_results();
    cli_json_real("layers", (double)layers);
    cli_json_real("heads", (double)heads);
    cli_json_real("width", (double)width);
    cli_json_real("hidden", (double)hidden);
    cli_json_real("threads", (double)cli.threads);

    plot_begin("speed", "How fast");
    for (v = 0; v < n_V; v++) {
        gpts_model models[MODELS];
        double x[MAX_T];
        result results[2][MAX_T];
        int m, decode;
        for (m = 0; m < MODELS; m++) make_model(&models[m], m, V[v], longest);
        say_frozen(text);
        if (!v) {
            plot_say("%lld layers of %lld heads, width %lld, one sequence, random weights. Hybrid: a per-token MLP of inner width %lld in %llu of the layers. Static: %s. "
                     "In brackets: how many times fewer operations (prefill) or bytes (decode) are needed, the most that can be gained.",
                     (long long)layers, (long long)heads, (long long)width, (long long)hidden, (unsigned long long)n_replaced, text);
            cli_json_real("static_heads", (double)frozen.n);
            cli_json_real("static_linear", (double)frozen.linear);
        }
        for (t = 0; t < n_T; t++) {
            gpts_session sessions[MODELS];
            int32_t *ids = CLI_NEW(int32_t, T[t]);
            size_t i;
            for (i = 0; i < (size_t)T[t]; i++) ids[i] = (int32_t)gpts_rng_below(&rng, (uint64_t)V[v]);
            for (m = 0; m < MODELS; m++) {
                memset(&sessions[m], 0, sizeof sessions[m]);
                CLI_TRY(gpts_session_init(&sessions[m], &models[m], 1, (size_t)T[t], &cli.hooks), sessions[m].error);
            }
            x[t] = (double)T[t];
            for (decode = 0; decode < 2; decode++) {
                results[decode][t] = measure(sessions, ids, (size_t)T[t], decode, (double)V[v]);
                cli_progress("measuring", ++done, 2 * n_T * n_V, "vocabulary %lld, context %lld", (long long)V[v], (long long)T[t]);
            }
            for (m = 0; m < MODELS; m++) {
                cli_json_named((double)sessions[m].state_bytes, "state_%lld_%lld_%s_bytes", (long long)V[v], (long long)T[t], names[m]);
                gpts_session_free(&sessions[m]);
            }
            free(ids);
        }
        for (m = 0; m < MODELS; m++) gpts_model_free(&models[m]);

        cli_say("\nvocabulary %lld, width %lld; hybrid: h %lld in %llu of %lld layers; static: %s\n", (long long)V[v],
                (long long)width, (long long)hidden,
                (unsigned long long)n_replaced, (long long)layers, text);
        cli_say("                 ordinary      hybrid  gain (flops, bytes)      static  gain (flops, bytes)\n");
        for (decode = 0; decode < 2; decode++)
            for (t = 0; t < n_T; t++) {
                const result *r = &results[decode][t];
                cli_say("%-7s T %5lld %8.3f ms", what[decode], (long long)T[t], 1e3 * r->seconds[ORDINARY]);
                for (m = HYBRID; m < MODELS; m++)
                    cli_say(" %8.3f ms  %4.2fx (%4.2fx %4.2fx)", 1e3 * r->seconds[m], r->ratio[m], r->flops[m], r->bytes[m]);
                cli_say("\n");
                for (m = 0; m < MODELS; m++) {
                    cli_json_named(r->seconds[m], "%s_%lld_%lld_%s_seconds", what[decode], (long long)V[v], (long long)T[t], names[m]);
                    if (m == ORDINARY) continue;
                    cli_json_named(r->ratio[m], "%s_%lld_%lld_%s_gain", what[decode], (long long)V[v], (long long)T[t], names[m]);
                    cli_json_named(r->flops[m], "%s_%lld_%lld_%s_bound_flops", what[decode], (long long)V[v], (long long)T[t], names[m]);
                    cli_json_named(r->bytes[m], "%s_%lld_%lld_%s_bound_bytes", what[decode], (long long)V[v], (long long)T[t], names[m]);
                }
            }

        plot_row_begin();
        for (decode = 0; decode < 2; decode++) {
            static const char *const labels[4] = { "hybrid", "static", "hybrid's bound", "static's bound" };
            plot_series curves[4];
            double y[4][MAX_T];
            char title[96];
            for (t = 0; t < n_T; t++)
                for (m = HYBRID; m < MODELS; m++) {
                    y[m - HYBRID][t] = results[decode][t].ratio[m];
                    y[2 + m - HYBRID][t] = decode ? results[decode][t].bytes[m] : results[decode][t].flops[m];
                }
            for (m = 0; m < 4; m++) { curves[m].name = labels[m]; curves[m].x = x; curves[m].y = y[m]; curves[m].n = n_T; curves[m].dots = m < 2; }
            snprintf(title, sizeof title, "%s, vocabulary %lld: gain over the ordinary model", decode ? "Decode" : "Prefill", (long long)V[v]);
            plot_curves(title, "context", "times as fast", curves, 4, 1);
        }
        plot_row_end();
        plot_table("context|prefill, ms|hybrid|gain (bound)|static|gain (bound)|decode, ms|hybrid|gain (bound)|static|gain (bound)");
        for (t = 0; t < n_T; t++) {
            const result *p = &results[0][t], *d = &results[1][t];
            plot_row("%lld|%.2f|%.2f|%.2f (%.2f)|%.2f|%.2f (%.2f)|%.3f|%.3f|%.2f (%.2f)|%.3f|%.2f (%.2f)", (long long)T[t],
                     1e3 * p->seconds[0], 1e3 * p->seconds[1],
                     p->ratio[1], p->flops[1], 1e3 * p->seconds[2], p->ratio[2], p->flops[2], 1e3 * d->seconds[0],
                     1e3 * d->seconds[1], d->ratio[1], d->bytes[1],
                     1e3 * d->seconds[2], d->ratio[2], d->bytes[2]);
        }
        plot_table_end();
    }
    plot_say("Without a cache, each new token costs a whole prefill, so that column's gain is the prefill's.");
    plot_end();
    gpts_freeze_report_free(&frozen);
    return cli_end();
}

/* benchmark.c - how fast: an ordinary model beside one with static parts

     ordinary  attention in every layer
     hybrid    per-token MLPs of inner width h in --layers-replaced instead of attention
   at several context lengths T, with a small and a large vocabulary:
     prefill   reading T tokens at once.  Without a cache, every new token costs this much.
     decode    one more token behind T others, with a cache.
   The models have random weights: speed does not depend on what they know.

   Every ratio stands beside its bound: how many times fewer floating-point operations, and
   how many times fewer bytes (weights and cached keys and values, each read once), the
   second model needs.  Where the work is arithmetic (prefill), the first limits the gain;
   where it is reading (decode of a model that is larger than the processor's cache), the
   second; a ratio above both would be a mistake or luck.

   The two run in turns, A B A B, --rounds times, each turn at least --turn-ms long; shown
   are medians, and the median of the ratios of neighbouring turns.                        */
#include "cli.h"
#include "plot.h"

enum { ORDINARY, HYBRID, MODELS, MAX_T = 16 };
static const char *const names[MODELS] = { "ordinary", "hybrid" };

static int64_t layers = 4, heads = 4, width = 128, hidden = 0, rounds = 7, decode_tokens = 8;
static double turn_ms = 15;
static const char *contexts = "64,128,256,512,1024", *vocabularies = "512,50257", *layers_replaced = NULL;

static const cli_flag flags[] = {
    CLI_INT("layers", layers, 1, 1000, "layers"),
    CLI_INT("heads", heads, 1, 1024, "heads a layer; divides the width"),
    CLI_INT("width", width, 1, 65536, "channels"),
    CLI_INT("hidden", hidden, 0, 1048576, "inner width h of the approximators; 0: half the width"),
    CLI_TEXT("layers-replaced", layers_replaced, "layers from 0, as 2,3 (default: the second half)"),
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

/* One token behind `past` others: 2 operations for each weight, and 4 per channel and key of
   live attention; each weight and cached number is read once. */
static cost token_cost(int which, double past, double V)
{
    double C = (double)width, h = (double)hidden, live = which == ORDINARY ? (double)layers : (double)(layers - (int64_t)n_replaced);
    double gone = (double)layers - live, weights = live * 4 * C * C + gone * 2 * C * h + (double)layers * 8 * C * C + V * C;
    cost c;
    c.flops = 2 * weights + live * 4 * C * past;
    c.bytes = sizeof(gpts_real) * (weights + live * 2 * C * past);
    return c;
}
/* T tokens at once; the output matrix is used for the last one only. */
static cost prefill_cost(int which, double T, double V)
{
    double C = (double)width;
    cost c = token_cost(which, T / 2, 0), last = token_cost(which, T, V);
    c.flops = c.flops * T + 2 * V * C;
    c.bytes = last.bytes;
    return c;
}

/* ---- what it does cost ------------------------------------------------------------------------ */

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

typedef struct result { double seconds[MODELS], ratio, flops, bytes; } result;

static result measure(gpts_session sessions[MODELS], const int32_t *ids, size_t T, int decode, double V)
{
    double *times[MODELS], *ratios = CLI_NEW(double, rounds);
    cost c[MODELS];
    result r;
    int64_t round;
    int m;
    for (m = 0; m < MODELS; m++) {
        times[m] = CLI_NEW(double, rounds);
        once(&sessions[m], ids, T, decode);                              /* warm */
        c[m] = decode ? token_cost(m, (double)T - 0.5 * (double)decode_tokens, V) : prefill_cost(m, (double)T, V);
    }
    for (round = 0; round < rounds; round++) {
        for (m = 0; m < MODELS; m++) times[m][round] = turn(&sessions[m], ids, T, decode);
        ratios[round] = times[ORDINARY][round] / times[HYBRID][round];
    }
    for (m = 0; m < MODELS; m++) {
        r.seconds[m] = cli_median(times[m], (size_t)rounds);
        free(times[m]);
    }
    r.ratio = cli_median(ratios, (size_t)rounds);
    r.flops = c[ORDINARY].flops / c[HYBRID].flops;
    r.bytes = c[ORDINARY].bytes / c[HYBRID].bytes;
    free(ratios);
    return r;
}

int main(int argc, char **argv)
{
    int64_t T[CLI_LIST], V[CLI_LIST];
    size_t n_T, n_V, t, v, done = 0;
    gpts_rng rng = {0};
    cli_begin(argc, argv, "benchmark", "Prefill and decode, ordinary model against hybrid, beside the bounds.", CLI_GPU, flags,
              "layers heads width hidden threads\n"
              "  per vocabulary V, context T and DO (prefill, decode): DO_V_T_ordinary_seconds DO_V_T_hybrid_seconds DO_V_T_ratio\n"
              "  DO_V_T_bound_flops DO_V_T_bound_bytes");
    if (width % heads) cli_fail("--heads %lld does not divide --width %lld", (long long)heads, (long long)width);
    n_T = cli_list("--contexts", contexts, 2, 1048576, T);
    n_V = cli_list("--vocabularies", vocabularies, 2, 10000000, V);
    if (n_T > MAX_T) cli_fail("--contexts takes at most %d lengths", (int)MAX_T);
    for (t = 0; t < n_T; t++)
        if (T[t] <= decode_tokens) cli_fail("--contexts must be longer than --decode-tokens %lld", (long long)decode_tokens);
    if (layers_replaced) n_replaced = cli_list("--layers-replaced", layers_replaced, 0, (double)layers - 1, replaced);
    else for (; (int64_t)n_replaced < layers - layers / 2 && n_replaced < CLI_LIST; n_replaced++) replaced[n_replaced] = layers / 2 + (int64_t)n_replaced;
    if (!hidden) hidden = width > 1 ? width / 2 : 1;
    cli_make_out();
    cli_results();
    cli_json_real("layers", (double)layers);
    cli_json_real("heads", (double)heads);
    cli_json_real("width", (double)width);
    cli_json_real("hidden", (double)hidden);
    cli_json_real("threads", (double)cli.threads);

    plot_begin("speed", "How fast");
    plot_say("%lld layers, width %lld, one sequence, random weights. Hybrid: a per-token MLP of inner width %lld in %llu of the layers. Bounds: how many times "
             "fewer operations, and how many times fewer bytes, the hybrid needs.", (long long)layers, (long long)width, (long long)hidden,
             (unsigned long long)n_replaced);
    for (v = 0; v < n_V; v++) {
        gpts_model models[MODELS];
        double x[MAX_T], speed[2][MODELS][MAX_T];
        result results[2][MAX_T];
        int m, decode;
        for (m = 0; m < MODELS; m++) {
            int64_t longest = 0;
            for (t = 0; t < n_T; t++) if (T[t] > longest) longest = T[t];
            make_model(&models[m], m, V[v], longest);
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
                for (m = 0; m < MODELS; m++)
                    speed[decode][m][t] = (decode ? 1 : (double)T[t]) / results[decode][t].seconds[m];
                cli_progress("measuring", ++done, 2 * n_T * n_V, "vocabulary %lld, context %lld", (long long)V[v], (long long)T[t]);
            }
            for (m = 0; m < MODELS; m++) gpts_session_free(&sessions[m]);
            free(ids);
        }
        for (m = 0; m < MODELS; m++) gpts_model_free(&models[m]);

        cli_say("\nvocabulary %lld, width %lld, h %lld, %llu of %lld layers replaced\n", (long long)V[v], (long long)width, (long long)hidden,
                (unsigned long long)n_replaced, (long long)layers);
        cli_say("                   ordinary     hybrid   hybrid gains   bound by flops   by bytes\n");
        for (decode = 0; decode < 2; decode++)
            for (t = 0; t < n_T; t++) {
                const result *r = &results[decode][t];
                const char *what = decode ? "decode" : "prefill";
                cli_say("%-8s T %5lld  %7.3f ms %7.3f ms         %5.2fx           %5.2fx     %5.2fx\n", what, (long long)T[t],
                        1e3 * r->seconds[ORDINARY], 1e3 * r->seconds[HYBRID], r->ratio, r->flops, r->bytes);
                for (m = 0; m < MODELS; m++) cli_json_named(r->seconds[m], "%s_%lld_%lld_%s_seconds", what, (long long)V[v], (long long)T[t], names[m]);
                cli_json_named(r->ratio, "%s_%lld_%lld_ratio", what, (long long)V[v], (long long)T[t]);
                cli_json_named(r->flops, "%s_%lld_%lld_bound_flops", what, (long long)V[v], (long long)T[t]);
                cli_json_named(r->bytes, "%s_%lld_%lld_bound_bytes", what, (long long)V[v], (long long)T[t]);
            }

        plot_row_begin();
        for (decode = 0; decode < 2; decode++) {
            plot_series curves[3];
            double ratio[MAX_T], flops[MAX_T], bytes[MAX_T];
            char title[96];
            for (t = 0; t < n_T; t++) {
                ratio[t] = results[decode][t].ratio;
                flops[t] = results[decode][t].flops;
                bytes[t] = results[decode][t].bytes;
            }
            curves[0].name = "measured"; curves[0].y = ratio;
            curves[1].name = "bound by operations"; curves[1].y = flops;
            curves[2].name = "bound by bytes"; curves[2].y = bytes;
            for (m = 0; m < 3; m++) { curves[m].x = x; curves[m].n = n_T; curves[m].dots = m == 0; }
            snprintf(title, sizeof title, "%s, vocabulary %lld: gain of the hybrid", decode ? "Decode" : "Prefill", (long long)V[v]);
            plot_curves(title, "context", "times as fast", curves, decode ? 3 : 2, 1);
        }
        plot_row_end();
        plot_table("context|prefill, tokens/s|hybrid|gain|bound|decode, tokens/s|hybrid|gain|bound");
        for (t = 0; t < n_T; t++)
            plot_row("%lld|%.0f|%.0f|%.2f|%.2f|%.0f|%.0f|%.2f|%.2f", (long long)T[t], speed[0][0][t], speed[0][1][t], results[0][t].ratio, results[0][t].flops,
                     speed[1][0][t], speed[1][1][t], results[1][t].ratio,
                     results[1][t].bytes > results[1][t].flops ? results[1][t].bytes : results[1][t].flops);
        plot_table_end();
    }
    plot_say("Without a cache, each new token costs a whole prefill, so that column's gain is the prefill's.");
    plot_end();
    return cli_end();
}

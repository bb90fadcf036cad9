/* generate.c - any checkpoint -> text, as it is made

   The prompt is read at once (prefill); then each new token is drawn from the model's
   distribution and fed back (decode), with a cache, so that a token costs the same work
   whether the text behind it is read for the first or the hundredth time.
     --temperature 0    always the most likely token
     --top-k, --top-p   only the k most likely, or the likeliest that make up p together

   A token may end inside a character of several bytes: its bytes wait for the rest.
   When the model's context is full, generation goes on from the later half of it.         */
#include "corpus.h"
#include "plot.h"

static const char *prompt = "One ";
static int64_t tokens = 200, top_k = 0;
static double temperature = 0.8, top_p = 0.95;
static int report = 0, raw = 0, stop_at_end = 0;

static const cli_flag flags[] = {
    CLI_TEXT("model", cli.model, "a .safetensors model (default: OUT/base_model.safetensors)"),
    CLI_TEXT("tokenizer", cli.tokenizer, "bytes, gpt2, or a tokenizer's file (default: tokenizer.json beside the model)"),
    CLI_TEXT("prompt", prompt, "what the text begins with; @FILE: a file's content"),
    CLI_INT("tokens", tokens, 0, 1000000000, "tokens to generate"),
    CLI_REAL("temperature", temperature, 0, 100, "0: always the most likely token"),
    CLI_INT("top-k", top_k, 0, 1000000, "only the k most likely tokens; 0: all"),
    CLI_REAL("top-p", top_p, 0, 1, "only the likeliest that make up p together; 0 or 1: all"),
    CLI_SWITCH("stop-at-end", stop_at_end, "stop when the tokenizer's end of text is drawn"),
    CLI_SWITCH("raw", raw, "write every byte as it is, control characters and broken characters too"),
    CLI_SWITCH("report", report, "put the text into OUT/report.html"),
    CLI_END };

/* ---- bytes in, whole characters out ----------------------------------------------------- */

static char *kept;                          /* everything that was shown, for the report    */
static size_t kept_size, kept_room;

static void show(const char *text, size_t n)
{
    if (kept_size + n > kept_room) {
        kept_room = 2 * (kept_size + n + 256);
        kept = (char *)realloc(kept, kept_room);
        if (!kept) cli_fail("out of memory: the text");
    }
    memcpy(kept + kept_size, text, n);
    kept_size += n;
    fwrite(text, 1, n, stdout);
}

/* How long the character is that begins with this byte; 0: none does. */
static size_t character_length(unsigned char c) { return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0; }

/* Shows the whole characters of `text` after those that waited; incomplete ones wait in
   `waiting`.  Bytes that are no UTF-8 show as U+FFFD, control characters do not show. */
static void stream(const char *text, size_t n, int last)
{
    static char waiting[4];
    static size_t n_waiting;
    size_t i, length;
    if (raw) { show(text, n); fflush(stdout); return; }
    for (i = 0; i < n || (last && n_waiting); ) {
        unsigned char c = i < n ? (unsigned char)text[i] : 0;
        if (n_waiting && (i == n || (c & 0xC0) != 0x80)) { show("\xEF\xBF\xBD", 3); n_waiting = 0; continue; }
        i++;
        if (!n_waiting && !character_length(c)) { show("\xEF\xBF\xBD", 3); continue; }
        waiting[n_waiting++] = (char)c;
        length = character_length((unsigned char)waiting[0]);
        if (n_waiting < length) continue;
        if (length > 1 || c == '\n' || c == '\t' || (c >= 32 && c != 127)) show(waiting, length);
        n_waiting = 0;
    }
    fflush(stdout);
}

static void say_tokens(gpts_tokenizer *tokenizer, const int32_t *ids, size_t n)
{
    size_t bytes = 0;
    char *text;
    CLI_TRY(gpts_tokenizer_decode(tokenizer, ids, n, NULL, &bytes), tokenizer->error);
    text = CLI_NEW(char, bytes + 1);
    CLI_TRY(gpts_tokenizer_decode(tokenizer, ids, n, text, &bytes), tokenizer->error);
    stream(text, bytes, 0);
    free(text);
}

/* ---- tokenizer and prompt ----------------------------------------------------------------- */

static void open_tokenizer(gpts_tokenizer *tokenizer, const char *model_path)
{
    char path[CLI_PATH];
    const char *slash = strrchr(model_path, '/');
    int n = slash ? (int)(slash - model_path) + 1 : 0;
    if (cli.tokenizer && (!strcmp(cli.tokenizer, "chars") || !strcmp(cli.tokenizer, "bpe")))
        cli_fail("--tokenizer %s is learned from a text: name the tokenizer.json that was saved with the model", cli.tokenizer);
    if (cli.tokenizer) { corpus_tokenizer(tokenizer, cli.tokenizer, "", 0); return; }
    if (snprintf(path, sizeof path, "%.*stokenizer.json", n, model_path) >= (int)sizeof path) cli_fail("the path of --model is too long");
    if (!cli_exists(path)) cli_fail("there is no %s: name the model's tokenizer with --tokenizer", path);
    CLI_TRY(gpts_tokenizer_load(tokenizer, path, &cli.hooks), tokenizer->error);
}

int main(int argc, char **argv)
{
    gpts_model model = {0};
    gpts_tokenizer tokenizer = {0};
    gpts_session session = {0};
    gpts_sampling sampling;
    gpts_rng rng = {0};
    char path[CLI_PATH], *file = NULL, error[GPTS_ERROR_BYTES] = "";
    const char *model_path;
    int32_t *ids, id;
    size_t n, bytes, capacity, made, used;
    double began, prefill, seconds;
    cli_begin(argc, argv, "generate", "A model and a prompt -> text.", CLI_GPU, flags, "prompt_tokens tokens prefill_seconds tokens_per_second text");
    if (report) cli_make_out();
    cli_results();
    model_path = cli.model ? cli.model : cli_path(path, "base_model.safetensors");
    CLI_TRY(gpts_model_load(&model, model_path, &cli.hooks), model.error);
    cli_place(&model);
    open_tokenizer(&tokenizer, model_path);
    if (tokenizer.vocab_size > model.config.vocab_size)
        cli_fail("the tokenizer has %d ids, %s only %lld: they do not belong together", (int)tokenizer.vocab_size, model_path,
                 (long long)model.config.vocab_size);

    bytes = strlen(prompt);
    if (prompt[0] == '@') {
        CLI_TRY(gpts_read_file(prompt + 1, &file, &bytes, &cli.hooks, error), error);
        prompt = file;
    }
    CLI_TRY(gpts_tokenizer_encode(&tokenizer, prompt, bytes, NULL, &n), tokenizer.error);
    if (!n) cli_fail("the prompt is empty: a model needs at least one token to go on from");
    ids = CLI_NEW(int32_t, n + (size_t)tokens);
    CLI_TRY(gpts_tokenizer_encode(&tokenizer, prompt, bytes, ids, &n), tokenizer.error);

    sampling.temperature = temperature;
    sampling.top_k = (size_t)top_k;
    sampling.top_p = top_p;
    rng.seed = (uint64_t)cli.seed;
    capacity = (size_t)model.config.n_positions;
    CLI_TRY(gpts_session_init(&session, &model, 1, capacity, &cli.hooks), session.error);

    say_tokens(&tokenizer, ids, n);
    began = cli_now();
    used = n < capacity ? n : capacity - capacity / 2;                      /* the last tokens that fit */
    CLI_TRY(gpts_session_prefill(&session, ids + n - used, used, NULL), session.error);
    prefill = cli_now() - began;
    began = cli_now();
    for (made = 0; made < (size_t)tokens; ) {
        id = gpts_sample(gpts_session_logits(&session, 0), (size_t)model.config.vocab_size, &sampling, &rng);
        if (id >= tokenizer.vocab_size) id = 0;                             /* padding of the output matrix */
        if (stop_at_end && id == tokenizer.end_of_text) break;
        ids[n++] = id;
        made++;
        say_tokens(&tokenizer, &id, 1);
        if (made == (size_t)tokens) break;
        if (used < capacity) {
            CLI_TRY(gpts_session_decode(&session, &id), session.error);
            used++;
        } else {                                                            /* full: the later half again */
            used = capacity - capacity / 2;
            gpts_session_reset(&session);
            CLI_TRY(gpts_session_prefill(&session, ids + n - used, used, NULL), session.error);
        }
    }
    stream("", 0, 1);
    seconds = cli_now() - began;
    printf("\n");
    if (!cli.quiet) fprintf(stderr, "(%llu tokens, %.0f a second)\n", (unsigned long long)made, seconds > 0 ? (double)made / seconds : 0);

    if (report) {
        plot_begin("text", "What it writes");
        plot_say("%s, temperature %g, top-p %g, seed %lld:", model_path, temperature, top_p, (long long)cli.seed);
        plot_quote(kept, kept_size);
        plot_end();
    }
    cli_json_real("prompt_tokens", (double)(n - made));
    cli_json_real("tokens", (double)made);
    cli_json_real("prefill_seconds", prefill);
    cli_json_real("tokens_per_second", seconds > 0 ? (double)made / seconds : 0);
    show("", 0);
    kept = (char *)realloc(kept, kept_size + 1);
    if (!kept) cli_fail("out of memory: the text");
    kept[kept_size] = 0;
    if (!raw) cli_json_text("text", kept);
    if (file) gpts_release(&cli.hooks, file);
    free(kept);
    free(ids);
    gpts_session_free(&session);
    gpts_tokenizer_free(&tokenizer);
    gpts_model_free(&model);
    return cli_end();
}

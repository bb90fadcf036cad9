/* tokens.c - compares a tokenizer with files of vectors.

     build/tests/tokens --tokenizer bytes|chars|gpt2|FILE FILE.jsonl...

   FILE is a vocab.bpe, merges.txt, .tiktoken or tokenizer.json.  Each line of a .jsonl is an
   object with `text` and `ids`, or `ids_<vocabulary size>`.  The ids must be those, and
   decode to the text; WordPiece, which changes its text, to `decoded_<size>` when that is
   there.  `chars` is made anew from each text.                                              */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"

static const char *const gpt2_places[] = { "data/vocab.bpe", "data/gpt2-vocab.bpe", "../shared/data/gpt2-vocab.bpe" };

static int passed, failed;

static void complain(const char *path, size_t line, const char *what)
{
    printf("%s:%lu: %s\n", path, (unsigned long)line, what);
    failed++;
}

static int tokenizer_open(gpts_tokenizer *t, const char *name)
{
    size_t i;
    gpts_status status = GPTS_NOT_FOUND;
    memset(t, 0, sizeof *t);
    if (!strcmp(name, "chars")) return 1;                     /* made of each text */
    if (!strcmp(name, "bytes")) status = gpts_tokenizer_bytes(t, NULL);
    else if (!strcmp(name, "gpt2")) {
        for (i = 0; i < sizeof gpt2_places / sizeof *gpt2_places && status != GPTS_OK; i++) status = gpts_tokenizer_load(t, gpt2_places[i], NULL);
    } else status = gpts_tokenizer_load(t, name, NULL);
    if (status != GPTS_OK) fprintf(stderr, "tokens: %s\n", t->error);
    return status == GPTS_OK;
}

/* A string member, unescaped, to be freed; NULL: not there or not a string. */
static char *member_text(gptsi_json object, const char *key, size_t *bytes)
{
    gptsi_json measure;
    char *text;
    if (!gptsi_json_find(object, key, &object)) return NULL;
    measure = object;
    if (!gptsi_json_string(&measure, NULL, 0, bytes)) return NULL;
    text = (char *)malloc(*bytes + 1);
    if (text) gptsi_json_string(&object, text, *bytes + 1, bytes);
    return text;
}

/* An array of ids, to be freed. */
static int32_t *member_ids(gptsi_json object, const char *key, size_t *n)
{
    int32_t *ids;
    int64_t id;
    size_t count;
    if (!gptsi_json_find(object, key, &object)) return NULL;
    count = gptsi_json_count(object);
    ids = (int32_t *)malloc((count + 1) * sizeof *ids);
    if (!ids || !gptsi_json_take(&object, '[')) { free(ids); return NULL; }
    for (*n = 0; *n < count; gptsi_json_take(&object, ',')) {
        if (!gptsi_json_i64(&object, &id) || id < 0 || id > INT32_MAX) { free(ids); return NULL; }
        ids[(*n)++] = (int32_t)id;
    }
    return ids;
}

/* NULL, or what differs. */
static const char *compare(gpts_tokenizer *t, const char *text, size_t bytes, const int32_t *ids, size_t n, const char *decoded, size_t decoded_bytes)
{
    static char what[400];
    int32_t *got = NULL;
    char *back = NULL;
    const char *result = NULL;
    size_t room, m = 0, i;
    if (gpts_tokenizer_encode(t, text, bytes, NULL, &m) != GPTS_OK) return t->error;
    got = (int32_t *)malloc((m + 1) * sizeof *got);
    room = m;
    if (!got) return "out of memory";
    if (gpts_tokenizer_encode(t, text, bytes, got, &m) != GPTS_OK) result = t->error;
    else if (m != room) result = "counting and encoding give different numbers of ids";
    for (i = 0; !result && i < m && i < n; i++) if (got[i] != ids[i]) {
        snprintf(what, sizeof what, "id %lu is %ld, expected %ld", (unsigned long)i, (long)got[i], (long)ids[i]);
        result = what;
    }
    if (!result && m != n) {
        snprintf(what, sizeof what, "%lu ids, expected %lu", (unsigned long)m, (unsigned long)n);
        result = what;
    }
    if (!result && decoded) {
        if (gpts_tokenizer_decode(t, got, m, NULL, &room) != GPTS_OK) result = t->error;
        else if (!(back = (char *)malloc(room + 1))) result = "out of memory";
        else if (gpts_tokenizer_decode(t, got, m, back, &room) != GPTS_OK) result = t->error;
        else if (room != decoded_bytes || memcmp(back, decoded, room)) {
            snprintf(what, sizeof what, "the ids decode to '%.*s'", (int)(room < 200 ? room : 200), back);
            result = what;
        }
    }
    free(back);
    free(got);
    return result;
}

static void check_line(gpts_tokenizer *t, int chars, const char *path, const gptsi_line *line)
{
    gptsi_json object, rest;
    char ids_name[40], decoded_name[40], *text, *decoded = NULL;
    size_t bytes = 0, n = 0, decoded_bytes = 0;
    int32_t *ids;
    const char *difference;
    object.at = line->at; object.end = line->end; object.depth = 0;
    rest = object;
    if (!gptsi_json_is(&object, '{') || !gptsi_json_skip(&rest) || (gptsi_json_space(&rest), rest.at != rest.end)) {
        complain(path, line->number, "not a JSON object");
        return;
    }
    text = member_text(object, "text", &bytes);
    if (!text) { complain(path, line->number, "no text, or not a string"); return; }
    if (chars && gpts_tokenizer_chars(t, bytes ? text : " ", bytes ? bytes : 1, NULL) != GPTS_OK) {
        complain(path, line->number, t->error);
        free(text);
        return;
    }
    snprintf(ids_name, sizeof ids_name, "ids_%ld", (long)t->vocab_size);
    snprintf(decoded_name, sizeof decoded_name, "decoded_%ld", (long)t->vocab_size);
    ids = member_ids(object, ids_name, &n);
    if (!ids) ids = member_ids(object, "ids", &n);
    if (t->kind == GPTS_TOKENIZER_WORDPIECE) decoded = member_text(object, decoded_name, &decoded_bytes);
    if (!ids) complain(path, line->number, "no ids, or not a list of ids");
    else {
        int plain = t->kind != GPTS_TOKENIZER_WORDPIECE;
        difference = compare(t, text, bytes, ids, n, plain ? text : decoded, plain ? bytes : decoded_bytes);
        if (difference) complain(path, line->number, difference); else passed++;
    }
    if (chars) gpts_tokenizer_free(t);
    free(decoded);
    free(ids);
    free(text);
}

static void check_file(gpts_tokenizer *t, int chars, const char *path)
{
    char error[GPTS_ERROR_BYTES], *data;
    const char *rest;
    size_t bytes, lines = 0;
    gptsi_line line;
    if (gpts_read_file(path, &data, &bytes, NULL, error) != GPTS_OK) { printf("%s\n", error); failed++; return; }
    rest = data;
    for (line.number = 0; gptsi_line_next(&line, &rest, data + bytes); ) {
        if (line.at == line.end) continue;
        lines++;
        check_line(t, chars, path, &line);
    }
    if (!lines) { printf("%s: there is nothing in it\n", path); failed++; }
    gpts_release(NULL, data);
}

int main(int argc, char **argv)
{
    gpts_tokenizer t;
    const char *name = NULL;
    int i, files = 0;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tokenizer") && i + 1 < argc) name = argv[++i];
        else files++;
    }
    if (!name || !files) {
        fprintf(stderr, "usage: tokens --tokenizer bytes|chars|gpt2|FILE FILE.jsonl...\n");
        return 1;
    }
    if (!tokenizer_open(&t, name)) { printf("0 passed, %d failed\n", files); return 1; }
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tokenizer")) i++;
        else check_file(&t, !strcmp(name, "chars"), argv[i]);
    }
    gpts_tokenizer_free(&t);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

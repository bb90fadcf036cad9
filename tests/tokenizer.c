/* tokenizer.c - checks @@TOKENIZER: the JSON cursor, GPT-2's split, merging and training
   against the plainest possible versions, files good and hostile, and memory running out. */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "tokenizer_files.h"
#include <time.h>

/* ---- helpers ------------------------------------------------------------------------ */

static uint64_t seed = 1;
static uint32_t draw(uint32_t n) { seed = gptsi_mix(seed); return (uint32_t)(seed >> 33) % n; }

/* Random text: `kind` 0 letters of a small alphabet, 1 words and signs, 2 any bytes, 3 mixed scripts. */
static size_t random_text(char *text, size_t room, int kind)
{
    static const char *const some[] = { "the", " the", " a", "'s", "'ll", "'", " ", "  ", "\n", "\t", "12", "7", "!", "...", "é",
                                        "\xE6\x97\xA5", "\xF0\x9F\x91\x8B", "\xC2\xA0", "\xE2\x80\x83", "\xCC\x81", "\xFF", "\xE6\x97", "\xC2\xB2", "Th" };
    size_t n = 0, k;
    while (n + 8 < room) {
        const char *s = some[draw((uint32_t)(sizeof some / sizeof *some))];
        if (kind == 0) text[n++] = (char)('a' + draw(4));
        else if (kind == 1) text[n++] = "ab c'stn1.\n"[draw(11)];
        else if (kind == 2) text[n++] = (char)draw(256);
        else { k = strlen(s); memcpy(text + n, s, k); n += k; }
    }
    return n;
}

/* Encodes and checks that counting agrees and that decoding gives the text back. */
static size_t encode(gpts_tokenizer *t, const char *text, size_t bytes, int32_t *ids, size_t room)
{
    size_t n = room, count = 0, back = 0;
    char *again;
    t_status(gpts_tokenizer_encode(t, text, bytes, ids, &n), GPTS_OK);
    t_status(gpts_tokenizer_encode(t, text, bytes, NULL, &count), GPTS_OK);
    t_equal(n, count);
    if (t->kind == GPTS_TOKENIZER_WORDPIECE) return n;
    t_status(gpts_tokenizer_decode(t, ids, n, NULL, &back), GPTS_OK);
    t_equal(back, bytes);
    again = (char *)malloc(back + 1);
    t_status(gpts_tokenizer_decode(t, ids, n, again, &back), GPTS_OK);
    t_ok(back == bytes && (!bytes || !memcmp(again, text, bytes)));
    free(again);
    return n;
}
#define SAME(t, text, ...) do { static const int32_t t_ids_[] = { __VA_ARGS__ }; int32_t got_[64]; \
    size_t n_ = encode(t, text, strlen(text), got_, 64); \
    t_equal(n_, sizeof t_ids_ / sizeof *t_ids_ - 1); \
    if (n_ == sizeof t_ids_ / sizeof *t_ids_ - 1) t_ok(!memcmp(got_, t_ids_, n_ * sizeof *got_)); } while (0)
enum { END = -1 };                                            /* closes each list of SAME */

static gpts_status load(gpts_tokenizer *t, const char *text) { return gpts_tokenizer_load_memory(t, text, strlen(text), NULL); }

/* ---- JSON and UTF-8 -------------------------------------------------------------------- */

static gptsi_json at(const char *text) { gptsi_json j; j.at = text; j.end = text + strlen(text); j.depth = 0; return j; }

static void json_accepts_and_refuses_what_the_standard_does(void)
{
    static const char *const good[] = { "[1, {\"a\": [true, false, null]}, -1.5e3, \"x\\u00e9\\ud83d\\ude00\"]", "{}", "[]", " 0 ", "1e5", "-0.5E+10",
                                        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "{\"a\": {}, \"b\": []}", "\"\"", "true" };
    static const char *const bad[] = { "", "[1,]", "{\"a\":}", "[", "[[[", "{,}", "[,1]", "01", "-", "1.", ".5", "1e", "+1", "nul", "\"", "\"\\x\"", "\"\\u12\"",
                                       "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\\ud800 \\udc00\"", "\"\n\"", "\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "{\"a\" 1}", "{1: 2}",
                                       "[1 2]", "[1}", "{\"a\": 1]", "tru", "NaN", "'a'", "[1]]", "1 1" };
    size_t i;
    for (i = 0; i < sizeof good / sizeof *good; i++) {
        gptsi_json j = at(good[i]);
        t_ok(gptsi_json_skip(&j) && (gptsi_json_space(&j), j.at == j.end));
    }
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        gptsi_json j = at(bad[i]);
        t_ok(!(gptsi_json_skip(&j) && (gptsi_json_space(&j), j.at == j.end)));
    }
}

static void json_nesting_is_limited_to_64(void)
{
    char deep[140];
    gptsi_json j;
    memset(deep, '[', 64); memset(deep + 64, ']', 64); deep[128] = 0;
    j = at(deep);
    t_ok(gptsi_json_skip(&j) && j.at == j.end);
    j = at(deep); j.depth = 1;
    t_ok(!gptsi_json_skip(&j));
    memset(deep, '[', 65); memset(deep + 65, ']', 65); deep[130] = 0;
    j = at(deep);
    t_ok(!gptsi_json_skip(&j));
}

static void json_numbers_are_exact(void)
{
    static const struct { const char *text; double value; } number[] = {
        { "0", 0 }, { "-2.5", -2.5 }, { "1e-5", 1e-5 }, { "0.00001", 1e-5 }, { "10000.0", 10000 }, { "3.141592653589793", 3.141592653589793 }, { "1e22", 1e22 }, { "5e-324", 5e-324 },
        { "0.1", 0.1 }, { "123456.789e3", 123456789 }, { "1e-400", 0 } };
    uint64_t u = 0;
    int64_t v = 0;
    double d = 0;
    size_t i;
    gptsi_json j;
    for (i = 0; i < sizeof number / sizeof *number; i++) { j = at(number[i].text); t_ok(gptsi_json_double(&j, &d) && j.at == j.end && memcmp(&d, &number[i].value, sizeof d) == 0); }
    j = at("1e400"); t_ok(!gptsi_json_double(&j, &d));
    j = at("18446744073709551615"); t_ok(gptsi_json_u64(&j, &u) && u == UINT64_MAX);
    j = at("18446744073709551616"); t_ok(!gptsi_json_u64(&j, &u));
    j = at("1.0"); t_ok(!gptsi_json_u64(&j, &u));
    j = at("-1"); t_ok(!gptsi_json_u64(&j, &u));
    j = at("-9223372036854775808"); t_ok(gptsi_json_i64(&j, &v) && v == INT64_MIN);
    j = at("9223372036854775808"); t_ok(!gptsi_json_i64(&j, &v));
}

static void json_strings_are_measured_and_bounded(void)
{
    char out[8];
    size_t n = 0;
    gptsi_json j = at("\"a\\u0000\\u20ac\"");
    t_ok(gptsi_json_string(&j, NULL, 0, &n)); t_equal(n, 5);
    j = at("\"a\\u0000\\u20ac\"");
    t_ok(gptsi_json_string(&j, out, 5, &n)); t_bits(out, "a\0\xE2\x82\xAC", 5);
    j = at("\"a\\u0000\\u20ac\"");
    t_ok(!gptsi_json_string(&j, out, 4, &n));
}

static void utf8_reads_back_every_code_point_and_nothing_else(void)
{
    static const char *const bad[] = { "\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC2", "\xC2!" };
    uint32_t c, back = 0;
    char four[4];
    size_t i, wrong = 0;
    for (c = 0; c < 0x110000; c++) {
        size_t n = gptsi_utf8_put(c, four), m = gptsi_utf8_get(four, four + n, &back);
        if (c >= 0xD800 && c <= 0xDFFF) wrong += m != 0;
        else wrong += m != n || back != c;
    }
    t_equal(wrong, 0);
    for (i = 0; i < sizeof bad / sizeof *bad; i++) t_equal(gptsi_utf8_get(bad[i], bad[i] + strlen(bad[i]), &back), 0);
}

/* ---- GPT-2's split ---------------------------------------------------------------------------- */

static void unicode_classes_have_the_sizes_of_version_15(void)
{
    unsigned char *classes = (unsigned char *)calloc(GPTSI_CODES, 1);
    size_t count[9] = { 0 }, c;
    t_ok(classes != NULL);
    if (!classes) return;
    gptsi_classes_fill(classes);
    for (c = 0; c < GPTSI_CODES; c++) count[classes[c]]++;
    t_equal(count[GPTSI_LETTER], 136104);
    t_equal(count[GPTSI_NUMBER], 1831);
    t_equal(count[GPTSI_SPACE], 25);
    free(classes);
}

static void E57_split_follows_the_regular_expression(void)
{
    static const struct { const char *text, *pieces; } row[] = {       /* pieces with | between */
        { "Hello world", "Hello| world" }, { "  two", " | two" }, { "a  ", "a|  " }, { "a \n\n b", "a| \n\n| b" }, { "a\n\nb", "a|\n|\n|b" },
        { "it's 'tis IT'S they'll we're I've I'm he'd", "it|'s| '|tis| IT|'|S| they|'ll| we|'re| I|'ve| I|'m| he|'d" },
        { "'tis", "'t|is" }, { "x1y22", "x|1|y|22" }, { " 12 !?", " 12| !?" }, { "\t\ta", "\t|\t|a" }, { " ", " " }, { "'", "'" }, { "'r", "'|r" },
        { "e\xCC\x81t\xC3\xA9", "e|\xCC\x81|t\xC3\xA9" }, { "\xC2\xB2\xE2\x85\xA7 \xC2\xBD", "\xC2\xB2\xE2\x85\xA7| \xC2\xBD" }, { "a\xC2\xA0\xC2\xA0" "b", "a|\xC2\xA0|\xC2\xA0|b" },
        { "\xE6\x97\xA5\xE6\x9C\xAC!", "\xE6\x97\xA5\xE6\x9C\xAC|!" }, { "a\xFF\xFE" "b", "a|\xFF\xFE|b" }, { "\xEF\xBB\xBFok", "\xEF\xBB\xBF|ok" }, { "it\xE2\x80\x99s", "it|\xE2\x80\x99|s" },
        { "\x1C x", "\x1C| x" }, { " \xC2\x85" "0", " |\xC2\x85|0" }, { "\xE2\x80\x8B a", "\xE2\x80\x8B| a" } };
    unsigned char *classes = (unsigned char *)calloc(GPTSI_CODES, 1);
    char got[200];
    size_t i;
    t_ok(classes != NULL);
    if (!classes) return;
    gptsi_classes_fill(classes);
    for (i = 0; i < sizeof row / sizeof *row; i++) {
        const char *p = row[i].text, *end = p + strlen(p);
        size_t n = 0;
        while (p < end) {
            const char *q = gptsi_split(classes, p, end);
            if (n) got[n++] = '|';
            memcpy(got + n, p, (size_t)(q - p));
            n += (size_t)(q - p);
            p = q;
        }
        got[n] = 0;
        t_text(got, row[i].pieces);
    }
    free(classes);
}

/* ---- bytes and characters ------------------------------------------------------------------------ */

static void bytes_are_their_own_ids(void)
{
    gpts_tokenizer t;
    char text[256];
    int32_t ids[256];
    int i;
    for (i = 0; i < 256; i++) text[i] = (char)i;
    t_status(gpts_tokenizer_bytes(&t, NULL), GPTS_OK);
    t_equal(t.vocab_size, 256);
    t_equal(encode(&t, text, 256, ids, 256), 256);
    for (i = 0; i < 256; i++) t_equal(ids[i], i);
    t_equal(encode(&t, "", 0, ids, 256), 0);
    t_equal(encode(&t, NULL, 0, ids, 256), 0);
    gpts_tokenizer_free(&t);
    gpts_tokenizer_free(&t);
    t_status(gpts_tokenizer_encode(&t, "a", 1, ids, (size_t *)memset(text, 0, sizeof(size_t))), GPTS_BAD_ARGUMENT);
}

static void characters_are_numbered_in_ascending_order(void)
{
    static const char text[] = "h\xC3\xA9h\xE6\x97\xA5 \xFF\x80\n\xF0\x9F\x91\x8B\xC3";
    static const int32_t expected[] = { 2, 3, 2, 4, 1, 8, 6, 0, 5, 7 };       /* \n, space, h, e', ri, hand, 80 C3 FF */
    gpts_tokenizer t;
    int32_t ids[32];
    size_t n = 32;
    t_status(gpts_tokenizer_chars(&t, text, sizeof text - 1, NULL), GPTS_OK);
    t_equal(t.vocab_size, 9);
    t_equal(encode(&t, text, sizeof text - 1, ids, 32), 10);
    t_bits(ids, expected, sizeof expected);
    t_status(gpts_tokenizer_encode(&t, "h\xC3\xA8", 3, ids, &n), GPTS_NOT_FOUND);
    t_says(t.error, "U+00E8");
    t_says(t.error, "byte 1");
    n = 32;
    t_status(gpts_tokenizer_encode(&t, "\xFE", 1, ids, &n), GPTS_NOT_FOUND);
    t_says(t.error, "0xFE");
    gpts_tokenizer_free(&t);
    t_status(gpts_tokenizer_chars(&t, "", 0, NULL), GPTS_BAD_ARGUMENT);
    t_ok(!t.vocabulary);
}

static void E59_room_that_is_too_small_is_refused_with_the_number_needed(void)
{
    gpts_tokenizer t;
    int32_t ids[4] = { 7, 7, 7, 7 };
    char text[4] = { 1, 1, 1, 1 };
    size_t n = 2;
    t_status(gpts_tokenizer_bytes(&t, NULL), GPTS_OK);
    t_status(gpts_tokenizer_encode(&t, "abc", 3, ids, &n), GPTS_TOO_LONG);
    t_equal(n, 3); t_equal(ids[2], 7);
    ids[0] = 65; ids[1] = 66; ids[2] = 67;
    n = 2;
    t_status(gpts_tokenizer_decode(&t, ids, 3, text, &n), GPTS_TOO_LONG);
    t_equal(n, 3); t_equal(text[2], 1);
    ids[1] = 256; n = 4;
    t_status(gpts_tokenizer_decode(&t, ids, 3, text, &n), GPTS_BAD_ARGUMENT);
    t_says(t.error, "256");
    ids[1] = -1; n = 4;
    t_status(gpts_tokenizer_decode(&t, ids, 3, text, &n), GPTS_BAD_ARGUMENT);
    gpts_tokenizer_free(&t);
}

/* ---- byte-level BPE -------------------------------------------------------------------------------- */

/* The plainest merging: find the lowest pair, leftmost first, again and again. */
static size_t plain_merge(const struct gpts_vocabulary *v, const char *p, size_t n, int32_t *ids)
{
    size_t i;
    for (i = 0; i < n; i++) ids[i] = v->byte_id[(unsigned char)p[i]];
    for (;;) {
        const gptsi_merge *best = NULL, *m;
        size_t where = 0;
        for (i = 0; i + 1 < n; i++) {
            m = gptsi_pair_slot(v, ids[i], ids[i + 1]);
            if (m->order && (!best || m->order < best->order)) { best = m; where = i; }
        }
        if (!best) return n;
        ids[where] = best->merged;
        memmove(ids + where + 1, ids + where + 2, (n - where - 2) * sizeof *ids);
        n--;
    }
}

static void example_of_Gage_merges_aa_then_ab_then_both(void)
{
    gpts_tokenizer t;                                         /* Wikipedia, Byte pair encoding: aaabdaaabac */
    t_status(gpts_tokenizer_train(&t, "aaabdaaabac", 11, 1000, NULL), GPTS_OK);
    t_equal(t.vocab_size, 259);                               /* XdXac, X = ZY, Y = ab, Z = aa */
    t_equal(t.end_of_text, -1);
    SAME(&t, "aaabdaaabac", 258, 67, 258, 64, 66, END);
    SAME(&t, "aaa", 256, 64, END);
    SAME(&t, "", END);
    gpts_tokenizer_free(&t);
}

/* Training, said plainly: count all, take the most frequent, smallest ids on ties. */
static int plain_train(const unsigned char *classes, const struct gpts_vocabulary *v, const char *text, size_t bytes, int32_t (*merge)[2], int most)
{
    int32_t *ids = (int32_t *)malloc((bytes + 1) * sizeof *ids);
    size_t *piece = (size_t *)malloc((bytes + 1) * sizeof *piece), *count = (size_t *)malloc((size_t)(256 + most) * (size_t)(256 + most) * sizeof *count);
    size_t n = bytes, i, j, number = 0;
    int merges;
    const char *p = text;
    for (i = 0; p < text + bytes; number++) {
        const char *q = gptsi_split(classes, p, text + bytes);
        for (; p < q; p++, i++) { ids[i] = v->byte_id[(unsigned char)*p]; piece[i] = number; }
    }
    for (merges = 0; merges < most; merges++) {
        size_t best = 1, ends = 256 + (size_t)merges, a = 0, b = 0;
        memset(count, 0, ends * ends * sizeof *count);
        for (i = 0; i + 1 < n; i++) if (piece[i] == piece[i + 1]) count[(size_t)ids[i] * ends + (size_t)ids[i + 1]]++;
        for (i = 0; i < ends * ends; i++) if (count[i] > best) { best = count[i]; a = i / ends; b = i % ends; }
        if (best == 1) break;
        merge[merges][0] = (int32_t)a; merge[merges][1] = (int32_t)b;
        for (i = j = 0; i < n; i++, j++) {
            int both = i + 1 < n && piece[i] == piece[i + 1] && ids[i] == merge[merges][0] && ids[i + 1] == merge[merges][1];
            ids[j] = both ? 256 + merges : ids[i];
            piece[j] = piece[i];
            i += (size_t)both;
        }
        n = j;
    }
    free(ids); free(piece); free(count);
    return merges;
}

static void trains_as_plainly(const char *text, size_t n)
{
    int32_t merge[60][2];
    gpts_tokenizer t;
    int merges, i;
    t_status(gpts_tokenizer_train(&t, text, n, 256 + 60, NULL), GPTS_OK);
    merges = plain_train(t.vocabulary->classes, t.vocabulary, text, n, merge, 60);
    t_equal(t.vocab_size, 256 + merges);
    for (i = 0; i < merges; i++) {
        const gptsi_merge *m = gptsi_pair_slot(t.vocabulary, merge[i][0], merge[i][1]);
        t_equal(m->order, i + 1);
        t_equal(m->merged, 256 + i);
    }
    gpts_tokenizer_free(&t);
}
static void training_equals_counting_everything_again(void)
{
    int trial;
    for (trial = 0; trial < 40; trial++) {
        char text[400];
        trains_as_plainly(text, random_text(text, 20 + draw(380), trial % 4));
    }
}
/* 9000 words of two letters each from U+0100 to U+07FF: the tables of words and of pairs double more than once */
static void training_on_many_words_equals_counting_everything_again(void)
{
    enum { WORDS = 9000 };
    char *text = (char *)malloc(5 * WORDS);
    size_t n = 0, i;
    for (i = 0; i < 3 * WORDS; i++) {
        int letter = 0x100 + (int)draw(0x700);
        if (i % 3 == 0) text[n++] = ' ';
        else { text[n++] = (char)(0xC0 | letter >> 6); text[n++] = (char)(0x80 | (letter & 63)); }
    }
    trains_as_plainly(text, n);
    free(text);
}

static void both_ways_of_merging_equal_the_plain_one(void)
{
    gpts_tokenizer t;
    char *text = (char *)malloc(4000);
    int32_t short_ids[GPTSI_SHORT], *long_ids = (int32_t *)malloc(4000 * sizeof(int32_t)), *plain = (int32_t *)malloc(4000 * sizeof(int32_t));
    int trial;
    size_t n = random_text(text, 4000, 0), m;
    t_status(gpts_tokenizer_train(&t, text, n, 400, NULL), GPTS_OK);
    for (trial = 0; trial < 300; trial++) {
        gptsi_ids out;
        n = random_text(text, 9 + draw(trial < 200 ? GPTSI_SHORT - 8 : 500), 0);
        m = plain_merge(t.vocabulary, text, n, plain);
        out.ids = long_ids; out.n = 0; out.room = 4000;
        t_status(gptsi_merge_long(&t, text, n, &out), GPTS_OK);
        t_ok(out.n == m && !memcmp(plain, long_ids, m * sizeof *plain));
        if (n > GPTSI_SHORT) continue;
        t_ok(gptsi_merge_short(t.vocabulary, text, n, short_ids) == m && !memcmp(plain, short_ids, m * sizeof *plain));
    }
    gpts_tokenizer_free(&t);
    free(text); free(long_ids); free(plain);
}

static void any_bytes_round_trip(void)
{
    gpts_tokenizer t;
    char text[600];
    int32_t ids[600];
    int trial;
    size_t n = random_text(text, 600, 3);
    t_status(gpts_tokenizer_train(&t, text, n, 320, NULL), GPTS_OK);
    for (trial = 0; trial < 200; trial++) {
        n = random_text(text, 9 + draw(590), trial % 4);
        encode(&t, text, n, ids, 600);
        encode(&t, text, n, ids, 600);                        /* again, from the memory of pieces */
    }
    gpts_tokenizer_free(&t);
}

static void training_checks_its_arguments(void)
{
    gpts_tokenizer t;
    t_status(gpts_tokenizer_train(&t, "ab", 2, 255, NULL), GPTS_BAD_ARGUMENT);
    t_says(t.error, "255");
    t_status(gpts_tokenizer_train(&t, NULL, 2, 300, NULL), GPTS_BAD_ARGUMENT);
    t_status(gpts_tokenizer_train(&t, "", 0, 300, NULL), GPTS_OK);
    t_equal(t.vocab_size, 256);
    gpts_tokenizer_free(&t);
    t_status(gpts_tokenizer_train(&t, "abab", 4, INT32_MAX, NULL), GPTS_OK);
    t_equal(t.vocab_size, 257);
    gpts_tokenizer_free(&t);
}

static void long_runs_stay_within_the_longest_token(void)
{
    gpts_tokenizer t;
    char *text = (char *)malloc(100000);
    int32_t id;
    memset(text, 'a', 100000);
    t_status(gpts_tokenizer_train(&t, text, 100000, 1000, NULL), GPTS_OK);
    for (id = 0; id < t.vocab_size; id++) t_ok(t.vocabulary->tokens[id].length <= GPTSI_TOKEN_BYTES);
    free(text);
    gpts_tokenizer_free(&t);
}

/* ---- files -------------------------------------------------------------------------------------------- */

static void merges_are_read_with_and_without_version_and_with_either_line_end(void)
{
    gpts_tokenizer t;
    static const char *const files[] = { merges_file, "h e\nl l\nhe ll\n\xC4\xA0 w\no r\n\xC4\xA0w or", "#version: 0.2\r\nh e\r\nl l\r\nhe ll\r\n\xC4\xA0 w\r\no r\r\n\xC4\xA0w or\r\n" };
    size_t i;
    for (i = 0; i < 3; i++) {
        t_status(load(&t, files[i]), GPTS_OK);
        t_equal(t.vocab_size, 263);
        t_equal(t.end_of_text, 262);
        SAME(&t, "hello world", 258, 78, 261, 75, 67, END);
        SAME(&t, "<|endoftext|>", 27, 91, 68, 77, 67, 78, 69, 83, 68, 87, 83, 91, 29, END);
        gpts_tokenizer_free(&t);
    }
}

static void ranks_are_read_and_a_whole_piece_stays(void)
{
    gpts_tokenizer t;
    char file[8192];
    size_t n = ranks_file(file, sizeof file);
    t_status(gpts_tokenizer_load_memory(&t, file, n, NULL), GPTS_OK);
    t_equal(t.end_of_text, 259);
    t_equal(t.vocab_size, 261);
    SAME(&t, "hello", 260, END);
    SAME(&t, "hellhe", 258, 256, END);
    gpts_tokenizer_free(&t);
}

static void ids_of_a_file_take_the_place_of_the_order(void)
{
    gpts_tokenizer t;
    char file[8192];
    size_t n = ids_file(file, sizeof file, 0);
    t_status(load(&t, merges_file), GPTS_OK);
    t_status(gpts_tokenizer_load_ids(&t, "{\"a\": 1", 7), GPTS_BAD_FILE);
    t_status(gpts_tokenizer_load_ids(&t, "{\"a\": 1}", 8), GPTS_BAD_FILE);
    SAME(&t, "hello", 258, 78, END);                          /* unchanged */
    t_status(gpts_tokenizer_load_ids(&t, file, n), GPTS_OK);
    SAME(&t, "hello world", 7, 211, 4, 208, 200, END);
    t_equal(t.end_of_text, 3);
    t_status(gpts_tokenizer_save(&t, "build/tests/tokenizer.tmp"), GPTS_UNSUPPORTED);
    gpts_tokenizer_free(&t);
    n = ids_file(file, sizeof file, 1);
    t_status(gpts_tokenizer_load_memory(&t, file, n, NULL), GPTS_OK);
    SAME(&t, "hello world", 7, 211, 4, 208, 200, END);
    t_equal(t.end_of_text, 3);
    gpts_tokenizer_free(&t);
}

static void wordpiece_follows_its_parts(void)
{
    gpts_tokenizer t;
    char text[100];
    static const int32_t ids[] = { 6, 7, 2, 0, 9, 11, 3, 4, 1 };
    size_t n = 100;
    t_status(load(&t, wordpiece_file), GPTS_OK);
    t_equal(t.kind, GPTS_TOKENIZER_WORDPIECE);
    t_equal(t.vocab_size, 12);
    t_equal(t.end_of_text, 1);
    SAME(&t, "", 1, END);
    SAME(&t, "Cats UNHAPPY", 9, 11, 6, 7, 1, END);
    SAME(&t, "unh unhx", 6, 8, 0, 1, END);
    SAME(&t, "``cat''.'1", 2, 9, 2, 3, 4, 5, 1, END);
    SAME(&t, "cat[EOS]cat11", 9, 1, 9, 5, 5, 1, END);
    SAME(&t, "\xE2\x84\xAAs", 10, 11, 1, END);                /* Kelvin sign */
    SAME(&t, "cat\xCC\x81 \xE2\x80\x9C" "cat\xC2\xB2", 0, 0, 9, 0, 1, END);
    SAME(&t, "catssssssss catsssssss", 0, 9, 11, 11, 11, 11, 11, 11, 11, 1, END);
    SAME(&t, "\xFF" "cat$$<", 0, 9, 0, 0, 0, 1, END);
    t_status(gpts_tokenizer_decode(&t, ids, 9, text, &n), GPTS_OK);
    text[n] = 0;
    t_text(text, "unhappy \" [UNK] cats. '");
    gpts_tokenizer_free(&t);
}

static void every_kind_is_saved_and_read_back(void)
{
    char text[2000], file[8192], path[] = "build/tests/tokenizer.tmp";
    int32_t ids[2000], again[2000];
    int kind;
    size_t n = random_text(text, 2000, 3), k, m;
    for (kind = 0; kind < 6; kind++) {
        gpts_tokenizer t, u;
        if (kind == 0) t_status(gpts_tokenizer_bytes(&t, NULL), GPTS_OK);
        if (kind == 1) t_status(gpts_tokenizer_chars(&t, text, n, NULL), GPTS_OK);
        if (kind == 2) t_status(gpts_tokenizer_train(&t, text, n, 300, NULL), GPTS_OK);
        if (kind == 3) t_status(load(&t, merges_file), GPTS_OK);
        if (kind == 4) t_status(gpts_tokenizer_load_memory(&t, file, ranks_file(file, sizeof file), NULL), GPTS_OK);
        if (kind == 5) t_status(load(&t, wordpiece_file), GPTS_OK);
        t_status(gpts_tokenizer_save(&t, path), GPTS_OK);
        t_status(gpts_tokenizer_load(&u, path, NULL), GPTS_OK);
        t_equal(u.kind, t.kind);
        t_equal(u.vocab_size, t.vocab_size);
        t_equal(u.end_of_text, t.end_of_text);
        k = encode(&t, text, n, ids, 2000);
        m = encode(&u, text, n, again, 2000);
        t_ok(k == m && !memcmp(ids, again, k * sizeof *ids));
        gpts_tokenizer_free(&t);
        gpts_tokenizer_free(&u);
    }
    remove(path);
}

static void hostile_files_end_in_one_sentence(void)
{
    static const struct { const char *file, *part; } row[] = {
        { "", "empty" }, { "#version: 0.2\nh\n", "line 2" }, { "h e\n\nl l\n", "line 2" }, { "h  e\n", "line 1: a character" }, { " e\n", "line 1" }, { "h \n", "line 1" },
        { "h e\nh e\n", "line 2: this pair" }, { "he ll\n", "first part" }, { "h ee\n", "second part" }, { "h\te x\n", "stands for no byte" }, { "\xFF\xFE \xFF\n", "stands for no byte" },
        { "a b c\n", "line 1" }, { "YQ== 0\nYQ== 1\n", "same token" }, { "YQ== 0\nYg== 0\n", "same id occurs twice" }, { "YQ== 0\nYg== 99999999\n", "too large" },
        { "YQ== 0\nYg==\n", "line 2" }, { "YQ== 0\nYg=== 1\n", "line 2" }, { "YQ== 0\nYh== 1\n", "line 2" }, { "YQ== 0\n", "byte 0x00" }, { "YQ== 0\n 1\n", "line 2" },
        { "YQ== 0\nYg== 18446744073709551616\n", "line 2" }, { "YQ== 0\nYg== -1\n", "line 2" }, { "{", "JSON is not valid" }, { "{} x", "follows" }, { "{}", "without a model" },
        { "{\"model\": 3}", "without a model" }, { "{\"model\": {}}", "model" }, { "{\"model\": {\"type\": \"Unigram\"}}", "model" }, { "{\"gptstatic\": \"trees\"}", "not a tokenizer" },
        { "{\"gptstatic\": \"chars\"}", "not valid" }, { "{\"gptstatic\": \"chars\", \"characters\": \"a\", \"bytes\": [65]}", "not valid" },
        { "{\"gptstatic\": \"chars\", \"characters\": \"\", \"bytes\": []}", "not valid" }, { "{\"model\": {\"type\": \"WordPiece\"}}", "no vocab" },
        { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": 7}}", "not an object" }, { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": -1}}}", "entry 1" },
        { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0, \"b\": 0}}}", "occurs twice" }, { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 4000000000}}}", "too large" },
        { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0, \"\": 1}}}", "0 bytes" }, { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}, \"unk_token\": \"b\"}}", "unknown token" },
        { "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}, \"unk_token\": \"a\", \"continuing_subword_prefix\": \"#################\"}}", "continuing_subword_prefix" },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}, \"model\": {\"type\": \"BPE\"}}", "pre_tokenizer" },
        { "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "byte 0x00" } };
    size_t i;
    gpts_tokenizer t;
    for (i = 0; i < sizeof row / sizeof *row; i++) {
        gpts_status status = load(&t, row[i].file);
        t_ok(status == GPTS_BAD_FILE || status == GPTS_UNSUPPORTED);
        t_says(t.error, row[i].part);
        t_ok(!t.vocabulary);
        gpts_tokenizer_free(&t);
    }
    t_status(gpts_tokenizer_load(&t, "build/no/such/file", NULL), GPTS_IO);
    t_says(t.error, "no/such/file");
}

/* Whatever is cut off or changed: a valid object or a sentence. */
static void damaged_files_never_crash(void)
{
    char file[3][8192], copy[8192];
    size_t size[3], which, n, i;
    int trial;
    gpts_tokenizer t;
    int32_t ids[64];
    size[0] = (size_t)snprintf(file[0], 8192, "%s", merges_file);
    size[1] = ids_file(file[1], 8192, 1);
    size[2] = (size_t)snprintf(file[2], 8192, "%s", wordpiece_file);
    for (trial = 0; trial < 1500; trial++) {
        which = (size_t)trial % 3;
        memcpy(copy, file[which], size[which]);
        n = trial & 8 ? size[which] : draw((uint32_t)size[which] + 1);
        for (i = 0; n && i < 1 + draw(4); i++) copy[draw((uint32_t)n)] = trial & 16 ? (char)draw(256) : "{}[],:\"\\ \n0a"[draw(12)];
        if (gpts_tokenizer_load_memory(&t, copy, n, NULL) == GPTS_OK) {
            size_t k = 64;
            gpts_tokenizer_encode(&t, "hello world. Cats''", 19, ids, &k);
        } else t_ok(*t.error && !t.vocabulary);
        gpts_tokenizer_free(&t);
    }
}

/* ---- memory running out ------------------------------------------------------------------------------- */

static struct { long left, live; } memory;
static void *count_allocate(void *context, size_t bytes)
{
    (void)context;
    if (memory.left-- <= 0) return NULL;
    memory.live++;
    return malloc(bytes);
}
static void count_release(void *context, void *block, size_t bytes) { (void)context; (void)bytes; memory.live--; free(block); }

static gpts_status everything(int what, gpts_tokenizer *t, const gpts_hooks *hooks)
{
    static char text[5000], file[8192];
    int32_t ids[5000];
    size_t n, k = 1000;
    gpts_status status;
    seed = 5;
    n = random_text(text, 5000, what == 3 ? 0 : 3);
    if (what == 0) return gpts_tokenizer_bytes(t, hooks);
    if (what == 1) return gpts_tokenizer_chars(t, text, n, hooks);
    if (what == 2) return gpts_tokenizer_train(t, text, n, 400, hooks);
    if (what == 3) {
        status = gpts_tokenizer_train(t, "abab", 4, 257, hooks);
        return status == GPTS_OK ? gpts_tokenizer_encode(t, text, 1000, ids, &k) : status;
    }
    if (what == 4) return gpts_tokenizer_load_memory(t, file, ranks_file(file, sizeof file), hooks);
    if (what == 5) return gpts_tokenizer_load_memory(t, file, ids_file(file, sizeof file, 1), hooks);
    if (what == 6) return gpts_tokenizer_load_memory(t, wordpiece_file, sizeof wordpiece_file - 1, hooks);
    status = gpts_tokenizer_load_memory(t, merges_file, sizeof merges_file - 1, hooks);
    if (status != GPTS_OK) return status;
    if (what == 7) return gpts_tokenizer_load_ids(t, file, ids_file(file, sizeof file, 0));
    if (what == 8) return gpts_tokenizer_save(t, "build/tests/tokenizer.tmp");
    return gpts_tokenizer_load(t, "build/tests/tokenizer.tmp", hooks);
}

static void running_out_of_memory_anywhere_is_a_status(void)
{
    gpts_hooks hooks;
    int what;
    memset(&hooks, 0, sizeof hooks);
    hooks.allocate = count_allocate;
    hooks.release = count_release;
    for (what = 0; what < 9; what++) {
        long allowed;
        gpts_status status = GPTS_NO_MEMORY;
        for (allowed = 0; status != GPTS_OK && allowed < 1000; allowed++) {
            gpts_tokenizer t;
            memory.left = allowed; memory.live = 0;
            status = everything(what, &t, &hooks);
            t_ok(status == GPTS_OK || status == GPTS_NO_MEMORY);
            if (status != GPTS_OK) t_says(t.error, "memory");
            gpts_tokenizer_free(&t);
            t_equal(memory.live, 0);
        }
        t_status(status, GPTS_OK);
        t_ok(allowed > 3);
    }
    remove("build/tests/tokenizer.tmp");
}

/* ---- GPT-2's own files, where they are ------------------------------------------------------------------ */

/* SHA-256 (FIPS 180-4), to compare token streams with published digests. */
static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }
static void sha256_block(uint32_t h[8], const unsigned char *p)
{
    static uint32_t k[64];
    uint32_t w[64], s[8], a, b;
    int i, j;
    if (!k[0]) for (i = 0, j = 2; i < 64; j++) {              /* cube roots of the primes */
        int d;
        for (d = 2; d * d <= j && j % d; d++) continue;
        if (d * d > j) k[i++] = (uint32_t)(int64_t)((cbrt((double)j) - floor(cbrt((double)j))) * 4294967296.0);
    }
    for (i = 0; i < 16; i++) w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (i = 0; i < 64; i++) {
        a = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        b = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (j = 7; j > 0; j--) s[j] = s[j - 1];
        s[4] += a;
        s[0] = a + b;
    }
    for (i = 0; i < 8; i++) h[i] += s[i];
}
static void sha256(const unsigned char *data, size_t n, char hex[65])
{
    uint32_t h[8] = { 0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19 };
    unsigned char last[128] = { 0 };
    size_t i, rest = n % 64, tail = rest < 56 ? 64 : 128;
    for (i = 0; i + 64 <= n; i += 64) sha256_block(h, data + i);
    if (rest) memcpy(last, data + i, rest);
    last[rest] = 0x80;
    for (i = 0; i < 8; i++) last[tail - 1 - i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
    for (i = 0; i < tail; i += 64) sha256_block(h, last + i);
    for (i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08lx", (unsigned long)h[i]);
}

static void sha256_gives_the_published_digests(void)
{
    char hex[65];
    sha256((const unsigned char *)"abc", 3, hex);
    t_text(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256((const unsigned char *)"", 0, hex);
    t_text(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static int gpt2(gpts_tokenizer *t)
{
    if (gpts_tokenizer_load(t, "data/vocab.bpe", NULL) == GPTS_OK) return 1;
    if (gpts_tokenizer_load(t, "../shared/data/gpt2-vocab.bpe", NULL) == GPTS_OK) return 1;
    t_skip("GPT-2's vocab.bpe is not there: make data");
    return 0;
}

static void gpt2_has_50257_ids_and_its_well_known_ones(void)
{
    gpts_tokenizer t, u;
    char *json, error[GPTS_ERROR_BYTES];
    size_t n;
    if (!gpt2(&t)) return;
    t_equal(t.vocab_size, 50257);
    t_equal(t.end_of_text, 50256);
    SAME(&t, "hello world", 31373, 995, END);
    SAME(&t, "indivisible", 521, 452, 12843, END);
    SAME(&t, "hello \xF0\x9F\x91\x8B world \xF0\x9F\x8C\x8D", 31373, 50169, 233, 995, 12520, 234, 235, END);
    SAME(&t, "<|endoftext|>", 27, 91, 437, 1659, 5239, 91, 29, END);
    SAME(&t, "IT'S", 2043, 6, 50, END);
    SAME(&t, "\r\n", 201, 198, END);
    SAME(&t, " \xC2\x85" "0", 220, 126, 227, 15, END);
    if (gpts_read_file("../shared/data/gpt2-encoder.json", &json, &n, NULL, error) == GPTS_OK) {
        t_status(gpts_tokenizer_load_ids(&t, json, n), GPTS_OK);
        t_equal(t.vocabulary->renumbered, 0);                 /* the very same ids */
        t_status(gpts_tokenizer_load_memory(&u, json, n, NULL), GPTS_BAD_FILE);
        gpts_release(NULL, json);
    }
    gpts_tokenizer_free(&t);
}

static void E57_gpt2_on_Tiny_Shakespeare_has_the_published_digest(void)
{
    gpts_tokenizer t;
    char *text = NULL, hex[65], error[GPTS_ERROR_BYTES];
    size_t bytes, n, i;
    int32_t *ids;
    unsigned char *stream;
    if (!gpt2(&t)) return;
    if (gpts_read_file("data/tinyshakespeare.txt", &text, &bytes, NULL, error) != GPTS_OK && gpts_read_file("../shared/data/tinyshakespeare.txt", &text, &bytes, NULL, error) != GPTS_OK) {
        t_skip("Tiny Shakespeare is not there: make data");
        gpts_tokenizer_free(&t);
        return;
    }
    ids = (int32_t *)malloc(bytes * sizeof *ids);
    stream = (unsigned char *)malloc(2 * bytes);
    n = encode(&t, text, bytes, ids, bytes);
    t_equal(n, 338025);
    for (i = 0; i < n; i++) { stream[2 * i] = (unsigned char)(ids[i] & 255); stream[2 * i + 1] = (unsigned char)(ids[i] >> 8); }
    sha256(stream, 2 * n, hex);
    t_text(hex, "25c01b32b32f41897a6359dd222ec114992dc30c357bcafbfe6c56672f76cd31");
    sha256(stream, 2 * 301966, hex);
    t_text(hex, "502a2bdc8210d1ac5d5674867cb74467dd31db575d25cf6dbb08c8bdbea8680f");
    free(ids);
    free(stream);
    gpts_release(NULL, text);
    gpts_tokenizer_free(&t);
}

/* Not a test of time: the figures are printed, the ids checked by their round trip. */
static void E58_hostile_texts_round_trip_in_the_time_printed(void)
{
    static const char *const name[] = { "one million 'a'", "one million random letters", "one million '^'", "one million spaces", "one million random bytes" };
    enum { MILLION = 1000000 };
    gpts_tokenizer t;
    char *text = (char *)malloc(MILLION);
    int32_t *ids = (int32_t *)malloc(MILLION * sizeof *ids);
    int kind, i;
    size_t n;
    clock_t begin;
    if (gpts_tokenizer_load(&t, "../shared/data/gpt2-vocab.bpe", NULL) != GPTS_OK) {
        random_text(text, 20000, 0);
        t_status(gpts_tokenizer_train(&t, text, 20000, 1000, NULL), GPTS_OK);
    }
    for (kind = 0; kind < 5; kind++) {
        for (i = 0; i < MILLION; i++) text[i] = (char)(kind == 0 ? 'a' : kind == 1 ? 'a' + (int)draw(26) : kind == 2 ? '^' : kind == 3 ? ' ' : (int)draw(256));
        n = MILLION;
        begin = clock();
        t_status(gpts_tokenizer_encode(&t, text, MILLION, ids, &n), GPTS_OK);
        printf("  %s: %lu ids, %.3f s\n", name[kind], (unsigned long)n, (double)(clock() - begin) / CLOCKS_PER_SEC);
        encode(&t, text, MILLION, ids, MILLION);
    }
    gpts_tokenizer_free(&t);
    free(text);
    free(ids);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(json_accepts_and_refuses_what_the_standard_does);
    T(json_nesting_is_limited_to_64);
    T(json_numbers_are_exact);
    T(json_strings_are_measured_and_bounded);
    T(utf8_reads_back_every_code_point_and_nothing_else);
    T(unicode_classes_have_the_sizes_of_version_15);
    T(E57_split_follows_the_regular_expression);
    T(bytes_are_their_own_ids);
    T(characters_are_numbered_in_ascending_order);
    T(E59_room_that_is_too_small_is_refused_with_the_number_needed);
    T(example_of_Gage_merges_aa_then_ab_then_both);
    T(training_equals_counting_everything_again);
    T(training_on_many_words_equals_counting_everything_again);
    T(both_ways_of_merging_equal_the_plain_one);
    T(any_bytes_round_trip);
    T(training_checks_its_arguments);
    T(long_runs_stay_within_the_longest_token);
    T(merges_are_read_with_and_without_version_and_with_either_line_end);
    T(ranks_are_read_and_a_whole_piece_stays);
    T(ids_of_a_file_take_the_place_of_the_order);
    T(wordpiece_follows_its_parts);
    T(every_kind_is_saved_and_read_back);
    T(hostile_files_end_in_one_sentence);
    T(damaged_files_never_crash);
    T(running_out_of_memory_anywhere_is_a_status);
    T(sha256_gives_the_published_digests);
    T(gpt2_has_50257_ids_and_its_well_known_ones);
    T(E57_gpt2_on_Tiny_Shakespeare_has_the_published_digest);
    T(E58_hostile_texts_round_trip_in_the_time_printed);
    return t_end();
}

/* edges.c - the sentences that nothing else asks for: arguments, files and counts just past
   what is allowed, each with the status and the words that name the cause; E23.             */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"
#include "models.h"
#include "tokenizer_files.h"

static const model_case small =
    { "edges", 13, 24, 2, 2, 8, 12, GPTS_POSITION_LEARNED, GPTS_NORM_LAYER, GPTS_GELU_ERF, 1, 0,
      2, 9, NONE, 0, 0,0,0,0,GPTS_RELU, {0,0,0},{0,0,0}, 0,0,0 };

static void every_status_has_a_text(void)
{
    int s;
    for (s = 0; s < GPTS_STATUS_COUNT; s++) t_ok(strlen(gpts_status_text((gpts_status)s)) > 5);
    t_text(gpts_status_text(GPTS_STATUS_COUNT), "unknown status");
    t_text(gpts_status_text(GPTS_OK), "all is well");
}
static void E23_batches_and_options_out_of_range(void)
{
    static const int32_t outside[2] = { 20, 3 }, first[2] = { 0, 8 }, length[2] = { 3, 5 }, none[2] = { 3, 0 };
    gpts_train_options options = gpts_train_options_default();
    gpts_real x[200];
    gpts_model m;
    gpts_trainer t;
    gpts_session s;
    case_batch b;
    gpts_batch batch;
    memset(&t, 0, sizeof t); memset(&s, 0, sizeof s);
    case_batch_make(&b, &small, 1);
    t_status(case_model(&m, &small, NULL), GPTS_OK);
    if (t_state.bad) return;
    batch = b.batch; batch.B = 0;
    t_status(gpts_model_forward(&m, &batch, NULL, NULL), GPTS_BAD_ARGUMENT);
    t_says(m.error, "B and T");
    batch = b.batch; batch.first = first; batch.length = length;
    t_status(gpts_model_forward(&m, &batch, NULL, NULL), GPTS_BAD_ARGUMENT);
    t_says(m.error, "row 1");
    t_status(gpts_model_record(&m, &b.batch, 2, x, x), GPTS_BAD_ARGUMENT);
    t_says(m.error, "layer 2");
    options.beta1 = 1;
    t_status(gpts_trainer_init(&t, &m, &options), GPTS_BAD_ARGUMENT);
    t_says(t.error, "betas");
    t_status(gpts_session_init(&s, &m, 0, 5, NULL), GPTS_BAD_ARGUMENT);
    t_says(s.error, "capacity");
    t_status(gpts_session_init(&s, &m, 2, 12, NULL), GPTS_OK);
    t_status(gpts_session_prefill(&s, b.tokens, 3, none), GPTS_BAD_ARGUMENT);
    t_says(s.error, "row 1 has 0 tokens, expected 1 to 3");
    t_status(gpts_session_prefill(&s, b.tokens, 3, length), GPTS_BAD_ARGUMENT);
    t_says(s.error, "row 1 has 5 tokens");
    t_status(gpts_session_prefill(&s, b.tokens, 3, NULL), GPTS_OK);
    t_status(gpts_session_decode(&s, outside), GPTS_BAD_ARGUMENT);
    t_says(s.error, "20");
    gpts_session_free(&s);
    gpts_model_free(&m);
}
static void the_greedy_loop_draws_what_sampling_draws(void)
{
    enum { N = 6 };
    gpts_model m;
    gpts_session s;
    case_batch b;
    int32_t loop[N * 2], one[2];
    gpts_sampling greedy;
    gpts_rng rng;
    int i, r;
    memset(&s, 0, sizeof s); memset(&greedy, 0, sizeof greedy);
    rng.seed = rng.counter = 0;
    case_batch_make(&b, &small, 1);
    t_status(case_model(&m, &small, NULL), GPTS_OK);
    t_status(gpts_session_init(&s, &m, 2, 12, NULL), GPTS_OK);
    if (t_state.bad) return;
    t_status(gpts_session_prefill(&s, b.tokens, 3, NULL), GPTS_OK);
    t_status(gpts_session_greedy(&s, loop, 0), GPTS_OK);
    t_status(gpts_session_greedy(&s, loop, N), GPTS_OK);
    gpts_session_reset(&s);
    t_status(gpts_session_prefill(&s, b.tokens, 3, NULL), GPTS_OK);
    for (i = 0; i < N; i++) {
        for (r = 0; r < 2; r++) one[r] = gpts_sample(gpts_session_logits(&s, (size_t)r), 13, &greedy, &rng);
        for (r = 0; r < 2; r++) t_equal(loop[2 * i + r], one[r]);
        t_status(gpts_session_decode(&s, one), GPTS_OK);
    }
    gpts_session_free(&s);
    gpts_model_free(&m);
}
static void E23_approximators_that_do_not_fit(void)
{
    gpts_model m;
    gpts_approximator a;
    gpts_recording r;
    gpts_approximator_options o;
    gpts_real block[200];
    case_batch b;
    double r2;
    memset(&a, 0, sizeof a); memset(&r, 0, sizeof r); memset(&o, 0, sizeof o); memset(block, 0, sizeof block);
    case_batch_make(&b, &small, 1);
    t_status(case_model(&m, &small, NULL), GPTS_OK);
    if (t_state.bad) return;
    a.C = 4; a.window = 1; a.hidden = 3; a.layer = 0; a.fc_w = block; a.fc_b = block + 12; a.proj_w = block + 15; a.proj_b = block + 27;
    t_status(gpts_approximator_install(&m, NULL, &a, 0), GPTS_BAD_SHAPE);
    t_says(m.error, "width 4");
    a.C = 8; a.layer = 7; a.fc_b = block + 24; a.proj_w = block + 27; a.proj_b = block + 51;
    t_status(gpts_approximator_install(&m, NULL, &a, 0), GPTS_BAD_SHAPE);
    t_says(m.error, "layer 7");
    a.layer = 0;
    t_status(gpts_approximator_install(&m, NULL, &a, 0), GPTS_OK);
    a.layer = 1; a.activation = a.activation == GPTS_RELU ? GPTS_GELU_ERF : GPTS_RELU;
    t_status(gpts_approximator_install(&m, NULL, &a, 0), GPTS_BAD_ARGUMENT);
    t_says(m.error, "activation");
    memset(&a, 0, sizeof a);
    t_status(gpts_approximator_fit(&a, &m, &r, NULL, &o, &r2), GPTS_BAD_ARGUMENT);
    t_says(a.error, "rows");
    gpts_approximator_free(&a);
    gpts_model_free(&m);
}
static void E23_tokenizers_asked_for_what_they_are_not(void)
{
    static const char no_merges[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}";
    static char text[8192];
    gpts_tokenizer k;
    memset(&k, 0, sizeof k);
    t_status(gpts_tokenizer_bytes(&k, NULL), GPTS_OK);
    t_status(gpts_tokenizer_load_ids(&k, text, ids_file(text, sizeof text, 0)), GPTS_BAD_ARGUMENT);
    t_says(k.error, "BPE");
    gpts_tokenizer_free(&k);
    t_status(gpts_tokenizer_load_memory(&k, no_merges, sizeof no_merges - 1, NULL), GPTS_BAD_FILE);
    t_says(k.error, "merges");
    t_status(gpts_tokenizer_load_memory(&k, wordpiece_file, sizeof wordpiece_file - 1, NULL), GPTS_OK);
    gpts_tokenizer_free(&k);
}
static void E23_files_asked_for_what_they_have_not(void)
{
    gpts_file_pair pair;
    gpts_file_entry e;
    gpts_file_tensor tensor;
    gpts_file f;
    gpts_model m;
    gpts_tokens tokens;
    gpts_real x[4];
    int32_t whole[4] = { 1, 2, 3, 4 };
    char error[GPTS_ERROR_BYTES] = "", *data;
    size_t bytes;
    memset(&f, 0, sizeof f); memset(&m, 0, sizeof m); memset(&tokens, 0, sizeof tokens); memset(&e, 0, sizeof e); memset(&tensor, 0, sizeof tensor);
    t_status(gpts_file_read(&f, &tensor, 0, 1, x), GPTS_BAD_ARGUMENT);
    t_says(f.error, "no open file");
    t_status(gpts_model_load(&m, "", NULL), GPTS_BAD_ARGUMENT);
    t_ok(m.error[0] != 0);
    t_status(gpts_model_save(&m, NULL), GPTS_BAD_ARGUMENT);
    t_says(m.error, "no file name");
    t_status(gpts_tokens_load(&tokens, NULL, NULL), GPTS_BAD_ARGUMENT);
    t_says(tokens.error, "no file name");
    t_status(gpts_tokens_save(&tokens, NULL), GPTS_BAD_ARGUMENT);
    t_says(tokens.error, "no file name");
    t_status(gpts_read_file("Makefile/inside", &data, &bytes, NULL, error), GPTS_IO);
    t_says(error, "inside");
    e.name = "whole"; e.dtype = GPTS_I32; e.rank = 1; e.shape[0] = 4; e.data = whole;
    pair.key = "k"; pair.value = "\xFF";
    t_status(gpts_file_write("build/tests/edges.safetensors", &e, 1, &pair, 1, NULL, error), GPTS_BAD_ARGUMENT);
    t_says(error, "UTF-8");
    t_status(gpts_file_write("build/tests/edges.safetensors", &e, 1, NULL, 0, NULL, error), GPTS_OK);
    t_status(gpts_file_open(&f, "build/tests/edges.safetensors", NULL), GPTS_OK);
    if (!t_state.bad) {
        t_status(gpts_file_read(&f, gpts_file_find(&f, "whole"), 0, 4, x), GPTS_UNSUPPORTED);
        t_says(f.error, "F32, F16, BF16 or F64");
        t_status(gpts_file_read_i32(&f, gpts_file_find(&f, "whole"), SIZE_MAX, 4, whole), GPTS_BAD_ARGUMENT);
        t_says(f.error, "whole");
    }
    gpts_file_close(&f);
    remove("build/tests/edges.safetensors");
    t_status(gpts_model_load_mapped_checked(&m, "x", NULL, NULL, 1), GPTS_MISMATCH);
    t_says(m.error, "GPTS_REAL");
}
/* A file that grows while it is read, or has no size, is read to its end. */
static void special_files_are_read_to_the_end(void)
{
    char *data = NULL, error[GPTS_ERROR_BYTES] = "";
    size_t bytes = 0;
    gpts_status s = gpts_read_file("/proc/self/smaps", &data, &bytes, NULL, error);
    if (s == GPTS_IO) { t_skip("there is no /proc here"); return; }
    t_status(s, GPTS_OK);
    if (!t_state.bad) t_ok(bytes > 5000 && data[bytes] == 0 && strlen(data) == bytes);
    gpts_release(NULL, data);
}

int main(int argc, char **argv)
{
    t_begin(argc, argv);
    T(every_status_has_a_text);
    T(E23_batches_and_options_out_of_range);
    T(the_greedy_loop_draws_what_sampling_draws);
    T(E23_approximators_that_do_not_fit);
    T(E23_tokenizers_asked_for_what_they_are_not);
    T(E23_files_asked_for_what_they_have_not);
    T(special_files_are_read_to_the_end);
    return t_end();
}

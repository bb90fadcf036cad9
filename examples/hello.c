/* hello.c - the smallest drop-in: load a model, or train one for a few seconds; generate

   cc -O3 -I. examples/hello.c -lm -o hello && ./hello
   ./hello --model out/base_model.safetensors --tokenizer out/tokenizer.json

   `hello` below is the whole program: one include, a handful of objects that are zero at
   the start and freed at the end, and calls that return a status.                      */
#include "cli.h"

static const char poem[] =
    "One grey goose goes over the hill, two grey geese stand perfectly still, "
    "three grey geese go down to the mill, and the miller says: good morning! ";

/* Learns `text` by heart, byte by byte, and says it again. */
static gpts_status hello(gpts_model *model, const char *text)
{
    gpts_config config = gpts_config_default();           /* GPT-2's settings, made small */
    gpts_train_options options = gpts_train_options_default();
    gpts_trainer trainer = {0};
    gpts_status status;
    int32_t tokens[4 * 64], targets[4 * 64];
    size_t i, n = strlen(text), step;
    config.vocab_size = 256;
    config.n_positions = 160;
    config.position = GPTS_POSITION_ROPE;
    config.n_layer = config.n_head = 2;
    config.n_embd = 64;
    options.learning_rate = 5e-3;                         /* falls on a cosine */
    options.total = 300;
    status = gpts_model_init(model, &config, (uint64_t)cli.seed, &cli.hooks);
    if (status == GPTS_OK) cli_place(model);              /* on the GPU with --gpu */
    if (status == GPTS_OK) status = gpts_trainer_init(&trainer, model, &options);
    for (step = 0; status == GPTS_OK && step < 300; step++) {
        for (i = 0; i < 4 * 64; i++) {                     /* 4 windows of 64 bytes */
            size_t at = (step * 7 + i / 64 * 29 + i % 64) % n;
            tokens[i] = (unsigned char)text[at];
            targets[i] = (unsigned char)text[(at + 1) % n];
        }
        status = gpts_trainer_update(&trainer, tokens, targets, 4, 64, NULL);
    }
    gpts_trainer_free(&trainer);
    return status;
}

int main(int argc, char **argv)
{
    static const cli_flag flags[] = { CLI_TEXT("tokenizer", cli.tokenizer, "the model's tokenizer, a file (default: bytes)"), CLI_END };
    const char prompt[] = "One grey goose";
    char text[256];
    gpts_model model = {0};
    gpts_session session = {0};
    gpts_tokenizer tokenizer = {0};
    gpts_sampling sampling = { 0.7, 0, 0.95 };
    gpts_rng rng = { 0, 0 };
    int32_t ids[110];
    size_t n = 110, bytes, room, i;
    cli_begin(argc, argv, "hello", "Loads a model, or trains one for a few seconds, and generates.", CLI_MODEL | CLI_GPU, flags, "");

    if (cli.model) {
        CLI_TRY(gpts_model_load(&model, cli.model, &cli.hooks), model.error);
        cli_place(&model);
    } else CLI_TRY(hello(&model, poem), model.error);

    if (cli.tokenizer) CLI_TRY(gpts_tokenizer_load(&tokenizer, cli.tokenizer, &cli.hooks), tokenizer.error);
    else CLI_TRY(gpts_tokenizer_bytes(&tokenizer, &cli.hooks), tokenizer.error);
    if (tokenizer.vocab_size != model.config.vocab_size)
        cli_fail("the model has %d ids, the tokenizer %d: name its file with --tokenizer", (int)model.config.vocab_size, (int)tokenizer.vocab_size);
    CLI_TRY(gpts_tokenizer_encode(&tokenizer, prompt, strlen(prompt), ids, &n), tokenizer.error);
    room = model.config.n_positions < 110 ? (size_t)model.config.n_positions : 110;
    CLI_TRY(gpts_session_init(&session, &model, 1, room, NULL), session.error);
    CLI_TRY(gpts_session_prefill(&session, ids, n, NULL), session.error);
    printf("%s", prompt);
    for (i = n; i < room; i++) {
        int32_t id = gpts_sample(gpts_session_logits(&session, 0), (size_t)model.config.vocab_size, &sampling, &rng);
        bytes = sizeof text;
        CLI_TRY(gpts_tokenizer_decode(&tokenizer, &id, 1, text, &bytes), tokenizer.error);
        fwrite(text, 1, bytes, stdout);
        CLI_TRY(gpts_session_decode(&session, &id), session.error);
    }
    printf("\n");
    gpts_session_free(&session);
    gpts_tokenizer_free(&tokenizer);
    gpts_model_free(&model);
    return cli_end();
}

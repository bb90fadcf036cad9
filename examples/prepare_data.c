/* prepare_data.c - text -> tokens: OUT/train.bin, val.bin and tokenizer.json

   A model reads numbers.  A tokenizer cuts the text into pieces and numbers them:
     bytes  256 pieces; any text fits, sequences are long
     chars  the characters that occur
     bpe    byte-level pairs: begins with bytes and joins the most frequent pair again and
            again, until there are --vocabulary pieces (learned here, from the training part)
     gpt2   the same with GPT-2's 50,000 joins
   The first part of the text is for training; the last, which the model never learns from,
   tells how well it does on text that it has not seen.

     prepare_data                             the stories of corpus.h
     prepare_data --data book.txt --tokenizer chars                                        */
#include "corpus.h"
#include "plot.h"

static const cli_flag flags[] = { CLI_END };

/* The piece of one id, safe to print: a line end as \n, half characters as \xNN. */
static const char *piece(gpts_tokenizer *tokenizer, int32_t id, char shown[64])
{
    char raw[16];
    size_t n = sizeof raw, i, used = 0;
    int whole = 1;
    if (gpts_tokenizer_decode(tokenizer, &id, 1, raw, &n) != GPTS_OK) return "?";
    for (i = 0; i < n; i++) if ((unsigned char)raw[i] >= 128) whole = 0;
    for (i = 0; i < n && used < 56; i++) {
        unsigned char c = (unsigned char)raw[i];
        if (c == '\n') used += (size_t)snprintf(shown + used, 64 - used, "\\n");
        else if (c < 32 || c == 127 || (c >= 128 && !whole)) used += (size_t)snprintf(shown + used, 64 - used, "\\x%02x", c);
        else shown[used++] = (char)c;
    }
    shown[used] = 0;
    return shown;
}

/* How many nats a token costs if only its frequency is known: where learning begins. */
static double unigram_entropy(const uint16_t *ids, size_t n, size_t V)
{
    double *count = CLI_NEW(double, V), sum = 0;
    size_t i;
    for (i = 0; i < n; i++) count[ids[i]]++;
    for (i = 0; i < V; i++) if (count[i] > 0) sum -= count[i] / (double)n * log(count[i] / (double)n);
    free(count);
    return sum;
}

int main(int argc, char **argv)
{
    corpus_tokens data;
    char sample[1200], cut[400] = "", shown[64];
    size_t n, i, used = 0, length = sizeof sample;
    int32_t id;
    double entropy, per_token, V;
    cli_begin(argc, argv, "prepare_data", "Text -> tokens for training and validation.", CLI_DATA, flags,
              "bytes vocabulary tokens_train tokens_val bytes_per_token entropy_uniform entropy_unigram");
    cli_make_out();
    cli_results();

    corpus_prepare(&data);

    V = (double)data.tokenizer.vocab_size;
    per_token = (double)data.bytes / (double)(data.n_train + data.n_val);
    entropy = unigram_entropy(data.train, data.n_train, (size_t)data.tokenizer.vocab_size);
    for (i = 0; i < 24 && i < data.n_val && used < 300; i++)
        used += (size_t)snprintf(cut + used, sizeof cut - used, "%s%s", i ? "\xC2\xB7" : "", piece(&data.tokenizer, data.val[i], shown));
    cli_say("text        %s: %llu bytes\n", data.source, (unsigned long long)data.bytes);
    cli_say("vocabulary  %d ids, %.2f bytes a token\n", (int)data.tokenizer.vocab_size, per_token);
    cli_say("tokens      %llu for training, %llu for validation\n", (unsigned long long)data.n_train, (unsigned long long)data.n_val);
    cli_say("cut so      %s\n", cut);
    cli_say("loss        %.3f for a guess among all ids, %.3f knowing how often each occurs\n", log(V), entropy);

    plot_begin("data", "The text");
    plot_say("%s: %llu bytes, %d kinds of tokens of %.2f bytes on average; %llu tokens for training, %llu held back for validation.",
             data.source, (unsigned long long)data.bytes, (int)data.tokenizer.vocab_size, per_token,
             (unsigned long long)data.n_train, (unsigned long long)data.n_val);
    plot_say("A blind guess costs %.2f nats a token; knowing only how often each token occurs, %.2f. It begins like this:", log(V), entropy);
    for (n = 0, id = 0; n < 220 && n < data.n_train; n++) {
        char text[160];
        size_t bytes = sizeof text;
        id = data.train[n];
        if (gpts_tokenizer_decode(&data.tokenizer, &id, 1, text, &bytes) != GPTS_OK || bytes > length) break;
        memcpy(sample + sizeof sample - length, text, bytes);
        length -= bytes;
    }
    if (length >= 4) { memcpy(sample + sizeof sample - length, " ...", 4); length -= 4; }
    plot_quote(sample, sizeof sample - length);
    plot_end();

    cli_json_real("bytes", (double)data.bytes);
    cli_json_real("vocabulary", V);
    cli_json_real("tokens_train", (double)data.n_train);
    cli_json_real("tokens_val", (double)data.n_val);
    cli_json_real("bytes_per_token", per_token);
    cli_json_real("entropy_uniform", log(V));
    cli_json_real("entropy_unigram", entropy);
    corpus_close(&data);
    return cli_end();
}

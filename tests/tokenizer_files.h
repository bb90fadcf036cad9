/* tokenizer_files.h - one small file of each kind that gpts_tokenizer_load knows: merges, a
   WordPiece tokenizer.json, a BPE tokenizer.json (or its ids alone), a .tiktoken.          */
#ifndef TOKENIZER_FILES_H
#define TOKENIZER_FILES_H

static const char merges_file[] = "#version: 0.2\nh e\nl l\nhe ll\n\xC4\xA0 w\no r\n\xC4\xA0w or\n";
static const char wordpiece_file[] =
    "{\"added_tokens\": [{\"id\": 1, \"content\": \"[EOS]\", \"special\": true}], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
    "{\"type\": \"Lowercase\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \"``\"}, \"content\": \"\\\"\"},"
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \"''\"}, \"content\": \"\\\"\"}]},"
    "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Whitespace\"}, {\"type\": \"Punctuation\", \"behavior\": \"Isolated\"},"
    "{\"type\": \"Digits\", \"individual_digits\": true}]}, \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[EOS]\", \"type_id\": 0}}], \"pair\": []},"
    "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true},"
    "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 10,"
    "\"vocab\": {\"[UNK]\": 0, \"[EOS]\": 1, \"\\\"\": 2, \".\": 3, \"'\": 4, \"1\": 5, \"un\": 6, \"##happy\": 7, \"##h\": 8, \"cat\": 9, \"k\": 10, \"##s\": 11}}}";

/* {"vocab": ...} of merges_file with other ids: bytes from 100 on, then the rest backwards. */
static size_t ids_file(char *out, size_t room, int bpe)
{
    static const char *const rest[] = { "he", "ll", "hell", "\xC4\xA0w", "or", "\xC4\xA0wor", "<|endoftext|>" };
    size_t n = 0, i;
    int byte;
    char four[4];
    if (bpe) n += (size_t)snprintf(out, room, "{\"added_tokens\": [{\"id\": 3, \"content\": \"<|endoftext|>\", \"special\": true}], \"normalizer\": null,"
                                   "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", \"vocab\": ");
    for (byte = 0; byte < 256; byte++) {
        size_t k = gptsi_utf8_put(gptsi_byte_code((uint32_t)byte), four);
        n += (size_t)snprintf(out + n, room - n, "%s\"%s%.*s\": %d", byte ? ", " : "{", byte == '"' || byte == '\\' ? "\\" : "", (int)k, four, byte + 100);
    }
    for (i = 0; i < 7; i++) n += (size_t)snprintf(out + n, room - n, ", \"%s\": %d", rest[i], 9 - (int)i);
    n += (size_t)snprintf(out + n, room - n, "}");
    if (bpe) n += (size_t)snprintf(out + n, room - n, ", \"merges\": [\"h e\", \"l l\", [\"he\", \"ll\"], \"\xC4\xA0 w\", \"o r\", \"\xC4\xA0w or\"]}}");
    return n;
}

/* Every byte and a few joined ones as a .tiktoken. */
static size_t ranks_file(char *out, size_t room)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    int byte;
    for (byte = 0; byte < 256; byte++) n += (size_t)snprintf(out + n, room - n, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    n += (size_t)snprintf(out + n, room - n, "aGU= 256\nbGw= 257\naGVsbA== 258\naGVsbG8= 260\n");     /* he, ll, hell; hello, 259 is free */
    return n;
}

#endif

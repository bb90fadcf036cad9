/* safetensors FILE.jsonl...: files in hexadecimal and the verdict expected of the reader.
   Each line has "hex" and "expect" ("accept" or "reject"); "name" and "why" are shown on a
   failure.  Ends with `N passed, N failed`, status 1 if any failed.                        */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

static int hex_digit(int ch)
{
    return ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10 : -1;
}

/* An accepted file must also be readable: every value of every tensor of a known type. */
static int usable(gpts_file *file)
{
    size_t i;
    for (i = 0; i < file->n_tensors; i++) {
        const gpts_file_tensor *t = &file->tensors[i];
        size_t count = (size_t)t->count;
        gpts_status status = GPTS_OK;
        if (count > 1000000) continue;
        if (t->dtype == GPTS_F16 || t->dtype == GPTS_BF16 || t->dtype == GPTS_F32 || t->dtype == GPTS_F64) {
            gpts_real *values = (gpts_real *)malloc((count + 1) * sizeof *values);
            status = gpts_file_read(file, t, 0, count, values);
            free(values);
        } else if (t->dtype == GPTS_I32 || t->dtype == GPTS_I64) {
            int32_t *values = (int32_t *)malloc((count + 1) * sizeof *values);
            status = gpts_file_read_i32(file, t, 0, count, values);
            if (status == GPTS_BAD_FILE && t->dtype == GPTS_I64) status = GPTS_OK;    /* valid, but wider */
            free(values);
        }
        if (status != GPTS_OK) return 0;
    }
    return 1;
}

static void run_case(const char *line, const char *end)
{
    char name[200] = "(no name)", why[400] = "", expect[16] = "", key[32];
    unsigned char *bytes = (unsigned char *)malloc((size_t)(end - line) + 1);
    char *hex = (char *)malloc((size_t)(end - line) + 1);
    size_t n = 0, length, i;
    int valid = 1, have = 0, accepted;
    gpts_file file;
    gptsi_json j;
    j.at = line; j.end = end; j.depth = 1;
    valid = gptsi_json_take(&j, '{');
    do {
        valid = valid && gptsi_json_string(&j, key, sizeof key, &length) && gptsi_json_take(&j, ':');
        if (!valid) break;
        if (!strcmp(key, "hex")) { valid = gptsi_json_string(&j, hex, (size_t)(end - line), &n); have = 1; }
        else if (!strcmp(key, "expect")) valid = gptsi_json_string(&j, expect, sizeof expect, &length);
        else if (!strcmp(key, "name")) valid = gptsi_json_string(&j, name, sizeof name, &length);
        else if (!strcmp(key, "why")) valid = gptsi_json_string(&j, why, sizeof why, &length);
        else valid = gptsi_json_skip(&j);
    } while (valid && gptsi_json_take(&j, ','));
    valid = valid && gptsi_json_take(&j, '}') && have && n % 2 == 0 && (!strcmp(expect, "accept") || !strcmp(expect, "reject"));
    for (i = 0; valid && i < n; i += 2) {
        int high = hex_digit((unsigned char)hex[i]), low = hex_digit((unsigned char)hex[i + 1]);
        if (high < 0 || low < 0) valid = 0;
        else bytes[i / 2] = (unsigned char)(high << 4 | low);
    }
    if (!valid) { t_state.failed++; printf("FAILED %s: the line is no case (hex and expect are needed)\n", name); }
    else {
        unsigned char *exact = (unsigned char *)malloc(n / 2 ? n / 2 : 1);             /* so that tools see a read too far */
        memcpy(exact, bytes, n / 2);
        accepted = gpts_file_open_memory(&file, exact, n / 2, NULL) == GPTS_OK;
        if (accepted == (expect[0] == 'a') && (accepted ? usable(&file) : file.error[0] != 0)) t_state.passed++;
        else {
            t_state.failed++;
            printf("FAILED %s: expected %s (%s), but the reader says: %s\n", name, expect, why, accepted ? "accepted" : file.error);
        }
        if (accepted) gpts_file_close(&file);
        free(exact);
    }
    free(bytes);
    free(hex);
}

int main(int argc, char **argv)
{
    int i;
    if (argc < 2) { fprintf(stderr, "usage: safetensors FILE.jsonl...\n"); return 1; }
    for (i = 1; i < argc; i++) {
        char error[GPTS_ERROR_BYTES], *text, *at, *end;
        size_t bytes;
        if (gpts_read_file(argv[i], &text, &bytes, NULL, error) != GPTS_OK) { fprintf(stderr, "%s\n", error); return 1; }
        for (at = text; at < text + bytes; at = end + 1) {
            end = (char *)memchr(at, '\n', (size_t)(text + bytes - at));
            if (!end) end = text + bytes;
            if (strspn(at, " \t\r") < (size_t)(end - at)) run_case(at, end);
        }
        gpts_release(NULL, text);
    }
    return t_end();
}

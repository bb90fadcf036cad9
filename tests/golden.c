/* golden.c - compares models with what PyTorch says of them.

     build/tests/golden FILE...          (and golden_double; --gpu: on the GPU, in fp32 and in bf16, where `make gpu` built it)

   A file holds a model, golden.tokens and golden.targets [B,T], golden.logits,
   golden.loss, golden.grad.NAME for each trained parameter, and golden.step.NAME: the
   parameter after one clipped AdamW step made from those gradients with the settings in
   __metadata__.adamw.  Everything is compared as |a - b| / |b|, Frobenius, per tensor.
   A tensor whose true gradient is under 1e-9 of the whole gradient's norm counts as zero
   (key biases): there the error is measured against the whole norm.
   (E1) (E2) (N1) (N2) (L1) (L2) (G1) (G2) (R1) (R2) (A1) (A2) (X1) (X2) (X3) (O1) (O2)
   and, where the file has such heads or layers, (M1) (M2) (P1) (P2) (Q1) (Q2).         */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "test.h"

#ifdef GPTS_CUDA
#define GPTS_GPU_DECLARATIONS
#include "gpu.cu"
#endif

static const double tolerance = sizeof(gpts_real) == 8 ? 1e-6 : 2e-5;
/* on the GPU: 1e-4 in fp32; in bf16, of 8 bits, what such models' activations and gradients lose */
enum { ON_CPU = -1 };
static int place = ON_CPU;                          /* or GPTS_GPU_F32, GPTS_GPU_BF16 */

static struct { char sentence[512]; } why;          /* why the present file fails */
static int fails(const char *what, const char *detail)
{
    snprintf(why.sentence, sizeof why.sentence, "%s%s%s", what, *detail ? ": " : "", detail);
    return 0;
}

/* A worst figure and where it was found. */
typedef struct figure { double worst; char name[GPTS_NAME_BYTES + 16]; } figure;
static void figure_add(figure *f, double error, const char *name)
{
    if (f->worst == f->worst && !(error <= f->worst)) {     /* the first NaN stays */
        f->worst = error;
        snprintf(f->name, sizeof f->name, "%s", name);
    }
}

static double norm(const gpts_real *x, size_t n)
{
    double s = 0;
    size_t i;
    for (i = 0; i < n; i++) s += (double)x[i] * (double)x[i];
    return sqrt(s);
}
static double distance(const gpts_real *a, const gpts_real *b, size_t n)
{
    double s = 0;
    size_t i;
    for (i = 0; i < n; i++) { double d = (double)a[i] - (double)b[i]; s += d * d; }
    return sqrt(s);
}

static gpts_real *read_reals(gpts_file *file, const char *name, size_t count)
{
    const gpts_file_tensor *t = gpts_file_find(file, name);
    gpts_real *x;
    if (!t) { fails("tensor is missing", name); return NULL; }
    if (t->count != count) { fails("tensor has another size than the model's", name); return NULL; }
    x = (gpts_real *)malloc((count + 1) * sizeof *x);
    if (x && gpts_file_read(file, t, 0, count, x) != GPTS_OK) { fails("reading", file->error); free(x); return NULL; }
    return x;
}
static int32_t *read_ids(gpts_file *file, const char *name, size_t *B, size_t *T)
{
    const gpts_file_tensor *t = gpts_file_find(file, name);
    int32_t *x;
    if (!t || t->rank != 2) { fails("tensor [B,T] is missing", name); return NULL; }
    *B = (size_t)t->shape[0]; *T = (size_t)t->shape[1];
    x = (int32_t *)malloc((*B * *T + 1) * sizeof *x);
    if (x && gpts_file_read_i32(file, t, 0, *B * *T, x) != GPTS_OK) { fails("reading", file->error); free(x); return NULL; }
    return x;
}

/* A number of a flat JSON object, e.g. "lr": 1e-2. */
static double json_number(const char *json, const char *key, double otherwise)
{
    char quoted[64];
    const char *at;
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    at = json ? strstr(json, quoted) : NULL;
    if (!at) return otherwise;
    at += strlen(quoted);
    while (*at == ' ' || *at == ':') at++;
    return strtod(at, NULL);
}

static const char *prefixed(char *to, size_t room, const char *prefix, const char *name)
{
    snprintf(to, room, "%s%s", prefix, name);
    return to;
}

/* golden.grad.* must each belong to a tensor of the model. */
static int every_gradient_has_a_tensor(const gpts_file *file, const gpts_model *model)
{
    size_t i, n = 0;
    for (i = 0; i < file->n_tensors; i++) {
        const char *name = file->tensors[i].name;
        if (strncmp(name, "golden.grad.", 12)) continue;
        n++;
        if (!gpts_model_tensor(model, name + 12)) return fails("the model has no tensor", name + 12);
    }
    return n ? 1 : fails("the file has no golden.grad.*", "");
}

static int compare(gpts_file *file, gpts_model *model, figure *logits, figure *loss, figure *grad, figure *step)
{
    size_t B = 0, T = 0, Bt = 0, Tt = 0, i, k, count = 0, V = (size_t)model->config.vocab_size;
    int32_t *tokens = read_ids(file, "golden.tokens", &B, &T), *targets = NULL;
    gpts_real *mine = NULL, *theirs = NULL, **grads = NULL;
    const char *adamw = gpts_file_metadata(file, "adamw");
    gpts_train_options options = gpts_train_options_default();
    gpts_trainer trainer;
    gpts_batch batch;
    double whole = 0, mean = 0;
    char name[GPTS_NAME_BYTES + 16];
    int ok = 0;

    memset(&trainer, 0, sizeof trainer);
    memset(&batch, 0, sizeof batch);
    if (!tokens || !every_gradient_has_a_tensor(file, model)) goto done;
    targets = read_ids(file, "golden.targets", &Bt, &Tt);
    if (!targets) goto done;
    if (Bt != B || Tt != T) { fails("golden.targets has another shape than golden.tokens", ""); goto done; }
    for (i = 0; i < B * T; i++) count += targets[i] >= 0;
    batch.tokens = tokens; batch.targets = targets; batch.B = B; batch.T = T;

    /* logits and loss */
    theirs = read_reals(file, "golden.logits", B * T * V);
    mine = (gpts_real *)malloc((B * T * V + 1) * sizeof *mine);
    if (!theirs || !mine) goto done;
    if (gpts_model_forward(model, &batch, mine, &mean) != GPTS_OK) { fails("forward", model->error); goto done; }
    figure_add(logits, distance(mine, theirs, B * T * V) / norm(theirs, B * T * V), "logits");
    free(theirs); theirs = read_reals(file, "golden.loss", 1);
    if (!theirs) goto done;
    figure_add(loss, fabs(mean - (double)theirs[0]) / fabs((double)theirs[0]), "loss");

    /* trained is what has a golden gradient */
    grads = (gpts_real **)calloc(model->n_tensors + 1, sizeof *grads);
    if (!grads) goto done;
    for (k = 0; k < model->n_tensors; k++) {
        gpts_tensor *t = &model->tensors[k];
        t->trainable = gpts_file_find(file, prefixed(name, sizeof name, "golden.grad.", t->name)) != NULL;
        if (!t->trainable) continue;
        grads[k] = read_reals(file, name, t->size);
        if (!grads[k]) goto done;
        whole += norm(grads[k], t->size) * norm(grads[k], t->size);
    }
    whole = sqrt(whole);

    options.learning_rate = options.min_learning_rate = json_number(adamw, "lr", 1e-2);
    options.beta1 = json_number(adamw, "beta1", 0.9);
    options.beta2 = json_number(adamw, "beta2", 0.95);
    options.epsilon = json_number(adamw, "eps", 1e-8);
    options.weight_decay = json_number(adamw, "weight_decay", 0.1);
    options.clip = json_number(adamw, "clip", 1.0);
    options.warmup = options.total = 0;
    options.dropout = 0;
    if (gpts_trainer_init(&trainer, model, &options) != GPTS_OK) { fails("trainer", trainer.error); goto done; }
    if (gpts_trainer_accumulate(&trainer, &batch, NULL) != GPTS_OK) { fails("backward", trainer.error); goto done; }

    /* gradients, of the mean; then the stored ones in their place */
    for (k = 0; k < model->n_tensors; k++) {
        gpts_tensor *t = &model->tensors[k];
        gpts_real *g = gpts_trainer_gradient(&trainer, t);
        double size;
        if (!t->trainable) continue;
        if (!g) { fails("no gradient for", t->name); goto done; }
        free(theirs); theirs = (gpts_real *)malloc((t->size + 1) * sizeof *theirs);
        if (!theirs) goto done;
        model->ops->download(model->device, theirs, g, t->size * sizeof *g);
        for (i = 0; i < t->size; i++) theirs[i] = (gpts_real)((double)theirs[i] / (double)count);
        size = norm(grads[k], t->size);
        figure_add(grad, distance(theirs, grads[k], t->size) / (size < (place == 2 ? 1e-3 : 1e-9) * whole ? whole : size), t->name);
        model->ops->upload(model->device, g, grads[k], t->size * sizeof *g);
    }
    trainer.loss_count = 1;
    if (gpts_trainer_apply(&trainer, NULL) != GPTS_OK) { fails("step", trainer.error); goto done; }
    for (k = 0; k < model->n_tensors; k++) {
        gpts_tensor *t = &model->tensors[k];
        if (!t->trainable) continue;
        free(theirs); theirs = read_reals(file, prefixed(name, sizeof name, "golden.step.", t->name), t->size);
        if (!theirs) goto done;
        free(mine); mine = (gpts_real *)malloc((t->size + 1) * sizeof *mine);
        if (!mine) goto done;
        model->ops->download(model->device, mine, t->data, t->size * sizeof *mine);
        figure_add(step, distance(mine, theirs, t->size) / norm(theirs, t->size), t->name);
    }
    ok = 1;
done:
    if (grads) for (k = 0; k < model->n_tensors; k++) free(grads[k]);
    free(grads); free(mine); free(theirs); free(targets); free(tokens);
    gpts_trainer_free(&trainer);
    return ok;
}

static int one(const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    figure logits = {0, ""}, loss = {0, ""}, grad = {0, ""}, step = {0, ""};
    gpts_model model;
    gpts_file file;
    double limit = place == ON_CPU ? tolerance : place == 0 ? 1e-4 : 5e-2;
    int ok = 0;
    memset(&model, 0, sizeof model);
    memset(&file, 0, sizeof file);
    if (gpts_model_load(&model, path, NULL) != GPTS_OK) fails("loading", model.error);
    else if (gpts_file_open(&file, path, NULL) != GPTS_OK) fails("loading", file.error);
#ifdef GPTS_CUDA
    else if (place != ON_CPU && gpts_gpu_attach_precision(&model, 0, place) != GPTS_OK) fails("attaching", model.error);
#endif
    else ok = compare(&file, &model, &logits, &loss, &grad, &step);
    gpts_file_close(&file);
    gpts_model_free(&model);
    if (!ok) { printf("FAILED %-34s %s\n", base, why.sentence); return 0; }
    ok = logits.worst <= limit && loss.worst <= limit && grad.worst <= limit && step.worst <= (place == ON_CPU ? tolerance : 1e-4);
    printf("%s%s %-34s logits %.1e  loss %.1e  gradient %.1e (%s)  step %.1e (%s)\n", ok ? "ok    " : "FAILED",
           place == ON_CPU ? "" : place == 0 ? "fp32 " : "bf16 ", base, logits.worst, loss.worst, grad.worst, grad.name, step.worst, step.name);
    return ok;
}

int main(int argc, char **argv)
{
    int i, passed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && !strcmp(argv[1], "--gpu")) {
#ifdef GPTS_CUDA
        int runs = 0;
        for (place = GPTS_GPU_F32; place >= 0; place = place == GPTS_GPU_F32 ? GPTS_GPU_BF16 : ON_CPU)
            for (i = 2; i < argc; i++, runs++) passed += one(argv[i]);
        printf("%d passed, %d failed\n", passed, runs - passed);
        return passed != runs;
#else
        fprintf(stderr, "golden: this build has no CUDA; `make gpu` makes one that has\n");
        return 1;
#endif
    }
    if (argc < 2) { fprintf(stderr, "usage: golden [--gpu] FILE...\n"); return 1; }
    for (i = 1; i < argc; i++) passed += one(argv[i]);
    printf("%d passed, %d failed\n", passed, argc - 1 - passed);
    return passed != argc - 1;
}

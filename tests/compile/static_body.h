/* static_body.h - the loss of one small model, for static_float.c and static_double.c */
extern double NAME(void);
double NAME(void)
{
    static const int32_t tokens[6] = { 1, 2, 3, 4, 5, 6 }, targets[6] = { 2, 3, 4, 5, 6, 7 };
    gpts_config config = gpts_config_default();
    gpts_model model;
    gpts_batch batch;
    double loss = 0;
    memset(&model, 0, sizeof model);
    memset(&batch, 0, sizeof batch);
    config.vocab_size = 11; config.n_positions = 8; config.n_layer = 2; config.n_head = 2; config.n_embd = 8;
    batch.tokens = tokens; batch.targets = targets; batch.B = 2; batch.T = 3;
    if (gpts_model_init(&model, &config, 1, NULL) != GPTS_OK) return -1;
    if (gpts_model_forward(&model, &batch, NULL, &loss) != GPTS_OK) loss = -2;
    gpts_model_free(&model);
    return loss;
}

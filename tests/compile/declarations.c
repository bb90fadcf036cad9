/* declarations.c - E1, E2, E12: the first include of a file, twice, without the implementation */
#include "gptstatic.h"
#include "gptstatic.h"
int main(void)
{
    gpts_config config = gpts_config_default();
    return config.n_layer == 12 ? 0 : 1;
}

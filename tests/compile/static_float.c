/* static_float.c - E3: with static_double.c, a float and a double build in one program */
#define GPTSTATIC_STATIC
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#define NAME loss_in_float
#include "static_body.h"
extern double loss_in_double(void);
int main(void)
{
    double a = loss_in_float(), b = loss_in_double();
    return sizeof(gpts_real) == 4 && a > 1 && a != b && a - b < 1e-4 && b - a < 1e-4 ? 0 : 1;
}

/* static_double.c - E3: the double half of static_float.c */
#define GPTSTATIC_STATIC
#define GPTSTATIC_IMPLEMENTATION
#define GPTS_REAL double
#include "gptstatic.h"
#define NAME loss_in_double
#include "static_body.h"

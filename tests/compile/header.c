/* header.c - the header alone, with its implementation: any language, compiler and macros */
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"

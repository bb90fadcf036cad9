/* implementation.c - E1: declarations came first through some other header; the
   implementation still follows, and once only */
#include "gptstatic.h"
#define GPTSTATIC_IMPLEMENTATION
#include "gptstatic.h"
#include "gptstatic.h"

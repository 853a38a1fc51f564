/* SPDX-License-Identifier: MIT */
/* The order of trials in a round. */
#ifndef BENCH_ORDER_H
#define BENCH_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* The orders of one block of n rounds: row r of square[n][n] is the order of round r; every trial stands once in every
 * place. Blocks are shuffled independently. False if memory is short. */
bool bench_latin_square(int *square, int n, uint64_t seed, int block);

#endif

/* SPDX-License-Identifier: MIT */
/* Randomised Latin squares. */
#include "timing/order.h"

#include <stdlib.h>

#include "data/generate.h"

static void shuffle(int *items, int count, uint64_t seed, uint64_t index) {
  for (int i = 0; i < count; i++) items[i] = i;
  for (int i = count - 1; i > 0; i--) {
    const int j = (int)bench_value_below(seed, BENCH_STREAM_ORDER, index + (uint64_t)i, i + 1), item = items[i];
    items[i] = items[j];
    items[j] = item;
  }
}

/* 0, 1, n-1, 2, n-2, ... */
static int zigzag(int place, int n) { return place % 2 ? (place + 1) / 2 : (n - place / 2) % n; }

/* Row r, place p holds name[(zigzag(p) + shift[r]) mod n] (Williams 1949): a Latin square for any n. For even n every trial
 * also follows every other equally often. */
bool bench_latin_square(int *square, int n, uint64_t seed, int block) {
  int *name = malloc(2 * (size_t)n * sizeof *name), *shift = name + n;
  if (!name) return false;
  shuffle(name, n, seed, (uint64_t)block * 2 * (uint64_t)n);
  shuffle(shift, n, seed, ((uint64_t)block * 2 + 1) * (uint64_t)n);
  for (int row = 0; row < n; row++)
    for (int place = 0; place < n; place++) square[row * n + place] = name[(zigzag(place, n) + shift[row]) % n];
  free(name);
  return true;
}

/* SPDX-License-Identifier: MIT */
/* Placements: where plan, workspace and code of a trial lie in memory. A kernel may be 1 % quicker in one than in another,
 * in every round alike. So rounds go through several, drawn for each trial anew, and what these differ by counts in the
 * interval of every ratio (bench_paired_estimate()). */
#ifndef BENCH_PLACES_H
#define BENCH_PLACES_H

#include "timing/stats.h"
#include "timing/trial.h"

enum { BENCH_MOST_PLACES = 121, BENCH_LEAST_PLACES = 5 };

/* How `rounds` rounds, or more, share at most `most` placements. */
bench_placing bench_placing_of(int rounds, int most);

/* Draws placements for these trials, which hold the plan and workspace that were checked: at least one per round while
 * memory allows, the same number for all. Fewer than BENCH_LEAST_PLACES are a warning of each trial. False with a sentence
 * in error: a plan that could not be made again, or no memory. bench_places_return() follows in either case. */
bool bench_places_draw(bench_trial *const *trials, int count, const attn_problem *problem, int rounds, uint64_t seed,
                       bench_placing *placing, char *error, size_t error_bytes);

/* Gives the trials their own plan and workspace back, and frees the placements. */
void bench_places_return(bench_trial *const *trials, int count);

#endif

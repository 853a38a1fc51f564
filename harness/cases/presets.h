/* SPDX-License-Identifier: MIT */
/* Presets: grids of cases in readable files, harness/cases/presets/NAME.preset, embedded into the program.
 *
 *     # The first comment says what the preset is for; `attnbench list presets` prints its first line.
 *     [title of a grid]
 *     seq = 128:2048:*2
 *     causal = none, bottom-right
 *
 *     [another grid]
 *     pick = 300          # a covering selection of 300 combinations instead of all
 *     work = 5e6          # ... of at most that many multiply-adds each
 *     seq_q = 0,1,7
 */
#ifndef BENCH_PRESETS_H
#define BENCH_PRESETS_H

#include "cases/cases.h"

typedef struct bench_preset {
  const char *name;
  const char *text;
} bench_preset;

extern const bench_preset bench_presets[]; /* ended by one without a name; made by cmake/AttnEmbed.cmake */

enum { BENCH_MAX_GRIDS = 32 };
typedef struct bench_grids {
  bench_grid grid[BENCH_MAX_GRIDS];
  int count;
} bench_grids;

const bench_preset *bench_preset_find(const char *name); /* NULL if there is none */

/* The same, but an unknown name is an error of the command, said on stderr. */
const bench_preset *bench_preset_named(const char *command, const char *name);

/* Appends the grids of a preset's text. False with a sentence, naming the line, in error. */
bool bench_preset_read(const char *text, bench_grids *grids, char *error, size_t error_bytes);
void bench_grids_clear(bench_grids *grids);

/* What the preset says about itself: the first line of its text without "# ". */
void bench_preset_summary(const bench_preset *preset, char *text, size_t bytes);

#endif

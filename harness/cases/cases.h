/* SPDX-License-Identifier: MIT */
/* Grids of cases (every combination of some values of some axes, or a selection of them), and lists of cases from grids. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "cases/axes.h"
#include "cases/case.h"

/* The values of one axis. */
typedef struct bench_values {
  char (*value)[BENCH_WORD];
  int count;
  bool no_memory; /* for the last value */
} bench_values;

/* Every combination of the values of its axes or, if pick > 0, a selection of `pick` of them that covers pairs of values. */
typedef struct bench_grid {
  char title[96];
  bench_values axes[AXIS_COUNT]; /* count 0 = not given */
  int64_t pick;
  double work; /* pick only: leave out combinations of more multiply-adds; 0 = no limit */
} bench_grid;

/* Sets one axis from "name=values": commas separate; a:b:+s and a:b:*f are ranges of whole numbers with both ends. Values
 * given before are replaced. `seq` replaces seq_q and seq_k, `head_dim` dim_qk and dim_v. False with a sentence in error. */
bool bench_grid_set(bench_grid *grid, const char *assignment, char *error, size_t error_bytes);
void bench_grid_clear(bench_grid *grid);

/* The combination that takes value index[axis] of every axis that is given. */
bench_spec bench_grid_spec(const bench_grid *grid, const int index[AXIS_COUNT]);

/* True if `assignment` sets the axis `name`; *values then points behind the "=". */
bool bench_axis_is(const char *assignment, const char *name, const char **values);

/* ---- Lists of cases ----------------------------------------------------------------------------------------------- */

typedef struct bench_case_list {
  bench_case *item;
  int count;
} bench_case_list;

/* Appends the cases of a grid, outermost axis first; a case that is in the list already is left out. False if memory is
 * short or the grid has far too many combinations; error then holds a sentence. */
bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);
void bench_cases_clear(bench_case_list *list);

/* Appends a seeded selection of grid->pick combinations that covers as many pairs of values as it can. */
bool bench_cases_cover(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);

/* Appends one case unless it is there already. */
bool bench_cases_append(bench_case_list *list, const bench_case *bench);

/* ---- Presets ------------------------------------------------------------------------------------------------------ */
/* Grids of cases in readable files, NAME.preset in harness/cases/presets or a folder of it, embedded into the program.
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

typedef struct bench_preset {
  const char *name;
  const char *text;
} bench_preset;

extern const bench_preset bench_presets[]; /* ended by one without a name */

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

/* Copies the preset's summary into `text`: its first line without "# ". */
void bench_preset_summary(const bench_preset *preset, char *text, size_t bytes);

#endif

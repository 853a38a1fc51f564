/* SPDX-License-Identifier: MIT */
/* Goals: the share of the machine's limit that each kernel should reach, read from harness/goals/NAME.goals (the head of
 * limits.goals explains the lines), and the verdict on a measured value. */
#ifndef BENCH_GOALS_H
#define BENCH_GOALS_H

#include "cases/axes.h"
#include "cases/presets.h"
#include "timing/stats.h"

/* One round of one case. */
typedef struct bench_goal_sample {
  double time_ns;    /* of one call */
  double peak_share; /* of the tier's peak loop, or of the loop that only reads, in the same round; 0 = not measured */
} bench_goal_sample;

typedef struct bench_metric {
  const char *name, *unit;
  int decimals; /* to print */
  bool against; /* compares two cases */
  bool peak;    /* counts shares of the peak loop */
  bool reads;   /* counts shares of the loop that only reads K and V */
  bool lower;   /* less is better */
  /* The value of one round; `against` is NULL unless the metric compares. NULL: the plan tells the value, nothing runs. */
  double (*value)(const bench_goal_sample *sample, const bench_goal_sample *against);
} bench_metric;

/* One row: a line of the file for one of its kernels. */
typedef struct bench_goal {
  char section[80], text[80], kernel[32], cpu[48];
  const bench_metric *metric;
  bench_spec spec, against; /* `against` only where the metric compares */
  double floor, goal;       /* NAN = none */
} bench_goal;

typedef struct bench_goal_list {
  bench_goal *item;
  int count;
} bench_goal_list;

extern const bench_preset bench_goal_files[]; /* ended by one without a name; made by cmake/AttnEmbed.cmake */

/* The text of a goal file; NULL if there is none of that name. */
const char *bench_goals_find(const char *name);

/* Appends the rows of a text. False with a sentence, naming the line, in error. */
bool bench_goals_read(const char *text, bench_goal_list *list, char *error, size_t error_bytes);
void bench_goals_clear(bench_goal_list *list);

/* True if the words of a goal's CPU condition hold on a CPU of this vendor ("AuthenticAMD", ...) that runs these tiers ("c
 * avx2 ..."). */
bool bench_goal_applies(const bench_goal *goal, const char *vendor, const char *tiers);

typedef enum bench_mark {
  BENCH_NO_FLOOR, /* there is no floor: no verdict */
  BENCH_SHORT,    /* the floor is not reached */
  BENCH_FLOOR,    /* the floor is reached */
  BENCH_GOAL,     /* the goal is reached too */
} bench_mark;

typedef struct bench_goal_verdict {
  bench_mark mark;
  bool open; /* the interval holds values on the other side of the floor */
} bench_goal_verdict;

/* The mark follows from the median alone; a floor that is just met is reached. */
bench_goal_verdict bench_goal_verdict_of(const bench_goal *goal, const bench_summary *measured);
const char *bench_mark_name(bench_mark mark); /* "-", "short", "ok", "goal" */

#endif

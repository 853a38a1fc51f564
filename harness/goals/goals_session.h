/* SPDX-License-Identifier: MIT */
/* `run --preset limits`: a session whose rows are goals. */
#ifndef BENCH_GOALS_SESSION_H
#define BENCH_GOALS_SESSION_H

#include "commands/session_private.h"

/* Rounds of every row unless --rounds says otherwise. */
enum { BENCH_GOAL_ROUNDS = 21 };

/* True if the options name a preset with goals. */
bool bench_goals_wanted(const bench_options *options);

/* Chooses the rows: s->goals. Returns 0 or an exit code, having said why on stderr. */
int bench_goals_open(bench_session *session, const bench_selection *selection);
void bench_goals_close(bench_session *session);

/* Prints rows and time estimate. Returns an exit code. */
int bench_goals_dry_run(bench_session *session);

/* Measures and prints every row, and records the cases. */
void bench_goals_run(bench_session *session);

/* Writes limits.csv and limits.txt to the result folder. False after an error, said on stderr. */
bool bench_goals_write(bench_session *session);

/* The exit code of a session without failures and errors. */
int bench_goals_conclude(const bench_session *session);

#endif

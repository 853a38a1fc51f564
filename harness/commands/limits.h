/* SPDX-License-Identifier: MIT */
/* `run --preset limits`: a session that measures goals. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include "commands/session.h"

/* True if the options name a preset with goals. */
bool bench_limits_wanted(const bench_options *options);

extern const bench_session_steps bench_limits_steps;

#endif

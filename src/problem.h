/* SPDX-License-Identifier: MIT */
/* The check of one call's data; attn_problem_validate checks the shape. */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "attn/attn.h"

/* Checks the pointers and lengths of one call against a valid problem. */
attn_status attn_args_validate(const attn_problem *problem, const attn_args *args);

#endif

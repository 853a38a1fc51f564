/* SPDX-License-Identifier: MIT */
/* Reads the structs of callers: checks them, and copies them at this library's size (include/attn/extend.h). */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "attn/attn.h"

/* The caller's problem, checked as by attn_problem_validate. */
attn_status attn_problem_read(const attn_problem *theirs, attn_problem *problem);

/* The caller's arguments, their pointers and lengths checked against a valid problem. */
attn_status attn_args_read(const attn_problem *problem, const attn_args *theirs, attn_args *args);

#endif

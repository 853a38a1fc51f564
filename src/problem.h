/* Limits that attn_problem_validate enforces, so that later arithmetic on one tensor cannot overflow. */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "attn/attn.h"

#define ATTN_SIZE_LIMIT    ((int64_t)1 << 31) /* of one axis */
#define ATTN_ELEMENT_LIMIT ((int64_t)1 << 60) /* that strides may reach */

/* Checks the pointers and lengths of one call against a valid problem. */
attn_status attn_args_validate(const attn_problem *problem, const attn_args *args);

#endif

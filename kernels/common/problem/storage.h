/* SPDX-License-Identifier: MIT */
/* Elements in memory, with all that it takes to load them. */
#ifndef ATTN_COMMON_STORAGE_H
#define ATTN_COMMON_STORAGE_H

#include "attn/attn.h"

typedef struct attn_storage {
  const void *data;
  attn_dtype dtype;
} attn_storage;

static inline attn_storage attn_q_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->q, problem->dtype_q};
}

static inline attn_storage attn_k_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->k, problem->dtype_kv};
}

static inline attn_storage attn_v_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->v, problem->dtype_kv};
}

/* The same elements in code for one type. */
static inline attn_storage attn_storage_as(attn_storage elements, attn_dtype dtype) {
  elements.dtype = dtype;
  return elements;
}

#endif

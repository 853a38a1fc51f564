/* SPDX-License-Identifier: MIT */
/* Plans of two pieces: the kernel runs over the early keys and then over the later ones, and their rows are joined. */
#ifndef ATTN_PLAN_PIECES_H
#define ATTN_PLAN_PIECES_H

#include "src/choice/choice.h"

typedef struct attn_pieces attn_pieces;

/* Whether the problem is run in pieces (kernels/common/problem/pieces.h). */
bool attn_pieces_needed(const attn_problem *problem);

attn_status attn_pieces_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                               attn_pieces **pieces);
void attn_pieces_destroy(attn_pieces *pieces);

size_t attn_pieces_workspace(const attn_pieces *pieces);
int attn_pieces_threads(const attn_pieces *pieces);

/* Writes which pieces there are, and the plan of each. */
void attn_pieces_describe(const attn_pieces *pieces, char *text, size_t bytes);

/* The arguments have been read, and the workspace is large enough. */
void attn_pieces_run(const attn_pieces *pieces, const attn_args *args, void *workspace);

#endif

/* SPDX-License-Identifier: MIT */
/* Errors: a status code for the program, one sentence for the person. */
#ifndef ATTN_ERROR_H
#define ATTN_ERROR_H

#include "attn/extend.h" /* attn_fail */

#endif

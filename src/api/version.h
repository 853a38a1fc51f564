/* SPDX-License-Identifier: MIT */
/* The version of attn.h as text: "0.1.0". */
#ifndef ATTN_VERSION_H
#define ATTN_VERSION_H

#include "attn/attn.h"

#define ATTN_TEXT_OF(x)   #x
#define ATTN_TEXT(x)      ATTN_TEXT_OF(x)
#define ATTN_VERSION_TEXT ATTN_TEXT(ATTN_VERSION_MAJOR) "." ATTN_TEXT(ATTN_VERSION_MINOR) "." ATTN_TEXT(ATTN_VERSION_PATCH)

#endif

/* SPDX-License-Identifier: MIT */
/* Helpers for including tiers.def: ATTN_IF_<architecture>(...) keeps its arguments on that architecture only. */
#ifndef ATTN_TIERS_H
#define ATTN_TIERS_H

#define ATTN_IF_any(...) __VA_ARGS__
#if defined(__x86_64__)
#define ATTN_IF_x86_64(...) __VA_ARGS__
#else
#define ATTN_IF_x86_64(...)
#endif
#if defined(__aarch64__)
#define ATTN_IF_aarch64(...) __VA_ARGS__
#else
#define ATTN_IF_aarch64(...)
#endif

#endif

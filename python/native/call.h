/* SPDX-License-Identifier: MIT */
/* One call from Python: its arrays and keywords as an attn_problem and attn_args. */
#ifndef LIBATTN_CALL_H
#define LIBATTN_CALL_H

#include "plans.h"
#include "tensor.h"

/* The keywords. Those up to LAST_ARRAY are data: a plan takes them with every run. The others are settings: a plan has them
 * from its beginning. */
/* clang-format off */
#define ATTN_KEYWORDS(K) \
  K(mask) K(bias) K(alibi) K(sinks) K(kv_len) K(q_len) K(row_len) \
  K(cu_seqlens_q) K(cu_seqlens_k) K(page_table) K(offsets) K(scores) K(score_weight) K(k_scale) K(v_scale) \
  K(key_blocks) K(state) K(seed) K(offset) K(out) K(lse) \
  K(causal) K(align) K(window) K(window_first) K(keys) K(mask_keys) K(shared_prefix) K(scale) K(softcap) K(dropout) \
  K(layout) K(score) \
  K(max_seqlen_q) K(max_seqlen_k) K(kernel) K(max_isa) K(threads) K(steady) K(out_dtype) K(kv_format) \
  K(return_lse)
/* The further ones of sdpa_grad. */
#define ATTN_GRADIENT_KEYWORDS(K) \
  K(do) K(d_lse) K(accumulate) \
  K(dq) K(dk) K(dv) K(dbias) K(dsinks) K(dalibi_slopes) K(dscores) K(dscore_weight)
/* clang-format on */

enum keyword {
#define ATTN_KEYWORD(name) KEY_##name,
  ATTN_KEYWORDS(ATTN_KEYWORD)
#undef ATTN_KEYWORD
      KEYWORDS,
  LAST_ARRAY = KEY_lse,
  KEY_do = KEYWORDS,
  KEY_d_lse,
  KEY_accumulate,
  KEY_dq, /* the gradients end the list */
  KEY_dk,
  KEY_dv,
  KEY_dbias,
  KEY_dsinks,
  KEY_dalibi_slopes,
  KEY_dscores,
  KEY_dscore_weight,
  ALL_KEYWORDS,
  GRADIENTS = ALL_KEYWORDS - KEY_dq
};

/* The settings, read. */
typedef struct settings {
  attn_score score;
  attn_align align;
  int64_t window_left, window_right, window_first;
  int64_t key_begin, key_end, mask_keys, shared_prefix;
  float scale, softcap, dropout;
  bool default_scale;
  int layout; /* an index into the layouts; -1 = the usual one */
  int64_t max_seqlen[2];
  int threads;
  const char *kernel, *max_isa;
  bool out_float32, return_lse, steady;
  dtype kv_format;   /* DTYPE_Q8_0 or DTYPE_Q4_0 where k and v are bytes of blocks; else DTYPE_OTHER */
  bool fixed_offset; /* align was a number: the offset of every sequence */
  int32_t offset;
} settings;

/* The objects of one interpreter of Python: they must not be used in another one, nor after its end. */
typedef struct interpreter {
  arrays *arrays;
  PyObject *unsupported; /* its libattn.Unsupported */
  PyObject *keyword[ALL_KEYWORDS], *input[3];
  PyObject *no, *yes; /* False, True */
} interpreter;

typedef struct call {
  const interpreter *of;
  const char *hint;              /* the end of a sentence on a wrong number of elements; "" mostly */
  PyObject *given[ALL_KEYWORDS]; /* borrowed; NULL = not given, or None */
  PyObject *input[3];            /* q, k, v, likewise */
  bool backward;                 /* sdpa_grad: out and lse are read, and gradients written */
  settings set;
  request wanted;
  attn_args args;
  holdings held;
  PyObject *out, *lse;           /* owned */
  PyObject *gradient[GRADIENTS]; /* likewise; NULL = not wanted */
  bool no_out;                   /* out is False: the state alone goes on */
  bool runs_later;               /* only described now, but complete */
} call;

/* Makes the objects of the present interpreter (arrays_new() explains the arguments). NULL with an exception. */
interpreter *interpreter_new(PyObject *unsupported, PyObject *allocate, PyObject *spec);

/* Call in the interpreter that made it. */
void interpreter_free(interpreter *of);

const char *call_keyword(int key);

/* Before anything else is done with a call. */
void call_init(call *c, const interpreter *of, bool backward);

/* Sorts the arguments of a METH_FASTCALL into the call. `function` is for the sentences. With only_arrays settings are
 * refused. False with an exception. */
bool call_sort(call *c, const char *function, PyObject *const *args, Py_ssize_t count, PyObject *names, bool only_arrays);

/* Reads the settings that are given into c->set. */
bool call_read_settings(call *c);

/* Fills in wanted and args from the arrays and c->set, and makes the outputs that are not given (without make_outputs it
 * only describes them). */
bool call_build(call *c, bool make_outputs);

/* The dense int32 or float32 numbers of a short array of either width, or of a list, for as long as they are held. `hint`
 * ends the sentence where there are not `expected` (-1 = any count). NULL with an exception. */
void *read_vector(holdings *held, PyObject *given, const char *name, bool integers, int64_t expected, const char *hint,
                  int64_t *count);

/* The arrays of the bits of attn_problem.uses, by their keywords. */
void call_list_uses(uint32_t uses, char *text, size_t bytes);

/* Ends the call: o, (o, lse), or the gradients; NULL with the exception that is set. */
PyObject *call_finish(call *c, bool succeeded);

#endif

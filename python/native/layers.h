/* SPDX-License-Identifier: MIT */
/* Calls that a model's layers make in every step, as functions of Python's own kind: they hold all that does not change, and
 * take about a microsecond. `of`: the interpreter, which `self` keeps alive. */
#ifndef LIBATTN_LAYERS_H
#define LIBATTN_LAYERS_H

#include "call.h"

/* linear(address of an attn_product, in, out, attn_dtype of x, of y): a function run(x, out) that holds the product too.
 * `out` may be None for a new float32 array. It returns y, or None for whatever is not as it should be, without an
 * exception: layers.Linear then goes the slow way, which has the sentences. */
PyObject *layers_bind_linear(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count);

/* append(address of an attn_kv_append_args): a function write(k, v, slots) of k and v [tokens, heads_kv, dim] and int64
 * slots, at most one for each token. It calls attn_kv_append() with them, and with copies of the other fields and of one
 * factor for all keys and one for all values. */
PyObject *layers_bind_append(const interpreter *of, PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif

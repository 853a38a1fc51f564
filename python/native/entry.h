/* SPDX-License-Identifier: MIT */
/* The entries that libattn/_native.py calls: they make functions as objects of Python's own kind, without a module.
 *
 * ctypes loads this library and calls attn_python_functions() once, with the GIL. The functions that it returns are called
 * as any built-in function is, by METH_FASTCALL, and cost no more. The library needs no Python.h, and one binary serves all
 * versions (python_api.h). */
#ifndef LIBATTN_ENTRY_H
#define LIBATTN_ENTRY_H

#include "python_api.h"

#define EXPORT __attribute__((visibility("default")))

/* Name -> function, for the present interpreter. unsupported: libattn.Unsupported; allocate and spec: see arrays_new();
 * sdpa_doc: the documentation of sdpa. Call once in each interpreter, with the GIL. NULL with an exception. */
EXPORT PyObject *attn_python_functions(PyObject *unsupported, PyObject *allocate, PyObject *spec, const char *sdpa_doc);

/* The keywords of sdpa in their order, for the test that compares them with the documented signature; NULL after the last.
 */
EXPORT const char *attn_python_keyword(int index);

/* The layouts, constants and functions that read_headers.py found in libattn's headers, as the compiler sees them. */
EXPORT const char *attn_python_headers(const int64_t **layouts, const int64_t **values, void (*const **functions)(void));

#endif

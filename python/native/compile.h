/* SPDX-License-Identifier: MIT */
/* A call from Python of which only shapes are known: what a program that runs later needs of it. */
#ifndef LIBATTN_COMPILE_H
#define LIBATTN_COMPILE_H

#include "call.h"
#include "xla.h"

/* Reads the arguments, whose arrays are libattn.Spec, after call_read_settings(). sdpa_grad() computes the gradients that
 * are True. Returns the names of the operands, as a tuple, in the order of the program; NULL with an exception. */
PyObject *compile_call(call *c, compiled *to);

#endif

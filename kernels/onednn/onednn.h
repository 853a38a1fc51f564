/* SPDX-License-Identifier: MIT */
/* oneDNN through its C API: the functions that the kernels of this folder need. They are the same for versions 2.6 and 3.x;
 * onednn.c alone knows where the versions differ (memory descriptors, creation of primitives, attributes).
 *
 * An operation is one primitive with the layouts of its operands. Operations are created when a plan is opened and do not
 * change after that. Any number of threads may execute one at once, each with its own operands and working memory.
 * Executing creates short-lived memory objects (handles), which oneDNN allocates.
 *
 * Threads: oneDNN's primitives divide their work among threads, but our tasks already run on threads. A oneDNN for OpenMP
 * uses as many threads as OpenMP would on the calling thread. So each task sets that number to 1 and restores it afterwards
 * (attn_onednn_hold_threads, attn_onednn_restore_threads). Creation does the same, because oneDNN chooses block sizes by
 * that number. A oneDNN for TBB, which includes all SYCL builds, has threads of its own, and no C program can set their
 * number: attn_onednn_unusable says what to do. */
#ifndef ATTN_ONEDNN_ONEDNN_H
#define ATTN_ONEDNN_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- The library ---- */

/* "oneDNN 2.6.3 AVX2": the version that is loaded and the instructions it chose, once attn_onednn_identify() has been
 * called. info.library of each kernel here points to it. */
extern char attn_onednn_text[80];
void attn_onednn_identify(void);

/* attn_library_hooks.unusable of each kernel here. */
const char *attn_onednn_unusable(const char *cap);

/* oneDNN throws, or crashes, where an allocation fails. So the kernels try beforehand whether there is enough memory: to
 * create operations, and to execute one. */
enum { ONEDNN_CODE_BYTES = 16 << 20 /* more than a plan's operations took in any version tried */ };
bool attn_onednn_can_create(void);
bool attn_onednn_can_execute(void);

/* Returns call(context), or dnnl_out_of_memory where oneDNN threw a C++ exception, which C cannot catch. What `call` had
 * created stays. In guard.cpp, which only plug-ins have, and only where there is a C++ compiler. */
dnnl_status_t attn_onednn_guard(dnnl_status_t (*call)(void *), void *context) __attribute__((weak));

static inline dnnl_status_t attn_onednn_guarded(dnnl_status_t (*call)(void *), void *context) {
  return attn_onednn_guard ? attn_onednn_guard(call, context) : call(context);
}

/* An engine, and a stream on it. The stream is the calling thread; with SYCL it is the queue of a worker. */
typedef struct onednn_library {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  int (*get_threads)(void); /* functions of OpenMP; NULL for other runtimes */
  void (*set_threads)(int);
} onednn_library;

dnnl_status_t attn_onednn_open(onednn_library *library);
void attn_onednn_close(onednn_library *library);

/* Until attn_onednn_restore_threads(), oneDNN works for the calling thread on that thread alone. Returns the number of
 * threads to restore. */
int attn_onednn_hold_threads(const onednn_library *library);
void attn_onednn_restore_threads(const onednn_library *library, int before);

/* ---- Operations ---- */

/* Element (r, c) stands r * row_stride + c * column_stride elements from the first. */
typedef struct onednn_matrix {
  dnnl_data_type_t type;
  int64_t rows, columns, row_stride, column_stride;
} onednn_matrix;

enum { ONEDNN_OPERANDS = 3 };

/* 2.6: a struct of its own. 3.x: a handle. */
typedef dnnl_memory_desc_t onednn_desc;

typedef struct onednn_operation {
  dnnl_primitive_t primitive;
  int operands;
  int role[ONEDNN_OPERANDS];         /* DNNL_ARG_... */
  onednn_desc desc[ONEDNN_OPERANDS]; /* descriptor of the operand in each role */
  onednn_desc work;                  /* working memory of scratch_bytes bytes, if there are any */
  size_t scratch_bytes;              /* memory that executing wants from its caller */
} onednn_operation;

/* c = a b, or c = c + a b. a: m x k, b: k x n, c: m x n. */
typedef struct onednn_product {
  onednn_matrix a, b, c;
  bool accumulate;
} onednn_product;

/* These make an operation, or leave it empty and return why they cannot. Without `create` the operation gets no primitive:
 * that is enough to know whether oneDNN has it, and saves the time of generating code. Operands, in this order: a, b, c;
 * x, x; from, to. */
dnnl_status_t attn_onednn_open_product(const onednn_library *library, const onednn_product *product, bool create,
                                       onednn_operation *operation);
/* Softmax of each row, in place: the matrix must be dense. */
dnnl_status_t attn_onednn_open_softmax(const onednn_library *library, const onednn_matrix *x, bool create,
                                       onednn_operation *operation);
/* Rounds to the type of `to`, to nearest. */
dnnl_status_t attn_onednn_open_conversion(const onednn_library *library, const onednn_matrix *from, const onednn_matrix *to,
                                          bool create, onednn_operation *operation);

/* An empty operation is fine. */
void attn_onednn_close_operation(onednn_operation *operation);

/* Runs the operation and waits for it. `work`: scratch_bytes bytes, 64-byte aligned. */
dnnl_status_t attn_onednn_execute(const onednn_library *library, const onednn_operation *operation, void *const *operands,
                                  void *work);

#endif

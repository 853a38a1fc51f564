/* SPDX-License-Identifier: MIT */
/* A replacement for ggml in tests: the functions that scripts/peers/ggml_flash_attn.py calls, with ggml's signatures. It
 * computes attention in the simplest way. Tensors have four dimensions, the innermost first. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct tensor {
  int type;
  int64_t ne[4];
  const struct tensor *q, *k, *v, *mask;
  float scale;
  size_t row_bytes; /* from one row of a view to the next; 0: rows lie side by side */
  void *data;
} tensor;

typedef struct context {
  tensor tensors[8];
  int count;
  tensor *graph;
} context;

struct ggml_init_params {
  size_t mem_size;
  void *mem_buffer;
  bool no_alloc;
};

struct ggml_cplan {
  size_t work_size;
  uint8_t *work_data;
  int n_threads;
  void *threadpool, *abort, *abort_data;
  bool use_ref;
};

static int buffers, contexts; /* there must be no buffer when the last context is freed */

const char *ggml_version(void) { return "0.0.1"; }
void ggml_cpu_init(void) {}
void *ggml_init(struct ggml_init_params p) {
  if (!p.no_alloc || p.mem_size < 4096) return NULL;
  contexts++;
  return calloc(1, sizeof(context));
}
void ggml_free(context *c) {
  if (--contexts == 0 && buffers) abort();
  free(c);
}

tensor *ggml_new_tensor_4d(context *c, int type, int64_t a, int64_t b, int64_t d, int64_t e) {
  tensor *t = &c->tensors[c->count++];
  *t = (tensor){.type = type, .ne = {a, b, d, e}};
  return t;
}

/* LATE_VIEWS plants a fault: a view that begins with the second column. */
tensor *ggml_view_4d(context *c, tensor *t, int64_t a, int64_t b, int64_t d, int64_t e, size_t nb1, size_t nb2, size_t nb3,
                     size_t offset) {
  tensor *view = ggml_new_tensor_4d(c, t->type, a, b, d, e);
  if (nb2 != nb1 * (size_t)b || nb3 != nb2 * (size_t)d) return NULL;
#ifdef LATE_VIEWS
  offset += sizeof(float);
#endif
  view->row_bytes = nb1, view->data = (char *)t->data + offset;
  return view;
}

tensor *ggml_flash_attn_ext(context *c, tensor *q, tensor *k, tensor *v, tensor *mask, float scale, float max_bias,
                            float softcap) {
  if (max_bias != 0 || softcap != 0 || (mask && mask->type != 1)) return NULL;
  tensor *o = ggml_new_tensor_4d(c, 0, v->ne[0], q->ne[2], q->ne[1], q->ne[3]);
  o->q = q, o->k = k, o->v = v, o->mask = mask, o->scale = scale;
  return o;
}

void *ggml_backend_cpu_buffer_from_ptr(void *data, size_t bytes) {
  (void)bytes;
  buffers++;
  return data;
}
void ggml_backend_buffer_free(void *buffer) {
  (void)buffer;
  buffers--;
}
int ggml_backend_tensor_alloc(void *buffer, tensor *t, void *data) {
  t->data = data;
  return buffer != data;
}
void *ggml_new_graph(context *c) { return &c->graph; }
void ggml_build_forward_expand(tensor **graph, tensor *t) { *graph = t; }
struct ggml_cplan ggml_graph_plan(tensor **graph, int threads, void *pool) {
  (void)graph, (void)pool;
  return (struct ggml_cplan){.work_size = 64, .n_threads = threads, .use_ref = true};
}

/* Element x of a row of K or V: float32, or in a row of blocks, whose float16 factors must be 1. */
static double element(const tensor *t, int64_t row, int64_t x) {
  const int64_t n = row * t->ne[0] + x;
  enum { F32, Q4_0 = 2, Q8_0 = 8, ONE = 0x3c00, VALUES = 32 };
  if (t->row_bytes) return t->type == F32 ? ((const float *)((const char *)t->data + (size_t)row * t->row_bytes))[x] : NAN;
  if (t->type == F32) return ((const float *)t->data)[n];
  const int64_t bytes = t->type == Q8_0 ? 34 : 18, within = n % VALUES;
  const uint8_t *block = (const uint8_t *)t->data + n / VALUES * bytes;
  if ((t->type != Q8_0 && t->type != Q4_0) || block[0] + 256 * block[1] != ONE) return NAN;
  if (t->type == Q8_0) return (int8_t)block[2 + within];
  return (block[2 + within % 16] >> (within < 16 ? 0 : 4) & 15) - 8;
}

static void row(const tensor *o, int64_t b, int64_t h, int64_t i) {
  const tensor *q = o->q, *k = o->k, *v = o->v;
  const int64_t d = q->ne[0], width = v->ne[0], keys = k->ne[1], kv_head = b * k->ne[2] + h / (q->ne[2] / k->ne[2]);
  const float *query = (const float *)q->data + ((b * q->ne[2] + h) * q->ne[1] + i) * d;
  float *out = (float *)o->data + ((b * q->ne[1] + i) * q->ne[2] + h) * width;
  double sum = 0, total[512] = {0};
  for (int64_t j = 0; j < keys; j++) {
    if (o->mask && ((const uint16_t *)o->mask->data)[i * keys + j] == 0xfc00) continue; /* -inf in f16 */
    double s = 0;
    for (int64_t x = 0; x < d; x++) s += (double)query[x] * element(k, kv_head * keys + j, x);
    const double p = exp(s * o->scale);
    sum += p;
    for (int64_t x = 0; x < width; x++) total[x] += p * element(v, kv_head * keys + j, x);
  }
  for (int64_t x = 0; x < width; x++) out[x] = (float)(total[x] / sum);
}

int ggml_graph_compute(tensor **graph, struct ggml_cplan *plan) {
  const tensor *o = *graph;
  if (!plan->work_data || plan->n_threads < 1 || !plan->use_ref) return -1;
  for (int64_t b = 0; b < o->ne[3]; b++)
    for (int64_t h = 0; h < o->ne[1]; h++)
      for (int64_t i = 0; i < o->ne[2]; i++) row(o, b, h, i);
  return 0;
}

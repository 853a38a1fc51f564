/* SPDX-License-Identifier: MIT */
/* graph_onednn: oneDNN's fused attention. MatMul, Multiply, SoftMax and MatMul go through its graph API. Newer versions make
 * one partition of them and decide themselves in which order to take the keys.
 *
 * A task is a block of query rows of one head. All blocks have the same number of rows, filled up with zeros, so that a
 * row's bits do not depend on the other rows. Q and O are copied to and from the task's memory; K and V are read in place.
 * The kernel refuses what the pattern cannot express: masks and biases, because here they select keys, and the LSE. Graph,
 * partition and compiled code are made with the plan. Executing creates short-lived tensor handles; if it fails, the rows
 * are computed without oneDNN. */
#include <oneapi/dnnl/dnnl_graph.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matmul_layout.h"
#include "onednn.h"

/* Since 3.13 the caller can bring the working memory; earlier versions allocate it. */
#define HAS_SCRATCHPAD (DNNL_VERSION_MAJOR > 3 || DNNL_VERSION_MINOR >= 13)

enum { Q, K, SCALE, V, INPUTS, OUTPUT = INPUTS, SCORES, SCALED, WEIGHTS, TENSORS };

typedef struct graph_state {
  onednn_library library;
  dnnl_graph_logical_tensor_t tensors[TENSORS], work;
  dnnl_graph_partition_t partition;
  dnnl_graph_compiled_partition_t compiled; /* NULL where there are no keys */
  int64_t rows;
  size_t work_bytes;
} graph_state;

/* Offsets in a thread's scratch; oneDNN's working memory comes last. */
typedef struct graph_layout {
  int64_t q_at, acc_at, max_at, sum_at, range_at, acc_stride, work_at;
} graph_layout;

/* False if a size overflows. */
static bool graph_layout_of(const attn_problem *p, int64_t rows, graph_layout *g) {
  *g = (graph_layout){.acc_stride = round_up(p->dim_v, STEPS_LANES)};
  const memory_part parts[] = {{&g->q_at, rows, float_bytes(p->dim_qk)},
                               {&g->acc_at, rows, float_bytes(g->acc_stride)},
                               {&g->max_at, rows, float_bytes(1)},
                               {&g->sum_at, rows, float_bytes(STEPS_LANES)},
                               {&g->range_at, rows, sizeof(attn_key_range)}};
  return LAY_OUT(parts, &g->work_at);
}

/* Plan data. */
typedef struct graph_plan {
  const attn_score_steps *steps;
  graph_layout layout;
  graph_state *state; /* made by open() */
} graph_plan;
_Static_assert(sizeof(graph_plan) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* The smallest of MATMUL_ROWS that holds all queries, or the largest. */
static int64_t rows_of(const attn_problem *p) {
  int64_t rows = MATMUL_ROWS[0];
  for (size_t i = 0; i < sizeof MATMUL_ROWS / sizeof *MATMUL_ROWS; i++)
    if (MATMUL_ROWS[i] >= p->seq_q) rows = MATMUL_ROWS[i];
  return rows;
}

/* ---- The graph ---- */

static dnnl_status_t describe(dnnl_graph_logical_tensor_t *tensor, size_t id, int64_t rows, int64_t columns,
                              int64_t stride) {
  const dnnl_dims_t sizes = {1, 1, rows, columns}, strides = {rows * stride, rows * stride, stride, 1};
  return dnnl_graph_logical_tensor_init_with_strides(tensor, id, dnnl_f32, 4, sizes, strides,
                                                     dnnl_graph_tensor_property_undef);
}

static dnnl_status_t describe_tensors(graph_state *s, const attn_problem *p) {
  const struct {
    int64_t rows, columns, stride;
  } shapes[TENSORS] = {
      [Q] = {s->rows, p->dim_qk, p->dim_qk},
      [K] = {p->seq_k, p->dim_qk, p->k_stride.s},
      [SCALE] = {1, 1, 1},
      [V] = {p->seq_k, p->dim_v, p->v_stride.s},
      [OUTPUT] = {s->rows, p->dim_v, round_up(p->dim_v, STEPS_LANES)},
      [SCORES] = {s->rows, p->seq_k, p->seq_k},
      [SCALED] = {s->rows, p->seq_k, p->seq_k},
      [WEIGHTS] = {s->rows, p->seq_k, p->seq_k},
  };
  dnnl_status_t status = dnnl_success;
  for (size_t i = 0; i < TENSORS && status == dnnl_success; i++)
    status = describe(&s->tensors[i], i, shapes[i].rows, shapes[i].columns, shapes[i].stride);
  return status;
}

/* An operation with the inputs a and b (b = a: one input). */
typedef struct graph_operation {
  const char *name;
  dnnl_graph_op_kind_t kind;
  int a, b, result;
} graph_operation;

static const graph_operation operations[] = {{"qk", dnnl_graph_op_matmul, Q, K, SCORES},
                                             {"scale", dnnl_graph_op_multiply, SCORES, SCALE, SCALED},
                                             {"softmax", dnnl_graph_op_softmax, SCALED, SCALED, WEIGHTS},
                                             {"pv", dnnl_graph_op_matmul, WEIGHTS, V, OUTPUT}};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* How a graph is divided, with objects that are needed only meanwhile. */
typedef struct finding {
  graph_state *state;
  const attn_problem *problem;
  dnnl_graph_graph_t graph;
  dnnl_graph_op_t op;
  size_t partitions;
} finding;

static dnnl_status_t add_operation(finding *f, size_t id) {
  const dnnl_graph_logical_tensor_t *tensors = f->state->tensors;
  const graph_operation *o = &operations[id];
  const uint8_t yes = 1;
  const int64_t last = -1;
  dnnl_status_t status = dnnl_graph_op_create(&f->op, id, o->kind, o->name);
  if (status == dnnl_success) status = dnnl_graph_op_add_input(f->op, &tensors[o->a]);
  if (status == dnnl_success && o->b != o->a) status = dnnl_graph_op_add_input(f->op, &tensors[o->b]);
  if (status == dnnl_success) status = dnnl_graph_op_add_output(f->op, &tensors[o->result]);
  if (status == dnnl_success && o->b == K)
    status = dnnl_graph_op_set_attr_bool(f->op, dnnl_graph_op_attr_transpose_b, &yes, 1);
  if (status == dnnl_success && o->b == o->a) status = dnnl_graph_op_set_attr_s64(f->op, dnnl_graph_op_attr_axis, &last, 1);
  return status == dnnl_success ? dnnl_graph_add_op(f->graph, f->op) : status;
}

/* Destroys the operation: the graph has its own copy. */
static void end_operation(finding *f) {
  if (f->op) dnnl_graph_op_destroy(f->op);
  f->op = NULL;
}

static dnnl_status_t divide(void *context) {
  finding *f = context;
  dnnl_status_t status = dnnl_graph_graph_create_with_fpmath_mode(&f->graph, dnnl_cpu, dnnl_fpmath_mode_strict);
  if (status == dnnl_success) status = describe_tensors(f->state, f->problem);
  for (size_t id = 0; id < OPERATIONS && status == dnnl_success; id++) {
    status = add_operation(f, id);
    end_operation(f);
  }
  if (status == dnnl_success) status = dnnl_graph_graph_finalize(f->graph);
  if (status == dnnl_success) status = dnnl_graph_graph_filter(f->graph, dnnl_graph_partition_policy_fusion);
  if (status == dnnl_success) status = dnnl_graph_graph_get_partition_num(f->graph, &f->partitions);
  if (status == dnnl_success && f->partitions == 1)
    status = dnnl_graph_graph_get_partitions(f->graph, 1, &f->state->partition);
  return status;
}

/* Divides the graph into partitions. *partitions is their number; if it is 1, s->partition is the whole graph. */
static dnnl_status_t find_partition(graph_state *s, const attn_problem *p, size_t *partitions) {
  finding f = {.state = s, .problem = p};
  const dnnl_status_t status = attn_onednn_guarded(divide, &f);
  end_operation(&f);
  if (f.graph) dnnl_graph_graph_destroy(f.graph);
  *partitions = f.partitions;
  return status;
}

static void end_graph(graph_state *s) {
  if (s->compiled) dnnl_graph_compiled_partition_destroy(s->compiled);
  if (s->partition) dnnl_graph_partition_destroy(s->partition);
  attn_onednn_close(&s->library);
}

static dnnl_status_t compile(void *context) {
  graph_state *s = context;
  const dnnl_graph_logical_tensor_t *inputs[INPUTS], *outputs[] = {&s->tensors[OUTPUT]};
  for (int i = 0; i < INPUTS; i++) inputs[i] = &s->tensors[i];
  dnnl_status_t status = dnnl_graph_compiled_partition_create(&s->compiled, s->partition);
  if (status == dnnl_success)
    status = dnnl_graph_partition_compile(s->partition, s->compiled, INPUTS, inputs, 1, outputs, s->library.engine);
#if HAS_SCRATCHPAD
  if (status == dnnl_success) status = dnnl_graph_compiled_partition_get_scratchpad_logical_tensor(s->compiled, &s->work);
  if (status == dnnl_success) status = dnnl_graph_logical_tensor_get_mem_size(&s->work, &s->work_bytes);
#endif
  return status;
}

/* ---- rejects, plan, open, close ---- */

static const char *cannot_express(const attn_problem *p) {
  if (p->score != ATTN_SCORE_DOT) return "oneDNN's fused attention takes dot scores";
  if (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32) return "graph_onednn takes float32 q, k and v";
  if (!matmul_sees_all(p))
    return "masks, lengths, windows and biases of -inf select keys here, and oneDNN's fused attention can only add to "
           "scores";
  if (p->softcap > 0 || attn_uses(p, ATTN_USE_ALIBI | ATTN_USE_SINKS))
    return "oneDNN's fused attention has no softcap, ALiBi or sinks";
  if (attn_uses(p, ATTN_USE_KV_SCALES)) return "oneDNN's fused attention takes k and v as they are stored";
  if (attn_uses(p, ATTN_USE_STATE)) return "oneDNN's fused attention does not return sums and references of rows";
  if (attn_uses(p, ATTN_USE_LSE)) return "oneDNN's fused attention does not return the LSE";
  if (p->seq_k > 0 && !matmul_in_place(p))
    return "oneDNN's fused attention reads K and V as matrices: rows of adjacent elements, forwards and without overlap";
  return NULL;
}

static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  graph_state state = {.rows = rows_of(p)};
  size_t partitions = 0;
  const char *reason = cannot_express(p);
  if (reason || p->seq_k == 0 || !attn_onednn_can_create()) return reason; /* open() says the last */
  const dnnl_status_t status = find_partition(&state, p, &partitions);
  end_graph(&state);
  if (status == dnnl_success && partitions == 1) return NULL;
  attn_onednn_identify();
  if (status == dnnl_success)
    snprintf(buffer, buffer_bytes, "%s has no fused attention for it: its graph makes %zu partitions", attn_onednn_text,
             partitions);
  else
    snprintf(buffer, buffer_bytes, "%s cannot make a graph of it: it answers '%s'", attn_onednn_text,
             dnnl_status2str(status));
  return buffer;
}

/* A version that does not fuse plain attention cannot run any problem. */
static const char *unusable(const char *cap) {
  static _Thread_local char buffer[200];
  enum { ROWS = 96, KEYS = 256, DIM = 64 };
  const attn_problem plain = {.batch = 1,
                              .heads_q = 1,
                              .heads_kv = 1,
                              .seq_q = ROWS,
                              .seq_k = KEYS,
                              .dim_qk = DIM,
                              .dim_v = DIM,
                              .q_stride = {.s = DIM, .d = 1},
                              .k_stride = {.s = DIM, .d = 1},
                              .v_stride = {.s = DIM, .d = 1},
                              .o_stride = {.s = DIM, .d = 1},
                              .scale = 0.125f,
                              .window_left = -1,
                              .window_right = -1};
  const char *reason = attn_onednn_unusable(cap);
  return reason ? reason : rejects(&plain, buffer, sizeof buffer);
}

static bool graph_onednn_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  graph_plan *own = (void *)schedule->own;
  const int64_t rows = rows_of(p);
  if (!graph_layout_of(p, rows, &own->layout)) return false;
  own->steps = machine->steps;
  schedule->phases = 1;
  schedule->items[0] = attn_group(p) * ceil_div(p->seq_q, rows);
  schedule->row_block = rows;
  schedule->key_block = p->seq_k;
  schedule->unit_bytes = 0;
  schedule->scratch_bytes = (size_t)own->layout.work_at;
  return true;
}

static attn_status open(attn_schedule *schedule, char *reason, size_t reason_bytes) {
  graph_state *s = calloc(1, sizeof *s);
  size_t partitions = 0;
  if (!s || !attn_onednn_can_create()) {
    free(s);
    return snprintf(reason, reason_bytes, "out of memory: oneDNN may need %d bytes", ONEDNN_CODE_BYTES), ATTN_OUT_OF_MEMORY;
  }
  s->rows = schedule->row_block;
  dnnl_status_t status = attn_onednn_open(&s->library);
  if (status == dnnl_success && schedule->problem.seq_k > 0) {
    const int threads = attn_onednn_hold_threads(&s->library);
    status = find_partition(s, &schedule->problem, &partitions);
    if (status == dnnl_success) status = partitions == 1 ? attn_onednn_guarded(compile, s) : dnnl_unimplemented;
    attn_onednn_restore_threads(&s->library, threads);
  }
  if (status != dnnl_success) {
    snprintf(reason, reason_bytes, "oneDNN cannot compile its partition: it answers '%s'", dnnl_status2str(status));
    end_graph(s);
    free(s);
    return status == dnnl_out_of_memory ? ATTN_OUT_OF_MEMORY : ATTN_UNSUPPORTED;
  }
  schedule->scratch_bytes += s->work_bytes;
  ((graph_plan *)(void *)schedule->own)->state = s;
  return ATTN_OK;
}

static void close(attn_schedule *schedule) {
  graph_state *s = ((graph_plan *)(void *)schedule->own)->state;
  end_graph(s);
  free(s);
}

/* ---- run ---- */

/* One execution and its handles; the last handle is that of the working memory. */
typedef struct execution {
  const graph_state *state;
  void *const *data;
  void *work;
  dnnl_graph_tensor_t tensors[OUTPUT + 2];
} execution;

static dnnl_status_t execute(void *context) {
  execution *e = context;
  const graph_state *s = e->state;
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i <= OUTPUT && status == dnnl_success; i++)
    status = dnnl_graph_tensor_create(&e->tensors[i], &s->tensors[i], s->library.engine, e->data[i]);
  const_dnnl_graph_tensor_t inputs[INPUTS], outputs[] = {e->tensors[OUTPUT]};
  for (int i = 0; i < INPUTS; i++) inputs[i] = e->tensors[i];
#if HAS_SCRATCHPAD
  if (status == dnnl_success && s->work_bytes)
    status = dnnl_graph_tensor_create(&e->tensors[OUTPUT + 1], &s->work, s->library.engine, e->work);
  if (status == dnnl_success)
    status = dnnl_graph_compiled_partition_execute_v2(s->compiled, s->library.stream, INPUTS, inputs, 1, outputs,
                                                      e->tensors[OUTPUT + 1]);
#else
  if (status == dnnl_success)
    status = dnnl_graph_compiled_partition_execute(s->compiled, s->library.stream, INPUTS, inputs, 1, outputs);
#endif
  return status == dnnl_success ? dnnl_stream_wait(s->library.stream) : status;
}

static bool execute_guarded(const graph_state *s, void *const *data, void *work) {
  execution e = {.state = s, .data = data, .work = work};
  const dnnl_status_t status = attn_onednn_guarded(execute, &e);
  for (int i = 0; i <= OUTPUT + 1; i++)
    if (e.tensors[i]) dnnl_graph_tensor_destroy(e.tensors[i]);
  return status == dnnl_success;
}

static void load_queries(const row_block *block, int64_t rows, float *q) {
  const attn_problem *p = block->problem;
  memset(q, 0, (size_t)(rows * p->dim_qk) * sizeof *q);
  for (int64_t i = 0; i < block->rows; i++) {
    const float *from =
        (const float *)block->args->q + attn_q_offset(p, block->seq, block->b, block->head, block->first_row + i);
    for (int64_t d = 0; d < p->dim_qk; d++) q[i * p->dim_qk + d] = from[d * p->q_stride.d];
  }
}

static bool attend(const graph_state *s, const row_block *block, float *q, void *work) {
  const attn_problem *p = block->problem;
  const attn_args *args = block->args;
  const attn_key_run run = attn_key_run_at(p, args, block->seq, block->head, 0);
  float scale = p->scale;
  load_queries(block, s->rows, q);
  void *const data[OUTPUT + 1] = {
      [Q] = q,
      [K] = (float *)(uintptr_t)args->k + run.k,
      [SCALE] = &scale,
      [V] = (float *)(uintptr_t)args->v + run.v,
      [OUTPUT] = block->acc,
  };
  const int threads = attn_onednn_hold_threads(&s->library);
  const bool done = attn_onednn_can_execute() && execute_guarded(s, data, work);
  attn_onednn_restore_threads(&s->library, threads);
  return done;
}

static void graph_onednn_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                             void *scratch) {
  const attn_problem *p = &schedule->problem;
  const graph_plan *own = (const void *)schedule->own;
  const graph_state *s = own->state;
  const graph_layout *at = &own->layout;
  const int64_t group = attn_group(p), b = attn_batch_of_unit(p, task.unit);
  const attn_sequence seq = attn_sequence_of(p, args, b);
  char *memory = scratch;
  (void)unit_memory;
  row_block block = {.problem = p, .args = args, .seq = &seq, .b = b, .acc_stride = at->acc_stride, .q_stride = p->dim_qk};
  block.head = attn_head_of_unit(p, task.unit) + task.item % group;
  block.first_row = task.item / group * s->rows;
  block.rows = block.rows_per_head = min64(s->rows, p->seq_q - block.first_row);
  block.acc = (float *)(void *)(memory + at->acc_at);
  block.row_max = (float *)(void *)(memory + at->max_at);
  block.row_sum = (float *)(void *)(memory + at->sum_at);
  block.range = (attn_key_range *)(void *)(memory + at->range_at);
  own->steps->start_rows(&block, s->rows);
  if (p->seq_k > 0) {
    const bool done = attend(s, &block, (float *)(void *)(memory + at->q_at), memory + at->work_at);
    own->steps->take_softmax(&block, (attn_key_range){0, 0}); /* O is divided already */
    for (int64_t i = 0; i < block.rows && !done; i++) block.acc[i * at->acc_stride] = NAN;
  }
  own->steps->finish_rows(&block);
}

const attn_kernel attn_graph_onednn = {
    .info = {.name = "graph_onednn",
             .algorithm = "graph",
             .isa = "c",
             .library = attn_onednn_text,
             .summary = "oneDNN's fused attention through its graph API, on blocks of rows; plain float32 attention only",
             .numerics = {.exp_error = 0x1p-21}}, /* like matmul_onednn's softmax */
    .rejects = rejects,
    .plan = graph_onednn_plan,
    .run = graph_onednn_run,
    .library =
        &(const attn_library_hooks){.open = open, .close = close, .identify = attn_onednn_identify, .unusable = unusable},
};

/* SPDX-License-Identifier: MIT */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/common/memory/quantise.h"
#include "kernels/peak.h"
#include "src/api/wall_clock.h"
#include "src/plan/nodes.h"

enum { UNWRITTEN = 0xA5 };

static double begun_ns;
__attribute__((constructor)) static void begin_clock(void) { begun_ns = attn_wall_clock_ns(); }

void test_times_of(double whole_ns, size_t count, const double *parts_ns) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) {
    assert_true(parts_ns[i] > 0);
    sum += parts_ns[i];
  }
  assert_true(sum <= whole_ns * 1.000001 && whole_ns <= attn_wall_clock_ns() - begun_ns);
}

/* Not a byte more than asked for: checks of memory see what is read or written behind it. */
void *test_allocate(size_t bytes) {
  void *memory;
  if (posix_memalign(&memory, 64, bytes ? bytes : 1)) fail_msg("out of memory: %zu bytes", bytes);
  return memset(memory, 0, bytes);
}

void test_fill(float *values, size_t count, unsigned seed) {
  uint64_t state = 0x9E3779B97F4A7C15u * (seed + 1u);
  for (size_t i = 0; i < count; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator, whose high bits are random */
    values[i] = (float)(state >> 40) * 0x1p-23f - 1.0f;
  }
}

/* The number of elements from the first to the last one that the strides reach; 0 for an empty tensor. */
static size_t span(int64_t batch, int64_t heads, int64_t seq, int64_t dim, attn_strides stride) {
  if (!batch || !heads || !seq || !dim) return 0;
  return (size_t)(1 + (batch - 1) * stride.b + (heads - 1) * stride.h + (seq - 1) * stride.s + (dim - 1) * stride.d);
}

static void *random_tensor(size_t count, attn_dtype dtype, unsigned seed) {
  float *values = test_allocate(count * sizeof *values);
  test_fill(values, count, seed);
  if (dtype == ATTN_F32) return values;
  void *narrow = test_allocate((size_t)attn_elements_bytes(dtype, (int64_t)count));
  attn_store_row(narrow, dtype, 0, values, (int64_t)count);
  free(values);
  return narrow;
}

int test_tiers(char names[16][16]) {
  char all[200];
  int count = 0;
  snprintf(all, sizeof all, "%s", attn_cpu_tiers());
  for (char *name = strtok(all, " "); name; name = strtok(NULL, " ")) snprintf(names[count++], 16, "%s", name);
  return count;
}

void *test_narrow(const float *floats, size_t count, attn_dtype dtype) {
  void *elements = test_allocate((size_t)attn_elements_bytes(dtype, (int64_t)count));
  for (size_t i = 0; i < count; i++) attn_store_f32(elements, dtype, (int64_t)i, floats[i]);
  return elements;
}

void test_widen(const void *elements, size_t count, attn_dtype dtype, float *floats) {
  for (size_t i = 0; i < count; i++) floats[i] = attn_load_f32((attn_storage){elements, dtype}, (int64_t)i);
}

void test_round(float *floats, size_t count, attn_dtype dtype) {
  void *elements = test_narrow(floats, count, dtype);
  test_widen(elements, count, dtype, floats);
  free(elements);
}

test_data test_data_share_inputs(const attn_problem *p, const test_data *inputs) {
  test_data data = {.args = inputs->args};
  data.o_bytes =
      (size_t)attn_elements_bytes(p->dtype_o, (int64_t)span(p->batch, p->heads_q, p->seq_q, p->dim_v, p->o_stride));
  data.args.o = memset(test_allocate(data.o_bytes), UNWRITTEN, data.o_bytes);
  data.args.lse = NULL;
  if (!(p->uses & ATTN_USE_LSE)) return data;
  data.lse_bytes = sizeof(float) * span(p->batch, p->heads_q, p->seq_q, 1, p->lse_stride);
  data.args.lse = memset(test_allocate(data.lse_bytes), UNWRITTEN, data.lse_bytes);
  return data;
}

test_data test_data_create(const attn_problem *p, unsigned seed) {
  test_data inputs = {
      .args = {
          .struct_size = sizeof(attn_args),
          .q = random_tensor(span(p->batch, p->heads_q, p->seq_q, p->dim_qk, p->q_stride), p->dtype_q, seed),
          .k = random_tensor(span(p->batch, p->heads_kv, p->seq_k, p->dim_qk, p->k_stride), p->dtype_kv, seed + 1),
          .v = random_tensor(span(p->batch, p->heads_kv, p->seq_k, p->dim_v, p->v_stride), p->dtype_kv, seed + 2),
      }};
  return test_data_share_inputs(p, &inputs);
}

void test_data_destroy_outputs(test_data *data) {
  free(data->args.o);
  free(data->args.lse);
  data->args.o = data->args.lse = NULL;
}

void test_data_destroy(test_data *data) {
  test_data_destroy_outputs(data);
  free((void *)data->args.q);
  free((void *)data->args.k);
  free((void *)data->args.v);
}

attn_status test_run(const attn_problem *problem, const attn_args *args, const attn_options *options) {
  attn_plan *plan;
  attn_status status = attn_plan_create(problem, options, &plan);
  if (status != ATTN_OK) return status;
  size_t bytes = attn_plan_workspace(plan);
  void *workspace = test_allocate(bytes);
  status = attn_plan_run(plan, args, workspace, bytes);
  free(workspace);
  attn_plan_destroy(plan);
  return status;
}

void test_ok(attn_status status) {
  if (status != ATTN_OK) fail_msg("%s: %s", attn_status_name(status), attn_last_error());
}

void test_contains(const char *text, const char *part) {
  if (!text || !strstr(text, part)) fail_msg("'%s' does not contain '%s'", text ? text : "(null)", part);
}

void test_refused_by_parts(attn_status status, attn_status expected, const char *const parts[4]) {
  if (status != expected)
    fail_msg("%s instead of %s (%s)", attn_status_name(status), attn_status_name(expected), attn_last_error());
  const char *rest = attn_last_error();
  for (int i = 0; i < 4 && parts[i]; i++) {
    const char *found = strstr(rest, parts[i]);
    if (!found) fail_msg("'%s' lacks '%s'%s", attn_last_error(), parts[i], i ? " behind the part before it" : "");
    rest = found + strlen(parts[i]);
  }
}

bool test_few(void) { return getenv("ATTN_TEST_FEW") != NULL; }

bool test_rows_stand_alone(const char *kernel) {
  const char *library = attn_kernel_find(kernel)->library;
  if (library[0]) print_message("%s skipped: %s may sum a row in another order beside other rows\n", kernel, library);
  return !library[0];
}

bool test_fit_types(const char *kernel, attn_problem *problem) {
  attn_problem narrow[2] = {*problem, *problem};
  narrow[0].dtype_q = narrow[0].dtype_kv = narrow[0].dtype_o = ATTN_BF16;
  narrow[1].dtype_kv = ATTN_I8;
  const attn_kernel_info *info = attn_kernel_find(kernel);
  if (!info || !attn_kernel_rejects(info, problem)) return false;
  for (size_t i = 0; i < COUNT(narrow); i++)
    if (!attn_kernel_rejects(info, &narrow[i])) {
      *problem = narrow[i];
      return true;
    }
  return false;
}

bool test_library_refuses(const char *kernel, const attn_problem *problem) {
  const attn_kernel_info *info = attn_kernel_find(kernel);
  const char *reason = info->library[0] ? attn_kernel_rejects(info, problem) : NULL;
  if (reason) print_message("%s skipped: %s\n", kernel, reason);
  return reason;
}

void test_each_kernel(void (*check)(const char *kernel)) { test_each_kernel_of(ATTN_FORWARD, check); }

void test_each_kernel_of(attn_operation operation, void (*check)(const char *kernel)) {
  int usable = 0;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (attn_kernel_operation(kernel) != operation) continue;
    (void)attn_peak_usable(kernel->isa); /* requests permission for AMX; until Linux refuses, the tier counts as usable */
    const char *why_not = attn_kernel_unusable(kernel);
    if (why_not) {
      print_message("%s skipped: %s\n", kernel->name, why_not);
      continue;
    }
    usable++;
    check(kernel->name);
  }
  assert_true(usable > 0);
}

static struct {
  FILE *stream, *kept;
  int own; /* the descriptor that the stream had */
} heard;

void test_listen(FILE *stream) {
  heard.stream = stream;
  heard.kept = tmpfile();
  (void)fflush(stream);
  heard.own = dup(fileno(stream));
  assert_true(heard.kept && heard.own >= 0 && dup2(fileno(heard.kept), fileno(stream)) >= 0);
}

const char *test_heard(void) {
  static char text[4000];
  (void)fflush(heard.stream);
  assert_true(dup2(heard.own, fileno(heard.stream)) >= 0);
  (void)close(heard.own);
  rewind(heard.kept);
  text[fread(text, 1, sizeof text - 1, heard.kept)] = 0;
  (void)fclose(heard.kept);
  return text;
}

void test_pretend_nodes(int nodes) {
  static attn_node_map map;
  map = (attn_node_map){.cpus = 8};
  for (int cpu = 0; cpu < 8; cpu++) {
    map.node[cpu] = (unsigned char)(cpu * nodes / 8);
    map.nodes |= UINT64_C(1) << map.node[cpu];
  }
  attn_nodes_pretend(nodes ? &map : NULL);
}

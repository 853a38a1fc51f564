/* SPDX-License-Identifier: MIT */
/* The files of `eval`: reads them, converts their elements to the types that the library takes, and names the option in
 * every error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "eval/eval.h"
#include "kernels/ref/oracle_f64.h"

static const char *const option_names[] = {
#define OPTION_NAME(constant, option, tensor) option,
    EVAL_FILE_LIST(OPTION_NAME)
#undef OPTION_NAME
};

const char *eval_option(eval_file which) { return option_names[which]; }

bool eval_has(const eval_loader *loader, eval_file which) { return loader->file[which].data != NULL; }

/* ---- Sentences --------------------------------------------------------------------------------------------------- */

const char *eval_shape_text(const int64_t *shape, int dims, char text[EVAL_SHAPE_TEXT]) {
  int length = snprintf(text, EVAL_SHAPE_TEXT, "[");
  for (int d = 0; d < dims; d++)
    length += snprintf(text + length, EVAL_SHAPE_TEXT - (size_t)length, "%s%lld", d ? ", " : "", (long long)shape[d]);
  snprintf(text + length, EVAL_SHAPE_TEXT - (size_t)length, "]");
  return text;
}

bool eval_fail_shape(eval_loader *loader, eval_file which, const char *wanted) {
  char text[EVAL_SHAPE_TEXT];
  const npy_array *array = &loader->file[which];
  return eval_fail(loader, "%s %s has shape %s; %s", eval_option(which), loader->options->path[which],
                   eval_shape_text(array->shape, array->dims, text), wanted);
}

static bool fail_type(eval_loader *loader, eval_file which, const char *wanted) {
  static const char *const names[] = {
      [NPY_F16] = "float16", [NPY_F32] = "float32", [NPY_F64] = "float64", [NPY_U8] = "uint8",  [NPY_U16] = "uint16",
      [NPY_I32] = "int32",   [NPY_I64] = "int64",   [NPY_I8] = "int8",     [NPY_BOOL] = "bool",
  };
  return eval_fail(loader, "%s %s holds %s; %s", eval_option(which), loader->options->path[which],
                   names[loader->file[which].type], wanted);
}

int eval_find_word(eval_loader *l, const char *name, const char *word, const char *const *words) {
  const int index = cli_index_of(word, words);
  const char *nearest = index < 0 ? cli_nearest(word, words) : NULL;
  if (index < 0) eval_fail(l, "%s %s is unknown%s%s", name, word, nearest ? "; did you mean " : "", nearest ? nearest : "");
  return index;
}

bool eval_read_files(eval_loader *loader) {
  for (eval_file which = 0; which < EVAL_FILES; which++) {
    const char *path = loader->options->path[which];
    char error[600];
    if (!path || (which == EVAL_OFFSET && cli_read_int(path, &loader->offset))) continue;
    if (npy_read(path, &loader->file[which], error, sizeof error) != 0)
      return eval_fail_with(loader, BENCH_EXIT_INTERNAL, "%s %s", eval_option(which), error);
  }
  return true;
}

void eval_free_files(eval_loader *loader) {
  for (eval_file which = 0; which < EVAL_FILES; which++) npy_free(&loader->file[which]);
}

/* ---- Converting elements ----------------------------------------------------------------------------------------- */

static double load_value(const npy_array *array, int64_t index) {
  switch (array->type) {
    case NPY_F16: return attn_oracle_load(array->data, ATTN_F16, index);
    case NPY_U16: return attn_oracle_load(array->data, ATTN_BF16, index);
    case NPY_F32: return ((const float *)array->data)[index];
    case NPY_F64: return ((const double *)array->data)[index];
    case NPY_I32: return ((const int32_t *)array->data)[index];
    case NPY_I64: return (double)((const int64_t *)array->data)[index];
    case NPY_I8: return ((const int8_t *)array->data)[index];
    case NPY_U8:
    case NPY_BOOL: break;
  }
  return ((const uint8_t *)array->data)[index];
}

/* Memory for the file's elements at `bytes` each; NULL, with an error, if there is none. */
static void *new_elements(eval_loader *loader, eval_file which, size_t bytes) {
  void *data = calloc((size_t)loader->file[which].count + 1, bytes);
  if (!data)
    eval_fail_with(loader, BENCH_EXIT_INTERNAL, "no memory for the %lld elements of %s",
                   (long long)loader->file[which].count, eval_option(which));
  return data;
}

static bool replace(npy_array *array, void *data, npy_type type) {
  free(array->data);
  array->data = data;
  array->type = type;
  return true;
}

static bool is_float(const eval_loader *loader, npy_type type) {
  return type == NPY_F16 || type == NPY_F32 || type == NPY_F64 || (type == NPY_U16 && loader->options->dtype);
}

bool eval_to_dtype(eval_loader *loader, eval_file which, attn_dtype dtype) {
  npy_array *array = &loader->file[which];
  if (!is_float(loader, array->type))
    return fail_type(loader, which, "floats are wanted: float16, float32, float64, or bfloat16 as uint16 with --dtype bf16");
  void *data = new_elements(loader, which, (size_t)attn_elements_bytes(dtype, 1));
  if (!data) return false;
  for (int64_t i = 0; i < array->count; i++) {
    const double value = load_value(array, i);
    bench_store(data, dtype, i, value);
    if (!isfinite(value) || isfinite(attn_oracle_load(data, dtype, i))) continue;
    free(data);
    return eval_fail(loader, "%s %s: element %lld is %g, which is too large for %d-bit floats", eval_option(which),
                     loader->options->path[which], (long long)i, value, (int)attn_elements_bytes(dtype, 8));
  }
  return replace(array, data, npy_type_of(dtype));
}

bool eval_to_doubles(eval_loader *loader, eval_file which) {
  npy_array *array = &loader->file[which];
  if (!is_float(loader, array->type)) return fail_type(loader, which, "floats are wanted");
  double *data = new_elements(loader, which, sizeof *data);
  for (int64_t i = 0; data && i < array->count; i++) data[i] = load_value(array, i);
  return data && replace(array, data, NPY_F64);
}

bool eval_to_lengths(eval_loader *loader, eval_file which, int64_t low, int64_t high) {
  npy_array *array = &loader->file[which];
  if (array->type != NPY_I32 && array->type != NPY_I64) return fail_type(loader, which, "int32 or int64 is wanted");
  int32_t *data = new_elements(loader, which, sizeof *data);
  if (!data) return false;
  for (int64_t i = 0; i < array->count; i++) {
    const int64_t value = array->type == NPY_I32 ? ((const int32_t *)array->data)[i] : ((const int64_t *)array->data)[i];
    data[i] = (int32_t)value;
    if (value >= low && value <= high) continue;
    free(data);
    return eval_fail(loader, "%s %s: element %lld is %lld; it must be in %lld..%lld", eval_option(which),
                     loader->options->path[which], (long long)i, (long long)value, (long long)low, (long long)high);
  }
  return replace(array, data, NPY_I32);
}

/* ---- Bytes of K and V ----------------------------------------------------------------------------------------------- */

/* Bytes [..., blocks, bytes of a block] become elements [..., 32 x blocks]; `count` stays that of what is stored, blocks. */
static bool take_bytes(eval_loader *l, eval_file which) {
  const attn_dtype_info type = attn_dtype_of(l->problem.dtype_kv);
  npy_array *array = &l->file[which];
  char wanted[100];
  snprintf(wanted, sizeof wanted, "with --kv-format %s it must be %s%zu]", type.name, "[..., seq, blocks, ", type.bytes);
  if (array->type != NPY_U8) {
    snprintf(wanted, sizeof wanted, "with --kv-format %s it must hold uint8", type.name);
    return fail_type(l, which, wanted);
  }
  if (type.values == 1) return true;
  if (array->dims < 3 || array->shape[array->dims - 1] != (int64_t)type.bytes) return eval_fail_shape(l, which, wanted);
  array->dims--;
  array->shape[array->dims - 1] *= type.values;
  array->count /= (int64_t)type.bytes;
  return true;
}

bool eval_load_format(eval_loader *l) {
  const char *words[ATTN_DTYPE_COUNT + 1] = {NULL};
  attn_dtype dtypes[ATTN_DTYPE_COUNT];
  int count = 0;
  for (attn_dtype d = 0; attn_dtype_exists(d); d++)
    if (npy_type_of(d) == NPY_U8) words[count] = attn_dtype_of(d).name, dtypes[count++] = d;
  const int word = l->options->kv_format ? eval_find_word(l, "--kv-format", l->options->kv_format, words) : 0;
  if (word < 0) return false;
  l->of_bytes = l->options->kv_format;
  if (l->of_bytes) l->problem.dtype_kv = dtypes[word];
  for (eval_file which = EVAL_K; which <= EVAL_V; which++) {
    if (!l->of_bytes && l->file[which].type == NPY_U8 && eval_has(l, which))
      return fail_type(l, which, "--kv-format must say what the bytes are: e4m3, e5m2, q8_0 or q4_0");
    if (l->of_bytes && eval_has(l, which) && !take_bytes(l, which)) return false;
  }
  return true;
}

/* ---- Sizes and strides of q, k, v and o, from the shapes of the files --------------------------------------------- */

/* Sizes of q, k or v as [batch, heads, seq or tokens, dim]; false if it has not 2 to 4 dimensions. */
static bool row_sizes(eval_loader *l, eval_file which, int64_t size[4]) {
  const npy_array *array = &l->file[which];
  const bool packed = eval_has(l, EVAL_CU_SEQLENS_Q);
  if (array->dims < 2 || array->dims > (packed ? 3 : 4))
    return eval_fail_shape(l, which,
                           packed ? "with --cu-seqlens-q it must be [tokens, heads, dim]"
                           : l->input->sequence_first
                               ? "it must be [batch, seq, heads, dim], [seq, heads, dim] or [seq, dim]"
                               : "it must be [batch, heads, seq, dim], [heads, seq, dim] or [seq, dim]");
  const int64_t *s = array->shape + (array->dims == 4);
  size[0] = array->dims == 4 ? array->shape[0] : 1;
  size[1] = array->dims == 2 ? 1 : s[l->input->sequence_first ? 1 : 0];
  size[2] = array->dims == 2 ? s[0] : s[l->input->sequence_first ? 0 : 1];
  size[3] = s[array->dims == 2 ? 1 : 2];
  return true;
}

/* Precomputed scores need no --q: its sizes then follow from the scores, its rank from v. */
static bool query_sizes_from_scores(eval_loader *l, const int64_t v[4], int64_t q[4]) {
  const npy_array *scores = &l->file[EVAL_SCORES];
  if (scores->dims < 2) return eval_fail_shape(l, EVAL_SCORES, "without --q it must be [..., seq_q, seq_k]");
  if (eval_has(l, EVAL_CU_SEQLENS_Q))
    return eval_fail(l, "--q is needed with --cu-seqlens-q: it tells the number of query tokens");
  const int64_t heads = scores->dims > 2 ? scores->shape[scores->dims - 3] : 1;
  q[0] = v[0];
  q[1] = heads > 1 ? heads : v[1];
  q[2] = scores->shape[scores->dims - 2];
  q[3] = 1; /* not read */
  l->input->rank = q[1] > 1 && l->file[EVAL_V].dims == 2 ? 3 : l->file[EVAL_V].dims;
  return true;
}

/* Two files whose sizes must agree: the batch, and each of heads, seq and dim that is set. */
typedef struct agreement {
  eval_file which, other;
  const int64_t *size, *wanted;
  bool heads, seq, dim;
} agreement;

static bool must_agree(eval_loader *l, agreement a) {
  static const char *const names[] = {"batch", "heads", "tokens", "head dimension"};
  const bool compared[] = {true, a.heads, a.seq, a.dim};
  for (int i = 0; i < 4; i++)
    if (compared[i] && a.size[i] != a.wanted[i])
      return eval_fail(l, "%s %s has %s %lld, but %s %s has %lld; they must agree", eval_option(a.which),
                       l->options->path[a.which], names[i], (long long)a.size[i], eval_option(a.other),
                       l->options->path[a.other], (long long)a.wanted[i]);
  return true;
}

/* Where sequences begin: never decreasing. The longest sequence is the seq of the problem. */
static bool read_cu_seqlens(eval_loader *l, eval_file which, int64_t tokens, int64_t *longest) {
  const npy_array *array = &l->file[which];
  if (array->dims != 1 || array->count < 1) return eval_fail_shape(l, which, "it must be [batch + 1]");
  if (!eval_to_lengths(l, which, 0, tokens < INT32_MAX ? tokens : INT32_MAX)) return false;
  const int32_t *cu = array->data;
  *longest = 0;
  for (int64_t b = 0; b + 1 < array->count; b++) {
    if (cu[b + 1] < cu[b])
      return eval_fail(l, "%s %s: element %lld is %d after %d; it must not decrease", eval_option(which),
                       l->options->path[which], (long long)b + 1, cu[b + 1], cu[b]);
    if (cu[b + 1] - cu[b] > *longest) *longest = cu[b + 1] - cu[b];
  }
  return true;
}

/* q: batch, heads, queries, dimension. */
static void init_problem(eval_loader *l, const int64_t q[4], int64_t heads_kv, int64_t seq_k, int64_t dim_v) {
  const attn_dtype dtype_kv = l->problem.dtype_kv;
  attn_problem_init(&l->problem, q[0], q[1], heads_kv, q[2], seq_k, q[3], dim_v);
  l->problem.dtype_kv = dtype_kv;
  (void)bench_layout_apply(&l->problem, "bhsd"); /* again: rows of blocks have whole ones */
}

static bool init_packed(eval_loader *l, const int64_t q[4], const int64_t k[4], int64_t dim_v) {
  int64_t seq_q, seq_k;
  if (eval_has(l, EVAL_KV_LEN) || eval_has(l, EVAL_Q_LEN))
    return eval_fail(l, "--kv-len and --q-len don't go with --cu-seqlens-q");
  if (!read_cu_seqlens(l, EVAL_CU_SEQLENS_Q, q[2], &seq_q) || !read_cu_seqlens(l, EVAL_CU_SEQLENS_K, k[2], &seq_k))
    return false;
  const int64_t batch = l->file[EVAL_CU_SEQLENS_Q].count - 1;
  if (l->file[EVAL_CU_SEQLENS_K].count - 1 != batch)
    return eval_fail(l, "--cu-seqlens-q tells %lld sequences, --cu-seqlens-k %lld; they must agree", (long long)batch,
                     (long long)l->file[EVAL_CU_SEQLENS_K].count - 1);
  init_problem(l, (const int64_t[]){batch, q[1], seq_q, q[3]}, k[1], seq_k, dim_v);
  attn_problem_set_varlen(&l->problem, q[2], k[2]);
  return true;
}

/* --v is needed and, without --scores, --q and --k. */
static bool has_all(eval_loader *l) {
  const bool need_qk = !eval_has(l, EVAL_SCORES), q = eval_has(l, EVAL_Q), k = eval_has(l, EVAL_K), v = eval_has(l, EVAL_V);
  if (v && (!need_qk || (q && k))) return true;
  return eval_fail(l, "%s is missing; --q, --k and --v are needed (--v alone with --scores)",
                   eval_option(!v  ? EVAL_V
                               : q ? EVAL_K
                                   : EVAL_Q));
}

/* Blocks say a head dimension up to a multiple of 32: k's is that of q, and so is v's if it has as many blocks. */
static void fit_dims(int64_t dim, int64_t k[4], int64_t v[4]) {
  if (v[3] == k[3]) v[3] = dim;
  k[3] = dim;
}

/* Sizes of q, k and v, all of which agree. */
static bool read_sizes(eval_loader *l, int64_t q[4], int64_t k[4], int64_t v[4]) {
  const bool has_q = eval_has(l, EVAL_Q), has_k = eval_has(l, EVAL_K);
  if (!row_sizes(l, EVAL_V, v)) return false;
  if (!(has_q ? row_sizes(l, EVAL_Q, q) : query_sizes_from_scores(l, v, q))) return false;
  memcpy(k, v, 4 * sizeof *k);
  k[3] = q[3];
  if (has_k && !row_sizes(l, EVAL_K, k)) return false;
  if (l->of_bytes && k[3] == attn_row_elements(l->problem.dtype_kv, q[3])) fit_dims(q[3], k, v);
  const agreement v_k = {EVAL_V, EVAL_K, v, k, .heads = true, .seq = true}, k_q = {EVAL_K, EVAL_Q, k, q, .dim = true},
                  v_q = {EVAL_V, EVAL_Q, v, q, .heads = false};
  return (!has_k || must_agree(l, v_k)) && (!has_k || !has_q || must_agree(l, k_q)) && (!has_q || must_agree(l, v_q));
}

bool eval_load_shape(eval_loader *l) {
  static const char *const layouts[] = {"bhsd", "bshd", NULL};
  int64_t q[4], k[4], v[4];
  const bool packed = eval_has(l, EVAL_CU_SEQLENS_Q);
  if (!has_all(l)) return false;
  if (packed != eval_has(l, EVAL_CU_SEQLENS_K)) return eval_fail(l, "--cu-seqlens-q and --cu-seqlens-k are needed together");
  const int layout = eval_find_word(l, "--layout", l->options->layout, layouts);
  if (layout < 0) return false;
  l->input->sequence_first = packed || layout == 1;
  l->input->rank = l->file[EVAL_Q].dims;
  if (!read_sizes(l, q, k, v)) return false;
  if (packed) return init_packed(l, q, k, v[3]);
  init_problem(l, q, k[1], k[2], v[3]);
  if (l->input->sequence_first) attn_problem_set_bshd(&l->problem);
  return true;
}

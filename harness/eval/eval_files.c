/* SPDX-License-Identifier: MIT */
/* The files of `eval`: reads them, converts their elements to the types that the library takes, and names the option in
 * every error. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "eval/eval_private.h"
#include "kernels/ref/oracle_f64.h"

static const char *const option_names[] = {
#define OPTION_NAME(constant, option, tensor) option,
    EVAL_FILE_LIST(OPTION_NAME)
#undef OPTION_NAME
};

const char *eval_option(eval_file which) { return option_names[which]; }

bool eval_has(const eval_loader *loader, eval_file which) { return loader->file[which].data != NULL; }

/* ---- Sentences --------------------------------------------------------------------------------------------------- */

bool eval_fail_with(eval_loader *loader, int exit_code, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(loader->input->error, sizeof loader->input->error, format, values);
  va_end(values);
  loader->input->exit_code = exit_code;
  return false;
}

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
      [NPY_F16] = "float16", [NPY_F32] = "float32", [NPY_F64] = "float64", [NPY_U8] = "bool or uint8",
      [NPY_U16] = "uint16",  [NPY_I32] = "int32",   [NPY_I64] = "int64",
  };
  return eval_fail(loader, "%s %s holds %s; %s", eval_option(which), loader->options->path[which],
                   names[loader->file[which].type], wanted);
}

int eval_find_word(eval_loader *l, const char *name, const char *word, const char *const *words) {
  for (int i = 0; words[i]; i++)
    if (strcmp(word, words[i]) == 0) return i;
  const char *nearest = cli_nearest(word, words);
  eval_fail(l, "%s %s is unknown%s%s", name, word, nearest ? "; did you mean " : "", nearest ? nearest : "");
  return -1;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

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
    case NPY_U8: break;
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
  void *data = new_elements(loader, which, attn_dtype_bytes(dtype));
  if (!data) return false;
  for (int64_t i = 0; i < array->count; i++) {
    const double value = load_value(array, i);
    bench_store(data, dtype, i, value);
    if (!isfinite(value) || isfinite(attn_oracle_load(data, dtype, i))) continue;
    free(data);
    return eval_fail(loader, "%s %s: element %lld is %g, which is too large for %d-bit floats", eval_option(which),
                     loader->options->path[which], (long long)i, value, 8 * (int)attn_dtype_bytes(dtype));
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

/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

/* ---- Files ---- */

static bool add_file(const char *folder, const char *name, llm_weights *w) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (w->count == LLM_MOST_FILES) return llm_fail("%s lists more than %d files", folder, LLM_MOST_FILES);
  if (safetensors_read(path, &w->file[w->count]) != 0) return false; /* has said why */
  w->bytes += w->file[w->count++].file_bytes;
  return true;
}

/* Adds each file of {"weight_map": {"tensor": "file", ...}} once. */
static bool add_listed(const char *folder, const char *path, const cJSON *index, llm_weights *w) {
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
  const char *added[LLM_MOST_FILES];
  if (!cJSON_IsObject(map)) return llm_fail("%s has no weight_map; it must be {tensor: file, ...}", path);
  for (const cJSON *entry = map->child; entry; entry = entry->next) {
    const char *name = cJSON_GetStringValue(entry);
    if (!name || strchr(name, '/')) return llm_fail("%s: weight_map.%s is not the name of a file", path, entry->string);
    int i = 0;
    while (i < w->count && strcmp(added[i], name) != 0) i++;
    if (i < w->count) continue;
    if (!add_file(folder, name, w)) return false;
    added[i] = name;
  }
  return true;
}

bool llm_weights_open(const char *folder, llm_weights *w) {
  char path[4096];
  *w = (llm_weights){.dtype = -1};
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
  cJSON *index;
  if (!llm_read_json(path, false, &index)) return false;
  const bool opened = index ? add_listed(folder, path, index, w) : add_file(folder, "model.safetensors", w);
  cJSON_Delete(index);
  return opened;
}

static void free_vectors(llm_weights *w) {
  while (w->vectors) free(w->vector[--w->vectors]);
}

void llm_weights_close(llm_weights *w) {
  free_vectors(w);
  while (w->count) safetensors_free(&w->file[--w->count]);
}

/* ---- Tensors ---- */

void llm_weights_begin(llm_weights *w, const char *prefix) {
  free_vectors(w);
  for (int i = 0; i < w->count; i++) safetensors_release(&w->file[i]);
  snprintf(w->prefix, sizeof w->prefix, "%s", prefix);
  w->dtype = -1;
}

static const safetensor *find(const llm_weights *w, const char *name) {
  char full[SAFETENSORS_MAX_NAME];
  const safetensor *found = NULL;
  snprintf(full, sizeof full, "%s%s", w->prefix, name);
  for (int i = 0; i < w->count && !found; i++) found = safetensors_find(&w->file[i], full);
  return found;
}

/* The tensor, if it has this shape. */
static const safetensor *fitting(llm_weights *w, const char *name, int64_t rows, int64_t columns) {
  const safetensor *found = find(w, name);
  if (found && safetensor_fits(found, rows, columns)) return found;
  char is[96] = "missing, or not of F32, F16 or BF16", must[48];
  if (found && found->dims == 0) snprintf(is, sizeof is, "a single number");
  for (int d = 0, at = 0; found && d < found->dims; d++)
    at += snprintf(is + at, sizeof is - (size_t)at, d ? " x %lld" : "%lld", (long long)found->shape[d]);
  if (rows)
    snprintf(must, sizeof must, "%lld x %lld", (long long)rows, (long long)columns);
  else
    snprintf(must, sizeof must, "%lld", (long long)columns);
  w->failed = !llm_fail("tensor %s%s is %s; by config.json it must be %s", w->prefix, name, is, must);
  return NULL;
}

const void *llm_weights_matrix(llm_weights *w, const char *name, int64_t rows, int64_t columns) {
  const safetensor *found = fitting(w, name, rows, columns);
  if (!found) return NULL;
  if (w->dtype < 0) w->dtype = (int)found->dtype;
  if (w->dtype == (int)found->dtype) return found->data;
  w->failed = !llm_fail("tensor %s%s has another type than those before it; matrices of a layer must have one type",
                        w->prefix, name);
  return NULL;
}

float *llm_weights_vector(llm_weights *w, const char *name, int64_t count, bool needed) {
  const safetensor *found = needed || find(w, name) ? fitting(w, name, 0, count) : NULL;
  if (!found) return NULL;
  float *vector = w->vectors < LLM_MOST_VECTORS ? malloc((size_t)count * sizeof *vector) : NULL;
  if (!vector) return w->failed = !llm_fail("tensor %s%s: out of memory", w->prefix, name), NULL;
  w->vector[w->vectors++] = vector;
  const attn_embedding row = ATTN_STRUCT(attn_embedding, .vocabulary = 1, .width = count, .table = found->data,
                                         .dtype = found->dtype); /* any type to float32 */
  if (attn_embed(&row, 1, &(int32_t){0}, vector) != ATTN_OK) w->failed = !llm_fail(NULL);
  return vector;
}

/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

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
  snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
  cJSON *index;
  if (!llm_read_json(path, false, &index)) return false;
  const bool opened = index ? add_listed(folder, path, index, w) : add_file(folder, "model.safetensors", w);
  cJSON_Delete(index);
  return opened;
}

typedef struct llm_vector {
  struct llm_vector *next;
  float elements[];
} llm_vector;

void llm_weights_close(llm_weights *w) {
  for (llm_vector *next; w->vectors; w->vectors = next) {
    next = w->vectors->next;
    free(w->vectors);
  }
  while (w->count) safetensors_free(&w->file[--w->count]);
}

/* ---- Tensors ---- */

void llm_weights_begin(llm_weights *w, const char *prefix) {
  for (int i = 0; i < w->count; i++) safetensors_release(&w->file[i]);
  snprintf(w->prefix, sizeof w->prefix, "%s", prefix);
  w->dtype = -1;
}

static void fail(llm_weights *w, const char *name, const char *is, const char *must) {
  w->failed = !llm_fail("tensor %s%s %s; %s", w->prefix, name, is, must);
}

/* The tensor, if it has this shape; rows = 0 means a vector. */
static const safetensor *find(llm_weights *w, const char *name, int64_t rows, int64_t columns, bool needed) {
  char full[SAFETENSORS_MAX_NAME], is[128] = "is", must[64] = "by config.json it must be";
  const safetensor *found = NULL;
  snprintf(full, sizeof full, "%s%s", w->prefix, name);
  for (int i = 0; i < w->count && !found; i++) found = safetensors_find(&w->file[i], full);
  if (found ? safetensor_fits(found, rows, columns) : !needed) return found;

  const int dims = found ? found->dims : 0;
  if (dims == 0) strcat(is, found ? " a single number" : " missing, or not of F32, F16 or BF16");
  for (int d = 0; d < dims; d++)
    snprintf(is + strlen(is), sizeof is - strlen(is), d ? " x %lld" : " %lld", (long long)found->shape[d]);
  if (rows) snprintf(must + strlen(must), sizeof must - strlen(must), " %lld x", (long long)rows);
  snprintf(must + strlen(must), sizeof must - strlen(must), " %lld", (long long)columns);
  return fail(w, name, is, must), NULL;
}

const void *llm_weights_matrix(llm_weights *w, const char *name, int64_t rows, int64_t columns) {
  const safetensor *found = find(w, name, rows, columns, true);
  if (!found) return NULL;
  if (w->dtype < 0) w->dtype = (int)found->dtype;
  if (w->dtype == (int)found->dtype) return found->data;
  return fail(w, name, "has another type than those before it", "matrices of a layer must have one type"), NULL;
}

float *llm_weights_vector(llm_weights *w, const char *name, int64_t count, bool needed) {
  const safetensor *found = find(w, name, 0, count, needed);
  if (!found) return NULL;
  llm_vector *added = malloc(sizeof *added + (size_t)count * sizeof *added->elements);
  if (!added) return fail(w, name, "has no room", "out of memory"), NULL;
  added->next = w->vectors;
  w->vectors = added;
  const attn_embedding row = ATTN_STRUCT(attn_embedding, .vocabulary = 1, .width = count, .table = found->data,
                                         .dtype = found->dtype); /* any type to float32 */
  if (attn_embed(&row, 1, &(int32_t){0}, added->elements) != ATTN_OK) w->failed = !llm_fail(NULL);
  return added->elements;
}

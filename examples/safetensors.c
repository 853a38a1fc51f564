/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise */
#include "safetensors.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The header: the part of JSON that safetensors headers use ---- */

typedef struct reader {
  const char *at, *end;
} reader;

static void skip_space(reader *r) {
  while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at) r->at++;
}

static bool accept(reader *r, char wanted) {
  skip_space(r);
  if (r->at == r->end || *r->at != wanted) return false;
  r->at++;
  return true;
}

/* A string. Escapes such as \" and \\ are not decoded. Too long for `text` is an error. */
static bool read_string(reader *r, char *text, size_t bytes) {
  if (!accept(r, '"')) return false;
  size_t length = 0;
  for (; r->at < r->end && *r->at != '"'; r->at++) {
    const bool escape = *r->at == '\\' && r->at + 1 < r->end;
    for (int i = 0; i <= escape; i++) {
      if (text && length + 1 >= bytes) return false;
      if (text) text[length] = r->at[i];
      length++;
    }
    r->at += escape;
  }
  if (text) text[length] = 0;
  return accept(r, '"');
}

static bool read_number(reader *r, int64_t *number) {
  skip_space(r);
  *number = 0;
  const char *begin = r->at;
  for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
    if (*number > INT64_MAX / 10 - 10) return false;
    *number = *number * 10 + (*r->at - '0');
  }
  return r->at > begin;
}

/* Reads [1, 2, 3]. Returns the count, or -1 if this is no such list or longer than `most`. */
static int read_numbers(reader *r, int64_t *numbers, int most) {
  if (!accept(r, '[')) return -1;
  int count = 0;
  if (accept(r, ']')) return 0;
  do {
    if (count == most || !read_number(r, &numbers[count])) return -1;
    count++;
  } while (accept(r, ','));
  return accept(r, ']') ? count : -1;
}

static bool skip_strings(reader *r) { /* {"note": "...", ...}: metadata, not used */
  if (!accept(r, '{')) return false;
  if (accept(r, '}')) return true;
  do {
    if (!read_string(r, NULL, 0) || !accept(r, ':') || !read_string(r, NULL, 0)) return false;
  } while (accept(r, ','));
  return accept(r, '}');
}

typedef struct entry {
  char dtype[8];
  int64_t range[2];
  bool complete;
} entry;

/* {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]}, in any order. */
static bool read_entry(reader *r, safetensor *tensor, entry *e) {
  int found = 0;
  if (!accept(r, '{')) return false;
  do {
    char key[16];
    if (!read_string(r, key, sizeof key) || !accept(r, ':')) return false;
    if (strcmp(key, "dtype") == 0) {
      if (!read_string(r, e->dtype, sizeof e->dtype)) return false;
      found |= 1;
    } else if (strcmp(key, "shape") == 0) {
      tensor->dims = read_numbers(r, tensor->shape, SAFETENSORS_MAX_DIMS);
      if (tensor->dims < 0) return false;
      found |= 2;
    } else if (strcmp(key, "data_offsets") == 0) {
      if (read_numbers(r, e->range, 2) != 2) return false;
      found |= 4;
    } else {
      return false;
    }
  } while (accept(r, ','));
  return accept(r, '}') && found == 7;
}

static const struct {
  const char *name;
  attn_dtype dtype;
  int64_t bytes;
} types[] = {{"F32", ATTN_F32, 4}, {"F16", ATTN_F16, 2}, {"BF16", ATTN_BF16, 2}};
enum { TYPES = sizeof types / sizeof *types };

static int find_type(const char *name) {
  for (int i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return i;
  return -1;
}

/* Whether the entry's bytes lie in the data, and their number fits its shape. */
static bool fits(const safetensor *tensor, const entry *e, int64_t element, int64_t data_bytes) {
  int64_t bytes = element;
  for (int i = 0; i < tensor->dims; i++)
    if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes)) return false;
  return e->range[0] <= e->range[1] && e->range[1] <= data_bytes && e->range[1] - e->range[0] == bytes &&
         e->range[0] % element == 0;
}

static const char *read_header(safetensors *out, reader r, const char *data, int64_t data_bytes) {
  const char *const malformed = "its header is not what a safetensors header should be";
  if (!accept(&r, '{')) return malformed;
  if (accept(&r, '}')) return NULL;
  do {
    char name[SAFETENSORS_MAX_NAME];
    safetensor tensor = {0};
    entry e = {0};
    if (!read_string(&r, name, sizeof name) || !accept(&r, ':')) return malformed;
    if (strcmp(name, "__metadata__") == 0) {
      if (!skip_strings(&r)) return malformed;
      continue;
    }
    if (!read_entry(&r, &tensor, &e)) return malformed;
    const int type = find_type(e.dtype);
    if (type < 0) continue;
    if (!fits(&tensor, &e, types[type].bytes, data_bytes))
      return "a tensor's shape and offsets do not fit each other or the file";
    safetensor *more = realloc(out->tensors, (size_t)(out->count + 1) * sizeof *more);
    if (!more) return "out of memory";
    out->tensors = more;
    memcpy(tensor.name, name, sizeof name);
    tensor.dtype = types[type].dtype;
    tensor.data = data + e.range[0];
    more[out->count++] = tensor;
  } while (accept(&r, ','));
  return accept(&r, '}') ? NULL : malformed;
}

/* ---- Files ---- */

/* NULL if it cannot be mapped. */
static char *map_file(const char *path, int64_t *bytes) {
  struct stat about;
  const int file = open(path, O_RDONLY);
  void *contents = MAP_FAILED;
  if (file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
    *bytes = about.st_size;
    contents = mmap(NULL, (size_t)*bytes, PROT_READ, MAP_PRIVATE, file, 0); /* refuses a length of 0 */
  }
  if (file >= 0) close(file);
  return contents == MAP_FAILED ? NULL : contents;
}

static const char *read_contents(const char *contents, int64_t bytes, safetensors *out) {
  uint64_t header;
  if (bytes < 8) return "it is shorter than the 8 bytes that give the header's length";
  memcpy(&header, contents, 8);
  if (header > (uint64_t)bytes - 8 || header % 4) return "the header's length exceeds the file or is no multiple of 4";
  const char *data = contents + 8 + header;
  return read_header(out, (reader){contents + 8, data}, data, bytes - 8 - (int64_t)header);
}

/* Adds a file and its tensors. Returns 0, or -1 after a message, with everything freed. */
static int add_file(const char *path, safetensors *out) {
  const char *wrong = "it cannot be read";
  safetensors_file *more = realloc(out->file, (size_t)(out->files + 1) * sizeof *more), added = {NULL, 0};
  if (more) out->file = more;
  if (more) added.contents = map_file(path, &added.bytes);
  if (added.contents) {
    more[out->files++] = added;
    wrong = read_contents(added.contents, added.bytes, out);
  }
  if (!wrong) return 0;
  fprintf(stderr, "%s: %s\n", path, more ? wrong : "out of memory");
  safetensors_free(out);
  return -1;
}

int safetensors_read(const char *path, safetensors *out) {
  *out = (safetensors){0};
  return add_file(path, out);
}

/* Into how many files the folder's model is cut, by the name of any of them; 0 = into none. */
static int count_parts(const char *folder) {
  int parts = 0;
  DIR *files = opendir(folder);
  for (const struct dirent *file; files && !parts && (file = readdir(files));)
    if (sscanf(file->d_name, "model-%*5d-of-%5d.safetensors", &parts) != 1) parts = 0;
  if (files) closedir(files);
  return parts;
}

int safetensors_read_folder(const char *folder, safetensors *out) {
  char path[4096];
  *out = (safetensors){0};
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  const int parts = access(path, F_OK) == 0 ? 0 : count_parts(folder);
  if (parts < 1) return add_file(path, out);
  for (int part = 1; part <= parts; part++) {
    snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, part, parts);
    if (add_file(path, out) != 0) return -1;
  }
  return 0;
}

int64_t safetensors_bytes(const safetensors *tensors) {
  int64_t bytes = 0;
  for (int i = 0; i < tensors->files; i++) bytes += tensors->file[i].bytes;
  return bytes;
}

void safetensors_free(safetensors *tensors) {
  for (int i = 0; i < tensors->files; i++) munmap(tensors->file[i].contents, (size_t)tensors->file[i].bytes);
  free(tensors->tensors);
  free(tensors->file);
  *tensors = (safetensors){0};
}

void safetensors_release(const safetensors *tensors) {
  for (int i = 0; i < tensors->files; i++) madvise(tensors->file[i].contents, (size_t)tensors->file[i].bytes, MADV_DONTNEED);
}

const safetensor *safetensors_find(const safetensors *tensors, const char *name) {
  for (int i = 0; i < tensors->count; i++)
    if (strcmp(tensors->tensors[i].name, name) == 0) return &tensors->tensors[i];
  return NULL;
}

bool safetensor_fits(const safetensor *t, int64_t rows, int64_t columns) {
  int64_t leading = 1;
  for (int d = 0; d + 1 < t->dims; d++) leading *= t->shape[d];
  return t->dims > 0 && t->shape[t->dims - 1] == columns && (rows ? t->dims > 1 && leading == rows : t->dims == 1);
}

const safetensor *safetensors_require(const safetensors *tensors, const char *name, int64_t rows, int64_t columns) {
  char is[128] = "", must[48] = "";
  const safetensor *t = safetensors_find(tensors, name);
  if (t && safetensor_fits(t, rows, columns)) return t;
  if (rows) snprintf(must, sizeof must, "%lld x ", (long long)rows);
  for (int d = 0; t && d < t->dims; d++)
    snprintf(is + strlen(is), sizeof is - strlen(is), d ? " x %lld" : "%lld", (long long)t->shape[d]);
  if (!t) snprintf(is, sizeof is, "missing, or not of F32, F16 or BF16");
  fprintf(stderr, "tensor %s is %s; it must be %s%lld\n", name, *is ? is : "a single number", must, (long long)columns);
  return NULL;
}

const float *safetensors_get(const safetensors *tensors, const char *name, int64_t rows, int64_t columns) {
  const safetensor *t = safetensors_require(tensors, name, rows, columns);
  if (!t || t->dtype == ATTN_F32) return t ? t->data : NULL;
  fprintf(stderr, "tensor %s is not of F32, as it must be\n", name);
  return NULL;
}

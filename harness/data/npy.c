/* SPDX-License-Identifier: MIT */
/* The .npy format without Python: a magic string, a version, and a Python dict literal that says type, order and shape, then
 * the elements. The file may come from anywhere, so every field is checked against the bytes that are really there before
 * anything is allocated or read by it. */
#include "data/npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
  NPY_MAX_HEADER = 65536, /* NumPy itself refuses more than 10000 unless told otherwise */
  NPY_HEADER_ALIGN = 64,  /* where NumPy lets the data start */
  NPY_WORD = 32,          /* longest string that a header we can read holds */
};

static const char npy_magic[] = "\x93NUMPY";

typedef struct npy_kind {
  const char *code; /* as in a header, without the byte order */
  npy_type type;
  size_t bytes;
} npy_kind;

/* In the order of npy_type, so that a type's own code can be looked up; types that are only read follow. */
static const npy_kind npy_kinds[] = {
    {"f2", NPY_F16, 2}, {"f4", NPY_F32, 4}, {"f8", NPY_F64, 8}, {"u1", NPY_U8, 1},
    {"u2", NPY_U16, 2}, {"i4", NPY_I32, 4}, {"i8", NPY_I64, 8}, {"b1", NPY_U8, 1},
};

enum { NPY_KINDS = sizeof npy_kinds / sizeof *npy_kinds };

npy_type npy_type_of(attn_dtype dtype) {
  static const npy_type types[] = {
#define DTYPE(constant, name, element, npy, ...) [ATTN_##constant] = NPY_##npy,
#include "kernels/common/dtypes.def"
#undef DTYPE
  };
  return types[dtype];
}

/* A file that is being read: what its header has said so far, the parser's place in it, and where errors go. */
typedef struct npy_reader {
  FILE *file;
  int64_t bytes; /* of the file */
  const char *path;
  char *error;
  size_t error_bytes;
  char *header, *at, *end; /* header text; `at` is the next character */
  bool has_descr, has_order, has_shape;
  const npy_kind *kind;
  bool swapped; /* the other byte order than this machine's */
  bool fortran_order;
  npy_array *array;
} npy_reader;

/* Writes "path: sentence" to the caller's buffer; always false, so that it can be returned. */
__attribute__((format(printf, 2, 3))) static bool fail(const npy_reader *reader, const char *format, ...) {
  char sentence[400];
  va_list values;
  va_start(values, format);
  vsnprintf(sentence, sizeof sentence, format, values);
  va_end(values);
  snprintf(reader->error, reader->error_bytes, "%s: %s", reader->path, sentence);
  return false;
}

/* ---- The header's text ------------------------------------------------------------------------------------------- */

static void skip_spaces(npy_reader *reader) {
  while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at) reader->at++;
}

static bool next_is(npy_reader *reader, char wanted) {
  skip_spaces(reader);
  if (reader->at == reader->end || *reader->at != wanted) return false;
  reader->at++;
  return true;
}

/* Says where the header differs from the dict that NumPy writes, and what would be right. */
static bool fail_syntax(npy_reader *reader, const char *wanted) {
  skip_spaces(reader);
  char found[16] = "its end";
  if (reader->at < reader->end) {
    const unsigned char byte = (unsigned char)*reader->at;
    snprintf(found, sizeof found, byte >= 0x20 && byte < 0x7f ? "'%c'" : "byte 0x%02x", byte);
  }
  return fail(reader, "header has %s at character %lld where %s should be", found, (long long)(reader->at - reader->header),
              wanted);
}

static bool expect(npy_reader *reader, char wanted) {
  const char words[] = {'\'', wanted, '\'', 0};
  return next_is(reader, wanted) || fail_syntax(reader, words);
}

/* A quoted string without escapes, as keys and type codes are. */
static bool parse_string(npy_reader *reader, char text[NPY_WORD], const char *wanted) {
  skip_spaces(reader);
  if (reader->at == reader->end || (*reader->at != '\'' && *reader->at != '"')) return fail_syntax(reader, wanted);
  const char quote = *reader->at++;
  size_t length = 0;
  while (reader->at < reader->end && *reader->at != quote) {
    if (length + 1 == NPY_WORD) return fail(reader, "header holds a string of more than %d characters", NPY_WORD - 1);
    text[length++] = *reader->at++;
  }
  text[length] = 0;
  return expect(reader, quote);
}

static bool machine_is_little_endian(void) {
  const uint16_t one = 1;
  return *(const unsigned char *)&one == 1;
}

/* 'descr': '<f4' and the like; a list stands for a structured type. */
static bool parse_descr(npy_reader *reader) {
  char text[NPY_WORD];
  skip_spaces(reader);
  if (reader->at < reader->end && *reader->at == '[')
    return fail(reader, "descr is a structured type; save each field as an array of its own");
  if (!parse_string(reader, text, "a type such as '<f4'")) return false;
  const char order = text[0];
  for (int i = 0; order && i < NPY_KINDS; i++)
    if (strcmp(text + 1, npy_kinds[i].code) == 0) reader->kind = &npy_kinds[i];
  const bool one_byte = reader->kind && reader->kind->bytes == 1;
  if (!reader->kind || !strchr(one_byte ? "<>=|" : "<>=", order))
    return fail(reader,
                "descr is '%s'; readable types are f2, f4, f8, b1, u1, u2, i4 and i8 after '<', '>' or, for one byte, '|' "
                "(convert with array.astype)",
                text);
  reader->swapped = !one_byte && order == (machine_is_little_endian() ? '>' : '<');
  reader->array->type = reader->kind->type;
  return true;
}

static bool parse_order(npy_reader *reader) {
  skip_spaces(reader);
  const size_t left = (size_t)(reader->end - reader->at);
  reader->fortran_order = left >= 4 && memcmp(reader->at, "True", 4) == 0;
  if (!reader->fortran_order && (left < 5 || memcmp(reader->at, "False", 5) != 0))
    return fail_syntax(reader, "fortran_order's True or False");
  reader->at += reader->fortran_order ? 4 : 5;
  return true;
}

/* One size of the shape: digits, and the L that Python 2 wrote after them. */
static bool parse_size(npy_reader *reader, int64_t *size) {
  skip_spaces(reader);
  if (reader->at < reader->end && *reader->at == '-')
    return fail(reader, "shape holds a negative size; sizes are 0 or more");
  if (reader->at == reader->end || *reader->at < '0' || *reader->at > '9') return fail_syntax(reader, "a size of shape");
  *size = 0;
  while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
    const int digit = *reader->at++ - '0';
    if (*size > (INT64_MAX - digit) / 10) return fail(reader, "shape holds a size of more than 63 bits");
    *size = *size * 10 + digit;
  }
  if (reader->at < reader->end && *reader->at == 'L') reader->at++;
  return true;
}

/* 'shape': (), (3,) or (3, 4); counts the elements. */
static bool parse_shape(npy_reader *reader) {
  npy_array *array = reader->array;
  int64_t product = 1; /* without the zeros, so that (0, 2^62, 2^62) is found out too */
  array->count = 1;
  if (!expect(reader, '(')) return false;
  while (!next_is(reader, ')')) {
    if (array->dims == NPY_MAX_DIMS) return fail(reader, "shape has more than %d dimensions", NPY_MAX_DIMS);
    int64_t *size = &array->shape[array->dims++];
    if (!parse_size(reader, size)) return false;
    if (*size > 0 && product > INT64_MAX / 8 / *size)
      return fail(reader, "shape describes more bytes than 63 bits can count");
    product *= *size > 0 ? *size : 1;
    array->count *= *size;
    if (next_is(reader, ',')) continue;
    if (!expect(reader, ')')) return false;
    break;
  }
  return true;
}

typedef struct npy_field {
  const char *name;
  size_t seen; /* offset of the flag in npy_reader */
  bool (*parse)(npy_reader *reader);
} npy_field;

static const npy_field npy_fields[] = {
    {"descr", offsetof(npy_reader, has_descr), parse_descr},
    {"fortran_order", offsetof(npy_reader, has_order), parse_order},
    {"shape", offsetof(npy_reader, has_shape), parse_shape},
};

enum { NPY_FIELDS = sizeof npy_fields / sizeof *npy_fields };

static bool *field_seen(npy_reader *reader, const npy_field *field) { return (bool *)((char *)reader + field->seen); }

static bool parse_field(npy_reader *reader) {
  char name[NPY_WORD];
  if (!parse_string(reader, name, "a quoted key or '}'")) return false;
  for (int i = 0; i < NPY_FIELDS; i++) {
    const npy_field *field = &npy_fields[i];
    if (strcmp(name, field->name) != 0) continue;
    if (*field_seen(reader, field)) return fail(reader, "header holds '%s' twice", name);
    *field_seen(reader, field) = true;
    return expect(reader, ':') && field->parse(reader);
  }
  return fail(reader, "header holds the key '%s'; only descr, fortran_order and shape belong there", name);
}

static bool parse_header(npy_reader *reader) {
  if (!expect(reader, '{')) return false;
  while (!next_is(reader, '}')) {
    if (!parse_field(reader)) return false;
    if (next_is(reader, ',')) continue;
    if (!expect(reader, '}')) return false;
    break;
  }
  skip_spaces(reader);
  if (reader->at != reader->end) return fail_syntax(reader, "nothing but spaces");
  for (int i = 0; i < NPY_FIELDS; i++)
    if (!*field_seen(reader, &npy_fields[i])) return fail(reader, "header lacks '%s'", npy_fields[i].name);
  return true;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static bool open_file(npy_reader *reader) {
  reader->file = fopen(reader->path, "rb");
  struct stat status;
  if (!reader->file || fstat(fileno(reader->file), &status) != 0) return fail(reader, "cannot be read: %s", strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail(reader, "is not a regular file");
  reader->bytes = status.st_size;
  return true;
}

static bool read_bytes(npy_reader *reader, void *data, size_t bytes, const char *what) {
  if (fread(data, 1, bytes, reader->file) == bytes) return true;
  if (ferror(reader->file)) return fail(reader, "cannot be read: %s", strerror(errno));
  return fail(reader, "ends within its %s (%lld bytes in all)", what, (long long)reader->bytes);
}

/* Magic, version and header length; then the header's text into memory. */
static bool read_header(npy_reader *reader) {
  unsigned char start[8], length_bytes[4] = {0};
  if (reader->bytes < 10) return fail(reader, "is not an .npy file: only %lld bytes long", (long long)reader->bytes);
  if (!read_bytes(reader, start, sizeof start, "first 8 bytes")) return false;
  if (memcmp(start, "PK\3\4", 4) == 0) return fail(reader, "is an .npz archive; save its arrays one by one with numpy.save");
  if (memcmp(start, npy_magic, 6) != 0) return fail(reader, "is not an .npy file: it does not begin with \\x93NUMPY");
  if (start[6] < 1 || start[6] > 3 || start[7] != 0)
    return fail(reader, "has .npy format version %d.%d; 1.0, 2.0 and 3.0 are known", start[6], start[7]);
  const size_t width = start[6] == 1 ? 2 : 4;
  if (!read_bytes(reader, length_bytes, width, "header length")) return false;
  const uint32_t length =
      length_bytes[0] | (uint32_t)length_bytes[1] << 8 | (uint32_t)length_bytes[2] << 16 | (uint32_t)length_bytes[3] << 24;
  if (length > NPY_MAX_HEADER)
    return fail(reader, "says its header has %u bytes; at most %d are read", length, NPY_MAX_HEADER);
  reader->header = malloc(length + 1);
  if (!reader->header) return fail(reader, "no memory for its header of %u bytes", length);
  reader->at = reader->header;
  reader->end = reader->header + length;
  return read_bytes(reader, reader->header, length, "header") && parse_header(reader);
}

static void swap_bytes(unsigned char *data, int64_t count, size_t size) {
  for (int64_t i = 0; i < count; i++, data += size)
    for (size_t low = 0, high = size - 1; low < high; low++, high--) {
      const unsigned char byte = data[low];
      data[low] = data[high];
      data[high] = byte;
    }
}

/* Copies elements stored with the first index running fastest to elements stored with the last one running fastest. */
static void fortran_to_c(const npy_array *array, const unsigned char *from, unsigned char *to, size_t size) {
  int64_t stride[NPY_MAX_DIMS], index[NPY_MAX_DIMS] = {0}, offset = 0;
  for (int d = 0; d < array->dims; d++) stride[d] = d == 0 ? 1 : stride[d - 1] * array->shape[d - 1];
  for (int64_t i = 0; i < array->count; i++) {
    memcpy(to + i * (int64_t)size, from + offset * (int64_t)size, size);
    for (int d = array->dims - 1; d >= 0; d--) {
      offset += stride[d];
      if (++index[d] < array->shape[d]) break;
      offset -= stride[d] * array->shape[d];
      index[d] = 0;
    }
  }
}

static bool reorder(npy_reader *reader) {
  npy_array *array = reader->array;
  const size_t size = reader->kind->bytes;
  unsigned char *c_order = malloc((size_t)array->count * size + 1);
  if (!c_order) return fail(reader, "no memory to turn its %lld elements from Fortran to C order", (long long)array->count);
  fortran_to_c(array, array->data, c_order, size);
  free(array->data);
  array->data = c_order;
  return true;
}

static bool read_data(npy_reader *reader) {
  npy_array *array = reader->array;
  const size_t bytes = (size_t)array->count * reader->kind->bytes;
  const int64_t left = reader->bytes - ftell(reader->file);
  if ((int64_t)bytes != left)
    return fail(reader, "holds %lld bytes of data, but its shape and type need %zu: the file is %s", (long long)left, bytes,
                (int64_t)bytes > left ? "cut short" : "longer than one array");
  array->data = malloc(bytes + 1); /* + 1: an empty array has data too */
  if (!array->data) return fail(reader, "no memory for its %zu bytes", bytes);
  if (!read_bytes(reader, array->data, bytes, "data")) return false;
  if (reader->swapped) swap_bytes(array->data, array->count, reader->kind->bytes);
  return !reader->fortran_order || array->dims < 2 || reorder(reader);
}

int npy_read(const char *path, npy_array *array, char *error, size_t error_bytes) {
  npy_reader reader = {.path = path, .array = array, .error = error, .error_bytes = error_bytes};
  memset(array, 0, sizeof *array);
  const bool ok = open_file(&reader) && read_header(&reader) && read_data(&reader);
  if (reader.file) fclose(reader.file);
  free(reader.header);
  if (!ok) npy_free(array);
  return ok ? 0 : -1;
}

/* "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }" padded so that the data starts at a multiple of 64. Returns
 * its length, without the 10 bytes of magic, version and length before it. */
static size_t format_header(const npy_array *array, char *text, size_t text_bytes) {
  const npy_kind *kind = &npy_kinds[array->type];
  const char order = kind->bytes == 1 ? '|' : machine_is_little_endian() ? '<' : '>';
  size_t length =
      (size_t)snprintf(text, text_bytes, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", order, kind->code);
  for (int d = 0; d < array->dims; d++)
    length += (size_t)snprintf(text + length, text_bytes - length, "%s%lld%s", d ? " " : "", (long long)array->shape[d],
                               d + 1 < array->dims || d == 0 ? "," : "");
  length += (size_t)snprintf(text + length, text_bytes - length, "), }");
  while ((10 + length + 1) % NPY_HEADER_ALIGN != 0) text[length++] = ' ';
  text[length++] = '\n';
  return length;
}

int npy_write(const char *path, const npy_array *array, char *error, size_t error_bytes) {
  char text[512]; /* 8 sizes of 19 digits, the keys and the padding fit */
  const size_t length = format_header(array, text, sizeof text);
  const unsigned char version[4] = {1, 0, (unsigned char)(length & 0xff), (unsigned char)(length >> 8)};
  const size_t count = (size_t)array->count;
  FILE *file = fopen(path, "wb");
  bool ok = file && fwrite(npy_magic, 1, 6, file) == 6 && fwrite(version, 1, 4, file) == 4 &&
            fwrite(text, 1, length, file) == length &&
            (count == 0 || fwrite(array->data, npy_kinds[array->type].bytes, count, file) == count);
  if (file && fclose(file) != 0) ok = false;
  if (!ok) snprintf(error, error_bytes, "%s: cannot be written: %s", path, strerror(errno));
  return ok ? 0 : -1;
}

void npy_free(npy_array *array) {
  free(array->data);
  memset(array, 0, sizeof *array);
}

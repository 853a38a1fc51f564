/* SPDX-License-Identifier: MIT */
/* The .npy format without Python: a magic string, a version, and a Python dict literal that says type, order and shape, then
 * the elements. The file may come from anywhere, so every field is checked against the bytes that are really there before
 * anything is allocated or read by it. */
#include "data/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cli.h"
#include "base/files.h"

enum {
  NPY_MAX_HEADER = 65536, /* NumPy itself refuses more than 10000 unless told otherwise */
  NPY_HEADER_ALIGN = 64,  /* where NumPy lets the data start */
  NPY_WORD = 32,          /* longest string that a header we can read holds */
  NPY_OWN_ORDER = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>',
};

static const char npy_magic[] = "\x93NUMPY";

typedef struct npy_kind {
  const char *code; /* spelt like in a header, without the byte order */
  npy_type type;
  size_t bytes;
} npy_kind;

/* In the order of npy_type. */
static const npy_kind npy_kinds[] = {
    {"f2", NPY_F16, 2}, {"f4", NPY_F32, 4}, {"f8", NPY_F64, 8}, {"u1", NPY_U8, 1},   {"u2", NPY_U16, 2},
    {"i4", NPY_I32, 4}, {"i8", NPY_I64, 8}, {"i1", NPY_I8, 1},  {"b1", NPY_BOOL, 1},
};

enum { NPY_KINDS = sizeof npy_kinds / sizeof *npy_kinds };

npy_type npy_type_of(attn_dtype dtype) {
  static const npy_type types[] = {
#define DTYPE(constant, name, element, npy, ...) [ATTN_##constant] = NPY_##npy,
#include "kernels/common/problem/dtypes.def"
#undef DTYPE
  };
  return types[dtype];
}

/* A file that is being read: what its header has said so far, the parser's place in it, and where errors go. */
typedef struct npy_reader {
  FILE *file;
  int64_t bytes; /* bytes of the file */
  const char *path;
  char *error;
  size_t error_bytes;
  char *header, *at, *end; /* header text, with a 0 behind it; `at` is the next character */
  unsigned seen;           /* a bit for each of npy_fields */
  const npy_kind *kind;
  bool swapped; /* the other byte order than this machine's */
  bool fortran_order;
  npy_array *array;
} npy_reader;

/* Writes "path: sentence" to the caller's buffer; false. */
#define fail(reader, ...)                                                     \
  (bench_say((reader)->error, (reader)->error_bytes, "%s: ", (reader)->path), \
   bench_append((reader)->error, (reader)->error_bytes, __VA_ARGS__), false)

/* ---- The header's text ------------------------------------------------------------------------------------------- */

static char peek(npy_reader *reader) {
  reader->at += strspn(reader->at, " \t\r\n");
  return *reader->at;
}

static bool next_is(npy_reader *reader, char wanted) {
  if (peek(reader) != wanted) return false;
  reader->at++;
  return true;
}

/* Says where the header differs from the dict that NumPy writes, and what would be right. */
static bool fail_syntax(npy_reader *reader, const char *wanted) {
  const unsigned char byte = (unsigned char)peek(reader);
  char found[16] = "its end";
  if (reader->at < reader->end) snprintf(found, sizeof found, byte >= 0x20 && byte < 0x7f ? "'%c'" : "byte 0x%02x", byte);
  return fail(reader, "header has %s at character %lld where %s should be", found, (long long)(reader->at - reader->header),
              wanted);
}

static bool expect(npy_reader *reader, char wanted) {
  const char words[] = {'\'', wanted, '\'', 0};
  return next_is(reader, wanted) || fail_syntax(reader, words);
}

/* A quoted string without escapes, as keys and type codes are. */
static bool parse_string(npy_reader *reader, char text[NPY_WORD], const char *wanted) {
  const char quote[] = {peek(reader), 0};
  if (*quote != '\'' && *quote != '"') return fail_syntax(reader, wanted);
  const size_t length = strcspn(++reader->at, quote);
  if (length >= NPY_WORD) return fail(reader, "header holds a string of more than %d characters", NPY_WORD - 1);
  snprintf(text, NPY_WORD, "%.*s", (int)length, reader->at);
  reader->at += length;
  return expect(reader, *quote);
}

/* 'descr': '<f4' and the like; a list stands for a structured type. */
static bool parse_descr(npy_reader *reader) {
  char text[NPY_WORD];
  if (peek(reader) == '[') return fail(reader, "descr is a structured type; save each field as an array of its own");
  if (!parse_string(reader, text, "a type such as '<f4'")) return false;
  const char order = text[0];
  for (int i = 0; order && i < NPY_KINDS; i++)
    if (strcmp(text + 1, npy_kinds[i].code) == 0) reader->kind = &npy_kinds[i];
  const bool one_byte = reader->kind && reader->kind->bytes == 1;
  if (!reader->kind || !strchr(one_byte ? "<>=|" : "<>=", order))
    return fail(
        reader,
        "descr is '%s'; readable types are f2, f4, f8, b1, i1, u1, u2, i4 and i8 after '<', '>' or, for one byte, '|' "
        "(convert with array.astype)",
        text);
  reader->swapped = !one_byte && order == (NPY_OWN_ORDER == '<' ? '>' : '<');
  reader->array->type = reader->kind->type;
  return true;
}

static bool parse_order(npy_reader *reader) {
  static const char *const words[] = {"False", "True"};
  (void)peek(reader);
  for (int i = 0; i < 2; i++) {
    if (strncmp(reader->at, words[i], strlen(words[i])) != 0) continue;
    reader->fortran_order = i;
    reader->at += strlen(words[i]);
    return true;
  }
  return fail_syntax(reader, "fortran_order's True or False");
}

/* One size of the shape: digits, and the L that Python 2 wrote after them. */
static bool parse_size(npy_reader *reader, int64_t *size) {
  const char first = peek(reader);
  if (first == '-') return fail(reader, "shape holds a negative size; sizes are 0 or more");
  if (first < '0' || first > '9') return fail_syntax(reader, "a size of shape");
  errno = 0;
  *size = strtoll(reader->at, &reader->at, 10);
  if (errno) return fail(reader, "shape holds a size of more than 63 bits");
  reader->at += *reader->at == 'L';
  return true;
}

/* 'shape': (), (3,) or (3, 4); counts the elements. */
static bool parse_shape(npy_reader *reader) {
  npy_array *array = reader->array;
  int64_t product = 8; /* bytes, without the zeros, so that (0, 2^62, 2^62) is found out too */
  array->count = 1;
  if (!expect(reader, '(')) return false;
  while (!next_is(reader, ')')) {
    if (array->dims == NPY_MAX_DIMS) return fail(reader, "shape has more than %d dimensions", NPY_MAX_DIMS);
    int64_t *size = &array->shape[array->dims++];
    if (!parse_size(reader, size)) return false;
    if (__builtin_mul_overflow(product, *size > 0 ? *size : 1, &product))
      return fail(reader, "shape describes more bytes than 63 bits can count");
    array->count *= *size;
    if (!next_is(reader, ',')) return expect(reader, ')');
  }
  return true;
}

static const struct {
  const char *name;
  bool (*parse)(npy_reader *reader);
} npy_fields[] = {{"descr", parse_descr}, {"fortran_order", parse_order}, {"shape", parse_shape}};

enum { NPY_FIELDS = sizeof npy_fields / sizeof *npy_fields };

static bool parse_field(npy_reader *reader) {
  char name[NPY_WORD];
  if (!parse_string(reader, name, "a quoted key or '}'")) return false;
  for (int i = 0; i < NPY_FIELDS; i++) {
    if (strcmp(name, npy_fields[i].name) != 0) continue;
    if (reader->seen >> i & 1) return fail(reader, "header holds '%s' twice", name);
    reader->seen |= 1u << i;
    return expect(reader, ':') && npy_fields[i].parse(reader);
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
  (void)peek(reader);
  if (reader->at != reader->end) return fail_syntax(reader, "nothing but spaces");
  for (int i = 0; i < NPY_FIELDS; i++)
    if (!(reader->seen >> i & 1)) return fail(reader, "header lacks '%s'", npy_fields[i].name);
  return true;
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

/* A pipe would make a plain fopen wait for a writer. */
static bool open_file(npy_reader *reader, const char *path) {
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status;
  reader->file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
  if (!reader->file || fstat(descriptor, &status) != 0) return fail(reader, "cannot be read: %s", strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail(reader, "is not a regular file");
  reader->bytes = status.st_size;
  return true;
}

static bool read_bytes(npy_reader *reader, void *data, size_t bytes, const char *what) {
  if (fread(data, 1, bytes, reader->file) == bytes) return true;
  if (ferror(reader->file)) return fail(reader, "cannot be read: %s", strerror(errno));
  return fail(reader, "ends within its %s (%lld bytes in all)", what, (long long)reader->bytes);
}

static uint64_t little_endian(const unsigned char *bytes, int count) {
  uint64_t value = 0;
  while (count-- > 0) value = value << 8 | bytes[count];
  return value;
}

/* Behind a member's header: its name and extra fields, of which ZIP64's has the size of what follows. */
static bool read_member(npy_reader *reader, const unsigned char head[30], const char *name, bool *found, int64_t *size) {
  unsigned char text[512]; /* a name that does not fit is not the one that is wanted */
  const size_t length = little_endian(head + 26, 2), extra = little_endian(head + 28, 2);
  const size_t kept = length + extra < sizeof text ? length + extra : sizeof text;
  if (!read_bytes(reader, text, kept, "list of arrays")) return false;
  if (fseek(reader->file, (long)(length + extra - kept), SEEK_CUR) != 0)
    return fail(reader, "cannot be read: %s", strerror(errno));
  *found = length == strlen(name) && length <= kept && memcmp(text, name, length) == 0;
  uint64_t bytes = little_endian(head + 18, 4);
  if (bytes == UINT32_MAX && extra >= 20 && length + 20 <= kept && little_endian(text + length, 2) == 1)
    bytes = little_endian(text + length + 12, 8);
  if (head[6] & 8 || head[8] || bytes > (uint64_t)(reader->bytes - ftell(reader->file)))
    return fail(reader, "has arrays that are compressed or cut short; numpy.savez writes readable ones");
  *size = (int64_t)bytes;
  return true;
}

/* Goes to the member's data, and ends the file behind it. */
static bool find_member(npy_reader *reader, const char *name) {
  unsigned char head[30];
  bool found = false;
  int64_t size = 0;
  while (!found) {
    if (fread(head, 1, sizeof head, reader->file) != sizeof head || memcmp(head, "PK\3\4", 4) != 0)
      return fail(reader, "holds no such array");
    if (!read_member(reader, head, name, &found, &size)) return false;
    if (!found && fseek(reader->file, (long)size, SEEK_CUR) != 0) return fail(reader, "cannot be read: %s", strerror(errno));
  }
  reader->bytes = ftell(reader->file) + size;
  return true;
}

/* Magic, version and header length; then the header's text into memory. */
static bool read_header(npy_reader *reader) {
  unsigned char start[8], length_bytes[4] = {0};
  if (reader->bytes < 10) return fail(reader, "is not an .npy file: only %lld bytes long", (long long)reader->bytes);
  if (!read_bytes(reader, start, sizeof start, "first 8 bytes")) return false;
  if (memcmp(start, "PK\3\4", 4) == 0) return fail(reader, "is an .npz archive; FILE.npz:NAME.npy is an array in it");
  if (memcmp(start, npy_magic, 6) != 0) return fail(reader, "is not an .npy file: it does not begin with \\x93NUMPY");
  if (start[6] < 1 || start[6] > 3 || start[7] != 0)
    return fail(reader, "has .npy format version %d.%d; 1.0, 2.0 and 3.0 are known", start[6], start[7]);
  if (!read_bytes(reader, length_bytes, start[6] == 1 ? 2 : 4, "header length")) return false;
  const uint32_t length =
      length_bytes[0] | (uint32_t)length_bytes[1] << 8 | (uint32_t)length_bytes[2] << 16 | (uint32_t)length_bytes[3] << 24;
  if (length > NPY_MAX_HEADER)
    return fail(reader, "says its header has %u bytes; at most %d are read", length, NPY_MAX_HEADER);
  reader->header = reader->at = calloc(length + 1, 1);
  if (!reader->header) return fail(reader, "no memory for its header of %u bytes", length);
  reader->end = reader->header + length;
  return read_bytes(reader, reader->header, length, "header") && parse_header(reader);
}

/* Elements of one order as those of another: the bytes of each reversed if `swapped`; and stored with the first index
 * running fastest, or with the last one. */
static void copy_elements(const npy_reader *reader, const unsigned char *from, unsigned char *to) {
  const npy_array *array = reader->array;
  const int64_t size = (int64_t)reader->kind->bytes;
  int64_t stride[NPY_MAX_DIMS] = {size}, index[NPY_MAX_DIMS] = {0}, at = 0;
  for (int d = 1; d < array->dims; d++) stride[d] = stride[d - 1] * array->shape[d - 1];
  for (int64_t i = 0; i < array->count; i++, to += size) {
    const unsigned char *element = from + (reader->fortran_order ? at : i * size);
    for (int64_t byte = 0; byte < size; byte++) to[byte] = element[reader->swapped ? size - 1 - byte : byte];
    for (int d = array->dims - 1; d >= 0; d--) {
      at += stride[d];
      if (++index[d] < array->shape[d]) break;
      at -= stride[d] * array->shape[d];
      index[d] = 0;
    }
  }
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
  if (!reader->swapped && !reader->fortran_order) return true;
  unsigned char *own_order = malloc(bytes + 1);
  if (!own_order) return fail(reader, "no memory to reorder its %zu bytes", bytes);
  copy_elements(reader, array->data, own_order);
  free(array->data);
  array->data = own_order;
  return true;
}

int npy_read(const char *path, npy_array *array, char *error, size_t error_bytes) {
  npy_reader reader = {.path = path, .array = array, .error = error, .error_bytes = error_bytes};
  memset(array, 0, sizeof *array);
  const char *colon = strstr(path, ".npz:");
  char archive[4096];
  snprintf(archive, sizeof archive, "%.*s", colon ? (int)(colon - path) + 4 : (int)strlen(path), path);
  const bool ok = open_file(&reader, archive) && (!colon || find_member(&reader, colon + 5)) && read_header(&reader) &&
                  read_data(&reader);
  if (reader.file) fclose(reader.file);
  free(reader.header);
  if (!ok) npy_free(array);
  return ok ? 0 : -1;
}

/* "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }" after magic, version and length; padded so that the data
 * starts at a multiple of 64. */
static void write_array(void *context, FILE *file) {
  const npy_array *array = context;
  const npy_kind *kind = &npy_kinds[array->type];
  char shape[24 * NPY_MAX_DIMS] = "", text[512]; /* 8 sizes of 19 digits, the keys and the padding fit */
  for (int d = 0, used = 0; d < array->dims; d++)
    used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld%s", d ? " " : "", (long long)array->shape[d],
                     d + 1 < array->dims || d == 0 ? "," : "");
  int length = snprintf(text, sizeof text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
                        kind->bytes == 1 ? '|' : NPY_OWN_ORDER, kind->code, shape);
  length += NPY_HEADER_ALIGN - (10 + length) % NPY_HEADER_ALIGN;
  (void)fprintf(file, "%s%c%c%c%c%-*s\n", npy_magic, 1, 0, length & 0xff, length >> 8, length - 1, text);
  (void)fwrite(array->data, kind->bytes, (size_t)array->count, file);
}

bool npy_write(const char *path, const npy_array *array) { return bench_file_write(path, write_array, (void *)array); }

void npy_free(npy_array *array) {
  free(array->data);
  memset(array, 0, sizeof *array);
}

/* SPDX-License-Identifier: MIT */
/* The .npy reader and writer. Files as NumPy writes them are read; all others are refused with the reason. The tests make
 * the files byte by byte, without Python. */
#define TEST_SETUP    make_path
#define TEST_TEARDOWN remove_path
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/npy.h"
#include "tests/support/support.h"

static char path[64];

static int make_path(void **state) {
  (void)state;
  strcpy(path, "test_npy_XXXXXX.npz"); /* a member's name has to follow before it names an array */
  const int descriptor = mkstemps(path, 4);
  return descriptor < 0 ? -1 : close(descriptor);
}

static int remove_path(void **state) {
  (void)state;
  return unlink(path);
}

static void write_file(const void *bytes, size_t count) {
  (void)unlink(path); /* some file systems flush a file that is truncated and rewritten; that takes long */
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

/* Writes a file of this format version with exactly this header. */
static void write_npy(int version, const char *header, const void *data, size_t data_bytes) {
  unsigned char bytes[4096] = "\x93NUMPY";
  const size_t length = strlen(header), width = version == 1 ? 2 : 4;
  assert_true(8 + width + length + data_bytes <= sizeof bytes);
  bytes[6] = (unsigned char)version;
  bytes[8] = (unsigned char)(length & 0xff);
  bytes[9] = (unsigned char)(length >> 8);
  memcpy(bytes + 8 + width, header, length);
  if (data_bytes) memcpy(bytes + 8 + width + length, data, data_bytes);
  write_file(bytes, 8 + width + length + data_bytes);
}

static void assert_read(npy_array *array) {
  char error[512] = "";
  if (npy_read(path, array, error, sizeof error) != 0) fail_msg("%s", error);
}

/* Fails unless the file is refused by a sentence that begins with its name and contains `words`. */
static void assert_refused(const char *words) {
  npy_array array;
  char error[512] = "";
  assert_int_equal(npy_read(path, &array, error, sizeof error), -1);
  assert_null(array.data);
  if (strncmp(error, path, strlen(path)) != 0 || !strstr(error, words)) fail_msg("wanted '%s' in '%s'", words, error);
}

static void assert_header_refused(const char *header, const char *words) {
  write_npy(1, header, "0123456789abcdef0123456789abcdef", 24);
  assert_refused(words);
}

TEST(reads_every_version_and_type) {
  static const struct {
    const char *descr;
    npy_type type;
    size_t bytes;
  } types[] = {{"<f2", NPY_F16, 2}, {"<f4", NPY_F32, 4}, {"<f8", NPY_F64, 8}, {"|b1", NPY_BOOL, 1}, {"|u1", NPY_U8, 1},
               {"<u2", NPY_U16, 2}, {"<i4", NPY_I32, 4}, {"<i8", NPY_I64, 8}, {"|i1", NPY_I8, 1},   {">f4", NPY_F32, 4}};
  for (int version = 1; version <= 3; version++)
    for (size_t t = 0; t < COUNT(types); t++) {
      char header[128];
      unsigned char data[6 * 8] = {0};
      snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }      \n", types[t].descr);
      data[6 * types[t].bytes - 1] = 0x40;
      write_npy(version, header, data, 6 * types[t].bytes);
      npy_array array;
      assert_read(&array);
      assert_int_equal(array.type, types[t].type);
      assert_int_equal(array.dims, 2);
      assert_int_equal(array.shape[0], 2);
      assert_int_equal(array.shape[1], 3);
      assert_int_equal(array.count, 6);
      if (*types[t].descr != '>') assert_memory_equal(array.data, data, 6 * types[t].bytes);
      npy_free(&array);
    }
}

TEST(swaps_the_other_byte_order) {
  static const unsigned char big[] = {0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0}, little[] = {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0};
  npy_array array;
  for (int is_big = 0; is_big < 2; is_big++) {
    write_npy(
        1,
        is_big ? "{'descr':'>f4','fortran_order':False,'shape':(2,)}" : "{'descr':'<f4','fortran_order':False,'shape':(2,)}",
        is_big ? big : little, 8);
    assert_read(&array);
    assert_true(((const float *)array.data)[0] == 1.0f);
    assert_true(((const float *)array.data)[1] == -2.5f);
    npy_free(&array);
  }
}

TEST(turns_fortran_order) {
  uint16_t stored[2 * 3 * 4];
  for (uint16_t a = 0, n = 0; a < 2; a++)
    for (uint16_t b = 0; b < 3; b++)
      for (uint16_t c = 0; c < 4; c++) stored[a + 2 * (b + 3 * c)] = n++;
  write_npy(1, "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3, 4), }", stored, sizeof stored);
  npy_array array;
  assert_read(&array);
  for (int i = 0; i < 24; i++) assert_int_equal(((const uint16_t *)array.data)[i], i);
  npy_free(&array);
}

TEST(reads_scalars_and_empty_arrays) {
  npy_array array;
  write_npy(1, "{\"shape\": (), 'fortran_order': False, 'descr': '<i4'}\n", "\7\0\0\0", 4); /* other quotes and order */
  assert_read(&array);
  assert_int_equal(array.dims, 0);
  assert_int_equal(array.count, 1);
  assert_int_equal(*(const int32_t *)array.data, 7);
  npy_free(&array);
  write_npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (3L, 0L, 5L)}", NULL, 0);
  assert_read(&array);
  assert_int_equal(array.count, 0);
  assert_int_equal(array.shape[2], 5);
  assert_non_null(array.data);
  npy_free(&array);
}

TEST(refuses_what_is_not_npy) {
  write_file("", 0);
  assert_refused("only 0 bytes long");
  write_file("PK\3\4 and so on", 14);
  assert_refused(".npz archive");
  write_file("1.5, 2.5, 3.5, 4.5", 18);
  assert_refused("does not begin with");
  write_npy(4, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "0123", 4);
  assert_refused("version 4.0");
  write_file("\x93NUMPY\1\0\xff\xff{'descr'", 18);
  assert_refused("ends within its header");
  write_file("\x93NUMPY\2\0\xff\xff\xff\xff{", 13);
  assert_refused("4294967295 bytes");
  write_file("\x93NUMPY\2\0\1\0", 10);
  assert_refused("ends within its header length");
}

TEST(refuses_files_it_cannot_open) {
  char error[200], no_file[96];
  npy_array array;
  snprintf(no_file, sizeof no_file, "%s.none", path);
  assert_int_equal(npy_read(no_file, &array, error, sizeof error), -1);
  assert_non_null(strstr(error, "No such file"));
  assert_int_equal(npy_read("/", &array, error, sizeof error), -1);
  assert_non_null(strstr(error, "not a regular file"));
}

TEST(refuses_bad_headers) {
  static const struct {
    const char *header, *words;
  } bad[] = {
      {"", "its end at character 0 where '{' should be"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), ", "its end"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} x", "'x' at character 56"},
      {"{'descr': '<f4', 'fortran_order': False}", "lacks 'shape'"},
      {"{'fortran_order': False, 'shape': (6,)}", "lacks 'descr'"},
      {"{'descr': '<f4', 'shape': (6,)}", "lacks 'fortran_order'"},
      {"{'descr': '<f4', 'descr': '<f4'}", "'descr' twice"},
      {"{'descr': '<f4', 'flavour': 1}", "key 'flavour'"},
      {"{'descr': '<f4' 'shape': (6,)}", "''' at character 16 where '}'"},
      {"{descr: '<f4'}", "where a quoted key"},
      {"{'descr': '<f4", "its end"},
      {"{'descr': '<f4_that_goes_on_and_on_and_on_and_on'}", "more than 31 characters"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", "descr is '<c8'"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "descr is '|O'"},
      {"{'descr': '|f4', 'fortran_order': False, 'shape': (6,)}", "descr is '|f4'"},
      {"{'descr': '', 'fortran_order': False, 'shape': (6,)}", "descr is ''"},
      {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}", "structured type"},
      {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (6,)}", "True or False"},
      {"{'descr': '<f4', 'fortran_order': Tr", "True or False"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': 6}", "where '(' should be"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}", "negative size"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (6.0,)}", "'.' at character 52"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "a size of shape"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6)}", "more than 8 dimensions"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "more than 63 bits"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "more bytes than 63 bits"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296)}", "more bytes than 63 bits"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "cut short"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}", "24 bytes of data, but its shape and type need 28"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", "longer than one array"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", "longer than one array"},
      {"{'de\tscr\x01': 1}", "key 'de"},
      {"{\x01", "byte 0x01"},
  };
  for (size_t i = 0; i < COUNT(bad); i++) assert_header_refused(bad[i].header, bad[i].words);
}

/* Prefixes of a good file are refused. Files with one changed byte are read or refused; sanitizers report bad accesses. */
TEST(survives_damage) {
  static const char header[] = "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 2), }  \n";
  unsigned char bytes[256] = {0};
  npy_array array;
  char error[512];
  write_npy(1, header, bytes, 48);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  for (size_t length = 0; length < size; length++) {
    write_file(bytes, length);
    assert_int_equal(npy_read(path, &array, error, sizeof error), -1);
  }
  for (size_t at = 0; at < size - 48; at++)
    for (int value = 0; value < 256; value += 5) {
      const unsigned char saved = bytes[at];
      bytes[at] = (unsigned char)value;
      write_file(bytes, size);
      if (npy_read(path, &array, error, sizeof error) == 0) npy_free(&array);
      bytes[at] = saved;
    }
}

/* An archive of two arrays, as numpy.savez writes it: the sizes of the first in its header, those of the second in ZIP64's
 * extra field. Returns its bytes. */
static size_t write_archive(unsigned char bytes[512]) {
  static const char header[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), } \n";
  const unsigned char size = 10 + sizeof header - 1 + 4;
  size_t count = 0;
  for (int second = 0; second < 2; second++) {
    unsigned char *head = bytes + count, *extra = head + 30 + 5;
    memset(head, 0, 200);
    memcpy(head, "PK\3\4", 4);
    memset(head + 18, second ? 0xff : 0, 8);
    head[26] = 5;
    memcpy(head + 30, second ? "b.npy" : "a.npy", 5);
    if (second) {
      head[28] = 20;
      extra[0] = 1;
      extra[2] = 16;
      extra[4] = extra[12] = size;
    } else {
      head[18] = head[22] = size;
    }
    unsigned char *data = extra + head[28];
    memcpy(data, "\x93NUMPY\1\0", 8);
    data[8] = sizeof header - 1;
    memcpy(data + 10, header, sizeof header - 1);
    data[size - 4] = (unsigned char)(7 + second);
    count += (size_t)(data + size - head);
  }
  memcpy(bytes + count, "PK\1\2", 4); /* the list of members, which is not read */
  write_file(bytes, count + 4);
  return count + 4;
}

TEST(reads_members_of_archives) {
  unsigned char bytes[512];
  char member[96], error[512];
  npy_array array;
  const size_t size = write_archive(bytes);
  for (int which = 0; which < 2; which++) {
    snprintf(member, sizeof member, "%s:%c.npy", path, 'a' + which);
    if (npy_read(member, &array, error, sizeof error) != 0) fail_msg("%s", error);
    assert_int_equal(array.count, 1);
    assert_int_equal(*(const int32_t *)array.data, 7 + which);
    npy_free(&array);
  }
  for (size_t length = 0; length < size - 4; length++) { /* member is b.npy */
    write_file(bytes, length);
    assert_int_equal(npy_read(member, &array, error, sizeof error), -1);
  }
  for (size_t at = 0; at < size; at++)
    for (int value = 0; value < 256; value += 5) {
      const unsigned char saved = bytes[at];
      bytes[at] = (unsigned char)value;
      write_file(bytes, size);
      if (npy_read(member, &array, error, sizeof error) == 0) npy_free(&array);
      bytes[at] = saved;
    }
  write_file(bytes, size);
  snprintf(member, sizeof member, "%s:c.npy", path);
  assert_int_equal(npy_read(member, &array, error, sizeof error), -1);
  assert_non_null(strstr(error, "holds no such array"));
  bytes[8] = 8;
  write_file(bytes, size);
  assert_int_equal(npy_read(member, &array, error, sizeof error), -1);
  assert_non_null(strstr(error, "numpy.savez writes readable ones"));
}

TEST(writes_what_it_reads) {
  static const int shapes[][4] = {{0, 0, 0, 0}, {1, 6, 0, 0}, {2, 2, 3, 0}, {3, 1, 2, 3}, {3, 2, 0, 3}};
  float values[6] = {1, -2, 3.5f, 1e-30f, 5, -0.0f};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    npy_array out = {.type = NPY_F32, .dims = shapes[s][0], .count = 1, .data = values}, in;
    for (int d = 0; d < out.dims; d++) out.count *= out.shape[d] = shapes[s][d + 1];
    struct stat file;
    assert_true(npy_write(path, &out) && !stat(path, &file));
    assert_int_equal(file.st_size, 128 + out.count * (int64_t)sizeof *values);
    assert_read(&in);
    assert_int_equal(in.type, NPY_F32);
    assert_int_equal(in.dims, out.dims);
    assert_memory_equal(in.shape, out.shape, sizeof in.shape);
    assert_memory_equal(in.data, values, (size_t)out.count * sizeof *values);
    npy_free(&in);
  }
}

/* If a file cannot be written, the old one stays and no temporary file is left. */
TEST(a_failed_write_changes_nothing) {
  float value = 1;
  const npy_array array = {.type = NPY_F32, .count = 1, .data = &value};
  const struct rlimit none = {0, RLIM_INFINITY};
  struct rlimit before;
  struct stat there;
  npy_array in;
  char temporary[96];
  assert_false(npy_write("/nowhere/o.npy", &array));
  assert_true(npy_write(path, &array));
  void (*const caught)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
  assert_false(npy_write(path, &array));
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)signal(SIGXFSZ, caught);
  assert_read(&in);
  npy_free(&in);
  snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
  assert_int_not_equal(stat(temporary, &there), 0);
}

/* SPDX-License-Identifier: MIT */
/* The safetensors reader of the examples: which files it takes, and that no wrong header makes it read beyond its file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/safetensors.h"
#include "tests/support/support.h"

static char path[64];

/* Writes a file with this header, this length of the header and `bytes` of data, and reads it. 0 if the reader took it. */
static int read_file(const char *header, uint64_t length, size_t bytes, safetensors *out) {
  static const float data[4] = {1, 2, 3, 4};
  strcpy(path, "safetensors-XXXXXX");
  const int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  FILE *file = fdopen(descriptor, "wb");
  fwrite(&length, 1, 8, file);
  fwrite(header, 1, strlen(header), file);
  fwrite(data, 1, bytes, file);
  fclose(file);
  const int result = safetensors_read(path, out);
  remove(path);
  return result;
}

static int read_header(const char *header, size_t bytes, safetensors *out) {
  static char padded[1024];
  snprintf(padded, sizeof padded, "%s%*s", header, (int)(7 - (strlen(header) + 7) % 8), "");
  return read_file(padded, strlen(padded), bytes, out);
}

TEST(good_files_are_read) {
  safetensors file;
  assert_int_equal(
      read_header("{\"__metadata__\":{\"a\":\"b \\\" c\"},\"m\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[4,16]},"
                  "\"i\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                  " \"v\" : {\"data_offsets\": [0, 4], \"shape\": [1], \"dtype\": \"F32\"}}",
                  16, &file),
      0);
  assert_int_equal(file.count, 2); /* integers are left out */
  const float *m = safetensors_get(&file, "m", 1, 3), *v = safetensors_get(&file, "v", 0, 1);
  assert_true(m && v && m[0] == 2 && m[2] == 4 && v[0] == 1);
  assert_null(safetensors_get(&file, "m", 3, 1));
  assert_null(safetensors_get(&file, "m", 0, 3));
  assert_null(safetensors_get(&file, "i", 0, 2));
  safetensors_release(&file); /* and are read again */
  assert_true(m[0] == 2);
  safetensors_free(&file);
  assert_int_equal(read_header("{\"b\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[2,8]},"
                               "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
                               16, &file),
                   0);
  const safetensor *b = safetensors_find(&file, "b"), *h = safetensors_find(&file, "h");
  assert_true(b && b->dtype == ATTN_BF16 && safetensor_fits(b, 1, 3) && !safetensor_fits(b, 0, 3));
  assert_true(((const uint16_t *)b->data)[0] == 0x3f80 && ((const uint16_t *)b->data)[2] == 0x4000); /* 1, 0, 2 */
  assert_true(h && h->dtype == ATTN_F16 && safetensor_fits(h, 0, 2));
  assert_null(safetensors_get(&file, "b", 1, 3)); /* not float32 */
  assert_null(safetensors_find(&file, "i"));
  safetensors_free(&file);
  assert_int_equal(read_header("{}", 0, &file), 0);
  safetensors_free(&file);
}

TEST(bad_files_are_refused) {
#define ENTRY(rest) "{\"v\":{\"dtype\":\"F32\"," rest "}}"
  static const char *const headers[] = {"",
                                        "{",
                                        "[]",
                                        "{\"v\"}",
                                        "{\"v\":{}}",
                                        "{\"v\":3}",
                                        "{\"v",
                                        "{\"__metadata__\":3}",
                                        "{\"__metadata__\":{\"a\":1}}",
                                        ENTRY("\"shape\":[1]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[0]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[0,4,8]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[0,20]"),
                                        ENTRY("\"shape\":[5],\"data_offsets\":[0,20]"),
                                        ENTRY("\"shape\":[2],\"data_offsets\":[0,4]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[4,0]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[2,6]"),
                                        "{\"v\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[1,3]}}",
                                        "{\"v\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                                        ENTRY("\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]"),
                                        ENTRY("\"shape\":[-1],\"data_offsets\":[0,4]"),
                                        ENTRY("\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"),
                                        ENTRY("\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"),
                                        ENTRY("\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"),
                                        "{\"a name far longer than any tensor has, which the reader does not have the room "
                                        "to keep, and so it has to refuse it\":"
                                        "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"};
  safetensors file;
  for (size_t i = 0; i < COUNT(headers); i++) {
    if (read_header(headers[i], 16, &file) == 0) fail_msg("the reader took %s", headers[i]);
    assert_null(file.tensors);
  }
  assert_int_equal(read_file("{}", 1u << 30, 0, &file), -1);
  assert_int_equal(read_file("{}", UINT64_MAX, 0, &file), -1);
  assert_int_equal(read_file("{}      ", 7, 0, &file), -1);
  assert_int_equal(safetensors_read("safetensors-nowhere", &file), -1);
  assert_int_equal(safetensors_read("/", &file), -1);
}

/* Every prefix of a good header, and good headers with one changed byte. */
TEST(broken_headers_do_no_harm) {
  static const char good[] = "{\"v\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
  static const char bytes[] = "\"{}[]:,09\\ x";
  char text[sizeof good];
  safetensors file;
  const int messages = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY); /* hides a thousand messages */
  assert_true(messages >= 0 && nowhere >= 0 && dup2(nowhere, STDERR_FILENO) >= 0);
  for (size_t cut = 0; cut + 1 < sizeof good; cut++) {
    memcpy(text, good, sizeof good);
    text[cut] = 0;
    assert_int_equal(read_header(text, 16, &file), -1);
    for (size_t b = 0; b + 1 < sizeof bytes; b++) {
      memcpy(text, good, sizeof good);
      text[cut] = bytes[b];
      if (read_header(text, 16, &file) == 0) {
        for (int t = 0; t < file.count; t++) { /* all its data must lie in the file */
          int64_t count = 1;
          for (int d = 0; d < file.tensors[t].dims; d++) count *= file.tensors[t].shape[d];
          float sum = 0;
          for (int64_t e = 0; e < count; e++) sum += ((const float *)file.tensors[t].data)[e];
          assert_true(sum >= 0); /* a sum of 1, 2, 3 and 4; a sanitizer reports reads beyond */
        }
        safetensors_free(&file);
      }
    }
  }
  dup2(messages, STDERR_FILENO);
  close(messages);
  close(nowhere);
}

/* SPDX-License-Identifier: MIT */
/* npy_read() on any bytes. An array that it reads can be written and read again and stays the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/npy.h"
#include "fuzz.h"

static const size_t element_bytes[] = {
    [NPY_F16] = 2, [NPY_F32] = 4, [NPY_F64] = 8, [NPY_U8] = 1,   [NPY_U16] = 2,
    [NPY_I32] = 4, [NPY_I64] = 8, [NPY_I8] = 1,  [NPY_BOOL] = 1,
};

static void check_round_trip(const npy_array *array) {
  char error[600];
  npy_array again;
  char path[64]; /* not fuzz_file(): npy_write() renames a temporary file, which needs a folder */
  snprintf(path, sizeof path, "/dev/shm/fuzz_npy.%ld", (long)getpid());
  if (!npy_write(path, array)) fuzz_fail("cannot be written");
  if (npy_read(path, &again, error, sizeof error)) fuzz_fail("cannot be read again: %s", error);
  (void)unlink(path);
  const size_t bytes = (size_t)array->count * element_bytes[array->type];
  if (again.type != array->type || again.dims != array->dims || again.count != array->count ||
      memcmp(again.shape, array->shape, (size_t)array->dims * sizeof *array->shape) != 0 ||
      memcmp(again.data, array->data, bytes) != 0)
    fuzz_fail("written and read again, the array is another one");
  npy_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char error[600] = "";
  npy_array array;
  if (npy_read(fuzz_file(0, data, size), &array, error, sizeof error)) {
    if (!error[0]) fuzz_fail("refused without a word");
    return 0;
  }
  check_round_trip(&array);
  npy_free(&array);
  return 0;
}

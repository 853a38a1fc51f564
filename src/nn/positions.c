/* SPDX-License-Identifier: MIT */
/* Sinusoidal positions, computed in double: in float32 the phase of a position of a million would be lost. */
#include <inttypes.h>
#include <math.h>

#include "src/api/float_mode.h"
#include "src/nn/check.h"

attn_status attn_sinusoidal_positions(int64_t first, int64_t rows, int64_t width, float *out) {
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"width", width, 1}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(first >= 0 && first <= ((int64_t)1 << 31) - rows,
          "first is %" PRId64 " with %" PRId64 " rows; positions must lie within 0..2^31", first, rows);
  REQUIRE(out || rows == 0, "out is NULL; it must point to its elements");
  if (rows == 0) return ATTN_OK; /* not a loop over `width` columns that writes nothing */
  const uint64_t mode = attn_float_mode_enter();
  for (int64_t column = 0; column < width; column++) {
    const double frequency = pow(10000.0, -(double)(column - column % 2) / (double)width);
    for (int64_t row = 0; row < rows; row++) {
      const double angle = (double)(first + row) * frequency;
      out[row * width + column] = (float)(column % 2 ? cos(angle) : sin(angle));
    }
  }
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

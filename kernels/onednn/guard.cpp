/* SPDX-License-Identifier: MIT */
/* The end of oneDNN's C++ exceptions: its C API lets them through, and a C program would be terminated. */
#include <oneapi/dnnl/dnnl_types.h>

extern "C" dnnl_status_t attn_onednn_guard(dnnl_status_t (*call)(void *), void *context) {
  try {
    return call(context);
  } catch (...) {
    return dnnl_out_of_memory;
  }
}

/* SPDX-License-Identifier: MIT */
/* libggml-attn.so: a backend of ggml that computes attention, and nothing else, by libattn.
 *
 *     GGML_BACKEND_PATH=…/libggml-attn.so llama-cli -fa on -m model.gguf
 *
 * A program that loads ggml's backends (ggml_backend_load_all(), in builds with GGML_BACKEND_DL) finds it by that variable.
 * It takes tensors in the CPU's own buffers, so that ggml's scheduler copies nothing. GGML_BACKEND_API_VERSION is the
 * version of the headers that it was built with; ggml refuses a library of another one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "attn/attn.h"
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#define NAME "libattn"

/* ---- Functions of ggml: it is loaded already, but perhaps not for all to see ------------------------------------------ */

static ggml_backend_buffer_type_t (*cpu_buffer_type)(void);
static ggml_backend_buffer_t (*cpu_buffer_from_ptr)(void *data, size_t size);

static int see_library(struct dl_phdr_info *info, size_t size, void *handle) {
  (void)size;
  const char *name = strrchr(info->dlpi_name, '/');
  if (!name || strncmp(name, "/libggml-base.", strlen("/libggml-base.")) != 0) return 0;
  *(void **)handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD); /* kept: it stays as long as this library */
  return 1;
}

/* Object and function pointers have one representation where dlsym() exists. */
static bool bind(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol;
}

static bool bind_ggml(void) {
  void *library = RTLD_DEFAULT;
  dl_iterate_phdr(see_library, &library);
  return bind(library, "ggml_backend_cpu_buffer_type", &cpu_buffer_type) &&
         bind(library, "ggml_backend_cpu_buffer_from_ptr", &cpu_buffer_from_ptr);
}

/* ---- The backend: a number of threads --------------------------------------------------------------------------------- */

static const char *backend_name(ggml_backend_t backend) {
  (void)backend;
  return NAME;
}

static void backend_free(ggml_backend_t backend) {
  free(backend->context);
  free(backend);
}

static void set_threads(ggml_backend_t backend, int threads) { *(int *)backend->context = threads; }

static enum ggml_status compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
  for (int i = 0; i < graph->n_nodes; i++) {
    const struct ggml_tensor *node = graph->nodes[i];
    if (node->op == GGML_OP_FLASH_ATTN_EXT && !attention_compute(node, *(const int *)backend->context))
      return GGML_STATUS_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

static ggml_backend_t device_start(ggml_backend_dev_t device, const char *parameters) {
  static ggml_guid guid = {0x6c, 0x69, 0x62, 0x61, 0x74, 0x74, 0x6e, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x30, 0x30, 0x31};
  (void)parameters;
  ggml_backend_t backend = calloc(1, sizeof *backend);
  int *threads = calloc(1, sizeof *threads); /* 0: as many as OpenMP uses */
  if (!backend || !threads) {
    free(backend);
    free(threads);
    return NULL;
  }
  backend->guid = &guid;
  backend->iface = (struct ggml_backend_i){.get_name = backend_name, .free = backend_free, .graph_compute = compute};
  backend->device = device;
  backend->context = threads;
  return backend;
}

/* ---- The device ------------------------------------------------------------------------------------------------------- */

static const char *device_name(ggml_backend_dev_t device) {
  (void)device;
  return NAME;
}

static const char *device_description(ggml_backend_dev_t device) {
  (void)device;
  return "attention by libattn";
}

static void device_memory(ggml_backend_dev_t device, size_t *available, size_t *total) {
  (void)device;
  *available = *total = 0; /* none of its own */
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
  (void)device;
  return GGML_BACKEND_DEVICE_TYPE_ACCEL; /* goes with the CPU's backend */
}

static void device_properties(ggml_backend_dev_t device, struct ggml_backend_dev_props *properties) {
  properties->name = device_name(device);
  properties->description = device_description(device);
  properties->type = device_type(device);
  device_memory(device, &properties->memory_free, &properties->memory_total);
  properties->caps = (struct ggml_backend_dev_caps){.buffer_from_host_ptr = true};
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) {
  (void)device;
  return cpu_buffer_type();
}

static ggml_backend_buffer_t device_buffer_from(ggml_backend_dev_t device, void *data, size_t size, size_t largest) {
  (void)device, (void)largest;
  return cpu_buffer_from_ptr(data, size);
}

static bool device_takes(ggml_backend_dev_t device, const struct ggml_tensor *op) {
  (void)device;
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE: return true;
    case GGML_OP_FLASH_ATTN_EXT: return attention_takes(op);
    default: return false;
  }
}

static bool device_takes_buffers(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
  (void)device;
  return type->iface.is_host && type->iface.is_host(type);
}

static const struct ggml_backend_device_i device_functions = {.get_name = device_name,
                                                              .get_description = device_description,
                                                              .get_memory = device_memory,
                                                              .get_type = device_type,
                                                              .get_props = device_properties,
                                                              .init_backend = device_start,
                                                              .get_buffer_type = device_buffer_type,
                                                              .buffer_from_host_ptr = device_buffer_from,
                                                              .supports_op = device_takes,
                                                              .supports_buft = device_takes_buffers};

/* ---- What ggml asks the library for ----------------------------------------------------------------------------------- */

static const char *registry_name(ggml_backend_reg_t registry) {
  (void)registry;
  return NAME;
}

static size_t count_devices(ggml_backend_reg_t registry) {
  (void)registry;
  return 1;
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t registry, size_t index) {
  static struct ggml_backend_device device;
  (void)index;
  device = (struct ggml_backend_device){.iface = device_functions, .reg = registry};
  return &device;
}

static void *find_function(ggml_backend_reg_t registry, const char *name) {
  (void)registry;
  return strcmp(name, "ggml_backend_set_n_threads") == 0 ? (void *)(uintptr_t)set_threads : NULL;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void) {
  static struct ggml_backend_reg registry = {.api_version = GGML_BACKEND_API_VERSION,
                                             .iface = {registry_name, count_devices, get_device, find_function}};
  return bind_ggml() ? &registry : NULL;
}

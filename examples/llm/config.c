/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool llm_fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fputs("llm: ", stderr);
  if (format)
    vfprintf(stderr, format, values);
  else
    fputs(attn_last_error(), stderr);
  fputc('\n', stderr);
  va_end(values);
  return false;
}

/* ---- JSON ---- */

bool llm_read_json(const char *path, bool needed, cJSON **json) {
  *json = NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return !needed || llm_fail("%s cannot be read; a transformers folder has it", path);
  const long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
  rewind(file);
  char *text = bytes >= 0 && bytes < 1 << 28 ? calloc((size_t)bytes + 1, 1) : NULL;
  if (!text) return fclose(file), llm_fail("%s: out of memory, or larger than 256 MiB", path);
  *json = cJSON_ParseWithLengthOpts(text, fread(text, 1, (size_t)bytes, file) + 1, NULL, true);
  free(text);
  fclose(file);
  if (cJSON_IsObject(*json)) return true;
  cJSON_Delete(*json);
  *json = NULL;
  return llm_fail("%s is not JSON; it must be an object, {...}, and nothing behind it", path);
}

/* An object of a file. A field that is wrong sets `failed`, after a message. */
typedef struct object {
  const char *path;
  const cJSON *json;
  bool failed;
} object;

/* A field; NULL if it is missing or null. */
static const cJSON *field(const object *o, const char *name) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(o->json, name);
  return cJSON_IsNull(found) ? NULL : found;
}

static void wrong(object *o, const char *name, const char *right) {
  const cJSON *found = field(o, name);
  char *text = found ? cJSON_PrintUnformatted(found) : NULL;
  o->failed = !llm_fail("%s: %s is %s; it must be %s", o->path, name, text ? text : "missing", right);
  cJSON_free(text);
}

/* A number within the range. `missing` stands for a field that is not there; NAN if there must be one. */
static double number(object *o, const char *name, double least, double most, double missing) {
  char right[64];
  const cJSON *found = field(o, name);
  if (!found && !isnan(missing)) return missing;
  if (cJSON_IsNumber(found) && found->valuedouble >= least && found->valuedouble <= most) return found->valuedouble;
  snprintf(right, sizeof right, "a number in %g..%g", least, most);
  return wrong(o, name, right), least;
}

static int64_t size_of(object *o, const char *name, int64_t missing) { /* missing: -1 = there must be one */
  const double size = number(o, name, 1, INT32_MAX, missing < 0 ? (double)NAN : (double)missing);
  if (size != floor(size)) wrong(o, name, "an integer");
  return (int64_t)size;
}

static bool flag(object *o, const char *name, bool missing) {
  const cJSON *found = field(o, name);
  if (found && !cJSON_IsBool(found)) wrong(o, name, "true or false");
  return found ? cJSON_IsTrue(found) : missing;
}

static const char *text(object *o, const char *name, const char *missing) {
  const cJSON *found = field(o, name);
  if (found && !cJSON_IsString(found)) wrong(o, name, "a string");
  return cJSON_IsString(found) ? found->valuestring : missing;
}

/* ---- Models ---- */

typedef struct name_value {
  const char *name;
  int value;
} name_value;

/* The entry of a field's name in a table that a NULL ends; the first one after a message. */
static const name_value *look_up(object *o, const char *name, const char *value, const name_value *table) {
  char right[256] = "one of";
  for (const name_value *entry = table; entry->name; entry++) {
    if (value && strcmp(entry->name, value) == 0) return entry;
    snprintf(right + strlen(right), sizeof right - strlen(right), " %s", entry->name);
  }
  wrong(o, name, right);
  return table;
}

/* Which layers have the window, where layer_types does not say it. */
enum { NONE, ALL, EVEN, FROM_MAX_WINDOW_LAYERS };

static const name_value models[] = {
    {"llama", NONE},  {"mistral", ALL}, {"qwen2", FROM_MAX_WINDOW_LAYERS}, {"qwen3", FROM_MAX_WINDOW_LAYERS},
    {"gemma2", EVEN}, {NULL, 0}};

static const name_value activations[] = {
    {"silu", ATTN_SILU}, {"gelu", ATTN_GELU}, {"gelu_pytorch_tanh", ATTN_GELU_TANH}, {"relu", ATTN_RELU}, {NULL, 0}};

static void read_windows(object *o, int layers_with_window, llm_config *c) {
  c->window = size_of(o, "sliding_window", 0);
  const cJSON *types = field(o, "layer_types");
  const double first = number(o, "max_window_layers", 0, INT32_MAX, 28); /* Qwen2Config has 28 */
  if (types && (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->layers))
    wrong(o, "layer_types", "a list of one word for each of num_hidden_layers");
  for (int64_t layer = 0; layer < c->layers && !o->failed; layer++) {
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, (int)layer));
    if (types && (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)))
      wrong(o, "layer_types", "a list of full_attention and sliding_attention");
    if (type && strcmp(type, "sliding_attention") == 0 && c->window == 0)
      wrong(o, "sliding_window", "a number of tokens, because layer_types has sliding_attention");
    c->windowed[layer] =
        c->window > 0 && (type ? strcmp(type, "sliding_attention") == 0
                               : layers_with_window == ALL || (layers_with_window == EVEN && layer % 2 == 0) ||
                                     (layers_with_window == FROM_MAX_WINDOW_LAYERS && (double)layer >= first &&
                                      flag(o, "use_sliding_window", false)));
  }
}

static const name_value scalings[] = {{"default", ATTN_ROPE_UNSCALED},
                                      {"linear", ATTN_ROPE_LINEAR},
                                      {"yarn", ATTN_ROPE_YARN},
                                      {"llama3", ATTN_ROPE_LLAMA3},
                                      {NULL, 0}};

static void read_rope(object *o, llm_config *c) {
  object r = {.path = o->path, .json = field(o, "rope_parameters")}; /* rope_scaling before transformers 5 */
  if (!r.json) r.json = field(o, "rope_scaling");
  if (r.json && !cJSON_IsObject(r.json)) {
    wrong(o, field(o, "rope_parameters") ? "rope_parameters" : "rope_scaling", "an object, or null");
    r.json = NULL;
  }
  const char *name = r.json && field(&r, "type") ? "type" : "rope_type";
  const attn_rope_scaling scaling = (attn_rope_scaling)look_up(&r, name, text(&r, name, "default"), scalings)->value;
  const double least = 1.001, base = number(o, "rope_theta", least, 1e12, 10000), length = (double)c->positions;
  c->rope = ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = c->dim, .scaling = scaling,
                        .base = number(&r, "rope_theta", least, 1e12, base));
  if (scaling != ATTN_ROPE_UNSCALED) c->rope.factor = number(&r, "factor", 1, 1e6, (double)NAN);
  c->rope.original_length = number(&r, "original_max_position_embeddings", 1, 1e9, length);
  c->rope.beta_fast = number(&r, "beta_fast", 0, 1e6, 0);
  c->rope.beta_slow = number(&r, "beta_slow", 0, 1e6, 0);
  c->rope.exact_ramp = !flag(&r, "truncate", true);
  c->rope.attention_factor = number(&r, "attention_factor", 0, 1e6, 0);
  c->rope.low_freq_factor = number(&r, "low_freq_factor", 0, 1e6, 0);
  c->rope.high_freq_factor = number(&r, "high_freq_factor", 0, 1e6, 0);
  number(&r, "partial_rotary_factor", 1, 1, 1);
  number(o, "partial_rotary_factor", 1, 1, 1);
  static const char *const unknown[] = {"mscale", "mscale_all_dim"};
  for (int i = 0; i < 2; i++)
    if (field(&r, unknown[i])) wrong(&r, unknown[i], "missing; attention_factor says the like");
  o->failed |= r.failed;
}

/* eos_token_id: a number, a list, or nothing. */
static void read_stops(object *o, llm_config *c) {
  const cJSON *found = field(o, "eos_token_id");
  const int count = cJSON_IsArray(found) ? cJSON_GetArraySize(found) : found != NULL;
  if (count > LLM_MOST_STOPS) wrong(o, "eos_token_id", "at most 16 tokens");
  for (c->stops = 0; c->stops < count && !o->failed; c->stops++) {
    const cJSON *one = cJSON_IsArray(found) ? cJSON_GetArrayItem(found, c->stops) : found;
    if (!cJSON_IsNumber(one) || one->valuedouble < 0 || one->valuedouble != one->valueint)
      wrong(o, "eos_token_id", "a token or a list of tokens: whole numbers from 0 on");
    c->stop[c->stops] = one->valueint;
  }
}

static void read_model(object *o, llm_config *c) {
  const name_value *model = look_up(o, "model_type", text(o, "model_type", NULL), models);
  snprintf(c->type, sizeof c->type, "%s", model->name);
  c->width = size_of(o, "hidden_size", -1);
  c->hidden = size_of(o, "intermediate_size", -1);
  c->layers = size_of(o, "num_hidden_layers", -1);
  c->heads = size_of(o, "num_attention_heads", -1);
  c->heads_kv = size_of(o, "num_key_value_heads", c->heads);
  c->dim = size_of(o, "head_dim", c->width / c->heads);
  c->vocabulary = size_of(o, "vocab_size", -1);
  c->positions = size_of(o, "max_position_embeddings", INT32_MAX);
  c->epsilon = (float)number(o, "rms_norm_eps", 0, 1, 1e-6);
  if (c->dim < 2) wrong(o, "head_dim", "at least 2; where it is missing it is hidden_size / num_attention_heads");
  c->output_bias = flag(o, "attention_bias", false);
  c->qkv_biases = c->output_bias || strcmp(c->type, "qwen2") == 0;
  c->network_biases = flag(o, "mlp_bias", false);
  c->head_norms = strcmp(c->type, "qwen3") == 0;
  c->gemma = strcmp(c->type, "gemma2") == 0;
  c->tied = flag(o, "tie_word_embeddings", c->gemma);
  c->softcap = (float)number(o, "attn_logit_softcapping", 0, 1e6, 0);
  c->final_softcap = (float)number(o, "final_logit_softcapping", 0, 1e6, 0);
  if (field(o, "query_pre_attn_scalar")) c->scale = (float)(1 / sqrt(number(o, "query_pre_attn_scalar", 1e-6, 1e9, 1)));
  if (c->layers > LLM_MOST_LAYERS) wrong(o, "num_hidden_layers", "at most 256");
  if (field(o, "quantization_config")) wrong(o, "quantization_config", "missing: weights are float32, float16 or bfloat16");
  const char *name = field(o, "hidden_activation") ? "hidden_activation" : "hidden_act",
             *missing = c->gemma ? "gelu_pytorch_tanh" : "silu";
  c->activation = (attn_activation)look_up(o, name, text(o, name, missing), activations)->value;
  if (o->failed) return;
  read_windows(o, model->value, c);
  read_rope(o, c);
  read_stops(o, c);
}

bool llm_config_read(const char *folder, llm_config *config) {
  char path[4096];
  object o = {.path = path};
  cJSON *json;
  *config = (llm_config){.width = 0};
  snprintf(path, sizeof path, "%s/config.json", folder);
  if (!llm_read_json(path, true, &json)) return false;
  o.json = json;
  read_model(&o, config);
  cJSON_Delete(json);
  snprintf(path, sizeof path, "%s/generation_config.json", folder);
  if (o.failed || !llm_read_json(path, false, &json)) return false;
  o.json = json;
  if (field(&o, "eos_token_id")) read_stops(&o, config);
  cJSON_Delete(json);
  return !o.failed;
}

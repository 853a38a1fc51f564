/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L /* getdelim */
#include "llm.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

/* The object of a file, to be given to cJSON_Delete(); NULL if there is no such file and none is needed. */
static cJSON *read_json(const char *path, bool needed) {
  FILE *file = fopen(path, "r");
  if (!file && needed) errx(1, "%s cannot be read; a transformers folder has it", path);
  if (!file) return NULL;
  char *text = NULL;
  size_t room = 0;
  cJSON *json = getdelim(&text, &room, 0, file) > 0 ? cJSON_ParseWithOpts(text, NULL, true) : NULL;
  free(text);
  fclose(file);
  if (!cJSON_IsObject(json)) errx(1, "%s is not JSON; it must be an object, {...}, and nothing behind it", path);
  return json;
}

/* An object of a file. */
typedef struct object {
  const char *path;
  const cJSON *json;
} object;

/* A field; NULL if it is missing or null. */
static const cJSON *field(object o, const char *name) {
  const cJSON *found = cJSON_GetObjectItemCaseSensitive(o.json, name);
  return cJSON_IsNull(found) ? NULL : found;
}

static _Noreturn void wrong(object o, const char *name, const char *right) {
  const cJSON *found = field(o, name);
  errx(1, "%s: %s is %s; it must be %s", o.path, name, found ? cJSON_PrintUnformatted(found) : "missing", right);
}

/* A number within the range. `missing` stands for a field that is not there; NAN if there must be one. */
static double number(object o, const char *name, double least, double most, double missing) {
  char right[64];
  const cJSON *found = field(o, name);
  if (!found && !isnan(missing)) return missing;
  if (cJSON_IsNumber(found) && found->valuedouble >= least && found->valuedouble <= most) return found->valuedouble;
  snprintf(right, sizeof right, "a number in %g..%g", least, most);
  wrong(o, name, right);
}

static int64_t size_of(object o, const char *name, double missing) {
  const double size = number(o, name, 1, INT32_MAX, missing);
  if (size != floor(size)) wrong(o, name, "an integer");
  return (int64_t)size;
}

static bool flag(object o, const char *name, bool missing) {
  const cJSON *found = field(o, name);
  if (found && !cJSON_IsBool(found)) wrong(o, name, "true or false");
  return found ? cJSON_IsTrue(found) : missing;
}

/* The place of a field's word in a list, which a NULL ends. missing: the word of a field that is not there; NULL if there
 * must be one. */
static int look_up(object o, const char *name, const char *missing, const char *const *words) {
  char right[256] = "one of";
  const cJSON *found = field(o, name);
  const char *value = found ? cJSON_GetStringValue(found) : missing;
  for (int i = 0; words[i]; i++) {
    if (value && strcmp(words[i], value) == 0) return i;
    snprintf(right + strlen(right), sizeof right - strlen(right), " %s", words[i]);
  }
  wrong(o, name, right);
}

/* ---- Models ---- */

/* Facts about a type of models that config.json leaves out. The first three say which layers have the window, where
 * layer_types does not. */
enum { WINDOWS = 1, EVEN_WINDOWS = 2, LATE_WINDOWS = 4, QKV_BIASES = 8, HEAD_NORMS = 16, GEMMA = 32 };

static const char *const models[] = {"llama", "mistral", "qwen2", "qwen3", "gemma2", NULL};
static const int facts[] = {0, WINDOWS, LATE_WINDOWS | QKV_BIASES, LATE_WINDOWS | HEAD_NORMS, EVEN_WINDOWS | GEMMA};

static const char *const activations[] = {[ATTN_RELU] = "relu",
                                          [ATTN_GELU] = "gelu",
                                          [ATTN_SILU] = "silu",
                                          [ATTN_GELU_TANH] = "gelu_pytorch_tanh",
                                          [ATTN_GELU_TANH + 1] = NULL};

static const char *const scalings[] = {"default", "linear", "yarn", "llama3", NULL};
static const attn_rope_scaling kinds[] = {ATTN_ROPE_UNSCALED, ATTN_ROPE_LINEAR, ATTN_ROPE_YARN, ATTN_ROPE_LLAMA3};

static void read_windows(object o, int known, llm_config *c) {
  const cJSON *types = field(o, "layer_types");
  const double first = number(o, "max_window_layers", 0, INT32_MAX, 28); /* Qwen2Config has 28 */
  const bool late = known & LATE_WINDOWS && flag(o, "use_sliding_window", false);
  c->window = size_of(o, "sliding_window", 0);
  if (types && (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->layers))
    wrong(o, "layer_types", "a list of one word for each of num_hidden_layers");
  for (int layer = 0; layer < c->layers; layer++) {
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, layer));
    c->windowed[layer] =
        types ? type && strcmp(type, "sliding_attention") == 0
              : c->window > 0 && (known & WINDOWS || (known & EVEN_WINDOWS && layer % 2 == 0) || (late && layer >= first));
    if (types && !c->windowed[layer] && (!type || strcmp(type, "full_attention") != 0))
      wrong(o, "layer_types", "a list of full_attention and sliding_attention");
    if (c->windowed[layer] && c->window == 0)
      wrong(o, "sliding_window", "a number of tokens, because layer_types has sliding_attention");
  }
}

static void read_rope(object o, llm_config *c) {
  const char *place = field(o, "rope_parameters") ? "rope_parameters" : "rope_scaling"; /* before transformers 5 */
  object r = {.path = o.path, .json = field(o, place)};
  if (r.json && !cJSON_IsObject(r.json)) wrong(o, place, "an object, or null");
  const attn_rope_scaling scaling = kinds[look_up(r, field(r, "type") ? "type" : "rope_type", "default", scalings)];
  const double base = number(o, "rope_theta", 1.001, 1e12, 10000);
  c->rope =
      ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = c->dim, .scaling = scaling,
                  .base = number(r, "rope_theta", 1.001, 1e12, base),
                  .factor = scaling == ATTN_ROPE_UNSCALED ? 0 : number(r, "factor", 1, 1e6, (double)NAN),
                  .original_length = number(r, "original_max_position_embeddings", 1, 1e9, (double)c->positions),
                  .beta_fast = number(r, "beta_fast", 0, 1e6, 0), .beta_slow = number(r, "beta_slow", 0, 1e6, 0),
                  .exact_ramp = !flag(r, "truncate", true), .attention_factor = number(r, "attention_factor", 0, 1e6, 0),
                  .low_freq_factor = number(r, "low_freq_factor", 0, 1e6, 0),
                  .high_freq_factor = number(r, "high_freq_factor", 0, 1e6, 0));
  number(r, "partial_rotary_factor", 1, 1, 1);
  number(o, "partial_rotary_factor", 1, 1, 1);
  static const char *const unknown[] = {"mscale", "mscale_all_dim"};
  for (int i = 0; i < 2; i++)
    if (field(r, unknown[i])) wrong(r, unknown[i], "missing; attention_factor says the like");
}

/* eos_token_id: a number, a list, or nothing. */
static void read_stops(object o, llm_config *c) {
  const cJSON *found = field(o, "eos_token_id");
  const int count = cJSON_IsArray(found) ? cJSON_GetArraySize(found) : found != NULL;
  if (count > LLM_MOST_STOPS) wrong(o, "eos_token_id", "at most 16 tokens");
  for (c->stops = 0; c->stops < count; c->stops++) {
    const cJSON *one = cJSON_IsArray(found) ? cJSON_GetArrayItem(found, c->stops) : found;
    if (!cJSON_IsNumber(one) || one->valuedouble < 0 || one->valuedouble != one->valueint)
      wrong(o, "eos_token_id", "a token or a list of tokens: whole numbers from 0 on");
    c->stop[c->stops] = one->valueint;
  }
}

static void read_model(object o, llm_config *c) {
  const int known = facts[look_up(o, "model_type", NULL, models)];
  c->width = size_of(o, "hidden_size", (double)NAN);
  c->hidden = size_of(o, "intermediate_size", (double)NAN);
  c->layers = size_of(o, "num_hidden_layers", (double)NAN);
  c->heads = size_of(o, "num_attention_heads", (double)NAN);
  c->heads_kv = size_of(o, "num_key_value_heads", (double)c->heads);
  c->dim = size_of(o, "head_dim", (double)(c->width / c->heads));
  c->vocabulary = size_of(o, "vocab_size", (double)NAN);
  c->positions = size_of(o, "max_position_embeddings", INT32_MAX);
  c->epsilon = (float)number(o, "rms_norm_eps", 0, 1, 1e-6);
  if (c->dim < 2) wrong(o, "head_dim", "at least 2; where it is missing it is hidden_size / num_attention_heads");
  c->output_bias = flag(o, "attention_bias", false);
  c->qkv_biases = c->output_bias || known & QKV_BIASES;
  c->network_biases = flag(o, "mlp_bias", false);
  c->head_norms = known & HEAD_NORMS;
  c->gemma = known & GEMMA;
  c->tied = flag(o, "tie_word_embeddings", c->gemma);
  c->softcap = (float)number(o, "attn_logit_softcapping", 0, 1e6, 0);
  c->final_softcap = (float)number(o, "final_logit_softcapping", 0, 1e6, 0);
  if (field(o, "query_pre_attn_scalar")) c->scale = (float)(1 / sqrt(number(o, "query_pre_attn_scalar", 1e-6, 1e9, 1)));
  if (c->layers > LLM_MOST_LAYERS) wrong(o, "num_hidden_layers", "at most 256");
  if (field(o, "quantization_config")) wrong(o, "quantization_config", "missing: weights are float32, float16 or bfloat16");
  const char *name = field(o, "hidden_activation") ? "hidden_activation" : "hidden_act";
  c->activation = (attn_activation)look_up(o, name, c->gemma ? "gelu_pytorch_tanh" : "silu", activations);
  read_windows(o, known, c);
  read_rope(o, c);
  read_stops(o, c);
}

void llm_config_read(const char *folder, llm_config *config) {
  char path[4096];
  snprintf(path, sizeof path, "%s/config.json", folder);
  cJSON *json = read_json(path, true);
  read_model((object){path, json}, config);
  cJSON_Delete(json);
  snprintf(path, sizeof path, "%s/generation_config.json", folder);
  json = read_json(path, false);
  if (field((object){path, json}, "eos_token_id")) read_stops((object){path, json}, config);
  cJSON_Delete(json);
}

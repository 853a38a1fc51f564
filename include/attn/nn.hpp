/* SPDX-License-Identifier: MIT */
/** @file
 * The pools and caches of attn/nn.h for C++17 and later, with owners and sizes that are checked. Errors as in attn.hpp.
 *
 *     #include <attn/nn.hpp>                                // and link libattn_nn
 *
 *     attn::kv_cache cache({4, 32, 8, 128, 128, 8192});     // sequences, heads_q, heads_kv, dim_qk, dim_v, capacity
 *     cache.step(tokens, q, k, v, o);                       // throws attn::error; then nothing was appended
 */
#ifndef ATTN_NN_HPP
#define ATTN_NN_HPP

#include "attn/kv.hpp"
#include "attn/nn.h"

namespace attn {

/** The shape of a pool. What has no place here is set by the names of attn_kv_pool_shape. */
struct kv_pool_shape : attn_kv_pool_shape {
  /** So many pages of 64 tokens, for one layer. */
  kv_pool_shape(std::int64_t pages_, std::int64_t heads_kv_, std::int64_t dim_qk_, std::int64_t dim_v_,
                attn_dtype dtype_ = ATTN_F32) noexcept
      : attn_kv_pool_shape(detail::sized<attn_kv_pool_shape>()) {
    pages = pages_, heads_kv = heads_kv_, dim_qk = dim_qk_, dim_v = dim_v_, dtype = dtype_;
  }
};

/** Pages that caches take and give back. Its memory stays until the last cache that has it is gone, too. */
class kv_pool {
 public:
  /** attn_kv_pool_create(). */
  explicit kv_pool(const kv_pool_shape &shape) : kv_pool(try_make(shape).value()) {}
  /** The same without exceptions. */
  static expected<kv_pool> try_make(const kv_pool_shape &shape) noexcept {
    attn_kv_pool *made = nullptr;
    const attn_status status = attn_kv_pool_create(&shape, &made);
    if (status != ATTN_OK) return failure(status);
    return kv_pool(made);
  }

  /** Pages that no sequence holds. */
  std::int64_t free_pages() const noexcept { return attn_kv_pool_free_pages(pool_.get()); }
  /** Keys of a layer, [pages][heads_kv][page_tokens][dim_qk]; nullptr if there is no such layer. */
  void *keys(std::int64_t layer = 0) const noexcept { return attn_kv_pool_keys(pool_.get(), layer); }
  /** Values of a layer, likewise. */
  void *values(std::int64_t layer = 0) const noexcept { return attn_kv_pool_values(pool_.get(), layer); }
  /** Factors of keys, [pages][heads_kv][page_tokens]; nullptr also without scales. */
  float *key_scales(std::int64_t layer = 0) const noexcept { return attn_kv_pool_key_scales(pool_.get(), layer); }
  /** Factors of values, likewise. */
  float *value_scales(std::int64_t layer = 0) const noexcept { return attn_kv_pool_value_scales(pool_.get(), layer); }
  /** The C handle. */
  attn_kv_pool *get() const noexcept { return pool_.get(); }

 private:
  struct destroy {
    void operator()(attn_kv_pool *pool) const noexcept { attn_kv_pool_destroy(pool); }
  };
  explicit kv_pool(attn_kv_pool *made) noexcept : pool_(made) {}
  std::unique_ptr<attn_kv_pool, destroy> pool_;
};

/** The shape of a cache. What has no function here is set by the names of attn_kv_cache_shape. */
struct kv_cache_shape : attn_kv_cache_shape {
  /** Sequences at most, heads, dims, and tokens that a sequence may have. */
  kv_cache_shape(std::int64_t batch_, std::int64_t heads_q_, std::int64_t heads_kv_, std::int64_t dim_qk_,
                 std::int64_t dim_v_, std::int64_t capacity_) noexcept
      : attn_kv_cache_shape(detail::sized<attn_kv_cache_shape>()) {
    batch = batch_, heads_q = heads_q_, heads_kv = heads_kv_, dim_qk = dim_qk_, dim_v = dim_v_, capacity = capacity_;
  }
  /** The pages of a pool in place of its own. */
  kv_cache_shape &pages_of(const kv_pool &from) noexcept { return pool = from.get(), *this; }
  /** Rotates keys and queries by their positions; `with` must outlive the cache. */
  kv_cache_shape &rotate(const attn::rope &with) noexcept { return rope = with.get(), *this; }
};

/** The tensors of a step that has begun, for one layer. */
struct kv_cache_args {
  view<const void> q; /**< [all new tokens][heads_q][dim_qk], sequence after sequence; padded as in kv_cache::step(). */
  view<const void> k; /**< Their keys. */
  view<const void> v; /**< Their values. */
  view<float> o;      /**< Output. */
  std::int64_t layer = 0;  /**< Layer, from 0 on. */
  std::int64_t tokens = 0; /**< 0 = packed, else padded to so many tokens of each sequence. */
};

/** Sequences, each with its own length, and the attention of their new tokens to everything cached. One call at a time. */
class kv_cache {
 public:
  /** attn_kv_cache_create(). */
  explicit kv_cache(const kv_cache_shape &shape, const options &o = {}) : kv_cache(try_make(shape, o).value()) {}
  /** The same without exceptions. */
  static expected<kv_cache> try_make(const kv_cache_shape &shape, const options &o = {}) noexcept {
    attn_kv_cache *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_kv_cache_create(&shape, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return kv_cache(made, shape);
  }

  /** attn_kv_cache_step(): `tokens` of each sequence, or counts [batch] of them. On failure nothing was appended. */
  void step(std::int64_t tokens, view<const void> q, view<const void> k, view<const void> v, view<float> o,
            view<const std::int32_t> counts = {}) {
    try_step(tokens, q, k, v, o, counts).value();
  }
  /** The same without exceptions. */
  expected<void> try_step(std::int64_t tokens, view<const void> q, view<const void> k, view<const void> v, view<float> o,
                          view<const std::int32_t> counts = {}) noexcept {
    const auto sizes = check("attn::kv_cache::step", shape_.batch * tokens, q, k, v, o, counts);
    if (!sizes) return sizes;
    return detail::outcome(
        attn_kv_cache_step(cache_.get(), tokens, counts.data(), q.data(), k.data(), v.data(), o.data()));
  }

  /** attn_kv_cache_begin(): counts [batch] new tokens of each sequence, for all layers. */
  void begin(view<const std::int32_t> counts) { try_begin(counts).value(); }
  /** The same without exceptions. */
  expected<void> try_begin(view<const std::int32_t> counts) noexcept {
    const auto sizes = check("attn::kv_cache::begin", 0, {}, {}, {}, {}, counts);
    return sizes ? detail::outcome(attn_kv_cache_begin(cache_.get(), counts.data())) : sizes;
  }

  /** attn_kv_cache_attend(): one layer of the step that has begun. */
  void attend(const kv_cache_args &a) { try_attend(a).value(); }
  /** The same without exceptions. */
  expected<void> try_attend(const kv_cache_args &a) noexcept {
    const std::int64_t rows = a.tokens ? shape_.batch * a.tokens : step_tokens();
    const auto sizes = check("attn::kv_cache_args", rows, a.q, a.k, a.v, a.o, {});
    if (!sizes) return sizes;
    auto c = detail::sized<attn_kv_cache_args>();
    c.layer = a.layer, c.tokens = a.tokens, c.q = a.q.data(), c.k = a.k.data(), c.v = a.v.data(), c.o = a.o.data();
    return detail::outcome(attn_kv_cache_attend(cache_.get(), &c));
  }

  /** attn_mha_step(): a multi-head layer in the step that has begun, from x [all new tokens][width]; y may be x. */
  void attend(const mha &with, view<const float> x, view<float> y, std::int64_t layer = 0) {
    try_attend(with, x, y, layer).value();
  }
  /** The same without exceptions. */
  expected<void> try_attend(const mha &with, view<const float> x, view<float> y, std::int64_t layer = 0) noexcept {
    detail::size_check sizes("attn::kv_cache::attend");
    sizes.check("x", x, 4, detail::reach({{step_tokens(), with.shape().width}, {with.shape().width, 1}}));
    sizes.check("y", y, 4, detail::reach({{step_tokens(), with.shape().width_out}, {with.shape().width_out, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    return detail::outcome(attn_mha_step(with.get(), cache_.get(), layer, x.data(), y.data()));
  }

  /** New tokens of the step that has begun, of all sequences together. */
  std::int64_t step_tokens() const noexcept { return attn_kv_cache_step_tokens(cache_.get()); }
  /** Tokens cached per sequence: [batch], as long as the cache lives. */
  view<const std::int32_t> lengths() const noexcept {
    return {attn_kv_cache_lengths(cache_.get()), static_cast<std::size_t>(shape_.batch)};
  }
  /** The pages of each sequence: [batch][ceil(capacity / page_tokens)]; -1 = none. */
  const std::int32_t *pages() const noexcept { return attn_kv_cache_pages(cache_.get()); }
  /** The kernel that the last step ran. */
  const char *kernel() const noexcept { return attn_kv_cache_kernel(cache_.get()); }

  /** Forgets all but the first `length` tokens of every sequence; 0 empties the cache. */
  void truncate(std::int64_t length) { try_truncate(length).value(); }
  /** The same without exceptions. */
  expected<void> try_truncate(std::int64_t length) noexcept {
    return detail::outcome(attn_kv_cache_truncate(cache_.get(), length));
  }
  /** The same for one sequence. */
  void truncate_sequence(std::int64_t sequence, std::int64_t length) { try_truncate_sequence(sequence, length).value(); }
  /** The same without exceptions. */
  expected<void> try_truncate_sequence(std::int64_t sequence, std::int64_t length) noexcept {
    return detail::outcome(attn_kv_cache_truncate_sequence(cache_.get(), sequence, length));
  }
  /** Makes sequence `to` what the first `length` tokens of `from` are; their pages are shared. */
  void fork(std::int64_t from, std::int64_t to, std::int64_t length) { try_fork(from, to, length).value(); }
  /** The same without exceptions. */
  expected<void> try_fork(std::int64_t from, std::int64_t to, std::int64_t length) noexcept {
    return detail::outcome(attn_kv_cache_fork(cache_.get(), from, to, length));
  }
  /** Beam search: sequence b becomes what parents[b] was, [batch]; -1 = empty. */
  void reorder(view<const std::int32_t> parents) { try_reorder(parents).value(); }
  /** The same without exceptions. */
  expected<void> try_reorder(view<const std::int32_t> parents) noexcept {
    detail::size_check sizes("attn::kv_cache::reorder");
    sizes.check("parents", parents, 4, detail::reach({{shape_.batch, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    return detail::outcome(attn_kv_cache_reorder(cache_.get(), parents.data()));
  }
  /** The C handle. */
  attn_kv_cache *get() const noexcept { return cache_.get(); }

 private:
  struct destroy {
    void operator()(attn_kv_cache *cache) const noexcept { attn_kv_cache_destroy(cache); }
  };
  kv_cache(attn_kv_cache *made, const attn_kv_cache_shape &shape) noexcept : cache_(made), shape_(shape) {}

  expected<void> check(const char *owner, std::int64_t rows, view<const void> q, view<const void> k, view<const void> v,
                       view<float> o, view<const std::int32_t> counts) const noexcept {
    const attn_dtype given = shape_.float_tokens ? ATTN_F32 : shape_.dtype;
    const auto tensor = [rows](std::int64_t heads, std::int64_t dim) { return detail::reach({{rows * heads * dim, 1}}); };
    detail::size_check sizes(owner);
    sizes.check("q", q, given, tensor(shape_.heads_q, shape_.dim_qk));
    sizes.check("k", k, given, tensor(shape_.heads_kv, shape_.dim_qk));
    sizes.check("v", v, given, tensor(shape_.heads_kv, shape_.dim_v));
    sizes.check("o", o, 4, tensor(shape_.heads_q, shape_.dim_v));
    sizes.check("counts", counts, 4, detail::reach({{shape_.batch, 1}}));
    return sizes.outcome();
  }

  std::unique_ptr<attn_kv_cache, destroy> cache_;
  attn_kv_cache_shape shape_; /* its pointers are not read again */
};

}  // namespace attn

#endif

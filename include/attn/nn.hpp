/* SPDX-License-Identifier: MIT */
/** @file
 * The pools, caches and layers of attn/nn.h for C++17 and later, with owners and sizes that are checked. Errors as in
 * attn.hpp. A layer owns a workspace: one call at a time; a reshaped layer of the same weights is a second one.
 *
 *     #include <attn/nn.hpp>                                // and link libattn_nn
 *
 *     attn::kv_cache cache({4, 32, 8, 128, 128, 8192});     // sequences, heads_q, heads_kv, dim_qk, dim_v, capacity
 *     cache.step(tokens, q, k, v, o);                       // throws attn::error; then nothing was appended
 *
 *     auto config = attn::block_config::encoder(2, 8, 100, 512, 2048);    // batch, heads, seq, width, hidden
 *     config.pre_norm = true;                               // and weights, by the names of attn_block_config
 *     attn::block(config).run({x, y});
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
  void attend(const mha &with, view<const void> x, view<void> y, std::int64_t layer = 0) {
    try_attend(with, x, y, layer).value();
  }
  /** The same without exceptions. */
  expected<void> try_attend(const mha &with, view<const void> x, view<void> y, std::int64_t layer = 0) noexcept {
    const attn_mha_problem &p = with.shape();
    detail::size_check sizes("attn::kv_cache::attend");
    sizes.check("x", x, p.dtype_x, detail::reach({{step_tokens(), p.width}, {p.width, 1}}));
    sizes.check("y", y, p.dtype_y, detail::reach({{step_tokens(), p.width_out}, {p.width_out, 1}}));
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

/* ---- Layers -------------------------------------------------------------------------------------------------------- */

namespace detail {
template <class Handle, void (*destroy)(Handle *)>
struct destroyer {
  void operator()(Handle *handle) const noexcept { destroy(handle); }
};
template <class Handle, void (*destroy)(Handle *)>
using owner = std::unique_ptr<Handle, destroyer<Handle, destroy>>;
}  // namespace detail

/** The matrix W of a dense layer, dense itself. What has no place here is set by the names of attn_product_weights. */
struct product_weights : attn_product_weights {
  /** W [depth][columns], or with ATTN_OUT_IN [columns][depth] as PyTorch's nn.Linear has it. */
  product_weights(std::int64_t depth_, std::int64_t columns_, const void *weight_, attn_dtype dtype_ = ATTN_F32,
                  attn_weight_layout order = ATTN_IN_OUT) noexcept
      : attn_product_weights(detail::sized<attn_product_weights>()) {
    depth = depth_, columns = columns_, weight = weight_, dtype = dtype_;
    stride_depth = order == ATTN_OUT_IN ? 1 : columns, stride_column = order == ATTN_OUT_IN ? depth : 1;
  }
};

/** A dense layer, y = x W + bias, its weights packed. Rows that lie by other strides go by attn_product_run() and get(). */
class product {
 public:
  /** attn_product_create(). */
  explicit product(const attn_product_weights &weights, const options &o = {}) : product(try_make(weights, o).value()) {}
  /** The same without exceptions. */
  static expected<product> try_make(const attn_product_weights &weights, const options &o = {}) noexcept {
    attn_product *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_product_create(&weights, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return product(made, weights);
  }

  /** attn_product_share(): a second layer of the same packed weights, for another thread's calls. */
  product share() const noexcept { return product(attn_product_share(layer_.get()), weights_); }

  /** y [rows][columns] of dtype_y from x [rows][depth] of dtype_x. */
  void run(std::int64_t rows, view<const void> x, view<void> y) { try_run(rows, x, y).value(); }
  /** The same without exceptions. */
  expected<void> try_run(std::int64_t rows, view<const void> x, view<void> y) noexcept {
    detail::size_check sizes("attn::product");
    sizes.check("x", x, weights_.dtype_x, detail::reach({{rows * weights_.depth, 1}}));
    sizes.check("y", y, weights_.dtype_y, detail::reach({{rows * weights_.columns, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_product_workspace(layer_.get(), rows)); !room) return room;
    auto c = detail::sized<attn_product_args>();
    c.batch = 1, c.rows = rows, c.x = x.data(), c.y = y.data();
    c.x_stride.s = weights_.depth, c.y_stride.s = weights_.columns, c.x_stride.d = c.y_stride.d = 1;
    return detail::outcome(attn_product_run(layer_.get(), &c, own_.data(), own_.size()));
  }

  /** Which product was chosen: "product_avx2". */
  const char *kernel() const noexcept { return attn_product_name(layer_.get()); }
  /** The C handle. */
  const attn_product *get() const noexcept { return layer_.get(); }

 private:
  product(attn_product *made, const attn_product_weights &weights) noexcept : layer_(made), weights_(weights) {}

  detail::owner<attn_product, attn_product_destroy> layer_;
  attn_product_weights weights_; /* its pointers are not read again */
  workspace own_;
};

/** A network's shape. Weights and what has no place here are set by the names of attn_feed_forward_config. */
struct feed_forward_config : attn_feed_forward_config {
  /** Elements of a row outside and in between. */
  feed_forward_config(std::int64_t width_, std::int64_t hidden_) noexcept
      : attn_feed_forward_config(detail::sized<attn_feed_forward_config>()) {
    width = width_, hidden = hidden_;
  }
};

/** A position-wise feed-forward network, its weights packed. */
class feed_forward {
 public:
  /** attn_feed_forward_create(). */
  explicit feed_forward(const attn_feed_forward_config &config, const options &o = {})
      : feed_forward(try_make(config, o).value()) {}
  /** The same without exceptions. */
  static expected<feed_forward> try_make(const attn_feed_forward_config &config, const options &o = {}) noexcept {
    attn_feed_forward *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_feed_forward_create(&config, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return feed_forward(made, config);
  }

  /** y from x, both [rows][width], of the config's dtype_y and dtype_x; y may be x. */
  void run(std::int64_t rows, view<const void> x, view<void> y) { try_run(rows, x, y).value(); }
  /** The same without exceptions. */
  expected<void> try_run(std::int64_t rows, view<const void> x, view<void> y) noexcept {
    detail::size_check sizes("attn::feed_forward");
    sizes.check("x", x, dtype_x_, detail::reach({{rows * width_, 1}}));
    sizes.check("y", y, dtype_y_, detail::reach({{rows * width_, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_feed_forward_workspace(layer_.get(), rows)); !room) return room;
    return detail::outcome(
        attn_feed_forward_run(layer_.get(), rows, x.data(), y.data(), own_.data(), own_.size()));
  }
  /** The C handle. */
  const attn_feed_forward *get() const noexcept { return layer_.get(); }

 private:
  feed_forward(attn_feed_forward *made, const attn_feed_forward_config &c) noexcept
      : layer_(made), width_(c.width), dtype_x_(c.dtype_x), dtype_y_(c.dtype_y) {}

  detail::owner<attn_feed_forward, attn_feed_forward_destroy> layer_;
  std::int64_t width_;
  attn_dtype dtype_x_, dtype_y_;
  workspace own_;
};

/** A block's shape. Weights and what has no place here are set by the names of attn_block_config. */
struct block_config : attn_block_config {
  /** attn_encoder_block_init(). */
  static block_config encoder(std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t width,
                              std::int64_t hidden) noexcept {
    block_config made;
    attn_encoder_block_init(&made, batch, heads, seq, width, hidden);
    return made;
  }
  /** attn_decoder_block_init(). */
  static block_config decoder(std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t seq_memory,
                              std::int64_t width, std::int64_t width_memory, std::int64_t hidden) noexcept {
    block_config made;
    attn_decoder_block_init(&made, batch, heads, seq, seq_memory, width, width_memory, hidden);
    return made;
  }

 private:
  block_config() noexcept : attn_block_config() {}
};

/** The tensors of one call. Members that are not used stay empty. */
struct block_args {
  view<const void> x;              /**< [batch][seq][width], in a step [all new tokens][width], of dtype_rows. */
  view<void> y;                    /**< Shaped as x; may be x. */
  view<const void> memory{};       /**< Decoder blocks: [batch][seq_memory][width_memory] by cross.memory_stride. */
  view<const void> projected_k{};  /**< In its place: keys from block::project_memory(). */
  view<const void> projected_v{};  /**< Values, likewise. */
  const args *self = nullptr;      /**< Masks and lengths of the self-attention. */
  const args *cross = nullptr;     /**< Those of the cross-attention. */
};

/** A transformer block, its weights packed. */
class block {
 public:
  /** attn_block_create(). */
  explicit block(const attn_block_config &config, const options &o = {}) : block(try_make(config, o).value()) {}
  /** The same without exceptions. */
  static expected<block> try_make(const attn_block_config &config, const options &o = {}) noexcept {
    attn_block *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_block_create(&config, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return block(made, config);
  }

  /** attn_block_reshape(): a block over the same packed weights, with the attentions of this config. */
  block reshape(const attn_block_config &config) const { return try_reshape(config).value(); }
  /** The same without exceptions. */
  expected<block> try_reshape(const attn_block_config &config) const noexcept {
    attn_block *made = nullptr;
    const attn_status status =
        attn_block_reshape(block_.get(), &config.self, config.has_cross ? &config.cross : nullptr, &made);
    if (status != ATTN_OK) return failure(status);
    return block(made, config);
  }

  /** attn_block_run(). */
  void run(const block_args &a) { try_run(a).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const block_args &a) noexcept {
    if (const auto fit = check(a, detail::reach_x(config_.self)); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_block_workspace(block_.get())); !room) return room;
    const c_args c(a);
    return detail::outcome(attn_block_run(block_.get(), &c.all, own_.data(), own_.size()));
  }

  /** attn_block_step(): the new tokens of the step that the cache has begun. */
  void step(kv_cache &cache, const block_args &a, std::int64_t layer = 0) { try_step(cache, a, layer).value(); }
  /** The same without exceptions. */
  expected<void> try_step(kv_cache &cache, const block_args &a, std::int64_t layer = 0) noexcept {
    const auto fit = check(a, detail::reach({{cache.step_tokens() * config_.self.width, 1}}));
    if (!fit) return fit;
    const c_args c(a);
    return detail::outcome(attn_block_step(block_.get(), cache.get(), layer, &c.all));
  }

  /** attn_block_project_memory(): k and v of a decoder block's memory, [batch][heads_kv][seq_memory][dim] of the
   * cross-attention's dtype_kv. */
  void project_memory(const block_args &a, view<void> k, view<void> v) { try_project_memory(a, k, v).value(); }
  /** The same without exceptions. */
  expected<void> try_project_memory(const block_args &a, view<void> k, view<void> v) noexcept {
    detail::size_check sizes("attn::block::project_memory");
    sizes.check("memory", a.memory, config_.dtype_rows, detail::reach_memory(config_.cross));
    check_projected(sizes, "k", k, config_.cross.attention.dim_qk);
    check_projected(sizes, "v", v, config_.cross.attention.dim_v);
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_block_workspace(block_.get())); !room) return room;
    const c_args c(a);
    return detail::outcome(
        attn_block_project_memory(block_.get(), &c.all, k.data(), v.data(), own_.data(), own_.size()));
  }

  /** The kernel of the self-attention. */
  const char *kernel() const noexcept { return attn_block_kernel(block_.get()); }
  /** The C handle. */
  const attn_block *get() const noexcept { return block_.get(); }

 private:
  /** The struct of a call, and those that it points to. */
  struct c_args {
    explicit c_args(const block_args &a) noexcept
        : self(a.self ? a.self->get() : attn_args()), cross(a.cross ? a.cross->get() : attn_args()) {
      all.x = a.x.data(), all.y = a.y.data(), all.memory = a.memory.data();
      all.projected_k = a.projected_k.data(), all.projected_v = a.projected_v.data();
      all.self = a.self ? &self : nullptr, all.cross = a.cross ? &cross : nullptr;
    }
    c_args(const c_args &) = delete;
    attn_args self, cross;
    attn_block_args all = detail::sized<attn_block_args>();
  };
  block(attn_block *made, const attn_block_config &config) noexcept : block_(made), config_(config) {}

  expected<void> check(const block_args &a, std::size_t rows) const noexcept {
    detail::size_check sizes("attn::block_args");
    sizes.check("x", a.x, config_.dtype_rows, rows);
    sizes.check("y", a.y, config_.dtype_rows, rows);
    if (config_.has_cross) {
      sizes.check("memory", a.memory, config_.dtype_rows, detail::reach_memory(config_.cross));
      check_projected(sizes, "projected_k", a.projected_k, config_.cross.attention.dim_qk);
      check_projected(sizes, "projected_v", a.projected_v, config_.cross.attention.dim_v);
    }
    return sizes.outcome();
  }
  void check_projected(detail::size_check &sizes, const char *name, view<const void> heads, std::int64_t dim) const noexcept {
    const attn_problem &a = config_.cross.attention;
    sizes.check(name, heads, a.dtype_kv, detail::reach({{a.batch * a.heads_kv * a.seq_k * dim, 1}}));
  }

  detail::owner<attn_block, attn_block_destroy> block_;
  attn_block_config config_; /* its pointers are not read again */
  workspace own_;
};

/** A shape of additive attention. What has no place here is set by the names of attn_additive_config. */
struct additive_config : attn_additive_config {
  /** Sequences, their queries and keys, and widths. */
  additive_config(std::int64_t batch_, std::int64_t seq_q_, std::int64_t seq_k_, std::int64_t width_q_,
                  std::int64_t width_k_, std::int64_t hidden_, std::int64_t dim_v_) noexcept
      : attn_additive_config(detail::sized<attn_additive_config>()) {
    batch = batch_, seq_q = seq_q_, seq_k = seq_k_, width_q = width_q_, width_k = width_k_, hidden = hidden_, dim_v = dim_v_;
  }
};

/** The tensors of one call. Members that are not used stay empty. */
struct additive_args {
  view<const float> q;               /**< [batch][seq_q][width_q] */
  view<const float> k;               /**< [batch][seq_k][width_k] */
  view<const float> v;               /**< [batch][seq_k][dim_v] */
  view<float> o;                     /**< [batch][seq_q][dim_v] */
  view<const float> projected_k{};   /**< [batch][seq_k][hidden] from additive::project_keys(), in place of k. */
  view<const std::int32_t> kv_len{}; /**< [batch] */
  view<float> weights{};             /**< Output [batch][seq_q][seq_k]. */
};

/** Additive attention with its projections, its weights packed. */
class additive {
 public:
  /** attn_additive_create(). */
  explicit additive(const attn_additive_config &config, const options &o = {}) : additive(try_make(config, o).value()) {}
  /** The same without exceptions. */
  static expected<additive> try_make(const attn_additive_config &config, const options &o = {}) noexcept {
    attn_additive *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_additive_create(&config, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return additive(made, config);
  }

  /** attn_additive_reshape(): a layer over the same packed weights. */
  additive reshape(std::int64_t batch, std::int64_t seq_q, std::int64_t seq_k) const {
    return try_reshape(batch, seq_q, seq_k).value();
  }
  /** The same without exceptions. */
  expected<additive> try_reshape(std::int64_t batch, std::int64_t seq_q, std::int64_t seq_k) const noexcept {
    attn_additive *made = nullptr;
    const attn_status status = attn_additive_reshape(layer_.get(), batch, seq_q, seq_k, &made);
    if (status != ATTN_OK) return failure(status);
    attn_additive_config config = config_;
    config.batch = batch, config.seq_q = seq_q, config.seq_k = seq_k;
    return additive(made, config);
  }

  /** attn_additive_run(). */
  void run(const additive_args &a) { try_run(a).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const additive_args &a) noexcept {
    const attn_additive_config &s = config_;
    detail::size_check sizes("attn::additive_args");
    sizes.check("q", a.q, 4, rows(s.seq_q, s.width_q));
    sizes.check("k", a.k, 4, rows(s.seq_k, s.width_k));
    sizes.check("v", a.v, 4, rows(s.seq_k, s.dim_v));
    sizes.check("o", a.o, 4, rows(s.seq_q, s.dim_v));
    sizes.check("projected_k", a.projected_k, 4, rows(s.seq_k, s.hidden));
    sizes.check("kv_len", a.kv_len, 4, rows(1, 1));
    sizes.check("weights", a.weights, 4, rows(s.seq_q, s.seq_k));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_additive_workspace(layer_.get())); !room) return room;
    auto c = detail::sized<attn_additive_args>();
    c.q = a.q.data(), c.k = a.k.data(), c.v = a.v.data(), c.o = a.o.data(), c.projected_k = a.projected_k.data();
    c.kv_len = a.kv_len.data(), c.weights = a.weights.data();
    return detail::outcome(attn_additive_run(layer_.get(), &c, own_.data(), own_.size()));
  }

  /** attn_additive_project_keys(): [batch][seq_k][hidden] of k. */
  void project_keys(view<const float> k, view<float> projected) { try_project_keys(k, projected).value(); }
  /** The same without exceptions. */
  expected<void> try_project_keys(view<const float> k, view<float> projected) noexcept {
    detail::size_check sizes("attn::additive::project_keys");
    sizes.check("k", k, 4, rows(config_.seq_k, config_.width_k));
    sizes.check("projected", projected, 4, rows(config_.seq_k, config_.hidden));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_additive_workspace(layer_.get())); !room) return room;
    return detail::outcome(
        attn_additive_project_keys(layer_.get(), k.data(), projected.data(), own_.data(), own_.size()));
  }

  /** The kernel of its attention. */
  const char *kernel() const noexcept { return attn_additive_kernel(layer_.get()); }
  /** The C handle. */
  const attn_additive *get() const noexcept { return layer_.get(); }

 private:
  additive(attn_additive *made, const attn_additive_config &config) noexcept : layer_(made), config_(config) {}
  std::size_t rows(std::int64_t seq, std::int64_t width) const noexcept {
    return detail::reach({{config_.batch * seq * width, 1}});
  }

  detail::owner<attn_additive, attn_additive_destroy> layer_;
  attn_additive_config config_; /* its pointers are not read again */
  workspace own_;
};

/** A Synthesizer's shape. Weights and what has no place here are set by the names of attn_synthesizer_config. */
struct synthesizer_config : attn_synthesizer_config {
  /** Dense or random; sequences, their tokens, widths, heads, and the longest sequence. */
  synthesizer_config(attn_synthesizer_kind kind_, std::int64_t batch_, std::int64_t seq_, std::int64_t width_,
                     std::int64_t heads_, std::int64_t dim_v_, std::int64_t length_) noexcept
      : attn_synthesizer_config(detail::sized<attn_synthesizer_config>()) {
    kind = kind_, batch = batch_, seq = seq_, width = width_, heads = heads_, dim_v = dim_v_, length = length_;
  }
};

/** A Synthesizer, its weights packed. */
class synthesizer {
 public:
  /** attn_synthesizer_create(). */
  explicit synthesizer(const attn_synthesizer_config &config, const options &o = {})
      : synthesizer(try_make(config, o).value()) {}
  /** The same without exceptions. */
  static expected<synthesizer> try_make(const attn_synthesizer_config &config, const options &o = {}) noexcept {
    attn_synthesizer *made = nullptr;
    const attn_options asked = o.get();
    const attn_status status = attn_synthesizer_create(&config, &asked, &made);
    if (status != ATTN_OK) return failure(status);
    return synthesizer(made, config.batch, config.seq, config.width);
  }

  /** attn_synthesizer_reshape(): a layer over the same packed weights. */
  synthesizer reshape(std::int64_t batch, std::int64_t seq) const { return try_reshape(batch, seq).value(); }
  /** The same without exceptions. */
  expected<synthesizer> try_reshape(std::int64_t batch, std::int64_t seq) const noexcept {
    attn_synthesizer *made = nullptr;
    const attn_status status = attn_synthesizer_reshape(layer_.get(), batch, seq, &made);
    if (status != ATTN_OK) return failure(status);
    return synthesizer(made, batch, seq, width_);
  }

  /** y from x, both [batch][seq][width]; y may be x. kv_len: [batch], with use_kv_len. */
  void run(view<const float> x, view<float> y, view<const std::int32_t> kv_len = {}) { try_run(x, y, kv_len).value(); }
  /** The same without exceptions. */
  expected<void> try_run(view<const float> x, view<float> y, view<const std::int32_t> kv_len = {}) noexcept {
    detail::size_check sizes("attn::synthesizer");
    sizes.check("x", x, 4, detail::reach({{batch_ * seq_ * width_, 1}}));
    sizes.check("y", y, 4, detail::reach({{batch_ * seq_ * width_, 1}}));
    sizes.check("kv_len", kv_len, 4, detail::reach({{batch_, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    if (const auto room = own_.try_reserve(attn_synthesizer_workspace(layer_.get())); !room) return room;
    auto c = detail::sized<attn_synthesizer_args>();
    c.x = x.data(), c.y = y.data(), c.kv_len = kv_len.data();
    return detail::outcome(attn_synthesizer_run(layer_.get(), &c, own_.data(), own_.size()));
  }

  /** The kernel of its attention. */
  const char *kernel() const noexcept { return attn_synthesizer_kernel(layer_.get()); }
  /** The C handle. */
  const attn_synthesizer *get() const noexcept { return layer_.get(); }

 private:
  synthesizer(attn_synthesizer *made, std::int64_t batch, std::int64_t seq, std::int64_t width) noexcept
      : layer_(made), batch_(batch), seq_(seq), width_(width) {}

  detail::owner<attn_synthesizer, attn_synthesizer_destroy> layer_;
  std::int64_t batch_, seq_, width_;
  workspace own_;
};

/** How texts grow. What has no place here is set by the names of attn_generation_config. */
struct generation_config : attn_generation_config {
  /** Logits of a row, tokens after which a text ends, and texts that run side by side. */
  generation_config(std::int64_t vocabulary_, std::int64_t most_tokens_, std::int64_t beams_ = 1) noexcept
      : attn_generation_config(detail::sized<attn_generation_config>()) {
    vocabulary = vocabulary_, most_tokens = most_tokens_, beams = beams_;
  }
  /** Tokens that end a text; they must live until the generation is made. */
  generation_config &stop(view<const std::int32_t> tokens) noexcept {
    stop_tokens = tokens.data();
    stop_count = tokens.size() == tokens.unknown ? 0 : static_cast<std::int64_t>(tokens.size());
    return *this;
  }
};

/** The texts that follow one prompt: one, or those of a beam search. The program runs the model. */
class generation {
 public:
  /** attn_generation_create(). */
  explicit generation(const generation_config &config) : generation(try_make(config).value()) {}
  /** The same without exceptions. */
  static expected<generation> try_make(const generation_config &config) noexcept {
    attn_generation *made = nullptr;
    const attn_status status = attn_generation_create(&config, &made);
    if (status != ATTN_OK) return failure(status);
    return generation(made, config);
  }

  /** How many texts run: 1 at first, 0 once the best one is known. */
  std::int64_t running() const noexcept { return attn_generation_running(made_.get()); }
  /** attn_generation_advance(): the tokens and parents [beams] that follow from logits [running()][vocabulary]. */
  void advance(view<const float> logits, view<std::int32_t> tokens, view<std::int32_t> parents) {
    try_advance(logits, tokens, parents).value();
  }
  /** The same without exceptions. */
  expected<void> try_advance(view<const float> logits, view<std::int32_t> tokens, view<std::int32_t> parents) noexcept {
    detail::size_check sizes("attn::generation::advance");
    sizes.check("logits", logits, 4, detail::reach({{running() * vocabulary_, 1}}));
    sizes.check("tokens", tokens, 4, detail::reach({{beams_, 1}}));
    sizes.check("parents", parents, 4, detail::reach({{beams_, 1}}));
    if (const auto fit = sizes.outcome(); !fit) return fit;
    return detail::outcome(attn_generation_advance(made_.get(), logits.data(), tokens.data(), parents.data()));
  }
  /** Tokens of the best text that has ended, without the prompt's; before one has, of the best that runs. */
  std::vector<std::int32_t> text() const {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(attn_generation_text(made_.get(), nullptr)));
    attn_generation_text(made_.get(), tokens.data());
    return tokens;
  }
  /** The C handle. */
  attn_generation *get() const noexcept { return made_.get(); }

 private:
  generation(attn_generation *made, const attn_generation_config &config) noexcept
      : made_(made), vocabulary_(config.vocabulary), beams_(config.beams > 0 ? config.beams : 1) {}

  detail::owner<attn_generation, attn_generation_destroy> made_;
  std::int64_t vocabulary_, beams_;
};

}  // namespace attn

#endif

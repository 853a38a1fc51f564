/* SPDX-License-Identifier: MIT */
/** @file
 * attn/kv.h for C++17 and later: rotations with an owner, and appending with sizes that are checked. Errors as in attn.hpp.
 *
 *     #include <attn/kv.hpp>
 *
 *     attn::rope rope({ATTN_ROPE_HALVES, 128, 500000.0});
 *     attn::kv_append append(1, 1, 8, 128, 128);            // batch, tokens, heads_kv, dim_qk, dim_v
 *     append.capacity(4096).rotate(rope);
 *     attn::kv_rows rows(k, v, k_cache, v_cache);
 *     rows.past = lengths;
 *     append.run(rows);                                     // throws attn::error; then nothing was written
 */
#ifndef ATTN_KV_HPP
#define ATTN_KV_HPP

#include "attn/attn.hpp"
#include "attn/kv.h"

namespace attn {

namespace detail {
/** Strides that are all 0 mean dense [outer][heads][tokens][dim]. */
inline attn_strides dense_unless_given(const attn_strides &s, std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  if (s.b || s.h || s.s || s.d) return s;
  return {heads * tokens * dim, tokens * dim, dim, 1};
}

/** The same of packed rows: [tokens][heads][dim]. */
inline attn_strides packed_unless_given(const attn_strides &s, std::int64_t heads, std::int64_t dim) {
  if (s.b || s.h || s.s || s.d) return s;
  return {0, dim, heads * dim, 1};
}
}  // namespace detail

/* ---- Rotary position embeddings ----------------------------------------------------------------------------------- */

/** Which rotation. What has no place here is set by the names of attn_rope_config. */
struct rope_config : attn_rope_config {
  /** The pairing, elements that are rotated, and the base. */
  rope_config(attn_rope_pairing pairing_, std::int64_t dim_, double base_ = 10000) noexcept
      : attn_rope_config(detail::sized<attn_rope_config>()) {
    pairing = pairing_, dim = dim_, base = base_;
  }
};

/** Rows to rotate: attn_rope_args. */
struct rope_rows {
  std::int64_t batch = 0;             /**< Sequences. */
  std::int64_t tokens = 0;            /**< Tokens of a sequence. */
  std::int64_t heads = 0;             /**< Heads. */
  std::int64_t dim = 0;               /**< Elements of a row. */
  view<const void> x;                 /**< [batch][heads][tokens][dim] by x_stride. */
  view<void> out;                     /**< Likewise by out_stride; may be x. */
  attn_dtype dtype = ATTN_F32;        /**< Type of x. */
  attn_dtype out_dtype = ATTN_F32;    /**< Type of out. */
  attn_strides x_stride{};            /**< All 0 = dense. */
  attn_strides out_stride{};          /**< All 0 = dense. */
  view<const std::int32_t> positions; /**< [batch][tokens]; empty = past[b] + token. */
  view<const std::int32_t> past;      /**< [batch]; empty = 0. */
};

/** A rotation, its frequencies computed. Never changes once made: threads may use it at once. */
class rope {
 public:
  /** attn_rope_create(). */
  explicit rope(const rope_config &config) : rope(try_make(config).value()) {}
  /** The same without exceptions. */
  static expected<rope> try_make(const rope_config &config) noexcept {
    attn_rope *made = nullptr;
    const attn_status status = attn_rope_create(&config, &made);
    if (status != ATTN_OK) return failure(status);
    return rope(made, config.dim);
  }

  /** attn_rope_run(): rotates every row. */
  void run(const rope_rows &rows, const options &o = {}) const { try_run(rows, o).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const rope_rows &rows, const options &o = {}) const noexcept {
    const auto sizes = check(rows);
    if (!sizes) return sizes;
    auto c = detail::sized<attn_rope_args>();
    c.batch = rows.batch, c.tokens = rows.tokens, c.heads = rows.heads, c.dim = rows.dim;
    c.dtype = rows.dtype, c.out_dtype = rows.out_dtype, c.x = rows.x.data(), c.out = rows.out.data();
    c.x_stride = rows.x_stride, c.out_stride = rows.out_stride;
    c.positions = rows.positions.data(), c.past = rows.past.data();
    const attn_options asked = o.get();
    return detail::outcome(attn_rope_run(rope_.get(), &c, &asked));
  }

  /** Radians per position of each pair: [dim / 2], as long as the rotation lives. */
  view<const double> frequencies() const noexcept {
    return {attn_rope_frequencies(rope_.get()), static_cast<std::size_t>(dim_ / 2)};
  }
  /** The C handle. */
  const attn_rope *get() const noexcept { return rope_.get(); }

 private:
  struct destroy {
    void operator()(attn_rope *made) const noexcept { attn_rope_destroy(made); }
  };
  rope(attn_rope *made, std::int64_t dim) noexcept : rope_(made), dim_(dim) {}

  static expected<void> check(const rope_rows &r) noexcept {
    detail::size_check sizes("attn::rope_rows");
    const auto reach = [&](const attn_strides &given) {
      const attn_strides s = detail::dense_unless_given(given, r.heads, r.tokens, r.dim);
      return detail::reach({{r.batch, s.b}, {r.heads, s.h}, {r.tokens, s.s}, {r.dim, s.d}});
    };
    sizes.check("x", r.x, r.dtype, reach(r.x_stride));
    sizes.check("out", r.out, r.out_dtype, reach(r.out_stride));
    sizes.check("positions", r.positions, 4, detail::reach({{r.batch * r.tokens, 1}}));
    sizes.check("past", r.past, 4, detail::reach({{r.batch, 1}}));
    return sizes.outcome();
  }

  std::unique_ptr<attn_rope, destroy> rope_;
  std::int64_t dim_;
};

/* ---- Appending ---------------------------------------------------------------------------------------------------- */

/** The tensors of one call. Members that are not used stay empty. */
struct kv_rows {
  view<const void> k;                  /**< [batch][heads_kv][tokens][dim_qk], or packed [tokens][heads_kv][dim_qk]. */
  view<const void> v;                  /**< [batch][heads_kv][tokens][dim_v], likewise. */
  view<void> k_cache;                  /**< [batch][heads_kv][capacity][dim_qk], or [pages][heads_kv][page_tokens][dim_qk]. */
  view<void> v_cache;                  /**< The same with dim_v. */
  view<const void> q;                  /**< [batch][heads_q][tokens][dim_qk], or packed. */
  view<void> q_out;                    /**< Shaped as q; may be q. */
  view<const std::int32_t> page_table; /**< [batch][entries of a sequence] */
  view<const std::int32_t> past;       /**< [batch]: tokens before the new ones; empty = 0. */
  view<const std::int32_t> counts;     /**< [batch]: new tokens that each sequence has; empty = all. */
  view<const std::int32_t> cu_seqlens; /**< [batch + 1]: where each sequence begins among packed tokens. */
  view<const std::int64_t> slots;      /**< [batch][tokens], or [tokens] if packed: where each token goes; -1 = nowhere. */
  view<const std::int32_t> positions;  /**< Likewise, for the rotation; empty = past[b] + token. */
  view<const float> k_scale;           /**< Factors of k_cache, [batch][heads_kv][capacity] or of pages; empty = 1. */
  view<const float> v_scale;           /**< Factors of v_cache. */
  view<float> k_scale_cache;           /**< Where factors go that are made for the new keys. */
  view<float> v_scale_cache;           /**< Where factors go that are made for the new values. */

  /** No tensors. */
  kv_rows() noexcept = default;
  /** Keys and values, and the caches that they go to. */
  kv_rows(view<const void> k_, view<const void> v_, view<void> k_cache_, view<void> v_cache_) noexcept
      : k(k_), v(v_), k_cache(k_cache_), v_cache(v_cache_) {}
};

/** New tokens' shape and where they go. What has no function here is set through the arrow: append->k_cache_stride = ... */
class kv_append {
 public:
  /** Float32 tokens into float32 caches; with packed rows `tokens` is how many there are in all. */
  kv_append(std::int64_t batch, std::int64_t tokens, std::int64_t heads_kv, std::int64_t dim_qk, std::int64_t dim_v) noexcept
      : c_(detail::sized<attn_kv_append_args>()) {
    c_.batch = batch, c_.tokens = tokens, c_.heads_kv = heads_kv, c_.dim_qk = dim_qk, c_.dim_v = dim_v;
  }
  /** Dense caches with room for so many tokens of a sequence. */
  kv_append &capacity(std::int64_t tokens) noexcept { return c_.capacity = tokens, *this; }
  /** Caches in pages; `entries` of the page table for each sequence, 0 where slots say the places. */
  kv_append &paged(std::int64_t page_tokens, std::int64_t pages, std::int64_t entries) noexcept {
    c_.page_tokens = page_tokens, c_.pages = pages, c_.page_table_stride = entries;
    return *this;
  }
  /** Types of the new tokens, of the caches, and of q_out. */
  kv_append &dtypes(attn_dtype tokens, attn_dtype cache, attn_dtype q_out = ATTN_F32) noexcept {
    c_.dtype = tokens, c_.cache_dtype = cache, c_.q_out_dtype = q_out;
    return *this;
  }
  /** Heads of the queries that are rotated on the way. */
  kv_append &queries(std::int64_t heads_q) noexcept { return c_.heads_q = heads_q, *this; }
  /** Rotates keys and queries; `with` must outlive the calls. */
  kv_append &rotate(const rope &with) noexcept { return c_.rope = with.get(), *this; }
  /** Mixes the elements of keys and queries by a Hadamard matrix. */
  kv_append &hadamard() noexcept { return c_.hadamard = true, *this; }

  /** attn_kv_append(). On failure nothing was written. */
  void run(const kv_rows &rows, const options &o = {}) const { try_run(rows, o).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const kv_rows &rows, const options &o = {}) const noexcept {
    const auto sizes = check(rows);
    if (!sizes) return sizes;
    attn_kv_append_args c = c_;
    c.q = rows.q.data(), c.k = rows.k.data(), c.v = rows.v.data(), c.q_out = rows.q_out.data();
    c.k_cache = rows.k_cache.data(), c.v_cache = rows.v_cache.data();
    c.page_table = rows.page_table.data(), c.past = rows.past.data(), c.counts = rows.counts.data();
    c.cu_seqlens = rows.cu_seqlens.data(), c.slots = rows.slots.data(), c.positions = rows.positions.data();
    c.k_scale = rows.k_scale.data(), c.v_scale = rows.v_scale.data();
    c.k_scale_cache = rows.k_scale_cache.data(), c.v_scale_cache = rows.v_scale_cache.data();
    const attn_options asked = o.get();
    return detail::outcome(attn_kv_append(&c, &asked));
  }

  /** The C struct, to set what has no function here. */
  attn_kv_append_args *operator->() noexcept { return &c_; }
  /** The C struct, without tensors. */
  const attn_kv_append_args &get() const noexcept { return c_; }

 private:
  expected<void> check(const kv_rows &r) const noexcept {
    detail::size_check sizes("attn::kv_rows");
    const bool packed = r.cu_seqlens.data() != nullptr;
    const std::int64_t outer = c_.page_tokens ? c_.pages : c_.batch, room = c_.page_tokens ? c_.page_tokens : c_.capacity;
    const std::int64_t total = packed ? c_.tokens : c_.batch * c_.tokens;
    const auto tokens = [&](std::int64_t heads, std::int64_t dim, const attn_strides &given) {
      const attn_strides s = packed ? detail::packed_unless_given(given, heads, dim)
                                    : detail::dense_unless_given(given, heads, c_.tokens, dim);
      return detail::reach({{packed ? 1 : c_.batch, s.b}, {heads, s.h}, {c_.tokens, s.s}, {dim, s.d}});
    };
    const auto cache = [&](std::int64_t dim, const attn_strides &given) {
      const attn_strides s =
          detail::dense_unless_given(given, c_.heads_kv, room, detail::row_elements(c_.cache_dtype, dim));
      return detail::reach({{outer, s.b}, {c_.heads_kv, s.h}, {room, s.s}, {dim, s.d}});
    };
    sizes.check("q", r.q, c_.dtype, tokens(c_.heads_q, c_.dim_qk, c_.q_stride));
    sizes.check("k", r.k, c_.dtype, tokens(c_.heads_kv, c_.dim_qk, c_.k_stride));
    sizes.check("v", r.v, c_.dtype, tokens(c_.heads_kv, c_.dim_v, c_.v_stride));
    sizes.check("q_out", r.q_out, c_.q_out_dtype, tokens(c_.heads_q, c_.dim_qk, c_.q_out_stride));
    sizes.check("k_cache", r.k_cache, c_.cache_dtype, cache(c_.dim_qk, c_.k_cache_stride));
    sizes.check("v_cache", r.v_cache, c_.cache_dtype, cache(c_.dim_v, c_.v_cache_stride));
    const auto factors = [&](const attn_strides &s) {
      return detail::reach({{outer, s.b}, {c_.heads_kv, s.h}, {room, s.s}});
    };
    sizes.check("k_scale", r.k_scale, 4, factors(c_.k_scale_stride));
    sizes.check("v_scale", r.v_scale, 4, factors(c_.v_scale_stride));
    const auto made = [&](const attn_strides &given) {
      return factors(detail::dense_unless_given(given, c_.heads_kv, room, 1));
    };
    sizes.check("k_scale_cache", r.k_scale_cache, 4, made(c_.k_scale_stride));
    sizes.check("v_scale_cache", r.v_scale_cache, 4, made(c_.v_scale_stride));
    sizes.check("page_table", r.page_table, 4, detail::reach({{c_.batch, c_.page_table_stride}, {c_.page_table_stride, 1}}));
    sizes.check("past", r.past, 4, detail::reach({{c_.batch, 1}}));
    sizes.check("counts", r.counts, 4, detail::reach({{c_.batch, 1}}));
    sizes.check("cu_seqlens", r.cu_seqlens, 4, detail::reach({{c_.batch + 1, 1}}));
    sizes.check("slots", r.slots, 8, detail::reach({{total, 1}}));
    sizes.check("positions", r.positions, 4, detail::reach({{total, 1}}));
    return sizes.outcome();
  }

  attn_kv_append_args c_;
};

}  // namespace attn

#endif

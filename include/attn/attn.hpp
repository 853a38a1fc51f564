/* SPDX-License-Identifier: MIT */
/** @file
 * libattn for C++17 and later: the calls of attn.h and mha.h with owners, views and exceptions. A header alone, without a
 * library of its own. attn/kv.hpp has those of kv.h, attn/nn.hpp the pools and caches of nn.h.
 *
 *     #include <attn/attn.hpp>
 *
 *     std::vector<float> q(8 * 512 * 64), k(q), v(q), o(q);
 *     attn::problem problem(1, 8, 8, 512, 512, 64, 64);   // batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v
 *     problem.causal();
 *     attn::sdpa(problem, {q, k, v, o});                  // throws attn::error
 *
 * Tensors are views: of anything with data() and size(), or of a pointer. Where the size is known, a tensor that is smaller
 * than the problem's strides reach, or whose elements are not as wide as its dtype, is an error before anything is computed.
 *
 * Functions throw attn::error, which holds the status and the library's sentence. Each has a form that begins with try_,
 * throws nothing and returns attn::expected. What has no wrapper here is reached by get(), which gives the C struct or
 * handle.
 */
#ifndef ATTN_ATTN_HPP
#define ATTN_ATTN_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.h"

namespace attn {

/* ---- Errors ------------------------------------------------------------------------------------------------------- */

/** A failure: its status, and one sentence with the field, its value and what would be right. */
class failure {
 public:
  /** The last failure of this thread in the C library. */
  explicit failure(attn_status status) noexcept : failure(status, attn_last_error()) {}
  /** A failure of this header itself. */
  failure(attn_status status, const char *sentence) noexcept : status_(status) {
    std::snprintf(text_, sizeof text_, "%s", sentence);
  }
  /** The status that the C call returned, or would have returned. */
  attn_status status() const noexcept { return status_; }
  /** The sentence. */
  const char *what() const noexcept { return text_; }

 private:
  attn_status status_;
  char text_[1024];
};

/** The exception of this header. */
class error : public std::runtime_error {
 public:
  /** Throws what a try_ form would return. */
  explicit error(const failure &f) : std::runtime_error(f.what()), status_(f.status()) {}
  /** The status that the C call returned. */
  attn_status status() const noexcept { return status_; }

 private:
  attn_status status_;
};

/** A value, or why there is none. */
template <class T>
class expected {
 public:
  /** A value. */
  expected(T &&value) noexcept : value_(std::move(value)) {}
  /** No value. */
  expected(const failure &f) noexcept : failure_(f) {}
  /** Is there a value? */
  explicit operator bool() const noexcept { return value_.has_value(); }
  /** The value; throws attn::error if there is none. */
  T &value() & {
    if (!value_) throw attn::error(*failure_);
    return *value_;
  }
  /** The same of a temporary: the value is moved out. */
  T &&value() && { return std::move(value()); }
  /** The value, which must be there. */
  T &operator*() noexcept { return *value_; }
  /** A member of the value, which must be there. */
  T *operator->() noexcept { return &*value_; }
  /** Why there is no value; only where there is none. */
  const failure &error() const noexcept { return *failure_; }

 private:
  std::optional<T> value_;
  std::optional<failure> failure_;
};

/** Done, or why not. */
template <>
class expected<void> {
 public:
  /** Done. */
  expected() noexcept = default;
  /** Not done. */
  expected(const failure &f) noexcept : failure_(f) {}
  /** Is it done? */
  explicit operator bool() const noexcept { return !failure_; }
  /** Throws attn::error if it is not done. */
  void value() const {
    if (failure_) throw attn::error(*failure_);
  }
  /** Why not; only where it is not done. */
  const failure &error() const noexcept { return *failure_; }

 private:
  std::optional<failure> failure_;
};

namespace detail {
inline expected<void> outcome(attn_status status) noexcept {
  return status == ATTN_OK ? expected<void>() : expected<void>(failure(status));
}

/** A struct of the C API, all 0 but its size. */
template <class T>
T sized() noexcept {
  T made{};
  made.struct_size = sizeof made;
  return made;
}

template <class C>
using element_of = std::remove_pointer_t<decltype(std::declval<C &>().data())>;

struct aligned_delete {
  void operator()(void *memory) const noexcept { ::operator delete (memory, std::align_val_t{64}); }
};
}  // namespace detail

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

/** A tensor's memory: its first element, and how many there are if that is known. T may be const. */
template <class T>
class view {
 public:
  /** The size of a tensor of which only a pointer is known. */
  static constexpr std::size_t unknown = static_cast<std::size_t>(-1);

  /** No tensor. */
  view() noexcept = default;
  /** No tensor. */
  view(std::nullptr_t) noexcept {}
  /** A pointer: nothing is known of the size. */
  template <class E, std::enable_if_t<std::is_convertible_v<E *, T *>, int> = 0>
  view(E *data) noexcept : data_(data), element_(element_bytes<E>()) {}
  /** A pointer and how many elements are there. */
  template <class E, std::enable_if_t<std::is_convertible_v<E *, T *>, int> = 0>
  view(E *data, std::size_t size) noexcept : data_(data), size_(size), element_(element_bytes<E>()) {}
  /** std::vector, std::array, std::span, ... */
  template <class C, class E = detail::element_of<C>,
            std::enable_if_t<std::is_convertible_v<E *, T *> && !std::is_same_v<std::decay_t<C>, view>, int> = 0>
  view(C &&container) noexcept : view(container.data(), container.size()) {}

  /** The first element. */
  T *data() const noexcept { return data_; }
  /** Elements, or `unknown`. */
  std::size_t size() const noexcept { return size_; }
  /** Bytes of an element; 0 for void. */
  std::size_t element() const noexcept { return element_; }

 private:
  template <class E>
  static constexpr std::size_t element_bytes() noexcept {
    if constexpr (std::is_void_v<E>)
      return 0;
    else
      return sizeof(E);
  }
  T *data_ = nullptr;
  std::size_t size_ = unknown;
  std::size_t element_ = 0;
};

/** Memory for a plan or a layer to work in, 64-byte aligned. Only one call at a time may work in it. */
class workspace {
 public:
  /** Empty; plans make room as they need it. */
  workspace() noexcept = default;
  /** So many bytes; throws std::bad_alloc. */
  explicit workspace(std::size_t bytes)
      : memory_(bytes ? ::operator new (bytes, std::align_val_t{64}) : nullptr), bytes_(bytes) {}
  /** The first byte. */
  void *data() const noexcept { return memory_.get(); }
  /** Bytes. */
  std::size_t size() const noexcept { return bytes_; }
  /** Makes room for this many bytes. */
  expected<void> try_reserve(std::size_t bytes) noexcept {
    if (bytes <= bytes_) return {};
    void *memory = ::operator new (bytes, std::align_val_t{64}, std::nothrow);
    if (!memory) return failure(ATTN_OUT_OF_MEMORY, "out of memory: the workspace does not fit");
    memory_.reset(memory);
    bytes_ = bytes;
    return {};
  }

 private:
  std::unique_ptr<void, detail::aligned_delete> memory_;
  std::size_t bytes_ = 0;
};

/* ---- The problem -------------------------------------------------------------------------------------------------- */

/** Shape and semantics. What has no function here is set through the arrow: problem->bias_stride = ... */
class problem {
 public:
  /** attn_problem_init(). */
  problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seq_q, std::int64_t seq_k,
          std::int64_t dim_qk, std::int64_t dim_v) noexcept {
    attn_problem_init(&c_, batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v);
  }
  /** A copy of a C struct. */
  explicit problem(const attn_problem &c) noexcept : c_(c) {}

  /** attn_problem_set_causal(). */
  problem &causal(attn_align align = ATTN_ALIGN_TOP_LEFT) noexcept { return attn_problem_set_causal(&c_, align), *this; }
  /** attn_problem_set_bshd(): [batch][seq][heads][dim]. */
  problem &bshd() noexcept { return attn_problem_set_bshd(&c_), *this; }
  /** attn_problem_set_varlen(): packed sequences. */
  problem &varlen(std::int64_t total_q, std::int64_t total_k) noexcept {
    return attn_problem_set_varlen(&c_, total_q, total_k), *this;
  }
  /** attn_problem_set_pages(): keys and values in pages. */
  problem &paged(std::int64_t page_tokens, std::int64_t pages) noexcept {
    return attn_problem_set_pages(&c_, page_tokens, pages), *this;
  }
  /** attn_problem_set_newest_mask(): a boolean mask of the newest keys alone. */
  problem &newest_mask(std::int64_t mask_keys) noexcept { return attn_problem_set_newest_mask(&c_, mask_keys), *this; }
  /** attn_problem_set_backward(): the gradients of what the problem has been so far. */
  problem &backward() noexcept { return attn_problem_set_backward(&c_), *this; }
  /** Storage types of q, of k and v, and of o. */
  problem &dtypes(attn_dtype q, attn_dtype kv, attn_dtype o) noexcept {
    c_.dtype_q = q, c_.dtype_kv = kv, c_.dtype_o = o;
    return *this;
  }
  /** One storage type for all tensors. */
  problem &dtypes(attn_dtype all) noexcept { return dtypes(all, all, all); }
  /** Keys that a query sees to its left and right; -1 = all. */
  problem &window(std::int64_t left, std::int64_t right) noexcept {
    c_.window_left = left, c_.window_right = right;
    return *this;
  }
  /** First keys that a query sees beside its window. */
  problem &first_keys(std::int64_t count) noexcept { return c_.window_first = count, *this; }
  /** A piece of the keys, `begin` to `end` - 1; an end of 0 is the sequence's. */
  problem &keys(std::int64_t begin, std::int64_t end) noexcept {
    c_.key_begin = begin, c_.key_end = end;
    return *this;
  }
  /** First keys and values that are the same for all sequences. */
  problem &shared_prefix(std::int64_t count) noexcept { return c_.shared_prefix = count, *this; }
  /** Factor of the scores; default 1 / sqrt(dim_qk). */
  problem &scale(float factor) noexcept { return c_.scale = factor, *this; }
  /** Scores become cap * tanh(score / cap); 0 = off. */
  problem &softcap(float cap) noexcept { return c_.softcap = cap, *this; }
  /** Probability with which an element of the softmax is dropped; attn_args.seed and offset say which. 0 = off. */
  problem &dropout(float probability) noexcept { return c_.dropout = probability, *this; }
  /** ATTN_USE_... bits of what the arguments will bring; sdpa() and run() add none by themselves. */
  problem &use(unsigned bits) noexcept { return c_.uses |= bits, *this; }

  /** attn_problem_validate(). */
  expected<void> try_validate() const noexcept { return detail::outcome(attn_problem_validate(&c_)); }
  /** attn_problem_validate(); throws attn::error. */
  void validate() const { try_validate().value(); }

  /** The C struct, to set what has no function here. */
  attn_problem *operator->() noexcept { return &c_; }
  /** The C struct. */
  const attn_problem *operator->() const noexcept { return &c_; }
  /** The C struct. */
  const attn_problem &get() const noexcept { return c_; }

 private:
  attn_problem c_;
};

/* ---- The data of one call ----------------------------------------------------------------------------------------- */

/** The tensors of one call. Members that the problem does not use stay empty. */
struct args {
  view<const void> q;                    /**< [batch][heads_q][seq_q][dim_qk], by the problem's strides and dtypes. */
  view<const void> k;                    /**< [batch][heads_kv][seq_k][dim_qk] */
  view<const void> v;                    /**< [batch][heads_kv][seq_k][dim_v] */
  view<void> o;                          /**< [batch][heads_q][seq_q][dim_v], written. */
  view<float> lse;                       /**< [batch][heads_q][seq_q], written. */
  view<const float> bias;                /**< [batch][heads_q][seq_q][seq_k] */
  view<const std::uint8_t> mask;         /**< [batch][heads_q][seq_q][seq_k]; 0 hides a key. */
  view<const float> scores;              /**< [batch][heads_q][seq_q][seq_k], of ATTN_SCORE_PRECOMPUTED. */
  view<const float> score_weight;        /**< [heads_q][dim_qk] */
  view<const std::int32_t> kv_len;       /**< [batch]: the keys of each batch. */
  view<const std::int32_t> q_len;        /**< [batch]: the queries of each batch. */
  view<const std::int32_t> row_len;      /**< [batch][seq_q]: the keys of each row. */
  view<const std::int32_t> cu_seqlens_q; /**< [batch + 1]: where the queries of each sequence begin. */
  view<const std::int32_t> cu_seqlens_k; /**< [batch + 1]: where the keys of each sequence begin. */
  view<const std::int32_t> offsets;      /**< [batch]: the key position of query 0. */
  view<const float> alibi_slopes;        /**< [heads_q] */
  view<const float> sinks;               /**< [heads_q] */
  view<const std::int32_t> page_table;   /**< [batch][pages of a sequence] */
  view<float> state; /**< [batch][heads_q][seq_q][attn_state_floats(dim_v)], read and written. */
  view<const float> k_scale;             /**< [batch][heads_kv][seq_k], [pages][heads_kv][page_tokens], or of channels. */
  view<const float> v_scale;             /**< Likewise. */
  view<const std::int32_t> kv_num_blocks;      /**< [batch][heads_kv][blocks of queries] */
  view<const std::int32_t> kv_indices;         /**< [batch][heads_kv][blocks of queries][blocks of keys] */
  view<const std::int32_t> full_kv_num_blocks; /**< Likewise. */
  view<const std::int32_t> full_kv_indices;    /**< Likewise. */
  view<const void> d_o;                        /**< For gradients: [batch][heads_q][seq_q][dim_v]. */
  view<const float> d_lse;                     /**< [batch][heads_q][seq_q] */
  view<void> d_q;                              /**< [batch][heads_q][seq_q][dim_qk], written, as all below. */
  view<void> d_k;                              /**< [batch][heads_kv][seq_k][dim_qk] */
  view<void> d_v;                              /**< [batch][heads_kv][seq_k][dim_v] */
  view<float> d_bias;                          /**< [batch][heads_q][seq_q][seq_k] */
  view<float> d_scores;                        /**< [batch][heads_q][seq_q][seq_k] */
  view<float> d_score_weight;                  /**< [heads_q][dim_qk] */
  view<float> d_alibi_slopes;                  /**< [heads_q] */
  view<float> d_sinks;                         /**< [heads_q] */

  /** No tensors. */
  args() noexcept = default;
  /** The four tensors that every call has. */
  args(view<const void> q_, view<const void> k_, view<const void> v_, view<void> o_) noexcept : q(q_), k(k_), v(v_), o(o_) {}

  /** The C struct. */
  attn_args get() const noexcept {
    auto c = detail::sized<attn_args>();
    c.q = q.data(), c.k = k.data(), c.v = v.data(), c.o = o.data(), c.lse = lse.data();
    c.bias = bias.data(), c.mask = mask.data(), c.scores = scores.data(), c.score_weight = score_weight.data();
    c.kv_len = kv_len.data(), c.q_len = q_len.data(), c.row_len = row_len.data();
    c.cu_seqlens_q = cu_seqlens_q.data(), c.cu_seqlens_k = cu_seqlens_k.data(), c.offsets = offsets.data();
    c.alibi_slopes = alibi_slopes.data(), c.sinks = sinks.data(), c.page_table = page_table.data();
    c.state = state.data(), c.k_scale = k_scale.data(), c.v_scale = v_scale.data();
    c.kv_num_blocks = kv_num_blocks.data(), c.kv_indices = kv_indices.data();
    c.full_kv_num_blocks = full_kv_num_blocks.data(), c.full_kv_indices = full_kv_indices.data();
    c.d_o = d_o.data(), c.d_lse = d_lse.data(), c.d_q = d_q.data(), c.d_k = d_k.data(), c.d_v = d_v.data();
    c.d_bias = d_bias.data(), c.d_scores = d_scores.data(), c.d_score_weight = d_score_weight.data();
    c.d_alibi_slopes = d_alibi_slopes.data(), c.d_sinks = d_sinks.data();
    return c;
  }
};

namespace detail {
/** Elements from the first one to the end of the last one; 0 for an empty tensor, and where a stride is negative: then the
 * pointer is not to the first one, and nothing can be said. */
inline std::size_t reach(std::initializer_list<std::pair<std::int64_t, std::int64_t>> axes) noexcept {
  std::int64_t last = 0;
  for (const auto &[count, stride] : axes) {
    if (count < 1 || stride < 0) return 0;
    last += (count - 1) * stride;
  }
  return static_cast<std::size_t>(last) + 1;
}

/** Elements that are stored together, as a block, and its bytes; 1, and the bytes of an element, of other types. */
struct storage_unit {
  std::size_t elements, bytes;
};

inline storage_unit unit_of(attn_dtype dtype) noexcept {
  if (dtype == ATTN_Q8_0) return {32, 34};
  if (dtype == ATTN_Q4_0) return {32, 18};
  return {1, dtype == ATTN_F32 ? std::size_t{4} : dtype == ATTN_F16 || dtype == ATTN_BF16 ? std::size_t{2} : std::size_t{1}};
}

/** Elements that a dense row of `dim` takes up: whole blocks. */
inline std::int64_t row_elements(attn_dtype dtype, std::int64_t dim) noexcept {
  const auto together = static_cast<std::int64_t>(unit_of(dtype).elements);
  return (dim + together - 1) / together * together;
}

/** The first tensor of `owner` that is too small, or has elements of another size than its dtype. */
class size_check {
 public:
  explicit size_check(const char *owner) noexcept : owner_(owner) {}
  size_check(const attn_problem &p, const args &a) noexcept : size_check("attn::args") {
    const bool varlen = (p.uses & ATTN_USE_VARLEN) != 0;
    const std::int64_t batch = varlen ? 1 : p.batch, rows = varlen ? p.total_q : p.seq_q,
                       keys = varlen ? p.total_k : p.seq_k;
    const bool paged = (p.uses & ATTN_USE_PAGES) != 0;
    const auto tensor = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim, const attn_strides &s) {
      return reach({{batch, s.b}, {heads, s.h}, {seq, s.s}, {dim, s.d}});
    };
    const auto cache = [&](std::int64_t dim, const attn_strides &s) {
      return paged ? reach({{p.pages, s.b}, {p.heads_kv, s.h}, {p.page_tokens, s.s}, {dim, s.d}})
                   : tensor(p.heads_kv, keys, dim, s);
    };
    const auto dense = [](attn_strides s) { return attn_strides{s.b, s.h, s.s, 1}; };
    const auto pairs = [&](const attn_score_strides &s) {
      return reach({{p.batch, s.b}, {p.heads_q, s.h}, {p.seq_q, s.q}, {p.seq_k, s.k}});
    };
    const auto list = [](std::int64_t count) { return reach({{count, 1}}); };
    check("q", a.q, p.dtype_q, tensor(p.heads_q, rows, p.dim_qk, p.q_stride));
    check("k", a.k, p.dtype_kv, cache(p.dim_qk, p.k_stride));
    check("v", a.v, p.dtype_kv, cache(p.dim_v, p.v_stride));
    check("o", a.o, p.dtype_o, tensor(p.heads_q, rows, p.dim_v, p.o_stride));
    check("lse", a.lse, 4, tensor(p.heads_q, rows, 1, p.lse_stride));
    check("state", a.state, 4, tensor(p.heads_q, rows, attn_state_floats(p.dim_v), dense(p.state_stride)));
    check("k_scale", a.k_scale, 4, cache(p.k_scale_stride.d ? p.dim_qk : 1, p.k_scale_stride));
    check("v_scale", a.v_scale, 4, cache(p.v_scale_stride.d ? p.dim_v : 1, p.v_scale_stride));
    check("bias", a.bias, 4, pairs(p.bias_stride));
    check("mask", a.mask, 1, pairs(p.mask_stride));
    check("scores", a.scores, 4, pairs(p.scores_stride));
    check("score_weight", a.score_weight, 4, reach({{p.heads_q, p.score_weight_stride_h}, {p.dim_qk, 1}}));
    check("kv_len", a.kv_len, 4, list(p.batch));
    check("q_len", a.q_len, 4, list(p.batch));
    check("row_len", a.row_len, 4, list(p.batch * p.seq_q));
    check("cu_seqlens_q", a.cu_seqlens_q, 4, list(p.batch + 1));
    check("cu_seqlens_k", a.cu_seqlens_k, 4, list(p.batch + 1));
    check("offsets", a.offsets, 4, list(p.batch));
    check("alibi_slopes", a.alibi_slopes, 4, list(p.heads_q));
    check("sinks", a.sinks, 4, list(p.heads_q));
    check("d_o", a.d_o, p.dtype_o, tensor(p.heads_q, rows, p.dim_v, p.d_o_stride));
    check("d_lse", a.d_lse, 4, tensor(p.heads_q, rows, 1, p.d_lse_stride));
    check("d_q", a.d_q, p.dtype_q, tensor(p.heads_q, rows, p.dim_qk, p.d_q_stride));
    check("d_k", a.d_k, p.dtype_kv, cache(p.dim_qk, p.d_k_stride));
    check("d_v", a.d_v, p.dtype_kv, cache(p.dim_v, p.d_v_stride));
    check("d_bias", a.d_bias, 4, pairs(p.d_bias_stride));
    check("d_scores", a.d_scores, 4, pairs(p.d_scores_stride));
    check("d_score_weight", a.d_score_weight, 4, reach({{p.heads_q, p.score_weight_stride_h}, {p.dim_qk, 1}}));
    check("d_alibi_slopes", a.d_alibi_slopes, 4, list(p.heads_q));
    check("d_sinks", a.d_sinks, 4, list(p.heads_q));
    if (paged && p.page_tokens > 0)
      check("page_table", a.page_table, 4,
            reach({{p.batch, p.page_table_stride}, {(p.seq_k + p.page_tokens - 1) / p.page_tokens, 1}}));
    if ((p.uses & (ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS)) && p.block_queries > 0 && p.block_keys > 0) {
      const std::int64_t query_blocks = (p.seq_q + p.block_queries - 1) / p.block_queries;
      const auto lists = [&](std::int64_t entries, const attn_strides &s) {
        return reach({{p.batch, s.b}, {p.heads_kv, s.h}, {query_blocks, s.s}, {entries, s.d}});
      };
      const std::size_t counts = lists(1, dense(p.kv_num_blocks_stride)),
                        entries = lists((p.seq_k + p.block_keys - 1) / p.block_keys, p.kv_indices_stride);
      check("kv_num_blocks", a.kv_num_blocks, 4, counts);
      check("kv_indices", a.kv_indices, 4, entries);
      check("full_kv_num_blocks", a.full_kv_num_blocks, 4, counts);
      check("full_kv_indices", a.full_kv_indices, 4, entries);
    }
  }
  /** The first mistake, or success. */
  expected<void> outcome() const noexcept { return found_ ? expected<void>(*found_) : expected<void>(); }

  /** Another tensor: the type of its elements, and how many it must have. Blocks may be given as bytes. */
  template <class T>
  void check(const char *name, const view<T> &tensor, attn_dtype dtype, std::size_t needed) noexcept {
    const storage_unit unit = unit_of(dtype);
    const std::size_t units = (needed + unit.elements - 1) / unit.elements;
    if (unit.elements > 1 && tensor.element() == 1)
      check(name, tensor, std::size_t{1}, units * unit.bytes);
    else
      check(name, tensor, unit.bytes, units);
  }

  /** Another tensor: bytes of its elements, and how many it must have. */
  template <class T>
  void check(const char *name, const view<T> &tensor, std::size_t element, std::size_t needed) noexcept {
    if (found_ || !tensor.data()) return;
    if (tensor.element() && tensor.element() != element) {
      say("%s.%s has elements of %zu bytes; those of its dtype have %zu", name, tensor.element(), element);
    } else if (tensor.size() != view<T>::unknown && tensor.size() < needed) {
      say("%s.%s has %zu elements; shape and strides reach %zu", name, tensor.size(), needed);
    }
  }

 private:
  void say(const char *format, const char *name, std::size_t is, std::size_t right) noexcept {
    char text[160];
    std::snprintf(text, sizeof text, format, owner_, name, is, right);
    found_.emplace(ATTN_INVALID_ARGUMENT, text);
  }
  const char *owner_;
  std::optional<failure> found_;
};
}  // namespace detail

/* ---- Options, plans, one call ------------------------------------------------------------------------------------- */

/** The contents of a tuning file, read by attn_tuning_load(). Must outlive all that is made with options that hold it. */
class tuning {
 public:
  /** Reads the file. */
  explicit tuning(const char *path) : tuning(try_load(path).value()) {}
  /** The same without exceptions. A file of another CPU or build is ATTN_UNSUPPORTED. */
  static expected<tuning> try_load(const char *path) noexcept {
    attn_tuning *read = nullptr;
    const attn_status status = attn_tuning_load(path, &read);
    if (status != ATTN_OK) return failure(status);
    return tuning(read);
  }
  /** The C handle. */
  const attn_tuning *get() const noexcept { return rules_.get(); }

 private:
  struct destroy {
    void operator()(attn_tuning *t) const noexcept { attn_tuning_destroy(t); }
  };
  explicit tuning(attn_tuning *read) noexcept : rules_(read) {}
  std::unique_ptr<attn_tuning, destroy> rules_;
};

/** How a plan or a layer is made. */
struct options {
  const char *kernel = nullptr;             /**< A registered name; nullptr = ATTN_KERNEL, else automatic. */
  const char *max_isa = nullptr;            /**< Highest tier to use. */
  int threads = 0;                          /**< 0 = as many as pay, at most OpenMP's default. */
  attn_parallel_for parallel_for = nullptr; /**< The caller's thread pool. */
  void *pool = nullptr;                     /**< Passed to parallel_for. */
  const class tuning *tuning = nullptr;     /**< A tuning file; nullptr = ATTN_TUNING, else the class of CPUs. */
  bool steady = false;                      /**< A row has the same bits however a prompt is cut into calls. */

  /** The C struct. */
  attn_options get() const noexcept {
    auto c = detail::sized<attn_options>();
    c.kernel = kernel, c.max_isa = max_isa, c.threads = threads, c.parallel_for = parallel_for, c.pool = pool;
    c.tuning = tuning ? tuning->get() : nullptr;
    c.steady = steady;
    return c;
  }
};

/** All decisions about one problem. Never changes once made: threads may run it at once, each with a workspace of its own.
 */
class plan {
 public:
  /** attn_plan_create(). */
  explicit plan(const problem &p, const options &o = {}) : plan(try_make(p, o).value()) {}
  /** The same without exceptions. */
  static expected<plan> try_make(const problem &p, const options &o = {}) noexcept {
    attn_plan *made = nullptr;
    const attn_options c = o.get();
    const attn_status status = attn_plan_create(&p.get(), &c, &made);
    if (status != ATTN_OK) return failure(status);
    return plan(made, p.get());
  }

  /** Computes a.o (and a.lse) in the workspace that the plan owns: one call at a time. */
  void run(const args &a) { try_run(a).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const args &a) noexcept {
    const auto room = own_.try_reserve(workspace_bytes());
    return room ? try_run(a, own_) : room;
  }
  /** Computes in a workspace of the caller: any number of calls at once, each with its own. */
  void run(const args &a, workspace &w) const { try_run(a, w).value(); }
  /** The same without exceptions. */
  expected<void> try_run(const args &a, workspace &w) const noexcept {
    const auto sizes = detail::size_check(problem_, a).outcome();
    if (!sizes) return sizes;
    const attn_args c = a.get();
    return detail::outcome(attn_plan_run(plan_.get(), &c, w.data(), w.size()));
  }

  /** Bytes of a workspace. */
  std::size_t workspace_bytes() const noexcept { return attn_plan_workspace(plan_.get()); }
  /** The kernel that was chosen. */
  const char *kernel() const noexcept { return attn_plan_kernel(plan_.get()); }
  /** The decisions in words, and why they were made. */
  const char *describe() const noexcept { return attn_plan_describe(plan_.get()); }
  /** The C handle. */
  const attn_plan *get() const noexcept { return plan_.get(); }

 private:
  struct destroy {
    void operator()(attn_plan *p) const noexcept { attn_plan_destroy(p); }
  };
  plan(attn_plan *made, const attn_problem &p) noexcept : plan_(made), problem_(p) {}
  std::unique_ptr<attn_plan, destroy> plan_;
  attn_problem problem_;
  workspace own_;
};

/** Plan, workspace and run in one call. */
inline expected<void> try_sdpa(const problem &p, const args &a) noexcept {
  const auto sizes = detail::size_check(p.get(), a).outcome();
  if (!sizes) return sizes;
  const attn_args c = a.get();
  return detail::outcome(attn_sdpa(&p.get(), &c));
}
/** Plan, workspace and run in one call; throws attn::error. */
inline void sdpa(const problem &p, const args &a) { try_sdpa(p, a).value(); }

/* ---- Which kernel is quickest here -------------------------------------------------------------------------------- */

/** The result of attn_tune(). As a range it is the entries that were timed, quickest first. */
struct tune_report : attn_tune_report {
  /** The quickest. */
  const attn_tune_entry *begin() const noexcept { return entry; }
  /** Behind the slowest that was timed. */
  const attn_tune_entry *end() const noexcept { return entry + timed; }
  /** These options with the kernel and the threads of the quickest: for attn::plan. */
  options best(options o = {}) const noexcept {
    o.kernel = entry[0].kernel, o.threads = entry[0].threads;
    return o;
  }
};

/** Times what takes the problem, on these data, for about `seconds`; a.o holds the quickest one's answer then. */
inline expected<tune_report> try_tune(const problem &p, const args &a, double seconds, const options &o = {}) noexcept {
  const auto sizes = detail::size_check(p.get(), a).outcome();
  if (!sizes) return sizes.error();
  tune_report report{};
  const attn_args c = a.get();
  const attn_options asked = o.get();
  const attn_status status = attn_tune(&p.get(), &c, &asked, seconds, &report);
  if (status != ATTN_OK) return failure(status);
  return report;
}
/** The same; throws attn::error. */
inline tune_report tune(const problem &p, const args &a, double seconds, const options &o = {}) {
  return try_tune(p, a, seconds, o).value();
}

/* ---- Merging ------------------------------------------------------------------------------------------------------ */

/** A partial result: O [rows][dim_v] and LSE [rows] over some of the keys. */
struct part {
  view<const float> o;   /**< [rows][dim_v] */
  view<const float> lse; /**< [rows] */
};

/** Merges partial results over disjoint sets of keys (attn_merge()). lse may be empty. */
inline void merge(const std::vector<part> &parts, std::int64_t rows, std::int64_t dim_v, view<float> o,
                  view<float> lse = {}) {
  std::vector<const float *> os, lses;
  const auto check = [](const char *name, std::size_t size, std::size_t needed) {
    if (size < needed)
      throw error(failure(ATTN_INVALID_ARGUMENT, (std::string("attn::merge: ") + name + " has " + std::to_string(size) +
                                                  " elements; it must have " + std::to_string(needed))
                                                     .c_str()));
  };
  const std::size_t n = detail::reach({{rows, 1}}), all = detail::reach({{rows, dim_v}, {dim_v, 1}});
  for (const part &p : parts) {
    check("o of a part", p.o.size(), all);
    check("lse of a part", p.lse.size(), n);
    os.push_back(p.o.data());
    lses.push_back(p.lse.data());
  }
  check("o", o.size(), all);
  check("lse", lse.size(), n);
  detail::outcome(attn_merge(static_cast<int>(parts.size()), rows, dim_v, os.data(), lses.data(), o.data(), lse.data()))
      .value();
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------ */

/** A kernel of this build. */
class kernel {
 public:
  /** A kernel from what attn_kernel_get() or attn_kernel_find() returned; not NULL. */
  explicit kernel(const attn_kernel_info *info) noexcept : info_(info) {}
  /** Its name: "flash_avx2". */
  const char *name() const noexcept { return info_->name; }
  /** The C library's facts about it. */
  const attn_kernel_info *operator->() const noexcept { return info_; }
  /** The operation that it computes. */
  attn_operation operation() const noexcept { return attn_kernel_operation(info_); }
  /** Why this CPU cannot run it, or nothing. */
  std::optional<std::string> unusable() const { return reason(attn_kernel_unusable(info_)); }
  /** Why it cannot take the problem here, or nothing. */
  std::optional<std::string> rejects(const problem &p) const { return reason(attn_kernel_rejects(info_, &p.get())); }

 private:
  static std::optional<std::string> reason(const char *text) {
    return text ? std::optional<std::string>(text) : std::nullopt;
  }
  const attn_kernel_info *info_;
};

/** All kernels of this build, best first. */
inline std::vector<kernel> kernels() {
  std::vector<kernel> all;
  for (int i = 0; i < attn_kernel_count(); i++) all.emplace_back(attn_kernel_get(i));
  return all;
}

/** A line for each kernel: that it takes the problem, or why it does not. */
inline std::string explain(const problem &p) {
  std::string lines;
  for (const kernel &k : kernels()) lines += std::string(k.name()) + ": " + k.rejects(p).value_or("takes it") + "\n";
  return lines;
}

/* ---- Multi-head attention ----------------------------------------------------------------------------------------- */

/** A layer's shape: attn_mha_problem. What has no function here is set through the arrow. */
class mha_problem {
 public:
  /** attn_mha_problem_init(). */
  mha_problem(std::int64_t batch, std::int64_t heads, std::int64_t seq_q, std::int64_t seq_k, std::int64_t width) noexcept {
    attn_mha_problem_init(&c_, batch, heads, seq_q, seq_k, width);
  }
  /** attn_problem_set_causal() of its attention. */
  mha_problem &causal(attn_align align = ATTN_ALIGN_TOP_LEFT) noexcept {
    return attn_problem_set_causal(&c_.attention, align), *this;
  }
  /** The C struct, to set what has no function here. */
  attn_mha_problem *operator->() noexcept { return &c_; }
  /** The C struct. */
  const attn_mha_problem &get() const noexcept { return c_; }

 private:
  attn_mha_problem c_;
};

namespace detail {
inline std::size_t reach_rows(const attn_problem &a, std::int64_t packed, std::int64_t padded, std::int64_t width,
                              const attn_strides &s) noexcept {
  const bool varlen = (a.uses & ATTN_USE_VARLEN) != 0;
  return reach({{varlen ? 1 : a.batch, s.b}, {varlen ? packed : padded, s.s}, {width, s.d}});
}
inline std::size_t reach_x(const attn_mha_problem &p) noexcept {
  return reach_rows(p.attention, p.attention.total_q, p.attention.seq_q, p.width, p.x_stride);
}
inline std::size_t reach_y(const attn_mha_problem &p) noexcept {
  return reach_rows(p.attention, p.attention.total_q, p.attention.seq_q, p.width_out, p.y_stride);
}
inline std::size_t reach_memory(const attn_mha_problem &p) noexcept {
  return reach_rows(p.attention, p.attention.total_k, p.attention.seq_k, p.width_memory, p.memory_stride);
}
}  // namespace detail

/** Weights with their size set and all else 0: fill in what there is, as attn_mha_weights says. */
struct mha_weights : attn_mha_weights {
  /** Matrices in this order. */
  explicit mha_weights(attn_weight_layout order = ATTN_IN_OUT) noexcept
      : attn_mha_weights(detail::sized<attn_mha_weights>()) {
    layout = order;
  }
};

/** Attention between its four dense layers. Never changes once made. */
class mha {
 public:
  /** attn_mha_create(); product names the kernel of the dense layers, nullptr = automatic. */
  mha(const mha_problem &p, const attn_mha_weights &w, const options &o = {}, const char *product = nullptr)
      : mha(try_make(p, w, o, product).value()) {}
  /** The same without exceptions. */
  static expected<mha> try_make(const mha_problem &p, const attn_mha_weights &w, const options &o = {},
                                const char *product = nullptr) noexcept {
    const attn_options attention = o.get();
    auto c = detail::sized<attn_mha_options>();
    c.attention = &attention;
    c.product = product;
    attn_mha *made = nullptr;
    const attn_status status = attn_mha_create(&p.get(), &w, &c, &made);
    if (status != ATTN_OK) return failure(status);
    return mha(made, p.get());
  }

  /** attn_mha_reshape(): a layer over the same packed weights for another batch, other lengths or masks. */
  mha reshape(const mha_problem &p) const { return try_reshape(p).value(); }
  /** The same without exceptions. */
  expected<mha> try_reshape(const mha_problem &p) const noexcept {
    attn_mha *made = nullptr;
    const attn_status status = attn_mha_reshape(layer_.get(), &p.get(), &made);
    if (status != ATTN_OK) return failure(status);
    return mha(made, p.get());
  }

  /** y from x, and from a memory if it is not x, of dtype_y and dtype_x; attention: masks and lengths, nullptr = none. */
  void run(view<const void> x, view<void> y, view<const void> memory = {}, const args *attention = nullptr) {
    try_run(x, y, memory, attention).value();
  }
  /** The same without exceptions. */
  expected<void> try_run(view<const void> x, view<void> y, view<const void> memory = {},
                         const args *attention = nullptr) noexcept {
    const auto room = own_.try_reserve(workspace_bytes());
    if (!room) return room;
    const attn_args inner = attention ? attention->get() : detail::sized<attn_args>();
    auto c = detail::sized<attn_mha_args>();
    c.x = x.data(), c.y = y.data(), c.memory = memory.data(), c.attention = &inner;
    const auto sizes = check(x, y, memory);
    return sizes ? detail::outcome(attn_mha_run(layer_.get(), &c, own_.data(), own_.size())) : sizes;
  }

  /** Bytes of a workspace. */
  std::size_t workspace_bytes() const noexcept { return attn_mha_workspace(layer_.get()); }
  /** The kernel of its attention. */
  const char *kernel() const noexcept { return attn_mha_kernel(layer_.get()); }
  /** The decisions in words, and why they were made. */
  const char *describe() const noexcept { return attn_mha_describe(layer_.get()); }
  /** The problem that it was made for. */
  const attn_mha_problem &shape() const noexcept { return problem_; }
  /** The C handle. */
  const attn_mha *get() const noexcept { return layer_.get(); }

 private:
  struct destroy {
    void operator()(attn_mha *layer) const noexcept { attn_mha_destroy(layer); }
  };
  mha(attn_mha *made, const attn_mha_problem &p) noexcept : layer_(made), problem_(p) {}

  expected<void> check(view<const void> x, view<void> y, view<const void> memory) const noexcept {
    detail::size_check sizes("attn::mha");
    sizes.check("x", x, problem_.dtype_x, detail::reach_x(problem_));
    sizes.check("y", y, problem_.dtype_y, detail::reach_y(problem_));
    sizes.check("memory", memory, problem_.dtype_x, detail::reach_memory(problem_));
    return sizes.outcome();
  }

  std::unique_ptr<attn_mha, destroy> layer_;
  attn_mha_problem problem_;
  workspace own_;
};

/** The version of the library that runs. */
inline const char *version() noexcept { return attn_version(); }

}  // namespace attn

#endif

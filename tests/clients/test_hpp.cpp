// SPDX-License-Identifier: MIT
// attn.hpp, kv.hpp and nn.hpp: what they compute is what the C functions compute, and every mistake is an attn::error with a sentence.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include <attn/nn.hpp>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace {

int failures = 0;

void check(bool good, const char *what, const char *text = "") {
  if (good) return;
  std::printf("WRONG: %s %s\n", what, text);
  failures++;
}
#define CHECK(condition) check(condition, #condition)

// `call` must throw attn::error whose sentence holds `part`.
template <class Call>
void refused(Call call, attn_status status, const char *part) {
  try {
    call();
    check(false, "no exception:", part);
  } catch (const attn::error &e) {
    check(e.status() == status && std::strstr(e.what(), part), part, e.what());
  }
}

std::vector<float> floats(std::size_t count, float seed) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; i++) x[i] = std::sin(seed + static_cast<float>(i));
  return x;
}

constexpr std::size_t rows = 20, dim = 32, count = 2 * rows * dim;
const std::vector<float> q = floats(count, 1), k = floats(count, 2), v = floats(count, 3);
attn::problem shape() { return {1, 2, 2, rows, rows, dim, dim}; }

std::vector<float> from_c() {
  std::vector<float> o(count);
  attn_problem p;
  attn_problem_init(&p, 1, 2, 2, rows, rows, dim, dim);
  attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT);
  auto a = attn::detail::sized<attn_args>();
  a.q = q.data(), a.k = k.data(), a.v = v.data(), a.o = o.data();
  CHECK(attn_sdpa(&p, &a) == ATTN_OK);
  return o;
}

void one_call() {
  std::vector<float> o(count), lse(2 * rows);
  attn::sdpa(shape().causal(), {q, k, v, o});
  CHECK(o == from_c());
  attn::args a(q.data(), k.data(), v.data(), o.data());
  a.lse = lse;
  attn::sdpa(shape().use(ATTN_USE_LSE), a);
  CHECK(lse[0] != 0);
#if __cplusplus >= 202002L
  std::vector<float> again(count);
  attn::sdpa(shape().causal(), {std::span(q), std::span(k), std::span(v), std::span(again)});
  CHECK(again == from_c());
#endif
}

/* Causal: query 0 sees one key, whose P is 1 whatever q is. */
void gradients() {
  std::vector<float> o(count), lse(2 * rows), d_q(count), d_k(count), d_v(count), less(count - 1);
  auto p = shape().causal().use(ATTN_USE_LSE);
  attn::args a{q, k, v, o};
  a.lse = lse;
  attn::sdpa(p, a);
  p.backward();
  a.d_o = v, a.d_q = d_q, a.d_k = d_k, a.d_v = d_v;
  attn::sdpa(p, a);
  CHECK(std::abs(d_q[0]) < 1e-4f && d_q[dim] != 0 && d_k[0] != 0 && std::abs(d_v[0]) > 0);
  refused(
      [&] {
        a.d_v = less;
        attn::sdpa(p, a);
      },
      ATTN_INVALID_ARGUMENT, "d_v has 1279 elements");
}

void plans() {
  static_assert(!std::is_copy_constructible_v<attn::plan> && std::is_nothrow_move_constructible_v<attn::plan>);
  std::vector<float> o(count), other(count);
  attn::options options;
  options.threads = 1;
  attn::plan made(shape().causal(), options), plan = std::move(made);
  for (int i = 0; i < 2; i++) plan.run({q, k, v, o});
  CHECK(o == from_c());
  CHECK(std::strstr(plan.describe(), plan.kernel()));
  attn::workspace mine(plan.workspace_bytes());
  const attn::plan &shared = plan;
  std::thread thread([&] { shared.run({q, k, v, other}, mine); });
  plan.run({q, k, v, o});
  thread.join();
  CHECK(other == from_c());
}

void mistakes() {
  std::vector<float> o(count), small(count - 1);
  refused([&] { attn::sdpa(shape(), {q, k, v, small}); }, ATTN_INVALID_ARGUMENT, "attn::args.o has 1279 elements");
  refused([&] { attn::sdpa(shape(), {q, small, v, o}); }, ATTN_INVALID_ARGUMENT, "attn::args.k has 1279 elements");
  refused([&] { attn::sdpa(shape(), {q, k, nullptr, o}); }, ATTN_INVALID_ARGUMENT, "attn_args.v is NULL");
  refused(
      [&] {
        attn::sdpa(shape().dtypes(ATTN_BF16), {q, k, v, o});
      },
      ATTN_INVALID_ARGUMENT, "attn::args.q has elements of 4 bytes; those of its dtype have 2");
  std::vector<double> wide(count);
  refused([&] { attn::sdpa(shape(), {wide, k, v, o}); }, ATTN_INVALID_ARGUMENT, "elements of 8 bytes");
  attn::args masked(q, k, v, o);
  std::array<std::uint8_t, 5> mask{};
  masked.mask = mask;
  refused([&] { attn::sdpa(shape().use(ATTN_USE_MASK), masked); }, ATTN_INVALID_ARGUMENT, "attn::args.mask has 5 elements");
  masked.mask = mask.data();
  refused([&] { attn::sdpa(shape(), masked); }, ATTN_INVALID_ARGUMENT, "ATTN_USE_MASK");
  refused([] { attn::problem(1, 3, 2, 1, 1, 1, 1).validate(); }, ATTN_INVALID_ARGUMENT, "heads_q is 3");
  refused(
      [] {
        attn::options options;
        options.kernel = "flash_mmx";
        attn::plan plan(shape(), options);
      },
      ATTN_UNKNOWN_KERNEL, "flash_mmx");
  attn::plan plan(shape());
  attn::workspace none;
  if (plan.workspace_bytes())
    refused([&] { static_cast<const attn::plan &>(plan).run({q, k, v, o}, none); }, ATTN_WORKSPACE_TOO_SMALL, "workspace");
}

void without_exceptions() {
  const attn::problem problem = shape();
  static_assert(noexcept(attn::plan::try_make(problem)) &&noexcept(attn::try_sdpa(problem, attn::args())));
  auto none = attn::plan::try_make(attn::problem(1, 3, 2, 1, 1, 1, 1));
  CHECK(!none && none.error().status() == ATTN_INVALID_ARGUMENT && std::strstr(none.error().what(), "heads_q is 3"));
  std::vector<float> o(count);
  auto plan = attn::plan::try_make(shape().causal());
  CHECK(plan && plan->try_run({q, k, v, o}));
  CHECK(o == from_c());
  const auto done = attn::try_sdpa(shape(), {q, k, v, nullptr});
  CHECK(!done && std::strstr(done.error().what(), "attn_args.o is NULL"));
}

void merging() {
  std::vector<float> o[2] = {std::vector<float>(rows * dim), std::vector<float>(rows * dim)}, whole(rows * dim);
  std::vector<float> lse[2] = {std::vector<float>(rows), std::vector<float>(rows)}, merged(rows * dim);
  for (std::size_t i = 0; i < 2; i++) {
    attn::problem p(1, 1, 1, rows, rows / 2, dim, dim);
    attn::args a(q, k.data() + i * rows / 2 * dim, v.data() + i * rows / 2 * dim, o[i]);
    a.lse = lse[i];
    attn::sdpa(p.use(ATTN_USE_LSE), a);
  }
  attn::sdpa(attn::problem(1, 1, 1, rows, rows, dim, dim), {q, k, v, whole});
  attn::merge({{o[0], lse[0]}, {o[1], lse[1]}}, rows, dim, merged);
  for (std::size_t i = 0; i < merged.size(); i++) check(std::fabs(merged[i] - whole[i]) < 1e-5f, "merged");
  refused(
      [&] {
        attn::merge({{o[0], lse[0]}}, rows, dim, lse[0]);
      },
      ATTN_INVALID_ARGUMENT, "attn::merge: o has 20 elements");
}

void registry() {
  const auto all = attn::kernels();
  CHECK(!all.empty() && static_cast<int>(all.size()) == attn_kernel_count());
  const std::string lines = attn::explain(shape());
  for (const auto &kernel : all) CHECK(lines.find(kernel.name()) != std::string::npos);
  CHECK(lines.find("takes it") != std::string::npos);
  CHECK(all.back()->name && attn::version() == std::string(attn_version()));
}

void tuning() {
  std::vector<float> o(count);
  const attn::tune_report report = attn::tune(shape().causal(), {q, k, v, o}, 0.01);
  CHECK(report.begin() < report.end() && report.begin()->time_ns > 0);
  CHECK(attn::plan(shape().causal(), report.best()).kernel() == std::string(report.begin()->kernel));
  attn::options named;
  named.kernel = "naive_c";
  CHECK(attn::tune(shape(), {q, k, v, o}, 0.001, named).best().kernel == std::string("naive_c"));
  refused([&] { attn::tune(shape(), {q, k, v, o}, -1); }, ATTN_INVALID_ARGUMENT, "seconds is -1");
  std::vector<float> small(3);
  CHECK(!attn::try_tune(shape(), {q, k, v, small}, 1));
  refused([] { attn::tuning rules("./no such file"); }, ATTN_INVALID_ARGUMENT, "no such file");
  const char *path = "test_hpp.tuning";
  std::vector<char> head(attn_tuning_head(nullptr, 0) + 1);
  attn_tuning_head(head.data(), head.size());
  std::FILE *file = std::fopen(path, "w");
  std::fprintf(file, "%srule f32 full dim=1..* group=1..* seq_k=1..* seq_q=1..* kernel=naive_c second=flash_c margin=1.5 ",
               head.data());
  std::fprintf(file, "low=1.4 high=1.6\n");
  std::fclose(file);
  const attn::tuning rules(path);
  std::remove(path);
  attn::options tuned;
  tuned.tuning = &rules;
  CHECK(attn::plan(shape(), tuned).kernel() == std::string("naive_c"));
}

void layers() {
  constexpr std::size_t width = 16;
  const auto w = floats(3 * width * width, 4), x = floats(rows * width, 5);
  std::vector<float> y(rows * width), small(3);
  attn::mha_weights weights(ATTN_OUT_IN);
  weights.w_qkv = w.data(), weights.w_o = w.data();
  attn::mha layer(attn::mha_problem(1, 2, rows, rows, width).causal(), weights);
  layer.run(x, y);
  CHECK(y[0] != 0 && std::strstr(layer.describe(), layer.kernel()));
  attn::mha one = layer.reshape(attn::mha_problem(1, 2, 1, 1, width).causal());
  std::vector<float> first(width);
  one.run({x.data(), width}, first);
  CHECK(std::equal(first.begin(), first.end(), y.begin()));
  refused([&] { layer.reshape(attn::mha_problem(1, 4, 1, 1, width)); }, ATTN_INVALID_ARGUMENT, "heads_q is 4; it must be 2");
  refused([&] { layer.run(x, small); }, ATTN_INVALID_ARGUMENT, "attn::mha.y has 3 elements");
  refused([&] { layer.run(nullptr, y); }, ATTN_INVALID_ARGUMENT, "attn_mha_args.x is NULL");
  refused([&] { attn::mha(attn::mha_problem(1, 3, rows, rows, width), weights); }, ATTN_INVALID_ARGUMENT, "width is 16");
  attn::mha_problem padded(1, 2, rows, rows, width);
  padded->attention.uses |= ATTN_USE_KV_LEN;
  attn::mha with_lengths(padded, weights);
  const std::array<std::int32_t, 1> length = {3};
  attn::args masks;
  masks.kv_len = length;
  with_lengths.run(x, y, nullptr, &masks);
  refused([&] { with_lengths.run(x, y); }, ATTN_INVALID_ARGUMENT, "kv_len is NULL");
}

// Keys and values of one sequence of 2 heads go to pages 2 and 0, rotated: what attn_kv_append() writes.
constexpr std::size_t page = 16, pages = 3, head = 8, heads = 2, kept = pages * heads * page * head;
const std::array<std::int32_t, 2> table = {2, 0};
const std::array<std::int32_t, 1> past = {5};

std::vector<float> appended_by_c(const attn::rope &rope) {
  std::vector<float> keys(kept), values(kept);
  auto c = attn::detail::sized<attn_kv_append_args>();
  c.batch = 1, c.tokens = rows, c.heads_kv = heads, c.dim_qk = c.dim_v = head;
  c.k = k.data(), c.v = v.data(), c.k_cache = keys.data(), c.v_cache = values.data();
  c.page_tokens = page, c.pages = pages, c.page_table_stride = 2, c.page_table = table.data(), c.past = past.data();
  c.rope = rope.get();
  CHECK(attn_kv_append(&c, nullptr) == ATTN_OK);
  keys.insert(keys.end(), values.begin(), values.end());
  return keys;
}

void appending() {
  static_assert(!std::is_copy_constructible_v<attn::rope> && std::is_nothrow_move_constructible_v<attn::rope>);
  const attn::rope rope({ATTN_ROPE_HALVES, head, 500000.0});
  CHECK(rope.frequencies().size() == head / 2 && rope.frequencies().data()[0] == 1);
  std::vector<float> keys(kept), values(kept), small(3);
  attn::kv_rows r(k, v, keys, values);
  r.page_table = table, r.past = past;
  attn::kv_append append(1, rows, heads, head, head);
  append.paged(page, pages, 2).rotate(rope).run(r);
  std::vector<float> both = keys;
  both.insert(both.end(), values.begin(), values.end());
  CHECK(both == appended_by_c(rope));

  r.k_cache = small;
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "attn::kv_rows.k_cache has 3 elements; shape and strides reach 768");
  r.k_cache = keys;
  append.dtypes(ATTN_F32, ATTN_BF16);
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "k_cache has elements of 4 bytes; those of its dtype have 2");
  std::vector<std::int8_t> key_bytes(kept), value_bytes(kept);
  std::vector<float> factors(pages * heads * page);
  r.k_cache = key_bytes, r.v_cache = value_bytes, r.k_scale_cache = factors, r.v_scale = factors;
  append.dtypes(ATTN_F32, ATTN_I8);
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "attn_kv_append_args.v_scale is 0");
  r.v_scale = {}, r.v_scale_cache = small;
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "v_scale_cache has 3 elements; shape and strides reach 96");
  r.v_scale_cache = {};
  append.run(r);
  const std::size_t first = 2 * heads * page + 5; // in page 2, behind 5 tokens
  for (std::size_t d = 0; d < head; d++)
    CHECK(std::fabs(key_bytes[first * head + d] * factors[first] - keys[first * head + d]) <= factors[first] / 2);
  constexpr std::size_t blocks = pages * heads * page; // a row of 8 elements is a block of 32
  std::vector<std::uint8_t> key_blocks(34 * blocks), value_blocks(34 * blocks - 1);
  r.k_scale_cache = {}, r.k_cache = key_blocks, r.v_cache = value_blocks;
  append.dtypes(ATTN_F32, ATTN_Q8_0);
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "v_cache has 3263 elements; shape and strides reach 3264");
  r.v_cache = values;
  refused([&] { append.run(r); }, ATTN_INVALID_ARGUMENT, "v_cache has elements of 4 bytes; those of its dtype have 34");
  value_blocks.push_back(0), r.v_cache = value_blocks;
  append.run(r);
  for (const auto *written : {&key_blocks, &value_blocks}) { // 8 elements and zeros behind them
    const auto *integers = written->data() + 34 * first + 2;
    CHECK(std::any_of(integers, integers + head, [](int x) { return x; }) &&
          std::none_of(integers + head, integers + 32, [](int x) { return x; }));
  }
  auto over_blocks = attn::problem(1, heads, heads, 1, 2 * page, head, head);
  over_blocks->dtype_kv = ATTN_Q8_0;
  attn_problem_set_pages(over_blocks.operator->(), page, pages);
  const std::array<std::int32_t, 1> held = {5 + rows};
  std::vector<float> out(heads * head);
  attn::args a(q, key_blocks, value_blocks, out);
  a.kv_len = held, a.page_table = table;
  attn::sdpa(over_blocks, a);
  a.k = attn::view<const void>(key_blocks.data(), 34 * blocks - 34);
  refused([&] { attn::sdpa(over_blocks, a); }, ATTN_INVALID_ARGUMENT, "k has 3230 elements; shape and strides reach 3264");
  r.k_cache = keys, r.v_cache = values;
  append.dtypes(ATTN_F32, ATTN_F32);
  const std::array<std::int32_t, 1> full = {30};
  r.past = full;
  const auto done = append.try_run(r);
  CHECK(!done && done.error().status() == ATTN_INVALID_ARGUMENT && std::strstr(done.error().what(), "page_table"));
  refused([] { attn::rope odd({ATTN_ROPE_HALVES, 7}); }, ATTN_INVALID_ARGUMENT, "dim is 7");

  std::vector<float> turned(rows * head);
  attn::rope_rows x;
  x.batch = x.heads = 1, x.tokens = rows, x.dim = head, x.x = k.data(), x.out = turned;
  rope.run(x);
  CHECK(turned[0] == k[0] && turned[head] != k[head]); // position 0 stays
  x.out = small;
  refused([&] { rope.run(x); }, ATTN_INVALID_ARGUMENT, "attn::rope_rows.out has 3 elements");
  attn::kv_append dense(1, 4, heads, head, head);
  const std::array<std::int32_t, 2> borders = {0, 4};
  attn::kv_rows packed(k, v, keys, values);
  packed.cu_seqlens = borders;
  dense.capacity(8).run(packed); // [tokens][heads][dim]
  CHECK(keys[head] == k[heads * head] && keys[8 * head] == k[head]);
}

// A cache on a pool computes what one call over all tokens does, and its mistakes are errors.
void caches() {
  static_assert(!std::is_copy_constructible_v<attn::kv_cache> && std::is_nothrow_move_constructible_v<attn::kv_cache>);
  attn::options c_kernel;
  c_kernel.kernel = "flash_c";
  attn::kv_pool pool({6, heads, dim, dim});
  attn::kv_cache cache(attn::kv_cache_shape(2, heads, heads, dim, dim, 60).pages_of(pool), c_kernel);
  const std::array<std::int32_t, 2> first = {rows, 0};
  std::vector<float> o(count), small(3);
  const auto packed = [](const std::vector<float> &x) { // [heads][rows][dim] as [rows][heads][dim]
    std::vector<float> y(count);
    for (std::size_t i = 0; i < rows; i++)
      for (std::size_t h = 0; h < heads; h++) std::copy_n(&x[(h * rows + i) * dim], dim, &y[(i * heads + h) * dim]);
    return y;
  };
  const auto q_rows = packed(q), k_rows = packed(k), v_rows = packed(v);
  cache.begin(first);
  CHECK(cache.step_tokens() == rows);
  cache.attend({q_rows, k_rows, v_rows, o});
  attn::problem whole = shape().causal();
  std::vector<float> right(count);
  attn::plan(whole, c_kernel).run({q, k, v, right});
  CHECK(o == packed(right));
  CHECK(cache.kernel() == std::string("flash_c"));
  CHECK(pool.free_pages() == 5 && cache.lengths().data()[0] == rows && cache.lengths().size() == 2);
  CHECK(cache.pages()[0] >= 0 && pool.keys() && !pool.keys(1) && pool.values() != pool.keys());

  cache.fork(0, 1, 10);
  CHECK(cache.lengths().data()[1] == 10 && pool.free_pages() == 5);
  const std::array<std::int32_t, 2> parents = {1, -1}, one = {1, 0};
  cache.reorder(parents);
  CHECK(cache.lengths().data()[0] == 10 && cache.lengths().data()[1] == 0);
  cache.step(1, q, k, v, o, one);
  CHECK(cache.lengths().data()[0] == 11);
  cache.truncate_sequence(0, 5);
  cache.truncate(3);
  CHECK(cache.lengths().data()[0] == 3);

  refused([&] { cache.step(1, q, small, v, o); }, ATTN_INVALID_ARGUMENT, "attn::kv_cache::step.k has 3 elements");
  refused([&] { cache.begin(std::array<std::int32_t, 1>{1}); }, ATTN_INVALID_ARGUMENT, "begin.counts has 1 elements");
  refused([&] { cache.reorder(std::array<std::int32_t, 1>{0}); }, ATTN_INVALID_ARGUMENT, "reorder.parents has 1 elements");
  refused([&] { cache.fork(0, 0, 1); }, ATTN_INVALID_ARGUMENT, "to is 0");
  const auto long_step = cache.try_step(61, nullptr, nullptr, nullptr, nullptr);
  CHECK(!long_step && std::strstr(long_step.error().what(), "tokens is 61"));
  refused([&] { attn::kv_cache((attn::kv_cache_shape(1, 3, 2, 8, 8, 9))); }, ATTN_INVALID_ARGUMENT, "heads_q is 3");
  CHECK(!attn::kv_pool::try_make({0, 1, 8, 8}));
}

// Two beams by hand; sizes that do not fit.
void generations() {
  static_assert(!std::is_copy_constructible_v<attn::generation> && std::is_nothrow_move_constructible_v<attn::generation>);
  const auto logs = [](std::vector<float> row) {
    for (float &x : row) x = std::log(x);
    return row;
  };
  const std::array<std::int32_t, 1> stop = {2};
  std::array<std::int32_t, 2> tokens{}, parents{};
  attn::generation texts(attn::generation_config(3, 3, 2).stop(stop));
  CHECK(texts.running() == 1 && texts.text().empty());
  texts.advance(logs({0.6f, 0.3f, 0.1f}), tokens, parents);
  CHECK(tokens[0] == 0 && tokens[1] == 1 && parents[0] == 0 && parents[1] == 0 && texts.running() == 2);
  std::array<std::int32_t, 1> one{};
  const auto row = logs({0.6f, 0.3f, 0.1f});
  refused([&] { texts.advance(row, tokens, parents); }, ATTN_INVALID_ARGUMENT, "advance.logits has 3 elements");
  refused([&] { texts.advance(row.data(), one, parents); }, ATTN_INVALID_ARGUMENT, "advance.tokens has 1 elements");
  texts.advance(logs({0.1f, 0.2f, 0.7f, 0.5f, 0.45f, 0.05f}), tokens, parents);
  CHECK(tokens[0] == 0 && parents[0] == 1 && parents[1] == 1);
  attn::generation moved = std::move(texts);
  moved.advance(logs({0.99f, 0.005f, 0.005f, 0.5f, 0.25f, 0.25f}), tokens, parents);
  CHECK(moved.running() == 0 && moved.text() == std::vector<std::int32_t>({0, 2}) && moved.get());
  CHECK(!moved.try_advance(row, tokens, parents) && !attn::generation::try_make({0, 1}));
}

// A multi-head layer in a step has the bits of a run over the whole text.
void layers_in_caches() {
  constexpr std::size_t width = 16;
  const auto w = floats(3 * width * width, 4), x = floats(rows * width, 5);
  std::vector<float> y(rows * width), right(rows * width), small(3);
  attn::options c_kernel;
  c_kernel.kernel = "flash_c";
  attn::mha_weights weights(ATTN_OUT_IN);
  weights.w_qkv = w.data(), weights.w_o = w.data();
  attn::mha layer(attn::mha_problem(1, 2, rows, rows, width).causal(), weights, c_kernel);
  attn::kv_cache cache({1, 2, 2, width / 2, width / 2, rows}, c_kernel);
  layer.run(x, right);
  const std::array<std::int32_t, 1> counts = {rows};
  cache.begin(counts);
  refused([&] { cache.attend(layer, x, small); }, ATTN_INVALID_ARGUMENT, "attn::kv_cache::attend.y has 3 elements");
  cache.attend(layer, x, y);
  CHECK(y == right);
}

// The layers of nn.h: what the C functions compute of the same structs, and their mistakes.
constexpr std::size_t wide = 16, deep = 24, few = 5;
const auto weight = floats(4 * wide * deep, 4), input = floats(few * wide, 5), far = floats(3 * wide, 6);

void products() {
  attn::product_weights weights(wide, deep, weight.data());
  weights.bias = far.data();
  attn::product layer(weights);
  std::vector<float> y(few * deep), other(few * deep), small(3);
  layer.run(few, input, y);
  for (std::size_t row = 0; row < few; row++)
    for (std::size_t column = 0; column < deep; column++) {
      double sum = far[column];
      for (std::size_t i = 0; i < wide; i++) sum += double(input[row * wide + i]) * double(weight[i * deep + column]);
      check(std::abs(y[row * deep + column] - sum) < 1e-5, "attn::product: an element");
    }
  attn::product second = layer.share();
  second.run(few, input, other);
  CHECK(y == other && second.get() == layer.get() && std::strncmp(layer.kernel(), "product_", 8) == 0);

  std::vector<float> turned(wide * deep);
  for (std::size_t i = 0; i < wide * deep; i++) turned[i % deep * wide + i / deep] = weight[i];
  attn::product_weights out_in(wide, deep, turned.data(), ATTN_F32, ATTN_OUT_IN);
  out_in.bias = far.data();
  attn::product(out_in).run(few, input, other);
  CHECK(y == other);

  refused([&] { layer.run(few, input, small); }, ATTN_INVALID_ARGUMENT, "attn::product.y has 3 elements");
  refused([&] { layer.run(few, small, y); }, ATTN_INVALID_ARGUMENT, "attn::product.x has 3 elements");
  refused([&] { layer.run(-1, input, y); }, ATTN_INVALID_ARGUMENT, "rows is -1");
  weights.dtype_y = ATTN_BF16;
  refused([&] { attn::product(weights).run(few, input, y); }, ATTN_INVALID_ARGUMENT,
          "attn::product.y has elements of 4 bytes");
  weights.columns = 0;
  CHECK(!attn::product::try_make(weights));
}

void feed_forwards() {
  attn::feed_forward_config config(wide, deep);
  config.first.weight = config.second.weight = weight.data();
  attn::feed_forward network(config);
  std::vector<float> y(few * wide), right(few * wide), small(3);
  network.run(few, input, y);
  attn::workspace space;
  space.try_reserve(attn_feed_forward_workspace(network.get(), few)).value();
  CHECK(attn_feed_forward_run(network.get(), few, input.data(), right.data(), space.data(), space.size()) == ATTN_OK);
  CHECK(y == right && y[0] != 0);
  refused([&] { network.run(few, input, small); }, ATTN_INVALID_ARGUMENT, "attn::feed_forward.y has 3 elements");
  refused([&] { network.run(-1, input, y); }, ATTN_INVALID_ARGUMENT, "rows is -1");
  config.hidden = 0;
  CHECK(!attn::feed_forward::try_make(config));
}

void blocks() {
  static_assert(!std::is_copy_constructible_v<attn::block> && std::is_nothrow_move_constructible_v<attn::block>);
  attn::options c_kernel;
  c_kernel.kernel = "flash_c";
  auto config = attn::block_config::decoder(1, 2, few, 3, wide, wide, deep);
  for (auto *w : {&config.self_weights, &config.cross_weights})
    w->w_q = w->w_k = w->w_v = w->w_o = weight.data();
  config.feed_forward.first.weight = config.feed_forward.second.weight = weight.data();
  config.cross.attention.uses |= ATTN_USE_KV_LEN;
  attn::block layer(config, c_kernel);
  const std::array<std::int32_t, 1> length = {2}, counts = {few};
  attn::args masks;
  masks.kv_len = length;
  std::vector<float> y(few * wide), right(few * wide), small(3), keys(3 * wide), values(3 * wide);
  const auto call = [&](attn::view<float> to) {
    attn::block_args a{input, to, far};
    a.cross = &masks;
    return a;
  };
  layer.run(call(right));
  CHECK(right[0] != 0 && layer.kernel() == std::string("flash_c"));

  layer.project_memory(call(nullptr), keys, values);
  auto projected = call(y);
  projected.memory = {}, projected.projected_k = keys, projected.projected_v = values;
  layer.run(projected);
  CHECK(y == right);
  attn::kv_cache cache({1, 2, 2, wide / 2, wide / 2, few}, c_kernel);
  cache.begin(counts);
  std::fill(y.begin(), y.end(), 0.0f);
  layer.step(cache, projected);
  CHECK(y == right);

  config.cross.attention.dtype_q = config.cross.attention.dtype_kv = ATTN_F16;
  attn::block halves(config, c_kernel);
  std::vector<std::uint16_t> half_keys(3 * wide), half_values(3 * wide);
  std::vector<float> rounded(few * wide);
  halves.run(call(rounded));
  halves.project_memory(call(nullptr), half_keys, half_values);
  refused([&] { halves.run(projected); }, ATTN_INVALID_ARGUMENT, "projected_k has elements of 4 bytes");
  projected.projected_k = half_keys, projected.projected_v = half_values;
  halves.run(projected);
  CHECK(y == rounded && y != right);
  projected.projected_k = keys, projected.projected_v = values;

  auto one = attn::block_config::decoder(1, 2, 1, 3, wide, wide, deep);
  one.cross.attention.uses |= ATTN_USE_KV_LEN;
  std::vector<float> first(wide);
  auto short_call = call(first);
  short_call.x = {input.data(), wide};
  layer.reshape(one).run(short_call);
  CHECK(std::equal(first.begin(), first.end(), right.begin()));
  refused([&] { layer.run(call(small)); }, ATTN_INVALID_ARGUMENT, "attn::block_args.y has 3 elements");
  refused([&] { layer.project_memory(call(y), small, values); }, ATTN_INVALID_ARGUMENT, "project_memory.k has 3 elements");
  refused([&] { layer.run({input, y}); }, ATTN_INVALID_ARGUMENT, "memory");
  refused([&] { layer.step(cache, projected, 1); }, ATTN_INVALID_ARGUMENT, "layer is 1");
  refused([&] { layer.reshape(attn::block_config::encoder(1, 2, few, wide, deep)); }, ATTN_INVALID_ARGUMENT, "cross");
  CHECK(!attn::block::try_make(attn::block_config::encoder(1, 2, few, wide, deep)));
}

void additives() {
  attn::additive_config config(1, few, 3, wide, wide, deep, wide);
  config.use_kv_len = true;
  config.query.weight = config.key.weight = config.score_weight = weight.data();
  attn::additive layer(config);
  const std::array<std::int32_t, 1> length = {2};
  std::vector<float> o(few * wide), again(few * wide), p(few * 3), projected(3 * deep), small(3);
  layer.run({input, far, far, o, {}, length, p});
  CHECK(o[0] != 0 && std::abs(p[0] + p[1] - 1) < 1e-6f && p[2] == 0 && std::strlen(layer.kernel()) > 0);
  layer.project_keys(far, projected);
  layer.run({input, {}, far, again, projected, length});
  CHECK(o == again);
  std::vector<float> first(wide);
  layer.reshape(1, 1, 3).run({{input.data(), wide}, far, far, first, {}, length});
  CHECK(std::equal(first.begin(), first.end(), o.begin()));
  refused([&] { layer.run({input, far, far, small, {}, length}); }, ATTN_INVALID_ARGUMENT, "additive_args.o has 3");
  refused([&] { layer.run({input, far, far, o}); }, ATTN_INVALID_ARGUMENT, "kv_len is NULL");
  refused([&] { layer.project_keys(small, projected); }, ATTN_INVALID_ARGUMENT, "project_keys.k has 3 elements");
  refused([&] { layer.reshape(-1, 1, 1); }, ATTN_INVALID_ARGUMENT, "batch is -1");
  config.score_weight = nullptr;
  CHECK(!attn::additive::try_make(config));
}

void synthesizers() {
  attn::synthesizer_config config(ATTN_SYNTHESIZER_RANDOM, 1, few, wide, 2, wide / 2, few);
  config.scores = config.value.weight = config.output.weight = weight.data();
  config.causal = config.use_kv_len = true;
  attn::synthesizer layer(config);
  const std::array<std::int32_t, 1> length = {few};
  std::vector<float> y(few * wide), first(wide), small(3);
  layer.run(input, y, length);
  CHECK(y[0] != 0 && std::strlen(layer.kernel()) > 0);
  layer.reshape(1, 1).run({input.data(), wide}, first, std::array<std::int32_t, 1>{1});
  CHECK(std::equal(first.begin(), first.end(), y.begin()));
  refused([&] { layer.run(input, small, length); }, ATTN_INVALID_ARGUMENT, "attn::synthesizer.y has 3 elements");
  refused([&] { layer.run(input, y); }, ATTN_INVALID_ARGUMENT, "kv_len is NULL");
  refused([&] { layer.reshape(1, few + 1); }, ATTN_INVALID_ARGUMENT, "seq is 6");
  config.heads = 0;
  CHECK(!attn::synthesizer::try_make(config));
}

}  // namespace

int main() {
  one_call(), gradients(), plans(), mistakes(), without_exceptions(), merging(), registry(), tuning(), layers();
  appending(), caches(), layers_in_caches(), products(), feed_forwards(), blocks(), additives(), synthesizers(), generations();
  if (!failures) std::printf("attn.hpp: right, as C++ %ld\n", static_cast<long>(__cplusplus / 100 % 100));
  return failures ? 1 : 0;
}

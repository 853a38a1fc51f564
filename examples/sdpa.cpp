// SPDX-License-Identifier: MIT
// Attention in one call, from C++: c++ -std=c++17 sdpa.cpp -lattn
#include <cstdio>

#include <attn/attn.hpp>

int main() try {
  std::vector<float> q(8 * 512 * 64, 0.5f), k(q), v(q), o(q.size());
  attn::problem problem(1, 8, 8, 512, 512, 64, 64);  // batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v
  attn::sdpa(problem.causal(), {q, k, v, o});
  std::printf("o[0] = %g\n", static_cast<double>(o[0]));
} catch (const attn::error &e) {
  std::puts(e.what());
  return 1;
}

/* SPDX-License-Identifier: MIT */
/* The tensors of one case: allocated with guard zones, filled from a seed (or by `eval` from files), and the attn_args that
 * point into them. */
#ifndef BENCH_TENSORS_H
#define BENCH_TENSORS_H

#include "cases/case.h"

/* The tensors of a problem, each with a buffer: BENCH_Q, BENCH_K ... in the order of the library's operands. */
typedef enum bench_tensor {
#define TENSOR(constant, ...) BENCH_##constant,
#include "kernels/common/problem/tensors.def"
#undef TENSOR
  BENCH_TENSORS
} bench_tensor;

enum { BENCH_GUARD_BYTES = 256 }; /* four cache lines, so that tensors stay aligned to 64 */

/* INPUT_POISON fills gaps, padding that no row reads and guard zones of inputs: it is a NaN in every float type, -1 as a
 * length and "allowed" in a mask. INTEGER_POISON does so in K and V of integers: the least one, which no data hold. */
enum { BENCH_INPUT_POISON = 0xff, BENCH_INTEGER_POISON = 0x80, BENCH_OUTPUT_GUARD = 0xb6 };

unsigned char bench_poison_of(attn_dtype dtype);

typedef struct bench_buffer {
  const char *name;
  bool present, output;
  bool single;                  /* rows are one number, without columns */
  bool within_k;                /* has no memory of its own: V that is the first columns of K */
  size_t element_bytes;         /* elements are here what is stored together: of some types, blocks of a row */
  attn_dtype dtype;             /* where elements are floats */
  int64_t extent[4], stride[4]; /* elements */
  int64_t columns;              /* values of a row, where elements are floats */
  int64_t first;                /* place of element [0][0][0][0] in the span, in elements; negative strides make it > 0 */
  size_t bytes;                 /* the span: from the lowest to the highest element, gaps included */
  unsigned char *data;          /* start of the span */
  size_t guard_before, guard_after;
  unsigned char gap_byte; /* gaps hold it since the last filling or poisoning */
  void *memory;           /* to be freed or, if mapped_bytes > 0, unmapped */
  size_t mapped_bytes;
  char damage[120]; /* the sentence that bench_tensors_damage returns */
} bench_buffer;

typedef struct bench_tensors {
  attn_args args;
  attn_problem problem;  /* their case's */
  bench_buffer *buffers; /* [BENCH_TENSORS] */
  size_t bytes;          /* allocated in all */
  bool both;             /* calls have both passes: the first writes the outputs of attention, the second reads them */
  int v_step;            /* how often bench_tensors_renew_v() changed V */
  bool v_powers;         /* and whether by powers of two as well */

  struct bench_tensors *kv_of; /* NULL, or whose inputs args points to, but for q */
  struct bench_fresh *fresh;   /* NULL, or what bench_tensors_freshen() needs */
} bench_tensors;

/* Bytes that bench_tensors_create would allocate, to be compared with the memory there is. 0 on overflow. */
size_t bench_tensors_size(const bench_case *bench);

/* The pages of the case in the order in which its sequences take them: [pages]. */
void bench_pages_order(const bench_case *bench, int32_t *page);

/* False if memory is short. Values: normal(0, magnitude) rounded to the storage type, from (seed, tensor, element) alone, so
 * that layout does not change them. Gaps, padding beyond lengths and guard zones hold NaN poison. */
bool bench_tensors_create(const bench_case *bench, bench_tensors *tensors);
void bench_tensors_destroy(bench_tensors *tensors);

/* Memory alone, all of it poisoned: the caller fills in every input that args points to. */
bool bench_tensors_create_empty(const attn_problem *problem, bench_tensors *tensors);

/* The same values in memory of its own, for the rotations of cold caches; cheaper than making them again. */
bool bench_tensors_clone(const bench_tensors *source, bench_tensors *copy);

/* The same with an inaccessible page flush with one end of every tensor, so that reading or writing one element too far
 * faults: to be run in a forked child. The other end keeps its guard zone. */
typedef enum bench_guard { BENCH_GUARD_ZONES, BENCH_GUARD_PAGE_AFTER, BENCH_GUARD_PAGE_BEFORE } bench_guard;
bool bench_tensors_create_guarded(const bench_case *bench, bench_tensors *tensors, bench_guard guard);

/* The arguments without pointers that the problem does not use, which libattn refuses. */
attn_args bench_used_args(const attn_problem *problem, const attn_args *args);

/* The same for the attention whose gradients these are arguments of; quick enough to be timed with the call. */
attn_args bench_forward_args(const attn_args *gradients);

/* Fills the outputs (gaps too) with the byte pattern `poison`, so that what a kernel does not write can be seen. At most so
 * many threads: others would spin on beside what is timed next. */
void bench_tensors_poison_output(bench_tensors *tensors, uint8_t poison, int threads);

/* NULL, or which guard zone or stride gap was written ("o: guard after the tensor overwritten at byte 12"). */
const char *bench_tensors_damage(const bench_tensors *tensors);

/* Nothing where V belongs to other tensors, or lies in K, so that scores would change with it. Multiplies V by the next of
 * -2, 4, -1, 2, -4, 1 (of its first values), or changes its sign where powers of two could round: in float16, with sinks,
 * and where V holds numbers near the ends of the type's range. The output of a kernel that rounds to nearest is then
 * multiplied by the same factor, to the bit. Each of `threads` threads changes its share. */
void bench_tensors_renew_v(bench_tensors *tensors, int threads);

/* ---- Inputs that no call has seen ---- */

/* Makes room for bench_tensors_freshen(). like: tensors of the same problem and values that have room already, or NULL.
 * False if memory is short. *random changes with every number that is drawn from it. */
bool bench_tensors_vary(bench_tensors *tensors, const bench_tensors *like, uint64_t *random);
void bench_tensors_forget_fresh(bench_tensors *tensors); /* bench_tensors_destroy() does so, too */

/* Gives every row of q other values, lets two rows of K and two of V change places in each head (two columns of scores; none
 * in inputs of other tensors), and marks an element of the first output in each head. The output is then another one, which
 * no call has computed. Each of `threads` threads changes its share of q. */
void bench_tensors_freshen(bench_tensors *tensors, uint64_t *random, int threads);

/* False if an element holds the mark of bench_tensors_freshen(). */
bool bench_tensors_marks_are_overwritten(const bench_tensors *tensors);

/* Undoes bench_tensors_freshen(), but for the output. */
void bench_tensors_restore(bench_tensors *tensors, int threads);

/* Whether a call writes this input before it reads it. */
bool bench_is_rewritten(const bench_tensors *tensors, bench_tensor which);

/* A 64-bit hash of everything that calls only read, and of the outputs it owns, without gaps. What is linear in
 * V is divided by its factor; zeros have no sign in it, and all NaN are alike. */
uint64_t bench_tensors_input_hash(const bench_tensors *tensors);
uint64_t bench_tensors_rewritten_hash(const bench_tensors *tensors); /* the inputs that calls write first */
uint64_t bench_tensors_output_hash(const bench_tensors *tensors);

/* A hash of bytes one behind the other; `hash` is that of what came before them. */
uint64_t bench_hash_bytes(uint64_t hash, const unsigned char *data, size_t bytes);

/* Bytes of the owned outputs, packed in [batch][head][query][column] order, one after the other; and that packed copy. */
size_t bench_tensors_output_bytes(const bench_tensors *tensors);
void bench_tensors_gather_output(const bench_tensors *tensors, void *packed);

/* Fills in the values of all inputs, lengths first because they decide what is padding. False if memory is short. */
bool bench_tensors_fill(const bench_case *bench, bench_tensors *tensors);

/* Slopes of the ALiBi paper (Press et al. 2022), where they are present: 2^(-8 (h + 1) / heads). */
void bench_fill_slopes(bench_buffer *slopes, int64_t heads);

/* The factor that V is multiplied by now. */
double bench_v_factor(const bench_tensors *tensors);

/* Elements of an output that the problem owns: everything but gaps and, with VARLEN, tokens of no sequence. */
typedef struct bench_owned {
  int64_t extent[4], stride[4];
  int64_t start; /* in elements from the span's start */
  int64_t count;
} bench_owned;
bench_owned bench_owned_elements(const bench_tensors *tensors, bench_tensor which);

#endif

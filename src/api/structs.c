/* SPDX-License-Identifier: MIT */
/* Structs of callers that were compiled with another version of the headers (include/attn/extend.h).
 *
 * Structs grow only at their end. So the bytes that caller and library both know lie alike, except behind a part, which is a
 * struct that may have grown itself: theirs and ours are walked side by side, part by part. */
#include <string.h>

#include "attn/extend.h"
#include "src/api/error.h"

enum { MOST_BYTES = 1 << 16 }; /* far beyond any struct here; what is larger is no size */

static size_t size_of(const attn_struct_layout *layout, const char *theirs) {
  size_t bytes;
  memcpy(&bytes, theirs, sizeof bytes);
  return bytes ? bytes : layout->unsized;
}

static bool is_size(const attn_struct_layout *layout, size_t bytes) {
  return bytes >= layout->least && bytes <= MOST_BYTES && bytes % sizeof(int32_t) == 0;
}

static attn_status check_size(const attn_struct_layout *layout, size_t bytes) {
  if (is_size(layout, bytes)) return ATTN_OK;
  return attn_fail(ATTN_INVALID_ARGUMENT, "%s.struct_size is %zu; it must be sizeof(%s), %zu in this library, as %s sets it",
                   layout->name, bytes, layout->name, layout->bytes, layout->maker);
}

/* Bytes of a part in a struct of theirs. A part without a size means the fields of version 0.1, as everywhere; but it has
 * room for all fields where the struct around it has the present size. */
static size_t room_of(const attn_struct_layout *part, const attn_struct_layout *whole, const char *theirs, size_t at) {
  size_t bytes;
  memcpy(&bytes, theirs + at, sizeof bytes);
  return bytes || size_of(whole, theirs) != whole->bytes ? size_of(part, theirs + at) : part->bytes;
}

/* How far theirs and ours have been walked. */
typedef struct place {
  size_t theirs, ours;
} place;

/* The end of the struct: what comes after the last part. */
static attn_status read_end(const attn_struct_layout *layout, const char *theirs, char *ours, place at) {
  const size_t their_rest = size_of(layout, theirs) - at.theirs, our_rest = layout->bytes - at.ours;
  const size_t both = their_rest < our_rest ? their_rest : our_rest;
  memcpy(ours + at.ours, theirs + at.theirs, both);
  memset(ours + at.ours + both, 0, our_rest - both);
  for (size_t i = both; i < their_rest; i++)
    if (theirs[at.theirs + i])
      return attn_fail(
          ATTN_INVALID_ARGUMENT,
          "%s has %zu bytes, and byte %zu is not 0; libattn %s knows %zu bytes, and the program was compiled for "
          "a newer one: it must be run with that, or leave new fields 0",
          layout->name, size_of(layout, theirs), at.theirs + i, attn_version(), layout->bytes);
  memcpy(ours, &layout->bytes, sizeof layout->bytes);
  return ATTN_OK;
}

/* A part lies within the struct that it is part of, which ends at `end`. */
static attn_status check_part(const attn_struct_layout *part, const char *theirs, size_t at, size_t end) {
  const attn_status status = check_size(part, size_of(part, theirs + at));
  if (status != ATTN_OK || at + size_of(part, theirs + at) <= end) return status;
  return attn_fail(ATTN_INVALID_ARGUMENT, "%s.struct_size is %zu; the struct around it ends before that", part->name,
                   size_of(part, theirs + at));
}

attn_status attn_struct_read(const attn_struct_layout *layout, const void *theirs, void *ours) {
  const char *from = theirs;
  char *to = ours;
  attn_status status = check_size(layout, size_of(layout, from));
  place at = {0, 0};
  for (const attn_struct_part *part = layout->parts; part && part->layout && status == ATTN_OK; part++) {
    memcpy(to + at.ours, from + at.theirs, part->at - at.ours);
    at.theirs += part->at - at.ours;
    at.ours = part->at;
    status = check_part(part->layout, from, at.theirs, size_of(layout, from));
    if (status == ATTN_OK) status = attn_struct_read(part->layout, from + at.theirs, to + at.ours);
    at.theirs += room_of(part->layout, layout, from, at.theirs);
    at.ours += part->layout->bytes;
  }
  return status == ATTN_OK ? read_end(layout, from, to, at) : status;
}

/* Copies the bytes from `at` on that end before `end` of ours, but no struct_size. */
static void write_bytes(const char *ours, char *theirs, place at, size_t count) {
  const size_t skip = at.ours == 0 ? sizeof(size_t) : 0;
  memcpy(theirs + at.theirs + skip, ours + at.ours + skip, count - skip);
}

void attn_struct_write(const attn_struct_layout *layout, const void *ours, void *theirs) {
  const char *from = ours;
  char *to = theirs;
  if (!is_size(layout, size_of(layout, to))) return;
  place at = {0, 0};
  for (const attn_struct_part *part = layout->parts; part && part->layout; part++) {
    write_bytes(from, to, at, part->at - at.ours);
    at.theirs += part->at - at.ours;
    at.ours = part->at;
    attn_struct_write(part->layout, from + at.ours, to + at.theirs);
    if (!is_size(part->layout, size_of(part->layout, to + at.theirs))) return;
    at.theirs += room_of(part->layout, layout, to, at.theirs);
    at.ours += part->layout->bytes;
  }
  if (at.theirs > size_of(layout, to)) return;
  const size_t their_rest = size_of(layout, to) - at.theirs, our_rest = layout->bytes - at.ours;
  const size_t both = their_rest < our_rest ? their_rest : our_rest;
  write_bytes(from, to, at, both);
  memset(to + at.theirs + both, 0, their_rest - both);
}

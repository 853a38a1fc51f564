/* SPDX-License-Identifier: MIT */
#include "language.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "learning.h"

/* A number below `count`, out of `from`, which has one less then. */
static int take(uint64_t *from, int count) {
  const int taken = (int)(*from % (uint64_t)count);
  *from /= (uint64_t)count;
  return taken;
}

static void push(sentence *s, int word) { s->word[s->length++] = word; }

static void draw_clause(uint64_t drawn, sentence *source, sentence *reversed) {
  const int adjectives = take(&drawn, 3), noun = take(&drawn, NOUNS), verb = take(&drawn, VERBS), many = take(&drawn, 2);
  for (int i = 0; i < adjectives; i++) {
    const int adjective = take(&drawn, ADJECTIVES);
    push(source, ADJECTIVE + adjective);
    push(reversed, OTHER_ADJECTIVE + 4 * adjective + 2 * (noun % 2) + many);
  }
  push(source, NOUN + noun), push(reversed, OTHER_NOUN + 2 * noun + many);
  push(source, VERB + verb), push(reversed, OTHER_VERB + 2 * verb + many);
  if (many) push(source, PLURAL);
}

void draw_pair(uint64_t seed, uint64_t place, int clauses, sentence *source, sentence *target) {
  sentence reversed = {0};
  source->length = target->length = 0;
  uint64_t first = learn_draw(seed, place);
  const int count = 1 + take(&first, clauses);
  for (int i = 0; i < count; i++) draw_clause(learn_draw(first, (uint64_t)i), source, &reversed);
  for (int i = reversed.length; i > 0; i--) push(target, reversed.word[i - 1]);
}

static void print_word(int word) {
  static const char *const genders[] = {"", "f"}, *const numbers[] = {"", "+"};
  if (word >= OTHER_VERB)
    printf(" V%d%s", (word - OTHER_VERB) / 2, numbers[(word - OTHER_VERB) % 2]);
  else if (word >= OTHER_NOUN)
    printf(" N%d%s", (word - OTHER_NOUN) / 2, numbers[(word - OTHER_NOUN) % 2]);
  else if (word >= OTHER_ADJECTIVE)
    printf(" A%d%s%s", (word - OTHER_ADJECTIVE) / 4, genders[(word - OTHER_ADJECTIVE) / 2 % 2],
           numbers[(word - OTHER_ADJECTIVE) % 2]);
  else if (word >= ADJECTIVE)
    printf(" %c%d", word >= VERB ? 'v' : word >= NOUN ? 'n' : 'a', word - (word >= VERB ? VERB : word >= NOUN ? NOUN : 3));
  else
    printf(word == PLURAL ? " +" : " ?");
}

void print_sentence(const sentence *s) {
  for (int i = 0; i < s->length; i++) print_word(s->word[i]);
}

/* ---- BLEU ---- */

/* Times that the n words at `gram` occur. */
static int occurrences(const sentence *s, const int32_t *gram, int n) {
  int found = 0;
  for (int i = 0; i + n <= s->length; i++) found += !memcmp(s->word + i, gram, (size_t)n * sizeof *gram);
  return found;
}

void bleu_add(bleu *b, const sentence *made, const sentence *right) {
  for (int n = 1; n <= 4; n++)
    for (int i = 0; i + n <= made->length; i++) {
      const int32_t *gram = made->word + i;
      int seen = 0; /* the same n-gram further in front: each occurrence in `right` counts once */
      for (int j = 0; j < i; j++) seen += !memcmp(made->word + j, gram, (size_t)n * sizeof *gram);
      b->matches[n - 1] += seen < occurrences(right, gram, n);
      b->grams[n - 1]++;
    }
  b->length += made->length;
  b->right_length += right->length;
  b->sentences++;
  b->exact += made->length == right->length && !memcmp(made->word, right->word, (size_t)made->length * sizeof *made->word);
}

double bleu_of(const bleu *b) {
  double logs = 0;
  for (int n = 0; n < 4; n++) logs += log(b->matches[n] / fmax(b->grams[n], 1)) / 4;
  return 100 * exp(logs + (b->length < b->right_length ? 1 - b->right_length / b->length : 0));
}

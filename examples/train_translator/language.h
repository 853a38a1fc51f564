/* SPDX-License-Identifier: MIT */
/* Two small languages, and a measure of translations.
 *
 * A sentence has clauses: up to two adjectives, a noun, a verb, and "+" at the end if the noun means many. In the other
 * language words stand in reverse order, and they agree: adjectives with gender and number of their noun, which stands
 * behind them, noun and verb with the number, which is said last. Nouns of odd number are feminine.
 *
 *     a3 a1 n5 v2 + n4 v0   ->   V0 N4 V2+ N5+ A1f+ A3f+ */
#ifndef EXAMPLES_LANGUAGE_H
#define EXAMPLES_LANGUAGE_H

#include <stdint.h>

enum { ADJECTIVES = 6, NOUNS = 8, VERBS = 6, CLAUSES = 3 };
enum { SOURCE = 5 * CLAUSES, TARGET = 4 * CLAUSES }; /* most words */
enum {
  BEGIN,
  END,
  PLURAL,
  ADJECTIVE,
  NOUN = ADJECTIVE + ADJECTIVES,
  VERB = NOUN + NOUNS,
  OTHER_ADJECTIVE = VERB + VERBS, /* words in all their forms: masculine, plural; feminine, plural */
  OTHER_NOUN = OTHER_ADJECTIVE + 4 * ADJECTIVES,
  OTHER_VERB = OTHER_NOUN + 2 * NOUNS,
  VOCABULARY = OTHER_VERB + 2 * VERBS
};

typedef struct sentence {
  int32_t length, word[SOURCE];
} sentence;

/* Draws a sentence of 1 to `clauses` clauses, and its translation. Equal numbers draw equal sentences. */
void draw_pair(uint64_t seed, uint64_t place, int clauses, sentence *source, sentence *target);

void print_sentence(const sentence *s);

/* Counts of n-grams, and of whole sentences. */
typedef struct bleu {
  double matches[4], grams[4], length, right_length, sentences, exact;
} bleu;

void bleu_add(bleu *b, const sentence *made, const sentence *right);

/* In percent (Papineni et al. 2002, https://aclanthology.org/P02-1040): the mean of precisions of 1 to 4 words, times the
 * penalty for brevity. */
double bleu_of(const bleu *b);

#endif

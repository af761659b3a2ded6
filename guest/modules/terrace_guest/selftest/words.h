/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is in a page: each word tells its page, its place, and how often it was written.
 */
#ifndef TERRACE_GUEST_WORDS_H
#define TERRACE_GUEST_WORDS_H

#define PAGE	4096UL
#define WORDS	(PAGE / sizeof(unsigned long))

static inline unsigned long word(unsigned long number, unsigned long place, unsigned long times)
{
	return (times + 1) * 0x9e3779b97f4a7c15UL ^ (number * WORDS + place);
}

/* Words are written one after the other, so that `times` of all words is that of the page. */
static inline unsigned long times_of(unsigned long place, unsigned long times)
{
	return times / WORDS + (place < times % WORDS);
}

static inline void fill(unsigned long *page, unsigned long number, unsigned long times)
{
	for (unsigned long i = 0; i < WORDS; i++)
		page[i] = word(number, i, times_of(i, times));
}

/* The words that are wrong. */
static inline unsigned long damaged(const unsigned long *page, unsigned long number, unsigned long times)
{
	unsigned long count = 0;

	for (unsigned long i = 0; i < WORDS; i++)
		count += page[i] != word(number, i, times_of(i, times));
	return count;
}

/* Reads the next word and writes it anew; returns whether it was wrong. */
static inline unsigned long write_next(unsigned long *page, unsigned long number, unsigned long times)
{
	volatile unsigned long *at = page + times % WORDS;
	unsigned long wrong = *at != word(number, times % WORDS, times / WORDS);

	*at = word(number, times % WORDS, times / WORDS + 1);
	return wrong;
}

#endif

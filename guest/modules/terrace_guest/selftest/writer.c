// SPDX-License-Identifier: GPL-2.0
/*
 * A thread that goes on writing the hot pages, one word of each after the other: each
 * page is written again after some microseconds, so that whoever copies one before
 * nobody can write it any more loses words.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "selftest.h"

static atomic_int stop;
static _Atomic double longest;
static int measures;

/* Looks at the clock after each page. */
static double measure(double before)
{
	double after = now();

	if (after - before > atomic_load(&longest))
		atomic_store(&longest, after - before);
	return after;
}

static void *write_on(void *wrong_words)
{
	unsigned long *wrong = wrong_words, times = 0;
	double before = now();

	while (!atomic_load(&stop)) {
		for (unsigned long i = 0; i < HOT; i++) {
			*wrong += write_next(page_at(hot[i]), hot[i], times);
			if (measures)
				before = measure(before);
		}
		times++;
	}
	for (unsigned long i = 0; i < HOT; i++)
		*wrong += damaged(page_at(hot[i]), hot[i], times);
	return NULL;
}

/* Returns the words that were wrong. */
unsigned long beside_writer(void (*work)(void))
{
	unsigned long wrong = 0;
	pthread_t writer;

	for (unsigned long i = 0; i < HOT; i++)
		fill(page_at(hot[i]), hot[i], 0);
	atomic_store(&stop, 0);
	atomic_store(&longest, 0);
	if (pthread_create(&writer, NULL, write_on, &wrong))
		fail("a thread");
	work();
	atomic_store(&stop, 1);
	pthread_join(writer, NULL);
	return wrong;
}

void measure_stalls(void)
{
	measures = 1;
}

double longest_stall(void)
{
	return atomic_exchange(&longest, 0);
}

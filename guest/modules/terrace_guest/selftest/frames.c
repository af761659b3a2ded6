// SPDX-License-Identifier: GPL-2.0
/*
 * EXCHANGE with in_place=1: each page of a pair has the other's frame, not any of its node,
 * and what was known of it went along.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

static int swaps_in_place(void)
{
	int parameter = open("/sys/module/terrace_guest/parameters/in_place", O_RDONLY | O_CLOEXEC);
	char value = 'N';

	if (parameter < 0 || read(parameter, &value, 1) != 1)
		fail("in_place");
	close(parameter);
	return value == 'Y';
}

/* What every other page of the first half forgets as soon as memory is short. */
static void let_go(unsigned long *first)
{
	for (unsigned long i = 0; i < TG_BATCH_MAX; i += 2)
		madvise(first + i * WORDS, PAGE, MADV_FREE);
}

/* Pages that were let go may be empty; the others have what was written. */
static unsigned long wrong_of(const unsigned long *pages, unsigned long number, int some_are_free)
{
	unsigned long wrong = 0;

	for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
		if (!some_are_free || i % 2 || pages[i * WORDS])
			wrong += damaged(pages + i * WORDS, number + i, 0);
	return wrong;
}

static void make(unsigned long *pages, unsigned long number, int node)
{
	for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
		fill(pages + i * WORDS, number + i, 0);
		send_page(pages + i * WORDS, node);
	}
	settle();
}

int test_frames(void)
{
	unsigned long *up = map(TG_BATCH_MAX), *down = map(TG_BATCH_MAX);
	unsigned long frames[2][TG_BATCH_MAX], swapped = 0, elsewhere = 0, wrong;
	__u64 first[TG_BATCH_MAX], second[TG_BATCH_MAX];
	__s32 statuses[TG_BATCH_MAX];
	struct tg_exchange call = exchange_of(getpid(), first, second, statuses, TG_BATCH_MAX);

	make(up, 0, 1);
	make(down, TG_BATCH_MAX, 0);
	let_go(up);
	for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
		first[i] = (unsigned long)(up + i * WORDS);
		second[i] = (unsigned long)(down + i * WORDS);
		frames[0][i] = frame(up + i * WORDS);
		frames[1][i] = frame(down + i * WORDS);
	}
	if (ioctl(device, TG_EXCHANGE, &call))
		fail("EXCHANGE");
	for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
		int has_others = frame(up + i * WORDS) == frames[1][i] && frame(down + i * WORDS) == frames[0][i];

		swapped += !statuses[i] && has_others;
		elsewhere += !statuses[i] && !has_others;
	}
	madvise(up, TG_BATCH_MAX * PAGE, MADV_PAGEOUT);
	madvise(down, TG_BATCH_MAX * PAGE, MADV_PAGEOUT);
	wrong = wrong_of(up, 0, 1) + wrong_of(down, TG_BATCH_MAX, 0);
	munmap(up, TG_BATCH_MAX * PAGE);
	munmap(down, TG_BATCH_MAX * PAGE);
	printf("EXCHANGE of known frames: %u of %u pairs, %lu have each other's, %lu lie elsewhere; %lu words are wrong\n",
	       call.exchanged, TG_BATCH_MAX, swapped, elsewhere, wrong);
	return wrong || call.exchanged < TG_BATCH_MAX / 2 || (swaps_in_place() && elsewhere);
}

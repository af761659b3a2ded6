// SPDX-License-Identifier: GPL-2.0
/*
 * Lanes: memory at addresses that are known to all callers. Each word tells the lane, the
 * page, its place and how often it was written.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stress.h"

#define FIRST_LANE	0x500000000000UL
#define LANE_STEP	(1UL << 30)

struct lane *add_lane(const char *name, unsigned long pages)
{
	struct lane *lane = &shared->lane[shared->lanes];

	if (shared->lanes == LANES_MAX)
		fail("too many lanes");
	snprintf(lane->name, sizeof(lane->name), "%s", name);
	lane->start = FIRST_LANE + shared->lanes * LANE_STEP;
	lane->pages = pages;
	shared->lanes++;
	return lane;
}

unsigned long *lane_page(const struct lane *lane, unsigned long page)
{
	return (unsigned long *)(lane->start + page * PAGE);
}

/* The number that the words of a page have; those of equal pages are equal. */
static unsigned long number_of(const struct lane *lane, unsigned long page)
{
	unsigned long number = (lane - shared->lane) << 20;

	return number + (lane->equal ? page % 8 : page);
}

static void count_wrong(struct lane *lane, unsigned long page, unsigned long wrong, const char *what)
{
	if (!wrong)
		return;
	if (!lane->wrong)
		printf("%s: page %lu has %lu wrong words (%s)\n", lane->name, page, wrong, what);
	lane->wrong += wrong;
}

void lane_fill(struct lane *lane, unsigned long from, unsigned long pages, unsigned long times)
{
	for (unsigned long i = from; i < from + pages; i++)
		fill(lane_page(lane, i), number_of(lane, i), times);
}

/* Maps some of its pages anew. */
void lane_map_part(struct lane *lane, int flags, unsigned long from, unsigned long pages)
{
	if (mmap(lane_page(lane, from), pages * PAGE, PROT_READ | PROT_WRITE,
		 flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		fail("memory");
	if (!lane->large)
		madvise(lane_page(lane, from), pages * PAGE, MADV_NOHUGEPAGE);
	else
		madvise(lane_page(lane, from), pages * PAGE, MADV_HUGEPAGE);
	if (lane->equal)
		madvise(lane_page(lane, from), pages * PAGE, MADV_MERGEABLE);
}

/* Maps and fills all of it, and lets callers know. */
void lane_map(struct lane *lane, int flags, unsigned long times)
{
	lane_map_part(lane, flags, 0, lane->pages);
	lane_fill(lane, 0, lane->pages, times);
	lane->pid = getpid();
}

void lane_write(struct lane *lane, unsigned long from, unsigned long until)
{
	for (unsigned long times = from; times < until; times++)
		for (unsigned long i = 0; i < lane->pages; i++)
			count_wrong(lane, i, write_next(lane_page(lane, i), number_of(lane, i), times),
				    "before a write");
}

void lane_check(struct lane *lane, unsigned long times)
{
	for (unsigned long i = 0; i < lane->pages; i++)
		count_wrong(lane, i, damaged(lane_page(lane, i), number_of(lane, i), times), "a check");
	lane->rounds++;
}

void lane_check_zero(struct lane *lane, unsigned long from, unsigned long pages)
{
	for (unsigned long i = from; i < from + pages; i++) {
		unsigned long wrong = 0;

		for (unsigned long k = 0; k < WORDS; k++)
			wrong += lane_page(lane, i)[k] != 0;
		count_wrong(lane, i, wrong, "a page that was given up");
	}
}

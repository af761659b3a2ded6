// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that change their mappings: map and unmap parts, move them, lock them, protect
 * them, send them to swap.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "stress.h"

/* Some pages of a lane. */
struct part {
	unsigned long from;
	unsigned long pages;
};

static struct part any_part(const struct lane *lane)
{
	struct part part = { .from = any(lane->pages) };

	part.pages = 1 + any(lane->pages - part.from);
	return part;
}

static void move(struct lane *lane, long by)
{
	unsigned long from = lane->start, size = lane->pages * PAGE;

	if (mremap((void *)from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(from + by)) == MAP_FAILED)
		fail("mremap");
	lane->start = from + by;
}

static void *map_on(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, times);
	for (; !shared->stop; times += 5) {
		struct part part = any_part(lane);

		munmap(lane_page(lane, part.from), part.pages * PAGE);
		lane_map_part(lane, MAP_PRIVATE, part.from, part.pages);
		lane_check_zero(lane, part.from, part.pages);
		lane_fill(lane, part.from, part.pages, times);
		part = any_part(lane);
		madvise(lane_page(lane, part.from), part.pages * PAGE, MADV_DONTNEED);
		lane_check_zero(lane, part.from, part.pages);
		lane_fill(lane, part.from, part.pages, times);
		lane_write(lane, times, times + 5);
		lane_check(lane, times + 5);
	}
	lane_check(lane, times);
	return NULL;
}

static void *move_on(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, times);
	for (; !shared->stop; times += 10) {
		/* Not by whole tables, so that entries are moved one by one. */
		long by = (lane->pages + 1 + any(1000)) * PAGE;

		move(lane, by);
		lane_write(lane, times, times + 5);
		lane_check(lane, times + 5);
		move(lane, -by);
		lane_write(lane, times + 5, times + 10);
		lane_check(lane, times + 10);
	}
	lane_check(lane, times);
	return NULL;
}

static void *lock_on(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, times);
	for (; !shared->stop; times += 10) {
		struct part part = any_part(lane), other = any_part(lane);

		mlock(lane_page(lane, part.from), part.pages * PAGE);
		lane_write(lane, times, times + 5);
		mprotect(lane_page(lane, other.from), other.pages * PAGE, PROT_READ);
		lane_check(lane, times + 5);
		mprotect(lane_page(lane, other.from), other.pages * PAGE, PROT_READ | PROT_WRITE);
		munlock(lane_page(lane, part.from), part.pages * PAGE);
		lane_write(lane, times + 5, times + 10);
	}
	lane_check(lane, times);
	return NULL;
}

static void *page_out_on(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, times);
	for (; !shared->stop; times += 4) {
		struct part part = any_part(lane);

		madvise(lane_page(lane, part.from), part.pages * PAGE, MADV_PAGEOUT);
		lane_check(lane, times);
		lane_write(lane, times, times + 4);
		/* Pages that the kernel may drop, and that it may not once they were written. */
		part = any_part(lane);
		madvise(lane_page(lane, part.from), part.pages * PAGE, MADV_FREE);
		usleep(any(500));
		lane_fill(lane, part.from, part.pages, times + 4);
		madvise(lane_page(lane, part.from), part.pages * PAGE, MADV_PAGEOUT);
	}
	lane_check(lane, times);
	return NULL;
}

void start_mappings(void)
{
	run_thread(map_on, add_lane("mapped and unmapped", 512));
	run_thread(move_on, add_lane("moved by mremap", 700));
	run_thread(lock_on, add_lane("locked and protected", 256));
	run_thread(page_out_on, add_lane("paged out", 1024));
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Larger pages that are made, split and collapsed; and equal pages that are merged.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "stress.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

static void *be_large(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	for (; !shared->stop; times += 6) {
		unsigned long page = any(lane->pages);

		lane_map(lane, MAP_PRIVATE, times);
		lane_write(lane, times, times + 2);
		/* A hole splits its larger page. */
		madvise(lane_page(lane, page), PAGE, MADV_DONTNEED);
		lane_check_zero(lane, page, 1);
		lane_fill(lane, page, 1, times + 2);
		usleep(any(20000));
		lane_write(lane, times + 2, times + 4);
		madvise(lane_page(lane, 0), lane->pages * PAGE, MADV_COLLAPSE);
		lane_check(lane, times + 4);
		madvise(lane_page(lane, page), PAGE, MADV_PAGEOUT);
		lane_write(lane, times + 4, times + 6);
		lane_check(lane, times + 6);
	}
	return NULL;
}

static void *be_equal(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, times);
	for (; !shared->stop; times++) {
		/* Long enough that some are merged before they are written. */
		usleep(100000 + any(300000));
		lane_check(lane, times);
		lane_write(lane, times, times + 1);
	}
	lane_check(lane, times);
	return NULL;
}

void start_large(void)
{
	struct lane *lane = add_lane("larger pages", 3 * BLOCK);

	lane->large = 1;
	run_thread(be_large, lane);
}

void start_equal(void)
{
	struct lane *lane = add_lane("equal pages", 512);

	lane->equal = 1;
	run_thread(be_equal, lane);
}

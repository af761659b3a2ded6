// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that do nothing but write and check, and one whose pages are in a pipe at times.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "stress.h"

static void *write_on(void *data)
{
	struct lane *lane = data;
	unsigned long times;

	lane_map(lane, MAP_PRIVATE, 0);
	for (times = 0; !shared->stop; times += 50) {
		lane_write(lane, times, times + 50);
		lane_check(lane, times + 50);
	}
	lane_check(lane, times);
	return NULL;
}

/* The same for memory that is of no single process, and is to be left. */
static void *write_shared(void *data)
{
	struct lane *lane = data;
	unsigned long times;

	lane_map(lane, MAP_SHARED, 0);
	for (times = 0; !shared->stop; times += 50) {
		lane_write(lane, times, times + 50);
		lane_check(lane, times + 50);
		usleep(20000);
	}
	return NULL;
}

/* A pipe holds pages themselves, not what was in them. */
static void *pipe_on(void *data)
{
	struct lane *lane = data;
	unsigned long times = 0;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		fail("a pipe");
	lane_map(lane, MAP_PRIVATE, 0);
	while (!shared->stop) {
		static char copy[PAGE];
		unsigned long page = any(lane->pages);
		struct iovec piece = { lane_page(lane, page), PAGE };

		if (vmsplice(ends[1], &piece, 1, 0) != (ssize_t)PAGE)
			fail("vmsplice");
		usleep(any(2000));
		if (read(ends[0], copy, PAGE) != (ssize_t)PAGE)
			fail("a pipe");
		lane->wrong += !!memcmp(copy, lane_page(lane, page), PAGE);
		lane_write(lane, times, times + 1);
		times++;
		if (times % 50 == 0)
			lane_check(lane, times);
	}
	lane_check(lane, times);
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

void start_writers(void)
{
	run_thread(write_on, add_lane("a writer", 512));
	run_thread(write_on, add_lane("a second writer", 1500));
	run_thread(write_shared, add_lane("shared memory", 256));
	run_thread(pipe_on, add_lane("pages in a pipe", 64));
}

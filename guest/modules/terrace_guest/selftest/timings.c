// SPDX-License-Identifier: GPL-2.0
/*
 * How long the calls take, beside what the kernel's own calls take for the same pages, and
 * how long a thread that writes those pages is held up. Shown, and not judged: in an
 * emulated guest the ratios alone mean something.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "selftest.h"

#define BATCHES	(HOT / TG_BATCH_MAX)

/* Seconds of each round, and the writer's longest pause in it. */
static double took[ROUNDS], paused[ROUNDS];

static int compare(const void *a, const void *b)
{
	double first = *(const double *)a, second = *(const double *)b;

	return (first > second) - (first < second);
}

static double median(double *of)
{
	qsort(of, ROUNDS, sizeof(*of), compare);
	return of[ROUNDS / 2];
}

static void read_pagemap(void)
{
	static unsigned long entries[PAGES];
	static int pagemap = -1;

	if (pagemap < 0)
		pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (pread(pagemap, entries, sizeof(entries), (unsigned long)memory / PAGE * 8) != sizeof(entries))
		fail("/proc/self/pagemap");
}

static void scan(__u32 flags)
{
	static __u64 entries[PAGES];
	struct tg_scan call = scan_of(getpid(), memory, PAGES, entries, flags);

	if (ioctl(device, TG_SCAN, &call))
		fail("SCAN");
}

static void scan_alone(void)
{
	scan(0);
}

static void scan_and_clear(void)
{
	scan(TG_SCAN_CLEAR);
}

/* All hot pages to the other node, by the kernel's own call. */
static void move_hot(void)
{
	static int to;
	void *addresses[HOT];
	int nodes[HOT], statuses[HOT];

	to = !to;
	for (unsigned long i = 0; i < HOT; i++) {
		addresses[i] = page_at(hot[i]);
		nodes[i] = to;
	}
	if (syscall(SYS_move_pages, 0, HOT, addresses, nodes, statuses, 2) < 0)
		fail("move_pages");
}

static void consolidate_hot(void)
{
	int opened = open_device();

	for (unsigned long batch = 0; batch < BATCHES; batch++) {
		__u64 addresses[TG_BATCH_MAX];
		__s32 statuses[TG_BATCH_MAX];
		struct tg_consolidate call = consolidate_of(getpid(), addresses, statuses, TG_BATCH_MAX);

		for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
			addresses[i] = (unsigned long)page_at(hot[batch * TG_BATCH_MAX + i]);
		if (ioctl(opened, TG_CONSOLIDATE, &call))
			fail("CONSOLIDATE");
	}
	close(opened);
}

static void exchange_hot(void)
{
	__u64 first[TG_BATCH_MAX], second[TG_BATCH_MAX];
	__s32 statuses[TG_BATCH_MAX];
	struct tg_exchange call = exchange_of(getpid(), first, second, statuses, TG_BATCH_MAX);

	for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
		first[i] = (unsigned long)page_at(hot[i]);
		second[i] = (unsigned long)page_at(hot[HOT / 2 + i]);
	}
	if (ioctl(device, TG_EXCHANGE, &call))
		fail("EXCHANGE");
}

static void (*timed)(void);

static void time_rounds(void)
{
	/* The first one finds nothing in the caches. */
	timed();
	longest_stall();
	for (int round = 0; round < ROUNDS; round++) {
		double start = now();

		timed();
		took[round] = now() - start;
		/* The writer's next look at the clock ends the last pause. */
		usleep(2000);
		paused[round] = longest_stall();
	}
}

/* Seconds that it takes, alone. */
static double seconds_of(void (*what)(void))
{
	timed = what;
	time_rounds();
	return median(took);
}

/* The writer's longest pause while it is done. */
static double pause_of(void (*what)(void))
{
	timed = what;
	beside_writer(time_rounds);
	return median(paused);
}

static void show_scan(void)
{
	double pagemap = seconds_of(read_pagemap);

	printf("SCAN to a read of pagemap: %.2f, and %.2f if it clears (%.0f and %.0f ns a page)\n",
	       seconds_of(scan_alone) / pagemap, seconds_of(scan_and_clear) / pagemap,
	       seconds_of(scan_alone) / PAGES * 1e9, seconds_of(scan_and_clear) / PAGES * 1e9);
}

static void show_row(const char *name, void (*what)(void), double seconds, double pause)
{
	double its = seconds_of(what), paused_for = pause_of(what);

	printf("%-12s %10.2f %14.2f %12.2f %14.2f\n", name, its * 1e3 * 512 / HOT, its / seconds,
	       paused_for * 1e3, paused_for / pause);
}

int show_timings(void)
{
	double seconds, pause;

	measure_stalls();
	if (works(TG_CALL_SCAN))
		show_scan();
	if (!has_two_nodes()) {
		puts("moves: not tried: this guest has one node, and move_pages moves none");
		return 0;
	}
	/* The first moves take longer: the kernel has to find free pages. */
	seconds_of(move_hot);
	seconds = seconds_of(move_hot);
	pause = pause_of(move_hot);
	printf("%-12s %10s %14s %12s %14s\n", "", "ms per 512", "to move_pages", "a pause, ms", "to move_pages");
	show_row("move_pages", move_hot, seconds, pause);
	send_to(0, HOT, 0);
	show_row("CONSOLIDATE", consolidate_hot, seconds, pause);
	if (!works(TG_CALL_EXCHANGE))
		return 0;
	send_to(0, HOT / 2, 0);
	send_to(HOT / 2, HOT / 2, 1);
	show_row("EXCHANGE", exchange_hot, seconds, pause);
	puts("Medians of rounds; a pause is the longest one of a thread that writes the pages meanwhile.");
	return 0;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that make all calls on pages of all lanes, and on frames of all memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stress.h"

/* Calls with one descriptor. */
#define CALLS_OF_ONE	50

static int open_device(void)
{
	int opened = open("/dev/terrace_guest", O_RDWR | O_CLOEXEC);

	if (opened < 0)
		fail("/dev/terrace_guest");
	return opened;
}

/* A lane that a process has just now; NULL if the one that was chosen has none. */
static struct lane *any_lane(pid_t *pid)
{
	struct lane *lane = &shared->lane[any(shared->lanes)];

	*pid = lane->pid;
	return *pid ? lane : NULL;
}

/* Counts a call; returns whether it was done. */
static int count(unsigned int number, int result, const __s32 *statuses, unsigned long pages)
{
	struct call *call = &shared->call[number];

	call->calls++;
	if (result) {
		call->failed[errno % NUMBERS]++;
		return 0;
	}
	for (unsigned long i = 0; i < pages; i++)
		call->statuses[-statuses[i] % NUMBERS]++;
	return 1;
}

/* Neighbours, or pages here and there, at times one that is not there. */
static void any_addresses(const struct lane *lane, __u64 *addresses, unsigned long pages)
{
	unsigned long from = any(lane->pages), step = any(2);

	for (unsigned long i = 0; i < pages; i++) {
		unsigned long page = step ? (from + i) % lane->pages : any(lane->pages);

		addresses[i] = (unsigned long)lane_page(lane, page);
		if (any(200) == 0)
			addresses[i] += any(1UL << 31);
	}
}

static void scan(int opened)
{
	static __u64 entries[4 * BLOCK];
	struct tg_scan call = { .version = TG_VERSION, .flags = any(4), .entries = (unsigned long)entries };
	struct lane *lane = any_lane(&call.pid);
	unsigned long from;

	if (!lane)
		return;
	from = any(2) ? any(lane->pages) : 0;
	call.start = (unsigned long)lane_page(lane, from);
	call.end = (unsigned long)lane_page(lane, lane->pages);
	if (count(TG_CALL_SCAN, ioctl(opened, TG_SCAN, &call), NULL, 0))
		shared->call[TG_CALL_SCAN].pages += call.present;
}

static void consolidate(int opened)
{
	__u64 addresses[TG_BATCH_MAX];
	__s32 statuses[TG_BATCH_MAX];
	struct tg_consolidate call = {
		.version = TG_VERSION,
		.flags = any(8) ? 0 : TG_CONSOLIDATE_COMPACT,
		.node = any(2) ? TG_ANY_NODE : (int)any(2),
		.addresses = (unsigned long)addresses,
		.statuses = (unsigned long)statuses,
		.count = 1 + any(TG_BATCH_MAX),
	};
	struct lane *lane = any_lane(&call.pid);

	if (!lane)
		return;
	any_addresses(lane, addresses, call.count);
	if (count(TG_CALL_CONSOLIDATE, ioctl(opened, TG_CONSOLIDATE, &call), statuses, call.count))
		shared->call[TG_CALL_CONSOLIDATE].pages += call.moved;
}

static void exchange(int opened)
{
	__u64 first[TG_BATCH_MAX], second[TG_BATCH_MAX];
	__s32 statuses[TG_BATCH_MAX];
	struct tg_exchange call = {
		.version = TG_VERSION,
		.first = (unsigned long)first,
		.second = (unsigned long)second,
		.statuses = (unsigned long)statuses,
		.count = 1 + any(TG_BATCH_MAX),
	};
	struct lane *lane = any_lane(&call.pid), *other = any(2) ? any_lane(&call.other) : lane;

	if (!lane || !other)
		return;
	any_addresses(lane, first, call.count);
	any_addresses(other, second, call.count);
	if (!count(TG_CALL_EXCHANGE, ioctl(opened, TG_EXCHANGE, &call), statuses, call.count))
		return;
	shared->call[TG_CALL_EXCHANGE].pages += 2 * call.exchanged;
	shared->halves += call.halves;
}

static void migrate(int opened, __u64 *frames, unsigned long count_of)
{
	__s32 statuses[TG_BATCH_MAX];
	struct tg_migrate call = {
		.version = TG_VERSION,
		.node = any(2),
		.frames = (unsigned long)frames,
		.statuses = (unsigned long)statuses,
		.count = count_of,
	};

	if (count(TG_CALL_MIGRATE, ioctl(opened, TG_MIGRATE, &call), statuses, call.count))
		shared->call[TG_CALL_MIGRATE].pages += call.moved;
}

/* Frames that a lane has, or had just now. */
static void migrate_lane(int opened)
{
	__u64 frames[TG_BATCH_MAX];
	pid_t pid;
	struct lane *lane = any_lane(&pid);
	char path[32];
	int pagemap;

	if (!lane)
		return;
	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	pagemap = open(path, O_RDONLY | O_CLOEXEC);
	if (pagemap < 0)
		return;
	if (pread(pagemap, frames, sizeof(frames),
		  ((unsigned long)lane_page(lane, any(lane->pages))) / PAGE * 8) == sizeof(frames)) {
		for (int i = 0; i < TG_BATCH_MAX; i++)
			frames[i] &= (1ULL << 55) - 1;
		migrate(opened, frames, TG_BATCH_MAX);
	}
	close(pagemap);
}

/* The frame after the last one. */
static unsigned long last_frame(void)
{
	FILE *file = fopen("/proc/iomem", "r");
	unsigned long end, last = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (strstr(line, "System RAM") && sscanf(line, "%*x-%lx", &end) == 1)
			last = end / PAGE + 1;
	if (file)
		fclose(file);
	return last ? last : 1UL << 20;
}

static void migrate_any(int opened)
{
	static _Atomic unsigned long last;
	__u64 frames[TG_BATCH_MAX];
	unsigned long from;

	if (!last)
		last = last_frame();
	from = any(last);
	for (int i = 0; i < TG_BATCH_MAX; i++)
		frames[i] = from % 4 ? any(last) : from + i;
	migrate(opened, frames, TG_BATCH_MAX);
}

/* The kernel's own call, beside. */
static void move_pages(int unused)
{
	void *addresses[16];
	int nodes[16], statuses[16];
	pid_t pid;
	struct lane *lane = any_lane(&pid);

	(void)unused;
	if (!lane)
		return;
	for (int i = 0; i < 16; i++) {
		addresses[i] = lane_page(lane, any(lane->pages));
		nodes[i] = any(2);
	}
	shared->kernel_moves += !syscall(SYS_move_pages, pid, 16UL, addresses, nodes, statuses, 2);
}

static void *call_on(void *data)
{
	void (*make)(int opened) = *(void (**)(int))data;

	/* Else those who write have most of a small guest's time. */
	setpriority(PRIO_PROCESS, gettid(), -10);
	while (!shared->stop) {
		int opened = open_device();

		for (int i = 0; i < CALLS_OF_ONE && !shared->stop; i++) {
			make(opened);
			usleep(any(300));
		}
		close(opened);
	}
	return NULL;
}

void start_callers(void)
{
	static void (*const makes[])(int) = {
		scan, consolidate, consolidate, exchange, exchange, migrate_lane, migrate_any, move_pages,
	};

	for (unsigned int i = 0; i < sizeof(makes) / sizeof(makes[0]); i++)
		run_thread(call_on, (void *)&makes[i]);
}

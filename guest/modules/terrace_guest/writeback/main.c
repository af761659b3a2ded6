// SPDX-License-Identifier: GPL-2.0
/*
 * `writeback SECONDS`: pages that go to swap on a slow disk and come back all the time, while
 * they are moved by frame, and after so many seconds exchanged: a page may begin to be written
 * after it was looked at. Swap is to be on a disk: zram writes at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../abi.h"

#define PAGE		4096UL
#define WORDS		(PAGE / sizeof(unsigned long))
/* Pages of each node. */
#define SIDE		6UL
#define PAGES		(2 * SIDE)

static unsigned long *memory;
static int device, pagemap;
static atomic_int stop;
static atomic_ulong wrong, outs;
static unsigned long exchanged, migrated, busy;

static void fail(const char *what)
{
	printf("%s: %s\nFAILED\n", what, strerror(errno));
	exit(1);
}

static unsigned long *page_at(unsigned long page)
{
	return memory + page * WORDS;
}

/* Word 0 is counted up, the others are fixed. */
static unsigned long fixed(unsigned long page, unsigned long word)
{
	return page * 31 + word;
}

static void *page_out(void *seed)
{
	unsigned int state = (unsigned long)seed;

	while (!atomic_load(&stop)) {
		unsigned long page = rand_r(&state) % PAGES;

		wrong += page_at(page)[5] != fixed(page, 5);
		page_at(page)[0]++;
		outs += !madvise(page_at(page), PAGE, MADV_PAGEOUT);
		page_at(page)[0]++;
	}
	return NULL;
}

static void count(const __s32 *statuses)
{
	for (unsigned long i = 0; i < SIDE; i++)
		busy += statuses[i] == -EBUSY || statuses[i] == -EAGAIN;
}

static void exchange(void)
{
	__u64 first[SIDE], second[SIDE];
	__s32 statuses[SIDE];
	struct tg_exchange call = {
		.version = TG_VERSION,
		.pid = getpid(),
		.count = SIDE,
		.first = (unsigned long)first,
		.second = (unsigned long)second,
		.statuses = (unsigned long)statuses,
	};

	for (unsigned long i = 0; i < SIDE; i++) {
		first[i] = (unsigned long)page_at(i);
		second[i] = (unsigned long)page_at(SIDE + i);
	}
	if (ioctl(device, TG_EXCHANGE, &call))
		fail("EXCHANGE");
	exchanged += call.exchanged;
	count(statuses);
}

static unsigned long frame(unsigned long page)
{
	unsigned long entry = 0;
	off_t at = (unsigned long)page_at(page) / PAGE * sizeof(entry);

	if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry))
		fail("/proc/self/pagemap");
	return entry >> 63 ? entry & ((1UL << 55) - 1) : 0;
}

static void migrate(unsigned long from, int node)
{
	__u64 frames[SIDE];
	__s32 statuses[SIDE];
	struct tg_migrate call = {
		.version = TG_VERSION,
		.node = node,
		.count = SIDE,
		.frames = (unsigned long)frames,
		.statuses = (unsigned long)statuses,
	};

	for (unsigned long i = 0; i < SIDE; i++)
		frames[i] = frame(from + i);
	if (ioctl(device, TG_MIGRATE, &call))
		fail("MIGRATE");
	migrated += call.moved;
	count(statuses);
}

static void set_up(void)
{
	device = open("/dev/terrace_guest", O_RDWR | O_CLOEXEC);
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (device < 0 || pagemap < 0 || memory == MAP_FAILED)
		fail("/dev/terrace_guest");
	for (unsigned long page = 0; page < PAGES; page++) {
		void *address = page_at(page);
		int node = page >= SIDE, status;

		for (unsigned long word = 1; word < WORDS; word++)
			page_at(page)[word] = fixed(page, word);
		syscall(SYS_move_pages, 0, 1UL, &address, &node, &status, 2);
	}
}

int main(int arguments, char **argument)
{
	time_t half = time(NULL) + (arguments > 1 ? atoi(argument[1]) : 20);
	time_t end = 2 * half - time(NULL);
	pthread_t threads[2];

	set_up();
	for (unsigned long i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, page_out, (void *)(i + 1)))
			fail("a thread");
	for (int round = 0; time(NULL) < half; round++) {
		migrate(0, round % 2);
		migrate(SIDE, (round + 1) % 2);
	}
	while (time(NULL) < end)
		exchange();
	atomic_store(&stop, 1);
	for (unsigned long i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (unsigned long page = 0; page < PAGES; page++)
		for (unsigned long word = 1; word < WORDS; word++)
			wrong += page_at(page)[word] != fixed(page, word);
	printf("%lu pages sent to swap; %lu pairs exchanged, %lu pages moved by frame, %lu left as busy; %lu words are wrong\n",
	       atomic_load(&outs), exchanged, migrated, busy, atomic_load(&wrong));
	puts(atomic_load(&wrong) || !outs ? "FAILED" : "ok");
	return atomic_load(&wrong) || !outs;
}

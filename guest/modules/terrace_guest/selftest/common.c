// SPDX-License-Identifier: GPL-2.0
/*
 * What all tests use.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "selftest.h"

int device;
unsigned long *memory;
unsigned long hot[HOT];

void fail(const char *what)
{
	fprintf(stderr, "selftest: %s: %s\n", what, strerror(errno));
	exit(1);
}

int open_device(void)
{
	int opened = open("/dev/terrace_guest", O_RDWR | O_CLOEXEC);

	if (opened < 0)
		fail("/dev/terrace_guest");
	return opened;
}

unsigned long *map(unsigned long pages)
{
	unsigned long *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("memory");
	/* Fails where the kernel has no larger pages. */
	madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
	return at;
}

unsigned long *page_at(unsigned long page)
{
	return memory + page * WORDS;
}

void make_memory(void)
{
	memory = map(PAGES);
	for (unsigned long page = 0; page < PAGES; page++)
		fill(page_at(page), page, 0);
	/* Scattered, each once. */
	for (unsigned long i = 0; i < HOT; i++)
		hot[i] = i * (PAGES / HOT) + i * 7 % (PAGES / HOT);
}

/* The frame of an address; 0 if it has none. */
unsigned long frame(const void *address)
{
	static int pagemap = -1;
	unsigned long entry = 0;
	off_t at = (unsigned long)address / PAGE * sizeof(entry);

	if (pagemap < 0)
		pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry))
		fail("/proc/self/pagemap");
	return entry >> 63 ? entry & ((1UL << 55) - 1) : 0;
}

int works(unsigned int call)
{
	struct tg_info info;

	if (ioctl(device, TG_INFO, &info))
		fail("INFO");
	return !info.call[call].error;
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

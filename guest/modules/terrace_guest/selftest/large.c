// SPDX-License-Identifier: GPL-2.0
/*
 * A larger page, which small guests do not have as they are set.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

#define SETTING	"/sys/kernel/mm/transparent_hugepage/enabled"

/* Replaces the setting if it is that one; returns whether it did. */
static int replace_setting(const char *that, const char *with)
{
	int file = open(SETTING, O_RDWR | O_CLOEXEC), done = 0;
	char is[64] = "";

	if (file < 0)
		return 0;
	if (read(file, is, sizeof(is) - 1) > 0 && strstr(is, that))
		done = write(file, with, strlen(with)) > 0;
	close(file);
	return done;
}

/* KiB of larger pages that this program has. */
static unsigned long large_kib(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	unsigned long kib = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "AnonHugePages: %lu", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

unsigned long *map_large(void)
{
	size_t size = BLOCK * PAGE;
	unsigned long before = large_kib();
	int changed = replace_setting("[never]", "madvise");
	char *at = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("memory");
	at += size - (unsigned long)at % size;
	madvise(at, size, MADV_HUGEPAGE);
	memset(at, 1, size);
	if (changed)
		replace_setting("[madvise]", "never");
	return large_kib() > before ? (unsigned long *)at : NULL;
}

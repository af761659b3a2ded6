// SPDX-License-Identifier: GPL-2.0
/*
 * CONSOLIDATE where no block of 2 MiB is free: it says so at once, and nothing is
 * reclaimed or compacted. Open blocks of many descriptors hold all that are free, so that
 * nobody else runs out of memory.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

/* Nodes that are larger are not filled. */
#define DESCRIPTORS	512

/* What the kernel has done so far to get memory for those who wait for it. */
static unsigned long waited_for(void)
{
	static const char *const names[] = { "allocstall_", "compact_stall ", "pgscan_direct " };
	FILE *file = fopen("/proc/vmstat", "r");
	unsigned long sum = 0;
	char line[128];

	if (!file)
		fail("/proc/vmstat");
	while (fgets(line, sizeof(line), file))
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			unsigned long value;

			if (!strncmp(line, names[i], strlen(names[i])) &&
			    sscanf(line, "%*s %lu", &value) == 1)
				sum += value;
		}
	fclose(file);
	return sum;
}

/* Opens a block on the last node; returns the error number. */
static int hold_block(int opened, unsigned long *page)
{
	__u64 address = (unsigned long)page;
	__s32 status;
	struct tg_consolidate call = consolidate_of(getpid(), &address, &status, 1);

	call.node = has_two_nodes();
	return ioctl(opened, TG_CONSOLIDATE, &call) ? errno : 0;
}

int test_no_block(void)
{
	static int held[DESCRIPTORS];
	unsigned long before = waited_for(), after;
	/* Gone afterwards, so that the blocks are whole again. */
	unsigned long *pages = map(DESCRIPTORS);
	int count, err = 0;

	for (count = 0; count < DESCRIPTORS && !err; count++) {
		held[count] = open_device();
		pages[count * WORDS] = 1;
		err = hold_block(held[count], pages + count * WORDS);
	}
	after = waited_for();
	for (int i = 0; i < count; i++)
		close(held[i]);
	munmap(pages, DESCRIPTORS * PAGE);
	if (!err) {
		puts("no block: not tried: the node has more of them");
		return 0;
	}
	printf("no block: after %d %s; the kernel looked for memory %lu times\n", count - 1, strerror(err),
	       after - before);
	return err != ENOMEM || after != before;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * CONSOLIDATE: scattered pages into one block, and what happens when there is no block.
 */
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "selftest.h"

static unsigned long moved, block;

static void consolidate_all(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		/* Another descriptor begins another block. */
		close(device);
		device = open_device();
		for (unsigned long at = 0; at < HOT; at += TG_BATCH_MAX) {
			__u64 addresses[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_consolidate call =
				consolidate_of(getpid(), addresses, statuses, TG_BATCH_MAX);

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
				addresses[i] = (unsigned long)page_at(hot[at + i]);
			if (ioctl(device, TG_CONSOLIDATE, &call))
				fail("CONSOLIDATE");
			moved += call.moved;
			block = call.block;
		}
	}
}

int test_consolidate(void)
{
	unsigned long bad = beside_writer(consolidate_all), inside = 0;

	for (unsigned long i = 0; i < HOT; i++)
		inside += frame(page_at(hot[i])) - block < BLOCK;
	printf("CONSOLIDATE: %lu pages moved in %d rounds; %lu of %lu are in the last block, %s; %lu words are wrong\n",
	       moved, ROUNDS, inside, HOT,
	       block % BLOCK ? "which is not aligned" : "which is aligned", bad);
	return bad || block % BLOCK || inside < HOT / 2 || moved < HOT * ROUNDS / 2;
}

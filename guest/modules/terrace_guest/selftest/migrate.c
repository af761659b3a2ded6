// SPDX-License-Identifier: GPL-2.0
/*
 * MIGRATE: frames to a node and back.
 */
#include <stdio.h>
#include <sys/ioctl.h>

#include "selftest.h"

static unsigned long migrated;

static void migrate_all(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		for (unsigned long at = 0; at < HOT; at += TG_BATCH_MAX) {
			__u64 frames[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_migrate call = migrate_of(round % 2, frames, statuses, TG_BATCH_MAX);

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
				frames[i] = frame(page_at(hot[at + i]));
			if (ioctl(device, TG_MIGRATE, &call))
				fail("MIGRATE");
			migrated += call.moved;
		}
	}
}

int test_migrate(void)
{
	unsigned long bad, there;

	if (!has_two_nodes()) {
		puts("MIGRATE: not tried: this guest has one node");
		return 0;
	}
	send_to(0, HOT, 1);
	bad = beside_writer(migrate_all);
	there = on_node(0, HOT, (ROUNDS - 1) % 2);
	printf("MIGRATE: %lu pages moved in %d rounds; %lu of %lu are on the node; %lu words are wrong\n",
	       migrated, ROUNDS, there, HOT, bad);
	return bad || there < HOT / 2 || migrated < HOT * ROUNDS / 2;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Three callers at once on the same pages, each with a descriptor of its own.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "selftest.h"

#define SECONDS	1

struct caller {
	pthread_t thread;
	int backwards;
	unsigned long moved;
	unsigned long left;
};

static void *gather(void *data)
{
	struct caller *caller = data;
	double end = now() + SECONDS;

	while (now() < end) {
		int opened = open_device();

		for (unsigned long at = 0; at < HOT; at += TG_BATCH_MAX) {
			__u64 addresses[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_consolidate call =
				consolidate_of(getpid(), addresses, statuses, TG_BATCH_MAX);

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
				unsigned long which = caller->backwards ? HOT - 1 - at - i : at + i;

				addresses[i] = (unsigned long)page_at(hot[which]);
			}
			/* Open blocks of all of them may be all that there are. */
			if (ioctl(opened, TG_CONSOLIDATE, &call) && errno != ENOMEM)
				fail("CONSOLIDATE");
			caller->moved += call.moved;
			caller->left += TG_BATCH_MAX - call.moved;
		}
		close(opened);
	}
	return NULL;
}

static struct caller callers[3] = { { .backwards = 0 }, { .backwards = 1 }, { .backwards = 0 } };

static void gather_together(void)
{
	for (int i = 0; i < 3; i++)
		if (pthread_create(&callers[i].thread, NULL, gather, &callers[i]))
			fail("a thread");
	for (int i = 0; i < 3; i++)
		pthread_join(callers[i].thread, NULL);
}

int test_together(void)
{
	unsigned long bad = beside_writer(gather_together), moved = 0, left = 0;

	for (int i = 0; i < 3; i++) {
		moved += callers[i].moved;
		left += callers[i].left;
	}
	printf("three callers on the same pages: %lu moved, %lu left; %lu words are wrong\n", moved, left, bad);
	return bad || !moved;
}

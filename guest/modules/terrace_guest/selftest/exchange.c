// SPDX-License-Identifier: GPL-2.0
/*
 * EXCHANGE: pages of one process change their nodes, and pages of two processes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

static unsigned long exchanged, halves;

/* An odd number of rounds: each page ends on the other node. */
static void exchange_all(void)
{
	for (int round = 0; round < ROUNDS + 1; round++) {
		__u64 first[TG_BATCH_MAX], second[TG_BATCH_MAX];
		__s32 statuses[TG_BATCH_MAX];
		struct tg_exchange call = exchange_of(getpid(), first, second, statuses, TG_BATCH_MAX);

		for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
			first[i] = (unsigned long)page_at(hot[i]);
			second[i] = (unsigned long)page_at(hot[HOT / 2 + i]);
		}
		if (ioctl(device, TG_EXCHANGE, &call))
			fail("EXCHANGE");
		exchanged += call.exchanged;
		halves += call.halves;
	}
}

int test_exchange(void)
{
	unsigned long bad, ups, downs;

	send_to(0, HOT / 2, 0);
	send_to(HOT / 2, HOT / 2, 1);
	bad = beside_writer(exchange_all);
	ups = on_node(0, HOT / 2, 1);
	downs = on_node(HOT / 2, HOT / 2, 0);
	printf("EXCHANGE: %lu pairs in %d rounds, %lu halves; %lu and %lu of %lu are on the other node; %lu words are wrong\n",
	       exchanged, ROUNDS + 1, halves, ups, downs, HOT / 2, bad);
	return bad || halves || exchanged < HOT / 2 * ROUNDS / 2 || ups < HOT / 4 || downs < HOT / 4;
}

/* The other process, which has a page for each of the first half of the hot ones. */
static pid_t other;
static unsigned long *others;
/* What it shares with this one. */
static struct {
	volatile unsigned long ready;
	volatile unsigned long wrong;
} *shared;

/* Writes its pages, and maps and unmaps memory: who waits for its lock is in the way. */
static void be_the_other(void)
{
	for (unsigned long times = 0;; times++) {
		for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
			shared->wrong += write_next(others + i * WORDS, i, times);
		if (times % 64 == 0)
			munmap(map(1), PAGE);
		shared->ready = 1;
	}
}

struct half {
	pthread_t thread;
	int turned;
	unsigned long exchanged;
	unsigned long halves;
};

static void *exchange_half(void *data)
{
	struct half *half = data;
	int opened = open_device();

	for (int round = 0; round < ROUNDS; round++) {
		__u64 mine[TG_BATCH_MAX], theirs[TG_BATCH_MAX];
		__s32 statuses[TG_BATCH_MAX];
		struct tg_exchange call = half->turned ?
			exchange_of(other, theirs, mine, statuses, TG_BATCH_MAX) :
			exchange_of(getpid(), mine, theirs, statuses, TG_BATCH_MAX);

		call.other = half->turned ? getpid() : other;
		for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
			mine[i] = (unsigned long)page_at(hot[i]);
			theirs[i] = (unsigned long)(others + i * WORDS);
		}
		if (ioctl(opened, TG_EXCHANGE, &call))
			fail("EXCHANGE");
		half->exchanged += call.exchanged;
		half->halves += call.halves;
	}
	close(opened);
	return NULL;
}

static struct half both[2] = { { .turned = 0 }, { .turned = 1 } };

/* Two callers who name the processes in a different order must not wait for each other. */
static void exchange_both(void)
{
	for (int i = 0; i < 2; i++)
		if (pthread_create(&both[i].thread, NULL, exchange_half, &both[i]))
			fail("a thread");
	for (int i = 0; i < 2; i++)
		pthread_join(both[i].thread, NULL);
}

int test_exchange_two(void)
{
	unsigned long bad, pairs, undone;

	others = map(TG_BATCH_MAX);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("memory");
	send_to(0, HOT / 2, 0);
	other = fork();
	if (!other) {
		for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
			fill(others + i * WORDS, i, 0);
			send_page(others + i * WORDS, 1);
		}
		be_the_other();
	}
	while (!shared->ready)
		usleep(1000);
	/* What the fork shared is this program's own again when it is written. */
	bad = beside_writer(exchange_both);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	pairs = both[0].exchanged + both[1].exchanged;
	undone = both[0].halves + both[1].halves;
	printf("EXCHANGE of two processes: %lu pairs by two callers, %lu halves; %lu and %lu words are wrong\n",
	       pairs, undone, bad, shared->wrong);
	bad += shared->wrong;
	munmap(shared, PAGE);
	munmap(others, TG_BATCH_MAX * PAGE);
	return bad || !pairs;
}

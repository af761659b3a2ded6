// SPDX-License-Identifier: GPL-2.0
/*
 * EXCHANGE of pages that came by fork: the kernel finds a page's owners by what the pages of a
 * dead parent left, and that goes along. Memory is paged out afterwards, where there is swap,
 * so that the kernel has to find them.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

/* Pages of each side. */
#define OWNED	64UL
/* Numbers of the other side's pages, and of those that a child wrote anew. */
#define OTHERS	1000
#define ANEW	2000

/* What the processes share. */
static struct {
	volatile unsigned long go;
	volatile unsigned long ready;
	volatile unsigned long done;
	volatile unsigned long exchanged;
	volatile unsigned long wrong;
} *shared;

static void write_all(unsigned long *pages, unsigned long number, unsigned long step)
{
	for (unsigned long i = 0; i < OWNED; i += step)
		fill(pages + i * WORDS, number + i, 0);
}

static void send_all(unsigned long *pages, int node)
{
	for (unsigned long i = 0; i < OWNED; i++)
		send_page(pages + i * WORDS, node);
	settle();
}

static unsigned long exchange_pages(pid_t other, unsigned long *up, unsigned long *down)
{
	__u64 first[OWNED], second[OWNED];
	__s32 statuses[OWNED];
	struct tg_exchange call = exchange_of(getpid(), first, second, statuses, OWNED);

	call.other = other;
	for (unsigned long i = 0; i < OWNED; i++) {
		first[i] = (unsigned long)(up + i * WORDS);
		second[i] = (unsigned long)(down + i * WORDS);
	}
	if (ioctl(device, TG_EXCHANGE, &call))
		fail("EXCHANGE");
	return call.exchanged;
}

static unsigned long page_out_and_check(unsigned long *pages, unsigned long number, unsigned long step)
{
	unsigned long wrong = 0;

	madvise(pages, OWNED * PAGE, MADV_PAGEOUT);
	for (unsigned long i = 0; i < OWNED; i++)
		if (i % step == 0)
			wrong += damaged(pages + i * WORDS, number + i, 0);
	return wrong;
}

static void wait_for(const volatile unsigned long *flag)
{
	while (!*flag)
		usleep(1000);
}

/* Its parents are dead, and what they did not write is its own. */
static void be_the_grandchild(unsigned long *inherited)
{
	unsigned long *own = map(OWNED);

	prctl(PR_SET_PDEATHSIG, 0);
	write_all(own, OTHERS, 1);
	shared->ready = 1;
	wait_for(&shared->go);
	send_all(inherited, 0);
	send_all(own, 1);
	shared->exchanged = exchange_pages(0, inherited, own);
	shared->wrong = page_out_and_check(own, OTHERS, 1);
	for (unsigned long i = 0; i < OWNED; i++)
		shared->wrong += damaged(inherited + i * WORDS, (i % 2 ? 0 : ANEW) + i, 0);
	shared->wrong += page_out_and_check(inherited, ANEW, 2);
	shared->done = 1;
	_exit(0);
}

static unsigned long test_dead_parents(unsigned long *exchanged)
{
	unsigned long *pages = map(OWNED);
	pid_t child;

	write_all(pages, 0, 1);
	child = fork();
	if (!child) {
		write_all(pages, ANEW, 2);
		if (!fork())
			be_the_grandchild(pages);
		wait_for(&shared->ready);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	munmap(pages, OWNED * PAGE);
	shared->go = 1;
	wait_for(&shared->done);
	*exchanged = shared->exchanged;
	return shared->wrong;
}

/* The parent has written: the pages of before are this process's own, at the same addresses. */
static void be_the_child(unsigned long *pages)
{
	shared->ready = 1;
	wait_for(&shared->go);
	send_all(pages, 1);
	shared->ready = 2;
	wait_for(&shared->done);
	shared->wrong = page_out_and_check(pages, 0, 1);
	_exit(0);
}

static unsigned long test_one_address(unsigned long *exchanged)
{
	unsigned long *pages = map(OWNED), wrong;
	pid_t child;

	*shared = (typeof(*shared)){};
	write_all(pages, 0, 1);
	child = fork();
	if (!child)
		be_the_child(pages);
	wait_for(&shared->ready);
	write_all(pages, OTHERS, 1);
	send_all(pages, 0);
	shared->go = 1;
	while (shared->ready < 2)
		usleep(1000);
	for (int round = 0; round < ROUNDS + 1; round++)
		*exchanged += exchange_pages(child, pages, pages);
	wrong = page_out_and_check(pages, OTHERS, 1);
	shared->done = 1;
	waitpid(child, NULL, 0);
	munmap(pages, OWNED * PAGE);
	return wrong + shared->wrong;
}

int test_owners(void)
{
	unsigned long inherited = 0, same = 0, wrong;

	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("memory");
	wrong = test_dead_parents(&inherited);
	wrong += test_one_address(&same);
	munmap(shared, PAGE);
	printf("EXCHANGE after forks: %lu of %lu pairs of dead parents, %lu of parent and child at one address; %lu words are wrong\n",
	       inherited, OWNED, same, wrong);
	return wrong || inherited < OWNED / 2 || same < OWNED * ROUNDS / 2;
}

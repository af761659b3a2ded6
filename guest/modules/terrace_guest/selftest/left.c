// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that are left as they are, each with its number.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

/* A process that shares all pages of this one until the other end is closed. */
static pid_t share(int *end)
{
	int held[2];
	pid_t child;
	char byte;

	if (pipe(held))
		fail("a pipe");
	child = fork();
	if (!child) {
		close(held[1]);
		_exit(read(held[0], &byte, 1) != 0);
	}
	close(held[0]);
	*end = held[1];
	return child;
}

static void unshare_with(pid_t child, int end)
{
	close(end);
	waitpid(child, NULL, 0);
}

static unsigned long *map_as(int protection, int flags)
{
	unsigned long *at = mmap(NULL, PAGE, protection, flags | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("memory");
	return at;
}

int test_left(void)
{
	const struct {
		const char *what;
		unsigned long address;
		int wanted;
	} pages[] = {
		{ "part of a page", (unsigned long)page_at(0) + 1, EINVAL },
		{ "where nothing is mapped", PAGE, EFAULT },
		{ "the kernel's last page", ~0xfffUL, EFAULT },
		{ "the kernel's memory", 0xffff888000000000UL, EFAULT },
		{ "no address", 0x8000000000000000UL, EFAULT },
		{ "not there yet", (unsigned long)map(1), ENOENT },
		{ "shared memory", (unsigned long)map_as(PROT_READ | PROT_WRITE, MAP_SHARED), EOPNOTSUPP },
		{ "the page of zeros", (unsigned long)map_as(PROT_READ, MAP_PRIVATE), EINVAL },
		{ "locked", (unsigned long)map(1), EPERM },
		{ "shared after a fork", (unsigned long)page_at(1), EACCES },
		{ "part of a larger page", (unsigned long)map_large(), E2BIG },
	};
	enum { ALL = sizeof(pages) / sizeof(pages[0]), SHARED = 6, ZERO = 7, LOCKED = 8, LARGE = 10 };
	__u64 addresses[ALL];
	__s32 statuses[ALL] = {};
	struct tg_consolidate call = consolidate_of(getpid(), addresses, statuses, ALL);
	int failed = 0, end;
	pid_t child;

	for (int i = 0; i < ALL; i++)
		addresses[i] = pages[i].address;
	*(unsigned long *)pages[SHARED].address = 1;
	(void)*(volatile unsigned long *)pages[ZERO].address;
	mlock((void *)pages[LOCKED].address, PAGE);
	*(unsigned long *)pages[LOCKED].address = 1;
	child = share(&end);
	if (ioctl(device, TG_CONSOLIDATE, &call))
		fail("CONSOLIDATE");
	unshare_with(child, end);
	puts("pages that are left:");
	for (int i = 0; i < ALL; i++)
		if (i != LARGE || pages[i].address)
			failed |= status_is(pages[i].what, statuses[i], pages[i].wanted);
	return failed || call.moved;
}

static int twice_in_consolidate(void)
{
	__u64 addresses[3] = {
		(unsigned long)page_at(2), (unsigned long)page_at(3), (unsigned long)page_at(2),
	};
	__s32 statuses[3] = {};
	struct tg_consolidate call = consolidate_of(getpid(), addresses, statuses, 3);
	int failed = refused("CONSOLIDATE", TG_CONSOLIDATE, &call, 0);

	failed |= status_is("a page", statuses[0], 0);
	failed |= status_is("another", statuses[1], 0);
	return failed | status_is("the first again", statuses[2], EEXIST);
}

static int twice_in_exchange(void)
{
	__u64 first[5], second[5];
	__s32 statuses[5] = {};
	struct tg_exchange call = exchange_of(getpid(), first, second, statuses, 5);
	int failed;

	if (!works(TG_CALL_EXCHANGE))
		return 0;
	for (int i = 0; i < 5; i++) {
		send_page(page_at(4 + i), 0);
		send_page(page_at(9 + i), 1);
		first[i] = (unsigned long)page_at(4 + i);
		second[i] = (unsigned long)page_at(9 + i);
	}
	first[1] = first[0], second[1] = second[0];
	first[2] = second[0];
	second[3] = first[3];
	failed = refused("EXCHANGE", TG_EXCHANGE, &call, 0);
	failed |= status_is("a pair", statuses[0], 0);
	failed |= status_is("the same again", statuses[1], EEXIST);
	failed |= status_is("its second page as a first one", statuses[2], EEXIST);
	failed |= status_is("a page with itself", statuses[3], EEXIST);
	failed |= status_is("another pair", statuses[4], 0);
	failed |= node_of(page_at(4)) != 1 || node_of(page_at(9)) != 0;
	/* Two pages of one node. */
	first[0] = (unsigned long)page_at(5);
	second[0] = (unsigned long)page_at(6);
	call.count = 1;
	failed |= refused("EXCHANGE", TG_EXCHANGE, &call, 0);
	return failed | status_is("a pair of one node", statuses[0], EXDEV);
}

int test_twice(void)
{
	puts("pages that are named twice:");
	settle();
	return twice_in_consolidate() | twice_in_exchange();
}

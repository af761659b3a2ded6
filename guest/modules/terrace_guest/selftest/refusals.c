// SPDX-License-Identifier: GPL-2.0
/*
 * Calls that are wrong as a whole.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

static __u64 address;
static __s32 status;

/* A process that was there and is gone. */
static pid_t exited(void)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	return child;
}

static int wrong_consolidate(void)
{
	const struct tg_consolidate good = consolidate_of(getpid(), &address, &status, 1);
	struct tg_consolidate call;
	int failed;

	call = good, call.version = 9;
	failed = refused("another version", TG_CONSOLIDATE, &call, EPROTONOSUPPORT);
	call = good, call.pid = 4194303;
	failed |= refused("no process", TG_CONSOLIDATE, &call, ESRCH);
	call = good, call.pid = exited();
	failed |= refused("a process that ended", TG_CONSOLIDATE, &call, ESRCH);
	call = good, call.pid = 2;
	failed |= refused("a thread of the kernel", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.pid = 0;
	failed |= refused("process 0", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.count = TG_BATCH_MAX + 1;
	failed |= refused("too many", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.count = 0;
	failed |= refused("none", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.node = 77;
	failed |= refused("no node", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.zero = 1;
	failed |= refused("a reserved field", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.flags = 2;
	failed |= refused("a reserved flag", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.addresses = 8;
	failed |= refused("no list", TG_CONSOLIDATE, &call, EFAULT);
	call = good, call.addresses = 0xffff888000000000UL;
	failed |= refused("a list in the kernel", TG_CONSOLIDATE, &call, EFAULT);
	call = good, call.statuses = 0xffff888000000000UL;
	failed |= refused("statuses in the kernel", TG_CONSOLIDATE, &call, EFAULT);
	failed |= refused("the call is in the kernel", TG_CONSOLIDATE, (void *)0xffff888000000000UL, EFAULT);
	failed |= refused("no call", _IO('t', 0x7f), &call, ENOTTY);
	return failed;
}

static int wrong_scan(void)
{
	static __u64 entry;
	const struct tg_scan good = scan_of(getpid(), memory, 1, &entry, 0);
	struct tg_scan call;
	int failed;

	if (!works(TG_CALL_SCAN))
		return 0;
	call = good, call.version = 2;
	failed = refused("SCAN, another version", TG_SCAN, &call, EPROTONOSUPPORT);
	call = good, call.zero = 1;
	failed |= refused("SCAN, a reserved field", TG_SCAN, &call, EINVAL);
	call = good, call.flags = 4;
	failed |= refused("SCAN, a reserved flag", TG_SCAN, &call, EINVAL);
	call = good, call.start++;
	failed |= refused("SCAN, part of a page", TG_SCAN, &call, EINVAL);
	call = good, call.end = call.start;
	failed |= refused("SCAN, no page", TG_SCAN, &call, EINVAL);
	call = good, call.start = 0, call.end = ~0xfffUL;
	failed |= refused("SCAN, the kernel's memory", TG_SCAN, &call, EINVAL);
	call = good, call.start = 0, call.end = 0x7ffffffff000UL, call.entries = 8;
	failed |= refused("SCAN, a huge range without an array", TG_SCAN, &call, EFAULT);
	call = good, call.pid = exited();
	failed |= refused("SCAN, a process that ended", TG_SCAN, &call, ESRCH);
	return failed;
}

static int wrong_exchange(void)
{
	const struct tg_exchange good = exchange_of(getpid(), &address, &address, &status, 1);
	struct tg_exchange call;
	int failed;

	if (!works(TG_CALL_EXCHANGE))
		return 0;
	call = good, call.version = 0;
	failed = refused("EXCHANGE, another version", TG_EXCHANGE, &call, EPROTONOSUPPORT);
	call = good, call.zero = 1;
	failed |= refused("EXCHANGE, a reserved field", TG_EXCHANGE, &call, EINVAL);
	call = good, call.flags = 1;
	failed |= refused("EXCHANGE, a reserved flag", TG_EXCHANGE, &call, EINVAL);
	call = good, call.other = -1;
	failed |= refused("EXCHANGE, no other process", TG_EXCHANGE, &call, EINVAL);
	call = good, call.other = exited();
	failed |= refused("EXCHANGE, the other process ended", TG_EXCHANGE, &call, ESRCH);
	call = good, call.second = 8;
	failed |= refused("EXCHANGE, no second list", TG_EXCHANGE, &call, EFAULT);
	return failed;
}

static int wrong_migrate(void)
{
	__u64 frames[4] = { ~0ULL, 1ULL << 50, 0, 1ULL << 39 };
	__s32 statuses[4] = {};
	const struct tg_migrate good = migrate_of(0, frames, statuses, 4);
	struct tg_migrate call;
	int failed;

	call = good, call.version = 3;
	failed = refused("MIGRATE, another version", TG_MIGRATE, &call, EPROTONOSUPPORT);
	call = good, call.zero = 1;
	failed |= refused("MIGRATE, a reserved field", TG_MIGRATE, &call, EINVAL);
	call = good, call.node = -1;
	failed |= refused("MIGRATE, no node", TG_MIGRATE, &call, EINVAL);
	call = good;
	failed |= refused("MIGRATE, frames that are not there", TG_MIGRATE, &call, 0);
	failed |= status_is("the largest number", statuses[0], EFAULT);
	failed |= status_is("beyond all memory", statuses[1], EFAULT);
	failed |= status_is("the first frame", statuses[2], ENOENT);
	failed |= status_is("beyond this guest's memory", statuses[3], EFAULT);
	return failed;
}

/* Of any user: who may open the device may move everybody's pages. */
static int of_another_user(void)
{
	unsigned long *page = map(1);
	struct tg_consolidate call;
	int ends[2], failed;
	pid_t child;
	char byte;

	if (pipe(ends))
		fail("a pipe");
	child = fork();
	if (!child) {
		*page = 1;
		if (setuid(65534) || write(ends[1], "", 1) != 1)
			_exit(1);
		pause();
	}
	close(ends[1]);
	if (read(ends[0], &byte, 1) != 1)
		fail("a process of another user");
	close(ends[0]);
	address = (unsigned long)page;
	call = consolidate_of(child, &address, &status, 1);
	failed = refused("a process of another user", TG_CONSOLIDATE, &call, 0);
	for (int try = 0; try < TRIES && (status == -EBUSY || status == -EAGAIN); try++) {
		usleep(1000);
		if (ioctl(device, TG_CONSOLIDATE, &call))
			fail("CONSOLIDATE");
	}
	failed |= status_is("its page", status, 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	munmap(page, PAGE);
	return failed;
}

int test_refusals(void)
{
	int failed;

	puts("one that is not wrong:");
	failed = of_another_user();
	address = (unsigned long)memory;
	puts("wrong calls:");
	failed |= wrong_consolidate() | wrong_scan();
	return failed | wrong_exchange() | wrong_migrate();
}

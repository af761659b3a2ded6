// SPDX-License-Identifier: GPL-2.0
/*
 * Calls that are good as they are, and what is said of those that are not.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "selftest.h"

struct tg_scan scan_of(pid_t pid, const void *start, unsigned long pages, __u64 *entries, __u32 flags)
{
	return (struct tg_scan){
		.version = TG_VERSION,
		.flags = flags,
		.pid = pid,
		.start = (unsigned long)start,
		.end = (unsigned long)start + pages * PAGE,
		.entries = (unsigned long)entries,
	};
}

struct tg_consolidate consolidate_of(pid_t pid, __u64 *addresses, __s32 *statuses, __u32 count)
{
	return (struct tg_consolidate){
		.version = TG_VERSION,
		.pid = pid,
		.node = TG_ANY_NODE,
		.addresses = (unsigned long)addresses,
		.statuses = (unsigned long)statuses,
		.count = count,
	};
}

struct tg_exchange exchange_of(pid_t pid, __u64 *first, __u64 *second, __s32 *statuses, __u32 count)
{
	return (struct tg_exchange){
		.version = TG_VERSION,
		.pid = pid,
		.count = count,
		.first = (unsigned long)first,
		.second = (unsigned long)second,
		.statuses = (unsigned long)statuses,
	};
}

struct tg_migrate migrate_of(int node, __u64 *frames, __s32 *statuses, __u32 count)
{
	return (struct tg_migrate){
		.version = TG_VERSION,
		.node = node,
		.count = count,
		.frames = (unsigned long)frames,
		.statuses = (unsigned long)statuses,
	};
}

int refused(const char *what, unsigned long number, void *call, int wanted)
{
	return status_is(what, ioctl(device, number, call) ? -errno : 0, wanted);
}

int status_is(const char *what, int status, int wanted)
{
	if (-status == wanted)
		printf("  %s: %s\n", what, wanted ? strerror(wanted) : "done");
	else
		printf("  %s: WRONG: %s, not %s\n", what, strerror(-status), strerror(wanted));
	return -status != wanted;
}

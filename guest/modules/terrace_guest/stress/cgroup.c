// SPDX-License-Identifier: GPL-2.0
/*
 * A cgroup with little memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stress.h"

static char root[] = "/tmp/stress-cgroups-XXXXXX";
static char group[64];
static int mounted;

static int write_in(const char *folder, const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return write_text(path, text);
}

/* 0 if there is one now. */
int have_cgroup(const char *limit)
{
	mkdir("/tmp", 01777);
	mounted = mkdtemp(root) && !mount("none", root, "cgroup2", 0, NULL);
	snprintf(group, sizeof(group), "%s/stress-%d", root, getpid());
	if (mounted)
		write_in(root, "cgroup.subtree_control", "+memory");
	if (mounted && !mkdir(group, 0755) && !write_in(group, "memory.max", limit))
		return 0;
	puts("a small cgroup: not there (no cgroup2 for memory)");
	drop_cgroup();
	return -1;
}

int enter_cgroup(void)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", getpid());
	return write_in(group, "cgroup.procs", number);
}

void drop_cgroup(void)
{
	for (int i = 0; i < 100 && rmdir(group) && errno == EBUSY; i++)
		usleep(10000);
	if (mounted)
		umount(root);
	mounted = 0;
	rmdir(root);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of a process whose cgroup has hardly more memory than they need: moving them is
 * not more memory, and nothing is lost.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

#define CHILD_PAGES	512UL
/* 2 MiB of pages and what a small program needs. */
#define LIMIT		"3M"

/* Where cgroup2 is mounted for the test. */
static char root[] = "/tmp/selftest-cgroups-XXXXXX";
static char group[64];

static int write_file(const char *folder, const char *name, const char *text)
{
	char path[128];
	int file, done;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return -1;
	done = write(file, text, strlen(text)) == (ssize_t)strlen(text);
	close(file);
	return done ? 0 : -1;
}

static long read_number(const char *name)
{
	char path[128], text[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", group, name);
	file = fopen(path, "r");
	if (!file || !fgets(text, sizeof(text), file))
		fail(name);
	fclose(file);
	return atol(text);
}

/* A small group; -1 if this guest has none for memory. */
static int make_group(void)
{
	mkdir("/tmp", 01777);
	if (!mkdtemp(root))
		return -1;
	if (mount("none", root, "cgroup2", 0, NULL)) {
		rmdir(root);
		return -1;
	}
	snprintf(group, sizeof(group), "%s/selftest-%d", root, getpid());
	write_file(root, "cgroup.subtree_control", "+memory");
	if (!mkdir(group, 0755) && !write_file(group, "memory.max", LIMIT))
		return 0;
	rmdir(group);
	umount(root);
	rmdir(root);
	return -1;
}

static void leave_group(void)
{
	/* The last process of it may still be going. */
	for (int i = 0; i < 100 && rmdir(group) && errno == EBUSY; i++)
		usleep(10000);
	umount(root);
	rmdir(root);
}

static volatile unsigned long *shared;
static unsigned long *pages;

static void live(void)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", getpid());
	if (write_file(group, "cgroup.procs", number))
		fail("cgroup.procs");
	for (unsigned long i = 0; i < CHILD_PAGES; i++)
		fill(pages + i * WORDS, i, 0);
	for (unsigned long times = 0;; times++) {
		for (unsigned long i = 0; i < CHILD_PAGES; i++)
			shared[0] += write_next(pages + i * WORDS, i, times);
		shared[1] = times + 1;
	}
}

static unsigned long gather(pid_t child)
{
	unsigned long moved = 0;

	for (int round = 0; round < ROUNDS; round++) {
		int opened = open_device();

		for (unsigned long at = 0; at < CHILD_PAGES; at += TG_BATCH_MAX) {
			__u64 addresses[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_consolidate call = consolidate_of(child, addresses, statuses, TG_BATCH_MAX);

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
				addresses[i] = (unsigned long)(pages + (at + i) * WORDS);
			if (ioctl(opened, TG_CONSOLIDATE, &call))
				fail("CONSOLIDATE");
			moved += call.moved;
		}
		close(opened);
	}
	return moved;
}

int test_cgroup(void)
{
	unsigned long moved, rounds;
	long before, after;
	int alive;
	pid_t child;

	if (make_group()) {
		puts("a small cgroup: not tried: there is none for memory");
		return 0;
	}
	pages = map(CHILD_PAGES);
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("memory");
	child = fork();
	if (!child)
		live();
	while (!shared[1] && !waitpid(child, NULL, WNOHANG))
		usleep(1000);
	before = read_number("memory.current");
	moved = gather(child);
	after = read_number("memory.current");
	rounds = shared[1];
	/* All words are read again before it ends. */
	while (shared[1] < rounds + WORDS && !waitpid(child, NULL, WNOHANG))
		usleep(1000);
	alive = !kill(child, SIGKILL) && waitpid(child, NULL, 0) == child;
	leave_group();
	printf("a small cgroup: %lu pages moved in %d rounds, %ld KiB before and %ld after, %s; %lu words are wrong\n",
	       moved, ROUNDS, before / 1024, after / 1024, alive ? "alive" : "killed", shared[0]);
	munmap(pages, CHILD_PAGES * PAGE);
	return shared[0] || !alive || !moved || after > before + 64 * 1024;
}

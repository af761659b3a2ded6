/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Everything at once on memory whose words are checked all the time, beside all calls of
 * /dev/terrace_guest.
 */
#ifndef TERRACE_GUEST_STRESS_H
#define TERRACE_GUEST_STRESS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "../abi.h"
#include "../selftest/words.h"

#define LANES_MAX	24
#define NUMBERS		256
/* Pages of a block of 2 MiB. */
#define BLOCK		512UL

/* A piece of memory that one thread or process alone writes and checks. */
struct lane {
	char name[40];
	/* It may move within its own GiB of addresses. */
	_Atomic unsigned long start;
	unsigned long pages;
	/* Of larger pages, and of pages that are alike. */
	int large;
	int equal;
	/* Whose it is now; 0: nobody's. */
	atomic_int pid;
	atomic_ulong rounds;
	atomic_ulong wrong;
};

struct call {
	atomic_ulong calls;
	atomic_ulong pages;
	/* By error number: calls that failed, and pages. */
	atomic_ulong failed[NUMBERS];
	atomic_ulong statuses[NUMBERS];
};

/* What all processes of the program share, also those that executed it again. */
struct shared {
	atomic_int stop;
	int lanes;
	struct lane lane[LANES_MAX];
	struct call call[TG_CALLS];
	atomic_ulong halves, forks, executions, kills, unasked_deaths, kernel_moves, settings;
};

extern struct shared *shared;
extern int shared_file;

/* main.c */
void fail(const char *what);

/* common.c */
void share(void);
unsigned long any(unsigned long below);
int write_text(const char *path, const char *text);
void run_thread(void *(*what)(void *), void *data);
void join_threads(void);

/* lanes.c */
struct lane *add_lane(const char *name, unsigned long pages);
unsigned long *lane_page(const struct lane *lane, unsigned long page);
void lane_map(struct lane *lane, int flags, unsigned long times);
void lane_map_part(struct lane *lane, int flags, unsigned long from, unsigned long pages);
void lane_fill(struct lane *lane, unsigned long from, unsigned long pages, unsigned long times);
/* Reads and writes all pages, up to `until` times. */
void lane_write(struct lane *lane, unsigned long from, unsigned long until);
void lane_check(struct lane *lane, unsigned long times);
void lane_check_zero(struct lane *lane, unsigned long from, unsigned long pages);

/* Threads and processes that have lanes. */
void start_writers(void);
void start_mappings(void);
void start_large(void);
void start_equal(void);
void start_processes(void);
void end_processes(void);
int be_executed(char **arguments);
void start_callers(void);

/* swap.c, cgroup.c, settings.c: what is not there is said. */
int have_swap(void);
void drop_swap(void);
int have_cgroup(const char *limit);
int enter_cgroup(void);
void drop_cgroup(void);
void start_settings(void);
void restore_settings(void);

#endif

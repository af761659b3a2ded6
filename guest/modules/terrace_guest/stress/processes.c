// SPDX-License-Identifier: GPL-2.0
/*
 * Processes that fork, execute the program, are killed, or have little memory. Each has a
 * keeper, which is forked before there are threads and begins it again when it ends.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

struct kind {
	struct lane *lane;
	void (*live)(struct lane *lane);
	/* Milliseconds after which it is killed; 0: it is not. */
	unsigned long lives;
};

static pid_t keepers[8];
static int kept;

static void fork_on(struct lane *lane)
{
	unsigned long times = 0;

	lane_map(lane, MAP_PRIVATE, 0);
	for (; !shared->stop; times += 10) {
		pid_t child;

		lane_write(lane, times, times + 5);
		child = fork();
		if (!child) {
			int grandchild = any(3) == 0 && !fork();

			/* What it sees is what was there when it was forked. */
			lane_check(lane, times + 5);
			lane_write(lane, times + 5, times + 8 + grandchild);
			lane_check(lane, times + 8 + grandchild);
			_exit(0);
		}
		shared->forks += child > 0;
		lane_write(lane, times + 5, times + 10);
		lane_check(lane, times + 10);
		if (child > 0 && any(4) == 0)
			shared->kills += !kill(child, SIGKILL);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (child > 0 && any(2))
			waitpid(child, NULL, 0);
	}
	lane_check(lane, times);
}

static void execute_on(struct lane *lane)
{
	char number[16], which[16];

	if (shared->stop)
		return;
	lane_map(lane, MAP_PRIVATE, 0);
	lane_write(lane, 0, 20);
	lane_check(lane, 20);
	shared->executions++;
	snprintf(number, sizeof(number), "%d", shared_file);
	snprintf(which, sizeof(which), "%d", (int)(lane - shared->lane));
	execl("/proc/self/exe", "stress", "--executed", number, which, NULL);
	fail("execution of itself");
}

int be_executed(char **arguments)
{
	struct lane *lane;

	shared_file = atoi(arguments[2]);
	share();
	lane = &shared->lane[atoi(arguments[3])];
	execute_on(lane);
	return 0;
}

static void write_on(struct lane *lane)
{
	unsigned long times;

	lane_map(lane, MAP_PRIVATE, 0);
	for (times = 0; !shared->stop; times += 5) {
		lane_write(lane, times, times + 5);
		lane_check(lane, times + 5);
	}
}

static void write_small(struct lane *lane)
{
	if (enter_cgroup())
		fail("the cgroup");
	write_on(lane);
}

static void keep(const struct kind *kind)
{
	while (!shared->stop) {
		pid_t child = fork();
		int status = 0;

		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			kind->live(kind->lane);
			_exit(0);
		}
		if (child < 0) {
			usleep(10000);
			continue;
		}
		shared->forks++;
		if (kind->lives) {
			usleep(any(kind->lives) * 1000);
			shared->kills += !kill(child, SIGKILL);
		}
		waitpid(child, &status, 0);
		kind->lane->pid = 0;
		if (!kind->lives && (WIFSIGNALED(status) || WEXITSTATUS(status)))
			shared->unasked_deaths++;
	}
	_exit(0);
}

static void start(struct lane *lane, void (*live)(struct lane *lane), unsigned long lives)
{
	struct kind kind = { .lane = lane, .live = live, .lives = lives };
	pid_t keeper = fork();

	if (keeper < 0)
		fail("fork");
	if (!keeper)
		keep(&kind);
	keepers[kept++] = keeper;
}

void start_processes(void)
{
	start(add_lane("a process that forks", 256), fork_on, 0);
	start(add_lane("a process that executes itself", 256), execute_on, 0);
	start(add_lane("a process that is killed", 256), write_on, 300);
	/* Little more than it needs; with swap, less. */
	if (!have_cgroup(have_swap() ? "5M" : "7M"))
		start(add_lane("a process in a small cgroup", 1200), write_small, 0);
}

void end_processes(void)
{
	while (kept)
		waitpid(keepers[--kept], NULL, 0);
	drop_cgroup();
}

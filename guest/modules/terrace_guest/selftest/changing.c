// SPDX-License-Identifier: GPL-2.0
/*
 * Calls on a process that unmaps its memory, forks, executes a program or dies meanwhile.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

#define SECONDS		1
/* In a guest that hardly gets on, until something has happened. */
#define PATIENCE	30
/* Where each such process has its memory, and how many pages. */
#define AT		((unsigned long *)0x500000000000UL)
#define VICTIM_PAGES	256UL

/* What such a process and this one share, also after it has executed itself. */
static struct counts {
	atomic_ulong wrong;
	atomic_ulong rounds;
} *counts;
static int counts_file;

static void share_counts(void)
{
	counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, counts_file, 0);
	if (counts == MAP_FAILED)
		fail("shared memory");
}

static void map_at(void)
{
	void *at = mmap(AT, VICTIM_PAGES * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (at == MAP_FAILED)
		fail("memory");
	madvise(at, VICTIM_PAGES * PAGE, MADV_NOHUGEPAGE);
	for (unsigned long i = 0; i < VICTIM_PAGES; i++)
		fill(AT + i * WORDS, i, 0);
}

static void write_all(unsigned long from, unsigned long until)
{
	for (unsigned long times = from; times < until; times++)
		for (unsigned long i = 0; i < VICTIM_PAGES; i++)
			counts->wrong += write_next(AT + i * WORDS, i, times);
}

static void check_all(unsigned long times)
{
	for (unsigned long i = 0; i < VICTIM_PAGES; i++)
		counts->wrong += damaged(AT + i * WORDS, i, times);
	counts->rounds++;
}

static void unmap_on(void)
{
	for (unsigned long round = 0;; round++) {
		map_at();
		write_all(0, 20);
		/* In parts, so that tables and mappings go at different times. */
		munmap(AT + round % VICTIM_PAGES * WORDS, PAGE);
		madvise(AT, PAGE, MADV_DONTNEED);
		munmap(AT, VICTIM_PAGES * PAGE);
		map_at();
		write_all(0, 20);
		check_all(20);
		munmap(AT, VICTIM_PAGES * PAGE);
	}
}

static void fork_on(void)
{
	map_at();
	for (unsigned long times = 0;; times += 10) {
		pid_t child;

		write_all(times, times + 10);
		child = fork();
		if (!child) {
			check_all(times + 10);
			write_all(times + 10, times + 15);
			check_all(times + 15);
			_exit(0);
		}
		if (child < 0)
			fail("fork");
		write_all(times + 10, times + 20);
		times += 10;
		check_all(times + 10);
		waitpid(child, NULL, 0);
	}
}

static void execute_on(void)
{
	char number[16];

	map_at();
	write_all(0, 50);
	check_all(50);
	snprintf(number, sizeof(number), "%d", counts_file);
	execl("/proc/self/exe", "selftest", "--executed", number, NULL);
	fail("execution of itself");
}

int be_executed(char **arguments)
{
	counts_file = atoi(arguments[2]);
	share_counts();
	execute_on();
	return 1;
}

/* Dies by itself after some rounds, with all its memory there. */
static void die(void)
{
	map_at();
	write_all(0, 100);
	check_all(100);
	raise(SIGKILL);
}

static atomic_int stop;
static _Atomic pid_t victim;
static atomic_ulong scans, moved;

/* Whether a call failed for no good reason: the process may be gone, and blocks may be rare. */
static void mind(int result, const char *what)
{
	if (result && errno != ESRCH && errno != ENOMEM)
		fail(what);
}

static void *scan_on(void *unused)
{
	static __u64 entries[VICTIM_PAGES];
	int opened = open_device();

	while (!atomic_load(&stop)) {
		struct tg_scan call = scan_of(victim, AT, VICTIM_PAGES, entries, TG_SCAN_CLEAR);

		mind(ioctl(opened, TG_SCAN, &call), "SCAN");
		scans++;
	}
	close(opened);
	return unused;
}

static void *gather_on(void *unused)
{
	int opened = open_device();
	unsigned long at = 0;

	while (!atomic_load(&stop)) {
		__u64 addresses[TG_BATCH_MAX];
		__s32 statuses[TG_BATCH_MAX];
		struct tg_consolidate call = consolidate_of(victim, addresses, statuses, TG_BATCH_MAX);
		int result;

		for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
			addresses[i] = (unsigned long)(AT + (at + i) % VICTIM_PAGES * WORDS);
		at += TG_BATCH_MAX;
		result = ioctl(opened, TG_CONSOLIDATE, &call);
		mind(result, "CONSOLIDATE");
		if (!result)
			moved += call.moved;
		/* Else pages stay in the open block, and are not moved again. */
		if (at % (2 * VICTIM_PAGES) == 0) {
			close(opened);
			opened = open_device();
		}
	}
	close(opened);
	return unused;
}

static pid_t begin(void (*what)(void))
{
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		what();
	}
	return child;
}

/* Begins it again as often as it dies. */
static void keep_alive(void (*what)(void))
{
	unsigned long rounds = counts->rounds;
	double begun = now();

	while (now() < begun + SECONDS ||
	       ((!moved || counts->rounds == rounds) && now() < begun + PATIENCE)) {
		usleep(500);
		if (waitpid(victim, NULL, WNOHANG) == victim)
			victim = begin(what);
	}
}

static int beside(const char *what, void (*work)(void))
{
	unsigned long wrong = counts->wrong, rounds = counts->rounds;
	int scanning = works(TG_CALL_SCAN);
	pthread_t scanner, gatherer;

	atomic_store(&stop, 0);
	atomic_store(&scans, 0);
	atomic_store(&moved, 0);
	victim = begin(work);
	if (pthread_create(&gatherer, NULL, gather_on, NULL))
		fail("a thread");
	if (scanning && pthread_create(&scanner, NULL, scan_on, NULL))
		fail("a thread");
	keep_alive(work);
	atomic_store(&stop, 1);
	pthread_join(gatherer, NULL);
	if (scanning)
		pthread_join(scanner, NULL);
	kill(victim, SIGKILL);
	waitpid(victim, NULL, 0);
	wrong = counts->wrong - wrong;
	rounds = counts->rounds - rounds;
	printf("a process that %s: %lu rounds, %lu scans, %lu pages moved; %lu words are wrong\n", what, rounds,
	       scans, moved, wrong);
	return wrong || !rounds || !moved;
}

int test_changing(void)
{
	int failed;

	counts_file = memfd_create("counts", 0);
	if (counts_file < 0 || ftruncate(counts_file, PAGE))
		fail("shared memory");
	share_counts();
	failed = beside("unmaps its memory", unmap_on);
	failed |= beside("forks", fork_on);
	failed |= beside("executes itself", execute_on);
	failed |= beside("dies", die);
	munmap(counts, PAGE);
	close(counts_file);
	return failed;
}

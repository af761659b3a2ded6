// SPDX-License-Identifier: GPL-2.0
/*
 * stress SECONDS: everything at once on memory whose words are checked all the time, beside
 * all calls of /dev/terrace_guest. For a guest that nobody else uses: it changes settings
 * of the kernel, and moves pages of everybody. Exits with 0 if no word was wrong.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stress.h"

/* In this time all that goes on ends. */
#define END_SECONDS	60

static const char *const names[TG_CALLS] = { "SCAN", "CONSOLIDATE", "EXCHANGE", "MIGRATE" };

static unsigned long wrong_words(void)
{
	unsigned long wrong = 0;

	for (int i = 0; i < shared->lanes; i++)
		wrong += shared->lane[i].wrong;
	return wrong;
}

static void show_progress(unsigned int seconds)
{
	printf("%u s:", seconds);
	for (int i = 0; i < TG_CALLS; i++)
		printf(" %s %lu pages,", names[i], shared->call[i].pages);
	printf(" %lu words are wrong\n", wrong_words());
}

static void show_numbers(const char *what, atomic_ulong *numbers)
{
	printf("  %s", what);
	for (int i = 0; i < NUMBERS; i++)
		if (numbers[i])
			printf(" %s %lu", i ? strerrorname_np(i) : "done", numbers[i]);
	puts("");
}

static void show_all(void)
{
	for (int i = 0; i < TG_CALLS; i++) {
		struct call *call = &shared->call[i];

		printf("%s: %lu calls, %lu pages\n", names[i], call->calls, call->pages);
		show_numbers("calls that failed:", call->failed);
		show_numbers("pages:", call->statuses);
	}
	for (int i = 0; i < shared->lanes; i++) {
		struct lane *lane = &shared->lane[i];

		printf("%s: %lu rounds, %lu words are wrong\n", lane->name, lane->rounds, lane->wrong);
	}
	printf("%lu halves, %lu forks, %lu executions, %lu kills, %lu deaths that nobody asked for, %lu batches by move_pages, %lu settings changed\n",
	       shared->halves, shared->forks, shared->executions, shared->kills, shared->unasked_deaths,
	       shared->kernel_moves, shared->settings);
}

static void hang(int unused)
{
	static const char text[] = "it does not end\nFAILED\n";

	(void)unused;
	_exit(write(STDOUT_FILENO, text, sizeof(text) - 1) < 0 ? 3 : 2);
}

/* Processes first: they are forked while there are no threads. */
static void start_all(void)
{
	start_processes();
	start_writers();
	start_mappings();
	start_large();
	start_equal();
	start_callers();
	start_settings();
}

static void stop_all(void)
{
	shared->stop = 1;
	signal(SIGALRM, hang);
	alarm(END_SECONDS);
	join_threads();
	end_processes();
	restore_settings();
	drop_swap();
	alarm(0);
}

static int run(unsigned int seconds)
{
	unsigned long wrong;

	shared_file = memfd_create("shared", 0);
	if (shared_file < 0 || ftruncate(shared_file, sizeof(struct shared)))
		fail("shared memory");
	share();
	start_all();
	for (unsigned int i = 1; i <= seconds; i++) {
		sleep(1);
		if (i % 10 == 0)
			show_progress(i);
	}
	stop_all();
	show_all();
	wrong = wrong_words();
	puts(wrong || shared->unasked_deaths ? "FAILED" : "ok");
	return wrong || shared->unasked_deaths;
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 4 && !strcmp(arguments[1], "--executed"))
		return be_executed(arguments);
	if (count != 2 || atoi(arguments[1]) <= 0) {
		fputs("usage: stress SECONDS\n", stderr);
		return 1;
	}
	return run(atoi(arguments[1]));
}

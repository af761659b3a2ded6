// SPDX-License-Identifier: GPL-2.0
/*
 * Tries /dev/terrace_guest on this program's own memory and its children's, beside
 * threads that go on writing it. Exits with 0 if all calls that work did what they should.
 * With --timings it shows how long they take, instead, and with --calls which ones work.
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "selftest.h"

static struct tg_info info;

/* Tests of one call, if it works here. */
static int run(unsigned int call, const char *name, int (*const tests[])(void))
{
	int failed = 0;

	if (info.call[call].error) {
		printf("%s: does not work here: %s\n", name, info.call[call].why);
		return 0;
	}
	for (int i = 0; tests[i]; i++) {
		failed |= tests[i]();
		fflush(stdout);
	}
	return failed;
}

static int run_all(void)
{
	int failed = run(TG_CALL_CONSOLIDATE, "CONSOLIDATE",
			 (int (*const[])(void)){ test_refusals, test_left, test_twice, test_compat, NULL });

	failed |= run(TG_CALL_SCAN, "SCAN",
		      (int (*const[])(void)){ test_scan, test_scan_large, test_scan_sparse, NULL });
	failed |= run(TG_CALL_CONSOLIDATE, "CONSOLIDATE",
		      (int (*const[])(void)){ test_consolidate, test_no_block, test_together, test_cgroup,
					      test_changing, NULL });
	failed |= run(TG_CALL_EXCHANGE, "EXCHANGE",
		      (int (*const[])(void)){ test_exchange, test_exchange_two, test_frames, test_owners, NULL });
	failed |= run(TG_CALL_MIGRATE, "MIGRATE", (int (*const[])(void)){ test_migrate, NULL });
	return failed;
}

/* Pages that nobody named are as they were. */
static unsigned long damaged_others(void)
{
	unsigned long count = 0;

	for (unsigned long page = 0; page < PAGES; page++) {
		int is_hot = 0;

		for (unsigned long i = 0; i < HOT; i++)
			is_hot |= hot[i] == page;
		count += is_hot ? 0 : damaged(page_at(page), page, 0);
	}
	return count;
}

/* What each call says of itself has grown. */
static int show_counted(void)
{
	struct tg_info before = info;
	int failed = 0;

	if (ioctl(device, TG_INFO, &info))
		fail("INFO");
	printf("INFO: pages of each call:");
	for (int i = 0; i < TG_CALLS; i++) {
		printf(" %llu", info.pages[i] - before.pages[i]);
		failed |= !info.call[i].error && info.pages[i] < before.pages[i];
	}
	puts("");
	return failed || info.pages[TG_CALL_CONSOLIDATE] == before.pages[TG_CALL_CONSOLIDATE];
}

static int show_calls(void)
{
	static const char *const names[TG_CALLS] = { "SCAN", "CONSOLIDATE", "EXCHANGE", "MIGRATE" };

	for (int i = 0; i < TG_CALLS; i++)
		printf("%s: %s%s\n", names[i], info.call[i].error ? "does not work here: " : "works",
		       info.call[i].why);
	return 0;
}

int main(int count, char **arguments)
{
	unsigned long others;
	int failed;

	if (count == 3 && !strcmp(arguments[1], "--executed"))
		return be_executed(arguments);
	device = open_device();
	if (ioctl(device, TG_INFO, &info))
		fail("INFO");
	if (count == 2 && !strcmp(arguments[1], "--calls"))
		return show_calls();
	keep_nodes();
	make_memory();
	if (count == 2 && !strcmp(arguments[1], "--timings"))
		return show_timings();
	failed = run_all() | show_counted();
	others = damaged_others();
	if (others)
		printf("%lu words that nobody wrote are wrong\n", others);
	puts(failed || others ? "FAILED" : "ok");
	return failed || others;
}

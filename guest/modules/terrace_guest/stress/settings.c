// SPDX-License-Identifier: GPL-2.0
/*
 * Settings of the kernel that move pages by themselves, changed all the time and put back
 * in the end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stress.h"

#define LARGE	"/sys/kernel/mm/transparent_hugepage/"
#define EQUAL	"/sys/kernel/mm/ksm/"

static struct setting {
	const char *name;
	const char *path;
	const char *values[4];
	/* What it was; empty: it cannot be read, and is not put back. */
	char was[64];
	int there;
} settings[] = {
	{ .name = "NUMA balancing", .path = "/proc/sys/kernel/numa_balancing", .values = { "0", "1" } },
	{ .name = "larger pages", .path = LARGE "enabled", .values = { "always", "madvise", "never" } },
	{ .name = "khugepaged", .path = LARGE "khugepaged/scan_sleep_millisecs", .values = { "1", "100" } },
	{ .name = "khugepaged's pages", .path = LARGE "khugepaged/pages_to_scan", .values = { "4096" } },
	{ .name = "KSM's pages", .path = EQUAL "pages_to_scan", .values = { "500" } },
	{ .name = "KSM's rest", .path = EQUAL "sleep_millisecs", .values = { "10" } },
	{ .name = "KSM", .path = EQUAL "run", .values = { "1", "1", "1", "2" } },
	{ .name = "compaction", .path = "/proc/sys/vm/compact_memory", .values = { "1" } },
};

#define SETTINGS	(sizeof(settings) / sizeof(settings[0]))

/* What a file says: the choice in brackets, if it has one. */
static void read_setting(struct setting *setting)
{
	char text[128] = "", *begin, *end;
	int file = open(setting->path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return;
	if (read(file, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(file);
	begin = strchr(text, '[');
	end = begin ? strchr(begin, ']') : strchr(text, '\n');
	if (!end)
		return;
	*end = 0;
	snprintf(setting->was, sizeof(setting->was), "%.60s", begin ? begin + 1 : text);
}

static void change(struct setting *setting)
{
	unsigned long values = 0;

	while (values < 4 && setting->values[values])
		values++;
	if (setting->there && !write_text(setting->path, setting->values[any(values)]))
		shared->settings++;
}

static void *change_on(void *unused)
{
	for (unsigned int i = 0; i < SETTINGS; i++)
		change(&settings[i]);
	while (!shared->stop) {
		usleep(100000 + any(400000));
		change(&settings[any(SETTINGS)]);
	}
	return unused;
}

void start_settings(void)
{
	for (unsigned int i = 0; i < SETTINGS; i++) {
		settings[i].there = !access(settings[i].path, W_OK);
		if (settings[i].there)
			read_setting(&settings[i]);
		else
			printf("%s: not there\n", settings[i].name);
	}
	run_thread(change_on, NULL);
}

void restore_settings(void)
{
	for (unsigned int i = 0; i < SETTINGS; i++)
		if (settings[i].was[0])
			write_text(settings[i].path, settings[i].was);
}

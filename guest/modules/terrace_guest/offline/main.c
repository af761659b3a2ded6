// SPDX-License-Identifier: GPL-2.0
/*
 * Takes the memory of node 1 that can be moved offline, block by block, and online again,
 * while the module keeps pages for exchanges and a descriptor has a block of that node
 * open. A kernel that waits for pages that nobody moves does not return.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../abi.h"

#define NODE		"/sys/devices/system/node/node1"
#define PAGE		4096UL
/* Longest time for one block of memory, s. */
#define PATIENCE	120

static char block[64];

static void fail(const char *what)
{
	printf("%s: %s\nFAILED\n", what, strerror(errno));
	exit(1);
}

static void too_late(int signal)
{
	(void)signal;
	printf("%s does not go offline\nFAILED\n", block);
	fflush(stdout);
	_exit(1);
}

/* Opens a block of node 1 in a descriptor, which stays open. */
static void open_block(void)
{
	int device = open("/dev/terrace_guest", O_RDWR | O_CLOEXEC);
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	__u64 address = (unsigned long)page;
	__s32 status;
	struct tg_consolidate call = {
		.version = TG_VERSION,
		.pid = getpid(),
		.node = 1,
		.addresses = (unsigned long)&address,
		.statuses = (unsigned long)&status,
		.count = 1,
	};

	if (device < 0)
		fail("/dev/terrace_guest");
	*page = 1;
	if (ioctl(device, TG_CONSOLIDATE, &call))
		fail("CONSOLIDATE");
	printf("a block of node 1 is open, %u of its pages are free\n", call.left);
}

static int write_to(const char *file, const char *text)
{
	char path[160];
	int at, done;

	snprintf(path, sizeof(path), NODE "/%s/%s", block, file);
	at = open(path, O_WRONLY | O_CLOEXEC);
	if (at < 0)
		return 0;
	done = write(at, text, strlen(text)) > 0;
	close(at);
	return done;
}

static int is_movable(void)
{
	char path[160], zones[32] = "";
	int at;

	snprintf(path, sizeof(path), NODE "/%s/valid_zones", block);
	at = open(path, O_RDONLY | O_CLOEXEC);
	if (at < 0 || read(at, zones, sizeof(zones) - 1) < 0)
		return 0;
	close(at);
	return !strncmp(zones, "Movable", 7);
}

int main(void)
{
	struct dirent *entry;
	DIR *node = opendir(NODE);
	int tried = 0, gone = 0;

	if (!node)
		fail(NODE);
	open_block();
	signal(SIGALRM, too_late);
	while ((entry = readdir(node))) {
		if (strncmp(entry->d_name, "memory", 6) || strlen(entry->d_name) >= sizeof(block))
			continue;
		strcpy(block, entry->d_name);
		if (!is_movable())
			continue;
		alarm(PATIENCE);
		tried++;
		gone += write_to("state", "offline") && write_to("state", "online_movable");
		alarm(0);
	}
	printf("%d of %d blocks went offline and came back\n", gone, tried);
	puts(tried && gone == tried ? "ok" : "FAILED");
	return !tried || gone != tried;
}

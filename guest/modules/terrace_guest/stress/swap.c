// SPDX-License-Identifier: GPL-2.0
/*
 * Swap in compressed memory, if the kernel can have it: its modules are taken from the
 * root folder if somebody put them there.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "stress.h"

#define DEVICE	"/dev/zram0"
#define SIZE	(64UL << 20)

static int has, is_ours;

static void load(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return;
	syscall(SYS_finit_module, file, "", 0);
	close(file);
}

/* What mkswap writes: version, last page, and a mark at the end of the first page. */
static int make_swap(void)
{
	char page[PAGE] = {};
	unsigned int header[2] = { 1, SIZE / PAGE - 1 };
	int file = open(DEVICE, O_WRONLY | O_CLOEXEC), done;

	if (file < 0)
		return -1;
	memcpy(page + 1024, header, sizeof(header));
	memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
	done = write(file, page, PAGE) == (ssize_t)PAGE;
	close(file);
	return done ? 0 : -1;
}

static int is_on(void)
{
	FILE *file = fopen("/proc/swaps", "r");
	char line[256];
	int lines = 0;

	while (file && fgets(line, sizeof(line), file))
		lines++;
	if (file)
		fclose(file);
	return lines > 1;
}

static int begin(void)
{
	/* Each needs those before it. */
	static const char *const modules[] = {
		"/lz4_compress.ko", "/lz4hc_compress.ko", "/lzo-rle.ko", "/zsmalloc.ko", "/zram.ko",
	};
	char size[32];

	for (unsigned int i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		load(modules[i]);
	snprintf(size, sizeof(size), "%lu", SIZE);
	if (write_text("/sys/block/zram0/disksize", size) || make_swap() || swapon(DEVICE, 0))
		return 0;
	is_ours = 1;
	return 1;
}

/* Whether there is swap; it is begun when this is asked first. */
int have_swap(void)
{
	static int asked;

	if (!asked++) {
		has = is_on() || begin();
		if (!has)
			puts("swap: not there (no zram)");
	}
	return has;
}

void drop_swap(void)
{
	if (!is_ours)
		return;
	if (swapoff(DEVICE))
		fail("swapoff");
	write_text("/sys/block/zram0/reset", "1");
}

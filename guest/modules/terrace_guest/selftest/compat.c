// SPDX-License-Identifier: GPL-2.0
/*
 * Calls as programs of 32 bit make them: by their own entry into the kernel, with
 * structures below 4 GiB. `layout.c` sees to it that those are the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

/* ioctl's number in programs of 32 bit. */
#define IOCTL_32	54

/* What a program of 32 bit has. */
struct low {
	struct tg_info info;
	struct tg_scan scan;
	struct tg_consolidate consolidate;
	__u64 entries[2];
	__u64 addresses[2];
	__s32 statuses[2];
};

static long ioctl_32(unsigned long number, void *call)
{
	long result;

	asm volatile("int $0x80"
		     : "=a"(result)
		     : "a"(IOCTL_32), "b"((long)device), "c"(number), "d"(call)
		     : "memory", "r8", "r9", "r10", "r11");
	return (int)result;
}

/*
 * Whether both pages lie in the open block: they were moved there, or had one of its frames
 * from the start, which somebody got and gave back to the kernel.
 */
static int are_in_block(const struct low *low)
{
	for (int i = 0; i < 2; i++)
		if (low->statuses[i] && low->statuses[i] != -EEXIST)
			return 0;
	return 1;
}

/* The step that went wrong, 0 if none did. */
static int call_all(struct low *low)
{
	unsigned long *pages = map(2);

	pages[0] = 1;
	pages[WORDS] = 2;
	if (ioctl_32(TG_INFO, &low->info))
		return 1;
	if (low->info.version != TG_VERSION || low->info.calls != TG_CALLS)
		return 2;
	if (!low->info.call[TG_CALL_SCAN].error) {
		low->scan = scan_of(getpid(), pages, 2, low->entries, TG_SCAN_CLEAR);
		if (ioctl_32(TG_SCAN, &low->scan) || low->scan.present != 2)
			return 3;
		if ((low->entries[1] & TG_ENTRY_FRAME) != frame(pages + WORDS))
			return 4;
	}
	low->consolidate = consolidate_of(getpid(), low->addresses, low->statuses, 2);
	low->addresses[0] = (unsigned long)pages;
	low->addresses[1] = (unsigned long)(pages + WORDS);
	low->statuses[0] = -EAGAIN;
	/* The kernel may have one of them in use just now. */
	for (int try = 0; try < TRIES && !are_in_block(low); try++) {
		if (ioctl_32(TG_CONSOLIDATE, &low->consolidate))
			return 5;
		usleep(1000);
	}
	if (!are_in_block(low)) {
		printf("calls of 32 bit: %d and %d\n", low->statuses[0], low->statuses[1]);
		fflush(stdout);
		return 6;
	}
	return pages[0] == 1 && pages[WORDS] == 2 ? 0 : 7;
}

int test_compat(void)
{
	struct low *low = mmap(NULL, sizeof(*low), PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	int status = 0;
	pid_t child;

	if (low == MAP_FAILED)
		fail("memory");
	/* Where the kernel has no such entry, the process that uses it is killed. */
	child = fork();
	if (!child)
		_exit(call_all(low));
	waitpid(child, &status, 0);
	munmap(low, sizeof(*low));
	if (WIFSIGNALED(status))
		puts("calls of 32 bit: not tried: the kernel has none");
	else
		printf("calls of 32 bit: %s (%d)\n", status ? "WRONG" : "as those of 64", WEXITSTATUS(status));
	return WIFEXITED(status) && status;
}

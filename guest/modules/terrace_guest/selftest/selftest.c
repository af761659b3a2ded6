// SPDX-License-Identifier: GPL-2.0
/*
 * A test of /dev/terrace_guest on this program's own memory: it scans which pages were
 * accessed, and has scattered pages moved into one block while a thread goes on writing
 * them. Exits with 0 if all calls that work did what they should.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../abi.h"

#define PAGE		4096UL
#define PAGES		16384UL
#define HOT		256UL
#define WORDS		(PAGE / sizeof(unsigned long))

#define ROUNDS		20

static int device, pagemap;
static unsigned long *memory;
static unsigned long hot[HOT];
static atomic_int stop;
static atomic_ulong wrong;

static void fail(const char *what)
{
	fprintf(stderr, "selftest: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void open_device(void)
{
	device = open("/dev/terrace_guest", O_RDWR | O_CLOEXEC);
	if (device < 0)
		fail("/dev/terrace_guest");
}

static unsigned long *page_at(unsigned long page)
{
	return memory + page * WORDS;
}

static void fill(unsigned long page, unsigned long with)
{
	for (unsigned long i = 0; i < WORDS; i++)
		page_at(page)[i] = with ^ (page * 31 + i);
}

static unsigned long damaged(unsigned long page, unsigned long with)
{
	unsigned long count = 0;

	for (unsigned long i = 0; i < WORDS; i++)
		count += page_at(page)[i] != (with ^ (page * 31 + i));
	return count;
}

/* Writes hot pages over and over, and reads each again before it writes it anew. */
static void *write_on(void *unused)
{
	unsigned long round = 0;

	(void)unused;
	while (!atomic_load(&stop)) {
		for (unsigned long i = 0; i < HOT; i++) {
			wrong += damaged(hot[i], round);
			fill(hot[i], round + 1);
		}
		round++;
	}
	for (unsigned long i = 0; i < HOT; i++)
		wrong += damaged(hot[i], round);
	return NULL;
}

static unsigned long frame(unsigned long page)
{
	unsigned long entry = 0;
	off_t at = ((unsigned long)page_at(page) / PAGE) * sizeof(entry);

	if (pread(pagemap, &entry, sizeof(entry), at) != sizeof(entry))
		fail("/proc/self/pagemap");
	return entry & ((1UL << 55) - 1);
}

static void scan(__u64 *entries, __u32 flags)
{
	struct tg_scan call = {
		.version = TG_VERSION,
		.flags = flags,
		.pid = getpid(),
		.start = (unsigned long)memory,
		.end = (unsigned long)memory + PAGES * PAGE,
		.entries = (unsigned long)entries,
	};

	if (ioctl(device, TG_SCAN, &call))
		fail("SCAN");
}

static int test_scan(void)
{
	static __u64 entries[PAGES];
	static char is_hot[PAGES];
	unsigned long found = 0, extra = 0, other = 0;

	for (unsigned long i = 0; i < HOT; i++)
		is_hot[hot[i]] = 1;
	scan(entries, TG_SCAN_CLEAR);
	for (unsigned long i = 0; i < HOT; i++)
		page_at(hot[i])[7]++;
	scan(entries, 0);
	for (unsigned long i = 0; i < HOT; i++)
		page_at(hot[i])[7]--;
	for (unsigned long page = 0; page < PAGES; page++) {
		int accessed = !!(entries[page] & TG_ENTRY_ACCESSED);

		found += accessed && is_hot[page];
		extra += accessed && !is_hot[page];
		other += (entries[page] & TG_ENTRY_FRAME) != frame(page);
	}
	printf("SCAN: %lu of %lu accessed pages found, %lu others, %lu frames differ from pagemap's\n",
	       found, HOT, extra, other);
	return found < HOT * 98 / 100 || extra > HOT * 2 / 100 || other;
}

static int test_consolidate(void)
{
	unsigned long moved = 0, inside = 0, block = 0;
	pthread_t writer;

	for (unsigned long i = 0; i < HOT; i++)
		fill(hot[i], 0);
	if (pthread_create(&writer, NULL, write_on, NULL))
		fail("a thread");
	for (int round = 0; round < ROUNDS; round++) {
		/* Another descriptor begins another block. */
		close(device);
		open_device();
		for (unsigned long at = 0; at < HOT; at += TG_BATCH_MAX) {
			__u64 addresses[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_consolidate call = {
				.version = TG_VERSION,
				.pid = getpid(),
				.node = TG_ANY_NODE,
				.addresses = (unsigned long)addresses,
				.statuses = (unsigned long)statuses,
				.count = TG_BATCH_MAX,
			};

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
				addresses[i] = (unsigned long)page_at(hot[at + i]);
			if (ioctl(device, TG_CONSOLIDATE, &call))
				fail("CONSOLIDATE");
			moved += call.moved;
			block = call.block;
		}
	}
	atomic_store(&stop, 1);
	pthread_join(writer, NULL);
	for (unsigned long i = 0; i < HOT; i++)
		inside += frame(hot[i]) - block < 512;
	printf("CONSOLIDATE: %lu pages moved in %d rounds; %lu of %lu are in the last block, %s; %lu words are wrong\n",
	       moved, ROUNDS, inside, HOT, block % 512 ? "which is not aligned" : "which is aligned",
	       atomic_load(&wrong));
	return atomic_load(&wrong) || block % 512 || inside < HOT / 2 || moved < HOT * ROUNDS / 2;
}

static int run(const struct tg_info *info, unsigned int call, const char *name, int (*test)(void))
{
	if (!info->call[call].error)
		return test();
	printf("%s: does not work here: %s\n", name, info->call[call].why);
	return 0;
}

int main(void)
{
	struct tg_info info;
	int failed;

	open_device();
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (pagemap < 0)
		fail("/proc/self/pagemap");
	if (ioctl(device, TG_INFO, &info))
		fail("INFO");
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE))
		fail("memory");
	for (unsigned long page = 0; page < PAGES; page++)
		fill(page, 0);
	/* Scattered, each once. */
	for (unsigned long i = 0; i < HOT; i++)
		hot[i] = i * (PAGES / HOT) + i * 7 % (PAGES / HOT);
	failed = run(&info, TG_CALL_SCAN, "SCAN", test_scan);
	failed |= run(&info, TG_CALL_CONSOLIDATE, "CONSOLIDATE", test_consolidate);
	for (unsigned long page = 0; page < PAGES; page++) {
		int is_hot = 0;

		for (unsigned long i = 0; i < HOT; i++)
			is_hot |= hot[i] == page;
		failed |= !is_hot && damaged(page, 0);
	}
	puts(failed ? "FAILED" : "ok");
	return failed;
}

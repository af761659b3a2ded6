// SPDX-License-Identifier: GPL-2.0
/*
 * A test of /dev/terrace_guest on this program's own memory: it scans which pages were
 * accessed, and has scattered pages moved into one block, exchanged between two nodes
 * and moved by frame number while a thread goes on writing them. Exits with 0 if all
 * calls that work did what they should.
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
#include <sys/syscall.h>
#include <sys/wait.h>
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

/* The node on which a page lies, by the kernel. */
static int node_of(unsigned long page)
{
	void *address = page_at(page);
	int node = -1;

	syscall(SYS_move_pages, 0, 1UL, &address, NULL, &node, 0);
	return node;
}

/* Sends pages of the hot ones, from one on, to a node by the kernel's own call. */
static void send_to(unsigned long from, unsigned long count, int node)
{
	for (unsigned long i = from; i < from + count; i++) {
		void *address = page_at(hot[i]);
		int status;

		if (syscall(SYS_move_pages, 0, 1UL, &address, &node, &status, 2))
			fail("move_pages");
	}
}

static unsigned long on_node(unsigned long from, unsigned long count, int node)
{
	unsigned long found = 0;

	for (unsigned long i = from; i < from + count; i++)
		found += node_of(hot[i]) == node;
	return found;
}

/* Does something while a thread goes on writing hot pages; returns the words that are wrong. */
static unsigned long beside_writer(void (*work)(void))
{
	pthread_t writer;

	for (unsigned long i = 0; i < HOT; i++)
		fill(hot[i], 0);
	atomic_store(&stop, 0);
	if (pthread_create(&writer, NULL, write_on, NULL))
		fail("a thread");
	work();
	atomic_store(&stop, 1);
	pthread_join(writer, NULL);
	return atomic_load(&wrong);
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

static unsigned long moved, block;

static void consolidate_all(void)
{
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
}

static int test_consolidate(void)
{
	unsigned long bad = beside_writer(consolidate_all), inside = 0;

	for (unsigned long i = 0; i < HOT; i++)
		inside += frame(hot[i]) - block < 512;
	printf("CONSOLIDATE: %lu pages moved in %d rounds; %lu of %lu are in the last block, %s; %lu words are wrong\n",
	       moved, ROUNDS, inside, HOT,
	       block % 512 ? "which is not aligned" : "which is aligned", bad);
	return bad || block % 512 || inside < HOT / 2 || moved < HOT * ROUNDS / 2;
}

static unsigned long exchanged, halves;

/* An odd number of rounds: each page ends on the other node. */
static void exchange_all(void)
{
	for (int round = 0; round < ROUNDS + 1; round++) {
		__u64 first[TG_BATCH_MAX], second[TG_BATCH_MAX];
		__s32 statuses[TG_BATCH_MAX];
		struct tg_exchange call = {
			.version = TG_VERSION,
			.pid = getpid(),
			.count = TG_BATCH_MAX,
			.first = (unsigned long)first,
			.second = (unsigned long)second,
			.statuses = (unsigned long)statuses,
		};

		for (unsigned long i = 0; i < TG_BATCH_MAX; i++) {
			first[i] = (unsigned long)page_at(hot[i]);
			second[i] = (unsigned long)page_at(hot[HOT / 2 + i]);
		}
		if (ioctl(device, TG_EXCHANGE, &call))
			fail("EXCHANGE");
		exchanged += call.exchanged;
		halves += call.halves;
	}
}

static int test_exchange(void)
{
	unsigned long bad, ups, downs;

	send_to(0, HOT / 2, 0);
	send_to(HOT / 2, HOT / 2, 1);
	bad = beside_writer(exchange_all);
	ups = on_node(0, HOT / 2, 1);
	downs = on_node(HOT / 2, HOT / 2, 0);
	printf("EXCHANGE: %lu pairs in %d rounds, %lu halves; %lu and %lu of %lu are on the other node; %lu words are wrong\n",
	       exchanged, ROUNDS + 1, halves, ups, downs, HOT / 2, bad);
	return bad || halves || exchanged < HOT / 2 * ROUNDS / 2 || ups < HOT / 4 || downs < HOT / 4;
}

static unsigned long migrated;

static void migrate_all(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		for (unsigned long at = 0; at < HOT; at += TG_BATCH_MAX) {
			__u64 frames[TG_BATCH_MAX];
			__s32 statuses[TG_BATCH_MAX];
			struct tg_migrate call = {
				.version = TG_VERSION,
				.node = round % 2,
				.count = TG_BATCH_MAX,
				.frames = (unsigned long)frames,
				.statuses = (unsigned long)statuses,
			};

			for (unsigned long i = 0; i < TG_BATCH_MAX; i++)
				frames[i] = frame(hot[at + i]);
			if (ioctl(device, TG_MIGRATE, &call))
				fail("MIGRATE");
			migrated += call.moved;
		}
	}
}

static int test_migrate(void)
{
	unsigned long bad, there;

	if (access("/sys/devices/system/node/node1", F_OK)) {
		puts("MIGRATE: not tried: this guest has one node");
		return 0;
	}
	send_to(0, HOT, 1);
	bad = beside_writer(migrate_all);
	there = on_node(0, HOT, (ROUNDS - 1) % 2);
	printf("MIGRATE: %lu pages moved in %d rounds; %lu of %lu are on the node; %lu words are wrong\n",
	       migrated, ROUNDS, there, HOT, bad);
	return bad || there < HOT / 2 || migrated < HOT * ROUNDS / 2;
}

/* The error of a call, which is to be this one. */
static int refused(const char *what, unsigned long number, void *call, int wanted)
{
	int got = ioctl(device, number, call) ? errno : 0;

	if (got != wanted)
		printf("%s: %s, not %s\n", what, strerror(got), strerror(wanted));
	return got != wanted;
}

static struct tg_consolidate of(pid_t pid, __u64 *addresses, __s32 *statuses, __u32 count)
{
	return (struct tg_consolidate){
		.version = TG_VERSION,
		.pid = pid,
		.node = TG_ANY_NODE,
		.addresses = (unsigned long)addresses,
		.statuses = (unsigned long)statuses,
		.count = count,
	};
}

/* Calls that are wrong as a whole. */
static int test_refusals(int scans)
{
	__u64 address = (unsigned long)memory;
	__s32 status;
	struct tg_consolidate good = of(getpid(), &address, &status, 1), call;
	struct tg_scan scan = {
		.version = TG_VERSION,
		.pid = getpid(),
		.start = (unsigned long)memory + 1,
		.end = (unsigned long)memory + PAGE,
	};
	int failed;

	call = good, call.version = 9;
	failed = refused("another version", TG_CONSOLIDATE, &call, EPROTONOSUPPORT);
	call = good, call.pid = 4194303;
	failed |= refused("no process", TG_CONSOLIDATE, &call, ESRCH);
	call = good, call.pid = 2;
	failed |= refused("a thread of the kernel", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.count = TG_BATCH_MAX + 1;
	failed |= refused("too many", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.count = 0;
	failed |= refused("none", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.node = 77;
	failed |= refused("no node", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.zero = 1;
	failed |= refused("a reserved field", TG_CONSOLIDATE, &call, EINVAL);
	call = good, call.addresses = 8;
	failed |= refused("no list", TG_CONSOLIDATE, &call, EFAULT);
	failed |= refused("no call", _IO('t', 0x7f), &call, ENOTTY);
	if (!scans)
		return failed;
	failed |= refused("part of a page", TG_SCAN, &scan, EINVAL);
	scan.start = 0, scan.end = ~0xfffUL;
	failed |= refused("the kernel's memory", TG_SCAN, &scan, EINVAL);
	return failed;
}

/* Pages that are left as they are, each with its number. */
static int test_left(void)
{
	enum { ALL = 8 };
	unsigned long *hole = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned long *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long *zero = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned long *locked = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	__u64 addresses[ALL] = {
		(unsigned long)page_at(0) + 1, 4096, ~0xfffUL, (unsigned long)hole, (unsigned long)shared,
		(unsigned long)zero, (unsigned long)locked, (unsigned long)page_at(1),
	};
	const int wanted[ALL] = { EINVAL, EFAULT, EFAULT, ENOENT, EOPNOTSUPP, EINVAL, EPERM, EACCES };
	__s32 statuses[ALL] = {};
	struct tg_consolidate call = of(getpid(), addresses, statuses, ALL);
	int failed = 0, held[2];
	char byte;
	pid_t child;

	*shared = 1;
	/* The page of zeros. */
	byte = *(volatile char *)zero;
	mlock(locked, PAGE);
	*locked = 1;
	if (pipe(held))
		fail("a pipe");
	child = fork();
	if (!child) {
		/* Until the pipe is closed the child shares its parent's pages. */
		close(held[1]);
		_exit(read(held[0], &byte, 1) != 0);
	}
	if (ioctl(device, TG_CONSOLIDATE, &call))
		fail("CONSOLIDATE");
	close(held[1]);
	close(held[0]);
	waitpid(child, NULL, 0);
	for (int i = 0; i < ALL; i++) {
		if (-statuses[i] == wanted[i])
			continue;
		printf("page %d: %s, not %s\n", i, strerror(-statuses[i]), strerror(wanted[i]));
		failed = 1;
	}
	printf("%d wrong pages are left as they are%s\n", ALL, failed ? ", but not for the right reason" : "");
	return failed || call.moved;
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
	failed = test_refusals(!info.call[TG_CALL_SCAN].error) | test_left();
	failed |= run(&info, TG_CALL_SCAN, "SCAN", test_scan);
	failed |= run(&info, TG_CALL_CONSOLIDATE, "CONSOLIDATE", test_consolidate);
	failed |= run(&info, TG_CALL_EXCHANGE, "EXCHANGE", test_exchange);
	failed |= run(&info, TG_CALL_MIGRATE, "MIGRATE", test_migrate);
	for (unsigned long page = 0; page < PAGES; page++) {
		int is_hot = 0;

		for (unsigned long i = 0; i < HOT; i++)
			is_hot |= hot[i] == page;
		failed |= !is_hot && damaged(page, 0);
	}
	puts(failed ? "FAILED" : "ok");
	return failed;
}

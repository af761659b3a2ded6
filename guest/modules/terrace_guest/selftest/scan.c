// SPDX-License-Identifier: GPL-2.0
/*
 * SCAN: which pages were accessed, base pages and larger ones, and of all addresses.
 */
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "selftest.h"

/* All that a process can have with page tables of four levels. */
#define ALL_PAGES	(0x7ffffffff000UL / PAGE)
/* Far more than it takes, also in an emulated guest; each page one by one would take hours. */
#define SPARSE_SECONDS	5

static struct tg_scan scan(const void *start, unsigned long pages, __u64 *entries, __u32 flags)
{
	struct tg_scan call = scan_of(getpid(), start, pages, entries, flags);

	if (ioctl(device, TG_SCAN, &call))
		fail("SCAN");
	return call;
}

int test_scan(void)
{
	static __u64 entries[PAGES];
	static char is_hot[PAGES];
	unsigned long found = 0, extra = 0, other = 0;

	for (unsigned long i = 0; i < HOT; i++)
		is_hot[hot[i]] = 1;
	scan(memory, PAGES, entries, TG_SCAN_CLEAR);
	for (unsigned long i = 0; i < HOT; i++)
		page_at(hot[i])[7]++;
	scan(memory, PAGES, entries, 0);
	for (unsigned long i = 0; i < HOT; i++)
		page_at(hot[i])[7]--;
	for (unsigned long page = 0; page < PAGES; page++) {
		int accessed = !!(entries[page] & TG_ENTRY_ACCESSED);

		found += accessed && is_hot[page];
		extra += accessed && !is_hot[page];
		other += (entries[page] & TG_ENTRY_FRAME) != frame(page_at(page));
	}
	printf("SCAN: %lu of %lu accessed pages found, %lu others, %lu frames differ from pagemap's\n",
	       found, HOT, extra, other);
	return found < HOT * 98 / 100 || extra > HOT * 2 / 100 || other;
}

/* Parts of a larger page that say so, have their frame, and were accessed or not. */
static unsigned long parts(const unsigned long *page, const __u64 *entries, int accessed)
{
	const __u64 flags = TG_ENTRY_PRESENT | TG_ENTRY_LARGE | (accessed ? TG_ENTRY_ACCESSED : 0);
	unsigned long good = 0;

	for (unsigned long i = 0; i < BLOCK; i++)
		good += entries[i] == (flags | (frame(page) + i));
	return good;
}

int test_scan_large(void)
{
	static __u64 entries[BLOCK];
	unsigned long *page = map_large(), good = 0;

	if (!page) {
		puts("SCAN of a larger page: not tried: there is none");
		return 0;
	}
	if (scan(page, BLOCK, entries, 0).present)
		puts("SCAN of a larger page: it is counted as base pages");
	good += parts(page, entries, 1);
	/* A part of it alone: nothing is cleared. */
	scan(page, BLOCK - 1, entries, TG_SCAN_CLEAR);
	scan(page + WORDS, BLOCK - 1, entries + 1, TG_SCAN_CLEAR);
	good += parts(page, entries, 1);
	scan(page, BLOCK, entries, TG_SCAN_CLEAR);
	good += parts(page, entries, 1);
	scan(page, BLOCK, entries, 0);
	good += parts(page, entries, 0);
	page[9 * WORDS]++;
	scan(page, BLOCK, entries, 0);
	good += parts(page, entries, 1);
	printf("SCAN of a larger page: %lu of %lu parts are as they should be\n", good, 5 * BLOCK);
	munmap(page, BLOCK * PAGE);
	return good != 5 * BLOCK;
}

int test_scan_sparse(void)
{
	/* Memory is taken for what is written of it alone. */
	__u64 *entries = mmap(NULL, ALL_PAGES * sizeof(*entries), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned long good = 0;
	struct tg_scan call;
	double seconds;

	if (entries == MAP_FAILED) {
		puts("SCAN of all addresses: not tried: no room for its array");
		return 0;
	}
	seconds = now();
	call = scan(NULL, ALL_PAGES, entries, TG_SCAN_SPARSE);
	seconds = now() - seconds;
	for (unsigned long page = 0; page < PAGES; page++) {
		__u64 entry = entries[(unsigned long)page_at(page) / PAGE];

		good += (entry & TG_ENTRY_PRESENT) && (entry & TG_ENTRY_FRAME) == frame(page_at(page));
	}
	munmap(entries, ALL_PAGES * sizeof(*entries));
	printf("SCAN of all addresses: %llu pages, among them %lu of %lu, %s\n", call.present, good,
	       PAGES, seconds < SPARSE_SECONDS ? "quickly" : "slowly");
	return good != PAGES || seconds >= SPARSE_SECONDS;
}

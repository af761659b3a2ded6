// SPDX-License-Identifier: GPL-2.0
/*
 * SCAN: accessed bits of a process's base pages, read and cleared.
 *
 * Processors keep translations, and set no bit for pages whose translation they keep:
 * after the bits were cleared all of the process's translations are flushed, once.
 */
#include <linux/page_idle.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

/* Memory that is scanned while the process's mmap_lock is held. */
#define HOLD		(1UL << 30)
/* Entries of one page table. */
#define TABLE		(PTRS_PER_PTE * PAGE_SIZE)

struct counts {
	u64 present;
	u64 accessed;
	bool cleared;
};

/* A run of pages that one table has. */
struct run {
	unsigned long pages;
	bool clear;
	u64 *entries;
	struct counts *counts;
};

/* Whether the page was accessed; the bit is cleared, and reclaim keeps the hint. */
static bool take_accessed(pte_t *entry, pte_t pte)
{
	if (!test_and_clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&entry->pte))
		return false;
	if (!pte_special(pte) && !tg_pte_devmap(pte) && pfn_valid(pte_pfn(pte)))
		folio_set_young(page_folio(pfn_to_page(pte_pfn(pte))));
	return true;
}

static void scan_table(pte_t *entry, void *data)
{
	struct run *run = data;
	struct counts *counts = run->counts;
	unsigned long i;

	for (i = 0; i < run->pages; i++) {
		pte_t pte = ptep_get(entry + i);
		bool accessed;

		if (!pte_present(pte))
			continue;
		run->entries[i] = TG_ENTRY_PRESENT | (pte_pfn(pte) & TG_ENTRY_FRAME);
		counts->present++;
		accessed = pte_young(pte);
		if (accessed && run->clear) {
			accessed = take_accessed(entry + i, pte);
			counts->cleared |= accessed;
		}
		if (accessed) {
			run->entries[i] |= TG_ENTRY_ACCESSED;
			counts->accessed++;
		}
	}
}

/* Scans a part of a range while the mmap_lock is held. */
static void scan_part(struct mm_struct *mm, unsigned long start,
		      unsigned long end, bool clear, u64 *entries,
		      struct counts *counts)
{
	unsigned long at, next, i;

	for (at = start; at < end; at = next) {
		struct run run = {
			.clear = clear,
			.entries = entries + (at - start) / PAGE_SIZE,
			.counts = counts,
		};
		struct vm_area_struct *vma;

		next = min(end, (at & ~(TABLE - 1)) + TABLE);
		run.pages = (next - at) / PAGE_SIZE;
		vma = find_vma_intersection(mm, at, next);
		/* Device memory has no pages; huge ones of a pool have other tables. */
		if (!vma || vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_IO))
			continue;
		if (tg_table_with(mm, at, scan_table, &run) == TG_LARGE)
			for (i = 0; i < run.pages; i++)
				run.entries[i] = TG_ENTRY_LARGE;
		cond_resched();
	}
}

/* Scans at most HOLD of a range; the entries are the caller's buffer. */
static int scan_hold(struct mm_struct *mm, unsigned long start,
		     unsigned long end, bool clear, u64 *entries,
		     struct counts *counts)
{
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	counts->cleared = false;
	scan_part(mm, start, end, clear, entries, counts);
	if (counts->cleared)
		tg_flush(mm);
	mmap_read_unlock(mm);
	return 0;
}

static int check(const struct tg_scan *scan)
{
	if (scan->flags & ~TG_SCAN_CLEAR || scan->zero)
		return -EINVAL;
	if ((scan->start | scan->end) & ~PAGE_MASK || scan->start >= scan->end)
		return -EINVAL;
	if (scan->end > TASK_SIZE_MAX || scan->pid <= 0)
		return -EINVAL;
	return 0;
}

int tg_scan(struct tg_scan *scan)
{
	bool clear = scan->flags & TG_SCAN_CLEAR;
	struct counts counts = {};
	unsigned long at, next, size;
	struct mm_struct *mm;
	u64 *entries;
	int err = check(scan);

	if (err)
		return err;
	mm = tg_memory_of(scan->pid);
	if (IS_ERR(mm))
		return PTR_ERR(mm);
	size = min_t(u64, scan->end - scan->start, HOLD) / PAGE_SIZE * sizeof(u64);
	entries = kvzalloc(size, GFP_KERNEL_ACCOUNT);
	if (!entries)
		err = -ENOMEM;
	for (at = scan->start; at < scan->end && !err; at = next) {
		u64 to = scan->entries + (at - scan->start) / PAGE_SIZE * sizeof(u64);

		next = min_t(u64, scan->end, at + HOLD);
		size = (next - at) / PAGE_SIZE * sizeof(u64);
		memset(entries, 0, size);
		err = scan_hold(mm, at, next, clear, entries, &counts);
		/* Without the lock: the caller's own memory may fault. */
		if (!err && copy_to_user(u64_to_user_ptr(to), entries, size))
			err = -EFAULT;
		if (!err && fatal_signal_pending(current))
			err = -EINTR;
	}
	kvfree(entries);
	mmput(mm);
	scan->present = counts.present;
	scan->accessed = counts.accessed;
	return err;
}

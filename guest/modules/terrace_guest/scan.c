// SPDX-License-Identifier: GPL-2.0
/*
 * SCAN: accessed bits of a process's pages, read and cleared.
 *
 * Processors keep translations, and set no bit for pages whose translation they keep:
 * after the bits of a GiB were cleared all of the process's translations are flushed, once.
 */
#include <linux/page_idle.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

/* Memory whose entries are kept and copied out at once. */
#define HOLD		(1UL << 30)
/* Entries of one page table. */
#define TABLE		(PTRS_PER_PTE * PAGE_SIZE)

/* A scan, and what it has found. */
struct state {
	struct mm_struct *mm;
	bool clear;
	/* The entries of one HOLD, and whether any is not 0. */
	u64 *entries;
	bool found;
	/* A bit was cleared since the last flush. */
	bool cleared;
	u64 present;
	u64 accessed;
};

/* A run of pages that one table has. */
struct run {
	struct state *state;
	unsigned long pages;
	u64 *entries;
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
	struct state *state = run->state;
	unsigned long i;

	for (i = 0; i < run->pages; i++) {
		pte_t pte = ptep_get(entry + i);
		bool accessed;

		if (!pte_present(pte))
			continue;
		run->entries[i] = TG_ENTRY_PRESENT | (pte_pfn(pte) & TG_ENTRY_FRAME);
		state->found = true;
		state->present++;
		accessed = pte_young(pte);
		if (accessed && state->clear) {
			accessed = take_accessed(entry + i, pte);
			state->cleared |= accessed;
		}
		if (accessed) {
			run->entries[i] |= TG_ENTRY_ACCESSED;
			state->accessed++;
		}
	}
}

/* Whether a page of 2 MiB was accessed; its bit is cleared if the run has all of it. */
static bool leaf_accessed(pmd_t *entry, pmd_t pmd, const struct run *run)
{
	if (!pmd_young(pmd))
		return false;
	if (!run->state->clear || run->pages < PTRS_PER_PTE)
		return true;
	if (!test_and_clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&entry->pmd))
		return false;
	folio_set_young(page_folio(pmd_page(pmd)));
	run->state->cleared = true;
	return true;
}

struct leaf {
	struct run *run;
	/* The first page of the run. */
	unsigned long address;
};

static void scan_leaf(pmd_t *entry, void *data)
{
	struct leaf *leaf = data;
	struct run *run = leaf->run;
	pmd_t pmd = tg_pmd_read(entry);
	u64 frame = pmd_pfn(pmd) + (leaf->address & (TABLE - 1)) / PAGE_SIZE;
	u64 also = TG_ENTRY_LARGE | TG_ENTRY_PRESENT;
	unsigned long i;

	if (leaf_accessed(entry, pmd, run))
		also |= TG_ENTRY_ACCESSED;
	for (i = 0; i < run->pages; i++)
		run->entries[i] = ((frame + i) & TG_ENTRY_FRAME) | also;
}

/* Something larger than a table's pages: often a page of 2 MiB, else left alone. */
static void scan_large(struct run *run, unsigned long address)
{
	struct leaf leaf = { .run = run, .address = address };
	unsigned long i;

	run->state->found = true;
	if (tg_leaf_with(run->state->mm, address, scan_leaf, &leaf))
		return;
	/* It may have been split meanwhile. */
	if (tg_table_with(run->state->mm, address, scan_table, run) != TG_LARGE)
		return;
	for (i = 0; i < run->pages; i++)
		run->entries[i] = TG_ENTRY_LARGE;
}

/* Scans pages of one table and one mapping; returns where to go on. */
static unsigned long scan_run(struct state *state, unsigned long at,
			      unsigned long end, u64 *entries)
{
	unsigned long next = min(end, (at & ~(TABLE - 1)) + TABLE);
	struct run run = {
		.state = state,
		.pages = (next - at) / PAGE_SIZE,
		.entries = entries,
	};

	switch (tg_table_with(state->mm, at, scan_table, &run)) {
	case TG_EMPTY:
		return min(end, (at & PUD_MASK) + PUD_SIZE);
	case TG_LARGE:
		scan_large(&run, at);
		break;
	case TG_BASE:
	case TG_NONE:
		break;
	}
	return next;
}

/* Scans from an address on, until somebody waits for the lock; returns where to go on. */
static unsigned long scan_locked(struct state *state, unsigned long start,
				 unsigned long at, unsigned long end)
{
	struct mm_struct *mm = state->mm;

	do {
		struct vm_area_struct *vma = find_vma_intersection(mm, at, end);
		unsigned long until;

		if (!vma)
			return end;
		at = max(at, vma->vm_start);
		until = min(end, vma->vm_end);
		/* Device memory has no pages; huge ones of a pool have other tables. */
		if (vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_IO))
			at = until;
		else
			at = scan_run(state, at, until,
				      state->entries + (at - start) / PAGE_SIZE);
		cond_resched();
	} while (at < end && !mmap_lock_is_contended(mm) && !fatal_signal_pending(current));
	return at;
}

/* Scans at most HOLD of a range. */
static int scan_hold(struct state *state, unsigned long start, unsigned long end)
{
	unsigned long at = start;

	while (at < end) {
		if (mmap_read_lock_killable(state->mm))
			return -EINTR;
		at = scan_locked(state, start, at, end);
		mmap_read_unlock(state->mm);
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	if (state->cleared)
		tg_flush(state->mm);
	state->cleared = false;
	return 0;
}

static int check(const struct tg_scan *scan)
{
	if (scan->flags & ~(TG_SCAN_CLEAR | TG_SCAN_SPARSE) || scan->zero)
		return -EINVAL;
	if ((scan->start | scan->end) & ~PAGE_MASK || scan->start >= scan->end)
		return -EINVAL;
	if (scan->end > TASK_SIZE_MAX || scan->pid <= 0)
		return -EINVAL;
	return 0;
}

static size_t entries_size(const struct tg_scan *scan)
{
	return min_t(u64, scan->end - scan->start, HOLD) / PAGE_SIZE * sizeof(u64);
}

static int scan_all(const struct tg_scan *scan, struct state *state)
{
	unsigned long at, next, size;
	int err;

	for (at = scan->start; at < scan->end; at = next) {
		u64 to = scan->entries + (at - scan->start) / PAGE_SIZE * sizeof(u64);

		/* Larger pages do not lie in two. */
		next = min_t(u64, scan->end, (at & ~(HOLD - 1)) + HOLD);
		size = (next - at) / PAGE_SIZE * sizeof(u64);
		if (state->found)
			memset(state->entries, 0, entries_size(scan));
		state->found = false;
		err = scan_hold(state, at, next);
		if (err)
			return err;
		if (!state->found && scan->flags & TG_SCAN_SPARSE)
			continue;
		/* Without the lock: the caller's own memory may fault. */
		if (copy_to_user(u64_to_user_ptr(to), state->entries, size))
			return -EFAULT;
	}
	return 0;
}

int tg_scan(struct tg_scan *scan)
{
	struct state state = { .clear = scan->flags & TG_SCAN_CLEAR };
	int err = check(scan);

	if (err)
		return err;
	state.mm = tg_memory_of(scan->pid);
	if (IS_ERR(state.mm))
		return PTR_ERR(state.mm);
	state.entries = kvzalloc(entries_size(scan), GFP_KERNEL_ACCOUNT);
	err = state.entries ? scan_all(scan, &state) : -ENOMEM;
	kvfree(state.entries);
	mmput(state.mm);
	tg_count(TG_CALL_SCAN, state.present);
	scan->present = state.present;
	scan->accessed = state.accessed;
	return err;
}

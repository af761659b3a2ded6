// SPDX-License-Identifier: GPL-2.0
/*
 * Two pages change places without a third: their bytes are exchanged, and with them what
 * makes a frame the page of a process. Only with in_place=1: it calls what the kernel does
 * not export, and changes fields that are the kernel's own.
 *
 * Both pages are out of all page tables, off the kernel's lists, locked, and nobody else has
 * a reference: who faults waits for the lock, and who looks for a page by its frame finds one
 * whose count is 0.
 */
#include <linux/highmem.h>
#include <linux/migrate.h>
#include <linux/moduleparam.h>
#include <linux/page-flags.h>
#include <linux/page_ref.h>

#include "terrace_guest.h"

static bool in_place;
module_param(in_place, bool, 0444);
MODULE_PARM_DESC(in_place, "EXCHANGE swaps two pages in place and keeps none (default off)");

bool tg_swaps_in_place(void)
{
	return in_place;
}

/* What the kernel knows of a page's use goes where its bytes go. */
static const unsigned int carried[] = {
	PG_dirty, PG_referenced, PG_active, PG_swapbacked, PG_workingset,
#if defined(CONFIG_PAGE_IDLE_FLAG) && defined(CONFIG_64BIT)
	PG_young, PG_idle,
#endif
};

static void swap_flag(struct folio *a, struct folio *b, unsigned int flag)
{
	bool first = test_bit(flag, folio_flags(a, 0));
	bool second = test_bit(flag, folio_flags(b, 0));

	assign_bit(flag, folio_flags(a, 0), second);
	assign_bit(flag, folio_flags(b, 0), first);
}

static void swap_owners(struct folio *a, struct folio *b)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(carried); i++)
		swap_flag(a, b, carried[i]);
	swap(a->mapping, b->mapping);
	swap(a->index, b->index);
#ifdef CONFIG_MEMCG
	/* Each cgroup is charged for as many pages as before. */
	swap(a->memcg_data, b->memcg_data);
#endif
}

static void swap_bytes(struct page *a, struct page *b)
{
	u64 *first = kmap_local_page(a);
	u64 *second = kmap_local_page(b);
	int i;

	for (i = 0; i < PAGE_SIZE / sizeof(u64); i++)
		swap(first[i], second[i]);
	kunmap_local(second);
	kunmap_local(first);
}

/* Whether a page that no table has is the process's alone and has nothing that would have to follow. */
static bool is_plain(struct page *page)
{
	struct folio *folio = page_folio(page);

	return !folio_test_swapcache(folio) && !folio_test_unevictable(folio) &&
	       !folio_test_private(folio) && !folio_mapped(folio) &&
	       !PageAnonExclusive(page) && !PageHWPoison(page);
}

/* Nobody else can get a reference until they are unfrozen. The one that is there is ours. */
static bool freeze(struct folio *a, struct folio *b)
{
	if (!folio_ref_freeze(a, 1))
		return false;
	if (folio_ref_freeze(b, 1))
		return true;
	folio_ref_unfreeze(a, 1);
	return false;
}

static int swap_frames(struct page *a, struct page *b)
{
	struct folio *first = page_folio(a), *second = page_folio(b);

	if (!is_plain(a) || !is_plain(b))
		return -EBUSY;
	if (!freeze(first, second))
		return -EAGAIN;
	swap_bytes(a, b);
	swap_owners(first, second);
	folio_ref_unfreeze(second, 1);
	folio_ref_unfreeze(first, 1);
	/* What waited at a's entry finds b there, and the other way round. */
	tg_remap(first, second);
	tg_remap(second, first);
	return 0;
}

/* Takes a page out of the tables; it is there again after give_back(). */
static int take_out(const struct tg_mapped *at, unsigned long *src)
{
	unsigned long dst = 0;
	struct migrate_vma args = {
		.vma = at->vma,
		.src = src,
		.dst = &dst,
		.start = at->address,
		.end = at->address + PAGE_SIZE,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};
	int err;

	*src = 0;
	err = migrate_vma_setup(&args);
	if (err)
		return err;
	return tg_is_same(*src, at->page) ? 0 : -EBUSY;
}

/* Maps a page that is still at its entry, gives it to the kernel's lists and unlocks it. */
static void give_back(unsigned long src)
{
	unsigned long dst = 0;

	migrate_device_finalize(&src, &dst, 1);
}

/* Swaps two pages; the mmap_lock of each one's process is held. */
int tg_page_swap(const struct tg_mapped *a, const struct tg_mapped *b)
{
	unsigned long first, second;
	int err = take_out(a, &first);

	if (!err) {
		err = take_out(b, &second);
		if (!err)
			err = swap_frames(a->page, b->page);
		give_back(second);
	}
	give_back(first);
	return err;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The pages of a tier's balloon: taken from the tier's node alone and given back
 * to it.
 *
 * Pages of order 0 are kept by the kernel's balloon core, which lets compaction
 * and memory offlining move them. Blocks of order 9 cannot be moved by it, so
 * they are never taken from a movable zone.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/page-flags.h>

#include "hyperflex.h"

#define HF_GFP (__GFP_THISNODE | __GFP_NOWARN | __GFP_NORETRY | __GFP_NOMEMALLOC)

/* A block is taken if there is one, a base page also after a try to reclaim one. */
#define HF_GFP_HUGE ((GFP_HIGHUSER & ~__GFP_RECLAIM) | HF_GFP)
#define HF_GFP_BASE ((HF_PAGES_MOVE ? GFP_HIGHUSER_MOVABLE : GFP_HIGHUSER) | HF_GFP)

struct page *hf_page_alloc(const struct hf_tier *tier, unsigned int order)
{
	struct page *page;

	page = alloc_pages_node(tier->node, order ? HF_GFP_HUGE : HF_GFP_BASE, order);
	if (page && WARN_ON_ONCE(page_to_nid(page) != tier->node)) {
		__free_pages(page, order);
		return NULL;
	}
	return page;
}

/* Keeps dumps and hibernation away from what the host has taken. */
static void block_set_offline(struct page *block, bool offline)
{
	unsigned long i;

	for (i = 0; i < HF_HUGE_PAGES; i++)
		if (offline)
			__SetPageOffline(block + i);
		else
			__ClearPageOffline(block + i);
}

static void set_inside(struct page *page, unsigned int order, bool inside)
{
	long pages = 1L << order;

	/* What the host holds is no part of the node: its size follows. */
	adjust_managed_page_count(page, inside ? -pages : pages);
	if (order)
		block_set_offline(page, inside);
}

/* Puts a request's pages into the balloon. */
void hf_pages_enter(struct hf_tier *tier, struct hf_slot *slot)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, &slot->base, lru) {
		list_del(&page->lru);
		set_inside(page, HF_ORDER_BASE, true);
		balloon_page_enqueue(&tier->balloon, page);
		atomic_long_inc(&tier->base_pages);
	}
	list_for_each_entry(page, &slot->huge, lru) {
		set_inside(page, HF_ORDER_HUGE, true);
		tier->huge_pages += HF_HUGE_PAGES;
	}
	list_splice_init(&slot->huge, &tier->huge);
}

/* Makes base pages of a block, so that a part of it can be given back. */
static void block_break(struct hf_tier *tier, struct page *block)
{
	unsigned long i;

	list_del(&block->lru);
	block_set_offline(block, false);
	split_page(block, HF_ORDER_HUGE);
	for (i = 0; i < HF_HUGE_PAGES; i++)
		balloon_page_enqueue(&tier->balloon, block + i);
	tier->huge_pages -= HF_HUGE_PAGES;
	atomic_long_add(HF_HUGE_PAGES, &tier->base_pages);
}

static bool take_block(struct hf_tier *tier, struct hf_slot *slot)
{
	struct page *block = list_first_entry_or_null(&tier->huge, struct page, lru);

	if (!block)
		return false;
	list_move(&block->lru, &slot->huge);
	set_inside(block, HF_ORDER_HUGE, false);
	hf_slot_add(slot, block, HF_ORDER_HUGE);
	tier->huge_pages -= HF_HUGE_PAGES;
	return true;
}

static void take_base(struct hf_tier *tier, struct hf_slot *slot, unsigned long want)
{
	struct page *block = list_first_entry_or_null(&tier->huge, struct page, lru);
	struct page *page;

	if ((unsigned long)atomic_long_read(&tier->base_pages) < want && block)
		block_break(tier, block);
	atomic_long_sub(balloon_page_list_dequeue(&tier->balloon, &slot->base, want),
			&tier->base_pages);
	list_for_each_entry(page, &slot->base, lru) {
		set_inside(page, HF_ORDER_BASE, false);
		hf_slot_add(slot, page, HF_ORDER_BASE);
	}
}

/*
 * Takes pages out of the balloon into an idle slot: whole blocks as long as they
 * are wanted whole, else base pages. Pages that are just being moved stay.
 */
void hf_pages_leave(struct hf_tier *tier, struct hf_slot *slot, unsigned long want)
{
	bool has_base = tier->dev->orders & BIT(HF_ORDER_BASE);

	while (want && slot->entries < HF_ENTRIES_MAX) {
		if (has_base && want < HF_HUGE_PAGES)
			break;
		if (!take_block(tier, slot))
			break;
		want -= min(want, HF_HUGE_PAGES);
	}
	want = min_t(unsigned long, want, HF_ENTRIES_MAX - slot->entries);
	if (has_base && want)
		take_base(tier, slot, want);
}

/* Gives a request's pages, which are in no balloon, to the kernel. */
void hf_pages_free(struct hf_slot *slot)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, &slot->base, lru) {
		list_del(&page->lru);
		__free_page(page);
	}
	list_for_each_entry_safe(page, next, &slot->huge, lru) {
		list_del(&page->lru);
		__free_pages(page, HF_ORDER_HUGE);
	}
}

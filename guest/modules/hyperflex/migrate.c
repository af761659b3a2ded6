// SPDX-License-Identifier: GPL-2.0
/*
 * Moves a page of the balloon for the kernel's compaction and memory offlining.
 *
 * The new page must be on the tier's node: else the tier would take another tier's
 * memory. It is handed to the device before the old one is asked back, and as the
 * kernel will not wait for it otherwise, both answers are waited for. They are
 * given up only with the device itself: a page that the device may still take must
 * not be used.
 */
#include <linux/mm.h>
#include <linux/migrate.h>

#include "hyperflex.h"

/* Whether the device answered; false if it has been reset. */
static bool ask(struct hf_tier *tier, struct hf_queue *queue, struct page *page,
		bool *taken)
{
	struct hf_slot *slot = &queue->move;
	struct hf_device *dev = tier->dev;
	bool answered;

	hf_slot_add(slot, page, HF_ORDER_BASE);
	if (hf_slot_post(queue, slot)) {
		hf_slot_clear(queue, slot);
		return false;
	}
	wait_event(tier->wait,
		   READ_ONCE(dev->stopped) || hf_slot_is(queue, slot, HF_ANSWERED));
	answered = hf_slot_is(queue, slot, HF_ANSWERED);
	*taken = answered && hf_slot_taken(slot);
	hf_slot_clear(queue, slot);
	return answered;
}

#if HF_CORE_SWAPS_PAGES
static void swap_pages(struct balloon_dev_info *balloon, struct page *to)
{
}

static void let_go(struct page *from)
{
}
#else
static void swap_pages(struct balloon_dev_info *balloon, struct page *to)
{
	unsigned long flags;

	get_page(to);
	spin_lock_irqsave(&balloon->pages_lock, flags);
	balloon_page_insert(balloon, to);
	balloon->isolated_pages--;
	spin_unlock_irqrestore(&balloon->pages_lock, flags);
}

static void let_go(struct page *from)
{
	balloon_page_finalize(from);
	put_page(from);
}
#endif

static int move(struct hf_tier *tier, struct page *to, struct page *from)
{
	bool taken = false;

	if (READ_ONCE(tier->dev->stopped))
		return -EAGAIN;
	if (!ask(tier, &tier->inflate, to, &taken))
		return -EAGAIN;
	if (!taken)
		return -EBUSY;
	if (page_zone(to) != page_zone(from)) {
		adjust_managed_page_count(to, -1);
		adjust_managed_page_count(from, 1);
	}
	swap_pages(&tier->balloon, to);
	/* Whatever the answer, and after a reset too, the page is the kernel's. */
	ask(tier, &tier->deflate, from, &taken);
	let_go(from);
	atomic_long_inc(&tier->moved);
	return 0;
}

int hf_migrate_page(struct balloon_dev_info *balloon, struct page *to,
		    struct page *from, enum migrate_mode mode)
{
	struct hf_tier *tier = container_of(balloon, struct hf_tier, balloon);
	int err;

	if (mode == MIGRATE_ASYNC)
		return -EAGAIN;
	if (page_to_nid(to) != tier->node)
		return -EBUSY;
	if (!mutex_trylock(&tier->move_lock))
		return -EAGAIN;
	err = move(tier, to, from);
	mutex_unlock(&tier->move_lock);
	return err;
}

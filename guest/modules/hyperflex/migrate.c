// SPDX-License-Identifier: GPL-2.0
/*
 * Moves a page of the balloon for the kernel's compaction and memory offlining.
 *
 * The new page must be on the tier's node: else the tier would take another tier's
 * memory. It is handed to the device before the old one is asked back, and as the
 * kernel will not wait for it otherwise, both answers are waited for, each within the
 * limit. Behind other requests an answer would take as long as those do: then nothing
 * is moved.
 *
 * A page of a request without an answer is lost until the device is reset: the device
 * may take it at any time, or not have let it go. To the kernel that is a move that
 * was made, because older ones (6.1) use the new page for something else after one
 * that was not, whoever holds it.
 */
#include <linux/mm.h>
#include <linux/migrate.h>

#include "hyperflex.h"

enum reply { TAKEN, REFUSED, NOT_ASKED, NO_ANSWER, RESET };

static enum reply ask(struct hf_tier *tier, struct hf_queue *queue, struct page *page)
{
	struct hf_slot *slot = &queue->move;
	enum reply reply;

	hf_slot_add(slot, page, HF_ORDER_BASE);
	if (hf_slot_post(queue, slot)) {
		hf_slot_clear(queue, slot);
		return READ_ONCE(queue->vq) ? NOT_ASKED : RESET;
	}
	if (hf_slot_await(tier, queue, slot))
		reply = hf_slot_taken(slot) ? TAKEN : REFUSED;
	else if (READ_ONCE(queue->vq))
		return NO_ANSWER;	/* the request stays as it is */
	else
		reply = RESET;
	hf_slot_clear(queue, slot);
	return reply;
}

/* What the kernel's balloon core did not do itself before 7.0. */
#if HF_CORE_SWAPS_PAGES
#define MOVED_WITHOUT_NEW (-ENOENT)

static void set_lost(struct page *page, bool lost)
{
}

static void enter(struct balloon_dev_info *balloon, struct page *to)
{
}

static void leave(struct balloon_dev_info *balloon, struct page *from)
{
}
#else
#define MOVED_WITHOUT_NEW 0

/* Keeps dumps away, and lets memory offlining see that the page will not move. */
static void set_lost(struct page *page, bool lost)
{
	if (lost)
		__SetPageOffline(page);
	else
		__ClearPageOffline(page);
}

static void enter(struct balloon_dev_info *balloon, struct page *to)
{
	unsigned long flags;

	get_page(to);
	spin_lock_irqsave(&balloon->pages_lock, flags);
	balloon_page_insert(balloon, to);
	spin_unlock_irqrestore(&balloon->pages_lock, flags);
}

static void leave(struct balloon_dev_info *balloon, struct page *from)
{
	unsigned long flags;

	spin_lock_irqsave(&balloon->pages_lock, flags);
	balloon->isolated_pages--;
	spin_unlock_irqrestore(&balloon->pages_lock, flags);
	balloon_page_finalize(from);
	put_page(from);
}
#endif

/*
 * Keeps a page from everybody; it is no part of the node, as in the balloon. The
 * kernel's reference, by which it moves the page, is there until this has returned.
 */
static void lose(struct hf_tier *tier, struct page *page)
{
	get_page(page);
	set_lost(page, true);
	WRITE_ONCE(tier->lost[tier->lost[0] ? 1 : 0], page);
}

/* The device has been reset: what was lost is the kernel's. With the lock of moves. */
void hf_move_forget(struct hf_tier *tier)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(tier->lost); i++) {
		struct page *page = tier->lost[i];

		WRITE_ONCE(tier->lost[i], NULL);
		if (!page)
			continue;
		set_lost(page, false);
		adjust_managed_page_count(page, 1);
		put_page(page);
	}
}

/* The new page may be taken at any time; the old one was never asked back. */
static int lose_both(struct hf_tier *tier, struct page *to, struct page *from)
{
	adjust_managed_page_count(to, -1);
	lose(tier, to);
	atomic_long_dec(&tier->base_pages);
	leave(&tier->balloon, from);
	lose(tier, from);
	return MOVED_WITHOUT_NEW;
}

static int move(struct hf_tier *tier, struct page *to, struct page *from)
{
	enum reply reply = ask(tier, &tier->inflate, to);

	if (reply == NO_ANSWER)
		return lose_both(tier, to, from);
	if (reply != TAKEN)
		return reply == REFUSED ? -EBUSY : -EAGAIN;
	adjust_managed_page_count(to, -1);
	enter(&tier->balloon, to);
	/* Whatever the answer, and after a reset too, the page is the kernel's. */
	reply = ask(tier, &tier->deflate, from);
	leave(&tier->balloon, from);
	if (reply == NO_ANSWER || reply == NOT_ASKED)
		lose(tier, from);
	else
		adjust_managed_page_count(from, 1);
	atomic_long_inc(&tier->moved);
	return 0;
}

/* Whether both answers can be had at once. */
static int check(struct hf_tier *tier)
{
	if (hf_queue_is_dead(&tier->inflate) || hf_queue_is_dead(&tier->deflate))
		return -EBUSY;
	if (READ_ONCE(tier->dev->stopped) || !hf_queue_is_idle(&tier->inflate) ||
	    !hf_queue_is_idle(&tier->deflate))
		return -EAGAIN;
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
	err = check(tier);
	if (!err)
		err = move(tier, to, from);
	mutex_unlock(&tier->move_lock);
	return err;
}

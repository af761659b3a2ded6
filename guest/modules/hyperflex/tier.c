// SPDX-License-Identifier: GPL-2.0
/*
 * A tier's work: brings what is in the balloon to its target, request by request.
 *
 * A page belongs to the balloon once the device has answered that it took it, and
 * to the kernel again once the device has answered its return. Where the node has
 * no page left, or has been given pages back under pressure, inflation rests, each
 * time for longer.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched.h>

#include "hyperflex.h"

#define FAIL_DELAY_MIN		(HZ / 10)
#define FAIL_DELAY_MAX		(10 * HZ)
#define PRESS_DELAY_MIN		HZ
#define PRESS_DELAY_MAX		(60 * HZ)
#define HUGE_DELAY		(10 * HZ)
#define MOVING_DELAY		(HZ / 100 + 1)

/* Pages in the balloon. */
unsigned long hf_tier_pages(const struct hf_tier *tier)
{
	return atomic_long_read(&tier->base_pages) + READ_ONCE(tier->huge_pages);
}

/* Pages in the balloon and on the way into it. */
unsigned long hf_tier_owned(const struct hf_tier *tier)
{
	return hf_tier_pages(tier) + READ_ONCE(tier->inflating);
}

/* Pages that may come back, as far as the device is known to answer. */
unsigned long hf_tier_can_give(const struct hf_tier *tier)
{
	if (hf_queue_is_dead(&tier->deflate))
		return 0;
	return hf_queue_is_dead(&tier->inflate) ? hf_tier_pages(tier) : hf_tier_owned(tier);
}

bool hf_tier_is_stuck(const struct hf_tier *tier)
{
	unsigned long owned = hf_tier_owned(tier), target = READ_ONCE(tier->target);

	if (owned > target)
		return hf_queue_is_dead(&tier->deflate);
	return owned < target &&
	       (READ_ONCE(tier->waiting) || hf_queue_is_dead(&tier->inflate) ||
		hf_queue_is_dead(&tier->deflate));
}

void hf_tier_wake(struct hf_tier *tier)
{
	if (!READ_ONCE(tier->dev->stopped))
		mod_delayed_work(tier->dev->wq, &tier->work, 0);
}

void hf_tier_set_target(struct hf_tier *tier, u64 target)
{
	unsigned long pages = min_t(u64, target, node_present_pages(tier->node));

	if (pages != READ_ONCE(tier->target)) {
		WRITE_ONCE(tier->target, pages);
		WRITE_ONCE(tier->renewed, true);
	}
	hf_tier_wake(tier);
}

static void wait_for(struct hf_tier *tier, unsigned long delay)
{
	tier->retry_at = jiffies + delay;
	WRITE_ONCE(tier->waiting, true);
}

static void rest_after_failure(struct hf_tier *tier)
{
	tier->fail_delay = clamp_t(unsigned long, 2 * tier->fail_delay,
				   FAIL_DELAY_MIN, FAIL_DELAY_MAX);
	wait_for(tier, tier->fail_delay);
}

/* The longer, the sooner the pressure has come again. */
static void rest_after_pressure(struct hf_tier *tier)
{
	if (time_after(jiffies, tier->pressed_at + 4 * tier->press_delay))
		tier->press_delay = 0;
	if (!tier->press_delay || time_after(jiffies, tier->pressed_at + tier->press_delay))
		tier->press_delay = clamp_t(unsigned long, 2 * tier->press_delay,
					    PRESS_DELAY_MIN, PRESS_DELAY_MAX);
	tier->pressed_at = jiffies;
	wait_for(tier, tier->press_delay);
}

static bool must_wait(struct hf_tier *tier)
{
	if (tier->waiting && time_after_eq(jiffies, tier->retry_at))
		WRITE_ONCE(tier->waiting, false);
	return tier->waiting;
}

static void settle_inflation(struct hf_tier *tier, struct hf_slot *slot)
{
	unsigned int taken = hf_slot_taken(slot);

	tier->inflating -= slot->pages;
	tier->refused += slot->entries - taken;
	if (taken) {
		/* It does not say which ones it refused: they are kept with the others. */
		hf_pages_enter(tier, slot);
	} else {
		hf_pages_free(slot);
		rest_after_failure(tier);
	}
	hf_slot_clear(&tier->inflate, slot);
}

static void settle_deflation(struct hf_tier *tier, struct hf_slot *slot)
{
	tier->deflating -= slot->pages;
	tier->given_back += slot->pressed;
	hf_pages_free(slot);
	WRITE_ONCE(tier->returned, tier->returned + slot->pages);
	hf_slot_clear(&tier->deflate, slot);
	wake_up_all(&tier->wait);
}

/* How many pages shall leave: those over the target, or more under pressure. */
static unsigned long excess(struct hf_tier *tier)
{
	unsigned long owned = hf_tier_owned(tier);
	unsigned long target = READ_ONCE(tier->target);
	unsigned long owed = max(0L, atomic_long_read(&tier->owed));

	return max(owned > target ? owned - target : 0, owed);
}

static void pay(struct hf_tier *tier, struct hf_slot *slot)
{
	long owed = atomic_long_read(&tier->owed);

	if (owed <= 0)
		return;
	slot->pressed = min_t(unsigned long, owed, slot->pages);
	atomic_long_sub(slot->pressed, &tier->owed);
	rest_after_pressure(tier);
}

static void deflate(struct hf_tier *tier)
{
	struct hf_slot *slot;
	unsigned long want;

	if (hf_queue_is_dead(&tier->deflate))
		return;
	while ((want = excess(tier)) && hf_tier_pages(tier)) {
		slot = hf_slot_in(&tier->deflate, HF_IDLE);
		if (!slot)
			return;
		hf_pages_leave(tier, slot, want);
		if (!slot->entries) {
			/* The kernel is moving all that is left. */
			mod_delayed_work(tier->dev->wq, &tier->work, MOVING_DELAY);
			return;
		}
		pay(tier, slot);
		tier->deflating += slot->pages;
		if (hf_slot_post(&tier->deflate, slot)) {
			tier->deflating -= slot->pages;
			hf_pages_enter(tier, slot);
			hf_slot_clear(&tier->deflate, slot);
			return;
		}
		cond_resched();
	}
	/* Nothing is left to give. */
	if (!hf_tier_owned(tier))
		atomic_long_set(&tier->owed, 0);
}

static struct page *alloc_block(struct hf_tier *tier, unsigned long room)
{
	struct page *block;

	if (!(tier->dev->orders & BIT(HF_ORDER_HUGE)) || room < HF_HUGE_PAGES)
		return NULL;
	if (tier->huge_waiting && time_before(jiffies, tier->huge_retry_at))
		return NULL;
	block = hf_page_alloc(tier, HF_ORDER_HUGE);
	tier->huge_waiting = !block;
	tier->huge_retry_at = jiffies + HUGE_DELAY;
	return block;
}

/* Fills a slot with free pages of the node. Ends early when something new comes up. */
static void fill(struct hf_tier *tier, struct hf_slot *slot)
{
	struct page *page;

	while (slot->entries < HF_ENTRIES_MAX && !excess(tier)) {
		unsigned long owned = hf_tier_owned(tier) + slot->pages;
		unsigned long target = READ_ONCE(tier->target);

		if (owned >= target || READ_ONCE(tier->dev->stopped))
			return;
		page = alloc_block(tier, target - owned);
		if (page) {
			list_add_tail(&page->lru, &slot->huge);
			hf_slot_add(slot, page, HF_ORDER_HUGE);
			continue;
		}
		if (!(tier->dev->orders & BIT(HF_ORDER_BASE)))
			return;
		page = hf_page_alloc(tier, HF_ORDER_BASE);
		if (!page) {
			tier->failed++;
			return;
		}
		list_add_tail(&page->lru, &slot->base);
		hf_slot_add(slot, page, HF_ORDER_BASE);
	}
}

/* Pages that still fit under the target, in the smallest size that is offered. */
static bool has_room(const struct hf_tier *tier)
{
	unsigned long step = tier->dev->orders & BIT(HF_ORDER_BASE) ? 1 : HF_HUGE_PAGES;

	return hf_tier_owned(tier) + step <= READ_ONCE(tier->target);
}

static void inflate(struct hf_tier *tier)
{
	struct hf_slot *slot;

	/* What could not come back is not given. */
	if (hf_queue_is_dead(&tier->inflate) || hf_queue_is_dead(&tier->deflate))
		return;
	while (has_room(tier) && !excess(tier) && !must_wait(tier)) {
		slot = hf_slot_in(&tier->inflate, HF_IDLE);
		if (!slot)
			return;
		fill(tier, slot);
		if (!slot->entries) {
			if (!excess(tier))
				rest_after_failure(tier);
			break;
		}
		if (hf_slot_post(&tier->inflate, slot)) {
			hf_pages_free(slot);
			hf_slot_clear(&tier->inflate, slot);
			return;
		}
		tier->inflating += slot->pages;
		tier->fail_delay = 0;
		cond_resched();
	}
	if (has_room(tier) && tier->waiting)
		mod_delayed_work(tier->dev->wq, &tier->work,
				 max(1L, (long)(tier->retry_at - jiffies)));
}

static void tier_work(struct work_struct *work)
{
	struct hf_tier *tier = container_of(work, struct hf_tier, work.work);
	struct hf_slot *slot;

	WRITE_ONCE(tier->worker, current);
	if (xchg(&tier->renewed, false)) {
		WRITE_ONCE(tier->waiting, false);
		tier->huge_waiting = false;
		tier->fail_delay = 0;
		tier->press_delay = 0;
	}
	while ((slot = hf_slot_in(&tier->deflate, HF_ANSWERED)))
		settle_deflation(tier, slot);
	while ((slot = hf_slot_in(&tier->inflate, HF_ANSWERED)))
		settle_inflation(tier, slot);
	if (!READ_ONCE(tier->dev->stopped)) {
		deflate(tier);
		inflate(tier);
	}
	WRITE_ONCE(tier->worker, NULL);
}

int hf_tier_init(struct hf_tier *tier, struct hf_device *dev, unsigned int index)
{
	int err;

	tier->dev = dev;
	tier->index = index;
	INIT_DELAYED_WORK(&tier->work, tier_work);
	init_waitqueue_head(&tier->wait);
	mutex_init(&tier->move_lock);
	INIT_LIST_HEAD(&tier->huge);
	balloon_devinfo_init(&tier->balloon);
	tier->balloon.migratepage = hf_migrate_page;
	err = hf_queue_init(&tier->inflate);
	return err ? err : hf_queue_init(&tier->deflate);
}

void hf_tier_free(struct hf_tier *tier)
{
	hf_queue_free(&tier->inflate);
	hf_queue_free(&tier->deflate);
}

static void empty_queue(struct hf_queue *queue)
{
	unsigned int i;

	for (i = 0; i < HF_SLOTS; i++) {
		hf_pages_free(&queue->slot[i]);
		hf_slot_clear(queue, &queue->slot[i]);
	}
	hf_slot_clear(queue, &queue->move);
	hf_queue_forget(queue);
}

/*
 * Gives all pages to the kernel. The device has been reset, which empties its
 * balloons, and the work is cancelled.
 */
void hf_tier_empty(struct hf_tier *tier)
{
	struct hf_slot *slot = &tier->deflate.slot[0];

	mutex_lock(&tier->move_lock);
	empty_queue(&tier->inflate);
	empty_queue(&tier->deflate);
	hf_move_forget(tier);
	mutex_unlock(&tier->move_lock);
	while (hf_tier_pages(tier)) {
		hf_pages_leave(tier, slot, ULONG_MAX);
		if (!slot->entries)
			msleep(20);	/* the kernel is moving pages */
		hf_pages_free(slot);
		hf_slot_clear(&tier->deflate, slot);
		cond_resched();
	}
	tier->inflating = 0;
	tier->deflating = 0;
	atomic_long_set(&tier->owed, 0);
	wake_up_all(&tier->wait);
}

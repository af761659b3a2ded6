// SPDX-License-Identifier: GPL-2.0
/*
 * How long anybody waits for the device, and what becomes of a queue that does not
 * answer.
 *
 * A queue whose answers were waited for in vain for answer_limit_ms is dead until the
 * device is reset. Nothing more is sent on it. What it was asked to do the device may
 * do at any time: those pages and the request's own buffers stay where they are, out
 * of use. An answer that comes after all is counted and changes nothing, but shows
 * that the device can be reset without waiting for it: until then the module stays
 * loaded, and the guest does not sleep.
 *
 * Time is counted in steps for which somebody waited, so that a guest that stood
 * still together with its device is not taken for one whose device hangs.
 */
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sysfs.h>

#include "hyperflex.h"

static unsigned int answer_limit_ms = 3000;
module_param(answer_limit_ms, uint, 0644);
MODULE_PARM_DESC(answer_limit_ms,
		 "longest wait for an answer, after which its queue is dead (1000 to 30000 ms); a migration waits for two");

static unsigned int oom_limit_ms = 2000;
module_param(oom_limit_ms, uint, 0644);
MODULE_PARM_DESC(oom_limit_ms,
		 "longest wait for memory to come back before the kernel kills a process (100 to 30000 ms)");

static unsigned int shrink_limit_ms = 500;
module_param(shrink_limit_ms, uint, 0644);
MODULE_PARM_DESC(shrink_limit_ms,
		 "longest wait for memory to come back to an allocation that waits (50 to 30000 ms)");

#define MOST_MS	30000

static unsigned long step_of(unsigned int limit_ms)
{
	return max(1UL, msecs_to_jiffies(limit_ms) / HF_STEPS);
}

static unsigned int answer_ms(void)
{
	return clamp_t(unsigned int, READ_ONCE(answer_limit_ms), 1000, MOST_MS);
}

unsigned long hf_oom_step(void)
{
	return step_of(clamp_t(unsigned int, READ_ONCE(oom_limit_ms), 100, MOST_MS));
}

unsigned long hf_shrink_step(void)
{
	return step_of(clamp_t(unsigned int, READ_ONCE(shrink_limit_ms), 50, MOST_MS));
}

bool hf_queue_is_dead(const struct hf_queue *queue)
{
	return READ_ONCE(queue->dead);
}

/* With the queue's lock; whether it was alive. */
static bool die(struct hf_queue *queue)
{
	if (queue->dead)
		return false;
	WRITE_ONCE(queue->dead, true);
	/* Its late answers need this code. Where it is just being removed, the reset waits. */
	queue->holds_module = try_module_get(THIS_MODULE);
	return true;
}

static void tell(struct hf_tier *tier, const struct hf_queue *queue)
{
	dev_err(&tier->dev->vdev->dev,
		"tier %u: no answer on its %s queue within %u ms: nothing more is sent on it, and the pages of %u requests stay out of use. See to terrace-hyperflex on the host; when it answers again, unload and load hyperflex\n",
		tier->index, queue == &tier->inflate ? "inflate" : "deflate", answer_ms(),
		READ_ONCE(queue->posted));
	wake_up_all(&tier->wait);
}

/* Whether the wait is over, however it went. */
static bool is_settled(struct hf_queue *queue, struct hf_slot *slot)
{
	return !READ_ONCE(queue->vq) || hf_queue_is_dead(queue) ||
	       !hf_slot_is(queue, slot, HF_POSTED);
}

/*
 * Waits for the answer to a request that was posted. False where the queue is dead
 * now, or the device has been reset.
 */
bool hf_slot_await(struct hf_tier *tier, struct hf_queue *queue, struct hf_slot *slot)
{
	unsigned long flags, step = step_of(answer_ms());
	bool has_died = false;
	unsigned int i;

	for (i = 0; i < HF_STEPS; i++)
		if (wait_event_timeout(tier->wait, is_settled(queue, slot), step))
			break;
	spin_lock_irqsave(&queue->lock, flags);
	if (queue->vq && slot->state == HF_POSTED)
		has_died = die(queue);
	spin_unlock_irqrestore(&queue->lock, flags);
	if (has_died)
		tell(tier, queue);
	return hf_slot_is(queue, slot, HF_ANSWERED);
}

/* Several may wait at once: a step counts if no other was counted in its time. */
static void count(struct hf_tier *tier, struct hf_queue *queue, unsigned long step)
{
	unsigned long flags;
	bool has_died = false;

	spin_lock_irqsave(&queue->lock, flags);
	if (queue->posted && time_after_eq(jiffies, queue->counted_at + step)) {
		queue->counted_at = jiffies;
		queue->silent += step;
		if (queue->silent >= HF_STEPS * step_of(answer_ms()))
			has_died = die(queue);
	}
	spin_unlock_irqrestore(&queue->lock, flags);
	if (has_died)
		tell(tier, queue);
}

/* A step of somebody who waited for any queue of the device, in vain. */
void hf_count_silence(struct hf_device *dev, unsigned long step)
{
	unsigned int i;

	for (i = 0; i < dev->tiers; i++) {
		count(&dev->tier[i], &dev->tier[i].inflate, step);
		count(&dev->tier[i], &dev->tier[i].deflate, step);
	}
}

static bool hangs(struct hf_queue *queue)
{
	return hf_queue_is_dead(queue) && !hf_queue_is_idle(queue);
}

/* Whether a dead queue has requests that the device may still carry out. */
bool hf_device_hangs(struct hf_device *dev)
{
	unsigned int i;

	for (i = 0; i < dev->tiers; i++)
		if (hangs(&dev->tier[i].inflate) || hangs(&dev->tier[i].deflate))
			return true;
	return false;
}

/* Pages that are out of use until the device is reset. */
unsigned long hf_tier_lost(const struct hf_tier *tier)
{
	unsigned long pages = !!READ_ONCE(tier->lost[0]) + !!READ_ONCE(tier->lost[1]);

	if (hf_queue_is_dead(&tier->inflate))
		pages += READ_ONCE(tier->inflating);
	if (hf_queue_is_dead(&tier->deflate))
		pages += READ_ONCE(tier->deflating);
	return pages;
}

static ssize_t dead_queues_show(struct device *device, struct device_attribute *attribute,
				char *out)
{
	struct hf_device *dev = dev_to_virtio(device)->priv;
	unsigned int i, dead = 0;

	for (i = 0; i < dev->tiers; i++)
		dead += hf_queue_is_dead(&dev->tier[i].inflate) +
			hf_queue_is_dead(&dev->tier[i].deflate);
	return sysfs_emit(out, "%u\n", dead);
}
static DEVICE_ATTR_RO(dead_queues);

static ssize_t lost_pages_show(struct device *device, struct device_attribute *attribute,
			       char *out)
{
	struct hf_device *dev = dev_to_virtio(device)->priv;
	unsigned long pages = 0;
	unsigned int i;

	for (i = 0; i < dev->tiers; i++)
		pages += hf_tier_lost(&dev->tier[i]);
	return sysfs_emit(out, "%lu\n", pages);
}
static DEVICE_ATTR_RO(lost_pages);

static struct attribute *attributes[] = {
	&dev_attr_dead_queues.attr,
	&dev_attr_lost_pages.attr,
	NULL,
};

static const struct attribute_group group = { .attrs = attributes };

const struct attribute_group *hf_groups[] = { &group, NULL };

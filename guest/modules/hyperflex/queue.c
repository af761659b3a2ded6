// SPDX-License-Identifier: GPL-2.0
/*
 * Requests to the device and its answers. Where the pages of a request go is
 * tier.c's to know.
 */
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "hyperflex.h"

static int slot_init(struct hf_slot *slot, unsigned int entries)
{
	INIT_LIST_HEAD(&slot->base);
	INIT_LIST_HEAD(&slot->huge);
	slot->entry = kcalloc(entries, sizeof(*slot->entry), GFP_KERNEL);
	slot->answer = kcalloc(1, sizeof(*slot->answer), GFP_KERNEL);
	return slot->entry && slot->answer ? 0 : -ENOMEM;
}

static void slot_free(struct hf_slot *slot)
{
	kfree(slot->entry);
	kfree(slot->answer);
}

int hf_queue_init(struct hf_queue *queue)
{
	unsigned int i;
	int err;

	spin_lock_init(&queue->lock);
	err = slot_init(&queue->move, 1);
	for (i = 0; i < HF_SLOTS && !err; i++)
		err = slot_init(&queue->slot[i], HF_ENTRIES_MAX);
	return err;
}

void hf_queue_free(struct hf_queue *queue)
{
	unsigned int i;

	for (i = 0; i < HF_SLOTS; i++)
		slot_free(&queue->slot[i]);
	slot_free(&queue->move);
}

/* A request takes two descriptors; one request is kept for migration. */
int hf_queue_attach(struct hf_queue *queue, struct virtqueue *vq)
{
	unsigned int requests = virtqueue_get_vring_size(vq) / 2;

	if (requests < 2)
		return -EINVAL;
	queue->vq = vq;
	queue->slots = min_t(unsigned int, requests - 1, HF_SLOTS);
	return 0;
}

/* The device has been reset: it will act on nothing any more, and answer nothing. */
void hf_queue_detach(struct hf_queue *queue)
{
	unsigned long flags;

	spin_lock_irqsave(&queue->lock, flags);
	queue->vq = NULL;
	spin_unlock_irqrestore(&queue->lock, flags);
}

/* With the lock. What keeps the module from going while the device may still answer. */
static void let_module_go(struct hf_queue *queue)
{
	if (queue->holds_module)
		module_put(THIS_MODULE);
	queue->holds_module = false;
}

/* Forgets what was with the device, which has been reset. */
void hf_queue_forget(struct hf_queue *queue)
{
	unsigned long flags;

	spin_lock_irqsave(&queue->lock, flags);
	queue->posted = 0;
	queue->silent = 0;
	WRITE_ONCE(queue->dead, false);
	let_module_go(queue);
	spin_unlock_irqrestore(&queue->lock, flags);
}

/* Called in interrupts. */
void hf_queue_answered(struct virtqueue *vq)
{
	struct hf_device *dev = vq->vdev->priv;
	struct hf_tier *tier = &dev->tier[vq->index / 2];
	struct hf_queue *queue = vq->index % 2 ? &tier->deflate : &tier->inflate;
	struct hf_slot *slot;
	unsigned long flags;
	unsigned int written;

	spin_lock_irqsave(&queue->lock, flags);
	while ((slot = virtqueue_get_buf(vq, &written))) {
		slot->written = written;
		slot->state = queue->dead ? HF_LATE : HF_ANSWERED;
		queue->late += queue->dead;
		queue->silent = 0;
		queue->posted--;
	}
	if (!queue->posted)
		let_module_go(queue);
	spin_unlock_irqrestore(&queue->lock, flags);
	wake_up_all(&tier->wait);
	hf_tier_wake(tier);
}

/* Whether the device has nothing of it to do. */
bool hf_queue_is_idle(struct hf_queue *queue)
{
	unsigned long flags;
	bool is;

	spin_lock_irqsave(&queue->lock, flags);
	is = !queue->posted;
	spin_unlock_irqrestore(&queue->lock, flags);
	return is;
}

/* A slot in this state, or NULL. */
struct hf_slot *hf_slot_in(struct hf_queue *queue, enum hf_state state)
{
	unsigned int i;

	for (i = 0; i < queue->slots; i++)
		if (hf_slot_is(queue, &queue->slot[i], state))
			return &queue->slot[i];
	return NULL;
}

bool hf_slot_is(struct hf_queue *queue, struct hf_slot *slot, enum hf_state state)
{
	unsigned long flags;
	bool is;

	spin_lock_irqsave(&queue->lock, flags);
	is = slot->state == state;
	spin_unlock_irqrestore(&queue->lock, flags);
	return is;
}

/* Names a page in an idle slot; what list it is on is the caller's affair. */
void hf_slot_add(struct hf_slot *slot, struct page *page, unsigned int order)
{
	slot->entry[slot->entries++] = cpu_to_le64(page_to_phys(page) | order);
	slot->pages += 1UL << order;
}

void hf_slot_clear(struct hf_queue *queue, struct hf_slot *slot)
{
	unsigned long flags;

	spin_lock_irqsave(&queue->lock, flags);
	slot->state = HF_IDLE;
	slot->entries = 0;
	slot->pages = 0;
	slot->pressed = 0;
	slot->written = 0;
	spin_unlock_irqrestore(&queue->lock, flags);
}

int hf_slot_post(struct hf_queue *queue, struct hf_slot *slot)
{
	struct scatterlist out, in, *both[] = { &out, &in };
	unsigned long flags;
	int err = -EIO;

	memset(slot->answer, 0, sizeof(*slot->answer));
	sg_init_one(&out, slot->entry, slot->entries * sizeof(*slot->entry));
	sg_init_one(&in, slot->answer, sizeof(*slot->answer));
	spin_lock_irqsave(&queue->lock, flags);
	if (queue->vq && !queue->dead)
		err = virtqueue_add_sgs(queue->vq, both, 1, 1, slot, GFP_ATOMIC);
	if (!err) {
		slot->state = HF_POSTED;
		if (!queue->posted++) {
			queue->silent = 0;
			queue->counted_at = jiffies;
		}
		virtqueue_kick(queue->vq);
	}
	spin_unlock_irqrestore(&queue->lock, flags);
	return err;
}

/* How many entries of an answered slot the device took, never more than there were. */
unsigned int hf_slot_taken(const struct hf_slot *slot)
{
	if (slot->written < sizeof(*slot->answer))
		return 0;
	return min_t(u32, le32_to_cpu(slot->answer->taken), slot->entries);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * EXCHANGE: pairs of pages of a process change their nodes, also if neither has a free
 * page. Each goes to a page that is kept on the other's node; the frames that they leave
 * are kept in turn.
 */
#include <linux/err.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

struct batch {
	u64 first[TG_BATCH_MAX];
	u64 second[TG_BATCH_MAX];
	s32 statuses[TG_BATCH_MAX];
};

/* One page of a pair. */
struct side {
	unsigned long address;
	struct vm_area_struct *vma;
	struct page *page;
	/* The page of the other's node to which it goes. */
	struct page *to;
};

static int find_side(struct mm_struct *mm, struct side *side)
{
	return tg_page_find(mm, side->address, &side->vma, &side->page);
}

static void put_spare(struct side *side)
{
	if (side->to)
		tg_pool_put(side->to);
	side->to = NULL;
}

static int move_side(struct side *side)
{
	int err = tg_page_move(side->vma, side->address, side->page, side->to);

	if (!err)
		side->to = NULL;
	return err;
}

/* Moves a page home again whose pair could not follow it, to the page kept for that. */
static bool undo(struct mm_struct *mm, struct side *moved, struct side *other)
{
	moved->to = other->to;
	if (!moved->to || find_side(mm, moved) || move_side(moved))
		return false;
	other->to = NULL;
	return true;
}

static int exchange_sides(struct mm_struct *mm, struct side *a, struct side *b,
			  u32 *halves)
{
	int nodes[2] = { page_to_nid(a->page), page_to_nid(b->page) };
	int err;

	if (nodes[0] == nodes[1])
		return -EXDEV;
	a->to = tg_pool_take(nodes[1]);
	b->to = tg_pool_take(nodes[0]);
	err = a->to && b->to ? move_side(a) : -ENOMEM;
	if (!err) {
		err = move_side(b);
		if (err && !undo(mm, a, b))
			*halves += 1;
		/* The frames that they left: nobody else should have them before. */
		tg_pool_refill(nodes[0]);
		tg_pool_refill(nodes[1]);
	}
	return err;
}

static int exchange_pair(struct mm_struct *mm, u64 first, u64 second, u32 *halves)
{
	struct side a = { .address = first }, b = { .address = second };
	int err = find_side(mm, &a);

	if (!err)
		err = find_side(mm, &b);
	if (!err)
		err = exchange_sides(mm, &a, &b, halves);
	/* An undone side has the other's. */
	if (a.to == b.to)
		b.to = NULL;
	put_spare(&a);
	put_spare(&b);
	return err;
}

static int exchange_batch(struct mm_struct *mm, struct tg_exchange *call,
			  struct batch *batch)
{
	u32 i;

	tg_pool_fill();
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	for (i = 0; i < call->count; i++) {
		batch->statuses[i] = exchange_pair(mm, batch->first[i],
						   batch->second[i], &call->halves);
		call->exchanged += !batch->statuses[i];
		cond_resched();
	}
	mmap_read_unlock(mm);
	return 0;
}

static int read_lists(const struct tg_exchange *call, struct batch *batch)
{
	size_t size = call->count * sizeof(u64);

	if (copy_from_user(batch->first, u64_to_user_ptr(call->first), size))
		return -EFAULT;
	if (copy_from_user(batch->second, u64_to_user_ptr(call->second), size))
		return -EFAULT;
	return 0;
}

int tg_exchange(struct tg_exchange *call)
{
	struct mm_struct *mm;
	struct batch *batch;
	int err;

	if (call->flags || call->pid <= 0 || !call->count || call->count > TG_BATCH_MAX)
		return -EINVAL;
	batch = kzalloc(sizeof(*batch), GFP_KERNEL_ACCOUNT);
	if (!batch)
		return -ENOMEM;
	call->exchanged = 0;
	call->halves = 0;
	err = read_lists(call, batch);
	mm = err ? ERR_PTR(err) : tg_memory_of(call->pid);
	if (IS_ERR(mm)) {
		kfree(batch);
		return PTR_ERR(mm);
	}
	err = exchange_batch(mm, call, batch);
	mmput(mm);
	if (!err && copy_to_user(u64_to_user_ptr(call->statuses), batch->statuses,
				 call->count * sizeof(s32)))
		err = -EFAULT;
	kfree(batch);
	return err;
}

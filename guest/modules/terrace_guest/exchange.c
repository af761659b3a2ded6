// SPDX-License-Identifier: GPL-2.0
/*
 * EXCHANGE: pairs of pages of one process or two change their nodes, also if neither has a free
 * page. Each goes to a page that is kept on the other's node; the frames that they leave
 * are kept in turn. With in_place=1 they change places and none is kept.
 */
#include <linux/err.h>
#include <linux/nodemask.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

struct batch {
	u64 first[TG_BATCH_MAX];
	u64 second[TG_BATCH_MAX];
	s32 statuses[TG_BATCH_MAX];
};

/* The processes whose pages the first and the second of a pair are; often one. */
struct pair {
	struct mm_struct *first;
	struct mm_struct *second;
};

/* One page of a pair. */
struct side {
	struct mm_struct *mm;
	struct tg_mapped at;
	/* The page of the other's node to which it goes. */
	struct page *to;
};

static int find_side(struct side *side)
{
	return tg_page_find(side->mm, side->at.address, &side->at.vma, &side->at.page);
}

static void put_spare(struct side *side)
{
	if (side->to)
		tg_pool_put(side->to);
	side->to = NULL;
}

static int move_side(struct side *side)
{
	int err = tg_page_move(side->at.vma, side->at.address, side->at.page, side->to);

	if (!err)
		side->to = NULL;
	return err;
}

/* Moves a page home again whose pair could not follow it, to the page kept for that. */
static bool undo(struct side *moved, struct side *other)
{
	moved->to = other->to;
	if (!moved->to || find_side(moved) || move_side(moved))
		return false;
	other->to = NULL;
	return true;
}

static int move_both(struct side *a, struct side *b, u32 *halves)
{
	int nodes[2] = { page_to_nid(a->at.page), page_to_nid(b->at.page) };
	int err;

	a->to = tg_pool_take(nodes[1]);
	b->to = tg_pool_take(nodes[0]);
	err = a->to && b->to ? move_side(a) : -ENOMEM;
	if (!err) {
		err = move_side(b);
		if (err && !undo(a, b))
			*halves += 1;
		/* The frames that they left: nobody else should have them before. */
		tg_pool_refill(nodes[0]);
		tg_pool_refill(nodes[1]);
	}
	return err;
}

static int exchange_sides(struct side *a, struct side *b, u32 *halves)
{
	if (page_to_nid(a->at.page) == page_to_nid(b->at.page))
		return -EXDEV;
	return tg_swaps_in_place() ? tg_page_swap(&a->at, &b->at) : move_both(a, b, halves);
}

static int exchange_pair(const struct pair *of, u64 first, u64 second, u32 *halves)
{
	struct side a = { .mm = of->first, .at.address = first };
	struct side b = { .mm = of->second, .at.address = second };
	int err = find_side(&a);

	if (!err)
		err = find_side(&b);
	if (!err)
		err = exchange_sides(&a, &b, halves);
	/* An undone side has the other's. */
	if (a.to == b.to)
		b.to = NULL;
	put_spare(&a);
	put_spare(&b);
	return err;
}

/* Whether a page of a pair was named before: it would go back. */
static bool is_named_twice(const struct pair *of, const struct batch *batch, u32 i)
{
	bool same = of->first == of->second;
	u64 a = batch->first[i], b = batch->second[i];
	u32 j;

	for (j = 0; j < i; j++) {
		if (a == batch->first[j] || b == batch->second[j])
			return true;
		if (same && (a == batch->second[j] || b == batch->first[j]))
			return true;
	}
	return same && a == b;
}

/* In the order of their addresses, so that two callers do not wait for each other. */
static int lock_pair(const struct pair *of)
{
	struct mm_struct *low = min(of->first, of->second);
	struct mm_struct *high = max(of->first, of->second);

	if (mmap_read_lock_killable(low))
		return -EINTR;
	if (low == high || !down_read_killable_nested(&high->mmap_lock, SINGLE_DEPTH_NESTING))
		return 0;
	mmap_read_unlock(low);
	return -EINTR;
}

static void unlock_pair(const struct pair *of)
{
	mmap_read_unlock(of->first);
	if (of->first != of->second)
		mmap_read_unlock(of->second);
}

static int exchange_batch(const struct pair *of, struct tg_exchange *call,
			  struct batch *batch)
{
	int err = 0;
	u32 i;

	tg_pool_fill();
	for (i = 0; i < call->count && !err; i++) {
		/* Pair by pair: who waits for a lock does not wait for a batch. */
		err = lock_pair(of);
		if (err)
			break;
		batch->statuses[i] = is_named_twice(of, batch, i) ? -EEXIST :
			exchange_pair(of, batch->first[i], batch->second[i],
				      &call->halves);
		unlock_pair(of);
		call->exchanged += !batch->statuses[i];
		if (fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	tg_count(TG_CALL_EXCHANGE, 2 * call->exchanged + call->halves);
	return err;
}

static int find_pair(const struct tg_exchange *call, struct pair *of)
{
	of->first = tg_memory_of(call->pid);
	if (IS_ERR(of->first))
		return PTR_ERR(of->first);
	of->second = tg_memory_of(call->other ? call->other : call->pid);
	if (!IS_ERR(of->second))
		return 0;
	mmput(of->first);
	return PTR_ERR(of->second);
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

static int exchange(struct tg_exchange *call, struct batch *batch)
{
	struct pair of;
	int err = read_lists(call, batch);

	if (!err)
		err = find_pair(call, &of);
	if (err)
		return err;
	err = exchange_batch(&of, call, batch);
	mmput(of.second);
	mmput(of.first);
	if (!err && copy_to_user(u64_to_user_ptr(call->statuses), batch->statuses,
				 call->count * sizeof(s32)))
		err = -EFAULT;
	return err;
}

/* 0, or the error number of the call. */
int tg_exchange_missing(const char **why)
{
	*why = "this guest has one node";
	if (num_node_state(N_MEMORY) < 2)
		return -EOPNOTSUPP;
	return tg_swaps_in_place() ? tg_remap_missing(why) : tg_pool_missing(why);
}

int tg_exchange(struct tg_exchange *call)
{
	struct batch *batch;
	int err;

	if (call->flags || call->zero || call->pid <= 0 || call->other < 0)
		return -EINVAL;
	if (!call->count || call->count > TG_BATCH_MAX)
		return -EINVAL;
	batch = kzalloc(sizeof(*batch), GFP_KERNEL_ACCOUNT);
	if (!batch)
		return -ENOMEM;
	call->exchanged = 0;
	call->halves = 0;
	err = exchange(call, batch);
	kfree(batch);
	return err;
}

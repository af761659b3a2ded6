// SPDX-License-Identifier: GPL-2.0
/*
 * CONSOLIDATE: base pages of a process into one aligned block of 2 MiB.
 *
 * The block stays open in the caller's descriptor, so that the next batch goes on in it.
 */
#include <linux/gfp.h>
#include <linux/nodemask.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

/* What is copied in from the caller, and what goes back to it. */
struct batch {
	u64 addresses[TG_BATCH_MAX];
	s32 statuses[TG_BATCH_MAX];
};

static bool has_room(const struct tg_block *block)
{
	return block->first && block->used < HPAGE_PMD_NR;
}

/* Gives the pages of a block that nobody got back to the kernel. */
void tg_block_close(struct tg_block *block)
{
	unsigned int i;

	for (i = block->used; block->first && i < HPAGE_PMD_NR; i++)
		__free_page(block->first + i);
	block->first = NULL;
	block->used = 0;
}

/* The kernel looks for no block by reclaim or compaction unless it was asked to. */
static int open_block(struct tg_block *block, int node, bool compact)
{
	gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE | __GFP_NORETRY |
		    __GFP_NOWARN | __GFP_NOMEMALLOC;

	tg_block_close(block);
	if (tg_memory_leaves())
		return -ENOMEM;
	if (!compact)
		gfp &= ~__GFP_RECLAIM;
	block->first = alloc_pages_node(node, gfp, HPAGE_PMD_ORDER);
	if (!block->first)
		return -ENOMEM;
	split_page(block->first, HPAGE_PMD_ORDER);
	return 0;
}

static bool is_in(const struct tg_block *block, const struct page *page)
{
	unsigned long first = block->first ? page_to_pfn(block->first) : 0;

	return first && page_to_pfn(page) - first < block->used;
}

static int move_into(struct tg_block *block, struct mm_struct *mm,
		     unsigned long address)
{
	struct vm_area_struct *vma;
	struct page *page;
	int err = tg_page_find(mm, address, &vma, &page);

	if (err)
		return err;
	/* It was named twice, or lies there since the last batch. */
	if (is_in(block, page))
		return -EEXIST;
	if (!has_room(block))
		return -ENOSPC;
	err = tg_page_move(vma, address, page, block->first + block->used);
	if (!err)
		block->used++;
	return err;
}

/* The node of the first page that may be moved; an error if there is none. */
static int node_of_first(struct mm_struct *mm, const struct batch *batch, u32 count)
{
	struct vm_area_struct *vma;
	struct page *page;
	int node = -ENOENT;
	u32 i;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	for (i = 0; i < count && node < 0; i++)
		if (!tg_page_find(mm, batch->addresses[i], &vma, &page))
			node = page_to_nid(page);
	mmap_read_unlock(mm);
	return node;
}

/* Sees to it that a block is open, of the named node if one is named. */
static int have_block(struct tg_file *file, struct mm_struct *mm,
		      const struct tg_consolidate *call, const struct batch *batch)
{
	struct tg_block *block = &file->block;
	int node = call->node;

	if (has_room(block) &&
	    (node == TG_ANY_NODE || page_to_nid(block->first) == node))
		return 0;
	if (node == TG_ANY_NODE)
		node = node_of_first(mm, batch, call->count);
	if (node < 0)
		return node == -ENOENT ? 0 : node;
	return open_block(block, node, call->flags & TG_CONSOLIDATE_COMPACT);
}

static int move_batch(struct tg_file *file, struct mm_struct *mm,
		      struct tg_consolidate *call, struct batch *batch)
{
	int err = 0;
	u32 i;

	for (i = 0; i < call->count && !err; i++) {
		/* Page by page: who waits for the lock does not wait for a batch. */
		if (mmap_read_lock_killable(mm)) {
			err = -EINTR;
			break;
		}
		batch->statuses[i] = move_into(&file->block, mm, batch->addresses[i]);
		mmap_read_unlock(mm);
		call->moved += !batch->statuses[i];
		if (fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	tg_count(TG_CALL_CONSOLIDATE, call->moved);
	return err;
}

static int check(const struct tg_consolidate *call)
{
	if (call->flags & ~TG_CONSOLIDATE_COMPACT || call->zero || call->pid <= 0)
		return -EINVAL;
	if (!call->count || call->count > TG_BATCH_MAX)
		return -EINVAL;
	if (call->node == TG_ANY_NODE)
		return 0;
	if (call->node < 0 || call->node >= MAX_NUMNODES ||
	    !node_state(call->node, N_MEMORY))
		return -EINVAL;
	return 0;
}

int tg_consolidate(struct tg_file *file, struct tg_consolidate *call)
{
	struct tg_block *block = &file->block;
	struct mm_struct *mm;
	struct batch *batch;
	int err = check(call);

	if (err)
		return err;
	batch = kzalloc(sizeof(*batch), GFP_KERNEL_ACCOUNT);
	if (!batch)
		return -ENOMEM;
	call->moved = 0;
	if (copy_from_user(batch->addresses, u64_to_user_ptr(call->addresses),
			   call->count * sizeof(u64))) {
		kfree(batch);
		return -EFAULT;
	}
	mm = tg_memory_of(call->pid);
	if (IS_ERR(mm)) {
		kfree(batch);
		return PTR_ERR(mm);
	}
	err = have_block(file, mm, call, batch);
	if (!err)
		err = move_batch(file, mm, call, batch);
	mmput(mm);
	if (!err && copy_to_user(u64_to_user_ptr(call->statuses), batch->statuses,
				 call->count * sizeof(s32)))
		err = -EFAULT;
	kfree(batch);
	call->block = block->first ? page_to_pfn(block->first) : 0;
	call->left = block->first ? HPAGE_PMD_NR - block->used : 0;
	return err;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * MIGRATE: frames to a node, by number.
 *
 * What has the frame now is moved, whatever had it when the number was read; and, as
 * with DAMOS, no cpuset is asked.
 */
#include <linux/gfp.h>
#include <linux/memory_hotplug.h>
#include <linux/nodemask.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

struct batch {
	u64 frames[TG_BATCH_MAX];
	s32 statuses[TG_BATCH_MAX];
};

/* The page that a frame has, if it may be moved; no reference is left. */
static int find_frame(u64 frame, struct page **page)
{
	struct folio *folio;
	int err;

	*page = frame < (u64)1 << (MAX_PHYSMEM_BITS - PAGE_SHIFT) ?
		pfn_to_online_page(frame) : NULL;
	if (!*page)
		return -EFAULT;
	folio = page_folio(*page);
	/* Free pages have no owner, and reserved ones the kernel. */
	if (PageReserved(*page) || !folio_try_get(folio))
		return -ENOENT;
	err = page_folio(*page) == folio ? tg_page_allows(*page) : -EAGAIN;
	folio_put(folio);
	return err;
}

static int migrate(u64 frame, int node)
{
	gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE | __GFP_NORETRY |
		    __GFP_NOWARN | __GFP_NOMEMALLOC;
	struct page *page, *to;
	int err = find_frame(frame, &page);

	if (err)
		return err;
	if (page_to_nid(page) == node)
		return -EEXIST;
	to = alloc_pages_node(node, gfp & ~__GFP_RECLAIM, 0);
	if (!to)
		return -ENOMEM;
	err = tg_frame_move(frame, page, to);
	if (err)
		__free_page(to);
	return err;
}

int tg_migrate(struct tg_migrate *call)
{
	struct batch *batch;
	int err = 0;
	u32 i;

	if (call->flags || call->zero || !call->count || call->count > TG_BATCH_MAX)
		return -EINVAL;
	if (call->node < 0 || call->node >= MAX_NUMNODES ||
	    !node_state(call->node, N_MEMORY))
		return -EINVAL;
	batch = kzalloc(sizeof(*batch), GFP_KERNEL_ACCOUNT);
	if (!batch)
		return -ENOMEM;
	call->moved = 0;
	if (copy_from_user(batch->frames, u64_to_user_ptr(call->frames),
			   call->count * sizeof(u64)))
		err = -EFAULT;
	for (i = 0; i < call->count && !err; i++) {
		batch->statuses[i] = migrate(batch->frames[i], call->node);
		call->moved += !batch->statuses[i];
		if (fatal_signal_pending(current))
			err = -EINTR;
		cond_resched();
	}
	tg_count(TG_CALL_MIGRATE, call->moved);
	if (!err && copy_to_user(u64_to_user_ptr(call->statuses), batch->statuses,
				 call->count * sizeof(s32)))
		err = -EFAULT;
	kfree(batch);
	return err;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * CONSOLIDATE: base pages of a process into one aligned block of 2 MiB.
 *
 * Each page is taken out of the process's tables, and all processors have forgotten it,
 * before its bytes are copied; then the copy is mapped. Copied before the flush, a page
 * loses what is written meanwhile.
 *
 * The block stays open in the caller's descriptor, so that the next batch goes on in it.
 */
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/ksm.h>
#include <linux/memory_hotplug.h>
#include <linux/migrate.h>
#include <linux/nodemask.h>
#include <linux/page-flags.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>

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
	if (!compact)
		gfp &= ~__GFP_RECLAIM;
	block->first = alloc_pages_node(node, gfp, HPAGE_PMD_ORDER);
	if (!block->first)
		return -ENOMEM;
	split_page(block->first, HPAGE_PMD_ORDER);
	return 0;
}

static int mapping_allows(const struct vm_area_struct *vma)
{
	if (!vma)
		return -EFAULT;
	if (vma->vm_flags & (VM_SPECIAL | VM_HUGETLB))
		return -EINVAL;
	return vma->vm_flags & VM_LOCKED ? -EPERM : 0;
}

/* Only pages that nobody else has or waits for. */
static int page_allows(pte_t pte)
{
	struct folio *folio;

	if (!pte_present(pte))
		return -ENOENT;
	if (pte_special(pte) || tg_pte_devmap(pte) || !pfn_valid(pte_pfn(pte)))
		return -EINVAL;
	folio = page_folio(pfn_to_page(pte_pfn(pte)));
	if (folio_test_large(folio))
		return -E2BIG;
	if (folio_test_ksm(folio))
		return -EMLINK;
	if (!folio_test_anon(folio))
		return -EOPNOTSUPP;
	if (atomic_read(&folio->_mapcount) != 0)
		return -EACCES;
	if (pte_uffd_wp(pte) || folio_maybe_dma_pinned(folio))
		return -EBUSY;
	if (folio_test_locked(folio) || folio_test_writeback(folio))
		return -EAGAIN;
	return 0;
}

struct found {
	struct page *page;
	int err;
};

static void look_at(pte_t *entry, void *data)
{
	struct found *found = data;
	pte_t pte = ptep_get(entry);

	found->err = page_allows(pte);
	found->page = found->err ? NULL : pte_page(pte);
}

/* The page of an address, if it may be moved; no reference is taken. */
static int find_page(struct mm_struct *mm, unsigned long address,
		     struct vm_area_struct **vma, struct page **page)
{
	struct found found = {};
	int err;

	if (address & ~PAGE_MASK)
		return -EINVAL;
	*vma = vma_lookup(mm, address);
	err = mapping_allows(*vma);
	if (err)
		return err;
	switch (tg_table_with(mm, address, look_at, &found)) {
	case TG_NONE:
		return -ENOENT;
	case TG_LARGE:
		return -E2BIG;
	case TG_BASE:
		break;
	}
	*page = found.page;
	return found.err;
}

/*
 * Moves the page of an address. Its mapping may have changed since it was found: what
 * is there by now is moved only if it is that page still.
 */
static int move(struct vm_area_struct *vma, unsigned long address,
		struct page *page, struct page *to)
{
	unsigned long src = 0, dst = 0;
	struct migrate_vma args = {
		.vma = vma,
		.src = &src,
		.dst = &dst,
		.start = address,
		.end = address + PAGE_SIZE,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};
	struct page *from;
	bool moved;
	int err = migrate_vma_setup(&args);

	if (err)
		return err;
	from = src & MIGRATE_PFN_MIGRATE ? migrate_pfn_to_page(src) : NULL;
	if (from == page && !PageKsm(from)) {
		/* Until it has a new owner the page stays the block's, whatever comes. */
		get_page(to);
		lock_page(to);
		copy_highpage(to, from);
		dst = migrate_pfn(page_to_pfn(to));
	}
	migrate_vma_pages(&args);
	moved = dst && (src & MIGRATE_PFN_MIGRATE);
	migrate_vma_finalize(&args);
	if (moved)
		put_page(to);
	return moved ? 0 : -EBUSY;
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
	int err = find_page(mm, address, &vma, &page);

	if (err)
		return err;
	/* It was named twice, or lies there since the last batch. */
	if (is_in(block, page))
		return -EEXIST;
	if (!has_room(block))
		return -ENOSPC;
	err = move(vma, address, page, block->first + block->used);
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
		if (!find_page(mm, batch->addresses[i], &vma, &page))
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
	u32 i;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	for (i = 0; i < call->count; i++) {
		batch->statuses[i] = move_into(&file->block, mm, batch->addresses[i]);
		call->moved += !batch->statuses[i];
		cond_resched();
	}
	mmap_read_unlock(mm);
	return 0;
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

// SPDX-License-Identifier: GPL-2.0
/*
 * Pages that may be moved, and moving one.
 *
 * A page is taken out of all page tables, and all processors have forgotten it, before
 * its bytes are copied; then the copy is mapped. Copied before the flush, a page loses
 * what is written meanwhile.
 */
#include <linux/highmem.h>
#include <linux/ksm.h>
#include <linux/migrate.h>
#include <linux/page-flags.h>
#include <linux/pagemap.h>
#include <linux/userfaultfd_k.h>

#include "terrace_guest.h"

static int mapping_allows(const struct vm_area_struct *vma)
{
	if (!vma)
		return -EFAULT;
	if (vma->vm_flags & (VM_SPECIAL | VM_HUGETLB))
		return -EINVAL;
	return vma->vm_flags & VM_LOCKED ? -EPERM : 0;
}

/* Only pages that nobody else has or waits for. */
int tg_page_allows(struct page *page)
{
	struct folio *folio = page_folio(page);

	if (folio_test_large(folio))
		return -E2BIG;
	if (folio_test_ksm(folio))
		return -EMLINK;
	if (!folio_test_anon(folio))
		return -EOPNOTSUPP;
	if (atomic_read(&folio->_mapcount) != 0)
		return -EACCES;
	if (folio_maybe_dma_pinned(folio))
		return -EBUSY;
	if (folio_test_mlocked(folio))
		return -EPERM;
	if (folio_test_locked(folio) || folio_test_writeback(folio))
		return -EAGAIN;
	return 0;
}

static int entry_allows(pte_t pte)
{
	if (!pte_present(pte))
		return -ENOENT;
	if (pte_special(pte) || tg_pte_devmap(pte) || !pfn_valid(pte_pfn(pte)))
		return -EINVAL;
	return pte_uffd_wp(pte) ? -EBUSY : tg_page_allows(pte_page(pte));
}

struct found {
	struct page *page;
	int err;
};

static void look_at(pte_t *entry, void *data)
{
	struct found *found = data;
	pte_t pte = ptep_get(entry);

	found->err = entry_allows(pte);
	found->page = found->err ? NULL : pte_page(pte);
}

/* The page of an address, if it may be moved; no reference is taken. */
int tg_page_find(struct mm_struct *mm, unsigned long address,
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
	case TG_EMPTY:
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
 * Whether what was taken out of the tables is the page that was looked at, and still of
 * its kind: its mapping may have changed since, and reclaim may have begun to write it to
 * swap, of which the kernel's move believes that it cannot be. The page is locked now, so
 * that none of this can begin any more.
 */
bool tg_is_same(unsigned long src, struct page *page)
{
	struct page *from = src & MIGRATE_PFN_MIGRATE ? migrate_pfn_to_page(src) : NULL;
	struct folio *folio;

	if (!from || from != page)
		return false;
	folio = page_folio(page);
	return !folio_test_large(folio) && !folio_test_ksm(folio) &&
	       folio_test_anon(folio) && !folio_test_writeback(folio);
}

/* Copies a page that no table has any more. The new page stays the caller's, whatever comes. */
static unsigned long copy(struct page *page, struct page *to)
{
	get_page(to);
	lock_page(to);
	copy_highpage(to, page);
	return migrate_pfn(page_to_pfn(to));
}

/* Gives the new page to its owner if it was moved. */
static int result(unsigned long src, unsigned long dst, struct page *to)
{
	if (!dst || !(src & MIGRATE_PFN_MIGRATE))
		return -EBUSY;
	put_page(to);
	return 0;
}

/* Moves the page of an address; the process's mmap_lock is held. */
int tg_page_move(struct vm_area_struct *vma, unsigned long address,
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
	int err = migrate_vma_setup(&args);

	if (err)
		return err;
	if (tg_is_same(src, page))
		dst = copy(page, to);
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
	return result(src, dst, to);
}

/* Moves the page that a frame has, whoever maps it. */
int tg_frame_move(unsigned long frame, struct page *page, struct page *to)
{
	unsigned long src = 0, dst = 0;
	int err = migrate_device_range(&src, frame, 1);

	if (err)
		return err;
	if (tg_is_same(src, page))
		dst = copy(page, to);
	migrate_device_pages(&src, &dst, 1);
	migrate_device_finalize(&src, &dst, 1);
	return result(src, dst, to);
}

/* SPDX-License-Identifier: GPL-2.0 */
#ifndef TERRACE_GUEST_H
#define TERRACE_GUEST_H

#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rmap.h>
#include <linux/sched.h>

#include "abi.h"
#include "compat.h"

/* A 2 MiB block that is filled page by page. */
struct tg_block {
	/* NULL: none is open. */
	struct page *first;
	/* Pages of it that have been given away. */
	unsigned int used;
};

/* One open descriptor. */
struct tg_file {
	/* Held for each call: one at a time. */
	struct mutex lock;
	struct tg_block block;
	/* Among those that are open. */
	struct list_head open;
};

/* main.c: pages that a call found or moved, for INFO. */
void tg_count(unsigned int call, u64 more);

/* symbols.c: symbols that the kernel does not export. */
/* flush_tlb_mm_range, as prototype.c compares it with the kernel's. */
typedef void tg_flush_fn(struct mm_struct *mm, unsigned long start,
			 unsigned long end, unsigned int stride_shift,
			 bool freed_tables);
/* remove_migration_ptes; prototype.c knows those that there have been. */
typedef typeof(remove_migration_ptes) tg_remap_fn;
void tg_symbols_find(void);
int tg_flush_missing(const char **why);
void tg_flush(struct mm_struct *mm);
int tg_remap_missing(const char **why);
void tg_remap(struct folio *from, struct folio *to);

/* table.c: page tables of a process. */
enum tg_found {
	/* No table for all of the GiB around the address. */
	TG_EMPTY,
	TG_NONE,
	TG_BASE,
	TG_LARGE,
};

struct mm_struct *tg_memory_of(pid_t pid);
/* Called with the entry of an address while its table is locked. */
typedef void tg_table_fn(pte_t *entry, void *data);
enum tg_found tg_table_with(struct mm_struct *mm, unsigned long address,
			    tg_table_fn *use, void *data);
/* The same for the entry of a page of 2 MiB; false if there is no such page now. */
typedef void tg_leaf_fn(pmd_t *entry, void *data);
bool tg_leaf_with(struct mm_struct *mm, unsigned long address, tg_leaf_fn *use,
		  void *data);

/* page.c: pages that may be moved, and moving one. */
int tg_page_allows(struct page *page);
int tg_page_find(struct mm_struct *mm, unsigned long address,
		 struct vm_area_struct **vma, struct page **page);
int tg_page_move(struct vm_area_struct *vma, unsigned long address,
		 struct page *page, struct page *to);
bool tg_is_same(unsigned long src, struct page *page);
int tg_frame_move(unsigned long frame, struct page *page, struct page *to);

/* swap.c: two pages that change places without a third. */
/* A page at the address that maps it. */
struct tg_mapped {
	struct vm_area_struct *vma;
	unsigned long address;
	struct page *page;
};

bool tg_swaps_in_place(void);
int tg_page_swap(const struct tg_mapped *a, const struct tg_mapped *b);

/* pool.c: pages of each node that are kept for exchanges. */
int tg_pool_missing(const char **why);
void tg_pool_init(void);
void tg_pool_fill(void);
void tg_pool_refill(int node);
void tg_pool_empty(void);
struct page *tg_pool_take(int node);
void tg_pool_put(struct page *page);

/* offline.c: memory that is to go offline. */
int tg_offline_init(void);
void tg_offline_exit(void);
bool tg_memory_leaves(void);
void tg_file_add(struct tg_file *file);
void tg_file_remove(struct tg_file *file);
void tg_file_unlock(struct tg_file *file);

/* scan.c, consolidate.c, exchange.c, migrate.c: the calls. */
int tg_scan(struct tg_scan *scan);
int tg_exchange_missing(const char **why);
int tg_exchange(struct tg_exchange *call);
int tg_migrate(struct tg_migrate *call);
int tg_consolidate(struct tg_file *file, struct tg_consolidate *call);
void tg_block_close(struct tg_block *block);

#endif

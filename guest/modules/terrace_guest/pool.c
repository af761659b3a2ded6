// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of each node that are kept for exchanges, so that they work on nodes without a
 * free page: what goes to a node takes one of its pages, and the frame that is left on
 * the other one becomes one.
 */
#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/moduleparam.h>
#include <linux/nodemask.h>
#include <linux/spinlock.h>

#include "terrace_guest.h"

#define RESERVE_MAX	4096U

static unsigned int reserve = 64;
module_param(reserve, uint, 0444);
MODULE_PARM_DESC(reserve, "Pages of each node that are kept for EXCHANGE (default 64, at most 4096; 0: none)");

struct pool {
	struct list_head pages;
	unsigned int count;
};

static struct pool pools[MAX_NUMNODES];
static DEFINE_SPINLOCK(lock);

/* 0, or the error number of what needs kept pages. */
int tg_pool_missing(const char **why)
{
	*why = reserve ? "" : "no pages are kept for it (module parameters reserve, in_place)";
	return reserve ? 0 : -EOPNOTSUPP;
}

/* Nobody waits for such a page, and reclaim is not begun for it. */
static struct page *new_page(int node, gfp_t also)
{
	gfp_t gfp = GFP_HIGHUSER_MOVABLE | __GFP_THISNODE | __GFP_NORETRY | __GFP_NOWARN;

	return alloc_pages_node(node, (gfp & ~__GFP_RECLAIM) | also, 0);
}

static bool is_full(const struct pool *pool)
{
	return tg_memory_leaves() || pool->count >= min(reserve, RESERVE_MAX);
}

/* Fills each pool as far as its node has free pages. */
void tg_pool_fill(void)
{
	int node;

	if (tg_swaps_in_place() || num_node_state(N_MEMORY) < 2)
		return;
	for_each_node_state(node, N_MEMORY) {
		while (!is_full(&pools[node])) {
			struct page *page = new_page(node, __GFP_NOMEMALLOC);

			if (!page)
				break;
			tg_pool_put(page);
		}
	}
}

/*
 * Takes a page in place of one that was given away. An exchange has just left a frame of
 * this node, so that it has no page less by that, below its watermarks, too: the kernel's
 * own reserve lends at most what is kept here.
 */
void tg_pool_refill(int node)
{
	struct page *page;

	if (is_full(&pools[node]))
		return;
	page = new_page(node, __GFP_MEMALLOC);
	if (page)
		tg_pool_put(page);
}

/* A page of a node; NULL if its pool is empty. */
struct page *tg_pool_take(int node)
{
	struct pool *pool = &pools[node];
	struct page *page;

	spin_lock(&lock);
	page = list_first_entry_or_null(&pool->pages, struct page, lru);
	if (page) {
		list_del(&page->lru);
		pool->count--;
	}
	spin_unlock(&lock);
	return page;
}

/* Gives a page that was not used back. */
void tg_pool_put(struct page *page)
{
	struct pool *pool = &pools[page_to_nid(page)];
	bool keep;

	spin_lock(&lock);
	keep = !tg_memory_leaves();
	if (keep) {
		list_add(&page->lru, &pool->pages);
		pool->count++;
	}
	spin_unlock(&lock);
	if (!keep)
		__free_page(page);
}

void tg_pool_init(void)
{
	int node;

	for (node = 0; node < MAX_NUMNODES; node++)
		INIT_LIST_HEAD(&pools[node].pages);
	tg_pool_fill();
}

void tg_pool_empty(void)
{
	struct page *page;
	int node;

	for (node = 0; node < MAX_NUMNODES; node++)
		while ((page = tg_pool_take(node)))
			__free_page(page);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Gives pages back when the guest runs short.
 *
 * Before the kernel kills for want of memory, every tier gives back: which node the
 * allocation may use is not told. A shrinker does it for one node before that, but
 * only for those that must wait for memory, and only when the node's page cache is
 * used up: a balloon that shrank whenever a cache is trimmed would never reach its
 * target. Both wait within a limit, and not at all for a queue that is dead.
 */
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/oom.h>
#include <linux/sched.h>
#include <linux/vmstat.h>

#include "hyperflex.h"

/* What the OOM notifier asks of each tier: 16 MiB. */
#define OOM_PAGES	4096
#define SHRINK_BATCH_PAGES	512

/* A node has page cache to spare over this part of its size. */
#define CACHE_PART	64

static bool is_worker(const struct hf_device *dev)
{
	unsigned int i;

	for (i = 0; i < dev->tiers; i++)
		if (READ_ONCE(dev->tier[i].worker) == current)
			return true;
	return false;
}

/* A tier that is to give so many pages back. */
struct debt {
	struct hf_tier *tier;
	unsigned long pages;
	unsigned long before;
};

/* Never much more than there is: a device that is silent would leave debts behind. */
static void demand(struct debt *debt, struct hf_tier *tier, unsigned long pages)
{
	long most = hf_tier_can_give(tier);

	debt->tier = tier;
	debt->pages = pages;
	debt->before = READ_ONCE(tier->returned);
	if (atomic_long_read(&tier->owed) < most)
		atomic_long_add(min_t(long, pages, most), &tier->owed);
	hf_tier_wake(tier);
}

static unsigned long given(const struct debt *debt)
{
	return READ_ONCE(debt->tier->returned) - debt->before;
}

static bool is_paid(const struct debt *debt)
{
	return given(debt) >= debt->pages || !hf_tier_can_give(debt->tier) ||
	       READ_ONCE(debt->tier->dev->stopped);
}

/* Waits until all is given, for HF_STEPS at most; tells how much was. */
static unsigned long await(const struct debt *debts, unsigned int count, unsigned long step)
{
	unsigned long pages = 0;
	unsigned int i, steps = 0;

	for (i = 0; i < count; i++) {
		const struct debt *debt = &debts[i];

		while (steps < HF_STEPS && !is_paid(debt)) {
			steps++;
			if (!wait_event_timeout(debt->tier->wait, is_paid(debt), step))
				hf_count_silence(debt->tier->dev, step);
		}
		pages += given(debt);
	}
	return pages;
}

static int out_of_memory_soon(struct notifier_block *block, unsigned long unused,
			      void *parameter)
{
	struct hf_device *dev = container_of(block, struct hf_device, oom);
	struct debt debts[HF_TIERS_MAX];
	unsigned long *freed = parameter;
	unsigned int i;

	if (READ_ONCE(dev->stopped) || is_worker(dev))
		return NOTIFY_OK;
	for (i = 0; i < dev->tiers; i++)
		demand(&debts[i], &dev->tier[i], OOM_PAGES);
	*freed += await(debts, dev->tiers, hf_oom_step());
	return NOTIFY_OK;
}

/* Whether the node has neither free pages nor page cache to spare. */
static bool is_short(int node)
{
	pg_data_t *pgdat = NODE_DATA(node);
	unsigned long free = 0, high = 0, size = 0;
	unsigned long cache;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		if (!populated_zone(zone))
			continue;
		free += zone_page_state(zone, NR_FREE_PAGES);
		high += high_wmark_pages(zone);
		size += zone_managed_pages(zone);
	}
	cache = max(0L, atomic_long_read(&pgdat->vm_stat[NR_ACTIVE_FILE])) +
		max(0L, atomic_long_read(&pgdat->vm_stat[NR_INACTIVE_FILE]));
	return free < high && cache < size / CACHE_PART;
}

static struct hf_tier *tier_of(struct hf_device *dev, int node)
{
	unsigned int i;

	for (i = 0; i < dev->tiers; i++)
		if (dev->tier[i].node == node)
			return &dev->tier[i];
	return NULL;
}

static struct hf_device *device_of(struct shrinker *shrinker)
{
#if HF_SHRINKER_ALLOC
	return shrinker->private_data;
#else
	return container_of(shrinker, struct hf_device, shrinker);
#endif
}

static unsigned long shrink_count(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct hf_device *dev = device_of(shrinker);
	struct hf_tier *tier = tier_of(dev, sc->nid);

	if (!tier || READ_ONCE(dev->stopped) || is_worker(dev))
		return 0;
	if (current->flags & (PF_KSWAPD | PF_WQ_WORKER) || !is_short(sc->nid))
		return 0;
	return min(hf_tier_pages(tier), hf_tier_can_give(tier));
}

static unsigned long shrink_scan(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct hf_tier *tier = tier_of(device_of(shrinker), sc->nid);
	struct debt debt;
	unsigned long freed;

	if (!tier || !hf_tier_can_give(tier))
		return SHRINK_STOP;
	demand(&debt, tier, sc->nr_to_scan);
	freed = await(&debt, 1, hf_shrink_step());
	return freed ? freed : SHRINK_STOP;
}

static void shrinker_fill(struct shrinker *shrinker)
{
	shrinker->count_objects = shrink_count;
	shrinker->scan_objects = shrink_scan;
	shrinker->batch = SHRINK_BATCH_PAGES;
	shrinker->seeks = DEFAULT_SEEKS;
}

#if HF_SHRINKER_ALLOC
static int shrinker_start(struct hf_device *dev)
{
	dev->shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE, "hyperflex-%s",
				       dev_name(&dev->vdev->dev));
	if (!dev->shrinker)
		return -ENOMEM;
	shrinker_fill(dev->shrinker);
	dev->shrinker->private_data = dev;
	shrinker_register(dev->shrinker);
	return 0;
}

static void shrinker_stop(struct hf_device *dev)
{
	shrinker_free(dev->shrinker);
}
#else
static int shrinker_start(struct hf_device *dev)
{
	shrinker_fill(&dev->shrinker);
	dev->shrinker.flags = SHRINKER_NUMA_AWARE;
	return register_shrinker(&dev->shrinker, "hyperflex-%s",
				 dev_name(&dev->vdev->dev));
}

static void shrinker_stop(struct hf_device *dev)
{
	unregister_shrinker(&dev->shrinker);
}
#endif

int hf_pressure_start(struct hf_device *dev)
{
	int err = shrinker_start(dev);

	if (err)
		return err;
	dev->oom.notifier_call = out_of_memory_soon;
	err = register_oom_notifier(&dev->oom);
	if (err)
		shrinker_stop(dev);
	return err;
}

void hf_pressure_stop(struct hf_device *dev)
{
	unregister_oom_notifier(&dev->oom);
	shrinker_stop(dev);
}

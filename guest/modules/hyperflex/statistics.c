// SPDX-License-Identifier: GPL-2.0
/*
 * What the guest tells: statistics to the device when it asks, and a table for its
 * own administrator in debugfs.
 */
#include <linux/debugfs.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/vmstat.h>

#include "hyperflex.h"

static unsigned int put(struct hf_device *dev, unsigned int at, enum hf_tag tag,
			unsigned int tier, u64 value)
{
	dev->statistic[at] = (struct hf_statistic) {
		.tag = cpu_to_le16(tag),
		.tier = cpu_to_le16(tier),
		.value = cpu_to_le64(value),
	};
	return at + 1;
}

static unsigned int put_tier(struct hf_device *dev, unsigned int at,
			     const struct hf_tier *tier)
{
	pg_data_t *pgdat = NODE_DATA(tier->node);
	u64 free = 0, total = hf_tier_pages(tier);
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		struct zone *zone = &pgdat->node_zones[i];

		if (!populated_zone(zone))
			continue;
		free += zone_page_state(zone, NR_FREE_PAGES);
		total += zone_managed_pages(zone);
	}
	at = put(dev, at, HF_FREE_BYTES, tier->index, free << PAGE_SHIFT);
	at = put(dev, at, HF_TOTAL_BYTES, tier->index, total << PAGE_SHIFT);
	at = put(dev, at, HF_BALLOON_PAGES, tier->index, hf_tier_pages(tier));
	at = put(dev, at, HF_GIVEN_BACK_PAGES, tier->index, READ_ONCE(tier->given_back));
	return put(dev, at, HF_IS_STUCK, tier->index, hf_tier_is_stuck(tier));
}

static unsigned int put_events(struct hf_device *dev, unsigned int at)
{
#ifdef CONFIG_VM_EVENT_COUNTERS
	unsigned long *events = kcalloc(NR_VM_EVENT_ITEMS, sizeof(*events), GFP_KERNEL);

	if (!events)
		return at;
	all_vm_events(events);
	at = put(dev, at, HF_MAJOR_FAULTS, 0, events[PGMAJFAULT]);
#ifdef CONFIG_SWAP
	at = put(dev, at, HF_SWAPPED_IN_PAGES, 0, events[PSWPIN]);
	at = put(dev, at, HF_SWAPPED_OUT_PAGES, 0, events[PSWPOUT]);
#endif
	kfree(events);
#endif
	return at;
}

/* There is one buffer; it is here, not with the device, whenever this runs. */
static void statistics_work(struct work_struct *work)
{
	struct hf_device *dev = container_of(work, struct hf_device, statistics_work);
	struct scatterlist out;
	unsigned int i, at = 0;

	if (READ_ONCE(dev->stopped))
		return;
	for (i = 0; i < dev->tiers; i++)
		at = put_tier(dev, at, &dev->tier[i]);
	at = put_events(dev, at);
	sg_init_one(&out, dev->statistic, at * sizeof(*dev->statistic));
	if (!virtqueue_add_outbuf(dev->statistics, &out, 1, dev, GFP_KERNEL))
		virtqueue_kick(dev->statistics);
}

/* Called in interrupts. */
void hf_statistics_wanted(struct virtqueue *vq)
{
	struct hf_device *dev = vq->vdev->priv;
	unsigned int written;

	if (virtqueue_get_buf(vq, &written) && !READ_ONCE(dev->stopped))
		queue_work(dev->wq, &dev->statistics_work);
}

int hf_statistics_init(struct hf_device *dev)
{
	INIT_WORK(&dev->statistics_work, statistics_work);
	dev->statistic = kcalloc(HF_STATISTICS_MAX, sizeof(*dev->statistic), GFP_KERNEL);
	return dev->statistic ? 0 : -ENOMEM;
}

void hf_statistics_free(struct hf_device *dev)
{
	kfree(dev->statistic);
}

static int tiers_show(struct seq_file *file, void *unused)
{
	struct hf_device *dev = file->private;
	unsigned int i;

	seq_puts(file, "tier node target base huge inflating deflating given_back returned refused failed moved stuck dead lost late\n");
	for (i = 0; i < dev->tiers; i++) {
		struct hf_tier *tier = &dev->tier[i];

		seq_printf(file, "%u %d %lu %ld %lu %lu %lu %lu %lu %lu %lu %ld %d %d %lu %lu\n",
			   i, tier->node, READ_ONCE(tier->target),
			   atomic_long_read(&tier->base_pages), READ_ONCE(tier->huge_pages),
			   READ_ONCE(tier->inflating), READ_ONCE(tier->deflating),
			   READ_ONCE(tier->given_back), READ_ONCE(tier->returned),
			   READ_ONCE(tier->refused), READ_ONCE(tier->failed),
			   atomic_long_read(&tier->moved), hf_tier_is_stuck(tier),
			   hf_queue_is_dead(&tier->inflate) +
				   2 * hf_queue_is_dead(&tier->deflate),
			   hf_tier_lost(tier),
			   READ_ONCE(tier->inflate.late) + READ_ONCE(tier->deflate.late));
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(tiers);

void hf_debug_start(struct hf_device *dev)
{
	char name[64];

	snprintf(name, sizeof(name), "hyperflex-%s", dev_name(&dev->vdev->dev));
	dev->debug = debugfs_create_dir(name, NULL);
	debugfs_create_file("tiers", 0400, dev->debug, dev, &tiers_fops);
}

void hf_debug_stop(struct hf_device *dev)
{
	debugfs_remove_recursive(dev->debug);
}

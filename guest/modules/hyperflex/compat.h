/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What changed in the kernel between 6.1 and now.
 */
#ifndef HYPERFLEX_COMPAT_H
#define HYPERFLEX_COMPAT_H

#include <linux/version.h>
#include <linux/virtio_config.h>

/*
 * 7.0 renamed option and header; since then the kernel itself puts the new page
 * of a migration into the balloon and lets the old one go.
 */
#ifdef CONFIG_BALLOON
#include <linux/balloon.h>
#define HF_CORE_SWAPS_PAGES 1
#else
#include <linux/balloon_compaction.h>
#define HF_CORE_SWAPS_PAGES 0
#endif

#if defined(CONFIG_BALLOON_COMPACTION) || defined(CONFIG_BALLOON_MIGRATION)
#define HF_PAGES_MOVE 1
#else
#define HF_PAGES_MOVE 0
#endif

/* 6.7: shrinkers are allocated by the kernel. */
#define HF_SHRINKER_ALLOC (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0))

/* 6.11: one array of structures in place of one of functions and one of names. */
static inline int hf_find_queues(struct virtio_device *vdev, unsigned int count,
				 struct virtqueue *vqs[],
				 vq_callback_t *callbacks[],
				 const char * const names[])
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	struct virtqueue_info info[2 * HF_TIERS_MAX + 2] = {};
	unsigned int i;

	for (i = 0; i < count; i++) {
		info[i].callback = callbacks[i];
		info[i].name = names[i];
	}
	return virtio_find_vqs(vdev, count, vqs, info, NULL);
#else
	return virtio_find_vqs(vdev, count, vqs, callbacks, names, NULL);
#endif
}

#endif

// SPDX-License-Identifier: GPL-2.0
/*
 * HyperFlex guest driver: the device's coming, going, sleeping and waking.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/virtio_config.h>

#include "hyperflex.h"

#define QUEUES_MAX (2 * HF_TIERS_MAX + 2)

static int find_queues(struct hf_device *dev)
{
	static const char * const tier_names[] = { "inflate", "deflate" };
	unsigned int i, pages = 2 * dev->tiers;
	vq_callback_t *callbacks[QUEUES_MAX];
	const char *names[QUEUES_MAX];
	struct virtqueue *vqs[QUEUES_MAX];
	int err;

	for (i = 0; i < pages; i++) {
		callbacks[i] = hf_queue_answered;
		names[i] = tier_names[i % 2];
	}
	callbacks[pages] = hf_events_arrived;
	names[pages] = "events";
	callbacks[pages + 1] = hf_statistics_wanted;
	names[pages + 1] = "statistics";
	err = hf_find_queues(dev->vdev, pages + 2, vqs, callbacks, names);
	if (err)
		return err;
	dev->events = vqs[pages];
	dev->statistics = vqs[pages + 1];
	for (i = 0; i < dev->tiers && !err; i++) {
		err = hf_queue_attach(&dev->tier[i].inflate, vqs[2 * i]);
		if (!err)
			err = hf_queue_attach(&dev->tier[i].deflate, vqs[2 * i + 1]);
	}
	if (err)
		dev->vdev->config->del_vqs(dev->vdev);
	return err;
}

static int start(struct hf_device *dev)
{
	int err = find_queues(dev);

	if (err)
		return err;
	WRITE_ONCE(dev->stopped, false);
	virtio_device_ready(dev->vdev);
	hf_events_post(dev);
	hf_config_targets(dev);
	queue_work(dev->wq, &dev->statistics_work);
	return 0;
}

/*
 * Ends all dealings with the device; then every page is the kernel's. A device that
 * hangs holds up its reset, and with it the processor.
 */
static void stop(struct hf_device *dev)
{
	unsigned int i;

	WRITE_ONCE(dev->stopped, true);
	virtio_reset_device(dev->vdev);
	for (i = 0; i < dev->tiers; i++) {
		hf_queue_detach(&dev->tier[i].inflate);
		hf_queue_detach(&dev->tier[i].deflate);
	}
	cancel_work_sync(&dev->config_work);
	cancel_work_sync(&dev->statistics_work);
	for (i = 0; i < dev->tiers; i++) {
		wake_up_all(&dev->tier[i].wait);
		cancel_delayed_work_sync(&dev->tier[i].work);
	}
	dev->vdev->config->del_vqs(dev->vdev);
	for (i = 0; i < dev->tiers; i++)
		hf_tier_empty(&dev->tier[i]);
}

static void release(struct hf_device *dev)
{
	unsigned int i;

	if (dev->wq)
		destroy_workqueue(dev->wq);
	for (i = 0; i < HF_TIERS_MAX; i++)
		hf_tier_free(&dev->tier[i]);
	hf_events_free(dev);
	hf_statistics_free(dev);
	kfree(dev->tier);
	kfree(dev);
}

static struct hf_device *create(struct virtio_device *vdev)
{
	struct hf_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!dev)
		return NULL;
	dev->vdev = vdev;
	dev->stopped = true;
	dev->tier = kcalloc(HF_TIERS_MAX, sizeof(*dev->tier), GFP_KERNEL);
	if (!dev->tier) {
		kfree(dev);
		return NULL;
	}
	/* Of use when memory is short; frozen before the device is. */
	dev->wq = alloc_workqueue("hyperflex",
				  WQ_UNBOUND | WQ_FREEZABLE | WQ_MEM_RECLAIM, 0);
	err = dev->wq ? 0 : -ENOMEM;
	for (i = 0; i < HF_TIERS_MAX && !err; i++)
		err = hf_tier_init(&dev->tier[i], dev, i);
	if (!err)
		err = hf_events_init(dev);
	if (!err)
		err = hf_statistics_init(dev);
	if (err) {
		release(dev);
		return NULL;
	}
	return dev;
}

static int hyperflex_probe(struct virtio_device *vdev)
{
	struct hf_device *dev = create(vdev);
	int err;

	if (!dev)
		return -ENOMEM;
	err = hf_config_check(dev);
	if (err)
		goto fail;
	vdev->priv = dev;
	err = start(dev);
	if (err)
		goto fail;
	err = hf_pressure_start(dev);
	if (err) {
		stop(dev);
		goto fail;
	}
	hf_debug_start(dev);
	dev_info(&vdev->dev, "%u tiers\n", dev->tiers);
	return 0;
fail:
	vdev->priv = NULL;
	release(dev);
	return err;
}

static void hyperflex_remove(struct virtio_device *vdev)
{
	struct hf_device *dev = vdev->priv;

	hf_debug_stop(dev);
	hf_pressure_stop(dev);
	stop(dev);
	release(dev);
}

/* Called in interrupts. */
static void hyperflex_config_changed(struct virtio_device *vdev)
{
	struct hf_device *dev = vdev->priv;

	if (dev && !READ_ONCE(dev->stopped))
		queue_work(dev->wq, &dev->config_work);
}

#ifdef CONFIG_PM_SLEEP
/*
 * What the host has taken could be written to no image and survive no reset. While
 * the device may still act on pages there is no sleep: the reset would wait for it.
 */
static int hyperflex_freeze(struct virtio_device *vdev)
{
	if (hf_device_hangs(vdev->priv)) {
		dev_err(&vdev->dev, "no sleep while requests have no answer\n");
		return -EBUSY;
	}
	stop(vdev->priv);
	return 0;
}

static int hyperflex_restore(struct virtio_device *vdev)
{
	return start(vdev->priv);
}
#endif

static const struct virtio_device_id hyperflex_ids[] = {
	{ HF_VIRTIO_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static struct virtio_driver hyperflex_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.dev_groups = hf_groups,
	.id_table = hyperflex_ids,
	.probe = hyperflex_probe,
	.remove = hyperflex_remove,
	.config_changed = hyperflex_config_changed,
#ifdef CONFIG_PM_SLEEP
	.freeze = hyperflex_freeze,
	.restore = hyperflex_restore,
#endif
};

module_virtio_driver(hyperflex_driver);
MODULE_DEVICE_TABLE(virtio, hyperflex_ids);
MODULE_DESCRIPTION("HyperFlex: one balloon for each memory tier");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");

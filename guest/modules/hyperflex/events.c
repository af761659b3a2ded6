// SPDX-License-Identifier: GPL-2.0
/*
 * What the device says: its configuration, and targets on the event queue. None of
 * it is believed before it is checked.
 */
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <uapi/linux/virtio_pci.h>

#include "hyperflex.h"

/*
 * Bytes of configuration space that a PCI device has. The kernel takes a read past
 * its end for a fault of its own and stops.
 */
static u32 config_bytes(struct virtio_device *vdev)
{
	struct pci_dev *pci;
	u8 at, kind;
	u32 bytes;

	if (!vdev->config->get)
		return 0;
	if (!vdev->dev.parent || !dev_is_pci(vdev->dev.parent))
		return sizeof(struct hf_config);
	pci = to_pci_dev(vdev->dev.parent);
	for (at = pci_find_capability(pci, PCI_CAP_ID_VNDR); at;
	     at = pci_find_next_capability(pci, at, PCI_CAP_ID_VNDR)) {
		pci_read_config_byte(pci, at + VIRTIO_PCI_CAP_CFG_TYPE, &kind);
		if (kind != VIRTIO_PCI_CAP_DEVICE_CFG)
			continue;
		pci_read_config_dword(pci, at + VIRTIO_PCI_CAP_LENGTH, &bytes);
		return bytes;
	}
	return 0;
}

static int check_tiers(struct hf_device *dev, const struct hf_config *config)
{
	nodemask_t seen = NODE_MASK_NONE;
	unsigned int i;

	for (i = 0; i < dev->tiers; i++) {
		u32 node = le32_to_cpu(config->tier[i].node);

		if (node >= MAX_NUMNODES || !node_state(node, N_MEMORY) ||
		    node_isset(node, seen)) {
			dev_err(&dev->vdev->dev,
				"tier %u: node %u has no memory or is taken\n", i, node);
			return -EINVAL;
		}
		node_set(node, seen);
		dev->tier[i].node = node;
	}
	return 0;
}

/* Reads what the device is; anything odd, and it is left alone. */
int hf_config_check(struct hf_device *dev)
{
	struct virtio_device *vdev = dev->vdev;
	struct hf_config config;
	u32 orders;

	if (config_bytes(vdev) < sizeof(config)) {
		dev_err(&vdev->dev, "no HyperFlex device: its configuration is too short\n");
		return -ENODEV;
	}
	virtio_cread_bytes(vdev, 0, &config, sizeof(config));
	if (le32_to_cpu(config.magic) != HF_MAGIC ||
	    le16_to_cpu(config.version) != HF_VERSION) {
		dev_err(&vdev->dev, "no HyperFlex device of version %u\n", HF_VERSION);
		return -ENODEV;
	}
	dev->tiers = le16_to_cpu(config.tiers);
	orders = le32_to_cpu(config.orders) & (BIT(HF_ORDER_BASE) | BIT(HF_ORDER_HUGE));
	/* A block has to be a block here too. */
	if (PAGE_SHIFT != 12 || HF_ORDER_HUGE > pageblock_order)
		orders &= ~BIT(HF_ORDER_HUGE);
	dev->orders = orders;
	if (PAGE_SHIFT != 12 || !orders || !dev->tiers || dev->tiers > HF_TIERS_MAX) {
		dev_err(&vdev->dev, "%u tiers and page orders %#x: not for this driver\n",
			dev->tiers, orders);
		dev->tiers = 0;
		return -EINVAL;
	}
	return check_tiers(dev, &config);
}

/* Sleeps: not for interrupts. */
void hf_config_targets(struct hf_device *dev)
{
	unsigned int i;
	__le64 target;

	for (i = 0; i < dev->tiers; i++) {
		virtio_cread_bytes(dev->vdev,
				   offsetof(struct hf_config, tier[i].target),
				   &target, sizeof(target));
		hf_tier_set_target(&dev->tier[i], le64_to_cpu(target));
	}
}

static void config_work(struct work_struct *work)
{
	struct hf_device *dev = container_of(work, struct hf_device, config_work);

	if (!READ_ONCE(dev->stopped))
		hf_config_targets(dev);
}

static size_t event_bytes(const struct hf_device *dev)
{
	return offsetof(struct hf_event, target) + dev->tiers * sizeof(__le64);
}

static void post(struct hf_device *dev, struct hf_event *event)
{
	struct scatterlist in;

	sg_init_one(&in, event, sizeof(*event));
	virtqueue_add_inbuf(dev->events, &in, 1, event, GFP_ATOMIC);
}

static void take(struct hf_device *dev, const struct hf_event *event, unsigned int written)
{
	u32 generation = le32_to_cpu(event->generation);
	unsigned int i;

	if (written < event_bytes(dev) || le32_to_cpu(event->kind) != HF_EVENT_TARGETS)
		return;
	if (dev->has_generation && (s32)(generation - dev->generation) <= 0)
		return;
	dev->generation = generation;
	dev->has_generation = true;
	for (i = 0; i < dev->tiers; i++)
		hf_tier_set_target(&dev->tier[i], le64_to_cpu(event->target[i]));
}

/* Called in interrupts. */
void hf_events_arrived(struct virtqueue *vq)
{
	struct hf_device *dev = vq->vdev->priv;
	struct hf_event *event;
	unsigned long flags;
	unsigned int written;

	spin_lock_irqsave(&dev->event_lock, flags);
	while ((event = virtqueue_get_buf(vq, &written))) {
		take(dev, event, written);
		post(dev, event);
	}
	virtqueue_kick(vq);
	spin_unlock_irqrestore(&dev->event_lock, flags);
}

void hf_events_post(struct hf_device *dev)
{
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&dev->event_lock, flags);
	dev->has_generation = false;
	for (i = 0; i < HF_EVENTS; i++)
		post(dev, &dev->event[i]);
	virtqueue_kick(dev->events);
	spin_unlock_irqrestore(&dev->event_lock, flags);
}

int hf_events_init(struct hf_device *dev)
{
	spin_lock_init(&dev->event_lock);
	INIT_WORK(&dev->config_work, config_work);
	dev->event = kcalloc(HF_EVENTS, sizeof(*dev->event), GFP_KERNEL);
	return dev->event ? 0 : -ENOMEM;
}

void hf_events_free(struct hf_device *dev)
{
	kfree(dev->event);
}

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * HyperFlex: one balloon for each memory tier.
 *
 * Each tier has a work item, which alone takes pages into the tier's balloon and
 * out of it; everybody else sets what it reads and wakes it. It never waits for
 * the device: a request is posted, and its answer wakes the work again. Where the
 * kernel must be told an outcome it is waited for, within a limit (limit.c). A
 * device that is gone leaves the guest as it is.
 */
#ifndef HYPERFLEX_H
#define HYPERFLEX_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/shrinker.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "abi.h"
#include "compat.h"

#define HF_HUGE_PAGES	BIT(HF_ORDER_HUGE)

/* Requests of a queue that may be with the device at once. */
#define HF_SLOTS	4
#define HF_EVENTS	4

/* HF_LATE: answered when the queue was dead; nothing is done about it. */
enum hf_state { HF_IDLE, HF_POSTED, HF_ANSWERED, HF_LATE };

/* Waits are made of so many steps. */
#define HF_STEPS	16

/* A request: pages that the device shall take or give back. */
struct hf_slot {
	enum hf_state state;
	unsigned int entries;
	unsigned long pages;	/* of 4 KiB */
	unsigned long pressed;	/* how many of them memory pressure asked for */
	unsigned int written;	/* bytes of the answer */
	struct list_head base;
	struct list_head huge;
	__le64 *entry;
	struct hf_answer *answer;
};

struct hf_queue {
	struct virtqueue *vq;	/* NULL once the device has been reset */
	spinlock_t lock;	/* the virtqueue, the states of the slots, and all up to them */
	unsigned int posted;	/* requests without an answer */
	unsigned long silent;	/* for which its answers were waited for in vain */
	unsigned long counted_at;
	bool dead;		/* until the device is reset */
	bool holds_module;
	unsigned long late;	/* answers since it died */
	unsigned int slots;
	struct hf_slot slot[HF_SLOTS];
	struct hf_slot move;	/* one page, for migration */
};

struct hf_tier {
	struct hf_device *dev;
	unsigned int index;
	int node;
	struct hf_queue inflate;
	struct hf_queue deflate;
	struct delayed_work work;
	wait_queue_head_t wait;	/* for answers and for pages given back */

	/* Set by others, read by the work. */
	unsigned long target;
	bool renewed;		/* the target is new: try at once */
	atomic_long_t owed;	/* pages that memory pressure asks for */

	/* Changed by the work alone. */
	struct task_struct *worker;	/* while it runs */
	struct balloon_dev_info balloon;
	struct list_head huge;
	atomic_long_t base_pages;	/* less by what a move has lost */
	unsigned long huge_pages;	/* of 4 KiB */
	unsigned long inflating;
	unsigned long deflating;
	bool waiting;		/* no inflation before retry_at */
	unsigned long retry_at;
	unsigned long fail_delay;
	unsigned long press_delay;
	unsigned long pressed_at;
	bool huge_waiting;	/* no block before huge_retry_at */
	unsigned long huge_retry_at;

	/* Since the start. */
	unsigned long given_back;	/* under pressure */
	unsigned long returned;		/* for whatever reason */
	unsigned long refused;
	unsigned long failed;	/* allocations */
	atomic_long_t moved;
	struct mutex move_lock;	/* one migration at a time; what it has lost */
	struct page *lost[2];	/* the device may still act on them: nobody's */
};

struct hf_device {
	struct virtio_device *vdev;
	struct workqueue_struct *wq;
	unsigned int tiers;
	u32 orders;
	bool stopped;		/* nothing is sent any more */
	struct hf_tier *tier;

	struct virtqueue *events;
	spinlock_t event_lock;	/* the event queue and its generation */
	struct hf_event *event;
	u32 generation;
	bool has_generation;
	struct work_struct config_work;

	struct virtqueue *statistics;
	struct hf_statistic *statistic;
	struct work_struct statistics_work;

	struct notifier_block oom;
#if HF_SHRINKER_ALLOC
	struct shrinker *shrinker;
#else
	struct shrinker shrinker;
#endif
	struct dentry *debug;
};

/* queue.c */
int hf_queue_init(struct hf_queue *queue);
void hf_queue_free(struct hf_queue *queue);
int hf_queue_attach(struct hf_queue *queue, struct virtqueue *vq);
void hf_queue_detach(struct hf_queue *queue);
void hf_queue_forget(struct hf_queue *queue);
void hf_queue_answered(struct virtqueue *vq);
bool hf_queue_is_idle(struct hf_queue *queue);
struct hf_slot *hf_slot_in(struct hf_queue *queue, enum hf_state state);
void hf_slot_add(struct hf_slot *slot, struct page *page, unsigned int order);
void hf_slot_clear(struct hf_queue *queue, struct hf_slot *slot);
int hf_slot_post(struct hf_queue *queue, struct hf_slot *slot);
bool hf_slot_is(struct hf_queue *queue, struct hf_slot *slot, enum hf_state state);
unsigned int hf_slot_taken(const struct hf_slot *slot);

/* limit.c */
unsigned long hf_oom_step(void);
unsigned long hf_shrink_step(void);
bool hf_slot_await(struct hf_tier *tier, struct hf_queue *queue, struct hf_slot *slot);
void hf_count_silence(struct hf_device *dev, unsigned long step);
bool hf_queue_is_dead(const struct hf_queue *queue);
bool hf_device_hangs(struct hf_device *dev);
unsigned long hf_tier_lost(const struct hf_tier *tier);
extern const struct attribute_group *hf_groups[];

/* pages.c */
struct page *hf_page_alloc(const struct hf_tier *tier, unsigned int order);
void hf_pages_enter(struct hf_tier *tier, struct hf_slot *slot);
void hf_pages_leave(struct hf_tier *tier, struct hf_slot *slot, unsigned long want);
void hf_pages_free(struct hf_slot *slot);

/* tier.c */
int hf_tier_init(struct hf_tier *tier, struct hf_device *dev, unsigned int index);
void hf_tier_free(struct hf_tier *tier);
void hf_tier_wake(struct hf_tier *tier);
void hf_tier_set_target(struct hf_tier *tier, u64 target);
bool hf_tier_is_stuck(const struct hf_tier *tier);
void hf_tier_empty(struct hf_tier *tier);
unsigned long hf_tier_pages(const struct hf_tier *tier);
unsigned long hf_tier_owned(const struct hf_tier *tier);
unsigned long hf_tier_can_give(const struct hf_tier *tier);

/* migrate.c */
void hf_move_forget(struct hf_tier *tier);
int hf_migrate_page(struct balloon_dev_info *balloon, struct page *to,
		    struct page *from, enum migrate_mode mode);

/* pressure.c */
int hf_pressure_start(struct hf_device *dev);
void hf_pressure_stop(struct hf_device *dev);

/* events.c */
int hf_events_init(struct hf_device *dev);
void hf_events_free(struct hf_device *dev);
void hf_events_post(struct hf_device *dev);
void hf_events_arrived(struct virtqueue *vq);
int hf_config_check(struct hf_device *dev);
void hf_config_targets(struct hf_device *dev);

/* statistics.c */
int hf_statistics_init(struct hf_device *dev);
void hf_statistics_free(struct hf_device *dev);
void hf_statistics_wanted(struct virtqueue *vq);
void hf_debug_start(struct hf_device *dev);
void hf_debug_stop(struct hf_device *dev);

#endif

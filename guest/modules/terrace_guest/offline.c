// SPDX-License-Identifier: GPL-2.0
/*
 * Memory that is to go offline: pages that are kept for exchanges, and those of open
 * blocks, lie in zones of which the kernel believes that all can be moved, and would
 * look for somebody to move them until it is stopped. So they are given back first.
 */
#include <linux/list.h>
#include <linux/memory.h>
#include <linux/notifier.h>

#include "terrace_guest.h"

static LIST_HEAD(files);
static DEFINE_MUTEX(files_lock);
static bool leaving;

/* Memory is going offline just now: no page may be kept. */
bool tg_memory_leaves(void)
{
	return READ_ONCE(leaving);
}

void tg_file_add(struct tg_file *file)
{
	mutex_lock(&files_lock);
	list_add(&file->open, &files);
	mutex_unlock(&files_lock);
}

void tg_file_remove(struct tg_file *file)
{
	mutex_lock(&files_lock);
	list_del(&file->open);
	mutex_unlock(&files_lock);
}

/*
 * Closes the block of a descriptor that has no call under way. One that has sees itself
 * at its end that memory leaves: waiting for it here might be for ever, since it may wait
 * for a process that waits for this.
 */
static void close_unless_busy(struct tg_file *file)
{
	if (!mutex_trylock(&file->lock))
		return;
	tg_block_close(&file->block);
	mutex_unlock(&file->lock);
}

/* Ends a call. */
void tg_file_unlock(struct tg_file *file)
{
	mutex_unlock(&file->lock);
	/* Who sets the flag tries the lock after that: one of both sees the other. */
	smp_mb();
	if (tg_memory_leaves())
		close_unless_busy(file);
}

static void give_back(void)
{
	struct tg_file *file;

	tg_pool_empty();
	mutex_lock(&files_lock);
	list_for_each_entry(file, &files, open)
		close_unless_busy(file);
	mutex_unlock(&files_lock);
}

static int on_memory(struct notifier_block *block, unsigned long action, void *data)
{
	switch (action) {
	case MEM_GOING_OFFLINE:
		WRITE_ONCE(leaving, true);
		smp_mb();
		give_back();
		break;
	case MEM_OFFLINE:
	case MEM_CANCEL_OFFLINE:
		WRITE_ONCE(leaving, false);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block on_memory_block = { .notifier_call = on_memory };

int tg_offline_init(void)
{
	return register_memory_notifier(&on_memory_block);
}

void tg_offline_exit(void)
{
	unregister_memory_notifier(&on_memory_block);
}

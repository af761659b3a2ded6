// SPDX-License-Identifier: GPL-2.0
/*
 * Terrace's guest module: /dev/terrace_guest and its calls.
 *
 * Who opens it needs CAP_SYS_ADMIN; the descriptor works after that was dropped.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "terrace_guest.h"

static atomic64_t pages[TG_CALLS];

void tg_count(unsigned int call, u64 more)
{
	atomic64_add(more, &pages[call]);
}

static int tg_open(struct inode *inode, struct file *file)
{
	struct tg_file *tg;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	tg = kzalloc(sizeof(*tg), GFP_KERNEL_ACCOUNT);
	if (!tg)
		return -ENOMEM;
	mutex_init(&tg->lock);
	tg_file_add(tg);
	file->private_data = tg;
	return 0;
}

static int tg_release(struct inode *inode, struct file *file)
{
	struct tg_file *tg = file->private_data;

	tg_file_remove(tg);
	tg_block_close(&tg->block);
	mutex_destroy(&tg->lock);
	kfree(tg);
	return 0;
}

static void say(struct tg_call *call, int (*missing)(const char **why))
{
	const char *why;

	call->error = -missing(&why);
	strscpy(call->why, why, sizeof(call->why));
}

static long info(void __user *to)
{
	struct tg_info *info = kzalloc(sizeof(*info), GFP_KERNEL);
	long err = 0;
	int i;

	if (!info)
		return -ENOMEM;
	info->version = TG_VERSION;
	info->calls = TG_CALLS;
	say(&info->call[TG_CALL_SCAN], tg_flush_missing);
	say(&info->call[TG_CALL_EXCHANGE], tg_exchange_missing);
	for (i = 0; i < TG_CALLS; i++)
		info->pages[i] = atomic64_read(&pages[i]);
	if (copy_to_user(to, info, sizeof(*info)))
		err = -EFAULT;
	kfree(info);
	return err;
}

/* The arguments of a call: each begins with the version. */
union call {
	__u32 version;
	struct tg_scan scan;
	struct tg_consolidate consolidate;
	struct tg_exchange exchange;
	struct tg_migrate migrate;
};

static int carry_out(struct tg_file *file, unsigned int number, union call *call)
{
	const char *why;
	int err;

	switch (number) {
	case TG_SCAN:
		err = tg_flush_missing(&why);
		return err ? err : tg_scan(&call->scan);
	case TG_CONSOLIDATE:
		return tg_consolidate(file, &call->consolidate);
	case TG_EXCHANGE:
		err = tg_exchange_missing(&why);
		return err ? err : tg_exchange(&call->exchange);
	default:
		return tg_migrate(&call->migrate);
	}
}

static int copy_and_carry_out(struct tg_file *file, unsigned int number,
			      void __user *at)
{
	size_t size = _IOC_SIZE(number);
	union call call;
	int err;

	if (copy_from_user(&call, at, size))
		return -EFAULT;
	if (call.version != TG_VERSION)
		return -EPROTONOSUPPORT;
	err = carry_out(file, number, &call);
	if (!err && copy_to_user(at, &call, size))
		err = -EFAULT;
	return err;
}

static long tg_ioctl(struct file *file, unsigned int number, unsigned long arg)
{
	struct tg_file *tg = file->private_data;
	void __user *at = (void __user *)arg;
	long err;

	switch (number) {
	case TG_INFO:
		return info(at);
	case TG_SCAN:
	case TG_CONSOLIDATE:
	case TG_EXCHANGE:
	case TG_MIGRATE:
		break;
	default:
		return -ENOTTY;
	}
	if (mutex_lock_killable(&tg->lock))
		return -EINTR;
	err = copy_and_carry_out(tg, number, at);
	tg_file_unlock(tg);
	return err;
}

static const struct file_operations tg_operations = {
	.owner = THIS_MODULE,
	.open = tg_open,
	.release = tg_release,
	.unlocked_ioctl = tg_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice tg_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "terrace_guest",
	.fops = &tg_operations,
	.mode = 0600,
};

static int __init tg_init(void)
{
	int err;

	tg_symbols_find();
	tg_pool_init();
	err = tg_offline_init();
	if (!err) {
		err = misc_register(&tg_device);
		if (err)
			tg_offline_exit();
	}
	if (err)
		tg_pool_empty();
	return err;
}

static void __exit tg_exit(void)
{
	misc_deregister(&tg_device);
	tg_offline_exit();
	tg_pool_empty();
}

module_init(tg_init);
module_exit(tg_exit);
MODULE_DESCRIPTION("Terrace: heat and moves of a guest's base pages");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");

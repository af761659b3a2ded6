// SPDX-License-Identifier: GPL-2.0
/*
 * Page tables of a process, as they are while its mmap_lock is held.
 */
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>

#include "terrace_guest.h"

/* The memory of a process, with a reference; an error pointer if it has none. */
struct mm_struct *tg_memory_of(pid_t number)
{
	struct pid *pid = find_get_pid(number);
	struct task_struct *task;
	struct mm_struct *mm;

	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return ERR_PTR(-ESRCH);
	mm = get_task_mm(task);
	if (!mm)
		mm = ERR_PTR(task->flags & PF_KTHREAD ? -EINVAL : -ESRCH);
	put_task_struct(task);
	return mm;
}

static pmd_t *middle(struct mm_struct *mm, unsigned long address, bool *large)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud))
		return NULL;
	*large = pud_leaf(*pud);
	return *large || pud_bad(*pud) ? NULL : pmd_offset(pud, address);
}

static enum tg_found kind(pmd_t pmd)
{
	if (pmd_none(pmd) || !pmd_present(pmd))
		return TG_NONE;
	if (pmd_leaf(pmd) || tg_pmd_devmap(pmd))
		return TG_LARGE;
	return pmd_bad(pmd) ? TG_NONE : TG_BASE;
}

/*
 * Uses the table that has the page of an address while it is locked. RCU keeps the table
 * while it may be freed, and under its lock the entry that names it is looked at again.
 */
enum tg_found tg_table_with(struct mm_struct *mm, unsigned long address,
			    tg_table_fn *use, void *data)
{
	bool large = false, same;
	pmd_t *entry = middle(mm, address, &large);
	enum tg_found found;
	spinlock_t *lock;
	pmd_t pmd;

	if (!entry)
		return large ? TG_LARGE : TG_EMPTY;
	rcu_read_lock();
	do {
		pmd = tg_pmd_read(entry);
		found = kind(pmd);
		if (found != TG_BASE)
			break;
		lock = pte_lockptr(mm, &pmd);
		spin_lock(lock);
		same = pmd_same(pmd, tg_pmd_read(entry));
		if (same)
			use(pte_offset_kernel(&pmd, address), data);
		spin_unlock(lock);
	} while (!same);
	rcu_read_unlock();
	return found;
}

/* Whether an entry maps a page of 2 MiB that the kernel made of its own memory. */
static bool is_large_page(pmd_t pmd)
{
	if (!pmd_present(pmd) || !pmd_trans_huge(pmd))
		return false;
	if (tg_pmd_devmap(pmd) || tg_pmd_special(pmd) || !pfn_valid(pmd_pfn(pmd)))
		return false;
	return !is_zone_device_page(pmd_page(pmd));
}

bool tg_leaf_with(struct mm_struct *mm, unsigned long address, tg_leaf_fn *use,
		  void *data)
{
	bool large = false, is_there;
	pmd_t *entry = middle(mm, address, &large);
	spinlock_t *lock;

	if (!entry)
		return false;
	lock = pmd_lock(mm, entry);
	is_there = is_large_page(tg_pmd_read(entry));
	if (is_there)
		use(entry, data);
	spin_unlock(lock);
	return is_there;
}

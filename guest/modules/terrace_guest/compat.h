/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What changed in the kernel between 6.1 and now.
 */
#ifndef TERRACE_GUEST_COMPAT_H
#define TERRACE_GUEST_COMPAT_H

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/version.h>

/* Series on which the tests ran what goes beyond exported symbols. */
#define TG_IS_TESTED \
	((LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0) && \
	  LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)) || \
	 (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0) && \
	  LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)))

/* 6.2: an entry is read without its lock by this name on all machines. */
static inline pmd_t tg_pmd_read(pmd_t *pmd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	return pmdp_get_lockless(pmd);
#else
	return pmd_read_atomic(pmd);
#endif
}

/* 6.17: device memory has no bit of its own any more. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#define tg_pmd_devmap(pmd)	pmd_devmap(pmd)
#define tg_pte_devmap(pte)	pte_devmap(pte)
#else
#define tg_pmd_devmap(pmd)	false
#define tg_pte_devmap(pte)	false
#endif

/* 6.12: large entries without a page of their own. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#define tg_pmd_special(pmd)	pmd_special(pmd)
#else
#define tg_pmd_special(pmd)	false
#endif

#endif

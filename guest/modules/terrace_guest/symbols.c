// SPDX-License-Identifier: GPL-2.0
/*
 * Symbols that the kernel does not export, found once when the module is loaded and
 * called by static calls: those are direct, and need no landing pad.
 */
#include <linux/cpufeature.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/security.h>
#include <linux/static_call.h>
#include <asm/tlbflush.h>

#include "terrace_guest.h"

static bool untested;
module_param(untested, bool, 0444);
MODULE_PARM_DESC(untested, "Call symbols that are not exported on kernels that were not tested, too");

static bool ibt;
module_param(ibt, bool, 0444);
MODULE_PARM_DESC(ibt, "Call symbols that are not exported on processors with IBT, too");

static char *hide = "";
module_param(hide, charp, 0444);
MODULE_PARM_DESC(hide, "A symbol that is taken for missing, for tests");

typedef unsigned long lookup_fn(const char *name);

/* Types of the calls; none is ever defined. */
extern tg_flush_fn flush_proto;
extern tg_remap_fn remap_proto;
extern lookup_fn lookup_proto;
DEFINE_STATIC_CALL_NULL(tg_flush_range, flush_proto);
DEFINE_STATIC_CALL_NULL(tg_remap_entries, remap_proto);
DEFINE_STATIC_CALL_NULL(tg_lookup, lookup_proto);

static const char *flush_missing = "not looked for yet";
static const char *remap_missing = "not looked for yet";

/* NULL: symbols may be looked for. */
static const char *forbidden(void)
{
	if (!TG_IS_TESTED && !untested)
		return "not tested on this kernel (module parameter untested=1)";
	if (security_locked_down(LOCKDOWN_KPROBES))
		return "the kernel is locked down (lockdown=confidentiality)";
#ifdef X86_FEATURE_IBT
	if (boot_cpu_has(X86_FEATURE_IBT) && !ibt)
		return "not tested on processors with IBT (module parameter ibt=1)";
#endif
	return NULL;
}

static int find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int err = register_kprobe(&probe);

	if (err)
		return err;
	static_call_update(tg_lookup, (lookup_fn *)probe.addr);
	unregister_kprobe(&probe);
	return 0;
}

static unsigned long find(const char *name)
{
	return strcmp(hide, name) ? static_call(tg_lookup)(name) : 0;
}

static const char *lookup_missing(void)
{
	const char *why = forbidden();

	if (!why && find_lookup())
		why = "symbols cannot be looked up (kprobes are off)";
	return why;
}

void tg_symbols_find(void)
{
	unsigned long flush, remap;

	flush_missing = lookup_missing();
	remap_missing = flush_missing;
	if (flush_missing)
		return;
	flush = find("flush_tlb_mm_range");
	if (flush)
		static_call_update(tg_flush_range, (tg_flush_fn *)flush);
	else
		flush_missing = "the kernel has no flush_tlb_mm_range";
	remap = find("remove_migration_ptes");
	if (remap)
		static_call_update(tg_remap_entries, (tg_remap_fn *)remap);
	else
		remap_missing = "the kernel has no remove_migration_ptes";
}

static int error_of(const char *missing, const char **why)
{
	*why = missing ? missing : "";
	return missing ? -EOPNOTSUPP : 0;
}

/* 0, or the error number of calls that flush. */
int tg_flush_missing(const char **why)
{
	return error_of(flush_missing, why);
}

/* Forgets all that processors know of a process's page tables. */
void tg_flush(struct mm_struct *mm)
{
	static_call(tg_flush_range)(mm, 0, TLB_FLUSH_ALL, PAGE_SHIFT, false);
}

/* 0, or the error number of calls that swap pages in place. */
int tg_remap_missing(const char **why)
{
	return error_of(remap_missing, why);
}

/* Maps a page where another one was until it was taken out of the tables. */
void tg_remap(struct folio *from, struct folio *to)
{
	static_call(tg_remap_entries)(from, to, 0);
}

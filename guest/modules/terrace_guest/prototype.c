// SPDX-License-Identifier: GPL-2.0
/*
 * That the kernel's prototype of what is called without being exported is the module's:
 * a kernel with another one does not compile. Its header hides it from modules.
 */
#undef MODULE
#include <linux/build_bug.h>
#include <linux/mm.h>
#include <asm/tlbflush.h>

#include "terrace_guest.h"

static_assert(__same_type(flush_tlb_mm_range, tg_flush_fn));

/* The last argument: false before 6.12, then no flags. 0 is either. */
typedef void remap_bool_fn(struct folio *src, struct folio *dst, bool locked);
typedef void remap_int_fn(struct folio *src, struct folio *dst, int flags);
typedef void remap_enum_fn(struct folio *src, struct folio *dst, enum ttu_flags flags);
static_assert(__same_type(tg_remap_fn, remap_bool_fn) ||
	      __same_type(tg_remap_fn, remap_int_fn) ||
	      __same_type(tg_remap_fn, remap_enum_fn));

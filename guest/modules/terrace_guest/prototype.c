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

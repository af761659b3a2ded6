// SPDX-License-Identifier: GPL-2.0
/*
 * Programs of 32 and 64 bit see one layout: this compiles for both (`make layout`).
 */
#include "../abi.h"

#define AT(type, field, offset) \
	_Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field)
#define SIZE(type, size) \
	_Static_assert(sizeof(struct type) == (size), #type)

SIZE(tg_call, 96);
SIZE(tg_info, 424);
AT(tg_info, pages, 392);
SIZE(tg_scan, 56);
AT(tg_scan, start, 16);
AT(tg_scan, accessed, 48);
SIZE(tg_consolidate, 56);
AT(tg_consolidate, addresses, 16);
AT(tg_consolidate, block, 40);
SIZE(tg_exchange, 56);
AT(tg_exchange, first, 24);
AT(tg_exchange, exchanged, 48);
SIZE(tg_migrate, 40);
AT(tg_migrate, frames, 16);
AT(tg_migrate, moved, 32);

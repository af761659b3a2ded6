/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What programs and /dev/terrace_guest agree on. Structures have one layout for 32
 * and 64 bit; addresses of user memory are numbers of 64 bit. Reserved fields are 0.
 */
#ifndef TERRACE_GUEST_ABI_H
#define TERRACE_GUEST_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TG_VERSION		1

/* Pages of a list: of one CONSOLIDATE, MIGRATE, or side of an EXCHANGE. */
#define TG_BATCH_MAX		128

/* The calls, as INFO lists them. */
#define TG_CALL_SCAN		0
#define TG_CALL_CONSOLIDATE	1
#define TG_CALL_EXCHANGE	2
#define TG_CALL_MIGRATE		3
#define TG_CALLS		4

struct tg_call {
	/* 0: it works; else the error number with which it fails. */
	__s32 error;
	__u32 zero;
	/* Why it fails, for people. */
	char why[88];
};

struct tg_info {
	__u32 version;
	__u32 calls;
	struct tg_call call[TG_CALLS];
	/* Pages that each call has moved since the module was loaded; SCAN: base pages it found. */
	__u64 pages[TG_CALLS];
};

/* The accessed bits are cleared; else they are read alone. */
#define TG_SCAN_CLEAR		1
/*
 * The array is all zeros: nothing is written for an aligned GiB of addresses without a page.
 * A range may then be all that a process can have.
 */
#define TG_SCAN_SPARSE		2

/* An entry of a scan, one for each page: the frame's number, and these. */
#define TG_ENTRY_FRAME		((1ULL << 52) - 1)
#define TG_ENTRY_PRESENT	(1ULL << 63)
#define TG_ENTRY_ACCESSED	(1ULL << 62)
/*
 * The page is part of one of 2 MiB, which has one accessed bit for all: its parts are not
 * known one by one. That bit is cleared only if the range has all of the larger page.
 * Without TG_ENTRY_PRESENT: no memory of the kernel's, and nothing of it was read.
 */
#define TG_ENTRY_LARGE		(1ULL << 61)

struct tg_scan {
	__u32 version;
	__u32 flags;
	__s32 pid;
	__u32 zero;
	/* The range, whole pages. */
	__u64 start;
	__u64 end;
	/* An array of one __u64 for each page of the range. */
	__u64 entries;
	/* What was found: base pages that are there, and those of them that were accessed. */
	__u64 present;
	__u64 accessed;
};

/* No node is named: the block is of the node of its first page. */
#define TG_ANY_NODE		(-1)

/* The kernel may reclaim and compact memory for a block. */
#define TG_CONSOLIDATE_COMPACT	1

struct tg_consolidate {
	__u32 version;
	__u32 flags;
	__s32 pid;
	__s32 node;
	/* An array of `count` addresses, and one of as many __s32: 0, or a negative error number. */
	__u64 addresses;
	__u64 statuses;
	__u32 count;
	/* Pages that were moved. */
	__u32 moved;
	/* The block that is open now: its first frame; and pages of it that are free yet. */
	__u64 block;
	__u32 left;
	__u32 zero;
};

struct tg_exchange {
	__u32 version;
	__u32 flags;
	__s32 pid;
	/* 0: the same process. */
	__s32 other;
	__u32 count;
	__u32 zero;
	/*
	 * Two arrays of `count` addresses, the first of `pid`, the second of `other`: pair by
	 * pair they lie on different nodes. An address is named once.
	 */
	__u64 first;
	__u64 second;
	/* An array of as many __s32: 0, or a negative error number. */
	__u64 statuses;
	/* Pairs that changed nodes, and pairs of which one page did alone. */
	__u32 exchanged;
	__u32 halves;
};

struct tg_migrate {
	__u32 version;
	__u32 flags;
	__s32 node;
	__u32 count;
	/* An array of `count` frame numbers, and one of as many __s32. */
	__u64 frames;
	__u64 statuses;
	/* Pages that were moved. */
	__u32 moved;
	__u32 zero;
};

#define TG_INFO		_IOR('t', 0x60, struct tg_info)
#define TG_SCAN		_IOWR('t', 0x61, struct tg_scan)
#define TG_CONSOLIDATE	_IOWR('t', 0x62, struct tg_consolidate)
#define TG_EXCHANGE	_IOWR('t', 0x63, struct tg_exchange)
#define TG_MIGRATE	_IOWR('t', 0x64, struct tg_migrate)

#endif

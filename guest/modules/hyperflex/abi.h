/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the HyperFlex device and its driver agree on: docs/hyperflex-abi.md.
 */
#ifndef HYPERFLEX_ABI_H
#define HYPERFLEX_ABI_H

#include <linux/types.h>

/* Reserved, without a driver in Linux. */
#define HF_VIRTIO_ID		13

#define HF_MAGIC		0x46485254
#define HF_VERSION		1
#define HF_TIERS_MAX		4

/* Page orders that may be offered. */
#define HF_ORDER_BASE		0
#define HF_ORDER_HUGE		9

/* Entries of a request: address | order. */
#define HF_ENTRIES_MAX		512
#define HF_STATISTICS_MAX	64

#define HF_EVENT_TARGETS	1

struct hf_config_tier {
	__le64 target;
	__le64 actual;
	__le32 node;
	__le32 zero;
} __packed;

struct hf_config {
	__le32 magic;
	__le16 version;
	__le16 tiers;
	__le32 orders;
	__le32 statistics_s;
	struct hf_config_tier tier[HF_TIERS_MAX];
	__u8 zero[16];
} __packed;

struct hf_answer {
	__le32 taken;
	__le32 refused;
};

struct hf_event {
	__le32 kind;
	__le32 generation;
	__le64 zero;
	__le64 target[HF_TIERS_MAX];
};

struct hf_statistic {
	__le16 tag;
	__le16 tier;
	__le32 zero;
	__le64 value;
};

enum hf_tag {
	HF_FREE_BYTES = 0,
	HF_TOTAL_BYTES = 1,
	HF_BALLOON_PAGES = 2,
	HF_GIVEN_BACK_PAGES = 3,
	HF_IS_STUCK = 4,
	HF_MAJOR_FAULTS = 5,
	HF_SWAPPED_IN_PAGES = 6,
	HF_SWAPPED_OUT_PAGES = 7,
};

#endif

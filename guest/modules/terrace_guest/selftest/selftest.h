/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A test of /dev/terrace_guest on this program's own memory and its children's.
 */
#ifndef TERRACE_GUEST_SELFTEST_H
#define TERRACE_GUEST_SELFTEST_H

#include <stddef.h>
#include <sys/types.h>

#include "../abi.h"
#include "words.h"

/* This program's memory, and the scattered pages of it that are moved. */
#define PAGES		16384UL
#define HOT		256UL
/* Pages of a block of 2 MiB. */
#define BLOCK		512UL
#define ROUNDS		20
/* How often a page is tried that the kernel has in use just now. */
#define TRIES		200

/* common.c */
extern int device;
extern unsigned long *memory;
extern unsigned long hot[HOT];

void fail(const char *what);
int open_device(void);
void make_memory(void);
/* Memory of its own, without larger pages. */
unsigned long *map(unsigned long pages);
unsigned long *page_at(unsigned long page);
unsigned long frame(const void *address);
int works(unsigned int call);
double now(void);

/* large.c: an aligned range of 2 MiB that is one page, or NULL. */
unsigned long *map_large(void);

/* writer.c: does something while a thread goes on writing the hot pages. */
unsigned long beside_writer(void (*work)(void));
/* The writer's longest pause since it was last asked, in seconds, if it measures them. */
void measure_stalls(void);
double longest_stall(void);

/* nodes.c */
void keep_nodes(void);
int has_two_nodes(void);
int node_of(void *address);
void send_page(void *address, int node);
/* Has all processors put new pages where they can be moved. */
void settle(void);
void send_to(unsigned long from, unsigned long count, int node);
unsigned long on_node(unsigned long from, unsigned long count, int node);

/* calls.c: calls that are good as they are. */
struct tg_scan scan_of(pid_t pid, const void *start, unsigned long pages, __u64 *entries, __u32 flags);
struct tg_consolidate consolidate_of(pid_t pid, __u64 *addresses, __s32 *statuses, __u32 count);
struct tg_exchange exchange_of(pid_t pid, __u64 *first, __u64 *second, __s32 *statuses, __u32 count);
struct tg_migrate migrate_of(int node, __u64 *frames, __s32 *statuses, __u32 count);
/* Says how it failed, and whether that is not as it should be. */
int refused(const char *what, unsigned long number, void *call, int wanted);
int status_is(const char *what, int status, int wanted);

/* One file each. They return whether they failed. */
int test_refusals(void);
int test_left(void);
int test_twice(void);
int test_scan(void);
int test_scan_large(void);
int test_scan_sparse(void);
int test_consolidate(void);
int test_exchange(void);
int test_exchange_two(void);
int test_frames(void);
int test_owners(void);
int test_migrate(void);
int test_no_block(void);
int test_together(void);
int test_changing(void);
int test_cgroup(void);
int test_compat(void);
int show_timings(void);

/* changing.c: what this program is when it has executed itself. */
int be_executed(char **arguments);

#endif

// SPDX-License-Identifier: GPL-2.0
/*
 * On which node pages lie, and sending them to one by the kernel's own call.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "selftest.h"

/* <linux/mempolicy.h> has it as one of an enumeration. */
#define LOCAL_POLICY	4

/* With a policy of its own, a program's pages are left by NUMA balancing. */
void keep_nodes(void)
{
	/* Fails where the kernel knows no nodes. */
	syscall(SYS_set_mempolicy, LOCAL_POLICY, NULL, 0UL);
}

int has_two_nodes(void)
{
	return !access("/sys/devices/system/node/node1", F_OK);
}

int node_of(void *address)
{
	int node = -1;

	syscall(SYS_move_pages, 0, 1UL, &address, NULL, &node, 0);
	return node;
}

void send_page(void *address, int node)
{
	int status;

	if (syscall(SYS_move_pages, 0, 1UL, &address, &node, &status, 2))
		fail("move_pages");
}

void settle(void)
{
	/* The kernel's own call sees to it before it moves anything. */
	send_page(page_at(0), node_of(page_at(0)));
}

/* Pages of the hot ones, from one on. */
void send_to(unsigned long from, unsigned long count, int node)
{
	for (unsigned long i = from; i < from + count; i++)
		send_page(page_at(hot[i]), node);
}

unsigned long on_node(unsigned long from, unsigned long count, int node)
{
	unsigned long found = 0;

	for (unsigned long i = from; i < from + count; i++)
		found += node_of(page_at(hot[i])) == node;
	return found;
}

// SPDX-License-Identifier: GPL-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stress.h"

#define THREADS_MAX	32

struct shared *shared;
int shared_file;

static pthread_t threads[THREADS_MAX];
static int started;

void fail(const char *what)
{
	fprintf(stderr, "stress: %s: %s\n", what, strerror(errno));
	exit(1);
}

void share(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, shared_file, 0);
	if (shared == MAP_FAILED)
		fail("shared memory");
}

/* A number that is not the same for two threads. */
unsigned long any(unsigned long below)
{
	static _Thread_local unsigned long state;

	if (!state)
		state = (unsigned long)&state ^ (unsigned long)getpid() << 20 ^ 0x9e3779b97f4a7c15UL;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

/* 0, or -1 if there is no such file or it refuses. */
int write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC), done;

	if (file < 0)
		return -1;
	done = write(file, text, strlen(text)) == (ssize_t)strlen(text);
	close(file);
	return done ? 0 : -1;
}

void run_thread(void *(*what)(void *), void *data)
{
	if (started == THREADS_MAX || pthread_create(&threads[started++], NULL, what, data))
		fail("a thread");
}

void join_threads(void)
{
	while (started)
		pthread_join(threads[--started], NULL);
}

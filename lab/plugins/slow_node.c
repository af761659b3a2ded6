/*
 * A plugin of QEMU's TCG: memory of a node costs what it is set to cost, and each node's accesses and cache misses are counted by processor.
 *
 *     -plugin file=slow_node.so,out=FILE,node=BASE:SIZE[,node=BASE:SIZE ...][,cache_kib=N][,ways=N]
 *
 * BASE and SIZE are guest-physical bytes, one range a node, in the order of the nodes. An access is one of the node that its physical address lies in, so
 * that what a nested guest touches counts where its host put the page. A cache of cache_kib KiB for each processor (1024, a power of two; lines of
 * 64 bytes, so many ways, 8) stands for the processor's: what it has costs nothing.
 *
 * FILE is words of 64 bits, mapped; reading it disturbs nothing, and the settings may be written while the machine runs:
 *
 *     0            MAGIC, once the file is valid
 *     1, 2         processors, nodes
 *     8 + 8 n      of node n: base, size, then the settings: delay of a miss, ns; bandwidth of all processors together, MiB/s, 0 for no limit
 *     64 + 64 p + 8 n  of processor p in node n: loads, stores, loads that missed, stores that missed, ns waited at accesses to it
 *
 * Page walks of the emulated MMU and instruction fetches are not seen.
 *
 * The part of QEMU's plugin API that is used is declared here, since Debian has no package with its header. -DAPI=4 is that of QEMU 10.0, whose callbacks
 * get the plugin's id; -DAPI=7 that of 11.1, whose callbacks get user data instead. QEMU refuses a plugin of a version that it does not know.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

struct qemu_info {
	const char *target_name;
	struct {
		int min, cur;
	} version;
	bool system_emulation;
	struct {
		int smp_vcpus, max_vcpus;
	} system;
};

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t i);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
				      void (*cb)(unsigned int, uint32_t, uint64_t, void *),
				      int flags, int rw, void *data);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(uint32_t info, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *hw);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *hw);
bool qemu_plugin_mem_is_store(uint32_t info);
#if API >= 7
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
					   void (*cb)(struct qemu_plugin_tb *, void *), void *);
#else
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*cb)(uint64_t, struct qemu_plugin_tb *));
#endif

EXPORT int qemu_plugin_version = API;

enum {
	NODES = 4,
	CPUS = 16,
	WAYS = 32,
	LINE_SHIFT = 6,
	NO_REGS = 0,
	LOADS_AND_STORES = 3,
	/* Waits are collected up to this: one of a few hundred ns is less than a look at the clock is exact to. */
	BATCH_NS = 4000,
	BATCH_LINES = 64,
};

#define MAGIC 0x31656c6f6e776c73ULL

struct node {
	uint64_t base, size;
	_Atomic uint64_t delay_ns, mib_per_s;
	/* When the lines that were taken so far have come, ns. */
	_Atomic int64_t busy_until;
	uint64_t unused[3];
};

struct counts {
	uint64_t accesses[2]; /* loads, stores */
	uint64_t misses[2];
	uint64_t waited_ns;
	uint64_t unused[3];
};

struct shared {
	_Atomic uint64_t magic;
	uint64_t cpus, nodes, unused[5];
	struct node node[NODES];
	uint64_t more[24];
	struct counts counts[CPUS][8];
};

_Static_assert(offsetof(struct shared, node) == 8 * 8, "settings begin at word 8");
_Static_assert(offsetof(struct shared, counts) == 64 * 8, "counts begin at word 64");
_Static_assert(sizeof(struct counts) == 8 * 8, "eight words of a processor in a node");

/* A processor's own: what it owes, and its cache. */
struct cpu {
	int64_t debt_ns; /* below 0 if a wait took too long */
	uint64_t lines[NODES]; /* since the last wait */
	uint64_t pending;
	uint64_t *tags; /* of each set, the last used first; a tag is the line's number and one */
} __attribute__((aligned(64)));

static struct shared *shared;
static struct cpu cpus[CPUS];
static uint64_t sets, ways = 8;

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The time at which a node with a bandwidth has delivered some more lines; at most one batch is ahead of time. */
static int64_t delivered(struct node *node, uint64_t lines, int64_t begin)
{
	uint64_t mib = node->mib_per_s;
	int64_t take, old, end;

	if (!mib || !lines)
		return begin;
	take = (int64_t)((lines << LINE_SHIFT) * 1000000000ULL / (mib << 20));
	old = node->busy_until;
	do {
		end = (old > begin - take ? old : begin - take) + take;
	} while (!atomic_compare_exchange_weak(&node->busy_until, &old, end));
	return end;
}

static __attribute__((noinline)) void pay(struct cpu *cpu, struct counts *counts, int at)
{
	int64_t begin = now_ns(), until = begin + cpu->debt_ns, end = begin;

	for (uint64_t n = 0; n < shared->nodes; n++) {
		int64_t come = delivered(&shared->node[n], cpu->lines[n], begin);

		if (come > until)
			until = come;
		cpu->lines[n] = 0;
	}
	while (end < until) {
		__builtin_ia32_pause();
		end = now_ns();
	}
	counts[at].waited_ns += (uint64_t)(end - begin);
	cpu->debt_ns = until - end;
	cpu->pending = 0;
}

/* Whether the cache has a line, which it then has as its newest. */
static bool is_cached(struct cpu *cpu, uint64_t line)
{
	uint64_t *set, tag = line + 1, before;

	if (!sets)
		return false;
	set = &cpu->tags[(line & (sets - 1)) * ways];
	if (set[0] == tag)
		return true;
	before = set[0];
	set[0] = tag;
	for (uint64_t way = 1; way < ways; way++) {
		uint64_t old = set[way];

		set[way] = before;
		if (old == tag)
			return true;
		before = old;
	}
	return false;
}

static int node_of(uint64_t address)
{
	for (uint64_t n = 0; n < shared->nodes; n++)
		if (address - shared->node[n].base < shared->node[n].size)
			return (int)n;
	return -1;
}

static void on_access(unsigned int number, uint32_t info, uint64_t vaddr, void *data)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, vaddr);
	struct cpu *cpu = &cpus[number];
	bool is_store = qemu_plugin_mem_is_store(info);
	struct counts *counts;
	uint64_t address;
	int n;

	(void)data;
	if (!hw || qemu_plugin_hwaddr_is_io(hw))
		return;
	address = qemu_plugin_hwaddr_phys_addr(hw);
	n = node_of(address);
	if (n < 0)
		return;
	counts = shared->counts[number];
	counts[n].accesses[is_store]++;
	if (is_cached(cpu, address >> LINE_SHIFT))
		return;
	counts[n].misses[is_store]++;
	cpu->lines[n]++;
	cpu->pending++;
	cpu->debt_ns += (int64_t)shared->node[n].delay_ns;
	if (cpu->debt_ns >= BATCH_NS || cpu->pending >= BATCH_LINES)
		pay(cpu, counts, n);
}

static void instrument(struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	for (size_t i = 0; i < count; i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), on_access, NO_REGS,
						 LOADS_AND_STORES, NULL);
}

#if API >= 7
static void on_translation(struct qemu_plugin_tb *tb, void *data)
{
	(void)data;
	instrument(tb);
}
#else
static void on_translation(uint64_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	instrument(tb);
}
#endif

static int refuse(const char *what, const char *which)
{
	fprintf(stderr, "slow_node: %s: %s\n", what, which);
	return -1;
}

/* The value of an argument of that name, or NULL. */
static const char *value_of(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return !strncmp(argument, name, length) && argument[length] == '=' ? argument + length + 1 : NULL;
}

static int map_file(const char *out)
{
	int file = open(out, O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (file < 0 || ftruncate(file, sizeof(*shared)))
		return refuse("cannot make the file of counters", out);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (shared == MAP_FAILED)
		return refuse("cannot map the file of counters", out);
	return 0;
}

static int add_node(const char *range)
{
	char *end;
	struct node *node = &shared->node[shared->nodes];

	if (shared->nodes == NODES)
		return refuse("one node too many", range);
	node->base = strtoull(range, &end, 0);
	if (*end != ':')
		return refuse("no BASE:SIZE", range);
	node->size = strtoull(end + 1, &end, 0);
	if (*end || !node->size)
		return refuse("no BASE:SIZE", range);
	shared->nodes++;
	return 0;
}

static int make_caches(uint64_t cache_kib, int count)
{
	if (!ways || ways > WAYS)
		return refuse("ways", "1 to 32");
	sets = (cache_kib << 10 >> LINE_SHIFT) / ways;
	if (sets & (sets - 1))
		return refuse("cache_kib", "sets of lines have to be a power of two");
	for (int i = 0; sets && i < count; i++) {
		cpus[i].tags = calloc(sets * ways, sizeof(uint64_t));
		if (!cpus[i].tags)
			return refuse("cache_kib", "no memory");
	}
	return 0;
}

EXPORT int qemu_plugin_install(uint64_t id, const struct qemu_info *info, int argc, char **argv)
{
	uint64_t cache_kib = 1024;
	const char *value;

	if (!info->system_emulation || info->system.max_vcpus > CPUS)
		return refuse("processors", "16 of a whole machine at most");
	for (int i = 0; i < argc; i++)
		if ((value = value_of(argv[i], "out")) && map_file(value))
			return -1;
	if (!shared)
		return refuse("an argument is missing", "out=FILE");
	for (int i = 0; i < argc; i++) {
		if ((value = value_of(argv[i], "node"))) {
			if (add_node(value))
				return -1;
		} else if ((value = value_of(argv[i], "cache_kib"))) {
			cache_kib = strtoull(value, NULL, 0);
		} else if ((value = value_of(argv[i], "ways"))) {
			ways = strtoull(value, NULL, 0);
		} else if (!value_of(argv[i], "out")) {
			return refuse("no such argument", argv[i]);
		}
	}
	if (make_caches(cache_kib, info->system.max_vcpus))
		return -1;
	shared->cpus = (uint64_t)info->system.max_vcpus;
	shared->magic = MAGIC;
#if API >= 7
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation, NULL);
#else
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
#endif
	return 0;
}

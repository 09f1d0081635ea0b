/* Reads a file into allocated blocks by io_uring, with system calls of its own, while it allocates others. */
#include "attacked.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define ENTRIES 16
#define BYTES 4096

static int ring, file;
static struct io_uring_params parameters;
static unsigned char *submissions, *completions;
static struct io_uring_sqe *entries;

static unsigned *at(unsigned char *base, unsigned offset) { return (unsigned *)(void *)(base + offset); }

static void *map(size_t bytes, off_t offset) {
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
    if (mapped == MAP_FAILED) fail("mmap of the ring");
    return mapped;
}

static void prepare(int count, char **arguments) {
    (void)count;
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &parameters);
    if (ring < 0) skip("io_uring_setup fails on this machine");
    submissions = map(parameters.sq_off.array + ENTRIES * sizeof(unsigned), IORING_OFF_SQ_RING);
    completions = map(parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    entries = map(ENTRIES * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    file = open(arguments[0], O_RDONLY | O_CLOEXEC);
    if (file < 0) fail("open");
}

static void submit(unsigned char **blocks) {
    unsigned mask = *at(submissions, parameters.sq_off.ring_mask);
    unsigned *tail = at(submissions, parameters.sq_off.tail);
    for (unsigned i = 0; i < ENTRIES; i++) {
        unsigned index = (*tail + i) & mask;
        struct io_uring_sqe entry = {.opcode = IORING_OP_READ, .fd = file, .off = i * 512};
        entry.addr = (uint64_t)(uintptr_t)blocks[i];
        entry.len = BYTES;
        entries[index] = entry;
        at(submissions, parameters.sq_off.array)[index] = index;
    }
    __atomic_store_n(tail, *tail + ENTRIES, __ATOMIC_RELEASE);
    unsigned left = ENTRIES;
    while (left) {
        long done = syscall(SYS_io_uring_enter, ring, left, ENTRIES, IORING_ENTER_GETEVENTS, NULL, 0);
        if (done > 0) left -= (unsigned)done;
    }
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    unsigned char *blocks[ENTRIES];
    for (unsigned i = 0; i < ENTRIES; i++) blocks[i] = calloc(1, BYTES);
    submit(blocks);
    unsigned *head = at(completions, parameters.cq_off.head);
    for (unsigned seen = 0; seen < ENTRIES;) {
        if (*head == __atomic_load_n(at(completions, parameters.cq_off.tail), __ATOMIC_ACQUIRE)) {
            syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
            continue;
        }
        unsigned index = *head & *at(completions, parameters.cq_off.ring_mask);
        struct io_uring_cqe *all = (void *)at(completions, parameters.cq_off.cqes);
        sum += (uint64_t)all[index].res;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        seen++;
    }
    for (unsigned i = 0; i < ENTRIES; i++) {
        sum = mix_bytes(sum, blocks[i], BYTES);
        free(blocks[i]);
    }
    return sum;
}

/* Maps memory in every way that matters, with known sizes, and reports what is left. Sizes are in whole pages. */
#include "protocol.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096
#define READ_WRITE (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

/* A failed call gives -1. */
static void *mapped(void *address) {
    return address == MAP_FAILED ? NULL : address;
}

static size_t whole_pages(size_t n) {
    return (n + PAGE - 1) / PAGE * PAGE;
}

static int file;

SITE(maps, (size_t n), mapped(mmap(NULL, n, READ_WRITE, ANONYMOUS, -1, 0)), whole_pages(n))
SITE(maps_shared, (size_t n), mapped(mmap(NULL, n, READ_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)), whole_pages(n))
SITE(maps_reserve, (size_t n), mapped(mmap(NULL, n, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0)), whole_pages(n))
SITE(maps_large, (size_t n), mapped(mmap64(NULL, n, READ_WRITE, ANONYMOUS, -1, 0)), whole_pages(n))
SITE(maps_too_much, (void), mapped(mmap(NULL, (size_t)1 << 60, READ_WRITE, ANONYMOUS, -1, 0)), 0)
SITE(maps_nothing, (void), mapped(mmap(NULL, 0, READ_WRITE, ANONYMOUS, -1, 0)), 0)
SITE(maps_over, (void *at, size_t n), mapped(mmap(at, n, READ_WRITE, ANONYMOUS | MAP_FIXED, -1, 0)), whole_pages(n))
RESITE(grows, (struct block old, size_t n), mapped(mremap(old.address, old.size, n, MREMAP_MAYMOVE)), whole_pages(n))
RESITE(grows_in_place, (struct block old, size_t n), mapped(mremap(old.address, old.size, n, 0)), whole_pages(n))
RESITE(shrinks, (struct block old, size_t n), mapped(mremap(old.address, old.size, n, 0)), whole_pages(n))
RESITE(moves, (struct block old, void *to), mapped(mremap(old.address, old.size, old.size, MREMAP_MAYMOVE | MREMAP_FIXED, to)), old.size)
RESITE(moves_over, (struct block old, void *to), mapped(mremap(old.address, old.size, old.size, MREMAP_MAYMOVE | MREMAP_FIXED, to)), old.size)
SITE(moves_a_part, (void *from, void *to), mapped(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to)), PAGE)
SITE(extends_data, (size_t n), mapped(sbrk((intptr_t)n)), n)
SITE(maps_in_a_thread, (size_t n), mapped(mmap(NULL, n, READ_WRITE, ANONYMOUS, -1, 0)), whole_pages(n))
RESITE(moves_in_a_thread, (struct block old, size_t n), mapped(mremap(old.address, old.size, n, MREMAP_MAYMOVE)), whole_pages(n))
SITE(mallocs_large, (size_t n), malloc(n), n)
SITE(callocs_large, (size_t n), calloc(1, n), n)
RESITE(reallocs_large, (struct block old, size_t n), realloc(old.address, n), n)
SITE(mallocs_small, (size_t n), malloc(n), n)

/* Not anonymous, or not through the C library. */
NOINLINE static void *maps_a_file(void *at, size_t n) {
    void *address = mapped(mmap(at, n, PROT_READ, MAP_PRIVATE | (at ? MAP_FIXED : 0), file, 0));
    if (address == NULL) give_up("the file cannot be mapped");
    return address;
}

NOINLINE static void moves_a_file(void) {
    void *address = mapped(mremap(maps_a_file(NULL, PAGE), PAGE, 4 * PAGE, MREMAP_MAYMOVE));
    if (address == NULL) give_up("the file's mapping cannot be moved");
    munmap(address, 4 * PAGE);
}

NOINLINE static void maps_by_itself(void) {
    long address = syscall(SYS_mmap, NULL, 5 * PAGE, READ_WRITE, ANONYMOUS, -1, 0);
    if (address == -1 || syscall(SYS_munmap, address, 5 * PAGE) != 0) give_up("the system call failed");
}

/* Bytes of a block are gone, and with the last of them the block. */
NOINLINE static void lost(struct block block, size_t bytes, int is_last) {
    __atomic_add_fetch(&block.site->free_count, is_last, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&block.site->free_bytes, bytes, __ATOMIC_SEQ_CST);
    count_live(-(int64_t)bytes);
}

NOINLINE static void unmaps_part(struct block block, size_t offset, size_t bytes, int is_last) {
    if (munmap((char *)block.address + offset, bytes) != 0) give_up("munmap failed");
    lost(block, whole_pages(bytes), is_last);
}

NOINLINE static void unmaps(struct block block) {
    unmaps_part(block, 0, block.size, 1);
}

NOINLINE static void *free_space(size_t n) {
    long address = syscall(SYS_mmap, NULL, n, PROT_NONE, ANONYMOUS, -1, 0);
    if (address == -1 || syscall(SYS_munmap, address, n) != 0) give_up("the system call failed");
    return (void *)address;
}

static void whole_mappings(void) {
    maps(10);
    unmaps(maps(3 * PAGE + 1));
    unmaps(maps_shared(2 * PAGE));
    unmaps(maps_reserve((size_t)1 << 40));
    maps_large(7 * PAGE);
    if (maps_too_much().address != NULL || maps_nothing().address != NULL) give_up("mmap did not fail");
    maps_by_itself();
    if (munmap((void *)1, PAGE) == 0) give_up("munmap did not fail");
    /* Reuses addresses. */
    for (int i = 0; i < 1000; i++) unmaps(maps(PAGE));
}

static void parts(void) {
    struct block front = maps(8 * PAGE), back = maps(8 * PAGE), middle = maps(8 * PAGE), all = maps(8 * PAGE);
    unmaps_part(front, 0, 3 * PAGE, 0);
    unmaps_part(back, 6 * PAGE, PAGE + 1, 0);
    unmaps_part(middle, 2 * PAGE, 4 * PAGE, 0);
    unmaps_part(all, PAGE, PAGE, 0);
    unmaps_part(all, 3 * PAGE, PAGE, 0);
    /* Holes may be unmapped again: the rest goes in one call. */
    if (munmap(all.address, all.size) != 0) give_up("munmap failed");
    lost(all, 6 * PAGE, 1);
}

static void resized(void) {
    unmaps(grows(maps(2 * PAGE), 100 * PAGE));
    shrinks(maps(9 * PAGE), 4 * PAGE);
    struct block room = maps(6 * PAGE);
    unmaps_part(room, 2 * PAGE, 4 * PAGE, 0);
    room.size = 2 * PAGE;
    room = grows_in_place(room, 5 * PAGE);
    struct block blocked = maps(2 * PAGE);
    maps_over((char *)blocked.address + PAGE, PAGE);
    lost(blocked, PAGE, 0);
    blocked.size = PAGE;
    if (grows_in_place(blocked, 3 * PAGE).size != PAGE) give_up("the mapping was not to grow");
    moves(maps(3 * PAGE), free_space(64 * PAGE));
    struct block below = maps(5 * PAGE);
    lost(below, 3 * PAGE, 0);
    moves_over(maps(3 * PAGE), (char *)below.address + PAGE);
    struct block torn = maps(3 * PAGE);
    lost(torn, PAGE, 0);
    moves_a_part((char *)torn.address + PAGE, free_space(64 * PAGE));
    moves_a_file();
}

static void replaced(void) {
    struct block part = maps(6 * PAGE), whole = maps(4 * PAGE), by_file = maps(4 * PAGE);
    lost(part, 2 * PAGE, 0);
    maps_over((char *)part.address + PAGE, 2 * PAGE);
    lost(whole, 4 * PAGE, 1);
    maps_over(whole.address, 4 * PAGE);
    lost(by_file, PAGE, 0);
    maps_a_file((char *)by_file.address + 2 * PAGE, PAGE);
}

static void data_segment(void) {
    sbrk(0);
    struct block data = extends_data(10000);
    extends_data(123);
    if (sbrk(-1123) == (void *)-1) give_up("sbrk failed");
    struct site *site = data.site;
    site->free_count++;
    site->free_bytes += 1123;
    count_live(-1123);
}

/* The kernel reuses an address for the next thread before the unmapping of the previous one is recorded. */
static void *churn(void *unused) {
    for (int i = 0; i < 2000; i++) {
        struct block block = maps_in_a_thread((size_t)(1 + i % 3) * PAGE);
        if (i % 2) block = moves_in_a_thread(block, (size_t)(1 + i % 5) * PAGE);
        if (i % 100 == 0) continue;
        unmaps(block);
    }
    return unused;
}

static void threads(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, churn, NULL) != 0) give_up("no thread");
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
}

/* What malloc maps for itself. */
static void blocks(void) {
    struct block kept = mallocs_large(1 << 20);
    release(mallocs_large(3 << 20));
    callocs_large(2 << 20);
    kept = reallocs_large(kept, 8 << 20);
    reallocs_large(mallocs_large(1 << 20), 10);
    for (int i = 0; i < 30000; i++) mallocs_small(100);
    maps(2 * PAGE);
}

void prepare(void) {
    file = open("/proc/self/exe", O_RDONLY);
    if (file < 0) give_up("this program cannot be read");
    /* malloc maps its first memory before recording starts. */
    mallocs_small(100);
}

static void work(const char *line) {
    if (strcmp(line, "threads") == 0) return threads();
    if (strcmp(line, "blocks") == 0) return blocks();
    if (strcmp(line, "block") == 0) return (void)mallocs_large(1 << 20);
    whole_mappings();
    parts();
    resized();
    replaced();
    data_segment();
}

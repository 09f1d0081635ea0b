/*
 * One block, or a few, for each way in which a block is held or lost by memory and by other blocks. Those of threads are in `threads.c`.
 */
#include "truth.h"

#include <pthread.h>
#include <sys/mman.h>

/* Held by memory that is no block. */
MAKER(in_global, 1001, "held", malloc(size))
MAKER(in_static, 1002, "held", malloc(size))
MAKER(in_main_stack, 1003, "held", malloc(size))
MAKER(in_tls, 1004, "held", malloc(size))
MAKER(in_pthread_key, 1005, "held", malloc(size))
MAKER(in_late_key, 1006, "held", malloc(size))
MAKER(in_mapping, 1007, "held", malloc(size))
MAKER(in_read_only_mapping, 1008, "held", malloc(size))
MAKER(in_shared_mapping, 1009, "held", malloc(size))
MAKER(in_brk, 1010, "held", malloc(size))

uintptr_t global = 1;
static uintptr_t statics[8];
static __thread uintptr_t of_thread;

static void *map(int sharing) {
    void *mapping = mmap(NULL, 4096, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) give_up("mmap");
    return mapping;
}

/* Only the first 32 keys have room in the thread's own block. */
NOINLINE static void hold_by_keys(void) {
    pthread_key_t key = 0;
    for (int i = 0; i < 41; i++) {
        if (pthread_key_create(&key, NULL) != 0) give_up("pthread_key_create");
        if (i == 0) pthread_setspecific(key, unmasked(in_pthread_key()));
    }
    pthread_setspecific(key, unmasked(in_late_key()));
}

NOINLINE static void hold_in_memory(volatile uintptr_t *on_stack) {
    put(&global, in_global());
    put(&statics[1], in_static());
    put(&of_thread, in_tls());
    put((void *)on_stack, in_main_stack());
    hold_by_keys();
    put((char *)map(MAP_PRIVATE) + 4088, in_mapping());
    put((char *)map(MAP_SHARED) + 8, in_shared_mapping());
    void *read_only = map(MAP_PRIVATE);
    put(read_only, in_read_only_mapping());
    mprotect(read_only, 4096, PROT_READ);
#ifdef __GLIBC__
    /* The C library's heap goes on behind it. musl leaves the break to itself. */
    void *grown = sbrk(8192);
    if (grown == (void *)-1) give_up("sbrk");
    put((char *)grown + 64, in_brk());
#endif
}

/* Held by blocks. Sizes of which the allocator gives out no byte more, for pointers at their ends. */
MAKER(holder, 1024, "held", malloc(size))
MAKER(by_start, 1101, "held", malloc(size))
MAKER(by_interior, 1102, "held", malloc(size))
MAKER(by_last_byte, 1103, "held", malloc(size))
MAKER(past_the_end, 1112, "leaked", malloc(size))
MAKER(before_the_start, 1105, "leaked", malloc(size))
MAKER(held_chain_1, 1121, "held", malloc(size))
MAKER(held_chain_2, 1122, "held", calloc(1, size))
MAKER(held_chain_3, 1123, "held", malloc(size))
MAKER(held_circle_1, 1124, "held", malloc(size))
MAKER(held_circle_2, 1125, "held", malloc(size))
MAKER(size_zero_held, 0, "held", malloc(size))

NOINLINE static void hold_in_blocks(void) {
    masked outer = holder();
    put(&statics[2], outer);
    hang(outer, 0, by_start());
    point((char *)unmasked(outer) + 8, by_interior(), 777);
    point((char *)unmasked(outer) + 1016, by_last_byte(), 1102);
    point((char *)unmasked(outer) + 256, past_the_end(), 1112);
    point((char *)unmasked(outer) + 264, before_the_start(), -8);
    masked first = held_chain_1(), second = held_chain_2();
    put(&statics[3], first);
    hang(first, 1112, second);
    hang(second, 0, held_chain_3());
    first = held_circle_1(), second = held_circle_2();
    put(&statics[4], first);
    hang(first, 0, second);
    hang(second, 0, first);
    put(&statics[5], size_zero_held());
}

/* Held by nothing, or by what leaked. */
MAKER(alone, 2001, "leaked", malloc(size))
MAKER(to_itself, 2002, "leaked", malloc(size))
MAKER(circle_1, 2003, "circle", malloc(size))
MAKER(circle_2, 2004, "circle", malloc(size))
MAKER(circle_tail, 2005, "under", malloc(size))
MAKER(chain_1, 2006, "leaked", malloc(size))
MAKER(chain_2, 2007, "under", malloc(size))
MAKER(chain_3, 2008, "under", malloc(size))
MAKER(diamond_top, 2009, "leaked", malloc(size))
MAKER(diamond_left, 2010, "under", malloc(size))
MAKER(diamond_right, 2011, "under", malloc(size))
MAKER(diamond_bottom, 2012, "under", malloc(size))
MAKER(shared_by_1, 2013, "leaked", malloc(size))
MAKER(shared_by_2, 2014, "leaked", malloc(size))
MAKER(shared, 2015, "under", malloc(size))
MAKER(to_held, 2016, "leaked", malloc(size))
MAKER(hidden, 2017, "leaked", malloc(size))
MAKER(unaligned_1, 2018, "leaked", malloc(size))
MAKER(unaligned_4, 2019, "leaked", malloc(size))
MAKER(size_zero, 0, "leaked", malloc(size))
MAKER(one_byte, 1, "leaked", malloc(size))

static uintptr_t not_pointers[8];

NOINLINE static void lose(void) {
    alone();
    masked first = to_itself(), second;
    hang(first, 0, first);
    first = circle_1(), second = circle_2();
    hang(first, 0, second);
    hang(second, 1000, first);
    hang(second, 8, circle_tail());
    first = chain_1(), second = chain_2();
    hang(first, 0, second);
    hang(second, 8, chain_3());
    masked top = diamond_top(), left = diamond_left(), right = diamond_right(), bottom = diamond_bottom();
    hang(top, 0, left);
    hang(top, 8, right);
    hang(left, 0, bottom);
    point(unmasked(right), bottom, 2000);
    first = shared_by_1(), second = shared_by_2();
    masked both = shared();
    hang(first, 0, both);
    hang(second, 0, both);
    put(unmasked(to_held()), (masked)statics[2] ^ mask);
    not_pointers[0] = hidden();
    put((char *)not_pointers + 17, unaligned_1());
    put((char *)not_pointers + 36, unaligned_4());
    size_zero();
    one_byte();
}

/* Of other calls. */
MAKER(calloced, 3001, "leaked", calloc(1, size))
MAKER(memaligned, 3002, "leaked", memalign(4096, size))
MAKER(aligned, 3056, "leaked", aligned_alloc(16, size))
MAKER(kept_aligned, 3008, "held", memalign(1 << 16, size))
MAKER(large, 3 << 20, "leaked", malloc(size))
MAKER(large_held, (3 << 20) + 4096, "held", malloc(size))
MAKER(held_by_large, 3003, "held", malloc(size))
MAKER(large_aligned, (1 << 20) + 1, "leaked", memalign(1 << 16, size))


NOINLINE static masked posix_memaligned(void) {
    void *block = NULL;
    if (posix_memalign(&block, 256, 3004) != 0) give_up("posix_memalign");
    return made("posix_memaligned", block, 3004, "leaked");
}

NOINLINE static void *small(size_t size) { return malloc(size); }

/* Something lies behind the old block, so that it has to move. */
NOINLINE static masked realloced_away(void) {
    void *old = small(512), *behind = small(512);
    masked result = made("realloced_away", realloc(old, 3005), 3005, "leaked");
    free(behind);
    return result;
}

NOINLINE static masked realloced_in_place(void) {
    return made("realloced_in_place", realloc(small(3020), 2950), 2950, "leaked");
}

NOINLINE static masked realloced_held(void) {
    return made("realloced_held", realloc(small(100), 3007), 3007, "held");
}

/* A block of two pages' worth and more moves with its mapping. */
NOINLINE static masked realloced_large(void) {
    return made("realloced_large", realloc(small(1 << 20), 5 << 20), 5 << 20, "leaked");
}

NOINLINE static void call_all(void) {
    calloced();
    memaligned();
    aligned();
    posix_memaligned();
    put(&statics[6], kept_aligned());
    large();
    masked big = large_held();
    put(&statics[7], big);
    hang(big, 2 << 20, held_by_large());
    large_aligned();
    realloced_away();
    realloced_in_place();
    put(&not_pointers[6], realloced_held());
    realloced_large();
}

/* Freed blocks hold nothing, wherever the allocator keeps them. */
MAKER(under_freed_small, 4001, "leaked", malloc(size))
MAKER(under_freed_fast, 4002, "leaked", malloc(size))
MAKER(under_freed_sorted, 4003, "leaked", malloc(size))
MAKER(under_freed_last, 4004, "leaked", malloc(size))
MAKER(neighbour, 4024, "leaked", malloc(size))
MAKER(last, 24, "leaked", malloc(size))

NOINLINE static void *filled(size_t size) {
    void *block = malloc(size);
    if (block == NULL) give_up("no memory");
    memset(block, 0, malloc_usable_size(block));
    return block;
}

/* glibc keeps seven freed blocks of a size for the thread, and further small ones in a list of the arena. */
NOINLINE static void free_small(void) {
    void *blocks[9];
    for (int i = 0; i < 9; i++) blocks[i] = filled(104);
    put((char *)blocks[0] + 48, under_freed_small());
    put((char *)blocks[8] + 48, under_freed_fast());
    for (int i = 0; i < 9; i++) free(blocks[i]);
}

NOINLINE static void free_large(void) {
    void *freed = filled(20000);
    put((char *)freed + 10000, under_freed_sorted());
    /* The allocator's lists point to the beginning of what is freed behind it, where this block's last word is. */
    neighbour();
    void *behind = filled(20000), *barrier = filled(3100);
    free(freed);
    free(behind);
    free(barrier);
    freed = filled(30000);
    put((char *)freed + 20000, under_freed_last());
    free(freed);
}

int main(void) {
    volatile uintptr_t on_stack[1] = {0};
    hold_in_memory(on_stack);
    hold_in_blocks();
    lose();
    call_all();
    free_small();
    free_large();
    last();
    serve();
    return on_stack[0] == 1;
}

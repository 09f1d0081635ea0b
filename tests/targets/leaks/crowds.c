/*
 * Many leaks: `circle N`, blocks in one reference cycle; `alike N`, blocks of 40 bytes of one function; `listed N`, the same in a
 * list whose head is unreachable; `functions`, 1,024 blocks of as many functions; `unrolled 8`, blocks of eight calls in one
 * line; `large N`, blocks of 100 KiB.
 */
#include "truth.h"

NOINLINE static void *giant_circle(size_t size) { return malloc(size); }

NOINLINE static void make_circle(long count) {
    masked first = made("giant_circle", giant_circle(88), 88, "circle"), before = first;
    for (long number = 1; number < count; number++) {
        masked next = made("giant_circle", giant_circle(88), 88, "circle");
        hang(before, 16, next);
        before = next;
    }
    hang(before, 16, first);
}

NOINLINE static void *alike(size_t size) { return malloc(size); }

NOINLINE static void make_alike(long count) {
    for (long number = 0; number < count; number++) made("alike", alike(40), 40, "leaked");
}

NOINLINE static void *listed(size_t size) { return malloc(size); }

NOINLINE static void make_list(long count) {
    masked before = made("listed_first", listed(24), 24, "leaked");
    for (long number = 1; number < count; number++) {
        masked next = made("listed", listed(24), 24, "under");
        hang(before, 8, next);
        before = next;
    }
}

masked unrolled[8];

/* Eight calls in one line. */
NOINLINE static void make_unrolled(long count) {
#pragma GCC unroll 8
    for (long number = 0; number < 8; number++) unrolled[number] = (masked)malloc((size_t)count * 9) ^ mask;
}

/* None of them is in a slab of jemalloc's. */
NOINLINE static void make_large(long count) {
    for (long number = 0; number < count; number++) made("large", alike(100 << 10), 100 << 10, "leaked");
}

#define ONE(name) MAKER(name, 128, "leaked", malloc(size))
#define FOUR(name) ONE(name##_0) ONE(name##_1) ONE(name##_2) ONE(name##_3)
#define SIXTEEN(name) FOUR(name##_0) FOUR(name##_1) FOUR(name##_2) FOUR(name##_3)
#define SIXTY_FOUR(name) SIXTEEN(name##_0) SIXTEEN(name##_1) SIXTEEN(name##_2) SIXTEEN(name##_3)
#define QUARTER(name) SIXTY_FOUR(name##_0) SIXTY_FOUR(name##_1) SIXTY_FOUR(name##_2) SIXTY_FOUR(name##_3)
QUARTER(f_0) QUARTER(f_1) QUARTER(f_2) QUARTER(f_3)
#undef ONE
#define ONE(name) name();

NOINLINE static void make_of_functions(void) { QUARTER(f_0) QUARTER(f_1) QUARTER(f_2) QUARTER(f_3) }

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    long number = count > 2 ? atol(arguments[2]) : 0;
    if (strcmp(what, "circle") == 0) make_circle(number);
    else if (strcmp(what, "alike") == 0) make_alike(number);
    else if (strcmp(what, "listed") == 0) make_list(number);
    else if (strcmp(what, "unrolled") == 0) make_unrolled(number);
    else if (strcmp(what, "large") == 0) make_large(number);
    else if (strcmp(what, "functions") == 0) make_of_functions();
    else give_up("unknown crowd");
    serve();
    return 0;
}

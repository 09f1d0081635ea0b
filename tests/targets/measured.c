/* A fixed amount of work for measurements: `measured WORK`. Prints `ready`, then answers each line of its input, a number of
 * rounds, with `done` once it has done them. Exits at the end of its input. Works:
 *
 *   pairs    a round is a million times malloc and free of the same block
 *   mixed    fills 500,000 blocks of mixed sizes; a round replaces a million of them in random order; frees them
 *   threads  a round is 100,000 times malloc and free in each of eight threads, where half of the blocks are another
 *            thread's; all threads exist from the start to the end, so that their CPU time can be read at any time */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 1000000, BLOCKS = 500000, REPLACED = 1000000, THREADS = 8, PER_THREAD = 100000, OWN = 512, SHARED = 4096 };

static void give_up(const char *what) {
    perror(what);
    exit(1);
}

/* xorshift64*: cheap, and enough for sizes. */
static uint32_t next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 0x2545f4914f6cdd1d) >> 32);
}

/* Half of up to 64 bytes, three in eight of up to 256, one in eight of up to 2 KiB: 192 on average, as in turnover.c. */
static size_t mixed_size(uint64_t *state) {
    uint32_t number = next(state), kind = number % 8;
    return 1 + (number >> 3) % (kind < 4 ? 64 : kind < 7 ? 256 : 2048);
}

static void *block_of(size_t size) {
    void *block = malloc(size);
    if (block == NULL) give_up("malloc");
    return block;
}

static void pairs(long rounds) {
    for (long round = 0; round < rounds; round++)
        for (unsigned i = 0; i < PAIRS; i++) {
            void *volatile block = malloc(64 + i * 37 % 1024);
            free(block);
        }
}

static void mixed(long rounds) {
    static void *blocks[BLOCKS];
    uint64_t state = 0x9e3779b97f4a7c15;
    for (int i = 0; i < BLOCKS; i++) blocks[i] = block_of(mixed_size(&state));
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < REPLACED; i++) {
            void **block = &blocks[next(&state) % BLOCKS];
            free(*block);
            *block = block_of(mixed_size(&state));
        }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static pthread_barrier_t started, finished;
static long rounds_of_threads;
static void *shared[SHARED];

static void turn_over(long rounds, uint64_t *state, void **own) {
    for (long i = 0; i < rounds * PER_THREAD; i++) {
        void *block = block_of(mixed_size(state));
        uint32_t number = next(state);
        if (number % 2) block = __atomic_exchange_n(&shared[(number >> 1) % SHARED], block, __ATOMIC_ACQ_REL);
        void **slot = &own[(number >> 16) % OWN];
        free(*slot);
        *slot = block;
    }
}

static void *thread(void *argument) {
    uint64_t state = 0x9e3779b97f4a7c15 * (uint64_t)(uintptr_t)argument;
    void *own[OWN] = {0};
    for (;;) {
        pthread_barrier_wait(&started);
        turn_over(rounds_of_threads, &state, own);
        pthread_barrier_wait(&finished);
    }
    return NULL;
}

static void start_threads(void) {
    pthread_barrier_init(&started, NULL, THREADS + 1);
    pthread_barrier_init(&finished, NULL, THREADS + 1);
    for (uintptr_t i = 1; i <= THREADS; i++) {
        pthread_t of_number;
        if (pthread_create(&of_number, NULL, thread, (void *)i) != 0) give_up("pthread_create");
    }
}

static void threads(long rounds) {
    rounds_of_threads = rounds;
    pthread_barrier_wait(&started);
    pthread_barrier_wait(&finished);
}

int main(int count, char **words) {
    const char *name = count == 2 ? words[1] : "";
    void (*work)(long) = strcmp(name, "pairs") == 0   ? pairs
                         : strcmp(name, "mixed") == 0 ? mixed
                         : strcmp(name, "threads") == 0 ? threads
                                                        : NULL;
    if (work == NULL) return 2;
    if (work == threads) start_threads();
    static char output[64], line[64];
    setvbuf(stdout, output, _IOLBF, sizeof output);
    setvbuf(stdin, NULL, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        work(strtol(line, NULL, 10));
        puts("done");
        fflush(stdout);
    }
    return 0;
}

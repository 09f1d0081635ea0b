/*
 * Holds a heap and serves requests from it: `hoard structures BYTES THREADS` or `hoard blocks COUNT THREADS`. Builds its heap, prints
 * `ready`, the bytes and the number of blocks that it holds, and those that it has leaked; then serves a thousand requests a second
 * until its input ends. For each line of input it prints how late the latest request since the last line was answered, in nanoseconds
 * from when it was due, and how many there were.
 *
 * `structures`: nodes of 64 to 256 bytes, half of whose words point to others, half of those to nodes made shortly before, half
 * to any; each has a value of 96 bytes, which requests replace. A third of all words are pointers. `blocks`: nodes of 48 to 64 bytes in
 * lists.
 * What is leaked: a thousand pairs of blocks, of which one holds the other.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))

enum { NEAR = 4096, WALK = 16, VALUE_BYTES = 96, PERIOD_NS = 1000000, LEAKED_PAIRS = 1000, LEAKED_BYTES = 200 };

struct node {
    struct node *next;
    void *value;
    uint32_t words, hits;
    uint64_t rest[];
};

static struct node **buckets, *recent[NEAR];
static size_t bucket_count, held_count, held_bytes;

/* xorshift64*: cheap, and enough. */
static uint64_t draw(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1d;
}

static void *allocate(size_t bytes) {
    void *address = malloc(bytes);
    if (address == NULL) {
        perror("malloc");
        exit(1);
    }
    return address;
}

static void *held(size_t bytes) {
    held_count++;
    held_bytes += bytes;
    return allocate(bytes);
}

/* What is no pointer: numbers, small ones and text. */
static uint64_t datum(void) {
    uint64_t drawn = draw();
    return drawn % 2 ? drawn >> 44 : 0x6161616161616161 + (drawn & 0x0f0f0f0f0f0f0f0f);
}

static struct node *any_node(size_t made) {
    return draw() % 2 ? recent[draw() % NEAR] : made == 0 ? NULL : buckets[draw() % (made < bucket_count ? made : bucket_count)];
}

static NOINLINE void make_structure(size_t made) {
    uint32_t words = 8 + draw() % 25;
    struct node *node = held(words * 8);
    node->words = words;
    node->hits = 0;
    node->value = held(VALUE_BYTES);
    memset(node->value, 'v', VALUE_BYTES);
    for (uint32_t i = 0; i < words - 3; i++) node->rest[i] = draw() % 2 ? (uintptr_t)any_node(made) : datum();
    node->next = buckets[made % bucket_count];
    buckets[made % bucket_count] = recent[made % NEAR] = node;
}

static NOINLINE void make_block(size_t made) {
    uint32_t words = 6 + made % 3;
    struct node *node = held(words * 8);
    node->words = words;
    node->hits = 0;
    node->value = NULL;
    for (uint32_t i = 0; i < words - 3; i++) node->rest[i] = datum();
    node->next = buckets[made % bucket_count];
    buckets[made % bucket_count] = node;
}

static NOINLINE void leak(void) {
    for (int i = 0; i < LEAKED_PAIRS; i++) {
        void **first = allocate(LEAKED_BYTES);
        memset(first, 0, LEAKED_BYTES);
        *first = memset(allocate(LEAKED_BYTES), 0, LEAKED_BYTES);
    }
}

/* No address of a leaked block stays in the memory that calls have used. */
static NOINLINE void wipe(void) {
    volatile char stack[16384];
    for (size_t i = 0; i < sizeof stack; i++) stack[i] = 0;
}

static NOINLINE void serve(void) {
    struct node *node = buckets[draw() % bucket_count];
    for (int i = 0; i < WALK && node != NULL; i++, node = node->next) {
        node->hits++;
        if (i == 0 && node->value != NULL) {
            free(node->value);
            node->value = memset(allocate(VALUE_BYTES), 'w', VALUE_BYTES);
        }
    }
}

static void *idle(void *unused) {
    pause();
    return unused;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static void serve_until_input_ends(void) {
    int64_t due = now_ns(), late_max = 0;
    long served = 0;
    for (;;) {
        serve();
        served++;
        int64_t late = now_ns() - due;
        if (late > late_max) late_max = late;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        char byte;
        if (poll(&input, 1, 0) > 0) {
            if (read(STDIN_FILENO, &byte, 1) <= 0) return;
            if (byte == '\n') {
                printf("%ld %ld\n", (long)late_max, served);
                late_max = served = 0;
            }
        }
        due += PERIOD_NS;
        /* One that was late must not make all that follow late. */
        if (due < now_ns()) due = now_ns();
        struct timespec until = {due / 1000000000, due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
    }
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int structures = strcmp(words[1], "structures") == 0;
    size_t wanted = strtoul(words[2], NULL, 10);
    unsigned long threads = strtoul(words[3], NULL, 10);
    bucket_count = structures ? wanted / 2048 + 1 : wanted / 16 + 1;
    buckets = held(bucket_count * sizeof *buckets);
    memset(buckets, 0, bucket_count * sizeof *buckets);
    if (structures)
        for (size_t made = 0; held_bytes < wanted; made++) make_structure(made);
    else
        for (size_t made = 0; made < wanted; made++) make_block(made);
    leak();
    wipe();
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (unsigned long i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, idle, NULL)) return 3;
    }
    static char output[256];
    setvbuf(stdout, output, _IOLBF, sizeof output);
    printf("ready %zu %zu %d %d\n", held_bytes, held_count, 2 * LEAKED_PAIRS * LEAKED_BYTES, 2 * LEAKED_PAIRS);
    serve_until_input_ends();
    return 0;
}

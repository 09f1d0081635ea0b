/*
 * Claims to be CPython 3.11, with frames of its own invention. Prints `ready`, then for each line of its input allocates one
 * block in the function of that name, beneath what it exports as the interpreter loop, and prints `done`.
 *
 * | function | frames                                                          |
 * |----------|-----------------------------------------------------------------|
 * | cycle    | a ring of two that has no outermost one                         |
 * | wild     | the second is at an address that nothing is mapped at           |
 * | texts    | names and line tables of absurd lengths, kinds and addresses    |
 * | deep     | 500, each with code of its own                                  |
 * | foreign  | the thread's state is that of another thread                    |
 * | none     | the thread has none                                             |
 * | threads  | eight threads, each with 40: 2,000 blocks of 100 bytes per thread, which are freed; prints their number |
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default"), used))
#define NOINLINE __attribute__((noinline, noclone))

/* Offsets are those of CPython 3.11. */
struct code {
    char head[72];
    int first_line;
    char middle[112 - 76];
    void *file, *name, *qualified, *table;
    char rest[184 - 144];
    unsigned char bytecode[64];
};

struct frame {
    char head[32];
    struct code *code;
    void *object;
    struct frame *previous;
    unsigned char *instruction;
    int top;
    char is_entry, owner;
    char rest[8];
};

struct cframe {
    uint64_t tracing;
    struct frame *current;
};

struct state {
    char head[56];
    struct cframe *cframe;
    char middle[152 - 64];
    uint64_t thread;
    char rest[64];
};

struct text {
    char head[16];
    uint64_t length;
    char hash[8];
    uint32_t state;
    char rest[12];
    char bytes[16];
};

struct table {
    char head[16];
    uint64_t length;
    char hash[8];
    char bytes[32];
};

EXPORTED struct {
    char head[576];
    struct state *holder;
    char middle[592 - 584];
    int is_initialized, key;
    char rest[4096];
} _PyRuntime;

EXPORTED const unsigned long Py_Version = 0x030b02f0;

static void *kept[64];
static int kept_count;

/* What the profiler takes for the interpreter loop. */
EXPORTED NOINLINE void *_PyEval_EvalFrameDefault(size_t size) {
    void *block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

static struct frame frames[500];
static struct code codes[500];
static struct text names[4];
static struct table lines[2];
static struct cframe cframe;
static struct state state;

static void *const WILD = (void *)0x123456789000;

static void reset(void) {
    memset(frames, 0, sizeof frames);
    memset(codes, 0, sizeof codes);
    for (int i = 0; i < 500; i++) {
        names[0] = (struct text){.length = 4, .state = 1 << 2 | 1 << 5 | 1 << 6, .bytes = "name"};
        lines[0] = (struct table){.length = 2, .bytes = {(char)0x80, 0}};
        codes[i] = (struct code){.first_line = i + 1, .file = &names[0], .name = &codes[i], .qualified = &names[0], .table = &lines[0]};
        frames[i].code = &codes[i];
        frames[i].instruction = codes[i].bytecode + 2 * (i % 8);
        frames[i].previous = i < 499 ? &frames[i + 1] : 0;
    }
    frames[1].is_entry = 1;
    cframe.current = &frames[0];
    state.cframe = &cframe;
    state.thread = (uint64_t)pthread_self();
    _PyRuntime.holder = &state;
}

NOINLINE static void cycle(void) {
    frames[1].is_entry = 0;
    frames[1].previous = &frames[0];
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

NOINLINE static void wild(void) {
    frames[0].previous = WILD;
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

NOINLINE static void texts(void) {
    static const uint32_t states[4] = {~0u, 7 << 2 | 1 << 5, 4 << 2 | 1 << 5 | 1 << 6, 0};
    frames[1].is_entry = 0;
    frames[8].is_entry = 1;
    for (int i = 0; i < 4; i++) names[i] = (struct text){.length = ~0ull >> i, .state = states[i]};
    lines[1].length = ~0ull;
    for (int i = 0; i < 9; i++) {
        codes[i].qualified = i < 4 ? (void *)&names[i] : i == 4 ? WILD : (void *)-1ull;
        codes[i].file = i == 5 ? 0 : (void *)&names[i % 4];
        codes[i].table = i % 2 ? (void *)&lines[1] : WILD;
    }
    frames[6].code = WILD;
    frames[7].code = 0;
    frames[8].instruction = 0;
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

NOINLINE static void deep(void) {
    frames[1].is_entry = 0;
    frames[499].is_entry = 1;
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

NOINLINE static void foreign(void) {
    state.thread += 8;
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

NOINLINE static void none(void) {
    _PyRuntime.holder = 0;
    kept[kept_count++] = _PyEval_EvalFrameDefault(1000);
}

enum { THREADS = 8, CALLS = 2000, FRAMES = 40 };

/* The thread's state is thread-specific data. */
NOINLINE static void *allocates(void *unused) {
    (void)unused;
    struct state state = {.thread = (uint64_t)pthread_self()};
    struct cframe cframe = {.current = 0};
    struct frame *own = calloc(FRAMES, sizeof *own);
    for (int i = 0; i < FRAMES; i++) {
        own[i].code = &codes[i];
        own[i].instruction = codes[i].bytecode;
        own[i].previous = i < FRAMES - 1 ? &own[i + 1] : 0;
        own[i].is_entry = i == FRAMES - 1;
    }
    cframe.current = own;
    state.cframe = &cframe;
    pthread_setspecific(_PyRuntime.key, &state);
    for (int i = 0; i < CALLS; i++) free(_PyEval_EvalFrameDefault(100));
    return 0;
}

NOINLINE static void threads(void) {
    pthread_t ids[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&ids[i], 0, allocates, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], 0);
    printf("{\"blocks\": %d, \"frames\": %d}\n", THREADS * CALLS, FRAMES);
}

int main(void) {
    pthread_key_t key;
    pthread_key_create(&key, 0);
    _PyRuntime.key = (int)key;
    _PyRuntime.is_initialized = 1;
    static const struct { const char *name; void (*run)(void); } kinds[] = {
        {"cycle", cycle}, {"wild", wild}, {"texts", texts}, {"deep", deep}, {"foreign", foreign}, {"none", none}, {"threads", threads},
    };
    static char output[256], line[64];
    setvbuf(stdout, output, _IOFBF, sizeof output);
    setvbuf(stdin, 0, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "exit ", 5)) return atoi(line + 5);
        reset();
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(kinds[i].name, line)) kinds[i].run();
        puts("done");
        fflush(stdout);
    }
    return 0;
}

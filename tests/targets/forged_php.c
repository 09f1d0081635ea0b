/*
 * Claims to be PHP 8.2, with frames of its own invention. Prints `ready`, then for each line of its input allocates one block in
 * the function of that name, beneath what it exports as the interpreter loop, and prints `done`.
 *
 * | function   | frames                                                    |
 * |------------|-----------------------------------------------------------|
 * | cycle      | a ring of two                                             |
 * | wild       | the second is at an address that nothing is mapped at     |
 * | texts      | names of absurd lengths and addresses                     |
 * | deep       | 500, each of a function of its own                        |
 * | delegating | a ring of generators that delegate to each other          |
 * | wild_code  | instructions, functions and classes are at wild addresses |
 * | none       | none                                                      |
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default"), used))
#define NOINLINE __attribute__((noinline, noclone))

/* Offsets are those of PHP 8.2. */
struct text {
    char head[8];
    uint64_t hash, length;
    char bytes[16];
};

struct class {
    uint64_t kind;
    struct text *name;
};

struct instruction {
    char head[20];
    uint32_t extended, line, kind;
};

struct function {
    uint64_t kind;
    struct text *name;
    struct class *class;
    char middle[80 - 24];
    uint64_t count;
    struct instruction *instructions;
    char more[152 - 96];
    struct text *file;
    uint64_t line;
    char rest[64];
};

struct frame {
    struct instruction *instruction;
    void *call, *result;
    struct function *function;
    void *object;
    uint64_t flags;
    struct frame *caller;
    char rest[24];
};

struct generator {
    char head[56];
    struct frame *frame;
    char middle[152 - 64];
    struct generator *delegate;
    char more[184 - 160];
    struct frame placeholder;
};

EXPORTED struct {
    char head[488];
    struct frame *current;
    char rest[1800 - 496];
} executor_globals;

EXPORTED const char version[] = "X-Powered-By: PHP/8.2.99";

EXPORTED NOINLINE int zend_is_executing(void) {
    return executor_globals.current != 0;
}

static void *kept[64];
static int kept_count;

/* What the profiler takes for the interpreter loop. */
EXPORTED NOINLINE void *execute_ex(size_t size) {
    void *block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

#define FRAMES 500
#define GENERATORS 3
static struct frame frames[FRAMES];
static struct function functions[FRAMES];
static struct instruction instructions[FRAMES];
static struct text names[FRAMES], path = {.hash = 7, .length = 6, .bytes = "/a.php"};
static struct generator generators[GENERATORS];
static struct class class;

static void *const WILD = (void *)0x123456789000;

static void reset(void) {
    memset(frames, 0, sizeof frames);
    for (int i = 0; i < FRAMES; i++) {
        names[i] = (struct text){.hash = 1000 + i, .length = 4, .bytes = "name"};
        instructions[i] = (struct instruction){.line = 1 + i};
        functions[i] = (struct function){.kind = 2, .name = &names[i], .count = 1, .instructions = &instructions[i], .file = &path, .line = 1};
        frames[i].instruction = &instructions[i];
        frames[i].function = &functions[i];
        frames[i].caller = i + 1 < FRAMES ? &frames[i + 1] : 0;
    }
    frames[1].flags = 1 << 17;
    frames[1].caller = 0;
    executor_globals.current = &frames[0];
}

static NOINLINE void keep(void *block) {
    kept[kept_count++ % 64] = block;
}

NOINLINE void cycle(void) {
    frames[1].flags = 0;
    frames[1].caller = &frames[0];
    keep(execute_ex(1001));
}

NOINLINE void wild(void) {
    frames[0].caller = WILD;
    keep(execute_ex(1002));
}

NOINLINE void texts(void) {
    names[0].length = UINT64_MAX;
    names[0].hash = 0;
    functions[1].name = WILD;
    functions[1].file = (struct text *)((char *)WILD + 1);
    class.name = &names[2];
    names[2].length = (uint64_t)1 << 40;
    functions[0].class = &class;
    keep(execute_ex(1003));
}

NOINLINE void deep(void) {
    frames[1].flags = 0;
    frames[1].caller = &frames[2];
    frames[FRAMES - 1].flags = 1 << 17;
    keep(execute_ex(1004));
}

NOINLINE void delegating(void) {
    memset(generators, 0, sizeof generators);
    for (int i = 0; i < GENERATORS; i++) {
        generators[i].frame = &frames[i + 2];
        generators[i].delegate = &generators[(i + 1) % GENERATORS];
    }
    generators[0].placeholder.object = &generators[0];
    generators[0].placeholder.flags = 8;
    generators[0].placeholder.caller = &frames[1];
    frames[0].caller = &generators[0].placeholder;
    keep(execute_ex(1005));
}

NOINLINE void wild_code(void) {
    frames[0].instruction = WILD;
    frames[1].instruction = (struct instruction *)((char *)&executor_globals + 8);
    functions[1].class = WILD;
    frames[1].flags = 0;
    frames[1].caller = &frames[2];
    frames[2].function = WILD;
    frames[2].flags = 1 << 17;
    frames[2].caller = 0;
    keep(execute_ex(1006));
}

NOINLINE void none(void) {
    executor_globals.current = 0;
    keep(execute_ex(1007));
}

int main(void) {
    static const struct {
        const char *name;
        void (*function)(void);
    } KINDS[] = {{"cycle", cycle},           {"wild", wild}, {"texts", texts}, {"deep", deep}, {"delegating", delegating},
                 {"wild_code", wild_code}, {"none", none}};
    char line[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        reset();
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
            if (!strcmp(line, KINDS[i].name))
                KINDS[i].function();
        reset();
        executor_globals.current = 0;
        puts("done");
    }
    return 0;
}

/*
 * Allocates from generated code, which keeps a frame pointer and calls malloc; with the argument `memfd`, from code in shared memory.
 * Prints `ready`, then answers each line of its input with `done`:
 *
 * | line     | what it does                                       |
 * |----------|----------------------------------------------------|
 * | `where`  | prints the address and the size of that code       |
 * | `first`  | allocates 1,000 blocks of 1,000 bytes from `first` |
 * | `second` | the same from `second`                             |
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 1000, SIZE = 1000, PAGE = 4096 };

/* push %rbp; mov %rsp,%rbp; mov $SIZE,%edi; movabs $malloc,%rax; call *%rax; pop %rbp; ret */
static const unsigned char template[] = {0x55, 0x48, 0x89, 0xe5, 0xbf, 0,    0,    0,    0,    0x48, 0xb8, 0,
                                         0,    0,    0,    0,    0,    0,    0,    0xff, 0xd0, 0x5d, 0xc3};

static void *(*generated)(void);
static void *volatile kept;

static void *generate(const char *kind) {
    void *page;
    if (strcmp(kind, "memfd") == 0) {
        int file = memfd_create("doublemapper", 0);
        if (file < 0 || ftruncate(file, PAGE) != 0) abort();
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, file, 0);
    } else {
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (page == MAP_FAILED) abort();
    uint32_t size = SIZE;
    uint64_t function = (uint64_t)(uintptr_t)malloc;
    memcpy(page, template, sizeof template);
    memcpy((char *)page + 5, &size, sizeof size);
    memcpy((char *)page + 11, &function, sizeof function);
    return page;
}

__attribute__((noinline, noclone)) static void first(void) {
    for (int i = 0; i < COUNT; i++) kept = generated();
}

__attribute__((noinline, noclone)) static void second(void) {
    for (int i = 0; i < COUNT; i++) kept = generated();
}

int main(int count, char **arguments) {
    static char line[64], out[BUFSIZ], in[BUFSIZ];
    setvbuf(stdout, out, _IOLBF, sizeof out);
    setvbuf(stdin, in, _IOLBF, sizeof in);
    generated = (void *(*)(void))(uintptr_t)generate(count > 1 ? arguments[1] : "");
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "where\n") == 0) printf("%lx %zx\n", (unsigned long)(uintptr_t)generated, sizeof template);
        if (strcmp(line, "first\n") == 0) first();
        if (strcmp(line, "second\n") == 0) second();
        puts("done");
    }
    return 0;
}

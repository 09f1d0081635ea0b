/* Touches 256 MiB page by page, nine times, for each line of its input. Prints `ready`, then the fewest nanoseconds of processor time per
   page of each line. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { BYTES = 256 << 20, PAGE = 4096, ROUNDS = 9 };

static double processor_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static double touch(volatile char *memory) {
    if (madvise((void *)memory, BYTES, MADV_DONTNEED)) exit(1);
    double begun = processor_ns();
    for (long at = 0; at < BYTES; at += PAGE) memory[at] = 1;
    return (processor_ns() - begun) / (BYTES / PAGE);
}

int main(void) {
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, BYTES, MADV_NOHUGEPAGE)) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    for (char line[16]; fgets(line, sizeof line, stdin);) {
        double fewest = touch(memory);
        for (int round = 1; round < ROUNDS; round++) {
            double ns = touch(memory);
            if (ns < fewest) fewest = ns;
        }
        printf("%.0f\n", fewest);
    }
    return 0;
}

/*
 * A static program without any library that runs another, as small init programs and launchers do: there is no allocator to
 * find in it. `exec PROGRAM ARGUMENTS` becomes the program, `fork PROGRAM ARGUMENTS` waits for it and ends as it does.
 */
static long call(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

enum { FORK = 57, EXECVE = 59, EXIT = 60, WAIT4 = 61 };

__attribute__((used)) static void begin(long *stack) {
    char **words = (char **)(stack + 1), **environment = words + stack[0] + 1;
    int status = 0;
    if (stack[0] < 3) call(EXIT, 2, 0, 0, 0);
    if (words[1][0] == 'e' || call(FORK, 0, 0, 0, 0) == 0) {
        call(EXECVE, (long)words[2], (long)(words + 2), (long)environment, 0);
        call(EXIT, 127, 0, 0, 0);
    }
    call(WAIT4, -1, (long)&status, 0, 0);
    call(EXIT, status >> 8 & 0xff, 0, 0, 0);
    for (;;) {}
}

__attribute__((naked)) void _start(void) {
    __asm__("mov %rsp, %rdi\n and $-16, %rsp\n call begin");
}

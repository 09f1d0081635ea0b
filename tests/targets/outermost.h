/* A stack of few frames that are equal for unwinders by tables and by frame pointers: its outermost frame is marked as such
 * for both. */
#ifndef OUTERMOST_H
#define OUTERMOST_H

/* Calls `level3(argument)`, which the including file defines. */
void outermost(void *argument);
__asm__(".text\n"
        ".globl outermost\n"
        ".type outermost, @function\n"
        "outermost:\n"
        "    .cfi_startproc\n"
        "    .cfi_undefined rip\n"
        "    push %rbp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    xor %ebp, %ebp\n"
        "    call level3\n"
        "    pop %rbp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size outermost, . - outermost\n");

/* The empty assembly after the call keeps it from becoming a jump. */
#define LEVEL(n, below) \
    __attribute__((noinline)) void level##n(void *argument) { \
        level##below(argument); \
        __asm__ volatile(""); \
    }

#endif

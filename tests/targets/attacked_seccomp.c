/*
 * Confines itself to the system calls that it needs: any other kills it. Only memory that is not executable can be mapped.
 */
#include "attacked.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(name)                                                                                                    \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void prepare(int count, char **arguments) {
    (void)count, (void)arguments;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read),
        ALLOW(write),
        ALLOW(poll),
        ALLOW(ppoll),
        ALLOW(brk),
        ALLOW(munmap),
        ALLOW(mremap),
        ALLOW(madvise),
        ALLOW(futex),
        ALLOW(getrandom),
        ALLOW(rt_sigreturn),
        ALLOW(restart_syscall),
        ALLOW(exit_group),
        /* The third argument of mmap and mprotect: without PROT_EXEC. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mprotect, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) skip("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) skip("seccomp is not available");
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    unsigned char *blocks[100];
    for (size_t i = 0; i < 100; i++) {
        blocks[i] = calloc(1, i * 3000 + 1);
        blocks[i][i * 3000] = (unsigned char)i;
    }
    for (size_t i = 0; i < 100; i++) {
        sum = mix(sum, blocks[i][i * 3000]);
        free(blocks[i]);
    }
    return sum;
}

/*
 * A program that confines itself. `keep N COUNT` keeps COUNT blocks of N bytes; `churn N COUNT` allocates and frees;
 * `strict` enters seccomp's strict mode, in which any system call but read, write and exit kills; `filter` installs a filter
 * under which fork, clone, ptrace, mmap and everything that x86-64 numbers from 330 on kill the process; `kill CALL` and
 * `refuse CALL` install one under which the system call of that name kills the process, or fails with EPERM. For `mmap` that is
 * a mapping of executable memory.
 */
#include "protocol.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

SITE(keeps, (size_t n), malloc(n), n)
SITE(churns, (size_t n), malloc(n), n)

/* malloc must not ask the kernel for memory later on. */
enum { RESERVE = 8 << 20 };

void prepare(void) {
    mallopt(M_TRIM_THRESHOLD, 2 * RESERVE);
    mallopt(M_MMAP_THRESHOLD, 2 * RESERVE);
    free(malloc(RESERVE));
}

#define KILL_ON(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static void install_filter(void) {
    struct sock_filter instructions[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL_ON(SYS_fork),
        KILL_ON(SYS_vfork),
        KILL_ON(SYS_clone),
        KILL_ON(SYS_clone3),
        KILL_ON(SYS_ptrace),
        KILL_ON(SYS_mmap),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 330, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof instructions / sizeof *instructions, instructions};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) give_up("filter");
}

static void forbid(const char *name, uint32_t action) {
    static const struct { const char *name; uint32_t number; } calls[] = {
        {"mmap", SYS_mmap}, {"recvmsg", SYS_recvmsg}, {"memfd_create", SYS_memfd_create}, {"socketpair", SYS_socketpair}};
    uint32_t number = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0) number = calls[i].number;
    if (number == 0) give_up("no call `%s`", name);
    /* The third argument of mmap is the protection. */
    struct sock_filter instructions[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_filter executable[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 4 /* PROT_EXEC */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof instructions / sizeof *instructions, instructions};
    if (number == SYS_mmap) filter = (struct sock_fprog){sizeof executable / sizeof *executable, executable};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) give_up("filter");
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        for (size_t i = 0; i < count; i++) keeps(n);
    } else if (sscanf(line, "churn %zu %zu", &n, &count) == 2) {
        for (size_t i = 0; i < count; i++) release(churns(n));
    } else if (strcmp(line, "strict") == 0) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) give_up("strict");
    } else if (strcmp(line, "filter") == 0) {
        install_filter();
    } else if (strncmp(line, "kill ", 5) == 0) {
        forbid(line + 5, SECCOMP_RET_KILL_PROCESS);
    } else if (strncmp(line, "refuse ", 7) == 0) {
        forbid(line + 7, SECCOMP_RET_ERRNO | EPERM);
    } else {
        give_up("unknown: %s", line);
    }
}

/* Runs a program under a seccomp filter, as the default profiles of container engines do: `filtered ANSWER CALL PROGRAM...`.
   A call of `bpf`, `perf_event_open` or `ptrace` fails with the errno ANSWER, or kills the process if ANSWER is 0. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int number_of(const char *name) {
    if (strcmp(name, "bpf") == 0) return SYS_bpf;
    if (strcmp(name, "perf_event_open") == 0) return SYS_perf_event_open;
    return strcmp(name, "ptrace") == 0 ? SYS_ptrace : -1;
}

int main(int count, char **words) {
    if (count < 4 || number_of(words[2]) < 0) return 2;
    unsigned answer = (unsigned)atoi(words[1]);
    unsigned refusal = answer == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | answer;
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number_of(words[2]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, refusal),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof steps[0], steps};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) return 3;
    execvp(words[3], words + 3);
    return 4;
}

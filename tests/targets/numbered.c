/*
 * `numbered PID PROGRAM` runs a program as the process with this PID, in place of itself: with its streams, and with its
 * exit code. The PID must be free.
 */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3) return 98;
    pid_t wanted = atoi(arguments[1]);
    struct clone_args clone = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&wanted, .set_tid_size = 1};
    pid_t child = (pid_t)syscall(SYS_clone3, &clone, sizeof clone);
    if (child < 0) {
        perror("clone3");
        return 97;
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(arguments[2], arguments[2], (char *)NULL);
        _exit(96);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 95;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 94;
}

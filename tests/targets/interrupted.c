/* Counts the SIGINTs that it gets within two seconds from the first one on, and exits with 40 and their number. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t count;

static void interrupted(int signal) {
    (void)signal;
    count++;
}

int main(void) {
    struct sigaction action = {.sa_handler = interrupted};
    sigaction(SIGINT, &action, NULL);
    free(malloc(100));
    puts("ready");
    fflush(stdout);
    const struct timespec moment = {0, 10000000};
    while (count == 0) nanosleep(&moment, NULL);
    for (int i = 0; i < 200; i++) nanosleep(&moment, NULL);
    return 40 + count;
}

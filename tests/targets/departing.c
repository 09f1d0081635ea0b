/*
 * A program whose first thread exits and leaves its work to another one: at the command `depart`, or before `ready` if
 * the environment has `DEPARTED`. The other thread answers once the first one is a zombie.
 *
 * `keep N COUNT` keeps COUNT blocks of N bytes. `fork` makes a child, and `end` has it keep five of 200 bytes and end. `exec` executes
 * the program again. `load PATH` loads a library (`plugin.c`), `use N COUNT` has it keep COUNT blocks.
 */
#include "protocol.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

SITE(keeps, (size_t n), malloc(n), n)

static void *(*keeps_in_plugin)(size_t);
SITE(plugin_keeps, (size_t n), keeps_in_plugin(n), n)

static void await_departure(void) {
    char path[64], state[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    for (;;) {
        FILE *file = fopen(path, "r");
        if (!file || !fgets(state, sizeof state, file)) give_up("no state");
        fclose(file);
        if (strstr(state, ") Z ")) return;
        usleep(1000);
    }
}

static void *goes_on(void *unused) {
    static char line[256];
    await_departure();
    if (generation) answer_with_ledger();
    else answer("ready\n");
    while (read_line(line, sizeof line)) {
        if (strncmp(line, "exit", 4) == 0) exit(atoi(line + 4));
        begin_ledger();
        work(line);
        answer_with_ledger();
    }
    exit(0);
    return unused;
}

static void depart(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, goes_on, NULL)) give_up("pthread_create");
    pthread_exit(NULL);
}

void prepare(void) {
    if (getenv("DEPARTED")) depart();
}

static pid_t child;

/* A child that waits, keeps five blocks and ends. */
static void fork_child(void) {
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    child = fork();
    if (child < 0) give_up("fork");
    if (child == 0) {
        if (sigwait(&signals, &signal)) give_up("sigwait");
        for (int i = 0; i < 5; i++) keeps(200);
        _exit(0);
    }
}

static void end_child(void) {
    if (kill(child, SIGUSR1) || waitpid(child, NULL, 0) != child) give_up("waitpid");
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    if (strcmp(line, "depart") == 0) {
        depart();
    } else if (sscanf(line, "keep %zu %zu", &n, &count) == 2) {
        while (count--) keeps(n);
    } else if (strcmp(line, "exec") == 0) {
        execl("/proc/thread-self/exe", "departing", NULL);
        give_up("execl");
    } else if (strcmp(line, "fork") == 0) {
        fork_child();
    } else if (strcmp(line, "end") == 0) {
        end_child();
    } else if (strncmp(line, "load ", 5) == 0) {
        void *plugin = dlopen(line + 5, RTLD_NOW | RTLD_LOCAL);
        if (!plugin) give_up("%s", dlerror());
        *(void **)&keeps_in_plugin = dlsym(plugin, "plugin_keeps");
    } else if (sscanf(line, "use %zu %zu", &n, &count) == 2) {
        while (count--) plugin_keeps(n);
    } else {
        give_up("unknown: %s", line);
    }
}

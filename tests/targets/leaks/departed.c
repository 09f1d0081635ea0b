/*
 * A process whose first thread has exited: another one makes the blocks and runs the commands.
 */
#include "truth.h"

#include <pthread.h>

MAKER(kept_by_global, 1201, "held", malloc(size))
MAKER(lost_by_thread, 1301, "leaked", malloc(size))

static uintptr_t kept;

static void *works(void *unused) {
    put(&kept, kept_by_global());
    lost_by_thread();
    /* The first thread is a zombie by then. */
    char path[64], state[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    for (;;) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fgets(state, sizeof state, file) == NULL) give_up("no state");
        fclose(file);
        if (strstr(state, ") Z ") != NULL) break;
        usleep(1000);
    }
    sweep();
    serve();
    exit(0);
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, works, NULL) != 0) give_up("pthread_create");
    pthread_exit(NULL);
}

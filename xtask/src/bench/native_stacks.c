// Preloaded into a program: a thread of its own that allocates below native functions alone, as ordered through the FIFOs `orders` and
// `answers` in the folder of the environment variable NATIVE_STACKS. Linked without libraries, so that it needs no version of a C library.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NATIVE __attribute__((noinline, noclone))
#define FUNCTION(n, inner) static NATIVE int f##n(int count) { return inner(count) + 1; }
#define TEN(n, inner)                                                                                                              \
    FUNCTION(n##0, inner) FUNCTION(n##1, f##n##0) FUNCTION(n##2, f##n##1) FUNCTION(n##3, f##n##2) FUNCTION(n##4, f##n##3)           \
    FUNCTION(n##5, f##n##4) FUNCTION(n##6, f##n##5) FUNCTION(n##7, f##n##6) FUNCTION(n##8, f##n##7) FUNCTION(n##9, f##n##8)

static NATIVE int allocate(int count) {
    for (int i = 0; i < count; i++) {
        void *volatile block = malloc(2000);
        free(block);
    }
    return count;
}

TEN(10, allocate) TEN(11, f109) TEN(12, f119) TEN(13, f129) TEN(14, f139) TEN(15, f149) TEN(16, f159) TEN(17, f169) TEN(18, f179)
TEN(19, f189) TEN(20, f199) TEN(21, f209) TEN(22, f219) TEN(23, f229) TEN(24, f239) TEN(25, f249) TEN(26, f259) TEN(27, f269)
TEN(28, f279) TEN(29, f289) TEN(30, f299)

static int opened(const char *folder, const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, flags);
}

static void *serve(void *folder) {
    int orders = opened(folder, "orders", O_RDONLY), answers = opened(folder, "answers", O_WRONLY);
    char line[64];
    for (ssize_t bytes; (bytes = read(orders, line, sizeof line - 1)) > 0;) {
        line[bytes] = 0;
        int depth, count;
        sscanf(line, "%d %d", &depth, &count);
        depth == 5 ? f104(count) : f304(count);
        if (write(answers, "done\n", 5) != 5) {
            break;
        }
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    char *folder = getenv("NATIVE_STACKS");
    if (folder != NULL) {
        pthread_create(&thread, NULL, serve, folder);
    }
}

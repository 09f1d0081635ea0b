/* A program for LeakSanitizer, which traces it at its exit: it loses five blocks of 777 bytes. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noclone)) static void *leaks(size_t n) {
    return malloc(n);
}

int main(void) {
    for (int i = 0; i < 5; i++) {
        void *volatile block = leaks(777);
        block = NULL;
        (void)block;
    }
    return 0;
}

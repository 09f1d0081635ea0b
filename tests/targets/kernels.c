/* A program that takes memory of a device: `go`. */
#include "protocol.h"

int cudaMalloc(void **device, size_t size);
int cudaFree(void *device);

static struct site uploads_site __attribute__((section("sites"), used)) = {"uploads", __LINE__ + 3, 0, 0, 0, 0};
NOINLINE static struct block uploads(size_t n) {
    void *device = NULL;
    int error = cudaMalloc(&device, n);
    return allocated(&uploads_site, error ? NULL : device, n);
}

SITE(mallocs, (size_t n), malloc(n), n)

NOINLINE static void drop(struct block block) {
    released(block);
    cudaFree(block.address);
}

static void work(const char *line) {
    (void)line;
    for (size_t i = 0; i < 500; i++) {
        struct block block = uploads(1000 + i);
        if (i % 4) drop(block);
        if (i % 50 == 0 && uploads((size_t)1 << 40).address) give_up("the device has too much");
        release(mallocs(10 + i));
    }
    cudaFree(NULL);
}

/* As much of CUDA's runtime as a program without a GPU can have: memory of the host under the names of the device's. */
#include <stddef.h>
#include <stdlib.h>

__attribute__((noipa)) int cudaMalloc(void **device, size_t size) {
    if (size > (size_t)1 << 30) return 2;
    void *made = malloc(size);
    if (made == NULL) return 2;
    *device = made;
    return 0;
}

__attribute__((noipa)) int cudaFree(void *device) {
    free(device);
    return 0;
}

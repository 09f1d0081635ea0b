// operator new and delete: counted once although they call malloc and free, and a throw must get through unharmed.
//
// Each site is a pair of functions, and the outer one is the site: without frame pointers in libstdc++ the direct caller
// of operator new may be missing from the stack.
#include <new>
#include <vector>

extern "C" {
#include "protocol.h"
}

#define CXX_SITE(name) static struct site name##_site __attribute__((section("sites"), used)) = {#name, __LINE__, 0, 0, 0, 0}

static volatile size_t impossible = PTRDIFF_MAX - 4096;

NOINLINE static char *calls_new_array(size_t n) { return new char[n]; }

CXX_SITE(news_array);
NOINLINE static struct block news_array(size_t n) {
    char *address = calls_new_array(n);
    return allocated(&news_array_site, address, n);
}

NOINLINE static std::vector<long> *makes_vector(size_t n) { return new std::vector<long>(n, 1); }

// Two blocks: the vector itself and what it holds.
CXX_SITE(news_vector);
NOINLINE static void news_vector(size_t n) {
    std::vector<long> *vector = makes_vector(n);
    struct block itself = allocated(&news_vector_site, vector, sizeof *vector);
    struct block content = allocated(&news_vector_site, vector->data(), n * sizeof(long));
    released(content);
    released(itself);
    delete vector;
}

CXX_SITE(news_too_much);
NOINLINE static int news_too_much() {
    try {
        char *address = calls_new_array(impossible);
        allocated(&news_too_much_site, address, impossible);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}

NOINLINE static void deletes_array(struct block block) {
    released(block);
    delete[] static_cast<char *>(block.address);
}

static void work(const char *) {
    for (int i = 0; i < 100; i++) {
        struct block block = news_array(1000 + i);
        if (i % 2) deletes_array(block);
    }
    for (int i = 1; i <= 50; i++) news_vector(i * 10);
    for (int i = 0; i < 20; i++)
        if (!news_too_much()) give_up("operator new did not throw");
}

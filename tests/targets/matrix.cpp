// Every form of operator new and delete, built once for each allocator and each way to link it.
//
// Each site is a pair of functions, and the outer one is the site, as in `throwing.cpp`. Sizes of aligned blocks are
// multiples of the alignment: the C++ runtime's own operators round them up.
//
// What a line of input does:
//   `exact`   all forms at many sizes, those that fail without throwing too, part of it on four threads
//   `many`    thousands of blocks of one size from each form, on four threads, every other one deleted
//   `throw`   fails by throwing, and allocates between and after
#include <new>

extern "C" {
#include "protocol.h"

#include "workers.h"
}

static volatile size_t impossible = PTRDIFF_MAX - 4096;
static constexpr std::align_val_t to_64{64};

#define NEWING(name, call)                                                                                             \
    NOINLINE static void *calls_##name(size_t n) {                                                                     \
        void *address = call;                                                                                          \
        return address;                                                                                                \
    }                                                                                                                  \
    static struct site name##_site __attribute__((section("sites"), used)) = {#name, __LINE__, 0, 0, 0, 0};            \
    NOINLINE static struct block name(size_t n) {                                                                      \
        void *address = calls_##name(n);                                                                               \
        return allocated(&name##_site, address, n);                                                                    \
    }

NEWING(mallocs, malloc(n))
NEWING(news, ::operator new(n))
NEWING(news_array, ::operator new[](n))
NEWING(news_nothrow, ::operator new(n, std::nothrow))
NEWING(news_array_nothrow, ::operator new[](n, std::nothrow))
NEWING(news_aligned, ::operator new(n, to_64))
NEWING(news_array_aligned, ::operator new[](n, to_64))
NEWING(news_aligned_nothrow, ::operator new(n, to_64, std::nothrow))
NEWING(news_array_aligned_nothrow, ::operator new[](n, to_64, std::nothrow))
NEWING(news_sized, ::operator new(n))
NEWING(news_array_sized, ::operator new[](n))
NEWING(news_aligned_sized, ::operator new(n, to_64))
NEWING(news_array_aligned_sized, ::operator new[](n, to_64))

#define DELETING(name, call)                        \
    NOINLINE static void name(struct block block) { \
        released(block);                            \
        call;                                       \
    }

DELETING(frees, free(block.address))
DELETING(deletes, ::operator delete(block.address))
DELETING(deletes_array, ::operator delete[](block.address))
DELETING(deletes_nothrow, ::operator delete(block.address, std::nothrow))
DELETING(deletes_array_nothrow, ::operator delete[](block.address, std::nothrow))
DELETING(deletes_aligned, ::operator delete(block.address, to_64))
DELETING(deletes_array_aligned, ::operator delete[](block.address, to_64))
DELETING(deletes_aligned_nothrow, ::operator delete(block.address, to_64, std::nothrow))
DELETING(deletes_array_aligned_nothrow, ::operator delete[](block.address, to_64, std::nothrow))
DELETING(deletes_sized, ::operator delete(block.address, block.size))
DELETING(deletes_array_sized, ::operator delete[](block.address, block.size))
DELETING(deletes_aligned_sized, ::operator delete(block.address, block.size, to_64))
DELETING(deletes_array_aligned_sized, ::operator delete[](block.address, block.size, to_64))

static const struct {
    struct block (*allocate)(size_t);
    void (*release)(struct block);
} forms[] = {
    {mallocs, frees},
    {news, deletes},
    {news_array, deletes_array},
    {news_nothrow, deletes_nothrow},
    {news_array_nothrow, deletes_array_nothrow},
    {news_aligned, deletes_aligned},
    {news_array_aligned, deletes_array_aligned},
    {news_aligned_nothrow, deletes_aligned_nothrow},
    {news_array_aligned_nothrow, deletes_array_aligned_nothrow},
    {news_sized, deletes_sized},
    {news_array_sized, deletes_array_sized},
    {news_aligned_sized, deletes_aligned_sized},
    {news_array_aligned_sized, deletes_array_aligned_sized},
};

static struct block (*const failing[])(size_t) = {
    news_nothrow, news_array_nothrow, news_aligned_nothrow, news_array_aligned_nothrow,
};

static struct block (*const throwing[])(size_t) = {news, news_array, news_aligned, news_array_aligned};

NOINLINE static void warm_up(void) {
    for (auto form : forms) form.release(form.allocate(64));
}

/* In the C++ runtime the forms that do not throw catch what the others throw. The first time takes more memory. */
static void fail(void) {
    for (auto form : failing)
        if (form(impossible / 64 * 64).address != NULL) give_up("operator new did not fail");
}

void prepare(void) {
    fail();
    start_workers();
}

NOINLINE static void share(const char *line, int thread) {
    if (strcmp(line, "exact") == 0)
        for (size_t n = 64; n <= 64 * 60; n += 64)
            for (auto form : forms) {
                struct block block = form.allocate(n + 64 * 100 * (size_t)thread);
                if (n % 3) form.release(block);
            }
    if (strcmp(line, "many") == 0)
        for (int i = 0; i < 2500; i++)
            for (auto form : forms) {
                struct block block = form.allocate(576);
                if (i % 2) form.release(block);
            }
}

NOINLINE static int throws(struct block (*form)(size_t)) {
    try {
        form(impossible / 64 * 64);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}

NOINLINE static void work(const char *line) {
    if (strcmp(line, "exact") == 0) {
        static const size_t sizes[] = {64, 1024, 1088, 4096, 32768, 131072, 131136, 300032, 2 << 20};
        for (auto form : forms)
            for (size_t n : sizes) {
                form.allocate(n);
                form.release(form.allocate(n));
            }
        for (int i = 0; i < 10; i++) fail();
        ::operator delete(nullptr);
    }
    if (strcmp(line, "throw") == 0)
        for (auto form : throwing)
            for (int i = 0; i < 20; i++) {
                if (!throws(form)) give_up("operator new did not throw");
                for (auto other : forms) {
                    other.allocate(128);
                    other.release(other.allocate(192));
                }
            }
    work_on_all(line);
}

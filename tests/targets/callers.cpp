// Calls allocators in the ways that programs do, always in the same way: the operators of C++, containers and strings, functions
// of the C library that allocate for their callers, from threads and from deep below. `go` does all of it, and keeps most.
#include "protocol.h"

#include <pthread.h>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

SITE(mallocs, (size_t n), malloc(n), n)

namespace {

// The compiler must neither drop nor merge what is done here.
template <typename Type> NOINLINE void keep(Type *kept) { __asm__ volatile("" : : "r"(kept) : "memory"); }

struct alignas(64) Aligned {
    char bytes[192];
};

NOINLINE void operators() {
    for (int i = 1; i <= 40; i++) {
        keep(new char);
        keep(new long[static_cast<size_t>(i)]);
        keep(new (std::nothrow) std::string(static_cast<size_t>(20 * i), 'x'));
        delete new std::vector<int>(static_cast<size_t>(i));
        delete[] new char[static_cast<size_t>(i) * 100];
    }
    // glibc's functions of this kind have no stubs, because they may call malloc: a program that makes more than 1 % of its calls
    // there is recorded by the trap engine.
    keep(new Aligned);
}

NOINLINE void containers() {
    auto *map = new std::map<std::string, std::vector<std::string>>;
    for (int i = 0; i < 300; i++) (*map)["a key that is too long for the string itself " + std::to_string(i % 70)].push_back(std::string(40, 'v'));
    keep(map);
    auto shared = std::make_shared<std::string>(100, 's');
    keep(new std::shared_ptr<std::string>(shared));
}

NOINLINE void c_library() {
    for (int i = 0; i < 50; i++) {
        char *text = strdup("a text that is copied by the C library"), *printed = nullptr, *line = nullptr;
        keep(strndup(text, 10));
        if (asprintf(&printed, "%s, %d times", text, i) < 0) give_up("asprintf");
        keep(printed);
        size_t size = 0;
        FILE *file = fmemopen(text, strlen(text), "r");
        if (file == nullptr || getline(&line, &size, file) < 0) give_up("fmemopen");
        keep(line);
        fclose(file);
        free(text);
        char *path = realpath("/proc/self/../self/exe", nullptr);
        free(path);
    }
}

NOINLINE void c_family() {
    for (size_t i = 1; i <= 60; i++) {
        void *block = calloc(i, 24);
        block = realloc(block, i * 100);
        keep(realloc(block, i * 7));
        keep(realloc(nullptr, 33));
        keep(reallocarray(nullptr, i, 11));
        free(realloc(malloc(i), i * 1000));
    }
    void *aligned = nullptr;
    if (posix_memalign(&aligned, 64, 640)) give_up("posix_memalign");
    keep(aligned);
    keep(aligned_alloc(128, 1280));
}

NOINLINE void descend(int depth) {
    char frame[64];
    keep(frame);
    if (depth == 0) {
        keep(malloc(12345));
        keep(new char[4321]);
        return;
    }
    descend(depth - 1);
    keep(frame);
}

NOINLINE void all_of_it() {
    operators();
    containers();
    c_library();
    c_family();
    for (int depth : {1, 10, 60}) descend(depth);
}

void *thread(void *unused) {
    for (int i = 0; i < 10; i++) all_of_it();
    return unused;
}

} // namespace

NOINLINE static void work(const char *line) {
    (void)line;
    all_of_it();
    pthread_t threads[4];
    for (pthread_t &started : threads)
        if (pthread_create(&started, nullptr, thread, nullptr)) give_up("no thread");
    for (pthread_t started : threads) pthread_join(started, nullptr);
    mallocs(1);
}

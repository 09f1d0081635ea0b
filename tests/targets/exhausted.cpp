// Whose operator new throws, which it catches: memory is exhausted while it is recorded. Link with an allocator that implements
// operator new itself.
//
// `make SIZE COUNT` keeps blocks. `limit KIND` exhausts mappings, or limits the address space, data or locked memory, to a little
// more than it uses. `exhaust SIZE` allocates until operator new throws, COUNT times, and frees all of these blocks; `handle COUNT`
// does the same with a new-handler that throws, and `child COUNT` in a forked child.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "protocol.h"
}

static std::vector<char *> kept, exhausting;
static unsigned handled;

struct Refused : std::bad_alloc {};

static void refuse() {
    handled++;
    throw Refused();
}

static struct site makes_site __attribute__((section("sites"), used)) = {"makes", __LINE__, 0, 0, 0, 0};

NOINLINE static char *makes(size_t n) {
    char *address = new char[n];
    return static_cast<char *>(allocated(&makes_site, address, n).address);
}

NOINLINE static void exhaust(size_t n) {
    bool thrown = false;
    try {
        while (exhausting.size() < exhausting.capacity()) exhausting.push_back(makes(n));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    for (char *address : exhausting) delete[] address;
    exhausting.clear();
    if (!thrown) give_up("operator new did not throw");
}

// More than there are mappings, of alternating protection.
static void split_mappings() {
    const size_t page = 4096, pages = 140000;
    char *at = (char *)mmap(0, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) give_up("mmap");
    for (size_t i = 0; i < pages; i += 2)
        if (mprotect(at + i * page, page, PROT_READ)) return;
    give_up("there is no limit of mappings");
}

static void limit(const char *kind) {
    struct rlimit value = {400ul << 20, 400ul << 20};
    if (strcmp(kind, "mappings") == 0) return split_mappings();
    if (strcmp(kind, "locked") == 0) {
        if (setrlimit(RLIMIT_AS, &value) || mlockall(MCL_FUTURE)) give_up("mlockall");
        return;
    }
    if (setrlimit(strcmp(kind, "data") == 0 ? RLIMIT_DATA : RLIMIT_AS, &value)) give_up("setrlimit");
}

static void exhaust_in_child(size_t count) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        while (count--) exhaust(3000000);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) give_up("an exception did not reach a child");
}

extern "C" void prepare(void) {
    kept.reserve(100000);
    exhausting.reserve(100000);
}

static void work(const char *line) {
    size_t n = 0, count = 0;
    char kind[32];
    if (sscanf(line, "make %zu %zu", &n, &count) == 2) {
        while (count--) kept.push_back(makes(n));
    } else if (sscanf(line, "limit %31s", kind) == 1) {
        limit(kind);
    } else if (sscanf(line, "exhaust %zu", &count) == 1) {
        while (count--) exhaust(3000000);
    } else if (sscanf(line, "child %zu", &count) == 1) {
        exhaust_in_child(count);
    } else if (sscanf(line, "handle %zu", &count) == 1) {
        std::set_new_handler(refuse);
        handled = 0;
        for (size_t i = 0; i < count; i++) exhaust(3000000);
        if (handled != count) give_up("the handler was not called once for each exception");
        std::set_new_handler(nullptr);
    } else {
        give_up("unknown line");
    }
}

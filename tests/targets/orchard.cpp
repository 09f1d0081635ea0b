/*
 * A heap whose profile has all difficult cases for readers of profiles: 512 callsites a dozen frames deep
 * with templates in their names, inlined calls, a library that it has loaded itself, two named threads, frees, a peak
 * that is higher than the end, and growth between two lines of input.
 *
 * `plant` makes two blocks at each of 512 callsites; `grow` makes one more at every other one and frees one at every fourth;
 * `swell` has two threads make blocks and frees most of them, which is the peak; `borrow` has the library make blocks that
 * HEAPBPF_PLUGIN names; `fork` makes a copy, which answers until it exits.
 */
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

/* Names of functions with C linkage have no parameters. */
extern "C" {
#include "protocol.h"

SITE(picks, (size_t n), malloc(n), n)
SITE(presses, (size_t n), calloc(n, 2), 2 * n)
SITE(stores, (size_t n), malloc(n), n)

static void *hand(void *number);
}

static struct site library_site __attribute__((section("sites"), used)) = {"plugin_keeps", 0, 0, 0, 0, 0};

namespace orchard {

/* A bit of the path for each fork of the tree. */
enum { DEPTH = 9, LEAVES = 1 << DEPTH };

struct block baskets[LEAVES][3];

template <typename Fruit, typename Soil> struct Season {
    Fruit fruit;
    Soil soil;
};

using Apple = Season<std::pair<std::string, std::vector<int>>, std::map<int, const char *>>;

/* How many bytes a block of this leaf has. */
inline __attribute__((always_inline)) size_t weighed(int leaf) {
    return 100 + static_cast<size_t>(leaf) * 37;
}

inline __attribute__((always_inline)) void ripen(int leaf, int at) {
    baskets[leaf][at] = leaf % 3 == 0 ? presses(weighed(leaf) / 2) : picks(weighed(leaf));
}

template <typename Crop, int Depth, int Path> struct Branch {
    NOINLINE static void climb(int at, int every) {
        Branch<Crop, Depth - 1, Path * 2>::climb(at, every);
        Branch<Crop, Depth - 1, Path * 2 + 1>::climb(at, every);
    }
};

template <typename Crop, int Path> struct Branch<Crop, 0, Path> {
    NOINLINE static void climb(int at, int every) {
        if (Path % every == 0) ripen(Path, at);
    }
};

using Tree = Branch<Apple, DEPTH, 0>;

NOINLINE void falls() {
    for (int leaf = 0; leaf < LEAVES; leaf += 4) {
        release(baskets[leaf][0]);
        baskets[leaf][0] = {nullptr, 0, nullptr, 0};
    }
}

}  // namespace orchard

/* Work of the threads, which stay alive so that their names can be read. */
enum { HANDS = 2, CRATES = 200, KEPT = 20 };

static struct block crates[HANDS][CRATES];
static pthread_barrier_t begins, is_full, is_done;

static void *hand(void *number) {
    int own = static_cast<int>(reinterpret_cast<intptr_t>(number));
    pthread_setname_np(pthread_self(), own == 0 ? "picker" : "packer <&> \"2\"");
    for (;;) {
        pthread_barrier_wait(&begins);
        for (int i = 0; i < CRATES; i++) crates[own][i] = stores(20000 + static_cast<size_t>(own) * 1000);
        pthread_barrier_wait(&is_full);
        for (int i = KEPT; i < CRATES; i++) release(crates[own][i]);
        pthread_barrier_wait(&is_done);
    }
}

static void *(*keeps)(size_t);

static void load() {
    const char *path = getenv("HEAPBPF_PLUGIN");
    void *library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW);
    if (library == nullptr) give_up("%s", path == nullptr ? "HEAPBPF_PLUGIN is not set" : dlerror());
    keeps = reinterpret_cast<void *(*)(size_t)>(dlsym(library, "plugin_keeps"));
    if (keeps == nullptr) give_up("no plugin_keeps");
}

void prepare(void) {
    load();
    pthread_barrier_init(&begins, nullptr, HANDS + 1);
    pthread_barrier_init(&is_full, nullptr, HANDS);
    pthread_barrier_init(&is_done, nullptr, HANDS + 1);
    for (intptr_t number = 0; number < HANDS; number++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, hand, reinterpret_cast<void *>(number)) != 0) give_up("no thread");
        pthread_detach(thread);
    }
}

static void work(const char *line) {
    static char next[256];
    if (strcmp(line, "plant") == 0) {
        orchard::Tree::climb(0, 1);
        orchard::Tree::climb(1, 1);
    } else if (strcmp(line, "grow") == 0) {
        orchard::Tree::climb(2, 2);
        orchard::falls();
    } else if (strcmp(line, "swell") == 0) {
        pthread_barrier_wait(&begins);
        pthread_barrier_wait(&is_done);
    } else if (strcmp(line, "borrow") == 0) {
        for (int i = 0; i < 30; i++) allocated(&library_site, keeps(3000), 3000);
    } else if (strcmp(line, "fork") == 0) {
        pid_t child = fork();
        if (child < 0) give_up("fork");
        if (child == 0) return;
        waitpid(child, nullptr, 0);
        if (!read_line(next, sizeof next)) _exit(0);
        begin_ledger();
        work(next);
    } else if (strcmp(line, "keep") == 0) {
        for (int i = 0; i < 40; i++) stores(500);
    } else {
        give_up("unknown: %s", line);
    }
}

/*
 * Interprets a script of operations on the heap, and counts what it has done, by allocating function and size, in memory
 * that no allocator knows. `tests/src/model/` generates scripts, and compares reports with these counts.
 *
 *   scripted SCRIPT FIFO PLUGINS [LINE INNER]
 *
 * Truth and handshakes are lines of JSON in FIFO, each by one write(2). After a line with `wait`, the process waits for
 * SIGUSR1, which reaches one process among several, in contrast to a byte of a pipe. One operation per line:
 *
 *   T alloc FUNCTION COUNT SIZE      T: number of a thread, 0 is the interpreter's own; threads start when they are used
 *   T resize FUNCTION COUNT SIZE     the newest blocks, by realloc
 *   T free HOW COUNT                 newest, oldest, or others (every second of the newest 2 x COUNT)
 *   T take THREAD COUNT              frees the newest blocks of another thread
 *   T churn FUNCTION COUNT SIZE KEEP allocates, and frees at once all but each KEEPth (0: all)
 *   T split HOW                      changes a page inside the newest block of at least 1 MiB in which none was changed
 *   T plugin A|B COUNT SIZE          blocks of a library that is loaded and unloaded again
 *   &T ...                           without waiting for its end; `join` waits for all
 *   end-thread T | fork HOW PID | } | reap | exec HOW | leave | share FUNCTION COUNT SIZE | sync WHAT
 *
 * `fork` has the child run the lines up to `}`. PID is 0, or the number that the child gets. With HOW = `held` it waits first,
 * with `free` it does not, with `wait` the parent waits for its end. `exec` continues with the next line in the same program,
 * executed anew. `leave` ends the main thread; another one continues. `share` has a process that shares the memory
 * (CLONE_VM) allocate. `sync` waits for SIGUSR1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone, noipa))
#define THREADS_MAX 9
#define BLOCKS_MAX (1 << 20)
#define SIZES_MAX 64
#define LINES_MAX 4096

static void give_up(const char *what) {
    char text[200];
    int length = snprintf(text, sizeof text, "scripted: %s: %s\n", what, strerror(errno));
    if (write(2, text, (size_t)length) < 0) _exit(98);
    _exit(99);
}

/* Functions that allocate: each way in three places of the stack. */
#define WAYS(SITE, nest)                                                                                               \
    SITE(nest, malloc, malloc(size))                                                                                   \
    SITE(nest, calloc, calloc(1, size))                                                                                \
    SITE(nest, realloc, realloc(old, size))                                                                            \
    SITE(nest, memalign, memalign(256, size))                                                                          \
    SITE(nest, posix, (posix_memalign(&result, 4096, size) == 0 ? result : NULL))                                      \
    SITE(nest, aligned, aligned_alloc(32, size))
#define SITES(SITE) WAYS(SITE, flat) WAYS(SITE, nested) WAYS(SITE, deep)

#define DEFINE(nest, way, call)                                                                                        \
    NOINLINE static void *nest##_##way(void *old, size_t size) {                                                       \
        void *result = NULL;                                                                                           \
        (void)old;                                                                                                     \
        result = call;                                                                                                 \
        __asm__ volatile("" : "+r"(result) : : "memory");                                                              \
        return result;                                                                                                 \
    }
SITES(DEFINE)

typedef void *allocate(void *, size_t);
#define NAME(nest, way, call) #nest "_" #way,
static const char *const names[] = {SITES(NAME) "plugged_a", "plugged_b"};
#define ENTRY(nest, way, call) nest##_##way,
static allocate *const functions[] = {SITES(ENTRY)};
#define OWN_SITES (sizeof functions / sizeof *functions)
#define WAYS_COUNT (OWN_SITES / 3)
#define ALL_SITES (sizeof names / sizeof *names)

/* `old` blocks are from before the recording, `inherited` ones from before the fork. */
struct cell {
    uint64_t allocated, freed, inherited, old, old_freed;
};
struct block {
    void *address;
    uint32_t size;
    /* Column in `cells`. */
    uint8_t size_index, site;
    /* Its mapping is split: realloc could not read it. */
    uint8_t is_split : 1, is_old : 1;
};
struct worker {
    struct block *blocks;
    size_t count;
    int exists, ends;
    pthread_t thread;
    sem_t go, done;
    int busy;
    char line[128];
};

static struct cell cells[ALL_SITES][SIZES_MAX];
static size_t sizes[SIZES_MAX];
static size_t sizes_count;
static int64_t live_bytes, peak_bytes;
static struct worker workers[THREADS_MAX];
static char script[1 << 18];
static char *lines[LINES_MAX];
static size_t lines_count, at;
static const char *fifo_path, *script_path, *plugins_path;
static int is_inner, is_held, image;
static char **program_arguments;

/* One line of JSON, by one write: the pipe keeps those of several processes apart. */
__attribute__((format(printf, 1, 2))) static void print(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int fifo = open(fifo_path, O_WRONLY | O_CLOEXEC);
    if (fifo < 0 || write(fifo, text, (size_t)length) != length) give_up(fifo_path);
    close(fifo);
}

static long long unix_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void await_signal(void) {
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigwait(&signals, &signal);
}

static void handshake(const char *what) {
    print("{\"wait\":\"%s\",\"pid\":%d}\n", what, getpid());
    await_signal();
}

static void print_truth(void) {
    for (size_t site = 0; site < ALL_SITES; site++)
        for (size_t size = 0; size < sizes_count; size++) {
            struct cell *cell = &cells[site][size];
            if (cell->allocated + cell->inherited + cell->old == 0) continue;
            print("{\"pid\":%d,\"function\":\"%s\",\"size\":%zu,\"allocated\":%llu,\"freed\":%llu,"
                  "\"inherited\":%llu,\"old\":%llu,\"old_freed\":%llu}\n",
                  getpid(), names[site], sizes[size], (unsigned long long)cell->allocated,
                  (unsigned long long)cell->freed, (unsigned long long)cell->inherited,
                  (unsigned long long)cell->old, (unsigned long long)cell->old_freed);
        }
    print("{\"pid\":%d,\"peak_bytes\":%lld,\"unix_ns\":%lld}\n", getpid(), (long long)peak_bytes, unix_ns());
}

static uint8_t index_of(size_t size) {
    for (size_t index = 0; index < sizes_count; index++)
        if (sizes[index] == size) return (uint8_t)index;
    give_up("a size that the script does not list");
    return 0;
}

static void count_live(int64_t bytes) {
    int64_t live = __atomic_add_fetch(&live_bytes, bytes, __ATOMIC_SEQ_CST);
    int64_t peak = __atomic_load_n(&peak_bytes, __ATOMIC_SEQ_CST);
    while (live > peak && !__atomic_compare_exchange_n(&peak_bytes, &peak, live, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static void count_allocated(uint8_t site, uint8_t size_index) {
    __atomic_add_fetch(&cells[site][size_index].allocated, 1, __ATOMIC_SEQ_CST);
    count_live((int64_t)sizes[size_index]);
}

static void count_freed(struct block block) {
    struct cell *cell = &cells[block.site][block.size_index];
    __atomic_add_fetch(block.is_old ? &cell->old_freed : &cell->freed, 1, __ATOMIC_SEQ_CST);
    if (block.is_old) return;
    count_live(-(int64_t)block.size);
}

static void keep(struct worker *worker, struct block block) {
    if (block.address == NULL) give_up("no memory");
    if (worker->count == BLOCKS_MAX) give_up("too many blocks");
    worker->blocks[worker->count++] = block;
}

static void free_block(struct block block) {
    count_freed(block);
    free(block.address);
}

NOINLINE static void *recurse(uint8_t site, void *old, size_t size, int depth) {
    void *result = depth == 0 ? functions[site](old, size) : recurse(site, old, size, depth - 1);
    __asm__ volatile("" : "+r"(result) : : "memory");
    return result;
}
NOINLINE static void *nest(uint8_t site, void *old, size_t size) {
    void *result = functions[site](old, size);
    __asm__ volatile("" : "+r"(result) : : "memory");
    return result;
}
static void *call(uint8_t site, void *old, size_t size) {
    switch (site / WAYS_COUNT) {
        case 0: return functions[site](old, size);
        case 1: return nest(site, old, size);
        default: return recurse(site, old, size, 9);
    }
}

static uint8_t site_of(const char *name) {
    for (uint8_t site = 0; site < ALL_SITES; site++)
        if (strcmp(names[site], name) == 0) return site;
    give_up(name);
    return 0;
}

static struct block made(uint8_t site, size_t size) {
    count_allocated(site, index_of(size));
    return (struct block){call(site, NULL, size), (uint32_t)size, index_of(size), site, 0, 0};
}

static void resize(struct worker *worker, uint8_t site, size_t count, size_t size) {
    if (count > worker->count) count = worker->count;
    uint8_t size_index = index_of(size);
    site = (uint8_t)(site - site % WAYS_COUNT + 2);
    for (size_t i = worker->count - count; i < worker->count; i++) {
        if (worker->blocks[i].is_split) continue;
        void *address = call(site, worker->blocks[i].address, size);
        if (address == NULL) give_up("no memory");
        count_freed(worker->blocks[i]);
        worker->blocks[i] = (struct block){address, (uint32_t)size, size_index, site, 0, 0};
        count_allocated(site, size_index);
    }
}

static void free_blocks(struct worker *worker, const char *how, size_t count) {
    if (count > worker->count) count = worker->count;
    if (strcmp(how, "newest") == 0) {
        while (count-- > 0) free_block(worker->blocks[--worker->count]);
    } else if (strcmp(how, "oldest") == 0) {
        for (size_t i = 0; i < count; i++) free_block(worker->blocks[i]);
        worker->count -= count;
        memmove(worker->blocks, worker->blocks + count, worker->count * sizeof *worker->blocks);
    } else {
        size_t first = worker->count > 2 * count ? worker->count - 2 * count : 0, kept = first;
        for (size_t i = first; i < worker->count; i++) {
            if ((i - first) % 2 == 0) free_block(worker->blocks[i]);
            else worker->blocks[kept++] = worker->blocks[i];
        }
        worker->count = kept;
    }
}

/* Changes a page, so that the kernel splits the mapping if the block is one. Pages without access cannot be locked. */
static void split(struct worker *worker, const char *how) {
    size_t i = worker->count;
    while (i > 0 && (worker->blocks[i - 1].size < 1 << 20 || worker->blocks[i - 1].is_split)) i--;
    if (i == 0) return;
    char *page = (char *)(((uintptr_t)worker->blocks[i - 1].address + (512 << 10)) & ~(uintptr_t)4095);
    int failed = 0;
    if (strcmp(how, "readonly") == 0) failed = mprotect(page, 4096, PROT_READ);
    else if (strcmp(how, "none") == 0) failed = mprotect(page, 4096, PROT_NONE);
    else if (strcmp(how, "dontdump") == 0) failed = madvise(page, 8192, MADV_DONTDUMP);
    else if (strcmp(how, "dontfork") == 0) failed = madvise(page, 8192, MADV_DONTFORK);
    else failed = mlock(page, 8192);
    if (failed) give_up(how);
    worker->blocks[i - 1].is_split = 1;
}

static void use_plugin(struct worker *worker, const char *which, size_t count, size_t size) {
    static char path[512];
    int is_b = which[0] == 'B';
    snprintf(path, sizeof path, "%s/plugin_%s.so", plugins_path, is_b ? "b" : "a");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) give_up(dlerror());
    uint8_t site = site_of(is_b ? "plugged_b" : "plugged_a"), size_index = index_of(size);
    void *(*plugged)(size_t) = (void *(*)(size_t))dlsym(library, names[site]);
    if (plugged == NULL) give_up(names[site]);
    for (size_t i = 0; i < count; i++) {
        struct block block = {plugged(size), (uint32_t)size, size_index, site, 0, 0};
        count_allocated(site, size_index);
        keep(worker, block);
    }
    dlclose(library);
}


static size_t number(const char *word) { return word ? strtoul(word, NULL, 10) : 0; }

/* Runs an operation of a thread, without its number. */
static void operate(struct worker *worker, const char *line) {
    char text[128], *rest = NULL, *word[6] = {0};
    snprintf(text, sizeof text, "%s", line);
    int count = 0;
    for (char *next = strtok_r(text, " ", &rest); next && count < 6; next = strtok_r(NULL, " ", &rest)) word[count++] = next;
    if (count < 2) give_up(line);
    if (strcmp(word[0], "alloc") == 0) {
        uint8_t site = site_of(word[1]);
        for (size_t left = number(word[2]); left > 0; left--) keep(worker, made(site, number(word[3])));
    } else if (strcmp(word[0], "resize") == 0) {
        resize(worker, site_of(word[1]), number(word[2]), number(word[3]));
    } else if (strcmp(word[0], "free") == 0) {
        free_blocks(worker, word[1], number(word[2]));
    } else if (strcmp(word[0], "take") == 0) {
        free_blocks(&workers[number(word[1]) % THREADS_MAX], "newest", number(word[2]));
    } else if (strcmp(word[0], "churn") == 0) {
        uint8_t site = site_of(word[1]);
        size_t every = number(word[4]);
        for (size_t i = 1; i <= number(word[2]); i++) {
            struct block block = made(site, number(word[3]));
            if (every && i % every == 0) keep(worker, block);
            else free_block(block);
        }
    } else if (strcmp(word[0], "split") == 0) {
        split(worker, word[1]);
    } else if (strcmp(word[0], "plugin") == 0) {
        use_plugin(worker, word[1], number(word[2]), number(word[3]));
    } else {
        give_up(line);
    }
}

static void *run_worker(void *argument) {
    struct worker *worker = argument;
    for (;;) {
        while (sem_wait(&worker->go) != 0) {}
        if (worker->ends) return NULL;
        operate(worker, worker->line);
        sem_post(&worker->done);
    }
}

static void finish(struct worker *worker) {
    if (!worker->busy) return;
    while (sem_wait(&worker->done) != 0) {}
    worker->busy = 0;
}

static void join(void) {
    for (size_t i = 0; i < THREADS_MAX; i++) finish(&workers[i]);
}

static void dispatch(size_t thread, const char *line, int waits) {
    /* It changes the blocks of another thread. */
    if (strncmp(line, "take", 4) == 0) {
        join();
        waits = 1;
    }
    struct worker *worker = &workers[thread % THREADS_MAX];
    if (thread % THREADS_MAX == 0) {
        operate(worker, line);
        return;
    }
    finish(worker);
    if (!worker->exists) {
        sem_init(&worker->go, 0, 0);
        sem_init(&worker->done, 0, 0);
        worker->ends = 0;
        if (pthread_create(&worker->thread, NULL, run_worker, worker) != 0) give_up("pthread_create");
        worker->exists = 1;
    }
    snprintf(worker->line, sizeof worker->line, "%s", line);
    worker->busy = 1;
    sem_post(&worker->go);
    if (waits) finish(worker);
}

static void end_thread(size_t thread) {
    struct worker *worker = &workers[thread % THREADS_MAX];
    if (!worker->exists) return;
    finish(worker);
    worker->ends = 1;
    sem_post(&worker->go);
    pthread_join(worker->thread, NULL);
    worker->exists = 0;
}

static void interpret(void);

/* What a child has is its parent's: its own counts begin. */
static void begin_child(void) {
    image = 0;
    is_inner = 1;
    for (size_t i = 0; i < THREADS_MAX; i++) workers[i].exists = workers[i].busy = 0;
    peak_bytes = live_bytes;
    for (size_t site = 0; site < ALL_SITES; site++)
        for (size_t size = 0; size < sizes_count; size++) {
            struct cell *cell = &cells[site][size];
            uint64_t inherited = cell->inherited + cell->allocated - cell->freed;
            *cell = (struct cell){0, 0, inherited, cell->old - cell->old_freed, 0};
        }
}

/* What the process has is from before the recording. */
static void begin_recording(void) {
    for (size_t i = 0; i < THREADS_MAX; i++)
        for (size_t j = 0; j < workers[i].count; j++) workers[i].blocks[j].is_old = 1;
    for (size_t site = 0; site < ALL_SITES; site++)
        for (size_t size = 0; size < sizes_count; size++) {
            struct cell *cell = &cells[site][size];
            *cell = (struct cell){0, 0, 0, cell->allocated - cell->freed, 0};
        }
    live_bytes = peak_bytes = 0;
}

static void skip_block(void) {
    for (int depth = 1; at < lines_count && depth > 0; at++) {
        if (strncmp(lines[at], "fork", 4) == 0) depth++;
        if (strcmp(lines[at], "}") == 0) depth--;
    }
}

/*
 * As fork(), with this number. The process that had it last may be gone only shortly after its parent knows, so it is tried again.
 * glibc's own fork() cannot ask for a number; what it does besides matters where other threads hold locks of the allocator, and all wait
 * outside of it now.
 */
static pid_t fork_numbered(pid_t wanted) {
    struct clone_args arguments = {
        .exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&wanted, .set_tid_size = 1};
    for (int left = 2000;; left--) {
        long child = syscall(SYS_clone3, &arguments, sizeof arguments);
        if (child >= 0 || errno != EEXIST || left == 0) return (pid_t)child;
        usleep(1000);
    }
}

static void fork_child(const char *how, pid_t wanted) {
    join();
    print("{\"forks\":\"%s\",\"parent\":%d}\n", how, getpid());
    pid_t child = wanted ? fork_numbered(wanted) : fork();
    if (child < 0) give_up("fork");
    if (child == 0) {
        begin_child();
        is_held = strcmp(how, "held") == 0;
        print("{\"child\":\"%s\",\"pid\":%d,\"parent\":%d}\n", how, getpid(), getppid());
        if (is_held) handshake("recorded");
        interpret();
    }
    skip_block();
    if (strcmp(how, "wait") == 0) waitpid(child, NULL, 0);
}

static void reap(void) {
    while (waitpid(-1, NULL, 0) > 0) {}
}

/* Goes on with the next line in a new program. */
static void execute(const char *how) {
    char line[24], inner[2] = {(char)('0' + is_inner), 0}, number_of_image[24];
    join();
    print_truth();
    print("{\"executes\":\"%s\",\"pid\":%d}\n", how, getpid());
    /* What is printed about this process from now on is about the new program. */
    if (strcmp(how, "held") == 0) await_signal();
    snprintf(line, sizeof line, "%zu", at);
    snprintf(number_of_image, sizeof number_of_image, "%d", image + 1);
    char *arguments[] = {program_arguments[0], (char *)script_path, (char *)fifo_path, (char *)plugins_path, line, inner,
                         number_of_image, (char *)how, NULL};
    execv(program_arguments[0], arguments);
    give_up("execv");
}

static void *go_on(void *unused) {
    (void)unused;
    interpret();
    return NULL;
}

/* The main thread ends, and another one takes its place. */
static void leave(void) {
    pthread_t thread;
    join();
    if (pthread_create(&thread, NULL, go_on, NULL) != 0) give_up("pthread_create");
    pthread_exit(NULL);
}

static int share_memory(void *line) {
    operate(&workers[0], line);
    return 0;
}

/* Raw: glibc's clone() would be the same, but vfork semantics keep it from the parent's thread data meanwhile. */
static void share(const char *line) {
    static char operation[128];
    join();
    snprintf(operation, sizeof operation, "alloc %s", line);
    char *stack = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) give_up("mmap");
    pid_t child = clone(share_memory, stack + (1 << 20), CLONE_VM | CLONE_VFORK | SIGCHLD, operation);
    if (child < 0) give_up("clone");
    char function[64] = "";
    size_t count = 0, size = 0;
    sscanf(line, "%63s %zu %zu", function, &count, &size);
    print("{\"shares\":%d,\"pid\":%d,\"allocates\":\"%s\",\"blocks\":%zu,\"size\":%zu}\n", child, getpid(), function, count, size);
    waitpid(child, NULL, 0);
    munmap(stack, 1 << 20);
}

static void end(void) {
    join();
    reap();
    print_truth();
    print("{\"ends\":true,\"pid\":%d}\n", getpid());
    if (!is_inner || is_held) await_signal();
    _exit(0);
}

static void interpret(void) {
    while (at < lines_count) {
        char *line = lines[at++], *rest = strchr(line, ' ');
        rest = rest ? rest + 1 : line + strlen(line);
        if (line[0] == '&') dispatch(number(line + 1), rest, 0);
        else if (line[0] >= '0' && line[0] <= '9') dispatch(number(line), rest, 1);
        else if (strcmp(line, "join") == 0) join();
        else if (strcmp(line, "}") == 0) break;
        else if (strcmp(line, "reap") == 0) reap();
        else if (strcmp(line, "leave") == 0) leave();
        else if (strncmp(line, "end-thread", 10) == 0) end_thread(number(rest));
        else if (strncmp(line, "share", 5) == 0) share(rest);
        else if (strncmp(line, "exec", 4) == 0) execute(rest);
        else if (strncmp(line, "fork", 4) == 0) {
            char how[16] = {0};
            int wanted = 0;
            sscanf(rest, "%15s %d", how, &wanted);
            fork_child(how, wanted);
        } else if (strncmp(line, "sync", 4) == 0) {
            join();
            if (strcmp(rest, "attach") == 0) begin_recording();
            handshake(rest);
        } else if (strncmp(line, "sizes", 5) != 0) give_up(line);
    }
    end();
}

static void read_script(void) {
    int file = open(script_path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, script, sizeof script - 1);
    if (length < 0) give_up(script_path);
    close(file);
    char *rest = NULL;
    for (char *line = strtok_r(script, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (lines_count == LINES_MAX) give_up("too many lines");
        lines[lines_count++] = line;
    }
    if (lines_count == 0 || strncmp(lines[0], "sizes ", 6) != 0) give_up("a script begins with its sizes");
    char text[1024];
    snprintf(text, sizeof text, "%s", lines[0] + 6);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (sizes_count == SIZES_MAX) give_up("too many sizes");
        sizes[sizes_count++] = number(word);
    }
}

int main(int count, char **arguments) {
    if (count < 4) give_up("usage: scripted SCRIPT FIFO PLUGINS");
    program_arguments = arguments;
    script_path = arguments[1];
    fifo_path = arguments[2];
    plugins_path = arguments[3];
    if (count > 6) {
        at = number(arguments[4]);
        is_inner = (int)number(arguments[5]);
        image = (int)number(arguments[6]);
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    /* Large blocks are mappings always, also after one was freed. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    read_script();
    size_t bytes = THREADS_MAX * BLOCKS_MAX * sizeof(struct block);
    struct block *blocks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (blocks == MAP_FAILED) give_up("mmap");
    for (size_t i = 0; i < THREADS_MAX; i++) workers[i].blocks = blocks + i * BLOCKS_MAX;
    if (count <= 7) {
        print("{\"begins\":true,\"pid\":%d}\n", getpid());
    } else {
        print("{\"executed\":\"%s\",\"pid\":%d,\"image\":%d}\n", arguments[7], getpid(), image);
        is_held = strcmp(arguments[7], "held") == 0;
        if (is_held) handshake("recorded");
    }
    interpret();
}

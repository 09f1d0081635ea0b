// A program that a profiler must not break: threads that throw exceptions, run coroutines, handle signals on alternate
// stacks, fork, load and unload a library, exchange messages, and verify every byte of the memory that they allocate.
//
// Usage: fault_target once: a few rounds of some of that, and exit code 0.
// Usage: fault_target PROGRESS PLUGIN: all of that until the test ends it. PROGRESS is a file of 64-bit numbers, mapped by this program and read by the test:
//   [0] process id, written once all threads run   [1] nonzero: stop and exit with 0   [2] number of threads
//   [3…] completed rounds of each thread
// The first wrong result is printed to standard error and ends the program with SIGABRT.
#include <atomic>
#include <cerrno>
#include <coroutine>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

enum { PROCESS, STOP, THREADS, ROUNDS };

std::atomic<uint64_t> *progress;
const char *plugin_path;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__LINE__, #condition);                                                                  \
    } while (0)

[[noreturn]] void fail(int line, const char *condition) {
    char text[256];
    int length = snprintf(text, sizeof text, "fault_target: line %d: not true: %s (errno %d)\n", line, condition, errno);
    if (write(2, text, static_cast<size_t>(length)) < 0) _exit(97);
    abort();
}

struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    size_t below(size_t bound) { return next() % bound; }
};

// A block whose every byte follows from its seed.
struct Filled {
    unsigned char *bytes = nullptr;
    size_t size = 0;
    unsigned char seed = 0;

    void fill(size_t from) {
        for (size_t i = from; i < size; i++) bytes[i] = static_cast<unsigned char>(seed + i * 7);
    }
    void verify(size_t length) const {
        for (size_t i = 0; i < length; i++) CHECK(bytes[i] == static_cast<unsigned char>(seed + i * 7));
    }
    void release() {
        verify(size);
        free(bytes);
        bytes = nullptr;
        size = 0;
    }
};

size_t some_size(Random &random) { return random.below(64) == 0 ? 200000 + random.below(100000) : 1 + random.below(2000); }

void allocate(Filled &block, Random &random) {
    block.size = some_size(random);
    block.seed = static_cast<unsigned char>(random.next());
    // glibc's posix_memalign may call malloc, so the inline engine leaves it to a probe: it must stay rare.
    size_t kind = random.below(512);
    switch (kind < 128 ? 0 : kind < 132 ? 1 : 2) {
    case 0: {
        block.bytes = static_cast<unsigned char *>(calloc(1, block.size));
        CHECK(block.bytes != nullptr);
        for (size_t i = 0; i < block.size; i++) CHECK(block.bytes[i] == 0);
        break;
    }
    case 1: {
        void *address = nullptr;
        CHECK(posix_memalign(&address, 256, block.size) == 0);
        CHECK(reinterpret_cast<uintptr_t>(address) % 256 == 0);
        block.bytes = static_cast<unsigned char *>(address);
        break;
    }
    default: block.bytes = static_cast<unsigned char *>(malloc(block.size));
    }
    CHECK(block.bytes != nullptr);
    block.fill(0);
}

void resize(Filled &block, Random &random) {
    size_t old = block.size;
    block.size = some_size(random);
    block.bytes = static_cast<unsigned char *>(realloc(block.bytes, block.size));
    CHECK(block.bytes != nullptr);
    block.verify(old < block.size ? old : block.size);
    if (old < block.size) block.fill(old);
}

void churn_memory(Random &random) {
    static thread_local Filled blocks[64];
    for (int i = 0; i < 40; i++) {
        Filled &block = blocks[random.below(64)];
        if (block.bytes == nullptr) {
            allocate(block, random);
        } else if (random.below(3) == 0) {
            resize(block, random);
        } else {
            block.release();
        }
    }
}

// Counts its own destruction: unwinding must destroy each exactly once.
struct Witness {
    int &destroyed;
    std::string text;
    Witness(int &destroyed, int depth) : destroyed(destroyed), text(static_cast<size_t>(40 + depth), 'w') {}
    ~Witness() {
        for (char letter : text) CHECK(letter == 'w');
        destroyed++;
    }
};

struct Thrown : std::runtime_error {
    std::vector<int> payload;
    explicit Thrown(int size) : std::runtime_error("thrown"), payload(static_cast<size_t>(size), size) {}
};

[[gnu::noinline]] int descend(int depth, int &destroyed) {
    Witness witness(destroyed, depth);
    auto copy = std::make_unique<std::vector<int>>(8, depth);
    if (depth == 0) throw Thrown(17);
    return descend(depth - 1, destroyed) + (*copy)[0];
}

void throw_exceptions(Random &random) {
    int depth = 1 + static_cast<int>(random.below(20)), destroyed = 0;
    bool caught = false;
    try {
        descend(depth, destroyed);
    } catch (const Thrown &thrown) {
        caught = true;
        CHECK(thrown.payload.size() == 17 && thrown.payload[16] == 17 && !strcmp(thrown.what(), "thrown"));
    }
    CHECK(caught && destroyed == depth + 1);
    caught = false;
    try {
        // operator new itself throws.
        volatile size_t impossible = PTRDIFF_MAX - 4096;
        char *volatile block = new char[impossible];
        delete[] block;
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    CHECK(caught);
}

// A coroutine that yields numbers; its frame is on the heap.
struct Numbers {
    struct promise_type {
        uint64_t value = 0;
        Numbers get_return_object() { return Numbers{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(uint64_t yielded) {
            value = yielded;
            return {};
        }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    explicit Numbers(std::coroutine_handle<promise_type> handle) : handle(handle) {}
    Numbers(const Numbers &) = delete;
    ~Numbers() { handle.destroy(); }
    bool next() {
        handle.resume();
        return !handle.done();
    }
    std::coroutine_handle<promise_type> handle;
};

Numbers squares(uint64_t count) {
    std::vector<uint64_t> kept;
    for (uint64_t i = 0; i < count; i++) {
        kept.push_back(i * i);
        co_yield kept[i];
    }
    if (count % 2) throw Thrown(static_cast<int>(count));
}

void run_coroutines(Random &random) {
    uint64_t count = 1 + random.below(30), expected = 0, sum = 0;
    for (uint64_t i = 0; i < count; i++) expected += i * i;
    bool threw = false;
    Numbers numbers = squares(count);
    try {
        while (numbers.next()) sum += numbers.handle.promise().value;
    } catch (const Thrown &thrown) {
        threw = thrown.payload.size() == count;
    }
    CHECK(sum == expected && threw == (count % 2 == 1));
}

thread_local uintptr_t stack_start, stack_end;
thread_local volatile uint64_t handled, expired;
constexpr size_t STACK_BYTES = 256 << 10;

bool on_alternate_stack(const void *address) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at >= stack_start && at < stack_end;
}

// Raised by the thread itself outside of any allocator, so it may allocate and throw.
void allocate_in_signal(int) {
    char here = 0;
    CHECK(on_alternate_stack(&here));
    Random random{handled + 1};
    Filled block;
    allocate(block, random);
    throw_exceptions(random);
    block.release();
    handled = handled + 1;
}

// Comes from a timer, at any instruction.
void expire(int) {
    int saved = errno;
    volatile unsigned char pattern[512];
    for (size_t i = 0; i < sizeof pattern; i++) pattern[i] = static_cast<unsigned char>(i);
    CHECK(on_alternate_stack(const_cast<const unsigned char *>(pattern)));
    for (size_t i = 0; i < sizeof pattern; i++) CHECK(pattern[i] == static_cast<unsigned char>(i));
    expired = expired + 1;
    errno = saved;
}

void prepare_signals() {
    stack_t stack{};
    stack.ss_sp = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack.ss_sp != MAP_FAILED);
    stack.ss_size = STACK_BYTES;
    stack_start = reinterpret_cast<uintptr_t>(stack.ss_sp);
    stack_end = stack_start + STACK_BYTES;
    CHECK(sigaltstack(&stack, nullptr) == 0);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN;
    event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    itimerspec period{{0, 1500000}, {0, 1500000}};
    CHECK(timer_settime(timer, 0, &period, nullptr) == 0);
}

void handle_signals(Random &random) {
    if (stack_start == 0) prepare_signals();
    uint64_t before = handled;
    CHECK(raise(SIGUSR1) == 0);
    CHECK(handled == before + 1);
    churn_memory(random);
}

// The child verifies what the parent wrote, and works with the heap that it inherited.
void fork_child(Random &random) {
    Filled inherited;
    allocate(inherited, random);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        Random own{random.next()};
        inherited.release();
        for (int i = 0; i < 10; i++) churn_memory(own);
        _exit(42);
    }
    inherited.release();
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    errno = status;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    usleep(20000);
}

void load_plugin(Random &random) {
    void *plugin = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin != nullptr);
    auto keeps = reinterpret_cast<void *(*)(size_t)>(dlsym(plugin, "plugin_keeps"));
    auto frees = reinterpret_cast<void (*)(void *)>(dlsym(plugin, "plugin_frees"));
    auto copies = reinterpret_cast<char *(*)(const char *)>(dlsym(plugin, "plugin_copies"));
    CHECK(keeps && frees && copies);
    Filled block{static_cast<unsigned char *>(keeps(999)), 999, static_cast<unsigned char>(random.next())};
    block.fill(0);
    char *copy = copies("a text that is copied");
    CHECK(!strcmp(copy, "a text that is copied"));
    block.verify(block.size);
    frees(block.bytes);
    free(copy);
    CHECK(dlclose(plugin) == 0);
    usleep(100000);
}

int messages[2];

void send_messages(Random &) {
    static uint64_t number;
    number++;
    CHECK(write(messages[1], &number, sizeof number) == sizeof number);
    usleep(300);
}

void receive_messages(Random &) {
    static uint64_t expected;
    uint64_t number = 0;
    CHECK(read(messages[0], &number, sizeof number) == sizeof number);
    CHECK(number == ++expected);
}

using Work = void (*)(Random &);
constexpr Work WORKS[] = {churn_memory, churn_memory,   throw_exceptions, throw_exceptions, run_coroutines,
                          fork_child,   handle_signals, handle_signals,   load_plugin,      send_messages};
constexpr size_t WORK_COUNT = sizeof WORKS / sizeof *WORKS;

void loop(Work work, size_t index) {
    Random random{index + 1};
    while (progress[STOP].load() == 0) {
        work(random);
        progress[ROUNDS + index].fetch_add(1);
        // Leaves the processor to others for most of the time.
        usleep(1000);
    }
}

void receive_until_closed() {
    Random random{0};
    while (progress[STOP].load() == 0) {
        receive_messages(random);
        progress[ROUNDS + WORK_COUNT].fetch_add(1);
    }
}

void act_on(int signal, void (*act)(int)) {
    struct sigaction action {};
    action.sa_handler = act;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    CHECK(sigaction(signal, &action, nullptr) == 0);
}

int run_once() {
    Random random{1};
    for (int i = 0; i < 5; i++) {
        churn_memory(random);
        throw_exceptions(random);
        run_coroutines(random);
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "once")) return run_once();
    CHECK(argc == 3);
    plugin_path = argv[2];
    int file = open(argv[1], O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    void *mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED);
    progress = static_cast<std::atomic<uint64_t> *>(mapped);
    CHECK(pipe(messages) == 0);
    act_on(SIGUSR1, allocate_in_signal);
    act_on(SIGRTMIN, expire);

    std::vector<std::thread> threads;
    for (size_t i = 0; i < WORK_COUNT; i++) threads.emplace_back(loop, WORKS[i], i);
    std::thread receiver(receive_until_closed);
    progress[THREADS].store(WORK_COUNT + 1);
    progress[PROCESS].store(static_cast<uint64_t>(getpid()));
    for (std::thread &thread : threads) thread.join();
    // The sender is gone: one more message ends the receiver's last read.
    Random random{0};
    send_messages(random);
    receiver.join();
    return 0;
}

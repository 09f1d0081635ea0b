// Counts words in two threads, again and again: a program that allocates as C++ programs do and works in between. Prints
// "ready 1", and then for each piece of work when it began and ended (nanoseconds of CLOCK_MONOTONIC) and the CPU time
// that all threads took for it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <time.h>

namespace {

constexpr int words_per_thread = 60'000;
constexpr uint64_t vocabulary = 5'000;

uint64_t now_ns(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Words of 5 to 36 letters, the first ones of the vocabulary more often.
std::string word(uint64_t &state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    uint64_t number = (state >> 40) % vocabulary * ((state >> 20) % vocabulary) / vocabulary;
    std::string letters;
    for (uint64_t i = 0, left = number * 2654435761; i < 5 + number % 32; i++, left = left * 31 + 7) {
        letters += static_cast<char>('a' + left % 26);
    }
    return letters;
}

void count_words(uint64_t seed, size_t *distinct) {
    std::map<std::string, int> counts;
    for (int i = 0; i < words_per_thread; i++) counts[word(seed)]++;
    std::vector<std::pair<int, std::string>> sorted;
    for (const auto &[letters, count] : counts) sorted.emplace_back(count, letters);
    std::sort(sorted.begin(), sorted.end());
    *distinct = sorted.size();
}

}  // namespace

int main() {
    std::puts("ready 1");
    for (;;) {
        uint64_t began = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        size_t distinct[2];
        std::thread other(count_words, 1, &distinct[1]);
        count_words(2, &distinct[0]);
        other.join();
        cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        if (distinct[0] == 0 || distinct[1] == 0) return 1;
        std::printf("%llu %llu %llu\n", static_cast<unsigned long long>(began),
                    static_cast<unsigned long long>(now_ns(CLOCK_MONOTONIC)), static_cast<unsigned long long>(cpu));
        if (std::fflush(stdout) != 0) return 0;
    }
}

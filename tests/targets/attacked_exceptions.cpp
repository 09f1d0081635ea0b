/* Throws exceptions through frames that allocate, also for the want of memory. */
#include "attacked.h"

#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

static void prepare(int, char **) {}

FUNCTION uint64_t descend(int depth) {
    std::vector<std::string> texts(static_cast<size_t>(depth) + 1, std::string(40, 'a'));
    if (depth == 0) throw std::runtime_error(texts[0] + " thrown from the deepest frame of all");
    return descend(depth - 1) + texts.size();
}

static uint64_t do_round(void) {
    uint64_t sum = 0;
    for (int i = 0; i < 20; i++) {
        try {
            sum = mix(sum, descend(i));
        } catch (const std::runtime_error &error) {
            sum = mix_bytes(sum, error.what(), strlen(error.what()));
        }
        volatile size_t huge = static_cast<size_t>(1) << 60;
        try {
            char *block = new char[huge];
            sum = mix(sum, block != nullptr);
            delete[] block;
        } catch (const std::bad_alloc &) {
            sum = mix(sum, 77);
        }
        sum = mix(sum, new (std::nothrow) char[huge] == nullptr);
    }
    std::map<int, std::string> tree;
    for (int i = 0; i < 200; i++) tree[i * 7919 % 211] += std::string(static_cast<size_t>(i), 'b');
    for (const auto &[key, text] : tree) sum = mix(sum, static_cast<uint64_t>(key) + text.size());
    return sum;
}

/*
 * A program whose functions have names that no compiler makes: what markup, scripts and formats of lines may trip over. Each
 * allocates one block of its own size. Built without debug information, so that symbols are all the names there are.
 */
#include "protocol.h"

#define TEN(x) x x x x x x x x x x
#define LONG TEN(TEN(TEN("0123456789")))

/* One function under the name, and the size of its block. */
#define NAMED(number, name)                                                                                            \
    NOINLINE void *named_##number(size_t n) __asm__("\"" name "\""); \
    NOINLINE void *named_##number(size_t n) {                                                                          \
        void *volatile block = malloc(n);                                                                              \
        return block;                                                                                                  \
    }

SITE(plain, (size_t n), malloc(n), n)

NAMED(1, "</script><script>window.owned = 1</script>")
NAMED(2, "<img src=x onerror=window.owned=2>")
NAMED(3, "]]><script>window.owned = 3</script><![CDATA[")
NAMED(4, "a;b c 12")
NAMED(5, "it's an & and <T>")
NAMED(6, "größe_日本語_🦀")
NAMED(7, LONG)
NAMED(8, "{{constructor.constructor(`window.owned=8`)()}}")
NAMED(9, "--></text></svg><svg onload=window.owned=9>")
NAMED(10, "javascript:window.owned=10")
NAMED(11, "core::ops::function::FnOnce<(T, &'a str)>::call_once")
NAMED(12, "%s%n&lt;b&gt;%3Cscript%3E")

static void work(const char *line) {
    (void)line;
    plain(1);
    /* Sizes that add up to different sums, whichever are taken. */
    named_1(1 << 10), named_2(1 << 11), named_3(1 << 12), named_4(1 << 13), named_5(1 << 14), named_6(1 << 15);
    named_7(1 << 16), named_8(1 << 17), named_9(1 << 18), named_10(1 << 19), named_11(1 << 20), named_12(1 << 21);
}

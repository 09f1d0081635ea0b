/* A small server that leaks: `caches_response` keeps what it should have freed. */
#include "protocol.h"

SITE(parses_request, (size_t n), malloc(n), n)
SITE(caches_response, (size_t n), malloc(n), n)
SITE(opens_log, (size_t n), calloc(1, n), n)

NOINLINE static void handles_request(int number) {
    struct block request = parses_request(2000 + (size_t)number % 100);
    caches_response(5000 + (size_t)number % 1000);
    release(request);
}

static void work(const char *line) {
    int requests = atoi(line);
    opens_log(1 << 20);
    for (int i = 0; i < requests; i++) handles_request(i);
}

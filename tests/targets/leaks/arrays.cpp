/*
 * Arrays without elements of a class with a destructor: their block has the number of elements alone, and the pointer is one past it.
 */
#include "truth.h"

#include <new>

struct Closed {
    ~Closed() { count++; }
    static int count;
    long words[2] = {1, 2};
};

int Closed::count;

static Closed *volatile held;
static volatile long length;

NOINLINE static Closed *empty_held() { return new Closed[static_cast<size_t>(length)]; }
NOINLINE static Closed *empty_lost() { return new Closed[static_cast<size_t>(length)]; }
NOINLINE static Closed *under_empty_lost() { return new Closed[static_cast<size_t>(length)]; }
/* Of the same size, and with another number: a pointer past its end is not one to an array. */
NOINLINE static long *number_lost() { return new long(7); }

static long *volatile past;

NOINLINE static void make() {
    held = empty_held();
    masked hidden = reinterpret_cast<masked>(empty_lost()) ^ mask;
    length = hidden == 0;
    /* The block that references the second array has leaked too. */
    Closed *volatile *holder = new Closed *volatile[40]();
    holder[1] = under_empty_lost();
    past = number_lost() + 1;
}

int main() {
    make();
    serve();
    return 0;
}

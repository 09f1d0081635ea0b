/*
 * Objects and containers of C++ that are held or lost. Of containers only their own block is noted, not those of what is in them.
 */
#include "truth.h"

#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace zoo {

/* Found by its vtable. */
class Animal {
  public:
    virtual ~Animal() = default;
    virtual int legs() const { return 4; }

  private:
    long weights[40] = {};
};

class Named {
  public:
    virtual ~Named() = default;
    virtual int letters() const { return 1; }

  private:
    long name[3] = {};
};

/* With two vtables, the second of which is at an offset. */
class Pet final : public Animal, public Named {
  public:
    int legs() const override { return 3; }
    int letters() const override { return 2; }
};

/* Without any: the stack of what holds it knows. */
struct Grain {
    long weight = 0;
    long grams = 0;
};

struct Node {
    std::shared_ptr<Node> next;
    std::weak_ptr<Node> owner;
    long room[30] = {};
};

}  // namespace zoo

using Table = std::map<std::string, std::vector<long>>;

static Table *volatile held_table;
static zoo::Named *volatile second_base;
static zoo::Pet *volatile array;
static std::weak_ptr<zoo::Node> *volatile watcher;

/* Not in the C++ library's own buffer. */
static std::string key(int number) { return "a name that is too long for where short ones go " + std::to_string(number); }

/* Ten names with their lists: three blocks each, and the table. */
NOINLINE static void fill(Table *table) {
    for (int number = 0; number < 10; number++) (*table)[key(number)].assign(static_cast<size_t>(20 + number), number);
}

NOINLINE static masked table_held() {
    auto *table = new Table;
    masked hidden = noted("table_held", table, sizeof *table, "held");
    fill(table);
    held_table = table;
    return hidden;
}

NOINLINE static masked table_lost() {
    auto *table = new Table;
    masked hidden = noted("table_lost", table, sizeof *table, "leaked");
    fill(table);
    return hidden;
}

NOINLINE static masked animal_lost() {
    auto *animal = new zoo::Animal;
    return noted("animal_lost", animal, sizeof *animal, "leaked");
}

NOINLINE static masked pet_lost() {
    auto *pet = new zoo::Pet;
    return noted("pet_lost", pet, sizeof *pet, "leaked");
}

/* The pointer is an interior one. */
NOINLINE static masked held_by_second_base() {
    auto *pet = new zoo::Pet;
    second_base = pet;
    return noted("held_by_second_base", pet, sizeof *pet, "held");
}

/* The number of elements lies before the first. */
NOINLINE static masked held_array() {
    auto *pets = new zoo::Pet[3];
    array = pets;
    return noted("held_array", reinterpret_cast<char *>(pets) - 8, 3 * sizeof *pets + 8, "held");
}

/* What it has allocated is lost with it: no destructor runs. */
NOINLINE static masked grains_lost() {
    alignas(std::vector<zoo::Grain>) unsigned char room[sizeof(std::vector<zoo::Grain>)];
    auto *grains = new (room) std::vector<zoo::Grain>;
    grains->reserve(33);
    masked hidden = noted("grains_lost", grains->data(), 33 * sizeof(zoo::Grain), "leaked");
    memset(static_cast<void *>(room), 0, sizeof room);
    return hidden;
}

/* Two that own each other, and by weak pointers too. */
NOINLINE static masked owners_in_a_circle() {
    auto first = std::make_shared<zoo::Node>();
    auto second = std::make_shared<zoo::Node>();
    first->next = second;
    second->next = first;
    second->owner = first;
    /* Of each, its block begins with the count of its owners. */
    noted("owners_in_a_circle_1", reinterpret_cast<char *>(first.get()) - 16, sizeof(zoo::Node) + 16, "circle");
    return noted("owners_in_a_circle_2", reinterpret_cast<char *>(second.get()) - 16, sizeof(zoo::Node) + 16, "circle");
}

/* The object is gone, and its block stays for the weak pointer's sake. */
NOINLINE static masked watched_weakly() {
    auto *watching = new std::weak_ptr<zoo::Node>;
    watcher = watching;
    auto node = std::make_shared<zoo::Node>();
    *watching = node;
    return noted("watched_weakly", reinterpret_cast<char *>(node.get()) - 16, sizeof(zoo::Node) + 16, "held");
}

int main() {
    table_held();
    sweep();
    table_lost();
    sweep();
    animal_lost();
    pet_lost();
    held_by_second_base();
    held_array();
    grains_lost();
    sweep();
    owners_in_a_circle();
    sweep();
    watched_weakly();
    sweep();
    serve();
    return 0;
}

// A shared object with virtual tables and mangled names: a seed for `elf` and `unwind`.
namespace shapes {
struct Shape {
    virtual int area() const { return 0; }
};
struct Named {
    virtual const char *name() const { return "shape"; }
};
struct Square : Shape, Named {
    int side = 2;
    int area() const override { return side * side; }
};
}
int total(shapes::Shape *shape) { return shape->area(); }
shapes::Square square;

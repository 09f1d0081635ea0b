package demo;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.IntConsumer;
import sun.misc.Unsafe;

/**
 * Allocates native memory below many kinds of Java frames, with a size of its own for each, and prints the virtual machine's own
 * description of the stack: the size, a tab, and the frames, the innermost first.
 *
 * Usage: Allocating ROUNDS. Executes so many rounds with other sizes, for the compilers. Prints `ready`, answers each line of its
 * input with its blocks and `done`, and keeps these blocks. The frames of hidden classes are described with -XX:+ShowHiddenFrames.
 */
public class Allocating {
    static final Unsafe UNSAFE = unsafe();
    static final int REPEATS = 20;
    static final long LIVE = 100_000;
    static final List<Block> BLOCKS = new ArrayList<>();
    /** Distinguishes blocks to keep. Added to all sizes, so that compiled code has no branch that it never took. */
    static long base = 0;

    record Block(long size, long address, Throwable stack) {
    }

    static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException exception) {
            throw new AssertionError(exception);
        }
    }

    /** The block and its description on one line, which both have. Sizes are multiples of 8, as HotSpot rounds them up. */
    static void block(int path) {
        BLOCKS.add(new Block(base + 8 * path, UNSAFE.allocateMemory(base + 8 * path), new Throwable()));
    }

    static void recursion(int depth, int path) {
        if (depth == 0) block(path);
        else recursion(depth - 1, path);
    }

    interface Shape {
        void draw(int path);

        default void drawTwice(int path) {
            draw(path);
            draw(path + 1);
        }
    }

    static class Circle implements Shape {
        public void draw(int path) {
            block(path);
        }
    }

    static class Square extends Circle {
        public void draw(int path) {
            super.draw(path);
        }
    }

    enum Colour implements Shape {
        RED {
            public void draw(int path) {
                block(path);
            }
        }
    }

    static final Shape[] SHAPES = {new Circle(), new Square(), Colour.RED};

    static void draw() {
        for (int i = 0; i < SHAPES.length; i++) SHAPES[i].drawTwice(3 + 2 * i);
    }

    static class Outer {
        Outer() {
            this(9);
        }

        Outer(int path) {
            block(path);
        }

        class Inner extends Outer {
            final int field = initial(10);

            Inner() {
                super(11);
            }

            int initial(int path) {
                block(path);
                return path;
            }
        }
    }

    /** Small methods, which compilers inline: calls of one method on several lines. */
    static int first(int path) {
        int sum = second(path, 1);
        sum += second(path + 1, 2);
        for (int i = 0;
             i < 2;
             i = advanced(i, path + 2)) {
            sum += i;
        }
        return sum;
    }

    static int second(int path, int value) {
        return value +
            third(path, value * 3) +
            value;
    }

    static int third(int path, int value) {
        block(path);
        return value;
    }

    static int advanced(int i, int path) {
        block(path);
        return i + 1;
    }

    static class Fluent {
        Fluent add(int path) {
            block(path);
            return this;
        }
    }

    static void fluent(int path) {
        new Fluent()
            .add(path)
            .add(path + 1).add(path + 1)
            .add(path + 2);
    }

    static synchronized void locked(int path) {
        block(path);
    }

    synchronized void lockedInstance(int path) {
        synchronized (BLOCKS) {
            locked(path);
        }
    }

    static void failing(int path) {
        try {
            thrown(path);
        } catch (IllegalStateException exception) {
            block(path + 1);
        } finally {
            block(path + 2);
        }
    }

    static void thrown(int path) {
        try {
            Integer.parseInt("no number");
        } catch (NumberFormatException exception) {
            block(path);
            throw new IllegalStateException(exception);
        }
    }

    static class größe {
        static void 数(int path) {
            𐌀(path);
        }

        static void 𐌀(int path) {
            block(path);
        }
    }

    record Ordered(int path) implements Comparable<Ordered> {
        public int compareTo(Ordered other) {
            block(path);
            return 1;
        }

        public String toString() {
            block(path);
            return "";
        }
    }

    record Holder(Ordered ordered) {
    }

    static void collections() {
        new HashMap<String, Integer>().computeIfAbsent("key", key -> { block(40); return 1; });
        Comparator<Integer> comparator = new Comparator<>() {
            public int compare(Integer one, Integer other) {
                block(41);
                return one - other;
            }
        };
        new ArrayList<>(Arrays.asList(3, 1, 2)).sort(comparator);
        Collections.sort(new ArrayList<>(List.of(new Ordered(42), new Ordered(42))));
        List.of(1, 2).stream().map(i -> 43).forEach(Allocating::block);
        new Holder(new Ordered(45)).toString();
        Runnable lambda = () -> block(46);
        lambda.run();
        IntConsumer reference = Allocating::block;
        reference.accept(47);
    }

    static final Method METHOD;
    static final Constructor<Outer> CONSTRUCTOR;
    static final MethodHandle HANDLE;
    static MethodHandle variableHandle;
    static final Shape PROXY = (Shape) Proxy.newProxyInstance(
        Allocating.class.getClassLoader(), new Class<?>[] {Shape.class}, (proxy, method, arguments) -> {
            block((Integer) arguments[0]);
            return null;
        });

    static {
        try {
            METHOD = Allocating.class.getDeclaredMethod("block", int.class);
            CONSTRUCTOR = Outer.class.getDeclaredConstructor(int.class);
            HANDLE = MethodHandles.lookup().findStatic(
                Allocating.class, "block", MethodType.methodType(void.class, int.class));
            variableHandle = HANDLE;
        } catch (ReflectiveOperationException exception) {
            throw new AssertionError(exception);
        }
    }

    static void reflection() throws Throwable {
        METHOD.invoke(null, 50);
        CONSTRUCTOR.newInstance(51);
        HANDLE.invokeExact(52);
        variableHandle.invoke(53);
        PROXY.draw(54);
    }

    /** The virtual machine calls it, below a native method. */
    static class Loader extends ClassLoader {
        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            block(55);
            throw new ClassNotFoundException();
        }
    }

    static final Loader LOADER = new Loader();

    static void fromNativeCode() {
        try {
            Class.forName("absent", false, LOADER);
        } catch (ClassNotFoundException exception) {
            block(56);
        }
    }

    static final ExecutorService THREAD = Executors.newSingleThreadExecutor(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });

    /** Some arguments are passed on the stack. */
    interface Wide {
        double call(long a, long b, long c, long d, long e, long f, long g, double h, int path);
    }

    static final Wide[] WIDE = {
        (a, b, c, d, e, f, g, h, path) -> { block(path); return g + h; },
        (a, b, c, d, e, f, g, h, path) -> { block(path); return g - h; },
        (a, b, c, d, e, f, g, h, path) -> { block(path); return g * h; },
    };

    static double wide(Wide wide, int path) {
        return wide.call(1, 2, 3, 4, 5, 6, 7, 8.5, path);
    }

    static class Parent {
        int value() {
            return 1;
        }
    }

    /** Not loaded before its name is used. */
    static class Child extends Parent {
        static {
            for (int i = 0; i < REPEATS; i++) block(70);
        }

        @Override
        int value() {
            return 2;
        }
    }

    /** Compiled code relies on there being no child: its frames are deoptimised when the class is loaded. */
    static int deoptimised(Parent parent, String name) throws ClassNotFoundException {
        int sum = parent.value();
        sum += Class.forName(name).getModifiers();
        return sum + parent.value();
    }

    static void round() throws Throwable {
        recursion(5, 1);
        recursion(150, 2);
        draw();
        new Outer().new Inner();
        first(12);
        fluent(15);
        locked(20);
        new Allocating().lockedInstance(21);
        failing(22);
        größe.数(25);
        collections();
        reflection();
        fromNativeCode();
        THREAD.submit(() -> block(57)).get();
        for (int i = 0; i < WIDE.length; i++) wide(WIDE[i], 60 + i);
        deoptimised(new Parent(), "java.lang.Object");
    }

    /** A loop of one call, whose code is replaced while it runs. */
    static int replaced() {
        int sum = 0;
        for (int i = 0; i < REPEATS << 16; i++) {
            sum += i ^ sum >>> 3;
            if ((i & 0xffff) == 0) block(71);
        }
        return sum;
    }

    static class Initialised {
        static final int VALUE;

        static {
            for (int i = 0; i < REPEATS; i++) block(72);
            VALUE = REPEATS;
        }
    }

    /** Code that has not been executed before, also below compiled code. */
    static void firstTimes() throws Exception {
        deoptimised(new Parent(), "demo.Allocating$Child");
        replaced();
        int value = Initialised.VALUE;
        Wide interpreted = (a, b, c, d, e, f, g, h, path) -> { block(path); return g / h; };
        for (int i = 0; i < REPEATS; i++) wide(interpreted, 73);
        for (int i = 0; i < REPEATS; i++) {
            Thread thread = new Thread(() -> block(74));
            thread.start();
            thread.join();
        }
    }

    static void describe(PrintStream output) {
        for (Block block : BLOCKS) {
            StringBuilder line = new StringBuilder().append(block.size).append('\t');
            for (StackTraceElement frame : block.stack.getStackTrace()) {
                line.append(frame.getClassName()).append('.').append(frame.getMethodName());
                line.append('(').append(frame.getFileName()).append(':').append(frame.getLineNumber()).append(");");
            }
            output.println(line);
        }
        BLOCKS.clear();
    }

    public static void main(String[] arguments) throws Throwable {
        for (int i = Integer.parseInt(arguments[0]); i > 0; i--) {
            round();
            for (Block block : BLOCKS) UNSAFE.freeMemory(block.address);
            BLOCKS.clear();
        }
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        output.println("ready");
        while (lines.readLine() != null) {
            base = LIVE;
            for (int i = 0; i < REPEATS; i++) round();
            firstTimes();
            base = 0;
            describe(output);
            output.println("done");
        }
    }
}

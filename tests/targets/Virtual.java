package demo;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.LockSupport;
import sun.misc.Unsafe;

/**
 * Allocates native memory in virtual threads, before and after they have waited: then most of their frames are in their continuation, not
 * on the stack. Prints the virtual machine's own description of each stack, as Allocating does.
 *
 * Usage: Virtual ROUNDS. Executes so many rounds with other sizes, for the compilers. Prints `ready`, answers each line of its input with
 * its blocks and `done`, and keeps these blocks. Needs JDK 21 or later.
 */
public class Virtual {
    static final Unsafe UNSAFE = unsafe();
    static final int REPEATS = 10;
    static final long LIVE = 100_000;
    static final Queue<Block> BLOCKS = new ConcurrentLinkedQueue<>();
    static final Method START = start();
    static volatile long base = 0;
    static volatile boolean sleeps = false;

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

    /** Earlier versions, for which this is compiled, lack the method. */
    static Method start() {
        try {
            return Thread.class.getMethod("startVirtualThread", Runnable.class);
        } catch (ReflectiveOperationException exception) {
            throw new AssertionError(exception);
        }
    }

    /** The block and its description on one line, which both have. Sizes are multiples of 8, as HotSpot rounds them up. */
    static void block(int path) {
        BLOCKS.add(new Block(base + 8 * path, UNSAFE.allocateMemory(base + 8 * path), new Throwable()));
    }

    /** The thread leaves the one that carries it, and continues on any. */
    static void pause() {
        if (sleeps) LockSupport.parkNanos(1_000_000);
        else Thread.yield();
    }

    /** Waits at the bottom, and allocates on the way back: the frames of the caller are copied to the stack one by one. */
    static void recursion(int depth, int path) {
        if (depth == 0) pause();
        else recursion(depth - 1, path);
        if (depth % 2 == 0) block(path);
    }

    /** More arguments than registers. */
    static long wide(long a, long b, long c, long d, long e, long f, long g, long h, int path) {
        pause();
        block(path);
        return a + h;
    }

    static long wider(long a, long b, long c, long d, long e, long f, long g, long h, long i, int path) {
        long sum = wide(b, c, d, e, f, g, h, i, path);
        block(path + 1);
        return sum + a;
    }

    interface Step {
        void run(int path);
    }

    static void through(Step step, int path) {
        step.run(path);
        block(path + 1);
    }

    static void again(int times, int path) {
        for (int i = 0; i < times; i++) {
            pause();
            block(path);
        }
    }

    static void handler() {
        block(1);
        recursion(60, 2);
        wide(1, 2, 3, 4, 5, 6, 7, 8, 3);
        wider(1, 2, 3, 4, 5, 6, 7, 8, 9, 4);
        through(path -> { pause(); block(path); }, 6);
        through(path -> through(inner -> again(3, inner), path), 8);
        block(11);
    }

    static void round(int threads) throws Exception {
        List<Thread> started = new ArrayList<>();
        for (int i = 0; i < threads; i++) started.add((Thread) START.invoke(null, (Runnable) Virtual::handler));
        for (Thread thread : started) thread.join();
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
            round(1);
            for (Block block : BLOCKS) UNSAFE.freeMemory(block.address);
            BLOCKS.clear();
        }
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        output.println("ready");
        while (lines.readLine() != null) {
            base = LIVE;
            sleeps = true;
            for (int i = 0; i < REPEATS; i++) round(10);
            sleeps = false;
            round(1);
            base = 0;
            describe(output);
            output.println("done");
        }
    }
}

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.IntSupplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Nests Java frames of many kinds around a read of its input, and describes them first: a line of JSON with the methods and lines, the
 * innermost first. Calls the same methods so often before as the first argument says, for the compilers. Runs on Java 11 and later.
 */
class Waiting {
    /** Several, so that no compiler knows which one is called. */
    private static final List<IntSupplier> ACTIONS = List.of(() -> 1, () -> 2, () -> 3, () -> 4, () -> 5);

    static String describe() {
        return Stream.of(new Throwable().getStackTrace())
            .skip(1)
            .map(it -> "[\"" + it.getClassName() + "." + it.getMethodName() + "\"," + it.getLineNumber() + "]")
            .collect(Collectors.joining(",", "[", "]"));
    }

    static void print(String line) {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    static int read() {
        try {
            return System.in.read();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The description and the call are in one line. */
    static int waitForInput() {
        print(describe()); return read();
    }

    static int nested(int depth, IntSupplier action) {
        return depth == 0 ? action.getAsInt() : nested(depth - 1, action);
    }

    static synchronized int locked(IntSupplier action) {
        return nested(3, action);
    }

    static int caught(IntSupplier action) {
        try {
            return locked(action);
        } finally {
            Thread.onSpinWait();
        }
    }

    static class Shape {
        final int area;

        Shape(IntSupplier action) {
            area = caught(action);
        }

        int überall() {
            return area;
        }
    }

    static class Waits implements IntSupplier {
        @Override
        public int getAsInt() {
            return waitForInput();
        }
    }

    public static void main(String[] arguments) {
        int rounds = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 0;
        int sum = 0;
        for (int round = 0; round < rounds; round++) {
            sum += new Shape(ACTIONS.get(round % ACTIONS.size())).überall();
        }
        sum += new Shape(new Waits()).überall();
        System.exit(sum & 1);
    }
}

package demo;

import com.sun.net.httpserver.Filter;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import sun.misc.Unsafe;

/**
 * A server as Spring builds them: filters, a controller whose methods are called by reflection, and a virtual thread for each request.
 * Appends a line of JSON per block to the file $STACKS: the methods, files and lines of its stack, the innermost first.
 *
 * Usage: Virtual PORT. Needs JDK 21 or later.
 */
public class Virtual {
    /** Bytes of each block, which no other block has. */
    static final long SIZE = 40_968;
    static final Unsafe UNSAFE = unsafe();
    static OutputStream output;

    static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException exception) {
            throw new AssertionError(exception);
        }
    }

    /** The block and its description on one line, which both have. */
    static void block() {
        free(UNSAFE.allocateMemory(SIZE), new Throwable());
    }

    static void free(long address, Throwable stack) {
        UNSAFE.freeMemory(address);
        StringBuilder line = new StringBuilder("[");
        for (StackTraceElement frame : stack.getStackTrace()) {
            line.append(line.length() > 1 ? "," : "").append("[\"").append(frame.getClassName()).append('.');
            line.append(frame.getMethodName()).append("\",\"").append(frame.getLineNumber() < 0 ? "" : frame.getFileName());
            line.append("\",").append(Math.max(frame.getLineNumber(), 0)).append(']');
        }
        try {
            synchronized (output) {
                output.write(line.append("]\n").toString().getBytes(StandardCharsets.UTF_8));
            }
        } catch (IOException exception) {
            throw new AssertionError(exception);
        }
    }

    static void recursion(int depth) throws InterruptedException {
        if (depth > 0) recursion(depth - 1);
        else Thread.sleep(1);
        if (depth % 3 == 0) block();
    }

    /** Its methods are called by reflection. */
    public static class Controller {
        public String page(int number) throws Exception {
            block();
            recursion(number % 11);
            List.of(2, 1, 3).stream().map(value -> value + number).sorted().forEach(value -> block());
            return "page";
        }

        public String function(int number) {
            block();
            return "function";
        }
    }

    static void handle(HttpExchange exchange) throws IOException {
        String[] parts = exchange.getRequestURI().getPath().split("/");
        try {
            Method method = Controller.class.getMethod(parts.length > 2 ? "function" : "page", int.class);
            Object result = method.invoke(new Controller(), Integer.parseInt(parts[parts.length - 1]));
            byte[] text = result.toString().getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, text.length);
            exchange.getResponseBody().write(text);
        } catch (ReflectiveOperationException exception) {
            throw new IOException(exception);
        } finally {
            exchange.close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        output = new FileOutputStream(System.getenv("STACKS"), true);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 0);
        server.createContext("/", Virtual::handle).getFilters().add(new Filter() {
            @Override
            public void doFilter(HttpExchange exchange, Chain chain) throws IOException {
                block();
                chain.doFilter(exchange);
                block();
            }

            @Override
            public String description() {
                return "measures";
            }
        });
        // Earlier versions, for which this is compiled, lack the method.
        Method executor = Executors.class.getMethod("newVirtualThreadPerTaskExecutor");
        server.setExecutor((ExecutorService) executor.invoke(null));
        server.start();
    }
}

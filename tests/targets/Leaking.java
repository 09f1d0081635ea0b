import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Leaks buffers of 3,000 bytes outside of Java's heap, which the virtual machine allocates with malloc: a line of input is how many. */
public class Leaking {
    static final List<ByteBuffer> held = new ArrayList<>();

    static void leakBuffers(int count) {
        for (int i = 0; i < count; i++) held.add(ByteBuffer.allocateDirect(3000));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            for (int left = Integer.parseInt(line); left > 0; left -= 100) leakBuffers(Math.min(left, 100));
            System.out.println("done");
        }
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.zip.Deflater;

/** Allocates with malloc, through zlib: a line of input is how many times. */
public class Compressing {
    static byte[] input = new byte[100];
    static byte[] output = new byte[200];

    static void compress() {
        Deflater deflater = new Deflater();
        deflater.setInput(input);
        deflater.finish();
        deflater.deflate(output);
        deflater.end();
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            for (int i = Integer.parseInt(line); i > 0; i--) compress();
            System.out.println("done");
        }
    }
}

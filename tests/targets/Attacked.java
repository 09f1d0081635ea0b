import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.TreeMap;
import java.util.zip.CRC32;
import java.util.zip.Deflater;

/** A round of work by Java for `cargo xtask faults --engine inline`: the protocol is that of attacked.h. */
public final class Attacked {
    private static String doRound() throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        TreeMap<Integer, List<Integer>> table = new TreeMap<>();
        for (int i = 0; i < 400; i++) {
            List<Integer> row = new ArrayList<>();
            for (int j = 0; j < i % 50; j++) row.add(i * j);
            table.put(i, row);
        }
        byte[] text = table.toString().getBytes();
        // Allocates by malloc.
        Deflater deflater = new Deflater();
        deflater.setInput(text);
        deflater.finish();
        byte[] small = new byte[text.length];
        int length = deflater.deflate(small);
        deflater.end();
        CRC32 sum = new CRC32();
        sum.update(small, 0, length);
        digest.update(text);
        digest.update(Long.toString(sum.getValue()).getBytes());
        return HexFormat.of().formatHex(digest.digest()).substring(0, 16);
    }

    private static String line() throws Exception {
        StringBuilder line = new StringBuilder();
        for (int read = System.in.read(); read != '\n'; read = System.in.read()) {
            if (read < 0) return "stop";
            line.append((char) read);
        }
        return line.toString();
    }

    public static void main(String[] arguments) throws Exception {
        String result = doRound();
        int wrong = 0;
        int rounds = 1;
        boolean waits = false;
        System.out.println("ready");
        while (true) {
            while (waits || System.in.available() > 0) {
                String line = line();
                if (line.equals("stop")) {
                    System.out.println("result " + result + " wrong " + wrong + " rounds " + rounds);
                    return;
                }
                waits = line.equals("idle");
                if (waits) System.out.println("idle");
            }
            if (!doRound().equals(result)) wrong++;
            rounds++;
        }
    }
}

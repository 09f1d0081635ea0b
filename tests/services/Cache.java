import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A service that keeps a session for each user, in a map. */
public class Cache {
    record Session(int id, String name, List<Integer> tags) {}

    static final Map<Integer, Session> CACHE = new HashMap<>();

    static void login(int id) {
        CACHE.put(id, new Session(id, "user-" + id, new ArrayList<>(List.of(id, id + 1))));
    }

    public static void main(String[] arguments) throws InterruptedException {
        for (int id = 0;; id++) {
            if (id < 1_000_000) {
                login(id);
            } else {
                Thread.sleep(50);
            }
            if (id % 500 == 0) {
                Thread.sleep(2);
            }
        }
    }
}

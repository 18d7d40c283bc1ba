import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Twenty pages of a file get the same number, then one flush: by a RandomAccessFile (`file`) or a MappedByteBuffer (`map`). */
class Pages {
    static final int PAGE = 4096, KEYS = 20;

    static byte[] page(int n) {
        return String.format("%-" + PAGE + "d", n).getBytes(StandardCharsets.US_ASCII);
    }

    static int variable(String name, int usual) {
        String value = System.getenv(name);
        return value == null ? usual : Integer.parseInt(value);
    }

    static void run(RandomAccessFile file, boolean mapped) throws Exception {
        MappedByteBuffer map = mapped ? file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, PAGE * KEYS) : null;
        int first = variable("UNTORN_FIRST", 1), rounds = variable("UNTORN_ROUNDS", 60);
        for (int n = first; n < first + rounds; n++) {
            for (int key = 0; key < KEYS; key++) {
                if (mapped) {
                    map.position(key * PAGE);
                    map.put(page(n));
                } else {
                    file.seek(key * PAGE);
                    file.write(page(n));
                }
            }
            if (mapped) map.force();
            else file.getFD().sync();
            System.out.println(n);
        }
    }

    static void check(RandomAccessFile file) throws Exception {
        List<String> said = Files.readAllLines(Path.of(System.getenv("UNTORN_ACKED")));
        int least = said.isEmpty() ? 0 : Integer.parseInt(said.get(said.size() - 1));
        byte[] found = new byte[PAGE];
        file.readFully(found);
        int n = Integer.parseInt(new String(found, StandardCharsets.US_ASCII).trim());
        for (int key = 1; key < KEYS; key++) {
            file.readFully(found);
            int other = Integer.parseInt(new String(found, StandardCharsets.US_ASCII).trim());
            if (other != n) fail("half a change: " + n + " and " + other + ", and " + least + " was acknowledged");
        }
        if (n < least) fail(least + " was acknowledged, " + n + " was found");
    }

    static void fail(String why) {
        System.out.println(why);
        System.exit(1);
    }

    public static void main(String[] arguments) throws Exception {
        try (RandomAccessFile file = new RandomAccessFile(arguments[1] + "/pages", "rw")) {
            switch (arguments[0]) {
                case "setup": for (int key = 0; key < KEYS; key++) file.write(page(0)); break;
                case "run": run(file, arguments[2].equals("map")); break;
                default: check(file);
            }
        }
    }
}

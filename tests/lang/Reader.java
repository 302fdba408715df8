import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Reads a batch through the mount in three ways and compares it to the expected bytes. */
public class Reader {
    static byte[] wanted;

    static void check(String how, ByteBuffer found) {
        if (!found.equals(ByteBuffer.wrap(wanted))) {
            System.err.println(how + ": the bytes differ from those expected");
            System.exit(1);
        }
    }

    public static void main(String[] args) throws IOException {
        Path batch = Path.of(args[0]);
        wanted = Files.readAllBytes(Path.of(args[1]));
        check("readAllBytes", ByteBuffer.wrap(Files.readAllBytes(batch)));
        long size;
        try (FileChannel channel = FileChannel.open(batch, StandardOpenOption.READ)) {
            size = channel.size();
            check("map", channel.map(FileChannel.MapMode.READ_ONLY, 0, size));
        }
        try (RandomAccessFile file = new RandomAccessFile(batch.toFile(), "r")) {
            byte[] pieces = new byte[(int) size];
            for (int at = pieces.length; at > 0; ) {
                int length = Math.min(4099, at);
                at -= length;
                file.seek(at);
                file.readFully(pieces, at, length);
            }
            check("backwards, in pieces", ByteBuffer.wrap(pieces));
        }
        System.out.println("ok " + size);
    }
}

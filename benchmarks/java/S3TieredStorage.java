import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentFileset;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentFileset.RemoteLogSegmentFileType;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * The broker's storage manager of benchmarks/spark_backfill.py: writes as Kafka's own LocalTieredStorage into a folder
 * which an S3 server shows as a public bucket, and reads segments from there by GET, over whatever link is in between.
 *
 *   rsm.config.dir   the bucket's folder
 *   rsm.config.url   the bucket as readers reach it, with a slash at the end
 *
 * It is kinder to the broker than a plug-in that fetches whole chunks: a GET begins where the broker reads, is about as
 * large as what the broker asks for, and its body is streamed. Indexes come from the folder, without the link.
 */
public class S3TieredStorage implements RemoteStorageManager {
    /** What a fetch of Kafka's default size takes, and what lies before its first record. */
    private static final int RANGE_BYTES = (1024 + 128) * 1024;

    private final LocalTieredStorage files = new LocalTieredStorage();
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private File folder;
    private String url;

    @Override
    public void configure(Map<String, ?> configs) {
        files.configure(configs);
        // LocalTieredStorage makes this folder of its own below `dir`.
        folder = new File((String) configs.get("dir"), "kafka-tiered-storage");
        url = configs.get("url") + folder.getName() + "/";
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
            throws RemoteStorageException {
        return files.copyLogSegmentData(metadata, data);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start) throws RemoteStorageException {
        return fetchLogSegment(metadata, start, metadata.segmentSizeInBytes() - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start, int end)
            throws RemoteStorageException {
        var log = RemoteLogSegmentFileset.openFileset(folder, metadata).getFile(RemoteLogSegmentFileType.SEGMENT);
        var object = URI.create(url + folder.toPath().relativize(log.toPath()));
        return new Ranges(object, start, end);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType type) throws RemoteStorageException {
        return files.fetchIndex(metadata, type);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        files.deleteLogSegmentData(metadata);
    }

    @Override
    public void close() {
        files.close();
    }

    /** The object's bytes from `start` to `end`, inclusive, one GET after another. */
    private final class Ranges extends InputStream {
        private final URI object;
        private final long end;
        private long position;
        private InputStream body = InputStream.nullInputStream();

        private Ranges(URI object, long start, long end) {
            this.object = object;
            this.position = start;
            this.end = end;
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] into, int at, int length) throws IOException {
            int count = length == 0 ? 0 : body.read(into, at, length);
            while (count < 0 && position <= end) {
                body.close();
                body = get(position, Math.min(end, position + RANGE_BYTES - 1));
                count = body.read(into, at, length);
            }
            position += Math.max(count, 0);
            return count;
        }

        /** Reads what is left of the range: a connection that is cut leaves what is under way in the link. */
        @Override
        public void close() throws IOException {
            body.transferTo(OutputStream.nullOutputStream());
            body.close();
        }

        private InputStream get(long first, long last) throws IOException {
            var request = HttpRequest.newBuilder(object).header("Range", "bytes=" + first + "-" + last).build();
            try {
                var answer = http.send(request, HttpResponse.BodyHandlers.ofInputStream());
                if (answer.statusCode() != 206) {
                    throw new IOException(object + " is answered with " + answer.statusCode());
                }
                return answer.body();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
                throw new IOException(interrupted);
            }
        }
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.*;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.*;

/**
 * Answers with Kafka's own classes: what the tests hold our codecs against. One JSON object per line of standard
 * input, one per line of standard output, in order. A request that Kafka refuses is answered {"error": "..."}.
 *
 * Requests, by "do" (uuids in Kafka's 22 characters, bytes in hex, states as their numbers):
 *
 *   encode             kind + fields            -> {"hex"}       a value of __remote_log_metadata
 *   decode             hex                      -> kind + fields
 *       fields of kind "segment": topic, topic_id, partition, segment_id, start_offset, end_offset,
 *         max_timestamp_ms, broker_id, event_timestamp_ms, segment_size_bytes, segment_leader_epochs
 *         [[epoch, offset], ...], state, custom_metadata (hex or null), txn_index_empty
 *       of "update": topic, topic_id, partition, segment_id, event_timestamp_ms, state, broker_id, custom_metadata
 *       of "partition_delete": topic, topic_id, partition, state, event_timestamp_ms, broker_id
 *       of "snapshot": as "segment" without topic, topic_id and partition
 *   metadata_partition topic_id, partition, count           -> {"metadata_partition"}
 *   write_offset_index base_offset, entries [[offset, position], ...]      -> {"hex"}
 *   read_offset_index  base_offset, hex, targets [offset, ...]  -> {"entries", "found" [[offset, position], ...]}
 *   write_time_index   base_offset, entries [[timestamp_ms, offset], ...]  -> {"hex"}
 *   read_time_index    base_offset, hex, targets [timestamp_ms, ...]  -> {"entries", "found" as the entries}
 *   write_transaction_index  base_offset, entries [[producer_id, first_offset, last_offset, last_stable_offset], ...]
 *   read_transaction_index   base_offset, hex               -> {"entries"}
 *   write_leader_epochs      entries [[epoch, start_offset], ...]          -> {"hex"}
 *   read_leader_epochs       hex                            -> {"entries"}
 *   write_producer_snapshot  entries [[producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms,
 *                            coordinator_epoch, current_txn_first_offset (-1: none)], ...] -> {"hex"}
 *   read_producer_snapshot   hex                            -> {"entries"}
 *   rebuild_segment    folder, base_offset, lineage [[epoch, start_offset], ...], producers as write_producer_snapshot,
 *                      index_interval_bytes
 *                      -> {"size", "dropped"}: beside the .log in the folder the indexes, the producer snapshot and a
 *                      file leader-epoch-checkpoint, as a broker makes them when it starts after a crash
 *
 * Run by tests/support/oracle.py: java -cp 'build/kafka/libs/*' tools/oracle/Oracle.java
 */
public final class Oracle {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private static final int INDEX_BYTES_MAX = 1024 * 1024;

    private final RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
    private final Path folder;

    private Oracle(Path folder) {
        this.folder = folder;
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createTempDirectory("oracle");
        Oracle oracle = new Oracle(folder);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = requests.readLine()) != null) {
            ObjectNode answer;
            try {
                answer = oracle.answer(JSON.readTree(line));
            } catch (Exception refused) {
                answer = JSON.createObjectNode().put("error", refused.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
        Files.deleteIfExists(folder);
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        String what = request.path("do").asText();
        switch (what) {
            case "encode": return hex(serde.serialize(metadata(request)));
            case "decode": return fields(serde.deserialize(bytes(request)));
            case "metadata_partition": return metadataPartition(request);
            case "rebuild_segment": return rebuildSegment(request);
            default: return withFile(what, request);
        }
    }

    private ObjectNode withFile(String what, JsonNode request) throws Exception {
        // Snapshots are named by an offset, and read back by that name.
        String suffix = what.endsWith("snapshot") ? "snapshot" : "file";
        File file = folder.resolve("00000000000000000000." + suffix).toFile();
        try {
            if (what.startsWith("read_")) {
                Files.write(file.toPath(), bytes(request));
            }
            switch (what) {
                case "write_offset_index": return writeOffsetIndex(file, request);
                case "read_offset_index": return readOffsetIndex(file, request);
                case "write_time_index": return writeTimeIndex(file, request);
                case "read_time_index": return readTimeIndex(file, request);
                case "write_transaction_index": return writeTransactionIndex(file, request);
                case "read_transaction_index": return readTransactionIndex(file, request);
                case "write_leader_epochs": return writeLeaderEpochs(file, request);
                case "read_leader_epochs": return readLeaderEpochs(file);
                case "write_producer_snapshot": return writeProducerSnapshot(file, request);
                case "read_producer_snapshot": return readProducerSnapshot(file);
                default: throw new IllegalArgumentException("no such request: " + what);
            }
        } finally {
            Files.deleteIfExists(file.toPath());
        }
    }

    private RemoteLogMetadata metadata(JsonNode fields) {
        String kind = fields.path("kind").asText();
        Optional<CustomMetadata> custom = fields.path("custom_metadata").isTextual()
            ? Optional.of(new CustomMetadata(HEX.parseHex(fields.get("custom_metadata").asText())))
            : Optional.empty();
        int brokerId = integer(fields, "broker_id");
        long eventTimestampMs = number(fields, "event_timestamp_ms");
        if (kind.equals("update")) {
            return new RemoteLogSegmentMetadataUpdate(
                segmentId(fields), eventTimestampMs, custom, segmentState(fields), brokerId);
        }
        if (kind.equals("partition_delete")) {
            RemotePartitionDeleteState state = RemotePartitionDeleteState.forId((byte) integer(fields, "state"));
            return new RemotePartitionDeleteMetadata(partition(fields), state, eventTimestampMs, brokerId);
        }
        Map<Integer, Long> epochs = new TreeMap<>();
        fields.get("segment_leader_epochs").forEach(entry -> epochs.put(entry.get(0).asInt(), entry.get(1).asLong()));
        boolean txnIndexEmpty = fields.path("txn_index_empty").asBoolean();
        if (kind.equals("segment")) {
            return new RemoteLogSegmentMetadata(
                segmentId(fields), number(fields, "start_offset"), number(fields, "end_offset"),
                number(fields, "max_timestamp_ms"), brokerId, eventTimestampMs, integer(fields, "segment_size_bytes"),
                custom, segmentState(fields), epochs, txnIndexEmpty);
        }
        if (kind.equals("snapshot")) {
            return new RemoteLogSegmentMetadataSnapshot(
                Uuid.fromString(text(fields, "segment_id")), number(fields, "start_offset"),
                number(fields, "end_offset"), number(fields, "max_timestamp_ms"), brokerId, eventTimestampMs,
                integer(fields, "segment_size_bytes"), custom, segmentState(fields), epochs, txnIndexEmpty);
        }
        throw new IllegalArgumentException("no such kind: " + kind);
    }

    private static ObjectNode fields(RemoteLogMetadata metadata) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("broker_id", metadata.brokerId());
        fields.put("event_timestamp_ms", metadata.eventTimestampMs());
        if (metadata instanceof RemoteLogSegmentMetadata segment) {
            fields.put("kind", "segment");
            putSegmentId(fields, segment.remoteLogSegmentId());
            fields.put("start_offset", segment.startOffset()).put("end_offset", segment.endOffset());
            fields.put("max_timestamp_ms", segment.maxTimestampMs());
            fields.put("segment_size_bytes", segment.segmentSizeInBytes());
            putEpochs(fields, segment.segmentLeaderEpochs());
            putState(fields, segment.state().id(), segment.customMetadata());
            fields.put("txn_index_empty", segment.isTxnIdxEmpty());
        } else if (metadata instanceof RemoteLogSegmentMetadataUpdate update) {
            fields.put("kind", "update");
            putSegmentId(fields, update.remoteLogSegmentId());
            putState(fields, update.state().id(), update.customMetadata());
        } else if (metadata instanceof RemotePartitionDeleteMetadata delete) {
            fields.put("kind", "partition_delete").put("state", (int) delete.state().id());
            putPartition(fields, delete.topicIdPartition());
        } else if (metadata instanceof RemoteLogSegmentMetadataSnapshot snapshot) {
            fields.put("kind", "snapshot").put("segment_id", snapshot.segmentId().toString());
            fields.put("start_offset", snapshot.startOffset()).put("end_offset", snapshot.endOffset());
            fields.put("max_timestamp_ms", snapshot.maxTimestampMs());
            fields.put("segment_size_bytes", snapshot.segmentSizeInBytes());
            putEpochs(fields, snapshot.segmentLeaderEpochs());
            putState(fields, snapshot.state().id(), snapshot.customMetadata());
            fields.put("txn_index_empty", snapshot.isTxnIdxEmpty());
        }
        return fields;
    }

    private static ObjectNode metadataPartition(JsonNode request) {
        TopicPartition named = new TopicPartition("any", integer(request, "partition"));
        TopicIdPartition partition = new TopicIdPartition(Uuid.fromString(text(request, "topic_id")), named);
        int found = new RemoteLogMetadataTopicPartitioner(integer(request, "count")).metadataPartition(partition);
        return JSON.createObjectNode().put("metadata_partition", found);
    }

    private static TopicIdPartition partition(JsonNode fields) {
        TopicPartition named = new TopicPartition(text(fields, "topic"), integer(fields, "partition"));
        return new TopicIdPartition(Uuid.fromString(text(fields, "topic_id")), named);
    }

    private static RemoteLogSegmentId segmentId(JsonNode fields) {
        return new RemoteLogSegmentId(partition(fields), Uuid.fromString(text(fields, "segment_id")));
    }

    private static RemoteLogSegmentState segmentState(JsonNode fields) {
        return RemoteLogSegmentState.forId((byte) integer(fields, "state"));
    }

    private static void putPartition(ObjectNode fields, TopicIdPartition partition) {
        fields.put("topic", partition.topic()).put("topic_id", partition.topicId().toString());
        fields.put("partition", partition.partition());
    }

    private static void putSegmentId(ObjectNode fields, RemoteLogSegmentId id) {
        putPartition(fields, id.topicIdPartition());
        fields.put("segment_id", id.id().toString());
    }

    private static void putState(ObjectNode fields, byte state, Optional<CustomMetadata> custom) {
        fields.put("state", (int) state);
        fields.put("custom_metadata", custom.map(metadata -> HEX.formatHex(metadata.value())).orElse(null));
    }

    private static void putEpochs(ObjectNode fields, Map<Integer, Long> epochs) {
        List<long[]> entries = new ArrayList<>();
        epochs.forEach((epoch, offset) -> entries.add(new long[] {epoch, offset}));
        fields.set("segment_leader_epochs", rows(entries));
    }

    private static ObjectNode writeOffsetIndex(File file, JsonNode request) throws Exception {
        try (OffsetIndex index = new OffsetIndex(file, number(request, "base_offset"), INDEX_BYTES_MAX)) {
            for (long[] entry : entries(request.get("entries"))) {
                index.append(entry[0], (int) entry[1]);
            }
            index.trimToValidSize();
        }
        return hex(Files.readAllBytes(file.toPath()));
    }

    private static ObjectNode readOffsetIndex(File file, JsonNode request) throws Exception {
        List<long[]> entries = new ArrayList<>();
        List<long[]> found = new ArrayList<>();
        try (OffsetIndex index = new OffsetIndex(file, number(request, "base_offset"), INDEX_BYTES_MAX, false)) {
            index.sanityCheck();
            for (int i = 0; i < index.entries(); i++) {
                entries.add(row(index.entry(i)));
            }
            for (JsonNode target : request.path("targets")) {
                found.add(row(index.lookup(target.asLong())));
            }
        }
        return JSON.createObjectNode().<ObjectNode>set("entries", rows(entries)).set("found", rows(found));
    }

    private static ObjectNode writeTimeIndex(File file, JsonNode request) throws Exception {
        try (TimeIndex index = new TimeIndex(file, number(request, "base_offset"), INDEX_BYTES_MAX)) {
            for (long[] entry : entries(request.get("entries"))) {
                index.maybeAppend(entry[0], entry[1]);
            }
            index.trimToValidSize();
        }
        return hex(Files.readAllBytes(file.toPath()));
    }

    private static ObjectNode readTimeIndex(File file, JsonNode request) throws Exception {
        List<long[]> entries = new ArrayList<>();
        List<long[]> found = new ArrayList<>();
        try (TimeIndex index = new TimeIndex(file, number(request, "base_offset"), INDEX_BYTES_MAX, false)) {
            index.sanityCheck();
            for (int i = 0; i < index.entries(); i++) {
                entries.add(row(index.entry(i)));
            }
            for (JsonNode target : request.path("targets")) {
                found.add(row(index.lookup(target.asLong())));
            }
        }
        return JSON.createObjectNode().<ObjectNode>set("entries", rows(entries)).set("found", rows(found));
    }

    private static ObjectNode writeTransactionIndex(File file, JsonNode request) throws Exception {
        try (TransactionIndex index = new TransactionIndex(number(request, "base_offset"), file)) {
            for (long[] entry : entries(request.get("entries"))) {
                index.append(new AbortedTxn(entry[0], entry[1], entry[2], entry[3]));
            }
            index.flush();
        }
        return hex(Files.readAllBytes(file.toPath()));
    }

    private static ObjectNode readTransactionIndex(File file, JsonNode request) throws Exception {
        List<long[]> entries = new ArrayList<>();
        try (TransactionIndex index = new TransactionIndex(number(request, "base_offset"), file)) {
            index.sanityCheck();
            for (AbortedTxn aborted : index.allAbortedTxns()) {
                entries.add(new long[] {
                    aborted.producerId(), aborted.firstOffset(), aborted.lastOffset(), aborted.lastStableOffset()});
            }
        }
        return JSON.createObjectNode().set("entries", rows(entries));
    }

    private static ObjectNode writeLeaderEpochs(File file, JsonNode request) throws Exception {
        List<EpochEntry> epochs =
            entries(request.get("entries")).stream().map(entry -> new EpochEntry((int) entry[0], entry[1])).toList();
        new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)).write(epochs);
        return hex(Files.readAllBytes(file.toPath()));
    }

    private static ObjectNode readLeaderEpochs(File file) throws Exception {
        List<long[]> entries = new ArrayList<>();
        for (EpochEntry entry : new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)).read()) {
            entries.add(new long[] {entry.epoch(), entry.startOffset()});
        }
        return JSON.createObjectNode().set("entries", rows(entries));
    }

    private static ObjectNode writeProducerSnapshot(File file, JsonNode request) throws Exception {
        Map<Long, ProducerStateEntry> producers = new LinkedHashMap<>();
        for (long[] row : entries(request.get("entries"))) {
            producers.put(row[0], producer(row));
        }
        ProducerStateManager.writeSnapshot(file, producers, false);
        return hex(Files.readAllBytes(file.toPath()));
    }

    private static ProducerStateEntry producer(long[] row) throws Exception {
        // The last batch of an entry is set by a method that Kafka keeps to its package.
        Method addBatch = ProducerStateEntry.class.getDeclaredMethod(
            "addBatch", short.class, int.class, long.class, int.class, long.class);
        addBatch.setAccessible(true);
        OptionalLong transaction = row[7] < 0 ? OptionalLong.empty() : OptionalLong.of(row[7]);
        ProducerStateEntry entry = new ProducerStateEntry(row[0], (short) row[1], (int) row[6], row[5], transaction);
        if (row[3] >= 0) {
            addBatch.invoke(entry, (short) row[1], (int) row[2], row[3], (int) row[4], row[5]);
        }
        return entry;
    }

    private static ObjectNode rebuildSegment(JsonNode request) throws Exception {
        File folder = new File(text(request, "folder"));
        TopicPartition partition = new TopicPartition("orders", 0);
        LeaderEpochCheckpointFile epochs = new LeaderEpochCheckpointFile(
            new File(folder, "leader-epoch-checkpoint"), new LogDirFailureChannel(1));
        LeaderEpochFileCache lineage = new LeaderEpochFileCache(partition, epochs, new KafkaScheduler(1));
        for (long[] row : entries(request.get("lineage"))) {
            lineage.assign((int) row[0], row[1]);
        }
        ProducerStateManager producers = new ProducerStateManager(
            partition, folder, Integer.MAX_VALUE, new ProducerStateManagerConfig(Integer.MAX_VALUE, false),
            Time.SYSTEM);
        for (long[] row : entries(request.get("producers"))) {
            producers.loadProducerEntry(producer(row));
        }
        LogConfig config = new LogConfig(Map.of("index.interval.bytes", integer(request, "index_interval_bytes")));
        LogSegment segment = LogSegment.open(
            folder, number(request, "base_offset"), config, Time.SYSTEM, true, 0, false, "");
        int dropped = segment.recover(producers, lineage);
        producers.takeSnapshot();
        segment.close();
        epochs.write(lineage.epochEntries());
        return JSON.createObjectNode().put("size", segment.size()).put("dropped", dropped);
    }

    private static ObjectNode readProducerSnapshot(File file) throws Exception {
        List<long[]> entries = new ArrayList<>();
        for (ProducerStateEntry entry : ProducerStateManager.readSnapshot(file)) {
            BatchMetadata last = new BatchMetadata(-1, -1, 0, -1);
            for (BatchMetadata batch : entry.batchMetadata()) {
                last = batch;
            }
            entries.add(new long[] {
                entry.producerId(), entry.producerEpoch(), last.lastSeq(), last.lastOffset(), last.offsetDelta(),
                entry.lastTimestamp(), entry.coordinatorEpoch(), entry.currentTxnFirstOffset().orElse(-1)});
        }
        return JSON.createObjectNode().set("entries", rows(entries));
    }

    private static long[] row(OffsetPosition entry) {
        return new long[] {entry.offset(), entry.position()};
    }

    private static long[] row(TimestampOffset entry) {
        return new long[] {entry.timestamp(), entry.offset()};
    }

    private static List<long[]> entries(JsonNode list) {
        List<long[]> entries = new ArrayList<>();
        for (JsonNode entry : list) {
            long[] row = new long[entry.size()];
            for (int i = 0; i < row.length; i++) {
                row[i] = entry.get(i).asLong();
            }
            entries.add(row);
        }
        return entries;
    }

    private static ArrayNode rows(List<long[]> entries) {
        ArrayNode rows = JSON.createArrayNode();
        for (long[] entry : entries) {
            ArrayNode row = rows.addArray();
            for (long value : entry) {
                row.add(value);
            }
        }
        return rows;
    }

    private static ObjectNode hex(byte[] bytes) {
        return JSON.createObjectNode().put("hex", HEX.formatHex(bytes));
    }

    private static byte[] bytes(JsonNode request) {
        return HEX.parseHex(text(request, "hex"));
    }

    private static JsonNode required(JsonNode fields, String name) {
        if (!fields.hasNonNull(name)) {
            throw new IllegalArgumentException("field " + name + " is missing");
        }
        return fields.get(name);
    }

    private static String text(JsonNode fields, String name) {
        return required(fields, name).asText();
    }

    private static long number(JsonNode fields, String name) {
        return required(fields, name).asLong();
    }

    private static int integer(JsonNode fields, String name) {
        return required(fields, name).asInt();
    }
}

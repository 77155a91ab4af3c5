/*
 * Kafka's own clients, run through Tidegate by tests/support/digests.py:
 *
 *   java -cp <Kafka's jars> ConsumerDigest.java digest BOOTSTRAP TOPIC ISOLATION PARTITION:END,...
 *       reads each partition from its beginning to END; prints a line each: partition, records, first and last offset,
 *       SHA-256
 *   java -cp <Kafka's jars> ConsumerDigest.java admin BOOTSTRAP
 *       prints what Admin says: `quorum LEADER_ID`, `node ID HOST PORT`, `controller ID HOST PORT`, `group ID` each
 *
 * A position is never reset: an offset out of range ends the program. The digest is the one of TopicDigest in
 * digests.py.
 */

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ConsumerDigest {
    private static final long READ_TIMEOUT_MS = 25_000;

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "digest" -> digest(arguments[1], arguments[2], arguments[3], arguments[4]);
            case "admin" -> admin(arguments[1]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void digest(String bootstrapServers, String topic, String isolation, String wanted)
            throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrapServers);
        settings.put("isolation.level", isolation);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "100");
        Map<TopicPartition, Long> ends = new LinkedHashMap<>();
        Map<TopicPartition, PartitionDigest> digests = new LinkedHashMap<>();
        for (String pair : wanted.split(",")) {
            String[] parts = pair.split(":");
            TopicPartition partition = new TopicPartition(topic, Integer.parseInt(parts[0]));
            ends.put(partition, Long.parseLong(parts[1]));
            digests.put(partition, new PartitionDigest());
        }
        long deadlineMs = System.currentTimeMillis() + READ_TIMEOUT_MS;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(ends.keySet());
            consumer.seekToBeginning(ends.keySet());
            while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                if (System.currentTimeMillis() > deadlineMs) {
                    throw new IllegalStateException("no end in " + READ_TIMEOUT_MS + " ms");
                }
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    digests.get(new TopicPartition(each.topic(), each.partition())).add(each);
                }
            }
        }
        digests.forEach((partition, each) -> System.out.println(partition.partition() + " " + each));
    }

    private static void admin(String bootstrapServers) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrapServers))) {
            System.out.println("quorum " + admin.describeMetadataQuorum().quorumInfo().get().leaderId());
            var cluster = admin.describeCluster();
            for (Node node : cluster.nodes().get()) {
                System.out.println("node " + node.id() + " " + node.host() + " " + node.port());
            }
            Node controller = cluster.controller().get();
            System.out.println("controller " + controller.id() + " " + controller.host() + " " + controller.port());
            for (GroupListing group : admin.listGroups().all().get()) {
                System.out.println("group " + group.groupId());
            }
        }
    }

    private static final class PartitionDigest {
        private final MessageDigest hash;
        private long records = 0;
        private long first = -1;
        private long last = -1;

        PartitionDigest() throws Exception {
            hash = MessageDigest.getInstance("SHA-256");
        }

        void add(ConsumerRecord<byte[], byte[]> record) {
            List<byte[]> fields = new ArrayList<>();
            fields.add(record.key());
            fields.add(record.value());
            for (Header header : record.headers()) {
                fields.add(header.key().getBytes(StandardCharsets.UTF_8));
                fields.add(header.value());
            }
            ByteBuffer head = ByteBuffer.allocate(20 + 4 * fields.size());
            head.putLong(record.offset()).putLong(record.timestamp()).putInt(fields.size());
            for (byte[] field : fields) {
                head.putInt(field == null ? -1 : field.length);
            }
            hash.update(head.array());
            for (byte[] field : fields) {
                if (field != null) {
                    hash.update(field);
                }
            }
            first = records++ == 0 ? record.offset() : first;
            last = record.offset();
        }

        @Override
        public String toString() {
            return records + " " + first + " " + last + " " + HexFormat.of().formatHex(hash.digest());
        }
    }
}

/*
 * What Tidegate relays and takes no part in, used by Kafka's own clients: share groups, transactions, telemetry. The
 * contract is the one of tests/support/client_programs.py: a line of JSON on stdin asks, a line of JSON answers.
 *
 *   java -cp <Kafka's jars> RelayedFeatures.java BOOTSTRAP
 *
 *   share         topic, group, records   two members share a topic; one record in ten is released once
 *   transactions  topic, group, records   committed, aborted, with offsets, fenced; `group` names topics and ids too
 *   telemetry     topic, group, records   subscribes to metrics under the name `group`, reads a topic and lets
 *                                         the client push its own for a moment
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class RelayedFeatures {
    private static final long TIMEOUT_MS = 30_000;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrapServers;
    private final String topic;
    private final String group;
    private final int wanted;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> said;
            try {
                JsonNode request = JSON.readTree(line);
                said = Map.of("answer", new RelayedFeatures(arguments[0], request).run(request));
            } catch (Exception error) {
                error.printStackTrace();
                said = Map.of("failure", error.toString());
            }
            System.out.println(JSON.writeValueAsString(said));
        }
    }

    private RelayedFeatures(String bootstrapServers, JsonNode request) {
        this.bootstrapServers = bootstrapServers;
        topic = request.path("topic").asText();
        group = request.path("group").asText();
        wanted = request.path("records").asInt();
    }

    private Map<String, Object> run(JsonNode request) throws Exception {
        return switch (request.path("scenario").asText()) {
            case "share" -> share();
            case "transactions" -> transactions();
            case "telemetry" -> telemetry();
            default -> throw new IllegalArgumentException(request.toString());
        };
    }

    /** Every record is accepted in the end, some only at their second delivery. */
    private Map<String, Object> share() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            var earliest = new AlterConfigOp(
                    new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
            Set<String> accepted = new HashSet<>();
            Set<String> released = new HashSet<>();
            Set<String> again = new HashSet<>();
            List<Integer> bothRead = new ArrayList<>(List.of(0, 0));
            try (var first = shareConsumer(); var second = shareConsumer()) {
                long deadlineMs = deadline();
                while (accepted.size() < wanted) {
                    check(deadlineMs, "only " + accepted.size() + " of " + wanted + " accepted");
                    for (int number : List.of(0, 1)) {
                        var consumer = number == 0 ? first : second;
                        Set<String> releasing = new HashSet<>();
                        for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                            String name = each.partition() + ":" + each.offset();
                            if (each.offset() % 10 == 3 && !released.contains(name)) {
                                releasing.add(name);
                                consumer.acknowledge(each, AcknowledgeType.RELEASE);
                            } else {
                                accepted.add(name);
                                if (each.deliveryCount().orElse((short) 0) > 1) {
                                    again.add(name);
                                }
                                consumer.acknowledge(each, AcknowledgeType.ACCEPT);
                            }
                            bothRead.set(number, bothRead.get(number) + 1);
                        }
                        // A release that the broker refuses is none: a broker whose coordinator has only just begun
                        // forgets how often it delivered such a record.
                        if (consumer.commitSync().values().stream().allMatch(Optional::isEmpty)) {
                            released.addAll(releasing);
                        }
                    }
                }
            }
            var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
            return Map.of(
                    "accepted", accepted.size(),
                    "released", released.size(),
                    "delivered_again", again.containsAll(released),
                    "read_by_someone", bothRead.stream().anyMatch(count -> count > 0),
                    "state", described.groupState().toString());
        }
    }

    private KafkaShareConsumer<byte[], byte[]> shareConsumer() {
        Properties settings = settings();
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("fetch.max.wait.ms", "100");
        var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    /** Copies a topic's beginning in two transactions with the offsets of what was copied, one of them aborted. */
    private Map<String, Object> transactions() throws Exception {
        String output = group + "-output";
        Map<String, Object> said = new TreeMap<>();
        try (Admin admin = Admin.create(settings());
                var first = producer();
                var second = producer()) {
            admin.createTopics(List.of(new NewTopic(output, 1, (short) 1))).all().get();
            Properties settings = settings();
            settings.put("group.id", group);
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
                TopicPartition input = new TopicPartition(topic, 0);
                consumer.subscribe(List.of(topic));
                while (!consumer.assignment().contains(input)) {
                    consumer.poll(POLL);
                }
                first.initTransactions();
                for (boolean isCommit : List.of(true, false)) {
                    first.beginTransaction();
                    for (int number = 0; number < wanted; number++) {
                        first.send(new ProducerRecord<>(output, 0, null, isCommit + " " + number));
                    }
                    long offset = isCommit ? wanted : 2L * wanted;
                    var offsets = Map.of(input, new OffsetAndMetadata(offset));
                    first.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (isCommit) {
                        first.commitTransaction();
                    } else {
                        first.flush();
                        first.abortTransaction();
                    }
                }
                said.put("committed_offset", consumer.committed(Set.of(input)).get(input).offset());
            }
            second.initTransactions();
            try {
                first.beginTransaction();
                first.send(new ProducerRecord<>(output, 0, null, "fenced"));
                first.commitTransaction();
                said.put("fenced", "no");
            } catch (KafkaException error) {
                said.put("fenced", error.getClass().getSimpleName());
            }
            second.beginTransaction();
            second.send(new ProducerRecord<>(output, 0, null, "last"));
            second.commitTransaction();
            var transactional = admin.describeTransactions(List.of(group)).all().get().get(group);
            // Its markers may still be on their way.
            said.put("is_committed", transactional.state().toString().endsWith("Commit"));
        }
        said.put("read_committed", values(output, "read_committed"));
        said.put("read_uncommitted", values(output, "read_uncommitted"));
        return said;
    }

    private KafkaProducer<String, String> producer() {
        Properties settings = settings();
        settings.put("transactional.id", group);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** A fenced producer's record may be left in an open transaction no longer: the second producer ended it. */
    private List<String> values(String output, String isolation) {
        Properties settings = settings();
        settings.put("isolation.level", isolation);
        settings.put("auto.offset.reset", "none");
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            Set<TopicPartition> partitions = Set.of(new TopicPartition(output, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadlineMs = deadline();
            while (!values.contains("last")) {
                check(deadlineMs, "no last record among " + values.size());
                consumer.poll(POLL).forEach(each -> values.add(each.value()));
            }
        }
        return values;
    }

    /** Asks all clients for all metrics, ten times a second, and is one of them. */
    private Map<String, Object> telemetry() throws Exception {
        Properties settings = settings();
        try (Admin admin = Admin.create(settings)) {
            var resource = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, group);
            var changes = Map.of("metrics", "*", "interval.ms", "100").entrySet().stream()
                    .map(each -> new ConfigEntry(each.getKey(), each.getValue()))
                    .map(each -> new AlterConfigOp(each, AlterConfigOp.OpType.SET)).toList();
            admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        }
        settings.put("enable.metrics.push", "true");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            Set<TopicPartition> partitions = Set.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadlineMs = deadline();
            for (int read = 0; read < wanted; check(deadlineMs, "only " + wanted + " records")) {
                read += consumer.poll(POLL).count();
            }
            String instance = consumer.clientInstanceId(Duration.ofMillis(TIMEOUT_MS)).toString();
            long pushedMs = System.currentTimeMillis() + 1_000;
            while (System.currentTimeMillis() < pushedMs) {
                consumer.poll(POLL);
            }
            return Map.of("client_instance_id", instance);
        }
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrapServers);
        return settings;
    }

    private static long deadline() {
        return System.currentTimeMillis() + TIMEOUT_MS;
    }

    private static void check(long deadlineMs, String what) {
        if (System.currentTimeMillis() > deadlineMs) {
            throw new IllegalStateException(what + " in " + TIMEOUT_MS + " ms");
        }
    }
}

/*
 * Runs the scenarios of tests/support/client_programs.py with Kafka's own consumer: a line of JSON on stdin asks for
 * one, a line of JSON on stdout answers it, until stdin ends.
 *
 *   java -cp <Kafka's jars> ClientScenarios.java BOOTSTRAP
 */

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ClientScenarios {
    private static final long SCENARIO_TIMEOUT_MS = 30_000;
    private static final Duration LINGER = Duration.ofMillis(200);
    private static final Duration PRODUCE_EVERY = Duration.ofMillis(300);
    private static final int PARTITION_BYTES_MAX = 16 * 1024;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrapServers;
    private final JsonNode request;
    private final String topic;
    private final TreeMap<Integer, Long> lasts = new TreeMap<>();
    private final Set<TopicPartition> partitions;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> said;
            try {
                said = Map.of("answer", new ClientScenarios(arguments[0], JSON.readTree(line)).run());
            } catch (Exception error) {
                said = Map.of("failure", error.toString());
            }
            System.out.println(JSON.writeValueAsString(said));
        }
    }

    private ClientScenarios(String bootstrapServers, JsonNode request) {
        this.bootstrapServers = bootstrapServers;
        this.request = request;
        topic = request.path("topic").asText();
        request.path("lasts").properties().forEach(
                last -> lasts.put(Integer.valueOf(last.getKey()), last.getValue().asLong()));
        partitions = lasts.keySet().stream().map(this::partition).collect(Collectors.toSet());
    }

    private Map<String, Object> run() throws Exception {
        return switch (request.path("scenario").asText()) {
            case "digest" -> digest();
            case "timestamps" -> timestamps();
            case "group" -> group();
            case "pause" -> pause();
            case "reset" -> reset();
            default -> throw new IllegalArgumentException(request.toString());
        };
    }

    private Map<String, Object> digest() {
        Map<Integer, Digest> digests = newDigests();
        try (var consumer = consumer(Map.of())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Consumer<ConsumerRecord<byte[], byte[]>> take = each -> digests.get(each.partition()).add(each);
            pollUntil(() -> reached(digests, Set.of()), List.of(consumer), take);
            consumer.poll(LINGER).forEach(take);
        }
        return Map.of("partitions", digests);
    }

    private Map<String, Object> timestamps() {
        List<Object> found = new ArrayList<>();
        long wanted = request.path("records").asLong();
        for (JsonNode timestamp : request.path("timestamps_ms")) {
            Map<Integer, Digest> digests = newDigests();
            Map<Integer, List<Long>> offsets = new TreeMap<>();
            try (var consumer = consumer(Map.of())) {
                Map<TopicPartition, Long> asked =
                        partitions.stream().collect(Collectors.toMap(each -> each, each -> timestamp.asLong()));
                Map<TopicPartition, OffsetAndTimestamp> answered = new HashMap<>(consumer.offsetsForTimes(asked));
                answered.values().removeIf(each -> each == null);
                consumer.assign(answered.keySet());
                answered.forEach((partition, each) -> {
                    consumer.seek(partition, each.offset());
                    long epoch = each.leaderEpoch().orElse(-1);
                    offsets.put(partition.partition(), List.of(each.offset(), each.timestamp(), epoch));
                });
                pollUntil(
                        () -> offsets.entrySet().stream().allMatch(each -> digests.get(each.getKey()).records
                                >= Math.min(wanted, lasts.get(each.getKey()) - each.getValue().get(0) + 1)),
                        List.of(consumer),
                        each -> {
                            if (digests.get(each.partition()).records < wanted) {
                                digests.get(each.partition()).add(each);
                            }
                        });
            }
            found.add(Map.of("timestamp_ms", timestamp.asLong(), "offsets", offsets, "partitions", digests));
        }
        return Map.of("found", found);
    }

    private Map<String, Object> group() {
        Map<Integer, TreeMap<Long, ConsumerRecord<byte[], byte[]>>> records = new TreeMap<>();
        lasts.keySet().forEach(partition -> records.put(partition, new TreeMap<>()));
        Consumer<ConsumerRecord<byte[], byte[]>> take = each -> records.get(each.partition()).put(each.offset(), each);
        try (var first = member()) {
            BooleanSupplier hasAll = () -> first.assignment().equals(partitions);
            pollUntil(() -> hasAll.getAsBoolean() && records.values().stream().anyMatch(each -> !each.isEmpty()),
                    List.of(first), take);
            try (var second = member()) {
                pollUntil(() -> {
                    Set<TopicPartition> together = new java.util.HashSet<>(first.assignment());
                    together.addAll(second.assignment());
                    int count = first.assignment().size() + second.assignment().size();
                    return !first.assignment().isEmpty() && !second.assignment().isEmpty()
                            && together.equals(partitions) && count == partitions.size();
                }, List.of(first, second), take);
                second.commitSync();
            }
            pollUntil(() -> hasAll.getAsBoolean() && lasts.entrySet().stream()
                    .allMatch(each -> records.get(each.getKey()).containsKey(each.getValue())), List.of(first), take);
        }
        Map<Integer, Digest> digests = newDigests();
        records.forEach((partition, of) -> of.values().forEach(each -> digests.get(partition).add(each)));
        return Map.of("partitions", digests);
    }

    /** One that commits what it has read before it gives it up. */
    private KafkaConsumer<byte[], byte[]> member() {
        boolean isClassic = !request.path("protocol").asText("classic").equals("consumer");
        Map<String, String> settings = new HashMap<>(Map.of(
                "group.id", request.path("group").asText(),
                "auto.offset.reset", "earliest",
                "group.protocol", isClassic ? "classic" : "consumer"));
        if (isClassic) {
            settings.put("heartbeat.interval.ms", "200");
        }
        var consumer = consumer(settings);
        consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                consumer.commitSync();
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> assigned) {}
        });
        return consumer;
    }

    private Map<String, Object> pause() {
        Map<Integer, Digest> digests = newDigests();
        Set<Integer> paused = new TreeSet<>();
        request.path("paused").forEach(each -> paused.add(each.asInt()));
        Set<TopicPartition> pausedPartitions = paused.stream().map(this::partition).collect(Collectors.toSet());
        Consumer<ConsumerRecord<byte[], byte[]>> take = each -> digests.get(each.partition()).add(each);
        boolean stopped;
        try (var consumer = consumer(Map.of())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            pollUntil(() -> paused.stream().allMatch(each -> digests.get(each).records > 0), List.of(consumer), take);
            consumer.pause(pausedPartitions);
            pollUntil(() -> reached(digests, paused), List.of(consumer), take);
            stopped = paused.stream().noneMatch(each -> digests.get(each).last >= lasts.get(each));
            consumer.resume(pausedPartitions);
            pollUntil(() -> reached(digests, Set.of()), List.of(consumer), take);
        }
        return Map.of("stopped", stopped, "partitions", digests);
    }

    private Map<String, Object> reset() throws Exception {
        long[] first = {-1};
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrapServers);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
                var consumer = consumer(Map.of("auto.offset.reset", request.path("policy").asText()))) {
            consumer.assign(Set.of(partition(0)));
            consumer.seek(partition(0), request.path("offset").asLong());
            long deadlineMs = System.currentTimeMillis() + SCENARIO_TIMEOUT_MS;
            while (first[0] < 0 && System.currentTimeMillis() < deadlineMs) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(PRODUCE_EVERY)) {
                    first[0] = first[0] < 0 ? each.offset() : first[0];
                }
                producer.send(new ProducerRecord<>(topic, 0, null, "something new".getBytes())).get();
            }
        } catch (KafkaException error) {
            return Map.of("error", error.getClass().getSimpleName());
        }
        if (first[0] == request.path("start").asLong()) {
            return Map.of("first", "start");
        }
        return Map.of("first", first[0] >= request.path("end").asLong() ? "end" : first[0]);
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, String> others) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrapServers);
        settings.put("isolation.level", request.path("isolation").asText("read_uncommitted"));
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.partition.fetch.bytes", PARTITION_BYTES_MAX);
        if (request.hasNonNull("sasl")) {
            signIn(request.get("sasl"), settings);
        }
        settings.putAll(others);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void signIn(JsonNode sasl, Properties settings) {
        String mechanism = sasl.path("mechanism").asText();
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        settings.put("security.protocol", "SASL_PLAINTEXT");
        settings.put("sasl.mechanism", mechanism);
        settings.put(
                "sasl.jaas.config",
                "org.apache.kafka.common.security." + module + " required username=\"" + sasl.path("username").asText()
                        + "\" password=\"" + sasl.path("password").asText() + "\";");
    }

    private TopicPartition partition(int number) {
        return new TopicPartition(topic, number);
    }

    private Map<Integer, Digest> newDigests() {
        Map<Integer, Digest> digests = new TreeMap<>();
        lasts.keySet().forEach(partition -> digests.put(partition, new Digest()));
        return digests;
    }

    private boolean reached(Map<Integer, Digest> digests, Set<Integer> left) {
        return digests.entrySet().stream()
                .allMatch(each -> left.contains(each.getKey()) || each.getValue().last >= lasts.get(each.getKey()));
    }

    private static void pollUntil(
            BooleanSupplier done,
            List<KafkaConsumer<byte[], byte[]>> consumers,
            Consumer<ConsumerRecord<byte[], byte[]>> take) {
        long deadlineMs = System.currentTimeMillis() + SCENARIO_TIMEOUT_MS;
        while (!done.getAsBoolean()) {
            if (System.currentTimeMillis() > deadlineMs) {
                throw new IllegalStateException("no end in " + SCENARIO_TIMEOUT_MS + " ms");
            }
            consumers.forEach(consumer -> consumer.poll(Duration.ofMillis(50)).forEach(take));
        }
    }

    /** One partition's records, counted and hashed as by TopicDigest of tests/support/digests.py. */
    private static final class Digest {
        public long records = 0;
        public long first = -1;
        public long last = -1;
        private final MessageDigest hash;

        Digest() {
            try {
                hash = MessageDigest.getInstance("SHA-256");
            } catch (java.security.NoSuchAlgorithmException error) {
                throw new IllegalStateException(error);
            }
        }

        public String getSha256() throws CloneNotSupportedException {
            return HexFormat.of().formatHex(((MessageDigest) hash.clone()).digest());
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
            fields.forEach(field -> head.putInt(field == null ? -1 : field.length));
            hash.update(head.array());
            fields.stream().filter(field -> field != null).forEach(hash::update);
            first = records++ == 0 ? record.offset() : first;
            last = record.offset();
        }
    }
}

/*
 * Kafka's own clients that go on while replicas behind a balancer come and go. The contract is the one of
 * tests/support/client_programs.py, a line of JSON on stdin for each on stdout; tests/support/failover_clients.py says
 * what each role does and what it has in the end.
 *
 *   java -cp <Kafka's jars> FailoverClients.java BOOTSTRAP
 *
 *   start     roles, history, ends, numbers, committed, live, group    begins the roles, a thread each
 *   mark                                                               counts stalls anew
 *   progress                                                           by role: [count, stall_ms]
 *   finish                                                             by role: what it has
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
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class FailoverClients {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long PAUSE_NS = 20_000_000;
    private static final int QUEUED_MAX = 500;
    private static final int TRANSACTION_RECORDS = 20;
    private static final long END_MS = 60_000;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrapServers;
    private final JsonNode plan;
    private final Map<String, Steps> steps = new TreeMap<>();
    private final Map<String, Map<String, Object>> results = new ConcurrentHashMap<>();
    private final Map<String, Throwable> failures = new ConcurrentHashMap<>();
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean isOver = false;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        FailoverClients clients = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> said;
            try {
                JsonNode request = JSON.readTree(line);
                String scenario = request.path("scenario").asText();
                if (scenario.equals("start")) {
                    clients = new FailoverClients(arguments[0], request);
                    clients.start();
                }
                said = Map.of("answer", clients.answer(scenario));
            } catch (Exception error) {
                error.printStackTrace();
                said = Map.of("failure", error.toString());
            }
            System.out.println(JSON.writeValueAsString(said));
        }
        System.exit(0);
    }

    private FailoverClients(String bootstrapServers, JsonNode plan) {
        this.bootstrapServers = bootstrapServers;
        this.plan = plan;
    }

    private void start() {
        for (JsonNode each : plan.path("roles")) {
            String role = each.asText();
            steps.put(role, new Steps());
            Thread thread = new Thread(() -> run(role), role);
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    private Map<String, ?> answer(String scenario) throws Exception {
        if (scenario.equals("mark")) {
            steps.values().forEach(Steps::mark);
        }
        if (scenario.equals("finish")) {
            isOver = true;
            for (Thread thread : threads) {
                thread.join(END_MS);
            }
        }
        for (var failure : failures.entrySet()) {
            throw new IllegalStateException(failure.getKey(), failure.getValue());
        }
        if (scenario.equals("finish")) {
            if (!results.keySet().equals(steps.keySet())) {
                throw new IllegalStateException("only " + results.keySet() + " have ended in " + END_MS + " ms");
            }
            return results;
        }
        Map<String, Object> progress = new TreeMap<>();
        steps.forEach((role, each) -> progress.put(role, each.progress()));
        return progress;
    }

    private void run(String role) {
        try {
            results.put(role, switch (role) {
                case "reader" -> read(steps.get(role));
                case "producer" -> produce(steps.get(role));
                case "transactions" -> transact(steps.get(role));
                case "group" -> consume(steps.get(role));
                default -> throw new IllegalArgumentException(role);
            });
        } catch (Throwable error) {
            error.printStackTrace();
            failures.put(role, error);
        }
    }

    private Map<String, Object> read(Steps made) throws Exception {
        Properties settings = settings();
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("max.partition.fetch.bytes", "65536");
        settings.put("max.poll.records", "200");
        Map<TopicPartition, Long> ends = new java.util.HashMap<>();
        plan.path("ends").fields().forEachRemaining(each -> ends.put(
                new TopicPartition(plan.path("history").asText(), Integer.parseInt(each.getKey())),
                each.getValue().asLong()));
        int passes = 0;
        Set<Map<String, String>> digests = new LinkedHashSet<>();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(ends.keySet());
            while (!isOver) {
                Map<TopicPartition, PartitionDigest> pass = new java.util.HashMap<>();
                for (TopicPartition each : ends.keySet()) {
                    pass.put(each, new PartitionDigest());
                }
                consumer.seekToBeginning(ends.keySet());
                while (ends.entrySet().stream().anyMatch(end -> pass.get(end.getKey()).next < end.getValue())) {
                    for (ConsumerRecord<byte[], byte[]> each : consumer.poll(POLL)) {
                        pass.get(new TopicPartition(each.topic(), each.partition())).add(each);
                        made.made();
                    }
                    LockSupport.parkNanos(PAUSE_NS);
                }
                passes++;
                Map<String, String> digest = new TreeMap<>();
                pass.forEach((partition, each) -> digest.put("" + partition.partition(), each.toString()));
                digests.add(digest);
            }
        }
        return Map.of("passes", passes, "digests", digests);
    }

    /** With default settings, which are idempotent. */
    private Map<String, Object> produce(Steps made) {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        AtomicInteger queued = new AtomicInteger();
        int number = 0;
        try (var producer = new KafkaProducer<>(settings(), new StringSerializer(), new StringSerializer())) {
            while (!isOver) {
                if (queued.get() >= QUEUED_MAX) {
                    LockSupport.parkNanos(1_000_000);
                    continue;
                }
                queued.incrementAndGet();
                producer.send(record("numbers", number++), (metadata, error) -> {
                    queued.decrementAndGet();
                    if (error == null) {
                        made.made();
                    } else {
                        failed.add(error.toString());
                    }
                });
            }
            producer.flush();
        }
        return Map.of("sent", number, "failed", failed);
    }

    /** A transaction that has to be aborted is done anew, with the same numbers. */
    private Map<String, Object> transact(Steps made) {
        String id = plan.path("group").asText() + "-transactions";
        TopicPartition partition = new TopicPartition(plan.path("committed").asText(), 0);
        Properties settings = settings();
        settings.put("transactional.id", id);
        int number = 0;
        int aborted = 0;
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            while (!isOver) {
                int following = number + TRANSACTION_RECORDS;
                try {
                    producer.beginTransaction();
                    for (int each = number; each < following; each++) {
                        producer.send(record("committed", each));
                    }
                    var offsets = Map.of(partition, new OffsetAndMetadata(following));
                    producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(id));
                } catch (ProducerFencedException error) {
                    throw error;
                } catch (KafkaException error) {
                    producer.abortTransaction();
                    aborted++;
                    continue;
                }
                commit(producer);
                number = following;
                made.made();
            }
        }
        return Map.of("sent", number, "offset", number, "aborted", aborted);
    }

    /** After a TimeoutException it is not known whether it was committed: commitTransaction may be called again. */
    private static void commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                System.err.println(error);
            }
        }
    }

    private Map<String, Object> consume(Steps made) {
        Properties settings = settings();
        settings.put("group.id", plan.path("group").asText());
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        Map<Integer, Long> following = new TreeMap<>();
        int repeated = 0;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(plan.path("live").asText()));
            while (!isOver) {
                var records = consumer.poll(POLL);
                for (ConsumerRecord<byte[], byte[]> each : records) {
                    long expected = following.getOrDefault(each.partition(), 0L);
                    if (each.offset() > expected) {
                        throw new IllegalStateException(each.offset() + " where " + expected + " comes next");
                    }
                    repeated += each.offset() < expected ? 1 : 0;
                    following.put(each.partition(), Math.max(expected, each.offset() + 1));
                    made.made();
                }
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
            }
        }
        return Map.of("next", following, "repeated", repeated);
    }

    private ProducerRecord<String, String> record(String topic, int number) {
        return new ProducerRecord<>(plan.path(topic).asText(), 0, null, Integer.toString(number));
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrapServers);
        return settings;
    }

    private static final class Steps {
        private long count = 0;
        private long lastNs = System.nanoTime();
        private long longestNs = 0;

        synchronized void made() {
            long nowNs = System.nanoTime();
            longestNs = Math.max(longestNs, nowNs - lastNs);
            lastNs = nowNs;
            count++;
        }

        synchronized void mark() {
            lastNs = System.nanoTime();
            longestNs = 0;
        }

        synchronized List<Long> progress() {
            return List.of(count, Math.max(longestNs, System.nanoTime() - lastNs) / 1_000_000);
        }
    }

    /** The one of TopicDigest in tests/support/digests.py. */
    private static final class PartitionDigest {
        private final MessageDigest hash;
        private long records = 0;
        private long first = -1;
        private long last = -1;
        private long next = 0;

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
            next = last + 1;
        }

        @Override
        public String toString() {
            return records + " " + first + " " + last + " " + HexFormat.of().formatHex(hash.digest());
        }
    }
}

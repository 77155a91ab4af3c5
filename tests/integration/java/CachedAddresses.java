/*
 * A consumer that knows no way back to its bootstrap address, run by tests/integration/test_cached_addresses.py:
 *
 *   java -cp <Kafka's jars> CachedAddresses.java BOOTSTRAP TOPIC
 *       reads partition 0 from its beginning until it is killed; prints `next OFFSET` after each poll that had records
 *
 * `metadata.recovery.strategy=none` (KIP-899) is how every Java client before 4.0 behaves: once it has bootstrapped it
 * connects to the brokers that it was told of, and to nobody else. An offset that is not the next one ends it.
 */

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class CachedAddresses {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("metadata.recovery.strategy", "none");
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        settings.put("max.partition.fetch.bytes", "65536");
        TopicPartition partition = new TopicPartition(arguments[1], 0);
        long next = 0;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, next);
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (record.offset() != next) {
                        throw new IllegalStateException("offset " + record.offset() + " in place of " + next);
                    }
                    next++;
                }
                if (!records.isEmpty()) {
                    System.out.println("next " + next);
                }
            }
        }
    }
}

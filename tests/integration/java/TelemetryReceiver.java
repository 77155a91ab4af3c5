/*
 * A broker's metrics reporter that takes what clients push (KIP-714) and says so in the broker's log, a line each:
 *
 *   telemetry: CLIENT_INSTANCE_ID BYTES CONTENT_TYPE
 *
 * Without such a reporter a broker does not offer the telemetry requests at all.
 */

import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;

public class TelemetryReceiver implements MetricsReporter, ClientTelemetryExporterProvider {
    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return (context, payload) -> System.out.printf(
                "telemetry: %s %d %s%n", payload.clientInstanceId(), payload.data().remaining(), payload.contentType());
    }

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public void close() {}

    @Override
    public void configure(Map<String, ?> settings) {}
}

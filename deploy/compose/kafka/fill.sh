#!/bin/sh
# Makes a tiered topic, fills it with orders, and waits until most of it has left the brokers' disks.
# BOOTSTRAP_SERVERS, TOPIC and RECORDS come from docker-compose.yml. Run again, it finds the topic and adds nothing.
set -eu

bin=/opt/kafka/bin
wait_s_max=180

if "$bin/kafka-topics.sh" --bootstrap-server "$BOOTSTRAP_SERVERS" --list | grep -qx "$TOPIC"; then
    echo "fill: $TOPIC is there already"
    exit 0
fi

# A segment of 1 MiB is the least that Kafka takes. local.retention.bytes=1: what has been copied leaves the local log.
"$bin/kafka-topics.sh" --bootstrap-server "$BOOTSTRAP_SERVERS" --create --topic "$TOPIC" \
    --partitions 3 --replication-factor 1 \
    --config remote.storage.enable=true --config retention.ms=-1 \
    --config segment.bytes=1048576 --config local.retention.bytes=1

echo "fill: $RECORDS records into $TOPIC"
seq 1 "$RECORDS" |
    awk '{
        customer = "customer-" $1 % 97
        printf "%s\t{\"order\":%d,\"customer\":\"%s\",\"cents\":%d}\n", customer, $1, customer, $1 * 7919 % 100000
    }' |
    "$bin/kafka-console-producer.sh" --bootstrap-server "$BOOTSTRAP_SERVERS" --topic "$TOPIC" \
        --reader-property parse.key=true

# A line for each partition: topic:partition:offset. Its local log begins behind what only the tier has.
waited_s=0
while "$bin/kafka-get-offsets.sh" --bootstrap-server "$BOOTSTRAP_SERVERS" --topic "$TOPIC" --time earliest-local |
    grep -q ":0$"; do
    if [ "$waited_s" -ge "$wait_s_max" ]; then
        echo "fill: not in the tier after $wait_s_max s" >&2
        exit 1
    fi
    sleep 1
    waited_s=$((waited_s + 1))
done
echo "fill: $TOPIC is in the tier"

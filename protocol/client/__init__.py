"""One Kafka client without I/O: messages, settings and errors; a connection's state and sign-in; the view of the
cluster; questions, and conversations with the leaders of partitions. Shells: proxy.upstream (trio), table.brokers
(blocking)."""

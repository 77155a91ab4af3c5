"""One Kafka client without input or output: Tidegate's own questions to brokers, and signing in.

Read `messages` first; `sasl` signs in. Those who send and receive are `proxy.upstream` and `pipeline.brokers`.
"""

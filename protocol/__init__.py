"""The Kafka wire, sans-IO: bytes in, typed things out. Imports nothing of ours."""

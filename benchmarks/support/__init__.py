"""What the benchmarks share: a Kafka at full speed with Tidegate before it, the clients, and how sides are compared."""

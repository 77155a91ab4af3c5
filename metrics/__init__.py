"""KIP-405 metric names in one table, the registry and its probes. Imports nothing of ours."""

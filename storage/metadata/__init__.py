"""Remote log metadata: serde, partitioner, catalog, the metadata topic."""

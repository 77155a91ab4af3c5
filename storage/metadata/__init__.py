"""Remote log metadata: records, states, overlap rules, the catalog, its snapshot, and the metadata topic.

Read `catalog` first; `partition_catalog` holds the rules (docs/kafka-tier.md#states).
"""

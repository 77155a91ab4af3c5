"""Remote log metadata: records, states, overlap rules, the catalog, its snapshot, and the metadata topic.

Read `catalog` first; `state_machine` and `lineage` hold the rules (docs/kafka-tier.md#states).
"""

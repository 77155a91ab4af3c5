"""The five index objects of a remote log segment (docs/kafka-tier.md#indexes). Read `offset_index` first."""

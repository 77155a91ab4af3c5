"""Standalone mode: segments out of brokers that have no remote storage, retention, deletion.

    copier            the partitions that a group's member has, each a task; topics that are gone
    partition_copier  one partition: resume, tidy, fetch and stage, copy, delete what is old
    ledger            what the metadata topic says of it, and why two owners at once do no harm
    segment_copy      a segment's life, as steps without input or output; `steps` does them
    staging           batches into segment files with their five indexes (storage.indexes, `producers`)
    retention         what is too old, as a function of values
    metadata_feed     the metadata topic, read and written for all partitions

Read `partition_copier` first, then `ledger`.
"""

"""Object formats behind RemoteStorageManager: where a segment's objects are and how they are encoded.

Read `local_tiered_storage` first, the simplest; `aiven` is the one that most clusters have.
"""

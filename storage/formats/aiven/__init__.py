"""The format of Aiven's tiered-storage plug-in, "manifest version 1" (docs/formats.md#aiven).

Read `manager` first: the format behind RemoteStorageManager. The others are its parts, most of them pure codecs.
"""

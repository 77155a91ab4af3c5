"""The format of Aiven's tiered-storage plug-in, "manifest version 1" (spec/aiven-format.md).

`manager` is the format behind RemoteStorageManager; the others are its parts, most of them pure codecs.
"""

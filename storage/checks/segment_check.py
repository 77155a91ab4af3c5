"""One segment: its objects, manifest, indexes and, if wanted, every batch of its log.

Memory: one piece of the log, what the format's decoder holds (a chunk), and the indexes, whatever the segment's size.

An object is reported once: what is absent or of a wrong size is not read; a manifest that is wrong leads to nothing.
"""

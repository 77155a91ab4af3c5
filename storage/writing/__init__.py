"""What writes the tier: metadata records, and a segment's files.

It knows the readers' layouts. Of the readers only KIP-405's two seams know it, since they write as well.
"""

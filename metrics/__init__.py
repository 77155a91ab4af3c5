"""KIP-405's metric names and our own, the registry, the meters and the exposition. It imports nothing of ours.

Read `kip405` first: the table of names.
"""

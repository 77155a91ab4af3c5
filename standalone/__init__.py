"""A tier of our own, for brokers without remote storage. Nothing below it imports it; `tidegate` puts it in its place.

    copier    segments out of the brokers, retention, deletion
    serving   what clients are answered: log starts, offsets, leader epochs, DeleteRecords
    takeover  what a broker must know before it owns the tier itself

Read `copier` first.
"""

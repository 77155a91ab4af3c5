"""ListOffsets: which questions are the tier's, and look-ups by time. Read `service` first.

Where the tier is our own (mode standalone), `own_list_offsets` is in its place, and there are `leader_epochs` and
`delete_records` too. What they have in common is in `tier_offsets`; where the tier's logs start, in `log_starts`.
"""

"""What clients of a tier of our own are answered where the broker knows less than it. Read `owner` first, which
implements `proxy.tier_owner`, then `log_starts`.

`answer_edits` is for what brokers answer to a Fetch. `own_list_offsets`, `leader_epochs` and `delete_records` are
exchanges; what they have in common is in `tier_offsets`.
"""

"""The way of a request, laid out as it travels: `connection`, then `fetch` or `offsets`, then `upstream`.

Read `connection` first, then `fetch`. What depends on whose the tier is, `tier_owner` says.
"""

"""One client connection: accepting it, its slot and its account, its frames, and what passes unchanged.

Read `connection` first: the two loops and their rules. `router` decides what happens to a request.
"""

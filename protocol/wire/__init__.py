"""What all messages have in common: frames, headers, encodings, versions, addresses; and messages that only pass.

Read `framing` first.
"""

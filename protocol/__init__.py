"""The Kafka wire without input or output: bytes in, typed values out. It imports nothing of ours.

The folders follow a message: `wire` is common to all, `fetch` is Fetch, `client` asks questions of our own. Read
`record_batches` for what a log is made of.
"""

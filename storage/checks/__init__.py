"""Checks of a tier against its metadata: what an audit and `tidegate verify` run. Synchronous; they only read."""

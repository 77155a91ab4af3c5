"""Fetch: requests, responses, sessions, and responses that are too large to hold. Read `messages` first."""

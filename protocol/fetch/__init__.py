"""Fetch: requests, responses, sessions."""

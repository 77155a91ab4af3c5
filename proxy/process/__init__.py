"""The process around the connections: its parts put together, readiness, reload, logs, the admin listener."""

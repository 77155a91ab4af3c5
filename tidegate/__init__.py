"""The process around the connections: start and stop, readiness, reload, logs, the admin listener.

Read `life_cycle` first.
"""

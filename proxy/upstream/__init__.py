"""Tidegate's own connections to the brokers: transports, sign-in, the cluster, questions, the metadata topic.

Read `cluster` first.
"""

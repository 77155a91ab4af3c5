"""Tidegate's own connections to the brokers: transports, sign-in, cluster view, frontier questions, metadata topic."""

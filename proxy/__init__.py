"""The trio application: connections, routing, exchanges, the command line."""

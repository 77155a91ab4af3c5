"""What clients of a tier of our own are answered where the broker knows less than it. Read `log_starts` first."""

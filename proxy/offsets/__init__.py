"""ListOffsets: which questions are the tier's, and look-ups by time. Read `service` first."""

"""What there is to see of a running Tidegate: `collect` asks, `model` says what it amounts to, `page` shows it."""

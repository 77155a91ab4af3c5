"""A Fetch that has partitions in the tier. Read `exchange` first: it tells what happens to it from end to end."""

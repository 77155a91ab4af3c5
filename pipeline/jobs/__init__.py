"""Jobs on Spark over a tier: each file named *_command is one of `tidegate spark`. Read `backfill` first."""

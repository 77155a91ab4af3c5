"""Jobs on Spark over a tier: each file named *_command is one of `python -m pipeline`. Read `backfill` first."""

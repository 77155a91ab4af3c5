"""What `tidegate` does besides `serve`: each command is a file, `check` three. None of them needs a `serve` that runs.

All of them print through `report`, so that findings, tables and `--json` look alike. Read `check` first.
"""

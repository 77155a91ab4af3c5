"""The package for Spark, built once for all tests, and a user's own modules beside it."""

from pathlib import Path

USERS_NAMES = ("metrics", "pipeline", "protocol", "proxy", "storage", "table")
"""What our packages are called; users have modules of these names too."""


def users_modules(folder: Path) -> Path:
    """A folder with a user's modules of our names; each says whose it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in USERS_NAMES:
        (folder / f"{name}.py").write_text('WHOSE = "the user\'s"\n')
    return folder

"""`tidegate files DIR`: what the wheel brings beside the program, laid out as it would be below /usr/local."""

import sys
from pathlib import Path
from typing import TextIO

from tidegate import exit_codes

BROUGHT = Path(__file__).parents[1] / "files"


def run(folder: Path, out: TextIO) -> int:
    """Write each file over what is there, and print where it is; the exit code."""
    if not BROUGHT.is_dir():
        print("tidegate: it lays out what an installed wheel brings; a checkout has deploy/", file=sys.stderr)
        return exit_codes.USAGE
    try:
        for path in sorted(each for each in BROUGHT.rglob("*") if each.is_file()):
            place = folder / path.relative_to(BROUGHT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
            print(place, file=out)
    except OSError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return exit_codes.FOUND_WRONG
    return exit_codes.DONE

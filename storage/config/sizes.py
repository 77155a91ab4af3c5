"""Sizes in bytes: how they are written, and how they are shown.

A size is plain bytes (`1048576`) or a number with a binary unit (`64 KiB`, `1.5 GiB`). Decimal and one-letter units
are refused: `1G` means a different number to different programs, and a budget must not.
"""

import re
from fractions import Fraction
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

UNITS: Final = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """The number of bytes that a text means.

    Raises ValueError for anything but digits with an optional binary unit, and for a fraction of a byte.
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else next((u for u in UNITS if u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ValueError("must be bytes or a number with B, KiB, MiB, GiB or TiB")
    size_bytes = Fraction(match[1]) * UNITS[unit]
    if size_bytes.denominator != 1:
        raise ValueError("must be a whole number of bytes")
    return int(size_bytes)


def format_size(size_bytes: int) -> str:
    """The shortest exact text for a size: the largest unit that divides it, or else plain bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit] and size_bytes % UNITS[unit] == 0:
            return f"{size_bytes // UNITS[unit]} {unit}"
    return str(size_bytes)

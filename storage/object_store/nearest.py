"""Which right name somebody may have meant by a wrong one."""

import difflib
from collections.abc import Iterable
from typing import Final

PART_NEAR: Final = 0.6
"""For a dotted name's parts: `oss` is not meant for `s3`, nor `hdfs` for `gcs`, however much else is alike."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known dotted name that is most like it, each of whose parts, from the last one on, is like that of `name`."""
    candidates = [each for each in known if all(map(_is_near, reversed(name.split(".")), reversed(each.split("."))))]
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)), None)


def which_is_known(name: str, known: Iterable[str]) -> str:
    """For a message: the nearest one, or all."""
    names = [*known]
    near = nearest(name, names)
    return f"it knows {', '.join(names)}" if near is None else f"the nearest one is {near}"


def _is_near(part: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, part, other).ratio() >= PART_NEAR

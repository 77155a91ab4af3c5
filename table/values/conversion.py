"""From decoded values to one Arrow array, with a reason for each value that cannot be.

Values are taken all at once, as Arrow does that quickly. Only when that fails are they taken in halves, until the bad
ones stand alone: one bad value of a thousand costs ten more tries.

What a library raises for hostile bytes is not to be foreseen, so everything it raises is a reason, and no more than
that: a record that cannot be decoded never fails a task.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

REASON_CHARACTERS_MAX: Final = 300

Places: TypeAlias = npt.NDArray[np.int64]
Converted: TypeAlias = tuple[pa.Array, dict[int, str]]
"""The array, null where there is a reason; and reasons by place."""


class SchemaError(ValueError):
    """A schema cannot be used; the message says why, as the end of a sentence."""


class UndecodableError(Exception):
    """One value cannot be decoded; the message is the reason."""


def reason_of(error: BaseException) -> str:
    """Return what is said of a value."""
    said = str(error) if isinstance(error, UndecodableError) else f"{type(error).__name__}: {error}"
    said = " ".join(said.split())
    return said if len(said) <= REASON_CHARACTERS_MAX else said[:REASON_CHARACTERS_MAX] + "…"


def replaced(array: pa.Array, places: Sequence[int] | Places, by: Converted) -> Converted:
    """The array with other values at some places, and their reasons."""
    others, reasons = by
    order = np.arange(len(array))
    order[places] = np.arange(len(array), len(array) + len(others))
    array = pa.concat_arrays([array, others]).take(pa.array(order))
    return array, {int(places[place]): reason for place, reason in reasons.items()}


def convert(
    values: Sequence[bytes], decode: Callable[[bytes], Any], to_array: Callable[[Sequence[Any]], pa.Array]
) -> Converted:
    """Every value decoded, and made an array of.

    Args:
        to_array: makes an array of decoded values and of None; raises whatever it likes for a value that is none.
    """
    decoded: list[Any] = []
    reasons: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            decoded.append(decode(value))
        except Exception as error:
            decoded.append(None)
            reasons[place] = reason_of(error)
    try:
        return to_array(decoded), reasons
    except Exception:
        _drop_bad(decoded, 0, len(decoded), to_array, reasons)
        return to_array(decoded), reasons


def _drop_bad(
    decoded: list[Any], start: int, end: int, to_array: Callable[[Sequence[Any]], pa.Array], reasons: dict[int, str]
) -> None:
    """Make None of the values in [start, end) that an array cannot have."""
    try:
        to_array(decoded[start:end])
    except Exception as error:
        if end - start == 1:
            decoded[start] = None
            reasons[start] = reason_of(error)
            return
        middle = (start + end) // 2
        _drop_bad(decoded, start, middle, to_array, reasons)
        _drop_bad(decoded, middle, end, to_array, reasons)

"""How much a trigger of a stream takes, in the words of Spark from 4.2 on (pyspark.sql.streaming.datasource).

Before 4.2 there are no such words: Spark says no limit, and the source's own option is all there is.
"""

import importlib
import importlib.util
from types import ModuleType


def default_read_limit(bytes_max: int | None) -> object:
    """Return the limit of the source's own option; None: no limit. Only for Spark from 4.2 on."""
    words = _words()
    assert words is not None
    return words.ReadAllAvailable() if bytes_max is None else words.ReadMaxBytes(bytes_max)


def limited_bytes(limit: object, option_bytes_max: int | None) -> int | None:
    """Return the bytes of log that a trigger may take; None: all.

    Args:
        limit: Spark's, which goes before the option: a trigger that wants all says so. None: it has not said any.
    """
    if limit is None:
        return option_bytes_max
    found = getattr(limit, "max_bytes", None)  # no other limit is ours to give, and Spark has none of its own but all
    return found if found is None else int(found)


def register_available_now(reader: type) -> None:
    """From now on Spark takes readers of this class for ones with `prepareForTriggerAvailableNow`, if it knows that."""
    words = _words()
    if words is not None:
        words.SupportsTriggerAvailableNow.register(reader)


def _words() -> ModuleType | None:
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        return None
    return importlib.import_module("pyspark.sql.streaming.datasource")

"""A map that is never larger than it was made to be."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """What was set or used longest ago goes first."""

    def __init__(self, entries_max: int) -> None:
        super().__init__()
        self.entries_max = entries_max

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.entries_max:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Return what is set, which counts as the newest from now on."""
        if (value := self.get(key)) is not None:
            self.move_to_end(key)
        return value

"""The one error of this package."""

from collections.abc import Iterable


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds every one found, one line each, without secrets."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__("\n".join(self.problems))

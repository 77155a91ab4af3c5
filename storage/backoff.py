"""How long to wait before the next attempt."""

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """`next_delay_s` doubles from `first_s` up to `max_s`; each is spread by ± `jitter` of itself, so that the readers
    of fifty partitions that lost one broker do not come back in step."""

    first_s: float = 0.1
    max_s: float = 10.0
    jitter: float = 0.2
    source: random.Random = field(default_factory=random.Random)
    _exponent: int = 0

    def next_delay_s(self) -> float:
        """Seconds to wait before the next attempt."""
        delay_s = min(self.first_s * 2.0**self._exponent, self.max_s)
        if delay_s < self.max_s:
            self._exponent += 1
        return delay_s * self.source.uniform(1 - self.jitter, 1 + self.jitter)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._exponent = 0

"""Which clients a worker may have died of, and where they may go.

A client whose connection ended with its worker connects again, and sends the same request again. If that request has
killed the worker, it must not reach the next one. Nobody knows which request it was: known are the addresses of the
clients that had a connection there, be they one client each or many behind one NAT.

Rule 1. They are the worker's suspects, and go to that worker and no other until they are cleared; while it is down they
        wait. So one bad request that a client repeats over new connections kills no second worker. Connections that
        they have elsewhere stay.
Rule 2. Suspects are tried. The worker gets them as soon as it is up again, and those that it has served for TRIAL_S are
        cleared. If it dies before, those of them that were there are its suspects now, and all others are cleared. From
        then on it gets half of them, the other half after TRIAL_S, and nobody else while another worker can take them.
        So of n addresses, one is left after log2(n) deaths.
Rule 3. The one that is left stays with its worker, which is given it after each of its starts.
Rule 4. An address that had connections on two workers that died is the latter's suspect.
Rule 5. A death without connections says nothing of suspects: they stay. A worker that rests has none.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

TRIAL_S: Final = 15.0
"""Clients send their first requests within a second; a consumer fetches after it has joined its group, 3 s or so."""


@dataclass(slots=True)
class _Trial:
    """A worker's suspects: those of the first group are let in, once it is up. `ends_at_s`: None while it is not."""

    groups: list[frozenset[str]]
    is_alone: bool
    ends_at_s: float | None = None


class Suspects:
    """Client addresses by the worker that they are tried on."""

    def __init__(self) -> None:
        self._trials: dict[int, _Trial] = {}

    def of(self, worker: int) -> list[str]:
        """Return the worker's suspects."""
        trial = self._trials.get(worker)
        return [] if trial is None else sorted(client for group in trial.groups for client in group)

    def workers_for(self, client: str, free: AbstractSet[int]) -> frozenset[int]:
        """Return which of the free workers may get a connection of this address; none: it waits."""
        for worker, trial in self._trials.items():
            if any(client in group for group in trial.groups):
                return frozenset({worker}) & free if client in trial.groups[0] else frozenset()
        alone = {worker for worker, trial in self._trials.items() if trial.is_alone}
        return frozenset(free - alone or free)

    def on_death(self, worker: int, clients: Collection[str]) -> None:
        """The worker has died while it had connections of these addresses."""
        before = self._trials.get(worker)
        if not clients:
            if before is not None:
                before.ends_at_s = None
            return
        found = set(clients)
        if (
            before is not None and before.is_alone and before.groups
        ):  # those that were cleared may have connections there still
            found = found & before.groups[0] or found
        for trial in self._trials.values():
            trial.groups = [left for group in trial.groups if (left := group - found)]
        ordered, middle = sorted(found), len(found) if before is None else (len(found) + 1) // 2
        groups = [frozenset(half) for half in (ordered[:middle], ordered[middle:]) if half]
        self._trials[worker] = _Trial(groups, is_alone=before is not None)

    def on_up(self, worker: int, now_s: float) -> None:
        """The worker takes connections again."""
        if worker in self._trials:
            self._trials[worker].ends_at_s = now_s + TRIAL_S

    def on_time(self, worker: int, now_s: float) -> bool:
        """Clear those that the worker has served for long enough; return whether somebody may go elsewhere now."""
        trial = self._trials.get(worker)
        if trial is None or trial.ends_at_s is None or now_s < trial.ends_at_s:
            return False
        trial.groups, trial.ends_at_s = trial.groups[1:], now_s + TRIAL_S
        if not trial.groups:
            self.clear(worker)
        return True

    def clear(self, worker: int) -> None:
        """The worker has no suspects any more."""
        self._trials.pop(worker, None)

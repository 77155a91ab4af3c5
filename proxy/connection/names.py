"""Who is behind a connection, for people: its address, client id and sign-in name, and the groups of its application.

Rule 1. A client's own words are left out if they are longer than TEXT_CHARS_MAX or not printable.
Rule 2. Clients name their group to its coordinator, mostly on another connection than the one that reads. So groups
        are joined by host, sign-in name and client id, and name what probably reads, no more.
Rule 3. What a connection has told is kept for KEPT_S after its end.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from protocol.sign_in import SignIn
from protocol.sign_in_name import SignInName
from protocol.wire.group_id import peek_group

GROUPS_MAX: Final = 10_000
"""Connections whose group is remembered, closed ones among them; further ones tell none."""

TEXT_CHARS_MAX: Final = 256

KEPT_S: Final = 120.0
"""Until the audit has written what was read in the last minute."""


class Application(NamedTuple):
    """What its connections have in common."""

    host: str
    signed_in_as: SignInName | None
    client_id: str | None


class Groups:
    """All connections'. Owned by the trio thread, but for `of`. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[Application, dict[str, int]] = {}
        """Each application's groups, by how many connections tell them."""
        self._told = 0
        self._left: deque[tuple[float, Application, str]] = deque()

    def of(self, application: Application) -> tuple[str, ...]:
        """Return what the application's connections tell. From any thread."""
        return tuple(self._groups.get(application) or ())  # in one step, as the dictionary may change meanwhile

    def all(self) -> list[tuple[Application, tuple[str, ...]]]:
        """Every application that tells a group, with its groups."""
        self._forget_old()
        return [(application, tuple(groups)) for application, groups in self._groups.items()]

    def tell(self, application: Application, group: str) -> bool:
        """A connection belongs to this group; False if there are too many. `leave` must follow if not."""
        self._forget_old()
        if self._told >= GROUPS_MAX:
            return False
        self._told += 1
        groups = self._groups.setdefault(application, {})
        groups[group] = groups.get(group, 0) + 1
        return True

    def leave(self, application: Application, group: str) -> None:
        """The connection has ended."""
        self._left.append((self._clock(), application, group))

    def _forget_old(self) -> None:
        until_s = self._clock() - KEPT_S
        while self._left and self._left[0][0] <= until_s:
            _, application, group = self._left.popleft()
            self._told -= 1
            groups = self._groups[application]
            groups[group] -= 1
            if not groups[group]:
                del groups[group]
            if not groups:
                del self._groups[application]


class ClientName:
    """One connection's. Every method returns at once, and raises for no byte of a peer's.

    Args:
        groups: None: nobody wants to know more than the address.
        address: host and port; "" in tests.
    """

    def __init__(self, groups: Groups | None = None, address: str = "", sign_in: SignIn | None = None) -> None:
        self.address = address
        self.client_id: str | None = None
        """As its last request that was looked at says."""
        self._groups = groups
        self._sign_in = sign_in
        self._raw_client_id: str | None = None
        self._told: tuple[Application, str] | None = None

    def __str__(self) -> str:
        return self.address

    @property
    def signed_in_as(self) -> SignInName | None:
        return None if self._sign_in is None else self._sign_in.signed_in_as

    @property
    def application(self) -> Application:
        return Application(host_of(self.address), self.signed_in_as, self.client_id)

    @property
    def wants_group(self) -> bool:
        """Return whether the connection's group is not known yet, and somebody wants to know it."""
        return self._groups is not None and self._told is None

    def calls_itself(self, client_id: str | None) -> None:
        """A request of the client has this client id."""
        if self._groups is not None and client_id != self._raw_client_id:
            self._raw_client_id, self.client_id = client_id, shown(client_id)

    def on_group_request(self, head: memoryview) -> None:
        """A client that has signed in sends this request, whose api is of `GROUP_APIS`; its first bytes."""
        named = peek_group(head)
        group = shown(None if named is None else named.group)
        if named is None or group is None or self._groups is None:
            return
        self.calls_itself(named.client_id)
        if self._groups.tell(self.application, group):
            self._told = self.application, group

    def close(self) -> None:
        """The connection has ended."""
        if self._told is not None and self._groups is not None:
            self._groups.leave(*self._told)
            self._told = None

    def fields(self, as_whom: SignInName | None = None) -> dict[str, str]:
        """For log lines: what is known. `as_whom`: it has tried to sign in as, in place of whom it has signed in as."""
        name = None if (signed := as_whom or self.signed_in_as) is None else signed.name
        named = {"client": self.address, "client_id": self.client_id, "sign_in_name": name}
        return {key: value for key, value in named.items() if value is not None}

    def row(self) -> dict[str, Any]:
        """For `/streams` and the status document; `groups` are those that probably read here."""
        groups = () if self._groups is None else self._groups.of(self.application)
        return {"client_id": None, "sign_in_name": None, **self.fields(), "groups": [*groups]}


def host_of(address: str) -> str:
    """Return the host of `host:port`."""
    return address.rpartition(":")[0] or address


def shown(text: str | None) -> str | None:
    """Rule 1."""
    return text if text is not None and len(text) <= TEXT_CHARS_MAX and text.isprintable() else None


# Where several workers serve, one may have a group's connection, and another what it reads.


def group_rows(groups: Groups) -> list[list[Any]]:
    """For the supervisor: host, sign-in name, client id and groups of each application."""
    return [
        [host, None if signed is None else signed.name, client_id, [*names]]
        for (host, signed, client_id), names in groups.all()
    ]


def join_groups(rows: Iterable[Any], told: Iterable[list[Any]]) -> None:
    """Give each row that is made of `ClientName.row` the groups that any worker was told."""
    found: dict[tuple[str, str | None, str | None], dict[str, None]] = {}
    for host, name, client_id, groups in told:
        found.setdefault((host, name, client_id), {}).update(dict.fromkeys(groups))
    for row in rows:
        names: Mapping[str, None] = found.get((host_of(row["client"]), row["sign_in_name"], row["client_id"]), {})
        row["groups"] = [*dict.fromkeys([*row["groups"], *names])]

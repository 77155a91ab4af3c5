"""What the tables promise and this version does not do yet. Each entry goes when its feature comes.

A key whose feature is missing is parsed and checked like any other; only a value that would change what the process
does, and silently would not, is refused.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from storage.config.model import MetadataClientConfig, SaslCredentials, SaslMechanism, UpstreamConfig

C = TypeVar("C", contravariant=True)


@dataclass(frozen=True, slots=True)
class Later(Generic[C]):
    """A value that is refused: the key it stands under, what it would have done, and when a configuration holds it."""

    key: str
    feature: str
    applies: Callable[[C], bool]


class OwnIdentities(Protocol):
    """A configuration with Tidegate's two identities towards brokers."""

    @property
    def upstream(self) -> UpstreamConfig: ...

    @property
    def metadata_client(self) -> MetadataClientConfig: ...


def _is_oauthbearer(sasl: SaslCredentials | None) -> bool:
    return sasl is not None and sasl.mechanism is SaslMechanism.OAUTHBEARER


IDENTITIES_LATER: Final[tuple[Later[OwnIdentities], ...]] = (
    Later(
        "upstream.sasl.mechanism",
        "OAUTHBEARER as Tidegate's own identity",
        lambda config: _is_oauthbearer(config.upstream.security.sasl),
    ),
    Later(
        "remote.log.metadata.common.client.sasl.mechanism",
        "OAUTHBEARER as Tidegate's own identity",
        lambda config: (
            _is_oauthbearer(config.metadata_client.security.sasl) and not _is_oauthbearer(config.upstream.security.sasl)
        ),
    ),
)


def refusals(entries: Iterable[Later[C]], config: C) -> Iterator[str]:
    """One sentence for each value that this version would have to ignore."""
    for later in entries:
        if later.applies(config):
            yield f"{later.key}: {later.feature} comes in a later version; leave the key unset"

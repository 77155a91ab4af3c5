"""What the table promises and this version does not do yet. Each entry goes when its feature comes.

A key whose feature is missing is parsed and checked like any other; only a value that would change what the process
does, and silently would not, is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from proxy.config.model import Config, Mode, SaslCredentials, SaslMechanism


@dataclass(frozen=True, slots=True)
class Later:
    """A value that is refused: the key it stands under, what it would have done, and when a Config holds it."""

    key: str
    feature: str
    applies: Callable[[Config], bool]


def _is_oauthbearer(sasl: SaslCredentials | None) -> bool:
    return sasl is not None and sasl.mechanism is SaslMechanism.OAUTHBEARER


LATER: Final = (
    Later("mode", "standalone mode", lambda config: config.mode is Mode.STANDALONE),
    Later(
        "catalog.snapshot.path",
        "the catalog snapshot",
        # Beside `cache.path` it has a default, which nobody asked for.
        lambda config: (
            config.catalog.snapshot_path is not None
            and (config.cache.path is None or config.catalog.snapshot_path != config.cache.path / "catalog")
        ),
    ),
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


def refusals(config: Config) -> Iterator[str]:
    """One sentence for each value that this version would have to ignore."""
    for later in LATER:
        if later.applies(config):
            yield f"{later.key}: {later.feature} comes in a later version; leave the key unset"

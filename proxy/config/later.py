"""What the table of `tidegate serve` promises and this version does not do yet (see `storage.config.later`)."""

from typing import Final

from proxy.config.model import Config
from storage.config.later import IDENTITIES_LATER, Later
from storage.config.model import Mode

LATER: Final[tuple[Later[Config], ...]] = (
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
    *IDENTITIES_LATER,
)

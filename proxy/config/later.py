"""What the table of `tidegate serve` promises and this version does not do yet (see `storage.config.later`)."""

from typing import Final

from proxy.config.model import Config
from storage.config.later import IDENTITIES_LATER, Later
from storage.config.model import Mode

LATER: Final[tuple[Later[Config], ...]] = (
    Later("mode", "standalone mode", lambda config: config.mode is Mode.STANDALONE),
    *IDENTITIES_LATER,
)

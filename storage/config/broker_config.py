"""The tier's part of a broker's file: which of its keys are ours too.

- The two plug-in classes, the two impl prefixes, and the keys under those prefixes (`rsm.config.*`, `rlmm.config.*`
  unless renamed): a plug-in sees its keys with the prefix off, as in Kafka.
- `remote.log.metadata.{common.client,consumer,producer}.*`, the metadata topic's clients. Kafka reads them under the
  metadata prefix (TopicBasedRemoteLogMetadataManagerConfig); bare ones are taken too, and the prefixed ones win.
- Nothing else. `remote.log.manager.*` are the broker's own rates; what they limit is the broker's work.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from storage.config import tier_keys as keys

TABLE_KEYS_TAKEN: Final = (
    keys.STORAGE_MANAGER_CLASS,
    keys.STORAGE_MANAGER_PREFIX,
    keys.METADATA_MANAGER_CLASS,
    keys.METADATA_MANAGER_PREFIX,
)

COMMON_CLIENT_PREFIX: Final = "remote.log.metadata.common.client."
CONSUMER_PREFIX: Final = "remote.log.metadata.consumer."
PRODUCER_PREFIX: Final = "remote.log.metadata.producer."
CLIENT_PREFIXES: Final = (COMMON_CLIENT_PREFIX, CONSUMER_PREFIX, PRODUCER_PREFIX)


class Plugin(Enum):
    """Whose a free key is."""

    STORAGE = auto()
    METADATA = auto()


@dataclass(frozen=True, slots=True)
class PluginPrefixes:
    """What the plug-ins' keys begin with in one file."""

    storage: str
    metadata: str

    def owner(self, name: str) -> tuple[Plugin, str] | None:
        """Whose key a name is, and what that plug-in calls it; None: no plug-in's."""
        for plugin, prefix in ((Plugin.STORAGE, self.storage), (Plugin.METADATA, self.metadata)):
            if name.startswith(prefix) and len(name) > len(prefix):
                return plugin, name[len(prefix) :]
        if any(name.startswith(prefix) and len(name) > len(prefix) for prefix in CLIENT_PREFIXES):
            return Plugin.METADATA, name
        return None

    def spelled(self, plugin: Plugin, name: str) -> str:
        """The whole key of a plug-in's own name."""
        return (self.storage if plugin is Plugin.STORAGE else self.metadata) + name

    def is_bare(self, name: str) -> bool:
        """Whether a metadata client's key is written without the metadata prefix, so that the prefixed one wins."""
        owner = self.owner(name)
        return owner is not None and owner[1] == name

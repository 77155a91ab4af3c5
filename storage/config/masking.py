"""A value as it may be shown: no secret.

- A secret of the table, and a plug-in's key whose name sounds like one, is shown as `[hidden]`, Kafka's own mark.
- A plug-in's value that comes out of a provider is shown as it was written (`${file:…}`): what someone keeps outside
  the file is not for printing, whatever its key is called.
"""

import re
from typing import Any, Final

from storage.config.kinds import Key
from storage.config.providers import has_variable
from storage.config.sources import Setting

HIDDEN: Final = "[hidden]"

# Names of Kafka's clients, of Aiven's plugin and of the cloud SDKs behind it. Rather one too many than one too few.
_SECRET_WORDS = re.compile(
    r"password|passphrase|secret|jaas|token|credential|connection\.string|account\.key|access\.key|private|"
    r"keystore\.(key|certificate\.chain)|encryption\.key$",
    re.IGNORECASE,
)
# A path to a secret, a class or a switch is none.
_HARMLESS_END = re.compile(r"\.(file|path|location|class|type|enabled|default|id|mechanism)$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a plug-in's key must be taken for a secret."""
    return _SECRET_WORDS.search(name) is not None and _HARMLESS_END.search(name) is None


def masked(name: str, setting: Setting, key: Key[Any] | None) -> str:
    """A value as it may be shown. `key` is the table's entry, None for a plug-in's key."""
    if is_secret_name(name) if key is None else key.secret:
        return HIDDEN
    if setting.text is None or (key is None and has_variable(setting.raw)):
        return setting.raw
    return setting.text

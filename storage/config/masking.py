"""What of a configuration may be shown.

- A key of our own table says itself whether it is secret (`storage.config.keys`).
- A plug-in's key is shown only if its name is known to hold no secret: plug-ins invent keys, and a list of words that
  sound secret always lacks one (`pwd`, `sas`, `kek`).
- Whatever the key, a user in front of a host and a URL's query are left out: both carry passwords and signatures.
- A log line's fields are ours, so there the words are listed that sound secret (`sounds_secret`).
"""

import re
from typing import Final

HIDDEN: Final = "[hidden]"
"""Kafka's own mark in place of a secret."""

# Names of Kafka's clients, of Aiven's plugin and of the cloud SDKs behind it. Rather one too many than one too few.
_SECRET_WORDS = re.compile(
    r"passw(or)?d|passphrase|secret|credential|jaas|token|authorization|access_?key|account_?key|private|sas_?key"
    r"|shared_?key|encrypt(ion)?_key$|key_?pem|keystore_(key|certificate_chain)|ssl_key$|connection_?string|assertion"
    r"|apikey|customer_?key|(^|_)(pwd|sas|kek)(_|$)"
)
"""Words in the names of Kafka's, librdkafka's and the stores' settings that carry secrets. `api_key` is not one."""

_SHOWN_LAST_WORDS = (
    "algorithm|bytes|class|count|enabled|factor|file|format|interval|isr|mechanism|mode|ms|partitions|path|port"
    "|location|protocol|protocols|region|replicas|retries|root|second|size|threshold|timeout|type|username"
)
"""What a key that ends so holds is a number, a switch, a path or one of a few names."""
_SHOWN_NAMES = (
    r"(account|bucket|container|topic)\.name|acks|auto\.offset\.reset|bootstrap\.servers|broker\.id|cipher\.suites"
    r"|client\.(dns\.lookup|id|rack)|credentials\.default|custom\.metadata\.fields\.include|delete\.(enable|on\.close)"
    r"|dir|encryption\.key\.(pair\.id|pairs)|endpoint\.url|group\.id|key\.prefix(\.mask)?|proxy\.host"
)
_SHOWN = re.compile(rf"(^|\.)({_SHOWN_LAST_WORDS}|{_SHOWN_NAMES})$")

_USER_BEFORE_HOST = re.compile(r"(?<=//)[^/?#\s]*@|(?<![^,\s])[^/@:,\s]+:(?!//)[^@,\s]+@")
_QUERY = re.compile(r"(?<=://)([^?\s]*)\?[^\s,]*")


def sounds_secret(name: str) -> bool:
    """Return whether a log field's name has a word of secrets. Dots and hyphens count as underscores."""
    return _SECRET_WORDS.search(re.sub(r"[.\-]", "_", name.lower())) is not None


def may_be_shown(name: str) -> bool:
    """Return whether a plug-in's key, with its prefix or without, is known to hold no secret."""
    return _SHOWN.search(name.lower()) is not None


def without_credentials(text: str) -> str:
    """The text, HIDDEN in place of a user before a host and of a URL's query."""
    return _QUERY.sub(rf"\1?{HIDDEN}", _USER_BEFORE_HOST.sub(f"{HIDDEN}@", text))

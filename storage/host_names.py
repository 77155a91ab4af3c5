"""What may stand for a host in a configuration: a name or an address."""

import re
from typing import Final

HOST_LENGTH_MAX: Final = 253  # RFC 1035: the longest name in text form

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")


def parse_host(value: str) -> str:
    """Return a host name or an IP address, the brackets of IPv6 off. Raises ValueError."""
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if len(host) > HOST_LENGTH_MAX or not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)):
        raise ValueError("must be a host name or an IP address")
    return host

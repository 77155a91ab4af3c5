"""`tidegate health FILE`, the image's health check: asks `/livez` where FILE says that it is.

Whether the loop turns, and not readiness: a tier that is down is no reason to start again. Only `admin.listen`
counts here, in FILE and the environment; a mistake elsewhere, in a file changed since the start, changes nothing.
"""

import http.client
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from storage.config.model import HostPort
from storage.config.sources import ConfigError, Values, gather
from tidegate.config.model import SERVE_KEYS

TIMEOUT_S = 4.0
"""Below the image's own limit, so that what was wrong is printed."""


def main(file: Path, environ: Mapping[str, str]) -> int:
    """0 when `/livez` answered 200; otherwise 1, and why on standard output, which is what Docker keeps."""
    try:
        address = admin_address(file, environ)
    except ConfigError as error:
        print(error)
        return 1
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"{address}/livez: {error} (admin.listen of {file})")
        return 1
    finally:
        connection.close()
    print(f"{address}/livez: {status}")
    return 0 if status == http.HTTPStatus.OK else 1


def admin_address(path: Path, environ: Mapping[str, str]) -> HostPort:
    """Return where the admin listener is reached from this machine.

    Raises:
        ConfigError: FILE cannot be read.
    """
    problems: list[str] = []
    listen: HostPort = Values(SERVE_KEYS, gather(path, environ, SERVE_KEYS, problems), problems)["admin.listen"]
    wildcards = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
    try:
        host = str(ip_address(listen.host)) if listen.host else ""
    except ValueError:
        host = listen.host  # a name
    return HostPort(wildcards.get(host, host), listen.port)

"""boto3's client for one bucket: its connections. What it is told otherwise, test_s3.py sees in its requests."""

import socket
from urllib.parse import urlsplit

from storage.object_store.s3_client import OpenSockets
from tests.support.scripted_http import scripted_http


def test_a_connection_that_opens_while_the_store_is_closed_ends_too() -> None:
    with scripted_http() as http:
        sockets, address = OpenSockets(), urlsplit(http.endpoint_url)
        sockets.shut_down()
        with socket.create_connection((str(address.hostname), int(address.port or 0))) as opened:
            sockets.add(opened)
            assert opened.recv(1) == b""

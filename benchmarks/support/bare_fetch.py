"""A client that does nothing but Fetch: one request in flight, the answer received into one buffer and not decoded.

What it asks is learned beforehand, so that both sides are asked the same and the timed loop does no work of its own:
`learn_requests` walks the partitions once and notes where each answer of 1 MiB a partition ended.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from benchmarks.support.stage import Address
from protocol.api_01_fetch import FetchPartition, FetchRequest
from protocol.api_01_fetch_request import encode_request
from protocol.api_01_fetch_response import decode_response
from protocol.api_03_metadata import METADATA_TOPIC_ID_VERSION_MIN as _UNUSED

"""What every schema of kio's must hold, and what importing them costs: slow, as all of them are imported."""

import subprocess
import sys
from dataclasses import fields
from typing import Any

from kio.schema.index import api_key_map

from protocol.wire.addresses import carries_addresses
from protocol.wire.versions import NEWEST
from tests.support import kio_frames
from tests.support.cases import case


def test_no_other_response_of_kafka_names_a_host_and_an_int32_port() -> None:
    """A new API with addresses in it must not pass unseen when the schemas are renewed."""
    known_exceptions = {82}  # UpdateRaftVoter: spoken to controllers only
    for api_key in range(100):
        for api_version in kio_frames.versions_of(api_key):
            with case(api_key, api_version):
                names_brokers = _names_brokers(kio_frames.schema(api_key, api_version))
                assert names_brokers == (carries_addresses(api_key, api_version) or api_key in known_exceptions)


def _names_brokers(entity_type: Any) -> bool:
    by_name = {each.name: each for each in fields(entity_type)}
    if {"host", "port"} <= by_name.keys() and by_name["port"].metadata["kafka_type"] == "int32":
        return True
    nested = (kio_frames.nested_type(each) for each in by_name.values())
    return any(_names_brokers(each) for each in nested if each is not None)


def test_the_table_of_versions_is_kafkas_own_list() -> None:
    assert {api_key: kio_frames.versions_of(api_key)[-1] for api_key in api_key_map} == NEWEST


def test_importing_the_upstream_package_does_not_import_kio() -> None:
    code = (
        "import sys, proxy.upstream.cluster, proxy.upstream.metadata_topic;"
        "sys.exit(any(name.split('.')[0] == 'kio' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_preloading_imports_every_newest_schema() -> None:
    code = (
        "import sys; from protocol.client.messages import preload_schemas; preload_schemas();"
        "sys.exit('kio.schema.fetch.v18.response' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

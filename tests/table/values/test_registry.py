"""The registry's client, before a real registry and a guard who asks for names, fails, or is gone."""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from storage.config.model import ClientTls
from storage.config.schema_registry import SchemaRegistryConfig
from table.planning.request import OptionsError
from table.planning.value_options import ColumnOptions, ValueOptions
from table.values.avro import AvroSchema
from table.values.registry import TRIES_MAX, RegistryError, SchemaRegistry, UnknownSchemaError
from table.values.settled import settle, type_of
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.schema_registry import guarded_registry, schema_registry
from tests.support.sent import sent
from tools.demo.kafka_cluster import free_port

pytestmark = pytest.mark.needs("java", "schema-registry")

PASSWORD = "planted/registry+secret=77de68da"
ADDRESS = '{"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "zip", "type": "int"}]}'
ORDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "to", "type": "shop.Address"}]}'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as found:
        with SchemaRegistryClient({"url": found}) as client:
            client.register_schema("address", Schema(ADDRESS, "AVRO"))
            reference = SchemaReference("shop.Address", "address", 1)
            client.register_schema("a/b orders-value", Schema(ORDER, "AVRO", [reference]))
        yield found


def client_of(url: str, **config: Any) -> SchemaRegistry:
    return SchemaRegistry(SchemaRegistryConfig(url=url, **config), pause_factor_s=0.0)


def test_a_subjects_newest_schema_comes_with_what_it_refers_to(url: str) -> None:
    """Given a schema with a reference, when it is asked for by subject and by id, then both texts, and they fit."""
    found = client_of(url).of_subject("a/b orders-value")
    assert (found.kind, [name for name, _ in found.references]) == ("AVRO", ["shop.Address"])
    assert json.loads(found.text) == json.loads(ORDER)
    with SchemaRegistryClient({"url": url}) as theirs:
        known = theirs.get_latest_version("a/b orders-value").schema_id
    assert known is not None
    assert client_of(url).by_id(known) == found
    assert AvroSchema(found.text, found.references).type.field("to").type.num_fields == 1


def test_a_subjects_version_may_be_named(url: str) -> None:
    """Given a second version, when the first is asked for, then it comes, and an unknown one is a sentence."""
    with SchemaRegistryClient({"url": url}) as theirs:
        wider = ADDRESS.replace("]}", ', {"name": "city", "type": "string", "default": ""}]}')
        theirs.register_schema("versions-value", Schema(ADDRESS, "AVRO"))
        theirs.register_schema("versions-value", Schema(wider, "AVRO"))
    config = SchemaRegistryConfig(url=url)
    for version, count in ((None, 2), (2, 2), (1, 1)):
        column = ColumnOptions(column="value", format="avro", version=version)
        (settled,) = settle(ValueOptions(columns=(column,)), ["versions"], config)
        assert type_of(settled).num_fields == count
    unknown = ValueOptions(columns=(ColumnOptions(column="value", format="avro", version=3),))
    with pytest.raises(OptionsError, match=r"versions-value has no version 3, or is no subject, of the"):
        settle(unknown, ["versions"], config)


def test_what_is_not_there_is_an_error_of_its_own(url: str) -> None:
    with pytest.raises(UnknownSchemaError, match="has no subjects/nobody"):
        client_of(url).of_subject("nobody")
    with pytest.raises(UnknownSchemaError, match="has no schemas/ids/99999"):
        client_of(url).by_id(99_999)


@for_each("kind", ["basic", "bearer"])
def test_who_asks_is_told_to_the_registry_alone(url: str, kind: str) -> None:
    sent = f"Bearer {PASSWORD}"
    config = {"token": PASSWORD}
    if kind == "basic":
        config = {"user_info": f"me:{PASSWORD}"}
        sent = f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"
    with guarded_registry(url, authorization=sent) as guard:
        assert client_of(guard.url, **config).of_subject("address").kind == "AVRO"
        with pytest.raises(RegistryError, match=r"refuses our credentials \(HTTP 401\)") as caught:
            client_of(guard.url, token="wrong").of_subject("address")
    assert "wrong" not in str(caught.value)
    assert PASSWORD not in repr(SchemaRegistryConfig(url=url, user_info=PASSWORD, token=PASSWORD))


def test_tls_with_a_ca_and_a_clients_certificate(url: str, tmp_path: Path) -> None:
    """Given a registry that asks for a certificate, when its CA is known and ours is shown, then it answers; and not
    without either. What is needed travels pickled."""
    certificate, key = server_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    own: dict[str, Any] = {"certificate_chain_pem": certificate.read_bytes(), "private_key_pem": key.read_bytes()}
    with guarded_registry(url, tls=context) as guard:
        config = SchemaRegistryConfig(url=guard.url, tls=ClientTls(ca_certificates_pem=certificate.read_bytes(), **own))
        assert SchemaRegistry(sent(config)).of_subject("address").kind == "AVRO"  # as Spark sends it
        for tls in (ClientTls(**own), ClientTls(ca_certificates_pem=certificate.read_bytes())):
            with pytest.raises(RegistryError, match="does not answer"):
                client_of(guard.url, tls=tls).of_subject("address")


def test_a_registry_that_fails_for_a_while_is_asked_again(url: str) -> None:
    with guarded_registry(url) as guard:
        guard.failures += [503, 429, 500]
        assert client_of(guard.url).of_subject("address").kind == "AVRO"
        guard.failures += [503] * TRIES_MAX
        with pytest.raises(RegistryError, match="HTTP 503"):
            client_of(guard.url).of_subject("address")
        assert guard.failures == []


def test_a_registry_that_is_gone_or_none_is_said_in_a_sentence(url: str) -> None:
    with pytest.raises(RegistryError, match=r"at http://127\.0\.0\.1:\d+/x does not answer: .*refused"):
        client_of(f"http://127.0.0.1:{free_port()}/x").of_subject("address")
    with pytest.raises(RegistryError, match="is this the address of its REST interface"):
        client_of(url.removesuffix("/apis/ccompat/v7")).of_subject("address")

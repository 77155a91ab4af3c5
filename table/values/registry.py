"""Asks a schema registry, by the REST interface that Confluent's has and others (Apicurio, Karapace, Redpanda) share.

Rules:
1. A registry that does not answer, or not now (429, 5xx), is asked again with growing pauses, then it is a
   RegistryError: the task fails, and Spark runs it again. So does one that refuses our credentials.
2. What the registry says is not there is an UnknownSchemaError, which concerns one record's schema only.
3. No answer is larger than ANSWER_BYTES_MAX, no schema has more than REFERENCES_MAX others behind it.
4. No message and no repr has a credential. The credentials are sent to the registry's own address: redirects are not
   followed.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import urllib3

from storage.config.schema_registry import SchemaRegistryConfig
from storage.config.ssl_contexts import client_ssl_context
from storage.errors import RemoteStorageError
from table.values.conversion import SchemaError

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""A schema of a megabyte is a large one already; Protobuf files with all their comments come close."""
REFERENCES_MAX: Final = 500
TRIES_MAX: Final = 6
PAUSE_FACTOR_S: Final = 0.2
"""Pauses of 0, 0.4, 0.8 … s: some six seconds in all."""
TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=20.0)
_NOT_NOW: Final = (408, 429, 500, 502, 503, 504)


class RegistryError(RemoteStorageError):
    """The registry does not answer, or refuses our credentials."""


class UnknownSchemaError(SchemaError):
    """The registry has no such schema."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as it was registered.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        references: names and texts of all that it refers to, what is referred to before what refers to it.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaRegistry:
    """One registry. Used by one thread at a time."""

    def __init__(self, config: SchemaRegistryConfig, *, pause_factor_s: float = PAUSE_FACTOR_S) -> None:
        assert config.url is not None
        self._url = config.url
        # Where it is, for messages: an address may have a path, and should have no user.
        parts = urlsplit(config.url)
        self.name = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "User-Agent": "tidegate"}
        if config.user_info is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(config.user_info.encode()).decode()}"
        elif config.token is not None:
            self._headers["Authorization"] = f"Bearer {config.token}"
        retries = urllib3.Retry(
            total=TRIES_MAX - 1,
            redirect=0,
            status_forcelist=_NOT_NOW,
            allowed_methods=["GET"],
            backoff_factor=pause_factor_s,
            raise_on_status=False,
            raise_on_redirect=False,
        )
        is_https = config.url.startswith("https:")
        self._pool = urllib3.PoolManager(
            retries=retries, timeout=TIMEOUT, ssl_context=client_ssl_context(config.tls) if is_https else None
        )

    def close(self) -> None:
        """Close what is open."""
        self._pool.clear()

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """The schema that a header names.

        Raises:
            UnknownSchemaError: there is none.
            RegistryError: see there.
        """
        return self._with_references(self._get(f"/schemas/ids/{schema_id}"), f"schema {schema_id}")

    def of_subject(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A subject's schema of that version; None: the newest. Raises as `by_id`."""
        path = _version_path(subject, "latest" if version is None else version)
        return self._with_references(self._get(path), f"subject {subject}")

    def _with_references(self, answer: Mapping[str, Any], what: str) -> RegisteredSchema:
        found: dict[str, str] = {}
        self._add_references(answer, found, what, set())
        text = answer.get("schema")
        if not isinstance(text, str):
            raise RegistryError(f"the schema registry at {self.name} gives no text for {what}")
        return RegisteredSchema(str(answer.get("schemaType") or "AVRO").upper(), text, tuple(found.items()))

    def _add_references(self, answer: Mapping[str, Any], found: dict[str, str], what: str, begun: set[str]) -> None:
        for reference in answer.get("references") or ():
            name, subject, version = (reference.get(key) for key in ("name", "subject", "version"))
            if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
                raise RegistryError(f"the schema registry at {self.name} gives a reference of {what} without a name")
            if name in begun:
                continue
            begun.add(name)
            if len(begun) > REFERENCES_MAX:
                raise SchemaError(f"has more than {REFERENCES_MAX} references")
            referred = self._get(_version_path(subject, version))
            self._add_references(referred, found, f"subject {subject}", begun)
            text = referred.get("schema")
            if not isinstance(text, str):
                raise RegistryError(f"the schema registry at {self.name} gives no text for subject {subject}")
            found[name] = text

    def _get(self, path: str) -> Mapping[str, Any]:
        # Protobuf files come ready to use from registries that know this, and as text from the others.
        url = f"{self._url}{path}?format=serialized"
        try:
            response = self._pool.request("GET", url, headers=self._headers, preload_content=False, redirect=False)
            try:
                body = response.read(ANSWER_BYTES_MAX + 1)
            finally:
                response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise RegistryError(f"the schema registry at {self.name} does not answer: {_cause(error)}") from error
        return self._checked(response.status, body, path)

    def _checked(self, status: int, body: bytes, path: str) -> Mapping[str, Any]:
        if status in (401, 403):
            raise RegistryError(
                f"the schema registry at {self.name} refuses our credentials (HTTP {status}): see schema.registry.* in "
                "the properties file"
            )
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryError(f"the schema registry at {self.name} gives more than {ANSWER_BYTES_MAX} bytes: {path}")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        is_answer = isinstance(answer, dict)
        if status == 404 and is_answer and str(answer.get("error_code", "")).startswith("404"):
            raise UnknownSchemaError(f"the schema registry at {self.name} has no {path.removeprefix('/')}")
        if status != 200 or not is_answer:
            raise RegistryError(
                f"the schema registry at {self.name} gives no schema but HTTP {status}: is this the address of its "
                "REST interface?"
            )
        found: Mapping[str, Any] = answer
        return found


def _version_path(subject: str, version: int | str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{version}"


def _cause(error: BaseException) -> str:
    """The sentence of what is behind a library's errors, without their addresses and objects."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _cause(reason)
    said = str(error)
    return said.partition(">: ")[2] or said

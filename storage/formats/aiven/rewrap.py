"""Manifests whose data keys another pair wrapped, written again under the active one
(docs/operate/secure.md#rotating-keys).

Only `dataKey` changes: chunks, indexes and everything else in the manifest stay, so readers that hold an old manifest
go on, and the two pairs may be mixed as long as the old one is configured. One put replaces a manifest whole, and what
is under the active pair already is left alone: so a run that was ended, however, is taken up by the next one.
"""

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RemoteStorageError
from storage.formats.aiven.encoding import encode_json
from storage.formats.aiven.key_pairs import KeyRing
from storage.formats.aiven.manifest import MANIFEST_BYTES_MAX, decode_manifest
from storage.formats.aiven.object_keys import ObjectSuffix, parse_object_key
from storage.object_store.object_store import ObjectStore, read_whole
from storage.object_store.retries import Wait, call_with_retries, wait_in_thread


class RewrapOutcome(enum.Enum):
    """What became of a manifest."""

    REWRAPPED = "rewrapped"
    """Or would have been, in a dry run."""
    CURRENT = "already under the active key pair"
    NOT_ENCRYPTED = "not encrypted"
    GONE = "deleted meanwhile"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RewrapResult:
    """What became of one manifest. `name`: its key without the prefix. `problem`: why it failed, None otherwise."""

    name: str
    outcome: RewrapOutcome
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrap:
    """All manifests below a prefix."""

    store: ObjectStore
    prefix: str
    key_ring: KeyRing
    wait: Wait = wait_in_thread

    def run(self, *, writes: bool, after: str = "") -> Iterator[RewrapResult]:
        """Each manifest in ascending order of name, when it is done; the caller sets the pace.

        Args:
            writes: False: a dry run, which unwraps every data key and writes nothing.
            after: only names behind this one: where a former run ended.

        Raises:
            RemoteStorageError: the store cannot be listed.
        """
        for head in self.store.list(self.prefix):
            name = head.key[len(self.prefix) :]
            if name <= after or not _is_manifest(head.key, self.prefix):
                continue
            try:
                yield RewrapResult(name, self._rewrap(head.key, name, writes=writes))
            except RemoteStorageError as error:
                problem = str(error).replace(head.key, name).removeprefix(f"{name}: ")
                yield RewrapResult(name, RewrapOutcome.FAILED, problem)

    def _rewrap(self, key: str, name: str, *, writes: bool) -> RewrapOutcome:
        try:
            data = call_with_retries(lambda: self._read(key, name), None, self.wait)
        except RemoteResourceNotFoundError:
            return RewrapOutcome.GONE
        manifest = decode_manifest(data, name)
        if manifest.encryption is None:
            return RewrapOutcome.NOT_ENCRYPTED
        if self.key_ring.wraps(manifest.encryption.data_key):
            return RewrapOutcome.CURRENT
        data_key = self.key_ring.unwrap(manifest.encryption.data_key)
        wrapped = self.key_ring.wrap(data_key)
        members = json.loads(data)
        members["encryption"]["dataKey"] = wrapped
        rewrapped = encode_json(members)
        expected = replace(manifest, encryption=replace(manifest.encryption, data_key=wrapped))
        # Before the only copy of the data key is replaced.
        if decode_manifest(rewrapped, name) != expected or self.key_ring.unwrap(wrapped) != data_key:
            raise CorruptObjectError(f"{name}: it could not be written again without a change; nothing was written")
        return self._write(key, rewrapped) if writes else RewrapOutcome.REWRAPPED

    def _read(self, key: str, name: str) -> bytes:
        return bytes(read_whole(self.store.get(key, 0, MANIFEST_BYTES_MAX + 1), name, MANIFEST_BYTES_MAX))

    def _write(self, key: str, rewrapped: bytes) -> RewrapOutcome:
        self.store.put(key, rewrapped)
        log_key = key.removesuffix(ObjectSuffix.MANIFEST.value) + ObjectSuffix.LOG.value
        try:
            call_with_retries(lambda: self.store.head(log_key), None, self.wait)
        except RemoteResourceNotFoundError:
            # The segment was deleted between the GET and the put: no manifest may come back to life.
            self.store.delete_many([key])
            return RewrapOutcome.GONE
        return RewrapOutcome.REWRAPPED


def _is_manifest(key: str, prefix: str) -> bool:
    try:
        return parse_object_key(key, prefix).suffix is ObjectSuffix.MANIFEST
    except ValueError:
        return False

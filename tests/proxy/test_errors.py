"""The table of faults and Kafka's error codes."""

import inspect

import pytest
import trio

import storage.errors
from protocol.errors import ErrorCode
from proxy.errors import code_for_version, error_code_of
from proxy.upstream.errors import UpstreamConnectionError, UpstreamRefusedError
from storage.batch_walk import CorruptLogError
from storage.errors import (
    CorruptObjectError,
    IllegalMetadataError,
    MetadataLogError,
    MetadataNotReadyError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.reader import OffsetNotInTierError


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (RetriableRemoteStorageError("503"), ErrorCode.REPLICA_NOT_AVAILABLE),
        (MetadataNotReadyError("behind"), ErrorCode.REPLICA_NOT_AVAILABLE),
        (UpstreamConnectionError("no leader"), ErrorCode.REPLICA_NOT_AVAILABLE),
        (UpstreamRefusedError("no", 29), ErrorCode.REPLICA_NOT_AVAILABLE),
        (RemoteResourceNotFoundError("gone"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (RemoteAccessDeniedError("no"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (CorruptObjectError("crc"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (CorruptLogError("crc", position=0, end=1), ErrorCode.UNKNOWN_SERVER_ERROR),
        (IllegalMetadataError("bad"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (MetadataLogError("closed"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (RemoteStorageError("any"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (trio.ClosedResourceError(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ExceptionGroup("two", [ValueError(), KeyError()]), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ValueError("ours"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_each_fault_has_its_code(fault: Exception, code: ErrorCode) -> None:
    assert error_code_of(fault) == code


def test_no_fault_ever_makes_a_client_jump() -> None:
    """Clients apply auto.offset.reset to OFFSET_OUT_OF_RANGE: only a broker's word leads to it (design L2)."""
    kinds = [kind for _, kind in inspect.getmembers(storage.errors, inspect.isclass) if issubclass(kind, Exception)]
    assert RemoteStorageError in kinds
    for kind in [*kinds, OffsetNotInTierError, OSError, RuntimeError]:
        assert error_code_of(kind("fault")) in (ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize(("version", "code"), [(4, 6), (5, 6), (6, 56), (18, 56)])
def test_a_storage_error_is_not_leader_to_clients_that_do_not_know_it(version: int, code: int) -> None:
    assert code_for_version(ErrorCode.KAFKA_STORAGE_ERROR, version) == code


@pytest.mark.parametrize("code", [-1, 0, 1, 6, 29, 100])
def test_other_codes_are_the_same_in_every_version(code: int) -> None:
    assert {code_for_version(code, version) for version in range(4, 19)} == {code}

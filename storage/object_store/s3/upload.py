"""A multipart upload over the S3 API (User Guide, "Uploading and copying objects using multipart upload")."""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from storage.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
)
from storage.object_store.uploads import Part

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

MD5 = re.compile(r"[0-9a-f]{32}")
_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")


class S3Upload:
    """A PartUpload.

    Args:
        options: go into the request that begins it.
        errors: translates boto3's errors of a verb.
        upload_id: of one that was begun before.
        tell_left_open: called when the parts cannot be dropped, and trying again will not help.
    """

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        key: str,
        options: Mapping[str, Any],
        errors: Callable[[str], AbstractContextManager[None]],
        *,
        upload_id: str = "",
        tell_left_open: Callable[[RemoteStorageError], object],
    ) -> None:
        self._client = client
        self._where: dict[str, str] = {"Bucket": bucket, "Key": key}
        self._options = options
        self._errors = errors
        self.upload_id = upload_id
        self._tell_left_open = tell_left_open
        self._done: dict[int, CompletedPartTypeDef] = {}
        self._sizes_bytes: dict[int, int] = {}

    def begin(self) -> None:
        """CreateMultipartUpload. One whose answer was lost stays open until the bucket's lifecycle rule ends it."""
        with self._errors("PUT in parts"):
            answer = self._client.create_multipart_upload(
                **self._where,  # type: ignore[arg-type]  # two strings
                **self._options,
            )
        self.upload_id = answer["UploadId"]

    def part(self, number: int, data: Part) -> None:
        """UploadPart."""
        with self._errors("PUT in parts"):
            answer = self._client.upload_part(
                **self._where,  # type: ignore[arg-type]  # two strings
                UploadId=self.upload_id,
                PartNumber=number,
                Body=cast(bytes, data),  # botocore takes both
            )
        self._done[number] = _completed_part(number, cast("Mapping[str, Any]", answer))
        self._sizes_bytes[number] = len(data)

    def finish(self) -> None:
        """CompleteMultipartUpload."""
        with self._errors("PUT in parts"):
            self._client.complete_multipart_upload(
                **self._where,  # type: ignore[arg-type]  # two strings
                UploadId=self.upload_id,
                MultipartUpload={"Parts": list(self._done.values())},
            )

    def is_done(self) -> bool:
        """HeadObject."""
        with self._errors("HEAD"):
            head = self._client.head_object(**self._where)  # type: ignore[arg-type]  # two strings
        etags = [part["ETag"].strip('"') for part in self._done.values()]
        is_md5 = all(MD5.fullmatch(etag) for etag in etags)
        sums = hashlib.md5(b"".join(map(bytes.fromhex, etags)) if is_md5 else b"", usedforsecurity=False)
        expected = f"{sums.hexdigest()}-{len(etags)}" if is_md5 else None
        return head["ContentLength"] == sum(self._sizes_bytes.values()) and is_etag(head["ETag"], expected)

    def abort(self) -> None:
        """AbortMultipartUpload; one that is gone already is no error."""
        try:
            with self._errors("ABORT of an upload"):
                self._client.abort_multipart_upload(
                    **self._where,  # type: ignore[arg-type]  # two strings
                    UploadId=self.upload_id,
                )
        except RemoteStoreNotFoundError:
            raise
        except RemoteResourceNotFoundError:
            return
        except RetriableRemoteStorageError:
            raise
        except RemoteStorageError as error:
            self._tell_left_open(error)
            raise


def is_etag(etag: str, expected: str | None) -> bool:
    """Return whether an object's ETag says that it is another: it says nothing unless it is made of MD5 sums."""
    found = etag.strip('"').lower()
    return expected is None or found == expected or not MD5.fullmatch(found.partition("-")[0])


def _completed_part(number: int, answer: Mapping[str, Any]) -> "CompletedPartTypeDef":
    part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
    sums = {name: answer[name] for name in _CHECKSUMS if answer.get(name)}
    return {**part, **sums}  # type: ignore[typeddict-item]  # the names are CompletedPart's

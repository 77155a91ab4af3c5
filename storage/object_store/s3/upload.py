"""A multipart upload over the S3 API (User Guide, "Uploading and copying objects using multipart upload")."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from storage.errors import RemoteResourceNotFoundError, RemoteStoreNotFoundError
from storage.object_store.uploads import Part

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")


class S3Upload:
    """A PartUpload. `options` go into the request that begins it; `errors` translates boto3's; `upload_id`: of one that
    was begun before."""

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        key: str,
        options: Mapping[str, Any],
        errors: Callable[[], AbstractContextManager[None]],
        *,
        upload_id: str = "",
    ) -> None:
        self._client = client
        self._where: dict[str, str] = {"Bucket": bucket, "Key": key}
        self._options = options
        self._errors = errors
        self._upload_id = upload_id
        self._done: dict[int, CompletedPartTypeDef] = {}

    def begin(self) -> None:
        """CreateMultipartUpload. One whose answer was lost stays open until the bucket's lifecycle rule ends it."""
        with self._errors():
            answer = self._client.create_multipart_upload(
                **self._where,  # type: ignore[arg-type]  # two strings
                **self._options,
            )
        self._upload_id = answer["UploadId"]

    def part(self, number: int, data: Part) -> None:
        """UploadPart."""
        with self._errors():
            answer = self._client.upload_part(
                **self._where,  # type: ignore[arg-type]  # two strings
                UploadId=self._upload_id,
                PartNumber=number,
                Body=cast(bytes, data),  # botocore takes both
            )
        self._done[number] = _completed_part(number, cast("Mapping[str, Any]", answer))

    def finish(self) -> None:
        """CompleteMultipartUpload."""
        with self._errors():
            self._client.complete_multipart_upload(
                **self._where,  # type: ignore[arg-type]  # two strings
                UploadId=self._upload_id,
                MultipartUpload={"Parts": list(self._done.values())},
            )

    def abort(self) -> None:
        """AbortMultipartUpload; one that is gone already is no error."""
        try:
            with self._errors():
                self._client.abort_multipart_upload(
                    **self._where,  # type: ignore[arg-type]  # two strings
                    UploadId=self._upload_id,
                )
        except RemoteStoreNotFoundError:
            raise
        except RemoteResourceNotFoundError:
            return


def _completed_part(number: int, answer: Mapping[str, Any]) -> "CompletedPartTypeDef":
    part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
    sums = {name: answer[name] for name in _CHECKSUMS if answer.get(name)}
    return {**part, **sums}  # type: ignore[typeddict-item]  # the names are CompletedPart's

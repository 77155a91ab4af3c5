"""Zip and tar files whose bytes depend on nothing but their content, and the metadata that makes a zip a wheel.

Members are sorted, of one date, one mode and one compression, so two builds of the same sources are the same bytes.
"""

import base64
import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_LEVEL = 6


def write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    """A whole archive or none: written beside `path` and moved over it."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with zipfile.ZipFile(unfinished, "w") as archive:
            for name in sorted(members):
                member = zipfile.ZipInfo(name, _DATE)
                member.external_attr = _MODE
                member.create_system = 3
                archive.writestr(member, members[name], zipfile.ZIP_DEFLATED, _LEVEL)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_tar(path: Path, members: Mapping[str, bytes], *, prefix: str, epoch_s: int) -> None:
    """A `.tar.gz` with all members below the folder `prefix`, of the time `epoch_s`."""
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=epoch_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(members):
            member = tarfile.TarInfo(f"{prefix}/{name}")
            member.size, member.mtime, member.mode = len(members[name]), epoch_s, 0o644
            archive.addfile(member, io.BytesIO(members[name]))


def with_wheel_metadata(
    members: Mapping[str, bytes], *, name: str, version: str, fields: Sequence[tuple[str, str]], license_text: bytes
) -> dict[str, bytes]:
    """The members of a pure wheel (PEP 427); `fields` are of its METADATA, after name and version."""
    folder = f"{name}-{version}.dist-info"
    head = [("Metadata-Version", "2.4"), ("Name", name.replace("_", "-")), ("Version", version)]
    whole = dict(members)
    whole[f"{folder}/METADATA"] = "".join(f"{key}: {value}\n" for key, value in (*head, *fields)).encode()
    whole[f"{folder}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tidegate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    whole[f"{folder}/licenses/LICENSE"] = license_text
    record = f"{folder}/RECORD"
    lines = [f"{member},{_record_hash(content)},{len(content)}" for member, content in sorted(whole.items())]
    whole[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    return whole


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"

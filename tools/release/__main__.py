"""`python -m tools.release [--into DIR]`: what is published of the version whose tag is checked out.

Everything is made from what the tag has (`git archive`), never from what lies beside it, and dated by the commit. So
two builds with the same Python and libraries are the same bytes. The image is built where buildah is, on the same base
the same bytes too; `--image-option WORD` is one more word for `buildah build`, such as --build-arg=PYTHON_IMAGE=NAME.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.distribution.archives import write_tar
from tools.release.sbom import bill_of_materials

ROOT = Path(__file__).resolve().parents[2]
_BUILD = (
    "import sys; from tools.distribution import backend; into = sys.argv[1]; "
    "backend.build_wheel(into); backend.build_sdist(into)"
)
_DOCUMENTS = ("docs", "deploy", "requirements")
"""Folders of the release's archive, beside the files in the tree's top."""
_AT_TOP = ("CHANGELOG.md", "LICENSE", "README.md", "docker-compose.yml")


class ReleaseError(Exception):
    """There is nothing to be released here; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """What a tag has, in a folder of its own."""

    source: Path
    version: str
    license_id: str
    revision: str
    epoch_s: int

    @property
    def stem(self) -> str:
        return f"tidegate-{self.version}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR", help="made there: DIR/VERSION")
    parser.add_argument("--image-option", action="append", default=[], metavar="WORD", help="for `buildah build`")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-release-") as folder:
            tagged = tag_of(ROOT, Path(folder, "source"))
            made = Path(folder, "made")
            made.mkdir()
            build(tagged, made, options.image_option)
            final = options.into / tagged.version
            shutil.rmtree(final, ignore_errors=True)
            shutil.copytree(made, final)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"{final}:\n{(final / 'SHA256SUMS').read_text()}", end="")
    return 0


def tag_of(root: Path, source: Path) -> Tagged:
    """Unpack into `source` what the checked-out tag has.

    Raises:
        ReleaseError: nothing is tagged, something is changed, or the tree does not say the tag's version everywhere.
    """
    if changed := _git(root, "status", "--porcelain"):
        raise ReleaseError(f"the tree is not clean:\n{changed}")
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    if f"v{version}" not in _git(root, "tag", "--points-at", "HEAD").split():
        raise ReleaseError(f"the commit has no tag v{version}, which pyproject.toml's version asks for")
    source.mkdir()
    with tempfile.TemporaryFile() as file:
        subprocess.run(["git", "-C", root, "archive", "--format=tar", "HEAD"], stdout=file, check=True)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            archive.extractall(source, filter="data")
    if problems := list(version_problems(source, version)):
        raise ReleaseError("; ".join(problems))
    revision, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
    return Tagged(source, version, project["license"], revision, int(epoch))


def version_problems(source: Path, version: str) -> Iterator[str]:
    """Yield who does not say this version."""
    for name, line in (
        ("deploy/helm/tidegate/Chart.yaml", f"\nversion: {version}\n"),
        ("deploy/helm/tidegate/Chart.yaml", f"\nappVersion: {version}\n"),
        ("deploy/Dockerfile", f"\nARG VERSION={version}\n"),
        ("CHANGELOG.md", f"\n## {version}\n"),
    ):
        if line not in (source / name).read_text("utf-8"):
            yield f"{name} has no line `{line.strip()}`"


def build(tagged: Tagged, into: Path, image_options: Sequence[str] = ()) -> None:
    """Everything, and its sums."""
    environ = {**os.environ, "PYTHONPATH": str(tagged.source), "SOURCE_DATE_EPOCH": str(tagged.epoch_s)}
    command = [sys.executable, "-c", _BUILD, str(into)]
    done = subprocess.run(command, cwd=tagged.source, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"the wheel cannot be built:\n{done.stderr}")
    shutil.copy(tagged.source / "requirements" / "constraints.txt", into / f"{tagged.stem}-constraints.txt")
    chart = _files(tagged.source / "deploy" / "helm" / "tidegate")
    write_tar(into / f"{tagged.stem}.tgz", chart, prefix="tidegate", epoch_s=tagged.epoch_s)
    documents = {name: (tagged.source / name).read_bytes() for name in _AT_TOP}
    for folder in _DOCUMENTS:
        documents |= {f"{folder}/{name}": content for name, content in _files(tagged.source / folder).items()}
    write_tar(into / f"{tagged.stem}-release.tar.gz", documents, prefix=tagged.stem, epoch_s=tagged.epoch_s)
    lock = (tagged.source / "requirements" / "image.txt").read_text("utf-8")
    bill = bill_of_materials(
        lock, name="tidegate", version=tagged.version, license_id=tagged.license_id, epoch_s=tagged.epoch_s
    )
    (into / f"{tagged.stem}.cdx.json").write_bytes(bill)
    if shutil.which("buildah") is None:
        print("release: no image: buildah is not here", file=sys.stderr)
    else:
        build_image(tagged, into / f"{tagged.stem}-image.tar", image_options)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(into.iterdir())]
    (into / "SHA256SUMS").write_text("".join(sums))


def build_image(tagged: Tagged, archive: Path, options: Sequence[str]) -> None:
    """The Dockerfile's, as an OCI archive, which has all of it but the health check.

    buildah dates an archive of its own making by the clock, so it fills a folder, and the tar file is made here.
    """
    name = f"localhost/tidegate:{tagged.version}"
    dated = ("--timestamp", str(tagged.epoch_s))
    said = ("--build-arg", f"VERSION={tagged.version}", "--build-arg", f"REVISION={tagged.revision}")
    dockerfile = str(tagged.source / "deploy" / "Dockerfile")
    how = ("--format", "docker", *dated, *said, *options, "--file", dockerfile, "--tag", name)
    with tempfile.TemporaryDirectory(prefix="tidegate-image-") as folder:
        for command in (
            ("buildah", "build", *how, str(tagged.source)),
            ("buildah", "push", name, f"oci:{folder}:tidegate:{tagged.version}"),
        ):
            if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
                raise ReleaseError(f"the image cannot be made: {' '.join(command)}")
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                member.size, member.mtime, member.mode = path.stat().st_size, tagged.epoch_s, 0o644
                with path.open("rb") as content:
                    tar.addfile(member, content)


def _files(folder: Path) -> dict[str, bytes]:
    """Path below the folder → content."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

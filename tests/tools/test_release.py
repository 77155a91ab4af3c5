"""`make release`: what a tag gives, twice the same, and what stands in its way."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.repository.sources import FILES
from tests.support.for_each import for_each
from tests.support.needs import HELM, ROOT
from tools.release.__main__ import version_problems

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
STEM = f"tidegate-{VERSION}"
WORKFLOWS = ROOT / ".github" / "workflows"


def git(repository: Path, *words: str) -> None:
    known = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(repository), *identity, *words]
    subprocess.run(command, env={**os.environ, **known}, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as if it were released: committed, tagged, its changes dated."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    for path in FILES:
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    changes = folder / "CHANGELOG.md"
    changes.write_text(changes.read_text("utf-8").replace(f"## {VERSION} (not released yet)", f"## {VERSION}", 1))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    git(folder, "tag", f"v{VERSION}")
    return folder


def release(repository: Path, into: Path, *, mask: int = 0o022, **environ: str) -> "subprocess.CompletedProcess[str]":
    """`make release` in that tree, without an image: what has buildah is left out of PATH."""
    git_only = into.parent / "bin"
    git_only.mkdir(parents=True, exist_ok=True)
    if not (git_only / "git").exists():
        (git_only / "git").symlink_to(str(shutil.which("git")))
    command = [sys.executable, "-m", "tools.release", "--into", str(into)]
    known = {"PATH": str(git_only), "PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    return subprocess.run(command, cwd=repository, env=known, umask=mask, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("made") / "dist"
    done = release(repository, into)
    assert (done.returncode, done.stderr) == (0, "release: no image: buildah is not here\n"), done.stderr
    return into / VERSION


def test_all_of_it_is_there_and_summed(made: Path) -> None:
    kinds = ("-constraints.txt", "-py3-none-any.whl", "-release.tar.gz", ".cdx.json", ".tar.gz", ".tgz")
    assert {path.name for path in made.iterdir()} == {"SHA256SUMS", *(STEM + kind for kind in kinds)}
    lines = (line.split("  ") for line in (made / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in sums}
    assert len(sums) == len(kinds)
    with tarfile.open(made / f"{STEM}-release.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "deploy/systemd/tidegate.service", "docs/getting-started.md"} <= names


def test_another_clone_on_another_day_makes_the_same_bytes(repository: Path, made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    git(tmp_path, "clone", "--quiet", str(repository), str(again))
    done = release(again, tmp_path / "dist", mask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    for path in made.iterdir():
        assert (tmp_path / "dist" / VERSION / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.needs("helm")
def test_helm_takes_the_chart(made: Path) -> None:
    command: list[str | Path] = [
        HELM,
        "template",
        "tidegate",
        made / f"{STEM}.tgz",
        "--values",
        ROOT / "deploy/kubernetes/values.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f'image: "tidegate:{VERSION}"' in done.stdout


def test_the_bill_of_materials_is_the_images_lock(made: Path) -> None:
    bill = json.loads((made / f"{STEM}.cdx.json").read_text())
    lock = (ROOT / "requirements" / "image.txt").read_text("utf-8")
    found = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    assert found == set(re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE))
    asked = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    known = {bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in bill["components"])}
    assert known == asked.keys() == {*asked, *(ref for below in asked.values() for ref in below)}
    name_of = {each["bom-ref"]: each["name"] for each in bill["components"]}
    assert {"trio", "boto3", "azure-identity"} <= {name_of[ref] for ref in asked[f"pkg:pypi/tidegate@{VERSION}"]}


def test_constraints_are_the_versions_that_tests_run(made: Path) -> None:
    pinned = set(re.findall(r"^[\w.-]+==[^\s;]+", (made / f"{STEM}-constraints.txt").read_text(), re.MULTILINE))
    locks = [(ROOT / "requirements" / f"{name}.txt").read_text("utf-8") for name in ("image", "spark")]
    locked = {pin for lock in locks for pin in re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE)}
    assert pinned
    assert pinned <= locked


def test_what_is_not_a_clean_tag_is_refused(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(repository), str(other))
    (other / "docs" / "new").write_text("new\n")
    done = release(other, tmp_path / "dist")
    assert (done.returncode, done.stderr) == (1, "release: the tree is not clean:\n?? docs/new\n")
    git(other, "add", "--all")
    git(other, "commit", "--quiet", "--message", "more")
    done = release(other, tmp_path / "dist")
    assert f"release: the commit has no tag v{VERSION}" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_the_tree_says_one_version() -> None:
    """But for the changes, which say it when it is released."""
    assert [each for each in version_problems(ROOT, VERSION) if "CHANGELOG" not in each] == []
    assert version_problems(ROOT, "9.9.9").__next__().startswith("deploy/helm/tidegate/Chart.yaml has no line")


@for_each("workflow, job, target", [("release", "build", "make release"), ("audit", "audit", "make audit")])
def test_a_workflow_has_no_secret_and_takes_nothing_that_may_change(workflow: str, job: str, target: str) -> None:
    text = (WORKFLOWS / f"{workflow}.yml").read_text("utf-8")
    assert "secrets" not in text
    jobs = yaml.safe_load(text)["jobs"]
    used = [step["uses"] for each in jobs.values() for step in each["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in used)
    assert jobs[job]["permissions"] == {"contents": "read"}
    assert target in text
    # Whatever goes into a shell comes by a variable: an expression in a script would be run.
    assert not [step for each in jobs.values() for step in each["steps"] if "${{" in step.get("run", "")]

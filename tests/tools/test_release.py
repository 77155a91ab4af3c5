"""`make release`: what a tag gives, and what stands in its way. With the image: tests/containers/test_release.py."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from tests.support.for_each import for_each
from tests.support.needs import HELM, ROOT
from tests.support.released import STEM, VERSION, git, release, tagged_repository
from tools.release.__main__ import main, version_problems

KINDS = ("-constraints.txt", "-py3-none-any.whl", "-release.tar.gz", ".cdx.json", ".tar.gz", ".tgz")
IMAGE = "-image.tar"
"""Made where buildah is: tests/containers/test_release.py."""
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tagged_repository(tmp_path_factory.mktemp("release") / "repository")


def without_image(repository: Path, into: Path) -> "CompletedProcess[str]":
    """`make release` in that tree, without an image: what has buildah is left out of PATH."""
    git_only = into.parent / "bin"
    git_only.mkdir(parents=True, exist_ok=True)
    if not (git_only / "git").exists():
        (git_only / "git").symlink_to(str(shutil.which("git")))
    return release(repository, into, {"PATH": str(git_only)})


@pytest.fixture(scope="module")
def made(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("made") / "dist"
    done = without_image(repository, into)
    assert (done.returncode, done.stderr) == (0, "release: no image: buildah is not here\n"), done.stderr
    return into / VERSION


def test_all_of_it_is_there_and_summed(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {"SHA256SUMS", *(STEM + kind for kind in KINDS)}
    lines = (line.split("  ") for line in (made / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in sums}
    assert len(sums) == len(KINDS)
    with tarfile.open(made / f"{STEM}-release.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "deploy/systemd/tidegate.service", "docs/getting-started.md"} <= names


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
    done = without_image(other, tmp_path / "dist")
    assert (done.returncode, done.stderr) == (1, "release: the tree is not clean:\n?? docs/new\n")
    git(other, "add", "--all")
    git(other, "commit", "--quiet", "--message", "more")
    done = without_image(other, tmp_path / "dist")
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


def test_the_workflow_asks_for_and_pushes_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        step
        for job in yaml.safe_load((WORKFLOWS / "release.yml").read_text("utf-8"))["jobs"].values()
        for step in job["steps"]
    ]
    text = "\n".join(step.get("run", "") for step in steps)
    files = re.findall(r"(?:tidegate-\$\{VERSION_TAG#v\}|\$stem)([\w.-]+)", text)
    assert {"-py3-none-any.whl", ".tar.gz", ".tgz", IMAGE} == {*files} - {""} <= {*KINDS, IMAGE}
    makefiles = "".join((ROOT / name).read_text("utf-8") for name in ("Makefile", "tests/tools.mk"))
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefiles, re.MULTILINE), target
    with pytest.raises(SystemExit):
        main(["--help"])
    assert {*re.findall(r"[+ ](--image-[a-z]+)=", text)} == {"--image-option"} <= {*capsys.readouterr().out.split()}
    for name in re.findall(r"requirements/[a-z]+\.txt", text):
        assert (ROOT / name).is_file(), name

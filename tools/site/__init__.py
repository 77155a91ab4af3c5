"""The documents as a site, navigated by reader: python -m tools.site FOLDER; FOLDER/site has it.

MkDocs renders one folder, and our documents are in several, with links between them that hold in the tree. So they are
copied into FOLDER/docs as they lie in the tree, and no link is written again. It is strict: a link that leads nowhere,
an anchor that is not there and a page that no reader is led to are errors.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("docker-compose.yml", "benchmarks/README.md", "docs"),
)


def main() -> int:
    return build(Path(sys.argv[1]))


def build(folder: Path) -> int:
    """Render into `folder`/site; gives MkDocs' exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in DOCUMENTS:
        target = folder / "docs" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("*.jsonl"))
        else:
            shutil.copyfile(ROOT / name, target)
    for source, target in (("mkdocs.yml", folder / "mkdocs.yml"), ("site.css", folder / "docs" / "site.css")):
        shutil.copyfile(Path(__file__).with_name(source), target)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    return subprocess.run(command, check=False).returncode

"""`make docs`: the site is rendered without a warning, and its index leads to every page."""

import re
from pathlib import Path

import pytest

from tools import site


@pytest.mark.needs("mkdocs")
def test_the_documents_are_a_site_without_dead_links(tmp_path: Path) -> None:
    """A page without a reader, a file or an anchor that is not there is an error of the strict mode."""
    assert site.build(tmp_path / "site") == 0
    index = (tmp_path / "site" / "site" / "index.html").read_text("utf-8")
    pages = {path.relative_to(site.ROOT).with_suffix(".html").as_posix() for path in site.ROOT.glob("docs/*.md")}
    assert pages
    assert pages <= set(re.findall(r'href="([\w/-]+\.html)"', index))


@pytest.mark.needs("mkdocs")
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: with fewer messages (`--quiet`) MkDocs 1.6 counts no warnings."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "README.md").write_text("[nowhere](nowhere.md)")
    monkeypatch.setattr(site, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(site, "DOCUMENTS", ("README.md",))
    assert site.build(tmp_path / "site") != 0

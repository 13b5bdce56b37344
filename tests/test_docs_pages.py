"""The pages are whole: links lead somewhere, nothing is unfinished, and all are listed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from autotune import __version__
from tests.test_docs import DOCS, FENCE, FORBIDDEN, ROOT, each_page, text_of


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@each_page
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@each_page
def test_pages_are_finished(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [word for word in FORBIDDEN if word in text] == []
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@each_page
def test_scripts_that_are_named_exist(page: Path) -> None:
    for name in re.findall(
        r"\b((?:scripts|tests|autotune)/[\w/-]+(?:\.py)?)\b", page.read_text("utf-8")
    ):
        assert (ROOT / name).exists(), name


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text_of("index.md")))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
    assert f"Version {__version__}." in (ROOT / "README.md").read_text("utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## \[([\d.]+)\]", changes, re.MULTILINE)[0] == __version__

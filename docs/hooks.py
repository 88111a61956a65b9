"""Adds pages outside docs/ to the site, and turns links that hold in the repository to theirs.

A page in docs/ links to `../benchmarks/RESULTS.md`, and a page above it to `docs/config.md`; on the
site, both are in one tree.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("benchmarks/RESULTS.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns relative links, in the repository, to files of the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(uri if uri in OUTSIDE else f"docs/{uri}")

    def of_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1])).removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return _LINK.sub(of_site, markdown)

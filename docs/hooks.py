"""Adds pages outside docs/ and notebooks to the site, and turns links of the repository to its own.

A page in docs/ links to `../benchmarks/RESULTS.md`, and a page above it to `docs/config.md`; on the
site, both are in one tree. A notebook `NAME.ipynb` becomes the page `NAME_notebook.md`. The
subsections of README.md become tabs.
"""

from __future__ import annotations

import json
import posixpath
import re
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "README.md",
    "benchmarks/RESULTS.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
)
_SUBSECTION = re.compile(r"^### ([^\n]*)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside docs/, and a page for each notebook."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for uri in [file.src_uri for file in files if file.src_uri.endswith(".ipynb")]:
        page = uri.replace(".ipynb", "_notebook.md")
        files.append(File.generated(config, page, content=_as_markdown(ROOT / "docs" / uri)))
    return files


def _as_markdown(notebook: Path) -> str:
    """Returns the cells of a notebook, which has no outputs, with a link to its file."""
    parts = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    return "\n\n".join([*parts, f"[Download this notebook]({notebook.name})", ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns relative links, in the repository, to files of the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(uri if uri in OUTSIDE else f"docs/{uri}")

    def of_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1])).removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    if uri == "README.md":
        markdown = _SUBSECTION.sub(_as_tab, markdown)
    return _LINK.sub(of_site, markdown)


def _as_tab(subsection: re.Match[str]) -> str:
    return f'=== "{subsection[1]}"\n{textwrap.indent(subsection[2], "    ")}\n'

"""Runs a notebook of docs/gallery in a kernel, as Jupyter does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import nbclient
import nbformat

from tests.gallery.reader import FOLDER
from tests.small import environment_variables


def run_notebook(name: str, small: Mapping[str, Sequence[str]]) -> str:
    """Runs all cells in the working directory; returns what they print.

    Args:
      name: name of the notebook without its suffix.
      small: lines that make a cell small, by the code before which they are put.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    for code, lines in small.items():
        (cell,) = [cell for cell in cells if code in cell.source]
        cell.source = "\n".join([*lines, cell.source])
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=".", env=environment_variables())
    outputs = [output for cell in cells for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")

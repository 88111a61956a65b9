"""Made-up templates in promptsource's form."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from mtf.data.tasks.prompts.templates import Template

YAML = """\
dataset: fruit
templates:
  11-bb: !Template
    id: 11-bb
    name: which is it
    jinja: 'Is {{ thing }} a fruit? ||| {{ answer_choices[label] }}'
    answer_choices: no ||| yes
    reference: ours
    metadata: !TemplateMetadata
      choices_in_prompt: false
      languages:
      - en
      metrics:
      - Accuracy
      - Other
      original_task: true
  22-aa: !Template
    id: 22-aa
    name: describe
    jinja: 'Describe: {{ thing }} ||| {{ text }}'
    answer_choices: null
    reference: ''
    metadata: !TemplateMetadata
      choices_in_prompt: null
      metrics: []
      original_task: false
"""


def template(jinja: str, answer_choices: str | None = None, **fields: Any) -> Template:
    """Returns a template called `made up`."""
    return Template("made up", jinja, answer_choices, **fields)


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Writes the texts to `root/NAME/templates.yaml`; returns `root`."""
    for name, text in files.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "templates.yaml").write_text(text, encoding="utf-8")
    return root


def write_archive(path: Path, files: dict[str, str]) -> Path:
    """Writes the texts to a .tar.gz under their full names; returns `path`."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path

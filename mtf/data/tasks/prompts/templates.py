"""Reads promptsource's templates as data, without importing promptsource.

promptsource contains a file `templates/DATASET[/SUBSET]/templates.yaml` for each dataset. The files
are read from an archive or a directory and parsed on demand.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtf.base.downloads import copied
from mtf.base.errors import UserError, did_you_mean
from mtf.base.extras import import_extra
from mtf.storage.copies import cache_directory

PROMPTSOURCE_VERSION = "0.2.3"
ENVIRONMENT_VARIABLE = "MTF_PROMPTS"

_FILE_NAME = "templates.yaml"
# Promptsource's largest file has 17 kB, and its archive 2 MB; the deepest file has 5 levels.
_MAX_BYTES, _MAX_DEPTH = 10_000_000, 20
_FILE_IN_ARCHIVE = re.compile(rf"(?:^|/)templates/(.+)/{re.escape(_FILE_NAME)}$")


@dataclass(frozen=True)
class Template:
    """A prompt template for a dataset.

    Attributes:
      name: unique name within the dataset.
      jinja: Jinja template of the inputs and the targets, which are separated by `|||`.
      answer_choices: Jinja template of the answer choices, which are separated by `|||`; None if
        there are no choices.
      original_task: whether the prompt is for the dataset's original task.
      metrics: promptsource's names for the metrics, such as "Accuracy" or "BLEU".
    """

    name: str
    jinja: str
    answer_choices: str | None = None
    original_task: bool = False
    metrics: tuple[str, ...] = ()


class Templates:
    """Prompt templates, grouped by dataset (`DATASET` or `DATASET/SUBSET`)."""

    def __init__(self, source: str, files: Mapping[str, bytes | Path]):
        """Stores the path or the content of each dataset's YAML file; messages show `source`."""
        self.source = source
        self._files = dict(files)
        self._parsed: dict[str, tuple[Template, ...]] = {}

    @property
    def datasets(self) -> tuple[str, ...]:
        """The sorted names of the datasets that have templates."""
        return tuple(sorted(self._files))

    def get(self, dataset: str, subset: str | None = None) -> tuple[Template, ...]:
        """Returns the templates of a dataset, in file order; raises UserError if it has none."""
        name = f"{dataset}/{subset}" if subset else dataset
        if name not in self._files:
            raise UserError(
                f"{self.source}: there are no templates for {name}."
                f"{did_you_mean(name, self._files)}"
            )
        if name not in self._parsed:
            content = self._files[name]
            content = content.read_bytes() if isinstance(content, Path) else content
            self._parsed[name] = _parse(content, f"{self.source}: {name}/{_FILE_NAME}")
        return self._parsed[name]


def fingerprint(templates: Iterable[Template]) -> str:
    """Returns a hash of the templates that does not depend on their order."""
    fields = sorted(
        [t.name, t.jinja, t.answer_choices or "", t.original_task, t.metrics] for t in templates
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def load_templates(path: str | os.PathLike[str] | None = None) -> Templates:
    """Returns the templates in an archive or a directory; raises UserError if there are none.

    If `path` is None, uses the path in the environment variable MTF_PROMPTS if it is set, and
    otherwise `cached_archive()`.
    """
    if path is not None:
        return _open(path, f"prompt templates {path}")
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return _open(named, f"prompt templates {named} ({ENVIRONMENT_VARIABLE})")
    if cached_archive().is_file():
        return _open(cached_archive(), f"prompt templates {cached_archive()}")
    raise UserError(
        f"no prompt templates were found: {ENVIRONMENT_VARIABLE} is not set, and "
        f"{cached_archive()} does not exist. Run `python -m mtf prompts fetch` to download them, "
        f"or set {ENVIRONMENT_VARIABLE} to an archive or directory that contains promptsource "
        f"{PROMPTSOURCE_VERSION}"
    )


def cached_archive() -> Path:
    """Returns the path in the user's cache to which `fetch` downloads promptsource's sdist."""
    return cache_directory() / f"promptsource-{PROMPTSOURCE_VERSION}.tar.gz"


def _open(location: str | os.PathLike[str], source: str) -> Templates:
    path = copied(os.fspath(location), "prompt templates")
    files: Mapping[str, bytes | Path]
    if path.is_dir():
        below = (path / "promptsource" / "templates", path / "templates")
        root = next((folder for folder in below if folder.is_dir()), path)
        found = sorted(root.rglob(_FILE_NAME))
        files = {file.parent.relative_to(root).as_posix(): file for file in found}
    elif path.is_file():
        files = _read_archive(path, source)
    else:
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{source}: this path does not exist.{did_you_mean(path.name, names)}")
    if not files:
        raise UserError(
            f"{source}: no templates were found; expected files templates/DATASET[/SUBSET]/"
            f"{_FILE_NAME}, as in promptsource {PROMPTSOURCE_VERSION}"
        )
    return Templates(source, files)


def _read_archive(path: Path, source: str) -> dict[str, bytes]:
    """Reads an archive; returns a dict mapping each dataset to the content of its YAML file."""
    import tarfile  # This import is slow, and showing a recipe does not need it.

    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                found = _FILE_IN_ARCHIVE.search(member.name)
                if member.offset_data + member.size > 10 * _MAX_BYTES:
                    raise tarfile.TarError(f"it has more than {10 * _MAX_BYTES:,} bytes")
                content = archive.extractfile(member) if found and member.isfile() else None
                if found and content is not None:
                    files[found[1]] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{source}: this is not a readable archive: {error}. Expected a directory or a .tar.gz "
            "file, e.g. promptsource's sdist"
        ) from error
    return files


def _parse(content: bytes, where: str) -> tuple[Template, ...]:
    """Returns the templates in a YAML file, in which only promptsource's two tags are allowed."""
    yaml = import_extra("yaml", "reading prompt templates")
    try:
        _check_depth(content)
        document = yaml.load(content, Loader=_loader())
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{where} is not a valid template file: {problem}") from error
    entries = document.get("templates") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise UserError(f"{where}: expected a mapping 'templates' at the top level")
    return tuple(_template(entry, f"{where}: {key}") for key, entry in entries.items())


def _check_depth(content: bytes) -> None:
    """Raises ValueError if a YAML file nests so deeply that parsing it could exhaust the memory."""
    yaml = import_extra("yaml", "reading prompt templates")
    if len(content) > _MAX_BYTES:
        raise ValueError(f"the file has more than {_MAX_BYTES:,} bytes")
    depth = 0
    for event in yaml.parse(content, Loader=_loader()):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        # Merges of merges grow exponentially.
        if depth > _MAX_DEPTH or (isinstance(event, yaml.ScalarEvent) and event.value == "<<"):
            raise ValueError(f"it contains << or is nested more than {_MAX_DEPTH} levels deep")


class _Tagged(dict[str, Any]):
    """The fields of a YAML mapping with the tag `!Template` or `!TemplateMetadata`."""


@functools.cache
def _loader() -> Any:
    yaml = import_extra("yaml", "reading prompt templates")

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        pass

    for tag in ("!Template", "!TemplateMetadata"):
        Loader.add_constructor(
            tag, lambda loader, node: _Tagged(loader.construct_mapping(node, deep=True))
        )
    return Loader


def _template(entry: object, where: str) -> Template:
    if not isinstance(entry, _Tagged):
        raise UserError(f"{where}: expected a value with the YAML tag !Template")
    for field in ("name", "jinja"):
        if not isinstance(entry.get(field), str):
            raise UserError(f"{where}: {field!r} is missing or not a string")
    metadata = entry.get("metadata") or {}
    return Template(
        name=entry["name"],
        jinja=entry["jinja"],
        answer_choices=entry.get("answer_choices") or None,
        original_task=bool(metadata.get("original_task")),
        metrics=tuple(metadata.get("metrics") or ()),
    )

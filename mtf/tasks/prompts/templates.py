"""promptsource's prompt templates, read as data; promptsource itself is never imported.

promptsource has a file per dataset, `templates/DATASET[/SUBSET]/templates.yaml`. The files are read
from an archive (its sdist, or only the folder), a directory, or an installed promptsource, and
parsed when a dataset is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtf.errors import UserError, did_you_mean
from mtf.extras import import_extra

PROMPTSOURCE_VERSION = "0.2.3"
ENVIRONMENT_VARIABLE = "MTF_PROMPTS"

_FILE_NAME = "templates.yaml"
_FILE_IN_ARCHIVE = re.compile(rf"(?:^|/)templates/(.+)/{re.escape(_FILE_NAME)}$")


@dataclass(frozen=True)
class Template:
    """A prompt of a dataset.

    Attributes:
      name: unique within the dataset.
      jinja: text of inputs, `|||`, text of targets.
      answer_choices: Jinja text of the choices, separated by `|||`; None if answers are free.
      original_task: whether it asks for what the dataset was made for.
      metrics: promptsource's names, such as "Accuracy" or "BLEU".
    """

    name: str
    jinja: str
    answer_choices: str | None = None
    original_task: bool = False
    metrics: tuple[str, ...] = ()


class Templates:
    """All templates of a source (a name for messages), by dataset and subset."""

    def __init__(self, source: str, files: Mapping[str, bytes | Path]):
        """`files` are contents or paths of YAML files, by `DATASET` or `DATASET/SUBSET`."""
        self.source = source
        self._files = dict(files)
        self._parsed: dict[str, tuple[Template, ...]] = {}

    @property
    def datasets(self) -> tuple[str, ...]:
        """Sorted names of the datasets that have templates: `DATASET` or `DATASET/SUBSET`."""
        return tuple(sorted(self._files))

    def get(self, dataset: str, subset: str | None = None) -> tuple[Template, ...]:
        """Returns the templates of a dataset in its file's order; raises UserError without any."""
        name = f"{dataset}/{subset}" if subset else dataset
        if name not in self._files:
            raise UserError(
                f"{self.source} has no templates for {name}.{did_you_mean(name, self._files)}"
            )
        if name not in self._parsed:
            content = self._files[name]
            content = content.read_bytes() if isinstance(content, Path) else content
            self._parsed[name] = _parse(content, f"{self.source}: {name}/{_FILE_NAME}")
        return self._parsed[name]


def fingerprint(templates: Iterable[Template]) -> str:
    """Returns a hash of the templates, in any order."""
    fields = sorted(
        [t.name, t.jinja, t.answer_choices or "", t.original_task, t.metrics] for t in templates
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]


def load_templates(path: str | os.PathLike[str] | None = None) -> Templates:
    """Returns the templates in an archive or a directory.

    Without `path`, they are looked for in the file or directory that the environment variable
    MTF_PROMPTS names, in an installed promptsource, and in `cached_archive()`.

    Raises:
      UserError: nothing is there, or it has no templates.
    """
    if path is not None:
        return _open(Path(path), f"prompt templates {path}")
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return _open(Path(named), f"prompt templates {named} ({ENVIRONMENT_VARIABLE})")
    spec = importlib.util.find_spec("promptsource")  # does not import it
    for package in (spec.submodule_search_locations or []) if spec else []:
        if (installed := Path(package, "templates")).is_dir():
            return _open(installed, f"prompt templates of the installed promptsource, {installed}")
    if cached_archive().is_file():
        return _open(cached_archive(), f"prompt templates {cached_archive()}")
    raise UserError(
        f"no prompt templates were found: {ENVIRONMENT_VARIABLE} is not set, promptsource is not "
        f"installed, and there is no {cached_archive()}. Get them with: python -m mtf prompts "
        f"fetch; or name an archive or directory of promptsource {PROMPTSOURCE_VERSION} in "
        f"{ENVIRONMENT_VARIABLE}"
    )


def cached_archive() -> Path:
    """Returns the path of promptsource's sdist in the user's cache, where `fetch` puts it."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "mtf" / f"promptsource-{PROMPTSOURCE_VERSION}.tar.gz"


def _open(path: Path, source: str) -> Templates:
    path = path.expanduser()
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
        raise UserError(f"{source}: does not exist.{did_you_mean(path.name, names)}")
    if not files:
        raise UserError(
            f"{source}: has no templates; expected files templates/DATASET[/SUBSET]/{_FILE_NAME}, "
            f"as promptsource {PROMPTSOURCE_VERSION} has them"
        )
    return Templates(source, files)


def _read_archive(path: Path, source: str) -> dict[str, bytes]:
    """Returns the contents of the YAML files in an archive, without unpacking it to disk."""
    files = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                found = _FILE_IN_ARCHIVE.search(member.name)
                content = archive.extractfile(member) if found and member.isfile() else None
                if found and content is not None:
                    files[found[1]] = content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{source}: cannot be read as an archive: {error}; expected a .tar.gz, such as "
            f"promptsource's sdist, or a directory"
        ) from error
    return files


def _parse(content: bytes, where: str) -> tuple[Template, ...]:
    """Returns the templates in a YAML file in promptsource's format, in its order.

    Tags other than `!Template` and `!TemplateMetadata` are refused: reading a file runs nothing.
    """
    yaml = import_extra("yaml", "reading prompt templates")
    try:
        document = yaml.load(content, Loader=_loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{where}: is not a file of templates: {problem}") from error
    entries = document.get("templates") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise UserError(f"{where}: has no mapping 'templates' at its top")
    templates = tuple(_template(entry, f"{where}: {key}") for key, entry in entries.items())
    for name, count in Counter(template.name for template in templates).items():
        if count > 1:
            raise UserError(f"{where}: two templates are called {name!r}")
    return templates


class _Tagged(dict[str, Any]):
    """The fields of a `!Template` or a `!TemplateMetadata`."""


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
        raise UserError(f"{where}: is not a !Template")
    for field in ("name", "jinja"):
        if not isinstance(entry.get(field), str):
            raise UserError(f"{where}: its {field!r} is missing or no text")
    choices = entry.get("answer_choices")
    if choices is not None and not isinstance(choices, str):
        raise UserError(f"{where}: its 'answer_choices' are no text")
    metadata = entry.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise UserError(f"{where}: its 'metadata' are no mapping")
    return Template(
        name=entry["name"],
        jinja=entry["jinja"],
        answer_choices=choices or None,
        original_task=bool(metadata.get("original_task")),
        metrics=tuple(metadata.get("metrics") or ()),
    )

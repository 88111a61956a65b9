"""Reads input files for inference, and writes results in parts so that a job can resume."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtf.base import strict_json
from mtf.base.errors import UserError
from mtf.base.writing import write_atomically, writing
from mtf.data.sources.lines import (
    check_unicode,
    get_text,
    parse_line,
    read_lines,
    split_suffix,
)
from mtf.data.sources.problems import Problems
from mtf.storage import AnyPath, remove_tree

_PART = re.compile(r"(\d{5,})\.(\d+)\.jsonl")
_DELETE = "Delete the files of these results to compute them again."


class Request(NamedTuple):
    """An example on which to run inference.

    Attributes:
      inputs: text of the inputs.
      targets: text of the true targets; None if they are unknown.
      location: file and line, or task and row, as shown in messages.
      input_ids: for examples from a token cache, the token ids of the inputs without EOS.
    """

    inputs: str
    targets: str | None
    location: str
    input_ids: Sequence[int] | None = None


def read_requests(path: Path, problems: Problems | None = None) -> Iterator[Request]:
    """Yields the examples of a file, which contains one example per line.

    * A line of a `.txt` file contains the inputs.
    * A line of a `.tsv` file contains either the inputs, or the inputs, a tab and the targets. Such
      a file must not have a header, and its fields must not be quoted.
    * A line of a `.jsonl` file is `{"inputs": …}` or `{"inputs": …, "targets": …}`. Other keys are
      ignored.
    * A `.csv` file has a header with the column `inputs`, and may have a column `targets`.

    A line that cannot be used is added to `problems`. If `problems` is None, UserError is raised
    instead.
    """
    for number, line in read_lines(path, "files"):
        location = f"{path}:{number}"
        try:
            request = Request(*_parse(path, line), location)
        except UserError as error:
            if problems is None:
                raise UserError(f"files: {location}: {error}") from error
            problems.add(f"{location}: {error}")
        else:
            yield request


def _parse(path: Path, line: bytes) -> tuple[str, str | None]:
    if not line.decode(errors="replace").strip():
        raise UserError(
            "the line is blank, but each line must contain inputs; fill it in or remove it"
        )
    expected = '{"inputs": …}'
    values = parse_line(split_suffix(path)[1], line, expected)
    if isinstance(values, str):
        return values, None
    if isinstance(values, list):
        if len(values) > 2:
            raise UserError(
                f"the line has {len(values)} columns; expected inputs, or inputs, a tab and targets"
            )
        values = dict(zip(Request._fields, values, strict=False))
    names = ["inputs"] if values.get("targets") is None else ["inputs", "targets"]
    texts = [get_text(values, name, expected) for name in names]
    for name, text in zip(names, texts, strict=True):
        if not text.strip():
            raise UserError(f"{name!r} is empty; expected a nonempty string")
        check_unicode(repr(name), text)
    return texts[0], texts[1] if len(texts) > 1 else None


def summarize(
    requests: Iterable[Request],
    empty: str | None,
    problems: Problems,
    *,
    need_targets: bool = False,
) -> tuple[int, str]:
    """Returns the number of examples and a hash of their texts.

    All examples are read, so that errors are found before anything is written.
    If `need_targets` is True, adds examples without targets to `problems`. Raises UserError with
    the message `empty` if there are no examples, unless `empty` is None.
    """
    number, digest, before = 0, hashlib.sha256(), problems.count
    for request in requests:
        if need_targets and not request.targets:
            problems.add(
                f"{request.location} has no targets, which mode='score' needs; expected "
                '{"inputs": …, "targets": …} in a .jsonl file, the column targets in a .csv file, '
                "or inputs, a tab and targets in a .tsv file"
            )
        digest.update(json.dumps([request.inputs, request.targets]).encode())
        number += 1
    if not number and problems.count == before and empty is not None:
        raise UserError(f"{empty}; expected at least one example")
    return number, digest.hexdigest()[:16]


class Results:
    """The results of a task or file, written part by part.

    Each part is written to `tmp-NAME-00000-of-00001/PART.NUM_TRUNCATED.jsonl`. When all
    parts are complete, they are joined into `NAME.jsonl-00000-of-00001`, and the settings are
    recorded in `NAME.json-00000-of-00001`. Writes are atomic, so a killed job resumes after the
    last part that was written.

    Attributes:
      path: path of the complete result of this object's shard.
      done: whether the result of this shard is complete.
      parts: (path, number of truncated examples) for each part of this shard written so far.
    """

    def __init__(
        self,
        output_dir: AnyPath,
        name: str,
        described: dict[str, Any],
        *,
        shard_id: int = 0,
        num_shards: int = 1,
    ) -> None:
        """Looks for existing results; does not write anything.

        `name` consists of the name of the task or file and the mode. `described` contains the
        settings that determine the results. Raises UserError if existing results were computed with
        other settings.
        """
        self._output_dir, self._name, self._described = output_dir, name, described
        self._shards = [f"{i:05}-of-{num_shards:05}" for i in range(num_shards)]
        shard = self._shards[shard_id]
        self.path = output_dir / f"{name}.jsonl-{shard}"
        self._description = output_dir / f"{name}.json-{shard}"
        self._temporary = output_dir / f"tmp-{name}-{shard}"
        self.done = self.path.is_file()
        self._check_same()
        parts = [(_PART.fullmatch(path.name), path) for path in self._temporary.glob("*.jsonl")]
        found = {int(match[1]): (path, int(match[2])) for match, path in parts if match}
        self.parts = [found[i] for i in range(len(found)) if i in found]

    @property
    def num_truncated(self) -> int:
        """The number of examples truncated so far."""
        if self.done:
            return int(strict_json.read_own(self._description, _DELETE)["num_truncated"])
        return sum(number for _, number in self.parts)

    def _check_same(self) -> None:
        """Raises UserError if any shard was computed from other inputs or with other settings."""
        for shard in self._shards:
            for name in (f"{self._name}.json-{shard}", f"tmp-{self._name}-{shard}/described.json"):
                file = self._output_dir / name
                there = strict_json.read_own(file, _DELETE) if file.is_file() else None
                if there and (changed := changed_values(there, self._described)):
                    raise UserError(
                        f"output_dir: {self._output_dir} contains results {self._name} "
                        f"that were computed with other settings: {changed}. Choose another "
                        f"output_dir, or delete {file} and the other files of these results."
                    )

    def write_part(self, lines: Iterable[dict[str, Any]], num_truncated: int) -> None:
        """Writes the next part; before the first part, records the settings in the same folder."""
        if not self.parts:
            self._temporary.mkdir(parents=True, exist_ok=True)
            write_atomically(self._temporary / "described.json", _json(self._described))
        path = self._temporary / f"{len(self.parts):05}.{num_truncated}.jsonl"
        write_atomically(path, "".join(map(_json, lines)))
        self.parts.append((path, num_truncated))

    def finish(self) -> None:
        """Joins the parts, unless the result is already complete, and then deletes the parts."""
        if not self.done:
            self._output_dir.mkdir(parents=True, exist_ok=True)
            described = {**self._described, "num_truncated": self.num_truncated}
            write_atomically(self._description, json.dumps(described, indent=1) + "\n")
            join_files([path for path, _ in self.parts], self.path)
            self.done = True
        remove_tree(self._temporary)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yields the lines of a complete result."""
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield strict_json.loads(line)
                except ValueError as error:
                    raise UserError(
                        f"{self.path}:{number} is damaged: {error}. {_DELETE}"
                    ) from error

    def merged(self) -> AnyPath:
        """Joins the shards if all of them are complete.

        Returns the path of the joined file, or `path` if there is only one shard or any shard is
        incomplete. Raises UserError if any shard was computed with other settings.
        """
        shards = [self._output_dir / f"{self._name}.jsonl-{shard}" for shard in self._shards]
        if len(shards) == 1 or not all(shard.is_file() for shard in shards):
            return self.path
        self._check_same()
        whole = self._output_dir / f"{self._name}.jsonl"
        join_files(shards, whole)
        return whole


def changed_values(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> str:
    """Describes the values in `here` that differ from those in `there`; returns "" if none do."""
    found = [
        changed_values(there.get(key) or {}, value, f"{prefix}{key}.")
        if isinstance(value, dict)
        else f"{prefix}{key} was {there.get(key)!r} and is now {value!r}"
        for key, value in here.items()
        if there.get(key) != value
    ]
    return "; ".join(filter(None, found))


def _json(value: dict[str, Any]) -> str:
    return strict_json.dumps(value, ensure_ascii=False) + "\n"


def join_files(parts: Sequence[AnyPath], path: AnyPath) -> None:
    """Concatenates files into a file, which appears at `path` only when it is complete."""
    with writing(path) as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)

"""Inputs of inference read from files, and its results written so that a kill loses no line.

A file is read line by line, from its first line whenever it is read again; nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mtf import strict_json
from mtf.errors import UserError
from mtf.sources.lines import check_unicode, get_text, parse_line, read_lines, split_suffix
from mtf.sources.problems import Problems
from mtf.sources.text_files import find_files
from mtf.writing import replacing, write_atomically

_PART = re.compile(r"(\d{5,})\.(\d+)\.jsonl")


class Request(NamedTuple):
    """One example of inference.

    Attributes:
      inputs: the text that is encoded.
      targets: the true targets, None where there are none.
      place: where it is from, for messages.
    """

    inputs: str
    targets: str | None
    place: str


def read_requests(path: Path, problems: Problems | None = None) -> Iterator[Request]:
    """Yields the examples of a file, one a line; what a line holds depends on the suffix:

    * `.txt`: an input;
    * `.tsv`: inputs, or inputs, a tab, targets. No header, no quotation marks;
    * `.jsonl`: `{"inputs": …}`, with `"targets"` where they are known; other keys are ignored.

    Lines that cannot be used are added to `problems`; without it, the first raises UserError.
    """
    for number, line in read_lines(path, "files"):
        place = f"{path}:{number}"
        try:
            request = Request(*_parse(path, line), place)
        except UserError as error:
            if problems is None:
                raise UserError(f"files: {place}: {error}") from error
            problems.add(f"{place}: {error}")
        else:
            yield request


def _parse(path: Path, line: bytes) -> tuple[str, str | None]:
    if not line.decode(errors="replace").strip():
        raise UserError(
            "it is blank. Every line is an input, so that the lines of the result are those of "
            "the file: take it out"
        )
    expected = '{"inputs": …}'
    values = parse_line(split_suffix(path)[1], line, expected)
    match values:
        case str():
            return values, None
        case [inputs]:
            targets = None
        case [inputs, targets]:
            pass
        case list():
            raise UserError(
                f"it has {len(values)} columns; expected inputs, or inputs, a tab, targets"
            )
        case _:
            inputs = get_text(values, "inputs", expected)
            has_targets = values.get("targets") is not None
            targets = get_text(values, "targets", expected) if has_targets else None
    for name, text in (("inputs", inputs), ("targets", targets)):
        if text is not None and not text.strip():
            raise UserError(f"{name!r} is empty; expected text")
        check_unicode(repr(name), text or "")
    return inputs, targets


def input_files(patterns: Sequence[str]) -> dict[str, Path]:
    """Returns the files that paths or patterns name, by their names without suffixes.

    Raises:
      UserError: nothing is there, or its suffix says nothing; or two have one name, and so would
        write the same result.
    """
    files: dict[str, Path] = {}
    for path in find_files(patterns):
        name, _ = split_suffix(path)
        if files.setdefault(name, path) != path:
            raise UserError(
                f"files: the results of {files[name]} and {path} would have the same name, "
                f"{name}; rename one of them, or run them into different output_dir"
            )
    return files


class Summary(NamedTuple):
    """How many examples there are, and a hash of them all."""

    num_examples: int
    fingerprint: str


def summarize(
    requests: Iterable[Request], name: str, problems: Problems, *, need_targets: bool
) -> Summary:
    """Goes through all examples, so that what is wrong is found before anything is written.

    Args:
      requests: of a file or task.
      name: what they are of.
      problems: gets the examples that cannot be used.
      need_targets: whether one without targets is such.

    Raises:
      UserError: there is no example.
    """
    number, digest, before = 0, hashlib.sha256(), problems.count
    for request in requests:
        if need_targets and not request.targets:
            problems.add(
                f"{request.place} has no targets, which mode='score' scores; expected "
                '{"inputs": …, "targets": …} in a .jsonl file, or inputs, a tab, targets in a .tsv '
                "file"
            )
        digest.update(json.dumps([request.inputs, request.targets]).encode())
        number += 1
    if not number and problems.count == before:
        raise UserError(f"{name} is empty: there is no example to run inference on")
    return Summary(number, digest.hexdigest()[:16])


# ----------------------------------------------------------------------------------- results


class Results:
    """The results of one task or file, written part by part.

    `NAME.jsonl-00000-of-00001` appears when all parts are there, which lie in a folder beside it
    until then: `tmp-NAME-00000-of-00001/00000.0.jsonl`, the number of the part and of the examples
    in it that were cut off. Every file appears whole or not at all, so a run that was killed at any
    time goes on behind the last part. `NAME.json-00000-of-00001` describes what was run.

    Attributes:
      path: of the result.
      num_parts: written so far.
      done: whether the result is there.
    """

    def __init__(
        self,
        output_dir: Path,
        name: str,
        described: dict[str, Any],
        *,
        shard_id: int = 0,
        num_shards: int = 1,
    ) -> None:
        """Looks at what is there; writes nothing.

        Args:
          output_dir: may not exist yet.
          name: of the task or file, and the mode.
          described: what decides the results, as JSON.
          shard_id: which part of the examples.
          num_shards: how many parts there are.

        Raises:
          UserError: what is there was made of other inputs or with other settings.
        """
        self._shard = _shard(shard_id, num_shards)
        self._output_dir, self._name, self._num_shards = output_dir, name, num_shards
        self._described = described
        self.path = output_dir / f"{name}.jsonl-{self._shard}"
        self._temporary = output_dir / f"tmp-{name}-{self._shard}"
        self.done = self.path.is_file()
        self._compare_all()
        self._parts = self._find_parts()

    @property
    def num_parts(self) -> int:
        """Parts written so far."""
        return len(self._parts)

    @property
    def num_truncated(self) -> int:
        """Examples that were cut off: of the result, or of the parts written so far."""
        if self.done:
            described = json.loads(self._description.read_text(encoding="utf-8"))
            return int(described["num_truncated"])
        return sum(number for _, number in self._parts)

    @property
    def _description(self) -> Path:
        return self._output_dir / f"{self._name}.json-{self._shard}"

    def _compare_all(self) -> None:
        """Refuses results, of any shard, that were made otherwise."""
        for i in range(self._num_shards):
            shard = _shard(i, self._num_shards)
            self._compare(self._output_dir / f"{self._name}.json-{shard}")
            self._compare(self._output_dir / f"tmp-{self._name}-{shard}" / "described.json")

    def _compare(self, place: Path) -> None:
        if not place.is_file():
            return
        there = json.loads(place.read_text(encoding="utf-8"))
        here, there = _flat(self._described), _flat(there)
        changed = [
            f"{key} is {value!r}, there it was {there.get(key)!r}"
            for key, value in here.items()
            if there.get(key) != value
        ]
        if changed:
            raise UserError(
                f"output_dir: {self._output_dir} has results of {self._name} that were made "
                f"otherwise: {'; '.join(changed)}. Choose another output_dir, or delete {place} "
                f"and what is beside it."
            )

    def _find_parts(self) -> list[tuple[Path, int]]:
        found = {}
        if self._temporary.is_dir():
            for path in self._temporary.iterdir():
                match = _PART.fullmatch(path.name)
                if match:
                    found[int(match[1])] = (path, int(match[2]))
        return [found[i] for i in range(len(found)) if i in found]

    def start(self) -> None:
        """Makes the folder for the parts."""
        self._temporary.mkdir(parents=True, exist_ok=True)
        write_atomically(self._temporary / "described.json", _json(self._described) + "\n")

    def write_part(self, lines: Iterable[dict[str, Any]], num_truncated: int) -> None:
        """Writes the next part."""
        path = self._temporary / f"{len(self._parts):05}.{num_truncated}.jsonl"
        write_atomically(path, "".join(_json(line) + "\n" for line in lines))
        self._parts.append((path, num_truncated))

    def finish(self) -> None:
        """Joins the parts to the result and removes them; joins the shards if this is the last."""
        described = {**self._described, "num_truncated": self.num_truncated}
        write_atomically(self._description, json.dumps(described, indent=1) + "\n")
        _join([path for path, _ in self._parts], self.path)
        self.done = True
        self.clean_up()

    def clean_up(self) -> None:
        """Removes the parts, which a run that was killed while it finished has left."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    def take_back(self) -> None:
        """Leaves nothing where no part was written."""
        if not self._parts and not self.done:
            self.clean_up()
            with contextlib.suppress(OSError):
                self._output_dir.rmdir()  # refused where there is anything in it

    def merged(self) -> Path:
        """Returns the file of all shards, written if they are all there; else this shard's own.

        Whoever finishes last writes it; two at once write the same.

        Raises:
          UserError: another shard was made otherwise.
        """
        shards = [
            self._output_dir / f"{self._name}.jsonl-{_shard(i, self._num_shards)}"
            for i in range(self._num_shards)
        ]
        if self._num_shards == 1 or not all(shard.is_file() for shard in shards):
            return self.path
        self._compare_all()
        whole = self._output_dir / f"{self._name}.jsonl"
        _join(shards, whole)
        return whole


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
        found.update(inner)
    return found


def _shard(number: int, num_shards: int) -> str:
    return f"{number:05}-of-{num_shards:05}"


def _json(value: dict[str, Any]) -> str:
    return strict_json.dumps(value, ensure_ascii=False)


def _join(parts: Sequence[Path], path: Path) -> None:
    with replacing(path) as temporary, temporary.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)

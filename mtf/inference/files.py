"""Inputs of inference read from files, and its results written so that a kill loses no line.

A file is read line by line, from its first line whenever it is read again; nothing is kept.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mtf import strict_json
from mtf.errors import UserError, did_you_mean
from mtf.sources.files import find_files
from mtf.sources.problems import Problems
from mtf.sources.suffixes import PAIR_SUFFIXES, SUFFIXES, TEXT_SUFFIXES
from mtf.writing import replacing, write_atomically

_PART = re.compile(r"(\d{5,})\.(\d+)\.jsonl")


class _LineError(ValueError):
    """What is wrong with a line, its place included."""


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


# ----------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class InputFile:
    """A file of inputs, an example a line; by its suffix (each also with `.gz`):

    * `.txt`: a line is an input;
    * `.tsv`: a line is inputs, or inputs, a tab, targets. No header, no quotation marks;
    * `.jsonl`: a line is `{"inputs": …}`, `"targets"` too where they are known; other keys are
      left alone.

    Attributes:
      path: the file.
    """

    path: Path

    @property
    def name(self) -> str:
        """The file's name without its suffixes."""
        suffix = next(s for s in sorted(SUFFIXES, key=len)[::-1] if self.path.name.endswith(s))
        return self.path.name.removesuffix(suffix)

    def __iter__(self) -> Iterator[Request]:
        """Yields the examples in order.

        Raises:
          UserError: a line cannot be used; says which and why.
        """
        for request in self._read():
            if isinstance(request, _LineError):
                raise UserError(f"files: {request}")
            yield request

    def checked(self, problems: Problems) -> Iterator[Request]:
        """Yields the examples in order; lines that cannot be used are added to `problems`."""
        for request in self._read():
            if isinstance(request, _LineError):
                problems.add(str(request))
            else:
                yield request

    def _read(self) -> Iterator[Request | _LineError]:
        opener = gzip.open if self.path.name.endswith(".gz") else open
        try:
            with opener(self.path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    try:
                        yield self._parse(line, f"{self.path}:{number}")
                    except _LineError as error:
                        yield error
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"files: {self.path} cannot be read: {reason}") from error

    def _parse(self, line: bytes, place: str) -> Request:
        try:
            text = line.decode("utf-8-sig" if place.endswith(":1") else "utf-8")
        except UnicodeDecodeError as error:
            raise _LineError(f"{place} is not UTF-8: {error.reason}") from error
        text = text.removesuffix("\n").removesuffix("\r")
        if not text.strip():
            raise _LineError(
                f"{place} is blank. Every line is an input, so that the lines of the result are "
                "those of the file: take it out"
            )
        if self.path.name.endswith(TEXT_SUFFIXES):
            return Request(text, None, place)
        if self.path.name.endswith(PAIR_SUFFIXES):
            columns = text.split("\t")
            if len(columns) > 2:
                raise _LineError(
                    f"{place} has {len(columns)} columns; expected inputs, or inputs, a tab, "
                    "targets"
                )
            return _request(columns[0], columns[1] if len(columns) == 2 else None, place)
        try:
            values = json.loads(text)
        except ValueError as error:
            raise _LineError(f"{place} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise _LineError(f'{place} is not a JSON object; expected {{"inputs": …}}')
        if "inputs" not in values:
            raise _LineError(
                f"{place} has no 'inputs', only {', '.join(values) or 'nothing'}."
                f"{did_you_mean('inputs', values)}"
            )
        return _request(values["inputs"], values.get("targets"), place)


def _request(inputs: Any, targets: Any, place: str) -> Request:
    for name, value in (("inputs", inputs), ("targets", targets)):
        if not isinstance(value, str) and not (name == "targets" and value is None):
            raise _LineError(f"{place}: {name!r} is {type(value).__name__}; expected a string")
        if value is not None and not value.strip():
            raise _LineError(f"{place}: {name!r} is empty; expected text")
        if value is not None and not _is_unicode(value):
            raise _LineError(
                f"{place}: {name!r} has half of a surrogate pair, which is not a character; "
                "expected text"
            )
    return Request(inputs, targets, place)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def input_files(patterns: Sequence[str]) -> list[InputFile]:
    """Returns the files that paths or patterns name.

    Raises:
      UserError: nothing is there, or its suffix says nothing; or two have one name, and so would
        write the same result.
    """
    files = [InputFile(path) for path in find_files(patterns)]
    first: dict[str, InputFile] = {}
    for file in files:
        other = first.setdefault(file.name, file)
        if other is not file:
            raise UserError(
                f"files: the results of {other.path} and {file.path} would have the same name, "
                f"{file.name}; rename one of them, or run them into different output_dir"
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


@contextlib.contextmanager
def os_errors_refused(output_dir: Path) -> Iterator[None]:
    """Turns what the file system refuses into a message about `output_dir`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"output_dir: {output_dir} cannot be used: {error.strerror} ({error.filename})."
        ) from error

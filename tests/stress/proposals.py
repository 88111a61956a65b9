"""Finds the commands that a message about a mistake proposes."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator

_COMMAND = re.compile(
    r"(?<=Write: )python -m mtf\.run .*|"
    r"python -m mtf[^`;\n]*?(?=[`;]|\. |\.?$|, | shows | lists | translates )|(?<=write )mtf .*",
    re.MULTILINE,
)
_SET = re.compile(r"(?:[Ww]rite|mean|[Pp]ass) --set (.+?)\.?\??$", re.MULTILINE)
_OPTION = re.compile(
    r"(?:with|use|pass) (--(?:allow|apply|to|list)(?: [\w.]*\w)?)|Leave it (out)|leave out (--\w+)"
)
_CALL = re.compile(r"(?:Write|Call it:) \"?([\w.]+\(.*\))\"?$", re.MULTILINE)
_VALUE = re.compile(r"^error: ([\w.]+)=(.*?): .*Write (?:[\w.]+=)?([^\s-].*?)\.?$")
_EXAMPLE = re.compile(r"(?:for example|such as) (([\w.]+)=([\w.]*\w))\.?$")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|…")
PROPOSES = re.compile(
    r"Did you mean|Write |, write |python -m mtf|\b(?:[Pp]ass|[Uu]se) --|eave (?:it )?out|Call it"
)


def proposals(line: str, message: str) -> Iterator[str]:
    """Yields the commands that a message about the command `line` proposes."""
    for found in _COMMAND.findall(message):
        if not PLACEHOLDER.search(found):
            yield found
    words = shlex.split(line) if line.startswith("mtf ") else []
    given = ("set", "print", "dry-run", "from", "allow", "apply", "engine", "to")
    unknown = (i for i, w in enumerate(words) if w[:2] == "--" and w[2:] not in given)
    kept = [word for word in words[: next(unknown, len(words))] if word != "--dry-run"]
    for found in _SET.findall(message):
        words_left = [word for word in kept if word != found]
        yield shlex.join(words_left) + (" " if "--set" in kept else " --set ") + found
    for added, _, removed in _OPTION.findall(message) if words else ():
        name = removed or added.partition(" ")[0]
        at = kept.index(name) if name in kept else len(kept)
        yield shlex.join(kept[:at] + kept[at + 2 :]) + f" {added}"
    for found in re.findall(r"Leave out ([\w.]+\w)", message):
        if found in kept:
            yield shlex.join(word for word in kept if word != found)
    for found in _CALL.findall(message):
        if not PLACEHOLDER.search(found):
            if not words:
                yield found
            elif words[2].startswith(found.partition("(")[0]):
                yield shlex.join([*kept[:2], found, *kept[3:]])
    if found := _VALUE.search(message.strip()):
        path, old, new = found.groups()
        new = f"@{new}" if old[:1] == "@" != new[:1] else new
        yield shlex.join(f"{path}={new}" if word == f"{path}={old}" else word for word in words)
    if found := _EXAMPLE.search(message.strip()):
        yield shlex.join(found[1] if word in found.groups() else word for word in words)
    if found := re.search(r"Use '(\w+)'", message):
        yield re.sub(r"fp16|float16", found[1], line)
    for found in re.findall(r"Did you mean (?!--set)(.*?)(?:, .*?| or .*?)?\?", message):
        if (other := _replaced(line, message, found.strip("'\""))) is not None:
            yield other


def _replaced(line: str, message: str, name: str) -> str | None:
    """The command with `name` in place of the word that the message is about."""
    name = name.partition("=")[0]
    words = [word for word in re.findall(r"[\w./:+-]+", line) if word != name]
    words += [part for word in words for part in re.split("[.:]", word)]
    said = [word for word in words if word and word in message]
    wrong = re.findall(r"got (\w+)\.|: (\S+) does not exist", message)
    near = [*filter(None, wrong[0])] if wrong else difflib.get_close_matches(name, said, 1, 0.3)
    return re.sub(rf"(?<!\w){re.escape(near[0])}(?!\w)", name, line, count=1) if near else None

"""Defines the parsers, the shared options and the exit statuses of the commands."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from mtf.base import signals
from mtf.base.environment import hiding_file
from mtf.base.errors import RunError, UserError, suggestion
from mtf.storage.errors import StorageError, without_user

HELP_WIDTH = 80
# The mistakes that argparse finds, as patterns, and what is printed instead.
_MISTAKES = (
    ("argument (?=.*: )", ""),
    ("invalid (int|float) value: '(.*)'", r"expected \1, got \2"),
    ("expected (one|at least one) argument", r"expected \1 value"),
    ("not allowed with argument", "cannot be used with"),
    ("ignored explicit argument '(.*)'", r"takes no value, got \1"),
    ("the following arguments are required: ", "missing: "),
)
_UNKNOWN = "unrecognized arguments: "


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return filled(text, width)


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, with the most similar options or choices."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        names = list(map(str, action.choices or ()))
        if not names or value in names:
            return
        described = re.findall(rf"(\w+): [^;]*\b{re.escape(value)}\b", action.help or "", re.I)
        expected = f"expected one of {', '.join(names)}, got {value}."
        raise argparse.ArgumentError(
            action, f"{expected}{_hint(value, names) or suggestion(described)}"
        )

    def error(self, message: str) -> NoReturn:
        hint = f" {self.prog} --help shows what is expected."
        if message.startswith(_UNKNOWN):
            unknown = message.removeprefix(_UNKNOWN)
            name = unknown.split()[0].partition("=")[0]
            message = f"there is no option {name}" if name[0] == "-" else f"unexpected: {unknown}"
            hint = _hint(name, option_names(self)) or hint
        for pattern, text in _MISTAKES:
            message = re.sub(pattern, text, message)
        self.exit(2, f"error: {message}{'' if message[-1] in '.?' else '.' + hint}\n")


def _hint(name: str, options: list[str]) -> str:
    return suggestion(difflib.get_close_matches(name, options, n=1))


def new_parser(
    command: str, description: str, epilog: str, *, add_help: bool = True
) -> argparse.ArgumentParser:
    """Creates the parser for the command `python -m mtf COMMAND` or `python -m mtf.COMMAND`."""
    is_module = command in ("run", "convert", "cache")
    return _Parser(
        prog=f"python -m mtf{'.' if is_module else ' '}{command}",
        description=description,
        epilog=epilog,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=add_help,
    )


def filled(text: str, width: int = HELP_WIDTH) -> str:
    """Wraps paragraphs and items that begin with `* ` or `Title: `; keeps code and tables."""
    blocks: list[tuple[str, str | None]] = []  # (text, indentation of its next line if wrapped)
    for line in text.splitlines():
        start = re.match(r" *(\* |[A-Z][\w ]*: )?", line)[0]  # type: ignore[index]
        if line.strip() and blocks and blocks[-1][1] == start:
            blocks[-1] = f"{blocks[-1][0]} {line.strip()}", start
        else:
            is_item = start.endswith("* ")
            is_prose = is_item or line[:1] not in ("", " ", "|")
            blocks.append((line, " " * len(start) * is_item if is_prose else None))
    return "\n".join(
        block if indent is None else wrapped(block, width, indent) for block, indent in blocks
    )


def wrapped(text: str, width: int = HELP_WIDTH, indent: str = "") -> str:
    """Wraps a text between words only; `indent` precedes all lines but the first."""
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text)


def quoted(text: str) -> str:
    """Quotes a text for a shell if necessary, for example as "NAME='text'"."""
    in_double_quotes = "'" in text and not set(text) & set('"$`\\!')
    return f'"{text}"' if in_double_quotes else shlex.quote(text)


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the long option names listed in a parser's help."""
    return re.findall(r"^  (?:-\w[^-]*)?(--[\w-]+)", parser.format_help(), re.MULTILINE)


def exit_status(run: Callable[[], int | None], *, only_shows: bool) -> int:
    """Runs a command, reports errors and signals on stderr, and returns the exit status.

    The status is the value that `run` returns (0 for None), 1 for a `RunError`, 2 for a `UserError`
    or `StorageError`, or 128 + N for signal N. Any other exception is a bug and is not caught. If
    `only_shows` is true, it is not an error if a program such as `head` closes the output pipe.
    """
    try:
        if file := hiding_file("conversion"):
            raise UserError(f"{file} hides mtf's package conversion; rename the file.")
        status = run() or 0
        sys.stdout.flush()
        return status
    except (UserError, StorageError, RunError) as error:
        # Print the original message, without the context that fdl.build appends.
        message = without_user(str(getattr(error, "proxy_base_exception", error)))
        print(f"error: {message}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except signals.Stopped as stopped:
        print(signals.farewell(stopped.number), file=sys.stderr)
        return 128 + stopped.number
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except OSError as error:
        # Stdout is a closed pipe or terminal, or a file on a full disk.
        full_or_closed = error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None
        if not only_shows or not (full_or_closed or isinstance(error, BrokenPipeError)):
            raise
        # Otherwise, Python would try to flush stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1


def add_change_options(parser: argparse.ArgumentParser) -> None:
    """Adds --set, --unset and --apply, which append (kind, text) pairs to `overrides` in order."""
    applied = "change the config (options are applied in the order given)"
    change: Any = parser.add_argument_group(applied)
    several = {"nargs": "+", "action": "extend"}
    for kind, number, metavar, text in (
        ("set", several, "PATH=VALUE", "set a field; +PATH=VALUE adds a key to a dict"),
        ("unset", several, "PATH", "restore a field's default, or remove a key of a dict"),
        ("apply", {"action": "append"}, "FIDDLER[(kw=…)]", "apply a function to the config"),
    ):
        change.add_argument(
            f"--{kind}",
            dest="overrides",
            type=lambda text, kind=kind: (kind, text),
            metavar=metavar,
            help=text,
            **number,
        )
    parser.set_defaults(overrides=[])


def add_trust_option(add: Callable[..., Any]) -> None:
    """Adds the option --trust, which may be repeated."""
    text = "import modules of yours that the config of this run names (docs/config.md)"
    add("--trust", action="append", default=[], metavar="RUN", help=text)

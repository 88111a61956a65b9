"""The files that describe a run, in its directory, and the check that a run may go on there."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle import history

from mtf.config import codegen, paths, serialize, show, tree
from mtf.config.diff import Change, diff
from mtf.config.paths import format_path, parse_path
from mtf.environment import ENVIRONMENT_FILE, write_environment
from mtf.errors import UserError
from mtf.writing import LOCK_FILE, TEMPORARY, write_atomically

CONFIG_FILE = "config.json"


def new_run_dir(recipe_name: str) -> str:
    """Returns `runs/NAME-YYYYmmdd-HHMMSS`, a name that is not taken."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = os.path.join("runs", f"{recipe_name}-{stamp}")
    return next(
        candidate
        for candidate in (name if i == 0 else f"{name}-{i}" for i in range(10_000))
        if not os.path.exists(candidate)
    )


def load_config(path: str | Path) -> fdl.Config:
    """Loads the config of a run directory, or a config.json.

    Raises:
      UserError: there is none, or it cannot be read.
    """
    path = Path(path)
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        what = f"{path} is not a run directory: it has no {CONFIG_FILE}." if path.is_dir() else ""
        raise UserError(what or f"There is no run directory {path}.")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a config that mtf wrote.") from None
    config = serialize.load_json(text, str(file))
    location = history.Location(os.path.relpath(file), 0, None)
    with history.custom_location(lambda: location):
        for _, node in list(tree.components(config)):
            for field, value in list(node.__arguments__.items()):
                node.__argument_history__.add_new_value(field, value)
    return config


def check_resume(config: fdl.Config, run_dir: str | Path, allow: Sequence[str] = ()) -> bool:
    """Checks that a run of this config may be started, or go on, in the directory.

    A change of a field whose dataclass declares `metadata={"on_resume": "may change"}`, on the
    field itself or on one above it, is fine; any other must be allowed by name.

    Args:
      config: the config as it is now.
      run_dir: may not exist yet.
      allow: paths; what lies below them may change too.

    Returns:
      Whether the directory holds a run already.

    Raises:
      UserError: the changes that are not allowed; or the directory holds something else.
    """
    run_dir = Path(run_dir)
    with _os_errors_refused(run_dir):
        is_free = not run_dir.exists() or (run_dir.is_dir() and _holds_nothing(run_dir))
        # In this order: another process of the same run may be writing the directory.
        is_run = (run_dir / CONFIG_FILE).is_file()
    if is_free:
        _check_allowed(config, config, allow)
        return False
    if not run_dir.is_dir():
        raise UserError(f"model_dir: {run_dir} is a file, not a directory.")
    if not is_run:
        raise UserError(
            f"model_dir: {run_dir} is not empty and holds no run of mtf (no {CONFIG_FILE}). "
            "Choose another directory."
        )
    stored = load_config(run_dir)
    _check_allowed(stored, config, allow)
    allowed = [parse_path(text) for text in allow]
    refused = [
        change
        for change in diff(stored, config)
        if not _may_change(change, stored, config)
        and not any(change.path[: len(prefix)] == prefix for prefix in allowed)
    ]
    if refused:
        lines = "".join(f"\n  {change}" for change in refused)
        names = " ".join(f"--allow {format_path(change.path)}" for change in refused[:3])
        raise UserError(
            f"{run_dir} holds a run of another config. These changes would alter its training:"
            f"{lines}\nStart a new run with another model_dir, or allow them by name: {names}"
        )
    return True


@contextlib.contextmanager
def _os_errors_refused(run_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"model_dir: {run_dir} cannot be used: {error.strerror} ({error.filename})."
        ) from error


def _holds_nothing(run_dir: Path) -> bool:
    """Returns whether the directory is empty but for what a killed `write_run_dir` leaves."""
    names = {file.name for file in run_dir.iterdir() if not file.match(TEMPORARY)} - {LOCK_FILE}
    before_config = {"overrides.txt", ENVIRONMENT_FILE, "config.py", "config.txt"}
    return not names or ("overrides.txt" in names and names <= before_config)


def _check_allowed(stored: fdl.Config, config: fdl.Config, allow: Sequence[str]) -> None:
    known = {
        format_path(path)
        for each in (stored, config)
        for path in tree.known_paths(tree.complete(each))
    }
    for text in allow:
        shown = format_path(parse_path(text))
        if shown not in known:
            near = paths.nearest_paths(shown, known)
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            raise UserError(f"--allow {text}: the config has no {shown}.{hint}")


def _may_change(change: Change, *configs: fdl.Config) -> bool:
    # The directory may have been moved; it is not part of the training.
    if change.path == ("model_dir",):
        return True
    return any(_declared_free(config, change.path) for config in configs)


def _declared_free(config: Any, path: paths.Path) -> bool:
    current = config
    for step in path:
        if isinstance(current, fdl.Buildable):
            if tree.field_metadata(current, str(step)).get("on_resume") == "may change":
                return True
            current = tree.arguments(current).get(step)
        elif isinstance(current, dict):
            current = current.get(step)
        elif isinstance(current, list | tuple) and isinstance(step, int) and step < len(current):
            current = current[step]
        else:
            return False
    return False


def write_run_dir(run_dir: str | Path, config: fdl.Config, command: str, title: str = "") -> None:
    """Writes config.json, config.py, config.txt, overrides.txt and environment.json.

    Each file appears whole or not at all; config.json comes last. A config.json that is there
    and differs is kept as config.1.json, config.2.json, …

    Args:
      run_dir: made if it does not exist.
      config: what will be run.
      command: the command line; each start in the directory adds a line to overrides.txt.
      title: first line of config.py.

    Raises:
      UserError: the directory cannot be made or written to.
    """
    run_dir = Path(run_dir)
    texts = {
        CONFIG_FILE: serialize.dump_json(config),
        "config.py": codegen.as_python(config, title or f"The config of {run_dir.name}."),
        "config.txt": show.as_flat_text(config),
    }
    with _os_errors_refused(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        _write_files(run_dir, texts, command)


def _write_files(run_dir: Path, texts: dict[str, str], command: str) -> None:
    stored = run_dir / CONFIG_FILE
    changed = not stored.is_file() or stored.read_text(encoding="utf-8") != texts[CONFIG_FILE]
    if stored.is_file() and changed:
        number = next(i for i in range(1, 1_000_000) if not (run_dir / f"config.{i}.json").exists())
        write_atomically(run_dir / f"config.{number}.json", stored.read_text(encoding="utf-8"))
    commands = run_dir / "overrides.txt"
    before = commands.read_text(encoding="utf-8") if commands.is_file() else ""
    write_atomically(commands, f"{before}{command}\n")
    write_environment(run_dir, [])
    if changed:
        for name in ("config.py", "config.txt", CONFIG_FILE):
            write_atomically(run_dir / name, texts[name])


@contextlib.contextmanager
def undone_on_refusal(run_dir: str | Path) -> Iterator[None]:
    """Puts the directory back as it was, if a UserError leaves the block before anything ran.

    Some refusals need the devices or the checkpoint, so they come after the config is written.
    Once the job itself has written something there, everything stays.
    """
    run_dir = Path(run_dir)
    made = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
    before = {} if made else {f: f.read_bytes() for f in _own_files(run_dir)}
    others = set() if made else set(run_dir.iterdir()) - set(before)
    try:
        yield
    except UserError:
        if not run_dir.is_dir():
            raise
        new = set(run_dir.iterdir()) - set(_own_files(run_dir)) - others
        if not any(path.is_file() or any(p.is_file() for p in path.rglob("*")) for path in new):
            for empty in new:
                shutil.rmtree(empty)
            for file in _own_files(run_dir):
                if file not in before:
                    file.unlink()
            for file, content in before.items():
                file.write_bytes(content)
            for folder in made:
                with contextlib.suppress(OSError):  # Somebody else uses it by now.
                    folder.rmdir()
        raise


def _own_files(run_dir: Path) -> list[Path]:
    names = (*run_dir.glob("config*"), run_dir / "overrides.txt", run_dir / ENVIRONMENT_FILE)
    return [file for file in names if file.is_file()]

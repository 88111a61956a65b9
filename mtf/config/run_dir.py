"""Writes and reads the config of a run directory, and checks whether a run may resume there."""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
from fiddle import daglish

from mtf.config import codegen, paths, provenance, serialize, show, tree
from mtf.config.paths import format_path, parse_path
from mtf.environment import ENVIRONMENT_FILE, working_directory, write_environment
from mtf.errors import UserError, suggestion
from mtf.run_end import END_FILE
from mtf.storage import AnyPath, StorePath, as_path, remove_tree
from mtf.writing import (
    LOCK_FILE,
    T5X_CONFIG_FILE,
    TEMPORARY,
    os_errors_refused,
    write_atomically,
)

CONFIG_FILE = "config.json"


def new_run_dir(recipe_name: str) -> str:
    """Returns an unused path `runs/NAME-YYYYmmdd-HHMMSS`."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = os.path.join("runs", f"{recipe_name}-{stamp}")
    names = (f"{name}-{i}" if i else name for i in range(10_000))
    return next(candidate for candidate in names if not os.path.exists(candidate))


def load_config(path: str | AnyPath) -> fdl.Config:
    """Loads the config of a run directory or a config.json; raises UserError if it cannot."""
    path = as_path(path)
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        what = f"{path} is not a run directory: it has no {CONFIG_FILE}." if path.is_dir() else ""
        raise UserError(what or f"There is no run directory or config file {path}.")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a config written by mtf.") from None
    try:
        config = serialize.load_json(text, str(file))
    except UserError:
        folder = working_directory(file.parent)
        if folder is None or folder in sys.path:
            raise
        sys.path.append(folder)  # The user's own functions may be there.
        config = serialize.load_json(text, str(file))
    for _, node in tree.components(config):
        provenance.record(node, _shown(file))
    return config


def _shown(file: AnyPath) -> str:
    return os.path.relpath(file) if isinstance(file, Path) else str(file)


def check_resume(
    config: fdl.Config, run_dir: str | AnyPath, allow: Sequence[str] = (), engine: str = "mtf"
) -> bool:
    """Checks that a run of this config may start or resume in the directory.

    A field may change if it or a field above it has the metadata {"on_resume": "may change"}, or
    if `allow` has a path to one of them. Other changes, a directory with other files, and a run of
    another `engine` ("mtf" or "t5x") raise a UserError. Returns whether the directory already has
    a run.
    """
    run_dir = as_path(run_dir)
    with os_errors_refused(run_dir, "model_dir"):
        if isinstance(run_dir, StorePath):
            run_dir.check_writable()
        is_free = not run_dir.exists() or (run_dir.is_dir() and _holds_nothing(run_dir))
        # Checked last, because another process of the same run may be writing the directory.
        is_run = (run_dir / CONFIG_FILE).is_file()
    if not is_free and not run_dir.is_dir():
        raise UserError(f"model_dir: {run_dir} is a file, not a directory.")
    if not is_free and not is_run:
        raise UserError(
            f"model_dir: {run_dir} is not empty and is not a run directory (it has no "
            f"{CONFIG_FILE}). Choose another directory."
        )
    stored = config if is_free else load_config(run_dir)
    if is_run:
        _check_engine(run_dir, engine)
    allowed = [parse_path(text) for text in allow]
    known = {name for each in (stored, config) for name in tree.known_paths(tree.complete(each))}
    for text, shown in zip(allow, map(format_path, allowed), strict=True):
        if shown not in known:
            hint = suggestion(paths.nearest_paths(shown, known))
            raise UserError(f"--allow {text}: the config has no {shown}.{hint}")
    # The directory may have been moved.
    allowed.append(("model_dir",))
    refused = [
        change
        for change in show.diff(stored, config)
        if not any(change.path[: len(prefix)] == prefix for prefix in allowed)
        and not _declared_free(config, change.path)
        and not _declared_free(stored, change.path)
    ]
    if refused:
        lines = "".join(f"\n  {change}" for change in refused)
        names = " ".join(f"--allow {format_path(change.path)}" for change in refused)
        raise UserError(
            f"{run_dir} has a run with another config. These changes would alter its training:"
            f"{lines}\nStart a new run with another model_dir, or allow the changes with {names}"
        )
    return not is_free


def _check_engine(run_dir: AnyPath, engine: str) -> None:
    """Raises UserError if the run in the directory was started with another engine."""
    used = "t5x" if (run_dir / T5X_CONFIG_FILE).is_file() else "mtf"
    if used != engine:
        raise UserError(
            f"model_dir: the run in {run_dir} was started with --engine {used} and cannot be "
            f"resumed with --engine {engine}. Continue it with --engine {used}, or start a new run "
            "with another model_dir and a checkpoint of this run as checkpoint.restore."
        )


def _holds_nothing(run_dir: AnyPath) -> bool:
    """Returns whether the directory has no files but those of a killed `write_run_dir`."""
    names = {file.name for file in run_dir.iterdir() if not file.match(TEMPORARY)} - {LOCK_FILE}
    before_config = {"overrides.txt", ENVIRONMENT_FILE, "config.py", "config.txt"}
    return not names or ("overrides.txt" in names and names <= before_config)


def _declared_free(config: Any, path: paths.Path) -> bool:
    """Returns whether a field at or above the end of a path may change on resume."""
    holders = (paths.follow(config, path[:depth]) for depth in range(len(path)))
    return any(
        isinstance(holder, fdl.Buildable)
        and tree.field_metadata(holder, str(step)).get("on_resume") == "may change"
        for holder, step in zip(holders, path, strict=True)
    )


def write_run_dir(
    run_dir: str | AnyPath, config: fdl.Config, command: str, title: str = ""
) -> None:
    """Writes config.json, config.py, config.txt, overrides.txt and environment.json.

    Files are written atomically, config.json last. An existing config.json that differs is kept as
    config.1.json, config.2.json, … `command` is appended to overrides.txt; `title` is the first
    line of config.py. Raises a UserError if the directory cannot be created or written to.
    """
    run_dir = as_path(run_dir)
    as_json = serialize.dump_json(config)
    texts = {
        "config.py": codegen.as_python(config, title or f"The config of {run_dir.name}."),
        "config.txt": show.as_flat_text(config),
        CONFIG_FILE: as_json,
    }
    stored, commands = run_dir / CONFIG_FILE, run_dir / "overrides.txt"
    with os_errors_refused(run_dir, "model_dir"):
        run_dir.mkdir(parents=True, exist_ok=True)
        before = stored.read_text(encoding="utf-8") if stored.is_file() else None
        changed = before != as_json
        if before is not None and changed:
            files = (run_dir / f"config.{i}.json" for i in range(1, 1_000_000))
            write_atomically(next(file for file in files if not file.exists()), before)
        earlier = commands.read_text(encoding="utf-8") if commands.is_file() else ""
        write_atomically(commands, f"{earlier}{command}\n")
        write_environment(run_dir, [])
        for name, text in texts.items() if changed else ():
            write_atomically(run_dir / name, text)


@contextlib.contextmanager
def undone_on_refusal(run_dir: str | AnyPath) -> Iterator[None]:
    """Restores the directory if the block raises a UserError and has written nothing there."""
    run_dir = as_path(run_dir)
    # A store has no directories that are made.
    folders = (run_dir, *(run_dir.parents if isinstance(run_dir, Path) else ()))
    made = [folder for folder in folders if not folder.exists()]
    before = {} if made else {f: f.read_bytes() for f in _own_files(run_dir)}
    others = set() if made else set(run_dir.iterdir()) - set(before)
    try:
        yield
    except UserError:
        if not run_dir.is_dir():
            raise
        new: list[AnyPath] = [*run_dir.iterdir()]
        new = [path for path in new if path not in {*_own_files(run_dir), *others}]
        if not any(path.is_file() or any(p.is_file() for p in path.rglob("*")) for path in new):
            for empty in new:
                remove_tree(empty)
            for file in _own_files(run_dir):
                if file not in before:
                    file.unlink()
            for file, content in before.items():
                file.write_bytes(content)
            for folder in made:
                with contextlib.suppress(OSError):  # Another process uses it by now.
                    folder.rmdir()
        raise


def _own_files(run_dir: AnyPath) -> list[AnyPath]:
    names = ("overrides.txt", ENVIRONMENT_FILE, END_FILE, T5X_CONFIG_FILE)
    files = (*run_dir.glob("config*"), *(run_dir / name for name in names))
    return [file for file in files if file.is_file()]


def locate(config: fdl.Config, run_dir: str | AnyPath) -> tuple[fdl.Config, fdl.Config]:
    """Returns the config to store in a run directory, and the config to run.

    They differ if a run resumes in another working directory: to run, stored relative paths become
    absolute paths below the directory in which the run was started, if they exist there. New
    relative paths are stored as absolute ones. Fields with the metadata {"path": True} are paths.
    """
    started = _started_elsewhere(run_dir)
    if started is None:
        return config, config
    before = {
        where: {text for text, _ in daglish.iterate(getattr(node, field)) if isinstance(text, str)}
        for where, node, field in _path_fields(load_config(run_dir))
    }

    def new_absolute(where: paths.Path, path: str) -> str:
        return path if path in before.get(where, ()) else _below(os.getcwd(), path)

    def stored_absolute(where: paths.Path, path: str) -> str:
        return _below(started, path) if path in before.get(where, ()) else path

    to_store = _with_paths(config, new_absolute)
    return to_store, _with_paths(to_store, stored_absolute)


def located(config: fdl.Config, run_dir: str | AnyPath) -> fdl.Config:
    """Returns the stored config of a run directory with paths for this working directory."""
    started = _started_elsewhere(run_dir)
    if started is None:
        return config
    return _with_paths(config, lambda _, path: _below(started, path))


def _started_elsewhere(run_dir: str | AnyPath) -> str | None:
    """Returns the directory in which a run was started, if it exists and is not this one."""
    folder = working_directory(run_dir)
    if folder is None or os.path.samefile(folder, os.getcwd()):
        return None
    if folder not in sys.path:
        sys.path.append(folder)  # The modules of the user's own tasks may be there.
    return folder


def _below(folder: str, path: str) -> str:
    """Returns a relative path as an absolute path below the folder, if that exists."""
    if os.path.isabs(path) or "://" in path or path.startswith("~"):
        return path
    moved = os.path.join(folder, path)
    return moved if os.path.exists(moved) or glob.glob(moved, recursive=True) else path


def _path_fields(config: fdl.Config) -> list[tuple[paths.Path, fdl.Buildable, str]]:
    return [
        ((*where, field), node, field)
        for where, node in tree.components(config)
        for field in tree.parameters(node)
        if tree.field_metadata(node, field).get("path") and field in node.__arguments__
    ]


def _with_paths(config: fdl.Config, change: Callable[[paths.Path, str], str]) -> fdl.Config:
    config = tree.complete(config)
    for where, node, field in _path_fields(config):

        def changed(value: Any, state: daglish.State, where: paths.Path = where) -> Any:
            return change(where, value) if isinstance(value, str) else state.map_children(value)

        before = getattr(node, field)
        after = daglish.MemoizedTraversal.run(changed, before)
        if after != before:
            setattr(node, field, after)
    return config

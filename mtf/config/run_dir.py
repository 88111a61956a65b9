"""Writes and reads the config in a run directory, and checks whether a run may resume in it."""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

import fiddle as fdl
from fiddle import daglish

from mtf.base.environment import ENVIRONMENT_FILE, working_directory, write_environment
from mtf.base.errors import UserError, did_you_mean_file, suggestion
from mtf.base.run_end import END_FILE
from mtf.base.writing import (
    JOB_FILE,
    LOCK_FILE,
    T5X_CONFIG_FILE,
    TEMPORARY,
    os_errors_refused,
    store_failed,
    write_atomically,
)
from mtf.config import codegen, paths, provenance, serialize, show, tree
from mtf.config.allowed import name_modules, own_modules
from mtf.config.paths import format_path, parse_path
from mtf.storage import AnyPath, as_path, is_remote, remove_tree

CONFIG_FILE = "config.json"
_MAX_ALLOWED = 8  # With more changes, it is another run.


def new_run_dir(recipe_name: str) -> str:
    """Returns a path `runs/NAME-YYYYmmdd-HHMMSS` that does not exist yet."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = os.path.join("runs", f"{recipe_name}-{stamp}")
    names = (f"{name}-{i}" if i else name for i in range(10_000))
    return next(candidate for candidate in names if not os.path.exists(candidate))


def load_config(path: str | AnyPath, *, trust: bool = False) -> fdl.Config:
    """Loads a config from a run directory, the output of `write_job`, or a file of either.

    The config may name any module of the user only if `trust` is true or the command has --trust.

    If the run was started in another working directory that still exists, relative paths of files
    in that directory become absolute. Raises UserError if the config file does not exist or cannot
    be read.
    """
    path = as_path(path)
    file = path
    if path.is_dir():
        file /= JOB_FILE if (path / JOB_FILE).is_file() else CONFIG_FILE
    if not file.is_file():
        what = f"{path} is not a run directory: it contains no {CONFIG_FILE}." * path.is_dir()
        hint = "" if is_remote(path) else did_you_mean_file(path)
        raise UserError(what or f"There is no run directory or config file {path}.{hint}")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a config written by mtf.") from None
    config = serialize.load_json(text, str(file), trust=trust)
    started = working_directory(file.parent)
    if started is not None and not os.path.samefile(started, os.getcwd()):
        config = _absolute(config, started)
    if file.name == JOB_FILE:
        config.output = str(file.parent)
    for _, node in tree.components(config):
        provenance.record(node, str(file) if is_remote(file) else os.path.relpath(file))
    return config


def write_job(directory: AnyPath, job: Any) -> None:
    """Writes the config of a job, which `load_config` reads, beside the job's other output.

    The config has absolute paths, except its `output`, which is the directory of the file.
    """
    config = _absolute(tree.from_instance(job), os.getcwd())
    config.output = "."
    file, text = directory / JOB_FILE, serialize.dump_json(config)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)


def check_resume(
    config: fdl.Config, run_dir: str | AnyPath, allow: Sequence[str] = (), engine: str = "mtf"
) -> None:
    """Checks that a run with this config may start or resume in the directory.

    A field may change on resume if its metadata contain {"on_resume": "may change"}, if its path is
    in `allow`, or if either is true of a field that contains it.

    Args:
      config: the config of the run.
      run_dir: the run directory, which need not exist.
      allow: the paths of other fields that may change.
      engine: the engine that runs the job, "mtf" or "t5x".

    Raises:
      UserError: if any other field has changed, if the directory contains files but no run, or if
        the run in the directory was started with another engine.
    """
    run_dir = as_path(run_dir)
    with os_errors_refused(run_dir, "model_dir"):
        if is_remote(run_dir):
            run_dir.mkdir()  # Raises an error for https://, which is read-only.
        is_free = not run_dir.exists() or (run_dir.is_dir() and _holds_nothing(run_dir))
        # Check this last, because another process of the same run may be writing the files.
        is_run = (run_dir / CONFIG_FILE).is_file()
    if not is_free and not run_dir.is_dir():
        raise UserError(f"model_dir: {run_dir} is a file, not a directory.")
    if not is_free and not is_run:
        raise UserError(
            f"model_dir: {run_dir} is not empty and is not a run directory (it contains "
            f"no {CONFIG_FILE}). Choose another directory."
        )
    name_modules(config)
    stored = config if is_free else load_config(run_dir)
    used = "t5x" if (run_dir / T5X_CONFIG_FILE).is_file() else "mtf"
    if is_run and used != engine:
        raise UserError(
            f"model_dir: the run in {run_dir} was started with --engine {used} and cannot be "
            f"resumed with --engine {engine}. Continue it with --engine {used}, or start a new run "
            "with another model_dir and a checkpoint of this run as checkpoint.restore."
        )
    allowed = [parse_path(text) for text in allow]
    known = {name for each in (stored, config) for name in tree.known_paths(tree.complete(each))}
    for text, shown in zip(allow, map(format_path, allowed), strict=True):
        if shown not in known:
            hint = suggestion(paths.nearest_paths(shown, known))
            raise UserError(f"--allow {text}: the config has no {shown}.{hint}")
    # This path differs if the run directory was moved.
    allowed.append(("model_dir",))
    refused = [
        change
        for change in show.diff(*(_absolute(each, os.getcwd()) for each in (stored, config)))
        if not any(change.path[: len(prefix)] == prefix for prefix in allowed)
        and not _declared_free(config, change.path)
        and not _declared_free(stored, change.path)
    ]
    if refused:
        lines = "".join(f"\n  {change}" for change in refused)
        names = " ".join(f"--allow {format_path(change.path)}" for change in refused)
        allow_them = f", or allow the changes with {names}" * (len(refused) <= _MAX_ALLOWED)
        raise UserError(
            f"{run_dir} contains a run with another config. These changes would alter its training:"
            f"{lines}\nStart a new run with another model_dir{allow_them or '.'}"
        )


def _holds_nothing(run_dir: AnyPath) -> bool:
    """Returns whether the directory is empty except for files of an unfinished `write_run_dir`."""
    names = {file.name for file in run_dir.iterdir() if not file.match(TEMPORARY)} - {LOCK_FILE}
    before_config = {"overrides.txt", ENVIRONMENT_FILE, "config.py", "config.txt"}
    return not names or ("overrides.txt" in names and names <= before_config)


def _declared_free(config: Any, path: paths.Path) -> bool:
    """Returns whether the field at a path, or a field that contains it, may change on resume."""
    holders = (paths.follow(config, path[:depth]) for depth in range(len(path)))
    return any(
        isinstance(holder, fdl.Buildable)
        and tree.field_metadata(holder, str(step)).get("on_resume") == "may change"
        for holder, step in zip(holders, path, strict=True)
    )


def write_run_dir(
    run_dir: str | AnyPath, config: fdl.Config, command: str, title: str = ""
) -> None:
    """Writes config.json, config.py, config.txt, overrides.txt and environment.json to a directory.

    Each file is written atomically, and config.json is written last. If an existing config.json
    differs, it is kept under the first unused name of config.1.json, config.2.json and so on.

    Args:
      run_dir: the run directory, which is created if necessary.
      config: the config to write.
      command: the command to append to overrides.txt.
      title: the docstring of config.py; if empty, the docstring names the run directory.

    Raises:
      UserError: if the directory cannot be created or written to.
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
        write_environment(run_dir, [], own_modules(config))
        for name, text in texts.items() if changed else ():
            write_atomically(run_dir / name, text)


def run_title(run_dir: AnyPath) -> str:
    """Returns the name of the recipe of a run or, if a config was run in Python, of its directory.

    This is the name in the first line of config.py.
    """
    line = (run_dir / "config.py").read_text(encoding="utf-8").partition("\n")[0]
    return line.removeprefix('"""The config of ').removesuffix('."""')


@contextlib.contextmanager
def undone_on_refusal(run_dir: str | AnyPath) -> Iterator[None]:
    """Undoes `write_run_dir` if the `with` body raises UserError before it writes other files.

    Does nothing if the store of the directory did not answer.
    """
    run_dir = as_path(run_dir)
    # Remote directories need not be created.
    folders = (run_dir, *(() if is_remote(run_dir) else run_dir.parents))
    made = [folder for folder in folders if not folder.exists()]
    before = {} if made else {f: f.read_bytes() for f in _own_files(run_dir)}
    others = set() if made else set(run_dir.iterdir()) - set(before)
    try:
        yield
    except UserError as error:
        if store_failed(error, run_dir) or not run_dir.is_dir():
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
                with contextlib.suppress(OSError):  # Another process may be using the folder.
                    folder.rmdir()
        raise


def _own_files(run_dir: AnyPath) -> list[AnyPath]:
    names = ("overrides.txt", ENVIRONMENT_FILE, END_FILE, T5X_CONFIG_FILE)
    files = (*run_dir.glob("config*"), *(run_dir / name for name in names))
    return [file for file in files if file.is_file()]


def _below(folder: str, path: str) -> str:
    """Returns `folder/path` if `path` is relative and the result exists, otherwise `path`."""
    if os.path.isabs(path) or "://" in path or path.startswith("~"):
        return path
    moved = os.path.join(folder, path)
    return moved if os.path.exists(moved) or glob.glob(moved, recursive=True) else path


def _absolute(config: fdl.Config, folder: str) -> fdl.Config:
    """Returns a copy of the config in which relative paths that exist in a folder are absolute.

    Every string in a field with the metadata {"path": True} is a path, even in lists and dicts.
    """

    def changed(value: Any, state: daglish.State) -> Any:
        return _below(folder, value) if isinstance(value, str) else state.map_children(value)

    config = tree.complete(config)
    for _, node in tree.components(config):
        for field in tree.parameters(node):
            if tree.field_metadata(node, field).get("path") and field in node.__arguments__:
                before = getattr(node, field)
                after = daglish.MemoizedTraversal.run(changed, before)
                if after != before:
                    setattr(node, field, after)
    return config

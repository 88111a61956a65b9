"""Relative paths of a run that goes on in another working directory."""

from __future__ import annotations

import functools
import glob
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl

from mtf.config import tree
from mtf.config.run_dir import load_config
from mtf.environment import ENVIRONMENT_FILE


def locate(config: fdl.Config, run_dir: str | Path) -> tuple[fdl.Config, fdl.Config]:
    """Returns the config to store in a run directory, and the one to run.

    They differ where a run goes on in another working directory than it was started in. Relative
    paths that the run directory's config has are then looked for where the run was started, and
    left as they are if nothing is there. Those that have been set since are relative to the
    working directory, and are stored as absolute ones.

    A field holds paths where its dataclass declares `metadata={"path": True}`.
    """
    started = started_in(run_dir)
    if started is None or os.path.samefile(started, os.getcwd()):
        return config, config
    before = _paths(load_config(run_dir))

    def anew(where: Any, path: str) -> str:
        return path if path in before.get(where, ()) else _below(os.getcwd(), path)

    def stored(where: Any, path: str) -> str:
        return _below(started, path) if path in before.get(where, ()) else path

    to_store = _with_paths(config, anew)
    return to_store, _with_paths(to_store, stored)


def located(config: fdl.Config, run_dir: str | Path) -> fdl.Config:
    """Returns a run directory's own config as it is to be used in this working directory."""
    started = started_in(run_dir)
    if started is None or os.path.samefile(started, os.getcwd()):
        return config
    return _with_paths(config, lambda _, path: _below(started, path))


def started_in(run_dir: str | Path) -> str | None:
    """Returns the working directory that a run was started in, where it is known and there."""
    try:
        environment = json.loads((Path(run_dir) / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    folder = environment.get("working_directory")
    return folder if isinstance(folder, str) and os.path.isdir(folder) else None


def _below(folder: str, path: str) -> str:
    """Returns `path` relative to the folder, as an absolute one if anything is there."""
    if os.path.isabs(path) or "://" in path or path.startswith("~"):
        return path
    moved = os.path.join(folder, path)
    return moved if os.path.exists(moved) or glob.glob(moved, recursive=True) else path


def _path_fields(config: fdl.Config) -> list[tuple[tuple[Any, ...], fdl.Buildable, str]]:
    return [
        ((*where, field), node, field)
        for where, node in tree.components(config)
        for field in tree.parameters(node)
        if tree.field_metadata(node, field).get("path") and field in node.__arguments__
    ]


def _paths(config: fdl.Config) -> dict[tuple[Any, ...], set[str]]:
    """Returns the paths that each field of a config holds."""
    return {where: set(_flat(getattr(node, field))) for where, node, field in _path_fields(config)}


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _flat(item)


def _with_paths(config: fdl.Config, change: Callable[[Any, str], str]) -> fdl.Config:
    config = tree.complete(config)
    for where, node, field in _path_fields(config):
        value = _mapped(getattr(node, field), functools.partial(change, where))
        if value != getattr(node, field):
            setattr(node, field, value)
    return config


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value

"""Reading checkpoints of any layout into a sharded training state, tensor by tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

import conversion
from mtf.checkpoints.config import RestoreCheckpointConfig
from mtf.checkpoints.manager import state_dict
from mtf.errors import UserError, did_you_mean
from mtf.training.train_state import TrainState

AssignmentMap = tuple[tuple[str, str | None], ...]
_LAYER = re.compile(r"^(.*/(?:encoder|decoder)/layers)(/.*)$")


def checkpoint_paths(config: RestoreCheckpointConfig) -> list[Path]:
    """The checkpoints that a restore configuration names: one, or all for mode "all".

    Raises:
      UserError: the path is not there, or holds no complete checkpoint.
    """
    path = Path(config.path).expanduser()
    if not path.exists():
        raise UserError(
            f"checkpoint.restore.path: {config.path} does not exist."
            + (did_you_mean(path.name, _names(path.parent)) if path.parent.is_dir() else "")
        )
    if not path.is_dir():
        raise UserError(
            f"checkpoint.restore.path: {config.path} is a file; expected a directory: "
            "checkpoint_STEP, or one that holds such."
        )
    if config.mode == "specific":
        return [path]
    found = [checkpoint for _, checkpoint in conversion.list_checkpoints(path)]
    if not found and re.fullmatch(r"checkpoint_\d+", path.name):
        raise UserError(
            f"checkpoint.restore.path: {config.path} is a checkpoint itself; mode "
            f"{config.mode!r} expects the directory that holds checkpoints. For this one set "
            "checkpoint.restore.mode=specific."
        )
    if not found:
        raise UserError(
            f"checkpoint.restore.path: {config.path} holds no complete checkpoint_STEP directory. "
            "For one checkpoint, give its own path and mode 'specific'."
        )
    return found if config.mode == "all" else found[-1:]


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def _source(name: str, assignment_map: AssignmentMap) -> str | None:
    """What a tensor of ours is called in the checkpoint; None: it is not read."""
    for pattern, replacement in assignment_map:
        match = re.fullmatch(pattern, name)
        if match:
            return None if replacement is None else match.expand(replacement)
    return name


def restore_state(
    path: str | Path,
    shapes: TrainState,
    shardings: TrainState,
    *,
    initial: Callable[[], TrainState],
    assignment_map: AssignmentMap = (),
    fallback_to_scratch: bool = False,
) -> TrainState:
    """Reads a checkpoint onto the devices; each process reads its own slices only.

    Args:
      path: a checkpoint of any layout that `conversion` opens.
      shapes: of the state in memory, stacked or unrolled.
      shardings: of the same.
      initial: gives a fresh state, for what is not read; called only if there is such.
      assignment_map: see `RestoreCheckpointConfig`.
      fallback_to_scratch: see `RestoreCheckpointConfig`.

    Raises:
      UserError: the checkpoint lacks tensors, or has them in other shapes; names them all, or
        says that it is of T5X's scanned network.
    """
    try:
        checkpoint = conversion.open_checkpoint(path)
    except conversion.ConversionError as error:
        raise UserError(str(error)) from error
    if checkpoint.layout == "huggingface":
        assignment_map = (*assignment_map, ("state/.*", None))  # It holds parameters only.
    flat, tree = jax.tree_util.tree_flatten_with_path(state_dict(shapes))
    names = ["/".join(entry.key for entry in key_path) for key_path, _ in flat]
    leaf_shapes = [leaf for _, leaf in flat]
    leaf_shardings = jax.tree.leaves(state_dict(shardings))

    problems: list[str] = []
    plans: list[list[Any] | None] = []
    for name, shape in zip(names, leaf_shapes, strict=True):
        plans.append(
            _plan(name, shape.shape, checkpoint, assignment_map, fallback_to_scratch, problems)
        )
    if problems:
        try:
            conversion.check_unrolled(checkpoint)
        except conversion.ConversionError as error:
            raise UserError(str(error)) from error
        problems.sort(key=lambda line: not line.startswith("target/"))  # parameters first
        shown = problems[:8] + ([f"… and {len(problems) - 8} more"] if len(problems) > 8 else [])
        raise UserError(
            f"The checkpoint {checkpoint.path} does not fit this model:\n  " + "\n  ".join(shown)
        )

    def read(plan: list[Any] | None, shape: Any, sharding: Any, name: str) -> jax.Array | None:
        if plan is None:
            return None
        stacked = _LAYER.match(name) is not None

        def piece(index: Any) -> np.ndarray:
            if not stacked:
                return np.asarray(plan[0].read(index)).astype(shape.dtype)
            layers = [t.read(index[1:]) for t in plan[index[0]]]
            return np.stack(layers).astype(shape.dtype)

        return jax.make_array_from_callback(shape.shape, sharding, piece)

    with ThreadPoolExecutor(8) as pool:
        leaves = list(pool.map(read, plans, leaf_shapes, leaf_shardings, names))
    if any(leaf is None for leaf in leaves):
        fresh = jax.tree.leaves(state_dict(initial()))
        leaves = [f if leaf is None else leaf for leaf, f in zip(leaves, fresh, strict=True)]
    restored = jax.tree.unflatten(tree, leaves)
    return TrainState(
        restored["state"]["step"], restored["target"], restored["state"]["param_states"]
    )


def _plan(
    name: str,
    shape: tuple[int, ...],
    checkpoint: conversion.Checkpoint,
    assignment_map: AssignmentMap,
    fallback_to_scratch: bool,
    problems: list[str],
) -> list[Any] | None:
    """The tensors from which a leaf is read, one for each layer of a stacked one; None: none."""
    stacked = _LAYER.match(name)
    if stacked:
        ours = [f"{stacked[1]}_{i}{stacked[2]}" for i in range(shape[0])]
        shape = shape[1:]
    else:
        ours = [name]
    plan = []
    for own_name in ours:
        source = _source(own_name, assignment_map)
        if source is None:
            return None
        tensor = checkpoint.tensors.get(source)
        if tensor is None:
            if not fallback_to_scratch:
                problems.append(f"{source}: missing there (expected shape {shape})")
            return None
        if tuple(tensor.shape) != tuple(shape):
            problems.append(f"{source}: shape {tuple(tensor.shape)} there, {tuple(shape)} here")
            return None
        plan.append(tensor)
    return plan

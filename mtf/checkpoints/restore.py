"""Reads checkpoints of any layout into a sharded training state, tensor by tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import conversion.checkpoint
from conversion.adapters import has_adapters
from conversion.checksums import checking
from conversion.formats import find_prefix, format_of
from conversion.tensor import index_bounds
from conversion.training_state import SLOTS
from mtf.base.checks import check_matches
from mtf.base.errors import UserError, conversion_as_user_errors, did_you_mean_file
from mtf.checkpoints.settings import RestoreCheckpointConfig
from mtf.models.stacking import is_stacked, unstacked_names
from mtf.models.trees import Tree, flat_names
from mtf.storage import AnyPath, as_path, is_listable, is_remote
from mtf.storage.copies import copy_of, nearest_copy, unchanged
from mtf.storage.errors import StorageError
from mtf.storage.pool import ReadingPool

AssignmentMap = tuple[tuple[str, str | None], ...]


def checkpoint_path(config: RestoreCheckpointConfig) -> AnyPath:
    """Returns the checkpoint that a config selects; raises UserError if there is none."""
    path, setting = nearest_copy(as_path(config.path)), f"checkpoint.restore.path: {config.path}"
    try:
        return _chosen(path, config, setting)
    except StorageError as error:
        if error.kind != "network":
            raise
        raise UserError(
            f"{error} To copy the checkpoint to {copy_of(path)} while there is a network, run "
            f"python -m mtf fetch {config.path}"
        ) from error


def _chosen(path: AnyPath, config: RestoreCheckpointConfig, setting: str) -> AnyPath:
    if is_remote(path) and not is_listable(path):
        if config.mode == "specific":
            return path  # Opening the checkpoint reports missing files.
        raise UserError(
            f"{setting}: checkpoints cannot be listed over {path.protocol}://. To restore this "
            "one, set checkpoint.restore.mode=specific."
        )
    if (prefix := find_prefix(path)) is not None:
        return prefix
    if not path.exists():
        raise UserError(f"{setting} does not exist.{did_you_mean_file(path)}")
    if not path.is_dir():
        raise UserError(
            f"{setting} is a file; expected a checkpoint_STEP directory, or a directory that "
            "contains such directories."
        )
    if config.mode == "specific":
        return path
    found = [checkpoint for _, checkpoint in conversion.list_checkpoints(path)]
    if not found:
        raise UserError(
            f"{setting} contains no complete checkpoint_STEP directory. To restore a single "
            "checkpoint, set checkpoint.restore.path to its directory and "
            "checkpoint.restore.mode=specific."
        )
    return found[-1]


@conversion_as_user_errors()
def has_average(path: str | AnyPath) -> bool:
    """Returns whether a checkpoint contains moving averages of the parameters (`trainer.ema`)."""
    return conversion.checkpoint.has_average(conversion.open_checkpoint(path))


@conversion_as_user_errors()
def restore_tree(
    path: str | AnyPath | conversion.Checkpoint,
    shapes: Tree,
    shardings: Tree,
    *,
    initial: Callable[[], Tree] | None = None,
    assignment_map: AssignmentMap = (),
    fallback_to_scratch: bool = False,
) -> Tree:
    """Reads a tree from a checkpoint onto the devices; each process reads only the slices it needs.

    Args:
      path: the path of a checkpoint in any layout that `conversion` supports, or an opened
        checkpoint. LoRA adapters that the checkpoint lacks are initialized, and those that the
        model lacks are merged into the kernels.
      shapes: nested dicts with T5X's names, such as `TrainState.state_dict` or a part of it;
        layers may be stacked.
      shardings: a tree of shardings with the same structure as `shapes`.
      initial: a function that returns a tree of initial values. It is called only if some
        tensors, or some layers of stacked tensors, are not read; otherwise, it may be None.
      assignment_map, fallback_to_scratch: see `RestoreCheckpointConfig`.

    Raises:
      UserError: the checkpoint lacks a tensor, a tensor's shape differs from that in `shapes`, a
        pattern of `assignment_map` matches no tensor of this model, or a file does not match the
        checksums that mtf wrote (the processes divide the files among them).
    """
    checkpoint, plans = _open(path, shapes, assignment_map, fallback_to_scratch)
    leaf_shapes, leaf_shardings = flat_names(shapes), flat_names(shardings)

    # Initialize before reading, and keep only what is needed, so that only one state is in memory.
    fresh: dict[str, jax.Array] = {}
    if any(None in plan for plan in plans.values()):
        assert initial is not None
        fresh = {name: x for name, x in flat_names(initial()).items() if None in plans[name]}

    def read(name: str) -> jax.Array:
        plan, shape = plans[name], leaf_shapes[name]
        initialized = fresh.pop(name, None)
        if initialized is not None and all(tensor is None for tensor in plan):
            return initialized
        stacked = is_stacked(name)
        parts = initialized.addressable_shards if initialized is not None else ()
        pieces = {tuple(index_bounds(part.index, shape.shape)): part.data for part in parts}

        def piece(index: Any) -> np.ndarray:
            if not stacked:
                return np.asarray(plan[0].read(index)).astype(shape.dtype, copy=False)
            initial_layers = np.asarray(pieces.get(tuple(index_bounds(index, shape.shape))))
            layers = [
                initial_layers[i] if tensor is None else tensor.read(index[1:])
                for i, tensor in enumerate(plan[index[0]])
            ]
            return np.stack(layers).astype(shape.dtype, copy=False)

        return jax.make_array_from_callback(shape.shape, leaf_shardings[name], piece)

    share = slice(jax.process_index(), None, jax.process_count())
    # The largest first, so that no thread reads the embedding while the others have finished.
    names = sorted(plans, key=lambda name: math.prod(leaf_shapes[name].shape), reverse=True)
    with checking(checkpoint.path, share), unchanged(checkpoint.path), ReadingPool(8) as pool:
        arrays = dict(zip(names, pool.map(read, names), strict=True))
    leaves = [arrays[name] for name in plans]
    restored: Tree = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return restored


@conversion_as_user_errors()
def check_tree(
    path: str | AnyPath,
    shapes: Tree,
    *,
    assignment_map: AssignmentMap = (),
    fallback_to_scratch: bool = False,
) -> tuple[int, str]:
    """Returns the step (0 if it is not restored), and how a checkpoint fits, in words.

    Raises UserError if `restore_tree` would. Reads no other arrays.
    """
    checkpoint, plans = _open(path, shapes, assignment_map, fallback_to_scratch)
    tensors = [(name, tensor) for name, plan in plans.items() for tensor in plan]
    missing = [name for name, tensor in tensors if tensor is None]
    num_params = sum(name.startswith("target/") for name in missing)
    new = {"parameters": num_params, "of the optimizer state": len(missing) - num_params}
    tensor = next(iter(plans.get("state/step", ())), None)
    step = 0 if tensor is None else int(tensor.read())
    anew = " and ".join(f"{number:,} {what}" for what, number in new.items() if number)
    anew = anew and f", {anew} are initialized"
    fit = f"{len(tensors) - len(missing):,} tensors fit{anew}"
    return step, f"({checkpoint.layout}, step {step:,}): {fit}"


def _open(
    path: str | AnyPath | conversion.Checkpoint,
    shapes: Tree,
    assignment_map: AssignmentMap,
    fallback_to_scratch: bool,
) -> tuple[conversion.Checkpoint, dict[str, list[Any]]]:
    """Returns the opened checkpoint and the tensors to read for each leaf (see `_plan`)."""
    leaf_shapes = flat_names(shapes)
    adapts = any(name.endswith("/lora_a") for name in leaf_shapes)
    checkpoint = path
    if not isinstance(checkpoint, conversion.Checkpoint):
        checkpoint = conversion.open_checkpoint(checkpoint, merge_adapters=not adapts)
    patterns = assignment_map
    if not format_of(checkpoint).has_state:
        assignment_map = (*assignment_map, ("state/.*", None))
    if adapts and not has_adapters(checkpoint):
        assignment_map = (*assignment_map, (r".*/lora_(a|b|scale)(/.*)?", None))
    names = [each for name, x in leaf_shapes.items() for each in unstacked_names(name, x.shape)]
    setting = "checkpoint.restore.assignment_map"
    check_matches(setting, "tensor of this model", [pattern for pattern, _ in patterns], names)
    return checkpoint, _plan(checkpoint, leaf_shapes, assignment_map, fallback_to_scratch)


def _source(name: str, assignment_map: AssignmentMap) -> str | None:
    """Returns the checkpoint's name for a tensor of the model, or None if it is not read."""
    for pattern, replacement in assignment_map:
        match = re.fullmatch(pattern, name)
        if match:
            return None if replacement is None else match.expand(replacement)
    return name


def _plan(
    checkpoint: conversion.Checkpoint,
    shapes: Mapping[str, Any],
    assignment_map: AssignmentMap,
    fallback_to_scratch: bool,
) -> dict[str, list[Any]]:
    """Returns a dict mapping the name of each leaf to its tensors in the checkpoint.

    A stacked leaf has one tensor per layer, other leaves have one. A tensor is None if not read.
    """
    plans: dict[str, list[Any]] = {name: [] for name in shapes}
    problems = []
    for name, shape in shapes.items():
        own_shape = shape.shape[1:] if is_stacked(name) else shape.shape
        for own_name in unstacked_names(name, shape.shape):
            source = _source(own_name, assignment_map)
            tensor = None if source is None else checkpoint.tensors.get(source)
            plans[name].append(tensor)
            if tensor is None:
                if source is not None and not fallback_to_scratch:
                    problems.append(
                        f"{source}: missing from the checkpoint (shape {own_shape} in the model)"
                    )
            elif tuple(tensor.shape) != tuple(own_shape):
                found = tuple(tensor.shape)
                problems.append(
                    f"{source}: has shape {found} in the checkpoint, but {own_shape} in the model"
                )
    if problems and all(line.startswith(SLOTS) for line in problems):
        is_other = any(name.startswith(SLOTS) for name in checkpoint.tensors)
        state = "the state of another optimizer" if is_other else "no optimizer state"
        setting = [*assignment_map, (f"{SLOTS}.*", None)]
        raise UserError(
            f"The checkpoint {checkpoint.path} has {state}. To start a new run with a new one, "
            f'pass --set "checkpoint.restore.assignment_map={setting}"'
        )
    if problems:
        problems.sort(key=lambda line: not line.startswith("target/"))  # parameters first
        shown = problems[:8] + ([f"… and {len(problems) - 8} more"] if len(problems) > 8 else [])
        raise UserError(
            f"The checkpoint {checkpoint.path} does not fit this model:\n  " + "\n  ".join(shown)
        )
    return plans

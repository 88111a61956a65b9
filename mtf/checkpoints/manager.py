"""Writes checkpoints with Orbax, asynchronously and atomically, from all processes.

`checkpoint_{step}/` contains `state`, in the layout of T5X's Orbax checkpoints (layers are not
stacked). It also contains two JSON items: `data` (the data iterator states of all processes) and
`metrics`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from conversion.checksums import write_checksums
from mtf.base import signals
from mtf.base.environment import resume_command
from mtf.base.errors import RunError, StoreFailedError, UserError
from mtf.base.writing import files_deleted, free_space, write_failure
from mtf.checkpoints import finite, steps, stores
from mtf.checkpoints.settings import SaveCheckpointConfig
from mtf.models.stacking import is_stacked, unstack_layers
from mtf.models.trees import flat_names
from mtf.partitioning.processes import from_all_processes
from mtf.storage import AnyPath, as_path, is_remote, remove_tree
from mtf.storage.errors import StorageError

_MAX_LOOKS = 50
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_FOR_STORES = 5.0


@functools.cache
def _print_failed_saves_once() -> None:
    """Suppresses log records and warnings about failed saves, because their errors are raised."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(lambda record: not record.exc_info)
    # This warning is about tensors that a failed save has not started to write.
    warnings.filterwarnings("ignore", "coroutine '.*serialize.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # TensorStore may report the results of other tensors after the save has failed.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook


def remove_unfinished(model_dir: str | AnyPath) -> None:
    """Removes the files of failed or killed saves.

    After a save fails, TensorStore may still write other tensors and recreate a removed directory,
    so this function looks again until no directory reappears.
    """
    num_looks_left = 2
    for _ in range(_MAX_LOOKS):
        folder = as_path(model_dir) / steps.CHECKPOINTS
        found: list[AnyPath] = [*folder.glob("*.orbax-checkpoint-tmp*")]
        for path in found:
            remove_tree(path)
        num_looks_left = 2 if found else num_looks_left - 1
        if not num_looks_left:
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextlib.contextmanager
def failures_explained(checkpoints: CheckpointManager) -> Iterator[None]:
    """Raises a RunError, with advice on resuming, if a disk or a store fails in the block.

    Before that, process 0 removes the files of incomplete checkpoints. A store that has failed is
    not asked again.
    """
    run_dir = checkpoints.model_dir
    try:
        yield
    except Exception as error:
        saved = checkpoints.latest_step()
        checkpoints.wait_after_failure()
        if not is_remote(run_dir) and jax.process_index() == 0:
            remove_unfinished(run_dir)
        if checkpoints.is_gone() or files_deleted(error, run_dir):
            # Orbax and TensorStore may have created the directory of a checkpoint again. If another
            # run were in its place, there would be a config.
            if checkpoints.is_gone() and {f.name for f in run_dir.glob("*")} == {steps.CHECKPOINTS}:
                remove_tree(run_dir)
            for folder in (run_dir / steps.CHECKPOINTS, run_dir):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise RunError(f"{run_dir}, or a part of it, was deleted during the run.") from None
        if reason := write_failure(error, run_dir):
            detail = f"{reason.removesuffix('.')}{free_space(run_dir)}"
            what = f"{run_dir} cannot be written to: {detail}."
            when = "When the directory is writable again"
        elif isinstance(error, StorageError):
            what, when = str(error), "When it can be read again"
        else:
            raise
        last = "none" if saved is None else f"checkpoint_{saved}"
        text = f"{what} The run stopped. Last complete checkpoint: {last}. {when}, resume with: "
        if reason is None or not is_remote(run_dir):
            raise RunError(text + resume_command(run_dir)) from None
        signals.end_with_threads()
        raise StoreFailedError(f"{text}python -m mtf.run --from {run_dir}") from None


@contextlib.contextmanager
def store_failures_explained(run_dir: AnyPath) -> Iterator[None]:
    """Raises a StoreFailedError if the store of a run directory fails before training starts."""
    try:
        yield
    except Exception as error:
        reason = write_failure(error, run_dir) if is_remote(run_dir) else None
        if reason is None:
            raise
        signals.end_with_threads()
        raise StoreFailedError(
            f"{run_dir} cannot be read or written: {reason.removesuffix('.')}. Training did not "
            f"start. When the store works again, run: python -m mtf.run --from {run_dir}"
        ) from None


class StateNotFiniteError(RunError):
    """Raised if the state to be saved contains NaN or infinity."""


class CheckpointManager:
    """Saves a run's training state and the state of its data iterator in `model_dir`."""

    def __init__(self, model_dir: str | AnyPath, config: SaveCheckpointConfig):
        _print_failed_saves_once()
        self.config = config
        self.model_dir = as_path(model_dir)
        self._unstack = jax.jit(unstack_layers)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            best_fn=lambda metrics: 0.0,  # Without this function, Orbax does not write metrics.
            step_prefix="checkpoint",
            create=True,
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._add_checksums),
        )
        folder = self.model_dir.resolve() / steps.CHECKPOINTS
        saved = set[int]()
        if is_remote(folder):
            saved = stores.prepare(folder)
            options.atomicity_options = stores.ATOMICITY
        items = ("state", "data")
        self._manager = ocp.CheckpointManager(str(folder), options=options, item_names=items)
        # If a store fails, Orbax takes it for empty.
        if saved - {*self._manager.all_steps()}:
            raise UserError(f"{folder}: the store did not list all checkpoints. Try again.")
        # While the directory is open, its inode number is not given to another one.
        self._opened: int | None = None
        if not is_remote(self.model_dir):
            self._opened = os.open(str(self.model_dir), os.O_RDONLY | os.O_DIRECTORY)

    def latest_step(self) -> int | None:
        """Returns the step of the last complete checkpoint, or None if there is none."""
        return self._manager.latest_step()

    def due(self, step: int) -> bool:
        """Returns whether the config requires a checkpoint at `step`."""
        period = self.config.period
        return (period is not None and step % period == 0) or step in self.config.checkpoint_steps

    def best(self) -> tuple[AnyPath, float] | None:
        """Returns the best checkpoint and its monitored metric; None if no checkpoint has it."""
        metrics = {step: self._manager.metrics(step) for step in self._manager.all_steps()}
        ranked = self._ranked(metrics)
        return (self.path(ranked[0][0]), ranked[0][1]) if ranked else None

    def _ranked(self, metrics: Mapping[int, Mapping[str, float] | None]) -> list[tuple[int, float]]:
        """Returns (step, metric) pairs with finite metrics, best first; if equal, latest first."""
        config = self.config
        name, sign = config.metric_name_to_monitor or "", -1 if config.metric_mode == "min" else 1
        values = {step: (each or {}).get(name, math.nan) for step, each in metrics.items()}
        known = [(step, value) for step, value in values.items() if math.isfinite(value)]
        return sorted(known, key=lambda item: (sign * item[1], item[0]), reverse=True)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns whether to keep each checkpoint, in the given order; called by Orbax."""
        config = self.config
        if config.keep is None:
            return [True] * len(checkpoints)
        kept = {info.step for info in checkpoints[-config.keep :]}
        if config.metric_name_to_monitor is not None:
            ranked = [step for step, _ in self._ranked({c.step: c.metrics for c in checkpoints})]
            kept |= set(ranked[: config.keep_best])
            if config.keep_checkpoints_without_metrics:
                kept |= {info.step for info in checkpoints} - set(ranked)
        return [info.step in kept for info in checkpoints]

    def path(self, step: int) -> AnyPath:
        """Returns the directory of a checkpoint."""
        return steps.checkpoint_dir(self.model_dir.resolve(), step)

    def save(
        self,
        step: int,
        state: dict[str, Any],
        data_state: dict[str, Any],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts an asynchronous save; returns once the state has been copied from the devices.

        Does nothing if a complete checkpoint of this step exists.

        Args:
          step: the step of the state.
          state: a tree of arrays from `TrainState.state_dict`; layers may be stacked.
          data_state: the state of this process's data iterator.
          metrics: dict mapping "KIND/…/NAME" to a metric of this step. Values that are not finite
            are not saved.

        Raises:
          StateNotFiniteError: the state contains NaN or infinity; it is not saved.
        """
        if step in self._manager.all_steps():
            return
        arrays = flat_names(state)
        bad = finite.not_finite(arrays)
        if bad:
            raise StateNotFiniteError(
                f"step {step}: the state was not saved because it contains NaN or infinity in "
                f"{finite.shown(bad)}."
            )
        tree = self._unstack(state) if any(map(is_stacked, arrays)) else state
        save_args = jax.tree.map(lambda _: ocp.SaveArgs(), tree)
        self.wait()
        self._saving = self.path(step)
        dtype = jnp.dtype(self.config.dtype)
        save_args["target"] = jax.tree.map(lambda _: ocp.SaveArgs(dtype=dtype), tree["target"])
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(tree, save_args=save_args),
                data=ocp.args.JsonSave(functools.reduce(_merge, from_all_processes(data_state))),
            ),
            metrics={k: v for k, v in (metrics or {}).items() if math.isfinite(v)},
            force=True,
        )

    def _add_checksums(self) -> None:
        """Writes the checksums of a checkpoint; called by Orbax just before the commit."""
        path = self._saving
        if not is_remote(path):  # In object stores, the directory already has its final name.
            path = path.with_name(f"{path.name}.orbax-checkpoint-tmp")
        write_checksums(path)

    def add_measured(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of previously skipped evaluations to a complete checkpoint."""
        if jax.process_index() == 0:
            steps.add_measured(self.model_dir, step, metrics)
        multihost_utils.sync_global_devices("mtf: add_measured")
        self._manager.reload()

    def restore_data_state(self, step: int) -> dict[str, Any]:
        """Returns the data iterator states of all processes; raises UserError if there are none."""
        path = self.path(step)
        if not (path / "data").is_dir():
            raise UserError(
                f"{path} has no saved data position (its data/ directory is missing), so the run "
                "cannot resume from it. Delete this checkpoint to resume from the previous one, or "
                f"start another run with checkpoint.restore.path={path} and "
                "checkpoint.restore.mode=specific."
            )
        args = ocp.args.Composite(data=ocp.args.JsonRestore())
        try:
            return self._manager.restore(step, args=args)["data"]
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path / 'data'} is damaged: {error}. {steps.RESUME_FROM_PREVIOUS}"
            ) from error

    def is_gone(self) -> bool:
        """Returns whether a local run directory was deleted, or replaced by another one."""
        if self._opened is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return not os.path.samestat(os.fstat(self._opened), os.stat(str(self.model_dir)))
        return True

    def check(self) -> None:
        """Raises the error of a failed background save, if any, without waiting for saves.

        Raises FileNotFoundError if the run directory was deleted.
        """
        self._manager.check_for_errors()
        if self.is_gone():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.model_dir))

    def wait(self) -> None:
        """Waits until all saves are complete; raises an error if one failed."""
        self._manager.wait_until_finished()

    def wait_after_failure(self) -> None:
        """If the run has one process, waits until no save is in progress, and ignores errors.

        For a store, which may not answer any more, waits at most 5 s.
        """
        if jax.process_count() > 1:  # Several processes would wait for each other.
            return

        def wait() -> None:
            with contextlib.suppress(Exception):
                self._manager.wait_until_finished()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(_SECONDS_FOR_STORES if is_remote(self.model_dir) else None)

    def close(self) -> None:
        """Waits until all saves are complete, and closes Orbax's manager."""
        self._manager.close()


def _merge(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    nested = {k: _merge(a[k], v) for k, v in b.items() if isinstance(v, dict) and k in a}
    return {**a, **b, **nested}

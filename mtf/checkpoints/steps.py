"""The steps that a run has saved, and their evaluations that are due. Imports no JAX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from mtf.errors import UserError
from mtf.storage import AnyPath, StorePath, as_path
from mtf.writing import T5X_CONFIG_FILE, write_atomically

CHECKPOINTS = "checkpoints"

_STEP = re.compile(r"checkpoint_(\d+)")


def checkpoints_dir(model_dir: str | AnyPath) -> AnyPath:
    """Returns the folder with a run's checkpoints; T5X writes them to the run directory itself."""
    run_dir = as_path(model_dir)
    return run_dir if (run_dir / T5X_CONFIG_FILE).is_file() else run_dir / CHECKPOINTS


def saved_steps(model_dir: str | AnyPath) -> list[int]:
    """Returns the steps of a run directory's complete checkpoints, in order."""
    folder = checkpoints_dir(model_dir)
    children = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        int(match[1])
        for child in children
        if (match := _STEP.fullmatch(child.name)) and _is_complete(child)
    )


def _is_complete(checkpoint: AnyPath) -> bool:
    if not isinstance(checkpoint, StorePath):  # Orbax renames it when it is complete.
        return True
    from conversion.checkpoint import is_committed

    return is_committed(checkpoint)


def checkpoint_dir(model_dir: str | AnyPath, step: int) -> AnyPath:
    """Returns the directory of the checkpoint of a step."""
    return checkpoints_dir(model_dir) / f"checkpoint_{step}"


# Steps of checkpoints to choose, see `select_steps`.
StepChoice = str | int | tuple[int, ...]

_ALL = "all"
_STEPS = re.compile(r"\d+(, *\d+)*")
_RANGE = re.compile(r"(\d*):(\d*)(?::([1-9]\d*))?")
_NUM_SHOWN = 20


def check_step_choice(choice: StepChoice, setting: str) -> None:
    """Raises UserError if a choice of steps is not valid; see `select_steps`."""
    if isinstance(choice, str) and (choice == _ALL or _RANGE.fullmatch(choice)):
        return
    steps = _listed(choice)
    if isinstance(steps, str) or not steps or any(step < 0 for step in steps):
        raise UserError(
            f"{setting} must be 'all', 'FIRST:LAST', 'FIRST:LAST:PERIOD' or steps such as "
            f"1000,2000, not {choice!r}."
        )


def _listed(choice: StepChoice) -> tuple[int, ...] | str:
    """Returns steps that are listed, also as text such as "1000,2000"; other text as it is."""
    if isinstance(choice, str) and _STEPS.fullmatch(choice):
        return tuple(map(int, choice.split(",")))
    return (choice,) if isinstance(choice, int) else choice


def select_steps(choice: StepChoice, existing: Iterable[int], setting: str) -> list[int]:
    """Returns the chosen steps, in order.

    Args:
      choice: "all"; the steps, also as text such as "1000,2000"; or "FIRST:LAST" or
        "FIRST:LAST:PERIOD", the existing steps from FIRST to LAST, both included, of which those
        FIRST + n * PERIOD. FIRST and LAST can be omitted, and are then 0 and the last step.
      existing: the steps that have checkpoints.
      setting: name of the setting, for messages.

    Raises UserError if the choice is not valid, includes no step, or names one without checkpoint.
    """
    check_step_choice(choice, setting)
    steps = sorted(existing)
    listed = _listed(choice)
    if isinstance(listed, str):
        found = [step for step in steps if _in_range(step, listed)]
        missing = [] if found else [listed]
    else:
        chosen = set(listed)
        found = [step for step in steps if step in chosen]
        missing = list(map(str, sorted(chosen - set(steps))))
    if missing:
        shown = ", ".join(map(str, steps[-_NUM_SHOWN:]))
        others = f" and {len(steps) - _NUM_SHOWN} earlier ones" if len(steps) > _NUM_SHOWN else ""
        raise UserError(
            f"{setting}: there is no checkpoint of step {', '.join(missing)}; the steps with "
            f"checkpoints are {shown or 'none'}{others}."
        )
    return found


def _in_range(step: int, choice: str) -> bool:
    match = _RANGE.fullmatch(choice)
    if match is None:
        return choice == _ALL
    first, last, period = (int(text) if text else None for text in match.groups())
    is_after = (step - (first or 0)) % (period or 1) == 0 and step >= (first or 0)
    return is_after and (last is None or step <= last)


# Prefix, in the metrics of a checkpoint, of an evaluation that is due but not done.
_OWED = "owed/"


def owing(kinds: Iterable[str]) -> dict[str, float]:
    """Returns what a checkpoint stores in place of the metrics of evaluations that are due."""
    return {f"{_OWED}{kind}": 1.0 for kind in kinds}


def owed_evaluations(model_dir: str | AnyPath, step: int) -> tuple[str, ...]:
    """Returns the kinds of evaluation that are due for a checkpoint."""
    measured = _measured(model_dir, step)[1]
    return tuple(name.removeprefix(_OWED) for name in measured if name.startswith(_OWED))


def add_measured(model_dir: str | AnyPath, step: int, metrics: Mapping[str, float]) -> None:
    """Replaces the evaluations that are due by their metrics, atomically."""
    file, measured = _measured(model_dir, step)
    kept = {k: v for k, v in {**measured, **metrics}.items() if not k.startswith(_OWED)}
    write_atomically(file, json.dumps(kept))


def _measured(model_dir: str | AnyPath, step: int) -> tuple[AnyPath, dict[str, float]]:
    """Returns the file in which Orbax stores a checkpoint's metrics, and its content."""
    file = checkpoint_dir(model_dir, step) / "metrics" / "metrics"
    return file, json.loads(file.read_text()) if file.is_file() else {}

"""Finds a run's saved steps and the evaluations that are still due. Does not import JAX."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from mtf.base.errors import UserError
from mtf.base.strict_json import read_own
from mtf.base.writing import T5X_CONFIG_FILE, write_atomically
from mtf.storage import AnyPath, as_path

CHECKPOINTS = "checkpoints"
RESUME_FROM_PREVIOUS = "Delete this checkpoint to resume from the previous one."


def checkpoints_dir(model_dir: str | AnyPath) -> AnyPath:
    """Returns the directory of a run's checkpoints; if T5X wrote them, the run directory itself."""
    run_dir = as_path(model_dir)
    return run_dir if (run_dir / T5X_CONFIG_FILE).is_file() else run_dir / CHECKPOINTS


def saved_steps(model_dir: str | AnyPath) -> list[int]:
    """Returns the steps of a run's complete checkpoints, in ascending order."""
    from conversion.formats import list_checkpoints  # A command reports a file that hides it.

    folder = checkpoints_dir(model_dir)
    return [step for step, _ in list_checkpoints(folder)] if folder.is_dir() else []


def checkpoint_dir(model_dir: str | AnyPath, step: int) -> AnyPath:
    """Returns the checkpoint directory of a step."""
    return checkpoints_dir(model_dir) / f"checkpoint_{step}"


# A choice of checkpoint steps; see `select_steps`.
StepChoice = str | int | tuple[int, ...]

_STEPS = re.compile(r"\d+(, *\d+)*")
_RANGE = re.compile(r"(\d*):(\d*)(?::([1-9]\d*))?")
_NUM_SHOWN = 20
_NO_STEP = 2**31  # Steps are int32.


def chosen_steps(choice: StepChoice, setting: str) -> range | set[int]:
    """Returns all steps that a choice describes, whether or not they have checkpoints.

    See `select_steps` for the arguments. Raises UserError if the choice is not valid.
    """
    listed: StepChoice = choice
    if isinstance(choice, str):
        if match := _RANGE.fullmatch(":" if choice == "all" else choice):
            first, last, period = (int(text) if text else None for text in match.groups())
            return range(first or 0, _NO_STEP if last is None else last + 1, period or 1)
        listed = tuple(map(int, choice.split(","))) if _STEPS.fullmatch(choice) else ()
    steps = {listed} if isinstance(listed, int) else {*map(int, listed)}
    if not steps or min(steps) < 0:
        raise UserError(
            f"{setting} must be 'all', 'FIRST:LAST', 'FIRST:LAST:PERIOD' or steps such as "
            f"1000,2000, not {choice!r}."
        )
    return steps


def select_steps(choice: StepChoice, existing: Iterable[int], setting: str) -> list[int]:
    """Returns the chosen steps, in ascending order.

    Args:
      choice: "all", one or more steps, a string such as "1000,2000", "FIRST:LAST" for the existing
        steps from FIRST to LAST inclusive, or "FIRST:LAST:PERIOD" for the steps in this range that
        equal FIRST + n * PERIOD. FIRST defaults to 0, and LAST to the last step.
      existing: the steps that have checkpoints.
      setting: the name of the setting to show in error messages.

    Raises UserError if the choice is invalid, selects no step, or names a step that does not exist.
    """
    chosen, steps = chosen_steps(choice, setting), sorted(existing)
    found = [step for step in steps if step in chosen]
    if isinstance(chosen, set):
        missing = ", ".join(map(str, sorted(chosen - set(steps))))
    else:
        missing = "" if found else str(choice)
    if missing:
        shown = ", ".join(map(str, steps[-_NUM_SHOWN:]))
        others = f" and {len(steps) - _NUM_SHOWN} earlier ones" if len(steps) > _NUM_SHOWN else ""
        raise UserError(
            f"{setting}: there is no checkpoint of step {missing}; the steps with checkpoints are "
            f"{shown or 'none'}{others}."
        )
    return found


# The prefix of the entries in a checkpoint's metrics that mark evaluations as due.
_OWED = "owed/"


def owing(kinds: Iterable[str]) -> dict[str, float]:
    """Returns entries that mark evaluations as due, to be saved in place of their metrics."""
    return {f"{_OWED}{kind}": 1.0 for kind in kinds}


def owed_evaluations(model_dir: str | AnyPath, step: int) -> tuple[str, ...]:
    """Returns the kinds of evaluation that are still due for a checkpoint."""
    measured = _measured(model_dir, step)[1]
    return tuple(name.removeprefix(_OWED) for name in measured if name.startswith(_OWED))


def add_measured(model_dir: str | AnyPath, step: int, metrics: Mapping[str, float]) -> None:
    """Atomically adds metrics to a checkpoint, and removes entries that mark evaluations as due."""
    file, measured = _measured(model_dir, step)
    kept = {k: v for k, v in {**measured, **metrics}.items() if not k.startswith(_OWED)}
    write_atomically(file, json.dumps(kept))


def _measured(model_dir: str | AnyPath, step: int) -> tuple[AnyPath, dict[str, float]]:
    """Returns the path of a checkpoint's metrics file and its content ({} if it does not exist)."""
    file = checkpoint_dir(model_dir, step) / "metrics" / "metrics"
    return file, read_own(file, RESUME_FROM_PREVIOUS) if file.is_file() else {}

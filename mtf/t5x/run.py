"""Runs and describes jobs with T5X, for `python -m mtf.run RECIPE --engine t5x`."""

from __future__ import annotations

import sys
from types import ModuleType

import fiddle as fdl
from fiddle import printing

import conversion
from mtf.base.environment import more_steps, resume_command
from mtf.config import codegen
from mtf.config.run_dir import new_run_dir
from mtf.storage import as_path
from mtf.t5x import lowering, unsupported
from mtf.t5x.adapters import absolute_path

_IMPORT = "import mtf.t5x.compatibility  # noqa: F401  # before T5X is imported\n"
_RUN = "fdl.build(fdl.cast(fdl.Partial, config()))()"


def as_python(config: fdl.Config, name: str) -> str:
    """Returns the source of a Python module that runs a job with T5X.

    If the config does not set a directory, the module uses `runs/NAME-t5x`.
    """
    lowered = lowering.lower(config)
    _set_directory(lowered, f"runs/{name}-t5x")
    title = f"T5X's config for {name}."
    return codegen.write_module(lowered, title, imports=_IMPORT, run=_RUN)


def _set_directory(lowered: fdl.Config, default: str) -> str:
    """Makes the output directory absolute, as Orbax requires, and returns the original path."""
    trains = "model_dir" in lowered.__signature_info__.parameters
    field = "model_dir" if trains else "output_dir"
    folder = getattr(lowered, field) or default
    setattr(lowered, field, absolute_path(folder))
    return folder


def as_flat_text(config: fdl.Config) -> str:
    """Returns text with a line `path = value` for every value that mtf passes to T5X."""
    text = printing.as_str_flattened(
        lowering.lower(config), include_types=False, raw_value_repr=True
    )
    lines = (line for line in text.splitlines() if " = <[unset" not in line)
    return "".join(f"{line}\n" for line in lines)


def prepare(config: fdl.Config) -> fdl.Config | None:
    """Returns T5X's config for a job, or None if the run has already reached its last step.

    Prints the settings of the job that T5X ignores. Raises UserError if T5X cannot run the job or
    if the job does not fit the available devices.
    """
    lowered = lowering.lower(config)
    if _is_finished(lowered):
        return None
    _engine().check_devices(lowered)
    for path, reason in unsupported.notes(config):
        print(f"T5X ignores {path}: {reason}", file=sys.stderr)
    return lowered


def _is_finished(lowered: fdl.Config) -> bool:
    """Returns whether a run has reached its last step; if it has, prints a message."""
    folder = getattr(lowered, "model_dir", None)
    if folder is None or not as_path(folder).is_dir():
        return False
    step = max((step for step, _ in conversion.list_checkpoints(folder)), default=0)
    if step < lowered.total_steps:
        return False
    print(
        f"{folder} is at step {step} of {lowered.total_steps}: nothing to train. "
        f"To train for more steps, run {resume_command(folder)} --engine t5x "
        f"--set train_steps={step + more_steps(step)}",
        flush=True,
    )
    return True


def describe(config: fdl.Config) -> dict[str, str]:
    """Returns the rows of the dry run about T5X's model; raises the same errors as `lower`."""
    lowered = lowering.lower(config)
    return dict(_engine().describe(config, lowered))


def run(lowered: fdl.Config) -> None:
    """Runs T5X. For training, the run directory must already contain the job's config."""
    folder = as_path(_set_directory(lowered, new_run_dir("evaluate-t5x")))
    _engine().run(lowered, folder)


def _engine() -> ModuleType:
    from mtf.t5x import engine  # Imported here because it imports T5X.

    return engine

"""Translates gin files to the source code of a recipe."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from mtf.base.errors import UserError
from mtf.cli.command import quoted, wrapped
from mtf.cli.gin import jobs, mesh, reading
from mtf.cli.gin.jobs import Command, Remark
from mtf.cli.gin.t5x_table import NETWORKS, T5X, T5X_NAMES
from mtf.cli.gin.walking import Note, Walk
from mtf.config import checks
from mtf.config.codegen import as_python
from mtf.jobs import Evaluate, Infer, Train

# Packages and modules that do not register tasks.
_LIBRARIES = (
    *("__main__", "t5x", "seqio", "mesh_tensorflow", "tensorflow", "optax", "jax", "flax"),
    *("t5.models", "clu", "numpy", "functools", "gin"),
)
_JOBS: dict[str, tuple[str, type, Any]] = {
    "train": ("train_script.train", Train, jobs.train),
    "evaluate": ("eval_script.evaluate", Evaluate, jobs.evaluation),
    "infer": ("infer_script.infer", Infer, jobs.inference),
}
_WIDTH = 98
MADE_BY = "Made by: python -m mtf gin"  # identifies files that this command wrote
_WHAT = {"Train": "A training run", "Evaluate": "An evaluation", "Infer": "An inference job"}


@dataclasses.dataclass(frozen=True)
class Translation:
    """The result of translating a command line.

    Attributes:
      job: the config of the job.
      notes: the bindings that were not translated, with the reasons.
      remarks: sentences that explain how some bindings were translated.
      files: the gin files in the order in which they were read.
    """

    job: fdl.Config
    notes: tuple[Note, ...]
    remarks: tuple[str, ...]
    files: tuple[str, ...]


def names_of_configurables() -> dict[str, str]:
    """Returns a dict mapping full and abbreviated names of configurables to canonical names."""
    names: dict[str, str] = {}
    for full, canonical in (T5X_NAMES | mesh.MESH_NAMES).items():
        parts = full.split(".")
        for start in range(len(parts)):
            names.setdefault(".".join(parts[start:]), canonical)
    return names


def translate(command: Command) -> Translation:
    """Translates a command line; raises UserError if the run has no equivalent in mtf."""
    bindings = _read(command, "")
    is_mesh = mesh.is_mesh(bindings)
    if is_mesh:
        bindings = _read(command, mesh.DEFAULTS)
    modules = dict.fromkeys((*command.modules, *bindings.modules))
    custom = [m for m in modules if not f"{m}.".startswith(tuple(f"{x}." for x in _LIBRARIES))]
    command = dataclasses.replace(command, modules=tuple(custom))
    remarks: list[str] = []
    translate_run = mesh.translate if is_mesh else _t5x
    walk, job = translate_run(bindings, command, remarks.append)
    _check(job, walk)
    return Translation(job, tuple(walk.notes), tuple(remarks), tuple(bindings.files))


def _read(command: Command, defaults: str) -> reading.Bindings:
    known = names_of_configurables()
    return reading.read(command.files, command.bindings, command.search_paths, known, defaults)


def _t5x(bindings: reading.Bindings, command: Command, remark: Remark) -> tuple[Walk, fdl.Config]:
    name = _job_name(bindings)
    root, job, assemble = _JOBS[name]
    walk = Walk(bindings, T5X, job)
    walk.section(name, root)
    walk.section("predict", "models.EncoderDecoderModel.predict_batch_with_aux")
    if name == "train":
        walk.section("loss", "models.EncoderDecoderModel.loss_fn")
    else:
        models = ("network.", "models.EncoderDecoderModel")
        walk.ignore(*models, "adafactor.", "t5x.optimizers.", "optax.")
    walk.finish(command.skip_unknown)
    needed = ["train_steps", "batch_size"] if name == "train" else ["checkpoint"]
    needed.insert(0, "data.mixture_or_task_name")
    missing = [path for path in needed if path not in walk.settings]
    if missing:
        rows = [(row, section) for section in T5X.values() for row in section.rows]
        names = {row.path: f"{section.name}.{row.parameter}" for row, section in rows}
        unset = ", ".join(names.get(path, path) for path in missing)
        raise UserError(f"{root} requires values for {unset}, but the gin files do not bind them.")
    if command.model_dir is not None:
        walk.settings.setdefault("model_dir", command.model_dir)
    per_layer = NETWORKS.get(bindings.network or "", False)
    walk.settings["model.network.relpos_bias_per_layer"] = per_layer
    return walk, assemble(walk.settings, command, remark)


def _job_name(bindings: reading.Bindings) -> str:
    """Returns the name of the configured job; raises UserError unless there is exactly one."""
    bound = {name: binding.where for (_, name, _), binding in bindings.parameters.items()}
    roots = [name for name, (root, _, _) in _JOBS.items() if root in bound]
    if len(roots) == 1:
        return roots[0]
    if roots:
        found = ", ".join(f"{_JOBS[name][0]} ({bound[_JOBS[name][0]]})" for name in roots)
        raise UserError(f"The gin files configure several jobs: {found}. Expected only one job.")
    expected = ", ".join(root for root, _, _ in _JOBS.values())
    raise UserError(
        f"The gin files do not configure a job; expected bindings for one of {expected}. Add one "
        "of the files t5x/configs/runs/{pretrain,finetune,eval,infer}.gin."
    )


def _check(job: fdl.Config, walk: Walk) -> None:
    """Raises UserError if the config has invalid values; the message shows their bindings."""
    problems = checks.find_problems(job) or checks.find_refusals(job)
    if not problems:
        return
    lines = []
    for problem in problems:
        named = problem.replace(": ", ".", 1)  # "model.network: x …" → "model.network.x …"
        of = [path for path in walk.origins if re.match(rf"{re.escape(path)}\b", named)]
        origin = walk.origins[max(of, key=len)] if of else None
        lines.append(problem if origin is None else f"{problem}\n    {origin} ({origin.where})")
    raise UserError("mtf would refuse to run the recipe:\n  " + "\n  ".join(lines))


def as_text(translation: Translation, arguments: Sequence[str]) -> str:
    """Returns the source code of a module that defines the translated recipe.

    Args:
      translation: the result of `translate`.
      arguments: the command-line arguments, which are shown in the module's docstring.
    """
    command = " \\\n    ".join([MADE_BY, *map(quoted, arguments)])
    lines = [
        f"{_WHAT[fdl.get_callable(translation.job).__name__]}, translated from gin files.",
        f"\n{command}\n",
        "Sources, in the order in which they were read:",
        *(f"  * {file}" for file in translation.files),
    ]
    if remarks := report(translation):
        lines += ["", *remarks]
    return as_python(translation.job, "\n".join([*lines, ""]), "recipe")


def report(translation: Translation) -> list[str]:
    """Returns lines that list the untranslated bindings, with the reasons, and the remarks."""
    documented = [str(note) for note in translation.notes if note.documented]
    others = [f"{note} ({note.binding.where})" for note in translation.notes if not note.documented]
    lines: list[str] = []
    for title, texts in (
        ("Not understood:", others),
        ("Not translated:", documented),
        ("Remarks:", list(translation.remarks)),
    ):
        if texts:
            lines.append(title)
        for text in texts:
            lines += wrapped(f"  * {text}", _WIDTH, indent="    ").splitlines()
    return lines

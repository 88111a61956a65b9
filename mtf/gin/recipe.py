"""Translates gin files to the text of a recipe."""

from __future__ import annotations

import dataclasses
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from mtf.config import checks
from mtf.errors import UserError
from mtf.gin import jobs, mesh, reading
from mtf.gin.expressions import Code, ConfigOf, evaluate
from mtf.gin.mesh_table import DEFAULTS, mesh_configurables
from mtf.gin.t5x_table import T5X, T5X_MODULES
from mtf.gin.walking import Note, Walk
from mtf.jobs import Evaluate, Infer, Train

# Modules that register no tasks.
_LIBRARIES = (
    *("__main__", "t5x", "seqio", "mesh_tensorflow", "tensorflow", "optax", "jax", "flax"),
    *("t5.models", "clu", "numpy", "functools", "gin"),
)
_JOBS: dict[str, tuple[str, type, Any]] = {
    "train": ("train_script.train", Train, jobs.train),
    "evaluate": ("eval_script.evaluate", Evaluate, jobs.evaluation),
    "infer": ("infer_script.infer", Infer, jobs.inference),
}
# Other jobs of T5X, and what mtf has instead.
_OTHER_JOBS = {
    "t5x.export_lib.save": "export_lib.save has no equivalent in a recipe; to export a checkpoint, "
    "run python -m mtf.convert RUN OUTPUT --to hf",
    "__main__.precompile": "train_script.precompile has no equivalent; translate the gin files of "
    "the training run",
}
# Settings without which a job cannot be assembled.
_NEEDED = {
    "train": ("data.mixture_or_task_name", "train_steps", "batch_size"),
    "evaluate": ("data.mixture_or_task_name", "checkpoint"),
    "infer": ("data.mixture_or_task_name", "checkpoint"),
}
_WIDTH = 100
MADE_BY = "Made by: python -m mtf.gin"  # marks the files that this command wrote
_WHAT = {"Train": "a training run", "Evaluate": "an evaluation", "Infer": "an inference job"}


@dataclasses.dataclass(frozen=True)
class Command:
    """What to translate: a command line of T5X or of t5_mesh_transformer.

    Attributes:
      files: gin files.
      bindings: `NAME=VALUE`, applied after the files.
      search_paths: folders to look for gin files in.
      cache_dirs: directories of SeqIO's caches.
      modules: modules that register tasks.
      model_dir: the run directory of t5_mesh_transformer; T5X has it in gin.
      tpu: whether the command runs on a TPU, on which t5_mesh_transformer computes in bfloat16.
    """

    files: tuple[str, ...]
    bindings: tuple[str, ...] = ()
    search_paths: tuple[str, ...] = ()
    cache_dirs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    model_dir: str | None = None
    tpu: bool = False


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translated run.

    Attributes:
      job: expression of the job's config.
      notes: bindings that were not translated.
      remarks: sentences on how others were.
      files: the gin files in the order in which they were read.
    """

    job: ConfigOf
    notes: tuple[Note, ...]
    remarks: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit status: 1 if there are bindings without a documented reason, else 0."""
        return int(any(not note.documented for note in self.notes))


def known_configurables() -> dict[str, str]:
    """Returns the full name of each configurable of the tables → its canonical name."""
    known: dict[str, str] = {}
    for canonical, modules in T5X_MODULES.items():
        name = canonical.partition(".")[2]
        known |= {f"{module}.{name}": canonical for module in modules}
    return known | mesh_configurables()


def translate(command: Command) -> Translation:
    """Translates a command; raises UserError if it has no equivalent."""
    bindings = _read(command, "")
    is_mesh = mesh.is_mesh(bindings)
    if is_mesh:
        bindings = _read(command, DEFAULTS)
    modules = (*command.modules, *bindings.modules)
    own = [m for m in modules if not any(m == lib or m.startswith(f"{lib}.") for lib in _LIBRARIES)]
    sources = jobs.Sources(command.cache_dirs, tuple(dict.fromkeys(own)))
    remarks: list[str] = []
    if is_mesh:
        walk, job = mesh.translate(
            bindings, command.model_dir, command.tpu, sources, remarks.append
        )
    else:
        walk, job = _t5x(bindings, sources, remarks)
    _check(job, walk)
    return Translation(job, tuple(walk.notes), tuple(remarks), tuple(bindings.files))


def _read(command: Command, defaults: str) -> reading.Bindings:
    known = known_configurables()
    return reading.read(command.files, command.bindings, command.search_paths, known, defaults)


def _t5x(
    bindings: reading.Bindings, sources: jobs.Sources, remarks: list[str]
) -> tuple[Walk, ConfigOf]:
    name = _job_name(bindings)
    root, job, assemble = _JOBS[name]
    walk = Walk(bindings, T5X)
    walk.section(name, root)
    walk.section("predict", "models.EncoderDecoderModel.predict_batch_with_aux")
    if name == "train":
        walk.section("loss", "models.EncoderDecoderModel.loss_fn")
    else:
        walk.use("network.", "adafactor.", "models.EncoderDecoderModel", "optimizers.", "optax.")
    walk.finish(job)
    missing = [path for path in _NEEDED[name] if path not in walk.settings]
    if missing:
        rows = [(row, section) for section in T5X.values() for row in section.rows]
        names = {row.path: f"{section.name}.{row.parameter}" for row, section in rows}
        unset = ", ".join(names.get(path, path) for path in missing)
        message = f"The gin files do not bind {unset}, which {root} needs."
        raise UserError(message + walk.not_understood())
    scanned = walk.settings.get("model.network.scan_layers", True)
    if name == "train" and "scalable_t5" in (bindings.network or "") and scanned:
        remarks.append(
            "Each scanned layer of t5x.examples.scalable_t5 has its own relative position bias; "
            "the layers of mtf share one, as unrolled layers of T5X do."
        )
    return walk, assemble(walk.settings, sources, remarks.append)


def _job_name(bindings: reading.Bindings) -> str:
    """Returns the job whose parameters the gin files bind; UserError if they bind none or more."""
    bound = {name: binding.where for (_, name, _), binding in bindings.parameters.items()}
    roots = [name for name, (root, _, _) in _JOBS.items() if root in bound]
    if len(roots) == 1:
        return roots[0]
    if roots:
        found = ", ".join(f"{_JOBS[name][0]} ({bound[_JOBS[name][0]]})" for name in roots)
        raise UserError(f"The gin files bind parameters of several jobs: {found}; expected one.")
    for name, instead in _OTHER_JOBS.items():
        if name in bound:
            raise UserError(f"{bound[name]}: {instead}.")
    expected = ", ".join(root for root, _, _ in _JOBS.values())
    raise UserError(
        f"The gin files bind parameters of no job; expected one of {expected}. Add one of "
        "t5x/configs/runs/{pretrain,finetune,eval,infer}.gin."
    )


def _check(job: ConfigOf, walk: Walk) -> None:
    """Raises a UserError that names every value that mtf's settings refuse, with its binding."""
    config = evaluate(job)
    problems = checks.find_problems(config) or checks.find_refusals(config)
    if not problems:
        return
    lines = []
    for problem in problems:
        named = problem.replace(": ", ".", 1)  # such as "model.network: dropout_rate must be …"
        of = [path for path in walk.origins if re.match(rf"{re.escape(path)}\b", named)]
        origin = walk.origins[max(of, key=len)] if of else None
        lines.append(problem if origin is None else f"{problem}\n    {origin} ({origin.where})")
    raise UserError("The recipe would be refused:\n  " + "\n  ".join(lines))


def as_text(translation: Translation, arguments: Sequence[str]) -> str:
    """Returns the module of a recipe.

    Args:
      translation: what `translate` returned.
      arguments: the arguments of the command, for the docstring.
    """
    job, code = translation.job, Code()
    body = code.write(job, 1, "return ")
    kind = job.target.__name__
    what = _WHAT[kind]
    files = "\n".join(f"  * {file}" for file in translation.files)
    docstring = (
        f"{what[0].upper()}{what[1:]}, translated from gin files.\n\n{MADE_BY}{_shown(arguments)}"
        f"\n\nSources, in the order in which they were read:\n{files}\n"
    ).replace('"""', "'''")
    raw = "r" if "\\" in docstring else ""
    comments = "".join(f"# {line}\n" for line in report(translation))
    return (
        f'{raw}"""{docstring}"""\n\n{code.imports()}' + f"\n{comments}" * bool(comments) + "\n\n"
        f"def recipe() -> fdl.Config[{kind}]:\n"
        f'    """Returns the config of the {what.partition(" ")[2]}."""\n'
        f"{''.join(code.lines)}    return {body}\n"
    )


def _shown(arguments: Sequence[str]) -> str:
    """Returns arguments as a shell takes them, in lines with a backslash at their ends."""
    lines: list[str] = []
    line = ""
    for argument in map(_quoted, arguments):
        width = _WIDTH - 3 - (0 if lines else len(MADE_BY))
        if line and len(line) + len(argument) > width:
            lines.append(f"{line} \\")
            line = "   "
        line += f" {argument}"
    return "\n".join([*lines, line])


def _quoted(argument: str) -> str:
    """Returns an argument with the quotes that a shell needs, as in --gin.NAME="'text'"."""
    if shlex.quote(argument) == argument:
        return argument
    flag, equals, value = argument.partition("=")
    if not (equals and shlex.quote(flag) == flag):
        flag, equals, value = "", "", argument
    plain = "'" in value and not set(value) & set('"$`\\!')
    return f"{flag}{equals}" + (f'"{value}"' if plain else shlex.quote(value))


def report(translation: Translation) -> list[str]:
    """Returns lines that name all bindings that were not translated, and why."""
    documented = [str(note) for note in translation.notes if note.documented]
    others = [f"{note} ({note.binding.where})" for note in translation.notes if not note.documented]
    lines: list[str] = []
    for title, texts in (
        ("Not understood:", others),
        ("Not translated, for reasons that docs/t5x.md explains:", documented),
        ("Remarks:", list(translation.remarks)),
    ):
        if texts:
            lines.append(title)
        for text in texts:
            lines += textwrap.wrap(
                text,
                _WIDTH - 2,
                initial_indent="  * ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines

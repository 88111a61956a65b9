"""The gin binding of each field of a config, and the field of a gin binding. Imports no gin."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from mtf.gin.mesh_table import MESH
from mtf.gin.rows import NotTranslatedError, Row, Section
from mtf.gin.t5x_table import T5X

# Class of a job → the section of its function.
_ROOTS = {"Train": "train", "Evaluate": "evaluate", "Infer": "infer"}
# Section → the class whose fields its parameters are, where several sections have the same field.
_OWNERS = {
    "adafactor": "AdafactorConfig",
    "adamw": "AdamWConfig",
    "pieces": "SentencePieceVocabulary",
    "bytes": "ByteVocabulary",
}
# Macros of T5X's gin files that do not have the name of the field.
_MACROS = {
    "EVALUATOR_NUM_EXAMPLES": "evaluator.num_examples",
    "INITIAL_CHECKPOINT_PATH": "checkpoint.restore.path",
    "CHECKPOINT_PATH": "checkpoint",
    "EVAL_OUTPUT_DIR": "output_dir",
    "INFER_OUTPUT_DIR": "output_dir",
    "SHUFFLE_TRAIN_EXAMPLES": "data.shuffle",
    "USE_CACHED_TASKS": "data.use_cached",
}


def binding_of(path: str, job: str, owner: str) -> str | None:
    """Returns the gin binding of a field, such as `trainer.Trainer.num_microbatches`, or None.

    `job` and `owner` are the names of the classes of the job and of the component with the field.
    """
    rows = [
        (f"{section.name}.{row.parameter}", bool(row.parts))
        for name, section in _sections(job)
        for row in section.rows
        if _path(row, job) == path
        and (owner not in _OWNERS.values() or _OWNERS.get(name, owner) == owner)
    ]
    # A parameter that takes the value says more than one that takes a reference.
    return min(rows, key=lambda row: row[1])[0] if rows else None


def assignment_of(
    binding: str, value: str, job: str, paths: Sequence[str]
) -> tuple[str, Any] | str:
    """Returns the path and the value for a gin binding, or the reason why there is none.

    The reason is "" if only a translation of all bindings can tell. The binding may be a macro, and
    its names may be shortened as in gin; `paths` are those of the config.
    """
    try:
        given = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return ""  # A reference or a macro.
    if "." not in binding:
        named = _MACROS.get(binding)
        path = named if named in paths else _by_last_step(binding.lower(), paths)
        return "" if path is None else (path, given)
    sections = [*(section for _, section in _sections(job)), *MESH.values()]
    rows = [
        row
        for section in sections
        for row in section.rows
        if _names(binding, f"{section.name}.{row.parameter}")
    ]
    for row in rows:
        path = _path(row, job)
        if path is not None and path in paths and not row.parts and given not in row.fixed:
            try:
                return path, row.convert(given) if row.convert else given
            except NotTranslatedError as reason:
                return str(reason)
    return rows[0].note if rows and not rows[0].parts else ""


def _sections(job: str) -> Iterator[tuple[str, Section]]:
    """Yields the sections of a job's function and of all that its parameters may refer to."""
    names = [_ROOTS[job]] if job in _ROOTS else []
    for name in names:  # The list grows.
        yield name, T5X[name]
        for row in T5X[name].rows:
            names += [part for part in (row.parts or {}).values() if part not in names]


def _path(row: Row, job: str) -> str | None:
    if row.path is None or job != "Train" or not row.path.startswith("decoding."):
        return row.path
    return f"evaluator.{row.path}"


def _names(binding: str, full: str) -> bool:
    """Returns whether a binding is the `full` one, perhaps without its module or scope."""
    scope, _, name = binding.rpartition("/")
    full_scope, _, full_name = full.rpartition("/")
    return scope in ("", full_scope) and f".{full_name}".endswith(f".{name}")


def _by_last_step(name: str, paths: Sequence[str]) -> str | None:
    """Returns the highest path that ends with a name."""
    found = [path for path in paths if path.rpartition(".")[2] == name]
    return min(found, key=lambda path: path.count("."), default=None)

"""Maps config fields to gin parameters and vice versa; does not need gin-config."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from mtf.cli.gin.mesh import MESH
from mtf.cli.gin.rows import NotTranslatedError, Row, Section
from mtf.cli.gin.t5x_table import T5X

# Name of a job class → section for the corresponding T5X function.
_ROOTS = {"Train": "train", "Evaluate": "evaluate", "Infer": "infer"}
# Section → class that defines its fields, for sections that share field names with each other.
_OWNERS = {
    "adafactor": "AdafactorConfig",
    "": "AdamWConfig",  # gin's AdamW becomes that of optax
    "pieces": "SentencePieceVocabulary",
    "bytes": "ByteVocabulary",
}
# Macro in T5X's gin files → config field, for macros whose names differ from their fields.
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
    """Returns a field's gin name, such as `trainer.Trainer.num_microbatches`; None if it has none.

    `job` and `owner` are the class names of the job and of the component that defines the field.
    """
    rows = [
        (f"{section.name}.{row.parameter}", bool(row.parts))
        for name, section in _sections(job)
        for row in section.rows
        if _path(row, job) == path
        and (owner not in _OWNERS.values() or _OWNERS.get(name, owner) == owner)
    ]
    # Parameters that take the value itself precede parameters that take a reference.
    return min(rows, key=lambda row: row[1])[0] if rows else None


def assignment_of(
    binding: str, value: str, job: str, paths: Sequence[str]
) -> tuple[str, Any] | str:
    """Returns the config path and value for a gin binding, or the reason why there is no path.

    The reason is "" if it is unknown, or if the path or the value depends on other bindings.
    `binding` may be a macro or an abbreviated name; `paths` contains all paths of the config.
    """
    try:
        given = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return ""  # The value is a reference or a macro.
    if "." not in binding:
        named = _MACROS.get(binding)
        found = [each for each in paths if each.rpartition(".")[2] == binding.lower()]
        path = named if named in paths else min(found, key=lambda each: each.count("."), default="")
        return (path, given) if path else ""
    rows = [
        row
        for section in [*(section for _, section in _sections(job)), *MESH.values()]
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
    """Yields (name, section) pairs for a job's function and all parts to which it may refer."""
    names = [_ROOTS[job]] if job in _ROOTS else []
    for name in names:  # The loop appends to `names`.
        yield name, T5X[name]
        for row in T5X[name].rows:
            names += [part for part in (row.parts or {}).values() if part not in names]


def _path(row: Row, job: str) -> str | None:
    if row.path is None or job != "Train" or not row.path.startswith("decoding."):
        return row.path
    return f"evaluator.{row.path}"


def _names(binding: str, full: str) -> bool:
    """Returns whether `binding` is the name `full`, with or without its module and scope."""
    scope, _, name = binding.rpartition("/")
    full_scope, _, full_name = full.rpartition("/")
    return scope in ("", full_scope) and f".{full_name}".endswith(f".{name}")

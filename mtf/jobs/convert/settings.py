"""The settings of a conversion job. Does not import NumPy."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Literal

from mtf.base.checks import check_fields, one_of
from mtf.base.errors import UserError
from mtf.jobs.job import Job
from mtf.storage import AnyPath

if TYPE_CHECKING:
    from conversion.formats import Format

_PATH = {"path": True}


def _kinds() -> dict[str, Format]:
    """Returns a dict mapping the output formats, also those of users, to what is known of them."""
    from conversion.formats import output_formats  # A command reports a file that hides it.

    return output_formats()


def _choices() -> dict[str, str]:
    return {name: kind.outputs[name] for name, kind in _kinds().items()}


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


@dataclasses.dataclass(frozen=True)
class Convert(Job[AnyPath]):
    """Converts a checkpoint from any format to another, and verifies the result.

    docs/checkpoints.md describes the formats and the verification. The fields are the options of
    `python -m mtf.convert`, and messages name them so.

    Attributes:
      checkpoint: a run directory, checkpoint_STEP, Mesh TensorFlow checkpoint, Hugging Face
        directory, or OWNER/NAME on its hub.
      output: a new or empty directory; T5X's and mtf's formats create checkpoint_STEP in it, unless
        it has that name itself.
      to: the output format.
      step: the step of the checkpoint; None for the latest.
      ema: whether to convert the averaged parameters that a run with `trainer.ema` keeps.
      verify: whether to read the tensors back, and compare float32 logits in JAX and PyTorch if one
        of the models is in Hugging Face's format; None for True, without logits if PyTorch is not
        installed.
      vocabulary: a SentencePiece model, a tokenizer.json, byt5 for bytes, or none for no tokenizer;
        None for that of the run or Hugging Face directory, byt5 if that is the model type,
        otherwise none.
      config: a run directory or config.json of the run that wrote the checkpoint, or Hugging Face
        config.json, to use instead of inferred settings; None for the run directory of the
        checkpoint.
      model_type: the model type in Hugging Face's config; None for umt5 if each layer has a
        relative position bias, mt5 if the vocabulary has mT5's size, 250112, otherwise t5.
      dtype: the type of the parameters, float32 or bfloat16; None for float32 in Hugging Face's
        format, otherwise the stored type.
      optimizer: whether to keep or drop the optimizer state; None for keep, if the checkpoint has
        one and the format can hold it.
      max_shard_size: the maximum size of a weight file, such as 500MB; None for 5GB.
      allow_non_finite: whether to convert even if parameters contain NaN or infinity, which is an
        error by default.
    """

    checkpoint: str = dataclasses.field(metadata=_PATH)
    output: str
    to: str = dataclasses.field(metadata={"choices": _choices})
    step: int | None = None
    ema: bool = False
    verify: bool | None = None
    vocabulary: str | None = dataclasses.field(default=None, metadata=_PATH)
    config: str | None = dataclasses.field(default=None, metadata=_PATH)
    model_type: Literal["t5", "mt5", "umt5", "byt5"] | None = None
    dtype: str | None = None
    optimizer: Literal["keep", "drop"] | None = None
    max_shard_size: str | None = None
    allow_non_finite: bool = False

    def __post_init__(self) -> None:
        check_fields(self, one_of(*_kinds()), "to")
        kinds = _kinds()
        kind = kinds[self.to]
        # Further checks of `verify` are in `export`.
        if given := [name.replace("_", "-") for name in kind.refused if getattr(self, name)]:
            reason = "which writes float32 adapters" if self.to == "peft" else "only with --to hf"
            shown = ", --".join(given)
            raise UserError(f"--{shown} cannot be used with --to {self.to}, {reason}.")
        if not kind.has_state and self.optimizer == "keep":
            *others, last = (to for to, each in kinds.items() if each.has_state)
            raise UserError(
                f"--optimizer keep: {kind.title}'s format has no optimizer state. Use --to "
                f"{', '.join(others)} or {last}, or --optimizer drop."
            )
        self.max_shard_bytes  # noqa: B018 - checks the size

    @property
    def title(self) -> str:
        """The description of the output format."""
        return _choices()[self.to]

    @property
    def max_shard_bytes(self) -> int:
        """The maximum size of a weight file in bytes; raises UserError if it is not a size."""
        text = self.max_shard_size or "5GB"
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
        if not match:
            raise UserError(
                f"--max-shard-size {text}: expected a number of bytes, or a size such as 500MB or "
                "5GB."
            )
        return int(float(match[1]) * _UNITS[match[2] or ""])

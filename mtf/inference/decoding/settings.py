"""Settings for decoding."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.base.checks import AT_LEAST_ONE, Condition, check_fields
from mtf.base.errors import UserError

_METHODS = ("greedy", "sample", "beam")
_WHOLE: Condition = ("a whole number", lambda x: isinstance(x, int) and not isinstance(x, bool))
_NUMBER: Condition = ("a number", lambda x: isinstance(x, int | float) and not isinstance(x, bool))
_PROBABILITY: Condition = ("greater than 0 and at most 1 (all tokens)", lambda x: 0 < x <= 1)


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Settings for greedy decoding, sampling and beam search.

    T5X's equivalents are the arguments of `decoding.temperature_sample` and `beam_search`.

    Attributes:
      method: "greedy", "sample" or "beam".
      max_length: maximum number of decoded tokens, including EOS.
      temperature: number by which sampling divides the logits; 0 for greedy decoding.
      top_k: number of most probable tokens to sample from; 0 for all. Not allowed with `top_p`.
      top_p: total probability of the most probable tokens to sample from; 1 for all.
      num_beams: number of hypotheses in beam search.
      length_penalty: exponent of the length in the scores of beam search.
      length_penalty_form: form of the score of a finished hypothesis. With "t5x", the score is
        log-probability / ((5 + length) / 6)**length_penalty (Wu et al. 2016), and the search ends
        when no hypothesis can score better. With "hf", the score is
        log-probability / length**length_penalty, and transformers' rules for finishing and stopping
        apply. docs/inference.md compares the two forms.
      early_stopping: whether a search with form "hf" ends as soon as `num_beams` hypotheses have
        finished.
      num_return: number of hypotheses or samples to return per example, best first.
      seed: random seed for sampling.
    """

    method: Literal["greedy", "sample", "beam"] = "greedy"
    max_length: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_beams: int = 4
    length_penalty: float = 0.6
    length_penalty_form: Literal["t5x", "hf"] = "t5x"
    early_stopping: bool = False
    num_return: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ("'greedy', 'sample' or 'beam'", _METHODS.__contains__), "method")
        check_fields(self, _WHOLE, "max_length", "top_k", "num_beams", "num_return", "seed")
        check_fields(self, _NUMBER, "temperature", "top_p", "length_penalty")
        check_fields(self, AT_LEAST_ONE, "max_length", "num_beams", "num_return")
        check_fields(self, ("at least 0", lambda x: x >= 0), "temperature", "top_k")
        check_fields(self, _PROBABILITY, "top_p")
        if self.top_k and self.top_p < 1.0:
            raise UserError(
                f"top_k ({self.top_k}) and top_p ({self.top_p}) cannot both be set (T5X has the "
                "same rule). Set top_k=0 or top_p=1."
            )
        check_fields(self, ("in [0, 2**32)", lambda x: 0 <= x < 2**32), "seed")
        for field in ("temperature", "top_k", "top_p"):
            default = getattr(DecodingConfig, field)
            if self.method != "sample" and getattr(self, field) != default:
                raise UserError(
                    f"{field} applies only if method='sample', but method is {self.method!r}. "
                    f"Set method='sample' or {field}={default}."
                )
        if self.method == "greedy" and self.num_return > 1:
            raise UserError(
                f"Greedy decoding returns one result, but num_return is {self.num_return}. "
                "Set method to 'beam' or 'sample', or num_return=1."
            )
        if self.method == "beam":
            self._check_beams()

    def _check_beams(self) -> None:
        if self.num_return > self.num_beams:
            raise UserError(
                f"num_return ({self.num_return}) must be at most num_beams ({self.num_beams})."
            )
        check_fields(self, ("'t5x' or 'hf'", ("t5x", "hf").__contains__), "length_penalty_form")
        if self.length_penalty_form == "t5x" and self.length_penalty < 0:
            raise UserError(
                "length_penalty must be at least 0 if length_penalty_form='t5x', "
                f"not {self.length_penalty}."
            )
        if self.length_penalty_form == "t5x" and self.early_stopping:
            raise UserError(
                "early_stopping=True requires length_penalty_form='hf', but length_penalty_form is "
                "'t5x'. Set length_penalty_form='hf' or early_stopping=False."
            )


def one_beam(max_length: int) -> DecodingConfig:
    """Returns settings for beam search with one beam, which is T5X's default."""
    return DecodingConfig("beam", max_length, num_beams=1)

"""How targets are decoded. Imports nothing but the standard library."""

from __future__ import annotations

import dataclasses
from typing import Literal

from mtf.errors import UserError


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Greedy decoding, sampling or beam search (T5X: `decoding.temperature_sample`, `beam_search`).

    Attributes:
      method: "greedy", "sample" or "beam".
      max_length: tokens to decode at most, EOS included.
      temperature: sampling: logits are divided by it; 0 is greedy.
      top_k: sampling: only the k most probable tokens; 0 is all. Excludes `top_p`.
      top_p: sampling: only the most probable tokens that together have this probability; 1 is all.
      num_beams: beam search: hypotheses kept at every step.
      length_penalty: beam search: the exponent of the length, see `length_penalty_form`.
      length_penalty_form: beam search: what a finished hypothesis is ranked by. "t5x":
        log-probability / ((5 + length) / 6)**length_penalty (Wu et al. 2016), searched until
        nothing can improve. "hf": log-probability / length**length_penalty, and transformers'
        rules of when to stop and which hypotheses may finish. docs/inference.md compares them.
      early_stopping: form "hf": stop as soon as `num_beams` hypotheses have finished.
      num_return: hypotheses or samples returned for each example, best first.
      seed: sampling: the base of every random number.
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
        if self.method not in ("greedy", "sample", "beam"):
            raise UserError(f"method must be 'greedy', 'sample' or 'beam', not {self.method!r}.")
        whole = ("max_length", "top_k", "num_beams", "num_return", "seed")
        for field in (*whole, "temperature", "top_p", "length_penalty"):
            value, kinds = getattr(self, field), (int,) if field in whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                kind = "a whole number" if field in whole else "a number"
                raise UserError(f"{field} must be {kind}, not {value!r}.")
        for field in ("max_length", "num_beams", "num_return"):
            if getattr(self, field) < 1:
                raise UserError(f"{field} must be at least 1, not {getattr(self, field)}.")
        if self.temperature < 0:
            raise UserError(f"temperature must not be negative, not {self.temperature}.")
        if self.top_k < 0:
            raise UserError(f"top_k must not be negative (0 is all tokens), not {self.top_k}.")
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p must be in (0, 1] (1 is all tokens), not {self.top_p}.")
        if self.top_k and self.top_p < 1.0:
            raise UserError(
                f"top_k ({self.top_k}) and top_p ({self.top_p}) exclude each other, as in T5X. "
                "Leave top_k at 0 or top_p at 1."
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 2**32), not {self.seed}.")
        for field in ("temperature", "top_k", "top_p"):
            default = type(self).__dataclass_fields__[field].default
            if self.method != "sample" and getattr(self, field) != default:
                raise UserError(
                    f"{field} is for method='sample', but method is {self.method!r}. "
                    f"Set method='sample' or leave {field} at {default}."
                )
        if self.method == "greedy" and self.num_return > 1:
            raise UserError(
                f"Greedy decoding has one result, but num_return is {self.num_return}. "
                "Use method='beam' or 'sample'."
            )
        if self.method == "beam":
            self._check_beams()

    def _check_beams(self) -> None:
        if self.num_return > self.num_beams:
            raise UserError(
                f"num_return ({self.num_return}) must not be more than num_beams "
                f"({self.num_beams})."
            )
        if self.length_penalty_form not in ("t5x", "hf"):
            raise UserError(
                f"length_penalty_form must be 't5x' or 'hf', not {self.length_penalty_form!r}."
            )
        if self.length_penalty_form == "t5x" and self.length_penalty < 0:
            raise UserError(
                "length_penalty must not be negative with length_penalty_form='t5x', "
                f"not {self.length_penalty}."
            )
        if self.length_penalty_form == "t5x" and self.early_stopping:
            raise UserError("early_stopping is for length_penalty_form='hf'.")

"""Loads a model to score, rank and generate text in Python.

model = mtf.load("runs/quickstart-20260101-120000")
model.generate(["translate English to German: Good morning."], method="beam")
model.rank("Is the sky blue?", ["no", "yes"]).best
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np

from mtf.base.errors import UserError, did_you_mean
from mtf.base.progress import progress_bar, waiting
from mtf.data.text.features import encode_feature
from mtf.data.text.vocabularies import Vocabulary
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.loading import Loaded, load_model
from mtf.inference.opening import open_model
from mtf.inference.predictor import NOT_FINITE, Example, Scores
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig

_logger = logging.getLogger(__name__)

# Any iterable of texts is accepted. The type is narrower because a string is also an iterable of
# strings.
Texts: TypeAlias = list[str] | tuple[str, ...]


class Sample(NamedTuple):
    """A generated text and its log-probability, including the length penalty of beam search."""

    text: str
    score: float


class Ranking(NamedTuple):
    """The scores of the choices for one input.

    Attributes:
      best: index of the most likely choice; the first one if several are equally likely.
      scores: log-likelihood of each choice, summed over its tokens.
      num_tokens: number of tokens of each choice, including EOS. Divide the scores by these
        numbers for length-normalized scores.
    """

    best: int
    scores: list[float]
    num_tokens: list[int]


class LanguageModel:
    """A model and its vocabulary, for generating, scoring and ranking text.

    Given one text, methods return one result; given a list of texts, they return a list of results.
    The exception is `loss`, which always returns one number. As in training, the score of a target
    includes EOS.

    Attributes:
      loaded: the network, its parameters and vocabulary, and the path of the checkpoint.
      inputs_add_eos: whether EOS is appended to inputs.
      num_truncated: number of texts truncated so far.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        batch_size: int = 32,
        max_inputs_length: int = 1024,
        max_targets_length: int = 256,
        inputs_add_eos: bool | None = None,
        progress: bool = True,
    ) -> None:
        """Creates a model from `loaded`; `load` describes the other arguments."""
        self.loaded = loaded
        self.inputs_add_eos = loaded.inputs_add_eos if inputs_add_eos is None else inputs_add_eos
        self.num_truncated = 0
        self._progress = progress
        self._predictor = loaded.predictor(batch_size, max_inputs_length, max_targets_length)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the model."""
        return self.loaded.vocabulary

    @overload
    def generate(self, texts: str, **decoding: Any) -> str: ...
    @overload
    def generate(self, texts: Texts, **decoding: Any) -> list[str]: ...
    def generate(self, texts: str | Texts, **decoding: Any) -> str | list[str]:
        """Returns the best text for each input.

        The keyword arguments are fields of `mtf.inference.DecodingConfig`, such as method
        ("greedy", "sample" or "beam"), max_length, temperature or num_beams. Raises UserError if a
        field does not exist or an input cannot be used.
        """
        if decoding.get("num_return", 1) != 1:
            raise UserError("generate returns one text per input. For several, call samples().")
        found = [best.text for best, *_ in self.samples(_listed(texts, "texts"), **decoding)]
        return found[0] if isinstance(texts, str) else found

    @overload
    def samples(self, texts: str, **decoding: Any) -> list[Sample]: ...
    @overload
    def samples(self, texts: Texts, **decoding: Any) -> list[list[Sample]]: ...
    def samples(self, texts: str | Texts, **decoding: Any) -> list[Sample] | list[list[Sample]]:
        """Returns `num_return` texts per input with their scores, best first; see `generate`."""
        located = [(f"texts[{i}]", text) for i, text in enumerate(_listed(texts, "texts"))]
        limit = self._predictor.max_inputs_length
        inputs = self._encode("texts", located, self.inputs_add_eos, limit)
        names = [field.name for field in dataclasses.fields(DecodingConfig)]
        for name in decoding:
            if name not in names:
                raise UserError(
                    f"Decoding has no setting {name!r}.{did_you_mean(name, names)} "
                    f"The settings are {', '.join(names)}."
                )
        settings, found = DecodingConfig(**decoding), list[list[Sample]]()
        with progress_bar("generate", len(inputs), shown=self._progress) as advance:
            generated = self._predictor.generate(inputs, settings, on_progress=advance)
            for number, generations in enumerate(generated):
                if not all(math.isfinite(generation.score) for generation in generations):
                    raise UserError(f"texts[{number}]: the score is NaN or infinite. {NOT_FINITE}")
                found.append([Sample(self.vocabulary.decode(g.ids), g.score) for g in generations])
        return found[0] if isinstance(texts, str) else found

    @overload
    def score(self, inputs: str, targets: str) -> float: ...
    @overload
    def score(self, inputs: Texts, targets: Texts) -> list[float]: ...
    def score(self, inputs: str | Texts, targets: str | Texts) -> float | list[float]:
        """Returns each target's log-likelihood given its input, in nats, summed over tokens."""
        found = self._scores("score", self._pairs(inputs, targets))
        scores = [float(each.log_likelihoods[0]) for each in found]
        return scores[0] if isinstance(inputs, str) else scores

    def loss(self, inputs: str | Texts, targets: str | Texts) -> float:
        """Returns the mean negative log-likelihood per target token over all pairs, in nats."""
        total, num_tokens = 0.0, 0
        for scores in self._scores("loss", self._pairs(inputs, targets)):
            total -= float(scores.log_likelihoods[0])
            num_tokens += int(scores.num_tokens[0])
        if not num_tokens:
            raise UserError("inputs and targets are empty; expected at least one pair.")
        return total / num_tokens

    @overload
    def rank(self, inputs: str, choices: Texts) -> Ranking: ...
    @overload
    def rank(self, inputs: Texts, choices: Texts | Sequence[Texts]) -> list[Ranking]: ...
    def rank(
        self, inputs: str | Texts, choices: Texts | Sequence[Texts]
    ) -> Ranking | list[Ranking]:
        """Ranks choices by log-likelihood, as in T0's evaluation. Each input is encoded once.

        `choices` is either one list of choices for all inputs, or a list that contains a list of
        choices for each input. Raises UserError if an input has no choices or if a choice cannot be
        used.
        """
        texts = _listed(inputs, "inputs")
        if isinstance(choices, str) or not isinstance(choices, Iterable):
            what = "a string" if isinstance(choices, str) else repr(choices)
            raise UserError(f"choices is {what}; expected a list of strings.")
        shared = all(isinstance(choice, str) for choice in choices)
        lists: list[Any] = [choices] * len(texts) if shared else list(choices)
        _check_counts("inputs", texts, "lists of choices", lists)
        located = []
        for i, each in enumerate(lists):
            name = "choices" if shared else f"choices[{i}]"
            if isinstance(each, str):
                raise UserError(f"{name} is a string; expected a list of strings.")
            if not each:
                raise UserError(f"{name} is empty; expected at least one choice.")
            located.append([(f"{name}[{j}]", text) for j, text in enumerate(each)])
        found = self._scores("rank", self._examples("choices", texts, located))
        rankings = [
            Ranking(int(np.argmax(scores)), scores.tolist(), num_tokens.tolist())
            for scores, num_tokens, _ in found
        ]
        return rankings[0] if isinstance(inputs, str) else rankings

    def _pairs(self, inputs: str | Texts, targets: str | Texts) -> list[Example]:
        if isinstance(inputs, str) != isinstance(targets, str):
            raise UserError("inputs and targets must both be strings, or both lists of strings.")
        texts, answers = _listed(inputs, "inputs"), _listed(targets, "targets")
        _check_counts("inputs", texts, "targets", answers)
        located = [[(f"targets[{i}]", text)] for i, text in enumerate(answers)]
        return self._examples("targets", texts, located)

    def _examples(
        self, name: str, inputs: Sequence[str], targets: Sequence[Sequence[tuple[str, str]]]
    ) -> list[Example]:
        """Encodes each input and its targets; a target is given as (name for messages, text)."""
        located = list(itertools.chain.from_iterable(targets))
        for location, text in located:
            if isinstance(text, str) and not text.strip():
                raise UserError(f"{location} is empty; expected a nonempty string to score.")
        ids = iter(self._encode(name, located, True, self._predictor.max_targets_length))
        of_inputs = [(f"inputs[{i}]", text) for i, text in enumerate(inputs)]
        limit = self._predictor.max_inputs_length
        encoded = self._encode("inputs", of_inputs, self.inputs_add_eos, limit)
        return [
            (tokens, list(itertools.islice(ids, len(each))))
            for tokens, each in zip(encoded, targets, strict=True)
        ]

    def _scores(self, what: str, examples: list[Example]) -> Iterator[Scores]:
        with progress_bar(what, len(examples), shown=self._progress) as advance:
            yield from self._predictor.log_likelihoods(examples, on_progress=advance)

    def _encode(
        self, name: str, located: Sequence[tuple[str, str]], add_eos: bool, limit: int
    ) -> list[list[int]]:
        """Encodes pairs (name for messages, text), and logs how many texts were truncated."""
        found, num_truncated = [], 0
        for location, text in located:
            if not isinstance(text, str):
                raise UserError(f"{location} has type {type(text).__name__}; expected a string.")
            ids, truncated = encode(self.vocabulary, text, add_eos=add_eos, max_length=limit)
            found.append(ids)
            num_truncated += truncated
        self.num_truncated += num_truncated
        if num_truncated:
            _logger.warning(
                "%d of %d %s are longer than %d tokens and were truncated.",
                *(num_truncated, len(found), name, limit),
            )
        return found


def encode(
    vocabulary: Vocabulary, text: str | Sequence[int], *, add_eos: bool, max_length: int
) -> tuple[list[int], bool]:
    """Returns at most `max_length` token ids, and whether the text was truncated.

    `text` is a text or its token ids without EOS. If `add_eos` is True, the returned ids end with
    EOS, even if they are truncated.
    """
    ids = vocabulary.encode(text) if isinstance(text, str) else text
    kept = encode_feature(vocabulary, ids, add_eos=add_eos, max_length=max_length)
    return kept.tolist(), len(kept) < len(ids) + add_eos


def _listed(texts: str | Texts, name: str) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, Iterable):
        return list(texts)
    raise UserError(
        f"{name} has type {type(texts).__name__}; expected a string or a list of strings."
    )


def _check_counts(a: str, first: Sequence[object], b: str, second: Sequence[object]) -> None:
    if len(first) != len(second):
        raise UserError(
            f"There are {len(first)} {a} but {len(second)} {b}; expected the same number of each."
        )


def load(
    path: str | Path,
    *,
    step: int | None = None,
    ema: bool = False,
    vocabulary: Vocabulary | str | None = None,
    config: str | Path | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    partitioner: PartitionerConfig | None = None,
    batch_size: int = 32,
    max_inputs_length: int = 1024,
    max_targets_length: int = 256,
    inputs_add_eos: bool | None = None,
    progress: bool = True,
    trust: bool = False,
) -> LanguageModel:
    """Loads a model to use in Python.

    Args:
      path: a run directory, an mtf, T5X or Mesh TensorFlow checkpoint, or the Hugging Face
        directory or hub name (`google/flan-t5-small`) of a T5, mT5 or ByT5 model.
      step: step of the checkpoint; None for the latest.
      ema: whether to load the moving average of the parameters that `trainer.ema` keeps.
      vocabulary: "t5", "mt5", "byt5", the path of a SentencePiece model or tokenizer.json, or a
        vocabulary. If None, it is read from the run or the Hugging Face directory or, if there is
        neither, inferred from the size of the embedding.
      config: for a checkpoint outside a run directory, a run directory or config.json that
        describes its network and data, or a config.json of Hugging Face. If None, T5X checkpoints
        are assumed to have the settings of the published models, and a warning is logged.
      dtype: dtype of the parameters and activations.
      partitioner: how the model is split across devices; None to copy all of it to each device.
      batch_size: number of examples in a batch. Results do not depend on the batch size.
      max_inputs_length: maximum number of tokens in an input. Longer inputs are truncated, and a
        warning is logged.
      max_targets_length: maximum number of tokens in a target. Longer targets are truncated, and a
        warning is logged.
      inputs_add_eos: whether EOS is appended to inputs; None for the setting of the training run
        or of the Hugging Face tokenizer or, without these, for True, as in T5, mT5 and ByT5. T0
        was trained without EOS after its inputs.
      progress: whether to show a progress bar in terminals and notebooks.
      trust: whether to import modules of yours that the config of the run names, such as that of a
        custom loss. Importing a module runs its code.

    Raises:
      UserError: if `path` cannot be loaded, if the config of its run is missing, or if its
        vocabulary is unknown or does not fit the embedding.
    """
    if step is not None and type(step) is not int:
        raise UserError(f"step must be a whole number or None, not {step!r}.")
    with waiting(f"opening {path}", shown=progress and sys.stderr.isatty()):
        opened = open_model(
            path, step=step, ema=ema, vocabulary=vocabulary, config=config, trust=trust
        )
    mesh = PjitPartitioner.create(partitioner or PartitionerConfig())
    return LanguageModel(
        load_model(opened, dtype, mesh, progress=progress),
        batch_size=batch_size,
        max_inputs_length=max_inputs_length,
        max_targets_length=max_targets_length,
        inputs_add_eos=inputs_add_eos,
        progress=progress,
    )

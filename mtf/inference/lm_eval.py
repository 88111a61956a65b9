"""Models for lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

    python -m mtf.inference.lm_eval run --model mtf --model_args checkpoint=RUN_DIR --tasks boolq

In Python, importing this module registers the model "mtf". The conventions are those of the
harness's `hf` model with backend seq2seq: the encoder reads the context with EOS, and if it is too
long, its beginning is dropped; the continuation is scored without EOS.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from mtf.decoding.settings import DecodingConfig
from mtf.errors import UserError
from mtf.inference.loading import load_model
from mtf.progress import progress_bar
from mtf.text.features import encode_feature
from mtf.text.vocabularies import Vocabulary

try:
    from lm_eval import utils
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise UserError(
        "lm-evaluation-harness is not installed. Run: pip install 'mtf-jax[lm-eval]'"
    ) from error

_logger = logging.getLogger(__name__)

Ids = list[int]


@register_model("mtf")
class HarnessModel(LM):
    """A checkpoint with the harness's interface of a model."""

    def __init__(
        self,
        checkpoint: str,
        *,
        batch_size: int | str = 32,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_inputs_length: int = 1024,
        max_targets_length: int = 1024,
        max_gen_toks: int = 256,
        inputs_add_eos: bool | None = None,
        targets_add_eos: bool = False,
        **options: Any,
    ) -> None:
        """Loads the model.

        Args:
          checkpoint: path, as for `mtf.load`.
          batch_size: number of examples in a batch.
          max_batch_size, device: not used, but passed by the harness. JAX chooses the device; set
            JAX_PLATFORMS=cpu for the CPU.
          max_inputs_length: maximum number of tokens of a context; the last ones are used.
          max_targets_length: maximum number of tokens of a continuation.
          max_gen_toks: number of tokens to generate if a task does not set it.
          inputs_add_eos: whether EOS is appended to contexts; None: as in training.
          targets_add_eos: whether EOS is scored after a continuation, as in T0's evaluation.
          **options: `step`, `vocabulary`, `config` and `dtype` of `mtf.load`.
        """
        super().__init__()
        del max_batch_size, device
        if isinstance(batch_size, str) and not batch_size.isdigit():
            raise UserError(f"batch_size must be a whole number, not {batch_size!r}.")
        loaded = load_model(checkpoint, **options)
        self._vocabulary: Vocabulary = loaded.vocabulary
        self._inputs_add_eos = loaded.inputs_add_eos if inputs_add_eos is None else inputs_add_eos
        self._targets_add_eos = targets_add_eos
        self._max_gen_toks = max_gen_toks
        self._num_truncated = 0
        self._predictor = loaded.predictor(int(batch_size), max_inputs_length, max_targets_length)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Returns each continuation's log-likelihood, and whether greedy decoding yields it."""
        pairs = []
        for context, continuation in (request.args for request in requests):
            # White space between them belongs to the continuation.
            stripped = context.rstrip()
            text = context[len(stripped) :] + continuation
            ids = self._vocabulary.encode(text)
            if not ids:
                raise UserError(f"the continuation {continuation!r} has no tokens to score")
            target = encode_feature(self._vocabulary, ids, add_eos=self._targets_add_eos)
            pairs.append((self._encode(stripped), target.tolist()))
        results = self._scored(pairs, disable_tqdm)
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-likelihoods of whole texts, scored by the decoder.

        The encoder reads only EOS or, for further windows of a text longer than
        `max_targets_length`, the tokens before the window. Encoder-decoders are not trained for
        this: the results are comparable only with those of `hf`.
        """
        eos = self._vocabulary.eos_id
        limit = self._predictor.max_targets_length
        pairs, num_windows = [], []
        for (text,) in (request.args for request in requests):
            windows = [
                utils.make_disjoint_window(window)
                for window in utils.get_rolling_token_windows(
                    token_list=[*self._vocabulary.encode(text), eos],
                    prefix_token=eos,
                    max_seq_len=limit,
                    context_len=1,
                )
            ]
            pairs += [(list(context), list(window)) for context, window in windows]
            num_windows.append(len(windows))
        scores = iter(self._scored(pairs, disable_tqdm, greedy=False))
        totals = [sum(score for score, _ in itertools.islice(scores, n)) for n in num_windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the text generated for each context, up to the first stop sequence."""
        texts: list[str] = [""] * len(requests)
        by_settings: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            settings = json.dumps(request.args[1], sort_keys=True)
            by_settings.setdefault(settings, []).append(number)
        with progress_bar("generate", len(requests), shown=not disable_tqdm) as advance:
            for settings, numbers in by_settings.items():
                decoding, stops = self._decoding(json.loads(settings))
                contexts = [self._encode(requests[i].args[0]) for i in numbers]
                generated = self._predictor.generate(contexts, decoding, numbers, advance)
                for number, (best, *_) in zip(numbers, generated, strict=True):
                    text = self._vocabulary.decode(best.ids)
                    for stop in stops:
                        text = text.split(stop)[0] if stop else text
                    texts[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        self._warn_truncated()
        return texts

    def _encode(self, context: str) -> Ids:
        """Returns the last `max_inputs_length` token ids of a context, or EOS if it is empty."""
        ids: Ids = encode_feature(self._vocabulary, context, add_eos=self._inputs_add_eos).tolist()
        limit = self._predictor.max_inputs_length
        self._num_truncated += len(ids) > limit
        return ids[-limit:] or [self._vocabulary.eos_id]

    def _scored(
        self, pairs: Sequence[tuple[Ids, Ids]], disable_tqdm: bool, *, greedy: bool = True
    ) -> list[tuple[float, bool]]:
        """Scores pairs; consecutive pairs with the same context share its encoding."""
        groups = [
            (context, [target for _, target in group])
            for context, group in itertools.groupby(pairs, key=lambda pair: pair[0])
        ]
        results: list[tuple[float, bool]] = []
        with progress_bar("loglikelihood", len(groups), shown=not disable_tqdm) as advance:
            scored = self._predictor.log_likelihoods(groups, on_progress=advance)
            likeliest = self._greedy(groups) if greedy else [[]] * len(groups)
            for (_, targets), scores, ids in zip(groups, scored, likeliest, strict=True):
                self._num_truncated += scores.truncated
                results += [
                    (float(score), ids[: len(target)] == target)
                    for target, score in zip(targets, scores.log_likelihoods, strict=True)
                ]
        self._warn_truncated()
        return results

    def _greedy(self, groups: Sequence[tuple[Ids, list[Ids]]]) -> list[Ids]:
        """Returns the result of greedy decoding for each context, as long as the longest target."""
        longest = max((len(target) for _, targets in groups for target in targets), default=1)
        decoding = DecodingConfig(max_length=1 << (longest - 1).bit_length())
        eos = self._vocabulary.eos_id
        found = self._predictor.generate((context for context, _ in groups), decoding)
        return [[*best.ids, eos] for best, *_ in found]

    def _decoding(self, settings: dict[str, Any]) -> tuple[DecodingConfig, list[str]]:
        """Returns the decoding and the stop sequences that a task sets."""
        until = settings.pop("until", None) or []
        names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
        lengths = [settings.pop(name, None) for name in names]
        length = next((n for n in lengths if n is not None), self._max_gen_toks)
        temperature = float(settings.pop("temperature", 0.0) or 0.0)
        sampled = settings.pop("do_sample", None)
        restrictions = {name: settings.pop(name) for name in {"top_k", "top_p"} & set(settings)}
        num_beams = int(settings.pop("num_beams", 1))
        penalty = float(settings.pop("length_penalty", 1.0))
        if settings:
            _logger.warning("unused generation settings: %s", ", ".join(settings))
        chosen: dict[str, Any] = {"method": "greedy"}
        if num_beams > 1:
            chosen = {"method": "beam", "num_beams": num_beams}
            chosen |= {"length_penalty": penalty, "length_penalty_form": "hf"}
        elif sampled or (sampled is None and temperature > 0):
            chosen = {"method": "sample", "temperature": temperature or 1.0} | restrictions
        decoding = DecodingConfig(max_length=int(length), **chosen)
        return decoding, [until] if isinstance(until, str) else list(until)

    def _warn_truncated(self) -> None:
        number, self._num_truncated = self._num_truncated, 0
        if number:
            _logger.warning(
                "%d contexts or continuations are longer than max_inputs_length=%d or "
                "max_targets_length=%d tokens and were truncated.",
                *(number, self._predictor.max_inputs_length, self._predictor.max_targets_length),
            )


def main() -> None:
    """Runs the harness's command line with the model "mtf"."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

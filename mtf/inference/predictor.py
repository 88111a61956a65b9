"""Likelihoods of targets, and generated text, for any number of examples on any mesh.

Examples come and results go in the given order. In between they are packed into rows (to be
scored) or sorted by length (to generate), so that batches have little padding, and lengths are
rounded up, so that few shapes are compiled.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mtf.errors import UserError
from mtf.inference.rows import Item, Packed, make_items, pack, power_of_two, rounded_length
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.partitioning.mesh import PjitPartitioner
from mtf.text.vocabularies import Vocabulary

if TYPE_CHECKING:
    from mtf.decoding.settings import DecodingConfig

T = TypeVar("T")

# Examples that are sorted among each other: so many batches, but at least so many examples.
_WINDOW_BATCHES = 32
_WINDOW_EXAMPLES = 1024
# Logits that exist at a time on a device.
_MAX_LOGITS_BYTES = 1 << 26
# Batches that the devices are given before the results of the first are fetched.
_NUM_IN_FLIGHT = 2


class Scores(NamedTuple):
    """What an example's targets are worth.

    Attributes:
      log_likelihoods: (targets,) float32: natural logarithms, summed over a target's tokens.
      num_tokens: (targets,) int32: tokens that the sums are over, end of sequence included.
      truncated: whether the inputs or one of the targets were longer than the limit.
    """

    log_likelihoods: np.ndarray
    num_tokens: np.ndarray
    truncated: bool


class Generation(NamedTuple):
    """A generated sequence.

    Attributes:
      ids: without end of sequence and padding.
      score: as `mtf.decoding.generate` gives it.
    """

    ids: list[int]
    score: float


class NotFiniteError(UserError):
    """A log-likelihood is not a number.

    Attributes:
      example: its place in the given order, from 0.
    """

    def __init__(self, example: int, value: float):
        """`value` is NaN or infinite."""
        super().__init__(
            f"the log-likelihood of example {example} (from 0) is {value}: the parameters are not "
            "finite, or the activations overflow (float32 has more room than bfloat16)"
        )
        self.example = example


class Predictor:
    """A network with its parameters on a mesh.

    With several processes, all must be given the same examples; each computes its part of every
    batch, and all have all results.

    Attributes:
      num_truncated: examples so far whose inputs or targets were cut off at the limits.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: t5.Params,
        vocabulary: Vocabulary | None,
        partitioner: PjitPartitioner,
        *,
        batch_size: int = 32,
        max_inputs_length: int = 1024,
        max_targets_length: int = 256,
    ) -> None:
        """Places the parameters on the mesh, where they are not there yet.

        Args:
          model: the network; `network.dtype` is that of its activations.
          params: unrolled or stacked.
          vocabulary: for `generate`, which needs its end of sequence; None: id 1.
          partitioner: the mesh.
          batch_size: examples at a time, rounded up to what the mesh divides; where short ones
            share rows, a batch has the tokens of so many of the longest.
          max_inputs_length: tokens of inputs that are used, at most.
          max_targets_length: likewise of each target.

        Raises:
          UserError: a limit is less than 1.
        """
        for name, value in (
            ("batch_size", batch_size),
            ("max_inputs_length", max_inputs_length),
            ("max_targets_length", max_targets_length),
        ):
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}.")
        stacked = "layers" in params["encoder"]
        shardings = partitioner.shardings(
            t5.param_shapes(model.network, stacked=stacked),
            t5.param_axes(model.network, stacked=stacked),
        )
        self.model = model
        self.params = jax.device_put(params, shardings)
        self.vocabulary = vocabulary
        self.partitioner = partitioner
        self.max_inputs_length = max_inputs_length
        self.max_targets_length = max_targets_length
        self.num_truncated = 0
        parts = partitioner.num_data_shards
        self.batch_size = -(-batch_size // parts) * parts
        self._window = max(_WINDOW_BATCHES * self.batch_size, _WINDOW_EXAMPLES)
        self._token_log_likelihoods = jax.jit(
            functools.partial(token_log_likelihoods, model.network),
            static_argnames=("chunk",),
            out_shardings=partitioner.replicated,
        )

    # ------------------------------------------------------------------------------ likelihoods

    def log_likelihoods(
        self,
        examples: Iterable[tuple[Sequence[int], Sequence[Sequence[int]]]],
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[Scores]:
        """Yields the log-likelihoods of each example's targets given its inputs, in order.

        The inputs are encoded once for all targets of an example. Targets of the same tokens get
        the same score. In float32, scores differ by about 1e-5 at most between batch sizes and
        meshes, as sums are made in another order.

        Args:
          examples: (ids of the inputs as they are fed, [ids of a target with end of sequence, …]);
            examples may have different numbers of targets.
          on_progress: called with the number of examples that were finished, now and then.

        Raises:
          UserError: an example has no inputs, no target, or one without tokens; says which.
          NotFiniteError: a score is NaN or infinite; says which.
        """
        numbered = enumerate(examples)
        for window in iter(lambda: list(itertools.islice(numbered, self._window)), []):
            yield from self._score(window, on_progress)

    def loss(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Returns the mean negative log-likelihood of a target token, over all pairs.

        Args:
          pairs: (ids of the inputs, ids of the target with end of sequence).

        Raises:
          UserError: there is no pair; or as `log_likelihoods`.
        """
        total, num_tokens = 0.0, 0
        for scores in self.log_likelihoods((inputs, [target]) for inputs, target in pairs):
            total -= float(scores.log_likelihoods[0])
            num_tokens += int(scores.num_tokens[0])
        if not num_tokens:
            raise UserError("there is no pair of inputs and targets to compute a loss of")
        return total / num_tokens

    def _score(
        self,
        window: list[tuple[int, tuple[Sequence[int], Sequence[Sequence[int]]]]],
        on_progress: Callable[[int], None] | None,
    ) -> list[Scores]:
        first = window[0][0]
        items: list[Item] = []
        results: list[Scores] = []
        copies: list[list[int]] = []  # for each target, the place of the first that is the same
        for example, (inputs, targets) in window:
            self._check(example, inputs, targets)
            cut = [target[: self.max_targets_length] for target in targets]
            truncated = len(inputs) > self.max_inputs_length or any(
                len(target) > self.max_targets_length for target in targets
            )
            self.num_truncated += truncated
            places: dict[tuple[int, ...], int] = {}
            copies.append([places.setdefault(tuple(t), i) for i, t in enumerate(cut)])
            inputs = inputs[: self.max_inputs_length]
            items += make_items(example, inputs, cut, sorted(places.values()))
            results.append(
                Scores(
                    np.full(len(cut), np.nan, np.float32),
                    np.array([len(target) for target in cut], np.int32),
                    truncated,
                )
            )
        items_left = Counter(item.example for item in items)
        for item, values in self._run_items(items):
            scores = results[item.example - first].log_likelihoods
            for slot, value in zip(item.slots, values, strict=True):
                scores[slot] = value
            items_left[item.example] -= 1
            if on_progress is not None and not items_left[item.example]:
                on_progress(1)
        for result, same in zip(results, copies, strict=True):
            result.log_likelihoods[:] = result.log_likelihoods[same]
        return results

    def _run_items(self, items: Sequence[Item]) -> Iterator[tuple[Item, list[float]]]:
        """Yields each item with the log-likelihoods of its targets, in any order."""
        packed = pack(
            items,
            self.model.network,
            batch_size=self.batch_size,
            max_inputs_length=self.max_inputs_length,
            parts=self.partitioner.num_data_shards,
        )
        run = functools.partial(self._run_scores, packed)
        rows, step = packed.rows, packed.batch_rows
        batches = [rows[i : i + step] for i in range(0, len(rows), step)]
        for batch, token_scores in self._in_flight(run, batches):
            for row, of_row in zip(batch, token_scores, strict=False):
                lengths = [len(target) for item in row for target in item.targets]
                of_targets = np.split(of_row, np.cumsum(lengths))[:-1]  # what is left is padding
                sums = [x.sum(dtype=np.float64) for x in of_targets]
                if len(row) > 1 and not np.all(np.isfinite(sums)):
                    # What is not a number spreads to all that shares its row.
                    for item in row:
                        yield from self._run_items([item])
                    continue
                values = iter(sums)
                for item in row:
                    scores = [float(next(values)) for _ in item.targets]
                    if not np.all(np.isfinite(scores)):
                        raise NotFiniteError(
                            item.example, next(x for x in scores if not np.isfinite(x))
                        )
                    yield item, scores

    def _check(self, example: int, inputs: Sequence[int], targets: Sequence[Sequence[int]]) -> None:
        if len(inputs) == 0:
            raise UserError(f"example {example} (from 0) has no inputs")
        if len(targets) == 0:
            raise UserError(f"example {example} (from 0) has no target; expected one or more")
        for number, target in enumerate(targets):
            if len(target) == 0:
                raise UserError(f"example {example}, target {number} (both from 0) has no tokens")

    def _run_scores(self, packed: Packed, rows: Sequence[Sequence[Item]]) -> jax.Array:
        shape = (packed.batch_rows, packed.targets_length)
        targets, previous, segments, cross_segments = (np.zeros(shape, np.int32) for _ in range(4))
        inputs, input_segments = (
            np.zeros((packed.batch_rows, packed.inputs_length), np.int32) for _ in range(2)
        )
        for i, row in enumerate(rows):
            at, start, segment = 0, 0, 0
            for number, item in enumerate(row, start=1):
                inputs[i, at : at + len(item.inputs)] = item.inputs
                input_segments[i, at : at + len(item.inputs)] = number
                at += len(item.inputs)
                for target in item.targets:
                    end, segment = start + len(target), segment + 1
                    targets[i, start:end] = target
                    previous[i, start + 1 : end] = target[:-1]
                    segments[i, start:end] = segment
                    cross_segments[i, start:end] = number
                    start = end
        batch = {
            "encoder_input_tokens": inputs,
            "encoder_segment_ids": input_segments,
            "decoder_input_tokens": previous,
            "decoder_target_tokens": targets,
            "decoder_segment_ids": segments,
            "cross_segment_ids": cross_segments,
        }
        # A divisor of the length, whose logits are not more than the limit.
        rows_a_part = packed.batch_rows // self.partitioner.num_data_shards
        limit = max(1, _MAX_LOGITS_BYTES // (rows_a_part * self.model.network.vocab_size * 4))
        chunk = next(n for n in range(min(limit, shape[1]), 0, -1) if shape[1] % n == 0)
        with self.partitioner.in_force():
            return self._token_log_likelihoods(self.params, self._global(batch), chunk=chunk)

    # ------------------------------------------------------------------------------- generation

    def generate(
        self,
        inputs: Iterable[Sequence[int]],
        decoding: DecodingConfig,
        seeds: Iterable[int] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Generation]]:
        """Yields what follows each of the inputs, in order: `decoding.num_return`, best first.

        Args:
          inputs: ids as they are fed.
          decoding: the method and its settings.
          seeds: one for each of the inputs, for sampling; None: their numbers, from 0.
          on_progress: called with the number of inputs that were finished, now and then.

        Raises:
          UserError: an example has no inputs; says which.
        """
        seeded = (
            ((ids, number) for number, ids in enumerate(inputs))
            if seeds is None
            else zip(inputs, seeds, strict=True)
        )
        numbered = ((number, ids, seed) for number, (ids, seed) in enumerate(seeded))
        for window in iter(lambda: list(itertools.islice(numbered, self._window)), []):
            yield from self._generate(window, decoding, on_progress)

    def _generate(
        self,
        window: list[tuple[int, Sequence[int], int]],
        decoding: DecodingConfig,
        on_progress: Callable[[int], None] | None,
    ) -> list[list[Generation]]:
        first = window[0][0]
        for example, ids, _ in window:
            if len(ids) == 0:
                raise UserError(f"example {example} (from 0) has no inputs")
            self.num_truncated += len(ids) > self.max_inputs_length
        rows = sorted(window, key=lambda row: len(row[1]), reverse=True)
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        results: list[list[Generation]] = [[] for _ in window]
        run = functools.partial(self._run_generate, decoding=decoding)
        for batch, (tokens, scores) in self._in_flight(run, batches):
            for (example, _, _), ids, values in zip(batch, tokens, scores, strict=False):
                results[example - first] = [
                    Generation(self._without_end(sequence), float(score))
                    for sequence, score in zip(ids, values, strict=True)
                ]
            if on_progress is not None:
                on_progress(len(batch))
        return results

    def _run_generate(
        self, rows: Sequence[tuple[int, Sequence[int], int]], decoding: DecodingConfig
    ) -> tuple[jax.Array, jax.Array]:
        from mtf.decoding.generate import generate

        tokens = self._inputs([ids[: self.max_inputs_length] for _, ids, _ in rows])
        seeds = np.zeros(len(tokens), np.uint32)
        seeds[: len(rows)] = [seed % 2**32 for _, _, seed in rows]
        batch = self._global({"tokens": tokens, "seeds": seeds})
        with self.partitioner.in_force():
            generated = generate(
                self.model.network,
                self.params,
                batch["tokens"],
                decoding,
                eos_id=self._eos_id,
                seeds=batch["seeds"],
            )
            return self._everywhere((generated.tokens, generated.scores))

    @functools.cached_property
    def _everywhere(self) -> Callable[..., Any]:
        """Gives every process the whole of some arrays."""
        return jax.jit(lambda x: x, out_shardings=self.partitioner.replicated)

    @functools.cached_property
    def _eos_id(self) -> int:
        return 1 if self.vocabulary is None else self.vocabulary.eos_id

    def _without_end(self, ids: np.ndarray) -> list[int]:
        ended = np.flatnonzero(ids == self._eos_id)
        return [int(i) for i in (ids[: ended[0]] if len(ended) else ids)]

    # ---------------------------------------------------------------------------------- batches

    def _num_rows(self, num_examples: int) -> int:
        """Rows of a batch: the batch size, or less for few examples, in few different numbers."""
        parts = self.partitioner.num_data_shards
        return min(self.batch_size, parts * power_of_two(-(-num_examples // parts)))

    def _inputs(self, inputs: Sequence[Sequence[int]]) -> np.ndarray:
        """(rows, rounded length) ids, padded with zeros."""
        length = min(rounded_length(max(map(len, inputs))), self.max_inputs_length)
        tokens = np.zeros((self._num_rows(len(inputs)), length), np.int32)
        for row, ids in zip(tokens, inputs, strict=False):
            row[: len(ids)] = ids
        return tokens

    def _global(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns the batch split over the mesh; every process places its part."""
        sharding = self.partitioner.batch

        def place(x: np.ndarray) -> jax.Array:
            return jax.make_array_from_callback(x.shape, sharding, x.__getitem__)

        return {name: place(x) for name, x in batch.items()}

    def _in_flight(self, run: Callable[[T], Any], batches: Iterable[T]) -> Iterator[tuple[T, Any]]:
        """Yields each batch with its results on the host; the devices are a batch ahead."""
        # On CPU, host and device are the same cores.
        on_cpu = self.partitioner.mesh.devices.flat[0].platform == "cpu"
        pending: deque[tuple[T, Any]] = deque()
        for batch in batches:
            pending.append((batch, run(batch)))
            if len(pending) == (1 if on_cpu else _NUM_IN_FLIGHT):
                done, result = pending.popleft()
                yield done, jax.tree.map(np.asarray, result)
        for done, result in pending:
            yield done, jax.tree.map(np.asarray, result)


def token_log_likelihoods(
    network: T5Config, params: t5.Params, batch: t5.Batch, *, chunk: int
) -> jax.Array:
    """Returns the log-likelihood of every target token of packed rows.

    Args:
      network: the architecture.
      params: unrolled or stacked.
      batch: `encoder_input_tokens`, `encoder_segment_ids` (b, k): the inputs of a row are its
        segments 1, 2, …; `decoder_input_tokens`, `decoder_target_tokens`, `decoder_segment_ids`
        (b, q): so are its targets; `cross_segment_ids` (b, q): which inputs a target belongs to.
      chunk: target positions whose logits exist at a time; divides q.

    Returns:
      (b, q) float32; what it has at padding means nothing.
    """
    segments = batch["encoder_segment_ids"]
    hidden = t5.decode(
        network,
        params,
        t5.encode(network, params, batch["encoder_input_tokens"], segments),
        segments,
        batch["decoder_input_tokens"],
        batch["decoder_segment_ids"],
        cross_segment_ids=batch["cross_segment_ids"],
    )
    targets = batch["decoder_target_tokens"]

    def of_chunk(xs: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden, targets = xs
        logits = t5.logits(network, params, hidden)
        is_target = jnp.arange(network.vocab_size) == targets[..., None]
        target_logits = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
        return target_logits - jax.nn.logsumexp(logits, axis=-1)

    length = targets.shape[1]
    if chunk == length:
        return of_chunk((hidden, targets))

    def split(x: jax.Array) -> jax.Array:  # (b, q, …) → (chunks, b, chunk, …)
        parts = x.reshape(x.shape[0], length // chunk, chunk, *x.shape[2:])
        return jnp.moveaxis(parts, 1, 0)

    scored = jax.lax.map(of_chunk, (split(hidden), split(targets)))
    return jnp.moveaxis(scored, 0, 1).reshape(targets.shape)

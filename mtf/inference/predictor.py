"""Scores targets and generates sequences, for any number of examples on any mesh.

Results are in the order of the examples. To reduce padding, examples are packed into rows before
they are scored, and sorted by length before sequences are generated. Lengths are rounded up so
that only a few shapes have to be compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mtf.base.errors import UserError
from mtf.data.packing import lay_out, shifted_right
from mtf.data.text.vocabularies import Vocabulary
from mtf.inference.decoding.generate import EOS_ID, Generated, generate
from mtf.inference.decoding.settings import DecodingConfig
from mtf.inference.rows import Item, Packed, make_items, pack, power_of_two, rounded_length
from mtf.models import t5
from mtf.models.settings import ModelConfig, T5Config
from mtf.models.types import Params
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.processes import wait_for_others

T = TypeVar("T")

# Token ids of the inputs, and token ids of each target.
Example = tuple[Sequence[int], Sequence[Sequence[int]]]
OnProgress = Callable[[int], None] | None

NOT_FINITE = (
    "The parameters contain NaN or infinite values, or activations overflow. If dtype is "
    "'bfloat16', try 'float32'."
)
# Examples are sorted or packed in windows of this many batches, or of this many examples if that is
# more.
_WINDOW_BATCHES = 32
_WINDOW_EXAMPLES = 1024
# Maximum size in bytes of the logits that a device holds at a time.
_MAX_LOGITS_BYTES = 1 << 26
# Number of batches that are sent to the devices before the results of the first are fetched.
_NUM_IN_FLIGHT = 2


class Scores(NamedTuple):
    """The scores of an example's targets.

    Attributes:
      log_likelihoods: (targets,) float32, log-likelihood of each target in nats, summed over its
        tokens.
      num_tokens: (targets,) int32, number of tokens of each target, including EOS.
      truncated: whether the inputs or a target were truncated.
    """

    log_likelihoods: np.ndarray
    num_tokens: np.ndarray
    truncated: bool


class Generation(NamedTuple):
    """Generated token ids, without EOS or padding, and their score (see `Generated`)."""

    ids: list[int]
    score: float


class NotFiniteError(UserError):
    """Raised if the log-likelihood of the example with index `example` is NaN or infinite."""

    def __init__(self, example: int, value: float):
        super().__init__(f"the log-likelihood of inputs[{example}] is {value}. {NOT_FINITE}")
        self.example = example


class Predictor:
    """Scores targets and generates sequences with a network whose parameters are on a mesh.

    If there are several processes, all of them must pass the same examples. Each process computes a
    part of every batch and receives all results.

    Attributes:
      params: parameters on the mesh; they can be replaced by parameters of the same shapes.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        vocabulary: Vocabulary | None,
        partitioner: PjitPartitioner,
        *,
        batch_size: int = 32,
        max_inputs_length: int = 1024,
        max_targets_length: int = 256,
    ) -> None:
        """Places the parameters on the mesh if they are not there already.

        Args:
          model: the model; `model.network.dtype` is the dtype of the activations.
          params: the parameters, either unrolled or stacked.
          vocabulary: the vocabulary, which defines the id of EOS; if None, this id is 1.
          partitioner: the device mesh and the partitioning rules.
          batch_size: number of examples in a batch, rounded up to a multiple of the number of data
            shards of the mesh. If short examples share rows, a batch contains about as many tokens
            as `batch_size` examples of the greatest length.
          max_inputs_length, max_targets_length: maximum number of tokens in the inputs and in each
            target. Longer sequences are truncated.
        """
        limits = {"max_inputs_length": max_inputs_length, "max_targets_length": max_targets_length}
        for name, value in {"batch_size": batch_size, **limits}.items():
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be at least 1, not {value!r}.")
        stacked = "layers" in params["encoder"]
        shapes = t5.param_shapes(model.network, stacked=stacked)
        axes = t5.param_axes(model.network, stacked=stacked)
        self.params = jax.device_put(params, partitioner.shardings(shapes, axes))
        self.max_inputs_length, self.max_targets_length = max_inputs_length, max_targets_length
        self._network, self._partitioner = model.network, partitioner
        if self._network.attention == "pallas":  # It refuses lengths that batches may have here.
            self._network = dataclasses.replace(self._network, attention="auto")
        self._eos_id = EOS_ID if vocabulary is None else vocabulary.eos_id
        self._num_parts = partitioner.num_data_shards
        self._batch_size = -(-batch_size // self._num_parts) * self._num_parts
        replicated = partitioner.replicated
        self._token_log_likelihoods = jax.jit(
            functools.partial(token_log_likelihoods, model.network),
            static_argnames=("chunk",),
            out_shardings=replicated,
        )
        self._everywhere: Callable[[Generated], Generated] = jax.jit(
            lambda x: x, out_shardings=replicated
        )

    def log_likelihoods(
        self, examples: Iterable[Example], on_progress: OnProgress = None
    ) -> Iterator[Scores]:
        """Yields, for each example in order, the log-likelihoods of its targets given its inputs.

        The inputs are encoded once for all targets of an example. Equal targets get equal scores.
        In float32, changing the batch size or the mesh changes scores by at most about 1e-5,
        because numbers are then summed in another order.

        Args:
          examples: tuples (token ids of the inputs, [token ids of a target including EOS, …]).
            Examples can have different numbers of targets, but each example must have at least one
            target, and each target must have at least one token.
          on_progress: function that is called with the number of examples finished since the last
            call.

        Raises UserError if the inputs of an example have no tokens, and NotFiniteError if a score
        is NaN or infinite.
        """
        for window in self._windows(enumerate(examples)):
            yield from self._score(window, on_progress)

    def _score(
        self, window: Sequence[tuple[int, Example]], on_progress: OnProgress
    ) -> Iterable[Scores]:
        """Returns the scores of the examples in a window, in order."""
        items: list[Item] = []
        results: dict[int, Scores] = {}
        for example, (inputs, targets) in window:
            _check(example, inputs)
            kept = [target[: self.max_targets_length] for target in targets]
            truncated = len(inputs) > self.max_inputs_length or any(
                len(target) > self.max_targets_length for target in targets
            )
            items += make_items(example, inputs[: self.max_inputs_length], kept)
            num_tokens = np.array([len(target) for target in kept], np.int32)
            scores = np.full(len(kept), np.nan, np.float32)
            results[example] = Scores(scores, num_tokens, truncated)
        items_left = Counter(item.example for item in items)
        for item, values in self._score_items(items):
            for slots, value in zip(item.slots, values, strict=True):
                results[item.example].log_likelihoods[slots] = value
            items_left[item.example] -= 1
            if on_progress is not None and not items_left[item.example]:
                on_progress(1)
        return results.values()

    def _score_items(self, items: Sequence[Item]) -> Iterator[tuple[Item, list[float]]]:
        """Yields each item with the log-likelihoods of its targets; the items are in any order."""
        packed = pack(
            items,
            self._network,
            batch_size=self._batch_size,
            max_inputs_length=self.max_inputs_length,
            parts=self._num_parts,
        )
        batches = _batched(packed.rows, packed.batch_rows)
        for rows, token_scores in self._in_flight(functools.partial(self._run, packed), batches):
            for row, of_row in zip(rows, token_scores, strict=False):
                lengths = [len(target) for item in row for target in item.targets]
                of_targets = np.split(of_row, np.cumsum(lengths))[:-1]  # The last part is padding.
                sums = [float(x.sum(dtype=np.float64)) for x in of_targets]
                bad = [x for x in sums if not math.isfinite(x)]
                if bad and len(row) == 1:
                    raise NotFiniteError(row[0].example, bad[0])
                if bad:  # A NaN spreads to all examples in its row, so each one is scored alone.
                    for item in row:
                        yield from self._score_items([item])
                    continue
                values = iter(sums)
                for item in row:
                    yield item, list(itertools.islice(values, len(item.targets)))

    def _run(self, packed: Packed, rows: Sequence[Sequence[Item]]) -> jax.Array:
        """Scores a batch; returns token log-likelihoods, (rows, targets_length) float32."""
        batch = _packed_batch(packed, rows)
        rows_a_part = packed.batch_rows // self._num_parts
        chunk = logits_chunk(packed.targets_length, rows_a_part, self._network.vocab_size)
        with self._partitioner.in_force():
            return self._token_log_likelihoods(self.params, self._global(batch), chunk=chunk)

    def generate(
        self,
        inputs: Iterable[Sequence[int]],
        decoding: DecodingConfig,
        seeds: Iterable[int] | None = None,
        on_progress: OnProgress = None,
    ) -> Iterator[list[Generation]]:
        """Yields, for each example in order, `decoding.num_return` generations, best first.

        Args:
          inputs: token ids of the inputs of each example.
          decoding: the method and its settings.
          seeds: the seed of each example for sampling; None for 0, 1, and so on.
          on_progress: function that is called with the number of examples finished since the last
            call.

        Raises UserError if the inputs of an example have no tokens.
        """
        seeds = itertools.count() if seeds is None else seeds
        run = functools.partial(self._run_generate, decoding=decoding)
        for window in self._windows(zip(itertools.count(), inputs, seeds, strict=False)):
            for example, ids, _ in window:
                _check(example, ids)
            rows = sorted(window, key=lambda row: len(row[1]), reverse=True)
            results: dict[int, list[Generation]] = {}
            batches = _batched(rows, self._batch_size)
            for batch, (tokens, scores) in self._in_flight(run, batches):
                for (example, *_), ids, values in zip(batch, tokens, scores, strict=False):
                    results[example] = [
                        Generation(_before(self._eos_id, sequence), float(score))
                        for sequence, score in zip(ids, values, strict=True)
                    ]
                if on_progress is not None:
                    on_progress(len(batch))
            yield from (results[example] for example, *_ in window)

    def _run_generate(
        self, rows: Sequence[tuple[int, Sequence[int], int]], decoding: DecodingConfig
    ) -> Generated:
        """Decodes a batch after padding it to one of a few shapes."""
        inputs = [ids[: self.max_inputs_length] for _, ids, _ in rows]
        length = min(rounded_length(max(map(len, inputs))), self.max_inputs_length)
        num_rows = self._num_parts * power_of_two(-(-len(rows) // self._num_parts))
        tokens = np.zeros((min(self._batch_size, num_rows), length), np.int32)
        for row, ids in zip(tokens, inputs, strict=False):
            row[: len(ids)] = ids
        seeds = np.zeros(len(tokens), np.uint32)
        seeds[: len(rows)] = [seed % 2**32 for *_, seed in rows]
        batch = self._global({"encoder_input_tokens": tokens, "seeds": seeds})
        with self._partitioner.in_force():
            found = generate(
                self._network, self.params, decoding=decoding, eos_id=self._eos_id, **batch
            )
            return self._everywhere(found)

    def _windows(self, numbered: Iterable[T]) -> Iterator[list[T]]:
        return _batched(numbered, max(_WINDOW_BATCHES * self._batch_size, _WINDOW_EXAMPLES))

    def _global(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns the batch as global arrays that are split across the mesh."""
        sharding = self._partitioner.batch
        return {
            name: jax.make_array_from_callback(x.shape, sharding, x.__getitem__)
            for name, x in batch.items()
        }

    def _in_flight(self, run: Callable[[T], Any], batches: Iterable[T]) -> Iterator[tuple[T, Any]]:
        """Yields each batch with its results on the host while the devices run the next batch."""
        # On CPUs, the host and the device share cores, so batches run one at a time.
        on_cpu = self._partitioner.mesh.devices.flat[0].platform == "cpu"
        pending: deque[tuple[T, Any]] = deque()
        for batch in batches:
            wait_for_others()
            pending.append((batch, run(batch)))
            if len(pending) == (1 if on_cpu else _NUM_IN_FLIGHT):
                done, result = pending.popleft()
                yield done, jax.tree.map(np.asarray, result)
        for done, result in pending:
            yield done, jax.tree.map(np.asarray, result)


def _batched(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of up to `size` values (`itertools.batched` requires Python 3.12)."""
    remaining = iter(values)
    return iter(lambda: list(itertools.islice(remaining, size)), [])


def _check(example: int, inputs: Sequence[int]) -> None:
    if len(inputs) == 0:
        raise UserError(f"inputs[{example}] has no tokens; expected at least one")


def _before(end: int, ids: np.ndarray) -> list[int]:
    ended = np.flatnonzero(ids == end)
    found: list[int] = (ids[: ended[0]] if len(ended) else ids).tolist()
    return found


def _packed_batch(packed: Packed, rows: Sequence[Sequence[Item]]) -> dict[str, np.ndarray]:
    """Lays out rows of items as a batch for `token_log_likelihoods`."""
    shape = packed.batch_rows, packed.targets_length
    inputs, input_segments, _ = lay_out(
        [[item.inputs for item in row] for row in rows], packed.batch_rows, packed.inputs_length
    )
    targets, segments, positions = lay_out(
        [[target for item in row for target in item.targets] for row in rows], *shape
    )
    _, cross_segments, _ = lay_out(
        [[np.concatenate(item.targets) for item in row] for row in rows], *shape
    )
    return {
        "encoder_input_tokens": inputs,
        "encoder_segment_ids": input_segments,
        "decoder_input_tokens": shifted_right(targets, positions),
        "decoder_target_tokens": targets,
        "decoder_segment_ids": segments,
        "cross_segment_ids": cross_segments,
    }


def logits_chunk(length: int, num_rows: int, vocab_size: int) -> int:
    """Returns the number of target positions whose logits a device holds at a time.

    This is the largest divisor of `length` with which the logits of `num_rows` rows do not exceed
    `_MAX_LOGITS_BYTES`.
    """
    limit = max(1, _MAX_LOGITS_BYTES // (num_rows * vocab_size * 4))
    return next(n for n in range(min(limit, length), 0, -1) if length % n == 0)


def token_log_likelihoods(
    network: T5Config, params: Params, batch: t5.Batch, *, chunk: int
) -> jax.Array:
    """Returns the log-likelihood of each target token in packed rows, (b, q) float32.

    Args:
      network: the architecture.
      params: parameters, unrolled or stacked.
      batch: `encoder_input_tokens` and `encoder_segment_ids` have shape (b, k), and the inputs of
        each example have a segment id (1, 2, …). `decoder_input_tokens`, `decoder_target_tokens`
        and `decoder_segment_ids` have shape (b, q), and each target has a segment id.
        `cross_segment_ids` has shape (b, q) and contains the segment ids of the inputs that belong
        to each target.
      chunk: number of target positions whose logits are held at a time; it must divide q.
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

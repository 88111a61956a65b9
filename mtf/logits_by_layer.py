"""Logits of an export in JAX and PyTorch, with the parameters of one layer in memory at a time."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from conversion import huggingface
from conversion.huggingface_config import read_config
from conversion.mapping import EMBEDDING, LOGITS
from conversion.tensor import DTYPES
from mtf.errors import UserError
from mtf.inference.opening import network_config
from mtf.models import t5
from mtf.models.settings import T5Config

Array = np.ndarray[Any, Any]

_NO_DROPOUT = t5.Dropout(0.0, None)
_VALUES_AT_ONCE = 2**24  # of the embedding and the output projection
_SIDES = ("encoder", "decoder")


class Tokens(NamedTuple):
    """A batch: token ids, (b, encoder length) with 0 for padding, and (b, decoder length)."""

    encoder: Array
    decoder: Array


class Part(NamedTuple):
    """The logits of a batch for some ids of the vocabulary, (b, decoder length, ids)."""

    batch: int
    ours: Array
    theirs: Array


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Computes on the CPU in full float32: accelerators multiply at lower precision by default."""
    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("float32"):
        yield


def network(export: huggingface.Export) -> T5Config:
    """Returns the config of mtf's network of an export."""
    return network_config(
        export.architecture,
        relative_attention_max_distance=export.relative_attention_max_distance,
        dropout_rate=0.0,
        dtype="float32",
        scan_layers=False,
    )


def logits(
    export: huggingface.Export, directory: Path, batches: Sequence[Tokens]
) -> Iterator[Part]:
    """Yields all logits of both frameworks, a part of the vocabulary at a time.

    Reads ours from the checkpoint, and theirs from the files in `directory`. Raises UserError if
    these files do not have exactly the tensors that `transformers` expects.
    """
    sides = [_Ours(export, batches), _Theirs(export, directory, batches)]
    sizes = export.architecture
    rows = max(1, _VALUES_AT_ONCE // sizes.emb_dim)
    parts = [
        slice(start, min(start + rows, sizes.vocab_size))
        for start in range(0, sizes.vocab_size, rows)
    ]
    for stack in _SIDES:
        for side in sides:
            side.embed(stack, parts)
        for i in range(getattr(sizes, f"num_{stack}_layers")):
            for side in sides:
                side.run_layer(stack, i)
        for side in sides:
            side.normalize(stack)
    for part in parts:
        for number, pair in enumerate(zip(*(side.logits(part) for side in sides), strict=True)):
            yield Part(number, *pair)


class _Side:
    """One framework: the activations of each batch, and how a layer is read and run."""

    def __init__(self, batches: Sequence[Tokens]) -> None:
        self.batches = batches
        self.x: list[Any] = []
        self.encoded: list[Any] = []

    def embed(self, stack: str, parts: Sequence[slice]) -> None:
        """Starts a stack from the embeddings of its tokens."""
        tokens = [getattr(batch, stack) for batch in self.batches]
        ids = np.unique(np.concatenate([each.ravel() for each in tokens]))
        rows = [
            self.embedding(part)[ids[(ids >= part.start) & (ids < part.stop)] - part.start]
            for part in parts
        ]
        table = np.concatenate(rows)
        self.x = [table[np.searchsorted(ids, each)] for each in tokens]

    def normalize(self, stack: str) -> None:
        """Ends a stack with its norm."""
        self.x = self.norm(stack, self.x)
        if stack == "encoder":
            self.encoded = self.x

    def embedding(self, part: slice) -> Array:
        """Returns some rows of the embedding."""
        raise NotImplementedError

    def run_layer(self, stack: str, i: int) -> None:
        """Runs layer `i` of a stack on all batches."""
        raise NotImplementedError

    def norm(self, stack: str, x: list[Any]) -> list[Any]:
        """Returns the normalized outputs of a stack's layers."""
        raise NotImplementedError

    def logits(self, part: slice) -> list[Array]:
        """Returns each batch's logits of some ids of the vocabulary."""
        raise NotImplementedError


@functools.partial(jax.jit, static_argnums=0)
def _encoder_layer(
    config: T5Config, stack: t5.Params, x: jax.Array, segments: jax.Array
) -> jax.Array:
    return t5.encoder_layers(config, stack, x, segments, _NO_DROPOUT)


@functools.partial(jax.jit, static_argnums=0)
def _decoder_layer(
    config: T5Config, stack: t5.Params, x: jax.Array, encoded: jax.Array, segments: jax.Array
) -> jax.Array:
    own = jnp.ones(x.shape[:2], jnp.int32)
    mask = t5.segment_mask(own, segments)
    return t5.decoder_layers(config, stack, x, own, encoded, mask, _NO_DROPOUT)


_logits = jax.jit(t5.logits, static_argnums=0)


class _Ours(_Side):
    """mtf's network, whose parameters are rounded to the export's dtype."""

    def __init__(self, export: huggingface.Export, batches: Sequence[Tokens]) -> None:
        super().__init__(batches)
        self._config = network(export)
        self._tensors = export.checkpoint.parameters()
        self._written = DTYPES[export.dtype]
        self._segments = [(batch.encoder > 0).astype(np.int32) for batch in batches]

    def _read(self, name: str, index: tuple[slice, ...] = ()) -> Array:
        array = self._tensors[name].read(index or ...)
        return array.astype(self._written, copy=False).astype(np.float32, copy=False)

    def embedding(self, part: slice) -> Array:
        return self._read("token_embedder/embedding", (part,))

    def run_layer(self, stack: str, i: int) -> None:
        prefix = f"{stack}/layers_{i}/"
        flat = {
            name.replace(prefix, "layers_0/"): self._read(name)
            for name in self._tensors
            if name.startswith(prefix)
        }
        if not self._config.relpos_bias_per_layer:
            bias = "relpos_bias/rel_embedding"
            flat[bias] = self._read(f"{stack}/{bias}")
        params = unflatten_dict(flat, sep="/")
        with exact():
            for number, (x, segments) in enumerate(zip(self.x, self._segments, strict=True)):
                if stack == "encoder":
                    y = _encoder_layer(self._config, params, x, segments)
                else:
                    encoded = self.encoded[number]
                    y = _decoder_layer(self._config, params, x, encoded, segments)
                self.x[number] = np.asarray(y)

    def norm(self, stack: str, x: list[Any]) -> list[Any]:
        params = {"scale": self._read(f"{stack}/{stack}_norm/scale")}
        with exact():
            return [np.asarray(t5.layer_norm(jnp.asarray(each), params)) for each in x]

    def logits(self, part: slice) -> list[Array]:
        params: t5.Params
        if self._config.logits_via_embedding:
            params = {"token_embedder": {"embedding": self.embedding(part)}}
        else:
            kernel = self._read("decoder/logits_dense/kernel", (slice(None), part))
            params = {"decoder": {"logits_dense": {"kernel": kernel}}}
        with exact():
            return [np.asarray(_logits(self._config, params, x)) for x in self.x]


class _Theirs(_Side):
    """The model of `transformers`, in which the first layer of a stack stands for each layer.

    All its parameters are on PyTorch's device "meta", which allocates nothing, until they are read.
    """

    def __init__(
        self, export: huggingface.Export, directory: Path, batches: Sequence[Tokens]
    ) -> None:
        import torch
        import transformers

        super().__init__(batches)
        self._files = _files(directory)
        config = transformers.AutoConfig.from_pretrained(directory)
        with torch.device("meta"):
            self._model = getattr(transformers, export.class_name)(config).eval()
        self._check_tensors(transformers.__version__)
        set_scaling(self._model, directory)
        self._dtype = getattr(torch, export.dtype)
        self._first = {side: getattr(self._model, side).block[0] for side in _SIDES}
        self._norms = {side: getattr(self._model, side).final_layer_norm for side in _SIDES}
        self._masks = [torch.from_numpy((batch.encoder != 0).astype(np.int64)) for batch in batches]

    def _check_tensors(self, version: str) -> None:
        """Raises UserError unless the files have exactly the tensors of the model."""
        known = {name: list(x.shape) for name, x in self._model.state_dict().items()}
        # Without LOGITS, the projection is the embedding.
        needed = {name for name, _ in self._model.named_parameters()} - {LOGITS}
        found = {}
        for name in self._files:
            with self._opened(name) as file:
                found[name] = file.get_slice(name).get_shape()
        ignored = "|".join(self._model._keys_to_ignore_on_load_unexpected or ["(?!)"])
        unknown = found.keys() - known.keys()
        kinds = {
            "missing tensors": needed - found.keys(),
            "unexpected": {name for name in unknown if not re.search(ignored, name)},
            "wrong shape": {name for name in found.keys() & known if found[name] != known[name]},
        }
        refuse_tensors(version, kinds)

    def _opened(self, name: str) -> Any:
        """Opens the file of a tensor; a file that stays open keeps what was read in memory."""
        from safetensors import safe_open

        return safe_open(self._files[name], "pt")

    def _read(self, name: str, part: slice | None = None) -> Any:
        import torch

        with self._opened(name) as file:
            stored = file.get_slice(name)
            return stored[part or slice(None)].to(self._dtype).to(torch.float32, copy=True)

    def embedding(self, part: slice) -> Array:
        return np.asarray(self._read(EMBEDDING, part).numpy())

    def run_layer(self, stack: str, i: int) -> None:
        import torch

        prefix, layer = f"{stack}.block.{i}.", self._first[stack]
        names = {name: f"{prefix}{name}" for name in layer.state_dict()}
        for name, place in names.items():
            if name.endswith("relative_attention_bias.weight") and place not in self._files:
                names[name] = f"{stack}.block.0.{name}"  # which all layers share
        state = {name: self._read(place) for name, place in names.items()}
        layer.load_state_dict(state, assign=True)
        module = getattr(self._model, stack)
        module.block, module.final_layer_norm = torch.nn.ModuleList([layer]), torch.nn.Identity()
        with torch.no_grad():
            for number, x in enumerate(self.x):
                inputs, mask = torch.as_tensor(x), self._masks[number]
                if stack == "encoder":
                    y = module(inputs_embeds=inputs, attention_mask=mask)
                else:
                    y = module(
                        inputs_embeds=inputs,
                        encoder_hidden_states=self.encoded[number],
                        encoder_attention_mask=mask,
                        use_cache=False,
                    )
                self.x[number] = y.last_hidden_state
        layer.to("meta")

    def norm(self, stack: str, x: list[Any]) -> list[Any]:
        import torch

        module, norm = getattr(self._model, stack), self._norms[stack]
        norm.load_state_dict(
            {"weight": self._read(f"{stack}.final_layer_norm.weight")}, assign=True
        )
        module.block, module.final_layer_norm = torch.nn.ModuleList(), torch.nn.Identity()
        with torch.no_grad():
            return [norm(each) for each in x]

    def logits(self, part: slice) -> list[Array]:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        weight = self._read(LOGITS if LOGITS in self._files else EMBEDDING, part)
        self._model.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)
        with torch.no_grad():
            # The decoder has no layer and no norm any more; the model scales and projects.
            return [
                self._model(
                    encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
                    attention_mask=mask,
                    decoder_inputs_embeds=x,
                    use_cache=False,
                ).logits.numpy()
                for x, encoded, mask in zip(self.x, self.encoded, self._masks, strict=True)
            ]


def _files(directory: Path) -> dict[str, Path]:
    """Returns the file of each tensor of a Hugging Face directory."""
    from safetensors import safe_open

    files: dict[str, Path] = {}
    if not any(directory.glob("*.safetensors")):
        raise UserError(
            f"{directory} has no safetensors, which verification layer by layer reads. Leave out "
            "--verify."
        )
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    return files


def set_scaling(model: Any, directory: Path) -> None:
    """Corrects umT5's `tie_word_embeddings`: transformers 5 always sets it, which scales logits."""
    config = read_config(directory / "config.json")
    if config.model_type == "umt5":
        model.config.tie_word_embeddings = config.scaled


def refuse_tensors(version: str, kinds: Mapping[str, Collection[str]]) -> None:
    """Raises UserError if `transformers` misses or does not know tensors; `kinds` names them."""
    problems = [
        f"{problem}: {', '.join(map(str, sorted(found)[:3]))}{', …' if len(found) > 3 else ''}"
        for problem, found in kinds.items()
        if found
    ]
    if problems:
        raise UserError(
            f"transformers {version} cannot load the exported model: {'; '.join(problems)}. "
            "Nothing was written. Try another version of transformers, or leave out --verify."
        )

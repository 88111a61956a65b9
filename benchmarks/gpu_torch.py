"""The worker of gpu.py that runs transformers, at its best."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpu_data import decoding_inputs, network, rank_examples, training_rows
from gpu_workers import Side, serve
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

_ON_GPU = torch.cuda.is_available()
_DEVICE = "cuda" if _ON_GPU else "cpu"
_SHARE = float(os.environ.get("GPU_BENCHMARK_SHARE", "0.9"))


class Torch(Side):
    """The training step, rank evaluation and decoding of a Transformers model."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_float32_matmul_precision("high")  # TF32, as XLA does by default
        torch.set_flush_denormal(True)
        # Each layer is compiled on its own where a variant asks for it.
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.accumulated_recompile_limit = 1024
        self._loaded: tuple[Any, Any] = (None, None)

        if _ON_GPU:
            torch.cuda.set_per_process_memory_fraction(_SHARE)

    def about(self) -> dict[str, Any]:
        """Returns the device and its memory."""
        if not _ON_GPU:
            return {"device": "cpu"}
        return {"device": torch.cuda.get_device_name(), "limit_gib": _limit() / 2**30}

    def free(self) -> dict[str, Any]:
        super().free()
        torch._dynamo.reset()
        gc.collect()
        if _ON_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        return {}

    def _model(self, size: str, attention: str, dtype: torch.dtype) -> T5ForConditionalGeneration:
        """Returns a model with random parameters."""
        sizes = network(size)
        config = T5Config(
            vocab_size=sizes.vocab_size,
            d_model=sizes.emb_dim,
            d_kv=sizes.head_dim,
            d_ff=sizes.mlp_dim,
            num_layers=sizes.num_encoder_layers,
            num_decoder_layers=sizes.num_decoder_layers,
            num_heads=sizes.num_heads,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            tie_word_embeddings=False,
            decoder_start_token_id=0,
            attn_implementation=attention,
        )
        with torch.device(_DEVICE):
            model = T5ForConditionalGeneration(config)
        if model.lm_head.weight is model.shared.weight:  # Transformers 5 ties them
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        assert model.config._attn_implementation == attention
        return model.to(dtype)

    def largest(self, size: str, lengths: Sequence[int], variant: str, most: int) -> dict[str, Any]:
        """Returns the largest power of two that fits as a batch, at most `most`; 0: none.

        Steps with small batches, not compiled, show the memory of a row.
        """
        if not _ON_GPU:
            return {"batch": most}
        attention, weights, _ = variant.split("/")
        few, more = (2, 4) if most >= 4 else (1, 2)
        used = []
        for batch in (few, more):
            try:
                self.train(size, lengths, f"{attention}/{weights}/none", batch)
            except torch.OutOfMemoryError:
                return {"batch": few if used else 0}
            used.append(torch.cuda.max_memory_allocated())
        self.free()
        of_row = (used[1] - used[0]) / (more - few)
        fitting = (0.95 * _limit() - (used[0] - few * of_row)) / of_row
        return {"batch": min(most, 1 << int(fitting).bit_length() - 1) if fitting >= 1 else 0}

    def train(self, size: str, lengths: Sequence[int], variant: str, batch: int) -> dict[str, Any]:
        """Builds a training step of a variant: ATTENTION/WEIGHTS/COMPILED."""
        self.free()
        self._loaded = (None, None)
        attention, weights, compiled = variant.split("/")
        model = self._model(size, attention, getattr(torch, weights)).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        loss_of = _loss(model, compiled)
        data = itertools.cycle(
            [
                (torch.from_numpy(rows.inputs).long(), torch.from_numpy(rows.targets).long())
                for rows in training_rows(size, batch, *lengths)
            ]
        )
        loss = torch.zeros(())

        def step() -> None:
            nonlocal loss
            inputs, targets = (x.to(_DEVICE, non_blocking=True) for x in next(data))
            with torch.autocast(_DEVICE, torch.bfloat16, enabled=weights == "float32"):
                loss = loss_of(inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        started = time.perf_counter()
        step()
        _wait()
        compile_seconds = time.perf_counter() - started
        done = self.built(step, _wait, compile=compile_seconds)
        assert torch.isfinite(loss), f"the loss is {loss.item()}"
        return {**done, "gib": _peak_bytes() / 2**30, "loss": loss.item()}

    def _bfloat16(self, size: str, attention: str) -> T5ForConditionalGeneration:
        """Returns a model for inference, kept for later requests."""
        if self._loaded[0] != (size, attention):
            self._loaded = (None, None)
            self._loaded = (size, attention), self._model(size, attention, torch.bfloat16).eval()
        return self._loaded[1]

    def rank(
        self, size: str, lengths: Sequence[int], batch: int, examples: int, way: str
    ) -> dict[str, Any]:
        """Builds a pass of rank evaluation; `lengths` are medians of tokens.

        `way` is ENCODED/COMPILED: with `copies`, each choice has a copy of the inputs, as in T0's
        script; with `once`, the choices of an example share an encoder pass. Examples are sorted
        by length, and lengths rounded up.
        """
        self.free()
        model = self._bfloat16(size, "sdpa")
        encoded, compiled = way.split("/")
        data = rank_examples(size, examples, *lengths)
        order = sorted(range(examples), key=lambda i: len(data[i][0]))

        def scores(
            inputs: torch.Tensor, targets: torch.Tensor, choices: torch.Tensor
        ) -> torch.Tensor:
            mask = (inputs > 0).long()
            if encoded == "copies":
                inputs, mask = inputs[choices], mask[choices]
            hidden = model.encoder(input_ids=inputs, attention_mask=mask).last_hidden_state
            if encoded == "once":
                hidden, mask = hidden[choices], mask[choices]
            logits = model(
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                attention_mask=mask,
                decoder_input_ids=torch.nn.functional.pad(targets, (1, -1)),
                use_cache=False,
            ).logits.float()
            of_tokens = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
            return (of_tokens * (targets > 0)).sum(-1)

        run = torch.compile(scores, dynamic=True) if compiled == "whole" else scores

        @torch.inference_mode()
        def score() -> None:
            found = []
            for start in range(0, examples, batch):
                rows = [data[i] for i in order[start : start + batch]]
                choices = [i for i, row in enumerate(rows) for _ in row[1]]
                inputs = _padded([row[0] for row in rows], 32)
                targets = _padded([choice for row in rows for choice in row[1]], 8)
                found.append(run(inputs, targets, torch.tensor(choices, device=_DEVICE)))
            assert torch.cat(found).isfinite().all()

        return self.built(score, _wait)

    def decode(
        self, size: str, lengths: Sequence[int], batch: int, num_beams: int, way: str
    ) -> dict[str, Any]:
        """Builds `generate`; `way` is CACHE/COMPILED, where static/whole compiles the step."""
        self.free()
        model = self._bfloat16(size, "sdpa")
        cache, compiled = way.split("/")
        tokens = torch.from_numpy(decoding_inputs(size, batch, lengths[0])).long().to(_DEVICE)
        options: dict[str, Any] = {"disable_compile": compiled == "none"}
        if compiled == "whole" and not _ON_GPU:  # where `generate` compiles only if told to
            from transformers import CompileConfig

            options["compile_config"] = CompileConfig(mode="default")
            options["compile_config"]._compile_all_devices = True
        if cache == "static":
            options["cache_implementation"] = "static"

        @torch.no_grad()  # A static cache is written to by compiled code.
        def run() -> None:
            out = model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=lengths[1],
                num_beams=num_beams,
                do_sample=False,
                use_cache=True,
                eos_token_id=None,
                **options,
            )
            assert out.shape == (batch, lengths[1] + 1)

        return self.built(run, _wait)


def _loss(model: T5ForConditionalGeneration, compiled: str) -> Callable[..., torch.Tensor]:
    """Returns a function from inputs and targets to the loss.

    `compiled` is "whole", "layers" (each layer and the loss on its own, which compiles faster) or
    "none".
    """

    def head(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(hidden)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    if compiled == "layers":
        head = torch.compile(head, dynamic=False)
        for layer in (*model.encoder.block, *model.decoder.block):
            layer.compile(dynamic=False)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = model.encoder(input_ids=inputs).last_hidden_state
        hidden = model.decoder(
            input_ids=torch.nn.functional.pad(targets, (1, -1)),
            encoder_hidden_states=hidden,
            use_cache=False,
        ).last_hidden_state
        return head(hidden, targets)

    return torch.compile(loss, dynamic=False) if compiled == "whole" else loss


def _padded(rows: Sequence[Sequence[int]], multiple: int) -> torch.Tensor:
    """Returns rows padded with 0 to the longest, rounded up to a multiple."""
    length = -(-max(map(len, rows)) // multiple) * multiple
    padded = [[*row, *[0] * (length - len(row))] for row in rows]
    return torch.tensor(padded, device=_DEVICE)


def _limit() -> float:
    """Returns the bytes that this process may allocate on the GPU."""
    return torch.cuda.get_device_properties(0).total_memory * _SHARE


def _wait() -> None:
    if _ON_GPU:
        torch.cuda.synchronize()


def _peak_bytes() -> int:
    """Returns the most memory allocated since the last `free`; on CPUs, that of the process."""
    if _ON_GPU:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    serve(Torch)

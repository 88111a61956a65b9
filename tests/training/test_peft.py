"""Training with adapters beside PEFT, from the same model and the same initial adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import conversion
from conversion.peft_writer import write_adapters
from conversion.tensor import array_tensor
from mtf import convert
from mtf.models import LoraConfig, T5Config, t5
from mtf.models.settings import ModelConfig
from mtf.models.stacking import unstack_layers
from mtf.models.trees import flat_names
from mtf.models.types import Params
from mtf.partitioning.mesh import PjitPartitioner
from mtf.partitioning.settings import PartitionerConfig
from mtf.training import AdamWConfig, ScheduleConfig
from mtf.training.trainer import Trainer
from tests import small

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra: torch)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="PEFT is not installed")

NUM_STEPS, LEARNING_RATE = 20, 0.01
LORA = LoraConfig(rank=4, alpha=8.0, targets=(".*/query", ".*/value", ".*/wi_0"))


def write_base(folder: Path) -> tuple[Path, T5Config]:
    """Writes a random small model in Hugging Face's format; returns it and its network."""
    small.write_text(folder)
    small.run(small.arguments("text.txt", train_steps=1, model_dir="base"), folder)
    assert convert.main([f"{folder}/base", f"{folder}/hf", "--to", "hf", "--no-verify"]) == 0
    sizes = {
        name.removeprefix("model.network."): value
        for name, value in small.SETTINGS.items()
        if name.startswith("model.network.") and name != "model.network.dropout_rate"
    }
    return folder / "hf", T5Config(**sizes, dropout_rate=0.0, lora=LORA)


def batches() -> list[dict[str, np.ndarray]]:
    """Random tokens without padding; the decoder's inputs are its targets shifted right."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(NUM_STEPS):
        inputs, targets = (rng.integers(2, 250, (4, n)).astype(np.int32) for n in (12, 6))
        shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        found.append(
            {
                "encoder_input_tokens": inputs,
                "decoder_input_tokens": shifted,
                "decoder_target_tokens": targets,
                "decoder_loss_weights": np.ones_like(targets, np.float32),
            }
        )
    return found


def logits_of_torch(model: Any, batch: dict[str, np.ndarray]) -> Any:
    inputs, shifted = (
        torch.tensor(batch[f"{side}_input_tokens"].astype(np.int64))
        for side in ("encoder", "decoder")
    )
    return model(input_ids=inputs, decoder_input_ids=shifted).logits


@pytest.mark.parametrize("scan_layers", [False, True])
def test_losses_and_logits_are_those_of_peft(tmp_path: Path, scan_layers: bool) -> None:
    base, network = write_base(tmp_path)
    network = T5Config(**{**vars(network), "scan_layers": scan_layers})
    trainer = Trainer(
        ModelConfig(network, z_loss=0.0),
        AdamWConfig(ScheduleConfig("constant", LEARNING_RATE)),
        PjitPartitioner.create(PartitionerConfig(), jax.devices()[:1]),
    )
    state = trainer.restore_state(base)

    def export(params: Params, name: str) -> Path:
        arrays = flat_names({"target": unstack_layers(jax.device_get(params))})
        tensors = {key: array_tensor(key, np.asarray(x)) for key, x in arrays.items()}
        opened = conversion.Checkpoint(tmp_path, "orbax", 0, tensors)
        (tmp_path / name).mkdir()
        write_adapters(opened, tmp_path / name, base=None, dropout_rate=0.0)
        return tmp_path / name

    model = transformers.T5ForConditionalGeneration.from_pretrained(base)
    model = peft.PeftModel.from_pretrained(
        model, export(state.params, "initial"), is_trainable=True
    ).eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, LEARNING_RATE, eps=1e-8, weight_decay=0.0)

    for number, batch in enumerate(batches()):
        state, metrics = trainer.train_step(state, batch)
        targets = torch.tensor(batch["decoder_target_tokens"].astype(np.int64))
        logits = logits_of_torch(model, batch)
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="sum"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert float(metrics["loss"]) == pytest.approx(loss.item(), rel=1e-4), number
    sizes = sum(parameter.numel() for parameter in trained)
    slots = jax.tree.leaves(trainer.state_shapes.param_states)
    assert sum(x.size for x in slots) == 2 * sizes  # mu and nu

    # Loaded by PEFT, the trained adapters give our logits.
    batch = batches()[0]
    again = transformers.T5ForConditionalGeneration.from_pretrained(base)
    loaded = peft.PeftModel.from_pretrained(again, export(state.params, "trained")).eval()
    with torch.no_grad():
        expected = logits_of_torch(loaded, batch).numpy()
    own = np.asarray(t5.apply(network, state.params, batch))
    assert np.abs(own - expected).max() <= 1e-4

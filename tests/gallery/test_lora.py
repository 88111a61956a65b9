"""docs/gallery/lora.md with reviews of three words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import mtf
from tests.gallery import hub, reviews
from tests.gallery.reader import Reader

here = hub.workplace(reviews.write)


@pytest.mark.slow
def test_lora(here: Path) -> None:
    reader = Reader("lora", {"recipes.finetune": hub.SMALL})
    hub.check_learned("reviews_lora", "rotten_tomatoes")

    config = json.loads(Path("reviews_adapters/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "google/flan-t5-base"
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (8, 16, ["q", "v"])

    # LoRA's formula, on the files of PyTorch's names.
    model = here.parent / "model" / "hf"
    base, merged = (load_file(f"{path}/model.safetensors") for path in (model, "reviews_merged"))
    adapters = load_file("reviews_adapters/adapter_model.safetensors")
    changed = {name for name, weight in base.items() if not np.array_equal(weight, merged[name])}
    assert len(changed) == 6 and len(adapters) == 2 * len(changed)
    for name in changed:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (adapters[f"{prefix}.lora_{x}.weight"] for x in "AB")
        np.testing.assert_allclose(merged[name], base[name] + 16 / 8 * b @ a, rtol=1e-4, atol=1e-6)

    pair = ("a dull plot. Is this review good or bad?", "bad")
    exported = mtf.load("reviews_merged").score(*pair)
    assert exported == pytest.approx(reader.names["model"].score(*pair), rel=1e-5)
    if "difference" in reader.names:  # PEFT is installed.
        assert reader.names["difference"] < 1e-4

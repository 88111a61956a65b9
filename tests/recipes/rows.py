"""What a table of an original's settings is made of, and what several of them share."""

from __future__ import annotations

import dataclasses
from typing import Any

_SAME = object()

T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
MT5_VOCABULARY = "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model"
T5X = "gs://t5-data/pretrained_models/t5x"
REMAT = "saves memory; the results are the same"


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting of an original, for one recipe or several."""

    recipes: tuple[str, ...]
    setting: str
    original: Any
    path: str
    ours: Any = _SAME
    derived: str = ""
    deviation: str = ""

    @property
    def expected(self) -> Any:
        """What the config must have at `path`."""
        return self.original if self.ours is _SAME else self.ours


def network(recipes: dict[str, str], vocab_size: int) -> list[Row]:
    """The sizes of T5 1.1's and mT5's gin files: layers, d_model, d_ff, heads."""
    sizes = {
        "small": (8, 512, 1024, 6),
        "base": (12, 768, 2048, 12),
        "large": (24, 1024, 2816, 16),
        "xl": (24, 2048, 5120, 32),
        "xxl": (24, 4096, 10240, 64),
    }
    rows = []
    for size in dict.fromkeys(recipes.values()):
        names = tuple(name for name, its_size in recipes.items() if its_size == size)
        layers, emb_dim, mlp_dim, num_heads = sizes[size]
        values = {"num_encoder_layers": layers, "num_decoder_layers": layers, "emb_dim": emb_dim}
        rows += _of_network(names, values | {"mlp_dim": mlp_dim, "num_heads": num_heads})
    values = {"head_dim": 64, "vocab_size": vocab_size, "mlp_activations": ("gelu", "linear")}
    return rows + _of_network(
        tuple(recipes), values | {"logits_via_embedding": False, "dtype": "bfloat16"}
    )


def _of_network(recipes: tuple[str, ...], values: dict[str, Any]) -> list[Row]:
    return [Row(recipes, f"T5Config.{k}", v, f"model.network.{k}") for k, v in values.items()]


def adafactor(recipes: tuple[str, ...]) -> list[Row]:
    """What T5X and Mesh TensorFlow have in common."""
    values = {"decay_rate": 0.8, "epsilon1": 1e-30, "epsilon2": 1e-3, "clipping_threshold": 1.0}
    values |= {"min_dim_size_to_factor": 128, "multiply_by_parameter_scale": True}
    return [
        Row(
            recipes,
            "optimizer",
            "Adafactor",
            "optimizer",
            "AdafactorConfig",
            derived="the settings of Adafactor",
        ),
        *(Row(recipes, f"Adafactor.{name}", x, f"optimizer.{name}") for name, x in values.items()),
        Row(recipes, "Z_LOSS", 1e-4, "model.z_loss"),
        Row(recipes, "LABEL_SMOOTHING", 0.0, "model.label_smoothing"),
    ]


def schedule(
    recipes: tuple[str, ...], factors: str, rate: float, warmup_steps: int | None
) -> list[Row]:
    rows = [
        Row(recipes, "learning rate factors", factors, "optimizer.learning_rate.factors"),
        Row(recipes, "base_learning_rate", rate, "optimizer.learning_rate.base_learning_rate"),
    ]
    if warmup_steps is not None:
        rows.append(
            Row(recipes, "warmup_steps", warmup_steps, "optimizer.learning_rate.warmup_steps")
        )
    return rows


def lengths(recipes: tuple[str, ...], setting: str, inputs: int, targets: int) -> list[Row]:
    return [
        Row(recipes, f"{setting}['inputs']", inputs, "data.task_feature_lengths.inputs"),
        Row(recipes, f"{setting}['targets']", targets, "data.task_feature_lengths.targets"),
    ]


def vocabulary(recipes: tuple[str, ...], path: str, extra_ids: int) -> list[Row]:
    return [
        Row(recipes, "vocabulary", path, "data.vocabulary.path"),
        Row(recipes, "its extra ids", extra_ids, "data.vocabulary.extra_ids"),
    ]


def seeds(recipes: tuple[str, ...]) -> list[Row]:
    why = (
        "the seed is fixed and the position in the data is saved, so a restart does not repeat data"
    )
    return [
        Row(recipes, "train/DatasetConfig.seed", None, "data.seed", 0, deviation=why),
        Row(
            recipes,
            "RANDOM_SEED",
            None,
            "random_seed",
            0,
            deviation="the seed is fixed, so a run can be repeated",
        ),
    ]

"""A small job and its recipes, for tests of the configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import fiddle as fdl

from mtf.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class Network:
    emb_dim: int
    num_heads: int = 4
    dropout_rate: float = 0.1
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    dtype: Literal["float32", "bfloat16"] = dataclasses.field(
        default="bfloat16", metadata={"refused": {"float16": "float16 overflows, use bfloat16."}}
    )
    scan_layers: bool = dataclasses.field(default=True, metadata={"on_resume": "may change"})

    def __post_init__(self) -> None:
        if self.emb_dim % self.num_heads:
            raise UserError(
                f"emb_dim {self.emb_dim} is not a multiple of num_heads {self.num_heads}."
            )


@dataclasses.dataclass(frozen=True)
class Model:
    network: Network
    z_loss: float = 1e-4
    label_smoothing: float | None = None


@dataclasses.dataclass(frozen=True)
class Sgd:
    learning_rate: float
    momentum: float | None = None

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise UserError(f"learning_rate must be positive, not {self.learning_rate}.")


@dataclasses.dataclass(frozen=True)
class Adam:
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclasses.dataclass(frozen=True)
class Logging:
    period: int = 100
    name: str = "log"


@dataclasses.dataclass(frozen=True)
class Data:
    lengths: dict[str, int]
    files: tuple[str, ...] | str | None = None
    submesh: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    lengths: dict[str, int]
    network: Network


@dataclasses.dataclass(frozen=True)
class Job:
    model: Model
    data: Data
    optimizer: Sgd | Adam
    train_steps: int = dataclasses.field(metadata={"on_resume": "may change"})
    batch_size: int = 8
    evaluation: Evaluation | None = None
    evaluations: tuple[Evaluation, ...] = ()
    logging: Logging = dataclasses.field(
        default_factory=Logging, metadata={"on_resume": "may change"}
    )
    model_dir: str | None = None
    fail: str = dataclasses.field(default="", metadata={"on_resume": "may change"})

    def run(self) -> None:
        if self.fail == "user":
            raise UserError("the batch does not divide the mesh.")
        if self.fail == "inside":
            raise RuntimeError("the loss is lost")
        assert self.model_dir is not None
        (Path(self.model_dir) / "ran.txt").write_text(f"{self.train_steps} {self.batch_size}\n")

    def describe(self) -> str:
        return f"a job of {self.train_steps} steps"


@dataclasses.dataclass(frozen=True)
class Plain:
    """A job without a run directory."""

    size: int = 1
    function: Callable[..., Any] | None = None

    def run(self) -> None:
        print(f"plain {self.size}")

    def describe(self) -> str:
        return f"plain {self.size}"


def small(emb_dim: int = 64, dropout_rate: float = 0.1) -> fdl.Config[Job]:
    """A small job.

    More words.
    """
    network = fdl.Config(Network, emb_dim=emb_dim, dropout_rate=dropout_rate)
    lengths = {"inputs": 512, "targets": 114}
    return fdl.Config(
        Job,
        model=fdl.Config(Model, network=network),
        data=fdl.Config(Data, lengths=lengths),
        optimizer=sgd(0.1),
        train_steps=100,
        evaluation=fdl.Config(Evaluation, lengths=lengths, network=network),
    )


def with_list() -> fdl.Config[Job]:
    """A job with two evaluations."""
    config = small()
    config.evaluations = tuple(
        fdl.Config(Evaluation, lengths={"inputs": n}, network=config.model.network) for n in (1, 2)
    )
    return config


def unfinished() -> fdl.Config[Job]:
    """A job with values left out."""
    return fdl.Config(Job, model=fdl.Config(Model, network=fdl.Config(Network)))


def wrong_types() -> fdl.Config[Job]:
    """A job whose recipe has wrong types."""
    config = small()
    config.batch_size = "8"
    config.model.z_loss = None
    return config


def plain(size: int = 1) -> fdl.Config[Plain]:
    """A job without a run directory."""
    return fdl.Config(Plain, size=size)


def no_job() -> fdl.Config[Adam]:
    """The config of something that cannot be run."""
    return fdl.Config(Adam)


def broken() -> fdl.Config[Job]:
    """A recipe that fails."""
    return small(no_such_argument=1)  # type: ignore[call-arg]


def no_config() -> int:
    return 3


def sgd(learning_rate: float = 0.5) -> fdl.Config[Sgd]:
    return fdl.Config(Sgd, learning_rate=learning_rate)


def adam(learning_rate: float = 0.01) -> fdl.Config[Adam]:
    return fdl.Config(Adam, learning_rate=learning_rate)


def scheduled(optimizer: fdl.Config[Sgd | Adam], factor: float) -> fdl.Config[Sgd]:
    return fdl.Config(Sgd, learning_rate=factor * optimizer.learning_rate)


def short(config: fdl.Config[Job], steps: int = 5) -> None:
    """A fiddler."""
    config.train_steps = steps
    config.logging.period = 1


def misspelt(config: fdl.Config[Job]) -> None:
    config.train_stops = 1

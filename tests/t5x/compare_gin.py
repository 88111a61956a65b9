"""Compares the gin files in a checkout of T5X that `mtf gin` translates with T5X itself.

    python -m tests.t5x.compare_gin CHECKOUT [--record]

It reads the gin files of each run with T5X and gin, lowers the translated recipe to arguments of
T5X, and prints every value that differs and that docs/t5x.md does not document; if there are any,
the exit status is 1. With --record, it writes T5X's values for `tests/gin/test_comparing.py`,
which needs no T5X.
"""

from __future__ import annotations

# isort: off
from mtf.t5x import compatibility  # noqa: F401  # must precede the import of T5X
# isort: on

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import fiddle as fdl
import gin
import jax
import jax.numpy as jnp
import t5x.decoding
import t5x.models
from fiddle import daglish
from gin import config as gin_config

from mtf.base.errors import UserError
from mtf.cli.gin import reading, recipe
from tests.gin import comparing
from tests.gin.comparing import BEAMS, PARAMETERS, RECORDED, Values
from tests.gin.helpers import COMMON

_JOBS = {"train": "t5x.train", "evaluate": "t5x.eval", "infer": "t5x.infer"}
_MODELS = ("examples/t5/t5_1_0", "examples/t5/t5_1_1", "examples/t5/mt5", "examples/t5/byt5")
_MODELS += ("examples/scalable_t5/t5_1_1", "examples/scalable_t5/mt5", "contrib/gpu/t5/t5_1_1")
_MODELS += ("contrib/gpu/t5/t5_1_0", "contrib/gpu/t5/mt5", "contrib/gpu/t5/byt5")
_EXAMPLES = (
    "**/examples/*.gin",
    "examples/scalable_t5/umt5/[pt]*.gin",
    "contrib/gpu/scripts*/*/*.gin",
)
# The parts of umT5's files. The files themselves include a file that T5X does not have, and T5X
# cannot read tydiqa_base.gin, because it does not import all names.
_UMT5 = (
    "examples/scalable_t5/mt5/base examples/scalable_t5/umt5/architectures/encoder_decoder "
    "examples/scalable_t5/umt5/runs/finetuning_common "
    "examples/scalable_t5/umt5/optimizer/adafactor examples/scalable_t5/umt5/vocab",
    "examples/scalable_t5/mt5/xxl examples/scalable_t5/umt5/architectures/encoder_decoder "
    "configs/runs/pretrain examples/scalable_t5/umt5/optimizer/adafactor_momentum_nofactor "
    "examples/scalable_t5/umt5/vocab",
)
# Modules that only register tasks, which nothing here reads.
_NAMES = ("t5", "t5.data", "t5.data.mixtures", "t5.data.tasks")
TASKS = {name: types.ModuleType(name) for name in _NAMES}
TASKS["t5.data"].__dict__.update(mixtures=TASKS[_NAMES[2]], tasks=TASKS[_NAMES[3]])
# Values of required macros and arguments.
_GIVEN = COMMON | {
    "TRAIN_STEPS": "1_000_100",
    "MODEL_DIR": "'run'",
    "INITIAL_CHECKPOINT_PATH": "'/start/checkpoint_1000000'",
    "CHECKPOINT_PATH": "'/start/checkpoint_1000000'",
    **{f"{job}_OUTPUT_DIR": "'out'" for job in ("EVAL", "INFER")},
}


class Run(NamedTuple):
    """Gin files that are read in this order, and values of what they require."""

    files: tuple[str, ...]
    bindings: tuple[str, ...]
    job: str


def runs(checkout: Path) -> Iterator[Run]:
    """All models with each run of T5X, other runs with a small model, and all examples."""
    root = checkout / "t5x"
    own = [f"configs/runs/{name}.gin" for name in ("pretrain", "finetune", "eval", "infer")]
    files = []
    for run in own:
        for folder in _MODELS if run in own[:2] else _MODELS[1:2]:
            models = (path for path in sorted((root / folder).glob("*.gin")))
            files += [(str(p.relative_to(root)), run) for p in models if p.stem != "adamw_opt"]
    for run in sorted(root.glob("**/configs/runs/*.gin")):
        if str(run.relative_to(root)) not in own:
            files.append((f"{_MODELS[1]}/small.gin", str(run.relative_to(root))))
    files += [(str(p.relative_to(root)),) for glob in _EXAMPLES for p in sorted(root.glob(glob))]
    files += [tuple(f"{name}.gin" for name in names.split()) for names in _UMT5]
    for each in sorted(files, key=lambda each: "contrib" in each[-1]):
        names = tuple(f"t5x/{name}" for name in each)
        try:
            read = reading.read(names, [], [str(checkout)], recipe.names_of_configurables())
        except UserError:  # A file that it includes is not in the repository.
            yield Run(names, (), "train")
            continue
        bound = {configurable.rpartition(".")[2] for _, configurable, _ in read.parameters}
        job = next((job for job in ("evaluate", "infer") if job in bound), "train")
        missing = [
            f"{name}={_GIVEN[name]}"
            for name in sorted(read.referred_macros() & _GIVEN.keys())
            if name not in read.macros or read.macros[name].value == reading.Macro("gin.REQUIRED")
        ]
        lengths = f"TASK_FEATURE_LENGTHS={_GIVEN['TASK_FEATURE_LENGTHS']}"
        if job != "train" and lengths not in missing:  # Files leave them to the longest example.
            missing.append(f"utils.DatasetConfig.{lengths.lower()}")
        yield Run(names, tuple(missing), job)


def theirs(run: Run, checkout: Path) -> fdl.Config:
    """The config of T5X's `train`, `evaluate` or `infer` that gin makes of a run's files."""
    module = importlib.import_module(_JOBS[run.job])
    gin.clear_config()
    gin.add_config_file_search_path(str(checkout))
    registry = {"_REGISTRY": gin_config._REGISTRY.copy()}
    registry["_INVERSE_REGISTRY"] = dict(gin_config._INVERSE_REGISTRY)
    with (
        mock.patch.dict(sys.modules, TASKS, __main__=module),
        mock.patch.multiple(gin_config, _make_gin_wrapper=_recorded, **registry),
        gin.unlock_config(),
    ):
        gin.parse_config_files_and_bindings(run.files, run.bindings)
        return gin.get_configurable(getattr(module, run.job))()


_wrap = gin_config._make_gin_wrapper


def _recorded(call: Callable[..., Any], target: Any, *names: Any) -> Any:
    """Makes gin return configs of what it calls, with all arguments."""

    def record(*given: Any, **named: Any) -> Any:
        given = given[1:] if inspect.isclass(target) else given  # without the class itself
        bound = inspect.signature(target).bind_partial(*given, **named).arguments
        return fdl.Config(target, **{name: _called(each) for name, each in bound.items()})

    return _wrap(call if target.__module__.startswith("gin.") else record, target, *names)


def _called(value: Any) -> Any:
    """Replaces references that gin does not call by partial configs."""
    if isinstance(value, list | tuple):
        return [_called(each) for each in value]
    if isinstance(value, dict):
        return {name: _called(each) for name, each in value.items()}
    if callable(value) and not isinstance(value, fdl.Buildable):
        try:
            return fdl.cast(fdl.Partial, value())
        except TypeError:  # T5X registered the function itself, before `_recorded` was there.
            return value
    return value


def values_of(run: Run, config: fdl.Config) -> Values:
    """T5X's values of a run, with the number of parameters of T5X's network."""
    values = comparing.flat(config)
    for path, value in values.items():  # the same network, as long as it does not scale attention
        if str(value).startswith("@t5x.contrib.gpu.t5.network."):
            values[path] = value.replace(".contrib.gpu.", ".examples.")
    method = "models.EncoderDecoderModel.predict_batch_with_aux"
    bound = {
        n: v for (_, name), v in gin_config._CONFIG.items() if name.endswith(method) for n in v
    }
    values[BEAMS] = bound.get("num_decodes", {}).get("num_decodes", 1)
    if run.job == "train":
        module = fdl.deepcopy_with(config.model.module)
        module.config.num_encoder_layers = module.config.num_decoder_layers = 2
        network, tokens = fdl.build(module), jnp.ones((1, 8), jnp.int32)

        def parameters() -> Any:
            rng = {"params": jax.random.PRNGKey(0)}
            return network.init(rng, tokens, tokens, tokens, enable_dropout=False)["params"]

        leaves = jax.tree.leaves(jax.eval_shape(parameters))
        values[PARAMETERS] = sum(leaf.size for leaf in leaves)
    return values


def defaults_of(configs: Sequence[fdl.Config]) -> Mapping[str, Values]:
    """The default values of all components, by their names."""
    targets = [t5x.decoding.beam_search, t5x.decoding.temperature_sample, t5x.models.DecoderParams]
    for config in configs:
        nodes = (value for value, _ in daglish.iterate(config))
        targets += [fdl.get_callable(each) for each in nodes if isinstance(each, fdl.Buildable)]
    found: dict[str, Values] = {}
    for target in targets:
        parameters = inspect.signature(target).parameters.values()
        defaults = {
            p.name: comparing.plain(p.default) for p in parameters if p.default is not p.empty
        }
        found[comparing.name_of(target)] = {
            name: value
            for name, value in defaults.items()
            if isinstance(value, str | int | float | list | dict | None)
        }
    return found


def main(arguments: Sequence[str]) -> int:
    """Compares all runs, prints the differences, and returns the exit status."""
    checkout = Path(arguments[0])
    translated, refused = {}, {}
    for run in runs(checkout):
        name = " ".join(each.removeprefix("t5x/") for each in run.files)
        command = recipe.Command(run.files, run.bindings, search_paths=(str(checkout),))
        try:
            job = recipe.translate(command).job
        except UserError as error:
            refused[name] = str(error).replace(f"{checkout}/", "")
            continue
        try:
            config = theirs(run, checkout)
        except NameError as error:  # a name that the file does not import
            refused[name] = f"T5X cannot read it: {error}"
            continue
        translated[name] = (job, config, values_of(run, config))
    defaults = defaults_of([config for _, config, _ in translated.values()])
    number = 0
    for name, (job, _, values) in translated.items():
        full, mine = comparing.expanded(values, defaults), comparing.ours(job, defaults)
        for path, (their, our) in comparing.differences(full, mine).items():
            print(f"{name}: {path}: T5X {their!r}, mtf {our!r}")
            number += 1
    print(
        f"{len(translated)} translated, {len(refused)} refused, {number} undocumented differences"
    )
    for name, why in refused.items():
        print(f"refused: {name}: {why}")
    if "--record" in arguments:
        comparing.write(defaults, {name: values for name, (_, _, values) in translated.items()})
        print(f"Wrote {RECORDED}.")
    return int(number > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

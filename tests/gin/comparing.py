"""Compares recipes translated from gin files with the values that T5X reads from these files.

Values are dicts that map the path of an argument below `train`, `evaluate` or `infer`, such as
"model.module.config.emb_dim", to its value. A component is a text such as
"@t5x.utils.DatasetConfig()", and a function that is not called "@t5x.decoding.beam_search".

`tests/t5x/compare_gin.py` asks T5X for its values, and records them in `recorded.json`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import fiddle as fdl

from mtf.config import tree
from mtf.models.t5 import num_parameters
from mtf.t5x import adapters, symbols
from mtf.training import AdafactorConfig

Values = dict[str, Any]
Defaults = Mapping[str, Values]  # name of a class or function → the default values of its arguments

RECORDED = Path(__file__).with_name("recorded.json")
# Number of parameters of the network with two layers in each stack.
PARAMETERS = "num_parameters"
BEAMS = "model.predict_batch_with_aux.num_decodes"
# Classes of mtf with the arguments of T5X's: for CPUs, and for a loss over the whole batch.
_SUBCLASSES = {
    "mtf.t5x.partitioning.PjitPartitioner": "t5x.partitioning.PjitPartitioner",
    "mtf.t5x.microbatches.Trainer": "t5x.trainer.Trainer",
}
ANY = object()
ABSENT = "(absent)"
_OPTIMIZER = "model.optimizer_def"
_DATA = r"(train_|train_eval_|infer_eval_|)dataset_cfg"
# (pattern of paths, T5X's value, ours); docs/t5x.md describes these differences.
DOCUMENTED: tuple[tuple[str, Any, Any], ...] = (
    # mtf's seeds are fixed; examples for evaluation are not shuffled, so their seed has no effect.
    (r"random_seed|train_dataset_cfg\.seed", None, 0),
    (r"(train_eval_|infer_eval_|)dataset_cfg\.seed", ANY, ANY),
    (r"use_hardware_rng", True, False),
    # Both engines read the recipe's own batches and examples, whose position is always saved.
    (r"get_dataset_fn", "@t5x.utils.get_dataset", "@mtf.t5x.datasets.get_dataset"),
    (r"train_eval_get_dataset_fn", "@t5x.utils.get_training_eval_datasets", ANY),
    (
        r"infer_eval_dataset_cfg\.mixture_or_task_name",
        ANY,
        "@mtf.t5x.evaluator.register_held_out()",
    ),
    (r"dataset_cfg\.mixture_or_task_name", ANY, "@mtf.t5x.evaluator.register_tasks()"),
    (r"dataset_cfg\.mixture_or_task_name", ANY, "@mtf.t5x.evaluator.register_sources()"),
    (rf"{_DATA}\.mixture_or_task_name", "c4_v220_span_corruption", "allenai/c4"),
    (rf"{_DATA}\.module", "t5.data.mixtures", None),
    (rf"{_DATA}\.use_cached", True, False),  # only with --seqio_additional_cache_dirs
    (r"checkpoint_cfg\.save\.save_dataset", False, True),
    (r"checkpoint_ds_iter", True, False),
    # Held-out data is prepared like training data, and cut to the same lengths.
    (r"infer_eval_dataset_cfg\.task_feature_lengths", None, ANY),
    (r"(train|infer)_eval_dataset_cfg\.batch_size", ANY, ANY),
    (r"train_eval_dataset_cfg\.pack", ANY, ANY),
    # The file of T5's vocabulary has sentinels, so none are added.
    (r"model\.(in|out)put_vocabulary\.extra_ids", 0, 100),
    (r"verify_matching_vocabs_fn", "@t5x.utils.verify_matching_vocabs", None),
    # The mesh does not change results; with a submesh, T5X ignores the number of partitions.
    (r"partitioner", ABSENT, ANY),
    (r"partitioner\.num_partitions", ANY, None),
    (r"partitioner\.logical_axis_rules", None, ANY),
    (r"actions", {"TRAIN_EVAL": ["@t5x.trainer.TerminateOnNanAction()"]}, None),
    (r"checkpoint_cfg\.save\.keep_dataset_checkpoints", ANY, None),
    # mtf's statistics and files.
    (r"stats_period", ANY, ANY),
    (r"summarize_config_fn", ANY, "@mtf.t5x.datasets.summarize_nothing"),
    (r"inference_evaluator_cls", "@seqio.Evaluator", None),  # without infer_eval_dataset_cfg
    (r"inference_evaluator_cls\.logger_cls", ANY, ANY),
    (r"(checkpoint_cfg\.restore|restore_checkpoint_cfg)\.dtype", None, "float32"),
)


def ours(config: fdl.Config, defaults: Defaults) -> Values:
    """The values that `--engine t5x` gives T5X for a job; needs no T5X, but its defaults.

    With `--engine t5x`, T5X has neither a bias in each layer nor an optimizer of optax. Here, they
    are those of `scalable_t5` and of T5X's wrapper of optax, as in gin files.
    """

    def symbol(name: str) -> Any:
        def stand_in(**_: Any) -> None: ...

        name = _SUBCLASSES.get(name, name)
        stand_in.__module__, _, stand_in.__qualname__ = name.rpartition(".")
        kind = inspect.Parameter.KEYWORD_ONLY
        known = [inspect.Parameter(n, kind, default=v) for n, v in defaults.get(name, {}).items()]
        known.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD))
        setattr(stand_in, "__signature__", inspect.Signature(known))  # noqa: B010
        return stand_in

    config = tree.freeze_defaults(config)
    job = fdl.get_callable(config).__name__
    own = None
    if job == "Train" and fdl.get_callable(config.optimizer) is not AdafactorConfig:
        own, config.optimizer = config.optimizer, fdl.Config(AdafactorConfig, None)
        config = tree.freeze_defaults(config)
    with mock.patch.object(adapters, "symbol", symbol):
        lowered = symbols.JOBS[job](symbols.Settings(config))
    vocabulary = lowered.model.input_vocabulary.vocabulary
    if isinstance(vocabulary, fdl.Config):  # as SeqIO's
        values = dict(vocabulary.__arguments__)
        if "path" in values:
            values["sentencepiece_model_file"] = values.pop("path")
        name = f"seqio.{fdl.get_callable(vocabulary).__name__}"
        vocabulary = fdl.Config(symbol(name), **values)
    lowered.model.input_vocabulary = lowered.model.output_vocabulary = vocabulary
    values = flat(lowered)
    values[BEAMS] = values.pop("model.default_decoder_params.num_decodes", 1)
    values["model.default_decoder_params"] = None
    if own is not None:
        values = {path: v for path, v in values.items() if not path.startswith(_OPTIMIZER)}
        values |= flat(own, _OPTIMIZER)
    if job == "Train":
        network = fdl.build(config.model.network)
        two = {"num_encoder_layers": 2, "num_decoder_layers": 2}
        values[PARAMETERS] = num_parameters(dataclasses.replace(network, **two))
        if network.relpos_bias_per_layer:
            for path in ("model.module", "model.module.config"):
                values[path] = values[path].replace(".t5.", ".scalable_t5.")
            config_of = "model.module.config."
            for name in ("scan_layers", "remat_policy"):
                values[config_of + name] = getattr(network, name)
            values.pop(f"{config_of}float32_attention_logits", None)
    return expanded(values, defaults)


def flat(config: fdl.Config, path: str = "") -> Values:
    """The values of a config of T5X or optax."""
    return dict(_items(config, path))


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, fdl.Buildable):
        yield path, plain(value)
        arguments = dict(value.__arguments__)
        if 0 in arguments:  # those of `optax.chain`; T5X's wrapper takes a list
            arguments = {"transformations": [*arguments.values()]}
        for name, each in arguments.items() if not plain(value).startswith("@mtf.") else ():
            yield from _items(each, f"{path}.{name}" if path else name)
    else:
        yield path, plain(value)
        for i, each in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(each, fdl.Buildable):
                yield from _items(each, f"{path}[{i}]")


def plain(value: Any) -> Any:
    """A value as in JSON; components, functions and dtypes by their names."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    called = "()" * isinstance(value, fdl.Config | fdl.ArgFactory)
    if isinstance(value, fdl.Buildable):
        value = fdl.get_callable(value)
    return f"@{name_of(value)}{called}" if hasattr(value, "__qualname__") else value


def name_of(target: Any) -> str:
    """The public name of a class or function."""
    package = target.__module__.partition(".")[0]
    module = package if package in ("seqio", "optax") else target.__module__
    name = f"{module}.{target.__qualname__}"
    return "t5x.optimizers.chain" if name == "optax.chain" else name


def expanded(values: Values, defaults: Defaults) -> Values:
    """The values with the default values of arguments that are not given."""
    full, left = dict(values), [*values]
    for path in left:  # The loop appends to `left`.
        for name, default in defaults.get(_component(full[path]), {}).items():
            inner = f"{path}.{name}" if path else name
            if inner not in full:
                full[inner] = default
                left.append(inner)
    return full


def write(defaults: Defaults, runs: Mapping[str, Values]) -> None:
    """Records T5X's values that are not defaults, as changes of the run before.

    Of runs with equal values, only the first is recorded.
    """
    lines: list[str] = []
    known: list[Values] = []
    before: Values = {}
    for name, values in runs.items():
        kept = _given(values, defaults)
        if kept in known:
            continue
        known.append(kept)
        changed = {p: v for p, v in kept.items() if before.get(p, ABSENT) != v}
        lines.append(json.dumps({"run": name, **changed, "without": sorted(before.keys() - kept)}))
        before = kept
    RECORDED.write_text("\n".join([json.dumps(defaults), *lines, ""]))


def _given(values: Values, defaults: Defaults) -> Values:
    """The values that are not defaults."""
    known = {path: defaults.get(_component(value), {}) for path, value in values.items()}
    parts = {path: path.rpartition(".") for path in values}
    return {
        path: value
        for path, value in values.items()
        if not path or known.get(parts[path][0], {}).get(parts[path][2], ABSENT) != value
    }


def recorded() -> tuple[Defaults, dict[str, Values]]:
    """The recorded defaults and, by the names of runs, T5X's values with defaults."""
    defaults, *lines = map(json.loads, RECORDED.read_text().splitlines())
    runs: dict[str, Values] = {}
    values: Values = {}
    for changed in lines:
        name, without = changed.pop("run"), changed.pop("without")
        values = {p: v for p, v in (values | changed).items() if p not in without}
        runs[name] = expanded(values, defaults)
    return defaults, runs


def gin_text(values: Values, defaults: Defaults) -> str:
    """A gin file that binds these values, except defaults; every component has its own scope."""
    components = {path: _component(value) for path, value in values.items() if _component(value)}
    paths = [path for path in _given(values, defaults) if path not in ("", PARAMETERS)]
    bound = {}
    for path in paths:  # The loop appends to `paths`.
        owners = [path[: m.start()] for m in re.finditer(r"[.\[]", path)]
        owner = next((each for each in reversed(owners) if each in components), "")
        if not path.endswith("]"):
            bound[path] = owner, path.removeprefix(owner).removeprefix(".")
        if owner not in ("", *paths):
            paths.append(owner)
    scoped = {owner for owner, _ in bound.values()}

    def literal(value: Any, path: str) -> str:
        if isinstance(value, list) and any(map(_component, value)):
            return f"[{', '.join(literal(each, f'{path}[{i}]') for i, each in enumerate(value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{n!r}: {literal(v, path)}' for n, v in value.items())}}}"
        scope = f"{_scope(path)}/" if path in scoped else ""
        return value.replace("@", f"@{scope}") if _component(value) else repr(value)

    lines = [f"import {name.rpartition('.')[0]}" for name in {*components.values()}]
    for path, (owner, name) in bound.items():
        scope = "" if path == BEAMS or not owner else f"{_scope(owner)}/"
        lines.append(f"{scope}{components[owner]}.{name} = {literal(values[path], path)}")
    return "\n".join([*lines, ""])


def _scope(path: str) -> str:
    return re.sub(r"\W+", "_", path)


def _component(value: Any) -> str:
    return value.strip("@()") if isinstance(value, str) and value.startswith("@") else ""


def differences(theirs: Values, mine: Values) -> Values:
    """Path → [T5X's value, ours], without the documented differences.

    Arguments of components that differ themselves are left out.
    """
    if not theirs.get("checkpoint_cfg.restore.path", True):  # T5X trains from scratch
        theirs = {p: v for p, v in theirs.items() if not p.startswith("checkpoint_cfg.restore")}
        theirs["checkpoint_cfg.restore"] = None
    paths = {*theirs, *mine}
    if PARAMETERS not in mine:  # mtf reads the model from the checkpoint
        paths = {p for p in paths if not p.startswith("model.") or p.startswith("model.decode_fn")}
    if theirs.get(_OPTIMIZER, "").startswith("@t5x.optimizers."):  # T5X only logs the schedule
        paths = {p for p in paths if not p.startswith("trainer_cls.learning_rate_fn.")}
    found: Values = {}
    for path in sorted(paths):
        pair = [theirs.get(path, ABSENT), mine.get(path, ABSENT)]
        owners = [path[: m.start()] for m in re.finditer(r"[.\[]", path)]
        if pair[0] != pair[1] and not any(theirs.get(o) != mine.get(o) for o in owners):
            found[path] = pair
    return {path: pair for path, pair in found.items() if not is_documented(path, *pair)}


def is_documented(path: str, their: Any, our: Any) -> bool:
    """Whether docs/t5x.md describes a difference."""

    def fits(wanted: Any, value: Any) -> bool:
        return wanted is ANY or (type(wanted) is type(value) and wanted == value)

    return any(
        re.fullmatch(pattern, path) and fits(wanted, their) and fits(mine, our)
        for pattern, wanted, mine in DOCUMENTED
    )

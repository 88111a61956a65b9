"""--set, --unset, --apply: what they change and what they refuse, as a user reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from mtf import config as config_lib
from mtf.base.errors import UserError
from mtf.config import Override, apply_overrides
from mtf.config.paths import format_path, parse_path
from tests.config import example


def refusal(*overrides: str | Override) -> str:
    with pytest.raises(UserError) as caught:
        apply_overrides(example.small(), overrides)
    return str(caught.value)


def learning_rate(config: Any) -> Any:
    return config.optimizer.learning_rate


@pytest.mark.parametrize(
    ("text", "read", "expected"),
    [
        ("train_steps=7", lambda c: c.train_steps, 7),
        ("model.z_loss=1", lambda c: c.model.z_loss, 1.0),
        ("model.network.dtype=float32", lambda c: c.model.network.dtype, "float32"),
        ("model.network.scan_layers=False", lambda c: c.model.network.scan_layers, False),
        ("model_dir=/tmp/some dir", lambda c: c.model_dir, "/tmp/some dir"),
        ("model_dir=a=b", lambda c: c.model_dir, "a=b"),
        ("data.files=one.txt", lambda c: c.data.files, "one.txt"),
        ("data.files=['a', 'b']", lambda c: c.data.files, ("a", "b")),
        ("data.submesh=[2, 4]", lambda c: c.data.submesh, (2, 4)),
        ("data.lengths.inputs=9", lambda c: c.data.lengths, {"inputs": 9, "targets": 114}),
        ("+data.lengths.x=1", lambda c: c.data.lengths["x"], 1),
        (
            "model.network.mlp_activations.0=relu",
            lambda c: c.model.network.mlp_activations[0],
            "relu",
        ),
        (
            "model.network.mlp_activations=['relu']",
            lambda c: c.model.network.mlp_activations,
            ("relu",),
        ),
        ("model_dir=2024-11-12", lambda c: c.model_dir, "2024-11-12"),
        ("model_dir=gs://a/b", lambda c: c.model_dir, "gs://a/b"),
        ("data.files=1*2", lambda c: c.data.files, "1*2"),
    ],
)
def test_set(text: str, read: Callable[[Any], Any], expected: Any) -> None:
    value = read(apply_overrides(example.small(), [text]))
    assert value == expected
    assert type(value) is type(expected)


def test_the_recipe_itself_stays_as_it_is() -> None:
    config = example.small()
    apply_overrides(config, ["train_steps=7", "data.lengths.inputs=9"])
    assert config.train_steps == 100
    assert config.data.lengths["inputs"] == 512


def test_tuple_element_that_is_a_component() -> None:
    config = apply_overrides(example.with_list(), ["evaluations.1.lengths.inputs=20"])
    assert [e.lengths["inputs"] for e in config.evaluations] == [1, 20]
    assert isinstance(config.evaluations, tuple)


def test_shared_component_and_dict_stay_shared() -> None:
    config = apply_overrides(
        example.small(), ["model.network.dropout_rate=0.5", "data.lengths.inputs=9"]
    )
    assert config.evaluation.network is config.model.network
    assert config.evaluation.lengths is config.data.lengths
    job = config_lib.build(config)
    assert job.evaluation.network.dropout_rate == 0.5
    assert job.evaluation.lengths["inputs"] == 9


def test_equal_tuples_are_not_taken_for_shared() -> None:
    config = example.small()
    config.evaluation.network = fdl.Config(example.Network, emb_dim=64)
    changed = apply_overrides(config, ["evaluation.network.mlp_activations.0=relu"])
    assert changed.evaluation.network.mlp_activations == ("relu", "linear")
    assert changed.model.network.mlp_activations == ("gelu", "linear")


@pytest.mark.parametrize(
    ("text", "cls", "rate"),
    [
        ("optimizer=@tests.config.example.adam", example.Adam, 0.01),
        ("optimizer=@tests.config.example.adam(learning_rate=1)", example.Adam, 1.0),
        (
            "optimizer=@tests.config.example.scheduled(optimizer=@tests.config.example.adam("
            "learning_rate=2), factor=4)",
            example.Sgd,
            8.0,
        ),
        ("optimizer=@tests.config.example.Adam", example.Adam, 0.001),
        ("optimizer=@tests.config.example.Adam(learning_rate=2)", example.Adam, 2.0),
    ],
)
def test_swap_a_component(text: str, cls: type[Any], rate: float) -> None:
    job = config_lib.build(apply_overrides(example.small(), [text]))
    assert type(job.optimizer) is cls
    assert job.optimizer.learning_rate == rate


def test_swap_by_a_class_then_set_its_required_field() -> None:
    overrides = ["optimizer=@tests.config.example.Sgd", "optimizer.learning_rate=3"]
    assert config_lib.build(apply_overrides(example.small(), overrides)).optimizer == example.Sgd(3)


def test_fiddler_with_arguments_changes_a_defaulted_component() -> None:
    short = Override("apply", "tests.config.example.short(steps=3)")
    config = apply_overrides(example.small(), [short])
    assert (config.train_steps, config.logging.period) == (3, 1)


def test_unset() -> None:
    config = apply_overrides(
        example.small(dropout_rate=0.7),
        [Override("unset", "model.network.dropout_rate"), Override("unset", "data.lengths.inputs")],
    )
    assert config_lib.build(config).model.network.dropout_rate == 0.1
    assert config.data.lengths == {"targets": 114}


def test_unset_of_a_required_field_is_missing() -> None:
    config = apply_overrides(example.small(), [Override("unset", "model.network.emb_dim")])
    with pytest.raises(UserError, match=r"model\.network\.emb_dim \(int\)"):
        config_lib.build(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dropout_rate=0", ["dropout_rate=0", "Did you mean model.network.dropout_rate"]),
        ("train_step=3", ["Job has no field train_step", "Did you mean train_steps"]),
        ("modle.network.emb_dim=3", ["Did you mean model.network.emb_dim"]),
        (
            "data.lengths.input=3",
            ["data.lengths has no key input", "inputs", "+data.lengths.input"],
        ),
        ("train_steps=1e6", ["expected int", "Write 1000000."]),
        ("train_steps=2*10", ["expected int, got the word 2*10"]),
        ("data.submesh=[2*2, 2]", ["expected tuple[int, int] or None", "not a complete Python"]),
        ("train_steps=True", ["expected int", "bool True"]),
        ("train_steps=", ["expected int", "no value"]),
        ("train_steps=[1", ["expected int", "not a complete Python literal"]),
        ("model.z_loss=True", ["expected float", "bool True"]),
        ("model.network.scan_layers=true", ["expected bool", "Write True."]),
        ("model.label_smoothing=none", ["expected float or None", "Write None."]),
        ("model.network.dtype=bfloat61", ["'float32' or 'bfloat16'", "Did you mean bfloat16"]),
        ("model.network.dtype=float16", ["float16 overflows, use bfloat16."]),
        ("model_dir=3", ["expected str or None", "quotes"]),
        ("data.files=a,b", ["neither a list nor a single word", "['a', 'b']"]),
        ("model.network.mlp_activations=relu", ["tuple[str, ...]", "['relu']"]),
        ("data.lengths={'x': 'y'}", ["expected int", "'y'", "'x'"]),
        ("data.submesh=[1,2,3]", ["expected tuple[int, int], got 3 elements."]),
        ("model.network.mlp_activations.2=relu", ["has no element 2; it has 2 elements"]),
        ("optimizer=3", ["expected Sgd or Adam", "@builder"]),
        ("optimizer=None", ["expected Sgd or Adam", "None"]),
        ("optimizer=adam", ["expected Sgd or Adam", "@builder"]),
        ("optimizer=@tests.config.example.Network", ["expected Sgd or Adam", "Network"]),
        ("optimizer=@tests.config.example.adamm", ["no builder", "tests.config.example.adam"]),
        ("optimizer=@tests.config.example.adam(lr=1)", ["no argument lr", "learning_rate"]),
        ("optimizer=@tests.config.example.adam(learning_rate='x')", ["expected float", "'x'"]),
        ("optimizer=@tests.config.example.scheduled", ["value for optimizer", "factor (float)"]),
        (
            "optimizer=@tests.config.example.scheduled(factor=1, optimizer=@"
            "tests.config.example.Network)",
            ["Config[Sgd | Adam]"],
        ),
        ("optimizer=@tests.config.example.no_config", ["return annotation int", "fdl.Config"]),
        (
            "optimizer=@tests.config.example.small",
            ["expected Sgd or Adam, but tests.config.example.small returns Config[Job]."],
        ),
        ("optimizer=@os.path", ["os.path is a module", "Expected a dataclass, or a function"]),
        ("optimizer=@threading.Thread", ["threading.Thread is a class, but not a dataclass"]),
        ("train_steps.x=3", ["train_steps has the value 100"]),
        ("train_steps", ["PATH=VALUE"]),
        (".=3", ["not a path"]),
    ],
)
def test_refused(text: str, says: list[str]) -> None:
    message = refusal(text)
    for part in says:
        assert part in message
    assert "\n" not in message


def test_path_into_none_says_how_to_set_it() -> None:
    message = refusal("evaluation=None", "evaluation.lengths={}")
    assert "evaluation is None" in message
    assert "--set evaluation=@builder(…) (Evaluation or None)" in message


def test_mistake_in_a_fiddler_shows_its_line() -> None:
    message = refusal(Override("apply", "tests.config.example.misspelt"))
    assert "train_stops" in message
    assert "example.py" in message


def test_element_of_a_tuple_cannot_be_unset() -> None:
    message = refusal(Override("unset", "model.network.mlp_activations.0"))
    assert "element of a tuple" in message


@pytest.mark.parametrize(
    "call", ["os.mkdir(path='{}')", "os.system(command='mkdir {}')", "os.makedirs(name='{}')"]
)
@pytest.mark.parametrize("field", ["optimizer", "train_steps", "data.files", "+extra"])
def test_a_function_that_is_no_builder_is_not_called(tmp_path: Path, call: str, field: str) -> None:
    made = tmp_path / "made"
    message = refusal(f"{field}=@{call.format(made)}")
    assert not made.exists()
    if not field.startswith("+"):
        assert (
            "was not called, because it has no return annotation. Expected a dataclass" in message
        )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("a.b_c.d", ("a", "b_c", "d")),
        ("a.0.b", ("a", 0, "b")),
        ("a[0].b", ("a", 0, "b")),
        ("a['x.y'].b", ("a", "x.y", "b")),
        ("a['0']", ("a", "0")),
        ("a[x]", ("a", "x")),
        ("a.c4-en/3:x", ("a", "c4-en/3:x")),
        ("a['x=y z']", ("a", "x=y z")),
    ],
)
def test_parse(text: str, path: tuple[object, ...]) -> None:
    assert parse_path(text) == path
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize("text", ["", ".", ".a", "a..b", "a[", "a]"])
def test_no_path(text: str) -> None:
    with pytest.raises(UserError, match="path"):
        parse_path(text)

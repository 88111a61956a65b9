"""--set, --unset, --apply: what they change and refuse; types and texts of whole configs."""

from __future__ import annotations

import runpy
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
        ("optimizer=tests.config.example.Adam", ["Write @tests.config.example.Adam"]),
        ("optimizer=tests.config.example.adam(0.1)", ["Write @tests.config.example.adam(learn"]),
        ("optimizer=tests.config.example.nothing(8)", ["expected Sgd or Adam, got the word"]),
        ("optimizer=None", ["expected Sgd or Adam", "None"]),
        ("optimizer=adam", ["expected Sgd or Adam", "Did you mean @tests.config.example.Adam?"]),
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


RECIPES = [example.small, example.with_list, example.plain, lambda: example.small(emb_dim=128)]


def test_missing_values_are_listed_together() -> None:
    with pytest.raises(UserError) as caught:
        config_lib.build(example.unfinished())
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("Missing required values")
    assert [line.strip() for line in lines[1:]] == [
        "data (Data)",
        "optimizer (Sgd or Adam)",
        "train_steps (int)",
        "model.network.emb_dim (int)",
    ]


def test_wrong_types_of_a_recipe_say_where_they_were_set() -> None:
    with pytest.raises(UserError) as caught:
        config_lib.build(example.wrong_types())
    message = str(caught.value)
    assert "2 mistakes" in message
    assert "batch_size: expected int, got str '8'" in message
    assert "model.z_loss: expected float, got None" in message
    assert "example.py:" in message
    assert "(wrong_types)" in message


def test_wrong_values_are_reported_with_wrong_types_and_what_is_missing() -> None:
    """A component whose own types are wrong, or whose part is refused, is not asked."""
    config = config_lib.apply_overrides(
        example.small(), ["model.network.num_heads=5", "optimizer.learning_rate=-1"]
    )
    config.model.z_loss = None
    del config.train_steps
    with pytest.raises(UserError) as caught:
        config_lib.build(config)
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 mistakes:"
    assert lines[1].startswith("  model.z_loss: expected float, got None.")
    assert "train_steps (int)" in lines[3]
    assert lines[4] == "  model.network: emb_dim 64 is not a multiple of num_heads 5."
    assert lines[5] == "  optimizer: learning_rate must be positive, not -1.0."
    assert len(lines) == 6


def test_list_in_a_recipe_becomes_the_declared_tuple() -> None:
    config = example.small()
    config.model.network.mlp_activations = ["relu"]
    job = config_lib.build(config_lib.complete(config))
    assert job.model.network.mlp_activations == ("relu",)


def test_instance_in_a_recipe_can_be_overridden() -> None:
    config = example.small()
    config.logging = example.Logging(period=7)
    changed = config_lib.apply_overrides(config, ["logging.name=x"])
    assert config_lib.build(changed).logging == example.Logging(period=7, name="x")


def test_flat_text_without_defaults() -> None:
    config = config_lib.apply_overrides(example.small(), ["model.z_loss=0.0", "logging.name=x"])
    config.evaluation = None
    assert config_lib.as_flat_text(config, defaults=False).splitlines() == [
        "model.network.emb_dim = 64",
        "model.z_loss = 0.0",
        "data.lengths.inputs = 512",
        "data.lengths.targets = 114",
        "optimizer = @tests.config.example.Sgd",
        "optimizer.learning_rate = 0.1",
        "train_steps = 100",
        "logging.name = 'x'",
    ]


def test_every_line_of_flat_text_can_be_set() -> None:
    config = example.with_list()
    lines = config_lib.as_flat_text(config).splitlines()
    overrides = [line.replace(" = ", "=", 1) for line in lines]
    swaps = [text for text in overrides if "=@" in text]
    assert swaps == [
        "optimizer=@tests.config.example.Sgd",
        "evaluation=@tests.config.example.Evaluation",
    ]
    plain = [text for text in overrides if text not in swaps]
    assert config_lib.as_flat_text(config_lib.apply_overrides(config, plain)).splitlines() == lines
    config_lib.apply_overrides(config, swaps)


def test_history_shows_the_line_of_the_recipe_that_calls_a_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe_with_builders.py").write_text(
        "from tests.config import example\n\ndef recipe():\n    return example.small()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = config_lib.as_history_text(config_lib.resolve("recipe_with_builders.recipe"))
    line = next(line for line in text.splitlines() if line.startswith("train_steps"))
    assert line.endswith("recipe_with_builders.py:4 (recipe → example.small)")


def test_history_says_where_each_value_comes_from() -> None:
    config = config_lib.apply_overrides(
        example.small(),
        ["data.lengths.inputs=3", config_lib.Override("apply", "tests.config.example.short")],
    )
    origin = {}
    for line in config_lib.as_history_text(config).splitlines():
        setting, _, comment = line.partition("#")
        origin[setting.partition(" = ")[0]] = comment.strip()
    assert origin["data.lengths.inputs"] == "--set data.lengths.inputs=3 (command line)"
    assert "example.py" in origin["data.lengths.targets"]
    assert origin["data.lengths.targets"].endswith("(small)")
    assert origin["optimizer.learning_rate"].endswith("(sgd)")
    assert origin["model.network.emb_dim"].endswith("(small)")
    assert origin["train_steps"].endswith("(short)")
    assert origin["logging.period"].endswith("(short)")
    assert origin["logging.name"] == "default"
    assert origin["batch_size"] == "default"


@pytest.mark.parametrize("recipe", RECIPES)
def test_python_makes_the_equal_config(recipe: Any, tmp_path: Path) -> None:
    config = config_lib.complete(recipe())
    file = tmp_path / "config.py"
    file.write_text(config_lib.as_python(config, 'A "title" \\ of it.'))
    again = runpy.run_path(str(file))["config"]()
    assert again == config
    assert fdl.build(again) == fdl.build(config)
    assert max(map(len, file.read_text().splitlines())) <= 100


def test_python_writes_types_enums_and_infinity() -> None:
    config = fdl.Config(example.Plain, function=example.sgd)
    text = config_lib.as_python(config, "x")
    assert "function=sgd" in text
    odd = fdl.Config(example.Sgd, learning_rate=float("inf"))
    namespace: dict[str, Any] = {"__name__": "x"}
    exec(config_lib.as_python(odd, "x"), namespace)
    assert namespace["config"]() == odd


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_reloads_to_the_identical_config(recipe: Any) -> None:
    config = config_lib.complete(recipe())
    text = config_lib.dump_json(config)
    again = config_lib.load_json(text, "x.json")
    assert again == config
    assert fdl.build(again) == fdl.build(config)
    assert config_lib.dump_json(again) == text


def test_json_keeps_what_is_shared() -> None:
    again = config_lib.load_json(config_lib.dump_json(example.small()), "x.json")
    assert again.evaluation.network is again.model.network
    assert again.evaluation.lengths is again.data.lengths
    # A default that changes in the code does not change a stored run.
    assert again.model.__arguments__["z_loss"] == 1e-4


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"root": 1, "objects": {}}'])
def test_json_that_is_no_config(text: str) -> None:
    with pytest.raises(UserError, match=r"x\.json is not"):
        config_lib.load_json(text, "x.json")


def test_json_of_code_that_has_gone() -> None:
    text = config_lib.dump_json(example.plain())
    with pytest.raises(UserError, match="Plainer"):
        config_lib.load_json(text.replace('"Plain"', '"Plainer"'), "x.json")
    with pytest.raises(UserError, match=r"no_such_module"):
        config_lib.load_json(text.replace("tests.config.example", "no_such_module"), "x.json")


def test_lambda_cannot_be_stored() -> None:
    config = fdl.Config(example.Plain, function=lambda: 1)
    with pytest.raises(UserError, match="cannot be written as JSON"):
        config_lib.dump_json(config)


def test_diff() -> None:
    old = example.small()
    new = config_lib.apply_overrides(
        example.small(emb_dim=128),
        ["optimizer=@tests.config.example.Adam", "+data.lengths.more=1", "evaluation=None"],
    )
    lines = [str(change) for change in config_lib.diff(old, new)]
    assert "model.network.emb_dim: 64 → 128" in lines
    assert "optimizer: @tests.config.example.Sgd → @tests.config.example.Adam" in lines
    assert "optimizer.learning_rate: 0.1 → 0.001" in lines
    assert "optimizer.momentum: removed, was None" in lines
    assert "optimizer.betas: added, (0.9, 0.999)" in lines
    assert "data.lengths.more: added, 1" in lines
    assert "evaluation: @tests.config.example.Evaluation → None" in lines
    assert not any(line.startswith("model.z_loss") for line in lines)


def test_diff_tells_true_from_one() -> None:
    old, new = example.small(), example.small()
    old.model.network.scan_layers = 1
    new.model.network.scan_layers = True
    assert [str(change) for change in config_lib.diff(old, new)] == [
        "model.network.scan_layers: 1 → True",
        "evaluation.network.scan_layers: 1 → True",  # The same component.
    ]

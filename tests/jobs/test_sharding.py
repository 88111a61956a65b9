"""`--print sharding` shows each parameter's part on a device."""

from __future__ import annotations

import re

import pytest

from mtf.cli.run import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main([*arguments, "--print", "sharding"]) == 0
    return capsys.readouterr().out.splitlines()


def row(lines: list[str], name: str) -> list[str]:
    """Returns the cells of a parameter's row."""
    found = [re.split(r"  +", line) for line in lines if line.startswith(f"{name} ")]
    assert len(found) == 1, lines
    return found[0]


def test_the_largest_model_on_the_devices_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "recipes.t5_1_1_xxl_c4")
    # 11B parameters: 24 layers of 4096 × 10240 float32 in 8 parts have 480 MiB.
    kernel = row(lines, "encoder/layers/mlp/wi_0/kernel")
    assert kernel[1:5] == ["24 × 4096 × 10240", "layers, embed, mlp", "-, -, model", "480.00 MiB"]
    norm = row(lines, "encoder/encoder_norm/scale")
    assert norm[3:] == ["not split", "0.02 MiB"]
    # 11,135,332,352 parameters of 4 bytes.
    assert "8 devices (data 1 × fsdp 1 × model 8): parameters 41.48 GiB, 5.19 GiB per" in lines[-1]


def test_devices_and_a_large_parameter_that_is_not_split(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mesh = ["partitioner.num_partitions=4", "partitioner.fsdp=2"]
    odd = ["model.network.vocab_size=385", "model.network.emb_dim=257"]
    command = ["recipes.pretrain_text", "--devices", "16", "--set", *mesh]
    lines = shown(capsys, *command, "model.network.emb_dim=256")
    assert lines[-1].startswith("16 devices (data 2 × fsdp 2 × model 4)")
    assert row(lines, "token_embedder/embedding")[3] == "model, fsdp"

    lines = shown(capsys, *command, *odd)
    assert row(lines, "token_embedder/embedding")[3] == "not split"
    remarks = [line for line in lines if line.startswith("large, but not split: ")]
    assert [line.split()[4] for line in remarks] == [
        "decoder/logits_dense/kernel",
        "token_embedder/embedding",
    ]
    assert "splits embed or vocab over the mesh, or 257, 385 are not divisible" in remarks[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipes.infer", "--print", "sharding"], "--print sharding needs a training run"),
        (
            ["recipes.pretrain_text", "--devices", "8"],
            "--devices can be used only with --print sharding",
        ),
        (["recipes.pretrain_text", "--print", "sharding", "--devices", "0"], "expected at least 1"),
        (
            [
                *("recipes.pretrain_text", "--print", "sharding", "--devices", "8", "--set"),
                "partitioner.num_partitions=3",
            ],
            "a multiple of fsdp × num_partitions = 1 × 3 = 3 devices, but there are 8",
        ),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err

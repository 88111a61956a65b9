"""What the text of a compiled program says, compared with figures computed by hand and XLA's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from mtf.cli.plan import hlo, work
from mtf.partitioning.chips import CHIPS

LOOP = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (param_0: f32[24,16,32], param_1: s32[], param_2: f32[8,16]) -> f32[8,32] {
  %param_2 = f32[8,16]{1,0} parameter(2)
  %param_0 = f32[24,16,32]{2,1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %slice = f32[1,16,32]{2,1,0} dynamic-slice(%param_0, %param_1), dynamic_slice_sizes={1,16,32}
  %kernel = f32[16,32]{1,0} bitcast(%slice)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%param_2, %kernel), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (carry: (s32[], f32[8,16], f32[24,16,32])) -> (s32[], f32[8,16], f32[24,16,32]) {
  %carry = (s32[]{:T(128)}, f32[8,16]{1,0}, /*index=2*/f32[24,16,32]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %x = f32[8,16]{1,0} get-tuple-element(%carry), index=1
  %layers = f32[24,16,32]{2,1,0} get-tuple-element(%carry), index=2
  %product = f32[8,32]{1,0} fusion(%layers, %i, %x), kind=kOutput, calls=%fused
  %reduced = f32[8,32]{1,0:T(8,128)S(1)} all-reduce(%product), channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true, to_apply=%add
  ROOT %next = (s32[], f32[8,16], f32[24,16,32]) tuple(%i, %x, %layers)
}

%condition (carry.1: (s32[], f32[8,16], f32[24,16,32])) -> pred[] {
  %carry.1 = (s32[], f32[8,16], f32[24,16,32]) parameter(0)
  %limit = s32[] constant(24)
  %at = s32[] get-tuple-element(%carry.1), index=0
  ROOT %less = pred[] compare(%at, %limit), direction=LT
}

ENTRY %main (p0: s32[], p1: f32[8,16], p2: f32[24,16,32]) -> f32[8,16] {
  %p0 = s32[] parameter(0)
  %p1 = f32[8,16]{1,0} parameter(1)
  %p2 = f32[24,16,32]{2,1,0} parameter(2)
  %start = (s32[], f32[8,16], f32[24,16,32]) tuple(%p0, %p1, %p2)
  %loop = (s32[], f32[8,16], f32[24,16,32]) while(%start), condition=%condition, body=%body
  %gathered = f32[16,16]{1,0} all-gather(%p1), channel_id=2, replica_groups=[2,2]<=[4], dimensions={0}, use_global_device_ids=true
  ROOT %result = f32[8,16]{1,0} get-tuple-element(%loop), index=1
}
"""  # noqa: E501


MESH = {"data": 2, "fsdp": 1, "model": 2}


def measure(text: str, chip: str | None = None) -> dict[str, Any]:
    """The work of a device of a mesh of 2 × 1 × 2, on two hosts."""
    figures = next((each for each in CHIPS if each.name == chip), None)
    return work.measure(hlo.parse(text), MESH, [0, 0, 1, 1], figures)


def flops(text: str) -> float:
    return float(measure(text)["flops"])


def compiled(function: Any, *shapes: tuple[int, ...]) -> Any:
    return (
        jax.jit(function).lower(*(jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes)).compile()
    )


@pytest.mark.parametrize("shapes", [((48, 64), (64, 32)), ((4, 48, 64), (4, 64, 32))])
def test_a_product_agrees_with_xla(shapes: tuple[tuple[int, ...], ...]) -> None:
    program = compiled(jnp.matmul, *shapes)
    analysis, found = program.cost_analysis(), measure(program.as_text())
    assert found["flops"] == analysis["flops"]
    assert found["moved_bytes"] == analysis["bytes accessed"]


def test_a_scan_over_layers_with_its_gradient() -> None:
    def loss(layers: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer), None), x, layers)[0].sum()

    program = compiled(jax.grad(loss), (6, 32, 32), (8, 32))
    # A product forwards and two backwards, but none for the gradient of the first input.
    products = 6 * 3 * 2 * 8 * 32 * 32
    assert products - 2 * 8 * 32 * 32 <= flops(program.as_text()) <= products


def test_a_loop_that_may_end_early() -> None:
    def run(x: jax.Array) -> jax.Array:
        def goes_on(carry: Any) -> jax.Array:
            return (carry[0] < 7) & (carry[1].max() < 1e9)

        return jax.lax.while_loop(goes_on, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))[1]

    assert flops(compiled(run, (16, 16)).as_text()) == 7 * 2 * 16**3


def test_a_loop_counts_as_often_as_it_repeats() -> None:
    # 24 layers of (8, 16) @ (16, 32): two FLOPs for each of 8 · 16 · 32 products.
    assert flops(LOOP) == 24 * 2 * 8 * 16 * 32


def test_the_number_of_repetitions_that_xla_notes_is_taken() -> None:
    noted = LOOP.replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"6"},"x":1}'
    )
    assert flops(noted) == 6 * 2 * 8 * 16 * 32


def test_a_body_that_does_two_repetitions_runs_half_as_often() -> None:
    result = "ROOT %next = (s32[], f32[8,16], f32[24,16,32]) tuple(%i,"
    counting = """%two = s32[] constant(2)
  %after = s32[] add(%i, %two)
  ROOT %next = (s32[], f32[8,16], f32[24,16,32]) tuple(%after,"""
    assert result in LOOP
    assert flops(LOOP.replace(result, counting)) == 12 * 2 * 8 * 16 * 32


def test_a_layer_of_a_stack_is_read_not_the_stack() -> None:
    # Each of the 24 products reads a (16, 32) layer, (8, 16) rows and the number of the layer, and
    # writes (8, 32), which the all-reduce reads; its result is in another memory space. At the end,
    # (8, 16) are gathered to (16, 16).
    per_layer = 4 * (16 * 32 + 8 * 16 + 1 + 8 * 32 + 8 * 32)
    assert measure(LOOP)["moved_bytes"] == 24 * per_layer + 4 * (8 * 16 + 16 * 16)


def test_collectives_have_the_mesh_axes_of_their_groups() -> None:
    reduced, gathered = measure(LOOP)["collectives"]
    assert reduced == {
        **{"kind": "all-reduce", "axes": "data", "group": 2, "hosts": 2, "times": 24},
        "operand_bytes": 24 * 4 * 8 * 32,
        # A ring of two sends half of the array twice: once to reduce it, once to gather it.
        "sent_bytes": 24 * 4 * 8 * 32,
        "network_bytes": 24 * 4 * 8 * 32,
    }
    assert gathered == {
        **{"kind": "all-gather", "axes": "model", "group": 2, "hosts": 1, "times": 1},
        # Each of the two sends its part to the other.
        **{"operand_bytes": 4 * 8 * 16, "sent_bytes": 4 * 8 * 16, "network_bytes": 0},
    }


def test_operations_take_the_longest_of_their_times() -> None:
    times = measure(LOOP, "v4")["times"]
    # The matrix units multiply these small matrices no faster than matrices of 128 x 128.
    product, reduced = 2 * 128**3 / 275e12, 4 * 8 * 32
    gathered = 4 * (8 * 16 + 16 * 16)
    # A collective takes at least the microsecond of a link.
    in_turn = 24 * (product + reduced / 300e9 + 1e-6) + 4 * 8 * 16 / 300e9 + 1e-6
    assert times["at_least"] == pytest.approx(in_turn)
    assert times["estimate"] is None
    moved = 24 * (4 * (16 * 32 + 8 * 16 + 1 + 8 * 32) + reduced) + gathered
    assert times["by_part"]["memory"] == pytest.approx(moved / 1200e9)


def test_the_estimate_is_in_cycles() -> None:
    noted = LOOP.replace(
        "calls=%fused", 'calls=%fused, backend_config={"window_config":{"estimated_cycles":"1050"}}'
    )
    # XLA has no cycles for the collectives.
    collectives = 24 * 4 * 8 * 32 / 300e9 + 4 * 8 * 16 / 300e9 + 25e-6
    assert measure(noted, "v4")["times"]["estimate"] == pytest.approx(24e-6 + collectives)


def test_cores_share_a_chip_and_hosts_the_network() -> None:
    whole, core, gpu = (measure(LOOP, chip)["times"]["by_part"] for chip in ("v4", "v3", "h200"))
    assert core["FLOPs"] == pytest.approx(whole["FLOPs"] * 275e12 / 61.5e12)
    assert gpu["FLOPs"] == pytest.approx(24 * 2 * 8 * 16 * 32 / 989e12)
    # The sum goes to the other host, what is gathered to the same one.
    assert gpu["network"] == pytest.approx(24 * 4 * 8 * 32 / 50e9)
    assert gpu["interconnect"] == pytest.approx(4 * 8 * 16 / 450e9 + 25 * 6.6e-6)


SCATTERED = """\
%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

%all-reduce-scatter (input: bf16[64,32]) -> bf16[32,32] {
  %input = bf16[64,32]{1,0} parameter(0)
  %whole = bf16[64,32]{1,0} all-reduce(%input), channel_id=3, replica_groups={{0,2},{1,3}}, use_global_device_ids=true, to_apply=%add
  %place = u32[] partition-id()
  %zero = u32[] constant(0)
  ROOT %part = bf16[32,32]{1,0} dynamic-slice(%whole, %place, %zero), dynamic_slice_sizes={32,32}
}

ENTRY %main (gradient: bf16[64,32]) -> bf16[32,32] {
  %gradient = bf16[64,32]{1,0} parameter(0)
  ROOT %scattered = bf16[32,32]{1,0} fusion(%gradient), kind=kCustom, calls=%all-reduce-scatter
}
"""  # noqa: E501


def test_an_all_reduce_in_a_fusion_that_keeps_a_slice_is_a_reduce_scatter() -> None:
    (scattered,) = measure(SCATTERED)["collectives"]
    assert (scattered["kind"], scattered["axes"]) == ("reduce-scatter", "data")
    assert scattered["operand_bytes"] == 2 * 64 * 32
    # Each of the two sends the half that the other keeps.
    assert scattered["sent_bytes"] == 2 * 32 * 32


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}", "data"),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_1'}", "model"),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0','axis_1'}", "data+model"),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", "model"),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", "data"),
        ("replica_groups=[1,4]<=[4]", "data+model"),
        ("replica_groups={}", "data+model"),
    ],
)
def test_all_forms_of_groups(groups: str, axes: str) -> None:
    changed = LOOP.replace("replica_groups={{0,2},{1,3}}", groups)
    found = measure(changed)["collectives"]
    assert next(each["axes"] for each in found if each["kind"] == "all-reduce") == axes


def program(line: str, *operands: str) -> str:
    parameters = "\n".join(f"  %p{i} = {shape} parameter({i})" for i, shape in enumerate(operands))
    return f"ENTRY %main () -> f32[] {{\n{parameters}\n  ROOT {line}\n}}\n"


def product(line: str, *operands: str) -> float:
    return flops(program(line, *operands))


def test_products_that_became_convolutions() -> None:
    # (4096, 512) @ (512, 384)
    assert (
        product(
            "%c = f32[4096,384] convolution(%p0, %p1), dim_labels=bf_io->bf",
            *("bf16[4096,512]", "bf16[512,384]"),
        )
        == 2 * 4096 * 512 * 384
    )
    # The form in which TPUs multiply matrices of a batch: the batch of 32 and the 6 heads are
    # spatial dimensions, with gaps between the inputs, so that each meets only its own matrix.
    assert (
        product(
            "%c = f32[32,6,256,128] convolution(%p0, %p1), window={size=32x6 stride=31x5 "
            "lhs_dilate=32x6}, dim_labels=01bf_01io->01bf",
            *("bf16[32,6,256,64]", "bf16[32,6,64,128]"),
        )
        == 2 * 32 * 6 * 256 * 64 * 128
    )


def test_products_of_libraries() -> None:
    assert (
        product(
            "%c = (bf16[64,32], s8[1024]) custom-call(%p0, %p1), "
            'custom_call_target="__cublas$gemm", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
            '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}',
            *("bf16[64,16]", "bf16[16,32]"),
        )
        == 2 * 64 * 16 * 32
    )


def test_heads_of_64_fill_half_of_the_matrix_units() -> None:
    def seconds(line: str, *operands: str) -> float:
        return float(measure(program(line, *operands), "v4")["times"]["by_part"]["FLOPs"])

    batched = "window={size=32x6 stride=31x5 lhs_dilate=32x6}, dim_labels=01bf_01io->01bf"
    # 192 products of (256, 64) with (64, 512), and of (256, 512) with (512, 64).
    full = 192 * 2 * 256 * 128 * 512 / 275e12
    logits = f"%c = f32[32,6,256,512] convolution(%p0, %p1), {batched}"
    values = f"%c = f32[32,6,256,64] convolution(%p0, %p1), {batched}"
    queries, keys = "bf16[32,6,256,64]", "bf16[32,6,64,512]"
    assert seconds(logits, queries, keys) == pytest.approx(full)
    weights, value = "bf16[32,6,256,512]", "bf16[32,6,512,64]"
    assert seconds(values, weights, value) == pytest.approx(full)
    heads = "window={size=1x6 pad=0_0x5_5 rhs_reversal=0x1}, dim_labels=0bf1_1oi0->0b1f"
    # The 6 heads of 64 are the columns of one product of (64 * 256, 768) with (768, 384).
    projected = f"%c = bf16[64,256,6,64] convolution(%p0, %p1), {heads}"
    found = seconds(projected, "bf16[64,256,768,1]", "bf16[6,64,768,1]")
    assert found == pytest.approx(2 * 64 * 256 * 768 * 384 / 275e12)


def test_attention_of_cudnn() -> None:
    def attention(target: str) -> float:
        return product(
            "%c = (bf16[2,512,8,64], u8[64]) custom-call(%p0, %p0), "
            f'custom_call_target="{target}", '
            'backend_config={"cudnn_fmha_backend_config":{"intermediate_tensor_shape":'
            '{"element_type":"BF16","dimensions":["2","8","512","256"]}}}',
            "bf16[2,512,8,64]",
        )

    # Forward: queries with keys, weights with values. Backward: five products.
    one = 2 * 2 * 8 * 512 * 256 * 64
    assert attention("__cudnn$fmhaScaleBiasSoftmax") == 2 * one
    assert attention("__cudnn$fmhaScaleBiasSoftmaxBackward") == 5 * one

"""What the text of a compiled program says, compared with figures computed by hand."""

from __future__ import annotations

import pytest

from mtf.plan import hlo, work

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


def test_a_loop_counts_as_often_as_it_repeats() -> None:
    # 24 layers of (8, 16) @ (16, 32): two FLOPs for each of 8 · 16 · 32 products.
    assert work.flops(hlo.parse(LOOP)) == 24 * 2 * 8 * 16 * 32


def test_the_number_of_repetitions_that_xla_notes_is_taken() -> None:
    noted = LOOP.replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"6"},"x":1}'
    )
    assert work.flops(hlo.parse(noted)) == 6 * 2 * 8 * 16 * 32


def test_a_body_that_does_two_repetitions_runs_half_as_often() -> None:
    result = "ROOT %next = (s32[], f32[8,16], f32[24,16,32]) tuple(%i,"
    counting = """%two = s32[] constant(2)
  %after = s32[] add(%i, %two)
  ROOT %next = (s32[], f32[8,16], f32[24,16,32]) tuple(%after,"""
    assert result in LOOP
    assert work.flops(hlo.parse(LOOP.replace(result, counting))) == 12 * 2 * 8 * 16 * 32


def test_a_layer_of_a_stack_is_read_not_the_stack() -> None:
    # Each of the 24 products reads a (16, 32) layer, (8, 16) rows and the number of the layer, and
    # writes (8, 32), which the all-reduce reads; its result is in another memory space. At the end,
    # (8, 16) are gathered to (16, 16).
    per_layer = 4 * (16 * 32 + 8 * 16 + 1 + 8 * 32 + 8 * 32)
    assert work.moved_bytes(hlo.parse(LOOP)) == 24 * per_layer + 4 * (8 * 16 + 16 * 16)


def test_collectives_have_the_mesh_axes_of_their_groups() -> None:
    mesh = {"data": 2, "fsdp": 1, "model": 2}
    reduced, gathered = work.collectives(hlo.parse(LOOP), mesh, [0, 0, 1, 1])
    assert (reduced.kind, reduced.axes, reduced.hosts, reduced.times) == (
        "all-reduce",
        "data",
        2,
        24,
    )
    assert reduced.operand_bytes == 24 * 4 * 8 * 32
    # A ring of two sends half of the array twice: once to reduce it, once to gather it.
    assert reduced.sent_bytes == reduced.operand_bytes
    assert (gathered.kind, gathered.axes, gathered.hosts) == ("all-gather", "model", 1)
    assert gathered.operand_bytes == 4 * 8 * 16
    # Each of the two sends its part to the other.
    assert gathered.sent_bytes == 4 * 8 * 16
    assert gathered.network_bytes == 0


SCATTERED = """\
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
    mesh = {"data": 2, "fsdp": 1, "model": 2}
    (scattered,) = work.collectives(hlo.parse(SCATTERED), mesh, [0] * 4)
    assert (scattered.kind, scattered.axes, scattered.times) == ("reduce-scatter", "data", 1)
    assert scattered.operand_bytes == 2 * 64 * 32
    # Each of the two sends the half that the other keeps.
    assert scattered.sent_bytes == 2 * 32 * 32


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
    found = work.collectives(hlo.parse(changed), {"data": 2, "fsdp": 1, "model": 2}, [0] * 4)
    assert next(each.axes for each in found if each.kind == "all-reduce") == axes


def product(line: str, *operands: str) -> float:
    parameters = "\n".join(f"  %p{i} = {shape} parameter({i})" for i, shape in enumerate(operands))
    return work.flops(hlo.parse(f"ENTRY %main () -> f32[] {{\n{parameters}\n  ROOT {line}\n}}\n"))


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


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("f32", 4), ("bf16", 2), ("pred", 1), ("s8", 1), ("u64", 8), ("f8e4m3fn", 1)],
)
def test_sizes_of_types(dtype: str, size: int) -> None:
    (array,) = hlo.arrays(f"{dtype}[3,5]{{1,0:T(8,128)}}")
    assert array.num_bytes == 15 * size

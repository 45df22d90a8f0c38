from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.exactness import Exactness
from qgraph.model import load
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import parse_spec
from qgraph.transforms.recoding import Blocks, CodeTarget, Repack
from qgraph.transforms.weights import recoded

RANDOM = np.random.default_rng
FOURS = np.float32([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])


def constant(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.Tensor(np.asarray(array), name=name)
    shape = ir.Shape(tensor.shape)
    return ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=shape)


def stored(
    kind: str,
    codes: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None = None,
    *,
    axis: int = 0,
    block_size: int = 0,
    clip: tuple[int, int] | None = None,
    opset: int = 21,
) -> ir.Model:
    """``y = x + DequantizeLinear([Clip](codes))``; codes are given as numbers."""
    dtype = numpy_dtype(kind)
    whole = dtype if kind.startswith("FLOAT") else np.int32
    values = [constant("c", codes.astype(whole).astype(dtype)), constant("s", scale)]
    if zero_point is not None:
        values.append(constant("z", zero_point.astype(np.int32).astype(dtype)))
    nodes = []
    first, initializers = values[0], list(values)
    if clip is not None:
        bounds = [constant(f"b{i}", np.array(b, dtype)) for i, b in enumerate(clip)]
        initializers += bounds
        nodes.append(ir.node("Clip", [first, *bounds]))
        first = nodes[0].outputs[0]
    attributes = {"axis": axis} if scale.size > 1 else {}
    attributes |= {"block_size": block_size} if block_size else {}
    nodes.append(ir.node("DequantizeLinear", [first, *values[1:]], attributes, name="dq"))
    result = ir.DataType.from_numpy(scale.dtype)
    x = ir.Value(name="x", type=ir.TensorType(result), shape=ir.Shape(codes.shape))
    nodes.append(ir.node("Add", [x, nodes[-1].outputs[0]]))
    y = nodes[-1].outputs[0]
    y.name, y.type, y.shape = "y", ir.TensorType(result), ir.Shape(codes.shape)
    graph = ir.Graph(
        [x], [y], nodes=nodes, initializers=initializers, opset_imports={"": opset}, name="g"
    )
    return ir.Model(graph, ir_version=14 if opset > 27 else 13 if opset > 23 else 10)


def scales(shape, axis, block_size, *, per="axis", seed=1):
    sizes: tuple[int, ...] = () if per == "tensor" else (shape[axis],)
    if per == "block":
        sizes = tuple(-(-n // block_size) if i == axis else n for i, n in enumerate(shape))
    return np.asarray(RANDOM(seed).uniform(0.5, 2, sizes), np.float32)


def apply(model: ir.Model, step: Repack | str, tmp_path=None) -> tuple[ir.Model, Report]:
    """Apply and hold the pass to what it promises: equal bits of all values, valid, done."""
    if isinstance(step, str):
        step = parse_spec(step)
    before, after = load(model).clone(), load(model).clone()
    report = after.apply(step)
    onnx.checker.check_model(ir.to_proto(after.ir), full_check=True)
    dtype = model.graph.inputs[0].dtype.numpy()
    x = {"x": np.zeros(tuple(model.graph.inputs[0].shape.numpy()), dtype)}
    expected = before.run(x, backend="numpy")["y"]
    found = after.run(x, backend="numpy")["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert after.clone().apply(step).count(SiteStatus.CHANGED) == 0
    return after.ir, report


def only(model: ir.Model) -> tuple[str, list[int], bool, dict[str, int]]:
    """Type of the codes, shape of the scales, whether zero points are there, attributes."""
    (node,) = [n for n in model.graph if n.op_type == "DequantizeLinear"]
    attributes = {name: a.value for name, a in node.attributes.items()}
    point = len(node.inputs) > 2 and node.inputs[2] is not None
    return node.inputs[0].dtype.name, list(node.inputs[1].shape.numpy()), point, attributes


CASES = [
    # type, lowest and highest code, zero point or its range, opset, type afterwards, zero point
    ("INT8", -8, 7, None, 21, "INT4", False),
    ("INT8", -7, 7, None, 21, "INT4", False),
    ("INT8", -9, 7, None, 21, "INT8", False),
    ("INT8", 0, 15, None, 21, "UINT4", False),
    ("INT8", -2, 1, None, 21, "INT4", False),
    ("INT8", -2, 1, None, 25, "INT2", False),
    ("INT8", 0, 3, None, 25, "UINT2", False),
    ("UINT8", 120, 135, 128, 21, "INT4", False),
    ("UINT8", 121, 136, 128, 21, "UINT4", True),
    ("UINT8", 100, 110, (103, 107), 21, "INT4", False),
    ("UINT8", 0, 15, (0, 15), 21, "UINT4", True),
    ("UINT8", 0, 255, 128, 21, "UINT8", True),
    ("INT16", -100, 100, None, 21, "INT8", False),
    ("UINT16", 1000, 1200, 1100, 21, "INT8", False),
    ("INT32", -100, 100, None, 21, "INT8", False),
    ("UINT4", 0, 3, 0, 25, "UINT2", False),
    ("INT4", -8, 7, None, 25, "INT4", False),
]


@pytest.mark.cases(fast=25, slow=63)
@pytest.mark.parametrize("per", ["tensor", "axis", "block"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}-{c[3]}-{c[4]}")
def test_the_smallest_type_that_holds_the_codes(case, axis, per):
    kind, low, high, point, opset, expected, has_point = case
    shape = (24, 40)
    codes = RANDOM(0).integers(low, high + 1, shape)
    codes.flat[:2] = low, high
    scale = scales(shape, axis, 8, per=per)
    points = None
    if isinstance(point, tuple):
        points = RANDOM(2).integers(point[0], point[1] + 1, scale.shape)
    elif point is not None:
        points = np.full(scale.shape, point)
    size = 8 if per == "block" else 0
    if isinstance(point, tuple) and per == "tensor":
        points = np.array(point[0])
        expected, has_point = ("INT4" if low else "UINT4"), False
    model = stored(kind, codes, scale, points, axis=axis, block_size=size, opset=opset)
    after, report = apply(model, Repack(opset=opset))
    found, shape_after, point_after, _ = only(after)
    assert (found, point_after) == (expected, has_point)
    assert shape_after == list(scale.shape)
    changed = report.count(SiteStatus.CHANGED)
    assert changed == (expected != kind)
    if changed:
        row = report.sites[0].size_summary
        assert row.tally.elements == row.tally.unchanged == codes.size
        points_before = 0 if points is None or not points.any() else points.size
        points_after = scale.size if has_point else 0
        assert row.bytes_before - scale.nbytes == -(
            -(codes.size + points_before) * FORMATS[kind].bits // 8
        )
        assert row.bytes_after - scale.nbytes == codes.size * FORMATS[expected].bits // 8 - (
            -points_after * FORMATS[expected].bits // 8
        )
        assert report.exactness is Exactness.BITS


@pytest.mark.cases(fast=14)
@pytest.mark.parametrize("per", ["tensor", "axis", "block"])
@pytest.mark.parametrize(
    ("kind", "low", "high", "point", "to", "expected_point"),
    [
        ("UINT8", 0, 255, 128, "int8", 0),
        ("UINT8", 0, 255, 100, "int8", -28),
        ("INT8", -128, 127, None, "uint8", 128),
        ("INT8", -128, 127, 3, "uint8", 131),
        ("INT4", -8, 7, None, "int8", 0),
        ("UINT4", 0, 15, 8, "int8", 0),
        ("UINT4", 0, 15, 15, "uint8", 15),
        ("INT4", -8, 7, None, "uint4", 8),
        ("UINT4", 0, 15, 8, "int4", 0),
        ("INT4", -8, 7, None, "fp8", 0),
        ("UINT4", 0, 15, 7, "fp8", 0),
        ("INT8", -4, 4, None, "fp4", 0),
        ("INT2", -2, 1, None, "int4", 0),
        ("INT8", -50, 50, None, "int16", 0),
    ],
)
def test_another_type_of_the_same_values(kind, low, high, point, to, expected_point, per):
    shape = (16, 24)
    codes = RANDOM(0).integers(low, high + 1, shape)
    if to == "fp4":
        codes = np.where(codes == 5, 4, codes)
    scale = scales(shape, 1, 8, per=per)
    points = None if point is None else np.full(scale.shape, point)
    model = stored(kind, codes, scale, points, axis=1, block_size=8 * (per == "block"), opset=25)
    after, report = apply(model, f"repack{{to={to}}}")
    assert report.count(SiteStatus.CHANGED) == 1
    found, _, _, _ = only(after)
    names = {"fp8": "FLOAT8E4M3FN", "fp4": "FLOAT4E2M1"}
    assert found == names.get(to, to.upper())
    (node,) = [n for n in after.graph if n.op_type == "DequantizeLinear"]
    point_after = node.inputs[2].const_value.numpy() if len(node.inputs) > 2 else np.zeros(1)
    assert set(point_after.astype(int).ravel().tolist()) == {expected_point}


@pytest.mark.parametrize(
    ("kind", "to", "factor"),
    [
        ("FLOAT4E2M1", "int8", 2),
        ("FLOAT4E2M1", "fp8", 1),
        ("FLOAT4E2M1", "fp6-e2m3", 1),
        ("FLOAT8E4M3FN", "int8", 2),
        ("FLOAT6E3M2", "int16", 2),
        ("FLOAT8E4M3FN", "fp4", 1),
        ("FLOAT8E5M2", "smallest", 1),
        ("FLOAT8E4M3FN", "smallest", 1),
    ],
)
@pytest.mark.parametrize("per", ["tensor", "axis", "block"])
def test_minifloats_that_have_few_values(kind, to, factor, per):
    shape = (16, 24)
    scale = scales(shape, 1, 8, per=per)
    model = stored(
        kind,
        RANDOM(0).choice(FOURS, shape),
        scale,
        axis=1,
        block_size=8 * (per == "block"),
        opset=28,
    )
    after, report = apply(model, f"repack{{to={to},scales=false}}")
    assert report.count(SiteStatus.CHANGED) == 1
    (node,) = [n for n in after.graph if n.op_type == "DequantizeLinear"]
    np.testing.assert_array_equal(node.inputs[1].const_value.numpy() * np.float32(factor), scale)
    assert report.exactness is (Exactness.VALUES if factor > 1 else Exactness.BITS)


def test_scales_of_which_a_power_of_two_is_no_normal_number_stay():
    scale = np.float32(1.2e-38)
    model = stored("FLOAT4E2M1", RANDOM(0).choice(FOURS, (4, 4)), scale, opset=23)
    _, report = apply(model, "repack{to=int8}")
    assert [s.outcome for s in report.sites] == [SiteStatus.REFUSED]


@pytest.mark.parametrize(
    ("varies", "expected"),
    [
        ("nothing", ([], {})),
        ("blocks", ([6, 24], {"axis": 0, "block_size": 3})),
        ("pairs", ([3, 24], {"axis": 0, "block_size": 6})),
        ("all", ([6, 24], {"axis": 0, "block_size": 3})),
    ],
)
def test_blocked_scales_that_agree_are_merged(varies, expected):
    shape = (18, 24)
    scale = np.full((6, 24), 0.37, np.float32)
    if varies == "blocks":
        scale *= np.arange(1, 7, dtype=np.float32)[:, None]
    if varies == "pairs":
        scale *= np.repeat(np.arange(1, 4, dtype=np.float32), 2)[:, None]
    if varies == "all":
        scale = RANDOM(0).uniform(0.5, 2, (6, 24)).astype(np.float32)
    model = stored("INT8", RANDOM(0).integers(-128, 128, shape), scale, block_size=3)
    after, report = apply(model, Repack())
    _, sizes, _, attributes = only(after)
    assert (sizes, attributes) == expected
    assert report.count(SiteStatus.CHANGED) == (varies in ("nothing", "pairs"))
    kept, report = apply(model, Repack(scales=False))
    assert only(kept)[1] == [6, 24]
    assert report.count(SiteStatus.CHANGED) == 0


def test_blocks_of_a_channel_that_agree_are_one_scale_per_channel():
    scale = np.repeat(scales((24,), 0, 0, seed=5)[None], 4, axis=0)
    model = stored("INT8", RANDOM(0).integers(-128, 128, (16, 24)), scale, block_size=4)
    after, _ = apply(model, Repack())
    assert only(after)[1:] == ([24], False, {"axis": 1})
    points = RANDOM(1).integers(-3, 4, (4, 24))
    model = stored("INT8", RANDOM(0).integers(-128, 128, (16, 24)), scale, points, block_size=4)
    after, _ = apply(model, Repack())
    assert only(after)[1:] == ([4, 24], True, {"axis": 0, "block_size": 4})
    points = np.repeat(points[:1], 4, axis=0)
    model = stored("INT8", RANDOM(0).integers(-128, 128, (16, 24)), scale, points, block_size=4)
    after, _ = apply(model, Repack())
    assert only(after)[1:] == ([24], True, {"axis": 1})


def test_channels_that_agree_are_one_scale_unless_a_zero_point_differs():
    codes, scale = RANDOM(0).integers(-128, 128, (6, 5)), np.full(6, 0.3, np.float32)
    after, _ = apply(stored("INT8", codes, scale), Repack())
    assert only(after)[1:] == ([], False, {})
    after, _ = apply(stored("INT8", codes, scale, np.arange(6)), Repack())
    assert only(after)[1:] == ([6], True, {"axis": 0})


@pytest.mark.parametrize(("shape", "axis"), [((24, 10), 0), ((6, 16), 1), ((4, 8, 3), 1)])
@pytest.mark.parametrize("points", [False, True])
def test_blocks_become_rows_for_old_opsets(shape, axis, points):
    scale = scales(shape, axis, 4, per="block")
    point = RANDOM(4).integers(0, 16, scale.shape) if points else None
    kind, low = ("UINT4", 0) if points else ("INT4", -8)
    codes = RANDOM(0).integers(low, low + 16, shape)
    model = stored(kind, codes, scale, point, axis=axis, block_size=4)
    after, report = apply(model, Repack(to=CodeTarget.INT8, blocks=Blocks.ROWS, opset=13))
    assert after.opset_imports[""] == 13
    assert report.notes == ["opset lowered from 21 to 13"]
    names = [node.op_type for node in after.graph]
    inner = axis < len(shape) - 1
    expected = ["Reshape", "Transpose", "Reshape"] if inner else ["Reshape"]
    assert names == ["DequantizeLinear", *expected, "Add"]


@pytest.mark.runtime
def test_blocks_as_rows_run_in_onnx_runtime(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    scale = scales((24, 10), 0, 4, per="block")
    model = stored("INT4", RANDOM(0).integers(-8, 8, (24, 10)), scale, axis=0, block_size=4)
    after, _ = apply(model, Repack(to=CodeTarget.INT8, blocks=Blocks.ROWS, opset=13))
    x = {"x": np.zeros((24, 10), np.float32)}
    expected = load(model).run(x, backend="numpy")["y"]
    for each in (model, after):
        load(each).save(tmp_path / "m.onnx")
        session = runtime.InferenceSession(
            str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_array_equal(session.run(None, x)[0], expected)


def test_ragged_blocks_cannot_be_rows():
    scale = scales((10, 6), 0, 4, per="block")
    model = stored("INT4", RANDOM(0).integers(-8, 8, (10, 6)), scale, block_size=4)
    _, report = apply(model, Repack(to=CodeTarget.INT8, blocks=Blocks.ROWS, opset=13))
    (site,) = report.sites
    assert site.outcome is SiteStatus.REFUSED
    assert site.reason == "INT8 needs opset 21, above 13; allow opset 21"


def test_a_clip_that_no_code_needs_is_dropped_and_one_that_is_needed_is_applied():
    inside = RANDOM(0).integers(-3, 4, (8, 8))
    after, report = apply(stored("INT8", inside, np.float32(0.5), clip=(-4, 3)), Repack())
    assert [node.op_type for node in after.graph] == ["DequantizeLinear", "Add"]
    assert only(after)[0] == "INT4"
    assert report.count(SiteStatus.CHANGED) == 1
    beyond = RANDOM(0).integers(-100, 100, (8, 8))
    after, _ = apply(stored("INT8", beyond, np.float32(0.5), clip=(-4, 3)), Repack())
    assert only(after)[0] == "INT4"
    after, _ = apply(
        stored("INT8", beyond, np.float32(0.5), clip=(-4, 3)), Repack(to=CodeTarget.INT8)
    )
    assert [node.op_type for node in after.graph] == ["DequantizeLinear", "Add"]


def test_types_beyond_the_limit_are_named():
    model = stored("INT4", RANDOM(0).integers(-2, 2, (8, 8)), np.float32(0.5))
    _, report = apply(model, Repack())
    (site,) = report.sites
    assert site.outcome is SiteStatus.KEPT
    assert site.reason == "the smaller INT2 needs opset 25, above 21; allow opset 25"
    _, report = apply(model, Repack(to=CodeTarget.INT2))
    (site,) = report.sites
    assert site.outcome is SiteStatus.REFUSED
    assert site.reason == "INT2 needs opset 25, above 21; allow opset 25"


@pytest.mark.parametrize(
    ("low", "high", "kind", "point"),
    [
        (120, 127, "INT8", None),  # the zero point would be 128 below the codes of INT4
        (-128, -120, "INT8", None),
        (3, 12, "UINT4", None),
        (-3, 12, "INT4", -5),
        (-1, 14, "INT4", -7),
    ],
)
def test_a_zero_point_has_to_fit_the_type_too(low, high, kind, point):
    codes = np.append(RANDOM(3).integers(low, high + 1, (6, 6)), [[low, high] * 3], axis=0)
    model = stored("INT8", codes, np.float32(0.5))
    after, _ = apply(model, Repack(opset=23))
    found, _, has_point, _ = only(after)
    assert (found, has_point) == (kind, point is not None)
    if point is not None:
        decode = next(node for node in after.graph if node.op_type == "DequantizeLinear")
        assert int(decode.inputs[2].const_value.numpy().astype(np.int32)) == point


def test_codes_that_do_not_fit_are_refused():
    model = stored("INT8", RANDOM(0).integers(-100, 100, (8, 8)), np.float32(0.5))
    _, report = apply(model, Repack(to=CodeTarget.INT4))
    (site,) = report.sites
    assert site.outcome is SiteStatus.REFUSED
    assert "do not fit INT4; use a wider type" in site.reason


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_type_of_the_scales_stays(dtype):
    scale = scales((8, 6), 0, 0).astype(dtype)
    after, _ = apply(stored("INT8", RANDOM(0).integers(-8, 8, (8, 6)), scale), Repack())
    (node,) = [n for n in after.graph if n.op_type == "DequantizeLinear"]
    assert node.inputs[1].dtype.numpy() == dtype
    assert node.inputs[0].dtype.name == "INT4"


def test_codes_that_something_else_uses_stay():
    model = stored("INT8", RANDOM(0).integers(-8, 8, (8, 6)), np.float32(0.5))
    codes = model.graph.initializers["c"]
    node = ir.node("Cast", [codes], {"to": 1})
    node.outputs[0].name = "k"
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), codes.shape
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    _, report = apply(model, Repack())
    (site,) = report.sites
    assert site.outcome is SiteStatus.KEPT
    assert site.reason.startswith("its codes are also used by Cast, which would keep them; ")


def test_codes_of_two_nodes_are_stored_once():
    model = stored("INT8", RANDOM(0).integers(-8, 8, (8, 6)), np.float32(0.5))
    graph = model.graph
    other = ir.node("DequantizeLinear", [graph.initializers["c"], graph.initializers["s"]])
    add = ir.node("Add", [graph[-1].outputs[0], other.outputs[0]])
    add.outputs[0].name = "w"
    add.outputs[0].type, add.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([8, 6])
    graph.extend([other, add])
    graph.outputs.append(add.outputs[0])
    after, report = apply(model, Repack())
    assert report.count(SiteStatus.CHANGED) == 2
    kinds = [value.dtype.name for value in after.graph.initializers.values()]
    assert kinds.count("INT4") == 1
    assert "INT8" not in kinds


def test_two_levels_of_scales_are_left_alone_and_their_codes_widened():
    scale = RANDOM(0).uniform(0.5, 2, (2, 6)).astype(numpy_dtype("FLOAT8E4M3FN"))
    model = stored(
        "FLOAT4E2M1",
        RANDOM(0).choice(FOURS, (32, 6)),
        np.ones((2, 6), np.float32),
        block_size=16,
        opset=23,
    )
    graph = model.graph
    inner = ir.node("DequantizeLinear", [constant("u", scale), constant("g", np.float32(0.25))])
    inner.outputs[0].name = "computed"
    inner.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    for value in inner.inputs:
        graph.register_initializer(value)
    decode = graph[0]
    graph.insert_before(decode, inner)
    decode.replace_input_with(1, inner.outputs[0])
    del graph.initializers["s"]
    after, report = apply(model, Repack(to=CodeTarget.FP8))
    assert [s.outcome for s in report.sites] == [SiteStatus.CHANGED, SiteStatus.KEPT]
    assert [n.inputs[0].dtype.name for n in after.graph if n.op_type != "Add"] == [
        "FLOAT8E4M3FN",
        "FLOAT8E4M3FN",
    ]
    _, report = apply(model, Repack(to=CodeTarget.INT8))
    assert [(s.node, s.outcome) for s in report.sites if s.node == "dq"] == [
        ("dq", SiteStatus.REFUSED)
    ]


@pytest.mark.parametrize(
    ("kind", "to", "point"), [("uint8", "int8", 128), ("uint8", "int8", 5), ("int8", "uint8", -3)]
)
@pytest.mark.parametrize("clipped", [False, True])
def test_codes_of_activations_are_counted_from_elsewhere(check_pass, kind, to, point, clipped):
    clip = "k = Clip (q, l, h)" if clipped else "k = Identity (q)"
    low, high = (point - 4, point + 4) if clipped else (0, 0)
    if not clipped:
        clip, last = "", "q"
    else:
        last = "k"
    text = f"""<ir_version: 8, opset_import: ["": 13]>
        g (float[700] x) => (float[700] y)
        <float s = {{0.1}}, {kind} z = {{{point}}}, {kind} l = {{{low}}}, {kind} h = {{{high}}}> {{
            q = QuantizeLinear (x, s, z)
            {clip}
            y = DequantizeLinear ({last}, s, z)
        }}"""
    names = ["QuantizeLinear", *(["Clip"] if clipped else []), "DequantizeLinear"]
    model, report = check_pass(
        parse_spec(f"repack{{to={to}}}"), text, ops=names, exactly=Exactness.BITS
    )
    assert report.count(SiteStatus.CHANGED) == 1
    shift = -128 if to == "int8" else 128
    for node in model.nodes("QuantizeLinear", "DequantizeLinear"):
        value = node.inputs[2].const_value.numpy()
        assert (value.dtype, int(value)) == (np.dtype(to), point + shift)


def test_codes_of_activations_that_are_cast_are_left_alone(check_pass):
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (float[700] x) => (float[700] y) <float s = {1}, uint8 z = {0}, float h = {0.5}> {
            q = QuantizeLinear (x, s, z)
            c = Cast <to = 1> (q)
            y = Mul (c, h)
        }"""
    _, report = check_pass(
        parse_spec("repack{to=int8}"), text, ops=["QuantizeLinear", "Cast", "Mul"]
    )
    assert report.count(SiteStatus.CHANGED) == 0


def test_activations_stay_where_they_are_not_asked_for_or_their_codes_are_used():
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (float[7] x) => (float[7] y, uint8[7] q)
        <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }"""
    model = load(ir.from_onnx_text(text))
    assert model.apply(parse_spec("repack{to=int8}")).count(SiteStatus.CHANGED) == 0
    text = text.replace(", uint8[7] q", "")
    model = load(ir.from_onnx_text(text))
    assert model.apply(parse_spec("repack{to=int8,activations=false}")).sites == []
    assert model.apply(parse_spec("repack")).sites == []
    assert model.apply(parse_spec("repack{to=int8}")).count(SiteStatus.CHANGED) == 1


def test_lazy_and_eager_files_are_the_same_and_a_changed_file_is_noticed(monkeypatch, tmp_path):
    scale = scales((64, 24), 0, 8, per="block")
    points = RANDOM(1).integers(110, 118, scale.shape)
    codes = RANDOM(0).integers(110, 118, (64, 24))
    source = stored("UINT8", codes, scale, points, block_size=8)
    load(source).save(tmp_path / "source.onnx", external_data=True)
    for name, limit in (("eager", 1 << 30), ("lazy", 0)):
        monkeypatch.setattr(recoded, "LAZY_BYTES", limit)
        model = load(tmp_path / "source.onnx")
        report = model.apply(Repack())
        assert report.count(SiteStatus.CHANGED) == 1
        model.save(tmp_path / f"{name}.onnx")
        assert report.sites[0].size_summary.tally.unchanged == codes.size
    eager, lazy = (load(tmp_path / f"{name}.onnx") for name in ("eager", "lazy"))
    for name, value in eager.ir.graph.initializers.items():
        assert value.const_value.tobytes() == lazy.ir.graph.initializers[name].const_value.tobytes()
    model = load(tmp_path / "source.onnx")
    model.apply(Repack())
    (data,) = [path for path in tmp_path.iterdir() if path.name.startswith("source.onnx.data")]
    data.write_bytes(b"\0" * data.stat().st_size)
    with pytest.raises(ModelError, match="elements would change as INT4"):
        model.save(tmp_path / "never.onnx")
    assert not (tmp_path / "never.onnx").exists()


def test_an_opset_that_a_node_needs_is_not_lowered():
    model = stored("INT8", RANDOM(0).integers(-8, 8, (8, 6)), np.float32(0.5))
    gelu = ir.node("Gelu", [model.graph[-1].outputs[0]])
    gelu.outputs[0].name = "k"
    gelu.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    gelu.outputs[0].shape = ir.Shape([8, 6])
    model.graph.append(gelu)
    model.graph.outputs.append(gelu.outputs[0])
    after = load(model)
    report = after.apply(Repack(to=CodeTarget.INT8, opset=13))
    assert after.ir.opset_imports[""] == 21
    assert report.notes[0].startswith("opset 21 stays, above 13: Gelu")


def test_a_function_below_the_opset_of_the_model_is_raised_as_far_as_its_codes_need():
    model = load(
        ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["": 21, "local": 1]>
            g (float[2, 4] x) => (float[2, 3] y) { y = local.f (x) }
            <domain: "local", opset_import: ["": 13]>
            f (x) => (y) {
                w = Constant <value = int8[4, 3] {1, -2, 3, -4, 5, -6, 7, -8, 1, 2, 3, 4}> ()
                s = Constant <value = float {0.5}> ()
                d = DequantizeLinear (w, s)
                y = MatMul (x, d)
            }"""
        )
    )
    x = RANDOM(0).normal(size=(2, 4)).astype(np.float32)
    before = model.run({"x": x}, backend="numpy")["y"]
    report = model.apply(Repack(to="INT4"))
    (function,) = model.ir.functions.values()
    assert report.count(SiteStatus.CHANGED) == 1
    assert report.notes == ["opset raised from 13 to 21"]
    assert function.opset_imports[""] == 21
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], before)


def test_only_weights_of_the_named_operators_are_stored_anew():
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 2, 3, 3] x, float[4, 2] v) => (float[1, 1, 3, 3] y, float[4, 1] u)
        <int4[1, 2, 1, 1] c = {120}, float s = {0.5}, int4[1, 2] k = {120}> {
            w = DequantizeLinear (c, s)
            y = Conv (x, w)
            d = DequantizeLinear (k, s)
            t = Transpose (d)
            u = MatMul (v, t)
        }"""
    for operators, kinds in (("Conv*|Gemm", ["INT8", "INT4"]), ("MatMul", ["INT4", "INT8"])):
        model = load(ir.from_onnx_text(text))
        model.apply(Repack(to="int8", activations=False, operators=operators))
        found = [node.inputs[0].dtype.name for node in model.nodes("DequantizeLinear")]
        assert found == kinds

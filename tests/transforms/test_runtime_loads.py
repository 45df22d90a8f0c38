"""What ONNX Runtime loads at its default optimizations before a pass, it loads after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import Model, load
from qgraph.transforms import TRANSFORMS, parse_spec
from qgraph.transforms.base import options_of

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
MODELS = sorted([*SHARED.glob("*.onnx"), *SHARED.glob("field/*.onnx")])
SMALL = ["brev_mha_block_qcdq", "min_scalar_const_fold", "tf2onnx_fq8", "torchao_int8wo"]

MORE = [
    "fold-weights{scale_type=smallest}",
    "lower-integer-operators{form=qdq}",
    "lower-mat-mul-n-bits{signed=true}",
    "quantize-weights{format=int4,min_elements=1}",
    "quantize-weights{format=uint8,granularity=tensor,min_elements=1}",
    "raise-integer-operators{microsoft=true}",
    "raise-microsoft{all=true}",
    "repack{blocks=rows}",
    "repack{to=int8}",
    "repack{to=uint8}",
]
PASSES = [
    cls.name for cls in TRANSFORMS if not any(option.is_required for option in options_of(cls))
]
SPECS = sorted([*PASSES, *MORE])
WITHOUT_CONVERSION = "QuantLSTMCell"
"""An operator that is no quantizer, and that no runtime has."""


def fault(model: Model) -> str | None:
    """Return why ONNX Runtime does not load a model; None if it does."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    content = model.to_proto().SerializeToString()
    try:
        runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    return None


def faults_after(model: Model, specs: list[str]) -> dict[str, str]:
    """Return the passes after which a model is not loaded, and why."""
    found = {}
    for spec in specs:
        after = model.clone()
        if after.apply(parse_spec(spec)).modified and (reason := fault(after)):
            found[spec] = reason
    return found


def faults(path: Path, specs: list[str]) -> dict[str, str]:
    """Return what goes wrong with a model and with what it becomes in two dialects."""
    model = load(path)
    if any(node.op_type == WITHOUT_CONVERSION for node in model.nodes()):
        return {}
    found = {}
    bases = {} if fault(model) else {"": model}
    for dialect in ("qdq", "onnx"):
        converted = model.clone()
        if not converted.apply(parse_spec(f"convert{{to={dialect}}}")).modified:
            continue
        if reason := fault(converted):
            found[dialect] = reason
        elif dialect == "qdq":
            bases[dialect] = converted
    for name, base in bases.items():
        found |= {f"{name} {spec}": text for spec, text in faults_after(base, specs).items()}
    return found


@pytest.mark.runtime
@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_real_models_load_after_every_pass(path: Path) -> None:
    assert faults(path, SPECS) == {}


@pytest.mark.cases(fast=2)
@pytest.mark.runtime
@pytest.mark.parametrize("name", SMALL)
def test_small_models_load_after_passes(shared: Path, name: str) -> None:
    specs = ["fold-weights", "repack", "quantize-weights{min_elements=1}"]
    assert faults(shared / "models" / "field" / f"{name}.onnx", specs) == {}


PAIRS = "xq = QuantizeLinear (x, s, z) xd = DequantizeLinear (xq, s, z)"
CONSTANT = "cq = QuantizeLinear (c, s, z) cd = DequantizeLinear (cq, s, z)"
RESULT = "rq = QuantizeLinear (r, s, z) y = DequantizeLinear (rq, s, z)"
BODIES = {
    "scalar": ("float c = {0.25}", "r = Mul (xd, cd)"),
    "one element": ("float[1] c = {0.25}", "r = Add (xd, cd)"),
    "one element of rank 3": ("float[1,1,1] c = {0.25}", "r = Mul (cd, xd)"),
    "row": ("float[4] c = {0.25, 1, -1, 0}", "r = Add (xd, cd)"),
    "matrix": ("float[4,4] c = {" + ", ".join(["0.25"] * 16) + "}", "r = MatMul (xd, cd)"),
    "column": ("float[4,1] c = {0.25, 1, -1, 0.5}", "r = MatMul (xd, cd)"),
    "moved": (
        "float[4,4] c = {" + ", ".join(["0.25"] * 16) + "}",
        "t = Transpose <perm = [0, 2, 1]> (xd) r = MatMul (t, cd)",
    ),
}
KINDS = ["uint8 z = {0}", "uint8 z = {128}", "int8 z = {0}", "int8 z = {3}"]


def small_model(constant: str, body: str, kind: str, opset: int) -> Model:
    return load(
        ir.from_onnx_text(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[1,4,4] x) => (y) <float s = {{0.02}}, {kind}, {constant}> {{
            {PAIRS} {CONSTANT} {body} {RESULT}
        }}""")
    )


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("kind", KINDS)
def test_constants_of_few_elements_load_after_passes(kind: str, opset: int) -> None:
    specs = ["fold-weights", "repack", "repack{to=int8}", "raise-integer-operators{microsoft=true}"]
    found = {}
    for name, (constant, body) in BODIES.items():
        model = small_model(constant, body, kind, opset)
        if not fault(model):
            found |= {f"{name} {spec}": why for spec, why in faults_after(model, specs).items()}
            model.apply(parse_spec("fold-weights"))
            found |= {f"{name} f {spec}": why for spec, why in faults_after(model, specs).items()}
    assert found == {}


@pytest.mark.parametrize("scale_type", ["float32", "smallest"])
@pytest.mark.parametrize(
    ("constant", "sizes"), [("float", ()), ("float[1]", (1,)), ("float[3]", (3,))]
)
def test_scale_of_a_folded_constant_is_a_scalar(
    constant: str, sizes: tuple[int, ...], scale_type: str
) -> None:
    numbers = ", ".join(["0.25"] * max(sum(sizes), 1))
    model = small_model(f"{constant} c = {{{numbers}}}", "r = Mul (xd, cd)", KINDS[1], 13)
    model.apply(parse_spec(f"fold-weights{{scale_type={scale_type}}}"))
    (decode,) = [n for n in model.nodes("DequantizeLinear") if n.inputs[0].is_initializer()]
    codes, *parameters = (np.shape(model.constant(value)) for value in decode.inputs)
    assert codes == sizes
    assert all(shape == () for shape in parameters)


@pytest.mark.parametrize("blocks", [1, 2])
def test_scale_of_one_block_is_a_scalar(blocks: int) -> None:
    data: dict[str, Any] = {
        "w": np.arange(16 * blocks, dtype=np.uint8).reshape(1, blocks, 16),
        "scale": np.full((1, blocks), 0.5, np.float32),
    }
    graph = ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[2,{32 * blocks}] x, uint8[1,{blocks},16] w, float[1,{blocks}] scale)
        => (float[2,1] y) {{
            y = com.microsoft.MatMulNBits <K = {32 * blocks}, N = 1, bits = 4, block_size = 32>
                (x, w, scale)
        }}""")
    for value in list(graph.graph.inputs)[1:]:
        value.const_value = ir.tensor(data[str(value.name)], name=value.name)
        graph.graph.initializers.add(value)
    model = load(graph)
    model.freeze_inputs()
    assert fault(model) is None
    assert model.apply(parse_spec("lower-mat-mul-n-bits")).modified
    decode = next(iter(model.nodes("DequantizeLinear")))
    assert np.shape(model.constant(decode.inputs[1])) == (() if blocks == 1 else (blocks, 1))
    assert fault(model) is None


QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'
SIGNED = f"""
    g (float[4,4] x) => (float[4,4] y) <
        int64[2] shape = {{-1, 4}},
        float s = {{0.5}}, float z = {{3}}, float none = {{0}}, float eight = {{8}},
        float four = {{4}}, float[4,4] w = {{1,2,3,4,5,-6,7,-8,1,2,3,4,5,6,7,1}}
    > {{
        q = {QUANT} (x, s, z, eight)
        r = MOVE
        v = {QUANT} (w, s, none, four)
        y = MatMul (r, v)
    }}"""


@pytest.mark.runtime
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("move", ["Transpose <perm = [1, 0]> (q)", "Reshape (q, shape)"])
def test_signed_codes_before_movements_load_after_conversion(opset: int, move: str) -> None:
    header = f'<ir_version: 10, opset_import: ["": {opset}, "qonnx.custom_op.general": 1]>'
    source = load(ir.from_onnx_text(header + SIGNED.replace("MOVE", move)))
    model = source.clone()
    report = model.apply(parse_spec("convert{to=qdq}"), parse_spec("fold-weights"))
    assert any("became unsigned in 1 place" in note for note in report.notes)
    assert fault(model) is None
    x = np.linspace(-80, 80, 16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(model.run({"x": x})["y"], source.run({"x": x})["y"])


def test_signed_codes_become_unsigned_in_the_order_of_the_graph() -> None:
    """So that names in a file do not depend on where objects lie in memory."""
    numbers = range(1, 8)
    constants = "float s = {0.5}, float b = {8}, int64[2] shape = {-1, 4}"
    parameters = ", ".join(f"float z{i} = {{{i}}}" for i in numbers)
    nodes = "".join(
        f"q{i} = {QUANT} (x, s, z{i}, b) y{i} = Reshape (q{i}, shape) " for i in numbers
    )
    outputs = ", ".join(f"float[4,4] y{i}" for i in numbers)
    model = load(
        ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
        g (float[4,4] x) => ({outputs}) <{constants}, {parameters}> {{ {nodes} }}""")
    )
    model.apply(parse_spec("convert{to=qdq}"))
    arrays = [value.const_value.numpy() for value in model.ir.graph.initializers.values()]
    points = [int(array) for array in arrays if array.dtype == np.uint8]
    assert points == list(range(128, 136))


@pytest.mark.runtime
def test_products_of_signed_codes_subtract_zero_points_that_the_runtime_refuses() -> None:
    model = load(
        ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (int8[1,4,2] x) => (float[1,4,2] y) <
            float s = {0.5}, float t = {0.25}, int8 z = {3}, int8 none = {0},
            float[2] b = {1, 2}, int8[2,2] w = {1, 2, 3, -4}
        > {
            y = com.microsoft.MatMulIntegerToFloat (x, w, s, t, z, none, b)
        }""")
    )
    assert fault(model) is None
    x = np.array([[[-128, 127], [3, -7], [0, 1], [50, -50]]], np.int8)
    before = model.run({"x": x})["y"]
    model.apply(parse_spec("lower-integer-operators{form=qdq}"))
    assert [node.op_type for node in model.nodes()][1:3] == ["Sub", "Mul"]
    assert fault(model) is None
    np.testing.assert_array_equal(model.run({"x": x})["y"], before)

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from qgraph.errors import ModelError, OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.numerics.formats import FORMATS
from qgraph.reports import SiteStatus
from qgraph.transforms.base import parse_spec
from qgraph.transforms.quantize_weights import QuantizeWeights, WeightFormat
from qgraph.transforms.weights import float_weights
from tests.conftest import openvino_core

FORMATS_AND_OPSETS = {
    "int8": 13,
    "uint8": 13,
    "int4": 21,
    "uint4": 21,
    "int2": 25,
    "uint2": 25,
    "fp8": 19,
    "fp8-e5m2": 19,
    "fp6-e2m3": 28,
    "fp6-e3m2": 28,
    "fp4": 23,
    "mxfp8": 24,
    "mxfp6": 28,
    "mxfp4": 24,
    "nvfp4": 23,
}

NODES = """
    y = MatMul (x, w)
    z = Gemm <transB = 1> (x, u, b)
    e = Gather (t, i)
    v = Conv (c, k)
    r = ConvTranspose (c, d)
"""

SHAPES = {
    "w": (128, 40),
    "u": (24, 128),
    "b": (24,),
    "t": (50, 64),
    "k": (8, 4, 3, 3),
    "d": (4, 6, 3, 3),
}


def network(kind: str = "float", opset: int = 17) -> ir.Model:
    """Every operator that has weights, each with one of a size of its own."""
    dtype = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[kind]
    weights = ", ".join(
        f"{kind}[{','.join(map(str, shape))}] {name} = {{{zeros(shape)}}}"
        for name, shape in SHAPES.items()
    )
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g ({kind}[2, 128] x, int64[3] i, {kind}[1, 4, 8, 8] c) => (
        {kind}[2, 40] y, {kind}[2, 24] z, {kind}[3, 64] e, {kind}[1, 8, 6, 6] v,
        {kind}[1, 6, 10, 10] r)
    <{weights}>
    {{ {NODES} }}"""
    model = ir.from_onnx_text(text)
    random = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = (random.standard_normal(shape) * 0.1).astype(dtype)
        model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
    return model


def zeros(shape: tuple[int, ...]) -> str:
    return ", ".join("0" * int(np.prod(shape)))


def feeds(dtype: np.dtype) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((2, 128)).astype(dtype),
        "i": np.array([0, 7, 49]),
        "c": random.standard_normal((1, 4, 8, 8)).astype(dtype),
    }


def decoded(model: Model) -> dict[str, np.ndarray]:
    """What each DequantizeLinear that ends a weight gives, by the name of the weight."""
    names = [v.name for n in model.nodes("DequantizeLinear") for v in n.outputs]
    values = model.run(feeds(model.inputs[0].dtype.numpy()), backend="numpy", taps=names)
    return {name.removesuffix("_dequantized"): values[name] for name in names}


def sqnr(signal: np.ndarray, other: np.ndarray) -> float:
    signal, other = signal.astype(np.float64), other.astype(np.float64)
    return float(10 * np.log10((signal**2).sum() / ((signal - other) ** 2).sum()))


@pytest.mark.cases(fast=7, slow=23)
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMATS_AND_OPSETS)
def test_every_format_is_valid_and_its_figures_are_those_of_the_weights(
    name, kind, lazy, tmp_path, monkeypatch
):
    if lazy:
        monkeypatch.setattr(float_weights, "LAZY_BYTES", 0)
    opset = 22 if kind == "bfloat16" else 17
    source = network(kind, opset)
    before = {n: v.const_value.numpy().copy() for n, v in source.graph.initializers.items()}
    model = load(source)
    report = model.apply(parse_spec(f"quantize-weights{{format={name},opset=28,min_elements=1}}"))
    model.save(tmp_path / "m.onnx")
    saved = load(tmp_path / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert model.ir.opset_imports[""] == max(
        opset, FORMATS_AND_OPSETS[name], 19 * (kind != "float")
    )
    assert report.count(SiteStatus.CHANGED) == 5
    assert report.exactness is Exactness.DIFFERENT
    values = decoded(saved)
    figures = {site.figures["weight"]: site.figures for site in report.sites}
    assert set(figures) == {"w", "u", "t", "k", "d"}
    for weight, row in figures.items():
        found = values[weight]
        assert found.dtype == before[weight].dtype
        assert sqnr(before[weight], found) == pytest.approx(row["sqnr_db"], abs=0.01)
        error = np.abs(before[weight].astype(np.float64) - found.astype(np.float64)).max()
        assert error == pytest.approx(row["max_abs_error"], rel=1e-3)
        assert row["weight_bytes_after"] < row["weight_bytes_before"]
    assert [n.op_type for n in saved.ir.graph if n.op_type != "DequantizeLinear"] == [
        n.op_type for n in source.graph
    ]


@pytest.mark.parametrize("name", FORMATS_AND_OPSETS)
def test_codes_are_the_formula_per_layer(name):
    """MatMul: blocks along the rows or a scale per column; Gemm and Gather: along the columns."""
    source = network()
    before = {n: v.const_value.numpy().copy() for n, v in source.graph.initializers.items()}
    model = load(source)
    model.apply(parse_spec(f"quantize-weights{{format={name},opset=28,min_elements=1}}"))
    values = decoded(model)
    block = 0 if name in ("int8", "uint8", "fp8", "fp8-e5m2") else 16 if name == "nvfp4" else 32
    for weight, reduced in (("w", 0), ("u", 1), ("t", 1)):
        w = np.moveaxis(before[weight].astype(np.float64), reduced, 0)
        groups = w.reshape(-1, block or len(w), w.shape[1])
        found = values[weight]
        q = np.moveaxis(found.astype(np.float64), reduced, 0).reshape(groups.shape)
        largest = np.abs(groups).max(axis=1, keepdims=True)
        # One step at the top of each format, in units of the largest weight of the group.
        step = {"fp4": 1 / 3, "nvfp4": 0.4, "fp8": 1 / 14, "fp8-e5m2": 1 / 7}
        step |= {"fp6-e2m3": 1 / 15, "fp6-e3m2": 1 / 7, "mxfp4": 1, "mxfp6": 1, "mxfp8": 1}
        bits = FORMATS[name.upper()].bits if name.upper() in FORMATS else 0
        width = step.get(name, 2 / max(2**bits - 2, 1))
        assert (np.abs(q - groups) <= largest * width * 0.5001).all()
        assert np.abs(q).max() > 0


def test_reductions_and_channels_of_each_operator():
    model = load(network())
    model.apply(QuantizeWeights(format=WeightFormat.INT8, min_elements=1))
    axes = {
        n.inputs[0].name: (n.attributes.get_int("axis", -1), list(n.inputs[1].shape))
        for n in model.nodes("DequantizeLinear")
    }
    assert axes == {
        "w_codes": (1, [40]),
        "u_codes": (0, [24]),
        "t_codes": (0, [50]),
        "k_codes": (0, [8]),
        "d_codes": (1, [6]),
    }
    model = load(network())
    model.apply(QuantizeWeights(format=WeightFormat.INT4, min_elements=1, block_size=2))
    blocks = {n.inputs[0].name: list(n.inputs[1].shape) for n in model.nodes("DequantizeLinear")}
    assert blocks == {
        "w_codes": [64, 40],
        "u_codes": [24, 64],
        "t_codes": [50, 32],
        "k_codes": [8, 2, 3, 3],
        "d_codes": [2, 6, 3, 3],
    }


@pytest.mark.cases(fast=8)
@pytest.mark.runtime
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        "int8",
        "uint8",
        "int4",
        "uint4,symmetric=true",
        "uint4,block_size=16",
        "int8,granularity=block,block_size=16",
        "int4,granularity=tensor",
        "fp8",
        "fp8-e5m2,granularity=tensor",
        "int2",
        "uint2,scale=mse",
    ],
)
def test_onnx_runtime_decodes_the_same_weights(options, kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = load(network(kind))
    model.apply(parse_spec(f"quantize-weights{{format={options},opset=25,min_elements=1}}"))
    expected = decoded(model)
    graph = model.ir.graph
    for node in model.nodes("DequantizeLinear"):
        graph.outputs.append(node.outputs[0])
    path = tmp_path / "m.onnx"
    model.save(path)
    settings = runtime.SessionOptions()
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    names = [n.outputs[0].name for n in model.nodes("DequantizeLinear")]
    found = session.run(names, feeds(model.inputs[0].dtype.numpy()))
    for name, value in zip(names, found, strict=True):
        own = expected[name.removesuffix("_dequantized")]
        np.testing.assert_array_equal(value, own, err_msg=name)


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("name", ["fp4", "mxfp4", "mxfp8", "nvfp4", "int4", "uint4"])
def test_openvino_decodes_the_same_weights(name, tmp_path):
    model = load(network())
    model.apply(parse_spec(f"quantize-weights{{format={name},opset=24,types=MatMul}}"))
    expected = decoded(model)
    (weight,) = [value for value in expected.values() if value.shape == SHAPES["w"]]
    # A unit matrix in the place of the data shows the weight.
    graph = model.ir.graph
    graph.inputs[0].shape = ir.Shape([128, 128])
    keep = [node for node in graph if node.op_type in ("DequantizeLinear", "MatMul")]
    for node in list(graph):
        if node not in keep:
            for output in node.outputs:
                graph.outputs.remove(output)
            graph.remove(node, safe=True)
    del graph.inputs[1:]
    graph.outputs[0].shape = ir.Shape([128, 40])
    path = tmp_path / "m.onnx"
    model.save(path)
    core = openvino_core()
    try:
        compiled = core.compile_model(str(path), "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    except RuntimeError as error:
        pytest.skip(f"OpenVINO does not take {name}: {str(error).splitlines()[0]}")
    found = compiled([np.eye(128, dtype=np.float32)])[0]
    np.testing.assert_allclose(found, weight, rtol=1e-6, atol=1e-7)


def text_model(body: str, opset: int = 21) -> ir.Model:
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": {opset}]>\n{body}')
    random = np.random.default_rng(2)
    for value in model.graph.initializers.values():
        if value.dtype is ir.DataType.FLOAT:
            array = random.standard_normal(value.const_value.shape.numpy()).astype(np.float32)
            value.const_value = ir.Tensor(array, name=value.name)
    return model


FILL = zeros((8, 4))


def test_a_tied_embedding_is_stored_once():
    model = load(
        text_model(f"""g (int64[3] i, float[2, 4] h) => (float[3, 4] e, float[2, 8] y)
            <float[8, 4] w = {{{FILL}}}> {{
                e = Gather (w, i)
                t = Transpose <perm = [1, 0]> (w)
                y = MatMul (h, t)
            }}""")
    )
    for step in ("int8", "int4,block_size=2", "int8,granularity=tensor"):
        copy = model.clone()
        report = copy.apply(parse_spec(f"quantize-weights{{format={step},min_elements=1}}"))
        assert [s.outcome for s in report.sites] == [SiteStatus.CHANGED]
        (node,) = copy.nodes("DequantizeLinear")
        assert {use.node.op_type for use in node.outputs[0].uses()} == {"Gather", "Transpose"}
        assert node.attributes.get_int("axis", -1) == (1 if "block" in step else 0) or not (
            node.inputs[1].shape.rank()
        )
        assert "w" not in copy.ir.graph.initializers


def test_uses_that_want_other_channels_are_refused_but_per_tensor():
    text = f"""g (float[2, 8] a, float[2, 4] b) => (float[2, 4] y, float[2, 8] z)
        <float[8, 4] w = {{{FILL}}}> {{
            y = MatMul (a, w)
            z = Gemm <transB = 1> (b, w)
        }}"""
    model = load(text_model(text))
    report = model.apply(QuantizeWeights(format=WeightFormat.INT8, min_elements=1))
    (site,) = report.sites
    assert site.outcome is SiteStatus.REFUSED
    assert "other channels in each of y, z; with granularity=tensor" in site.reason
    report = model.apply(parse_spec("quantize-weights{granularity=tensor,min_elements=1}"))
    assert report.count(SiteStatus.CHANGED) == 1


@pytest.mark.parametrize(
    ("user", "named"),
    [
        ("z = Neg (w)", "z"),
        ("z = Identity (w)", "z"),
        ("t = Transpose (w) \n z = Neg (t)", "z"),
    ],
)
def test_a_weight_that_is_used_otherwise_is_refused(user, named):
    shape = "4, 8" if "Transpose" in user else "8, 4"
    model = load(
        text_model(f"""g (float[2, 8] a) => (float[2, 4] y, float[{shape}] z)
            <float[8, 4] w = {{{FILL}}}> {{ y = MatMul (a, w) \n {user} }}""")
    )
    before = ir.to_onnx_text(model.ir)
    (site,) = model.apply(QuantizeWeights(min_elements=1)).sites
    assert site.outcome is SiteStatus.REFUSED
    assert f"also used by {named}, which would keep" in site.reason
    assert ir.to_onnx_text(model.ir) == before


def test_a_weight_of_two_layers_of_which_one_is_left_out_is_refused():
    model = load(
        text_model(f"""g (float[2, 8] a) => (float[2, 4] y, float[2, 4] z)
            <float[8, 4] w = {{{FILL}}}> {{ y = MatMul (a, w) \n z = MatMul (a, w) }}""")
    )
    (site,) = model.clone().apply(QuantizeWeights(min_elements=1, exclude="z")).sites
    assert "also used by z" in site.reason
    assert model.apply(QuantizeWeights(min_elements=1)).count(SiteStatus.CHANGED) == 1


def test_nodes_are_chosen_by_name_and_type():
    def chosen(options: str) -> set[str]:
        model = load(network())
        report = model.apply(parse_spec(f"quantize-weights{{min_elements=1,{options}}}"))
        return {s.figures["weight"] for s in report.sites if s.outcome is SiteStatus.CHANGED}

    assert chosen("types=MatMul|Gather") == {"w", "t"}
    assert chosen("nodes=y|z") == {"w", "u"}
    assert chosen("nodes=[a-y]") == {"w", "t", "k", "d"}
    assert chosen("exclude=y|r") == {"u", "t", "k"}
    assert chosen("nodes=nothing") == set()


def test_small_weights_stay():
    model = load(network())
    report = model.apply(QuantizeWeights(min_elements=1024))
    kept = {s.node: s.reason for s in report.sites if s.outcome is SiteStatus.KEPT}
    assert kept == dict.fromkeys(("v", "r"), "fewer than 1024 elements")


def test_what_is_quantized_already_and_what_can_be_fed_stay():
    model = load(
        text_model(f"""g (float[2, 8] a, float[8, 4] w) => (float[2, 4] y, float[2, 4] z)
            <float[8, 4] w = {{{FILL}}}, float[8, 4] u = {{{FILL}}}, float s = {{0.5}}> {{
                y = MatMul (a, w)
                q = QuantizeLinear (u, s)
                d = DequantizeLinear (q, s)
                z = MatMul (a, d)
            }}""")
    )
    report = model.apply(QuantizeWeights(min_elements=1), keep_inputs=True)
    assert report.sites == []


def test_weights_in_subgraphs_and_of_outer_graphs_and_in_functions():
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, "local": 1]>
        g (float[2, 8] a, bool c) => (float[2, 4] y, float[2, 4] z)
        <float[8, 4] w = {{{FILL}}}> {{
            n = Neg (a)
            y = If (c) <
                then_branch = yes () => (float[2, 4] p) {{ p = MatMul (n, w) }},
                else_branch = no () => (float[2, 4] q) {{
                    v = Constant <value = float[8, 4] {{{FILL}}}> ()
                    q = MatMul (n, v) }}>
            z = local.layer (a)
        }}
        <domain: "local", opset_import: ["": 21]>
        layer (i) => (o) {{
            k = Constant <value = float[8, 4] {{{FILL}}}> ()
            o = MatMul (i, k)
        }}""")
    random = np.random.default_rng(3)
    fresh = lambda: ir.Tensor(random.standard_normal((8, 4)).astype(np.float32))  # noqa: E731
    model.graph.initializers["w"].const_value = fresh()
    for owner in (model.graph, *model.functions.values()):
        for node in ir.traversal.RecursiveGraphIterator(owner):
            if node.op_type == "Constant":
                node.attributes["value"] = ir.AttrTensor("value", fresh())
    original, changed = load(model).clone(), load(model).clone()
    report = changed.apply(QuantizeWeights(min_elements=1))
    assert report.count(SiteStatus.CHANGED) == 3
    onnx.checker.check_model(ir.to_proto(changed.ir), full_check=True)
    x = random.standard_normal((2, 8)).astype(np.float32)
    for choice in (True, False):
        inputs = {"a": x, "c": np.array(choice)}
        expected = original.run(inputs, backend="numpy")
        found = changed.run(inputs, backend="numpy")
        for name, value in expected.items():
            assert 30 < sqnr(value, found[name]) < 80


def test_a_weight_with_nan_is_refused_now_or_when_it_is_written(monkeypatch, tmp_path):
    source = network()
    array = source.graph.initializers["w"].const_value.numpy().copy()
    array[3, 3] = np.nan
    source.graph.initializers["w"].const_value = ir.Tensor(array, name="w")
    step = QuantizeWeights(min_elements=1, types="MatMul")
    (site,) = load(source.clone()).apply(step).sites
    assert site.outcome is SiteStatus.REFUSED
    assert "'w': some elements are infinite or NaN" in site.reason
    monkeypatch.setattr(float_weights, "LAZY_BYTES", 0)
    model = load(source)
    assert model.apply(step).count(SiteStatus.CHANGED) == 1
    with pytest.raises(ModelError, match="'w': some elements are infinite or NaN"):
        model.save(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_lazy_and_eager_files_are_the_same(monkeypatch, tmp_path):
    reports = []
    for lazy, name in ((False, "a.onnx"), (True, "b.onnx")):
        monkeypatch.setattr(float_weights, "LAZY_BYTES", 0 if lazy else 1 << 30)
        model = load(network())
        report = model.apply(parse_spec("quantize-weights{format=uint4,min_elements=1}"))
        assert ("sqnr_db" in report.sites[0].figures) is not lazy
        model.save(tmp_path / name)
        reports.append([dict(site.figures) for site in report.sites])
    assert reports[0] == reports[1]
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("name", [n for n, o in FORMATS_AND_OPSETS.items() if o > 21])
def test_formats_beyond_the_limit_are_refused_with_the_opset_that_has_them(name):
    model = load(network())
    report = model.apply(parse_spec(f"quantize-weights{{format={name},min_elements=1}}"))
    assert report.count(SiteStatus.REFUSED) == 5
    needed = FORMATS_AND_OPSETS[name]
    assert {site.reason for site in report.sites} == {
        f"{name} needs opset {needed}, above 21; allow opset {needed}"
    }
    assert model.ir.opset_imports[""] == 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("format=fp8,symmetric=false", "no zero point; expected an integer format"),
        ("format=mxfp4,granularity=axis", "blocks of 32; expected block"),
        ("format=nvfp4,block_size=32", "blocks have 16 elements"),
        ("format=int8,block_size=32", "scales per axis, expected granularity=block"),
        ("format=int4,block_size=1", "expected 2 or more"),
        ("types=MatMul|Add", "types is .Add., expected one of MatMul"),
        ("min_elements=-1", "expected 0 or more"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(OptionError, match=message):
        parse_spec(f"quantize-weights{{{options}}}")


def test_least_squared_error_is_better_and_done_after_one_run():
    found = {}
    for search in ("minmax", "mse"):
        model = load(network())
        step = parse_spec(f"quantize-weights{{format=int4,scale={search},min_elements=1}}")
        found[search] = [site.figures["sqnr_db"] for site in model.apply(step).sites]
        assert model.apply(step).sites == []
    assert all(b > a for a, b in zip(found["minmax"], found["mse"], strict=True))


@pytest.mark.parametrize("name", ["int8", "uint4", "fp8"])
def test_the_reference_evaluator_decodes_the_same_weights(name):
    model = load(network(opset=21))
    model.apply(parse_spec(f"quantize-weights{{format={name},types=MatMul}}"))
    (node,) = model.nodes("DequantizeLinear")
    expected = decoded(model)["w"]
    proto = ir.to_proto(model.ir)
    kept = [n for n in proto.graph.node if n.op_type == "DequantizeLinear"]
    del proto.graph.node[:], proto.graph.output[:], proto.graph.input[:]
    proto.graph.node.extend(kept)
    proto.graph.output.add().name = node.outputs[0].name
    (found,) = ReferenceEvaluator(proto).run(None, {})
    np.testing.assert_array_equal(found, expected)

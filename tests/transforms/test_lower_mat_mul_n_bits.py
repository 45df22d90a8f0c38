"""MatMulNBits as DequantizeLinear and MatMul, and back: no weight changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph import prove
from qgraph.errors import OptionError
from qgraph.exactness import Exactness, Method
from qgraph.graph.deferred import DeferredTensor
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.mat_mul_n_bits import LowerMatMulNBits, RaiseMatMulNBits

pytestmark = pytest.mark.sums

DOMAIN = "com.microsoft"
SHAPES = [(64, 16, 5), (40, 32, 3), (33, 16, 1), (7, 16, 4), (130, 128, 2), (5, 16, 1)]
"""K, block size, N; where K is no multiple, the last block is padded."""


def stored(
    bits: int, k: int, size: int, n: int, points: str = "none", dtype: Any = np.float32
) -> dict[str, Any]:
    """Return the inputs of a MatMulNBits behind the data."""
    random = np.random.default_rng(k + bits)
    blocks = -(-k // size)
    made = {
        "w": random.integers(0, 256, (n, blocks, size * bits // 8)).astype(np.uint8),
        "s": random.uniform(0.5, 2, (n, blocks)).astype(dtype),
    }
    if points == "packed":
        made["z"] = random.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    if points == "floats":
        made["z"] = random.uniform(0, 1 << bits, (n, blocks)).astype(dtype)
    return made


def model(
    inputs: dict[str, Any], bits: int, k: int, size: int, n: int, dtype: str = "FLOAT", **more: int
) -> Model:
    kind = ir.TensorType(ir.DataType[dtype])
    a = ir.Value(name="a", type=kind, shape=ir.Shape(["m", k]))
    y = ir.Value(name="y", type=kind, shape=ir.Shape(["m", n]))
    known = {
        name: ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        for name, array in inputs.items()
    }
    attributes = {"K": k, "N": n, "bits": bits, "block_size": size} | more
    operands = [a, *(known.get(name) for name in ("w", "s", "z", "g", "b"))]
    node = ir.node("MatMulNBits", operands, attributes, domain=DOMAIN, outputs=[y])
    graph = ir.Graph(
        [a],
        [y],
        nodes=[node],
        initializers=list(known.values()),
        opset_imports={"": 17, DOMAIN: 1},
        name="g",
    )
    return load(ir.Model(graph, ir_version=8))


def names(found: Model) -> list[str]:
    return [node.op_type for node in found.ir.graph]


def identity(k: int, dtype: Any = np.float32) -> dict[str, Any]:
    return {"a": np.eye(k).astype(dtype)}


def weights(found: Model, k: int, dtype: Any = np.float32) -> Any:
    return found.run(identity(k, dtype), backend="numpy")["y"]


def ort(found: Model, feeds: dict[str, Any]) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = ir.to_proto(found.ir).SerializeToString()
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.cases(fast=2, slow=10)
@pytest.mark.runtime
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "floats"])
@pytest.mark.parametrize("signed", [False, True])
def test_an_identity_shows_the_same_weights(bits: int, points: str, signed: bool) -> None:
    for k, size, n in SHAPES:
        before = model(stored(bits, k, size, n, points), bits, k, size, n)
        expected = weights(before, k)
        if points != "floats":
            np.testing.assert_array_equal(ort(before, identity(k)), expected)
        after = before.clone()
        (site,) = after.apply(LowerMatMulNBits(signed=signed))
        assert (site.verdict.exactness, site.verdict.method) == (Exactness.BITS, Method.CONGRUENCE)
        onnx.checker.check_model(ir.to_proto(after.ir), full_check=True)
        assert DOMAIN not in after.ir.opset_imports
        np.testing.assert_array_equal(weights(after, k), expected)
        np.testing.assert_array_equal(ort(after, identity(k)), expected)
        again = after.clone().apply(LowerMatMulNBits(signed=signed))
        assert again.sites == []


@pytest.mark.parametrize(
    ("bits", "signed", "opset", "kind"),
    [
        (4, False, None, "UINT4"),
        (4, True, None, "INT4"),
        (8, False, None, "UINT8"),
        (8, True, None, "INT8"),
        (2, False, None, "UINT4"),
        (2, True, 25, "INT2"),
        (2, False, 25, "UINT2"),
    ],
)
def test_codes_take_the_narrowest_type(
    bits: int, signed: bool, opset: int | None, kind: str
) -> None:
    found = model(stored(bits, 64, 16, 3), bits, 64, 16, 3)
    report = found.apply(LowerMatMulNBits(signed=signed, opset=opset))
    assert report.notes[:-1] == [f"opset raised from 17 to {opset or 21}"]
    decode, product = found.ir.graph
    assert (decode.op_type, product.op_type) == ("DequantizeLinear", "MatMul")
    codes, scale = decode.inputs[:2]
    assert codes.dtype is ir.DataType[kind]
    assert (list(codes.shape), list(scale.shape)) == ([64, 3], [4, 3])
    assert decode.attributes["block_size"].as_int() == 16
    # The middle is the default zero point, which signed codes count from.
    assert len(decode.inputs) == (2 if signed else 3)


def test_a_single_block_is_a_scale_for_each_column() -> None:
    found = model(stored(8, 16, 16, 3), 8, 16, 16, 3)
    assert not any("opset raised" in note for note in found.apply(LowerMatMulNBits()).notes)
    decode = found.ir.graph.node(0)
    assert (dict(decode.attributes).keys(), list(decode.inputs[1].shape)) == ({"axis"}, [3])


@pytest.mark.parametrize("filled", [True, False])
def test_rows_may_be_assigned_to_blocks(filled: bool) -> None:
    random = np.random.default_rng(0)
    groups = random.permutation(np.arange(40) // 16) if filled else random.integers(0, 3, 40)
    inputs = stored(4, 40, 16, 3, "packed") | {"g": groups.astype(np.int32)}
    before = model(inputs, 4, 40, 16, 3)
    after = before.clone()
    after.apply(LowerMatMulNBits())
    first = ["DequantizeLinear", "Gather"] if filled else ["Cast", "Gather", "Sub", "Gather", "Mul"]
    assert names(after) == [*first, "MatMul"]
    # code by code, as the documentation has it
    packed, points = inputs["w"].reshape(3, -1), inputs["z"]
    for n, k in np.ndindex(3, 40):
        block = groups[k]
        code = packed[n, k // 2] >> 4 * (k % 2) & 15
        zero = points[n, block // 2] >> 4 * (block % 2) & 15
        expected = np.float32(int(code) - int(zero)) * inputs["s"][n, block]
        assert weights(before, 40)[k, n] == expected
    np.testing.assert_array_equal(weights(after, 40), weights(before, 40))


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("dtype", "array"), [("FLOAT16", np.float16), ("BFLOAT16", ml_dtypes.bfloat16)]
)
def test_16_bit_data_are_rounded_once(dtype: str, array: Any) -> None:
    inputs = stored(8, 40, 16, 3, "packed", array)
    inputs["b"] = np.float32([0.1, 0.2, 300]).astype(array)
    before = model(inputs, 8, 40, 16, 3, dtype)
    after = before.clone()
    after.apply(LowerMatMulNBits())
    assert names(after) == ["DequantizeLinear", "Cast", "MatMul", "Cast", "Add", "Cast"]
    proof = prove(before, after)
    assert (proof.verdict, proof.exactness) == ("proved", Exactness.BITS)
    expected = weights(before, 40, array)
    assert expected.dtype == array
    np.testing.assert_array_equal(weights(after, 40, array), expected)
    if dtype == "FLOAT16":
        np.testing.assert_array_equal(ort(before, identity(40, array)), expected)
    other = inputs | {"b": inputs["b"] + array(0.125)}
    assert prove(model(other, 8, 40, 16, 3, dtype), after).verdict != "proved"


def test_the_report_tells_of_data_that_were_rounded() -> None:
    found = model(stored(4, 32, 16, 3), 4, 32, 16, 3, accuracy_level=4)
    (site,) = found.apply(LowerMatMulNBits())
    assert "accuracy_level 4" in site.verdict.reason


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ({}, {"bits": 3}, "2, 4 or 8 bits"),
        ({}, {"weight_prepacked": 1}, "arranged for one kind of device"),
        ({"s": np.ones(5, np.float32)}, {}, r"scales have shape [5]"),
        ({"g": np.full(32, 9, np.int32)}, {}, "expected a block from 0 to 1"),
    ],
)
def test_what_cannot_be_read_is_refused(change: Any, more: Any, reason: str) -> None:
    found = model(stored(4, 32, 16, 3) | change, more.pop("bits", 4), 32, 16, 3, **more)
    (site,) = found.apply(LowerMatMulNBits())
    assert site.outcome is SiteStatus.REFUSED
    assert reason in site.reason
    assert names(found) == ["MatMulNBits"]


def test_weights_known_at_run_time_are_refused() -> None:
    found = model(stored(4, 32, 16, 3), 4, 32, 16, 3)
    value = found.ir.graph.initializers.pop("s")
    value.const_value = None
    found.ir.graph.inputs.append(value)
    (site,) = found.apply(LowerMatMulNBits())
    assert "its scales are not constant" in site.reason


def test_the_opset_may_be_limited() -> None:
    found = model(stored(4, 32, 16, 3), 4, 32, 16, 3)
    (site,) = found.apply(LowerMatMulNBits(opset=20))
    assert site.reason == "it needs opset 21, above 20; allow opset 21"


class TestBack:
    @pytest.mark.cases(fast=4)
    @pytest.mark.runtime
    @pytest.mark.parametrize("bits", [2, 4, 8])
    @pytest.mark.parametrize("points", ["none", "packed"])
    @pytest.mark.parametrize("signed", [False, True])
    def test_there_and_back_stores_the_same_codes(
        self, bits: int, points: str, signed: bool
    ) -> None:
        for k, size, n in SHAPES:
            inputs = stored(bits, k, size, n, points)
            inputs["b"] = np.arange(n, dtype=np.float32)
            before = model(inputs, bits, k, size, n)
            found = before.clone()
            report = found.apply(
                LowerMatMulNBits(signed=signed, opset=25), RaiseMatMulNBits(block_size=size)
            )
            assert [site.verdict.exactness for site in report] == [Exactness.BITS] * 2
            assert names(found) == ["MatMulNBits", "Add"]
            node = found.ir.graph.node(0)
            assert node.attributes["bits"].as_int() == bits
            assert node.attributes["block_size"].as_int() == size
            if k % size == 0:
                np.testing.assert_array_equal(node.inputs[1].const_value.numpy(), inputs["w"])
            np.testing.assert_array_equal(weights(found, k), weights(before, k))
            np.testing.assert_array_equal(ort(found, identity(k)), weights(before, k))
            assert found.apply(RaiseMatMulNBits()).sites == []

    TEXT = """<ir_version: 10, opset_import: ["": 21]>
        g (float[2, {k}] a{head}) => (float[2, {n}] y) <{known}> {{
            w = DequantizeLinear <axis = {axis}{more}> ({operands})
            {product}
        }}"""

    def written(
        self,
        codes: Any,
        scale: Any,
        zero: Any = None,
        axis: int = 0,
        block: int = 0,
        product: str = "y = MatMul (a, w)",
        *,
        turned: bool = False,
    ) -> Model:
        n, k = codes.shape if turned else codes.shape[::-1]
        text = self.TEXT.format(
            k=k,
            n=n,
            head=", float b" if "b)" in product else "",
            known="float one = {1}",
            axis=axis,
            more=f", block_size = {block}" if block else "",
            operands="c, s, z" if zero is not None else "c, s",
            product=product,
        )
        read = ir.from_onnx_text(text.replace("> (c, s", "> (one, one"))
        node = next(n for n in read.graph if n.op_type == "DequantizeLinear")
        arrays = [codes, scale, zero]
        del read.graph.initializers["one"]
        node.resize_inputs(3 if zero is not None else 2)
        for place, array in enumerate(arrays):
            if array is None:
                continue
            tensor = ir.tensor(np.asarray(array), name="cs z"[place] + "_")
            value = ir.Value(
                name=tensor.name,
                type=ir.TensorType(tensor.dtype),
                shape=tensor.shape,
                const_value=tensor,
            )
            read.graph.register_initializer(value)
            node.replace_input_with(place, value)
        return load(read)

    @pytest.mark.parametrize("kind", ["int4", "uint4", "int8", "uint8", "int2", "uint2"])
    @pytest.mark.parametrize(
        "form", ["tensor", "column", "blocks", "odd blocks", "turned", "turned blocks"]
    )
    def test_scales_become_blocks(self, kind: str, form: str) -> None:
        random = np.random.default_rng(1)
        k, n = 100, 3
        bits = int(kind.lstrip("uint"))
        low = 0 if kind.startswith("u") else -(1 << (bits - 1))
        numbers = random.integers(low, low + (1 << bits), (k, n))
        dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
        sizes = {
            "tensor": (), "column": (n,), "blocks": (4, n), "odd blocks": (3, n),
            "turned": (n,), "turned blocks": (4, n),
        }[form]  # fmt: skip
        scale = random.uniform(0.5, 2, sizes).astype(np.float32)
        zero = random.integers(low, low + (1 << bits), sizes)
        block = {"blocks": 32, "odd blocks": 48, "turned blocks": 32}.get(form, 0)
        spread = np.repeat(scale, block, axis=0)[:k] if block else scale
        points = np.repeat(zero, block, axis=0)[:k] if block else zero
        expected = (numbers - points).astype(np.float32) * spread
        turned = form.startswith("turned")
        if turned:
            numbers, scale, zero = (np.ascontiguousarray(p.T) for p in (numbers, scale, zero))
        axis = 0 if form == "blocks" or form == "odd blocks" or form == "turned" else 1
        found = self.written(
            numbers.astype(dtype),
            scale,
            zero.astype(dtype),
            axis,
            block,
            "t = Transpose (w)\n y = MatMul (a, t)" if turned else "y = MatMul (a, w)",
            turned=turned,
        )
        (site,) = found.apply(RaiseMatMulNBits(block_size=64))
        assert site.outcome is SiteStatus.CHANGED, site.reason
        (node,) = found.ir.graph
        size = 16 if form == "odd blocks" else 32 if block else 64
        assert node.attributes["block_size"].as_int() == size
        for value in (found.ir.graph.inputs[0], found.ir.graph.outputs[0]):
            value.shape = None
        np.testing.assert_array_equal(weights(found, k), expected)

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"scale": np.ones((64, 1), np.float32), "axis": 1, "block": 64}, "along the columns"),
            ({"scale": np.ones(64, np.float32), "axis": 0}, "each row has its own scale"),
            ({"scale": np.ones((8, 3), np.float32), "block": 8}, "blocks of 8 rows"),
            ({"product": "y = Gemm <alpha = 0.5> (a, w)"}, "no transA, alpha or beta"),
            ({"codes": np.ones((64, 3), np.int16)}, "codes of 2, 4 or 8 bits only"),
            ({"scale": np.ones((2, 2), np.float32), "block": 32}, r"[2, 2], expected [2, 3]"),
            ({"scale": np.ones(2, np.float32), "axis": 1}, r"[2], expected [3]"),
            (
                {"scale": np.ones((2, 3), ml_dtypes.float8_e8m0fnu), "block": 32},
                "its scales are FLOAT8E8M0",
            ),
        ],
    )
    def test_other_forms_are_refused(self, options: Any, reason: str) -> None:
        known = {"codes": np.ones((64, 3), np.int8), "scale": np.float32(0.5)} | options
        found = self.written(**known)
        (site,) = found.apply(RaiseMatMulNBits())
        assert site.outcome is SiteStatus.REFUSED
        assert reason in site.reason

    def test_what_gemm_adds_is_added(self) -> None:
        codes = np.arange(-32, 32, dtype=np.int8).reshape(32, 2)
        found = self.written(codes, np.float32(0.5), product="y = Gemm (a, w, b)")
        a = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
        feeds = {"a": a, "b": np.float32(3)}
        before = found.run(feeds, backend="numpy")["y"]
        found.apply(RaiseMatMulNBits(accuracy_level=1))
        assert names(found) == ["MatMulNBits", "Add"]
        assert found.ir.graph.node(0).attributes["accuracy_level"].as_int() == 1
        np.testing.assert_array_equal(found.run(feeds, backend="numpy")["y"], before)

    def test_weights_that_16_bits_round_are_not_equal(self) -> None:
        codes = np.arange(-32, 32, dtype=np.int8).reshape(32, 2)
        found = self.written(codes, np.float16(0.1))
        (site,) = found.clone().apply(RaiseMatMulNBits())
        assert site.outcome is SiteStatus.REFUSED
        assert "only DequantizeLinear rounds" in site.reason
        exact = codes.astype(np.float64) * np.float64(np.float16(0.1))
        assert site.verdict.differing_inputs == np.sum(exact != exact.astype(np.float16))
        assert site.verdict.differing_inputs > 0
        exact = self.written(codes, np.float16(0.125))
        (site,) = exact.apply(RaiseMatMulNBits())
        assert site.verdict.exactness is Exactness.BITS

    @pytest.mark.parametrize(
        "options", [{"block_size": 24}, {"block_size": 8}, {"accuracy_level": 9}]
    )
    def test_options_are_checked(self, options: Any) -> None:
        with pytest.raises(OptionError, match="expected"):
            RaiseMatMulNBits(**options)


def test_codes_are_computed_when_the_model_is_saved(tmp_path: Path) -> None:
    source = model(stored(4, 40, 16, 3, "packed"), 4, 40, 16, 3)
    expected = weights(source, 40)
    source.save(tmp_path / "before.onnx", external_data=True)
    found = load(tmp_path / "before.onnx")
    found.apply(LowerMatMulNBits())
    codes = found.ir.graph.node(0).inputs[0].const_value
    assert isinstance(codes, DeferredTensor)
    found.save(tmp_path / "after.onnx")
    again = load(tmp_path / "after.onnx")
    assert again.ir.graph.node(0).inputs[0].const_value.nbytes == 40 * 3 // 2
    np.testing.assert_array_equal(weights(again, 40), expected)

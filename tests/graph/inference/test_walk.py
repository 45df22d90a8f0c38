"""Types and shapes follow from the inputs of a model, not from what a file states."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.inference.rules import Fact
from qgraph.graph.inference.walk import infer, size_limits, with_facts
from qgraph.graph.schema import OpSchema
from qgraph.graph.scopes import bodies


def lying(text: str) -> ir.Model:
    """A model that states a wrong type and shape for everything but its inputs."""
    model = ir.from_onnx_text(text)
    for body in bodies(model):
        for node in body:
            for value in node.outputs:
                value.type, value.shape = ir.TensorType(ir.DataType.INT4), ir.Shape([7, 9])
    return model


def facts(model: ir.Model) -> dict[str | None, str]:
    known = infer(model)
    values = (value for body in bodies(model) for node in body for value in node.outputs)
    return {value.name: repr(known.get(value, Fact())) for value in values}


BRANCHES = """<ir_version: 10, opset_import: ["": 16, "my": 1]>
g (float[N,2] x, bool c) => (float[a,b] y, float[a] z, float[a] n)
<float[2,4] w = {1,2,3,4,5,6,7,8}> {
    d = MatMul (x, w)
    y = If (c) <
        then_branch = p () => (float[a,b] u) { u = Flatten <axis = 0> (d) },
        else_branch = q () => (float[a,b] v) { k = Cast <to = 6> (d) v = Relu (d) }>
    z = my.Op (d)
    n = Neg (z)
}"""


def test_all_is_inferred_from_the_inputs_also_in_branches() -> None:
    model = lying(BRANCHES)
    assert facts(model) == {
        "d": "FLOAT[input0_0, 4]",
        "y": "FLOAT[?, ?]",
        "u": "FLOAT[1, 4*input0_0]",
        "k": "INT32[input0_0, 4]",
        "v": "FLOAT[input0_0, 4]",
        "z": "?[...]",
        "n": "?[...]",
    }


def test_an_operator_of_a_plugin_has_the_form_of_its_data() -> None:
    """Its definition computes a number for each number; parameters broadcast."""
    inputs = ("x", "scale")
    OpSchema(name="InferredStep", domains=("test.plugin",), inputs=inputs).declare()
    text = BRANCHES.replace('"my": 1', '"my": 1, "test.plugin": 1')
    text = text.replace("my.Op (d)", "test.plugin.InferredStep (d, s)")
    text = text.replace("<float[2,4] w", "<float[4] s = {1,2,3,4}, float[2,4] w")
    known = facts(lying(text))
    assert (known["z"], known["n"]) == ("FLOAT[input0_0, 4]",) * 2


def test_a_copy_gets_the_facts_and_the_model_stays() -> None:
    model = lying(BRANCHES)
    model.graph.inputs[0].shape = ir.Shape([3, 2])
    model.graph.initializers["w"].shape = ir.Shape([5, 5])
    copy = with_facts(model)
    known = {v.name: (v.dtype, v.shape) for body in bodies(copy) for n in body for v in n.outputs}
    assert known["d"] == (ir.DataType.FLOAT, ir.Shape([3, 4]))
    assert known["z"] == (None, None)
    assert str(copy.graph.initializers["w"].shape) == "[2,4]"
    assert str(model.graph[0].outputs[0].shape) == "[7,9]"


def test_without_a_version_of_the_standard_operators_nothing_is_known() -> None:
    model = lying(BRANCHES)
    del model.opset_imports[""]
    assert set(facts(model).values()) == {"?[...]"}


def test_a_function_of_the_model_stands_above_the_operator_of_its_name() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 16]>
        g (float[2] x) => (int32[2] y) { y = Relu (x) }
        <domain: "", opset_import: ["": 16]> Relu (a) => (b) { b = Cast <to = 6> (a) }""")
    assert facts(model) == {"y": "INT32[2]", "b": "INT32[2]"}


CALLS = """<ir_version: 10, opset_import: ["": 16, "my": 1]>
g (float16[2,3] x, float16[5,3] y, float[7] z) => (float16[3,2] p, float16[3,5] q, float[7] r) {
    p = my.Outer (x)
    q = my.Outer (y)
    r = my.Inner (z)
}
<domain: "my", opset_import: ["": 16, "my": 1]> Outer (a) => (b) {
    c = my.Inner (a)
    b = Transpose <perm = [1, 0]> (c)
}
<domain: "my", opset_import: ["": 16]> Inner <k> (d, e) => (f) {
    h = Identity (e)
    f = Relu (d)
}
<domain: "my", opset_import: ["": 16]> Uncalled (i) => (j) { j = Shape (i) }"""


def test_facts_in_a_function_hold_for_all_its_calls() -> None:
    assert facts(lying(CALLS)) == {
        "p": "FLOAT16[3, 2]",
        "q": "FLOAT16[3, ?]",
        "r": "?[...]",
        "c": "FLOAT16[?, 3]",
        "b": "FLOAT16[3, ?]",
        "h": "?[...]",
        "f": "?[...]",
        "j": "INT64[?]",
    }


def test_sequences_are_no_tensors() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 16]>
        g (float[2] x) => (seq(float[2]) s) { s = SequenceConstruct (x, x) }""")
    assert facts(model) == {"s": "?[...]"}
    (value,) = with_facts(model).graph.outputs
    assert isinstance(value.type, ir.SequenceType)


def test_initializers_that_can_be_fed_are_no_constants() -> None:
    text = """<ir_version: 10, opset_import: ["": 16]>
        g (float[6] x, int64[2] w) => (float y) <int64[2] w = {2, 3}> { y = Reshape (x, w) }"""
    model = ir.from_onnx_text(text)
    assert facts(model)["y"] == "FLOAT[?, ?]"
    model.graph.inputs.pop()
    assert facts(model)["y"] == "FLOAT[2, 3]"


def test_a_node_that_violates_its_definition_has_no_facts() -> None:
    for node in (
        "Transpose <perm = [0, 0]> (x)",
        "Transpose <perm = [0, 5]> (x)",
        "Add (x, w)",
        "Gather <axis = 7> (x, k)",
        "Gather (w, k)",
        "Reshape (x, k)",
        "Conv (x, w)",
        "Concat <axis = 0> (x, w)",
        "Squeeze (x, k)",
        "Unsqueeze (x)",
        "MaxPool (x)",
        "DepthToSpace <blocksize = 2> (x)",
        "Cast (x)",
        "Flatten <axis = 1.5> (x)",
    ):
        model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 16]>
            g (float[2,3] x) => (float y)
            <float[4] w = {{1,2,3,4}}, int64[1] k = {{9}}> {{ y = {node} }}""")
        assert facts(model)["y"] in ("?[...]", "FLOAT[...]"), node


LOOP = """<ir_version: 10, opset_import: ["": 16]>
g (float[2,3] x, int64 n, bool c) => (float y, float z, float o) {{
    y, z, o = Loop (n, c, x, x) <body = round (int64 i, bool go, float[2,3] u, float[2,3] v)
        => (bool again, float a, float b, float[2,3] e) {{
            again = Identity (go) a = Relu (u) b = {second} e = Neg (v)
        }}>
}}"""


@pytest.mark.parametrize(
    ("second", "state", "inner"),
    [
        ("Relu (v)", "FLOAT[2, 3]", "FLOAT[2, 3]"),
        ("Concat <axis = 0> (v, v)", "FLOAT[?, 3]", "FLOAT[?, 3]"),
        ("Flatten <axis = 0> (v)", "FLOAT[?, ?]", "FLOAT[?, ?]"),
        ("Shape (v)", "?[...]", "?[...]"),
        ("Cast <to = 7> (v)", "?[2, 3]", "?[2, 3]"),
    ],
)
def test_the_state_of_a_loop_keeps_what_every_round_keeps(
    second: str, state: str, inner: str
) -> None:
    found = facts(ir.from_onnx_text(LOOP.format(second=second)))
    assert found["y"] == "FLOAT[2, 3]"
    assert found["z"] == state
    assert found["e"] == inner
    assert found["o"] == f"{inner.split('[')[0]}[...]"


def test_the_state_of_a_scan_keeps_what_every_round_keeps() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 16]>
    g (float[2,3] x, float[4,5,3] data) => (float y, float o) {
        y, o = Scan <num_scan_inputs = 1, body = round (float[2,3] v, float[5,3] e)
            => (float w, float u) { u = Relu (v) w = Concat <axis = 0> (u, u) }> (x, data)
    }""")
    assert facts(model) == {
        "y": "FLOAT[?, 3]",
        "o": "FLOAT[...]",
        "u": "FLOAT[?, 3]",
        "w": "FLOAT[?, 3]",
    }


def test_other_operators_with_graphs_are_entered_without_assumptions() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 17]>
    g (seq(float[2]) s, float[3] x) => (seq(float) t) {
        t = SequenceMap (s) <body = each (float[2] e) => (float f) { f = Neg (e) k = Neg (x) }>
    }""")
    assert facts(model) == {"t": "?[...]", "f": "?[...]", "k": "FLOAT[3]"}


def test_long_models_are_walked_without_recursion() -> None:
    lines = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(3000))
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 16]>
        g (float[N] v0) => (float v3000) {{ {lines} }}""")
    assert facts(model)["v3000"] == "FLOAT[input0_0]"


def test_elements_of_unreadable_constants_are_not_followed() -> None:
    tensor = ir.ExternalTensor(
        "nowhere.bin", 0, 8, ir.DataType.INT64, shape=ir.Shape([1]), name="w"
    )
    value = ir.Value(name="w", const_value=tensor)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    node = ir.node("Reshape", [x, value])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 16})
    assert repr(infer(ir.Model(graph, ir_version=10))[node.outputs[0]]) == "FLOAT[?]"


def test_large_constants_are_not_read() -> None:
    def refuse() -> np.ndarray:
        raise AssertionError("read")

    tensor = ir.LazyTensor(refuse, ir.DataType.INT64, ir.Shape([5000]), name="w")  # type: ignore[arg-type]
    value = ir.Value(name="w", const_value=tensor)
    node = ir.node("Neg", [value])
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 16})
    assert repr(infer(ir.Model(graph, ir_version=10))[node.outputs[0]]) == "INT64[5000]"


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Flatten <axis = 1> (x)", "[2, 15]"),
        ("y = Flatten <axis = -1> (x)", "[6, 5]"),
        ("y = Unsqueeze (x, axes)", "[1, 2, 3, 1, 5]"),
        ("y = Add (x, row)", "[2, 3, 5]"),
        ("y = Where (c, row, x)", "[4, 2, 3, 5]"),
    ],
)
def test_shapes_are_those_of_the_definitions(body: str, shape: str) -> None:
    model = lying(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 3, 5] x, bool[4, 1, 1, 1] c, float[3, 1] row) => (float y)
        <int64[2] axes = {{0, 3}}> {{ {body} }}""")
    assert facts(model)["y"] == f"FLOAT{shape}"


def test_rows_of_a_table_for_each_place_have_the_length_of_the_data() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        g (float[N, S, 2] x) => (float[A, B, 2] y)
        <int64[1] zero = {0}, int64[1] first = {1}, int64 last = {1}, int64[1] front = {0},
         int64[1, 3] table = {0, 1, 2}, int64[1] behind = {-1}> {
            shape = Shape (x)
            count = Gather (shape, last)
            end = Unsqueeze (count, front)
            ids = Slice (table, zero, end, first)
            numbers = Cast <to = 1> (ids)
            column = Unsqueeze (numbers, behind)
            y = Add (column, x)
        }""")
    known = facts(model)
    assert known["ids"] == "INT64[1, min(input0_1, 3)]"
    assert known["y"] == "FLOAT[input0_0, input0_1, 2]"
    assert size_limits(model) == {"input0_1": 3}
    assert size_limits(model, {"x": (1, 2, 2)}) == {}


def test_branches_that_may_not_run_limit_no_size() -> None:
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21]>
        g (float[S] x, bool b) => (float[A] y)
        <int64[1] zero = {0}, int64[1] one = {1}, float[3] table = {0, 1, 2}> {
            count = Shape (x)
            cut = Slice (table, zero, count)
            y = If (b) <
                then_branch = t () => (float[B] u) { u = Add (cut, x) },
                else_branch = e () => (float[C] v) { v = Identity (x) }
            >
        }""")
    assert size_limits(model) == {}


@pytest.mark.parametrize(
    ("data", "wanted", "shape"),
    [
        ("flat", "N, S", "input0_0, input0_1"),
        ("flat", "N, one, S", "input0_0, 1, input0_1"),
        ("flat", "one, one, N, S", "1, 1, input0_0, input0_1"),
        ("x", "N, one, S", "input0_0, 1, input0_1"),
        ("x", "S, one, N", "?, 1, input0_0"),
        ("x", "one, S, N", "1, input0_1, input0_0"),
        ("x", "one, N, S", "1, ?, input0_1"),
    ],
)
def test_wanted_sizes_stand_for_themselves_where_a_0_keeps_a_0(
    data: str, wanted: str, shape: str
) -> None:
    known = facts(
        ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N, S] x) => (y)
        <int64[1] one = {{1}}, int64[1] all = {{-1}}, int64[1] first = {{0}},
         int64[1] last = {{1}}> {{
            shape = Shape (x)
            N = Gather (shape, first)
            S = Gather (shape, last)
            target = Concat <axis = 0> ({wanted})
            flat = Reshape (x, all)
            y = Reshape ({data}, target)
        }}""")
    )
    assert known["y"] == f"FLOAT[{shape}]"


@pytest.mark.parametrize("operator", ["Reshape", "Expand", "Tile"])
@pytest.mark.parametrize("kind", ["double", "float"])
def test_sizes_that_are_no_integers_leave_the_shape_open(operator, kind):
    """Such models violate the definition; the rest of them is still read."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2,3] x) => (float[a,b] y) <{kind}[2] s = {{3, 2}}> {{
            y = {operator} (x, s)
            z = Neg (x)
        }}"""
    )
    assert facts(model) == {"y": "FLOAT[...]", "z": "FLOAT[2, 3]"}


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("split", "attributes", "expected"),
    [
        ("p", "axis = 1", "FLOAT[input0_0, 3]"),
        ("r", "axis = -1", "FLOAT[input0_0, ?]"),
        ("l", "axis = 1", "FLOAT[input0_0, ?]"),
        ("e", "axis = 1", "FLOAT[input0_0, 2]"),
        ("", "axis = 1", "FLOAT[input0_0, 1]"),
        ("", "axis = 1, keepdims = 0", "FLOAT[input0_0]"),
    ],
)
def test_elements_of_a_sequence_are_inferred(split: str, attributes: str, expected: str) -> None:
    """As torch writes ``chunk``: parts of 3, of 4 with a rest, of sizes (1, 5) and (2, 2, 2)."""
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[N,6] x) => (float[a,b] y)
    <int64 p = {{3}}, int64 r = {{4}}, int64[2] l = {{1, 5}}, int64[3] e = {{2, 2, 2}},
     int64 last = {{-1}}> {{
        s = SplitToSequence <{attributes}> (x{", " * bool(split)}{split})
        y = SequenceAt (s, last)
    }}""")
    found = facts(model)
    assert found == {"s": "?[...]", "y": expected}
    model.graph.outputs[0].shape = None
    proto = ir.to_proto(model)
    session = pytest.importorskip("onnxruntime").InferenceSession(proto.SerializeToString())
    (y,) = session.run(None, {"x": np.zeros((5, 6), np.float32)})
    sizes = expected.removeprefix("FLOAT[").removesuffix("]").split(", ")
    assert len(sizes) == y.ndim
    assert all(size in ("input0_0", "?", str(n)) for size, n in zip(sizes, y.shape, strict=True))

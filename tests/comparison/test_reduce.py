"""Models that differ are cut down to the place where they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.comparison.check import Inputs, check
from qgraph.comparison.divergence import excerpt, frontier
from qgraph.comparison.reduce import Reduction, reduce
from qgraph.errors import QGraphError, UndecidedError
from qgraph.model import Model

pytestmark = pytest.mark.sums

IMPORTS = '"": 21, "qonnx.custom_op.general": 1'
QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'


def model(body: str) -> Model:
    return Model(ir.from_onnx_text(f"<ir_version: 10, opset_import: [{IMPORTS}]> {body}"))


NET = f"""g (float[N,3] x) => (float[N,3] y) <float s = {{0.1}}, float t = {{T}}, float z = {{0}},
    float b = {{8}}, float[3,3] w = {{1, 0.5, -2, 0.3, -1, 0.7, 2, 1, -0.4}}> {{
    q = {QUANT} (x, s, z, b)
    m = MatMul (q, w)
    a = Relu (m)
    r = {QUANT} (a, t, z, b)
    n = MatMul (r, w)
    y = Add (n, q)
}}"""


def net(scale: str = "0.25") -> Model:
    return model(NET.replace("T}", f"{scale}}}"))


def operators(part: ir.Model) -> list[str]:
    return [node.op_type for node in part.graph]


def replay(found: Reduction, folder: Path) -> None:
    """See that the files show what the reduction says."""
    files = found.save(folder)
    with np.load(files[2]) as content:
        inputs = dict(content)
    report = check(files[0], files[1], inputs, backend="numpy")
    assert report.verdict == "different"
    assert report.outputs[0].mismatches == found.compared.mismatches
    assert report.outputs[0].max_abs == found.compared.max_abs


def test_one_node_and_one_sample_are_left(tmp_path: Path) -> None:
    found = reduce(net(), net("0.3"), Inputs(random=1, shapes={"x": (16, 3)}), backend="numpy")
    assert (found.tensor, found.node, found.op) == ("r", "r", "qonnx.custom_op.general::Quant")
    assert operators(found.reference) == operators(found.candidate) == ["Quant"]
    assert (found.nodes, found.nodes_before) == ((1, 1), (6, 6))
    assert {name: x.shape for name, x in found.inputs.items()} == {"a": (1, 3)}
    replay(found, tmp_path / "new" / "folder")


def test_other_names_and_other_forms_meet_at_equal_tensors(tmp_path: Path) -> None:
    """The candidate has other names, and three operators for one."""
    body = (
        NET.replace("T}", "0.25}")
        .replace("a = Relu (m)", "k = Neg (m) l = Min (k, z) r = Neg (l)")
        .replace(f"r = {QUANT} (a,", f"v = {QUANT} (r,")
        .replace("MatMul (r, w)", "MatMul (v, w)")
    )
    same = model(body)
    report = check(net(), same, Inputs(random=4), backend="numpy")
    assert report.verdict == "equal"
    candidate = model(
        body.replace("float z = {0}", "float z = {0}, float o = {1}").replace(
            "Min (k, z)", "Min (k, o)"
        )
    )
    found = reduce(net(), candidate, Inputs(shapes={"x": (8, 3)}), backend="numpy")
    assert found.tensor == "r"
    assert operators(found.reference) == ["Relu", "Quant"]
    assert operators(found.candidate) == ["Neg", "Min", "Neg", "Quant"]
    assert list(found.inputs) == ["m"]
    replay(found, tmp_path)


def test_two_ways_lead_to_the_difference(tmp_path: Path) -> None:
    text = (
        "g (float[N,2] x, float[N,2] u) => (float[N,2] y) { a = Abs (x) b = Neg (u) y = F (a, b) }"
    )
    found = reduce(
        model(text.replace("F", "Add")), model(text.replace("F", "Sub")), backend="numpy"
    )
    assert sorted(found.inputs) == ["a", "b"]
    assert operators(found.candidate) == ["Sub"]
    replay(found, tmp_path)


def test_a_value_that_one_side_alone_uses_is_an_input_of_both(tmp_path: Path) -> None:
    text = "g (float[N,2] x) => (float[N,2] y) { a = Abs (x) b = Neg (x) y = Mul (P, b) }"
    found = reduce(model(text.replace("P", "a")), model(text.replace("P", "b")), backend="numpy")
    for part in (found.reference, found.candidate):
        assert {value.name for value in part.graph.inputs} == set(found.inputs) == {"a", "b"}
    replay(found, tmp_path)


def test_weights_that_differ_need_no_input(tmp_path: Path) -> None:
    """One model computes the weight, the other has it stored, and wrong."""
    reference = model(
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float s = {1}, "
        f"float z = {{0}}, float b = {{4}}> {{ q = {QUANT} (w, s, z, b) y = MatMul (x, q) }}"
    )
    candidate = model(
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] q = {1, 2, 3, 5}> { y = MatMul (x, q) }"
    )
    found = reduce(reference, candidate, backend="numpy")
    assert (found.tensor, found.inputs) == ("q", {})
    assert operators(found.candidate) == ["Identity"]
    assert found.compared.mismatches == 1
    replay(found, tmp_path)
    files = [tmp_path / name for name in ("reference.onnx", "candidate.onnx")]
    report = check(*files, backend="numpy")
    assert report.first_divergence is not None
    assert report.first_divergence.reference == "q"


def test_a_difference_that_names_swap_is_found(tmp_path: Path) -> None:
    """The names of two tensors are exchanged in the candidate."""
    reference = model(
        "g (float[N,2] x) => (float[N,2] y) { a = Abs (x) b = Exp (x) y = Sub (a, b) }"
    )
    candidate = model(
        "g (float[N,2] x) => (float[N,2] y) { b = Abs (x) a = Exp (x) y = Add (b, a) }"
    )
    found = reduce(reference, candidate, backend="numpy")
    assert operators(found.candidate) == ["Add"]
    replay(found, tmp_path)


def test_an_output_of_another_shape_is_a_difference(tmp_path: Path) -> None:
    text = "g (float[N,2] x) => (y) { a = Abs (x) y = OP (a) }"
    found = reduce(
        model(text.replace("OP", "Neg")),
        model(text.replace("OP (a)", "Flatten <axis = 0> (a)")),
        backend="numpy",
    )
    assert operators(found.candidate) == ["Flatten"]
    files = found.save(tmp_path)
    with np.load(files[2]) as content:
        assert check(files[0], files[1], dict(content)).verdict == "different"


BRANCHES = """g (float[N,2] x, bool c) => (float[N,2] y) {
    a = Abs (x) n = Neg (x)
    y = If (c) <
        then_branch = t () => (float[N,2] p) { p = OP (a, n) },
        else_branch = e () => (float[N,2] r) { r = Identity (a) }
    >
}"""


def test_a_difference_inside_a_branch_is_one_of_the_node_that_has_it(tmp_path: Path) -> None:
    found = reduce(
        model(BRANCHES.replace("OP", "Add")),
        model(BRANCHES.replace("OP", "Sub")),
        {"x": np.ones((1, 2), np.float32), "c": np.asarray(True)},
        backend="numpy",
    )
    assert operators(found.reference) == operators(found.candidate) == ["If"]
    assert set(found.inputs) == {"a", "n", "c"}
    replay(found, tmp_path)


def test_functions_come_along(tmp_path: Path) -> None:
    def calling(operator: str) -> Model:
        text = (
            '<ir_version: 10, opset_import: ["": 21, "own": 1]> '
            "g (float[N,2] x) => (float[N,2] y) { a = Abs (x) b = own.f (a) y = Neg (b) } "
            '<domain: "own", opset_import: ["": 21]> f (u) => (v) '
            f"{{ w = Neg (u) v = {operator} (w) }}"
        )
        return Model(ir.from_onnx_text(text))

    found = reduce(calling("Exp"), calling("Abs"), backend="numpy")
    assert operators(found.reference) == ["f"]
    assert len(found.reference.functions) == 1
    replay(found, tmp_path)


def test_equal_models_cannot_be_reduced() -> None:
    with pytest.raises(UndecidedError, match="equal on the 3 batches of inputs, expected a diff"):
        reduce(net(), net(), Inputs(random=3), backend="numpy")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = reduce(net(), net("0.3"), backend="numpy")
    with pytest.raises(QGraphError, match="cannot be created"):
        found.save(tmp_path / "file")


def test_the_way_back_ends_where_it_is_told() -> None:
    graph = net().ir.graph
    values = {str(v.name): v for node in graph for v in node.outputs}
    ends = frontier(graph, values["y"], {values["q"], values["r"]})
    assert [value.name for value in ends] == ["q", "r"]
    assert [value.name for value in frontier(graph, values["q"], set())] == ["x"]


def test_names_inside_a_part_make_room_for_those_of_its_inputs() -> None:
    m = model("g (float[2] x) => (float[2] y) { a = Abs (x) b = Neg (a) y = Exp (b) }")
    part = excerpt(m, [("a", "b")], ("y", "out"), ["spare"])
    assert [value.name for value in part.graph.inputs] == ["b", "spare"]
    assert [value.name for value in part.graph.outputs] == ["out"]
    x = np.asarray([1, 2], np.float32)
    found = Model(part).run({"b": x, "spare": x}, backend="numpy")["out"]
    np.testing.assert_allclose(found, np.exp(-x), rtol=1e-6)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_an_ulp_in_a_real_model_is_one_node(models: Path, backend: str, tmp_path: Path) -> None:
    if backend == "ort":
        pytest.importorskip("onnxruntime")
    reference = qgraph.load(models / "brev_cnn_w4a4.onnx")
    candidate = reference.clone()
    node = next(n for n in candidate.nodes("Quant") if "/r4/" in str(n.outputs[0].name))
    scale = node.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    ulp = np.nextafter(scale.const_value.numpy(), np.float32(1))
    scale.const_value = ir.tensor(ulp, name=scale.name)
    x = np.load(models / "brev_cnn_w4a4.npz")["x"]
    found = reduce(reference, candidate, {"x": x}, backend=backend)
    assert found.tensor == node.outputs[0].name
    assert found.nodes == (1, 1)
    assert [array.shape[0] for array in found.inputs.values()] == [1]
    replay(found, tmp_path)

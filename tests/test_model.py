"""A model changes as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

import qgraph
from qgraph.errors import ModelError, OperatorError, QGraphError
from qgraph.model import Model, load
from qgraph.reports import Report, SiteReport, SiteStatus

TEXT = """
<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[2] x, bool c, float[2] w) => (float[2] y) <float[2] w = {1, -2}, float[2] v = {3, 4}> {
    t = local.twice (x)
    q = onnx.brevitas.Quant (t, v)
    y = If (c) <then_branch = a () => (float[2] p) { p = Add (q, w) },
                else_branch = b () => (float[2] r) { r = Quant (q) }>
}
<domain: "local", opset_import: ["": 21]> twice (u) => (s) { s = Add (u, u) }
"""


@pytest.fixture
def model() -> Model:
    return load(ir.from_onnx_text(TEXT))


class Rename(ir.passes.InPlacePass):
    """A pass of ours in spirit: it reports what it did."""

    name = "rename"

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.graph[0].name = "renamed"
        result = ir.passes.PassResult(model, modified=True)
        site = SiteReport("renamed", "local::twice", "rename", SiteStatus.CHANGED)
        result.report = Report([site])  # type: ignore[attr-defined]
        return result


class Negate(ir.passes.FunctionalPass):
    """A foreign pass that returns another model, without a report."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        other = model.clone()
        other.graph[0].op_type = "thrice"
        return ir.passes.PassResult(other, modified=True)


class Break(ir.passes.InPlacePass):
    """A pass that fails half-way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.graph[0].name = "half-way"
        raise self.error


class Confuse(ir.passes.InPlacePass):
    """A pass that gives two values one name."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.graph[1].outputs[0].name = "t"
        return ir.passes.PassResult(model, modified=True)


def text_of(model: Model) -> bytes:
    return ir.to_proto(model.ir).SerializeToString(deterministic=True)


class TestLoad:
    def test_everything_a_model_can_come_from(self, tmp_path: Path) -> None:
        proto = ir.to_proto(ir.from_onnx_text(TEXT))
        path = tmp_path / "m.onnx"
        path.write_bytes(proto.SerializeToString())
        texts = {text_of(load(s)) for s in (proto, ir.from_proto(proto), path, str(path))}
        assert len(texts) == 1
        assert load(path).path == path
        assert load(proto).path is None

    def test_a_model_is_itself(self, model: Model) -> None:
        assert load(model) is model
        assert qgraph.load(model) is model

    def test_a_proto_of_the_caller_is_not_touched(self) -> None:
        proto = ir.to_proto(ir.from_onnx_text(TEXT))
        before = proto.SerializeToString(deterministic=True)
        model = load(proto)
        model.ir.graph.initializers["v"].name = "other"
        text_of(model)
        assert proto.SerializeToString(deterministic=True) == before

    def test_what_is_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no graph"):
            load(onnx.ModelProto())
        with pytest.raises(ModelError, match="no such file"):
            load(tmp_path / "none.onnx")


class TestLook:
    def test_nodes_of_graph_branches_and_functions(self, model: Model) -> None:
        assert [n.op_type for n in model.nodes()] == ["twice", "Quant", "If", "Add", "Quant", "Add"]

    def test_nodes_by_operator(self, model: Model) -> None:
        assert len(list(model.nodes("Quant"))) == 2
        assert [n.domain for n in model.nodes("onnx.brevitas::Quant")] == ["onnx.brevitas"]
        assert [n.domain for n in model.nodes("::Quant")] == [""]
        assert len(list(model.nodes("If", "Add"))) == 3

    def test_nodes_may_be_removed_on_the_way(self, model: Model) -> None:
        for node in model.nodes("Add"):
            if node.graph is not None:
                node.graph.insert_after(node, ir.node("Neg", [node.outputs[0]]))
        assert len(list(model.nodes("Neg"))) == 2

    def test_inputs_are_those_that_must_be_fed(self, model: Model) -> None:
        assert [value.name for value in model.inputs] == ["x", "c"]
        assert [value.name for value in model.outputs] == ["y"]

    def test_an_overridable_initializer_is_constant_once_frozen(self, model: Model) -> None:
        weight = model.ir.graph.initializers["w"]
        assert model.constant(weight) is None
        assert model.freeze_inputs() == 1
        assert model.constant(weight).tolist() == [1, -2]  # type: ignore[union-attr]
        assert model.freeze_inputs() == 0


class TestClone:
    def test_a_clone_changes_alone_and_shares_weights(self, model: Model) -> None:
        before, copy = text_of(model), model.clone()
        assert text_of(copy) == before
        copy.freeze_inputs()
        copy.ir.graph[0].name = "other"
        copy.ir.opset_imports["new"] = 1
        copy.ir.metadata_props["k"] = "v"
        assert text_of(model) == before
        weights = [m.ir.graph.initializers["v"].const_value for m in (model, copy)]
        assert weights[0] is weights[1]

    def test_real_models_are_cloned_whole(self, models: Path) -> None:
        for path in sorted(models.glob("*.onnx")):
            original = load(path)
            assert text_of(original.clone()) == text_of(original), path.name


class TestApply:
    def test_steps_run_in_order_and_report(self, model: Model) -> None:
        given = model.ir
        report = model.apply(Rename(), Negate())
        assert [site.node for site in report] == ["renamed"]
        assert (model.ir.graph[0].name, model.ir.graph[0].op_type) == ("renamed", "thrice")
        assert given.graph[0].name != "renamed", "the model that was given is not touched"

    def test_inputs_are_frozen_and_domains_declared(self, model: Model) -> None:
        report = model.apply()
        assert report.frozen_inputs == 1
        assert report.notes == ["declared operator sets: onnx.brevitas 1"]
        assert [value.name for value in model.ir.graph.inputs] == ["x", "c"]
        again = model.apply()
        assert (again.frozen_inputs, again.notes) == (0, [])

    def test_inputs_are_kept_on_request(self, model: Model) -> None:
        assert model.apply(keep_inputs=True).frozen_inputs == 0
        assert [value.name for value in model.ir.graph.inputs] == ["x", "c", "w"]

    def test_weight_bytes_before_and_after(self, model: Model) -> None:
        class Drop(ir.passes.InPlacePass):
            def call(self, model: ir.Model) -> ir.passes.PassResult:
                (node,) = [n for n in model.graph if n.op_type == "Quant"]
                node.replace_input_with(1, None)
                del model.graph.initializers["v"]
                return ir.passes.PassResult(model, modified=True)

        report = model.apply(Drop(), Rename())
        assert (report.weight_bytes_before, report.weight_bytes_after) == (16, 8)

    def test_passes_of_onnx_ir_mix_in(self, model: Model) -> None:
        model.apply(RemoveUnusedFunctionsPass(), Rename())
        assert model.ir.graph[0].name == "renamed"

    @pytest.mark.parametrize("kind", ["alone", "managed", "condition"])
    def test_an_error_of_ours_comes_through_and_the_model_is_as_it_was(
        self, model: Model, kind: str
    ) -> None:
        before = text_of(model)
        step: ir.passes.PassBase = Break(OperatorError("the scale is a banana"))
        if kind == "managed":
            step = ir.passes.PassManager([Rename(), step])
        if kind == "condition":

            class Fussy(Rename):
                def requires(self, model: ir.Model) -> None:
                    raise OperatorError("the scale is a banana")

            step = Fussy()
        with pytest.raises(OperatorError, match="banana") as failure:
            model.apply(Rename(), step)
        assert "the model is as it was" in failure.value.__notes__[0]
        assert text_of(model) == before

    def test_an_error_of_others_is_told_with_the_name_of_the_pass(self, model: Model) -> None:
        before, cause = text_of(model), KeyError("gone")
        text = r"Pass Break could not handle the model \(KeyError: 'gone'\)"
        with pytest.raises(QGraphError, match=text) as failure:
            model.apply(Rename(), Break(cause))
        assert failure.value.__cause__ is cause
        assert text_of(model) == before

    def test_an_interrupt_leaves_the_model_as_it_was(self, model: Model) -> None:
        class Interrupted(Rename):
            def call(self, model: ir.Model) -> ir.passes.PassResult:
                super().call(model)
                raise KeyboardInterrupt

        before = text_of(model)
        with pytest.raises(KeyboardInterrupt):
            model.apply(Interrupted())
        assert text_of(model) == before

    def test_two_values_of_one_name_are_refused(self, model: Model) -> None:
        before = text_of(model)
        with pytest.raises(ModelError, match="'t' is given to two values"):
            model.apply(Confuse())
        assert text_of(model) == before


class TestSave:
    def test_a_saved_model_is_loaded_as_it_was(self, model: Model, tmp_path: Path) -> None:
        model.save(tmp_path / "m.onnx")
        assert text_of(load(tmp_path / "m.onnx")) == text_of(model)

    def test_weights_of_data_files_stay_in_data_files_also_when_computed_anew(
        self, model: Model, tmp_path: Path
    ) -> None:
        large = ir.tensor(np.zeros(1000, np.float32))
        model.ir.graph.initializers["v"].const_value = large
        model.save(tmp_path / "a.onnx", external_data=True)
        loaded = load(tmp_path / "a.onnx").clone()
        loaded.apply()
        loaded.ir.graph.initializers["v"].const_value = large
        loaded.save(tmp_path / "b.onnx")
        assert (tmp_path / "b.onnx.data").stat().st_size == 4000
        loaded.save(tmp_path / "c.onnx", external_data=False)
        assert not (tmp_path / "c.onnx.data").exists()
        loaded.save(tmp_path / "d.onnx", shard_bytes=500)
        assert (tmp_path / "d.onnx.data").exists()


def test_run_hands_over_to_the_executor() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y)'
    model = load(ir.from_onnx_text(text + " { t = Neg (x) y = Abs (t) }"))
    outputs = model.run({"x": np.array([1, -2], np.float32)}, backend="numpy", taps=["t"])
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "y": [1, 2],
        "t": [-1, 2],
    }

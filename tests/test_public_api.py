"""The public API: what ``qgraph`` offers, how objects show themselves, and what it refuses."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph import plugin
from qgraph.cli import commands
from qgraph.errors import ExecutionError, OptionError
from tests.user_script import main as user_script

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "digits_brevitas.onnx"
BODY = """<ir_version: 10, opset_import: ["": 13]>
g (float[N,2] x) => (float[N,2] y) <float s = {0.5}, uint8 z = {128}> {
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    y = Relu (d)
}"""
X = np.linspace(-9, 9, 8, dtype=np.float32).reshape(4, 2)
METHODS = {"run"}
"""Commands that are a method of the model."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.run(7), "inputs is 7 (int), expected arrays by the names of inputs"),
        (
            lambda m: m.run(None),
            "inputs is None (NoneType), expected arrays by the names of inputs",
        ),
        (lambda m: qgraph.lint(m, inputs=7), "inputs is 7 (int), expected arrays"),
        (lambda m: m.save(None), "path is None (NoneType), expected the path of a file"),
        (lambda m: m.constant("w"), "value is 'w', expected an onnx_ir.Value"),
        (lambda m: qgraph.convert(m, "qdq", output=7), "output is 7 (int), expected the path"),
        (lambda m: qgraph.check_lock(m, None), "lock is None (NoneType), expected the path"),
        (lambda m: qgraph.explain(3), "reason_id is 3 (int), expected an id"),
        (lambda m: m.run({"x": X}, taps="y"), "taps is 'y', expected a list of names of tensors"),
        (lambda m: qgraph.lint(m, ignore=7), "a list of rules is 7 (int), expected ids"),
        (lambda m: qgraph.lint(m, select=[7]), "a rule is 7 (int), expected an id"),
        (lambda m: qgraph.plot(m, None), "node is None (NoneType), expected the name of a node"),
        (lambda m: qgraph.time_limit("x").__enter__(), "a time limit is 'x', expected a number"),
        (lambda m: qgraph.deploy(m, "iree", keep=7), "keep is 7 (int), expected patterns of names"),
        (lambda m: qgraph.why(m, m, np.ones((1, 2))), "expected arrays by the names of inputs"),
        (lambda m: qgraph.Inputs(random="two"), "random is 'two', expected a whole number"),
        (lambda m: qgraph.Inputs(seed=-1), "seed is -1, expected a number that is not negative"),
        (lambda m: qgraph.Inputs(shapes=3), "shapes is 3 (int), expected sizes by the names"),
        (
            lambda m: qgraph.check(m, m, tolerances=0.1),
            "tolerances is 0.1 (float), expected",
        ),
        (lambda m: qgraph.check(m, m, scoring=[1, 2]), "expected qgraph.Scoring"),
        (
            lambda m: qgraph.check(m, m, tolerances=qgraph.Tolerances(atol="1")),
            "atol is '1', expected a number",
        ),
        (
            lambda m: qgraph.check(m, m, {"x": X}, scoring=qgraph.Scoring("label")),
            "labels are of type <U5, expected an array with the number of the right answer",
        ),
        (lambda m: qgraph.prove(m, m, within=3), "within is 3 (int), expected limits such as"),
        (lambda m: qgraph.deploy(m, 3), "target is 3 (int), expected the name of a target"),
        (lambda m: m.apply("fold-weights"), "a pass is 'fold-weights', expected an object of"),
        (lambda m: qgraph.Model("in.onnx"), "the model is 'in.onnx', expected an onnx_ir.Model"),
        (lambda m: qgraph.bench("in.onnx"), "models is 'in.onnx', expected a list of paths"),
        (lambda m: qgraph.verify({}, m, m), "the certificate is {} (dict), expected"),
        (lambda m: qgraph.report("r.json"), "the document is 'r.json', expected a report"),
    ],
)
def test_an_argument_of_another_type_says_what_is_expected(
    model: qgraph.Model, call: Callable[[qgraph.Model], object], message: str
) -> None:
    with pytest.raises(OptionError) as error:
        call(model)
    assert message in str(error.value)


def test_a_target_is_a_path_too(model: qgraph.Model, tmp_path: Path) -> None:
    profile = Path(qgraph.targets.__file__).with_name("iree.toml")
    copied = shutil.copy(profile, tmp_path / "mine.toml")
    assert qgraph.lint(model, Path(copied)) == qgraph.lint(model, str(copied))


def test_a_report_is_written_from_the_object_itself(model: qgraph.Model) -> None:
    converted = qgraph.convert(model.clone(), to="qonnx")
    assert "changed" in qgraph.report(converted, "markdown")
    assert "quantizer" in qgraph.report(qgraph.info(model), "markdown")
    differing = qgraph.check(model, _shifted(), {"x": X})
    assert qgraph.report(differing, "junit") == qgraph.report(differing.to_json(), "junit")


def test_what_is_found_shows_itself_in_one_line(model: qgraph.Model) -> None:
    reduced = qgraph.reduce(model, _shifted(), {"x": X})
    assert repr(reduced) == f"<Reduction: {reduced.tensor!r}, parts of 1 and 1 nodes>"
    proof = qgraph.prove(model, model)
    assert repr(qgraph.verify(proof, model, model)).startswith("<Verification: proved, regions ")
    changed = model.clone()
    (site,) = qgraph.convert(changed, to="onnx")
    (region,) = qgraph.prove(model, changed).regions
    (finding, *_) = qgraph.lint(EXAMPLE)
    for thing, beginning in (
        (site, f"<changed by convert, {site.node!r}: "),
        (region, f"<proved, {region.reference_value!r} and {region.candidate_value!r}: "),
        (finding, f"<{finding.severity} {finding.rule.id} {finding.rule.name}, "),
        (qgraph.targets("iree")[0], "<Profile: iree, IREE"),
    ):
        assert repr(thing).startswith(beginning)
        assert "\n" not in repr(thing)


def _shifted() -> qgraph.Model:
    """Return the model with another scale."""
    return qgraph.load(ir.from_onnx_text(BODY.replace("0.5", "0.25")))


def test_the_reference_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "README.md").read_text()
    public = {f"qgraph.{name}" for name in qgraph.__all__ if not name.startswith("__")}
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == public | set(plugin.__all__)


@pytest.fixture
def model() -> qgraph.Model:
    return qgraph.load(ir.from_onnx_text(BODY))


def test_every_command_is_a_function() -> None:
    for info in pkgutil.iter_modules(commands.__path__):
        if info.name in METHODS:
            assert callable(getattr(qgraph.Model, info.name))
        else:
            assert info.name in qgraph.__all__
            assert callable(getattr(qgraph, info.name))


def test_functions_stay_callable_when_a_package_has_their_name(model: qgraph.Model) -> None:
    importlib.import_module("qgraph.verify.verify")
    importlib.import_module("qgraph.targets.reader")
    assert [target.name for target in qgraph.targets("finn")] == ["finn"]
    certificate = qgraph.prove(model, model)
    assert qgraph.verify(certificate, model, model).verdict == "proved"


def test_dir_lists_public_names_and_submodules_only() -> None:
    for name in dir(qgraph):
        is_dunder = name[:2] == name[-2:] == "__"
        assert is_dunder or name in qgraph.__all__ or f"qgraph.{name}" in sys.modules


def test_public_functions_have_few_parameters_and_docstrings() -> None:
    for name in qgraph.__all__:
        found = getattr(qgraph, name)
        assert name == "__version__" or inspect.getdoc(found), name
        if inspect.isfunction(found):
            assert len(inspect.signature(found).parameters) <= 8, name


@pytest.mark.slow
def test_a_script_that_uses_all_of_it(tmp_path: Path) -> None:
    shown = user_script(str(EXAMPLE), tmp_path).splitlines()
    assert shown[0].startswith("<Report: ")
    assert all(line.startswith("<") and line.endswith(">") for line in shown[:9])
    assert "proved" in shown[2]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("checker", "options"),
    [
        pytest.param("mypy", ["--strict", "--follow-imports=silent"], marks=pytest.mark.exhaustive),
        ("pyright", []),
    ],
)
def test_type_checkers_accept_that_script(checker: str, options: list[str], tmp_path: Path) -> None:
    pytest.importorskip(checker, reason=f"{checker} is not installed (extra dev)")
    (tmp_path / "qgraph").mkdir()  # laid out as installed
    for entry in [*(ROOT / "qgraph").iterdir(), ROOT / "transforms", ROOT / "cli"]:
        (tmp_path / "qgraph" / entry.name).symlink_to(entry)
    good = ROOT / "tests" / "user_script.py"
    wrong = tmp_path / "wrong.py"
    wrong.write_text(good.read_text().replace('exact="values"', 'exact="value"'))
    done = subprocess.run(
        [sys.executable, "-m", checker, *options, str(shutil.copy(good, tmp_path)), str(wrong)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(re.findall(r"(\w+\.py):\d+:.*error", done.stdout)) == {"wrong.py"}, done.stdout


class OnlyDLPack:
    """What some libraries pass: arrays without ``__array__``."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_inputs_may_be_tensors_of_other_libraries(model: qgraph.Model) -> None:
    x = np.array([[0.3, -2.0]], np.float32)
    assert model.run({"x": OnlyDLPack(x)}, backend="numpy")["y"].tolist() == [[0.5, 0.0]]


def test_notebooks_show_pages(model: qgraph.Model) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    report = qgraph.convert(changed := model.clone(), to="onnx")
    for thing in (model, report, qgraph.info(model), qgraph.check(model, changed)):
        page = thing._repr_html_()
        assert page is not None
        assert ("qgraph convert" in page) is (thing is report)
        assert page.startswith("<iframe srcdoc=")
        assert "\n" not in repr(thing)


def test_notebooks_show_findings_and_differences(model: qgraph.Model) -> None:
    """These need no library that draws."""
    report = qgraph.convert(changed := model.clone(), to="onnx")
    certificate = qgraph.prove(model, changed)
    things = (
        report.sites[0],
        certificate.regions[0],
        qgraph.verify(certificate, model, changed),
        qgraph.lint(model)[0],
        qgraph.diff(model, changed),
        qgraph.explain("QG101"),
    )
    for thing in things:
        page = thing._repr_html_()
        assert page.startswith(("<table>", "<pre>"))
        assert "\n" not in repr(thing)
    assert "<th>id</th><td>QG101</td>" in things[-1]._repr_html_()


def test_notebooks_show_text_without_the_libraries_that_draw(
    model: qgraph.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert model._repr_html_() is None


def test_a_rewrite_needs_a_model_or_an_output(model: qgraph.Model, tmp_path: Path) -> None:
    for call in (
        lambda m: qgraph.convert(m, to="onnx"),
        qgraph.fold,
        lambda m: qgraph.transform(m, "fold-weights"),
    ):
        with pytest.raises(OptionError, match=r"Load it first \(qgraph.load\), or name the output"):
            call(EXAMPLE)
    out = tmp_path / "out.onnx"
    before = model.to_proto().SerializeToString()
    assert qgraph.convert(model, to="onnx", output=out).count("changed") == 1
    assert model.to_proto().SerializeToString() == before
    assert not any(node.op_type == "QuantizeLinear" for node in onnx.load(out).graph.node)


@pytest.mark.parametrize("wrong", [b"model", 3, None, [], open])
def test_something_that_is_no_model(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"expected a path, an onnx.ModelProto"):
        qgraph.load(wrong)  # type: ignore[arg-type]


def test_spare_arrays_are_left_out_with_a_warning(
    model: qgraph.Model, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.array([[1.2, -3]], np.float32)
    with caplog.at_level(logging.WARNING):
        assert model.run({"x": x, "label": np.ones(1)}, backend="numpy")["y"].tolist() == [[1, 0]]
    assert "their arrays are left out: 'label'" in caplog.text
    with pytest.raises(ExecutionError, match="has no input 'X', expected 'x'"):
        model.run({"X": x}, backend="numpy")


def test_inputs_may_be_files(model: qgraph.Model, tmp_path: Path) -> None:
    x = np.array([[1.2, -3]], np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "data.npz", x=x, label=np.ones(1))
    archive, single = tmp_path / "data.npz", tmp_path / "x.npy"
    for inputs in (archive, str(archive), {"x": single}, {"x": str(single)}):
        assert model.run(inputs, backend="numpy")["y"].tolist() == [[1, 0]]
        assert qgraph.check(model, model, inputs).outputs[0].elements == 2
        assert qgraph.why(model, model, inputs=inputs).quantizers
        assert qgraph.lint(model, select="QG8", inputs=inputs) is not None
    with pytest.raises(ExecutionError, match="there is no such file"):
        model.run(tmp_path / "none.npz")
    with pytest.raises(ExecutionError, match="it is an archive"):
        model.run({"x": archive})


def test_tensors_of_other_libraries_are_arrays(model: qgraph.Model) -> None:
    class Tensor:
        dtype = "torch.float32"

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([[2.0, -1.0]], np.float32)

    class Double(Tensor):
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.zeros((1, 2))

    class Broken:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise RuntimeError("it requires a gradient")

    assert model.run({"x": Tensor()}, backend="numpy")["y"].tolist() == [[2, 0]]
    with pytest.raises(ExecutionError, match="it requires a gradient"):
        model.run({"x": Broken()}, backend="numpy")
    with pytest.raises(ExecutionError, match=r"array of float64\. Convert it to float32 first\.$"):
        model.run({"x": Double()}, backend="numpy")


def test_tensors_of_types_that_numpy_lacks_are_arrays() -> None:
    class Tensor:
        dtype = "torch.bfloat16"

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise TypeError("Got unsupported ScalarType BFloat16")

        def float(self) -> np.ndarray:
            return np.array([1.5, -(2.0**-130)], np.float32)

    text = """<ir_version: 10, opset_import: ["": 21]>
        g (TYPE[2] x) => (float[2] y) { y = Cast <to = 1> (x) }"""
    model = qgraph.load(ir.from_onnx_text(text.replace("TYPE", "bfloat16")))
    assert model.run({"x": Tensor()}, backend="numpy")["y"].tolist() == [1.5, -(2.0**-130)]
    other = qgraph.load(ir.from_onnx_text(text.replace("TYPE", "float8e5m2")))
    with pytest.raises(ExecutionError, match="unsupported ScalarType"):
        other.run({"x": Tensor()}, backend="numpy")


@pytest.mark.parametrize("backend", ["numpy", pytest.param("ort", marks=pytest.mark.runtime)])
def test_tensors_of_torch_are_arrays(model: qgraph.Model, backend: str) -> None:
    torch = pytest.importorskip("torch")

    class Shared:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    x = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
    for fed in (x, x.T.contiguous().T, Shared(x)):
        y = model.run({"x": fed, "label": torch.arange(2)}, backend=backend)["y"]
        assert type(y) is np.ndarray
        assert y.tolist() == [[2, 0], [0.5, 3]]
    for wrong, message in ((x.requires_grad_(), "detach"), (x.double().detach(), "float64")):
        with pytest.raises(ExecutionError, match=message):
            model.run({"x": wrong}, backend=backend)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qgraph.Bounding(ranges=3), r"ranges is 3 \(int\), expected lowest"),
        (lambda: qgraph.Bounding(ranges={"x": 3}), r"range of 'x' is 3 \(int\), expected two"),
        (lambda: qgraph.Bounding(ranges={"x": ("a", 1)}), "range of 'x' is .*, expected two"),
        (lambda: qgraph.Timing(threads="2"), "threads is '2', expected a whole number"),
        (lambda: qgraph.Timing(rounds=None), "rounds is None .*, expected a whole number"),
        (
            lambda: qgraph.plot(EXAMPLE, "/x", channel="1"),
            "channel is '1', expected a whole number",
        ),
        (lambda: qgraph.Inputs(seed=None), "seed is None .*, expected a whole number"),
        (lambda: qgraph.Inputs(seed=int), "seed is .*, expected a whole number"),
        (lambda: qgraph.deploy(EXAMPLE, "tensorrt", keep=(1,)), "keep is 1 .*, expected patterns"),
        (lambda: qgraph.convert(EXAMPLE, "qdq", output="a\0"), "no file can have this name"),
        (lambda: qgraph.transform(qgraph.load(EXAMPLE)), "transform is given no pass, expected"),
        (
            lambda: qgraph.convert(qgraph.load(EXAMPLE), "qdq", values="nothing*"),
            r"values is 'nothing\*', and no result of a quantizer has such a name, expected",
        ),
    ],
)
def test_options_of_wrong_types_are_told(call: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()

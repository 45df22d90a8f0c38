"""What a user's script may look like: it uses the public API, and is checked by type checkers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import qgraph
from qgraph import transforms


def main(path: str, folder: Path) -> str:
    """Convert, fold, check and prove a model, and return what was found."""
    model = qgraph.load(path)
    overview: qgraph.Overview = qgraph.info(model)
    shape = [size if isinstance(size, int) else 1 for size in overview.inputs[0].shape or []]
    x = np.zeros(shape, np.float32)
    feeds = {overview.inputs[0].name: x}
    outputs = model.run(feeds, backend="numpy")
    first: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = next(iter(outputs.values()))
    converted = model.clone()
    report: qgraph.Report = qgraph.convert(converted, to="qdq", exact="values")
    qgraph.fold(model.clone(), exact=qgraph.Exactness.BITS, scale_type="smallest")
    qgraph.transform(model.clone(), "fold-constants", transforms.FoldBatchNorm())
    qgraph.transform(path, "fold-constants", output=folder / "folded.onnx")
    converted.apply(transforms.MakePortable())
    converted.save(folder / "converted.onnx")
    checked: qgraph.CheckReport = qgraph.check(path, converted, feeds, backend="numpy")
    with qgraph.time_limit(600):
        certificate: qgraph.Certificate = qgraph.prove(path, converted, within="1step")
    verification: qgraph.Verification = qgraph.verify(certificate, path, converted)
    differences: qgraph.ModelDifferences = qgraph.diff(path, converted)
    (folder / "model.lock").write_text(qgraph.lock(path))
    locked = qgraph.check_lock(converted, folder / "model.lock")
    deployment: qgraph.Deployment = qgraph.deploy(path, target="tensorrt")
    costs: qgraph.WhyReport = qgraph.why(path, converted, inputs=feeds, backend="numpy")
    findings: qgraph.LintReport = qgraph.lint(converted, target="tensorrt", select="QG4")
    fixes: qgraph.LintFixes = qgraph.fix(converted.clone(), select="QG4")
    reasons = [qgraph.explain(site.reason_id).meaning for site in report if site.reason_id]
    names = [target.name for target in qgraph.targets()] + [p.name for p in qgraph.passes()]
    page = qgraph.report(certificate.to_json(), form="markdown")
    size = model.to_proto().ByteSize()
    found = (
        report,
        checked,
        certificate,
        differences,
        deployment,
        costs,
        overview,
        model,
        locked,
        fixes,
    )
    told = (len(findings), first.size, size, verification.verdict, reasons, len(names), page)
    return "\n".join(map(repr, found)) + f"\n{told}"


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], Path(sys.argv[2])))

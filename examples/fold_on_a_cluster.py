"""Pack the weights of a big model on a Dask cluster.

    python examples/fold_on_a_cluster.py MODEL OUT [--scheduler ADDRESS] [--workers N]

The pass only plans. While the model is saved, parts of about 64 MB of each weight are read,
quantized, compared with the original values and written by the workers, which have to see the
folders of MODEL and OUT under the same paths. Without an address a cluster of local processes is
started. Any ``concurrent.futures.Executor`` can be handed in the same way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import distributed

import qgraph
from qgraph.transforms import FoldWeights


def main() -> None:
    """Fold one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scheduler", help="address of a running cluster, such as tcp://host:8786")
    parser.add_argument("--workers", type=int, default=2, help="of a local cluster")
    given = parser.parse_args()
    model = qgraph.load(given.model.resolve())
    report = model.apply(FoldWeights())
    local = {} if given.scheduler else {"n_workers": given.workers, "threads_per_worker": 1}
    with distributed.Client(given.scheduler, **local, dashboard_address=None) as client:
        model.save(given.out.resolve(), executor=client.get_executor())
    stored = report.stored()
    print(
        f"{stored['weights']} weights, {stored['bytes_before']} -> {stored['bytes_after']} bytes; "
        f"{stored['unchanged']} of {stored['elements']} values unchanged"
    )


if __name__ == "__main__":
    main()

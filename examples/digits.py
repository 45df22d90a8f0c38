"""Scikit-learn's 8x8 digits as the training scripts see them, and what both do with them.

Source of the images: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI
Machine Learning Repository, CC BY 4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

FOLDER = Path(__file__).parent
SEED = 2024
TEST_SIZE = 360


class Split(NamedTuple):
    """Images ``[n, 1, 8, 8]`` float32 in [0, 1], steps of 1/16, and their labels ``[n]`` int64."""

    x: Tensor
    label: Tensor


def load_split() -> tuple[Split, Split]:
    """Return training and held-out images; the split never changes, every class has its share."""
    digits = load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    label = digits.target.astype(np.int64)
    x_train, x_test, label_train, label_test = train_test_split(
        x, label, test_size=TEST_SIZE, stratify=label, random_state=0
    )
    return (
        Split(torch.from_numpy(x_train), torch.from_numpy(label_train)),
        Split(torch.from_numpy(x_test), torch.from_numpy(label_test)),
    )


def make_deterministic() -> None:
    """Fix seeds, kernels and the order of additions, so that a second run writes the same file."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)


def shuffled_batches(split: Split, size: int = 64) -> Iterator[Split]:
    """Yield the split once in random order; a rest smaller than a batch is left out."""
    order = torch.randperm(len(split.x))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield Split(split.x[chosen], split.label[chosen])


def train(network: nn.Module, split: Split, *, epochs: int, learning_rate: float) -> None:
    """Minimise the cross entropy with Adam and a cosine schedule; ends in eval mode."""
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loss_of = nn.CrossEntropyLoss()
    network.train()
    for _ in range(epochs):
        for batch in shuffled_batches(split):
            optimizer.zero_grad()
            loss_of(network(batch.x), batch.label).backward()
            optimizer.step()
        schedule.step()
    network.eval()


@torch.no_grad()
def accuracy(network: Callable[[Tensor], Tensor], split: Split) -> float:
    """Return the share of images whose largest output is the label."""
    return float((network(split.x).argmax(dim=1) == split.label).float().mean())


def save_test_set(split: Split) -> None:
    """Write the held-out images beside the models, as ``x`` and ``label``."""
    np.savez_compressed(FOLDER / "digits_test.npz", x=split.x.numpy(), label=split.label.numpy())

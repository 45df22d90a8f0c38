"""Transposed matrices of packed codes, against one code after the other."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics import chunks
from qgraph.numerics.chunks import transpose, transpose_packed


def code(row: np.ndarray, place: int, bits: int) -> int:
    return int(row[place * bits // 8]) >> place * bits % 8 & (1 << bits) - 1


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_code_c_of_row_r_becomes_code_r_of_row_c(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_GROUPS", 2)
    monkeypatch.setattr(chunks, "_WORDS", 32)
    rows, width = 75, 43
    data = np.random.default_rng(bits).integers(0, 256, (rows, 50), dtype=np.uint8)[
        :, 3 : 3 + width
    ]
    out = np.empty((width * 8 // bits, -(-rows * bits // 64) * 8), np.uint8)
    assert transpose_packed(data, bits, out)
    for r, c in np.ndindex(rows, len(out)):
        assert code(out[c], r, bits) == code(data[r], c, bits)
    beyond = range(rows, out.shape[1] * 8 // bits)
    assert not any(code(row, r, bits) for row in out for r in beyond)


def test_every_pair_of_bytes_of_nibbles() -> None:
    first, second = (pairs.ravel() for pairs in np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2))
    out = np.empty((2 * first.size, 8), np.uint8)
    assert transpose_packed(np.stack([first, second]), 4, out)
    low, high = out[:, 0].reshape(-1, 2).T
    assert np.array_equal(low, first % 16 + second % 16 * 16)
    assert np.array_equal(high, first // 16 + second // 16 * 16)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_fault_of_the_exchange_is_found(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = chunks._exchange

    def faulty(words: np.ndarray, bits: int, spare: np.ndarray) -> None:
        exchange(words, bits, spare)
        words[0, 0, 0] ^= np.uint64(1)

    monkeypatch.setattr(chunks, "_exchange", faulty)
    data = np.zeros((8, 16), np.uint8)
    assert not transpose_packed(data, bits, np.empty((16 * 8 // bits, 8), np.uint8))


def test_wide_elements_are_transposed_too() -> None:
    data = np.random.default_rng(0).random((300, 70), np.float32)
    out = np.empty((70, 300), np.float32)
    transpose(data, out)
    assert np.array_equal(out, data.T)

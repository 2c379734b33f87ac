"""64-bit hashes: of bytes, and pseudo-random numbers by mixing integers."""

from __future__ import annotations

import hashlib

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
"""The step of splitmix64: 2**64 divided by the golden ratio."""


def hash_bytes(data: bytes | memoryview) -> int:
    """Return 64 bits of the blake2b hash of ``data``."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def mix(x: np.ndarray) -> np.ndarray:
    """Apply the finaliser of splitmix64 (Steele et al. 2014), a permutation of 64-bit integers: uint64 -> uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def scramble(values: np.ndarray, seed: int) -> np.ndarray:
    """Map 64-bit values to pseudo-random ones, one-to-one: uint64 [N] -> [N]."""
    return mix(values + np.uint64((seed + 1) * GOLDEN % 2**64))


def seed_of(*numbers: int) -> int:
    """Return a seed below 2**63 that differs for other numbers, or for the same ones in another order.

    The numbers, which are from 0 to 2**61 - 2, are combined as in xxHash (XXH64 of Yann Collet), in the variant with
    which CPython hashes tuples.
    """
    mask, sum_ = 2**64 - 1, 0x27D4EB2F165667C5
    for number in numbers:
        sum_ = (sum_ + number * 0xC2B2AE3D27D4EB4F) & mask
        sum_ = ((sum_ << 31 | sum_ >> 33) * 0x9E3779B185EBCA87) & mask
    return (sum_ + (len(numbers) ^ 0x27D4EB2F165667C5 ^ 3527539)) % 2**63


def find_sorted(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index of each wanted value in a sorted array, or -1 if it is not there: int64, of wanted's shape."""
    if not len(values):
        return np.full(np.shape(wanted), -1)
    places = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    return np.where(values[places] == wanted, places, -1)

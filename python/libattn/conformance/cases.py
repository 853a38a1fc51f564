# SPDX-License-Identifier: MIT
"""The cases as files have them: cases/index.json and the arrays of cases/*.npz."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parent / "cases"


@dataclass(frozen=True)
class Case:
    """One line of index.json. conventions: {output: names of the conventions whose results the file has, too}."""
    name: str
    subject: str
    meaning: str
    source: str
    file: str
    options: dict[str, Any]
    arrays: list[str]
    outputs: list[str]
    conventions: dict[str, list[str]]
    eval: str | None

    def arguments(self):
        """(q, k, v, options): new arrays, laid out in memory as the case asks for."""
        options = dict(self.options)
        arrays = {name: self._read(name) for name in self.arrays}
        q, k, v = arrange(options.pop("memory", None), *(arrays.pop(name) for name in "qkv"))
        if "window" in options:
            options["window"] = tuple(options["window"])
        if "lse" in self.outputs:
            options["return_lse"] = True
        return q, k, v, {**options, **arrays}

    def expected(self, output):
        """[("", values, limits), (convention, values, limits), ...] of an output, in float64."""
        first = [("", self._read(output), limits(self._read(output + ".limit")))]
        names = self.conventions.get(output, ())
        if not names:
            return first
        values, wide = self._read(output + ".others"), limits(self._read(output + ".others.limit"))
        return first + list(zip(names, values.astype(float), wide))

    def _read(self, name):
        return _archive(self.file)[f"{self.name}/{name}"]


def limits(halves):
    """Limits are stored as the upper 16 bits of a float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(float)


@functools.lru_cache(maxsize=2)
def _archive(file):
    return np.load(FOLDER / file)


@functools.lru_cache(maxsize=1)
def index():
    return json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))


def load_cases(pattern="*"):
    """The cases whose name matches a pattern such as "causal/*", in their order."""
    from fnmatch import fnmatchcase

    sources = index()["sources"]
    return [Case(**{"source": sources[line["subject"]], **line}) for line in index()["cases"]
            if fnmatchcase(line["name"], pattern)]


# ---- Memory ------------------------------------------------------------------------------------------------------------

def arrange(memory, q, k, v):
    """The same values in another place (scripts/make/conformance/table.py says what the words mean)."""
    if memory is None:
        return q, k, v
    if memory == "qkv":
        together = np.stack([x.transpose(0, 2, 1, 3) for x in (q, k, v)], axis=2)
        return tuple(together[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    if memory in ("one_batch", "one_head"):
        first = np.s_[:1] if memory == "one_batch" else np.s_[:, :1]
        return (q, *(np.broadcast_to(x[first].copy(), x.shape) for x in (k, v)))
    return tuple(LAYOUTS[memory](x) for x in (q, k, v))


def _within(shape, where, x):
    """x as a part of a larger array whose other elements are NaN."""
    larger = np.full(shape, np.nan, x.dtype)
    larger[where] = x
    return larger[where]


def _unaligned(x):
    memory = np.empty(x.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 4
    view = memory[start:start + x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


LAYOUTS = {
    "bshd": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
    "reversed": lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
    "every_second": lambda x: _within((*x.shape[:2], 2 * x.shape[2], x.shape[3]), np.s_[:, :, ::2], x),
    "every_second_element": lambda x: _within((*x.shape[:3], 2 * x.shape[3]), np.s_[..., ::2], x),
    "dim_first": lambda x: x.swapaxes(2, 3).copy().swapaxes(2, 3),
    "unaligned": _unaligned,
    "sliced": lambda x: _within((*x.shape[:2], x.shape[2] + 3, x.shape[3]), np.s_[:, :, 3:], x),
}

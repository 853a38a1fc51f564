# SPDX-License-Identifier: MIT
"""An implementation of attention, ours or a peer's, as libattn.bench.compare() takes it: an object with `name` and
`start(case, rotations)`, a context manager that returns a Prepared or raises Refused. case: a Problem of libattn.bench."""

import contextlib

from libattn.bench import Prepared, Refused
from libattn.bench.problems import INTEGERS

__all__ = ["Absent", "Prepared", "Refused", "Usual"]


class Absent:
    """A peer that is not installed: it refuses every case for the same reason."""

    kept, latent = tuple(INTEGERS), True

    def __init__(self, name, reason):
        self.name, self.reason = name, reason

    @contextlib.contextmanager
    def start(self, case, rotations):
        raise Refused(self.reason)
        yield  # makes this a generator


class Usual:
    """An implementation whose keys and values have the type of its queries, or one of the formats `kept` that it names, and
    are arrays of one shape, unless it says `latent`: then V may be the first columns of K."""

    def __init__(self, inner):
        self.inner, self.name = inner, inner.name

    def start(self, case, rotations):
        kept = getattr(self.inner, "kept", ())
        if case.dtype_kv not in (case.dtype, *kept):
            words = f", or {' or '.join(kept)}" if kept else ""
            raise Refused(f"its keys and values are of the type of its queries{words}")
        if (case.latent or case.dim_v != case.head_dim) and not getattr(self.inner, "latent", False):
            raise Refused("its keys and values are arrays of one shape; values that lie in rows of keys would be a copy")
        return self.inner.start(case, rotations)

# SPDX-License-Identifier: MIT
"""libattn's kernels: one by name, or the automatic choice."""

import contextlib
import re
import time

from libattn.bench.harness import ALIGNMENTS, Rounding

from . import library as attn
from .implementation import Prepared, Refused
from .storage import ARRAYS, aligned_empty, spoil


class LibraryKernel:
    """A kernel that is planned once and has a workspace and an output. remedy: what to do if the kernel does not exist."""

    def __init__(self, library, name, kernel, remedy=""):
        self.library, self.name, self.kernel, self.remedy = library, name, kernel, remedy

    @contextlib.contextmanager
    def start(self, case, rotations):
        problem = self.library.problem(case.batch, case.heads, case.heads_kv, case.seq_q, case.seq_k, case.head_dim,
                                       case.dim_v, ALIGNMENTS[case.causal], dtype=case.dtype, dtype_kv=case.dtype_kv)
        if case.pages:
            self.library.take_pages(problem, case.pages)
        if case.latent:
            problem.v_stride = problem.k_stride
        begun = time.perf_counter_ns()
        try:
            plan = self.library.plan(problem, self.kernel, case.threads)
        except attn.LibraryError as error:
            raise Refused(self.reason(error)) from None
        plan_ns = time.perf_counter_ns() - begun
        with plan:
            yield self.prepare(case, plan, plan_ns, rotations)

    def reason(self, error):
        """The reason of a refusal, without the list of kernels that would take the case."""
        if error.status == attn.UNKNOWN_KERNEL and self.remedy:
            return f"this libattn has no {self.kernel}; {self.remedy}"
        why = re.search(r"which cannot run: (.*); kernels that can: ", str(error))
        return why[1] if why else str(error)

    def prepare(self, case, plan, plan_ns, rotations):
        o = aligned_empty((*rotations[0][0].shape[:-1], case.dim_v), ARRAYS[case.dtype])

        def output(status):
            plan.check(status)
            return o

        info = self.library.kernel(plan.kernel)
        numerics = info.numerics
        narrowing = 0.0 if case.dtype == "f32" else numerics.p_rounding  # with a float32 V, P stays float32
        return Prepared(calls=[plan.bind(q, k, v, o, pages=case.pages) for q, k, v in rotations], output=output,
                       rounding=Rounding(numerics.exp_error, narrowing, numerics.input_flush, numerics.input_rounding,
                                         numerics.query_rounding),
                       facts={"algorithm": info.algorithm.decode(), "isa": info.isa.decode(),
                              "library": info.library.decode(), "plan_ns": plan_ns,
                              "workspace_bytes": plan.workspace.nbytes},
                       note="" if self.kernel else f"runs {plan.kernel}", poison=lambda: spoil(o))

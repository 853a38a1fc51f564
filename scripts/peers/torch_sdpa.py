#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's scaled_dot_product_attention against libattn: same buffers, same threads, one process, rounds in random order.

    scripts/peers/setup.sh torch
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/torch/bin/python scripts/peers/torch_sdpa.py --cases limits --csv results/local/torch.csv

Method and exit codes: scripts/peers/README.md.
"""

import contextlib
import sys
import warnings

from pairing import mkl
from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
try:
    import torch  # before libattn, so that both use PyTorch's OpenMP runtime
    import torch.nn.attention
except ImportError as error:
    torch, WITHOUT_TORCH = None, f"PyTorch cannot be imported ({error}): scripts/peers/setup.sh torch installs it"

from pairing import script  # noqa: E402
from libattn.bench.harness import Rounding, dtypes  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402

BACKENDS = {"torch_flash": "FLASH_ATTENTION", "torch_math": "MATH"}
TIERS = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "c"}  # torch.backends.cpu.get_cpu_capability() -> our tier

EXP_ERROR = 20 * 2.0**-23  # ATen states 20 ulp for the exp of its flash kernel and of its softmax (Vectorized::exp_u20)


class TorchBackend:
    """scaled_dot_product_attention with one backend, in inference mode. Every call returns a new tensor. Heads that share
    latent rows are given as queries of one head, since PyTorch would copy the rows for each of them."""

    latent = True

    def __init__(self, name):
        self.name = name

    @contextlib.contextmanager
    def start(self, case, rotations):
        if case.pages:
            raise Refused("scaled_dot_product_attention has no pages")
        if case.causal == "bottom-right" and case.seq_q != case.seq_k:
            raise Refused("is_causal aligns top-left; bottom-right with seq_q != seq_k would take a mask tensor")
        backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[self.name])
        options = {"is_causal": case.causal != "none"}
        folded = case.latent and case.heads_kv == case.seq_q == 1
        if case.heads != case.heads_kv and not folded:
            options["enable_gqa"] = True

        @contextlib.contextmanager
        def scope():
            with torch.inference_mode(), torch.nn.attention.sdpa_kernel(backend):
                yield

        calls = [bind_torch([as_tensor(x, case.dtype) for x in tensors], options, folded) for tensors in rotations]
        with scope(), warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                calls[0]()
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                said = [str(reason.message).splitlines()[0] for reason in reasons]
                raise Refused(" ".join([f"PyTorch's {BACKENDS[self.name]} backend does not take this", *said])) from None
        yield Prepared(calls=calls, output=lambda tensor: as_array(tensor, case.dtype), rounding=rounding(case.dtype),
                      scope=scope, facts={"algorithm": self.name, "library": torch_name(),
                                          "isa": TIERS.get(torch.backends.cpu.get_cpu_capability(), "")})


def rounding(dtype):
    """The flash kernel rounds P to the dtype of V before the product; the math backend may do so."""
    return Rounding(EXP_ERROR, p_rounding=0.0 if dtype == "f32" else dtypes()[dtype].roundoff)


def as_tensor(array, dtype):
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(array)


def as_array(tensor, dtype):
    return tensor.contiguous().view(torch.int16).numpy().view("uint16") if dtype == "bf16" else tensor.numpy()


def bind_torch(tensors, options, folded):
    """A function without arguments that calls scaled_dot_product_attention. folded: heads of one query become queries."""
    sdpa, (q, k, v) = torch.nn.functional.scaled_dot_product_attention, tensors
    if folded:
        q = q.transpose(1, 2)
        return lambda: sdpa(q, k, v, **options).transpose(1, 2)
    return lambda: sdpa(q, k, v, **options)


def torch_name():
    return f"PyTorch {torch.__version__.split('+')[0]}" + (", MKL as on Intel" if mkl.is_preloaded() else "")


def implementations(_options, _library):
    return [TorchBackend(name) if torch else Absent(name, WITHOUT_TORCH) for name in BACKENDS]


def conditions(_options):
    if torch is None:
        return [WITHOUT_TORCH]
    return [f"{torch_name()}  capability {torch.backends.cpu.get_cpu_capability()}", f"MKL kernels: {mkl.kernels_of(torch)}"]


def start(options):
    if torch is not None:
        torch.set_num_threads(options.threads)


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["torch"], __doc__, implementations, conditions, start, has_mkl=True)))

# SPDX-License-Identifier: MIT
"""The peers: the other libraries that libattn is compared with."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Peer:
    """name: that of its environment. title: its usual name. kernels: the best known one first."""
    name: str
    title: str
    script: str
    kernels: tuple
    install: str
    modules: tuple = ()  # modules that its script imports besides NumPy

    def interpreter(self):
        """The Python of its environment, else this one if it has the modules, else None."""
        own = ROOT / ".venv-peers" / self.name / "bin" / "python"
        if own.exists():
            return str(own)
        here = all(importlib.util.find_spec(module) for module in ("numpy", *self.modules))
        return sys.executable if here else None


PEERS = {peer.name: peer for peer in (
    Peer("torch", "PyTorch", "torch_sdpa.py", ("torch_flash", "torch_math"), "scripts/peers/setup.sh torch", ("torch",)),
    Peer("onnxruntime", "ONNX Runtime", "onnxruntime_attention.py", ("ort_mha", "ort_attention", "ort_gqa"),
         "scripts/peers/setup.sh onnxruntime", ("onnxruntime", "onnx")),
    Peer("openvino", "OpenVINO", "openvino_sdpa.py", ("openvino_sdpa", "openvino_paged"),
         "scripts/peers/setup.sh openvino", ("openvino",)),
    Peer("vllm", "vLLM", "vllm_paged.py", ("vllm_cpu", "vllm_mla"), "scripts/peers/setup.sh vllm", ("torch", "vllm")),
    Peer("onednn", "oneDNN", "onednn_kernels.py", ("matmul_onednn", "graph_onednn"), "scripts/peers/setup.sh onednn"),
    Peer("ggml", "ggml", "ggml_flash_attn.py", ("ggml_flash_attn_ext",),
         "scripts/peers/setup.sh ggml, and --ggml-lib PATH names its build (.venv-peers/ggml/build/bin/libggml.so)"),
)}

# Kernel -> title.
WORDS = {"torch_flash": "PyTorch flash", "torch_math": "PyTorch math", "ort_mha": "ONNX Runtime MultiHeadAttention",
         "ort_attention": "ONNX Runtime Attention-23", "ort_gqa": "ONNX Runtime GroupQueryAttention",
         "openvino_sdpa": "OpenVINO ScaledDotProductAttention",
         "openvino_paged": "OpenVINO PagedAttention", "ggml_flash_attn_ext": "ggml flash_attn_ext",
         "vllm_cpu": "vLLM CPU attention", "vllm_mla": "vLLM MLA decode",
         "matmul_onednn": "oneDNN matmul + softmax + matmul", "graph_onednn": "oneDNN graph SDPA"}

# SPDX-License-Identifier: MIT
"""attnbench's way of measuring, for Python functions: checked against a float64 oracle, timed in rounds, compared by paired
ratios whose intervals count placements, with the peak loop of the CPU beside every sample.

    from libattn import bench
    found = bench.compare({"libattn": libattn.sdpa, "mine": my_attention}, ["seq=512", "heads=8 seq_q=1 seq_k=4096"])
    print(found)
    found.frame(), found.samples(), found.plot("mine.png"), found.write("folder")

`python -m libattn.bench` compares libattn with PyTorch (if it is installed) and NumPy. docs/measuring.md says how a time
comes about and what the statistics are. Needs NumPy.
"""

try:
    import numpy  # noqa: F401
except ImportError:
    raise ImportError("libattn.bench needs NumPy: python3 -m pip install numpy") from None

from .comparing import Comparison, compare
from .harness import CaseError, Ratio, Rounding, Summary, holm, latin_square, open_peak, paired_ratio, summarise, verdict
from .problems import Problem
from .rounds import Prepared, Refused

__all__ = ["CaseError", "Comparison", "Prepared", "Problem", "Ratio", "Refused", "Rounding", "Summary", "compare", "holm",
           "latin_square", "open_peak", "paired_ratio", "summarise", "verdict"]

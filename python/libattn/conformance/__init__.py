# SPDX-License-Identifier: MIT
"""attn-conformance: named cases of attention with expected values and derived limits, for any implementation.

    python -m libattn.conformance --peer torch
    python -m libattn.conformance --peer mypackage.module:function

The function gets q, k, v and a case's options by name (libattn.conformance.peers says which), and returns o.
docs/conformance.md has the rules, and what the field's implementations do.
"""

from .cases import Case, load_cases
from .verdicts import DIFFERENT, FAIL, PASS, REFUSED, Refused, Verdict, check_case

__all__ = ["DIFFERENT", "FAIL", "PASS", "REFUSED", "Case", "Refused", "Verdict", "check_case", "load_cases"]

# SPDX-License-Identifier: MIT
"""The parts of scripts/dev/mutate.py: mutations finds faults in the text of a file, programs compiles and links them."""

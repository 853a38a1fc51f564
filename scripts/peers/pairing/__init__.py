# SPDX-License-Identifier: MIT
"""What the scripts of all peers share: libattn, cases, the harness' statistics and oracle, rounds, tables and files."""

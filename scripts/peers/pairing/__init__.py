# SPDX-License-Identifier: MIT
"""What every rival's script shares: libattn, cases, float64 reference, paired rounds, statistics, tables and files."""

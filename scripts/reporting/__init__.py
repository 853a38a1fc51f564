# SPDX-License-Identifier: MIT
"""The page of scripts/report.py: tables, and the figures of scripts/plotting. report.css and report.js are inlined."""

# SPDX-License-Identifier: MIT
"""The pages of scripts/report.py: charts turns the panels of plotting into data for plotly, tables and sections write HTML.

What there is to show, and the static figures, come from scripts/plotting; report.css and report.js are inlined.
"""

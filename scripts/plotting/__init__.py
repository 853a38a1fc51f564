# SPDX-License-Identifier: MIT
"""The figures of scripts/plot.py: table reads results.csv, views and notes decide what there is to show, figures draws it.

table, views and notes need no matplotlib; the others do. scripts/report.py draws the same figures.
"""

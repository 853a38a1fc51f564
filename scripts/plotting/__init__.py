"""The figures of scripts/plot.py: table reads results.csv, views decides what there is to show, figures draws it.

table and views need no matplotlib; style, page and figures do.
"""

# SPDX-License-Identifier: MIT
"""The whole report as one HTML document: style, sections, then data, plotly and report.js."""

import json
from html import escape
from pathlib import Path

from . import charts
from .sections import SECTIONS, write

HERE = Path(__file__).resolve().parent


def document(results, looks, title):
    """The report as text. Needs plotly only for the text of its JavaScript."""
    found = charts.all_charts(results, looks)
    sections = [section for section in SECTIONS if section.name != "machines" or "machines" in found]
    links = "".join(f'<li><a href="#{section.name}">{escape(section.title)}</a></li>' for section in sections)
    body = "\n".join(write(section, results, looks, section.chart in found) for section in sections)
    data = {"charts": found, "kernels": charts.kernels_of(results, looks)}
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{asset("report.css")}</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the summary</a>
<header>
<h1>{escape(title)}</h1>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<div id="choose" hidden></div>
</header>
<main>
{body}
</main>
<footer><p>Made by attnbench report. Every time passed a check against a float64 oracle.</p></footer>
<script type="application/json" id="data">{script_safe(json.dumps(data, separators=(",", ":")))}</script>
<script>{plotly()}</script>
<script>
{asset("report.js")}</script>
</body>
</html>
"""


def asset(name):
    return (HERE / name).read_text(encoding="utf-8")


def script_safe(text):
    """JSON that cannot end its <script> element."""
    return text.replace("<", "\\u003c")


def plotly():
    from plotly.offline import get_plotlyjs
    return get_plotlyjs()

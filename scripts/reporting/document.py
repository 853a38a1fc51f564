# SPDX-License-Identifier: MIT
"""The whole report as one HTML document: style, sections, and report.js, which sorts and filters the tables."""

from html import escape
from pathlib import Path

from .sections import SECTIONS, write

HERE = Path(__file__).resolve().parent


def document(results, looks, title):
    """The report as text."""
    several = len({row.cpu for row in results.rows}) > 1
    sections = [section for section in SECTIONS if section.name != "machines" or several]
    links = "".join(f'<li><a href="#{section.name}">{escape(section.title)}</a></li>' for section in sections)
    body = "\n".join(write(section, results, looks) for section in sections)
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
</header>
<main>
{body}
</main>
<footer><p>Made by attnbench report. Every time passed a check against a float64 oracle.</p></footer>
<script>
{asset("report.js")}</script>
</body>
</html>
"""


def asset(name):
    return (HERE / name).read_text(encoding="utf-8")

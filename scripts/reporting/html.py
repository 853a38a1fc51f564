# SPDX-License-Identifier: MIT
"""Pieces of HTML as text. Every argument that is not itself HTML is escaped."""

from html import escape

from plotting.svg import svg_text

# Colours of figures that dark screens replace -> variable of report.css. The others are legible on both.
VARIABLES = {"#ffffff": "paper", "#1a1a1a": "ink", "#5a5a5a": "faint", "#dddddd": "grid", "#ededed": "band",
             "#d9d9d9": "line", "#a32a00": "alarm", "#4d4d4d": "grey", "#6b4c9a": "purple", "#5b3a29": "brown"}


def table(caption, columns, rows, folded=""):
    """columns: names; a name that ends in "#" holds numbers. folded: the words of a fold around the table.

    A column with the same words in several rows moves to the caption.
    """
    if not rows:
        return ""
    shared = [i for i, name in enumerate(columns) if not name.endswith("#") and len(rows) > 1 and
              len({row[i] for row in rows}) == 1 and rows[0][i]]
    caption = "; ".join([caption] + [f"{columns[i]}: {rows[0][i]}" for i in shared])
    columns = [name for i, name in enumerate(columns) if i not in shared]
    rows = [[cell for i, cell in enumerate(row) if i not in shared] for row in rows]
    numeric = [name.endswith("#") for name in columns]
    head = "".join(f'<th scope="col">{escape(name.rstrip("#").strip())}</th>' for name in columns)
    lines = [f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table>'
             f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        cells = "".join(f'<td{" class=n" if number else ""}>{escape(str(cell))}</td>' for cell, number in zip(row, numeric))
        lines.append(f"<tr>{cells}</tr>")
    return fold(folded, "\n".join(lines) + "</tbody></table></div>")


def fold(words, content):
    return f"<details><summary>{escape(words)}</summary>\n{content}\n</details>" if words else content


def paragraph(words, kind=""):
    return f'<p{f" class={kind}" if kind else ""}>{escape(words)}</p>'


def figure(page, prefix, alt):
    """A page of plotting as inline SVG. prefix: of its ids. alt: what a reader without the picture should know."""
    text = svg_text(page.figure, prefix)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    text = text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt, quote=True)}" ', 1)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Figure">{text}</div>'

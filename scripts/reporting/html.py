# SPDX-License-Identifier: MIT
"""Pieces of HTML as text. Every argument that is not itself HTML is escaped."""

import base64
from html import escape
from io import BytesIO

STILL_DPI, COLOURS = 100, 64


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


def still(page, alt):
    """A page of plotting as an inline PNG of few colours. alt: what a reader without the picture should know."""
    from PIL import Image  # comes with matplotlib

    drawn = BytesIO()
    page.figure.savefig(drawn, dpi=STILL_DPI)
    small = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    packed = BytesIO()
    small.save(packed, "PNG", optimize=True)
    data = base64.b64encode(packed.getvalue()).decode("ascii")
    return (f'<div class="scroll" tabindex="0" role="region" aria-label="Figure"><img alt="{escape(alt, quote=True)}" '
            f'width="{small.width}" height="{small.height}" src="data:image/png;base64,{data}"></div>')

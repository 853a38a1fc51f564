# SPDX-License-Identifier: MIT
"""A figure page, laid out in inches: title and conditions on top, panels in rows and columns, legend and notes below.

Heights follow from the wrapped text, so nothing can overlap and nothing is cut off.
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from . import style, views
from .svg import svg_text

EDGE = 0.25            # around the page
LINE = 0.165           # height of a line of header, legend and notes
MOST_NOTES = 14        # wrapped lines; a last line counts the others


@dataclass(frozen=True)
class Frame:
    """Inches of one panel and the room around it."""
    width: float
    height: float
    left: float
    right: float
    below: float = 0.5
    first_left: float = 0.0  # left margin of the first column, if it needs more


class Page:
    """self.axes: one per panel, row by row; titled, otherwise empty."""

    def __init__(self, title, header, panels, columns, frame, legends, notes, listed="not-timed.txt beside this figure"):
        """legends: rows of [(handle, label)]; notes: [(status, sentence)]; panels: titles; listed: the file of all notes."""
        first = max(frame.first_left, frame.left)
        cell = frame.left + frame.width + frame.right
        content = first - frame.left + columns * cell
        self.width = max(content, 7.6) + 2 * EDGE
        inner = self.width - 2 * EDGE
        title_lines = style.wrap(title, inner, style.TITLE, "bold")
        header_lines = [line for text in header for line in style.wrap(text, inner, style.HEADER)]
        names = [style.wrap(name, frame.width + frame.right - 0.1, style.BODY, "bold") for name in panels]
        legend_rows = [row for legend in legends for row in self._legend_rows(legend, inner)]
        note_lines = self._note_lines(notes, inner, listed)
        above = [0.12 + LINE * max(len(lines) for lines in names[i:i + columns]) for i in range(0, len(names), columns)]
        heading = 0.27 * len(title_lines) + LINE * len(header_lines) + 0.14
        footing = (LINE + 0.05) * len(legend_rows) + LINE * len(note_lines) + 0.1
        self.height = heading + sum(above) + len(above) * (frame.height + frame.below) + footing + 2 * EDGE
        self.figure = Figure(figsize=(self.width, self.height), dpi=150, facecolor="white")
        FigureCanvasAgg(self.figure)
        top = self._header(title_lines, header_lines)
        self.axes = []
        for i, lines in enumerate(names):
            row, column = divmod(i, columns)
            left = EDGE + first + column * cell
            bottom = top - 0.14 - sum(above[:row + 1]) - row * (frame.height + frame.below) - frame.height
            axes = self.figure.add_axes((left / self.width, bottom / self.height,
                                         frame.width / self.width, frame.height / self.height))
            axes.set_title("\n".join(lines), loc="left", weight="bold", pad=6, linespacing=1.1)
            self.axes.append(axes)
        self._footer(legend_rows, note_lines)

    def text(self, x, y, words, **kwargs):
        """x, y: the top left corner of the text, in inches from the lower left corner of the page."""
        return self.figure.text(x / self.width, y / self.height, words, ha="left", va="top", **kwargs)

    def save(self, stem):
        """Writes stem.png and stem.svg, without dates: equal data gives equal bytes."""
        self.figure.savefig(f"{stem}.png", dpi=150)
        Path(f"{stem}.svg").write_text(svg_text(self.figure), encoding="utf-8")

    def _header(self, title_lines, header_lines):
        y = self.height - EDGE
        for line in title_lines:
            self.text(EDGE, y, line, size=style.TITLE, weight="bold")
            y -= 0.27
        for line in header_lines:
            self.text(EDGE, y, line, size=style.HEADER, color=style.FAINT)
            y -= LINE
        return y

    def _footer(self, legend_rows, note_lines):
        y = EDGE + LINE * len(note_lines) + (LINE + 0.05) * len(legend_rows)
        for row in legend_rows:
            handles, labels = zip(*row)
            self.figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(EDGE / self.width, y / self.height),
                               ncol=len(row), frameon=False, borderpad=0, borderaxespad=0, fontsize=style.LABEL,
                               handlelength=2.6, columnspacing=1.4, handletextpad=0.6)
            y -= LINE + 0.05
        for status, line in note_lines:
            self.text(EDGE, y, line, size=style.NOTE, color=style.STATUS_COLOUR.get(status, style.FAINT))
            y -= LINE

    @staticmethod
    def _legend_rows(legend, width):
        """Breaks one legend into rows that fit; 5 em for handle and gaps around a label."""
        rows, used = [], width
        for handle, label in legend:
            needed = style.text_width(label, style.LABEL) + 5 * style.LABEL / 72
            if used + needed > width:
                rows.append([])
                used = 0.0
            rows[-1].append((handle, label))
            used += needed
        return rows

    @staticmethod
    def _note_lines(notes, width, listed):
        lines = [(status, line) for status, sentence in notes for line in style.wrap(sentence, width, style.NOTE)]
        if len(lines) > MOST_NOTES:
            hidden = len(lines) - MOST_NOTES + 1
            more = f"... and {views.plural(hidden, 'more line')}: {listed} lists every row"
            lines = lines[:MOST_NOTES - 1] + [("", more)]
        return lines


def columns_for(panels, most=3):
    """Number of columns. If it fits, a row holds all values of the last condition that varies."""
    if len(panels) <= most:
        return len(panels)
    _, varying = views.shared_conditions(panels)
    values = len({panel.conditions[varying[-1]] for panel in panels})
    if 1 < values <= most + 1 and len(panels) % values == 0:
        return values
    return 2 if len(panels) == 4 else most

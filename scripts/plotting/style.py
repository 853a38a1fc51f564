# SPDX-License-Identifier: MIT
"""How kernels look in every figure: colour and marker show the algorithm, line style and hatching show the tier.

The colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any common colour blindness can tell
apart. In greyscale, marker and line style still identify a kernel.
"""

import functools

import matplotlib
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

ALGORITHMS = {  # name -> colour, marker
    "flash": ("#0072B2", "o"),
    "blocked": ("#E69F00", "s"),
    "naive": ("#CC79A7", "^"),
    "decode": ("#009E73", "D"),
    "gemm_openblas": ("#D55E00", "v"),
    "naive_openblas": ("#56B4E9", "P"),
    "matmul_onednn": ("#1A1A1A", "X"),
    "graph_onednn": ("#8C7A00", "*"),
    "auto": ("#4D4D4D", "d"),  # the library's own choice
}
OTHER_COLOURS, OTHER_MARKERS = ("#6B4C9A", "#7F7F7F", "#5B3A29"), "ph<>dH8"  # for algorithms that this table does not know

TIERS = {  # name, low to high -> line style, hatching
    "c": ((0, (1, 1.3)), "----"),
    "portable": ((0, (2, 1.2)), "\\\\\\\\"),
    "neon": ("-", ""),
    "neonbf16": ((0, (7, 2, 1.5, 2)), "xxx"),
    "avx2": ((0, (4, 1.6)), "////"),
    "avx512": ("-", ""),
    "avx512vnni": ((0, (3, 1, 1, 1, 1, 1)), "///"),
    "avx512bf16": ((0, (7, 2, 1.5, 2)), "xxx"),
    "amx": ((0, (7, 1.5, 1.5, 1.5, 1.5, 1.5)), "++"),
}
OTHER_TIER = ((0, (3, 1, 1, 1)), "||")

INK, FAINT, GRID, ALARM = "#1A1A1A", "#5A5A5A", "#DDDDDD", "#A32A00"
STATUS_COLOUR = {"FAIL": ALARM, "ERROR": ALARM}
TITLE, HEADER, BODY, LABEL, NOTE = 13, 8.5, 8.5, 7.5, 7.5  # points

SETTINGS = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure everywhere
    "font.size": BODY, "text.color": INK, "text.parse_math": False,
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "axes.labelsize": BODY, "axes.titlesize": BODY, "axes.linewidth": 0.8,
    "axes.formatter.use_locale": False, "axes.axisbelow": True, "axes.spines.right": False, "axes.spines.top": False,
    "xtick.labelsize": LABEL, "ytick.labelsize": LABEL, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "hatch.linewidth": 0.5, "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "svg.hashsalt": "attnbench",  # equal data, equal bytes
    "svg.fonttype": "none",  # text stays text
}


def apply():
    """Replaces the user's matplotlibrc by SETTINGS."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(SETTINGS)


class Looks:
    """Colours and markers for the algorithms of one data set."""

    def __init__(self, algorithms):
        unknown = sorted(set(algorithms) - set(ALGORITHMS))
        self.algorithms = dict(ALGORITHMS)
        for i, name in enumerate(unknown):
            self.algorithms[name] = (OTHER_COLOURS[i % len(OTHER_COLOURS)], OTHER_MARKERS[i % len(OTHER_MARKERS)])

    def colour(self, algorithm):
        return self.algorithms[algorithm][0]

    def marker(self, algorithm):
        return self.algorithms[algorithm][1]

    def order(self, kernel):
        """Sort key of a row or curve: highest tier first, algorithms in the order of the table."""
        tiers, algorithms = list(TIERS), list(self.algorithms)
        tier = tiers.index(kernel.isa) if kernel.isa in TIERS else -1
        return (-tier, algorithms.index(kernel.algorithm), kernel.kernel)


def line_style(isa):
    return TIERS.get(isa, OTHER_TIER)[0]


def hatching(isa):
    return TIERS.get(isa, OTHER_TIER)[1]


def contrast(colour):
    """Black or nearly white, whichever is more legible on this colour (WCAG relative luminance). Neither is the colour of
    paper or of other text: the report replaces those on dark screens."""
    channels = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#FAFAFA"


@functools.cache
def text_width(text, size, weight="normal"):
    """Inches."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def wrap(text, width, size, weight="normal"):
    """Lines of at most `width` inches, broken at spaces but not at no-break spaces; a word that is longer is cut."""
    lines = [""]
    for word in text.split(" "):
        while text_width(word, size, weight) > width and len(word) > 1:
            cut = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or text_width(word[:n], size, weight) <= width)
            lines += [word[:cut]]
            word = word[cut:]
        longer = f"{lines[-1]} {word}".strip()
        lines[-1:] = [longer] if text_width(longer, size, weight) <= width else [lines[-1], word]
    return [line for line in lines if line]


def spread(places, gap, low, high):
    """Moves places (any unit) apart to at least `gap` within low..high. Keeps their order and minimises the squared moves.

    Subtracting i * gap from the i-th smallest place turns this into isotonic regression: pool adjacent violators.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(gap, (high - low) / max(1, len(places) - 1))
    runs = []  # mean, count
    for rank, i in enumerate(order):
        runs.append((places[i] - rank * gap, 1))
        while len(runs) > 1 and runs[-2][0] >= runs[-1][0]:
            (mean, count), (before, others) = runs.pop(), runs.pop()
            runs.append(((mean * count + before * others) / (count + others), count + others))
    means = [mean for mean, count in runs for _ in range(count)]
    moved = list(places)
    for rank, i in enumerate(order):
        moved[i] = min(max(means[rank], low), high - (len(places) - 1) * gap) + rank * gap
    return moved

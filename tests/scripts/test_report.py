# SPDX-License-Identifier: MIT
"""scripts/report.py: its tables and figures, and how the page behaves in headless Chromium. Run by pytest."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import browser
import pytest
from plot_data import everything, grid, row, write
from test_plot import PEAK_CSV

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import report
from plotting import command

NOT_VISIBLE = "script", "style"
FACTS = {"cpu": {"value": "Some <CPU>", "grade": "OK"},
         "hypervisor": {"value": "KVM", "grade": "WARN", "advice": "use & metal"}, "commit": {"value": "0123456789abcdef"},
         "date": {"value": "2026-01-31"}}


class Page(HTMLParser):
    """The visible text, the tables by caption and the figures of a report."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.words, self.tables, self.figures, self.addresses = [], [], {}, [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.addresses += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag == "svg":
            self.figures.append(attributes)
        if tag == "table":
            self.lines = []
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th", "caption"):
            self.cell = ""
        if tag != "meta":
            self.stack.append(tag)

    def handle_data(self, data):
        if not set(self.stack) & set(NOT_VISIBLE):
            self.words.append(data)
            if self.stack and self.stack[-1] in ("td", "th", "caption"):
                self.cell += data

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, f"</{tag}> closes another element"
        if tag == "caption":
            self.caption = self.cell
        if tag in ("td", "th"):
            self.lines[-1].append(self.cell)
        if tag == "table":
            self.tables[self.caption] = self.lines

    def table(self, start):
        return next(lines for caption, lines in self.tables.items() if caption.startswith(start))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A report on two machines, with everything that a run may hold."""
    folder = tmp_path_factory.mktemp("report")
    decoding = [row(name, rate, seq=seq, seq_q=1, peak_gbs="40", warnings="noisy",
                    bw_pct="162" if seq == 16384 else "90")  # a disturbed loop's, which means nothing
                for seq in (1024, 4096, 16384) for name, rate in (("flash_avx2", 9.0), ("naive_c", 2.0))]
    half = [cells | {"dtype_q": "bf16", "dtype_kv": "bf16", "dtype_o": "bf16", "case_id": cells["case_id"] + "/bf16"}
            for cells in grid(dims=(64,))]
    one = write(folder / "one", everything() + decoding + half, environment=FACTS)
    (one / "peak.csv").write_text(PEAK_CSV, encoding="utf-8")
    two = write(folder / "two", grid(dims=(64,)), environment={"cpu": "Other CPU"})
    assert report.main([str(one), str(two), "-o", str(folder / "report.html")]) == command.OK
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(file):
    return Page(file.read_text(encoding="utf-8"))


# ---- The file ------------------------------------------------------------------------------------------------------------

def test_the_file_needs_nothing_else(page):
    assert page.stack == [] and page.addresses
    assert all(address.startswith("#") for address in page.addresses)


def test_every_link_has_its_target(file, page):
    text = file.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    assert {address[1:] for address in page.addresses} | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_figures_have_words(page):
    assert len(page.figures) >= 9
    for figure in page.figures:
        assert figure["role"] == "img" and len(figure["aria-label"]) > 20 and float(figure["width"].rstrip("pt")) > 300


def test_names_are_escaped(page):
    assert "Some <CPU>" in page.text and "use & metal" in page.text


def test_tables_hold_the_numbers(page):
    rates = page.table("Every timed row")
    assert len(rates) == 1 + sum(cells["status"] == "PASS" for cells in everything()) + 6 + 9 + 9
    line = next(cells for cells in rates if cells[2] == "flash_avx2" and cells[0].startswith("seq 2048, head_dim 128"))
    assert dict(zip(rates[0], line))["GFLOP/s"] == "80" and dict(zip(rates[0], line))["% of peak"] == "66.67"
    assert ["Some <CPU>", "f32", "1", "L1 bandwidth", "200 GB/s"] in page.table("Roofs as measured")
    assert ["Some <CPU>", "f32", "2", "memory bandwidth", "15 GB/s"] in page.table("Roofs as measured")
    assert any(cells[:3] == ["Some <CPU>", "f32 decode", "flash_avx2"] and cells[3] == "90 % of the read loop"
               for cells in page.table("Highest shares"))
    assert ["FAIL", "output[0,1,2,3] is off by 4.1 x the bound", "naive_avx2"] in [
        cells[:3] for cells in page.table("Rows without a time")]
    assert ["Some <CPU>", "noisy", "6"] in page.table("Warnings")
    assert ["hypervisor", "KVM", "WARN", "use & metal"] in page.table("env.json of Some <CPU>")
    assert page.table("Noise floor")[1][2:] == ["0.40 %", "0.40 %"]


def test_sections_without_data_say_why(tmp_path):
    folder = write(tmp_path / "run", grid(seqs=(512,), dims=(64,)))
    assert report.main([str(folder), "-o", str(tmp_path / "r.html")]) == command.OK
    few = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert len(few.figures) == 2  # roofline, errors
    assert "No figure threads: only threads=1 in the data." in few.text and "Machines" not in few.text


def test_bad_input_and_places_that_cannot_be_written(tmp_path, capsys):
    folder = write(tmp_path / "run", [row() | {"seq_k": "x"}])
    assert report.main([str(folder), "-o", str(tmp_path / "r.html")]) == command.BAD_INPUT
    assert "column 'seq_k'" in capsys.readouterr().err
    written = write(tmp_path / "run", [row()])
    assert report.main([str(written), "-o", str(tmp_path / "no" / "r.html")]) == command.CANNOT_WRITE
    assert "cannot be written" in capsys.readouterr().err


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.main([str(write(tmp_path / "run", [row()])), "-o", str(tmp_path / "r.html")]) == command.NOTHING
    assert "matplotlib" in capsys.readouterr().err and not (tmp_path / "r.html").exists()


# ---- In a browser --------------------------------------------------------------------------------------------------------

CONTRASTS = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (parts) => parts.slice(0, 3).map((c) => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = light(parts(getComputedStyle(document.body).backgroundColor));
  return ["h1", "p", ".note", "nav a", "th", "td", "summary"].filter((name) => document.querySelector(name)).map((name) => {
    const ink = light(parts(getComputedStyle(document.querySelector(name)).color));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  });
})()"""


@pytest.fixture(scope="module")
def tab():
    if not browser.find():
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    with browser.Browser() as opened:
        yield opened


# Every two of: wide or narrow, light or dark, with or without scripts.
@pytest.mark.parametrize(("width", "dark", "scripts"), ((1280, False, True), (1280, True, False), (390, False, False),
                                                        (390, True, True)))
def test_the_page_fits_and_is_legible(tab, file, width, dark, scripts):
    tab.show(file, width=width, dark=dark, scripts=scripts)
    assert tab.errors() == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert min(tab.value(CONTRASTS)) >= 4.5
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") != dark
    assert tab.value("[...document.querySelectorAll('svg')].filter((one) => one.checkVisibility()).length") >= 9
    assert tab.value("getComputedStyle(document.querySelector('svg > path')).fill") == paper, "figures lie on the same paper"
    assert bool(tab.value("document.querySelectorAll('th button').length")) == scripts
    assert tab.value("[...document.querySelectorAll('section')].every((one) => one.querySelector('h2').textContent)")


def focus(tab, selector):
    """Presses Tab until the element has the focus; where it is not reached, fails."""
    for _ in range(200):
        if tab.value(f"document.activeElement === document.querySelector({selector!r})"):
            return
        tab.press("Tab")
    raise AssertionError(f"{selector} cannot be reached by Tab")


CELLS = "[...document.querySelectorAll('#rate tbody tr:not([hidden])')].map((row) => row.cells[{}].textContent)"


def test_tables_are_sorted_by_keyboard(tab, file):
    tab.show(file)
    tab.press("Tab")
    assert tab.value("document.activeElement.className") == "skip"
    tab.value("document.querySelector('#rate details').open = true")
    columns = tab.value("[...document.querySelectorAll('#rate th')].map((head) => head.textContent)")
    speed = columns.index("speed-up")
    focus(tab, f"#rate th:nth-child({speed + 1}) button")
    assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for state in "ascending", "descending":
        tab.press("Enter")
        cells = tab.value(CELLS.format(speed))
        known = [float(cell) for cell in cells if cell]
        assert known == sorted(known, reverse=state == "descending") and len(set(known)) > 2
        assert cells.index("") == len(known), "empty cells come last"
        assert tab.value("document.activeElement.parentElement.ariaSort") == state
    assert tab.value("document.querySelectorAll('#rate th[aria-sort]').length") == 1
    tab.value(f"document.querySelectorAll('#rate th button')[{columns.index('time')}].click()")
    units = [cell.split()[1] for cell in tab.value(CELLS.format(columns.index("time")))]
    assert len(set(units)) > 1 and units == sorted(units, key=("ns", "µs", "ms", "s").index)


def test_long_tables_are_filtered_by_words(tab, file):
    tab.show(file)
    tab.value("(() => { const field = document.querySelector('#rate input'); field.value = 'bf16 flash_AVX2';"
              " field.dispatchEvent(new Event('input')); })()")
    shown = tab.value("[...document.querySelectorAll('#rate tbody tr:not([hidden])')].map((row) => row.textContent)")
    assert len(shown) == 3 and all("bf16" in text and "flash_avx2" in text for text in shown)


def test_marks_tell_case_and_value(page):
    tips = page.text
    assert "blocked_avx512, then flash_avx2: +50 %" in tips and "flash_avx2, 2048: 80 (95 %: 79.84 to 80.16)" in tips

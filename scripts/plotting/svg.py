# SPDX-License-Identifier: MIT
"""Figures as small SVG text. matplotlib's own is 3 to 20 times as long: glyphs as paths, a style per element, groups.

Text stays text, equal styles become classes, numbers have two decimals (of a point, 1/72 inch). tip() gives marks, bars and
cells a <title>, which browsers show under the pointer.
"""

import re
import zlib
from io import BytesIO
from itertools import count
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
FONTS = "DejaVu Sans, Verdana, sans-serif"  # Verdana is as wide, most others are narrower: no text grows into another
TIP, BETWEEN = "tip:", "\u2028"  # an id of matplotlib's SVG carries the words; a line feed would not survive there


def tip(artist, *words):
    """words: one text for a patch; one for each point of a line's markers."""
    artist.set_gid(TIP + BETWEEN.join(words))


def svg_text(figure, prefix=""):
    """The figure as an <svg> element. prefix: of all ids, so that several figures may stand in one page."""
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(drawn.getvalue())
    for group in list(root.iter()):
        keep_tips(group)
    rename_ids(root, prefix)
    rules = {}
    for element in root.iter():
        shorten(element, rules)
    for element in root.iter():
        share_class(element, rules)
    unwrap(root)
    root[:] = [child for child in root if not child.tag.endswith("metadata") and child.find(f"{{{SVG}}}style") is None]
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}  # like matplotlib's style sheet
    style = ElementTree.Element(f"{{{SVG}}}style")
    style.text = "".join(f".{name}{{{text}}}" for text, name in sorted(rules.items()))
    root.insert(0, style)
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def keep_tips(group):
    """Turns an id that tip() made into <title> elements: of the group, or of each marker in it."""
    name = group.get("id", "")
    if not name.startswith(TIP):
        return
    words = name[len(TIP):].split(BETWEEN)
    marks = list(group.iter(f"{{{SVG}}}use"))
    places = marks if len(marks) == len(words) else [group] if len(words) == 1 else []
    for place, text in zip(places, words):
        title = ElementTree.Element(f"{{{SVG}}}title")
        title.text = text
        place.insert(0, title)


def shorten(element, rules):
    """Drops layout and digits; moves the style to a class, which rules collect: text -> name."""
    element.text, element.tail = element.text if (element.text or "").strip() else None, None
    if XLINK in element.attrib:
        element.set("href", element.attrib.pop(XLINK))
    for name in ("d", "x", "y", "width", "height", "transform", "points", "viewBox"):
        if name in element.attrib:
            element.set(name, short_numbers(element.get(name)))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if "style" in element.attrib:
        text = re.sub(r"([:;]) +", r"\1", element.attrib.pop("style")).replace("'DejaVu Sans'", FONTS)
        element.set("class", rules.setdefault(text, f"s{zlib.crc32(text.encode()):08x}"))


def share_class(group, rules):
    """Moves the class of all children to their group, unless it makes them transparent one by one."""
    classes = {child.get("class") for child in group if child.tag != f"{{{SVG}}}title"}
    blending = {name for text, name in rules.items() if re.search(r"(^|;)opacity", text)}
    if group.tag == f"{{{SVG}}}g" and len(group) > 1 and len(classes) == 1 and not classes & {None, *blending}:
        for child in group:
            child.attrib.pop("class", None)
        group.set("class", *classes)


def short_numbers(text):
    text = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)
    return re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(text.split())) if text[:1] == "M" else text


def rename_ids(root, prefix):
    """Keeps the ids that something refers to, as prefix and a number."""
    used = set(re.findall(r"#([^\s)\"]+)", " ".join(value for element in root.iter() for value in element.attrib.values())))
    numbers, names = count(), {}
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in used:
            element.set("id", names.setdefault(name, f"{prefix}{next(numbers)}"))
    for element in root.iter():
        for key, value in element.attrib.items():
            if "#" in value:
                element.set(key, re.sub(r"#([^\s)]+)", lambda found: f"#{names.get(found[1], found[1])}", value))


def unwrap(element):
    """Puts the content of groups without attributes in their place."""
    children = []
    for child in element:
        unwrap(child)
        is_group = child.tag == f"{{{SVG}}}g"
        children += list(child) if is_group and not child.attrib and not has_title(child) else [child]
    element[:] = [child for child in children if len(child) or child.tag != f"{{{SVG}}}g"]


def has_title(group):
    return len(group) and group[0].tag == f"{{{SVG}}}title"

// SPDX-License-Identifier: MIT
// Sorts a table by the column whose head is pressed, and long tables show only the rows with all words of a filter.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  if (rows.length < 2) continue;
  const sizes = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, "×": 100 }; // beside per cent, 27× is 2700 %
  const size = (text) => Number.parseFloat(text) * (sizes[text.match(/(ns|µs|ms|s|×)$/)?.[1]] ?? 1);
  const compare = (a, b) => (Number.isNaN(size(a) - size(b)) ? a.localeCompare(b) : size(a) - size(b));

  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.ariaSort !== "ascending", text = (row) => row.cells[column].textContent;
      for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
      head.ariaSort = up ? "ascending" : "descending";
      rows.sort((a, b) => (!text(a) - !text(b)) || (up ? 1 : -1) * compare(text(a), text(b))); // empty cells last
      body.append(...rows);
    });
  });

  if (rows.length < 20) continue;
  const filter = Object.assign(document.createElement("input"), { type: "search" });
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  const label = document.createElement("label");
  label.append("Rows with ", filter);
  table.parentElement.before(label);
}

// SPDX-License-Identifier: MIT
// Draws the charts of the report with plotly, from the data in #data. Without it the page has tables and static figures.
// What is chosen stands in the fragment of the address: #rate?dtype=f32&hide=naive_c,flash_c&rate.axis=heads&rate.view=2
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const looks = new Map(data.kernels.map((kernel) => [kernel.name, kernel]));
  const names = Object.keys(data.charts);
  const state = { section: "", dtype: "", hidden: new Set(), charts: {} };
  const toggles = ["x", "y", "share"]; // logarithmic axes, and rates as shares of the peak
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // ---- The fragment --------------------------------------------------------------------------------------------------

  function readFragment() {
    const [section, query] = decodeURIComponent(location.hash.slice(1)).split("?");
    const chosen = new URLSearchParams(query || "");
    state.section = section || "";
    state.dtype = dtypes().includes(chosen.get("dtype")) ? chosen.get("dtype") : "";
    state.hidden = new Set((chosen.get("hide") || "").split(",").filter((name) => looks.has(name)));
    for (const name of names) {
      state.charts[name] = { axis: axesOf(name)[0], view: 0 };
      const own = state.charts[name];
      if (axesOf(name).includes(chosen.get(`${name}.axis`))) own.axis = chosen.get(`${name}.axis`);
      own.view = Math.max(0, Number.parseInt(chosen.get(`${name}.view`), 10) || 0);
      for (const key of toggles) if (chosen.has(`${name}.${key}`)) own[key] = chosen.get(`${name}.${key}`) === "1";
    }
  }

  function fragment(section) {
    const chosen = new URLSearchParams();
    if (state.dtype) chosen.set("dtype", state.dtype);
    if (state.hidden.size) chosen.set("hide", [...state.hidden].join(","));
    for (const name of names) {
      const own = state.charts[name];
      if (own.axis !== axesOf(name)[0]) chosen.set(`${name}.axis`, own.axis);
      if (own.view) chosen.set(`${name}.view`, own.view);
      for (const key of toggles) if (own[key] !== undefined) chosen.set(`${name}.${key}`, own[key] ? 1 : 0);
    }
    const query = chosen.toString();
    return `#${section}${query ? `?${query}` : ""}`;
  }

  const dtypes = () => [...new Set(names.flatMap((name) => data.charts[name].map((view) => view.dtype)))];
  const axesOf = (name) => [...new Set(data.charts[name].map((view) => view.axis))];

  // The views of a chart that the axis and the dtype leave.
  function choices(name) {
    return data.charts[name].filter(
      (view) => view.axis === state.charts[name].axis && (!state.dtype || view.dtype === state.dtype));
  }

  // ---- Controls ------------------------------------------------------------------------------------------------------

  function element(tag, attributes, ...children) {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  }

  function select(words, options, value, change) {
    const entries = options.map(([key, textContent]) => element("option", { value: key, textContent }));
    const list = element("select", {}, ...entries);
    list.value = value;
    list.addEventListener("change", () => change(list.value));
    return element("label", {}, `${words} `, list);
  }

  function check(words, checked, change) {
    const box = element("input", { type: "checkbox", checked });
    box.addEventListener("change", () => change(box.checked));
    return element("label", {}, box, words);
  }

  function chooser() {
    const form = document.getElementById("choose");
    const boxes = data.kernels.map((kernel) => check(kernel.name, !state.hidden.has(kernel.name), (shown) => {
      state.hidden[shown ? "delete" : "add"](kernel.name);
      changed();
    }));
    const all = (hide) => () => {
      state.hidden = new Set(hide ? looks.keys() : []);
      chooser();
      changed();
    };
    const buttons = [["All", false], ["None", true]].map(([textContent, hide]) => {
      const button = element("button", { type: "button", textContent });
      button.addEventListener("click", all(hide));
      return button;
    });
    const dtype = select("dtype", [["", "all"], ...dtypes().map((one) => [one, one])], state.dtype, (value) => {
      state.dtype = value;
      for (const name of names) state.charts[name].view = 0;
      changed();
    });
    form.replaceChildren(element("form", { onsubmit: () => false }, dtype),
      element("details", { open: state.hidden.size > 0 }, element("summary", {}, "Kernels shown"),
        element("form", { onsubmit: () => false }, element("fieldset", {}, element("legend", {}, "Kernels"), ...boxes),
          ...buttons)));
    form.hidden = false;
  }

  function controls(name) {
    const own = state.charts[name], views = choices(name), view = views[own.view];
    const set = (key) => (value) => {
      own[key] = value;
      changed(name);
    };
    const made = [];
    if (axesOf(name).length > 1) {
      made.push(select("axis", axesOf(name).map((axis) => [axis, axis]), own.axis, (value) => {
        own.axis = value;
        own.view = 0;
        changed(name);
      }));
    }
    const words = (one) => (state.dtype ? one.words : `${one.dtype}, ${one.words}`);
    if (views.length) {
      made.push(select("cases", views.map((one, i) => [i, words(one)]), own.view, (value) => set("view")(Number(value))));
    }
    if (view && view.kind !== "cells" && view.kind !== "bars") {
      made.push(check("log x", own.x ?? !!view.log_x, set("x")));
      if (view.y) made.push(check("log y", own.y ?? !!view.log_y, set("y")));
    }
    if (view && view.share) made.push(check(view.share, !!own.share, set("share")));
    const href = fragment(name === "winners" ? "summary" : name);
    made.push(element("a", { href, textContent: "link to this selection" }));
    return element("form", { onsubmit: () => false }, ...made);
  }

  // ---- Drawing -------------------------------------------------------------------------------------------------------

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Dark colours become lighter on dark paper.
  function ink(colour) {
    const parts = [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16));
    const bright = (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]) / 255;
    if (!dark.matches || bright > 0.45) return colour;
    return `rgb(${parts.map((part) => Math.round(part + (255 - part) * 0.45)).join(",")})`;
  }

  function transparent(colour) {
    const [r, g, b] = colour.startsWith("#") ? [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16))
      : colour.match(/\d+/g);
    return `rgba(${r},${g},${b},0.22)`;
  }

  function look(line) {
    const own = looks.get(line.name) || line;
    return { colour: ink(own.colour), symbol: own.symbol, dash: own.dash || "solid" };
  }

  const shown = (line) => !state.hidden.has(line.name);

  // Values of a line, or each as a share of the peak beside it.
  function scaled(line, values, share) {
    return share ? values.map((value, i) => (line.share[i] === null ? null : value * line.share[i] / line.y[i])) : values;
  }

  function lineTraces(view, share) {
    const traces = [];
    for (const line of view.lines.filter(shown)) {
      const { colour, symbol, dash } = look(line);
      const low = scaled(line, line.low, share), high = scaled(line, line.high, share);
      traces.push({ x: [...line.x, ...[...line.x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself",
        mode: "none", fillcolor: transparent(colour), hoverinfo: "skip", showlegend: false });
      traces.push({ x: line.x, y: scaled(line, line.y, share), name: line.name, mode: "lines+markers",
        line: { color: colour, dash, width: 2 }, marker: { color: colour, symbol, size: 8 },
        customdata: line.x.map((_, i) => [low[i], high[i], line.kernel ? ` with ${line.kernel[i]}` : ""]),
        hovertemplate: "%{y:.4g} (95 %: %{customdata[0]:.4g} to %{customdata[1]:.4g})%{customdata[2]}" });
    }
    return traces;
  }

  function roofTraces(view, share) {
    if (share) return [];
    return view.roofs.map((roof) => ({ x: roof.x, y: roof.y, name: roof.name, mode: "lines", hovertemplate: "%{y:.4g}",
      line: { color: css("--faint"), width: 1.3, dash: roof.dash || "solid" } }));
  }

  function spotTraces(view) {
    return view.lines.filter(shown).map((line) => {
      const { colour, symbol } = look(line);
      return { x: line.x, y: line.y, text: line.text, name: line.name, mode: "markers",
        marker: { color: colour, symbol, size: 9, opacity: 0.85 }, hovertemplate: "%{text}<br>%{x:.4g}, %{y}" };
    });
  }

  function barTraces(view) {
    return view.lines.map((part) => ({ type: "bar", x: part.x, y: part.y, name: part.name, text: part.text,
      textposition: "none", marker: { color: ink(part.colour) }, hovertemplate: "%{y:.4g} ms, %{text}" }));
  }

  // One square per case, in the colour of the winner's algorithm.
  function cellTraces(view, layout) {
    layout.shapes = view.cells.map((cell) => ({ type: "rect", x0: cell.x - 0.48, x1: cell.x + 0.48, y0: cell.y - 0.48,
      y1: cell.y + 0.48, fillcolor: cell.colour, line: { width: 0 }, layer: "below",
      opacity: cell.separated === false ? 0.55 : 1 }));
    layout.annotations = view.cells.map((cell) => ({ x: cell.x, y: cell.y, text: cell.words.join("<br>"), showarrow: false,
      font: { size: 11, color: cell.separated === false ? css("--ink") : cell.ink || "#000000" } }));
    Object.assign(layout.xaxis, { tickvals: view.columns.map((_, i) => i), ticktext: view.columns, type: "linear",
      range: [-0.6, view.columns.length - 0.4], showgrid: false });
    Object.assign(layout.yaxis, { tickvals: view.rows.map((_, i) => i), ticktext: view.rows, type: "linear",
      range: [-0.6, view.rows.length - 0.4], showgrid: false });
    return [{ x: view.cells.map((cell) => cell.x), y: view.cells.map((cell) => cell.y), mode: "markers",
      showlegend: false, marker: { opacity: 0, size: 40 }, text: view.cells.map((cell) => cell.says),
      hovertemplate: "%{text}<extra></extra>" }];
  }

  function axis(title, log, values) {
    const made = { title: { text: title }, type: log ? "log" : "linear", gridcolor: css("--line"), linecolor: css("--faint"),
      zeroline: false, automargin: true, exponentformat: "none" };
    if (log) made.dtick = "D2"; // labels at 1, 2 and 5
    const all = [...new Set(values)].sort((a, b) => a - b);
    if (values.length && all.length <= 14) Object.assign(made, { tickvals: all, ticktext: all.map(String) });
    return made;
  }

  function draw(name) {
    const place = document.querySelector(`[data-chart="${name}"]`), own = state.charts[name], views = choices(name);
    const view = views[own.view] || views[own.view = 0];
    let plot = place.querySelector(".plot");
    if (!plot) place.append(plot = element("div", { className: "plot" }));
    place.querySelector(":scope > form")?.remove();
    place.prepend(controls(name));
    place.hidden = false;
    if (!view) {
      Plotly.purge(plot);
      plot.textContent = `No cases of ${state.dtype} here.`;
      return;
    }
    if (!plot.classList.contains("js-plotly-plot")) plot.textContent = "";
    const share = own.share && view.share, narrow = place.clientWidth < 600;
    const lined = view.kind === "lines";
    const layout = {
      xaxis: axis(view.x, own.x ?? !!view.log_x, lined ? view.lines.flatMap((line) => line.x) : []),
      yaxis: axis(share ? view.share : view.y, own.y ?? !!view.log_y, []),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), size: narrow ? 11 : 13 },
      margin: { l: narrow ? 45 : 70, r: 15, t: 30, b: 60 }, barmode: "stack", hovermode: lined ? "x unified" : "closest",
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--faint"), font: { color: css("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--ink") },
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    };
    if (lined && !(own.y ?? !!view.log_y)) layout.yaxis.rangemode = "tozero";
    const traces = lined ? [...lineTraces(view, share), ...roofTraces(view, share)]
      : view.kind === "spots" ? [...spotTraces(view), ...roofTraces(view, false)]
      : view.kind === "bars" ? barTraces(view) : cellTraces(view, layout);
    if (view.limit) {
      layout.shapes = [{ type: "line", x0: view.limit, x1: view.limit, y0: 0, y1: 1, yref: "paper",
        line: { color: css("--ink"), width: 2 } }];
      layout.showlegend = false;
      layout.yaxis.type = "category";
    }
    if (view.kind === "bars") layout.xaxis.type = "category";
    const legend = layout.showlegend === false ? 0 : traces.filter((trace) => trace.showlegend !== false).length;
    const across = Math.max(1, Math.floor(place.clientWidth / 170));
    layout.margin.b += 22 * Math.ceil(legend / across);
    layout.height = 340 + layout.margin.b;
    if (view.kind === "cells") layout.height = 130 + 62 * view.rows.length;
    if (view.limit) layout.height = 130 + 20 * traces.length;
    plot.style.minHeight = `${layout.height}px`;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Chart: ${view.y || "kernels"} against ${view.x}, ${view.dtype}, ${view.words}. `
      + "The tables below hold its numbers.");
    Plotly.react(plot, traces, layout, { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtonsToRemove: ["lasso2d", "select2d"] });
  }

  // Draws one chart again, or all, and keeps the address up to date.
  function changed(name) {
    if (name) state.section = name === "winners" ? "summary" : name;
    const active = document.activeElement, form = name && document.querySelector(`[data-chart="${name}"] > form`);
    const which = form ? [...form.querySelectorAll("select, input, a")].indexOf(active) : -1;
    history.replaceState(null, "", fragment(state.section || "summary"));
    (name ? [name] : names).forEach(draw);
    if (which >= 0) document.querySelectorAll(`[data-chart="${name}"] > form :is(select, input, a)`)[which]?.focus();
  }

  function start() {
    readFragment();
    chooser();
    names.forEach(draw);
    document.querySelectorAll("details.still").forEach((still) => {
      still.open = !still.closest("section").querySelector("[data-chart]");
    });
    if (state.section) document.getElementById(state.section)?.scrollIntoView();
  }

  window.addEventListener("hashchange", () => {
    if (location.hash.includes("?")) start(); // others lead to a section and leave the selection as it is
  });
  dark.addEventListener("change", () => names.forEach(draw));
  start();
})();

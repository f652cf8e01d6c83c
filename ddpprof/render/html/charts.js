"use strict";
/* Charts: plotly figures in the colors of the theme. */

const PATTERNS = { exposed: "/", optimizer: ".", data: "x", other: "x", trailing: "\\", held: "-", queued: "|" };
const NARROW = matchMedia("(max-width: 640px)");
const drawn = new Map();

/** Escapes text, because plotly interprets some HTML, and our text is never markup. */
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function plainDeep(text) {
  return Array.isArray(text) ? text.map(plain) : plain(text);
}

/** Returns the colors of roles and surfaces in the current theme. */
function palette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const known = new Map();
  const find = (variable) => {
    if (!known.has(variable)) {
      probe.style.color = `var(${variable})`;
      known.set(variable, getComputedStyle(probe).color);
    }
    return known.get(variable);
  };
  const colours = { text: find("--text"), quiet: find("--quiet"), rule: find("--rule"), surface: find("--surface"), sunken: find("--sunken") };
  colours.role = (role) => find(`--role-${role}`);
  colours.done = () => probe.remove();
  return colours;
}

/** Shortens text in the middle: kernel names differ at the beginning, and op names at the end. */
function short(label) {
  const most = NARROW.matches ? 20 : 52;
  if (label.length <= most) return label;
  const head = Math.floor(most * 0.4);
  return `${label.slice(0, head)}…${label.slice(head + 1 - most)}`;
}

/** Shows a legend of colors and patterns above a bar chart. */
function showLegend(plot, data) {
  const bars = data.filter((trace) => trace.type === "bar" && trace.meta?.role);
  const legend = plot.parentElement.querySelector(".key") ?? document.createElement("ul");
  legend.className = "key";
  legend.replaceChildren(...bars.map((trace) => {
    const item = document.createElement("li"), swatch = document.createElement("span");
    swatch.className = `swatch${PATTERNS[trace.meta.role] ? ` pattern-${trace.meta.role}` : ""}`;
    swatch.style.backgroundColor = `var(--role-${trace.meta.role})`;
    item.append(swatch, trace.name);
    return item;
  }));
  if (bars.length && !legend.isConnected) plot.before(legend);
}

function withColour(trace, colours) {
  const role = trace.meta && trace.meta.role;
  const text = { ...trace, name: plain(trace.name ?? "") };
  for (const field of ["text", "hovertext"]) if (trace[field]) text[field] = trace[field].map(plainDeep);
  if (trace.type === "heatmap") {
    text.colorscale = [[0, colours.role("series-0")], [0.5, colours.sunken], [1, colours.role("series-1")]];
  }
  if (!role) return text;
  const colour = colours.role(role);
  text.marker = { ...trace.marker, color: colour };
  if (trace.type === "bar") {
    text.marker.line = { width: trace.meta.plain ? 0 : 1, color: colours.surface };
    const shape = PATTERNS[role];
    if (shape) text.marker.pattern = { shape, fillmode: "overlay", fgcolor: colours.surface, fgopacity: 0.5, size: 7, solidity: 0.18 };
    text.textfont = { color: colours.text };
  }
  if (trace.line || trace.mode === "lines") text.line = { ...trace.line, color: colour };
  for (const bars of ["error_x", "error_y"]) if (trace[bars]) text[bars] = { ...trace[bars], color: colour };
  return text;
}

function withAxis(axis, colours) {
  const title = axis.title ? { ...axis.title, text: plain(axis.title.text), font: { size: 12 } } : undefined;
  const lines = { gridcolor: colours.rule, linecolor: colours.rule, zerolinecolor: colours.rule };
  return { automargin: true, fixedrange: true, ...lines, ...axis, ...(title ? { title } : {}) };
}

function withTheme(layout, colours) {
  const shapes = (layout.shapes ?? []).map((shape) => ({ line: { color: colours.rule, width: 1 }, ...shape }));
  for (const shape of shapes) if (shape.name === "limit") shape.line = { color: colours.quiet, width: 1.5, dash: "dash" };
  const notes = (layout.annotations ?? []).map((note) => ({ ...note, text: plain(note.text) }));
  const axes = {};
  for (const [name, axis] of Object.entries(layout)) if (/^[xy]axis\d*$/.test(name)) axes[name] = withAxis(axis, colours);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 12, t: 8, b: 8 }, autosize: true,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.text }, bargap: 0.28,
    dragmode: false, legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "normal" },
    hoverlabel: { align: "left", bgcolor: colours.surface, bordercolor: colours.quiet, font: { color: colours.text } },
    ...layout, ...axes, shapes, annotations: notes,
  };
}

/** Returns the figure with the labels of its category axis shortened to fit. */
function withLabels(figure) {
  const axis = figure.layout.yaxis;
  if (axis?.type !== "category") return figure;
  const labels = axis.categoryarray ?? [...new Set(figure.data.flatMap((trace) => trace.y))];
  const ticks = { tickmode: "array", tickvals: labels, ticktext: labels.map((label) => plain(short(label))) };
  return { ...figure, layout: { ...figure.layout, yaxis: { ...axis, ...ticks } } };
}

function draw(plot, figure) {
  drawn.set(plot, figure);
  const colours = palette();
  const shown = withLabels(figure);
  const data = shown.data.map((trace) => withColour(trace, colours));
  const layout = withTheme(shown.layout, colours);
  colours.done();
  plot.style.minHeight = `${layout.height}px`;
  layout.showlegend = shown.data.some((trace) => trace.type === "scatter");
  if (figure.layout.showlegend !== false) showLegend(plot, shown.data);
  return Plotly.react(plot, data, layout, { displaylogo: false, responsive: true, displayModeBar: false });
}

async function drawFigure(plot) {
  return draw(plot, await readData(plot.dataset.figure));
}

function redrawAll() {
  for (const [plot, figure] of drawn) draw(plot, figure);
}

/** Sets up printing: printed charts use the light theme, and are as wide as the paper. */
function setUpPrinting(redrawTimeline) {
  let before;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    redrawAll();
    redrawTimeline();
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: 690, autosize: false });
  });
  addEventListener("afterprint", () => {
    if (before) document.documentElement.dataset.theme = before;
    else delete document.documentElement.dataset.theme;
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: null, autosize: true });
    redrawAll();
    redrawTimeline();
  });
}

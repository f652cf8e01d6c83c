"use strict";
/* The timeline of one step: lanes of the chosen ranks on one clock, as detailed as the width allows. */

const LANES = [
  ["step", "step"], ["compute", "compute"], ["buckets", "buckets"], ["collectives", "comm"],
  ["exposed", "exposed"], ["trailing", "trailing"],
];
const LANE_OF_KIND = { held: "bucket held back", queued: "bucket queued", comm: "communication", data: "waiting for data" };
const ROW = 19;
const GRAIN_PX = 1.5;
const CELL_PX = 3;
const BLOCK_PX = 20;

/**
 * Returns the spans of a lane that overlap with [from, until). Spans narrower than a grain are merged if the gap between
 * them is less than a grain: each cell gets the kind with the most time in it, and cells of one kind form a block.
 */
function visibleSpans(lane, from, until, grain) {
  const cell = (grain * CELL_PX) / GRAIN_PX, found = [];
  let open = null;
  for (let i = 0; i < lane.start.length; i++) {
    const start = lane.start[i], end = start + lane.length[i];
    if (start >= until || end <= from) continue;
    const narrow = lane.length[i] < grain;
    const joins = open && narrow && open.narrow && start - open.end < grain && start < open.cell + cell && lane.row[i] === open.row;
    if (!joins) {
      open = { start, end, narrow, cell: Math.floor(start / cell) * cell, row: lane.row[i], count: 0, busy: new Map(), longest: -1 };
      found.push(open);
    }
    include(open, { end, count: lane.count[i], busy: [[lane.kind[i], lane.busy[i]]], longest: lane.length[i], name: lane.name[i] });
  }
  return joined(found, grain, (grain * BLOCK_PX) / GRAIN_PX);
}

function include(open, more) {
  open.end = Math.max(open.end, more.end);
  open.count += more.count;
  for (const [kind, ns] of more.busy) open.busy.set(kind, (open.busy.get(kind) ?? 0) + ns);
  if (more.longest > open.longest) Object.assign(open, { longest: more.longest, name: more.name });
}

/** Returns kinds and their ns, the largest first. */
function kindsOf(span) {
  return [...span.busy].sort((a, b) => b[1] - a[1]);
}

/** Merges neighbours of one kind into blocks; gaps of less than a grain are not drawn. */
function joined(spans, grain, most) {
  const found = [];
  for (const span of spans) {
    const last = found.at(-1);
    const touches = last && last.narrow && span.narrow && span.row === last.row && span.start - last.end < grain;
    if (touches && span.end - last.start < most && kindsOf(span)[0][0] === kindsOf(last)[0][0]) {
      include(last, { ...span, busy: span.busy });
    } else {
      found.push(span);
    }
    if (touches) last.drawnUntil = Math.max(last.end, Math.min(span.start, last.end + grain));
  }
  return found;
}

class Timeline {
  constructor(plot, data) {
    this.plot = plot;
    this.data = data;
    this.range = null;
    plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    plot.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws a whole step of these ranks. */
  show(step, ranks) {
    this.step = this.data.steps[step];
    this.ranks = ranks.filter((rank) => this.step && rank in this.step.ranks);
    let first = Infinity, last = 0;
    for (const rank of this.ranks) {
      first = Math.min(first, this.step.ranks[rank].start);
      for (const [, , lane] of this.lanes(rank)) {
        for (let i = 0; i < lane.start.length; i++) last = Math.max(last, lane.start[i] + lane.length[i]);
      }
    }
    if (!this.ranks.length) [first, last] = [0, 1e6];
    this.whole = [first - (last - first) * 0.005, last + (last - first) * 0.005];
    this.range = [...this.whole];
    this.redraw();
  }

  lanes(rank) {
    const own = this.step.ranks[rank].lanes;
    return LANES.filter(([name]) => own[name]).map(([name, label]) => [name, label, own[name]]);
  }

  zoom(factor, at = (this.range[0] + this.range[1]) / 2) {
    const least = 1000;
    const width = Math.min(this.whole[1] - this.whole[0], Math.max(least, (this.range[1] - this.range[0]) * factor));
    const share = (at - this.range[0]) / (this.range[1] - this.range[0]);
    this.move(at - width * share, width);
  }

  pan(share) {
    const width = this.range[1] - this.range[0];
    this.move(this.range[0] + width * share, width);
  }

  move(start, width) {
    const kept = Math.max(this.whole[0], Math.min(start, this.whole[1] - width));
    this.range = [kept, kept + width];
    this.redraw();
  }

  reset() {
    this.range = [...this.whole];
    this.redraw();
  }

  key(event) {
    const actions = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      ArrowLeft: () => this.pan(-0.2), a: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), d: () => this.pan(0.2),
      0: () => this.reset(), Home: () => this.reset(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
    announce(`${(this.range[0] / 1e6).toFixed(2)} to ${(this.range[1] / 1e6).toFixed(2)} milliseconds`);
  }

  /** Zooms with Ctrl and the mouse wheel, as in maps. The wheel alone scrolls the page. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const axis = this.plot._fullLayout.xaxis;
    const x = event.clientX - this.plot.getBoundingClientRect().left - axis._offset;
    this.zoom(event.deltaY < 0 ? 0.8 : 1.25, axis.p2d(x) * 1e6);
  }

  /** Draws bars by kind, ticks and headings, from the top down. */
  arrange() {
    const bars = new Map(), ticks = [], headings = [], rules = [];
    this.room = Math.max(200, this.plot.clientWidth - 90);
    const grain = ((this.range[1] - this.range[0]) / this.room) * GRAIN_PX;
    let y = 0;
    for (const rank of this.ranks) {
      const about = this.data.ranks.find((one) => one.rank === rank);
      headings.push([y + 0.5, `rank ${rank}${about.host === null ? "" : `, ${about.host}`}`]);
      rules.push(y);
      y += 1.1;
      for (const [name, label, lane] of this.lanes(rank)) {
        const rows = 1 + lane.row.reduce((most, row) => Math.max(most, row), 0);
        ticks.push([y + rows / 2, label]);
        for (const span of visibleSpans(lane, this.range[0], this.range[1], grain)) this.add(bars, rank, name, span, y);
        y += rows;
      }
      y += 0.4;
    }
    if (!this.ranks.length) headings.push([y++ + 0.5, "None of these ranks has this step."]);
    return { bars, ticks, headings, rules, height: y };
  }

  add(bars, rank, lane, span, y) {
    const kinds = kindsOf(span).map(([kind, ns]) => [this.data.kinds[kind], ns]);
    const kind = kinds[0][0], length = span.end - span.start;
    if (!bars.has(kind)) bars.set(kind, { x: [], y: [], base: [], width: [], text: [], hovertext: [], customdata: [], opacity: [] });
    const into = bars.get(kind);
    into.base.push(span.start / 1e6);
    into.x.push(((span.drawnUntil ?? span.end) - span.start) / 1e6);
    into.y.push(y + span.row + 0.5);
    into.width.push(lane === "exposed" || lane === "trailing" ? 0.62 : 0.86);
    into.hovertext.push(this.words(rank, lane, span, kinds));
    const label = kind === "comm" && lane === "buckets" && span.count === 1 ? plain(this.data.names[span.name]) : "";
    into.text.push(length > (label.length * 7 / this.room) * (this.range[1] - this.range[0]) ? label : "");
    into.customdata.push([rank, lane, Object.fromEntries(kinds), span.count]);
    const busy = kinds.reduce((sum, [, ns]) => sum + ns, 0);
    into.opacity.push(span.count > 1 ? 0.4 + 0.6 * Math.min(1, busy / length) : 1);
  }

  words(rank, lane, span, kinds) {
    const called = ([kind, ns]) => `${LANE_OF_KIND[kind] ?? kind} ${millis(ns)}`;
    const lines = [`<b>rank ${rank}, ${plain(LANE_OF_KIND[kinds[0][0]] ?? kinds[0][0])}</b>`];
    const name = span.name < 0 ? "" : this.data.names[span.name];
    const pieces = (name.match(/.{1,64}/gsu) ?? []).slice(0, 3).map(plain);
    if (pieces.length) lines.push((span.count > 1 ? "longest: " : "") + pieces.join("<br>"));
    lines.push(`${ms(span.start)} to ${ms(span.end)} ms: ${millis(span.end - span.start)}`);
    if (span.count > 1) lines.push(`${span.count} too narrow to draw apart: ${kinds.map(called).join(", ")}`);
    return lines.join("<br>");
  }

  redraw() {
    if (!this.range) return;
    const arranged = this.arrange();
    const colours = palette();
    const order = this.data.kinds.filter((kind) => arranged.bars.has(kind));
    const traces = order.map((kind) => {
      const { opacity, ...columns } = arranged.bars.get(kind);
      const trace = { type: "bar", name: LANE_OF_KIND[kind] ?? kind, meta: { role: kind, plain: true }, marker: { opacity } };
      return { ...withColour(trace, colours), ...columns, orientation: "h", hoverinfo: "text", textposition: kind === "comm" ? "inside" : "none",
        insidetextanchor: "start", insidetextfont: { color: colours.surface, size: 11 }, constraintext: "none" };
    });
    const layout = withTheme(this.layout(arranged, colours), colours);
    colours.done();
    showLegend(this.plot, traces);
    this.plot.style.minHeight = `${layout.height}px`;
    Plotly.react(this.plot, traces, layout, {
      displaylogo: false, responsive: true, displayModeBar: false, doubleClick: false, showAxisDragHandles: false,
    });
    this.listen();
  }

  layout(arranged, colours) {
    const narrow = NARROW.matches;
    return {
      height: Math.round(arranged.height * ROW + 60), barmode: "overlay", bargap: 0, showlegend: false,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", hovermode: "closest", hoverdistance: 12,
      margin: { l: narrow ? 58 : 78, r: 10, t: 8, b: 8 },
      xaxis: { range: this.range.map((ns) => ns / 1e6), fixedrange: false, title: { text: "ms since the step began" } },
      yaxis: {
        range: [arranged.height, 0], fixedrange: true, tickmode: "array", tickvals: arranged.ticks.map(([at]) => at),
        ticktext: arranged.ticks.map(([, label]) => label), showgrid: false, zeroline: false, automargin: false,
        tickfont: { size: narrow ? 10 : 11.5, color: colours.quiet },
      },
      annotations: arranged.headings.map(([at, text]) => ({
        xref: "paper", x: 0, y: at, text, showarrow: false, xanchor: "left", yanchor: "middle", font: { size: 12.5, weight: 600 },
      })),
      shapes: arranged.rules.map((at) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at })),
    };
  }

  listen() {
    if (this.listens) return;
    this.listens = true;
    this.plot.on("plotly_relayout", (change) => {
      const [from, until] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && until > from) this.move(from * 1e6, Math.max(1000, (until - from) * 1e6));
    });
    this.plot.on("plotly_doubleclick", () => this.reset());
  }
}

function millis(ns) {
  return ns < 1e5 ? `${(ns / 1e3).toFixed(ns < 1e4 ? 2 : 1)} µs` : `${ms(ns)} ms`;
}

"use strict";
/* The timeline of one step: lanes of the chosen ranks on one clock, as fine as there is room for. */

const LANES = [
  ["step", "step"], ["compute", "compute"], ["buckets", "buckets"], ["collectives", "comm"],
  ["exposed", "exposed"], ["trailing", "trailing"],
];
const LANE_OF_KIND = { held: "bucket held back", queued: "bucket queued", comm: "communication", data: "waiting for data" };
const ROW = 19;
const GRAIN_PX = 1.5;

/** Indices of a lane's spans that reach into [from, until), those narrower than a grain together: groups [first, last]. */
function visibleGroups(lane, from, until, grain) {
  const groups = [];
  let open = null;
  for (let i = 0; i < lane.start.length; i++) {
    if (lane.start[i] >= until || lane.start[i] + lane.length[i] <= from) continue;
    const narrow = lane.length[i] < grain;
    const cell = Math.floor(lane.start[i] / grain);
    if (open && narrow && open.narrow && cell === open.cell && i === open.last + 1
        && lane.kind[i] === lane.kind[open.first] && lane.row[i] === lane.row[open.first]) {
      open.last = i;
    } else {
      open = { first: i, last: i, narrow, cell };
      groups.push(open);
    }
  }
  return groups;
}

/** What one group of spans comes to. Times are ns. */
function summed(lane, group) {
  let end = 0, busy = 0, count = 0, longest = group.first;
  for (let i = group.first; i <= group.last; i++) {
    end = Math.max(end, lane.start[i] + lane.length[i]);
    busy += lane.busy[i];
    count += lane.count[i];
    if (lane.length[i] > lane.length[longest]) longest = i;
  }
  return { start: lane.start[group.first], end, busy, count, name: lane.name[longest], row: lane.row[group.first], kind: lane.kind[group.first] };
}

class Timeline {
  constructor(plot, data) {
    this.plot = plot;
    this.data = data;
    this.range = null;
    plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    plot.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws a step of some ranks, all of it. */
  show(step, ranks) {
    this.step = this.data.steps[step];
    this.ranks = ranks.filter((rank) => this.step && rank in this.step.ranks);
    const ends = this.ranks.flatMap((rank) => this.lanes(rank).flatMap(([, , lane]) => lane.start.map((s, i) => s + lane.length[i])));
    const starts = this.ranks.map((rank) => this.step.ranks[rank].start);
    const first = Math.min(...starts), last = ends.reduce((most, end) => Math.max(most, end), 0);
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

  /** With Ctrl, as maps do: the wheel alone scrolls the page. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const axis = this.plot._fullLayout.xaxis;
    const x = event.clientX - this.plot.getBoundingClientRect().left - axis._offset;
    this.zoom(event.deltaY < 0 ? 0.8 : 1.25, axis.p2d(x) * 1e6);
  }

  /** Bars by kind, ticks and headings, from the top down. */
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
        for (const group of visibleGroups(lane, this.range[0], this.range[1], grain)) {
          this.add(bars, rank, name, summed(lane, group), y);
        }
        y += rows;
      }
      y += 0.4;
    }
    return { bars, ticks, headings, rules, height: y };
  }

  add(bars, rank, lane, span, y) {
    const kind = this.data.kinds[span.kind];
    if (!bars.has(kind)) bars.set(kind, { x: [], y: [], base: [], width: [], text: [], hovertext: [], customdata: [] });
    const into = bars.get(kind);
    into.base.push(span.start / 1e6);
    into.x.push((span.end - span.start) / 1e6);
    into.y.push(y + span.row + 0.5);
    into.width.push(lane === "exposed" || lane === "trailing" ? 0.62 : 0.86);
    into.hovertext.push(this.words(rank, lane, kind, span));
    const label = kind === "comm" && lane === "buckets" && span.count === 1 ? plain(this.data.names[span.name]) : "";
    into.text.push(span.end - span.start > (label.length * 7 / this.room) * (this.range[1] - this.range[0]) ? label : "");
    into.customdata.push([rank, lane, span.busy, span.count]);
  }

  words(rank, lane, kind, span) {
    const name = span.name < 0 ? "" : this.data.names[span.name];
    const what = lane === "compute" || lane === "step" ? kind : LANE_OF_KIND[kind] ?? kind;
    const lines = [`<b>rank ${rank}, ${plain(what)}</b>`];
    if (name) lines.push(...name.match(/.{1,64}/gsu).slice(0, 3).map((part, n) => (n ? "" : span.count > 1 ? "longest: " : "") + plain(part)));
    lines.push(`${ms(span.start)} to ${ms(span.end)} ms: ${millis(span.end - span.start)}`);
    if (span.count > 1) lines.push(`${span.count} too narrow to draw apart, together ${millis(span.busy)}`);
    return lines.join("<br>");
  }

  redraw() {
    if (!this.range || !this.ranks.length) return;
    const arranged = this.arrange();
    const colours = palette();
    const order = this.data.kinds.filter((kind) => arranged.bars.has(kind));
    const traces = order.map((kind) => ({
      ...withColour({ type: "bar", name: LANE_OF_KIND[kind] ?? kind, meta: { role: kind, plain: true } }, colours),
      ...arranged.bars.get(kind), orientation: "h", hoverinfo: "text", textposition: kind === "comm" ? "inside" : "none",
      insidetextanchor: "start", insidetextfont: { color: colours.surface, size: 11 }, constraintext: "none",
    }));
    const layout = withTheme(this.layout(arranged, colours), colours);
    colours.done();
    this.plot.style.minHeight = `${layout.height}px`;
    Plotly.react(this.plot, traces, layout, {
      displaylogo: false, responsive: true, displayModeBar: false, doubleClick: false, showAxisDragHandles: false,
    });
    this.listen();
  }

  layout(arranged, colours) {
    const narrow = NARROW.matches;
    return {
      height: Math.round(arranged.height * ROW + (narrow ? 190 : 130)), barmode: "overlay", bargap: 0,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", hovermode: "closest", hoverdistance: 4,
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

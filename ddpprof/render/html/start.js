"use strict";
/* Starts a page: draws its charts, and lets the reader choose steps and ranks. */

/** Formats ms like the tables: two digits, ties to even. */
function ms(ns) {
  const value = ns / 1e6;
  const tie = Number.isInteger(value * 8) && Math.abs(Math.round(value * 1000)) % 10 === 5;
  if (!tie) return value.toFixed(2);
  const below = Math.floor(value * 100);
  return ((below % 2 === 0 ? below : below + 1) / 100).toFixed(2);
}

/** Parses ranks such as "0-3, 8"; returns null for any other text. */
function parseRanks(text, known) {
  const found = new Set();
  for (const word of text.split(/[\s,;]+/).filter(Boolean)) {
    const range = /^(\d+)(?:[-–](\d+))?$/.exec(word);
    if (!range) return null;
    const from = Number(range[1]), until = Number(range[2] ?? range[1]);
    for (const rank of known) if (rank >= from && rank <= until) found.add(rank);
  }
  return [...found].sort((a, b) => a - b);
}

/** Formats ranks such as "0-3, 8". */
function formatRanks(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([from, until]) => (from === until ? `${from}` : `${from}-${until}`)).join(", ");
}

class Choice {
  constructor(steps, timeline, template) {
    Object.assign(this, { steps, timeline, template });
    this.step = steps.typical;
    this.ranks = steps.shown;
    const most = 8, known = timeline ? timeline.data.ranks.map((one) => one.rank) : [];
    const odd = steps.drawn.filter((rank) => known.includes(rank));
    this.drawnRanks = known.length > most && odd.length ? odd : known.slice(0, most);
  }

  setUp() {
    for (const select of document.querySelectorAll("[data-choose=step]")) {
      for (const step of Object.keys(this.steps.steps)) {
        select.append(new Option(Number(step) === this.steps.typical ? `${step} (median length)` : step, step));
      }
      select.value = this.step;
      select.addEventListener("change", () => {
        this.chooseStep(Number(select.value));
        this.remember(select);
      });
    }
    this.listenForRanks("chosen-ranks", (ranks) => { this.ranks = ranks; this.showBars(); }, this.steps.ranks);
    this.listenForRanks("drawn-ranks", (ranks) => { this.drawnRanks = ranks; this.showTimeline(); }, this.timeline?.data.ranks.map((one) => one.rank) ?? []);
    for (const button of document.querySelectorAll("[data-zoom]")) {
      const actions = { in: () => this.timeline.zoom(0.5), out: () => this.timeline.zoom(2), left: () => this.timeline.pan(-0.3), right: () => this.timeline.pan(0.3), all: () => this.timeline.reset() };
      button.addEventListener("click", actions[button.dataset.zoom]);
    }
  }

  listenForRanks(name, choose, known) {
    const more = name === "drawn-ranks" && known.length < this.steps.ranks.length ? " To see other ranks, write the page with --only-ranks." : "";
    for (const input of document.querySelectorAll(`[data-choose=${name}]`)) {
      input.value = formatRanks(name === "chosen-ranks" ? this.ranks : this.drawnRanks);
      const problem = document.getElementById(input.getAttribute("aria-describedby"));
      input.addEventListener("change", () => {
        const ranks = parseRanks(input.value, known);
        problem.textContent = ranks?.length ? "" : `No such rank. This page has ranks ${formatRanks(known)}. Write ranks as 0-3, 8.${more}`;
        input.setAttribute("aria-invalid", String(!ranks?.length));
        if (!ranks?.length) return;
        choose(ranks);
        this.remember(input);
      });
    }
  }

  /** A click on the map of all ranks also draws the clicked rank. */
  listenForClicks(map) {
    map.on("plotly_click", (event) => {
      const input = document.querySelector("[data-choose=chosen-ranks]");
      input.value = formatRanks([...new Set([...this.ranks, event.points[0].x])].sort((a, b) => a - b));
      input.dispatchEvent(new Event("change"));
    });
  }

  /** Writes the selection into the address. `control`: the control that was used. */
  remember(control) {
    const part = control.closest("section").id;
    writeAddress(part, this.step, formatRanks(part === "timeline" ? this.drawnRanks : this.ranks));
  }

  /** Shows the step and the ranks in the address, or a message if the page does not have them. */
  followAddress() {
    const named = readAddress(), part = named && document.getElementById(named.part);
    const select = part?.querySelector("[data-choose=step]"), input = part?.querySelector("input[data-choose]");
    if (!select) return;
    if (named.step in this.steps.steps) this.chooseStep(Number(named.step));
    if (named.ranks) {
      input.value = named.ranks.replaceAll(",", ", ");
      input.dispatchEvent(new Event("change"));
    }
    if (named.step && !(named.step in this.steps.steps)) {
      document.getElementById(input.getAttribute("aria-describedby")).textContent = `This page has no step ${named.step}.`;
    }
    part.scrollIntoView({ behavior: "instant" });
  }

  chooseStep(step) {
    this.step = step;
    for (const select of document.querySelectorAll("[data-choose=step]")) select.value = step;
    this.showBars();
    this.showTimeline();
  }

  rows() {
    const all = this.steps.steps[this.step];
    return this.ranks.map((rank) => [rank, all[this.steps.ranks.indexOf(rank)]]).filter(([, row]) => row);
  }

  /** Draws the bars of the chosen step and ranks, and the table below them. */
  showBars() {
    const rows = this.rows(), labels = rows.map(([rank]) => `rank ${rank}`);
    const data = this.template.data.map((trace, part) => ({
      ...trace, y: labels, x: rows.map(([, row]) => row[part] / 1e6), customdata: rows.map(([, row]) => row[part]),
      text: rows.map(([rank, row]) => `rank ${rank}: ${trace.name} ${ms(row[part])} ms`),
    }));
    const plot = document.querySelector("[data-kind=steps]");
    draw(plot, { data, layout: { ...this.template.layout, height: 66 + 30 * labels.length } });
    const heading = document.getElementById(`${plot.id}-title`);
    heading.textContent = `One step by kind of work, ms: step ${this.step}${this.step === this.steps.typical ? ", of median length" : ""}`;
    this.showTable(plot, rows);
  }

  showTable(plot, rows) {
    const body = plot.closest("section").querySelector("table tbody");
    const parts = this.steps.parts.length;
    body.replaceChildren(...rows.map(([rank, row]) => {
      const line = document.createElement("tr");
      const own = row.slice(0, parts);
      [rank, ...own.map(ms), ms(own.reduce((sum, ns) => sum + ns, 0))].forEach((value, n) => {
        const cell = document.createElement(n ? "td" : "th");
        cell.className = "number";
        if (!n) cell.scope = "row";
        cell.textContent = value;
        line.append(cell);
      });
      return line;
    }));
  }

  /** Draws the timeline of the chosen step, and its numbers. */
  showTimeline() {
    if (!this.timeline) return;
    this.timeline.show(this.step, this.drawnRanks);
    const body = document.getElementById("timeline-numbers").tBodies[0];
    const all = this.steps.steps[this.step], parts = this.steps.parts.length;
    body.replaceChildren(...this.drawnRanks.filter((rank) => all[this.steps.ranks.indexOf(rank)]).map((rank) => {
      const row = all[this.steps.ranks.indexOf(rank)].slice(parts);
      const line = document.createElement("tr");
      [rank, ...row].forEach((value, n) => {
        const cell = document.createElement(n ? "td" : "th");
        cell.className = "number";
        if (!n) cell.scope = "row";
        cell.textContent = n === 0 ? value : value === null ? "-" : ms(value);
        if (n && value !== null) cell.dataset.ns = value;
        line.append(cell);
      });
      return line;
    }));
  }
}

/** Draws the visible charts first, and then all other charts while the reader reads. */
async function start() {
  setUpCopies();
  setUpDefinitions();
  if (!CAN_UNPACK) {
    document.getElementById("old-browser").hidden = false;
    for (const part of document.querySelectorAll(".needs-script:not(.copy)")) part.hidden = true;
    return;
  }
  await loadScript("plotly-source");
  const [steps, data] = [await readData("steps-data"), await readData("timeline-data")];
  const timeline = data && new Timeline(document.getElementById("timeline-plot"), data);
  const redrawTimeline = () => timeline?.redraw();
  setUpTheme(() => { redrawAll(); redrawTimeline(); });
  setUpPrinting(redrawTimeline);
  NARROW.addEventListener("change", () => { redrawAll(); redrawTimeline(); });
  const plots = [...document.querySelectorAll(".plot[data-figure]")];
  const bars = document.querySelector("[data-kind=steps]"), map = document.querySelector("[data-kind=ranks]");
  for (const plot of [map, bars]) if (plot) await drawFigure(plot);
  if (steps && bars) {
    const choice = new Choice(steps, timeline, drawn.get(bars));
    choice.setUp();
    if (map) choice.listenForClicks(map);
    if (steps.shown.length < steps.ranks.length) choice.showBars();
    choice.showTimeline();
    choice.followAddress();
    addEventListener("hashchange", () => choice.followAddress());
  }
  document.documentElement.dataset.usableAfterMs = Math.round(performance.now());
  for (const plot of plots.filter((one) => !drawn.has(one))) {
    await new Promise((resolve) => setTimeout(resolve));
    await drawFigure(plot);
  }
  document.documentElement.dataset.complete = "";
}

start();

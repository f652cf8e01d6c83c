"use strict";
/* Controls of every page: theme, copying, definitions. */

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~";
const CAN_UNPACK = typeof DecompressionStream !== "undefined";

/** Decodes base 85: five digits are four bytes; at the end, n + 1 digits are n bytes. */
function bytes(text) {
  const value = new Uint8Array(128);
  for (let digit = 0; digit < DIGITS.length; digit++) value[DIGITS.charCodeAt(digit)] = digit;
  const found = new Uint8Array(Math.floor((text.length * 4) / 5)), last = DIGITS.length - 1;
  for (let at = 0, to = 0; at < text.length; at += 5) {
    let word = 0;
    for (let place = at; place < at + 5; place++) word = word * 85 + (place < text.length ? value[text.charCodeAt(place)] : last);
    for (let shift = 24; shift >= 0 && to < found.length; shift -= 8) found[to++] = word >>> shift;
  }
  return found;
}

function unpack(element) {
  const packed = new Blob([bytes(element.textContent)]);
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip")));
}

/** Returns the JSON that the page contains under this name, or null. Large JSON is gzipped. */
async function readData(name) {
  const element = document.getElementById(name);
  if (element === null) return null;
  return element.dataset.encoding === "gzip" ? unpack(element).json() : JSON.parse(element.textContent);
}

/** Runs a script that the page contains in gzipped form. The page's policy permits its text. */
async function loadScript(name) {
  const script = document.createElement("script");
  script.textContent = await unpack(document.getElementById(name)).text();
  document.head.append(script);
}

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

/** Returns "dark" or "light": the reader's choice or, without one, the system's preference. */
function currentTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function setUpTheme(redraw) {
  const button = document.getElementById("theme");
  const show = () => {
    const other = currentTheme() === "dark" ? "Light" : "Dark";
    button.textContent = other;
    button.setAttribute("aria-label", `${other} colours`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = currentTheme() === "dark" ? "light" : "dark";
    show();
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    show();
    redraw();
  });
  show();
}

/** Copies text. Without a clipboard API, as on pages from disk, the text is copied through a selection. */
async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The API failed. Copying through a selection may still work.
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

function setUpCopies() {
  for (const button of document.querySelectorAll("button[data-copies]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copies);
      const copied = await copyText(source.textContent);
      if (!copied) getSelection().selectAllChildren(source);
      button.textContent = copied ? "Copied" : "Press Ctrl+C";
      button.focus();
      announce(copied ? "Copied to the clipboard" : "Selected: press Ctrl+C to copy");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

/** Shows definitions beside their terms. Without popovers, the link of a term leads to its definition. */
function setUpDefinitions() {
  const popover = document.getElementById("definition");
  if (!popover.showPopover) return;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.term");
    const term = link && document.getElementById(link.hash.slice(1));
    if (!term) return;
    event.preventDefault();
    const heading = document.createElement("h3");
    heading.textContent = term.textContent;
    popover.replaceChildren(heading, ...[...term.nextElementSibling.childNodes].map((node) => node.cloneNode(true)));
    popover.setAttribute("aria-label", `Definition of ${term.textContent}`);
    popover.showPopover();
    popover.tabIndex = -1;
    popover.focus();
    popover.addEventListener("toggle", () => link.focus(), { once: true });
  });
}

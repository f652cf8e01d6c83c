"use strict";
/* Controls of every page: theme, copying, definitions. */

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/** Returns the JSON that the page carries under a name, or null. Large JSON is gzipped. */
async function readData(name) {
  const element = document.getElementById(name);
  if (element === null) return null;
  if (element.dataset.encoding !== "gzip") return JSON.parse(element.textContent);
  const packed = bytes(element.textContent);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).json();
}

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

/** Returns "dark" or "light": the reader's choice, else the system's preference. */
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

/** Copies text; by way of a selection where pages from disk have no clipboard API. */
async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The API refused; the other way may still work.
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

/** Shows definitions beside their terms; without popovers a term's link leads to the definitions. */
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

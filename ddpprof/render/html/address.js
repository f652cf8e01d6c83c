"use strict";
/* The address of the page: which step and which ranks its reader looks at, so that it can be shared. */

/** Returns the part of the page, and the step and the ranks in it, that the address names, or null. */
function readAddress() {
  const [, part, words] = /^#(step|timeline)\?(.+)$/.exec(location.hash) ?? [];
  if (!part) return null;
  const found = new URLSearchParams(words);
  return { part, step: found.get("step"), ranks: found.get("ranks") };
}

function writeAddress(part, step, ranks) {
  history.replaceState(null, "", `#${part}?step=${step}&ranks=${ranks.replaceAll(" ", "")}`);
}

"use strict";
/* The address of the page contains the selected step and ranks, so that the view can be shared. */

/** Returns the part of the page, the step and the ranks in the address; null if the address has none. */
function readAddress() {
  const [, part, words] = /^#(step|timeline)\?(.+)$/.exec(location.hash) ?? [];
  if (!part) return null;
  const found = new URLSearchParams(words);
  return { part, step: found.get("step"), ranks: found.get("ranks") };
}

function writeAddress(part, step, ranks) {
  history.replaceState(null, "", `#${part}?step=${step}&ranks=${ranks.replaceAll(" ", "")}`);
}

// Pages that are opened as files may not start workers, and the search is one. There, a hidden frame runs its script.
"use strict";

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.element = document.createElement("iframe");
    this.element.hidden = true;
    document.body.append(this.element);
    this.frame = this.element.contentWindow;
    this.frame.document.open(); // a frame that is written to is not replaced by an empty one that loads later
    this.frame.document.close();
    this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.frame.importScripts = (...urls) =>
      urls.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve());
    this.loaded = this.load(url);
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.frame.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      this.frame.document.body.append(script);
    });
  }

  postMessage(data) {
    this.loaded.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.element.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = IFrameWorker; // the search looks for the first name
}

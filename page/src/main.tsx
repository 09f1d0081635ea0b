/** Entry point of the page. */

import "uplot/dist/uPlot.min.css";
import "./style/ground.css";
import "./style/charts.css";
import "./style/tables.css";
import { render } from "preact";
import { App } from "./components/App.tsx";
import { LiveSource, thisBrowser, type LiveStatus } from "./data/live.ts";
import { EmbeddedSource, type ProfileSource } from "./data/source.ts";
import { Model } from "./state/model.ts";
import { cut } from "./text.ts";

function element(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (found === null) {
    throw new Error(`the page has no #${id}`);
  }
  return found;
}

/** Waits until the browser has painted. */
function painted(): Promise<void> {
  return new Promise((resolve) => { requestAnimationFrame(() => { setTimeout(resolve); }); });
}

/** Shows each document of a source. */
async function show(source: ProfileSource, live: LiveSource | null, began: number): Promise<void> {
  let updates = 0;
  for await (const json of source.documents()) {
    const model = new Model(json);
    document.title = `${cut(model.profile.header.subject, 60)} – heapbpf`;
    render(<App model={model} live={live} />, element("page"));
    element("opening").hidden = true;
    await painted();
    const { dataset } = document.documentElement;
    dataset.drawnMillis ??= String(Math.round(performance.now() - began));
    updates += 1;
    dataset.updates = String(updates);
  }
}

const WAITING: Readonly<Partial<Record<LiveStatus["connection"], string>>> = {
  connecting: "Connecting to heapbpf…",
  live: "Waiting for the first profile…",
  idle: "heapbpf records nothing at present. The page shows the next recording.",
  reconnecting: "heapbpf does not answer. The page connects again as soon as it does.",
  refused: "Access denied: open the address with the token that heapbpf was started with.",
  ended: "The recording has ended without a profile.",
};

/** The page of a server, or of a file. */
function sources(data: HTMLElement): [ProfileSource, LiveSource | null] {
  if (data.dataset.live === undefined) {
    return [new EmbeddedSource(data.textContent), null];
  }
  const live = new LiveSource(thisBrowser());
  const opening = element("opening");
  // Hidden as soon as there is a document.
  live.subscribe(({ connection }) => { opening.textContent = WAITING[connection] ?? ""; });
  return [live, live];
}

async function main(): Promise<void> {
  const began = performance.now();
  try {
    const [source, live] = sources(element("profile"));
    await show(source, live, began);
  } catch (error) {
    const opening = element("opening");
    opening.hidden = false;
    opening.textContent = `This profile could not be shown. ${error instanceof Error ? error.message : String(error)}`;
    opening.setAttribute("role", "alert");
    throw error;
  }
}

void main();

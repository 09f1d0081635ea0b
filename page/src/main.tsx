/** Entry point of the page. */

import "uplot/dist/uPlot.min.css";
import "./style/ground.css";
import "./style/charts.css";
import "./style/tables.css";
import { render } from "preact";
import { App } from "./components/App.tsx";
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

/** Shows each document of a source. */
async function show(source: ProfileSource, began: number): Promise<void> {
  for await (const json of source.documents()) {
    const model = new Model(json);
    document.title = `${cut(model.profile.header.subject, 60)} – heapbpf`;
    render(<App model={model} />, element("page"));
    element("opening").hidden = true;
    // The layout is painted with the next frame.
    requestAnimationFrame(() => setTimeout(() => {
      document.documentElement.dataset.drawnMillis = String(Math.round(performance.now() - began));
    }));
  }
}

async function main(): Promise<void> {
  const began = performance.now();
  try {
    await show(new EmbeddedSource(element("profile").textContent), began);
  } catch (error) {
    const opening = element("opening");
    opening.hidden = false;
    opening.textContent = `This profile could not be shown. ${error instanceof Error ? error.message : String(error)}`;
    opening.setAttribute("role", "alert");
    throw error;
  }
}

void main();

/** Paints a layout of the flame graph on a canvas. */

import type { Box } from "../analysis/boxes.ts";
import type { Tree } from "../analysis/tree.ts";
import type { ColourScheme } from "../state/state.ts";
import { cut } from "../text.ts";
import type { Colours } from "./colours.ts";
import type { Layout } from "./layout.ts";

export const ROW = 19;
const GAP = 1;
const FONT = "11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

export interface Scene {
  readonly tree: Tree;
  readonly layout: Layout;
  readonly colours: Colours;
  readonly scheme: ColourScheme;
  /** 1 for each node that matches the search; null without a search. */
  readonly found: Uint8Array | null;
  readonly chosen: number;
  readonly hovered: number;
}

/** Part of the graph, in pixels from its top. */
export interface Window {
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

function prepare(canvas: HTMLCanvasElement, { width, height }: Window, ratio: number): CanvasRenderingContext2D | null {
  const context = canvas.getContext("2d");
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  context?.setTransform(ratio, 0, 0, ratio, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}

export function paint(canvas: HTMLCanvasElement, scene: Scene, window: Window, ratio: number): void {
  const context = prepare(canvas, window, ratio);
  if (context === null) {
    return;
  }
  context.font = FONT;
  context.textBaseline = "middle";
  const letter = context.measureText("mmmmmmmmmm").width / 10;
  const { rows } = scene.layout;
  const last = Math.min(rows.length - 1, Math.floor((window.top + window.height) / ROW));
  for (let row = Math.floor(window.top / ROW); row <= last; row += 1) {
    for (const box of rows[row] ?? []) {
      paintBox(context, scene, box, row * ROW - window.top, letter);
    }
  }
}

function paintBox(context: CanvasRenderingContext2D, scene: Scene, { node, x, width, isAbove }: Box, y: number, letter: number): void {
  const { tree, found, colours, chosen, hovered } = scene;
  const isMatch = found !== null && found[node] === 1;
  const isDim = isAbove || (found !== null && !isMatch);
  context.globalAlpha = isDim ? 0.5 : 1;
  context.fillStyle = isMatch ? colours.match : colours.ofNode(tree, node, scene.scheme);
  const wide = Math.max(width - (width > 3 ? GAP : 0.2), 0.5);
  context.fillRect(x, y, wide, ROW - GAP);
  context.globalAlpha = 1;
  const letters = Math.floor((width - 7) / letter);
  if (letters >= 2) {
    context.fillStyle = colours.text;
    context.globalAlpha = isDim ? 0.75 : 1;
    context.fillText(cut(tree.shortName(node), letters), x + 4, y + ROW / 2);
    context.globalAlpha = 1;
  }
  if (node === chosen || node === hovered) {
    context.strokeStyle = colours.outline;
    context.lineWidth = node === chosen ? 2 : 1;
    context.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), ROW - GAP - 2);
  }
}

/** Pictures of a flame graph's present view: SVG as text, and a canvas, which browsers save as PNG. */

import { boxes } from "../boxes.ts";
import type { Tree } from "../tree.ts";
import { cut, printable } from "../../text.ts";

export interface Picture {
  readonly tree: Tree;
  /** The node that has the whole width; those above it are drawn as wide. */
  readonly zoomed: number;
  readonly width: number;
  readonly title: string;
  readonly subtitle: string;
  readonly colourOf: (node: number) => string;
  /** Behind a frame's name, when hovered: `1.2 MiB, 12.3%`. */
  readonly amountOf: (node: number) => string;
  readonly ground: string;
  readonly text: string;
}

const ROW_HEIGHT = 18;
const FONT_SIZE = 12;
const CHAR_WIDTH = 7.2;
const MARGIN = 10;
const HEAD_HEIGHT = 52;
/** Frames narrower than this are not drawn. */
const WIDTH_MIN = 0.3;
const FONT = `${FONT_SIZE}px ui-monospace, monospace`;

function fitted(name: string, width: number): string {
  const chars = Math.floor((width - 6) / CHAR_WIDTH);
  return chars < 3 ? "" : cut(name, chars);
}

function escaped(text: string): string {
  const names: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return printable(text).replace(/[&<>"']/g, (character) => names[character] ?? "");
}

/** The picture as the text of an SVG file, root at the top, frames with tooltips. */
export function svg(picture: Picture): string {
  const { tree, width, text } = picture;
  const drawn = boxes(tree, picture.zoomed, width - 2 * MARGIN, WIDTH_MIN);
  const height = HEAD_HEIGHT + drawn.rows * ROW_HEIGHT + MARGIN;
  const frames = drawn.boxes.map(({ node, x, row, width: wide }) => {
    const [left, top] = [(MARGIN + x).toFixed(2), HEAD_HEIGHT + row * ROW_HEIGHT];
    const shown = fitted(tree.shortName(node), wide);
    const label = shown === "" ? "" : `<text x="${(MARGIN + x + 3).toFixed(2)}" y="${top + 13}">${escaped(shown)}</text>`;
    const title = `${tree.name(node)} (${picture.amountOf(node)})`;
    return `<g><title>${escaped(title)}</title><rect x="${left}" y="${top}" width="${Math.max(wide - 0.5, WIDTH_MIN).toFixed(2)}" height="${ROW_HEIGHT - 1}" fill="${escaped(picture.colourOf(node))}"/>${label}</g>\n`;
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="ui-monospace, monospace" font-size="${FONT_SIZE}" fill="${escaped(text)}">\n` +
    `<rect width="100%" height="100%" fill="${escaped(picture.ground)}"/>\n` +
    `<text x="${MARGIN}" y="22" font-size="16">${escaped(picture.title)}</text><text x="${MARGIN}" y="41">${escaped(picture.subtitle)}</text>\n` +
    `${frames.join("")}</svg>\n`
  );
}

/** What drawing needs of a canvas's context. */
export type Context = Pick<CanvasRenderingContext2D, "fillStyle" | "font" | "fillRect" | "fillText" | "setTransform">;

/** Size in pixels of a canvas for the picture. */
export function size({ tree, zoomed, width }: Picture): { readonly width: number; readonly height: number } {
  return { width, height: HEAD_HEIGHT + boxes(tree, zoomed, width - 2 * MARGIN, WIDTH_MIN).rows * ROW_HEIGHT + MARGIN };
}

/** Draws the picture on a canvas whose size is that of the picture times the scale. */
export function paint(context: Context, picture: Picture, scale: number): void {
  const { tree, width } = picture;
  const { height } = size(picture);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = picture.ground;
  context.fillRect(0, 0, width, height);
  context.fillStyle = picture.text;
  context.font = FONT.replace(`${FONT_SIZE}px`, "16px");
  context.fillText(printable(picture.title), MARGIN, 22);
  context.font = FONT;
  context.fillText(printable(picture.subtitle), MARGIN, 41);
  for (const { node, x, row, width: wide } of boxes(tree, picture.zoomed, width - 2 * MARGIN, WIDTH_MIN).boxes) {
    const top = HEAD_HEIGHT + row * ROW_HEIGHT;
    context.fillStyle = picture.colourOf(node);
    context.fillRect(MARGIN + x, top, Math.max(wide - 0.5, WIDTH_MIN), ROW_HEIGHT - 1);
    context.fillStyle = picture.text;
    context.fillText(fitted(tree.shortName(node), wide), MARGIN + x + 3, top + 13);
  }
}

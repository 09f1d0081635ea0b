/** Rectangles of a flame graph: on the page, and in exported pictures. */

import { at } from "../data/columns.ts";
import type { Tree } from "./tree.ts";

/** A frame's rectangle, in pixels. */
export interface Box {
  readonly node: number;
  readonly x: number;
  readonly row: number;
  readonly width: number;
  /** Whether it is a caller of the zoomed node. */
  readonly isAbove: boolean;
}

/** Rectangles of the frames that are wide enough, parents first, and the number of rows. The zoomed node and its callers have the
 * whole width. */
export function boxes(tree: Tree, zoomed: number, width: number, widthMin: number): { readonly boxes: Box[]; readonly rows: number } {
  const above: number[] = [];
  for (let node = zoomed; node > 0; node = tree.parent(node)) {
    above.unshift(tree.parent(node));
  }
  const found = above.map((node, row): Box => ({ node, x: 0, row, width, isAbove: true }));
  const pending: Box[] = at(tree.width, zoomed) > 0 ? [{ node: zoomed, x: 0, row: above.length, width, isAbove: false }] : [];
  let rows = above.length;
  for (let box = pending.pop(); box !== undefined; box = pending.pop()) {
    found.push(box);
    rows = Math.max(rows, box.row + 1);
    const scale = box.width / at(tree.width, box.node);
    let { x } = box;
    for (const node of tree.children(box.node)) {
      const wide = at(tree.width, node) * scale;
      // The widest is the first.
      if (wide < widthMin) {
        break;
      }
      pending.push({ node, x, row: box.row + 1, width: wide, isAbove: false });
      x += wide;
    }
  }
  return { boxes: found, rows };
}

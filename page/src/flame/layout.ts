/** Boxes of the flame graph: which nodes are shown, and where. */

import { at } from "../data/columns.ts";
import { boxes, type Box } from "../analysis/boxes.ts";
import type { Tree } from "../analysis/tree.ts";

/** Narrower boxes are left out. */
const WIDTH_MIN = 0.8;

export interface Layout {
  readonly width: number;
  readonly boxes: ReadonlyMap<number, Box>;
  readonly rows: readonly (readonly Box[])[];
}

/** The zoomed node at full width, with its callers above and its children below. */
export function layOut(tree: Tree, zoomed: number, width: number): Layout {
  const found = boxes(tree, zoomed, width, WIDTH_MIN);
  const rows = Array.from({ length: found.rows }, (): Box[] => []);
  for (const box of found.boxes) {
    rows[box.row]?.push(box);
  }
  return { width, boxes: new Map(found.boxes.map((box) => [box.node, box])), rows };
}

/** Siblings of a node that are shown, from left to right. */
export function beside(tree: Tree, layout: Layout, node: number): number[] {
  return node === 0 ? [0] : tree.children(tree.parent(node)).filter((other) => layout.boxes.has(other));
}

/** The node at the end of a path of keys, as far as the tree has it. */
export function nodeOfPath(tree: Tree, path: readonly number[]): number {
  let node = 0;
  for (const key of path) {
    const child = Array.from(tree.shape.children(node)).find((one) => tree.key(one) === key && at(tree.width, one) > 0);
    if (child === undefined) {
      return 0;
    }
    node = child;
  }
  return node;
}

export function pathOf(tree: Tree, node: number): number[] {
  const path: number[] = [];
  for (let one = node; one !== 0; one = tree.parent(one)) {
    path.unshift(tree.key(one));
  }
  return path;
}

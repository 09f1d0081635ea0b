/** Boxes of the flame graph: which nodes are shown, and where. */

import { at } from "../data/columns.ts";
import type { Tree } from "../analysis/tree.ts";

/** Narrower boxes are left out. */
const WIDTH_MIN = 0.8;

export interface Box {
  readonly node: number;
  readonly x: number;
  readonly width: number;
  readonly row: number;
  /** Whether it is a caller of the zoomed node. */
  readonly isAbove: boolean;
}

export interface Layout {
  readonly width: number;
  readonly boxes: ReadonlyMap<number, Box>;
  readonly rows: readonly (readonly Box[])[];
}

/** The zoomed node at full width, with its callers above and its children below. */
export function layOut(tree: Tree, zoomed: number, width: number): Layout {
  const boxes: Box[] = [];
  const above: number[] = [];
  for (let node = zoomed; node !== 0; node = tree.parent(node)) {
    above.unshift(tree.parent(node));
  }
  above.forEach((node, row) => {
    boxes.push({ node, x: 0, width, row, isAbove: true });
  });
  const open: Box[] = at(tree.width, zoomed) > 0 ? [{ node: zoomed, x: 0, width, row: above.length, isAbove: false }] : [];
  for (let box = open.pop(); box !== undefined; box = open.pop()) {
    boxes.push(box);
    const scale = box.width / at(tree.width, box.node);
    let { x } = box;
    for (const node of tree.children(box.node)) {
      const wide = at(tree.width, node) * scale;
      if (wide < WIDTH_MIN) {
        break;
      }
      open.push({ node, x, width: wide, row: box.row + 1, isAbove: false });
      x += wide;
    }
  }
  const rows: Box[][] = [];
  for (const box of boxes) {
    (rows[box.row] ??= []).push(box);
  }
  return { width, boxes: new Map(boxes.map((box) => [box.node, box])), rows };
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

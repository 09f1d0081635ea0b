/** Rows of expandable tree tables, and the two trees of a function. */

import type { Shown } from "../data/amounts.ts";
import type { Profile } from "../data/profile.ts";
import { at } from "../data/columns.ts";
import type { Hidden } from "./functions.ts";
import { Tree, TreeShape } from "./tree.ts";

/** A visible row; `position` and `siblings` count from 1, as `aria-posinset` and `aria-setsize` do. */
export interface TreeRow {
  readonly node: number;
  /** From 0. */
  readonly depth: number;
  readonly position: number;
  readonly siblings: number;
  readonly isOpen: boolean;
  readonly hasChildren: boolean;
}

/** The visible rows below a node, the largest first. Children of closed rows are not visited. */
export function treeRows(tree: Tree, root: number, isOpen: (node: number) => boolean): TreeRow[] {
  const rows: TreeRow[] = [];
  const pending: TreeRow[] = [];
  const expand = (node: number, depth: number): void => {
    const children = tree.children(node);
    for (let place = children.length - 1; place >= 0; place -= 1) {
      const child = at(children, place);
      const hasChildren = hasVisibleChild(tree, child);
      pending.push({ node: child, depth, position: place + 1, siblings: children.length, isOpen: hasChildren && isOpen(child), hasChildren });
    }
  };
  expand(root, 0);
  for (let row = pending.pop(); row !== undefined; row = pending.pop()) {
    rows.push(row);
    if (row.isOpen) {
      expand(row.node, row.depth + 1);
    }
  }
  return rows;
}

function hasVisibleChild(tree: Tree, node: number): boolean {
  return tree.shape.children(node).some((child) => at(tree.width, child) > 0);
}

/** The node's amount without its children's: of a top-down tree, what the function allocates itself. */
export function selfAmount(tree: Tree, node: number, amounts: Float64Array = tree.after): number {
  return tree.shape.children(node).reduce((rest, child) => rest - at(amounts, child), at(amounts, node));
}

/** The path that a click on "expand" opens: from a node down, while there is only one child or the first has nearly all. */
export function hotPath(tree: Tree, node: number, share = 0.9): number[] {
  const path = [node];
  for (let last = node; ; ) {
    const [first] = tree.children(last);
    if (first === undefined || at(tree.width, first) < share * at(tree.width, last)) {
      return path;
    }
    path.push(first);
    last = first;
  }
}

/** Callers and callees of a function: two trees whose node 0 has it as its only child. */
export interface Sandwich {
  readonly callers: Tree;
  readonly callees: Tree;
}

export function sandwich(profile: Profile, shown: Shown, key: number, hidden: Hidden): Sandwich {
  const tree = (isReversed: boolean): Tree => new Tree(new TreeShape(profile, { groups: [], isReversed, root: key, hidden }), shown);
  return { callers: tree(true), callees: tree(false) };
}

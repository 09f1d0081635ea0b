/** Folded stacks, as `flamegraph.pl` and its like read them. */

import { at } from "../../data/columns.ts";
import type { Tree } from "../tree.ts";
import { printable } from "../../text.ts";

/** Lines `outermost;…;leaf amount` of a tree, sorted; amounts are rounded, and stacks of 0 left out. */
export function folded(tree: Tree): string {
  const lines: string[] = [];
  const labels = new Map<number, string>();
  const labelOf = (node: number): string => {
    const key = tree.key(node);
    const known = labels.get(key) ?? label(tree.name(node));
    labels.set(key, known);
    return known;
  };
  const { size } = tree.shape;
  // What each node has besides its children.
  const rest = tree.after.slice();
  for (let node = 1; node < size; node += 1) {
    const parent = tree.parent(node);
    rest[parent] = at(rest, parent) - at(tree.after, node);
  }
  for (let node = 1; node < size; node += 1) {
    const amount = Math.round(at(rest, node));
    if (amount > 0) {
      const frames: string[] = [];
      for (let above = node; above > 0; above = tree.parent(above)) {
        frames.push(labelOf(above));
      }
      lines.push(`${frames.reverse().join(";")} ${amount}\n`);
    }
  }
  return lines.sort().join("");
}

/** A name that is safe in a line: `;` separates frames, a trailing number would be the amount, `#` starts a comment. */
export function label(name: string): string {
  const safe = printable(name).replaceAll(";", ":").replace(/ ([\d.]+)$/, "_$1").replace(/^#/, "_");
  return safe === "" ? "[no name]" : safe;
}

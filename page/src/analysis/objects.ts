/** Objects by type, of one process or of all. */

import type { ObjectTypes, Target } from "../data/document.ts";
import { countText, plural, sizeText } from "../text.ts";

/** Columns by type. */
export interface TypeTable {
  readonly names: readonly string[];
  readonly objects: readonly number[];
  readonly bytes: readonly number[];
  readonly grownObjects: readonly number[];
  readonly grownBytes: readonly number[];
  readonly hasGrowth: boolean;
  /** What the counts are of, a sentence for each. */
  readonly notes: readonly string[];
}

export function hasObjects(targets: readonly Target[]): boolean {
  return targets.some(({ objects }) => objects.length > 0);
}

/** Types of the same name are one row. */
export function typeTable(targets: readonly Target[], selected: number): TypeTable {
  const counts = targets.filter((_, index) => selected < 0 || index === selected).flatMap(({ objects }) => objects);
  const rows = new Map<string, [number, number, number, number]>();
  for (const [name, ...numbers] of counts.flatMap(({ types }) => types)) {
    const row = rows.get(name) ?? [0, 0, 0, 0];
    rows.set(name, [row[0] + numbers[0], row[1] + numbers[1], row[2] + numbers[2], row[3] + numbers[3]]);
  }
  const all = [...rows.values()];
  return {
    names: [...rows.keys()],
    objects: all.map(([objects]) => objects),
    bytes: all.map(([, bytes]) => bytes),
    grownObjects: all.map(([, , objects]) => objects),
    grownBytes: all.map(([, , , bytes]) => bytes),
    hasGrowth: counts.some(({ since }) => since !== null),
    notes: counts.map(note),
  };
}

function note({ language, blocks, other, unread, reserved_bytes: reserved, more_types: more, one_of: oneOf }: ObjectTypes): string {
  const parts = [`${language}: ${sizeText(blocks[1])} in ${plural(blocks[0], "block")} of small objects and their tables (512 bytes at most each), ${sizeText(reserved)} reserved`];
  if (other[1] > 0) {
    parts.push(`${sizeText(other[1])} no known objects`);
  }
  if (unread[1] > 0) {
    parts.push(`${sizeText(unread[1])} not read`);
  }
  if (more > 0) {
    parts.push(`${plural(more, "smaller type")} not listed`);
  }
  if (oneOf > 1) {
    parts.push(`one of ${countText(oneOf)} blocks was read: estimates`);
  }
  return parts.join("; ");
}

/** Sums of callsites by function and by module. */

import { at } from "../data/columns.ts";
import type { Profile } from "../data/profile.ts";
import { baseName } from "../text.ts";

/** Sums by function, or by module. */
export interface Sums {
  /** Of the stacks whose allocating frame it is. */
  readonly self: Float64Array;
  /** Of the stacks that contain it, however often. */
  readonly inclusive: Float64Array;
}

/** Frames that are left out: see `Filtered.hidden`. */
export type Hidden = Uint8Array | null;

/** Sums by function. Recursion counts once. */
export function functionSums(profile: Profile, amounts: Float64Array, hidden: Hidden): Sums {
  const own = Int32Array.from({ length: profile.functionCount }, (_, key) => key);
  return sumsBy(profile, amounts, own, profile.functionCount, hidden);
}

/** Modules by the base name of their path. */
export interface Modules {
  readonly names: readonly string[];
  /** Index in `names` of each function; -1 for none. */
  readonly ofFunction: Int32Array;
}

export function modules(profile: Profile): Modules {
  const numbers = new Map<string, number>();
  const ofFunction = new Int32Array(profile.functionCount).fill(-1);
  for (let key = 0; key < ofFunction.length; key += 1) {
    const name = baseName(profile.functionModule(key));
    if (name !== "") {
      const number = numbers.get(name) ?? numbers.size;
      numbers.set(name, number);
      ofFunction[key] = number;
    }
  }
  return { names: [...numbers.keys()], ofFunction };
}

/** Sums by module, in the order of `names`. */
export function moduleSums(profile: Profile, amounts: Float64Array, { names, ofFunction }: Modules, hidden: Hidden): Sums {
  return sumsBy(profile, amounts, ofFunction, names.length, hidden);
}

function sumsBy(profile: Profile, amounts: Float64Array, keyOf: Int32Array, size: number, hidden: Hidden): Sums {
  const { nodeParent, nodeFunction, nodeFrame } = profile;
  const self = new Float64Array(size);
  const inclusive = new Float64Array(size);
  // The last callsite that was added to each key.
  const seen = new Int32Array(size).fill(-1);
  for (let callsite = 0; callsite < amounts.length; callsite += 1) {
    const amount = at(amounts, callsite);
    if (amount === 0) {
      continue;
    }
    let isLeaf = true;
    for (let node = at(profile.callsites.node, callsite); node > 0; node = at(nodeParent, node)) {
      if (hidden !== null && hidden[at(nodeFrame, node)] === 1) {
        continue;
      }
      const key = keyOf[at(nodeFunction, node)] ?? -1;
      if (key >= 0) {
        if (isLeaf) {
          self[key] = at(self, key) + amount;
        }
        if (seen[key] !== callsite) {
          seen[key] = callsite;
          inclusive[key] = at(inclusive, key) + amount;
        }
      }
      isLeaf = false;
    }
  }
  return { self, inclusive };
}

/** Columns of numbers. */

import type { Column } from "./document.ts";

/** A number of a column; 0 past the end, as in columns that are empty because all their numbers are 0. */
export function at(column: ArrayLike<number>, index: number): number {
  return column[index] ?? 0;
}

/** A column with all numbers; an empty one stands for zeros. */
export function filled(numbers: Column | undefined, count: number): Float64Array {
  const all = new Float64Array(count);
  if (numbers !== undefined) {
    all.set(numbers.length > count ? numbers.slice(0, count) : numbers);
  }
  return all;
}

/** Start offsets of each item's parts in the concatenated list of parts. */
export function starts(counts: ArrayLike<number>): Uint32Array {
  const from = new Uint32Array(counts.length + 1);
  for (let index = 0; index < counts.length; index += 1) {
    from[index + 1] = at(from, index) + at(counts, index);
  }
  return from;
}

export function sum(numbers: ArrayLike<number>): number {
  let total = 0;
  for (let index = 0; index < numbers.length; index += 1) {
    total += at(numbers, index);
  }
  return total;
}

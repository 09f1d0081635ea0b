/** Growing callsites of a window. Those of the whole recording are in the document, with their confidence. */

import { at } from "../data/columns.ts";
import type { Period, Points } from "../data/points.ts";

export interface Growth {
  readonly callsite: number;
  readonly bytesPerSecond: number;
  /** Share of the steps between points in which live bytes did not shrink. */
  readonly steadiness: number;
}

/** Callsites that shrink in more steps are no candidates. */
const STEADINESS_MIN = 0.75;
const GROWTHS_MAX = 50;

/** Callsites whose live bytes grew from a window's start to its end, and shrank in few steps; the fastest first. */
export function growing(points: Points, { from, to }: Period, mask: Uint8Array): Growth[] {
  const live = Array.from({ length: to - from + 1 }, (_, step) => points.at(from + step).live_bytes);
  const [first, last] = [live[0], live.at(-1)];
  const seconds = (points.time(to) - points.time(from)) / 1000;
  if (first === undefined || last === undefined || !(seconds > 0)) {
    return [];
  }
  const found: Growth[] = [];
  mask.forEach((isSelected, callsite) => {
    const growth = at(last, callsite) - at(first, callsite);
    if (isSelected !== 1 || growth <= 0) {
      return;
    }
    const steps = live.slice(1).filter((amounts, step) => at(amounts, callsite) >= at(live[step] ?? [], callsite)).length;
    const steadiness = steps / (live.length - 1);
    if (steadiness >= STEADINESS_MIN) {
      found.push({ callsite, bytesPerSecond: growth / seconds, steadiness });
    }
  });
  return found.sort((one, other) => other.bytesPerSecond - one.bytesPerSecond || one.callsite - other.callsite).slice(0, GROWTHS_MAX);
}

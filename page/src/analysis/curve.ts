/** The heap over time. */

import { at, filled } from "../data/columns.ts";
import { field, type Target, type View } from "../data/document.ts";
import type { Points } from "../data/points.ts";
import type { Profile } from "../data/profile.ts";

export interface Curve {
  /** In seconds. */
  readonly times: readonly number[];
  readonly values: readonly number[];
  /** Whether only the points with callsite totals are known. */
  readonly isCoarse: boolean;
}

/** A view's amount over time. `mask` selects callsites; null where all callsites of the targets are selected. */
export function curveOf(profile: Profile, points: Points, view: View, target: number, mask: Uint8Array | null): Curve {
  const chosen = profile.targets.filter((one, index) => (target < 0 || target === index) && one.history.curve.time.length > 0);
  if (mask !== null || chosen.length === 0) {
    const sum = (point: number): number => points.at(point)[field(view)].reduce((all, amount, callsite) => all + (mask === null || mask[callsite] === 1 ? amount : 0), 0);
    return { isCoarse: true, times: points.list.map(({ time }) => time / 1000), values: points.list.map((_, point) => sum(point)) };
  }
  const { times, values } = added(chosen, view);
  const end = profile.header.span / 1000;
  const last = times.at(-1);
  if (points.isWhole && last !== undefined && end > last) {
    times.push(end);
    values.push(values.at(-1) ?? 0);
  }
  return { isCoarse: false, times, values };
}

/** The sum of several targets' curves. */
function added(targets: readonly Target[], view: View): { times: number[]; values: number[] } {
  const steps = targets.flatMap(({ history }): [number, number][] => {
    const { time } = history.curve;
    const amounts = filled(history.curve[field(view)], time.length);
    return time.map((one, index) => [one / 1000, at(amounts, index) - (index > 0 ? at(amounts, index - 1) : 0)]);
  });
  steps.sort((one, other) => one[0] - other[0]);
  const [times, values]: [number[], number[]] = [[], []];
  let held = 0;
  for (const [time, change] of steps) {
    held += change;
    if (times.at(-1) === time) {
      values[values.length - 1] = held;
    } else {
      times.push(time);
      values.push(held);
    }
  }
  return { times, values };
}

/** In seconds. */
export interface TimeRange {
  readonly from: number;
  readonly to: number;
}

/** The times that a curve, all points and all samples of memory lie in. */
export function timeRange({ targets }: Profile, points: Points, { times }: Curve): TimeRange {
  const samples = targets.flatMap(({ memory }) => memory.map(({ time }) => time / 1000));
  const all = [...times, ...samples, ...points.list.map(({ time }) => time / 1000)];
  const from = all.reduce((least, time) => Math.min(least, time), Infinity);
  const to = all.reduce((most, time) => Math.max(most, time), -Infinity);
  return from < to ? { from, to } : { from: 0, to: 1 };
}

export interface Peak {
  /** In seconds. */
  readonly time: number;
  readonly value: number;
}

/** The peak: from the target's totals where the selection has them, else from the curve. */
export function peakOf(profile: Profile, view: View, target: number, isPart: boolean, { times, values }: Curve): Peak | null {
  const [first, last] = [times[0], times.at(-1)];
  if (!view.startsWith("live") || first === undefined || last === undefined) {
    return null;
  }
  const one = profile.targets[profile.targets.length === 1 ? 0 : target];
  if (one !== undefined && one.peak_time !== null && view === "live-bytes" && !isPart) {
    const time = one.peak_time / 1000;
    if (time >= first && time <= last) {
      return { time, value: one.peak_bytes };
    }
  }
  const value = values.reduce((most, amount) => Math.max(most, amount), -Infinity);
  return { time: at(times, values.indexOf(value)), value };
}

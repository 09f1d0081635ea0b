/** Points in time with callsite totals, and periods between them. */

import { at, filled, starts } from "./columns.ts";
import { VIEWS, field, type Target, type ViewField } from "./document.ts";
import type { Profile } from "./profile.ts";
import { durationText } from "../text.ts";

/** Maximum number of selectable points besides dumps and marks. */
const POINTS_MAX = 120;
/** Maximum distance of a point from an end to count as that end. */
const END_MILLIS = 20;

export interface Point {
  readonly time: number;
  /** 0 for a periodic point, -1 for a mark, else the number of a dump. */
  readonly occasion: number;
  readonly is?: "start" | "end";
}

/** Indices of points; -1 where the profile has none. */
export interface Period {
  readonly from: number;
  readonly to: number;
}

/** Callsite totals at a point: live, and allocated since the recording started. */
export type Usage = Readonly<Record<ViewField, Float64Array>>;

/** Callsite totals at every point of the history, including the start and the end of the recording. */
export class Points {
  readonly list: readonly Point[];
  /** Whether the profile covers the whole recording, not a window. */
  readonly isWhole: boolean;
  private readonly known = new Map<number, Usage>();

  constructor(private readonly profile: Profile) {
    this.isWhole = profile.header.window === null;
    this.list = this.addEnds(thinned(occasions(profile)));
  }

  /** Adds the start and the end of the recording where the history has no points there, and names both ends. */
  private addEnds(points: Point[]): Point[] {
    const first = points[0];
    const last = points.at(-1);
    if (first !== undefined && last !== undefined && this.isWhole) {
      const { span } = this.profile.header;
      if (last.time < span - END_MILLIS || (last.occasion !== 0 && !this.isFinal(last.time))) {
        points.push({ time: Math.max(span, last.time), occasion: 0 });
      }
      if (first.occasion !== 0 || first.time > END_MILLIS) {
        points.unshift({ time: Math.min(0, first.time), occasion: 0 });
      }
    }
    const end = points.length - 1;
    return points.length < 2 ? points : points.map((point, index) => (index === 0 ? { ...point, is: "start" } : index === end ? { ...point, is: "end" } : point));
  }

  /** Whether nothing happened after a time. */
  private isFinal(time: number): boolean {
    const { live_bytes: live, alloc_bytes: allocated } = this.changesUntil(time);
    const { callsites } = this.profile;
    return live.every((bytes, index) => bytes === callsites.live_bytes[index] && allocated[index] === callsites.alloc_bytes[index]);
  }

  get last(): number {
    return this.list.length - 1;
  }

  /** Whether there are points to select. */
  get any(): boolean {
    return this.list.length > 1;
  }

  time(index: number): number {
    return this.list[index]?.time ?? 0;
  }

  pointName(index: number): string {
    const { time, occasion, is } = this.list[index] ?? { time: 0, occasion: 0 };
    const when = this.timeText(index);
    if (is !== undefined && occasion === 0) {
      return is === "start" && time <= END_MILLIS ? "start" : `${is} (${when})`;
    }
    if (occasion > 0) {
      return `dump ${occasion} (${when})`;
    }
    return occasion < 0 ? `mark (${when})` : when;
  }

  /** Time of a point; to the millisecond where a neighbour would have the same label. */
  private timeText(index: number): string {
    const time = this.time(index);
    const text = durationText(time);
    const isShared = [index - 1, index + 1].some((other) => this.list[other] !== undefined && durationText(this.time(other)) === text);
    return isShared && time >= 1000 && time < 3_600_000 ? `${(time / 1000).toFixed(3)} s` : text;
  }

  /** The boundaries of windows: dumps, marks and both ends; all points where there are no dumps. */
  boundaries(): number[] {
    const all = this.list.map((_, index) => index);
    const chosen = all.filter((index) => index === 0 || index === this.last || this.list[index]?.occasion !== 0);
    return chosen.length > 2 ? chosen : all;
  }

  /** Callsite totals at a point. */
  at(point: number): Usage {
    const known = this.known.get(point);
    if (known !== undefined) {
      return known;
    }
    const made = this.computeAt(point);
    this.known.set(point, made);
    return made;
  }

  private computeAt(point: number): Usage {
    const { is, time } = this.list[point] ?? { time: 0 };
    if (is === "end" && this.isWhole) {
      return this.profile.callsites;
    }
    return is === "start" && this.isWhole ? this.atStart(time) : this.changesUntil(time);
  }

  /** Inherited blocks exist from the start of their process on, others from before the recording at once. */
  private atStart(time: number): Usage {
    const { callsites, count, targets, first } = this.profile;
    const usage = emptyUsage(count);
    targets.forEach(({ begun, callsites: columns, origin }, number) => {
      const from = at(first, number);
      if (origin === "running" || begun <= time + END_MILLIS) {
        usage.live_bytes.set(callsites.opening_bytes.subarray(from, from + columns.count), from);
        usage.live_count.set(callsites.opening_count.subarray(from, from + columns.count), from);
      }
    });
    return usage;
  }

  private changesUntil(time: number): Usage {
    const usage = emptyUsage(this.profile.count);
    this.profile.targets.forEach((target, number) => {
      applyChanges(target, at(this.profile.first, number), time, usage);
    });
    return usage;
  }

  /** Whether a process started in a period, with its inherited blocks. */
  beganIn(target: Target, { from, to }: Period): boolean {
    if (!this.isWhole || target.origin === "running") {
      return false;
    }
    return target.begun > this.time(from) + (from === 0 ? END_MILLIS : 0) && target.begun <= this.time(to);
  }

  /** The point nearest to a time. */
  nearest(time: number): number {
    const distance = (index: number): number => Math.abs(this.time(index) - time);
    return this.list.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0);
  }

  /** The window that contains a time. */
  windowAt(time: number): Period {
    const boundaries = this.boundaries();
    for (let index = 1; index < boundaries.length; index += 1) {
      if (time <= this.time(at(boundaries, index)) || index === boundaries.length - 1) {
        return { from: at(boundaries, index - 1), to: at(boundaries, index) };
      }
    }
    return this.all();
  }

  /** The last window of relevant length: the recording often ends right after a dump. */
  lastWindow(): Period {
    const boundaries = this.boundaries();
    const lengths = boundaries.map((boundary, index) => (index === 0 ? 0 : this.time(boundary) - this.time(at(boundaries, index - 1))));
    const longest = Math.max(...lengths);
    const best = lengths.reduce((last, one, next) => (one > 0 && one * 10 >= longest ? next : last), 0);
    return best < 1 ? this.all() : { from: at(boundaries, best - 1), to: at(boundaries, best) };
  }

  /** The window before a period, as nearly as long as the points allow; null where the period starts at the first point. */
  before({ from, to }: Period): Period | null {
    if (from <= 0) {
      return null;
    }
    const start = this.nearest(2 * this.time(from) - this.time(to));
    return { from: Math.min(start, from - 1), to: from };
  }

  /** The whole period of the profile. */
  all(): Period {
    return this.any ? { from: 0, to: this.last } : { from: -1, to: -1 };
  }

  isAll({ from, to }: Period): boolean {
    return from < 0 || (from === 0 && to === this.last);
  }

  periodText(period: Period): string {
    if (this.isAll(period)) {
      const span = this.any ? ` (${durationText(this.time(this.last) - this.time(0))})` : "";
      return `${this.isWhole ? "the whole recording" : "the whole window"}${span}`;
    }
    return `${this.pointName(period.from)} to ${this.pointName(period.to)}`;
  }
}

function emptyUsage(count: number): Record<ViewField, Float64Array> {
  const columns = (): Float64Array => new Float64Array(count);
  return { live_bytes: columns(), live_count: columns(), alloc_bytes: columns(), alloc_count: columns() };
}

/** Sets a target's totals to those of its last changes until a time. */
function applyChanges({ history, callsites }: Target, first: number, time: number, usage: Record<ViewField, Float64Array>): void {
  const { changes, instants } = history;
  const from = starts(filled(changes.count, callsites.count));
  for (let index = 0; index < callsites.count; index += 1) {
    let last = -1;
    for (let change = at(from, index); change < at(from, index + 1); change += 1) {
      if (at(instants.time, at(changes.point, change)) <= time) {
        last = change;
      }
    }
    if (last >= 0) {
      for (const view of VIEWS) {
        usage[field(view)][first + index] = at(changes[field(view)], last);
      }
    }
  }
}

/** The points of all targets' histories, in order of time. */
function occasions(profile: Profile): Point[] {
  const byTime = new Map<number, number>();
  for (const { history } of profile.targets) {
    const { time, occasion } = history.instants;
    for (let index = 0; index < Math.max(time.length, occasion.length); index += 1) {
      const when = at(time, index);
      byTime.set(when, (byTime.get(when) ?? 0) || at(occasion, index));
    }
  }
  return [...byTime].map(([time, occasion]) => ({ time, occasion })).sort((one, other) => one.time - other.time);
}

/** Removes points close to a dump or mark, and thins out the others so that the list stays usable. */
function thinned(points: Point[]): Point[] {
  const marked = points.filter(({ occasion }) => occasion !== 0);
  const near = ({ time }: Point): boolean => marked.some((other) => Math.abs(other.time - time) < END_MILLIS);
  const apart = points.filter((point) => point.occasion !== 0 || !near(point));
  const every = Math.ceil((apart.length - marked.length) / POINTS_MAX);
  return apart.filter(({ occasion }, index) => occasion !== 0 || index % every === 0 || index === apart.length - 1);
}

/** The state of the page: one value. Everything shown follows from it and from the profile. */

import type { Period, Points } from "../data/points.ts";
import type { Profile } from "../data/profile.ts";
import { isView, type View } from "../data/document.ts";

export const TABS = ["callsites", "functions", "top-down", "bottom-up", "callers", "modules", "sizes", "types"] as const;
export type Tab = (typeof TABS)[number];

export const COLOURS = ["module", "kind"] as const;
export type ColourScheme = (typeof COLOURS)[number];

export interface State {
  readonly view: View;
  /** Index of the target; -1 for all. */
  readonly target: number;
  /** Name of the heap; empty for all. */
  readonly heap: string;
  /** Name of the thread; empty for all. */
  readonly thread: string;
  /** What stacks are grouped by, outermost first. */
  readonly groups: readonly string[];
  readonly period: Period;
  /** The period to compare with; null for none. */
  readonly base: Period | null;
  /** Whether to show what was live at the peak. */
  readonly atPeak: boolean;
  readonly search: string;
  /** Keeps stacks with a matching frame. */
  readonly focus: string;
  /** Drops stacks with a matching frame. */
  readonly ignore: string;
  /** Removes matching frames from stacks. */
  readonly hide: string;
  readonly isReversed: boolean;
  /** The function that stacks of the flame graph start at; null for whole stacks. */
  readonly root: number | null;
  /** Keys of the nodes on the path to the zoomed node. */
  readonly zoom: readonly number[];
  readonly colour: ColourScheme;
  readonly tab: Tab;
  /** The function whose callers and callees are shown. */
  readonly selected: number | null;
  /** Only callsites through this function; null for all. */
  readonly through: number | null;
  /** Callsites whose details are shown. */
  readonly open: readonly number[];
  /** Whether rows without the chosen quantity are shown. */
  readonly showsZeros: boolean;
}

export type Update = (change: Partial<State>) => void;

export function initialState(profile: Profile, points: Points): State {
  const { view, by } = profile.document;
  return {
    view: isView(view) ? view : "live-bytes",
    target: -1,
    heap: "",
    thread: "",
    groups: by,
    period: points.all(),
    base: null,
    atPeak: false,
    search: "",
    focus: "",
    ignore: "",
    hide: "",
    isReversed: false,
    root: null,
    zoom: [],
    colour: "module",
    tab: "callsites",
    selected: null,
    through: null,
    open: [],
    showsZeros: false,
  };
}

/** A state with changes, and with what these imply: the peak is of live bytes and of no period, and another tree has no zoom. */
export function changed(state: State, change: Partial<State>, points: Points): State {
  const leavesPeak = change.atPeak === undefined && (change.view !== undefined || change.period !== undefined || change.base !== undefined);
  const next: State = { ...state, ...(leavesPeak ? { atPeak: false } : {}), ...change };
  const isOtherTree = change.groups !== undefined || change.isReversed !== undefined || change.root !== undefined || change.hide !== undefined;
  const unzoomed = isOtherTree && change.zoom === undefined ? { ...next, zoom: [] } : next;
  return unzoomed.atPeak ? { ...unzoomed, view: "live-bytes", period: points.all(), base: null } : unzoomed;
}

/** The periods that are compared first: the chosen one, or the last window, with the window before of equal length. */
export function comparison(points: Points, chosen: Period): { period: Period; base: Period } {
  const period = points.isAll(chosen) ? points.lastWindow() : chosen;
  const base = points.before(period);
  if (base !== null) {
    return { period, base };
  }
  // Nothing is before the start: compare the period's halves.
  const middle = points.nearest((points.time(period.from) + points.time(period.to)) / 2);
  const between = Math.min(Math.max(middle, period.from + 1), Math.max(period.to - 1, period.from + 1));
  return { period: { from: between, to: Math.max(period.to, between) }, base: { from: period.from, to: between } };
}

/** The state in the address: `#view=alloc-bytes&from=1000&to=2000`. Defaults are left out. */

import { isView } from "../data/document.ts";
import type { Period, Points } from "../data/points.ts";
import { COLOURS, TABS, type State } from "./state.ts";

/** How many of each a state may name. */
export interface Limits {
  readonly targets: number;
  readonly functions: number;
  readonly callsites: number;
}

const WORDS = ["heap", "thread", "search", "focus", "ignore", "hide"] as const;
const FLAGS = [
  ["peak", "atPeak"],
  ["reverse", "isReversed"],
  ["zeros", "showsZeros"],
] as const;
const FUNCTIONS = ["root", "selected", "through"] as const;
const LISTS = ["zoom", "open"] as const;
const PERIODS = [
  ["period", "from", "to"],
  ["base", "base-from", "base-to"],
] as const;

/** End of a period that follows the recording. */
const NOW = "now";

function milliseconds(points: Points, index: number): string {
  return String(Math.round(points.time(index)));
}

/** The address of a live page has no numbers of functions, processes or callsites, which are of one document, and its
 * periods can end now. */
export function toHash(state: State, initial: State, points: Points, isLive = false): string {
  const query = new URLSearchParams();
  for (const name of ["view", "tab", "colour"] as const) {
    if (state[name] !== initial[name]) {
      query.set(name, state[name]);
    }
  }
  for (const name of WORDS) {
    if (state[name] !== "") {
      query.set(name, state[name]);
    }
  }
  for (const [name, key] of FLAGS) {
    if (state[key]) {
      query.set(name, "1");
    }
  }
  for (const name of isLive ? [] : FUNCTIONS) {
    if (state[name] !== null) {
      query.set(name, String(state[name]));
    }
  }
  for (const name of isLive ? [] : LISTS) {
    if (state[name].length > 0) {
      query.set(name, state[name].join("."));
    }
  }
  if (state.target >= 0 && !isLive) {
    query.set("target", String(state.target));
  }
  if (state.groups.join(",") !== initial.groups.join(",")) {
    query.set("by", state.groups.join(","));
  }
  for (const [name, from, to] of PERIODS) {
    const period = state[name];
    if (period !== null && (name === "base" || !points.isAll(period))) {
      query.set(from, milliseconds(points, period.from));
      query.set(to, isLive && period.to === points.last ? NOW : milliseconds(points, period.to));
    }
  }
  return query.toString();
}

function whole(text: string | null, limit: number): number | null {
  const number = text === null || !/^\d{1,9}$/.test(text) ? NaN : Number(text);
  return number < limit ? number : null;
}

function periodOf(query: URLSearchParams, from: string, to: string, points: Points): Period | null {
  const times = [query.get(from), query.get(to)].map((text) => (text === NOW ? points.time(points.last) : text === null || text === "" ? NaN : Number(text)));
  if (!points.any || times.some((time) => !Number.isFinite(time))) {
    return null;
  }
  const [start, end] = times.map((time) => points.nearest(time));
  return start !== undefined && end !== undefined && start < end ? { from: start, to: end } : null;
}

/** The state of an address. Values that the profile does not have are ignored. */
export function fromHash(hash: string, initial: State, points: Points, limits: Limits): State {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const view = query.get("view") ?? "";
  const listOf = (name: string, limit: number): number[] =>
    (query.get(name) ?? "").split(".").flatMap((text) => whole(text, limit) ?? []);
  const functionOf = (name: string): number | null => whole(query.get(name), limits.functions);
  const by = query.get("by");
  return {
    ...initial,
    view: isView(view) ? view : initial.view,
    tab: TABS.find((tab) => tab === query.get("tab")) ?? initial.tab,
    colour: COLOURS.find((colour) => colour === query.get("colour")) ?? initial.colour,
    ...Object.fromEntries(WORDS.map((name) => [name, query.get(name) ?? ""])),
    ...Object.fromEntries(FLAGS.map(([name, key]) => [key, query.get(name) === "1"])),
    ...Object.fromEntries(FUNCTIONS.map((name) => [name, functionOf(name)])),
    zoom: listOf("zoom", Number.MAX_SAFE_INTEGER),
    open: listOf("open", limits.callsites),
    target: whole(query.get("target"), limits.targets) ?? -1,
    groups: by === null ? initial.groups : by === "" ? [] : by.split(","),
    period: periodOf(query, "from", "to", points) ?? initial.period,
    base: periodOf(query, "base-from", "base-to", points),
  };
}

/** Carries what a reader has chosen from one document to the next. Functions, stacks and processes are found again by
 * their names, and periods by their times: indices are of one document. */

import { at } from "../data/columns.ts";
import type { Period } from "../data/points.ts";
import type { Profile } from "../data/profile.ts";
import type { Tree } from "../analysis/tree.ts";
import type { Model } from "./model.ts";
import { filtered } from "./selection.ts";
import type { State } from "./state.ts";

/** Indices of one profile as indices of a later one. */
export class Translation {
  private functions: Map<string, number> | null = null;
  private frames: Map<string, number> | null = null;

  constructor(
    private readonly from: Profile,
    private readonly to: Profile,
  ) {}

  /** Null for a function that the later profile does not have. */
  function(key: number): number | null {
    const { from, to } = this;
    if (isSameFunction(from, key, to, key)) {
      return key;
    }
    this.functions ??= new Map(Array.from({ length: to.functionCount }, (_, other) => [functionName(to, other), other]));
    return this.functions.get(functionName(from, key)) ?? null;
  }

  private frame(frame: number): number | null {
    const { from, to } = this;
    this.frames ??= new Map(Array.from(to.document.frames.function, (_, other) => [frameName(to, other), other]));
    return this.frames.get(frameName(from, frame)) ?? null;
  }

  /** -1 for all targets, and for a target that the later profile does not have. */
  target(target: number): number {
    const name = this.from.targets[target]?.name;
    return name === undefined ? -1 : this.to.targets.findIndex((other) => other.name === name);
  }

  /** Null for a callsite that the later profile does not have. */
  callsite(callsite: number): number | null {
    const { from, to } = this;
    const node = this.stack(from.stack(callsite).reverse());
    const target = this.target(at(from.callsites.target, callsite));
    if (node === null || target < 0) {
      return null;
    }
    const first = at(to.first, target);
    const label = callsiteLabel(from, callsite);
    for (let other = first; other < first + (to.targets[target]?.callsites.count ?? 0); other += 1) {
      if (to.callsites.node[other] === node && callsiteLabel(to, other) === label) {
        return other;
      }
    }
    return null;
  }

  /** The node of a stack, outermost frame first. */
  private stack(frames: readonly number[]): number | null {
    const { nodeParent, nodeFrame } = this.to;
    const wanted = frames.map((frame) => this.frame(frame));
    let last = 0;
    let depth = 0;
    // One pass: a parent is before its children.
    for (let node = 1; node < nodeParent.length && depth < wanted.length; node += 1) {
      if (nodeParent[node] === last && nodeFrame[node] === wanted[depth]) {
        last = node;
        depth += 1;
      }
    }
    return depth === wanted.length ? last : null;
  }
}

function functionName(profile: Profile, key: number): string {
  return `${profile.functionModule(key)}\0${profile.functionName(key)}`;
}

function isSameFunction(profile: Profile, key: number, other: Profile, otherKey: number): boolean {
  return profile.functionName(key) === other.functionName(otherKey) && profile.functionModule(key) === other.functionModule(otherKey);
}

function frameName(profile: Profile, frame: number): string {
  const offset = profile.document.frames.offset[frame] ?? -1;
  return [functionName(profile, profile.frameFunction(frame)), profile.sourceFile(frame), profile.sourceLine(frame), profile.isInlined(frame), offset].join("\0");
}

/** What distinguishes callsites of the same stack. */
function callsiteLabel(profile: Profile, callsite: number): string {
  return [profile.heapName(callsite), profile.threadName(callsite), ...profile.gap(callsite)].join("\0");
}

/** Nodes of a tree in a tree of a later profile; those it does not have are left out. */
export function carriedNodes(from: Tree, nodes: Iterable<number>, to: Tree): Map<number, number> {
  const known = new Map<number, number | null>([[0, 0]]);
  const isSame = (node: number, other: number): boolean =>
    from.name(node) === to.name(other) && from.module(node) === to.module(other) && from.isFunction(node) === to.isFunction(other);
  const carried = (node: number): number | null => {
    const path: number[] = [];
    let one = node;
    for (; !known.has(one); one = from.parent(one)) {
      path.push(one);
    }
    let found = known.get(one) ?? null;
    for (const next of path.reverse()) {
      found = found === null ? null : (to.shape.children(found).find((child) => isSame(next, child)) ?? null);
      known.set(next, found);
    }
    return found;
  };
  const pairs = Array.from(nodes, (node) => [node, carried(node)] as const);
  return new Map(pairs.filter((pair): pair is readonly [number, number] => pair[1] !== null));
}

/** The times that a carried period was chosen by: points near them come and go, and the period must not drift with them. */
const chosenTimes = new WeakMap<Period, { readonly from: number; readonly to: number }>();

/** A period that ends now follows; others stay where they are. */
function carriedPeriod(period: Period, { points: before }: Model, { points: after }: Model): Period {
  if (before.isAll(period) || !after.any) {
    return after.all();
  }
  const times = chosenTimes.get(period) ?? { from: before.time(period.from), to: before.time(period.to) };
  const follows = period.to === before.last;
  const to = follows ? after.last : Math.max(1, after.nearest(times.to));
  const carried = { from: Math.min(after.nearest(times.from), to - 1), to };
  chosenTimes.set(carried, times);
  return carried;
}

/** The keys of a path in the flame graph, as far as the later profile has them. */
function carriedZoom(state: State, from: Model, to: Model, next: State, translation: Translation): number[] {
  const keys: number[] = [];
  const words = (model: Model, { groups, isReversed, root, hide, ...filters }: State): readonly string[] =>
    model.shape({ groups, isReversed, root, hidden: filtered(model, { ...filters, hide }).hidden }, hide).words;
  for (const key of state.zoom) {
    const word = key < from.profile.functionCount ? null : words(from, state)[key - from.profile.functionCount];
    const label = word === null ? -1 : words(to, next).indexOf(word ?? "");
    const found = word === null ? translation.function(key) : label < 0 ? null : to.profile.functionCount + label;
    if (found === null) {
      break;
    }
    keys.push(found);
  }
  return keys;
}

/** The state for a later document of the same recording. */
export function carriedState(state: State, from: Model, to: Model): State {
  const translation = new Translation(from.profile, to.profile);
  const functionOf = (key: number | null): number | null => (key === null ? null : translation.function(key));
  const base = state.base === null || !to.points.any ? null : carriedPeriod(state.base, from, to);
  const next: State = {
    ...state,
    target: translation.target(state.target),
    period: carriedPeriod(state.period, from, to),
    base,
    root: functionOf(state.root),
    selected: functionOf(state.selected),
    through: functionOf(state.through),
    open: state.open.flatMap((callsite) => translation.callsite(callsite) ?? []),
    zoom: [],
  };
  return { ...next, zoom: carriedZoom(state, from, to, next, translation) };
}

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Tree } from "../src/analysis/tree.ts";
import { nodeOfPath, pathOf } from "../src/flame/layout.ts";
import type { Document, HistoryColumns, Target } from "../src/data/document.ts";
import type { Period } from "../src/data/points.ts";
import { carriedNodes, carriedState } from "../src/state/carry.ts";
import { fromHash, toHash } from "../src/state/hash.ts";
import { Model } from "../src/state/model.ts";
import { filtered } from "../src/state/selection.ts";
import type { State } from "../src/state/state.ts";
import { golden } from "./profiles.ts";

/** The same document with other indices of functions, frames, targets and callsites. */
function renumbered(document: Document): Document {
  const { functions, frames, nodes, targets } = document;
  const reversed = <Row>(rows: readonly Row[]): Row[] => [...rows].reverse();
  const last = (rows: readonly unknown[]): number => rows.length - 1;
  const columns = <Columns extends object>(all: Columns): Columns =>
    Object.fromEntries(Object.entries(all).map(([name, rows]) => [name, reversed(rows as number[])])) as Columns;
  return {
    ...document,
    functions: columns(functions),
    frames: { ...columns(frames), function: reversed(frames.function).map((key) => last(functions.name) - key) },
    nodes: { back: nodes.back, frame: nodes.frame.map((frame) => last(frames.function) - frame) },
    targets: reversed(targets),
  };
}

/** The document as it is later: longer by this time, with a point in time at its end before. */
function later(document: Document, millis: number): Document {
  const extended = ({ instants, ...history }: HistoryColumns): HistoryColumns => ({
    ...history,
    instants: { time: [...instants.time, document.header.span], occasion: [...Array.from(instants.time, (_, at) => instants.occasion[at] ?? 0), 0] },
  });
  const targets = document.targets.map((target): Target => ({ ...target, history: extended(target.history) }));
  return { ...document, header: { ...document.header, span: document.header.span + millis }, targets };
}

function flame(model: Model, { groups, isReversed, root, hide, ...filters }: State): Tree {
  const { mask, hidden } = filtered(model, { ...filters, hide });
  const choice = { view: "alloc-bytes", period: model.points.all(), base: null, atPeak: false } as const;
  return new Tree(model.shape({ groups, isReversed, root, hidden }, hide), model.amounts.chosen(mask, choice));
}

function names(tree: Tree, node: number): string[] {
  return pathOf(tree, node).map((key) => (key < tree.profile.functionCount ? tree.profile.functionName(key) : (tree.shape.words[key - tree.profile.functionCount] ?? "")));
}

function deepest(tree: Tree): number {
  const depth = (node: number): number => pathOf(tree, node).length;
  return Array.from({ length: tree.shape.size }, (_, node) => node).reduce((best, node) => (depth(node) > depth(best) ? node : best), 0);
}

function stackOf({ profile }: Model, callsite: number): string[] {
  const frames = profile.stack(callsite).map((frame) => `${profile.functionName(profile.frameFunction(frame))} ${profile.sourcePosition(frame)}`);
  return [...frames, profile.heapName(callsite), profile.threadName(callsite), profile.targetOf(callsite).name, ...profile.gap(callsite)];
}

for (const name of ["exact", "sampled", "mixed"] as const) {
  describe(`carried state of ${name}`, () => {
    const before = new Model(golden(name));
    const after = new Model(renumbered(golden(name)));

    test("functions, processes and callsites are found by name", () => {
      const { functionCount, count, targets } = before.profile;
      for (let key = 0; key < functionCount; key += 1) {
        const carried = carriedState({ ...before.initial, root: key, selected: key, through: key }, before, after);
        const { root, selected, through } = carried;
        assert.ok(root !== null && root === selected && root === through);
        assert.equal(after.profile.functionName(root), before.profile.functionName(key));
        assert.equal(after.profile.functionModule(root), before.profile.functionModule(key));
      }
      for (let callsite = 0; callsite < count; callsite += 1) {
        const { open } = carriedState({ ...before.initial, open: [callsite] }, before, after);
        assert.deepEqual(stackOf(after, open[0] ?? -1), stackOf(before, callsite));
      }
      targets.forEach((target, at) => {
        const carried = carriedState({ ...before.initial, target: at }, before, after);
        assert.equal(after.profile.targets[carried.target]?.name, target.name);
      });
    });

    test("zoomed and open nodes are found by the names on their paths", () => {
      for (const groups of [[], ["heap"], ["command", "heap"]]) {
        const state = { ...before.initial, groups };
        const tree = flame(before, state);
        const zoom = pathOf(tree, deepest(tree));
        const carried = carriedState({ ...state, zoom }, before, after);
        const next = flame(after, carried);
        assert.deepEqual(names(next, nodeOfPath(next, carried.zoom)), names(tree, deepest(tree)));
        const all = Array.from({ length: tree.shape.size }, (_, node) => node);
        const nodes = carriedNodes(tree, all, next);
        assert.equal(nodes.size, tree.shape.size);
        nodes.forEach((to, node) => { assert.deepEqual(names(next, to), names(tree, node)); });
      }
    });

    test("what a reader has typed and pressed stays", () => {
      const state: State = { ...before.initial, view: "alloc-count", heap: "h", thread: "t", search: "s", focus: "f", ignore: "i", hide: "x", isReversed: true, tab: "modules", colour: "kind", showsZeros: true };
      assert.deepEqual({ ...carriedState(state, before, after), period: null, base: null }, { ...state, period: null, base: null });
    });
  });
}

describe("carried state", () => {
  const first = [1000, 1000, 1000].reduce(later, golden("exact"));
  const before = new Model(first);

  test("what is gone is no longer chosen", () => {
    const empty = new Model(golden("empty"));
    const state: State = { ...before.initial, target: 0, root: 0, selected: 1, through: 2, open: [0, 1], zoom: [0, 1] };
    const { target, root, selected, through, open, zoom } = carriedState(state, before, empty);
    assert.deepEqual([target, root, selected, through, open, zoom], [-1, null, null, null, [], []]);
  });

  test("periods that end now follow, others stay", () => {
    const { points } = before;
    assert.ok(points.last >= 4);
    let document = first;
    let model = before;
    let follows: State = { ...before.initial, period: { from: 1, to: points.last }, base: { from: 0, to: 1 } };
    let fixed: State = { ...before.initial, period: { from: 1, to: 3 } };
    let whole = before.initial;
    const times = ({ points }: Model, { from, to }: Period): number[] => [points.time(from), points.time(to)];
    const [start, end] = [points.time(1), points.time(3)];
    for (let step = 1; step <= 200; step += 1) {
      document = later(document, 777 + step);
      const next = new Model(document);
      [follows, fixed, whole] = [carriedState(follows, model, next), carriedState(fixed, model, next), carriedState(whole, model, next)];
      model = next;
      assert.deepEqual(whole.period, model.points.all());
      assert.equal(follows.period.to, model.points.last);
    }
    const near = (actual: number | undefined, expected: number): void => {
      // Points are thinned in a long history.
      const gap = Math.max(...model.points.list.map(({ time }, at) => time - model.points.time(Math.max(0, at - 1))));
      assert.ok(Math.abs((actual ?? NaN) - expected) <= gap, `${String(actual)} is not near ${expected}`);
    };
    near(times(model, follows.period)[0], start);
    near(times(model, fixed.period)[0], start);
    near(times(model, fixed.period)[1], end);
    near(times(model, follows.base ?? follows.period)[1], start);
  });

  test("a history that begins later gives periods", () => {
    const none = new Model({ ...first, targets: first.targets.map((target) => ({ ...target, history: { ...target.history, instants: { time: [], occasion: [] } } })) });
    assert.deepEqual(carriedState(none.initial, none, before).period, before.points.all());
    assert.deepEqual(carriedState({ ...before.initial, base: { from: 0, to: 1 } }, before, none).base, none.points.any ? { from: 0, to: 1 } : null);
  });

  test("addresses of live pages have no numbers of a document", () => {
    const { initial, points, limits } = before;
    const state: State = { ...initial, target: 0, root: 1, selected: 1, through: 0, open: [0], zoom: [1], search: "x", period: { from: 1, to: points.last } };
    const hash = toHash(state, initial, points, true);
    assert.equal(hash, `search=x&from=${points.time(1)}&to=now`);
    assert.deepEqual(fromHash(hash, initial, points, limits), { ...initial, search: "x", period: state.period });
  });
});

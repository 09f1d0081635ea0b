import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { describe, test } from "node:test";
import { Amounts } from "../src/data/amounts.ts";
import { sum } from "../src/data/columns.ts";
import { VIEWS, field } from "../src/data/document.ts";
import { Points } from "../src/data/points.ts";
import { Profile } from "../src/data/profile.ts";
import { EmbeddedSource } from "../src/data/source.ts";
import { framesOf } from "../src/analysis/query.ts";
import { Tree, TreeShape } from "../src/analysis/tree.ts";
import { golden, profile } from "./profiles.ts";

const ALL = { target: -1, heap: "", thread: "" };
const WHOLE = { groups: [], isReversed: false, root: null, hidden: null };

describe("profile", () => {
  test("an embedded document is read", async () => {
    const packed = gzipSync(JSON.stringify(golden("exact"))).toString("base64");
    for await (const document of new EmbeddedSource(packed).documents()) {
      assert.deepEqual(document, golden("exact"));
    }
  });

  test("damaged data are reported as such", async () => {
    const whole = gzipSync(JSON.stringify(golden("exact"))).toString("base64");
    const packed = whole.slice(0, whole.length / 2);
    await assert.rejects(async () => {
      for await (const document of new EmbeddedSource(packed).documents()) {
        assert.fail(`read as version ${document.version}`);
      }
    }, /damaged/);
  });

  test("callsite sums equal the document's totals", () => {
    for (const name of ["exact", "mixed", "empty"] as const) {
      const made = profile(name);
      const points = new Points(made);
      const amounts = new Amounts(made, points);
      const totals = amounts.totals(amounts.mask(ALL), points.all());
      for (const view of VIEWS) {
        assert.ok(Math.abs(totals[field(view)] - (made.header.estimates[field(view)][0] - (made.header.folded?.estimates[field(view)][0] ?? 0))) < 1, `${name} ${view}`);
      }
    }
  });
});

describe("points", () => {
  test("consecutive periods add up", () => {
    const made = profile("exact");
    const points = new Points(made);
    const amounts = new Amounts(made, points);
    assert.ok(points.any);
    let allocated = 0;
    for (let to = 1; to <= points.last; to += 1) {
      allocated += amounts.totals(amounts.mask(ALL), { from: to - 1, to }).alloc_bytes;
    }
    assert.equal(allocated, amounts.totals(amounts.mask(ALL), points.all()).alloc_bytes);
  });

  test("blocks from before the recording are live at its start, and inherited ones are not", () => {
    const before = [1000, 0, 0, 0, 0];
    for (const [origin, inherited] of [["running", 0], ["fork", 1000]] as const) {
      const document = golden("exact");
      const [target] = document.targets;
      assert.ok(target !== undefined);
      const changed = { ...target, origin, begun: 500, callsites: { ...target.callsites, opening_bytes: before } };
      const made = new Profile({ ...document, targets: [changed] });
      const points = new Points(made);
      const amounts = new Amounts(made, points);
      const whole = amounts.totals(amounts.mask(ALL), points.all());
      assert.equal(whole.opening_bytes, 1000);
      assert.equal(whole.inherited_bytes, inherited, origin);
      const first = amounts.totals(amounts.mask(ALL), { from: 0, to: 1 });
      assert.equal(first.inherited_bytes, inherited, origin);
      assert.equal(first.opening_bytes, 1000, origin);
    }
  });

  test("the window before a period ends where the period starts", () => {
    const points = new Points(profile("exact"));
    assert.equal(points.before({ from: 0, to: points.last }), null);
    for (let from = 1; from < points.last; from += 1) {
      const before = points.before({ from, to: points.last });
      assert.ok(before !== null && before.to === from && before.from < from);
    }
  });
});

describe("tree", () => {
  test("the root's sum is the total, whole and reversed", () => {
    const made = profile("mixed");
    for (const isReversed of [false, true]) {
      const tree = new Tree(new TreeShape(made, { ...WHOLE, isReversed }), { after: made.callsites.alloc_bytes, before: null });
      assert.ok(Math.abs((tree.after[0] ?? 0) - sum(made.callsites.alloc_bytes)) < 1e-6);
      const below = tree.children(0).reduce((total, node) => total + (tree.after[node] ?? 0), 0);
      assert.ok(Math.abs(below - (tree.after[0] ?? 0)) < 1e-6);
    }
  });

  test("hidden functions are in no node", () => {
    const made = profile("exact");
    const shape = new TreeShape(made, { ...WHOLE, hidden: framesOf(made, 1) });
    assert.ok(!Array.from(shape.key.subarray(0, shape.size)).includes(1));
    assert.ok(Array.from(new TreeShape(made, WHOLE).key).includes(1));
  });
});

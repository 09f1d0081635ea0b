import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { growing } from "../src/analysis/growth.ts";
import { curveOf, peakOf, timeRange } from "../src/analysis/curve.ts";
import { memoryParts, stackedAreas } from "../src/analysis/memory.ts";
import { fromHash, toHash } from "../src/state/hash.ts";
import { Model } from "../src/state/model.ts";
import { filtered, queryError, searched } from "../src/state/selection.ts";
import { editorUrl, isEditorTemplate } from "../src/state/settings.ts";
import { changed, comparison, type State } from "../src/state/state.ts";
import { golden } from "./profiles.ts";

const model = new Model(golden("exact"));
const { initial, points, limits } = model;

function again(state: State): State {
  return fromHash(`#${toHash(state, initial, points)}`, initial, points, limits);
}

describe("address", () => {
  test("the initial state has none", () => {
    assert.equal(toHash(initial, initial, points), "");
    assert.deepEqual(again(initial), initial);
  });

  test("every field is restored", () => {
    const state: State = {
      view: "alloc-count",
      target: 0,
      heap: "libc & <b>",
      thread: "main (1)",
      groups: ["thread", "heap"],
      period: { from: 1, to: points.last },
      base: { from: 0, to: 1 },
      atPeak: false,
      search: "a b",
      focus: "^x|y$",
      ignore: "#&=",
      hide: "%",
      isReversed: true,
      root: 1,
      zoom: [1, 2, 3],
      colour: "kind",
      tab: "callers",
      selected: 2,
      through: 0,
      open: [0, 1],
      showsZeros: true,
    };
    assert.deepEqual(again(state), state);
  });

  test("values that the profile does not have are ignored", () => {
    const hash = "#view=x&tab=y&colour=z&target=9&root=99999&selected=-1&open=0.77.x&from=5&to=5&base-from=&base-to=1&zoom=a";
    assert.deepEqual(fromHash(hash, initial, points, limits), { ...initial, open: [0] });
  });
});

describe("state", () => {
  test("another tree has no zoom", () => {
    const zoomed = { ...initial, zoom: [1, 2] };
    assert.deepEqual(changed(zoomed, { isReversed: true }, points).zoom, []);
    assert.deepEqual(changed(zoomed, { view: "alloc-bytes" }, points).zoom, [1, 2]);
  });

  test("the peak is of live bytes, and ends with another view or period", () => {
    const peak = changed({ ...initial, view: "alloc-count", base: { from: 0, to: 1 } }, { atPeak: true }, points);
    assert.deepEqual([peak.view, peak.base, peak.period], ["live-bytes", null, points.all()]);
    assert.equal(changed(peak, { view: "live-count" }, points).atPeak, false);
    assert.equal(changed(peak, { search: "x" }, points).atPeak, true);
  });

  test("a period is compared with the window before", () => {
    for (let to = 1; to <= points.last; to += 1) {
      for (let from = 0; from < to; from += 1) {
        const { period, base } = comparison(points, { from, to });
        assert.ok(base.from < base.to && base.to <= period.to && period.from <= period.to && base.to <= Math.max(period.from, base.to));
        assert.ok(from === 0 || base.to === from);
      }
    }
  });
});

describe("selection", () => {
  test("filters select callsites, and wrong ones nothing", () => {
    const all = filtered(model, initial).mask;
    const focus = filtered(model, { ...initial, focus: "^cache_insert$" }).mask;
    const ignore = filtered(model, { ...initial, ignore: "^cache_insert$" }).mask;
    assert.ok(focus.includes(1) && focus.includes(0));
    assert.deepEqual(Array.from(all), Array.from(focus, (one, callsite) => one + (ignore[callsite] ?? 0)));
    assert.equal(queryError(initial), null);
    assert.match(queryError({ ...initial, hide: "(" }) ?? "", /regular expression/);
    assert.deepEqual(filtered(model, { ...initial, focus: "(" }).mask, all);
    assert.equal(searched(model, " "), null);
    assert.equal(searched(model, "CACHE insert")?.functions.filter((one) => one === 1).length, 2);
  });
});

describe("editor", () => {
  test("paths are escaped", () => {
    assert.equal(editorUrl("vscode://file/{path}:{line}", "/src/a b$&.c", 7), "vscode://file/src/a%20b%24%26.c:7");
    assert.equal(editorUrl("subl://open?url=file://{path}&line={line}", "/a/b.c", 0), "subl://open?url=file:///a/b.c&line=1");
  });

  test("scripts are no editors", () => {
    assert.ok(isEditorTemplate("vscode://file/{path}"));
    for (const template of ["javascript://{path}", "JavaScript://{path}", "data://{path}", "vscode://file", "{path}", ""]) {
      assert.ok(!isEditorTemplate(template), template);
    }
  });
});

describe("history", () => {
  test("the curve ends with the totals, and the peak is in it", () => {
    const { profile } = model;
    const curve = curveOf(profile, points, "live-bytes", -1, null);
    assert.equal(curve.isCoarse, false);
    const masked = curveOf(profile, points, "live-bytes", -1, new Uint8Array(profile.count).fill(1));
    assert.equal(masked.isCoarse, true);
    assert.equal(masked.values.at(-1), profile.callsites.live_bytes.reduce((sum, bytes) => sum + bytes, 0));
    const peak = peakOf(profile, "live-bytes", -1, false, curve);
    const range = timeRange(profile, points, curve);
    assert.ok(peak !== null && peak.time >= range.from && peak.time <= range.to && peak.value >= (masked.values.at(-1) ?? 0));
    assert.equal(peakOf(profile, "alloc-bytes", -1, false, curve), null);
  });

  test("growing callsites grew, the fastest first", () => {
    const mask = new Uint8Array(model.profile.count).fill(1);
    const found = growing(points, points.all(), mask);
    assert.ok(found.length > 0);
    found.forEach(({ callsite, bytesPerSecond, steadiness }, index) => {
      assert.ok(bytesPerSecond > 0 && steadiness >= 0.75 && steadiness <= 1);
      assert.ok((model.profile.callsites.live_bytes[callsite] ?? 0) > 0);
      assert.ok(bytesPerSecond <= (found[index - 1]?.bytesPerSecond ?? Infinity));
    });
    assert.deepEqual(growing(points, points.all(), new Uint8Array(model.profile.count)), []);
  });

  test("areas of memory are stacked, the largest at the end first", () => {
    const samples = [
      { time: 0, parts: [["files", 3], ["blocks", 1]] as const },
      { time: 1, parts: [["blocks", 9], ["stacks", 2]] as const },
    ];
    const parts = memoryParts(samples);
    assert.deepEqual(parts.map(({ title }) => title), ["blocks", "stacks", "files"]);
    assert.deepEqual(stackedAreas(parts, 2), [
      { lower: [0, 0], upper: [1, 9] },
      { lower: [1, 9], upper: [1, 11] },
      { lower: [1, 11], upper: [4, 11] },
    ]);
  });
});

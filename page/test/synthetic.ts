/** A document of any size, for measuring. */

import type { CallsiteColumns, Document, HistogramColumns } from "../src/data/document.ts";
import { Profile } from "../src/data/profile.ts";
import { golden } from "./profiles.ts";

/** Each stack has the same outer half; inner frames differ. */
export function synthetic(callsites: number, depth: number, functions = 2000): Profile {
  const base = golden("exact");
  const [target] = base.targets;
  if (target === undefined) {
    throw new Error("the golden has a target");
  }
  const back: number[] = [];
  const frame: number[] = [];
  const nodes: number[] = [];
  const add = (parent: number, key: number): number => {
    frame.push(key);
    back.push(frame.length - parent);
    return frame.length;
  };
  let shared = 0;
  for (let level = 0; level < depth / 2; level += 1) {
    shared = add(shared, level);
  }
  for (let callsite = 0; callsite < callsites; callsite += 1) {
    let node = shared;
    for (let level = Math.floor(depth / 2); level < depth; level += 1) {
      node = add(node, (Math.imul(callsite + 1, 2654435761) >>> 8) % functions === level ? level : (callsite * 7 + level * 131) % functions);
    }
    nodes.push(node);
  }
  const each = (of: (index: number) => number, count: number): number[] => Array.from({ length: count }, (_, index) => of(index));
  const sizes: HistogramColumns = { count: each(() => 2, callsites), bucket: each((at) => 4 + (at % 2), 2 * callsites), blocks: each(() => 1, 2 * callsites) };
  const columns: CallsiteColumns = {
    ...target.callsites,
    count: callsites,
    alloc_bytes: each((at) => 1000 + at, callsites),
    alloc_count: each((at) => 1 + (at % 5), callsites),
    live_bytes: each((at) => (at % 3) * 100, callsites),
    live_count: each((at) => at % 3, callsites),
    node: nodes,
    ...Object.fromEntries((["opening_bytes", "opening_count", "gap", "heap", "thread", "temporary", "oldest", "median", "peak_bytes", "at_peak_bytes"] as const).map((name) => [name, []])),
    sizes,
    ages: { count: [], bucket: [], blocks: [] },
    lifetimes: { count: [], bucket: [], blocks: [] },
  };
  const document: Document = {
    ...base,
    strings: [...each((at) => at, functions).map((at) => `module${at % 20}::function${at}`), ...each((at) => at, 20).map((at) => `/usr/lib/libmodule${at}.so`)],
    functions: { name: each((at) => at, functions), short: each((at) => at, functions), module: each((at) => functions + (at % 20) + 1, functions), kind: [] },
    frames: { function: each((at) => at, functions), file: [], line: [], inlined: [], offset: [] },
    nodes: { back, frame },
    targets: [{ ...target, callsites: columns, history: { ...target.history, changes: { ...target.history.changes, count: [], point: [] } } }],
  };
  return new Profile(document);
}

/** Documents for tests: the goldens of the Rust tests, which are what heapbpf embeds. */

import { readFileSync } from "node:fs";
import type { Document } from "../src/data/document.ts";
import { Profile } from "../src/data/profile.ts";

export function golden(name: "exact" | "sampled" | "mixed" | "empty"): Document {
  return JSON.parse(readFileSync(`../profiler/crates/report/src/testdata/html/${name}.json`, "utf8")) as Document;
}

export function profile(name: "exact" | "sampled" | "mixed" | "empty"): Profile {
  return new Profile(golden(name));
}

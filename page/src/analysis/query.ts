/** What users type to find functions: words, or a regular expression between slashes. */

import { at } from "../data/columns.ts";
import type { Shown } from "../data/amounts.ts";
import type { Profile } from "../data/profile.ts";

export type Matcher = (text: string) => boolean;

/** A matcher; null for no text; or why the text is not valid. */
export type Query = { readonly matches: Matcher | null } | { readonly error: string };

/** Searches: every word must occur, in any order and case. `/…/` is a regular expression, `/…/i` ignores case. */
export function parseSearch(text: string): Query {
  const trimmed = text.trim();
  const expression = /^\/(.+)\/(i?)$/s.exec(trimmed);
  if (expression !== null) {
    return parseExpression(expression[1] ?? "", expression[2] ?? "");
  }
  const words = trimmed.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) {
    return { matches: null };
  }
  return {
    matches: (name) => {
      const lower = name.toLowerCase();
      return words.every((word) => lower.includes(word));
    },
  };
}

/** Filters: a regular expression, as in pprof. */
export function parseFilter(text: string): Query {
  const trimmed = text.trim();
  return trimmed === "" ? { matches: null } : parseExpression(trimmed, "");
}

/** Options at the start, as in pprof: `(?i)` ignores case. */
function parseExpression(expression: string, option: string): Query {
  const options = /^(?:\(\?[ims]+\))*/.exec(expression)?.[0] ?? "";
  const source = expression.slice(options.length);
  const flags = [...new Set(option + options.replace(/[(?)]/g, ""))].join("");
  try {
    const expression = new RegExp(source, `${flags}u`);
    return { matches: (name) => expression.test(name) };
  } catch {
    // Unicode mode refuses escapes that are harmless, such as `\-`.
    try {
      const expression = new RegExp(source, flags);
      return { matches: (name) => expression.test(name) };
    } catch (error) {
      return { error: `not a regular expression: ${error instanceof Error ? error.message : String(error)}` };
    }
  }
}

/** 1 for each frame whose function, source file or module matches: what pprof's filters compare. Frames of a function can be in several files. */
export function matchingFrames(profile: Profile, matches: Matcher): Uint8Array {
  const { functions, frames } = profile.document;
  // Of strings: 1 for a match, 2 for none, 0 for not compared yet.
  const known = new Uint8Array(profile.document.strings.length);
  const matchesString = (number: number): boolean => {
    if (number < 0) {
      return false;
    }
    if (known[number] === 0) {
      known[number] = matches(profile.string(number)) ? 1 : 2;
    }
    return known[number] === 1;
  };
  const inFunctions = Uint8Array.from(functions.name, (name, key) => (matchesString(name) || matchesString(at(functions.module, key) - 1) ? 1 : 0));
  return Uint8Array.from(frames.function, (key, frame) => (inFunctions[key] === 1 || matchesString(at(frames.file, frame) - 1) ? 1 : 0));
}

/** 1 for each function with one of these frames. */
export function functionsOf(profile: Profile, frames: Uint8Array): Uint8Array {
  const found = new Uint8Array(profile.functionCount);
  frames.forEach((is, frame) => {
    if (is === 1) {
      found[profile.frameFunction(frame)] = 1;
    }
  });
  return found;
}

/** 1 for each frame of a function. */
export function framesOf(profile: Profile, key: number): Uint8Array {
  return Uint8Array.from(profile.document.frames.function, (one) => (one === key ? 1 : 0));
}

/** 1 for each callsite whose stack contains one of these frames. */
export function callsitesThrough(profile: Profile, frames: Uint8Array): Uint8Array {
  const inside = new Uint8Array(profile.nodeParent.length);
  for (let node = 1; node < inside.length; node += 1) {
    inside[node] = at(inside, at(profile.nodeParent, node)) | at(frames, at(profile.nodeFrame, node));
  }
  return Uint8Array.from(profile.callsites.node, (node) => at(inside, node));
}

export interface Filter {
  /** Only stacks with a matching frame. */
  readonly focus: Matcher | null;
  /** No stacks with a matching frame. */
  readonly ignore: Matcher | null;
  /** Stacks without the matching frames. */
  readonly hide: Matcher | null;
}

export interface Filtered {
  /** 1 for each callsite that is shown; null for all. */
  readonly kept: Uint8Array | null;
  /** 1 for each frame that is left out; null for none. */
  readonly hidden: Uint8Array | null;
}

export function applyFilter(profile: Profile, { focus, ignore, hide }: Filter): Filtered {
  const focused = focus === null ? null : callsitesThrough(profile, matchingFrames(profile, focus));
  const ignored = ignore === null ? null : callsitesThrough(profile, matchingFrames(profile, ignore));
  const kept = focused === null && ignored === null ? null : new Uint8Array(profile.count);
  kept?.forEach((_, callsite) => {
    kept[callsite] = (focused === null || focused[callsite] === 1) && ignored?.[callsite] !== 1 ? 1 : 0;
  });
  return { kept, hidden: hide === null ? null : matchingFrames(profile, hide) };
}

/** Amounts of the kept callsites; 0 for the others. */
export function keep(shown: Shown, kept: Uint8Array | null): Shown {
  if (kept === null) {
    return shown;
  }
  const only = (amounts: Float64Array): Float64Array => amounts.map((amount, callsite) => (kept[callsite] === 1 ? amount : 0));
  return { after: only(shown.after), before: shown.before === null ? null : only(shown.before) };
}

/** Amount of the callsites whose stacks contain a matching frame, and of all. */
export function matchShare(profile: Profile, matches: Matcher, amounts: Float64Array): { readonly matched: number; readonly whole: number } {
  const through = callsitesThrough(profile, matchingFrames(profile, matches));
  let [matched, whole] = [0, 0];
  amounts.forEach((amount, callsite) => {
    whole += amount;
    matched += through[callsite] === 1 ? amount : 0;
  });
  return { matched, whole };
}

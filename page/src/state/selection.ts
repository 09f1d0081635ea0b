/** What several panels show: computed once for a state. */

import type { Shown } from "../data/amounts.ts";
import { applyFilter, functionsOf, matchingFrames, parseFilter, parseSearch, type Matcher, type Query } from "../analysis/query.ts";
import type { Model } from "./model.ts";
import type { State } from "./state.ts";

/** Frames that match the search, functions with such frames, and how labels match. */
export interface Match {
  readonly frames: Uint8Array;
  readonly functions: Uint8Array;
  readonly matches: Matcher;
}

export type Filters = Pick<State, "target" | "heap" | "thread" | "focus" | "ignore" | "hide">;

export interface Filtering {
  /** 1 for each selected callsite. */
  readonly mask: Uint8Array;
  /** 1 for each hidden frame; null for none. */
  readonly hidden: Uint8Array | null;
}

export interface Selection extends Filtering {
  /** Amounts of the chosen view in the chosen period. */
  readonly shown: Shown;
  /** Null without a search. */
  readonly match: Match | null;
}

/** The matcher of a query; null for an empty one, and for one that is not valid, which then selects everything. */
function matcherOf(query: Query): Matcher | null {
  return "error" in query ? null : query.matches;
}

/** Why a search or filter is not valid; null if all are. */
export function queryError({ search, focus, ignore, hide }: State): string | null {
  for (const query of [parseSearch(search), parseFilter(focus), parseFilter(ignore), parseFilter(hide)]) {
    if ("error" in query) {
      return query.error;
    }
  }
  return null;
}

export function searched({ profile }: Model, search: string): Match | null {
  const matches = matcherOf(parseSearch(search));
  if (matches === null) {
    return null;
  }
  const frames = matchingFrames(profile, matches);
  return { frames, functions: functionsOf(profile, frames), matches };
}

export function filtered({ profile, amounts }: Model, { target, heap, thread, focus, ignore, hide }: Filters): Filtering {
  const scope = amounts.mask({ target, heap, thread });
  const filter = { focus: matcherOf(parseFilter(focus)), ignore: matcherOf(parseFilter(ignore)), hide: matcherOf(parseFilter(hide)) };
  const { kept, hidden } = applyFilter(profile, filter);
  return { mask: kept === null ? scope : scope.map((is, callsite) => is & (kept[callsite] ?? 0)), hidden };
}

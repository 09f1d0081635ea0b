/** What all components receive: the profile, the state, and what follows from both. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Model } from "../state/model.ts";
import type { Selection } from "../state/selection.ts";
import type { State, Update } from "../state/state.ts";
import type { Colours } from "../flame/colours.ts";

export interface PageValue extends Selection {
  readonly model: Model;
  readonly state: State;
  readonly update: Update;
  readonly colours: Colours;
}

export const PageContext = createContext<PageValue | null>(null);

export function usePage(): PageValue {
  const value = useContext(PageContext);
  if (value === null) {
    throw new Error("a component is outside of the page");
  }
  return value;
}

/** The reader's settings, for components. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";

export interface SettingsValue {
  readonly theme: "auto" | "light" | "dark";
  readonly setTheme: (theme: "auto" | "light" | "dark") => void;
  /** URL template of the editor; empty for none. */
  readonly editor: string;
  readonly setEditor: (editor: string) => void;
}

export const SettingsContext = createContext<SettingsValue>({ theme: "auto", setTheme: () => undefined, editor: "", setEditor: () => undefined });

export function useSettings(): SettingsValue {
  return useContext(SettingsContext);
}

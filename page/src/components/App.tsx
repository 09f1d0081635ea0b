/** The page: state in, panels out. */

import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { matchShare } from "../analysis/query.ts";
import type { LiveSource } from "../data/live.ts";
import { Colours } from "../flame/colours.ts";
import { carriedState } from "../state/carry.ts";
import { fromHash, toHash } from "../state/hash.ts";
import type { Model } from "../state/model.ts";
import { filtered, queryError, searched } from "../state/selection.ts";
import { changed, type State, type Update } from "../state/state.ts";
import { FlamePanel } from "./flame/FlamePanel.tsx";
import { useHeld } from "./held.ts";
import { Folded, Header, Views } from "./Header.tsx";
import { Health } from "./health/Health.tsx";
import { Leaks } from "./Leaks.tsx";
import { PageContext, type PageValue } from "./page.ts";
import { useStoredSettings } from "./Settings.tsx";
import { SettingsContext } from "./settings-context.ts";
import { Tables } from "./tables/Tables.tsx";
import { Timeline } from "./timeline/Timeline.tsx";
import { Toolbar } from "./Toolbar.tsx";

/** Browsers limit how often an address may change. */
const HASH_MILLIS = 150;

/** Whether the page is dark: the theme's choice, or the system's. */
function useDark(theme: string): boolean {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [isSystemDark, setSystemDark] = useState(query.matches);
  useEffect(() => {
    const listen = (): void => { setSystemDark(query.matches); };
    query.addEventListener("change", listen);
    return () => { query.removeEventListener("change", listen); };
  }, [query]);
  return theme === "dark" || (theme === "auto" && isSystemDark);
}

/** The state, which starts as the address says, and which the address follows. */
function usePageState(model: Model, isLive: boolean): [State, Update] {
  const { points, initial, limits } = model;
  const [state, setState] = useHeld<Model, State>(model, (before) =>
    before === null ? fromHash(location.hash, initial, points, limits) : carriedState(before.value, before.owner, model));
  const written = useRef(location.hash.replace(/^#/, ""));
  const update = useCallback<Update>((change) => { setState((before) => changed(before, change, points)); }, [points, setState]);
  useEffect(() => {
    const hash = toHash(state, initial, points, isLive);
    const timer = setTimeout(() => {
      if (hash !== written.current) {
        written.current = hash;
        history.replaceState(null, "", `#${hash}`);
      }
    }, HASH_MILLIS);
    return () => { clearTimeout(timer); };
  }, [state, initial, points, isLive]);
  useEffect(() => {
    const listen = (): void => {
      const hash = location.hash.replace(/^#/, "");
      if (hash !== written.current) {
        written.current = hash;
        setState(() => fromHash(hash, initial, points, limits));
      }
    };
    addEventListener("hashchange", listen);
    return () => { removeEventListener("hashchange", listen); };
  }, [initial, limits, points, setState]);
  return [state, update];
}

function usePageValue(model: Model, isDark: boolean, isLive: boolean): PageValue {
  const [state, update] = usePageState(model, isLive);
  const { target, heap, thread, focus, ignore, hide, view, period, base, atPeak, search } = state;
  const colours = useMemo(() => new Colours(isDark), [isDark]);
  const { mask, hidden } = useMemo(() => filtered(model, { target, heap, thread, focus, ignore, hide }), [model, target, heap, thread, focus, ignore, hide]);
  const shown = useMemo(() => model.amounts.chosen(mask, { view, period, base, atPeak }), [model, mask, view, period, base, atPeak]);
  const match = useMemo(() => searched(model, search), [model, search]);
  return { model, state, update, colours, mask, hidden, shown, match };
}

/** `/` focuses the search. */
function useSearchKey(): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      const isTyping = event.target instanceof Element && event.target.closest("input, select, textarea") !== null;
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        document.getElementById("search")?.focus();
      }
    };
    document.addEventListener("keydown", listen);
    return () => { document.removeEventListener("keydown", listen); };
  }, []);
}

export interface AppProps {
  readonly model: Model;
  /** Null for a finished profile. */
  readonly live: LiveSource | null;
}

export function App({ model, live }: AppProps): JSX.Element {
  const settings = useStoredSettings();
  const isDark = useDark(settings.theme);
  const page = usePageValue(model, isDark, live !== null);
  useSearchKey();
  const { match, shown, state } = page;
  const share = useMemo(() => {
    if (match === null) {
      return null;
    }
    return matchShare(model.profile, match.matches, shown.after);
  }, [model, match, shown]);
  const { unreachable } = model.profile.header;
  return (
    <SettingsContext.Provider value={settings}>
      <PageContext.Provider value={page}>
        <a class="skip" href="#flame" onClick={(event) => { event.preventDefault(); document.getElementById("flame-scroller")?.focus(); }}>
          Skip to the flame graph
        </a>
        <Header live={live} />
        <Toolbar share={share} error={queryError(state)} />
        <main>
          <Views />
          <Folded />
          {unreachable ? null : <Timeline />}
          <FlamePanel />
          <Tables />
          {unreachable ? null : <Leaks />}
          <Health />
        </main>
      </PageContext.Provider>
    </SettingsContext.Provider>
  );
}


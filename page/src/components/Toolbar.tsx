/** The bar that stays visible: parts of the page, what is selected, search and filters. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Profile } from "../data/profile.ts";
import { amountText, cut, plural, shareText } from "../text.ts";
import { Button, Chooser, type Option } from "./names.tsx";
import { usePage } from "./page.ts";

const GROUPS: readonly Option[] = [
  ["", "nothing"],
  ["thread", "thread"],
  ["command", "command"],
  ["cgroup", "control group"],
  ["heap", "heap"],
];

function heapNames(profile: Profile): string[] {
  return [...new Set(profile.targets.flatMap(({ heaps }) => heaps.map(({ name }) => name)))];
}

function threadNames(profile: Profile): string[] {
  const known = profile.targets.flatMap(({ threads }) => threads.map(({ name, tid }) => `${name ?? "thread"} (${tid})`));
  return [...new Set(known)];
}

/** What stacks can be grouped by in this profile, and the current grouping. */
function groupings(profile: Profile, current: string): Option[] {
  const has: Readonly<Record<string, boolean>> = {
    "": true,
    thread: profile.hasThreads,
    command: profile.targets.length > 1,
    cgroup: profile.targets.some(({ cgroup }) => cgroup !== null),
    heap: heapNames(profile).length > 1,
  };
  const known = GROUPS.filter(([group]) => has[group] === true || group === current);
  return known.some(([group]) => group === current) ? known : [...known, [current, current.split(",").join(", then ")]];
}

/** Process, heap, thread and grouping: whatever there is a choice of. */
function Scope(): JSX.Element {
  const { model, state, update } = usePage();
  const { profile } = model;
  const { targets } = profile;
  const ending = (at: number): string => (targets[at]?.exited === true ? ", exited" : targets[at]?.replaced === true ? ", replaced" : "");
  const processes = targets.map(({ name }, at): Option => [String(at), cut(`${name}${ending(at)}`, 60)]);
  const heaps = heapNames(profile);
  const threads = threadNames(profile);
  const groups = groupings(profile, state.groups.join(","));
  return (
    <div id="controls">
      <Chooser
        id="target"
        label="Process"
        options={[["-1", `all ${plural(targets.length, "process")}`], ...processes]}
        value={String(state.target)}
        isHidden={targets.length < 2}
        onChoose={(value) => { update({ target: Number(value) }); }}
      />
      <Chooser
        id="heap"
        label="Heap"
        options={[["", "all heaps"], ...heaps.map((name): Option => [name, cut(name, 60)])]}
        value={state.heap}
        isHidden={heaps.length < 2}
        onChoose={(heap) => { update({ heap }); }}
      />
      <Chooser
        id="thread"
        label="Thread"
        options={[["", `all ${plural(threads.length, "thread")}`], ...threads.map((name): Option => [name, cut(name, 60)])]}
        value={state.thread}
        isHidden={threads.length < 2}
        onChoose={(thread) => { update({ thread }); }}
      />
      <Chooser
        id="group"
        label="Group by"
        options={groups}
        value={state.groups.join(",")}
        isHidden={groups.length < 2}
        onChoose={(value) => { update({ groups: value === "" ? [] : value.split(",") }); }}
      />
    </div>
  );
}

const FILTERS = [
  ["focus", "Focus", "only stacks with a matching frame: its function, file or module"],
  ["ignore", "Ignore", "no stacks with a matching frame"],
  ["hide", "Hide", "removes matching frames from stacks"],
] as const;

function Filters(): JSX.Element {
  const { state, update } = usePage();
  return (
    <div id="filters" class="tools" role="group" aria-label="Filters">
      {FILTERS.map(([name, label, meaning]) => (
        <label key={name}>
          {label}{" "}
          <input
            type="search"
            id={`filter-${name}`}
            value={state[name]}
            placeholder={meaning}
            title={meaning}
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => { update({ [name]: event.currentTarget.value }); }}
          />
        </label>
      ))}
      <Button id="filters-clear" disabled={FILTERS.every(([name]) => state[name] === "")} onClick={() => { update({ focus: "", ignore: "", hide: "" }); }}>
        Clear
      </Button>
    </div>
  );
}

const PARTS: readonly Option[] = [
  ["timeline", "Timeline"],
  ["flame", "Flame graph"],
  ["tables", "Tables"],
  ["leaks", "Leak candidates"],
  ["health", "Health"],
];

/** Scrolls to a part and focuses it, without changing the address, whose fragment is the state. */
export function goTo(id: string): void {
  const part = document.getElementById(id);
  part?.scrollIntoView();
  part?.querySelector<HTMLElement>("h2")?.focus({ preventScroll: true });
}

export interface ToolbarProps {
  /** The amount of the stacks that match the search, and of all; null without a search. */
  readonly share: { readonly matched: number; readonly whole: number } | null;
  /** Why the search or a filter is not valid. */
  readonly error: string | null;
}

export function Toolbar({ share, error }: ToolbarProps): JSX.Element {
  const { model, state, update } = usePage();
  const isFiltered = FILTERS.some(([name]) => state[name] !== "") || state.target >= 0 || state.heap !== "" || state.thread !== "";
  const [isOpen, setOpen] = useState(FILTERS.some(([name]) => state[name] !== ""));
  const { unreachable } = model.profile.header;
  const parts = PARTS.filter(([id]) => !unreachable || (id !== "timeline" && id !== "leaks"));
  return (
    <div id="toolbar" role="region" aria-label="Navigation, selection and search" class={isOpen ? "open" : ""}>
      <div class="row">
        <nav aria-label="Parts of this page">
          {parts.map(([id, title]) => (
            <a key={id} href={`#${id}`} onClick={(event) => { event.preventDefault(); goTo(id); }}>
              {title}
            </a>
          ))}
        </nav>
        <Scope />
        <label class="search">
          <span class="visually-hidden">Search</span>
          <input
            type="search"
            id="search"
            value={state.search}
            placeholder="Search functions, modules, files ( / )"
            title="Several words, each a text or a regular expression"
            autocomplete="off"
            spellcheck={false}
            onInput={(event) => { update({ search: event.currentTarget.value }); }}
          />
        </label>
        <Button id="filters-toggle" pressed={isOpen} onClick={() => { setOpen(!isOpen); }}>
          Filters{isFiltered ? " •" : ""}
        </Button>
        <output id="matched" for="search">
          {share === null ? "" : `${shareText(share.matched, share.whole)} (${amountText(state.view, share.matched)})`}
        </output>
        <span id="query-error" class="warning" role="status">
          {error ?? ""}
        </span>
      </div>
      {isOpen ? <Filters /> : null}
    </div>
  );
}

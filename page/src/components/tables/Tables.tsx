/** The tables, one at a time, in tabs. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { histogram } from "../../analysis/histogram.ts";
import { hasObjects } from "../../analysis/objects.ts";
import { sandwich } from "../../analysis/rows.ts";
import { Tree } from "../../analysis/tree.ts";
import { at } from "../../data/columns.ts";
import { HISTOGRAMS } from "../../data/document.ts";
import { TABS, type Tab } from "../../state/state.ts";
import { amountText, plural, shareText } from "../../text.ts";
import { FunctionButtons } from "../flame/FlamePanel.tsx";
import { Chooser, WholeName, type Option } from "../names.tsx";
import { usePage } from "../page.ts";
import { Callsites } from "./Callsites.tsx";
import { Functions, Modules } from "./Functions.tsx";
import { Histogram } from "./Histogram.tsx";
import { TreeTable } from "./TreeTable.tsx";
import { Types } from "./Types.tsx";
import { functionSums } from "../../analysis/functions.ts";
import { cut } from "../../text.ts";

const TITLES: Readonly<Record<Tab, string>> = {
  callsites: "Callsites",
  functions: "Functions",
  "top-down": "Top-down",
  "bottom-up": "Bottom-up",
  callers: "Callers and callees",
  modules: "Modules",
  sizes: "Block sizes",
  types: "Types",
};

const PANELS: Readonly<Record<Tab, () => JSX.Element>> = {
  callsites: Callsites,
  functions: Functions,
  "top-down": () => <WholeTree isReversed={false} />,
  "bottom-up": () => <WholeTree isReversed={true} />,
  callers: Callers,
  modules: Modules,
  sizes: Sizes,
  types: Types,
};

export function Tables(): JSX.Element {
  const { model, state, update } = usePage();
  // Only programs with objects that were counted have types.
  const tabs: readonly Tab[] = hasObjects(model.profile.targets) ? TABS : TABS.filter((tab) => tab !== "types");
  const current = tabs.includes(state.tab) ? state.tab : "callsites";
  const Panel = PANELS[current];
  const move = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = tabs[(tabs.indexOf(current) + by + tabs.length) % tabs.length];
    if (by !== 0 && next !== undefined) {
      event.preventDefault();
      update({ tab: next });
      document.getElementById(`tab-${next}`)?.focus();
    }
  };
  return (
    <section id="tables" aria-labelledby="tables-title">
      <h2 id="tables-title" class="visually-hidden" tabIndex={-1}>
        Tables
      </h2>
      <div role="tablist" aria-labelledby="tables-title" class="tabs">
        {tabs.map((tab) => (
          <button
            key={tab}
            type="button"
            role="tab"
            id={`tab-${tab}`}
            aria-selected={tab === current}
            aria-controls="tables-panel"
            tabIndex={tab === current ? 0 : -1}
            onClick={() => { update({ tab }); }}
            onKeyDown={move}
          >
            {TITLES[tab]}
          </button>
        ))}
      </div>
      <div id="tables-panel" role="tabpanel" aria-labelledby={`tab-${current}`}>
        <Panel key={current} />
      </div>
    </section>
  );
}

function WholeTree({ isReversed }: { isReversed: boolean }): JSX.Element {
  const { model, state, shown, hidden } = usePage();
  const { groups, hide } = state;
  const shape = useMemo(() => model.shape({ groups, isReversed, root: null, hidden }, hide), [model, groups, isReversed, hidden, hide]);
  const tree = useMemo(() => new Tree(shape, shown), [shape, shown]);
  const id = isReversed ? "bottom-up" : "top-down";
  return <TreeTable id={id} label={TITLES[id]} tree={tree} root={0} nameTitle={isReversed ? "Allocating function, then its callers" : "Function, then its callees"} hasSelf={!isReversed} empty="There are no stacks in the selection." />;
}

/** Most functions in the list to choose from. */
const CHOICES_MAX = 200;

/** Callers of a function above, its callees below. */
function Callers(): JSX.Element {
  const { model, state, update, shown, hidden } = usePage();
  const { profile } = model;
  const sums = useMemo(() => functionSums(profile, shown.after, hidden), [profile, shown, hidden]);
  const largest = useMemo(() => {
    const keys = Array.from(sums.inclusive.keys()).filter((key) => at(sums.inclusive, key) > 0);
    return keys.sort((one, other) => at(sums.self, other) - at(sums.self, one) || at(sums.inclusive, other) - at(sums.inclusive, one)).slice(0, CHOICES_MAX);
  }, [sums]);
  const key = state.selected ?? largest[0];
  const trees = useMemo(() => (key === undefined ? null : sandwich(profile, shown, key, hidden)), [profile, shown, key, hidden]);
  if (key === undefined || trees === null) {
    return <p class="quiet">There are no functions in the selection.</p>;
  }
  const keys = largest.includes(key) ? largest : [key, ...largest];
  const [callers, callees] = [trees.callers.children(0)[0], trees.callees.children(0)[0]];
  return (
    <>
      <div class="tools">
        <Chooser
          id="selected"
          label="Function"
          options={keys.map((one): Option => [String(one), cut(profile.functionShort(one), 90)])}
          value={String(key)}
          onChoose={(value) => { update({ selected: Number(value) }); }}
        />
        <span class="subject">
          {amountText(state.view, at(sums.self, key))} self, {amountText(state.view, at(sums.inclusive, key))} inclusive (
          {shareText(at(sums.inclusive, key), shown.after.reduce((all, amount) => all + amount, 0))})
        </span>
      </div>
      <p class="whole-name">
        <WholeName name={profile.functionName(key)} />
      </p>
      <div class="buttons">
        <FunctionButtons function={key} />
      </div>
      <h3>Callers</h3>
      {callers === undefined ? <None /> : <TreeTable id="callers" label="Callers" tree={trees.callers} root={callers} nameTitle="Caller, then its callers" hasSelf={false} empty="Nothing calls it: the stacks start here." />}
      <h3>Callees</h3>
      {callees === undefined ? <None /> : <TreeTable id="callees" label="Callees" tree={trees.callees} root={callees} nameTitle="Callee, then its callees" hasSelf={true} empty="It calls no other function: it allocates itself." />}
    </>
  );
}

function None(): JSX.Element {
  return <p class="quiet">It is in no stack of the selection.</p>;
}

/** Histograms of the whole selection. */
function Sizes(): JSX.Element {
  const { model, mask } = usePage();
  const { profile, points } = model;
  const all = useMemo(() => HISTOGRAMS.map((name) => ({ name, buckets: histogram(profile, name, mask) })), [profile, mask]);
  const count = mask.reduce((sum, one) => sum + one, 0);
  return (
    <>
      <p class="quiet">
        Of {plural(count, "callsite")}
        {points.isWhole ? ", over the whole recording." : "."}
      </p>
      <div class="histograms">
        {all.map(({ name, buckets }) => (
          <Histogram key={name} name={name} buckets={buckets} />
        ))}
      </div>
    </>
  );
}

/** Tables of functions and of modules: own and inclusive amounts. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { functionSums, moduleSums, modules, type Sums } from "../../analysis/functions.ts";
import { at, sum } from "../../data/columns.ts";
import type { View } from "../../data/document.ts";
import { amountText, baseName, changeText, cut, plural, shareText } from "../../text.ts";
import { FunctionButtons } from "../flame/FlamePanel.tsx";
import { usePage } from "../page.ts";
import { WholeName } from "../names.tsx";
import { DataTable, type NumberColumn } from "./DataTable.tsx";

interface Compared {
  readonly after: Sums;
  readonly before: Sums | null;
}

function columnsOf(view: View, whole: number, { after, before }: Compared): NumberColumn[] {
  const amount = (value: number): string => amountText(view, value);
  const columns: NumberColumn[] = [
    { id: "self", label: "Self", title: "Of the stacks that end in it: what it allocates itself", value: (row) => at(after.self, row), text: amount },
    { id: "self-share", label: "Self %", value: (row) => at(after.self, row), text: (value) => shareText(value, whole), wide: true },
    { id: "inclusive", label: "Inclusive", title: "Of the stacks that contain it: with all that it calls", value: (row) => at(after.inclusive, row), text: amount },
    { id: "inclusive-share", label: "Incl. %", value: (row) => at(after.inclusive, row), text: (value) => shareText(value, whole), wide: true },
  ];
  if (before !== null) {
    const change = (value: number): string => changeText(view, value);
    columns.unshift(
      { id: "self-growth", label: "Self growth", value: (row) => at(after.self, row) - at(before.self, row), text: change, isChange: true },
      { id: "inclusive-growth", label: "Growth", value: (row) => at(after.inclusive, row) - at(before.inclusive, row), text: change, isChange: true },
    );
  }
  return columns;
}

function isThere({ after, before }: Compared, row: number): boolean {
  return at(after.inclusive, row) > 0 || at(before?.inclusive ?? [], row) > 0;
}

/** Rows with an amount: rows without are in none of the selected stacks. */
function rowsOf(size: number, compared: Compared, matches: (row: number) => boolean): number[] {
  return Array.from({ length: size }, (_, row) => row).filter((row) => isThere(compared, row) && matches(row));
}

interface SumsTableProps {
  readonly id: string;
  readonly noun: string;
  readonly compared: Compared;
  readonly rows: readonly number[];
  readonly name: (row: number) => JSX.Element;
  readonly details: ((row: number) => JSX.Element) | null;
  readonly open: readonly number[];
  readonly onToggle: (row: number) => void;
}

function SumsTable({ id, noun, compared, rows, name, details, open, onToggle }: SumsTableProps): JSX.Element {
  const { state, update, shown } = usePage();
  const { view } = state;
  const columns = useMemo(() => columnsOf(view, sum(shown.after), compared), [view, shown, compared]);
  return (
    <>
      <p class="tools">
        <span id={`${id}-count`} class="subject">
          {plural(rows.length, noun)}
        </span>
      </p>
      <DataTable
        {...{ id, columns, rows, name, details, open, onToggle }}
        label={id === "modules" ? "Modules" : "Functions"}
        sort={compared.before === null ? "self" : "self-growth"}
        nameTitle={id === "modules" ? "Module" : "Function"}
        empty={`No ${noun} in the selection matches.`}
        zero={{ is: (row) => !isThere(compared, row), text: "0 B", isShown: state.showsZeros, onShow: (showsZeros) => { update({ showsZeros }); } }}
      />
    </>
  );
}

export function Functions(): JSX.Element {
  const { model, state, update, shown, hidden, match } = usePage();
  const { profile } = model;
  const compared = useMemo((): Compared => {
    const of = (amounts: Float64Array): Sums => functionSums(profile, amounts, hidden);
    return { after: of(shown.after), before: shown.before === null ? null : of(shown.before) };
  }, [profile, shown, hidden]);
  const rows = useMemo(() => rowsOf(profile.functionCount, compared, (row) => match?.functions[row] !== 0), [profile, compared, match]);
  const toggle = (row: number): void => { update({ selected: state.selected === row ? null : row }); };
  return (
    <SumsTable
      id="functions"
      noun="function"
      {...{ compared, rows }}
      name={(row) => <FunctionName function={row} />}
      details={(row) => (
        <div class="function">
          <p class="whole-name">
            <WholeName name={profile.functionName(row)} />
          </p>
          <div class="buttons">
            <FunctionButtons function={row} />
          </div>
        </div>
      )}
      open={state.selected === null ? [] : [state.selected]}
      onToggle={toggle}
    />
  );
}

/** A function's short name and its module. */
export function FunctionName({ function: key }: { function: number }): JSX.Element {
  const { profile } = usePage().model;
  const module = profile.functionModule(key);
  return (
    <>
      <span class="chain" title={cut(profile.functionName(key), 1000)}>
        {cut(profile.functionShort(key), 200)}
      </span>
      {module === "" ? null : <span class="quiet place"> {cut(baseName(module), 60)}</span>}
    </>
  );
}

export function Modules(): JSX.Element {
  const { model, shown, hidden, match, update } = usePage();
  const { profile } = model;
  const all = useMemo(() => modules(profile), [profile]);
  const compared = useMemo((): Compared => {
    const of = (amounts: Float64Array): Sums => moduleSums(profile, amounts, all, hidden);
    return { after: of(shown.after), before: shown.before === null ? null : of(shown.before) };
  }, [profile, all, shown, hidden]);
  const rows = useMemo(() => {
    const matching = new Uint8Array(all.names.length);
    all.ofFunction.forEach((module, key) => {
      if (module >= 0 && match?.functions[key] !== 0) {
        matching[module] = 1;
      }
    });
    return rowsOf(all.names.length, compared, (row) => matching[row] === 1);
  }, [all, compared, match]);
  // A click searches the module.
  const search = (row: number): void => { update({ search: `/${(all.names[row] ?? "").replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")}$/`, tab: "functions" }); };
  return (
    <SumsTable
      id="modules"
      noun="module"
      {...{ compared, rows }}
      name={(row) => <span class="chain">{cut(all.names[row] ?? "", 200)}</span>}
      details={null}
      open={[]}
      onToggle={search}
    />
  );
}

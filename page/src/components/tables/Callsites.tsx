/** Table of callsites. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { PeriodAmounts } from "../../data/amounts.ts";
import { at, sum } from "../../data/columns.ts";
import { field } from "../../data/document.ts";
import type { Period } from "../../data/points.ts";
import { callsitesThrough, framesOf } from "../../analysis/query.ts";
import { changeText, countText, cut, durationText, plural, shareText, sizeText } from "../../text.ts";
import { Button } from "../names.tsx";
import { usePage, type PageValue } from "../page.ts";
import { CallsiteDetails } from "./CallsiteDetails.tsx";
import { Chain } from "./Chain.tsx";
import { DataTable, type NumberColumn } from "./DataTable.tsx";

function known(text: (value: number) => string): (value: number) => string {
  return (value) => (value < 0 ? "–" : text(value));
}

function ratio(part: number, whole: number): number {
  return whole > 0 ? part / whole : -1;
}

/** Columns of the period's amounts. */
function amountColumns(now: PeriodAmounts, isLive: boolean, unreachable: boolean): NumberColumn[] {
  const of = isLive ? "live" : "alloc";
  const live: NumberColumn[] = [
    { id: "live_bytes", label: unreachable ? "Leaked" : "Live", value: (row) => at(now.live_bytes, row), text: sizeText, wide: !isLive },
    { id: "live_count", label: "Blocks", value: (row) => at(now.live_count, row), text: countText, wide: true },
  ];
  const allocated: NumberColumn[] = [
    { id: "alloc_bytes", label: "Allocated", value: (row) => at(now.alloc_bytes, row), text: sizeText, wide: isLive },
    { id: "alloc_count", label: "Alloc. blocks", value: (row) => at(now.alloc_count, row), text: countText, wide: true, wider: true },
    { id: "free_bytes", label: "Freed", value: (row) => at(now.free_bytes, row), text: sizeText, wide: true, wider: true },
  ];
  const mean = (row: number): number => ratio(at(now[`${of}_bytes`], row), at(now[`${of}_count`], row));
  return [...live, ...(unreachable ? [] : allocated), { id: "mean", label: "Mean size", value: mean, text: known(sizeText), wide: true }];
}

/** Columns of the whole profile, as far as it has their data. */
function detailColumns({ callsites }: PageValue["model"]["profile"]): NumberColumn[] {
  const columns: NumberColumn[] = [];
  if (callsites.oldest.some((age) => age >= 0)) {
    columns.push(
      { id: "oldest", label: "Oldest", title: "Age of the oldest live block", value: (row) => at(callsites.oldest, row), text: known(durationText), wide: true },
      { id: "median", label: "Median", title: "Median age of live blocks", value: (row) => at(callsites.median, row), text: known(durationText), wide: true },
    );
  }
  if (callsites.temporary.some((count) => count > 0)) {
    const temporary = (row: number): number => (at(callsites.temporary, row) > 0 ? ratio(at(callsites.temporary, row) - 1, at(callsites.alloc_count, row)) : -1);
    const title = "Blocks that were freed before the same thread made the next one";
    columns.push({ id: "temporary", label: "Temp.", title, value: temporary, text: known((share) => shareText(share, 1)), wide: true });
  }
  return columns;
}

function columnsOf({ model, state, shown }: Pick<PageValue, "model" | "state" | "shown">): NumberColumn[] {
  const { profile, amounts, points } = model;
  const now = amounts.during(state.atPeak ? points.all() : state.period);
  const whole = sum(shown.after);
  const { before } = shown;
  const first: NumberColumn[] = [];
  if (before !== null) {
    first.push({ id: "growth", label: "Growth", value: (row) => at(shown.after, row) - at(before, row), text: (change) => changeText(state.view, change), isChange: true });
  }
  if (state.atPeak) {
    first.push({ id: "peak", label: "At the peak", value: (row) => at(shown.after, row), text: sizeText });
  }
  return [
    ...first,
    ...amountColumns(now, state.view.startsWith("live"), profile.header.unreachable),
    ...detailColumns(profile),
    { id: "share", label: "Share", value: (row) => at(shown.after, row), text: (amount) => shareText(amount, whole) },
  ];
}

type RowOptions = Pick<PageValue, "model" | "mask" | "match" | "shown"> & { period: Period; through: number | null };

/** Callsites that are selected, match the search, and have an amount in any view. */
function rowsOf({ model, period, through: key, mask, match, shown }: RowOptions): number[] {
  const { profile, amounts } = model;
  const now = amounts.during(period);
  const found = match === null ? null : callsitesThrough(profile, match.frames);
  const through = key === null ? null : callsitesThrough(profile, framesOf(profile, key));
  const rows: number[] = [];
  for (let callsite = 0; callsite < profile.count; callsite += 1) {
    const isThere = at(now.live_bytes, callsite) > 0 || at(now.alloc_count, callsite) > 0 || at(now.free_count, callsite) > 0 || at(shown.after, callsite) > 0 || at(shown.before ?? [], callsite) > 0;
    if (mask[callsite] === 1 && isThere && found?.[callsite] !== 0 && through?.[callsite] !== 0) {
      rows.push(callsite);
    }
  }
  return rows;
}

export function Callsites(): JSX.Element {
  const { model, state, update, mask, match, shown } = usePage();
  const { profile, points } = model;
  const { period, through } = state;
  const columns = useMemo(() => columnsOf({ model, state, shown }), [model, state, shown]);
  const rows = useMemo(() => rowsOf({ model, period, through, mask, match, shown }), [model, period, through, mask, match, shown]);
  const isFiltered = state.through !== null || match !== null;
  const sort = state.atPeak ? "peak" : state.base === null ? field(state.view) : "growth";
  const toggle = (row: number): void => {
    update({ open: state.open.includes(row) ? state.open.filter((one) => one !== row) : [...state.open, row] });
  };
  const isZero = (row: number): boolean => !(at(shown.after, row) > 0) && !(at(shown.before ?? [], row) > 0) && !state.open.includes(row);
  return (
    <>
      <p class="tools">
        <span id="table-count" class="subject">
          {plural(rows.length, "callsite")}
        </span>
        {state.through === null ? null : (
          <Button id="table-function" onClick={() => { update({ through: null }); }}>
            through {cut(profile.functionName(state.through), 60)} ×
          </Button>
        )}
        {points.isAll(state.period) ? null : (
          <span class="quiet">Ages, temporary blocks and row details are of the whole profile, not of the selected window.</span>
        )}
      </p>
      <DataTable
        id="table"
        label="Callsites"
        columns={columns}
        rows={rows}
        sort={sort}
        nameTitle="Where"
        name={(row) => (
          <>
            <Chain profile={profile} callsite={row} />
            {profile.targets.length > 1 && state.target < 0 ? <span class="quiet"> {cut(profile.targetOf(row).name, 40)}</span> : null}
          </>
        )}
        details={(row) => <CallsiteDetails callsite={row} />}
        open={state.open}
        onToggle={toggle}
        empty={isFiltered ? "No callsite in the selection matches." : "The selection has no callsites."}
        zero={{ is: isZero, text: state.view.endsWith("bytes") ? "0 B" : "0 blocks", isShown: state.showsZeros, onShow: (showsZeros) => { update({ showsZeros }); } }}
      />
    </>
  );
}

/** The heap over time, the selected period, and what memory was used for. */

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { curveOf, peakOf, timeRange } from "../../analysis/curve.ts";
import type { PeriodTotals } from "../../data/amounts.ts";
import type { Period } from "../../data/points.ts";
import { comparison } from "../../state/state.ts";
import { capital, changeText, cut, plural, sizeText, viewTitle } from "../../text.ts";
import { Button, Chooser, type Option } from "../names.tsx";
import { usePage } from "../page.ts";
import { Chart } from "./Chart.tsx";
import { Memory } from "./Memory.tsx";

const NO_TIMELINE =
  "There is no timeline: this profile has no history, because it was read from a report (such as JSON), or nothing happened while the history was kept. " +
  "A page that is written by the recording itself, or converted from a .heapbpf file, has one.";
const NO_WINDOWS =
  "No window can be selected: this profile has no history of callsites, because it was read from a report (such as JSON), or nothing happened while the history was kept.";

export function Timeline(): JSX.Element {
  const { model, state, update, mask, colours } = usePage();
  const { profile, points } = model;
  const [value, setValue] = useState("");
  const [picksBase, setPicksBase] = useState(false);
  const isPart = state.heap !== "" || state.thread !== "" || state.focus !== "" || state.ignore !== "";
  const curve = useMemo(
    () => curveOf(profile, points, state.view, state.target, isPart ? mask : null),
    [profile, points, state.view, state.target, isPart, mask],
  );
  const range = useMemo(() => timeRange(profile, points, curve), [profile, points, curve]);
  const peak = useMemo(() => peakOf(profile, state.view, state.target, isPart, curve), [profile, state.view, state.target, isPart, curve]);
  const pick = (period: Period): void => { update(picksBase && state.base !== null ? { base: period } : { period }); };
  const of = state.heap === "" ? "" : `, heap ${cut(state.heap, 40)}`;
  return (
    <section id="timeline" aria-labelledby="timeline-title">
      <div class="title">
        <h2 id="timeline-title" tabIndex={-1}>
          {capital(viewTitle(state.view, false))} over time{of}
        </h2>
        {points.any ? <PeriodTools picksBase={picksBase} setPicksBase={setPicksBase} /> : null}
        <p id="timeline-value" class="value" aria-hidden="true">
          {value}
        </p>
      </div>
      {profile.hasHistory ? (
        <Chart {...{ curve, range, peak, points, view: state.view, period: state.period, base: state.base, isDark: colours.isDark, onPick: pick, onValue: setValue }} />
      ) : (
        <p class="quiet">{NO_TIMELINE}</p>
      )}
      {profile.hasHistory && !points.any ? <p class="quiet">{NO_WINDOWS}</p> : null}
      {points.any ? <PeriodStatus /> : null}
      <Memory range={range} />
    </section>
  );
}

/** Selects the previous or next window. */
function stepped(boundaries: readonly number[], to: number, isAll: boolean, by: number): Period {
  const index = isAll ? (by > 0 ? 0 : boundaries.length - 1) : boundaries.findIndex((point) => point >= to) + by;
  const end = Math.min(Math.max(index, 1), boundaries.length - 1);
  return { from: boundaries[end - 1] ?? 0, to: boundaries[end] ?? 0 };
}

/** The lists and buttons that choose a period; by keyboard what the chart does by mouse. */
function PeriodTools({ picksBase, setPicksBase }: { picksBase: boolean; setPicksBase: (picksBase: boolean) => void }): JSX.Element {
  const { model, state, update } = usePage();
  const { points } = model;
  const compares = state.base !== null;
  const isAll = points.isAll(state.period);
  const step = (by: number): void => { update({ period: stepped(points.boundaries(), state.period.to, isAll, by) }); };
  const hasPeak = points.isWhole && model.profile.callsites.at_peak_bytes.some((bytes) => bytes > 0);
  return (
    <div id="period" class="tools">
      <Button id="period-previous" label="Window before" onClick={() => { step(-1); }}>
        ◀
      </Button>
      <PeriodChoosers id="period" label="From" period={state.period} onChoose={(period) => { update({ period }); }} />
      <Button id="period-next" label="Window after" onClick={() => { step(1); }}>
        ▶
      </Button>
      <Button id="period-all" disabled={isAll && !state.atPeak} onClick={() => { update({ period: points.all(), atPeak: false }); }}>
        All
      </Button>
      {hasPeak ? (
        <Button id="peak" pressed={state.atPeak} title="What was live when the process had most live bytes" onClick={() => { update({ atPeak: !state.atPeak }); }}>
          Peak
        </Button>
      ) : null}
      <Button id="compare" pressed={compares} onClick={() => { setPicksBase(false); update(compares ? { base: null } : comparison(points, state.period)); }}>
        Compare
      </Button>
      {state.base === null ? null : (
        <>
          <PeriodChoosers id="base" label="with" period={state.base} onChoose={(base) => { update({ base }); }} />
          <fieldset class="tools" id="picks">
            <legend>The chart chooses</legend>
            <label>
              <input type="radio" name="picks" id="picks-period" checked={!picksBase} onChange={() => { setPicksBase(false); }} /> the period{" "}
              <i class="swatch period" />
            </label>
            <label>
              <input type="radio" name="picks" id="picks-base" checked={picksBase} onChange={() => { setPicksBase(true); }} /> what it is compared with{" "}
              <i class="swatch base" />
            </label>
          </fieldset>
        </>
      )}
    </div>
  );
}

interface PeriodChoosersProps {
  id: string;
  label: string;
  period: Period;
  onChoose: (period: Period) => void;
}

function PeriodChoosers({ id, label, period, onChoose }: PeriodChoosersProps): JSX.Element {
  const { points } = usePage().model;
  const options = points.list.map((_, index): Option => [String(index), points.pointName(index)]);
  const [from, to] = [Math.max(0, period.from), Math.max(1, period.to < 0 ? points.last : period.to)];
  return (
    <>
      <Chooser
        id={`${id}-from`}
        label={label}
        options={options.slice(0, -1)}
        value={String(from)}
        onChoose={(value) => { onChoose({ from: Number(value), to: Math.max(to, Number(value) + 1) }); }}
      />
      <Chooser
        id={`${id}-to`}
        label="to"
        options={options.slice(1)}
        value={String(to)}
        onChoose={(value) => { onChoose({ from: Math.min(from, Number(value) - 1), to: Number(value) }); }}
      />
    </>
  );
}

function describe(totals: PeriodTotals): string {
  const opening = totals.opening_bytes - totals.inherited_bytes;
  const change = totals.live_bytes - opening;
  const before = opening > 0 ? `${sizeText(opening)} live at its start, ` : "";
  const inherited = totals.inherited_bytes > 0 ? `${sizeText(totals.inherited_bytes)} inherited at forks, ` : "";
  const allocated = `${sizeText(totals.alloc_bytes)} allocated in ${plural(totals.alloc_count, "block")}`;
  return `${before}${inherited}${allocated}, ${sizeText(totals.free_bytes)} freed, ${sizeText(totals.live_bytes)} live at its end (${changeText("live-bytes", change)})`;
}

function PeriodStatus(): JSX.Element {
  const { model, state, mask } = usePage();
  const { points, amounts } = model;
  return (
    <div id="period-status" role="status">
      {state.atPeak ? (
        <p>
          <b>the peak</b>: live bytes at each process's own peak
        </p>
      ) : (
        <p>
          <b>{points.periodText(state.period)}</b>: {describe(amounts.totals(mask, state.period))}
        </p>
      )}
      {state.base === null ? null : (
        <p>
          compared with <b>{points.periodText(state.base)}</b>: {describe(amounts.totals(mask, state.base))}
        </p>
      )}
    </div>
  );
}

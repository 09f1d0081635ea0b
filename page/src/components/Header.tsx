/** The top of the page: what was recorded, and the quantities to choose from. */

import type { JSX } from "preact";
import type { LiveSource } from "../data/live.ts";
import { VIEWS, field, type Estimates, type View } from "../data/document.ts";
import type { Profile } from "../data/profile.ts";
import { amountText, capital, cut, printable, timestamp, viewTitle } from "../text.ts";
import { lacksHooks } from "./health/hooks.ts";
import { usePage, type PageValue } from "./page.ts";
import { Live } from "./Live.tsx";
import { Marked } from "./names.tsx";
import { Settings } from "./Settings.tsx";

/** Exit of the only process. Of several processes, their list shows it. */
function ending({ targets }: Profile): string {
  const [target, other] = targets;
  if (target === undefined || other !== undefined || !target.exited) {
    return "";
  }
  return target.exit_code === null ? "exited" : `exited with code ${target.exit_code}`;
}

function facts(profile: Profile): string[] {
  const { header } = profile;
  const commands = new Set(profile.targets.map(({ command }) => command));
  const command = commands.size === 1 ? cut([...commands][0] ?? "", 70) : "";
  const recorded = [header.interval, `recorded for ${header.duration}`, `from ${timestamp(header.started)}`];
  const observed = header.checked === null ? recorded : [timestamp(header.checked)];
  return [command, ...observed, header.window ?? "", ending(profile)].filter((fact) => fact !== "");
}

export function Header({ live }: { live: LiveSource | null }): JSX.Element {
  const { model } = usePage();
  const { header } = model.profile;
  return (
    <header>
      <div class="bar">
        <h1>
          <span class="mark">heapbpf</span> <span id="subject">{cut(header.subject, 200)}</span>
        </h1>
        {live === null ? null : <Live source={live} />}
        <ul id="facts">
          {facts(model.profile).map((fact) => (
            <li key={fact}>{fact}</li>
          ))}
          <li>
            <a href="#health" class={header.incomplete ? "warning" : "good"}>
              {capital(header.verdict)}
            </a>
          </li>
        </ul>
        <Settings />
      </div>
      <Unexplained />
    </header>
  );
}

/** Growth that the profile does not show: before everything else. */
function Unexplained(): JSX.Element | null {
  const { unexplained } = usePage().model.profile.header;
  if (unexplained.length === 0) {
    return null;
  }
  return (
    <div id="unexplained" class="warning-box" role="alert">
      {unexplained.map(({ statement, details }) => (
        <div key={statement}>
          <p>
            <strong>{capital(printable(statement))}.</strong>
          </p>
          <ul>
            {details.map((line) => (
              <li key={line}>
                <Marked text={printable(line)} />
              </li>
            ))}
          </ul>
        </div>
      ))}
    </div>
  );
}

/** The totals of the selection; null where callsites must be summed. */
function knownEstimates({ model, state }: PageValue): Estimates | null {
  const { profile, points } = model;
  const isPart = state.thread !== "" || state.focus !== "" || state.ignore !== "" || state.atPeak;
  if (isPart || !points.isAll(state.period)) {
    return null;
  }
  const target = profile.targets[state.target];
  if (target === undefined) {
    return state.heap === "" ? profile.header.estimates : null;
  }
  return state.heap === "" ? target.estimates : (target.heaps.find(({ name }) => name === state.heap)?.estimates ?? null);
}

interface Card {
  readonly view: View;
  readonly amount: string;
  readonly note: string;
}

function cards(page: PageValue): Card[] {
  const { model, state, mask } = page;
  const { profile, points, amounts } = model;
  const estimates = knownEstimates(page);
  const totals = amounts.totals(mask, state.period);
  const isWindow = !points.isAll(state.period);
  const exact = profile.health.lost.length > 0 ? "exact except for losses" : lacksHooks(profile.health) ? "exact for attached hooks" : "exact";
  return VIEWS.map((view) => {
    const [amount, low, high] = estimates === null ? [totals[field(view)]] : estimates[field(view)];
    const isExact = profile.header.exact || (estimates !== null && low === undefined);
    const bounds = low !== undefined && high !== undefined && high > low ? `95 %: ${amountText(view, low)} – ${amountText(view, high)}` : "";
    const notes = [isWindow ? (view.startsWith("live") ? "at the window's end" : "in the window") : "", bounds === "" && isExact ? exact : bounds];
    return { view, amount: `${isExact ? "" : "≈ "}${amountText(view, amount)}`, note: notes.filter((note) => note !== "").join(", ") };
  });
}

const MOVES: Readonly<Record<string, number>> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** The four quantities; the chosen one applies to the whole page. */
export function Views(): JSX.Element {
  const page = usePage();
  const { model, state, update } = page;
  const { unreachable } = model.profile.header;
  const choices = VIEWS.filter((view) => !unreachable || view.startsWith("live"));
  const move = (event: KeyboardEvent, view: View): void => {
    const by = MOVES[event.key];
    const next = by === undefined ? undefined : choices[(choices.indexOf(view) + by + choices.length) % choices.length];
    if (next !== undefined) {
      event.preventDefault();
      update({ view: next });
      document.getElementById(`view-${next}`)?.focus();
    }
  };
  return (
    <div id="views" role="radiogroup" aria-label="View">
      {cards(page)
        .filter(({ view }) => choices.includes(view))
        .map(({ view, amount, note }) => (
          <button
            key={view}
            type="button"
            role="radio"
            class="view"
            id={`view-${view}`}
            aria-checked={view === state.view}
            tabIndex={view === state.view ? 0 : -1}
            onClick={() => { update({ view }); }}
            onKeyDown={(event) => { move(event, view); }}
          >
            <span class="view-name">{capital(viewTitle(view, unreachable))}</span> <strong>{amount}</strong> <span class="view-note">{note}</span>
          </button>
        ))}
    </div>
  );
}

/** Processes of which only totals are kept. */
export function Folded(): JSX.Element | null {
  const { model, state } = usePage();
  const { folded } = model.profile.header;
  const isAll = state.target < 0 && state.heap === "" && state.thread === "" && model.points.isAll(state.period);
  if (folded === null || !isAll) {
    return null;
  }
  return (
    <p id="folded" class="quiet">
      Of this, {amountText(state.view, folded.estimates[field(state.view)][0])} are of {folded.processes}, of which only totals are kept: they are in no
      stack below.
    </p>
  );
}

/** Growing callsites: of the whole recording with their confidence, or of the selected window. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { growing } from "../analysis/growth.ts";
import { at } from "../data/columns.ts";
import type { LeakCandidate, Target } from "../data/document.ts";
import { cut, durationText, plural, shareText, sizeText } from "../text.ts";
import { usePage } from "./page.ts";
import { Chain } from "./tables/Chain.tsx";

const MEANING =
  "Growth: per second, with its 95 % margin. Old: of its live bytes, those older than half of the recording. Survive: of the blocks of the first half, those still live.";
const WINDOW_MEANING = "Callsites with more live bytes at the window's end than at its start, and that shrank in few steps between. Steady: share of the steps without shrinkage.";

export function Leaks(): JSX.Element {
  const { model, state } = usePage();
  const { points } = model;
  const isWindow = points.any && !points.isAll(state.period);
  return (
    <section id="leaks" aria-labelledby="leaks-title">
      <h2 id="leaks-title" tabIndex={-1}>
        Leak candidates <span class="subject">{points.any ? points.periodText(state.period) : ""}</span>
      </h2>
      <div id="leaks-body">{isWindow ? <WindowLeaks /> : <RecordingLeaks />}</div>
    </section>
  );
}

/** Opens a callsite's row in the table. */
function useReveal(): (callsite: number) => void {
  const { state, update } = usePage();
  return (callsite) => {
    update({ tab: "callsites", through: null, search: "", open: state.open.includes(callsite) ? state.open : [...state.open, callsite] });
    requestAnimationFrame(() => {
      const row = document.querySelector<HTMLElement>(`#table-body [data-row="${callsite}"]`);
      row?.focus();
      row?.scrollIntoView({ block: "center" });
    });
  };
}

function WhereCell({ callsite }: { callsite: number }): JSX.Element {
  const { profile } = usePage().model;
  const reveal = useReveal();
  return (
    <td class="where-cell">
      <button type="button" class="where" onClick={() => { reveal(callsite); }}>
        <Chain profile={profile} callsite={callsite} />
      </button>
    </td>
  );
}

type Head = readonly [label: string, className: string];

function LeakTable({ heads, children, label }: { heads: readonly Head[]; children: JSX.Element[]; label: string }): JSX.Element {
  return (
    <div class="scroll">
      <table class="rows" aria-label={label}>
        <thead>
          <tr>
            {heads.map(([text, className]) => (
              <th key={text} scope="col" class={className}>
                {text}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** Growth in the selected window, from its points. */
function WindowLeaks(): JSX.Element {
  const { model, state, mask } = usePage();
  const { points } = model;
  const found = useMemo(() => growing(points, state.period, mask), [points, state.period, mask]);
  if (found.length === 0) {
    return <p>No callsite grows steadily in this window.</p>;
  }
  const after = points.at(state.period.to).live_bytes;
  return (
    <>
      <p class="quiet">{state.period.to - state.period.from < 3 ? `${WINDOW_MEANING} The window has few points: choose a longer one to distinguish growth from chance.` : WINDOW_MEANING}</p>
      <LeakTable label="Leak candidates of the window" heads={[["Growth", "number"], ["Live", "number"], ["Steady", "number wide"], ["Where", ""]]}>
        {found.map(({ callsite, bytesPerSecond, steadiness }) => (
          <tr key={callsite}>
            <td class="number">{sizeText(bytesPerSecond)}/s</td>
            <td class="number">{sizeText(at(after, callsite))}</td>
            <td class="number wide">{shareText(steadiness, 1)}</td>
            <WhereCell callsite={callsite} />
          </tr>
        ))}
      </LeakTable>
    </>
  );
}

function RecordingLeaks(): JSX.Element {
  const { model, state } = usePage();
  const { profile } = model;
  const shown = profile.targets.map((target, index) => ({ target, index })).filter(({ target, index }) => target.leaks !== null && (state.target < 0 || state.target === index));
  if (shown.length === 0) {
    return <p class="quiet">Growth was not computed for this profile.</p>;
  }
  const isFound = shown.some(({ target: { leaks } }) => leaks !== null && !leaks.too_short && leaks.candidates.length > 0);
  return (
    <>
      {isFound ? <p class="quiet">{MEANING}</p> : null}
      {shown.map(({ target, index }) => (
        <TargetLeaks key={index} target={target} first={at(profile.first, index)} hasTitle={profile.targets.length > 1} />
      ))}
    </>
  );
}

function TargetLeaks({ target, first, hasTitle }: { target: Target; first: number; hasTitle: boolean }): JSX.Element | null {
  const { mask } = usePage();
  const { leaks } = target;
  if (leaks === null) {
    return null;
  }
  const title = hasTitle ? <h3>{cut(target.name)}</h3> : null;
  const suppressed = leaks.suppressed_count > 0 ? `${plural(leaks.suppressed_count, "growing callsite")} (${sizeText(leaks.suppressed_bytes)}) suppressed.` : "";
  if (leaks.too_short) {
    return (
      <>
        {title}
        <p>The recording was too short{leaks.span > 0 ? ` (${durationText(leaks.span)})` : ""} to detect growth.</p>
      </>
    );
  }
  const candidates = leaks.candidates.filter(({ callsite }) => mask[first + callsite] === 1);
  if (candidates.length === 0) {
    const hidden = leaks.candidates.length > 0 ? `${plural(leaks.candidates.length, "candidate")} outside of the selection. ` : "";
    return (
      <>
        {title}
        <p>{`No callsite grows steadily. ${hidden}${suppressed}`}</p>
      </>
    );
  }
  return (
    <>
      {title}
      <p class="quiet">{`${plural(leaks.count, "callsite")} grew in ${durationText(leaks.span)}; sorted by score. ${suppressed}`}</p>
      <LeakTable label="Leak candidates" heads={[["Growth", "number"], ["Live", "number"], ["Old", "number wide"], ["Survive", "number wide"], ["Where", ""]]}>
        {candidates.map((candidate) => (
          <CandidateRow key={candidate.callsite} candidate={candidate} callsite={first + candidate.callsite} />
        ))}
      </LeakTable>
    </>
  );
}

function CandidateRow({ candidate, callsite }: { candidate: LeakCandidate; callsite: number }): JSX.Element {
  const { callsites } = usePage().model.profile;
  const { bytes_per_second: growth, margin, old_share: old, survival } = candidate;
  return (
    <tr>
      <td class="number">
        {sizeText(growth)}/s{margin > 0 ? ` ± ${sizeText(margin)}` : ""}
      </td>
      <td class="number">{sizeText(at(callsites.live_bytes, callsite))}</td>
      <td class="number wide">{old === null ? "–" : shareText(old, 1)}</td>
      <td class="number wide">{survival === null ? "–" : shareText(survival, 1)}</td>
      <WhereCell callsite={callsite} />
    </tr>
  );
}

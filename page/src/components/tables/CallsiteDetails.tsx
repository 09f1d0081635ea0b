/** Details of a callsite: full stack, amounts, histograms. */

import type { JSX } from "preact";
import { at } from "../../data/columns.ts";
import { HISTOGRAMS, isOwn } from "../../data/document.ts";
import type { Points } from "../../data/points.ts";
import type { Profile } from "../../data/profile.ts";
import { baseName, countText, cut, durationText, plural, sizeText, wholeText } from "../../text.ts";
import { CopyButton } from "../CopyButton.tsx";
import { WholeName } from "../names.tsx";
import { usePage } from "../page.ts";
import { SourceLine } from "../Source.tsx";
import { Histogram } from "./Histogram.tsx";

function facts(profile: Profile, points: Points, row: number): [string, string][] {
  const { callsites } = profile;
  const number = (column: ArrayLike<number>): number => at(column, row);
  const found: [string, string][] = [
    ["live", `${wholeText("live-bytes", number(callsites.live_bytes))} in ${plural(number(callsites.live_count), "block")}`],
    ["allocated", `${wholeText("alloc-bytes", number(callsites.alloc_bytes))} in ${plural(number(callsites.alloc_count), "block")}`],
    ["highest", `${sizeText(number(callsites.peak_bytes))}; ${sizeText(number(callsites.at_peak_bytes))} at the process's peak`],
    ["heap", cut(profile.heapName(row))],
    ["process", cut(profile.targetOf(row).name)],
  ];
  if (number(callsites.opening_bytes) > 0) {
    found.push([points.isWhole ? "inherited" : "live at the start", sizeText(number(callsites.opening_bytes))]);
  }
  if (number(callsites.thread) > 0) {
    found.push(["thread", cut(profile.threadName(row))]);
  }
  if (!profile.header.exact) {
    found.push(["samples", `${countText(number(callsites.alloc_samples))} of allocations, ${countText(number(callsites.live_samples))} of live blocks`]);
  }
  if (number(callsites.temporary) > 0) {
    found.push(["temporary", `${plural(number(callsites.temporary) - 1, "block")}, freed before the next allocation of the same thread`]);
  }
  if (number(callsites.oldest) >= 0) {
    found.push(["age", `${durationText(number(callsites.oldest))} the oldest, ${durationText(number(callsites.median))} the median`]);
  }
  return found;
}

/** The stack as text, one frame per line, leaf first. */
function stackText(profile: Profile, callsite: number): string {
  const frames = profile.stack(callsite).map((frame) => {
    const position = profile.sourcePosition(frame);
    return profile.functionName(profile.frameFunction(frame)) + (position === "" ? "" : ` at ${position}`);
  });
  return [...frames, ...[...profile.gap(callsite)].reverse()].join("\n");
}

export function CallsiteDetails({ callsite }: { callsite: number }): JSX.Element {
  const { profile, points } = usePage().model;
  return (
    <div class="callsite">
      <div class="stack">
        <h3>
          Stack, the allocating function first <CopyButton text={() => stackText(profile, callsite)} label="Copy stack" />
        </h3>
        <ol>
          {profile.stack(callsite).map((frame, index) => (
            <StackFrame key={index} profile={profile} frame={frame} />
          ))}
          {[...profile.gap(callsite)].reverse().map((word, index) => (
            <li key={`gap ${index}`} class="quiet">
              {word}
            </li>
          ))}
        </ol>
      </div>
      <div class="facts">
        <dl>
          {facts(profile, points, callsite).map(([term, fact]) => [<dt key={term}>{term}</dt>, <dd key={`${term} fact`}>{fact}</dd>])}
        </dl>
        {points.any ? <Growth callsite={callsite} /> : null}
        {HISTOGRAMS.map((name) => (
          <Histogram key={name} name={name} buckets={profile.histogram(callsite, name)} />
        ))}
      </div>
    </div>
  );
}

function StackFrame({ profile, frame }: { profile: Profile; frame: number }): JSX.Element {
  const key = profile.frameFunction(frame);
  const module = profile.functionModule(key);
  return (
    <li class={isOwn(profile.functionKind(key)) ? "own" : ""}>
      <WholeName name={profile.functionName(key)} />
      {profile.isInlined(frame) ? <span class="tag">inlined</span> : null}
      <span class="quiet" title={cut(module, 1000)}>
        <SourceLine frame={frame} /> {module === "" ? "" : cut(baseName(module), 400)}
      </span>
    </li>
  );
}

/** Live bytes over time, as a sparkline. */
function Growth({ callsite }: { callsite: number }): JSX.Element | null {
  const { points } = usePage().model;
  const values = points.list.map((_, point) => at(points.at(point).live_bytes, callsite));
  const most = Math.max(...values, 0);
  if (!(most > 0)) {
    return null;
  }
  const begin = points.time(0);
  const span = points.time(points.last) - begin || 1;
  const line = points.list.map(({ time }, point) => `${(((time - begin) / span) * 240).toFixed(1)},${(46 - (at(values, point) / most) * 42).toFixed(1)}`);
  return (
    <figure class="growth">
      <figcaption>Live bytes over time, at most {sizeText(most)}</figcaption>
      <svg viewBox="0 0 240 48" preserveAspectRatio="none" role="img" aria-label={`live bytes over time, at most ${sizeText(most)}`}>
        <polyline points={line.join(" ")} />
      </svg>
    </figure>
  );
}

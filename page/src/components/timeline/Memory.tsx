/** What the resident memory of a process was used for: a stacked area over time, and a table of its parts. */

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { memoryParts, memorySubject, stackedAreas, type MemoryPart } from "../../analysis/memory.ts";
import { sum } from "../../data/columns.ts";
import type { TimeRange } from "../../analysis/curve.ts";
import type { MemoryPoint } from "../../data/document.ts";
import { changeText, cut, printable, sizeText } from "../../text.ts";
import { usePage } from "../page.ts";

const NONE: readonly MemoryPoint[] = [];
const [WIDTH, HEIGHT] = [1000, 64];

export function Memory({ range }: { range: TimeRange }): JSX.Element | null {
  const { model, state } = usePage();
  const { targets, header } = model.profile;
  const isKnown = targets.some(({ memory }) => memory.length > 0) && !header.unreachable;
  const subject = memorySubject(targets, state.target);
  const samples = subject?.memory ?? NONE;
  const [isOpen, setOpen] = useState(samples.length === 1);
  const parts = useMemo(() => memoryParts(samples), [samples]);
  if (!isKnown) {
    return null;
  }
  if (subject === null || samples.length === 0) {
    return <p class="quiet">The memory of this process was not sampled.</p>;
  }
  const total = parts.reduce((all, { bytes }) => all + (bytes.at(-1) ?? 0), 0);
  return (
    <div id="memory">
      <h3>
        Resident memory by use <span class="subject">{targets.length > 1 ? cut(subject.name, 80) : ""}</span> <span class="subject">{sizeText(total)} at the end</span>{" "}
        <button type="button" id="memory-table" aria-expanded={isOpen} onClick={() => { setOpen(!isOpen); }}>
          Table
        </button>
      </h3>
      {samples.length > 1 ? <MemoryLegend parts={parts} total={total} /> : null}
      <div id="memory-body">
        {samples.length > 1 ? <MemoryChart {...{ samples, parts, range }} /> : null}
        {isOpen ? <MemoryTable parts={parts} /> : null}
      </div>
    </div>
  );
}

/** Smaller shares of the memory at the end are in the table only. */
const LEGEND_SHARE_MIN = 0.005;

function MemoryLegend({ parts, total }: { parts: readonly MemoryPart[]; total: number }): JSX.Element {
  const { colours } = usePage();
  return (
    <span class="legend">
      {parts.map(({ title, bytes }, part) =>
        (bytes.at(-1) ?? 0) < total * LEGEND_SHARE_MIN ? null : (
          <span key={title} class="key">
            <i style={{ background: colours.memory(part) }} />
            {printable(title)} {sizeText(bytes.at(-1) ?? 0)}
          </span>
        ),
      )}
    </span>
  );
}

/** The areas, with the time axis of the chart above. */
function MemoryChart({ samples, parts, range }: { samples: readonly MemoryPoint[]; parts: readonly MemoryPart[]; range: TimeRange }): JSX.Element {
  const { colours } = usePage();
  const areas = stackedAreas(parts, samples.length);
  const most = Math.max(1, ...(areas.at(-1)?.upper ?? []));
  const x = (index: number): number => (WIDTH * ((samples[index]?.time ?? 0) / 1000 - range.from)) / (range.to - range.from);
  const place = (bytes: number, index: number): string => `${x(index).toFixed(1)},${(HEIGHT - (HEIGHT * bytes) / most).toFixed(1)}`;
  return (
    <figure class="memory-chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`resident memory over time by use, at most ${sizeText(most)}`}>
        {areas.map(({ lower, upper }, part) => (
          <polygon key={part} points={[...upper.map(place), ...lower.map(place).reverse()].join(" ")} style={{ fill: colours.memory(part) }}>
            <title>{parts[part]?.title ?? ""}</title>
          </polygon>
        ))}
      </svg>
    </figure>
  );
}

function MemoryTable({ parts }: { parts: readonly MemoryPart[] }): JSX.Element {
  const { colours } = usePage();
  const ends = parts.map(({ title, bytes }) => ({ title, first: bytes[0] ?? 0, last: bytes.at(-1) ?? 0 }));
  const all = { title: "resident memory", first: sum(ends.map(({ first }) => first)), last: sum(ends.map(({ last }) => last)) };
  return (
    <table class="memory">
      <thead>
        <tr>
          <th scope="col">Use</th>
          <th scope="col" class="number">At the start</th>
          <th scope="col" class="number">At the end</th>
          <th scope="col" class="number">Change</th>
        </tr>
      </thead>
      <tbody>
        {[...ends, all].map(({ title, first, last }, index) => (
          <tr key={index} class={index === ends.length ? "total" : ""}>
            <th scope="row">
              {index === ends.length ? null : <i class="swatch" style={{ background: colours.memory(index) }} />} {printable(title)}
            </th>
            <td class="number">{sizeText(first)}</td>
            <td class="number">{sizeText(last)}</td>
            <td class="number">{changeText("live-bytes", last - first)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

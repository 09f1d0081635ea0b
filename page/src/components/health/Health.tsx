/** The health section: losses with their remedies, stacks, accuracy, hooks and cost. */

import type { JSX } from "preact";
import { VIEWS, field, type Header, type Health as HealthData } from "../../data/document.ts";
import { VIEW_TITLES, amountText, capital, countText, cut, durationText, plural, shareText, sizeText } from "../../text.ts";
import { Marked } from "../names.tsx";
import { usePage } from "../page.ts";
import { Card, type Grade } from "./Card.tsx";
import { HookCard } from "./HookCard.tsx";
import { lacksHooks } from "./hooks.ts";

interface Facts {
  readonly header: Header;
  readonly health: HealthData;
}

const CUTS_MAX = 20;
const REACHED_MAX = 50;

function LossCard({ lost }: HealthData): JSX.Element {
  if (lost.length === 0) {
    return (
      <Card title="Losses" grade="good">
        <p>Nothing was lost.</p>
      </Card>
    );
  }
  return (
    <Card title="Losses" grade="bad">
      <dl>
        {lost.map(({ reason, count, meaning, remedy }) => [
          <dt key={reason}>
            {countText(count)} × {cut(reason, 60)}
          </dt>,
          <dd key={`${reason} meaning`}>
            <Marked text={meaning === null ? "" : `${meaning}. `} />
            {remedy === null ? null : (
              <span class="remedy">
                <Marked text={`${capital(remedy)}.`} />
              </span>
            )}
          </dd>,
        ])}
      </dl>
    </Card>
  );
}

function StackCard({ unwind, cuts, frame_pointer_modules: modules }: HealthData): JSX.Element {
  const whole = unwind.reduce((sum, { count }) => sum + count, 0);
  const complete = unwind.find(({ end }) => end === "complete")?.count ?? 0;
  if (whole === 0) {
    return (
      <Card title="Stacks" grade="plain">
        <p>No stacks were recorded.</p>
      </Card>
    );
  }
  return (
    <Card title="Stacks" grade={complete / whole < 0.99 ? "poor" : "good"}>
      <dl>
        {unwind.map(({ end, count, meaning }) => [
          <dt key={end}>
            {shareText(count, whole)} {cut(end, 60)}
          </dt>,
          <dd key={`${end} meaning`}>{meaning ?? (end === "complete" ? "unwound to the thread's first frame" : "")}</dd>,
        ])}
      </dl>
      {cuts.length === 0 ? null : (
        <ul>
          {cuts.slice(0, CUTS_MAX).map(({ cause, share, advice }) => (
            <li key={cause}>
              <Marked text={`${shareText(share, 1)} end in ${cut(cause, 200)}${advice === null ? "" : ` – ${advice}`}`} />
            </li>
          ))}
        </ul>
      )}
      {modules.length === 0 ? null : <p>Unwound by frame pointers, without unwind tables: {cut(modules.join(", "), 600)}</p>}
    </Card>
  );
}

function AccuracyCard({ header, health }: Facts): JSX.Element {
  const lost = health.lost.reduce((sum, { count }) => sum + count, 0);
  const card = (grade: Grade, text: string): JSX.Element => (
    <Card title="Accuracy" grade={grade}>
      <p>{text}</p>
    </Card>
  );
  if (lost > 0 && header.exact) {
    return card("poor", `Every allocation was to be recorded, but ${plural(lost, "event")} were lost and are not in the numbers.`);
  }
  if (header.exact && lacksHooks(health)) {
    return card("poor", "Every allocation of the attached hooks was recorded, but hooks are missing.");
  }
  if (header.exact) {
    return card("good", "Every allocation was recorded: all numbers are exact.");
  }
  return (
    <Card title="Accuracy" grade={lost > 0 ? "poor" : "plain"}>
      <p>
        Estimates: {header.interval}.{lost > 0 ? " The intervals below do not include losses." : ""}
      </p>
      <dl>
        {VIEWS.map((view) => {
          const [estimate, low = 0, high = 0, samples = 0] = header.estimates[field(view)];
          const range = `${amountText(view, low)} to ${amountText(view, high)} with 95 % confidence, ${plural(samples, "sample")}`;
          return [
            <dt key={view}>
              {VIEW_TITLES[view]} ≈ {amountText(view, estimate)}
            </dt>,
            <dd key={`${view} range`}>{samples > 0 ? range : "nothing was sampled"}</dd>,
          ];
        })}
      </dl>
      {health.interval_changes.map((line) => (
        <p key={line}>
          <Marked text={line} />
        </p>
      ))}
    </Card>
  );
}

function CostCard({ header, health }: Facts): JSX.Element {
  const share = header.span >= 1000 ? ` (${shareText(health.agent_cpu, header.span)} of one CPU)` : "";
  const overheads = health.overheads.map(({ target, percent, percent_highest: highest }) => {
    return `Probes took ≈ ${percent.toFixed(1)}% of the CPU time of ${cut(target, 60)}${highest === null ? "" : `, ${highest.toFixed(1)}% at most`}.`;
  });
  const lines = [
    `The agent took ${durationText(health.agent_cpu)} of CPU time${share} and ${sizeText(health.agent_rss_bytes_max)} of memory for ${plural(health.events, "event")}.`,
    ...overheads,
    ...(health.resyncs > 0 ? [`The ledger was resynced from the kernel's live set ${plural(health.resyncs, "time")}.`] : []),
  ];
  return (
    <Card title="Cost" grade="plain">
      {lines.map((line) => (
        <p key={line}>
          <Marked text={line} />
        </p>
      ))}
    </Card>
  );
}

function LimitCard(health: HealthData): JSX.Element | null {
  const { reached, memory_bytes_max: memory, memory_bytes_highest: highest, cpu_percent_max: cpu, overhead_percent_max: overhead } = health;
  const lines = [
    memory === null ? "" : `Memory: ${highest === null ? "" : `${sizeText(highest)} at most, `}${sizeText(memory)} allowed.`,
    cpu === null ? "" : `CPU: ${cpu}% of a core allowed.`,
    overhead === null ? "" : `Overhead: ${overhead}% of a target's CPU time allowed.`,
  ].filter((line) => line !== "");
  if (lines.length + reached.length === 0) {
    return null;
  }
  return (
    <Card title="Limits" grade={reached.length > 0 ? "poor" : "good"}>
      {lines.map((line) => (
        <p key={line}>{line}</p>
      ))}
      {reached.length === 0 ? (
        <p>No limit was exceeded.</p>
      ) : (
        <ul>
          {reached.slice(0, REACHED_MAX).map((line) => (
            <li key={line} class="warning">
              <Marked text={line} />
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

function NameCard({ symbolization }: HealthData): JSX.Element | null {
  if (symbolization.length === 0) {
    return null;
  }
  return (
    <Card title="Names" grade="poor">
      <ul>
        {symbolization.map((line) => (
          <li key={line} class="warning">
            <Marked text={cut(line, 600)} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function CoverageCard({ header, health }: Facts): JSX.Element | null {
  if (header.beginnings.length + health.skipped.length === 0) {
    return null;
  }
  return (
    <Card title="Coverage" grade={health.skipped.length > 0 ? "poor" : "plain"}>
      {header.beginnings.map((line) => (
        <p key={line}>
          <Marked text={line} />
        </p>
      ))}
      {health.skipped.length < 2 ? null : (
        <ul>
          {health.skipped.map((line) => (
            <li key={line}>{cut(line, 300)}</li>
          ))}
        </ul>
      )}
    </Card>
  );
}

export function Health(): JSX.Element {
  const { header, health } = usePage().model.profile;
  return (
    <section id="health" aria-labelledby="health-title">
      <h2 id="health-title">Health: {header.verdict}</h2>
      <div id="health-body" class="cards">
        <LossCard {...health} />
        <StackCard {...health} />
        <NameCard {...health} />
        <AccuracyCard header={header} health={health} />
        <HookCard {...health} />
        <LimitCard {...health} />
        <CostCard header={header} health={health} />
        <CoverageCard header={header} health={health} />
      </div>
    </section>
  );
}

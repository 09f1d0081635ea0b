/** Hooks: which are attached, and which are missing. */

import type { JSX } from "preact";
import type { Health, Hook } from "../../data/document.ts";
import { baseName, countText, cut, plural } from "../../text.ts";
import { Marked } from "../names.tsx";
import { Card } from "./Card.tsx";
import { lacksHooks } from "./hooks.ts";

function attachment({ backend, emulated, instruction }: Hook): string {
  const step = emulated === null ? "" : emulated ? ", emulated" : ", single-stepped";
  return ` ${cut(backend, 40)}${step}${instruction === null ? "" : `: ${cut(instruction, 60)}`}`;
}

function HookList({ hooks }: { hooks: readonly Hook[] }): JSX.Element {
  return (
    <ul>
      {hooks.map((hook, index) => (
        <li key={index}>
          <code>{cut(hook.function, 90)}</code> in {cut(baseName(hook.module), 60)} ({cut(hook.heap, 40)})
          {hook.error === null ? (
            <span class="quiet">{attachment(hook)}</span>
          ) : (
            <span class={hook.required ? "warning" : "quiet"}>
              <Marked text={` not attached: ${cut(hook.error, 300)}${hook.required ? "" : " (few programs call it)"}`} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

export function HookCard({ hooks, hooks_count: count, unfound, inlined }: Health): JSX.Element {
  const missing = hooks.filter(({ error }) => error !== null);
  const attached = hooks.filter(({ error }) => error === null);
  const grade = lacksHooks({ hooks, unfound }) ? "bad" : attached.length === 0 || inlined.length > 0 ? "poor" : "good";
  return (
    <Card title="Hooks" grade={grade}>
      <p>{count === 0 ? "None: no allocator was found." : `${countText(attached.length)} of ${plural(count, "function")} attached.`}</p>
      {missing.length === 0 ? null : <HookList hooks={missing} />}
      {inlined.map((line) => (
        <p key={line} class="warning">
          <Marked text={line} />
        </p>
      ))}
      {unfound.length === 0 ? null : (
        <ul>
          {unfound.map(({ heap, function: name, required }, index) => (
            <li key={index} class={required ? "warning" : "quiet"}>
              {cut(heap, 40)}: no function {cut(name, 90)} in any module
            </li>
          ))}
        </ul>
      )}
      {attached.length === 0 ? null : (
        <details>
          <summary>Attached hooks</summary>
          <HookList hooks={attached} />
        </details>
      )}
    </Card>
  );
}

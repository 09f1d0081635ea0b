/** Tables as comma-separated values (RFC 4180). */

import { at } from "../../data/columns.ts";
import { VIEWS, field, type ViewField } from "../../data/document.ts";
import type { Profile } from "../../data/profile.ts";
import { functionSums, type Hidden, type Sums } from "../functions.ts";

/** Amounts of the views by callsite. */
export type ViewAmounts = Readonly<Record<ViewField, Float64Array>>;

/** Rows of text and numbers, each ended by CR LF. */
export function csv(rows: Iterable<readonly (string | number)[]>): string {
  let text = "";
  for (const row of rows) {
    text += `${row.map(cell).join(",")}\r\n`;
  }
  return text;
}

function cell(value: string | number): string {
  if (typeof value === "number") {
    return String(Math.round(value * 100) / 100);
  }
  // Spreadsheets execute text that starts like a formula, and the target chooses the names.
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Each callsite with an amount: views, process, heap, thread, and the stack, leaf first, separated by `;`. */
export function callsitesCsv(profile: Profile, amounts: ViewAmounts, kept: Uint8Array | null, hidden: Hidden): string {
  const rows: (string | number)[][] = [[...VIEWS.map(field), "process", "heap", "thread", "function", "source", "stack"]];
  for (let callsite = 0; callsite < profile.count; callsite += 1) {
    const values = VIEWS.map((view) => at(amounts[field(view)], callsite));
    if ((kept !== null && kept[callsite] !== 1) || values.every((value) => value === 0)) {
      continue;
    }
    const frames = profile.stack(callsite).filter((frame) => hidden?.[frame] !== 1);
    const names = frames.map((frame) => profile.functionName(profile.frameFunction(frame)));
    const [leaf] = frames;
    const stack = [...names, ...[...profile.gap(callsite)].reverse()];
    const thread = profile.hasThreads ? profile.threadName(callsite) : "";
    rows.push([...values, profile.targetOf(callsite).name, profile.heapName(callsite), thread, stack[0] ?? "", leaf === undefined ? "" : profile.sourcePosition(leaf), stack.join(";")]);
  }
  return csv(rows);
}

/** Each function with an amount: its own and inclusive amounts in all views. */
export function functionsCsv(profile: Profile, amounts: ViewAmounts, kept: Uint8Array | null, hidden: Hidden): string {
  const sums = VIEWS.map((view): Sums => {
    const all = amounts[field(view)];
    return functionSums(profile, kept === null ? all : all.map((amount, callsite) => (kept[callsite] === 1 ? amount : 0)), hidden);
  });
  const titles = VIEWS.flatMap((view) => [`${field(view)}_self`, `${field(view)}_inclusive`]);
  const rows: (string | number)[][] = [["function", "module", ...titles]];
  for (let key = 0; key < profile.functionCount; key += 1) {
    const values = sums.flatMap(({ self, inclusive }) => [at(self, key), at(inclusive, key)]);
    if (values.some((value) => value !== 0)) {
      rows.push([profile.functionName(key), profile.functionModule(key), ...values]);
    }
  }
  return csv(rows);
}

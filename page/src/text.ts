/** Formats quantities and names. Results are plain text for text nodes, never markup. */

import type { View } from "./data/document.ts";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const NAME_CHARS_MAX = 160;

export const VIEW_TITLES: Readonly<Record<View, string>> = {
  "live-bytes": "live bytes",
  "live-count": "live blocks",
  "alloc-bytes": "allocated bytes",
  "alloc-count": "allocated blocks",
};

/** Reports of unreachable blocks contain live blocks only. */
export function viewTitle(view: View, unreachable: boolean): string {
  return unreachable ? VIEW_TITLES[view].replace("live", "leaked") : VIEW_TITLES[view];
}

/** A size in binary units: `17.3 MiB`, `512 B`. */
export function sizeText(bytes: number): string {
  const sign = bytes < 0 ? "−" : "";
  let amount = Math.abs(bytes);
  let unit = 0;
  while (amount >= 1023.95 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${sign}${unit === 0 ? Math.round(amount) : amount.toFixed(1)} ${UNITS[unit] ?? ""}`;
}

/** A whole number with separators: `12,345`. */
export function countText(number: number): string {
  return Math.round(number).toLocaleString("en-US").replace("-", "−");
}

export function isBytes(view: View): boolean {
  return view.endsWith("bytes");
}

/** An amount of a view's quantity, rounded. */
export function amountText(view: View, number: number): string {
  return isBytes(view) ? sizeText(number) : countText(number);
}

/** The same with all digits. */
export function wholeText(view: View, number: number): string {
  const whole = countText(number);
  return isBytes(view) ? `${whole} bytes` : `${whole} ${whole === "1" ? "block" : "blocks"}`;
}

/** With a sign. */
export function changeText(view: View, number: number): string {
  return `${number > 0 ? "+" : ""}${amountText(view, number)}`;
}

/** A share of a whole. Nonzero shares are never `0.0%`. */
export function shareText(part: number, whole: number): string {
  if (!(whole > 0)) {
    return "–";
  }
  const percent = (part / whole) * 100;
  if (percent > 0 && percent < 0.05) {
    return "<0.1%";
  }
  if (percent >= 99.95 && percent < 100) {
    return ">99.9%";
  }
  return `${percent.toFixed(1)}%`;
}

/** Milliseconds: `250 µs`, `12 ms`, `30.5 s`, `2m 5s`, `3h 12m`. */
export function durationText(millis: number): string {
  const distance = Math.abs(millis);
  const sign = millis < 0 ? "−" : "";
  const seconds = Math.round(distance / 1000);
  if (distance === 0) {
    return "0 s";
  }
  if (distance < 1) {
    return `${sign}${Math.round(distance * 1000)} µs`;
  }
  if (distance < 999.5) {
    return `${sign}${Math.round(distance)} ms`;
  }
  if (distance < 59_950) {
    return `${sign}${(distance / 1000).toFixed(1).replace(/\.0$/, "")} s`;
  }
  if (seconds < 3600) {
    return `${sign}${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  }
  if (seconds < 86_400) {
    return `${sign}${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
  }
  return `${sign}${Math.floor(seconds / 86_400)}d ${Math.floor((seconds % 86_400) / 3600)}h`;
}

/**
 * A name in one line: replaces line breaks, control characters, and those that are not shown (Unicode's
 * Default_Ignorable_Code_Point, which has the bidirectional ones) but for those that choose a form of the character before them.
 */
export function printable(name: string): string {
  return (
    name
      // eslint-disable-next-line no-control-regex -- control characters are what it replaces
      .replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, " ")
      .replace(/(?!\p{Variation_Selector})[\p{Default_Ignorable_Code_Point}\ufff9-\ufffb\ufffe\uffff]/gu, "\ufffd")
      .trim()
  );
}

/** The same, limited in length. */
export function cut(name: string, charsMax = NAME_CHARS_MAX): string {
  // Cut very long names first: the replacements are linear in the length.
  const line = printable(name.length > charsMax * 4 ? name.slice(0, charsMax * 4) : name);
  return line.length > charsMax ? `${line.slice(0, charsMax - 1)}…` : line;
}

/** The last part of a path. */
export function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

export function plural(number: number, noun: string): string {
  const ending = noun.endsWith("s") ? "es" : "s";
  return `${countText(number)} ${noun}${Math.round(number) === 1 ? "" : ending}`;
}

/** A sentence's or a title's first letter. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** `2026-11-21T10:00:00Z` as `2026-11-21 10:00:00 UTC`. */
export function timestamp(text: string): string {
  return text.replace("T", " ").replace("Z", " UTC");
}

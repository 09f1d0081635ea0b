/** Amounts of callsites in a period: live at its end, allocated and freed in it; live at its start, or inherited in it. */

import { at } from "./columns.ts";
import { field, type Unit, type View } from "./document.ts";
import type { Period, Points } from "./points.ts";
import type { Profile } from "./profile.ts";

export type AmountField = `${"opening" | "inherited" | "live" | "alloc" | "free"}_${Unit}`;
export type PeriodAmounts = Readonly<Record<AmountField, Float64Array>>;
export type PeriodTotals = Readonly<Record<AmountField, number>>;

/** What part of the program is shown. */
export interface Scope {
  /** Index of the target; -1 for all. */
  readonly target: number;
  /** Name of the heap; empty for all. */
  readonly heap: string;
  /** `Profile.threadName` of the thread; empty for all. */
  readonly thread: string;
}

export interface Choice {
  readonly view: View;
  readonly period: Period;
  /** The period to compare with; null for none. */
  readonly base: Period | null;
  /** Whether to show what was live at each process's peak instead of at the end of the period. */
  readonly atPeak: boolean;
}

/** A view's quantity by callsite, 0 for callsites out of scope. `before` is null unless two periods are compared. */
export interface Shown {
  readonly after: Float64Array;
  readonly before: Float64Array | null;
}

const FIELDS: readonly AmountField[] = (["bytes", "count"] as const).flatMap((unit): AmountField[] => [
  `opening_${unit}`,
  `inherited_${unit}`,
  `live_${unit}`,
  `alloc_${unit}`,
  `free_${unit}`,
]);

export class Amounts {
  private readonly known = new Map<string, PeriodAmounts>();
  private readonly masks = new Map<string, Uint8Array>();

  constructor(
    private readonly profile: Profile,
    private readonly points: Points,
  ) {}

  /** Columns of all views and of freed amounts, for all callsites. */
  during(period: Period): PeriodAmounts {
    const key = `${period.from} ${period.to}`;
    const known = this.known.get(key);
    if (known !== undefined) {
      return known;
    }
    const made = Object.assign(this.compute(period, "bytes"), this.compute(period, "count")) as PeriodAmounts;
    this.known.set(key, made);
    return made;
  }

  private compute(period: Period, unit: Unit): Partial<PeriodAmounts> {
    const { callsites, count, targets } = this.profile;
    const isAll = this.points.isAll(period);
    const before = isAll ? null : this.points.at(period.from);
    const after = isAll ? callsites : this.points.at(period.to);
    const came = targets.map((target) => (isAll ? this.points.isWhole && target.origin !== "running" : this.points.beganIn(target, period)));
    const live = isAll ? callsites[`shown_${unit}`] : after[`live_${unit}`];
    const allocated = Float64Array.from(after[`alloc_${unit}`]);
    const opening = Float64Array.from(before === null ? callsites[`opening_${unit}`] : before[`live_${unit}`]);
    const inherited = new Float64Array(count);
    const freed = new Float64Array(count);
    for (let index = 0; index < count; index += 1) {
      const hasCome = came[at(callsites.target, index)] === true;
      if (before !== null) {
        allocated[index] = at(allocated, index) - at(before[`alloc_${unit}`], index);
        opening[index] = hasCome ? at(callsites[`opening_${unit}`], index) : at(opening, index);
      }
      inherited[index] = hasCome ? at(opening, index) : 0;
      freed[index] = at(opening, index) + at(allocated, index) - at(after[`live_${unit}`], index);
    }
    return { [`opening_${unit}`]: opening, [`inherited_${unit}`]: inherited, [`live_${unit}`]: live, [`alloc_${unit}`]: allocated, [`free_${unit}`]: freed };
  }

  /** 1 for each callsite in scope. */
  mask(scope: Scope): Uint8Array {
    const key = JSON.stringify([scope.target, scope.heap, scope.thread]);
    const known = this.masks.get(key);
    if (known !== undefined) {
      return known;
    }
    const { profile } = this;
    const mask = new Uint8Array(profile.count);
    for (let index = 0; index < profile.count; index += 1) {
      const isOfTarget = scope.target < 0 || profile.callsites.target[index] === scope.target;
      const isOfHeap = scope.heap === "" || profile.heapName(index) === scope.heap;
      const isOfThread = scope.thread === "" || profile.threadName(index) === scope.thread;
      mask[index] = isOfTarget && isOfHeap && isOfThread ? 1 : 0;
    }
    this.masks.set(key, mask);
    return mask;
  }

  /** The chosen view's quantity by callsite; `mask` is 1 for each selected callsite. */
  chosen(mask: Uint8Array, choice: Choice): Shown {
    const masked = (amounts: Float64Array): Float64Array => amounts.map((amount, index) => (mask[index] === 1 ? amount : 0));
    if (choice.atPeak) {
      return { after: masked(this.profile.callsites.at_peak_bytes), before: null };
    }
    const shown = (period: Period): Float64Array => masked(this.during(period)[field(choice.view)]);
    return { after: shown(choice.period), before: choice.base === null ? null : shown(choice.base) };
  }

  /** Sums over the selected callsites. */
  totals(mask: Uint8Array, period: Period): PeriodTotals {
    const during = this.during(period);
    const total = (name: AmountField): number => during[name].reduce((sum, amount, index) => sum + (mask[index] === 1 ? amount : 0), 0);
    return Object.fromEntries(FIELDS.map((name) => [name, total(name)])) as Record<AmountField, number>;
  }
}

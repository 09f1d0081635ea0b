// Amounts of callsites in a period: live at its end, allocated and freed in it; live at its start, or inherited in it.

class Amounts {
  constructor(profile, points) {
    this.profile = profile;
    this.points = points;
    this.known = new Map();
  }

  // Columns of all views and of freed amounts, for all callsites.
  during(period) {
    const key = `${period.from} ${period.to}`;
    if (!this.known.has(key)) {
      this.known.set(key, this.computeDuring(period));
    }
    return this.known.get(key);
  }

  computeDuring(period) {
    const { callsites, count } = this.profile;
    const isAll = this.points.isAll(period);
    const before = isAll ? null : this.points.at(period.from);
    const after = isAll ? callsites : this.points.at(period.to);
    const came = this.profile.targets.map((_, target) => !isAll && this.points.beganIn(target, period));
    const made = {};
    for (const unit of ["bytes", "count"]) {
      const live = isAll ? callsites[`shown_${unit}`] : after[`live_${unit}`];
      const allocated = Float64Array.from(after[`alloc_${unit}`]);
      const freed = new Float64Array(count);
      const opening = Float64Array.from(isAll ? callsites[`opening_${unit}`] : before[`live_${unit}`]);
      for (let at = 0; at < count; at += 1) {
        allocated[at] -= isAll ? 0 : before[`alloc_${unit}`][at];
        if (!isAll && came[callsites.target[at]]) {
          opening[at] = callsites[`opening_${unit}`][at];
        }
        freed[at] = opening[at] + allocated[at] - after[`live_${unit}`][at];
      }
      made[`opening_${unit}`] = opening;
      const inherits = (at) => (isAll ? this.points.isWhole : came[callsites.target[at]]);
      made[`inherited_${unit}`] = opening.map((amount, at) => (inherits(at) ? amount : 0));
      made[`live_${unit}`] = live;
      made[`alloc_${unit}`] = allocated;
      made[`free_${unit}`] = freed;
    }
    return made;
  }

  // 1 for each callsite of the selected target and heap.
  mask(selection) {
    const key = JSON.stringify([selection.target, selection.heap]);
    if (this.maskKey === key) {
      return this.lastMask;
    }
    const { callsites, count } = this.profile;
    const mask = new Uint8Array(count);
    for (let at = 0; at < count; at += 1) {
      const isOfTarget = selection.target < 0 || callsites.target[at] === selection.target;
      mask[at] = isOfTarget && (selection.heap === "" || this.profile.heapName(at) === selection.heap) ? 1 : 0;
    }
    [this.maskKey, this.lastMask] = [key, mask];
    return mask;
  }

  // The view's quantity by callsite: `after` for the period, `before` for the period to compare with, or null.
  chosen(selection) {
    const mask = this.mask(selection);
    const shown = (period) => this.during(period)[field(selection.view)].map((amount, at) => (mask[at] ? amount : 0));
    return { mask, after: shown(selection.period), before: selection.base === null ? null : shown(selection.base) };
  }

  // Sums over the selected callsites.
  totals(selection, period) {
    const mask = this.mask(selection);
    const totals = {};
    for (const [name, amounts] of Object.entries(this.during(period))) {
      totals[name] = amounts.reduce((sum, amount, at) => sum + (mask[at] ? amount : 0), 0);
    }
    return totals;
  }
}

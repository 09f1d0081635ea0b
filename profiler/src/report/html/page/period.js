// Moments at which callsites were looked at, and spans between them.

// What callsites held at every instant of the history, with the beginning and the end of the recording. A period is
// `{ from, to }`, numbers of points.
class Points {
  constructor(profile) {
    this.profile = profile;
    this.list = [];
    const isWhole = profile.header.window === null;
    const end = profile.header.span;
    const byTime = new Map();
    for (const { history } of profile.targets) {
      const { time, occasion } = history.instants;
      const count = Math.max(time.length, occasion.length, 0);
      for (let at = 0; at < count; at += 1) {
        const known = byTime.get(time[at] ?? 0);
        const kind = occasion[at] ?? 0;
        if (known === undefined || known === 0) {
          byTime.set(time[at] ?? 0, kind);
        }
      }
    }
    for (const [time, kind] of byTime) {
      this.list.push({ time, occasion: kind });
    }
    this.list.sort((one, other) => one.time - other.time);
    if (this.list.length > 0 && isWhole) {
      // What was there from the beginning is the opening balance, and the end is what totals say.
      this.list = this.list.filter(({ time, occasion }) => occasion !== 0 || (time > 0 && time < end));
      this.list.unshift({ time: Math.min(0, this.list[0]?.time ?? 0), occasion: 0, is: "start" });
      this.list.push({ time: Math.max(end, this.list.at(-1).time), occasion: 0, is: "end" });
    }
    this.isWhole = isWhole;
    this.held = new Map();
  }

  get last() {
    return this.list.length - 1;
  }

  // Whether there is anything to choose from.
  get any() {
    return this.list.length > 1;
  }

  label(at) {
    const { time, occasion, is } = this.list[at];
    const when = durationText(time);
    if (is === "start") {
      return "start";
    }
    if (is === "end") {
      return `end (${when})`;
    }
    if (occasion > 0) {
      return `dump ${occasion} (${when})`;
    }
    return occasion < 0 ? `mark (${when})` : when;
  }

  // The points that windows lie between: dumps, marks and both ends; all of them where there are no dumps.
  boundaries() {
    const all = this.list.map((_, at) => at);
    const chosen = all.filter((at) => at === 0 || at === this.last || this.list[at].occasion !== 0);
    return chosen.length > 2 ? chosen : all;
  }

  // Four columns of what callsites held at a point: live, and allocated since the recording began.
  at(point) {
    if (!this.held.has(point)) {
      this.held.set(point, this.gather(point));
    }
    return this.held.get(point);
  }

  gather(point) {
    const { callsites, count, targets } = this.profile;
    const { is, time } = this.list[point];
    if (is === "end") {
      return callsites;
    }
    const held = {};
    for (const view of VIEWS) {
      held[field(view)] = new Float64Array(count);
    }
    if (is === "start") {
      held.live_bytes.set(callsites.opening_bytes);
      held.live_count.set(callsites.opening_count);
      return held;
    }
    for (const { history, callsites: columns, first } of targets) {
      const { changes, instants } = history;
      changes.from ??= starts(column(changes.count, columns.count));
      for (let at = 0; at < columns.count; at += 1) {
        let change = -1;
        for (let next = changes.from[at]; next < changes.from[at + 1]; next += 1) {
          if ((instants.time[changes.instant[next] ?? 0] ?? 0) <= time) {
            change = next;
          }
        }
        for (const view of change < 0 ? [] : VIEWS) {
          held[field(view)][first + at] = changes[field(view)][change] ?? 0;
        }
      }
    }
    return held;
  }

  // The point nearest to a time.
  nearest(time) {
    let best = 0;
    for (let at = 1; at < this.list.length; at += 1) {
      if (Math.abs(this.list[at].time - time) < Math.abs(this.list[best].time - time)) {
        best = at;
      }
    }
    return best;
  }

  // The window that a time lies in.
  windowAt(time) {
    const boundaries = this.boundaries();
    for (let at = 1; at < boundaries.length; at += 1) {
      if (time <= this.list[boundaries[at]].time || at === boundaries.length - 1) {
        return { from: boundaries[at - 1], to: boundaries[at] };
      }
    }
    return this.all();
  }

  // All that the profile is about. Where that is a window of a recording, it is no period between points.
  all() {
    return this.isWhole && this.any ? { from: 0, to: this.last } : { from: -1, to: -1 };
  }

  isAll({ from, to }) {
    return from < 0 || (this.isWhole && from === 0 && to === this.last);
  }

  periodText(period) {
    if (period.from < 0) {
      return this.isWhole ? "the whole recording" : "this window";
    }
    if (this.isAll(period)) {
      return `the whole recording (${durationText(this.list[this.last].time)})`;
    }
    return `${this.label(period.from)} to ${this.label(period.to)}`;
  }
}

// Points in time with callsite totals, and periods between them.

// Maximum number of selectable points besides dumps and marks.
const POINTS_MAX = 120;
// Maximum distance of a point from an end to count as that end.
const END_MILLIS = 20;

// Callsite totals at every point of the history, including the start and the end of the recording. A period is
// `{ from, to }`, indices of points.
class Points {
  constructor(profile) {
    this.profile = profile;
    // Whether the profile covers the whole recording, not a window.
    this.isWhole = profile.header.window === null;
    this.held = new Map();
    const byTime = new Map();
    for (const { history } of profile.targets) {
      const { time, occasion } = history.instants;
      for (let at = 0; at < Math.max(time.length, occasion.length); at += 1) {
        byTime.set(time[at] ?? 0, byTime.get(time[at] ?? 0) || (occasion[at] ?? 0));
      }
    }
    this.list = [...byTime].map(([time, occasion]) => ({ time, occasion })).sort((one, other) => one.time - other.time);
    this.thin();
    if (this.list.length > 0 && this.isWhole) {
      this.addEnds(profile.header.span);
    }
    if (this.any) {
      this.list[0].is = "start";
      this.list[this.last].is = "end";
    }
  }

  // Removes points close to a dump or mark, and thins out the others so that the list stays usable.
  thin() {
    const marked = this.list.filter(({ occasion }) => occasion !== 0);
    const near = ({ time }) => marked.some((other) => Math.abs(other.time - time) < END_MILLIS);
    this.list = this.list.filter((point) => point.occasion !== 0 || !near(point));
    const every = Math.ceil((this.list.length - marked.length) / POINTS_MAX);
    this.list = this.list.filter(({ occasion }, at) => occasion !== 0 || at % every === 0 || at === this.list.length - 1);
  }

  // The start and the end of the recording, where the history has no points there.
  addEnds(span) {
    const first = this.list[0];
    if (first.occasion !== 0 || first.time > END_MILLIS) {
      this.list.unshift({ time: Math.min(0, first.time), occasion: 0 });
    }
    const last = this.list[this.last];
    if (last.time < span - END_MILLIS || (last.occasion !== 0 && !this.isFinal(this.last))) {
      this.list.push({ time: Math.max(span, last.time), occasion: 0 });
    }
  }

  // Whether nothing happened after a point.
  isFinal(point) {
    const { live_bytes: live, alloc_bytes: allocated } = this.computeAt(point);
    const { callsites } = this.profile;
    return live.every((bytes, at) => bytes === callsites.live_bytes[at] && allocated[at] === callsites.alloc_bytes[at]);
  }

  get last() {
    return this.list.length - 1;
  }

  // Whether there are points to select.
  get any() {
    return this.list.length > 1;
  }

  pointName(at) {
    const { time, occasion, is } = this.list[at];
    const when = this.timeText(at);
    if (is !== undefined && occasion === 0) {
      return is === "start" && time <= END_MILLIS ? "start" : `${is} (${when})`;
    }
    if (occasion > 0) {
      return `dump ${occasion} (${when})`;
    }
    return occasion < 0 ? `mark (${when})` : when;
  }

  // Time of a point; to the millisecond where a neighbour would have the same label.
  timeText(at) {
    const { time } = this.list[at];
    const text = durationText(time);
    const isShared = [at - 1, at + 1].some((other) => this.list[other] !== undefined && durationText(this.list[other].time) === text);
    return isShared && time >= 1000 && time < 3_600_000 ? `${(time / 1000).toFixed(3)} s` : text;
  }

  // The boundaries of windows: dumps, marks and both ends; all points where there are no dumps.
  boundaries() {
    const all = this.list.map((_, at) => at);
    const chosen = all.filter((at) => at === 0 || at === this.last || this.list[at].occasion !== 0);
    return chosen.length > 2 ? chosen : all;
  }

  // Callsite totals at a point, in four columns: live, and allocated since the recording started.
  at(point) {
    if (!this.held.has(point)) {
      this.held.set(point, this.computeAt(point));
    }
    return this.held.get(point);
  }

  computeAt(point) {
    const { callsites, count, targets } = this.profile;
    const { is, time } = this.list[point];
    if (is === "end" && this.isWhole) {
      return callsites;
    }
    const held = {};
    for (const view of VIEWS) {
      held[field(view)] = new Float64Array(count);
    }
    for (const { history, callsites: columns, first, begun } of targets) {
      if (is === "start" && this.isWhole) {
        // Inherited blocks exist from the start of their process on.
        for (let at = first; at < first + columns.count && begun <= time + END_MILLIS; at += 1) {
          held.live_bytes[at] = callsites.opening_bytes[at];
          held.live_count[at] = callsites.opening_count[at];
        }
        continue;
      }
      const { changes, instants } = history;
      changes.from ??= starts(column(changes.count, columns.count));
      for (let at = 0; at < columns.count; at += 1) {
        let change = -1;
        for (let next = changes.from[at]; next < changes.from[at + 1]; next += 1) {
          if ((instants.time[changes.point[next] ?? 0] ?? 0) <= time) {
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

  // Whether a process started in a period, with its inherited blocks.
  beganIn(target, { from, to }) {
    const begun = this.profile.targets[target].begun;
    return this.isWhole && begun > this.list[from].time + (from === 0 ? END_MILLIS : 0) && begun <= this.list[to].time;
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

  // The window that contains a time.
  windowAt(time) {
    const boundaries = this.boundaries();
    for (let at = 1; at < boundaries.length; at += 1) {
      if (time <= this.list[boundaries[at]].time || at === boundaries.length - 1) {
        return { from: boundaries[at - 1], to: boundaries[at] };
      }
    }
    return this.all();
  }

  // The last window of relevant length: the recording often ends right after a dump.
  lastWindow() {
    const boundaries = this.boundaries();
    const length = (at) => this.list[boundaries[at]].time - this.list[boundaries[at - 1]].time;
    const lengths = boundaries.map((_, at) => (at === 0 ? 0 : length(at)));
    const longest = Math.max(...lengths);
    const at = lengths.reduce((last, one, next) => (one > 0 && one * 10 >= longest ? next : last), 0);
    return at < 1 ? this.all() : { from: boundaries[at - 1], to: boundaries[at] };
  }

  // The whole period of the profile.
  all() {
    return this.any ? { from: 0, to: this.last } : { from: -1, to: -1 };
  }

  isAll({ from, to }) {
    return from < 0 || (from === 0 && to === this.last);
  }

  periodText(period) {
    if (this.isAll(period)) {
      const span = this.any ? ` (${durationText(this.list[this.last].time - this.list[0].time)})` : "";
      return `${this.isWhole ? "the whole recording" : "the whole window"}${span}`;
    }
    return `${this.pointName(period.from)} to ${this.pointName(period.to)}`;
  }
}

// The heap over time, and the selected period. uPlot draws the chart; this file adds marks and windows.

// The selected targets' curve of a view: times in seconds, and amounts.
function curveOf(profile, points, amounts, selection) {
  const name = field(selection.view);
  const chosen = profile.targets.filter((target, at) => (selection.target < 0 || selection.target === at) && target.history.curve.time.length > 0);
  if (selection.heap !== "" || chosen.length === 0) {
    // For a heap, only the points with callsite totals are known.
    const mask = amounts.mask(selection);
    const sum = (at) => points.at(at)[name].reduce((all, amount, callsite) => all + (mask[callsite] ? amount : 0), 0);
    return { isCoarse: true, data: [points.list.map(({ time }) => time / 1000), points.list.map((_, at) => sum(at))] };
  }
  const steps = chosen.flatMap((target) => {
    const { time } = target.history.curve;
    const values = column(target.history.curve[name], time.length);
    return time.map((point, at) => [point / 1000, values[at] - (at > 0 ? values[at - 1] : 0)]);
  });
  steps.sort((one, other) => one[0] - other[0]);
  const [times, values] = [[], []];
  let held = 0;
  for (const [time, change] of steps) {
    held += change;
    if (times.at(-1) === time) {
      values[values.length - 1] = held;
    } else {
      times.push(time);
      values.push(held);
    }
  }
  const end = profile.header.span / 1000;
  if (points.isWhole && end > times.at(-1)) {
    times.push(end);
    values.push(held);
  }
  return { isCoarse: false, data: [times, values] };
}

class Timeline {
  constructor(profile, points, amounts, selection) {
    Object.assign(this, { profile, points, amounts, selection });
    byId("timeline-none").hidden = profile.hasHistory;
    byId("timeline-body").hidden = !profile.hasHistory;
    byId("period").hidden = !points.any;
    byId("period-none").hidden = points.any;
    if (!profile.hasHistory) {
      return;
    }
    this.parent = byId("timeline-chart");
    this.wire();
    new ResizeObserver(() => this.resize()).observe(this.parent);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    selection.listen(() => this.update());
  }

  wire() {
    const { selection, points } = this;
    const chooser = (name, end) => (event) => {
      const period = { ...selection[name], [end]: Number(event.target.value) };
      if (period.from >= period.to) {
        period[end === "from" ? "to" : "from"] = end === "from" ? Math.min(points.last, period.from + 1) : Math.max(0, period.to - 1);
      }
      selection.change({ [name]: period });
    };
    byId("period-from").addEventListener("change", chooser("period", "from"));
    byId("period-to").addEventListener("change", chooser("period", "to"));
    byId("base-from").addEventListener("change", chooser("base", "from"));
    byId("base-to").addEventListener("change", chooser("base", "to"));
    byId("period-all").addEventListener("click", () => selection.change({ period: points.all() }));
    byId("period-previous").addEventListener("click", () => this.step(-1));
    byId("period-next").addEventListener("click", () => this.step(1));
    byId("compare").addEventListener("click", () => {
      const boundaries = points.boundaries();
      const first = { from: boundaries[0], to: boundaries[Math.min(1, boundaries.length - 1)] };
      const last = points.lastWindow();
      const isAll = points.isAll(selection.period);
      const on = { base: first, period: isAll ? last : selection.period, picksBase: false };
      selection.change(selection.base === null ? on : { base: null, picksBase: false });
    });
    for (const picks of ["period", "base"]) {
      byId(`picks-${picks}`).addEventListener("change", () => selection.change({ picksBase: picks === "base" }));
    }
  }

  // Selects the previous or next window.
  step(by) {
    const { points, selection } = this;
    const boundaries = points.boundaries();
    const isAll = points.isAll(selection.period);
    const at = isAll ? (by > 0 ? 0 : boundaries.length - 1) : boundaries.findIndex((point) => point >= selection.period.to) + by;
    const to = Math.min(Math.max(at, 1), boundaries.length - 1);
    selection.change({ period: { from: boundaries[to - 1], to: boundaries[to] } });
  }

  pick(period) {
    this.selection.change(this.selection.picksBase && this.selection.base !== null ? { base: period } : { period });
  }

  update() {
    const { selection, points, profile } = this;
    const key = JSON.stringify([selection.view, selection.target, selection.heap, isDark()]);
    byId("timeline-subject").textContent = `${capital(VIEW_TITLES[selection.view])} over time${selection.heap === "" ? "" : `, heap ${cut(selection.heap, 40)}`}`;
    if (this.key !== key) {
      this.key = key;
      this.build();
    } else {
      this.chart?.redraw(false, true);
    }
    if (!points.any) {
      return;
    }
    const options = points.list.map((_, at) => [at, points.pointName(at)]);
    for (const [name, period] of [["period", selection.period], ["base", selection.base]]) {
      if (period !== null) {
        fillSelect(byId(`${name}-from`), options.slice(0, -1), Math.max(0, period.from));
        fillSelect(byId(`${name}-to`), options.slice(1), Math.max(1, period.to < 0 ? points.last : period.to));
      }
    }
    const compares = selection.base !== null;
    byId("compare").setAttribute("aria-pressed", String(compares));
    byId("base").hidden = !compares;
    byId("picks").hidden = !compares;
    byId("picks-base").checked = selection.picksBase;
    byId("picks-period").checked = !selection.picksBase;
    byId("period-all").disabled = points.isAll(selection.period);
    this.describe(compares, profile.header.exact);
  }

  describe(compares) {
    const { selection, points, amounts } = this;
    const line = (period) => {
      const totals = amounts.totals(selection, period);
      const change = totals.live_bytes - totals.opening_bytes + totals.inherited_bytes;
      const inherited = totals.inherited_bytes > 0 ? `${sizeText(totals.inherited_bytes)} from before or inherited at a fork, ` : "";
      return `${inherited}${sizeText(totals.alloc_bytes)} allocated in ${plural(totals.alloc_count, "block")}, ${sizeText(totals.free_bytes)} freed, ${sizeText(totals.live_bytes)} live at its end (${changeText("live-bytes", change)})`;
    };
    const text = [element("p", {}, element("b", {}, points.periodText(selection.period)), `: ${line(selection.period)}`)];
    if (compares) {
      text.push(element("p", {}, "compared with ", element("b", {}, points.periodText(selection.base)), `: ${line(selection.base)}`));
    }
    fill(byId("period-status"), text);
  }

  resize() {
    if (this.chart && this.parent.clientWidth > 0 && this.parent.clientWidth !== this.chart.width) {
      this.chart.setSize({ width: this.parent.clientWidth, height: this.chart.height });
    }
  }

  build() {
    const { selection } = this;
    this.chart?.destroy();
    const { data, isCoarse } = curveOf(this.profile, this.points, this.amounts, selection);
    this.data = data;
    this.peakAt = this.findPeak();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const isSize = selection.view.endsWith("bytes");
    this.chart = new uPlot(
      {
        width: this.parent.clientWidth || 600,
        height: 210,
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
        scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.max(most, this.peakAt?.[1] ?? 0) * 1.3 || 1] } },
        axes: [
          { ...axis, values: (_, splits) => splits.map((split) => durationText(split * 1000)), space: 80 },
          { ...axis, size: 78, values: (_, splits) => splits.map((split) => amountText(selection.view, split)), incrs: isSize ? this.steps() : undefined },
        ],
        series: [{}, { stroke: colour("--accent"), width: 2, fill: colour("--accent-weak"), paths: isCoarse ? uPlot.paths.linear() : uPlot.paths.stepped({ align: 1 }), points: { show: isCoarse } }],
        hooks: {
          drawClear: [(chart) => this.shadePeriod(chart, colour)],
          draw: [(chart) => this.mark(chart, colour)],
          setCursor: [(chart) => this.hover(chart)],
          setSelect: [(chart) => this.drag(chart)],
        },
      },
      data,
      this.parent,
    );
    this.listenToClicks();
  }

  // Powers of two, for round sizes at the axis.
  steps() {
    return Array.from({ length: 50 }, (_, power) => 2 ** power);
  }

  listenToClicks() {
    const { over } = this.chart;
    let down = 0;
    over.addEventListener("mousedown", (event) => {
      down = event.clientX;
    });
    over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - down) < 4 && this.points.any) {
        const x = event.clientX - over.getBoundingClientRect().left;
        this.pick(this.points.windowAt(this.chart.posToVal(x, "x") * 1000));
      }
    });
  }

  drag(chart) {
    const { left, width } = chart.select;
    if (width < 4 || !this.points.any) {
      return;
    }
    const from = this.points.nearest(chart.posToVal(left, "x") * 1000);
    const to = this.points.nearest(chart.posToVal(left + width, "x") * 1000);
    chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.pick(from === to ? this.points.windowAt(chart.posToVal(left + width / 2, "x") * 1000) : { from, to });
  }

  hover(chart) {
    const at = chart.cursor.idx;
    const text = byId("timeline-value");
    const { view } = this.selection;
    text.textContent = at === null || at === undefined ? "" : `${durationText(this.data[0][at] * 1000)}: ${amountText(view, this.data[1][at])} (${wholeText(view, this.data[1][at])})`;
  }

  shadePeriod(chart, colour) {
    const { points, selection } = this;
    const band = (period, fillStyle) => {
      const [from, to] = [period.from, period.to].map((at) => chart.valToPos(points.list[at].time / 1000, "x", true));
      chart.ctx.fillStyle = fillStyle;
      chart.ctx.fillRect(from, chart.bbox.top, Math.max(to - from, 2), chart.bbox.height);
    };
    if (points.any && !points.isAll(selection.period)) {
      band(selection.period, colour("--band"));
    }
    if (points.any && selection.base !== null) {
      band(selection.base, colour("--band-base"));
    }
  }

  // Lines at dumps and marks, and the peak.
  mark(chart, colour) {
    const { ctx, bbox } = chart;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    let free = -Infinity;
    for (const { time, occasion } of this.points.list) {
      if (occasion === 0) {
        continue;
      }
      const x = Math.round(chart.valToPos(time / 1000, "x", true));
      ctx.strokeStyle = ctx.fillStyle = colour(occasion < 0 ? "--mark" : "--quiet");
      ctx.setLineDash(occasion < 0 ? [] : [4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = occasion < 0 ? "mark" : `${occasion}`;
      const width = ctx.measureText(text).width + 6 * ratio;
      // The last label does not fit to the right.
      const isLeft = x + width > bbox.left + bbox.width;
      const left = isLeft ? x - width : x;
      if (left > free) {
        ctx.fillText(text, left + 3 * ratio, bbox.top + 2 * ratio);
        free = left + width;
      }
    }
    this.peak(chart, colour, ratio);
    ctx.restore();
  }

  // Time in seconds and amount of the peak: from the totals where the selection has them, else from the curve.
  findPeak() {
    const { selection, profile, data: [times, values] } = this;
    if (!selection.view.startsWith("live") || values.length === 0) {
      return null;
    }
    const target = profile.targets[profile.targets.length === 1 ? 0 : selection.target];
    const isTold = selection.view === "live-bytes" && selection.heap === "" && target !== undefined && target.peak_time !== null;
    if (isTold && target.peak_time / 1000 >= times[0] && target.peak_time / 1000 <= times.at(-1)) {
      return [target.peak_time / 1000, target.peak_bytes];
    }
    const at = values.indexOf(values.reduce((most, value) => Math.max(most, value), -Infinity));
    return [times[at], values[at]];
  }

  peak(chart, colour, ratio) {
    if (this.peakAt === null) {
      return;
    }
    const [time, value] = this.peakAt;
    const [x, y] = [chart.valToPos(time, "x", true), chart.valToPos(value, "y", true)];
    const { ctx, bbox } = chart;
    ctx.setLineDash([]);
    const text = `peak ${amountText(this.selection.view, value)}`;
    const width = ctx.measureText(text).width;
    const isLeft = x + width + 10 * ratio > bbox.left + bbox.width;
    const left = x + (isLeft ? -7 * ratio - width : 7 * ratio);
    ctx.fillStyle = colour("--panel");
    ctx.fillRect(left - 2 * ratio, y - 16 * ratio, width + 4 * ratio, 14 * ratio);
    ctx.fillStyle = colour("--peak");
    ctx.beginPath();
    ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
    ctx.fill();
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    ctx.fillText(text, left, y - 3 * ratio);
  }
}

/** The chart of the heap over time. uPlot draws the curve; this file adds marks, windows and the peak. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Curve, Peak, TimeRange } from "../../analysis/curve.ts";
import type { View } from "../../data/document.ts";
import type { Period, Points } from "../../data/points.ts";
import { amountText, durationText, isBytes, wholeText } from "../../text.ts";

const HEIGHT = 116;
/** A shorter drag is a click. */
const DRAG_MIN = 4;

export interface ChartProps {
  readonly curve: Curve;
  /** First and last time, in seconds. */
  readonly range: TimeRange;
  readonly peak: Peak | null;
  readonly points: Points;
  readonly view: View;
  readonly period: Period;
  readonly base: Period | null;
  readonly isDark: boolean;
  readonly onPick: (period: Period) => void;
  readonly onValue: (text: string) => void;
}

/** Colours of the theme: uPlot draws on a canvas, which style sheets do not reach. */
function themeColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function shadePeriods(chart: uPlot, { points, period, base }: ChartProps): void {
  const band = ({ from, to }: Period, colour: string): void => {
    const [left, right] = [from, to].map((index) => chart.valToPos(points.time(index) / 1000, "x", true));
    if (left !== undefined && right !== undefined) {
      chart.ctx.fillStyle = themeColour(colour);
      chart.ctx.fillRect(left, chart.bbox.top, Math.max(right - left, 2), chart.bbox.height);
    }
  };
  if (points.any && !points.isAll(period)) {
    band(period, "--band");
  }
  if (points.any && base !== null) {
    band(base, "--band-base");
  }
}

/** Lines at dumps and marks. */
function drawOccasions(chart: uPlot, points: Points, ratio: number): void {
  const { ctx, bbox } = chart;
  let free = -Infinity;
  for (const { time, occasion } of points.list) {
    if (occasion === 0) {
      continue;
    }
    const x = Math.round(chart.valToPos(time / 1000, "x", true));
    ctx.strokeStyle = ctx.fillStyle = themeColour(occasion < 0 ? "--mark" : "--quiet");
    ctx.setLineDash(occasion < 0 ? [] : [4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const text = occasion < 0 ? "mark" : String(occasion);
    const width = ctx.measureText(text).width + 6 * ratio;
    // The last label does not fit to the right.
    const left = x + width > bbox.left + bbox.width ? x - width : x;
    if (left > free) {
      ctx.fillText(text, left + 3 * ratio, bbox.top + 2 * ratio);
      free = left + width;
    }
  }
  ctx.setLineDash([]);
}

function drawPeak(chart: uPlot, { time, value }: Peak, view: View, ratio: number): void {
  const { ctx, bbox } = chart;
  const [x, y] = [chart.valToPos(time, "x", true), chart.valToPos(value, "y", true)];
  const text = `peak ${amountText(view, value)}`;
  const width = ctx.measureText(text).width;
  const isLeft = x + width + 10 * ratio > bbox.left + bbox.width;
  const left = x + (isLeft ? -7 * ratio - width : 7 * ratio);
  ctx.fillStyle = themeColour("--panel");
  ctx.fillRect(left - 2 * ratio, y - 16 * ratio, width + 4 * ratio, 14 * ratio);
  ctx.fillStyle = themeColour("--peak");
  ctx.beginPath();
  ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
  ctx.fill();
  ctx.textBaseline = "bottom";
  ctx.fillText(text, left, y - 3 * ratio);
}

function annotate(chart: uPlot, { points, peak, view }: ChartProps): void {
  const ratio = devicePixelRatio || 1;
  chart.ctx.save();
  chart.ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  chart.ctx.textBaseline = "top";
  chart.ctx.textAlign = "left";
  drawOccasions(chart, points, ratio);
  if (peak !== null) {
    drawPeak(chart, peak, view, ratio);
  }
  chart.ctx.restore();
}

/** Reports the value under the pointer. */
function hover(chart: uPlot, { curve, view, onValue }: ChartProps): void {
  const index = chart.cursor.idx ?? -1;
  const [time, value] = [curve.times[index], curve.values[index]];
  onValue(time === undefined || value === undefined ? "" : `${durationText(time * 1000)}: ${amountText(view, value)} (${wholeText(view, value)})`);
}

function drag(chart: uPlot, { points, onPick }: ChartProps): void {
  const { left, width } = chart.select;
  if (width < DRAG_MIN || !points.any) {
    return;
  }
  const millis = (x: number): number => chart.posToVal(x, "x") * 1000;
  const [from, to] = [points.nearest(millis(left)), points.nearest(millis(left + width))];
  chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  onPick(from === to ? points.windowAt(millis(left + width / 2)) : { from, to });
}

/** Powers of two, for round sizes at the axis. */
const STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

function options(width: number, latest: { readonly current: ChartProps }): uPlot.Options {
  const { view, curve } = latest.current;
  const axis = { stroke: themeColour("--quiet"), grid: { stroke: themeColour("--line"), width: 1 }, ticks: { stroke: themeColour("--line"), width: 1 } };
  const paths = curve.isCoarse ? uPlot.paths.linear?.() : uPlot.paths.stepped?.({ align: 1 });
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
    padding: [6, 8, 0, 0],
    scales: { x: { time: false, range: () => [latest.current.range.from, latest.current.range.to] }, y: { range: (_chart, _least, most) => [0, Math.max(most, latest.current.peak?.value ?? 0) * 1.3 || 1] } },
    axes: [
      { ...axis, size: 26, values: (_, splits) => splits.map((split) => durationText(split * 1000)), space: 80 },
      { ...axis, size: 78, space: 24, values: (_, splits) => splits.map((split) => amountText(view, split)), ...(isBytes(view) ? { incrs: STEPS } : {}) },
    ],
    series: [
      {},
      { stroke: themeColour("--accent"), width: 2, fill: themeColour("--accent-weak"), points: { show: curve.isCoarse }, ...(paths === undefined ? {} : { paths }) },
    ],
    hooks: {
      drawClear: [(chart) => { shadePeriods(chart, latest.current); }],
      draw: [(chart) => { annotate(chart, latest.current); }],
      setCursor: [(chart) => { hover(chart, latest.current); }],
      setSelect: [(chart) => { drag(chart, latest.current); }],
    },
  };
}

function listenToClicks(chart: uPlot, latest: { readonly current: ChartProps }): void {
  let down = 0;
  chart.over.addEventListener("mousedown", (event) => { down = event.clientX; });
  chart.over.addEventListener("click", (event) => {
    const { points, onPick } = latest.current;
    if (Math.abs(event.clientX - down) < DRAG_MIN && points.any) {
      const x = event.clientX - chart.over.getBoundingClientRect().left;
      onPick(points.windowAt(chart.posToVal(x, "x") * 1000));
    }
  });
}

function dataOf({ curve }: ChartProps): uPlot.AlignedData {
  return [curve.times as number[], curve.values as number[]];
}

export function Chart(props: ChartProps): JSX.Element {
  const parent = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const { curve, range, view, isDark, period, base, peak } = props;
  const { isCoarse } = curve;
  useEffect(() => {
    const element = parent.current;
    if (element === null) {
      return;
    }
    const made = new uPlot(options(element.clientWidth || 600, latest), dataOf(latest.current), element);
    listenToClicks(made, latest);
    chart.current = made;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0 && element.clientWidth !== made.width) {
        made.setSize({ width: element.clientWidth, height: HEIGHT });
      }
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [isCoarse, view, isDark]);
  // Other data keep the chart with its cursor.
  useEffect(() => { chart.current?.setData(dataOf(latest.current)); }, [curve, range, peak]);
  useEffect(() => { chart.current?.redraw(false, true); }, [period, base]);
  return <div id="timeline-chart" ref={parent} role="img" aria-label="Chart of the heap over time. The lists below select a part of it." />;
}

/** The graph itself: a canvas in a scroller, with mouse, keys and a tooltip. */

import type { JSX, TargetedMouseEvent } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Tree } from "../../analysis/tree.ts";
import { beside, layOut, type Layout } from "../../flame/layout.ts";
import { ROW, paint } from "../../flame/paint.ts";
import { cut } from "../../text.ts";
import { usePage } from "../page.ts";
import { amountsOf } from "./FlamePanel.tsx";

const LABEL =
  "Flame graph. Arrows move, Enter zooms in, Escape zooms out or leaves the focus, f focuses on the function, c shows its callers and callees.";

export interface FlameGraphProps {
  readonly tree: Tree;
  readonly zoomed: number;
  readonly chosen: number;
  readonly found: Uint8Array | null;
  readonly onChoose: (node: number) => void;
  readonly onZoom: (node: number) => void;
}

/** Where the pointer is, in the window. */
interface Hover {
  readonly x: number;
  readonly y: number;
}

/** The width of an element, kept up to date. */
function useWidth(element: { readonly current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measured = element.current;
    if (measured === null) {
      return;
    }
    const measure = (): void => { setWidth(measured.clientWidth); };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(measured);
    return () => { observer.disconnect(); };
  }, [element]);
  return width;
}

function nodeAt(layout: Layout, scroller: HTMLElement, { x: left, y: top }: Hover): number {
  const bounds = scroller.getBoundingClientRect();
  const x = left - bounds.left;
  const row = layout.rows[Math.floor((top - bounds.top + scroller.scrollTop) / ROW)] ?? [];
  return row.find((box) => x >= box.x && x < box.x + box.width)?.node ?? -1;
}

/** Scrolls a node's row into view. */
function reveal(scroller: HTMLElement, layout: Layout, node: number): void {
  const box = layout.boxes.get(node);
  if (box === undefined) {
    return;
  }
  const [top, bottom] = [box.row * ROW, (box.row + 1) * ROW];
  if (top < scroller.scrollTop) {
    scroller.scrollTop = top;
  } else if (bottom > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = bottom - scroller.clientHeight;
  }
}

/** The node that an arrow key leads to. */
function moved(key: string, tree: Tree, layout: Layout, node: number, zoomed: number): number | undefined {
  const siblings = beside(tree, layout, node);
  switch (key) {
    case "ArrowDown":
      return tree.children(node).find((child) => layout.boxes.has(child)) ?? node;
    case "ArrowUp":
      return node === 0 ? 0 : tree.parent(node);
    case "ArrowRight":
      return siblings[siblings.indexOf(node) + 1] ?? node;
    case "ArrowLeft":
      return siblings[siblings.indexOf(node) - 1] ?? node;
    case "Home":
      return zoomed;
    default:
      return undefined;
  }
}

export function FlameGraph(props: FlameGraphProps): JSX.Element {
  const { tree, zoomed, chosen, found, onChoose, onZoom } = props;
  const { colours, state, update } = usePage();
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hover, setHover] = useState<Hover | null>(null);
  const width = useWidth(scroller);
  const layout = useMemo(() => layOut(tree, zoomed, width), [tree, zoomed, width]);
  const hovered = hover === null || scroller.current === null ? -1 : nodeAt(layout, scroller.current, hover);
  const draw = (): void => {
    if (scroller.current !== null && canvas.current !== null) {
      const { scrollTop: top, clientHeight: height } = scroller.current;
      paint(canvas.current, { tree, layout, colours, scheme: state.colour, found, chosen, hovered }, { top, width, height }, devicePixelRatio || 1);
    }
  };
  useEffect(draw);
  const revealed = useRef(tree.profile);
  useEffect(() => {
    // With another document the reader stays at the same place.
    const isUpdate = revealed.current !== tree.profile;
    revealed.current = tree.profile;
    if (scroller.current !== null && chosen !== 0 && !isUpdate) {
      reveal(scroller.current, layout, chosen);
    }
  }, [chosen, layout, tree]);
  const zoomOut = (): void => {
    if (zoomed === 0) {
      update({ root: null });
    } else {
      onZoom(tree.parent(zoomed));
    }
  };
  const onKey = (event: KeyboardEvent): void => {
    const to = moved(event.key, tree, layout, chosen, zoomed);
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (to !== undefined) {
      onChoose(to);
    } else if (event.key === "Enter" || event.key === " ") {
      onZoom(chosen);
    } else if (event.key === "Escape" || event.key === "Backspace") {
      zoomOut();
    } else if (event.key === "f" && isPlain && tree.isFunction(chosen)) {
      update({ root: tree.key(chosen) });
    } else if (event.key === "c" && isPlain && tree.isFunction(chosen)) {
      update({ selected: tree.key(chosen), tab: "callers" });
    } else {
      return;
    }
    event.preventDefault();
  };
  const onClick = (event: TargetedMouseEvent<HTMLDivElement>): void => {
    const node = nodeAt(layout, event.currentTarget, { x: event.clientX, y: event.clientY });
    if (node >= 0) {
      onZoom(node === zoomed && node !== 0 ? tree.parent(node) : node);
    }
  };
  return (
    <div id="flame-frame">
      <div
        id="flame-scroller"
        ref={scroller}
        tabIndex={0}
        role="application"
        aria-roledescription="flame graph"
        aria-label={LABEL}
        aria-describedby="flame-detail"
        onScroll={draw}
        onMouseMove={(event) => { setHover({ x: event.clientX, y: event.clientY }); }}
        onMouseLeave={() => { setHover(null); }}
        onClick={onClick}
        onKeyDown={onKey}
      >
        <div id="flame-spacer" style={{ height: `${layout.rows.length * ROW + 2}px` }}>
          <canvas id="flame-canvas" ref={canvas} />
        </div>
      </div>
      {hover === null || hovered < 0 ? null : <Tip {...hover} name={tree.name(hovered)} lines={amountsOf(tree, hovered, zoomed, state).join(" · ")} />}
    </div>
  );
}

/** The tooltip, within the window. */
function Tip({ x, y, name, lines }: Hover & { name: string; lines: string }): JSX.Element {
  const tip = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = tip.current;
    if (element !== null) {
      const { offsetWidth: wide, offsetHeight: high } = element;
      const left = Math.min(x + 14, document.documentElement.clientWidth - wide - 8);
      const top = y + 18 + high > window.innerHeight ? y - high - 10 : y + 18;
      element.style.left = `${Math.max(4, left)}px`;
      element.style.top = `${Math.max(4, top)}px`;
    }
  }, [x, y, name]);
  return (
    <div id="tip" ref={tip} aria-hidden="true">
      <b>{cut(name, 300)}</b>
      <span>{lines}</span>
    </div>
  );
}

/** The flame graph's section: title, controls, legend, the graph, and details of the chosen frame. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Tree } from "../../analysis/tree.ts";
import { at } from "../../data/columns.ts";
import { KINDS, type Colours } from "../../flame/colours.ts";
import { nodeOfPath, pathOf } from "../../flame/layout.ts";
import { carriedNodes } from "../../state/carry.ts";
import type { State } from "../../state/state.ts";
import { amountText, baseName, changeText, cut, shareText, viewTitle, wholeText } from "../../text.ts";
import { useOfTree } from "../held.ts";
import { ExportMenu } from "../ExportMenu.tsx";
import { Button, Chooser, Marked, Name } from "../names.tsx";
import { usePage, type PageValue } from "../page.ts";
import { FlameGraph } from "./FlameGraph.tsx";

/** Maximum number of modules in the legend. */
const LEGEND_MAX = 6;

/** Quantity and period. */
export function subjectOf({ model, state }: PageValue): string {
  const { points, profile } = model;
  const { unreachable, older_than: age } = profile.header;
  const what = viewTitle(state.view, unreachable);
  if (unreachable) {
    return what;
  }
  if (state.atPeak) {
    return `${what} at the peak`;
  }
  const older = age !== null && state.view.startsWith("live") && points.isAll(state.period) ? ` older than ${age}` : "";
  const compared = state.base === null ? "" : `, compared with ${points.periodText(state.base)}`;
  return `${what}${older}, ${points.periodText(state.period)}${compared}`;
}

/** Amount and share of a node, and its module. */
export function amountsOf(tree: Tree, node: number, zoomed: number, { view, root }: State): string[] {
  const after = at(tree.after, node);
  const module = tree.module(node);
  const named = module === "" ? [] : [cut(baseName(module), 60)];
  if (tree.before !== null) {
    const before = at(tree.before, node);
    return [`${changeText(view, after - before)} (${amountText(view, before)} → ${amountText(view, after)})`, ...named];
  }
  const shares = [`${shareText(after, at(tree.after, 0))} of ${root === null ? "all" : "these stacks"}`];
  if (zoomed !== 0) {
    shares.push(`${shareText(after, at(tree.after, zoomed))} of the zoomed frame`);
  }
  return [amountText(view, after), ...shares, ...named];
}

interface Choice {
  readonly zoomed: number;
  readonly node: number;
}

function carriedChoice(from: Tree, { zoomed, node }: Choice, to: Tree): Choice {
  const found = carriedNodes(from, [zoomed, node], to);
  return { zoomed: found.get(zoomed) ?? 0, node: found.get(node) ?? 0 };
}

export function FlamePanel(): JSX.Element {
  const page = usePage();
  const { model, state, update, shown, hidden, match } = page;
  const { groups, isReversed, root, hide } = state;
  const shape = useMemo(() => model.shape({ groups, isReversed, root, hidden }, hide), [model, groups, isReversed, root, hidden, hide]);
  const tree = useMemo(() => new Tree(shape, shown), [shape, shown]);
  const zoomed = useMemo(() => nodeOfPath(tree, state.zoom), [tree, state.zoom]);
  const found = useMemo(() => (match === null ? null : tree.find(match.frames, match.matches)), [tree, match]);
  // The frame that was chosen by key or click; another zoom chooses the zoomed frame.
  const [choice, setChoice] = useOfTree(tree, () => ({ zoomed, node: zoomed }), carriedChoice);
  const chosen = choice.zoomed === zoomed ? choice.node : zoomed;
  const zoom = (node: number): void => { update({ zoom: pathOf(tree, node) }); };
  const isEmpty = !(at(tree.width, 0) > 0);
  return (
    <section id="flame" aria-labelledby="flame-title">
      <div class="title">
        <h2 id="flame-title" tabIndex={-1}>
          Flame graph <span id="flame-subject" class="subject">{subjectOf(page)}</span>{" "}
          <span id="flame-total" class="subject">{isEmpty ? "" : wholeText(state.view, at(tree.after, 0))}</span>
        </h2>
        <FlameTools tree={tree} zoomed={zoomed} />
      </div>
      <Root />
      {isEmpty ? <Empty /> : (
        <>
          <FlameGraph {...{ tree, zoomed, chosen, found }} onChoose={(node) => { setChoice({ zoomed, node }); }} onZoom={zoom} />
          <Detail {...{ tree, zoomed, chosen }} onZoom={zoom} />
        </>
      )}
    </section>
  );
}

/** Why there is nothing to show. */
function Empty(): JSX.Element {
  const { model, state } = usePage();
  const { header } = model.profile;
  const reason = header.nothing.find(({ view }) => view === state.view)?.lines.join(" ");
  return (
    <p id="flame-empty" class="quiet">
      <Marked text={reason ?? `There are no ${viewTitle(state.view, header.unreachable)} in the selection.`} />
    </p>
  );
}

/** The function that stacks start at. */
function Root(): JSX.Element | null {
  const { model, state, update } = usePage();
  if (state.root === null) {
    return null;
  }
  return (
    <p id="flame-focus">
      {state.isReversed ? "Callers of " : "Only stacks with "}
      <Name name={model.profile.functionName(state.root)} charsMax={90} />{" "}
      <Button onClick={() => { update({ root: null }); document.getElementById("flame-scroller")?.focus({ preventScroll: true }); }}>Show whole stacks</Button>
    </p>
  );
}

function FlameTools({ tree, zoomed }: { tree: Tree; zoomed: number }): JSX.Element {
  const { state, update } = usePage();
  return (
    <div class="tools">
      <Button id="flame-reverse" pressed={state.isReversed} title="Stacks from the allocating function outwards" onClick={() => { update({ isReversed: !state.isReversed }); }}>
        Reverse
      </Button>
      <Button id="flame-reset" disabled={zoomed === 0 && state.root === null} onClick={() => { update({ zoom: [], root: null }); }}>
        Reset zoom
      </Button>
      <Chooser
        id="flame-colour"
        label="Colour"
        options={[["module", "by module"], ["kind", "by kind"]]}
        value={state.colour}
        isHidden={state.base !== null}
        onChoose={(colour) => { update({ colour: colour === "kind" ? "kind" : "module" }); }}
      />
      <ExportMenu tree={tree} zoomed={zoomed} />
      <Legend tree={tree} />
    </div>
  );
}

function legendOf(tree: Tree, colours: Colours, state: State): (readonly [colour: string, text: string])[] {
  if (state.base !== null) {
    return [
      [colours.growth(1, 4), "grew"],
      [colours.growth(1, 1), "the same"],
      [colours.growth(4, 1), "shrank"],
    ];
  }
  if (state.colour === "kind") {
    return KINDS.map((kind, index) => [colours.ofKind(index), kind]);
  }
  return tree.modules(LEGEND_MAX).map((module) => [colours.ofModule(module), cut(module, 40)]);
}

function Legend({ tree }: { tree: Tree }): JSX.Element {
  const { colours, state } = usePage();
  return (
    <span id="flame-legend" class="legend">
      {legendOf(tree, colours, state).map(([colour, text]) => (
        <span key={text} class="key">
          <i style={{ background: colour }} />
          {text}
        </span>
      ))}
      {state.base === null ? null : "Width: the larger of both."}
    </span>
  );
}

interface DetailProps {
  readonly tree: Tree;
  readonly zoomed: number;
  readonly chosen: number;
  readonly onZoom: (node: number) => void;
}

/** The chosen frame with its full name, and what can be done with it. Takes no room while there is none. */
function Detail({ tree, zoomed, chosen, onZoom }: DetailProps): JSX.Element {
  const { state } = usePage();
  if (chosen === 0) {
    return <div id="flame-detail" aria-live="polite" />;
  }
  return (
    <div id="flame-detail" aria-live="polite">
      <p class="whole-name">{tree.name(chosen)}</p>
      <p class="amounts">
        {amountsOf(tree, chosen, zoomed, state).join(" · ")} · {tree.before === null ? "" : "in the period: "}
        {wholeText(state.view, at(tree.after, chosen))}
      </p>
      <div class="buttons">
        {chosen === zoomed ? null : <Button onClick={() => { onZoom(chosen); }}>Zoom in</Button>}
        {tree.isFunction(chosen) ? <FunctionButtons function={tree.key(chosen)} /> : null}
      </div>
    </div>
  );
}

/** What can be done with a function. */
export function FunctionButtons({ function: key }: { function: number }): JSX.Element {
  const { model, state, update } = usePage();
  const reveal = (): void => {
    requestAnimationFrame(() => { document.getElementById("tables")?.scrollIntoView(); });
  };
  const name = model.profile.functionName(key);
  const exactly = `^${name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")}$`;
  const joined = (text: string): string => (text === "" ? exactly : `${text}|${exactly}`);
  return (
    <>
      <Button disabled={state.root === key} title="Stacks that start at this function" onClick={() => { update({ root: key }); document.getElementById("flame-scroller")?.focus({ preventScroll: true }); }}>
        Focus
      </Button>
      {state.tab === "callers" && state.selected === key ? null : (
        <Button onClick={() => { update({ selected: key, tab: "callers" }); reveal(); }}>Callers and callees</Button>
      )}
      <Button onClick={() => { update({ through: key, tab: "callsites" }); reveal(); }}>Its callsites</Button>
      <Button title="Drop stacks with this function" onClick={() => { update({ ignore: joined(state.ignore) }); }}>
        Ignore
      </Button>
      <Button title="Remove this function from stacks" onClick={() => { update({ hide: joined(state.hide) }); }}>
        Hide
      </Button>
    </>
  );
}

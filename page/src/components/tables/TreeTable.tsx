/** An expandable table of a tree: a treegrid, with the keys of its pattern. */

import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { hotPath, selfAmount, treeRows, type TreeRow } from "../../analysis/rows.ts";
import type { Tree } from "../../analysis/tree.ts";
import { at } from "../../data/columns.ts";
import { amountText, baseName, changeText, countText, cut, shareText } from "../../text.ts";
import { carriedNodes } from "../../state/carry.ts";
import { useOfTree } from "../held.ts";
import { Button } from "../names.tsx";
import { usePage } from "../page.ts";

const ROWS_MAX = 400;

export interface TreeTableProps {
  readonly id: string;
  readonly label: string;
  readonly tree: Tree;
  /** Rows are the nodes below it. */
  readonly root: number;
  readonly nameTitle: string;
  readonly hasSelf: boolean;
  /** What a table without rows says. */
  readonly empty: string;
}

function carriedSet(from: Tree, nodes: ReadonlySet<number>, to: Tree): ReadonlySet<number> {
  return new Set(carriedNodes(from, nodes, to).values());
}

function carriedNode(from: Tree, node: number, to: Tree): number {
  return node < 0 ? node : (carriedNodes(from, [node], to).get(node) ?? -1);
}

/** The nodes that are open in a tree: of another tree, the path that has nearly all. */
function useOpen(tree: Tree, root: number): [ReadonlySet<number>, (nodes: ReadonlySet<number>) => void] {
  const first = (): ReadonlySet<number> => new Set(hotPath(tree, root).filter((node) => node !== root).slice(0, -1));
  return useOfTree(tree, first, carriedSet);
}

export function TreeTable({ id, label, tree, root, nameTitle, hasSelf, empty }: TreeTableProps): JSX.Element {
  const [open, setOpen] = useOpen(tree, root);
  const [limit, setLimit] = useState(ROWS_MAX);
  const [current, setCurrent] = useOfTree(tree, () => -1, carriedNode);
  const body = useRef<HTMLTableSectionElement>(null);
  const { state, match } = usePage();
  const rows = useMemo(() => treeRows(tree, root, (node) => open.has(node)), [tree, root, open]);
  const found = useMemo(() => (match === null ? null : tree.find(match.frames, match.matches)), [tree, match]);
  const shown = rows.slice(0, limit);
  const focused = shown.some(({ node }) => node === current) ? current : (shown[0]?.node ?? -1);
  const toggle = ({ node, isOpen }: TreeRow): void => {
    const next = new Set(open);
    if (isOpen) {
      next.delete(node);
    } else {
      hotPath(tree, node).forEach((one) => next.add(one));
    }
    setOpen(next);
  };
  const focus = (node: number | undefined): void => {
    if (node !== undefined) {
      setCurrent(node);
      body.current?.querySelector<HTMLElement>(`[data-node="${node}"]`)?.focus();
    }
  };
  const onKey = (event: KeyboardEvent, row: TreeRow, index: number): void => {
    const parent = tree.parent(row.node);
    if (event.key === "ArrowDown") {
      focus(shown[index + 1]?.node);
    } else if (event.key === "ArrowUp") {
      focus(shown[index - 1]?.node);
    } else if (event.key === "ArrowRight" && row.hasChildren && !row.isOpen) {
      toggle(row);
    } else if (event.key === "ArrowRight") {
      focus(row.isOpen ? shown[index + 1]?.node : undefined);
    } else if (event.key === "ArrowLeft" && row.isOpen) {
      toggle(row);
    } else if (event.key === "ArrowLeft") {
      focus(parent === root ? undefined : parent);
    } else if (event.key === "Home" || event.key === "End") {
      focus((event.key === "Home" ? shown[0] : shown.at(-1))?.node);
    } else if ((event.key === "Enter" || event.key === " ") && row.hasChildren) {
      toggle(row);
    } else {
      return;
    }
    event.preventDefault();
  };
  if (rows.length === 0) {
    return (
      <p class="quiet" role="status">
        {empty}
      </p>
    );
  }
  return (
    <>
      <div class="scroll">
        <table id={id} class="rows tree" role="treegrid" aria-label={label}>
          <thead>
            <tr>
              {tree.before === null ? null : <th scope="col" class="number">Growth</th>}
              <th scope="col" class="number">Inclusive</th>
              <th scope="col" class="number wide">Share</th>
              {hasSelf ? <th scope="col" class="number wide">Self</th> : null}
              <th scope="col">{nameTitle}</th>
            </tr>
          </thead>
          <tbody ref={body}>
            {shown.map((row, index) => (
              <tr
                key={row.node}
                data-node={row.node}
                role="row"
                aria-level={row.depth + 1}
                aria-posinset={row.position}
                aria-setsize={row.siblings}
                aria-expanded={row.hasChildren ? row.isOpen : undefined}
                tabIndex={row.node === focused ? 0 : -1}
                class={found?.[row.node] === 1 ? "found" : ""}
                onFocus={() => { setCurrent(row.node); }}
                onClick={() => { if (row.hasChildren) { toggle(row); } }}
                onKeyDown={(event) => { onKey(event, row, index); }}
              >
                <Cells tree={tree} row={row} hasSelf={hasSelf} view={state.view} />
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > limit ? (
        <Button id={`${id}-more`} onClick={() => { setLimit(limit + ROWS_MAX); }}>
          {countText(rows.length - limit)} more rows: show
        </Button>
      ) : null}
    </>
  );
}

function Cells({ tree, row, hasSelf, view }: { tree: Tree; row: TreeRow; hasSelf: boolean; view: Parameters<typeof amountText>[0] }): JSX.Element {
  const { node, depth, hasChildren, isOpen } = row;
  const after = at(tree.after, node);
  const change = tree.before === null ? 0 : after - at(tree.before, node);
  const module = tree.module(node);
  return (
    <>
      {tree.before === null ? null : (
        <td role="gridcell" class={`number${change > 0 ? " grew" : change < 0 ? " shrank" : ""}`}>
          {changeText(view, change)}
        </td>
      )}
      <td role="gridcell" class="number">{amountText(view, after)}</td>
      <td role="gridcell" class="number wide">{shareText(after, at(tree.after, 0))}</td>
      {hasSelf ? <td role="gridcell" class="number wide">{amountText(view, selfAmount(tree, node))}</td> : null}
      <td role="gridcell" class="where-cell tree-cell" title={cut(tree.name(node), 1000)}>
        <span class="indent" style={{ width: `${Math.min(depth, 60) * 0.8}em` }} />
        <span class="toggle" aria-hidden="true">{hasChildren ? (isOpen ? "▾" : "▸") : ""}</span>
        <span class="chain">{cut(tree.shortName(node), 200)}</span>
        {module === "" ? null : <span class="quiet place"> {cut(baseName(module), 60)}</span>}
      </td>
    </>
  );
}

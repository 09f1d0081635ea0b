/** A sortable table whose last column is a name, with expandable rows, and with rows without an amount folded away. */

import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { countText } from "../../text.ts";
import { Button } from "../names.tsx";

const ROWS_MORE = 50;

export interface NumberColumn {
  readonly id: string;
  readonly label: string;
  readonly title?: string;
  /** Of a row. */
  readonly value: (row: number) => number;
  readonly text: (value: number) => string;
  /** Hidden in narrow windows. */
  readonly wide?: boolean;
  readonly wider?: boolean;
  /** Whether a value is coloured by its sign. */
  readonly isChange?: boolean;
}

export interface DataTableProps {
  /** Prefix of the ids of its parts. */
  readonly id: string;
  readonly label: string;
  readonly columns: readonly NumberColumn[];
  readonly rows: readonly number[];
  /** The column by which rows are sorted first. */
  readonly sort: string;
  readonly nameTitle: string;
  readonly name: (row: number) => ComponentChildren;
  /** Details below a row; null for tables without. */
  readonly details: ((row: number) => ComponentChildren) | null;
  readonly open: readonly number[];
  readonly onToggle: (row: number) => void;
  readonly empty: string;
  /** Rows without an amount, how they are called (`0 B`), and whether they are shown. */
  readonly zero: { readonly is: (row: number) => boolean; readonly text: string; readonly isShown: boolean; readonly onShow: (isShown: boolean) => void };
}

interface Order {
  readonly id: string;
  readonly isDown: boolean;
  /** The first order that this one replaced: another first order replaces it. */
  readonly first: string;
}

function sorted(rows: readonly number[], column: NumberColumn | undefined, isDown: boolean): number[] {
  const values = new Map(rows.map((row) => [row, column?.value(row) ?? 0]));
  const sign = isDown ? -1 : 1;
  return [...rows].sort((one, other) => sign * ((values.get(one) ?? 0) - (values.get(other) ?? 0)) || one - other);
}

function classOf({ wide, wider }: NumberColumn): string {
  return `number${wide === true ? " wide" : ""}${wider === true ? " wider" : ""}`;
}

export function DataTable(props: DataTableProps): JSX.Element {
  const { id, columns, rows, zero } = props;
  const [order, setOrder] = useState<Order>({ id: props.sort, isDown: true, first: props.sort });
  const [limit, setLimit] = useState(ROWS_MORE);
  const isKnown = order.first === props.sort && columns.some((column) => column.id === order.id);
  const by = isKnown ? order : { id: props.sort, isDown: true };
  const column = columns.find((one) => one.id === by.id);
  const all = useMemo(() => sorted(rows, column, by.isDown), [rows, column, by.isDown]);
  const zeros = all.filter(zero.is).length;
  const listed = zero.isShown ? all : all.filter((row) => !zero.is(row));
  const sortBy = (to: string): void => { setOrder({ id: to, isDown: by.id === to ? !by.isDown : true, first: props.sort }); };
  // Rows that are open are reached, whatever the limit.
  const reached = listed.reduce((most, row, index) => (props.open.includes(row) ? index + 1 : most), 0);
  const shown = listed.slice(0, Math.max(limit, reached));
  const left = listed.length - shown.length;
  const more = (): void => {
    const next = listed[shown.length];
    setLimit(shown.length + ROWS_MORE);
    requestAnimationFrame(() => { document.querySelector<HTMLElement>(`#${id}-body [data-row="${next ?? ""}"]`)?.focus({ preventScroll: true }); });
  };
  return (
    <>
      {listed.length === 0 ? (
        <p id={`${id}-empty`} class="quiet" role="status">
          {props.empty}
        </p>
      ) : (
        <div class="scroll">
          <table class="rows" aria-label={props.label}>
            <Head {...{ id, columns, by, nameTitle: props.nameTitle, onSort: sortBy }} />
            <tbody id={`${id}-body`}>
              {shown.map((row) => (
                <Row key={row} row={row} {...props} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {left > 0 ? (
        <Button id={`${id}-more`} onClick={more}>
          {left > ROWS_MORE ? `Show ${countText(ROWS_MORE)} more of ${countText(left)}` : `Show the other ${countText(left)}`}
        </Button>
      ) : null}
      {zeros > 0 && left === 0 ? (
        <Button id={`${id}-zeros`} pressed={zero.isShown} onClick={() => { zero.onShow(!zero.isShown); }}>
          {`${countText(zeros)} ${zeros === 1 ? "row" : "rows"} of ${zero.text}: ${zero.isShown ? "hide" : "show"}`}
        </Button>
      ) : null}
    </>
  );
}

interface HeadProps {
  id: string;
  columns: readonly NumberColumn[];
  by: { id: string; isDown: boolean };
  nameTitle: string;
  onSort: (id: string) => void;
}

function Head({ id, columns, by, nameTitle, onSort }: HeadProps): JSX.Element {
  return (
    <thead id={`${id}-head`}>
      <tr>
        {columns.map((column) => {
          const isSorted = column.id === by.id;
          return (
            <th key={column.id} scope="col" class={classOf(column)} aria-sort={isSorted ? (by.isDown ? "descending" : "ascending") : "none"}>
              <button type="button" title={column.title} data-column={column.id} onClick={() => { onSort(column.id); }}>
                {column.label}
                <i aria-hidden="true">{isSorted ? (by.isDown ? "▾" : "▴") : ""}</i>
              </button>
            </th>
          );
        })}
        <th scope="col">{nameTitle}</th>
      </tr>
    </thead>
  );
}

function Row({ row, columns, name, details, open, onToggle }: DataTableProps & { row: number }): JSX.Element {
  const isOpen = open.includes(row);
  return (
    <>
      <tr class={isOpen ? "open" : ""}>
        {columns.map((column) => {
          const value = column.value(row);
          const tone = column.isChange === true && value !== 0 ? (value > 0 ? " grew" : " shrank") : "";
          return (
            <td key={column.id} class={classOf(column) + tone}>
              {column.text(value)}
            </td>
          );
        })}
        <td class="where-cell">
          <button type="button" class="where" aria-expanded={details === null ? undefined : isOpen} data-row={row} onClick={() => { onToggle(row); }}>
            {name(row)}
          </button>
        </td>
      </tr>
      {isOpen && details !== null ? (
        <tr class="details">
          <td colSpan={columns.length + 1}>{details(row)}</td>
        </tr>
      ) : null}
    </>
  );
}

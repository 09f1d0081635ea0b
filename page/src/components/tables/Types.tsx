/** Table of the objects in the heaps of language runtimes, by type. */

import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { typeTable } from "../../analysis/objects.ts";
import { at } from "../../data/columns.ts";
import { changeText, countText, cut, plural, sizeText } from "../../text.ts";
import { usePage } from "../page.ts";
import { DataTable, type NumberColumn } from "./DataTable.tsx";

export function Types(): JSX.Element {
  const { model, state, update } = usePage();
  const { targets } = model.profile;
  const table = useMemo(() => typeTable(targets, state.target), [targets, state.target]);
  const rows = useMemo(() => table.names.map((_, row) => row), [table]);
  const columns = useMemo(() => {
    const own: NumberColumn[] = [
      { id: "bytes", label: "Live", title: "Objects, and tables that they own", value: (row) => at(table.bytes, row), text: sizeText },
      { id: "objects", label: "Objects", value: (row) => at(table.objects, row), text: countText },
    ];
    const growth: NumberColumn[] = [
      { id: "growth", label: "Growth", title: "Since the first count", value: (row) => at(table.grownBytes, row), text: (value) => changeText("live-bytes", value), isChange: true },
      { id: "growth-objects", label: "Grown objects", value: (row) => at(table.grownObjects, row), text: (value) => changeText("live-count", value), isChange: true, wide: true },
    ];
    return table.hasGrowth ? [...own, ...growth] : own;
  }, [table]);
  return (
    <>
      <p class="tools">
        <span id="types-count" class="subject">
          {plural(rows.length, "type")}
        </span>
      </p>
      <DataTable
        id="types"
        label="Types"
        {...{ columns, rows }}
        sort="bytes"
        nameTitle="Type"
        name={(row) => <span class="chain">{cut(table.names[row] ?? "", 200)}</span>}
        details={null}
        open={[]}
        onToggle={() => undefined}
        empty="No objects of the selected process were counted."
        zero={{ is: (row) => at(table.objects, row) === 0, text: "no object", isShown: state.showsZeros, onShow: (showsZeros) => { update({ showsZeros }); } }}
      />
      {table.notes.map((note) => (
        <p key={note} class="quiet">
          {note}
        </p>
      ))}
    </>
  );
}

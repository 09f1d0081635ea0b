import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { gunzipSync } from "node:zlib";
import { Profile as Pprof, type Location } from "pprof-format";
import { callsitesCsv, csv, functionsCsv, type ViewAmounts } from "../src/analysis/export/csv.ts";
import { folded, label } from "../src/analysis/export/folded.ts";
import { boxes } from "../src/analysis/boxes.ts";
import { paint, size, svg, type Context, type Picture } from "../src/analysis/export/picture.ts";
import { pprof } from "../src/analysis/export/pprof.ts";
import { Message } from "../src/analysis/export/proto.ts";
import { Tree, TreeShape } from "../src/analysis/tree.ts";
import { at, sum } from "../src/data/columns.ts";
import { VIEWS, field } from "../src/data/document.ts";
import type { Profile } from "../src/data/profile.ts";
import { profile } from "./profiles.ts";
import { synthetic } from "./synthetic.ts";

const WHOLE = { groups: [], isReversed: false, root: null, hidden: null };

function amounts(made: Profile): ViewAmounts {
  return Object.fromEntries(VIEWS.map((view) => [field(view), made.callsites[field(view)]])) as unknown as ViewAmounts;
}

function tree(made: Profile): Tree {
  return new Tree(new TreeShape(made, WHOLE), { after: made.callsites.alloc_bytes, before: null });
}

describe("folded stacks", () => {
  test("lines add up to the total", () => {
    const made = profile("exact");
    const lines = folded(tree(made)).trimEnd().split("\n");
    const total = lines.map((line) => Number(line.slice(line.lastIndexOf(" ")))).reduce((all, amount) => all + amount, 0);
    assert.equal(total, sum(made.callsites.alloc_bytes));
    assert.ok(lines.some((line) => /;cache_insert;[^;]* \d+$/.test(line) || /;cache_insert \d+$/.test(line)), lines.join("\n"));
  });

  test("names do not break lines", () => {
    assert.deepEqual(["a;b", "f 12", "# x", "\n", "f 12 g", "a\nb"].map(label), ["a:b", "f_12", "_ x", "[no name]", "f 12 g", "a b"]);
  });
});

describe("CSV", () => {
  test("cells are quoted as RFC 4180 has it, and no cell is a formula", () => {
    const rows = [["a", 1.239, 'say "x"'], ["b,c", -5, "=1+1"], ["d\ne", 0, '@"x"']];
    assert.equal(csv(rows), 'a,1.24,"say ""x"""\r\n"b,c",-5,\'=1+1\r\n"d\ne",0,"\'@""x"""\r\n');
  });

  test("callsites and functions have all amounts", () => {
    const made = profile("exact");
    const rows = callsitesCsv(made, amounts(made), null, null).trimEnd().split("\r\n");
    assert.equal(rows[0], "live_bytes,live_count,alloc_bytes,alloc_count,process,heap,thread,function,source,stack");
    const total = rows.slice(1).map((row) => Number(row.split(",")[2])).reduce((all, amount) => all + amount, 0);
    assert.equal(total, sum(made.callsites.alloc_bytes));
    const functions = functionsCsv(made, amounts(made), null, null).split("\r\n");
    assert.match(functions[0] ?? "", /^function,module,live_bytes_self,live_bytes_inclusive,/);
    assert.ok(functions.some((row) => row.startsWith("cache_insert,")), functions.join("\n"));
    const none = functionsCsv(made, amounts(made), new Uint8Array(made.count), null).trimEnd().split("\r\n");
    assert.equal(none.length, 1);
  });
});

describe("pprof", () => {
  const read = async (made: Profile): Promise<Pprof> => {
    const options = { amounts: amounts(made), view: "alloc-bytes" as const, kept: null, hidden: null, comments: ["focus=x"] };
    const packed = await pprof(made, options);
    return Pprof.decode(gunzipSync(new Uint8Array(await packed.arrayBuffer())));
  };

  test("pprof-format reads what was written", async () => {
    for (const name of ["exact", "sampled", "mixed", "empty"] as const) {
      const made = profile(name);
      const decoded = await read(made);
      const text = (index: number | bigint): string => decoded.stringTable.strings[Number(index)] ?? "";
      assert.deepEqual(decoded.sampleType.map(({ type, unit }) => `${text(type)} ${text(unit)}`), ["inuse_space bytes", "inuse_objects count", "alloc_space bytes", "alloc_objects count"]);
      assert.equal(text(decoded.defaultSampleType), "alloc_space");
      assert.deepEqual(decoded.comment.map(text), ["focus=x"]);
      assert.equal(Number(decoded.durationNanos), made.header.span * 1e6);
      VIEWS.forEach((view, index) => {
        const total = decoded.sample.reduce((all, { value }) => all + Number(value[index]), 0);
        const expected = made.callsites[field(view)].reduce((all, amount) => all + Math.round(amount), 0);
        assert.equal(total, expected, `${name} ${view}`);
      });
    }
  });

  test("stacks, files and modules are resolved", async () => {
    const made = profile("exact");
    const decoded = await read(made);
    const text = (index: number | bigint): string => decoded.stringTable.strings[Number(index)] ?? "";
    const byId = <T extends { id: number | bigint }>(list: readonly T[], id: number | bigint): T => {
      const found = list.find((item) => Number(item.id) === Number(id));
      assert.ok(found !== undefined);
      return found;
    };
    const names = (location: Location): string[] => location.line.map((line) => text(byId(decoded.function, line.functionId).name));
    const stacks = decoded.sample.map(({ locationId }) => locationId.flatMap((id) => names(byId(decoded.location, id))));
    const expected = Array.from({ length: made.count }, (_, callsite) => [...made.stack(callsite).map((frame) => made.functionName(made.frameFunction(frame))), ...[...made.gap(callsite)].reverse()]);
    assert.deepEqual(stacks, expected);
    assert.ok(decoded.mapping.some(({ filename }) => text(filename).endsWith("libc.so.6")));
    assert.ok(decoded.function.some(({ filename }) => text(filename).endsWith(".c")));
  });

  test("numbers of any size are encoded", () => {
    const bytes = (value: number): string => Buffer.from(new Message().number(1, value).finish()).toString("hex");
    assert.deepEqual([1, 300, 2 ** 53, -1, 0].map(bytes), ["0801", "08ac02", "0880808080808080" + "10", "08ffffffffffffffffff01", ""]);
  });

  test("10,000 callsites of 40 frames are written in a second", async () => {
    const made = synthetic(10_000, 40);
    // CPU time: other work on the machine must not fail the test.
    const start = process.cpuUsage();
    await pprof(made, { amounts: amounts(made), view: "live-bytes", kept: null, hidden: null, comments: [] });
    const millis = process.cpuUsage(start).user / 1000;
    assert.ok(millis < 1000, `${millis} ms`);
  });
});

describe("pictures", () => {
  const made = profile("sampled");
  const picture: Picture = {
    tree: tree(made),
    zoomed: 0,
    width: 1200,
    title: "allocated <bytes>",
    subtitle: 'of "x" & y',
    colourOf: () => "#abc",
    amountOf: () => "1 B",
    ground: "#fff",
    text: "#000",
  };

  test("boxes are inside their parents'", () => {
    const drawn = boxes(picture.tree, 0, 1000, 0.3).boxes;
    const byNode = new Map(drawn.map((box) => [box.node, box]));
    assert.equal(byNode.size, drawn.length);
    for (const box of drawn.filter(({ node }) => node > 0)) {
      const parent = byNode.get(picture.tree.parent(box.node));
      assert.ok(parent !== undefined);
      assert.equal(parent.row, box.row - 1);
      assert.ok(box.x >= parent.x - 1e-9 && box.x + box.width <= parent.x + parent.width + 1e-6);
    }
  });

  test("a zoomed frame and those above have the whole width", () => {
    const [child] = picture.tree.children(0);
    const [grandchild] = picture.tree.children(child ?? 0);
    const drawn = boxes(picture.tree, grandchild ?? 0, 1000, 0.3).boxes;
    assert.deepEqual(drawn.slice(0, 3).map(({ node, width, row }) => [node, width, row]), [[0, 1000, 0], [child, 1000, 1], [grandchild, 1000, 2]]);
  });

  test("names are escaped", () => {
    const text = svg(picture);
    assert.ok(text.includes("allocated &lt;bytes&gt;") && text.includes("of &quot;x&quot; &amp; y"));
    assert.ok(text.includes("std::map&lt;int, std::pair&lt;std::string, Foo&gt; &gt;::insert(std::pair&lt;int const, Foo&gt;&amp;&amp;)"), "a name with brackets");
    assert.equal(text.split("<g>").length, text.split("</g>").length);
    // Without entities and tags there is no markup left.
    assert.ok(!/[<&]/.test(text.replace(/<\/?(svg|g|title|rect|text)\b[^<>]*>/g, "").replace(/&(lt|gt|amp|quot|#39);/g, "")));
  });

  test("a canvas has the same frames", () => {
    const filled: [number, number, number, number][] = [];
    const written: string[] = [];
    const context: Context = {
      fillStyle: "",
      font: "",
      fillRect: (...box) => void filled.push(box),
      fillText: (text) => void written.push(text),
      setTransform: () => undefined,
    };
    paint(context, picture, 2);
    const drawn = boxes(picture.tree, 0, 1180, 0.3).boxes;
    assert.equal(filled.length, 1 + drawn.length);
    assert.deepEqual(filled[0], [0, 0, size(picture).width, size(picture).height]);
    assert.ok(at(filled.map(([, top, , height]) => top + height), 1) <= size(picture).height);
    assert.equal(written[0], "allocated <bytes>");
  });
});

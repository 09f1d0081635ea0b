/** Exports the present view: pictures of the flame graph, tables and stacks of the selection, and the address. */

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { callsitesCsv, functionsCsv, type ViewAmounts } from "../analysis/export/csv.ts";
import { folded } from "../analysis/export/folded.ts";
import { paint, size, svg, type Picture } from "../analysis/export/picture.ts";
import { pprof } from "../analysis/export/pprof.ts";
import type { Tree } from "../analysis/tree.ts";
import { at } from "../data/columns.ts";
import { amountText, cut, shareText } from "../text.ts";
import { CopyButton } from "./CopyButton.tsx";
import { subjectOf } from "./flame/FlamePanel.tsx";
import { usePage, type PageValue } from "./page.ts";

const PICTURE_WIDTH = 1400;
const PNG_SCALE = 2;

function save(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The browser reads the content after the click.
  setTimeout(() => { URL.revokeObjectURL(link.href); }, 60_000);
}

function text(content: string, type: string): Blob {
  return new Blob([content], { type: `${type};charset=utf-8` });
}

/** A file name from the subject's characters that all systems accept. */
function fileName({ model, state }: PageValue, extension: string): string {
  const subject = cut(model.profile.header.subject, 40).replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "");
  return `${subject === "" ? "heap" : subject}.${state.view}.${extension}`;
}

function picture(page: PageValue, tree: Tree, zoomed: number): Picture {
  const { colours, state, model } = page;
  return {
    tree,
    zoomed,
    width: PICTURE_WIDTH,
    title: cut(model.profile.header.subject, 120),
    subtitle: subjectOf(page),
    colourOf: (node) => colours.ofNode(tree, node, state.colour),
    amountOf: (node) => `${amountText(state.view, at(tree.after, node))}, ${shareText(at(tree.after, node), at(tree.after, 0))}`,
    ground: colours.isDark ? "#15171b" : "#ffffff",
    text: colours.text,
  };
}

function png(made: Picture): Promise<Blob> {
  const canvas = document.createElement("canvas");
  const { width, height } = size(made);
  canvas.width = width * PNG_SCALE;
  canvas.height = height * PNG_SCALE;
  const context = canvas.getContext("2d");
  if (context === null) {
    return Promise.reject(new Error("the browser has no canvas"));
  }
  paint(context, made, PNG_SCALE);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => {
      if (blob === null) {
        reject(new Error("the picture is too large for the browser"));
      } else {
        resolve(blob);
      }
    }, "image/png");
  });
}

/** Amounts of all views in the chosen period, or at the peak. */
function amountsOf({ model, state }: PageValue): ViewAmounts {
  const during = model.amounts.during(state.period);
  const live = state.atPeak ? { live_bytes: model.profile.callsites.at_peak_bytes } : {};
  return { live_bytes: during.live_bytes, live_count: during.live_count, alloc_bytes: during.alloc_bytes, alloc_count: during.alloc_count, ...live };
}

interface Kind {
  readonly label: string;
  readonly extension: string;
  readonly make: (page: PageValue, tree: Tree, zoomed: number) => Blob | Promise<Blob>;
}

const KINDS: readonly Kind[] = [
  { label: "Flame graph as SVG", extension: "svg", make: (page, tree, zoomed) => text(svg(picture(page, tree, zoomed)), "image/svg+xml") },
  { label: "Flame graph as PNG", extension: "png", make: (page, tree, zoomed) => png(picture(page, tree, zoomed)) },
  { label: "Stacks, folded", extension: "folded", make: (_, tree) => text(folded(tree), "text/plain") },
  {
    label: "Callsites as CSV",
    extension: "callsites.csv",
    make: (page) => text(callsitesCsv(page.model.profile, amountsOf(page), page.mask, page.hidden), "text/csv"),
  },
  {
    label: "Functions as CSV",
    extension: "functions.csv",
    make: (page) => text(functionsCsv(page.model.profile, amountsOf(page), page.mask, page.hidden), "text/csv"),
  },
  {
    label: "pprof",
    extension: "pb.gz",
    make: (page) =>
      pprof(page.model.profile, { amounts: amountsOf(page), view: page.state.view, kept: page.mask, hidden: page.hidden, comments: [subjectOf(page)] }),
  },
];

export function ExportMenu({ tree, zoomed }: { tree: Tree; zoomed: number }): JSX.Element {
  const page = usePage();
  const menu = useRef<HTMLDetailsElement>(null);
  const [problem, setProblem] = useState("");
  const run = ({ make, extension }: Kind): void => {
    setProblem("");
    Promise.resolve(make(page, tree, zoomed)).then(
      (content) => {
        save(fileName(page, extension), content);
        menu.current?.removeAttribute("open");
      },
      (error: unknown) => { setProblem(`The export failed: ${error instanceof Error ? error.message : String(error)}`); },
    );
  };
  return (
    <details class="menu" id="export" ref={menu}>
      <summary>Export</summary>
      <div class="menu-body">
        {KINDS.map((kind) => (
          <button key={kind.extension} type="button" data-format={kind.extension} onClick={() => { run(kind); }}>
            {kind.label}
          </button>
        ))}
        <CopyButton label="Copy the link to this view" text={() => location.href} />
        <p class="warning" role="status">
          {problem}
        </p>
      </div>
    </details>
  );
}

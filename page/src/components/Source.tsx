/** Source positions: the lines around them where the report contains them, else a path to copy or to open in an editor. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { sourceAround, type SourcePiece } from "../analysis/source.ts";
import { editorUrl } from "../state/settings.ts";
import { cut } from "../text.ts";
import { CopyButton } from "./CopyButton.tsx";
import { usePage } from "./page.ts";
import { useSettings } from "./settings-context.ts";

/** The position of a frame: `file:line`, which opens the source, or is copied by a click. */
export function SourceLine({ frame }: { frame: number }): JSX.Element | null {
  const { profile } = usePage().model;
  const { editor } = useSettings();
  const [isOpen, setOpen] = useState(false);
  const position = profile.sourcePosition(frame);
  const file = profile.sourceFile(frame);
  if (position === "") {
    return null;
  }
  if (file === "") {
    return <>{cut(position, 400)}</>;
  }
  const piece = sourceAround(profile, frame);
  const line = profile.sourceLine(frame);
  return (
    <>
      {piece === null ? (
        <CopyButton className="path" label="Copy the path" text={() => position}>
          {cut(position, 400)}
        </CopyButton>
      ) : (
        <button type="button" class="path" aria-expanded={isOpen} onClick={() => { setOpen(!isOpen); }}>
          {cut(position, 400)}
        </button>
      )}{" "}
      {editor === "" ? null : (
        <a class="edit" href={editorUrl(editor, file, line)}>
          open
        </a>
      )}
      {piece !== null && isOpen ? <SourceView piece={piece} line={line} position={position} /> : null}
    </>
  );
}

/** Lines of a source file, with the frame's line marked. */
function SourceView({ piece, line, position }: { piece: SourcePiece; line: number; position: string }): JSX.Element {
  return (
    <div class="source" role="region" aria-label={`Source: ${cut(position, 200)}`}>
      <CopyButton label="Copy the path" text={() => position} />
      <pre tabIndex={0} aria-label="Source lines">
        {piece.lines.map((text, index) => {
          const number = piece.first + index;
          return (
            <code key={number} class={number === line ? "line marked" : "line"} aria-current={number === line ? "location" : undefined}>
              <span class="line-number">{number}</span>
              {text}
              {"\n"}
            </code>
          );
        })}
      </pre>
    </div>
  );
}

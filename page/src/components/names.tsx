/** Names, texts and tables' small parts. Strings become text nodes, never markup. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { cut, plural, printable } from "../text.ts";

const WHOLE_NAME_MAX = 600;

/** Text with code in backticks. */
export function Marked({ text }: { text: string }): JSX.Element {
  return <>{text.split("`").map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}</>;
}

/** A name in one line, truncated, with a longer title. */
export function Name({ name, charsMax }: { name: string; charsMax: number }): JSX.Element {
  return (
    <span class="name" title={cut(name, 2000)}>
      {cut(name, charsMax)}
    </span>
  );
}

/** A name; if very long, truncated, with a button for the full name. */
export function WholeName({ name }: { name: string }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  if (name.length <= WHOLE_NAME_MAX || isWhole) {
    return <code>{isWhole ? name : printable(name)}</code>;
  }
  return (
    <span>
      <code>{cut(name, 400)}</code>{" "}
      <button type="button" class="more" onClick={() => { setWhole(true); }}>
        full name ({plural(name.length, "character")})
      </button>
    </span>
  );
}

export type Option = readonly [value: string, label: string];

export interface ChooserProps {
  id: string;
  label: string;
  options: readonly Option[];
  value: string;
  onChoose: (value: string) => void;
  isHidden?: boolean;
}

/** A labelled list to choose from. */
export function Chooser({ id, label, options, value, onChoose, isHidden = false }: ChooserProps): JSX.Element {
  return (
    <label id={`${id}-label`} hidden={isHidden}>
      {label}{" "}
      <select id={id} value={value} onChange={(event) => { onChoose(event.currentTarget.value); }}>
        {options.map(([one, text]) => (
          <option key={one} value={one} selected={one === value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Button({ id, label, pressed, disabled, title, onClick, children }: {
  id?: string;
  label?: string;
  pressed?: boolean;
  disabled?: boolean;
  title?: string;
  onClick: () => void;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <button type="button" id={id} aria-label={label} aria-pressed={pressed} disabled={disabled} title={title} onClick={() => { onClick(); }}>
      {children}
    </button>
  );
}

/** A button that copies text, and confirms it. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

/** Copies text; where the browser grants files no clipboard, through a selection. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    // The successor is what failed above.
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- no other way without the clipboard interface
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

export interface CopyButtonProps {
  readonly text: () => string;
  readonly label: string;
  readonly className?: string;
  readonly children?: ComponentChildren;
}

export function CopyButton({ text, label, className = "", children }: CopyButtonProps): JSX.Element {
  const [answer, setAnswer] = useState("");
  const onClick = (event: MouseEvent): void => {
    event.stopPropagation();
    const button = event.currentTarget instanceof HTMLElement ? event.currentTarget : null;
    void copy(text()).then((isCopied) => {
      setAnswer(isCopied ? "copied" : "not copied: the browser forbids it");
      button?.focus({ preventScroll: true });
      setTimeout(() => { setAnswer(""); }, 2000);
    });
  };
  return (
    <>
      <button type="button" class={className} title={label} onClick={onClick}>
        {children ?? label}
      </button>
      <span class="quiet copied" role="status">
        {answer}
      </span>
    </>
  );
}

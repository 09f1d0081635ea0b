/** Settings of the reader, which are kept in the browser and not in the address: theme and editor. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { EDITORS, isEditorTemplate, readSetting, writeSetting } from "../state/settings.ts";
import { useSettings } from "./settings-context.ts";

const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function isTheme(text: string): text is Theme {
  return (THEMES as readonly string[]).includes(text);
}

export function Settings(): JSX.Element {
  const { theme, setTheme } = useSettings();
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto";
  return (
    <div class="settings">
      <EditorSetting />
      <button type="button" id="theme" onClick={() => { setTheme(next); }}>
        Theme: {theme}
      </button>
    </div>
  );
}

/** The URL that opens a source line in the reader's editor. */
function EditorSetting(): JSX.Element {
  const { editor, setEditor } = useSettings();
  const [text, setText] = useState(editor);
  useEffect(() => { setText(editor); }, [editor]);
  const isWrong = text !== "" && !isEditorTemplate(text);
  const apply = (value: string): void => {
    setText(value);
    if (value === "" || isEditorTemplate(value)) {
      setEditor(value);
    }
  };
  return (
    <details class="menu" id="editor-menu">
      <summary>Editor</summary>
      <div class="menu-body">
        <label>
          URL that opens a source line
          <input
            id="editor"
            type="text"
            spellcheck={false}
            placeholder="vscode://file/{path}:{line}"
            list="editors"
            value={text}
            aria-invalid={isWrong}
            onInput={(event) => { apply(event.currentTarget.value.trim()); }}
          />
        </label>
        <datalist id="editors">
          {EDITORS.map((template) => (
            <option key={template} value={template} />
          ))}
        </datalist>
        <p class="quiet" role="status">
          {isWrong ? "The URL must start with a scheme (`vscode://`) and contain {path}." : "Empty: a click copies the path. The setting is kept in this browser."}
        </p>
      </div>
    </details>
  );
}

/** The stored theme and editor, and setters that store them. */
export function useStoredSettings(): { theme: Theme; setTheme: (theme: Theme) => void; editor: string; setEditor: (editor: string) => void } {
  const stored = readSetting("theme");
  const [theme, showTheme] = useState<Theme>(isTheme(stored) ? stored : "auto");
  const known = readSetting("editor");
  const [editor, showEditor] = useState(isEditorTemplate(known) ? known : "");
  useEffect(() => { document.documentElement.dataset.theme = theme; }, [theme]);
  return {
    theme,
    setTheme: (to) => { showTheme(to); writeSetting("theme", to === "auto" ? "" : to); },
    editor,
    setEditor: (to) => { showEditor(to); writeSetting("editor", to); },
  };
}

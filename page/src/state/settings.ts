/** Settings of the reader, in the browser's storage where the page may use it. */

const PREFIX = "heapbpf-";

export const EDITORS = ["vscode://file/{path}:{line}", "idea://open?file={path}&line={line}", "subl://open?url=file://{path}&line={line}", "zed://file/{path}:{line}"];

export function readSetting(name: string): string {
  try {
    return localStorage.getItem(PREFIX + name) ?? "";
  } catch {
    // Browsers may forbid storage to files; settings then last as long as the page.
    return "";
  }
}

export function writeSetting(name: string, value: string): void {
  try {
    if (value === "") {
      localStorage.removeItem(PREFIX + name);
    } else {
      localStorage.setItem(PREFIX + name, value);
    }
  } catch {
    // As above.
  }
}

/** Whether a template is a URL of a program, not a script, with a place for the path. */
export function isEditorTemplate(template: string): boolean {
  return /^[a-z][a-z0-9+.-]*:\/\//i.test(template) && !/^(javascript|data|vbscript|blob):/i.test(template) && template.includes("{path}");
}

/** The URL that opens a line of a file. */
export function editorUrl(template: string, path: string, line: number): string {
  const escaped = path.split("/").map(encodeURIComponent).join("/");
  // `vscode://file/{path}` has the path's first slash, `file://{path}` has not.
  const relative = escaped.replace(/^\//, "");
  const inserted = (_: string, at: number): string => (/[^/]\/$/.test(template.slice(0, at)) ? relative : escaped);
  // Functions as replacements: in strings `$&` would have a meaning.
  return template.replaceAll("{path}", inserted).replaceAll("{line}", () => String(Math.max(1, line)));
}

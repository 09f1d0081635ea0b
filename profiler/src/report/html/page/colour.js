// Colours of the flame graph: by module, by what a function is of, or by growth. Each is a background and its text's colour.

const KINDS = ["program", "library", "allocator or runtime", "no name", "heapbpf's own words"];
const KIND_HUES = [28, 205, 280, 0, 0];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

function hueOf(text) {
  let hash = 7;
  for (let at = 0; at < text.length && at < 400; at += 1) {
    hash = (Math.imul(hash, 31) + text.charCodeAt(at)) | 0;
  }
  return (((hash ^ (hash >>> 13)) % 360) + 360) % 360;
}

class Colours {
  constructor() {
    this.dark = isDark();
    this.known = new Map();
  }

  get text() {
    return this.dark ? "#f2f2f4" : "#17181c";
  }

  hue(hue, saturation) {
    return this.dark ? `hsl(${hue} ${saturation * 0.6}% 30%)` : `hsl(${hue} ${saturation}% 78%)`;
  }

  grey(step = 0) {
    return this.dark ? `hsl(220 6% ${27 + step * 6}%)` : `hsl(220 8% ${85 - step * 6}%)`;
  }

  // Of a node by the selection's way of colouring.
  of(tree, node, colour) {
    if (tree.before !== null) {
      return this.growth(tree.before[node], tree.after[node]);
    }
    if (!tree.isFunction(node)) {
      return this.grey();
    }
    const key = tree.key[node];
    if (colour === "kind") {
      return this.kind(tree.profile.functions.kind[key]);
    }
    const module = tree.module(node);
    if (!this.known.has(module)) {
      this.known.set(module, module === "" ? this.grey(1) : this.hue(hueOf(baseName(module)), 62));
    }
    return this.known.get(module);
  }

  kind(kind) {
    return kind >= 3 ? this.grey(kind === 3 ? 1 : 0) : this.hue(KIND_HUES[kind], kind === 0 ? 85 : 60);
  }

  // Red for what grew, blue for what shrank, the stronger the larger a share of it.
  growth(before, after) {
    const most = Math.max(before, after);
    const share = most > 0 ? (after - before) / most : 0;
    const strength = Math.min(1, Math.abs(share));
    if (strength < 0.005) {
      return this.grey();
    }
    const hue = share > 0 ? 4 : 214;
    return this.dark
      ? `hsl(${hue} ${20 + 50 * strength}% ${28 + 10 * strength}%)`
      : `hsl(${hue} ${40 + 50 * strength}% ${88 - 22 * strength}%)`;
  }
}

// Colours of the flame graph: by module, by kind of function, or by growth. A colour is a background and a text colour.

const KINDS = ["program", "library", "allocator or runtime", "no name", "heapbpf label"];
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

  // `shade`: from 0 to 1, to distinguish neighbours.
  hue(hue, saturation, shade = 0.5) {
    const light = this.dark ? 26 + 9 * shade : 73 + 10 * shade;
    return `hsl(${hue} ${this.dark ? saturation * 0.6 : saturation}% ${light}%)`;
  }

  grey(step = 0) {
    return this.dark ? `hsl(220 6% ${27 + step * 6}%)` : `hsl(220 8% ${85 - step * 6}%)`;
  }

  // Colour of a node in the selected colour scheme.
  ofNode(tree, node, colour) {
    if (tree.before !== null) {
      return this.growth(tree.before[node], tree.after[node]);
    }
    if (!tree.isFunction(node)) {
      return this.grey();
    }
    const key = tree.key[node];
    if (!this.known.has(key)) {
      this.known.set(key, this.ofFunction(tree, node, colour));
    }
    return this.known.get(key);
  }

  ofFunction(tree, node, colour) {
    const shade = (Math.imul(tree.key[node] + 1, 0x9e3779b1) >>> 24) / 255;
    if (colour === "kind") {
      return this.ofKind(tree.profile.functions.kind[tree.key[node]], shade);
    }
    const module = tree.module(node);
    return module === "" ? this.grey(1) : this.ofModule(baseName(module), shade);
  }

  ofModule(name, shade) {
    return this.hue(hueOf(name), 62, shade);
  }

  ofKind(kind, shade) {
    return kind >= 3 ? this.grey(kind === 3 ? 1 : 0) : this.hue(KIND_HUES[kind], kind === 0 ? 85 : 60, shade);
  }

  // Red for growth, blue for shrinkage; saturation by share.
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

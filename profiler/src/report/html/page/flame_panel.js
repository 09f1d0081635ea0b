// Controls of the flame graph: search, zoom, focus, reversal, keys, and the tooltip.

// Maximum number of modules in the legend.
const LEGEND_MAX = 6;

class FlamePanel {
  constructor(profile, points, amounts, selection) {
    Object.assign(this, { profile, points, amounts, selection });
    this.scroller = byId("flame-scroller");
    this.flame = new Flame(this.scroller, byId("flame-canvas"), byId("flame-spacer"));
    this.treeKey = "";
    this.zoomPath = [];
    byId("flame-search").addEventListener("input", () => this.applySearch());
    byId("flame-reverse").addEventListener("click", () => selection.change({ isReversed: !selection.isReversed }));
    byId("flame-reset").addEventListener("click", () => this.reset());
    byId("flame-colour").addEventListener("change", (event) => selection.change({ colour: event.target.value }));
    this.scroller.addEventListener("mousemove", (event) => this.hover(event));
    this.scroller.addEventListener("mouseleave", () => this.leave());
    this.scroller.addEventListener("click", (event) => this.click(event));
    this.scroller.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    selection.listen(() => this.update());
  }

  update() {
    const { selection, profile } = this;
    if (this.treeKey !== selection.treeKey()) {
      this.tree = new Tree(profile, selection);
      this.treeKey = selection.treeKey();
      this.zoomed = 0;
      this.sumsKey = "";
    }
    const sumsKey = selection.sumsKey();
    if (this.sumsKey !== sumsKey) {
      this.tree.addAmounts(this.amounts.chosen(selection));
      this.sumsKey = sumsKey;
    }
    if (!(this.tree.width[this.zoomed] > 0)) {
      this.zoomed = 0;
    }
    byId("flame-reverse").setAttribute("aria-pressed", String(selection.isReversed));
    this.describe();
    this.zoom(this.zoomed);
    this.applySearch();
  }

  resize() {
    if (this.tree && this.flame.width !== this.scroller.clientWidth) {
      this.zoom(this.zoomed);
    } else {
      this.flame.draw();
    }
  }

  // The title: quantity and period. Without data, the reason.
  describe() {
    const { selection, points, profile, tree } = this;
    const what = VIEW_TITLES[selection.view];
    const age = profile.header.older_than;
    const older = age !== null && selection.view.startsWith("live") && points.isAll(selection.period) ? ` older than ${age}` : "";
    const compared = selection.base === null ? "" : `, compared with ${points.periodText(selection.base)}`;
    byId("flame-subject").textContent = profile.header.unreachable ? what : `${what}${older}, ${points.periodText(selection.period)}${compared}`;
    const nothing = profile.header.nothing.find(({ view }) => view === selection.view);
    const isEmpty = !(tree.width[0] > 0);
    byId("flame-empty").hidden = !isEmpty;
    fill(byId("flame-empty"), marked(nothing ? nothing.lines.join(" ") : `There are no ${what} in the selection.`));
    byId("flame-frame").hidden = isEmpty;
    const legend = byId("flame-legend");
    byId("flame-colour-label").hidden = selection.base !== null;
    if (selection.base !== null) {
      const colours = new Colours();
      const swatch = (before, after, text) => this.legendKey(colours.growth(before, after), text);
      fill(legend, swatch(1, 4, "grew"), swatch(1, 1, "the same"), swatch(4, 1, "shrank"), "Width: the larger of both.");
    } else if (selection.colour === "kind") {
      const colours = new Colours();
      fill(legend, KINDS.map((kind, at) => this.legendKey(colours.ofKind(at), kind)));
    } else {
      const colours = new Colours();
      fill(legend, tree.modules(LEGEND_MAX).map((module) => this.legendKey(colours.ofModule(module), cut(module, 40))));
    }
    const focus = byId("flame-focus");
    focus.hidden = selection.focus === null;
    if (selection.focus !== null) {
      const drop = element("button", { type: "button", onclick: () => this.keepFocus(() => selection.change({ focus: null })) }, "Show whole stacks");
      fill(focus, "Only stacks with ", nameElement(profile.functionName(selection.focus), 90), drop);
    }
  }

  legendKey(colour, text) {
    return element("span", { class: "key" }, element("i", { style: { background: colour } }), text);
  }

  zoom(node) {
    this.zoomed = node;
    this.flame.chosen = node;
    this.flame.show(this.tree, node, this.selection.colour);
    byId("flame-reset").disabled = node === 0 && this.selection.focus === null;
    this.showDetail(node);
  }

  reset() {
    this.zoomed = 0;
    if (this.selection.focus !== null) {
      this.selection.change({ focus: null });
    } else {
      this.zoom(0);
    }
  }

  choose(node) {
    this.flame.chosen = node;
    this.flame.revealNode(node);
    this.flame.draw();
    this.showDetail(node);
  }

  applySearch() {
    const text = byId("flame-search").value.trim();
    const matched = byId("flame-matched");
    this.flame.found = null;
    matched.textContent = "";
    if (text !== "" && this.tree) {
      const { found, width, before, after } = this.tree.find(text);
      this.flame.found = found;
      const { view } = this.selection;
      const amount = this.tree.before === null ? amountText(view, width) : `${amountText(view, before)} → ${amountText(view, after)}`;
      matched.textContent = `matched: ${shareText(width, this.tree.width[0])}${this.tree.before === null ? "" : " of the width"} (${amount})`;
    }
    this.flame.draw();
  }

  point(event) {
    const bounds = this.flame.canvas.getBoundingClientRect();
    return this.flame.nodeAt(event.clientX - bounds.left, event.clientY - bounds.top);
  }

  hover(event) {
    const node = this.point(event);
    const tip = byId("tip");
    if (node !== this.flame.hovered) {
      this.flame.hovered = node;
      this.flame.draw();
    }
    tip.hidden = node < 0;
    if (node < 0) {
      return;
    }
    fill(tip, element("b", {}, cut(this.tree.name(node), 300)), element("span", {}, this.amountsOf(node).join(" · ")));
    const x = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const y = event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  }

  leave() {
    byId("tip").hidden = true;
    this.flame.hovered = -1;
    this.flame.draw();
  }

  click(event) {
    const node = this.point(event);
    if (node >= 0) {
      this.zoom(node === this.zoomed && node !== 0 ? this.tree.parent[node] : node);
    }
  }

  // Amount and share of a node.
  amountsOf(node) {
    const { tree, selection } = this;
    const { view } = selection;
    const words = [];
    if (tree.before === null) {
      words.push(amountText(view, tree.after[node]), `${shareText(tree.after[node], tree.after[0])} of ${selection.focus === null ? "all" : "these stacks"}`);
      if (this.zoomed !== 0) {
        words.push(`${shareText(tree.after[node], tree.after[this.zoomed])} of the zoomed frame`);
      }
    } else {
      const [before, after] = [tree.before[node], tree.after[node]];
      words.push(`${changeText(view, after - before)} (${amountText(view, before)} → ${amountText(view, after)})`);
    }
    const module = tree.module(node);
    return module === "" ? words : [...words, cut(baseName(module), 60)];
  }

  // Runs a button's action. If that removes the button, the graph receives the keyboard focus.
  keepFocus(act) {
    const button = document.activeElement;
    act();
    if (!button.isConnected || document.activeElement === document.body) {
      this.scroller.focus({ preventScroll: true });
    }
  }

  // The line below the graph: the selected node with its full name, and its actions.
  showDetail(node) {
    const { tree, selection } = this;
    const buttons = [];
    const button = (label, act) => buttons.push(element("button", { type: "button", onclick: () => this.keepFocus(act) }, label));
    if (node !== this.zoomed) {
      button("Zoom in", () => this.zoom(node));
    }
    if (tree.isFunction(node)) {
      const key = tree.key[node];
      button("Focus", () => selection.change({ focus: key }));
      button("Its callsites", () => this.onCallsites(key));
    }
    fill(
      byId("flame-detail"),
      element("p", { class: "whole-name" }, tree.name(node)),
      element("p", {}, `${this.amountsOf(node).join(" · ")} · ${tree.before === null ? "" : "in the period: "}${wholeText(selection.view, tree.after[node])}`),
      element("div", { class: "buttons" }, buttons),
    );
  }

  // Zooms out by one level; without zoom, clears the focus.
  zoomOut() {
    if (this.zoomed === 0) {
      this.reset();
    } else {
      this.zoom(this.tree.parent[this.zoomed]);
    }
  }

  onKey(event) {
    const { tree, flame } = this;
    const node = flame.chosen;
    const beside = () => flame.beside(node);
    const moves = {
      ArrowDown: () => tree.children(node).find((child) => flame.boxOf.has(child)),
      ArrowUp: () => (node === 0 ? 0 : tree.parent[node]),
      ArrowRight: () => beside()[beside().indexOf(node) + 1],
      ArrowLeft: () => beside()[beside().indexOf(node) - 1],
      Home: () => this.zoomed,
    };
    if (event.key in moves) {
      this.choose(moves[event.key]() ?? node);
    } else if (event.key === "Enter" || event.key === " ") {
      this.zoom(node);
    } else if (event.key === "Escape" || event.key === "Backspace") {
      this.zoomOut();
    } else if (event.key === "f" && tree.isFunction(node) && !event.ctrlKey && !event.metaKey) {
      this.selection.change({ focus: tree.key[node] });
    } else {
      return;
    }
    event.preventDefault();
  }
}

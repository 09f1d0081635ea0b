// Draws the flame graph on a canvas, and finds the node at a point. The panel handles keys and buttons.

const ROW = 19;
const GAP = 1;
const FONT = "11.5px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const WIDTH_MIN = 0.8;

class Flame {
  constructor(scroller, canvas, spacer) {
    this.scroller = scroller;
    this.canvas = canvas;
    this.spacer = spacer;
    this.context = canvas.getContext("2d");
    this.tree = null;
    this.zoomed = 0;
    this.chosen = 0;
    this.hovered = -1;
    this.found = null;
    this.boxes = [];
    scroller.addEventListener("scroll", () => this.draw());
  }

  // Shows a tree, or another part of it.
  show(tree, zoomed, colour) {
    this.tree = tree;
    this.zoomed = zoomed;
    this.colour = colour;
    this.colours = new Colours();
    this.layOut();
    this.draw();
  }

  // Boxes of all visible nodes: the zoomed node at full width, with its callers above.
  layOut() {
    const width = this.scroller.clientWidth;
    this.width = width;
    this.boxes = [];
    this.boxOf = new Map();
    const { tree, zoomed } = this;
    const above = [];
    for (let node = zoomed; node !== 0; node = tree.parent[node]) {
      above.unshift(tree.parent[node]);
    }
    above.forEach((node, row) => this.addBox({ node, x: 0, width, row, isAbove: true }));
    const whole = tree.width[zoomed];
    if (whole > 0) {
      this.placeBelow({ node: zoomed, x: 0, width, row: above.length, isAbove: false });
    }
    this.rows = 1 + this.boxes.reduce((most, box) => Math.max(most, box.row), 0);
    this.byRow = Array.from({ length: this.rows }, () => []);
    for (const box of this.boxes) {
      this.byRow[box.row].push(box);
    }
    this.spacer.style.height = `${this.rows * ROW + 2}px`;
  }

  addBox(box) {
    this.boxes.push(box);
    if (box.node >= 0) {
      this.boxOf.set(box.node, box);
    }
  }

  placeBelow(first) {
    const { tree } = this;
    const open = [first];
    while (open.length > 0) {
      const box = open.pop();
      this.addBox(box);
      const scale = box.width / tree.width[box.node];
      let { x } = box;
      for (const node of tree.children(box.node)) {
        const width = tree.width[node] * scale;
        if (width < WIDTH_MIN) {
          break;
        }
        open.push({ node, x, width, row: box.row + 1, isAbove: false });
        x += width;
      }
    }
  }

  draw() {
    const { context, scroller, canvas, tree } = this;
    if (tree === null) {
      return;
    }
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    this.letter ??= context.measureText("mmmmmmmmmm").width / 10;
    const top = scroller.scrollTop;
    const last = Math.min(this.rows - 1, Math.floor((top + height) / ROW));
    for (let row = Math.floor(top / ROW); row <= last; row += 1) {
      for (const box of this.byRow[row]) {
        this.drawBox(box, row * ROW - top);
      }
    }
  }

  drawBox({ node, x, width, isAbove }, y) {
    const { context, tree, found } = this;
    const isDim = isAbove || (found !== null && found[node] === 0);
    context.globalAlpha = isDim ? 0.5 : 1;
    context.fillStyle = found !== null && found[node] === 1 ? (this.colours.dark ? "#a2387f" : "#f39ad6") : this.colours.ofNode(tree, node, this.colour);
    const wide = Math.max(width - (width > 3 ? GAP : 0.2), 0.5);
    context.fillRect(x, y, wide, ROW - GAP);
    context.globalAlpha = 1;
    const letters = Math.floor((width - 7) / this.letter);
    if (letters >= 2) {
      context.fillStyle = this.colours.text;
      context.globalAlpha = isDim ? 0.75 : 1;
      context.fillText(cut(tree.shortName(node), letters), x + 4, y + ROW / 2);
      context.globalAlpha = 1;
    }
    if (node === this.chosen || node === this.hovered) {
      context.strokeStyle = this.colours.dark ? "#fff" : "#000";
      context.lineWidth = node === this.chosen ? 2 : 1;
      context.strokeRect(x + 1, y + 1, Math.max(wide - 2, 1), ROW - GAP - 2);
    }
  }

  // The node under a point of the canvas; -1 for none.
  nodeAt(x, y) {
    const row = this.byRow?.[Math.floor((y + this.scroller.scrollTop) / ROW)] ?? [];
    const box = row.find((one) => x >= one.x && x < one.x + one.width);
    return box ? box.node : -1;
  }

  // Makes a node's row visible.
  revealNode(node) {
    const box = this.boxOf.get(node);
    if (!box) {
      return;
    }
    const [top, bottom] = [box.row * ROW, (box.row + 1) * ROW];
    if (top < this.scroller.scrollTop) {
      this.scroller.scrollTop = top;
    } else if (bottom > this.scroller.scrollTop + this.scroller.clientHeight) {
      this.scroller.scrollTop = bottom - this.scroller.clientHeight;
    }
  }

  // The nodes beside a node that are shown, from left to right.
  beside(node) {
    const { tree } = this;
    return node === 0 ? [0] : tree.children(tree.parent[node]).filter((other) => this.boxOf.has(other));
  }
}

// Table of callsites: sortable, filterable, with expandable rows.

const ROWS_MORE = 50;
const CHAIN_MAX = 5;

// A stack in a line: the program's own functions, innermost first, or whatever frames there are.
function chainElement(profile, callsite) {
  const frames = profile.stack(callsite);
  const kind = (frame) => profile.functions.kind[profile.frames.function[frame]];
  const own = [0, 1].map((most) => frames.filter((frame) => kind(frame) <= most)).find((some) => some.length > 0) ?? frames;
  const names = [];
  for (const frame of own) {
    const name = cut(profile.functionShort(profile.frames.function[frame]), 90);
    if (names.at(-1)?.name === name) {
      names.at(-1).times += 1;
    } else if (names.length === CHAIN_MAX) {
      names.push({ name: "…", times: 1 });
      break;
    } else {
      names.push({ name, times: 1 });
    }
  }
  names.push(...(profile.gaps[profile.callsites.gap[callsite]] ?? []).map((name) => ({ name, times: 1 })));
  const [first, ...rest] = names.map(({ name, times }) => (times > 1 ? `${name} ×${times}` : name));
  const position = own.length > 0 ? cut(baseName(profile.sourcePosition(own[0])), 60) : "";
  return [
    element("span", { class: "chain" }, first ?? "[no frames]"),
    position === "" ? null : element("span", { class: "quiet place" }, ` ${position}`),
    rest.length === 0 ? null : element("span", { class: "chain callers" }, ` ← ${rest.join(" ← ")}`),
  ];
}

class CallsiteTable {
  constructor(profile, points, amounts, selection) {
    Object.assign(this, { profile, points, amounts, selection });
    this.sort = null;
    this.isDown = true;
    this.shown = ROWS_MORE;
    this.open = new Set();
    this.function = null;
    byId("table-filter").addEventListener("input", () => this.filter());
    byId("table-function").addEventListener("click", () => this.filterByFunction(null));
    byId("table-more").addEventListener("click", () => {
      const next = this.rows[this.shown];
      this.shown += ROWS_MORE;
      this.draw();
      byId("table-body").querySelector(`[data-callsite="${next}"]`)?.focus({ preventScroll: true });
    });
    selection.listen((changes) => this.update(changes));
  }

  columns() {
    const { callsites } = this.profile;
    const { view, base, period } = this.selection;
    const now = this.amounts.during(period);
    const chosen = now[field(view)];
    const size = (name) => ({ value: (at) => now[name][at], text: (amount) => sizeText(amount) });
    const number = (name) => ({ value: (at) => now[name][at], text: (amount) => countText(amount) });
    const isLive = view.startsWith("live");
    const unknown = (text) => (value) => (value < 0 ? "–" : text(value));
    const of = isLive ? "live" : "alloc";
    const columns = [
      { id: "live_bytes", label: this.profile.header.unreachable ? "Leaked" : "Live", ...size("live_bytes"), wide: !isLive },
      { id: "live_count", label: "Blocks", ...number("live_count"), wide: true },
      { id: "alloc_bytes", label: "Allocated", ...size("alloc_bytes"), wide: isLive },
      { id: "alloc_count", label: "Alloc. blocks", ...number("alloc_count"), wide: true, wider: true },
      { id: "free_bytes", label: "Freed", ...size("free_bytes"), wide: true, wider: true },
      {
        id: "mean",
        label: "Mean size",
        value: (at) => (now[`${of}_count`][at] > 0 ? now[`${of}_bytes`][at] / now[`${of}_count`][at] : -1),
        text: unknown(sizeText),
        wide: true,
      },
      { id: "oldest", label: "Oldest", title: "Age of the oldest live block", value: (at) => callsites.oldest[at], text: unknown(durationText), wide: true },
      { id: "median", label: "Median", title: "Median age of live blocks", value: (at) => callsites.median[at], text: unknown(durationText), wide: true },
      {
        id: "temporary",
        label: "Temp.",
        title: "Blocks that were freed before the same thread made the next one",
        value: (at) => (callsites.temporary[at] > 0 && callsites.alloc_count[at] > 0 ? (callsites.temporary[at] - 1) / callsites.alloc_count[at] : -1),
        text: unknown((share) => shareText(share, 1)),
        wide: true,
      },
      { id: "share", label: "Share", value: (at) => chosen[at], text: (amount) => shareText(amount, this.whole) },
    ];
    if (base !== null) {
      const before = this.amounts.during(base)[field(view)];
      columns.unshift({ id: "growth", label: "Growth", value: (at) => chosen[at] - before[at], text: (amount) => changeText(view, amount) });
    }
    return columns;
  }

  update(changes) {
    const { selection } = this;
    const key = selection.sumsKey();
    if (this.key === key) {
      return;
    }
    if (this.sort === null || "view" in changes || "base" in changes) {
      this.sort = selection.base === null ? field(selection.view) : "growth";
      this.isDown = true;
    }
    this.key = key;
    this.mask = this.amounts.mask(selection);
    this.chosenAmounts = this.amounts.during(selection.period)[field(selection.view)];
    this.whole = this.chosenAmounts.reduce((sum, amount, at) => sum + (this.mask[at] ? amount : 0), 0);
    this.filter();
  }

  // Functions whose name contains a text; null without a text.
  wanted() {
    const text = byId("table-filter").value.trim().toLowerCase();
    if (text === "") {
      return null;
    }
    const { profile } = this;
    return profile.functions.name.map((_, at) => `${profile.functionName(at)}\n${profile.functionModule(at)}`.toLowerCase().includes(text));
  }

  filterByFunction(key) {
    this.function = key;
    const button = byId("table-function");
    button.hidden = key === null;
    button.textContent = key === null ? "" : `through ${cut(this.profile.functionName(key), 60)} ×`;
    this.filter();
  }

  filter() {
    const { profile } = this;
    const wanted = this.wanted();
    const now = this.amounts.during(this.selection.period);
    const before = this.selection.base === null ? null : this.amounts.during(this.selection.base)[field(this.selection.view)];
    const columns = this.columns().map(({ id }) => id);
    if (!columns.includes(this.sort)) {
      this.sort = field(this.selection.view);
    }
    this.rows = [];
    for (let at = 0; at < profile.count; at += 1) {
      const isThere = now.live_bytes[at] > 0 || now.alloc_count[at] > 0 || now.free_count[at] > 0 || (before !== null && before[at] > 0);
      if (this.mask[at] && isThere && this.matches(at, wanted)) {
        this.rows.push(at);
      }
    }
    this.shown = ROWS_MORE;
    this.draw();
  }

  matches(callsite, wanted) {
    const { profile } = this;
    if (wanted === null && this.function === null) {
      return true;
    }
    let [isWanted, isThrough] = [wanted === null, this.function === null];
    for (let node = profile.callsites.node[callsite]; node > 0; node = profile.nodeParent[node]) {
      const key = profile.nodeFunction[node];
      isWanted ||= wanted[key];
      isThrough ||= key === this.function;
    }
    return isWanted && isThrough;
  }

  sortBy(id) {
    this.isDown = this.sort === id ? !this.isDown : true;
    this.sort = id;
    this.draw();
    byId("table-head").querySelector(`[data-column="${id}"]`)?.focus();
  }

  draw() {
    const columns = this.columns();
    const by = columns.find(({ id }) => id === this.sort);
    const values = new Map(this.rows.map((at) => [at, by.value(at)]));
    const sign = this.isDown ? -1 : 1;
    this.rows.sort((one, other) => sign * (values.get(one) - values.get(other)) || one - other);
    const heads = columns.map(({ id, label, title, wide, wider }) => {
      const isSorted = id === this.sort;
      const button = element("button", { type: "button", title, "data-column": id, onclick: () => this.sortBy(id) }, label, element("i", { "aria-hidden": "true" }, isSorted ? (this.isDown ? "▾" : "▴") : ""));
      const direction = isSorted ? (this.isDown ? "descending" : "ascending") : "none";
      return element("th", { scope: "col", class: `number${wide ? " wide" : ""}${wider ? " wider" : ""}`, "aria-sort": direction }, button);
    });
    fill(byId("table-head"), element("tr", {}, heads, element("th", { scope: "col" }, "Where")));
    fill(byId("table-body"), this.rows.slice(0, this.shown).flatMap((at) => this.row(at, columns)));
    const isFiltered = this.function !== null || byId("table-filter").value.trim() !== "";
    byId("table-empty").hidden = this.rows.length > 0;
    byId("table-empty").textContent = isFiltered ? "No callsite in the selection matches the filter." : "The selection has no callsites.";
    byId("table-note").hidden = this.points.isAll(this.selection.period);
    const left = this.rows.length - this.shown;
    byId("table-more").hidden = left <= 0;
    byId("table-more").textContent = left > ROWS_MORE ? `Show ${countText(ROWS_MORE)} more of ${countText(left)}` : `Show the other ${countText(left)}`;
    byId("table-count").textContent = plural(this.rows.length, "callsite");
  }

  row(at, columns) {
    const { profile } = this;
    const isOpen = this.open.has(at);
    const where = element(
      "button",
      { type: "button", class: "where", "aria-expanded": String(isOpen), "data-callsite": at, onclick: () => this.toggle(at) },
      chainElement(profile, at),
      profile.targets.length > 1 && this.selection.target < 0 ? element("span", { class: "quiet" }, ` ${cut(profile.targets[profile.callsites.target[at]].name, 40)}`) : null,
    );
    const cells = columns.map(({ value, text, wide, wider, id }) => {
      const number = value(at);
      const growth = id === "growth" && number !== 0 ? (number > 0 ? " grew" : " shrank") : "";
      return element("td", { class: `number${wide ? " wide" : ""}${wider ? " wider" : ""}${growth}` }, text(number));
    });
    const row = element("tr", { class: isOpen ? "open" : null }, cells, element("td", { class: "where-cell" }, where));
    return isOpen ? [row, element("tr", { class: "details" }, element("td", { colspan: columns.length + 1 }, this.details(at)))] : [row];
  }

  toggle(at) {
    if (!this.open.delete(at)) {
      this.open.add(at);
    }
    this.draw();
    byId("table-body").querySelector(`[data-callsite="${at}"]`)?.focus();
  }

  // Expands a callsite's row, after clearing filters that hide it.
  revealCallsite(at) {
    byId("table-filter").value = "";
    this.filterByFunction(null);
    this.open.add(at);
    this.shown = Math.max(this.shown, this.rows.indexOf(at) + 1);
    this.draw();
    const button = byId("table-body").querySelector(`[data-callsite="${at}"]`);
    button?.focus();
    button?.scrollIntoView({ block: "start" });
  }

  details(at) {
    return callsiteDetails(this.profile, at, this.points);
  }
}

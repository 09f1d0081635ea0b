// The top of the page: what was profiled, totals, and controls.

const GROUPS = [["", "nothing"], ["thread", "thread"], ["command", "command"], ["cgroup", "control group"], ["heap", "heap"]];
const THEMES = ["auto", "light", "dark"];

class Header {
  constructor(profile, points, amounts, selection) {
    Object.assign(this, { profile, points, amounts, selection });
    const { header } = profile;
    document.title = `${cut(header.subject, 60)} – heapbpf`;
    byId("subject").textContent = cut(header.subject, 200);
    const commands = new Set(profile.targets.map(({ command }) => command));
    const command = commands.size === 1 ? cut([...commands][0], 120) : "";
    const recorded = [header.interval, `recorded for ${header.duration}`, `from ${header.started.replace("T", " ").replace("Z", " UTC")}`];
    const observed = header.checked === null ? recorded : [header.checked.replace("T", " ").replace("Z", " UTC")];
    fill(
      byId("facts"),
      [command, ...observed, header.window, this.ending()]
        .filter((fact) => fact !== null && fact !== "")
        .map((fact) => element("li", {}, fact)),
      element("li", {}, element("a", { href: "#health", class: header.incomplete ? "warning" : "good" }, capital(header.verdict))),
    );
    this.buildViews();
    this.buildSelects();
    this.theme();
    selection.listen(() => this.update());
  }

  // Exit of the only process. Of several processes, their list shows it.
  ending() {
    const [target, other] = this.profile.targets;
    if (target === undefined || other !== undefined || !target.exited) {
      return "";
    }
    return target.exit_code === null ? "exited" : `exited with code ${target.exit_code}`;
  }

  buildViews() {
    this.cards = VIEWS.map((view, at) => {
      const card = element(
        "button",
        {
          type: "button",
          role: "radio",
          class: "view",
          id: `view-${view}`,
          onclick: () => this.selection.change({ view }),
          onkeydown: (event) => this.moveView(event, at),
        },
        element("span", { class: "view-name" }, capital(VIEW_TITLES[view])),
        element("strong", {}),
        element("span", { class: "view-note" }),
      );
      return card;
    });
    fill(byId("views"), this.cards);
  }

  moveView(event, at) {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by !== undefined) {
      event.preventDefault();
      const next = (at + by + VIEWS.length) % VIEWS.length;
      this.selection.change({ view: VIEWS[next] });
      this.cards[next].focus();
    }
  }

  buildSelects() {
    const { profile, selection } = this;
    const targets = profile.targets.map((target, at) => [at, cut(`${target.name}${target.exited ? ", exited" : target.replaced ? ", replaced" : ""}`, 60)]);
    fillSelect(byId("target"), [[-1, `all ${plural(targets.length, "process")}`], ...targets], -1);
    byId("target-label").hidden = targets.length < 2;
    const heaps = [...new Set(profile.targets.flatMap((target) => target.heaps.map(({ name }) => name)))];
    fillSelect(byId("heap"), [["", "all heaps"], ...heaps.map((name) => [name, cut(name, 60)])], "");
    byId("heap-label").hidden = heaps.length < 2;
    const has = {
      "": true,
      thread: profile.targets.some(({ threads }) => threads.length > 0),
      command: targets.length > 1,
      cgroup: profile.targets.some(({ cgroup }) => cgroup !== null),
      heap: heaps.length > 1,
    };
    const selected = selection.groups.join(",");
    const groups = GROUPS.filter(([group]) => has[group] || group === selected);
    if (selection.groups.length > 1) {
      groups.push([selected, selection.groups.join(", then ")]);
    }
    fillSelect(byId("group"), groups, selected);
    byId("group-label").hidden = groups.length < 2;
    byId("target").addEventListener("change", (event) => selection.change({ target: Number(event.target.value) }));
    byId("heap").addEventListener("change", (event) => selection.change({ heap: event.target.value }));
    byId("group").addEventListener("change", (event) => {
      selection.change({ groups: event.target.value === "" ? [] : event.target.value.split(",") });
    });
    byId("controls").hidden = [...byId("controls").children].every((label) => label.hidden);
  }

  theme() {
    const button = byId("theme");
    const apply = (theme) => {
      document.documentElement.dataset.theme = theme;
      button.textContent = `Theme: ${theme}`;
    };
    apply("auto");
    button.addEventListener("click", () => {
      apply(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
      this.selection.change({});
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.selection.change({}));
  }

  // The totals of the selection; null where callsites must be summed.
  estimates() {
    const { profile, points, selection } = this;
    if (!points.isAll(selection.period)) {
      return null;
    }
    if (selection.target < 0) {
      return selection.heap === "" ? profile.header.estimates : null;
    }
    const target = profile.targets[selection.target];
    return selection.heap === "" ? target.estimates : (target.heaps.find(({ name }) => name === selection.heap)?.estimates ?? null);
  }

  update() {
    const { selection, profile } = this;
    const estimates = this.estimates();
    const totals = estimates === null ? this.amounts.totals(selection, selection.period) : null;
    const isWindow = !this.points.isAll(selection.period);
    VIEWS.forEach((view, at) => {
      const [amount, low, high] = estimates === null ? [totals[field(view)]] : estimates[field(view)];
      const isChosen = view === selection.view;
      const card = this.cards[at];
      card.setAttribute("aria-checked", String(isChosen));
      card.tabIndex = isChosen ? 0 : -1;
      const isExact = profile.header.exact || (estimates !== null && low === undefined);
      const exact = profile.health.lost.length > 0 ? "exact except for losses" : lacksHooks(profile.health) ? "exact for attached hooks" : "exact";
      card.children[1].textContent = `${isExact ? "" : "≈ "}${amountText(view, amount)}`;
      const notes = [low !== undefined && high > low ? `95 %: ${amountText(view, low)} – ${amountText(view, high)}` : isExact ? exact : ""];
      if (isWindow) {
        notes.unshift(view.startsWith("live") ? "at the window's end" : "in the window");
      }
      card.children[2].textContent = notes.filter((note) => note !== "").join(", ");
    });
    const { folded } = profile.header;
    const isAll = selection.target < 0 && selection.heap === "" && this.points.isAll(selection.period);
    byId("folded").hidden = folded === null || !isAll;
    byId("folded").textContent = folded === null ? "" : `Of this, ${amountText(selection.view, folded.estimates[field(selection.view)][0])} are of ${folded.processes}, of which only totals are kept: they are in no stack below.`;
  }
}

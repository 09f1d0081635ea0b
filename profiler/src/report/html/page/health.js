// The health section: losses with their remedies, stacks, accuracy, hooks and cost.

function healthCard(title, state, ...children) {
  return element("div", { class: `card ${state}` }, element("h3", {}, title), ...children);
}

function lossCard({ lost }) {
  if (lost.length === 0) {
    return healthCard("Losses", "good", element("p", {}, "Nothing was lost."));
  }
  const rows = lost.map(({ reason, count, meaning, remedy }) => [
    element("dt", {}, `${countText(count)} × ${cut(reason, 60)}`),
    element("dd", {}, marked(meaning ? `${meaning}. ` : ""), remedy ? element("span", { class: "remedy" }, marked(`${capital(remedy)}.`)) : null),
  ]);
  return healthCard("Losses", "bad", element("dl", {}, rows.flat()));
}

function unwindCard({ unwind, cuts, frame_pointer_modules: modules }) {
  const whole = unwind.reduce((sum, { count }) => sum + count, 0);
  const complete = unwind.find(({ end }) => end === "complete")?.count ?? 0;
  if (whole === 0) {
    return healthCard("Stacks", "plain", element("p", {}, "No stacks were recorded."));
  }
  const rows = unwind.map(({ end, count, meaning }) => [
    element("dt", {}, `${shareText(count, whole)} ${cut(end, 60)}`),
    element("dd", {}, meaning ?? (end === "complete" ? "unwound to the thread's first frame" : "")),
  ]);
  const pointers = modules.length > 0 ? element("p", {}, `Unwound by frame pointers, without unwind tables: ${cut(modules.join(", "), 600)}`) : null;
  const places = cuts.map(({ cause, share, advice }) => {
    const text = `${shareText(share, 1)} end in ${cut(cause, 200)}${advice === null ? "" : ` – ${advice}`}`;
    return element("li", {}, marked(text));
  });
  const list = places.length > 0 ? element("ul", {}, places.slice(0, 20)) : null;
  return healthCard("Stacks", complete / whole < 0.99 ? "poor" : "good", element("dl", {}, rows.flat()), list, pointers);
}

function accuracyCard(profile) {
  const { header, health } = profile;
  const lost = health.lost.reduce((sum, { count }) => sum + count, 0);
  if (lost > 0 && header.exact) {
    return healthCard("Accuracy", "poor", element("p", {}, `Every allocation was to be recorded, but ${plural(lost, "event")} were lost and are not in the numbers.`));
  }
  if (header.exact && lacksHooks(health)) {
    return healthCard("Accuracy", "poor", element("p", {}, "Every allocation of the attached hooks was recorded, but hooks are missing."));
  }
  if (header.exact) {
    return healthCard("Accuracy", "good", element("p", {}, "Every allocation was recorded: all numbers are exact."));
  }
  const rows = VIEWS.map((view) => {
    const [estimate, low, high, samples] = header.estimates[field(view)];
    const range = samples > 0 ? `${amountText(view, low)} to ${amountText(view, high)} with 95 % confidence, ${plural(samples, "sample")}` : "nothing was sampled";
    return [element("dt", {}, `${VIEW_TITLES[view]} ≈ ${amountText(view, estimate)}`), element("dd", {}, range)];
  });
  return healthCard(
    "Accuracy",
    lost > 0 ? "poor" : "plain",
    element("p", {}, `Estimates: ${header.interval}.${lost > 0 ? " The intervals below do not include losses." : ""}`),
    element("dl", {}, rows.flat()),
    health.interval_changes.map((line) => element("p", {}, marked(line))),
  );
}

// Hooks without which a profile is incomplete.
function lacksHooks({ hooks, unfound }) {
  return hooks.some(({ error, required }) => error !== null && required) || unfound.some(({ required }) => required);
}

function hookCard({ hooks, hooks_count: count, unfound, inlined }) {
  const missing = hooks.filter(({ error }) => error !== null);
  const bad = lacksHooks({ hooks, unfound });
  const list = (some) => element(
    "ul",
    {},
    some.map((hook) => element(
      "li",
      {},
      element("code", {}, cut(hook.function, 90)),
      ` in ${cut(baseName(hook.module), 60)} (${cut(hook.heap, 40)})`,
      hook.error === null
        ? element("span", { class: "quiet" }, ` ${cut(hook.backend, 40)}${hook.emulated === null ? "" : hook.emulated ? ", emulated" : ", single-stepped"}${hook.instruction === null ? "" : `: ${cut(hook.instruction, 60)}`}`)
        : element("span", { class: hook.required ? "warning" : "quiet" }, marked(` not attached: ${cut(hook.error, 300)}${hook.required ? "" : " (few programs call it)"}`)),
    )),
  );
  const attached = hooks.filter(({ error }) => error === null);
  return healthCard(
    "Hooks",
    bad ? "bad" : attached.length === 0 || inlined.length > 0 ? "poor" : "good",
    element("p", {}, count === 0 ? "None: no allocator was found." : `${countText(attached.length)} of ${plural(count, "function")} attached.`),
    missing.length > 0 ? list(missing) : null,
    inlined.map((line) => element("p", { class: "warning" }, marked(line))),
    unfound.length > 0
      ? element("ul", {}, unfound.map(({ heap, function: name, required }) => element("li", { class: required ? "warning" : "quiet" }, `${cut(heap, 40)}: no function ${cut(name, 90)} in any module`)))
      : null,
    attached.length > 0 ? element("details", {}, element("summary", {}, "Attached hooks"), list(attached)) : null,
  );
}

function costCard(profile) {
  const { health, header } = profile;
  const lines = [`The agent took ${durationText(health.agent_cpu)} of CPU time${header.span >= 1000 ? ` (${shareText(health.agent_cpu, header.span)} of one CPU)` : ""} and ${sizeText(health.agent_rss_bytes_max)} of memory for ${plural(health.events, "event")}.`];
  for (const { target, percent, percent_highest: highest } of health.overheads) {
    lines.push(`Probes took ≈ ${percent.toFixed(1)}% of the CPU time of ${cut(target, 60)}${highest === null ? "" : `, ${highest.toFixed(1)}% at most`}.`);
  }
  if (health.resyncs > 0) {
    lines.push(`The ledger was resynced from the kernel's live set ${plural(health.resyncs, "time")}.`);
  }
  return healthCard("Cost", "plain", lines.map((line) => element("p", {}, marked(line))));
}

function guardrailCard({ reached, memory_bytes_max: most, memory_bytes_highest: highest, cpu_percent_max: cpu, overhead_percent_max: overhead }) {
  const lines = [];
  if (most !== null) {
    lines.push(`Memory: ${highest === null ? "" : `${sizeText(highest)} at most, `}${sizeText(most)} allowed.`);
  }
  if (cpu !== null) {
    lines.push(`CPU: ${cpu}% of a core allowed.`);
  }
  if (overhead !== null) {
    lines.push(`Overhead: ${overhead}% of a target's CPU time allowed.`);
  }
  if (lines.length + reached.length === 0) {
    return null;
  }
  return healthCard(
    "Limits",
    reached.length > 0 ? "poor" : "good",
    lines.map((line) => element("p", {}, marked(line))),
    reached.length > 0 ? element("ul", {}, reached.slice(0, 50).map((line) => element("li", { class: "warning" }, marked(line)))) : element("p", {}, "No limit was exceeded."),
  );
}

function namesCard({ symbolization: lines }) {
  return lines.length === 0
    ? null
    : healthCard("Names", "poor", element("ul", {}, lines.map((line) => element("li", { class: "warning" }, marked(cut(line, 600))))));
}

function coverageCard({ header, health }) {
  if (header.beginnings.length + health.skipped.length === 0) {
    return null;
  }
  return healthCard(
    "Coverage",
    health.skipped.length > 0 ? "poor" : "plain",
    header.beginnings.map((line) => element("p", {}, marked(line))),
    health.skipped.length > 1 ? element("ul", {}, health.skipped.map((line) => element("li", {}, cut(line, 300)))) : null,
  );
}

function showHealth(profile) {
  const { health, header } = profile;
  byId("health-title").textContent = `Health: ${header.verdict}`;
  fill(
    byId("health-body"),
    ...[lossCard(health), unwindCard(health), namesCard(health), accuracyCard(profile), hookCard(health), guardrailCard(health), costCard(profile), coverageCard(profile)],
  );
}

// Loads the profile and builds the page.

// Leak reports have live blocks only: no history, and no other amounts.
function tellLeaks() {
  VIEW_TITLES["live-bytes"] = "leaked bytes";
  VIEW_TITLES["live-count"] = "leaked blocks";
}

function hideHistory() {
  for (const id of ["timeline", "memory", "memory-link", "leaks", "view-alloc-bytes", "view-alloc-count"]) {
    byId(id).hidden = true;
  }
  for (const link of document.querySelectorAll('nav a[href="#timeline"], nav a[href="#leaks"]')) {
    link.hidden = true;
  }
}

function showProfile(json) {
  const isOfLeaks = json.header.unreachable === true;
  if (isOfLeaks) {
    tellLeaks();
  }
  const profile = new Profile(json);
  const points = new Points(profile);
  const amounts = new Amounts(profile, points);
  const selection = new Selection(profile, points);
  byId("page").hidden = false;
  new Header(profile, points, amounts, selection);
  new Timeline(profile, points, amounts, selection);
  const flame = new FlamePanel(profile, points, amounts, selection);
  const table = new CallsiteTable(profile, points, amounts, selection);
  flame.onCallsites = (key) => {
    table.filterByFunction(key);
    byId("callsites").scrollIntoView();
    byId("table-filter").focus({ preventScroll: true });
  };
  const showCallsite = (at) => {
    selection.change({ target: selection.target < 0 ? -1 : profile.callsites.target[at], heap: "", period: points.all(), base: null });
    table.revealCallsite(at);
  };
  selection.listen((changes) => {
    if (Object.keys(changes).length === 0 || "target" in changes) {
      showLeaks(profile, selection, showCallsite);
      showMemory(profile, selection);
    }
  });
  showUnexplained(profile.header);
  showHealth(profile);
  selection.change({});
  if (isOfLeaks) {
    hideHistory();
  }
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof Element && event.target.closest("input, select, textarea") !== null;
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      byId("flame-search").focus();
    }
  });
}

async function main() {
  const began = performance.now();
  try {
    const json = JSON.parse(await unpack(byId("profile").textContent));
    showProfile(json);
    byId("opening").hidden = true;
    // The layout is painted with the next frame.
    requestAnimationFrame(() => setTimeout(() => {
      document.documentElement.dataset.drawnMillis = String(Math.round(performance.now() - began));
    }));
  } catch (error) {
    byId("opening").textContent = `This profile could not be shown. ${error.message}`;
    byId("opening").setAttribute("role", "alert");
    throw error;
  }
}

main();

// The selection: the state of the page. Views subscribe to it.

class Selection {
  constructor(profile, points) {
    this.listeners = [];
    this.view = VIEWS.includes(profile.json.view) ? profile.json.view : "live-bytes";
    this.target = -1;
    this.heap = "";
    this.groups = profile.json.by;
    this.period = points.all();
    // The period to compare with; null for none.
    this.base = null;
    // Whether the next click into the timeline selects the period to compare with.
    this.picksBase = false;
    this.isReversed = false;
    // The function that stacks start at; null for full stacks.
    this.focus = null;
    this.colour = "module";
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  // Changes fields, and notifies listeners of them.
  change(changes) {
    Object.assign(this, changes);
    for (const listener of this.listeners) {
      listener(changes);
    }
  }

  // The fields that sums depend on.
  sumsKey() {
    return JSON.stringify([this.view, this.target, this.heap, this.period, this.base]);
  }

  treeKey() {
    return JSON.stringify([this.groups, this.isReversed, this.focus]);
  }
}

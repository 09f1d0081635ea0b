// What is chosen: the one state of the page. Whoever shows something listens to it.

class Selection {
  constructor(profile, points) {
    this.listeners = [];
    this.view = VIEWS.includes(profile.json.view) ? profile.json.view : "live-bytes";
    this.target = -1;
    this.heap = "";
    this.groups = profile.json.by;
    this.period = points.all();
    // What the period is compared with; null where it is not.
    this.base = null;
    // Whether the next click into the timeline chooses what is compared with.
    this.picksBase = false;
    this.isReversed = false;
    // The function that stacks begin at; null for whole stacks.
    this.focus = null;
    this.colour = "module";
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  // Changes some of it and tells what.
  change(changes) {
    Object.assign(this, changes);
    for (const listener of this.listeners) {
      listener(changes);
    }
  }

  // Values to compare by: whether something that sums are made of is another.
  sumsKey() {
    return JSON.stringify([this.view, this.target, this.heap, this.period, this.base]);
  }

  treeKey() {
    return JSON.stringify([this.groups, this.isReversed, this.focus]);
  }
}

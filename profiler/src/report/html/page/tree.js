// Stacks merged by function: the tree of the flame graph. Nodes follow their parents, so one pass from the last to the first
// sums them.

// Sums of a tree for some amounts of callsites.
class Tree {
  constructor(profile, selection) {
    this.profile = profile;
    // Labels other than functions: groups, processes, missing frames. Their keys follow the functions'.
    this.words = [];
    this.wordKeys = new Map();
    this.size = 1;
    // Capacity for full stacks; reversed ones can need more.
    const capacity = profile.nodeParent.length + 1024;
    this.parent = new Int32Array(capacity);
    this.key = new Int32Array(capacity);
    this.key[0] = -1;
    this.slots = new Int32Array(2 ** Math.ceil(Math.log2(capacity * 2)));
    // The leaf node of each callsite; -1 if it is not in the tree.
    this.end = new Int32Array(profile.count).fill(-1);
    for (let callsite = 0; callsite < profile.count; callsite += 1) {
      this.add(callsite, selection);
    }
    this.slots = null;
    this.linkChildren();
  }

  word(text) {
    if (!this.wordKeys.has(text)) {
      this.wordKeys.set(text, this.profile.functions.name.length + this.words.length);
      this.words.push(text);
    }
    return this.wordKeys.get(text);
  }

  // Keys of the labels above a callsite's stack, outermost first.
  roots(callsite, groups) {
    const { profile } = this;
    const target = profile.targets[profile.callsites.target[callsite]];
    const named = {
      thread: () => profile.threadName(callsite),
      command: () => target.command,
      cgroup: () => target.cgroup ?? "[control group unknown]",
      heap: () => profile.heapName(callsite),
    };
    const words = groups.filter((group) => group in named).map((group) => named[group]());
    if (profile.targets.length > 1) {
      words.push(target.name);
    }
    words.push(...(profile.gaps[profile.callsites.gap[callsite]] ?? []));
    return words.map((word) => this.word(word));
  }

  add(callsite, { groups, isReversed, focus }) {
    const { profile } = this;
    const leafFirst = [];
    let outermost = -1;
    let innermost = -1;
    for (let node = profile.callsites.node[callsite]; node > 0; node = profile.nodeParent[node]) {
      if (profile.nodeFunction[node] === focus) {
        innermost = innermost < 0 ? leafFirst.length : innermost;
        outermost = leafFirst.length;
      }
      leafFirst.push(profile.nodeFunction[node]);
    }
    if (focus !== null && outermost < 0) {
      return;
    }
    let at = 0;
    if (isReversed) {
      for (let place = Math.max(innermost, 0); place < leafFirst.length; place += 1) {
        at = this.child(at, leafFirst[place]);
      }
      for (const key of this.roots(callsite, groups).reverse()) {
        at = this.child(at, key);
      }
    } else {
      for (const key of focus === null ? this.roots(callsite, groups) : []) {
        at = this.child(at, key);
      }
      for (let place = focus === null ? leafFirst.length - 1 : outermost; place >= 0; place -= 1) {
        at = this.child(at, leafFirst[place]);
      }
    }
    this.end[callsite] = at;
  }

  // Finds or creates the child of a node with this key, in an open-addressing hash table.
  child(parent, key) {
    const mask = this.slots.length - 1;
    let slot = (Math.imul(parent, 0x9e3779b1) ^ Math.imul(key + 1, 0x85ebca6b)) >>> 0;
    slot = (slot ^ (slot >>> 15)) & mask;
    for (let node = this.slots[slot]; node !== 0; node = this.slots[slot]) {
      if (this.parent[node] === parent && this.key[node] === key) {
        return node;
      }
      slot = (slot + 1) & mask;
    }
    const node = this.size;
    this.grow();
    this.parent[node] = parent;
    this.key[node] = key;
    this.slots[slot] = node;
    if (this.size * 2 > this.slots.length) {
      this.rehash();
    }
    return node;
  }

  grow() {
    this.size += 1;
    if (this.size > this.parent.length) {
      for (const name of ["parent", "key"]) {
        const larger = new this[name].constructor(this[name].length * 2);
        larger.set(this[name]);
        this[name] = larger;
      }
    }
  }

  rehash() {
    this.slots = new Int32Array(this.slots.length * 2);
    const mask = this.slots.length - 1;
    for (let node = 1; node < this.size; node += 1) {
      let slot = (Math.imul(this.parent[node], 0x9e3779b1) ^ Math.imul(this.key[node] + 1, 0x85ebca6b)) >>> 0;
      slot = (slot ^ (slot >>> 15)) & mask;
      while (this.slots[slot] !== 0) {
        slot = (slot + 1) & mask;
      }
      this.slots[slot] = node;
    }
  }

  linkChildren() {
    this.childFrom = new Int32Array(this.size + 1);
    for (let node = 1; node < this.size; node += 1) {
      this.childFrom[this.parent[node] + 1] += 1;
    }
    for (let node = 0; node < this.size; node += 1) {
      this.childFrom[node + 1] += this.childFrom[node];
    }
    const next = this.childFrom.slice();
    this.childList = new Int32Array(this.size);
    for (let node = 1; node < this.size; node += 1) {
      this.childList[next[this.parent[node]]] = node;
      next[this.parent[node]] += 1;
    }
  }

  // Sums by node. Without `before` a node is as wide as `after`; with it, as wide as its callsites' larger amounts.
  addAmounts({ after, before }) {
    this.after = this.sumOf(after);
    this.before = before === null ? null : this.sumOf(before);
    this.width = before === null ? this.after : this.sumOf(after.map((amount, at) => Math.max(amount, before[at], 0)));
  }

  sumOf(amounts) {
    const sums = new Float64Array(this.size);
    for (let callsite = 0; callsite < amounts.length; callsite += 1) {
      if (this.end[callsite] >= 0) {
        sums[this.end[callsite]] += amounts[callsite];
      }
    }
    for (let node = this.size - 1; node > 0; node -= 1) {
      sums[this.parent[node]] += sums[node];
    }
    return sums;
  }

  // Children that have a width, the widest first.
  children(node) {
    const all = Array.from(this.childList.subarray(this.childFrom[node], this.childFrom[node + 1]));
    return all.filter((child) => this.width[child] > 0).sort((one, other) => this.width[other] - this.width[one] || one - other);
  }

  isFunction(node) {
    return this.key[node] >= 0 && this.key[node] < this.profile.functions.name.length;
  }

  name(node) {
    const key = this.key[node];
    if (key < 0) {
      return "all";
    }
    return this.isFunction(node) ? this.profile.functionName(key) : this.words[key - this.profile.functions.name.length];
  }

  shortName(node) {
    return this.isFunction(node) ? this.profile.functionShort(this.key[node]) : this.name(node);
  }

  module(node) {
    return this.isFunction(node) ? this.profile.functionModule(this.key[node]) : "";
  }

  // Modules by their widest nodes, the widest first, up to a limit.
  modules(most) {
    const widest = new Float64Array(this.profile.functions.name.length);
    for (let node = 1; node < this.size; node += 1) {
      if (this.key[node] < widest.length && this.width[node] > widest[this.key[node]]) {
        widest[this.key[node]] = this.width[node];
      }
    }
    const byModule = new Map();
    for (let key = 0; key < widest.length; key += 1) {
      const module = baseName(this.profile.functionModule(key));
      if (module !== "" && widest[key] > (byModule.get(module) ?? 0)) {
        byModule.set(module, widest[key]);
      }
    }
    return [...byModule].sort((one, other) => other[1] - one[1]).slice(0, most).map(([module]) => module);
  }

  // Matching nodes, and the total width and amounts below these.
  find(text) {
    const wanted = text.toLowerCase();
    const functions = this.profile.functions.name.map((_, at) => this.profile.functionName(at).toLowerCase().includes(wanted));
    const matches = functions.concat(this.words.map((word) => word.toLowerCase().includes(wanted)));
    const found = new Uint8Array(this.size);
    const inside = new Uint8Array(this.size);
    let [width, before, after] = [0, 0, 0];
    for (let node = 1; node < this.size; node += 1) {
      found[node] = matches[this.key[node]] ? 1 : 0;
      inside[node] = inside[this.parent[node]] | found[node];
      if (found[node] === 1 && inside[this.parent[node]] === 0) {
        width += this.width[node];
        after += this.after[node];
        before += this.before === null ? 0 : this.before[node];
      }
    }
    return { found, width, before, after };
  }
}

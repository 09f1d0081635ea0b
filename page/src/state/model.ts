/** A profile with all that is computed from it. Another document makes another model. */

import { Amounts } from "../data/amounts.ts";
import type { Document } from "../data/document.ts";
import { Points } from "../data/points.ts";
import { Profile } from "../data/profile.ts";
import { TreeShape, type TreeOptions } from "../analysis/tree.ts";
import type { Limits } from "./hash.ts";
import { initialState, type State } from "./state.ts";

const SHAPES_MAX = 6;

export class Model {
  readonly profile: Profile;
  readonly points: Points;
  readonly amounts: Amounts;
  readonly initial: State;
  /** How many of each a state may name. */
  readonly limits: Limits;
  private readonly shapes = new Map<string, TreeShape>();

  constructor(document: Document) {
    this.profile = new Profile(document);
    this.points = new Points(this.profile);
    this.amounts = new Amounts(this.profile, this.points);
    this.initial = initialState(this.profile, this.points);
    this.limits = { targets: this.profile.targets.length, functions: this.profile.functionCount, callsites: this.profile.count };
  }


  /** The tree of stacks for some options; those used last are kept. `hide` identifies the hidden frames. */
  shape(options: TreeOptions, hide: string): TreeShape {
    const key = JSON.stringify([options.groups, options.isReversed, options.root, hide]);
    const known = this.shapes.get(key);
    const shape = known ?? new TreeShape(this.profile, options);
    this.shapes.delete(key);
    this.shapes.set(key, shape);
    for (const oldest of this.shapes.keys()) {
      if (this.shapes.size <= SHAPES_MAX) {
        break;
      }
      this.shapes.delete(oldest);
    }
    return shape;
  }
}

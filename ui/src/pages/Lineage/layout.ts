/**
 * A layered layout of a lineage (Sugiyama, Tagawa and Toda, 1981), from top to bottom.
 *
 * Lineages are thin: ten layers of a few artifacts. Ranks by the longest way, long edges through empty places, order by
 * the means of the neighbours, positions by least squares; edges of one source pass together. docs/pages/lineage.md compares
 * it with dagre and Elk.
 */

interface Edge {
  source: string;
  target: string;
}

export interface Point {
  x: number;
  y: number;
}

export interface Layout<E extends Edge> {
  /** By node, its centre. */
  places: Map<string, Point>;
  /** Edges with the points that they pass, from source to target. */
  routes: { edge: E; points: Point[] }[];
  width: number;
  height: number;
}

export const NODE_WIDTH = 248;
export const NODE_HEIGHT = 46;
const GAP_X = 28;
const GAP_Y = 32;
const PASS_WIDTH = 36;
const SWEEPS = 8;

/** Something in a layer: a node, or a place that an edge passes (`edge#rank`). */
interface Slot {
  id: string;
  rank: number;
  isPass: boolean;
  above: Slot[];
  below: Slot[];
  x: number;
}

export function layOut<E extends Edge>(ids: readonly string[], edges: readonly E[]): Layout<E> {
  const order = topological(ids, edges);
  const position = new Map(order.map((id, index) => [id, index]));
  // Nothing is made from what was made from it: what leads back, against the order, is not drawn.
  const forward = edges.filter(({ source, target }) => (position.get(source) ?? 0) < (position.get(target) ?? 0));
  const ranks = rank(order, forward);
  const slots = new Map<string, Slot>();
  const slotOf = (id: string, at: number, isPass: boolean): Slot => {
    const slot = slots.get(id) ?? { id, rank: at, isPass, above: [], below: [], x: 0 };
    slots.set(id, slot);
    return slot;
  };
  for (const id of order) {
    slotOf(id, ranks.get(id) ?? 0, false);
  }
  const chains = forward.map((edge) => chain(edge, ranks, slotOf));
  const layers: Slot[][] = [];
  for (const slot of slots.values()) {
    layers[slot.rank] ??= [];
    layers[slot.rank]?.push(slot);
  }
  arrange(layers);
  place(layers);
  const all = [...slots.values()];
  const left = Math.min(...all.map(({ x, isPass }) => x - (isPass ? 0 : NODE_WIDTH / 2)), 0);
  const right = Math.max(...all.map(({ x, isPass }) => x + (isPass ? 0 : NODE_WIDTH / 2)), 0);
  const yOf = (slot: Slot) => slot.rank * (NODE_HEIGHT + GAP_Y) + NODE_HEIGHT / 2;
  const point = (slot: Slot): Point => ({ x: slot.x - left, y: yOf(slot) });
  return {
    places: new Map(all.filter(({ isPass }) => !isPass).map((slot) => [slot.id, point(slot)])),
    routes: forward.map((edge, index) => ({ edge, points: (chains[index] ?? []).map(point) })),
    width: right - left,
    height: layers.length * (NODE_HEIGHT + GAP_Y) - GAP_Y,
  };
}

/** Sources first; where there is a cycle, in the order given. */
function topological(ids: readonly string[], edges: readonly Edge[]): string[] {
  const sources = new Map<string, string[]>();
  for (const { source, target } of edges) {
    sources.set(target, [...(sources.get(target) ?? []), source]);
  }
  const done = new Set<string>();
  const found: string[] = [];
  const visit = (id: string): void => {
    if (!done.has(id)) {
      done.add(id);
      for (const source of sources.get(id) ?? []) {
        visit(source);
      }
      found.push(id);
    }
  };
  for (const id of ids) {
    visit(id);
  }
  return found;
}

/** Layers by the longest way from a source; what has no source stands right above what is made from it. */
function rank(order: readonly string[], edges: readonly Edge[]): Map<string, number> {
  const ranks = new Map(order.map((id) => [id, 0]));
  const into = new Set(edges.map(({ target }) => target));
  for (const id of order) {
    for (const { source, target } of edges) {
      if (source === id) {
        ranks.set(target, Math.max(ranks.get(target) ?? 0, (ranks.get(id) ?? 0) + 1));
      }
    }
  }
  for (const id of order) {
    const next = edges.filter(({ source }) => source === id).map(({ target }) => ranks.get(target) ?? 0);
    if (!into.has(id) && next.length > 0) {
      ranks.set(id, Math.min(...next) - 1);
    }
  }
  return ranks;
}

/** The slots of an edge from source to target, those that it passes included. */
function chain(
  edge: Edge,
  ranks: ReadonlyMap<string, number>,
  slotOf: (id: string, at: number, isPass: boolean) => Slot,
): Slot[] {
  const first = ranks.get(edge.source) ?? 0;
  const last = ranks.get(edge.target) ?? 0;
  const found = [slotOf(edge.source, first, false)];
  for (let at = first + 1; at < last; at += 1) {
    // Edges of one source pass together.
    found.push(slotOf(`${edge.source}#${at}`, at, true));
  }
  found.push(slotOf(edge.target, last, false));
  for (let index = 1; index < found.length; index += 1) {
    const [above, below] = [found[index - 1], found[index]];
    if (above && below && !above.below.includes(below)) {
      above.below.push(below);
      below.above.push(above);
    }
  }
  return found;
}

/** Orders each layer by the means of its neighbours, down and up, and keeps the order with the fewest crossings. */
function arrange(layers: Slot[][]): void {
  let best = layers.map((layer) => [...layer]);
  let fewest = Number.POSITIVE_INFINITY;
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
    const down = sweep % 2 === 0;
    const ordered = down ? layers : [...layers].reverse();
    for (const [index, layer] of ordered.entries()) {
      const fixed = new Map((ordered[index - 1] ?? []).map((slot, at) => [slot, at]));
      const key = new Map(
        layer.map((slot, at) => [
          slot,
          mean(
            (down ? slot.above : slot.below).map((each) => fixed.get(each) ?? 0),
            at,
          ),
        ]),
      );
      layer.sort((a, b) => (key.get(a) ?? 0) - (key.get(b) ?? 0));
    }
    const count = crossings(layers);
    if (count < fewest) {
      fewest = count;
      best = layers.map((layer) => [...layer]);
    }
  }
  for (const [index, layer] of best.entries()) {
    layers[index] = layer;
  }
}

function mean(values: readonly number[], otherwise: number): number {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : otherwise;
}

function crossings(layers: readonly Slot[][]): number {
  let count = 0;
  for (const [index, layer] of layers.entries()) {
    const at = new Map((layers[index + 1] ?? []).map((slot, place) => [slot, place]));
    const ends = layer.flatMap((slot, from) => slot.below.map((below) => [from, at.get(below) ?? 0] as const));
    for (const [i, [from, to]] of ends.entries()) {
      for (const [otherFrom, otherTo] of ends.slice(i + 1)) {
        count += (from - otherFrom) * (to - otherTo) < 0 ? 1 : 0;
      }
    }
  }
  return count;
}

/** Draws slots to the means of their neighbours, as near as the others of their layer let them. */
function place(layers: readonly Slot[][]): void {
  for (const layer of layers) {
    pack(
      layer,
      layer.map((_, index) => (index - (layer.length - 1) / 2) * (NODE_WIDTH + GAP_X)),
    );
  }
  for (let round = 0; round < 3 * SWEEPS; round += 1) {
    for (const layer of round % 2 ? [...layers].reverse() : layers) {
      pack(
        layer,
        layer.map((slot) =>
          mean(
            [...slot.above, ...slot.below].map(({ x }) => x),
            slot.x,
          ),
        ),
      );
    }
  }
}

/** The positions nearest to those wanted, by least squares, that keep order and distances: pooled adjacent violators. */
function pack(layer: readonly Slot[], wanted: readonly number[]): void {
  const half = ({ isPass }: Slot) => (isPass ? PASS_WIDTH : NODE_WIDTH + GAP_X) / 2;
  const offsets: number[] = [];
  for (const [index, slot] of layer.entries()) {
    const before = layer[index - 1];
    offsets.push(before ? (offsets[index - 1] ?? 0) + half(before) + half(slot) : 0);
  }
  const blocks: { sum: number; count: number }[] = [];
  for (const [index, x] of wanted.entries()) {
    let block = { sum: x - (offsets[index] ?? 0), count: 1 };
    for (let last = blocks.at(-1); last && last.sum / last.count > block.sum / block.count; last = blocks.at(-1)) {
      block = { sum: block.sum + last.sum, count: block.count + last.count };
      blocks.pop();
    }
    blocks.push(block);
  }
  let index = 0;
  for (const { sum, count } of blocks) {
    for (let each = 0; each < count; each += 1, index += 1) {
      const slot = layer[index];
      if (slot) {
        slot.x = sum / count + (offsets[index] ?? 0);
      }
    }
  }
}

/** The path of an edge, in SVG's words: down from the source's lower side to the target's upper side. */
export function pathOf(points: readonly Point[]): string {
  const [first, ...rest] = points;
  if (!first) {
    return "";
  }
  let from = { x: first.x, y: first.y + NODE_HEIGHT / 2 };
  let path = `M${from.x},${from.y}`;
  for (const [index, { x, y }] of rest.entries()) {
    const isLast = index === rest.length - 1;
    const to = { x, y: isLast ? y - NODE_HEIGHT / 2 - 3 : y };
    const bend = (to.y - from.y) / 2;
    path += `C${from.x},${from.y + bend} ${to.x},${to.y - bend} ${to.x},${to.y}`;
    from = to;
  }
  return path;
}

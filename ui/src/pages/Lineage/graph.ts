/** What the lineage is made of, and which parts of it belong together. */

import type { Schemas } from "src/api/client";

export type Lineage = Schemas["Lineage"];
export type Node = Schemas["LineageNode"];
type LineageEdge = Schemas["LineageEdge"];

/** All that a node was made from, or all that was made from it; itself included. */
function reach(id: string, edges: readonly LineageEdge[], back: boolean): Set<string> {
  const found = new Set([id]);
  const open = [id];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    for (const { source, target } of edges) {
      const [near, far] = back ? [target, source] : [source, target];
      if (near === next && !found.has(far)) {
        found.add(far);
        open.push(far);
      }
    }
  }
  return found;
}

/** The nodes on the ways between two nodes, in whichever direction one is made from the other. */
export function between(from: string, to: string, edges: readonly LineageEdge[]): Set<string> {
  const back = reach(from, edges, true);
  const [upper, lower] = back.has(to) ? [to, from] : [from, to];
  const above = reach(lower, edges, true);
  const onWay = [...reach(upper, edges, false)].filter((id) => above.has(id));
  return new Set([from, to, ...onWay]);
}

/** A branch of the nested list. A node that was written out before has no branches of its own. */
export interface Branch {
  node: Node;
  role: string | null;
  isRepeated: boolean;
  branches: Branch[];
}

/** The lineage as a tree from its artifact, back or on. */
export function treeOf(lineage: Lineage, back: boolean): Branch | null {
  const nodes = new Map(lineage.nodes.map((node) => [node.id, node]));
  const written = new Set<string>();
  const grow = (id: string, edge: LineageEdge | null): Branch | null => {
    const node = nodes.get(id);
    if (!node) {
      return null;
    }
    const isRepeated = written.has(id);
    written.add(id);
    const next = isRepeated ? [] : lineage.edges.filter((each) => (back ? each.target : each.source) === id);
    return {
      node,
      role: edge?.role ?? null,
      isRepeated,
      branches: next.flatMap((each) => grow(back ? each.source : each.target, each) ?? []),
    };
  };
  return grow(lineage.focus, null);
}

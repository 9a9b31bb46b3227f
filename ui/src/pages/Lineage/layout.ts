/** Places a lineage in layers from top to bottom, by dagre. */

import { graphlib, layout } from "@dagrejs/dagre";

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
  /** Edges with the points that they pass, from the centre of the source to that of the target. */
  routes: { edge: E; points: Point[] }[];
  width: number;
  height: number;
}

export const NODE_WIDTH = 248;
export const NODE_HEIGHT = 46;
const GAP_X = 28;
const GAP_Y = 32;

export function layOut<E extends Edge>(ids: readonly string[], edges: readonly E[]): Layout<E> {
  const graph = new graphlib.Graph();
  graph.setGraph({ nodesep: GAP_X, edgesep: GAP_X, ranksep: GAP_Y });
  for (const id of ids) {
    graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  }
  for (const { source, target } of edges) {
    graph.setEdge(source, target, {});
  }
  layout(graph);
  const placeOf = (id: string): Point => ({ x: graph.node(id).x ?? 0, y: graph.node(id).y ?? 0 });
  const { width = 0, height = 0 } = graph.graph();
  return {
    places: new Map(ids.map((id) => [id, placeOf(id)])),
    routes: edges.map((edge) => {
      const between: Point[] = graph.edge(edge.source, edge.target).points.slice(1, -1);
      return { edge, points: [placeOf(edge.source), ...between, placeOf(edge.target)] };
    }),
    width: Math.max(width, 0),
    height: Math.max(height, 0),
  };
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

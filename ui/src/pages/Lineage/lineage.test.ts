import { between, type Lineage, type Node, treeOf } from "src/pages/Lineage/graph";
import { targetOf } from "src/pages/Lineage/kinds";
import { layOut, NODE_HEIGHT, NODE_WIDTH, pathOf } from "src/pages/Lineage/layout";
import { describe, expect, test } from "vitest";

interface Edge {
  source: string;
  target: string;
}

/** Edges as `a>b a>c`. */
const edgesOf = (text: string): Edge[] =>
  text
    .trim()
    .split(/\s+/)
    .map((pair) => {
      const [source = "", target = ""] = pair.split(">");
      return { source, target };
    });
const idsOf = (edges: readonly Edge[]) => [...new Set(edges.flatMap(({ source, target }) => [source, target]))];

const runOf = (n: number) => `
  snapshot${n}>examples${n} examples${n}>statistics${n} examples${n}>anomalies${n} statistics${n}>anomalies${n}
  schema>anomalies${n} examples${n}>transformed${n} statistics${n}>transformed${n} schema>transformed${n}
  transformed${n}>model${n} statistics${n}>model${n} model${n}>evaluation${n} examples${n}>evaluation${n}
  model${n}>check${n} examples${n}>check${n} model${n}>deployment${n} evaluation${n}>deployment${n} check${n}>deployment${n}`;
const LOOP = edgesOf(`statistics1>schema ${runOf(1)} ${runOf(2)} model1>evaluation2 model1>skew statistics1>skew`);

describe("the layout of a loop of two runs", () => {
  const layout = layOut(idsOf(LOOP), LOOP);
  const placed = [...layout.places];
  const placeOf = (id: string) => layout.places.get(id) ?? { x: Number.NaN, y: Number.NaN };

  test("has what is made below what it is made from, and leaves no edge out", () => {
    expect(layout.routes.map(({ edge }) => edge)).toEqual(LOOP);
    expect(LOOP.filter(({ source, target }) => placeOf(source).y + NODE_HEIGHT >= placeOf(target).y)).toEqual([]);
  });

  test("has no box over another, and all of them within its size", () => {
    const over = placed.filter(([, one], index) =>
      placed.slice(0, index).some(([, other]) => {
        const [across, down] = [Math.abs(one.x - other.x), Math.abs(one.y - other.y)];
        return across < NODE_WIDTH && down < NODE_HEIGHT;
      }),
    );
    expect(over).toEqual([]);
    const { width, height } = layout;
    for (const [, { x, y }] of placed) {
      expect(x - NODE_WIDTH / 2).toBeGreaterThan(-1e-6);
      expect(x + NODE_WIDTH / 2).toBeLessThan(width + 1e-6);
      expect(y - NODE_HEIGHT / 2).toBeGreaterThan(-1e-6);
      expect(y + NODE_HEIGHT / 2).toBeLessThan(height + 1e-6);
    }
  });
});

describe("a small lineage", () => {
  test("of one node, or of none, has its size", () => {
    expect(layOut(["a"], [])).toMatchObject({ width: NODE_WIDTH, height: NODE_HEIGHT });
    expect(layOut([], []).routes).toEqual([]);
  });

  test("an edge is drawn from border to border", () => {
    const [from, to] = [{ x: 10, y: 20 }, { x: 30, y: 120 }]; // biome-ignore format: a line
    expect(pathOf([from, to])).toBe(`M10,43C10,68.5 30,68.5 30,${120 - NODE_HEIGHT / 2 - 3}`);
    expect(pathOf([])).toBe("");
  });
});

describe("ways", () => {
  test("between two artifacts are all that lead from one to the other, in either direction", () => {
    const expected = ["deployment1", "evaluation1", "model1", "check1", "transformed1"].sort();
    expect([...between("transformed1", "deployment1", LOOP as Lineage["edges"])].sort()).toEqual(expected);
    expect([...between("deployment1", "transformed1", LOOP as Lineage["edges"])].sort()).toEqual(expected);
    expect([...between("skew", "snapshot2", LOOP as Lineage["edges"])].sort()).toEqual(["skew", "snapshot2"]);
  });

  test("as a list, what was written out before is not written again", () => {
    const edges = edgesOf("a>b a>c b>d c>d").map((edge) => ({ ...edge, role: "input" }));
    const lineage = { focus: "d", nodes: ["a", "b", "c", "d"].map((id) => ({ id })), edges } as unknown as Lineage;
    const written = (branch: ReturnType<typeof treeOf>): unknown =>
      branch && [branch.node.id + (branch.isRepeated ? " again" : ""), ...branch.branches.map(written)];
    expect(written(treeOf(lineage, true))).toEqual(["d", ["b", ["a"]], ["c", ["a again"]]]);
    expect(treeOf({ ...lineage, focus: "gone" }, true)).toBeNull();
  });
});

test("an artifact tells what is to be predicted, where it knows", () => {
  const told = (facts: object) => targetOf({ facts } as Node);
  expect(told({ label: "species", problem: "multiclass", classes: ["Adelie", "Gentoo"] })).toBe(
    "species · classes: 0 Adelie, 1 Gentoo",
  );
  expect(told({ label: "miles_per_gallon", problem: "regression" })).toBe("miles_per_gallon · regression");
  expect(told({ label: "late" })).toBe("");
});

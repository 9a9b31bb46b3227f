import { columnOf } from "src/pages/Data/dive/columnOf";
import { groupBy } from "src/pages/Data/dive/groups";
import { facetSpan, type Layout, layOut } from "src/pages/Data/dive/layout";
import { nearest, within } from "src/pages/Data/dive/picking";
import { drawPoints, fillBox, toPixel } from "src/pages/Data/dive/raster";
import { makeAxis } from "src/pages/Data/dive/scale";
import { formatView, HOME, move, parseView, zoom } from "src/pages/Data/dive/view";
import { describe, expect, test } from "vitest";

const NUMBERS = columnOf([1, 10, 100, 1000, Number.NaN, Number.POSITIVE_INFINITY]);

describe("an axis", () => {
  test.each(["linear", "log"] as const)("keeps the order of values (%s)", (kind) => {
    const { at } = makeAxis(NUMBERS, kind, "UTC");
    const placed = [0, 1, 2, 3].map((row) => at[row] as number);
    expect(placed).toEqual([...placed].sort((a, b) => a - b));
    expect(new Set(placed).size).toBe(4);
    expect(at[4]).toBeLessThan(placed[0] as number);
    expect(at[5]).toBeGreaterThanOrEqual(placed[3] as number);
    expect([...at].every((share) => share >= 0 && share <= 1)).toBe(true);
  });

  test("of logarithms has powers of ten equally far apart", () => {
    const { at, ticks } = makeAxis(NUMBERS, "log", "UTC");
    const steps = [1, 2, 3].map((row) => (at[row] as number) - (at[row - 1] as number));
    expect(Math.max(...steps) - Math.min(...steps)).toBeLessThan(1e-6);
    expect(ticks(0, 1, 5).map(({ label }) => label)).toEqual(["missing", "1", "10", "100", "1,000"]);
  });

  test("of logarithms goes both ways from zero, where there are values below it", () => {
    const { at } = makeAxis(columnOf([-100, 0, 100]), "log", "UTC");
    expect((at[0] as number) + (at[2] as number)).toBeCloseTo(2 * (at[1] as number), 6);
  });

  test("has round ticks, that lie where their values lie", () => {
    const { at, ticks } = makeAxis(columnOf([0, 25, 100]), "linear", "UTC");
    const marks = ticks(0, 1, 4);
    expect(marks.map(({ label }) => label)).toEqual(["0", "20", "40", "60", "80", "100"]);
    expect(marks[0]?.at).toBeCloseTo(at[0] as number, 6);
    expect(marks[5]?.at).toBeCloseTo(at[2] as number, 6);
    const inner = ticks(0.45, 0.55, 4);
    expect(inner.every((tick) => tick.at >= 0.45 && tick.at <= 0.55) && inner.length > 1).toBe(true);
  });

  test("of times has ticks at whole hours or days", () => {
    const day = 86_400_000;
    const { ticks } = makeAxis(columnOf([0, 10 * day], "time"), "linear", "UTC");
    expect(ticks(0, 1, 5).map(({ label }) => label)[1]).toBe("1970-01-03");
  });

  test("of words has a band for each, and of a single value its middle", () => {
    const { at, bands, step } = makeAxis(columnOf(["a", "b", "a", null], "category"), "linear", "UTC");
    expect(bands?.labels).toEqual(["a", "b", "missing"]);
    expect([...at].map((share) => Math.round(share * 6))).toEqual([1, 3, 1, 5]);
    expect(step).toBeCloseTo(1 / 3, 12);
    expect([...makeAxis(columnOf([7, 7]), "log", "UTC").at]).toEqual([0.5, 0.5]);
  });
});

/** Rows that are packed, without a feature on an axis unless one is given. */
function packed(size: number, more: Partial<Parameters<typeof layOut>[0]> = {}): Layout {
  return layOut({
    x: null,
    y: null,
    columns: null,
    rows: null,
    jitter: 0.8,
    bins: 4,
    order: Uint32Array.from({ length: size }, (_, row) => row),
    shown: new Uint8Array(size).fill(1),
    aspect: 1.6,
    ...more,
  });
}

describe("places of rows", () => {
  test.each([1, 2, 7, 100, 1013])("%d packed rows lie in squares that do not overlap, within the plot", (size) => {
    const { x, y, pitch } = packed(size);
    const places = [...x].map((across, row) => [across, (y[row] as number) / 1.6] as const);
    expect([...x, ...y].every((share) => share > 0 && share <= 1)).toBe(true);
    const closest = places.map(([left, top], row) =>
      Math.min(...places.slice(0, row).map(([x2, y2]) => Math.max(Math.abs(left - x2), Math.abs(top - y2)))),
    );
    expect(Math.min(...closest)).toBeGreaterThan(pitch * 0.999);
  });

  test("facets take the whole plot, without overlap", () => {
    for (const count of [1, 3, 40]) {
      const spans = Array.from({ length: count }, (_, index) => facetSpan(index, count));
      const ends = spans.map(([start, length]) => start + length);
      expect(ends.at(-1)).toBeCloseTo(1, 9);
      expect(spans.slice(1).every(([start], index) => start >= (ends[index] as number))).toBe(true);
    }
  });

  test("each row lies in its facet, and what is not shown nowhere", () => {
    const columns = groupBy(columnOf(["a", "b", "a", "b"], "category"), 9, "UTC");
    const values = makeAxis(columnOf([1, 2, 3, 4]), "linear", "UTC");
    const shown = Uint8Array.of(1, 1, 1, 0);
    for (const layout of [packed(4, { columns, shown }), packed(4, { columns, shown, x: values, y: values })]) {
      expect([...layout.counts]).toEqual([2, 1]);
      expect([...layout.x].map((x) => (Number.isNaN(x) ? null : x > 0.5))).toEqual([false, true, false, null]);
    }
  });

  test("jitter keeps a row within its step, and in the same place each time", () => {
    const axis = makeAxis(columnOf(Array.from({ length: 90 }, (_, row) => row % 3)), "linear", "UTC");
    const one = packed(90, { x: axis, y: axis });
    expect(packed(90, { x: axis, y: axis })).toEqual(one);
    const off = [...one.x].map((x, row) => Math.abs(x - (axis.at[row] as number)));
    expect(Math.max(...off)).toBeLessThan(axis.step / 2);
    expect(Math.max(...off)).toBeGreaterThan(0);
  });
});

describe("a view", () => {
  test("zooms about a place, which stays where it is", () => {
    const view = zoom(zoom(HOME, 2, 3, 0.3, 0.6), 1.7, 1.1, 0.4, 0.5);
    const again = zoom(view, 1.2, 1.2, 0.4, 0.5);
    expect(((0.4 - view.dx) / view.kx) * again.kx + again.dx).toBeCloseTo(0.4, 9);
    expect(zoom(view, 1e-9, 1e-9, 0.5, 0.5)).toMatchObject({ kx: 1, ky: 1 });
  });

  test("never loses the plot out of sight", () => {
    for (const away of [-100, 100]) {
      const { kx, dx } = move({ kx: 2, ky: 2, dx: 0, dy: 0 }, away, away);
      expect(dx + kx).toBeGreaterThan(0);
      expect(dx).toBeLessThan(1);
    }
  });

  test("is read back from the address; nonsense is the whole", () => {
    const view = { kx: 2, ky: 4, dx: -0.25, dy: 0.125 };
    expect(parseView(formatView(view))).toEqual(view);
    expect([HOME, parseView("a,b"), parseView("1,2,3,4,5")]).toEqual([parseView(formatView(HOME)), HOME, HOME]);
  });
});

describe("picking and drawing", () => {
  const layout = {
    x: Float32Array.of(0.25, 0.75, 0.25, Number.NaN),
    y: Float32Array.of(0.25, 0.75, 0.25, 0.5),
  } as Layout;
  const pixels = { kx: 100, ky: 100, dx: 0, dy: 0 };

  test("the row on top is picked, within reach", () => {
    expect(nearest(layout, pixels, 26, 25, 5)).toBe(2);
    expect(nearest(layout, pixels, 74, 76, 5)).toBe(1);
    expect(nearest(layout, pixels, 50, 50, 5)).toBeNull();
  });

  test("a box holds what lies within it, whichever corner comes first", () => {
    const [near, far] = [[0, 0] as const, [0.5, 0.5] as const];
    expect([...within(layout, [near, far])]).toEqual([1, 0, 1, 0]);
    expect([...within(layout, [far, near])]).toEqual([1, 0, 1, 0]);
    expect([...within(layout, [[0.8, 0.8], [0.7, 0.7]])]).toEqual([0, 1, 0, 0]); // biome-ignore format: places
  });

  test("a mark is drawn where its row lies, opaque, and nowhere beyond the image", () => {
    const image = { data: new Uint32Array(100 * 100), width: 100, height: 100 };
    const points = {
      x: Float32Array.of(0.25, 0, Number.NaN),
      y: Float32Array.of(0.5, 0, 0.9),
      fromX: null,
      fromY: null,
      progress: 1,
      color: Uint8Array.of(0, 1, 1),
      palette: Uint32Array.of(toPixel("rgb(255,0,0)"), toPixel("rgb(0,0,255)")),
    };
    drawPoints(image, points, pixels, null, { shape: "square", radius: 2, opacity: 1 });
    expect(image.data[50 * 100 + 25]).toBe(0xff0000ff);
    expect(image.data[0]).toBe(0xffff0000);
    expect(image.data[90 * 100 + 50]).toBe(0);
    expect(image.data[60 * 100 + 25]).toBe(0);
    drawPoints(image, points, { ...pixels, dx: 30 }, Uint8Array.of(0, 1, 1), { shape: "disc", radius: 2, opacity: 1 });
    expect(image.data[50 * 100 + 55]).toBe(0);
  });

  test("a box is filled as far as it lies in the image", () => {
    const image = { data: new Uint32Array(9), width: 3, height: 3 };
    fillBox(image, -5, 1, 2, 9, 7);
    expect([...image.data]).toEqual([0, 0, 0, 7, 7, 0, 7, 7, 0]);
  });
});

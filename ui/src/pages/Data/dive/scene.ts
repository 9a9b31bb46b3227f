/** The plot: rows on a canvas, moved, zoomed and changed smoothly. It knows nothing of React. */

import { paintLabels } from "src/pages/Data/dive/labels";
import { facetSpan, type Layout } from "src/pages/Data/dive/layout";
import { nearest, type Place } from "src/pages/Data/dive/picking";
import { drawPoints, fillBox, type Mark, type Points, type Projection, toPixel } from "src/pages/Data/dive/raster";
import type { Tick } from "src/pages/Data/dive/scale";
import type { Margins, Marks, Shown } from "src/pages/Data/dive/shown";
import { HOME, type View } from "src/pages/Data/dive/view";

const TRANSITION_MS = 500;
const MOST_PIXELS = 8_000_000;
const PICK_PX = 10;
const CLOSE_PX = 5;
const RADIUS_PX = 2.5;
const MOST_RADIUS_PX = 14;
const OPACITY = 0.6;
/** From so many rows on, a disc is the more transparent the closer they are packed: what is seen is their density. */
const DENSE_ROWS = 20_000;
const DENSITY = 4;
const LEAST_OPACITY = 1 / 32;

export class Scene {
  view: View = HOME;
  /** What is being drawn around rows, in the unit square. */
  outline: readonly Place[] = [];
  hovered: number | null = null;
  margins: Margins = { left: 0, top: 0, right: 0, bottom: 0 };
  width = 0;
  height = 0;
  private shown: Shown | null = null;
  private before: { x: Float32Array; y: Float32Array; started: number } | null = null;
  private frame = 0;
  private ratio = 1;
  private image: ImageData | null = null;
  private readonly reduced = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  constructor(
    private readonly points: HTMLCanvasElement,
    private readonly labels: HTMLCanvasElement,
    /** Called after each frame, with whether the rows have come to rest. */
    private readonly onFrame: (atRest: boolean) => void,
  ) {}

  /** Sets the size of the plot without its margins, in pixels of CSS. */
  resize(width: number, height: number, margins: Margins): void {
    this.margins = margins;
    [this.width, this.height] = [Math.max(width, 1), Math.max(height, 1)];
    const wanted = window.devicePixelRatio || 1;
    this.ratio = Math.min(wanted, Math.max(1, Math.sqrt(MOST_PIXELS / (this.width * this.height))));
    this.points.width = Math.round(this.width * this.ratio);
    this.points.height = Math.round(this.height * this.ratio);
    this.labels.width = Math.round((this.width + margins.left + margins.right) * wanted);
    this.labels.height = Math.round((this.height + margins.top + margins.bottom) * wanted);
    this.image = null;
    this.redraw();
  }

  /** Shows something else; rows whose places change go there. */
  show(shown: Shown): void {
    const previous = this.shown;
    if (previous && previous.layout !== shown.layout && previous.layout.x.length === shown.layout.x.length) {
      this.before = this.reduced ? null : { ...this.places(previous.layout), started: performance.now() };
    }
    this.shown = shown;
    this.redraw();
  }

  redraw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  end(): void {
    cancelAnimationFrame(this.frame);
  }

  /** Draws the words and lines over the points anew, and not the points. */
  redrawLabels(): void {
    if (this.shown && !this.before) {
      paintLabels(this.labels, this, this.shown, this.marks("x"), this.marks("y"));
    }
  }

  /** The row that is drawn nearest to a pixel of the plot, within so many pixels. */
  pick(x: number, y: number, within = PICK_PX): number | null {
    if (!this.shown || this.before) {
      return null;
    }
    const reach = Math.max(within, this.mark(this.shown).radius / this.ratio + 2);
    return nearest(this.shown.layout, this.projection(1), x, y, reach);
  }

  /** Where a row is drawn, in pixels of the plot; null where it is not. */
  placeOf(row: number): Place | null {
    const { kx, ky, dx, dy } = this.projection(1);
    const [x, y] = [this.shown?.layout.x[row] ?? Number.NaN, this.shown?.layout.y[row] ?? Number.NaN];
    return Number.isNaN(x) ? null : [x * kx + dx, y * ky + dy];
  }

  /** The place in the unit square of a pixel of the plot. */
  toPlace(x: number, y: number): Place {
    const { kx, ky, dx, dy } = this.projection(1);
    return [(x - dx) / kx, (y - dy) / ky];
  }

  projection(ratio: number): Projection {
    const [width, height] = [this.width * ratio, this.height * ratio];
    const { kx, ky, dx, dy } = this.view;
    return { kx: kx * width, ky: ky * height, dx: dx * width, dy: dy * height };
  }

  /** The marks of the facets in sight along an axis. */
  marks(along: "x" | "y"): Marks[] {
    const { layout } = this.shown as Shown;
    const axis = along === "x" ? this.shown?.x : this.shown?.y;
    const count = along === "x" ? layout.columnCount : layout.rowCount;
    const [scale, shift, size] =
      along === "x"
        ? [this.view.kx * this.width, this.view.dx * this.width, this.width]
        : [this.view.ky * this.height, this.view.dy * this.height, this.height];
    return Array.from({ length: count }, (_, index): Marks => {
      const [start, length] = facetSpan(index, count);
      const [from, to] = [start * scale + shift, (start + length) * scale + shift];
      if (!axis || to < 0 || from > size) {
        return { from, to, ticks: [] };
      }
      const low = Math.max(-from / (to - from), 0);
      const high = Math.min((size - from) / (to - from), 1);
      const about = ((high - low) * (to - from)) / (along === "x" ? 90 : 45);
      const [first, last] = along === "x" ? [low, high] : [1 - high, 1 - low];
      const pixel = ({ at, label }: Tick) => ({ at: from + (along === "x" ? at : 1 - at) * (to - from), label });
      return { from, to, ticks: axis.ticks(first, last, about).map(pixel) };
    });
  }

  /** How rows are drawn: as discs, or, where they are packed too closely to be told apart, as a closed area. */
  private mark(shown: Shown): Mark {
    const { layout } = shown;
    if (layout.pitch === 0) {
      const { kx, ky } = this.view;
      const crowd = (layout.x.length * Math.PI * RADIUS_PX ** 2) / (this.width * this.height * kx * ky);
      const density = layout.x.length < DENSE_ROWS ? 1 : Math.max(DENSITY * crowd, 1);
      const opacity = Math.max(OPACITY / density, LEAST_OPACITY);
      return { shape: "disc", radius: RADIUS_PX * this.ratio, opacity };
    }
    const pitch = layout.pitch * this.width * Math.min(this.view.kx, this.view.ky) * this.ratio;
    const close = pitch < CLOSE_PX * this.ratio;
    const fitting = close ? pitch / 2 + 0.125 : Math.min(pitch * 0.44, MOST_RADIUS_PX * this.ratio);
    return { shape: close ? "square" : "disc", radius: Math.max(fitting, 0.5), opacity: 0.95 };
  }

  /** Where rows are now, on their way. */
  private places(layout: Layout): { x: Float32Array; y: Float32Array } {
    const progress = this.progress();
    if (!this.before) {
      return layout;
    }
    const mix = (from: Float32Array, to: Float32Array) =>
      to.map((end, row) => {
        const start = from[row] as number;
        return Number.isNaN(start) ? end : start + (end - start) * progress;
      });
    return { x: mix(this.before.x, layout.x), y: mix(this.before.y, layout.y) };
  }

  private progress(): number {
    const share = this.before ? Math.min((performance.now() - this.before.started) / TRANSITION_MS, 1) : 1;
    return share < 0.5 ? 4 * share ** 3 : 1 - (2 - 2 * share) ** 3 / 2;
  }

  private paint(): void {
    const context = this.points.getContext("2d", { alpha: false });
    if (!this.shown || !context || this.width <= 1) {
      return;
    }
    const progress = this.progress();
    if (progress >= 1) {
      this.before = null;
    }
    this.image ??= context.createImageData(this.points.width, this.points.height);
    const { width, height } = this.image;
    const image = { data: new Uint32Array(this.image.data.buffer), width, height };
    const [across, down] = [this.marks("x"), this.marks("y")];
    this.paintFacets(image, across, down);
    this.paintPoints(image, this.shown, progress);
    context.putImageData(this.image, 0, 0);
    paintLabels(this.labels, this, this.shown, across, down);
    this.onFrame(this.before === null);
    if (this.before) {
      this.redraw();
    }
  }

  private paintFacets(
    image: { data: Uint32Array; width: number; height: number },
    across: Marks[],
    down: Marks[],
  ): void {
    const { theme } = this.shown as Shown;
    const { ratio } = this;
    image.data.fill(toPixel(theme.color("bg.muted")));
    const [ground, line] = [toPixel(theme.color("bg")), toPixel(theme.color("border.muted"))];
    for (const { from: top, to: bottom, ticks: ticksY } of down) {
      for (const { from: left, to: right, ticks: ticksX } of across) {
        fillBox(image, left * ratio, top * ratio, right * ratio, bottom * ratio, ground);
        for (const { at } of ticksX) {
          fillBox(image, at * ratio, top * ratio, at * ratio + 1, bottom * ratio, line);
        }
        for (const { at } of ticksY) {
          fillBox(image, left * ratio, at * ratio, right * ratio, at * ratio + 1, line);
        }
      }
    }
  }

  private paintPoints(
    image: { data: Uint32Array; width: number; height: number },
    shown: Shown,
    progress: number,
  ): void {
    const { layout, coloring, chosen, theme } = shown;
    const points: Points = {
      x: layout.x,
      y: layout.y,
      fromX: this.before?.x ?? null,
      fromY: this.before?.y ?? null,
      progress,
      color: coloring.of,
      palette: Uint32Array.from(coloring.palette, toPixel),
    };
    const projection = this.projection(this.ratio);
    const mark = this.mark(shown);
    if (!chosen) {
      drawPoints(image, points, projection, null, mark);
      return;
    }
    const faint = toPixel(theme.color("border.emphasized"));
    const others = chosen.map((each) => 1 - each);
    const muted = { ...points, palette: points.palette.map(() => faint) };
    drawPoints(image, muted, projection, others, { ...mark, opacity: mark.opacity * 0.5 });
    drawPoints(image, points, projection, chosen, { ...mark, opacity: Math.max(mark.opacity, 0.85) });
  }
}

/** Words and lines over the points: marks of the axes, headings and counts of facets, the selection's outline. */

import { formatCount, formatNumber, formatPercent } from "src/format";
import type { Groups } from "src/pages/Data/dive/groups";
import type { Place } from "src/pages/Data/dive/picking";
import type { Scene } from "src/pages/Data/dive/scene";
import type { Marks, Shown } from "src/pages/Data/dive/shown";

const FONT_PX = 11;
const LEAST_CELL = { width: 44, height: 34 };

/** What is drawn on, and what of. */
interface Painting {
  context: CanvasRenderingContext2D;
  family: string;
  scene: Scene;
  shown: Shown;
  /** The marks of the facets side by side, and of those one above the other. */
  across: Marks[];
  down: Marks[];
}

/** Draws all of them anew: `scene.margins` leave room for what stands beside the plot. */
export function paintLabels(
  canvas: HTMLCanvasElement,
  scene: Scene,
  shown: Shown,
  across: Marks[],
  down: Marks[],
): void {
  const context = canvas.getContext("2d");
  if (!context) {
    return;
  }
  const { left, top, right, bottom } = scene.margins;
  const ratio = canvas.width / (scene.width + left + right);
  context.setTransform(ratio, 0, 0, ratio, left * ratio, top * ratio);
  context.clearRect(-left, -top, scene.width + left + right, scene.height + top + bottom);
  const family = getComputedStyle(canvas).fontFamily;
  context.font = `${FONT_PX}px ${family}`;
  context.fillStyle = shown.theme.muted;
  const painting = { context, family, scene, shown, across, down };
  marksBelow(painting);
  marksBeside(painting);
  axisNames(painting);
  headings(painting);
  counts(painting);
  outlines(painting);
}

/** The text, shortened to a width. */
function fitting(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) {
    return text;
  }
  let length = Math.min(text.length, Math.ceil(width / 3));
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) {
    length -= 1;
  }
  return `${text.slice(0, length)}…`;
}

function marksBelow({ context, scene, across }: Painting): void {
  context.textAlign = "center";
  context.textBaseline = "top";
  let free = Number.NEGATIVE_INFINITY;
  for (const { at, label } of across.flatMap(({ ticks }) => ticks)) {
    const text = fitting(context, label, 110);
    const half = context.measureText(text).width / 2;
    if (at >= 0 && at <= scene.width && at - half > free) {
      context.fillText(text, at, scene.height + 6);
      free = at + half + 8;
    }
  }
}

function marksBeside({ context, scene, down }: Painting): void {
  context.textAlign = "right";
  context.textBaseline = "middle";
  const drawn: number[] = [];
  for (const { at, label } of down.flatMap(({ ticks }) => ticks)) {
    if (at >= 0 && at <= scene.height && drawn.every((other) => Math.abs(other - at) >= FONT_PX + 3)) {
      context.fillText(fitting(context, label, 76), -7, at);
      drawn.push(at);
    }
  }
}

function axisNames({ context, family, scene, shown }: Painting): void {
  context.font = `600 ${FONT_PX}px ${family}`;
  if (shown.x) {
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const text = fitting(context, shown.x.column.name, scene.width);
    context.fillText(text, scene.width / 2, scene.height + scene.margins.bottom - 3);
  }
  if (shown.y) {
    sideways(context, shown.y.column.name, -scene.margins.left + 8, scene.height / 2, scene.height);
  }
}

function sideways(context: CanvasRenderingContext2D, text: string, x: number, y: number, room: number): void {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(fitting(context, text, room), 0, 0);
  context.restore();
}

function headings({ context, family, scene, shown, across, down }: Painting): void {
  context.font = `600 ${FONT_PX}px ${family}`;
  context.fillStyle = shown.theme.text;
  for (const [index, { from, to }] of across.entries()) {
    const [left, right] = [Math.max(from, 0), Math.min(to, scene.width)];
    if (shown.columns && right - left > 14) {
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(heading(context, shown.columns, index, right - left), (left + right) / 2, -10);
    }
  }
  for (const [index, { from, to }] of down.entries()) {
    const [top, bottom] = [Math.max(from, 0), Math.min(to, scene.height)];
    if (shown.rows && bottom - top > 14) {
      const text = heading(context, shown.rows, index, bottom - top);
      sideways(context, text, scene.width + 11, (top + bottom) / 2, bottom - top);
    }
  }
}

/** What the rows of a facet have in common; with the feature's name where there is room. */
function heading(context: CanvasRenderingContext2D, groups: Groups, index: number, room: number): string {
  const label = groups.labels[index] ?? "";
  const whole = `${groups.column.name}: ${label}`;
  return context.measureText(whole).width <= room ? whole : fitting(context, label, room);
}

function counts({ context, family, scene, shown, across, down }: Painting): void {
  const { counts: rows } = shown.layout;
  if (rows.length < 2) {
    return;
  }
  const all = rows.reduce((sum, count) => sum + count, 0);
  context.font = `${FONT_PX}px ${family}`;
  context.textAlign = "left";
  context.textBaseline = "top";
  for (const [row, { from: top, to: bottom }] of down.entries()) {
    for (const [column, { from: left, to: right }] of across.entries()) {
      const room = Math.min(right, scene.width) - Math.max(left, 0);
      const count = rows[row * across.length + column] ?? 0;
      const tall = Math.min(bottom, scene.height) - Math.max(top, 0);
      if (room < LEAST_CELL.width || tall < LEAST_CELL.height) {
        continue;
      }
      const text = room > 110 ? `${formatNumber(count)} · ${formatPercent(count / all)}` : formatCount(count);
      const [x, y] = [Math.max(left, 0) + 4, Math.max(top, 0) + 4];
      context.fillStyle = shown.theme.color("bg", 0.8);
      context.fillRect(x, y, context.measureText(text).width + 8, FONT_PX + 6);
      context.fillStyle = shown.theme.text;
      context.fillText(text, x + 4, y + 4);
    }
  }
}

function outlines({ context, scene, shown }: Painting): void {
  context.save();
  context.beginPath();
  context.rect(0, 0, scene.width, scene.height);
  context.clip();
  const { kx, ky, dx, dy } = scene.projection(1);
  const pixels = scene.outline.map(([x, y]): Place => [x * kx + dx, y * ky + dy]);
  const [first, last] = [pixels[0], pixels.at(-1)];
  if (first && last && pixels.length > 1) {
    context.beginPath();
    context.rect(first[0], first[1], last[0] - first[0], last[1] - first[1]);
    context.fillStyle = shown.theme.color("brand.solid", 0.1);
    context.strokeStyle = shown.theme.color("brand.solid");
    context.lineWidth = 1.5;
    context.setLineDash([5, 3]);
    context.fill();
    context.stroke();
    context.setLineDash([]);
  }
  ring(context, scene, shown.opened, shown.theme.text, 8, 2.5);
  ring(context, scene, scene.hovered, shown.theme.text, 6, 1.5);
  context.restore();
}

function ring(
  context: CanvasRenderingContext2D,
  scene: Scene,
  row: number | null,
  color: string,
  radius: number,
  width: number,
): void {
  const place = row === null ? null : scene.placeOf(row);
  if (place) {
    context.beginPath();
    context.arc(place[0], place[1], radius, 0, 2 * Math.PI);
    context.strokeStyle = color;
    context.lineWidth = width;
    context.stroke();
  }
}

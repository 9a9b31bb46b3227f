/** Which part of the plot is in sight: moved and zoomed. */

/** A place `u` of the unit square lies at `u * k + d` of the plot's width or height. */
export interface View {
  kx: number;
  ky: number;
  dx: number;
  dy: number;
}

export const HOME: View = { kx: 1, ky: 1, dx: 0, dy: 0 };
const MOST = 5_000;
const BEYOND = 0.4;

const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);

function settle({ kx, ky, dx, dy }: View): View {
  // Something of the plot stays in sight.
  return {
    kx,
    ky,
    dx: clamp(dx, 1 - kx - BEYOND, BEYOND),
    dy: clamp(dy, 1 - ky - BEYOND, BEYOND),
  };
}

/** Moved by shares of the plot's width and height. */
export const move = (view: View, x: number, y: number): View => settle({ ...view, dx: view.dx + x, dy: view.dy + y });

/** Zoomed by factors, such that what lies at a place of the plot (shares of width and height) stays there. */
export function zoom(view: View, byX: number, byY: number, x: number, y: number): View {
  const kx = clamp(view.kx * byX, 1, MOST);
  const ky = clamp(view.ky * byY, 1, MOST);
  return settle({ kx, ky, dx: x - ((x - view.dx) / view.kx) * kx, dy: y - ((y - view.dy) / view.ky) * ky });
}

/** As a text of the address; that of {@link HOME} is empty. */
export function formatView(view: View): string {
  const { kx, ky, dx, dy } = view;
  return kx === 1 && ky === 1 && dx === 0 && dy === 0
    ? ""
    : [kx, ky, dx, dy].map((part) => Number(part.toPrecision(6))).join(",");
}

export function parseView(text: string): View {
  const [kx = 1, ky = 1, dx = 0, dy = 0, ...rest] = text === "" ? [] : text.split(",").map(Number);
  const whole = rest.length === 0 && [kx, ky, dx, dy].every(Number.isFinite);
  return whole ? settle({ kx: clamp(kx, 1, MOST), ky: clamp(ky, 1, MOST), dx, dy }) : HOME;
}

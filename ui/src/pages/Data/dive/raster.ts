/** Draws points into pixels: 50,000 of them in a few milliseconds, with or without a GPU. */

/** A colour as a little-endian pixel of a canvas, 0xAABBGGRR, opaque. */
type Pixel = number;

/** `rgb(1,2,3)` as a pixel. */
export function toPixel(color: string): Pixel {
  const [red = 0, green = 0, blue = 0] = (color.match(/\d+(\.\d+)?/g) ?? []).map(Number);
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** From places in the unit square to pixels: `x * kx + dx`. */
export interface Projection {
  kx: number;
  ky: number;
  dx: number;
  dy: number;
}

/** What to draw, by row. */
export interface Points {
  x: Float32Array;
  y: Float32Array;
  /** Where the rows were before, and how much of the way they have gone, 0 to 1. */
  fromX: Float32Array | null;
  fromY: Float32Array | null;
  progress: number;
  /** The colour of each row, an index into `palette`. */
  color: Uint8Array;
  palette: Uint32Array;
}

const SUBPIXELS = 4;
/** No place lies below it; comparisons with NaN are false. */
const UNSHOWN = Number.NEGATIVE_INFINITY;
const LEVELS = 64;

/** How a row is drawn. */
export interface Mark {
  shape: "disc" | "square";
  /** Half its width, in pixels. */
  radius: number;
  /** 0 to 1. */
  opacity: number;
}

/** A mark's coverage of pixels, 0 to 64, for each place of its centre within a pixel. */
interface Stamp {
  size: number;
  masks: Uint8Array[];
}

const stamps = new Map<string, Stamp>();

function stampOf({ shape, radius, opacity }: Mark): Stamp {
  const key = `${shape}/${radius.toFixed(2)}/${opacity.toFixed(2)}`;
  const before = stamps.get(key);
  if (before) {
    return before;
  }
  const size = Math.ceil(radius * 2) + 2;
  const masks: Uint8Array[] = [];
  for (let place = 0; place < SUBPIXELS * SUBPIXELS; place++) {
    const centerX = size / 2 - 0.5 + ((place % SUBPIXELS) + 0.5) / SUBPIXELS;
    const centerY = size / 2 - 0.5 + (Math.floor(place / SUBPIXELS) + 0.5) / SUBPIXELS;
    const mask = new Uint8Array(size * size);
    for (let pixel = 0; pixel < mask.length; pixel++) {
      const [offX, offY] = [(pixel % size) + 0.5 - centerX, Math.floor(pixel / size) + 0.5 - centerY];
      const covered =
        shape === "disc"
          ? inside(radius, Math.hypot(offX, offY))
          : inside(radius, Math.abs(offX)) * inside(radius, Math.abs(offY));
      mask[pixel] = Math.round(covered * opacity * LEVELS);
    }
    masks.push(mask);
  }
  if (stamps.size > 100) {
    stamps.clear();
  }
  stamps.set(key, { size, masks });
  return { size, masks };
}

/** How much of a pixel so far away from the middle is within the radius. */
const inside = (radius: number, away: number): number =>
  Math.min(Math.max(radius + 0.5 - away, 0), Math.min(1, radius * 2));

/**
 * Draws rows.
 *
 * @param rows 1 for each row to draw, or null for all
 */
export function drawPoints(
  image: { data: Uint32Array; width: number; height: number },
  points: Points,
  projection: Projection,
  rows: Uint8Array | null,
  mark: Mark,
): void {
  const { data, width, height } = image;
  const { x, y, fromX, fromY, progress, color, palette } = points;
  const { kx, ky, dx, dy } = projection;
  const { size, masks } = stampOf(mark);
  const half = size / 2 - 0.5;
  for (let row = 0; row < x.length; row++) {
    if (rows !== null && rows[row] === 0) {
      continue;
    }
    let atX = x[row] as number;
    let atY = y[row] as number;
    if (fromX !== null && fromY !== null) {
      const beforeX = fromX[row] as number;
      const beforeY = fromY[row] as number;
      // A row that was not shown before (NaN) is at its place at once.
      atX = beforeX >= UNSHOWN ? beforeX + (atX - beforeX) * progress : atX;
      atY = beforeY >= UNSHOWN ? beforeY + (atY - beforeY) * progress : atY;
    }
    const left = atX * kx + dx - half;
    const top = atY * ky + dy - half;
    // Comparisons with NaN are false: what is not placed is not drawn.
    if (!(left > -size && top > -size && left < width && top < height)) {
      continue;
    }
    const wholeX = Math.floor(left);
    const wholeY = Math.floor(top);
    const place = Math.floor((top - wholeY) * SUBPIXELS) * SUBPIXELS + Math.floor((left - wholeX) * SUBPIXELS);
    const mask = masks[place] as Uint8Array;
    const pixel = palette[color[row] as number] as number;
    const redBlue = pixel & 0xff00ff;
    const green = pixel & 0xff00;
    const lastX = Math.min(size, width - wholeX);
    const lastY = Math.min(size, height - wholeY);
    for (let maskY = Math.max(-wholeY, 0); maskY < lastY; maskY++) {
      const line = (wholeY + maskY) * width + wholeX;
      for (let maskX = Math.max(-wholeX, 0); maskX < lastX; maskX++) {
        const cover = mask[maskY * size + maskX] as number;
        if (cover !== 0) {
          const under = data[line + maskX] as number;
          const underRedBlue = under & 0xff00ff;
          const underGreen = under & 0xff00;
          data[line + maskX] =
            0xff000000 |
            ((underRedBlue + (((redBlue - underRedBlue) * cover) >> 6)) & 0xff00ff) |
            ((underGreen + (((green - underGreen) * cover) >> 6)) & 0xff00);
        }
      }
    }
  }
}

/** Fills a rectangle, given in pixels, as far as it lies in the image. */
export function fillBox(
  image: { data: Uint32Array; width: number; height: number },
  left: number,
  top: number,
  right: number,
  bottom: number,
  pixel: Pixel,
): void {
  const from = Math.max(Math.round(left), 0);
  const to = Math.min(Math.round(right), image.width);
  for (let line = Math.max(Math.round(top), 0); line < Math.min(Math.round(bottom), image.height); line++) {
    if (to > from) {
      image.data.fill(pixel, line * image.width + from, line * image.width + to);
    }
  }
}
